/* The optimizer against a textbook reading of its contract, bit for bit, and against float64 over many steps; the sum
 * of squares, the scale and the cast; special values stay in their element; variants that must be caught; bad
 * arguments. */
#include "op/adamw.h"
#include "op/op_case.h"
#include "op/weight.h"

static const int64_t sizes[] = {1, 7, 16, 255, 4095, 4096, 4097, 20000};
static const ls_adamw_options usual = {1e-3, 0.9, 0.999, 1e-8, 0.1};

typedef struct model {
    op_array w, m, v, grad;
} model;

static model model_make(int64_t n, op_maker make, uint64_t seed) {
    model a = {op_array_make(LS_F32, 1, n, 0), op_array_make(LS_F32, 1, n, 0), op_array_make(LS_F32, 1, n, 0),
               op_array_make(LS_F32, 1, n, 0)};
    op_fill(&a.w, make, &seed);
    op_fill(&a.m, make, &seed);
    op_fill(&a.v, make, &seed);
    op_fill(&a.grad, make, &seed);
    for (int64_t i = 0; i < n; i++) op_put(&a.v, 0, i, fabsf(op_get(&a.v, 0, i)));
    return a;
}

static model model_copy(const model *a) {
    const model b = {op_copy(&a->w), op_copy(&a->m), op_copy(&a->v), op_copy(&a->grad)};
    return b;
}

static void model_free(model *a) {
    op_array_free(&a->w);
    op_array_free(&a->m);
    op_array_free(&a->v);
    op_array_free(&a->grad);
}

static ls_adamw_args model_args(const model *a, const ls_adamw_factors *factors, float scale) {
    const ls_adamw_args args = {.w = op_floats(&a->w),
                                .m = a->m.data,
                                .v = a->v.data,
                                .grad = op_floats(&a->grad),
                                .scale = scale,
                                .factors = *factors,
                                .n = a->w.cols};
    return args;
}

/* Wrong on purpose: rest2 times the square, decay as a factor of w, no fusion in the moments, eps inside the root. */
typedef enum variant { RIGHT, SQUARE_FIRST, DECAY_FACTOR, UNFUSED, EPS_INSIDE } variant;

static void adamw_ref(const model *a, const ls_adamw_factors *f, float scale, variant x) {
    for (int64_t i = 0; i < a->w.cols; i++) {
        const float g = ls_mul(op_get(&a->grad, 0, i), scale), w = op_get(&a->w, 0, i);
        const float square = x == SQUARE_FIRST ? ls_mul(f->rest2, ls_mul(g, g)) : ls_mul(ls_mul(f->rest2, g), g);
        float m = ls_fma(f->beta1, op_get(&a->m, 0, i), ls_mul(f->rest1, g));
        const float v = ls_fma(f->beta2, op_get(&a->v, 0, i), square);
        float below = ls_fma(ls_sqrt(v), f->debias2, f->eps), d;
        if (x == UNFUSED) m = ls_add(ls_mul(f->beta1, op_get(&a->m, 0, i)), ls_mul(f->rest1, g));
        if (x == EPS_INSIDE) below = ls_mul(ls_sqrt(ls_add(v, f->eps)), f->debias2);
        d = ls_div(ls_mul(m, f->debias1), below);
        op_put(&a->m, 0, i, m);
        op_put(&a->v, 0, i, v);
        op_put(&a->w, 0, i,
               x == DECAY_FACTOR ? ls_fma(-f->lr, d, ls_mul(w, ls_sub(1.0f, ls_mul(f->lr, f->decay))))
                                 : ls_fma(-f->lr, ls_fma(f->decay, w, d), w));
    }
}

static void model_check(const model *expected, const model *got, const char *what, int64_t n, int32_t threads) {
    const op_array *e[] = {&expected->w, &expected->m, &expected->v, &expected->grad};
    const op_array *g[] = {&got->w, &got->m, &got->v, &got->grad};
    for (int i = 0; i < 4; i++)
        op_check(e[i], g[i], OP_NAN_ANY, "%s: array %d of %lld, threads %d", what, i, (long long)n, threads);
}

