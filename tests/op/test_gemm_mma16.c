/* The dense product in the profile mma16 against chains of the textbook step in 128-bit integers, bit for bit: shapes,
 * types, strides, instruction sets, threads, special values; rows alone and in a batch; weights packed again; chains
 * that are wrong by little and must be caught; what the profile refuses. */
#include "num/mma16_oracle.h"
#include "op/gemm.h"
#include "op/op_case.h"

typedef struct problem {
    int64_t m, n, k;
    op_array x, w, bias, expected;
    bool biased;
    ls_gemm_weight weight;
} problem;

/* k in two chains that are added, k from the end, steps that begin at k = 8: wrong on purpose. */
typedef enum variant { RIGHT, HALVES, REVERSED, SHIFTED } variant;

static uint32_t chain(const uint16_t *x, const uint16_t *w, int64_t begin, int64_t end) {
    uint32_t acc = 0;
    for (int64_t k = begin; k < end; k += 16) {
        uint16_t a[16] = {0}, b[16] = {0};
        for (int64_t i = k; i < k + 16 && i < end; i++) {
            a[i - k] = x[i];
            b[i - k] = w[i];
        }
        acc = oracle_step(acc, a, b, oracle_right);
    }
    return acc;
}

static float output_ref(const problem *p, int64_t m, int64_t n, variant v) {
    uint16_t *x = op_alloc(p->k * 2), *w = op_alloc(p->k * 2);
    float y;
    for (int64_t k = 0; k < p->k; k++) {
        memcpy(&x[v == REVERSED ? p->k - 1 - k : k], op_at(&p->x, m, k), 2);
        memcpy(&w[v == REVERSED ? p->k - 1 - k : k], op_at(&p->w, n, k), 2);
    }
    y = ls_from_bits(chain(x, w, 0, v == HALVES ? p->k / 2 / 16 * 16 : v == SHIFTED ? 8 : p->k));
    if (v == HALVES) y = ls_add(y, ls_from_bits(chain(x, w, p->k / 2 / 16 * 16, p->k)));
    if (v == SHIFTED) y = ls_add(y, ls_from_bits(chain(x, w, 8, p->k)));
    y = ls_canonical(y);
    free(x);
    free(w);
    return p->biased ? ls_canonical(ls_add(y, op_get(&p->bias, 0, n))) : y;
}

static void problem_ref(const problem *p, const op_array *out, variant v) {
    op_guard(out);
    for (int64_t m = 0; m < p->m; m++)
        for (int64_t n = 0; n < p->n; n++) op_put(out, m, n, output_ref(p, m, n, v));
}

/* Classes of num/mma16_oracle.h as makers. */
static float make_class(int class_i, uint64_t *seed) { return ls_bf16_to_f32(mma_operand(class_i, test_random(seed))); }
static float make_mma(uint64_t *seed) { return make_class((int)(test_random(seed) % MMA_INFINITE), seed); }
static float make_tiny(uint64_t *seed) { return make_class(MMA_TINY + (int)(test_random(seed) % 2), seed); }
static float make_cancel(uint64_t *seed) { return make_class(MMA_CANCEL, seed); }
static float make_infinite(uint64_t *seed) { return make_class(MMA_INFINITE, seed); }
static float make_small(uint64_t *seed) { return op_plain(seed) * 0x1p-67f; }
static float make_nan(uint64_t *seed) { return make_class(MMA_NAN, seed); }

/* combo: 1 for out in bf16, 2 for a bias. */
static problem problem_make(int64_t m, int64_t n, int64_t k, int64_t combo, op_maker make, uint64_t seed) {
    problem p;
    ls_error err;
    memset(&p, 0, sizeof p);
    p.m = m;
    p.n = n;
    p.k = k;
    p.biased = combo / 2 % 2;
    p.x = op_array_make(LS_BF16, m, k, (int64_t)(test_random(&seed) % 4));
    p.w = op_array_make(LS_BF16, n, k, 0);
    p.bias = op_array_make(LS_F32, 1, n, 0);
    p.expected = op_array_make(combo % 2 ? LS_BF16 : LS_F32, m, n, (int64_t)(test_random(&seed) % 4));
    op_fill(&p.x, make, &seed);
    op_fill(&p.w, make, &seed);
    op_fill(&p.bias, op_plain, &seed);
    problem_ref(&p, &p.expected, RIGHT);
    assert_ok(ls_gemm_pack(op_devices[0][0], &p.weight, p.w.data, LS_BF16, n, k, &err), err);
    return p;
}

