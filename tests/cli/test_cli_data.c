/* Runs on one's own data, and how they stop and go on: the program from the outside. */
#define _GNU_SOURCE
#include <signal.h>

#include "program.h"

#define SORT LS_SOURCE_DIR "/models/tiny-sort"

/* GSM8K's published format: reasoning, and behind #### the number. */
static void write_problems(const char *path, int n) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < n; i++) {
        const int a = i % 10, b = i / 10 % 10, low = a < b ? a : b, high = a < b ? b : a;
        fprintf(file,
                "{\"question\": \"sort %d %d:\", \"answer\": \"%d is below %d.\\n#### %d\", \"level\": {\"n\": %d}}\n",
                a, b, low, high, high, i);
    }
    assert_int_equal(fclose(file), 0);
}

/* "KEY=PATH", good until the next call with the same slot. */
static const char *with_path(int slot, const char *key, const char *path) {
    static char texts[4][2 * PATH_BYTES];
    const size_t n = strlen(key), m = strlen(path);
    assert_true(n + m < sizeof texts[0]);
    memcpy(texts[slot], key, n);
    memcpy(texts[slot] + n, path, m + 1);
    return texts[slot];
}

#define GRPO(run, ...)                                                                                           \
    "train", "grpo", "--set", "model=" SORT, "--set", with_path(0, "data=", at("gsm.jsonl")), "--set",           \
        with_path(1, "run=", run), "--set", "max_tokens=8", "--set", "prompts=4", "--set", "samples=4", "--set", \
        "threads=1", "--set", "leaf=4", __VA_ARGS__

static void published_data_drives_a_run(void **state) {
    json_t *line;
    size_t bytes;
    char *page;
    (void)state;
    write_problems(at("gsm.jsonl"), 100);
    RUN_OK(GRPO(at("run"), "--set", "reward=number", "--set", "steps=4", "--set", "eval_every=2"));
    assert_non_null(strstr(last.err, " problems to train on, "));
    line = line_read(at("run/metrics.jsonl"), 0);
    assert_int_equal(int_member(line, "step"), 0);
    assert_true(json_is_number(member(line, "held_out/reward")));
    json_decref(line);
    line = line_read(at("run/metrics.jsonl"), 4);
    assert_true(json_number_value(member(line, "seconds")) >= 0.5 * json_number_value(member(line, "seconds/step")));
    json_decref(line);
    RUN_OK("report", at("run"), "--out", at("page.html"));
    page = file_read(at("page.html"), &bytes);
    assert_non_null(strstr(page, "Held-out reward"));
    free(page);
}

static void data_without_sense_is_refused(void **state) {
    (void)state;
    RUN(GRPO(at("no"), "--set", "steps=1"));
    must_refuse("reward: missing; data has no judge of its own");
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=exact", "--set", "data_answer=reply"));
    must_refuse("gsm.jsonl: line 1: 'reply' is missing");
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=choice"));
    must_refuse("gsm.jsonl: line 1: answer: has no letter");
    text_write(at("half.jsonl"), "{\"prompt\":\"a\",\"answer\":\"1/2\"}\n{\"prompt\":\"b\",\"answer\":\"(1,5)\"}\n");
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=number", "--set", with_path(2, "data=", at("half.jsonl"))));
    must_refuse("half.jsonl: line 2: answer: '(1,5)' is no single number");
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=number", "--set", "held_out=0", "--set", "eval_every=1"));
    must_refuse("eval_every: no line of data is held out");
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=number", "--set", "reward_pattern=x"));
    must_refuse("reward_pattern: without reward=regex");
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=command"));
    must_refuse("reward_command: it is missing, and reward is command");
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=task"));
    must_refuse("reward: task; there is data instead");
    RUN("train", "grpo", "--set", "model=" SORT, "--set", with_path(1, "run=", at("no")), "--set", "eval_data=x",
        "--set", "task=sort-digits");
    must_refuse("eval_data: without data");
}

/* A line whose prompt leaves no room is named; or it is left out, and counted. */
static void long_prompts_are_named_or_left_out(void **state) {
    FILE *file;
    (void)state;
    write_problems(at("gsm.jsonl"), 2);
    file = fopen(at("gsm.jsonl"), "a");
    assert_non_null(file);
    fprintf(file, "{\"question\": \"sort%0600d\", \"answer\": \"0\"}\n", 7);
    assert_int_equal(fclose(file), 0);
    RUN(GRPO(at("no"), "--set", "steps=1", "--set", "reward=number", "--set", "held_out=0"));
    must_refuse("gsm.jsonl: line 3: ");
    must_refuse(" tokens; sequences have at most 520 (length); overlong_prompts=leave_out leaves out such lines");
    RUN_OK(GRPO(at("room"), "--set", "steps=1", "--set", "reward=number", "--set", "held_out=0", "--set",
                "overlong_prompts=leave_out"));
    assert_non_null(strstr(last.err, "1 lines of data are left out: prompts of 520 tokens or more (length)"));
    assert_non_null(strstr(last.err, "2 problems to train on, 0 held out"));
    write_problems(at("gsm.jsonl"), 100);
}

