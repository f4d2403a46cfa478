/* Log-probabilities, log-sum-exp, entropy and sequence sums against a textbook reading of their contract, bit for bit,
 * NaN included; accuracy against float64; rows that are left out lie in memory that must not be read. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "op/op_logprob.h"

/* ---- problems ---- */

enum { LOGPROB = 0, LSE = 1, ENTROPY = 2 };

typedef struct problem {
    op_array logits, expected, got; /* results: [3][rows] */
    int64_t *targets;
    float *temperature;
    uint8_t *mask;
    bool with_temperature;
} problem;

static problem problem_alloc(ls_dtype dtype, int64_t rows, int64_t vocab, int64_t pad) {
    problem p;
    p.logits = op_array_make(dtype, rows, vocab, pad);
    p.expected = op_array_make(LS_F32, 3, rows, 0);
    p.got = op_array_make(LS_F32, 3, rows, 0);
    p.targets = op_alloc(rows * 8);
    p.temperature = op_alloc(rows * 4);
    p.mask = op_alloc(rows);
    p.with_temperature = false;
    for (int64_t r = 0; r < rows; r++) {
        p.targets[r] = 0;
        p.temperature[r] = 1.0f;
        p.mask[r] = 1;
    }
    return p;
}

static void problem_free(problem *p) {
    op_array_free(&p->logits);
    op_array_free(&p->expected);
    op_array_free(&p->got);
    free(p->targets);
    free(p->temperature);
    free(p->mask);
}

static void problem_ref(problem *p, variant v, const op_array *out) {
    for (int64_t r = 0; r < p->logits.rows; r++) {
        result y = {0.0f, 0.0f, 0.0f};
        if (p->targets[r] != -100 && p->mask[r] != 0) {
            float *x = row_widened(&p->logits, r);
            y = row_ref(x, p->logits.cols, p->targets[r], p->with_temperature ? p->temperature[r] : 1.0f, v);
            free(x);
        }
        op_put(out, LOGPROB, r, y.logprob);
        op_put(out, LSE, r, y.lse);
        op_put(out, ENTROPY, r, y.entropy);
    }
}

static ls_logprob_args problem_args(const problem *p) {
    ls_logprob_args args;
    memset(&args, 0, sizeof args);
    args.logits = p->logits.data;
    args.dtype = p->logits.dtype;
    args.rows = p->logits.rows;
    args.vocab = p->logits.cols;
    args.row_stride = p->logits.stride;
    args.targets = p->targets;
    args.ignore_index = -100;
    args.mask = p->mask;
    args.temperature = p->with_temperature ? p->temperature : NULL;
    args.logprob = op_at(&p->got, LOGPROB, 0);
    args.lse = op_at(&p->got, LSE, 0);
    args.entropy = op_at(&p->got, ENTROPY, 0);
    return args;
}

static void problem_check(problem *p, ls_isa isa, const char *what) {
    const ls_logprob_args args = problem_args(p);
    ls_error err;
    problem_ref(p, RIGHT, &p->expected);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        op_guard(&p->got);
        assert_ok(ls_logprob(op_devices[isa][t], &args, &err), err);
        op_check(&p->expected, &p->got, OP_NAN_PINNED, "%s: rows %lld vocab %lld stride %lld %s threads %d", what,
                 (long long)args.rows, (long long)args.vocab, (long long)args.row_stride, ls_dtype_name(args.dtype),
                 t + 1);
    }
}

static problem problem_make(ls_dtype dtype, int64_t rows, int64_t vocab, bool with_temperature, uint64_t seed) {
    const float temperatures[] = {1.0f, 0.7f, 2.0f, 1e-3f, 1e30f, 1.3f, 0x1p-149f, FLT_MAX, 0.1f};
    problem p = problem_alloc(dtype, rows, vocab, (int64_t)(test_random(&seed) % 4));
    p.with_temperature = with_temperature;
    for (int64_t r = 0; r < rows; r++) {
        fill_kind(&p.logits, r, (r + (int64_t)(seed % KINDS)) % KINDS, &seed);
        p.targets[r] = (int64_t)(test_random(&seed) % (uint64_t)vocab);
        p.temperature[r] = temperatures[test_random(&seed) % (uint64_t)OP_COUNT(temperatures)];
    }
    return p;
}

