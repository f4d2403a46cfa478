/* The ways in: the first page, -h of every command, examples that run, keys by subject, numbers as they were given, and
 * the line of progress, which is for terminals alone. */
#define _GNU_SOURCE
#include <pty.h>
#include <time.h>

#include "program.h"

static const char *const commands[] = {"check",        "generate",     "score",  "compare", "train plan", "train grpo",
                                       "train resume", "train sft",    "report", "merge",   "sweep",      "correct",
                                       "audit",        "inspect",      "init",   "task",    "chat",       "tokenize",
                                       "detokenize",   "train replay", "serve",  "probe"};
enum {
    N_COMMANDS = sizeof commands / sizeof commands[0],
    N_RUN = N_COMMANDS - 3 /* the last need a server or a fault */
};

/* lockstep with the command's words and one more. */
static void run_words(const char *command, const char *word) {
    char text[64], *space;
    snprintf(text, sizeof text, "%s", command);
    space = strchr(text, ' ');
    if (space != NULL) *space = '\0';
    run_args(NULL, -1,
             (const char *const[]){text, space != NULL ? space + 1 : word, space != NULL ? word : NULL, NULL});
}

static void short_help_is_help(void **state) {
    static char whole[OUTPUT_BYTES];
    (void)state;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        run_words(commands[i], "--help");
        must_exit(0);
        memcpy(whole, last.out, sizeof whole);
        run_words(commands[i], "-h");
        if (last.code != 0 || strcmp(whole, last.out) != 0) fail_msg("%s -h: %.200s", commands[i], last.err);
    }
    RUN_OK("--help");
    memcpy(whole, last.out, sizeof whole);
    RUN_OK("-h");
    assert_string_equal(last.out, whole);
    run_args(NULL, -1, (const char *const[]){NULL});
    must_exit(1);
    assert_string_equal(last.err, whole);
    RUN_OK("help", "merge");
    assert_non_null(strstr(last.out, "lockstep merge "));
    RUN_OK("train", "-h");
    assert_non_null(strstr(last.out, "lockstep train grpo "));
}

/* Five commands stand first, each with a line to type. */
static void the_first_page_leads(void **state) {
    static const char *const first[] = {"check", "generate", "train", "serve", "probe"};
    const char *at;
    (void)state;
    RUN_OK("--help");
    at = last.out;
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
        char row[32], line[64];
        snprintf(row, sizeof row, "\n  %s ", first[i]);
        snprintf(line, sizeof line, "\n              lockstep %s ", first[i]);
        if ((at = strstr(at, row)) == NULL || (at = strstr(at, line)) == NULL) fail_msg("%s does not lead", first[i]);
    }
    assert_non_null(strstr(at, "\n  score "));
}

/* The examples of a command's --help as a script. */
static void write_examples(const char *command) {
    const char *begin;
    run_words(command, "--help");
    must_exit(0);
    begin = strstr(last.out, "\nExamples:\n  ");
    if (begin == NULL) fail_msg("%s --help has no examples", command);
    if (strstr(begin, command) == NULL) fail_msg("the examples of %s are of another command", command);
    text_write(at("example.sh"), strchr(begin + 1, '\n') + 1);
}

static void examples_run(void **state) {
    char line[4 * PATH_BYTES];
    (void)state;
    snprintf(line, sizeof line, "cd %s && mkdir bin && ln -s %s bin/lockstep && ln -s %s/models %s/tests .", scratch,
             LS_PROGRAM, LS_SOURCE_DIR, LS_SOURCE_DIR);
    assert_int_equal(system(line), 0);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        int code;
        write_examples(commands[i]);
        if (i >= N_RUN) continue;
        snprintf(line, sizeof line, "cd %s && PATH=$PWD/bin:$PATH sh -e example.sh > example.out 2> example.err",
                 scratch);
        code = system(line);
        code = WIFEXITED(code) ? WEXITSTATUS(code) : 1000;
        if (code != (strcmp(commands[i], "audit") == 0 ? 3 : 0)) {
            size_t n;
            fail_msg("the example of %s: exit code %d: %.1000s", commands[i], code, file_read(at("example.err"), &n));
        }
    }
    print_message("train replay, serve and probe: their examples need a bundle or a server and were not run\n");
}

