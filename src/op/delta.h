/* Gated delta rule (Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464), sequential in time, with carried state: the
 * linear attention of Qwen3-Next and Qwen3.5.
 *
 * H value heads of V columns, M key heads of K rows, M divides H. Value head h reads query and key of key head
 * m = h / (H / M). A head's state after a token is A S: S[i][j] as stored, and one scale A, 1 at a sequence's first
 * token. For token t and value head h, all float32 unless R is written, rate[h] = -exp(A_log[h]):
 *   l(x) = 1 / sqrt(q(x) + 1e-6), q(x) the 256-chain tree of num/sum.h over i, each chain q = fma(x, x, q); the
 *     division and the square root are IEEE
 *   k[i] = key[t][m][i] * l(key[t][m]);  q[i] = query[t][m][i] * l(query[t][m])
 *   decay = ls_exp(softplus(a[t][h] + dt_bias[h]) * rate[h]);  A = A * decay
 *   where A < 2^-40:  S[i][j] = S[i][j] * A for all i and j, then A = 1
 *   beta = sigmoid(b[t][h]);  w = beta * (1 / A), two roundings
 *   u[j] = the sixteen-chain fold over i of k[i] * S[i][j]
 *   d[j] = fma(-beta, u[j], w * v[t][h][j])
 *   S[i][j] = fma(k[i], d[j], S[i][j])
 *   o[j] = the sixteen-chain fold over i of q[i] * S[i][j]
 *   out[t][h][j] = R((A * (1 / sqrt(K))) * o[j]);  1 / sqrt(K) has two roundings, and A times it one
 * Sixteen-chain fold over i: chain i % 16 is one ascending fma chain from +0; chains add by neighbours, 0 + 1, 2 + 3,
 * .., then pairs of these sums, and so on: sums of 2, 4, 8, 16.
 * S and A move with the sequence, and the rescaling depends on its own tokens alone. Columns share no sum. So decode,
 * any chunking and full prefill give the same bits. Which NaN a float32 NaN of out or state is, is left open.
 * op/delta_math.h has the scalars. */
#ifndef LS_OP_DELTA_H
#define LS_OP_DELTA_H

#include "op/span.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_DELTA_FOLD 16

/* Sizes of a call, forward or backward. */
typedef struct ls_delta_shape {
    int64_t rows, n_heads, n_key_heads, key_dim, value_dim;
} ls_delta_shape;

/* The sizes are those that the op takes, and products of two of them but rows fit 64 bits. */
ls_status ls_delta_check_shape(const char *op, const ls_delta_shape *shape, ls_error *err);
ls_status ls_delta_check(const ls_delta_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
