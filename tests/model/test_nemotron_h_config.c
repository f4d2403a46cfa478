/* The configuration of Nemotron-H: defaults, layers by list and by pattern, and a named refusal for whatever would
 * change the arithmetic. */
#define _GNU_SOURCE
#include <math.h>

#include "harness.h"
#include "model/architectures.h"

static ls_status parse(ls_model_config *out, const char *json, ls_error *err) {
    return ls_model_config_parse(out, json, (int64_t)strlen(json), "config.json", err);
}

/* A configuration with more members; word NULL: it must be read. */
static void parse_with(ls_model_config *out, const char *members, const char *word) {
    char json[2000];
    ls_error err;
    snprintf(json, sizeof json, "{\"model_type\":\"nemotron_h\",%s}", members);
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

#define LAYERS "\"hybrid_override_pattern\":\"M-*M\""

static void check_layers(const ls_model_config *c) {
    static const char kinds[] = "M-*M";
    assert_int_equal(c->n_layers, 4);
    for (int i = 0; i < LS_LAYERS_MAX; i++) {
        const char kind = i < 4 ? kinds[i] : '\0';
        assert_true(c->is_attention[i] == (kind == '*') && c->no_mixer[i] == (kind == '-'));
        assert_true(c->no_ffn[i] == (kind == 'M' || kind == '*') && !c->is_moe[i]);
        if (i < 4)
            assert_true(ls_config_has_slots(c, i) == (kind == 'M') && ls_config_has_pages(c, i) == (kind == '*'));
    }
}

static void defaults_are_those_of_the_format(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, LAYERS, NULL);
    check_layers(&c);
    assert_true(c.hidden == 4096 && c.vocab == 131072 && c.ffn == 21504 && c.ungated && c.positions_max == 4096);
    assert_true(c.n_heads == 32 && c.n_kv_heads == 8 && c.head_dim == 128 && c.rope.half == 0 && !c.qkv_bias);
    assert_true(c.ssd_heads == 128 && c.ssd_groups == 8 && c.d_inner == 8192 && c.d_state == 128 && c.d_conv == 4);
    assert_true(c.dt_min == 1e-3f && isinf(c.dt_max) && c.rms_eps == 1e-5f && c.conv_bias && !c.proj_bias && !c.tied);
    assert_true(c.bos == 1 && c.pad == 0 && c.n_eos == 1 && c.eos[0] == 2 && c.n_experts == 1 && c.top_k == 1);
}

static void layers_come_as_list_or_pattern(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "\"layers_block_type\":[\"linear_attention\",\"mlp\",\"full_attention\",\"linear_attention\"]",
               NULL);
    check_layers(&c);
    parse_with(&c, "\"layers_block_type\":[\"mamba\",\"mlp\",\"attention\",\"mamba\"],\"num_hidden_layers\":4," LAYERS,
               NULL);
    check_layers(&c);
    refused("\"vocab_size\":5", "layers_block_type: missing");
    refused("\"layers_block_type\":[]", "layers_block_type: ");
    refused("\"layers_block_type\":\"M\"", "layers_block_type: \"M\", expected a list of layers");
    refused("\"layers_block_type\":[\"mamba\",\"rnn\"]", "layers_block_type: \"rnn\", expected a kind of layer");
    refused("\"layers_block_type\":[\"mamba\",\"mlp\"]," LAYERS, "2 layers, but hybrid_override_pattern has 4");
    refused("\"layers_block_type\":[\"mamba\",\"mlp\",\"mlp\",\"mamba\"]," LAYERS, "layer 2 is '-', but '*' in hybrid");
    refused("\"hybrid_override_pattern\":\"M-x\"",
            "hybrid_override_pattern: \"M-x\", expected 1 to 1024 of the letters");
    refused("\"hybrid_override_pattern\":\"\"", "hybrid_override_pattern: \"\"");
    refused("\"num_hidden_layers\":5," LAYERS, "num_hidden_layers: 5, but 4 layers are listed");
}

static void fields_are_honoured(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c,
               LAYERS
               ",\"mamba_num_heads\":6,\"mamba_head_dim\":10,\"n_groups\":3,\"ssm_state_size\":12,"
               "\"time_step_min\":0.25,\"use_bias\":true,\"use_conv_bias\":false,\"conv_kernel\":3",
               NULL);
    assert_true(c.d_inner == 60 && c.ssd_heads == 6 && c.ssd_groups == 3 && c.d_state == 12 && c.d_conv == 3);
    assert_true(c.dt_min == 0.25f && c.proj_bias && !c.conv_bias && ls_config_conv_dim(&c) == 132);
    parse_with(&c,
               LAYERS
               ",\"num_attention_heads\":6,\"num_key_value_heads\":null,\"head_dim\":14,"
               "\"attention_head_dim\":14,\"intermediate_size\":40,\"layer_norm_epsilon\":0.5",
               NULL);
    assert_true(c.n_heads == 6 && c.n_kv_heads == 6 && c.head_dim == 14 && c.ffn == 40 && c.rms_eps == 0.5f);
    parse_with(&c,
               LAYERS
               ",\"time_step_limit\":[0.0,Infinity],\"expand\":2,\"residual_in_fp32\":false,"
               "\"rescale_prenorm_residual\":true,\"n_routed_experts\":8,\"moe_latent_size\":null",
               NULL);
}

