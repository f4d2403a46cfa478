/* How packed rows belong to sequences, and where pooled state lives. */
#ifndef LS_OP_SPAN_H
#define LS_OP_SPAN_H

#include "base/status.h"

/* Rows [row, row + n_rows) are tokens pos, pos + 1, ... of one sequence. A span with pos 0 begins its sequence: no
 * stored state is read, however few rows it has. slot < 0 marks padding: ops with state leave its rows alone. A span
 * without rows changes nothing. No two spans of one call share a slot or write to one page: spans run in parallel. */
typedef struct ls_span {
    int64_t row, n_rows;
    int64_t pos;
    int32_t slot;         /* recurrent state */
    const int32_t *pages; /* KV pages of the sequence in order; page i holds positions [i, i + 1) * page_tokens */
} ls_span;

/* A pooled tensor: entry i starts at base + i * stride. Strides and ids are widened before they multiply; ls_pool_at
 * is the only place that does. */
typedef struct ls_pool_view {
    uint8_t *base;
    int64_t stride; /* bytes */
    int64_t n_entries;
} ls_pool_view;

static inline void *ls_pool_at(const ls_pool_view *pool, int32_t entry) {
    return pool->base + (int64_t)entry * pool->stride;
}

/* Rows of all spans together. */
int64_t ls_spans_rows(const ls_span *spans, int64_t n_spans);
/* Row counts and positions of all spans; the error names op, span and value. */
ls_status ls_spans_check_rows(const char *op, const ls_span *spans, int64_t n_spans, ls_error *err);

/* The same, and slots against the pool. */
ls_status ls_spans_check_slots(const char *op, const ls_span *spans, int64_t n_spans, const ls_pool_view *pool,
                               ls_error *err);

#endif
