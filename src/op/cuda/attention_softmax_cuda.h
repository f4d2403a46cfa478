/* The running softmax of op/attention.h for a tile of rows, in shared memory: forward and backward make it alike.
 *
 * The largest of scores can be found in any order: NaN never is the largest, and which zero is changes no bit of
 * exp(score - m). */
#ifndef LS_OP_CUDA_ATTENTION_SOFTMAX_CUDA_H
#define LS_OP_CUDA_ATTENTION_SOFTMAX_CUDA_H

#include "num/expf.h"
#include "op/attention.h"
#include "op/cuda/vector_cuda.h"

#define LS_WARP 32

template <int ROWS>
struct ls_softmax {
    static constexpr int PITCH = ROWS + 4; /* keeps four rows aligned and columns apart */
    float e[LS_ATTENTION_BLOCK][PITCH];    /* chains over dimensions, then exp(score - m) */
    int64_t keys[ROWS];                    /* that a row takes; 0: there is no such row */
    float m[ROWS], l[ROWS];                /* of the segment */
    float total_m[ROWS], total_l[ROWS];
    float correction[ROWS], from_total[ROWS], from_segment[ROWS];
};

/* Keys of the block that begins at position `first` that a row takes. */
static __device__ __forceinline__ int ls_keys_taken(int64_t keys, int64_t first) {
    return keys <= first ? 0 : keys - first < LS_ATTENTION_BLOCK ? (int)(keys - first) : LS_ATTENTION_BLOCK;
}

template <int ROWS>
static __device__ __forceinline__ void ls_softmax_row(ls_softmax<ROWS> *s, int row, int64_t keys) {
    s->keys[row] = keys;
    s->m[row] = -INFINITY;
    s->l[row] = 0.0f;
}

/* Chains become e, and m, l and the correction of each row follow: a warp a row, a lane keys j and j + 32. A row that
 * takes none of the keys keeps all it has: times 1 is exact. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void ls_softmax_take(ls_softmax<ROWS> *s, float scale, int64_t first) {
    const int lane = threadIdx.x % LS_WARP;
#pragma unroll 2
    for (int row = threadIdx.x / LS_WARP; row < ROWS; row += THREADS / LS_WARP) {
        const int n = ls_keys_taken(s->keys[row], first);
        const float before = s->m[row];
        const float low = lane < n ? ls_mul(s->e[lane][row], scale) : -INFINITY;
        const float high = lane + LS_WARP < n ? ls_mul(s->e[lane + LS_WARP][row], scale) : -INFINITY;
        float m = fmaxf(low, high), e_low, e_high, sum, correction;
        for (int half = LS_WARP / 2; half > 0; half /= 2) m = fmaxf(m, __shfl_xor_sync(LS_ALL_LANES, m, half));
        m = fmaxf(m, before);
        correction = ls_exp(ls_sub(before, m));
        e_low = lane < n ? ls_exp(ls_sub(low, m)) : 0.0f;
        e_high = lane + LS_WARP < n ? ls_exp(ls_sub(high, m)) : 0.0f;
        s->e[lane][row] = e_low;
        s->e[lane + LS_WARP][row] = e_high;
        sum = ls_add(e_low, e_high);
        for (int half = LS_WARP / 2; half > 0; half /= 2) sum = ls_add(sum, __shfl_xor_sync(LS_ALL_LANES, sum, half));
        __syncwarp(); /* all lanes have read m */
        if (lane == 0) {
            s->correction[row] = n > 0 ? correction : 1.0f;
            if (n > 0) s->l[row] = ls_fma(s->l[row], correction, sum);
            if (n > 0) s->m[row] = m;
        }
    }
}

/* The segment that began at `start` joins the total of a row; the next one starts afresh. */
template <int ROWS>
static __device__ __forceinline__ void ls_softmax_join(ls_softmax<ROWS> *s, int row, int64_t start) {
    if (start == 0) {
        s->total_m[row] = s->m[row];
        s->total_l[row] = s->l[row];
    } else if (s->keys[row] > start) {
        const float m = ls_max(s->m[row], s->total_m[row]);
        const float from_total = ls_exp(ls_sub(s->total_m[row], m));
        const float from_segment = ls_exp(ls_sub(s->m[row], m));
        s->total_l[row] = ls_fma(s->total_l[row], from_total, ls_mul(s->l[row], from_segment));
        s->total_m[row] = m;
        s->from_total[row] = from_total;
        s->from_segment[row] = from_segment;
    }
    s->m[row] = -INFINITY;
    s->l[row] = 0.0f;
}

/* What an element of a row comes to when its segment has joined. */
template <int ROWS>
static __device__ __forceinline__ float ls_softmax_joined(const ls_softmax<ROWS> *s, int row, int64_t start,
                                                          float total, float acc) {
    if (start == 0) return acc;
    if (s->keys[row] <= start) return total;
    return ls_fma(total, s->from_total[row], ls_mul(acc, s->from_segment[row]));
}

static __device__ __forceinline__ bool ls_segment_ends(int64_t next, int64_t keys) {
    return next % LS_ATTENTION_SEGMENT == 0 || next >= keys;
}

static __device__ __forceinline__ void ls_load_four(float (&x)[4], const float *from) {
    const float4 v = *(const float4 *)from;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

#endif
