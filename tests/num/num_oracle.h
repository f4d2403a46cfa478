/* Oracles for the scalar functions of num/expf.h: float64 libm as a filter, MPFR as the judge, errors in ulps.
 *
 * An ulp is that of the correctly rounded float32 result: 2^-149 for subnormals and zero, and infinity counts as 2^128
 * with the ulp of the largest finite number. Where the true value is NaN, an infinity or an exact zero, only that very
 * bit pattern passes (NaN: 0x7FC00000); where it merely rounds to zero, the sign must be right. True values above 2^128
 * count as 2^128. */
#ifndef LS_TESTS_NUM_ORACLE_H
#define LS_TESTS_NUM_ORACLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef LS_HAVE_MPFR
#include <mpfr.h>
#endif

#include "num/expf.h"

enum { NUM_EXP2_BOUNDED, NUM_EXP, NUM_LOG, NUM_LOG1P, NUM_SIGMOID, NUM_SILU, NUM_SOFTPLUS, NUM_FUNCTIONS };
enum { NUM_SCALAR, NUM_AVX2, NUM_AVX512, NUM_BODIES };

#define NUM_EACH(X)                   \
    X(NUM_EXP2_BOUNDED, exp2_bounded) \
    X(NUM_EXP, exp)                   \
    X(NUM_LOG, log) X(NUM_LOG1P, log1p) X(NUM_SIGMOID, sigmoid) X(NUM_SILU, silu) X(NUM_SOFTPLUS, softplus)

static const char *const num_names[NUM_FUNCTIONS] = {
#define NUM_NAME(id, name) #name,
    NUM_EACH(NUM_NAME)
#undef NUM_NAME
};

/* out[i] = f(x[i]), in loops the compiler may vectorise for the given instruction set. */
typedef void (*num_loop)(float *out, const float *x, int64_t n);
#define NUM_LOOP(suffix, attributes, name)                                                \
    attributes static void num_##name##_##suffix(float *out, const float *x, int64_t n) { \
        for (int64_t i = 0; i < n; i++) out[i] = ls_##name(x[i]);                         \
    }
#define NUM_SCALAR_LOOP(id, name) NUM_LOOP(scalar, __attribute__((noinline)), name)
NUM_EACH(NUM_SCALAR_LOOP)
#ifdef __x86_64__
#define NUM_AVX2_LOOP(id, name) NUM_LOOP(avx2, __attribute__((noinline, target("avx2,fma"))), name)
#define NUM_AVX512_LOOP(id, name) \
    NUM_LOOP(avx512, __attribute__((noinline, target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))), name)
NUM_EACH(NUM_AVX2_LOOP)
NUM_EACH(NUM_AVX512_LOOP)
#endif

static const num_loop num_loops[NUM_FUNCTIONS][NUM_BODIES] = {
#ifdef __x86_64__
#define NUM_ROW(id, name) {num_##name##_scalar, num_##name##_avx2, num_##name##_avx512},
#else
#define NUM_ROW(id, name) {num_##name##_scalar, NULL, NULL},
#endif
    NUM_EACH(NUM_ROW)
#undef NUM_ROW
};

