/* Records that are the values of another token of their own completion, so many places on or back, of those that are
 * off: where a part of the records has its place, no shift of all of them says it. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

enum { PLACES = 3, OFF_LEAST = 8 };
/* Of what a record is off by, what the other token's value leaves. */
#define LEFT 0.1
#define PLACES_CHANCE 1e-4

/* Of records that are off and have a token `by` places on: how many have its value. */
static int64_t count_at(const ls_inquiry *q, int64_t by, int64_t *n) {
    const double from = ls_probe_moved_from(q);
    int64_t n_at = 0;
    *n = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n && ls_probe_solo[r] != LS_STACK_AGAIN; s++)
            for (int64_t i = 0; i < o->of[s].n; i++) {
                const double record = (double)o->of[s].logprob[i];
                const double d = fabs(record - (double)o->of[s].scored[i]);
                if (!(d > from)) continue;
                ++*n; /* one without such a token counts against it */
                if (i + by >= 0 && i + by < o->of[s].n)
                    n_at += fabs(record - (double)o->of[s].scored[i + by]) < LEFT * d;
            }
    }
    return n_at;
}

void ls_probe_decide_places(ls_inquiry *q, bool *found) {
    int64_t most = 0, second = 0, n = 0, where = 0;
    double chance;
    for (int64_t by = -PLACES; by <= PLACES; by++) {
        const int64_t n_at = by != 0 ? count_at(q, by, &n) : 0;
        if (n_at > most) {
            second = most;
            most = n_at;
            where = by;
        } else if (n_at > second) {
            second = n_at;
        }
    }
    if (n < OFF_LEAST || 10 * most < 9 * n) return;
    chance = ls_probe_chance(most, n, second, n);
    if (chance > PLACES_CHANCE) return;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_SHIFTED, LS_STACK_SOLO_LONG, 0.95 - chance,
                    "of %" PRId64 " records that are off %" PRId64 " are the value of the token %" PRId64
                    " places %s; of any other place %" PRId64 " are",
                    n, most, where > 0 ? where : -where, where > 0 ? "on" : "back", second);
}