/* ---- equality in bits ---- */

static void every_kind_of_row_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t vocabs[] = {1, 2, 7, 8, 9, 16, 17, 255, 256, 257, 2047, 2048, 2049, 4095, 4096, 4097, 6200, 10241};
    for (int64_t i = 0; i < OP_COUNT(vocabs); i++)
        for (int64_t k = 0; k < 6; k++) {
            problem p = problem_make(types[k % 3], KINDS * 2 + 3, vocabs[i], k >= 3, (uint64_t)(i * 6 + k + 1));
            problem_check(&p, isa, "kinds");
            problem_free(&p);
        }
}

static void large_vocabularies_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t vocabs[] = {65536, 151936, 1000000};
    for (int64_t i = 0; i < OP_COUNT(vocabs); i++)
        for (int64_t k = 0; k < 3; k++) {
            problem p =
                problem_make(types[k], vocabs[i] > 500000 ? 1 : 3, vocabs[i], k == 1, (uint64_t)(i * 3 + k + 15));
            problem_check(&p, isa, "large");
            problem_free(&p);
        }
}

/* Values that the contract names: no textbook needed. */
static void named_values(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_alloc(LS_F32, 6, 5000, 0);
    const uint32_t nan = LS_NAN_BITS;
    for (int64_t i = 0; i < 5000; i++) {
        op_put(&p.logits, 0, i, -INFINITY);           /* all -inf */
        op_put(&p.logits, 1, i, i == 4999 ? NAN : 0); /* a NaN far from the target */
        op_put(&p.logits, 2, i, i == 10 ? INFINITY : 0);
        op_put(&p.logits, 3, i, i == 7 ? -INFINITY : 0);
        op_put(&p.logits, 4, i, i == 3000 ? 0 : -INFINITY);
        op_put(&p.logits, 5, i, i == 3000 ? 0 : -FLT_MAX);
    }
    p.targets[2] = 10;
    p.targets[3] = 7;
    p.targets[4] = 3000;
    p.targets[5] = 2;
    problem_check(&p, isa, "named");
    for (int64_t r = 0; r < 3; r++)
        for (int64_t k = 0; k < 3; k++) assert_int_equal(ls_bits(op_get(&p.got, k, r)), nan);
    assert_true(op_get(&p.got, LOGPROB, 3) == -INFINITY);
    assert_true(fabs(op_get(&p.got, LSE, 3) - log(4999.0)) < 1e-5);
    assert_true(op_get(&p.got, LOGPROB, 4) == 0.0f && op_get(&p.got, LSE, 4) == 0.0f);
    assert_true(op_get(&p.got, LOGPROB, 5) == -INFINITY && fabsf(op_get(&p.got, ENTROPY, 5)) < 1e-6f);
    problem_free(&p);
}

/* ---- independence ---- */

static void rows_do_not_see_each_other(void **state) {
    enum { ROWS = 31, VOCAB = 4500 };
    const ls_isa isa = op_isa(state);
    for (int64_t k = 0; k < 3; k++) {
        problem p = problem_make(types[k], ROWS, VOCAB, true, 71 + (uint64_t)k),
                q = problem_alloc(types[k], ROWS, VOCAB, 3);
        ls_logprob_args args = problem_args(&p);
        ls_error err;
        problem_ref(&p, RIGHT, &p.expected);
        for (int64_t r = 0; r < ROWS; r++) {
            const int64_t to = r * 12 % ROWS;
            memcpy(op_at(&q.logits, to, 0), op_at(&p.logits, r, 0), (size_t)(VOCAB * ls_dtype_bytes(types[k])));
            q.targets[to] = p.targets[r];
            q.temperature[to] = p.temperature[r];
        }
        op_guard(&p.got);
        args.rows = 1;
        args.mask = NULL;
        for (int64_t r = ROWS - 1; r >= 0; r--) {
            args.logits = op_at(&p.logits, r, 0);
            args.targets = p.targets + r;
            args.temperature = p.temperature + r;
            args.logprob = op_at(&p.got, LOGPROB, r);
            args.lse = op_at(&p.got, LSE, r);
            args.entropy = op_at(&p.got, ENTROPY, r);
            assert_ok(ls_logprob(op_devices[isa][r % OP_THREADS_MAX], &args, &err), err);
        }
        op_check(&p.expected, &p.got, OP_NAN_PINNED, "rows alone");
        q.with_temperature = true;
        args = problem_args(&q);
        assert_ok(ls_logprob(op_devices[isa][2], &args, &err), err);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t i = 0; i < 3; i++)
                assert_int_equal(ls_bits(op_get(&p.expected, i, r)), ls_bits(op_get(&q.got, i, r * 12 % ROWS)));
        /* lse and entropy may be left out. */
        op_guard(&q.got);
        args.lse = args.entropy = NULL;
        assert_ok(ls_logprob(op_devices[isa][1], &args, &err), err);
        for (int64_t r = 0; r < ROWS; r++) {
            assert_int_equal(ls_bits(op_get(&p.expected, LOGPROB, r)), ls_bits(op_get(&q.got, LOGPROB, r * 12 % ROWS)));
            assert_int_equal(ls_bits(op_get(&q.got, LSE, r)), OP_GUARD * 0x01010101u);
            assert_int_equal(ls_bits(op_get(&q.got, ENTROPY, r)), OP_GUARD * 0x01010101u);
        }
        problem_free(&p);
        problem_free(&q);
    }
}

