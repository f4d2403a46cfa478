/* --device and --against as a user gives them: which device it is stands on the first line of standard error; names and
 * devices that are not there are refused; bits and reports are those of any device. */
#define _GNU_SOURCE
#include "dev/workers.h"
#include "program.h"

#define MODEL LS_FIXTURES "/jamba-nobias"
#define PROMPTS TINY "/prompts.jsonl"

static void first_line_is(const char *text) {
    if (strncmp(last.err, text, strlen(text)) != 0 || last.err[strlen(text)] != '\n')
        fail_msg("the first line is not '%s': %.500s", text, last.err);
}

static bool has_gpu(void) {
    RUN("check", "--model", MODEL, "--device", "cuda", "--max-tokens", "1");
    return last.code == 0;
}

static void the_first_line_names_the_device(void **state) {
    char line[64];
    (void)state;
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--max-tokens", "2", "--device", "cpu", "--isa",
           "generic", "--threads", "2", "--out", at("rollouts"));
    first_line_is("device: cpu, generic, 2 threads; profile exact");
    RUN_OK("score", "--model", TINY, "--rollouts", at("rollouts"), "--device", "cpu", "--isa", "generic", "--threads",
           "1", "--out", at("scored"));
    first_line_is("device: cpu, generic, 1 thread; profile exact");
    RUN_OK("compare", at("rollouts"), at("scored"));
    RUN_OK("check", "--model", MODEL, "--max-tokens", "2", "--device", "cpu", "--isa", "generic", "--threads", "3");
    first_line_is("device: cpu, generic, 3 threads; profile exact");
    assert_non_null(strstr(last.out, " scored (generic, 3 threads)\n"));
    RUN_OK("sweep", "--model", MODEL, "--device", "cpu", "--threads", "1");
    snprintf(line, sizeof line, "device: cpu, %s, 1 thread; profile exact\n", ls_isa_name(ls_isa_best()));
    assert_string_equal(last.err, line);
    RUN_OK("check", "--model", MODEL, "--max-tokens", "2");
    assert_int_equal(strncmp(last.err, "device: ", 8), 0);
    unlink(at("rollouts"));
    unlink(at("scored"));
}

static void names_are_checked_first(void **state) {
    static const char *const names[] = {"gpu", "", "cuda:", "cuda:-1", "CPU"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        RUN("generate", "--model", "/nowhere", "--prompts", "/nowhere", "--device", names[i]);
        must_refuse("--device|is none of auto, cpu, cuda and cuda:N");
        RUN("sweep", "--model", "/nowhere", "--device", names[i]);
        must_refuse("--device|is none of");
        RUN("train", "replay", "/nowhere", "--device", names[i]);
        must_refuse("--device|is none of");
        RUN("check", "--model", "/nowhere", "--against", names[i]);
        must_refuse("--against|is none of");
    }
    RUN("check", "--model", "/nowhere", "--against", "auto");
    must_refuse("--against|auto");
    RUN("score", "--model", TINY, "--tokens", "/nowhere", "--against", "cpu");
    must_exit(1);
}

static void commands_that_compute_nothing_have_none(void **state) {
    static const char *const commands[] = {"compare", "inspect", "init", "report", "correct", "tokenize"};
    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        RUN(commands[i], "--device", "cpu");
        must_exit(1);
        assert_non_null(strstr(last.err, "--device is no option of this command"));
    }
}

static void a_gpu_that_is_not_there_is_one_sentence(void **state) {
    const char *name = has_gpu() ? "cuda:9999" : "cuda";
    (void)state;
    RUN("generate", "--model", TINY, "--prompts", PROMPTS, "--device", name, "--out", at("out/records"));
    must_refuse_without_output("cuda");
    RUN("score", "--model", TINY, "--tokens", PROMPTS, "--device", name);
    must_refuse("cuda");
    RUN("check", "--model", TINY, "--device", name);
    must_refuse("cuda");
    RUN("check", "--model", TINY, "--device", "cpu", "--against", name);
    must_refuse("cuda");
    RUN("sweep", "--model", MODEL, "--device", name);
    must_refuse("cuda");
}

/* Timing the calls of a run changes nothing of what it writes. */
static void ticks_are_told_by_kind_of_call(void **state) {
    size_t plain_bytes, timed_bytes;
    char *plain, *timed;
    (void)state;
    text_write(at("one"), "{\"id\":\"a\",\"prompt_ids\":[1,2,3]}\n");
    RUN_OK("generate", "--model", MODEL, "--prompts", at("one"), "--max-tokens", "5", "--device", "cpu", "--out",
           at("plain"));
    assert_null(strstr(last.err, "calls of a tick"));
    RUN_OK("generate", "--model", MODEL, "--prompts", at("one"), "--max-tokens", "5", "--device", "cpu", "--out",
           at("timed"), "--profile-ticks");
    assert_non_null(strstr(last.err, "calls of a tick"));
    assert_non_null(strstr(last.err, "\nscan "));
    assert_non_null(strstr(last.err, "\nticks "));
    plain = file_read(at("plain"), &plain_bytes);
    timed = file_read(at("timed"), &timed_bytes);
    assert_int_equal(timed_bytes, plain_bytes);
    assert_memory_equal(timed, plain, plain_bytes);
    free(timed);
    free(plain);
    unlink(at("one"));
    unlink(at("plain"));
    unlink(at("timed"));
}

