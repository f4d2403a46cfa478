/* Log-probability of one selected token per row of logits, whose bits depend on that row only.
 *
 * z = logit * inv_t, one rounding (inv_t = 1 / temperature, one rounding; at temperature 1, z is the logit itself).
 * Leaf = vocabulary entries [2048 j, 2048 j + 2048), whatever the batch, shard or split. MAGIC = 1.5 * 2^23.
 *   m = max z;  Q = fma(m, LOG2E, MAGIC) - MAGIC, the integer nearest to m log2 e.
 *   Near leaf, every |z| <= 64: K = 0, low = -64. Its terms lie within 2^-93 .. 2^93 and need no reference.
 *   Other leaf: K = Q, low = floor(m - 80).
 *   With m = -inf or m < -2^20 a leaf contributes nothing: K = Q = -2^24, S = E = 0.
 *   With a NaN or an entry above 2^20 it has K = Q = -2^24, S = E = NaN.
 * For every entry, with shift = MAGIC - K:
 *   x = max(z, low);  r = fma(x, LOG2E, shift);  f = fma(x, LOG2E, -(r - shift))
 *   term = ls_exp2_poly(f) with bits(r) << 23 added to its bits, that is p(f) * 2^(n - K)
 *   power = (r - (shift + Q)) + f, that is x log2 e - Q
 *   S = 256-chain tree of num/sum.h of term (by index within the leaf)
 *   E = the same tree of chains E = fma(term, power, E)
 * Combination of neighbours a, b in the aligned binary tree over leaf numbers (an absent right neighbour leaves a as it
 * is), pow2(d) = 2^d, or +0 for d < -126:
 *   K = max(Ka, Kb);  A = pow2(Ka - K), B = pow2(Kb - K);  S = Sa * A + Sb * B
 *   Q = max(Qa, Qb);  E = fma(Qa - Q, Sa, Ea) * A + fma(Qb - Q, Sb, Eb) * B
 * Leaves and their order are fixed, so any sharding or splitting at leaf borders gives the same bits.
 * Result: S = s * 2^e with 1 <= s < 2, exactly; k = K + e.
 *   logprob = fma(fma(z[target], LOG2E, -k), LN2, -log(s)), +0 where that is positive
 *   lse     = fma(k, LN2_HI, fma(k, LN2_LO, log(s)))
 *   entropy = fma(-LN2, fma(Q - k, S, E) / S, log(s)), +0 where that is negative
 * The large parts of z and k cancel exactly, so the error near 0 does not grow with the height of the logits: it stays
 * below 4e-7. A row in which no leaf contributes (S = 0), such as an all -inf row, gives NaN in all three; a -inf
 * target in any other row without NaN gives -inf. NaN is always 0x7FC00000.
 *
 * Rows with targets[r] == ignore_index or mask[r] == 0 give exactly +0 in every output and their logits are not read.
 *
 * Shards: the leaves of a shard are those of the whole row, so leaves computed anywhere combine to the same bits. Of a
 * row left out a shard writes neither leaves nor target_z, and combine reads neither.
 *
 * Backward, elementwise, from the forward call's lse and entropy:
 *   t = z - lse;  x = max(t, -87);  r = fma(x, LOG2E, MAGIC);  f = fma(x, LOG2E, -(r - MAGIC))
 *   p = ls_exp2_poly(f) with bits(r) << 23 added to its bits, +0 where t < -87
 *   base = d_lse - d_logprob (each +0 where absent);  w = base, with d_entropy  w = fma(-d_entropy, x + entropy, base)
 *   g = p * w;  at the target  g = g + d_logprob;  with a temperature  g = g * inv_t;  d_logits = R(g)
 * R is one rounding to the type of the logits.
 * A row whose lse is NaN gives NaN everywhere, a row left out +0 everywhere (its logits are not read). Other NaN have
 * an open pattern.
 *
 * Sequence sum: the 256-chain tree over the rows that the mask keeps, numbered from 0 within their sequence; NaN is
 * 0x7FC00000. */
#ifndef LS_OP_LOGPROB_H
#define LS_OP_LOGPROB_H

#include "base/status.h"
#include "lockstep/ops.h"
#include "num/round.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A target outside [0, vocab) or a bad temperature of a row that is not left out is an error that names row and value;
 * nothing is written then. The checks are of what the host can see: pointers, types, sizes, strides, leaf borders. */
ls_status ls_logprob_check(const ls_logprob_args *args, ls_error *err);
ls_status ls_sequence_sum_check(const ls_sequence_sum_args *args, ls_error *err);
ls_status ls_logprob_shard_check(const ls_logprob_shard_args *args, ls_error *err);
ls_status ls_logprob_combine_check(const ls_logprob_combine_args *args, ls_error *err);
ls_status ls_logprob_backward_check(const ls_logprob_backward_args *args, ls_error *err);

/* What a log-probability that is NaN means: the law above gives none. Whoever takes log-probabilities to the host
 * refuses it with sequence and token in front; a NaN equals nothing, whatever its bits. */
#define LS_LOGPROB_NAN_TEXT \
    "there is no log-probability: a logit is NaN, or above 2^20 when divided by the temperature, or none is finite"

/* Up to this many rows, a GPU deals leaves instead of rows to its blocks; carries no bits. */
#define LS_LOGPROB_SPLIT_ROWS 512

static inline int64_t ls_logprob_leaves(int64_t vocab) {
    return vocab / LS_LOGPROB_LEAF + (vocab % LS_LOGPROB_LEAF != 0);
}

/* False for a row left out. */
static LS_HD bool ls_logprob_keeps(const int64_t *targets, int64_t ignore_index, const uint8_t *mask, int64_t row) {
    return targets[row] != ignore_index && (mask == NULL || mask[row] != 0);
}

#ifdef __cplusplus
}
#endif
#endif
