/* What requests alone say of a server: what the numbers look like, at which lengths they are wrong, and which side of
 * them. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/compare/compare_causes.h"
#include "diagnose/rounding/inquiry.h"

/* Of what is looked for where all is within the limit. A length may choose a kernel, and bf16 makes so much of that in
 * the middle. */
#define LEAST_OF_LENGTHS 0.05

/* ---- what the numbers look like ---- */

typedef void visit(void *context, const ls_outcome *c, int64_t i);

static void each_solo(const ls_inquiry *q, visit *with, void *context) {
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++)
            for (int64_t i = 0; i < o->of[s].n; i++) with(context, &o->of[s], i);
    }
}

enum { PLACES_MOST = 4, LOG_PLACES_MOST = 6 };

typedef struct shape {
    double from;                           /* what is off */
    int64_t n, n_off, n_above;             /* tokens; off; records above the prompt's value, of those off */
    int64_t on_grid[2], scored_on_grid[2]; /* values of a narrow type */
    int64_t of_grid[2], scored_of_grid[2]; /* logarithms of such */
    int64_t of_places[PLACES_MOST], scored_of_places[PLACES_MOST]; /* values of so many decimals and one */
    int64_t log_of_places[LOG_PLACES_MOST], scored_log_of_places[LOG_PLACES_MOST]; /* logarithms of such and finer */
    double least; /* the lowest record, and how many are that; in a prompt lower by more than a little */
    int64_t n_least, n_least_above;
} shape;

static const int grid_bits[2] = {16, 13}; /* of a float32 that bf16 and f16 do not have */

static bool is_on_grid(float value, int bits) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return (word & (((uint32_t)1 << bits) - 1)) == 0;
}

/* As far as a float32 can say; by chance one value in fifty is. */
static bool is_of_places(double value, int places) {
    const double x = value * pow(10.0, places);
    return fabs(x - nearbyint(x)) < 0.01;
}

/* The same of a probability, whose logarithm is the float32. */
static bool is_log_of_places(double value, int places) {
    const double x = exp(value) * pow(10.0, places);
    return fabs(x - nearbyint(x)) < 0.01 + x * (1.0 - value) * (double)FLT_EPSILON;
}

/* Whether a value is the logarithm of a probability that a narrow type has, as far as a float32 can say. */
static bool is_log_of_grid(float value, int bits) {
    const float p = expf(value), finest = ldexpf(1.0f, -14); /* below it f16 has fewer bits */
    uint32_t word;
    float near;
    memcpy(&word, &p, sizeof word);
    word = (word + ((uint32_t)1 << (bits - 1))) & ~(((uint32_t)1 << bits) - 1);
    memcpy(&near, &word, sizeof near);
    return (bits > 13 || p >= finest) && fabsf(near - p) < 2e-6f * p;
}

static void look_at_token(void *context, const ls_outcome *c, int64_t i) {
    shape *s = context;
    const double record = (double)c->logprob[i], scored = (double)c->scored[i];
    if (!(scored < LS_SURE_TOKEN) || c->lacks) return;
    s->n++;
    for (int k = 0; k < 2; k++) {
        s->on_grid[k] += is_on_grid(c->logprob[i], grid_bits[k]);
        s->scored_on_grid[k] += is_on_grid(c->scored[i], grid_bits[k]);
        s->of_grid[k] += is_log_of_grid(c->logprob[i], grid_bits[k]);
        s->scored_of_grid[k] += is_log_of_grid(c->scored[i], grid_bits[k]);
    }
    for (int k = 0; k < PLACES_MOST; k++) {
        s->of_places[k] += is_of_places(record, k + 1);
        s->scored_of_places[k] += is_of_places(scored, k + 1);
    }
    for (int k = 0; k < LOG_PLACES_MOST; k++) {
        s->log_of_places[k] += is_log_of_places(record, k + 1);
        s->scored_log_of_places[k] += is_log_of_places(scored, k + 1);
    }
    if (record < s->least) s->least = record, s->n_least = s->n_least_above = 0;
    if (!(record > s->least)) s->n_least++, s->n_least_above += record > scored + 1e-3;
    if (fabs(record - scored) <= s->from) return;
    s->n_off++;
    s->n_above += record > scored;
}

/* Every record has as few bits as a narrow type, and the same values as a prompt have more: no chance does that. */
enum { GRID_LEAST = 20 };
static bool is_of_grid(const shape *s, int64_t n_records, int64_t n_scored) {
    return s->n >= GRID_LEAST && n_records == s->n && 2 * n_scored <= s->n;
}

static double sure_of_grid(const shape *s, int64_t n_records, int64_t n_scored) {
    return ls_probe_sure(ls_probe_chance(n_records, s->n, n_scored, s->n), 1.0 - ls_portion(n_records, s->n));
}

static void find_grid(ls_inquiry *q, const shape *s, int64_t n_records, int64_t n_scored, const char *what,
                      bool *found) {
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_COARSE_RECORDS, LS_STACK_SOLO_LONG, sure_of_grid(s, n_records, n_scored),
                    "%" PRId64 " of %" PRId64 " records are %s, and %" PRId64 " of the same tokens' in a prompt",
                    n_records, s->n, what, n_scored);
}

/* Of records or, where these are not so, of the prompt's values. */
static void try_grid(ls_inquiry *q, const shape *s, int64_t n_records, int64_t n_scored, const char *what,
                     bool *found) {
    if (*found) return;
    if (is_of_grid(s, n_records, n_scored)) {
        find_grid(q, s, n_records, n_scored, what, found);
    } else if (is_of_grid(s, n_scored, n_records)) {
        *found = true;
        ls_foreign_find(q->f, LS_CAUSE_COARSE_RECORDS, LS_STACK_SOLO_LONG, sure_of_grid(s, n_scored, n_records),
                        "%" PRId64 " of %" PRId64 " of the prompt's values are %s, and %" PRId64
                        " of the same tokens' records",
                        n_scored, s->n, what, n_records);
    }
}

