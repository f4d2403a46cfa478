/* Prefill of many channels: a channel is one thread or two, with 16 states in registers, and a warp is on its own. It
 * prepares a tile of tokens (softplus, gate), walks it, finishes it; the next tile's inputs are on their way. Fewer
 * threads a channel read B and C less often than the pipeline's four, but need more channels to fill the GPU. */
#ifndef LS_OP_CUDA_SCAN_WIDE_CUDA_H
#define LS_OP_CUDA_SCAN_WIDE_CUDA_H

#include "op/cuda/scan_cuda.h"

#define WIDE_TILE 8
#define WIDE_STATES 16

template <int THREADS>
struct wide_tile {
    float bc[WIDE_TILE][2][WIDE_STATES];
    float2 dtv[WIDE_TILE][32 / THREADS]; /* dt and v; then the output in .x */
};

/* A thread's own tokens of a tile, THREADS k + part, and its lane's share of B and C, as stored. */
template <int OWN, int IN>
struct wide_inputs {
    uint32_t u[OWN], dt[OWN], z[OWN];
    ls_vec8<IN> bc; /* half lane % 2 of B or C (lane / 2 % 2) of token lane / 4 */
};

/* Where a thread's inputs of a tile begin, and the bytes from one of its tokens to the next. */
typedef struct wide_places {
    const char *u, *dt, *z, *bc;
    int64_t u_pitch, dt_pitch, z_pitch, bc_pitch; /* bc_pitch: of one token */
} wide_places;

template <int THREADS, int IN>
static __device__ __forceinline__ wide_places wide_places_of(const ls_scan_args *a, int64_t row, int64_t channel) {
    const int lane = (int)(threadIdx.x % 32), part = lane % THREADS;
    const int64_t elem = IN == LS_F32 ? 4 : 2, token = row + lane / 4;
    wide_places at;
    at.u = (const char *)a->u + ((row + part) * a->u_stride + channel) * elem;
    at.dt = (const char *)a->dt_raw + ((row + part) * a->dt_stride + channel) * elem;
    at.z = (const char *)a->z + ((row + part) * a->z_stride + channel) * elem;
    at.u_pitch = THREADS * a->u_stride * elem;
    at.dt_pitch = THREADS * a->dt_stride * elem;
    at.z_pitch = THREADS * a->z_stride * elem;
    at.bc_pitch = (lane / 2 % 2 == 0 ? a->b_stride : a->c_stride) * elem;
    at.bc = (lane / 2 % 2 == 0 ? (const char *)a->b + token * a->b_stride * elem
                               : (const char *)a->cc + token * a->c_stride * elem) +
            lane % 2 * 8 * elem;
    return at;
}

template <int OWN, int IN>
static __device__ __forceinline__ void wide_load_own(uint32_t raw[OWN], const char *at, int64_t pitch) {
#pragma unroll
    for (int k = 0; k < OWN; k++, at += pitch) raw[k] = ls_load_raw<IN>(at, 0);
}

/* A whole tile. */
template <int THREADS, bool VECTORS, int IN>
static __device__ __forceinline__ void wide_load(wide_inputs<WIDE_TILE / THREADS, IN> *in, const wide_places *at,
                                                 bool gated) {
    constexpr int OWN = WIDE_TILE / THREADS;
    wide_load_own<OWN, IN>(in->u, at->u, at->u_pitch);
    wide_load_own<OWN, IN>(in->dt, at->dt, at->dt_pitch);
    if (gated) wide_load_own<OWN, IN>(in->z, at->z, at->z_pitch);
    if constexpr (VECTORS)
#pragma unroll
        for (int w = 0; w < (IN == LS_F32 ? 2 : 1); w++) in->bc.word[w] = __ldg((const uint4 *)at->bc + w);
}

