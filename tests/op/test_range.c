/* Ops over rows whose number only the device knows: products and their gradients, and the combination of experts, of a
 * range against a textbook reading, bit for bit; rows outside of it untouched; ranges that cannot be, named. */
#include "op/gemm_backward.h"
#include "op/moe.h"
#include "op/op_case.h"

enum { M = 9, N = 21, K = 33 };

static const int64_t good[][2] = {{0, M}, {0, 0}, {4, 4}, {M, M}, {0, 1}, {M - 1, M}, {2, 7}};

/* Every call of these tests, with a range; bad ranges are refused by name and nothing is written. */
typedef ls_status ranged_call(ls_device *device, const void *args, const int64_t *range, ls_error *err);

static void check_refusals(const char *op, ranged_call *call, const void *args, const op_array *written) {
    const int64_t bad[][2] = {{-1, 3}, {3, 2}, {0, M + 1}, {M + 1, M + 1}, {INT64_MIN, 0}, {0, INT64_MAX}};
    op_array before = op_copy(written);
    for (int64_t i = 0; i < OP_COUNT(bad); i++) {
        char text[120];
        ls_error err;
        snprintf(text, sizeof text, "%s: rows %lld to %lld of %d", op, (long long)bad[i][0], (long long)bad[i][1], M);
        check_failed(call(op_devices[0][1], args, bad[i], &err), &err, text);
        op_check(&before, written, OP_NAN_PINNED, "%s", text);
    }
    op_array_free(&before);
}

/* ---- gemm ---- */

static ls_status call_gemm(ls_device *device, const void *args, const int64_t *range, ls_error *err) {
    ls_gemm_args ranged = *(const ls_gemm_args *)args;
    ranged.range = range;
    return ls_gemm(device, &ranged, err);
}

static void products_of_a_range(void **state) {
    const ls_isa isa = op_isa(state);
    for (int combo = 0; combo < 8; combo++) {
        const ls_dtype x_dtype = combo & 1 ? LS_BF16 : LS_F32, out_dtype = combo & 2 ? LS_BF16 : LS_F32;
        op_array x = op_array_make(x_dtype, M, K, combo % 3), w = op_array_make(LS_F32, N, K, 0);
        op_array bias = op_array_make(LS_F32, 1, N, 0), out = op_array_make(out_dtype, M, N, combo % 2);
        op_array expected = op_copy(&out);
        uint64_t seed = (uint64_t)combo + 1;
        ls_gemm_weight weight;
        ls_error err;
        op_fill(&x, op_plain, &seed);
        op_fill(&w, op_plain, &seed);
        op_fill(&bias, op_plain, &seed);
        assert_ok(ls_gemm_pack(op_devices[isa][0], &weight, w.data, LS_F32, N, K, &err), err);
        const ls_gemm_args args = {x.data,   x.dtype,   x.stride,   &weight, combo & 4 ? op_floats(&bias) : NULL,
                                   out.data, out.dtype, out.stride, M,       LS_PROFILE_EXACT,
                                   NULL,     false};
        for (int64_t i = 0; i < OP_COUNT(good); i++) {
            op_guard(&expected);
            for (int64_t m = good[i][0]; m < good[i][1]; m++)
                for (int64_t n = 0; n < N; n++) {
                    float acc = 0.0f;
                    for (int64_t k = 0; k < K; k++) acc = ls_fma(op_get(&x, m, k), op_get(&w, n, k), acc);
                    op_put(&expected, m, n, combo & 4 ? ls_add(acc, op_get(&bias, 0, n)) : acc);
                }
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                op_guard(&out);
                assert_ok(call_gemm(op_devices[isa][t], &args, good[i], &err), err);
                op_check(&expected, &out, OP_NAN_PINNED, "gemm rows %lld to %lld, combo %d", (long long)good[i][0],
                         (long long)good[i][1], combo);
            }
        }
        check_refusals("gemm", call_gemm, &args, &out);
        ls_gemm_weight_free(op_devices[isa][0], &weight);
        op_array_free(&x);
        op_array_free(&w);
        op_array_free(&bias);
        op_array_free(&out);
        op_array_free(&expected);
    }
}

