/* Gradients of RMS normalisation, y[r][c] = R((x[r][c] * s(r)) * w[c]) of op/rmsnorm.h. R is taken as the identity.
 *
 * Row r, with q and s computed again exactly as in the forward op:
 *   n[c] = x[c] * s;  g[c] = dy[c] * w[c];  t = the 256-chain tree of num/sum.h over c, each chain fma(g, n, chain)
 *   u = t / dim;  d[c] = s * fma(-n[c], u, g[c]);  dx[c] = d[c], or with `add` dx[c] = dx[c] + d[c]
 *   dw[c] = fma(dy[c], n[c], dw[c]), rows ascending
 *
 * dw continues from the float32 values that are there: the caller sets it to +0 once, and a sum that is cut into calls
 * at any row has the bits of one call. Row r of dx depends on row r of x and dy, w, dim and eps only. Which NaN a NaN
 * is, is left open. */
#ifndef LS_OP_RMSNORM_BACKWARD_H
#define LS_OP_RMSNORM_BACKWARD_H

#include "base/status.h"
#include "lockstep/ops.h"
#include "op/rmsnorm.h"

/* dx, dw and scale must not overlap the inputs or each other. */
ls_status ls_rmsnorm_backward_check(const ls_rmsnorm_backward_args *args, ls_error *err);

/* Gradients of ls_rmsnorm_parts: norms of the same rows, with one start of a kernel for all. */
typedef struct ls_rmsnorm_parts_backward_args {
    ls_rmsnorm_backward_args part[LS_NORM_PARTS]; /* what one writes is of no other part; each has its own scale */
    int64_t n;                                    /* 1 to LS_NORM_PARTS */
} ls_rmsnorm_parts_backward_args;

ls_status ls_rmsnorm_parts_backward_check(const ls_rmsnorm_parts_backward_args *args, ls_error *err);

/* Columns that a work item of dw takes; carries no bits. */
#define LS_RMSNORM_BLOCK 64

#endif
