/* Likeliest entries of rows, with log-probabilities: sizes around warps, blocks and leaves, values of every kind. */
#include "elements.h"
#include "op/logprob.h"
#include "op/top.h"
#include "sides.h"

/* Many equals, both zeros among them. */
static void level(float *logits, int64_t n, uint64_t seed) {
    static const float levels[] = {-0.0f, 0.0f, 0.5f, -1.0f, 1.0f, 1.0000001f, -30.0f, -INFINITY};
    for (int64_t i = 0; i < n; i++) logits[i] = levels[test_random(&seed) % 8];
}

/* kind VALUE_KINDS: those of level. */
static void check(bk_run *run, int64_t rows, int64_t vocab, int64_t k, int kind, int64_t offset) {
    const int64_t n_leaves = ls_logprob_leaves(vocab), n = rows * vocab;
    sides d = sides_open(run);
    float *logits = values_make(LS_F32, n, kind == VALUE_KINDS ? VALUES_PLAIN : (value_kind)kind, (uint64_t)(n + k));
    int64_t *zeros = bk_alloc(rows * 8);
    const ls_logprob_shard_args sizes = {.rows = rows, .vocab = vocab};
    if (kind == VALUE_KINDS) level(logits, n, (uint64_t)n);
    memset(zeros, 0, (size_t)rows * 8);
    for (int s = 0; s < 2; s++)
        if (ls_device_prepare(d.device[s], ls_op_logprob_shard_workspace(&sizes), &run->err) != LS_OK)
            bk_die(run, "workspace");
    {
        const sides_buffer from = sides_put(&d, "logits", logits, n * 4, offset),
                           targets = sides_in(&d, "targets", zeros, rows * 8),
                           leaves = sides_out(&d, "leaves", rows * n_leaves * (int64_t)sizeof(ls_logprob_leaf)),
                           z = sides_out(&d, "target_z", rows * 4),
                           id = sides_put(&d, "id", NULL, rows * k * 4, offset),
                           logprob = sides_put(&d, "logprob", NULL, rows * k * 4, offset);
        const char *const what = "%lld of %lld, kind %d";
        SIDES_CALL(&d, logprob_shard, .logits = from.at[s], .dtype = LS_F32, .rows = rows, .vocab = vocab,
                   .row_stride = vocab, .total = vocab, .targets = targets.at[s], .ignore_index = -1,
                   .leaves = leaves.at[s], .leaf_stride = n_leaves, .target_z = z.at[s]);
        SIDES_CALL(&d, top, .logits = from.at[s], .rows = rows, .vocab = vocab, .k = k, .leaves = leaves.at[s],
                   .id = id.at[s], .logprob = logprob.at[s]);
        sides_same(&d, &id, 4, what, (long long)k, (long long)vocab, kind);
        sides_same(&d, &logprob, 4, what, (long long)k, (long long)vocab, kind);
        sides_same(&d, &from, 4, what, (long long)k, (long long)vocab, kind);
    }
    sides_close(&d);
    free(logits);
    free(zeros);
}

static void sizes(bk_run *run) {
    static const int64_t vocabs[] = {1, 2, 31, 33, 255, 257, 1023, 1024, 1025, 2048, 2049, 4097, 6001};
    static const int64_t counts[] = {1, 3, 32, 256};
    for (int64_t i = 0; i < BK_COUNT(vocabs) * BK_COUNT(counts); i++) {
        const int64_t vocab = vocabs[i / BK_COUNT(counts)], k = counts[i % BK_COUNT(counts)];
        if (run->small && vocab > 300) continue;
        /* Racecheck takes long over many entries: of one kind of values they are enough. */
        for (int kind = 0; kind <= (run->small && k > 32 ? 0 : VALUE_KINDS); kind++)
            check(run, 1 + i % 3, vocab, k < vocab ? k : vocab, kind, i % 4 * 4);
    }
}

static void whole_vocabularies(bk_run *run) {
    const int64_t vocab = bk_size(run, 300, 20000, 151936);
    for (int kind = 0; kind <= VALUE_KINDS; kind++) {
        check(run, bk_size(run, 1, 3, 40), vocab, 5, kind, 0);
        if (!run->small || kind == 0) check(run, bk_size(run, 1, 2, 9), vocab, LS_TOP_MAX, kind, 4);
    }
}

static void no_rows(bk_run *run) {
    sides d = sides_open(run);
    SIDES_CALL(&d, top, .rows = 0, .vocab = 5, .k = 2);
    for (int s = 0; s < 2; s++)
        if (sides_wait(&d, s) != LS_OK) bk_fail(run, "no rows: %s", run->err.text);
    sides_close(&d);
}

int main(int argc, char **argv) {
    const bk_case cases[] = {{"sizes", sizes, BK_ANYWHERE},
                             {"whole vocabularies", whole_vocabularies, BK_ANYWHERE},
                             {"no rows", no_rows, BK_ANYWHERE}};
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
