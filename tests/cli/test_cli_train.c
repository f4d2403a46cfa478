/* lockstep train from the outside: a run from a configuration file, going on with it, what it leaves, refusals. */
#define _GNU_SOURCE
#include "program.h"

static void write_run(void) {
    FILE *file;
    text_write(at("pairs.jsonl"),
               "{\"prompt\":\"The cat\",\"completion\":\" sat on the mat.\"}\n"
               "{\"prompt\":\"A dog\",\"completion\":\" ran away.\"}\n");
    file = fopen(at("run.json"), "w");
    assert_non_null(file);
    fprintf(file,
            "{\"model\":\"%s\",\"run\":\"%s\",\"data\":\"%s\",\"batch\":2,\"steps\":6,\"rate\":1e-3,"
            "\"schedule_steps\":12,\"save_every\":2,\"keep\":2,\"threads\":2}",
            TINY, at("run"), at("pairs.jsonl"));
    assert_int_equal(fclose(file), 0);
}

static void a_run_goes_on_and_leaves_models(void **state) {
    (void)state;
    write_run();
    RUN_OK("train", "sft", "--config", at("run.json"));
    assert_non_null(strstr(last.err, "step 6/6  loss "));
    assert_int_equal(count_entries(at("run")), 4); /* checkpoints, database, lines, events */
    assert_int_equal(count_entries(at("run/checkpoints")), 2);
    assert_int_equal(count_lines(at("run/metrics.jsonl")), 6);
    RUN_OK("train", "sft", "--config", at("run.json"), "--set", "resume=true", "--set", "steps=12", "--set",
           "microbatch=1");
    assert_non_null(strstr(last.err, "going on from "));
    assert_int_equal(count_lines(at("run/metrics.jsonl")), 12);
    for (int64_t i = 0; i < 12; i++) {
        json_t *line = line_read(at("run/metrics.jsonl"), i);
        assert_int_equal(int_member(line, "step"), i + 1);
        assert_true(json_is_real(member(line, "loss/loss")) && json_is_number(member(line, "gradient_norm")));
        json_decref(line);
    }
}

static void in_one_go_it_is_the_same(void **state) {
    char run[PATH_BYTES + 8] = "run=";
    (void)state;
    memcpy(run + 4, at("again"), PATH_BYTES);
    RUN_OK("train", "sft", "--config", at("run.json"), "--set", run, "--set", "steps=12", "--set", "isa=generic",
           "--set", "recompute=true", "--set", "threads=1", "--set", "save_every=0");
    must_be_same_file(at("run/checkpoints/step-00000012/model.safetensors"),
                      at("again/checkpoints/step-00000012/model.safetensors"));
    must_be_same_file(at("run/checkpoints/step-00000012/optimizer.safetensors"),
                      at("again/checkpoints/step-00000012/optimizer.safetensors"));
    must_be_same_file(at("run/checkpoints/step-00000012/config.json"),
                      at("again/checkpoints/step-00000012/config.json"));
    must_be_same_file(at("run/checkpoints/step-00000012/tokenizer.json"),
                      at("again/checkpoints/step-00000012/tokenizer.json"));
    RUN_OK("check", "--model", at("again/checkpoints/step-00000012"), "--max-tokens", "8");
}

static void refusals_are_one_line(void **state) {
    (void)state;
    RUN("train", "sft", "--config", at("run.json"));
    must_refuse("the run has checkpoints, the newest of step 12");
    RUN("train", "sft", "--config", at("run.json"), "--set", "resume=true", "--set", "rate=2e-3");
    must_refuse("state.json: options.rate: was 0.001 and is 0.002 now");
    RUN("train", "sft", "--set", "bach=2");
    must_refuse("--set: 'bach' is no option of this run");
    RUN("train", "sft", "--set", "learning_rate=1e-4");
    must_refuse("'learning_rate' is no option of this run; did you mean rate?");
    RUN("train", "sft", "--set", "num_generations=4"); /* whose word sft does not have */
    must_refuse("'num_generations' is no option of this run; --keys lists all");
    RUN("train", "sft");
    must_refuse("data: missing");
    RUN("train", "sft", "--config", at("pairs.jsonl"));
    must_refuse("pairs.jsonl: invalid JSON at line 2");
    RUN("train");
    must_exit(1);
    RUN("train", "dream");
    must_exit(1);
    RUN("train", "sft", "--colour");
    must_exit(1);
    RUN_OK("train", "sft", "--keys");
    assert_non_null(strstr(last.out, "schedule_steps"));
    RUN_OK("train", "--help");
}

/* "KEY=PATH", good until the next call. */
static const char *with_path(const char *key, const char *path) {
    static char text[2 * PATH_BYTES];
    snprintf(text, sizeof text, "%s%.*s", key, PATH_BYTES, path);
    return text;
}

