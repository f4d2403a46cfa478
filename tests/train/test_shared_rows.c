/* Rows that sequences of a group have in common: trunks and branches by hand and at random; a trainer that computes
 * them once has the log-probabilities of one that does not, and no bit that depends on how leaves are held. */
#include <stdlib.h>

#include "num/round.h"
#include "train/shared_rows.h"
#include "train/training.h"

enum { GROUP = 4, ROWS = 400, SPANS = 40 };

static ls_shared_rows *make_shared(int64_t group) {
    const ls_shared_opts opts = {group, ROWS, SPANS, ROWS, false};
    ls_shared_rows *s;
    ls_error err;
    assert_ok(ls_shared_rows_create(&s, &opts, &err), err);
    return s;
}

/* Sequences as texts, a letter a token; all rows have a target but each one's last. */
typedef struct texts {
    int32_t tokens[ROWS];
    int64_t offsets[SPANS + 1], targets[ROWS], n;
} texts;

static void add_text(texts *t, const char *text) {
    int64_t row = t->offsets[t->n];
    for (; *text != '\0'; text++, row++) {
        t->tokens[row] = *text;
        t->targets[row] = text[1] == '\0' ? -1 : text[1];
    }
    t->offsets[++t->n] = row;
}

static ls_whole_rows view_of(const texts *t) {
    const ls_whole_rows whole = {t->tokens, t->offsets, t->targets};
    return whole;
}

/* Spans as "parent:tokens", one behind the other. */
static void check_spans(const char *const *list, int64_t n, int64_t group, const char *want) {
    ls_shared_rows *s = make_shared(group);
    texts t = {{0}, {0}, {0}, 0};
    char got[600] = "";
    ls_whole_rows whole;
    int64_t rows = 0, spans = 0;
    for (int64_t i = 0; i < n; i++) add_text(&t, list[i]);
    whole = view_of(&t);
    ls_shared_rows_lay_out(s, &whole, 0, n);
    for (int64_t i = 0; i < s->n_spans; i++) {
        size_t used = strlen(got);
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%lld:", i > 0 ? " " : "", (long long)s->parents[i]);
        for (int64_t r = s->offsets[i]; r < s->offsets[i + 1]; r++) got[used++] = (char)s->tokens[r];
        got[used] = '\0';
    }
    assert_string_equal(got, want);
    ls_shared_rows_count(s, &whole, 0, n, &rows, &spans);
    assert_int_equal(rows, s->offsets[s->n_spans]);
    assert_int_equal(spans, s->n_spans);
    ls_shared_rows_free(s);
}

/* A trunk ends before the last token that all have; eight rows make one. */
static void trunks_are_what_several_begin_with(void **state) {
    const char *const two[] = {"abcdefghiXY", "abcdefghiZ"}, *const short_[] = {"abcdefghX", "abcdefghZ"};
    const char *const same[] = {"abcdefghi", "abcdefghi", "abcdefghij"};
    const char *const tree[] = {"abcdefghiPqrstuvwxyz1", "abcdefghi-", "abcdefghiPqrstuvwxyz2", "abcdefghiPq"};
    const char *const groups[] = {"abcdefghi1", "abcdefghi2", "abcdefghi3", "abcdefghi4"};
    const char *const apart[] = {"x", "abcdefghi1", "abcdefghi2", "abcdefghi3"};
    (void)state;
    check_spans(two, 2, 2, "-1:abcdefgh 0:iXY 0:iZ");
    check_spans(short_, 2, 2, "-1:abcdefghX -1:abcdefghZ");
    check_spans(same, 3, 3, "-1:abcdefgh 0:i 0:i 0:ij");
    check_spans(tree, 4, 4, "-1:abcdefgh 0:iPqrstuvwxy 1:z1 1:z2 0:iPq 0:i-");
    check_spans(groups, 4, 2, "-1:abcdefgh 0:i1 0:i2 -1:abcdefgh 3:i3 3:i4");
    check_spans(apart, 4, 4, "-1:x -1:abcdefgh 1:i1 1:i2 1:i3");
}

