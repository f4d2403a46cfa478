/* Causes from the structure of a difference. Every test asks how much of the difference is gone under one hypothesis of
 * it, or how far what it picks out lies above the rest. Owns the lists it sorts. */
#include "diagnose/compare/compare_causes.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"

enum { FINDINGS_MOST = 12 };
#define LIMIT_LEAST 5e-5
/* Below this and without structure it is what two orders of sums in float32 or one in bf16 make. */
#define ROUNDING_MOST 0.1
/* Correlation above which one record is the other at another temperature. */
#define FOLLOWS 0.85

typedef struct study {
    ls_compare_causes *out;
    const ls_mismatch_pair *p;
    int64_t n;
    const ls_compare_sequence *s;
    int64_t n_s;
    double *work;  /* [n] */
    double median; /* of |d| */
    double q90;
    bool *bad; /* [n_s] the sequence is off */
} study;

static double size_of(const ls_mismatch_pair *p) { return fabs(p->t - p->r); }

static void __attribute__((format(printf, 4, 5)))
find(study *x, ls_cause cause, double confidence, const char *format, ...) {
    ls_finding one = {.cause = cause, .confidence = fmin(fmax(confidence, 0.0), 0.99)};
    va_list args;
    va_start(args, format);
    vsnprintf(one.evidence, sizeof one.evidence, format, args);
    va_end(args);
    ls_findings_add(&x->out->found, &one, FINDINGS_MOST);
}

/* Confidence of a hypothesis under which the median and nine tenths of |d| are as given. */
static double by_rest(const study *x, double median, double q90) {
    const double rest = fmax(median / fmax(x->median, 1e-12), q90 / fmax(x->q90, 1e-12));
    return 0.99 - 0.38 * rest;
}

/* ---- hypotheses of all values ---- */

static void try_shifts(study *x) {
    double best = (double)INFINITY, best_q90 = 0.0;
    int best_k = 0;
    for (int k = -3; k <= 3; k++) {
        int64_t m = 0;
        double median, q90;
        if (k == 0) continue;
        for (int64_t i = 0; i < x->n; i++) {
            const int64_t j = i - k;
            if (j < 0 || j >= x->n || x->p[j].sequence != x->p[i].sequence || x->p[i].position - x->p[j].position != k)
                continue;
            x->work[m++] = fabs(x->p[i].r - x->p[j].t);
        }
        if (m < 12) continue;
        median = ls_quantile(x->work, m, 0.5, 0.0);
        q90 = ls_quantile(x->work, m, 0.9, 0.0);
        if (median < best) best = median, best_q90 = q90, best_k = k;
    }
    if (best < 0.5 * x->median)
        find(x, LS_CAUSE_SHIFTED, by_rest(x, best, best_q90),
             "A holds B's value of the token %d %s; the median |d| is %.2g so, %.2g as it is", abs(best_k),
             best_k > 0 ? "before" : "after", best, x->median);
}

static void try_scale(study *x) {
    int64_t m = 0;
    double a, median, q90, spread;
    for (int64_t i = 0; i < x->n; i++)
        if (x->p[i].t < -0.05) x->work[m++] = x->p[i].r / x->p[i].t;
    if (m < 12) return;
    a = ls_quantile(x->work, m, 0.5, 0.0);
    spread = x->work[(m - 1) * 9 / 10] / fmax(x->work[(m - 1) / 10], 1e-9);
    if (spread > 1.2) return; /* a factor is the same for likely and unlikely tokens */
    if (fabs(a - 1.0) < 0.01 || !(a > 0.0)) return;
    for (int64_t i = 0; i < x->n; i++) x->work[i] = fabs(x->p[i].r - a * x->p[i].t);
    median = ls_quantile(x->work, x->n, 0.5, 0.0);
    q90 = ls_quantile(x->work, x->n, 0.9, 0.0);
    if (median < 0.5 * x->median)
        find(x, LS_CAUSE_SCALED, by_rest(x, median, q90), "A is %.4g times B: the median |d| is %.2g so, %.2g as it is",
             a, median, x->median);
}

