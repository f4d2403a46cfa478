/* Prompts that go on behind one that was there, by where that one ended: a block that is not full may be taken for a
 * full one, which shows at some lengths alone. */
#include <inttypes.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXT = 6900, SHORTEST = 33, LENGTHS = 16, TIMES = 2, MORE = 17 };
#define CHANCE 1e-4

/* Pairs, each of a text of its own; `aside` above 0: what goes on has another text than what is in front. */
static ls_status lay_continued(ls_inquiry *q, int64_t aside, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_CACHED_EXTENDED, trial, NULL);
    trial->max_tokens = 3;
    for (int64_t i = 0; i < TIMES * LENGTHS; i++) {
        const int64_t n = SHORTEST + i % LENGTHS;
        LS_TRY(ls_requests_plain(q, r, TEXT + 2 * aside + i, n, err));
        LS_TRY(ls_requests_plain(q, r, TEXT + 3 * aside + i, n + MORE, err));
    }
    return LS_OK;
}

/* Of each length, how many of those that go on are off; and of all, those that do not. */
static ls_status count_continued(ls_inquiry *q, int64_t aside, int64_t off[LENGTHS], int64_t *n_off, int64_t *n,
                                 ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay_continued, aside, &s, err));
    for (int64_t i = 1; i < s.outcomes.n; i += 2) {
        const bool is_off = ls_sequence_off(q->f, &s.outcomes.of[i]);
        off[i / 2 % LENGTHS] += is_off;
        *n_off += is_off;
        (*n)++;
    }
    ls_seen_deinit(&s);
    return LS_OK;
}

ls_status ls_probe_decide_continued(ls_inquiry *q, bool *found, ls_error *err) {
    int64_t off[LENGTHS] = {0}, of_others[LENGTHS] = {0}, n_off = 0, n = 0, n_others_off = 0, n_others = 0, lengths = 0;
    double chance;
    LS_TRY(count_continued(q, 0, off, &n_off, &n, err));
    if (n_off == 0) return LS_OK;
    LS_TRY(count_continued(q, TIMES * LENGTHS, of_others, &n_others_off, &n_others, err));
    for (int i = 0; i < LENGTHS; i++) lengths += 2 * off[i] > TIMES;
    chance = ls_probe_chance(n_off, n, n_others_off, n_others);
    *found = chance <= CHANCE && n_others_off == 0;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_SNAPSHOT_SHIFTED, LS_STACK_CACHED_EXTENDED, ls_probe_sure(chance, 0.0),
                        "of prompts that go on by %d tokens behind one of %d to %d that was there, %" PRId64
                        " of %" PRId64 " are off, at %" PRId64 " of %d lengths; behind another text none of %" PRId64
                        " is",
                        MORE, SHORTEST, SHORTEST + LENGTHS - 1, n_off, n, lengths, LENGTHS, n_others);
    return LS_OK;
}
