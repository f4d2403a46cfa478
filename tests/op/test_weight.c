/* Weights as ops compute with them against a textbook reading of their contracts, bit for bit: widening of every 16-bit
 * value, decay, taps and back; sizes, instruction sets, threads, special values; variants that must be caught; bad
 * arguments. weight_cast is tested with the optimizer. */
#include "op/op_case.h"
#include "op/weight.h"

static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
static const int64_t sizes[] = {1, 7, 16, 255, 4095, 4096, 4097, 20000};
#define TAIL 16 /* elements behind an output that stay as they are */

/* A stored element as a number, from its bits. */
static float value_of(const op_array *x, int64_t i) {
    uint16_t half;
    float whole;
    int exponent;
    if (x->dtype == LS_F32) {
        memcpy(&whole, op_at(x, 0, i), 4);
        return whole;
    }
    memcpy(&half, op_at(x, 0, i), 2);
    if (x->dtype == LS_BF16) return ls_from_bits((uint32_t)half << 16);
    exponent = half >> 10 & 31;
    whole = exponent == 0    ? ldexpf((float)(half & 1023), -24)
            : exponent == 31 ? ((half & 1023) != 0 ? NAN : INFINITY)
                             : ldexpf((float)(1024 + (half & 1023)), exponent - 25);
    return (half & 0x8000) != 0 ? -whole : whole;
}

static op_array stored_make(ls_dtype dtype, int64_t n, uint64_t seed) {
    const op_array x = op_array_make(dtype, 1, n, 0);
    op_fill(&x, op_special, &seed);
    return x;
}

/* ---- widen ---- */

static void widening_is_exact(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t k = 0; k < OP_COUNT(types); k++)
        for (int64_t s = 0; s <= OP_COUNT(sizes); s++) {
            /* The last size is every 16-bit value there is. */
            const bool all = s == OP_COUNT(sizes);
            const int64_t n = all ? 65536 : sizes[s];
            op_array x = stored_make(types[k], n, (uint64_t)s + 1), expected = op_array_make(LS_F32, 1, n + TAIL, 0);
            op_array got = op_array_make(LS_F32, 1, n + TAIL, 0);
            const ls_widen_args args = {x.data, types[k], n, op_floats(&got), false};
            ls_error err;
            for (int64_t i = 0; i < n && all && types[k] != LS_F32; i++)
                memcpy(op_at(&x, 0, i), &(uint16_t){(uint16_t)i}, 2);
            op_guard(&expected);
            for (int64_t i = 0; i < n; i++) op_put(&expected, 0, i, value_of(&x, i));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&got);
                assert_ok(ls_widen(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &got, OP_NAN_ANY, "%lld of %s, threads %d", (long long)n, ls_dtype_name(types[k]),
                         t + 1);
            }
            op_array_free(&x);
            op_array_free(&expected);
            op_array_free(&got);
        }
}

/* Every bf16 value, and float32 of all kinds, of which 1 + x has one rounding: against the sum in binary64, rounded
 * once, which is exact for what is not far below 1. */
static void one_is_added_with_one_rounding(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t k = 0; k < OP_COUNT(types); k++) {
        const int64_t n = 65536;
        op_array x = stored_make(types[k], n, 5), expected = op_array_make(LS_F32, 1, n + TAIL, 0);
        op_array got = op_array_make(LS_F32, 1, n + TAIL, 0);
        const ls_widen_args args = {x.data, types[k], n, op_floats(&got), true};
        int64_t rounded = 0;
        ls_error err;
        for (int64_t i = 0; i < n && types[k] == LS_BF16; i++) memcpy(op_at(&x, 0, i), &(uint16_t){(uint16_t)i}, 2);
        op_guard(&expected);
        for (int64_t i = 0; i < n; i++) {
            const double wide = value_of(&x, i);
            /* Below 2^-60 the sum is 1 in either type. */
            op_put(&expected, 0, i, fabs(wide) < 0x1p-60 ? 1.0f : (float)(1.0 + wide));
            rounded += (double)op_get(&expected, 0, i) != 1.0 + wide;
        }
        assert_true(rounded > 100);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            op_guard(&got);
            assert_ok(ls_widen(op_devices[isa][t], &args, &err), err);
            op_check(&expected, &got, OP_NAN_ANY, "1 + %s, threads %d", ls_dtype_name(types[k]), t + 1);
        }
        op_array_free(&x);
        op_array_free(&expected);
        op_array_free(&got);
    }
}