/* Every key stands once, under a subject, and the required ones first. */
static void keys_have_subjects(void **state) {
    static const char *const kinds[] = {"grpo", "sft"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        char name[64];
        RUN_OK("train", kinds[k], "--keys", "--set", "rate=1e-6", "--set", "decay=0.1");
        assert_int_equal(strncmp(last.out, "Required\n  model ", 17), 0);
        assert_null(strstr(last.out, "\nOthers\n"));
        assert_non_null(strstr(last.out, "\nLearning rate and optimizer\n"));
        assert_non_null(strstr(last.out, "\n  rate                    1e-6  "));
        assert_non_null(strstr(last.out, "\n  decay                   0.1  "));
        for (const char *row = strstr(last.out, "\n  "); row != NULL; row = strstr(row + 1, "\n  ")) {
            assert_int_equal(sscanf(row, " %60s", name + 3), 1);
            memcpy(name, "\n  ", 3);
            strcat(name, " ");
            if (strstr(strstr(last.out, name) + 1, name) != NULL) fail_msg("%s stands twice", name);
        }
    }
}

static void numbers_are_as_given(void **state) {
    json_t *record, *meta;
    (void)state;
    RUN_OK("generate", "--model", TINY, "--prompts", TINY "/prompts.jsonl", "--max-tokens", "1", "--temperature", "0.7",
           "--top-p", "0.95", "--min-p", "1e-6", "--out", at("numbers.jsonl"));
    record = line_read(at("numbers.jsonl"), 0);
    meta = member(record, "meta");
    assert_true(json_number_value(member(meta, "temperature")) == 0.7);
    assert_true(json_number_value(member(meta, "top_p")) == 0.95);
    assert_true(json_number_value(member(meta, "min_p")) == 1e-6);
    json_decref(record);
    RUN_OK("inspect", "--json", TINY);
    assert_non_null(strstr(last.out, "\"rms_eps\":1e-6,"));
    RUN_OK("inspect", TINY);
    assert_non_null(strstr(last.out, "rms eps 1e-6\n"));
}

/* A name of a hub where a path is wanted. */
static void hub_names_are_told(void **state) {
    static const char line[] =
        "no hub is reached: `hf download Nobody/Model-0.6B --local-dir Nobody/Model-0.6B` brings it";
    char run[2 * PATH_BYTES];
    (void)state;
    RUN("check", "--model", "Nobody/Model-0.6B");
    must_refuse(line);
    RUN("tokenize", "--model", "Nobody/Model-0.6B");
    must_refuse(line);
    RUN("chat", "--model", "Nobody/Model-0.6B");
    must_refuse(line);
    RUN("serve", "--model", "Nobody/Model-0.6B", "--port", "0");
    must_refuse(line);
    RUN("merge", "Nobody/Model-0.6B", "--out", at("out"));
    must_refuse("exists already");
    RUN("merge", "Nobody/Model-0.6B", "--out", at("of-hub"));
    must_refuse(line);
    snprintf(run, sizeof run, "run=%.*s", PATH_BYTES, at("never-run"));
    RUN("train", "sft", "--set", "model=Nobody/Model-0.6B", "--set", run, "--set", "data=x.jsonl");
    must_refuse(line);
    RUN("generate", "--model", TINY, "--prompts", "nobody/problems");
    must_refuse("hf download nobody/problems|--repo-type dataset");
    RUN("generate", "--model", TINY, "--prompts", "nobody/problems.jsonl");
    must_refuse("nobody/problems.jsonl: cannot open");
    assert_null(strstr(last.err, "hub"));
    RUN("inspect", at("nothing/here"));
    must_refuse("cannot open");
    assert_null(strstr(last.err, "hub"));
}

