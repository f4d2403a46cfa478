/* RMS normalisation against a textbook reading of its contract, bit for bit: shapes, types, strides, in place,
 * instruction sets, threads, special values, rows alone and permuted; accuracy; variants that must be caught. */
#include "op/elementwise.h"
#include "op/op_case.h"
#include "op/rmsnorm.h"

typedef enum variant { RIGHT, ONE_CHAIN, OTHER_PRODUCT, TWICE_ROUNDED } variant;

/* Row r of y. The variants are wrong on purpose: another order of the sum, x * (s * w), a rounding before w. */
static void rms_ref_row(const op_array *x, const float *w, float eps, const op_array *y, int64_t r, variant v) {
    float chain[256] = {0}, q, s;
    for (int64_t c = 0; c < x->cols; c++) {
        float *sum = &chain[v == ONE_CHAIN ? 0 : c % 256];
        *sum = ls_fma(op_get(x, r, c), op_get(x, r, c), *sum);
    }
    q = op_fold(chain);
    s = ls_div(1.0f, ls_sqrt(ls_add(ls_div(q, (float)x->cols), eps)));
    for (int64_t c = 0; c < x->cols; c++) {
        float product = ls_mul(ls_mul(op_get(x, r, c), s), w[c]);
        if (v == OTHER_PRODUCT) product = ls_mul(op_get(x, r, c), ls_mul(s, w[c]));
        if (v == TWICE_ROUNDED) product = ls_mul(op_round(ls_mul(op_get(x, r, c), s), y->dtype), w[c]);
        op_put(y, r, c, product);
    }
}

static void rms_ref(const op_array *x, const float *w, float eps, const op_array *y, variant v) {
    op_guard(y);
    for (int64_t r = 0; r < x->rows; r++) rms_ref_row(x, w, eps, y, r, v);
}

typedef struct problem {
    op_array x, y, expected;
    float *w, eps;
} problem;

static problem problem_make(int64_t rows, int64_t dim, ls_dtype x_dtype, ls_dtype y_dtype, op_maker make,
                            uint64_t seed) {
    problem p;
    const int64_t pad = (int64_t)(test_random(&seed) % 4);
    p.x = op_array_make(x_dtype, rows, dim, pad);
    p.y = op_array_make(y_dtype, rows, dim, pad);
    p.expected = op_array_make(y_dtype, rows, dim, pad);
    p.w = op_alloc(dim * 4);
    p.eps = 1e-6f;
    /* Every third row is plain whatever the maker: rows with NaN have finite neighbours. */
    for (int64_t r = 0; r < rows; r++) op_fill_row(&p.x, r, r % 3 == 1 ? op_plain : make, &seed);
    for (int64_t c = 0; c < dim; c++) p.w[c] = test_uniform(&seed, -2.0f, 2.0f);
    rms_ref(&p.x, p.w, p.eps, &p.expected, RIGHT);
    return p;
}

static void problem_free(problem *p) {
    op_array_free(&p->x);
    op_array_free(&p->y);
    op_array_free(&p->expected);
    free(p->w);
}

static ls_rmsnorm_args problem_args(const problem *p) {
    const ls_rmsnorm_args args = {p->x.data, p->x.dtype, p->x.stride, p->w,      p->eps,
                                  p->y.data, p->y.dtype, p->y.stride, p->x.rows, p->x.cols};
    return args;
}

static void problem_check(problem *p, ls_isa isa) {
    ls_rmsnorm_args args = problem_args(p);
    ls_error err;
    for (int32_t t = 1; t <= OP_THREADS_MAX; t++) {
        op_guard(&p->y);
        assert_ok(ls_rmsnorm(op_devices[isa][t - 1], &args, &err), err);
        op_check(&p->expected, &p->y, OP_NAN_ANY, "rows %lld dim %lld x %s y %s threads %d", (long long)p->x.rows,
                 (long long)p->x.cols, ls_dtype_name(p->x.dtype), ls_dtype_name(p->y.dtype), t);
    }
}

static const int64_t dims[] = {1, 7, 8, 9, 15, 16, 17, 64, 255, 256, 257, 300, 511, 512, 2559, 2560};
static const ls_dtype types[] = {LS_F32, LS_BF16};

static void shapes_and_types_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t rows[] = {1, 2, 5, 13};
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < OP_COUNT(rows) * 4; i++) {
            problem p = problem_make(rows[i / 4], dims[d], types[i % 2], types[i / 2 % 2], op_plain,
                                     (uint64_t)(d * 99 + i + 1));
            problem_check(&p, isa);
            problem_free(&p);
        }
}

