/* Gradients of the dense product in the profile mma16 against chains of the textbook step, bit for bit: shapes, row
 * lists, sequences of every length, instruction sets, threads, special values; sequences apart, together, packed in any
 * order of neighbours; chains that are wrong by little and must be caught; what the profile refuses. */
#include "num/mma16_oracle.h"
#include "op/gemm_backward.h"
#include "op/op_case.h"

#define SEQUENCES_MAX 8

typedef struct problem {
    int64_t m, n, k, n_sequences, sequences[SEQUENCES_MAX + 1];
    bool listed, add;
    op_array dy, x, w;
    op_array dx, dw, dbias; /* what is there before the call */
    op_array ex, ew, ebias; /* what is expected */
    int64_t *dx_rows, *x_rows;
} problem;

/* Wrong on purpose: sequences run on within a step, dw from +0 and added after, dy not rounded but cut. */
typedef enum variant { RIGHT, PACKED, ADDED_AFTER, DY_CUT } variant;

static int64_t row_of(const problem *p, const int64_t *rows, int64_t i) { return p->listed ? rows[i] : i; }

static uint16_t bits_of(float x, variant v) { return v == DY_CUT ? (uint16_t)(ls_bits(x) >> 16) : ls_f32_to_bf16(x); }

static void input_ref(const problem *p, const op_array *dx, variant v) {
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t k = 0; k < p->k; k++) {
            const int64_t row = row_of(p, p->dx_rows, i);
            const float before = op_get(&p->dx, row, k);
            uint32_t acc = 0;
            float y;
            for (int64_t n = 0; n < p->n; n += 16) {
                uint16_t a[16] = {0}, b[16] = {0};
                for (int64_t j = n; j < n + 16 && j < p->n; j++) {
                    a[j - n] = bits_of(op_get(&p->dy, i, j), v);
                    b[j - n] = ls_f32_to_bf16(op_get(&p->w, j, k));
                }
                acc = oracle_step(acc, a, b, oracle_right);
            }
            y = ls_canonical(ls_from_bits(acc));
            op_put(dx, row, k, p->add ? ls_canonical(ls_add(before, y)) : y);
        }
}

static uint32_t rows_chain(const problem *p, int64_t n, int64_t k, int64_t begin, int64_t end, uint32_t acc,
                           variant v) {
    for (int64_t row = begin; row < end; row += 16) {
        uint16_t a[16] = {0}, b[16] = {0};
        for (int64_t j = row; j < row + 16 && j < end; j++) {
            a[j - row] = bits_of(op_get(&p->dy, j, n), v);
            b[j - row] = ls_f32_to_bf16(op_get(&p->x, row_of(p, p->x_rows, j), k));
        }
        acc = oracle_step(acc, a, b, oracle_right);
    }
    return acc;
}

static void weight_ref(const problem *p, const op_array *dw, const op_array *dbias, variant v) {
    for (int64_t n = 0; n < p->n; n++) {
        float sum = op_get(&p->dbias, 0, n);
        for (int64_t k = 0; k < p->k; k++) {
            const float before = op_get(&p->dw, n, k);
            uint32_t acc = v == ADDED_AFTER ? 0 : ls_bits(before);
            if (v == PACKED) acc = rows_chain(p, n, k, 0, p->m, acc, v);
            for (int64_t s = 0; s < p->n_sequences && v != PACKED; s++)
                acc = rows_chain(p, n, k, p->sequences[s], p->sequences[s + 1], acc, v);
            op_put(dw, n, k, ls_canonical(v == ADDED_AFTER ? ls_add(before, ls_from_bits(acc)) : ls_from_bits(acc)));
        }
        for (int64_t m = 0; m < p->m; m++) sum = ls_add(sum, op_get(&p->dy, m, n));
        op_put(dbias, 0, n, sum);
    }
}

