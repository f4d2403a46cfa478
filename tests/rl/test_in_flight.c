/* Runs whose weights change in the middle of completions: the log of borders is enough to draw a run again, whatever
 * carries no bits; kills, damaged logs, and what is refused. */
#define _GNU_SOURCE
#include "rl/flying_run.h"
#include "rl/ranks_run.h"
#include "run/history.h"

static uint64_t follow(const char *log, const char *const *sets, int64_t n) {
    job j = flying_job("follows");
    set_text(&j, "follow", log);
    return job_digest(j, sets, n);
}

static double total_of(const ls_history *h, const char *name) {
    double sum = 0;
    for (int64_t i = 0; i < h->n_names; i++)
        for (int64_t k = 0; strcmp(h->names[i], name) == 0 && k < h->n_steps; k++) sum += h->values[i * h->n_steps + k];
    return sum;
}

/* Tokens on both sides of a border are scored with the weights that drew them, and all bits agree. */
static void borders_within_episodes_are_followed_and_checked(void **state) {
    char log[200];
    job j = flying_job("checked");
    ls_history h = {0};
    ls_borders *own, *given;
    ls_error err;
    int64_t n;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("by-hand"));
    n = write_log(log, 2, 1);
    assert_true(n > 4 * EPISODES);
    set_text(&j, "follow", log);
    job_must_run(&j);
    assert_false(j.result.differs);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_int_equal(h.n_steps, STEPS);
    assert_true(total_of(&h, "lag/borders") == (double)n);
    assert_true(total_of(&h, "lag/steps") == 0 + 1 + 2 + 2 + 2);
    assert_true(total_of(&h, "lag/checked") == 6 * EPISODES * STEPS);
    assert_true(total_of(&h, "mismatch/abs_max") == 0);
    assert_true(total_of(&h, "staleness/abs_max") > 0);
    own = read_log(log_of(j.o->train.run));
    given = read_log(log);
    for (int64_t step = 1; step <= STEPS; step++) {
        assert_true(own->steps[step - 1].has_digest);
        assert_ok(ls_borders_agree(&own->steps[step - 1], &given->steps[step - 1], &err), err);
    }
    ls_borders_free(own);
    ls_borders_free(given);
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* A log has one result, and another log another. */
static void a_log_has_one_digest(void **state) {
    static const char *const settings[][4] = {
        {"threads=3", "draw_threads=2"},
        {"engine.batch=3", "engine.chunk=2", "engine.page=4", "microbatch=1"},
        {"engine.prefix=off", "engine.fork=off", "check_share=0.5"},
        {"engine.shuffle=7", "eval_every=2", "eval_n=4", "save_every=1"},
    };
    static const char *const between[] = {"lag=2", "stop=", "seed=4"};
    static const char *const explicit[] = {"lag=2", "stop=", "seed=4", "updates=between"};
    char log[200];
    uint64_t want, other;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("one"));
    write_log(log, 2, 1);
    want = follow(log, NULL, 0);
    for (int64_t i = 0; i < COUNT(settings); i++) {
        int64_t n = 0;
        while (n < 4 && settings[i][n] != NULL) n++;
        if (follow(log, settings[i], n) != want) fail_msg("%s", settings[i][0]);
    }
    write_log(log, 2, 2);
    other = follow(log, NULL, 0);
    assert_int_not_equal(other, want);
    write_log(log, 6, 0); /* the schedule of a lag alone */
    other = follow(log, NULL, 0);
    assert_int_equal(other, digest_with(between, COUNT(between)));
    assert_int_equal(other, digest_with(explicit, COUNT(explicit)));
}

/* A token is learnt from over what its version left to draw from. */
static void truncated_tokens_have_the_support_of_their_version(void **state) {
    static const char *const sets[] = {"top_k=3", "rate=0.02", "threads=3", "engine.chunk=2", "microbatch=1"};
    static const char *const between[] = {"top_k=3", "rate=0.02", "lag=2", "stop=", "seed=4"};
    char log[200];
    uint64_t want;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("truncated"));
    write_log(log, 2, 1);
    want = follow(log, sets, 2);
    assert_int_equal(follow(log, sets, COUNT(sets)), want);
    write_log(log, 6, 0); /* the schedule of a lag alone */
    assert_int_equal(follow(log, sets, 2), digest_with(between, COUNT(between)));
}