static void steps_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const op_maker makers[] = {op_plain, op_wide, op_special};
    for (int64_t s = 0; s < OP_COUNT(sizes); s++)
        for (int64_t i = 0; i < 3; i++) {
            const float scale = i == 0 ? 1.0f : 0.37f;
            model start = model_make(sizes[s], makers[i], (uint64_t)(3 * s + i) + 1), expected = model_copy(&start);
            ls_adamw_factors factors;
            ls_error err;
            assert_ok(ls_adamw_factors_make(&factors, &usual, 1 + s * s * s, &err), err);
            adamw_ref(&expected, &factors, scale, RIGHT);
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                const ls_dtype dtype = t == 0 ? LS_BF16 : i == 0 ? LS_F32 : LS_F16;
                op_array value = op_array_make(dtype, 1, sizes[s], 0), rounded = op_copy(&value);
                model got = model_copy(&start);
                ls_adamw_args args = model_args(&got, &factors, scale);
                args.value = i == 2 && t == 0 ? NULL : value.data;
                args.value_dtype = dtype;
                for (int64_t k = 0; k < sizes[s] && args.value != NULL; k++)
                    op_put(&rounded, 0, k, op_round(op_get(&expected.w, 0, k), dtype));
                assert_ok(ls_adamw(op_devices[isa][t], &args, &err), err);
                model_check(&expected, &got, "adamw", sizes[s], t + 1);
                op_check(&rounded, &value, OP_NAN_ANY, "adamw: value of %lld, threads %d", (long long)sizes[s], t + 1);
                op_array_free(&value);
                op_array_free(&rounded);
                model_free(&got);
            }
            model_free(&start);
            model_free(&expected);
        }
}

/* Tensors of one call have the bits of a call each: sizes that no vector divides, values of every type or none, decay
 * or not, moments in both types. */
static void tensors_of_one_call(void **state) {
    enum { N = 5003, PARTS = 9 };
    static const int64_t begins[PARTS + 1] = {0, 1, 2, 5, 8, 1032, 1033, 1036, 4999, N};
    const ls_isa isa = op_isa(state);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        model one = model_make(N, op_wide, 31), each = model_copy(&one);
        op_array values[2] = {op_array_make(LS_F32, 1, N, 0), op_array_make(LS_F32, 1, N, 0)};
        ls_adamw_part parts[PARTS];
        ls_adamw_factors factors;
        ls_error err;
        assert_ok(ls_adamw_factors_make(&factors, &usual, 5, &err), err);
        for (int i = 0; i < PARTS; i++)
            parts[i] = (ls_adamw_part){begins[i], i % 4 == 3 ? NULL : op_at(&values[0], 0, begins[i]),
                                       (ls_dtype)(i % 3), i % 2 == 0};
        ls_adamw_args args = model_args(&one, &factors, 0.37f);
        args.moments = bf16 ? LS_BF16 : LS_F32;
        args.rounding = (ls_adamw_rounding){7, 5, 1001};
        args.parts = parts;
        args.n_parts = PARTS;
        assert_ok(ls_adamw(op_devices[isa][2], &args, &err), err);
        for (int i = 0; i < PARTS; i++) {
            const int64_t at = begins[i], size = ls_dtype_bytes(args.moments);
            ls_adamw_args own = model_args(&each, &factors, 0.37f);
            own.moments = args.moments;
            own.rounding = (ls_adamw_rounding){7, 5, 1001 + at};
            own.w += at;
            own.m = (uint8_t *)own.m + at * size;
            own.v = (uint8_t *)own.v + at * size;
            own.grad += at;
            own.n = begins[i + 1] - at;
            own.value = i % 4 == 3 ? NULL : op_at(&values[1], 0, at);
            own.value_dtype = (ls_dtype)(i % 3);
            if (i % 2 == 1) own.factors.decay = 0.0f;
            assert_ok(ls_adamw(op_devices[isa][0], &own, &err), err);
        }
        model_check(&each, &one, "one call", N, 3);
        assert_memory_equal(values[0].data, values[1].data, (size_t)values[0].bytes);
        for (int i = 0; i < 2; i++) op_array_free(&values[i]);
        model_free(&one);
        model_free(&each);
    }
}

