/* lockstep sweep as a user runs it: reports that are whole or absent, exit codes, refusals. */
#define _GNU_SOURCE
#include "program.h"

#define MODEL LS_FIXTURES "/jamba-nobias"
#define SWEEP "sweep", "--model", MODEL, "--threads", "1"

static json_t *parse(const char *text) {
    json_t *value = json_loads(text, 0, NULL);
    if (value == NULL) fail_msg("no JSON: %.500s", text);
    return value;
}

static void this_program_has_no_difference(void **state) {
    size_t bytes;
    char *page, *repro;
    json_t *report;
    (void)state;
    RUN_OK(SWEEP, "--html", at("out/report.html"), "--repro", at("out/repro.jsonl"));
    assert_non_null(strstr(last.out, "no difference: "));
    assert_non_null(strstr(last.out, ", 0 differing bits"));
    assert_int_equal(strncmp(last.err, "device: ", 8), 0);
    assert_string_equal(strchr(last.err, '\n'), "\n"); /* and nothing else */
    page = file_read(at("out/report.html"), &bytes);
    assert_non_null(strstr(page, "No difference."));
    assert_non_null(strstr(page, "</html>"));
    assert_null(strstr(page, "<script"));
    free(page);
    repro = file_read(at("out/repro.jsonl"), &bytes);
    assert_int_equal(bytes, 0);
    free(repro);
    unlink(at("out/report.html"));
    unlink(at("out/repro.jsonl"));

    RUN_OK(SWEEP, "--json", "--dtype", "bf16", "--seed", "3", "--out", at("out/report.json"));
    repro = file_read(at("out/report.json"), &bytes);
    report = parse(repro);
    assert_true(json_is_false(member(report, "different")));
    assert_true(json_is_null(member(report, "cause")));
    assert_int_equal(int_member(report, "differing_bits"), 0);
    assert_true(json_array_size(member(report, "experiments")) > 30);
    json_decref(report);
    free(repro);
    unlink(at("out/report.json"));
}

static void another_build_can_be_the_suspect(void **state) {
    json_t *report;
    (void)state;
    RUN_OK(SWEEP, "--suspect", LS_PROGRAM, "--suspect-arg", "--json", "--json");
    report = parse(last.out);
    assert_true(json_is_false(member(report, "different")));
    json_decref(report);
    /* Its own mistake: an option twice is the last one, so this one draws from another seed than it is told to. What it
     * records agrees with the trainer all the same. */
    RUN_OK(SWEEP, "--suspect", LS_PROGRAM, "--suspect-arg", "--seed", "--suspect-arg", "9");
    /* And this one answers in other activations than the trainer's. */
    RUN(SWEEP, "--suspect", LS_PROGRAM, "--suspect-arg", "--dtype", "--suspect-arg", "bf16", "--json");
    must_exit(3);
    report = parse(last.out);
    assert_true(json_is_true(member(report, "different")));
    assert_int_equal(json_array_size(member(report, "repro")), 1);
    json_decref(report);
}

static void prompts_may_be_given(void **state) {
    (void)state;
    text_write(at("prompts.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[7]}\n{\"id\":\"b\",\"prompt_ids\":[1,2,3]}\n");
    RUN_OK(SWEEP, "--prompts", at("prompts.jsonl"), "--samples", "3", "--max-tokens", "4");
    text_write(at("one.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[7]}\n");
    RUN_OK(SWEEP, "--prompts", at("one.jsonl"), "--slots", "100", "--slot-words", "1600");
}

static void what_cannot_be_done_is_refused(void **state) {
    (void)state;
    RUN("sweep");
    must_exit(1);
    RUN(SWEEP, "--suspect-arg", "x");
    must_exit(1);
    RUN(SWEEP, "left", "over");
    must_exit(1);
    RUN(SWEEP, "--slots", "1", "--out", at("out/x"));
    must_refuse_without_output("--slots|1");
    RUN(SWEEP, "--slot-words", "17", "--out", at("out/x"));
    must_refuse_without_output("--slot-words|17|multiple of 16");
    RUN(SWEEP, "--dtype", "f64", "--out", at("out/x"));
    must_refuse_without_output("--dtype|f64");
    RUN(SWEEP, "--isa", "vax", "--out", at("out/x"));
    must_refuse_without_output("--isa|vax");
    RUN(SWEEP, "--prompts", at("missing"), "--out", at("out/x"));
    must_refuse_without_output("missing");
    RUN("sweep", "--model", at("missing"), "--out", at("out/x"), "--html", at("out/y"), "--repro", at("out/z"));
    must_refuse_without_output("missing");
    RUN(SWEEP, "--html", at("nowhere/x"), "--out", at("out/x"));
    must_refuse_without_output("nowhere");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_program_has_no_difference),
        cmocka_unit_test(another_build_can_be_the_suspect),
        cmocka_unit_test(prompts_may_be_given),
        cmocka_unit_test(what_cannot_be_done_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
