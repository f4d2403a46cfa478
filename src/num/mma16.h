/* The step of the profile mma16: what a tensor core adds to a float32 accumulator in one step of 16 bf16 products. This
 * comment is the specification; NUMERICS.md repeats it, and everything that computes in the profile is an
 * implementation of it.
 *
 *   d = step(c; a[0..16), b[0..16)), c and d float32, a and b bf16
 *
 * 1. A bf16 x is sign, significand s and exponent e: x = +-s 2^(e - 7) with s < 256. Normal: e = field - 127, s >= 128.
 *    Subnormal or zero: e = -126, s < 128. The product i is exact: significand sa sb, exponent ea + eb, not normalised.
 *    c is read alike: +-s 2^(e - 23), s < 2^24.
 * 2. E is the largest exponent of the products that are not zero and, if c is not zero, of c; at least -133.
 * 3. Each product, and c, is cut toward zero to a multiple of 2^(E - 25). The 17 are added exactly.
 * 4. The sum is cut toward zero to a float32, subnormals kept. What is zero then is +0, whatever the signs were: also a
 *    negative sum that was cut to zero. A magnitude of 2^128 and more is the infinity of its sign.
 * 5. Before all that: a NaN anywhere, an infinity times a zero, or infinities of both signs among products and c give
 *    0x7FFFFFFF; else an infinity among them gives the infinity of its sign.
 *
 * A chain is steps, k ascending by 16 from c = +0, both operands padded with +0 to a multiple of 16. A step whose
 * products are all zero returns c, but for -0, which no step returns. */
#ifndef LS_NUM_MMA16_H
#define LS_NUM_MMA16_H

#include "num/round.h"

/* Products of a step. */
#define LS_MMA16_STEP 16
/* Fraction bits that are kept below the largest exponent. */
#define LS_MMA16_FRACTION 25
/* The largest exponent is at least this. It shows only where c is zero and every product is below 2^-133. */
#define LS_MMA16_FLOOR (-133)
/* The NaN of a step. Results have it mapped to 0x7FC00000 at the end of the chain, by ls_canonical. */
#define LS_MMA16_NAN 0x7FFFFFFFu

/* What rule 5 has seen. */
#define LS_MMA16_SEEN_NAN 1u
#define LS_MMA16_SEEN_PLUS 2u
#define LS_MMA16_SEEN_MINUS 4u

/* Infinity and NaN in the product of two bf16 patterns, at least one of which has the exponent field 255. */
static LS_HD uint32_t ls_mma16_special_product(uint32_t a, uint32_t b) {
    const uint32_t ma = a & 0x7FFFu, mb = b & 0x7FFFu;
    if (ma > 0x7F80u || mb > 0x7F80u || ma == 0 || mb == 0) return LS_MMA16_SEEN_NAN;
    return ((a ^ b) & 0x8000u) != 0 ? LS_MMA16_SEEN_MINUS : LS_MMA16_SEEN_PLUS;
}

/* The result of a step that has seen one of them. */
static LS_HD uint32_t ls_mma16_special(uint32_t seen) {
    if (seen == LS_MMA16_SEEN_PLUS) return 0x7F800000u;
    if (seen == LS_MMA16_SEEN_MINUS) return 0xFF800000u;
    return LS_MMA16_NAN;
}

/* Significand and exponent of a finite bf16 pattern. */
static LS_HD int32_t ls_mma16_significand(uint32_t x) {
    return (int32_t)((x & 0x7Fu) | ((x & 0x7F80u) != 0 ? 0x80u : 0u));
}
static LS_HD int32_t ls_mma16_exponent(uint32_t x) {
    const int32_t field = (int32_t)(x >> 7 & 0xFFu);
    return (field == 0 ? 1 : field) - 127;
}

/* magnitude * 2^up, cut toward zero; magnitude < 2^32, and where it is not 0, up < 32. */
static LS_HD int64_t ls_mma16_cut(int64_t magnitude, int32_t up) {
    if (magnitude == 0 || up <= -32) return 0;
    return up >= 0 ? magnitude << up : magnitude >> -up;
}

/* Rule 4: sum * 2^(e - 25) as a float32 pattern. */
static LS_HD uint32_t ls_mma16_pack(int64_t sum, int32_t e) {
    const uint32_t sign = sum < 0 ? 0x80000000u : 0u;
    const uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int32_t top, field;
    if (sum == 0) return 0;
#ifdef __CUDA_ARCH__
    top = 63 - __clzll((long long)magnitude);
#else
    top = 63 - __builtin_clzll(magnitude);
#endif
    field = e - LS_MMA16_FRACTION + top + 127;
    if (field >= 255) return sign | 0x7F800000u;
    if (field <= 0) { /* in units of 2^-149 */
        const uint32_t units = (uint32_t)ls_mma16_cut((int64_t)magnitude, e - LS_MMA16_FRACTION + 149);
        return units == 0 ? 0 : sign | units;
    }
    return sign | (uint32_t)field << 23 | ((uint32_t)ls_mma16_cut((int64_t)magnitude, 23 - top) & 0x7FFFFFu);
}

/* One step; c and the result are float32 patterns, a and b are bf16 patterns a_stride and b_stride elements apart. */
static LS_HD uint32_t ls_mma16_step(uint32_t c, const uint16_t *a, int64_t a_stride, const uint16_t *b,
                                    int64_t b_stride) {
    const uint32_t c_field = c >> 23 & 0xFFu;
    const int32_t c_exponent = (c_field == 0 ? 1 : (int32_t)c_field) - 127;
    const int64_t c_significand = (int64_t)((c & 0x7FFFFFu) | (c_field != 0 ? 0x800000u : 0u));
    int32_t e = c_significand != 0 ? c_exponent : LS_MMA16_FLOOR;
    uint32_t seen = 0;
    int64_t sum;
    for (int i = 0; i < LS_MMA16_STEP; i++) {
        const uint32_t x = a[i * a_stride], y = b[i * b_stride];
        const int32_t exponent = ls_mma16_exponent(x) + ls_mma16_exponent(y);
        if ((x & 0x7F80u) == 0x7F80u || (y & 0x7F80u) == 0x7F80u) seen |= ls_mma16_special_product(x, y);
        if ((x & 0x7FFFu) != 0 && (y & 0x7FFFu) != 0 && exponent > e) e = exponent;
    }
    if (c_field == 0xFFu)
        seen |= (c & 0x7FFFFFu) != 0 ? LS_MMA16_SEEN_NAN : (c >> 31) != 0 ? LS_MMA16_SEEN_MINUS : LS_MMA16_SEEN_PLUS;
    if (seen != 0) return ls_mma16_special(seen);
    sum = ls_mma16_cut(c_significand, c_exponent - e + LS_MMA16_FRACTION - 23);
    if (c >> 31 != 0) sum = -sum;
    for (int i = 0; i < LS_MMA16_STEP; i++) {
        const uint32_t x = a[i * a_stride], y = b[i * b_stride];
        const int32_t product = ls_mma16_significand(x) * ls_mma16_significand(y);
        const int64_t cut =
            ls_mma16_cut(product, ls_mma16_exponent(x) + ls_mma16_exponent(y) - e + LS_MMA16_FRACTION - 14);
        if (product != 0) sum += ((x ^ y) & 0x8000u) != 0 ? -cut : cut;
    }
    return ls_mma16_pack(sum, e);
}

#endif
