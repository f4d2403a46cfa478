/* Sequences that continue others, so that a beginning which several have is computed once: log-probabilities with the
 * bits that they have in whole sequences; gradients near those of whole sequences, and with the same bits however
 * leaves are held. */
#define _GNU_SOURCE
#include <math.h>

#include "model/tape_state.h"
#include "trained.h"

enum { SPANS = 10, SEQUENCES = 7, ROWS_MAX = 600 };

/* Two trees around a sequence alone, two and three deep, of odd lengths and of one token; states go from span to span
 * within a page, at its end and behind it. */
static const int64_t lengths[SPANS] = {67, 61, 1, 70, 3, 9, 31, 64, 5, 1};
static const int64_t parents[SPANS] = {-1, 0, 1, 1, 0, -1, -1, 6, 6, 6};

/* The same rows as spans of trees, and as whole sequences. */
typedef struct forest {
    batch trees, whole;
    int64_t row_of[ROWS_MAX]; /* of a row of `whole` */
} forest;

static bool is_continued(int64_t span) { return span + 1 < SPANS && parents[span + 1] == span; }

/* The rows before a span and its own, into `whole` from row `at` on. Of each row of trees one in `whole` has what is
 * learnt from it: the first. */
static int64_t put_path(forest *f, int64_t span, int64_t at, bool *was_there) {
    if (parents[span] >= 0) at = put_path(f, parents[span], at, was_there);
    for (int64_t r = f->trees.offsets[span]; r < f->trees.offsets[span + 1]; r++, at++) {
        f->row_of[at] = r;
        f->whole.tokens[at] = f->trees.tokens[r];
        f->whole.targets[at] = was_there[r] ? -1 : f->trees.targets[r];
        f->whole.d_logprob[at] = f->trees.d_logprob[r];
        f->whole.d_entropy[at] = f->trees.d_entropy[r];
        was_there[r] = true;
    }
    return at;
}

static void forest_make(forest *f, const ls_model *model, uint64_t seed) {
    int64_t whole[SEQUENCES] = {0}, n = 0;
    bool was_there[ROWS_MAX] = {false};
    batch_make(&f->trees, model, lengths, SPANS, seed);
    for (int64_t i = 0; i < SPANS; i++) {
        if (is_continued(i)) continue;
        for (int64_t at = i; at >= 0; at = parents[at]) whole[n] += lengths[at];
        n++;
    }
    assert_int_equal(n, SEQUENCES);
    batch_make(&f->whole, model, whole, SEQUENCES, seed);
    assert_true(f->whole.offsets[SEQUENCES] <= ROWS_MAX);
    n = 0;
    for (int64_t i = 0; i < SPANS; i++)
        if (!is_continued(i)) n = put_path(f, i, n, was_there);
}

static void forest_free(forest *f) {
    batch_free(&f->trees);
    batch_free(&f->whole);
}

/* leaf_dh: of [rows][hidden], for leaves of several parts; NULL: a leaf has one. */
static ls_tape *make_tape(const trained *t, const forest *f, ls_device *device, ls_dtype dtype, int64_t recompute,
                          float *leaf_dh) {
    const ls_tape_opts opts = {.dtype = dtype,
                               .rows_max = f->whole.offsets[SEQUENCES],
                               .spans_max = SPANS,
                               .recompute = recompute,
                               .temperature = 1.0f,
                               .leaf_rows_max = leaf_dh != NULL ? f->trees.offsets[SPANS] : 0,
                               .leaf_dh = leaf_dh,
                               .longest = 200,
                               .group = 4};
    ls_tape *tape;
    ls_error err;
    assert_ok(ls_tape_create(&tape, t->parameters, device, &opts, &err), err);
    return tape;
}

static void forward_trees(ls_tape *tape, const forest *f) {
    ls_error err;
    assert_ok(ls_tape_forward_trees(tape, f->trees.tokens, f->trees.offsets, parents, SPANS, &err), err);
}

/* ---- log-probabilities ---- */

static const char *const names[] = {"jamba-moe",        "jamba-odd",      "mamba-odd",         "falcon-mamba-small",
                                    "llama-odd",        "qwen2-window",   "qwen3-small",       "mamba2-odd",
                                    "nemotron-h-small", "bamba-small",    "qwen3.5-odd",       "qwen3.5-moe-small",
                                    "qwen3-next-small", "mistral-window", "granite-moe-small", "mixtral-small",
                                    "qwen3-moe-small",  "nemotron-h-moe", "granite-odd"};
static const char *const names_mma16[] = {"jamba-odd",          "llama-odd",        "qwen3-small",
                                          "falcon-mamba-small", "nemotron-h-small", "qwen3.5-small"};

