/* Scalar functions: error against MPFR on samples, golden bits, the same bits in scalar and vectorised loops. */
#include <stdlib.h>

#include "harness.h"
#include "num/half.h"
#include "num_oracle.h"

enum { BATCH = 4096, GOLDEN_INPUTS = 1 << 20 };

/* Bit patterns next to which definitions, reductions or selects change. */
static float boundary_input(uint32_t i) {
    static const float points[] = {0.0f,        1.0f,        2.0f / 3.0f, 4.0f / 3.0f, 0.70710678f, 20.0f,
                                   88.7228394f, 89.0f,       103.97f,     103.9721f,   120.0f,      126.0f,
                                   127.0f,      12582912.0f, 0.34657359f, 12.0f};
    static const uint32_t n_points = sizeof points / sizeof points[0];
    /* All 256 exponents and both signs, eight mantissas at either end; then 64 neighbours of each point, both signs. */
    if (i < 256u * 2u * 16u) {
        const uint32_t step = i & 7u, mantissa = (i & 8u) != 0 ? 0x7FFFFFu - step : step;
        return ls_from_bits((i >> 4) << 23 | mantissa);
    }
    i -= 256u * 2u * 16u;
    return ls_from_bits((ls_bits(points[(i >> 7) % n_points]) + (i & 63u) - 32u) ^ (i & 64u) << 25);
}
enum { BOUNDARY_INPUTS = 256 * 2 * 16 + 16 * 128 };

#ifdef LS_HAVE_MPFR
enum { SAMPLES = 10000000 };

/* Where each function does something; a quarter of the samples lies evenly in it. */
static const float dense_range[NUM_FUNCTIONS][2] = {{-127, 128}, {-105, 90}, {0.25f, 4}, {-1, 4},
                                                    {-105, 20},  {-110, 21}, {-105, 21}};

/* The i-th sample: all boundaries first, then three quarters random bits, one quarter dense. */
static float sample_input(int function, int64_t i, uint64_t *random) {
    const uint64_t draw = test_random(random);
    if (i < BOUNDARY_INPUTS) return boundary_input((uint32_t)i);
    if (i % 4 != 0) return ls_from_bits((uint32_t)(draw >> 32));
    return test_uniform(random, dense_range[function][0], dense_range[function][1]);
}

static int best_body(void) { return num_body_runs(NUM_AVX2) ? NUM_AVX2 : NUM_SCALAR; }
#endif

/* Float64 is the filter: its own error is below 1e-12 relative, 1e-5 ulp. What it puts above 1.5 ulp goes to MPFR, and
 * so does every 63rd sample whatever the filter says: 158,731 of 10^7. */
static void errors_stay_within_two_ulps(void **state) {
    (void)state;
#ifdef LS_HAVE_MPFR
    num_mpfr m;
    num_mpfr_init(&m);
    for (int function = 0; function < NUM_FUNCTIONS; function++) {
        uint64_t random = 0x9E3779B97F4A7C15u + (uint64_t)function;
        double worst = 0.0, filter_gap = 0.0;
        float worst_x = 0.0f;
        for (int64_t start = 0; start < SAMPLES; start += BATCH) {
            float x[BATCH], got[BATCH];
            for (int64_t i = 0; i < BATCH; i++) x[i] = sample_input(function, start + i, &random);
            num_loops[function][best_body()](got, x, BATCH);
            for (int64_t i = 0; i < BATCH; i++) {
                const double filtered = num_error64(function, x[i], got[i]);
                double error = filtered;
                if (filtered > 1.5 || (start + i) % 63 == 0) {
                    error = num_error_mpfr(&m, function, x[i], got[i]);
                    if (error < 4.0) filter_gap = fmax(filter_gap, fabs(error - filtered));
                }
                if (error > worst) {
                    worst = error;
                    worst_x = x[i];
                }
            }
        }
        printf("%-14s max %.4f ulp at %a, float64 within %.1e ulp of MPFR\n", num_names[function], worst,
               (double)worst_x, filter_gap);
        if (!(worst <= 2.0)) fail_msg("%s: %g ulp at %a", num_names[function], worst, (double)worst_x);
        assert_true(filter_gap < 1e-5);
    }
    num_mpfr_clear(&m);
#else
    print_message("built without MPFR: errors are not measured\n");
    skip();
#endif
}