/* A command sees the whole line. */
static void judges_get_the_line(void **state) {
    (void)state;
    text_write(at("judge.sh"),
               "while read -r line; do id=${line#*\\\"id\\\":\\\"}; id=${id%%\\\"*}\n"
               "case $line in *'\"data\":{'*'\"level\":{\"n\":'*) r=1;; *) r=0;; esac\n"
               "echo \"{\\\"id\\\":\\\"$id\\\",\\\"reward\\\":$r}\"; done\n");
    RUN_OK(GRPO(at("judged"), "--set", "steps=1", "--set", with_path(2, "reward_command=sh ", at("judge.sh"))));
    assert_non_null(strstr(last.err, "reward 1 "));
}

static void supervised_runs_take_the_same_files(void **state) {
    (void)state;
    RUN_OK("train", "sft", "--set", "model=" SORT, "--set", with_path(0, "data=", at("gsm.jsonl")), "--set",
           with_path(1, "run=", at("sft")), "--set", "steps=4", "--set", "batch=8", "--set", "leaf=8", "--set",
           "held_out=10", "--set", "eval_every=2", "--set", "threads=1");
    assert_non_null(strstr(last.err, "held-out loss "));
    assert_int_equal(count_lines(at("sft/metrics.jsonl")), 4);
    RUN_OK("report", at("sft"), "--out", at("sft.html"));
    RUN_OK("report", at("sft"), at("run"), "--out", at("both.html"));
    RUN_OK("check", "--model", at("sft/checkpoints/step-00000004"), "--max-tokens", "4");
}

/* ---- stopping ---- */

