/* Gradients of causal attention (op/attention.h), of whole sequences: every span has pos 0, its keys are its own rows.
 *
 * For the query of token i and head a (KV head g = a / (n_heads / n_kv_heads)), all float32, R taken as the identity:
 *   score[j], M, L and ACC[d] are those of the forward, computed again by its contract;  r = 1 / L
 *   D = chain_d fma(dout[d], ACC[d] / L, D), d ascending from +0
 *   p[j]  = exp(score[j] - M) * r;  dp[j] = chain_d fma(dout[d], v[j][d], dp), d ascending from +0
 *   ds[j] = p[j] * (dp[j] - D)
 *   dq[d] = scale * chain_j fma(ds[j], k[j][d], dq) from +0, j ascending over the query's keys
 * For the key of token j and KV head g:
 *   dk[d] = scale * (sum over the heads a of g of chain_i fma(ds[j], q[i][d], dk))
 *   dv[d] = sum over the heads a of g of chain_i fma(p[j], dout[i][d], dv)
 *   Chains run over the queries i = j, j + 1, ... of the span that see the key (with a window w those below j + w),
 *   ascending from +0; the heads' chains add as one ascending chain from +0. Keys that a query does not see take no
 *   part in its row, nor does it in theirs, exactly. Gradients of a row depend on its own sequence only; rows of
 * padding and of no span are not written. No NaN pattern is promised. */
#ifndef LS_OP_ATTENTION_BACKWARD_H
#define LS_OP_ATTENTION_BACKWARD_H

#include "op/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the workspace keeps of each query, [LS_ATTENTION_KEPT][n_heads][rows] floats behind its head; then come the
 * query heads' shares of dk and dv, [2][n_heads][rows][head_dim], where a back end computes heads side by side. */
enum { LS_ATTENTION_KEPT_M, LS_ATTENTION_KEPT_R, LS_ATTENTION_KEPT_D, LS_ATTENTION_KEPT };

/* Tiles of 64 rows, the last one perhaps not whole. */
static inline int64_t ls_attention_tiles(int64_t n_rows) {
    return n_rows / LS_ATTENTION_BLOCK + (n_rows % LS_ATTENTION_BLOCK != 0);
}

ls_status ls_attention_backward_check(const ls_attention_backward_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
