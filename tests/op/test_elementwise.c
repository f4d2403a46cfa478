/* Embedding, residual add, product, rounding and SwiGLU gate against a textbook reading of their contracts, bit for
 * bit: shapes, types, instruction sets, threads, special values; accuracy; variants that must be caught; bad tokens. */
#include "op/elementwise.h"
#include "op/op_case.h"

static const int64_t dims[] = {1, 7, 16, 17, 255, 256, 257, 2560};
static const ls_dtype types[] = {LS_F32, LS_BF16};

/* ---- embedding ---- */

static void embedding_copies_rows(void **state) {
    const ls_isa isa = op_isa(state);
    const ls_dtype table_types[] = {LS_F32, LS_BF16, LS_F16};
    uint64_t seed = 4;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < 6; i++) {
            enum { VOCAB = 37, ROWS = 50 };
            const ls_dtype y_dtype = types[i % 2];
            op_array table = op_array_make(table_types[i / 2], VOCAB, dims[d], 0);
            op_array y = op_array_make(y_dtype, ROWS, dims[d], 0), expected = op_array_make(y_dtype, ROWS, dims[d], 0);
            int32_t tokens[ROWS];
            ls_embed_args args = {table.data, table.dtype, VOCAB, dims[d], tokens, y.data, y_dtype, ROWS};
            ls_error err;
            op_fill(&table, op_special, &seed);
            for (int64_t r = 0; r < ROWS; r++) {
                tokens[r] = r == 0 ? 0 : r == 1 ? VOCAB - 1 : (int32_t)(test_random(&seed) % VOCAB);
                for (int64_t c = 0; c < dims[d]; c++) op_put(&expected, r, c, op_get(&table, tokens[r], c));
            }
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&y);
                assert_ok(ls_embed(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &y, OP_NAN_ANY, "embed dim %lld table %s y %s threads %d", (long long)dims[d],
                         ls_dtype_name(table.dtype), ls_dtype_name(y_dtype), t + 1);
            }
            op_array_free(&table);
            op_array_free(&y);
            op_array_free(&expected);
        }
}

static void bad_token_is_named(void **state) {
    enum { VOCAB = 5, DIM = 9, ROWS = 4 };
    const ls_isa isa = op_isa(state);
    const int32_t bad[] = {-1, VOCAB, INT32_MIN, INT32_MAX};
    op_array table = op_array_make(LS_F32, VOCAB, DIM, 0), y = op_array_make(LS_F32, ROWS, DIM, 0);
    op_array untouched = op_array_make(LS_F32, ROWS, DIM, 0);
    uint64_t seed = 1;
    op_fill(&table, op_plain, &seed);
    op_guard(&untouched);
    for (int64_t b = 0; b < OP_COUNT(bad); b++)
        for (int64_t at = 0; at < ROWS; at++) {
            int32_t tokens[ROWS] = {0, 1, 2, 3};
            const ls_embed_args args = {table.data, LS_F32, VOCAB, DIM, tokens, y.data, LS_F32, ROWS};
            ls_error err;
            char row[32], token[32];
            tokens[at] = bad[b];
            snprintf(row, sizeof row, "row %d", (int)at);
            snprintf(token, sizeof token, "%d", bad[b]);
            op_guard(&y);
            check_failed(ls_embed(op_devices[isa][2], &args, &err), &err, row);
            check_failed(ls_embed(op_devices[isa][2], &args, &err), &err, token);
            op_check(&untouched, &y, OP_NAN_PINNED, "embed with a bad token");
        }
    op_array_free(&table);
    op_array_free(&y);
    op_array_free(&untouched);
}

/* ---- residual ---- */

