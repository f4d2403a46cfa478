/* Which side of the prompt's values records lie on. Rounding moves values up as often as down. A penalty on tokens that
 * stood there before moves those down, and all others up, since less is left to share. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

typedef struct signs {
    int64_t up[2], down[2]; /* of tokens that are new, and of those that stood there before */
} signs;

static bool stood_before(const ls_outcome *c, int64_t i) {
    for (int64_t k = 0; k < c->n_prompt; k++)
        if (c->prompt[k] == c->completion[i]) return true;
    for (int64_t k = 0; k < i; k++)
        if (c->completion[k] == c->completion[i]) return true;
    return false;
}

static void count_signs(const ls_outcomes *o, signs *out) {
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n; i++) {
            const double d = (double)o->of[s].logprob[i] - (double)o->of[s].scored[i];
            const int before = stood_before(&o->of[s], i);
            if (!isfinite(d) || !((double)o->of[s].scored[i] < LS_SURE_TOKEN)) continue;
            out->up[before] += d > 0.0;
            out->down[before] += d < 0.0;
        }
}

enum { NEW_LEAST = 24, BEFORE_LEAST = 4 };
#define SIGNS_CHANCE 1e-4

void ls_probe_decide_signs(ls_inquiry *q, bool *found) {
    signs s = {{0, 0}, {0, 0}};
    double chance;
    for (int i = 0; i < LS_PROBE_SOLO; i++) count_signs(&q->f->seen[ls_probe_solo[i]].outcomes, &s);
    if (s.up[0] < NEW_LEAST || 10 * s.down[0] > s.up[0] || s.down[1] < BEFORE_LEAST || s.up[1] > s.down[1]) return;
    chance = ls_probe_chance(s.down[1], s.down[1] + s.up[1], s.down[0], s.down[0] + s.up[0]);
    if (chance > SIGNS_CHANCE) return;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_PENALTY, LS_STACK_LENGTHS, 0.96 - chance,
                    "requests alone: of tokens that stood there before %" PRId64 " of %" PRId64
                    " records are below the prompt's value, of new ones %" PRId64 " of %" PRId64,
                    s.down[1], s.down[1] + s.up[1], s.down[0], s.down[0] + s.up[0]);
}