/* Rows left out lie in pages that no one may read: one access ends the program. */
static void rows_left_out_are_not_read(void **state) {
    enum { ROWS = 12, VOCAB = 3001, ROW_BYTES = 16384 };
    const ls_isa isa = op_isa(state);
    uint8_t *pages = mmap(NULL, ROWS * ROW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t seed = 5;
    assert_true(pages != MAP_FAILED);
    for (int64_t k = 0; k < 3; k++) {
        problem p = problem_alloc(types[k], ROWS, VOCAB, ROW_BYTES / ls_dtype_bytes(types[k]) - VOCAB);
        ls_logprob_args args;
        ls_error err;
        for (int64_t r = 0; r < ROWS; r++) {
            op_fill_row(&p.logits, r, op_logit, &seed);
            memcpy(pages + r * ROW_BYTES, op_at(&p.logits, r, 0), (size_t)(VOCAB * ls_dtype_bytes(types[k])));
            p.targets[r] = r % 3 == 0 ? -100 : r * 200;
            p.mask[r] = r % 4 != 1;
            if (r % 3 == 0 || r % 4 == 1) assert_int_equal(mprotect(pages + r * ROW_BYTES, ROW_BYTES, PROT_NONE), 0);
        }
        problem_ref(&p, RIGHT, &p.expected);
        args = problem_args(&p);
        args.logits = pages;
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            op_guard(&p.got);
            assert_ok(ls_logprob(op_devices[isa][t], &args, &err), err);
            op_check(&p.expected, &p.got, OP_NAN_PINNED, "left out, %s", ls_dtype_name(types[k]));
        }
        for (int64_t i = 0; i < 3; i++) assert_int_equal(ls_bits(op_get(&p.got, i, 0)), 0);
        assert_int_equal(mprotect(pages, ROWS * ROW_BYTES, PROT_READ | PROT_WRITE), 0);
        problem_free(&p);
    }
    munmap(pages, ROWS * ROW_BYTES);
}

/* Shards of whole leaves, each reduced on its own by the same tree, then combined: the bits of the op. Any power of two
 * of leaves is a subtree; other cuts hand over their leaves. */