/* Into h, and into another tensor, which leaves h as it was. */
static void residual_adds_once(void **state) {
    const ls_isa isa = op_isa(state);
    uint64_t seed = 8;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t rows = 1; rows < 9; rows += 3) {
            op_array h = op_array_make(LS_F32, rows, dims[d], 0), y = op_array_make(LS_F32, rows, dims[d], 0);
            op_array start = op_array_make(LS_F32, rows, dims[d], 0), out = op_array_make(LS_F32, rows, dims[d], 0);
            op_array expected = op_array_make(LS_F32, rows, dims[d], 0);
            const ls_residual_args args = {op_floats(&h), op_floats(&y), rows, dims[d], NULL};
            const ls_residual_args apart = {op_floats(&h), op_floats(&y), rows, dims[d], op_floats(&out)};
            ls_error err;
            op_fill(&start, op_special, &seed);
            op_fill(&y, op_special, &seed);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < dims[d]; c++)
                    op_put(&expected, r, c, ls_add(op_get(&start, r, c), op_get(&y, r, c)));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                memcpy(h.data, start.data, (size_t)h.bytes);
                op_guard(&out);
                assert_ok(ls_residual(op_devices[isa][t], &apart, &err), err);
                op_check(&expected, &out, OP_NAN_ANY, "residual apart, rows %lld dim %lld threads %d", (long long)rows,
                         (long long)dims[d], t + 1);
                op_check(&start, &h, OP_NAN_PINNED, "h of a residual apart");
                assert_ok(ls_residual(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &h, OP_NAN_ANY, "residual rows %lld dim %lld threads %d", (long long)rows,
                         (long long)dims[d], t + 1);
            }
            op_array_free(&h);
            op_array_free(&y);
            op_array_free(&start);
            op_array_free(&out);
            op_array_free(&expected);
        }
}

/* ---- product ---- */

static void multiply_rounds_twice(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t sizes[] = {0, 1, 7, 4095, 4096, 4097, 20000};
    uint64_t seed = 9;
    for (int64_t s = 0; s < OP_COUNT(sizes); s++) {
        const int64_t n = sizes[s], tail = 5; /* elements behind x stay as they are */
        const float scale = s % 2 == 0 ? 0.693147182f : 1.0f;
        op_array start = op_array_make(LS_F32, 1, n + tail, 0), y = op_array_make(LS_F32, 1, n + tail, 0), expected;
        op_fill(&start, op_special, &seed);
        op_fill(&y, op_special, &seed);
        expected = op_copy(&start);
        for (int64_t i = 0; i < n; i++)
            op_put(&expected, 0, i, ls_mul(ls_mul(op_get(&start, 0, i), scale), op_get(&y, 0, i)));
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            op_array x = op_copy(&start);
            const ls_multiply_args args = {op_floats(&x), op_floats(&y), n, scale};
            ls_error err;
            assert_ok(ls_multiply(op_devices[isa][t], &args, &err), err);
            op_check(&expected, &x, OP_NAN_ANY, "multiply %lld, threads %d", (long long)n, t + 1);
            op_array_free(&x);
        }
        op_array_free(&start);
        op_array_free(&y);
        op_array_free(&expected);
    }
}

/* Into another array, then in place. */
static void scale_rounds_once(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t sizes[] = {0, 1, 7, 4095, 4096, 4097, 20000};
    uint64_t seed = 19;
    for (int64_t s = 0; s < OP_COUNT(sizes); s++) {
        const int64_t n = sizes[s], tail = 5; /* elements behind y stay as they are */
        op_array x = op_array_make(LS_F32, 1, n + tail, 0), start = op_array_make(LS_F32, 1, n + tail, 0), expected;
        op_fill(&x, op_special, &seed);
        op_fill(&start, op_special, &seed);
        expected = op_copy(&start);
        for (int64_t i = 0; i < n; i++) op_put(&expected, 0, i, ls_mul(op_get(&x, 0, i), 0.22f));
        for (int32_t t = 0; t < 2 * OP_THREADS_MAX; t++) {
            op_array y = op_copy(&start);
            ls_scale_args args = {op_floats(&x), op_floats(&y), n, 0.22f};
            ls_error err;
            if (t % 2 == 1) {
                memcpy(args.y, args.x, (size_t)n * sizeof *args.y);
                args.x = args.y;
            }
            assert_ok(ls_scale(op_devices[isa][t / 2], &args, &err), err);
            op_check(&expected, &y, OP_NAN_ANY, "scale %lld, threads %d, in place %d", (long long)n, t / 2 + 1, t % 2);
            op_array_free(&y);
        }
        op_array_free(&x);
        op_array_free(&start);
        op_array_free(&expected);
    }
}

