/* Seeded data for tests, the same on every machine: xorshift64*. */
#ifndef LS_TESTS_RANDOM_H
#define LS_TESTS_RANDOM_H

#include <stdint.h>

static inline uint64_t test_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 2685821657736338717ull;
}

static inline float test_uniform(uint64_t *state, float low, float high) {
    return low + (high - low) * ((float)(test_random(state) >> 40) / 16777216.0f);
}

#endif
