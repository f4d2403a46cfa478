/* What an experiment of a server is worth: by how often it is off beside its control, with other texts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

double ls_probe_apart(const ls_outcome *a, const ls_outcome *b) {
    double most = 0.0;
    for (int64_t i = 0; i < a->n && i < b->n; i++) {
        const double one = (double)a->logprob[i] - (double)a->scored[i];
        const double two = (double)b->logprob[i] - (double)b->scored[i];
        if (isfinite(one) && isfinite(two)) most = fmax(most, fabs(one - two));
        if (a->completion[i] != b->completion[i]) break; /* behind it the contexts are others */
    }
    return most;
}

ls_status ls_probe_score(ls_inquiry *q, ls_prompt prompt, const int32_t *tokens, int64_t n, float *values,
                         ls_error *err) {
    ls_outcomes o = {0};
    ls_trial trial;
    ls_status status;
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.max_tokens = n;
    LS_TRY_DONE(ls_outcomes_create(&o, &trial, &prompt, 1, err));
    o.of[0].n = n;
    memcpy(o.of[0].completion, tokens, (size_t)n * sizeof *tokens);
    LS_TRY_DONE(ls_sweep_trainer_score(q->runner->door->trainer, &trial, &o, err));
    memcpy(values, o.of[0].scored, (size_t)n * sizeof *values);
done:
    ls_outcomes_deinit(&o);
    return status;
}

/* Nothing that is seen from outside is surer than SURE. There are many rules, and chance may serve any of them. */
#define SURE 0.97
#define UNFIT 0.3
enum { RULES = 100 };
double ls_probe_sure(double chance, double unfit) { return fmax(0.0, SURE - RULES * chance - UNFIT * unfit); }

enum { CONFIRM_MOST = 5 };
/* Of all experiments of one run together. */
#define FAMILY_ERROR 0.01
#define OTHER_TEXTS 0x9E3779B97F4A7C15u

ls_status ls_probe_confirm(ls_inquiry *q, ls_stack_experiment experiment, ls_confirmed *out, ls_error *err) {
    const ls_requests keep = q->requests[experiment];
    const uint64_t seed = q->seed;
    ls_status status = LS_OK;
    *out = (ls_confirmed){.chance = 1.0};
    for (int k = 1; k <= CONFIRM_MOST && out->chance > FAMILY_ERROR && status == LS_OK; k++) {
        ls_requests *r = &q->requests[experiment];
        ls_seen a = {0}, b = {0};
        ls_trial trial;
        memset(r, 0, sizeof *r);
        q->seed = seed + (uint64_t)k * OTHER_TEXTS;
        status = ls_stack_requests(q, experiment, err);
        ls_stack_trial(q, experiment, &trial, NULL);
        if (status == LS_OK) status = ls_foreign_try(q, &trial, 0, r->of, r->n, &a, err);
        ls_foreign_control(q, experiment, r, &trial);
        if (status == LS_OK) status = ls_foreign_try(q, &trial, 0, r->of, r->n, &b, err);
        if (status == LS_OK && a.outcomes.n > 0 && b.outcomes.n > 0) {
            out->with += a.n_sequences_off;
            out->n_with += a.n_sequences;
            out->without += b.n_sequences_off;
            out->n_without += b.n_sequences;
            out->n_tokens_off += a.n_off;
            out->n_tokens += a.n_tokens;
            out->chance = fmin(1.0, (double)LS_STACK_EXPERIMENTS *
                                        ls_probe_chance(out->with, out->n_with, out->without, out->n_without));
        }
        ls_seen_deinit(&a);
        ls_seen_deinit(&b);
        free(r->ids);
        if (out->with == 0 && k > 1) break; /* twice nothing: it was chance */
    }
    q->requests[experiment] = keep;
    q->seed = seed;
    return status;
}

/* ---- requests alone ---- */

/* What a value alone may be off by and not be off with other texts, and still be nobody's rounding. */
#define NO_ROUNDING 4.0

/* Other texts are off as well, or the middle of all is. Each of the requests alone that was off is tried, once. */
ls_status ls_probe_solo_holds(ls_inquiry *q, bool *holds_out, ls_error *err) {
    const uint64_t seed = q->seed;
    double most = 0.0;
    ls_status status = LS_OK;
    *holds_out = q->f->constant || q->solo_again == LS_LOOK_OFF;
    if ((!q->f->constant && ls_probe_solo_is_right(q->f)) || q->solo_again != LS_LOOK_UNTRIED) return LS_OK;
    for (int i = 0; i < LS_PROBE_SOLO && !*holds_out && status == LS_OK; i++) {
        const ls_stack_experiment experiment = ls_probe_solo[i];
        const ls_requests keep = q->requests[experiment];
        ls_requests *r = &q->requests[experiment];
        ls_seen again = {0};
        ls_trial trial;
        if (q->f->seen[experiment].n_sequences_off == 0) continue;
        most = fmax(most, q->f->seen[experiment].abs_max);
        memset(r, 0, sizeof *r);
        q->seed = seed + 77;
        ls_stack_trial(q, experiment, &trial, NULL);
        status = ls_stack_requests(q, experiment, err);
        if (status == LS_OK) status = ls_foreign_try(q, &trial, 0, r->of, r->n, &again, err);
        *holds_out = again.n_sequences_off > 0;
        ls_seen_deinit(&again);
        free(r->ids);
        *r = keep;
        q->seed = seed;
    }
    *holds_out = *holds_out || most > NO_ROUNDING;
    q->solo_again = *holds_out ? LS_LOOK_OFF : LS_LOOK_CLEAN;
    return status;
}