static void decide_grid(ls_inquiry *q, const shape *s, bool *found) {
    static const char *const types[2] = {"values of bf16", "values of f16"};
    static const char *const logs[2] = {"logarithms of probabilities in bf16", "logarithms of probabilities in f16"};
    static const char *const decimals[PLACES_MOST] = {"values of one decimal", "values of two decimals",
                                                      "values of three decimals", "values of four decimals"};
    static const char *const logs_of_decimals[LOG_PLACES_MOST] = {
        "logarithms of probabilities of one decimal",    "logarithms of probabilities of two decimals",
        "logarithms of probabilities of three decimals", "logarithms of probabilities of four decimals",
        "logarithms of probabilities of five decimals",  "logarithms of probabilities of six decimals"};
    for (int k = 0; k < 2; k++) try_grid(q, s, s->on_grid[k], s->scored_on_grid[k], types[k], found);
    for (int k = 0; k < PLACES_MOST; k++) try_grid(q, s, s->of_places[k], s->scored_of_places[k], decimals[k], found);
    for (int k = 0; k < LOG_PLACES_MOST; k++)
        try_grid(q, s, s->log_of_places[k], s->scored_log_of_places[k], logs_of_decimals[k], found);
    for (int k = 0; k < 2 && !*found && s->n >= GRID_LEAST; k++) {
        /* Of the less likely ones f16 has fewer bits, and they are not told. */
        if (10 * s->of_grid[k] < 9 * s->n || 10 * s->scored_of_grid[k] > s->n) continue;
        find_grid(q, s, s->of_grid[k], s->scored_of_grid[k], logs[k], found);
    }
}

/* Several tokens have the lowest record of all, to the last bit, and should have less. */
static void decide_clamp(ls_inquiry *q, const shape *s, bool *found) {
    if (*found || s->n_least_above < 4 || 4 * s->n_least_above < 3 * s->n_least) return;
    *found = true;
    /* By chance one value in a thousand at most is another one to the last bit. */
    ls_foreign_find(q->f, LS_CAUSE_CLAMPED, LS_STACK_SOLO_LONG,
                    ls_probe_sure(pow(1e-3, (double)s->n_least_above), 1.0 - ls_portion(s->n_least_above, s->n_least)),
                    "%" PRId64 " records of %" PRId64 " are %.6g and none is below; in a prompt %" PRId64
                    " of these tokens have less",
                    s->n_least, s->n, s->least, s->n_least_above);
}

static ls_status lay_firsts(ls_inquiry *q, int64_t greedy, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    if (greedy) trial->sampling.temperature = 0.0f;
    trial->max_tokens = 1;
    for (int64_t i = 0; i < 16; i++) LS_TRY(ls_requests_plain(q, r, 3200 + i, 9, err));
    return LS_OK;
}

/* Two of one row are no farther apart; the second likeliest token's often is. */
#define SAME_RECORD 0.02
/* Records of drawn tokens are the likeliest token's, which temperature 0 draws from the same text. */
static ls_status decide_likeliest(ls_inquiry *q, const shape *s, bool *found, ls_error *err) {
    ls_seen drawn = {0}, likeliest = {0};
    int64_t n = 0, n_same = 0;
    ls_status status;
    if (*found || s->n_off < 4 || 10 * s->n_above < 9 * s->n_off) return LS_OK; /* rounding moves some of the others */
    LS_TRY_DONE(ls_foreign_try_laid(q, lay_firsts, 0, &drawn, err));
    LS_TRY_DONE(ls_foreign_try_laid(q, lay_firsts, 1, &likeliest, err));
    for (int64_t i = 0; i < drawn.outcomes.n && i < likeliest.outcomes.n; i++) {
        const ls_outcome *a = &drawn.outcomes.of[i], *b = &likeliest.outcomes.of[i];
        if (a->n == 0 || b->n == 0 || a->completion[0] == b->completion[0]) continue;
        n++;
        n_same += fabs((double)a->logprob[0] - (double)b->logprob[0]) <
                  fmin(SAME_RECORD, 0.1 * fabs((double)a->scored[0] - (double)a->logprob[0]));
    }
    *found = n >= 4 && 10 * n_same >= 9 * n;
    if (*found) /* by chance one in ten is so near */
        ls_foreign_find(q->f, LS_CAUSE_OTHER_RECORDS, LS_STACK_SOLO_LONG,
                        ls_probe_sure(pow(0.1, (double)n), 1.0 - ls_portion(n_same, n)),
                        "each record is the likeliest token's: so in %" PRId64 " of %" PRId64
                        " texts whose first token was another one",
                        n_same, n);
done:
    ls_seen_deinit(&drawn);
    ls_seen_deinit(&likeliest);
    return status;
}

/* What is cut and renormalised draws values of all texts together as a factor below 1 does. Of one text the tokens are
 * as far apart as they were, which no factor leaves. */
#define NO_FACTOR 0.03
static ls_status is_scaled(ls_inquiry *q, bool *scaled, ls_error *err) {
    ls_slope line;
    LS_TRY(ls_probe_measure_line(q, &line, err));
    *scaled = line.n < 12 || fabs(line.slope - 1.0) > NO_FACTOR || !(line.left_mean < LS_ON_LINE * line.spread);
    return LS_OK;
}

