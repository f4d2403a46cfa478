/* Prompts that are filled up to a multiple of some number of tokens: those that are one by themselves are right. */
#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 8, MOST = 64 };

/* A quantile of the largest |d| of each. */
static double size_at(const ls_seen *s, double quantile) {
    double list[TEXTS];
    int64_t n = 0;
    for (int64_t k = 0; k < s->outcomes.n && n < TEXTS; k++) {
        const ls_outcome *c = &s->outcomes.of[k];
        list[n] = 0.0;
        for (int64_t i = 0; i < c->n; i++) list[n] = fmax(list[n], fabs((double)c->scored[i] - (double)c->logprob[i]));
        n++;
    }
    return ls_quantile(list, n, quantile, 0.0);
}

/* The same of first and second tokens: what stands behind a prompt of such a length, and not behind a border that
 * completions go over. */
static double size_at_once(const ls_seen *s, double quantile) {
    double list[TEXTS];
    int64_t n = 0;
    for (int64_t k = 0; k < s->outcomes.n && n < TEXTS; k++) {
        const ls_outcome *c = &s->outcomes.of[k];
        list[n] = 0.0;
        for (int64_t i = 0; i < c->n && i < 2; i++)
            list[n] = fmax(list[n], fabs((double)c->scored[i] - (double)c->logprob[i]));
        n++;
    }
    return ls_quantile(list, n, quantile, 0.0);
}

/* An odd number of times, where all are as long: what half of it is a multiple of is not told by this one. */
static int64_t times_of(const ls_inquiry *q, int64_t of, int64_t i) {
    const int64_t most = MOST / of < 4 ? MOST / of : 4;
    return q->f->is_server ? (most > 2 ? 3 : 1) : 1 + i % most;
}

/* Where prompts of a trial end. */
typedef enum ends { ON_MULTIPLES = 0, ONE_BEHIND, ONE_BEFORE, BETWEEN } ends;

/* Prompts and completions both of multiples of a number, so that a prompt is one with its completion as well; or both
 * one off; or prompts that lack one; or prompts that end between two multiples, with completions that reach none. */
enum { WHERE = 4, SHORT = 3 };
static ls_status lay(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t of = value / WHERE;
    const ends where = (ends)(value % WHERE);
    const int64_t off[] = {0, 1, of - 1, of < 8 ? 1 : of / 2};
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    /* Completions are no longer than those of whole ones where prompts lack one: it may be their length that is off. */
    trial->max_tokens = where == BETWEEN ? SHORT : where == ONE_BEFORE ? of - 1 : of + (where == ONE_BEHIND && of > 2);
    /* A server answers all at once as fast as one. So that none has to be filled up for another they are as long. */
    if (q->f->is_server) trial->levers.batch = TEXTS;
    for (int64_t i = 0; i < TEXTS; i++)
        LS_TRY(ls_requests_plain(q, r, (q->other_texts ? 3320 : 3300) + i, of * times_of(q, of, i) + off[where], err));
    return LS_OK;
}

static ls_status try_at(ls_inquiry *q, int64_t m, ends where, ls_seen *out, ls_error *err) {
    return ls_foreign_try_laid(q, lay, m * WHERE + where, out, err);
}

/* How many are farther off than `cut` at their first tokens. */
static int64_t count_beyond(const ls_seen *s, double cut) {
    int64_t n = 0;
    for (int64_t k = 0; k < s->outcomes.n; k++) {
        const ls_outcome *c = &s->outcomes.of[k];
        double most = 0.0;
        for (int64_t i = 0; i < c->n && i < 2; i++)
            most = fmax(most, fabs((double)c->scored[i] - (double)c->logprob[i]));
        n += most > cut;
    }
    return n;
}

/* Requests whose first tokens are off by more than a cut. */
typedef struct beyond_cut {
    int64_t n, of;
} beyond_cut;

static void add_beyond(beyond_cut *to, const ls_seen *s, double cut) {
    to->n += count_beyond(s, cut);
    to->of += s->outcomes.n;
}

/* A kernel that some numbers of rows have is none of padding: what lacks one token is off as well. Neither is a border
 * of pages: what ends between two of them and reaches none is off as well, at its first tokens. */
