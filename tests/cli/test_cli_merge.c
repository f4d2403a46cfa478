/* `lockstep merge`: the merged model has the weights that the training run computed with, and what is no such adapter
 * is refused by name and leaves nothing behind. */
#define _GNU_SOURCE
#include "program.h"

#define BASE LS_FIXTURES "/jamba-moe"
#define LORA "\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4"

/* "KEY=PATH", good until the next call with the same slot. */
static const char *with_path(int slot, const char *key, const char *path) {
    static char texts[2][2 * PATH_BYTES];
    const size_t n = strlen(key), m = strlen(path);
    assert_true(n + m < sizeof texts[0]);
    memcpy(texts[slot], key, n);
    memcpy(texts[slot] + n, path, m + 1);
    return texts[slot];
}

static void merged_weights_are_those_of_the_run(void **state) {
    char wanted[64];
    json_t *file;
    (void)state;
    text_write(at("data.jsonl"),
               "{\"prompt_ids\":[1,2,3],\"completion_ids\":[5,6,7]}\n{\"prompt_ids\":[4],\"completion_ids\":[9,8]}\n");
    RUN_OK("train", "sft", "--set", "model=" BASE, "--set", with_path(0, "run=", at("run")), "--set",
           with_path(1, "data=", at("data.jsonl")), "--set", "lora_rank=3", "--set", "lora_alpha=7", "--set",
           "rate=0.05", "--set", "steps=2", "--set", "batch=2", "--set", "threads=1");
    RUN_OK("merge", at("run/checkpoints/step-00000002"), "--out", at("merged"));
    file = json_load_file(at("run/checkpoints/step-00000002/state.json"), 0, NULL);
    assert_non_null(file);
    snprintf(wanted, sizeof wanted, "weights %s", json_string_value(member(file, "weights")));
    if (strstr(last.out, wanted) == NULL) fail_msg("%s lacks %s", last.out, wanted);
    json_decref(file);
    text_write(at("tokens.jsonl"), "{\"id\":\"a\",\"token_ids\":[1,2,3,5,6,7]}\n");
    RUN_OK("score", "--model", at("merged"), "--tokens", at("tokens.jsonl"), "--out", at("scored.jsonl"));
    RUN("merge", at("run/checkpoints/step-00000002"), "--out", at("merged"));
    must_refuse("merged: exists already");
    RUN("inspect", at("run/checkpoints/step-00000002"));
    must_refuse("is an adapter (adapter_config.json)");
}

static void other_adapters_are_refused(void **state) {
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"{" LORA ",\"base_model_name_or_path\":\"someone/model\"}", "'someone/model' is no directory of a model here"},
        {"{" LORA "}", "names no base_model_name_or_path"},
        {"{" LORA ",\"use_dora\":true}", "adapter_config.json: use_dora: "},
        {"{" LORA ",\"rank_pattern\":{\"q_proj\":4}}", "adapter_config.json: rank_pattern: "},
        {"{" LORA ",\"modules_to_save\":[\"lm_head\"]}", "adapter_config.json: modules_to_save: "},
        {"{" LORA ",\"bias\":\"all\"}", "adapter_config.json: bias: 'all'"},
        {"{" LORA ",\"init_lora_weights\":\"pissa\"}", "init_lora_weights: 'pissa'"},
        {"{\"peft_type\":\"IA3\"}", "peft_type: 'IA3'"},
        {"{\"peft_type\":\"LORA\",\"r\":0,\"lora_alpha\":1}", "adapter_config.json: r: "},
        {"{\"r\":2}", "'peft_type' is missing"},
        {"{" LORA ",\"rank_pattern\":{},\"use_dora\":false,\"base_model_name_or_path\":\"" BASE "\"}",
         "adapter_model.safetensors: cannot open"},
    };
    (void)state;
    RUN_OK("init", "--config", BASE "/config.json", "--out", at("adapter"));
    unlink(at("adapter/config.json"));
    unlink(at("adapter/model.safetensors"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        text_write(at("adapter/adapter_config.json"), cases[i].config);
        RUN("merge", at("adapter"), "--out", at("no"));
        must_refuse(cases[i].says);
        assert_int_not_equal(access(at("no"), F_OK), 0);
        assert_int_not_equal(access(at("no.new"), F_OK), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_weights_are_those_of_the_run),
        cmocka_unit_test(other_adapters_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
