/* Answers and dumps of other programs: samples written by hand from their documented shapes hold the same two sequences
 * in every format; what is wrong in them is refused with file, line and path. */
#include <math.h>
#include <stdlib.h>

#include "harness.h"
#include "record/answers.h"

/* One sequence: prompt 5, 6; completion 7, 8, 9 with -0.5, -1.25, -2. The trainer says -0.25 less. */
static const struct {
    ls_answer_format format;
    bool of_trainer, whole;
    const char *text;
} samples[] = {
    {LS_ANSWER_VLLM, false, false,
     "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"abc\",\"finish_reason\":"
     "\"length\","
     "\"token_ids\":[7,8,9],\"prompt_token_ids\":[5,6],\"logprobs\":{\"text_offset\":[0,1,2],\"tokens\":[\"a\",\"b\","
     "\"c\"],"
     "\"token_logprobs\":[-0.5,-1.25,-2.0],\"top_logprobs\":[null,{\"b\":-1.25},null]},\"prompt_logprobs\":null}]}\n"},
    {LS_ANSWER_VLLM, false, false,
     "{\"custom_id\":\"0\",\"response\":{\"status_code\":200,\"body\":{\"prompt_token_ids\":[5,6],\"choices\":[\n"
     "{\"message\":{\"role\":\"assistant\"},\"logprobs\":{\"content\":[{\"token\":\"token_id:7\",\"logprob\":-0.5},\n"
     "{\"token\":\"token_id:8\",\"logprob\":-1.25,\"top_logprobs\":[]},{\"token\":\"token_id:9\",\"logprob\":-2}]}}]}}"
     "}"},
    {LS_ANSWER_VLLM, false, false, /* llama.cpp's */
     "[{\"choices\":[{\"logprobs\":{\"content\":[{\"id\":7,\"token\":\"}{\",\"logprob\":-0.5},{\"id\":8,\"token\":"
     "\"\\\"\","
     "\"logprob\":-1.25},{\"id\":9,\"token\":\"c\",\"logprob\":-2}]}}]}]"},
    {LS_ANSWER_VLLM_PROMPT, false, true,
     "{\"choices\":[{\"text\":\"x\",\"prompt_token_ids\":[5,6,7,8,9],\"prompt_logprobs\":[null,{\"6\":{\"logprob\":-3,"
     "\"rank\":2},\"1\":{\"logprob\":-1}},{\"7\":{\"logprob\":-0.5}},{\"8\":{\"logprob\":-1.25}},{\"9\":{\"logprob\":-"
     "2.0}}]}]}"},
    {LS_ANSWER_VLLM_PROMPT, false, false,
     "{\"choices\":[{}],\"prompt_logprobs\":[null,{\"7\":{\"logprob\":-0.5}},{\"8\":{\"logprob\":-1.25}},"
     "{\"9\":{\"logprob\":-2.0}}]}"},
    {LS_ANSWER_SGLANG, false, false,
     "[{\"text\":\"abc\",\"meta_info\":{\"id\":\"x\",\"finish_reason\":{\"type\":\"length\"},\"cached_tokens\":4,"
     "\"output_token_logprobs\":[[-0.5,7,null],[-1.25,8,null],[-2,9,\"c\"]]}}]"},
    {LS_ANSWER_SGLANG_PROMPT, false, true,
     "{\"meta_info\":{\"input_token_logprobs\":[[null,5,null],[-3,6,null],[-0.5,7,null],[-1.25,8,null],[-2,9,null]]}}"},
    {LS_ANSWER_LLAMA_CPP, false, false,
     "{\"content\":\"abc\",\"id_slot\":3,\"completion_probabilities\":[{\"id\":7,\"token\":\"a\",\"logprob\":-0.5,"
     "\"top_logprobs\":[]},{\"id\":8,\"logprob\":-1.25},{\"id\":9,\"logprob\":-2}]}"},
    {LS_ANSWER_LLAMA_CPP, false, false, /* 6 ends within a character: it has no item */
     "{\"tokens\":[7,8,9,6],\"tokens_predicted\":4,\"stop_type\":\"limit\",\"id_slot\":3,\"completion_probabilities\":"
     "[{\"id\":7,\"logprob\":-0.5},{\"id\":8,\"logprob\":-1.25},{\"id\":9,\"logprob\":-2}]}"},
    {LS_ANSWER_TRL, false, false,
     "{\"prompt_ids\":[[5,6]],\"completion_ids\":[[7,8,9]],\"logprobs\":[[-0.5,-1.25,-2.0]]}"},
    {LS_ANSWER_TRL, false, false,
     "{\"prompt_ids\":[[5,6]],\"completion_ids\":[[7,8,9]],\"logprobs\":[[[-0.1,-0.5],[-1.25],[-2.0,-4]]],"
     "\"logprob_token_ids\":[[[1,7],[8],[9,2]]]}"},
    {LS_ANSWER_VERL, false, false,
     "{\"responses\":[[7,8,9,0]],\"response_mask\":[[1,1,1,0]],\"rollout_log_probs\":[[-0.5,-1.25,-2,0]],\"old_log_"
     "probs\":"
     "[[-0.75,-1.5,-2.25,0]]}"},
    {LS_ANSWER_VERL, true, false,
     "{\"uid\":\"u\",\"responses\":[7,8,9],\"response_mask\":[true,true,true],\"old_log_probs\":[-0.75,-1.5,-2.25]}"},
    {LS_ANSWER_SLIME, false, false,
     "{\"rollout_id\":4,\"samples\":[{\"index\":12,\"tokens\":[5,6,7,8,9],\"response_length\":3,\"loss_mask\":[1,1,1],"
     "\"rollout_log_probs\":[-0.5,-1.25,-2],\"status\":\"completed\"}]}"},
    {LS_ANSWER_SLIME, true, false,
     "{\"sample_index\":12,\"tokens\":[5,6,7,8,9],\"response_length\":3,\"log_probs\":[-0.75,-1.5,-2.25]}"},
    {LS_ANSWER_OPENRLHF, false, true,
     "{\"sequences\":[[5,6,7,8,9]],\"action_mask\":[[0,1,1,1]],\"rollout_log_probs\":[[0,-0.5,-1.25,-2]],"
     "\"action_log_probs\":[[0,-0.75,-1.5,-2.25]]}"},
    {LS_ANSWER_OPENRLHF, true, true,
     "{\"sequences\":[5,6,7,8,9],\"action_mask\":[0,1,1,1],\"action_log_probs\":[NaN,-0.75,-1.5,-2.25]}"},
    {LS_ANSWER_PRIME_RL, false, true,
     "{\"token_ids\":[5,6,7,8,9],\"loss_mask\":[0,0,1,1,1],\"inference_logprobs\":[null,-3,-0.5,-1.25,-2],"
     "\"trainer_logprobs\":[null,-3,-0.75,-1.5,-2.25]}"},
    {LS_ANSWER_NEMO_RL, true, true,
     "{\"token_ids\":[5,6,7,8,9],\"token_loss_mask\":[0,0,1,1,1],\"generation_logprobs\":[0,-3,-0.5,-1.25,-2],"
     "\"prev_logprobs\":[0,-3,-0.75,-1.5,-2.25]}"},
};

