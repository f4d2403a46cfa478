/* What lies between a product and attention: bias, norm of each head, rotation by position
 * (RoFormer, Su et al. 2021, arXiv:2104.09864; norms of heads as in Qwen3), and one rounding.
 *
 * rope_table, for the row of position p and frequency j < half:
 *   angle = float32(p) * inv_freq[j], one rounding
 *   table[row][j] = C = cos(angle) * scale, table[row][half + j] = S = sin(angle) * scale
 *   cos and sin are the float32 nearest to the true values (num/sincosf.h); scale, one rounding, is 1 but for YaRN.
 *   A row depends on its own position only. Rows of no span are not touched. From position 2^24 on, which float32 does
 *   not tell apart, C and S are the NaN 0x7FC00000.
 *
 * rope, for each head of a row, P = head_dim, R = 2 half the columns that rotate, all float32 until R():
 *   b[c] = x[c] + bias[c]                                         where the part has a bias
 *   n[c] = (b[c] * s) * norm[c], s as in op/rmsnorm.h over the P columns   where it has a norm
 *   y[j]        = R(fma(n[j], C[j], -(n[j + half] * S[j])))      where it rotates, j < half
 *   y[j + half] = R(fma(n[j + half], C[j], n[j] * S[j]))
 *   y[c] = R(n[c]) for the columns from 2 half on, and for all of a part that does not rotate
 *   Nothing is rounded to the activation type in between.
 *
 * rope_backward, R taken as the identity; g, the gradient of n:
 *   g[j]        = fma(dy[j], C[j], dy[j + half] * S[j])
 *   g[j + half] = fma(dy[j + half], C[j], -(dy[j] * S[j])),  g[c] = dy[c] elsewhere
 *   dx = g, or through the norm as in op/rmsnorm_backward.h, of b; rounded once where dx is bf16
 *   dnorm[head][c] = fma(g[c], b[c] * s, dnorm[head][c]), rows ascending: a chain for each head, so that heads run
 *   side by side. It continues from what is there, and a sum that is cut into calls at any row has the bits of one.
 *   dx is the gradient of b as well: who has a bias adds up its rows. scale receives s of each head with dnorm.
 * rope_norm_fold: out[c] = the chains of all heads added, heads ascending from +0: the gradient of the norm's weight.
 *
 * The heads of all parts are neighbouring columns: those of part 0, then of part 1 and so on, as q | k | v. */
#ifndef LS_OP_ROPE_H
#define LS_OP_ROPE_H

#include "base/status.h"
#include "lockstep/ops.h"
#include "op/span.h"

ls_status ls_rope_table_check(const ls_rope_table_args *args, ls_error *err);
/* y may be neither x nor overlap it. */
ls_status ls_rope_check(const ls_rope_args *args, ls_error *err);
/* dx must not overlap x or dy. */
ls_status ls_rope_backward_check(const ls_rope_backward_args *args, ls_error *err);
ls_status ls_rope_norm_fold_check(const ls_rope_norm_fold_args *args, ls_error *err);

/* Heads of all parts; the parts have been checked. */
static inline int64_t ls_rope_heads(const ls_rope_part *part, int64_t n_parts) {
    int64_t n = 0;
    for (int64_t i = 0; i < n_parts; i++) n += part[i].n_heads;
    return n;
}

#endif
