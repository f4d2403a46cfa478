/* Rows by number and the comparison of regions against a textbook reading of their contracts, byte for byte: widths,
 * strides, numbers in any order, instruction sets, threads; bad numbers and bad arguments. */
#include "op/gather.h"
#include "op/op_case.h"

/* ---- gather ---- */

typedef struct problem {
    int64_t x_rows, n, row_bytes, x_stride, out_stride, out_bytes;
    int64_t *index;
    uint8_t *x, *out, *expected;
} problem;

static problem problem_make(int64_t x_rows, int64_t n, int64_t row_bytes, uint64_t seed) {
    problem p = {.x_rows = x_rows, .n = n, .row_bytes = row_bytes};
    p.x_stride = row_bytes + (int64_t)(test_random(&seed) % 4);
    p.out_stride = row_bytes + (int64_t)(test_random(&seed) % 4);
    p.out_bytes = n * p.out_stride;
    p.index = op_alloc(n * 8);
    p.x = op_alloc(x_rows * p.x_stride);
    p.out = op_alloc(p.out_bytes);
    p.expected = op_alloc(p.out_bytes);
    for (int64_t i = 0; i < x_rows * p.x_stride; i++) p.x[i] = (uint8_t)(test_random(&seed) >> 32);
    for (int64_t i = 0; i < n; i++) p.index[i] = (int64_t)(test_random(&seed) % (uint64_t)x_rows);
    if (n > 1) p.index[n - 1] = p.index[0]; /* a row may be taken twice */
    memset(p.expected, OP_GUARD, (size_t)p.out_bytes);
    for (int64_t i = 0; i < n; i++)
        for (int64_t b = 0; b < row_bytes; b++) p.expected[i * p.out_stride + b] = p.x[p.index[i] * p.x_stride + b];
    return p;
}

static void problem_free(problem *p) {
    free(p->index);
    free(p->x);
    free(p->out);
    free(p->expected);
}

static ls_gather_args problem_args(const problem *p) {
    const ls_gather_args args = {p->x, p->index, p->out, p->x_rows, p->x_stride, p->n, p->out_stride, p->row_bytes};
    return args;
}

static void rows_are_where_the_numbers_say(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t widths[] = {1, 2, 3, 4, 7, 64, 257, 10240}, counts[] = {0, 1, 2, 40};
    for (int64_t w = 0; w < OP_COUNT(widths); w++)
        for (int64_t c = 0; c < OP_COUNT(counts); c++)
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                problem p = problem_make(1 + 11 * t, counts[c], widths[w], (uint64_t)(w * 100 + c * 10 + t + 1));
                const ls_gather_args args = problem_args(&p);
                ls_error err;
                memset(p.out, OP_GUARD, (size_t)p.out_bytes);
                assert_ok(ls_gather(op_devices[isa][t], &args, &err), err);
                if (memcmp(p.out, p.expected, (size_t)p.out_bytes) != 0)
                    fail_msg("%lld rows of %lld bytes, threads %d", (long long)counts[c], (long long)widths[w], t + 1);
                problem_free(&p);
            }
}

static void bad_numbers_are_named(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t bad[] = {-1, 7, INT64_MIN, INT64_MAX};
    for (int64_t b = 0; b < OP_COUNT(bad); b++)
        for (int64_t at = 0; at < 5; at++) {
            problem p = problem_make(7, 5, 12, 3);
            const ls_gather_args args = problem_args(&p);
            char text[100];
            ls_error err;
            p.index[at] = bad[b];
            snprintf(text, sizeof text, "gather: entry %lld: row %lld is not in 0..6", (long long)at,
                     (long long)bad[b]);
            memset(p.out, OP_GUARD, (size_t)p.out_bytes);
            memset(p.expected, OP_GUARD, (size_t)p.out_bytes);
            check_failed(ls_gather(op_devices[isa][1], &args, &err), &err, text);
            assert_memory_equal(p.out, p.expected, (size_t)p.out_bytes);
            problem_free(&p);
        }
}

