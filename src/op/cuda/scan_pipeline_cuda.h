/* Prefill of few channels: a pipeline of tiles between two kinds of warps.
 *
 * Five walkers own eight channels each, four threads a channel, and do nothing but step through time. Three helpers
 * prepare the next tile of 12 tokens meanwhile: softplus, gate, B and C widened. With 16 states a walker and a helper
 * take about as long, so the two walkers that share a scheduler and the three pairs of a walker and a helper come out
 * even; a GPU of 132 multiprocessors then holds 5,280 channels of one sequence at once. Takes any number of states. */
#ifndef LS_OP_CUDA_SCAN_PIPELINE_CUDA_H
#define LS_OP_CUDA_SCAN_PIPELINE_CUDA_H

#include "op/cuda/scan_cuda.h"

#define WALKERS 5
#define HELPERS 3
#define TILE (4 * HELPERS)
#define CHANNELS (WALKERS * LS_WARP_CHANNELS)
#define CHANNEL_PITCH 44 /* keeps four tokens' rows in different banks */

template <int GROUP>
struct tile {
    float bc[TILE][2][4 * GROUP];       /* B and C */
    float2 dtv[TILE][CHANNEL_PITCH];    /* dt and v */
    float2 gate_u[TILE][CHANNEL_PITCH]; /* silu(z) and u */
};

template <int GROUP>
struct tiles {
    tile<GROUP> buffer[2];
    float safe[CHANNELS];
    int64_t unsafe[2]; /* number, from 1, of the last tile in this buffer that holds a dt beyond safe */
};

/* Walkers and helpers meet from different places of the program, which __syncthreads() is not for. */
static __device__ __forceinline__ void sync_roles(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * (WALKERS + HELPERS)) : "memory");
}

/* A helper's lane takes one token and channels `channel`, + 8, + 16, ... of every tile. */
typedef struct helper_place {
    int thread, token, channel; /* thread: among the helpers */
    int64_t first, elem;        /* first: channel of the block */
    bool whole;                 /* no channel of the block is beyond dim */
} helper_place;

/* A lane's inputs of a tile, as stored. */
template <int IN>
struct raw_tile {
    uint32_t u[WALKERS], dt[WALKERS], z[WALKERS];
    ls_vec8<IN> bc; /* where vectors can load B and C of 16 states: a quarter of a token's */
};

/* A row of the block's channels, five elements of it; `row` exists, and what does not exist of it is replaced by its
 * first element: a load that always happens is one that nothing waits for. */
template <int IN>
static __device__ __forceinline__ void load_row(uint32_t raw[WALKERS], const void *base, int64_t row, int64_t stride,
                                                const helper_place *at, int64_t dim) {
    const char *from = (const char *)base + (row * stride + at->first) * at->elem;
    if (at->whole) {
        from += at->channel * (IN == LS_F32 ? 4 : 2);
#pragma unroll
        for (int j = 0; j < WALKERS; j++) raw[j] = ls_load_raw<IN>(from, LS_WARP_CHANNELS * j);
        return;
    }
#pragma unroll
    for (int j = 0; j < WALKERS; j++) {
        const int channel = at->channel + LS_WARP_CHANNELS * j;
        raw[j] = ls_load_raw<IN>(from, at->first + channel < dim ? channel : 0);
    }
}

/* The lane's inputs of the tile that starts at `row` and has n > 0 tokens. */
template <int IN, bool VECTORS>
static __device__ __forceinline__ void load_tile(raw_tile<IN> *raw, const ls_scan_args *a, const helper_place *at,
                                                 int64_t row, int n) {
    const int64_t mine = row + (at->token < n ? at->token : 0);
    load_row<IN>(raw->u, a->u, mine, a->u_stride, at, a->dim);
    load_row<IN>(raw->dt, a->dt_raw, mine, a->dt_stride, at, a->dim);
    if (a->z != NULL) load_row<IN>(raw->z, a->z, mine, a->z_stride, at, a->dim);
    if (!VECTORS || at->thread >= 4 * TILE) return;
    /* Half thread % 2 of B or C of token thread / 4. */
    const int64_t token = row + (at->thread / 4 < n ? at->thread / 4 : 0);
    const char *from = at->thread / 2 % 2 == 0 ? (const char *)a->b + token * a->b_stride * at->elem
                                               : (const char *)a->cc + token * a->c_stride * at->elem;
#pragma unroll
    for (int w = 0; w < (IN == LS_F32 ? 2 : 1); w++)
        raw->bc.word[w] = __ldg((const uint4 *)(from + at->thread % 2 * 8 * at->elem) + w);
}

