/* What the experiments mean. Each rule looks for one family, and says how sure it is; where two families look alike, it
 * runs the trial that tells them apart. An experiment that is clean is weak evidence: the suspect may not obey its
 * lever. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

static bool off(const ls_inquiry *q, ls_stack_experiment r) { return ls_stack_is_off(q, r); }
static bool clean(const ls_inquiry *q, ls_stack_experiment r) { return q->f->seen[r].look == LS_LOOK_CLEAN; }

static bool off_between(const ls_inquiry *q, int from, int to) {
    for (int r = from; r <= to; r++)
        if (off(q, (ls_stack_experiment)r)) return true;
    return false;
}

/* ---- trials that tell causes apart ---- */

/* One request among n - 1 neighbours, at place `at`. */
static ls_status try_among(ls_inquiry *q, int64_t n, int64_t at, int64_t neighbours, bool unequal, ls_seen *seen,
                           ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    ls_stack_trial(q, LS_STACK_PAIR, &trial, NULL);
    trial.levers.batch = n;
    trial.levers.slots = n > 64 ? n : 64;
    for (int64_t i = 0; i < n; i++)
        LS_TRY_DONE(ls_requests_plain(q, r, i == at ? 1000 : neighbours + i, i == at || !unequal ? 9 : 14, err));
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, seen, err));
done:
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

/* What the neighbours do to one request. */
typedef struct company {
    double content;           /* largest difference that other neighbours of the same shape make */
    bool off_first, off_last; /* at the first and at the last place */
    bool prompt_off;          /* its first token is */
} company;

static double apart(const ls_foreign *f, const ls_outcome *a, const ls_outcome *b) {
    double most = 0.0;
    for (int64_t i = 0; i < a->n && i < b->n; i++) {
        if (ls_token_off(f, a, i) || ls_token_off(f, b, i))
            most = fmax(most, fabs((double)a->logprob[i] - (double)b->logprob[i]));
        if (a->completion[i] != b->completion[i]) break;
    }
    return most;
}

static ls_status keep_company(ls_inquiry *q, int64_t n, bool unequal, company *out, ls_error *err) {
    memset(out, 0, sizeof *out);
    for (int place = 0; place < 2; place++) {
        const int64_t at = place == 0 ? 0 : n - 1;
        ls_seen one, two;
        LS_TRY(try_among(q, n, at, 1100, unequal, &one, err));
        LS_TRY(try_among(q, n, at, 1400, unequal, &two, err));
        if (one.outcomes.n > at && two.outcomes.n > at) {
            const ls_outcome *a = &one.outcomes.of[at], *b = &two.outcomes.of[at];
            const bool is_off = ls_sequence_off(q->f, a) || ls_sequence_off(q->f, b);
            out->content = fmax(out->content, apart(q->f, a, b));
            if (place == 0) out->off_first = is_off;
            if (place == 1) out->off_last = is_off;
            out->prompt_off =
                out->prompt_off || (a->n > 0 && ls_token_off(q->f, a, 0)) || (b->n > 0 && ls_token_off(q->f, b, 0));
        }
        ls_seen_deinit(&one);
        ls_seen_deinit(&two);
    }
    return LS_OK;
}

static ls_status lay_drawn_slots(ls_inquiry *q, int64_t at_once, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_PAIR, trial, NULL);
    trial->levers.batch = at_once - 1;
    trial->levers.slots = 3 * at_once;
    trial->levers.policy = LS_POLICY_RANDOM;
    trial->max_tokens = 3;
    for (int64_t i = 0; i < 72; i++) LS_TRY(ls_requests_plain(q, r, 2800 + i, 4, err));
    return LS_OK;
}

/* One long request keeps its slot while short ones come and go in all others. */
static ls_status lay_kept_slot(ls_inquiry *q, int64_t at_once, ls_trial *trial, ls_requests *r, ls_error *err) {
    LS_TRY(lay_drawn_slots(q, at_once, trial, r, err));
    r->n = r->n_ids = 0;
    trial->levers.batch = 2;
    trial->levers.policy = LS_POLICY_FIFO;
    trial->levers.chunk = 1;
    for (int64_t i = 0; i < 72; i++) LS_TRY(ls_requests_plain(q, r, 2800 + i, i == 0 ? 4 * at_once : 1, err));
    return LS_OK;
}

/* Fewer at once than are off, in slots as far apart: what is off then follows the numbers of slots and not of rows. */
static ls_status slots_matter(ls_inquiry *q, int64_t at_once, bool *matter, ls_error *err) {
    static const ls_lay ways[2] = {lay_drawn_slots, lay_kept_slot};
    *matter = false;
    for (int i = 0; i < 2 && !*matter; i++) {
        ls_seen seen;
        LS_TRY(ls_foreign_try_laid(q, ways[i], at_once, &seen, err));
        *matter = seen.outcomes.n > 0 && seen.look == LS_LOOK_OFF;
        ls_seen_deinit(&seen);
    }
    return LS_OK;
}

