/* The ops without a reduction: embedding, residual add, SwiGLU gate, rounding. An element is rounded at most once.
 *
 * embed:      y[r][c] = R(table[token[r]][c])
 * residual:   out[r][c] = h[r][c] + y[r][c], float32: the residual stream is never rounded to the activation type
 * multiply:   x[i] = (x[i] * scale) * y[i], float32
 * scale:      y[i] = x[i] * scale, float32
 * round_rows: y[r][c] = x[r][c] rounded to bf16: what enters a dense product of the profile mma16 and is used as
 *             float32 besides
 * relu2:      y[r][c] = R(m * m), m = x[r][c] where it is above 0 or NaN, else +0
 * swiglu:     y[r][c] = R(silu(gate[r][c]) * up[r][c])   (Shazeer 2020, arXiv:2002.05202); silu of num/expf.h */
#ifndef LS_OP_ELEMENTWISE_H
#define LS_OP_ELEMENTWISE_H

#include "base/status.h"
#include "lockstep/ops.h"

/* A token outside [0, vocab) is an error that names row and token; nothing is written then. */
ls_status ls_embed_check(const ls_embed_args *args, ls_error *err);

typedef struct ls_residual_args {
    float *h;       /* [rows][dim] */
    const float *y; /* [rows][dim] */
    int64_t rows, dim;
    float *out; /* [rows][dim]; NULL: h, updated in place */
} ls_residual_args;

ls_status ls_residual_check(const ls_residual_args *args, ls_error *err);

typedef struct ls_multiply_args {
    float *x;       /* [n] */
    const float *y; /* [n] */
    int64_t n;
    float scale;
} ls_multiply_args;

ls_status ls_multiply_check(const ls_multiply_args *args, ls_error *err);

typedef struct ls_scale_args {
    const float *x; /* [n] */
    float *y;       /* [n]; may be x, and does not overlap it else */
    int64_t n;
    float scale;
} ls_scale_args;

ls_status ls_scale_check(const ls_scale_args *args, ls_error *err);

typedef struct ls_round_rows_args {
    const float *x; /* [rows][dim], rows x_stride elements apart */
    int64_t x_stride;
    uint16_t *y; /* [rows][dim] in bf16, rows y_stride elements apart; elements between rows are not touched */
    int64_t y_stride;
    int64_t rows, dim;
} ls_round_rows_args;

/* y must not overlap x. */
ls_status ls_round_rows_check(const ls_round_rows_args *args, ls_error *err);

/* A feed-forward without a gate (So et al. 2021, arXiv:2109.08668). */
ls_status ls_relu2_check(const ls_relu2_args *args, ls_error *err);

ls_status ls_swiglu_check(const ls_swiglu_args *args, ls_error *err);

#endif
