/* The norm behind a gate and the squared ReLU, forward and backward, against textbook readings of their contracts, bit
 * for bit, and their gradients against central differences in float64. */
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gated_norm.h"
#include "op/op_grad.h"

/* Wrong on purpose: the gate behind the norm, one group for all columns, two roundings, rows of dw from the last. */
typedef enum variant { RIGHT, GATE_LATE, ONE_GROUP, TWICE_ROUNDED, ROWS_REVERSED } variant;

#define EPS 1e-5f

typedef struct problem {
    int64_t rows, dim, groups;
    op_array x, z, dy, w;
} problem;

/* What is written; dw starts as a copy of `before`. */
typedef struct results {
    op_array y, dx, dz, dw, before;
} results;

static problem problem_make(int64_t rows, int64_t dim, int64_t groups, bool special, uint64_t seed) {
    problem p = {rows, dim, groups, {0}, {0}, {0}, {0}};
    op_array *arrays[] = {&p.x, &p.z, &p.dy};
    for (int i = 0; i < 3; i++) {
        *arrays[i] = op_array_make(LS_F32, rows, dim, (int64_t)(test_random(&seed) % 4));
        for (int64_t r = 0; r < rows; r++)
            op_fill_row(arrays[i], r, special && r % 3 != 1 ? op_special : i == 1 ? op_wide : op_plain, &seed);
    }
    p.w = op_array_make(LS_F32, 1, dim, 0);
    op_fill(&p.w, op_plain, &seed);
    return p;
}

static void problem_free(problem *p) {
    op_array_free(&p->x);
    op_array_free(&p->z);
    op_array_free(&p->dy);
    op_array_free(&p->w);
}

static results results_make(const problem *p, ls_dtype dtype, uint64_t seed) {
    results r = {op_array_make(dtype, p->rows, p->dim, 1), op_array_make(LS_F32, p->rows, p->dim, 2),
                 op_array_make(dtype, p->rows, p->dim, 3), op_array_make(LS_F32, 1, p->dim, 0),
                 op_array_make(LS_F32, 1, p->dim, 0)};
    op_guard(&r.y);
    op_guard(&r.dx);
    op_guard(&r.dz);
    op_fill(&r.before, op_plain, &seed);
    memcpy(r.dw.data, r.before.data, (size_t)r.dw.bytes);
    return r;
}

