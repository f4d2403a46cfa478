/* What requests alone mean: off everywhere, from a length on, behind a token, in decode alone. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Times by which a coarser kernel moves the median |d|. */
#define MOVED 6.0
/* Prompts that have to be right where decoded tokens are off, for those to be wrong by being decoded. */
#define DECODE_PROMPTS 8
/* Of what bf16 makes: rounding in many places, in partial sums sent in bf16 as well, makes no more. */
#define ROUNDING_MOST 12.0

static bool off(const ls_inquiry *q, ls_stack_experiment r) { return ls_stack_is_off(q, r); }

static ls_status lay_length(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_LENGTHS, trial, NULL);
    trial->max_tokens = 1;
    for (int64_t i = 0; i < 4; i++)
        LS_TRY(ls_requests_plain(q, r, 2500 + i, value, err)); /* one may be right by luck */
    return LS_OK;
}

/* The best explanation of this experiment, if there is a fault that explains it and no other family does as well. */
ls_status ls_explain_experiment(ls_inquiry *q, ls_stack_experiment experiment, double confidence, bool *found,
                                ls_error *err) {
    ls_foreign *f = q->f;
    *found = false;
    LS_TRY(ls_explain(q, &experiment, 1, err));
    if (f->n_best > 0 && !f->best[0].harmless) {
        const double sure = fmin(confidence, ls_explained_confidence(f));
        ls_foreign_find(f, f->best[0].cause, experiment, sure,
                        "%s: %s; with that nine tenths of |d| are below %.2g, not %.2g",
                        ls_stack_experiment_name(experiment), f->best[0].what, f->best[0].q90, f->before.q90);
        *found = sure >= LS_NAMED || f->best[0].cause == LS_CAUSE_UNLISTED;
        if (sure >= LS_NAMED) f->found.of[0].is_confirmed = true;
    }
    f->n_best = 0;
    return LS_OK;
}

ls_status ls_explain_misplaced(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    ls_foreign *f = q->f;
    ls_status status;
    *found = false;
    q->records_solo = true;
    status = ls_explain(q, &experiment, 1, err);
    q->records_solo = false;
    LS_TRY(status);
    if (f->n_best > 0 && ls_explained_confidence(f) >= LS_NAMED &&
        ls_cause_of(f->best[0].cause)->family == LS_FAMILY_MISPLACED) {
        ls_foreign_find(f, f->best[0].cause, experiment, 0.95,
                        "%s: %s; with that nine tenths of |d| are below %.2g, not %.2g",
                        ls_stack_experiment_name(experiment), f->best[0].what, f->best[0].q90, f->before.q90);
        f->found.of[0].is_confirmed = *found = true;
    }
    f->n_best = 0;
    return LS_OK;
}

/* Chance of what is taken for a rule. */
#define RARE 1e-3

enum { PICKED_MOST = 512 };

/* How off and clean tokens of an experiment are parted. */
typedef struct parting {
    int64_t n_off, n_tokens, first_tokens, first_tokens_off, later, later_off;
    int64_t least_context, clean_context; /* least that is off; largest below it that is not; -1 */
    int64_t beyond, beyond_off;           /* tokens with that context or a longer one */
    int64_t prompts_beyond_later;         /* first tokens whose context is as long as the least that is off */
    int64_t least_prompt, prompt_beyond, prompt_beyond_off, prompt_clean; /* the same by the prompt's length */
    int64_t first_sequence, behind, behind_off;                           /* the same by the order of requests */
    bool behind_eos; /* every off token stands behind an end-of-sequence token, and all of these are off or few */
    int64_t n_behind_eos;
} parting;

static bool eos_before(const ls_inquiry *q, const ls_outcome *c, int64_t i) {
    for (int64_t t = 0; t < c->n_prompt + i; t++) {
        const int32_t token = t < c->n_prompt ? c->prompt[t] : c->completion[t - c->n_prompt];
        for (int32_t e = 0; e < q->config->n_eos; e++)
            if (q->config->eos[e] == token) return true;
    }
    return false;
}

