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
 * make some of the others wrong. A kernel of that many rows makes all copies of a text wrong. */
ls_status ls_probe_decide_filled_up(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    static const int64_t counts[2][3] = {{2, 4, 8}, {3, 5, 7}};
    const int64_t beside = q->beside;
    int64_t off[2] = {0, 0}, n = 0, n_partly = 0; /* trials; in which some copies are off and others are not */
    double chance = 1.0;
    for (int64_t k = 0; k < ROUNDS && chance > CHANCE && (k < ROUNDS_LEAST || off[1] > 2 * off[0]); k++) {
        for (int i = 0; i < 6; i++) {
            ls_seen s;
            q->beside = counts[i % 2][i / 2];
            LS_TRY(ls_foreign_try_laid(q, lay_copies, TEXT + k, &s, err));
            q->beside = beside;
            off[i % 2] += s.n_sequences_off > 0;
            n_partly += i % 2 == 1 && s.n_sequences_off > 0 && s.n_sequences_off < s.n_sequences;
            ls_seen_deinit(&s);
        }
        n += 3;
        chance = ls_probe_chance(off[1], n, off[0], n);
    }
    *found = chance <= CHANCE && 2 * n_partly >= off[1];
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_PADDING, experiment, ls_probe_sure(chance, ls_portion(off[0], n)),
                        "copies of one text: three, five and seven at once are off in %" PRId64 " of %" PRId64
                        " trials, in %" PRId64 " not all of them, and two, four and eight in %" PRId64 " of %" PRId64
                        ": what fills a batch up to a power of two is in it",
                        off[1], n, n_partly, off[0], n);
    return LS_OK;
}

/* ---- from how many rows on ---- */

/* Copies of one text, fewer and more of them. A kernel makes most rows off, and what a slot or one row has does not.
 * One that has room for so many rows makes those behind them off, as many each time. */
enum { NUMBERS = 6, NUMBER_TEXTS = 4 };
static const int64_t numbers[NUMBERS] = {1, 2, 3, 4, 6, 8};

typedef struct by_number {
    int64_t off, rows; /* trials that are off; rows in all of them */
    int64_t of[NUMBER_TEXTS];
} by_number;

static ls_status count_number(ls_inquiry *q, int64_t copies, by_number *out, ls_error *err) {
    const int64_t beside = q->beside;
    for (int64_t k = 0; k < NUMBER_TEXTS; k++) {
        ls_seen s;
        ls_status status;
        q->beside = copies;
        status = ls_foreign_try_laid(q, lay_copies, TEXT + 160 + k, &s, err);
        q->beside = beside;
        LS_TRY(status);
        out->off += s.n_sequences_off > 0;
        out->rows += s.n_sequences_off;
        out->of[k] = s.n_sequences_off;
        ls_seen_deinit(&s);
    }
    return LS_OK;
}

/* So many of one number's trials have as many rows off as most of them have. */
static int64_t count_alike(const by_number *b) {
    int64_t most = 0;
    for (int i = 0; i < NUMBER_TEXTS; i++) {
        int64_t n = 0;
        for (int k = 0; k < NUMBER_TEXTS; k++) n += b->of[k] == b->of[i];
        if (n > most) most = n;
    }
    return most;
}

/* Some rows are off from a number on, as many each time, and more of them where there are more: those behind a place.
 * Two numbers have to show it. A slot or one row is off alone, and a race makes as many seldom. */
static void decide_tail(ls_inquiry *q, ls_stack_experiment experiment, const by_number of[NUMBERS], int first,
                        bool *found) {
    const by_number *from = &of[first], *last = &of[NUMBERS - 1];
    const int64_t n = (int64_t)NUMBER_TEXTS * (NUMBERS - first), n_below = (int64_t)NUMBER_TEXTS * first;
    int64_t n_alike = 0, n_off = 0;
    double sure;
    for (int i = first; i < NUMBERS; i++) n_alike += count_alike(&of[i]), n_off += of[i].off;
    if (n_off < n || 4 * n_alike < 3 * n || last->rows < from->rows + NUMBER_TEXTS) return;
    sure = ls_probe_sure(ls_probe_chance(n_off, n, 0, n_below), 1.0 - ls_portion(n_alike, n));
    *found = sure >= LS_NAMED;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_ORDER_BY_BATCH, experiment, sure,
                        "copies of one text are right up to %" PRId64 " at once; of %" PRId64 " at once %" PRId64
                        " are off, by up to %.2g, and of %" PRId64 " at once %" PRId64 ", as many in %" PRId64
                        " of %" PRId64 " trials: their place in the batch chooses what computes them",
                        numbers[first - 1], numbers[first], from->of[0], q->f->seen[experiment].abs_max,
                        numbers[NUMBERS - 1], last->of[0], n_alike, n);
}