static void results_free(results *r) {
    op_array *arrays[] = {&r->y, &r->dx, &r->dz, &r->dw, &r->before};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

static float chains_ref(const float *a, const float *b, int64_t n) {
    float chain[256] = {0};
    for (int64_t i = 0; i < n; i++) chain[i % 256] = ls_fma(a[i], b[i], chain[i % 256]);
    return op_fold(chain);
}

static void row_ref(const problem *p, int64_t row, const results *out, variant v) {
    const int64_t n = v == ONE_GROUP ? p->dim : p->dim / p->groups;
    float *gated = op_alloc(p->dim * 4), *e = op_alloc(p->dim * 4);
    for (int64_t c = 0; c < p->dim; c++)
        gated[c] =
            v == GATE_LATE ? op_get(&p->x, row, c) : ls_mul(op_get(&p->x, row, c), ls_silu(op_get(&p->z, row, c)));
    for (int64_t first = 0; first < p->dim; first += n) {
        const float s =
            ls_div(1.0f, ls_sqrt(ls_add(ls_div(chains_ref(gated + first, gated + first, n), (float)n), EPS)));
        float u;
        for (int64_t c = first; c < first + n; c++) {
            gated[c] = ls_mul(gated[c], s);
            e[c] = ls_mul(op_get(&p->dy, row, c), op_get(&p->w, 0, c));
        }
        u = ls_div(chains_ref(e + first, gated + first, n), (float)n);
        for (int64_t c = first; c < first + n; c++) {
            const float x = op_get(&p->x, row, c), z = op_get(&p->z, row, c), k = ls_sigmoid(z), l = ls_silu(z);
            const float dv = ls_mul(s, ls_fma(-gated[c], u, e[c]));
            float y = ls_mul(v == TWICE_ROUNDED ? ls_round_bf16(gated[c]) : gated[c], op_get(&p->w, 0, c));
            if (v == GATE_LATE) y = ls_mul(y, l);
            op_put(&out->y, row, c, y);
            op_put(&out->dx, row, c, ls_mul(dv, l));
            op_put(&out->dz, row, c, ls_mul(ls_mul(dv, x), ls_fma(l, ls_sub(1.0f, k), k)));
            op_put(&out->dw, 0, c, ls_fma(op_get(&p->dy, row, c), gated[c], op_get(&out->dw, 0, c)));
        }
    }
    free(gated);
    free(e);
}

static void norm_ref(const problem *p, const results *out, variant v) {
    for (int64_t r = 0; r < p->rows; r++) row_ref(p, v == ROWS_REVERSED ? p->rows - 1 - r : r, out, v);
}

static ls_gated_norm_args forward_args(const problem *p, const results *r) {
    const ls_gated_norm_args args = {
        op_floats(&p->x), op_floats(&p->z), p->x.stride, p->z.stride, op_floats(&p->w), EPS,
        r->y.data,        r->y.dtype,       r->y.stride, p->rows,     p->dim,           p->groups};
    return args;
}

static ls_gated_norm_backward_args backward_args(const problem *p, const results *r, float *scale) {
    const ls_gated_norm_backward_args args = {.x = op_floats(&p->x),
                                              .z = op_floats(&p->z),
                                              .x_stride = p->x.stride,
                                              .z_stride = p->z.stride,
                                              .w = op_floats(&p->w),
                                              .eps = EPS,
                                              .dy = op_floats(&p->dy),
                                              .dy_stride = p->dy.stride,
                                              .dx = op_floats(&r->dx),
                                              .dx_stride = r->dx.stride,
                                              .dz = r->dz.data,
                                              .dz_dtype = r->dz.dtype,
                                              .dz_stride = r->dz.stride,
                                              .dw = op_floats(&r->dw),
                                              .scale = scale,
                                              .rows = p->rows,
                                              .dim = p->dim,
                                              .groups = p->groups};
    return args;
}

/* Both directions; the backward in two calls, cut behind row `cut`. */
static void run(const problem *p, const results *r, ls_device *device, int64_t cut) {
    float *scale = op_alloc(p->rows * p->groups * 4);
    const ls_gated_norm_args forward = forward_args(p, r);
    ls_gated_norm_backward_args part = backward_args(p, r, scale);
    ls_error err;
    assert_ok(ls_gated_norm(device, &forward, &err), err);
    part.rows = cut;
    assert_ok(ls_gated_norm_backward(device, &part, &err), err);
    part = backward_args(p, r, scale);
    part.x += cut * part.x_stride;
    part.z += cut * part.z_stride;
    part.dy += cut * part.dy_stride;
    part.dx += cut * part.dx_stride;
    part.dz = (uint8_t *)part.dz + cut * part.dz_stride * ls_dtype_bytes(part.dz_dtype);
    part.rows -= cut;
    assert_ok(ls_gated_norm_backward(device, &part, &err), err);
    free(scale);
}

static void results_check(const results *expected, const results *got, const problem *p) {
    op_check(&expected->y, &got->y, OP_NAN_ANY, "y, dim %lld groups %lld", (long long)p->dim, (long long)p->groups);
    op_check(&expected->dx, &got->dx, OP_NAN_ANY, "dx, dim %lld groups %lld", (long long)p->dim, (long long)p->groups);
    op_check(&expected->dz, &got->dz, OP_NAN_ANY, "dz, dim %lld groups %lld", (long long)p->dim, (long long)p->groups);
    op_check(&expected->dw, &got->dw, OP_NAN_ANY, "dw, dim %lld groups %lld", (long long)p->dim, (long long)p->groups);
}

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    static const int64_t shapes[][2] = {{1, 1}, {6, 3}, {64, 1}, {66, 2}, {255, 5}, {512, 2}, {771, 3}, {2048, 8}};
    for (int64_t i = 0; i < 2 * OP_COUNT(shapes); i++) {
        problem p = problem_make(7, shapes[i / 2][0], shapes[i / 2][1], i % 2 == 1, (uint64_t)i + 1);
        results expected = results_make(&p, i / 2 % 2 ? LS_BF16 : LS_F32, 5);
        norm_ref(&p, &expected, RIGHT);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            results got = results_make(&p, expected.y.dtype, 5);
            run(&p, &got, op_devices[isa][t], 3 * t);
            results_check(&expected, &got, &p);
            results_free(&got);
        }
        results_free(&expected);
        problem_free(&p);
    }
}

/* ---- truth ---- */

enum { T_ROWS = 3, T_DIM = 12, T_GROUPS = 3 };

