/* The configuration of Mamba-1 alone: defaults, what is derived, a named refusal for whatever would change the
 * arithmetic, and heads that belong to another configuration. */
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

/* A small good configuration with more members; word NULL: it must be read. */
static void parse_with(ls_model_config *out, const char *members, const char *word) {
    char json[2000];
    ls_error err;
    snprintf(json, sizeof json, "{\"model_type\":\"mamba\",\"hidden_size\":72,\"num_hidden_layers\":4%s%s}",
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

static void defaults_are_those_of_the_format(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"mamba\"}", &err), err);
    assert_true(c.n_layers == 32 && c.hidden == 768 && c.vocab == 50280 && c.d_inner == 1536);
    assert_true(c.d_state == 16 && c.d_conv == 4 && c.dt_rank == 48 && c.rms_eps == 1e-5f);
    assert_true(c.ffn == 0 && c.n_experts == 1 && c.top_k == 1 && c.n_heads == 0 && c.head_dim == 0);
    assert_true(c.conv_bias && !c.proj_bias && c.tied && !c.inner_norms && c.pad_is_trained);
    assert_true(c.bos == 0 && c.pad == 0 && c.n_eos == 1 && c.eos[0] == 0);
    assert_true(c.stored_dtype == LS_F32 && c.positions_max == INT64_MAX);
    for (int i = 0; i < LS_LAYERS_MAX; i++) assert_true(!c.is_attention[i] && !c.is_moe[i]);
    assert_ok(parse(&c, "{\"model_type\":\"jamba\"}", &err), err);
    assert_true(c.inner_norms && c.inner_weights && c.inner_eps == c.rms_eps && !c.pad_is_trained);
}

/* FalconMamba's file has Mamba's fields, with the same defaults, and one more. */
static void falcon_mamba_normalises_without_weights(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"falcon_mamba\"}", &err), err);
    assert_true(c.n_layers == 32 && c.hidden == 768 && c.d_inner == 1536 && c.dt_rank == 48 && c.tied && c.conv_bias);
    assert_true(c.inner_norms && !c.inner_weights && c.rms_eps == 1e-5f && c.inner_eps == 1e-6f && c.pad_is_trained);
    assert_ok(parse(&c, "{\"model_type\":\"falcon_mamba\",\"mixer_rms_eps\":0.25,\"use_falcon_mambapy\":true}", &err),
              err);
    assert_true(c.inner_eps == 0.25f && c.rms_eps == 1e-5f);
    check_failed(parse(&c, "{\"model_type\":\"falcon_mamba\",\"mixer_rms_eps\":0}", &err), &err, "mixer_rms_eps: 0");
    check_failed(parse(&c, "{\"model_type\":\"falcon_mamba\",\"architectures\":[\"MambaForCausalLM\"]}", &err), &err,
                 "expected \"FalconMambaForCausalLM\"");
    refused("\"mixer_rms_eps\":1e-6", "mixer_rms_eps: ");
}

static void fields_are_honoured(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "\"expand\":3", NULL);
    assert_true(c.d_inner == 216 && c.dt_rank == 5); /* ceil(72 / 16) */
    parse_with(&c, "\"expand\":3,\"intermediate_size\":null", NULL);
    assert_int_equal(c.d_inner, 216);
    parse_with(&c, "\"expand\":3,\"intermediate_size\":50", NULL);
    assert_int_equal(c.d_inner, 50);
    parse_with(&c, "\"time_step_rank\":\"auto\",\"state_size\":5,\"conv_kernel\":3", NULL);
    assert_true(c.dt_rank == 5 && c.d_state == 5 && c.d_conv == 3);
    parse_with(&c, "\"time_step_rank\":7,\"vocab_size\":131,\"layer_norm_epsilon\":1e-6", NULL);
    assert_true(c.dt_rank == 7 && c.vocab == 131 && c.rms_eps == 1e-6f);
    parse_with(&c, "\"use_bias\":true,\"use_conv_bias\":false,\"tie_word_embeddings\":false", NULL);
    assert_true(c.proj_bias && !c.conv_bias && !c.tied);
    parse_with(&c, "\"bos_token_id\":null,\"pad_token_id\":null,\"eos_token_id\":[3,4],\"dtype\":\"bfloat16\"", NULL);
    assert_true(c.bos == -1 && c.pad == -1 && c.n_eos == 2 && c.eos[1] == 4 && c.stored_dtype == LS_BF16);
}

/* What a file has that was converted from the authors' own format, and what has one value only. */
static void inert_and_neutral_fields_are_accepted(void **state) {
    (void)state;
    accepted("\"time_step_min\":0.01,\"time_step_max\":0.2,\"time_step_floor\":1e-3,\"time_step_scale\":2.0");
    accepted("\"time_step_init_scheme\":\"constant\",\"initializer_range\":0.2,\"use_mambapy\":true");
    accepted("\"use_associative_scan\":true,\"use_cache\":true,\"transformers_version\":\"4.39.0\"");
    accepted("\"hidden_act\":\"silu\",\"residual_in_fp32\":true,\"rescale_prenorm_residual\":false");
    accepted("\"d_inner\":144,\"d_model\":72,\"n_layer\":4,\"pad_vocab_size_multiple\":8,\"fused_add_norm\":true");
    accepted("\"ssm_cfg\":{},\"rms_norm\":true,\"architectures\":[\"MambaForCausalLM\"]");
}

