/* Values of attention's tests, and their comparison. */
#ifndef LS_TESTS_ATTENTION_CASE_H
#define LS_TESTS_ATTENTION_CASE_H

#include "num/expf.h"
#include "num/half.h"
#include "sides.h"

typedef float maker(uint64_t *seed);

static inline float plain(uint64_t *seed) { return test_uniform(seed, -1.0f, 1.0f); }
static inline float wide(uint64_t *seed) { return test_uniform(seed, -8.0f, 8.0f); }

/* Mostly plain; zeros of both signs, subnormals, tiny and large values, and products that cancel or overflow. */
static inline float odd(uint64_t *seed) {
    const uint64_t u = test_random(seed);
    const uint32_t sign = (uint32_t)(u >> 63) << 31, bits = (uint32_t)(u >> 32) & 0x007FFFFFu;
    switch (u % 24) {
        case 0: return ls_from_bits(sign);
        case 1: return ls_from_bits(sign | bits);
        case 2: return ls_from_bits(sign | 0x00800000u | bits);
        case 3: return ls_from_bits(sign | 0x1F800000u | bits);
        case 4: return ls_from_bits(sign | 0x47000000u | bits);
        default: return plain(seed);
    }
}

/* The same, and now and then an infinity, a NaN or the largest number. */
static inline float wild(uint64_t *seed) {
    const uint64_t u = test_random(seed);
    const uint32_t sign = (uint32_t)(u >> 63) << 31, bits = (uint32_t)(u >> 32) & 0x007FFFFFu;
    switch (u % 500) {
        case 0: return ls_from_bits(sign | 0x7F800000u);
        case 1: return ls_from_bits(sign | 0x7F800000u | bits | 1u);
        case 2: return ls_from_bits(sign | 0x7F7FFFFFu);
        default: return odd(seed);
    }
}

static inline void put(uint8_t *to, ls_dtype dtype, int64_t i, float x) {
    const uint16_t half = ls_f32_to_bf16(x);
    if (dtype == LS_F32)
        memcpy(to + 4 * i, &x, 4);
    else
        memcpy(to + 2 * i, &half, 2);
}

/* Which NaN a float32 output is stays open. */
static inline void canon(uint8_t *bytes, ls_dtype dtype, int64_t n) {
    for (int64_t i = 0; i < n && dtype == LS_F32; i++) {
        float x;
        memcpy(&x, bytes + 4 * i, 4);
        x = ls_canonical(x);
        memcpy(bytes + 4 * i, &x, 4);
    }
}

#endif