/* A line through (t, r): its slope, the share of the variance of d it takes away, and how far r follows t at all, -1
 * to 1. */
static void line_of(const study *x, double *slope, double *share, double *mean, double *follows) {
    double st = 0.0, sd = 0.0, stt = 0.0, std = 0.0, sdd = 0.0, str, srr;
    const double n = (double)x->n;
    for (int64_t i = 0; i < x->n; i++) {
        const double t = x->p[i].t, d = t - x->p[i].r;
        st += t, sd += d, stt += t * t, std += t * d, sdd += d * d;
    }
    stt -= st * st / n, std -= st * sd / n, sdd -= sd * sd / n;
    *mean = sd / n;
    *slope = stt > 0.0 ? 1.0 - std / stt : 1.0;
    *share = stt > 0.0 && sdd > 0.0 ? std * std / (stt * sdd) : 0.0;
    str = stt - std;
    srr = stt - 2.0 * std + sdd;
    *follows = stt > 0.0 && srr > 0.0 ? str / sqrt(stt * srr) : 0.0;
}

/* Another temperature makes likely tokens likelier or less likely and the unlikely ones the other way; a cut and
 * renormalised distribution makes all of them likelier. */
static void try_sampling(study *x) {
    double slope, share, mean, follows, cut = 0.0;
    int64_t above = 0, tail = 0;
    if (x->n < 48) return;
    line_of(x, &slope, &share, &mean, &follows);
    for (int64_t i = 0; i < x->n; i++) {
        above += x->p[i].r - x->p[i].t > x->out->floor;
        tail += x->p[i].t - x->p[i].r > fmax(x->out->limit, 1e-3);
        cut += x->p[i].r - x->p[i].t;
    }
    cut /= (double)x->n;
    if (cut > 3e-3 && (double)tail < 0.005 * (double)x->n && (double)above > 0.6 * (double)x->n && share < 0.9)
        find(x, LS_CAUSE_CUT, 0.95 - 0.6 * fmax(0.0, share - 0.3),
             "A is above B nearly everywhere and below it for %" PRId64 " of %" PRId64
             " tokens: as if renormalised over %.3g of the probability",
             tail, x->n, exp(-cut));
    /* Values that have nothing to do with each other have a line as well; a whole line is a factor. */
    if (fabs(slope - 1.0) > 0.03 && share > 0.08 && share < 0.97 && follows > FOLLOWS)
        find(x, LS_CAUSE_TEMPERATURE, 0.6 + 0.4 * share,
             "A grows %.3g times as fast as B, which takes away %.0f %% of the difference: "
             "temperatures about %.2g apart",
             slope, 100.0 * share, 1.0 / slope);
}

/* ---- lattices ---- */

static bool in_bf16(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (bits & 0xFFFF) == 0;
}

static bool in_f16(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (bits & 0x1FFF) == 0 && fabsf(v) >= 0x1p-14f && fabsf(v) < 65520.0f;
}

static bool in_decimals(float v, int k) {
    const double tens = pow(10.0, k), nearest = rint((double)v * tens) / tens;
    return (float)nearest == v;
}

static void try_lattice(study *x, bool of_a) {
    int64_t bf16 = 0, f16 = 0, decimals[5] = {0}, m = 0;
    const char side = of_a ? 'A' : 'B';
    for (int64_t i = 0; i < x->n; i++) {
        const float v = (float)(of_a ? x->p[i].r : x->p[i].t);
        if (fabsf(v) < 1e-3f) continue;
        m++;
        bf16 += in_bf16(v);
        f16 += in_f16(v);
        for (int k = 1; k < 5; k++) decimals[k] += in_decimals(v, k);
    }
    if (m < 24) return;
    if ((double)bf16 > 0.98 * (double)m)
        find(x, LS_CAUSE_COARSE_RECORDS, 0.97, "%" PRId64 " of %" PRId64 " values of %c are bf16", bf16, m, side);
    else if ((double)f16 > 0.98 * (double)m)
        find(x, LS_CAUSE_COARSE_RECORDS, 0.97, "%" PRId64 " of %" PRId64 " values of %c are f16", f16, m, side);
    for (int k = 1; k < 5; k++)
        if ((double)decimals[k] > 0.98 * (double)m) {
            find(x, LS_CAUSE_COARSE_RECORDS, 0.97, "%" PRId64 " of %" PRId64 " values of %c have %d decimals",
                 decimals[k], m, side, k);
            return;
        }
}

