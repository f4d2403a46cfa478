/* A generation that a signal stops keeps what it had finished, says where, and goes on from there with its bits. */
#define _GNU_SOURCE
#include <signal.h>

#include "program.h"

/* Samples of each of two prompts, for some seconds. */
#define N_SAMPLES (SANITIZED ? "40" : "200")
#define GENERATE(out, ...)                                                                                           \
    "generate", "--model", TINY, "--prompts", at("p.jsonl"), "--samples", N_SAMPLES, "--max-tokens", "60", "--seed", \
        "5", "--batch", "1", "--ignore-eos", "--out", out, __VA_ARGS__

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

/* Waits until the program has begun to generate: it says so first. */
static void await_beginning(void) {
    char said[4096] = "";
    for (int i = 0; i < 100000 && strstr(said, "device: ") == NULL; i++) {
        FILE *file = fopen(at("stderr"), "r");
        size_t n;
        usleep(1000);
        if (file == NULL) continue;
        n = fread(said, 1, sizeof said - 1, file);
        said[n] = '\0';
        fclose(file);
    }
}

/* Begins, and is stopped so much later; false where it was done before. */
static bool stop_it(const char *const *args, int number, useconds_t later) {
    pid_t child;
    int status;
    (void)unlink(at("stderr"));
    child = start(args);
    await_beginning();
    usleep(later);
    assert_int_equal(kill(child, number), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    read_back(last.err, at("stderr"));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 4) fail_msg("status %d: %.2000s", status, last.err);
    assert_non_null(strstr(last.err, "--resume goes on from there"));
    assert_int_equal(count_entries(at("out")), 1); /* the partial file, and no temporary one */
    return true;
}

/* Begins, and is stopped when some samples are finished and others are not, however fast the machine is. Returns how
 * many are finished. */
static int64_t stop_between(const char *const *args) {
    for (useconds_t later = 128000;;) {
        assert_true(later > 0 && later < 60000000);
        if (!stop_it(args, SIGINT, later)) {
            assert_int_equal(unlink(at("out/x")), 0);
            later /= 2;
        } else if (count_lines(at("out/x.partial")) > 1) {
            return count_lines(at("out/x.partial")) - 1;
        } else {
            assert_int_equal(unlink(at("out/x.partial")), 0);
            later += later / 2;
        }
    }
}

static void a_stopped_generation_goes_on(void **state) {
    const char *const first[] = {LS_PROGRAM, GENERATE(at("out/x"), NULL)};
    const char *const second[] = {LS_PROGRAM, GENERATE(at("out/x"), "--resume", NULL)};
    int64_t n, m;
    (void)state;
    text_write(at("p.jsonl"), "{\"id\":\"a\",\"prompt\":\"The river runs\"}\n{\"id\":\"b\",\"prompt\":\"12+7=\"}\n");
    RUN_OK(GENERATE(at("whole"), NULL));
    n = stop_between(first);
    assert_int_not_equal(access(at("out/x"), F_OK), 0);
    assert_true(stop_it(second, SIGUSR1, 0));
    m = count_lines(at("out/x.partial")) - 1;
    assert_true(m >= n && m < count_lines(at("whole")));
    RUN(GENERATE(at("out/x"), "--resume", "--temperature", "0.5", NULL));
    must_refuse("x.partial: it is of another generation");
    RUN_OK(GENERATE(at("out/x"), "--resume", NULL));
    assert_non_null(strstr(last.err, "going on behind "));
    assert_int_equal(count_entries(at("out")), 1);
    must_be_same_results(at("out/x"), at("whole"));
    RUN_OK(GENERATE(at("out/x"), "--resume", "--threads", "1", NULL));
    assert_non_null(strstr(last.err, "x.partial is not there: all is generated"));
    must_be_same_results(at("out/x"), at("whole"));
}

static void what_is_no_partial_file_is_refused(void **state) {
    static const char *const wrong[] = {"", "{}", "{\"lockstep_partial\":\"1\",\"done\":[]}\n", "[1]\n"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        text_write(at("out/x.partial"), wrong[i]);
        RUN(GENERATE(at("out/x"), "--resume", NULL));
        must_exit(2);
        assert_non_null(strstr(last.err, "x.partial"));
    }
    assert_int_equal(unlink(at("out/x.partial")), 0);
    RUN("generate", "--model", TINY, "--prompts", at("p.jsonl"), "--resume");
    must_refuse("--resume: --out names no file");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stopped_generation_goes_on),
                                       cmocka_unit_test(what_is_no_partial_file_is_refused)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
