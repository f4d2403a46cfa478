/* The elementwise ops: what the host can see of a call. */
#include "op/elementwise.h"

#include "op/operand.h"

/* The widest row: it lies in a thread's scratch as float32. */
#define DIM_MAX (288 * 1024)

static ls_status check_size(const char *op, int64_t rows, int64_t dim, ls_error *err) {
    if (rows < 0 || dim <= 0 || dim > DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld, dim %lld (dim is at most %d)", op, (long long)rows,
                       (long long)dim, DIM_MAX);
    return LS_OK;
}

ls_status ls_embed_check(const ls_embed_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {
        {"table", args->table, args->vocab, dim, dim, ls_dtype_bytes(args->table_dtype), rows == 0},
        {"tokens", args->tokens, rows, 1, 1, 4, rows == 0},
        {"y", args->y, rows, dim, dim, ls_dtype_bytes(args->y_dtype), rows == 0}};
    LS_TRY(check_size("embed", rows, dim, err));
    if (args->vocab < 0) return LS_FAIL(err, LS_ERR_ARG, "embed: vocab %lld", (long long)args->vocab);
    if (ls_dtype_bytes(args->table_dtype) == 0 || ls_dtype_bytes(args->y_dtype) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "embed: table %s, y %s", ls_dtype_name(args->table_dtype),
                       ls_dtype_name(args->y_dtype));
    return ls_operands_check("embed", operands, 3, err);
}

ls_status ls_residual_check(const ls_residual_args *args, ls_error *err) {
    return check_size("residual", args->rows, args->dim, err);
}

ls_status ls_swiglu_check(const ls_swiglu_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {{"gate", args->gate, rows, dim, dim, 4, rows == 0},
                                   {"up", args->up, rows, dim, dim, 4, rows == 0},
                                   {"y", args->y, rows, dim, dim, ls_dtype_bytes(args->y_dtype), rows == 0}};
    LS_TRY(check_size("swiglu", rows, dim, err));
    if (ls_dtype_bytes(args->y_dtype) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "swiglu: y %s", ls_dtype_name(args->y_dtype));
    return ls_operands_check("swiglu", operands, 3, err);
}

ls_status ls_relu2_check(const ls_relu2_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {{"x", args->x, rows, dim, dim, 4, rows == 0},
                                   {"y", args->y, rows, dim, dim, ls_dtype_bytes(args->y_dtype), rows == 0}};
    LS_TRY(check_size("relu2", rows, dim, err));
    if (ls_dtype_bytes(args->y_dtype) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "relu2: y %s", ls_dtype_name(args->y_dtype));
    return ls_operands_check("relu2", operands, 2, err);
}

ls_status ls_round_rows_check(const ls_round_rows_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {{"x", args->x, rows, dim, args->x_stride, 4, rows == 0},
                                   {"y", args->y, rows, dim, args->y_stride, 2, rows == 0}};
    const ls_status status = check_size("round_rows", rows, dim, err);
    return status != LS_OK ? status : ls_operands_check("round_rows", operands, 2, err);
}

ls_status ls_multiply_check(const ls_multiply_args *args, ls_error *err) {
    const int64_t n = args->n;
    const ls_operand operands[] = {{"x", args->x, 1, n, n, 4, n == 0}, {"y", args->y, 1, n, n, 4, n == 0}};
    if (n < 0) return LS_FAIL(err, LS_ERR_ARG, "multiply: n %lld is negative", (long long)n);
    return ls_operands_check("multiply", operands, 2, err);
}

ls_status ls_scale_check(const ls_scale_args *args, ls_error *err) {
    const int64_t n = args->n;
    const ls_operand operands[] = {{"x", args->x, 1, n, n, 4, n == 0}, {"y", args->y, 1, n, n, 4, n == 0}};
    if (n < 0) return LS_FAIL(err, LS_ERR_ARG, "scale: n %lld is negative", (long long)n);
    return ls_operands_check("scale", operands, 2, err);
}
