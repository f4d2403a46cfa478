/* Whether texts are off by what they say and not by how long they are: texts of one length are off and right, and one
 * that is off is shortened to the few tokens that make it so. Where these make others off when they meet and not when
 * they stand apart, as two tokens become one on the way through text, other tokens are read than were sent. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 12, TEXT = 4740, LENGTH_MOST = 48, CORE_LEAST = 2, CORE_MOST = 4, CORES = 3, NEW = 3 };
enum { CONTEXTS = 8, ROUNDS = 3, IN_FRONT = 4, BEHIND = 2, OTHER_TEXT = 4800 };
#define CHANCE 1e-4
/* What is right is so by far. */
#define RIGHT 0.2

static void trial_of(const ls_inquiry *q, ls_trial *trial) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = NEW;
}

static ls_status lay_texts_of(ls_inquiry *q, int64_t length, ls_trial *trial, ls_requests *r, ls_error *err) {
    trial_of(q, trial);
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, TEXT + i, length, err));
    return LS_OK;
}

/* Texts of one length that are right, and those that are off by `from`. */
typedef struct parted {
    int64_t n_right, n_off, off[TEXTS];
} parted;

static ls_status part(ls_inquiry *q, int64_t length, double right, double from, parted *out, ls_error *err) {
    ls_seen s;
    *out = (parted){0};
    LS_TRY(ls_foreign_try_laid(q, lay_texts_of, length, &s, err));
    for (int64_t i = 0; i < s.outcomes.n; i++) {
        const double size = ls_probe_size(&s.outcomes.of[i]);
        out->n_right += ls_probe_could_be_off(&s.outcomes.of[i]) && size <= right;
        if (size > from) out->off[out->n_off++] = TEXT + i;
    }
    ls_seen_deinit(&s);
    return LS_OK;
}

ls_status ls_probe_length_decides(ls_inquiry *q, int64_t length, double cut, bool *decides, ls_error *err) {
    parted p;
    LS_TRY(part(q, length + length / 2 + 1, cut, cut, &p, err));
    *decides = 4 * p.n_right <= TEXTS;
    return LS_OK;
}

/* ---- the tokens that make a text off ---- */

static ls_status is_off(ls_inquiry *q, const int32_t *ids, int64_t n, double from, bool *out, ls_error *err) {
    const ls_prompt prompt = {ids, n};
    ls_seen s;
    ls_trial trial;
    trial_of(q, &trial);
    LS_TRY(ls_foreign_try(q, &trial, 0, &prompt, 1, &s, err));
    *out = s.outcomes.n > 0 && ls_probe_size(&s.outcomes.of[0]) > from;
    ls_seen_deinit(&s);
    return LS_OK;
}

/* The shortest end of a text that is off, and of that the shortest beginning. */
static ls_status find_core(ls_inquiry *q, const int32_t *ids, int64_t n, double from, int64_t *first, int64_t *last,
                           ls_error *err) {
    int64_t low = 0, high = n;
    bool off;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        LS_TRY(is_off(q, ids + middle, n - middle, from, &off, err));
        *(off ? &low : &high) = middle;
    }
    *first = low;
    for (low = 0, high = n - *first; high - low > 1;) {
        const int64_t middle = (low + high) / 2;
        LS_TRY(is_off(q, ids + *first, middle, from, &off, err));
        *(off ? &high : &low) = middle;
    }
    *last = *first + high;
    return LS_OK;
}

/* In other texts, and in as long ones the same tokens with another one between any two. */
static ls_status try_core(ls_inquiry *q, const int32_t *core, int64_t n_core, int64_t text, bool apart, ls_seen *out,
                          ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    trial_of(q, &trial);
    for (int64_t i = 0; i < CONTEXTS; i++) {
        const int64_t step = apart ? 2 : 1, first = IN_FRONT + n_core - 1 - step * (n_core - 1);
        int32_t ids[IN_FRONT + CORE_MOST + BEHIND];
        for (int64_t k = 0; k < IN_FRONT + n_core + BEHIND; k++) ids[k] = ls_plain_token(q, text + i, k);
        for (int64_t k = 0; k < n_core; k++) ids[first + step * k] = core[k];
        LS_TRY_DONE(ls_requests_add(r, ids, IN_FRONT + n_core + BEHIND, err));
    }
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, out, err));
done:
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

