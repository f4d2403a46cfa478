/* Arithmetic of op/sample.h that every back end reads from here. */
#ifndef LS_OP_SAMPLE_MATH_H
#define LS_OP_SAMPLE_MATH_H

#include "num/expf.h"

/* Ascends where z descends; both zeros are one. z is not NaN. */
static LS_HD uint32_t ls_order_of(float z) {
    const uint32_t bits = ls_bits(ls_add(z, 0.0f));
    return bits >> 31 != 0 ? bits : 0x7FFFFFFFu - bits;
}

/* The contract's order: descending z, the lower id among equals. */
static LS_HD uint64_t ls_order_word(float z, int64_t id) { return (uint64_t)ls_order_of(z) << 32 | (uint64_t)id; }

/* g of a word, given as (float)(word >> 9). */
static LS_HD float ls_gumbel(float word_23) {
    const float u = ls_mul(ls_add(word_23, 0.5f), 1.1920928955078125e-7f);
    return -ls_log(-ls_log(u));
}

/* A bound on g as computed, for half = 2^23 - 1/2 - (word >> 9) = 2^23 (1 - u): -log(-log(u)) <= -log(1 - u), and the
 * logarithm of half to base 2 lies above the straight lines between powers of two that its bits are. What rounding
 * may add to g is far below the margin. */
static LS_HD float ls_gumbel_bound(float half) {
    const float log2_half = ls_mul((float)((int32_t)ls_bits(half) - 0x3F800000), 0x1p-23f);
    return ls_fma(ls_sub(23.0f, log2_half), LS_LN2, 0.01f);
}

#endif
