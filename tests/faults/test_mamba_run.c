/* Models of Mamba alone from its configuration to a policy-gradient run, by the program: fresh weights, the check over
 * 4,096 tokens, records, supervised steps, steps with rewards that stop and go on, and a fault that the gate finds. */
#define _GNU_SOURCE
#include "faults.h"

static const char sound_program[] = LS_PROGRAM;
#undef LS_PROGRAM
#define LS_PROGRAM program
static const char *program = sound_program;

#include "cli/program.h"

#define SORT LS_SOURCE_DIR "/models/tiny-sort"

/* For the tokenizer of tiny-sort, whose first tokens are padding, beginning and end. */
static const char configuration[] =
    "{\"architectures\":[\"MambaForCausalLM\"],\"model_type\":\"mamba\",\"dtype\":\"bfloat16\",\"vocab_size\":99,"
    "\"hidden_size\":48,\"num_hidden_layers\":3,\"intermediate_size\":80,\"state_size\":8,\"conv_kernel\":4,"
    "\"time_step_rank\":5,\"use_bias\":false,\"use_conv_bias\":true,\"hidden_act\":\"silu\","
    "\"layer_norm_epsilon\":1e-05,\"residual_in_fp32\":true,\"rescale_prenorm_residual\":false,"
    "\"tie_word_embeddings\":true,\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}";

static const char configuration2[] =
    "{\"architectures\":[\"Mamba2ForCausalLM\"],\"model_type\":\"mamba2\",\"dtype\":\"bfloat16\",\"vocab_size\":99,"
    "\"hidden_size\":48,\"num_hidden_layers\":3,\"num_heads\":6,\"head_dim\":16,\"n_groups\":2,\"state_size\":8,"
    "\"conv_kernel\":4,\"time_step_limit\":[0.0,Infinity],\"tie_word_embeddings\":true,\"bos_token_id\":1,"
    "\"eos_token_id\":2,\"pad_token_id\":0}";

static const char nemotron[] =
    "{\"architectures\":[\"NemotronHForCausalLM\"],\"model_type\":\"nemotron_h\",\"dtype\":\"bfloat16\","
    "\"vocab_size\":99,\"hidden_size\":48,\"hybrid_override_pattern\":\"M-M*-\",\"num_hidden_layers\":5,"
    "\"intermediate_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,"
    "\"mamba_num_heads\":6,\"mamba_head_dim\":16,\"n_groups\":2,\"ssm_state_size\":8,\"conv_kernel\":4,"
    "\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}";

static const char bamba[] =
    "{\"architectures\":[\"BambaForCausalLM\"],\"model_type\":\"bamba\",\"dtype\":\"bfloat16\",\"vocab_size\":99,"
    "\"hidden_size\":48,\"intermediate_size\":64,\"num_hidden_layers\":3,\"attn_layer_indices\":[1],"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"mamba_n_heads\":6,\"mamba_n_groups\":2,"
    "\"mamba_d_state\":8,\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}";

static const char qwen3_5[] =
    "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\",\"dtype\":\"bfloat16\",\"vocab_size\":"
    "99,"
    "\"hidden_size\":48,\"intermediate_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":12,\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}";

static const char qwen3_5_moe[] =
    "{\"architectures\":[\"Qwen3_5MoeForCausalLM\"],\"model_type\":\"qwen3_5_moe_text\",\"dtype\":\"bfloat16\","
    "\"vocab_size\":99,\"hidden_size\":48,\"moe_intermediate_size\":24,\"shared_expert_intermediate_size\":20,"
    "\"num_experts\":5,\"num_experts_per_tok\":2,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":12,\"bos_token_id\":1,\"eos_token_id\":2,"
    "\"pad_token_id\":0}";

