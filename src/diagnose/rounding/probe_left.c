/* Requests at once behind clients that left: whether what those were asked for is still there, or whether two of those
 * that come behind them are given the same. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXT = 7200, AT_ONCE = 8, LENGTH = 11, NEW = 6, ROUNDS = 8, ROUNDS_LEAST = 3 };
#define CHANCE 1e-4
#define COPIES_CHANCE 0.01

/* Behind clients that left; the same of copies of one text; behind clients whose requests had penalties and biases; and
 * behind nobody. */
typedef enum way { LEFT = 0, COPIES, MARKED, NOBODY, WAYS } way;

static ls_status lay_way(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    static const uint32_t outside[WAYS] = {LS_OUTSIDE_LEAVERS, LS_OUTSIDE_LEAVERS,
                                           LS_OUTSIDE_LEAVERS | LS_OUTSIDE_MARKED, 0};
    const way how = (way)(value % WAYS);
    const int64_t text = TEXT + AT_ONCE * (value / WAYS);
    ls_stack_trial(q, LS_STACK_BATCH, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = NEW;
    trial->outside = outside[how];
    for (int64_t i = 0; i < AT_ONCE; i++) LS_TRY(ls_requests_plain(q, r, how == COPIES ? text : text + i, LENGTH, err));
    return LS_OK;
}

/* Beside long ones, which take so much room that what clients left is taken as well, and given back. */
static ls_status lay_clearing(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_LOAD, trial, NULL);
    return ls_requests_plain(q, r, text, LENGTH, err);
}

/* Requests; and trials of which any request is off, since two of eight that are given the same make one of them off. */
typedef struct counts {
    int64_t off[WAYS], n[WAYS], trials_off[WAYS], trials;
    double most;
} counts;

static ls_status count_way(ls_inquiry *q, way how, int64_t k, counts *out, ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay_clearing, TEXT - 1, &s, err));
    ls_seen_deinit(&s);
    LS_TRY(ls_foreign_try_laid(q, lay_way, WAYS * k + how, &s, err));
    for (int64_t i = 0; i < s.outcomes.n; i++) {
        out->n[how]++;
        out->off[how] += ls_sequence_off(q->f, &s.outcomes.of[i]);
    }
    out->trials_off[how] += s.n_sequences_off > 0;
    if (how != NOBODY) out->most = fmax(out->most, s.abs_max);
    ls_seen_deinit(&s);
    return LS_OK;
}

static double chance_of(const counts *c, way with, way without) {
    return ls_probe_chance(c->off[with], c->n[with], c->off[without], c->n[without]);
}

/* Of all trials behind clients that left, whatever those were asked for: the same texts are right behind nobody. */
static double chance_of_left(const counts *c) {
    return fmin(chance_of(c, LEFT, NOBODY), ls_probe_chance(c->trials_off[LEFT] + c->trials_off[MARKED], 2 * c->trials,
                                                            c->trials_off[NOBODY], c->trials));
}

/* *marks: what they had is still there; *mixed: of copies none is off, to which each other's state is their own. */
static bool is_certain(const counts *c, bool *marks, bool *mixed) {
    *marks = c->off[LEFT] + c->off[COPIES] == 0 && chance_of(c, MARKED, LEFT) <= CHANCE;
    *mixed = 4 * c->off[COPIES] < c->off[LEFT] && chance_of(c, LEFT, COPIES) <= COPIES_CHANCE;
    return chance_of_left(c) <= CHANCE || *marks;
}

static void find_left(ls_inquiry *q, const counts *c, bool marks, bool mixed) {
    const double chance = marks ? chance_of(c, MARKED, LEFT) : chance_of_left(c);
    const bool stays = marks || (2 * c->off[COPIES] > c->off[LEFT] && chance_of(c, COPIES, NOBODY) <= CHANCE);
    const double sure = ls_probe_sure(chance, 0.0);
    ls_foreign_find(q->f, mixed && !marks ? LS_CAUSE_OTHERS_STATE : LS_CAUSE_STALE_SLOT, LS_STACK_LEFT,
                    stays || mixed ? sure : fmin(sure, 0.6),
                    "%d at a time behind clients that left %" PRId64 " of %" PRId64
                    " are off, copies of one text %" PRId64 " of %" PRId64
                    ", and where those had penalties and biases %" PRId64 " of %" PRId64 ", by up to %.2g, in %" PRId64
                    " of %" PRId64 " trials; behind nobody none of %" PRId64 " is: %s",
                    AT_ONCE, c->off[LEFT], c->n[LEFT], c->off[COPIES], c->n[COPIES], c->off[MARKED], c->n[MARKED],
                    c->most, c->trials_off[LEFT] + c->trials_off[MARKED], 2 * c->trials, c->n[NOBODY],
                    marks   ? "what they were asked for stays"
                    : mixed ? "two that come behind them have the same"
                            : "what they leave stays");
}

ls_status ls_probe_decide_left(ls_inquiry *q, bool *found, ls_error *err) {
    counts c = {0};
    bool certain = false, marks = false, mixed = false;
    for (int64_t k = 0; k < ROUNDS && c.off[NOBODY] == 0 && (k < ROUNDS_LEAST || !certain || !(marks || mixed)); k++) {
        for (int how = 0; how < WAYS; how++) LS_TRY(count_way(q, (way)how, k, &c, err));
        c.trials++;
        if (k + 1 == ROUNDS_LEAST && c.off[LEFT] + c.off[COPIES] + c.off[MARKED] == 0) break;
        certain = is_certain(&c, &marks, &mixed);
    }
    *found = certain && c.off[NOBODY] == 0;
    if (*found) find_left(q, &c, marks, mixed);
    return LS_OK;
}
