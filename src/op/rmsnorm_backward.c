/* rmsnorm backward entry: checks, one item a row for dx, then one item a block of columns for dw. */
#include "op/rmsnorm_backward.h"

#include "op/cpu/kernels.h"
#include "op/operand.h"

LS_KERNEL_TABLE(ls_rmsnorm_backward_kernel);
LS_KERNEL_TABLE(ls_rmsnorm_dw_kernel);

static const char op[] = "rmsnorm_backward";

static ls_status args_check(const ls_rmsnorm_backward_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"x", a->x, a->rows, a->dim, a->x_stride, ls_dtype_bytes(a->x_dtype), a->rows == 0},
        {"w", a->w, 1, a->dim, a->dim, 4, false},
        {"dy", a->dy, a->rows, a->dim, a->dy_stride, 4, a->rows == 0},
        {"dx", a->dx, a->rows, a->dim, a->dx_stride, 4, a->rows == 0},
        {"scale", a->scale, a->rows, 1, 1, 4, a->rows == 0},
    };
    if (a->x_dtype != LS_F32 && a->x_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: x %s; f32 and bf16 are built", op, ls_dtype_name(a->x_dtype));
    if (a->dim < 1 || a->dim > LS_SCRATCH_FLOATS / 2)
        return LS_FAIL(err, LS_ERR_ARG, "%s: dim %lld is not in 1..%d", op, (long long)a->dim, LS_SCRATCH_FLOATS / 2);
    if (a->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)a->rows);
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_rmsnorm_backward(ls_queue *queue, const ls_rmsnorm_backward_args *args, ls_error *err) {
    const ls_status status = args_check(args, err);
    if (status != LS_OK) return status;
    ls_kernel_run(queue, ls_rmsnorm_backward_kernel_table, args, args->rows, 5 * args->dim + 1000);
    if (args->dw != NULL)
        ls_kernel_run(queue, ls_rmsnorm_dw_kernel_table, args, (args->dim - 1) / LS_RMSNORM_BLOCK + 1,
                      2 * LS_RMSNORM_BLOCK * args->rows);
    return LS_OK;
}
