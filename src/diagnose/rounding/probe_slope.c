/* Records of different tokens of one text, against the prompt's values of them. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "diagnose/rounding/inquiry.h"

/* A slope other than 1; a height that a factor alone has not. */
#define OTHER_SLOPE 0.1
#define HEIGHT_LEAST 0.1

enum { TEXTS = 3, DRAWS = 6, SAMPLES = 4, MOST = TEXTS * DRAWS * SAMPLES };

/* `text` below 0: -1 - text, at temperature 1. */
static ls_status lay_draw(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_RAW, trial, NULL);
    trial->max_tokens = 1;
    trial->sampling.temperature = text < 0 ? 1.0f : (float)LS_SLOPE_AT;
    if (ls_probe_takes_samples(q)) trial->levers.samples = SAMPLES;
    /* Where no seed is sent a text may have one draw alone, but for which of the likeliest it is of. */
    else if (q->runner->door->subject->records_processed)
        trial->sampling.top_k = (int32_t)q->draw + 1;
    return ls_requests_plain(q, r, 3600 + (text < 0 ? -1 - text : text), 9, err);
}

/* Draws of one text behind the *n that are there already; of a server that gives one sample a request, fewer. */
static ls_status draw_text(ls_inquiry *q, int64_t text, double *x, double *y, int64_t *n, ls_error *err) {
    const uint64_t seed = q->runner->sweep->opts.seed;
    for (int64_t k = 0; k < (ls_probe_takes_samples(q) ? DRAWS : 2 * DRAWS); k++) {
        const int64_t before = *n;
        ls_seen s;
        ls_status status;
        q->runner->sweep->opts.seed = seed + 1 + (uint64_t)k;
        q->draw = k;
        status = ls_foreign_try_laid(q, lay_draw, text, &s, err);
        q->runner->sweep->opts.seed = seed;
        LS_TRY(status);
        for (int64_t i = 0; i < s.outcomes.n && *n < MOST; i++) {
            if (s.outcomes.of[i].n == 0) continue;
            x[*n] = (double)s.outcomes.of[i].scored[0];
            y[(*n)++] = (double)s.outcomes.of[i].logprob[0];
        }
        if (*n == before) q->refuses_samples = true;
        ls_seen_deinit(&s);
    }
    return LS_OK;
}

/* ---- records of the likeliest tokens alone ---- */

typedef struct raised {
    double x, d; /* the prompt's value, and how far the record is above it */
} raised;

static int by_likeliest(const void *a, const void *b) {
    const raised *x = a, *y = b;
    return (x->x < y->x) - (x->x > y->x);
}

/* Of a distribution that is cut, and at its own token where that is beyond the cut, no record is below the prompt's
 * value, and unlikelier ones are above it by less. Of any other distribution over all tokens some are below. Returns by
 * how much the likeliest is above; 0: it is not so. */
#define NEAR 0.05
enum { OF_TEXT_LEAST = 8 };
static double raised_by_cut(const double *x, const double *y, int64_t n) {
    raised of[DRAWS * SAMPLES];
    double least;
    if (n < OF_TEXT_LEAST) return 0.0;
    for (int64_t i = 0; i < n; i++) of[i] = (raised){x[i], y[i] - x[i]};
    qsort(of, (size_t)n, sizeof *of, by_likeliest);
    least = of[0].d;
    for (int64_t i = 0; i < n; i++) {
        if (of[i].d < -NEAR || of[i].d > least + NEAR) return 0.0;
        least = fmin(least, of[i].d);
    }
    return 2.0 * least < of[0].d ? of[0].d : 0.0;
}

static void look_for_cut(const double *x, const double *y, const int64_t *ends, ls_slope *out) {
    double lowest = (double)INFINITY, highest = 0.0;
    for (int64_t text = 0; text < TEXTS; text++) {
        const int64_t from = text > 0 ? ends[text - 1] : 0;
        const double height = raised_by_cut(x + from, y + from, ends[text] - from);
        lowest = fmin(lowest, height);
        highest = fmax(highest, height);
    }
    out->cut_least = lowest;
    out->cut_most = highest;
}

/* ---- logits of a narrow type ---- */

/* Records of two tokens of one text are as far apart as their logits, which in bf16 and f16 are multiples of a step
 * where they are not small: f16 has finer ones of smaller logits. The prompt's values of the same tokens are of logits
 * that are not. */
static const double steps[LS_STEPS] = {1.0 / 2048.0, 1.0 / 4096.0, 1.0 / 8192.0};
#define ON_STEP 0.1 /* of a step; by chance one in five is so near */