static void problem_free(problem *p) {
    op_array_free(&p->x);
    op_array_free(&p->w);
    op_array_free(&p->bias);
    op_array_free(&p->expected);
    ls_gemm_weight_free(op_devices[0][0], &p->weight);
}

static ls_gemm_args problem_args(const problem *p, const op_array *out) {
    const ls_gemm_args args = {.x = p->x.data,
                               .x_dtype = LS_BF16,
                               .x_stride = p->x.stride,
                               .weight = &p->weight,
                               .bias = p->biased ? op_floats(&p->bias) : NULL,
                               .out = out->data,
                               .out_dtype = out->dtype,
                               .out_stride = out->stride,
                               .m = p->m,
                               .profile = LS_PROFILE_MMA16};
    return args;
}

static void problem_check(const problem *p, ls_isa isa, int32_t thread, const char *what) {
    op_array out = op_copy(&p->expected);
    const ls_gemm_args args = problem_args(p, &out);
    ls_error err;
    op_guard(&out);
    assert_ok(ls_gemm(op_devices[isa][thread], &args, &err), err);
    op_check(&p->expected, &out, OP_NAN_PINNED, "%s: m %lld n %lld k %lld out %s bias %d threads %d", what,
             (long long)p->m, (long long)p->n, (long long)p->k, ls_dtype_name(out.dtype), p->biased, thread + 1);
    op_array_free(&out);
}

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t ms[] = {1, 2, 7, 9}, ns[] = {1, 15, 16, 17, 33}, ks[] = {1, 2, 15, 16, 17, 31, 33, 48, 70};
    uint64_t seed = 1;
    for (int64_t m = 0; m < OP_COUNT(ms); m++)
        for (int64_t n = 0; n < OP_COUNT(ns); n++)
            for (int64_t k = 0; k < OP_COUNT(ks); k++) {
                problem p =
                    problem_make(ms[m], ns[n], ks[k], (int64_t)(test_random(&seed) % 4), op_plain, test_random(&seed));
                problem_check(&p, isa, (int32_t)(test_random(&seed) % OP_THREADS_MAX), "shapes");
                problem_free(&p);
            }
}

/* Several blocks of rows, of columns and of k, and enough work for several threads. */
static void large_shapes_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t shapes[][3] = {{67, 18, 530}, {3, 1060, 40}, {33, 65, 100}};
    for (int64_t s = 0; s < OP_COUNT(shapes); s++) {
        problem p = problem_make(shapes[s][0], shapes[s][1], shapes[s][2], s + 1, op_plain, 5);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) problem_check(&p, isa, t, "large");
        problem_free(&p);
    }
}

static void special_values_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const op_maker makers[] = {make_mma, make_tiny, make_cancel, make_infinite, make_nan, make_small, op_special};
    int64_t n_nan = 0, n_infinite = 0, n_subnormal = 0, n_normal = 0;
    for (int64_t i = 0; i < OP_COUNT(makers); i++)
        for (int64_t k = 5; k <= 69; k += 32) {
            problem p = problem_make(9, 35, k, k % 4, makers[i], (uint64_t)(i * 100 + k));
            problem_check(&p, isa, (int32_t)i % OP_THREADS_MAX, "special");
            for (int64_t at = 0; at < p.m * p.n; at++) {
                const float y = op_get(&p.expected, at / p.n, at % p.n);
                n_nan += y != y;
                n_infinite += y - y != 0.0f && y == y;
                n_subnormal += y != 0.0f && fabsf(y) < 0x1p-126f;
                n_normal += y - y == 0.0f && fabsf(y) >= 0x1p-126f;
            }
            problem_free(&p);
        }
    print_message("results: %lld NaN, %lld infinite, %lld subnormal, %lld normal\n", (long long)n_nan,
                  (long long)n_infinite, (long long)n_subnormal, (long long)n_normal);
    assert_true(n_nan > 100 && n_infinite > 100 && n_subnormal > 100 && n_normal > 100);
}