/* Those that hold for all records: another scale, another place. */
static ls_status decide_explained(ls_inquiry *q, bool *found, ls_error *err) {
    static const ls_stack_experiment solo[] = {LS_STACK_SOLO_A, LS_STACK_SOLO_LONG, LS_STACK_SOLO_B, LS_STACK_SOLO_C};
    ls_foreign *f = q->f;
    bool holds = true;
    double sure;
    LS_TRY(ls_explain(q, solo, 4, err));
    if (f->n_best == 0 || f->best[0].harmless) return LS_OK;
    if (f->best[0].cause == LS_CAUSE_SCALED) LS_TRY(is_scaled(q, &holds, err));
    sure = holds ? ls_explained_confidence(f) : 0.6;
    ls_foreign_find(f, f->best[0].cause, LS_STACK_SOLO_LONG, sure,
                    "requests alone: %s; with that the median |d| is %.2g in place of %.2g", f->best[0].what,
                    f->best[0].median, f->before.median);
    *found = sure >= LS_NAMED;
    return LS_OK;
}

/* Records are a function of others, such as means so far, and no cause stands for it: no other rule says more. */
static bool is_explained_unlisted(const ls_foreign *f) {
    return f->n_best > 0 && f->best[0].cause == LS_CAUSE_UNLISTED;
}

/* ---- another temperature, a cut distribution ---- */

enum { SEQUENCES_MOST = 64 };

static ls_status decide_numbers(ls_inquiry *q, bool *found, ls_error *err) {
    ls_compare_sequence sequences[SEQUENCES_MOST];
    ls_record *records = NULL;
    ls_mismatch_pair *pairs = NULL;
    const ls_finding *named;
    ls_compare_causes causes;
    int64_t n = 0, n_sequences = 0, most = 0;
    ls_status status;
    for (int r = 0; r < LS_PROBE_SOLO; r++)
        for (int64_t s = 0; s < q->f->seen[ls_probe_solo[r]].outcomes.n; s++)
            most += q->f->seen[ls_probe_solo[r]].outcomes.of[s].n;
    LS_TRY_DONE(ls_array_alloc((void **)&pairs, most, sizeof *pairs, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&records, SEQUENCES_MOST, sizeof *records, "records", err));
    for (int r = 0; r < LS_PROBE_SOLO; r++)
        for (int64_t s = 0; s < q->f->seen[ls_probe_solo[r]].outcomes.n && n_sequences < SEQUENCES_MOST; s++) {
            const ls_outcome *c = &q->f->seen[ls_probe_solo[r]].outcomes.of[s];
            ls_record *record = &records[n_sequences];
            const int64_t from = n;
            ls_record_init(record);
            record->prompt_ids = (int32_t *)(uintptr_t)c->prompt;
            record->n_prompt = c->n_prompt;
            record->completion_ids = c->completion;
            record->n_completion = record->n_logprobs = c->n;
            for (int64_t i = 0; i < c->n; i++)
                if (isfinite(c->logprob[i]) && isfinite(c->scored[i]))
                    pairs[n++] = (ls_mismatch_pair){(double)c->logprob[i], (double)c->scored[i], n_sequences, i};
            sequences[n_sequences++] = (ls_compare_sequence){record, record, from, n, c->n};
        }
    LS_TRY_DONE(ls_compare_explain(&causes, pairs, n, sequences, n_sequences, err));
    named = ls_compare_named(&causes);
    *found = named != NULL && ls_cause_of(named->cause)->family == LS_FAMILY_SAMPLING;
    if (*found)
        ls_foreign_find(q->f, named->cause, LS_STACK_SOLO_LONG, named->confidence,
                        "requests alone: with A what is recorded and B the prompt's values, %s", named->evidence);
done:
    free(records);
    free(pairs);
    return status;
}

/* A cut raises unlikely tokens' records as another temperature does, of all texts together. Of one text it leaves them
 * as far apart as they were, and what is cut by the token itself puts them on no line. */
static ls_status check_temperature(ls_inquiry *q, bool *found, ls_error *err) {
    ls_finding *first = &q->f->found.of[0];
    ls_slope line;
    if (!*found || first->cause != LS_CAUSE_TEMPERATURE) return LS_OK;
    LS_TRY(ls_probe_measure_line(q, &line, err));
    if (line.n < 12 || (fabs(line.slope - 1.0) > 0.1 && line.left_mean < LS_ON_LINE * line.spread)) return LS_OK;
    first->confidence = 0.6;
    *found = false;
    return LS_OK;
}

/* ---- lengths ---- */

static ls_status decide_multiples(ls_inquiry *q, bool *found, ls_error *err) {
    const ls_foreign *f = q->f;
    return ls_decide_multiples(q, 0.1 * (q->of_pattern ? f->floor_max : fmax(f->floor_max, f->limit)),
                               q->of_pattern ? LEAST_OF_LENGTHS : ls_probe_moved_from(q), found, err);
}

enum { LENGTH_NEW = 3 };
static ls_status lay_length(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = LENGTH_NEW;
    for (int64_t i = 0; i < 4; i++) LS_TRY(ls_requests_plain(q, r, 3400 + i, value, err));
    return LS_OK;
}

/* What stands in front of a text: nothing that is kept for it; its own beginning, as far as the server keeps that, so
 * that a forward has few rows and as long a context; or as many tokens of another. */
enum { COLD = 0, PREPARED, BEHIND_ANOTHER, IN_FRONT, PREPARED_TEXTS = 4 };