static ls_status lay_slot(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const ls_stack_experiment experiment = off(q, LS_STACK_SLOT)       ? LS_STACK_SLOT
                                           : off(q, LS_STACK_FAR_SLOT) ? LS_STACK_FAR_SLOT
                                                                       : LS_STACK_FARTHER_SLOT;
    uint64_t needs;
    ls_stack_trial(q, experiment, trial, &needs);
    ls_ask_for_slot(trial, q->slot_way, value, ls_slot_of(experiment) + 1, &needs);
    return ls_requests_plain(q, r, 2600, 9, err);
}

/* As many at once as there are slots, the first request in the last of them. */
static ls_status lay_batch_downwards(ls_inquiry *q, int64_t n, ls_trial *trial, ls_requests *r, ls_error *err) {
    LS_TRY(ls_lay_batch(q, n, trial, r, err));
    trial->levers.slots = n;
    trial->levers.policy = LS_POLICY_HIGHEST;
    return LS_OK;
}

/* With the newest request in a low slot: whether the one in the highest is off. True where slots are not told. */
static ls_status highest_is_off(ls_inquiry *q, int64_t n, bool *is_off, ls_error *err) {
    ls_seen at;
    int64_t highest = 0;
    *is_off = true;
    LS_TRY(ls_foreign_try_laid(q, lay_batch_downwards, n, &at, err));
    for (int64_t s = 0; s < at.outcomes.n; s++)
        if (at.outcomes.of[s].slot > at.outcomes.of[highest].slot) highest = s;
    if (at.outcomes.n == n && at.outcomes.of[highest].slot >= 0 && highest < n - 1)
        *is_off = ls_sequence_off(q->f, &at.outcomes.of[highest]);
    ls_seen_deinit(&at);
    return LS_OK;
}

/* Whether of so many at once two are off at most, one of them in the slot that was not there with one less: it follows
 * the slot, and not the place of its request among the others. */
static ls_status newest_is_off(ls_inquiry *q, int64_t n, bool *is_off, ls_error *err) {
    ls_seen at;
    LS_TRY(ls_foreign_try_laid(q, ls_lay_batch, n, &at, err));
    *is_off = at.n_sequences_off <= 2 && at.outcomes.n == n && ls_sequence_off(q->f, &at.outcomes.of[n - 1]);
    ls_seen_deinit(&at);
    return *is_off ? highest_is_off(q, n, is_off, err) : LS_OK;
}

static ls_status lay_chunk(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_CHUNK1, trial, NULL);
    trial->levers.chunk = value;
    trial->max_tokens = 3;
    for (int64_t i = 0; i < 3; i++) LS_TRY(ls_requests_plain(q, r, 2700 + i, 2 * value, err));
    return LS_OK;
}

/* The share of n requests at once whose largest |d| is above what rounding makes of any token alone: a kernel that is
 * chosen by the rows computes all of them, if by too little to call each one off. */
static ls_status share_moved(ls_inquiry *q, int64_t n, double *share, ls_error *err) {
    ls_seen seen;
    int64_t moved = 0;
    LS_TRY(ls_foreign_try_laid(q, ls_lay_batch, n, &seen, err));
    for (int64_t s = 0; s < seen.outcomes.n; s++) {
        const ls_outcome *c = &seen.outcomes.of[s];
        double most = 0.0;
        for (int64_t i = 0; i < c->n; i++) most = fmax(most, fabs((double)c->scored[i] - (double)c->logprob[i]));
        moved += most > 2.0 * q->f->floor_q90;
    }
    *share = ls_portion(moved, seen.outcomes.n);
    ls_seen_deinit(&seen);
    return LS_OK;
}

/* ---- levers ---- */

static ls_status decide_slots(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const ls_seen *s = &f->seen[LS_STACK_SEQUENCE], *single = &f->seen[LS_STACK_SINGLE];
    const ls_seen *turns = &f->seen[LS_STACK_TURNS];
    int64_t value;
    bool found = false;
    /* Requests of other lengths in one process are right, and fresh slots do not help: what is in front must have
     * something in common, which is a cache that nobody asked for. */
    if (off(q, LS_STACK_SEQUENCE) && off(q, LS_STACK_FRESH) && clean(q, LS_STACK_LENGTHS)) {
        LS_TRY(ls_decide_previous_request(q, LS_STACK_SEQUENCE, false, &found, err));
        if (found) return LS_OK;
    }
    if (off(q, LS_STACK_SEQUENCE) && s->first_off > 0) {
        ls_foreign_find(f, LS_CAUSE_STALE_SLOT, LS_STACK_SEQUENCE, clean(q, LS_STACK_FRESH) ? 0.97 : 0.87,
                        "one at a time, the first request is within rounding and %" PRId64 " of %" PRId64 " are not%s",
                        s->n_sequences_off, s->n_sequences,
                        clean(q, LS_STACK_FRESH) ? "; without a slot used twice all are" : "");
        if (s->first_off > 1 && s->n_sequences_off == s->n_sequences - s->first_off)
            LS_TRY(ls_foreign_bound(q, LS_BOUNDED_REQUESTS, s->first_off + 1, false, 1));
    } else if (off(q, LS_STACK_SINGLE) && single->first_off > 0) {
        ls_foreign_find(f, LS_CAUSE_STALE_SLOT, LS_STACK_SINGLE, 0.93,
                        "prompts of one token in one slot: the first is within rounding, %" PRId64 " of %" PRId64
                        " are not",
                        single->n_sequences_off, single->n_sequences);
    } else if (off(q, LS_STACK_TURNS) && turns->first_off > 1 && clean(q, LS_STACK_PAIR)) {
        ls_foreign_find(f, LS_CAUSE_STALE_SLOT, LS_STACK_TURNS, 0.95,
                        "two at a time in two slots: the first two are within rounding, %" PRId64 " of %" PRId64
                        " are not; in a slot of its own each is right",
                        turns->n_sequences_off, turns->n_sequences);
    }
    if (off(q, LS_STACK_SLOT) || off(q, LS_STACK_FAR_SLOT) || off(q, LS_STACK_FARTHER_SLOT)) {
        const ls_stack_experiment experiment = off(q, LS_STACK_SLOT)       ? LS_STACK_SLOT
                                               : off(q, LS_STACK_FAR_SLOT) ? LS_STACK_FAR_SLOT
                                                                           : LS_STACK_FARTHER_SLOT;
        const int64_t last = ls_slot_of(experiment);
        if (f->seen[experiment].n_failed > 0 && f->seen[experiment].outcomes.n == 0)
            return LS_OK; /* it cannot have so many */
        if (off(q, LS_STACK_SEQUENCE) || off(q, LS_STACK_FRESH)) return LS_OK;
        LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_SLOT, 0, last, lay_slot, &value, err));
        ls_foreign_find(f, LS_CAUSE_SLOT_WRAPS, experiment, value > 0 ? 0.95 : 0.7,
                        "one request in slot %" PRId64 " is off%s", last, value > 0 ? ", in low slots it is not" : "");
    }
    return LS_OK;
}