static ls_status weigh_core(ls_inquiry *q, const int32_t *core, int64_t n_core, int64_t length, const parted *p,
                            double from, bool *found, ls_error *err) {
    int64_t off[2] = {0, 0}, n[2] = {0, 0};
    double chance = 1.0;
    for (int64_t k = 0; k < ROUNDS && chance > CHANCE && off[0] >= 2 * off[1]; k++) {
        for (int apart = 0; apart < 2; apart++) {
            ls_seen s = {0};
            const ls_status status = try_core(q, core, n_core, OTHER_TEXT + CONTEXTS * k, apart, &s, err);
            for (int64_t i = 0; i < s.outcomes.n; i++) off[apart] += ls_probe_size(&s.outcomes.of[i]) > from;
            n[apart] += s.outcomes.n;
            ls_seen_deinit(&s);
            LS_TRY(status);
        }
        chance = ls_probe_chance(off[0], n[0], off[1], n[1]);
    }
    *found = chance <= CHANCE && 4 * off[0] >= 3 * n[0];
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_OTHER_TOKENS, LS_STACK_LENGTHS,
                        ls_probe_sure(chance, 1.0 - ls_portion(off[0], n[0])),
                        "of %d texts of %" PRId64 " tokens %" PRId64 " are off and %" PRId64
                        " right. One that is off is so by %" PRId64
                        " tokens, from %d to %d: other texts that have "
                        "these are off, %" PRId64 " of %" PRId64 ", and where another one stands between them %" PRId64
                        " of %" PRId64 ". So tokens become others where they meet, as they do on the way through text",
                        TEXTS, length, p->n_off, p->n_right, n_core, (int)core[0], (int)core[n_core - 1], off[0], n[0],
                        off[1], n[1]);
    return LS_OK;
}

/* Among requests alone a longer one is right where a shorter one is off. */
static bool lengths_mix(const ls_foreign *f, double right, double from) {
    const ls_outcomes *o = &f->seen[LS_STACK_LENGTHS].outcomes;
    int64_t shortest_off = INT64_MAX, longest_right = 0;
    for (int64_t s = 0; s < o->n; s++) {
        const ls_outcome *c = &o->of[s];
        const double size = ls_probe_size(c);
        if (size > from && c->n_prompt < shortest_off) shortest_off = c->n_prompt;
        if (ls_probe_could_be_off(c) && size <= right && c->n_prompt > longest_right) longest_right = c->n_prompt;
    }
    return longest_right > shortest_off;
}

ls_status ls_probe_decide_content(ls_inquiry *q, bool *found, ls_error *err) {
    static const int64_t lengths[] = {8, LENGTH_MOST, 20};
    const double from = ls_probe_moved_from(q), right = RIGHT * from;
    if (!lengths_mix(q->f, right, from)) return LS_OK;
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        parted p;
        LS_TRY(part(q, lengths[k], right, from, &p, err));
        if (p.n_right < 2 || p.n_off < 2) continue;
        for (int64_t one = 0; one < CORES && one < p.n_off && !*found; one++) {
            int32_t ids[LENGTH_MOST];
            int64_t first, last;
            for (int64_t i = 0; i < lengths[k]; i++) ids[i] = ls_plain_token(q, p.off[one], i);
            LS_TRY(find_core(q, ids, lengths[k], from, &first, &last, err));
            if (last - first >= CORE_LEAST && last - first <= CORE_MOST)
                LS_TRY(weigh_core(q, ids + first, last - first, lengths[k], &p, from, found, err));
        }
        break;
    }
    return LS_OK;
}