static ls_status lay_in_front(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t n = value / IN_FRONT, front = value % IN_FRONT;
    ls_stack_trial(q, front == COLD ? LS_STACK_SOLO_C : LS_STACK_CACHED_SHARED, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = 1;
    for (int64_t i = 0; i < PREPARED_TEXTS; i++) {
        if (front != COLD) LS_TRY(ls_requests_plain(q, r, (front == PREPARED ? 3500 : 3510) + i, n - 4, err));
        LS_TRY(ls_requests_plain(q, r, 3500 + i, n, err));
    }
    return LS_OK;
}

/* The value of each text, and what came of it when nothing was in front. */
static ls_status try_in_front(ls_inquiry *q, int64_t length, int64_t front, const ls_outcomes *cold, ls_seen *out,
                              int64_t *n_moved, ls_error *err) {
    const int64_t step = front == COLD ? 1 : 2;
    *n_moved = 0;
    LS_TRY(ls_foreign_try_laid(q, lay_in_front, length * IN_FRONT + front, out, err));
    for (int64_t i = 0; cold != NULL && i < cold->n && step * i + step - 1 < out->outcomes.n; i++)
        *n_moved += ls_probe_apart(&cold->of[i], &out->outcomes.of[step * i + step - 1]) > ls_probe_moved_from(q);
    return LS_OK;
}

/* Rows of a forward are what counts, and a length is what they come from, where a text moves when its own beginning was
 * computed before. A hit that is wrong moves a text, too: then it is moved by another text that has nothing in common
 * with it, or when it comes again with nothing in front. */
typedef struct fronts {
    int64_t own, other, again; /* texts that move */
    int64_t by_itself;         /* .. when the same stands in front for the second time */
} fronts;

static ls_status measure_fronts(ls_inquiry *q, int64_t length, fronts *out, ls_error *err) {
    enum { TRIALS = 5 };
    ls_seen of[TRIALS] = {0};
    ls_status status;
    LS_TRY_DONE(try_in_front(q, length, COLD, NULL, &of[0], &out->own, err));
    LS_TRY_DONE(try_in_front(q, length, BEHIND_ANOTHER, &of[0].outcomes, &of[1], &out->other, err));
    LS_TRY_DONE(try_in_front(q, length, PREPARED, &of[0].outcomes, &of[2], &out->own, err));
    LS_TRY_DONE(try_in_front(q, length, COLD, &of[0].outcomes, &of[3], &out->again, err));
    LS_TRY_DONE(try_in_front(q, length, PREPARED, NULL, &of[4], &out->by_itself, err));
    for (int64_t i = 1; i < of[2].outcomes.n && i < of[4].outcomes.n; i += 2)
        out->by_itself += ls_probe_apart(&of[2].outcomes.of[i], &of[4].outcomes.of[i]) > ls_probe_moved_from(q);
done:
    for (int k = 0; k < TRIALS; k++) ls_seen_deinit(&of[k]);
    return status;
}

/* Several at once, all of them shorter, with as many rows together; `value` below 0: one at a time. */
enum { TOGETHER = 8, TOGETHER_TIMES = 2 };
static ls_status lay_rows(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t length = value < 0 ? -value : value;
    ls_stack_trial(q, value < 0 ? LS_STACK_SOLO_C : LS_STACK_BATCH, trial, NULL);
    trial->max_tokens = 2;
    for (int64_t i = 0; i < TOGETHER; i++)
        LS_TRY(ls_requests_plain(q, r, (q->other_texts ? 3560 : 3550) + i, length / 2, err));
    return LS_OK;
}

/* *sure: that they are off together and not alone. */
static ls_status rows_together(ls_inquiry *q, int64_t length, double *sure, ls_error *err) {
    int64_t off[2] = {0, 0}, n[2] = {0, 0};
    ls_status status = LS_OK;
    *sure = 0.0;
    if (length < 2) return LS_OK;
    for (int k = 0; k < TOGETHER_TIMES * 2 && status == LS_OK; k++) {
        ls_seen s;
        q->other_texts = k >= 2;
        status = ls_foreign_try_laid(q, lay_rows, k % 2 == 0 ? length : -length, &s, err);
        if (status == LS_OK) off[k % 2] += s.n_sequences_off, n[k % 2] += s.n_sequences;
        ls_seen_deinit(&s);
    }
    q->other_texts = false;
    if (status == LS_OK && 2 * off[0] >= n[0]) *sure = ls_probe_sure(ls_probe_chance(off[0], n[0], off[1], n[1]), 0.0);
    return status;
}

/* Whether the rows of a forward choose what computes the prompt's values: tokens of a text have others in front of so
 * much more text, and no others in front of more than that. No token is moved by what stands behind it, and a scale of
 * the whole length moves both. *moved: texts that do so; -1: not asked. */
/* Neither where it cannot be asked, nor for rows: a scale that prompts have from one length on, and decode has not,
 * looks the same. */
#define LENGTH_OR_ROWS 0.88
enum { BEHIND_TEXTS = 4, BEHIND_MOST = 512 };
static ls_status measure_rows(ls_inquiry *q, int64_t few, double from, int64_t *moved, ls_error *err) {
    const int64_t length_max = q->runner->sweep->opts.length_max;
    *moved = -1;
    if (few < 4 || 4 * few > BEHIND_MOST || (length_max > 0 && 4 * few > length_max) ||
        q->runner->door->subject->scores_by_token)
        return LS_OK;
    *moved = 0;
    for (int64_t text = 0; text < BEHIND_TEXTS; text++) {
        int32_t ids[BEHIND_MOST];
        float values[3][BEHIND_MOST];
        double apart[2] = {0.0, 0.0};
        for (int64_t i = 0; i < 4 * few; i++) ids[i] = ls_plain_token(q, 3600 + text, i);
        for (int k = 0; k < 3; k++)
            LS_TRY(ls_probe_score(q, (ls_prompt){ids, 1}, ids + 1, few * (1 << k) - 1, values[k], err));
        for (int64_t i = 0; i < few - 1; i++)
            for (int k = 0; k < 2; k++)
                apart[k] = fmax(apart[k], fabs((double)values[k][i] - (double)values[k + 1][i]));
        *moved += apart[0] > from && apart[1] <= from;
    }
    return LS_OK;
}

/* The largest |d| of the requests of lengths, by their length; how many. */
typedef struct sized {
    int64_t length;
    double size;
} sized;

enum { SIZED_MOST = 64 };

static int by_length(const void *a, const void *b) {
    const sized *x = a, *y = b;
    return (x->length > y->length) - (x->length < y->length);
}

static int64_t sizes(const ls_inquiry *q, sized *out) {
    static const ls_stack_experiment experiments[2] = {LS_STACK_LENGTHS, LS_STACK_LONG};
    int64_t n = 0;
    for (int r = 0; r < 2; r++) {
        const ls_outcomes *o = &q->f->seen[experiments[r]].outcomes;
        for (int64_t s = 0; s < o->n && n < SIZED_MOST; s++) {
            const ls_outcome *c = &o->of[s];
            out[n] = (sized){c->n_prompt, ls_probe_size(c)};
            n += c->n > 0;
        }
    }
    qsort(out, (size_t)n, sizeof *out, by_length);
    return n;
}

/* The place in [n] from which on most are far beyond those before it, of which one in ten may be a tail, and the first
 * of those with the fewest that are not; n: there is none. *cut: what tells them. In a coarse type values before it may
 * be equal to the bit, and then a rounding is far beyond them as well. */
enum { BEFORE = 5, BEFORE_FINE = 3, BEHIND = 6, TAIL_OF = 10 };
static int64_t parting(const sized *of, int64_t n, double least, int64_t n_before, double *cut, int64_t *n_beyond) {
    double before[SIZED_MOST]; /* sorted */
    int64_t best = n, n_within = n;
    *cut = least;
    *n_beyond = 0;
    for (int64_t at = 0; at + BEHIND <= n; at++) {
        const double from = fmax(least, at > 0 ? 3.0 * before[at - 1 - at / TAIL_OF] : 0.0);
        int64_t n_far = 0;
        for (int64_t i = at; i < n; i++) n_far += of[i].size > from;
        if (at >= n_before && of[at].size > from && 10 * n_far >= 8 * (n - at) && n - at - n_far < n_within) {
            best = at;
            n_within = n - at - n_far;
            *cut = from;
            *n_beyond = n_far;
        }
        before[at] = of[at].size;
        ls_sort(before, at + 1);
    }
    return best;
}

/* No shorter one is off, and most of the longer ones are; else it may be those behind borders. */
ls_status ls_probe_decide_threshold(ls_inquiry *q, bool *found, ls_error *err) {
    const double limit = q->f->limit;
    sized of[SIZED_MOST];
    const int64_t n = sizes(q, of);
    int64_t value = -1, n_beyond;
    double together = 0.0, cut;
    int64_t moved = -1;
    fronts front = {0};
    ls_longest longest = {0};
    bool decides = true, is_kept;
    int64_t at = parting(of, n, q->of_pattern ? LEAST_OF_LENGTHS : 5e-5, BEFORE, &cut, &n_beyond);
    ls_status status = LS_OK;
    if (at == n && q->of_pattern) { /* the shorter ones may say that nothing here is as coarse as bf16 */
        at = parting(of, n, LS_FLIP_OF_F16, BEFORE_FINE, &cut, &n_beyond);
        if (at < n && !ls_probe_is_fine(&q->f->seen[LS_STACK_LENGTHS].outcomes, of[at].length)) at = n;
    }
    if (at == n) return ls_probe_decide_windows(q, found, err);
    q->f->limit = cut; /* what the shorter ones have, and not the bound of a type, tells them apart */
    LS_TRY_DONE(ls_foreign_bisect(q, LS_BOUNDED_LENGTH, of[at].length > 8 ? of[at].length / 2 : 1, 2 * of[at].length,
                                  lay_length, &value, err));
    if (value < 0) goto done; /* with other texts it is not so */
    LS_TRY_DONE(ls_probe_length_decides(q, value, cut, &decides, err));
    if (!decides) goto done;
    *found = true;
    if (ls_stack_refused(q, LS_STACK_CACHED_SHARED) == NULL)
        LS_TRY_DONE(measure_fronts(q, 2 * (value > 24 ? value : 24), &front, err));
    LS_TRY_DONE(rows_together(q, value, &together, err));
    LS_TRY_DONE(measure_rows(q, value + LENGTH_NEW - 1, cut, &moved, err));
    is_kept = front.by_itself == 0 && front.other + front.again >= 3;
    if (is_kept) LS_TRY_DONE(ls_probe_measure_longest(q, 2 * (value > 24 ? value : 24), &longest, err));
    if (longest.hangs)
        ls_foreign_find(q->f, LS_CAUSE_FROM_A_LENGTH, LS_STACK_LENGTHS, fmin(0.93, ls_probe_sure(longest.chance, 0.0)),
                        "off from %" PRId64
                        " tokens on, and texts of one length move with the length of the request "
                        "in front of them, %" PRId64 " of %" PRId64 " times, and with what that says %" PRId64
                        " of %" PRId64 ": what hangs on a length is kept, as a scale of the longest so far",
                        value, longest.by_length, longest.n, longest.by_text, longest.n);
    else if (moved == BEHIND_TEXTS)
        ls_foreign_find(q->f, LS_CAUSE_ORDER_BY_BATCH, LS_STACK_LENGTHS, LENGTH_OR_ROWS,
                        "off from %" PRId64
                        " tokens on, and the prompt's own values of as many tokens move, in %" PRId64
                        " of %d texts, when as much text again stands behind them, and not when more does: the rows of "
                        "a forward choose what computes it",
                        value, moved, BEHIND_TEXTS);
    else if (is_kept)
        ls_foreign_find(q->f, LS_CAUSE_CACHE_CROSSED, LS_STACK_LENGTHS, 0.85,
                        "off from %" PRId64 " tokens on, and of %d texts of one length %" PRId64
                        " move when another text was computed before, %" PRId64
                        " when they come again with nothing in front: it is what is kept, and no length",
                        value, PREPARED_TEXTS, front.other, front.again);
    else if ((front.own >= 3 && front.by_itself + front.other == 0) || together >= LS_NAMED)
        ls_foreign_find(q->f, LS_CAUSE_ORDER_BY_BATCH, LS_STACK_LENGTHS,
                        together >= LS_NAMED ? fmin(together, 0.93) : 0.85,
                        "off from %" PRId64
                        " tokens on, and %s: the rows of a forward choose the kernel. Another text "
                        "in front moves %" PRId64 " of %d",
                        value,
                        front.own >= 3 ? "a text of one length moves when its beginning was computed before"
                                       : "so are eight at once of half that length, and one at a time they are not",
                        front.other, PREPARED_TEXTS);
    else
        ls_foreign_find(
            q->f, LS_CAUSE_FROM_A_LENGTH, LS_STACK_LENGTHS,
            fmin(moved < 0 ? LENGTH_OR_ROWS : 0.95, 1.0 - (double)n * ls_probe_chance(n_beyond, n - at, 0, at)),
            "prompts of fewer than %" PRId64 " tokens are within %.2g; %" PRId64 " of %" PRId64
            " longer ones are not, and other texts of that length are not either",
            value, cut, n_beyond, n - at);
done:
    q->f->limit = limit;
    return status;
}

/* ---- what is left ---- */

typedef struct sides {
    int64_t first, first_off, later, later_off;
    int64_t second, second_off; /* of later ones: where more come behind it */
} sides;

/* Prefill and decode have floors of their own: while first tokens are as near as bf16 makes them, those behind them are
 * held against the farthest of them. So they are where that one is far nearer than decoded ones are in the middle: of a
 * model that is sure of its tokens rounding takes the others far. */
#define FAR_NEARER 4.0
static double moved_beside_first(const ls_inquiry *q) {
    const double from = ls_probe_moved_from(q), first = q->f->paths[LS_PATH_PREFILL].most;
    const bool is_floor =
        first <= ls_probe_flip_of_bf16(q->f) || FAR_NEARER * first <= q->f->paths[LS_PATH_DECODE].median;
    return is_floor ? fmax(from, first) : from;
}

static void count_sides(const ls_inquiry *q, sides *out) {
    const double from = moved_beside_first(q);
    memset(out, 0, sizeof *out);
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++)
            for (int64_t i = 0; i < o->of[s].n; i++) {
                const ls_outcome *c = &o->of[s];
                const bool off = fabs((double)c->scored[i] - (double)c->logprob[i]) > from;
                if (!((double)c->scored[i] < LS_SURE_TOKEN)) continue;
                out->first += i == 0, out->first_off += i == 0 && off;
                out->later += i > 0, out->later_off += i > 0 && off;
                if (i == 1 && c->n > 2) out->second++, out->second_off += off;
            }
    }
}