/* Whether exactly those prompts are off whose last chunk is shorter than the window; *clean_ones: some are not. */
static bool short_ones_are_off(const ls_inquiry *q, int64_t window) {
    static const int64_t sizes[6] = {1, 2, 3, 5, 8, 16};
    int64_t n_off = 0, n_clean = 0;
    for (int i = 0; i < 6; i++) {
        const ls_outcomes *o = &q->f->seen[LS_STACK_CHUNK1 + i].outcomes;
        if (sizes[i] < window) continue;
        for (int64_t s = 0; s < o->n; s++) {
            const int64_t left = o->of[s].n_prompt % sizes[i];
            const bool is_off = ls_sequence_off(q->f, &o->of[s]);
            if (is_off != (left > 0 && left < window)) return false;
            n_off += is_off;
            n_clean += !is_off;
        }
    }
    return n_off > 0 && n_clean > 0;
}

enum { CUT_TEXTS = 72, CUT_BEHIND = 12 };
/* A rank correlation that says something, and one that says more than another. */
#define FOLLOWS 0.5
#define APART 0.1

/* Prompts that end 1 to 12 tokens behind a border. What a window does falls off sharply behind it, what a state does
 * goes on; and each text answers to each of them in its own way. */
static ls_status what_is_lost(ls_inquiry *q, int64_t chunk, double *likeness, int64_t *n_off, ls_error *err) {
    double size[CUT_TEXTS], of[LS_LOST_KINDS][CUT_TEXTS];
    int64_t n = 0;
    ls_requests *r = calloc(1, sizeof *r);
    ls_seen seen = {0};
    ls_trial trial;
    ls_status status;
    memset(likeness, 0, LS_LOST_KINDS * sizeof *likeness);
    *n_off = 0;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    ls_stack_trial(q, LS_STACK_CHUNK1, &trial, NULL);
    trial.levers.chunk = chunk;
    trial.levers.slots = CUT_TEXTS;
    trial.max_tokens = 1;
    for (int64_t i = 0; i < CUT_TEXTS; i++)
        LS_TRY_DONE(ls_requests_plain(q, r, 2300 + i, chunk + 1 + i % CUT_BEHIND, err));
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &seen, err));
    for (int64_t s = 0; q->reference != NULL && s < seen.outcomes.n; s++) {
        const ls_outcome *c = &seen.outcomes.of[s];
        double effects[LS_LOST_KINDS];
        if (c->n == 0 || c->failure != LS_FAILURE_NONE) continue;
        LS_TRY_DONE(ls_cut_effects(q, c, chunk, effects, err));
        size[n] = fabs((double)c->logprob[0] - (double)c->scored[0]);
        for (int k = 0; k < LS_LOST_KINDS; k++) of[k][n] = effects[k];
        n++;
    }
    for (int k = 0; k < LS_LOST_KINDS; k++) likeness[k] = ls_rank_correlation(size, of[k], n);
    *n_off = seen.n_sequences_off;
done:
    ls_seen_deinit(&seen);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

/* Something is wrong with what one chunk leaves to the next, and no way in which a window is lost explains it. A state
 * can be wrong in more ways, so it is that, unless |d| goes the way of lost windows. */
