/* Which side of the prompt's values records lie on. Rounding moves values up as often as down. A penalty on tokens that
 * stood there before moves those down, and all others up, since less is left to share. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

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
            out->up[before] += d > LS_FINE; /* float32 moves as many up as down, by less */
            out->down[before] += d < -LS_FINE;
        }
}

/* Cold and long completions come back to what they had: so many tokens that stood there before. */
enum { COLD_TEXTS = 6, COLD_NEW = 32, COLD_TEXT = 4400, COLD_LENGTH = 5 };
#define COLD 0.3f
static ls_status lay_cold(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->sampling.temperature = COLD;
    trial->max_tokens = COLD_NEW;
    for (int64_t i = 0; i < COLD_TEXTS; i++) LS_TRY(ls_requests_plain(q, r, text + i, COLD_LENGTH, err));
    return LS_OK;
}

static ls_status add_cold(ls_inquiry *q, signs *out, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_seen s = {0};
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    LS_TRY_DONE(lay_cold(q, COLD_TEXT, &trial, r, err));
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &s, err));
    count_signs(&s.outcomes, out);
done:
    ls_seen_deinit(&s);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

enum { NEW_LEAST = 24, BEFORE_LEAST = 4 };
#define SIGNS_CHANCE 1e-4
static bool is_raised(const signs *s) { return s->up[0] >= NEW_LEAST && 10 * s->down[0] <= s->up[0]; }

static void decide(ls_inquiry *q, const signs *s, const char *where, bool *found) {
    const double chance = ls_probe_chance(s->down[1], s->down[1] + s->up[1], s->down[0], s->down[0] + s->up[0]);
    if (!is_raised(s) || s->down[1] < BEFORE_LEAST || s->up[1] > s->down[1] || chance > SIGNS_CHANCE) return;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_PENALTY, LS_STACK_LENGTHS, 0.96 - chance,
                    "%s: of tokens that stood there before %" PRId64 " of %" PRId64
                    " records are below the prompt's value, of new ones %" PRId64 " of %" PRId64,
                    where, s->down[1], s->down[1] + s->up[1], s->down[0], s->down[0] + s->up[0]);
}

ls_status ls_probe_decide_signs(ls_inquiry *q, bool *found, ls_error *err) {
    signs solo = {{0, 0}, {0, 0}}, cold = {{0, 0}, {0, 0}};
    for (int i = 0; i < LS_PROBE_SOLO; i++) count_signs(&q->f->seen[ls_probe_solo[i]].outcomes, &solo);
    decide(q, &solo, "requests alone", found);
    if (*found || !is_raised(&solo)) return LS_OK;
    LS_TRY(add_cold(q, &cold, err)); /* a penalty may be on what was generated alone, which seldom comes again */
    decide(q, &cold, "cold and long completions", found);
    return LS_OK;
}
