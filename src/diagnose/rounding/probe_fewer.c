/* Answers of fewer tokens than were asked for, though nothing has ended them: ids went through text and back, where
 * some are joined, or some were left out, so that records no longer stand beside their tokens. Answers that are whole
 * are right then, and so is each of one token, in which nothing is lost. */
#include <inttypes.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 24, TEXT = 5240, LENGTH = 7, NEW = 16, FEWER_LEAST = 4 };
#define AT_FIRST 0.01 /* chance, of the requests that have been there anyway */
#define CHANCE 1e-4

static ls_status lay_answers(ls_inquiry *q, int64_t max_tokens, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = max_tokens;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, TEXT + i, LENGTH, err));
    return LS_OK;
}

typedef struct parted {
    int64_t n[2], off[2]; /* whole answers, and those of fewer tokens */
    int64_t n_inside;     /* of the latter: off in front of the last token, so that no end is what is off */
} parted;

static void part_answers(const ls_foreign *f, const ls_outcomes *o, int64_t max_tokens, parted *out) {
    for (int64_t s = 0; s < o->n; s++) {
        const ls_outcome *c = &o->of[s];
        const bool fewer = c->n < max_tokens;
        bool inside = false;
        if (c->n == 0 || c->lacks) continue;
        for (int64_t i = 0; i + 1 < c->n; i++) inside = inside || ls_token_off(f, c, i);
        out->n[fewer]++;
        out->off[fewer] += ls_sequence_off(f, c);
        out->n_inside += fewer && inside;
    }
}

static double chance_of(const parted *p) { return ls_probe_chance(p->off[1], p->n[1], p->off[0], p->n[0]); }

static ls_status try_texts(ls_inquiry *q, int64_t max_tokens, parted *out, ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay_answers, max_tokens, &s, err));
    part_answers(q->f, &s.outcomes, max_tokens, out);
    ls_seen_deinit(&s);
    return LS_OK;
}

ls_status ls_probe_decide_fewer(ls_inquiry *q, bool *found, ls_error *err) {
    parted seen = {0}, many = {0}, one = {0};
    double chance;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        ls_trial trial;
        ls_stack_trial(q, ls_probe_solo[r], &trial, NULL);
        part_answers(q->f, &q->f->seen[ls_probe_solo[r]].outcomes, trial.max_tokens, &seen);
    }
    if (seen.off[1] < 2 || chance_of(&seen) > AT_FIRST) return LS_OK;
    LS_TRY(try_texts(q, NEW, &many, err));
    LS_TRY(try_texts(q, 1, &one, err));
    chance = chance_of(&many);
    *found = many.n[1] >= FEWER_LEAST && chance <= CHANCE && 2 * many.n_inside > many.n[1] && one.n[0] > 0 &&
             one.off[0] == 0;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_OTHER_RECORDS, LS_STACK_LENGTHS,
                        ls_probe_sure(chance, ls_portion(many.off[0], many.n[0])),
                        "%" PRId64 " of %" PRId64 " answers have fewer tokens than were asked for, and %" PRId64
                        " of these are off; of those that "
                        "have all of them %" PRId64 " of %" PRId64 " are, and of answers of one token none of %" PRId64
                        ": tokens are joined or left out, as on a way through text and back, and records are not",
                        many.n[1], many.n[0] + many.n[1], many.off[1], many.off[0], many.n[0], one.n[0]);
    return LS_OK;
}
