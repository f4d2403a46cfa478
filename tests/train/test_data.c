/* Data of a run: splits by the hash of ids, orders by seed, weights of files, leaks, templates. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"
#include "train/data.h"

static char scratch[] = "/tmp/lockstep-test-XXXXXX";
static char a_path[64], b_path[64];

/* n lines whose ids are PREFIX0, PREFIX1, .. */
static void write_lines(const char *path, const char *prefix, int n) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < n; i++)
        fprintf(file, "{\"id\":\"%s%d\",\"prompt\":\"%s %d\",\"answer\":%d}\n", prefix, i, prefix, i, i);
    assert_int_equal(fclose(file), 0);
}

static int scratch_make(void **state) {
    (void)state;
    if (mkdtemp(scratch) == NULL) return 1;
    snprintf(a_path, sizeof a_path, "%s/a.jsonl", scratch);
    snprintf(b_path, sizeof b_path, "%s/b.jsonl", scratch);
    write_lines(a_path, "a", 1000);
    write_lines(b_path, "b", 300);
    return 0;
}

static int scratch_remove(void **state) {
    (void)state;
    unlink(a_path);
    unlink(b_path);
    return rmdir(scratch);
}

static ls_data *open_data(const char *files, const char *held, int64_t held_out, uint64_t seed) {
    const ls_data_options o = {.files = files, .held_out_files = held, .held_out = held_out, .seed = seed};
    ls_data *d;
    ls_error err;
    assert_ok(ls_data_open(&d, &o, &err), err);
    return d;
}

static void lines_are_split_by_their_ids(void **state) {
    ls_data *one = open_data(a_path, NULL, 10, 1), *other = open_data(a_path, NULL, 10, 2);
    const int64_t n_out = ls_data_count(one, LS_DATA_HELD_OUT), n = ls_data_count(one, LS_DATA_TRAIN);
    char seen[1000] = {0};
    (void)state;
    assert_int_equal(n + n_out, 1000);
    assert_true(n_out > 60 && n_out < 140);
    for (int64_t i = 0; i < n; i++) seen[atoi(ls_data_at(one, LS_DATA_TRAIN, i)->id + 1)]++;
    for (int64_t i = 0; i < n_out; i++) {
        const ls_data_line *x = ls_data_at(one, LS_DATA_HELD_OUT, i);
        seen[atoi(x->id + 1)] += 2;
        /* Held-out problems do not depend on the seed. */
        assert_string_equal(ls_data_at(other, LS_DATA_HELD_OUT, i)->id, x->id);
    }
    for (int i = 0; i < 1000; i++) assert_true(seen[i] == 1 || seen[i] == 2); /* each once, in one split */
    ls_data_close(one);
    ls_data_close(other);
}

/* A prompt that stands in several lines, under several ids, is trained on or held out, not both. */
static void equal_prompts_stay_together(void **state) {
    char path[64], side[100];
    ls_data *d, *alone;
    FILE *file;
    int64_t n_out;
    (void)state;
    snprintf(path, sizeof path, "%s/twice.jsonl", scratch);
    file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 400; i++)
        fprintf(file, "{\"id\":\"t%d\",\"prompt\":\"p%d\",\"answer\":\"%d\"}\n", i, i % 100, i);
    assert_int_equal(fclose(file), 0);
    d = open_data(path, NULL, 5, 1);
    n_out = ls_data_count(d, LS_DATA_HELD_OUT);
    assert_true(n_out > 20 && n_out < 200 && n_out % 4 == 0);
    memset(side, 0, sizeof side);
    for (int64_t i = 0; i < n_out; i++) side[atoi(ls_data_at(d, LS_DATA_HELD_OUT, i)->prompt + 1)] = 1;
    for (int64_t i = 0; i < ls_data_count(d, LS_DATA_TRAIN); i++)
        assert_int_equal(side[atoi(ls_data_at(d, LS_DATA_TRAIN, i)->prompt + 1)], 0);
    ls_data_close(d);
    /* Where no prompt stands twice, the id alone decides, as before. */
    alone = open_data(a_path, NULL, 5, 1);
    assert_true(ls_data_count(alone, LS_DATA_HELD_OUT) > 100);
    ls_data_close(alone);
    unlink(path);
}

