/* Likeliest entries against a sort of whole rows, and their log-probabilities against logprob of each entry as the
 * target, in bits: ties, zeros of both signs, infinities, NaN, as many as there are; bad arguments. */
#include "op/logprob.h"
#include "op/op_case.h"
#include "op/top.h"

static const int64_t vocabs[] = {1, 2, 5, 31, 256, 257, 2048, 2049, 5000, 9001};

/* A row of a few values, many of them equal; of everything; without a NaN, mostly far below a few. */
static float level(uint64_t *seed) {
    static const float levels[] = {-0.0f, 0.0f, 0.5f, -1.0f, 1.0f, 1.0000001f, -30.0f, -INFINITY};
    return levels[test_random(seed) % 8];
}
static float peaked(uint64_t *seed) {
    return test_random(seed) % 100 == 0 ? test_uniform(seed, 10.0f, 10.1f) : test_uniform(seed, -20.0f, -2.0f);
}

typedef struct entry {
    float z;
    int32_t id;
} entry;

static int compare(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (isnan(x->z) != isnan(y->z)) return isnan(x->z) ? 1 : -1;
    if (!isnan(x->z) && x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Of each row the ids of the k likeliest entries. */
static int32_t *sort_rows(const float *logits, int64_t rows, int64_t vocab, int64_t k) {
    entry *entries = op_alloc(vocab * (int64_t)sizeof *entries);
    int32_t *ids = op_alloc(rows * k * (int64_t)sizeof *ids);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t v = 0; v < vocab; v++) entries[v] = (entry){logits[r * vocab + v], (int32_t)v};
        qsort(entries, (size_t)vocab, sizeof *entries, compare);
        for (int64_t i = 0; i < k; i++) ids[r * k + i] = entries[i].id;
    }
    free(entries);
    return ids;
}

/* logprob of each of these ids. */
static float *logprobs_of(const float *logits, int64_t rows, int64_t vocab, const int32_t *ids, int64_t k) {
    float *out = op_alloc(rows * k * (int64_t)sizeof *out), *column = op_alloc(rows * (int64_t)sizeof *column);
    int64_t *targets = op_alloc(rows * (int64_t)sizeof *targets);
    const ls_logprob_args args = {.logits = logits,
                                  .dtype = LS_F32,
                                  .rows = rows,
                                  .vocab = vocab,
                                  .row_stride = vocab,
                                  .targets = targets,
                                  .ignore_index = -1,
                                  .logprob = column};
    ls_error err;
    for (int64_t i = 0; i < k; i++) {
        for (int64_t r = 0; r < rows; r++) targets[r] = ids[r * k + i];
        assert_ok(ls_logprob(op_devices[0][0], &args, &err), err);
        for (int64_t r = 0; r < rows; r++) out[r * k + i] = column[r];
    }
    free(column);
    free(targets);
    return out;
}

typedef struct answer {
    int32_t *id;
    float *logprob;
} answer;

static answer top(ls_device *device, const float *logits, int64_t rows, int64_t vocab, int64_t k) {
    const int64_t n_leaves = ls_logprob_leaves(vocab);
    answer a = {op_alloc(rows * k * 4), op_alloc(rows * k * 4)};
    ls_logprob_leaf *leaves = op_alloc(rows * n_leaves * (int64_t)sizeof *leaves);
    float *target_z = op_alloc(rows * 4);
    int64_t *targets = calloc((size_t)rows, sizeof *targets);
    const ls_logprob_shard_args shard = {.logits = logits,
                                         .dtype = LS_F32,
                                         .rows = rows,
                                         .vocab = vocab,
                                         .row_stride = vocab,
                                         .total = vocab,
                                         .targets = targets,
                                         .ignore_index = -1,
                                         .leaves = leaves,
                                         .leaf_stride = n_leaves,
                                         .target_z = target_z};
    const ls_top_args args = {logits, rows, vocab, k, leaves, a.id, a.logprob};
    ls_error err;
    assert_non_null(targets);
    assert_ok(ls_device_prepare(device, ls_op_logprob_shard_workspace(&shard), &err), err);
    assert_ok(ls_logprob_shard(device, &shard, &err), err);
    assert_ok(ls_top(device, &args, &err), err);
    free(leaves);
    free(target_z);
    free(targets);
    return a;
}

static void entries_are_those_of_a_sort(void **state) {
    static const op_maker makers[] = {op_plain, level, op_special, peaked};
    static const int64_t counts[] = {1, 2, 7, 64, LS_TOP_MAX};
    const ls_isa isa = op_isa(state);
    const int64_t rows = 5;
    for (int64_t c = 0; c < OP_COUNT(vocabs) * OP_COUNT(makers); c++) {
        const int64_t vocab = vocabs[c / OP_COUNT(makers)], wanted = counts[c % OP_COUNT(counts)];
        const int64_t k = wanted < vocab ? wanted : vocab;
        float *logits = op_alloc(rows * vocab * (int64_t)sizeof *logits), *logprobs;
        uint64_t seed = (uint64_t)c + 1;
        int32_t *ids;
        for (int64_t i = 0; i < rows * vocab; i++) logits[i] = makers[c % OP_COUNT(makers)](&seed);
        ids = sort_rows(logits, rows, vocab, k);
        logprobs = logprobs_of(logits, rows, vocab, ids, k);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            answer a = top(op_devices[isa][t], logits, rows, vocab, k);
            for (int64_t i = 0; i < rows * k; i++)
                if (a.id[i] != ids[i] || ls_bits(a.logprob[i]) != ls_bits(logprobs[i]))
                    fail_msg("%lld of %lld, row %lld, number %lld: %d %a, expected %d %a", (long long)k,
                             (long long)vocab, (long long)(i / k), (long long)(i % k), a.id[i], (double)a.logprob[i],
                             ids[i], (double)logprobs[i]);
            free(a.id);
            free(a.logprob);
        }
        free(logits);
        free(ids);
        free(logprobs);
    }
}

static void bad_arguments_are_named(void **state) {
    float logits[3] = {0}, logprob[3];
    ls_logprob_leaf leaf = {0};
    int32_t id[3];
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                       \
    do {                                                                         \
        ls_top_args args = {logits, 1, 3, 2, &leaf, id, logprob};                \
        __VA_ARGS__;                                                             \
        check_failed(ls_top(op_devices[0][0], &args, &err), &err, "top: " word); \
    } while (0)
    REFUSED("0 entries of 3", args.k = 0);
    REFUSED("4 entries of 3", args.k = 4);
    REFUSED("257 entries of 300; 256 at most", args.k = 257, args.vocab = 300);
    REFUSED("-1 rows of 3", args.rows = -1);
    REFUSED("1 rows of 0", args.vocab = 0);
    REFUSED("logits is a null", args.logits = NULL);
    REFUSED("leaves is a null", args.leaves = NULL);
    REFUSED("id is a null", args.id = NULL);
    REFUSED("logprob is a null", args.logprob = NULL);
#undef REFUSED
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(entries_are_those_of_a_sort),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
