/* Checks that every op with spans makes before it writes. */
#include "op/span.h"

#include "base/mem.h"

ls_status ls_pool_check(const char *op, const ls_pool_view *pool, int64_t entry_bytes, int64_t align, ls_error *err) {
    int64_t bytes;
    if (entry_bytes == 0) return LS_OK;
    if (!ls_mul_i64(pool->n_entries, pool->stride, &bytes))
        return LS_FAIL(err, LS_ERR_ARG, "%s: state: %lld entries of stride %lld do not fit 64 bits", op,
                       (long long)pool->n_entries, (long long)pool->stride);
    if (pool->n_entries > 0 && pool->base == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: state is a null pointer", op);
    if (pool->stride < entry_bytes || pool->stride % align != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: state: stride of %lld bytes, for entries of %lld at multiples of %lld", op,
                       (long long)pool->stride, (long long)entry_bytes, (long long)align);
    if ((uintptr_t)pool->base % (uintptr_t)align != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: state at %p is not aligned to %lld bytes", op, (void *)pool->base,
                       (long long)align);
    return LS_OK;
}

int64_t ls_spans_rows(const ls_span *spans, int64_t n_spans) {
    int64_t rows = 0;
    for (int64_t i = 0; i < n_spans; i++) rows += spans[i].n_rows;
    return rows;
}

ls_status ls_spans_check_count(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                               int64_t span_rows_max, ls_error *err) {
    if (n_spans < 0 || rows < 0 || span_rows_max < 0 || (n_spans > 0 && spans == NULL))
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld spans at %p, %lld rows, %lld rows a span at most", op,
                       (long long)n_spans, (const void *)spans, (long long)rows, (long long)span_rows_max);
    return LS_OK;
}

ls_status ls_spans_check_rows(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                              int64_t span_rows_max, ls_error *err) {
    const ls_status status = ls_spans_check_count(op, spans, n_spans, rows, span_rows_max, err);
    if (status != LS_OK) return status;
    for (int64_t i = 0; i < n_spans; i++) {
        const ls_span *span = &spans[i];
        const int64_t most = ls_spans_most(span_rows_max, rows);
        if (span->n_rows < 0 || span->n_rows > most || span->row < 0 || span->row > rows - span->n_rows)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: row %lld, rows %lld; there are %lld rows, a span has %lld",
                           op, (long long)i, (long long)span->row, (long long)span->n_rows, (long long)rows,
                           (long long)most);
        if (span->pos < 0)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: position %lld", op, (long long)i, (long long)span->pos);
    }
    return LS_OK;
}

ls_status ls_spans_check_slots(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                               int64_t span_rows_max, const ls_pool_view *pool, ls_error *err) {
    const ls_status status = ls_spans_check_rows(op, spans, n_spans, rows, span_rows_max, err);
    if (status != LS_OK) return status;
    for (int64_t i = 0; i < n_spans; i++)
        if (spans[i].slot >= pool->n_entries)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: slot %d is not in a pool of %lld", op, (long long)i,
                           spans[i].slot, (long long)pool->n_entries);
    return LS_OK;
}

ls_status ls_spans_check_order(const char *op, const ls_span *spans, int64_t n_spans, int64_t rows,
                               int64_t span_rows_max, bool whole, ls_error *err) {
    const ls_status status = ls_spans_check_rows(op, spans, n_spans, rows, span_rows_max, err);
    if (status != LS_OK) return status;
    for (int64_t i = 0; i < n_spans; i++) {
        if (whole && spans[i].pos != 0)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: position %lld; gradients are of whole sequences", op,
                           (long long)i, (long long)spans[i].pos);
        if (i > 0 && spans[i].row < spans[i - 1].row + spans[i - 1].n_rows)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: row %lld before the end of the span before it", op,
                           (long long)i, (long long)spans[i].row);
    }
    return LS_OK;
}

ls_status ls_spans_check_keys(const char *op, const ls_span *spans, int64_t n_spans, const int64_t *key_rows,
                              int64_t n_rows, int64_t keys_max, ls_error *err) {
    const int64_t most = ls_spans_most(keys_max, n_rows);
    int64_t end = 0;
    for (int64_t i = 0; i < n_spans; i++) {
        const int64_t rows = spans[i].n_rows;
        if (spans[i].pos > most - rows || key_rows[i] < 0 || key_rows[i] > n_rows - spans[i].pos - rows)
            return LS_FAIL(err, LS_ERR_ARG,
                           "%s: span %lld: key row %lld, position %lld, rows %lld; there are %lld key rows, a span has "
                           "%lld",
                           op, (long long)i, (long long)key_rows[i], (long long)spans[i].pos, (long long)rows,
                           (long long)n_rows, (long long)most);
        if (key_rows[i] < end)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: key row %lld before the end of the keys before it", op,
                           (long long)i, (long long)key_rows[i]);
        end = key_rows[i] + spans[i].pos + rows;
    }
    return LS_OK;
}
