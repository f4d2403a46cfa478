/* The configuration of Granite 4: defaults, what is derived, and a named refusal for whatever would change the
 * arithmetic. */
#define _GNU_SOURCE
#include <math.h>

#include "harness.h"
#include "model/architectures.h"

static ls_status parse(ls_model_config *out, const char *json, ls_error *err) {
    return ls_model_config_parse(out, json, (int64_t)strlen(json), "config.json", err);
}

/* A small good configuration, of these layers, with more members; word NULL: it must be read. */
static void parse_with(ls_model_config *out, const char *layers, const char *members, const char *word) {
    char json[2000];
    ls_error err;
    snprintf(json, sizeof json,
             "{\"model_type\":\"granitemoehybrid\",\"hidden_size\":96,\"num_hidden_layers\":4,\"layer_types\":[%s],"
             "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"mamba_n_heads\":12,\"mamba_d_state\":16%s%s}",
             layers, members[0] != '\0' ? "," : "", members);
    if (word == NULL) {
        assert_ok(parse(out, json, &err), err);
    } else {
        check_failed(parse(out, json, &err), &err, word);
        if (strstr(err.text, "config.json: ") != err.text) fail_msg("'%s' does not start with the file", err.text);
    }
}

static const char old_words[] = "\"mamba\",\"mamba\",\"attention\",\"mamba\"";
static const char new_words[] = "\"linear_attention\",\"linear_attention\",\"full_attention\",\"linear_attention\"";

static void read_with(ls_model_config *out, const char *members) { parse_with(out, old_words, members, NULL); }

static void refused(const char *members, const char *word) {
    ls_model_config config;
    parse_with(&config, old_words, members, word);
}

static void defaults_are_those_of_the_format(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c,
                    "{\"model_type\":\"granitemoehybrid\",\"num_hidden_layers\":2,\"layer_types\":"
                    "[\"attention\",\"mamba\"],\"mamba_d_state\":128}",
                    &err),
              err);
    assert_true(c.n_layers == 2 && c.hidden == 4096 && c.vocab == 32000 && c.ffn == 11008 && c.shared_ffn == 1024);
    assert_true(c.n_experts == 8 && c.top_k == 2 && c.reweighs && c.router_groups == 0 && !c.ungated);
    assert_true(c.n_heads == 32 && c.n_kv_heads == 32 && c.head_dim == 128 && c.rope.half == 0 && !c.qkv_bias);
    assert_true(c.ssd_heads == 128 && c.ssd_groups == 1 && c.d_inner == 8192 && c.d_conv == 4 && c.dt_rank == 0);
    assert_true(c.dt_min == 0.0f && isinf(c.dt_max) && c.rms_eps == 1e-6f && c.conv_bias && !c.proj_bias && !c.tied);
    assert_true(c.bos == 1 && c.pad == -1 && c.n_eos == 1 && c.eos[0] == 2 && !c.pad_is_trained);
    assert_true(c.embed_scale == 0.0f && c.residual_scale == 0.0f && c.logit_scale == 0.0f);
    assert_true(c.attention_scale == 1.0f && c.positions_max == 2048);
    assert_true(c.is_attention[0] && !c.is_attention[1] && c.is_moe[0] && c.is_moe[1] && !c.is_moe[2]);
}

/* As it is published, but for its number of layers. */
static void a_published_file_is_read(void **state) {
    static const char text[] =
        "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
        "\"attention_multiplier\":0.0078125,\"bos_token_id\":100257,\"embedding_multiplier\":12,\"eos_token_id\":"
        "100257,"
        "\"hidden_act\":\"silu\",\"hidden_size\":4096,\"init_method\":\"mup\",\"initializer_range\":0.1,"
        "\"intermediate_size\":768,\"layer_types\":[\"mamba\",\"mamba\",\"attention\"],\"logits_scaling\":16,"
        "\"mamba_chunk_size\":256,\"mamba_conv_bias\":true,\"mamba_d_conv\":4,\"mamba_d_head\":64,"
        "\"mamba_d_state\":128,\"mamba_expand\":2,\"mamba_n_groups\":1,\"mamba_n_heads\":128,"
        "\"mamba_proj_bias\":false,\"max_position_embeddings\":131072,\"model_type\":\"granitemoehybrid\","
        "\"normalization_function\":\"rmsnorm\",\"num_attention_heads\":32,\"num_experts_per_tok\":10,"
        "\"num_hidden_layers\":3,\"num_key_value_heads\":8,\"num_local_experts\":72,\"output_router_logits\":false,"
        "\"pad_token_id\":100256,\"position_embedding_type\":\"nope\",\"residual_multiplier\":0.22,"
        "\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":10000,\"router_aux_loss_coef\":0.0,"
        "\"shared_intermediate_size\":1536,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
        "\"transformers_version\":\"4.56.0\",\"use_cache\":true,\"vocab_size\":100352}";
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, text, &err), err);
    assert_true(c.n_experts == 72 && c.top_k == 10 && c.ffn == 768 && c.shared_ffn == 1536 && c.tied);
    assert_true(c.embed_scale == 12.0f && c.residual_scale == 0.22f && c.logit_scale == 0.0625f);
    assert_true(c.attention_scale == 0.0078125f && c.rope.half == 0 && c.pad == 100256 && c.eos[0] == 100257);
}