static void part_tokens(const ls_inquiry *q, const ls_seen *seen, parting *p) {
    const ls_outcomes *o = &seen->outcomes;
    memset(p, 0, sizeof *p);
    p->least_context = p->least_prompt = p->first_sequence = INT64_MAX;
    p->behind_eos = true;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n; i++) {
            const ls_outcome *c = &o->of[s];
            const bool is_off = ls_token_off(q->f, c, i), eos = eos_before(q, c, i);
            p->n_tokens++;
            p->n_off += is_off;
            p->first_tokens += i == 0;
            p->first_tokens_off += i == 0 && is_off;
            p->later += i > 0;
            p->later_off += i > 0 && is_off;
            p->n_behind_eos += is_off && eos;
            p->behind_eos = p->behind_eos && (!is_off || eos);
            if (!is_off) continue;
            if (c->n_prompt + i < p->least_context) p->least_context = c->n_prompt + i;
            if (i == 0 && c->n_prompt < p->least_prompt) p->least_prompt = c->n_prompt;
            if (s < p->first_sequence) p->first_sequence = s;
        }
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n; i++) {
            const ls_outcome *c = &o->of[s];
            const bool is_off = ls_token_off(q->f, c, i);
            const int64_t context = c->n_prompt + i;
            if (context >= p->least_context) {
                p->prompts_beyond_later += i == 0;
                p->beyond++;
                p->beyond_off += is_off;
            } else if (context > p->clean_context) {
                p->clean_context = context;
            }
            if (c->n_prompt >= p->least_prompt) {
                p->prompt_beyond++;
                p->prompt_beyond_off += is_off;
            } else if (c->n_prompt > p->prompt_clean) {
                p->prompt_clean = c->n_prompt;
            }
            if (s >= p->first_sequence) {
                p->behind++;
                p->behind_off += is_off;
            }
        }
}

/* ---- requests alone ---- */

/* Without, there are no pages. */
static bool has_attention(const ls_inquiry *q) {
    for (int32_t i = 0; i < q->config->n_layers; i++)
        if (q->config->is_attention[i]) return true;
    return false;
}

/* Exactly the prompts are off that are shorter than what the convolution looks back, and in decode alone. */
static bool short_prompts_are_off(const ls_inquiry *q, const ls_seen *seen) {
    const int64_t window = q->config->d_conv - 1;
    int64_t n_short = 0;
    for (int64_t s = 0; s < seen->outcomes.n; s++) {
        const ls_outcome *c = &seen->outcomes.of[s];
        if (ls_sequence_off(q->f, c) != (c->n_prompt < window)) return false;
        n_short += c->n_prompt < window;
    }
    return n_short >= 2;
}

static bool near_block(int64_t length) {
    for (int64_t b = 16; b <= 1024; b *= 2)
        if (length == b || length == b + 1 || length == b - 1) return true;
    return length > 16 && (length % 16 == 0 || length % 16 == 1);
}

/* No slot was used twice, as the suspect says. */
static bool has_slots_apart(const ls_outcomes *o) {
    for (int64_t a = 0; a < o->n; a++)
        for (int64_t b = 0; b < a; b++)
            if (o->of[a].slot < 0 || o->of[a].slot == o->of[b].slot) return false;
    return o->n > 1;
}

/* Requests are off from one on when each has a slot of its own, and right in one slot for all. */
static ls_status decide_slots_number(ls_inquiry *q, int64_t requests, ls_error *err) {
    int64_t value;
    LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_BATCH, 1, 72, ls_lay_batch, &value, err));
    ls_foreign_find(q->f, LS_CAUSE_SLOT_WRAPS, LS_STACK_LENGTHS, 0.93,
                    "a slot each, requests are off from the one with number %" PRId64
                    " on; in one slot for all they are right",
                    requests);
    q->f->found.of[0].is_confirmed = true;
    return LS_OK;
}

/* Requests that are off in one process, and right when each is alone in its own: what stood in front of them does that.
 * In one slot for all they are off for what it held. In a slot each they are off for the number of their slot or, where
 * the first request in a high slot is right, because another slot's state is read. */