typedef struct exact {
    double x[T_ROWS * T_DIM], z[T_ROWS * T_DIM], w[T_DIM], dy[T_ROWS * T_DIM];
} exact;

static double exact_y(const exact *e, int r, int c) {
    const int n = T_DIM / T_GROUPS, first = c / n * n;
    double q = 0.0, at = 0.0;
    for (int i = first; i < first + n; i++) {
        const double z = e->z[r * T_DIM + i], v = e->x[r * T_DIM + i] * z / (1.0 + exp(-z));
        q += v * v;
        if (i == c) at = v;
    }
    return at / sqrt(q / n + (double)EPS) * e->w[c];
}

static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int i = 0; i < T_ROWS * T_DIM; i++) loss += e->dy[i] * exact_y(e, i / T_DIM, i % T_DIM);
    return loss;
}

static void widen_to(double *to, const op_array *from) {
    for (int64_t r = 0; r < from->rows; r++)
        for (int64_t c = 0; c < from->cols; c++) *to++ = op_get(from, r, c);
}

static void narrow_rows(float *to, const op_array *from) {
    for (int64_t r = 0; r < from->rows; r++)
        for (int64_t c = 0; c < from->cols; c++) *to++ = op_get(from, r, c);
}

static void values_and_gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(T_ROWS, T_DIM, T_GROUPS, false, 3);
    results got = results_make(&p, LS_F32, 5);
    static exact e;
    float dx[T_ROWS * T_DIM], dz[T_ROWS * T_DIM];
    widen_to(e.x, &p.x);
    widen_to(e.z, &p.z);
    widen_to(e.w, &p.w);
    widen_to(e.dy, &p.dy);
    memset(got.dw.data, 0, (size_t)got.dw.bytes);
    run(&p, &got, op_devices[isa][0], 1);
    for (int i = 0; i < T_ROWS * T_DIM; i++) {
        const double y = exact_y(&e, i / T_DIM, i % T_DIM);
        assert_true(fabs(op_get(&got.y, i / T_DIM, i % T_DIM) - y) <= 1e-6 * (1.0 + fabs(y)));
    }
    narrow_rows(dx, &got.dx);
    narrow_rows(dz, &got.dz);
    assert_true(grad_worst(dx, e.x, T_ROWS * T_DIM, exact_loss, &e) <= 1e-5);
    assert_true(grad_worst(dz, e.z, T_ROWS * T_DIM, exact_loss, &e) <= 1e-5);
    assert_true(grad_worst(op_floats(&got.dw), e.w, T_DIM, exact_loss, &e) <= 1e-5);
    results_free(&got);
    problem_free(&p);
}

/* ---- squared ReLU ---- */

static void squared_relu(void **state) {
    const ls_isa isa = op_isa(state);
    static const int64_t dims[] = {1, 7, 64, 65, 300};
    const float edges[] = {0.0f, -0.0f, 1e-30f, -1e-30f, INFINITY, -INFINITY, 3e19f, NAN};
    for (int64_t i = 0; i < 2 * OP_COUNT(dims); i++) {
        const int64_t rows = 5, dim = dims[i / 2];
        const ls_dtype dtype = i % 2 ? LS_BF16 : LS_F32;
        op_array x = op_array_make(LS_F32, rows, dim, 0), dy = op_array_make(LS_F32, rows, dim, 0);
        op_array y = op_array_make(dtype, rows, dim, 0), dx = op_array_make(dtype, rows, dim, 0);
        op_array want = op_array_make(dtype, rows, dim, 0), want_dx = op_array_make(dtype, rows, dim, 0);
        const ls_relu2_args forward = {op_floats(&x), y.data, dtype, rows, dim};
        const ls_relu2_backward_args backward = {op_floats(&x), op_floats(&dy), dx.data, dtype, rows, dim};
        uint64_t seed = (uint64_t)i + 1;
        ls_error err;
        op_fill(&x, op_special, &seed);
        op_fill(&dy, op_plain, &seed);
        for (int64_t c = 0; c < dim && c < OP_COUNT(edges); c++) op_put(&x, 2, c, edges[c]);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < dim; c++) {
                const float at = op_get(&x, r, c), m = at > 0.0f || isnan(at) ? at : 0.0f;
                op_put(&want, r, c, ls_mul(m, m));
                op_put(&want_dx, r, c, ls_mul(op_get(&dy, r, c), ls_add(m, m)));
            }
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            op_guard(&y);
            op_guard(&dx);
            assert_ok(ls_relu2(op_devices[isa][t], &forward, &err), err);
            assert_ok(ls_relu2_backward(op_devices[isa][t], &backward, &err), err);
            op_check(&want, &y, OP_NAN_ANY, "relu2, dim %lld", (long long)dim);
            op_check(&want_dx, &dx, OP_NAN_ANY, "relu2_backward, dim %lld", (long long)dim);
        }
        op_array *arrays[] = {&x, &dy, &y, &dx, &want, &want_dx};
        for (int64_t k = 0; k < OP_COUNT(arrays); k++) op_array_free(arrays[k]);
    }
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    problem p = problem_make(2, 6, 3, false, 1);
    results r = results_make(&p, LS_F32, 1);
    float scale[6], x[6] = {0}, y[6];
    const ls_gated_norm_args right = forward_args(&p, &r);
    const ls_gated_norm_backward_args right_back = backward_args(&p, &r, scale);
    const ls_relu2_args relu = {x, y, LS_F32, 2, 3};
    const ls_relu2_backward_args relu_back = {x, x, y, LS_F32, 2, 3};
    ls_device *device = op_devices[0][0];
    ls_error err;
    (void)state;
