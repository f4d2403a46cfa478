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
 * S and A move with the sequence, and the rescaling depends on its own tokens alone. So decode, any chunking and full
 * prefill give the same bits. Which NaN a float32 NaN of out or state is, is left open. op/ssd_math.h has the scalars.
 *
 * Backward, for whole sequences. dt, decay, w and S as above; S' and A' are S and A before the token, Q = A' * decay
 * the scale before it is asked for its size. g[n][p] is carried backwards from +0; dy the gradient of the unrounded
 * output. For t descending within a span:
 *   g[n][p] = fma(dy[p], cc[n], g[n][p])
 *   U[p], T[p] = eight-slice folds over n of b[n] * g[n][p] and of g[n][p] * S'[n][p]
 *   X, Y = folds over p of x[p] * U[p] and of dy[p] * x[p];  Z = the fold over p of T[p]
 *   dx[p] = fma(d, dy[p], dt * U[p]);  dd = dd + Y
 *   W = Q * Z;  ddt' = fma(W, a, X);  da = fma(W, dt, da)
 *   ddt = ddt' * sigmoid(dt_raw + dt_bias), +0 where softplus was below dt_min or above dt_max
 *   ddt_bias = ddt_bias + ddt
 *   for the sums over heads:  B[n] = the fold over p of x[p] * g[n][p];  C[n] = that of dy[p] * S[n][p]
 *   g[n][p] = g[n][p] * decay
 * Fold over p: chain i of 16 takes the channels with p % 16 = i in ascending order from +0, an fma each, or one add for
 * T. Chains fold by halves 8, 4, 2, 1.
 * db[t][g][n] and dcc[t][g][n] sum dt * B[n] and A * C[n] over the heads of a group: in blocks of four neighbouring
 * heads (the last may have fewer) one ascending fma chain from +0; blocks add as one ascending chain from +0.
 * da, dd and ddt_bias start at +0 in each span; the spans' values add as one ascending chain from +0, or `continued`
 * from what an earlier call left: calls may be cut between spans. Spans are in ascending order of their rows. ddt is
 * stored as float32 or rounded once to bf16, the ddt that ddt_bias adds being unrounded. No NaN pattern is promised for
 * gradients. */
#ifndef LS_OP_SSD_H
#define LS_OP_SSD_H

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

/* Tokens between two states that the backward keeps; carries no bits. */
#define LS_SSD_KEEP 64

/* Slice of state n. */
static inline int64_t ls_ssd_slice(int64_t n) { return n / 4 % LS_SSD_SLICES; }

/* Blocks of heads that a group has. */
static inline int64_t ls_ssd_group_blocks(int64_t n_heads, int64_t n_groups) {
    const int64_t heads = n_heads / n_groups;
    return heads / LS_SSD_SUM_HEADS + (heads % LS_SSD_SUM_HEADS != 0);
}

/* Parts of the backward's workspace, as offsets in floats behind its head:
 *   states [rows / KEEP + n_spans][heads][N][P]: S before token KEEP * j of span i, at row / KEEP + i + j
 *   scales [rows / KEEP + n_spans][heads]: A of those
 *   sums   [blocks][rows][2][N]: blocks' shares of db and dcc, the blocks of a group next to each other
 *   a, d, bias [n_spans][heads]: spans' shares of the parameters' gradients */
typedef struct ls_ssd_backward_plan {
    int64_t group_blocks, n_blocks, states, scales, sums, a, d, bias, total;
} ls_ssd_backward_plan;

/* False where a size does not fit int64_t. n_groups divides n_heads. */
bool ls_ssd_backward_plan_make(ls_ssd_backward_plan *plan, const ls_ssd_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