static void try_placeholders(study *x) {
    int64_t zero = 0, unlikely = 0;
    for (int64_t i = 0; i < x->n; i++) {
        unlikely += x->p[i].t < -0.05;
        zero += x->p[i].t < -0.05 && x->p[i].r == 0.0;
    }
    if (zero > 3 && zero * 50 > unlikely)
        find(x, LS_CAUSE_MISSING, 0.8 + 0.15 * (double)zero / (double)unlikely,
             "%" PRId64 " values of A are exactly 0 where B is below -0.05", zero);
}

/* ---- some tokens ---- */

static int32_t token_of(const ls_compare_sequence *s, const ls_mismatch_pair *p, int64_t back) {
    const int64_t from_end = s->n_tail - p->position + back;
    const ls_record *r = s->a->completion_ids != NULL ? s->a : s->b;
    if (r->completion_ids == NULL || from_end > r->n_completion || from_end < 1) return -1;
    return r->completion_ids[r->n_completion - from_end];
}

/* Medians of |d| of tokens that the completion had before and of those it had not. */
static ls_status try_penalty(study *x, ls_error *err) {
    int64_t *when = NULL, most = 0, n_seen = 0, n_new = 0;
    double *seen = NULL, fresh, again, last_new = -1.0;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < x->n; i++) {
        const int32_t token = token_of(&x->s[x->p[i].sequence], &x->p[i], 0);
        if (token > most) most = token;
    }
    if (most == 0 || most > 1 << 24) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&when, most + 1, sizeof *when, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&seen, x->n, sizeof *seen, "tokens", err));
    memset(when, 0, (size_t)(most + 1) * sizeof *when);
    for (int64_t i = 0; i < x->n; i++) {
        const ls_compare_sequence *s = &x->s[x->p[i].sequence];
        const int32_t token = token_of(s, &x->p[i], 0);
        const int64_t mark = x->p[i].sequence + 1;
        bool before;
        if (token < 0) continue;
        if (i == s->from) { /* what the prompt has counts as well */
            const ls_record *r = s->a->prompt_ids != NULL ? s->a : s->b;
            for (int64_t j = 0; r->prompt_ids != NULL && j < r->n_prompt; j++)
                if (r->prompt_ids[j] <= most) when[r->prompt_ids[j]] = mark;
        }
        before = when[token] == mark;
        when[token] = mark;
        if (i == s->from) last_new = -1.0;
        if (!before) last_new = size_of(&x->p[i]);
        if (!before || last_new < 0.0) continue;
        seen[n_seen++] = size_of(&x->p[i]);
        x->work[n_new++] = last_new; /* about as far from the beginning */
    }
    if (n_seen < 24 || n_new < 24) goto done;
    fresh = ls_quantile(x->work, n_new, 0.5, 0.0);
    again = ls_quantile(seen, n_seen, 0.5, 0.0);
    if (again > 4.0 * fresh && again > x->out->limit)
        find(x, LS_CAUSE_PENALTY, 0.93 - 0.5 * fresh / again,
             "tokens that stood there before have a median |d| of %.2g, new ones near them of %.2g", again, fresh);
done:
    free(seen);
    free(when);
    return status;
}

static double share_off(const study *x, int64_t from, int64_t to, int64_t *n) {
    int64_t off = 0;
    *n = 0;
    for (int64_t i = 0; i < x->n; i++) {
        if (x->p[i].position < from || x->p[i].position >= to) continue;
        off += size_of(&x->p[i]) > x->out->limit;
        ++*n;
    }
    return *n > 0 ? (double)off / (double)*n : 0.0;
}

