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
 * op/delta_math.h has the scalars.
 *
 * Backward, for whole sequences, which begin with S = `initial` or +0 and A = 1. l, q, k, d, S, A, beta and decay as
 * above; M is S before the token's update, but after S * A. dy is the gradient of the unrounded output. The walk
 * backwards carries G[i][j], +0 after the last token, and its scale F, 1 there. For t descending within a span and
 * value head h:
 *   but at the last token, F = F * (decay of the token after);  where F < 2^-40: G[i][j] = G[i][j] * F, then F = 1
 *   z[j] = ((1 / F) * (1 / sqrt(K))) * dy[j];  G[i][j] = fma(q[i], z[j], G[i][j])
 *   c[j] = the sixteen-chain fold over i of k[i] * G[i][j];  p[j] = beta * c[j];  dv[j] = F * p[j]
 *   for the sums over heads:  Q[i] = the column fold of dy[j] * S[i][j];  P[i] = the column fold of d[j] * G[i][j]
 *     and of -p[j] * M[i][j], a chain taking both of a column in this order
 *   db = ((A * F) * the column fold of c[j] * d[j]) * sigmoid(-b)
 *   G[i][j] = fma(k[i], -p[j], G[i][j])
 *   T[j] = the sixteen-chain fold over i of G[i][j] * M[i][j];  W = (A * F) * the column fold of T[j]
 *   drate = fma(W, softplus(a + dt_bias), drate)
 *   da = (W * rate) * sigmoid(a + dt_bias);  ddt_bias = ddt_bias + da
 * Column fold over j: columns stand in blocks of 16 neighbours, the last may have fewer. In a block chain c of 8 takes
 * the columns with j % 8 = c in ascending order from +0, an fma each, or one add for T. Chains fold by halves 4, 2, 1.
 * Blocks add as one ascending chain from +0.
 * dq'[i] and dk'[i] of a key head are ascending fma chains from +0 over its value heads, of (A * (1 / sqrt(K))) * Q[i]
 * and of (A * F) * P[i]. Then, with x = q and with x = k:
 *   t = the tree of q(x) over i, each chain fma(dx'[i], x[i], chain);  dx[i] = l(x) * fma(-x[i], t, dx'[i])
 * where x[i] is normalised and l(x) of what it was before. dinitial[i][j] = (F * decay) * G[i][j] at the first token.
 * drate and ddt_bias start at +0 in each piece of 64 tokens, counted from the first of a span; the values of pieces add
 * as one ascending chain from +0, or `continued` from what an earlier call left: calls may be cut between spans. Spans
 * are in ascending order of their rows. da and db are stored as float32 or rounded once to bf16, the da that ddt_bias
 * adds being unrounded. No NaN pattern is promised for gradients. */
#ifndef LS_OP_DELTA_H
#define LS_OP_DELTA_H

#include "num/round.h"
#include "op/span.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_DELTA_FOLD 16
/* Columns of a block of the column fold, and its chains. */
#define LS_DELTA_BLOCK 16
#define LS_DELTA_BLOCK_CHAINS 8

/* Sizes of a call, forward or backward. */
typedef struct ls_delta_shape {
    int64_t rows, n_heads, n_key_heads, key_dim, value_dim;
} ls_delta_shape;

/* The sizes are those that the op takes, and products of two of them but rows fit 64 bits. */
ls_status ls_delta_check_shape(const char *op, const ls_delta_shape *shape, ls_error *err);
ls_status ls_delta_check(const ls_delta_args *args, ls_error *err);
ls_status ls_delta_backward_check(const ls_delta_backward_args *args, ls_error *err);

/* Tokens of a piece: the backward keeps the state before each. */
#define LS_DELTA_PIECE 64

/* Parts of the backward's workspace, as offsets in floats behind its head. Piece t of span i has the entry row / PIECE
 * + i + t, of rows / PIECE + n_spans:
 *   states [entries][heads][K][V]: S before its first token
 *   scales [entries][heads]: A of those
 *   deltas [rows][heads][V]: d
 *   rate, bias [entries][heads]: pieces' shares of the parameters' gradients */
typedef struct ls_delta_backward_plan {
    int64_t states, scales, deltas, rate, bias, total;
} ls_delta_backward_plan;

/* Entry of the first piece of span i, and the number of its pieces. */
static LS_HD int64_t ls_delta_entry(const ls_span *span, int64_t i) { return span->row / LS_DELTA_PIECE + i; }
static LS_HD int64_t ls_delta_pieces(const ls_span *span) {
    return span->n_rows / LS_DELTA_PIECE + (span->n_rows % LS_DELTA_PIECE != 0);
}

/* False where a size does not fit int64_t. */
bool ls_delta_backward_plan_make(ls_delta_backward_plan *plan, const ls_delta_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
