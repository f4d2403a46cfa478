/* Dumps of other trainers: what is read from them, what counts as missing, and hostile ones. */
#include <math.h>
#include <stdlib.h>

#include "harness.h"
#include "record/dump.h"

static ls_dump parse(const char *text, ls_dump_format format) {
    ls_dump dump;
    ls_error err;
    assert_ok(ls_dump_parse(&dump, text, (int64_t)strlen(text), "dump", format, &err), err);
    return dump;
}

static void assert_floats(const float *values, int64_t n, const float *expected) {
    for (int64_t i = 0; i < n; i++)
        if (!(values[i] == expected[i] || (isnan(values[i]) && isnan(expected[i]))))
            fail_msg("item %lld: %g is not %g", (long long)i, (double)values[i], (double)expected[i]);
}

static void prime_rl_exports_are_read(void **state) {
    static const char text[] =
        "{\"schema_version\":1,\"step\":3,\"rank\":0,\"env_name\":\"NaN \\\" NaN\",\"token_ids\":[5,6,7,8],"
        "\"position_ids\":[0,1,2,3],\"loss_mask\":[false,true,true,true],\"advantages\":[0.5,0.5,null,0.5],"
        "\"rewards\":[1,1,1,1],\"inference_logprobs\":[0.0,-1.25,null,0.0],\"trainer_logprobs\":[0,-1.5,-2,-9999.0],"
        "\"mismatch_kl\":[null,null,null,null]}\n"
        "  \n"
        "{\"token_ids\":[],\"loss_mask\":[],\"inference_logprobs\":[],\"trainer_logprobs\":[],\"rewards\":[]}\n"
        "{\"token_ids\":[1],\"loss_mask\":[1],\"inference_logprobs\":[NaN],\"trainer_logprobs\":[-Infinity]}";
    const float r[] = {0.0f, -1.25f, NAN, 0.0f, NAN}, t[] = {0.0f, -1.5f, -2.0f, NAN, NAN};
    const float advantages[] = {0.5f, 0.5f, NAN, 0.5f, NAN}, rewards[] = {1.0f, NAN, NAN};
    const int64_t offsets[] = {0, 4, 4, 5}, lines[] = {1, 3, 4};
    const int32_t ids[] = {5, 6, 7, 8, 1};
    const uint8_t mask[] = {0, 1, 1, 1, 1};
    ls_dump dump = parse(text, LS_DUMP_PRIME_RL);
    (void)state;
    assert_int_equal(dump.n_sequences, 3);
    assert_int_equal(dump.n_tokens, 5);
    assert_memory_equal(dump.offsets, offsets, sizeof offsets);
    assert_memory_equal(dump.lines, lines, sizeof lines);
    assert_memory_equal(dump.token_ids, ids, sizeof ids);
    assert_memory_equal(dump.mask, mask, sizeof mask);
    assert_floats(dump.rollout, 5, r);
    assert_floats(dump.trainer, 5, t);
    assert_floats(dump.advantages, 5, advantages);
    assert_floats(dump.rewards, 3, rewards);
    assert_int_equal(dump.n_masked, 4);
    assert_int_equal(dump.zero_rollout, 1);
    assert_int_equal(dump.zero_trainer, 0);
    ls_dump_deinit(&dump);
}

