/* The program in surroundings that are against it: modes, pipes, limits, signals, readers that go away, tokenizers that
 * know less than the model, options that are almost right. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>

#include "program.h"

#define NOBIAS LS_FIXTURES "/jamba-nobias"
#define PROMPTS TINY "/prompts.jsonl"

/* ---- the floating-point mode ---- */

static void a_preloaded_library_moves_no_bit(void **state) {
    const char *const args[] = {"generate",     "--model", TINY,        "--prompts", PROMPTS,
                                "--max-tokens", "8",       "--threads", "2"};
    (void)state;
    RUN_OK(args[0], args[1], args[2], args[3], args[4], args[5], args[6], args[7], args[8], "--out", at("plain"));
    assert_int_equal(setenv("LD_PRELOAD", LS_FLUSH_TO_ZERO, 1), 0);
    assert_int_equal(setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1), 0);
    RUN(args[0], args[1], args[2], args[3], args[4], args[5], args[6], args[7], args[8], "--out", at("flushed"));
    assert_int_equal(unsetenv("LD_PRELOAD"), 0);
    assert_int_equal(unsetenv("ASAN_OPTIONS"), 0);
    must_exit(0);
    must_be_same_results(at("plain"), at("flushed"));
}

/* ---- pipes in the place of files ---- */

static const char *pipe_at(const char *name) {
    const char *path = at(name);
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    return path;
}

/* Each of these would wait for ever; a test that hangs is ended by its runner. */
static void named_pipes_are_refused(void **state) {
    const char *pipe_path = pipe_at("pipe");
    char set[PATH_BYTES + 8] = "data=";
    (void)state;
    RUN("generate", "--model", TINY, "--prompts", pipe_path, "--out", at("out/x"));
    must_refuse_without_output("a named pipe, not a file");
    RUN("score", "--model", TINY, "--rollouts", pipe_path, "--out", at("out/x"));
    must_refuse_without_output("a named pipe");
    RUN("compare", pipe_path, pipe_path);
    must_refuse("a named pipe");
    RUN("correct", "--dump", pipe_path, "--format", "prime-rl", "--correction", "none");
    must_refuse("a named pipe");
    RUN("train", "grpo", "--config", pipe_path);
    must_refuse("not a regular file");
    RUN("generate", "--model", TINY, "--prompts", PROMPTS, "--out", pipe_path);
    must_refuse("that nobody reads");
    assert_true(strlen(pipe_path) < PATH_BYTES);
    memcpy(set + 5, pipe_path, strlen(pipe_path) + 1);
    RUN("train", "sft", "--set", "model=" TINY, "--set", "run=/tmp/lockstep-test-none", "--set", set, "--set",
        "steps=1");
    must_refuse("named pipe");
    (void)rmdir("/tmp/lockstep-test-none/checkpoints");
    (void)rmdir("/tmp/lockstep-test-none");
    assert_int_equal(mkdir(at("piped"), 0777), 0);
    (void)pipe_at("piped/config.json");
    RUN("inspect", "--model", at("piped"));
    must_refuse("config.json|not a regular file");
    (void)pipe_at("piped/tokenizer.json");
    RUN("tokenize", "--model", at("piped"));
    must_refuse("tokenizer.json|not a regular file");
    (void)pipe_at("piped/run.sqlite");
    RUN("report", at("piped"));
    must_refuse("run.sqlite");
}

/* A descriptor that is open already is read, pipe or not. */
static void open_descriptors_are_read(void **state) {
    (void)state;
    RUN_IN(PROMPTS, "generate", "--model", TINY, "--prompts", "/dev/stdin", "--max-tokens", "1", "--out", at("stdin"));
    must_exit(0);
    assert_int_equal(count_lines(at("stdin")), count_lines(PROMPTS));
}

/* ---- limits and signals ---- */