/* The textbook softplus loses everything but the leading digits of e^x where 1 swallows it. */
static void textbook_softplus_fails(void **state) {
    const float x = -12.0f;
    const float textbook = ls_log(ls_add(ls_exp(x), 1.0f));
    (void)state;
    assert_true(num_error64(NUM_SOFTPLUS, x, textbook) > 2.0);
    assert_true(num_error64(NUM_SOFTPLUS, x, ls_softplus(x)) <= 2.0);
#ifdef LS_HAVE_MPFR
    num_mpfr m;
    num_mpfr_init(&m);
    assert_true(num_error_mpfr(&m, NUM_SOFTPLUS, x, textbook) > 2.0);
    assert_true(num_error_mpfr(&m, NUM_SOFTPLUS, x, ls_softplus(x)) <= 2.0);
    num_mpfr_clear(&m);
#endif
}

/* Half of the fixed inputs step through all bit patterns, half lie evenly in [-112, 112): integers decide both. */
static float golden_input(uint32_t i) {
    const uint32_t mixed = i * 2654435761u;
    if (i % 2 == 0) return ls_from_bits(i << 12 | mixed >> 20);
    return (float)((int32_t)(mixed >> 8) - (1 << 23)) * (112.0f / 8388608.0f);
}

static uint64_t fnv1a(const float *x, int64_t n) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int64_t i = 0; i < n; i++)
        for (unsigned shift = 0; shift < 32; shift += 8)
            hash = (hash ^ ((ls_bits(x[i]) >> shift) & 255u)) * 0x100000001B3u;
    return hash;
}

/* FNV-1a 64 of the results' bytes, low byte first. */
static const uint64_t golden[NUM_FUNCTIONS] = {
    0x893BE6C8785B0970u, /* exp2_bounded */
    0x9C1A1E6CB1FB9FBCu, /* exp */
    0xD280B7EAC57FE53Bu, /* log */
    0x515F052919E36BC0u, /* log1p */
    0xE0F4AFB04C670D41u, /* sigmoid */
    0xBEACCF696F80AA2Fu, /* silu */
    0x849C3D9A9388B7CBu, /* softplus */
};

static void bits_are_golden_in_every_loop(void **state) {
    float *x = malloc(GOLDEN_INPUTS * sizeof *x), *out = malloc(GOLDEN_INPUTS * sizeof *out);
    int wrong = 0;
    (void)state;
    assert_non_null(x);
    assert_non_null(out);
    for (uint32_t i = 0; i < GOLDEN_INPUTS; i++) x[i] = golden_input(i);
    for (int function = 0; function < NUM_FUNCTIONS; function++)
        for (int body = 0; body < NUM_BODIES; body++) {
            uint64_t hash;
            if (!num_body_runs(body)) continue;
            memset(out, 0, GOLDEN_INPUTS * sizeof *out);
            num_loops[function][body](out, x, GOLDEN_INPUTS);
            hash = fnv1a(out, GOLDEN_INPUTS);
            if (hash == golden[function]) continue;
            print_error("%s, body %d: 0x%016llX\n", num_names[function], body, (unsigned long long)hash);
            wrong++;
        }
    free(x);
    free(out);
    assert_int_equal(wrong, 0);
}

/* One call at a time, kept apart from any loop optimisation, against the vectorised loop. */
static void single_calls_equal_loops(void **state) {
    (void)state;
    for (int function = 0; function < NUM_FUNCTIONS; function++) {
        float x[BATCH], one[BATCH], loop[BATCH];
        for (uint32_t i = 0; i < BATCH; i++) x[i] = boundary_input(i * 5u % BOUNDARY_INPUTS);
        for (int64_t i = 0; i < BATCH; i++) {
            volatile float input = x[i];
            const float single = input;
            num_loops[function][NUM_SCALAR](&one[i], &single, 1);
        }
        for (int body = 0; body < NUM_BODIES; body++) {
            if (!num_body_runs(body)) continue;
            num_loops[function][body](loop, x, BATCH);
            assert_same_bits(one, loop, BATCH);
        }
    }
}

