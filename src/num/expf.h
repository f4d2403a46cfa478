/* exp, log and their kin in binary32: one text for gcc, clang and nvcc, the same bits on every side.
 *
 * Only the named roundings of num/round.h, comparisons and integer steps on bit patterns; no libm, no double, and no
 * special-function unit but for a first guess of a reciprocal that is then made exact (ls_div_near_one), and where the
 * rounding that follows leaves one result (ls_exp2_lifted).
 * Nothing branches, so loops over these functions vectorise and warps do not diverge. Except for
 * ls_exp2_bounded, which never returns NaN, every NaN result is the one pattern 0x7FC00000: payloads and signs
 * of NaN differ between machines, this one does not. Coefficients are minimax fits rounded to binary32 (derived by
 * script/derive_num.py). NUMERICS.md states every step, special value and measured error. */
#ifndef LS_NUM_EXPF_H
#define LS_NUM_EXPF_H

#include "num/round.h"

#define LS_LOG2E 0x1.715476p+0f
#define LS_LN2 0x1.62e430p-1f
/* ln 2 = LS_LN2_HI + LS_LN2_LO - 8.8e-17. The high part has all 24 bits: a product inside an fma is exact anyway. */
#define LS_LN2_HI LS_LN2
#define LS_LN2_LO (-0x1.05c610p-29f)

/* 1.5 * 2^23. Adding it to |x| <= 2^22 rounds x to an integer, nearest even, kept in the low bits of the sum. */
#define LS_ROUND_MAGIC 12582912.0f
#define LS_ROUND_MAGIC_BITS 0x4B400000u

#define LS_NAN_BITS 0x7FC00000u
#define LS_INF_BITS 0x7F800000u

/* x within [low, high]; NaN gives low. On a GPU this form is one max and one min instruction. On a CPU the same choice
 * is made with masks: gcc takes a choice against a constant for two paths, one with all that follows folded to
 * constants, and blends the paths at the end, while masks stay one compare and one blend each. */
static LS_HD float ls_clamp(float x, float low, float high) {
#ifdef __CUDA_ARCH__
    return ls_min(ls_max(x, low), high);
#else
    const uint32_t above = 0u - (uint32_t)(x > low);
    const float raised = ls_from_bits((ls_bits(x) & above) | (ls_bits(low) & ~above));
    const uint32_t below = 0u - (uint32_t)(raised < high);
    return ls_from_bits((ls_bits(raised) & below) | (ls_bits(high) & ~below));
#endif
}

/* 2^f for |f| <= 0.5: 1 + f (c1 + f (c2 + ... f c5)), five fmas, exactly 1 at f = 0. Relative error below 1.5e-7. */
static LS_HD float ls_exp2_poly(float f) {
    float p = 0x1.5bdf2cp-10f;
    p = ls_fma(p, f, 0x1.3ceabep-7f);
    p = ls_fma(p, f, 0x1.c6b6c6p-5f);
    p = ls_fma(p, f, 0x1.ebf9bap-3f);
    p = ls_fma(p, f, 0x1.62e42ap-1f);
    return ls_fma(p, f, 1.0f);
}

/* p * 2^n for r = LS_ROUND_MAGIC + n: the exponent field takes n by one integer add. p * 2^n must be normal. */
static LS_HD float ls_exp2_scale(float p, float r) { return ls_from_bits(ls_bits(p) + (ls_bits(r) << 23)); }

/* 2^x with x clamped to [-126, 127]; NaN counts as -126. The result is normal, and exact where x is an integer.
 * Operations: 2 (clamp), 1 (r), 1 (n), 1 (f), 5 (polynomial), shift, integer add. That is 11 instructions on sm_90,
 * where shift and add are one; 12 on x86-64 with max and min, 14 with compare and blend. f is exact, because n is the
 * integer nearest to x. */
static LS_HD float ls_exp2_bounded(float x) {
    const float bounded = ls_clamp(x, -126.0f, 127.0f);
    const float r = ls_add(bounded, LS_ROUND_MAGIC);
    const float f = ls_sub(bounded, ls_sub(r, LS_ROUND_MAGIC));
    return ls_exp2_scale(ls_exp2_poly(f), r);
}

/* 1.5 * 2^10. LS_EXP2_LIFT + x, |x| <= 512, is a multiple of 2^-13. */
#define LS_EXP2_LIFT 1536.0f

/* 2^(lifted - LS_EXP2_LIFT), up to 2^127, to be rounded to bf16 next: only then its bits are promised. +0 below 2^-126.
 * No power of two of a multiple of 2^-13 lies nearer to the middle of two bf16 values than 2^-20.5 of itself. So all
 * approximations to 2^-21 round to the same bits: that of a GPU's special-function unit and that of ls_exp2_bounded. */