/* ---- gradient of the input ---- */

static const int64_t listed[M] = {1, 2, 4, 7, 8, 9, 13, 14, 18}; /* rows of a tensor of LISTED */
enum { LISTED = 20 };

static ls_status call_input(ls_device *device, const void *args, const int64_t *range, ls_error *err) {
    ls_gemm_backward_input_args ranged = *(const ls_gemm_backward_input_args *)args;
    ranged.range = range;
    return ls_gemm_backward_input(device, &ranged, err);
}

/* combo: 1 for a list of rows, 2 for add. */
static void input_gradients_of_a_range(void **state) {
    const ls_isa isa = op_isa(state);
    for (int combo = 0; combo < 4; combo++) {
        const bool is_listed = combo & 1, add = combo & 2;
        op_array dy = op_array_make(LS_F32, M, N, 2), w = op_array_make(LS_BF16, N, K, 0);
        op_array start = op_array_make(LS_F32, is_listed ? LISTED : M, K, 1), dx = op_copy(&start), expected;
        uint64_t seed = (uint64_t)combo + 1;
        op_fill(&dy, op_plain, &seed);
        op_fill(&w, op_plain, &seed);
        op_fill(&start, op_plain, &seed);
        const ls_gemm_backward_input_args args = {
            .dy = op_floats(&dy),
            .dy_stride = dy.stride,
            .w = w.data,
            .w_dtype = w.dtype,
            .dx = op_floats(&dx),
            .dx_stride = dx.stride,
            .dx_count = dx.rows,
            .m = M,
            .n = N,
            .k = K,
            .add = add,
            .dx_rows = is_listed ? listed : NULL,
        };
        for (int64_t i = 0; i < OP_COUNT(good); i++) {
            expected = op_copy(&start);
            for (int64_t m = good[i][0]; m < good[i][1]; m++)
                for (int64_t k = 0; k < K; k++) {
                    const int64_t row = is_listed ? listed[m] : m;
                    float acc = 0.0f;
                    for (int64_t n = 0; n < N; n++) acc = ls_fma(op_get(&dy, m, n), op_get(&w, n, k), acc);
                    op_put(&expected, row, k, add ? ls_add(op_get(&start, row, k), acc) : acc);
                }
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                ls_error err;
                memcpy(dx.data, start.data, (size_t)dx.bytes);
                assert_ok(call_input(op_devices[isa][t], &args, good[i], &err), err);
                op_check(&expected, &dx, OP_NAN_PINNED, "dx rows %lld to %lld, combo %d", (long long)good[i][0],
                         (long long)good[i][1], combo);
            }
            op_array_free(&expected);
        }
        check_refusals("gemm_backward_input", call_input, &args, &dx);
        op_array_free(&dy);
        op_array_free(&w);
        op_array_free(&start);
        op_array_free(&dx);
    }
}

/* ---- gradient of the weight ---- */

static ls_status call_weight(ls_device *device, const void *args, const int64_t *range, ls_error *err) {
    ls_gemm_backward_weight_args ranged = *(const ls_gemm_backward_weight_args *)args;
    ranged.range = range;
    return ls_gemm_backward_weight(device, &ranged, err);
}

