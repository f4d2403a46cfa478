/* The 256-chain sums of num/sum.h by the first 64 threads of a block: thread t owns the chains 4 t .. 4 t + 3, so that
 * its part of every 256 elements is one four. */
#ifndef LS_OP_CUDA_CHAINS_CUDA_H
#define LS_OP_CUDA_CHAINS_CUDA_H

#include "num/round.h"
#include "op/cuda/elements_cuda.h"

#define LS_CHAIN_THREADS 64
#define LS_CHAIN_RUNS 32
#define LS_CHAIN_STEP 256 /* elements from one four of a thread to its next */

/* The sum, in all threads. A thread and its neighbour fold a run of 8 chains: j += j + 4 by an exchange, then j + 2 and
 * j + 1; runs fold by halves, the first half over shared memory, since runs 0 .. 15 are one warp's and 16 .. 31 the
 * other's. Both sides of an exchange add the same two values, so all lanes hold the same bits.
 * runs: shared memory that no thread of the block still reads. All threads of the block call this; the chains of those
 * behind the first 64 mean nothing. */
static __device__ __forceinline__ float ls_chain_fold(const float chain[4], float runs[LS_CHAIN_RUNS]) {
    const int thread = (int)threadIdx.x, run = thread % 32 / 2;
    float c[4], x;
    for (int j = 0; j < 4; j++) c[j] = ls_add(chain[j], __shfl_xor_sync(LS_ALL_LANES, chain[j], 1));
    x = ls_add(ls_add(c[0], c[2]), ls_add(c[1], c[3]));
    if (thread % 2 == 0 && thread < LS_CHAIN_THREADS) runs[thread / 2] = x;
    __syncthreads();
    x = ls_add(runs[run], runs[run + LS_CHAIN_RUNS / 2]);
    for (int lanes = 16; lanes > 1; lanes /= 2) x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, lanes));
    return x;
}

/* chain = fma(a, b, chain) for the first n of four: what is not there must not touch a chain, which may be -0. */
static __device__ __forceinline__ void ls_chain_add(float chain[4], const float a[4], const float b[4], int64_t n) {
    for (int j = 0; j < 4; j++)
        if (j < n) chain[j] = ls_fma(a[j], b[j], chain[j]);
}

/* ---- rows of at most 256 elements: no chain has more than one, and a lane has a run of eight ---- */

#define LS_RUN_ROW 256

/* A run's chains: j += j + 4, then j + 2 and j + 1. */
static __device__ __forceinline__ float ls_run_fold(const float c[8]) {
    const float even = ls_add(ls_add(c[0], c[4]), ls_add(c[2], c[6]));
    return ls_add(even, ls_add(ls_add(c[1], c[5]), ls_add(c[3], c[7])));
}

/* The sum over a[j] * b[j] of the runs of LANES neighbouring lanes, in all of them: 32, or 16, where the other runs of
 * the row would be +0. n: elements of the lane's run that exist; the others may be anything. All lanes call it. */
template <int LANES>
static __device__ __forceinline__ float ls_runs_sum(const float a[8], const float b[8], int64_t n) {
    float c[8];
#pragma unroll
    for (int j = 0; j < 8; j++) c[j] = j < n ? ls_fma(a[j], b[j], 0.0f) : 0.0f;
    float sum = ls_run_fold(c);
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) sum = ls_add(sum, __shfl_xor_sync(LS_ALL_LANES, sum, half));
    return sum;
}

/* A run of which n elements exist, from element i on; what does not is +0. whole: fours that exist can be one load. */
template <int DTYPE>
static __device__ __forceinline__ void ls_run_load(const void *base, int64_t i, int64_t n, bool whole, float x[8]) {
#pragma unroll
    for (int j = 0; j < 8; j += 4)
        if (j < n)
            ls_four_load<DTYPE>(base, i + j, n - j, whole, x + j);
        else
            x[j] = x[j + 1] = x[j + 2] = x[j + 3] = 0.0f;
}
template <int DTYPE>
static __device__ __forceinline__ void ls_run_store(void *base, int64_t i, int64_t n, bool whole, const float x[8]) {
#pragma unroll
    for (int j = 0; j < 8; j += 4)
        if (j < n) ls_four_store<DTYPE>(base, i + j, n - j, whole, x + j);
}

#endif
