/* What the kernels of ssd and of its gradient share. */
#ifndef LS_OP_CUDA_SSD_CUDA_H
#define LS_OP_CUDA_SSD_CUDA_H

#include "num/expf.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/elements_cuda.h"
#include "op/ssd.h"
#include "op/ssd_math.h"

/* The states that kernels for models know at compile time: 16 of each of the eight slices. */
#define LS_SSD_STATES 128
#define LS_SSD_OWN (LS_SSD_STATES / LS_SSD_SLICES)

typedef struct ssd_params {
    ls_ssd_args a;
    int64_t blocks, group_heads; /* blocks: of heads */
    bool vectors;                /* eight neighbouring elements of every input are one load */
    bool fours;                  /* four of out are one store */
    const ls_fault *fault;
} ssd_params;

/* Whether eight neighbouring elements of a matrix are one load, or two. */
static inline bool ls_ssd_vectors(const void *rows, int64_t stride, int64_t elem) {
    return (uintptr_t)rows % 16 == 0 && stride * elem % 16 == 0;
}

/* On a device of sm_90: prefill of heads that models have; `taken` is whether these are. */
ls_status ls_ssd_walk(const ls_exec *exec, ssd_params *p, bool *taken, ls_error *err);

/* dt of a row and head. */
template <int IN>
static __device__ __forceinline__ float ls_ssd_dt(const void *dt_raw, int64_t at, float bias, float low, float high) {
    return ls_ssd_clamp(ls_softplus(ls_add(ls_load_one<IN>(dt_raw, at), bias)), low, high);
}

/* Slices by neighbours. */
static __device__ __forceinline__ float ls_ssd_join(const float s[LS_SSD_SLICES]) {
    return ls_add(ls_add(ls_add(s[0], s[1]), ls_add(s[2], s[3])), ls_add(ls_add(s[4], s[5]), ls_add(s[6], s[7])));
}

/* The eight-slice fold over n of a[n * a_step] * b[n * b_step]. */
static __device__ __forceinline__ float ls_ssd_fold_states(const float *a, int64_t a_step, const float *b,
                                                           int64_t b_step, int64_t states) {
    float slice[LS_SSD_SLICES];
#pragma unroll
    for (int s = 0; s < LS_SSD_SLICES; s++) slice[s] = 0.0f;
    for (int64_t base = 0; base < states; base += 4 * LS_SSD_SLICES)
#pragma unroll
        for (int s = 0; s < LS_SSD_SLICES; s++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int64_t n = base + 4 * s + k;
                if (n < states) slice[s] = ls_fma(a[n * a_step], b[n * b_step], slice[s]);
            }
    return ls_ssd_join(slice);
}

/* Eight neighbouring elements, by one load or by eight. */
template <int IN>
static __device__ __forceinline__ ls_vec8<IN> ls_ssd_load8(const void *base, int64_t i, bool vectors) {
    ls_vec8<IN> v;
    if (vectors) {
        const uint4 *from = (const uint4 *)((const char *)base + i * (IN == LS_F32 ? 4 : 2));
#pragma unroll
        for (int w = 0; w < (IN == LS_F32 ? 2 : 1); w++) v.word[w] = __ldg(from + w);
        return v;
    }
    uint32_t raw[8];
#pragma unroll
    for (int j = 0; j < 8; j++) raw[j] = ls_load_raw<IN>(base, i + j);
    if constexpr (IN == LS_F32) {
        v.word[0] = make_uint4(raw[0], raw[1], raw[2], raw[3]);
        v.word[1] = make_uint4(raw[4], raw[5], raw[6], raw[7]);
    } else {
        v.word[0] =
            make_uint4(raw[0] | raw[1] << 16, raw[2] | raw[3] << 16, raw[4] | raw[5] << 16, raw[6] | raw[7] << 16);
    }
    return v;
}

template <int IN>
static __device__ __forceinline__ void ls_ssd_widen8(float *to, const ls_vec8<IN> &v) {
    ((float4 *)to)[0] =
        make_float4(ls_vec8_get<IN>(v, 0), ls_vec8_get<IN>(v, 1), ls_vec8_get<IN>(v, 2), ls_vec8_get<IN>(v, 3));
    ((float4 *)to)[1] =
        make_float4(ls_vec8_get<IN>(v, 4), ls_vec8_get<IN>(v, 5), ls_vec8_get<IN>(v, 6), ls_vec8_get<IN>(v, 7));
}

#endif
