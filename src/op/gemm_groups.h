/* Dense products of groups of rows, each group with a weight of its own: the experts of a mixture.
 *
 * Group g has the rows [offsets[g], offsets[g + 1]) of the m rows of x and of out; only the device knows them. Groups
 * ascend; rows of none are not touched.
 * The arithmetic is that of op/gemm.h and op/gemm_backward.h, group by group:
 *
 *   out:    of a group's rows the product with its weight, without bias
 *   input:  dx of a group's rows from their dy and the group's w, from +0
 *   weight: dw of a group continues from what is there, over its rows in order. In the profile mma16 the rows of each
 *           sequence are padded with +0 to a multiple of 16 of their own, as without groups: row i of dy belongs to
 *           row rows[i] of the batch, and so to the sequence that has this row. Rows ascend within a group. A sum may
 *           therefore be cut into calls between sequences, whichever rows went to which group.
 *
 * In exact, dy is float32; in mma16 it is bf16, rounded. A NaN in out is the canonical one; in gradients which NaN a
 * NaN is, is left open. */
#ifndef LS_OP_GEMM_GROUPS_H
#define LS_OP_GEMM_GROUPS_H

#include "base/status.h"
#include "lockstep/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays over groups are host memory, read before a call returns; what they point to is the device's. */

typedef struct ls_gemm_groups_args {
    const void *x; /* [m][k], rows x_stride elements apart */
    ls_dtype x_dtype;
    int64_t x_stride;
    const ls_gemm_weight *const *weights; /* [n_groups], of one shape and type */
    int64_t n_groups;                     /* 1..LS_EXPERTS_MAX */
    const int64_t *offsets;               /* [n_groups + 1] */
    void *out;                            /* [m][n], rows out_stride elements apart */
    ls_dtype out_dtype;
    int64_t out_stride;
    int64_t m; /* 0 is allowed and does nothing */
    ls_profile profile;
} ls_gemm_groups_args;

typedef struct ls_gemm_groups_backward_input_args {
    const void *dy; /* [m][n], rows dy_stride elements apart */
    ls_dtype dy_dtype;
    int64_t dy_stride;
    const void *const *w; /* [n_groups]: [n][k] as stored, rows contiguous */
    ls_dtype w_dtype;
    int64_t n_groups;
    const int64_t *offsets;
    float *dx; /* [m][k], rows dx_stride elements apart */
    int64_t dx_stride;
    int64_t m, n, k;
    ls_profile profile;
} ls_gemm_groups_backward_input_args;

typedef struct ls_gemm_groups_backward_weight_args {
    const void *dy; /* [m][n], rows dy_stride elements apart */
    ls_dtype dy_dtype;
    int64_t dy_stride;
    const void *x; /* [m][k], rows x_stride elements apart */
    ls_dtype x_dtype;
    int64_t x_stride;
    float *const *dw; /* [n_groups]: [n][k], continued */
    int64_t n_groups;
    const int64_t *offsets;
    const int64_t *rows; /* [m]: the batch's row; mma16 only */
    /* mma16 only: sequence i holds rows [sequences[i], sequences[i + 1]) of the batch. */
    const int64_t *sequences; /* [n_sequences + 1], ascending from 0 */
    int64_t n_sequences;
    int64_t m, n, k;
    ls_profile profile;
    bool dw_is_zero; /* all of every dw is +0: known by the caller, so that it need not be read */
} ls_gemm_groups_backward_weight_args;

/* Offsets that are none are an error before anything is written. */
ls_status ls_gemm_groups_check(const ls_gemm_groups_args *args, ls_error *err);
ls_status ls_gemm_groups_backward_input_check(const ls_gemm_groups_backward_input_args *args, ls_error *err);
/* Rows outside of all sequences, or that descend within a group, are an error before anything is written. */
ls_status ls_gemm_groups_backward_weight_check(const ls_gemm_groups_backward_weight_args *args, ls_error *err);

int64_t ls_op_gemm_groups_backward_weight_workspace(const ls_gemm_groups_backward_weight_args *args);

#ifdef __cplusplus
}
#endif
#endif