static pid_t start(const char *const *args) {
    union {
        const char *const *in;
        char *const *out;
    } passed = {args};
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int err = open(at("stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (dup2(err, 2) < 0) _exit(126);
        execv(LS_PROGRAM, passed.out);
        _exit(127);
    }
    return child;
}

static int64_t steps_of(const char *path) {
    FILE *file = fopen(path, "r");
    int64_t n = 0;
    int c;
    while (file != NULL && (c = getc(file)) != EOF) n += c == '\n';
    if (file != NULL) fclose(file);
    return n;
}

/* The digest that a run printed last. */
static void digest_of(char out[17]) {
    const char *found = last.err, *at_digest = NULL;
    while ((found = strstr(found, "digest ")) != NULL) at_digest = found, found++;
    assert_non_null(at_digest);
    memcpy(out, at_digest + 7, 16);
    out[16] = '\0';
}

/* As many as leave time for a signal behind the third; steps take longer under sanitizers. */
#ifdef LS_SANITIZED
#define STEPS "12"
#else
#define STEPS "40"
#endif

static void stopped_runs_go_on_with_their_bits(void **state) {
    static const int signals[] = {SIGTERM, SIGINT};
    char want[17], got[17];
    (void)state;
    RUN_OK(GRPO(at("whole"), "--set", "reward=number", "--set", "steps=" STEPS, "--set", "save_every=0"));
    digest_of(want);
    for (int i = 0; i < 2; i++) {
        const char *run = i == 0 ? at("stop-a") : at("stop-b");
        const char *lines = i == 0 ? at("stop-a/metrics.jsonl") : at("stop-b/metrics.jsonl");
        const char *const args[] = {
            LS_PROGRAM, GRPO(run, "--set", "reward=number", "--set", "steps=" STEPS, "--set", "save_every=0", NULL)};
        const pid_t child = start(args);
        int status;
        while (steps_of(lines) < 3) usleep(1000);
        assert_int_equal(kill(child, signals[i]), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 4);
        read_back(last.err, at("stderr"));
        assert_non_null(strstr(last.err, "go on with: lockstep train resume "));
        RUN_OK("train", "resume", run);
        digest_of(got);
        assert_string_equal(got, want);
        assert_int_equal(count_lines(lines), atoi(STEPS));
    }
}

static void a_second_signal_ends_at_once(void **state) {
    /* A judge that never answers keeps the run within its step. */
    const char *const args[] = {LS_PROGRAM, GRPO(at("stuck"), "--set", "reward_command=sleep 1000", "--set",
                                                 "reward_timeout=900", "--set", "steps=2", NULL)};
    const pid_t child = start(args);
    int status;
    (void)state;
    while (access(at("stuck/metrics.jsonl"), F_OK) != 0) usleep(1000);
    usleep(100000);
    assert_int_equal(kill(child, SIGTERM), 0);
    usleep(100000);
    assert_int_equal(waitpid(child, &status, WNOHANG), 0); /* it waits for the end of the step */
    assert_int_equal(kill(child, SIGTERM), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

/* A judge that falls silent does not keep a run that is asked to stop: the step is given up, the one before is
 * saved. */
static void leave_silent_judge(const char *lag, const char *concurrency, const char *heard, const char *silent_run) {
    static const char judge[] = "sed -u -n 's/^{\"id\":\\(\"[0-9]*\"\\).*/{\"id\":\\1,\"reward\":0.5}/p'";
    char good[200], silent[300], run[600], metrics[700], want[17], got[17];
    int status;
    snprintf(good, sizeof good, "reward_command=%s", judge);
    snprintf(silent, sizeof silent, "reward_command=sed -u 24q | %s; exec sleep 1000", judge);
    snprintf(run, sizeof run, "%s", at(silent_run));
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", run);
    RUN_OK(GRPO(at(heard), "--set", good, "--set", "steps=6", "--set", "save_every=0", "--set", concurrency, "--set",
                lag));
    digest_of(want);
    const char *const args[] = {LS_PROGRAM,
                                GRPO(run, "--set", silent, "--set", "reward_timeout=900", "--set", "steps=6", "--set",
                                     "save_every=0", "--set", concurrency, "--set", lag, NULL)};
    const pid_t child = start(args);
    while (steps_of(metrics) < 1) usleep(1000);
    usleep(300000);
    assert_int_equal(kill(child, SIGINT), 0);
    assert_int_equal(waitpid(child, &status, 0), child); /* or not before reward_timeout is over, with code 2 */
    assert_true(WIFEXITED(status));
    read_back(last.err, at("stderr"));
    if (WEXITSTATUS(status) != 4) fail_msg("exit code %d: %.2000s", WEXITSTATUS(status), last.err);
    assert_non_null(strstr(last.err, "go on with: lockstep train resume "));
    RUN_OK("train", "resume", run, "--set", good);
    digest_of(got);
    assert_string_equal(got, want);
}

static void a_silent_judge_does_not_keep_a_run(void **state) {
    (void)state;
    leave_silent_judge("lag=0", "reward_concurrency=1", "heard", "silent");
}

/* Nor where it has the items of two steps. */
static void a_judge_of_two_steps_does_not_keep_a_run(void **state) {
    (void)state;
    leave_silent_judge("lag=1", "reward_concurrency=64", "heard-ahead", "silent-ahead");
}

/* A URL's user and password are in nothing that a run leaves or says, and are asked for when it goes on. */
static void credentials_stay_out_of_a_run(void **state) {
    static const char judge[] =
        "reward_command=: http://u:sesame@127.0.0.1/; sed -u -n "
        "'s/^{\"id\":\\(\"[0-9]*\"\\).*/{\"id\":\\1,\"reward\":0.5}/p'";
    static const char *const files[] = {"secret/checkpoints/step-00000001/state.json", "secret/run.sqlite",
                                        "secret/metrics.jsonl"};
    (void)state;
    RUN_OK(GRPO(at("secret"), "--set", judge, "--set", "steps=1"));
    assert_null(strstr(last.err, "sesame"));
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        char *data = file_read(at(files[i]), &bytes);
        if (memmem(data, bytes, "sesame", 6) != NULL) fail_msg("%s holds the password", files[i]);
        free(data);
    }
    RUN("train", "resume", at("secret"), "--set", "steps=2");
    must_refuse("reward_command: user and password of ");
    RUN_OK("train", "resume", at("secret"), "--set", "steps=2", "--set", judge);
    RUN_OK("train", "grpo", "--keys", "--set", "rollout_url=http://a:1,http://u:sesame@b:2");
    assert_null(strstr(last.out, "sesame"));
}

/* What generate would refuse is told where it is trained on. */
static void sequences_beyond_the_positions_are_told(void **state) {
    char line[700];
    int n = snprintf(line, sizeof line, "{\"prompt\":\"");
    (void)state;
    for (int i = 0; i < 260; i++) n += snprintf(line + n, sizeof line - (size_t)n, "%d ", i % 10);
    snprintf(line + n, sizeof line - (size_t)n, "\",\"completion\":\"1\"}\n");
    text_write(at("long.jsonl"), line);
    RUN_OK("train", "sft", "--set", "model=" SORT, "--set", with_path(1, "run=", at("longer")), "--set",
           with_path(0, "data=", at("long.jsonl")), "--set", "steps=1", "--set", "batch=1");
    assert_non_null(strstr(last.err, " tokens, and the model is made for 256 (max_position_embeddings); length"));
    assert_non_null(strstr(last.err, " tokens of which 2 are learnt, the longest "));
    RUN_OK("train", "sft", "--set", "model=" TINY, "--set", with_path(1, "run=", at("shorter")), "--set",
           with_path(0, "data=", at("long.jsonl")), "--set", "steps=1", "--set", "batch=1");
    assert_null(strstr(last.err, "max_position_embeddings"));
}

static void a_schedule_is_kept_or_named(void **state) {
    (void)state;
    RUN_OK(GRPO(at("plan"), "--set", "reward=number", "--set", "steps=2", "--set", "schedule=cosine"));
    RUN(GRPO(at("plan"), "--set", "reward=number", "--set", "steps=4", "--set", "schedule=cosine", "--set",
             "resume=true"));
    must_refuse(
        "options.schedule_steps: was 2 and is 4 now; set it as it was to keep the old schedule, or new_schedule=true");
    RUN_OK("train", "resume", at("plan"), "--set", "steps=3"); /* the old one, at its floor */
    assert_non_null(strstr(last.err, "\n1 of 1 updates have rate 0 and teach nothing: schedule=cosine ends at"));
    RUN("train", "resume", at("plan"), "--set", "steps=4", "--set", "rate=1e-4");
    must_refuse("options.rate: was 1e-5 and is 0.0001 now; set it as it was to keep the old schedule, or new_schedule");
    RUN_OK("train", "resume", at("plan"), "--set", "steps=4", "--set", "rate=1e-4", "--set", "schedule_steps=6",
           "--set", "new_schedule=true");
    {
        json_t *line = line_read(at("plan/metrics.jsonl"), 3);
        const double rate = json_number_value(member(line, "learning_rate"));
        assert_true(rate > 1e-6 && rate < 1e-4);
        json_decref(line);
    }
    RUN_OK("train", "resume", at("plan"), "--set", "steps=6"); /* to the end of that one */
    assert_non_null(strstr(last.err, "\n1 of 2 updates have rate 0"));
    RUN_OK("train", "resume", at("plan"), "--set", "steps=8", "--set", "new_schedule=true"); /* which ends at 8 */
    {
        json_t *line = line_read(at("plan/metrics.jsonl"), 6);
        assert_true(json_number_value(member(line, "learning_rate")) > 1e-6);
        json_decref(line);
    }
    RUN_OK("train", "resume", at("plan"));
    assert_non_null(strstr(last.err, "\nstep 8 of 8 is done; set steps to go further\n"));
    assert_non_null(strstr(last.err, "/plan/checkpoints/step-00000008\n"));
    RUN("inspect", at("plan"));
    must_refuse("a run's checkpoints, which are models; the newest is ");
    must_refuse("/plan/checkpoints/step-00000008");
    RUN("merge", at("plan"), "--out", at("merged"));
    must_refuse("a run's checkpoints");
    RUN("train", "resume", at("plan"), "--set", "temperature=0.5");
    must_refuse("options.temperature: was 1 and is 0.5 now");
    RUN("train", "resume", at("nowhere"));
    must_refuse("run.sqlite: no such file");
    RUN("train", "resume");
    must_exit(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_data_drives_a_run),
        cmocka_unit_test(data_without_sense_is_refused),
        cmocka_unit_test(long_prompts_are_named_or_left_out),
        cmocka_unit_test(judges_get_the_line),
        cmocka_unit_test(supervised_runs_take_the_same_files),
        cmocka_unit_test(stopped_runs_go_on_with_their_bits),
        cmocka_unit_test(a_second_signal_ends_at_once),
        cmocka_unit_test(a_silent_judge_does_not_keep_a_run),
        cmocka_unit_test(a_judge_of_two_steps_does_not_keep_a_run),
        cmocka_unit_test(credentials_stay_out_of_a_run),
        cmocka_unit_test(a_schedule_is_kept_or_named),
        cmocka_unit_test(sequences_beyond_the_positions_are_told),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
