/* How packed rows belong to sequences, and where pooled state lives. */
#ifndef LS_OP_SPAN_H
#define LS_OP_SPAN_H

#include "base/status.h"
#include "lockstep/ops.h"
#include "num/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The one place where a slot or page id becomes an address: widened before it multiplies. */
static LS_HD void *ls_pool_at(const ls_pool_view *pool, int32_t entry) {
#ifdef LS_PLANT_SLOT_U32
    /* The defect that tests/backend/check_slots.c must find: the offset in elements wraps in 32 bits. Only the library
     * that is built for that test defines this. */
    return pool->base + (int64_t)((uint32_t)entry * (uint32_t)(pool->stride / 4)) * 4;
#else
    return pool->base + (int64_t)entry * pool->stride;
#endif
}

/* Entries of entry_bytes fit the stride and lie at multiples of align, and all of them fit 64 bits; the error names op
 * and value. */
ls_status ls_pool_check(const char *op, const ls_pool_view *pool, int64_t entry_bytes, int64_t align, ls_error *err);

/* The most rows that a span of the call can have. */
static inline int64_t ls_spans_most(int64_t span_rows_max, int64_t rows) {
    return span_rows_max > 0 && span_rows_max < rows ? span_rows_max : rows;
}

/* Rows of all spans together, which must have been checked. */
int64_t ls_spans_rows(const ls_span *spans, int64_t n_spans);
/* The host's share of the checks below: numbers that can be, and spans where there are some. */
ls_status ls_spans_check_count(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                               int64_t span_rows_max, ls_error *err);
/* Positions, and rows within [0, rows), none longer than span_rows_max (0: any); the error names op, span and value. */
ls_status ls_spans_check_rows(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                              int64_t span_rows_max, ls_error *err);

/* The same, and slots against the pool. */
ls_status ls_spans_check_slots(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                               int64_t span_rows_max, const ls_pool_view *pool, ls_error *err);

/* The same as the first, and ascending rows, pos 0 where they are whole sequences: what gradients take. */
ls_status ls_spans_check_order(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                               int64_t span_rows_max, bool whole, ls_error *err);
/* Keys of spans whose order has been checked: within [0, n_rows) and ascending. */
ls_status ls_spans_check_keys(const char *op, const ls_span *spans, int64_t n_spans, const int64_t *key_rows,
                              int64_t n_rows, int64_t keys_max, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
