/* Records that are a function of the right value, which is no multiple of it: the logarithm of a probability and a
 * constant, a power, a bound that is approached. One half of the requests fits its number, and the other half tells
 * whether it holds. Where no form does, a relation that only rises says that there is one. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

typedef struct point {
    double x, y; /* the prompt's value, and the record */
} point;

typedef struct points {
    point *of;
    int64_t n;
} points;

typedef double form(double x, double a);

static double log_plus(double x, double a) { return log(exp(x) + a); }
static double to_power(double x, double a) { return -pow(-x, a); }
static double bounded(double x, double a) { return a * tanh(x / a); }
static double at_most(double x, double a) { return fmin(x, -a); }
static double rest(double x, double a) { return a * log1p(-fmin(exp(x), 1.0 - 1e-7)); }
static double probability(double x, double a) { return a * exp(x); }
static double one_more(double x, double a) { return a * log1p(exp(x)); }
static double factor_of(double x, double a) { return a * x; }
static double aside(double x, double a) { return x + a; }
static double aside_below(double x, double a) { return x - a; }

/* `is_rival`: a cause or rounding of its own, which other rules look for. */
typedef struct form_row {
    const char *front, *behind; /* of its number, in words */
    form *of;
    double low, high; /* of its number */
    ls_cause cause;
    bool is_rival;
} form_row;

static const form_row forms[] = {
    {"logarithms of the probability and ", "", log_plus, 1e-7, 2.0, LS_CAUSE_CLAMPED, false},
    {"held above -", " by a curve", bounded, 0.5, 100.0, LS_CAUSE_CLAMPED, false},
    {"-", " at most", at_most, 0.02, 10.0, LS_CAUSE_CLAMPED, false},
    {"the value to the power of ", ", with its sign", to_power, 0.2, 4.0, LS_CAUSE_SCALED, false},
    {"", " times the logarithm of what the probability leaves", rest, 0.2, 5.0, LS_CAUSE_SCALED, false},
    {"", " times the probability", probability, 0.2, 5.0, LS_CAUSE_SCALED, false},
    {"", " times the logarithm of 1 and the probability", one_more, 0.2, 5.0, LS_CAUSE_SCALED, false},
    {"", " times the value", factor_of, 0.1, 10.0, LS_CAUSE_SCALED, true},
    {"the value and ", "", aside, 1e-4, 10.0, LS_CAUSE_NONE, true},
    {"the value less ", "", aside_below, 1e-4, 10.0, LS_CAUSE_NONE, true}};
enum { FORMS = sizeof forms / sizeof forms[0], POINTS_LEAST = 24, MOVED_LEAST = 8, STEPS = 60, NARROWED = 4 };

/* A token has moved from so much on; the form leaves so much of that, of nine tenths of them. */
#define MOVED 1e-3
#define LEFT 0.1
/* By chance a record that has nothing to do with a form is so near. */
#define NEAR_BY_CHANCE 0.2
#define MONOTONE_SURE 0.75

static ls_status collect(const ls_inquiry *q, int odd, points *out, ls_error *err) {
    int64_t most = 0, request = 0;
    *out = (points){0};
    for (int r = 0; r < LS_PROBE_SOLO; r++)
        for (int64_t s = 0; s < q->f->seen[ls_probe_solo[r]].outcomes.n; s++)
            most += q->f->seen[ls_probe_solo[r]].outcomes.of[s].n;
    LS_TRY(ls_array_alloc((void **)&out->of, most + 1, sizeof *out->of, "values", err));
    for (int r = 0; r < LS_PROBE_SOLO; r++)
        for (int64_t s = 0; s < q->f->seen[ls_probe_solo[r]].outcomes.n; s++) {
            const ls_outcome *c = &q->f->seen[ls_probe_solo[r]].outcomes.of[s];
            if (request++ % 2 != odd) continue;
            for (int64_t i = 0; i < c->n; i++)
                if (isfinite(c->logprob[i]) && (double)c->scored[i] < LS_SURE_TOKEN)
                    out->of[out->n++] = (point){(double)c->scored[i], (double)c->logprob[i]};
        }
    return LS_OK;
}

static double left_by(const form_row *row, double a, const points *of) {
    double sum = 0.0;
    for (int64_t i = 0; i < of->n; i++) {
        const double one = fabs(of->of[i].y - row->of(of->of[i].x, a));
        sum += isfinite(one) ? fmin(one, 1.0) : 1.0;
    }
    return sum / (double)of->n;
}

/* The number that leaves least. */
static double fit(const form_row *row, const points *of) {
    double best = row->low, least = (double)INFINITY, low = row->low, high = row->high;
    for (int k = 0; k < NARROWED; k++) {
        const double step = pow(high / low, 1.0 / STEPS);
        double a = low;
        for (int i = 0; i <= STEPS; i++, a *= step) {
            const double left = left_by(row, a, of);
            if (left < least) least = left, best = a;
        }
        low = best / step, high = best * step;
    }
    return best;
}

