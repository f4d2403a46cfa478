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
    ls_held held;
    int64_t blocks, group_heads; /* blocks: of heads */
    bool vectors;                /* eight neighbouring elements of every input are one load */
    bool fours;                  /* four of out are one store */
    const ls_fault *fault;
} ssd_params;

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

#endif