static ls_status decide_loss(ls_inquiry *q, ls_stack_experiment experiment, int64_t least, int64_t largest,
                             ls_error *err) {
    double likeness[LS_LOST_KINDS], window, state;
    int64_t n_off;
    LS_TRY(what_is_lost(q, largest, likeness, &n_off, err));
    if (2 * n_off < CUT_TEXTS && least < largest) LS_TRY(what_is_lost(q, least, likeness, &n_off, err));
    window = likeness[0];
    state = fmax(likeness[1], likeness[2]);
    ls_foreign_find(q->f, LS_CAUSE_STATE_BETWEEN_CHUNKS, experiment,
                    window < FOLLOWS || window < state + APART ? 0.86 : 0.7,
                    "chunks of %" PRId64 " to %" PRId64
                    " tokens are off, prompts in one piece are not; by rank |d| follows that of lost windows by %.2f, "
                    "of lost states by %.2f, of lost keys by %.2f",
                    least, largest, window, likeness[1], likeness[2]);
    return LS_OK;
}

static ls_status decide_chunks(ls_inquiry *q, ls_error *err) {
    static const int64_t sizes[6] = {1, 2, 3, 5, 8, 16};
    ls_foreign *f = q->f;
    const int64_t window = q->config->d_conv - 1;
    int64_t largest = 0, least = 0, value, n_tried, n_off;
    ls_stack_experiment experiment = LS_STACK_CHUNK1;
    int32_t lost = 0;
    for (int i = 0; i < 6; i++) {
        if (!off(q, (ls_stack_experiment)(LS_STACK_CHUNK1 + i))) continue;
        if (least == 0) least = sizes[i], experiment = (ls_stack_experiment)(LS_STACK_CHUNK1 + i);
        largest = sizes[i];
    }
    if (largest == 0 || off(q, LS_STACK_LENGTHS)) return LS_OK;
    LS_TRY(ls_foreign_off_solo(q, experiment, 2, &n_tried, &n_off, err));
    if (n_tried == 2 && n_off == 0) {
        ls_foreign_find(f, LS_CAUSE_STALE_SLOT, experiment, 0.93,
                        "%s: %" PRId64 " of %" PRId64 " are off, and right when each is alone in its process",
                        ls_stack_experiment_name(experiment), f->seen[experiment].n_sequences_off,
                        f->seen[experiment].n_sequences);
        return LS_OK;
    }
    if (largest < window && largest > 0) {
        ls_foreign_find(f, LS_CAUSE_WINDOW_IN_SHORT_CHUNKS, experiment, least > 1 || largest > 1 ? 0.93 : 0.82,
                        "chunks of %" PRId64 " tokens are off, those of %" PRId64 " and more are not", largest, window);
        return ls_foreign_bound(q, LS_BOUNDED_CHUNK, largest, true, 6);
    }
    if (short_ones_are_off(q, window)) {
        ls_foreign_find(f, LS_CAUSE_WINDOW_IN_SHORT_CHUNKS, experiment, 0.95,
                        "off is what has a chunk of fewer than %" PRId64 " tokens, be it the last", window);
        return ls_foreign_bound(q, LS_BOUNDED_CHUNK, window - 1, true, 6);
    }
    for (int i = 5; i >= 0 && lost == 0; i--)
        if (off(q, (ls_stack_experiment)(LS_STACK_CHUNK1 + i)) && f->seen[LS_STACK_CHUNK1 + i].outcomes.n > 0) {
            experiment = (ls_stack_experiment)(LS_STACK_CHUNK1 + i);
            LS_TRY(ls_explain_cuts(q, experiment, sizes[i], &lost, err));
        }
    if (lost != 0)
        ls_foreign_find(f, lost == LS_LOSE_WINDOW ? LS_CAUSE_WINDOW_BETWEEN_CHUNKS : LS_CAUSE_STATE_BETWEEN_CHUNKS,
                        experiment, 0.97, "%s: as if %s%s%s%s%s were lost or misplaced at every border",
                        ls_stack_experiment_name(experiment), lost & LS_LOSE_WINDOW ? "the convolution window" : "",
                        (lost & LS_LOSE_WINDOW) && (lost & ~LS_LOSE_WINDOW) ? ", " : "",
                        lost & LS_LOSE_STATE ? "the scan state" : "",
                        (lost & LS_LOSE_STATE) && (lost & LS_LOSE_KEYS) ? ", " : "",
                        lost & LS_LOSE_KEYS ? "keys and values" : "");
    else
        LS_TRY(decide_loss(q, experiment, least, largest, err));
    if (least > 1) { /* some chunks are right */
        LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_CHUNK, 1, largest, lay_chunk, &value, err));
    } else if (largest < 16) {
        int64_t low = largest, high = largest == 1 ? 2 : largest == 2 ? 3 : largest == 3 ? 5 : largest == 5 ? 8 : 16;
        while (low + 1 < high) {
            const int64_t middle = (low + high) / 2;
            ls_seen seen;
            LS_TRY(ls_foreign_try_laid(q, lay_chunk, middle, &seen, err));
            if (seen.look == LS_LOOK_OFF)
                low = middle;
            else
                high = middle;
            ls_seen_deinit(&seen);
        }
        LS_TRY(ls_foreign_bound(q, LS_BOUNDED_CHUNK, low, true, 6));
    }
    return LS_OK;
}

/* Batches that are no power of two are off in one row, and the next power of two is right. Whatever the others hold:
 * rows that fill a batch up write where a request lives. Else it is given another row's. */