static void special_values_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    int64_t n_nan = 0, n_finite = 0;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < 4; i++) {
            problem p = problem_make(12, dims[d], types[i % 2], types[i / 2], op_special, (uint64_t)(d * 7 + i + 1));
            problem_check(&p, isa);
            for (int64_t r = 0; r < p.y.rows; r++) {
                const float y = op_get(&p.y, r, 0);
                n_nan += y != y;
                n_finite += y == y;
            }
            problem_free(&p);
        }
    assert_true(n_nan > 20 && n_finite > 100);
}

/* Zero rows, denormal rows (their squares vanish: eps alone is left), rows whose sum of squares overflows. */
static void extremes(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(4, 300, LS_F32, LS_F32, op_plain, 5);
    for (int64_t c = 0; c < 300; c++) {
        op_put(&p.x, 0, c, 0.0f);
        op_put(&p.x, 1, c, 0x1p-140f);
        op_put(&p.x, 2, c, 1e30f);
        op_put(&p.x, 3, c, c == 7 ? 1e19f : -0.0f);
    }
    rms_ref(&p.x, p.w, p.eps, &p.expected, RIGHT);
    problem_check(&p, isa);
    for (int64_t c = 0; c < 300; c++) {
        assert_true(op_get(&p.y, 0, c) == 0.0f && op_get(&p.y, 2, c) == 0.0f);
        assert_true(fabs(op_get(&p.y, 1, c) / ((double)0x1p-140f * 1e3 * p.w[c]) - 1.0) < 1e-2);
    }
    problem_free(&p);
}

/* Each row alone, rows in another order, and in place: the bits of the batch. */
static void rows_do_not_see_each_other(void **state) {
    enum { ROWS = 23, DIM = 517 };
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < 2; i++) {
        problem p = problem_make(ROWS, DIM, types[i], types[i], op_special, 31 + (uint64_t)i);
        op_array permuted = op_array_make(types[i], ROWS, DIM, p.x.stride - DIM);
        op_array expected = op_array_make(types[i], ROWS, DIM, p.x.stride - DIM);
        ls_rmsnorm_args args = problem_args(&p);
        ls_error err;
        const size_t row_bytes = (size_t)(DIM * ls_dtype_bytes(types[i]));
        op_guard(&p.y);
        args.rows = 1;
        for (int64_t r = 0; r < ROWS; r++) {
            args.x = op_at(&p.x, r, 0);
            args.y = op_at(&p.y, r, 0);
            assert_ok(ls_rmsnorm(op_devices[isa][r % OP_THREADS_MAX], &args, &err), err);
        }
        op_check(&p.expected, &p.y, OP_NAN_ANY, "rows alone");
        op_guard(&permuted);
        op_guard(&expected);
        for (int64_t r = 0; r < ROWS; r++) {
            memcpy(op_at(&permuted, r * 7 % ROWS, 0), op_at(&p.x, r, 0), row_bytes);
            memcpy(op_at(&expected, r * 7 % ROWS, 0), op_at(&p.expected, r, 0), row_bytes);
        }
        args.x = permuted.data;
        args.y = permuted.data;
        args.rows = ROWS;
        assert_ok(ls_rmsnorm(op_devices[isa][2], &args, &err), err);
        op_check(&expected, &permuted, OP_NAN_ANY, "permuted and in place");
        op_array_free(&permuted);
        op_array_free(&expected);
        problem_free(&p);
    }
}

/* Chains of at most 10 fmas and 8 folds, half of that after the root, and five more roundings. */
static void accurate_within_1e_6(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(40, 2560, LS_F32, LS_F32, op_plain, 77);
    double worst = 0.0;
    problem_check(&p, isa);
    for (int64_t r = 0; r < p.x.rows; r++) {
        double q = 0.0;
        for (int64_t c = 0; c < p.x.cols; c++) q += (double)op_get(&p.x, r, c) * op_get(&p.x, r, c);
        for (int64_t c = 0; c < p.x.cols; c++) {
            const double exact = op_get(&p.x, r, c) / sqrt(q / (double)p.x.cols + p.eps) * p.w[c];
            const double error = exact == 0.0 ? fabs(op_get(&p.y, r, c)) : fabs(op_get(&p.y, r, c) / exact - 1.0);
            if (error > worst) worst = error;
        }
    }
    print_message("worst relative error %.3g\n", worst);
    assert_true(worst < 1e-6);
    problem_free(&p);
}

