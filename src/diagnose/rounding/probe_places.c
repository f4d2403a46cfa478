/* Records that are the values of another token of their own completion: so many places on or back, where a part of the
 * records has its place and no shift of all of them says it; in another order; or of any other place. Completions of
 * its own are drawn for it, as those of requests alone are short. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

/* A server may break completions off where it has no value; then there are more of them. */
enum { OFF_LEAST = 12, TEXTS = 8, NEW = 12, TEXT = 4500, LENGTH = 6, ROUNDS = 4, TOKENS_ENOUGH = TEXTS * NEW * 3 / 4 };
/* Of what a record is off by, what the other token's value leaves. */
#define LEFT 0.1
#define PLACES_CHANCE 1e-4
/* Of any place there are many values to be near: so near, and by chance as many are so far aside. */
#define NEAR 0.01
#define ASIDE 0.17
#define ANY_CHANCE 1e-6

typedef struct completions {
    ls_seen of[ROUNDS];
    int n;
} completions;

static ls_status lay_completions(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, text + i, LENGTH, err));
    return LS_OK;
}

static ls_status draw_completions(ls_inquiry *q, completions *out, ls_error *err) {
    int64_t n_tokens = 0;
    for (out->n = 0; out->n < ROUNDS && n_tokens < TOKENS_ENOUGH; out->n++) {
        LS_TRY(ls_foreign_try_laid(q, lay_completions, TEXT + TEXTS * out->n, &out->of[out->n], err));
        n_tokens += out->of[out->n].n_tokens;
    }
    return LS_OK;
}

static double off_by(const ls_outcome *c, int64_t i) { return fabs((double)c->logprob[i] - (double)c->scored[i]); }

/* ---- one other place for each ---- */

/* The place whose value is recorded at i. Where not a shift, a completion is as long as it was asked to be. */
typedef struct move {
    const char *what;
    int64_t by; /* places */
    enum { BY = 0, IN_BLOCKS, IN_BLOCKS_LATE, TURNED, ROUND } kind;
} move;

static const move moves[] = {{"the value of the token 3 places back", -3, BY},
                             {"the value of the token 2 places back", -2, BY},
                             {"the value of the token before", -1, BY},
                             {"the value of the token behind", 1, BY},
                             {"the value of the token 2 places on", 2, BY},
                             {"the value of the token 3 places on", 3, BY},
                             {"exchanged two by two", 2, IN_BLOCKS},
                             {"exchanged two by two behind the first", 2, IN_BLOCKS_LATE},
                             {"turned round in blocks of three", 3, IN_BLOCKS},
                             {"turned round in blocks of four", 4, IN_BLOCKS},
                             {"in the order from last to first", 0, TURNED},
                             {"one place on, and the last one is the first", 1, ROUND},
                             {"one place back, and the first one is the last", -1, ROUND}};
enum { MOVES = sizeof moves / sizeof moves[0] };

static int64_t moved_place(const move *m, int64_t i) {
    switch (m->kind) {
        case BY: return i + m->by;
        case IN_BLOCKS: return i / m->by * m->by + m->by - 1 - i % m->by;
        case IN_BLOCKS_LATE: return i == 0 ? 0 : 1 + (i - 1) / m->by * m->by + m->by - 1 - (i - 1) % m->by;
        case TURNED: return NEW - 1 - i;
        case ROUND: return (i + m->by + NEW) % NEW;
    }
    return i;
}

typedef struct hits {
    int64_t n, of;
} hits;

static bool is_larger(hits a, hits b) { return b.of == 0 || a.n * b.of > b.n * a.of; }

/* Of records that are off and have a token at that place: how many have its value. */
static hits count_at(const completions *drawn, double from, const move *m) {
    hits out = {0};
    for (int k = 0; k < drawn->n; k++)
        for (int64_t s = 0; s < drawn->of[k].outcomes.n; s++)
            for (int64_t i = 0; i < drawn->of[k].outcomes.of[s].n; i++) {
                const ls_outcome *c = &drawn->of[k].outcomes.of[s];
                const int64_t at = moved_place(m, i);
                if (!(off_by(c, i) > from) || at < 0 || at >= c->n || at == i) continue;
                out.of++;
                out.n += fabs((double)c->logprob[i] - (double)c->scored[at]) < LEFT * off_by(c, i);
            }
    return out;
}