static inline int num_body_runs(int body) {
#ifdef __x86_64__
    if (body == NUM_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (body == NUM_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("fma");
#endif
    return body == NUM_SCALAR;
}

static inline double num_clamp(double x) { return x >= -126.0 ? (x > 127.0 ? 127.0 : x) : -126.0; }

/* Inputs whose results are fixed by definition, not by rounding: NaN, infinities, poles. True if x is one; *bits is the
 * result. */
static inline int num_special(int function, float x, uint32_t *bits) {
    const uint32_t nan_bits = 0x7FC00000u, inf_bits = 0x7F800000u, minus = 0x80000000u;
    const int is_inf = isinf(x);
    *bits = nan_bits;
    if (function == NUM_EXP2_BOUNDED) {
        *bits = isnan(x) || x < 0 ? 0x00800000u : 0x7F000000u;
        return isnan(x) || is_inf;
    }
    if (isnan(x)) return 1;
    switch (function) {
        case NUM_EXP: *bits = x > 0 ? inf_bits : 0; return is_inf;
        case NUM_LOG: *bits = x == 0 ? inf_bits | minus : x > 0 ? inf_bits : nan_bits; return x <= 0 || is_inf;
        case NUM_LOG1P: *bits = x == -1 ? inf_bits | minus : x > 0 ? inf_bits : nan_bits; return x <= -1 || is_inf;
        case NUM_SIGMOID: *bits = x > 0 ? 0x3F800000u : 0; return is_inf;
        case NUM_SILU: *bits = x > 0 ? inf_bits : minus; return is_inf;
        default: *bits = x > 0 ? inf_bits : 0; return is_inf;
    }
}

/* The true value to a few units of 2^-53, for inputs that are not special. */
static inline double num_true64(int function, double x) {
    const double e = exp(-fabs(x));
    const double sigmoid = x < 0 ? e / (1 + e) : 1 / (1 + e);
    switch (function) {
        case NUM_EXP2_BOUNDED: return exp2(num_clamp(x));
        case NUM_EXP: return exp(x);
        case NUM_LOG: return log(x);
        case NUM_LOG1P: return log1p(x);
        case NUM_SIGMOID: return sigmoid;
        case NUM_SILU: return x * sigmoid;
        default: return x > 40 ? x : log1p(exp(x));
    }
}

/* log2 of the ulp of a float32. */
static inline int num_ulp_exponent(float rounded) {
    uint32_t bits, field;
    memcpy(&bits, &rounded, sizeof bits);
    field = (bits >> 23) & 255u;
    return (int)(field == 0 ? 1u : field == 255u ? 254u : field) - 150;
}

static inline double num_power2(int exponent) {
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double num_as_finite(float got) { return isinf(got) ? copysign(0x1p128, got) : got; }

/* Error of a special result: 0 or infinity. */
static inline double num_special_error(uint32_t expected, float got) {
    uint32_t bits;
    memcpy(&bits, &got, sizeof bits);
    return bits == expected ? 0.0 : INFINITY;
}

/* Error in ulps by float64: good to about 1e-7 ulp, because 2^-53 * 4 of a value is 2^-27 of its float32 ulp. */
static inline double num_error64(int function, float x, float got) {
    uint32_t special;
    double truth, error;
    if (num_special(function, x, &special)) return num_special_error(special, got);
    truth = num_true64(function, x);
    if (isnan(got) || !signbit(got) != !signbit(truth)) return INFINITY;
    if (fabs(truth) > 0x1p128) truth = copysign(0x1p128, truth);
    error = fabs(num_as_finite(got) - truth);
    return error * num_power2(-num_ulp_exponent((float)truth));
}

#ifdef LS_HAVE_MPFR
typedef struct {
    mpfr_t x, y, z;
} num_mpfr;

static inline void num_mpfr_init(num_mpfr *m) { mpfr_inits2(96, m->x, m->y, m->z, (mpfr_ptr)0); }
static inline void num_mpfr_clear(num_mpfr *m) {
    mpfr_clears(m->x, m->y, m->z, (mpfr_ptr)0);
    mpfr_free_cache();
}

/* Error in ulps by MPFR at 96 bits. */
static inline double num_error_mpfr(num_mpfr *m, int function, float x, float got) {
    uint32_t special;
    if (num_special(function, x, &special)) return num_special_error(special, got);
    if (isnan(got)) return INFINITY;
    mpfr_set_d(m->x, x, MPFR_RNDN);
    switch (function) {
        case NUM_EXP2_BOUNDED:
            mpfr_set_d(m->x, num_clamp(x), MPFR_RNDN);
            mpfr_exp2(m->y, m->x, MPFR_RNDN);
            break;
        case NUM_EXP: mpfr_exp(m->y, m->x, MPFR_RNDN); break;
        case NUM_LOG: mpfr_log(m->y, m->x, MPFR_RNDN); break;
        case NUM_LOG1P: mpfr_log1p(m->y, m->x, MPFR_RNDN); break;
        case NUM_SOFTPLUS:
            mpfr_exp(m->z, m->x, MPFR_RNDN);
            mpfr_log1p(m->y, m->z, MPFR_RNDN);
            /* MPFR's exponents end: above them log(1 + e^x) is x to 96 bits. */
            if (x > 100) mpfr_set(m->y, m->x, MPFR_RNDN);
            break;
        default:
            /* 1 / (1 + e^-x), times x for silu. */
            mpfr_neg(m->z, m->x, MPFR_RNDN);
            mpfr_exp(m->z, m->z, MPFR_RNDN);
            mpfr_add_ui(m->z, m->z, 1, MPFR_RNDN);
            if (function == NUM_SIGMOID) mpfr_ui_div(m->y, 1, m->z, MPFR_RNDN);
            if (function == NUM_SILU) mpfr_div(m->y, m->x, m->z, MPFR_RNDN);
            break;
    }
    if ((mpfr_signbit(m->y) != 0) != (signbit(got) != 0)) return INFINITY;
    if (mpfr_cmp_d(m->y, 0x1p128) > 0) mpfr_set_d(m->y, 0x1p128, MPFR_RNDN);
    {
        const int ulp = num_ulp_exponent(mpfr_get_flt(m->y, MPFR_RNDN));
        mpfr_sub_d(m->z, m->y, num_as_finite(got), MPFR_RNDN);
        mpfr_mul_2si(m->z, m->z, -ulp, MPFR_RNDN);
        return fabs(mpfr_get_d(m->z, MPFR_RNDN));
    }
}
#endif

#endif