static bool is_on_step(double d, double step) { return fabs(d / step - nearbyint(d / step)) < ON_STEP; }

static void count_steps(const double *x, const double *y, int64_t n, ls_slope *out) {
    for (int64_t i = 1; i < n; i++) {
        bool again = false;
        for (int64_t k = 0; k < i; k++) again = again || !(fabs(x[i] - x[k]) > 0.0);
        if (again || fabs(y[i] - y[0]) < steps[0]) continue; /* the same token, or the same record for any */
        out->n_steps++;
        for (int k = 0; k < LS_STEPS; k++) {
            out->on_step[k] += is_on_step(y[i] - y[0], steps[k]);
            out->scored_on_step[k] += is_on_step(x[i] - x[0], steps[k]);
        }
    }
}

static ls_status measure_slope(ls_inquiry *q, bool at_one, ls_slope *out, ls_error *err) {
    double x[MOST], y[MOST], mx[TEXTS] = {0.0}, my[TEXTS] = {0.0}, xx = 0.0, xy = 0.0, yy = 0.0, left = 0.0;
    int64_t ends[TEXTS];
    *out = (ls_slope){.n_texts = TEXTS};
    for (int64_t text = 0; text < TEXTS; text++) {
        LS_TRY(draw_text(q, at_one ? -1 - text : text, x, y, &out->n, err));
        count_steps(x + (text > 0 ? ends[text - 1] : 0), y + (text > 0 ? ends[text - 1] : 0),
                    out->n - (text > 0 ? ends[text - 1] : 0), out);
        ends[text] = out->n;
    }
    look_for_cut(x, y, ends, out);
    for (int64_t text = 0; text < TEXTS; text++) {
        const int64_t from = text > 0 ? ends[text - 1] : 0, to = ends[text];
        for (int64_t i = from; i < to; i++)
            mx[text] += x[i] / (double)(to - from), my[text] += y[i] / (double)(to - from);
        for (int64_t i = from; i < to; i++) x[i] -= mx[text], y[i] -= my[text];
    }
    for (int64_t i = 0; i < out->n; i++) xx += x[i] * x[i], xy += x[i] * y[i], yy += y[i] * y[i];
    out->slope = xx > 0.0 ? xy / xx : 0.0;
    for (int64_t i = 0; i < out->n; i++) {
        const double one = fabs(y[i] - out->slope * x[i]);
        out->left = fmax(out->left, one);
        left += one * one;
    }
    if (out->n > 0) out->left_mean = sqrt(left / (double)out->n), out->spread = sqrt(yy / (double)out->n);
    out->lowest = (double)INFINITY, out->highest = -(double)INFINITY;
    for (int64_t text = 0; text < TEXTS; text++) {
        const double height = my[text] - out->slope * mx[text];
        out->lowest = fmin(out->lowest, height);
        out->highest = fmax(out->highest, height);
    }
    out->height = fmax(fabs(out->lowest), fabs(out->highest));
    return LS_OK;
}

ls_status ls_probe_measure_slope(ls_inquiry *q, ls_slope *out, ls_error *err) {
    if (q->slope.n == 0) LS_TRY(measure_slope(q, false, &q->slope, err));
    *out = q->slope;
    return LS_OK;
}

/* What is recorded at the temperature of sampling says at temperature 1 what else there is. */
ls_status ls_probe_measure_line(ls_inquiry *q, ls_slope *out, ls_error *err) {
    LS_TRY(ls_probe_measure_slope(q, out, err));
    if (fabs(out->slope - 1.0 / LS_SLOPE_AT) > OTHER_SLOPE / LS_SLOPE_AT) return LS_OK;
    if (q->slope_at_one.n == 0) LS_TRY(measure_slope(q, true, &q->slope_at_one, err));
    *out = q->slope_at_one;
    return LS_OK;
}

/* A cut leaves the tokens of a text as far apart as they were, and gives all of them what the others had: another
 * share in each text. */
#define CUT_SHARES 0.1
#define ANY_HEIGHT 1e-3
bool ls_probe_hangs_on_text(const ls_slope *s) {
    return s->height > ANY_HEIGHT && s->highest - s->lowest > CUT_SHARES * s->height;
}

static void decide_cut(ls_inquiry *q, const ls_slope *s, bool *found) {
    *found = s->lowest > HEIGHT_LEAST && ls_probe_hangs_on_text(s);
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_CUT, LS_STACK_SOLO_LONG, 0.97 - s->left_mean / s->spread * 0.4,
                        "records of different tokens of one text are as far apart as the prompt's values, %.3f times, "
                        "and above them by %.2g to %.2g, which hangs on the text alone, over %" PRId64
                        " draws of %" PRId64 " texts",
                        s->slope, s->lowest, s->highest, s->n, s->n_texts);
}

