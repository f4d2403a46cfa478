/* Sine and cosine of a binary32 angle, each the binary32 nearest to the true value: one text for gcc, clang and nvcc.
 *
 * Angles are position times frequency of a rotation (op/rope.h): 0 <= x < 2^24. All steps are IEEE binary64, with a
 * fusion only where ls_fma64 is written, so every side computes the same bits. That they are the nearest is no theorem
 * but measured: tests/num/test_sincosf.c compares every position below 262,144 at the frequencies of published models
 * with a libm that is right, and the distance from a tie tells how far the sum's own error, below 2^-55 of it, is from
 * mattering.
 *
 *   k = x * 2/pi to the nearest integer
 *   h + l = x - k * pi/2, with pi/2 in three parts of which the products with k < 2^24 are exact or far below an ulp
 *   sine and cosine of h + l by Taylor's series as a sum of two numbers, which is rounded once to binary32
 *   the quadrant k mod 4 says which of them is which, and the signs */
#ifndef LS_NUM_SINCOSF_H
#define LS_NUM_SINCOSF_H

#include "num/round.h"

#define LS_ANGLE_END 16777216.0f /* 2^24: angles are below it */

#define LS_TWO_OVER_PI 0x1.45f306dc9c883p-1
/* pi/2 = A + B + C + 2^-114: A and B have 29 bits. */
#define LS_HALF_PI_A 0x1.921fb54p+0
#define LS_HALF_PI_B 0x1.10b4611p-30
#define LS_HALF_PI_C 0x1.4c4c6628b80dcp-59

static LS_HD double ls_fma64(double a, double b, double c) {
#ifdef __CUDA_ARCH__
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}

static LS_HD uint64_t ls_bits_of_double(double x) {
#ifdef __CUDA_ARCH__
    return (uint64_t)__double_as_longlong(x);
#else
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

static LS_HD double ls_double_of_bits(uint64_t bits) {
#ifdef __CUDA_ARCH__
    return __longlong_as_double((long long)bits);
#else
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

/* h + l as binary32, |l| at most an ulp of h: once rounded, not twice. Where h + l, rounded to binary64, is half way
 * between two binary32 and what was rounded off is not zero, one ulp towards it decides. */
static LS_HD float ls_round_pair(double h, double l) {
    const double sum = h + l, rest = l - (sum - h);
    uint64_t bits = ls_bits_of_double(sum);
    if ((bits & 0x1FFFFFFFu) == 0x10000000u && rest != 0.0) bits += (rest > 0.0) == (sum > 0.0) ? 1u : ~(uint64_t)0;
    return (float)ls_double_of_bits(bits);
}

/* The angle of a position: p * frequency, one rounding, 0 <= frequency <= 1. NaN from position 2^24 on. */
static LS_HD float ls_angle(int64_t p, float frequency) {
    return p < (int64_t)LS_ANGLE_END ? ls_mul((float)p, frequency) : ls_from_bits(0x7FC00000u);
}

/* 0 <= x < LS_ANGLE_END, or NaN, which gives the NaN 0x7FC00000 twice. */
static LS_HD void ls_sincosf(float x, float *sine, float *cosine) {
    const double wide = (double)x, magic = 0x1.8p+52;
    const double shifted = ls_fma64(wide, LS_TWO_OVER_PI, magic), k = shifted - magic;
    const int quadrant = (int)(ls_bits_of_double(shifted) & 3u);
    /* The first difference is exact; that of the second is kept. */
    const double first = wide - k * LS_HALF_PI_A, second = k * LS_HALF_PI_B;
    const double near = first - second, back = first - near;
    const double lost = (first - (near + back)) + (back - second);
    const double rest = lost - k * LS_HALF_PI_C;
    const double h = near + rest, l = rest - (h - near);
    const double z = h * h, zl = ls_fma64(h, h, -z) + 2.0 * h * l;
    double s = -1.0 / 121645100408832000.0, c = 1.0 / 2432902008176640000.0, w;
    s = ls_fma64(s, z, 1.0 / 355687428096000.0);
    s = ls_fma64(s, z, -1.0 / 1307674368000.0);
    s = ls_fma64(s, z, 1.0 / 6227020800.0);
    s = ls_fma64(s, z, -1.0 / 39916800.0);
    s = ls_fma64(s, z, 1.0 / 362880.0);
    s = ls_fma64(s, z, -1.0 / 5040.0);
    s = ls_fma64(s, z, 1.0 / 120.0);
    s = ls_fma64(s, z, -1.0 / 6.0);
    c = ls_fma64(c, z, -1.0 / 6402373705728000.0);
    c = ls_fma64(c, z, 1.0 / 20922789888000.0);
    c = ls_fma64(c, z, -1.0 / 87178291200.0);
    c = ls_fma64(c, z, 1.0 / 479001600.0);
    c = ls_fma64(c, z, -1.0 / 3628800.0);
    c = ls_fma64(c, z, 1.0 / 40320.0);
    c = ls_fma64(c, z, -1.0 / 720.0);
    c = ls_fma64(c, z, 1.0 / 24.0);
    /* sin = h + (h z s + l (1 - z/2)); cos = (1 - z/2) + ((z z c - zl/2) + what 1 - z/2 lost) */
    w = 1.0 - 0.5 * z;
    {
        const float sin_r = ls_round_pair(h, ls_fma64(h * z, s, l * w));
        const float cos_r = ls_round_pair(w, ((1.0 - w) - 0.5 * z) + ls_fma64(z * z, c, -0.5 * zl));
        const float a = (quadrant & 1) != 0 ? cos_r : sin_r, b = (quadrant & 1) != 0 ? sin_r : cos_r;
        *sine = x != x ? ls_from_bits(0x7FC00000u) : (quadrant & 2) != 0 ? -a : a;
        *cosine = x != x ? ls_from_bits(0x7FC00000u) : quadrant == 1 || quadrant == 2 ? -b : b;
    }
}

#endif
