/* Selective scan of Mamba-1 (Gu & Dao 2023, arXiv:2312.00752), sequential in time, with carried state.
 *
 * For token t, channel c, state s (all float32 unless R is written):
 *   dt = softplus(dt_raw[t][c] + dt_bias[c]);  v = dt * u[t][c]
 *   h[c][s] = fma(exp2_bounded(dt * a2[c][s]), h[c][s], v * b[t][s])       a2 = A * log2(e), A = -exp(A_log)
 *   y = the four-chain tree over s of h[c][s] * cc[t][s];  y = fma(d[c], u[t][c], y);  out[t][c] = R(y * silu(z[t][c]))
 * Tree: n states in 4 groups of ceil(n/4) neighbours; group g chains p = fma(h, cc, p) ascending from +0; then
 * (p0 + p1) + (p2 + p3). On a GPU a group is a thread and the two adds are exchanges.
 * The state after any token is h itself, in float32, so decode, any chunking and full prefill give the same bits. */
#ifndef LS_OP_SCAN_H
#define LS_OP_SCAN_H

#include "dev/queue.h"
#include "op/span.h"

#define LS_SCAN_STATES_MAX 256
/* Channels that one CPU work item takes; carries no bits. */
#define LS_SCAN_BLOCK 16

typedef struct ls_scan_args {
    ls_dtype in_dtype;  /* of u, dt_raw, b, cc and z: f32 or bf16 */
    ls_dtype out_dtype; /* f32 or bf16 */
    const void *u;      /* [rows][u_stride], dim used */
    const void *dt_raw; /* [rows][dt_stride], dim used */
    const void *b, *cc; /* [rows][b_stride], [rows][c_stride], n_states used */
    const void *z;      /* [rows][z_stride], dim used */
    void *out;          /* [rows][out_stride] */
    int64_t u_stride, dt_stride, b_stride, c_stride, z_stride, out_stride;
    const float *a2;      /* [dim][n_states] */
    const float *dt_bias; /* [dim] */
    const float *d;       /* [dim] */
    int64_t dim, n_states;
    ls_pool_view state; /* entries [dim][n_states] float32 */
    const ls_span *spans;
    int64_t n_spans;
} ls_scan_args;

ls_status ls_scan(ls_queue *queue, const ls_scan_args *args, ls_error *err);

#endif
