/* RMS normalisation (Zhang & Sennrich 2019, arXiv:1910.07467) with one rounding to the stored type.
 *
 * y[r][c] = R((x[r][c] * s(r)) * w[c]),  s(r) = 1 / sqrt(q(r) / dim + eps)
 * q(r): the 256-chain tree of num/sum.h over c, each chain q = fma(x, x, q). Division and square root are IEEE; R
 * rounds to the type of y (nothing for f32). Row r of y depends on row r of x, w, dim and eps only. A norm without
 * weight is one whose w are all 1. A model that stores a weight as what it has above 1 has w = 1 + stored, one
 * rounding, made once (plus_one of op/weight.h); dw is the gradient of what is stored as well.
 *
 * add_rmsnorm: sum[r][c] = h[r][c] + add[r][c], one ls_add each, and y = rmsnorm of sum.
 * rmsnorm_parts: the norms of up to LS_NORM_PARTS matrices with the same number of rows, in one call. */
#ifndef LS_OP_RMSNORM_H
#define LS_OP_RMSNORM_H

#include "base/status.h"
#include "lockstep/ops.h"

/* The residual stream, what is added to it, and the norm of what comes of it. */
typedef struct ls_add_rmsnorm_args {
    float *h;         /* [rows][dim]; not written */
    const float *add; /* [rows][dim] */
    float *sum;       /* [rows][dim]; may be h */
    const float *w;   /* [dim] */
    float eps;
    void *y;          /* [rows][y_stride]; overlaps nothing */
    ls_dtype y_dtype; /* f32 or bf16 */
    int64_t y_stride;
    int64_t rows, dim;
} ls_add_rmsnorm_args;

#define LS_NORM_PARTS 4

typedef struct ls_rmsnorm_parts_args {
    ls_rmsnorm_args part[LS_NORM_PARTS]; /* no y overlaps another part's x or y */
    int64_t n;                           /* 1 to LS_NORM_PARTS */
} ls_rmsnorm_parts_args;

ls_status ls_rmsnorm_check(const ls_rmsnorm_args *args, ls_error *err);
ls_status ls_add_rmsnorm_check(const ls_add_rmsnorm_args *args, ls_error *err);
ls_status ls_rmsnorm_parts_check(const ls_rmsnorm_parts_args *args, ls_error *err);
/* The second step of add_rmsnorm: y from sum. */
static inline ls_rmsnorm_args ls_add_rmsnorm_norm(const ls_add_rmsnorm_args *a) {
    const ls_rmsnorm_args norm = {a->sum, LS_F32, a->dim, a->w, a->eps, a->y, a->y_dtype, a->y_stride, a->rows, a->dim};
    return norm;
}

#endif
