/* Which rows go through which forward: sequences one behind the other, or of groups what they have in common once. */
#include <math.h>

#include "base/mem.h"
#include "op/logprob.h"
#include "train/trainer_state.h"

int64_t ls_trainer_leaves(const ls_trainer *t, int64_t n) { return (n - 1) / t->opts.leaf + 1; }

int64_t ls_trainer_leaf_rows(const ls_trainer *t) {
    const ls_trainer_opts *o = &t->opts;
    if (o->leaf_rows_max > o->rows_max) return o->leaf_rows_max;
    return (o->group > 0 ? 2 : 1) * ls_min_i64(o->leaf, o->sequences_max) > o->spans_max ? o->rows_max : 0;
}

/* Tokens of the sequences of a forward, at most. */
static int64_t whole_rows_max(const ls_trainer *t) {
    return t->opts.group > 0 ? t->opts.spans_max * t->opts.longest : t->opts.rows_max;
}

static ls_status alloc_row_floats(void **out, int64_t n, ls_error *err) {
    return ls_array_alloc(out, n, sizeof(float), "trainer", err);
}

ls_status ls_trainer_make_rows(ls_trainer *t, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    const int64_t n = whole_rows_max(t);
    const ls_shared_opts shared = {.group = o->group,
                                   .rows_max = o->rows_max,
                                   .spans_max = o->spans_max,
                                   .whole_rows_max = n,
                                   .entropy = o->entropy};
    LS_TRY(alloc_row_floats((void **)&t->logprob, n, err));
    LS_TRY(alloc_row_floats((void **)&t->d_logprob, n, err));
    if (o->entropy) {
        LS_TRY(alloc_row_floats((void **)&t->entropy, n, err));
        LS_TRY(alloc_row_floats((void **)&t->d_entropy, n, err));
    }
    return o->group > 0 ? ls_shared_rows_create(&t->shared, &shared, err) : LS_OK;
}

int64_t ls_trainer_leaf_begin(const ls_trainer *t, const ls_train_batch *b, int64_t leaf_i) {
    return leaf_i > b->n / t->opts.leaf ? b->n : ls_min_i64(leaf_i * t->opts.leaf, b->n);
}

static ls_whole_rows whole_rows(const ls_train_batch *b) {
    const ls_whole_rows whole = {b->tokens, b->offsets, b->targets};
    return whole;
}

/* Tokens, and spans, that a forward of sequences [first, end) computes. */
static void count_room(const ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t end, int64_t *rows,
                       int64_t *spans) {
    const ls_whole_rows whole = whole_rows(b);
    *rows = t->shared != NULL ? 0 : b->offsets[end] - b->offsets[first];
    *spans = t->shared != NULL ? 0 : end - first;
    if (t->shared != NULL) ls_shared_rows_count(t->shared, &whole, first, end, rows, spans);
}

static bool fits_room(const ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t end) {
    int64_t rows, spans;
    count_room(t, b, first, end, &rows, &spans);
    return rows <= t->opts.rows_max && spans <= t->opts.spans_max;
}

/* Sequences that a leaf may not be cut between. */
static int64_t unit_of(const ls_trainer *t) { return t->opts.group > 0 ? t->opts.group : 1; }

int64_t ls_trainer_take(const ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t end_leaf) {
    const int64_t leaf = first / t->opts.leaf, begin = ls_trainer_leaf_begin(t, b, leaf);
    int64_t end = ls_trainer_leaf_begin(t, b, leaf + 1);
    if (first > begin || !fits_room(t, b, first, end)) {
        while (end > first + unit_of(t) && !fits_room(t, b, first, end)) end -= unit_of(t);
        return end - first;
    }
    for (int64_t i = 1; i < t->opts.microbatch && leaf + i < end_leaf; i++) {
        const int64_t further = ls_trainer_leaf_begin(t, b, leaf + i + 1);
        if (!fits_room(t, b, first, further)) break;
        end = further;
    }
    return end - first;
}

/* A sequence, or a group, fits a forward. */
static ls_status check_unit(const ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t end, ls_error *err) {
    int64_t rows, spans;
    for (int64_t i = first; t->shared != NULL && i < end; i++)
        if (b->offsets[i + 1] - b->offsets[i] > t->opts.longest)
            return LS_FAIL(err, LS_ERR_CAPACITY, "sequence %lld has %lld tokens; the longest may have %lld",
                           (long long)i, (long long)(b->offsets[i + 1] - b->offsets[i]), (long long)t->opts.longest);
    if (fits_room(t, b, first, end)) return LS_OK;
    count_room(t, b, first, end, &rows, &spans);
    if (t->shared == NULL)
        return LS_FAIL(err, LS_ERR_CAPACITY, "sequence %lld has %lld tokens; a forward holds %lld", (long long)first,
                       (long long)rows, (long long)t->opts.rows_max);
    return LS_FAIL(err, LS_ERR_CAPACITY,
                   "the group of sequences %lld to %lld has %lld tokens in %lld spans; a forward holds %lld in %lld",
                   (long long)first, (long long)end - 1, (long long)rows, (long long)spans, (long long)t->opts.rows_max,
                   (long long)t->opts.spans_max);
}