/* ---- decay ---- */

/* Wrong on purpose: the base changed inside the exponential, the sign kept. */
typedef enum variant { RIGHT, BASE_FIRST, SIGN_KEPT } variant;

static float decay_ref(float x, variant v) {
    if (v == BASE_FIRST) return -ls_exp(ls_add(x, ls_log(LS_LOG2E)));
    return ls_mul(v == SIGN_KEPT ? ls_exp(x) : -ls_exp(x), LS_LOG2E);
}

static void decays_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    int64_t caught[3] = {0};
    double worst = 0.0;
    for (int64_t k = 0; k < OP_COUNT(types); k++)
        for (int64_t s = 0; s < 2 * OP_COUNT(sizes); s++) {
            const int64_t n = sizes[s / 2];
            op_array x = stored_make(types[k], n, (uint64_t)s + 1), expected = op_array_make(LS_F32, 1, n + TAIL, 0);
            op_array got = op_array_make(LS_F32, 1, n + TAIL, 0);
            const ls_decay_args args = {x.data, types[k], n, op_floats(&got)};
            uint64_t seed = (uint64_t)s;
            ls_error err;
            if (s % 2 == 0) op_fill(&x, op_wide, &seed);
            op_guard(&expected);
            for (int64_t i = 0; i < n; i++) op_put(&expected, 0, i, decay_ref(value_of(&x, i), RIGHT));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&got);
                assert_ok(ls_decay(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &got, OP_NAN_ANY, "%lld of %s, threads %d", (long long)n, ls_dtype_name(types[k]),
                         t + 1);
            }
            for (int64_t i = 0; i < n && s % 2 == 0; i++) {
                const float x_i = value_of(&x, i), y = op_get(&got, 0, i);
                for (int v = BASE_FIRST; v <= SIGN_KEPT; v++) caught[v] += decay_ref(x_i, (variant)v) != y;
                worst = fmax(worst, fabs((double)y / (-exp((double)x_i) * 1.4426950408889634) - 1.0));
            }
            op_array_free(&x);
            op_array_free(&expected);
            op_array_free(&got);
        }
    print_message("decay: worst relative error %.3g\n", worst);
    assert_true(worst < 1e-6 && caught[BASE_FIRST] > 100 && caught[SIGN_KEPT] > 100);
}

/* ---- rates ---- */

static void rates_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    int64_t signs = 0;
    for (int64_t k = 0; k < OP_COUNT(types); k++)
        for (int64_t s = 0; s < 2 * OP_COUNT(sizes); s++) {
            const int64_t n = sizes[s / 2];
            op_array x = stored_make(types[k], n, (uint64_t)s + 1), expected = op_array_make(LS_F32, 1, n + TAIL, 0);
            op_array got = op_array_make(LS_F32, 1, n + TAIL, 0);
            const ls_rates_args args = {x.data, types[k], n, op_floats(&got)};
            uint64_t seed = (uint64_t)s;
            ls_error err;
            if (s % 2 == 0) op_fill(&x, op_wide, &seed);
            op_guard(&expected);
            for (int64_t i = 0; i < n; i++) op_put(&expected, 0, i, -ls_exp(value_of(&x, i)));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&got);
                assert_ok(ls_rates(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &got, OP_NAN_ANY, "rates, %lld of %s, threads %d", (long long)n,
                         ls_dtype_name(types[k]), t + 1);
            }
            /* Of Mamba-1 it has another base. */
            for (int64_t i = 0; i < n && s % 2 == 0; i++)
                signs += op_get(&got, 0, i) != decay_ref(value_of(&x, i), RIGHT) && op_get(&got, 0, i) <= 0.0f;
            op_array_free(&x);
            op_array_free(&expected);
            op_array_free(&got);
        }
    assert_true(signs > 100);
}

/* ---- taps ---- */

