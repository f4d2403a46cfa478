/* Gradients of the dense product: what the host can see of a call. */
#include "op/gemm_backward.h"

#include "base/mem.h"
#include "op/operand.h"
#include "op/profile.h"

static const char input_op[] = "gemm_backward_input";
static const char weight_op[] = "gemm_backward_weight";

static ls_status check_gemm_backward(const char *op, int64_t m, int64_t n, int64_t k, ls_error *err) {
    int64_t elements;
    if (m < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: m %lld is negative", op, (long long)m);
    if (n < 1) return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld is less than 1", op, (long long)n);
    if (k < 1) return LS_FAIL(err, LS_ERR_ARG, "%s: k %lld is less than 1", op, (long long)k);
    if (!ls_mul_i64(n, k, &elements))
        return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld times k %lld does not fit 64 bits", op, (long long)n, (long long)k);
    return LS_OK;
}

/* A tensor of `count` rows: enough of them, unless the call numbers its rows. */
static ls_status check_count(const char *op, const char *name, const int64_t *rows, int64_t m, int64_t count,
                             ls_error *err) {
    if (count < 0 || (rows == NULL && count < m))
        return LS_FAIL(err, LS_ERR_ARG, "%s: %s of %lld rows, %lld are needed", op, name, (long long)count,
                       (long long)m);
    return LS_OK;
}

/* What is read of a gradient. */
static ls_operand of_dy(ls_profile profile, const float *dy, int64_t dy_stride, const uint16_t *rounded,
                        int64_t rounded_stride, int64_t m, int64_t n) {
    if (profile == LS_PROFILE_MMA16 && rounded != NULL)
        return (ls_operand){"dy_rounded", rounded, m, n, rounded_stride, 2, m == 0};
    return (ls_operand){"dy", dy, m, n, dy_stride, 4, m == 0};
}

ls_status ls_gemm_backward_input_check(const ls_gemm_backward_input_args *a, ls_error *err) {
    LS_TRY(check_gemm_backward(input_op, a->m, a->n, a->k, err));
    if (ls_dtype_bytes(a->w_dtype) == 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: w_dtype %d is unknown", input_op, (int)a->w_dtype);
    LS_TRY(check_count(input_op, "dx", a->dx_rows, a->m, a->dx_count, err));
    const ls_operand operands[] = {
        of_dy(a->profile, a->dy, a->dy_stride, a->dy_rounded, a->dy_rounded_stride, a->m, a->n),
        {"w", a->w, a->n, a->k, a->k, ls_dtype_bytes(a->w_dtype), false},
        {"dx", a->dx, a->dx_count, a->k, a->dx_stride, 4, a->m == 0},
    };
    LS_TRY(ls_operands_check(input_op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    return ls_profile_check(input_op, a->profile, "w", a->w_dtype, err);
}

ls_status ls_gemm_backward_weight_check(const ls_gemm_backward_weight_args *a, ls_error *err) {
    LS_TRY(check_gemm_backward(weight_op, a->m, a->n, a->k, err));
    if (a->x_dtype != LS_F32 && a->x_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_ARG, "%s: x_dtype %d (%s) is neither f32 nor bf16", weight_op, (int)a->x_dtype,
                       ls_dtype_name(a->x_dtype));
    LS_TRY(check_count(weight_op, "x", a->x_rows, a->m, a->x_count, err));
    const ls_operand operands[] = {
        of_dy(a->profile, a->dy, a->dy_stride, a->dbias == NULL ? a->dy_rounded : NULL, a->dy_rounded_stride, a->m,
              a->n),
        {"x", a->x, a->x_count, a->k, a->x_stride, ls_dtype_bytes(a->x_dtype), a->m == 0},
        {"dw", a->dw, a->n, a->k, a->k, 4, false},
    };
    LS_TRY(ls_operands_check(weight_op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    LS_TRY(ls_profile_check(weight_op, a->profile, "x", a->x_dtype, err));
    if (a->profile == LS_PROFILE_MMA16 && a->range != NULL)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: profile mma16 pads whole sequences: a range of rows has none",
                       weight_op);
    if (a->profile == LS_PROFILE_MMA16 && a->m > 0 && (a->sequences == NULL || a->n_sequences < 1))
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: sequences: %lld of them at %p, profile mma16 needs the offsets of all rows", weight_op,
                       (long long)a->n_sequences, (const void *)a->sequences);
    return LS_OK;
}
