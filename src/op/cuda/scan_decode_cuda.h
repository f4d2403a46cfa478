/* One token a span: a stream of states. A warp takes 32 channels, one a lane for softplus and gate and eight at a time
 * for the states, keeps a2 over a run of spans and fetches states some spans ahead. */
#ifndef LS_OP_CUDA_SCAN_DECODE_CUDA_H
#define LS_OP_CUDA_SCAN_DECODE_CUDA_H

#include <cuda_pipeline_primitives.h>

#include "op/cuda/expect_cuda.h"
#include "op/cuda/scan_cuda.h"

#define DECODE_WARPS(group) ((group) <= 8 ? 4 : 2)
#define DECODE_STAGES(group) ((group) <= 4 ? 4 : 2) /* spans whose states are here or on their way */
#define DECODE_BLOCKS 4                             /* of a multiprocessor */
#define DECODE_SPANS_MAX 32                         /* of a warp: each lane keeps one of its spans */
#define DECODE_CHECK_SPANS 1024                     /* up to so many spans the decode kernel checks them itself */

/* A span as its lane keeps it for the warp. */
typedef struct decode_turn {
    int64_t row;
    int32_t slot; /* < 0: nothing to do */
    bool begun;   /* there is a state to read */
} decode_turn;

static __device__ __forceinline__ decode_turn turn_of(decode_turn mine, int k) {
    decode_turn turn;
    turn.row = __shfl_sync(LS_ALL_LANES, mine.row, k);
    turn.slot = __shfl_sync(LS_ALL_LANES, mine.slot, k);
    turn.begun = __shfl_sync(LS_ALL_LANES, (int)mine.begun, k);
    return turn;
}

/* What a lane loads of a span besides states: its channel's u, dt and z, its group's B and C; as stored. */
template <int GROUP>
struct decode_inputs {
    uint32_t u, dt, z, b[GROUP], c[GROUP];
};

/* States of a warp's 32 channels. They go straight to shared memory and cost no registers while they are on their way.
 */
template <int GROUP>
struct decode_states {
    float h[4][32][GROUP]; /* [pass][lane][state] */
};

template <int GROUP, bool FULL>
static __device__ __forceinline__ void send_for_states(decode_states<GROUP> *to, const ls_scan_args *a,
                                                       decode_turn turn, int64_t first, int base, int n) {
    const int lane = (int)(threadIdx.x % 32), slot = lane / 4;
    if (turn.slot < 0) return;
    const float *stored = (const float *)ls_pool_at(&a->state, turn.slot) + base;
#pragma unroll
    for (int pass = 0; pass < 4; pass++) {
        const int64_t at = first + LS_WARP_CHANNELS * pass + slot;
        const bool there = turn.begun && at < a->dim;
        if (GROUP == 4 && FULL && there) {
            __pipeline_memcpy_async(to->h[pass][lane], stored + at * a->n_states, 16);
            continue;
        }
#pragma unroll
        for (int s = 0; s < GROUP; s++) to->h[pass][lane][s] = there && s < n ? stored[at * a->n_states + s] : 0.0f;
    }
}

template <int GROUP, int IN>
static __device__ __forceinline__ decode_inputs<GROUP> send_for_inputs(const ls_scan_args *a, decode_turn turn,
                                                                       int64_t channel, int base, int n) {
    decode_inputs<GROUP> in;
    const int64_t row = turn.slot < 0 ? 0 : turn.row;
    in.u = ls_load_raw<IN>(a->u, row * a->u_stride + channel);
    in.dt = ls_load_raw<IN>(a->dt_raw, row * a->dt_stride + channel);
    in.z = a->z != NULL ? ls_load_raw<IN>(a->z, row * a->z_stride + channel) : 0;
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        const int at = s < n ? base + s : 0;
        in.b[s] = ls_load_raw<IN>(a->b, row * a->b_stride + at);
        in.c[s] = ls_load_raw<IN>(a->cc, row * a->c_stride + at);
    }
    return in;
}

