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
 * S and A move with the sequence; with state_every, S as op/held.h says. The rescaling depends on its own tokens
 * alone. Columns share no sum. So decode, any chunking and full prefill give the same bits. Which NaN a float32 NaN of
 * out or state is, is left open. op/delta_math.h has the scalars.
 *
 * Backward, of whole sequences or of spans that continue others: S and A start at `initial` and `initial_scale`, +0 and
 * 1 without them. q, k, d, S, A, beta and decay as above; f is what a token multiplies S by, 1 where it does not
 * rescale. dy is the gradient of the unrounded output, top = 1 / sqrt(K). The walk backwards carries G[i][j], dfinal
 * after the last token, +0 without it, and its scale F, 1 there. For t descending within a span and value head h:
 *   but at the last token, F = F * (decay of the token after);  where F < 2^-40: G[i][j] = G[i][j] * F, then F = 1
 *   g is what G is multiplied by, or 1;  r = (1 / F) * top;  z[j] = r * dy[j]
 *   x = the tree over i, each chain fma(q[i], k[i], chain)
 *   c'[j] = the sixteen-chain fold over i of k[i] * G[i][j];  c[j] = fma(x, z[j], c'[j]);  p[j] = beta * c[j]
 *   dv[j] = F * p[j]
 *   G[i][j] = fma(q[i], z[j], G[i][j]), then fma(k[i], -p[j], G[i][j])
 * A span is cut into pieces of 64 tokens from its first on. S0 is S before a piece's first token, G0 is G after it, and
 * G1 the G0 of the piece after, dfinal in the last piece. Within a piece, with e(s, t) the ascending product, from 1,
 * of f of the tokens after s up to t, s = -1 for all up to t, and g(t, s) the descending product, from 1, of g of the
 * tokens before s down to t, s = 64 for all from the last on; all chains ascending from +0:
 *   Y[t][s] = the chain over j of dy_t[j] * d_s[j];  P[t][s] = the chain over j of p_t[j] * d_s[j]
 *   M_t[i] = e(-1, t) * (the chain over j of dy_t[j] * S0[i][j]), then for s < t fma(e(s, t) * Y[t][s], k_s[i], .)
 *   Q_t[i] = fma(Y[t][t], k_t[i], M_t[i])
 *   K_t[i] = g(t, 64) * (the chain over j of d_t[j] * G1[i][j]) - e(-1, t) * (the chain over j of p_t[j] * S0[i][j]),
 *     where the last piece has +0 for the product with g if there is no dfinal; then, s ascending:
 *       s < t:  fma(-(e(s, t) * P[t][s]), k_s[i], .)
 *       s = t:  fma(r_t * Y[t][t], q_t[i], .)
 *       s > t:  fma(g(t, s) * (r_s * Y[s][t]), q_s[i], .), then fma(-(g(t, s) * P[s][t]), k_s[i], .)
 * dq'[i] and dk'[i] of a key head are ascending fma chains from +0 over its value heads, of (A * top) * Q[i] and of
 * (A * F) * K[i]. Then, with x = q and with x = k:
 *   t = the tree of q(x) over i, each chain fma(dx'[i], x[i], chain);  dx[i] = l(x) * fma(-x[i], t, dx'[i])
 * where x[i] is normalised and l(x) of what it was before.
 * Scalars, with the quad fold: element i belongs to chain (i / 4) % 16; a chain ascends from +0, an fma each, or one
 * add for T; chains add by neighbours as above.
 *   E = (A * top) * the quad fold over i of fma(-(x * beta), k[i], q[i]) * M[i]
 *   X = (F * beta) * the quad fold over j of c'[j] * v[j]
 *   db = ((A * F) * the quad fold over j of c[j] * d[j]) * sigmoid(-b)
 * E and X leave out what a token does to itself, so nothing large cancels in W, the gradient of the logarithm of decay.
 * At the first token of a piece W = (A * F) * the quad fold over j of T[j], T[j] = the sixteen-chain fold over i of
 * G0[i][j] * (f * S0[i][j]). Elsewhere, from the last token down, W = W of the token after + (E - X); where decay <
 * 2^-24, W = E: what passes the token is below the rounding of what is subtracted. After the last token W is +0, with
 * dfinal A * the same fold of dfinal[i][j] * S[i][j], S and A those after that token. Then, t descending:
 *   drate = fma(W, softplus(a + dt_bias), drate)
 *   da = (W * rate) * sigmoid(a + dt_bias);  ddt_bias = ddt_bias + da
 * dinitial[i][j] = (F * decay) * G0[i][j] of the first piece, F and decay of its first token.
 * drate and ddt_bias start at +0 in each piece; the values of pieces add as one ascending chain from +0, or `continued`
 * from what an earlier call left: calls may be cut between spans. Spans are in ascending order of their rows. da and db
 * are stored as float32 or rounded once to bf16, the da that ddt_bias adds being unrounded. No NaN pattern is promised
 * for gradients. */
#ifndef LS_OP_DELTA_H
#define LS_OP_DELTA_H

#include "num/round.h"
#include "op/held.h"
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
ls_status ls_delta_backward_check(const ls_delta_backward_args *args, ls_error *err);

/* What is held of tokens whose state is not written (op/held.h): own is d, shared the normalised key. */
static LS_HD ls_held ls_delta_held(const ls_delta_args *a) {
    return ls_held_make(a->state_every, a->n_heads, a->n_key_heads, a->key_dim, a->value_dim);
}

/* Tokens of a piece, a power of two. */
#define LS_DELTA_PIECE 64
/* A decay below it lets nothing pass that W would hold. */
#define LS_DELTA_DECAY_MIN 0x1p-24f

/* Parts of the backward's workspace, as offsets in floats behind its head. Piece t of span i has the entry row / PIECE
 * + i + t, of rows / PIECE + n_spans:
 *   states, grads [entries][heads][K][V]: S0 and G0
 *   deltas, inner [rows][heads][V]: d and c'
 *   queries, keys [rows][key heads][K]: q and k, normalised; of the GPU alone
 *   last [spans][heads][V]: with dfinal, T after the last token; of the GPU alone
 *   scale, factor, g_scale, g_factor, e [rows][heads]: A, f, F, g, E
 *   own [rows][key heads]: x
 *   first [entries][heads]: W of a piece's first token; of the CPU alone
 *   borders [entries][heads][V]: T of that token; of the GPU alone
 *   rate, bias [entries][heads]: pieces' shares of the parameters' gradients */
typedef struct ls_delta_backward_plan {
    int64_t states, grads, deltas, inner, queries, keys, last, borders, scale, factor, g_scale, g_factor, e, own;
    int64_t first, rate, bias, total;
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