/* A NaN, an infinite and a zero gradient next to plain ones: neighbours are as without them, and a zero gradient of an
 * element that never had another only decays. */
static void special_gradients_stay_alone(void **state) {
    const ls_isa isa = op_isa(state);
    const float special[] = {NAN, INFINITY, -INFINITY, 0.0f};
    model plain = model_make(100, op_plain, 4), got;
    ls_adamw_factors f;
    ls_adamw_args args;
    ls_error err;
    memset(plain.m.data, 0, (size_t)plain.m.bytes);
    memset(plain.v.data, 0, (size_t)plain.v.bytes);
    got = model_copy(&plain);
    for (int64_t i = 0; i < 4; i++) op_put(&got.grad, 0, 10 + 20 * i, special[i]);
    assert_ok(ls_adamw_factors_make(&f, &usual, 1, &err), err);
    args = model_args(&got, &f, 1.0f);
    assert_ok(ls_adamw(op_devices[isa][0], &args, &err), err);
    assert_true(isnan(op_get(&got.w, 0, 10)) && isnan(op_get(&got.w, 0, 30)) && isnan(op_get(&got.w, 0, 50)));
    assert_int_equal(ls_bits(op_get(&got.w, 0, 70)),
                     ls_bits(ls_fma(-f.lr, ls_mul(f.decay, op_get(&plain.w, 0, 70)), op_get(&plain.w, 0, 70))));
    adamw_ref(&plain, &f, 1.0f, RIGHT);
    for (int64_t i = 0; i < 100; i++)
        if (i % 20 != 10) assert_int_equal(ls_bits(op_get(&plain.w, 0, i)), ls_bits(op_get(&got.w, 0, i)));
    model_free(&plain);
    model_free(&got);
}

/* A thousand steps against float64: weights stay within 1e-5 of the way they went; each step rounds the weight once. */
static void training_is_that_of_float64(void **state) {
    enum { N = 300, STEPS = 1000 };
    const ls_isa isa = op_isa(state);
    static double w[N], m[N], v[N], way[N];
    const ls_adamw_options o = usual;
    uint64_t seed = 8;
    double worst = 0.0;
    model a = model_make(N, op_plain, 7);
    memset(a.m.data, 0, (size_t)a.m.bytes);
    memset(a.v.data, 0, (size_t)a.v.bytes);
    for (int64_t i = 0; i < N; i++) {
        w[i] = op_get(&a.w, 0, i);
        m[i] = v[i] = 0.0;
        way[i] = fabs(w[i]);
    }
    for (int64_t step = 1; step <= STEPS; step++) {
        ls_adamw_factors factors;
        ls_adamw_args args;
        ls_error err;
        /* Gradients with a mean, of sizes from 1e-6 to 1. */
        for (int64_t i = 0; i < N; i++)
            op_put(&a.grad, 0, i, (op_plain(&seed) + 0.3f) * (float)pow(10.0, (double)(-(i % 7))));
        assert_ok(ls_adamw_factors_make(&factors, &o, step, &err), err);
        args = model_args(&a, &factors, 0.5f);
        assert_ok(ls_adamw(op_devices[isa][0], &args, &err), err);
        for (int64_t i = 0; i < N; i++) {
            const double g = 0.5 * (double)op_get(&a.grad, 0, i);
            double d;
            m[i] = o.beta1 * m[i] + (1.0 - o.beta1) * g;
            v[i] = o.beta2 * v[i] + (1.0 - o.beta2) * g * g;
            d = m[i] / (1.0 - pow(o.beta1, (double)step)) / (sqrt(v[i] / (1.0 - pow(o.beta2, (double)step))) + o.eps);
            w[i] = w[i] * (1.0 - o.lr * o.decay) - o.lr * d;
            way[i] += o.lr * fabs(d);
        }
    }
    for (int64_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)op_get(&a.w, 0, i) - w[i]) / way[i]);
    print_message("after %d steps: worst error %.3g of the way\n", STEPS, worst);
    assert_true(worst <= 1e-5);
    model_free(&a);
}

