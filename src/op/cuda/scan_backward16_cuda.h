/* Gradient of the scan for sixteen states. A block is RUNS runs of eight channels of a span, a warp one of them, a
 * channel four threads of four states. A tile of KEEP tokens is walked forwards, states and decays staying in
 * registers, and then back; what the walk needs of each token and channel is made beforehand, two tokens a thread. The
 * kernels here take four runs, the block of the channel sums; scan_backward_runs_cuda.h has those for few spans. */
#ifndef LS_OP_CUDA_SCAN_BACKWARD16_CUDA_H
#define LS_OP_CUDA_SCAN_BACKWARD16_CUDA_H

#include "op/cuda/scan_backward_cuda.h"

#define LS_BACK16_STATES 16
#define LS_BACK16_RUNS LS_BACK_WARPS     /* of a block of the kernels here */
#define LS_BACK16_OWN (LS_BACK_KEEP / 4) /* tokens of a tile that a thread prepares: its group's, every fourth */
/* Values of b and of c of a tile that a thread loads. */
#define LS_BACK16_LOADS(runs) (LS_BACK_KEEP * LS_BACK16_STATES / (32 * (runs)))

/* Place of a thread: its channel (the last one again where the run hangs over) and its group of states. */
typedef struct place16 {
    int64_t span_i, channel;
    int run, phase, warp, slot, group; /* warp: of the runs of its block; slot: of the channel in the warp */
    bool active;
} place16;

template <int RUNS, int PHASES>
static __device__ __forceinline__ place16 ls_place16(const back_params *p) {
    const int64_t per_span = p->plan.n_blocks * (LS_BACK_WARPS / RUNS);
    /* By exchange: so the compiler knows that all lanes have the same. */
    const int warp = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / 32, 0);
    place16 at;
    at.span_i = blockIdx.x / per_span;
    at.warp = RUNS == 1 ? 0 : warp;
    at.phase = PHASES == 1 ? 0 : warp;
    at.run = (int)(blockIdx.x % per_span) * RUNS + at.warp;
    at.slot = (int)(threadIdx.x % 32) / 4;
    at.group = (int)threadIdx.x % 4;
    at.channel = (int64_t)at.run * LS_WARP_CHANNELS + at.slot;
    at.active = at.channel < p->a.dim;
    if (!at.active) at.channel = p->a.dim - 1;
    return at;
}

/* Row of this thread's token j of a tile; the last one's again where there are fewer. */
static __device__ __forceinline__ int64_t ls_own_row(const place16 *at, int64_t row, int n_tokens, int j) {
    const int token = j * 4 + at->group;
    return row + (token < n_tokens ? token : n_tokens - 1);
}

/* Value i, of a thread's, of b or cc of a tile: threads have neighbours, the block's RUNS warps all. */
template <int RUNS>
static __device__ __forceinline__ int ls_state16_index(int i) {
    return (int)threadIdx.x % (32 * RUNS) + i * 32 * RUNS;
}

template <int IN, int RUNS>
static __device__ __forceinline__ void ls_states16_load(float *to, const void *from, int64_t stride, int64_t row,
                                                        int n_tokens) {
#pragma unroll
    for (int i = 0; i < LS_BACK16_LOADS(RUNS); i++) {
        const int at = ls_state16_index<RUNS>(i), token = at / LS_BACK16_STATES;
        to[i] = token < n_tokens ? ls_load_one<IN>(from, (row + token) * stride + at % LS_BACK16_STATES) : 0.0f;
    }
}

template <int RUNS>
static __device__ __forceinline__ void ls_states16_put(float to[LS_BACK_KEEP][LS_BACK16_STATES], const float *from) {
#pragma unroll
    for (int i = 0; i < LS_BACK16_LOADS(RUNS); i++) (&to[0][0])[ls_state16_index<RUNS>(i)] = from[i];
}