static void try_positions(study *x) {
    int64_t n_first, n_rest, n_low, n_high, best = 0;
    const double first = share_off(x, 0, 1, &n_first), rest = share_off(x, 1, INT64_MAX, &n_rest);
    double gain = 0.0, low_best = 0.0, high_best = 0.0;
    if (n_first < 8 || n_rest < 24) return;
    /* What builds up over a completion, as a penalty on its tokens does, is small right behind the first. */
    if (first < 0.02 && rest > 0.5 && share_off(x, 1, 3, &n_low) > 0.7 * rest) {
        find(x, LS_CAUSE_DECODE_ARITHMETIC, 0.6 + 0.35 * rest - 5.0 * first,
             "%.0f %% of first tokens are off and %.0f %% of later ones", 100.0 * first, 100.0 * rest);
        return;
    }
    if (first < 0.02 && rest > 0.5) return;
    if (first > 0.5 && rest < 0.02) {
        find(x, LS_CAUSE_FIRST_TOKENS, 0.6 + 0.35 * first - 5.0 * rest,
             "%.0f %% of first tokens are off and %.0f %% of later ones", 100.0 * first, 100.0 * rest);
        return;
    }
    for (int64_t at = 2; at < 1 << 20; at += at < 64 ? 1 : at / 32) {
        const double low = share_off(x, 0, at, &n_low), high = share_off(x, at, INT64_MAX, &n_high);
        if (n_high < 12) break;
        if (high - low > gain) gain = high - low, best = at, low_best = low, high_best = high;
    }
    if (gain > 0.5 && low_best < 0.05)
        find(x, LS_CAUSE_FROM_A_LENGTH, 0.55 + 0.4 * gain,
             "%.1f %% of tokens below place %" PRId64 " are off and %.0f %% from there on", 100.0 * low_best, best,
             100.0 * high_best);
}

/* ---- some sequences ---- */

static int64_t recorded(const study *x, int64_t s, int what) {
    const ls_record *a = x->s[s].a, *b = x->s[s].b;
    switch (what) {
        case 0: return a->preemptions >= 0 ? a->preemptions : b->preemptions;
        case 1: return a->cache_hit >= 0 ? a->cache_hit : b->cache_hit;
        case 2: return a->slot >= 0 ? a->slot : b->slot;
        case 3: return a->weights >= 0 ? a->weights : b->weights;
        case 4: return a->prompt_ids != NULL ? a->n_prompt : b->prompt_ids != NULL ? b->n_prompt : -1;
        default: return s;
    }
}

typedef struct half {
    int64_t n, bad;
} half;

/* Sequences for which `what` is below `value`, and the others. */
static void split_sequences(const study *x, int what, int64_t value, half *low, half *high) {
    *low = *high = (half){0, 0};
    for (int64_t s = 0; s < x->n_s; s++) {
        const int64_t v = recorded(x, s, what);
        half *one = v < value ? low : high;
        if (v < 0) continue;
        one->n++;
        one->bad += x->bad[s];
    }
}

static double of(half h) { return h.n > 0 ? (double)h.bad / (double)h.n : 0.0; }

/* How sure it is that the upper part is worse: the difference of shares, less its standard error twice. */
static double contrast(half low, half high) {
    const double a = of(low), b = of(high);
    if (low.n < 3 || high.n < 3) return 0.0;
    return b - a -
           2.0 * sqrt((a * (1.0 - a) + 0.25 / (double)low.n) / (double)low.n +
                      (b * (1.0 - b) + 0.25 / (double)high.n) / (double)high.n);
}

static void try_reported(study *x) {
    static const struct {
        ls_cause cause;
        const char *words;
    } rows[] = {
        {LS_CAUSE_PREEMPTED, "preempted sequences"},
        {LS_CAUSE_CACHE_HITS, "sequences with a prefix hit"},
    };
    for (int what = 0; what < 2; what++) {
        half low, high;
        double c;
        split_sequences(x, what, 1, &low, &high);
        c = contrast(low, high);
        if (c > 0.2)
            find(x, rows[what].cause, 0.7 + 0.3 * c - 0.5 * of(low),
                 "%" PRId64 " of %" PRId64 " %s are off, of the others %" PRId64 " of %" PRId64, high.bad, high.n,
                 rows[what].words, low.bad, low.n);
    }
}

