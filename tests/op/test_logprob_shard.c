/* Shards of the vocabulary: their leaves against the textbook, and any number of them combined against the op over the
 * whole row, bit for bit. Left-out rows lie in memory that must not be read. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "op/op_logprob.h"

enum { LEAF_FLOATS = (int)(sizeof(ls_logprob_leaf) / sizeof(float)) };

typedef struct problem {
    op_array logits;           /* [rows][total] */
    op_array leaves, target_z; /* [rows][leaves of total] and [1][rows], what shards wrote */
    op_array whole, combined;  /* [3][rows]: logprob, lse, entropy */
    int64_t *targets;
    float *temperature; /* or NULL */
    uint8_t *mask;
} problem;

static problem problem_make(ls_dtype dtype, int64_t rows, int64_t total, bool with_temperature, uint64_t seed) {
    const float temperatures[] = {1.0f, 0.7f, 2.0f, 1e-3f, 1e30f, 1.3f};
    problem p = {.logits = op_array_make(dtype, rows, total, 1),
                 .leaves = op_array_make(LS_F32, rows, LEAF_FLOATS * ls_logprob_leaves(total), LEAF_FLOATS * 3),
                 .target_z = op_array_make(LS_F32, 1, rows, 0),
                 .whole = op_array_make(LS_F32, 3, rows, 0),
                 .combined = op_array_make(LS_F32, 3, rows, 0)};
    p.targets = op_alloc(rows * 8);
    p.mask = op_alloc(rows);
    if (with_temperature) p.temperature = op_alloc(rows * 4);
    for (int64_t r = 0; r < rows; r++) {
        fill_kind(&p.logits, r, (r + (int64_t)(seed % KINDS)) % KINDS, &seed);
        p.targets[r] = (int64_t)(test_random(&seed) % (uint64_t)total);
        p.mask[r] = r % 7 != 5;
        if (r % 8 == 6) p.targets[r] = -100;
        if (with_temperature) p.temperature[r] = temperatures[test_random(&seed) % (uint64_t)OP_COUNT(temperatures)];
    }
    return p;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->logits, &p->leaves, &p->target_z, &p->whole, &p->combined};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
    free(p->targets);
    free(p->temperature);
    free(p->mask);
}

static bool keeps(const problem *p, int64_t row) { return p->mask[row] != 0 && p->targets[row] != -100; }

/* Shard [first, first + n) of the problem, whose logits are `columns`. */
static ls_logprob_shard_args shard_args(const problem *p, const op_array *columns, int64_t first, int64_t n) {
    const ls_logprob_shard_args args = {.logits = columns->data,
                                        .dtype = columns->dtype,
                                        .rows = p->logits.rows,
                                        .vocab = n,
                                        .row_stride = columns->stride,
                                        .first = first,
                                        .total = p->logits.cols,
                                        .targets = p->targets,
                                        .ignore_index = -100,
                                        .mask = p->mask,
                                        .temperature = p->temperature,
                                        .leaves = (ls_logprob_leaf *)(void *)p->leaves.data,
                                        .leaf_stride = p->leaves.stride / LEAF_FLOATS,
                                        .target_z = (float *)(void *)p->target_z.data};
    return args;
}

static ls_logprob_combine_args combine_args(const problem *p) {
    const ls_logprob_combine_args args = {.leaves = (const ls_logprob_leaf *)(const void *)p->leaves.data,
                                          .rows = p->logits.rows,
                                          .total = p->logits.cols,
                                          .leaf_stride = p->leaves.stride / LEAF_FLOATS,
                                          .target_z = (const float *)(const void *)p->target_z.data,
                                          .targets = p->targets,
                                          .ignore_index = -100,
                                          .mask = p->mask,
                                          .logprob = op_at(&p->combined, 0, 0),
                                          .lse = op_at(&p->combined, 1, 0),
                                          .entropy = op_at(&p->combined, 2, 0)};
    return args;
}