ls_status ls_probe_decide_number(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    by_number of[NUMBERS] = {0};
    int64_t n_below = 0, n_from = 0, n_rows_off = 0, n_rows = 0;
    int first = 0;
    double sure;
    for (int i = 0; i < NUMBERS; i++) LS_TRY(count_number(q, numbers[i], &of[i], err));
    while (first < NUMBERS && of[first].off == 0) first++;
    for (int i = 0; i < NUMBERS; i++) *(i < first ? &n_below : &n_from) += of[i].off;
    for (int i = first; i < NUMBERS; i++) n_rows_off += of[i].rows, n_rows += NUMBER_TEXTS * numbers[i];
    if (first == 0 || first == NUMBERS) return LS_OK;
    if (3 * n_rows_off < 2 * n_rows) {
        decide_tail(q, experiment, of, first, found);
        return LS_OK;
    }
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

/* ---- rows that are long ---- */

/* Two long ones at a time, of one length: of two texts, and copies of the one and of the other. Each text is right
 * among copies of itself, where no row has anything that the other has not, and which take as much room. */
enum { LONG_ROWS = 2, LONG_KINDS = 3, LONG_LENGTH = 96, LONG_NEW = 12, LONG_ROUNDS = 10, LONG_ROUNDS_LEAST = 3 };

static ls_status lay_long_rows(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    static const int64_t texts[LONG_KINDS][LONG_ROWS] = {{0, 1}, {0, 0}, {1, 1}};
    const int64_t text = TEXT + 320 + LONG_ROWS * (value / LONG_KINDS);
    ls_stack_trial(q, LS_STACK_BATCH, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->levers.batch = LONG_ROWS;
    trial->max_tokens = LONG_NEW;
    for (int i = 0; i < LONG_ROWS; i++)
        LS_TRY(ls_requests_plain(q, r, text + texts[value % LONG_KINDS][i], LONG_LENGTH, err));
    return LS_OK;
}

ls_status ls_probe_decide_long_rows(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    const int64_t most = q->runner->sweep->opts.length_max;
    int64_t off[2] = {0, 0}, n[2] = {0, 0}; /* trials: of two texts, and of copies */
    double chance = 1.0;
    *found = false;
    if (most > 0 && LONG_LENGTH + LONG_NEW > most) return LS_OK;
    for (int64_t k = 0; k < LONG_ROUNDS && chance > CHANCE && (k < LONG_ROUNDS_LEAST || off[0] > off[1]); k++) {
        for (int kind = 0; kind < LONG_KINDS; kind++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_long_rows, LONG_KINDS * k + kind, &s, err));
            off[kind > 0] += s.n_sequences_off > 0;
            n[kind > 0]++;
            ls_seen_deinit(&s);
        }
        chance = ls_probe_chance(off[0], n[0], off[1], n[1]);
    }
    *found = chance <= CHANCE && 8 * off[1] <= off[0];
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_OTHERS_STATE, experiment, ls_probe_sure(chance, ls_portion(off[1], n[1])),
                        "two prompts of %d tokens at a time: of two texts %" PRId64 " of %" PRId64
                        " trials are off, and of copies of one of them %" PRId64 " of %" PRId64
                        ", which take as much room. Short ones at once are right, and long ones alone",
                        LONG_LENGTH, off[0], n[0], off[1], n[1]);
    return LS_OK;
}

/* ---- whose distribution a record is of ---- */

enum { AT_ONCE = 2, PROMPT = 9, STEPS = 12, PAIRS = 24, RECORDS_LEAST = 10, RECORDS_MOST = 16 };
/* Places that a record is looked for in; and records that have none, behind which no more are looked at. */
enum { PLACES_MOST = 96, FRUITLESS_MOST = 6 };
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

static bool is_fruitless(const behind *b) { return b->n >= FRUITLESS_MOST && b->hits == 0; }

static bool begin_alike(const ls_outcome *a, const ls_outcome *b, int64_t tokens) {
    return a->n >= tokens && b->n >= tokens &&
           memcmp(a->completion, b->completion, (size_t)tokens * sizeof *a->completion) == 0;
}

/* Copies of one text go on alike, unless what is drawn is another row's: whether an earlier one has this place. */
static bool is_known(const ls_outcomes *o, int64_t n_texts, int64_t k, int64_t at) {
    for (int64_t i = k % n_texts; i < k; i += n_texts)
        if (o->of[i].n > at && begin_alike(&o->of[i], &o->of[k], at)) return true;
    return false;
}

/* Of requests whose texts are `text` and those behind it, in turn. */
static ls_status count_behind(ls_inquiry *q, int64_t text, int64_t n_texts, const ls_outcomes *o, behind *out,
                              ls_error *err) {
    const double near = fmax(1e-5, fmin(q->f->floor_q90, 0.02));
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n && out->n < RECORDS_MOST; i++) {
            const double record = (double)o->of[s].logprob[i];
            bool hit = false, other = false, hit_aside = false;
            if (!ls_token_off(q->f, &o->of[s], i) || !(record < LS_SURE_TOKEN)) continue;
            if (is_fruitless(out)) return LS_OK;
            for (int64_t k = 0, n_asked = 0; k < o->n; k++) {
                const bool own = k % n_texts == s % n_texts;
                for (int64_t at = 0; at < o->of[k].n && n_asked < PLACES_MOST; at++) {
                    double value;
                    if ((own && at == i && begin_alike(&o->of[k], &o->of[s], i)) || is_known(o, n_texts, k, at))
                        continue;
                    LS_TRY(value_behind(q, text + k % n_texts, &o->of[k], o->of[s].completion[i], at, &value, err));
                    n_asked++;
                    hit = hit || fabs(value - record) <= near;
                    other = other || (!own && fabs(value - record) <= near);
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
    for (int64_t k = 0; k < PAIRS && b.n < RECORDS_LEAST && (k < PAIRS / 2 || b.hits > 0) && !is_fruitless(&b); k++)
        LS_TRY(try_behind(q, lay_overlap, TEXT + 80 + AT_ONCE * k, AT_ONCE, &b, err));
    if (!is_of_others(&b)) {
        b = (behind){0};
        for (int64_t k = 0; k < QUEUES && b.n < RECORDS_LEAST && !is_fruitless(&b); k++)
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