static void bad_arguments_are_named(void **state) {
    problem p = problem_make(7, 5, 12, 3);
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                             \
    do {                                                                               \
        ls_gather_args args = problem_args(&p);                                        \
        __VA_ARGS__;                                                                   \
        check_failed(ls_gather(op_devices[0][0], &args, &err), &err, "gather: " word); \
    } while (0)
    memset(p.out, OP_GUARD, (size_t)p.out_bytes);
    memset(p.expected, OP_GUARD, (size_t)p.out_bytes);
    REFUSED("x is a null", args.x = NULL);
    REFUSED("index is a null", args.index = NULL);
    REFUSED("out is a null", args.out = NULL);
    REFUSED("-2 of 7 rows of 12 bytes", args.n = -2);
    REFUSED("5 of -7 rows of 12 bytes", args.x_rows = -7);
    REFUSED("5 of 7 rows of 0 bytes", args.row_bytes = 0);
    REFUSED("x: stride 11", args.x_stride = 11);
    REFUSED("out: stride -1", args.out_stride = -1);
    REFUSED("x: 9223372036854775807 rows", args.x_rows = INT64_MAX);
#undef REFUSED
    assert_memory_equal(p.out, p.expected, (size_t)p.out_bytes);
    problem_free(&p);
}

/* ---- differs ---- */

static void every_byte_counts(void **state) {
    enum { COUNT = 5, STRIDE = 37, WIDTH = 33 };
    const ls_isa isa = op_isa(state);
    uint8_t a[COUNT * STRIDE], b[COUNT * STRIDE];
    uint64_t seed = 4;
    ls_error err;
    for (int64_t i = 0; i < COUNT * STRIDE; i++) a[i] = b[i] = (uint8_t)(test_random(&seed) >> 40);
    for (int64_t i = -1; i < COUNT * STRIDE; i++) {
        int64_t differs = 0;
        const ls_differs_args args = {a, b, COUNT, STRIDE, WIDTH, &differs};
        if (i >= 0) b[i] ^= 0x80;
        assert_ok(ls_differs(op_devices[isa][(i + 1) % OP_THREADS_MAX], &args, &err), err);
        /* Bytes between the rows are nobody's. */
        assert_int_equal(differs, i >= 0 && i % STRIDE < WIDTH);
        if (i >= 0) b[i] ^= 0x80;
    }
}

/* Bits are compared, not numbers: zeros differ, a NaN is itself. What was found before stays found. */
static void bits_are_compared_and_findings_stay(void **state) {
    const ls_isa isa = op_isa(state);
    const float zero[] = {0.0f, NAN}, minus[] = {-0.0f, NAN};
    int64_t differs = 0;
    const ls_differs_args same = {zero, zero, 1, 8, 8, &differs}, other = {zero, minus, 1, 8, 8, &differs};
    const ls_differs_args tails = {zero + 1, minus + 1, 1, 4, 4, &differs}, none = {NULL, NULL, 0, 8, 8, &differs};
    ls_error err;
    assert_ok(ls_differs(op_devices[isa][0], &same, &err), err);
    assert_ok(ls_differs(op_devices[isa][0], &tails, &err), err);
    assert_ok(ls_differs(op_devices[isa][0], &none, &err), err);
    assert_int_equal(differs, 0);
    assert_ok(ls_differs(op_devices[isa][0], &other, &err), err);
    assert_int_equal(differs, 1);
    assert_ok(ls_differs(op_devices[isa][0], &same, &err), err);
    assert_int_equal(differs, 1);
}

static void bad_regions_are_named(void **state) {
    uint8_t a[12] = {0};
    int64_t differs = 0;
    ls_error err;
    (void)state;
#define REFUSED(word, ...) \
    check_failed(ls_differs(op_devices[0][0], &(const ls_differs_args){__VA_ARGS__}, &err), &err, "differs: " word)
    REFUSED("a is a null", NULL, a, 3, 4, 4, &differs);
    REFUSED("b is a null", a, NULL, 3, 4, 4, &differs);
    REFUSED("differs is a null", a, a, 3, 4, 4, NULL);
    REFUSED("-3 rows of 4 bytes", a, a, -3, 4, 4, &differs);
    REFUSED("3 rows of 0 bytes", a, a, 3, 4, 0, &differs);
    REFUSED("a: stride 3", a, a, 3, 3, 4, &differs);
    REFUSED("a: 9223372036854775807 rows", a, a, INT64_MAX, 4, 4, &differs);
#undef REFUSED
    assert_int_equal(differs, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(rows_are_where_the_numbers_say),
        OP_CASES(bad_numbers_are_named),
        OP_CASES(every_byte_counts),
        OP_CASES(bits_are_compared_and_findings_stay),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(bad_regions_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