static __device__ __forceinline__ void ls_spread(float out[4], float4 v) {
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

static __device__ __forceinline__ float4 ls_four_of(const float v[4]) { return make_float4(v[0], v[1], v[2], v[3]); }

/* The thread's states of its span in a tensor of them; +0 where there is none. */
static __device__ __forceinline__ void ls_span_states16(float to[4], const float *states, const back_params *p,
                                                        const place16 *at) {
    const int64_t from = ls_span_state(p, at->span_i, at->channel, at->group * 4);
    ls_spread(to, states != NULL ? *(const float4 *)(states + from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
}

/* a2 of the thread's states; the largest |dt| that is safe for its channel. */
static __device__ __forceinline__ float ls_rates16(const back_params *p, const place16 *at, float a2[4]) {
    float safe = 0.0f;
    ls_spread(a2, *(const float4 *)(p->a.a2 + at->channel * LS_BACK16_STATES + at->group * 4));
#pragma unroll
    for (int s = 0; s < 4; s++) safe = ls_max_nan(safe, fabsf(a2[s]));
    return ls_safe_dt<4>(safe);
}

/* ---- h before every tile ---- */

typedef struct keep16_tile {
    float b[2][LS_BACK_KEEP][LS_BACK16_STATES];
    float2 dtv[LS_BACK_WARPS][LS_BACK_KEEP][LS_WARP_CHANNELS]; /* dt and v = dt u */
} keep16_tile;

template <bool INSIDE>
static __device__ __forceinline__ void ls_keep16_walk(const keep16_tile *tile, const place16 *at, int buffer,
                                                      float h[4], const float a2[4]) {
#pragma unroll
    for (int i = 0; i < LS_BACK_KEEP; i++) {
        const float2 d = tile->dtv[at->warp][i][at->slot];
        float b[4];
        ls_spread(b, *(const float4 *)&tile->b[buffer][i][at->group * 4]);
#pragma unroll
        for (int s = 0; s < 4; s++)
            h[s] = ls_fma(INSIDE ? ls_exp2_product_inside(d.x, a2[s]) : ls_exp2_product(d.x, a2[s]), h[s],
                          ls_mul(d.y, b[s]));
    }
}

/* The last tile's states are nobody's: whatever its missing tokens make of them. */
template <int IN>
static __global__ void __launch_bounds__(32 * LS_BACK16_RUNS) ls_keep16_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    __shared__ keep16_tile tile;
    const ls_scan_backward_args *a = &p.a;
    const place16 at = ls_place16<LS_BACK16_RUNS, 1>(&p);
    const ls_span *span = &a->spans[at.span_i];
    float h[4], a2[4], raw[LS_BACK16_OWN], u[LS_BACK16_OWN], b = 0.0f;
    int buffer = 0;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    const float safe = ls_rates16(&p, &at, a2);
    ls_span_states16(h, a->initial, &p, &at);
    for (int64_t t = -LS_BACK_KEEP; t < span->n_rows; t += LS_BACK_KEEP, buffer ^= 1) {
        const int64_t next = t + LS_BACK_KEEP, left = span->n_rows - next, row = span->row + next;
        const int n_next = left < LS_BACK_KEEP ? (int)left : LS_BACK_KEEP;
        bool inside = true;
        if (t >= 0) {
            float dt[LS_BACK16_OWN];
#pragma unroll
            for (int j = 0; j < LS_BACK16_OWN; j++) dt[j] = raw[j];
            if (!a->dt_activated) ls_softplus_all<LS_BACK16_OWN>(dt);
            __syncwarp();
#pragma unroll
            for (int j = 0; j < LS_BACK16_OWN; j++) {
                tile.dtv[at.warp][j * 4 + at.group][at.slot] = make_float2(dt[j], ls_mul(dt[j], u[j]));
                inside &= fabsf(dt[j]) <= safe;
            }
            ls_states16_put<LS_BACK16_RUNS>(tile.b[buffer], &b);
            if (at.active)
                *(float4 *)ls_kept_state(&p, span, at.span_i, t / LS_BACK_KEEP, at.channel, at.group * 4) =
                    ls_four_of(h);
        }
        if (left > 0) { /* on its way while this tile is walked */
#pragma unroll
            for (int j = 0; j < LS_BACK16_OWN; j++) {
                const int64_t own = ls_own_row(&at, row, n_next, j);
                raw[j] = ls_load_one<IN>(a->dt_raw, own * a->dt_stride + at.channel);
                if (a->dt_bias != NULL) raw[j] = ls_add(raw[j], a->dt_bias[at.channel]);
                u[j] = ls_load_one<IN>(a->u, own * a->u_stride + at.channel);
            }
            ls_states16_load<IN, LS_BACK16_RUNS>(&b, a->b, a->b_stride, row, n_next);
        }
        __syncthreads();
        if (t < 0 || left <= 0) continue;
        if (__all_sync(LS_ALL_LANES, inside))
            ls_keep16_walk<true>(&tile, &at, buffer, h, a2);
        else
            ls_keep16_walk<false>(&tile, &at, buffer, h, a2);
    }
}

/* ---- the walk ---- */

template <int RUNS>
struct back16_tile {
    float b[2][LS_BACK_KEEP][LS_BACK16_STATES], c[2][LS_BACK_KEEP][LS_BACK16_STATES];
    float4 step[RUNS][LS_BACK_KEEP][LS_WARP_CHANNELS]; /* dt, v, dy, u */
    float4 end[RUNS][LS_BACK_KEEP][LS_WARP_CHANNELS];  /* slope d dt / d dt_raw; dout; d out / d z of y = 1 */
};

/* The runs' shares of db and dcc, until they are folded. */
typedef struct back16_sums {
    float of[2][LS_BACK16_RUNS][LS_BACK_KEEP][2 * LS_BACK16_STATES];
} back16_sums;

/* What a tile needs, as loaded. */
template <int RUNS>
struct back16_raw {
    float dt[LS_BACK16_OWN], u[LS_BACK16_OWN], z[LS_BACK16_OWN], dout[LS_BACK16_OWN];
    float b[LS_BACK16_LOADS(RUNS)], c[LS_BACK16_LOADS(RUNS)];
    float4 h;
};

template <int IN, int RUNS>
static __device__ __forceinline__ void ls_back16_load(back16_raw<RUNS> *raw, const back_params *p, const place16 *at,
                                                      const ls_span *span, int64_t tile, int n_tokens) {
    const ls_scan_backward_args *a = &p->a;
    const int64_t row = span->row + tile * LS_BACK_KEEP;
#pragma unroll
    for (int j = 0; j < LS_BACK16_OWN; j++) {
        const int64_t own = ls_own_row(at, row, n_tokens, j);
        raw->dt[j] = ls_load_one<IN>(a->dt_raw, own * a->dt_stride + at->channel);
        raw->u[j] = ls_load_one<IN>(a->u, own * a->u_stride + at->channel);
        raw->dout[j] = ls_load_either(a->dout_bf16, a->dout, own * a->dout_stride + at->channel);
        raw->z[j] = a->z != NULL ? ls_load_one<IN>(a->z, own * a->z_stride + at->channel) : 0.0f;
    }
    ls_states16_load<IN, RUNS>(raw->b, a->b, a->b_stride, row, n_tokens);
    ls_states16_load<IN, RUNS>(raw->c, a->cc, a->c_stride, row, n_tokens);
    raw->h = *(const float4 *)ls_kept_state(p, span, at->span_i, tile, at->channel, at->group * 4);
}

/* Into shared memory, as the walk has it. Returns whether the tile is `sure` and every dt of the warp safe. */
template <int RUNS>
static __device__ __forceinline__ bool ls_back16_prepare(back16_tile<RUNS> *tile, const back16_raw<RUNS> *raw,
                                                         const ls_scan_backward_args *a, const place16 *at, int buffer,
                                                         float safe, bool sure) {
    float dt[LS_BACK16_OWN], slope[LS_BACK16_OWN], sig[LS_BACK16_OWN], sl[LS_BACK16_OWN];
#pragma unroll
    for (int j = 0; j < LS_BACK16_OWN; j++) {
        dt[j] = a->dt_bias != NULL ? ls_add(raw->dt[j], a->dt_bias[at->channel]) : raw->dt[j];
        slope[j] = 1.0f;
    }
    if (!a->dt_activated) ls_softplus_slopes_all<LS_BACK16_OWN>(dt, slope);
    if (a->z != NULL) ls_gates_all<LS_BACK16_OWN>(raw->z, sig, sl);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < LS_BACK16_OWN; j++) {
        const int token = j * 4 + at->group;
        float dy = raw->dout[j], along = 0.0f;
        if (a->z != NULL) {
            dy = ls_mul(dy, sl[j]);
            along = ls_fma(sl[j], ls_sub(1.0f, sig[j]), sig[j]);
        }
        tile->step[at->warp][token][at->slot] = make_float4(dt[j], ls_mul(dt[j], raw->u[j]), dy, raw->u[j]);
        tile->end[at->warp][token][at->slot] = make_float4(slope[j], raw->dout[j], along, 0.0f);
        sure &= fabsf(dt[j]) <= safe;
    }
    ls_states16_put<RUNS>(tile->b[buffer], raw->b);
    ls_states16_put<RUNS>(tile->c[buffer], raw->c);
    return __all_sync(LS_ALL_LANES, sure);
}

/* Eight values summed over the warp's eight channels by halves 4, 2, 1. With each exchange a thread keeps half of the
 * values, so it ends with one: value 4 (lane / 16) + 2 (lane / 8 % 2) + lane / 4 % 2. */
static __device__ __forceinline__ float ls_channel_sums8(const float x[8]) {
    const int lane = (int)threadIdx.x % 32;
    const bool far = lane & 16, middle = lane & 8, near = lane & 4;
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        four[i] = ls_add(far ? x[4 + i] : x[i], __shfl_xor_sync(LS_ALL_LANES, far ? x[i] : x[4 + i], 16));
#pragma unroll
    for (int i = 0; i < 2; i++)
        two[i] =
            ls_add(middle ? four[2 + i] : four[i], __shfl_xor_sync(LS_ALL_LANES, middle ? four[i] : four[2 + i], 8));
    return ls_add(near ? two[1] : two[0], __shfl_xor_sync(LS_ALL_LANES, near ? two[0] : two[1], 4));
}

/* What the walk back carries from token to token. */
typedef struct carried16 {
    float g[4], da2[4], dd, dbias;
} carried16;

/* One tile. OUT: type of dz and ddt; DU: of du. SURE: all its tokens are there, every dt * a2 is known to be in range,
 * and every channel is one. */
template <int OUT, int DU, bool SURE>
static __device__ __forceinline__ void ls_back16_walk(const back_params *p, const place16 *at,
                                                      const back16_tile<LS_BACK16_RUNS> *tile, back16_sums *sums,
                                                      carried16 *k, const float a2[4], float4 kept, int buffer,
                                                      int64_t row, int n_tokens) {
    const ls_scan_backward_args *a = &p->a;
    float before[4], h[LS_BACK_KEEP][4], decay[LS_BACK_KEEP][4], part[LS_BACK_KEEP];
    ls_spread(before, kept);
#pragma unroll
    for (int i = 0; i < LS_BACK_KEEP; i++) {
        part[i] = 0.0f;
        if (!SURE && i >= n_tokens) continue;
        const float4 d = tile->step[at->warp][i][at->slot];
        float b[4], c[4];
        ls_spread(b, *(const float4 *)&tile->b[buffer][i][at->group * 4]);
        ls_spread(c, *(const float4 *)&tile->c[buffer][i][at->group * 4]);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            decay[i][s] = SURE ? ls_exp2_product_inside(d.x, a2[s]) : ls_exp2_product(d.x, a2[s]);
            h[i][s] = ls_fma(decay[i][s], i > 0 ? h[i > 0 ? i - 1 : 0][s] : before[s], ls_mul(d.y, b[s]));
            part[i] = ls_fma(h[i][s], c[s], part[i]);
        }
    }
    if (a->z != NULL)
#pragma unroll
        for (int j = 0; j < LS_BACK16_OWN; j++) {
            const int token = j * 4 + at->group;
            float y = ls_quad_sum4(&part[4 * j], at->group);
            const float4 end = tile->end[at->warp][token][at->slot];
            if (a->d != NULL) y = ls_fma(a->d[at->channel], tile->step[at->warp][token][at->slot].w, y);
            if (SURE || (token < n_tokens && at->active))
                ls_store_one<OUT>(a->dz, (row + token) * a->dz_stride + at->channel, ls_mul(ls_mul(end.y, y), end.z));
        }
#pragma unroll
    for (int j = LS_BACK16_OWN - 1; j >= 0; j--) {
        float V[4], T[4];
#pragma unroll
        for (int q = 3; q >= 0; q--) {
            const int i = 4 * j + q;
            V[q] = T[q] = 0.0f;
            if (!SURE && i >= n_tokens) continue;
            const float4 d = tile->step[at->warp][i][at->slot];
            float b[4], c[4], share[8];
            ls_spread(b, *(const float4 *)&tile->b[buffer][i][at->group * 4]);
            ls_spread(c, *(const float4 *)&tile->c[buffer][i][at->group * 4]);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                k->g[s] = ls_fma(d.z, c[s], k->g[s]);
                V[q] = ls_fma(k->g[s], b[s], V[q]);
                float w = ls_mul(k->g[s], ls_mul(decay[i][s], i > 0 ? h[i > 0 ? i - 1 : 0][s] : before[s]));
                if (!SURE) {
                    const float x = ls_mul(d.x, a2[s]);
                    if (!(x >= -126.0f && x <= 127.0f)) w = 0.0f;
                }
                T[q] = ls_fma(w, a2[s], T[q]);
                k->da2[s] = ls_fma(w, d.x, k->da2[s]);
                share[s] = SURE || at->active ? ls_mul(k->g[s], d.y) : 0.0f;
                share[4 + s] = SURE || at->active ? ls_mul(d.z, h[i][s]) : 0.0f;
                k->g[s] = ls_mul(k->g[s], decay[i][s]);
            }
            const int lane = (int)threadIdx.x % 32;
            sums->of[buffer][at->warp][i][lane / 16 * LS_BACK16_STATES + at->group * 4 + lane / 8 % 2 * 2 +
                                          lane / 4 % 2] = ls_channel_sums8(share);
            if (a->d != NULL) k->dd = ls_fma(d.z, d.w, k->dd);
        }
        const int token = j * 4 + at->group;
        const float whole_V = ls_quad_sum4(V, at->group), whole_T = ls_quad_sum4(T, at->group);
        const float4 d = tile->step[at->warp][token][at->slot];
        float du = ls_mul(whole_V, d.x), ddt = ls_fma(whole_T, LS_LN2, ls_mul(whole_V, d.w));
        if (a->d != NULL) du = ls_fma(d.z, a->d[at->channel], du);
        if (!a->dt_activated) ddt = ls_mul(ddt, tile->end[at->warp][token][at->slot].x);
        if (SURE || (token < n_tokens && at->active)) {
            ls_store_one<DU>(a->du, (row + token) * a->dim + at->channel, du);
            ls_store_one<OUT>(a->ddt, (row + token) * a->dim + at->channel, ddt);
        }
#pragma unroll
        for (int q = 3; q >= 0; q--) {
            const float of_token = __shfl_sync(LS_ALL_LANES, ddt, q, 4);
            if (SURE || 4 * j + q < n_tokens) k->dbias = ls_add(k->dbias, of_token);
        }
    }
}