static ls_status decide_odd(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    ls_foreign *f = q->f;
    *found = false;
    for (int64_t n = 3; n <= 7 && !*found; n += 2) {
        company of_rows, of_full;
        LS_TRY(keep_company(q, n, false, &of_rows, err));
        if (!of_rows.off_first && !of_rows.off_last) continue;
        if (of_rows.content > f->limit) {
            ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, experiment, 0.92,
                            "%" PRId64
                            " at once are off, and with other neighbours of the same lengths a request's records move "
                            "by %.2g",
                            n, of_rows.content);
        } else {
            if (of_rows.off_first == of_rows.off_last) continue;
            LS_TRY(keep_company(q, n < 4 ? 4 : 8, false, &of_full, err));
            if (of_full.off_first || of_full.off_last) continue;
            ls_foreign_find(
                f, LS_CAUSE_PADDING, experiment, 0.9,
                "%" PRId64 " at once: one of them is off, whatever the others hold; the next power of two is right", n);
        }
        *found = true;
        f->found.of[0].is_confirmed = true;
    }
    return LS_OK;
}

/* What begins and ends together is right; requests that begin while others decode are not. */
static ls_status decide_mixed(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    double content;
    int64_t n_off;
    bool found = false;
    if (!off(q, LS_STACK_MIXED) || off(q, LS_STACK_FRESH) || off(q, LS_STACK_LENGTHS)) return LS_OK;
    if (off_between(q, LS_STACK_CHUNK1, LS_STACK_CHUNK16)) return LS_OK; /* chunks alone are off */
    LS_TRY(ls_foreign_others_matter(q, LS_STACK_MIXED, 0, &content, &n_off, err));
    if (content > f->limit)
        ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, LS_STACK_MIXED, 0.92,
                        "off when some begin while others decode, %" PRId64 " of %" PRId64
                        "; with other texts of the same lengths beside it a request moves by %.2g",
                        f->seen[LS_STACK_MIXED].n_sequences_off, f->seen[LS_STACK_MIXED].n_sequences, content);
    else
        LS_TRY(decide_odd(q, LS_STACK_MIXED, &found, err));
    if (content <= f->limit && !found)
        ls_foreign_find(f, LS_CAUSE_ORDER_BY_BATCH, LS_STACK_MIXED, 0.7,
                        "off when some begin while others decode, and it does not matter what the others hold (%.2g)",
                        content);
    return LS_OK;
}

ls_status ls_decide_batch(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const bool equal = off(q, LS_STACK_PAIR) || off(q, LS_STACK_BATCH) || off(q, LS_STACK_CROWD);
    ls_stack_experiment experiment = off(q, LS_STACK_PAIR)    ? LS_STACK_PAIR
                                     : off(q, LS_STACK_BATCH) ? LS_STACK_BATCH
                                     : off(q, LS_STACK_CROWD) ? LS_STACK_CROWD
                                                              : LS_STACK_UNEQUAL;
    int64_t value = -1, n;
    bool found = false;
    company c;
    if (!equal && !off(q, LS_STACK_UNEQUAL)) return decide_mixed(q, err);
    if (off(q, LS_STACK_FRESH) || off(q, LS_STACK_LENGTHS)) return LS_OK; /* not the company's doing */
    if (f->seen[experiment].n_failed > 0 && f->seen[experiment].outcomes.n == 0) return LS_OK;
    if (!equal) {
        double content;
        int64_t n_off;
        LS_TRY(ls_foreign_others_matter(q, experiment, 0, &content, &n_off, err));
        if (content > f->limit) { /* padding is the same whatever the others hold */
            ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, experiment, 0.9,
                            "four at a time of unequal lengths; with other texts of the same lengths beside it a "
                            "request moves by %.2g",
                            content);
            return LS_OK;
        }
        ls_foreign_find(f, LS_CAUSE_PADDING, experiment, 0.93,
                        "four at a time of unequal lengths: %" PRId64 " of %" PRId64
                        " are off; of equal length none is",
                        f->seen[experiment].n_sequences_off, f->seen[experiment].n_sequences);
        return LS_OK;
    }
    LS_TRY(ls_explain_misplaced(q, experiment, &found, err));
    if (found) return LS_OK;
    n = experiment == LS_STACK_PAIR ? 2 : experiment == LS_STACK_BATCH ? 8 : 72;
    LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_BATCH, 1, n, ls_lay_batch, &value, err));
    LS_TRY(keep_company(q, value > 1 ? value : n, false, &c, err));
    if (c.content > f->limit) {
        bool by_slot = false;
        if (value > 3) LS_TRY(slots_matter(q, value, &by_slot, err));
        if (value > 3 && !by_slot) LS_TRY(newest_is_off(q, value, &by_slot, err));
        if (by_slot)
            ls_foreign_find(f, LS_CAUSE_SLOT_WRAPS, LS_STACK_CROWD, 0.93,
                            "%" PRId64
                            " at once are off, and what is in them depends on what is in others: fewer in slots as "
                            "far apart are off as well, or the newest slot alone is",
                            value);
        else if (!c.off_first && c.off_last && c.prompt_off)
            ls_foreign_find(f, LS_CAUSE_NOT_RESET, experiment, 0.92,
                            "the first of a batch is within rounding, one behind it is off by what stands in front of "
                            "it, from its first token on");
        else
            ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, experiment, 0.92,
                            "with other neighbours of the same lengths a request's records move by %.2g", c.content);
    } else {
        const bool all = c.off_first && c.off_last;
        double share = 1.0;
        if (!all) LS_TRY(decide_odd(q, experiment, &found, err));
        if (found) return LS_OK;
        if (!all) LS_TRY(share_moved(q, value > 1 ? value : n, &share, err));
        /* A kernel that is chosen by the rows computes all of them: one request alone that is off is another thing. */
        ls_foreign_find(f, LS_CAUSE_ORDER_BY_BATCH, experiment,
                        all           ? 0.92
                        : share > 0.8 ? 0.88
                                      : 0.7,
                        "off with %" PRId64
                        " at once, and it does not matter what the others hold (%.2g); %.0f %% of "
                        "them are moved by more than rounding",
                        value > 1 ? value : n, c.content, 100.0 * share);
    }
    return LS_OK;
}

