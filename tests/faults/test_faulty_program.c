/* The laboratory's program: a fault makes check and train find differences. The program that is delivered has no such
 * option. */
#define _GNU_SOURCE
#include "faults.h"

static const char sound_program[] = LS_PROGRAM;
#undef LS_PROGRAM
#define LS_PROGRAM program
static const char *program = LS_FAULTY_PROGRAM;

#include "cli/program.h"

static void an_injected_fault_is_found(void **state) {
    static const char *const names[] = {"lag-one", "softplus-naive", "split-k-by-batch", "stale-slot"};
    (void)state;
    RUN_OK("check", "--model", TINY, "--max-tokens", "12");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        RUN("check", "--model", TINY, "--max-tokens", "12", "--inject", names[i]);
        must_exit(3);
    }
    RUN("check", "--model", TINY, "--max-tokens", "12", "--inject", names[0], "--against", "cpu");
    must_exit(3);
    RUN("check", "--model", TINY, "--inject", "gremlin");
    must_refuse("--inject|gremlin");
}

static void the_sound_program_takes_no_fault(void **state) {
    (void)state;
    program = sound_program;
    RUN("check", "--model", TINY, "--inject", "lag-one");
    must_exit(1);
    assert_non_null(strstr(last.err, "inject"));
    program = LS_FAULTY_PROGRAM;
}

#define GRPO \
    "--set", "model=" TINY, "--set", "steps=2", "--set", "prompts=2", "--set", "samples=4", "--set", "max_tokens=4"

/* Training stops with exit code 3, and its bundle is read by replay, compare and score. */
static void a_run_with_a_fault_leaves_a_bundle(void **state) {
    char run[PATH_BYTES + 8], bundle[PATH_BYTES + 64], rollout[PATH_BYTES + 96], trainer[PATH_BYTES + 96];
    (void)state;
    snprintf(run, sizeof run, "run=%.500s", at("run"));
    snprintf(bundle, sizeof bundle, "%.500s/mismatch-00000001", at("run"));
    snprintf(rollout, sizeof rollout, "%s/rollout.jsonl", bundle);
    snprintf(trainer, sizeof trainer, "%s/trainer.jsonl", bundle);
    RUN("train", "grpo", "--set", run, GRPO, "--set", "inject=softplus-naive");
    must_exit(3);
    if (strstr(last.err, "reproduce: lockstep train replay ") == NULL ||
        strstr(last.err, "layer 0, mixer (mamba)") == NULL)
        fail_msg("%s", last.err);
    RUN("train", "replay", bundle, "--inject", "softplus-naive");
    must_exit(3);
    assert_non_null(strstr(last.out, "layer 0, mixer (mamba), element "));
    RUN("train", "replay", bundle, "--inject", "softplus-naive", "--json");
    must_exit(3);
    assert_non_null(strstr(last.out, "\"half\":\"mixer (mamba)\""));
    RUN("train", "replay", bundle, "--device", "cpu"); /* the fault is mended */
    must_exit(0);
    RUN("compare", rollout, trainer);
    must_exit(3);
    RUN("score", "--model", bundle, "--rollouts", rollout, "--out", at("scored"));
    must_exit(0);
    RUN("compare", at("scored"), trainer);
    must_exit(0);
    RUN("train", "replay", at("nothing"));
    must_exit(2);
    RUN("train", "replay");
    must_exit(1);
}

/* The same by the sound program: no difference, one digest. */
static void a_sound_run_is_told(void **state) {
    char run[PATH_BYTES + 8];
    (void)state;
    program = sound_program;
    snprintf(run, sizeof run, "run=%.500s", at("sound"));
    RUN("train", "grpo", "--set", run, GRPO);
    must_exit(0);
    if (strstr(last.err, "mismatch 0 of ") == NULL || strstr(last.err, "digest ") == NULL) fail_msg("%s", last.err);
    RUN("train", "grpo", "--set", run, GRPO);
    must_exit(2);
    assert_non_null(strstr(last.err, "set resume=true"));
    RUN("report", at("sound"), "--out", at("run.html"));
    must_exit(0);
    RUN("train", "grpo", "--set", "inject=lag-one", GRPO);
    must_exit(2);
    assert_non_null(strstr(last.err, "'inject' is no option"));
    RUN("train", "grpo", "--keys");
    must_exit(0);
    assert_non_null(strstr(last.out, "engine.slot-words"));
    program = LS_FAULTY_PROGRAM;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_injected_fault_is_found),
        cmocka_unit_test(the_sound_program_takes_no_fault),
        cmocka_unit_test(a_run_with_a_fault_leaves_a_bundle),
        cmocka_unit_test(a_sound_run_is_told),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
