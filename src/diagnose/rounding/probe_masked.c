/* Whether records are of a distribution without the end of sequence. What is left shares its probability p, so all
 * others are above the prompt's values by -log(1 - p): by much where the end is likely, by nothing where it is not. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

/* Of so many contexts those where the end is likeliest, beside as many where it is least likely. */
enum { CONTEXTS = 128, SIDE = 16, CONTEXT_LENGTH = 7, DRAWS = 4, TEXT = 3800 };
/* So many spreads of the difference, and it is as large as the probability says. */
#define LIKELY_LEAST 0.004
#define MASKED_SPREADS 6.0
#define MASKED_NEAR 0.35

typedef struct context {
    int64_t text;
    double raised; /* -log(1 - p): by so much others are above without the end */
} context;

static int by_raised(const void *a, const void *b) {
    const context *x = a, *y = b;
    return (x->raised < y->raised) - (x->raised > y->raised);
}

/* The prompt's own values of the end behind each context. */
static ls_status measure_ends(ls_inquiry *q, int32_t end, context *out, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_outcomes o = {0};
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    for (int64_t i = 0; i < CONTEXTS; i++) LS_TRY_DONE(ls_requests_plain(q, r, TEXT + i, CONTEXT_LENGTH, err));
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.max_tokens = 1;
    LS_TRY_DONE(ls_outcomes_create(&o, &trial, r->of, r->n, err));
    for (int64_t i = 0; i < o.n; i++) o.of[i].n = 1, o.of[i].completion[0] = end;
    LS_TRY_DONE(ls_sweep_trainer_score(q->runner->door->trainer, &trial, &o, err));
    for (int64_t i = 0; i < o.n; i++) {
        const double p = exp(fmin(0.0, (double)o.of[i].scored[0]));
        out[i] = (context){TEXT + i, isfinite((double)o.of[i].scored[0]) && p < 1.0 ? -log1p(-p) : 0.0};
    }
done:
    ls_outcomes_deinit(&o);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

static ls_status draw_behind(ls_inquiry *q, const context *of, ls_seen *seen, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    for (int64_t i = 0; i < SIDE; i++) LS_TRY_DONE(ls_requests_plain(q, r, of[i].text, CONTEXT_LENGTH, err));
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.max_tokens = 1;
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, seen, err));
done:
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

/* By how much records are above the prompt's values behind each context, in the mean of its draws. */
static ls_status measure_raise(ls_inquiry *q, const context *of, double *out, ls_error *err) {
    const uint64_t seed = q->runner->sweep->opts.seed;
    int64_t n[SIDE] = {0};
    memset(out, 0, SIDE * sizeof *out);
    for (uint64_t k = 0; k < DRAWS; k++) {
        ls_seen s = {0};
        ls_status status;
        q->runner->sweep->opts.seed = seed + 11 + k;
        status = draw_behind(q, of, &s, err);
        q->runner->sweep->opts.seed = seed;
        for (int64_t i = 0; i < s.outcomes.n && i < SIDE; i++) {
            if (s.outcomes.of[i].n == 0) continue;
            out[i] += (double)s.outcomes.of[i].logprob[0] - (double)s.outcomes.of[i].scored[0];
            n[i]++;
        }
        ls_seen_deinit(&s);
        LS_TRY(status);
    }
    for (int64_t i = 0; i < SIDE; i++) out[i] = n[i] > 0 ? out[i] / (double)n[i] : (double)NAN;
    return LS_OK;
}

static double mean_of(const double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n;
}

/* The squared error of the mean of what `raised` times each expected raise leaves of x. */
static double error_of(const double *x, const context *of, double raised, double mean) {
    double sum = 0.0;
    for (int64_t i = 0; i < SIDE; i++) {
        const double left = x[i] - mean - raised * of[i].raised;
        sum += left * left;
    }
    return sum / (double)(SIDE * (SIDE - 1));
}

static ls_status try_end(ls_inquiry *q, int32_t end, bool *found, ls_error *err) {
    context of[CONTEXTS];
    double likely[SIDE], unlikely[SIDE], expected = 0.0, raised, base, spread;
    LS_TRY(measure_ends(q, end, of, err));
    qsort(of, CONTEXTS, sizeof *of, by_raised);
    for (int64_t i = 0; i < SIDE; i++) expected += of[i].raised / SIDE;
    if (expected < LIKELY_LEAST) return LS_OK; /* nothing would show it */
    LS_TRY(measure_raise(q, of, likely, err));
    LS_TRY(measure_raise(q, of + CONTEXTS - SIDE, unlikely, err));
    base = mean_of(unlikely, SIDE);
    raised = mean_of(likely, SIDE) - base;
    spread = sqrt(error_of(likely, of, 1.0, mean_of(likely, SIDE) - expected) +
                  error_of(unlikely, of + CONTEXTS - SIDE, 0.0, base));
    if (!(raised > MASKED_SPREADS * spread) || !(fabs(raised - expected) < MASKED_NEAR * expected) ||
        !(fabs(base) < MASKED_NEAR * expected))
        return LS_OK;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_EOS_MASKED, LS_STACK_SOLO_C,
                    ls_probe_sure(erfc(raised / spread / sqrt(2.0)), fabs(raised - expected) / expected),
                    "where the prompt's values make token %d likely, records of others are above theirs by %.2g in the "
                    "mean of %d texts, and without it they would be by %.2g; where it is not, by %.2g",
                    (int)end, raised + base, SIDE, expected, base);
    return LS_OK;
}

/* Of requests alone more records are above the prompt's values than below, by more than chance makes: else nothing is
 * taken out, and the trials are spared. */
enum { RAISED_LEAST = 24 };
#define RAISED_SPREADS 2.0
static bool is_raised(const ls_foreign *f) {
    int64_t up = 0, down = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++)
        for (int64_t s = 0; s < f->seen[ls_probe_solo[r]].outcomes.n; s++) {
            const ls_outcome *c = &f->seen[ls_probe_solo[r]].outcomes.of[s];
            for (int64_t i = 0; i < c->n; i++) up += c->logprob[i] > c->scored[i], down += c->logprob[i] < c->scored[i];
        }
    return up + down >= RAISED_LEAST && (double)(up - down) > RAISED_SPREADS * sqrt((double)(up + down));
}

ls_status ls_probe_decide_masked(ls_inquiry *q, bool *found, ls_error *err) {
    const ls_subject *subject = q->runner->door->subject;
    const int32_t n = q->config->n_eos > 0 ? q->config->n_eos : 3; /* where nobody says it, one of the first */
    *found = false;
    for (int32_t i = 0; i < n && !*found && is_raised(q->f); i++) {
        if (ls_door_is_closed(q->runner->door)) return LS_OK;
        if (subject->is_near_limit != NULL && subject->is_near_limit(subject->context)) return LS_OK;
        LS_TRY(try_end(q, q->config->n_eos > 0 ? q->config->eos[i] : i, found, err));
    }
    return LS_OK;
}