static LS_HD float ls_exp2_lifted(float lifted) {
    const float x = ls_sub(lifted, LS_EXP2_LIFT);
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return x >= -126.0f ? ls_exp2_bounded(x) : 0.0f;
#endif
}

/* 2^(a b) where the rounded product lies in [-126, 127], from the unrounded one; ls_exp2_bounded of it otherwise (a
 * NaN counts as -126). Where the range is known the last step falls away: ls_exp2_product_inside. An unrounded product
 * below -126 that rounds to -126 gives a subnormal, still within 6e-6 of 2^-126. */
static LS_HD float ls_exp2_product_inside(float a, float b) {
    const float r = ls_fma(a, b, LS_ROUND_MAGIC);
    const float f = ls_fma(a, b, -ls_sub(r, LS_ROUND_MAGIC));
    return ls_exp2_scale(ls_exp2_poly(f), r);
}

static LS_HD float ls_exp2_product(float a, float b) {
    const float x = ls_mul(a, b);
    const float inside = ls_exp2_product_inside(a, b);
    const float low = x >= -126.0f ? inside : 0x1p-126f;
    return x > 127.0f ? 0x1p127f : low;
}

/* e^x = m * a * b: m in (0.7, 1.42), a and b powers of two of about half of the exponent each, so that m * a is exact
 * and the last product rounds once, into subnormals or to infinity where it must. */
typedef struct ls_exp_parts {
    float m, a, b;
} ls_exp_parts;

/* e^x = m * 2^n with n in the low bits of r, for |x| <= 126. */
typedef struct ls_exp_core {
    float m, r;
} ls_exp_core;

static LS_HD ls_exp_core ls_exp_reduce(float x) {
    ls_exp_core core;
    const float r = ls_fma(x, LS_LOG2E, LS_ROUND_MAGIC);
    const float n = ls_sub(r, LS_ROUND_MAGIC);
    /* f + f_low = x - n ln 2, |f| < 0.3467. The first fma is exact: its result is a multiple of 2^-25 below 1/2. */
    const float exact = ls_fma(n, -LS_LN2_HI, x);
    const float f = ls_fma(n, -LS_LN2_LO, exact);
    const float f_low = ls_fma(n, -LS_LN2_LO, ls_sub(exact, f));
    /* one + one_low = 1 + f exactly; the rest, f_low + f^2 q(f), is small, so its rounding hardly shows. */
    const float one = ls_add(1.0f, f);
    const float one_low = ls_sub(f, ls_sub(one, 1.0f));
    float q = 0x1.6a5056p-10f;
    q = ls_fma(q, f, 0x1.123976p-7f);
    q = ls_fma(q, f, 0x1.5558acp-5f);
    q = ls_fma(q, f, 0x1.555492p-3f);
    q = ls_fma(q, f, 0x1.fffffcp-2f);
    core.m = ls_add(one, ls_fma(ls_mul(f, f), q, ls_add(one_low, f_low)));
    core.r = r;
    return core;
}

/* x is clamped to [-120, 89], beyond which float32 holds only 0 and infinity; NaN counts as -120. */
static LS_HD ls_exp_parts ls_exp_split(float x) {
    ls_exp_parts parts;
    const ls_exp_core core = ls_exp_reduce(ls_clamp(x, -120.0f, 89.0f));
    /* n + 254 = first + (both - first): two biased exponents. */
    const uint32_t both = ls_bits(core.r) - LS_ROUND_MAGIC_BITS + 254u, first = both >> 1;
    parts.m = core.m;
    parts.a = ls_from_bits(first << 23);
    parts.b = ls_from_bits((both - first) << 23);
    return parts;
}

static LS_HD float ls_exp_join(ls_exp_parts parts) { return ls_mul(ls_mul(parts.m, parts.a), parts.b); }

/* The value, or the one NaN where x is NaN. */
static LS_HD float ls_keep_nan(float x, float value) { return x == x ? value : ls_from_bits(LS_NAN_BITS); }

/* e^x. -inf -> +0, +inf -> +inf; overflows above 88.7228, rounds to subnormals and to +0 below -103.972. */
static LS_HD float ls_exp(float x) { return ls_keep_nan(x, ls_exp_join(ls_exp_split(x))); }

/* u = 2^k (1 + f) with 1 + f in [2/3, 4/3) for normal positive u. scale_bits: the bits of 2^-k for k < 127. */
typedef struct ls_log_parts {
    float k, f;
    uint32_t scale_bits;
} ls_log_parts;