static ls_status decide_front(ls_inquiry *q, const parting *p, bool *found, ls_error *err) {
    ls_foreign *f = q->f;
    const ls_seen *far = &f->seen[LS_STACK_SLOT];
    int64_t n_tried, n_off;
    bool one_slot, apart;
    *found = false;
    if (f->is_server) { /* nothing is alone there */
        *found = p->first_sequence > 0 && ls_portion(p->behind_off, p->behind) > 0.6 &&
                 ls_portion(p->beyond_off, p->beyond) < 0.8;
        if (!*found) return LS_OK;
        ls_foreign_find(f, LS_CAUSE_STALE_SLOT, LS_STACK_LENGTHS, 0.85,
                        "from request %" PRId64 " of a process on, requests are off, whatever their length",
                        p->first_sequence + 1);
        return ls_foreign_bound(q, LS_BOUNDED_REQUESTS, p->first_sequence + 1, false, 1);
    }
    LS_TRY(ls_foreign_off_solo(q, LS_STACK_LENGTHS, 3, &n_tried, &n_off, err));
    if (n_tried < 2 || n_off > 0) return LS_OK;
    LS_TRY(ls_foreign_right_in_one_slot(q, LS_STACK_LENGTHS, &one_slot, err));
    if (one_slot && p->first_sequence > 1) {
        *found = true;
        return decide_slots_number(q, p->first_sequence + 1, err);
    }
    if (one_slot && far->outcomes.n > 0 && !ls_sequence_off(f, &far->outcomes.of[0])) {
        *found = true;
        ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, LS_STACK_LENGTHS, 0.9,
                        "a slot each, and never two at once, %" PRId64 " of %" PRId64
                        " tokens behind the first request are off; in one slot for all they are right, and so is the "
                        "first request in a high slot",
                        p->behind_off, p->behind);
        f->found.of[0].is_confirmed = true;
        return LS_OK;
    }
    LS_TRY(ls_decide_previous_request(q, LS_STACK_LENGTHS, false, found, err));
    if (*found) return LS_OK;
    *found = true;
    apart = has_slots_apart(&f->seen[LS_STACK_LENGTHS].outcomes);
    ls_foreign_find(f, LS_CAUSE_STALE_SLOT, LS_STACK_LENGTHS, apart ? 0.7 : 0.93,
                    "from request %" PRId64 " of a process on, %" PRId64 " of %" PRId64
                    " tokens are off, whatever the length; each alone in its process requests are right%s",
                    p->first_sequence + 1, p->behind_off, p->behind, apart ? "; but no slot was used twice" : "");
    f->found.of[0].is_confirmed = true;
    if (apart) return LS_OK;
    return ls_portion(p->behind_off, p->behind) > 0.6
               ? ls_foreign_bound(q, LS_BOUNDED_REQUESTS, p->first_sequence + 1, false, 1)
               : LS_OK;
}

/* Decoded tokens are off alone, and the same requests are right with eight at once: rows that fill a batch up, or a
 * kernel for few rows. Of two, rows that are put in make one of them off. */
static ls_status decide_rows(ls_inquiry *q, bool *found, ls_error *err) {
    const ls_seen *pair = &q->f->seen[LS_STACK_PAIR], *eight = &q->f->seen[LS_STACK_BATCH];
    const bool some = pair->n_sequences_off > 0 && pair->n_sequences_off < pair->n_sequences;
    int64_t n_solo, n;
    ls_seen solo;
    ls_trial trial;
    *found = false;
    if (q->f->is_server || eight->look != LS_LOOK_CLEAN) return LS_OK;
    ls_stack_trial(q, LS_STACK_BATCH, &trial, NULL);
    trial.levers.batch = 1;
    LS_TRY(ls_foreign_try_experiment(q, LS_STACK_BATCH, &trial, &solo, err));
    n_solo = solo.n_sequences_off;
    n = solo.n_sequences;
    ls_seen_deinit(&solo);
    *found = 2 * n_solo > n;
    if (!*found) return LS_OK;
    ls_foreign_find(q->f, some ? LS_CAUSE_PADDING : LS_CAUSE_ORDER_BY_BATCH, LS_STACK_LENGTHS, 0.9,
                    "decoded tokens of %" PRId64 " of %" PRId64 " requests are off alone; with two at once %" PRId64
                    " are, with eight none",
                    n_solo, n, pair->n_sequences_off);
    q->f->found.of[0].is_confirmed = true;
    return LS_OK;
}

