/* The smallest requests that are still off. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "diagnose/rounding/inquiry.h"
#include "diagnose/trial/shrink.h"

/* Seconds without a limit, and of a suspect that hangs. */
enum { SHRINK_TRIALS = 24, SHRINK_SECONDS = 60, SHRINK_SECONDS_HURRIED = 40 };

typedef struct repro {
    ls_inquiry *q;
    ls_trial trial;
    double end;
    int64_t left;
} repro;

static ls_status try_prompts(void *context, const ls_prompt *prompts, int64_t n, int64_t max_tokens, bool *fails,
                             ls_error *err) {
    repro *r = context;
    ls_seen seen = {0};
    *fails = false;
    r->trial.max_tokens = max_tokens;
    if (r->left <= 0 || ls_clock_seconds() > r->end) return LS_OK;
    r->left--;
    r->q->runner->sweep->repro_trials++;
    LS_TRY(ls_foreign_try(r->q, &r->trial, 0, prompts, n, &seen, err));
    *fails = seen.look == LS_LOOK_OFF;
    ls_seen_deinit(&seen);
    return LS_OK;
}

/* The door has an end of its own where there is a limit. */
static double shrink_end(const ls_door *door) {
    if (door->hurried) return ls_clock_seconds() + SHRINK_SECONDS_HURRIED;
    return door->limits.end > 0.0 ? (double)INFINITY : ls_clock_seconds() + SHRINK_SECONDS;
}

ls_status ls_foreign_repro(ls_inquiry *q, ls_error *err) {
    ls_sweep *sweep = q->runner->sweep;
    const ls_requests *all = &q->requests[q->f->repro_of];
    repro r = {.q = q, .end = shrink_end(q->runner->door), .left = SHRINK_TRIALS};
    const ls_shrink shrink = {.context = &r, .test = try_prompts, .tests_max = SHRINK_TRIALS, .by_halves = true};
    ls_prompt *prompts = NULL;
    int64_t n, max_tokens;
    ls_status status;
    ls_foreign_tell(q, "shrinking the requests");
    ls_stack_trial(q, q->f->repro_of, &r.trial, NULL);
    sweep->repro_from = all->n;
    if (ls_door_is_closed(q->runner->door)) /* as they are: nobody shrank them */
        return ls_sweep_keep_repro(sweep, all->of, all->n, &r.trial, err);
    max_tokens = r.trial.max_tokens;
    LS_TRY_DONE(ls_array_alloc((void **)&prompts, all->n, sizeof *prompts, "prompts", err));
    LS_TRY_DONE(ls_shrink_requests(&shrink, all->of, all->n, max_tokens, prompts, &n, err));
    if (n == 0) goto done; /* it does not come back: nothing to shrink */
    r.left += SHRINK_TRIALS / 2;
    LS_TRY_DONE(ls_shrink_lengths(&shrink, prompts, n, &max_tokens, err));
    r.left = 1;
    r.end = (double)INFINITY;
    LS_TRY_DONE(try_prompts(&r, prompts, n, max_tokens, &q->f->repro_shown, err));
    LS_TRY_DONE(ls_sweep_keep_repro(sweep, prompts, n, &r.trial, err));
done:
    free(prompts);
    return status;
}
