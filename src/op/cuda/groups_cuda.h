/* Products of groups of rows on CUDA (op/gemm_groups.h): what the kernels share. */
#ifndef LS_OP_CUDA_GROUPS_CUDA_H
#define LS_OP_CUDA_GROUPS_CUDA_H

#include "op/cuda/gemm_size_cuda.h"
#include "op/cuda/product_cuda.h"

/* Every group's product is `p` but for what lies elsewhere in each group: of rows, b, and the rows
 * [offsets[g], offsets[g + 1]) of p.rows; of depths, out, and the group's steps of 16 depths. */
typedef struct ls_group_product {
    ls_product p;
    const void *const *list; /* [n_groups], host memory */
    int64_t n_groups;
    const int64_t *offsets; /* [n_groups + 1] */
    bool of_depths;
    /* Of depths in mma16: n_steps[g] steps of group g from ls_group_first_step on. */
    const ls_group_step *steps;
    const int64_t *n_steps;
    int64_t n_sequences;
} ls_group_product;

/* mma16 on Hopper: all groups in one launch. Operands are bf16. */
ls_status ls_group_product_wgmma(const ls_exec *exec, const ls_group_product *product, ls_error *err);

/* Depths in steps of 16, of each of which n_rows are there: `steps` begin where `offset` says, *n_steps of them. */
typedef struct ls_step_list {
    const ls_group_step *steps; /* NULL: depths as they are */
    const int64_t *n_steps, *offset;
    int64_t group, n_sequences;
} ls_step_list;

/* ls_product_mma16_plain over such depths: nothing is written where product->fault holds one. */
ls_status ls_product_mma16_steps(const ls_exec *exec, const ls_product *product, const ls_step_list *list,
                                 ls_error *err);

#endif
