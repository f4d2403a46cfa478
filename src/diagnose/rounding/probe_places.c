/* Records that are the values of another token of their own completion: so many places on or back, where a part of the
 * records has its place and no shift of all of them says it; or of any other place. Completions of its own are drawn
 * for it, as those of requests alone are short. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

enum { PLACES = 3, OFF_LEAST = 12, TEXTS = 8, NEW = 12, TEXT = 4500, LENGTH = 6 };
/* Of what a record is off by, what the other token's value leaves. */
#define LEFT 0.1
#define PLACES_CHANCE 1e-4
/* Of any place there are many values to be near: so near, and by chance as many are so far aside. */
#define NEAR 0.01
#define ASIDE 0.17
#define ANY_CHANCE 1e-6

static ls_status lay_completions(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, text + i, LENGTH, err));
    return LS_OK;
}

static double off_by(const ls_outcome *c, int64_t i) { return fabs((double)c->logprob[i] - (double)c->scored[i]); }

/* Of records that are off and have a token `by` places on: how many have its value. */
static int64_t count_at(const ls_outcomes *o, double from, int64_t by, int64_t *n) {
    int64_t n_at = 0;
    *n = 0;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n; i++) {
            const ls_outcome *c = &o->of[s];
            if (!(off_by(c, i) > from) || i + by < 0 || i + by >= c->n) continue;
            ++*n;
            n_at += fabs((double)c->logprob[i] - (double)c->scored[i + by]) < LEFT * off_by(c, i);
        }
    return n_at;
}

static bool is_near_another(const ls_outcome *c, int64_t i, double record) {
    for (int64_t k = 0; k < c->n; k++)
        if (k != i && fabs((double)c->scored[k] - record) < NEAR) return true;
    return false;
}

/* Of records that are off by far more than is near: how many, `aside` added, are the value of another token. */
static int64_t count_any(const ls_outcomes *o, double aside, int64_t *n) {
    int64_t n_near = 0;
    *n = 0;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n; i++) {
            if (!(off_by(&o->of[s], i) > ASIDE)) continue;
            ++*n;
            n_near += is_near_another(&o->of[s], i, (double)o->of[s].logprob[i] + aside);
        }
    return n_near;
}

static void decide_any(ls_inquiry *q, const ls_outcomes *o, bool *found) {
    int64_t n;
    const int64_t n_near = count_any(o, 0.0, &n), n_aside = count_any(o, ASIDE, &n);
    const double chance = ls_probe_chance(n_near, n, n_aside, n);
    if (n < OFF_LEAST || 10 * n_near < 9 * n || chance > ANY_CHANCE) return;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_OTHER_RECORDS, LS_STACK_SOLO_LONG,
                    ls_probe_sure(chance, 1.0 - ls_portion(n_near, n)),
                    "of %" PRId64 " records that are off %" PRId64
                    " are values of other tokens of the same completion, at no one place; by chance %" PRId64 " are",
                    n, n_near, n_aside);
}

static void decide_at(ls_inquiry *q, const ls_outcomes *o, bool *found) {
    const double from = ls_probe_moved_from(q);
    int64_t best = 0, n_best = 0, n_off = 0, second = 0, n_second = 0, where = 0;
    double chance;
    for (int64_t by = -PLACES; by <= PLACES; by++) {
        int64_t n;
        const int64_t n_at = count_at(o, from, by, &n);
        if (by == 0) {
            n_off = n;
        } else if (n_at * n_best > best * n || n_best == 0) {
            second = best, n_second = n_best;
            best = n_at, n_best = n, where = by;
        } else if (n_at * n_second > second * n || n_second == 0) {
            second = n_at, n_second = n;
        }
    }
    if (n_best < OFF_LEAST || 2 * n_best < n_off || 10 * best < 9 * n_best) return;
    chance = ls_probe_chance(best, n_best, second, n_second);
    if (chance > PLACES_CHANCE) return;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_SHIFTED, LS_STACK_SOLO_LONG, ls_probe_sure(chance, 1.0 - ls_portion(best, n_best)),
                    "of %" PRId64 " records that are off and have such a token %" PRId64
                    " are the value of the token %" PRId64 " places %s; of any other place %" PRId64 " of %" PRId64
                    " are",
                    n_best, best, where > 0 ? where : -where, where > 0 ? "on" : "back", second, n_second);
}

ls_status ls_probe_decide_places(ls_inquiry *q, bool *found, ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay_completions, TEXT, &s, err));
    decide_at(q, &s.outcomes, found);
    if (!*found) decide_any(q, &s.outcomes, found);
    ls_seen_deinit(&s);
    return LS_OK;
}