template <int GROUP, int IN, bool VECTORS>
static __device__ __forceinline__ void store_bc(tile<GROUP> *t, const raw_tile<IN> *raw, const ls_scan_args *a,
                                                const helper_place *at, int64_t row, int n) {
    if constexpr (VECTORS) {
        if (at->thread >= 4 * TILE) return;
        float4 *to = (float4 *)(t->bc[at->thread / 4][at->thread / 2 % 2] + at->thread % 2 * 8);
        to[0] = make_float4(ls_vec8_get<IN>(raw->bc, 0), ls_vec8_get<IN>(raw->bc, 1), ls_vec8_get<IN>(raw->bc, 2),
                            ls_vec8_get<IN>(raw->bc, 3));
        to[1] = make_float4(ls_vec8_get<IN>(raw->bc, 4), ls_vec8_get<IN>(raw->bc, 5), ls_vec8_get<IN>(raw->bc, 6),
                            ls_vec8_get<IN>(raw->bc, 7));
    } else {
        const int states = (int)a->n_states;
        for (int i = at->thread; i < n * states; i += 32 * HELPERS) {
            const int token = i / states, s = i % states;
            t->bc[token][0][s] = ls_load_one<IN>(a->b, (row + token) * a->b_stride + s);
            t->bc[token][1][s] = ls_load_one<IN>(a->cc, (row + token) * a->c_stride + s);
        }
    }
}

/* Prepares tile number `number`, which starts at `row` and has n tokens, and sends for the one after it, which has
 * n_next. Choices stand outside the loops over channels, so that the channels' long chains run side by side. */
template <int GROUP, int IN, bool VECTORS>
static __device__ __forceinline__ void prepare_tile(tiles<GROUP> *all, raw_tile<IN> *raw, const ls_scan_args *a,
                                                    const helper_place *at, const float *bias, const float *safe,
                                                    int64_t number, int64_t row, int n, int n_next) {
    tile<GROUP> *t = &all->buffer[number % 2];
    float dt[WALKERS], u[WALKERS], gate[WALKERS];
    int inside = 1;
    store_bc<GROUP, IN, VECTORS>(t, raw, a, at, row, n);
#pragma unroll
    for (int j = 0; j < WALKERS; j++) {
        dt[j] = ls_widen_raw<IN>(raw->dt[j]);
        u[j] = ls_widen_raw<IN>(raw->u[j]);
        gate[j] = ls_widen_raw<IN>(raw->z[j]);
    }
    if (n_next > 0) load_tile<IN, VECTORS>(raw, a, at, row + TILE, n_next);
    if (a->dt_bias != NULL)
#pragma unroll
        for (int j = 0; j < WALKERS; j++) dt[j] = ls_add(dt[j], bias[j]);
    if (!a->dt_activated) ls_softplus_all<WALKERS>(dt);
    if (a->z != NULL) ls_silu_all<WALKERS>(gate);
#pragma unroll
    for (int j = 0; j < WALKERS; j++) {
        const int channel = at->channel + LS_WARP_CHANNELS * j;
        inside &= fabsf(dt[j]) <= safe[j];
        t->dtv[at->token][channel] = make_float2(dt[j], ls_mul(dt[j], u[j]));
        t->gate_u[at->token][channel] = make_float2(gate[j], u[j]);
    }
    if (!__all_sync(LS_ALL_LANES, inside) && at->thread % 32 == 0) all->unsafe[number % 2] = number + 1;
}

/* A walker's thread: one group of states of one channel. */
typedef struct walker_place {
    int group, slot, base, n; /* slot: channel within the block */
    bool active;              /* the channel exists */
    float d;
} walker_place;

template <int OUT>
static __device__ __forceinline__ void finish(const ls_scan_args *a, const walker_place *at, float2 gate_u, float y,
                                              char *out) {
    if (a->d != NULL) y = ls_fma(at->d, gate_u.y, y);
    if (a->z != NULL) y = ls_mul(y, gate_u.x);
    if (at->active) ls_store_one<OUT>(out, 0, y);
}

/* out: this thread's place in the row of the tile's first token. */
template <int GROUP, bool FULL, int OUT>
static __device__ __forceinline__ void walk_tile(const tile<GROUP> *t, states<GROUP> *g, const ls_scan_args *a,
                                                 const walker_place *at, char *out, int n_tokens, bool inside) {
    const int64_t pitch = a->out_stride * (OUT == LS_F32 ? 4 : 2);
    int token = 0;
    if constexpr (GROUP <= LS_SCAN_FAST_GROUP) {
        char *mine = out + at->group * pitch;
#pragma unroll 1
        for (; inside && token + 4 <= n_tokens; token += 4, mine += 4 * pitch) {
            float part[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 dtv = t->dtv[token + j][at->slot];
                part[j] = step<GROUP, FULL, true>(g, dtv.x, dtv.y, t->bc[token + j][0] + at->base,
                                                  t->bc[token + j][1] + at->base, at->n);
            }
            finish<OUT>(a, at, t->gate_u[token + at->group][at->slot], ls_quad_sum4(part, at->group), mine);
        }
    }
    for (; token < n_tokens; token++) {
        const float2 dtv = t->dtv[token][at->slot];
        const float y = ls_quad_sum(
            step<GROUP, FULL, false>(g, dtv.x, dtv.y, t->bc[token][0] + at->base, t->bc[token][1] + at->base, at->n));
        if (token % 4 == at->group) finish<OUT>(a, at, t->gate_u[token][at->slot], y, out + token * pitch);
    }
}

