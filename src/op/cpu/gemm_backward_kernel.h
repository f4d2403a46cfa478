/* The seam between gemm_backward.c (checks, split over threads) and gemm_backward_cpu.c (one body for each instruction
 * set): both gradients of the dense product are one product whose second factor has its columns in a row. */
#ifndef LS_OP_CPU_GEMM_BACKWARD_KERNEL_H
#define LS_OP_CPU_GEMM_BACKWARD_KERNEL_H

#include "op/cpu/kernels.h"
#include "op/gemm_backward.h"

/* Columns that a work item of dbias takes; carries no bits. */
#define LS_GEMM_BIAS_BLOCK 64

/* How a chain begins and ends: from +0 into out, from +0 and added to out, or from out into out. */
typedef enum ls_chain_mode { LS_CHAIN_FRESH, LS_CHAIN_ADD, LS_CHAIN_CONTINUE } ls_chain_mode;

/* out[i][j]: for s = 0, 1, .., steps-1: acc = fma(a(i, s), b(s, j), acc). */
typedef struct ls_gemm_chain {
    int64_t rows, cols, steps;
    const float *a; /* a(i, s) at i * a_row + s * a_step; one of the two is 1 */
    int64_t a_row, a_step;
    const void *b; /* b(s, j) at (b_rows[s], or s) * b_stride + j */
    ls_dtype b_dtype;
    int64_t b_stride;
    const int64_t *b_rows;
    float *out; /* (out_rows[i], or i) * out_stride + j */
    int64_t out_stride;
    const int64_t *out_rows;
    ls_chain_mode mode;
} ls_gemm_chain;

#endif