static void nemo_rl_train_data_is_read(void **state) {
    /* One sequence in lists of one, as the logger writes it; a batch of two; plain lists. */
    static const char text[] =
        "{\"content\":[\"Infinity\"],\"rewards\":[0.5],\"input_lengths\":[3],\"token_ids\":[[1,2,3,0]],"
        "\"token_loss_mask\":[[0,1,1,1]],\"sample_loss_mask\":[1.0],\"advantages\":[[0.0,1.5,1.5,0.0]],"
        "\"generation_logprobs\":[[0.0,-1.0,-2.0,0.0]],\"prev_logprobs\":[[0.0,-1.0,Infinity,0.0]],\"idx\":0}\n"
        "{\"rewards\":[1,2],\"token_ids\":[[1,2],[3,4]],\"token_loss_mask\":[[1,1],[0.0,1.0]],"
        "\"sample_loss_mask\":[1,0],\"generation_logprobs\":[[0,-1],[0,-2]],\"prev_logprobs\":[[0,-3],[0,-4]]}\n"
        "{\"rewards\":2.5,\"input_lengths\":2,\"token_ids\":[9,8],\"token_loss_mask\":[false,true],"
        "\"sample_loss_mask\":true,\"generation_logprobs\":[0,-5],\"prev_logprobs\":[0,-6],\"advantages\":null}\n";
    const int64_t offsets[] = {0, 3, 5, 7, 9};
    const float r[] = {0, -1, -2, 0, -1, 0, -2, 0, -5}, t[] = {0, -1, NAN, 0, -3, 0, -4, 0, -6};
    const float advantages[] = {0, 1.5f, 1.5f, NAN, NAN, NAN, NAN, NAN, NAN}, rewards[] = {0.5f, 1.0f, 2.0f, 2.5f};
    const uint8_t mask[] = {0, 1, 1, 0, 1, 0, 0, 0, 1};
    ls_dump dump = parse(text, LS_DUMP_NEMO_RL);
    (void)state;
    assert_int_equal(dump.n_sequences, 4);
    assert_memory_equal(dump.offsets, offsets, sizeof offsets);
    assert_memory_equal(dump.mask, mask, sizeof mask);
    assert_floats(dump.rollout, 9, r);
    assert_floats(dump.trainer, 9, t);
    assert_floats(dump.advantages, 9, advantages);
    assert_floats(dump.rewards, 4, rewards);
    assert_int_equal(dump.lines[2], 2);
    ls_dump_deinit(&dump);
}

#define PRIME(ids, mask, r, t) \
    "{\"token_ids\":" ids ",\"loss_mask\":" mask ",\"inference_logprobs\":" r ",\"trainer_logprobs\":" t "}"
#define NEMO(ids, mask, r, t, more) \
    "{\"token_ids\":" ids ",\"token_loss_mask\":" mask ",\"generation_logprobs\":" r ",\"prev_logprobs\":" t more "}"

