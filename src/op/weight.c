/* Weights: what the host can see of a call. */
#include "op/weight.h"

#include "op/operand.h"

typedef struct typed {
    const char *name;
    const void *values;
    ls_dtype dtype;
} typed;

static ls_status check_rows(const char *op, typed in, typed out, int64_t rows, int64_t cols, ls_error *err) {
    const ls_operand operands[] = {
        {out.name, out.values, rows, cols, cols, ls_dtype_bytes(out.dtype), rows == 0 || cols == 0},
        {in.name, in.values, rows, cols, cols, ls_dtype_bytes(in.dtype), rows == 0 || cols == 0},
    };
    if (ls_dtype_bytes(in.dtype) == 0 || ls_dtype_bytes(out.dtype) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: from %s to %s", op, ls_dtype_name(in.dtype),
                       ls_dtype_name(out.dtype));
    if (rows < 0 || cols < 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld rows of %lld", op, (long long)rows, (long long)cols);
    return ls_operands_check(op, operands, 2, err);
}

/* The same of arrays [n]. */
static ls_status check_flat(const char *op, typed in, typed out, int64_t n, ls_error *err) {
    if (n < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld is negative", op, (long long)n);
    return check_rows(op, in, out, 1, n, err);
}

ls_status ls_weight_cast_check(const ls_weight_cast_args *a, ls_error *err) {
    return check_flat("weight_cast", (typed){"w", a->w, LS_F32}, (typed){"out", a->out, a->dtype}, a->n, err);
}

ls_status ls_widen_check(const ls_widen_args *a, ls_error *err) {
    return check_flat("widen", (typed){"x", a->x, a->dtype}, (typed){"out", a->out, LS_F32}, a->n, err);
}

ls_status ls_decay_check(const ls_decay_args *a, ls_error *err) {
    return check_flat("decay", (typed){"x", a->x, a->dtype}, (typed){"out", a->out, LS_F32}, a->n, err);
}

ls_status ls_rates_check(const ls_rates_args *a, ls_error *err) {
    return check_flat("rates", (typed){"x", a->x, a->dtype}, (typed){"out", a->out, LS_F32}, a->n, err);
}

ls_status ls_taps_check(const ls_taps_args *a, ls_error *err) {
    return check_rows("taps", (typed){"x", a->x, a->dtype}, (typed){"out", a->out, LS_F32}, a->rows, a->cols, err);
}