/* All that are off, whether another place is there or not. */
static int64_t count_off(const completions *drawn, double from) {
    int64_t n = 0;
    for (int k = 0; k < drawn->n; k++)
        for (int64_t s = 0; s < drawn->of[k].outcomes.n; s++)
            for (int64_t i = 0; i < drawn->of[k].outcomes.of[s].n; i++)
                n += off_by(&drawn->of[k].outcomes.of[s], i) > from;
    return n;
}

static void decide_at(ls_inquiry *q, const completions *drawn, bool *found) {
    const double from = ls_probe_moved_from(q);
    hits best = {0}, second = {0};
    double chance;
    int which = 0;
    for (int m = 0; m < MOVES; m++) {
        const hits one = count_at(drawn, from, &moves[m]);
        if (one.of < OFF_LEAST) continue;
        if (is_larger(one, best)) {
            second = best;
            best = one, which = m;
        } else if (is_larger(one, second)) {
            second = one;
        }
    }
    /* The tokens that a completion was broken off in front of have no value here. */
    if (best.of < OFF_LEAST || 3 * best.of < count_off(drawn, from) || 10 * best.n < 9 * best.of) return;
    chance = ls_probe_chance(best.n, best.of, second.n, second.of);
    if (chance > PLACES_CHANCE) return;
    *found = true;
    ls_foreign_find(q->f, moves[which].kind == BY ? LS_CAUSE_SHIFTED : LS_CAUSE_OTHER_RECORDS, LS_STACK_SOLO_LONG,
                    ls_probe_sure(chance, 1.0 - ls_portion(best.n, best.of)),
                    "of %" PRId64 " records that are off and have such a token %" PRId64
                    " are %s; of any other place %" PRId64 " of %" PRId64 " are",
                    best.of, best.n, moves[which].what, second.n, second.of);
}

/* ---- any other place ---- */

static bool is_near_another(const ls_outcome *c, int64_t i, double record) {
    for (int64_t k = 0; k < c->n; k++)
        if (k != i && fabs((double)c->scored[k] - record) < NEAR) return true;
    return false;
}

/* Of records that are off by far more than is near: how many, `aside` added, are the value of another token. */
static hits count_any(const completions *drawn, double aside) {
    hits out = {0};
    for (int k = 0; k < drawn->n; k++)
        for (int64_t s = 0; s < drawn->of[k].outcomes.n; s++)
            for (int64_t i = 0; i < drawn->of[k].outcomes.of[s].n; i++) {
                const ls_outcome *c = &drawn->of[k].outcomes.of[s];
                if (!(off_by(c, i) > ASIDE)) continue;
                out.of++;
                out.n += is_near_another(c, i, (double)c->logprob[i] + aside);
            }
    return out;
}

static void decide_any(ls_inquiry *q, const completions *drawn, bool *found) {
    const hits near = count_any(drawn, 0.0), aside = count_any(drawn, ASIDE);
    const double chance = ls_probe_chance(near.n, near.of, aside.n, aside.of);
    if (near.of < OFF_LEAST || 10 * near.n < 9 * near.of || chance > ANY_CHANCE) return;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_OTHER_RECORDS, LS_STACK_SOLO_LONG,
                    ls_probe_sure(chance, 1.0 - ls_portion(near.n, near.of)),
                    "of %" PRId64 " records that are off %" PRId64
                    " are values of other tokens of the same completion, at no one place; by chance %" PRId64 " are",
                    near.of, near.n, aside.n);
}

ls_status ls_probe_decide_places(ls_inquiry *q, bool *found, ls_error *err) {
    completions drawn = {0};
    const ls_status status = draw_completions(q, &drawn, err);
    if (status == LS_OK) decide_at(q, &drawn, found);
    if (status == LS_OK && !*found) decide_any(q, &drawn, found);
    for (int k = 0; k < ROUNDS; k++) ls_seen_deinit(&drawn.of[k]);
    return status;
}
