/* Moments in bf16: the rounding by chance against a reading of it in binary64, its mean and its independence against
 * the variance of what is drawn; a step against that of float32 moments, element by element; second moments that reach
 * the limit at which nearest-even stands still. */
#include "op/adamw.h"
#include "op/adamw_math.h"
#include "op/op_case.h"
#include "op/philox_ref.h"

static const ls_adamw_options usual = {1e-3, 0.9, 0.999, 1e-8, 0.1};

/* ---- the textbook ---- */

/* Between its neighbours in bf16 a value goes up where its distance to the lower one, in 65536ths of theirs, and the
 * random number make 65536 together. Every operation here is exact. */
static float round_ref(float x, uint32_t random) {
    const double size = fabs((double)x), most = (double)ls_bf16_to_f32(0x7F7F);
    double gap, low;
    int exponent;
    if (isnan(x)) return ls_bf16_to_f32(0x7FC0);
    if (isinf(x) || x == 0.0f) return x;
    if (size >= most) return (float)copysign(most, (double)x);
    (void)frexp(size, &exponent);
    gap = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 8);
    low = floor(size / gap) * gap;
    if ((size - low) / gap * 65536.0 + (double)random >= 65536.0) low += gap;
    return (float)copysign(low, (double)x);
}

/* The random word of an element. */
static uint32_t word_ref(const ls_adamw_rounding *r, int64_t i) {
    const uint64_t element = (uint64_t)(r->first + i), step = (uint64_t)r->step;
    const uint32_t counter[4] = {(uint32_t)(element / 4), (uint32_t)(element / 4 >> 32), (uint32_t)step,
                                 0x6D6F6D65u ^ (uint32_t)(step >> 32)};
    uint32_t word[4];
    philox_ref(word, counter, r->seed);
    return word[element % 4];
}

/* ---- one value ---- */

static void check_round(uint32_t bits, uint32_t random) {
    const float x = ls_from_bits(bits), got = ls_moment_round(x, random), expected = round_ref(x, random);
    if (ls_bits(got) != ls_bits(expected))
        fail_msg("%08x with %04x became %08x, expected %08x", bits, random, ls_bits(got), ls_bits(expected));
    assert_true((ls_bits(got) & 0xFFFFu) == 0);
}

/* Every bf16, and values between it and the next one, with random numbers around those that decide. */
static void rounding_is_exact(void **state) {
    static const uint32_t low[] = {0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF};
    uint64_t seed = 5;
    (void)state;
    for (uint32_t high = 0; high < 65536; high++)
        for (int64_t i = 0; i <= OP_COUNT(low); i++) {
            const uint32_t cut = i < OP_COUNT(low) ? low[i] : (uint32_t)test_random(&seed) & 0xFFFFu;
            const uint32_t random[] = {0, 0xFFFF, (0xFFFFu - cut) & 0xFFFFu, (0x10000u - cut) & 0xFFFFu,
                                       (uint32_t)test_random(&seed) & 0xFFFFu};
            for (int64_t r = 0; r < OP_COUNT(random); r++) check_round(high << 16 | cut, random[r]);
        }
}

/* Over all random numbers the mean of what is stored is the value, exactly. */
static void all_draws_together_are_exact(void **state) {
    uint64_t seed = 9;
    (void)state;
    for (int i = 0; i < 400; i++) {
        const uint32_t sign = i % 2 == 0 ? 0 : 0x80000000u, exponent = (uint32_t)(i * 254 / 400) << 23;
        const float x = ls_from_bits(sign | exponent | ((uint32_t)test_random(&seed) & 0x7FFFFFu));
        int exact;
        double sum = 0.0;
        if (fabs((double)x) >= (double)ls_bf16_to_f32(0x7F7F)) continue;
        (void)frexp((double)x, &exact);
        for (uint32_t random = 0; random < 65536; random++)
            sum += ldexp((double)ls_moment_round(x, random), -exact); /* multiples of 2^-133 below 2^17: no rounding */
        if (sum != ldexp((double)x, 16 - exact)) fail_msg("%a: the mean is %a", (double)x, ldexp(sum, exact - 16));
    }
}

/* ---- a step ---- */

typedef struct arrays {
    op_array w, m, v, grad, value;
} arrays;

static arrays make(ls_dtype moments, int64_t n) {
    return (arrays){op_array_make(LS_F32, 1, n, 0), op_array_make(moments, 1, n, 0), op_array_make(moments, 1, n, 0),
                    op_array_make(LS_F32, 1, n, 0), op_array_make(LS_BF16, 1, n, 0)};
}

static arrays copy(const arrays *a) {
    return (arrays){op_copy(&a->w), op_copy(&a->m), op_copy(&a->v), op_copy(&a->grad), op_copy(&a->value)};
}