/* Of the other half: how many have moved, and how many of these the form explains. */
static void count_explained(const form_row *row, double a, const points *of, int64_t *n_moved, int64_t *n_explained) {
    *n_moved = *n_explained = 0;
    for (int64_t i = 0; i < of->n; i++) {
        const double d = fabs(of->of[i].y - of->of[i].x);
        if (!(d > MOVED)) continue;
        ++*n_moved;
        *n_explained += fabs(of->of[i].y - row->of(of->of[i].x, a)) < LEFT * d;
    }
}

/* ---- of no form ---- */

static int by_value(const void *a, const void *b) {
    const point *x = a, *y = b;
    return (x->x > y->x) - (x->x < y->x);
}

/* The rising function that is nearest to the points, in their order: means of neighbours that fall are one step. */
static ls_status rising(points *of, double *level, ls_error *err) {
    int64_t *size = NULL, n = 0, at = 0;
    double *mean = NULL;
    ls_status status;
    qsort(of->of, (size_t)of->n, sizeof *of->of, by_value);
    LS_TRY_DONE(ls_array_alloc((void **)&size, of->n, sizeof *size, "steps", err));
    LS_TRY_DONE(ls_array_alloc((void **)&mean, of->n, sizeof *mean, "steps", err));
    for (int64_t i = 0; i < of->n; i++) {
        mean[n] = of->of[i].y, size[n++] = 1;
        for (; n > 1 && mean[n - 2] >= mean[n - 1]; n--) {
            const int64_t both = size[n - 2] + size[n - 1];
            mean[n - 2] = (mean[n - 2] * (double)size[n - 2] + mean[n - 1] * (double)size[n - 1]) / (double)both;
            size[n - 2] = both;
        }
    }
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < size[k]; i++) level[at++] = mean[k];
done:
    free(size);
    free(mean);
    return status;
}

/* Between two points of the one half. */
static double level_at(const points *of, const double *level, double x) {
    int64_t k = 1;
    while (k + 1 < of->n && of->of[k].x < x) k++;
    if (!(of->of[k].x > of->of[k - 1].x)) return level[k];
    return level[k - 1] + (level[k] - level[k - 1]) * (x - of->of[k - 1].x) / (of->of[k].x - of->of[k - 1].x);
}

static ls_status decide_rising(ls_inquiry *q, points *half, const points *other, bool *found, ls_error *err) {
    double *level = NULL;
    int64_t n_moved = 0, n_near = 0;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&level, half->n, sizeof *level, "steps", err));
    LS_TRY_DONE(rising(half, level, err));
    for (int64_t i = 0; i < other->n; i++) {
        const point p = other->of[i];
        const double d = fabs(p.y - p.x);
        if (!(d > ls_probe_moved_from(q)) || p.x < half->of[0].x || p.x > half->of[half->n - 1].x) continue;
        n_moved++;
        n_near += fabs(p.y - level_at(half, level, p.x)) < LEFT * d;
    }
    *found = n_moved >= 2 * MOVED_LEAST && 10 * n_near >= 9 * n_moved;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_UNLISTED, LS_STACK_SOLO_LONG, MONOTONE_SURE,
                        "records rise with the right value and hang on nothing else: of %" PRId64
                        " of one half of the requests that are off %" PRId64
                        " lie on what the other half makes. No form that was tried is that function",
                        n_moved, n_near);
done:
    free(level);
    return status;
}

/* ---- the whole ---- */

static void find_form(ls_inquiry *q, const form_row *row, double a, int64_t n_moved, int64_t n_explained) {
    ls_foreign_find(q->f, row->cause, LS_STACK_SOLO_LONG,
                    ls_probe_sure(pow(NEAR_BY_CHANCE, (double)n_explained), 1.0 - ls_portion(n_explained, n_moved)),
                    "records are %s%.3g%s, which one half of the requests says; of the other half's %" PRId64
                    " that have moved %" PRId64 " are that, to a tenth of what they have moved by",
                    row->front, a, row->behind, n_moved, n_explained);
}

ls_status ls_probe_decide_function(ls_inquiry *q, bool *found, ls_error *err) {
    points half = {0}, other = {0};
    double number = 0.0, least = (double)INFINITY;
    int64_t n_moved = 0, n_explained = 0, of_rivals = 0;
    int best = 0;
    ls_status status;
    LS_TRY_DONE(collect(q, 0, &half, err));
    LS_TRY_DONE(collect(q, 1, &other, err));
    if (half.n < POINTS_LEAST || other.n < POINTS_LEAST) goto done;
    for (int k = 0; k < FORMS; k++) {
        const double a = fit(&forms[k], &half), left = left_by(&forms[k], a, &half);
        count_explained(&forms[k], a, &other, &n_moved, &n_explained);
        if (forms[k].is_rival && n_explained > of_rivals) of_rivals = n_explained;
        if (!forms[k].is_rival && left < least) least = left, best = k, number = a;
    }
    count_explained(&forms[best], number, &other, &n_moved, &n_explained);
    if (n_moved < MOVED_LEAST || 2 * of_rivals > n_moved) goto done;
    *found = 10 * n_explained >= 9 * n_moved;
    if (*found)
        find_form(q, &forms[best], number, n_moved, n_explained);
    else if (q->f->constant)
        LS_TRY_DONE(decide_rising(q, &half, &other, found, err));
done:
    free(half.of);
    free(other.of);
    return status;
}
