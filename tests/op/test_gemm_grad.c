/* Gradients of the dense product against a textbook reading of their contract, bit for bit: shapes, types, strides, row
 * lists, instruction sets, threads, special values, rows split over calls; against float64; variants that must be
 * caught; bad arguments. */
#include "op/gemm_backward.h"
#include "op/op_case.h"

typedef struct problem {
    int64_t m, n, k;
    bool listed, add;
    op_array dy, x, w;         /* x has x.rows >= m rows, w is contiguous */
    op_array dx, dw, dbias;    /* what is there before the call; guards where nothing is read */
    op_array ex, ew, ebias;    /* what is expected */
    int64_t *dx_rows, *x_rows; /* [m] */
} problem;

/* Wrong on purpose: chains from the last step to the first, dw as one chain from +0 that is added to what is there,
 * dw in two halves, dx begun from what is there. */
typedef enum variant { RIGHT, REVERSED, ADDED_AFTER, HALVES, DX_CONTINUED } variant;

static int64_t row_of(const problem *p, const int64_t *rows, int64_t i) { return p->listed ? rows[i] : i; }

static void input_ref(const problem *p, const op_array *dx, variant v) {
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t k = 0; k < p->k; k++) {
            const int64_t row = row_of(p, p->dx_rows, i);
            const float before = op_get(&p->dx, row, k);
            float acc = v == DX_CONTINUED && p->add ? before : 0.0f;
            for (int64_t s = 0; s < p->n; s++) {
                const int64_t n = v == REVERSED ? p->n - 1 - s : s;
                acc = ls_fma(op_get(&p->dy, i, n), op_get(&p->w, n, k), acc);
            }
            op_put(dx, row, k, p->add && v != DX_CONTINUED ? ls_add(before, acc) : acc);
        }
}

static float weight_chain(const problem *p, int64_t n, int64_t k, int64_t begin, int64_t end, float acc, variant v) {
    for (int64_t s = begin; s < end; s++) {
        const int64_t m = v == REVERSED ? begin + end - 1 - s : s;
        acc = ls_fma(op_get(&p->dy, m, n), op_get(&p->x, row_of(p, p->x_rows, m), k), acc);
    }
    return acc;
}

static void weight_ref(const problem *p, const op_array *dw, const op_array *dbias, variant v) {
    for (int64_t n = 0; n < p->n; n++) {
        float sum = op_get(&p->dbias, 0, n);
        for (int64_t k = 0; k < p->k; k++) {
            const float before = op_get(&p->dw, n, k);
            float acc;
            if (v == ADDED_AFTER)
                acc = ls_add(before, weight_chain(p, n, k, 0, p->m, 0.0f, v));
            else if (v == HALVES)
                acc = ls_add(weight_chain(p, n, k, 0, p->m / 2, before, v),
                             weight_chain(p, n, k, p->m / 2, p->m, 0.0f, v));
            else
                acc = weight_chain(p, n, k, 0, p->m, before, v);
            op_put(dw, n, k, acc);
        }
        for (int64_t m = 0; m < p->m; m++) sum = ls_add(sum, op_get(&p->dy, v == REVERSED ? p->m - 1 - m : m, n));
        op_put(dbias, 0, n, sum);
    }
}

/* combo: 1 for x and w in bf16, 2 for w in f16 (then w only), 4 for lists of rows, 8 for add, 16 for gradients that are
 * there before. */