static void free_arrays(arrays *a) {
    op_array_free(&a->w);
    op_array_free(&a->m);
    op_array_free(&a->v);
    op_array_free(&a->grad);
    op_array_free(&a->value);
}

static void step(ls_device *device, const arrays *a, const ls_adamw_options *o, const ls_adamw_rounding *rounding) {
    ls_adamw_args args = {.w = op_floats(&a->w),
                          .m = a->m.data,
                          .v = a->v.data,
                          .moments = a->m.dtype,
                          .grad = op_floats(&a->grad),
                          .scale = 0.37f,
                          .n = a->w.cols,
                          .value = a->value.data,
                          .value_dtype = a->value.dtype};
    ls_error err;
    if (a->m.dtype == LS_BF16) args.rounding = *rounding;
    assert_ok(ls_adamw_factors_make(&args.factors, o, rounding->step, &err), err);
    assert_ok(ls_adamw(device, &args, &err), err);
}

/* A step of float32 moments, which begin as bf16 holds them and are rounded behind it; `variant` 1 and 2 are wrong on
 * purpose: the halves of the word change places, numbers count from the call. */
static arrays expect(const arrays *start, const ls_adamw_rounding *rounding, int variant) {
    arrays wide = make(LS_F32, start->w.cols), a = copy(start);
    ls_adamw_rounding r = *rounding;
    if (variant == 2) r.first = 0;
    for (int64_t i = 0; i < start->w.cols; i++) {
        op_put(&wide.w, 0, i, op_get(&start->w, 0, i));
        op_put(&wide.m, 0, i, op_get(&start->m, 0, i));
        op_put(&wide.v, 0, i, op_get(&start->v, 0, i));
        op_put(&wide.grad, 0, i, op_get(&start->grad, 0, i));
    }
    step(op_devices[0][0], &wide, &usual, rounding);
    for (int64_t i = 0; i < start->w.cols; i++) {
        const uint32_t word = word_ref(&r, i), low = word & 0xFFFFu, high = word >> 16;
        op_put(&a.w, 0, i, op_get(&wide.w, 0, i));
        op_put(&a.value, 0, i, op_get(&wide.w, 0, i));
        op_put(&a.m, 0, i, round_ref(op_get(&wide.m, 0, i), variant == 1 ? high : low));
        op_put(&a.v, 0, i, round_ref(op_get(&wide.v, 0, i), variant == 1 ? low : high));
    }
    free_arrays(&wide);
    return a;
}

static int64_t diffs(const arrays *expected, const arrays *got, char *text) {
    int64_t n = op_diffs(&expected->m, &got->m, OP_NAN_PINNED, text);
    if (n == 0) n = op_diffs(&expected->v, &got->v, OP_NAN_PINNED, text);
    if (n == 0) n = op_diffs(&expected->w, &got->w, OP_NAN_ANY, text);
    return n == 0 ? op_diffs(&expected->value, &got->value, OP_NAN_PINNED, text) : n;
}

static void fill(const arrays *a, op_maker maker, uint64_t seed) {
    op_fill(&a->w, maker, &seed);
    op_fill(&a->m, maker, &seed);
    op_fill(&a->v, maker, &seed);
    op_fill(&a->grad, maker, &seed);
    for (int64_t i = 0; i < a->v.cols; i++) op_put(&a->v, 0, i, fabsf(op_get(&a->v, 0, i)));
}

static void steps_are_those_of_float32(void **state) {
    static const int64_t sizes[] = {1, 3, 4, 5, 255, 257, 4097, 9001};
    /* The last two cross the end of a counter's low word. */
    static const int64_t firsts[] = {0, 4, 1, 251, (INT64_C(1) << 34) - 4, (INT64_C(1) << 34) - 3};
    static const op_maker makers[] = {op_plain, op_wide, op_special};
    const ls_isa isa = op_isa(state);
    char text[160];
    for (int64_t s = 0; s < OP_COUNT(sizes); s++)
        for (int64_t f = 0; f < OP_COUNT(firsts); f++) {
            const ls_adamw_rounding r = {UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)s,
                                         s % 3 == 2 ? (INT64_C(1) << 40) + s : 1 + s, firsts[f]};
            arrays start = make(LS_BF16, sizes[s]), expected;
            fill(&start, makers[(s + f) % 3], (uint64_t)(s + 10 * f + 1));
            expected = expect(&start, &r, 0);
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                arrays got = copy(&start);
                step(op_devices[isa][t], &got, &usual, &r);
                if (diffs(&expected, &got, text) != 0)
                    fail_msg("%lld elements from %lld on, threads %d: %s", (long long)sizes[s], (long long)firsts[f],
                             t + 1, text);
                free_arrays(&got);
            }
            free_arrays(&expected);
            free_arrays(&start);
        }
}