ls_status ls_trainer_check_batch(const ls_trainer *t, const ls_train_batch *b, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    if (b->n < 1 || b->n > o->sequences_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "a batch of %lld sequences; the trainer was made for %lld",
                       (long long)b->n, (long long)o->sequences_max);
    if (!(b->count > 0.0) || isinf(b->count)) return LS_FAIL(err, LS_ERR_ARG, "a mean over %g tokens", b->count);
    for (int64_t i = 0; i < b->n; i++)
        if (b->offsets[i] < 0 || b->offsets[i + 1] <= b->offsets[i])
            return LS_FAIL(err, LS_ERR_ARG, "sequence %lld is rows %lld to %lld", (long long)i,
                           (long long)b->offsets[i], (long long)b->offsets[i + 1]);
    for (int64_t i = 0; i < b->n; i += unit_of(t)) LS_TRY(check_unit(t, b, i, ls_min_i64(i + unit_of(t), b->n), err));
    for (int64_t i = 0; i < ls_trainer_leaves(t, b->n); i++) {
        const int64_t begin = ls_trainer_leaf_begin(t, b, i), end = ls_trainer_leaf_begin(t, b, i + 1);
        int64_t rows, spans;
        count_room(t, b, begin, end, &rows, &spans);
        if (!fits_room(t, b, begin, end) && rows > ls_trainer_leaf_rows(t))
            return LS_FAIL(err, LS_ERR_CAPACITY,
                           "sequences %lld to %lld have %lld tokens; a forward holds %lld, a leaf of several %lld",
                           (long long)begin, (long long)end - 1, (long long)rows, (long long)o->rows_max,
                           (long long)o->leaf_rows_max);
    }
    return LS_OK;
}

/* Log-probabilities of sequences [first, first + n), which were made from offsets[first] on: each is a number. */
static ls_status check_logprobs(const ls_train_batch *b, int64_t first, int64_t n, const float *logprob,
                                ls_error *err) {
    const int64_t row = b->offsets[first];
    for (int64_t i = first; i < first + n; i++)
        for (int64_t r = b->offsets[i]; r < b->offsets[i + 1]; r++)
            if (isnan(logprob[r - row]))
                return LS_FAIL(err, LS_ERR_FORMAT, "sequence %lld, token %lld: " LS_LOGPROB_NAN_TEXT, (long long)i,
                               (long long)(r - b->offsets[i] + 1));
    return LS_OK;
}

/* A forward of groups: from the rows that they have together to those of each. */
static ls_status run_groups(ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t n, float *logprob,
                            float *entropy, ls_error *err) {
    const int64_t row = b->offsets[first], rows = b->offsets[first + n] - row;
    const ls_whole_rows whole = whole_rows(b);
    ls_shared_rows *s = t->shared;
    ls_shared_rows_lay_out(s, &whole, first, first + n);
    LS_TRY(ls_tape_forward_trees(t->tape, s->tokens, s->offsets, s->parents, s->n_spans, err));
    ls_tape_support(t->tape, b->supports, row, s->sources);
    LS_TRY(ls_tape_logprob(t->tape, s->targets, s->logprob, entropy != NULL ? s->entropy : NULL, err));
    ls_shared_rows_spread(s, b->targets + row, rows, s->logprob, logprob);
    if (entropy != NULL) ls_shared_rows_spread(s, b->targets + row, rows, s->entropy, entropy);
    return check_logprobs(b, first, n, logprob, err);
}

ls_status ls_trainer_run(ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t n, float *logprob,
                         float *entropy, ls_error *err) {
    const int64_t row = b->offsets[first];
    if (t->shared != NULL) return run_groups(t, b, first, n, logprob, entropy, err);
    LS_TRY(ls_tape_forward(t->tape, b->tokens, b->offsets + first, n, err));
    ls_tape_support(t->tape, b->supports, row, NULL);
    LS_TRY(ls_tape_logprob(t->tape, b->targets + row, logprob, entropy, err));
    return check_logprobs(b, first, n, logprob, err);
}

void ls_trainer_gather(ls_trainer *t) {
    const step_state *s = &t->now;
    const int64_t row = s->batch.offsets[s->first], rows = s->batch.offsets[s->first + s->n] - row;
    ls_shared_rows_gather(t->shared, s->batch.targets + row, rows, t->d_logprob, t->shared->d_logprob);
    if (t->opts.entropy)
        ls_shared_rows_gather(t->shared, s->batch.targets + row, rows, t->d_entropy, t->shared->d_entropy);
}
