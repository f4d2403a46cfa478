/* Dense product against a textbook chain, bit for bit: shapes, types, strides, instruction sets, threads, special
 * values; rows alone, in a batch and permuted; a variant that must be caught; argument errors. */
#include <stdlib.h>

#include "base/mem.h"
#include "harness.h"
#include "num/half.h"
#include "op/backend.h"
#include "op/gemm.h"

#define THREADS_MAX 3
#define GUARD 0xA5

/* A sanitizer looks at addresses, of which an eighth of the larger shapes has them all; the chain itself takes it
 * minutes where there are three instruction sets. */
#define THINNED_FROM (SANITIZED ? 10000 : INT64_MAX)

static ls_device *devices[LS_ISA_COUNT][THREADS_MAX]; /* NULL where the processor cannot run the set */
static int n_skipped;

static int devices_open(void **state) {
    (void)state;
    for (int isa = 0; isa < LS_ISA_COUNT; isa++) {
        if (!ls_isa_available((ls_isa)isa)) {
            n_skipped++;
            print_message("skipped: instruction set %s is not available here\n", ls_isa_name((ls_isa)isa));
            continue;
        }
        for (int32_t t = 0; t < THREADS_MAX; t++) {
            ls_error err;
            assert_ok(ls_device_open_cpu(&devices[isa][t], t + 1, (ls_isa)isa, &err), err);
        }
    }
    return 0;
}

static int devices_close(void **state) {
    (void)state;
    for (int isa = 0; isa < LS_ISA_COUNT; isa++)
        for (int32_t t = 0; t < THREADS_MAX; t++) ls_device_close(devices[isa][t]);
    print_message("instruction sets skipped: %d of %d\n", n_skipped, LS_ISA_COUNT);
    return 0;
}

/* One problem: inputs in their types, and the expected bytes of out with guards between rows. */
typedef struct problem {
    int64_t m, n, k, x_stride, out_stride, out_bytes;
    ls_dtype x_dtype, w_dtype, out_dtype;
    void *x, *w;
    float *bias; /* always filled; used when has_bias */
    bool has_bias;
    uint8_t *expected, *out;
    ls_gemm_weight weight;
} problem;

static void *zeroed(int64_t count, int64_t elem_bytes) {
    void *array;
    ls_error err;
    assert_ok(ls_array_alloc(&array, count, elem_bytes, "test array", &err), err);
    return array;
}

static void elem_put(void *array, ls_dtype dtype, int64_t i, float value) {
    switch (dtype) {
        case LS_F32: ((float *)array)[i] = value; break;
        case LS_BF16: ((uint16_t *)array)[i] = ls_f32_to_bf16(value); break;
        case LS_F16: ((uint16_t *)array)[i] = ls_f32_to_f16(value); break;
    }
}

static float elem_get(const void *array, ls_dtype dtype, int64_t i) {
    switch (dtype) {
        case LS_F32: return ((const float *)array)[i];
        case LS_BF16: return ls_bf16_to_f32(((const uint16_t *)array)[i]);
        case LS_F16: return ls_f16_to_f32(((const uint16_t *)array)[i]);
    }
    return 0.0f;
}

/* The specification, one output. */
static float chain_ref(const float *x, const float *w, int64_t k, const float *bias) {
    float acc = 0.0f;
    for (int64_t i = 0; i < k; i++) acc = ls_fma(x[i], w[i], acc);
    if (bias != NULL) acc = ls_add(acc, *bias);
    return acc != acc ? ls_from_bits(0x7FC00000u) : acc;
}

/* The variant of the negative control: a batch of more than one row cuts each chain in two. */
static float chain_split(const float *x, const float *w, int64_t k, const float *bias, int64_t m) {
    float low, acc;
    if (m == 1) return chain_ref(x, w, k, bias);
    low = chain_ref(x, w, k / 2, NULL);
    acc = ls_add(low, chain_ref(x + k / 2, w + k / 2, k - k / 2, NULL));
    return bias != NULL ? ls_add(acc, *bias) : acc;
}

