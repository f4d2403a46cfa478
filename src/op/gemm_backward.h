/* Gradients of the dense product out[m][n] = R(chain over k of fma(x[m][k], w[n][k], acc) + bias[n]) of op/gemm.h. This
 * comment is the specification; every back end is a reading of it. R is taken as the identity.
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
 * multiple of 16 of their own. dbias is the same in both, of dy
 * unrounded. The sum over rows continues from call to call. It may be cut between sequences, and behind a multiple of
 * 16 rows of one: the rest is then given as a sequence of its own. */
#ifndef LS_OP_GEMM_BACKWARD_H
#define LS_OP_GEMM_BACKWARD_H

#include "base/status.h"
#include "lockstep/lockstep.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_gemm_backward_input_args {
    const float *dy; /* [m][n], rows dy_stride elements apart */
    int64_t dy_stride;
    const void *w; /* [n][k] as stored, rows contiguous: not packed */
    ls_dtype w_dtype;
    float *dx; /* [dx_count][k], rows dx_stride elements apart; elements between rows are not touched */
    int64_t dx_stride;
    int64_t dx_count;
    const int64_t *dx_rows; /* [m], strictly ascending: row i of the product is row dx_rows[i] of dx; NULL: row i */
    bool add;
    int64_t m, n, k; /* m 0 is allowed and does nothing */
    ls_profile profile;
    const int64_t *range;       /* as in ls_gemm_args: rows of dy, and of dx or dx_rows; NULL: all */
    const uint16_t *dy_rounded; /* mma16 only: dy rounded to bf16, rows dy_rounded_stride elements apart, which a back
                                 * end may read instead; NULL: it rounds */
    int64_t dy_rounded_stride;
} ls_gemm_backward_input_args;

/* dx must not overlap dy or w. */
ls_status ls_gemm_backward_input_check(const ls_gemm_backward_input_args *args, ls_error *err);

typedef struct ls_gemm_backward_weight_args {
    const float *dy; /* [m][n], rows dy_stride elements apart */
    int64_t dy_stride;
    const void *x;    /* [x_count][k], rows x_stride elements apart */
    ls_dtype x_dtype; /* f32 or bf16 */
    int64_t x_stride;
    int64_t x_count;
    const int64_t *x_rows; /* [m], in any order: row i of dy belongs to row x_rows[i] of x; NULL: to row i */
    float *dw;             /* [n][k], rows contiguous; continued */
    float *dbias;          /* [n], continued; or NULL */
    int64_t m, n, k;       /* m 0 is allowed and does nothing */
    ls_profile profile;
    /* mma16 only: sequence i holds rows [sequences[i], sequences[i + 1]) of dy; ascending from 0 to m. */
    const int64_t *sequences; /* [n_sequences + 1] */
    int64_t n_sequences;
    const int64_t *range;       /* as in ls_gemm_args: rows of dy, and of x or x_rows; NULL: all. Not with mma16 */
    const uint16_t *dy_rounded; /* as above */
    int64_t dy_rounded_stride;
    /* What the caller knows, so that work can be left out. */
    bool sequences_whole; /* the rows of every sequence are a multiple of 16: there is nothing to pad */
    bool dw_is_zero;      /* all of dw is +0 */
} ls_gemm_backward_weight_args;

/* dw and dbias must not overlap the inputs or each other. Both calls allocate nothing and write nothing when they
 * fail. */
ls_status ls_gemm_backward_weight_check(const ls_gemm_backward_weight_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