static void bad_scales_are_named(void **state) {
    float x[2] = {1.0f, 2.0f};
    ls_error err;
    (void)state;
#define REFUSED(word, ...) \
    check_failed(ls_scale(op_devices[0][0], &(const ls_scale_args){__VA_ARGS__}, &err), &err, "scale: " word)
    REFUSED("x is a null", NULL, x, 2, 2.0f);
    REFUSED("y is a null", x, NULL, 2, 2.0f);
    REFUSED("n -2", x, x, -2, 2.0f);
    REFUSED("x: 1 rows of stride 9223372036854775807", x, x, INT64_MAX, 2.0f);
#undef REFUSED
    assert_true(x[0] == 1.0f && x[1] == 2.0f);
}

static void bad_products_are_named(void **state) {
    float x[2] = {1.0f, 2.0f};
    ls_error err;
    (void)state;
#define REFUSED(word, ...) \
    check_failed(ls_multiply(op_devices[0][0], &(const ls_multiply_args){__VA_ARGS__}, &err), &err, "multiply: " word)
    REFUSED("x is a null", NULL, x, 2, 1.0f);
    REFUSED("y is a null", x, NULL, 2, 1.0f);
    REFUSED("n -2", x, x, -2, 1.0f);
    REFUSED("x: 1 rows of stride 9223372036854775807", x, x, INT64_MAX, 1.0f);
#undef REFUSED
    assert_true(x[0] == 1.0f && x[1] == 2.0f);
}

/* ---- rounding of rows ---- */

/* Rows apart in x and in y; what lies between rows of y stays. The reading is written out from the definition of
 * nearest even, not with the library's narrowing. */
static uint16_t nearest_even_bf16(float x) {
    const uint32_t bits = ls_bits(x), low = bits & 0xFFFFu, high = bits >> 16;
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0u;
    return (uint16_t)(low > 0x8000u || (low == 0x8000u && high % 2 == 1) ? high + 1 : high);
}

static void rows_round_once(void **state) {
    const ls_isa isa = op_isa(state);
    uint64_t seed = 21;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < 9; i++) {
            const int64_t rows = i % 3 * 4;
            op_array x = op_array_make(LS_F32, rows, dims[d], i / 3 * 5);
            op_array y = op_array_make(LS_BF16, rows, dims[d], (2 - i / 3) * 3);
            op_array expected = op_array_make(LS_BF16, rows, dims[d], (2 - i / 3) * 3);
            const ls_round_rows_args args = {op_floats(&x), x.stride, (uint16_t *)(void *)y.data,
                                             y.stride,      rows,     dims[d]};
            ls_error err;
            op_fill(&x, i % 2 == 0 ? op_special : op_wide, &seed);
            op_guard(&expected);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < dims[d]; c++)
                    ((uint16_t *)(void *)expected.data)[r * expected.stride + c] =
                        nearest_even_bf16(op_floats(&x)[r * x.stride + c]);
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&y);
                assert_ok(ls_round_rows(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &y, OP_NAN_PINNED, "round_rows rows %lld dim %lld threads %d", (long long)rows,
                         (long long)dims[d], t + 1);
            }
            op_array_free(&x);
            op_array_free(&y);
            op_array_free(&expected);
        }
}

