/* Runs whose episodes a thread draws ahead: one digest whatever carries no bits, a gate of the weights that drew,
 * kills, processes, and what is refused. */
#define _GNU_SOURCE
#include <math.h>

#include "rl/ranks_run.h"
#include "run/history.h"

static uint64_t digest_of(const char *first, const char *const *others) {
    const char *sets[6] = {first};
    int64_t n = 1;
    for (; n < 5 && others != NULL && others[n - 1] != NULL; n++) sets[n] = others[n - 1];
    return digest_with(sets, n);
}

/* Neither the speed nor the threads of either side, nor who waits for whom. */
static void settings_carry_no_bits(void **state) {
    static const char *const others[][5] = {
        {"threads=2", "draw_threads=1"},
        {"draw_threads=3", "microbatch=1", "recompute=true"},
        {"check_share=0"},
        {"check_share=0.5", "engine.batch=3", "engine.prefix=off"},
        {"eval_every=2", "eval_n=4", "engine.shuffle=7", "gate=warn"},
        {"save_every=1", "save_behind=true", "keep=1"},
    };
    const uint64_t want = digest_of("lag=2", NULL);
    (void)state;
    for (int64_t i = 0; i < COUNT(others); i++)
        if (digest_of("lag=2", others[i]) != want) fail_msg("%s", others[i][0]);
}

/* And lag=0 is the run without the option: the first steps of all have the weights that the run begins with. */
static void a_lag_carries_bits(void **state) {
    static const char *const lags[] = {"lag=0", "lag=1", "lag=2", "lag=4"};
    static const char *const one[5] = {"steps=1"};
    uint64_t seen[COUNT(lags)];
    (void)state;
    for (int64_t i = 0; i < COUNT(lags); i++) {
        assert_int_equal(digest_of(lags[i], one), digest_with(one, 1));
        seen[i] = digest_of(lags[i], NULL);
        for (int64_t k = 0; k < i; k++) assert_int_not_equal(seen[i], seen[k]);
    }
    assert_int_equal(seen[0], digest_with(NULL, 0));
}

static double metric(const ls_history *h, const char *name, int64_t k) {
    for (int64_t i = 0; i < h->n_names; i++)
        if (strcmp(h->names[i], name) == 0) return h->values[i * h->n_steps + k];
    fail_msg("no measure %s", name);
    return 0;
}

/* Every token is compared with what the weights that drew it say, also of those that the trainer has left behind, whose
 * ratios are not 1 any more. */
