/* `lockstep merge`: the merged model has the weights that the training run computed with, and what is no such adapter
 * is refused by name and leaves nothing behind. */
#define _GNU_SOURCE
#include "program.h"

#define BASE LS_FIXTURES "/jamba-moe"
#define LORA "\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4"

/* "KEY=PATH", good until the next call with the same slot. */
static const char *with_path(int slot, const char *key, const char *path) {
    static char texts[3][2 * PATH_BYTES];
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
    assert_non_null(strstr(last.err, "\ntransformers computes Jamba's dt_proj without its adapter until "));
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
    RUN_OK("train", "sft", "--set", "model=" LS_FIXTURES "/mamba-small", "--set", with_path(0, "run=", at("mamba")),
           "--set", with_path(1, "data=", at("data.jsonl")), "--set", "lora_rank=1", "--set", "steps=1", "--set",
           "batch=2", "--set", "threads=1");
    assert_non_null(strstr(last.err, "\nPEFT refuses adapters of out_proj in models of this kind"));
}

/* A directory with an adapter is opened as a model: with the bits of the merged one, whoever opens it. */
static void an_adapter_is_a_model(void **state) {
    const char *adapter = at("run/checkpoints/step-00000002");
    (void)state;
    text_write(at("prompts.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[1,2,3]}\n{\"id\":\"b\",\"prompt_ids\":[7]}\n");
    RUN_OK("generate", "--model", at("merged"), "--prompts", at("prompts.jsonl"), "--max-tokens", "12", "--out",
           at("m.jsonl"));
    RUN_OK("generate", "--model", BASE, "--prompts", at("prompts.jsonl"), "--max-tokens", "12", "--out",
           at("base.jsonl"));
    RUN_OK("generate", "--model", adapter, "--prompts", at("prompts.jsonl"), "--max-tokens", "12", "--out",
           at("a.jsonl"));
    must_be_same_results(at("m.jsonl"), at("a.jsonl"));
    RUN("compare", at("m.jsonl"), at("base.jsonl"));
    assert_int_not_equal(last.code, 0); /* it is another model than its base */
    RUN_OK("generate", "--model", BASE, "--adapter", adapter, "--prompts", at("prompts.jsonl"), "--max-tokens", "12",
           "--out", at("b.jsonl"));
    must_be_same_results(at("m.jsonl"), at("b.jsonl"));
    RUN_OK("score", "--model", adapter, "--rollouts", at("m.jsonl"), "--out", at("s.jsonl"));
    RUN_OK("compare", at("m.jsonl"), at("s.jsonl"));
    RUN_OK("check", "--model", adapter, "--max-tokens", "4");
    RUN_OK("inspect", adapter);
    RUN("generate", "--model", BASE, "--base", BASE, "--prompts", at("prompts.jsonl"));
    must_refuse("adapter_config.json: cannot open");
    RUN("generate", "--model", BASE, "--base", BASE, "--adapter", adapter, "--prompts", at("prompts.jsonl"));
    must_refuse("--base: beside --adapter");
}

/* The base is where --base says, where its name is no directory here, or lies beside the adapter. */
static void a_base_is_found(void **state) {
    char line[4 * PATH_BYTES];
    (void)state;
    snprintf(line, sizeof line,
             "cd %s && mkdir elsewhere beside && cp run/checkpoints/step-00000002/adapter_* elsewhere && "
             "sed -i 's#\"base_model_name_or_path\": *\"[^\"]*\"#\"base_model_name_or_path\":\"owner/base\"#' "
             "elsewhere/adapter_config.json && "
             "cp elsewhere/adapter_* %s/* beside && "
             "sed -i 's#owner/base#%s/beside#' beside/adapter_config.json",
             scratch, BASE, scratch);
    assert_int_equal(system(line), 0);
    RUN("check", "--model", at("elsewhere"));
    must_refuse(
        "'owner/base' is no directory of a model here; --base names it; no hub is reached: `hf download owner/base");
    RUN_OK("generate", "--model", at("elsewhere"), "--base", BASE, "--prompts", at("prompts.jsonl"), "--max-tokens",
           "12", "--out", at("c.jsonl"));
    must_be_same_results(at("m.jsonl"), at("c.jsonl"));
    RUN_OK("generate", "--model", at("beside"), "--prompts", at("prompts.jsonl"), "--max-tokens", "12", "--out",
           at("d.jsonl"));
    must_be_same_results(at("m.jsonl"), at("d.jsonl"));
    RUN("chat", "--model", at("elsewhere"));
    must_refuse("is no directory of a model here");
}

/* Of the weights that a checkpoint is of. */
static void digest_of(char out[64], const char *run) {
    char path[PATH_BYTES + 64];
    json_t *file;
    snprintf(path, sizeof path, "%.400s/checkpoints/step-00000004/state.json", run);
    file = json_load_file(path, 0, NULL);
    assert_non_null(file);
    snprintf(out, 64, "%s", text_member(file, "weights"));
    json_decref(file);
}

/* A run that begins with an adapter trains on the merged weights, adapters on the adapter. Stopped and resumed it has
 * the bits of one that went through, and its checkpoint is a model like any other. */
static void runs_begin_with_an_adapter(void **state) {
    char whole[64], parts[64];
    (void)state;
#define SFT(run, model, steps)                                                                                      \
    RUN_OK("train", "sft", "--set", with_path(0, "model=", model), "--set", with_path(1, "run=", at(run)), "--set", \
           with_path(2, "data=", at("data.jsonl")), "--set", "lora_rank=2", "--set", "lora_alpha=3", "--set",       \
           "rate=0.05", "--set", "schedule=constant", "--set", "steps=" steps, "--set", "batch=2", "--set",         \
           "save_every=2", "--set", "threads=1")
    SFT("whole", at("run/checkpoints/step-00000002"), "4");
    digest_of(whole, at("whole"));
    SFT("parts", at("run/checkpoints/step-00000002"), "2");
    RUN_OK("train", "resume", at("parts"), "--set", "steps=4");
    digest_of(parts, at("parts"));
    assert_string_equal(whole, parts);
    SFT("onmerged", at("merged"), "4");
    digest_of(parts, at("onmerged"));
    assert_string_equal(whole, parts);
    RUN_OK("merge", at("whole/checkpoints/step-00000004"), "--out", at("twice"));
    RUN_OK("merge", at("onmerged/checkpoints/step-00000004"), "--out", at("twice2"));
    must_be_same_file(at("twice/model.safetensors"), at("twice2/model.safetensors"));
    RUN_OK("generate", "--model", at("twice"), "--prompts", at("prompts.jsonl"), "--max-tokens", "8", "--out",
           at("e.jsonl"));
    RUN_OK("generate", "--model", at("whole/checkpoints/step-00000004"), "--prompts", at("prompts.jsonl"),
           "--max-tokens", "8", "--out", at("f.jsonl"));
    must_be_same_results(at("e.jsonl"), at("f.jsonl"));
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

/* A run of all weights that begins with an adapter saves a model with its base's files, and has the bits of a run from
 * the merged model. */
static void whole_models_come_of_adapters(void **state) {
    static const char *const runs[] = {"wholemodel", "frommerged"};
    (void)state;
    for (int k = 0; k < 2; k++)
        RUN_OK("train", "sft", "--set",
               with_path(0, "model=", k == 0 ? at("run/checkpoints/step-00000002") : at("merged")), "--set",
               with_path(1, "run=", at(runs[k])), "--set", with_path(2, "data=", at("data.jsonl")), "--set",
               "rate=0.01", "--set", "schedule=constant", "--set", "steps=2", "--set", "batch=2", "--set", "threads=1");
    must_be_same_file(at("wholemodel/checkpoints/step-00000002/model.safetensors"),
                      at("frommerged/checkpoints/step-00000002/model.safetensors"));
    must_be_same_file(at("wholemodel/checkpoints/step-00000002/config.json"), BASE "/config.json");
    RUN_OK("check", "--model", at("wholemodel/checkpoints/step-00000002"), "--max-tokens", "2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_weights_are_those_of_the_run),
        cmocka_unit_test(an_adapter_is_a_model),
        cmocka_unit_test(a_base_is_found),
        cmocka_unit_test(runs_begin_with_an_adapter),
        cmocka_unit_test(whole_models_come_of_adapters),
        cmocka_unit_test(other_adapters_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
