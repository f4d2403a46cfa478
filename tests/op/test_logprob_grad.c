/* Gradients of log-probability, log-sum-exp and entropy with respect to the logits: against a textbook reading of the
 * contract, bit for bit, and against central differences in float64. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "op/op_grad.h"
#include "op/op_logprob.h"

/* Which gradients come in. */
enum { OF_LOGPROB = 1, OF_LSE = 2, OF_ENTROPY = 4, N_FLAGS = 8 };

typedef struct problem {
    op_array logits, d_logits;
    op_array forward;  /* [3][rows]: logprob, lse, entropy of the op */
    op_array incoming; /* [3][rows]: their gradients */
    int64_t *targets;
    float *temperature; /* or NULL */
    uint8_t *mask;
    int flags;
} problem;

static problem problem_alloc(ls_dtype dtype, int64_t rows, int64_t vocab, bool with_temperature, int flags,
                             uint64_t *seed) {
    problem p = {.logits = op_array_make(dtype, rows, vocab, (int64_t)(test_random(seed) % 4)),
                 .d_logits = op_array_make(dtype, rows, vocab, (int64_t)(test_random(seed) % 4)),
                 .forward = op_array_make(LS_F32, 3, rows, 0),
                 .incoming = op_array_make(LS_F32, 3, rows, 0),
                 .flags = flags};
    p.targets = op_alloc(rows * 8);
    p.mask = op_alloc(rows);
    if (with_temperature) p.temperature = op_alloc(rows * 4);
    op_fill(&p.incoming, op_plain, seed);
    memset(p.mask, 1, (size_t)rows);
    for (int64_t r = 0; r < rows; r++) {
        const float temperatures[] = {1.0f, 0.7f, 2.0f, 1.3f};
        p.targets[r] = (int64_t)(test_random(seed) % (uint64_t)vocab);
        if (with_temperature) p.temperature[r] = temperatures[test_random(seed) % (uint64_t)OP_COUNT(temperatures)];
    }
    return p;
}

/* lse and entropy, as a trainer has them. */
static void forward(const problem *p) {
    const ls_logprob_args args = {.logits = p->logits.data,
                                  .dtype = p->logits.dtype,
                                  .rows = p->logits.rows,
                                  .vocab = p->logits.cols,
                                  .row_stride = p->logits.stride,
                                  .targets = p->targets,
                                  .ignore_index = -100,
                                  .mask = p->mask,
                                  .temperature = p->temperature,
                                  .logprob = op_at(&p->forward, 0, 0),
                                  .lse = op_at(&p->forward, 1, 0),
                                  .entropy = op_at(&p->forward, 2, 0)};
    ls_error err;
    assert_ok(ls_logprob(op_devices[LS_ISA_GENERIC][0], &args, &err), err);
}

/* Rows of every kind, some of them left out. */
static problem problem_make(ls_dtype dtype, int64_t rows, int64_t vocab, bool with_temperature, int flags,
                            uint64_t seed) {
    problem p = problem_alloc(dtype, rows, vocab, with_temperature, flags, &seed);
    for (int64_t r = 0; r < rows; r++) {
        fill_kind(&p.logits, r, (r + (int64_t)(seed % KINDS)) % KINDS, &seed);
        if (r % 7 == 5) p.mask[r] = 0;
        if (r % 8 == 6) p.targets[r] = -100;
    }
    forward(&p);
    return p;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->logits, &p->d_logits, &p->forward, &p->incoming};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
    free(p->targets);
    free(p->temperature);
    free(p->mask);
}

static ls_logprob_backward_args problem_args(const problem *p) {
    const ls_logprob_backward_args args = {.logits = p->logits.data,
                                           .dtype = p->logits.dtype,
                                           .rows = p->logits.rows,
                                           .vocab = p->logits.cols,
                                           .row_stride = p->logits.stride,
                                           .targets = p->targets,
                                           .ignore_index = -100,
                                           .mask = p->mask,
                                           .temperature = p->temperature,
                                           .lse = op_at(&p->forward, 1, 0),
                                           .entropy = p->flags & OF_ENTROPY ? op_at(&p->forward, 2, 0) : NULL,
                                           .d_logprob = p->flags & OF_LOGPROB ? op_at(&p->incoming, 0, 0) : NULL,
                                           .d_lse = p->flags & OF_LSE ? op_at(&p->incoming, 1, 0) : NULL,
                                           .d_entropy = p->flags & OF_ENTROPY ? op_at(&p->incoming, 2, 0) : NULL,
                                           .d_logits = p->d_logits.data,
                                           .d_stride = p->d_logits.stride};
    return args;
}

