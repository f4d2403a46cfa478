/* conv1d backward entry: checks, then one item for each span and block of channels, then the ordered sums. */
#include "base/mem.h"
#include "op/conv1d.h"
#include "op/cpu/kernels.h"
#include "op/operand.h"

LS_KERNEL_TABLE(ls_conv1d_backward_kernel);
LS_KERNEL_TABLE(ls_conv1d_parameters_kernel);

static const char op[] = "conv1d_backward";

static bool stored(ls_dtype dtype) { return dtype == LS_F32 || dtype == LS_BF16; }

ls_status ls_conv1d_backward_check(const ls_conv1d_backward_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {
        {"x", args->x, rows, dim, args->x_stride, ls_dtype_bytes(args->x_dtype), false},
        {"w", args->w, args->d_conv, dim, dim, 4, false},
        {"dy", args->dy, rows, dim, args->dy_stride, 4, false},
        {"dx", args->dx, rows, dim, args->dx_stride, 4, false},
        {"dw", args->dw, args->d_conv, dim, dim, 4, false},
    };
    ls_status status;
    if (!stored(args->x_dtype) || !stored(args->state_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: x %s, state %s; f32 and bf16 are built", op,
                       ls_dtype_name(args->x_dtype), ls_dtype_name(args->state_dtype));
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
done:
    return status;
}

ls_status ls_conv1d_backward(ls_queue *queue, const ls_conv1d_backward_args *args, void *workspace, ls_error *err) {
    const int64_t blocks = args->dim / LS_CONV1D_BLOCK + (args->dim % LS_CONV1D_BLOCK != 0);
    const ls_workspace_call call = {args, ls_workspace_floats(workspace)};
    int64_t span_rows;
    ls_status status;
    LS_TRY(ls_conv1d_backward_check(args, err));
    LS_TRY(ls_spans_check_whole(op, args->spans, args->n_spans, args->rows, args->span_rows_max, err));
    span_rows = ls_spans_rows(args->spans, args->n_spans);
    if (args->n_spans > 0)
        ls_kernel_run(queue, ls_conv1d_backward_kernel_table, &call, args->n_spans * blocks,
                      span_rows / args->n_spans * LS_CONV1D_BLOCK * (3 * args->d_conv + 50));
    ls_kernel_run(queue, ls_conv1d_parameters_kernel_table, &call, blocks,
                  (span_rows / LS_CONV1D_SUM_BLOCK + args->n_spans) * LS_CONV1D_BLOCK * args->d_conv);
done:
    return status;
}

int64_t ls_conv1d_backward_floats(const ls_conv1d_backward_args *args) {
    int64_t blocks, taps, floats;
    if (args->rows < 0 || !ls_add_i64(args->rows / LS_CONV1D_SUM_BLOCK, args->n_spans, &blocks) ||
        !ls_add_i64(args->d_conv, 1, &taps) || !ls_mul_i64(blocks, taps, &floats) ||
        !ls_mul_i64(floats, args->dim, &floats))
        return -1;
    return floats;
}
