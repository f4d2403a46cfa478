/* Weights: what the host can see of a call. */
#include "op/weight.h"

#include "op/operand.h"

static ls_status check(const char *op, const char *from, const void *in, ls_dtype in_dtype, const void *out,
                       ls_dtype out_dtype, int64_t rows, int64_t cols, ls_error *err) {
    const ls_operand operands[] = {
        {"out", out, rows, cols, cols, ls_dtype_bytes(out_dtype), rows == 0 || cols == 0},
        {from, in, rows, cols, cols, ls_dtype_bytes(in_dtype), rows == 0 || cols == 0},
    };
    if (ls_dtype_bytes(in_dtype) == 0 || ls_dtype_bytes(out_dtype) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: from %s to %s", op, ls_dtype_name(in_dtype),
                       ls_dtype_name(out_dtype));
    if (rows < 0 || cols < 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld rows of %lld", op, (long long)rows, (long long)cols);
    return ls_operands_check(op, operands, 2, err);
}

/* The same of arrays [n]. */
static ls_status check_flat(const char *op, const char *from, const void *in, ls_dtype in_dtype, const void *out,
                            ls_dtype out_dtype, int64_t n, ls_error *err) {
    if (n < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld is negative", op, (long long)n);
    return check(op, from, in, in_dtype, out, out_dtype, 1, n, err);
}

ls_status ls_weight_cast_check(const ls_weight_cast_args *args, ls_error *err) {
    return check_flat("weight_cast", "w", args->w, LS_F32, args->out, args->dtype, args->n, err);
}

ls_status ls_widen_check(const ls_widen_args *args, ls_error *err) {
    return check_flat("widen", "x", args->x, args->dtype, args->out, LS_F32, args->n, err);
}

ls_status ls_decay_check(const ls_decay_args *args, ls_error *err) {
    return check_flat("decay", "x", args->x, args->dtype, args->out, LS_F32, args->n, err);
}

ls_status ls_rates_check(const ls_rates_args *args, ls_error *err) {
    return check_flat("rates", "x", args->x, args->dtype, args->out, LS_F32, args->n, err);
}

ls_status ls_taps_check(const ls_taps_args *args, ls_error *err) {
    return check("taps", "x", args->x, args->dtype, args->out, LS_F32, args->rows, args->cols, err);
}