/* The op over all columns. */
static void run_whole(const problem *p, ls_device *device) {
    const ls_logprob_args args = {.logits = p->logits.data,
                                  .dtype = p->logits.dtype,
                                  .rows = p->logits.rows,
                                  .vocab = p->logits.cols,
                                  .row_stride = p->logits.stride,
                                  .targets = p->targets,
                                  .ignore_index = -100,
                                  .mask = p->mask,
                                  .temperature = p->temperature,
                                  .logprob = op_at(&p->whole, 0, 0),
                                  .lse = op_at(&p->whole, 1, 0),
                                  .entropy = op_at(&p->whole, 2, 0)};
    ls_error err;
    assert_ok(ls_logprob(device, &args, &err), err);
}

/* n columns from `first` on, as a shard owns them: on their own, poison between the rows. */
static op_array columns_of(const problem *p, int64_t first, int64_t n) {
    const op_array to = op_array_make(p->logits.dtype, p->logits.rows, n, first / LEAF % 3);
    for (int64_t r = 0; r < to.rows; r++)
        memcpy(op_at(&to, r, 0), op_at(&p->logits, r, first), (size_t)(n * ls_dtype_bytes(to.dtype)));
    return to;
}

/* Shards of `leaves_each` leaves, the last one with what is left; then their combination. */
static void run_shards(const problem *p, int64_t leaves_each, ls_isa isa) {
    const int64_t each = leaves_each * LEAF, total = p->logits.cols;
    const ls_logprob_combine_args combine = combine_args(p);
    ls_error err;
    op_guard(&p->leaves);
    op_guard(&p->target_z);
    op_guard(&p->combined);
    for (int64_t first = (total - 1) / each * each; first >= 0; first -= each) {
        const int64_t n = total - first < each ? total - first : each;
        op_array columns = columns_of(p, first, n);
        const ls_logprob_shard_args args = shard_args(p, &columns, first, n);
        assert_ok(ls_logprob_shard(op_devices[isa][first / each % OP_THREADS_MAX], &args, &err), err);
        op_array_free(&columns);
    }
    assert_ok(ls_logprob_combine(op_devices[isa][leaves_each % OP_THREADS_MAX], &combine, &err), err);
}

/* ---- equality in bits ---- */

static void check_combined(const problem *p, int64_t leaves_each) {
    op_check(&p->whole, &p->combined, OP_NAN_PINNED, "shards of %lld leaves, %s, total %lld, temperature %d",
             (long long)leaves_each, ls_dtype_name(p->logits.dtype), (long long)p->logits.cols, p->temperature != NULL);
}

/* 1, 2, 4 and 8 shards of 8 and 24 leaves, and totals that end within a leaf. */
static void shards_give_the_bits_of_the_whole(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t totals[] = {16384, 3 * 16384, 16384 + 1, 20000, 2 * 16384 - 1, 3 * 16384 + 2047};
    for (int64_t i = 0; i < OP_COUNT(totals); i++)
        for (int64_t k = 0; k < 3; k++) {
            problem p = problem_make(types[k], KINDS + 1, totals[i], (i + k) % 2 == 1, (uint64_t)(3 * i + k + 1));
            run_whole(&p, op_devices[isa][2]);
            for (int64_t shards = 1; shards <= 8; shards *= 2) {
                const int64_t n_leaves = ls_logprob_leaves(totals[i]), each = (n_leaves + shards - 1) / shards;
                run_shards(&p, each, isa);
                check_combined(&p, each);
            }
            problem_free(&p);
        }
}

/* A vocabulary of 75 leaves in shards of any size, powers of two or not. */
static void any_cut_at_leaves_gives_the_bits_of_the_whole(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t each[] = {1, 2, 3, 5, 10, 16, 19, 38, 64, 75, 100};
    problem p = problem_make(LS_BF16, 4, 151936, false, 5);
    run_whole(&p, op_devices[isa][0]);
    for (int64_t i = 0; i < OP_COUNT(each); i++) {
        run_shards(&p, each[i], isa);
        check_combined(&p, each[i]);
    }
    problem_free(&p);
}

/* z of a row, as the contract scales it. */
static float *z_ref(const problem *p, int64_t row) {
    float *z = row_widened(&p->logits, row);
    const float t = p->temperature != NULL ? p->temperature[row] : 1.0f, inv_t = ls_div(1.0f, t);
    for (int64_t i = 0; i < p->logits.cols && t != 1.0f; i++) z[i] = ls_mul(z[i], inv_t);
    return z;
}

