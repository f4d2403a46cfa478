/* Dense product with repacked weights. This comment is the specification; every back end is an implementation of it.
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
#include "lockstep/ops.h"

/* Outputs in one column panel of the weights. */
#define LS_GEMM_PANEL 16

/* Bytes between panels whose own size is a multiple of 4096: they are read side by side, and without a gap they would
 * start in the same sets of the caches and push each other out. */
#define LS_GEMM_PANEL_GAP 320

/* ls_gemm_weight: the CPU's layout is panels [ceil(n / LS_GEMM_PANEL)][k][LS_GEMM_PANEL], panel_stride bytes apart,
 * rows past n zero, 64-byte aligned. CUDA's is w as it is stored; of bf16, the tiles of op/gemm_cuda.h lie
 * panel_stride bytes behind its beginning, by plan right behind the rows; 0: there are none, which moves no bit. */

/* Two products of one x and what swiglu (op/elementwise.h) makes of them, in one call: y = R(silu(gate) * up) with
 * gate = x gate.weight^T and up = x up^T, both float32. A back end may keep gate and up to itself: gate.out and up_out
 * are its working memory, whose content afterwards is undefined. The bits of y are those of the three calls. */
typedef struct ls_gemm_gated_args {
    ls_gemm_args gate;        /* out f32, its rows contiguous; without bias and range */
    const ls_gemm_weight *up; /* host memory; of the shape and type of gate.weight */
    float *up_out;            /* [gate.m][gate.weight->n] */
    void *y;                  /* the same shape */
    ls_dtype y_dtype;
} ls_gemm_gated_args;

/* Three products of one x in one call, as queries, keys and values are. The bits are those of three calls. */
typedef struct ls_gemm_three_args {
    ls_gemm_args first;              /* without bias and range */
    const ls_gemm_weight *others[2]; /* host memory; of one shape, of the depth and type of first.weight */
    void *outs[2];                   /* of the type of first.out */
    int64_t outs_stride;             /* elements from a row of these to the next */
} ls_gemm_three_args;

/* The call that a product of others is: 0 or 1. */
static inline ls_gemm_args ls_gemm_other(const ls_gemm_three_args *args, int i) {
    ls_gemm_args other = args->first;
    other.weight = args->others[i];
    other.out = args->outs[i];
    other.out_stride = args->outs_stride;
    return other;
}

/* out must not overlap x, bias or the weights. */
ls_status ls_gemm_check(const ls_gemm_args *args, ls_error *err);
ls_status ls_gemm_gated_check(const ls_gemm_gated_args *args, ls_error *err);
ls_status ls_gemm_three_check(const ls_gemm_three_args *args, ls_error *err);
ls_status ls_gemm_repack_check(const ls_gemm_repack_args *args, ls_error *err);

#endif