/* Ranges of a call, as ranks take them, carry no bit; and what must not be taken for the rule is not. */
static void cuts_carry_no_bits(void **state) {
    const ls_adamw_rounding r = {7, 3, 1000};
    const int64_t n = 5000, cut = 1237;
    arrays start = make(LS_BF16, n), whole, parts;
    char text[160];
    (void)state;
    fill(&start, op_plain, 4);
    whole = expect(&start, &r, 0);
    parts = copy(&start);
    for (int part = 0; part < 2; part++) {
        const int64_t from = part == 0 ? 0 : cut, bytes = 2 * from;
        const ls_adamw_rounding here = {r.seed, r.step, r.first + from};
        const arrays piece = {.w = {LS_F32, 1, part == 0 ? cut : n - cut, n, 0, parts.w.data + 2 * bytes, NULL},
                              .m = {LS_BF16, 1, 0, n, 0, parts.m.data + bytes, NULL},
                              .v = {LS_BF16, 1, 0, n, 0, parts.v.data + bytes, NULL},
                              .grad = {LS_F32, 1, 0, n, 0, parts.grad.data + 2 * bytes, NULL},
                              .value = {LS_BF16, 1, 0, n, 0, parts.value.data + bytes, NULL}};
        step(op_devices[0][1], &piece, &usual, &here);
    }
    if (diffs(&whole, &parts, text) != 0) fail_msg("in two parts: %s", text);
    for (int variant = 1; variant <= 2; variant++) {
        arrays wrong = expect(&start, &r, variant);
        if (diffs(&whole, &wrong, text) == 0) fail_msg("variant %d is not seen", variant);
        free_arrays(&wrong);
    }
    for (int other = 0; other < 2; other++) {
        const ls_adamw_rounding next = {r.seed + (other == 0), r.step, r.first + (other == 1)};
        arrays got = expect(&start, &next, 0);
        if (diffs(&whole, &got, text) == 0) fail_msg("another seed or place has the same bits");
        free_arrays(&got);
    }
    free_arrays(&whole);
    free_arrays(&parts);
    free_arrays(&start);
}

/* ---- many draws ---- */

/* Whether an element went up, 1 or 0, less the chance of it. */
typedef struct draws {
    double *m, *v;
    double mean_m, mean_v;
    int64_t n;
} draws;

/* A step without a gradient on m and v of 1, with betas of 1 - 2^-9 and 1 - 3 2^-10: half and three quarters of the way
 * down to the next bf16, 1 - 2^-8. */
static draws draw(int64_t n, int64_t t) {
    const ls_adamw_options o = {0.0, 1.0 - 0x1p-9, 1.0 - 0x3p-10, 1e-8, 0.0};
    const ls_adamw_rounding r = {12345, t, 77};
    arrays a = make(LS_BF16, n);
    draws d = {calloc((size_t)n, sizeof(double)), calloc((size_t)n, sizeof(double)), 0.0, 0.0, n};
    assert_true(d.m != NULL && d.v != NULL);
    for (int64_t i = 0; i < n; i++) {
        op_put(&a.w, 0, i, 1.0f);
        op_put(&a.m, 0, i, 1.0f);
        op_put(&a.v, 0, i, 1.0f);
        op_put(&a.grad, 0, i, 0.0f);
    }
    step(op_devices[0][0], &a, &o, &r);
    for (int64_t i = 0; i < n; i++) {
        const float m = op_get(&a.m, 0, i), v = op_get(&a.v, 0, i);
        assert_true((m == 1.0f || m == 1.0f - 0x1p-8f) && (v == 1.0f || v == 1.0f - 0x1p-8f));
        d.m[i] = m == 1.0f ? 0.5 : -0.5;
        d.v[i] = v == 1.0f ? 0.75 : -0.25;
        d.mean_m += (double)m / (double)n;
        d.mean_v += (double)v / (double)n;
    }
    free_arrays(&a);
    return d;
}

static void free_draws(draws *d) {
    free(d->m);
    free(d->v);
}

/* The mean of products of two series that have a mean of 0, in units of its standard deviation. */
static double deviations(const double *a, double variance_a, const double *b, double variance_b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return fabs(sum) / sqrt((double)n * variance_a * variance_b);
}