static void special_values(void **state) {
    static const struct {
        int function;
        float x;
        uint32_t bits;
    } cases[] = {
        {NUM_EXP2_BOUNDED, 0.0f, 0x3F800000u},
        {NUM_EXP2_BOUNDED, -1000.0f, 0x00800000u},
        {NUM_EXP2_BOUNDED, 1000.0f, 0x7F000000u},
        {NUM_EXP2_BOUNDED, NAN, 0x00800000u},
        {NUM_EXP2_BOUNDED, -7.0f, 0x3C000000u},
        {NUM_EXP, 0.0f, 0x3F800000u},
        {NUM_EXP, -0.0f, 0x3F800000u},
        {NUM_EXP, INFINITY, 0x7F800000u},
        {NUM_EXP, -INFINITY, 0u},
        {NUM_EXP, NAN, 0x7FC00000u},
        {NUM_EXP, 88.7228394f, 0x7F800000u},
        {NUM_EXP, -103.0f, 0x00000001u},
        {NUM_LOG, 1.0f, 0u},
        {NUM_LOG, 0.0f, 0xFF800000u},
        {NUM_LOG, -0.0f, 0xFF800000u},
        {NUM_LOG, -1.0f, 0x7FC00000u},
        {NUM_LOG, INFINITY, 0x7F800000u},
        {NUM_LOG, -INFINITY, 0x7FC00000u},
        {NUM_LOG, -NAN, 0x7FC00000u},
        {NUM_LOG1P, -1.0f, 0xFF800000u},
        {NUM_LOG1P, -2.0f, 0x7FC00000u},
        {NUM_LOG1P, -0.0f, 0x80000000u},
        {NUM_LOG1P, 0x1p-149f, 0x00000001u},
        {NUM_LOG1P, -INFINITY, 0x7FC00000u},
        {NUM_LOG1P, INFINITY, 0x7F800000u},
        {NUM_LOG1P, NAN, 0x7FC00000u},
        {NUM_SIGMOID, 0.0f, 0x3F000000u},
        {NUM_SIGMOID, -0.0f, 0x3F000000u},
        {NUM_SIGMOID, INFINITY, 0x3F800000u},
        {NUM_SIGMOID, -INFINITY, 0u},
        {NUM_SIGMOID, NAN, 0x7FC00000u},
        {NUM_SILU, 0.0f, 0u},
        {NUM_SILU, -0.0f, 0x80000000u},
        {NUM_SILU, INFINITY, 0x7F800000u},
        {NUM_SILU, -INFINITY, 0x80000000u},
        {NUM_SILU, NAN, 0x7FC00000u},
        {NUM_SOFTPLUS, 20.5f, 0x41A40000u},
        {NUM_SOFTPLUS, INFINITY, 0x7F800000u},
        {NUM_SOFTPLUS, -INFINITY, 0u},
        {NUM_SOFTPLUS, NAN, 0x7FC00000u},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int body = 0; body < NUM_BODIES; body++) {
            float got;
            if (!num_body_runs(body)) continue;
            num_loops[cases[i].function][body](&got, &cases[i].x, 1);
            if (ls_bits(got) != cases[i].bits)
                fail_msg("%s(%a) = 0x%08x, not 0x%08x", num_names[cases[i].function], (double)cases[i].x, ls_bits(got),
                         cases[i].bits);
        }
}

/* 2^(a b), read from its contract: branches, and the power of two by ldexp but for the one place where that is not what
 * the sum of bits means: a product that rounds up to -126. */
static float product_ref(float a, float b) {
    const float x = a * b, n = fmaf(a, b, 12582912.0f) - 12582912.0f;
    float p;
    if (!(x >= -126.0f)) return 0x1p-126f;
    if (x > 127.0f) return 0x1p127f;
    p = ls_exp2_poly(fmaf(a, b, -n));
    return n == -126.0f && p < 1.0f ? ls_from_bits(ls_bits(p) - (126u << 23)) : ldexpf(p, (int)n);
}

/* Loops of the kind the scan has: the compiler may vectorise them. */
typedef void (*product_loop)(float *out, const float *a, const float *b, int64_t n);
#define PRODUCT_LOOP(suffix, attributes)                                                              \
    attributes static void products_##suffix(float *out, const float *a, const float *b, int64_t n) { \
        for (int64_t i = 0; i < n; i++) out[i] = ls_exp2_product(a[i], b[i]);                         \
    }
PRODUCT_LOOP(scalar, __attribute__((noinline)))
#ifdef __x86_64__
PRODUCT_LOOP(avx2, __attribute__((noinline, target("avx2,fma"))))
PRODUCT_LOOP(avx512, __attribute__((noinline, target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))))
static const product_loop product_loops[NUM_BODIES] = {products_scalar, products_avx2, products_avx512};
#else
static const product_loop product_loops[NUM_BODIES] = {products_scalar, NULL, NULL};
#endif

