/* Whether a server's prefill is of float32, whatever decode does: one text alone and in front of more text, which are
 * forwards of other sizes. In float32 their values are a little apart. In a coarse type they are equal or far apart. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 6, SHORT = 24, LONG = 56, TEXT = 4000, APART_LEAST = 12 };
/* Of values that are not nearly sure: so many are apart at all, and so many by more than float32 makes. */
#define APART_SHARE 0.1
#define FAR_SHARE 0.02

/* The prompt's own values of the first `n` tokens of each text, behind its first token. */
static ls_status score_texts(ls_inquiry *q, int64_t n, ls_outcomes *o, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY_DONE(ls_requests_plain(q, r, TEXT + i, 1, err));
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.max_tokens = n - 1;
    LS_TRY_DONE(ls_outcomes_create(o, &trial, r->of, r->n, err));
    for (int64_t i = 0; i < o->n; i++) {
        o->of[i].n = n - 1;
        for (int64_t k = 1; k < n; k++) o->of[i].completion[k - 1] = ls_plain_token(q, TEXT + i, k);
    }
    LS_TRY_DONE(ls_sweep_trainer_score(q->runner->door->trainer, &trial, o, err));
done:
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

ls_status ls_probe_prefill_is_fine(ls_inquiry *q, bool *fine, ls_error *err) {
    ls_outcomes alone = {0}, in_front = {0};
    int64_t n = 0, n_apart = 0, n_far = 0;
    ls_status status;
    *fine = false;
    if (q->runner->door->subject->scores_by_token) return LS_OK; /* no text is ever in front of more */
    LS_TRY_DONE(score_texts(q, SHORT, &alone, err));
    LS_TRY_DONE(score_texts(q, LONG, &in_front, err));
    for (int64_t s = 0; s < alone.n && s < in_front.n; s++)
        for (int64_t i = 0; i < alone.of[s].n; i++) {
            const double value = (double)alone.of[s].scored[i];
            const double d = fabs(value - (double)in_front.of[s].scored[i]);
            if (!(value < LS_SURE_TOKEN) || !isfinite(d)) continue;
            n++;
            n_apart += d > 0.0 && d <= LS_FINE;
            n_far += d > LS_FINE;
        }
    *fine =
        n_apart >= APART_LEAST && (double)n_apart >= APART_SHARE * (double)n && (double)n_far <= FAR_SHARE * (double)n;
done:
    ls_outcomes_deinit(&alone);
    ls_outcomes_deinit(&in_front);
    return status;
}