/* combo: 1 for lists of rows, 2 for add, 4 for gradients that are there before. */
static problem problem_make(const int64_t *lengths, int64_t n_sequences, int64_t n, int64_t k, int64_t combo,
                            op_maker make, uint64_t seed) {
    problem p;
    int64_t count, m = 0;
    memset(&p, 0, sizeof p);
    for (int64_t s = 0; s < n_sequences; s++) p.sequences[s + 1] = m += lengths[s];
    p.n_sequences = n_sequences;
    p.m = m;
    p.n = n;
    p.k = k;
    p.listed = combo % 2;
    p.add = combo / 2 % 2;
    count = p.listed ? 2 * m + 3 : m;
    p.dy = op_array_make(LS_F32, m, n, (int64_t)(test_random(&seed) % 4));
    p.x = op_array_make(LS_BF16, count, k, (int64_t)(test_random(&seed) % 4));
    p.w = op_array_make(LS_BF16, n, k, 0);
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
    memset(p.dw.data, 0, (size_t)p.dw.bytes);
    memset(p.dbias.data, 0, (size_t)p.dbias.bytes);
    if (combo / 4 % 2) {
        op_fill(&p.dw, make, &seed);
        op_fill(&p.dbias, make, &seed);
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

static ls_gemm_backward_input_args input_args(const problem *p, const op_array *dx) {
    const ls_gemm_backward_input_args args = {
        .dy = op_floats(&p->dy),
        .dy_stride = p->dy.stride,
        .w = p->w.data,
        .w_dtype = LS_BF16,
        .dx = op_floats(dx),
        .dx_stride = dx->stride,
        .dx_count = dx->rows,
        .dx_rows = p->listed ? p->dx_rows : NULL,
        .add = p->add,
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .profile = LS_PROFILE_MMA16,
    };
    return args;
}

/* Sequences [begin, end); offsets has room for them. */
static ls_gemm_backward_weight_args weight_args(const problem *p, const op_array *dw, const op_array *dbias,
                                                int64_t begin, int64_t end, int64_t *offsets) {
    const int64_t from = p->sequences[begin], to = p->sequences[end];
    const ls_gemm_backward_weight_args args = {
        .dy = op_floats(&p->dy) + from * p->dy.stride,
        .dy_stride = p->dy.stride,
        .x = p->listed ? p->x.data : op_at(&p->x, from, 0),
        .x_dtype = LS_BF16,
        .x_stride = p->x.stride,
        .x_count = p->listed ? p->x.rows : to - from,
        .x_rows = p->listed ? p->x_rows + from : NULL,
        .dw = op_floats(dw),
        .dbias = op_floats(dbias),
        .m = to - from,
        .n = p->n,
        .k = p->k,
        .profile = LS_PROFILE_MMA16,
        .sequences = offsets,
        .n_sequences = end - begin,
    };
    for (int64_t s = begin; s <= end; s++) offsets[s - begin] = p->sequences[s] - from;
    return args;
}

/* Both gradients, that of the weight in calls of `together` sequences. */
static void problem_check(const problem *p, ls_isa isa, int32_t thread, int64_t together, const char *what) {
    op_array dx = op_copy(&p->dx), dw = op_copy(&p->dw), dbias = op_copy(&p->dbias);
    const ls_gemm_backward_input_args input = input_args(p, &dx);
    ls_device *device = op_devices[isa][thread];
    ls_error err;
    assert_ok(ls_gemm_backward_input(device, &input, &err), err);
    for (int64_t s = 0; s < p->n_sequences; s += together) {
        int64_t offsets[SEQUENCES_MAX + 1];
        const ls_gemm_backward_weight_args weight =
            weight_args(p, &dw, &dbias, s, s + together < p->n_sequences ? s + together : p->n_sequences, offsets);
        assert_ok(ls_gemm_backward_weight(device, &weight, &err), err);
    }
#define SAME(expected, got, nan, name)                                                                                \
    op_check((expected), (got), nan, "%s: %s of m %lld n %lld k %lld, listed %d, add %d, threads %d, %lld sequences", \
             what, name, (long long)p->m, (long long)p->n, (long long)p->k, p->listed, p->add, thread + 1,            \
             (long long)together)
    SAME(&p->ex, &dx, OP_NAN_PINNED, "dx");
    SAME(&p->ew, &dw, OP_NAN_PINNED, "dw");
    SAME(&p->ebias, &dbias, OP_NAN_ANY, "dbias");
#undef SAME
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&dbias);
}

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t sides[] = {1, 15, 16, 17, 33};
    const int64_t lengths[][4] = {{1, 0, 0, 0}, {15, 2, 1, 0}, {16, 16, 1, 3}, {17, 0, 33, 5}};
    uint64_t seed = 1;
    for (int64_t l = 0; l < OP_COUNT(lengths); l++)
        for (int64_t n = 0; n < OP_COUNT(sides); n++)
            for (int64_t k = 0; k < OP_COUNT(sides); k++) {
                problem p = problem_make(lengths[l], 4, sides[n], sides[k], (int64_t)(test_random(&seed) % 8), op_plain,
                                         test_random(&seed));
                problem_check(&p, isa, (int32_t)(test_random(&seed) % OP_THREADS_MAX), 1 + (int64_t)(seed % 4),
                              "shapes");
                problem_free(&p);
            }
}

