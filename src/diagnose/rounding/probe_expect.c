/* What a checkpoint says of a server's values: our own forward of the tokens that it gave, in float32 and, in bf16, in
 * two orders of addition. How far these lie apart is what rounding makes of this model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Our forwards: the first is what the others and the server are held against. */
enum { FORWARDS = 3 };

/* mma16 multiplies weights that are stored in bf16. Of others there is one order of addition in bf16, no second one. */
static ls_status count_forwards(const ls_inquiry *q, int *out, ls_error *err) {
    ls_sweep_trainer *checkpoint = q->runner->sweep->opts.checkpoint;
    ls_model *model;
    ls_error why;
    LS_TRY(ls_sweep_trainer_model(checkpoint, 0, &model, err));
    *out = ls_model_set_profile(model, LS_PROFILE_MMA16, LS_BF16, &why) == LS_OK ? FORWARDS : FORWARDS - 1;
    return LS_OK;
}

typedef struct values {
    double *spread, *apart;
    double *decoded, *records; /* of decoded tokens: how far the prompt's value is, and the record */
    int64_t n, n_decoded;
} values;

static ls_status score_experiment(ls_inquiry *q, ls_stack_experiment experiment, int forwards, values *out,
                                  ls_error *err) {
    static const ls_dtype dtypes[FORWARDS] = {LS_F32, LS_BF16, LS_BF16};
    static const ls_profile profiles[FORWARDS] = {LS_PROFILE_EXACT, LS_PROFILE_EXACT, LS_PROFILE_MMA16};
    const ls_outcomes *seen = &q->f->seen[experiment].outcomes;
    ls_outcomes ours[FORWARDS] = {0};
    ls_trial trial;
    ls_status status = LS_OK;
    for (int k = 0; k < forwards && seen->n > 0; k++) {
        ls_stack_trial(q, experiment, &trial, NULL);
        trial.dtype = dtypes[k];
        trial.profile = profiles[k];
        LS_TRY_DONE(ls_outcomes_create(&ours[k], &trial, q->requests[experiment].of, q->requests[experiment].n, err));
        for (int64_t s = 0; s < seen->n && s < ours[k].n; s++) {
            ours[k].of[s].n = seen->of[s].n;
            memcpy(ours[k].of[s].completion, seen->of[s].completion,
                   (size_t)seen->of[s].n * sizeof *seen->of[s].completion);
        }
        LS_TRY_DONE(ls_sweep_trainer_score(q->runner->sweep->opts.checkpoint, &trial, &ours[k], err));
    }
    for (int64_t s = 0; s < seen->n && s < ours[0].n; s++)
        for (int64_t i = 0; i < seen->of[s].n; i++) {
            const double base = (double)ours[0].of[s].scored[i];
            double spread = 0.0;
            if (!(base < LS_SURE_TOKEN) || !isfinite((double)seen->of[s].scored[i])) continue;
            for (int k = 1; k < forwards; k++)
                for (int j = 0; j < k; j++)
                    spread = fmax(spread, fabs((double)ours[k].of[s].scored[i] - (double)ours[j].of[s].scored[i]));
            out->spread[out->n] = spread;
            out->apart[out->n++] = fabs((double)seen->of[s].scored[i] - base);
            if (i == 0 || !isfinite((double)seen->of[s].logprob[i])) continue;
            out->decoded[out->n_decoded] = fabs((double)seen->of[s].scored[i] - base);
            out->records[out->n_decoded++] = fabs((double)seen->of[s].logprob[i] - base);
        }
done:
    for (int k = 0; k < FORWARDS; k++) ls_outcomes_deinit(&ours[k]);
    return status;
}

ls_status ls_probe_expect(ls_inquiry *q, ls_error *err) {
    values v = {0};
    int64_t total = 0;
    int forwards;
    ls_status status;
    if (q->runner->sweep->opts.checkpoint == NULL) return LS_OK;
    LS_TRY(count_forwards(q, &forwards, err));
    for (int i = 0; i < LS_PROBE_SOLO; i++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[i]].outcomes;
        for (int64_t s = 0; s < o->n; s++) total += o->of[s].n;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&v.spread, total + 1, sizeof *v.spread, "values", err));
    LS_TRY_DONE(ls_array_alloc((void **)&v.apart, total + 1, sizeof *v.apart, "values", err));
    LS_TRY_DONE(ls_array_alloc((void **)&v.decoded, total + 1, sizeof *v.decoded, "values", err));
    LS_TRY_DONE(ls_array_alloc((void **)&v.records, total + 1, sizeof *v.records, "values", err));
    for (int i = 0; i < LS_PROBE_SOLO; i++) LS_TRY_DONE(score_experiment(q, ls_probe_solo[i], forwards, &v, err));
    q->f->expected = (ls_expected){.n = v.n,
                                   .median = ls_quantile(v.spread, v.n, 0.5, 0.0),
                                   .most = ls_quantile(v.spread, v.n, 1.0, 0.0),
                                   .apart = ls_quantile(v.apart, v.n, 0.5, 0.0),
                                   .decoded = ls_quantile(v.decoded, v.n_decoded, 0.5, 0.0),
                                   .records = ls_quantile(v.records, v.n_decoded, 0.5, 0.0)};
done:
    free(v.records);
    free(v.decoded);
    free(v.apart);
    free(v.spread);
    return status;
}