/* Prompts that are filled up to a multiple of so many tokens: those that need no filling are right. 0: none. */
static int64_t value_bucket(const ls_inquiry *q, const ls_seen *seen) {
    for (int64_t b = 64; b >= 4; b /= 2) {
        int64_t full = 0, full_off = 0, filled = 0, filled_off = 0;
        for (int64_t s = 0; s < seen->outcomes.n; s++) {
            const ls_outcome *c = &seen->outcomes.of[s];
            const bool is_full = c->n_prompt % b == 0, is_off = ls_sequence_off(q->f, c);
            full += is_full;
            full_off += is_full && is_off;
            filled += !is_full;
            filled_off += !is_full && is_off;
        }
        /* Were they right by chance, as often as others are, it would be a rare one. */
        if (full_off == 0 && pow(1.0 - ls_portion(filled_off, filled), (double)full) < RARE) return b;
    }
    return 0;
}

/* The experiment of lengths with other pages, as many as hold as many tokens. */
static ls_status try_pages_of(ls_inquiry *q, int64_t page, ls_seen *seen, ls_error *err) {
    const ls_requests *r = &q->requests[LS_STACK_LENGTHS];
    ls_trial trial;
    ls_stack_trial(q, LS_STACK_LENGTHS, &trial, NULL);
    if (page < trial.levers.page_tokens) trial.levers.pages *= trial.levers.page_tokens / page;
    trial.levers.page_tokens = page;
    return ls_foreign_try(q, &trial, 0, r->of, r->n, seen, err);
}

/* That with pages of so many tokens, on which it does not depend where prompts are filled up. */
static ls_status bucket_with_pages(ls_inquiry *q, int64_t page, int64_t *bucket, ls_error *err) {
    ls_seen seen;
    LS_TRY(try_pages_of(q, page, &seen, err));
    *bucket = value_bucket(q, &seen);
    ls_seen_deinit(&seen);
    return LS_OK;
}

/* Decoded tokens are off, and right with pages of another size: decoding by itself knows of none. */
static ls_status decide_pages_of_decode(ls_inquiry *q, bool *found, ls_error *err) {
    static const int64_t pages[] = {1, 64, 256}; /* the last holds all contexts */
    *found = false;
    if (q->f->is_server || !has_attention(q)) return LS_OK;
    for (size_t i = 0; i < sizeof pages / sizeof pages[0] && !*found; i++) {
        ls_seen seen;
        LS_TRY(try_pages_of(q, pages[i], &seen, err));
        *found = seen.outcomes.n > 0 && seen.look == LS_LOOK_CLEAN;
        ls_seen_deinit(&seen);
        if (*found)
            ls_foreign_find(q->f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS, 0.93,
                            "decoded tokens are off with pages of 16 tokens, and right with pages of %" PRId64,
                            pages[i]);
    }
    return LS_OK;
}

/* The least size of pages that is off, where all smaller ones are right, or the largest, where all larger ones are. */
ls_status ls_bound_page(ls_inquiry *q, ls_error *err) {
    enum { SIZES = 7, LARGEST = 64 };
    bool is_off[SIZES];
    int n_off = 0, first = SIZES, last = -1;
    if (q->f->is_server || q->f->constant || !has_attention(q)) return LS_OK;
    for (int i = 0; i < SIZES; i++) {
        ls_seen seen;
        LS_TRY(try_pages_of(q, (int64_t)1 << i, &seen, err));
        is_off[i] = seen.outcomes.n > 0 && seen.look == LS_LOOK_OFF;
        ls_seen_deinit(&seen);
        n_off += is_off[i];
        if (is_off[i] && first == SIZES) first = i;
        if (is_off[i]) last = i;
    }
    if (n_off == 0 || n_off == SIZES || n_off != last - first + 1) return LS_OK;
    if (last == SIZES - 1) return ls_foreign_bound(q, LS_BOUNDED_PAGE, LARGEST >> (n_off - 1), false, SIZES);
    return first == 0 ? ls_foreign_bound(q, LS_BOUNDED_PAGE, (int64_t)1 << last, true, SIZES) : LS_OK;
}

