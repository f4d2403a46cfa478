/* RMS normalisation (Zhang & Sennrich 2019, arXiv:1910.07467) with one rounding to the stored type.
 *
 * y[r][c] = R((x[r][c] * s(r)) * w[c]),  s(r) = 1 / sqrt(q(r) / dim + eps)
 * q(r): the 256-chain tree of num/sum.h over c, each chain q = fma(x, x, q). Division and square root are IEEE; R
 * rounds to the type of y (nothing for f32). Row r of y depends on row r of x, w, dim and eps only. */
#ifndef LS_OP_RMSNORM_H
#define LS_OP_RMSNORM_H

#include "base/status.h"
#include "lockstep/lockstep.h"

typedef struct ls_rmsnorm_args {
    const void *x;    /* [rows][x_stride] */
    ls_dtype x_dtype; /* f32 or bf16 */
    int64_t x_stride;
    const float *w; /* [dim], widened exactly */
    float eps;
    void *y;          /* [rows][y_stride]; may be x when the types are the same */
    ls_dtype y_dtype; /* f32 or bf16 */
    int64_t y_stride;
    int64_t rows, dim;
} ls_rmsnorm_args;

ls_status ls_rmsnorm_check(const ls_rmsnorm_args *args, ls_error *err);

#endif
