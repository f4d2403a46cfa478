/* exp and log in binary64 against libm's long double versions, their exact points and special values. */
#include <math.h>

#include "harness.h"
#include "num/exp64.h"

static double error_of(double value, long double expected) {
    if ((double)expected == value) return 0.0;
    return (double)fabsl(((long double)value - expected) / expected);
}

static double uniform(uint64_t *state, double low, double high) {
    return low + (high - low) * (double)(test_random(state) >> 11) / 9007199254740992.0;
}

static void exp_is_within_its_error(void **state) {
    static const double ranges[] = {1e-12, 1e-6, 0.01, 0.34, 0.36, 1.0, 20.0, 700.0};
    uint64_t seed = 1;
    double worst = 0.0;
    (void)state;
    for (size_t k = 0; k < sizeof ranges / sizeof ranges[0]; k++)
        for (int i = 0; i < 100000; i++) {
            const double x = uniform(&seed, -ranges[k], ranges[k]);
            const double error = error_of(ls_exp64(x), expl((long double)x));
            if (error > worst) worst = error;
        }
    if (!(worst < 1e-15)) fail_msg("relative error %g", worst);
}

static void excess_does_not_cancel(void **state) {
    static const double ranges[] = {1e-140, 1e-12, 1e-6, 0.01, 0.34, 0.36, 1.0, 20.0, 700.0};
    uint64_t seed = 2;
    double worst = 0.0;
    (void)state;
    for (size_t k = 0; k < sizeof ranges / sizeof ranges[0]; k++)
        for (int i = 0; i < 20000; i++) {
            const double x = uniform(&seed, -ranges[k], ranges[k]), value = ls_exp64_excess(x);
            long double expected = expm1l((long double)x) - (long double)x;
            if (fabs(x) < 1e-3) { /* where the reference cancels: the series */
                const long double y = (long double)x;
                expected = y * y * (0.5L + y * (1.0L / 6 + y * (1.0L / 24 + y * (1.0L / 120 + y / 720))));
            }
            const double error = error_of(value, expected);
            assert_true(value >= 0.0);
            if (error > worst) worst = error;
        }
    if (!(worst < 1e-14)) fail_msg("relative error %g", worst);
}

static void log_is_within_its_error(void **state) {
    uint64_t seed = 3;
    double worst = 0.0;
    (void)state;
    for (int i = 0; i < 300000; i++) {
        const double x = i % 3 == 0   ? uniform(&seed, 0.5, 2.0)
                         : i % 3 == 1 ? 1.0 + uniform(&seed, -1e-6, 1e-6)
                                      : ls_from_bits64(test_random(&seed) & 0x7FEFFFFFFFFFFFFFu);
        const double error = error_of(ls_log64(x), logl((long double)x));
        if (x == 0.0) continue;
        if (error > worst) worst = error;
    }
    if (!(worst < 1e-15)) fail_msg("relative error %g", worst);
}

static void special_values_are_defined(void **state) {
    (void)state;
    assert_true(ls_bits64(ls_exp64(0.0)) == ls_bits64(1.0) && ls_bits64(ls_exp64(-0.0)) == ls_bits64(1.0));
    assert_true(ls_exp64(-INFINITY) == 0.0 && ls_exp64(-800.0) == 0.0);
    assert_true(ls_exp64(INFINITY) == INFINITY && ls_exp64(709.9) == INFINITY);
    assert_true(ls_exp64(709.7) < INFINITY && ls_exp64(-745.0) > 0.0);
    assert_true(ls_bits64(ls_exp64(-NAN)) == LS_NAN_BITS_64);
    assert_true(ls_bits64(ls_exp64_excess(0.0)) == 0);
    assert_true(ls_exp64_excess(INFINITY) == INFINITY && ls_exp64_excess(-INFINITY) == INFINITY);
    assert_true(isnan(ls_exp64_excess(NAN)));
    assert_true(ls_bits64(ls_log64(1.0)) == 0);
    assert_true(ls_log64(0.0) == -INFINITY && ls_log64(INFINITY) == INFINITY);
    assert_true(ls_bits64(ls_log64(-1.0)) == LS_NAN_BITS_64 && ls_bits64(ls_log64(NAN)) == LS_NAN_BITS_64);
    assert_true(error_of(ls_log64(0x1p-1074), logl(0x1p-1074L)) < 1e-15);
}

/* The same bits from every compiler and processor. */
static void bits_are_frozen(void **state) {
    uint64_t seed = 4, hash = 0;
    (void)state;
    for (int i = 0; i < 100000; i++) {
        const double x = (double)test_uniform(&seed, -30.0f, 30.0f) * (i % 2 == 0 ? 20.0 : 1.0);
        hash = hash * 1099511628211u ^ ls_bits64(ls_exp64(x));
        hash = hash * 1099511628211u ^ ls_bits64(ls_exp64_excess(x));
        hash = hash * 1099511628211u ^ ls_bits64(ls_log64(x * x));
    }
    if (hash != 0x37c9202922443191u) fail_msg("hash %016llx", (unsigned long long)hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_its_error), cmocka_unit_test(excess_does_not_cancel),
        cmocka_unit_test(log_is_within_its_error), cmocka_unit_test(special_values_are_defined),
        cmocka_unit_test(bits_are_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