/* Of the experiment of lengths, the median |d| of contexts from `length` on as a multiple of that of shorter ones: a
 * coarser kernel moves all tokens, if not all of them above the limit. */
static double moved_beyond(const ls_foreign *f, int64_t length) {
    const ls_outcomes *o = &f->seen[LS_STACK_LENGTHS].outcomes;
    double below[PICKED_MOST], beyond[PICKED_MOST];
    int64_t n_below = 0, n_beyond = 0;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n && n_below < PICKED_MOST && n_beyond < PICKED_MOST; i++) {
            const double d = fabs((double)o->of[s].scored[i] - (double)o->of[s].logprob[i]);
            if (o->of[s].n_prompt >= length) beyond[n_beyond++] = d;
            if (o->of[s].n_prompt < length) below[n_below++] = d;
        }
    if (n_below < 8 || n_beyond < 8) return 0.0;
    ls_sort(below, n_below);
    ls_sort(beyond, n_beyond);
    return beyond[n_beyond / 2] / fmax(below[n_below / 2], 1e-12);
}

/* One token is no length: rounding to f16 moves one now and then. */
static bool is_long(const ls_foreign *f, const parting *p, int64_t value) {
    return p->beyond_off > 1 && (ls_portion(p->beyond_off, p->beyond) > 0.5 || moved_beyond(f, value) > MOVED);
}

ls_status ls_bound_length(ls_inquiry *q, ls_error *err) {
    parting p;
    int64_t value = -1;
    part_tokens(q, &q->f->seen[LS_STACK_LENGTHS], &p);
    if (p.least_prompt == INT64_MAX) return LS_OK;
    for (int64_t low = p.prompt_clean; low > 0 && value < 0; low /= 2)
        LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_LENGTH, low, p.least_prompt, lay_length, &value, err));
    return LS_OK;
}

