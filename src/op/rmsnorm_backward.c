/* rmsnorm backward: what the host can see of a call. */
#include "op/rmsnorm_backward.h"

#include "op/operand.h"

#define DIM_MAX (288 * 1024)

static const char op[] = "rmsnorm_backward";

ls_status ls_rmsnorm_backward_check(const ls_rmsnorm_backward_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"x", a->x, a->rows, a->dim, a->x_stride, ls_dtype_bytes(a->x_dtype), a->rows == 0},
        {"w", a->w, 1, a->dim, a->dim, 4, false},
        {"dy", a->dy, a->rows, a->dim, a->dy_stride, 4, a->rows == 0},
        {"dx", a->dx, a->rows, a->dim, a->dx_stride, 4, a->rows == 0},
        {"scale", a->scale, a->rows, 1, 1, 4, a->rows == 0},
    };
    if (a->x_dtype != LS_F32 && a->x_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: x %s; f32 and bf16 are built", op, ls_dtype_name(a->x_dtype));
    if (a->dim < 1 || a->dim > DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: dim %lld is not in 1..%d", op, (long long)a->dim, DIM_MAX);
    if (a->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)a->rows);
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_rmsnorm_parts_backward_check(const ls_rmsnorm_parts_backward_args *args, ls_error *err) {
    ls_status status = LS_OK;
    if (args->n < 1 || args->n > LS_NORM_PARTS)
        return LS_FAIL(err, LS_ERR_ARG, "rmsnorm_parts_backward: n %lld is not in 1..%d", (long long)args->n,
                       LS_NORM_PARTS);
    for (int64_t i = 0; i < args->n && status == LS_OK; i++) {
        const ls_rmsnorm_backward_args *part = &args->part[i];
        status = ls_rmsnorm_backward_check(part, err);
        if (status != LS_OK) ls_error_prefix(err, "rmsnorm_parts_backward: part %lld", (long long)i);
        if (status == LS_OK && part->rows != args->part[0].rows)
            status = LS_FAIL(err, LS_ERR_ARG, "rmsnorm_parts_backward: part %lld has %lld rows, the first %lld",
                             (long long)i, (long long)part->rows, (long long)args->part[0].rows);
    }
    return status;
}
