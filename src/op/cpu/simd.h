/* The few vector operations kernels need, for the instruction set a file is being compiled for. A vector is LS_VF_LANES
 * independent float32 values: each operation is the named rounding of num/round.h lane by lane, so vector width never
 * carries a bit. */
#ifndef LS_OP_CPU_SIMD_H
#define LS_OP_CPU_SIMD_H

#include "num/half.h"
#include "num/round.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define LS_SIMD inline __attribute__((always_inline, unused))

/* Unrolls the constant-bound loop that follows, so that arrays of vectors become registers. */
#if defined(__clang__)
#define LS_UNROLL _Pragma("unroll")
#else
#define LS_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__AVX512F__)

#define LS_VF_LANES 16
typedef __m512 ls_vf;
static LS_SIMD ls_vf ls_vf_zero(void) { return _mm512_setzero_ps(); }
static LS_SIMD ls_vf ls_vf_set1(float x) { return _mm512_set1_ps(x); }
static LS_SIMD ls_vf ls_vf_load(const float *p) { return _mm512_loadu_ps(p); }
static LS_SIMD void ls_vf_store(float *p, ls_vf v) { _mm512_storeu_ps(p, v); }
static LS_SIMD ls_vf ls_vf_fma(ls_vf a, ls_vf b, ls_vf c) { return _mm512_fmadd_ps(a, b, c); }
static LS_SIMD void ls_vf_accumulate(ls_vf *acc, ls_vf a, ls_vf b) { *acc = ls_vf_fma(a, b, *acc); }
static LS_SIMD ls_vf ls_vf_add(ls_vf a, ls_vf b) { return _mm512_add_ps(a, b); }
static LS_SIMD ls_vf ls_vf_canonical(ls_vf v) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), v, _mm512_set1_ps(ls_from_bits(0x7FC00000u)));
}
static LS_SIMD ls_vf ls_vf_load_bf16(const uint16_t *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

#elif defined(__AVX2__)

#define LS_VF_LANES 8
typedef __m256 ls_vf;
static LS_SIMD ls_vf ls_vf_zero(void) { return _mm256_setzero_ps(); }
static LS_SIMD ls_vf ls_vf_set1(float x) { return _mm256_set1_ps(x); }
static LS_SIMD ls_vf ls_vf_load(const float *p) { return _mm256_loadu_ps(p); }
static LS_SIMD void ls_vf_store(float *p, ls_vf v) { _mm256_storeu_ps(p, v); }
static LS_SIMD ls_vf ls_vf_fma(ls_vf a, ls_vf b, ls_vf c) { return _mm256_fmadd_ps(a, b, c); }
/* acc = fma(a, b, acc), the accumulator where it was. With sixteen registers gcc renames accumulators, runs out, and
 * sends a chain through memory at every turn of a loop. */
static LS_SIMD void ls_vf_accumulate(ls_vf *acc, ls_vf a, ls_vf b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*acc) : "x"(a), "x"(b));
}
static LS_SIMD ls_vf ls_vf_add(ls_vf a, ls_vf b) { return _mm256_add_ps(a, b); }
static LS_SIMD ls_vf ls_vf_canonical(ls_vf v) {
    return _mm256_blendv_ps(v, _mm256_set1_ps(ls_from_bits(0x7FC00000u)), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
static LS_SIMD ls_vf ls_vf_load_bf16(const uint16_t *p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

#else

/* Four lanes in plain C; a compiler with vector fma makes one instruction of each loop, elsewhere ls_fma is a call. */
#define LS_VF_LANES 4
typedef struct ls_vf {
    float lane[LS_VF_LANES];
} ls_vf;
static LS_SIMD ls_vf ls_vf_set1(float x) {
    ls_vf v;
    for (int i = 0; i < LS_VF_LANES; i++) v.lane[i] = x;
    return v;
}
static LS_SIMD ls_vf ls_vf_zero(void) { return ls_vf_set1(0.0f); }
static LS_SIMD ls_vf ls_vf_load(const float *p) {
    ls_vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static LS_SIMD void ls_vf_store(float *p, ls_vf v) { memcpy(p, &v, sizeof v); }
static LS_SIMD ls_vf ls_vf_fma(ls_vf a, ls_vf b, ls_vf c) {
    for (int i = 0; i < LS_VF_LANES; i++) c.lane[i] = ls_fma(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}
static LS_SIMD void ls_vf_accumulate(ls_vf *acc, ls_vf a, ls_vf b) { *acc = ls_vf_fma(a, b, *acc); }
static LS_SIMD ls_vf ls_vf_add(ls_vf a, ls_vf b) {
    for (int i = 0; i < LS_VF_LANES; i++) a.lane[i] = ls_add(a.lane[i], b.lane[i]);
    return a;
}
static LS_SIMD ls_vf ls_vf_canonical(ls_vf v) {
    for (int i = 0; i < LS_VF_LANES; i++) v.lane[i] = ls_canonical(v.lane[i]);
    return v;
}
static LS_SIMD ls_vf ls_vf_load_bf16(const uint16_t *p) {
    ls_vf v;
    for (int i = 0; i < LS_VF_LANES; i++) v.lane[i] = ls_bf16_to_f32(p[i]);
    return v;
}

#endif

#endif
