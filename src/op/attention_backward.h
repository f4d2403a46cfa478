/* Gradients of causal attention (op/attention.h), of whole sequences or of spans that continue others. A span's queries
 * are the tokens pos, pos + 1, ...; its keys, of tokens 0 to pos + n_rows - 1, are the rows from its key_rows on, its
 * own rows without key_rows, where pos is 0. i and j are tokens.
 *
 * exact. For the query of token i and head a (KV head g = a / (n_heads / n_kv_heads)), all float32, R taken as the
 * identity:
 *   score[j], M, L and ACC[d] are those of the forward, computed again by its contract;  r = 1 / L
 *   D = chain_d fma(dout[d], ACC[d] / L, D), d ascending from +0
 *   p[j]  = exp(score[j] - M) * r;  dp[j] = chain_d fma(dout[d], v[j][d], dp), d ascending from +0
 *   ds[j] = p[j] * (dp[j] - D)
 *   dq[d] = scale * chain_j fma(ds[j], k[j][d], dq) from +0, j ascending over the query's keys
 * For the key of token j and KV head g:
 *   dk[d] = scale * (sum over the heads a of g of chain_i fma(ds[j], q[i][d], dk))
 *   dv[d] = sum over the heads a of g of chain_i fma(p[j], dout[i][d], dv)
 *   Chains run over the queries i of the span from max(j, pos) on that see the key (with a window w those below j + w),
 *   ascending from +0; the heads' chains add as one ascending chain from +0.
 *
 * mma16. chain is that of num/mma16.h; its steps begin at multiples of 16 keys, and of 16 queries of the span. c is
 * that of op/attention.h, N the forward's log_sum, and do[d] = R(dout[d]):
 *   s[j] = chain over d of (q[d], k[j][d]);  p[j] = R(exp2_lifted(min(fma(s[j], c, LIFT - N), LIFT + 1)))
 *   D = sum_fold (num/sum.h) of do[d] * out[d], each product fma(do[d], out[d], +0), out the forward's
 *   dp[j] = chain over d of (do[d], v[j][d]);  ds[j] = p[j] * (dp[j] - D)
 *   p and ds are +0 for keys that the query does not see
 *   dq[d] = scale * chain over keys ascending of (R(ds[j]), k[j][d])
 *   dk[d] = scale * chain over the heads a of g ascending, of each over queries ascending, of (R(ds[j]), q[i][d])
 *   dv[d] = the same chain of (p[j], do[i][d])
 *   A head's steps continue the chain of the head before it; what a step has outside of the span is +0.
 *
 * Keys that a query does not see take no
 *   part in its row, nor does it in theirs, exactly. Gradients of a row depend on its own sequence only; rows of
 * padding and of no span are not written. No NaN pattern is promised. */
#ifndef LS_OP_ATTENTION_BACKWARD_H
#define LS_OP_ATTENTION_BACKWARD_H

#include "op/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* exact: what the workspace keeps of each query, [LS_ATTENTION_KEPT][n_heads][rows] floats behind its head; then come
 * the query heads' shares of dk and dv, [2][n_heads][key rows][head_dim], where a back end computes heads side by side.
 * mma16: N and D, [2][n_heads][rows] floats, then do. */
enum { LS_ATTENTION_KEPT_M, LS_ATTENTION_KEPT_R, LS_ATTENTION_KEPT_D, LS_ATTENTION_KEPT };

/* Rows of k, v, dk and dv. */
static inline int64_t ls_attention_key_rows(const ls_attention_backward_args *args) {
    return args->key_rows != NULL ? args->key_rows_n : args->rows;
}
/* The most keys that a span of the call can have. */
static inline int64_t ls_attention_keys_most(const ls_attention_backward_args *args) {
    return args->key_rows != NULL ? ls_spans_most(args->keys_max, args->key_rows_n)
                                  : ls_spans_most(args->span_rows_max, args->rows);
}
/* First key row of span i. */
static LS_HD int64_t ls_attention_key_row(const ls_attention_backward_args *args, int64_t i) {
    return args->key_rows != NULL ? args->key_rows[i] : args->spans[i].row;
}
/* Keys that a span has; none without queries. */
static LS_HD int64_t ls_attention_keys(const ls_span *span) { return span->n_rows > 0 ? span->pos + span->n_rows : 0; }

/* Tiles of 64 rows, the last one perhaps not whole. */
static inline int64_t ls_attention_tiles(int64_t n_rows) {
    return n_rows / LS_ATTENTION_BLOCK + (n_rows % LS_ATTENTION_BLOCK != 0);
}

/* mma16: where do begins in the workspace, [rows][n_heads * head_dim] bf16, aligned to 16 bytes. */
static inline uint16_t *ls_attention_rounded(float *floats, int64_t n_heads, int64_t rows) {
    return (uint16_t *)(((uintptr_t)(floats + 2 * n_heads * rows) + 15) & ~(uintptr_t)15);
}

ls_status ls_attention_backward_check(const ls_attention_backward_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