/* A prompt that the suspect has not had before is off: what the cache gave it was another one's. */
static bool first_times_off(const ls_foreign *f, const ls_seen *seen) {
    const ls_outcomes *o = &seen->outcomes;
    for (int64_t s = 0; s < o->n; s++) {
        bool first = true;
        for (int64_t e = 0; e < s && first; e++)
            first = o->of[e].n_prompt != o->of[s].n_prompt ||
                    memcmp(o->of[e].prompt, o->of[s].prompt, (size_t)o->of[s].n_prompt * sizeof *o->of[s].prompt) != 0;
        if (first && ls_sequence_off(f, &o->of[s])) return true;
    }
    return false;
}

static ls_status decide_cache(ls_inquiry *q) {
    ls_foreign *f = q->f;
    const bool stranger = first_times_off(f, &f->seen[LS_STACK_CACHED_SAME]);
    const bool same = off(q, LS_STACK_CACHED_SAME) && !stranger, shared = off(q, LS_STACK_CACHED_SHARED);
    const bool others = off(q, LS_STACK_CACHED_TAIL) || off(q, LS_STACK_CACHED_LENGTH) ||
                        off(q, LS_STACK_CACHED_ORDER) || off(q, LS_STACK_CACHED_CROSSED) ||
                        off(q, LS_STACK_CACHED_POINTS);
    const bool rounds = off_between(q, LS_STACK_CACHED_ROUNDS, LS_STACK_CACHED_EXTENDED);
    if (off(q, LS_STACK_FRESH) || off(q, LS_STACK_LENGTHS)) return LS_OK; /* it needs no cache */
    if (off(q, LS_STACK_CROWD) || off(q, LS_STACK_MANY)) return LS_OK;
    if (off_between(q, LS_STACK_CHUNK1, LS_STACK_CHUNK16)) return LS_OK; /* a cache cuts prompts, too */
    /* Entries that were right when they were new: keys that take one prompt for another do so the first time. */
    const bool aged = rounds && !others && !same && !stranger &&
                      ls_portion(f->seen[LS_STACK_CACHED_SHARED].n_sequences_off,
                                 f->seen[LS_STACK_CACHED_SHARED].n_sequences) < 0.35 &&
                      off(q, LS_STACK_CACHED_ROUNDS) && !first_times_off(f, &f->seen[LS_STACK_CACHED_ROUNDS]);
    if (aged)
        ls_foreign_find(f, LS_CAUSE_CACHE_AGED, LS_STACK_CACHED_ROUNDS, 0.92,
                        "a prompt is right the first time and when it comes again at once; with ten others in between "
                        "%" PRId64 " of %" PRId64 " are off",
                        f->seen[LS_STACK_CACHED_ROUNDS].n_sequences_off, f->seen[LS_STACK_CACHED_ROUNDS].n_sequences);
    else if (same)
        ls_foreign_find(f, LS_CAUSE_SNAPSHOT_SHIFTED, LS_STACK_CACHED_SAME, 0.93,
                        "one prompt again and again: %" PRId64 " of %" PRId64 " are off with the cache",
                        f->seen[LS_STACK_CACHED_SAME].n_sequences_off, f->seen[LS_STACK_CACHED_SAME].n_sequences);
    else if (stranger)
        ls_foreign_find(f, LS_CAUSE_CACHE_CROSSED, LS_STACK_CACHED_SAME, 0.93,
                        "with the cache a prompt is off the first time it comes");
    else if (others || shared)
        ls_foreign_find(f, LS_CAUSE_CACHE_CROSSED,
                        off(q, LS_STACK_CACHED_TAIL)      ? LS_STACK_CACHED_TAIL
                        : off(q, LS_STACK_CACHED_LENGTH)  ? LS_STACK_CACHED_LENGTH
                        : off(q, LS_STACK_CACHED_ORDER)   ? LS_STACK_CACHED_ORDER
                        : off(q, LS_STACK_CACHED_CROSSED) ? LS_STACK_CACHED_CROSSED
                        : off(q, LS_STACK_CACHED_POINTS)  ? LS_STACK_CACHED_POINTS
                                                          : LS_STACK_CACHED_SHARED,
                        0.93, "a prompt that comes again is right; off are%s%s%s%s%s%s",
                        off(q, LS_STACK_CACHED_TAIL) ? " prompts with a common end" : "",
                        off(q, LS_STACK_CACHED_LENGTH) ? ", prompts of equal length" : "",
                        off(q, LS_STACK_CACHED_ORDER) ? ", the same tokens in another order" : "",
                        off(q, LS_STACK_CACHED_CROSSED) ? ", pieces of prompts put together crosswise" : "",
                        off(q, LS_STACK_CACHED_POINTS) ? ", prompts that differ in one token" : "",
                        shared ? ", prompts with a common beginning" : "");
    else if (rounds)
        ls_foreign_find(f, LS_CAUSE_CACHE_AGED,
                        off(q, LS_STACK_CACHED_ROUNDS)  ? LS_STACK_CACHED_ROUNDS
                        : off(q, LS_STACK_CACHED_BATCH) ? LS_STACK_CACHED_BATCH
                        : off(q, LS_STACK_CACHED_CHUNK) ? LS_STACK_CACHED_CHUNK
                                                        : LS_STACK_CACHED_EXTENDED,
                        0.86, "off in a second round only, or with others in between, or behind longer ones");
    else if (off(q, LS_STACK_CACHED_TWINS) || off(q, LS_STACK_CACHED_TWINS_WHOLE))
        ls_foreign_find(f, LS_CAUSE_CACHE_AGED,
                        off(q, LS_STACK_CACHED_TWINS) ? LS_STACK_CACHED_TWINS : LS_STACK_CACHED_TWINS_WHOLE, 0.85,
                        "off when prompts with the same beginning run at the same time; one behind the other they are "
                        "right");
    else if (off(q, LS_STACK_CACHED_MANY))
        ls_foreign_find(f, LS_CAUSE_CACHE_CROSSED, LS_STACK_CACHED_MANY, 0.8,
                        "off with many prompts that share pieces, cache on");
    return LS_OK;
}