template <int THREADS, bool VECTORS, int IN>
static __device__ __forceinline__ void wide_store_bc(wide_tile<THREADS> *t,
                                                     const wide_inputs<WIDE_TILE / THREADS, IN> *in,
                                                     const ls_scan_args *a, int64_t row) {
    const int lane = (int)(threadIdx.x % 32);
    if constexpr (VECTORS) {
        float4 *to = (float4 *)(t->bc[lane / 4][lane / 2 % 2] + lane % 2 * 8);
        to[0] = make_float4(ls_vec8_get<IN>(in->bc, 0), ls_vec8_get<IN>(in->bc, 1), ls_vec8_get<IN>(in->bc, 2),
                            ls_vec8_get<IN>(in->bc, 3));
        to[1] = make_float4(ls_vec8_get<IN>(in->bc, 4), ls_vec8_get<IN>(in->bc, 5), ls_vec8_get<IN>(in->bc, 6),
                            ls_vec8_get<IN>(in->bc, 7));
    } else {
        for (int i = lane; i < WIDE_TILE * WIDE_STATES; i += 32) {
            const int token = i / WIDE_STATES, s = i % WIDE_STATES;
            t->bc[token][0][s] = ls_load_one<IN>(a->b, (row + token) * a->b_stride + s);
            t->bc[token][1][s] = ls_load_one<IN>(a->cc, (row + token) * a->c_stride + s);
        }
    }
}

/* One token: the tree over the groups that this thread holds. */
template <int THREADS, bool INSIDE>
static __device__ __forceinline__ float wide_step(states<WIDE_STATES / THREADS> *g, float2 dtv, const float *b,
                                                  const float *c) {
    constexpr int GROUPS = 4 / THREADS;
    float part[GROUPS];
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        part[group] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int s = 4 * group + i;
            const float decay = INSIDE ? ls_exp2_product_inside(dtv.x, g->a2[s]) : ls_exp2_product(dtv.x, g->a2[s]);
            g->h[s] = ls_fma(decay, g->h[s], ls_mul(dtv.y, b[s]));
            part[group] = ls_fma(g->h[s], c[s], part[group]);
        }
    }
    if constexpr (THREADS == 1)
        return ls_add(ls_add(part[0], part[1]), ls_add(part[2], part[3]));
    else
        return ls_add(part[0], part[1]);
}

/* The channel's y from its threads' shares. */
template <int THREADS>
static __device__ __forceinline__ float wide_sum(float share) {
    return THREADS == 1 ? share : ls_add(share, __shfl_xor_sync(LS_ALL_LANES, share, 1));
}

/* Steps through a tile and leaves each token's y in dtv[token].x. */
template <int THREADS>
static __device__ __forceinline__ void wide_walk(wide_tile<THREADS> *t, states<WIDE_STATES / THREADS> *g, bool inside) {
    const int lane = (int)(threadIdx.x % 32), slot = lane / THREADS, part = lane % THREADS;
    const int base = part * (WIDE_STATES / THREADS);
    if (inside) {
#pragma unroll 1
        for (int token = 0; token < WIDE_TILE; token += THREADS) {
            float y[THREADS];
#pragma unroll
            for (int j = 0; j < THREADS; j++)
                y[j] = wide_step<THREADS, true>(g, t->dtv[token + j][slot], t->bc[token + j][0] + base,
                                                t->bc[token + j][1] + base);
            /* Two threads exchange the shares of each other's token. */
            if constexpr (THREADS == 2)
                y[0] = ls_add(part == 0 ? y[0] : y[1], __shfl_xor_sync(LS_ALL_LANES, part == 0 ? y[1] : y[0], 1));
            t->dtv[token + part][slot].x = y[0];
        }
        return;
    }
#pragma unroll 1
    for (int token = 0; token < WIDE_TILE; token++) {
        const float y = wide_sum<THREADS>(
            wide_step<THREADS, false>(g, t->dtv[token][slot], t->bc[token][0] + base, t->bc[token][1] + base));
        if (part == 0) t->dtv[token][slot].x = y;
    }
}