static void products(void **state) {
    static const struct {
        float a, b;
        uint32_t bits;
    } edges[] = {
        {0.0f, -5.0f, 0x3F800000u},
        {-0.0f, 5.0f, 0x3F800000u},
        {3.0f, -2.0f, 0x3C800000u},
        {1.0f, -126.0f, 0x00800000u},
        {1.0f, 127.0f, 0x7F000000u},
        {2.0f, 63.5f, 0x7F000000u},
        {1.0f, -0x1.f80002p+6f, 0x00800000u},           /* just below -126 */
        {0x1.9a5f2ap+1f, -0x1.3a685ap+5f, 0x007FFFECu}, /* rounds up to -126 */
        {1.0f, 0x1.fc0002p+6f, 0x7F000000u},            /* just above 127 */
        {1e30f, 1e30f, 0x7F000000u},
        {-1e30f, 1e30f, 0x00800000u},
        {INFINITY, 1.0f, 0x7F000000u},
        {-INFINITY, 1.0f, 0x00800000u},
        {INFINITY, 0.0f, 0x00800000u},
        {NAN, 1.0f, 0x00800000u},
        {1.0f, -NAN, 0x00800000u},
    };
    float a[BATCH], b[BATCH], out[BATCH];
    uint64_t random = 77;
    int64_t unrounded = 0;
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        for (int body = 0; body < NUM_BODIES; body++) {
            if (!num_body_runs(body)) continue;
            product_loops[body](out, &edges[i].a, &edges[i].b, 1);
            if (ls_bits(out[0]) != edges[i].bits)
                fail_msg("2^(%a * %a) = 0x%08x, not 0x%08x", (double)edges[i].a, (double)edges[i].b, ls_bits(out[0]),
                         edges[i].bits);
        }
    for (int batch = 0; batch < 300; batch++) {
        if (!num_body_runs(batch % NUM_BODIES)) continue;
        for (int64_t i = 0; i < BATCH; i++) {
            /* A third about each end of the range, a third anywhere in it, some of anything. */
            const float x = i % 3 == 0 ? -126.0f : i % 3 == 1 ? 127.0f : test_uniform(&random, -126.0f, 127.0f);
            a[i] = i % 17 == 0 ? boundary_input((uint32_t)(test_random(&random) % BOUNDARY_INPUTS))
                               : test_uniform(&random, 0x1p-6f, 12.0f);
            b[i] = ls_from_bits(ls_bits(x / a[i]) + (uint32_t)(test_random(&random) % 5) - 2u);
        }
        product_loops[batch % NUM_BODIES](out, a, b, BATCH);
        for (int64_t i = 0; i < BATCH; i++) {
            const float expected = product_ref(a[i], b[i]);
            if (ls_bits(out[i]) != ls_bits(expected))
                fail_msg("2^(%a * %a) = %a, not %a", (double)a[i], (double)b[i], (double)out[i], (double)expected);
            unrounded += ls_bits(out[i]) != ls_bits(ls_exp2_bounded(a[i] * b[i]));
        }
    }
    /* The product is not rounded on the way, and the comparison can tell. */
    assert_true(unrounded > 1000);
}

/* Every multiple of 2^-13 from 9 down to -130: the bf16 nearest to the power of two, which no approximation to 2^-21
 * could miss. */
static void lifted_powers_leave_one_bf16(void **state) {
    double nearest = 1.0;
    (void)state;
    for (int i = 0; i < 139 * 8192; i++) {
        const double x = 9.0 - i / 8192.0, power = exp2(x);
        const uint16_t got = ls_f32_to_bf16(ls_exp2_lifted((float)(1536.0 + x)));
        const double whole = ldexp(1.0, (int)floor(x) - 7), steps = power / whole;
        const double expected = x < -126.0 ? 0.0 : rint(steps) * whole;
        if ((double)ls_bf16_to_f32(got) != expected) fail_msg("2^%.17g: %g", x, (double)ls_bf16_to_f32(got));
        nearest = fmin(nearest, fabs(steps - floor(steps) - 0.5) / steps);
    }
    if (nearest < 0x1p-21) fail_msg("one lies %g of itself from the middle", nearest);
    assert_int_equal(ls_f32_to_bf16(ls_exp2_lifted(-INFINITY)), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lifted_powers_leave_one_bf16),
        cmocka_unit_test(special_values),
        cmocka_unit_test(products),
        cmocka_unit_test(bits_are_golden_in_every_loop),
        cmocka_unit_test(single_calls_equal_loops),
        cmocka_unit_test(textbook_softplus_fails),
        cmocka_unit_test(errors_stay_within_two_ulps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
