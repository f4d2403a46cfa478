/* Vectors of eight neighbouring elements of a stored type, as CUDA kernels load, widen and store them. */
#ifndef LS_OP_CUDA_VECTOR_CUDA_H
#define LS_OP_CUDA_VECTOR_CUDA_H

#include <cuda_fp16.h>

#include "dev/cuda.h"
#include "num/half.h"

#define LS_ALL_LANES 0xFFFFFFFFu

/* Eight elements as loaded: one 16-byte word for 16-bit types, two for float32. */
template <int DTYPE>
struct ls_vec8 {
    uint4 word[DTYPE == LS_F32 ? 2 : 1];
};

/* The larger; NaN where either is one. */
static __device__ __forceinline__ float ls_max_nan(float a, float b) {
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

/* An element as stored; widening it is a step of its own, so that a load can be on its way for long.
 * To the compiler the load is a function of the address: only for memory that the kernel does not write. */
template <int DTYPE>
static __device__ __forceinline__ uint32_t ls_load_raw(const void *base, int64_t i) {
    uint32_t raw;
    if (DTYPE == LS_F32) return ((const uint32_t *)base)[i];
    /* The register is as wide as the compiler's own load would make it, but nothing follows to narrow it again. */
    asm("ld.global.u16 %0, [%1];" : "=r"(raw) : "l"((const uint16_t *)base + i));
    return raw;
}

template <int DTYPE>
static __device__ __forceinline__ float ls_widen_raw(uint32_t raw) {
    if (DTYPE == LS_F32) return __uint_as_float(raw);
    return DTYPE == LS_BF16 ? __uint_as_float(raw << 16) : ls_f16_to_f32((uint16_t)raw);
}

template <int DTYPE>
static __device__ __forceinline__ float ls_load_one(const void *base, int64_t i) {
    if (DTYPE == LS_F32) return ((const float *)base)[i];
    return ls_widen_raw<DTYPE>(((const uint16_t *)base)[i]);
}

/* One rounding; the hardware's, with our NaN, is num/half.h bit for bit. */
template <int DTYPE>
static __device__ __forceinline__ uint16_t ls_narrow_one(float x) {
    uint16_t half;
    if (DTYPE == LS_BF16)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
    else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return x == x ? half : DTYPE == LS_BF16 ? 0x7FC0 : 0x7E00;
}

template <int DTYPE>
static __device__ __forceinline__ void ls_store_one(void *base, int64_t i, float x) {
    if (DTYPE == LS_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] = ls_narrow_one<DTYPE>(x);
}

static __device__ __forceinline__ uint32_t ls_word_of(uint4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Element j of the vector, widened. fp16 widens in hardware: exact, and NaN goes to NaN. */
template <int DTYPE>
static __device__ __forceinline__ float ls_vec8_get(const ls_vec8<DTYPE> &v, int j) {
    if (DTYPE == LS_F32) return __uint_as_float(ls_word_of(v.word[j / 4], j % 4));
    const uint32_t pair = ls_word_of(v.word[0], j / 2);
    if (DTYPE == LS_BF16) return __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    return __half2float(__ushort_as_half((unsigned short)(j % 2 == 0 ? pair & 0xFFFFu : pair >> 16)));
}

/* The vector at an address of 16 bytes' alignment; streamed, because next to nothing is read twice. */
template <int DTYPE>
static __device__ __forceinline__ ls_vec8<DTYPE> ls_vec8_load(const void *address) {
    ls_vec8<DTYPE> v;
    for (int w = 0; w < (DTYPE == LS_F32 ? 2 : 1); w++) v.word[w] = __ldcs((const uint4 *)address + w);
    return v;
}

#endif