ls_status ls_decide_lengths(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const ls_seen *seen = &f->seen[LS_STACK_LENGTHS];
    parting p, small, large;
    const char *against = NULL;
    ls_page_moves page = LS_PAGE_MOVES_UNKNOWN;
    int64_t value = -1, bucket, of_pages;
    bool found;
    part_tokens(q, seen, &p);
    if (p.behind_eos && p.n_behind_eos > 0) {
        ls_foreign_find(f, LS_CAUSE_EOS_INSIDE, LS_STACK_LENGTHS, 0.9,
                        "what is off stands behind an end-of-sequence token, all %" PRId64 " tokens of it", p.n_off);
        return LS_OK;
    }
    LS_TRY(decide_front(q, &p, &found, err));
    if (found) return LS_OK;
    /* Decoded tokens alone. */
    if (p.first_tokens_off == 0 && p.later_off > 0) {
        if (short_prompts_are_off(q, seen)) {
            ls_foreign_find(
                f, LS_CAUSE_WINDOW_IN_SHORT_CHUNKS, LS_STACK_LENGTHS, 0.93,
                "decoded tokens are off behind prompts of fewer than %d tokens, and right behind all others",
                (int)q->config->d_conv - 1);
            return LS_OK;
        }
        LS_TRY(decide_rows(q, &found, err));
        if (found) return LS_OK;
        q->decode_solo = true;
        LS_TRY(ls_explain_experiment(q, LS_STACK_LENGTHS, 0.95, &found, err));
        q->decode_solo = false;
        if (!found && (bucket = value_bucket(q, seen)) > 0) {
            LS_TRY(bucket_with_pages(q, 4, &of_pages, err));
            ls_foreign_find(f, of_pages == bucket ? LS_CAUSE_PADDING : LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS, 0.9,
                            "decoded tokens are right behind prompts whose length is a multiple of %" PRId64
                            " and off behind others; with pages of 4 tokens of %" PRId64,
                            bucket, of_pages);
            return LS_OK;
        }
        /* Many prompts are longer than the least context that is off, and right. */
        const bool in_decode =
            ls_portion(p.later_off, p.later) > (p.prompts_beyond_later >= DECODE_PROMPTS ? 0.2 : 0.5);
        if (!found && in_decode) LS_TRY(decide_pages_of_decode(q, &found, err));
        if (!found && in_decode) LS_TRY(ls_foreign_against_records(q, &against, err));
        if (!found && in_decode)
            ls_foreign_find(f, LS_CAUSE_DECODE_ARITHMETIC, LS_STACK_LENGTHS, against == NULL ? 0.85 : 0.75,
                            "first tokens of completions are within rounding, %" PRId64 " of %" PRId64
                            " decoded ones are not%s%s",
                            p.later_off, p.later, against != NULL ? "; but " : "", against != NULL ? against : "");
        if (found || in_decode) return LS_OK;
    }
    part_tokens(q, &f->seen[LS_STACK_PAGE4], &small);
    part_tokens(q, &f->seen[LS_STACK_PAGE64], &large);
    /* Contexts that are off with small pages and were right with others: those in between were not tried with both. */
    if (has_attention(q) && small.n_off > 0 && small.least_context <= p.clean_context && p.least_context > 4) {
        ls_foreign_find(f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS, 0.93,
                        "off from a context of %" PRId64 " on with pages of 16 tokens, from %" PRId64
                        " on with pages of 4",
                        p.least_context, small.least_context);
        return LS_OK;
    }
    if (p.least_context == INT64_MAX) return LS_OK;
    if (p.least_context > 1) {
        /* The contexts between the last clean one and the first that is off were not all tried. */
        if (p.least_prompt != INT64_MAX)
            for (int64_t low = p.least_context == p.least_prompt ? p.clean_context : p.prompt_clean;
                 low > 0 && value < 0; low /= 2) /* a shorter one may have been right by luck */
                LS_TRY(ls_foreign_bisect(q, LS_BOUNDED_LENGTH, low, p.least_prompt, lay_length, &value, err));
        if (value < 0) {
            value = p.least_context;
            LS_TRY(ls_foreign_bound(q, LS_BOUNDED_LENGTH, value, false, 1));
        }
        /* Prompts that are cut, windows, tables that end and pages look alike but for the values. */
        q->known_length = value;
        LS_TRY(ls_explain_experiment(q, LS_STACK_LENGTHS, 0.96, &found, err));
        q->known_length = 0;
        if (found) return LS_OK;
        if (has_attention(q)) LS_TRY(ls_foreign_page_moves(q, value, &page, err));
        if (value <= 2)
            ls_foreign_find(f, LS_CAUSE_POSITIONS, LS_STACK_LENGTHS, 0.6,
                            "a prompt of one token is right, longer ones are not");
        else if (page == LS_PAGE_MOVES)
            ls_foreign_find(f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS, 0.93,
                            "off from a context of %" PRId64 " on, and with other pages from another one", value);
        else if (near_block(value) && page == LS_PAGE_MOVES_UNKNOWN && has_attention(q))
            ls_foreign_find(f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS, 0.75,
                            "off from a context of %" PRId64
                            " on: a border of blocks of 16, but pages are not said to be obeyed",
                            value);
        else
            ls_foreign_find(f, LS_CAUSE_FROM_A_LENGTH, LS_STACK_LENGTHS, is_long(f, &p, value) ? 0.9 : 0.75,
                            "contexts below %" PRId64 " are within rounding; %" PRId64 " of %" PRId64
                            " tokens from there on are off",
                            value, p.beyond_off, p.beyond);
        return LS_OK;
    }
    ls_foreign_find(f, LS_CAUSE_WEIGHTS, LS_STACK_LENGTHS, 0.7,
                    "%" PRId64 " of %" PRId64 " tokens of requests alone are off", p.n_off, p.n_tokens);
    return LS_OK;
}

/* The share of sequences that are right where others are off, of those that could be off. */
static double share_right(const ls_foreign *f) {
    int64_t n = 0, right = 0;
    for (int r = LS_STACK_SOLO_A; r <= LS_STACK_LENGTHS; r++)
        for (int64_t s = 0; r != LS_STACK_AGAIN && s < f->seen[r].outcomes.n; s++) {
            const ls_outcome *c = &f->seen[r].outcomes.of[s];
            double most = 0.0;
            bool is_sure = true;
            for (int64_t i = 0; i < c->n; i++) {
                most = fmax(most, fabs((double)c->scored[i] - (double)c->logprob[i]));
                is_sure = is_sure && (double)c->scored[i] > LS_SURE_TOKEN;
            }
            n += !is_sure;
            right += !is_sure && most < 0.01 * f->floor;
        }
    return n > 0 ? (double)right / (double)n : 1.0;
}