/* Fills out [m][n] the textbook way, rows out_stride apart, over bytes of GUARD. */
static void gemm_ref(const problem *p, uint8_t *out, bool split) {
    float *x = zeroed(p->m * p->k, 4), *w = zeroed(p->n * p->k, 4);
    memset(out, GUARD, (size_t)p->out_bytes);
    for (int64_t m = 0; m < p->m; m++)
        for (int64_t i = 0; i < p->k; i++) x[m * p->k + i] = elem_get(p->x, p->x_dtype, m * p->x_stride + i);
    for (int64_t i = 0; i < p->n * p->k; i++) w[i] = elem_get(p->w, p->w_dtype, i);
    for (int64_t m = 0; m < p->m; m++)
        for (int64_t n = 0; n < p->n; n++) {
            const float *bias = p->has_bias ? &p->bias[n] : NULL;
            const float *row = x + m * p->k, *column = w + n * p->k;
            const float y = split ? chain_split(row, column, p->k, bias, p->m) : chain_ref(row, column, p->k, bias);
            elem_put(out, p->out_dtype, m * p->out_stride + n, y);
        }
    free(x);
    free(w);
}

typedef float (*maker)(uint64_t *seed);

static float make_plain(uint64_t *seed) { return test_uniform(seed, -1.0f, 1.0f); }

/* Mostly plain; sometimes NaN of either sign and any payload, infinities, zeros, denormals, huge and tiny values. */
static float make_special(uint64_t *seed) {
    const uint64_t u = test_random(seed);
    const uint32_t sign = (uint32_t)(u >> 63) << 31, bits = (uint32_t)(u >> 32) & 0x007FFFFFu;
    switch (u % 400) {
        case 0: return ls_from_bits(sign | 0x7F800000u | bits | 1u);
        case 1: return ls_from_bits(sign | 0x7F800000u);
        default: break;
    }
    switch (u % 16) {
        case 2: return ls_from_bits(sign);
        case 3:
        case 4: return ls_from_bits(sign | bits);
        case 5: return ls_from_bits(sign | 0x1F800000u | bits);
        case 6: return ls_from_bits(sign | 0x5F000000u | bits);
        case 7: return ls_from_bits(sign | 0x00800000u | bits);
        default: return make_plain(seed);
    }
}

static void problem_make(problem *p, int64_t m, int64_t n, int64_t k, int combo, maker make, uint64_t seed) {
    ls_error err;
    memset(p, 0, sizeof *p);
    p->m = m;
    p->n = n;
    p->k = k;
    p->x_dtype = combo & 1 ? LS_BF16 : LS_F32;
    p->out_dtype = combo & 2 ? LS_BF16 : LS_F32;
    p->has_bias = combo & 4;
    p->w_dtype = (ls_dtype)(combo / 8 % 3);
    p->x_stride = k + (int64_t)(test_random(&seed) % 4);
    p->out_stride = n + (int64_t)(test_random(&seed) % 4);
    p->out_bytes = m * p->out_stride * ls_dtype_bytes(p->out_dtype);
    p->x = zeroed(m * p->x_stride, ls_dtype_bytes(p->x_dtype));
    p->w = zeroed(n * k, ls_dtype_bytes(p->w_dtype));
    p->bias = zeroed(n, 4);
    p->out = zeroed(p->out_bytes, 1);
    p->expected = zeroed(p->out_bytes, 1);
    /* Elements between rows of x are NaN: reading one shows. */
    for (int64_t i = 0; i < m * p->x_stride; i++)
        elem_put(p->x, p->x_dtype, i, i % p->x_stride < k ? make(&seed) : ls_from_bits(0x7FC00000u));
    for (int64_t i = 0; i < n * k; i++) elem_put(p->w, p->w_dtype, i, make(&seed));
    for (int64_t i = 0; i < n; i++) p->bias[i] = make(&seed);
    gemm_ref(p, p->expected, false);
    assert_ok(ls_gemm_pack(devices[0][0], &p->weight, p->w, p->w_dtype, n, k, &err), err);
    assert_int_equal((uintptr_t)p->weight.panels % 64, 0);
}

static void problem_free(problem *p) {
    ls_gemm_weight_free(devices[0][0], &p->weight);
    free(p->x);
    free(p->w);
    free(p->bias);
    free(p->out);
    free(p->expected);
}

