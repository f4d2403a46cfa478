/* Checks that every op with spans makes before it writes. */
#include "op/span.h"

int64_t ls_spans_rows(const ls_span *spans, int64_t n_spans) {
    int64_t rows = 0;
    for (int64_t i = 0; i < n_spans; i++) rows += spans[i].n_rows;
    return rows;
}

ls_status ls_spans_check_rows(const char *op, const ls_span *spans, int64_t n_spans, ls_error *err) {
    for (int64_t i = 0; i < n_spans; i++)
        if (spans[i].n_rows < 0 || spans[i].row < 0 || spans[i].pos < 0)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: row %lld, rows %lld, position %lld", op, (long long)i,
                           (long long)spans[i].row, (long long)spans[i].n_rows, (long long)spans[i].pos);
    return LS_OK;
}

ls_status ls_spans_check_slots(const char *op, const ls_span *spans, int64_t n_spans, const ls_pool_view *pool,
                               ls_error *err) {
    const ls_status status = ls_spans_check_rows(op, spans, n_spans, err);
    if (status != LS_OK) return status;
    for (int64_t i = 0; i < n_spans; i++)
        if (spans[i].slot >= pool->n_entries)
            return LS_FAIL(err, LS_ERR_ARG, "%s: span %lld: slot %d is not in a pool of %lld", op, (long long)i,
                           spans[i].slot, (long long)pool->n_entries);
    return LS_OK;
}