/* What is read in place of a prompt moves first tokens as well. */
static bool first_are_off(const ls_inquiry *q) {
    sides s;
    count_sides(q, &s);
    return 2 * s.first_off > s.first;
}

/* Enough of them to look at. */
static bool some_first_are_off(const ls_inquiry *q) {
    sides s;
    count_sides(q, &s);
    return 8 * s.first_off > s.first;
}

/* Records of first tokens that are the second token's value; of how many that are off. */
static int64_t count_early(const ls_inquiry *q, int64_t *n) {
    int64_t n_early = 0;
    *n = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++) {
            const ls_outcome *c = &o->of[s];
            const double own = c->n > 1 ? fabs((double)c->scored[0] - (double)c->logprob[0]) : 0.0;
            if (!(own > ls_probe_moved_from(q))) continue;
            (*n)++;
            n_early += fabs((double)c->scored[1] - (double)c->logprob[0]) < 0.1 * own;
        }
    }
    return n_early;
}

/* Decoded tokens are right and the first one is not, in more than half of the prompts: by how sure the two shares are
 * apart. */
static void decide_first(ls_inquiry *q, bool *found) {
    int64_t n;
    const int64_t n_early = count_early(q, &n);
    const bool early = n >= 8 && 10 * n_early >= 9 * n;
    double chance, sure;
    sides s;
    count_sides(q, &s);
    if (s.later_off > 0 || 2 * s.first_off <= s.first) return;
    *found = true;
    chance = ls_probe_chance(s.first_off, s.first, s.later_off, s.later);
    sure = ls_probe_sure(chance, 1.0 - ls_portion(n_early, n));
    ls_foreign_find(q->f, early ? LS_CAUSE_SHIFTED : LS_CAUSE_FIRST_TOKENS, LS_STACK_SOLO_LONG,
                    early ? sure : fmin(ls_probe_sure(chance, 0.0), 0.9),
                    "%" PRId64 " of %" PRId64 " first tokens are off, and of decoded ones %" PRId64 " of %" PRId64
                    "; of %" PRId64 " first records %" PRId64 " are the second token's value",
                    s.first_off, s.first, s.later_off, s.later, n, n_early);
}

