/* RMS normalisation of what a gate lets through, over groups of neighbouring columns: what stands between the scan and
 * the last product of Mamba-2. One rounding to the stored type.
 *
 * v[r][c] = x[r][c] * silu(z[r][c]);  y[r][c] = R((v[r][c] * s(r, g)) * w[c]) for column c of group g
 * s(r, g) = 1 / sqrt(q(r, g) / (dim / groups) + eps)
 * q(r, g): the 256-chain tree of num/sum.h over the group's columns, counted from its first, each chain
 * q = fma(v, v, q). Division and square root are IEEE.
 *
 * Backward, dy the gradient of the unrounded y; v, s as above, n[c] = v[c] * s:
 *   e[c] = dy[c] * w[c];  t = the same tree over the group, each chain fma(e, n, chain);  u = t / (dim / groups)
 *   dv[c] = s * fma(-n[c], u, e[c]);  dx[c] = dv[c] * silu(z[c])
 *   dz[c] = (dv[c] * x[c]) * fma(l, 1 - k, k), l = silu(z[c]), k = sigmoid(z[c])
 *   dw[c] = fma(dy[c], n[c], dw[c]), rows ascending
 * dw continues from the float32 values that are there: the caller sets it to +0 once, and a sum that is cut into calls
 * at any row has the bits of one call. dz is stored as float32 or rounded once to bf16. A row depends on its own x, z
 * and dy, on w, eps and the sizes only. Which NaN a NaN is, is left open. */
#ifndef LS_OP_GATED_NORM_H
#define LS_OP_GATED_NORM_H

#include "base/status.h"
#include "lockstep/ops.h"

ls_status ls_gated_norm_check(const ls_gated_norm_args *args, ls_error *err);

ls_status ls_gated_norm_backward_check(const ls_gated_norm_backward_args *args, ls_error *err);

/* Columns that a work item of dw takes; carries no bits. */
#define LS_GATED_NORM_BLOCK 64

#endif
