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
    /* A row takes the keys [first, keys); there is no such row where keys is 0. */
    int64_t first[ROWS], keys[ROWS];
    float m[ROWS], l[ROWS]; /* of the segment */
    float total_m[ROWS], total_l[ROWS];
    float correction[ROWS], from_total[ROWS], from_segment[ROWS];
};

/* Keys of the block that begins at position `first` that come before position `end`: a row takes those before its last
 * one's end that do not come before its first one. */
static __device__ __forceinline__ int ls_keys_before(int64_t end, int64_t first) {
    return end <= first ? 0 : end - first < LS_ATTENTION_BLOCK ? (int)(end - first) : LS_ATTENTION_BLOCK;
}

template <int ROWS>
static __device__ __forceinline__ void ls_softmax_row(ls_softmax<ROWS> *s, int row, int64_t first, int64_t keys) {
    s->first[row] = first;
    s->keys[row] = keys;
    s->m[row] = -INFINITY;
    s->l[row] = 0.0f;
}

/* x[0] = the sum of the first N, each step adding the upper half to the lower one. */
template <int N, int HELD>
static __device__ __forceinline__ void ls_add_halves(float (&x)[HELD]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) x[i] = ls_add(x[i], x[i + N / 2]);
    if constexpr (N > 2) ls_add_halves<N / 2>(x);
}

/* Chains become e, and m, l and the correction of each row follow. PARTS neighbours in a warp share a row: part h takes
 * keys h, h + PARTS, ..., adds those that are 32, 16, .. apart, and the last steps of the contract's tree are between
 * parts. A row that takes none of the keys keeps all it has: times 1 is exact. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void ls_softmax_take(ls_softmax<ROWS> *s, float scale, int64_t first) {
    constexpr int PARTS = THREADS / ROWS, HELD = LS_ATTENTION_BLOCK / PARTS, DOWN = LS_WARP / PARTS;
    static_assert(PARTS >= 2 && PARTS <= LS_WARP && PARTS * ROWS == THREADS, "a warp has whole rows");
    const int lane = threadIdx.x % LS_WARP, row = threadIdx.x / LS_WARP * DOWN + lane % DOWN, part = lane / DOWN;
    const int low = ls_keys_before(s->first[row], first), n = ls_keys_before(s->keys[row], first);
    const float before = s->m[row];
    float x[HELD], m = before;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const float scaled = ls_mul(s->e[part + i * PARTS][row], scale);
        x[i] = part + i * PARTS >= low && part + i * PARTS < n ? scaled : -INFINITY;
        m = fmaxf(m, x[i]);
    }
    for (int half = PARTS / 2; half > 0; half /= 2) m = fmaxf(m, __shfl_xor_sync(LS_ALL_LANES, m, half * DOWN));
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const float e = ls_exp(ls_sub(x[i], m));
        x[i] = part + i * PARTS >= low && part + i * PARTS < n ? e : 0.0f;
        s->e[part + i * PARTS][row] = x[i];
    }
    ls_add_halves<HELD>(x);
    for (int half = PARTS / 2; half > 0; half /= 2)
        x[0] = ls_add(x[0], __shfl_xor_sync(LS_ALL_LANES, x[0], half * DOWN));
    __syncwarp(); /* all parts have read m */
    if (part != 0) return;
    const float correction = ls_exp(ls_sub(before, m));
    s->correction[row] = n > low ? correction : 1.0f;
    if (n > low) s->l[row] = ls_fma(s->l[row], correction, x[0]);
    if (n > low) s->m[row] = m;
}

/* The segment that began at `start` joins the total of a row; the next one starts afresh. A row's first segment is the
 * total: those before it, of which it takes no key, leave nothing. */
template <int ROWS>
static __device__ __forceinline__ void ls_softmax_join(ls_softmax<ROWS> *s, int row, int64_t start) {
    if (s->first[row] >= start) {
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
    if (s->first[row] >= start) return acc;
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