/* ---- the textbook ---- */

/* Wrong on purpose: e^(z - lse) from ls_exp, w without its fma, the target's share after the temperature, no end of p
 * at -87. */
typedef enum wrong { NOTHING, PLAIN_EXP, W_UNFUSED, TARGET_LAST, NO_FLOOR } wrong;

static float p_ref(float t, wrong w) {
    const float x = t > -87.0f || w == NO_FLOOR ? t : -87.0f;
    const float r = ls_fma(x, LS_LOG2E, LS_ROUND_MAGIC), f = ls_fma(x, LS_LOG2E, -ls_sub(r, LS_ROUND_MAGIC));
    if (w == PLAIN_EXP) return ls_exp(t);
    if (t < -87.0f && w != NO_FLOOR) return 0.0f;
    return ls_from_bits(ls_bits(ls_exp2_poly(f)) + (ls_bits(r) << 23));
}

static void grad_ref(const problem *p, const op_array *out, wrong wr) {
    for (int64_t r = 0; r < p->logits.rows; r++) {
        const bool kept = p->mask[r] != 0 && p->targets[r] != -100;
        const float temperature = p->temperature != NULL ? p->temperature[r] : 1.0f, inv_t = ls_div(1.0f, temperature);
        const float lse = op_get(&p->forward, 1, r), entropy = op_get(&p->forward, 2, r);
        const float d_logprob = p->flags & OF_LOGPROB ? op_get(&p->incoming, 0, r) : 0.0f;
        const float d_lse = p->flags & OF_LSE ? op_get(&p->incoming, 1, r) : 0.0f;
        const float d_entropy = op_get(&p->incoming, 2, r), base = ls_sub(d_lse, d_logprob);
        for (int64_t i = 0; i < p->logits.cols; i++) {
            float g = kept ? NAN : 0.0f;
            if (kept && lse == lse) {
                const float logit = op_get(&p->logits, r, i), z = temperature == 1.0f ? logit : ls_mul(logit, inv_t);
                const float t = ls_sub(z, lse), x = t > -87.0f ? t : -87.0f;
                float w = base;
                if (p->flags & OF_ENTROPY)
                    w = wr == W_UNFUSED ? ls_sub(base, ls_mul(d_entropy, ls_add(x, entropy)))
                                        : ls_fma(-d_entropy, ls_add(x, entropy), base);
                g = ls_mul(p_ref(t, wr), w);
                if (i == p->targets[r] && wr != TARGET_LAST) g = ls_add(g, d_logprob);
                if (p->temperature != NULL) g = ls_mul(g, inv_t);
                if (i == p->targets[r] && wr == TARGET_LAST) g = ls_add(g, d_logprob);
            }
            op_put(out, r, i, g);
        }
    }
}

/* ---- equality in bits ---- */

static void problem_check(const problem *p, ls_isa isa, const char *what) {
    const ls_logprob_backward_args args = problem_args(p);
    op_array expected =
        op_array_make(p->logits.dtype, p->logits.rows, p->logits.cols, p->d_logits.stride - p->d_logits.cols);
    ls_error err;
    op_guard(&expected);
    grad_ref(p, &expected, NOTHING);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        op_guard(&p->d_logits);
        assert_ok(ls_logprob_backward(op_devices[isa][t], &args, &err), err);
        op_check(&expected, &p->d_logits, OP_NAN_ANY, "%s: rows %lld vocab %lld %s temperature %d flags %d threads %d",
                 what, (long long)args.rows, (long long)args.vocab, ls_dtype_name(args.dtype), p->temperature != NULL,
                 p->flags, t + 1);
    }
    op_array_free(&expected);
}

static void every_kind_of_row_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t vocabs[] = {1, 2, 7, 17, 33, 65, 257, 2047, 2048, 2049, 4100};
    for (int64_t i = 0; i < OP_COUNT(vocabs); i++)
        for (int flags = 0; flags < N_FLAGS; flags++) {
            problem p = problem_make(types[(i + flags) % 3], KINDS + 3, vocabs[i], (i / 3 + flags) % 2 == 1, flags,
                                     (uint64_t)(8 * i + flags + 1));
            problem_check(&p, isa, "kinds");
            problem_free(&p);
        }
}

