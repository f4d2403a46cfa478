/* Configurations of Llama, Mistral, Qwen2 and Qwen3: defaults, honoured fields, a named refusal for whatever would
 * change the arithmetic, and heads that belong to another configuration. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "harness.h"
#include "model/architectures.h"
#include "model/model.h"

static ls_status parse(ls_model_config *out, const char *json, ls_error *err) {
    return ls_model_config_parse(out, json, (int64_t)strlen(json), "config.json", err);
}

/* A small good configuration of the type with more members; word NULL: it must be read. */
static void parse_with(ls_model_config *out, const char *type, const char *members, const char *word) {
    char json[2000];
    ls_error err;
    snprintf(json, sizeof json, "{\"model_type\":\"%s\",\"hidden_size\":64,\"num_hidden_layers\":3%s%s%s%s%s}", type,
             strstr(members, "num_attention_heads\":") != NULL ? "" : ",\"num_attention_heads\":4",
             strstr(members, "num_key_value_heads\":") != NULL ? "" : ",\"num_key_value_heads\":2",
             strcmp(type, "mistral") == 0 ? ",\"sliding_window\":null" : "", members[0] != '\0' ? "," : "", members);
    if (word == NULL) {
        assert_ok(parse(out, json, &err), err);
    } else {
        check_failed(parse(out, json, &err), &err, word);
        if (strstr(err.text, "config.json: ") != err.text) fail_msg("'%s' does not start with the file", err.text);
    }
}

static void refused(const char *type, const char *members, const char *word) {
    ls_model_config config;
    parse_with(&config, type, members, word);
}

static void accepted(const char *type, const char *members) {
    ls_model_config config;
    parse_with(&config, type, members, NULL);
}

static void defaults_are_those_of_the_format(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"llama\"}", &err), err);
    assert_true(c.n_layers == 32 && c.hidden == 4096 && c.vocab == 32000 && c.ffn == 11008 && c.n_heads == 32);
    assert_true(c.n_kv_heads == 32 && c.head_dim == 128 && c.rope.half == 64 && c.rope.scale == 1.0f);
    assert_true(!c.head_norms && !c.qkv_bias && !c.o_bias && !c.tied && c.rms_eps == 1e-6f && c.positions_max == 2048);
    assert_true(c.bos == 1 && c.pad == -1 && c.n_eos == 1 && c.eos[0] == 2);
    assert_true(c.rope.inv_freq[0] == 1.0f && c.rope.inv_freq[32] == 0.01f);
    assert_ok(parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":null}", &err), err);
    assert_true(c.n_kv_heads == 8 && c.ffn == 14336 && c.positions_max == 131072);
    assert_ok(parse(&c, "{\"model_type\":\"qwen2\"}", &err), err);
    assert_true(c.n_kv_heads == 32 && c.vocab == 151936 && c.qkv_bias && !c.o_bias && c.bos == -1 && c.n_eos == 0);
    assert_ok(parse(&c, "{\"model_type\":\"qwen3\",\"hidden_size\":1024}", &err), err);
    assert_true(c.head_dim == 128 && c.head_norms && !c.qkv_bias && c.n_eos == 0);
    assert_ok(parse(&c, "{\"model_type\":\"qwen3_moe\"}", &err), err);
    assert_true(c.ffn == 768 && c.n_experts == 128 && c.top_k == 8 && !c.reweighs && c.head_norms && c.is_moe[23]);
    assert_ok(parse(&c, "{\"model_type\":\"mixtral\",\"norm_topk_prob\":null}", &err), err);
    assert_true(c.ffn == 14336 && c.n_experts == 8 && c.top_k == 2 && c.reweighs && !c.head_norms && c.is_moe[31]);
    assert_ok(parse(&c, "{\"model_type\":\"qwen3\"}", &err), err);
    for (int i = 0; i < 32; i++) assert_true(c.is_attention[i] && !c.is_moe[i]);
}

static void fields_are_honoured(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "llama", "\"head_dim\":10,\"attention_bias\":true,\"tie_word_embeddings\":true", NULL);
    assert_true(c.head_dim == 10 && c.rope.half == 5 && c.qkv_bias && c.o_bias && c.tied);
    parse_with(&c, "llama", "\"num_key_value_heads\":null", NULL);
    assert_int_equal(c.n_kv_heads, 4);
    parse_with(&c, "llama", "\"rope_theta\":100.0", NULL);
    assert_true(c.rope.inv_freq[4] == 0.1f);
    parse_with(&c, "llama", "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":100}", NULL);
    assert_true(c.rope.inv_freq[4] == 0.1f);
    parse_with(&c, "llama", "\"rope_theta\":100.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", NULL);
    assert_true(c.rope.inv_freq[4] == 0.05f);
    parse_with(&c, "qwen3", "\"attention_bias\":true", NULL);
    assert_true(c.qkv_bias && c.o_bias && c.head_norms);
    parse_with(&c, "qwen2", "\"eos_token_id\":[5,6],\"bos_token_id\":null", NULL);
    assert_true(c.n_eos == 2 && c.eos[1] == 6 && c.bos == -1);
}