static LS_HD ls_log_parts ls_log_split(float u) {
    ls_log_parts parts;
    /* 0x3F2AAAAB is 2/3. The bias of 150 keeps k + 150 positive; the magic number turns it into a float. */
    const uint32_t t = ls_bits(u) - 0x3F2AAAABu + (150u << 23);
    parts.k = ls_sub(ls_from_bits(LS_ROUND_MAGIC_BITS + (t >> 23)), LS_ROUND_MAGIC + 150.0f);
    parts.f = ls_sub(ls_from_bits((t & 0x7FFFFFu) + 0x3F2AAAABu), 1.0f);
    parts.scale_bits = 0x3F800000u + (150u << 23) - (t & 0xFF800000u);
    return parts;
}

/* k ln 2 + log(1 + f) + f_low, |f| <= 1/3, k an integer and f_low at most about an ulp of f.
 * sum + sum_low = k LN2_HI + f to far below an ulp of sum; f^2 (-1/2 + f P(f)) = log(1 + f) - f and k LN2_LO are added
 * to the low part first. */
static LS_HD float ls_log_join(float k, float f, float f_low) {
    const float sum = ls_fma(k, LS_LN2_HI, f);
    const float sum_low = ls_add(ls_fma(k, LS_LN2_HI, -sum), f);
    float p = -0x1.07c894p-3f;
    p = ls_fma(p, f, 0x1.1e678cp-3f);
    p = ls_fma(p, f, -0x1.f332f8p-4f);
    p = ls_fma(p, f, 0x1.1ed662p-3f);
    p = ls_fma(p, f, -0x1.559c44p-3f);
    p = ls_fma(p, f, 0x1.99d044p-3f);
    p = ls_fma(p, f, -0x1.fffefcp-3f);
    p = ls_fma(p, f, 0x1.555506p-2f);
    p = ls_fma(p, f, -0.5f);
    return ls_add(sum, ls_fma(ls_mul(f, f), p, ls_add(sum_low, ls_fma(k, LS_LN2_LO, f_low))));
}

/* Natural logarithm. +-0 -> -inf, negative -> NaN, +inf -> +inf. */
static LS_HD float ls_log(float x) {
    /* Subnormals are scaled by 2^23 first, exactly. */
    const float tiny = x < 0x1p-126f ? 23.0f : 0.0f;
    const ls_log_parts parts = ls_log_split(x < 0x1p-126f ? ls_mul(x, 0x1p23f) : x);
    const float positive = ls_log_join(ls_sub(parts.k, tiny), parts.f, 0.0f);
    const float other = x == 0.0f ? ls_from_bits(LS_INF_BITS | 0x80000000u) : ls_from_bits(LS_NAN_BITS);
    const float finite = x > 0.0f ? positive : other;
    return ls_bits(x) == LS_INF_BITS ? x : finite;
}

/* log(1 + x) for x > -1 and finite; below 2^99 unless `guarded`, which is a constant. */
static LS_HD float ls_log1p_of(float x, int guarded) {
    /* u + low = 1 + x exactly: the larger in magnitude first. */
    const float u = ls_add(1.0f, x);
    const float large = ls_max(x, 1.0f);
    const float small = ls_min(x, 1.0f);
    const float low = ls_sub(small, ls_sub(u, large));
    const ls_log_parts parts = ls_log_split(u);
    /* 2^-k; at 2^100 the 1 is long gone, and 2^-k is about to leave the normal numbers. */
    const float scale = !guarded || u < 0x1p100f ? ls_from_bits(parts.scale_bits) : 0.0f;
    /* f + f_low = u 2^-k - 1 + low 2^-k; f is x itself where k = 0. */
    const float f = ls_fma(low, scale, parts.f);
    const float f_low = ls_fma(low, scale, ls_sub(parts.f, f));
    return ls_log_join(parts.k, f, f_low);
}

static LS_HD float ls_log1p_inside(float x) { return ls_log1p_of(x, 1); }

/* log(1 + x). -1 -> -inf, below -1 -> NaN, +inf -> +inf; |x| < 2^-25 -> x, so -0 and subnormals come back unchanged. */
static LS_HD float ls_log1p(float x) {
    const float edge = ls_from_bits(x == -1.0f ? LS_INF_BITS | 0x80000000u : LS_NAN_BITS);
    const float defined = x > -1.0f ? ls_log1p_inside(x) : edge;
    const float large = ls_bits(x) == LS_INF_BITS ? x : defined;
    return (ls_bits(x) & 0x7FFFFFFFu) < 0x33000000u ? x : large;
}

/* log(1 + e^x): x above 20, where the rest is under half an ulp; else log1p(e^x), which cancels nowhere. -inf -> +0. */
static LS_HD float ls_softplus(float x) {
    const float inside = ls_log1p_inside(ls_exp_join(ls_exp_split(x)));
    return ls_keep_nan(x, x > 20.0f ? x : inside);
}

/* a / b, correctly rounded, for 1 <= b <= 2 and a = 1 or a near it. A GPU needs no guard against overflow there: the
 * reciprocal, one Newton step, and a quotient corrected by its remainder. tests/backend compares all 2^32 arguments of
 * sigmoid and silu, the callers, with the division of a CPU. */