static void bad_rounding_is_named(void **state) {
    float x[4] = {0};
    uint16_t y[4] = {0};
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                                              \
    check_failed(ls_round_rows(op_devices[0][0], &(const ls_round_rows_args){__VA_ARGS__}, &err), &err, \
                 "round_rows: " word)
    REFUSED("x is a null", NULL, 2, y, 2, 2, 2);
    REFUSED("y is a null", x, 2, NULL, 2, 2, 2);
    REFUSED("x: stride 1 is below 2", x, 1, y, 2, 2, 2);
    REFUSED("y: stride 1 is below 2", x, 2, y, 1, 2, 2);
    REFUSED("rows -1", x, 2, y, 2, -1, 2);
    REFUSED("rows 2, dim 0", x, 2, y, 2, 2, 0);
    REFUSED("x: 4611686018427387904 rows of stride 2", x, 2, y, 2, INT64_MAX / 2 + 1, 1);
#undef REFUSED
}

/* ---- SwiGLU ---- */

typedef enum variant { RIGHT, GATE_ROUNDED, PLAIN_QUOTIENT, SIDES_SWAPPED } variant;

/* The variants are wrong on purpose: silu(gate) rounded before the product, silu as x / (1 + exp(-x)), silu(up). */
static void swiglu_ref(const op_array *gate, const op_array *up, const op_array *y, variant v) {
    for (int64_t r = 0; r < y->rows; r++)
        for (int64_t c = 0; c < y->cols; c++) {
            const float g = op_get(gate, r, c), u = op_get(up, r, c);
            float product = ls_mul(ls_silu(g), u);
            if (v == GATE_ROUNDED) product = ls_mul(op_round(ls_silu(g), y->dtype), u);
            if (v == PLAIN_QUOTIENT) product = ls_mul(ls_div(g, ls_add(1.0f, ls_exp(-g))), u);
            if (v == SIDES_SWAPPED) product = ls_mul(g, ls_silu(u));
            op_put(y, r, c, product);
        }
}

typedef struct gate_problem {
    op_array gate, up, y, expected;
} gate_problem;

static gate_problem gate_make(int64_t rows, int64_t dim, ls_dtype y_dtype, op_maker make, uint64_t seed) {
    gate_problem p;
    p.gate = op_array_make(LS_F32, rows, dim, 0);
    p.up = op_array_make(LS_F32, rows, dim, 0);
    p.y = op_array_make(y_dtype, rows, dim, 0);
    p.expected = op_array_make(y_dtype, rows, dim, 0);
    op_fill(&p.gate, make, &seed);
    op_fill(&p.up, make, &seed);
    swiglu_ref(&p.gate, &p.up, &p.expected, RIGHT);
    return p;
}

static void gate_free(gate_problem *p) {
    op_array_free(&p->gate);
    op_array_free(&p->up);
    op_array_free(&p->y);
    op_array_free(&p->expected);
}

static ls_swiglu_args gate_args(const gate_problem *p) {
    const ls_swiglu_args args = {(const float *)(const void *)p->gate.data,
                                 (const float *)(const void *)p->up.data,
                                 p->y.data,
                                 p->y.dtype,
                                 p->y.rows,
                                 p->y.cols};
    return args;
}

static void gate_check(gate_problem *p, ls_isa isa) {
    const ls_swiglu_args args = gate_args(p);
    ls_error err;
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        op_guard(&p->y);
        assert_ok(ls_swiglu(op_devices[isa][t], &args, &err), err);
        op_check(&p->expected, &p->y, OP_NAN_ANY, "swiglu rows %lld dim %lld y %s threads %d", (long long)p->y.rows,
                 (long long)p->y.cols, ls_dtype_name(p->y.dtype), t + 1);
    }
}

static void swiglu_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < 8; i++) {
            gate_problem p = gate_make(i < 4 ? 1 : 11, dims[d], types[i % 2], i / 2 % 2 ? op_special : op_wide,
                                       (uint64_t)(d * 8 + i + 1));
            gate_check(&p, isa);
            gate_free(&p);
        }
}

