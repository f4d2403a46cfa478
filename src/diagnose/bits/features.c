/* Features of one trial: what differs, how much, and what the sequences that differ have in common. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "diagnose/bits/bits_run.h"

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

const char *ls_verdict_name(ls_verdict verdict) {
    switch (verdict) {
        case LS_UNTRIED: return "not tried";
        case LS_CLEAN: return "clean";
        case LS_MOVED: return "tokens moved";
        case LS_SMALL: return "rounding";
        case LS_LARGE: return "differs";
    }
    return "unknown";
}

bool ls_observed_difference(const ls_observation *o) { return o->verdict == LS_SMALL || o->verdict == LS_LARGE; }

bool ls_outcome_differs(const ls_outcome *outcome) {
    for (int64_t i = 0; i < outcome->n; i++)
        if (bits_of(outcome->logprob[i]) != bits_of(outcome->scored[i])) return true;
    return outcome->failure != LS_FAILURE_NONE;
}

double ls_outcome_abs(const ls_outcome *outcome) {
    double sum = 0.0;
    int64_t n = 0;
    for (int64_t i = 0; i < outcome->n; i++) {
        const double d = fabs((double)outcome->scored[i] - (double)outcome->logprob[i]);
        if (!isfinite(d)) continue;
        sum += d;
        n++;
    }
    return n > 0 ? sum / (double)n : 0.0;
}

/* Sums of a least-squares line t = slope * r + intercept. */
typedef struct line {
    double n, r, t, rr, rt;
} line;

static double line_slope(const line *l) {
    const double variance = l->n * l->rr - l->r * l->r;
    return variance > 1e-9 ? (l->n * l->rt - l->r * l->t) / variance : (double)NAN;
}

static void observe_tokens(ls_observation *out, const ls_outcome *c, line *l, double *sum) {
    for (int64_t i = 0; i < c->n; i++) {
        const float r = c->logprob[i], t = c->scored[i];
        const double d = (double)t - (double)r;
        const int64_t place = i < LS_POSITIONS ? i : LS_POSITIONS - 1;
        out->n_tokens++;
        if (i > 0) {
            out->lag_tokens++;
            out->lag_equal += bits_of(r) == bits_of(c->scored[i - 1]);
        }
        if (bits_of(r) != bits_of(t)) {
            out->n_different++;
            out->n_bits += __builtin_popcount(bits_of(r) ^ bits_of(t));
            if (out->first_position < 0 || i < out->first_position) out->first_position = i;
        }
        if (!isfinite(d)) {
            out->n_not_finite++;
            continue;
        }
        *sum += fabs(d);
        if (fabs(d) > out->abs_max) out->abs_max = fabs(d);
        out->position_n[place]++;
        out->position_abs[place] += fabs(d);
        l->n += 1.0;
        l->r += (double)r;
        l->t += (double)t;
        l->rr += (double)r * (double)r;
        l->rt += (double)r * (double)t;
    }
}

static bool same_tokens(const ls_outcome *a, const ls_outcome *b) {
    return a->n == b->n && memcmp(a->completion, b->completion, (size_t)a->n * sizeof *a->completion) == 0;
}

static bool same_records(const ls_outcome *a, const ls_outcome *b) {
    return a->n == b->n && memcmp(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob) == 0;
}

