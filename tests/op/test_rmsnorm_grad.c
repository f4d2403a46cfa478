/* Gradients of RMS normalisation against a textbook reading of their contract, bit for bit: shapes, types, strides,
 * instruction sets, threads, special values, rows split over calls; against central differences in float64; variants
 * that must be caught; bad arguments. */
#include "op/op_grad.h"
#include "op/rmsnorm_backward.h"

typedef struct problem {
    op_array x, w, dy;
    op_array dx, dw;         /* what is there before the call */
    op_array ex, ew, escale; /* what is expected */
    float eps;
    bool add;
} problem;

/* Wrong on purpose: the dot product as one chain, s squared by hand, rows of dw from the last to the first, dw begun
 * from +0 and added. */
typedef enum variant { RIGHT, ONE_CHAIN, CUBED, ROWS_REVERSED, ADDED_AFTER } variant;

static float dot_ref(const float *a, const float *b, int64_t dim, variant v) {
    float chain[256] = {0};
    for (int64_t c = 0; c < dim; c++) {
        float *sum = &chain[v == ONE_CHAIN ? 0 : c % 256];
        *sum = ls_fma(a[c], b[c], *sum);
    }
    return op_fold(chain);
}

static void row_ref(const problem *p, int64_t r, const op_array *dx, const op_array *scale, variant v) {
    const int64_t dim = p->x.cols;
    float *x = op_alloc(dim * 4), *n = op_alloc(dim * 4), *g = op_alloc(dim * 4), s, u;
    for (int64_t c = 0; c < dim; c++) x[c] = op_get(&p->x, r, c);
    s = ls_div(1.0f, ls_sqrt(ls_add(ls_div(dot_ref(x, x, dim, RIGHT), (float)dim), p->eps)));
    for (int64_t c = 0; c < dim; c++) {
        n[c] = ls_mul(x[c], s);
        g[c] = ls_mul(op_get(&p->dy, r, c), op_get(&p->w, 0, c));
    }
    u = ls_div(dot_ref(g, v == CUBED ? x : n, dim, v), (float)dim);
    for (int64_t c = 0; c < dim; c++) {
        float d = ls_mul(s, ls_fma(-n[c], u, g[c]));
        if (v == CUBED) d = ls_fma(-x[c], ls_mul(u, ls_mul(s, ls_mul(s, s))), ls_mul(s, g[c]));
        op_put(dx, r, c, p->add ? ls_add(op_get(&p->dx, r, c), d) : d);
    }
    op_put(scale, 0, r, s);
    free(x);
    free(n);
    free(g);
}

static void grad_ref(const problem *p, const op_array *dx, const op_array *dw, const op_array *scale, variant v) {
    const int64_t rows = p->x.rows;
    for (int64_t r = 0; r < rows; r++) row_ref(p, r, dx, scale, v);
    for (int64_t c = 0; c < p->x.cols; c++) {
        const float before = op_get(&p->dw, 0, c);
        float sum = v == ADDED_AFTER ? 0.0f : before;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t r = v == ROWS_REVERSED ? rows - 1 - i : i;
            sum = ls_fma(op_get(&p->dy, r, c), ls_mul(op_get(&p->x, r, c), op_get(scale, 0, r)), sum);
        }
        op_put(dw, 0, c, v == ADDED_AFTER ? ls_add(before, sum) : sum);
    }
}

/* combo: 1 for x in bf16, 2 for add, 4 for a dw that is not +0 before. */
static problem problem_make(int64_t rows, int64_t dim, int64_t combo, op_maker make, uint64_t seed) {
    problem p;
    p.x = op_array_make(combo % 2 ? LS_BF16 : LS_F32, rows, dim, (int64_t)(test_random(&seed) % 4));
    p.dy = op_array_make(LS_F32, rows, dim, (int64_t)(test_random(&seed) % 4));
    p.dx = op_array_make(LS_F32, rows, dim, (int64_t)(test_random(&seed) % 4));
    p.w = op_array_make(LS_F32, 1, dim, 0);
    p.dw = op_array_make(LS_F32, 1, dim, 0);
    p.escale = op_array_make(LS_F32, 1, rows, 0);
    p.eps = 1e-6f;
    p.add = combo / 2 % 2;
    /* Every third row is plain whatever the maker: rows with NaN have finite neighbours. */
    for (int64_t r = 0; r < rows; r++) {
        op_fill_row(&p.x, r, r % 3 == 1 ? op_plain : make, &seed);
        op_fill_row(&p.dy, r, r % 3 == 1 ? op_plain : make, &seed);
    }
    op_guard(&p.dx);
    for (int64_t r = 0; r < rows && p.add; r++) op_fill_row(&p.dx, r, op_plain, &seed);
    op_fill(&p.w, op_plain, &seed);
    memset(p.dw.data, 0, (size_t)p.dw.bytes);
    if (combo / 4 % 2) op_fill(&p.dw, op_plain, &seed);
    p.ex = op_copy(&p.dx);
    p.ew = op_copy(&p.dw);
    grad_ref(&p, &p.ex, &p.ew, &p.escale, RIGHT);
    return p;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->x, &p->w, &p->dy, &p->dx, &p->dw, &p->ex, &p->ew, &p->escale};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

