/* Causal attention over paged KV, with grouped-query heads and an online softmax over fixed key blocks
 * (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135).
 *
 * For the query of token p and head a (KV head a / (n_heads / n_kv_heads)); all float32 until R:
 *   Its keys are the positions j <= p; with a window w > 0 those with p - w < j <= p. No other key takes part, exactly.
 *   Key blocks are positions [64 i, 64 i + 64), ascending, of which the query has a key.
 *   score[j] = scale * chain_d fma(q[d], k[j][d]), d ascending from +0
 *   m' = max(m, max_j score);  c = exp(m - m');  e[j] = exp(score[j] - m');  l = fma(l, c, fold(e));
 *   acc[d] = acc[d] * c, then chain_j fma(e[j], v[j][d], acc[d]), j ascending
 *   fold adds e[0..64) by halves 32, 16, ... 1, absent keys being +0. m starts at -inf, l and acc at +0.
 *   At every multiple of 1,024 positions a new segment starts afresh; segments combine in ascending order:
 *   M' = max(M, m);  A = exp(M - M');  B = exp(m - M');  L = fma(L, A, l * B);  ACC[d] = fma(ACC[d], A, acc[d] * B)
 *   (the query's first segment is taken as it is), so that long contexts may be split over processors with the same
 *   bits. Blocks and segments lie at absolute positions, with a window as without: a window begins within a block.
 *   out[p][a][d] = R(ACC[d] / L)
 * The rule is one for prefill, chunk and decode: a row depends on its own position, query and keys only.
 *
 * KV page layout, in the activation type: K as [n_kv_heads][head_dim][page_tokens] (keys are lanes when scores are
 * made), then V as [n_kv_heads][page_tokens][head_dim] (dimensions are lanes when values are summed). */
#ifndef LS_OP_ATTENTION_H
#define LS_OP_ATTENTION_H

#include "base/status.h"
#include "op/span.h"

#define LS_ATTENTION_BLOCK 64
#define LS_ATTENTION_SEGMENT 1024

/* The first position that the query at position `pos` sees. */
static LS_HD int64_t ls_attention_first(int64_t pos, int64_t window) {
    return window > 0 && window <= pos ? pos - window + 1 : 0;
}
/* The first position behind `pos` whose query does not see the key there. */
static LS_HD int64_t ls_attention_after(int64_t pos, int64_t window) {
    return window > 0 && window <= INT64_MAX - pos ? pos + window : INT64_MAX;
}

/* Bytes of one KV page of this layer shape. */
int64_t ls_kv_page_bytes(int64_t n_kv_heads, int64_t head_dim, int64_t page_tokens, ls_dtype dtype);

/* Writes the new keys and values to the pages, then computes out. A page id outside the pool is an error before
 * anything is written. */
ls_status ls_attention_check(const ls_attention_args *args, ls_error *err);

#endif