static void taps_turn_over_and_back(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t shapes[][2] = {{1, 1}, {1, 4}, {5, 1}, {7, 3}, {64, 4}, {2560, 4}, {33, 16}};
    for (int64_t k = 0; k < OP_COUNT(types); k++)
        for (int64_t s = 0; s < OP_COUNT(shapes); s++) {
            const int64_t rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
            op_array x = stored_make(types[k], n, (uint64_t)s + 1), expected = op_array_make(LS_F32, 1, n + TAIL, 0);
            op_array got = op_array_make(LS_F32, 1, n + TAIL, 0), back = op_array_make(LS_F32, 1, n + TAIL, 0);
            op_array wide = op_array_make(LS_F32, 1, n + TAIL, 0);
            const ls_taps_args there = {x.data, types[k], rows, cols, op_floats(&got)};
            const ls_taps_args home = {got.data, LS_F32, cols, rows, op_floats(&back)};
            ls_error err;
            op_guard(&expected);
            op_guard(&wide);
            for (int64_t i = 0; i < n; i++) {
                op_put(&expected, 0, i % cols * rows + i / cols, value_of(&x, i));
                op_put(&wide, 0, i, value_of(&x, i));
            }
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&got);
                op_guard(&back);
                assert_ok(ls_taps(op_devices[isa][t], &there, &err), err);
                assert_ok(ls_taps(op_devices[isa][t], &home, &err), err);
                op_check(&expected, &got, OP_NAN_ANY, "taps %lld x %lld of %s, threads %d", (long long)rows,
                         (long long)cols, ls_dtype_name(types[k]), t + 1);
                op_check(&wide, &back, OP_NAN_ANY, "taps and back");
            }
            op_array_free(&x);
            op_array_free(&expected);
            op_array_free(&got);
            op_array_free(&back);
            op_array_free(&wide);
        }
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    float x[4] = {0}, out[4] = {7.0f, 7.0f, 7.0f, 7.0f};
    ls_device *device = op_devices[0][0];
    ls_error err;
    (void)state;
#define REFUSED(name, word, ...) \
    check_failed(ls_##name(device, &(const ls_##name##_args){__VA_ARGS__}, &err), &err, #name ": " word)
    REFUSED(widen, "x is a null", NULL, LS_F32, 4, out, false);
    REFUSED(widen, "out is a null", x, LS_F32, 4, NULL, true);
    REFUSED(widen, "n -4", x, LS_F32, -4, out, false);
    REFUSED(widen, "from", x, (ls_dtype)9, 4, out, false);
    REFUSED(widen, "out: 1 rows of stride 9223372036854775807", x, LS_F32, INT64_MAX, out, false);
    REFUSED(decay, "x is a null", NULL, LS_BF16, 4, out);
    REFUSED(decay, "out is a null", x, LS_BF16, 4, NULL);
    REFUSED(decay, "n -1", x, LS_F32, -1, out);
    REFUSED(decay, "from", x, (ls_dtype)-1, 4, out);
    REFUSED(rates, "x is a null", NULL, LS_BF16, 4, out);
    REFUSED(rates, "out is a null", x, LS_BF16, 4, NULL);
    REFUSED(rates, "n -1", x, LS_F32, -1, out);
    REFUSED(taps, "x is a null", NULL, LS_F16, 2, 2, out);
    REFUSED(taps, "out is a null", x, LS_F16, 2, 2, NULL);
    REFUSED(taps, "-2 rows of 2", x, LS_F32, -2, 2, out);
    REFUSED(taps, "2 rows of -2", x, LS_F32, 2, -2, out);
    REFUSED(taps, "from", x, (ls_dtype)9, 2, 2, out);
    REFUSED(taps, "out: 9223372036854775807 rows", x, LS_F32, INT64_MAX, 4, out);
    REFUSED(weight_cast, "out is a null", x, 4, NULL, LS_F16);
#undef REFUSED
    for (int i = 0; i < 4; i++) assert_true(out[i] == 7.0f);
    assert_ok(ls_widen(device, &(const ls_widen_args){NULL, LS_F32, 0, NULL, false}, &err), err);
    assert_ok(ls_decay(device, &(const ls_decay_args){NULL, LS_F32, 0, NULL}, &err), err);
    assert_ok(ls_taps(device, &(const ls_taps_args){NULL, LS_F32, 0, 4, NULL}, &err), err);
    assert_ok(ls_taps(device, &(const ls_taps_args){NULL, LS_F32, 4, 0, NULL}, &err), err);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(widening_is_exact),         OP_CASES(one_is_added_with_one_rounding),
        OP_CASES(decays_equal_the_textbook), OP_CASES(rates_equal_the_textbook),
        OP_CASES(taps_turn_over_and_back),   cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