static LS_HD float ls_div_near_one(float a, float b) {
#ifdef __CUDA_ARCH__
    float r, q;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = ls_fma(r, ls_fma(-b, r, 1.0f), r);
    q = ls_mul(a, r);
    return ls_fma(ls_fma(-b, q, a), r, q);
#else
    return a / b;
#endif
}

/* Up to this magnitude e^x and all that softplus, sigmoid and silu make of it is normal, and one exponent add replaces
 * two products: there the ordinary functions are the others, bit for bit, at a fifth less. */
#define LS_ORDINARY 86.0f

static LS_HD float ls_softplus_ordinary(float x) {
    const ls_exp_core power = ls_exp_reduce(x);
    const float inside = ls_log1p_of(ls_exp2_scale(power.m, power.r), 0);
    return x > 20.0f ? x : inside;
}

/* sigmoid(x) = (q + q_low) * a * b. With e = e^-|x| = m * a * b, q is 1 / (1 + e) and a = b = 1 for x >= 0, and q is
 * m / (1 + e) for x < 0: there the last product alone rounds into subnormals. */
typedef struct ls_sigmoid_parts {
    float q, q_low, a, b;
} ls_sigmoid_parts;

static LS_HD ls_sigmoid_parts ls_sigmoid_split(float x) {
    ls_sigmoid_parts parts;
    const ls_exp_parts power = ls_exp_split(x < 0.0f ? x : -x);
    const float e = ls_exp_join(power);
    /* d + d_low = 1 + e exactly. */
    const float d = ls_add(1.0f, e);
    const float d_low = ls_sub(e, ls_sub(d, 1.0f));
    const float top = x < 0.0f ? power.m : 1.0f;
    /* What the rounded quotient leaves over, times 1 / d to within an eighth: 1 - e / 2. */
    float rest;
    parts.q = ls_div_near_one(top, d);
    rest = ls_fma(-parts.q, d, top);
    rest = ls_fma(-parts.q, d_low, rest);
    parts.q_low = ls_mul(rest, ls_fma(e, -0.5f, 1.0f));
    parts.a = x < 0.0f ? power.a : 1.0f;
    parts.b = x < 0.0f ? power.b : 1.0f;
    return parts;
}

/* 1 / (1 + e^-x). -inf -> +0, +inf -> 1. */
static LS_HD float ls_sigmoid(float x) {
    const ls_sigmoid_parts s = ls_sigmoid_split(x);
    return ls_keep_nan(x, ls_mul(ls_mul(ls_add(s.q, s.q_low), s.a), s.b));
}

/* x * sigmoid(x). -inf and everything that underflows -> -0, +inf -> +inf, x above 20 -> x. */
static LS_HD float ls_silu(float x) {
    const ls_sigmoid_parts s = ls_sigmoid_split(x);
    /* Below -120 the result is -0; the bound keeps the product away from infinity. */
    const float bounded = ls_max(x, -120.0f);
    const float product = ls_fma(bounded, s.q, ls_mul(bounded, s.q_low));
    return ls_keep_nan(x, x > 20.0f ? x : ls_mul(ls_mul(product, s.a), s.b));
}

/* sigmoid(x) = (q + q_low) * 2^n with n << 23 as `exponent`. */
typedef struct ls_sigmoid_near {
    float q, q_low;
    uint32_t exponent;
} ls_sigmoid_near;

static LS_HD ls_sigmoid_near ls_sigmoid_near_of(float x) {
    ls_sigmoid_near near;
    const ls_exp_core power = ls_exp_reduce(x < 0.0f ? x : -x);
    const float e = ls_exp2_scale(power.m, power.r);
    const float d = ls_add(1.0f, e);
    const float d_low = ls_sub(e, ls_sub(d, 1.0f));
    const float top = x < 0.0f ? power.m : 1.0f;
    near.q = ls_div_near_one(top, d);
    near.q_low = ls_mul(ls_fma(-near.q, d_low, ls_fma(-near.q, d, top)), ls_fma(e, -0.5f, 1.0f));
    near.exponent = x < 0.0f ? ls_bits(power.r) << 23 : 0u;
    return near;
}

static LS_HD float ls_sigmoid_ordinary(float x) {
    const ls_sigmoid_near s = ls_sigmoid_near_of(x);
    return ls_from_bits(ls_bits(ls_add(s.q, s.q_low)) + s.exponent);
}

static LS_HD float ls_silu_ordinary(float x) {
    const ls_sigmoid_near s = ls_sigmoid_near_of(x);
    const float product = ls_fma(x, s.q, ls_mul(x, s.q_low));
    return x > 20.0f ? x : ls_from_bits(ls_bits(product) + s.exponent);
}

#endif