static json_t *check_as_json(const char *against) {
    json_t *report;
    if (against == NULL)
        RUN_OK("check", "--model", MODEL, "--max-tokens", "4", "--device", "cpu", "--json");
    else
        RUN_OK("check", "--model", MODEL, "--max-tokens", "4", "--device", "cpu", "--json", "--against", against);
    report = json_loads(last.out, 0, NULL);
    assert_non_null(report);
    return report;
}

static void what_one_generates_the_other_scores(void **state) {
    json_t *report;
    (void)state;
    RUN_OK("check", "--model", MODEL, "--max-tokens", "8", "--threads", "2", "--isa", "generic", "--device", "cpu",
           "--against", "cpu", "--dtype", "bf16");
    assert_string_equal(last.err,
                        "device: cpu, generic, 2 threads; profile exact\n"
                        "scored on: cpu, generic, 2 threads; profile exact\n");
    assert_non_null(strstr(last.out, " scored (generic, 2 threads; scored by cpu, generic, 2 threads)\n"));
    assert_non_null(strstr(last.out, "differing bits   0\n"));
    text_write(at("two"), "{\"id\":\"a\",\"prompt_ids\":[1,2,3]}\n{\"id\":\"b\",\"prompt_ids\":[4]}\n");
    RUN_OK("check", "--model", LS_FIXTURES "/jamba-bf16", "--prompts", at("two"), "--max-tokens", "3", "--device",
           "cpu", "--against", "cpu", "--dtype", "bf16", "--profile", "mma16");
    unlink(at("two"));
    assert_non_null(strstr(last.out, "numerics         mma16/"));
    report = check_as_json("cpu");
    assert_int_equal(int_member(report, "differing_bits"), 0);
    assert_string_equal(json_string_value(member(report, "device")), "cpu");
    assert_string_equal(json_string_value(member(report, "against")), "cpu");
    json_decref(report);
    report = check_as_json(NULL); /* as it always was */
    assert_null(json_object_get(report, "device"));
    assert_null(json_object_get(report, "against"));
    json_decref(report);
    if (!has_gpu()) return;
    RUN_OK("check", "--model", MODEL, "--device", "cpu", "--against", "cuda");
    RUN_OK("check", "--model", MODEL, "--device", "cuda", "--against", "cpu", "--dtype", "bf16");
}

/* ---- runs ---- */

#define SFT "train", "sft", "--set", "model=" TINY, "--set", data, "--set", run, "--set", "batch=2", "--set", "steps=2"

static void a_run_has_a_device_and_goes_on_with_another(void **state) {
    char run[PATH_BYTES + 8] = "run=", data[PATH_BYTES + 8] = "data=";
    (void)state;
    memcpy(run + 4, at("run"), PATH_BYTES);
    memcpy(data + 5, at("pairs"), PATH_BYTES);
    text_write(at("pairs"),
               "{\"prompt\":\"The cat\",\"completion\":\" sat.\"}\n{\"prompt\":\"A\",\"completion\":\" b\"}\n");
    RUN(SFT, "--set", "device=gpu");
    must_refuse("device|'gpu' is none of auto, cpu, cuda and cuda:N");
    if (!has_gpu()) {
        RUN(SFT, "--set", "device=cuda:0");
        must_refuse("cuda");
    }
    RUN_OK(SFT, "--set", "device=cpu", "--set", "threads=1", "--set", "isa=generic");
    first_line_is("device: cpu, generic, 1 thread; profile exact");
    RUN_OK("train", "resume", at("run"), "--set", "steps=4", "--set", "device=auto");
    assert_int_equal(strncmp(last.err, "device: ", 8), 0);
    assert_non_null(strstr(last.err, "going on from "));
}

static void grpo_has_it_too(void **state) {
    char run[PATH_BYTES + 8] = "run=";
    (void)state;
    memcpy(run + 4, at("grpo"), PATH_BYTES);
    RUN_OK("train", "grpo", "--set", "model=" TINY, "--set", run, "--set", "steps=1", "--set", "prompts=2", "--set",
           "samples=2", "--set", "max_tokens=3", "--set", "device=cpu", "--set", "threads=2", "--set", "isa=generic");
    first_line_is("device: cpu, generic, 2 threads; profile exact");
    RUN("train", "grpo", "--set", "model=" TINY, "--set", run, "--set", "device=cuda:x");
    must_refuse("device|'cuda:x' is none of");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_line_names_the_device),
        cmocka_unit_test(names_are_checked_first),
        cmocka_unit_test(commands_that_compute_nothing_have_none),
        cmocka_unit_test(a_gpu_that_is_not_there_is_one_sentence),
        cmocka_unit_test(ticks_are_told_by_kind_of_call),
        cmocka_unit_test(what_one_generates_the_other_scores),
        cmocka_unit_test(a_run_has_a_device_and_goes_on_with_another),
        cmocka_unit_test(grpo_has_it_too),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