static void large_vocabularies_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t k = 0; k < 3; k++) {
        problem p = problem_make(types[k], 3, 151936, k == 1, N_FLAGS - 1, (uint64_t)k + 15);
        problem_check(&p, isa, "large");
        problem_free(&p);
    }
}

/* Float32 logits, gradients in bf16: those in float32 rounded once, in a place of their own and in the logits'. */
static void gradients_are_rounded_once(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t vocabs[] = {1, 8, 33, 2049, 8192, 20483};
    for (int64_t i = 0; i < OP_COUNT(vocabs); i++) {
        problem p = problem_make(LS_F32, KINDS + 3, vocabs[i], i % 2 == 1, (int)(i + 1) % N_FLAGS, (uint64_t)i + 90);
        op_array wide = op_array_make(LS_F32, p.logits.rows, vocabs[i], 0),
                 expected = op_array_make(LS_BF16, p.logits.rows, vocabs[i], 3), got = op_copy(&expected);
        ls_logprob_backward_args args = problem_args(&p);
        ls_error err;
        op_guard(&expected);
        grad_ref(&p, &wide, NOTHING);
        for (int64_t r = 0; r < p.logits.rows; r++)
            for (int64_t c = 0; c < vocabs[i]; c++) op_put(&expected, r, c, op_round(op_get(&wide, r, c), LS_BF16));
        args.d_bf16 = true;
        args.d_logits = got.data;
        args.d_stride = got.stride;
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            op_guard(&got);
            assert_ok(ls_logprob_backward(op_devices[isa][t], &args, &err), err);
            op_check(&expected, &got, OP_NAN_ANY, "rounded: vocab %lld threads %d", (long long)vocabs[i], t + 1);
        }
        args.d_logits = p.logits.data;
        args.d_stride = 2 * args.row_stride;
        assert_ok(ls_logprob_backward(op_devices[isa][2], &args, &err), err);
        for (int64_t r = 0; r < p.logits.rows; r++)
            assert_memory_equal(op_at(&p.logits, r, 0), op_at(&got, r, 0), (size_t)vocabs[i] * 2);
        op_array_free(&wide);
        op_array_free(&expected);
        op_array_free(&got);
        problem_free(&p);
    }
}

/* Values that the contract names. */
static void named_values(void **state) {
    const ls_isa isa = op_isa(state);
    uint64_t seed = 1;
    problem p = problem_alloc(LS_F32, 4, 3000, false, OF_LOGPROB, &seed);
    for (int64_t i = 0; i < 3000; i++) {
        op_put(&p.logits, 0, i, -INFINITY);              /* no probability at all: NaN */
        op_put(&p.logits, 1, i, i == 7 ? -INFINITY : 0); /* a target of probability 0 */
        op_put(&p.logits, 2, i, i == 7 ? 0 : -88.0f);    /* a sure target */
        op_put(&p.logits, 3, i, NAN);                    /* left out */
    }
    for (int64_t r = 0; r < 4; r++) p.targets[r] = r == 3 ? -100 : 7;
    forward(&p);
    problem_check(&p, isa, "named");
    for (int64_t i = 0; i < 3000; i++) {
        assert_int_equal(ls_bits(op_get(&p.d_logits, 0, i)), LS_NAN_BITS);
        assert_int_equal(ls_bits(op_get(&p.d_logits, 3, i)), 0);
        if (i != 7) assert_true(op_get(&p.d_logits, 2, i) == 0.0f);
    }
    assert_true(op_get(&p.d_logits, 1, 7) == op_get(&p.incoming, 0, 1));
    assert_true(op_get(&p.d_logits, 2, 7) == 0.0f);
    problem_free(&p);
}

/* ---- independence ---- */

