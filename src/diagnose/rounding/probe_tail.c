/* What chance makes of a server's values: of two counts, and of a few values that lie far off. */
#include <math.h>

#include "diagnose/rounding/inquiry.h"

const ls_stack_experiment ls_probe_solo[LS_PROBE_SOLO] = {LS_STACK_SOLO_A,    LS_STACK_SOLO_B, LS_STACK_SOLO_C,
                                                          LS_STACK_SOLO_LONG, LS_STACK_AGAIN,  LS_STACK_LENGTHS};

double ls_probe_chance(int64_t with, int64_t n_with, int64_t without, int64_t n_without) {
    const double n = (double)(n_with + n_without), marks = (double)(with + without);
    const double all = lgamma(n + 1.0) - lgamma(marks + 1.0) - lgamma(n - marks + 1.0);
    double sum = 0.0;
    for (int64_t k = with; k <= n_with && k <= with + without; k++) {
        const double a = (double)k, b = marks - a, na = (double)n_with, nb = (double)n_without;
        if (b > nb) continue;
        sum += exp(lgamma(na + 1.0) - lgamma(a + 1.0) - lgamma(na - a + 1.0) + lgamma(nb + 1.0) - lgamma(b + 1.0) -
                   lgamma(nb - b + 1.0) - all);
    }
    return fmin(sum, 1.0);
}

/* A few values of a sound stack lie far off: where two experts or two roundings are a tie, a path may take the other
 * one. Such are one token in twenty at most, and not farther than this. A tie of values that agree to many places is
 * not to be had so often. */
#define TAIL_TOKEN 4.0
#define TAIL_SHARE 0.05
#define TAIL_LEAST 1e-3

static bool is_tie(const ls_foreign *f, int64_t n_off, int64_t n_tokens, double most) {
    return f->floor_q90 >= TAIL_LEAST && (double)n_off <= TAIL_SHARE * (double)n_tokens && most <= TAIL_TOKEN;
}

/* Two paths of a coarse type agree to the last bit until a sum falls on the other side of a rounding. That value and
 * those behind it in its sequence move then, by little: of long completions almost half, before which it agrees. Where
 * all values are a little apart, and none by more than float32 makes, there is no coarse type. */
#define FLIP_SHARE 0.45
/* Logits are as large as the values that they make. bf16 has a quantum of them of a 128th at most, and what they are
 * divided by moves as well. */
#define FLIP_OF_VALUE (1.0 / 96.0)
double ls_probe_flip_of_bf16(const ls_foreign *f) { return fmax(LS_FLIP_LEAST, FLIP_OF_VALUE * f->deepest); }

bool ls_probe_is_flip(const ls_foreign *f, double most) {
    const bool coarse = !f->fine && (!(f->floor_q90 > 0.0) || f->floor_max > LS_FINE);
    return coarse && most <= ls_probe_flip_of_bf16(f);
}

bool ls_probe_is_tail(const ls_foreign *f, int64_t n_off, int64_t n_tokens, double most) {
    return is_tie(f, n_off, n_tokens, most) ||
           ((double)n_off <= FLIP_SHARE * (double)n_tokens && ls_probe_is_flip(f, most));
}

/* A server in float32 may have keys of few bits. One that falls on the other side of a rounding moves its value and
 * those behind it, now and then, and by less than all keys in f16 make: whatever is moved, in as few tokens. */
#define KEYS_SHARE 0.03
bool ls_probe_pass_over_keys(ls_foreign *f) {
    int64_t n_off = 0, n = 0;
    if (!(f->floor_q90 > 0.0) || f->floor_max > LS_FINE) return false;
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) {
        const ls_seen *s = &f->seen[r];
        if (s->look == LS_LOOK_OFF && (s->n_failed > 0 || s->outcomes.n == 0 || s->abs_max > LS_FLIP_OF_F16))
            return false;
        n_off += s->n_off;
        n += s->n_tokens;
    }
    if ((double)n_off > KEYS_SHARE * (double)n) return false;
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++)
        if (f->seen[r].look == LS_LOOK_OFF) f->seen[r].look = LS_LOOK_CLEAN;
    return true;
}

bool ls_probe_has_company(const ls_trial *trial) {
    return trial->levers.batch > 1 || trial->levers.samples > 1 || trial->outside != 0;
}

/* Whether values of prompts from some length on are far more often, which no tie does. */
#define FAR_TOKEN 0.1
#define BY_LENGTH 1e-4
static bool hangs_on_length(const ls_foreign *f) {
    static const int64_t lengths[] = {16, 32, 64};
    const ls_outcomes *o = &f->seen[LS_STACK_LENGTHS].outcomes;
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        int64_t n[2] = {0, 0}, n_far[2] = {0, 0};
        for (int64_t s = 0; s < o->n; s++)
            for (int64_t i = 0; i < o->of[s].n; i++) {
                const bool is_long = o->of[s].n_prompt >= lengths[k];
                n[is_long]++;
                n_far[is_long] += fabs((double)o->of[s].scored[i] - (double)o->of[s].logprob[i]) > FAR_TOKEN;
            }
        if (ls_probe_chance(n_far[1], n[1], n_far[0], n[0]) < BY_LENGTH) return true;
    }
    return false;
}

bool ls_probe_solo_is_right(const ls_foreign *f) {
    int64_t n_off = 0, n = 0;
    double most = 0.0;
    for (int i = 0; i < LS_PROBE_SOLO; i++) {
        const ls_seen *s = &f->seen[ls_probe_solo[i]];
        if (s->n_sequences_off > 0 && s->n_off == 0) return false; /* it failed */
        n_off += s->n_off;
        n += s->n_tokens;
        most = fmax(most, s->abs_max);
    }
    return n_off == 0 || (ls_probe_is_tail(f, n_off, n, most) && !hangs_on_length(f));
}

/* What is no rounding of one text's value: the limit or, where the fault itself makes that, less than what is off. One
 * request alone goes through the same kernels each time, so that it moves by less than two kernels are apart. */
#define ONE_TEXT 0.1
double ls_probe_moved_from(const ls_inquiry *q) {
    const ls_foreign *f = q->f;
    /* Where a fault may be the floor, what it is told by is that the same comes again, and not its size. */
    if (q->of_pattern) return fmax(LS_LEAST_PATTERN, f->floor);
    return fmin(ONE_TEXT, f->constant ? fmin(f->limit, 0.2 * f->floor) : f->limit);
}

double ls_probe_size(const ls_outcome *c) {
    double most = 0.0;
    for (int64_t i = 0; i < c->n; i++) most = fmax(most, fabs((double)c->scored[i] - (double)c->logprob[i]));
    return most;
}

bool ls_probe_could_be_off(const ls_outcome *c) {
    for (int64_t i = 0; i < c->n; i++)
        if ((double)c->scored[i] < LS_SURE_TOKEN) return true;
    return false;
}

#define FINE_SHARE 0.3
enum { FINE_TOKENS = 6 };
bool ls_probe_is_fine(const ls_outcomes *o, int64_t below) {
    int64_t n = 0, n_apart = 0, n_far = 0;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n && o->of[s].n_prompt < below; i++) {
            const double d = fabs((double)o->of[s].scored[i] - (double)o->of[s].logprob[i]);
            if (!((double)o->of[s].scored[i] < LS_SURE_TOKEN)) continue;
            n++;
            n_apart += d > 0.0 && d <= LS_FINE;
            n_far += !(d <= LS_FINE);
        }
    return n >= FINE_TOKENS && (double)n_apart >= FINE_SHARE * (double)n && 10 * n_far <= 3 * n;
}
