/* conv1d: what the host can see of a call. */
#include "op/conv1d.h"

#include "op/operand.h"

ls_status ls_conv1d_check(const ls_conv1d_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim, state_elem = ls_dtype_bytes(args->state_dtype);
    const ls_operand operands[] = {
        {"x", args->x, rows, dim, args->x_stride, ls_dtype_bytes(args->x_dtype), false},
        {"w", args->w, args->d_conv, dim, dim, 4, false},
        {"y", args->y, rows, dim, args->y_stride, ls_dtype_bytes(args->y_dtype), false},
        {"rounded", args->rounded, rows, dim, args->rounded_stride, 2, true},
    };
    if (!ls_dtype_is_stored(args->x_dtype) || !ls_dtype_is_stored(args->y_dtype) ||
        !ls_dtype_is_stored(args->state_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "conv1d: x %s, y %s, state %s; f32 and bf16 are built",
                       ls_dtype_name(args->x_dtype), ls_dtype_name(args->y_dtype), ls_dtype_name(args->state_dtype));
    if (args->d_conv < 1 || args->d_conv > LS_CONV_WIDTH_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "conv1d: width %lld is not in 1..%d", (long long)args->d_conv,
                       LS_CONV_WIDTH_MAX);
    if (args->rounded != NULL && args->y_dtype != LS_F32)
        return LS_FAIL(err, LS_ERR_ARG, "conv1d: rounded: y is %s already", ls_dtype_name(args->y_dtype));
    if (rows < 0 || dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "conv1d: rows %lld, dim %lld", (long long)rows, (long long)dim);
    LS_TRY(ls_operands_check("conv1d", operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    /* That w fits 64 bits has just been checked. */
    LS_TRY(ls_pool_check("conv1d", &args->state, (args->d_conv - 1) * dim * state_elem, state_elem, err));
    return ls_spans_check_count("conv1d", args->spans, args->n_spans, rows, args->span_rows_max, err);
}