/* Each row by itself gives what it gives among the others, and d_logits may be the logits. */
static void rows_do_not_see_each_other(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t k = 0; k < 3; k++) {
        problem p = problem_make(types[k], 17, 2500, k == 2, N_FLAGS - 1, (uint64_t)k + 71);
        op_array rows = op_array_make(types[k], 17, 2500, p.d_logits.stride - 2500), spare = p.d_logits;
        ls_logprob_backward_args args = problem_args(&p);
        ls_error err;
        problem_check(&p, isa, "together");
        op_guard(&rows);
        args.rows = 1;
        for (int64_t r = 16; r >= 0; r--) {
            args.logits = op_at(&p.logits, r, 0);
            args.targets = p.targets + r;
            args.mask = p.mask + r;
            args.temperature = p.temperature != NULL ? p.temperature + r : NULL;
            args.lse = op_at(&p.forward, 1, r);
            args.entropy = op_at(&p.forward, 2, r);
            args.d_logprob = op_at(&p.incoming, 0, r);
            args.d_lse = op_at(&p.incoming, 1, r);
            args.d_entropy = op_at(&p.incoming, 2, r);
            args.d_logits = op_at(&rows, r, 0);
            assert_ok(ls_logprob_backward(op_devices[isa][r % OP_THREADS_MAX], &args, &err), err);
        }
        op_check(&p.d_logits, &rows, OP_NAN_PINNED, "rows alone");
        p.d_logits = p.logits;
        args = problem_args(&p);
        assert_ok(ls_logprob_backward(op_devices[isa][2], &args, &err), err);
        for (int64_t r = 0; r < 17; r++)
            assert_memory_equal(op_at(&p.logits, r, 0), op_at(&rows, r, 0), (size_t)(2500 * ls_dtype_bytes(types[k])));
        p.d_logits = spare;
        op_array_free(&rows);
        problem_free(&p);
    }
}

/* Logits of rows left out lie in pages that no one may read: one access ends the program. */
static void rows_left_out_are_not_read(void **state) {
    enum { ROWS = 12, PAGE = 16384, VOCAB = 3001 };
    const ls_isa isa = op_isa(state);
    uint8_t *pages = mmap(NULL, ROWS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    problem p = problem_make(LS_F32, ROWS, VOCAB, false, N_FLAGS - 1, 2);
    ls_logprob_backward_args args = problem_args(&p);
    op_array expected = op_array_make(LS_F32, ROWS, VOCAB, p.d_logits.stride - VOCAB);
    ls_error err;
    assert_true(pages != MAP_FAILED);
    op_guard(&expected);
    grad_ref(&p, &expected, NOTHING);
    for (int64_t r = 0; r < ROWS; r++) {
        memcpy(pages + r * PAGE, op_at(&p.logits, r, 0), VOCAB * 4);
        if (p.mask[r] == 0 || p.targets[r] == -100) assert_int_equal(mprotect(pages + r * PAGE, PAGE, PROT_NONE), 0);
    }
    args.logits = pages;
    args.row_stride = PAGE / 4;
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        op_guard(&p.d_logits);
        assert_ok(ls_logprob_backward(op_devices[isa][t], &args, &err), err);
        op_check(&expected, &p.d_logits, OP_NAN_ANY, "left out");
    }
    munmap(pages, ROWS * PAGE);
    op_array_free(&expected);
    problem_free(&p);
}

/* ---- truth ---- */

enum { T_VOCAB = 65 };

typedef struct exact {
    double logits[T_VOCAB], inv_t, d_logprob, d_lse, d_entropy;
    int64_t target;
} exact;

static double exact_loss(const void *context) {
    const exact *e = context;
    double top = -INFINITY, sum = 0.0, mean = 0.0, lse;
    for (int i = 0; i < T_VOCAB; i++) top = fmax(top, e->logits[i] * e->inv_t);
    for (int i = 0; i < T_VOCAB; i++) {
        const double z = e->logits[i] * e->inv_t - top;
        sum += exp(z);
        mean += exp(z) * z;
    }
    lse = top + log(sum);
    return e->d_logprob * (e->logits[e->target] * e->inv_t - lse) + e->d_lse * lse +
           e->d_entropy * (log(sum) - mean / sum);
}