/* Neighbours of few letters, so that they have much in common. */
static texts random_texts(uint64_t *seed) {
    texts t = {{0}, {0}, {0}, 0};
    char text[64];
    for (int64_t i = 0; i < 2 * GROUP; i++) {
        const int64_t kept = i % GROUP == 0 ? 0 : (int64_t)(test_random(seed) % 24);
        const int64_t n = kept + 1 + (int64_t)(test_random(seed) % 16);
        for (int64_t k = kept; k < n; k++) text[k] = (char)('a' + (int)(test_random(seed) % 26));
        text[n] = '\0';
        add_text(&t, text);
        memset(text + n, 'z', sizeof text - (size_t)n);
    }
    for (int64_t r = 0; r < t.offsets[t.n]; r++)
        if (test_random(seed) % 3 == 0) t.targets[r] = -1;
    return t;
}

/* Whatever they are, each sequence is a branch and what that continues, and a row's gradient is that of all that have
 * it. */
static void every_sequence_is_a_path(void **state) {
    uint64_t seed = 9;
    int64_t n_trunks = 0, n_deep = 0;
    (void)state;
    for (int round = 0; round < 200; round++) {
        ls_shared_rows *s = make_shared(GROUP);
        const texts t = random_texts(&seed);
        const ls_whole_rows whole = view_of(&t);
        float from[ROWS], to[ROWS], want[ROWS] = {0};
        ls_shared_rows_lay_out(s, &whole, 0, t.n);
        assert_int_equal(s->offsets[s->n_spans], s->n_rows);
        for (int64_t i = 0; i < s->n_spans; i++) {
            n_trunks += i + 1 < s->n_spans && s->parents[i + 1] == i;
            n_deep += s->parents[i] >= 0 && s->parents[s->parents[i]] >= 0;
        }
        for (int64_t i = 0; i < t.n; i++) {
            int64_t row = t.offsets[i + 1] - 1, span = 0;
            while (s->offsets[span + 1] <= s->rows[row]) span++;
            assert_int_equal(s->rows[row], s->offsets[span + 1] - 1);
            for (; span >= 0; span = s->parents[span])
                for (int64_t r = s->offsets[span + 1] - 1; r >= s->offsets[span]; r--, row--) {
                    assert_int_equal(s->rows[row], r);
                    assert_int_equal(s->tokens[r], t.tokens[row]);
                    if (t.targets[row] != -1) assert_int_equal(s->targets[r], t.targets[row]);
                }
            assert_int_equal(row, t.offsets[i] - 1);
        }
        for (int64_t r = 0; r < t.offsets[t.n]; r++) {
            from[r] = test_uniform(&seed, -1.0f, 1.0f);
            if (t.targets[r] != -1) want[s->rows[r]] = ls_add(want[s->rows[r]], from[r]);
        }
        ls_shared_rows_gather(s, t.targets, t.offsets[t.n], from, to);
        assert_same_bits(to, want, s->n_rows);
        ls_shared_rows_free(s);
    }
    assert_true(n_trunks > 100 && n_deep > 10);
}

/* ---- the trainer ---- */

enum { BATCH = 16, LONGEST = 30 };

/* Four groups: of one beginning, of nested ones, of none, and of the same sequence four times. */
static batch shared_batch(int32_t vocab, uint64_t seed) {
    batch b = batch_make(BATCH, LONGEST, vocab, seed);
    int64_t row = 0;
    b.count = 0;
    for (int64_t i = 0; i < BATCH; i++) {
        static const int64_t kept[4][GROUP] = {{0, 13, 13, 13}, {0, 21, 10, 21}, {0, 0, 0, 0}, {0, 17, 17, 17}};
        const int64_t group = i / GROUP, n = kept[group][i % GROUP], length = group == 3 ? 17 : 22 + i % 5;
        const int64_t first = i - i % GROUP;
        b.offsets[i] = row;
        for (int64_t k = 0; k < length; k++, row++) {
            b.tokens[row] = k < n ? b.tokens[b.offsets[first] + k] : (int32_t)(test_random(&seed) % (uint64_t)vocab);
            b.targets[row] = -1;
        }
        for (int64_t k = 6; k + 1 < length; k++) b.targets[b.offsets[i] + k] = b.tokens[b.offsets[i] + k + 1];
        b.count += length - 7;
    }
    b.offsets[BATCH] = row;
    return b;
}

static ls_trainer_opts shared_opts(void) {
    ls_trainer_opts opts = usual_opts();
    opts.sequences_max = BATCH;
    opts.leaf = 2 * GROUP;
    opts.group = GROUP;
    opts.longest = LONGEST;
    opts.entropy = true;
    return opts;
}

