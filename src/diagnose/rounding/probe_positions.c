/* Whether decoded tokens are off from one position of the whole on, wherever the prompt ended, as it is where a buffer
 * of so many begins again, or a window or a table ends there. Prompts of any length may be right. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 4, TEXT = 5000, STEPS = 24, LOW = 8, HIGH = 420 };
/* Of requests whose prompts end so far in front of a position, each at another place. */
enum { REQUESTS = 8, NEAREST = 6, APART = 5, NEW = 64, MOST_TELL = 6 };
/* Positions are so much nearer to each other than places in completions are. */
#define NEARER 0.4

static ls_status lay_completions(ls_inquiry *q, int64_t length, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = STEPS;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, TEXT + i, length, err));
    return LS_OK;
}

static ls_status lay_across(ls_inquiry *q, int64_t position, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < REQUESTS; i++) {
        const int64_t n = position - NEAREST - APART * i;
        LS_TRY(ls_requests_plain(q, r, TEXT + 20 + i, n > 1 ? n : 1, err));
    }
    return LS_OK;
}

typedef struct crossing {
    int64_t n, least, most;              /* requests that are off; the positions of their first tokens that are */
    int64_t least_behind, most_behind;   /* the same by how many tokens of the completion are in front */
    int64_t n_first_off, n_off_in_front; /* first tokens off; off so early that no such position is met */
    double size;
} crossing;

static void add_crossing(const ls_foreign *f, const ls_outcome *c, int64_t position, crossing *out) {
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t at = c->n_prompt + i;
        if (!ls_token_off(f, c, i)) continue;
        out->n_first_off += i == 0;
        out->n_off_in_front += at + STEPS < position;
        if (out->n == 0 || at < out->least) out->least = at;
        if (out->n == 0 || at > out->most) out->most = at;
        if (out->n == 0 || i < out->least_behind) out->least_behind = i;
        if (out->n == 0 || i > out->most_behind) out->most_behind = i;
        out->size = fmax(out->size, ls_probe_size(c));
        out->n++;
        return;
    }
}

static ls_status is_off_at(ls_inquiry *q, int64_t length, bool *first, bool *later, ls_error *err) {
    ls_seen s;
    *first = *later = false;
    LS_TRY(ls_foreign_try_laid(q, lay_completions, length, &s, err));
    for (int64_t k = 0; k < s.outcomes.n; k++)
        for (int64_t i = 0; i < s.outcomes.of[k].n; i++)
            *(i == 0 ? first : later) |= ls_token_off(q->f, &s.outcomes.of[k], i);
    ls_seen_deinit(&s);
    return LS_OK;
}

ls_status ls_probe_decide_positions(ls_inquiry *q, bool *found, ls_error *err) {
    const int64_t most = q->runner->sweep->opts.length_max;
    const int64_t high = most > 0 && most < HIGH + NEW ? most - NEW : HIGH;
    crossing of = {0};
    int64_t value, position;
    bool first, later;
    ls_seen s;
    LS_TRY(is_off_at(q, LOW, &first, &later, err));
    if (first || later || high <= LOW) return LS_OK;
    LS_TRY(is_off_at(q, high, &first, &later, err));
    if (first || !later) return LS_OK; /* prompts are off as well, or nothing is */
    LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_LENGTH, LOW, high, lay_completions, &value, err));
    if (value < 0) return LS_OK;
    position = value + STEPS;
    LS_TRY(ls_foreign_try_laid(q, lay_across, position, &s, err));
    for (int64_t k = 0; k < s.outcomes.n; k++) add_crossing(q->f, &s.outcomes.of[k], position, &of);
    ls_seen_deinit(&s);
    *found = of.n >= MOST_TELL && of.n_first_off == 0 && of.n_off_in_front == 0 &&
             (double)(of.most - of.least) <= NEARER * (double)(of.most_behind - of.least_behind);
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_FROM_A_LENGTH, LS_STACK_LONG,
                        fmin(0.95, ls_probe_sure(pow((double)(of.most - of.least + 1) / NEW, (double)(of.n - 1)),
                                                 1.0 - ls_portion(of.n, REQUESTS))),
                        "decoded tokens are off from position %" PRId64 " to %" PRId64 " on, by up to %.2g, in %" PRId64
                        " of %d requests whose completions have %" PRId64 " to %" PRId64
                        " tokens in front of it; first tokens of prompts of any length are right",
                        of.least, of.most, of.size, of.n, REQUESTS, of.least_behind, of.most_behind);
    return LS_OK;
}

/* ---- what has grown ---- */

/* The prompts of the long ones at once, and shorter ones, whose completions are read up to a length of the whole. */
enum { GROWN_PROMPT = 96, GROWN_SHORTER = 24, GROWN_MOST = 48, GROWN_TEXT = 5100, GROWN_STEP = 4 };
#define GROWN_SURE 0.93

static ls_status lay_grown(ls_inquiry *q, int64_t value, int64_t length, ls_trial *trial, ls_requests *r,
                           ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = value - length;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, GROWN_TEXT + i, length, err));
    return LS_OK;
}

static ls_status lay_whole(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    return lay_grown(q, value, GROWN_PROMPT, trial, r, err);
}

static ls_status lay_shorter(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    return lay_grown(q, value, GROWN_PROMPT - GROWN_SHORTER, trial, r, err);
}

static ls_status count_grown(ls_inquiry *q, ls_lay lay, int64_t value, int64_t *n_off, int64_t *n, ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay, value, &s, err));
    *n_off += s.n_sequences_off;
    *n += s.n_sequences;
    ls_seen_deinit(&s);
    return LS_OK;
}

ls_status ls_probe_decide_grown(ls_inquiry *q, bool *found, ls_error *err) {
    int64_t value, off[2] = {0, 0}, n[2] = {0, 0};
    LS_TRY(
        ls_foreign_bisect(q, LS_BOUNDED_LENGTH, GROWN_PROMPT + 1, GROWN_PROMPT + GROWN_MOST, lay_whole, &value, err));
    if (value < 0 || value - GROWN_STEP <= GROWN_PROMPT) return LS_OK;
    for (int beyond = 0; beyond < 2; beyond++) {
        const int64_t at = beyond == 1 ? value + GROWN_STEP : value - GROWN_STEP;
        LS_TRY(count_grown(q, lay_shorter, at, &off[beyond], &n[beyond], err));
        LS_TRY(count_grown(q, lay_whole, at, &off[beyond], &n[beyond], err));
    }
    *found = n[0] >= 2 * TEXTS && off[0] == 0 && off[1] == n[1];
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_FROM_A_LENGTH, LS_STACK_PRESSED, GROWN_SURE,
                        "one at a time sequences are off once they are longer than %" PRId64
                        " tokens, prompt and completion together: behind prompts of %d and of %d tokens %" PRId64
                        " of %" PRId64 " of %" PRId64 " tokens are, and none of %" PRId64 " of %" PRId64 " tokens",
                        value - 1, GROWN_PROMPT, GROWN_PROMPT - GROWN_SHORTER, off[1], n[1], value + GROWN_STEP, n[0],
                        value - GROWN_STEP);
    return LS_OK;
}
