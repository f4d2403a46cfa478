/* Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a counter-based generator.
 * The four words depend on key and counter only, so a draw needs no state and no order. Valid C and CUDA C. */
#ifndef LS_BASE_RNG_H
#define LS_BASE_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define LS_RNG_HD __host__ __device__ __forceinline__
#else
#define LS_RNG_HD inline
#endif

typedef struct ls_philox {
    uint32_t word[4];
} ls_philox;

static LS_RNG_HD ls_philox ls_philox_draw(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    ls_philox x;
    x.word[0] = c0;
    x.word[1] = c1;
    x.word[2] = c2;
    x.word[3] = c3;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * x.word[0], b = (uint64_t)0xCD9E8D57u * x.word[2];
        const uint32_t w1 = x.word[1], w3 = x.word[3];
        x.word[0] = (uint32_t)(b >> 32) ^ w1 ^ k0;
        x.word[1] = (uint32_t)b;
        x.word[2] = (uint32_t)(a >> 32) ^ w3 ^ k1;
        x.word[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

/* The same for n counters c0, c0 + 1, ..: word j of counter c0 + i is word[j * n + i]. Lanes are counters. */
static LS_RNG_HD void ls_philox_lanes(uint32_t *word, int n, uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                      uint32_t c3) {
    uint32_t *const w0 = word, *const w1 = word + n, *const w2 = word + 2 * n, *const w3 = word + 3 * n;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < n; i++) {
        w0[i] = c0 + (uint32_t)i;
        w1[i] = c1;
        w2[i] = c2;
        w3[i] = c3;
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < n; i++) {
            const uint64_t a = (uint64_t)0xD2511F53u * w0[i], b = (uint64_t)0xCD9E8D57u * w2[i];
            w0[i] = (uint32_t)(b >> 32) ^ w1[i] ^ k0;
            w1[i] = (uint32_t)b;
            w2[i] = (uint32_t)(a >> 32) ^ w3[i] ^ k1;
            w3[i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

#endif
