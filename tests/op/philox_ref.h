/* The random numbers of src/base/rng.h, read a second time. */
#ifndef LS_TESTS_PHILOX_REF_H
#define LS_TESTS_PHILOX_REF_H

#include <stdint.h>
#include <string.h>

/* Philox4x32-10 as published: ten rounds of two products, keys bumped by the Weyl constants between rounds. */
static inline void philox_ref(uint32_t word[4], const uint32_t counter[4], uint64_t key) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), x[4];
    memcpy(x, counter, sizeof x);
    for (int round = 1; round <= 10; round++) {
        const uint64_t left = UINT64_C(0xD2511F53) * x[0], right = UINT64_C(0xCD9E8D57) * x[2];
        const uint32_t next[4] = {(uint32_t)(right >> 32) ^ x[1] ^ k0, (uint32_t)right,
                                  (uint32_t)(left >> 32) ^ x[3] ^ k1, (uint32_t)left};
        memcpy(x, next, sizeof x);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(word, x, sizeof x);
}

#endif