#define GRANITE(experts, layers)                                                                                       \
    "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"model_type\":\"granitemoehybrid\",\"dtype\":\"bfloat16\"," \
    "\"vocab_size\":99,\"hidden_size\":48,\"intermediate_size\":24,\"shared_intermediate_size\":20,"                   \
    "\"num_local_experts\":" experts ",\"num_experts_per_tok\":2,\"num_hidden_layers\":3,\"layer_types\":[" layers     \
    "],\"num_attention_heads\":4,\"num_key_value_heads\":2,\"mamba_n_heads\":6,\"mamba_n_groups\":2,"                  \
    "\"mamba_d_state\":8,\"embedding_multiplier\":12,\"residual_multiplier\":0.22,\"attention_multiplier\":0.08,"      \
    "\"logits_scaling\":6,\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0}"
static const char granite[] = GRANITE("5", "\"mamba\",\"attention\",\"mamba\"");

/* KEY=PATH for --set, good until the program ends. */
static const char *setting(const char *key, const char *path) {
    static char texts[64][PATH_BYTES + 16];
    static int n;
    assert_true(n < 64);
    snprintf(texts[n], sizeof texts[n], "%s=%.*s", key, PATH_BYTES, path);
    return texts[n++];
}

static void fresh_weights_are_a_model(void **state) {
    json_t *result;
    (void)state;
    text_write(at("config.json"), configuration);
    RUN_OK("init", "--config", at("config.json"), "--tokenizer", SORT, "--seed", "3", "--out", at("fresh"));
    assert_non_null(strstr(last.out, "49344 parameters, bf16, weights "));
    RUN_OK("inspect", "--json", at("fresh"));
    result = json_loads(last.out, 0, NULL);
    assert_non_null(result);
    assert_int_equal(int_member(member(result, "config"), "ffn"), 0);
    assert_string_equal(text_member(json_array_get(member(member(result, "config"), "layers"), 2), "ffn"), "none");
    assert_int_equal(json_array_size(member(result, "pools")), 2);
    assert_int_equal(int_member(result, "parameters"), 49344);
    json_decref(result);
    RUN_OK("inspect", at("fresh"));
    assert_non_null(strstr(last.out, "0 attention, 3 Mamba"));
    assert_null(strstr(last.out, "KV pages"));
}