static void a_file_that_may_not_grow_leaves_nothing(void **state) {
    struct rlimit before, small;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 65536;
    signal(SIGXFSZ, SIG_DFL); /* as a shell has it; ignoring would be inherited */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    RUN("task", "arithmetic", "--n", "100000", "--out", at("out/x"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    must_refuse_without_output("File too large");
}

/* Waits until the output grows under its temporary name, then sends the signal. */
static void signal_while_writing(int number) {
    const char *const args[] = {LS_PROGRAM, "task", "arithmetic", "--n", "1000000000", "--out", at("out/x"), NULL};
    union {
        const char *const *in;
        char *const *out;
    } passed = {args};
    const pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (child == 0) {
        execv(LS_PROGRAM, passed.out);
        _exit(127);
    }
    while (count_entries(at("out")) == 0) usleep(1000);
    usleep(20000);
    assert_int_equal(kill(child, number), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == number);
    assert_int_equal(count_entries(at("out")), 0);
}

static void signals_leave_no_temporary_file(void **state) {
    (void)state;
    static const int numbers[] = {SIGTERM, SIGHUP,  SIGINT,  SIGQUIT,   SIGUSR1, SIGUSR2,
                                  SIGXCPU, SIGALRM, SIGPROF, SIGVTALRM, SIGPOLL};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) signal_while_writing(numbers[i]);
}

/* A shell may leave a program 128 KiB of stack; nothing depends on it. */
static void a_small_stack_is_enough(void **state) {
#ifdef LS_SANITIZED
    (void)state;
    print_message("skipped: a sanitizer's own start takes more stack\n");
    skip();
#else
    struct rlimit before, small;
    char config[4 * PATH_BYTES];
    (void)state;
    text_write(at("small.jsonl"), "{\"prompt\":\"The cat\",\"completion\":\" sat on the mat.\"}\n");
    snprintf(config, sizeof config,
             "{\"model\":\"%s\",\"run\":\"%.500s\",\"data\":\"%.500s\",\"batch\":1,\"steps\":2,\"rate\":1e-3}", TINY,
             at("small-run"), at("small.jsonl"));
    text_write(at("small.json"), config);
    assert_int_equal(getrlimit(RLIMIT_STACK, &before), 0);
    small = before;
    small.rlim_cur = 131072;
    assert_int_equal(setrlimit(RLIMIT_STACK, &small), 0);
    RUN("check", "--model", TINY, "--max-tokens", "4");
    if (last.code == 0) RUN("train", "sft", "--config", at("small.json"));
    assert_int_equal(setrlimit(RLIMIT_STACK, &before), 0);
    must_exit(0);
#endif
}

/* An output without a reader ends at once: these would go on for hours. */
static void a_reader_that_goes_away_is_noticed(void **state) {
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    RUN_TO(ends[1], "task", "arithmetic", "--n", "4294967296");
    close(ends[1]);
    must_refuse("standard output|Broken pipe");
}

static void lost_help_is_an_error(void **state) {
    static const char *const commands[] = {"generate", "score",   "check", "compare", "sweep",    "correct",
                                           "report",   "inspect", "init",  "task",    "tokenize", "detokenize"};
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    (void)state;
    assert_true(full >= 0);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        RUN_TO(full, commands[i], "--help");
        must_refuse("standard output: cannot write: No space left on device");
    }
    RUN_TO(full, "train", "grpo", "--help");
    must_refuse("standard output");
    RUN_TO(full, "train", "grpo", "--keys");
    must_refuse("standard output");
    close(full);
}

/* ---- tokenizers ---- */

/* A model of 512 ids whose tokenizer knows two. */
static void make_padded(const char *type) {
    static const char *const names[] = {"config.json", "generation_config.json", "model.safetensors"};
    char text[512];
    (void)mkdir(at("padded"), 0777);
    for (int i = 0; i < 3; i++) {
        char from[PATH_BYTES], to[40];
        size_t bytes;
        char *data;
        snprintf(from, sizeof from, TINY "/%s", names[i]);
        snprintf(to, sizeof to, "padded/%.30s", names[i]);
        data = file_read(from, &bytes);
        file_write(at(to), data, bytes);
        free(data);
    }
    snprintf(text, sizeof text,
             "{\"model\":{\"type\":\"%s\",\"vocab\":{\"a\":0,\"b\":1}%s},\"decoder\":{\"type\":\"Fuse\"}}", type,
             strcmp(type, "BPE") == 0 ? ",\"merges\":[]" : ",\"unk_token\":\"a\"");
    text_write(at("padded/tokenizer.json"), text);
    text_write(at("ids"), "{\"id\":1,\"prompt_ids\":[5,6]}\n{\"id\":\"2\",\"prompt_ids\":[7]}\n");
}

static void ids_beyond_the_tokenizer_have_no_text(void **state) {
    json_t *record;
    (void)state;
    make_padded("BPE");
    RUN_OK("generate", "--model", at("padded"), "--prompts", at("ids"), "--ignore-eos", "--max-tokens", "5", "--out",
           at("records"));
    assert_int_equal(count_lines(at("records")), 2);
    record = line_read(at("records"), 0);
    assert_string_equal(text_member(record, "id"), "1/0");
    assert_int_equal(json_array_size(member(record, "completion_ids")), 5);
    assert_true(strlen(text_member(record, "text")) < 5);
    json_decref(record);
}

