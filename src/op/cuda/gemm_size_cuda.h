/* Sizes of what dense products lay out on a GPU: arithmetic alone, in every build, so that memory can be planned for a
 * card that is not here. Negative: it does not fit 64 bits. */
#ifndef LS_OP_CUDA_GEMM_SIZE_CUDA_H
#define LS_OP_CUDA_GEMM_SIZE_CUDA_H

#include "op/gemm_backward.h"
#include "op/gemm_groups.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Multiprocessors that the kernel for few rows cuts a weight for. */
#define LS_DECODE_PROCESSORS 132

/* Rows of a weight of `cols` rows that lie together in its tiles. */
int64_t ls_decode_columns(int64_t cols);
/* A matrix that is gathered into the workspace as bf16. */
int64_t ls_gemm_gathered_bytes(int64_t rows, int64_t cols);
/* Rows of the gathered matrices, whatever the sequences' lengths are. */
int64_t ls_gemm_padded_rows(const ls_gemm_backward_weight_args *args);
/* Where each sequence's padded rows begin. */
int64_t ls_gemm_starts_bytes(const ls_gemm_backward_weight_args *args);

/* Up to 16 neighbouring rows of a group that are of one sequence: a step of the chains of its gradient. Behind the head
 * of the workspace lie the number of steps of each group, [n_groups], then the steps; those of a group from
 * ls_group_first_step on. */
typedef struct ls_group_step {
    int64_t row, n_rows;
} ls_group_step;

/* Groups before this one, which begins at row `offset`, have no more steps: one for sixteen rows, one for what is left
 * of each sequence. */
#define ls_group_first_step(group, offset, n_sequences) ((offset) / 16 + (group) * ((n_sequences) + 1))

#ifdef __cplusplus
}
#endif
#endif