static void a_device_of_its_own_follows_the_log(void **state) {
    const char *sets[3];
    char log[200], along[240];
    uint64_t want;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("apart"));
    write_log(log, 2, 1);
    snprintf(along, sizeof along, "follow=%s", log);
    sets[0] = along;
    sets[1] = "engine.batch=3";
    sets[2] = "profile=exact";
    want = follow(log, &sets[1], 2);
    assert_int_equal(digest_elsewhere(flying_job("elsewhere"), sets, 3), want);
}

/* Where versions are equal weights a border changes nothing: neither where a stop text ends a completion that began
 * before it, nor which tokens are drawn behind it. */
static void borders_of_equal_weights_carry_no_bits(void **state) {
    static const char *const sets[] = {"lag=2", "seed=4", "stop=a", "rate=0", "decay=0", "steps=2", "max_tokens=20"};
    char log[200];
    ls_history h = {0};
    job j = flying_job("equal");
    ls_error err;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("equal-log"));
    write_log(log, 1, 0);
    for (int64_t i = 0; i < COUNT(sets); i++) job_set(&j, sets[i]);
    set_text(&j, "follow", log);
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_true(total_of(&h, "lag/borders") == EPISODES);
    assert_true(total_of(&h, "length/overlong") < 2);
    assert_int_equal(j.result.digest, digest_with(sets, COUNT(sets)));
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static int64_t borders_of_run(const char *run) {
    ls_borders *b = read_log(log_of(run));
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++) n += b->steps[i].ends[EPISODES] - EPISODES;
    ls_borders_free(b);
    return n;
}