/* The powers of the factors against libm, up to steps where nothing is left of them. */
static void factors_are_rounded_once(void **state) {
    const int64_t steps[] = {1, 2, 3, 10, 63, 64, 1000, 123457, INT64_MAX};
    ls_adamw_factors f;
    ls_error err;
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(steps); i++) {
        const double t = (double)steps[i], left1 = 1.0 - pow(0.9, t), left2 = sqrt(1.0 - pow(0.999, t));
        assert_ok(ls_adamw_factors_make(&f, &usual, steps[i], &err), err);
        assert_true(fabs((double)f.debias1 * left1 - 1.0) < 0x1p-23 && fabs((double)f.debias2 * left2 - 1.0) < 0x1p-23);
        assert_true(f.beta1 == 0.9f && f.beta2 == 0.999f && f.rest1 == (float)(1.0 - 0.9));
        assert_true(f.rest2 == (float)(1.0 - 0.999) && f.lr == 1e-3f && f.eps == 1e-8f && f.decay == 0.1f);
    }
    assert_true(f.debias1 == 1.0f && f.debias2 == 1.0f);
}

/* ---- sum of squares and scale ---- */

static double squares_ref(double sum, const op_array *x, int64_t block_size) {
    for (int64_t first = 0; first < x->cols; first += block_size) {
        float chain[256] = {0};
        for (int64_t i = first; i < x->cols && i < first + block_size; i++)
            chain[(i - first) % 256] = ls_fma(op_get(x, 0, i), op_get(x, 0, i), chain[(i - first) % 256]);
        sum += (double)op_fold(chain);
    }
    return sum;
}

static void squares_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t counts[] = {1, 255, 257, 65535, 65536, 65537, 200000};
    uint64_t seed = 6;
    double sums[OP_THREADS_MAX] = {0.25, 0.25, 0.25}, expected = 0.25, exact = 0.25;
    for (int64_t i = 0; i < OP_COUNT(counts); i++) {
        op_array x = op_array_make(LS_F32, 1, counts[i], 0);
        const int64_t n_blocks = ls_squares_blocks(counts[i]);
        float *blocks = op_alloc((n_blocks + 1) * 4);
        op_fill(&x, op_wide, &seed);
        expected = squares_ref(expected, &x, 65536);
        for (int64_t j = 0; j < counts[i]; j++) exact += (double)op_get(&x, 0, j) * (double)op_get(&x, 0, j);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            const ls_squares_args args = {.x = op_floats(&x), .n = counts[i], .blocks = blocks};
            ls_error err;
            blocks[n_blocks] = 77.0f;
            assert_ok(ls_squares(op_devices[isa][t], &args, &err), err);
            sums[t] = ls_squares_add(sums[t], blocks, n_blocks);
            if (memcmp(&sums[t], &expected, sizeof expected) != 0)
                fail_msg("squares of %lld: %a, expected %a", (long long)counts[i], sums[t], expected);
            assert_true(blocks[n_blocks] == 77.0f);
        }
        /* The cut into blocks shows in bits. */
        if (counts[i] == 200000) assert_true(squares_ref(0.0, &x, 65536) != squares_ref(0.0, &x, 32768));
        free(blocks);
        op_array_free(&x);
    }
    print_message("squares: relative error %.3g\n", fabs(expected / exact - 1.0));
    assert_true(fabs(expected / exact - 1.0) <= 1e-5);
}