static void shards_combine_to_the_same_bits(void **state) {
    enum { VOCAB = 151936 };
    const ls_isa isa = op_isa(state);
    problem p = problem_make(LS_F32, 4, VOCAB, false, 4);
    problem_check(&p, isa, "shards");
    for (int64_t r = 0; r < 4; r++) {
        float *z = row_widened(&p.logits, r);
        for (int64_t shard = 1; shard <= 64; shard *= 2) {
            const int64_t entries = shard * LEAF, n_shards = (VOCAB + entries - 1) / entries;
            ls_logprob_leaf partial[80], row;
            result y;
            int64_t size = 1;
            for (int64_t j = 0; j < n_shards; j++) {
                ls_logprob_leaf *leaves;
                const int64_t left = VOCAB - j * entries;
                const int64_t n = leaves_ref(&leaves, z + j * entries, left < entries ? left : entries, LEAF, RIGHT);
                partial[j] = tree_ref(leaves, n, 0, shard);
                free(leaves);
            }
            while (size < n_shards) size *= 2;
            row = tree_ref(partial, n_shards, 0, size);
            y = result_ref(row, z[p.targets[r]], RIGHT);
            assert_int_equal(ls_bits(y.logprob), ls_bits(op_get(&p.got, LOGPROB, r)));
            assert_int_equal(ls_bits(y.lse), ls_bits(op_get(&p.got, LSE, r)));
            assert_int_equal(ls_bits(y.entropy), ls_bits(op_get(&p.got, ENTROPY, r)));
        }
        free(z);
    }
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_rows_are_named(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t targets[] = {-1, 9, -99, INT64_MIN, INT64_MAX};
    const float temperatures[] = {0.0f, -0.0f, -1.0f, NAN, INFINITY, -INFINITY};
    uint64_t seed = 1;
    problem p = problem_alloc(LS_F32, 5, 9, 0);
    ls_logprob_args args;
    ls_error err;
    char word[64];
    op_fill(&p.logits, op_logit, &seed);
    p.with_temperature = true;
    args = problem_args(&p);
    op_guard(&p.got);
    op_guard(&p.expected);
    for (int64_t r = 0; r < 5; r++) {
        char row[32];
        snprintf(row, sizeof row, "row %d", (int)r);
        for (int64_t i = 0; i < OP_COUNT(targets); i++) {
            p.targets[r] = targets[i];
            snprintf(word, sizeof word, "%lld", (long long)targets[i]);
            check_failed(ls_logprob(op_devices[isa][1], &args, &err), &err, row);
            check_failed(ls_logprob(op_devices[isa][1], &args, &err), &err, word);
        }
        p.targets[r] = 0;
        for (int64_t i = 0; i < OP_COUNT(temperatures); i++) {
            p.temperature[r] = temperatures[i];
            snprintf(word, sizeof word, "%g", (double)temperatures[i]);
            check_failed(ls_logprob(op_devices[isa][1], &args, &err), &err, row);
            check_failed(ls_logprob(op_devices[isa][1], &args, &err), &err, word);
        }
        p.temperature[r] = 1.0f;
        op_check(&p.expected, &p.got, OP_NAN_PINNED, "a refused call");
    }
    /* Rows that are left out need neither a target nor a temperature. */
    p.mask[1] = 0;
    p.targets[1] = 1000;
    p.targets[2] = -100;
    p.temperature[1] = p.temperature[2] = 0.0f;
    problem_check(&p, isa, "left out");
    problem_free(&p);
}

/* ---- accuracy ---- */

typedef struct exact {
    double logprob, lse, entropy;
} exact;

static exact row_exact(const float *x, int64_t vocab, int64_t target, float temperature) {
    const float inv_t = 1.0f / temperature;
    double top = -INFINITY, sum = 0.0, mean = 0.0;
    exact y;
    for (int64_t i = 0; i < vocab; i++) top = fmax(top, (double)(x[i] * inv_t));
    for (int64_t i = 0; i < vocab; i++) {
        const double z = (double)(x[i] * inv_t) - top, w = exp(z);
        sum += w;
        if (w > 0.0) mean += w * z;
    }
    y.lse = top + log(sum);
    y.logprob = (double)(x[target] * inv_t) - y.lse;
    y.entropy = log(sum) - mean / sum;
    return y;
}

/* |error| <= 2e-6 max(1, |value|) for all three, |logit| <= 40. */
static void accurate_within_2e_6(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t vocabs[] = {2, 300, 2049, 65536, 151936};
    double worst[3] = {0.0};
    uint64_t seed = 91;
    for (int64_t i = 0; i < OP_COUNT(vocabs); i++)
        for (int64_t k = 0; k < 3; k++) {
            const int64_t rows = vocabs[i] > 60000 ? 6 : 40;
            problem p = problem_alloc(types[k], rows, vocabs[i], 0);
            ls_logprob_args args = problem_args(&p);
            ls_error err;
            p.with_temperature = k == 2;
            args = problem_args(&p);
            for (int64_t r = 0; r < rows; r++) {
                const float spread = r % 3 == 0   ? 40.0f
                                     : r % 3 == 1 ? 3.0f
                                                  : 0.5f,
                            shift = r % 5 == 0 ? 0.0f : 20.0f - spread;
                for (int64_t c = 0; c < vocabs[i]; c++)
                    op_put(&p.logits, r, c, op_plain(&seed) * spread + (spread < 20.0f ? shift : 0.0f));
                p.targets[r] = (int64_t)(test_random(&seed) % (uint64_t)vocabs[i]);
                p.temperature[r] = 1.0f + (float)(r % 4) * 0.3f;
            }
            assert_ok(ls_logprob(op_devices[isa][0], &args, &err), err);
            for (int64_t r = 0; r < rows; r++) {
                float *x = row_widened(&p.logits, r);
                const exact y = row_exact(x, vocabs[i], p.targets[r], p.with_temperature ? p.temperature[r] : 1.0f);
                const double values[3] = {y.logprob, y.lse, y.entropy};
                for (int64_t o = 0; o < 3; o++) {
                    const double error = fabs(op_get(&p.got, o, r) - values[o]) / fmax(1.0, fabs(values[o]));
                    if (error > worst[o]) worst[o] = error;
                }
                free(x);
            }
            problem_free(&p);
        }
    print_message("worst error: logprob %.3g, lse %.3g, entropy %.3g of max(1, |x|)\n", worst[0], worst[1], worst[2]);
    assert_true(worst[0] <= 2e-6 && worst[1] <= 2e-6 && worst[2] <= 2e-6);
}

/* A token of probability 1 - q at any height of the logits. */
static void sure_tokens(void **state) {
    const ls_isa isa = op_isa(state);
    double worst = 0.0, worst_relative = 0.0, highest = -1.0;
    uint64_t seed = 17;
    problem p = problem_alloc(LS_F32, 2000, 64, 0);
    ls_logprob_args args = problem_args(&p);
    ls_error err;
    for (int64_t r = 0; r < p.logits.rows; r++) {
        const float top = test_uniform(&seed, -40.0f, 40.0f), gap = test_uniform(&seed, 4.0f, 30.0f);
        for (int64_t c = 0; c < 64; c++)
            op_put(&p.logits, r, c, c == 5 ? top : top - gap - test_uniform(&seed, 0.0f, 5.0f));
        p.targets[r] = 5;
    }
    assert_ok(ls_logprob(op_devices[isa][0], &args, &err), err);
    for (int64_t r = 0; r < p.logits.rows; r++) {
        const double top = op_get(&p.logits, r, 5), got = op_get(&p.got, LOGPROB, r);
        double rest = 0.0, y;
        for (int64_t c = 0; c < 64; c++) rest += c == 5 ? 0.0 : exp(op_get(&p.logits, r, c) - top);
        y = -log1p(rest);
        worst = fmax(worst, fabs(got - y));
        if (y < -1e-3) worst_relative = fmax(worst_relative, fabs(got / y - 1.0));
        highest = fmax(highest, got);
    }
    print_message("worst error %.3g, relative %.3g below -1e-3, highest %.3g\n", worst, worst_relative, highest);
    assert_true(worst < 4e-7);
    problem_free(&p);
}

/* ---- sequence sums ---- */

static float sum_ref(const float *x, const uint8_t *mask, int64_t from, int64_t to) {
    float chain[256] = {0};
    int64_t number = 0;
    for (int64_t r = from; r < to; r++)
        if (mask == NULL || mask[r] != 0) {
            chain[number % 256] = ls_add(chain[number % 256], x[r]);
            number++;
        }
    return op_fold(chain);
}

static void sequence_sums_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    enum { SEQS = 12, ROWS = 4200 };
    const int64_t lengths[SEQS] = {0, 1, 2, 255, 256, 257, 0, 1000, 17, 8, 2047, 0};
    int64_t offsets[SEQS + 1] = {3};
    op_array x = op_array_make(LS_F32, 1, ROWS, 0), expected = op_array_make(LS_F32, 1, SEQS, 0);
    op_array got = op_array_make(LS_F32, 1, SEQS, 0);
    const float *values = (const float *)(const void *)x.data;
    uint8_t mask[ROWS];
    uint64_t seed = 3;
    for (int64_t s = 0; s < SEQS; s++) offsets[s + 1] = offsets[s] + lengths[s];
    for (int special = 0; special < 2; special++)
        for (int masked = 0; masked < 2; masked++) {
            op_fill(&x, special ? op_special : op_wide, &seed);
            for (int64_t r = 0; r < ROWS; r++) mask[r] = masked ? test_random(&seed) % 3 != 0 : 0;
            for (int64_t s = 0; s < SEQS; s++)
                op_put(&expected, 0, s, sum_ref(values, masked ? mask : NULL, offsets[s], offsets[s + 1]));
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                const ls_sequence_sum_args args = {.logprob = values,
                                                   .mask = masked ? mask : NULL,
                                                   .offsets = offsets,
                                                   .n_sequences = SEQS,
                                                   .rows = ROWS,
                                                   .out = (float *)(void *)got.data};
                ls_error err;
                op_guard(&got);
                assert_ok(ls_sequence_sum(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &got, OP_NAN_ANY, "sums special %d masked %d threads %d", special, masked, t + 1);
            }
        }
    op_array_free(&x);
    op_array_free(&expected);
    op_array_free(&got);
}