static void other_tokenizers_are_refused_where_text_is_needed(void **state) {
    json_t *record;
    (void)state;
    make_padded("WordPiece");
    RUN_OK("generate", "--model", at("padded"), "--prompts", at("ids"), "--max-tokens", "2", "--out", at("records"));
    if (strstr(last.err, "records will have no text") == NULL) fail_msg("not said: %s", last.err);
    record = line_read(at("records"), 0);
    assert_null(json_object_get(record, "text"));
    json_decref(record);
    RUN("generate", "--model", at("padded"), "--prompts", PROMPTS);
    must_refuse("model.type: the model 'WordPiece' is not supported");
    RUN("generate", "--model", at("padded"), "--prompts", at("ids"), "--stop", "a");
    must_refuse("WordPiece");
}

/* ---- names that are almost right ---- */

/* Exit code 1 and the words on standard error. */
static void must_be_usage(const char *words) {
    must_exit(1);
    if (strstr(last.err, words) == NULL) fail_msg("the message does not say '%s': %.2000s", words, last.err);
}

static void beginnings_of_names_are_no_names(void **state) {
    (void)state;
    RUN("generate", "--model", TINY, "--prompt", PROMPTS);
    must_be_usage("--prompt is no option of this command; did you mean --prompts?");
    RUN("generate", "--model", TINY, "--prompts", PROMPTS, "--max-token=4");
    must_be_usage("did you mean --max-tokens?");
    RUN("report", "--otu", "x", "y");
    must_be_usage("did you mean --out?");
    RUN("genrate");
    must_be_usage("'genrate' is not a command; did you mean generate?");
    RUN("train", "grpo", "--set", "max_token=3");
    must_refuse("'max_token' is no option of this run; did you mean max_tokens?");
    text_write(at("config"), "{\"sampels\":3}");
    RUN("train", "grpo", "--config", at("config"));
    must_refuse("sampels: is no option of this run; did you mean samples?");
    /* A value may look like an option. */
    RUN("generate", "--model", "--prompts", "--prompts", PROMPTS);
    must_refuse("--prompts/config.json");
}

static void errors_name_the_option_that_was_given(void **state) {
    (void)state;
    RUN("generate", "--model", TINY, "--prompts", PROMPTS, "--slot-base", "99");
    must_refuse("lockstep: --slot-base: 99 is none of the");
    RUN("generate", "--model", TINY, "--prompts", PROMPTS, "--prefix", "on", "--prefix-memory", "9000000G");
    must_refuse("lockstep: --prefix-memory: |snapshots");
}

/* What was given may be any bytes; what is said is UTF-8 without controls. */
static void messages_are_clean(void **state) {
    static const char *const odd[] = {"\xff\xfe", "a\xc3",
                                      "\xc2\x9b"
                                      "31m",
                                      "\x1b[2J", "\xed\xa0\x80"};
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        char option[64];
        RUN("inspect", "--model", odd[i]);
        must_exit(2);
        for (int k = 0; k < 4; k++) {
            if (k == 1) RUN(odd[i]);
            if (k == 2) RUN("compare", "a", "b", odd[i]);
            snprintf(option, sizeof option, "--%s", odd[i]);
            if (k == 3) RUN("generate", option);
            if (k > 0) must_exit(1);
            for (const unsigned char *c = (const unsigned char *)last.err; *c != '\0'; c++)
                if ((*c < 32 && *c != '\n') || *c >= 127) fail_msg("byte %02x in: %s", *c, last.err);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_preloaded_library_moves_no_bit),
        cmocka_unit_test(named_pipes_are_refused),
        cmocka_unit_test(open_descriptors_are_read),
        cmocka_unit_test(a_file_that_may_not_grow_leaves_nothing),
        cmocka_unit_test(signals_leave_no_temporary_file),
        cmocka_unit_test(a_small_stack_is_enough),
        cmocka_unit_test(a_reader_that_goes_away_is_noticed),
        cmocka_unit_test(lost_help_is_an_error),
        cmocka_unit_test(ids_beyond_the_tokenizer_have_no_text),
        cmocka_unit_test(other_tokenizers_are_refused_where_text_is_needed),
        cmocka_unit_test(beginnings_of_names_are_no_names),
        cmocka_unit_test(errors_name_the_option_that_was_given),
        cmocka_unit_test(messages_are_clean),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
