/* Numbers: types, scalars and sums. The quoted words are those of NUMERICS.md. */
#ifndef SPEC_NUMBERS_H
#define SPEC_NUMBERS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---- types: bits, bf16, fp16 ---- */

static uint32_t bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* "Narrowing rounds to nearest even, keeps subnormals and maps every NaN to one pattern." */
static float round_bf16(float x) {
    const uint32_t u = bits(x);
    if (isnan(x)) return from_bits(0x7FC00000u);
    return from_bits((u + 0x7FFFu + (u >> 16 & 1u)) & 0xFFFF0000u);
}

/* "Widening is exact." */
static float widen_f16(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float magnitude = exponent == 31 ? (fraction != 0 ? from_bits(0x7FC00000u) : INFINITY)
                            : exponent > 0 ? ldexpf((float)(1024 + fraction), exponent - 25)
                                           : ldexpf((float)fraction, -24);
    return h >> 15 != 0 ? -magnitude : magnitude;
}

/* ---- scalars: NUMERICS.md, "Scalars" ---- */

#define LOG2E 0x1.715476p+0f
#define LN2 0x1.62e430p-1f
#define LN2_LO -0x1.05c610p-29f
#define MAGIC 12582912.0f

/* 2^n, n an integer from -126 to 127. */
static float power_of_two(float n) { return from_bits((uint32_t)((int32_t)n + 127) << 23); }

/* Horner's rule, one fma for each coefficient after the highest, c[0]. */
static float horner(float f, int n, const float *c) {
    float p = c[0];
    for (int i = 1; i < n; i++) p = fmaf(p, f, c[i]);
    return p;
}

/* ls_exp2_poly(f) = 1 + f (c1 + f (c2 + ..)) */
static float exp2_poly(float f) {
    const float c[] = {0x1.5bdf2cp-10f, 0x1.3ceabep-7f, 0x1.c6b6c6p-5f, 0x1.ebf9bap-3f, 0x1.62e42ap-1f, 1.0f};
    return horner(f, 6, c);
}

/* p(f) with bits(r) << 23 added to its bits. */
static float exp2_scale(float p, float r) { return from_bits(bits(p) + (bits(r) << 23)); }

/* Steps 1 to 4 of ls_exp: m and n. */
static float exp_parts(float x, float *n) {
    const float b = fminf(fmaxf(x, -120.0f), 89.0f), r = fmaf(b, LOG2E, MAGIC);
    *n = r - MAGIC;
    const float g = fmaf(*n, -LN2, b), f = fmaf(*n, -(LN2_LO), g), f_low = fmaf(*n, -(LN2_LO), g - f);
    const float s = 1.0f + f, s_low = f - (s - 1.0f);
    const float c[] = {0x1.6a5056p-10f, 0x1.123976p-7f, 0x1.5558acp-5f, 0x1.555492p-3f, 0x1.fffffcp-2f};
    return s + fmaf(f * f, horner(f, 5, c), s_low + f_low);
}

/* Step 5: the first product is exact. */
static float scale_twice(float m, float n) {
    return (m * power_of_two(floorf(n / 2.0f))) * power_of_two(ceilf(n / 2.0f));
}

static float exp_law(float x) {
    float n;
    const float m = exp_parts(x, &n);
    return isnan(x) ? from_bits(0x7FC00000u) : scale_twice(m, n);
}

/* u = 2^k (1 + f): step 2 of ls_log. */
static void log_split(float u, float *k, float *f) {
    const uint32_t t = bits(u) - 0x3F2AAAABu + (150u << 23);
    *k = (float)(int32_t)(t >> 23) - 150.0f;
    *f = from_bits((t & 0x7FFFFFu) + 0x3F2AAAABu) - 1.0f;
}

/* Steps 3 to 5. */
static float log_join(float k, float f, float f_low) {
    const float s = fmaf(k, LN2, f), s_low = fmaf(k, LN2, -s) + f;
    const float c[] = {-0x1.07c894p-3f, 0x1.1e678cp-3f,  -0x1.f332f8p-4f, 0x1.1ed662p-3f, -0x1.559c44p-3f,
                       0x1.99d044p-3f,  -0x1.fffefcp-3f, 0x1.555506p-2f,  -0.5f};
    return s + fmaf(f * f, horner(f, 9, c), s_low + fmaf(k, LN2_LO, f_low));
}

/* Of x in [1, 2): the only ones that are asked for here. */
static float log_law(float x) {
    float k, f;
    log_split(x, &k, &f);
    return log_join(k, f, 0.0f);
}

/* ls_softplus: x above 20, else ls_log1p of e^x, which is never below -1 nor infinite. */
static float softplus(float x) {
    if (isnan(x)) return from_bits(0x7FC00000u);
    if (x > 20.0f) return x;
    const float e = exp_law(x), u = 1.0f + e, low = fminf(e, 1.0f) - (u - fmaxf(e, 1.0f));
    float k, f;
    log_split(u, &k, &f);
    const float scale = u < 0x1p100f ? power_of_two(-k) : 0.0f;
    float joined = fmaf(low, scale, f), joined_low = fmaf(low, scale, f - joined);
    if (k == 0.0f) {
        joined = e; /* "f' = x where k = 0"; the low part is step 3's */
        joined_low = fmaf(low, scale, f - joined);
    }
    return fabsf(e) < 0x1p-25f ? e : log_join(k, joined, joined_low);
}

/* ls_sigmoid and ls_silu, steps 1 to 4: q and q_low; n of the exponential for -|x|. */
static float sigmoid_parts(float x, float *q_low, float *n) {
    const float m = exp_parts(-fabsf(x), n), e = scale_twice(m, *n);
    const float d = 1.0f + e, d_low = e - (d - 1.0f), top = x >= 0.0f ? 1.0f : m, q = top / d;
    const float rest = fmaf(-q, d_low, fmaf(-q, d, top));
    *q_low = rest * fmaf(e, -0.5f, 1.0f);
    return q;
}

static float sigmoid(float x) {
    float n, q_low;
    const float q = sigmoid_parts(x, &q_low, &n), y = q + q_low;
    if (isnan(x)) return from_bits(0x7FC00000u);
    return x < 0.0f ? scale_twice(y, n) : y;
}

static float silu(float x) {
    float n, q_low;
    const float q = sigmoid_parts(x, &q_low, &n), b = fmaxf(x, -120.0f), y = fmaf(b, q, b * q_low);
    if (isnan(x)) return from_bits(0x7FC00000u);
    if (x > 20.0f) return x;
    return x < 0.0f ? scale_twice(y, n) : y;
}

/* ---- sums: NUMERICS.md, "Sums" ---- */

/* Chains fold within each run of 8, then over the 32 runs by halves. */
static float fold(const float *chain) {
    float c[256];
    memcpy(c, chain, sizeof c);
    for (int run = 0; run < 256; run += 8)
        for (int half = 4; half >= 1; half /= 2)
            for (int j = 0; j < half; j++) c[run + j] = c[run + j] + c[run + j + half];
    for (int half = 16; half >= 1; half /= 2)
        for (int run = 0; run < half; run++) c[8 * run] = c[8 * run] + c[8 * (run + half)];
    return c[0];
}

/* The tree of the squares of x[0..n). */
static float squares(const float *x, int64_t n) {
    float chain[256] = {0};
    for (int64_t c = 0; c < n; c++) chain[c % 256] = fmaf(x[c], x[c], chain[c % 256]);
    return fold(chain);
}

#endif