static void check_windows(const ls_model_config *c, int32_t first, int32_t second, int32_t third) {
    assert_true(c->window[0] == first && c->window[1] == second && c->window[2] == third);
}

/* Which layers have one, as transformers has it. */
static void windows_are_of_layers(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"mistral\"}", &err), err);
    for (int i = 0; i < 32; i++) assert_int_equal(c.window[i], 4096);
    assert_ok(parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":8192}", &err), err);
    check_windows(&c, 8192, 8192, 8192);
    assert_ok(parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":null}", &err), err);
    check_windows(&c, 0, 0, 0);
    parse_with(&c, "mixtral", "\"sliding_window\":2147483647", NULL);
    check_windows(&c, INT32_MAX, INT32_MAX, INT32_MAX);
    parse_with(&c, "mixtral", "", NULL);
    check_windows(&c, 0, 0, 0);
    parse_with(&c, "qwen2", "\"sliding_window\":16,\"max_window_layers\":0", NULL); /* not used */
    check_windows(&c, 0, 0, 0);
    parse_with(&c, "qwen2", "\"use_sliding_window\":true", NULL); /* from layer 28 on */
    check_windows(&c, 0, 0, 0);
    parse_with(&c, "qwen2", "\"use_sliding_window\":true,\"max_window_layers\":1", NULL);
    check_windows(&c, 0, 4096, 4096);
    parse_with(&c, "qwen3", "\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":2", NULL);
    check_windows(&c, 0, 0, 16);
    parse_with(&c, "qwen3",
               "\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":0,\"layer_types\":"
               "[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]",
               NULL);
    check_windows(&c, 16, 0, 16);
    parse_with(&c, "qwen2", "\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0", NULL);
    check_windows(&c, 0, 0, 0);
    parse_with(&c, "qwen3_moe", "\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":3", NULL);
    check_windows(&c, 16, 16, 16); /* max_window_layers does not count there */
    parse_with(&c, "qwen3_moe", "\"sliding_window\":16", NULL);
    check_windows(&c, 0, 0, 0);
}

static void inert_and_neutral_fields_are_accepted(void **state) {
    (void)state;
    accepted("llama",
             "\"attention_dropout\":0.1,\"mlp_bias\":false,\"pretraining_tp\":1,\"hidden_act\":\"silu\","
             "\"rope_scaling\":null,\"use_cache\":true,\"rope_theta\":null");
    accepted("qwen2",
             "\"use_sliding_window\":false,\"sliding_window\":4096,\"max_window_layers\":21,\"use_mrope\":false");
    accepted("qwen3",
             "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"],\"max_window_layers\":2");
    accepted("mistral", "\"partial_rotary_factor\":1.0");
}

static void other_arithmetic_is_refused_by_name(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    refused("qwen3_moe", "\"decoder_sparse_step\":2", "decoder_sparse_step: 2, expected 1");
    refused("qwen3_moe", "\"mlp_only_layers\":[1]", "mlp_only_layers: a list of 1 items, expected an empty list");
    refused("qwen3_moe", "\"num_experts\":1,\"num_experts_per_tok\":1", "one expert");
    refused("qwen3_moe", "\"num_experts\":4,\"num_local_experts\":5", "num_local_experts: 5, but num_experts is 4");
    refused("mixtral", "\"num_local_experts\":2,\"num_experts_per_tok\":3", "num_experts_per_tok: 3 exceeds the 2");
    refused("llama", "\"mlp_bias\":true", "mlp_bias: true, expected false");
    refused("llama", "\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\"");
    refused("llama", "\"pretraining_tp\":2", "pretraining_tp: 2");
    refused("llama", "\"partial_rotary_factor\":0.5", "partial_rotary_factor: 0.5, expected 1");
    refused("llama", "\"query_pre_attn_scalar\":224", "query_pre_attn_scalar: 224, expected no such field");
    refused("qwen3", "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]",
            "layer_types: layer 1 is \"sliding_attention\", but no window is used");
    refused("qwen2",
            "\"use_sliding_window\":true,\"sliding_window\":null,\"layer_types\":[\"sliding_attention\","
            "\"full_attention\",\"full_attention\"]",
            "layer 0 is \"sliding_attention\", but no window is used");
    refused("qwen2", "\"use_sliding_window\":true,\"layer_types\":[\"full_attention\"]", "layer_types: 1 items for 3");
    refused("qwen2", "\"use_sliding_window\":true,\"max_window_layers\":null", "max_window_layers: null");
    refused("qwen3", "\"use_sliding_window\":true,\"sliding_window\":0", "sliding_window: 0");
    refused("mixtral", "\"sliding_window\":0", "sliding_window: 0");
    refused("qwen3_moe",
            "\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\",\"full_attention\","
            "\"sliding_attention\"]",
            "layer 1 is \"full_attention\", but the window");
    check_failed(parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":-1}", &err), &err, "sliding_window: -1");
    check_failed(parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":4294967296}", &err), &err,
                 "sliding_window: 4294967296");
    refused("llama", "\"sliding_window\":4096", "sliding_window: 4096, expected no such field");
    refused("llama", "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}",
            "rope_scaling.rope_type: \"dynamic\": its frequencies change with the length");
    refused("llama", "\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1.0]}",
            "rope_parameters.rope_type: \"longrope\"");
    refused("llama", "\"rope_scaling\":{\"type\":\"ours\"}", "\"ours\"; default, linear, llama3 and yarn are built");
    refused("llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"mrope_section\":[1,2]}",
            "rope_scaling: mrope_section is no parameter");
}

