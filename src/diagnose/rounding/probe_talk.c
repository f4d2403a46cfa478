/* What a server keeps of a completion: a prompt that goes on behind an earlier prompt and what was generated for it is
 * a hit of keys and states that decode has left. A text behind itself is a hit of what prefill has left, and behind
 * another one it is none. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "diagnose/rounding/inquiry.h"

/* Completions that go over a border of 128 tokens, and so over those of smaller blocks. */
enum {
    TEXTS = 3,
    ROUNDS = 3,
    LENGTH = 121,
    NEW = 12,
    MORE = 5,
    WHOLE = LENGTH + NEW + MORE,
    TEXT = 4600,
    STRANGE = 500
};

/* What stands in front of the request that is looked at. */
typedef enum before { BEHIND_TURN = 0, BEHIND_ITSELF, BEHIND_OTHER, BEFORES } before;

typedef struct counts {
    int64_t n[BEFORES], off[BEFORES];
} counts;

static void greedy(const ls_inquiry *q, ls_trial *trial) {
    ls_stack_trial(q, LS_STACK_CACHED_SHARED, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = NEW;
}

static ls_status lay_first(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    greedy(q, trial);
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, text + i, LENGTH, err));
    return LS_OK;
}

/* A pair, of which the second goes on behind what is generated for the first. */
static ls_status add_turn(ls_inquiry *q, int64_t text, const ls_outcome *first, ls_requests *r, ls_error *err) {
    int32_t ids[WHOLE];
    if (first->n < NEW) return LS_OK;
    for (int64_t k = 0; k < WHOLE; k++)
        ids[k] = k >= LENGTH && k < LENGTH + NEW ? first->completion[k - LENGTH] : ls_plain_token(q, text, k);
    LS_TRY(ls_requests_add(r, ids, LENGTH, err));
    return ls_requests_add(r, ids, WHOLE, err);
}

static ls_status add_pairs(ls_inquiry *q, before what, int64_t text, ls_requests *r, ls_error *err) {
    ls_seen s = {0};
    ls_status status = LS_OK;
    if (what == BEHIND_TURN) LS_TRY_DONE(ls_foreign_try_laid(q, lay_first, text, &s, err));
    for (int64_t i = 0; i < TEXTS; i++) {
        const int64_t own = text + STRANGE * (int64_t)what + i;
        if (what == BEHIND_TURN) {
            if (i < s.outcomes.n) LS_TRY_DONE(add_turn(q, own, &s.outcomes.of[i], r, err));
            continue;
        }
        LS_TRY_DONE(ls_requests_plain(q, r, what == BEHIND_ITSELF ? own : own + STRANGE, WHOLE, err));
        LS_TRY_DONE(ls_requests_plain(q, r, own, WHOLE, err));
    }
done:
    ls_seen_deinit(&s);
    return status;
}

/* Of each pair the second. */
static ls_status count_off(ls_inquiry *q, before what, int64_t text, counts *out, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_seen s = {0};
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    LS_TRY_DONE(add_pairs(q, what, text, r, err));
    if (r->n == 0) goto done;
    greedy(q, &trial);
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &s, err));
    for (int64_t i = 1; i < s.outcomes.n; i += 2) {
        out->n[what]++;
        out->off[what] += s.look == LS_LOOK_OFF && ls_sequence_off(q->f, &s.outcomes.of[i]);
    }
    if (what == BEHIND_TURN && out->off[what] > 0 && q->runner->sweep->n_repro == 0)
        LS_TRY_DONE(ls_sweep_keep_repro(q->runner->sweep, r->of, r->n, &trial, err));
done:
    ls_seen_deinit(&s);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

static ls_status count_rounds(ls_inquiry *q, counts *k, ls_error *err) {
    for (int64_t round = 0; round < ROUNDS; round++) {
        LS_TRY(count_off(q, BEHIND_TURN, TEXT + TEXTS * round, k, err));
        if (2 * k->off[BEHIND_TURN] <= k->n[BEHIND_TURN]) return LS_OK;
        LS_TRY(count_off(q, BEHIND_ITSELF, TEXT + TEXTS * round, k, err));
        LS_TRY(count_off(q, BEHIND_OTHER, TEXT + TEXTS * round, k, err));
    }
    return LS_OK;
}

#define TALK_CHANCE 1e-4
ls_status ls_probe_decide_talk(ls_inquiry *q, bool *found, ls_error *err) {
    counts k = {0};
    double chance;
    *found = false;
    if (q->talk_decided || ls_stack_refused(q, LS_STACK_CACHED_SHARED) != NULL || ls_clock_seconds() > q->climb_end)
        return LS_OK;
    q->talk_decided = true;
    LS_TRY(count_rounds(q, &k, err));
    chance = ls_probe_chance(k.off[BEHIND_TURN], k.n[BEHIND_TURN], k.off[BEHIND_ITSELF] + k.off[BEHIND_OTHER],
                             k.n[BEHIND_ITSELF] + k.n[BEHIND_OTHER]);
    *found = chance < TALK_CHANCE;
    if (!*found) {
        ls_sweep_drop_repro(q->runner->sweep);
        return LS_OK;
    }
    ls_foreign_find(q->f, LS_CAUSE_CACHE_HITS, LS_STACK_CACHED_EXTENDED,
                    ls_probe_sure(chance, 1.0 - ls_portion(k.off[BEHIND_TURN], k.n[BEHIND_TURN])),
                    "prompts that go on behind an earlier one and its completion: %" PRId64 " of %" PRId64
                    " are off. Behind themselves %" PRId64 " of %" PRId64 " are, and behind others %" PRId64
                    " of %" PRId64 ": it is what decode leaves",
                    k.off[BEHIND_TURN], k.n[BEHIND_TURN], k.off[BEHIND_ITSELF], k.n[BEHIND_ITSELF], k.off[BEHIND_OTHER],
                    k.n[BEHIND_OTHER]);
    return LS_OK;
}