typedef struct pair_of_values {
    double scored, d;
} pair_of_values;

static int by_scored(const void *a, const void *b) {
    const pair_of_values *x = a, *y = b;
    return (x->scored > y->scored) - (x->scored < y->scored);
}

/* Whether the record is a function of the trainer's value alone: then d of neighbours in that order are alike, whatever
 * the text. Their median difference as a share of the median |d|; 1 and more says that it is none. */
static double roughness(const ls_foreign *f) {
    pair_of_values list[PICKED_MOST];
    double steps[PICKED_MOST], sizes[PICKED_MOST];
    int64_t n = 0;
    for (int r = LS_STACK_SOLO_A; r <= LS_STACK_LENGTHS; r++)
        for (int64_t s = 0; r != LS_STACK_AGAIN && s < f->seen[r].outcomes.n; s++)
            for (int64_t i = 0; i < f->seen[r].outcomes.of[s].n && n < PICKED_MOST; i++) {
                const ls_outcome *c = &f->seen[r].outcomes.of[s];
                list[n].scored = (double)c->scored[i];
                list[n++].d = (double)c->logprob[i] - (double)c->scored[i];
            }
    if (n < 16) return 0.0;
    qsort(list, (size_t)n, sizeof *list, by_scored);
    for (int64_t i = 0; i < n; i++) {
        sizes[i] = fabs(list[i].d);
        steps[i] = i > 0 ? fabs(list[i].d - list[i - 1].d) : 0.0;
    }
    ls_sort(sizes, n);
    ls_sort(steps + 1, n - 1);
    return steps[1 + (n - 1) / 2] / fmax(sizes[n / 2], 1e-12);
}

/* What is cut or masked and renormalised moves every record to one side. */
static bool has_both_signs(const ls_foreign *f) {
    int64_t up = 0, down = 0;
    for (int r = LS_STACK_SOLO_A; r <= LS_STACK_LENGTHS; r++)
        for (int64_t s = 0; r != LS_STACK_AGAIN && s < f->seen[r].outcomes.n; s++)
            for (int64_t i = 0; i < f->seen[r].outcomes.of[s].n; i++) {
                const ls_outcome *c = &f->seen[r].outcomes.of[s];
                const double d = (double)c->logprob[i] - (double)c->scored[i];
                up += d > 0.1 * f->floor;
                down += d < -0.1 * f->floor;
            }
    return 10 * up > up + down && 10 * down > up + down;
}

/* With pages of one token, which are all full, everything is right. */
static ls_status right_by_page(ls_inquiry *q, bool *is_right, ls_error *err) {
    ls_seen seen = {0};
    *is_right = false;
    if (q->f->is_server || !has_attention(q)) return LS_OK;
    LS_TRY(try_pages_of(q, 1, &seen, err));
    *is_right = seen.outcomes.n > 0 && seen.abs_median < 0.02 * q->f->floor;
    ls_seen_deinit(&seen);
    return LS_OK;
}

/* All values are off and no explanation fits. What is wrong with weights or formulas shows everywhere alike: with
 * prompts of one token, short and long ones, at the first token and later ones, in every text, and not as a function of
 * the value. Anything put into prompts, left in a state, seen by attention alone or done to records does not. */