/* Leaves, targets, and everything that must stay as it was: rows left out, targets elsewhere, room behind a row. */
static void leaves_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t totals[] = {1, 17, 2048, 2049, 3 * 2048 + 5};
    for (int64_t i = 0; i < OP_COUNT(totals); i++)
        for (int64_t k = 0; k < 6; k++) {
            problem p = problem_make(types[k % 3], 2 * KINDS, totals[i], k >= 3, (uint64_t)(6 * i + k + 1));
            op_array leaves = op_array_make(LS_F32, 2 * KINDS, p.leaves.cols, LEAF_FLOATS * 3);
            op_array target_z = op_array_make(LS_F32, 1, 2 * KINDS, 0);
            op_guard(&leaves);
            op_guard(&target_z);
            for (int64_t r = 0; r < 2 * KINDS; r++) {
                float *z = z_ref(&p, r);
                ls_logprob_leaf *row;
                const int64_t n = leaves_ref(&row, z, totals[i], LEAF, RIGHT);
                if (keeps(&p, r)) {
                    memcpy(op_at(&leaves, r, 0), row, (size_t)n * sizeof *row);
                    op_put(&target_z, 0, r, z[p.targets[r]]);
                }
                free(row);
                free(z);
            }
            for (int64_t each = 1; each <= 4; each++) {
                run_shards(&p, each, isa);
                op_check(&leaves, &p.leaves, OP_NAN_PINNED, "leaves, total %lld", (long long)totals[i]);
                op_check(&target_z, &p.target_z, OP_NAN_ANY, "target_z, total %lld", (long long)totals[i]);
            }
            problem_free(&p);
            op_array_free(&leaves);
            op_array_free(&target_z);
        }
}

/* A shard writes its own leaves and the targets in its columns, nothing else. */
static void a_shard_writes_its_share(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(LS_F32, 12, 4 * LEAF, false, 3);
    op_array columns = columns_of(&p, LEAF, 2 * LEAF);
    const ls_logprob_shard_args args = shard_args(&p, &columns, LEAF, 2 * LEAF);
    ls_error err;
    op_guard(&p.leaves);
    op_guard(&p.target_z);
    assert_ok(ls_logprob_shard(op_devices[isa][1], &args, &err), err);
    for (int64_t r = 0; r < 12; r++) {
        const bool mine = keeps(&p, r) && p.targets[r] >= LEAF && p.targets[r] < 3 * LEAF;
        assert_int_equal(ls_bits(op_get(&p.target_z, 0, r)) != OP_GUARD * 0x01010101u, mine);
        for (int64_t i = 0; i < p.leaves.stride && r + 1 < 12; i++) {
            const bool written = keeps(&p, r) && i >= LEAF_FLOATS && i < 3 * LEAF_FLOATS;
            assert_int_equal(ls_bits(op_get(&p.leaves, r, i)) != OP_GUARD * 0x01010101u, written);
        }
    }
    op_array_free(&columns);
    problem_free(&p);
}

/* Logits and leaves of rows left out lie in pages that no one may read: one access ends the program. */
static void rows_left_out_are_not_read(void **state) {
    enum { ROWS = 9, PAGE = 16384, TOTAL = 3001 };
    const ls_isa isa = op_isa(state);
    uint8_t *pages = mmap(NULL, 2 * ROWS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    problem p = problem_make(LS_F32, ROWS, TOTAL, false, 2);
    ls_logprob_shard_args shard = shard_args(&p, &p.logits, 0, TOTAL);
    ls_logprob_combine_args combine = combine_args(&p);
    ls_error err;
    assert_true(pages != MAP_FAILED);
    for (int64_t r = 0; r < ROWS; r++) {
        p.mask[r] = r % 2 == 0;
        memcpy(pages + r * PAGE, op_at(&p.logits, r, 0), TOTAL * 4);
        if (!keeps(&p, r)) assert_int_equal(mprotect(pages + r * PAGE, PAGE, PROT_NONE), 0);
        if (!keeps(&p, r)) assert_int_equal(mprotect(pages + (ROWS + r) * PAGE, PAGE, PROT_NONE), 0);
    }
    run_whole(&p, op_devices[isa][0]);
    shard.logits = pages;
    shard.row_stride = PAGE / 4;
    shard.leaves = (ls_logprob_leaf *)(void *)(pages + (int64_t)ROWS * PAGE);
    shard.leaf_stride = PAGE / (int64_t)sizeof(ls_logprob_leaf);
    combine.leaves = shard.leaves;
    combine.leaf_stride = shard.leaf_stride;
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        op_guard(&p.combined);
        assert_ok(ls_logprob_shard(op_devices[isa][t], &shard, &err), err);
        assert_ok(ls_logprob_combine(op_devices[isa][t], &combine, &err), err);
        check_combined(&p, 2);
        for (int64_t i = 0; i < 3; i++) assert_int_equal(ls_bits(op_get(&p.combined, i, 1)), 0);
    }
    munmap(pages, 2 * ROWS * PAGE);
    problem_free(&p);
}