static uint64_t shared_bits(const char *name, const ls_trainer_opts *opts, int32_t threads) {
    training t;
    uint64_t bits;
    training_open(&t, fixture_path(name), opts, threads, ls_isa_best());
    for (uint64_t step = 0; step < 3; step++) {
        batch b = shared_batch(t.model->config.vocab, step);
        const ls_train_batch view = batch_view(&b);
        ls_train_stats stats;
        ls_error err;
        assert_ok(ls_trainer_step(t.trainer, &view, &stats, &err), err);
        batch_free(&b);
    }
    bits = state_bits(t.state);
    training_close(&t);
    return bits;
}

static const char *const names[] = {"jamba-odd", "qwen3-small", "nemotron-h-small", "qwen3.5-small"};

static void settings_carry_no_bits(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        const ls_trainer_opts first = shared_opts();
        const uint64_t bits = shared_bits(names[m], &first, 1);
        for (int i = 0; i < 5; i++) {
            ls_trainer_opts opts = first;
            if (i == 0) opts.microbatch = 2;
            if (i == 1) opts.recompute = LS_RECOMPUTE_ALL;
            if (i == 2) opts.recompute = 1, opts.rows_max = 110, opts.leaf_rows_max = 240; /* a group a forward */
            if (i == 3) opts.spans_max = 9, opts.microbatch = 2;
            if (i == 4) opts.rows_max = 150, opts.leaf_rows_max = 240;
            if (shared_bits(names[m], &opts, i % 2 + 1) != bits) fail_msg("%s: setting %d carries bits", names[m], i);
        }
        ls_trainer_opts apart = first;
        apart.group = 0;
        assert_false(shared_bits(names[m], &apart, 1) == bits);
    }
}

/* The scores of a trainer of this group. */
static void score(const char *name, int64_t group, float *logprob) {
    ls_trainer_opts opts = shared_opts();
    training t;
    batch b;
    ls_train_batch view;
    ls_error err;
    opts.group = group;
    training_open(&t, fixture_path(name), &opts, 2, ls_isa_best());
    b = shared_batch(t.model->config.vocab, 5);
    view = batch_view(&b);
    assert_ok(ls_trainer_score(t.trainer, &view, logprob, &err), err);
    batch_free(&b);
    training_close(&t);
}

static void scores_are_those_of_whole_sequences(void **state) {
    static const char *const all[] = {"jamba-odd", "qwen3-small", "mamba2-small", "qwen3.5-small"};
    float shared[BATCH * LONGEST] = {0}, apart[BATCH * LONGEST] = {0};
    (void)state;
    for (size_t m = 0; m < sizeof all / sizeof all[0]; m++) {
        score(all[m], GROUP, shared);
        score(all[m], 0, apart);
        assert_true(apart[10] != 0.0f);
        assert_same_bits(shared, apart, BATCH * LONGEST);
    }
}

/* Groups are whole, in leaves and in forwards. */
static void what_does_not_fit_is_named(void **state) {
    ls_trainer_opts opts = shared_opts();
    training t;
    batch b;
    ls_train_batch view;
    ls_train_stats stats;
    ls_model *model;
    ls_trainer *trainer;
    ls_device *device = test_device(1, ls_isa_best());
    ls_error err;
    (void)state;
    opts.rows_max = 60;
    training_open(&t, fixture_path("mamba-odd"), &opts, 1, ls_isa_best());
    b = shared_batch(t.model->config.vocab, 5);
    view = batch_view(&b);
    check_failed(ls_trainer_step(t.trainer, &view, &stats, &err), &err,
                 "group of sequences 8 to 11 has 96 tokens in 4 spans; a forward holds 60");
    training_close(&t);
    opts.leaf = 6;
    assert_ok(ls_model_open(&model, device, fixture_path("mamba-odd"), &err), err);
    check_failed(ls_trainer_create(&trainer, model, fixture_path("mamba-odd"), device, &opts, &err), &err,
                 "leaves of 6 in groups of 4");
    ls_model_close(model);
    batch_free(&b);
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trunks_are_what_several_begin_with),
        cmocka_unit_test(every_sequence_is_a_path),
        cmocka_unit_test(settings_carry_no_bits),
        cmocka_unit_test(scores_are_those_of_whole_sequences),
        cmocka_unit_test(what_does_not_fit_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
