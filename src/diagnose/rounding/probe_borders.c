/* Decoded tokens that are off from the first border of a page on, wherever in the completion that is. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Prompts of unlike lengths whose completions go over the first border of pages of 16, and over the second. */
enum { TEXTS = 8, NEW = 30, SHORT = 5, LONGER = 21, PAGE_LEAST = 8, PAGE_MOST = 32, MOST_TELL = 6 };
/* A kernel may begin behind a border as well; bf16 makes less than this of it in the middle. */
#define LEAST_SIZE 0.05
/* What is far beyond the tokens in front of it. */
#define FAR 100.0
#define FAR_LEAST 1e-3

static ls_status lay(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    (void)value;
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++)
        LS_TRY(ls_requests_plain(q, r, 3660 + i, (i < TEXTS / 2 ? SHORT : LONGER - TEXTS / 2) + i, err));
    return LS_OK;
}

/* The position of the first token that is far beyond those in front of it; -1: none, or too early to say. *size: the
 * largest |d| from there on. */
static int64_t first_far(const ls_outcome *c, double *size) {
    double before = 0.0;
    int64_t at = -1;
    *size = 0.0;
    for (int64_t i = 0; i < c->n; i++) {
        const double d = fabs((double)c->scored[i] - (double)c->logprob[i]);
        if (at < 0 && i > 0 && d > fmax(FAR_LEAST, FAR * before)) at = c->n_prompt + i;
        if (at < 0) before = fmax(before, d);
        if (at >= 0) *size = fmax(*size, d);
    }
    return at;
}

/* What a token at a position records stands on keys up to the one before it, so a border is met up to two later. */
ls_status ls_probe_decide_borders(ls_inquiry *q, bool *found, ls_error *err) {
    double sizes[TEXTS];
    int64_t at[TEXTS], n = 0, n_second = 0;
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay, 0, &s, err));
    for (int64_t i = 0; i < s.outcomes.n && n < TEXTS; i++) {
        at[n] = first_far(&s.outcomes.of[i], &sizes[n]);
        n += at[n] >= 0;
    }
    ls_seen_deinit(&s);
    for (int64_t page = PAGE_MOST; page >= PAGE_LEAST && n >= MOST_TELL && !*found; page /= 2) {
        int64_t least = page, most = 0;
        n_second = 0;
        for (int64_t i = 0; i < n; i++) {
            least = at[i] % page < least ? at[i] % page : least;
            most = at[i] % page > most ? at[i] % page : most;
            n_second += at[i] >= LONGER;
        }
        /* Both borders have to be met: one alone is a length. */
        if (most - least > 2 || most > 3 || n_second < 2 || n_second > n - 2) continue;
        *found = ls_quantile(sizes, n, 0.5, 0.0) > LEAST_SIZE;
        if (*found)
            ls_foreign_find(q->f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS, 0.95,
                            "of %d requests of unlike lengths, decoded tokens of %" PRId64
                            " are off by %.2g in the middle from the first border of %" PRId64
                            " tokens on that they meet, and right in front of it",
                            TEXTS, n, ls_quantile(sizes, n, 0.5, 0.0), page);
        break;
    }
    return LS_OK;
}
