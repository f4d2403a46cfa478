/* Requests at once, of which some rows are off and others are not: whether it goes by how many there are, by who begins
 * while others run, or by how unlike their lengths are. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXT = 3400, ROUNDS = 6, ROUNDS_LEAST = 3, FOURS = 8 };
#define CHANCE 1e-5

/* Copies of one text: what others hold is nothing to them. */
static ls_status lay_copies(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_BATCH, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->levers.batch = q->beside;
    for (int64_t i = 0; i < q->beside; i++) LS_TRY(ls_requests_plain(q, r, text, 9, err));
    return LS_OK;
}

/* Empty rows that fill a batch up to a power of two: where there are none all is right, and where there are some they
 * make one row wrong. A kernel of that many rows makes all of them wrong. */
ls_status ls_probe_decide_filled_up(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    static const int64_t counts[2][3] = {{2, 4, 8}, {3, 5, 7}};
    const int64_t beside = q->beside;
    int64_t off[2] = {0, 0}, n = 0, n_rows = 0;
    double chance = 1.0;
    for (int64_t k = 0; k < ROUNDS && chance > CHANCE && (k < ROUNDS_LEAST || off[1] > 2 * off[0]); k++) {
        for (int i = 0; i < 6; i++) {
            ls_seen s;
            q->beside = counts[i % 2][i / 2];
            LS_TRY(ls_foreign_try_laid(q, lay_copies, TEXT + k, &s, err));
            q->beside = beside;
            off[i % 2] += s.n_sequences_off > 0;
            n_rows += i % 2 == 1 ? s.n_sequences_off : 0;
            ls_seen_deinit(&s);
        }
        n += 3;
        chance = ls_probe_chance(off[1], n, off[0], n);
    }
    *found = chance <= CHANCE && 2 * n_rows <= 3 * off[1];
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_PADDING, experiment, ls_probe_sure(chance, ls_portion(off[0], n)),
                        "copies of one text: three, five and seven at once are off in %" PRId64 " of %" PRId64
                        " trials, in one row of them, and two, four and eight in %" PRId64 " of %" PRId64
                        ": what fills a batch up to a power of two is in it",
                        off[1], n, off[0], n);
    return LS_OK;
}

/* ---- from how many rows on ---- */

/* Copies of one text, fewer and more of them. A kernel makes most rows off, and what a slot or one row has does not. */
enum { NUMBERS = 6, NUMBER_TEXTS = 4 };

static ls_status count_number(ls_inquiry *q, int64_t copies, int64_t *n_off, int64_t *n_rows, ls_error *err) {
    const int64_t beside = q->beside;
    for (int64_t k = 0; k < NUMBER_TEXTS; k++) {
        ls_seen s;
        ls_status status;
        q->beside = copies;
        status = ls_foreign_try_laid(q, lay_copies, TEXT + 160 + k, &s, err);
        q->beside = beside;
        LS_TRY(status);
        *n_off += s.n_sequences_off > 0;
        *n_rows += s.n_sequences_off;
        ls_seen_deinit(&s);
    }
    return LS_OK;
}

ls_status ls_probe_decide_number(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    static const int64_t numbers[NUMBERS] = {1, 2, 3, 4, 6, 8};
    int64_t off[NUMBERS] = {0}, rows[NUMBERS] = {0}, n_below = 0, n_from = 0, n_rows_off = 0, n_rows = 0;
    int first = 0;
    double sure;
    for (int i = 0; i < NUMBERS; i++) LS_TRY(count_number(q, numbers[i], &off[i], &rows[i], err));
    while (first < NUMBERS && off[first] == 0) first++;
    for (int i = 0; i < NUMBERS; i++) *(i < first ? &n_below : &n_from) += off[i];
    for (int i = first; i < NUMBERS; i++) n_rows_off += rows[i], n_rows += NUMBER_TEXTS * numbers[i];
    if (first == 0 || first == NUMBERS || 3 * n_rows_off < 2 * n_rows) return LS_OK;
    sure = ls_probe_sure(
        ls_probe_chance(n_from, (int64_t)NUMBER_TEXTS * (NUMBERS - first), n_below, (int64_t)NUMBER_TEXTS * first),
        1.0 - ls_portion(n_from, (int64_t)NUMBER_TEXTS * (NUMBERS - first)));
    *found = sure >= LS_NAMED;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_ORDER_BY_BATCH, experiment, sure,
                        "copies of one text are right up to %" PRId64 " at once, and from %" PRId64
                        " on off by up to %.2g, %" PRId64 " of %d times and %" PRId64 " of %" PRId64
                        " copies: how many rows there are chooses what computes them. No order of sums makes as much "
                        "as that",
                        numbers[first - 1], numbers[first], q->f->seen[experiment].abs_max, n_from,
                        NUMBER_TEXTS * (NUMBERS - first), n_rows_off, n_rows);
    return LS_OK;
}