static void scale_clips(void **state) {
    double norm = 0.0;
    float scale = 9.0f;
    ls_error err;
    (void)state;
    assert_int_equal(ls_squares_blocks(0), 0);
    assert_ok(ls_gradient_scale(&scale, &norm, 36.0, 4.0, 1.0, &err), err);
    assert_true(norm == 1.5 && scale == (float)(1.0 / 1.5 / 4.0));
    assert_ok(ls_gradient_scale(&scale, NULL, 36.0, 4.0, 1.5, &err), err);
    assert_true(scale == 0.25f);
    assert_ok(ls_gradient_scale(&scale, &norm, 1e80, 1.0, INFINITY, &err), err);
    assert_true(scale == 1.0f && norm == 1e40);
    assert_ok(ls_gradient_scale(&scale, &norm, 0.0, 3.0, 1.0, &err), err);
    assert_true(scale == (float)(1.0 / 3.0) && norm == 0.0);
    scale = 9.0f;
    check_failed(ls_gradient_scale(&scale, &norm, NAN, 1.0, 1.0, &err), &err, "sum of squares is nan");
    check_failed(ls_gradient_scale(&scale, &norm, INFINITY, 1.0, 1.0, &err), &err, "sum of squares is inf");
    check_failed(ls_gradient_scale(&scale, &norm, -1.0, 1.0, 1.0, &err), &err, "sum of squares is -1");
    check_failed(ls_gradient_scale(&scale, &norm, 1.0, 0.0, 1.0, &err), &err, "count 0");
    check_failed(ls_gradient_scale(&scale, &norm, 1.0, NAN, 1.0, &err), &err, "count nan");
    check_failed(ls_gradient_scale(&scale, &norm, 1.0, 1.0, 0.0, &err), &err, "max_norm 0");
    check_failed(ls_gradient_scale(&scale, &norm, 1.0, 1.0, NAN, &err), &err, "max_norm nan");
    assert_true(scale == 9.0f);
}

/* ---- cast ---- */

static void casts_round_once(void **state) {
    const ls_isa isa = op_isa(state);
    const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    uint64_t seed = 3;
    for (int64_t s = 0; s < OP_COUNT(sizes); s++)
        for (int i = 0; i < 3; i++) {
            op_array w = op_array_make(LS_F32, 1, sizes[s], 0), expected = op_array_make(types[i], 1, sizes[s], 0);
            op_array got = op_array_make(types[i], 1, sizes[s], 0);
            const ls_weight_cast_args args = {op_floats(&w), sizes[s], got.data, types[i]};
            ls_error err;
            op_fill(&w, op_special, &seed);
            for (int64_t c = 0; c < sizes[s]; c++) op_put(&expected, 0, c, op_get(&w, 0, c));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&got);
                assert_ok(ls_weight_cast(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &got, OP_NAN_PINNED, "cast of %lld to %s", (long long)sizes[s],
                         ls_dtype_name(types[i]));
            }
            op_array_free(&w);
            op_array_free(&expected);
            op_array_free(&got);
        }
}

/* ---- the comparison itself, and errors ---- */

static void variants_are_caught(void **state) {
    model start = model_make(500, op_plain, 2), right = model_copy(&start);
    ls_adamw_factors f;
    ls_error err;
    (void)state;
    assert_ok(ls_adamw_factors_make(&f, &usual, 5, &err), err);
    memset(right.v.data, 0, (size_t)right.v.bytes); /* so that the new square is all of v */
    memset(start.v.data, 0, (size_t)start.v.bytes);
    adamw_ref(&right, &f, 0.7f, RIGHT);
    for (int v = SQUARE_FIRST; v <= EPS_INSIDE; v++) {
        model wrong = model_copy(&start);
        char text[160];
        adamw_ref(&wrong, &f, 0.7f, (variant)v);
        if (op_diffs(&right.w, &wrong.w, OP_NAN_ANY, text) == 0) fail_msg("variant %d is not seen", v);
        model_free(&wrong);
    }
    model_free(&start);
    model_free(&right);
}

