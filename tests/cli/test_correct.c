/* The command that measures corrections on dumps of other trainers: both formats, both outputs, refusals. */
#define _GNU_SOURCE
#include <math.h>

#include "program.h"

#define PRIME                                                                                                 \
    "{\"token_ids\":[1,2,3],\"loss_mask\":[false,true,true],\"inference_logprobs\":[0.0,-1.0,-1.0],"          \
    "\"trainer_logprobs\":[0.0,-1.0,-1.5]}\n"                                                                 \
    "{\"token_ids\":[1,2],\"loss_mask\":[false,true],\"inference_logprobs\":[0.0,-3.0],\"trainer_logprobs\":" \
    "[0.0,-1.0]}\n"
#define NEMO                                                                                                   \
    "{\"token_ids\":[[1,2,3]],\"token_loss_mask\":[[0,1,1]],\"sample_loss_mask\":[1.0],\"input_lengths\":[3]," \
    "\"generation_logprobs\":[[0.0,-1.0,-1.0]],\"prev_logprobs\":[[0.0,-1.0,NaN]],\"idx\":0}\n"

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s is not a number", key);
    return json_number_value(value);
}

static void near(double value, double expected) {
    if (!(fabs(value - expected) <= 1e-6 * fabs(expected))) fail_msg("%.12g is not %.12g", value, expected);
}

static void corrections_are_measured(void **state) {
    const char *path = at("prime.jsonl");
    json_t *result, *correction, *steps;
    (void)state;
    text_write(path, PRIME);
    RUN_OK("correct", "--dump", path, "--format", "prime-rl", "--correction", "token-truncate=2,geometric-reject=0.5:3",
           "--json");
    result = json_loads(last.out, 0, NULL);
    assert_non_null(result);
    correction = json_object_get(result, "correction");
    assert_true(number(correction, "tokens") == 3.0 && number(correction, "sequences") == 2.0);
    near(number(correction, "raw_max"), exp(2.0));
    near(number(correction, "weight_mean"), (1.0 + exp(-0.5)) / 3.0);
    near(number(correction, "rejected_fraction"), 1.0 / 3.0);
    near(number(json_object_get(correction, "aliases"), "sampling_importance_ratio"), (1.0 + exp(-0.5)) / 3.0);
    assert_null(json_object_get(json_object_get(correction, "aliases"),
                                "rollout_corr/rollout_is_mean")); /* beside a rejection */
    near(number(json_object_get(result, "mismatch"), "k1"), -0.5);
    near(number(json_object_get(json_object_get(result, "mismatch"), "aliases"), "token_mult_prob_error"),
         (1.0 + exp(0.5) + exp(2.0)) / 3.0);
    steps = json_object_get(correction, "steps");
    assert_int_equal(json_array_size(steps), 2);
    near(number(json_array_get(steps, 1), "sequences_outside"), 0.5);
    json_decref(result);
    RUN_OK("correct", "--dump", path, "--format", "prime-rl", "--correction", "none");
    assert_non_null(strstr(last.out, "2 sequences, 5 tokens, 3 of them counted"));
}

static void nemo_rl_dumps_are_taken(void **state) {
    const char *path = at("nemo.jsonl");
    (void)state;
    text_write(path, NEMO);
    RUN_OK("correct", "--dump", path, "--format", "nemo-rl", "--correction", "error-reject=1.5");
    assert_non_null(strstr(last.out, "1 sequences, 3 tokens, 2 of them counted"));
    assert_non_null(strstr(last.out, "\nerror-reject "));
}

static void what_is_wrong_is_said(void **state) {
    const char *path = at("bad.jsonl");
    (void)state;
    text_write(path, "{\"token_ids\":[1]}\n");
    RUN("correct", "--dump", path, "--format", "prime-rl", "--correction", "none");
    assert_int_equal(last.code, 2);
    assert_non_null(strstr(last.err, "bad.jsonl: line 1: 'loss_mask' is missing"));
    assert_string_equal(last.out, "");
    RUN("correct", "--dump", path, "--format", "prime-rl", "--correction", "tis=2");
    assert_int_equal(last.code, 1);
    RUN("correct", "--dump", path, "--format", "other", "--correction", "none");
    assert_int_equal(last.code, 1);
    RUN("correct", "--dump", path, "--format", "prime-rl");
    assert_int_equal(last.code, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corrections_are_measured),
        cmocka_unit_test(nemo_rl_dumps_are_taken),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