static void try_threshold(study *x, int what, ls_cause cause, const char *words) {
    half low, high;
    double best = 0.0, weight = 1.0;
    int64_t at = -1;
    for (int64_t s = 0; s < x->n_s; s++) {
        const int64_t v = recorded(x, s, what);
        double c;
        if (v < 1 || (x->n_s > 4096 && s % (x->n_s / 4096))) continue;
        split_sequences(x, what, v, &low, &high);
        c = contrast(low, high) - of(low);
        if (c > best) best = c, at = v;
    }
    if (at < 0) return;
    split_sequences(x, what, at, &low, &high);
    if (what == 5) weight = 0.9; /* the order says least */
    if (best > 0.3)
        find(x, cause, weight * (0.62 + 0.4 * best),
             "%s %" PRId64 " on %" PRId64 " of %" PRId64 " sequences are off, below %" PRId64 " of %" PRId64, words, at,
             high.bad, high.n, low.bad, low.n);
}

/* The first owner of each slot against those behind it. */
static ls_status try_reuse(study *x, ls_error *err) {
    half first = {0, 0}, later = {0, 0};
    int64_t most = -1;
    uint8_t *used = NULL;
    ls_status status = LS_OK;
    double c;
    for (int64_t s = 0; s < x->n_s; s++)
        if (recorded(x, s, 2) > most) most = recorded(x, s, 2);
    if (most < 0 || most > 1 << 24) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&used, most + 1, 1, "slots", err));
    memset(used, 0, (size_t)most + 1);
    for (int64_t s = 0; s < x->n_s; s++) {
        const int64_t slot = recorded(x, s, 2);
        half *one;
        if (slot < 0) continue;
        one = used[slot] ? &later : &first;
        used[slot] = 1;
        one->n++;
        one->bad += x->bad[s];
    }
    c = contrast(first, later);
    if (c > 0.2)
        find(x, LS_CAUSE_STALE_SLOT, 0.68 + 0.3 * c - of(first),
             "of first owners of a slot %" PRId64 " of %" PRId64 " are off, of later ones %" PRId64 " of %" PRId64,
             first.bad, first.n, later.bad, later.n);
done:
    free(used);
    return status;
}

static ls_status try_sequences(study *x, ls_error *err) {
    const double share = (double)x->out->n_sequences_off / (double)x->n_s;
    if (x->n_s < 8 || share > 0.95 || x->out->n_sequences_off == 0) return LS_OK;
    try_reported(x);
    LS_TRY(try_reuse(x, err));
    try_threshold(x, 2, LS_CAUSE_SLOT_WRAPS, "from slot");
    try_threshold(x, 3, LS_CAUSE_OLD_WEIGHTS, "from weights");
    try_threshold(x, 4, LS_CAUSE_FROM_A_LENGTH, "from prompts of length");
    try_threshold(x, 5, LS_CAUSE_FROM_A_SEQUENCE, "from sequence");
    if (x->out->found.n == 0)
        find(x, LS_CAUSE_SOME_SEQUENCES, 0.5,
             "%" PRId64 " of %" PRId64 " sequences are off, and nothing that the records tell parts them",
             x->out->n_sequences_off, x->n_s);
    return LS_OK;
}

/* ---- the whole ---- */

/* The lower quartile of |d|: of all tokens, of first ones, or of the quarter of sequences that are least off, whichever
 * is the lowest. What is wrong in most places is not wrong in all of them. */
