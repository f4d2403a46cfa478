/* The configuration of Bamba: defaults, what is derived, and a named refusal for whatever would change the
 * arithmetic. */
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
    snprintf(json, sizeof json,
             "{\"model_type\":\"bamba\",\"hidden_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":6,"
             "\"num_key_value_heads\":2,\"mamba_n_heads\":12%s%s}",
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
    assert_ok(parse(&c, "{\"model_type\":\"bamba\",\"mamba_d_state\":128}", &err), err);
    assert_true(c.n_layers == 32 && c.hidden == 4096 && c.vocab == 128000 && c.ffn == 14336 && !c.ungated);
    assert_true(c.n_heads == 32 && c.n_kv_heads == 8 && c.head_dim == 128 && c.rope.half == 32 && !c.qkv_bias);
    assert_true(c.ssd_heads == 128 && c.ssd_groups == 1 && c.d_inner == 8192 && c.d_conv == 4 && c.dt_rank == 0);
    assert_true(c.dt_min == 0.0f && isinf(c.dt_max) && c.rms_eps == 1e-5f && c.conv_bias && !c.proj_bias && !c.tied);
    assert_true(c.bos == 1 && c.pad == 0 && c.n_eos == 1 && c.eos[0] == 2 && !c.pad_is_trained);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_true(!c.is_attention[i] && !c.no_mixer[i] && !c.no_ffn[i]);
    /* 256 states of 64 channels are the most that the scan takes. */
    assert_ok(parse(&c, "{\"model_type\":\"bamba\"}", &err), err);
    assert_int_equal(c.d_state, 256);
}

static void fields_are_honoured(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "\"attn_layer_indices\":[1,3],\"rope_theta\":100.0,\"partial_rotary_factor\":0.5", NULL);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_true(c.is_attention[i] == (i == 1 || i == 3));
    assert_true(c.head_dim == 16 && c.rope.half == 4 && c.rope.inv_freq[1] > 0.31f && c.rope.inv_freq[1] < 0.32f);
    parse_with(&c,
               "\"mamba_d_head\":16,\"mamba_n_groups\":3,\"mamba_d_state\":5,\"mamba_d_conv\":3,"
               "\"mamba_proj_bias\":true,\"mamba_conv_bias\":false,\"attention_bias\":true",
               NULL);
    assert_true(c.d_inner == 192 && c.ssd_groups == 3 && c.d_state == 5 && c.d_conv == 3);
    assert_true(c.proj_bias && !c.conv_bias && c.qkv_bias && c.o_bias);
    parse_with(&c, "\"time_step_limit\":[0.5,Infinity],\"attn_rotary_emb\":8,\"tie_word_embeddings\":true", NULL);
    assert_true(c.dt_min == 0.5f && isinf(c.dt_max) && c.tied);
    parse_with(&c,
               "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":0.5},"
               "\"mamba_d_head\":\"auto\",\"mamba_chunk_size\":64,\"z_loss_coefficient\":0.1",
               NULL);
    assert_true(c.rope.half == 4 && c.d_inner == 192);
}

static void other_arithmetic_is_refused_by_name(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    refused("\"partial_rotary_factor\":1.0", "partial_rotary_factor: 1, expected 0.5");
    refused("\"attn_rotary_emb\":16", "attn_rotary_emb: 16, expected half of heads of 16");
    refused("\"head_dim\":18", "head_dim: 18; heads of which half rotates are multiples of 4");
    refused("\"attn_layer_indices\":[4]", "attn_layer_indices: 4, expected an integer in 0..3");
    refused("\"attn_layer_indices\":[-1]", "attn_layer_indices: -1");
    refused("\"attn_layer_indices\":1", "attn_layer_indices: 1, expected a list");
    refused("\"mamba_d_head\":15", "mamba_n_heads x mamba_d_head: 180 is not mamba_expand x hidden_size 192");
    check_failed(parse(&c, "{\"model_type\":\"bamba\",\"mamba_n_heads\":11}", &err), &err,
                 "mamba_n_heads: 11 does not divide mamba_expand x hidden_size 8192");
    refused("\"mamba_n_groups\":5", "n_groups 5 does not divide n_heads 12");
    refused("\"mlp_bias\":true", "mlp_bias: true");
    refused("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\", expected \"silu\"");
    refused("\"num_experts\":4", "num_experts: 4");
    refused("\"time_step_limit\":[1,0.5]", "time_step_limit: a list");
    refused("\"architectures\":[\"JambaForCausalLM\"]", "expected \"BambaForCausalLM\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
