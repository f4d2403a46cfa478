/* The profile mma16 on the CPU: one product whose second factor has its columns in a row serves the dense product and
 * both gradients. cpu_gemm.c and cpu_gemm_backward.c describe theirs as a chain; cpu_gemm_mma16.c splits the outputs
 * over threads; gemm_mma16_cpu.c computes, once for each instruction set. The arithmetic is that of op/gemm.h and
 * op/gemm_backward.h. */
#ifndef LS_OP_CPU_GEMM_MMA16_H
#define LS_OP_CPU_GEMM_MMA16_H

#include "op/cpu/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns of a panel of b. */
#define LS_MMA16_PANEL 16

/* Floats of a thread's scratch that the kernel uses; what lies behind them is the caller's. */
#define LS_MMA16_SCRATCH_FLOATS (192 * 1024)

/* How a chain begins and ends: from +0, with bias and rounding, into out; from +0 and added to out; from out into out.
 */
typedef enum ls_mma16_mode { LS_MMA16_STORE, LS_MMA16_ADD, LS_MMA16_CONTINUE } ls_mma16_mode;

/* out[i][j]: chain over k of (a(i, k), b(k, j)), k in segments that each begin with a step of their own. */
typedef struct ls_mma16_chain {
    int64_t rows, cols;
    const int64_t *segments; /* [n_segments + 1], ascending: segment s holds k in [segments[s], segments[s + 1]) */
    int64_t n_segments;
    const void *a; /* a(i, k) at i * a_row + k * a_k elements; f32 is rounded to bf16 */
    ls_dtype a_dtype;
    int64_t a_row, a_k;
    const uint16_t *b; /* b(k, j) at (b_rows[k], or k) * b_k + j / 16 * b_panel + j % 16; bf16 */
    int64_t b_k, b_panel;
    const int64_t *b_rows;
    void *out; /* (out_rows[i], or i) * out_stride + j */
    ls_dtype out_dtype;
    int64_t out_stride;
    const int64_t *out_rows;
    const float *bias; /* [cols], or NULL; LS_MMA16_STORE only */
    ls_mma16_mode mode;
} ls_mma16_chain;

/* Computes all outputs on the workers. rows and cols are at least 1. */
void ls_mma16_run(ls_workers *workers, const ls_mma16_chain *chain);

#ifdef __cplusplus
}
#endif
#endif