/* The call for rows [begin, end). */
static ls_rmsnorm_backward_args problem_args(const problem *p, const op_array *dx, const op_array *dw,
                                             const op_array *scale, int64_t begin, int64_t end) {
    const ls_rmsnorm_backward_args args = {
        .x = op_at(&p->x, begin, 0),
        .x_dtype = p->x.dtype,
        .x_stride = p->x.stride,
        .w = op_floats(&p->w),
        .eps = p->eps,
        .dy = op_at(&p->dy, begin, 0),
        .dy_stride = p->dy.stride,
        .dx = op_at(dx, begin, 0),
        .dx_stride = dx->stride,
        .add = p->add,
        .dw = op_floats(dw),
        .scale = op_at(scale, 0, begin),
        .rows = end - begin,
        .dim = p->x.cols,
    };
    return args;
}

/* In calls of at most `rows` rows. */
static void problem_check(const problem *p, ls_isa isa, int32_t thread, int64_t rows, const char *what) {
    op_array dx = op_copy(&p->dx), dw = op_copy(&p->dw), scale = op_copy(&p->escale);
    const op_array *expected[] = {&p->ex, &p->ew, &p->escale}, *got[] = {&dx, &dw, &scale};
    ls_error err;
    op_guard(&scale);
    for (int64_t begin = 0; begin < p->x.rows; begin += rows) {
        const int64_t end = begin + rows < p->x.rows ? begin + rows : p->x.rows;
        const ls_rmsnorm_backward_args args = problem_args(p, &dx, &dw, &scale, begin, end);
        assert_ok(ls_rmsnorm_backward(op_devices[isa][thread], &args, &err), err);
    }
    for (int i = 0; i < 3; i++)
        op_check(expected[i], got[i], OP_NAN_ANY, "%s: array %d of rows %lld dim %lld x %s add %d threads %d", what, i,
                 (long long)p->x.rows, (long long)p->x.cols, ls_dtype_name(p->x.dtype), p->add, thread + 1);
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&scale);
}

static const int64_t dims[] = {1, 7, 8, 16, 17, 63, 64, 65, 255, 256, 257, 511, 513, 2560};

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t rows[] = {1, 2, 5, 23};
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < OP_COUNT(rows) * 8; i += 1 + d % 3) {
            problem p = problem_make(rows[i / 8], dims[d], i % 8, op_plain, (uint64_t)(d * 99 + i + 1));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) problem_check(&p, isa, t, p.x.rows, "shapes");
            problem_free(&p);
        }
}

static void cuts_carry_no_bits(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t combo = 0; combo < 8; combo++) {
        problem p = problem_make(100, 130, combo, op_wide, (uint64_t)combo + 1);
        for (int64_t rows = 1; rows < 100; rows = 2 * rows + 1)
            problem_check(&p, isa, (int32_t)(rows % OP_THREADS_MAX), rows, "cuts");
        problem_free(&p);
    }
}

static void special_values_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    int64_t n_nan = 0, n_finite = 0;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t combo = 0; combo < 8; combo++) {
            problem p = problem_make(12, dims[d], combo, op_special, (uint64_t)(d * 8 + combo + 1));
            problem_check(&p, isa, (int32_t)(d % OP_THREADS_MAX), 12, "special");
            for (int64_t r = 0; r < 12; r++) {
                const float y = op_get(&p.ex, r, 0);
                n_nan += y != y;
                n_finite += y - y == 0.0f;
            }
            problem_free(&p);
        }
    assert_true(n_nan > 20 && n_finite > 100);
}

/* Zero rows have gradients: s = 1 / sqrt(eps). Without dw nothing but dx and scale is written. */
static void zero_rows_and_no_dw(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(4, 300, 4, op_plain, 5);
    op_array dx = op_copy(&p.dx), scale = op_copy(&p.escale);
    ls_rmsnorm_backward_args args;
    ls_error err;
    for (int64_t c = 0; c < 300; c++) op_put(&p.x, 2, c, c % 2 ? 0.0f : -0.0f);
    grad_ref(&p, &p.ex, &p.ew, &p.escale, RIGHT);
    problem_check(&p, isa, 1, 4, "zero row");
    for (int64_t c = 0; c < 300; c++) {
        const double expected = (double)op_get(&p.dy, 2, c) * (double)op_get(&p.w, 0, c) * 1e3;
        assert_true(fabs(op_get(&p.ex, 2, c) - expected) <= 1e-5 * fabs(expected));
    }
    args = problem_args(&p, &dx, &p.dw, &scale, 0, 4);
    args.dw = NULL;
    assert_ok(ls_rmsnorm_backward(op_devices[isa][2], &args, &err), err);
    op_check(&p.ex, &dx, OP_NAN_PINNED, "without dw");
    args.rows = 0;
    args.x = args.dy = args.dx = args.scale = NULL;
    assert_ok(ls_rmsnorm_backward(op_devices[isa][0], &args, &err), err);
    op_array_free(&dx);
    op_array_free(&scale);
    problem_free(&p);
}