static void check_log_probabilities(const char *name, ls_dtype dtype, ls_profile profile) {
    ls_device *device = test_device(2, ls_isa_best());
    float alone[ROWS_MAX], shared[ROWS_MAX], entropy[2][ROWS_MAX];
    int64_t targets[ROWS_MAX];
    ls_tape *tape;
    trained t;
    forest f;
    ls_error err;
    trained_open(&t, name);
    assert_ok(ls_model_set_profile(t.model, profile, dtype, &err), err);
    forest_make(&f, t.model, 11);
    tape = make_tape(&t, &f, device, dtype, 0, NULL);
    for (int64_t r = 0; r < f.whole.offsets[SEQUENCES]; r++) targets[r] = f.trees.targets[f.row_of[r]];
    assert_ok(ls_tape_forward(tape, f.whole.tokens, f.whole.offsets, SEQUENCES, &err), err);
    assert_ok(ls_tape_logprob(tape, targets, alone, entropy[0], &err), err);
    forward_trees(tape, &f);
    assert_ok(ls_tape_logprob(tape, f.trees.targets, shared, entropy[1], &err), err);
    for (int64_t r = 0; r < f.whole.offsets[SEQUENCES]; r++)
        if (memcmp(&alone[r], &shared[f.row_of[r]], sizeof(float)) != 0 ||
            memcmp(&entropy[0][r], &entropy[1][f.row_of[r]], sizeof(float)) != 0)
            fail_msg("%s in %s, %s: row %lld has %.9g alone, %.9g shared", name, ls_dtype_name(dtype),
                     ls_profile_name(profile), (long long)r, (double)alone[r], (double)shared[f.row_of[r]]);
    ls_tape_free(tape);
    forest_free(&f);
    trained_close(&t);
    test_device_close(device);
}

static void log_probabilities_are_those_of_whole_sequences(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        check_log_probabilities(names[m], LS_F32, LS_PROFILE_EXACT);
        check_log_probabilities(names[m], LS_BF16, LS_PROFILE_EXACT);
    }
    for (size_t m = 0; m < sizeof names_mma16 / sizeof names_mma16[0]; m++)
        check_log_probabilities(names_mma16[m], LS_BF16, LS_PROFILE_MMA16);
}

/* ---- gradients ---- */

/* The gradient of all trees as one leaf, of one forward, or in parts of a forward each: tree by tree. */
static float *tree_gradient(const trained *t, const forest *f, ls_device *device, ls_dtype dtype, int64_t recompute,
                            bool in_parts) {
    static const int64_t roots[] = {0, 5, 6, SPANS};
    const int64_t bytes = t->parameters->n_elements * (int64_t)sizeof(float);
    const int64_t waiting = f->trees.offsets[SPANS] * t->model->config.hidden * (int64_t)sizeof(float);
    float *out = malloc((size_t)bytes), *there = to_device(device, NULL, bytes), *leaf_dh = NULL;
    ls_tape *tape;
    ls_error err;
    if (in_parts) assert_ok(ls_memory_pin(device, (void **)&leaf_dh, waiting, 1, "test", &err), err);
    tape = make_tape(t, f, device, dtype, recompute, leaf_dh);
    if (!in_parts) forward_trees(tape, f);
    for (int64_t i = 0; i < (in_parts ? 3 : 1); i++) {
        const int64_t begin = roots[i], end = in_parts ? roots[i + 1] : SPANS, row = f->trees.offsets[begin];
        const ls_leaf_part part = {.begin = 0,
                                   .end = end - begin,
                                   .targets = f->trees.targets + row,
                                   .d_logprob = f->trees.d_logprob + row,
                                   .d_entropy = f->trees.d_entropy + row,
                                   .is_first = begin == 0,
                                   .is_last = end == SPANS};
        if (in_parts) {
            int64_t behind[SPANS];
            for (int64_t k = begin; k < end; k++) behind[k - begin] = parents[k] < 0 ? -1 : parents[k] - begin;
            assert_ok(ls_tape_forward_trees(tape, f->trees.tokens, f->trees.offsets + begin, behind, end - begin, &err),
                      err);
        }
        assert_ok(ls_tape_backward(tape, &part, there, &err), err);
    }
    from_device(device, out, there, bytes);
    ls_memory_free(device, there);
    ls_tape_free(tape);
    if (leaf_dh != NULL) ls_memory_unpin(device, leaf_dh, waiting);
    return out;
}

static float *whole_gradient(const trained *t, const forest *f, ls_device *device) {
    const int64_t bytes = t->parameters->n_elements * (int64_t)sizeof(float);
    float *out = malloc((size_t)bytes), *there = to_device(device, NULL, bytes);
    const ls_leaf_part part = {.begin = 0,
                               .end = SEQUENCES,
                               .targets = f->whole.targets,
                               .d_logprob = f->whole.d_logprob,
                               .d_entropy = f->whole.d_entropy,
                               .is_first = true,
                               .is_last = true};
    ls_tape *tape = make_tape(t, f, device, LS_F32, 0, NULL);
    ls_error err;
    assert_ok(ls_tape_forward(tape, f->whole.tokens, f->whole.offsets, SEQUENCES, &err), err);
    assert_ok(ls_tape_backward(tape, &part, there, &err), err);
    from_device(device, out, there, bytes);
    ls_memory_free(device, there);
    ls_tape_free(tape);
    return out;
}

