/* What an inquiry has found so far: causes with their evidence, the surest first, */
#include <math.h>
#include <stdarg.h>

#include "diagnose/rounding/inquiry.h"

void ls_foreign_tell(const ls_inquiry *q, const char *what) { ls_sweep_tell(&q->runner->sweep->opts, 0, 0, what); }

/* What is found without the trials that tell it from others is not to be named. */
#define UNDECIDED 0.8

void ls_foreign_find(ls_foreign *f, ls_cause cause, ls_stack_experiment experiment, double confidence,
                     const char *format, ...) {
    ls_finding found = {.cause = cause, .confidence = confidence, .experiment = experiment};
    va_list args;
    va_start(args, format);
    vsnprintf(found.evidence, sizeof found.evidence, format, args);
    va_end(args);
    if (f->undecided || (f->out_of_time && ls_cause_of(cause)->is_fallback)) found.confidence *= UNDECIDED;
    ls_findings_add(&f->found, &found, LS_FINDINGS_MAX);
}

/* Values are off. A trial without an answer says nothing of any, but of the failure itself (decide_failures). */
bool ls_stack_is_off(const ls_inquiry *q, ls_stack_experiment r) {
    return q->f->seen[r].look == LS_LOOK_OFF && q->f->seen[r].outcomes.n > 0;
}

/* Runs an experiment that is off a second time: values that move by themselves are no evidence of anything else. */
ls_status ls_foreign_repeat(ls_inquiry *q, ls_stack_experiment experiment, bool *moves, ls_error *err) {
    ls_seen again;
    ls_trial trial;
    double most = 0.0;
    ls_stack_trial(q, experiment, &trial, NULL);
    LS_TRY(ls_foreign_try_experiment(q, experiment, &trial, &again, err));
    for (int64_t s = 0; s < again.outcomes.n && s < q->f->seen[experiment].outcomes.n; s++) {
        const ls_outcome *a = &again.outcomes.of[s], *b = &q->f->seen[experiment].outcomes.of[s];
        for (int64_t i = 0; i < a->n && i < b->n && a->completion[i] == b->completion[i]; i++)
            if (ls_token_off(q->f, a, i) || ls_token_off(q->f, b, i))
                most = fmax(most, fabs((double)a->logprob[i] - (double)b->logprob[i]));
    }
    *moves = most > q->f->limit;
    if (*moves) {
        if (most > q->f->repeat) q->f->repeat = most;
        ls_foreign_find(q->f, LS_CAUSE_NOT_REPEATABLE, experiment, 0.95,
                        "%s run twice differs by up to %.2g; rounding makes %.2g of a difference to the trainer",
                        ls_stack_experiment_name(experiment), most, q->f->floor);
    }
    ls_seen_deinit(&again);
    return LS_OK;
}