/* Every gradient is within 1e-4 of the largest of its row; measured errors are below 1e-5. */
static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    double worst = 0.0;
    for (int flags = 1; flags < N_FLAGS; flags++)
        for (int with_temperature = 0; with_temperature < 2; with_temperature++) {
            uint64_t seed = (uint64_t)flags;
            problem p = problem_alloc(LS_F32, 6, T_VOCAB, with_temperature, flags, &seed);
            ls_logprob_backward_args args = problem_args(&p);
            ls_error err;
            op_fill(&p.logits, op_wide, &seed);
            forward(&p);
            assert_ok(ls_logprob_backward(op_devices[isa][0], &args, &err), err);
            for (int64_t r = 0; r < 6; r++) {
                exact e = {.inv_t = with_temperature ? 1.0f / p.temperature[r] : 1.0f,
                           .d_logprob = flags & OF_LOGPROB ? op_get(&p.incoming, 0, r) : 0.0,
                           .d_lse = flags & OF_LSE ? op_get(&p.incoming, 1, r) : 0.0,
                           .d_entropy = flags & OF_ENTROPY ? op_get(&p.incoming, 2, r) : 0.0,
                           .target = p.targets[r]};
                double error;
                for (int64_t i = 0; i < T_VOCAB; i++) e.logits[i] = op_get(&p.logits, r, i);
                error = grad_worst(op_at(&p.d_logits, r, 0), e.logits, T_VOCAB, exact_loss, &e);
                if (!(error <= 1e-4))
                    fail_msg("row %lld, flags %d: error %g of the largest", (long long)r, flags, error);
                worst = fmax(worst, error);
            }
            problem_free(&p);
        }
    print_message("worst error %.3g of the largest gradient of its row\n", worst);
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    problem p = problem_make(LS_F32, 4, 9, true, N_FLAGS - 1, 3);
    const ls_logprob_backward_args right = problem_args(&p);
    op_array untouched = op_array_make(LS_F32, 4, 9, p.d_logits.stride - 9);
    ls_logprob_backward_args args;
    ls_error err;
    (void)state;
    op_guard(&p.d_logits);
    op_guard(&untouched);
    memset(p.mask, 1, 4);
#define REFUSED(word, ...)                                                            \
    do {                                                                              \
        args = right;                                                                 \
        __VA_ARGS__;                                                                  \
        check_failed(ls_logprob_backward(op_devices[0][1], &args, &err), &err, word); \
        check_failed(err.status, &err, "logprob_backward");                           \
    } while (0)
    REFUSED("logits is a null", args.logits = NULL);
    REFUSED("targets is a null", args.targets = NULL);
    REFUSED("lse is a null", args.lse = NULL);
    REFUSED("d_logits is a null", args.d_logits = NULL);
    REFUSED("entropy is a null pointer and d_entropy is not", args.entropy = NULL);
    REFUSED("data type -1", args.dtype = (ls_dtype)-1);
    REFUSED("rows is -2", args.rows = -2);
    REFUSED("vocab 0", args.vocab = 0);
    REFUSED("vocab 1000001", args.vocab = 1000001);
    REFUSED("logits: stride 8", args.row_stride = 8);
    REFUSED("d_logits: stride 8", args.d_stride = 8);
    REFUSED("logits: 4 rows of stride 9223372036854775807", args.row_stride = INT64_MAX);
    REFUSED("d_logits: 4 rows of stride 4611686018427387904", args.d_stride = INT64_C(1) << 62);
    REFUSED("d_stride 20 is not row_stride", args.d_logits = p.logits.data, args.d_stride = 20);
    REFUSED("row 2: target 9 ", p.targets[2] = 9);
    REFUSED("row 2: target -1 ", p.targets[2] = -1);
    p.targets[2] = 0;
    REFUSED("row 3: temperature 0", p.temperature[3] = 0.0f);
    REFUSED("row 3: temperature inf", p.temperature[3] = INFINITY);
#undef REFUSED
    op_check(&untouched, &p.d_logits, OP_NAN_PINNED, "refused");
    op_array_free(&untouched);
    problem_free(&p);
}

/* ---- the comparison itself ---- */

static void variants_are_caught(void **state) {
    const wrong all[] = {PLAIN_EXP, W_UNFUSED, TARGET_LAST, NO_FLOOR};
    uint64_t seed = 4;
    problem p = problem_alloc(LS_F32, 20, 500, true, N_FLAGS - 1, &seed);
    op_array right = op_array_make(LS_F32, 20, 500, 0), other = op_array_make(LS_F32, 20, 500, 0);
    char text[160];
    (void)state;
    op_fill(&p.logits, op_logit, &seed);
    op_put(&p.logits, 3, 9, -200.0f);
    forward(&p);
    grad_ref(&p, &right, NOTHING);
    for (int64_t i = 0; i < OP_COUNT(all); i++) {
        grad_ref(&p, &other, all[i]);
        if (op_diffs(&right, &other, OP_NAN_ANY, text) == 0) fail_msg("variant %d is not seen", (int)all[i]);
    }
    op_array_free(&right);
    op_array_free(&other);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_kind_of_row_equals_the_textbook),
        OP_CASES(large_vocabularies_equal_the_textbook),
        OP_CASES(gradients_are_rounded_once),
        OP_CASES(named_values),
        OP_CASES(rows_do_not_see_each_other),
        OP_CASES(rows_left_out_are_not_read),
        OP_CASES(gradients_are_those_of_float64),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
