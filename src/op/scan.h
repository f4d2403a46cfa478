/* Selective scan of Mamba-1 (Gu & Dao 2023, arXiv:2312.00752), sequential in time, with carried state.
 *
 * For token t, channel c, state s (all float32 unless R is written), a2 = A * log2(e), A = -exp(A_log):
 *   dt = softplus(dt_raw[t][c] + dt_bias[c]), without the add where there is no bias, without softplus where the caller
 *   has applied it;  v = dt * u[t][c]
 *   x = dt * a2[c][s], rounded.  With -126 <= x <= 127: r = fma(dt, a2, MAGIC), n = r - MAGIC, f = fma(dt, a2, -n),
 *   decay = ls_exp2_poly(f) with bits(r) << 23 added to its bits.  Otherwise decay = 2^127 for x > 127, else 2^-126.
 *   h[c][s] = fma(decay, h[c][s], v * b[t][s])
 *   y = the four-chain tree over s of h[c][s] * cc[t][s];  y = fma(d[c], u[t][c], y) where there is a d
 *   out[t][c] = R(y * silu(z[t][c])), R(y) where there is no z
 * Tree: n states in 4 groups of ceil(n/4) neighbours; group g chains p = fma(h, cc, p) ascending from +0; then
 * (p0 + p1) + (p2 + p3). On a GPU a group is a thread and the two adds are exchanges.
 * The state after any token is h itself, in float32, so decode, any chunking and full prefill give the same bits. Which
 * NaN a float32 NaN of out or state is, is left open.
 *
 * Backward, of whole sequences or of spans that continue others: h starts at `initial`, +0 without it. y, decay, h, dt,
 * v as above, h' = h before token t, g[s] carried backwards from dfinal, +0 without it; dinitial is what g is at last.
 * dout is the gradient of the unrounded output. For t descending within a span:
 *   sig = sigmoid(z), sl = silu(z);  dz = (dout * y) * fma(sl, 1 - sig, sig);  dy = dout * sl;  without z  dy = dout
 *   per state: g = fma(dy, cc, g);  C = dy * h;  B = g * v;  V chains fma(g, b, V);  w = g * (decay * h');
 *              T chains fma(w, a2, T);  da2 = fma(w, dt, da2);  g = g * decay
 *   (V and T by the four-chain tree over s; where decay was bounded, w = +0)
 *   ddt' = fma(T, LN2, V * u);  du = V * dt, with d  du = fma(dy, d, V * dt);  dd = fma(dy, u, dd)
 *   ddt = ddt' * sigmoid(dt_raw + dt_bias), ddt' itself where dt came activated;  ddt_bias = ddt_bias + ddt
 * dcc[t][s] and db[t][s] sum C and B over channels: blocks of 32 neighbours, in a block runs of 8 fold by halves 4, 2,
 * 1, then the four runs by halves 2, 1 (absent channels +0); blocks add as one ascending chain from +0.
 * da2, dd and ddt_bias start at +0 in each span; the spans' values add as one ascending chain from +0, or `continued`
 * from what an earlier call left: calls may be cut between spans. da2 is multiplied by LN2 at the end, unless
 * continued: that is the caller's then. Spans are in ascending order of their rows. dout is float32 or bf16; du, ddt,
 * dz, db and dcc are stored as float32 or rounded once to bf16, the ddt that ddt_bias adds being unrounded. No NaN
 * pattern is promised for gradients.
 */
#ifndef LS_OP_SCAN_H
#define LS_OP_SCAN_H

#include "op/span.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Channels that one CPU work item takes; carries no bits. */
#define LS_SCAN_BLOCK 64
/* Channels of a block of the channel sums. */
#define LS_SCAN_SUM_BLOCK 32

ls_status ls_scan_check(const ls_scan_args *args, ls_error *err);
ls_status ls_scan_backward_check(const ls_scan_backward_args *args, ls_error *err);

/* Tokens between two states that the backward keeps; carries no bits. */
#define LS_SCAN_KEEP 8

static inline int64_t ls_scan_sum_blocks(int64_t dim) {
    return dim / LS_SCAN_SUM_BLOCK + (dim % LS_SCAN_SUM_BLOCK != 0);
}

static inline int64_t ls_scan_dz_stride(const ls_scan_backward_args *args) {
    return args->dz_stride != 0 ? args->dz_stride : args->dim;
}

/* Parts of the backward's workspace, as offsets in floats behind its head:
 *   states [rows / KEEP + n_spans][dim][n_states]: h before token KEEP * j of span i, at row / KEEP + i + j
 *   sums   [blocks][rows][2][n_states]: channel blocks' shares of db and dcc; by_runs: room for four times as many, of
 *          runs of 8 channels, where a GPU walks few spans
 *   a2     [n_spans][dim][n_states], d and bias [n_spans][dim]: spans' shares of the parameters' gradients */
typedef struct ls_scan_backward_plan {
    int64_t n_blocks, states, sums, a2, d, bias, total;
    bool by_runs;
} ls_scan_backward_plan;

/* False where a size does not fit int64_t. */
bool ls_scan_backward_plan_make(ls_scan_backward_plan *plan, const ls_scan_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