/* Records behind the first one that are their token's value and the record before, of those far from the value. */
static int64_t count_sums(const ls_inquiry *q, int64_t *n) {
    const double from = ls_probe_moved_from(q);
    int64_t n_sums = 0;
    *n = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++)
            for (int64_t i = 1; i < o->of[s].n; i++) {
                const double record = (double)o->of[s].logprob[i], before = (double)o->of[s].logprob[i - 1];
                const double d = fabs(record - (double)o->of[s].scored[i]);
                if (!(d > from)) continue;
                ++*n;
                n_sums += fabs(record - before - (double)o->of[s].scored[i]) < 0.1 * d;
            }
    }
    return n_sums;
}

/* Rounding, records and what stands in front of prompts leave their marks on where values are off: on a side, by how
 * likely a token is, by the length of a prompt. Other weights have none. */
#define NO_TREND 0.3
static bool hangs_on_value(const ls_inquiry *q) {
    double d[96], scored[96];
    int64_t n = 0, n_up = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n && ls_probe_solo[r] != LS_STACK_AGAIN; s++)
            for (int64_t i = 0; i < o->of[s].n && n < 96; i++) {
                if (!((double)o->of[s].scored[i] < LS_SURE_TOKEN)) continue;
                scored[n] = (double)o->of[s].scored[i];
                d[n] = (double)o->of[s].logprob[i] - scored[n];
                n_up += d[n++] > 0.0;
            }
    }
    return n < 48 || 4 * n_up < n || 4 * n_up > 3 * n || fabs(ls_rank_correlation(d, scored, n)) > NO_TREND;
}