/* lse and entropy may be left out. */
static void results_may_be_left_out(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(LS_F32, 6, 5000, false, 7);
    ls_logprob_combine_args args = combine_args(&p);
    ls_error err;
    run_whole(&p, op_devices[isa][0]);
    run_shards(&p, 1, isa);
    op_guard(&p.combined);
    args.lse = args.entropy = NULL;
    assert_ok(ls_logprob_combine(op_devices[isa][0], &args, &err), err);
    for (int64_t r = 0; r < 6; r++) {
        assert_int_equal(ls_bits(op_get(&p.combined, 0, r)), ls_bits(op_get(&p.whole, 0, r)));
        assert_int_equal(ls_bits(op_get(&p.combined, 1, r)), OP_GUARD * 0x01010101u);
        assert_int_equal(ls_bits(op_get(&p.combined, 2, r)), OP_GUARD * 0x01010101u);
    }
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_shards_are_named(void **state) {
    problem p = problem_make(LS_F32, 4, 3 * LEAF + 9, true, 3);
    op_array columns = columns_of(&p, LEAF, LEAF);
    const ls_logprob_shard_args right = shard_args(&p, &columns, LEAF, LEAF);
    op_array leaves = op_array_make(LS_F32, 4, p.leaves.cols, LEAF_FLOATS * 3), z = op_array_make(LS_F32, 1, 4, 0);
    ls_logprob_shard_args args;
    ls_error err;
    (void)state;
    op_guard(&p.leaves);
    op_guard(&p.target_z);
    op_guard(&leaves);
    op_guard(&z);
    memset(p.mask, 1, 4);
#define REFUSED(word, ...)                                                         \
    do {                                                                           \
        args = right;                                                              \
        __VA_ARGS__;                                                               \
        check_failed(ls_logprob_shard(op_devices[0][1], &args, &err), &err, word); \
        check_failed(err.status, &err, "logprob_shard");                           \
    } while (0)
    REFUSED("logits is a null", args.logits = NULL);
    REFUSED("targets is a null", args.targets = NULL);
    REFUSED("leaves is a null", args.leaves = NULL);
    REFUSED("target_z is a null", args.target_z = NULL);
    REFUSED("data type 7", args.dtype = (ls_dtype)7);
    REFUSED("rows is -2", args.rows = -2);
    REFUSED("total 0", args.total = 0);
    REFUSED("total 1000001", args.total = 1000001);
    REFUSED("first 100", args.first = 100);
    REFUSED("first -2048", args.first = -2048);
    REFUSED("first 8192", args.first = 8192);
    REFUSED("vocab 0", args.vocab = 0);
    REFUSED("vocab 4106", args.vocab = 4106);
    REFUSED("vocab 2000 is not a multiple", args.vocab = 2000);
    REFUSED("vocab 9223372036854775807", args.vocab = INT64_MAX);
    REFUSED("logits: stride 2047", args.row_stride = 2047);
    REFUSED("logits: 4 rows of stride 9223372036854775807", args.row_stride = INT64_MAX);
    REFUSED("leaves: stride 3", args.leaf_stride = 3);
    REFUSED("leaves: 4 rows of stride 576460752303423488", args.leaf_stride = INT64_C(1) << 59);
    REFUSED("row 2: target 6153", p.targets[2] = 3 * LEAF + 9);
    REFUSED("row 2: target -1", p.targets[2] = -1);
    p.targets[2] = 0;
    REFUSED("row 3: temperature -1", p.temperature[3] = -1.0f);
#undef REFUSED
    op_check(&leaves, &p.leaves, OP_NAN_PINNED, "refused: leaves");
    op_check(&z, &p.target_z, OP_NAN_PINNED, "refused: target_z");
    op_array_free(&columns);
    op_array_free(&leaves);
    op_array_free(&z);
    problem_free(&p);
}

static void bad_combinations_are_named(void **state) {
    problem p = problem_make(LS_F32, 4, 3 * LEAF + 9, false, 3);
    const ls_logprob_combine_args right = combine_args(&p);
    op_array untouched = op_array_make(LS_F32, 3, 4, 0);
    ls_logprob_combine_args args;
    ls_error err;
    (void)state;
    op_guard(&p.combined);
    op_guard(&untouched);
    memset(p.mask, 1, 4);
#define REFUSED(word, ...)                                                           \
    do {                                                                             \
        args = right;                                                                \
        __VA_ARGS__;                                                                 \
        check_failed(ls_logprob_combine(op_devices[0][1], &args, &err), &err, word); \
        check_failed(err.status, &err, "logprob_combine");                           \
    } while (0)
    REFUSED("leaves is a null", args.leaves = NULL);
    REFUSED("target_z is a null", args.target_z = NULL);
    REFUSED("targets is a null", args.targets = NULL);
    REFUSED("logprob is a null", args.logprob = NULL);
    REFUSED("rows is -2", args.rows = -2);
    REFUSED("total 0", args.total = 0);
    REFUSED("total 1000001", args.total = 1000001);
    REFUSED("leaves: stride 3", args.leaf_stride = 3);
    REFUSED("leaves: 4 rows of stride 9223372036854775807", args.leaf_stride = INT64_MAX);
    REFUSED("row 1: target 6153", p.targets[1] = 3 * LEAF + 9);
    REFUSED("row 1: target -101", p.targets[1] = -101);
#undef REFUSED
    op_check(&untouched, &p.combined, OP_NAN_PINNED, "refused");
    op_array_free(&untouched);
    problem_free(&p);
}

/* ---- the comparison itself ---- */

/* A comparison of bits sees leaves that add from left to right, and leaves that a shard cut in half. */
static void variants_are_caught(void **state) {
    const variant wrong[] = {COMBINED_IN_A_CHAIN, LEAVES_OF_1024};
    uint64_t seed = 8;
    problem p = problem_make(LS_F32, 100, 7 * LEAF, false, 1);
    (void)state;
    op_fill(&p.logits, op_logit, &seed);
    memset(p.mask, 1, 100);
    for (int64_t r = 0; r < 100; r++) p.targets[r] = r;
    run_whole(&p, op_devices[0][0]);
    run_shards(&p, 2, LS_ISA_GENERIC);
    check_combined(&p, 2);
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        char text[160];
        for (int64_t r = 0; r < 100; r++) {
            float *x = row_widened(&p.logits, r);
            const result y = row_ref(x, 7 * LEAF, r, 1.0f, wrong[i]);
            op_put(&p.combined, 0, r, y.logprob);
            op_put(&p.combined, 1, r, y.lse);
            op_put(&p.combined, 2, r, y.entropy);
            free(x);
        }
        if (op_diffs(&p.whole, &p.combined, OP_NAN_PINNED, text) == 0)
            fail_msg("variant %d is not seen", (int)wrong[i]);
    }
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(shards_give_the_bits_of_the_whole), OP_CASES(any_cut_at_leaves_gives_the_bits_of_the_whole),
        OP_CASES(leaves_equal_the_textbook),         OP_CASES(a_shard_writes_its_share),
        OP_CASES(rows_left_out_are_not_read),        OP_CASES(results_may_be_left_out),
        cmocka_unit_test(bad_shards_are_named),      cmocka_unit_test(bad_combinations_are_named),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