/* What a thread knows of its channel. */
typedef struct wide_channel {
    int64_t i; /* the last one again where the block hangs over */
    float bias, d, safe;
    bool active;
} wide_channel;

/* The tokens of the last, unfinished tile, one by one. */
template <int THREADS, int IN, int OUT>
static __device__ __noinline__ void wide_tail(const ls_scan_args *a, const wide_channel *channel,
                                              states<WIDE_STATES / THREADS> *g, int64_t row, int64_t last) {
    constexpr int STATES = WIDE_STATES / THREADS;
    const int part = (int)(threadIdx.x % THREADS);
    for (; row <= last; row++) {
        float b[STATES], c[STATES], y;
        float dt = ls_load_one<IN>(a->dt_raw, row * a->dt_stride + channel->i);
        const float u = ls_load_one<IN>(a->u, row * a->u_stride + channel->i);
        for (int s = 0; s < STATES; s++) {
            b[s] = ls_load_one<IN>(a->b, row * a->b_stride + part * STATES + s);
            c[s] = ls_load_one<IN>(a->cc, row * a->c_stride + part * STATES + s);
        }
        if (a->dt_bias != NULL) dt = ls_add(dt, channel->bias);
        if (!a->dt_activated) dt = ls_softplus(dt);
        y = wide_sum<THREADS>(wide_step<THREADS, false>(g, make_float2(dt, ls_mul(dt, u)), b, c));
        if (a->d != NULL) y = ls_fma(channel->d, u, y);
        if (a->z != NULL) y = ls_mul(y, ls_silu(ls_load_one<IN>(a->z, row * a->z_stride + channel->i)));
        if (channel->active && part == 0) ls_store_one<OUT>(a->out, row * a->out_stride + channel->i, y);
    }
}

/* A tile of the span, from its loaded inputs to its outputs; the inputs are replaced by those at `next`. */
template <int THREADS, bool VECTORS, int IN, int OUT>
static __device__ __forceinline__ void wide_run(wide_tile<THREADS> *t, wide_inputs<WIDE_TILE / THREADS, IN> *in,
                                                states<WIDE_STATES / THREADS> *g, const ls_scan_args *a,
                                                const wide_channel *channel, const wide_places *next, int64_t row) {
    constexpr int OWN = WIDE_TILE / THREADS;
    const int lane = (int)(threadIdx.x % 32), slot = lane / THREADS, part = lane % THREADS;
    float dt[OWN], u[OWN], gate[OWN];
    int inside = 1;
    __syncwarp();
    wide_store_bc<THREADS, VECTORS, IN>(t, in, a, row);
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        dt[k] = ls_widen_raw<IN>(in->dt[k]);
        u[k] = ls_widen_raw<IN>(in->u[k]);
        gate[k] = ls_widen_raw<IN>(in->z[k]);
    }
    wide_load<THREADS, VECTORS, IN>(in, next, a->z != NULL);
    /* Choices stand outside the loops over tokens, so that the tokens' long chains run side by side. */
    if (a->dt_bias != NULL)
#pragma unroll
        for (int k = 0; k < OWN; k++) dt[k] = ls_add(dt[k], channel->bias);
    if (!a->dt_activated) ls_softplus_all<OWN>(dt);
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        inside &= fabsf(dt[k]) <= channel->safe;
        t->dtv[THREADS * k + part][slot] = make_float2(dt[k], ls_mul(dt[k], u[k]));
    }
    if (a->z != NULL) ls_silu_all<OWN>(gate);
    inside = __all_sync(LS_ALL_LANES, inside);
    __syncwarp();
    wide_walk<THREADS>(t, g, inside);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        float y = t->dtv[THREADS * k + part][slot].x;
        if (a->d != NULL) y = ls_fma(channel->d, u[k], y);
        gate[k] = a->z != NULL ? ls_mul(y, gate[k]) : y;
    }
    char *out = (char *)a->out + ((row + part) * a->out_stride + channel->i) * (OUT == LS_F32 ? 4 : 2);
    const int64_t pitch = THREADS * a->out_stride * (OUT == LS_F32 ? 4 : 2);
    if (channel->active)