static ls_status decide_records(ls_inquiry *q, ls_error *err) {
    static const ls_stack_experiment experiments[] = {LS_STACK_PROCESSED, LS_STACK_RAW, LS_STACK_PROCESSED_ONE,
                                                      LS_STACK_PROCESSED_HOT, LS_STACK_COLD};
    ls_foreign *f = q->f;
    bool found;
    if (off(q, LS_STACK_LENGTHS) || off(q, LS_STACK_FRESH)) return LS_OK;
    for (size_t i = 0; i < sizeof experiments / sizeof experiments[0]; i++) {
        if (!off(q, experiments[i]) || f->seen[experiments[i]].outcomes.n == 0) continue;
        LS_TRY(ls_explain_experiment(q, experiments[i], 0.95, &found, err));
        if (!found)
            ls_foreign_find(f, LS_CAUSE_TEMPERATURE, experiments[i], 0.75, "%s is off, temperature 4 raw is not",
                            ls_stack_experiment_name(experiments[i]));
        return LS_OK;
    }
    return LS_OK;
}

ls_status ls_decide_tokens(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    bool found;
    if (off(q, LS_STACK_LENGTHS) || off(q, LS_STACK_FRESH)) return LS_OK;
    if (off(q, LS_STACK_EOS) && f->seen[LS_STACK_EOS].n_sequences_off > 0) {
        LS_TRY(ls_explain_experiment(q, LS_STACK_EOS, 0.96, &found, err));
        if (found) return LS_OK;
        ls_foreign_find(f, LS_CAUSE_EOS_INSIDE, LS_STACK_EOS, 0.93,
                        "%" PRId64 " of %" PRId64 " prompts with an end-of-sequence token are off",
                        f->seen[LS_STACK_EOS].n_sequences_off, f->seen[LS_STACK_EOS].n_sequences);
        return LS_OK;
    }
    if (off(q, LS_STACK_BOS) && f->seen[LS_STACK_BOS].n_sequences_off > 0) {
        LS_TRY(ls_explain_experiment(q, LS_STACK_BOS, 0.96, &found, err));
        if (!found)
            ls_foreign_find(f, LS_CAUSE_SPECIAL_TOKEN, LS_STACK_BOS, 0.85,
                            "prompts with a begin-of-sequence token are off");
        return LS_OK;
    }
    if (off(q, LS_STACK_PAD) && f->seen[LS_STACK_PAD].n_sequences_off > 0)
        ls_foreign_find(f, LS_CAUSE_SPECIAL_TOKEN, LS_STACK_PAD, 0.9, "prompts with the padding token are off");
    return LS_OK;
}

/* Only many requests that come and go show it: what the slot held before, or what others hold now. */
static ls_status decide_many(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const ls_seen *s = &f->seen[LS_STACK_MANY];
    const bool obeys = s->outcomes.tells_levers && (s->outcomes.levers >> ls_lever_find("slots") & 1);
    double content, apart_content;
    int64_t n_off, apart_off;
    LS_TRY(ls_foreign_others_matter(q, LS_STACK_MANY, 0, &content, &n_off, err));
    LS_TRY(ls_foreign_others_matter(q, LS_STACK_MANY, 96, &apart_content, &apart_off, err));
    if (obeys && apart_off == 0)
        ls_foreign_find(f, LS_CAUSE_STALE_SLOT, LS_STACK_MANY, 0.9,
                        "16 at a time in 16 slots: %" PRId64 " of %" PRId64 " are off, and none in 96 slots", n_off,
                        s->n_sequences);
    else if (apart_content > f->limit)
        ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, LS_STACK_MANY, obeys ? 0.9 : 0.75,
                        "16 at a time, no slot used twice: with other texts beside it a request moves by %.2g",
                        apart_content);
    else
        ls_foreign_find(f, LS_CAUSE_STALE_SLOT, LS_STACK_MANY, 0.7,
                        "16 at a time in 16 slots: %" PRId64 " of %" PRId64
                        " are off; small batches and slots in turn are not",
                        s->n_sequences_off, s->n_sequences);
    return LS_OK;
}

