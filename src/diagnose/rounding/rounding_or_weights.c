/* Whether small differences of requests alone are rounding. What rounding does is drawn anew when anything far away in
 * the context is other; what a wrong weight or formula does is nearly the same. So each of many prompts is run twice,
 * with another first token, and d of the same place is compared by rank. The reference says what rounding would show:
 * bf16 throughout. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

enum { PROMPTS = 32, TOKENS = 3, VALUES = PROMPTS * TOKENS, PROMPT_MOST = 24 };

/* Nearly the likeliest token each time, so that both runs of a prompt draw the same ones. */
#define COLD 0.05f
/* Fewest values, and how much nearer to 1 than rounding's the correlation has to be. */
#define VALUES_LEAST 40
#define NEARER 0.25

static int64_t length_of(int64_t p) { return 9 + p % 7; }

/* In the second run prompts come in the other order, behind one more: what is drawn by the order is drawn otherwise. */
static ls_status run_once(ls_inquiry *q, bool second, ls_requests *r, ls_seen *seen, ls_error *err) {
    int32_t ids[PROMPT_MOST];
    ls_trial trial;
    ls_stack_trial(q, LS_STACK_LENGTHS, &trial, NULL);
    trial.sampling.temperature = COLD;
    trial.max_tokens = TOKENS;
    for (int64_t k = second ? -1 : 0; k < PROMPTS; k++) {
        const int64_t p = k < 0 ? PROMPTS : second ? PROMPTS - 1 - k : k, n = length_of(p);
        for (int64_t i = 0; i < n; i++) ids[i] = ls_plain_token(q, second && i == 0 ? 6100 + p : 6000 + p, i);
        LS_TRY(ls_requests_add(r, ids, n, err));
    }
    return ls_foreign_try(q, &trial, 0, r->of, r->n, seen, err);
}

typedef struct ranked {
    double value, rank;
    int64_t at;
} ranked;