/* A tile's four runs of eight channels by halves 2, 1. */
static __device__ __forceinline__ void ls_back16_fold(const back_params *p, const place16 *at, const back16_sums *sums,
                                                      int buffer, int64_t row, int n_tokens) {
    const float(*of)[LS_BACK_KEEP][2 * LS_BACK16_STATES] = sums->of[buffer];
#pragma unroll
    for (int turn = 0; turn < LS_BACK_KEEP * 2 * LS_BACK16_STATES / (32 * LS_BACK_WARPS); turn++) {
        const int j = (int)threadIdx.x + turn * 32 * LS_BACK_WARPS;
        const int token = j / (2 * LS_BACK16_STATES), i = j % (2 * LS_BACK16_STATES);
        if (token < n_tokens)
            *ls_channel_share(p, at->run / LS_BACK_WARPS, row + token, i / LS_BACK16_STATES, i % LS_BACK16_STATES) =
                ls_four_runs(of[0][token][i], of[1][token][i], of[2][token][i], of[3][token][i]);
    }
}

/* The gradient of the span's first states, which is what the walk ends with. */
static __device__ __forceinline__ void ls_back16_initial(const back_params *p, const place16 *at, const float g[4]) {
    const int64_t channel = at->span_i * p->a.dim + at->channel;
    if (p->a.dinitial == NULL || !at->active) return;
    *(float4 *)(p->a.dinitial + channel * LS_BACK16_STATES + at->group * 4) = ls_four_of(g);
}

