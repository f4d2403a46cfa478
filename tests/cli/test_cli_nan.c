/* A token without a log-probability (NaN) passes nowhere: generate, score, check, compare, training and the gate refuse
 * it with sequence and token. The model is a fixture with one finite weight that is far too large. */
#define _GNU_SOURCE
#include <math.h>

#include "program.h"
#include "rl/gate.h"

static const char *model; /* with the weight */

/* The first weight of the last norm becomes -7.4e20: finite logits, of which some are far above 2^20. */
static void make_model(void) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    const uint16_t huge = 0xE220;
    model = at("huge");
    assert_int_equal(mkdir(model, 0777), 0);
    for (int i = 0; i < 2; i++) {
        char from[PATH_BYTES + 64], to[PATH_BYTES + 64];
        size_t bytes;
        char *data;
        snprintf(from, sizeof from, LS_FIXTURES "/jamba-nobias/%s", files[i]);
        snprintf(to, sizeof to, "%s/%s", model, files[i]);
        data = file_read(from, &bytes);
        if (i == 1) {
            uint64_t n;
            const char *head;
            long begin;
            memcpy(&n, data, sizeof n);
            head = strstr(data + 8, "\"model.final_layernorm.weight\"");
            assert_true(head != NULL && head < data + 8 + n);
            begin = strtol(strstr(head, "\"data_offsets\":[") + 16, NULL, 10);
            memcpy(data + 8 + n + begin, &huge, sizeof huge);
        }
        file_write(to, data, bytes);
        free(data);
    }
}

static int prepare(void **state) {
    if (scratch_make(state) != 0) return 1;
    make_model();
    text_write(at("p.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[1,5,9]}\n{\"id\":\"b\",\"prompt_ids\":[3,4,8,20,31]}\n");
    return 0;
}

static void generation_tells_which_token_has_none(void **state) {
    (void)state;
    RUN("generate", "--model", model, "--prompts", at("p.jsonl"), "--samples", "8", "--max-tokens", "12", "--out",
        at("out/nan.jsonl"));
    must_tell_device();
    must_exit(2);
    assert_non_null(strstr(last.err, "there is no log-probability"));
    assert_non_null(strstr(last.err, "token "));
    if (access(at("out/nan.jsonl"), F_OK) == 0) {
        for (int64_t i = 0; i < count_lines(at("out/nan.jsonl")); i++) {
            json_t *record = line_read(at("out/nan.jsonl"), i), *values = member(record, "logprobs");
            for (size_t t = 0; t < json_array_size(values); t++) assert_true(json_is_number(json_array_get(values, t)));
            json_decref(record);
        }
        assert_int_equal(unlink(at("out/nan.jsonl")), 0);
    }
}

static void scoring_names_sequence_and_token(void **state) {
    int n_refused = 0;
    (void)state;
    for (int first = 0; first < 64 && n_refused < 3; first += 7) {
        char line[160];
        snprintf(line, sizeof line,
                 "{\"id\":\"a\",\"token_ids\":[1,2]}\n{\"id\":\"b\",\"token_ids\":[%d,3,4,5,6,7,8]}\n", first);
        text_write(at("s.jsonl"), line);
        RUN("score", "--model", model, "--tokens", at("s.jsonl"), "--out", at("out/s.jsonl"));
        must_tell_device();
        if (last.code != 0) {
            must_refuse_without_output("sequence |token |there is no log-probability");
            n_refused++;
        } else {
            size_t bytes;
            char *text = file_read(at("out/s.jsonl"), &bytes);
            assert_null(strstr(text, "7fc00000"));
            free(text);
            assert_int_equal(unlink(at("out/s.jsonl")), 0);
        }
    }
    assert_true(n_refused > 0);
}

static void a_check_does_not_pass(void **state) {
    (void)state;
    RUN("check", "--model", model);
    must_tell_device();
    must_exit(2);
    assert_non_null(strstr(last.err, "there is no log-probability"));
}

/* What is within bounds as a logit is not when divided by so small a temperature; the model's own value is told. */
static void a_temperature_can_be_too_small(void **state) {
    (void)state;
    text_write(at("t.jsonl"), "{\"id\":\"a\",\"prompt\":\"The river runs\"}\n");
    RUN("generate", "--model", TINY, "--prompts", at("t.jsonl"), "--max-tokens", "4", "--temperature", "0.000001",
        "--logprobs", "processed", "--out", at("out/t.jsonl"));
    must_tell_device();
    must_exit(2);
    assert_non_null(strstr(last.err, "above 2^20 when divided by the temperature"));
    (void)unlink(at("out/t.jsonl"));
    RUN_OK("generate", "--model", TINY, "--prompts", at("t.jsonl"), "--max-tokens", "4", "--temperature", "0.000001",
           "--out", at("out/t.jsonl"));
    assert_int_equal(unlink(at("out/t.jsonl")), 0);
}

static void equal_nans_are_a_difference(void **state) {
    (void)state;
    text_write(at("n.jsonl"),
               "{\"id\":\"a\",\"token_ids\":[1,2,3],\"logprobs\":[-1.5,null],"
               "\"logprob_bits\":[\"bfc00000\",\"7fc00000\"]}\n");
    RUN("compare", at("n.jsonl"), at("n.jsonl"));
    must_exit(3);
}

static void training_refuses(void **state) {
    static char config[1 << 20];
    (void)state;
    text_write(at("pairs.jsonl"),
               "{\"prompt_ids\":[1,2],\"completion_ids\":[3,4,5,6,7,8]}\n"
               "{\"prompt_ids\":[9,12],\"completion_ids\":[13,24,35,46,57,8]}\n");
    snprintf(config, sizeof config,
             "{\"model\":\"%s\",\"run\":\"%s\",\"data\":\"%s\",\"batch\":2,\"steps\":2,\"rate\":1e-3,\"threads\":1}",
             model, at("run"), at("pairs.jsonl"));
    text_write(at("run.json"), config);
    RUN("train", "sft", "--config", at("run.json"));
    must_exit(2);
    if (strstr(last.err, "sequence ") == NULL || strstr(last.err, "there is no log-probability") == NULL)
        fail_msg("%s", last.err);
}

static void the_gate_lets_no_nan_pass(void **state) {
    const uint8_t mask[2] = {1, 1};
    const float values[2] = {-1.5f, NAN};
    ls_gate gate;
    (void)state;
    ls_gate_begin(&gate);
    ls_gate_compare(&gate, 0, 0, 2, mask, values, values);
    assert_int_equal(gate.n_tokens, 2);
    assert_int_equal(gate.n_differing, 1);
    assert_int_equal(gate.sequence, 0);
    assert_int_equal(gate.row, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation_tells_which_token_has_none),
        cmocka_unit_test(scoring_names_sequence_and_token),
        cmocka_unit_test(a_check_does_not_pass),
        cmocka_unit_test(a_temperature_can_be_too_small),
        cmocka_unit_test(equal_nans_are_a_difference),
        cmocka_unit_test(training_refuses),
        cmocka_unit_test(the_gate_lets_no_nan_pass),
    };
    return cmocka_run_group_tests(tests, prepare, scratch_remove);
}
