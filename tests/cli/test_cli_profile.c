/* --profile from the outside: every command computes in it, records say which, results of two profiles are never called
 * equal, and what has no such profile is refused in one line. */
#define _GNU_SOURCE
#include "program.h"

#define MODEL LS_FIXTURES "/jamba-nobias"
#define MMA16 "--dtype", "bf16", "--profile", "mma16"

/* Sanitizers find no more in the largest fixture than in the smaller ones, in ten times their time. */
#define TESTS_LARGE (SANITIZED == 0)

/* Dense layers with attention, experts, and Mamba alone. */
static void check_finds_no_difference(void **state) {
    static const char *const models[] = {LS_FIXTURES "/jamba-bf16", LS_FIXTURES "/jamba-odd", MODEL, TINY};
    (void)state;
    for (size_t i = TESTS_LARGE ? 0 : 1; i < sizeof models / sizeof models[0]; i++) {
        RUN_OK("check", "--model", models[i], MMA16, "--max-tokens", i == 0 ? "2" : "16", "--samples", "1",
               "--score-chunk", "7");
        if (strstr(last.out, "numerics         mma16/4/bf16\n") == NULL ||
            strstr(last.out, "differing bits   0\n") == NULL)
            fail_msg("%s: %s", models[i], last.out);
    }
    RUN_OK("check", "--model", MODEL, MMA16, "--max-tokens", "8", "--json");
    {
        json_t *result = json_loads(last.out, 0, NULL);
        assert_non_null(result);
        assert_string_equal(text_member(result, "digest"), "mma16/4/bf16");
        json_decref(result);
    }
}

static void profiles_are_not_called_equal(void **state) {
    size_t bytes;
    char *text, *digest;
    (void)state;
    text_write(at("prompts.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[7,3,9]}\n{\"id\":\"b\",\"prompt_ids\":[1,2,3,4]}\n");
    RUN_OK("generate", "--model", MODEL, "--prompts", at("prompts.jsonl"), MMA16, "--samples", "3", "--max-tokens",
           "12", "--out", at("a.jsonl"));
    RUN_OK("score", "--model", MODEL, "--rollouts", at("a.jsonl"), MMA16, "--batch", "2", "--chunk", "5", "--out",
           at("b.jsonl"));
    must_be_same_file(at("a.jsonl"), at("b.jsonl"));
    RUN_OK("compare", at("a.jsonl"), at("b.jsonl"));
    RUN_OK("score", "--model", MODEL, "--rollouts", at("a.jsonl"), "--dtype", "bf16", "--out", at("exact.jsonl"));
    RUN("compare", at("a.jsonl"), at("exact.jsonl"));
    must_exit(3);
    text = file_read(at("a.jsonl"), &bytes);
    while ((digest = strstr(text, "mma16/4/bf16")) != NULL) memcpy(digest, "exact/2", 7); /* the same values */
    file_write(at("renamed.jsonl"), text, bytes);
    free(text);
    RUN("compare", at("a.jsonl"), at("renamed.jsonl"));
    must_exit(3);
    assert_non_null(strstr(last.err, "records of different numerics: mma16/4/bf16 and exact/2/bf16"));
}

static void sweeps_move_levers_in_it(void **state) {
    json_t *report;
    (void)state;
    RUN_OK("sweep", "--model", MODEL, MMA16, "--threads", "1", "--json");
    report = json_loads(last.out, 0, NULL);
    assert_non_null(report);
    assert_string_equal(text_member(report, "profile"), "mma16");
    assert_int_equal(int_member(report, "differing_bits"), 0);
    json_decref(report);
    RUN("sweep", "--model", MODEL, MMA16, "--threads", "1", "--suspect", LS_PROGRAM, "--suspect-arg", "--profile",
        "--suspect-arg", "exact", "--json");
    must_exit(3);
}

static void what_has_no_mma16_is_refused(void **state) {
    (void)state;
    RUN("check", "--model", MODEL, "--profile", "mma16");
    must_refuse("profile mma16: activations are f32");
    RUN("check", "--model", LS_FIXTURES "/jamba-dense", MMA16);
    must_refuse("profile mma16: model.embed_tokens.weight is stored as F32");
    RUN("score", "--model", LS_FIXTURES "/jamba-moe", MMA16, "--rollouts", at("a.jsonl"));
    must_refuse("profile mma16: ");
    RUN("check", "--model", MODEL, "--dtype", "bf16", "--profile", "tf32");
    must_refuse("--profile: 'tf32' is not exact or mma16");
    RUN("sweep", "--model", MODEL, "--profile", "mma16");
    must_refuse("profile mma16: activations are f32");
    RUN("train", "grpo", "--set", "profile=tf32");
    must_refuse("profile: ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_finds_no_difference),
        cmocka_unit_test(profiles_are_not_called_equal),
        cmocka_unit_test(sweeps_move_levers_in_it),
        cmocka_unit_test(what_has_no_mma16_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