static void ranges_are_checked(void **state) {
    (void)state;
    refused("llama", "\"num_key_value_heads\":3", "num_key_value_heads: 3 does not divide num_attention_heads 4");
    refused("llama", "\"num_attention_heads\":5,\"num_key_value_heads\":5",
            "num_attention_heads: 5 does not divide hidden_size 64");
    refused("llama", "\"head_dim\":7", "head_dim: 7; heads that rotate are even");
    refused("llama", "\"head_dim\":514", "head_dim: 514; heads that rotate are even and at most 512");
    refused("llama", "\"head_dim\":1073741824", "exceeds 32 bits");
    refused("llama", "\"rope_theta\":1.0", "rope_theta: 1, expected a number above 1");
    refused("llama", "\"rope_theta\":\"big\"", "rope_theta: \"big\"");
    refused("llama", "\"rope_scaling\":[]", "rope_scaling: a list of 0 items, expected an object");
    refused("llama", "\"rope_scaling\":{\"type\":3}", "rope_scaling.rope_type: 3, expected a name");
    refused("llama", "\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.factor: missing");
    refused("llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}", "rope_scaling.factor: 0.5");
    refused("llama",
            "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}",
            "high_freq_factor 4 is not above low_freq_factor 4");
    refused("llama", "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":1}",
            "rope_scaling.truncate: 1");
    refused("qwen3", "\"layer_types\":[\"full_attention\"]", "layer_types: 1 items for 3 layers");
}

/* A fixture's weights under another configuration. */
static void check_weights(const char *fixture, const char *config, const char *word) {
    char dir[] = "/tmp/ls-test-XXXXXX", path[600], target[600], command[100];
    ls_device *device = test_device(1, LS_ISA_GENERIC);
    ls_model *model;
    ls_error err;
    FILE *file;
    assert_non_null(mkdtemp(dir));
    snprintf(target, sizeof target, "%s/%s/model.safetensors", LS_FIXTURES, fixture);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(symlink(target, path), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(config, file);
    assert_int_equal(fclose(file), 0);
    check_failed(ls_model_open(&model, device, dir, &err), &err, word);
    assert_null(model);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    test_device_close(device);
}

#define SIZES                                                                                                        \
    "\"hidden_size\":32,\"intermediate_size\":40,\"num_hidden_layers\":2,\"vocab_size\":96,\"num_attention_heads\":" \
    "4,\"num_key_value_heads\":2"

static void weights_of_another_configuration_are_refused(void **state) {
    (void)state;
    check_weights("llama-small", "{\"model_type\":\"llama\"," SIZES "}", "missing tensor lm_head.weight");
    check_weights("llama-small",
                  "{\"model_type\":\"llama\",\"tie_word_embeddings\":true,\"attention_bias\":true," SIZES "}",
                  "missing tensor model.layers.0.self_attn.q_proj.bias");
    check_weights("qwen2-small", "{\"model_type\":\"llama\",\"tie_word_embeddings\":true," SIZES "}",
                  "k_proj.bias: the configuration");
    check_weights("llama-small", "{\"model_type\":\"qwen3\",\"head_dim\":8,\"tie_word_embeddings\":true," SIZES "}",
                  "missing tensor model.layers.0.self_attn.q_norm.weight");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(windows_are_of_layers),
        cmocka_unit_test(inert_and_neutral_fields_are_accepted),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
        cmocka_unit_test(ranges_are_checked),
        cmocka_unit_test(weights_of_another_configuration_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