static void other_arithmetic_is_refused_by_name(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    refused("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\", expected \"silu\"");
    refused("\"residual_in_fp32\":false", "residual_in_fp32: false, expected true");
    refused("\"rescale_prenorm_residual\":true", "rescale_prenorm_residual: true, expected false");
    refused("\"rms_norm\":false", "rms_norm: false");
    refused("\"ssm_cfg\":{\"layer\":\"Mamba2\"}", "ssm_cfg: an object of 1 members");
    refused("\"chunk_size_feed_forward\":16", "chunk_size_feed_forward: 16");
    refused("\"some_new_switch\":true", "some_new_switch: true");
    refused("\"mamba_d_state\":16", "mamba_d_state: 16, expected no such field"); /* Jamba's */
    refused("\"num_attention_heads\":4", "num_attention_heads: 4");
    refused("\"architectures\":[\"JambaForCausalLM\"]", "\"JambaForCausalLM\", expected \"MambaForCausalLM\"");
    refused("\"architectures\":[]", "architectures: an empty list");
    refused("\"dtype\":\"int8\"", "dtype: \"int8\"");
    check_failed(parse(&c, "{\"model_type\":\"jamba\",\"state_size\":16}", &err), &err, "state_size: 16");
    check_failed(parse(&c, "{\"model_type\":\"mamba3\",\"n_groups\":1}", &err), &err,
                 "model_type: \"mamba3\", expected \"jamba\", \"mamba\", \"falcon_mamba\", \"mamba2\", \"llama\", ");
    check_failed(parse(&c, "{}", &err), &err, "model_type: missing, expected \"jamba\", \"mamba\", ");
}

static void ranges_are_checked(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    refused("\"intermediate_size\":0", "intermediate_size: 0");
    refused("\"expand\":1.5", "expand: 1.5");
    refused("\"state_size\":null", "state_size: null");
    refused("\"conv_kernel\":0", "conv_kernel: 0");
    refused("\"time_step_rank\":\"big\"", "time_step_rank: \"big\"");
    refused("\"time_step_rank\":0", "time_step_rank: 0");
    refused("\"layer_norm_epsilon\":0", "layer_norm_epsilon: 0");
    refused("\"use_bias\":1", "use_bias: 1");
    refused("\"vocab_size\":131,\"eos_token_id\":131", "eos_token_id: 131");
    refused("\"vocab_size\":131,\"pad_token_id\":131", "pad_token_id: 131");
    refused("\"expand\":2147483647", "intermediate_size (by default expand x hidden_size), twice: 309237645168");
    refused("\"intermediate_size\":1073741824", "twice: 2147483648 exceeds 32 bits");
    refused("\"state_size\":1073741824", "time_step_rank + 2 x state_size: 2147483653 exceeds 32 bits");
    check_failed(
        parse(&c, "{\"model_type\":\"mamba\",\"hidden_size\":2147483647,\"intermediate_size\":1073741823}", &err), &err,
        "2 x intermediate_size x hidden_size: the bytes overflow 64 bits");
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

#define SMALL "{\"model_type\":\"mamba\",\"hidden_size\":64,\"num_hidden_layers\":3,\"vocab_size\":300"
#define ODD                                                                                                      \
    "{\"model_type\":\"mamba\",\"hidden_size\":36,\"num_hidden_layers\":3,\"vocab_size\":131,\"use_bias\":true," \
    "\"use_conv_bias\":false,\"state_size\":5,\"conv_kernel\":3,\"intermediate_size\":54"

static void weights_of_another_configuration_are_refused(void **state) {
    (void)state;
    check_weights("mamba-small", SMALL ",\"tie_word_embeddings\":false}", "missing tensor lm_head.weight");
    check_weights("mamba-odd", ODD "}",
                  "lm_head.weight: differs from backbone.embeddings.weight, but tie_word_embeddings is true");
    check_weights("mamba-small", SMALL ",\"use_bias\":true}", "missing tensor backbone.layers.0.mixer.in_proj.bias");
    check_weights("mamba-small", SMALL ",\"use_conv_bias\":false}", "mixer.conv1d.bias: the configuration");
    check_weights("mamba-small", SMALL ",\"intermediate_size\":54}", "in_proj.weight: shape is [256, 64]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),
        cmocka_unit_test(falcon_mamba_normalises_without_weights),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(inert_and_neutral_fields_are_accepted),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
        cmocka_unit_test(ranges_are_checked),
        cmocka_unit_test(weights_of_another_configuration_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