static void every_format_holds_the_same(void **state) {
    static const float values[3] = {-0.5f, -1.25f, -2.0f};
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        const float less = samples[i].of_trainer ? 0.25f : 0.0f;
        ls_record *records, *r;
        int64_t n, before;
        ls_error err;
        print_message("%s, sample %d\n", ls_answer_format_names[samples[i].format], (int)i);
        assert_ok(ls_answers_parse(&records, &n, samples[i].text, (int64_t)strlen(samples[i].text), "dump",
                                   samples[i].format, samples[i].of_trainer, &err),
                  err);
        assert_int_equal(n, 1);
        r = &records[0];
        assert_int_equal(r->is_tokens, samples[i].whole);
        before = samples[i].whole ? 1 : 0;
        assert_true(r->n_logprobs >= 3 + before && r->n_completion == r->n_logprobs + before);
        for (int64_t k = 0; k < 3; k++) {
            assert_int_equal(r->completion_ids[before + k + (samples[i].whole ? 1 : 0)], 7 + k);
            assert_int_equal(r->logprob_missing[before + k], 0);
            assert_true(r->logprobs[before + k] == values[k] - less);
        }
        if (r->n_logprobs > 3 + before) assert_int_equal(r->logprob_missing[3 + before], 1);
        if (r->prompt_ids != NULL) assert_true(r->n_prompt == 2 && r->prompt_ids[0] == 5 && r->prompt_ids[1] == 6);
        if (samples[i].format == LS_ANSWER_SGLANG) assert_int_equal(r->cache_hit, 4);
        if (samples[i].format == LS_ANSWER_LLAMA_CPP) assert_int_equal(r->slot, 3);
        if (samples[i].format == LS_ANSWER_SLIME) assert_string_equal(r->id, "12");
        ls_records_free(records, n);
    }
}