static problem problem_make(int64_t m, int64_t n, int64_t k, int64_t combo, op_maker make, uint64_t seed) {
    const ls_dtype w_types[] = {LS_F32, LS_BF16, LS_F16, LS_F16};
    problem p;
    int64_t count;
    memset(&p, 0, sizeof p);
    p.m = m;
    p.n = n;
    p.k = k;
    p.listed = combo / 4 % 2;
    p.add = combo / 8 % 2;
    count = p.listed ? 2 * m + 3 : m;
    p.dy = op_array_make(LS_F32, m, n, (int64_t)(test_random(&seed) % 4));
    p.x = op_array_make(combo % 2 ? LS_BF16 : LS_F32, count, k, (int64_t)(test_random(&seed) % 4));
    p.w = op_array_make(w_types[combo % 4], n, k, 0);
    p.dx = op_array_make(LS_F32, count, k, (int64_t)(test_random(&seed) % 4));
    p.dw = op_array_make(LS_F32, n, k, 0);
    p.dbias = op_array_make(LS_F32, 1, n, 0);
    p.dx_rows = op_alloc((m + 1) * (int64_t)sizeof *p.dx_rows);
    p.x_rows = op_alloc((m + 1) * (int64_t)sizeof *p.x_rows);
    for (int64_t i = 0, row = 0; i < m; i++) {
        row += (int64_t)(test_random(&seed) % 2);
        p.dx_rows[i] = row++;
        p.x_rows[i] = (int64_t)(test_random(&seed) % (uint64_t)count);
    }
    op_fill(&p.dy, make, &seed);
    for (int64_t i = 0; i < m; i++) op_fill_row(&p.x, row_of(&p, p.x_rows, i), make, &seed);
    op_fill(&p.w, make, &seed);
    op_guard(&p.dx);
    for (int64_t i = 0; i < m && p.add; i++) op_fill_row(&p.dx, row_of(&p, p.dx_rows, i), make, &seed);
    for (int64_t i = 0; i < n && combo / 16 % 2; i++) op_fill_row(&p.dw, i, make, &seed);
    if (combo / 16 % 2)
        op_fill(&p.dbias, make, &seed);
    else
        for (int64_t i = 0; i < n * k || i < n; i++) {
            if (i < n) op_put(&p.dbias, 0, i, 0.0f);
            if (i < n * k) op_put(&p.dw, i / k, i % k, 0.0f);
        }
    p.ex = op_copy(&p.dx);
    p.ew = op_copy(&p.dw);
    p.ebias = op_copy(&p.dbias);
    input_ref(&p, &p.ex, RIGHT);
    weight_ref(&p, &p.ew, &p.ebias, RIGHT);
    return p;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->dy, &p->x, &p->w, &p->dx, &p->dw, &p->dbias, &p->ex, &p->ew, &p->ebias};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
    free(p->dx_rows);
    free(p->x_rows);
}

/* The calls for rows [begin, end) of the product. */
static ls_gemm_backward_input_args input_args(const problem *p, const op_array *dx, int64_t begin, int64_t end) {
    const ls_gemm_backward_input_args args = {
        .dy = op_floats(&p->dy) + begin * p->dy.stride,
        .dy_stride = p->dy.stride,
        .w = p->w.data,
        .w_dtype = p->w.dtype,
        .dx = op_floats(dx) + (p->listed ? 0 : begin * dx->stride),
        .dx_stride = dx->stride,
        .dx_count = p->listed ? dx->rows : end - begin,
        .dx_rows = p->listed ? p->dx_rows + begin : NULL,
        .add = p->add,
        .m = end - begin,
        .n = p->n,
        .k = p->k,
    };
    return args;
}

static ls_gemm_backward_weight_args weight_args(const problem *p, const op_array *dw, const op_array *dbias,
                                                int64_t begin, int64_t end) {
    const ls_gemm_backward_weight_args args = {
        .dy = op_floats(&p->dy) + begin * p->dy.stride,
        .dy_stride = p->dy.stride,
        .x = p->listed ? p->x.data : op_at(&p->x, begin, 0),
        .x_dtype = p->x.dtype,
        .x_stride = p->x.stride,
        .x_count = p->listed ? p->x.rows : end - begin,
        .x_rows = p->listed ? p->x_rows + begin : NULL,
        .dw = op_floats(dw),
        .dbias = dbias == NULL ? NULL : op_floats(dbias),
        .m = end - begin,
        .n = p->n,
        .k = p->k,
    };
    return args;
}