/* For a card that is not here; nothing is run, and no directory made. */
static void a_plan_is_told(void **state) {
    (void)state;
    RUN_OK("train", "plan", "sft", "--config", at("run.json"), "--set", "run=nowhere", "--card", "a100-40");
    assert_non_null(strstr(last.out, "plan for NVIDIA A100 40GB, 39.4 GiB"));
    assert_non_null(strstr(last.out, "plans fit; about "));
    assert_int_equal(access("nowhere", F_OK), -1);
    RUN_OK("train", "plan", "grpo", "--set", "model=" TINY, "--card", "h100-80", "--cards", "2", "--set",
           "moments_on=host", "--set", "recompute=true", "--set", "rows=1000", "--set", "engine.batch=7");
    assert_non_null(strstr(last.out, "  moments_on                     host"));
    assert_non_null(strstr(last.out, "  recompute                      true"));
    assert_non_null(strstr(last.out, "  rows                           1000"));
    assert_non_null(strstr(last.out, "  3 of 3 plans fit"));
    RUN("train", "plan", "grpo", "--set", "model=" TINY, "--card", "a100-40", "--set", "length=2000000", "--set",
        "prompts=1024", "--set", "samples=64", "--set", "rows=2000000");
    must_refuse("memory: the smallest plan needs ");
    RUN("train", "plan", "grpo", "--set", "model=" TINY, "--card", "h101");
    must_refuse("--card: 'h101' is no card that is known: h100-80, h200, b200, a100-80 or a100-40");
    RUN("train", "plan", "dream", "--card", "h200");
    must_refuse("'dream' is no kind of training: sft or grpo");
    RUN("train", "plan", "grpo", "--set", "model=" TINY, "--set", "device=cpu");
    must_refuse("device: cpu has the host's memory, which is not planned for; name a card: ");
    RUN("train", "plan");
    must_exit(1);
}

/* Models whose weights are not there; a refusal says which change would fit, and by layer plans as whole does. */
static void plans_need_no_weights(void **state) {
    (void)state;
    RUN_OK("init", "--shape", "jamba-3b", "--empty", "--out", at("hole"));
    assert_non_null(strstr(last.out, "all weights 0, bf16, for plans"));
    RUN("train", "plan", "grpo", "--set", with_path("model=", at("hole")), "--card", "a100-40", "--set",
        "task=sort-digits", "--set", "length=10240", "--set", "rows=10240");
    must_refuse("It fits with lora_rank=16, or 2 processes, a GPU each");
    RUN_OK("train", "plan", "grpo", "--set", with_path("model=", at("hole")), "--card", "h100-80", "--cards", "2",
           "--set", "task=sort-digits", "--set", "weights=by_layer", "--set", "rows=1024", "--set", "engine.batch=64");
    assert_non_null(strstr(last.out, "  weights by layer"));
}

/* States of half a million elements go from a prompt to its samples, and their gradients back. */
static void wide_states_are_shared(void **state) {
    char run[2 * PATH_BYTES];
    (void)state;
    snprintf(run, sizeof run, "run=%s/wide-run", scratch);
    text_write(at("wide.json"),
               "{\"architectures\": [\"Mamba2ForCausalLM\"], \"model_type\": \"mamba2\", \"hidden_size\": 512, "
               "\"expand\": 4, \"head_dim\": 64, \"num_heads\": 32, \"state_size\": 256, \"n_groups\": 1, "
               "\"conv_kernel\": 4, \"num_hidden_layers\": 1, \"vocab_size\": 99, \"dtype\": \"float32\", "
               "\"use_bias\": false, \"use_conv_bias\": true, \"hidden_act\": \"silu\", "
               "\"layer_norm_epsilon\": 1e-5, \"tie_word_embeddings\": true, \"residual_in_fp32\": true, "
               "\"time_step_limit\": [0.0, 1e30], \"eos_token_id\": 0, \"bos_token_id\": 0, \"pad_token_id\": 0}");
    RUN_OK("init", "--config", at("wide.json"), "--tokenizer", LS_SOURCE_DIR "/models/tiny-sort", "--out", at("wide"));
    RUN_OK("train", "grpo", "--set", with_path("model=", at("wide")), "--set", run, "--set", "task=sort-digits",
           "--set", "steps=1", "--set", "prompts=1", "--set", "samples=2", "--set", "max_tokens=4", "--set",
           "prefix=shared", "--set", "entropy_bonus=0.1", "--set", "save_every=0", "--set", "eval_every=0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_states_are_shared),   cmocka_unit_test(a_run_goes_on_and_leaves_models),
        cmocka_unit_test(in_one_go_it_is_the_same), cmocka_unit_test(refusals_are_one_line),
        cmocka_unit_test(a_plan_is_told),           cmocka_unit_test(plans_need_no_weights),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