static void what_is_wrong_is_refused(void **state) {
    static const struct {
        ls_answer_format format;
        const char *text, *word;
    } rows[] = {
        {LS_ANSWER_VLLM, "", "dump: no log-probability"},
        {LS_ANSWER_VLLM, "[]", "dump: no log-probability"},
        {LS_ANSWER_VLLM, "\n\n7", "dump: line 3: an object is required"},
        {LS_ANSWER_VLLM, "{\"choices\":[", "dump: line 1"},
        {LS_ANSWER_VLLM, "\n{\"choices\":3}", "dump: line 2: choices"},
        {LS_ANSWER_VLLM, "{\"choices\":[{\"logprobs\":null}]}", "dump: no log-probability"},
        {LS_ANSWER_VLLM, "{\"choices\":[{\"text\":\"x\"}]}", "choices[0]"},
        {LS_ANSWER_VLLM, "{\"choices\":[{\"logprobs\":{\"token_logprobs\":[0.5]}}]}", "token_logprobs[0]: 0.5 is no"},
        {LS_ANSWER_VLLM, "{\"choices\":[{\"logprobs\":{\"token_logprobs\":[\"x\"]}}]}", "token_logprobs[0]"},
        {LS_ANSWER_VLLM, "{\"choices\":[{\"token_ids\":[1],\"logprobs\":{\"tokens\":[],\"token_logprobs\":[-1]}}]}",
         "tokens: 0 items, expected 1"},
        {LS_ANSWER_VLLM,
         "{\"choices\":[{\"token_ids\":[1,2],\"logprobs\":{\"tokens\":[\"a\"],\"token_logprobs\":[-1]}}]}",
         "token_ids: 2 items, expected 1"},
        {LS_ANSWER_VLLM, "{\"choices\":[{\"logprobs\":{\"content\":[{\"token\":\"a\"}]}}]}", "logprob"},
        {LS_ANSWER_VLLM_PROMPT, "{\"choices\":[{\"prompt_logprobs\":[null]}]}", "two are the fewest"},
        {LS_ANSWER_VLLM_PROMPT, "{\"choices\":[{\"prompt_logprobs\":[{},{}]}]}",
         "prompt_logprobs[0]: null is required"},
        {LS_ANSWER_VLLM_PROMPT, "{\"choices\":[{\"prompt_logprobs\":[null,{\"1\":{},\"2\":{}}]}]}", "2 candidates"},
        {LS_ANSWER_VLLM_PROMPT, "{\"choices\":[{\"prompt_logprobs\":[null,{\"x\":{}}]}]}", "its name is no token id"},
        {LS_ANSWER_VLLM_PROMPT,
         "{\"choices\":[{\"prompt_token_ids\":[1,2],\"prompt_logprobs\":[null,{\"3\":{\"logprob\":-1}}]}]}", "2"},
        {LS_ANSWER_SGLANG, "{\"meta_info\":{}}", "output_token_logprobs"},
        {LS_ANSWER_SGLANG, "{\"meta_info\":{\"output_token_logprobs\":[[-1]]}}", "[value, id, text] is required"},
        {LS_ANSWER_SGLANG, "{\"meta_info\":{\"output_token_logprobs\":[[-1,-7]]}}", "output_token_logprobs[0][1]"},
        {LS_ANSWER_LLAMA_CPP, "{\"completion_probabilities\":[{\"id\":1,\"prob\":0.5}]}", "post_sampling_probs"},
        {LS_ANSWER_LLAMA_CPP,
         "{\"tokens_predicted\":2,\"stop_type\":\"limit\",\"completion_probabilities\":[{\"id\":1,\"logprob\":-1}]}",
         "1 items for 2 tokens"},
        {LS_ANSWER_LLAMA_CPP, "{\"tokens\":[1],\"generation_settings\":{\"n_probs\":0}}",
         "'completion_probabilities' is"},
        {LS_ANSWER_LLAMA_CPP, "{\"tokens\":[1,2],\"completion_probabilities\":[{\"id\":3,\"logprob\":-1}]}",
         "is not among 'tokens'"},
        {LS_ANSWER_TRL, "{\"prompt_ids\":[],\"completion_ids\":[[1]],\"logprobs\":[[-1]]}", "0 prompts for 1"},
        {LS_ANSWER_TRL,
         "{\"prompt_ids\":[[1]],\"completion_ids\":[[1]],\"logprobs\":[[[-1]]],\"logprob_token_ids\":[[[2]]]}",
         "token 1 is not among them"},
        {LS_ANSWER_VERL, "{\"responses\":[1],\"response_mask\":[2],\"rollout_log_probs\":[-1]}", "response_mask[0]"},
        {LS_ANSWER_VERL, "{\"input\":\"text\",\"output\":\"text\",\"score\":1}", "responses"},
        {LS_ANSWER_SLIME, "{\"tokens\":[1],\"response_length\":2,\"rollout_log_probs\":[]}", "response_length"},
        {LS_ANSWER_OPENRLHF, "{\"sequences\":[1],\"action_mask\":[],\"rollout_log_probs\":[]}", "two tokens are"},
        {LS_ANSWER_SLIME,
         "{\"index\":1,\"tokens\":[1],\"response_length\":1,\"rollout_log_probs\":[-1]}\n"
         "{\"index\":1,\"tokens\":[1],\"response_length\":1,\"rollout_log_probs\":[-1]}",
         "id '1' is there twice"},
        {LS_ANSWER_VLLM, "{\"choices\":[{\"logprobs\":{\"token_logprobs\":[-9999,null]}}]}", "no log-probability"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_record *records;
        int64_t n;
        ls_error err;
        print_message("%s: %s\n", ls_answer_format_names[rows[i].format], rows[i].text);
        check_failed(ls_answers_parse(&records, &n, rows[i].text, (int64_t)strlen(rows[i].text), "dump", rows[i].format,
                                      false, &err),
                     &err, rows[i].word);
        assert_int_equal(strncmp(err.text, "dump: ", 6), 0);
    }
}

/* Two of the same token and one value: nobody knows whose it is. What is around them is known. */
static void a_value_without_a_place_is_missing(void **state) {
    static const char text[] =
        "{\"tokens\":[4,7,7,9,5],\"completion_probabilities\":[{\"id\":7,\"logprob\":-0.5},"
        "{\"id\":9,\"logprob\":-1},{\"id\":5,\"logprob\":null}]}";
    static const uint8_t missing[5] = {1, 1, 1, 0, 1};
    ls_record *records;
    int64_t n;
    ls_error err;
    (void)state;
    assert_ok(ls_answers_parse(&records, &n, text, (int64_t)sizeof text - 1, "dump", LS_ANSWER_LLAMA_CPP, false, &err),
              err);
    assert_true(n == 1 && records[0].n_completion == 5 && records[0].n_logprobs == 5);
    assert_memory_equal(records[0].logprob_missing, missing, sizeof missing);
    assert_true(records[0].completion_ids[3] == 9 && records[0].logprobs[3] == -1.0f);
    ls_records_free(records, n);
}

/* Samples that came to nothing stand beside one that did not. */
static void what_came_to_nothing_has_no_values(void **state) {
    static const struct {
        ls_answer_format format;
        const char *text;
        int64_t n, n_missing, last; /* sequences, missing values, of which sequence the values are */
    } rows[] = {
        {LS_ANSWER_VERL,
         "{\"responses\":null,\"response_mask\":null,\"rollout_log_probs\":null}\n"
         "{\"responses\":[7,8],\"response_mask\":[1,1],\"rollout_log_probs\":null}\n"
         "{\"responses\":[7],\"response_mask\":[1],\"rollout_log_probs\":[-1]}",
         3, 2, 2},
        {LS_ANSWER_VERL,
         "{\"responses\":[null,[7,8]],\"response_mask\":[null,[1,1]],\"rollout_log_probs\":[null,[-1,NaN]]}", 2, 1, 1},
        {LS_ANSWER_SLIME,
         "{\"samples\":[{\"tokens\":[5],\"response_length\":0,\"loss_mask\":null,\"rollout_log_probs\":null},"
         "{\"tokens\":null,\"response_length\":null,\"rollout_log_probs\":null},"
         "{\"tokens\":[5,7],\"response_length\":1,\"rollout_log_probs\":null},"
         "{\"tokens\":[5,7],\"response_length\":1,\"rollout_log_probs\":[-1]}]}",
         4, 1, 3},
        {LS_ANSWER_OPENRLHF,
         "{\"sequences\":[null,[5,7]],\"action_mask\":[null,[1]],\"rollout_log_probs\":[null,[-1]]}", 2, 0, 1},
        {LS_ANSWER_TRL, "{\"prompt_ids\":[[5]],\"completion_ids\":[[7],null,[7]],\"logprobs\":[null,null,[-1]]}", 3, 1,
         2},
        {LS_ANSWER_VLLM,
         "{\"choices\":[{\"logprobs\":null,\"token_ids\":[7,8]},{\"logprobs\":null},{\"logprobs\":{\"content\":null}},"
         "{\"logprobs\":{\"token_logprobs\":[-1]}}]}",
         4, 2, 3},
        {LS_ANSWER_VLLM,
         "{\"custom_id\":\"a\",\"response\":null,\"error\":{\"message\":\"x\"}}\n"
         "{\"custom_id\":\"b\",\"response\":{\"status_code\":400,\"body\":{\"error\":{\"message\":\"x\"}}}}\n"
         "{\"custom_id\":\"c\",\"response\":{\"body\":{\"choices\":[{\"logprobs\":{\"token_logprobs\":[-1]}}]}}}",
         1, 0, 0},
        {LS_ANSWER_SGLANG,
         "{\"meta_info\":{\"output_token_logprobs\":null}}{\"meta_info\":{\"output_token_logprobs\":[[-1,7,null]]}}", 2,
         0, 1},
        {LS_ANSWER_LLAMA_CPP, /* its token ends within a character, and it was asked for values */
         "{\"tokens\":[7],\"generation_settings\":{\"n_probs\":1}}"
         "{\"tokens\":[7],\"completion_probabilities\":[{\"id\":7,\"logprob\":-1}]}",
         2, 1, 1},
        {LS_ANSWER_PRIME_RL,
         "{\"token_ids\":null,\"loss_mask\":null,\"inference_logprobs\":null,\"trainer_logprobs\":null}\n"
         "{\"token_ids\":[5,7],\"loss_mask\":[0,1],\"inference_logprobs\":null,\"trainer_logprobs\":[0,-1]}\n"
         "{\"token_ids\":[5,7],\"loss_mask\":[0,1],\"inference_logprobs\":[0,-1],\"trainer_logprobs\":null}",
         3, 1, 2},
        {LS_ANSWER_NEMO_RL,
         "{\"token_ids\":[null,[5,7]],\"token_loss_mask\":[null,[0,1]],\"generation_logprobs\":[null,[0,-1]],"
         "\"prev_logprobs\":[null,[0,-1]]}",
         2, 0, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_record *records;
        int64_t n, n_missing = 0;
        ls_error err;
        print_message("%s: %s\n", ls_answer_format_names[rows[i].format], rows[i].text);
        assert_ok(ls_answers_parse(&records, &n, rows[i].text, (int64_t)strlen(rows[i].text), "dump", rows[i].format,
                                   false, &err),
                  err);
        assert_int_equal(n, rows[i].n);
        for (int64_t s = 0; s < n; s++)
            for (int64_t k = 0; k < records[s].n_logprobs; k++) n_missing += records[s].logprob_missing[k];
        assert_int_equal(n_missing, rows[i].n_missing);
        assert_true(records[rows[i].last].n_logprobs > 0 && records[rows[i].last].logprobs[0] == -1.0f);
        ls_records_free(records, n);
    }
}

/* A uid of verl is the group's. */
static void samples_of_a_group_are_numbered(void **state) {
    static const char *const texts[] = {
        "{\"uid\":\"g\",\"responses\":[7],\"response_mask\":[1],\"rollout_log_probs\":[-1]}\n"
        "{\"uid\":\"h\",\"responses\":[7],\"response_mask\":[1],\"rollout_log_probs\":[-1]}\n"
        "{\"uid\":\"g\",\"responses\":[8],\"response_mask\":[1],\"rollout_log_probs\":[-1]}",
        "{\"uid\":[\"g\",\"h\",\"g\"],\"responses\":[[7],[7],[8]],\"response_mask\":[[1],[1],[1]],"
        "\"rollout_log_probs\":[[-1],[-1],[-1]]}"};
    static const char *const names[] = {"g/0", "h", "g/1"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        ls_record *records;
        int64_t n;
        ls_error err;
        assert_ok(
            ls_answers_parse(&records, &n, texts[i], (int64_t)strlen(texts[i]), "dump", LS_ANSWER_VERL, false, &err),
            err);
        assert_int_equal(n, 3);
        for (int64_t s = 0; s < 3; s++) assert_string_equal(records[s].id, names[s]);
        assert_int_equal(records[2].completion_ids[0], 8);
        ls_records_free(records, n);
    }
}

static void both_sides_make_a_dump(void **state) {
    static const struct {
        ls_answer_format format;
        const char *text;
    } rows[] = {
        {LS_ANSWER_VERL,
         "{\"responses\":[[7,8]],\"response_mask\":[[1,0]],\"rollout_log_probs\":[[-0.5,-1]],"
         "\"old_log_probs\":[[-0.75,-1]]}"},
        {LS_ANSWER_SLIME,
         "{\"tokens\":[5,7,8],\"response_length\":2,\"loss_mask\":[1,0],\"rollout_log_probs\":[-0.5,-1],"
         "\"log_probs\":[-0.75,-1]}"},
        {LS_ANSWER_OPENRLHF,
         "{\"sequences\":[5,7],\"action_mask\":[1],\"rollout_log_probs\":[-0.5],"
         "\"action_log_probs\":[-0.75]}"},
    };
    ls_dump dump;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int64_t at = rows[i].format == LS_ANSWER_OPENRLHF ? 1 : 0;
        assert_ok(ls_answers_dump(&dump, rows[i].text, (int64_t)strlen(rows[i].text), "dump", rows[i].format, &err),
                  err);
        assert_true(dump.n_sequences == 1 && dump.n_tokens == 2 && dump.n_masked == 1 && dump.offsets[1] == 2);
        assert_true(dump.mask[at] == 1 && dump.token_ids[at] == 7);
        assert_true(dump.rollout[at] == -0.5f && dump.trainer[at] == -0.75f);
        ls_dump_deinit(&dump);
    }
    check_failed(ls_answers_dump(&dump, "{}", 2, "dump", LS_ANSWER_TRL, &err), &err, "trl has one side");
    check_failed(ls_answers_dump(&dump, rows[1].text, 10, "dump", LS_ANSWER_SLIME, &err), &err, "dump: line 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_holds_the_same),        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(a_value_without_a_place_is_missing), cmocka_unit_test(what_came_to_nothing_has_no_values),
        cmocka_unit_test(samples_of_a_group_are_numbered),    cmocka_unit_test(both_sides_make_a_dump),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