static __device__ __forceinline__ int tile_tokens(int64_t left) {
    return left < 0 ? 0 : left < TILE ? (int)left : TILE;
}

template <int GROUP, int IN, bool VECTORS>
static __device__ __forceinline__ void help(tiles<GROUP> *all, const ls_scan_args *a, int64_t row, int64_t n_rows,
                                            int64_t first) {
    const int thread = (int)threadIdx.x - 32 * WALKERS;
    const helper_place at = {.thread = thread,
                             .token = thread / LS_WARP_CHANNELS,
                             .channel = thread % LS_WARP_CHANNELS,
                             .first = first,
                             .elem = IN == LS_F32 ? 4 : 2,
                             .whole = first + CHANNELS <= a->dim};
    const int64_t n_tiles = (n_rows + TILE - 1) / TILE;
    raw_tile<IN> raw;
    float bias[WALKERS], safe[WALKERS];
    load_tile<IN, VECTORS>(&raw, a, &at, row, tile_tokens(n_rows));
#pragma unroll
    for (int j = 0; j < WALKERS; j++) {
        const int64_t channel = first + at.channel + LS_WARP_CHANNELS * j;
        bias[j] = a->dt_bias != NULL ? a->dt_bias[channel < a->dim ? channel : a->dim - 1] : 0.0f;
        if (a->z == NULL) raw.z[j] = 0;
    }
    sync_roles();
#pragma unroll
    for (int j = 0; j < WALKERS; j++) safe[j] = all->safe[at.channel + LS_WARP_CHANNELS * j];
    for (int64_t i = 0; i < n_tiles; i++) {
        const int64_t left = n_rows - i * TILE;
        prepare_tile<GROUP, IN, VECTORS>(all, &raw, a, &at, bias, safe, i, row + i * TILE, tile_tokens(left),
                                         tile_tokens(left - TILE));
        sync_roles();
    }
}

template <int GROUP, bool FULL, int OUT>
static __device__ __forceinline__ void walk(tiles<GROUP> *all, const ls_scan_args *a, const ls_span *span,
                                            int64_t n_rows, int64_t first) {
    const int lane = (int)(threadIdx.x % 32), per = (int)((a->n_states + 3) / 4);
    const int64_t n_tiles = (n_rows + TILE - 1) / TILE;
    walker_place at;
    states<GROUP> g;
    float biggest = 0.0f;
    at.group = lane % 4;
    at.slot = (int)(threadIdx.x / 32) * LS_WARP_CHANNELS + lane / 4;
    at.base = FULL ? at.group * GROUP : at.group * per;
    at.n = FULL ? GROUP : (int)a->n_states - at.base < per ? (int)a->n_states - at.base : per;
    if (at.n < 0) at.n = 0;
    at.active = first + at.slot < a->dim;
    const int64_t channel = at.active ? first + at.slot : a->dim - 1;
    at.d = a->d != NULL ? a->d[channel] : 0.0f;
    float *stored = (float *)ls_pool_at(&a->state, span->slot) + channel * a->n_states + at.base;
    load_group<GROUP, FULL>(g.a2, a->a2 + channel * a->n_states + at.base, at.n);
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        g.h[s] = 0.0f;
        biggest = ls_max_nan(biggest, fabsf(g.a2[s]));
    }
    if (span->pos > 0) load_group<GROUP, FULL>(g.h, stored, at.n);
    const float safe = ls_safe_dt<4>(biggest);
    if (at.group == 0) all->safe[at.slot] = safe;
    if (threadIdx.x < 2) all->unsafe[threadIdx.x] = 0;
    char *out = (char *)a->out + (span->row * a->out_stride + channel) * (OUT == LS_F32 ? 4 : 2);
    sync_roles();
    for (int64_t i = 0; i < n_tiles; i++) {
        sync_roles();
        walk_tile<GROUP, FULL, OUT>(&all->buffer[i % 2], &g, a, &at, out, tile_tokens(n_rows - i * TILE),
                                    all->unsafe[i % 2] != i + 1);
        out += TILE * a->out_stride * (OUT == LS_F32 ? 4 : 2);
    }
    if (at.active) store_group<GROUP, FULL>(stored, g.h, at.n);
}

template <int GROUP, bool FULL, bool VECTORS, int IN, int OUT>
static __global__ void __launch_bounds__(32 * (WALKERS + HELPERS), 1)
    pipeline_kernel(const __grid_constant__ scan_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) char shared[];
    tiles<GROUP> *all = (tiles<GROUP> *)shared;
    const ls_span *span = &p.a.spans[blockIdx.x / p.blocks];
    const int64_t first = (int64_t)(blockIdx.x % p.blocks) * CHANNELS;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    if (threadIdx.x / 32 < WALKERS)
        walk<GROUP, FULL, OUT>(all, &p.a, span, span->n_rows, first);
    else
        help<GROUP, IN, VECTORS>(all, &p.a, span->row, span->n_rows, first);
}

#endif
