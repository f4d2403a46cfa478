/* Log-probability of one selected token per row of logits, whose bits depend on that row only.
 *
 * z = logit * inv_t, one rounding (inv_t = 1 / temperature, one rounding; at temperature 1, z is the logit itself).
 * Leaf = vocabulary entries [2048 j, 2048 j + 2048), whatever the batch, shard or split. MAGIC = 1.5 * 2^23.
 *   m = max z;  Q = fma(m, LOG2E, MAGIC) - MAGIC, the integer nearest to m log2 e.
 *   Near leaf, every |z| <= 64: K = 0, low = -64. Its terms lie within 2^-93 .. 2^93 and need no reference.
 *   Other leaf: K = Q, low = floor(m - 80).
 *   With m = -inf or m < -2^20 a leaf contributes nothing: K = Q = -2^24, S = E = 0. With a NaN or an entry above 2^20
 * it has K = Q = -2^24, S = E = NaN. For every entry, with shift = MAGIC - K:  x = max(z, low);  r = fma(x, LOG2E,
 * shift);  f = fma(x, LOG2E, -(r - shift)); term = ls_exp2_poly(f) with bits(r) << 23 added to its bits, that is p(f) *
 * 2^(n - K); power = (r - (shift + Q)) + f, that is x log2 e - Q S = 256-chain tree of num/sum.h of term (by index
 * within the leaf), E = the same tree of chains E = fma(term, power, E). Combination of neighbours a, b in the aligned
 * binary tree over leaf numbers (an absent right neighbour leaves a as it is): K = max(Ka, Kb);  A = pow2(Ka - K), B =
 * pow2(Kb - K), pow2(d) = 2^d, or +0 for d < -126;  S = Sa * A + Sb * B Q = max(Qa, Qb);  E = fma(Qa - Q, Sa, Ea) * A +
 * fma(Qb - Q, Sb, Eb) * B Leaves and their order are fixed, so any sharding or splitting at leaf borders gives the same
 * bits. Result: S = s * 2^e with 1 <= s < 2, exactly; k = K + e. logprob = fma(fma(z[target], LOG2E, -k), LN2,
 * -log(s)), +0 where that is positive lse     = fma(k, LN2_HI, fma(k, LN2_LO, log(s))) entropy = fma(-LN2, fma(Q - k,
 * S, E) / S, log(s)), +0 where that is negative The large parts of z and k cancel exactly, so the error near 0 does not
 * grow with the height of the logits: it stays below 4e-7. A row in which no leaf contributes (S = 0), such as an all
 * -inf row, gives NaN in all three; a -inf target in any other row without NaN gives -inf. NaN is always 0x7FC00000.
 *
 * Rows with targets[r] == ignore_index or mask[r] == 0 give exactly +0 in every output and their logits are not read.
 */
#ifndef LS_OP_LOGPROB_H
#define LS_OP_LOGPROB_H

#include "dev/queue.h"

#define LS_LOGPROB_LEAF 2048

/* One leaf's partial sums. */
typedef struct ls_logprob_leaf {
    float k, q, s, e;
} ls_logprob_leaf;

typedef struct ls_logprob_args {
    const void *logits; /* [rows][row_stride], vocab used */
    ls_dtype dtype;     /* f32, bf16 or f16 */
    int64_t rows, vocab, row_stride;
    const int64_t *targets;   /* [rows] */
    int64_t ignore_index;     /* for example -100 */
    const uint8_t *mask;      /* [rows], 0 = leave out; NULL takes all rows */
    const float *temperature; /* [rows], finite and > 0; NULL is 1 */
    float *logprob;           /* [rows] */
    float *lse, *entropy;     /* [rows] each, or NULL */
} ls_logprob_args;

/* A target outside [0, vocab) or a bad temperature of a row that is not left out is an error that names row and value;
 * nothing is written then. */
ls_status ls_logprob(ls_queue *queue, const ls_logprob_args *args, ls_error *err);

/* Sequence sums: out[s] = the 256-chain tree over the rows [offsets[s], offsets[s+1]) that the mask keeps, numbered
 * from 0 within the sequence; rows left out take no number, so padding on either side or in between changes nothing. */
typedef struct ls_sequence_sum_args {
    const float *logprob;   /* [rows] */
    const uint8_t *mask;    /* [rows] or NULL */
    const int64_t *offsets; /* [n_sequences + 1], ascending */
    int64_t n_sequences;
    float *out; /* [n_sequences] */
} ls_sequence_sum_args;

ls_status ls_sequence_sum(ls_queue *queue, const ls_sequence_sum_args *args, ls_error *err);

#endif