static ls_gemm_args problem_args(const problem *p) {
    const ls_gemm_args args = {p->x,   p->x_dtype,   p->x_stride,   &p->weight, p->has_bias ? p->bias : NULL,
                               p->out, p->out_dtype, p->out_stride, p->m,       LS_PROFILE_EXACT,
                               NULL,   false};
    return args;
}

/* Outputs and guards of p->out that differ from the expected ones in any bit. */
static int64_t problem_diffs(const problem *p) {
    const int64_t bytes = ls_dtype_bytes(p->out_dtype);
    int64_t diffs = 0;
    for (int64_t i = 0; i < p->out_bytes; i += bytes) diffs += memcmp(p->out + i, p->expected + i, (size_t)bytes) != 0;
    return diffs;
}

static void problem_check(problem *p, ls_isa isa, int32_t threads) {
    const ls_gemm_args args = problem_args(p);
    ls_error err;
    int64_t diffs;
    memset(p->out, GUARD, (size_t)p->out_bytes);
    assert_ok(ls_gemm(devices[isa][threads - 1], &args, &err), err);
    diffs = problem_diffs(p);
    if (diffs != 0)
        fail_msg("m %lld n %lld k %lld x %s w %s out %s bias %d isa %s threads %d: %lld elements differ",
                 (long long)p->m, (long long)p->n, (long long)p->k, ls_dtype_name(p->x_dtype),
                 ls_dtype_name(p->w_dtype), ls_dtype_name(p->out_dtype), p->has_bias, ls_isa_name(isa), threads,
                 (long long)diffs);
}

static void problem_check_everywhere(problem *p) {
    for (int isa = 0; isa < LS_ISA_COUNT; isa++)
        for (int32_t t = 1; t <= THREADS_MAX; t++)
            if (devices[isa][t - 1] != NULL) problem_check(p, (ls_isa)isa, t);
}

static void every_shape_equals_the_chain(void **state) {
    const int64_t ns[] = {1, 15, 16, 17, 31, 33, 48, 100, 257}, ks[] = {1, 2, 3, 7, 64, 255, 256, 257, 1000};
    uint64_t seed = 1;
    int32_t turn = 0;
    (void)state;
    for (size_t m_i = 0; m_i < 24; m_i++)
        for (size_t n_i = 0; n_i < sizeof ns / sizeof ns[0]; n_i++)
            for (size_t k_i = 0; k_i < sizeof ks / sizeof ks[0]; k_i++) {
                const int64_t m = (int64_t)(m_i < 20 ? m_i + 1 : m_i < 23 ? 63 + m_i - 20 : 200);
                problem p;
                if (m * ns[n_i] * ks[k_i] > THINNED_FROM && (m_i + n_i + k_i) % 8 != 0) continue;
                problem_make(&p, m, ns[n_i], ks[k_i], (int)(test_random(&seed) % 24), make_plain, test_random(&seed));
                /* All thread counts for small shapes; large ones take turns. */
                if (m * ns[n_i] * ks[k_i] <= 100000)
                    problem_check_everywhere(&p);
                else
                    for (int isa = 0; isa < LS_ISA_COUNT; isa++)
                        if (devices[isa][0] != NULL) problem_check(&p, (ls_isa)isa, 1 + (turn + isa) % THREADS_MAX);
                problem_free(&p);
                turn++;
            }
}

static void every_type_equals_the_chain(void **state) {
    const int64_t shapes[][3] = {{1, 70, 300}, {2, 33, 65}, {5, 33, 257}, {13, 48, 300}, {67, 100, 515}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int combo = 0; combo < 24; combo++) {
            problem p;
            problem_make(&p, shapes[s][0], shapes[s][1], shapes[s][2], combo, make_plain, 77 + s);
            problem_check_everywhere(&p);
            problem_free(&p);
        }
}

/* Shapes that need several blocks of rows, of K and of panels. */
static void large_shapes_equal_the_chain(void **state) {
    const int64_t shapes[][3] = {{1, 17, 70001}, {6, 130, 12000}, {95, 3100, 701}, {230, 900, 330}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        problem p;
        problem_make(&p, shapes[s][0], shapes[s][1], shapes[s][2], s % 2 ? 15 : 4, make_plain, s + 5);
        for (int isa = 0; isa < LS_ISA_COUNT; isa++)
            if (devices[isa][0] != NULL) problem_check(&p, (ls_isa)isa, isa == 0 ? 2 : 1);
        problem_free(&p);
    }
}