static void bad_arguments_are_named(void **state) {
    model a = model_make(5, op_plain, 2), before = model_copy(&a);
    float block = 0.0f, *w = op_floats(&a.w);
    ls_device *device = op_devices[0][0];
    ls_adamw_options o;
    ls_adamw_factors f;
    ls_error err;
    (void)state;
#define OPTION(word, ...)                                                           \
    do {                                                                            \
        o = usual;                                                                  \
        __VA_ARGS__;                                                                \
        check_failed(ls_adamw_factors_make(&f, &o, 1, &err), &err, "adamw: " word); \
    } while (0)
    OPTION("lr -1", o.lr = -1.0);
    OPTION("lr nan", o.lr = NAN);
    OPTION("lr 1e+39", o.lr = 1e39);
    OPTION("beta1 1 ", o.beta1 = 1.0);
    OPTION("beta1 -0.1", o.beta1 = -0.1);
    OPTION("beta2 1 ", o.beta2 = 1.0 - 1e-12);
    OPTION("beta2 nan", o.beta2 = NAN);
    OPTION("eps 0", o.eps = 0.0);
    OPTION("eps 1e-60", o.eps = 1e-60);
    OPTION("eps inf", o.eps = INFINITY);
    OPTION("decay -0.5", o.decay = -0.5);
    check_failed(ls_adamw_factors_make(&f, &usual, 0, &err), &err, "adamw: step 0");
    check_failed(ls_adamw_factors_make(&f, &usual, INT64_MIN, &err), &err, "step -9223372036854775808");
    assert_ok(ls_adamw_factors_make(&f, &usual, 1, &err), err);
#define REFUSED(word, ...)                                                 \
    do {                                                                   \
        ls_adamw_args args = model_args(&a, &f, 1.0f);                     \
        __VA_ARGS__;                                                       \
        check_failed(ls_adamw(device, &args, &err), &err, "adamw: " word); \
    } while (0)
    REFUSED("w is a null", args.w = NULL);
    REFUSED("m is a null", args.m = NULL);
    REFUSED("v is a null", args.v = NULL);
    REFUSED("grad is a null", args.grad = NULL);
    REFUSED("n -1", args.n = -1);
    const ls_adamw_part part = {0, NULL, LS_F32, true};
    REFUSED("0 parts of 5 elements", args.parts = &part);
    REFUSED("6 parts of 5 elements", args.parts = &part; args.n_parts = 6);
    REFUSED("1 parts of 5 elements, and a value", args.parts = &part; args.n_parts = 1; args.value = w);
    REFUSED("w: 1 rows of stride 9223372036854775807", args.n = INT64_MAX);
#undef OPTION
#undef REFUSED
#define SQUARES(...) ls_squares(device, &(const ls_squares_args){__VA_ARGS__}, &err)
    check_failed(SQUARES(.n = 5, .blocks = &block), &err, "squares: x is a null");
    check_failed(SQUARES(.x = w, .n = 5), &err, "squares: blocks is a null");
    check_failed(SQUARES(.x = w, .n = -5, .blocks = &block), &err, "squares: n -5");
    assert_ok(SQUARES(.n = 0), err);
    assert_true(ls_squares_add(0.0, NULL, 0) == 0.0);
#undef SQUARES
#define CAST(...) ls_weight_cast(device, &(const ls_weight_cast_args){__VA_ARGS__}, &err)
    check_failed(CAST(w, 5, NULL, LS_BF16), &err, "weight_cast: out is a null");
    check_failed(CAST(NULL, 5, &block, LS_BF16), &err, "weight_cast: w is a null");
    check_failed(CAST(w, 5, &block, (ls_dtype)9), &err, "weight_cast: from f32 to");
    check_failed(CAST(w, -1, &block, LS_BF16), &err, "weight_cast: n -1");
#undef CAST
    assert_true(block == 0.0f);
    model_check(&before, &a, "refused", 5, 1);
    model_free(&a);
    model_free(&before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(steps_equal_the_textbook),         OP_CASES(tensors_of_one_call),
        OP_CASES(special_gradients_stay_alone),     OP_CASES(training_is_that_of_float64),
        OP_CASES(squares_equal_the_textbook),       OP_CASES(casts_round_once),
        cmocka_unit_test(factors_are_rounded_once), cmocka_unit_test(scale_clips),
        cmocka_unit_test(variants_are_caught),      cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
