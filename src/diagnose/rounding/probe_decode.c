/* First tokens are right and decoded ones are not. Other arithmetic in decode is the same at every step and for any
 * token. What decode was handed wrongly dies away with each step, where a state forgets. What a draw leaves, as a draft
 * that is refused does, is not there where each token is the likeliest. */
#include <inttypes.h>
#include <math.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 6, TEXT = 4920, LENGTH = 24, NEW = 32, EARLY = 4, LATE = 20, ROUNDS = 2 };
/* A fault of every step leaves late tokens no nearer than a third of what early ones are off by. */
#define DIED_TO 0.1
/* Both are listed and not named: no cause of the list says which state it is. */
#define LISTED 0.7

static ls_status lay_decoded(ls_inquiry *q, int64_t greedy, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    if (greedy) trial->sampling.temperature = 0.0f;
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++)
        LS_TRY(ls_requests_plain(q, r, TEXT + (q->other_texts ? TEXTS : 0) + i, LENGTH, err));
    return LS_OK;
}

/* The middle |d| of tokens [from, to) that are not nearly sure, and how many are off; below 0: there is none. */
static double middle_of(const ls_outcome *c, int64_t from, int64_t to, double off, int64_t *n, int64_t *n_off) {
    double list[NEW];
    int64_t n_list = 0;
    for (int64_t i = from; i < to && i < c->n; i++) {
        const double d = fabs((double)c->scored[i] - (double)c->logprob[i]);
        if (!((double)c->scored[i] < LS_SURE_TOKEN) || !isfinite(d)) continue;
        list[n_list++] = d;
        *n_off += d > off;
    }
    *n += n_list;
    return n_list > 0 ? ls_quantile(list, n_list, 0.5, 0.0) : -1.0;
}

typedef struct decoded {
    int64_t n, n_off;     /* decoded tokens */
    int64_t texts, fades; /* whose early tokens are off; and whose late ones are as good as right */
} decoded;

static ls_status try_decoded(ls_inquiry *q, bool greedy, decoded *out, ls_error *err) {
    const double off = ls_probe_moved_from(q);
    ls_seen s;
    *out = (decoded){0};
    LS_TRY(ls_foreign_try_laid(q, lay_decoded, greedy, &s, err));
    for (int64_t i = 0; i < s.outcomes.n; i++) {
        const ls_outcome *c = &s.outcomes.of[i];
        int64_t n = 0, n_off = 0;
        const double early = middle_of(c, 1, EARLY, off, &n, &n_off), late = middle_of(c, LATE, NEW, off, &n, &n_off);
        (void)middle_of(c, 1, NEW, off, &out->n, &out->n_off);
        out->texts += early > off && late >= 0.0;
        out->fades += early > off && late >= 0.0 && late < DIED_TO * early;
    }
    ls_seen_deinit(&s);
    return LS_OK;
}

static bool fades(const decoded *d) { return d->texts >= TEXTS / 2 && 4 * d->fades >= 3 * d->texts; }

/* Of the likeliest tokens hardly any is off, where of others most are. */
static bool hangs_on_draws(const decoded *drawn, const decoded *greedy) {
    return greedy->n >= NEW && 3 * drawn->n_off > drawn->n && 10 * greedy->n_off * drawn->n < drawn->n_off * greedy->n;
}

/* Each text once drawn and once of the likeliest tokens, and where that shows something others as well. */
static ls_status try_rounds(ls_inquiry *q, bool *does_fade, bool *of_draws, decoded of[2], ls_error *err) {
    ls_status status = LS_OK;
    *does_fade = *of_draws = true;
    for (int round = 0; round < ROUNDS && (*does_fade || *of_draws) && status == LS_OK; round++) {
        q->other_texts = round > 0;
        for (int greedy = 0; greedy < 2 && status == LS_OK; greedy++) status = try_decoded(q, greedy, &of[greedy], err);
        *does_fade = *does_fade && fades(&of[0]);
        *of_draws = *of_draws && hangs_on_draws(&of[0], &of[1]);
    }
    q->other_texts = false;
    return status;
}

ls_status ls_probe_decide_decoded(ls_inquiry *q, bool *found, bool *asked, ls_error *err) {
    bool does_fade, of_draws;
    decoded of[2] = {{0}, {0}};
    *asked = false;
    if (q->runner->door->subject->scores_by_token) return LS_OK; /* each value is a request, and these are many */
    LS_TRY(try_rounds(q, &does_fade, &of_draws, of, err));
    *asked = of[0].n > 0 && of[1].n > 0;
    *found = *asked && (does_fade || of_draws);
    if (!*found) return LS_OK;
    if (of_draws)
        ls_foreign_find(
            q->f, LS_CAUSE_UNLISTED, LS_STACK_SOLO_LONG, LISTED,
            "first tokens are right, and of decoded ones %" PRId64 " of %" PRId64
            " are off where they are drawn, and %" PRId64 " of %" PRId64
            " where each is the likeliest, behind the same prompts and others: a draw leaves a wrong state. "
            "Look at what is put back when a draft is refused",
            of[0].n_off, of[0].n, of[1].n_off, of[1].n);
    else
        ls_foreign_find(q->f, LS_CAUSE_STATE_INTO_DECODE, LS_STACK_SOLO_LONG, LISTED,
                        "first tokens are right, and what decoded ones are off by dies away: in %" PRId64 " of %" PRId64
                        " texts those from the %dth on are ten times nearer than the first three, and in other texts "
                        "as well. Decode forgets what it was handed",
                        of[0].fades, of[0].texts, LATE + 1);
    return LS_OK;
}