static void old_tokens_are_checked(void **state) {
    job j = job_make("checked");
    ls_history h = {0};
    ls_error err;
    (void)state;
    job_set(&j, "lag=2");
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_int_equal(h.n_steps, 5);
    for (int64_t k = 0; k < h.n_steps; k++) {
        const bool fresh = k == 0;
        assert_true(metric(&h, "lag/steps", k) == (k < 2 ? (double)k : 2));
        assert_true(metric(&h, "lag/checked", k) == 16 * metric(&h, LS_METRIC_LENGTH, k));
        assert_true(metric(&h, "mismatch/abs_max", k) == 0);
        assert_true((metric(&h, "staleness/abs_max", k) == 0) == fresh);
        assert_true((metric(&h, "first_update/ratio_max", k) == 1) == fresh);
    }
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void everything_goes_with_it(void **state) {
    static const char *const bases[][5] = {
        {"epochs=2", "minibatches=3", "beta=0.05", "correction=token-truncate=2"},
        {"dtype=bf16", "moments=bf16", "task=guess-number", "task_options=turns=2"},
        {"lora_rank=2", "minibatches=2"},
        {"samples=3", "task_options=words=1,letters=2", "filter_groups=true", "max_num_gen_batches=4"},
    };
    (void)state;
    for (int64_t i = 0; i < COUNT(bases); i++) {
        const char *sets[6] = {"lag=1"};
        int64_t n = 1;
        for (; n < 5 && bases[i][n - 1] != NULL; n++) sets[n] = bases[i][n - 1];
        const uint64_t want = digest_with(sets, n);
        sets[n] = "draw_threads=2";
        assert_int_equal(digest_with(sets, n + 1), want);
    }
}

/* Killed at any moment, the run draws what it had drawn, with the versions that lie beside its checkpoints. */
static void kill_and_resume(const char *base, bool is_behind) {
    const char *const sets[] = {"steps=12", "lag=2", base};
    const uint64_t want = digest_with(sets, 3);
    job j = job_make("killed");
    for (int i = 0; i < 3; i++) job_set(&j, sets[i]);
    j.o->train.save_behind = is_behind;
    for (int64_t kill_at = 2; kill_at <= 11; kill_at += 3) {
        const pid_t child = fork();
        int status;
        assert_true(child >= 0);
        if (child == 0) {
            ls_error err;
            j.o->train.resume = kill_at > 2;
            _exit(job_run(&j, &err) == LS_OK ? 0 : 1);
        }
        while (steps_done(j.o->train.run) < kill_at && waitpid(child, &status, WNOHANG) == 0) usleep(500);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    }
    j.o->train.resume = true;
    job_must_run(&j);
    assert_int_equal(j.result.digest, want);
    assert_int_equal(steps_done(j.o->train.run), 12);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void a_killed_run_goes_on(void **state) {
    (void)state;
    test_forks();
    kill_and_resume("minibatches=2", false);
    kill_and_resume("lora_rank=2", true);
}

/* A version that is gone is named, and one that another run left is none. */
static void versions_are_needed(void **state) {
    job j = job_make("versions");
    char path[1400];
    ls_error err;
    (void)state;
    assert_int_equal(mkdir(j.o->train.run, 0777), 0);
    snprintf(path, sizeof path, "%s/versions", j.o->train.run);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/versions/step-00000003", j.o->train.run);
    assert_int_equal(mkdir(path, 0777), 0);
    job_set(&j, "lag=2");
    job_set(&j, "steps=4");
    job_must_run(&j);
    snprintf(path, sizeof path, "%s/versions/step-00000003/model.safetensors", j.o->train.run);
    assert_true(ls_file_exists(path));
    *strrchr(path, '/') = '\0';
    remove_tree(path);
    job_set(&j, "steps=6");
    j.o->train.resume = true;
    check_failed(job_run(&j, &err), &err, "versions/step-00000003 is missing");
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void processes_have_the_bits_of_one(void **state) {
    static const char *const sets[] = {"lag=2", "minibatches=2", "check_share=0.5", "eval_every=2"};
    const uint64_t want = digest_with(sets, COUNT(sets));
    (void)state;
    test_forks();
    for (int64_t ranks = 2; ranks <= 3; ranks++) {
        pid_t children[3];
        job j = job_make("shared");
        for (int64_t i = 0; i < COUNT(sets); i++) job_set(&j, sets[i]);
        start_ranks(&j, ranks, want, children);
        job_must_run(&j);
        end_ranks(ranks, children);
        assert_int_equal(j.result.digest, want);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

/* A judge that fails does so in its step, whoever was ahead. */
static void failures_end_the_run_in_their_step(void **state) {
    job j = job_make("failing");
    char command[600];
    ls_error err;
    (void)state;
    job_set(&j, "lag=3");
    snprintf(command, sizeof command,
             "reward_command=while IFS= read -r l; do echo >> %s; [ $(wc -l < %s) -gt 32 ] && exit 7; "
             "id=${l#*'\"id\":\"'}; id=${id%%%%'\"'*}; echo \"{\\\"id\\\":\\\"$id\\\",\\\"reward\\\":1}\"; done",
             run_dir("asked"), run_dir("asked"));
    job_set(&j, command);
    check_failed(job_run(&j, &err), &err, "step 3: ");
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void impossible_options_are_named(void **state) {
    static const struct {
        const char *sets[3], *word;
    } cases[] = {{{"lag=1", "top_k=5"}, "lag: 1 with top_k"},
                 {{"lag=1", "sleep=true"}, "lag: 1 with sleep=true"},
                 {{"check_share=0.5"}, "check_share: without lag"},
                 {{"draw_threads=2"}, "draw_threads: without lag"}};
    (void)state;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        job j = job_make("impossible");
        ls_error err;
        for (int64_t k = 0; k < 3 && cases[i].sets[k] != NULL; k++) job_set(&j, cases[i].sets[k]);
        check_failed(job_run(&j, &err), &err, cases[i].word);
        job_free(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lag_carries_bits),
        cmocka_unit_test(settings_carry_no_bits),
        cmocka_unit_test(old_tokens_are_checked),
        cmocka_unit_test(everything_goes_with_it),
        cmocka_unit_test(a_killed_run_goes_on),
        cmocka_unit_test(versions_are_needed),
        cmocka_unit_test(processes_have_the_bits_of_one),
        cmocka_unit_test(failures_end_the_run_in_their_step),
        cmocka_unit_test(impossible_options_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
