/* Softplus, sigmoid and silu of some values a thread: the cheaper functions where all values of a warp are ordinary. */
#ifndef LS_OP_CUDA_GATES_CUDA_H
#define LS_OP_CUDA_GATES_CUDA_H

#include "num/expf.h"
#include "op/cuda/vector_cuda.h"

/* True where the warp's every x is one that the ordinary functions take. */
template <int N>
static __device__ __forceinline__ bool ls_all_ordinary(const float x[N]) {
    int ordinary = 1;
#pragma unroll
    for (int i = 0; i < N; i++) ordinary &= fabsf(x[i]) <= LS_ORDINARY;
    return __all_sync(LS_ALL_LANES, ordinary);
}

template <int N>
static __device__ __forceinline__ void ls_softplus_all(float x[N]) {
    if (ls_all_ordinary<N>(x)) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = ls_softplus_ordinary(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = ls_softplus(x[i]);
    }
}

template <int N>
static __device__ __forceinline__ void ls_silu_all(float x[N]) {
    if (ls_all_ordinary<N>(x)) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = ls_silu_ordinary(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = ls_silu(x[i]);
    }
}

/* Sigmoid and silu of the same values. */
template <int N>
static __device__ __forceinline__ void ls_gates_all(const float x[N], float sigmoid[N], float silu[N]) {
    if (ls_all_ordinary<N>(x)) {
#pragma unroll
        for (int i = 0; i < N; i++) sigmoid[i] = ls_sigmoid_ordinary(x[i]), silu[i] = ls_silu_ordinary(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) sigmoid[i] = ls_sigmoid(x[i]), silu[i] = ls_silu(x[i]);
    }
}

/* x to softplus(x), beside its slope. */
template <int N>
static __device__ __forceinline__ void ls_softplus_slopes_all(float x[N], float slope[N]) {
    if (ls_all_ordinary<N>(x)) {
#pragma unroll
        for (int i = 0; i < N; i++) slope[i] = ls_sigmoid_ordinary(x[i]), x[i] = ls_softplus_ordinary(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) slope[i] = ls_sigmoid(x[i]), x[i] = ls_softplus(x[i]);
    }
}

#endif
