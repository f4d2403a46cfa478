/* What the kernels of attention of the profile mma16 share: operands in shared memory as wgmma reads them, and pieces
 * of 16 bytes that threads copy there. Compiled for sm_90a. */
#ifndef LS_OP_CUDA_ATTENTION_MMA16_CUDA_H
#define LS_OP_CUDA_ATTENTION_MMA16_CUDA_H

#include "num/expf.h"
#include "num/half.h"
#include "op/attention.h"
#include "op/cuda/vector_cuda.h"
#include "op/cuda/wide_cuda.h"

#define BLOCK LS_ATTENTION_BLOCK_MMA16
#define WARPGROUP 128

/* Where eight neighbouring elements of a row of an operand lie: 64 of a row side by side, swizzled, behind all rows of
 * the 64 before. unit: which eight of the row. */
template <int ROWS>
static __device__ __forceinline__ uint32_t place8(int row, int unit) {
    return (uint32_t)(unit / 8 * (ROWS * 128) + row * 128 + ((unit % 8 ^ (row & 7)) << 4));
}
/* The same for one element. */
template <int ROWS>
static __device__ __forceinline__ uint32_t place1(int row, int at) {
    return place8<ROWS>(row, at / 8) + (uint32_t)(at % 8 * 2);
}

/* 16 bytes of shared memory from `from`, or +0: nothing is read then. */
static __device__ __forceinline__ void copy8(uint32_t to, const uint16_t *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void put1(uint32_t to, uint16_t x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}
static __device__ __forceinline__ void put16(uint32_t to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
static __device__ __forceinline__ void copies_done(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* All threads of a warpgroup, by one of the barriers 1 .. 15. */
static __device__ __forceinline__ void warpgroup_sync(int number) {
    asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

/* NaN where one is. */
static __device__ __forceinline__ float larger(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

/* Two neighbours as wgmma takes them. */
static __device__ __forceinline__ uint32_t pair_of(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Number t of the steps of 16 columns of accumulators, rounded, as the left factor of a product over these columns. */
template <int N>
static __device__ __forceinline__ void left_of(uint32_t (&a)[4], const float (&d)[N], int t) {
    a[0] = pair_of(d[8 * t], d[8 * t + 1]);
    a[1] = pair_of(d[8 * t + 2], d[8 * t + 3]);
    a[2] = pair_of(d[8 * t + 4], d[8 * t + 5]);
    a[3] = pair_of(d[8 * t + 6], d[8 * t + 7]);
}

/* Positions of a block from `first` on that come before `end`. */
static __device__ __forceinline__ int within_block(int64_t end, int64_t first) {
    return end <= first ? 0 : end - first < BLOCK ? (int)(end - first) : BLOCK;
}

#endif
