/* Hashes (FNV-1a, 64 bits) of the outputs of fixed problems, by golden_bits of check_logprob_parts.c: recorded from the
 * CPU's generic instruction set on one thread, the same on every back end. They change only together with NUMERICS.md
 * and its version; a failing golden_bits prints the new ones. */
#ifndef LS_TESTS_GOLDEN_LOGPROB_H
#define LS_TESTS_GOLDEN_LOGPROB_H

#include <stdint.h>

#define GOLDEN_NUMERICS 4

static const uint64_t golden_logprob[] = {
    0x010497617f9219c7, /* forward, f32, 32 rows of 7 */
    0x771ae78e9f3c2e9d, /* forward, f32, 32 rows of 4,097, temperatures */
    0xf996815d8ca69362, /* forward, bf16, 520 rows of 2,049 */
    0xf08e64d7db1d5257, /* forward, bf16, 16 rows of 20,481, temperatures */
    0xbc642274a474e3df, /* forward, f16, 16 rows of 5,000 */
    0xde627780292e2355, /* forward, f32, 3 rows of 151,936, temperatures */
    0xbb418c2b1c468ea7, /* gradients, f32, 32 rows of 3,000 */
    0x3568439f477e1b2c, /* gradients, bf16 */
    0x4bca551e4f348aa8, /* gradients, f16 */
    0xfd5a940dde5325d8, /* sums of 4 sequences of 1,250 tokens */
};

#endif
