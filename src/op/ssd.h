/* Scan of Mamba-2 (Dao & Gu 2024, arXiv:2405.21060), sequential in time, with carried state.
 *
 * H heads of P channels, N states, G groups of H / G neighbouring heads, which share B and C. A head's state after a
 * token is A S: S[n][p] as stored, and one scale A, 1 at a sequence's first token. For token t and head h of group g,
 * all float32 unless R is written, a[h] = -exp(A_log[h]):
 *   dt = softplus(dt_raw[t][h] + dt_bias[h]);  dt = max(dt_min, dt), then min(dt_max, dt); a NaN stays one
 *   decay = ls_exp(dt * a[h]);  A = A * decay
 *   where A < 2^-40:  S[n][p] = S[n][p] * A for all n and p, then A = 1
 *   w = dt * (1 / A), two roundings;  u[p] = w * x[t][h][p]
 *   S[n][p] = fma(u[p], b[t][g][n], S[n][p])
 *   y[p] = the eight-slice fold over n of cc[t][g][n] * S[n][p];  y[p] = A * y[p]
 *   out[t][h][p] = R(fma(d[h], x[t][h][p], y[p]))
 * Eight-slice fold over n: state n belongs to slice (n / 4) % 8. A slice is one ascending fma chain from +0. Slices add
 * by neighbours, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
 * S and A move with the sequence; with state_every, S as op/held.h says. The rescaling depends on its own tokens
 * alone. So decode, any chunking and full prefill give the same bits. Which NaN a float32 NaN of out or state is, is
 * left open. op/ssd_math.h has the scalars.
 *
 * Backward, of whole sequences or of spans that continue others: S and A start at `initial` and `initial_scale`, +0 and
 * 1 without them. dt, decay, w, S and A as above, dy the gradient of the unrounded output, and for each token K the
 * eight-slice fold over n of b[n] * cc[n], Y the fold over p of dy[p] * x[p]. The walk forwards, after the rescaling of
 * a token and before u b is added:
 *   C[n] = the fold over p of dy[p] * S[n][p]
 *   E = A * (the eight-slice fold over n of cc[n] * C[n])
 * The walk backwards carries g[n][p], dfinal after the last token, +0 without it, and its scale F, 1 there:
 *   but at the last token, F = F * (decay of the token after);  where F < 2^-40: g[n][p] = g[n][p] * F, then F = 1
 *   U[p] = F * (the eight-slice fold over n of b[n] * g[n][p])
 *   B[n] = the fold over p of x[p] * g[n][p];  X = the fold over p of x[p] * U[p]
 *   dx[p] = fma(d, dy[p], dt * fma(K, dy[p], U[p]))
 *   v[p] = (1 / F) * dy[p], two roundings;  g[n][p] = fma(v[p], cc[n], g[n][p])
 * E and X leave out what a token does to itself, K and Y hold that: so nothing large cancels in W, the gradient of the
 * logarithm of decay. It needs no state but at borders of pieces of 64 tokens. At the first token of a span without
 * `initial` it is +0. At that of any other piece, W = (A * F) * (the fold over p of T[p]), T[p] = the eight-slice fold
 * over n of g[n][p] * S[n][p], S and A as the walk forwards has them there, g with the token's own v cc. Elsewhere,
 * from the last token down, W = W of the token after + fma(-dt, X, E); where decay < 2^-24, W = E: what passes the
 * token whole is below the rounding of what is subtracted. After the last token W is +0, with dfinal A times the same
 * fold of dfinal * S, S and A those after that token. dinitial[n][p] = (F * decay) * g[n][p], of the first token and
 * with its own v cc. Then, t descending in a piece:
 *   ddt = fma(W, a, fma(K, Y, X)) * sigmoid(dt_raw + dt_bias), +0 where softplus was below dt_min or above dt_max
 *   da = fma(W, dt, da);  dd = dd + Y;  ddt_bias = ddt_bias + ddt
 * Fold over p: chain i of 16 takes the channels with p % 16 = i in ascending order from +0, an fma each, or one add for
 * T. Chains fold by halves 8, 4, 2, 1.
 * db[t][g][n] and dcc[t][g][n] are sums over the heads of a group. A block of four neighbouring heads (the last may
 * have fewer) sums (dt * F) * B[n], A * C[n] and dt * Y as ascending fma chains from +0; with J the last of these,
 * fma(J, cc[n], .) and fma(J, b[n], .) are its shares of db and dcc. Blocks add as one ascending chain from +0.
 * da, dd and ddt_bias start at +0 in each piece; the values of pieces add as one ascending chain from +0, or
 * `continued` from what an earlier call left: calls may be cut between spans. Spans are in ascending order of their
 * rows. ddt is stored as float32 or rounded once to bf16, the ddt that ddt_bias adds being unrounded. No NaN pattern is
 * promised for gradients. */