/* Several blocks of rows, of columns and of steps, and enough work for several threads. */
static void large_shapes_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t lengths[] = {530, 3}, few[] = {20, 7};
    problem deep = problem_make(lengths, 2, 20, 18, 4, op_plain, 2),
            wide = problem_make(few, 2, 67, 70, 3, op_plain, 3);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        problem_check(&deep, isa, t, 2, "deep");
        problem_check(&wide, isa, t, 1, "wide");
    }
    problem_free(&deep);
    problem_free(&wide);
}

static void special_values_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t lengths[] = {5, 17, 2};
    int64_t n_nan = 0, n_finite = 0;
    for (int64_t combo = 0; combo < 8; combo++) {
        problem p = problem_make(lengths, 3, 9, 35, combo, op_special, (uint64_t)combo + 1);
        problem_check(&p, isa, (int32_t)combo % OP_THREADS_MAX, 1 + combo % 3, "special");
        for (int64_t i = 0; i < p.n * p.k; i++) {
            const float y = op_get(&p.ew, i / p.k, i % p.k);
            n_nan += y != y;
            n_finite += y - y == 0.0f;
        }
        problem_free(&p);
    }
    assert_true(n_nan > 100 && n_finite > 100);
}

static void variants_are_caught(void **state) {
    const int64_t lengths[] = {19, 30, 7};
    problem p = problem_make(lengths, 3, 20, 17, 4, op_plain, 6);
    op_array dx = op_copy(&p.dx), dw = op_copy(&p.dw), dbias = op_copy(&p.dbias);
    const variant of_weight[] = {PACKED, ADDED_AFTER, DY_CUT};
    char text[160];
    (void)state;
    for (int64_t v = 0; v < OP_COUNT(of_weight); v++) {
        weight_ref(&p, &dw, &dbias, of_weight[v]);
        assert_true(op_diffs(&p.ew, &dw, OP_NAN_PINNED, text) > p.n * p.k / 10);
    }
    input_ref(&p, &dx, DY_CUT);
    assert_true(op_diffs(&p.ex, &dx, OP_NAN_PINNED, text) > p.m * p.k / 10);
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&dbias);
    problem_free(&p);
}

static void bad_arguments_are_refused(void **state) {
    const int64_t lengths[] = {3, 2};
    problem p = problem_make(lengths, 2, 4, 5, 4, op_plain, 6);
    op_array dx = op_copy(&p.dx), dw = op_copy(&p.dw), dbias = op_copy(&p.dbias);
    int64_t offsets[SEQUENCES_MAX + 1];
    ls_gemm_backward_input_args input = input_args(&p, &dx);
    ls_gemm_backward_weight_args weight = weight_args(&p, &dw, &dbias, 0, 2, offsets);
    ls_device *device = op_devices[0][0];
    ls_error err;
    (void)state;
    input.w_dtype = LS_F32;
    check_failed(ls_gemm_backward_input(device, &input, &err), &err, "profile mma16: w is f32");
    input.w_dtype = LS_BF16;
    input.profile = (ls_profile)9;
    check_failed(ls_gemm_backward_input(device, &input, &err), &err, "profile 9");
    weight.x_dtype = LS_F32;
    check_failed(ls_gemm_backward_weight(device, &weight, &err), &err, "profile mma16: x is f32");
    weight.x_dtype = LS_BF16;
    offsets[2] = 4;
    check_failed(ls_gemm_backward_weight(device, &weight, &err), &err, "to row 4, not from 0 to m 5");
    offsets[2] = 5;
    offsets[1] = 6;
    check_failed(ls_gemm_backward_weight(device, &weight, &err), &err, "sequences[2] is 5 after 6");
    weight.sequences = NULL;
    check_failed(ls_gemm_backward_weight(device, &weight, &err), &err, "needs the offsets");
    op_check(&p.dx, &dx, OP_NAN_PINNED, "refused: dx");
    op_check(&p.dw, &dw, OP_NAN_PINNED, "refused: dw");
    op_array_free(&dx);
    op_array_free(&dw);
    op_array_free(&dbias);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook),   OP_CASES(large_shapes_equal_the_textbook),
        OP_CASES(special_values_equal_the_textbook), cmocka_unit_test(variants_are_caught),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
