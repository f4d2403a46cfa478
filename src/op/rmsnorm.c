/* rmsnorm: what the host can see of a call. */
#include "op/rmsnorm.h"

/* The widest row: twice of it lies in a thread's scratch as float32. */
#define DIM_MAX (288 * 1024)

ls_status ls_rmsnorm_check(const ls_rmsnorm_args *args, ls_error *err) {
    if (args->dim <= 0 || args->dim > DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm: dim %lld is not in 1..%d", (long long)args->dim, DIM_MAX);
    if (args->rows < 0 || args->x_stride < args->dim || args->y_stride < args->dim)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm: rows %lld, strides %lld and %lld, dim %lld", (long long)args->rows,
                       (long long)args->x_stride, (long long)args->y_stride, (long long)args->dim);
    return LS_OK;
}
