/* Whether prompts that have nothing in common with any before are given what a cache kept of others: they are off, and
 * right when the cache was emptied in front of them. */
#include <inttypes.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXT = 4300, FILLING = 48, COUNTED = 16, LENGTH = 100, TURNS = 2 };
#define CHANCE 1e-5

static void trial_of(const ls_inquiry *q, ls_trial *trial) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = 3;
}

/* So many blocks that a cache is full of them; the last ones are counted. */
static ls_status lay_filling(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    trial_of(q, trial);
    for (int64_t i = 0; i < FILLING; i++) LS_TRY(ls_requests_plain(q, r, text + i, LENGTH, err));
    return LS_OK;
}

/* Twice, with a flush between. */
static ls_status lay_flushed(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    trial_of(q, trial);
    trial->rounds = 2;
    trial->outside = LS_OUTSIDE_RESET;
    return ls_requests_plain(q, r, text, LENGTH, err);
}

static ls_status count_off(ls_inquiry *q, ls_lay lay, int64_t text, int64_t n_last, int64_t *off, int64_t *n,
                           ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay, text, &s, err));
    for (int64_t i = s.outcomes.n - n_last; i >= 0 && i < s.outcomes.n; i++, (*n)++)
        *off += ls_sequence_off(q->f, &s.outcomes.of[i]);
    ls_seen_deinit(&s);
    return LS_OK;
}

ls_status ls_probe_decide_flushed(ls_inquiry *q, bool *found, ls_error *err) {
    int64_t full = 0, n_full = 0, flushed = 0, n_flushed = 0;
    double chance;
    if ((q->runner->door->subject->does & LS_OUTSIDE_RESET) == 0) return LS_OK;
    for (int64_t k = 0; k < TURNS; k++) {
        const int64_t text = TEXT + 2 * FILLING * k;
        LS_TRY(count_off(q, lay_filling, text, COUNTED, &full, &n_full, err));
        if (full == 0) return LS_OK;
        for (int64_t i = 0; i < COUNTED; i++)
            LS_TRY(count_off(q, lay_flushed, text + FILLING + i, 1, &flushed, &n_flushed, err));
    }
    chance = ls_probe_chance(full, n_full, flushed, n_flushed);
    *found = chance <= CHANCE && 4 * flushed < full;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_CACHE_CROSSED, LS_STACK_CACHED_RESET,
                        ls_probe_sure(chance, ls_portion(flushed, n_flushed)),
                        "of prompts of %d tokens that were never sent before %" PRId64 " of %" PRId64
                        " are off, behind a flush of the prefix cache %" PRId64 " of %" PRId64
                        ", and behind others once more: they are given what was kept of others",
                        LENGTH, full, n_full, flushed, n_flushed);
    return LS_OK;
}