static void special_values_equal_the_chain(void **state) {
    int64_t n_nan = 0, n_inf = 0, n_subnormal = 0;
    (void)state;
    for (int combo = 0; combo < 24; combo++)
        for (int64_t m = 1; m <= 15; m += 7)
            for (int64_t k = 3; k <= 75; k += 24) {
                problem p;
                problem_make(&p, m, 33, k, combo, make_special, (uint64_t)(combo * 100 + m * 7 + k));
                problem_check_everywhere(&p);
                for (int64_t i = 0; i < m * 33; i++) {
                    const float y = elem_get(p.expected, p.out_dtype, i / 33 * p.out_stride + i % 33);
                    n_nan += y != y;
                    n_inf += y == y && y - y != 0.0f;
                    n_subnormal += y != 0.0f && (ls_bits(y) & 0x7F800000u) == 0;
                }
                problem_free(&p);
            }
    assert_true(n_nan > 100 && n_inf > 100 && n_subnormal > 0);
}

/* An underflowing chain ends in -0, which a bias of +0 turns into +0 and no bias leaves alone. */
static void absent_bias_adds_nothing(void **state) {
    const float x = 1e-30f, w = -1e-30f, bias = 0.0f;
    ls_gemm_weight weight;
    float out;
    ls_gemm_args args = {&x, LS_F32, 1, &weight, NULL, &out, LS_F32, 1, 1, LS_PROFILE_EXACT, NULL, false};
    ls_error err;
    (void)state;
    assert_ok(ls_gemm_pack(devices[0][0], &weight, &w, LS_F32, 1, 1, &err), err);
    for (int isa = 0; isa < LS_ISA_COUNT; isa++) {
        if (devices[isa][0] == NULL) continue;
        args.bias = NULL;
        assert_ok(ls_gemm(devices[isa][0], &args, &err), err);
        assert_int_equal(ls_bits(out), 0x80000000u);
        args.bias = &bias;
        assert_ok(ls_gemm(devices[isa][0], &args, &err), err);
        assert_int_equal(ls_bits(out), 0);
    }
    ls_gemm_weight_free(devices[0][0], &weight);
}

/* One batch, each row alone, and the batch in another order: the same bits for each row. */
static void rows_do_not_see_each_other(void **state) {
    enum { ROWS = 37, COLUMNS = 83, DEPTH = 411 };
    float *x = zeroed(ROWS * DEPTH, 4), *permuted = zeroed(ROWS * DEPTH, 4), *w = zeroed(COLUMNS * DEPTH, 4);
    float *batch = zeroed(ROWS * COLUMNS, 4), *other = zeroed(ROWS * COLUMNS, 4), alone[COLUMNS];
    ls_gemm_weight weight;
    ls_error err;
    uint64_t seed = 9;
    (void)state;
    for (int64_t i = 0; i < ROWS * DEPTH; i++) x[i] = make_plain(&seed);
    for (int64_t i = 0; i < COLUMNS * DEPTH; i++) w[i] = make_plain(&seed);
    for (int64_t m = 0; m < ROWS; m++) memcpy(permuted + m * 10 % ROWS * DEPTH, x + m * DEPTH, DEPTH * sizeof *x);
    assert_ok(ls_gemm_pack(devices[0][0], &weight, w, LS_F32, COLUMNS, DEPTH, &err), err);
    for (int isa = 0; isa < LS_ISA_COUNT; isa++) {
        ls_device *device = devices[isa][1];
        ls_gemm_args args = {x,      LS_F32,  DEPTH, &weight,          NULL, batch,
                             LS_F32, COLUMNS, ROWS,  LS_PROFILE_EXACT, NULL, false};
        if (device == NULL) continue;
        assert_ok(ls_gemm(device, &args, &err), err);
        args.x = permuted;
        args.out = other;
        assert_ok(ls_gemm(device, &args, &err), err);
        for (int64_t m = 0; m < ROWS; m++) {
            assert_same_bits(batch + m * COLUMNS, other + m * 10 % ROWS * COLUMNS, COLUMNS);
            args.x = x + m * DEPTH;
            args.out = alone;
            args.m = 1;
            assert_ok(ls_gemm(device, &args, &err), err);
            assert_same_bits(batch + m * COLUMNS, alone, COLUMNS);
        }
    }
    ls_gemm_weight_free(devices[0][0], &weight);
    free(x);
    free(permuted);
    free(w);
    free(batch);
    free(other);
}

