/* The configuration of Qwen3.5 and Qwen3-Next: defaults, what is derived, and a named refusal for whatever would change
 * the arithmetic. */
#define _GNU_SOURCE
#include <math.h>

#include "harness.h"
#include "model/architectures.h"

static ls_status parse(ls_model_config *out, const char *json, ls_error *err) {
    return ls_model_config_parse(out, json, (int64_t)strlen(json), "config.json", err);
}

/* A small good configuration with more members; word NULL: it must be read. */
static void parse_with(ls_model_config *out, const char *members, const char *word) {
    char json[2000];
    ls_error err;
    snprintf(json, sizeof json, "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":96%s%s%s}",
             strstr(members, "num_hidden_layers") == NULL ? ",\"num_hidden_layers\":8" : "",
             members[0] != '\0' ? "," : "", members);
    if (word == NULL) {
        assert_ok(parse(out, json, &err), err);
    } else {
        check_failed(parse(out, json, &err), &err, word);
        if (strstr(err.text, "config.json: ") != err.text) fail_msg("'%s' does not start with the file", err.text);
    }
}

static void refused(const char *members, const char *word) {
    ls_model_config config;
    parse_with(&config, members, word);
}

static void defaults_are_those_of_the_format(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"qwen3_5_text\"}", &err), err);
    assert_true(c.n_layers == 32 && c.hidden == 4096 && c.vocab == 248320 && c.ffn == 12288 && !c.tied);
    assert_true(c.n_heads == 16 && c.n_kv_heads == 4 && c.head_dim == 256 && c.rope.half == 32 && !c.qkv_bias);
    assert_true(c.delta_heads == 32 && c.delta_key_heads == 16 && c.d_state == 128 && c.d_inner == 4096);
    assert_true(c.d_conv == 4 && c.positions_max == 32768 && c.rms_eps == 1e-6f && c.n_experts == 1);
    assert_true(c.head_norms && c.head_gates && c.norms_above_one && !c.conv_bias && !c.pad_is_trained);
    assert_true(c.bos == -1 && c.pad == -1 && c.n_eos == 0 && c.dt_rank == 0 && c.ssd_heads == 0);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_int_equal(c.is_attention[i], i < 32 && i % 4 == 3);
    assert_true(fabsf(c.rope.inv_freq[1] - powf(10000.0f, -1.0f / 32)) < 1e-6f);
}

static void fields_are_honoured(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "\"full_attention_interval\":3", NULL);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_int_equal(c.is_attention[i], i == 2 || i == 5);
    /* The list says what the interval does not. */
    parse_with(&c,
               "\"full_attention_interval\":2,\"num_hidden_layers\":2,\"layer_types\":[\"full_attention\","
               "\"linear_attention\"]",
               NULL);
    assert_true(c.n_layers == 2 && c.is_attention[0] && !c.is_attention[1]);
    parse_with(
        &c,
        "\"linear_num_key_heads\":3,\"linear_num_value_heads\":6,\"linear_key_head_dim\":20,"
        "\"linear_value_head_dim\":10,\"linear_conv_kernel_dim\":3,\"tie_word_embeddings\":true,\"bos_token_id\":5,"
        "\"eos_token_id\":[7,8],\"pad_token_id\":null",
        NULL);
    assert_true(c.delta_key_heads == 3 && c.delta_heads == 6 && c.d_state == 20 && c.d_inner == 60 && c.d_conv == 3);
    assert_true(c.tied && c.bos == 5 && c.n_eos == 2 && c.eos[1] == 8 && c.pad == -1);
    assert_int_equal(ls_config_conv_dim(&c), 180);
    parse_with(&c,
               "\"head_dim\":20,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":100.0,"
               "\"partial_rotary_factor\":0.2,\"mrope_section\":[1,1,0],\"mrope_interleaved\":true}",
               NULL);
    assert_true(c.rope.half == 2 && c.rope.inv_freq[1] > 0.099f && c.rope.inv_freq[1] < 0.101f);
    parse_with(&c, "\"head_dim\":20,\"partial_rotary_factor\":1.0,\"rope_theta\":100.0", NULL);
    assert_int_equal(c.rope.half, 10);
    parse_with(&c,
               "\"attn_output_gate\":true,\"mamba_ssm_dtype\":\"float32\",\"mtp_num_hidden_layers\":1,"
               "\"mtp_use_dedicated_embeddings\":false,\"mlp_only_layers\":[],\"attention_bias\":false",
               NULL);
}

