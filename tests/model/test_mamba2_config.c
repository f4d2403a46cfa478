/* The configuration of Mamba-2 alone: defaults, what is derived, limits of steps in all forms that files have, and a
 * named refusal for whatever would change the arithmetic. */
#define _GNU_SOURCE
#include <math.h>

#include "device.h"
#include "harness.h"
#include "model/architectures.h"
#include "model/model.h"

static ls_status parse(ls_model_config *out, const char *json, ls_error *err) {
    return ls_model_config_parse(out, json, (int64_t)strlen(json), "config.json", err);
}

/* A small good configuration with more members; word NULL: it must be read. */
static void parse_with(ls_model_config *out, const char *members, const char *word) {
    char json[2000];
    ls_error err;
    snprintf(json, sizeof json,
             "{\"model_type\":\"mamba2\",\"hidden_size\":72,\"num_hidden_layers\":4,\"head_dim\":18%s%s}",
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

static void accepted(const char *members) {
    ls_model_config config;
    parse_with(&config, members, NULL);
}

#define EIGHT "\"num_heads\":8,\"n_groups\":4"

static void defaults_are_those_of_the_format(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"mamba2\"}", &err), err);
    assert_true(c.n_layers == 64 && c.hidden == 4096 && c.vocab == 32768 && c.d_inner == 8192);
    assert_true(c.ssd_heads == 128 && c.ssd_groups == 8 && c.d_state == 128 && c.d_conv == 4 && c.dt_rank == 0);
    assert_true(c.ffn == 0 && c.n_experts == 1 && c.top_k == 1 && c.n_heads == 0 && c.head_dim == 0);
    assert_true(c.conv_bias && !c.proj_bias && !c.tied && !c.inner_norms && c.pad_is_trained && c.rms_eps == 1e-5f);
    assert_true(c.dt_min == 0.0f && isinf(c.dt_max) && c.bos == 0 && c.pad == 1 && c.n_eos == 1 && c.eos[0] == 2);
    assert_int_equal(ls_config_conv_dim(&c), 8192 + 2 * 8 * 128);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_true(!c.is_attention[i] && !c.is_moe[i]);
}

static void fields_are_honoured(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, EIGHT ",\"state_size\":5,\"conv_kernel\":3,\"vocab_size\":131,\"layer_norm_epsilon\":1e-6", NULL);
    assert_true(c.d_inner == 144 && c.ssd_heads == 8 && c.ssd_groups == 4 && c.d_state == 5 && c.d_conv == 3);
    assert_true(c.vocab == 131 && c.rms_eps == 1e-6f && ls_config_conv_dim(&c) == 184);
    parse_with(&c, "\"num_heads\":12,\"n_groups\":1,\"expand\":3,\"use_bias\":true,\"use_conv_bias\":false", NULL);
    assert_true(c.d_inner == 216 && c.ssd_groups == 1 && c.proj_bias && !c.conv_bias);
    parse_with(&c, EIGHT ",\"tie_word_embeddings\":true,\"dtype\":\"bfloat16\",\"eos_token_id\":[3,4]", NULL);
    assert_true(c.tied && c.stored_dtype == LS_BF16 && c.n_eos == 2 && c.eos[1] == 4);
}

static void limits_of_steps_come_in_all_forms(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, EIGHT ",\"time_step_limit\":[0.05,0.5]", NULL);
    assert_true(c.dt_min == 0.05f && c.dt_max == 0.5f);
    parse_with(&c, EIGHT ",\"time_step_limit\":[0.25,Infinity]", NULL);
    assert_true(c.dt_min == 0.25f && isinf(c.dt_max));
    parse_with(&c, EIGHT ",\"time_step_limit\":[0,{\"__float__\":\"Infinity\"}]", NULL);
    assert_true(c.dt_min == 0.0f && isinf(c.dt_max));
    refused(EIGHT ",\"time_step_limit\":[0.5,0.05]", "time_step_limit: a list of");
    refused(EIGHT ",\"time_step_limit\":[0,0]", "time_step_limit: a list of");
    refused(EIGHT ",\"time_step_limit\":[-1,1]", "time_step_limit: a list of");
    refused(EIGHT ",\"time_step_limit\":[0,-Infinity]", "time_step_limit: a list of");
    refused(EIGHT ",\"time_step_limit\":[0,NaN]", "time_step_limit: a list of");
    refused(EIGHT ",\"time_step_limit\":[Infinity,Infinity]", "time_step_limit: a list of");
    refused(EIGHT ",\"time_step_limit\":[0]", "time_step_limit: a list of");
    refused(EIGHT ",\"time_step_limit\":0.1", "time_step_limit: 0.1");
    refused(EIGHT ",\"layer_norm_epsilon\":Infinity", "layer_norm_epsilon: \"Infinity\"");
    refused(EIGHT ",\"some_new_number\":Infinity", "some_new_number: \"Infinity\", expected no such field");
}

static void inert_and_neutral_fields_are_accepted(void **state) {
    (void)state;
    accepted(EIGHT
             ",\"time_step_min\":0.01,\"time_step_max\":0.2,\"time_step_floor\":1e-3,\"time_step_rank\":\"auto\"");
    accepted(EIGHT ",\"chunk_size\":256,\"norm_before_gate\":true,\"rms_norm\":true,\"intermediate_size\":144");
    accepted(EIGHT ",\"hidden_act\":\"silu\",\"residual_in_fp32\":true,\"rescale_prenorm_residual\":false");
}

static void other_arithmetic_is_refused_by_name(void **state) {
    (void)state;
    refused(EIGHT ",\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\", expected \"silu\"");
    refused(EIGHT ",\"residual_in_fp32\":false", "residual_in_fp32: false, expected true");
    refused(EIGHT ",\"rescale_prenorm_residual\":true", "rescale_prenorm_residual: true, expected false");
    refused(EIGHT ",\"rms_norm\":false", "rms_norm: false");
    refused(EIGHT ",\"some_new_switch\":true", "some_new_switch: true");
    refused(EIGHT ",\"architectures\":[\"MambaForCausalLM\"]", "expected \"Mamba2ForCausalLM\"");
    refused("\"num_heads\":7", "num_heads x head_dim: 126 is not expand x hidden_size 144");
    refused("\"num_heads\":8,\"n_groups\":3", "n_groups 3 does not divide n_heads 8");
    refused("\"num_heads\":8,\"n_groups\":0", "n_groups: 0");
    refused(EIGHT ",\"state_size\":2147483647", "n_groups x state_size: 8589934588 exceeds 32 bits");
    refused(EIGHT ",\"state_size\":100000", "n_states 100000 is not in 1..");
    refused(EIGHT ",\"conv_kernel\":0", "conv_kernel: 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),    cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(limits_of_steps_come_in_all_forms),   cmocka_unit_test(inert_and_neutral_fields_are_accepted),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