/* The same wherever it could be, and each time: what computes these values has other weights, or another formula. */
#define REPEATS_BY 0.1
static double sure_of_weights(const ls_inquiry *q, char *text, size_t bytes) {
    const ls_foreign *f = q->f;
    return ls_foreign_is_uniform(f, text, bytes) && !hangs_on_value(q) && f->repeat >= 0.0 &&
                   f->repeat < REPEATS_BY * f->floor
               ? 0.86
               : 0.7;
}

/* A checkpoint tells which of the two sides of decoded tokens is not its own: so much farther is the one than the
 * other, and than what orders of addition make in bf16. */
#define SIDES 4.0
static bool is_side_off(const ls_expected *e, double side, double other) {
    return e->n > 0 && side > SIDES * fmax(other, e->median);
}

/* Records are the checkpoint's, and the same tokens' values in a prompt are not. */
static void decide_prompts(ls_inquiry *q, const sides *s, double chance) {
    const ls_expected *e = &q->f->expected;
    ls_foreign_find(
        q->f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_LONG, fmax(0.0, 0.93 - (double)LS_STACK_EXPERIMENTS * chance),
        "%" PRId64 " of %" PRId64
        " decoded tokens are off, and it is their values in prompts that are wrong: in the middle these are "
        "%.2g away from the checkpoint's and what decode records is %.2g away",
        s->later_off, s->later, e->decoded, e->records);
}

/* The head in few bits, where the checkpoint is given. */
static ls_status decide_head_of_decode(ls_inquiry *q, bool *found, ls_error *err) {
    ls_sweep_trainer *checkpoint = q->runner->sweep->opts.checkpoint;
    ls_model *model;
    if (checkpoint == NULL || ls_sweep_trainer_directory(checkpoint) == NULL) return LS_OK;
    LS_TRY(ls_sweep_trainer_model(checkpoint, 0, &model, err));
    return ls_probe_decide_head_weights(q, ls_sweep_trainer_directory(checkpoint), &model->config, found, err);
}

/* Prefill is right and the steps behind it are not, the first of them no less than others: by how sure the shares are
 * apart. What is off at some places of a completion alone is no arithmetic, nor is what dies away or hangs on draws.
 * Keys in few bits look like it whatever is known, and nothing that is asked tells them. Without a checkpoint wrong
 * values of prompts do as well. */
static ls_status decide_decode(ls_inquiry *q, const sides *s, ls_error *err) {
    const ls_expected *e = &q->f->expected;
    const double chance = ls_probe_chance(s->later_off, s->later, s->first_off, s->first);
    const bool at_once = 2 * s->second_off * s->later >= s->later_off * s->second;
    bool found = false, asked = false;
    double sure;
    if (at_once && is_side_off(e, e->decoded, e->records)) {
        decide_prompts(q, s, chance);
        return LS_OK;
    }
    if (at_once) LS_TRY(decide_head_of_decode(q, &found, err));
    if (at_once && !found) LS_TRY(ls_probe_decide_decoded(q, &found, &asked, err));
    if (found) return LS_OK;
    sure = !asked ? 0.82 : is_side_off(e, e->records, e->decoded) ? 0.88 : 0.85;
    ls_foreign_find(q->f, at_once ? LS_CAUSE_DECODE_ARITHMETIC : LS_CAUSE_UNLISTED, LS_STACK_SOLO_LONG,
                    fmax(0.0, (at_once ? sure : 0.7) - (double)LS_STACK_EXPERIMENTS * chance),
                    "first tokens are within rounding, all %" PRId64 "; of decoded ones %" PRId64 " of %" PRId64
                    " are off by more than two kernels are, of second tokens %" PRId64 " of %" PRId64 "%s",
                    s->first, s->later_off, s->later, s->second_off, s->second,
                    asked ? ". They are so late in a completion as well, and where each is the likeliest" : "");
    return LS_OK;
}