static void mixtures_are_read(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "\"hybrid_override_pattern\":\"ME*\"", NULL);
    assert_true(c.is_moe[1] && c.no_mixer[1] && !c.no_ffn[1] && c.ffn == 7688 && c.shared_ffn == 7688);
    assert_true(c.n_experts == 8 && c.top_k == 2 && c.router_groups == 1 && c.router_top_groups == 1 && c.reweighs);
    assert_true(c.router_scale == 1.0f && c.ungated);
    parse_with(&c,
               "\"hybrid_override_pattern\":\"ME-\",\"n_routed_experts\":12,\"n_group\":3,\"topk_group\":2,"
               "\"num_experts_per_tok\":7,\"moe_intermediate_size\":30,\"intermediate_size\":30,"
               "\"moe_shared_expert_intermediate_size\":40,\"norm_topk_prob\":false,\"routed_scaling_factor\":2.5",
               NULL);
    assert_true(c.n_experts == 12 && c.top_k == 7 && c.router_groups == 3 && c.router_top_groups == 2 && !c.reweighs);
    assert_true(c.ffn == 30 && c.shared_ffn == 40 && c.router_scale == 2.5f);
#define EXPERTS "\"hybrid_override_pattern\":\"ME*\","
    refused("\"hybrid_override_pattern\":\"ME-\"", "moe_intermediate_size: 7688 beside dense feed-forwards of 21504");
    refused(EXPERTS "\"n_routed_experts\":1", "n_routed_experts: 1, a mixture has two at least");
    refused(EXPERTS "\"num_experts_per_tok\":9", "num_experts_per_tok: 9 exceeds the 8 experts");
    refused(EXPERTS "\"n_group\":3", "n_group: 3 groups of 8 experts");
    refused(EXPERTS "\"n_group\":8", "n_group: 8 groups of 8 experts");
    refused(EXPERTS "\"n_group\":4,\"topk_group\":5", "topk_group: 5 of 4 groups");
    refused(EXPERTS "\"n_group\":4,\"num_experts_per_tok\":3", "topk_group: 1 of 4 groups do not have the 3 experts");
    refused(EXPERTS "\"moe_latent_size\":64", "moe_latent_size");
    refused(EXPERTS "\"routed_scaling_factor\":0", "routed_scaling_factor");
#undef EXPERTS
    /* Fields of experts mean nothing where no layer has any. */
    parse_with(&c, LAYERS ",\"n_routed_experts\":1", NULL);
    assert_true(c.n_experts == 1 && c.router_groups == 0);
}

static void other_arithmetic_is_refused_by_name(void **state) {
    (void)state;
    refused(LAYERS ",\"mlp_hidden_act\":\"silu\"", "mlp_hidden_act: \"silu\", expected \"relu2\"");
    refused(LAYERS ",\"mamba_hidden_act\":\"gelu\"", "mamba_hidden_act: \"gelu\"");
    refused(LAYERS ",\"num_nextn_predict_layers\":1", "num_nextn_predict_layers: 1, expected 0");
    refused(LAYERS ",\"mlp_bias\":true", "mlp_bias: true");
    refused(LAYERS ",\"attention_bias\":true", "attention_bias: true");
    refused(LAYERS ",\"tie_word_embeddings\":true", "tie_word_embeddings: true");
    refused(LAYERS ",\"sliding_window\":128", "sliding_window: 128");
    refused(LAYERS ",\"rope_theta\":10000.0", "rope_theta: ");
    refused(LAYERS ",\"attention_head_dim\":64", "attention_head_dim: 64, but head_dim is 128");
    refused(LAYERS ",\"num_key_value_heads\":7", "num_key_value_heads: 7 does not divide");
    refused(LAYERS ",\"n_groups\":7", "n_groups 7 does not divide n_heads 128");
    refused(LAYERS ",\"mamba_head_dim\":300", "head_dim 300 is not in 1..");
    refused(LAYERS ",\"intermediate_size\":0", "intermediate_size: 0");
    refused(LAYERS ",\"architectures\":[\"JambaForCausalLM\"]", "expected \"NemotronHForCausalLM\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),
        cmocka_unit_test(layers_come_as_list_or_pattern),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(mixtures_are_read),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