#define REFUSED(name, from, word, ...)                                       \
    do {                                                                     \
        ls_##name##_args args = from;                                        \
        __VA_ARGS__;                                                         \
        check_failed(ls_##name(device, &args, &err), &err, #name ": " word); \
    } while (0)
    REFUSED(gated_norm, right, "x is a null", args.x = NULL);
    REFUSED(gated_norm, right, "z is a null", args.z = NULL);
    REFUSED(gated_norm, right, "w is a null", args.w = NULL);
    REFUSED(gated_norm, right, "y is a null", args.y = NULL);
    REFUSED(gated_norm, right, "y f16", args.y_dtype = LS_F16);
    REFUSED(gated_norm, right, "groups 4 does not divide dim 6", args.groups = 4);
    REFUSED(gated_norm, right, "groups 0", args.groups = 0);
    REFUSED(gated_norm, right, "dim 0", args.dim = 0);
    REFUSED(gated_norm, right, "rows -1", args.rows = -1);
    REFUSED(gated_norm, right, "z: stride 5", args.z_stride = 5);
    REFUSED(gated_norm_backward, right_back, "dy is a null", args.dy = NULL);
    REFUSED(gated_norm_backward, right_back, "dx is a null", args.dx = NULL);
    REFUSED(gated_norm_backward, right_back, "dz is a null", args.dz = NULL);
    REFUSED(gated_norm_backward, right_back, "dw is a null", args.dw = NULL);
    REFUSED(gated_norm_backward, right_back, "scale is a null", args.scale = NULL);
    REFUSED(gated_norm_backward, right_back, "dz f16", args.dz_dtype = LS_F16);
    REFUSED(gated_norm_backward, right_back, "groups 5", args.groups = 5);
    REFUSED(gated_norm_backward, right_back, "dx: stride 5", args.dx_stride = 5);
    REFUSED(relu2, relu, "x is a null", args.x = NULL);
    REFUSED(relu2, relu, "y is a null", args.y = NULL);
    REFUSED(relu2, relu, "rows -1", args.rows = -1);
    REFUSED(relu2_backward, relu_back, "dy is a null", args.dy = NULL);
    REFUSED(relu2_backward, relu_back, "dx f16", args.dx_dtype = LS_F16);
    REFUSED(relu2_backward, relu_back, "rows 2, dim 0", args.dim = 0);
#undef REFUSED
    results_free(&r);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    const variant wrong[] = {GATE_LATE, ONE_GROUP, TWICE_ROUNDED, ROWS_REVERSED};
    problem p = problem_make(9, 300, 3, false, 2);
    results right = results_make(&p, LS_F32, 5);
    char text[160];
    (void)state;
    norm_ref(&p, &right, RIGHT);
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        results other = results_make(&p, LS_F32, 5);
        norm_ref(&p, &other, wrong[i]);
        if (op_diffs(wrong[i] == ROWS_REVERSED ? &right.dw : &right.y, wrong[i] == ROWS_REVERSED ? &other.dw : &other.y,
                     OP_NAN_ANY, text) == 0)
            fail_msg("variant %d is not seen", (int)wrong[i]);
        results_free(&other);
    }
    results_free(&right);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook),
        OP_CASES(values_and_gradients_are_those_of_float64),
        OP_CASES(squared_relu),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