/* Kept rows with padding before, after, between, and packed with other sequences: one sum. Padding is NaN. */
static void padding_changes_no_sum(void **state) {
    const ls_isa isa = op_isa(state);
    enum { N = 600, PADDED = 2000 };
    float x[N], padded[PADDED], out[3];
    uint8_t mask[PADDED];
    const float *expected = &out[0];
    uint64_t seed = 3;
    ls_error err;
    for (int64_t i = 0; i < N; i++) x[i] = test_uniform(&seed, -9.0f, 0.0f);
    for (int style = 0; style < 4; style++) {
        const int64_t whole[] = {0, N}, offsets[] = {0, style == 3 ? 500 : 0, PADDED};
        const ls_sequence_sum_args alone = {.logprob = x, .offsets = whole, .n_sequences = 1, .rows = N, .out = out};
        const ls_sequence_sum_args packed = {
            .logprob = padded, .mask = mask, .offsets = offsets, .n_sequences = 2, .rows = PADDED, .out = out + 1};
        int64_t at = style == 0 ? PADDED - N : style == 3 ? 700 : 0;
        memset(padded, OP_POISON, sizeof padded);
        memset(mask, 0, sizeof mask);
        for (int64_t i = 0; i < N; i++) {
            padded[at] = x[i];
            mask[at] = (uint8_t)(1 + i % 255);
            at += style == 2 ? 1 + (int64_t)(test_random(&seed) % 4) : 1;
        }
        if (style == 3)
            for (int64_t i = 0; i < 500; i++) {
                padded[i] = -1.0f;
                mask[i] = 1;
            }
        assert_ok(ls_sequence_sum(op_devices[isa][0], &alone, &err), err);
        assert_ok(ls_sequence_sum(op_devices[isa][2], &packed, &err), err);
        assert_int_equal(ls_bits(*expected), ls_bits(sum_ref(x, NULL, 0, N)));
        assert_int_equal(ls_bits(*expected), ls_bits(out[2]));
        assert_true(out[1] == (style == 3 ? -500.0f : 0.0f));
    }
}

