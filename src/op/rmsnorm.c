/* rmsnorm: what the host can see of a call. */
#include "op/rmsnorm.h"

#include "op/operand.h"

/* The widest row: twice of it lies in a thread's scratch as float32. */
#define DIM_MAX (288 * 1024)

ls_status ls_rmsnorm_check(const ls_rmsnorm_args *args, ls_error *err) {
    if (args->dim <= 0 || args->dim > DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm: dim %lld is not in 1..%d", (long long)args->dim, DIM_MAX);
    if (args->rows < 0 || args->x_stride < args->dim || args->y_stride < args->dim)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm: rows %lld, strides %lld and %lld, dim %lld", (long long)args->rows,
                       (long long)args->x_stride, (long long)args->y_stride, (long long)args->dim);
    if ((args->x_dtype != LS_F32 && args->x_dtype != LS_BF16) || (args->y_dtype != LS_F32 && args->y_dtype != LS_BF16))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "rmsnorm: x %s, y %s; f32 and bf16 are built",
                       ls_dtype_name(args->x_dtype), ls_dtype_name(args->y_dtype));
    {
        const int64_t rows = args->rows, dim = args->dim;
        const ls_operand operands[] = {
            {"x", args->x, rows, dim, args->x_stride, ls_dtype_bytes(args->x_dtype), rows == 0},
            {"w", args->w, 1, dim, dim, 4, rows == 0},
            {"y", args->y, rows, dim, args->y_stride, ls_dtype_bytes(args->y_dtype), rows == 0},
        };
        return ls_operands_check("rmsnorm", operands, 3, err);
    }
}

ls_status ls_add_rmsnorm_check(const ls_add_rmsnorm_args *args, ls_error *err) {
    const ls_rmsnorm_args norm = ls_add_rmsnorm_norm(args);
    const ls_status status = ls_rmsnorm_check(&norm, err);
    if (status != LS_OK) ls_error_prefix(err, "add_rmsnorm");
    return status;
}

ls_status ls_rmsnorm_parts_check(const ls_rmsnorm_parts_args *args, ls_error *err) {
    ls_status status = LS_OK;
    if (args->n < 1 || args->n > LS_NORM_PARTS)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm_parts: n %lld is not in 1..%d", (long long)args->n, LS_NORM_PARTS);
    for (int64_t i = 0; i < args->n; i++) {
        const ls_rmsnorm_args *part = &args->part[i];
        if ((status = ls_rmsnorm_check(part, err)) != LS_OK) {
            ls_error_prefix(err, "rmsnorm_parts: part %lld", (long long)i);
            return status;
        }
        if (part->rows != args->part[0].rows)
            return LS_FAIL(err, LS_ERR_ARG, "rmsnorm_parts: part %lld has %lld rows, the first %lld", (long long)i,
                           (long long)part->rows, (long long)args->part[0].rows);
    }
    return status;
}
