/* `lockstep task` from the outside: lines that the readers of prompts take, ranges that fit together, refusals. */
#define _GNU_SOURCE
#include "program.h"
#include "record/record.h"

static int64_t count_records(const char *path) {
    ls_record *records;
    int64_t n;
    ls_error err;
    assert_ok(ls_records_read(&records, &n, path, LS_RECORD_PROMPT, &err), err);
    ls_records_free(records, n);
    return n;
}

static void prompts_are_what_generate_reads(void **state) {
    static const char *const names[] = {"arithmetic", "reverse-text", "sort-digits", "countdown", "guess-number"};
    (void)state;
    for (int i = 0; i < 5; i++) {
        RUN_OK("task", names[i], "--n", "30", "--out", at("out/prompts"));
        assert_int_equal(count_records(at("out/prompts")), 30);
        RUN_OK("task", names[i], "--n", "30", "--format", "sft", "--split", "held-out", "--out", at("out/sft"));
        assert_true(count_records(at("out/sft")) >= 30);
        assert_string_equal(last.out, "");
    }
    RUN_OK("task", "arithmetic", "--n", "4", "--out", at("out/prompts"));
    RUN_OK("generate", "--model", TINY, "--prompts", at("out/prompts"), "--max-tokens", "2", "--out", at("out/done"));
    assert_int_equal(count_lines(at("out/done")), 4);
}

static void lines_are_as_documented(void **state) {
    (void)state;
    RUN_OK("task", "arithmetic", "--n", "2");
    assert_string_equal(last.out,
                        "{\"id\":\"arithmetic/train/0\",\"prompt\":\"51+2=\"}\n"
                        "{\"id\":\"arithmetic/train/1\",\"prompt\":\"99+54=\"}\n");
    RUN_OK("task", "arithmetic", "--n", "1", "--format", "sft");
    assert_string_equal(last.out, "{\"id\":\"arithmetic/train/0\",\"prompt\":\"51+2=\",\"completion\":\"53\"}\n");
    RUN_OK("task", "guess-number", "--options", "high=3,turns=2", "--n", "1", "--format", "sft", "--seed", "1");
    assert_string_equal(
        last.out,
        "{\"id\":\"guess-number/train/0/0\",\"prompt\":\"guess 1..3, turns 2:\\n\",\"completion\":\"2\"}\n"
        "{\"id\":\"guess-number/train/0/1\",\"prompt\":\"guess 1..3, turns 2:\\n2\\nhigher\\n\","
        "\"completion\":\"3\"}\n");
}

static void completions_are_judged(void **state) {
    (void)state;
    text_write(at("done"),
               "{\"id\":\"arithmetic/train/0/0\",\"logprobs\":[],\"text\":\"53\"}\n"
               "{\"id\":\"arithmetic/train/0/1\",\"logprobs\":[],\"text\":\"35\"}\n"
               "{\"id\":\"arithmetic/train/1\",\"logprobs\":[],\"text\":\"154\"}\n"
               "{\"id\":\"arithmetic/train/2\",\"logprobs\":[],\"text\":\" 107\\nand\"}\n");
    RUN_OK("task", "arithmetic", "--judge", at("done"));
    assert_string_equal(last.out,
                        "{\"id\":\"arithmetic/train/0/0\",\"reward\":1}\n"
                        "{\"id\":\"arithmetic/train/0/1\",\"reward\":0}\n"
                        "{\"id\":\"arithmetic/train/1\",\"reward\":0}\n"
                        "{\"id\":\"arithmetic/train/2\",\"reward\":1}\n");
    assert_string_equal(last.err,
                        "4 completions of 3 problems: mean reward 0.5000, mean of the problems' best 0.6667\n");
    RUN("task", "countdown", "--judge", at("done"));
    must_refuse("line 1|arithmetic/train/0/0|countdown");
    text_write(at("done"), "{\"id\":\"arithmetic/train/0\",\"logprobs\":[]}\n");
    RUN("task", "arithmetic", "--judge", at("done"));
    must_refuse("line 1|no text");
}

static void ranges_fit_together(void **state) {
    size_t bytes;
    char *whole;
    (void)state;
    RUN_OK("task", "countdown", "--n", "20", "--seed", "18446744073709551615", "--out", at("out/whole"));
    RUN_OK("task", "countdown", "--n", "12", "--from", "8", "--seed", "18446744073709551615");
    whole = file_read(at("out/whole"), &bytes);
    assert_non_null(strstr(whole, last.out));
    free(whole);
}

static void tasks_are_listed(void **state) {
    (void)state;
    RUN_OK("task", "--list");
    assert_non_null(strstr(last.out, "countdown: make 24 from"));
    assert_non_null(strstr(last.out, "    turns=1..64 (7): guesses, at most\n"));
    RUN("task");
    must_exit(1);
    assert_non_null(strstr(last.err, "NAME is missing"));
    RUN("task", "arithmetic", "countdown");
    must_exit(1);
}

static void bad_values_are_refused(void **state) {
    (void)state;
    RUN_OK("task", "arithmetic", "--n", "1"); /* what the others change */
    RUN("task", "nothing");
    must_refuse("'nothing' is not a task");
    RUN("task", "arithmetic", "--options", "digits=0");
    must_refuse("digits|'0'|1..9");
    RUN("task", "arithmetic", "--split", "test");
    must_refuse("--split|'test'");
    RUN("task", "arithmetic", "--format", "text");
    must_refuse("--format|'text'");
    RUN("task", "arithmetic", "--n", "0");
    must_refuse("--n|0");
    RUN("task", "arithmetic", "--seed", "-1");
    must_refuse("--seed|'-1'");
    RUN("task", "arithmetic", "--n", "1", "--out", at("nowhere/file"));
    must_refuse("nowhere/file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_what_generate_reads),
        cmocka_unit_test(lines_are_as_documented),
        cmocka_unit_test(completions_are_judged),
        cmocka_unit_test(ranges_fit_together),
        cmocka_unit_test(tasks_are_listed),
        cmocka_unit_test(bad_values_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