static double floor_of(study *x, const double *median_of_sequence, double middling) {
    double low;
    int64_t m = 0;
    for (int64_t i = 0; i < x->n; i++)
        if (x->p[i].position == 0) x->work[m++] = size_of(&x->p[i]);
    low = m >= 8 ? ls_quantile(x->work, m, 0.25, 0.0) : (double)INFINITY;
    m = 0;
    for (int64_t s = 0; s < x->n_s && x->n_s >= 8; s++)
        for (int64_t i = x->s[s].from; median_of_sequence[s] <= middling && i < x->s[s].to; i++)
            x->work[m++] = size_of(&x->p[i]);
    if (m >= 24) low = fmin(low, ls_quantile(x->work, m, 0.25, 0.0));
    for (int64_t i = 0; i < x->n; i++) x->work[i] = size_of(&x->p[i]);
    return fmin(low, ls_quantile(x->work, x->n, 0.25, 0.0));
}

static ls_status find_floor(study *x, ls_error *err) {
    double *medians = NULL, *sorted = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&medians, x->n_s, sizeof *medians, "sequences", err));
    LS_TRY_DONE(ls_array_alloc((void **)&sorted, x->n_s, sizeof *sorted, "sequences", err));
    for (int64_t s = 0; s < x->n_s; s++) {
        const int64_t n = x->s[s].to - x->s[s].from;
        for (int64_t i = 0; i < n; i++) x->work[i] = size_of(&x->p[x->s[s].from + i]);
        sorted[s] = medians[s] = ls_quantile(x->work, n, 0.5, 0.0);
    }
    x->out->floor = floor_of(x, medians, ls_quantile(sorted, x->n_s, 0.25, 0.0));
done:
    free(sorted);
    free(medians);
    return status;
}

static void measure_study(study *x) {
    ls_compare_causes *o = x->out;
    for (int64_t i = 0; i < x->n; i++) x->work[i] = size_of(&x->p[i]);
    x->median = ls_quantile(x->work, x->n, 0.5, 0.0);
    x->q90 = x->work[(int64_t)((double)(x->n - 1) * 0.9)];
    o->limit = fmax(LIMIT_LEAST, 50.0 * o->floor);
    for (int64_t s = 0; s < x->n_s; s++) {
        int64_t off = 0;
        for (int64_t i = x->s[s].from; i < x->s[s].to; i++) off += size_of(&x->p[i]) > o->limit;
        o->n_off += off;
        x->bad[s] = off > 0 && off * 20 >= x->s[s].to - x->s[s].from;
        o->n_sequences_off += x->bad[s];
    }
}

ls_status ls_compare_explain(ls_compare_causes *out, const ls_mismatch_pair *pairs, int64_t n,
                             const ls_compare_sequence *sequences, int64_t n_sequences, ls_error *err) {
    study x = {.out = out, .p = pairs, .n = n, .s = sequences, .n_s = n_sequences};
    ls_status status;
    memset(out, 0, sizeof *out);
    if (n == 0) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&x.work, n, sizeof *x.work, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&x.bad, n_sequences, sizeof *x.bad, "sequences", err));
    LS_TRY_DONE(find_floor(&x, err));
    measure_study(&x);
    if (x.median > 1e-6) {
        try_shifts(&x);
        try_scale(&x);
        try_sampling(&x);
        try_lattice(&x, true);
        try_lattice(&x, false);
    }
    try_placeholders(&x);
    if (out->n_off > 0) {
        LS_TRY_DONE(try_penalty(&x, err));
        try_positions(&x);
        LS_TRY_DONE(try_sequences(&x, err));
    }
    out->rounding = out->found.n == 0 && out->n_off * 1000 <= n && x.median < ROUNDING_MOST;
    if (out->found.n == 0 && !out->rounding)
        find(&x, LS_CAUSE_WEIGHTS, 0.5, "|d| has a median of %.2g in all sequences and no structure that is known",
             x.median);
done:
    free(x.work);
    free(x.bad);
    return status;
}

const ls_finding *ls_compare_named(const ls_compare_causes *c) {
    const ls_finding *named = ls_findings_named(&c->found);
    for (int64_t i = 1; named != NULL && i < c->found.n; i++) {
        if (c->found.of[i].confidence < named->confidence - 0.01) break;
        if (c->found.of[i].cause != named->cause) return NULL;
    }
    return named;
}