static ls_status decide_rest(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    char text[LS_NOTE_BYTES];
    int64_t n;
    const int64_t n_sums = count_sums(q, &n);
    bool of_rows = false;
    double sure;
    sides s;
    count_sides(q, &s);
    if (n >= 8 && 10 * n_sums >= 9 * n) {
        ls_foreign_find(f, LS_CAUSE_UNLISTED, LS_STACK_SOLO_LONG, 0.7,
                        "records are running sums: %" PRId64 " of %" PRId64 " are the one before and their own value",
                        n_sums, n);
        return LS_OK;
    }
    if (s.first_off == 0 && 3 * s.later_off > s.later) {
        return decide_decode(q, &s, err);
    }
    LS_TRY(ls_probe_decide_rows(q, &of_rows, err));
    if (of_rows) return LS_OK;
    LS_TRY(ls_foreign_run_experiment(q, LS_STACK_SINGLE, err)); /* prompts of one token show what weights do alone */
    sure = sure_of_weights(q, text, sizeof text);
    ls_foreign_find(f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_LONG, sure,
                    "%" PRId64 " of %" PRId64 " first tokens and %" PRId64 " of %" PRId64
                    " decoded ones are off between what is generated and the same as a prompt, and nothing that was "
                    "tried takes it away: %s",
                    s.first_off, s.first, s.later_off, s.later,
                    sure < LS_NAMED ? "try --model with the checkpoint, and lockstep sweep" : text);
    return LS_OK;
}

static shape shape_of(const ls_inquiry *q) {
    shape s = {.from = ls_probe_moved_from(q), .least = (double)INFINITY};
    each_solo(q, look_at_token, &s);
    return s;
}

bool ls_probe_decide_records(ls_inquiry *q) {
    const shape s = shape_of(q);
    bool found = false;
    decide_grid(q, &s, &found);
    decide_clamp(q, &s, &found);
    return found;
}

/* Records that are of few bits themselves are as far apart as logits of few bits. */
static ls_status decide_head(ls_inquiry *q, bool *found, ls_error *err) {
    const shape s = shape_of(q);
    for (int k = 0; k < 2; k++)
        if (s.on_grid[k] == s.n) return LS_OK;
    for (int k = 0; k < PLACES_MOST; k++)
        if (s.of_places[k] == s.n) return LS_OK;
    return ls_probe_decide_head(q, found, err);
}

/* Between what float32 makes and what is looked at else there is a type with a few bits less. Where each value of a
 * prompt is a request there are too many to ask it of every server. */
static ls_status decide_narrow(ls_inquiry *q, bool *found, ls_error *err) {
    if (!(q->f->floor_max > LS_FINE) || q->runner->door->subject->scores_by_token) return LS_OK;
    return decide_head(q, found, err);
}

ls_status ls_probe_decide_pattern(ls_inquiry *q, ls_error *err) {
    bool found = false;
    if (q->f->floor_max < LS_LEAST_PATTERN) return decide_narrow(q, &found, err);
    q->of_pattern = true;
    LS_TRY(ls_probe_decide_function(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_signs(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_masked(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_draws(q, &found, err));
    if (!found) LS_TRY(decide_narrow(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_outgrown(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_predecessors(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_turns(q, &found, err));
    q->of_pattern = false;
    return LS_OK;
}

ls_status ls_probe_decide_lengths(ls_inquiry *q, ls_error *err) {
    bool found = false;
    if (q->f->floor_max < LS_LEAST_PATTERN || q->lengths_decided) return LS_OK;
    q->of_pattern = q->lengths_decided = true;
    LS_TRY(decide_multiples(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_threshold(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_borders(q, &found, err));
    q->of_pattern = false;
    return LS_OK;
}

ls_status ls_probe_decide_solo(ls_inquiry *q, ls_error *err) {
    const shape s = shape_of(q);
    bool found = false;
    LS_TRY(ls_probe_decide_outgrown(q, &found, err)); /* others send long requests */
    if (!found) LS_TRY(ls_probe_decide_predecessors(q, &found, err));
    if (!found) LS_TRY(ls_probe_measure_drift(q, err));
    if (!found) LS_TRY(ls_probe_decide_repeats(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_fewer(q, &found, err));
    if (!found) LS_TRY(decide_likeliest(q, &s, &found, err));
    if (!found) LS_TRY(decide_multiples(q, &found, err));
    if (!found) LS_TRY(decide_head(q, &found, err));
    if (!found) LS_TRY(decide_explained(q, &found, err));
    if (!found && is_explained_unlisted(q->f)) return LS_OK;
    if (!found) LS_TRY(ls_probe_decide_function(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_places(q, &found, err));
    if (!found && some_first_are_off(q)) LS_TRY(ls_probe_decide_other_ids(q, &found, err));
    if (!found) decide_first(q, &found);
    if (!found && some_first_are_off(q)) LS_TRY(ls_probe_decide_draws(q, &found, err));
    if (!found && q->f->constant && first_are_off(q)) LS_TRY(ls_probe_decide_misread(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_signs(q, &found, err));
    if (!found && q->f->constant) LS_TRY(decide_numbers(q, &found, err));
    LS_TRY(check_temperature(q, &found, err));
    if (!found && q->f->constant) LS_TRY(ls_probe_decide_slope(q, &found, err));
    if (!found && some_first_are_off(q)) LS_TRY(ls_probe_decide_two_records(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_content(q, &found, err));
    if (!found && !q->f->constant) LS_TRY(ls_decide_previous_request(q, LS_STACK_SEQUENCE, true, &found, err));
    if (!found) LS_TRY(ls_probe_decide_borders(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_threshold(q, &found, err));
    if (!found && q->f->seen[LS_STACK_LONG].outcomes.n == 0) { /* few of the others may be long enough */
        LS_TRY(ls_foreign_run_experiment(q, LS_STACK_LONG, err));
        LS_TRY(ls_probe_decide_threshold(q, &found, err));
    }
    if (!found) ls_probe_decide_drift(q, &found); /* a key that was not written is an old one as well */
    return found ? LS_OK : decide_rest(q, err);
}