static void decide_likeliest_alone(ls_inquiry *q, const ls_slope *s, bool *found) {
    *found = s->cut_least > HEIGHT_LEAST && s->cut_most - s->cut_least > CUT_SHARES * s->cut_most;
    if (*found) /* of a distribution over all tokens half of the draws would be below */
        ls_foreign_find(q->f, LS_CAUSE_CUT, LS_STACK_SOLO_LONG, ls_probe_sure(exp2(-(double)s->n), 0.0),
                        "of %" PRId64 " draws of %" PRId64
                        " texts no record is below the prompt's value. The likeliest tokens' are above it by %.2g to "
                        "%.2g, and unlikelier ones by less",
                        s->n, s->n_texts, s->cut_least, s->cut_most);
}

/* The same of the other side: records are below the values of prompts, of whatever token, by what hangs on the text. */
#define BELOW_SHARE 0.97
#define WIDER_SURE 0.93
enum { BELOW_LEAST = 40 };
static void decide_wider(ls_inquiry *q, const ls_slope *s, bool *found) {
    int64_t n = 0, n_below = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t k = 0; k < o->n; k++)
            for (int64_t i = 0; i < o->of[k].n; i++)
                n++, n_below += (double)o->of[k].logprob[i] < (double)o->of[k].scored[i];
    }
    *found = n >= BELOW_LEAST && (double)n_below >= BELOW_SHARE * (double)n && s->highest < -ANY_HEIGHT &&
             ls_probe_hangs_on_text(s);
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_CUT, LS_STACK_SOLO_LONG, WIDER_SURE - s->left_mean / s->spread * 0.4,
                        "%" PRId64 " of %" PRId64
                        " records are below the prompt's values; those of one text are as far apart, %.3f times, and "
                        "below by %.2g to %.2g by the text, over %" PRId64 " draws of %" PRId64
                        " texts: they are of more than the values are of",
                        n_below, n, s->slope, -s->highest, -s->lowest, s->n, s->n_texts);
}

ls_status ls_probe_decide_slope(ls_inquiry *q, bool *found, ls_error *err) {
    ls_slope s;
    LS_TRY(ls_probe_measure_line(q, &s, err));
    decide_likeliest_alone(q, &s, found);
    if (*found) return LS_OK;
    if (s.n < 12 || !(s.left_mean < LS_ON_LINE * s.spread) || !(s.slope > 0.0)) return LS_OK;
    if (fabs(s.slope - 1.0) < OTHER_SLOPE) {
        decide_cut(q, &s, found);
        if (!*found) decide_wider(q, &s, found);
        return LS_OK;
    }
    if (!(s.height > HEIGHT_LEAST)) return LS_OK; /* log-probabilities are multiplied, and not divided logits */
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_TEMPERATURE, LS_STACK_SOLO_LONG, 0.97 - s.left_mean / s.spread * 0.4,
                    "records of different tokens of one text go %.3f times as far apart as the prompt's values, over "
                    "%" PRId64 " draws of %" PRId64
                    " texts, with %.2g left: they are of temperature %.3g, whatever is asked for",
                    s.slope, s.n, s.n_texts, s.left_mean, 1.0 / s.slope);
    return LS_OK;
}

enum { STEPS_LEAST = 20 };
#define STEPS_CHANCE 1e-6
ls_status ls_probe_decide_head(ls_inquiry *q, bool *found, ls_error *err) {
    double least = 1.0;
    int best = 0;
    ls_slope s;
    LS_TRY(ls_probe_measure_slope(q, &s, err));
    for (int k = 0; k < LS_STEPS; k++) {
        const double chance = LS_STEPS * ls_probe_chance(s.on_step[k], s.n_steps, s.scored_on_step[k], s.n_steps);
        if (chance < least) least = chance, best = k;
    }
    *found = s.n_steps >= STEPS_LEAST && 10 * s.on_step[best] >= 7 * s.n_steps && least < STEPS_CHANCE;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_COARSE_HEAD, LS_STACK_SOLO_LONG,
                        ls_probe_sure(least, 1.0 - ls_portion(s.on_step[best], s.n_steps)),
                        "records of different tokens of one text are multiples of 1/%.0f apart, %" PRId64 " of %" PRId64
                        ", as logits in bf16 or f16 are, and the prompt's values of the same tokens are so in %" PRId64,
                        1.0 / steps[best], s.on_step[best], s.n_steps, s.scored_on_step[best]);
    return LS_OK;
}
