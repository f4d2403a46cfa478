/* Causal attention over paged KV, with grouped-query heads and an online softmax over fixed key blocks
 * (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135).
 *
 * exact. For the query of token p and head a (KV head a / (n_heads / n_kv_heads)); all float32 until R:
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
 *
 * mma16. q, k, v and out are bf16, head_dim at most 256; scale > 0; c = scale * LOG2E, one rounding. chain is that of
 * num/mma16.h, steps of 16 from +0. Keys and segments of a query as above; key blocks are positions [128 i, 128 i +
 * 128):
 *   s[j] = chain over d of (q[d], k[j][d]);  t = c * max_j s[j] - LIFT;  w = exp2_bounded(m - m')
 *   m' = t where t > m + 8, or else m, so that sums are seldom scaled
 *   e[j] = R(exp2_lifted(fma(s[j], c, -m'))) of num/expf.h, +0 for the keys of the block that the query does not take
 *   acc[d] = acc[d] * w, then goes on as the chain over the block's keys of (e[j], v[j][d]); l the same of (e[j], 1)
 *   The steps of that chain begin at multiples of 16 positions. m starts at -inf, l and acc at +0.
 *   Segments: M' = max(M, m);  A = exp2_bounded(M - M');  B = exp2_bounded(m - M');
 *   ACC[d] = fma(ACC[d], A, acc[d] * B), L the same of l, M from -inf, L and ACC from +0
 *   r = 1 / L;  out[p][a][d] = R(fma(ACC[d], r, +0));  log_sum[p][a] = fma(log(L), LOG2E, M + LIFT)
 *   LIFT is LS_EXP2_LIFT. Where a query takes a key of a block and not |c * max_j s[j]| <= 2^20, m' is NaN. A NaN
 *   stays: m' behind it and M' are NaN. Where M is not finite, out and log_sum are NaN.
 * A step, a block and a segment of keys that a query does not take change nothing: their e are +0, and w is 1. One
 * exception: a value that is not finite meets the +0 of queries before it in its block, which may or may not be NaN by
 * it. Its own query is not finite, so that the sequence is refused where log-probabilities come to the host.
 *
 * The rule is one for prefill, chunk and decode: a row depends on its own position, query and keys only.
 *
 * KV page layout, in the activation type: K as [n_kv_heads][head_dim][page_tokens] (keys are lanes when scores are
 * made), then V as [n_kv_heads][page_tokens][head_dim] (dimensions are lanes when values are summed). */
#ifndef LS_OP_ATTENTION_H
#define LS_OP_ATTENTION_H

#include "base/status.h"
#include "num/expf.h"
#include "op/rope.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_ATTENTION_BLOCK 64
#define LS_ATTENTION_SEGMENT 1024
/* Keys of a block in the profile mma16. */
#define LS_ATTENTION_BLOCK_MMA16 128
#define LS_ATTENTION_DIM_MMA16 256
/* Queries of a tile on the CPU, which carry no bit. */
#define LS_ATTENTION_TILE_MMA16 64

/* c of the profile mma16. */
static LS_HD float ls_attention_scale2(float scale) { return ls_mul(scale, LS_LOG2E); }
/* m' of a block of which the query takes a key, from m and c * max_j s[j]. */
static LS_HD float ls_attention_maximum(float m, float top) {
    const float t = ls_sub(top, LS_EXP2_LIFT), risen = t > ls_add(m, 8.0f) ? t : m;
    return top >= -0x1p20f && top <= 0x1p20f ? risen : ls_from_bits(LS_NAN_BITS);
}
/* p of the gradient, to be rounded to bf16 next; lift: LIFT - N. */
static LS_HD float ls_attention_probability(float score, float c, float lift) {
    return ls_exp2_lifted(ls_min(ls_fma(score, c, lift), LS_EXP2_LIFT + 1.0f));
}
static LS_HD float ls_attention_lift(float log_sum) { return ls_sub(LS_EXP2_LIFT, log_sum); }

/* Tiles of the queries of a KV head that `group` heads share. */
static inline int64_t ls_attention_tiles_mma16(int64_t n_rows, int64_t group) {
    return (n_rows * group + LS_ATTENTION_TILE_MMA16 - 1) / LS_ATTENTION_TILE_MMA16;
}

/* The first position that the query at position `pos` sees. */
static LS_HD int64_t ls_attention_first(int64_t pos, int64_t window) {
    return window > 0 && window <= pos ? pos - window + 1 : 0;
}
/* The first position whose page the queries from `pos` on may read, of whole blocks of either profile. Where pages in
 * front of it are named by a table, any page of the pool will do. */
static LS_HD int64_t ls_attention_begin(int64_t pos, int64_t window) {
    return ls_attention_first(pos, window) / LS_ATTENTION_BLOCK_MMA16 * LS_ATTENTION_BLOCK_MMA16;
}
/* The first position behind `pos` whose query does not see the key there. */
static LS_HD int64_t ls_attention_after(int64_t pos, int64_t window) {
    return window > 0 && window <= INT64_MAX - pos ? pos + window : INT64_MAX;
}

/* What both directions refuse of the profile mma16. */
ls_status ls_attention_check_profile(const char *op, ls_profile profile, ls_dtype dtype, int64_t head_dim, float scale,
                                     ls_error *err);

/* Bytes of one KV page of this layer shape. */
int64_t ls_kv_page_bytes(int64_t n_kv_heads, int64_t head_dim, int64_t page_tokens, ls_dtype dtype);

/* Writes the new keys and values to the pages, then computes out. A page id outside the pool is an error before
 * anything is written. */
ls_status ls_attention_check(const ls_attention_args *args, ls_error *err);

/* What lies between the products of q, k and v and the heads' outputs, in one call: rope (op/rope.h), whose y is
 * q | k | v, then attention of these. The bits are those of two calls. */
typedef struct ls_attention_heads_args {
    ls_rope_args heads;          /* its three parts are the heads of q, k and v */
    ls_attention_args attention; /* q is heads.y, and k and v are what lies behind it there */
    bool keeps;                  /* heads.y holds q | k | v behind the call; else what it holds is not stated */
} ls_attention_heads_args;

ls_status ls_attention_heads_check(const ls_attention_heads_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