/* Both gradients in calls of at most `rows` rows, compared with the expected ones. */
static void problem_check(const problem *p, ls_isa isa, int32_t thread, int64_t rows, const char *what) {
    op_array dx = op_copy(&p->dx), dw = op_copy(&p->dw), dbias = op_copy(&p->dbias);
    ls_device *device = op_devices[isa][thread];
    ls_error err;
    for (int64_t begin = 0; begin < p->m; begin += rows) {
        const int64_t end = begin + rows < p->m ? begin + rows : p->m;
        const ls_gemm_backward_input_args input = input_args(p, &dx, begin, end);
        const ls_gemm_backward_weight_args weight = weight_args(p, &dw, &dbias, begin, end);
        assert_ok(ls_gemm_backward_input(device, &input, &err), err);
        assert_ok(ls_gemm_backward_weight(device, &weight, &err), err);
    }
#define SAME(expected, got, name)                                                                      \
    op_check((expected), (got), OP_NAN_ANY,                                                            \
             "%s: %s of m %lld n %lld k %lld, x %s, w %s, listed %d, add %d, "                         \
             "threads %d, %lld rows a call",                                                           \
             what, name, (long long)p->m, (long long)p->n, (long long)p->k, ls_dtype_name(p->x.dtype), \
             ls_dtype_name(p->w.dtype), p->listed, p->add, thread + 1, (long long)rows)
    SAME(&p->ex, &dx, "dx");
    SAME(&p->ew, &dw, "dw");
    SAME(&p->ebias, &dbias, "dbias");
#undef SAME
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&dbias);
}

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t ms[] = {1, 2, 5, 6, 7, 13, 14, 15, 29, 64}, sides[] = {1, 3, 15, 16, 17, 31, 32, 33, 65};
    uint64_t seed = 1;
    for (int64_t i = 0; i < OP_COUNT(ms); i++)
        for (int64_t n = 0; n < OP_COUNT(sides); n++)
            for (int64_t k = 0; k < OP_COUNT(sides); k++) {
                problem p = problem_make(ms[i], sides[n], sides[k], (int64_t)(test_random(&seed) % 32), op_plain,
                                         test_random(&seed));
                problem_check(&p, isa, (int32_t)(test_random(&seed) % OP_THREADS_MAX), p.m, "shapes");
                problem_free(&p);
            }
}

static void every_option_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t combo = 0; combo < 32; combo++) {
        problem p = problem_make(37, 41, 53, combo, op_plain, (uint64_t)combo + 3);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) problem_check(&p, isa, t, p.m, "options");
        problem_free(&p);
    }
}

/* Shapes that need several blocks of rows, columns and steps, and enough work for several threads. */
static void large_shapes_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t shapes[][3] = {{300, 20, 1100}, {30, 600, 70}, {520, 210, 33}, {200, 5, 2100}};
    for (int64_t s = 0; s < OP_COUNT(shapes); s++) {
        problem p = problem_make(shapes[s][0], shapes[s][1], shapes[s][2], 9 * s + 4 * (s % 2), op_plain, 5);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) problem_check(&p, isa, t, p.m, "large");
        problem_free(&p);
    }
}

/* A leaf may be cut into calls at any row. */
static void cuts_carry_no_bits(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t cuts[] = {1, 2, 3, 7, 64, 100, 256, 257};
    for (int64_t combo = 16; combo < 32; combo += 5) {
        problem p = problem_make(300, 19, 35, combo, op_plain, (uint64_t)combo);
        for (int64_t i = 0; i < OP_COUNT(cuts); i++)
            problem_check(&p, isa, (int32_t)i % OP_THREADS_MAX, cuts[i], "cuts");
        problem_free(&p);
    }
}

static void special_values_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    int64_t n_nan = 0, n_finite = 0;
    for (int64_t combo = 0; combo < 32; combo++) {
        problem p = problem_make(5 + combo % 3, 9, 35, combo, op_special, (uint64_t)combo + 1);
        problem_check(&p, isa, (int32_t)combo % OP_THREADS_MAX, p.m, "special");
        for (int64_t i = 0; i < p.n * p.k; i++) {
            const float y = op_get(&p.ew, i / p.k, i % p.k);
            n_nan += y != y;
            n_finite += y - y == 0.0f;
        }
        problem_free(&p);
    }
    assert_true(n_nan > 100 && n_finite > 100);
}

/* NaN and infinity in one row of dy reach that row of dx alone; in one row of x, that column of dw alone. */
static void special_values_stay_where_they_belong(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(20, 21, 37, 0, op_plain, 9);
    op_put(&p.dy, 7, 3, ls_from_bits(0x7FC00000u));
    op_put(&p.x, 11, 5, ls_from_bits(0x7F800000u));
    input_ref(&p, &p.ex, RIGHT);
    weight_ref(&p, &p.ew, &p.ebias, RIGHT);
    problem_check(&p, isa, 1, p.m, "one NaN");
    for (int64_t i = 0; i < p.m; i++) assert_int_equal(op_get(&p.ex, i, 4) != op_get(&p.ex, i, 4), i == 7);
    for (int64_t n = 0; n < p.n; n++)
        for (int64_t k = 0; k < p.k; k++)
            assert_int_equal(op_get(&p.ew, n, k) - op_get(&p.ew, n, k) != 0.0f, n == 3 || k == 5);
    problem_free(&p);
}

