/* conv1d backward: what the host can see of a call, and the plan of its workspace. */
#include "base/mem.h"
#include "op/conv1d.h"
#include "op/operand.h"

static const char op[] = "conv1d_backward";

ls_status ls_conv1d_backward_check(const ls_conv1d_backward_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim;
    const int64_t dw_rows = args->dw_by_channel ? dim : args->d_conv,
                  dw_columns = args->dw_by_channel ? args->d_conv : dim;
    const ls_operand operands[] = {
        {"x", args->x, rows, dim, args->x_stride, ls_dtype_bytes(args->x_dtype), false},
        {"w", args->w, args->d_conv, dim, dim, 4, false},
        {"dy", args->dy, rows, dim, args->dy_stride, 4, false},
        {"dx", args->dx, rows, dim, args->dx_stride, ls_dtype_bytes(args->dx_dtype), false},
        {"dw", args->dw, dw_rows, dw_columns, dw_columns, 4, false},
    };
    if (!ls_dtype_is_stored(args->x_dtype) || !ls_dtype_is_stored(args->state_dtype) ||
        !ls_dtype_is_stored(args->dx_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: x %s, state %s, dx %s; f32 and bf16 are built", op,
                       ls_dtype_name(args->x_dtype), ls_dtype_name(args->state_dtype), ls_dtype_name(args->dx_dtype));
    if (args->d_conv < 1 || args->d_conv > LS_CONV_WIDTH_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: width %lld is not in 1..%d", op, (long long)args->d_conv,
                       LS_CONV_WIDTH_MAX);
    if (rows < 0 || dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld, dim %lld", op, (long long)rows, (long long)dim);
    LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    LS_TRY(ls_operands_check_pair(op, "bias", args->bias, "dbias", args->dbias, err));
    LS_TRY(ls_spans_check_count(op, args->spans, args->n_spans, rows, args->span_rows_max, err));
    if (ls_conv1d_backward_floats(args) < 0)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace of %lld rows, %lld spans, dim %lld does not fit 64 bits",
                       op, (long long)rows, (long long)args->n_spans, (long long)dim);
    {
        const int64_t window = (args->d_conv - 1) * dim, n = args->n_spans;
        const ls_operand windows[] = {
            {"initial", args->initial, n, window, window, ls_dtype_bytes(args->state_dtype), true},
            {"dinitial", args->dinitial, n, window, window, 4, true},
            {"dfinal", args->dfinal, n, window, window, 4, true},
        };
        return ls_operands_check(op, windows, (int64_t)(sizeof windows / sizeof windows[0]), err);
    }
}

int64_t ls_conv1d_backward_floats(const ls_conv1d_backward_args *args) {
    int64_t blocks, taps, floats;
    if (args->rows < 0 || !ls_add_i64(args->rows / LS_CONV1D_SUM_BLOCK, args->n_spans, &blocks) ||
        !ls_add_i64(args->d_conv, 1, &taps) || !ls_mul_i64(blocks, taps, &floats) ||
        !ls_mul_i64(floats, args->dim, &floats))
        return -1;
    return floats;
}
