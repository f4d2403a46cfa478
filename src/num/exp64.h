/* exp and log in binary64 for what is not the model: losses, corrections, measures. Bits are the same on every machine.
 *
 * Only +, -, *, / and integer steps on bit patterns, so no libm, whose last bits differ between versions and
 * processors, and no fma. Relative error below 1e-15 (tests/num/test_exp64.c); e^0 is exactly 1, log 1 exactly 0. A NaN
 * result is the one pattern 0x7FF8000000000000. Host only: kernels have num/expf.h. */
#ifndef LS_NUM_EXP64_H
#define LS_NUM_EXP64_H

#include <stdint.h>
#include <string.h>

#define LS_LOG2E_64 0x1.71547652b82fep+0
/* ln 2 = HI + LO; HI ends in 21 zero bits, so n * HI is exact for every exponent n. */
#define LS_LN2_HI_64 0x1.62e42feep-1
#define LS_LN2_LO_64 0x1.a39ef35793c76p-33
/* 1.5 * 2^52: adding and subtracting it rounds to an integer, ties to even. */
#define LS_ROUND_MAGIC_64 6755399441055744.0
#define LS_NAN_BITS_64 0x7FF8000000000000u
#define LS_INF_BITS_64 0x7FF0000000000000u

static inline uint64_t ls_bits64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double ls_from_bits64(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^n for -1022 <= n <= 1023. */
static inline double ls_power64(int64_t n) { return ls_from_bits64((uint64_t)(n + 1023) << 52); }

/* e^f - 1 - f = f^2 (1/2! + f/3! + ... + f^11/13!) for |f| <= 0.35. */
static inline double ls_exp64_tail(double f) {
    double q = 1.0 / 6227020800.0;
    q = q * f + 1.0 / 479001600.0;
    q = q * f + 1.0 / 39916800.0;
    q = q * f + 1.0 / 3628800.0;
    q = q * f + 1.0 / 362880.0;
    q = q * f + 1.0 / 40320.0;
    q = q * f + 1.0 / 5040.0;
    q = q * f + 1.0 / 720.0;
    q = q * f + 1.0 / 120.0;
    q = q * f + 1.0 / 24.0;
    q = q * f + 1.0 / 6.0;
    q = q * f + 0.5;
    return f * f * q;
}

/* e^x. -inf -> 0, +inf -> +inf; overflows above 709.78, rounds into subnormals and to 0 below -745.13. */
static inline double ls_exp64(double x) {
    double n, f;
    int64_t whole, half;
    if (x != x) return ls_from_bits64(LS_NAN_BITS_64);
    if (x > 710.0) x = 710.0;
    if (x < -746.0) x = -746.0;
    n = (x * LS_LOG2E_64 + LS_ROUND_MAGIC_64) - LS_ROUND_MAGIC_64;
    f = (x - n * LS_LN2_HI_64) - n * LS_LN2_LO_64;
    whole = (int64_t)n;
    half = whole / 2;
    /* The first product is exact, the second rounds once, into subnormals or to infinity where it must. */
    return (1.0 + (f + ls_exp64_tail(f))) * ls_power64(half) * ls_power64(whole - half);
}

/* e^d - 1 - d without cancellation, exactly 0 at 0 and never negative; +-inf -> +inf. */
static inline double ls_exp64_excess(double d) {
    if (d >= -0.34 && d <= 0.34) return ls_exp64_tail(d);
    if (d > 709.0) return ls_from_bits64(LS_INF_BITS_64);
    return (ls_exp64(d) - 1.0) - d;
}

/* Natural logarithm. +-0 -> -inf, negative -> NaN, +inf -> +inf. */
static inline double ls_log64(double x) {
    double m, s, z, p, k = 0.0;
    uint64_t bits;
    int64_t exponent;
    if (x != x || x < 0.0) return ls_from_bits64(LS_NAN_BITS_64);
    if (x == 0.0) return ls_from_bits64(LS_INF_BITS_64 | 0x8000000000000000u);
    if (ls_bits64(x) == LS_INF_BITS_64) return x;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54.0;
    }
    /* x = 2^exponent m with m in [sqrt(1/2), sqrt(2)); 0x3FE6A09E667F3BCD is sqrt(1/2). */
    bits = ls_bits64(x);
    exponent = ((int64_t)(bits - 0x3FE6A09E667F3BCDu) >> 52);
    m = ls_from_bits64(bits - ((uint64_t)exponent << 52));
    k += (double)exponent;
    /* log m = 2 artanh s = 2 s (1 + z/3 + z^2/5 + ...), z = s^2 <= 0.0295. */
    s = (m - 1.0) / (m + 1.0);
    z = s * s;
    p = 1.0 / 23.0;
    for (int odd = 21; odd >= 3; odd -= 2) p = p * z + 1.0 / (double)odd;
    return k * LS_LN2_HI_64 + (2.0 * s + (2.0 * s * (z * p) + k * LS_LN2_LO_64));
}

#endif