/* ---- who comes, and not how many ---- */

/* Two copies of one text are as many rows whether they begin at once or one while the other decodes. */
enum { JOINED = 2, JOINED_TEXTS = 8, JOINED_NEW = 24 };
#define JOINED_CHANCE 1e-3

static ls_status lay_joined(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, text < 0 ? LS_STACK_BATCH : LS_STACK_STAGGERED, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->levers.batch = JOINED;
    trial->max_tokens = JOINED_NEW;
    for (int64_t i = 0; i < JOINED; i++) LS_TRY(ls_requests_plain(q, r, text < 0 ? -text : text, 9, err));
    return LS_OK;
}

ls_status ls_probe_decide_joined(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    int64_t off[2] = {0, 0}, last = 0; /* the first of two, joined and at once; the one that joins */
    double chance;
    for (int64_t k = 0; k < JOINED_TEXTS; k++)
        for (int at_once = 0; at_once < 2; at_once++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_joined, (at_once ? -1 : 1) * (TEXT + 240 + k), &s, err));
            if (s.outcomes.n == JOINED) {
                off[at_once] += ls_sequence_off(q->f, &s.outcomes.of[0]);
                last += !at_once && ls_sequence_off(q->f, &s.outcomes.of[1]);
            }
            ls_seen_deinit(&s);
            if (k == 1 && at_once && off[0] == 0) return LS_OK; /* nobody is moved by who comes */
        }
    chance = fmax(ls_probe_chance(off[0], JOINED_TEXTS, off[1], JOINED_TEXTS),
                  ls_probe_chance(off[0], JOINED_TEXTS, last, JOINED_TEXTS));
    *found = chance <= JOINED_CHANCE;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_UNLISTED, experiment, 0.7,
                        "of two copies of one text that begin at once %" PRId64
                        " of %d are off, and where one begins "
                        "while the other decodes that other one is, %" PRId64 " of %d, and the one that begins %" PRId64
                        " of %d: it is no number of rows, but what a step that a prompt joins leaves to those that run",
                        off[1], JOINED_TEXTS, off[0], JOINED_TEXTS, last, JOINED_TEXTS);
    return LS_OK;
}

/* Four at a time: of unlike lengths; `text` below 0: of one length. */
static ls_status lay_fours(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    static const int64_t lengths[FOURS] = {9, 14, 3, 11, 12, 5, 10, 7};
    ls_stack_trial(q, LS_STACK_UNEQUAL, trial, NULL);
    trial->sampling.temperature = 0.0f;
    for (int64_t i = 0; i < FOURS; i++)
        LS_TRY(ls_requests_plain(q, r, (text < 0 ? -text : text) + i, text < 0 ? 9 : lengths[i], err));
    return LS_OK;
}