/* A chain of K roundings stays within K * 2^-24 * sum |x w| of the exact value, and usually far closer. */
static void chain_is_accurate(void **state) {
    problem p;
    (void)state;
    for (int isa = 0; isa < LS_ISA_COUNT; isa++) {
        double worst = 0.0;
        if (devices[isa][0] == NULL) continue;
        problem_make(&p, 7, 50, 2000, 0, make_plain, 3);
        problem_check(&p, (ls_isa)isa, 1);
        for (int64_t m = 0; m < p.m; m++)
            for (int64_t n = 0; n < p.n; n++) {
                double exact = 0.0, size = 0.0, error;
                for (int64_t i = 0; i < p.k; i++) {
                    const double term =
                        (double)((const float *)p.x)[m * p.x_stride + i] * ((const float *)p.w)[n * p.k + i];
                    exact += term;
                    size += fabs(term);
                }
                error = fabs((double)((const float *)(const void *)p.out)[m * p.out_stride + n] - exact) / size;
                if (error > worst) worst = error;
            }
        print_message("%s: worst error %.3g of sum |x w|\n", ls_isa_name((ls_isa)isa), worst);
        assert_true(worst < 1e-6);
        problem_free(&p);
    }
}

/* The comparison of these tests must catch a product that cuts the chain when it sees a batch. */
static void variant_is_caught(void **state) {
    problem p;
    (void)state;
    problem_make(&p, 3, 20, 64, 0, make_plain, 11);
    gemm_ref(&p, p.out, false);
    assert_int_equal(problem_diffs(&p), 0);
    gemm_ref(&p, p.out, true);
    assert_true(problem_diffs(&p) > 0);
    memcpy(p.out, p.expected, (size_t)p.out_bytes);
    p.out[p.out_bytes - 1] ^= 1; /* a touched guard, or the last bit of the last output */
    assert_int_equal(problem_diffs(&p), 1);
    problem_free(&p);
}

static ls_status repack(const ls_gemm_weight *weight, const void *w, ls_dtype dtype, ls_error *err) {
    const ls_gemm_repack_args args = {weight, w, dtype};
    return ls_gemm_repack(devices[0][0], &args, err);
}

/* A weight packed anew holds what a fresh one of the same values holds, its gaps and padding included. */
static void repacked_weights_are_new_weights(void **state) {
    const ls_dtype first[] = {LS_F32, LS_BF16, LS_F32}, then[] = {LS_F32, LS_BF16, LS_F16};
    (void)state;
    for (int i = 0; i < 3; i++) {
        enum { N = 37, K = 70 };
        void *a = zeroed(N * K, 4), *b = zeroed(N * K, 4);
        ls_gemm_weight weight, fresh;
        ls_error err;
        uint64_t seed = 5;
        for (int64_t j = 0; j < N * K; j++) elem_put(a, first[i], j, make_plain(&seed));
        for (int64_t j = 0; j < N * K; j++) elem_put(b, then[i], j, make_plain(&seed));
        assert_ok(ls_gemm_pack(devices[0][0], &weight, a, first[i], N, K, &err), err);
        assert_ok(ls_gemm_pack(devices[0][0], &fresh, b, then[i], N, K, &err), err);
        assert_ok(repack(&weight, b, then[i], &err), err);
        assert_int_equal(weight.panel_bytes, fresh.panel_bytes);
        assert_memory_equal(weight.panels, fresh.panels, (size_t)fresh.panel_bytes);
        check_failed(repack(&weight, NULL, then[i], &err), &err, "w is NULL");
        check_failed(repack(&weight, b, (ls_dtype)5, &err), &err, "dtype 5");
        check_failed(repack(&weight, b, first[i] == LS_BF16 ? LS_F32 : LS_BF16, &err), &err, "into panels of");
        ls_gemm_weight_free(devices[0][0], &fresh);
        check_failed(repack(&fresh, b, then[i], &err), &err, "not packed before");
        ls_gemm_weight_free(devices[0][0], &weight);
        free(a);
        free(b);
    }
}