/* One token of one span for the 32 channels first .. first + 31. */
template <int GROUP, bool FULL, int IN, int OUT>
static __device__ __forceinline__ void decode_span(const ls_scan_args *a, decode_turn turn,
                                                   const decode_inputs<GROUP> *in, const decode_states<GROUP> *before,
                                                   int64_t first, const float *rates, float bias, float d, float safe,
                                                   int base, int n) {
    const int lane = (int)(threadIdx.x % 32), slot = lane / 4;
    float *stored = (float *)ls_pool_at(&a->state, turn.slot) + base;
    const float u = ls_widen_raw<IN>(in->u);
    float raw = ls_widen_raw<IN>(in->dt), b[GROUP], c[GROUP], y = 0.0f;
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        b[s] = ls_widen_raw<IN>(in->b[s]);
        c[s] = ls_widen_raw<IN>(in->c[s]);
    }
    if (a->dt_bias != NULL) raw = ls_add(raw, bias);
    const float dt = a->dt_activated ? raw : ls_softplus(raw), v = ls_mul(dt, u);
    const bool inside = __all_sync(LS_ALL_LANES, fabsf(dt) <= safe);
    states<GROUP> g[4];
    float part[4];
#pragma unroll
    for (int pass = 0; pass < 4; pass++) {
        load_group<GROUP, true>(g[pass].h, before->h[pass][lane], GROUP);
#pragma unroll
        for (int s = 0; s < GROUP; s++) g[pass].a2[s] = rates[pass * GROUP + s];
    }
    if (inside)
#pragma unroll
        for (int pass = 0; pass < 4; pass++) {
            const int owner = LS_WARP_CHANNELS * pass + slot;
            part[pass] = step<GROUP, FULL, true>(&g[pass], __shfl_sync(LS_ALL_LANES, dt, owner),
                                                 __shfl_sync(LS_ALL_LANES, v, owner), b, c, n);
        }
    else
#pragma unroll
        for (int pass = 0; pass < 4; pass++) {
            const int owner = LS_WARP_CHANNELS * pass + slot;
            part[pass] = step<GROUP, FULL, false>(&g[pass], __shfl_sync(LS_ALL_LANES, dt, owner),
                                                  __shfl_sync(LS_ALL_LANES, v, owner), b, c, n);
        }
#pragma unroll
    for (int pass = 0; pass < 4; pass++) {
        const int64_t at = first + LS_WARP_CHANNELS * pass + slot;
        if (at < a->dim) store_group<GROUP, FULL>(stored + at * a->n_states, g[pass].h, n);
    }
    /* Thread j of a channel has pass j's sum: channel lane / 4 + 8 j, which lane (lane % 8) * 4 + lane / 8 hands over.
     */
    y = __shfl_sync(LS_ALL_LANES, ls_quad_sum4(part, lane % 4), lane % LS_WARP_CHANNELS * 4 + lane / LS_WARP_CHANNELS);
    if (a->d != NULL) y = ls_fma(d, u, y);
    if (a->z != NULL) y = ls_mul(y, ls_silu(ls_widen_raw<IN>(in->z)));
    if (first + lane < a->dim) ls_store_one<OUT>(a->out, turn.row * a->out_stride + first + lane, y);
}

/* What the warp reads of parameters and of its first span's states, while the kernel ahead still runs. The span may not
 * have been checked. */
static __device__ __forceinline__ void expect_first(const ls_scan_args *a, int64_t span, int64_t first, int64_t channel,
                                                    int base) {
    const int slot = (int)(threadIdx.x % 32) / 4, entry = a->spans[span].slot;
    const bool there = entry >= 0 && entry < a->state.n_entries;
    const float *stored = (const float *)ls_pool_at(&a->state, there ? entry : 0);
    if (a->dt_bias != NULL) ls_cuda_expect(a->dt_bias + channel);
    if (a->d != NULL) ls_cuda_expect(a->d + channel);
#pragma unroll
    for (int pass = 0; pass < 4; pass++) {
        const int64_t at = (first + LS_WARP_CHANNELS * pass + slot) * a->n_states + base;
        if (first + LS_WARP_CHANNELS * pass + slot >= a->dim) break;
        ls_cuda_expect(a->a2 + at);
        if (there) ls_cuda_expect(stored + at);
    }
}