#define FAR 3.0
static ls_status confirm(ls_inquiry *q, int64_t m, double a, double cut, beyond_cut *off, bool *found, ls_error *err) {
    static const ends wheres[] = {ONE_BEFORE, BETWEEN};
    for (size_t k = 0; k < sizeof wheres / sizeof wheres[0] && *found; k++) {
        ls_seen s;
        LS_TRY(try_at(q, m, wheres[k], &s, err));
        *found = size_at_once(&s, 0.5) > FAR * a;
        add_beyond(off, &s, cut);
        ls_seen_deinit(&s);
    }
    return LS_OK;
}

/* What bf16 makes of multiples may be not far below what is off: it is the order that tells then, of these texts
 * and of others. */
#define ORDER_CHANCE 1e-4

typedef struct multiple {
    ls_seen whole, other;
    double a, b; /* three quarters of the whole ones are within a; the others' middle */
} multiple;

static void count_within(const ls_seen *s, double cut, int64_t *within, int64_t *n) {
    for (int64_t k = 0; k < s->outcomes.n; k++) *within += ls_probe_size(&s->outcomes.of[k]) <= cut;
    *n += s->outcomes.n;
}

static ls_status is_ordered(ls_inquiry *q, int64_t m, const multiple *of, bool *ordered, ls_error *err) {
    int64_t within = 0, n = 0, within_other = 0, n_other = 0;
    ls_seen s;
    count_within(&of->whole, of->a, &within, &n);
    count_within(&of->other, of->a, &within_other, &n_other);
    *ordered = false;
    if (!(of->b > 2.0 * of->a) || within_other > 1) return LS_OK;
    q->other_texts = true;
    for (int k = 0; k < 2; k++) {
        const ls_status status = try_at(q, m, k == 0 ? ON_MULTIPLES : ONE_BEHIND, &s, err);
        if (status == LS_OK) count_within(&s, of->a, k == 0 ? &within : &within_other, k == 0 ? &n : &n_other);
        ls_seen_deinit(&s);
        if (status != LS_OK) {
            q->other_texts = false;
            return status;
        }
    }
    q->other_texts = false;
    *ordered = ls_probe_chance(within, n, within_other, n_other) < ORDER_CHANCE;
    return LS_OK;
}

/* Completions of many tokens take a slow server long, and there is more to be tried. */
#define SHARE 0.1
enum { CHEAP = 8 };

/* Less than this, and more than float32 makes, is nobody's rounding where float32 is computed. */
#define LEAST_FINE 0.004
static bool is_fine(const ls_seen *s) {
    for (int64_t k = 0; k < s->outcomes.n; k++)
        if (!ls_probe_could_be_off(&s->outcomes.of[k])) return false;
    return ls_probe_is_fine(&s->outcomes, INT64_MAX);
}

/* ---- powers of two ---- */

/* Prompts may be filled up to the next power of two, from some one on: of 64 tokens, of 32 and so on, as long as they
 * are right while those half as long again are not. Of the latter completions reach no power. */
enum { POWER_MOST = 64, POWER_LEAST = 8, POWERS = 4, POWERS_ENOUGH = 2 };
static ls_status lay_powers(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t power = value < 0 ? -value : value;
    /* A prompt with its completion may be filled up as well where all of it is scored at once. */
    const bool both = value > 0 && !q->runner->door->subject->scores_by_token;
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = both ? power : SHORT;
    trial->levers.batch = TEXTS;
    for (int64_t i = 0; i < TEXTS; i++)
        LS_TRY(ls_requests_plain(q, r, 3330 + i, value < 0 ? power + power / 2 : power, err));
    return LS_OK;
}

