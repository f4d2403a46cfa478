/* rmsnorm entry: checks, then one item a row. */
#include "op/rmsnorm.h"

#include "op/cpu/kernels.h"

LS_KERNEL_TABLE(ls_rmsnorm_kernel);

ls_status ls_rmsnorm(ls_queue *queue, const ls_rmsnorm_args *args, ls_error *err) {
    if (args->dim <= 0 || args->dim > LS_SCRATCH_FLOATS / 2)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm: dim %lld is not in 1..%d", (long long)args->dim,
                       LS_SCRATCH_FLOATS / 2);
    if (args->rows < 0 || args->x_stride < args->dim || args->y_stride < args->dim)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm: rows %lld, strides %lld and %lld, dim %lld", (long long)args->rows,
                       (long long)args->x_stride, (long long)args->y_stride, (long long)args->dim);
    ls_kernel_run(queue, ls_rmsnorm_kernel_table, args, args->rows, 4 * args->dim + 400);
    return LS_OK;
}