/* Against float64: within 1e-5 of the sum of the absolute terms; a chain of a thousand roundings stays far closer. */
static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    double worst = 0.0;
    for (int64_t combo = 0; combo < 32; combo += 9) {
        problem p = problem_make(700, 40, 21, combo, op_plain, 2);
        problem_check(&p, isa, 1, p.m, "float64");
        for (int64_t n = 0; n < p.n; n++) {
            double bias = op_get(&p.dbias, 0, n), bias_size = fabs(bias);
            for (int64_t k = 0; k < p.k; k++) {
                double exact = op_get(&p.dw, n, k), size = fabs(exact);
                for (int64_t m = 0; m < p.m; m++) {
                    const double term = (double)op_get(&p.dy, m, n) * (double)op_get(&p.x, row_of(&p, p.x_rows, m), k);
                    exact += term;
                    size += fabs(term);
                }
                worst = fmax(worst, fabs((double)op_get(&p.ew, n, k) - exact) / size);
            }
            for (int64_t m = 0; m < p.m; m++) {
                bias += (double)op_get(&p.dy, m, n);
                bias_size += fabs((double)op_get(&p.dy, m, n));
            }
            worst = fmax(worst, fabs((double)op_get(&p.ebias, 0, n) - bias) / bias_size);
        }
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t k = 0; k < p.k; k++) {
                const int64_t row = row_of(&p, p.dx_rows, i);
                double exact = p.add ? op_get(&p.dx, row, k) : 0.0, size = fabs(exact);
                for (int64_t n = 0; n < p.n; n++) {
                    const double term = (double)op_get(&p.dy, i, n) * (double)op_get(&p.w, n, k);
                    exact += term;
                    size += fabs(term);
                }
                worst = fmax(worst, fabs((double)op_get(&p.ex, row, k) - exact) / size);
            }
        problem_free(&p);
    }
    print_message("worst error %.3g of the sum of absolute terms\n", worst);
    assert_true(worst <= 1e-5);
}

static void no_rows_change_nothing(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(3, 4, 5, 16, op_plain, 1);
    op_array dx = op_copy(&p.dx), dw = op_copy(&p.dw), dbias = op_copy(&p.dbias);
    ls_gemm_backward_input_args input = input_args(&p, &dx, 0, 0);
    ls_gemm_backward_weight_args weight = weight_args(&p, &dw, &dbias, 0, 0);
    ls_error err;
    input.dx = NULL;
    input.dy = weight.dy = NULL;
    weight.x = NULL;
    assert_ok(ls_gemm_backward_input(op_devices[isa][1], &input, &err), err);
    assert_ok(ls_gemm_backward_weight(op_devices[isa][1], &weight, &err), err);
    op_check(&p.dx, &dx, OP_NAN_PINNED, "no rows: dx");
    op_check(&p.dw, &dw, OP_NAN_PINNED, "no rows: dw");
    op_check(&p.dbias, &dbias, OP_NAN_PINNED, "no rows: dbias");
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&dbias);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    problem p = problem_make(33, 20, 17, 24, op_plain, 6);
    const variant of_weight[] = {REVERSED, ADDED_AFTER, HALVES}, of_input[] = {REVERSED, DX_CONTINUED};
    char text[160];
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(of_weight); i++) {
        op_array dw = op_copy(&p.dw), dbias = op_copy(&p.dbias);
        weight_ref(&p, &dw, &dbias, of_weight[i]);
        if (op_diffs(&p.ew, &dw, OP_NAN_ANY, text) == 0) fail_msg("variant %d of dw is not seen", of_weight[i]);
        if (of_weight[i] == REVERSED) assert_true(op_diffs(&p.ebias, &dbias, OP_NAN_ANY, text) > 0);
        op_array_free(&dw);
        op_array_free(&dbias);
    }
    for (int64_t i = 0; i < OP_COUNT(of_input); i++) {
        op_array dx = op_copy(&p.dx);
        input_ref(&p, &dx, of_input[i]);
        if (op_diffs(&p.ex, &dx, OP_NAN_ANY, text) == 0) fail_msg("variant %d of dx is not seen", of_input[i]);
        op_array_free(&dx);
    }
    problem_free(&p);
}