static ls_status decide_constant(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const char *against = NULL;
    char where[256];
    bool by_page, fades = false, anew = false;
    const bool uniform = ls_foreign_is_uniform(f, where, sizeof where);
    const double right = share_right(f), rough = roughness(f);
    bool sure = uniform && has_both_signs(f) && right < 0.02 && rough > 0.5 && f->repeat >= 0.0 &&
                f->repeat < 0.02 * f->floor && q->reference != NULL && !f->out_of_time;
    if (sure) LS_TRY(ls_foreign_against_records(q, &against, err));
    if (sure && against == NULL) LS_TRY(ls_foreign_fades(q, &fades, err));
    if (fades) against = "behind many drawn tokens it is gone, as what came with the prompt is";
    if (sure && against == NULL && f->bf16_size > 0.0 && f->floor < ROUNDING_MOST * f->bf16_size)
        LS_TRY(ls_foreign_is_drawn_anew(q, &anew, err));
    if (anew) against = "with another first token it is drawn anew, as rounding is";
    sure = sure && against == NULL;
    ls_foreign_find(f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_LONG, sure ? 0.86 : 0.75,
                    "requests alone are off by a median of %.2g, and no explanation that was tried takes it away; "
                    "%s; %.0f %% of the requests are right%s%s",
                    f->floor, where, 100.0 * right, against != NULL ? "; but " : "", against != NULL ? against : "");
    if (sure) f->found.of[0].is_confirmed = true;
    LS_TRY(right_by_page(q, &by_page, err));
    if (by_page) {
        ls_foreign_find(f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS, 0.93,
                        "requests alone are off by a median of %.2g, and with pages of one token they are right",
                        f->floor);
        f->found.of[0].is_confirmed = true;
    }
    return LS_OK;
}

ls_status ls_decide_solo(ls_inquiry *q, ls_error *err) {
    static const ls_stack_experiment solo[] = {LS_STACK_SOLO_A, LS_STACK_SOLO_B, LS_STACK_SOLO_C, LS_STACK_SOLO_LONG,
                                               LS_STACK_LENGTHS};
    ls_foreign *f = q->f;
    bool moves = false, found;
    ls_status status;
    if (f->constant) {
        if (f->repeat > 0.3 * f->floor && f->repeat > 5e-3) {
            ls_foreign_find(f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_AGAIN, 0.9,
                            "the same request twice differs by up to %.2g", f->repeat);
            return LS_OK;
        }
        if (f->bf16_size > 0.0 && f->floor < 3.0 * f->bf16_size) {
            f->constant = false; /* as large as bf16 makes it, and nothing says that it is more */
            if (!f->out_of_time || f->floor < 2.0 * f->bf16_size) return LS_OK;
            ls_foreign_find(f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_LONG, 0.6,
                            "requests alone are off by a median of %.2g, where bf16 throughout makes %.2g, and there "
                            "was no time for all explanations",
                            f->floor, f->bf16_size);
            f->found.of[0].is_confirmed = true;
            return LS_OK;
        }
        found = false;
        if (!f->out_of_time) LS_TRY(ls_decide_multiples(q, 0.1 * f->floor, f->floor, &found, err));
        return found ? LS_OK : decide_constant(q, err);
    }
    if (f->repeat > f->limit) {
        ls_foreign_find(f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_AGAIN, 0.97,
                        "the same request twice differs by up to %.2g, the median to the trainer is %.2g", f->repeat,
                        f->floor);
        return LS_OK;
    }
    for (size_t i = 0; i < sizeof solo / sizeof solo[0]; i++)
        if (off(q, solo[i]) && f->seen[solo[i]].outcomes.n > 0 && !moves)
            LS_TRY(ls_foreign_repeat(q, solo[i], &moves, err));
    if (moves) return LS_OK;
    if (off(q, LS_STACK_LENGTHS)) return ls_decide_lengths(q, err);
    for (size_t i = 0; i < 4; i++) {
        parting p;
        if (!off(q, solo[i])) continue;
        part_tokens(q, &f->seen[solo[i]], &p);
        q->records_solo = true;
        status = ls_explain_experiment(q, solo[i], 0.95, &found, err);
        q->records_solo = false;
        LS_TRY(status);
        if (found) return LS_OK;
        if (p.behind_eos && p.n_behind_eos > 0)
            ls_foreign_find(f, LS_CAUSE_EOS_INSIDE, solo[i], 0.85,
                            "what is off stands behind an end-of-sequence token");
        else
            ls_foreign_find(f, LS_CAUSE_DECODE_ARITHMETIC, solo[i], p.first_tokens_off == 0 ? 0.6 : 0.3,
                            "%s: %" PRId64 " of %" PRId64 " tokens are off", ls_stack_experiment_name(solo[i]), p.n_off,
                            p.n_tokens);
    }
    return LS_OK;
}