ls_status ls_probe_lengths_matter(ls_inquiry *q, double *chance, ls_error *err) {
    int64_t off[2] = {0, 0}, n[2] = {0, 0};
    double p = 1.0;
    for (int64_t k = 0; k < ROUNDS && p > CHANCE && (k < ROUNDS_LEAST || off[0] > 2 * off[1]); k++) {
        for (int equal = 0; equal < 2; equal++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_fours, (equal ? -1 : 1) * (TEXT + 20 + FOURS * k), &s, err));
            off[equal] += s.n_sequences_off;
            n[equal] += s.n_sequences;
            ls_seen_deinit(&s);
        }
        p = ls_probe_chance(off[0], n[0], off[1], n[1]);
    }
    *chance = off[0] < 2 * off[1] ? 1.0 : p;
    return LS_OK;
}

/* Two at a time, of unlike lengths; and of one, both short and both long: each length stands on either side. Rows that
 * take room from each other are off now and then whatever their lengths are, and more often where one is filled up. */
enum { PAIR_ROUNDS = 16, PAIR_ROUNDS_LEAST = 4, PAIR_KINDS = 3, PAIR = 2, PAIR_SHORT = 9, PAIR_LONG = 60 };
#define MORE_OFTEN 1.5

static ls_status lay_pair(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    static const int64_t lengths[PAIR_KINDS][PAIR] = {
        {PAIR_SHORT, PAIR_LONG}, {PAIR_SHORT, PAIR_SHORT}, {PAIR_LONG, PAIR_LONG}};
    const int64_t kind = value % PAIR_KINDS, k = value / PAIR_KINDS;
    ls_stack_trial(q, LS_STACK_PAIR, trial, NULL);
    trial->sampling.temperature = 0.0f;
    for (int64_t i = 0; i < PAIR; i++)
        LS_TRY(ls_requests_plain(q, r, TEXT + 260 + PAIR * k + i, lengths[kind][(i + k) % PAIR], err));
    return LS_OK;
}

ls_status ls_probe_unlike_matter(ls_inquiry *q, double *chance, ls_error *err) {
    int64_t off[PAIR_KINDS] = {0}, n[PAIR_KINDS] = {0};
    double most = 0.0;
    *chance = 1.0;
    for (int64_t k = 0; k < PAIR_ROUNDS && !(*chance <= CHANCE) && (k < PAIR_ROUNDS_LEAST || *chance < 1.0); k++) {
        for (int kind = 0; kind < PAIR_KINDS; kind++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_pair, PAIR_KINDS * k + kind, &s, err));
            off[kind] += s.n_sequences_off;
            n[kind] += s.n_sequences;
            ls_seen_deinit(&s);
        }
        most = fmax(ls_portion(off[1], n[1]), ls_portion(off[2], n[2]));
        *chance = ls_portion(off[0], n[0]) < MORE_OFTEN * most
                      ? 1.0
                      : ls_probe_chance(off[0], n[0], off[1] + off[2], n[1] + n[2]);
    }
    return LS_OK;
}

/* ---- whose distribution a record is of ---- */

enum { AT_ONCE = 2, PROMPT = 9, STEPS = 12, PAIRS = 24, RECORDS_LEAST = 10, RECORDS_MOST = 16 };
/* So many at once that some wait for a place, and begin in the step in which another one ends. */
enum { QUEUED = 72, QUEUED_TEXTS = 6, QUEUED_STEPS = 4, QUEUES = 3 };

/* The one begins before the other, and ends while the other goes on. */
static ls_status lay_overlap(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_STAGGERED, trial, NULL);
    trial->levers.batch = AT_ONCE;
    trial->max_tokens = STEPS;
    for (int64_t i = 0; i < AT_ONCE; i++) LS_TRY(ls_requests_plain(q, r, text + i, PROMPT, err));
    return LS_OK;
}

static ls_status lay_queue(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_CROWD, trial, NULL);
    trial->sampling.temperature = 0.0f; /* copies have the same tokens */
    trial->max_tokens = QUEUED_STEPS;
    for (int64_t i = 0; i < QUEUED; i++) LS_TRY(ls_requests_plain(q, r, text + i % QUEUED_TEXTS, PROMPT, err));
    return LS_OK;
}