/* Rows of one length are sequences without offsets: the sums of the same rows packed. */
static void padded_rows_are_sequences(void **state) {
    const ls_isa isa = op_isa(state);
    enum { SEQS = 9, MOST = 700 };
    const int64_t lengths[] = {0, 1, 8, 255, 257, MOST};
    float values[SEQS * MOST + 5], packed[SEQS], padded[SEQS];
    uint8_t mask[SEQS * MOST + 5];
    uint64_t seed = 3;
    for (int64_t i = 0; i < OP_COUNT(lengths); i++)
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            int64_t offsets[SEQS + 1] = {0};
            ls_sequence_sum_args args = {.logprob = values,
                                         .mask = t > 0 ? mask : NULL,
                                         .offsets = offsets,
                                         .n_sequences = SEQS,
                                         .rows = SEQS * lengths[i] + (int64_t)t,
                                         .out = packed};
            ls_error err;
            for (int64_t r = 0; r < OP_COUNT(values); r++) {
                values[r] = test_uniform(&seed, -9.0f, 0.0f);
                mask[r] = test_random(&seed) % 3 != 0;
            }
            for (int64_t s = 0; s < SEQS; s++) offsets[s + 1] = offsets[s] + lengths[i];
            memset(packed, OP_GUARD, sizeof packed);
            memset(padded, OP_POISON, sizeof padded);
            assert_ok(ls_sequence_sum(op_devices[isa][t], &args, &err), err);
            args.offsets = NULL;
            args.length = lengths[i];
            args.out = padded;
            assert_ok(ls_sequence_sum(op_devices[isa][t], &args, &err), err);
            assert_same_bits(packed, padded, SEQS);
            for (int64_t s = 0; s < SEQS; s++)
                assert_int_equal(ls_bits(padded[s]),
                                 ls_bits(sum_ref(values, args.mask, s * lengths[i], (s + 1) * lengths[i])));
        }
}