static void draws_are_unbiased_and_independent(void **state) {
    enum { N = 1 << 20 };
    const double gap = 0x1p-8, half = 0.25, quarter = 0.1875; /* variances of the two chances */
    draws d = draw(N, 41), next = draw(N, 42);
    (void)state;
    print_message("means of %d draws: %.2f and %.2f standard deviations from what was computed\n", N,
                  fabs(d.mean_m - (1.0 - 0x1p-9)) / (gap * sqrt(half / N)),
                  fabs(d.mean_v - (1.0 - 0x3p-10)) / (gap * sqrt(quarter / N)));
    assert_true(fabs(d.mean_m - (1.0 - 0x1p-9)) < 5.0 * gap * sqrt(half / N));
    assert_true(fabs(d.mean_v - (1.0 - 0x3p-10)) < 5.0 * gap * sqrt(quarter / N));
    assert_true(deviations(d.m, half, d.v, quarter, N) < 5.0);
    assert_true(deviations(d.m, half, next.m, half, N) < 5.0);
    assert_true(deviations(d.v, quarter, next.v, quarter, N) < 5.0);
    for (int64_t lag = 1; lag <= 8; lag++) {
        assert_true(deviations(d.m, half, d.m + lag, half, N - lag) < 5.0);
        assert_true(deviations(d.v, quarter, d.v + lag, quarter, N - lag) < 5.0);
    }
    assert_true(deviations(d.m, half, d.m, half, N) > 100.0); /* what is not independent is seen */
    free_draws(&d);
    free_draws(&next);
}

/* A constant gradient g: v goes to g^2. A change of v below half a unit of bf16 is lost to nearest-even, which stops at
 * a quarter of the way. */
static void second_moments_reach_their_limit(void **state) {
    enum { N = 4096, STEPS = 6000 };
    const ls_isa isa = op_isa(state);
    const float g = 0.37f; /* the scale of step() */
    arrays a = make(LS_BF16, N);
    float nearest = 0.0f;
    double limit = (double)g * (double)g, mean = 0.0, exact = 0.0;
    memset(a.m.data, 0, (size_t)a.m.bytes);
    memset(a.v.data, 0, (size_t)a.v.bytes);
    for (int64_t i = 0; i < N; i++) {
        op_put(&a.w, 0, i, 1.0f);
        op_put(&a.grad, 0, i, 1.0f);
    }
    for (int64_t t = 1; t <= STEPS; t++) {
        const ls_adamw_rounding r = {3, t, 0};
        ls_adamw_factors f;
        ls_error err;
        step(op_devices[isa][0], &a, &usual, &r);
        assert_ok(ls_adamw_factors_make(&f, &usual, t, &err), err);
        nearest = ls_round_bf16(ls_fma(f.beta2, nearest, ls_mul(ls_mul(f.rest2, g), g)));
        exact = usual.beta2 * exact + (1.0 - usual.beta2) * limit;
    }
    for (int64_t i = 0; i < N; i++) mean += (double)op_get(&a.v, 0, i) / N;
    print_message("v after %d steps: %.5f of its limit in the mean, exactly %.5f; nearest-even %.5f\n", STEPS,
                  mean / limit, exact / limit, (double)nearest / limit);
    assert_true(fabs(mean / exact - 1.0) < 1e-3);
    assert_true((double)nearest < 0.5 * limit);
    free_arrays(&a);
}

static void bad_arguments_are_named(void **state) {
    arrays a = make(LS_BF16, 5), before = copy(&a);
    ls_error err;
    char text[160];
    (void)state;
#define REFUSED(word, ...)                                                           \
    do {                                                                             \
        ls_adamw_args args = {.w = op_floats(&a.w),                                  \
                              .m = a.m.data,                                         \
                              .v = a.v.data,                                         \
                              .moments = LS_BF16,                                    \
                              .rounding = {1, 1, 0},                                 \
                              .grad = op_floats(&a.grad),                            \
                              .n = 5};                                               \
        __VA_ARGS__;                                                                 \
        check_failed(ls_adamw(op_devices[0][0], &args, &err), &err, "adamw: " word); \
    } while (0)
    REFUSED("moments of type f16", args.moments = LS_F16);
    REFUSED("m is a null", args.m = NULL);
    REFUSED("moments are rounded at step 0, of 5 elements from 0 on", args.rounding.step = 0);
    REFUSED("moments are rounded at step 1, of 5 elements from -1 on", args.rounding.first = -1);
    REFUSED("moments are rounded at step 1, of 5 elements from 9223372036854775803 on",
            args.rounding.first = INT64_MAX - 4);
#undef REFUSED
    assert_int_equal(diffs(&before, &a, text), 0);
    free_arrays(&a);
    free_arrays(&before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_exact),
        cmocka_unit_test(all_draws_together_are_exact),
        OP_CASES(steps_are_those_of_float32),
        cmocka_unit_test(cuts_carry_no_bits),
        cmocka_unit_test(draws_are_unbiased_and_independent),
        OP_CASES(second_moments_reach_their_limit),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