/* The value of a token in the place of another request's token `at`. */
static ls_status value_behind(ls_inquiry *q, int64_t text, const ls_outcome *other, int32_t token, int64_t at,
                              double *value, ls_error *err) {
    int32_t prompt[PROMPT], tokens[STEPS + 1];
    float values[STEPS + 1];
    for (int64_t i = 0; i < PROMPT; i++) prompt[i] = ls_plain_token(q, text, i);
    memcpy(tokens, other->completion, (size_t)at * sizeof *tokens);
    tokens[at] = token;
    LS_TRY(ls_probe_score(q, (ls_prompt){prompt, PROMPT}, tokens, at + 1, values, err));
    *value = (double)values[at];
    return LS_OK;
}

/* Records that are off; of them, those that have the value that their token has in another place of one of the texts,
 * where that is of another text, and those that would by chance, as far aside. */
typedef struct behind {
    int64_t n, hits, others, aside;
} behind;

/* Of requests whose texts are `text` and those behind it, in turn. */
static ls_status count_behind(ls_inquiry *q, int64_t text, int64_t n_texts, const ls_outcomes *o, behind *out,
                              ls_error *err) {
    const double near = fmax(1e-5, fmin(q->f->floor_q90, 0.02));
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n && out->n < RECORDS_MOST; i++) {
            const double record = (double)o->of[s].logprob[i];
            bool hit = false, other = false, hit_aside = false;
            if (!ls_token_off(q->f, &o->of[s], i) || !(record < LS_SURE_TOKEN)) continue;
            for (int64_t k = 0; k < n_texts; k++) {
                for (int64_t at = 0; at < o->of[k].n; at++) {
                    double value;
                    if (k == s % n_texts && at == i) continue;
                    LS_TRY(value_behind(q, text + k, &o->of[k], o->of[s].completion[i], at, &value, err));
                    hit = hit || fabs(value - record) <= near;
                    other = other || (k != s % n_texts && fabs(value - record) <= near);
                    hit_aside = hit_aside || fabs(value - record - 20.0 * near) <= near;
                }
            }
            out->n++;
            out->hits += hit;
            out->others += other;
            out->aside += hit_aside;
        }
    return LS_OK;
}

static ls_status try_behind(ls_inquiry *q, ls_lay lay, int64_t text, int64_t n_texts, behind *out, ls_error *err) {
    ls_seen s;
    ls_status status;
    LS_TRY(ls_foreign_try_laid(q, lay, text, &s, err));
    status = count_behind(q, text, n_texts, &s.outcomes, out, err);
    ls_seen_deinit(&s);
    return status;
}

static bool is_of_others(const behind *b) {
    /* Of its own text alone they are late or early. */
    return 2 * b->hits > b->n && 2 * b->others > b->hits &&
           ls_probe_sure(ls_probe_chance(b->hits, b->n, b->aside, b->n), 0.0) >= LS_NAMED;
}

ls_status ls_probe_decide_row_of_other(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    behind b = {0};
    for (int64_t k = 0; k < PAIRS && b.n < RECORDS_LEAST && (k < PAIRS / 2 || b.hits > 0); k++)
        LS_TRY(try_behind(q, lay_overlap, TEXT + 80 + AT_ONCE * k, AT_ONCE, &b, err));
    if (!is_of_others(&b)) {
        b = (behind){0};
        for (int64_t k = 0; k < QUEUES && b.n < RECORDS_LEAST; k++)
            LS_TRY(try_behind(q, lay_queue, TEXT + 170 + QUEUED_TEXTS * k, QUEUED_TEXTS, &b, err));
    }
    *found = is_of_others(&b);
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_OTHERS_STATE, experiment,
                        ls_probe_sure(ls_probe_chance(b.hits, b.n, b.aside, b.n), 1.0 - ls_portion(b.hits, b.n)),
                        "%" PRId64 " of %" PRId64
                        " records that are off are their token's value in another row, %" PRId64
                        " of them behind another text; %" PRId64 " are by chance",
                        b.hits, b.n, b.others, b.aside);
    return LS_OK;
}
