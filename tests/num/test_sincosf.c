/* Sine and cosine of angles: each is the float32 nearest to the true value, at every position below 262,144 of the
 * frequencies of published models, and over the whole range; what is not an angle. */
#include <math.h>

#include "harness.h"
#include "num/sincosf.h"

/* The binary32 nearest to sin x (or cos x) by libm: from its binary64, whose error is below an ulp, unless that lies so
 * near a tie that it might be on the wrong side; then from its long double. */
static float nearest(double wide, long double (*exact)(long double), float x) {
    const double margin = 0x1p-51 * fabs(wide);
    const float low = (float)(wide - margin), high = (float)(wide + margin);
    return low == high ? low : (float)exact((long double)x);
}

static bool is_right(float x) {
    float s, c;
    ls_sincosf(x, &s, &c);
    return ls_bits(s) == ls_bits(nearest(sin((double)x), sinl, x)) &&
           ls_bits(c) == ls_bits(nearest(cos((double)x), cosl, x));
}

/* base^(-2j/dim) in binary64, once rounded: which float32 near it is taken matters to nobody here. */
static float frequency(double base, int64_t dim, int64_t j) { return (float)pow(base, -2.0 * (double)j / (double)dim); }

/* Every frequency of a stride of positions, which differs with it, so that all strides together are every position of
 * the first table, the one of Llama 2, Mistral 0.1 and most others. */
static void reachable_angles_are_right(void **state) {
    static const struct {
        double base;
        int64_t dim, step;
    } tables[] = {{10000.0, 128, 1}, {500000.0, 128, 5}, {1000000.0, 128, 5},  {10000000.0, 128, 13},
                  {10000.0, 64, 13}, {500000.0, 64, 13}, {5000000.0, 256, 31}, {10000.0, 256, 31}};
    int64_t n = 0;
    (void)state;
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (int64_t j = 0; j < tables[t].dim / 2; j++) {
            const float f = frequency(tables[t].base, tables[t].dim, j);
            for (int64_t p = j % tables[t].step; p < 262144; p += tables[t].step, n++)
                if (!is_right(ls_angle(p, f)))
                    fail_msg("base %g, dim %lld, frequency %lld, position %lld", tables[t].base,
                             (long long)tables[t].dim, (long long)j, (long long)p);
        }
    print_message("%lld angles\n", (long long)n);
}

/* Angles of every exponent, and those next to multiples of pi/2, where most is lost. */
static void any_angle_is_right(void **state) {
    uint64_t seed = 5;
    (void)state;
    for (int64_t i = 0; i < 4000000; i++) {
        const float x = ls_from_bits((uint32_t)(test_random(&seed) % ls_bits(LS_ANGLE_END)));
        if (!is_right(x)) fail_msg("%a", (double)x);
    }
    for (int64_t k = 0; k < 10680707; k += 7) {
        const float x = (float)((long double)k * 1.57079632679489661923132169163975144L);
        if (x < LS_ANGLE_END && !is_right(x)) fail_msg("%lld quarters: %a", (long long)k, (double)x);
    }
}

static void ends_are_stated(void **state) {
    float s, c;
    (void)state;
    ls_sincosf(0.0f, &s, &c);
    assert_int_equal(ls_bits(s), 0);
    assert_true(c == 1.0f);
    assert_true(ls_angle(16777215, 1.0f) == 16777215.0f);
    assert_int_equal(ls_bits(ls_angle(16777216, 0.5f)), 0x7FC00000u);
    ls_sincosf(ls_angle(INT64_MAX, 1.0f), &s, &c);
    assert_int_equal(ls_bits(s), 0x7FC00000u);
    assert_int_equal(ls_bits(c), 0x7FC00000u);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reachable_angles_are_right),
                                       cmocka_unit_test(any_angle_is_right), cmocka_unit_test(ends_are_stated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