static void check_near(const char *name) {
    ls_device *device = test_device(2, ls_isa_best());
    double squares = 0, off = 0;
    float *whole, *shared;
    trained t;
    forest f;
    trained_open(&t, name);
    forest_make(&f, t.model, 12);
    whole = whole_gradient(&t, &f, device);
    shared = tree_gradient(&t, &f, device, LS_F32, 0, false);
    for (int64_t k = 0; k < t.parameters->n_elements; k++) {
        squares += (double)whole[k] * (double)whole[k];
        off += pow((double)shared[k] - (double)whole[k], 2);
    }
    print_message("%s: off by %.2g of the gradient's norm\n", name, sqrt(off / squares));
    assert_true(off > 0 && sqrt(off / squares) < 1e-6);
    free(whole);
    free(shared);
    forest_free(&f);
    trained_close(&t);
    test_device_close(device);
}

static void gradients_are_near_those_of_whole_sequences(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) check_near(names[m]);
}

static void check_cuts(const char *name, ls_dtype dtype, ls_profile profile) {
    float *first = NULL;
    trained t;
    forest f;
    ls_error err;
    trained_open(&t, name);
    assert_ok(ls_model_set_profile(t.model, profile, dtype, &err), err);
    forest_make(&f, t.model, 13);
    for (int i = 0; i < 3; i++) {
        static const int64_t recompute[] = {0, 1, LS_RECOMPUTE_ALL};
        ls_device *device = test_device(i % 2 + 1, ls_isa_best());
        float *g = tree_gradient(&t, &f, device, dtype, recompute[i], i % 2 != 0);
        if (first == NULL) first = g;
        for (int64_t k = 0; k < t.parameters->n; k++) {
            const ls_parameter *p = &t.parameters->list[k];
            if (count_bit_diffs(g + p->offset, first + p->offset, p->n_elements) != 0)
                fail_msg("%s in %s, %s: cut %d: %s has other bits", name, ls_dtype_name(dtype),
                         ls_profile_name(profile), i, p->slot.name);
        }
        if (first != g) free(g);
        test_device_close(device);
    }
    free(first);
    forest_free(&f);
    trained_close(&t);
}

/* In parts a leaf's trees are forwards of their own. */
static void no_cut_carries_a_bit(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) check_cuts(names[m], LS_F32, LS_PROFILE_EXACT);
    check_cuts("jamba-odd", LS_BF16, LS_PROFILE_EXACT);
    for (size_t m = 0; m < sizeof names_mma16 / sizeof names_mma16[0]; m++)
        check_cuts(names_mma16[m], LS_BF16, LS_PROFILE_MMA16);
}

/* ---- what is refused ---- */

static void refuse(ls_tape *tape, const forest *f, const int64_t *continued, int64_t n, const char *words) {
    ls_error err;
    check_failed(ls_tape_forward_trees(tape, f->trees.tokens, f->trees.offsets, continued, n, &err), &err, words);
}

static void what_is_no_tree_is_refused(void **state) {
    static const int64_t later[] = {-1, 1}, ended[] = {-1, -1, 0}, below[] = {-1, -2}, many[] = {-1, 0, 0, 0, 0, 0};
    static const int64_t chain[] = {-1, 0, 1, 2, 3, 4, 5}, longer[] = {0, 210};
    ls_error err;
    ls_device *device = test_device(1, ls_isa_best());
    ls_tape *tape;
    trained t;
    forest f;
    (void)state;
    trained_open(&t, "mamba-odd");
    forest_make(&f, t.model, 1);
    tape = make_tape(&t, &f, device, LS_F32, 0, NULL);
    refuse(tape, &f, later, 2, "sequence 1 continues 1, which is no beginning of the one before it");
    refuse(tape, &f, ended, 3, "sequence 2 continues 0, which is no beginning");
    refuse(tape, &f, below, 2, "sequence 1 continues -2");
    refuse(tape, &f, many, 6, "sequence 5 ends behind 76 tokens, 5 of its tree; it holds 200, and 4");
    check_failed(ls_tape_forward(tape, f.trees.tokens, longer, 1, &err), &err, "sequence 0 ends behind 210 tokens");
    refuse(tape, &f, chain, 7, "sequence 4 ends behind 202 tokens, 0 of its tree; it holds 200");
    ls_tape_free(tape);
    forest_free(&f);
    trained_close(&t);
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_tree_is_refused),
        cmocka_unit_test(log_probabilities_are_those_of_whole_sequences),
        cmocka_unit_test(gradients_are_near_those_of_whole_sequences),
        cmocka_unit_test(no_cut_carries_a_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