/* A row alone has the bits that it has in a batch, wherever it stands. */
static void rows_alone_equal_the_batch(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(23, 37, 90, 2, make_mma, 8);
    for (int64_t m = 0; m < p.m; m++) {
        op_array out = op_array_make(LS_F32, 1, p.n, 0), row = op_array_make(LS_F32, 1, p.n, 0);
        ls_gemm_args args = problem_args(&p, &out);
        ls_error err;
        args.x = op_at(&p.x, m, 0);
        args.m = 1;
        assert_ok(ls_gemm(op_devices[isa][m % OP_THREADS_MAX], &args, &err), err);
        memcpy(row.data, op_at(&p.expected, m, 0), (size_t)row.bytes);
        op_check(&row, &out, OP_NAN_PINNED, "row %lld alone", (long long)m);
        op_array_free(&out);
        op_array_free(&row);
    }
    problem_free(&p);
}

static void repacked_weights_count(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(4, 20, 50, 0, op_plain, 3);
    uint64_t seed = 99;
    ls_error err;
    op_fill(&p.w, op_plain, &seed);
    problem_ref(&p, &p.expected, RIGHT);
    const ls_gemm_repack_args args = {&p.weight, p.w.data, LS_BF16};
    assert_ok(ls_gemm_repack(op_devices[isa][0], &args, &err), err);
    problem_check(&p, isa, 1, "packed again");
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    problem p = problem_make(9, 17, 96, 0, op_plain, 6);
    op_array wrong = op_copy(&p.expected), exact = op_copy(&p.expected);
    ls_gemm_args args = problem_args(&p, &exact);
    ls_error err;
    char text[160];
    (void)state;
    for (variant v = HALVES; v <= SHIFTED; v++) {
        problem_ref(&p, &wrong, v);
        assert_true(op_diffs(&p.expected, &wrong, OP_NAN_PINNED, text) > p.m * p.n / 10);
    }
    /* So is the other profile, which the same call computes where it is asked to. */
    args.profile = LS_PROFILE_EXACT;
    assert_ok(ls_gemm(op_devices[LS_ISA_GENERIC][0], &args, &err), err);
    assert_true(op_diffs(&p.expected, &exact, OP_NAN_PINNED, text) > p.m * p.n / 2);
    op_array_free(&wrong);
    op_array_free(&exact);
    problem_free(&p);
}

static void other_types_are_refused(void **state) {
    problem p = problem_make(2, 3, 4, 0, op_plain, 1);
    op_array out = op_copy(&p.expected), wide = op_array_make(LS_F32, 3, 4, 0);
    ls_gemm_args args = problem_args(&p, &out);
    ls_gemm_weight weight;
    uint64_t seed = 4;
    ls_error err;
    (void)state;
    op_fill(&wide, op_plain, &seed);
    assert_ok(ls_gemm_pack(op_devices[0][0], &weight, wide.data, LS_F32, 3, 4, &err), err);
    args.x = wide.data;
    args.x_dtype = LS_F32;
    args.x_stride = 4;
    check_failed(ls_gemm(op_devices[0][0], &args, &err), &err, "profile mma16: x is f32");
    args = problem_args(&p, &out);
    args.weight = &weight;
    check_failed(ls_gemm(op_devices[0][0], &args, &err), &err, "profile mma16: weight is f32");
    args = problem_args(&p, &out);
    args.profile = (ls_profile)7;
    check_failed(ls_gemm(op_devices[0][0], &args, &err), &err, "profile 7");
    op_check(&p.expected, &out, OP_NAN_PINNED, "refused");
    ls_gemm_weight_free(op_devices[0][0], &weight);
    op_array_free(&out);
    op_array_free(&wide);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook),
        OP_CASES(large_shapes_equal_the_textbook),
        OP_CASES(special_values_equal_the_textbook),
        OP_CASES(rows_alone_equal_the_batch),
        OP_CASES(repacked_weights_count),
        cmocka_unit_test(variants_are_caught),
        cmocka_unit_test(other_types_are_refused),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