static void generation_and_scoring_are_one(void **state) {
    static const char *const models[] = {"fresh",
                                         LS_FIXTURES "/mamba-small",
                                         LS_FIXTURES "/mamba-odd",
                                         LS_FIXTURES "/falcon-mamba-small",
                                         LS_FIXTURES "/mamba2-small",
                                         LS_FIXTURES "/mamba2-odd",
                                         LS_FIXTURES "/nemotron-h-small",
                                         LS_FIXTURES "/nemotron-h-odd",
                                         LS_FIXTURES "/bamba-small",
                                         LS_FIXTURES "/qwen3.5-small",
                                         LS_FIXTURES "/qwen3.5-odd"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (int k = 0; k < 2; k++) {
            RUN_OK("check", "--model", i == 0 ? at(models[i]) : models[i], "--max-tokens", SANITIZED ? "64" : "256",
                   "--samples", "1", "--dtype", k == 0 ? "f32" : "bf16", "--score-chunk", "7");
            if (strstr(last.out, SANITIZED ? "1024 generated" : "4096 generated") == NULL ||
                strstr(last.out, "differing bits   0\n") == NULL)
                fail_msg("%s: check said: %s", models[i], last.out);
        }
    RUN_OK("task", "sort-digits", "--n", "4", "--options", "count=4", "--out", at("prompts.jsonl"));
    RUN_OK("generate", "--model", at("fresh"), "--prompts", at("prompts.jsonl"), "--max-tokens", "9", "--samples", "3",
           "--out", at("rollouts.jsonl"));
    RUN_OK("score", "--model", at("fresh"), "--rollouts", at("rollouts.jsonl"), "--out", at("scores.jsonl"));
    RUN_OK("compare", at("rollouts.jsonl"), at("scores.jsonl"));
}

static void supervised_steps_go_on(void **state) {
    const char *model = setting("model", at("fresh")), *data = setting("data", at("pairs.jsonl"));
    const char *run = setting("run", at("sft")), *again = setting("run", at("sft-again"));
    (void)state;
    RUN_OK("task", "sort-digits", "--n", "512", "--options", "count=4", "--format", "sft", "--out", at("pairs.jsonl"));
    RUN_OK("train", "sft", "--config", SORT "/sft.json", "--set", model, "--set", data, "--set", run, "--set",
           "batch=16", "--set", "leaf=8", "--set", "warmup=2", "--set", "schedule_steps=8", "--set", "steps=4", "--set",
           "save_every=4");
    RUN_OK("train", "sft", "--config", SORT "/sft.json", "--set", model, "--set", data, "--set", run, "--set",
           "batch=16", "--set", "leaf=8", "--set", "warmup=2", "--set", "schedule_steps=8", "--set", "steps=8", "--set",
           "resume=true");
    RUN_OK("train", "sft", "--config", SORT "/sft.json", "--set", model, "--set", data, "--set", again, "--set",
           "batch=16", "--set", "leaf=8", "--set", "warmup=2", "--set", "schedule_steps=8", "--set", "steps=8", "--set",
           "recompute=true", "--set", "threads=1");
    must_be_same_file(at("sft/checkpoints/step-00000008/model.safetensors"),
                      at("sft-again/checkpoints/step-00000008/model.safetensors"));
    must_be_same_file(at("sft/checkpoints/step-00000008/config.json"), at("config.json"));
    RUN_OK("check", "--model", at("sft/checkpoints/step-00000008"), "--prompts", at("prompts.jsonl"), "--max-tokens",
           "9");
}

#define GRPO(model, run)                                                                                             \
    "train", "grpo", "--config", SORT "/grpo.json", "--set", (model), "--set", (run), "--set", "prompts=4", "--set", \
        "samples=4", "--set", "warmup=1", "--set", "schedule_steps=4", "--set", "eval_every=0"

/* The digest that the program said last. */
static void copy_digest(char out[24]) {
    const char *words = strstr(last.err, "digest ");
    if (words == NULL) words = strstr(last.out, "digest ");
    if (words == NULL) fail_msg("no digest in: %s%s", last.out, last.err);
    snprintf(out, 24, "%.23s", words);
}

static void steps_with_rewards_have_one_digest(void **state) {
    const char *model = setting("model", at("sft/checkpoints/step-00000008"));
    char whole[24], other[24];
    (void)state;
    RUN_OK(GRPO(model, setting("run", at("grpo"))), "--set", "steps=4");
    if (strstr(last.err, "mismatch 0 of ") == NULL) fail_msg("%s", last.err);
    copy_digest(whole);
    RUN_OK(GRPO(model, setting("run", at("grpo-1"))), "--set", "steps=4", "--set", "threads=1", "--set",
           "engine.preempt-every=3", "--set", "engine.chunk=2");
    copy_digest(other);
    assert_string_equal(other, whole);
    RUN_OK(GRPO(model, setting("run", at("grpo-2"))), "--set", "steps=2", "--set", "save_every=1");
    copy_digest(other);
    assert_string_not_equal(other, whole);
    RUN_OK(GRPO(model, setting("run", at("grpo-2"))), "--set", "steps=4", "--set", "resume=true");
    copy_digest(other);
    assert_string_equal(other, whole);
}

/* The same, shorter, and with an adapter. */
static void goes_the_same_way(const char *configuration_text, const char *name, const char *line) {
    char base[64], sft[64], again[64], grpo[64], levers[64], lora[64], step[128], other_step[128], config[64];
    char whole[24], other[24];
    const char *model, *trained, *data = setting("data", at("pairs.jsonl"));
    snprintf(base, sizeof base, "%s", name);
    snprintf(config, sizeof config, "%s.json", name);
    snprintf(sft, sizeof sft, "%s-sft", name);
    snprintf(again, sizeof again, "%s-again", name);
    snprintf(grpo, sizeof grpo, "%s-grpo", name);
    snprintf(levers, sizeof levers, "%s-levers", name);
    snprintf(lora, sizeof lora, "%s-lora", name);
    snprintf(step, sizeof step, "%s/checkpoints/step-00000004", sft);
    text_write(at(config), configuration_text);
    RUN_OK("init", "--config", at(config), "--tokenizer", SORT, "--seed", "3", "--out", at(base));
    RUN_OK("inspect", at(base));
    if (strstr(last.out, line) == NULL) fail_msg("%s", last.out);
    model = setting("model", at(base));
    RUN_OK("train", "sft", "--config", SORT "/sft.json", "--set", model, "--set", data, "--set",
           setting("run", at(sft)), "--set", "batch=16", "--set", "leaf=8", "--set", "warmup=2", "--set",
           "schedule_steps=8", "--set", "steps=4", "--set", "save_every=4");
    RUN_OK("train", "sft", "--config", SORT "/sft.json", "--set", model, "--set", data, "--set",
           setting("run", at(again)), "--set", "batch=16", "--set", "leaf=8", "--set", "warmup=2", "--set",
           "schedule_steps=8", "--set", "steps=4", "--set", "save_every=4", "--set", "recompute=true", "--set",
           "threads=1");
    trained = setting("model", at(step));
    snprintf(step, sizeof step, "%s/checkpoints/step-00000004/model.safetensors", sft);
    snprintf(other_step, sizeof other_step, "%s/checkpoints/step-00000004/model.safetensors", again);
    must_be_same_file(at(step), at(other_step));
    RUN_OK(GRPO(trained, setting("run", at(grpo))), "--set", "steps=2");
    if (strstr(last.err, "mismatch 0 of ") == NULL) fail_msg("%s", last.err);
    copy_digest(whole);
    RUN_OK(GRPO(trained, setting("run", at(levers))), "--set", "steps=2", "--set", "threads=1", "--set",
           "engine.preempt-every=3", "--set", "engine.chunk=2", "--set", "engine.preempt-by=alternate");
    copy_digest(other);
    assert_string_equal(other, whole);
    RUN_OK(GRPO(trained, setting("run", at(lora))), "--set", "steps=2", "--set", "lora_rank=2");
    if (strstr(last.err, "mismatch 0 of ") == NULL) fail_msg("%s", last.err);
}

static void mamba2_goes_the_same_way(void **state) {
    (void)state;
    goes_the_same_way(configuration2, "second", "Mamba-2      d_inner 96, 6 heads, 2 groups, d_state 8, d_conv 4");
    goes_the_same_way(nemotron, "nemotron", "layers       5: 1 attention, 2 Mamba, 0 with experts");
    goes_the_same_way(bamba, "bamba", "layers       3: 1 attention, 2 Mamba, 0 with experts");
    goes_the_same_way(granite, "granite", "layers       3: 1 attention, 2 Mamba, 3 with experts");
    goes_the_same_way(qwen3_5, "qwen", "layers       4: 1 attention, 3 delta rule, 0 with experts");
    goes_the_same_way(qwen3_5_moe, "qwen-moe", "layers       4: 1 attention, 3 delta rule, 4 with experts");
}

static void the_gate_stops_a_fault(void **state) {
    static const char *const faults[] = {"conv-short-chunk", "stale-slot"};
    const char *model = setting("model", at("fresh"));
    (void)state;
    program = LS_FAULTY_PROGRAM;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        char bundle[PATH_BYTES + 64];
        snprintf(bundle, sizeof bundle, "%.400s/mismatch-00000001", at(faults[i]));
        RUN(GRPO(model, setting("run", at(faults[i]))), "--set", "steps=1", "--set", setting("inject", faults[i]),
            "--set", "engine.fork=off", "--set", "engine.prefix=off", "--set", "engine.chunk=2", "--set",
            "engine.batch=4");
        must_exit(3);
        if (strstr(last.err, "layer 0, mixer (mamba)") == NULL) fail_msg("%s: %s", faults[i], last.err);
        RUN("train", "replay", bundle, "--inject", faults[i]);
        must_exit(3);
        RUN("train", "replay", bundle); /* the fault is mended */
        must_exit(0);
    }
    program = sound_program;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fresh_weights_are_a_model), cmocka_unit_test(generation_and_scoring_are_one),
        cmocka_unit_test(supervised_steps_go_on),    cmocka_unit_test(steps_with_rewards_have_one_digest),
        cmocka_unit_test(mamba2_goes_the_same_way),  cmocka_unit_test(the_gate_stops_a_fault),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