/* combo: 1 for a list of rows, 2 for x in bf16, 4 for a bias. dw and dbias lie in one array, dbias in its last row. */
static void weight_gradients_of_a_range(void **state) {
    const ls_isa isa = op_isa(state);
    for (int combo = 0; combo < 8; combo++) {
        const bool is_listed = combo & 1, biased = combo & 4;
        op_array dy = op_array_make(LS_F32, M, N, 2);
        op_array x = op_array_make(combo & 2 ? LS_BF16 : LS_F32, is_listed ? LISTED : M, K, 3);
        op_array start = op_array_make(LS_F32, 1, N * K + N, 0), grads, expected;
        uint64_t seed = (uint64_t)combo + 1;
        op_fill(&dy, op_plain, &seed);
        op_fill(&x, op_plain, &seed);
        op_fill(&start, op_plain, &seed);
        grads = op_copy(&start);
        const ls_gemm_backward_weight_args args = {
            .dy = op_floats(&dy),
            .dy_stride = dy.stride,
            .x = x.data,
            .x_dtype = x.dtype,
            .x_stride = x.stride,
            .x_count = x.rows,
            .x_rows = is_listed ? listed : NULL,
            .dw = op_floats(&grads),
            .dbias = biased ? op_floats(&grads) + N * K : NULL,
            .m = M,
            .n = N,
            .k = K,
        };
        for (int64_t i = 0; i < OP_COUNT(good); i++) {
            expected = op_copy(&start);
            for (int64_t m = good[i][0]; m < good[i][1]; m++)
                for (int64_t n = 0; n < N; n++) {
                    const float dy_n = op_get(&dy, m, n);
                    for (int64_t k = 0; k < K; k++)
                        op_put(&expected, 0, n * K + k,
                               ls_fma(dy_n, op_get(&x, is_listed ? listed[m] : m, k), op_get(&expected, 0, n * K + k)));
                    if (biased) op_put(&expected, 0, N * K + n, ls_add(op_get(&expected, 0, N * K + n), dy_n));
                }
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                ls_error err;
                memcpy(grads.data, start.data, (size_t)grads.bytes);
                assert_ok(call_weight(op_devices[isa][t], &args, good[i], &err), err);
                op_check(&expected, &grads, OP_NAN_PINNED, "dw of rows %lld to %lld, combo %d", (long long)good[i][0],
                         (long long)good[i][1], combo);
            }
            op_array_free(&expected);
        }
        check_refusals("gemm_backward_weight", call_weight, &args, &grads);
        op_array_free(&dy);
        op_array_free(&x);
        op_array_free(&start);
        op_array_free(&grads);
    }
}

/* ---- combination of experts ---- */

static ls_status call_combine(ls_device *device, const void *args, const int64_t *range, ls_error *err) {
    ls_moe_combine_args ranged = *(const ls_moe_combine_args *)args;
    ranged.range = range;
    return ls_moe_combine(device, &ranged, err);
}

static void combinations_of_a_range(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {1, 16, 37, 257};
    for (int64_t d = 0; d < OP_COUNT(dims); d++) {
        const int64_t dim = dims[d];
        op_array y = op_array_make(LS_F32, M, dim, 0), start = op_array_make(LS_F32, LISTED, dim, 0), acc, expected;
        float weight[M];
        uint64_t seed = (uint64_t)d + 1;
        op_fill(&y, op_plain, &seed);
        op_fill(&start, op_plain, &seed);
        acc = op_copy(&start);
        for (int64_t i = 0; i < M; i++) weight[i] = test_uniform(&seed, 0.0f, 1.0f);
        const ls_moe_combine_args args = {op_floats(&y), listed, weight, op_floats(&acc), M, dim, NULL};
        for (int64_t i = 0; i < OP_COUNT(good); i++) {
            expected = op_copy(&start);
            for (int64_t m = good[i][0]; m < good[i][1]; m++)
                for (int64_t c = 0; c < dim; c++)
                    op_put(&expected, listed[m], c, ls_fma(weight[m], op_get(&y, m, c), op_get(&start, listed[m], c)));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                ls_error err;
                memcpy(acc.data, start.data, (size_t)acc.bytes);
                assert_ok(call_combine(op_devices[isa][t], &args, good[i], &err), err);
                op_check(&expected, &acc, OP_NAN_PINNED, "combine rows %lld to %lld, dim %lld", (long long)good[i][0],
                         (long long)good[i][1], (long long)dim);
            }
            op_array_free(&expected);
        }
        check_refusals("moe_combine", call_combine, &args, &acc);
        op_array_free(&y);
        op_array_free(&start);
        op_array_free(&acc);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(products_of_a_range),
        OP_CASES(input_gradients_of_a_range),
        OP_CASES(weight_gradients_of_a_range),
        OP_CASES(combinations_of_a_range),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