template <int GROUP, bool FULL, int IN, int OUT>
static __global__ void __launch_bounds__(32 * DECODE_WARPS(GROUP))
    decode_kernel(const __grid_constant__ scan_params p) {
    constexpr int STAGES = DECODE_STAGES(GROUP);
    __shared__ __align__(16) decode_states<GROUP> all[DECODE_WARPS(GROUP)][STAGES];
    const ls_scan_args *a = &p.a;
    const int lane = (int)(threadIdx.x % 32), group = lane % 4, slot = lane / 4;
    const int64_t first = ((int64_t)(blockIdx.x % p.blocks) * DECODE_WARPS(GROUP) + threadIdx.x / 32) * 32;
    const int64_t from = blockIdx.x / p.blocks * p.span_steps;
    const int n_turns = (int)(p.span_steps < a->n_spans - from ? p.span_steps : a->n_spans - from);
    const int64_t channel = first + lane < a->dim ? first + lane : a->dim - 1;
    const int per = (int)((a->n_states + 3) / 4), rest = (int)a->n_states - group * per;
    const int n = FULL ? GROUP : rest < 0 ? 0 : rest < per ? rest : per, base = group * per;
    decode_states<GROUP> *stages = all[threadIdx.x / 32];
    const bool works = first < a->dim;
    if (works && n > 0) expect_first(a, from, first, channel, base);
    ls_cuda_begin();
    /* Reading may begin before the check of all spans ends, where a lane's own span is sound. */
    decode_turn mine = {0, -1, false};
    if (lane < n_turns && works && ls_fault_at(&p.check, from + lane).code == LS_FAULT_NONE) {
        const ls_span *span = &a->spans[from + lane];
        mine.row = span->row;
        mine.slot = span->n_rows > 0 ? span->slot : -1;
        mine.begun = span->pos > 0;
    }
    for (int k = 0; k < STAGES - 1; k++) {
        if (k < n_turns) send_for_states<GROUP, FULL>(&stages[k], a, turn_of(mine, k), first, base, n);
        __pipeline_commit();
    }
    decode_turn turn = turn_of(mine, 0);
    decode_inputs<GROUP> in = send_for_inputs<GROUP, IN>(a, turn, channel, base, n);
    const float bias = a->dt_bias != NULL ? a->dt_bias[channel] : 0.0f, d = a->d != NULL ? a->d[channel] : 0.0f;
    float rates[4 * GROUP], safe = -1.0f;
#pragma unroll
    for (int pass = 0; pass < 4; pass++) {
        const int64_t at = first + LS_WARP_CHANNELS * pass + slot;
        load_group<GROUP, FULL>(rates + pass * GROUP, a->a2 + (at < a->dim ? at : a->dim - 1) * a->n_states + base, n);
    }
    const bool sound =
        p.checks ? ls_block_may_write<32 * DECODE_WARPS(GROUP)>(&p.check, a->n_spans) : p.fault->code == LS_FAULT_NONE;
    if (!sound || !works) {
        __pipeline_wait_prior(0);
        return;
    }
    /* The largest |a2| of a channel is known to its four threads; the lane that prepares the channel gets it. */
#pragma unroll
    for (int pass = 0; pass < 4; pass++) {
        float biggest = 0.0f;
#pragma unroll
        for (int s = 0; s < GROUP; s++) biggest = ls_max_nan(biggest, fabsf(rates[pass * GROUP + s]));
        const float of_pass = __shfl_sync(LS_ALL_LANES, ls_safe_dt<4>(biggest), lane % LS_WARP_CHANNELS * 4);
        if (lane / LS_WARP_CHANNELS == pass) safe = of_pass;
    }
    for (int k = 0; k < n_turns; k++) {
        const int ahead = k + STAGES - 1;
        if (ahead < n_turns)
            send_for_states<GROUP, FULL>(&stages[ahead % STAGES], a, turn_of(mine, ahead), first, base, n);
        __pipeline_commit();
        const decode_turn now = turn;
        const decode_inputs<GROUP> here = in;
        if (k + 1 < n_turns) {
            turn = turn_of(mine, k + 1);
            in = send_for_inputs<GROUP, IN>(a, turn, channel, base, n);
        }
        __pipeline_wait_prior(STAGES - 1);
        if (now.slot >= 0)
            decode_span<GROUP, FULL, IN, OUT>(a, now, &here, &stages[k % STAGES], first, rates, bias, d, safe, base, n);
    }
}

#endif