static void fields_are_honoured(void **state) {
    ls_model_config c, other;
    (void)state;
    read_with(&c, "");
    parse_with(&other, new_words, "", NULL);
    assert_memory_equal(&c, &other, sizeof c);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_true(c.is_attention[i] == (i == 2) && c.is_moe[i] == (i < 4));
    read_with(&c, "\"position_embedding_type\":\"rope\",\"rope_theta\":100.0,\"attention_multiplier\":2");
    assert_true(c.head_dim == 16 && c.rope.half == 8 && c.rope.inv_freq[4] > 0.09f && c.rope.inv_freq[4] < 0.11f);
    assert_true(c.attention_scale == 2.0f);
    read_with(&c, "\"position_embedding_type\":null,\"rope_theta\":100.0,\"head_dim\":9");
    assert_true(c.rope.half == 0 && c.head_dim == 9);
    read_with(&c,
              "\"mamba_d_head\":16,\"mamba_n_groups\":3,\"mamba_d_conv\":3,\"mamba_proj_bias\":true,"
              "\"mamba_conv_bias\":false,\"attention_bias\":true,\"time_step_limit\":[0.5,Infinity]");
    assert_true(c.d_inner == 192 && c.ssd_groups == 3 && c.d_state == 16 && c.d_conv == 3 && c.dt_min == 0.5f);
    assert_true(c.proj_bias && !c.conv_bias && c.qkv_bias && c.o_bias);
    read_with(&c, "\"logits_scaling\":3,\"embedding_multiplier\":0.5,\"residual_multiplier\":1");
    assert_true(c.logit_scale == 1.0f / 3.0f && c.embed_scale == 0.5f && c.residual_scale == 0.0f);
}

/* What stands beside experts is the feed-forward where there are none. */
static void experts_may_be_absent(void **state) {
    ls_model_config c;
    (void)state;
    read_with(&c, "\"num_local_experts\":0,\"num_experts_per_tok\":0,\"shared_intermediate_size\":80");
    assert_true(c.ffn == 80 && c.shared_ffn == 0 && c.n_experts == 1 && c.top_k == 1 && !c.reweighs && !c.is_moe[0]);
    assert_string_equal(c.names->ffn, "shared_mlp.");
    assert_null(c.names->experts);
}

/* Mamba's fields are of no layer then. */
static void attention_may_be_alone(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "\"attention\",\"attention\",\"attention\",\"attention\"", "\"mamba_d_head\":15", NULL);
    assert_true(c.ssd_heads == 0 && c.d_inner == 0 && !c.conv_bias && c.is_attention[0] && c.is_attention[3]);
    parse_with(&c, "\"mamba\",\"mamba\",\"mamba\",\"mamba\"", "", NULL);
    assert_true(c.ssd_heads == 12 && c.n_heads == 6 && !c.is_attention[0]);
}

static void other_arithmetic_is_refused_by_name(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    check_failed(parse(&c, "{\"model_type\":\"granitemoehybrid\"}", &err), &err,
                 "layer_types: missing, expected a list of layers");
    parse_with(&c, "\"mamba\",\"attention\"", "", "layer_types: 2 items for 4 layers");
    parse_with(&c, "\"mamba\",\"attention\",\"mlp\",\"mamba\"", "", "layer_types: \"mlp\", expected a kind of layer");
    refused("\"num_local_experts\":1", "num_local_experts: 1; a mixture has two at least, and 0 is none");
    refused("\"num_local_experts\":null", "num_local_experts: null");
    refused("\"num_experts_per_tok\":9", "num_experts_per_tok: 9 of 8 experts");
    refused("\"num_experts_per_tok\":0", "num_experts_per_tok: 0 of 8 experts");
    refused("\"position_embedding_type\":\"alibi\"",
            "position_embedding_type: \"alibi\", expected \"rope\" or \"nope\"");
    refused("\"position_embedding_type\":\"rope\",\"head_dim\":9", "head_dim");
    refused("\"position_embedding_type\":\"rope\",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}",
            "rope_scaling");
    refused("\"residual_multiplier\":0", "residual_multiplier: 0, expected a number above 0");
    refused("\"residual_multiplier\":-0.2", "residual_multiplier: -0.2");
    refused("\"embedding_multiplier\":\"12\"", "embedding_multiplier: \"12\"");
    refused("\"logits_scaling\":0.0", "logits_scaling: 0");
    refused("\"attention_multiplier\":null", "attention_multiplier: null");
    refused("\"normalization_function\":\"layernorm\"", "normalization_function: \"layernorm\", expected \"rmsnorm\"");
    refused("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\", expected \"silu\"");
    refused("\"mamba_d_head\":15", "mamba_n_heads x mamba_d_head: 180 is not mamba_expand x hidden_size 192");
    refused("\"mamba_n_groups\":5", "n_groups 5 does not divide n_heads 12");
    check_failed(parse(&c,
                       "{\"model_type\":\"granitemoehybrid\",\"num_hidden_layers\":1,\"layer_types\":[\"attention\"],"
                       "\"num_key_value_heads\":5}",
                       &err),
                 &err, "num_key_value_heads: 5 does not divide num_attention_heads 32");
    refused("\"shared_intermediate_size\":2147483647", "2 x shared_intermediate_size: 4294967294 exceeds 32 bits");
    refused("\"sliding_window\":128", "sliding_window: 128");
    refused("\"architectures\":[\"BambaForCausalLM\"]", "expected \"GraniteMoeHybridForCausalLM\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),
        cmocka_unit_test(a_published_file_is_read),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(experts_may_be_absent),
        cmocka_unit_test(attention_may_be_alone),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