static int by_value(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

static void rank_all(double *ranks, const double *values, int64_t n) {
    ranked list[VALUES];
    for (int64_t i = 0; i < n; i++) list[i] = (ranked){.value = values[i], .at = i};
    qsort(list, (size_t)n, sizeof *list, by_value);
    for (int64_t i = 0; i < n; i++) ranks[list[i].at] = (double)i - 0.5 * (double)(n - 1);
}

double ls_rank_correlation(const double *a, const double *b, int64_t n) {
    double x[VALUES], y[VALUES], xy = 0.0, xx = 0.0;
    rank_all(x, a, n);
    rank_all(y, b, n);
    for (int64_t i = 0; i < n; i++) xy += x[i] * y[i], xx += x[i] * x[i];
    return xx > 0.0 ? xy / xx : 0.0;
}

typedef struct pairs {
    double one[VALUES], two[VALUES], rounded_one[VALUES], rounded_two[VALUES];
    int64_t n;
} pairs;

static ls_status compare_runs(ls_inquiry *q, const ls_outcome *a, const ls_outcome *b, pairs *out, ls_error *err) {
    double of_a[TOKENS], of_b[TOKENS];
    int64_t n = 0;
    while (n < a->n && n < b->n && n < TOKENS && a->completion[n] == b->completion[n]) n++;
    if (n == 0) return LS_OK;
    LS_TRY(ls_rounding_of(q, a, n, of_a, err));
    LS_TRY(ls_rounding_of(q, b, n, of_b, err));
    for (int64_t i = 0; i < n; i++) {
        const double one = (double)a->logprob[i] - (double)a->scored[i];
        const double two = (double)b->logprob[i] - (double)b->scored[i];
        if (!isfinite(one) || !isfinite(two)) continue;
        out->one[out->n] = one;
        out->two[out->n] = two;
        out->rounded_one[out->n] = of_a[i];
        out->rounded_two[out->n++] = of_b[i];
    }
    return LS_OK;
}

/* How alike d is with another first token, by rank, and how alike bf16 throughout would make it. */
typedef struct likeness {
    double seen, rounding;
    int64_t n; /* places; too few: 0 */
} likeness;

static bool is_rounding(const likeness *l) { return !(1.0 - l->seen < NEARER * (1.0 - l->rounding) && l->seen > 0.8); }

static ls_status measure_likeness(ls_inquiry *q, likeness *out, ls_error *err) {
    ls_requests *r = calloc(2, sizeof *r);
    pairs *p = calloc(1, sizeof *p);
    ls_seen one = {0}, two = {0};
    ls_status status;
    *out = (likeness){0};
    LS_TRY_DONE(r != NULL && p != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    LS_TRY_DONE(run_once(q, false, &r[0], &one, err));
    LS_TRY_DONE(run_once(q, true, &r[1], &two, err));
    if (one.outcomes.n == PROMPTS && two.outcomes.n == PROMPTS + 1)
        for (int64_t i = 0; i < PROMPTS; i++)
            LS_TRY_DONE(compare_runs(q, &one.outcomes.of[i], &two.outcomes.of[PROMPTS - i], p, err));
    if (p->n >= VALUES_LEAST)
        *out = (likeness){ls_rank_correlation(p->one, p->two, p->n),
                          ls_rank_correlation(p->rounded_one, p->rounded_two, p->n), p->n};
done:
    ls_seen_deinit(&one);
    ls_seen_deinit(&two);
    for (int i = 0; r != NULL && i < 2; i++) free(r[i].ids);
    free(r);
    free(p);
    return status;
}

ls_status ls_decide_rounding_or_weights(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    char where[256];
    likeness l;
    LS_TRY(measure_likeness(q, &l, err));
    if (l.n == 0 || is_rounding(&l)) return LS_OK;
    const bool uniform = ls_foreign_is_uniform(f, where, sizeof where);
    ls_foreign_find(f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_LONG, uniform ? 0.85 : 0.75,
                    "small differences of requests alone (median %.2g) are no rounding: with another first token they "
                    "are the same at %" PRId64 " places (rank correlation %.3f; rounding to bf16 would have %.3f); %s",
                    f->floor, l.n, l.seen, l.rounding, where);
    f->found.of[0].is_confirmed = true;
    f->constant = true;
    return LS_OK;
}

ls_status ls_foreign_is_drawn_anew(ls_inquiry *q, bool *is_drawn_anew, ls_error *err) {
    likeness l;
    LS_TRY(measure_likeness(q, &l, err));
    *is_drawn_anew = l.n > 0 && is_rounding(&l);
    return LS_OK;
}

/* ---- drawn anew each time ---- */

enum { TIMES = 8, SOLO = 4, NOISE_VALUES = 64 };

/* Below it, sums in any order of float32 may be all that moves. */
#define NOISE_LEAST 1e-4
/* Of the median |d|, what the mean of TIMES runs may have: noise alone leaves 1 / sqrt(TIMES), rounding all of it. */
#define NOISE_LEFT 0.6

static double median_size(double *list, int64_t n) {
    for (int64_t i = 0; i < n; i++) list[i] = fabs(list[i]);
    ls_sort(list, n);
    return list[n / 2];
}

ls_status ls_decide_noise(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    double once[NOISE_VALUES], sum[NOISE_VALUES] = {0}, single, mean;
    int64_t n = 0;
    if (f->is_server || f->repeat < 0.5 * f->floor || f->floor < NOISE_LEAST) return LS_OK;
    for (int r = LS_STACK_SOLO_A; r <= LS_STACK_SOLO_LONG; r++) {
        const ls_outcomes *o = &f->seen[r].outcomes;
        int64_t same = o->n == 1 ? o->of[0].n : 0;
        ls_trial trial;
        if (n + same > NOISE_VALUES) continue;
        ls_stack_trial(q, (ls_stack_experiment)r, &trial, NULL);
        for (int64_t i = 0; i < same; i++)
            once[n + i] = sum[n + i] = (double)o->of[0].logprob[i] - (double)o->of[0].scored[i];
        for (int k = 1; k < TIMES && same > 0; k++) {
            ls_seen seen = {0};
            int64_t i = 0;
            LS_TRY(ls_foreign_try_experiment(q, (ls_stack_experiment)r, &trial, &seen, err));
            if (seen.outcomes.n == 1)
                for (const ls_outcome *c = seen.outcomes.of;
                     i < same && i < c->n && c->completion[i] == o->of[0].completion[i]; i++)
                    sum[n + i] += (double)c->logprob[i] - (double)c->scored[i];
            same = i; /* behind another token there is another value */
            ls_seen_deinit(&seen);
        }
        n += same;
    }
    if (n < SOLO * 3) return LS_OK;
    single = median_size(once, n);
    mean = median_size(sum, n) / (double)TIMES;
    if (mean < NOISE_LEFT * single) {
        ls_foreign_find(f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_SOLO_LONG, 0.9,
                        "the median |d| of requests alone is %.2g, that of the mean of %d runs %.2g: what is off is "
                        "drawn anew each time",
                        single, TIMES, mean);
        f->found.of[0].is_confirmed = true;
        f->constant = true;
    }
    return LS_OK;
}
