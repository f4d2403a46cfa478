/* What the scan's kernels share: groups of states in registers, the step in time, sums over a channel's four threads.
 */
#ifndef LS_OP_CUDA_SCAN_CUDA_H
#define LS_OP_CUDA_SCAN_CUDA_H

#include "num/expf.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/gates_cuda.h"
#include "op/scan.h"

/* A warp holds eight channels of four threads. */
#define LS_WARP_CHANNELS 8

/* The four-chain tree: in all four threads of the channel. */
static __device__ __forceinline__ float ls_quad_sum(float p) {
    p = ls_add(p, __shfl_xor_sync(LS_ALL_LANES, p, 1));
    return ls_add(p, __shfl_xor_sync(LS_ALL_LANES, p, 2));
}

/* Four tokens' trees at once: part[j] is this thread's chain of token j; thread g of the channel gets token g's sum. */
static __device__ __forceinline__ float ls_quad_sum4(const float part[4], int group) {
    const bool odd = group & 1, high = group & 2;
    const float near0 = ls_add(odd ? part[1] : part[0], __shfl_xor_sync(LS_ALL_LANES, odd ? part[0] : part[1], 1));
    const float near1 = ls_add(odd ? part[3] : part[2], __shfl_xor_sync(LS_ALL_LANES, odd ? part[2] : part[3], 1));
    return ls_add(high ? near1 : near0, __shfl_xor_sync(LS_ALL_LANES, high ? near0 : near1, 2));
}

/* Largest |dt| for which every dt * a2 of the channel is sure to lie within the range of ls_exp2_product_inside;
 * negative where there is none. biggest: the largest |a2| of this thread's states, NaN where one is NaN; a channel is
 * THREADS neighbouring lanes. */
template <int THREADS>
static __device__ __forceinline__ float ls_safe_dt(float biggest) {
    for (int lanes = 1; lanes < THREADS; lanes *= 2) {
        biggest = ls_max_nan(biggest, __shfl_xor_sync(LS_ALL_LANES, biggest, lanes));
    }
    if (!(biggest < 0x1p100f)) return -1.0f;
    return biggest > 0x1p-20f ? ls_div(125.0f, biggest) : 0x1p20f;
}

/* dt from dt_raw, with bias and softplus where the call has them. */
static __device__ __forceinline__ float ls_dt_of(float raw, const float *bias, int64_t channel, bool activated) {
    if (bias != NULL) raw = ls_add(raw, bias[channel]);
    return activated ? raw : ls_softplus(raw);
}

/* Larger groups have no unrolled walk and no decode kernel. */
#define LS_SCAN_FAST_GROUP 16

typedef struct scan_params {
    ls_scan_args a;
    int64_t blocks;     /* of channels */
    int64_t span_steps; /* decode: spans that a warp takes */
    ls_span_check check;
    bool checks; /* decode makes it itself where spans are few */
    const ls_fault *fault;
} scan_params;

template <int GROUP>
struct states {
    float h[GROUP], a2[GROUP];
};

/* This thread's n states; FULL: all GROUP of them, at addresses that vectors can load. */
template <int GROUP, bool FULL>
static __device__ __forceinline__ void load_group(float *to, const float *from, int n) {
    if constexpr (GROUP == 4 && FULL) {
        const float4 v = *(const float4 *)from;
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
        for (int s = 0; s < GROUP; s++) to[s] = s < n ? from[s] : 0.0f;
    }
}

template <int GROUP, bool FULL>
static __device__ __forceinline__ void store_group(float *to, const float *from, int n) {
    if constexpr (GROUP == 4 && FULL) {
        *(float4 *)to = make_float4(from[0], from[1], from[2], from[3]);
    } else {
#pragma unroll
        for (int s = 0; s < GROUP; s++)
            if (s < n) to[s] = from[s];
    }
}

/* One token: advances the group and returns its chain of the output. INSIDE: every dt * a2 is known to be in range. */
template <int GROUP, bool FULL, bool INSIDE>
static __device__ __forceinline__ float step(states<GROUP> *g, float dt, float v, const float *b, const float *c,
                                             int n) {
    float part = 0.0f;
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        if (!FULL && s >= n) break;
        const float decay = INSIDE ? ls_exp2_product_inside(dt, g->a2[s]) : ls_exp2_product(dt, g->a2[s]);
        g->h[s] = ls_fma(decay, g->h[s], ls_mul(v, b[s]));
        part = ls_fma(g->h[s], c[s], part);
    }
    return part;
}

#endif
