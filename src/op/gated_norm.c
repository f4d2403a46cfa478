/* gated_norm, forward and backward: what the host can see of a call. */
#include "op/gated_norm.h"

#include "op/operand.h"

/* The widest row: twice of it lies in a thread's scratch as float32. */
#define DIM_MAX (288 * 1024)

static ls_status check_gated_norm(const char *op, int64_t rows, int64_t dim, int64_t groups, ls_error *err) {
    if (dim < 1 || dim > DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: dim %lld is not in 1..%d", op, (long long)dim, DIM_MAX);
    if (groups < 1 || dim % groups != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: groups %lld does not divide dim %lld", op, (long long)groups,
                       (long long)dim);
    if (rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)rows);
    return LS_OK;
}

ls_status ls_gated_norm_check(const ls_gated_norm_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"x", a->x, a->rows, a->dim, a->x_stride, 4, a->rows == 0},
        {"z", a->z, a->rows, a->dim, a->z_stride, 4, a->rows == 0},
        {"w", a->w, 1, a->dim, a->dim, 4, false},
        {"y", a->y, a->rows, a->dim, a->y_stride, ls_dtype_bytes(a->y_dtype), a->rows == 0},
    };
    if (!ls_dtype_is_stored(a->y_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "gated_norm: y %s; f32 and bf16 are built", ls_dtype_name(a->y_dtype));
    LS_TRY(check_gated_norm("gated_norm", a->rows, a->dim, a->groups, err));
    return ls_operands_check("gated_norm", operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_gated_norm_backward_check(const ls_gated_norm_backward_args *a, ls_error *err) {
    static const char op[] = "gated_norm_backward";
    const ls_operand operands[] = {
        {"x", a->x, a->rows, a->dim, a->x_stride, 4, a->rows == 0},
        {"z", a->z, a->rows, a->dim, a->z_stride, 4, a->rows == 0},
        {"w", a->w, 1, a->dim, a->dim, 4, false},
        {"dy", a->dy, a->rows, a->dim, a->dy_stride, 4, a->rows == 0},
        {"dx", a->dx, a->rows, a->dim, a->dx_stride, 4, a->rows == 0},
        {"dz", a->dz, a->rows, a->dim, a->dz_stride, ls_dtype_bytes(a->dz_dtype), a->rows == 0},
        {"dw", a->dw, 1, a->dim, a->dim, 4, false},
        {"scale", a->scale, a->rows, a->groups, a->groups, 4, a->rows == 0},
    };
    if (!ls_dtype_is_stored(a->dz_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: dz %s; f32 and bf16 are built", op, ls_dtype_name(a->dz_dtype));
    LS_TRY(check_gated_norm(op, a->rows, a->dim, a->groups, err));
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}