void ls_observe(ls_observation *out, const ls_outcomes *outcomes, const ls_outcomes *baseline, double noise) {
    const bool compare = baseline != NULL && baseline->n == outcomes->n;
    line l = {0};
    double sum = 0.0;
    memset(out, 0, sizeof *out);
    out->first_sequence = out->first_position = out->n_moved = -1;
    out->failures = outcomes->failures;
    if (compare) out->n_moved = 0;
    for (int64_t i = 0; i < outcomes->n; i++) {
        const ls_outcome *c = &outcomes->of[i];
        const bool differs = ls_outcome_differs(c);
        observe_tokens(out, c, &l, &sum);
        out->n_sequences++;
        out->n_failed += c->failure != LS_FAILURE_NONE;
        out->n_sequences_different += differs;
        if (differs && out->first_sequence < 0) out->first_sequence = i;
        out->n_hits += c->n_hit > 0;
        out->n_hits_different += c->n_hit > 0 && differs;
        out->n_preempted += c->n_preempted > 0;
        out->n_preempted_different += c->n_preempted > 0 && differs;
        if (!compare) continue;
        out->n_moved += !same_tokens(c, &baseline->of[i]);
        out->n_changed += !same_tokens(c, &baseline->of[i]) || !same_records(c, &baseline->of[i]);
    }
    for (int i = 0; i < LS_POSITIONS; i++)
        if (out->position_n[i] > 0) out->position_abs[i] /= (double)out->position_n[i];
    out->abs_mean = l.n > 0.0 ? sum / l.n : 0.0;
    out->slope = line_slope(&l);
    if (out->n_sequences_different > 0)
        out->verdict = out->n_failed > 0 || out->n_not_finite > 0 || out->abs_max > noise ? LS_LARGE : LS_SMALL;
    else
        out->verdict = out->n_moved > 0 ? LS_MOVED : LS_CLEAN;
}

void ls_observe_failure(ls_observation *out, const ls_failures *failures) {
    memset(out, 0, sizeof *out);
    out->first_sequence = out->first_position = out->n_moved = -1;
    out->slope = (double)NAN;
    out->verdict = ls_failure_is_untried(failures->whole) ? LS_UNTRIED : LS_LARGE;
    out->failures = *failures;
}

/* Appends a phrase, with a comma where there is one before it. */
static void __attribute__((format(printf, 3, 4))) add(char *text, size_t bytes, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    if (used > 0 && used + 2 < bytes) {
        memcpy(text + used, ", ", 3);
        used += 2;
    }
    va_start(args, format);
    vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
}

void ls_observation_describe(char *text, size_t bytes, const ls_observation *o) {
    text[0] = '\0';
    if (o->failures.whole != LS_FAILURE_NONE) {
        add(text, bytes, "%s", o->failures.first);
        return;
    }
    if (o->n_moved > 0)
        add(text, bytes, "other tokens in %" PRId64 " of %" PRId64 " sequences", o->n_moved, o->n_sequences);
    if (!ls_observed_difference(o)) return;
    text[0] = '\0'; /* tokens follow the values they are drawn from */
    add(text, bytes, "%" PRId64 " of %" PRId64 " sequences", o->n_sequences_different, o->n_sequences);
    if (o->n_failed > 0) add(text, bytes, "%" PRId64 " given up", o->n_failed);
    if (o->n_not_finite > 0) add(text, bytes, "%" PRId64 " values not finite", o->n_not_finite);
    if (o->n_hits > 0 && o->n_hits < o->n_sequences) {
        if (o->n_hits_different == o->n_hits && o->n_sequences_different == o->n_hits)
            add(text, bytes, "exactly those with a cache hit");
        else if (o->n_hits_different == o->n_sequences_different)
            add(text, bytes, "none without a cache hit");
    }
    if (o->n_preempted > 0 && o->n_preempted < o->n_sequences && o->n_preempted_different == o->n_sequences_different)
        add(text, bytes, "none that was not preempted");
    if (o->first_position > 0) add(text, bytes, "from completion token %" PRId64 " on", o->first_position + 1);
    if (o->lag_tokens > 0 && o->lag_equal == o->lag_tokens) {
        add(text, bytes, "each record is the value of the token before");
        return;
    }
    add(text, bytes, "mean |d| %.2g, max %.2g", o->abs_mean, o->abs_max);
    if (o->verdict == LS_LARGE && isfinite(o->slope)) add(text, bytes, "slope %.3g", o->slope);
}