static void bad_arguments_are_named(void **state) {
    problem p = problem_make(3, 4, 5, 4, op_plain, 1);
    op_array dx = op_copy(&p.dx), dw = op_copy(&p.dw), dbias = op_copy(&p.dbias);
    const ls_gemm_backward_input_args input = input_args(&p, &dx, 0, 3);
    const ls_gemm_backward_weight_args weight = weight_args(&p, &dw, &dbias, 0, 3);
    ls_gemm_backward_input_args in;
    ls_gemm_backward_weight_args we;
    int64_t rows[3];
    ls_error err;
    (void)state;
#define REFUSED(args, right, call, op, word, ...)                      \
    do {                                                               \
        (args) = right;                                                \
        __VA_ARGS__;                                                   \
        check_failed(call(op_devices[0][1], &args, &err), &err, word); \
        check_failed(err.status, &err, op);                            \
    } while (0)
#define INPUT(word, ...) REFUSED(in, input, ls_gemm_backward_input, "gemm_backward_input", word, __VA_ARGS__)
#define WEIGHT(word, ...) REFUSED(we, weight, ls_gemm_backward_weight, "gemm_backward_weight", word, __VA_ARGS__)
#define LIST(a, b, c) (rows[0] = (a), rows[1] = (b), rows[2] = (c), rows)
    check_failed(ls_gemm_backward_input(NULL, &input, &err), &err, "gemm_backward_input: device is NULL");
    check_failed(ls_gemm_backward_weight(NULL, &weight, &err), &err, "gemm_backward_weight: device is NULL");
    check_failed(ls_gemm_backward_input(op_devices[0][0], NULL, &err), &err, "args is NULL");
    check_failed(ls_gemm_backward_weight(op_devices[0][0], NULL, &err), &err, "args is NULL");
    INPUT("m -1", in.m = -1);
    INPUT("n 0", in.n = 0);
    INPUT("k -7", in.k = -7);
    INPUT("does not fit 64 bits", in.n = in.k = INT64_MAX);
    INPUT("w_dtype 9", in.w_dtype = (ls_dtype)9);
    INPUT("dy is a null", in.dy = NULL);
    INPUT("w is a null", in.w = NULL);
    INPUT("dx is a null", in.dx = NULL);
    INPUT("dy: stride 3", in.dy_stride = 3);
    INPUT("dx: stride 4", in.dx_stride = 4);
    INPUT("do not fit 64 bits", in.dx_stride = INT64_MAX);
    INPUT("dx of 2 rows, 3 are needed", (in.dx_rows = NULL, in.dx_count = 2));
    INPUT("dx of -1 rows", in.dx_count = -1);
    INPUT("dx_rows[1] is 9, dx has 9 rows", in.dx_rows = LIST(0, 9, 10));
    INPUT("dx_rows[0] is -1", in.dx_rows = LIST(-1, 1, 2));
    INPUT("dx_rows[2] is 1 after 1", in.dx_rows = LIST(0, 1, 1));
    INPUT("dx_rows[1] is 3 after 5", in.dx_rows = LIST(5, 3, 6));
    WEIGHT("m -3", we.m = -3);
    WEIGHT("n -1", we.n = -1);
    WEIGHT("k 0", we.k = 0);
    WEIGHT("does not fit 64 bits", we.n = we.k = INT64_MAX);
    WEIGHT("x_dtype 2 (f16)", we.x_dtype = LS_F16);
    WEIGHT("dy is a null", we.dy = NULL);
    WEIGHT("x is a null", we.x = NULL);
    WEIGHT("dw is a null", we.dw = NULL);
    WEIGHT("dy: stride -4", we.dy_stride = -4);
    WEIGHT("x: stride 4", we.x_stride = 4);
    WEIGHT("x of 0 rows, 3 are needed", (we.x_rows = NULL, we.x_count = 0));
    WEIGHT("x_rows[2] is 9, x has 9 rows", we.x_rows = LIST(0, 0, 9));
    WEIGHT("x_rows[0] is -9223372036854775808", we.x_rows = LIST(INT64_MIN, 0, 0));
#undef REFUSED
#undef INPUT
#undef WEIGHT
#undef LIST
    op_check(&p.dx, &dx, OP_NAN_PINNED, "refused: dx");
    op_check(&p.dw, &dw, OP_NAN_PINNED, "refused: dw");
    op_check(&p.dbias, &dbias, OP_NAN_PINNED, "refused: dbias");
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&dbias);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook),   OP_CASES(every_option_equals_the_textbook),
        OP_CASES(large_shapes_equal_the_textbook),   OP_CASES(cuts_carry_no_bits),
        OP_CASES(special_values_equal_the_textbook), OP_CASES(special_values_stay_where_they_belong),
        OP_CASES(gradients_are_those_of_float64),    OP_CASES(no_rows_change_nothing),
        cmocka_unit_test(variants_are_caught),       cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