/* ---- progress ---- */

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs the program on a terminal of its own; returns what that showed, to be freed, and how long it took. */
static char *run_on_terminal(const char *const *args, int code, double *seconds) {
    const char *argv[40] = {LS_PROGRAM};
    char *text = calloc(1, OUTPUT_BYTES);
    size_t n = 0;
    ssize_t got;
    int terminal, status, k = 0;
    pid_t child;
    assert_non_null(text);
    for (; args[k] != NULL; k++) argv[k + 1] = args[k];
    *seconds = seconds_now();
    child = forkpty(&terminal, NULL, NULL, NULL);
    assert_true(child >= 0);
    if (child == 0) {
        union {
            const char **in;
            char *const *out;
        } passed = {argv};
        execv(LS_PROGRAM, passed.out);
        _exit(127);
    }
    while (n + 1 < OUTPUT_BYTES && (got = read(terminal, text + n, OUTPUT_BYTES - 1 - n)) > 0) n += (size_t)got;
    assert_int_equal(waitpid(child, &status, 0), child);
    close(terminal);
    *seconds = seconds_now() - *seconds;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code) fail_msg("on a terminal: %.1000s", text);
    return text;
}

static void progress_is_for_terminals(void **state) {
    double seconds = 0;
    char *text = NULL, samples[16] = "4";
    (void)state;
    for (int64_t n = 2; text == NULL || strstr(text, " sequences, ") == NULL; n *= 2) { /* until it takes its time */
        assert_true(n < 1 << 20);
        free(text);
        snprintf(samples, sizeof samples, "%lld", (long long)n);
        text = run_on_terminal((const char *const[]){"check", "--model", TINY, "--threads", "1", "--isa", "generic",
                                                     "--samples", samples, NULL},
                               0, &seconds);
        if (seconds < 1.9) assert_null(strstr(text, "\r\033[K")); /* nothing that is over at once has a line */
    }
    assert_non_null(strstr(text, " of "));
    assert_true(strstr(text, "generating: ") != NULL || strstr(text, "scoring: ") != NULL);
    free(text);
    /* As long a run on no terminal, whose lines a file would keep. */
    RUN_OK("check", "--model", TINY, "--threads", "1", "--isa", "generic", "--samples", samples);
    assert_null(strchr(last.err, '\r'));
    assert_null(strstr(last.err, " sequences, "));
}

/* A program that sleeps when it is run for the first time, and then does what the words say. */
static const char *write_sleeper(const char *name, const char *words) {
    static char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s", at(name));
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n[ -e %s.slept ] || { : > %s.slept; sleep 2.4; }\n%s\n", path, path, words);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0755), 0);
    return path;
}

/* Also while the first experiment or file takes its time: what is done, and of how much. */
static void progress_of_diagnosis(void **state) {
    FILE *file;
    char *text;
    double seconds;
    (void)state;
    text = run_on_terminal(
        (const char *const[]){"sweep", "--model", TINY, "--suspect", write_sleeper("suspect", "exit 1"), NULL}, 2,
        &seconds);
    if (strstr(text, "trying: 0 of 39 experiments, the prompts as given") == NULL) fail_msg("%.2000s", text);
    free(text);
    setenv("LOCKSTEP_CUOBJDUMP", write_sleeper("cuobjdump", "exec cat " LS_SOURCE_DIR "/tests/audit/corpus/newer.ptx"),
           1);
    file = fopen(at("k.so"), "w");
    assert_non_null(file);
    fputs("\177ELF", file);
    assert_int_equal(fclose(file), 0);
    text = run_on_terminal(
        (const char *const[]){"audit", LS_SOURCE_DIR "/tests/audit/corpus/newer.ptx", at("k.so"), NULL}, 3, &seconds);
    unsetenv("LOCKSTEP_CUOBJDUMP");
    if (strstr(text, " kernels, ") == NULL || strstr(text, "/s, file 2 of 2: k.so") == NULL) fail_msg("%.2000s", text);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_help_is_help),
        cmocka_unit_test(the_first_page_leads),
        cmocka_unit_test(examples_run),
        cmocka_unit_test(keys_have_subjects),
        cmocka_unit_test(numbers_are_as_given),
        cmocka_unit_test(hub_names_are_told),
        cmocka_unit_test(progress_is_for_terminals),
        cmocka_unit_test(progress_of_diagnosis),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