/* The span's share of the parameters' gradients. */
static __device__ __forceinline__ void ls_back16_finish(const back_params *p, const place16 *at, const carried16 *k) {
    const int64_t channel = at->span_i * p->a.dim + at->channel;
    if (!at->active) return;
    *(float4 *)(p->work + p->plan.a2 + channel * LS_BACK16_STATES + at->group * 4) = ls_four_of(k->da2);
    if (at->group != 0) return;
    p->work[p->plan.d + channel] = k->dd;
    p->work[p->plan.bias + channel] = k->dbias;
}

template <int IN, int OUT, int DU>
static __global__ void __launch_bounds__(32 * LS_BACK16_RUNS, 3)
    ls_back16_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    __shared__ back16_tile<LS_BACK16_RUNS> tile;
    __shared__ back16_sums sums;
    const ls_scan_backward_args *a = &p.a;
    const place16 at = ls_place16<LS_BACK16_RUNS, 1>(&p);
    const ls_span *span = &a->spans[at.span_i];
    const int64_t n_tiles = (span->n_rows + LS_BACK_KEEP - 1) / LS_BACK_KEEP;
    const bool whole_block = (int64_t)(at.run / LS_BACK16_RUNS + 1) * LS_SCAN_SUM_BLOCK <= a->dim;
    carried16 k = {};
    back16_raw<LS_BACK16_RUNS> raw = {};
    float a2[4];
    int buffer = 0, n_before = 0;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    const float safe = ls_rates16(&p, &at, a2);
    ls_span_states16(k.g, a->dfinal, &p, &at);
    int n_tokens = (int)(span->n_rows - (n_tiles - 1) * LS_BACK_KEEP);
    if (n_tiles > 0) ls_back16_load<IN, LS_BACK16_RUNS>(&raw, &p, &at, span, n_tiles - 1, n_tokens);
    for (int64_t i = n_tiles - 1; i >= 0; i--, buffer ^= 1) {
        const int64_t row = span->row + i * LS_BACK_KEEP;
        const float4 kept = raw.h;
        const bool sure = ls_back16_prepare<LS_BACK16_RUNS>(&tile, &raw, a, &at, buffer, safe,
                                                            whole_block && n_tokens == LS_BACK_KEEP);
        if (i > 0) ls_back16_load<IN, LS_BACK16_RUNS>(&raw, &p, &at, span, i - 1, LS_BACK_KEEP);
        __syncthreads();
        if (n_before > 0) ls_back16_fold(&p, &at, &sums, buffer ^ 1, row + LS_BACK_KEEP, n_before);
        if (sure)
            ls_back16_walk<OUT, DU, true>(&p, &at, &tile, &sums, &k, a2, kept, buffer, row, n_tokens);
        else
            ls_back16_walk<OUT, DU, false>(&p, &at, &tile, &sums, &k, a2, kept, buffer, row, n_tokens);
        n_before = n_tokens;
        n_tokens = LS_BACK_KEEP;
    }
    __syncthreads();
    if (n_before > 0) ls_back16_fold(&p, &at, &sums, buffer ^ 1, span->row, n_before);
    ls_back16_finish(&p, &at, &k);
    if (span->n_rows > 0) ls_back16_initial(&p, &at, k.g);
}

#endif