/* ---- truth ---- */

enum { T_ROWS = 3, T_DIM = 40 };

typedef struct exact {
    double x[T_ROWS * T_DIM], w[T_DIM], dy[T_ROWS * T_DIM], eps;
} exact;

/* The sum of dy * y. */
static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int r = 0; r < T_ROWS; r++) {
        double q = 0.0;
        for (int c = 0; c < T_DIM; c++) q += e->x[r * T_DIM + c] * e->x[r * T_DIM + c];
        for (int c = 0; c < T_DIM; c++)
            loss += e->dy[r * T_DIM + c] * e->x[r * T_DIM + c] / sqrt(q / T_DIM + e->eps) * e->w[c];
    }
    return loss;
}

/* Within 1e-5 of the largest gradient of its kind. */
static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(T_ROWS, T_DIM, 0, op_plain, 3);
    op_array packed = op_array_make(LS_F32, T_ROWS, T_DIM, 0);
    static exact e;
    double of_x, of_w;
    problem_check(&p, isa, 0, T_ROWS, "float64");
    e.eps = p.eps;
    for (int64_t i = 0; i < T_ROWS * T_DIM; i++) {
        e.x[i] = op_get(&p.x, i / T_DIM, i % T_DIM);
        e.dy[i] = op_get(&p.dy, i / T_DIM, i % T_DIM);
        op_put(&packed, i / T_DIM, i % T_DIM, op_get(&p.ex, i / T_DIM, i % T_DIM));
    }
    for (int64_t c = 0; c < T_DIM; c++) e.w[c] = op_get(&p.w, 0, c);
    of_x = grad_worst(op_floats(&packed), e.x, T_ROWS * T_DIM, exact_loss, &e);
    of_w = grad_worst(op_floats(&p.ew), e.w, T_DIM, exact_loss, &e);
    print_message("worst error: dx %.3g, dw %.3g of the largest\n", of_x, of_w);
    assert_true(of_x <= 1e-5 && of_w <= 1e-5);
    op_array_free(&packed);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    problem p = problem_make(9, 300, 6, op_plain, 8);
    (void)state;
    for (int v = ONE_CHAIN; v <= ADDED_AFTER; v++) {
        op_array dx = op_copy(&p.dx), dw = op_copy(&p.dw), scale = op_copy(&p.escale);
        char text[160];
        grad_ref(&p, &dx, &dw, &scale, (variant)v);
        if (op_diffs(&p.ex, &dx, OP_NAN_ANY, text) + op_diffs(&p.ew, &dw, OP_NAN_ANY, text) == 0)
            fail_msg("variant %d is not seen", v);
        op_array_free(&dx);
        op_array_free(&dw);
        op_array_free(&scale);
    }
    problem_free(&p);
}

static void bad_arguments_are_named(void **state) {
    problem p = problem_make(3, 5, 0, op_plain, 1);
    op_array dx = op_copy(&p.dx), dw = op_copy(&p.dw), scale = op_copy(&p.escale);
    const ls_rmsnorm_backward_args right = problem_args(&p, &dx, &dw, &scale, 0, 3);
    ls_rmsnorm_backward_args args;
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                                                 \
    do {                                                                                                   \
        args = right;                                                                                      \
        __VA_ARGS__;                                                                                       \
        check_failed(ls_rmsnorm_backward(op_devices[0][1], &args, &err), &err, "rmsnorm_backward: " word); \
    } while (0)
    REFUSED("x is a null", args.x = NULL);
    REFUSED("w is a null", args.w = NULL);
    REFUSED("dy is a null", args.dy = NULL);
    REFUSED("dx is a null", args.dx = NULL);
    REFUSED("scale is a null", args.scale = NULL);
    REFUSED("x f16", args.x_dtype = LS_F16);
    REFUSED("dim 0 is not in", args.dim = 0);
    REFUSED("dim 9223372036854775807 is not in", args.dim = INT64_MAX);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("x: stride 4", args.x_stride = 4);
    REFUSED("dy: stride -5", args.dy_stride = -5);
    REFUSED("dx: stride 0", args.dx_stride = 0);
    REFUSED("x: 9223372036854775807 rows", args.rows = INT64_MAX);
#undef REFUSED
    op_check(&p.dx, &dx, OP_NAN_PINNED, "refused: dx");
    op_check(&p.dw, &dw, OP_NAN_PINNED, "refused: dw");
    op_check(&p.escale, &scale, OP_NAN_PINNED, "refused: scale");
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&scale);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook),   OP_CASES(cuts_carry_no_bits),
        OP_CASES(special_values_equal_the_textbook), OP_CASES(zero_rows_and_no_dw),
        OP_CASES(gradients_are_those_of_float64),    cmocka_unit_test(variants_are_caught),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
