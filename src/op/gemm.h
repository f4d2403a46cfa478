/* Dense product with repacked weights. This comment is the specification; every back end is a reading of it.
 *
 *   out[m][n] = R( chain(m, n) + bias[n] )
 *   chain(m, n): acc = +0; for k = 0, 1, .., K-1 in this order: acc = ls_fma(x[m][k], w[n][k], acc)
 *
 * x and w are widened to float32, exactly. The add of the bias is one ls_add and happens only when bias is given
 * (chain + 0 would turn -0 into +0). R is one rounding to the type of out: none for f32, ls_f32_to_bf16 for bf16.
 * A NaN leaves as the one canonical quiet NaN, 0x7FC00000 in f32 and 0x7FC0 in bf16: which payload survives an fma
 * depends on the operand order a compiler picked, so payloads are not part of the result.
 *
 * The bits of out[m][n] depend on row m of x, row n of w and bias[n] alone: not on M, N, strides, tiles, threads or
 * instruction set. Vector lanes and tiles run over outputs. Blocking K is free, because a float32 accumulator that is
 * stored and loaded again is unchanged. Splitting the chain into partial sums is not.
 *
 * With nan_open any NaN may stand for the canonical one: for a caller in whose results no NaN has bits.
 *
 * That is the profile exact. In the profile mma16, x and w are bf16 and the chain is steps of 16 (num/mma16.h), k
 * ascending from +0 and padded with +0; a NaN becomes 0x7FC00000 before the bias is added. All else is the same. */
#ifndef LS_OP_GEMM_H
#define LS_OP_GEMM_H

#include "base/status.h"
#include "lockstep/lockstep.h"

/* Outputs in one column panel of the weights. */
#define LS_GEMM_PANEL 16

/* Bytes between panels whose own size is a multiple of 4096: they are read side by side, and without a gap they would
 * start in the same sets of the caches and push each other out. */
#define LS_GEMM_PANEL_GAP 320

/* A weight [n][k] in the layout of the back end that packed it. The CPU's is panels [ceil(n / LS_GEMM_PANEL)][k]
 * [LS_GEMM_PANEL], panel_stride bytes apart, rows past n zero, 64-byte aligned. CUDA's is w as it is stored; of bf16,
 * the tiles of op/gemm_cuda.h follow, panel_stride bytes behind its beginning. dtype is f32 or bf16; f16 weights are
 * widened to f32, exactly, when they are packed. */
typedef struct ls_gemm_weight {
    ls_dtype dtype;
    int64_t n, k;
    void *panels; /* device memory */
    int64_t panel_stride;
    int64_t panel_bytes; /* of the whole array */
} ls_gemm_weight;

/* Packs another w [n][k], rows contiguous, into a weight of the same n, k and packed type; allocates nothing. */
typedef struct ls_gemm_repack_args {
    const ls_gemm_weight *weight; /* host memory */
    const void *w;
    ls_dtype dtype;
} ls_gemm_repack_args;

typedef struct ls_gemm_args {
    const void *x;                /* [m][weight->k], rows x_stride elements apart */
    ls_dtype x_dtype;             /* f32 or bf16 */
    int64_t x_stride;             /* elements, at least weight->k */
    const ls_gemm_weight *weight; /* host memory; its panels are the device's */
    const float *bias;            /* [weight->n], or NULL */
    void *out;          /* [m][weight->n], rows out_stride elements apart; elements between rows are not touched */
    ls_dtype out_dtype; /* f32 or bf16 */
    int64_t out_stride; /* elements, at least weight->n */
    int64_t m;          /* 0 is allowed and does nothing */
    ls_profile profile; /* mma16 takes x and weight in bf16 only */
    /* Two numbers in device memory: only rows [range[0], range[1]) of the m are computed. NULL: all. It lets a product
     * run over rows whose number only the device knows, those of one expert. */
    const int64_t *range;
    /* Which NaN a NaN leaves as may be left open, so that a library can compute whose NaN is another one. */
    bool nan_open;
} ls_gemm_args;

/* out must not overlap x, bias or the weights. */
ls_status ls_gemm_check(const ls_gemm_args *args, ls_error *err);
ls_status ls_gemm_repack_check(const ls_gemm_repack_args *args, ls_error *err);

#endif
