/* bf16 and fp16 conversions against float64 arithmetic, and the fold of long sums against its contract. */
#include <math.h>

#include "harness.h"
#include "num/half.h"
#include "num/sum.h"

enum { SAMPLES = 10000000 };

/* A 16-bit format by its definition: p bits of precision, exponents from e_min. */
typedef struct {
    int fraction_bits, exponent_bits, e_min;
    uint16_t canonical_nan;
} format;
static const format bf16 = {7, 8, -126, 0x7FC0}, fp16 = {10, 5, -14, 0x7E00};

static double widen_by_definition(const format *f, uint16_t h) {
    const int top = (1 << f->exponent_bits) - 1, exponent = (h >> f->fraction_bits) & top;
    const int fraction = h & ((1 << f->fraction_bits) - 1);
    double value;
    if (exponent == top) {
        value = fraction != 0 ? NAN : INFINITY;
    } else if (exponent == 0) {
        value = ldexp(fraction, f->e_min - f->fraction_bits);
    } else {
        value = ldexp(fraction + (1 << f->fraction_bits), exponent - 1 + f->e_min - f->fraction_bits);
    }
    return (h & 0x8000) != 0 ? -value : value;
}

/* Nearest even by float64's own rint of x / quantum: exact, as x has 24 bits and the quantum is a power of two. */
static uint16_t narrow_by_definition(const format *f, float x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double mag = fabs((double)x);
    const int top = (1 << f->exponent_bits) - 1;
    int exponent;
    int64_t units;
    if (isnan(x)) return f->canonical_nan;
    if (isinf(x)) return (uint16_t)(sign | top << f->fraction_bits);
    exponent = mag > 0 ? ilogb(mag) : f->e_min;
    if (exponent < f->e_min) exponent = f->e_min;
    units = (int64_t)rint(ldexp(mag, f->fraction_bits - exponent));
    /* units counts quanta of this binade; with the exponent field added below, a carry moves to the next one by itself.
     */
    units += (int64_t)(exponent - f->e_min) << f->fraction_bits;
    if (units > (int64_t)top << f->fraction_bits) units = (int64_t)top << f->fraction_bits;
    return (uint16_t)(sign | units);
}

static void widening_is_exact(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const double b = widen_by_definition(&bf16, (uint16_t)h), s = widen_by_definition(&fp16, (uint16_t)h);
        const float got_b = ls_bf16_to_f32((uint16_t)h), got_s = ls_f16_to_f32((uint16_t)h);
        if (isnan(b) ? !isnan(got_b) : (double)got_b != b || !signbit(got_b) != !signbit(b))
            fail_msg("bf16 0x%04x widens to %a", h, (double)got_b);
        if (isnan(s) ? !isnan(got_s) : (double)got_s != s || !signbit(got_s) != !signbit(s))
            fail_msg("fp16 0x%04x widens to %a", h, (double)got_s);
        /* And back: the same 16 bits, NaN canonical. */
        assert_int_equal(ls_f32_to_bf16(got_b), isnan(b) ? 0x7FC0u : h);
        assert_int_equal(ls_f32_to_f16(got_s), isnan(s) ? 0x7E00u : h);
    }
}

static void check_narrowing(uint32_t bits) {
    const float x = ls_from_bits(bits);
    const uint16_t b = ls_f32_to_bf16(x), s = ls_f32_to_f16(x);
    if (b != narrow_by_definition(&bf16, x)) fail_msg("bf16 of 0x%08x is 0x%04x", bits, b);
    if (s != narrow_by_definition(&fp16, x)) fail_msg("fp16 of 0x%08x is 0x%04x", bits, s);
}

static void narrowing_rounds_to_nearest_even(void **state) {
    uint64_t random = 77;
    (void)state;
    for (int64_t i = 0; i < SAMPLES; i++) {
        const uint64_t draw = test_random(&random);
        check_narrowing((uint32_t)(draw >> 32));
        /* Half of the work where fp16 is finite: exponents of 2^-26 to 2^16. */
        if (i % 2 == 0) check_narrowing((uint32_t)(draw >> 32 & 0x807FFFFFu) | (uint32_t)(101 + i % 43) << 23);
    }
    /* Each value of each format, the midpoint to the next, and the float32 neighbours of both. */
    for (uint32_t h = 0; h < 65536; h++) {
        const uint32_t b = h << 16, s = ls_bits(ls_f16_to_f32((uint16_t)h));
        const uint32_t s_next = ls_bits(ls_f16_to_f32((uint16_t)(h + 1)));
        const uint32_t s_middle = ls_bits((ls_from_bits(s) + ls_from_bits(s_next)) * 0.5f);
        for (uint32_t step = 0; step < 5; step++) {
            check_narrowing(b + step - 2u);
            check_narrowing(b + 0x8000u + step - 2u);
            check_narrowing(s + step - 2u);
            check_narrowing(s_middle + step - 2u);
        }
    }
    /* The largest finite fp16 is 65504: below 65520 rounds to it, from 65520 on to infinity. */
    assert_int_equal(ls_f32_to_f16(65519.996f), 0x7BFFu);
    assert_int_equal(ls_f32_to_f16(65520.0f), 0x7C00u);
}

/* The contract of num/sum.h as a recursion: a chain pairs with the one `half` above it, and so on down. */
static float fold_run(const float *chain, int j, int half) {
    if (half == 8) return chain[j];
    return fold_run(chain, j, 2 * half) + fold_run(chain, j + half, 2 * half);
}
static float fold_runs(const float *chain, int run, int half) {
    if (half == 32) return fold_run(chain + 8 * run, 0, 1);
    return fold_runs(chain, run, 2 * half) + fold_runs(chain, run + half, 2 * half);
}

static void fold_follows_its_contract(void **state) {
    uint64_t random = 5;
    (void)state;
    for (int trial = 0; trial < 2000; trial++) {
        float chain[LS_SUM_CHAINS], folded, expected;
        double sum = 0.0, magnitude = 0.0;
        for (int i = 0; i < LS_SUM_CHAINS; i++) {
            chain[i] = ldexpf(test_uniform(&random, -1, 1), trial % 2 == 0 ? 0 : (int)(test_random(&random) >> 59));
            sum += (double)chain[i];
            magnitude += fabs((double)chain[i]);
        }
        expected = fold_runs(chain, 0, 1);
        folded = ls_sum_fold(chain);
        assert_same_bits(&folded, &expected, 1);
        /* Eight levels of rounded adds, each off by at most 2^-24 of what it adds. */
        assert_true(fabs((double)folded - sum) <= 8.001 * 0x1p-24 * magnitude);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widening_is_exact),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(fold_follows_its_contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