static void other_arithmetic_is_refused_by_name(void **state) {
    (void)state;
    refused("\"attention_bias\":true", "attention_bias: true");
    refused("\"attn_output_gate\":false", "attn_output_gate: false, expected true");
    refused("\"mamba_ssm_dtype\":\"bfloat16\"", "mamba_ssm_dtype: \"bfloat16\", expected \"float32\"");
    refused("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\", expected \"silu\"");
    refused("\"layer_types\":[\"linear_attention\"]", "layer_types: 1 items for 8 layers");
    refused("\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]", "layer_types: \"sliding_attention\"");
    refused("\"full_attention_interval\":0", "full_attention_interval: 0");
    refused("\"num_key_value_heads\":5", "num_key_value_heads: 5 does not divide num_attention_heads 16");
    refused("\"linear_num_key_heads\":5", "linear_num_key_heads: 5 does not divide linear_num_value_heads 32");
    refused("\"linear_key_head_dim\":257", "linear_key_head_dim: 257");
    refused("\"linear_key_head_dim\":256,\"linear_value_head_dim\":256",
            "linear attention: key_dim 256 times value_dim 256 is above 16384");
    refused("\"partial_rotary_factor\":1.5", "partial_rotary_factor: 1.5, expected a number above 0 and at most 1");
    refused("\"head_dim\":20,\"partial_rotary_factor\":0.25",
            "partial_rotary_factor: 0.25 of head_dim 20 is 5, expected even");
    refused("\"rope_parameters\":{\"rope_type\":\"dynamic\"}", "rope_parameters.rope_type: \"dynamic\"");
    refused("\"rope_parameters\":{\"rope_theta\":100.0,\"mrope_sections\":[1]}", "mrope_sections");
    refused("\"mlp_only_layers\":[1]", "mlp_only_layers");
    refused("\"num_experts\":4", "num_experts: 4");
    refused("\"vision_config\":{}", "vision_config");
    refused("\"architectures\":[\"Qwen3_5ForConditionalGeneration\"]", "expected \"Qwen3_5ForCausalLM\"");
}

static void mixtures_are_read(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"qwen3_5_moe_text\"}", &err), err);
    assert_true(c.n_layers == 40 && c.hidden == 2048 && c.vocab == 248320 && c.n_kv_heads == 2 && c.ffn == 512);
    assert_true(c.n_experts == 256 && c.top_k == 8 && c.shared_ffn == 512 && c.reweighs && c.delta_heads == 32);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_int_equal(c.is_moe[i], i < 40);
    assert_ok(parse(&c,
                    "{\"model_type\":\"qwen3_5_moe_text\",\"num_experts\":6,\"num_experts_per_tok\":6,"
                    "\"moe_intermediate_size\":9,\"shared_expert_intermediate_size\":11,\"router_aux_loss_coef\":0.1}",
                    &err),
              err);
    assert_true(c.n_experts == 6 && c.top_k == 6 && c.ffn == 9 && c.shared_ffn == 11);
    check_failed(parse(&c, "{\"model_type\":\"qwen3_5_moe_text\",\"num_experts\":7}", &err), &err,
                 "num_experts_per_tok: 8 exceeds the 7 experts");
    check_failed(parse(&c, "{\"model_type\":\"qwen3_5_moe_text\",\"num_experts\":1,\"num_experts_per_tok\":1}", &err),
                 &err, "one expert: a mixture has two at least");
    check_failed(parse(&c, "{\"model_type\":\"qwen3_5_moe_text\",\"norm_topk_prob\":true}", &err), &err,
                 "norm_topk_prob: true");
    check_failed(parse(&c, "{\"model_type\":\"qwen3_5_moe_text\",\"shared_expert_intermediate_size\":0}", &err), &err,
                 "shared_expert_intermediate_size: 0");
}

static void next_is_read(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"qwen3_next\",\"mlp_only_layers\":[],\"decoder_sparse_step\":1}", &err), err);
    assert_true(c.n_layers == 48 && c.hidden == 2048 && c.vocab == 151936 && c.n_kv_heads == 2 && c.ffn == 512);
    assert_true(c.n_experts == 512 && c.top_k == 10 && c.shared_ffn == 512 && c.reweighs && c.delta_by_head && !c.tied);
    for (int i = 0; i < LS_LAYERS_MAX; i++)
        assert_true(c.is_moe[i] == (i < 48) && c.is_attention[i] == (i < 48 && i % 4 == 3));
    assert_ok(parse(&c, "{\"model_type\":\"qwen3_next\",\"norm_topk_prob\":false,\"intermediate_size\":7}", &err), err);
    assert_true(!c.reweighs && c.ffn == 512);
    check_failed(parse(&c, "{\"model_type\":\"qwen3_next\",\"decoder_sparse_step\":2}", &err), &err,
                 "decoder_sparse_step: 2, expected 1");
    check_failed(parse(&c, "{\"model_type\":\"qwen3_next\",\"mlp_only_layers\":[1]}", &err), &err, "mlp_only_layers");
    check_failed(parse(&c, "{\"model_type\":\"qwen3_next\",\"num_experts\":0}", &err), &err, "num_experts: 0");
    check_failed(parse(&c, "{\"model_type\":\"qwen3_next\",\"attention_bias\":true}", &err), &err,
                 "attention_bias: true");
}

/* A file with images' layers as well is not of this type, and is told how it becomes one. */
static void files_with_images_are_told_the_way(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    check_failed(parse(&c, "{\"model_type\":\"qwen3_5\",\"text_config\":{\"model_type\":\"qwen3_5_text\"}}", &err),
                 &err, "model_type: \"qwen3_5\" has layers for images, which are not built; ");
    assert_non_null(strstr(err.text, "AutoModelForCausalLM.from_pretrained"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
        cmocka_unit_test(mixtures_are_read),
        cmocka_unit_test(next_is_read),
        cmocka_unit_test(files_with_images_are_told_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