static ls_status decide_powers(ls_inquiry *q, double least, bool *found, ls_error *err) {
    int64_t n = 0, n_whole = 0, n_between = 0;
    double sure, a = 0.0, b = 0.0;
    for (int64_t power = POWER_MOST; power >= POWER_LEAST; power /= 2) {
        ls_seen whole = {0}, between = {0};
        bool differ = false;
        ls_status status = ls_foreign_try_laid(q, lay_powers, -power, &between, err);
        b = size_at_once(&between, 0.5);
        if (status == LS_OK && b > least) status = ls_foreign_try_laid(q, lay_powers, power, &whole, err);
        a = size_at_once(&whole, 0.5);
        differ = status == LS_OK && whole.outcomes.n == TEXTS && between.outcomes.n == TEXTS && b > 2.0 * a;
        n += differ ? TEXTS : 0;
        n_whole += differ ? count_beyond(&whole, sqrt(a * b)) : 0;
        n_between += differ ? count_beyond(&between, sqrt(a * b)) : 0;
        ls_seen_deinit(&whole);
        ls_seen_deinit(&between);
        LS_TRY(status);
        if (!differ) break;
    }
    sure = ls_probe_sure(POWERS * ls_probe_chance(n_between, n, n_whole, n), 1.0 - ls_portion(n_between, n));
    *found = n >= POWERS_ENOUGH * TEXTS && sure >= LS_NAMED;
    if (*found)
        ls_foreign_find(
            q->f, LS_CAUSE_PADDING, LS_STACK_LENGTHS, sure,
            "prompts of %d tokens, and of halves of that, are nearer than those half as long again: of %" PRId64
            " each %" PRId64 " and %" PRId64 " are off by more than lies between, at their first tokens",
            POWER_MOST, n, n_whole, n_between);
    return LS_OK;
}

static ls_status decide_multiples(ls_inquiry *q, double right, double least, bool *found, ls_error *err) {
    const double end = ls_door_share(q->runner->door, SHARE);
    for (int64_t m = q->f->is_server ? 4 : 2; m <= MOST && !*found; m *= 2) {
        multiple of = {0};
        beyond_cut off = {0}, whole = {0};
        bool ordered = false;
        double from = least, sure;
        ls_status status;
        if (q->f->is_server && m > CHEAP && ls_clock_seconds() > end) break;
        LS_TRY_DONE(try_at(q, m, ON_MULTIPLES, &of.whole, err));
        of.a = size_at(&of.whole, 0.75); /* of those of half the number half are right */
        if (of.whole.outcomes.n == 0) m = MOST;
        if (of.whole.outcomes.n == 0 || of.a > right) goto done;
        LS_TRY_DONE(try_at(q, m, ONE_BEHIND, &of.other, err));
        of.b = size_at(&of.other, 0.5);
        if (q->f->is_server && of.a <= LS_FINE && is_fine(&of.whole)) from = fmin(least, LEAST_FINE);
        if (of.other.outcomes.n == 0 || !(of.b > from)) {
            m = MOST; /* nothing is off: no multiple is what tells */
            goto done;
        }
        *found = of.a < 0.1 * of.b;
        if (!*found && q->f->is_server) LS_TRY_DONE(is_ordered(q, m, &of, &ordered, err));
        *found = *found || ordered;
        add_beyond(&whole, &of.whole, sqrt(of.a * of.b));
        add_beyond(&off, &of.other, sqrt(of.a * of.b));
        if (*found && q->f->is_server) LS_TRY_DONE(confirm(q, m, of.a, sqrt(of.a * of.b), &off, found, err));
        sure = q->f->is_server ? ls_probe_sure(ls_probe_chance(off.n, off.of, whole.n, whole.of), 0.0)
                               : 0.98 - 0.4 * of.a / of.b;
        if (*found)
            ls_foreign_find(q->f, LS_CAUSE_PADDING, LS_STACK_LENGTHS, ordered ? 0.94 : sure,
                            "prompts and completions of multiples of %" PRId64
                            " tokens are off by %.2g, three quarters of %d; those of one token more by %.2g in the "
                            "middle",
                            m, of.a, TEXTS, of.b);
        else if (!q->f->is_server)
            m = MOST;
    done:
        ls_seen_deinit(&of.whole);
        ls_seen_deinit(&of.other);
        LS_TRY(status);
    }
    return LS_OK;
}

ls_status ls_decide_multiples(ls_inquiry *q, double right, double least, bool *found, ls_error *err) {
    LS_TRY(decide_multiples(q, right, least, found, err));
    return *found || !q->f->is_server ? LS_OK : decide_powers(q, least, found, err);
}