static void bad_sequences_are_named(void **state) {
    const float values[10] = {0};
    float out[3], untouched[3];
    const int64_t ascending[] = {0, 4, 4, 10};
    const ls_sequence_sum_args right = {
        .logprob = values, .offsets = ascending, .n_sequences = 3, .rows = 10, .out = out};
    ls_sequence_sum_args args;
    int64_t offsets[4];
    ls_error err;
    (void)state;
    memset(out, OP_GUARD, sizeof out);
    memset(untouched, OP_GUARD, sizeof untouched);
#define REFUSED(word, ...)                                                        \
    do {                                                                          \
        args = right;                                                             \
        memcpy(offsets, ascending, sizeof offsets);                               \
        args.offsets = offsets;                                                   \
        __VA_ARGS__;                                                              \
        check_failed(ls_sequence_sum(op_devices[0][1], &args, &err), &err, word); \
        check_failed(err.status, &err, "sequence_sum");                           \
        assert_same_bits(out, untouched, 3);                                      \
    } while (0)
    REFUSED("logprob is a null", args.logprob = NULL);
    REFUSED("out is a null", args.out = NULL);
    REFUSED("n_sequences -1", args.n_sequences = -1);
    REFUSED("rows is -1", args.rows = -1);
    REFUSED("sequence 0: offset -1 does not fit 10", offsets[0] = -1);
    REFUSED("sequence 2: offset 11 does not fit 10", offsets[3] = 11);
    REFUSED("sequence 1: offset 3 does not fit", offsets[2] = 3);
    REFUSED("sequence 0: offset -9223372036854775808", offsets[1] = INT64_MIN);
    REFUSED("3 sequences of length 4 do not fit 10", args.offsets = NULL, args.length = 4);
    REFUSED("length -1 ", args.offsets = NULL, args.length = -1);
    REFUSED("length 9223372036854775807", args.offsets = NULL, args.length = INT64_MAX);
#undef REFUSED
}

/* ---- the comparison itself ---- */

static void variants_are_caught(void **state) {
    const variant wrong[] = {ONE_CHAIN, LEAVES_OF_1024, COMBINED_IN_A_CHAIN, TARGET_UNFUSED};
    char text[160];
    uint64_t seed = 8;
    problem p = problem_alloc(LS_F32, 100, 9000, 0);
    (void)state;
    /* Steep rows: where few tokens hold the sum its last bit still shows in the logarithm. */
    op_fill(&p.logits, op_logit, &seed);
    problem_ref(&p, RIGHT, &p.expected);
    problem_ref(&p, RIGHT, &p.got);
    assert_int_equal(op_diffs(&p.expected, &p.got, OP_NAN_PINNED, text), 0);
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        problem_ref(&p, wrong[i], &p.got);
        if (op_diffs(&p.expected, &p.got, OP_NAN_PINNED, text) == 0) fail_msg("variant %d is not seen", (int)wrong[i]);
    }
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_kind_of_row_equals_the_textbook),
        OP_CASES(large_vocabularies_equal_the_textbook),
        OP_CASES(named_values),
        OP_CASES(rows_do_not_see_each_other),
        OP_CASES(rows_left_out_are_not_read),
        OP_CASES(shards_combine_to_the_same_bits),
        OP_CASES(bad_rows_are_named),
        OP_CASES(accurate_within_2e_6),
        OP_CASES(sure_tokens),
        OP_CASES(sequence_sums_equal_the_textbook),
        OP_CASES(padding_changes_no_sum),
        OP_CASES(padded_rows_are_sequences),
        cmocka_unit_test(bad_sequences_are_named),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
