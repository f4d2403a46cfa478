/* Rows by number: what the host can see of a call. */
#include "op/gather.h"

#include "op/operand.h"

ls_status ls_gather_check(const ls_gather_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"x", a->x, a->x_rows, a->row_bytes, a->x_stride, 1, a->n == 0},
        {"index", a->index, a->n, 1, 1, 8, a->n == 0},
        {"out", a->out, a->n, a->row_bytes, a->out_stride, 1, a->n == 0},
    };
    if (a->n < 0 || a->x_rows < 0 || a->row_bytes < 1)
        return LS_FAIL(err, LS_ERR_ARG, "gather: %lld of %lld rows of %lld bytes", (long long)a->n,
                       (long long)a->x_rows, (long long)a->row_bytes);
    return ls_operands_check("gather", operands, 3, err);
}

ls_status ls_differs_check(const ls_differs_args *args, ls_error *err) {
    const ls_operand operands[] = {
        {"a", args->a, args->rows, args->row_bytes, args->stride, 1, args->rows == 0},
        {"b", args->b, args->rows, args->row_bytes, args->stride, 1, args->rows == 0},
        {"differs", args->differs, 1, 1, 1, 8, false},
    };
    if (args->rows < 0 || args->row_bytes < 1)
        return LS_FAIL(err, LS_ERR_ARG, "differs: %lld rows of %lld bytes", (long long)args->rows,
                       (long long)args->row_bytes);
    return ls_operands_check("differs", operands, 3, err);
}