static void bad_arguments_are_named(void **state) {
    float x[4] = {0}, out[4] = {0}, w[4] = {0};
    ls_device *device = devices[0][0];
    ls_gemm_weight weight, none;
    ls_gemm_args good = {x, LS_F32, 2, &weight, NULL, out, LS_F32, 2, 2, LS_PROFILE_EXACT, NULL, false}, args;
    ls_error err;
    (void)state;
    check_failed(ls_gemm_pack(devices[0][0], &none, NULL, LS_F32, 2, 2, &err), &err, "w is NULL");
    check_failed(ls_gemm_pack(devices[0][0], &none, w, (ls_dtype)9, 2, 2, &err), &err, "dtype 9");
    check_failed(ls_gemm_pack(devices[0][0], &none, w, LS_F32, 0, 2, &err), &err, "n 0");
    check_failed(ls_gemm_pack(devices[0][0], &none, w, LS_F32, 2, -3, &err), &err, "k -3");
    check_failed(ls_gemm_pack(devices[0][0], &none, w, LS_F32, INT64_MAX, INT64_MAX, &err), &err,
                 "9223372036854775807");
    check_failed(ls_gemm_pack(devices[0][0], &none, w, LS_F32, INT64_MAX, 1, &err), &err, "gemm weight");
    assert_null(none.panels);
    ls_gemm_weight_free(devices[0][0], &none);
    ls_gemm_weight_free(devices[0][0], NULL);
    assert_ok(ls_gemm_pack(devices[0][0], &weight, w, LS_F32, 2, 2, &err), err);
    assert_ok(ls_gemm(device, &good, &err), err);
    check_failed(ls_gemm(NULL, &good, &err), &err, "device is NULL");
    check_failed(ls_gemm(device, NULL, &err), &err, "args is NULL");
    args = good;
    args.weight = NULL;
    check_failed(ls_gemm(device, &args, &err), &err, "weight is NULL");
    args.weight = &none;
    check_failed(ls_gemm(device, &args, &err), &err, "not packed");
    args = good;
    args.x = NULL;
    check_failed(ls_gemm(device, &args, &err), &err, "x is NULL");
    args = good;
    args.out = NULL;
    check_failed(ls_gemm(device, &args, &err), &err, "out is NULL");
    args = good;
    args.x_dtype = LS_F16;
    check_failed(ls_gemm(device, &args, &err), &err, "x_dtype 2 (f16)");
    args = good;
    args.out_dtype = (ls_dtype)7;
    check_failed(ls_gemm(device, &args, &err), &err, "out_dtype 7");
    args = good;
    args.x_stride = 1;
    check_failed(ls_gemm(device, &args, &err), &err, "x_stride 1");
    args = good;
    args.out_stride = 1;
    check_failed(ls_gemm(device, &args, &err), &err, "out_stride 1");
    args = good;
    args.m = -1;
    check_failed(ls_gemm(device, &args, &err), &err, "m -1");
    args.m = 0;
    args.x = NULL;
    args.out = NULL;
    assert_ok(ls_gemm(device, &args, &err), err);
    assert_int_equal(ls_gemm(NULL, &args, NULL), LS_ERR_ARG);
    ls_gemm_weight_free(devices[0][0], &weight);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_equals_the_chain),
        cmocka_unit_test(every_type_equals_the_chain),
        cmocka_unit_test(large_shapes_equal_the_chain),
        cmocka_unit_test(special_values_equal_the_chain),
        cmocka_unit_test(absent_bias_adds_nothing),
        cmocka_unit_test(rows_do_not_see_each_other),
        cmocka_unit_test(chain_is_accurate),
        cmocka_unit_test(variant_is_caught),
        cmocka_unit_test(repacked_weights_are_new_weights),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
