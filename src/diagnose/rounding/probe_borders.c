/* Decoded tokens that are off from the first border of a page on, wherever in the completion that is. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Prompts of unlike lengths whose completions go over the first border of pages of 16, and over the second. */
enum { TEXTS = 8, NEW = 30, SHORT = 5, LONGER = 21, PAGE_LEAST = 8, PAGE_MOST = 32, PAGES = 3, MOST_TELL = 6 };
/* Of prompts that meet one border of a larger page, others that begin so far in front of its second one. */
enum { IN_FRONT = 20, BEHIND_MOST = 3 };
/* A kernel may begin behind a border as well; bf16 makes less than this of it in the middle. */
#define LEAST_SIZE 0.05
/* What is far beyond the tokens in front of it. */
#define FAR 100.0
#define FAR_LEAST 1e-3

/* `value`: a border that all of them meet; 0: the first two of pages of 16. */
static ls_status lay(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++)
        LS_TRY(ls_requests_plain(
            q, r, 3660 + i, value > 0 ? value - IN_FRONT + i : (i < TEXTS / 2 ? SHORT : LONGER - TEXTS / 2) + i, err));
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

typedef struct far_tokens {
    double sizes[TEXTS];
    int64_t at[TEXTS], behind[TEXTS], n; /* positions; tokens that the completion has in front of it */
} far_tokens;

static ls_status find_far(ls_inquiry *q, int64_t border, far_tokens *out, ls_error *err) {
    ls_seen s;
    out->n = 0;
    LS_TRY(ls_foreign_try_laid(q, lay, border, &s, err));
    for (int64_t i = 0; i < s.outcomes.n && out->n < TEXTS; i++) {
        out->at[out->n] = first_far(&s.outcomes.of[i], &out->sizes[out->n]);
        out->behind[out->n] = out->at[out->n] - s.outcomes.of[i].n_prompt;
        out->n += out->at[out->n] >= 0;
    }
    ls_seen_deinit(&s);
    return LS_OK;
}

/* What a token at a position records stands on keys up to the one before it, so a border is met up to two later. */
static bool is_at(const far_tokens *f, int64_t border, int64_t of) {
    int64_t least = INT64_MAX, most = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const int64_t behind = of > 0 ? f->at[i] % of : f->at[i] - border;
        if (behind < least) least = behind;
        if (behind > most) most = behind;
    }
    return f->n >= MOST_TELL && least >= 0 && most - least < BEHIND_MOST && most <= BEHIND_MOST;
}

/* Both borders have to be met: one alone is a length. */
static bool has_both_borders(const far_tokens *f) {
    int64_t n_second = 0;
    for (int64_t i = 0; i < f->n; i++) n_second += f->at[i] >= LONGER;
    return n_second >= 2 && n_second <= f->n - 2;
}

/* Prompts are of unlike lengths: it is how long completions are that tells. */
enum { BEHIND_LEAST = 4 };
static void decide_completions(ls_inquiry *q, const far_tokens *f, bool *found) {
    int64_t least = INT64_MAX, most = 0;
    double sizes[TEXTS];
    for (int64_t i = 0; i < f->n; i++) {
        if (f->behind[i] < least) least = f->behind[i];
        if (f->behind[i] > most) most = f->behind[i];
        sizes[i] = f->sizes[i];
    }
    if (f->n < MOST_TELL || least < BEHIND_LEAST || most - least >= BEHIND_MOST || most > NEW - BEHIND_LEAST) return;
    if (!(ls_quantile(sizes, f->n, 0.5, 0.0) > LEAST_SIZE)) return;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_FROM_A_LENGTH, LS_STACK_LENGTHS,
                    ls_probe_sure(pow((double)BEHIND_MOST / NEW, (double)(f->n - 1)), 1.0 - ls_portion(f->n, TEXTS)),
                    "of %d requests of unlike lengths, %" PRId64 " are off from the token number %" PRId64
                    " to %" PRId64 " of their completions on, by up to %.2g, and right in front of it",
                    TEXTS, f->n, least + 1, most + 1, sizes[f->n - 1]);
}

ls_status ls_probe_decide_borders(ls_inquiry *q, bool *found, ls_error *err) {
    far_tokens f;
    int64_t page = PAGE_MOST;
    LS_TRY(find_far(q, 0, &f, err));
    if (is_at(&f, PAGE_MOST, 0)) {
        far_tokens second;
        LS_TRY(find_far(q, 2 * PAGE_MOST, &second, err));
        *found = is_at(&second, 2 * PAGE_MOST, 0);
    }
    for (; page >= PAGE_LEAST && !*found && !(is_at(&f, 0, page) && has_both_borders(&f)); page /= 2) continue;
    *found = (*found || page >= PAGE_LEAST) && ls_quantile(f.sizes, f.n, 0.5, 0.0) > LEAST_SIZE;
    if (*found)
        ls_foreign_find(
            q->f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS,
            ls_probe_sure(PAGES * pow((BEHIND_MOST + 1.0) / (double)page, (double)f.n), 1.0 - ls_portion(f.n, TEXTS)),
            "of %d requests of unlike lengths, decoded tokens of %" PRId64
            " are off by %.2g in the middle from the first border of %" PRId64
            " tokens on that they meet, and right in front of it",
            TEXTS, f.n, ls_quantile(f.sizes, f.n, 0.5, 0.0), page);
    else
        decide_completions(q, &f, found);
    return LS_OK;
}