static ls_status decide_rest(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const bool batch =
        off(q, LS_STACK_PAIR) || off(q, LS_STACK_BATCH) || off(q, LS_STACK_UNEQUAL) || off(q, LS_STACK_MIXED);
    const bool stale =
        off(q, LS_STACK_SEQUENCE) || off(q, LS_STACK_FRESH) || off(q, LS_STACK_LENGTHS) || off(q, LS_STACK_CROWD);
    if (stale || batch) return LS_OK;
    if (!off(q, LS_STACK_LENGTHS) && (off(q, LS_STACK_PAGE4) || off(q, LS_STACK_PAGE64)))
        ls_foreign_find(f, LS_CAUSE_PAGE_SIZE, off(q, LS_STACK_PAGE4) ? LS_STACK_PAGE4 : LS_STACK_PAGE64, 0.93,
                        "pages of %d tokens are off, those of 16 are not", off(q, LS_STACK_PAGE4) ? 4 : 64);
    if (off(q, LS_STACK_FORK))
        ls_foreign_find(f, LS_CAUSE_FORK, LS_STACK_FORK, 0.85, "four samples of a prompt are off");
    if (off(q, LS_STACK_RECOMPUTE))
        ls_foreign_find(f, LS_CAUSE_PREEMPTED, LS_STACK_RECOMPUTE, 0.93,
                        "%" PRId64 " of %" PRId64 " sequences are off when some are taken out",
                        f->seen[LS_STACK_RECOMPUTE].n_sequences_off, f->seen[LS_STACK_RECOMPUTE].n_sequences);
    else if (off(q, LS_STACK_SWAP))
        ls_foreign_find(f, LS_CAUSE_SWAPPED, LS_STACK_SWAP, 0.93, "off when swapped out");
    else if (off(q, LS_STACK_SLEEP))
        ls_foreign_find(f, LS_CAUSE_MEMORY_GIVEN_BACK, LS_STACK_SLEEP, 0.9, "off when memory is given back");
    return f->found.n == 0 && off(q, LS_STACK_MANY) ? decide_many(q, err) : LS_OK;
}

/* A trial without an answer is run again: a machine that had other work to do is no fault. */
ls_status ls_decide_failures(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) {
        ls_seen *s = &f->seen[r], again;
        ls_trial trial;
        uint64_t needs;
        if (s->look != LS_LOOK_OFF || s->outcomes.n > 0) continue;
        if (ls_foreign_is_slow(q, (ls_stack_experiment)r)) {
            s->look = LS_LOOK_UNTRIED;
            s->n_failed = 0;
            continue;
        }
        ls_stack_trial(q, (ls_stack_experiment)r, &trial, &needs);
        if (f->is_server) needs = 0;
        LS_TRY(ls_foreign_try(q, &trial, needs, q->requests[r].of, q->requests[r].n, &again, err));
        if (again.failures.whole == LS_FAILURE_NO_TIME) {
            ls_foreign_find(f, LS_CAUSE_NO_ANSWER, (ls_stack_experiment)r, 0.5, "%s, once: %s",
                            ls_stack_experiment_name((ls_stack_experiment)r), s->note);
            ls_seen_deinit(&again);
            return LS_OK;
        }
        if (again.look == LS_LOOK_OFF && again.outcomes.n == 0) {
            ls_foreign_find(f, LS_CAUSE_NO_ANSWER, (ls_stack_experiment)r, f->found.n == 0 ? 0.9 : 0.5, "%s, twice: %s",
                            ls_stack_experiment_name((ls_stack_experiment)r), s->note);
            ls_seen_deinit(&again);
            return LS_OK;
        }
        *s = again; /* what it says the second time counts */
    }
    return LS_OK;
}

ls_status ls_foreign_decide(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    bool moves = false;
    if (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED) return LS_OK; /* requests alone are explained */
    LS_TRY(ls_decide_solo(q, err));
    if (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED) return LS_OK;
    for (int r = LS_STACK_SEQUENCE; r < LS_STACK_EXPERIMENTS && !moves; r++)
        if (off(q, (ls_stack_experiment)r) && f->seen[r].outcomes.n > 0) {
            LS_TRY(ls_foreign_repeat(q, (ls_stack_experiment)r, &moves, err));
            break; /* one is enough: races show everywhere */
        }
    if (moves) return LS_OK;
    LS_TRY(decide_slots(q, err));
    LS_TRY(decide_chunks(q, err));
    LS_TRY(ls_decide_batch(q, err));
    LS_TRY(decide_cache(q));
    LS_TRY(decide_records(q, err));
    LS_TRY(ls_decide_tokens(q, err));
    LS_TRY(decide_rest(q, err));
    return ls_decide_failures(q, err);
}