#ifndef LS_OP_SSD_H
#define LS_OP_SSD_H

#include "op/held.h"
#include "op/span.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_SSD_SLICES 8
#define LS_SSD_FOLD 16
/* Heads of a block of the sums over heads. */
#define LS_SSD_SUM_HEADS 4

/* Sizes of a call, forward or backward. */
typedef struct ls_ssd_shape {
    int64_t rows, n_heads, head_dim, n_groups, n_states;
    float dt_min, dt_max;
} ls_ssd_shape;

/* The sizes are those that the op takes, and products of two of them but rows fit 64 bits. */
ls_status ls_ssd_check_shape(const char *op, const ls_ssd_shape *shape, ls_error *err);
ls_status ls_ssd_check(const ls_ssd_args *args, ls_error *err);
ls_status ls_ssd_backward_check(const ls_ssd_backward_args *args, ls_error *err);

/* What is held of tokens whose state is not written (op/held.h): own is u, shared is b. */
static LS_HD ls_held ls_ssd_held(const ls_ssd_args *a) {
    return ls_held_make(a->state_every, a->n_heads, a->n_groups, a->n_states, a->head_dim);
}

/* Tokens of a piece, a power of two. */
#define LS_SSD_PIECE 64
/* A decay below it lets nothing pass that W would hold. */
#define LS_SSD_DECAY_MIN 0x1p-24f

/* Slice of state n. */
static inline int64_t ls_ssd_slice(int64_t n) { return n / 4 % LS_SSD_SLICES; }

/* Blocks of heads that a group has. */
static inline int64_t ls_ssd_group_blocks(int64_t n_heads, int64_t n_groups) {
    const int64_t heads = n_heads / n_groups;
    return heads / LS_SSD_SUM_HEADS + (heads % LS_SSD_SUM_HEADS != 0);
}

/* Parts of the backward's workspace, as offsets in floats behind its head. Piece j of span i has the entry row / PIECE
 * + i + j, of rows / PIECE + n_spans:
 *   states [entries][heads][N][P]: S at its first token, after the rescaling, before u b is added
 *   first  [entries][heads]: A there, then W of that token
 *   sums   [blocks][rows][2][N]: blocks' shares of db and dcc, the blocks of a group next to each other
 *   e, x, y [rows][heads]; k [rows][groups]; j [rows][blocks]
 *   a, d, bias [entries][heads]: pieces' shares of the parameters' gradients
 *   last [spans][heads]: with dfinal, W after the last token */
typedef struct ls_ssd_backward_plan {
    int64_t group_blocks, n_blocks, states, first, sums, e, x, y, k, j, a, d, bias, last, total;
} ls_ssd_backward_plan;

/* Entry of the first piece of span i. */
static LS_HD int64_t ls_ssd_entry(const ls_span *span, int64_t i) { return span->row / LS_SSD_PIECE + i; }
static LS_HD int64_t ls_ssd_pieces(const ls_span *span) {
    return span->n_rows / LS_SSD_PIECE + (span->n_rows % LS_SSD_PIECE != 0);
}

/* False where a size does not fit int64_t. n_groups divides n_heads. */
bool ls_ssd_backward_plan_make(ls_ssd_backward_plan *plan, const ls_ssd_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
