/* Products of groups of rows on the CPU: group by group, by the products of single matrices. */
#include <stdlib.h>

#include "base/mem.h"
#include "op/cpu/cpu_ops.h"
#include "op/gemm_groups.h"
#include "op/rows.h"

static ls_status check_offsets(const char *op, const int64_t *offsets, int64_t n_groups, int64_t m, ls_error *err) {
    for (int64_t g = 0; g < n_groups; g++) {
        const ls_fault fault = {LS_FAULT_RANGE, offsets[g], offsets[g + 1], m};
        if (offsets[g] < 0 || offsets[g + 1] < offsets[g] || offsets[g + 1] > m)
            return ls_fault_status(op, &fault, err);
    }
    return LS_OK;
}

ls_status ls_cpu_gemm_groups(const ls_exec *exec, const ls_gemm_groups_args *a, ls_error *err) {
    if (a->m == 0) return LS_OK;
    LS_TRY(check_offsets("gemm_groups", a->offsets, a->n_groups, a->m, err));
    for (int64_t g = 0; g < a->n_groups; g++) {
        const ls_gemm_args one = {.x = a->x,
                                  .x_dtype = a->x_dtype,
                                  .x_stride = a->x_stride,
                                  .weight = a->weights[g],
                                  .out = a->out,
                                  .out_dtype = a->out_dtype,
                                  .out_stride = a->out_stride,
                                  .m = a->m,
                                  .profile = a->profile,
                                  .range = a->offsets + g};
        LS_TRY(ls_cpu_gemm(exec, &one, err));
    }
    return LS_OK;
}

ls_status ls_cpu_gemm_groups_backward_input(const ls_exec *exec, const ls_gemm_groups_backward_input_args *a,
                                            ls_error *err) {
    const bool is_rounded = a->dy_dtype == LS_BF16;
    if (a->m == 0) return LS_OK;
    LS_TRY(check_offsets("gemm_groups_backward_input", a->offsets, a->n_groups, a->m, err));
    for (int64_t g = 0; g < a->n_groups; g++) {
        const ls_gemm_backward_input_args one = {.dy = is_rounded ? NULL : a->dy,
                                                 .dy_stride = a->dy_stride,
                                                 .dy_rounded = is_rounded ? a->dy : NULL,
                                                 .dy_rounded_stride = a->dy_stride,
                                                 .w = a->w[g],
                                                 .w_dtype = a->w_dtype,
                                                 .dx = a->dx,
                                                 .dx_stride = a->dx_stride,
                                                 .dx_count = a->m,
                                                 .m = a->m,
                                                 .n = a->n,
                                                 .k = a->k,
                                                 .profile = a->profile,
                                                 .range = a->offsets + g};
        LS_TRY(ls_cpu_gemm_backward_input(exec, &one, err));
    }
    return LS_OK;
}

/* Where a group's rows of each sequence begin, counted from the group's first: cuts [n_sequences + 1]. */
static ls_status cut_group(const ls_gemm_groups_backward_weight_args *a, int64_t begin, int64_t end, int64_t *cuts,
                           ls_error *err) {
    static const char op[] = "gemm_groups_backward_weight";
    const int64_t n_rows = a->sequences[a->n_sequences];
    int64_t s = 0;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = a->rows[i];
        const ls_fault outside = {LS_FAULT_ROW, i, row, n_rows};
        if (row < 0 || row >= n_rows) return ls_fault_status(op, &outside, err);
        const ls_fault descends = {LS_FAULT_ROW_ORDER, i, row, i > begin ? a->rows[i - 1] : 0};
        if (i > begin && row <= a->rows[i - 1]) return ls_fault_status(op, &descends, err);
        for (; row >= a->sequences[s]; s++) cuts[s] = i - begin;
    }
    for (; s <= a->n_sequences; s++) cuts[s] = end - begin;
    return LS_OK;
}

/* Offsets of sequences: ascending from 0. */
static ls_status check_sequences(const ls_gemm_groups_backward_weight_args *a, ls_error *err) {
    const int64_t *sequences = a->sequences, n_rows = sequences[a->n_sequences];
    for (int64_t s = 0; s <= a->n_sequences; s++) {
        const ls_fault fault = {LS_FAULT_OFFSET, s > 0 ? s - 1 : 0, sequences[s], n_rows};
        if (s == 0 ? sequences[0] != 0 : sequences[s] < sequences[s - 1])
            return ls_fault_status("gemm_groups_backward_weight", &fault, err);
    }
    return LS_OK;
}

static ls_status group_backward(const ls_exec *exec, const ls_gemm_groups_backward_weight_args *a, int64_t g,
                                const int64_t *cuts, ls_error *err) {
    const int64_t begin = a->offsets[g], rows = a->offsets[g + 1] - begin;
    const bool is_rounded = a->dy_dtype == LS_BF16;
    const void *dy = ls_at(a->dy, a->dy_dtype, begin * a->dy_stride);
    const ls_gemm_backward_weight_args one = {.dy = is_rounded ? NULL : dy,
                                              .dy_stride = a->dy_stride,
                                              .dy_rounded = is_rounded ? dy : NULL,
                                              .dy_rounded_stride = a->dy_stride,
                                              .x = ls_at(a->x, a->x_dtype, begin * a->x_stride),
                                              .x_dtype = a->x_dtype,
                                              .x_stride = a->x_stride,
                                              .x_count = rows,
                                              .dw = a->dw[g],
                                              .m = rows,
                                              .n = a->n,
                                              .k = a->k,
                                              .profile = a->profile,
                                              .sequences = cuts,
                                              .n_sequences = a->n_sequences};
    return rows == 0 ? LS_OK : ls_cpu_gemm_backward_weight(exec, &one, err);
}

/* All groups are looked at before one is computed. */
ls_status ls_cpu_gemm_groups_backward_weight(const ls_exec *exec, const ls_gemm_groups_backward_weight_args *a,
                                             ls_error *err) {
    const bool pads = a->profile == LS_PROFILE_MMA16;
    const int64_t n_cuts = pads ? a->n_sequences + 1 : 0;
    int64_t *cuts = NULL;
    ls_status status = LS_OK;
    if (a->m == 0) return LS_OK;
    LS_TRY(check_offsets("gemm_groups_backward_weight", a->offsets, a->n_groups, a->m, err));
    if (pads) LS_TRY(check_sequences(a, err));
    LS_TRY(ls_array_alloc((void **)&cuts, a->n_groups, n_cuts * (int64_t)sizeof *cuts, "cuts of groups", err));
    for (int64_t g = 0; pads && g < a->n_groups; g++)
        LS_TRY_DONE(cut_group(a, a->offsets[g], a->offsets[g + 1], cuts + g * n_cuts, err));
    for (int64_t g = 0; g < a->n_groups; g++) LS_TRY_DONE(group_backward(exec, a, g, cuts + g * n_cuts, err));
done:
    free(cuts);
    return status;
}