static void hostile_dumps_are_refused(void **state) {
    static const struct {
        ls_dump_format format;
        const char *text, *says;
    } bad[] = {
        {LS_DUMP_PRIME_RL, "", "dump"},
        {LS_DUMP_PRIME_RL, "\n \n", "dump: no sequence"},
        {LS_DUMP_PRIME_RL, "[]", "dump: line 1"},
        {LS_DUMP_PRIME_RL, "{", "dump: line 1"},
        {LS_DUMP_PRIME_RL, "{\"a\":\"\\", "dump: line 1"},
        {LS_DUMP_PRIME_RL, "{}", "'token_ids' is missing"},
        {LS_DUMP_PRIME_RL, "{\"token_ids\":1}", "token_ids"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[1]", "[-1]", "[-1,-2]"), "trainer_logprobs: 2 items, expected 1"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[]", "[-1]", "[-1]"), "loss_mask: 0 items"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[\"x\"]", "[-1]", "[-1]"), "loss_mask[0]"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[2]", "[-1]", "[-1]"), "loss_mask[0]: 2 is neither 0 nor 1"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[-1]", "[-1]", "[-1]"), "loss_mask[0]: -1 is neither"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[0.5]", "[-1]", "[-1]"), "loss_mask[0]: 0.5 is neither"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[1]", "[0.25]", "[-1]"), "inference_logprobs[0]: 0.25 is no log-probability"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[1]", "[-1]", "[3]"), "trainer_logprobs[0]: 3 is no log-probability"},
        {LS_DUMP_PRIME_RL, "{\"schema_version\":2,\"token_ids\":[]}", "schema_version: version 2 is not known"},
        {LS_DUMP_PRIME_RL, "{\"schema_version\":\"x\",\"token_ids\":[]}", "schema_version"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[1]", "[\"x\"]", "[-1]"), "inference_logprobs[0]"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[1]", "{}", "[-1]"), "inference_logprobs"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[1]", "[1e300]", "[-1]"), "beyond float32"},
        {LS_DUMP_PRIME_RL, PRIME("[-1]", "[1]", "[-1]", "[-1]"), "token_ids[0]"},
        {LS_DUMP_PRIME_RL, PRIME("[4294967296]", "[1]", "[-1]", "[-1]"), "token_ids[0]"},
        {LS_DUMP_PRIME_RL, PRIME("[NaN]", "[1]", "[-1]", "[-1]"), "token_ids[0]"},
        {LS_DUMP_PRIME_RL, PRIME("[1]", "[1]", "[-NaN]", "[-1]"), "dump: line 1"},
        {LS_DUMP_PRIME_RL, "{\"token_ids\":[1],\"loss_mask\":[1],\"inference_logprobs\":[-1]}", "'trainer_logprobs'"},
        {LS_DUMP_NEMO_RL, NEMO("[[1],2]", "[[1],[1]]", "[[0],[0]]", "[[0],[0]]", ""), "token_ids[1]"},
        {LS_DUMP_NEMO_RL, NEMO("[[1],[2]]", "[[1]]", "[[0],[0]]", "[[0],[0]]", ""), "1 sequences, expected 2"},
        {LS_DUMP_NEMO_RL, NEMO("[[1]]", "[[1]]", "[[0]]", "[0]", ""), "prev_logprobs[0]"},
        {LS_DUMP_NEMO_RL, NEMO("[[1]]", "[[1]]", "[[0]]", "[[0]]", ",\"input_lengths\":[2]"), "input_lengths[0]"},
        {LS_DUMP_NEMO_RL, NEMO("[[1]]", "[[1]]", "[[0]]", "[[0]]", ",\"input_lengths\":[-1]"), "input_lengths[0]"},
        {LS_DUMP_NEMO_RL, NEMO("[[1]]", "[[1]]", "[[0]]", "[[0]]", ",\"rewards\":[1,2]"), "rewards: 2 values"},
        {LS_DUMP_NEMO_RL, NEMO("[[1],[2]]", "[[1],[1]]", "[[0],[0]]", "[[0],[0]]", ",\"rewards\":1"), "rewards"},
        {LS_DUMP_NEMO_RL, NEMO("[[1]]", "[[1]]", "[[0]]", "[[0]]", ",\"sample_loss_mask\":[[]]"), "sample_loss_mask"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ls_dump dump;
        ls_error err;
        check_failed(ls_dump_parse(&dump, bad[i].text, (int64_t)strlen(bad[i].text), "dump", bad[i].format, &err), &err,
                     bad[i].says);
        assert_int_equal(strncmp(err.text, "dump", 4), 0);
        assert_true(dump.offsets == NULL && dump.mask == NULL && dump.n_tokens == 0);
    }
}

static void the_second_line_is_named(void **state) {
    static const char text[] = PRIME("[1]", "[1]", "[-1]", "[-1]") "\n" PRIME("[1]", "[1]", "[-1]", "[true]");
    ls_dump dump;
    ls_error err;
    (void)state;
    check_failed(ls_dump_parse(&dump, text, (int64_t)strlen(text), "dump", LS_DUMP_PRIME_RL, &err), &err,
                 "dump: line 2: trainer_logprobs[0]");
    check_failed(ls_dump_read(&dump, "/no/such/file", LS_DUMP_PRIME_RL, &err), &err, "/no/such/file: cannot open");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prime_rl_exports_are_read),
        cmocka_unit_test(nemo_rl_train_data_is_read),
        cmocka_unit_test(hostile_dumps_are_refused),
        cmocka_unit_test(the_second_line_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
