/* Gradients of the dense product out[m][n] = R(chain over k of fma(x[m][k], w[n][k], acc) + bias[n]) of op/gemm.h. This
 * comment is the specification; every back end is an implementation of it. R is taken as the identity.
 *
 * input:  dx[m][k]: acc = +0; for n = 0, 1, .., N-1: acc = fma(dy[m][n], w[n][k], acc)
 *         dx = acc, or with `add` dx = dx + acc, one ls_add
 * weight: dw[n][k]: for m = 0, 1, .., M-1: dw = fma(dy[m][n], x[m][k], dw)
 *         dbias[n]: for m = 0, 1, .., M-1: dbias = dbias + dy[m][n]
 *
 * The sums over rows continue from the float32 values that are there: the caller sets them to +0 once, and a sum that
 * is cut into calls at any row has the bits of one call over all rows. x and w are widened to float32, exactly. Which
 * NaN a NaN is, is left open; all other bits are not.
 *
 * The bits of dx[m][k] depend on row m of dy and column k of w, those of dw[n][k] on column n of dy, column k of x and
 * the order of the rows: never on strides, tiles, threads, instruction set or the other outputs.
 *
 * That is the profile exact. In the profile mma16, w and x are bf16, dy is rounded to bf16, and the chains are steps of
 * 16 (num/mma16.h): for dx from +0 over n, padded with +0; for dw over rows, each sequence's rows padded with +0 to a
 * multiple of 16 of their own. dbias is the same in both, of dy unrounded. The sum over rows continues from call to
 * call. It may be cut between sequences, and behind a multiple of 16 rows of one: the rest is then given as a sequence
 * of its own. */
#ifndef LS_OP_GEMM_BACKWARD_H
#define LS_OP_GEMM_BACKWARD_H

#include "base/status.h"
#include "lockstep/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* dx must not overlap dy or w. */
ls_status ls_gemm_backward_input_check(const ls_gemm_backward_input_args *args, ls_error *err);

/* dw and dbias must not overlap the inputs or each other. Both calls allocate nothing and write nothing when they
 * fail. */
ls_status ls_gemm_backward_weight_check(const ls_gemm_backward_weight_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