/* Draws that are slow beside the trainer meet new weights on their way. */
static void weights_arrive_in_the_middle_of_completions(void **state) {
    static const char *const slow[] = {"engine.batch=8", "engine.sleep-every=2", "engine.chunk=2", "max_tokens=20"};
    int64_t n = 0;
    (void)state;
    for (int tries = 0; n == 0 && tries < 10; tries++) {
        job j = flying_job("slow");
        for (int64_t k = 0; k < COUNT(slow); k++) job_set(&j, slow[k]);
        job_must_run(&j);
        assert_false(j.result.differs);
        n = borders_of_run(j.o->train.run);
        assert_int_equal(follow(log_of(j.o->train.run), slow, COUNT(slow)), j.result.digest);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
    assert_true(n > 0);
}

/* Whenever the versions came: in turns, with adapters, with shared beginnings. */
static void a_free_run_is_followed_by_its_log(void **state) {
    static const char *const bases[][4] = {
        {"task=guess-number", "task_options=turns=2", "dtype=bf16", "engine.sleep-every=2"},
        {"lora_rank=2", "correction=token-truncate=2", "stop=auto", "engine.sleep-every=2"},
        {"prefix=shared", "minibatches=2", "epochs=2", "gate=warn"},
    };
    (void)state;
    for (int64_t i = 0; i < COUNT(bases); i++) {
        job j = flying_job("free");
        for (int64_t k = 0; k < 4; k++) job_set(&j, bases[i][k]);
        job_must_run(&j);
        assert_false(j.result.differs);
        assert_int_equal(follow(log_of(j.o->train.run), bases[i], 4), j.result.digest);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

/* Killed at any moment, the run draws along its log what it had drawn, and goes on freely. */
static void a_killed_run_follows_its_log(void **state) {
    static const char *const base[] = {"steps=12", "engine.batch=1", "max_tokens=12", "save_every=3"};
    job j = flying_job("killed");
    char before[200];
    (void)state;
    test_forks();
    for (int64_t k = 0; k < COUNT(base); k++) job_set(&j, base[k]);
    snprintf(before, sizeof before, "%s", run_dir("before"));
    for (int64_t kill_at = 1; kill_at <= 10; kill_at += 3) {
        const pid_t child = fork();
        char *was, *is;
        int64_t was_bytes, is_bytes;
        int status;
        ls_error err;
        assert_true(child >= 0);
        if (child == 0) {
            j.o->train.resume = kill_at > 1;
            _exit(job_run(&j, &err) == LS_OK ? 0 : 1);
        }
        while (steps_done(j.o->train.run) < kill_at && waitpid(child, &status, WNOHANG) == 0) usleep(500);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        assert_ok(ls_file_read(&is, &is_bytes, log_of(j.o->train.run), 1 << 20, &err), err);
        if (kill_at > 1) { /* what the log said it says still */
            assert_ok(ls_file_read(&was, &was_bytes, before, 1 << 20, &err), err);
            while (was_bytes > 0 && was[was_bytes - 1] != '\n') was_bytes--;
            assert_true(is_bytes >= was_bytes);
            assert_memory_equal(is, was, (size_t)was_bytes);
            free(was);
        }
        write_file(before, is, is_bytes, "w");
        free(is);
    }
    j.o->train.resume = true;
    job_must_run(&j);
    assert_int_equal(steps_done(j.o->train.run), 12);
    assert_int_equal(follow(log_of(j.o->train.run), base, COUNT(base)), j.result.digest);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* A judge that says nothing before the log has the draws of all three steps: these are drawn, and older ones checked,
 * while it thinks. */
static void draws_go_on_while_a_judge_thinks(void **state) {
    job j = flying_job("thinking");
    char command[600];
    (void)state;
    snprintf(command, sizeof command,
             "reward_command=while IFS= read -r l; do while [ $(wc -l < %s) -lt 3 ]; do sleep 0.01; done; "
             "id=${l#*'\"id\":\"'}; id=${id%%%%'\"'*}; echo \"{\\\"id\\\":\\\"$id\\\",\\\"reward\\\":1}\"; done",
             log_of(j.o->train.run));
    job_set(&j, command);
    job_set(&j, "reward_timeout=20");
    job_set(&j, "steps=3");
    job_must_run(&j);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* The file with the first `from` behind line `line` replaced. */
static void edit_log(const char *path, const char *text, int line, const char *from, const char *to) {
    const char *at = text;
    for (int i = 1; i < line; i++) at = strchr(at, '\n') + 1;
    at = strstr(at, from);
    assert_non_null(at);
    write_file(path, text, at - text, "w");
    write_file(path, to, (int64_t)strlen(to), "a");
    write_file(path, at + strlen(from), (int64_t)strlen(at + strlen(from)), "a");
}

static void damaged_logs_are_named(void **state) {
    static const struct {
        int line;
        const char *from, *to, *word;
    } cases[] = {
        {1, "{", "[", "line 1: "},
        {2, "\"step\":2", "\"step\":3", "line 2: step: 3"},
        {1, "\"format\":1", "\"format\":2", "line 1: format: 2"},
        {3, "\"borders\"", "\"border\"", "line 3: border"},
        {4, "[[", "[[[1,0]],[", "line 4: borders: 17 episodes; a step has 16"},
        {4, "],[", ",7],[", "is not a token and a version"},
        {3, ",2]]", ",3]]", "line 3: borders[0][2][1]: 3"},
        {5, ",2]", ",1]", "line 5: borders[0][0][1]: 1"},
        {3, ",1],[", ",0],[", "line 3: borders[0][1][1]: 0"},
        {2, "[[", "[[],[", "line 2: borders"},
        {2, "\"digest\":\"", "\"digest\":\"0", "line 2: digest"},
        {3, ",1],[", ",1],[1", "line 3: borders[0][2][0]: 1"},
    };
    char log[200], hurt[200], *text;
    job first = flying_job("whole");
    int64_t bytes;
    ls_error err;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("sound"));
    snprintf(hurt, sizeof hurt, "%s", run_dir("hurt"));
    write_log(log, 2, 0);
    set_text(&first, "follow", log);
    job_must_run(&first);
    assert_ok(ls_file_read(&text, &bytes, log_of(first.o->train.run), 1 << 20, &err), err);
    for (int64_t i = 0; i < COUNT(cases); i++) {
        const ls_borders_limits limits = {EPISODES, LENGTH, LAG};
        ls_borders *b;
        edit_log(hurt, text, cases[i].line, cases[i].from, cases[i].to);
        check_failed(ls_borders_read(&b, hurt, &limits, &err), &err, cases[i].word);
        assert_null(b);
    }
    free(text);
    remove_tree(first.o->train.run);
    job_free(&first);
}

/* A log that can be read and is not that of the run. */
static void a_log_of_something_else_is_refused(void **state) {
    char log[200], *text;
    job j = flying_job("else");
    int64_t bytes;
    ls_error err;
    char *digit;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("of-else"));
    job_must_run(&j);
    assert_ok(ls_file_read(&text, &bytes, log_of(j.o->train.run), 1 << 20, &err), err);
    remove_tree(j.o->train.run);
    digit = strstr(strchr(text, '\n'), "\"digest\":\"") + strlen("\"digest\":\"");
    *digit = *digit == '0' ? '1' : '0';
    write_file(log, text, bytes, "w");
    set_text(&j, "follow", log);
    check_failed(job_run(&j, &err), &err, "step 2: drawn along the log, episodes have the digest ");
    remove_tree(j.o->train.run);
    write_log(log, 5, 2); /* behind the end of every second episode */
    job_set(&j, "max_tokens=5");
    check_failed(job_run(&j, &err), &err, "step 2: episode 0 has no such borders as the log gives it");
    free(text);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* The log lies in the run; a run that begins in the directory takes none that another left. A line that was being
 * written, however long, is gone when the run goes on. */
static void logs_belong_to_runs(void **state) {
    job j = flying_job("owned");
    ls_borders *b;
    char cut[4000], *text;
    int64_t bytes;
    ls_error err;
    (void)state;
    assert_int_equal(mkdir(j.o->train.run, 0777), 0);
    write_file(log_of(j.o->train.run), "nothing of this run\n", 20, "w");
    job_set(&j, "steps=2");
    job_must_run(&j);
    b = read_log(log_of(j.o->train.run));
    assert_int_equal(b->n, 2);
    ls_borders_free(b);
    memset(cut, '[', sizeof cut);
    write_file(log_of(j.o->train.run), cut, sizeof cut, "a");
    job_set(&j, "steps=3");
    j.o->train.resume = true;
    job_must_run(&j);
    b = read_log(log_of(j.o->train.run));
    assert_int_equal(b->n, 3);
    assert_ok(ls_file_read(&text, &bytes, log_of(j.o->train.run), 1 << 20, &err), err);
    assert_int_equal(b->bytes, bytes);
    free(text);
    ls_borders_free(b);
    write_file(log_of(j.o->train.run), "", 0, "w");
    job_set(&j, "steps=4");
    check_failed(job_run(&j, &err), &err, "0 steps; the run has learnt from 3");
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void impossible_options_are_named(void **state) {
    static const struct {
        const char *sets[2], *word;
    } cases[] = {{{"lag=0"}, "updates: in_flight without lag"},
                 {{"filter_groups=true"}, "updates: in_flight with filter_groups"},
                 {{"rollout_url=http://127.0.0.1:1"}, "updates: in_flight with rollout_url"},
                 {{"ranks=2", "address=127.0.0.1:1"}, "updates: in_flight with several ranks"},
                 {{"follow=x", "updates=between"}, "follow: without updates=in_flight"}};
    (void)state;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        job j = flying_job("impossible");
        ls_error err;
        for (int64_t k = 0; k < 2 && cases[i].sets[k] != NULL; k++) job_set(&j, cases[i].sets[k]);
        check_failed(job_run(&j, &err), &err, cases[i].word);
        job_free(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(borders_within_episodes_are_followed_and_checked),
        cmocka_unit_test(a_log_has_one_digest),
        cmocka_unit_test(truncated_tokens_have_the_support_of_their_version),
        cmocka_unit_test(a_device_of_its_own_follows_the_log),
        cmocka_unit_test(borders_of_equal_weights_carry_no_bits),
        cmocka_unit_test(weights_arrive_in_the_middle_of_completions),
        cmocka_unit_test(a_free_run_is_followed_by_its_log),
        cmocka_unit_test(a_killed_run_follows_its_log),
        cmocka_unit_test(draws_go_on_while_a_judge_thinks),
        cmocka_unit_test(damaged_logs_are_named),
        cmocka_unit_test(a_log_of_something_else_is_refused),
        cmocka_unit_test(logs_belong_to_runs),
        cmocka_unit_test(impossible_options_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
