/* Named roundings: every arithmetic step that carries bits is one of these, for gcc, clang and nvcc alike.
 * All are IEEE binary32, round to nearest even, subnormals kept. Fusion happens only where ls_fma is written. */
#ifndef LS_NUM_ROUND_H
#define LS_NUM_ROUND_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define LS_HD __host__ __device__ __forceinline__
#else
#define LS_HD inline __attribute__((always_inline, unused))
#endif

static LS_HD uint32_t ls_bits(float x) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
#endif
}

static LS_HD float ls_from_bits(uint32_t u) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(u);
#else
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
#endif
}

/* Code for processors that may lack the instruction asks before each use whether it is there, which takes a fifth of
 * the time of the call of libm that would ask otherwise. */
#if defined(__x86_64__) && !defined(__FMA__) && !defined(__CUDACC__)
#define LS_FMA_IF_THERE 1
#endif

static LS_HD float ls_fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
#ifdef LS_FMA_IF_THERE
    if (__builtin_cpu_supports("fma")) {
        __asm__("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
        return c;
    }
#endif
    return __builtin_fmaf(a, b, c);
#endif
}

static LS_HD float ls_add(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

static LS_HD float ls_sub(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fsub_rn(a, b);
#else
    return a - b;
#endif
}

static LS_HD float ls_mul(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

static LS_HD float ls_div(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

static LS_HD float ls_sqrt(float a) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(a);
#else
    return __builtin_sqrtf(a);
#endif
}

/* Any NaN as the one canonical quiet NaN: which payload survives an operation is the processor's choice. */
static LS_HD float ls_canonical(float x) { return x == x ? x : ls_from_bits(0x7FC00000u); }

/* The larger of a and b; b when either is NaN. One machine instruction on every side when written like this. */
static LS_HD float ls_max(float a, float b) { return a > b ? a : b; }
static LS_HD float ls_min(float a, float b) { return a < b ? a : b; }

#endif