#pragma unroll
        for (int k = 0; k < OWN; k++, out += pitch) ls_store_one<OUT>(out, 0, gate[k]);
}

/* Registers for 16 or 20 warps of a multiprocessor: what keeps whole rounds of the published sizes. */
template <int THREADS, bool VECTORS, int IN, int OUT>
static __global__ void __launch_bounds__(32, THREADS == 1 ? 16 : 20)
    wide_kernel(const __grid_constant__ scan_params p) {
    ls_cuda_begin();
    constexpr int STATES = WIDE_STATES / THREADS;
    __shared__ __align__(16) wide_tile<THREADS> tile;
    const ls_scan_args *a = &p.a;
    const ls_span *span = &a->spans[blockIdx.x / p.blocks];
    const int64_t first = (int64_t)(blockIdx.x % p.blocks) * (32 / THREADS), n_tiles = span->n_rows / WIDE_TILE;
    const int lane = (int)(threadIdx.x % 32), slot = lane / THREADS, part = lane % THREADS;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    wide_channel channel;
    channel.active = first + slot < a->dim;
    channel.i = channel.active ? first + slot : a->dim - 1;
    channel.bias = a->dt_bias != NULL ? a->dt_bias[channel.i] : 0.0f;
    channel.d = a->d != NULL ? a->d[channel.i] : 0.0f;
    float *stored = (float *)ls_pool_at(&a->state, span->slot) + channel.i * WIDE_STATES + part * STATES;
    states<STATES> g;
    float biggest = 0.0f;
#pragma unroll
    for (int s = 0; s < STATES; s += 4)
        load_group<4, true>(g.a2 + s, a->a2 + channel.i * WIDE_STATES + part * STATES + s, 4);
#pragma unroll
    for (int s = 0; s < STATES; s++) {
        g.h[s] = 0.0f;
        biggest = ls_max_nan(biggest, fabsf(g.a2[s]));
    }
    if (span->pos > 0)
#pragma unroll
        for (int s = 0; s < STATES; s += 4) load_group<4, true>(g.h + s, stored + s, 4);
    channel.safe = ls_safe_dt<THREADS>(biggest);
    int64_t row = span->row;
    const int64_t last = row + span->n_rows - 1;
    if (n_tiles > 0) {
        wide_places at = wide_places_of<THREADS, IN>(a, row, channel.i);
        wide_inputs<WIDE_TILE / THREADS, IN> in;
#pragma unroll
        for (int k = 0; k < WIDE_TILE / THREADS; k++) in.z[k] = 0;
        wide_load<THREADS, VECTORS, IN>(&in, &at, a->z != NULL);
        for (int64_t i = 1; i <= n_tiles; i++, row += WIDE_TILE) {
            /* The last tile loads itself once more: a load that always happens is one that nothing waits for. */
            const int64_t own = i < n_tiles ? WIDE_TILE / THREADS : 0, tokens = i < n_tiles ? WIDE_TILE : 0;
            at.u += own * at.u_pitch;
            at.dt += own * at.dt_pitch;
            at.z += own * at.z_pitch;
            at.bc += tokens * at.bc_pitch;
            wide_run<THREADS, VECTORS, IN, OUT>(&tile, &in, &g, a, &channel, &at, row);
        }
    }
    if (row <= last) {
        states<STATES> in_memory = g; /* keeps the registers of the loop out of the call */
        wide_tail<THREADS, IN, OUT>(a, &channel, &in_memory, row, last);
        g = in_memory;
    }
    if (channel.active)
#pragma unroll
        for (int s = 0; s < STATES; s += 4) store_group<4, true>(stored + s, g.h + s, 4);
}

#endif
