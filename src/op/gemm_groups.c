/* Dense products of groups of rows: what the host can see of a call. */
#include "op/gemm_groups.h"

#include "base/mem.h"
#include "op/operand.h"
#include "op/profile.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static ls_status check_groups_sizes(const char *op, int64_t n_groups, int64_t m, int64_t n, int64_t k, ls_error *err) {
    int64_t elements;
    if (n_groups < 1 || n_groups > LS_EXPERTS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld groups, not 1..%d", op, (long long)n_groups, LS_EXPERTS_MAX);
    if (m < 0 || n < 1 || k < 1)
        return LS_FAIL(err, LS_ERR_ARG, "%s: m %lld, n %lld, k %lld", op, (long long)m, (long long)n, (long long)k);
    if (!ls_mul_i64(n, k, &elements))
        return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld times k %lld does not fit 64 bits", op, (long long)n, (long long)k);
    return LS_OK;
}

/* Pointers of all groups. */
static ls_status check_groups(const char *op, const char *name, const void *const *list, int64_t n_groups,
                              ls_error *err) {
    if (list == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: %s is NULL", op, name);
    for (int64_t g = 0; g < n_groups; g++)
        if (list[g] == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: %s of group %lld is NULL", op, name, (long long)g);
    return LS_OK;
}

/* A gradient has one type in each profile. */
static ls_status check_dy(const char *op, ls_profile profile, ls_dtype dtype, ls_error *err) {
    const ls_dtype needed = profile == LS_PROFILE_MMA16 ? LS_BF16 : LS_F32;
    if (dtype == needed) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: dy is %s, profile %s takes %s", op, ls_dtype_name(dtype),
                   ls_profile_name(profile), ls_dtype_name(needed));
}

ls_status ls_gemm_groups_check(const ls_gemm_groups_args *a, ls_error *err) {
    static const char op[] = "gemm_groups";
    const ls_gemm_weight *first = NULL;
    LS_TRY(check_groups_sizes(op, a->n_groups, a->m, 1, 1, err));
    LS_TRY(check_groups(op, "weight", (const void *const *)a->weights, a->n_groups, err));
    first = a->weights[0];
    for (int64_t g = 0; g < a->n_groups; g++) {
        const ls_gemm_weight *w = a->weights[g];
        if (w->panels == NULL || w->n != first->n || w->k != first->k || w->dtype != first->dtype)
            return LS_FAIL(err, LS_ERR_ARG,
                           "gemm_groups: the weight of group %lld is not packed, or of another shape or type than the "
                           "first",
                           (long long)g);
    }
    LS_TRY(check_groups_sizes(op, a->n_groups, a->m, first->n, first->k, err));
    if ((a->x_dtype != LS_F32 && a->x_dtype != LS_BF16) || (a->out_dtype != LS_F32 && a->out_dtype != LS_BF16))
        return LS_FAIL(err, LS_ERR_ARG, "%s: x is %s and out is %s, not f32 or bf16", op, ls_dtype_name(a->x_dtype),
                       ls_dtype_name(a->out_dtype));
    const ls_operand operands[] = {
        {"x", a->x, a->m, first->k, a->x_stride, ls_dtype_bytes(a->x_dtype), a->m == 0},
        {"offsets", a->offsets, 1, a->n_groups + 1, a->n_groups + 1, 8, false},
        {"out", a->out, a->m, first->n, a->out_stride, ls_dtype_bytes(a->out_dtype), a->m == 0}};
    LS_TRY(ls_operands_check(op, operands, COUNT(operands), err));
    LS_TRY(ls_profile_check(op, a->profile, "x", a->x_dtype, err));
    return ls_profile_check(op, a->profile, "weight", first->dtype, err);
}

ls_status ls_gemm_groups_backward_input_check(const ls_gemm_groups_backward_input_args *a, ls_error *err) {
    static const char op[] = "gemm_groups_backward_input";
    LS_TRY(check_groups_sizes(op, a->n_groups, a->m, a->n, a->k, err));
    LS_TRY(check_groups(op, "w", a->w, a->n_groups, err));
    if (ls_dtype_bytes(a->w_dtype) == 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: w_dtype %d is unknown", op, (int)a->w_dtype);
    LS_TRY(ls_profile_check(op, a->profile, "w", a->w_dtype, err));
    LS_TRY(check_dy(op, a->profile, a->dy_dtype, err));
    const ls_operand operands[] = {{"dy", a->dy, a->m, a->n, a->dy_stride, ls_dtype_bytes(a->dy_dtype), a->m == 0},
                                   {"offsets", a->offsets, 1, a->n_groups + 1, a->n_groups + 1, 8, false},
                                   {"dx", a->dx, a->m, a->k, a->dx_stride, 4, a->m == 0}};
    return ls_operands_check(op, operands, COUNT(operands), err);
}

ls_status ls_gemm_groups_backward_weight_check(const ls_gemm_groups_backward_weight_args *a, ls_error *err) {
    static const char op[] = "gemm_groups_backward_weight";
    const bool no_sequences = a->profile != LS_PROFILE_MMA16 || a->m == 0;
    LS_TRY(check_groups_sizes(op, a->n_groups, a->m, a->n, a->k, err));
    LS_TRY(check_groups(op, "dw", (const void *const *)a->dw, a->n_groups, err));
    if (a->x_dtype != LS_F32 && a->x_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_ARG, "%s: x is %s, not f32 or bf16", op, ls_dtype_name(a->x_dtype));
    LS_TRY(ls_profile_check(op, a->profile, "x", a->x_dtype, err));
    LS_TRY(check_dy(op, a->profile, a->dy_dtype, err));
    if (!no_sequences && (a->n_sequences < 1 || a->n_sequences > INT64_MAX / 16 - 1))
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld sequences, profile mma16 needs those of all rows", op,
                       (long long)a->n_sequences);
    const ls_operand operands[] = {{"dy", a->dy, a->m, a->n, a->dy_stride, ls_dtype_bytes(a->dy_dtype), a->m == 0},
                                   {"x", a->x, a->m, a->k, a->x_stride, ls_dtype_bytes(a->x_dtype), a->m == 0},
                                   {"offsets", a->offsets, 1, a->n_groups + 1, a->n_groups + 1, 8, false},
                                   {"rows", a->rows, a->m, 1, 1, 8, no_sequences},
                                   {"sequences", a->sequences, 1, no_sequences ? 0 : a->n_sequences + 1,
                                    no_sequences ? 0 : a->n_sequences + 1, 8, no_sequences}};
    return ls_operands_check(op, operands, COUNT(operands), err);
}
