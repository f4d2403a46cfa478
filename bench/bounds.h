/* What the machine allows, measured beside what is benchmarked: fma peak from a loop that lives in registers, read
 * bandwidth from a stream over memory; and the clock that both share. */
#ifndef LS_BENCH_BOUNDS_H
#define LS_BENCH_BOUNDS_H

#include <stdlib.h>
#include <time.h>

#include "num/round.h"
#include "op/backend.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define STREAM_BYTES (256ll << 20)
#define FMA_STEPS 400000

/* One thread is timed by its own processor time, which other programs on the machine do not lengthen by taking the
 * processor away; several threads by the wall clock. */
static clockid_t clock_used = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Bounds: each returns a value that depends on the work, so that none is removed. */
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float fma_loop_avx2(int64_t steps) {
    __m256 acc[12];
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    float out[8];
    for (int i = 0; i < 12; i++) acc[i] = _mm256_set1_ps((float)i);
    for (int64_t s = 0; s < steps; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
    }
    for (int i = 1; i < 12; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    _mm256_storeu_ps(out, acc[0]);
    return out[0];
}

__attribute__((target("avx512f"))) static float fma_loop_avx512(int64_t steps) {
    __m512 acc[12];
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    float out[16];
    for (int i = 0; i < 12; i++) acc[i] = _mm512_set1_ps((float)i);
    for (int64_t s = 0; s < steps; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
    }
    for (int i = 1; i < 12; i++) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    _mm512_storeu_ps(out, acc[0]);
    return out[0];
}

/* Eight places at once: the processor follows several streams faster than one. */
__attribute__((target("avx2"))) static float stream_avx2(const float *p, int64_t n) {
    __m256 acc[8];
    float out[8];
    const int64_t part = n / 8 / 16 * 16;
    for (int i = 0; i < 8; i++) acc[i] = _mm256_setzero_ps();
    for (int64_t at = 0; at < part; at += 16) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            acc[i] = _mm256_add_ps(acc[i], _mm256_load_ps(p + i * part + at));
            acc[i] = _mm256_add_ps(acc[i], _mm256_load_ps(p + i * part + at + 8));
        }
    }
    for (int i = 1; i < 8; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    _mm256_storeu_ps(out, acc[0]);
    return out[0];
}
#endif

static float fma_loop_plain(int64_t steps) {
    float acc[16];
    for (int i = 0; i < 16; i++) acc[i] = (float)i;
    for (int64_t s = 0; s < steps; s++)
        for (int i = 0; i < 16; i++) acc[i] = ls_fma(acc[i], 0.999f, 0.001f);
    for (int i = 1; i < 16; i++) acc[0] += acc[i];
    return acc[0];
}

static float stream_plain(const float *p, int64_t n) {
    float acc[16] = {0};
    for (int64_t at = 0; at < n; at += 16)
        for (int i = 0; i < 16; i++) acc[i] += p[at + i];
    for (int i = 1; i < 16; i++) acc[0] += acc[i];
    return acc[0];
}

typedef struct bounds_job {
    ls_isa isa;
    const float *stream;
    float sink[LS_THREADS_MAX];
} bounds_job;

static void fma_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    bounds_job *j = context;
    (void)begin;
    (void)end;
#if defined(__x86_64__)
    if (j->isa == LS_ISA_AVX512) {
        j->sink[thread_i] = fma_loop_avx512(FMA_STEPS);
        return;
    }
    if (j->isa == LS_ISA_AVX2) {
        j->sink[thread_i] = fma_loop_avx2(FMA_STEPS);
        return;
    }
#endif
    j->sink[thread_i] = fma_loop_plain(FMA_STEPS / 10);
}

static double fma_flops(ls_isa isa, int32_t threads) {
    const double lanes = isa == LS_ISA_AVX512 ? 12 * 16 : isa == LS_ISA_AVX2 ? 12 * 8 : 1.6;
    return 2.0 * lanes * FMA_STEPS * threads;
}

static inline void stream_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    bounds_job *j = context;
#if defined(__x86_64__)
    if (j->isa != LS_ISA_GENERIC) {
        j->sink[thread_i] = stream_avx2(j->stream + begin, end - begin);
        return;
    }
#endif
    j->sink[thread_i] = stream_plain(j->stream + begin, end - begin);
}

#endif
