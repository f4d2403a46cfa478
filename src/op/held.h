/* States that are written every K tokens, and what a slot holds of the tokens in between.
 *
 * A token of ssd or delta changes a head's state [rows][cols] by one outer product, S[r][c] = fma(own[c], shared[r],
 * S[r][c]), before which S is multiplied by one number where the token rescales. own is u of ssd and d of delta, one
 * vector a head; shared is b, or the normalised key, one vector a group of heads. So a state is as well one of earlier
 * and the outer products since, done again in order: the same operations, the same bits. Reading S and writing it with
 * each K-th token alone nearly halves the bytes of a decoding step.
 *
 * Rule, for ssd and delta with state_every = K above 1. A span of one row at a position above 0 may leave its outer
 * product beside those that its slot holds, as long as they are fewer than K - 1. Otherwise, as with any other span
 * that has rows, the state is written behind the last row and nothing is held. The scales are those of the last token,
 * always. Whether a span that may does is the back end's affair: neither that nor K carries a bit of out, nor of a
 * state that is whole again (write_held).
 *
 * An entry of the pool: [heads] int32, how many outer products each head's state lacks; then K - 1 records of own
 * [heads][cols], factor [heads] (1 where the token does not rescale) and shared [groups][rows]. A count that no call
 * has written is that of a slot nobody may read; it reads as 0. */
#ifndef LS_OP_HELD_H
#define LS_OP_HELD_H

#include "op/span.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes of what is held, and where it lies in an entry and in a record, in floats. */
typedef struct ls_held {
    int64_t every, heads, group_heads, groups, rows, cols;
    int64_t records, record, factors, shared, total; /* record: of one; total: of an entry */
} ls_held;

static LS_HD int64_t ls_held_fours(int64_t n) { return (n + 3) / 4 * 4; }

static LS_HD ls_held ls_held_make(int64_t every, int64_t heads, int64_t groups, int64_t rows, int64_t cols) {
    ls_held h;
    h.every = every;
    h.heads = heads;
    h.group_heads = heads / groups;
    h.groups = groups;
    h.rows = rows;
    h.cols = cols;
    h.records = ls_held_fours(heads);
    h.factors = ls_held_fours(heads * cols);
    h.shared = h.factors + ls_held_fours(heads);
    h.record = h.shared + ls_held_fours(groups * rows);
    h.total = every > 1 ? h.records + (every - 1) * h.record : 0;
    return h;
}

/* Outer products that a head's state lacks. */
static LS_HD int64_t ls_held_count(const ls_held *h, const float *entry, int64_t head) {
    const int32_t n = ((const int32_t *)(const void *)entry)[head];
    return n >= 0 && n < h->every ? n : 0;
}
static LS_HD void ls_held_set_count(float *entry, int64_t head, int64_t n) {
    ((int32_t *)(void *)entry)[head] = (int32_t)n;
}
static LS_HD float *ls_held_record(const ls_held *h, float *entry, int64_t i) {
    return entry + h->records + i * h->record;
}
/* A head's parts of a record. */
static LS_HD float *ls_held_own(const ls_held *h, float *record, int64_t head) { return record + head * h->cols; }
static LS_HD float *ls_held_factor(const ls_held *h, float *record, int64_t head) { return record + h->factors + head; }
static LS_HD float *ls_held_shared(const ls_held *h, float *record, int64_t head) {
    return record + h->shared + head / h->group_heads * h->rows;
}
/* Whether the head is the one that writes its group's vector. */
static LS_HD bool ls_held_writes_shared(const ls_held *h, int64_t head) { return head % h->group_heads == 0; }
/* Whether a span leaves its outer product beside the `count` that its slot holds. */
static LS_HD bool ls_held_keeps(const ls_held *h, const ls_span *span, int64_t count) {
    return h->every > 1 && span->n_rows == 1 && span->pos > 0 && count + 1 < h->every;
}

/* Floats of an entry; 0: nothing is held. The sizes are those that the op takes. */
static inline int64_t ls_held_floats(int64_t every, int64_t heads, int64_t groups, int64_t rows, int64_t cols) {
    return ls_held_make(every, heads, groups, rows, cols).total;
}

/* The call that writes the states of spans whose rows are below `rows`. */
static inline ls_write_held_args ls_held_args(const ls_held *h, const ls_pool_view *state, const ls_pool_view *held,
                                              const ls_span *spans, int64_t n_spans, int64_t rows) {
    ls_write_held_args args;
    args.n_heads = h->heads;
    args.n_groups = h->groups;
    args.state_rows = h->rows;
    args.state_cols = h->cols;
    args.state_every = h->every;
    args.state = *state;
    args.held = *held;
    args.spans = spans;
    args.n_spans = n_spans;
    args.rows = rows;
    args.spans_checked = false;
    return args;
}

/* state_every, and the pool where it is above 1; n_entries: of the states. */
ls_status ls_held_check(const char *op, const ls_held *held, const ls_pool_view *pool, int64_t n_entries,
                        ls_error *err);
ls_status ls_write_held_check(const ls_write_held_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