static void orders_follow_the_seed(void **state) {
    ls_data *one = open_data(a_path, NULL, 0, 1), *same = open_data(a_path, NULL, 0, 1),
            *other = open_data(a_path, NULL, 0, 2);
    int64_t equal = 0;
    (void)state;
    assert_int_equal(ls_data_count(one, LS_DATA_HELD_OUT), 0);
    for (int64_t i = 0; i < 2500; i++) {
        const char *id = ls_data_at(one, LS_DATA_TRAIN, i)->id;
        assert_string_equal(ls_data_at(same, LS_DATA_TRAIN, i)->id, id);
        equal += strcmp(ls_data_at(other, LS_DATA_TRAIN, i)->id, id) == 0;
    }
    assert_true(equal < 50);
    /* Backwards, as a resumed run may ask. */
    for (int64_t i = 2499; i >= 2400; i--)
        assert_string_equal(ls_data_at(one, LS_DATA_TRAIN, i)->id, ls_data_at(same, LS_DATA_TRAIN, i)->id);
    ls_data_close(one);
    ls_data_close(same);
    ls_data_close(other);
}

static void weights_share_the_draws(void **state) {
    char files[200];
    ls_data *d;
    int64_t n_a = 0;
    int last = -1;
    char seen[300] = {0};
    (void)state;
    snprintf(files, sizeof files, "%s,%s:3", a_path, b_path);
    d = open_data(files, NULL, 0, 5);
    for (int64_t i = 0; i < 4000; i++) {
        const ls_data_line *x = ls_data_at(d, LS_DATA_TRAIN, i);
        const ls_data_line *by_index;
        const char *path;
        assert_true(ls_data_each(d, ls_data_index(d, LS_DATA_TRAIN, i), &by_index, &path));
        assert_ptr_equal(by_index, x);
        n_a += x->id[0] == 'a';
        if (x->id[0] == 'b' && last < 299) {
            seen[atoi(x->id + 1)]++;
            last++;
        }
    }
    assert_true(n_a > 900 && n_a < 1100);                       /* a quarter of 4000 */
    for (int i = 0; i < 300; i++) assert_int_equal(seen[i], 1); /* an epoch of the file, whatever the other's draws */
    ls_data_close(d);
}

static void files_may_be_held_out(void **state) {
    ls_data *d = open_data(a_path, b_path, 10, 0);
    const ls_data_options leak = {.files = a_path, .held_out_files = a_path};
    ls_data *none;
    ls_error err;
    (void)state;
    assert_int_equal(ls_data_count(d, LS_DATA_TRAIN), 1000);
    assert_int_equal(ls_data_count(d, LS_DATA_HELD_OUT), 300);
    ls_data_close(d);
    check_failed(ls_data_open(&none, &leak, &err), &err, "a.jsonl: line ");
    check_failed(ls_data_open(&none, &leak, &err), &err, "which is trained on");
}

static void digests_tell_data_apart(void **state) {
    char files[200];
    ls_data *x = open_data(a_path, NULL, 0, 0), *y = open_data(b_path, NULL, 0, 0), *z;
    (void)state;
    assert_true(ls_data_digest(x) != ls_data_digest(y));
    snprintf(files, sizeof files, "%s:2", a_path);
    z = open_data(files, NULL, 0, 0);
    assert_true(ls_data_digest(x) != ls_data_digest(z));
    ls_data_close(x);
    ls_data_close(y);
    ls_data_close(z);
}

static void options_are_checked(void **state) {
    static const struct {
        const char *files, *template;
        int64_t held_out;
        const char *says;
    } bad[] = {{"/nowhere/x.jsonl", NULL, 0, "/nowhere/x.jsonl: cannot open"},
               {"x:0", NULL, 0, "the weight is not above 0"},
               {"x:-1", NULL, 0, "the weight is not above 0"},
               {"x:inf", NULL, 0, "the weight is not above 0"},
               {",", NULL, 0, "a file without a name"},
               {a_path, "Q:", 0, "data_template: 'Q:' has no {prompt}"},
               {a_path, NULL, 1, "no line is left to train on"}};
    ls_data *d;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const ls_data_options o = {.files = bad[i].files, .template = bad[i].template, .held_out = bad[i].held_out};
        check_failed(ls_data_open(&d, &o, &err), &err, bad[i].says);
    }
    {
        const ls_data_options o = {.files = a_path, .template = "Q: {prompt}\nA:"};
        assert_ok(ls_data_open(&d, &o, &err), err);
        assert_memory_equal(ls_data_at(d, LS_DATA_TRAIN, 0)->prompt, "Q: a ", 5);
        ls_data_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_split_by_their_ids), cmocka_unit_test(equal_prompts_stay_together),
        cmocka_unit_test(orders_follow_the_seed),       cmocka_unit_test(weights_share_the_draws),
        cmocka_unit_test(files_may_be_held_out),        cmocka_unit_test(digests_tell_data_apart),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
