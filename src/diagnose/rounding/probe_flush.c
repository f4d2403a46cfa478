/* Whether prompts are given what a cache kept of others: they have nothing in common with any before and are right
 * when the cache was emptied in front of them, or they come back when many others have taken the room of theirs,
 * or they bring no salt. */
#include <inttypes.h>
#include <math.h>

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

/* ---- what has made room for others ---- */

#define BACK_CHANCE 1e-4
enum { BACK = 12, BACK_TEXT = 4700, EARLY = 2 * BACK, LATE = EARLY + FILLING };

/* Each twice, others, and each once more. What stands between has another text for each `turn`. */
static ls_status lay_back(ls_inquiry *q, int64_t turn, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_CACHED_LONG, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = 3;
    for (int64_t i = 0; i < EARLY; i++) LS_TRY(ls_requests_plain(q, r, BACK_TEXT + i / 2, LENGTH, err));
    for (int64_t i = 0; i < FILLING; i++)
        LS_TRY(ls_requests_plain(q, r, BACK_TEXT + BACK + FILLING * turn + i, LENGTH, err));
    for (int64_t i = 0; i < BACK; i++) LS_TRY(ls_requests_plain(q, r, BACK_TEXT + i, LENGTH, err));
    return LS_OK;
}

/* Of those that come back, how many are off behind both, and how many of these by something else each time. */
static void count_back(const ls_foreign *f, const ls_seen turns[TURNS], int64_t *both, int64_t *other) {
    for (int64_t i = LATE; i < turns[0].outcomes.n && i < turns[1].outcomes.n; i++) {
        const ls_outcome *a = &turns[0].outcomes.of[i], *b = &turns[1].outcomes.of[i];
        if (!ls_sequence_off(f, a) || !ls_sequence_off(f, b)) continue;
        ++*both;
        *other += ls_probe_apart(a, b) > f->limit;
    }
}

ls_status ls_probe_decide_evicted(ls_inquiry *q, bool *found, ls_error *err) {
    int64_t off[2] = {0, 0}, n[2] = {0, 0}, both = 0, other = 0; /* at first and at once; when others were there */
    ls_seen turns[TURNS] = {0};
    double chance, most = 0.0;
    bool crossed;
    ls_status status = LS_OK;
    for (int64_t k = 0; k < TURNS && status == LS_OK; k++) {
        status = ls_foreign_try_laid(q, lay_back, k, &turns[k], err);
        for (int64_t i = 0; i < turns[k].outcomes.n; i++) {
            if (i >= (k == 0 ? EARLY : 0) && i < LATE) continue; /* a second time nothing comes first */
            n[i >= LATE]++;
            off[i >= LATE] += ls_sequence_off(q->f, &turns[k].outcomes.of[i]);
        }
        most = fmax(most, turns[k].abs_max);
    }
    if (status == LS_OK) count_back(q->f, turns, &both, &other);
    for (int64_t k = 0; k < TURNS; k++) ls_seen_deinit(&turns[k]);
    LS_TRY(status);
    chance = ls_probe_chance(off[1], n[1], off[0], n[0]);
    crossed = 2 * other > both;
    *found = chance <= BACK_CHANCE && off[0] == 0;
    if (*found)
        ls_foreign_find(q->f, crossed ? LS_CAUSE_CACHE_CROSSED : LS_CAUSE_SNAPSHOT_SHIFTED, LS_STACK_CACHED_LONG,
                        ls_probe_sure(chance, 0.0),
                        "prompts of %d tokens that come back when %d others were there are off by up to %.2g, %" PRId64
                        " of %" PRId64 ", and none of %" PRId64
                        " that come first or come back at once; when the others have other texts %" PRId64
                        " of %" PRId64 " are off by something else: %s",
                        LENGTH, FILLING, most, off[1], n[1], n[0], other, both,
                        crossed ? "they are given what has taken their room" : "what is restored is wrong");
    return LS_OK;
}

/* ---- what is given to those that bring no salt ---- */

#define UNSALTED_CHANCE 1e-4
#define UNSALTED_SURE 0.86 /* other clients may have left it */
enum { UNSALTED = 8, UNSALTED_TEXT = 4960, UNSALTED_TIMES = 2 };

/* Of several lengths, the first so short that no block of a cache is. `salted`: the control. */
static ls_status lay_unsalted(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    static const int64_t lengths[UNSALTED] = {1, 3, 7, 12, 2, 20, 5, 40};
    const int64_t salted = value % 2, k = value / 2;
    trial_of(q, trial);
    if (!salted) trial->outside = LS_OUTSIDE_UNSALTED;
    for (int64_t i = 0; i < UNSALTED; i++)
        LS_TRY(ls_requests_plain(q, r, UNSALTED_TEXT + UNSALTED * k + i, lengths[i], err));
    return LS_OK;
}

ls_status ls_probe_decide_unsalted(ls_inquiry *q, bool *found, ls_error *err) {
    int64_t off[2] = {0, 0}, n[2] = {0, 0}; /* without a salt, and with one */
    double chance, most = 0.0;
    bool first = true;
    if ((q->runner->door->subject->does & LS_OUTSIDE_UNSALTED) == 0) return LS_OK;
    for (int64_t k = 0; k < UNSALTED_TIMES; k++) {
        for (int salted = 0; salted < 2; salted++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_unsalted, 2 * k + salted, &s, err));
            off[salted] += s.n_sequences_off;
            n[salted] += s.n_sequences;
            if (!salted) most = fmax(most, s.abs_max);
            if (!salted) first = first && s.outcomes.n > 0 && ls_sequence_off(q->f, &s.outcomes.of[0]);
            ls_seen_deinit(&s);
            if (off[0] == 0) return LS_OK;
        }
    }
    chance = ls_probe_chance(off[0], n[0], off[1], n[1]);
    *found = chance <= UNSALTED_CHANCE && off[1] == 0;
    if (*found)
        ls_foreign_find(q->f, first ? LS_CAUSE_SNAPSHOT_SHIFTED : LS_CAUSE_CACHE_HITS, LS_STACK_CACHED_SAME,
                        first ? UNSALTED_SURE : 0.7,
                        "requests that bring no salt of the prefix cache are off by up to %.2g, %" PRId64 " of %" PRId64
                        ", of texts that were never sent before, and with a salt none of %" PRId64
                        ". The first of all, of one token, %s: what is kept for all of them is wrong",
                        most, off[0], n[0], n[1], first ? "is so as well" : "is not");
    return LS_OK;
}