/* Where silu saturates: both zeros, the ends of exp, infinities, NaN, each against each. */
static void swiglu_edges(void **state) {
    const ls_isa isa = op_isa(state);
    const float edges[] = {0.0f,   -0.0f,    1.0f,      -1.0f,   20.0f,   20.000002f, -20.0f,   -87.3f,
                           -88.0f, -103.9f,  -104.0f,   -120.0f, -121.0f, 88.7f,      89.0f,    3e38f,
                           -3e38f, INFINITY, -INFINITY, NAN,     1e-45f,  -1e-45f,    0x1p-126f};
    for (int64_t i = 0; i < 2; i++) {
        gate_problem p = gate_make(OP_COUNT(edges), OP_COUNT(edges), types[i], op_plain, 1);
        for (int64_t r = 0; r < OP_COUNT(edges); r++)
            for (int64_t c = 0; c < OP_COUNT(edges); c++) {
                op_put(&p.gate, r, c, edges[r]);
                op_put(&p.up, r, c, edges[c]);
            }
        swiglu_ref(&p.gate, &p.up, &p.expected, RIGHT);
        gate_check(&p, isa);
        gate_free(&p);
    }
}

/* One element's bits do not depend on where it lies: every element alone. */
static void swiglu_elements_are_independent(void **state) {
    const ls_isa isa = op_isa(state);
    gate_problem p = gate_make(3, 67, LS_F32, op_special, 12);
    ls_swiglu_args args = gate_args(&p);
    const float *gate = args.gate, *up = args.up;
    ls_error err;
    args.rows = 1;
    args.dim = 1;
    op_guard(&p.y);
    for (int64_t i = 3 * 67 - 1; i >= 0; i--) {
        args.gate = gate + i;
        args.up = up + i;
        args.y = (float *)(void *)p.y.data + i;
        assert_ok(ls_swiglu(op_devices[isa][i % OP_THREADS_MAX], &args, &err), err);
    }
    op_check(&p.expected, &p.y, OP_NAN_ANY, "elements alone");
    gate_free(&p);
}

static void swiglu_accurate_within_4e_7(void **state) {
    const ls_isa isa = op_isa(state);
    gate_problem p = gate_make(100, 257, LS_F32, op_wide, 5);
    double worst = 0.0;
    gate_check(&p, isa);
    for (int64_t r = 0; r < p.y.rows; r++)
        for (int64_t c = 0; c < p.y.cols; c++) {
            const double g = op_get(&p.gate, r, c), exact = g / (1.0 + exp(-g)) * op_get(&p.up, r, c);
            const double error = exact == 0.0 ? 0.0 : fabs(op_get(&p.y, r, c) / exact - 1.0);
            if (error > worst) worst = error;
        }
    print_message("worst relative error %.3g\n", worst);
    assert_true(worst < 4e-7);
    gate_free(&p);
}

static void variants_are_caught(void **state) {
    const variant wrong[] = {GATE_ROUNDED, PLAIN_QUOTIENT, SIDES_SWAPPED};
    char text[160];
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        gate_problem p = gate_make(5, 50, wrong[i] == GATE_ROUNDED ? LS_BF16 : LS_F32, op_wide, 9);
        swiglu_ref(&p.gate, &p.up, &p.y, RIGHT);
        assert_int_equal(op_diffs(&p.expected, &p.y, OP_NAN_ANY, text), 0);
        swiglu_ref(&p.gate, &p.up, &p.y, wrong[i]);
        assert_true(op_diffs(&p.expected, &p.y, OP_NAN_ANY, text) > 0);
        gate_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(embedding_copies_rows),
        OP_CASES(bad_token_is_named),
        OP_CASES(residual_adds_once),
        OP_CASES(multiply_rounds_twice),
        cmocka_unit_test(bad_products_are_named),
        OP_CASES(scale_rounds_once),
        cmocka_unit_test(bad_scales_are_named),
        OP_CASES(rows_round_once),
        cmocka_unit_test(bad_rounding_is_named),
        OP_CASES(swiglu_equals_the_textbook),
        OP_CASES(swiglu_edges),
        OP_CASES(swiglu_elements_are_independent),
        OP_CASES(swiglu_accurate_within_4e_7),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