/* The comparison must catch each wrong reading, and a touched guard. */
static void variants_are_caught(void **state) {
    char text[160];
    problem p = problem_make(3, 700, LS_F32, LS_BF16, op_plain, 3);
    (void)state;
    rms_ref(&p.x, p.w, p.eps, &p.y, TWICE_ROUNDED);
    assert_true(op_diffs(&p.expected, &p.y, OP_NAN_ANY, text) > 0);
    problem_free(&p);
    p = problem_make(3, 700, LS_F32, LS_F32, op_plain, 3);
    rms_ref(&p.x, p.w, p.eps, &p.y, RIGHT);
    assert_int_equal(op_diffs(&p.expected, &p.y, OP_NAN_ANY, text), 0);
    rms_ref(&p.x, p.w, p.eps, &p.y, ONE_CHAIN);
    assert_true(op_diffs(&p.expected, &p.y, OP_NAN_ANY, text) > 0);
    rms_ref(&p.x, p.w, p.eps, &p.y, OTHER_PRODUCT);
    assert_true(op_diffs(&p.expected, &p.y, OP_NAN_ANY, text) > 0);
    memcpy(p.y.data, p.expected.data, (size_t)p.y.bytes);
    p.y.data[p.y.bytes - 1] ^= 1;
    assert_int_equal(op_diffs(&p.expected, &p.y, OP_NAN_ANY, text), 1);
    problem_free(&p);
}

static void no_rows_writes_nothing(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(2, 5, LS_F32, LS_F32, op_plain, 3);
    ls_rmsnorm_args args = problem_args(&p);
    ls_error err;
    args.rows = 0;
    op_guard(&p.expected);
    op_guard(&p.y);
    assert_ok(ls_rmsnorm(op_devices[isa][1], &args, &err), err);
    op_check(&p.expected, &p.y, OP_NAN_PINNED, "no rows");
    problem_free(&p);
}

/* Both calls are what they are made of: residual and rmsnorm, or a norm for each part. */
static void together_is_one_by_one(void **state) {
    enum { ROWS = 5, DIM = 300, PART = 70, ALL = 2 * DIM };
    float h[ROWS * DIM], add[ROWS * DIM], w[ALL], sum[ROWS * DIM], both[ROWS * DIM];
    uint16_t y[ROWS * DIM], apart[ROWS * DIM];
    uint64_t seed = 3;
    ls_error err;
    (void)state;
    for (int i = 0; i < ROWS * DIM; i++) h[i] = test_uniform(&seed, -3, 3), add[i] = test_uniform(&seed, -3, 3);
    for (int i = 0; i < ALL; i++) w[i] = test_uniform(&seed, -2, 2);
    for (int isa = 0; isa < LS_ISA_COUNT; isa++)
        for (int t = 0; t < 2; t++) {
            ls_device *device = op_devices[isa][t];
            const ls_residual_args residual = {h, add, ROWS, DIM, sum};
            const ls_rmsnorm_args norm = {sum, LS_F32, DIM, w, 1e-6f, apart, LS_BF16, DIM, ROWS, DIM};
            const ls_add_rmsnorm_args args = {h, add, both, w, 1e-6f, y, LS_BF16, DIM, ROWS, DIM};
            if (device == NULL) continue;
            assert_ok(ls_residual(device, &residual, &err), err);
            assert_ok(ls_rmsnorm(device, &norm, &err), err);
            assert_ok(ls_add_rmsnorm(device, &args, &err), err);
            assert_memory_equal(both, sum, sizeof sum);
            assert_memory_equal(y, apart, sizeof y);
            {
                const ls_rmsnorm_args left = {sum, LS_F32, DIM, w, 1e-6f, apart, LS_BF16, DIM, ROWS, PART},
                                      right = {sum + PART, LS_F32, DIM, w, 1e-5f, sum + PART, LS_F32, DIM, ROWS, PART};
                const ls_rmsnorm_parts_args parts = {
                    .part = {{both, LS_F32, DIM, w, 1e-6f, y, LS_BF16, DIM, ROWS, PART},
                             {both + PART, LS_F32, DIM, w, 1e-5f, both + PART, LS_F32, DIM, ROWS, PART}},
                    .n = 2};
                assert_ok(ls_rmsnorm(device, &left, &err), err);
                assert_ok(ls_rmsnorm(device, &right, &err), err);
                assert_ok(ls_rmsnorm_parts(device, &parts, &err), err);
                assert_memory_equal(both, sum, sizeof sum);
                assert_memory_equal(y, apart, sizeof y);
            }
        }
    {
        ls_rmsnorm_parts_args bad = {.part = {{h, LS_F32, DIM, w, 1e-6f, y, LS_BF16, DIM, ROWS, PART},
                                              {h, LS_F32, DIM, w, 1e-6f, y, LS_BF16, DIM, ROWS - 1, PART}},
                                     .n = 2};
        check_failed(ls_rmsnorm_parts(op_devices[0][0], &bad, &err), &err, "part 1 has 4 rows, the first 5");
        bad.n = 5;
        check_failed(ls_rmsnorm_parts(op_devices[0][0], &bad, &err), &err, "n 5 is not in 1..4");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(shapes_and_types_equal_the_textbook),
        OP_CASES(special_values_equal_the_textbook),
        OP_CASES(extremes),
        OP_CASES(rows_do_not_see_each_other),
        OP_CASES(accurate_within_1e_6),
        OP_CASES(no_rows_writes_nothing),
        cmocka_unit_test(together_is_one_by_one),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
