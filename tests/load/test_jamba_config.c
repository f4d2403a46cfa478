/* The Jamba configuration: defaults, published shapes, and a named refusal for whatever would change the arithmetic. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"
#include "model/architectures.h"

static ls_status parse(ls_model_config *out, const char *json, ls_error *err) {
    return ls_model_config_parse(out, json, (int64_t)strlen(json), "config.json", err);
}

/* A small good configuration with one more member. */
static void parse_with(ls_model_config *out, const char *member, const char *word) {
    char json[2000];
    ls_error err;
    snprintf(json, sizeof json,
             "{\"model_type\":\"jamba\",\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"num_hidden_layers\":4,\"vocab_size\":512%s%s}",
             member[0] != '\0' ? "," : "", member);
    if (word == NULL) {
        assert_ok(parse(out, json, &err), err);
    } else {
        check_failed(parse(out, json, &err), &err, word);
        if (strstr(err.text, "config.json: ") != err.text) fail_msg("'%s' does not start with the file", err.text);
    }
}

static void refused(const char *member, const char *word) {
    ls_model_config config;
    parse_with(&config, member, word);
}

static void accepted(const char *member) {
    ls_model_config config;
    parse_with(&config, member, NULL);
}

static void defaults_are_those_of_the_format(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c, "{\"model_type\":\"jamba\"}", &err), err);
    assert_int_equal(c.n_layers, 32);
    assert_int_equal(c.hidden, 4096);
    assert_int_equal(c.vocab, 65536);
    assert_int_equal(c.ffn, 14336);
    assert_int_equal(c.n_heads, 32);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.n_experts, 16);
    assert_int_equal(c.top_k, 2);
    assert_int_equal(c.d_inner, 8192);
    assert_int_equal(c.d_state, 16);
    assert_int_equal(c.d_conv, 4);
    assert_int_equal(c.dt_rank, 256);
    assert_int_equal(c.positions_max, 262144);
    assert_true(c.conv_bias);
    assert_false(c.proj_bias);
    assert_false(c.tied);
    assert_true(c.rms_eps == 1e-6f);
    assert_int_equal(c.stored_dtype, LS_F32);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.pad, 0);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 2);
    for (int i = 0; i < 32; i++) {
        assert_int_equal(c.is_attention[i], i == 4 || i == 12 || i == 20 || i == 28);
        assert_int_equal(c.is_moe[i], i % 2 == 1);
    }
}

static void three_billion_model_is_read(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_ok(parse(&c,
                    "{\"architectures\":[\"JambaForCausalLM\"],\"attention_dropout\":0.0,\"attn_layer_offset\":7,"
                    "\"attn_layer_period\":14,\"bos_token_id\":1,\"eos_token_id\":[2,519],\"expert_layer_offset\":1,"
                    "\"expert_layer_period\":2,\"hidden_act\":\"silu\",\"hidden_size\":2560,"
                    "\"initializer_range\":0.02,\"intermediate_size\":8192,\"mamba_conv_bias\":true,"
                    "\"mamba_d_conv\":4,\"mamba_d_state\":16,\"mamba_dt_rank\":160,\"mamba_expand\":2,"
                    "\"mamba_proj_bias\":false,\"max_position_embeddings\":262144,\"model_type\":\"jamba\","
                    "\"num_attention_heads\":20,\"num_experts\":1,\"num_experts_per_tok\":2,\"num_hidden_layers\":28,"
                    "\"num_key_value_heads\":1,\"num_logits_to_keep\":1,\"output_router_logits\":false,"
                    "\"pad_token_id\":0,\"rms_norm_eps\":1e-06,\"router_aux_loss_coef\":0.001,"
                    "\"sliding_window\":null,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
                    "\"transformers_version\":\"4.40.0.dev0\",\"use_cache\":true,\"use_mamba_kernels\":true,"
                    "\"vocab_size\":65536}",
                    &err),
              err);
    for (int i = 0; i < 28; i++) {
        assert_int_equal(c.is_attention[i], i == 7 || i == 21);
        assert_int_equal(c.is_moe[i], 0);
    }
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.d_inner, 5120);
    assert_int_equal(c.dt_rank, 160);
    assert_int_equal(c.top_k, 1);
    assert_true(c.tied);
    assert_int_equal(c.stored_dtype, LS_BF16);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 519);
}

static void fields_are_honoured(void **state) {
    ls_model_config c;
    (void)state;
    parse_with(&c, "\"mamba_expand\":3,\"mamba_d_state\":8,\"mamba_d_conv\":3", NULL);
    assert_int_equal(c.d_inner, 192);
    assert_int_equal(c.d_state, 8);
    assert_int_equal(c.d_conv, 3);
    parse_with(&c, "\"head_dim\":24", NULL);
    assert_int_equal(c.head_dim, 24);
    parse_with(&c, "\"head_dim\":null", NULL);
    assert_int_equal(c.head_dim, 16);
    parse_with(&c, "\"mamba_dt_rank\":\"auto\"", NULL);
    assert_int_equal(c.dt_rank, 4);
    parse_with(&c, "\"mamba_dt_rank\":7.0,\"num_experts\":4e0", NULL);
    assert_int_equal(c.dt_rank, 7);
    assert_int_equal(c.n_experts, 4);
    parse_with(&c, "\"mamba_dt_rank\":7", NULL);
    assert_int_equal(c.dt_rank, 7);
    parse_with(&c, "\"mamba_conv_bias\":false,\"mamba_proj_bias\":true,\"tie_word_embeddings\":true", NULL);
    assert_false(c.conv_bias);
    assert_true(c.proj_bias);
    assert_true(c.tied);
    parse_with(&c, "\"rms_norm_eps\":1e-5", NULL);
    assert_true(c.rms_eps == 1e-5f);
    parse_with(&c, "\"num_experts\":1", NULL);
    assert_int_equal(c.is_moe[1], 0);
    parse_with(&c, "\"num_local_experts\":6,\"num_experts_per_tok\":6", NULL);
    assert_int_equal(c.n_experts, 6);
    assert_int_equal(c.top_k, 6);
    parse_with(&c, "\"expert_layer_period\":1,\"expert_layer_offset\":0", NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(c.is_moe[i], 1);
    parse_with(&c, "\"layers_block_type\":[\"attention\",\"mamba\",\"mamba\",\"attention\"]", NULL);
    assert_int_equal(c.is_attention[0], 1);
    assert_int_equal(c.is_attention[1], 0);
    assert_int_equal(c.is_attention[3], 1);
    parse_with(&c, "\"bos_token_id\":null,\"pad_token_id\":null,\"eos_token_id\":null", NULL);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.pad, -1);
    assert_int_equal(c.n_eos, 0);
    parse_with(&c, "\"eos_token_id\":511", NULL);
    assert_int_equal(c.eos[0], 511);
    parse_with(&c, "\"dtype\":\"float16\"", NULL);
    assert_int_equal(c.stored_dtype, LS_F16);
    parse_with(&c, "\"torch_dtype\":\"torch.bfloat16\"", NULL);
    assert_int_equal(c.stored_dtype, LS_BF16);
    parse_with(&c, "\"dtype\":\"bfloat16\",\"torch_dtype\":\"bfloat16\"", NULL);
    assert_int_equal(c.stored_dtype, LS_BF16);
}

static void inert_and_neutral_fields_are_accepted(void **state) {
    (void)state;
    accepted("\"id2label\":{\"0\":\"a\"},\"_name_or_path\":\"x\",\"use_mambapy\":true,\"attention_dropout\":0.1");
    accepted("\"sliding_window\":null,\"attention_bias\":false,\"rope_scaling\":null,\"quantization_config\":null");
    accepted("\"some_new_switch\":false");
    accepted("\"hidden_act\":\"silu\",\"mamba_inner_layernorms\":true,\"chunk_size_feed_forward\":0");
    accepted("\"architectures\":null");
    accepted("\"temperature\":0.6,\"top_p\":0.95,\"do_sample\":true,\"max_length\":20,\"repetition_penalty\":1.2");
    accepted("\"gradient_checkpointing\":true,\"use_cache\":false,\"is_decoder\":true,\"pretraining_tp\":1");
    accepted("\"hidden_act\":\"swish\"");
    accepted("\"architectures\":[\"Other\",\"JambaForCausalLM\"]");
}

static void other_arithmetic_is_refused_by_name(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    refused("\"sliding_window\":4096", "sliding_window: 4096");
    refused("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\", expected \"silu\"");
    refused("\"mamba_expand\":2.5", "mamba_expand: 2.5, expected an integer");
    refused("\"mamba_expand\":1e300", "mamba_expand: 1");
    refused("\"quantization_config\":{\"quant_method\":\"fp8\"}", "quant_method fp8: the weights are quantised");
    refused("\"quantization_config\":{\"bits\":4}", "an object of 1 members: the weights are quantised");
    refused("\"time_step_limit\":[0.0,Infinity]", "time_step_limit: a list of 2 items, expected no such field");
    refused("\"rms_norm_eps\":Infinity", "rms_norm_eps: \"Infinity\"");
    refused("\"x\":-Infinity", "x: \"-Infinity\", expected no such field");
    refused("\"x\":NaN", "x: \"NaN\", expected no such field");
    refused("\"attention_bias\":true", "attention_bias: true");
    refused("\"rope_theta\":10000.0", "rope_theta: 10000");
    refused("\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling: an object");
    refused("\"rope_parameters\":{}", "rope_parameters");
    refused("\"quantization_config\":{\"bits\":8}", "quantization_config");
    refused("\"some_new_switch\":true", "some_new_switch: true");
    refused("\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\"");
    refused("\"hidden_act\":null", "hidden_act: null");
    refused("\"mamba_inner_layernorms\":false", "mamba_inner_layernorms: false");
    refused("\"chunk_size_feed_forward\":16", "chunk_size_feed_forward: 16");
    refused("\"architectures\":[\"JambaForSequenceClassification\"]", "JambaForSequenceClassification");
    refused("\"architectures\":[]", "empty list");
    refused("\"architectures\":\"JambaForCausalLM\"", "architectures");
    refused("\"dtype\":\"int8\"", "dtype: \"int8\"");
    refused("\"dtype\":\"float32\",\"torch_dtype\":\"bfloat16\"", "dtype: f32, but torch_dtype is bf16");
    check_failed(parse(&c, "{\"model_type\":\"gpt_neox\",\"rope_theta\":1}", &err), &err, "model_type: \"gpt_neox\"");
    check_failed(parse(&c, "{}", &err), &err, "model_type: missing");
    check_failed(parse(&c, "{\"model_type\":7}", &err), &err, "model_type: 7");
}

static void ranges_are_checked(void **state) {
    ls_model_config c;
    ls_error err;
    (void)state;
    refused("\"intermediate_size\":0", "intermediate_size: 0");
    refused("\"intermediate_size\":-5", "intermediate_size: -5");
    refused("\"intermediate_size\":2147483648", "intermediate_size: 2147483648");
    refused("\"intermediate_size\":96.5", "intermediate_size: 96.5");
    refused("\"intermediate_size\":\"96\"", "intermediate_size: \"96\"");
    refused("\"intermediate_size\":null", "intermediate_size: null");
    refused("\"intermediate_size\":true", "intermediate_size: true");
    refused("\"intermediate_size\":1e99", "intermediate_size");
    refused("\"intermediate_size\":99999999999999999999", "too big integer");
    refused("\"num_experts\":2,\"num_experts_per_tok\":3", "num_experts_per_tok: 3 exceeds num_experts 2");
    refused("\"num_experts\":2,\"num_local_experts\":3", "num_local_experts: 3");
    refused("\"attn_layer_period\":4", "attn_layer_offset: 4 is not below");
    refused("\"expert_layer_period\":1", "expert_layer_offset: 1 is not below");
    refused("\"attn_layer_period\":0", "attn_layer_period: 0");
    refused("\"attn_layer_offset\":-1", "attn_layer_offset: -1");
    refused("\"mamba_dt_rank\":\"big\"", "mamba_dt_rank: \"big\"");
    refused("\"mamba_dt_rank\":0", "mamba_dt_rank: 0");
    refused("\"mamba_dt_rank\":null", "mamba_dt_rank: null");
    refused("\"rms_norm_eps\":0", "rms_norm_eps: 0");
    refused("\"rms_norm_eps\":-1e-6", "rms_norm_eps");
    refused("\"rms_norm_eps\":1e-60", "rms_norm_eps");
    refused("\"rms_norm_eps\":\"1e-6\"", "rms_norm_eps");
    refused("\"rms_norm_eps\":1e300", "rms_norm_eps");
    refused("\"mamba_conv_bias\":1", "mamba_conv_bias: 1");
    refused("\"mamba_conv_bias\":null", "mamba_conv_bias: null");
    refused("\"eos_token_id\":512", "eos_token_id: 512");
    refused("\"eos_token_id\":[2,-1]", "eos_token_id: -1");
    refused("\"eos_token_id\":[2,[3]]", "eos_token_id: a list");
    refused("\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", "17 ids");
    refused("\"bos_token_id\":512", "bos_token_id: 512");
    refused("\"pad_token_id\":-1", "pad_token_id: -1");
    refused("\"layers_block_type\":[\"mamba\"]", "1 items for 4 layers");
    refused("\"layers_block_type\":[\"mamba\",\"mamba\",\"mamba\",\"conv\"]", "layers_block_type: \"conv\"");
    refused("\"layers_block_type\":\"mamba\"", "layers_block_type");
    refused("\"mamba_expand\":2147483647,\"mamba_d_state\":2147483647", "exceeds 32 bits");
    refused("\"mamba_d_state\":1073741824", "mamba_dt_rank + 2 x mamba_d_state");
    refused("\"head_dim\":2147483647", "num_attention_heads x head_dim");
    refused("\"num_experts\":2147483647,\"intermediate_size\":2147483647", "overflow 64 bits");
    refused("\"vocab_size\":512", "duplicate");
    check_failed(parse(&c, "{\"model_type\":\"jamba\",\"num_hidden_layers\":1025}", &err), &err, "1025");
    check_failed(parse(&c,
                       "{\"model_type\":\"jamba\",\"hidden_size\":2147483647,\"num_attention_heads\":1,"
                       "\"num_key_value_heads\":1}",
                       &err),
                 &err, "exceeds 32 bits");
    check_failed(parse(&c, "{\"model_type\":\"jamba\",\"hidden_size\":100}", &err), &err,
                 "num_attention_heads: 32 does not divide hidden_size 100");
    check_failed(parse(&c, "{\"model_type\":\"jamba\",\"num_key_value_heads\":3}", &err), &err,
                 "num_key_value_heads: 3 does not divide");
    check_failed(parse(&c, "", &err), &err, "empty");
    check_failed(parse(&c, "[]", &err), &err, "array");
    check_failed(parse(&c, "{\"model_type\":\"jamba\"", &err), &err, "invalid JSON at line 1");
}

static void failure_leaves_the_output_untouched(void **state) {
    ls_model_config c, before;
    ls_error err;
    (void)state;
    memset(&c, 0x5A, sizeof c);
    before = c;
    check_failed(parse(&c, "{\"model_type\":\"jamba\",\"eos_token_id\":-4}", &err), &err, "-4");
    assert_memory_equal(&c, &before, sizeof c);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char path[100];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void generation_config_names_the_end_tokens(void **state) {
    char dir[] = "/tmp/ls-test-XXXXXX", command[100];
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(dir));
    check_failed(ls_model_config_open(&c, dir, &err), &err, "config.json: cannot open");
    write_text(dir, "config.json", "{\"model_type\":\"jamba\"}");
    assert_ok(ls_model_config_open(&c, dir, &err), err);
    assert_int_equal(c.eos[0], 2);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[519,2],\"temperature\":0.6}");
    assert_ok(ls_model_config_open(&c, dir, &err), err);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 519);
    write_text(dir, "generation_config.json", "{\"use_cache\":true}");
    assert_ok(ls_model_config_open(&c, dir, &err), err);
    assert_int_equal(c.n_eos, 1);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":70000}");
    check_failed(ls_model_config_open(&c, dir, &err), &err, "generation_config.json: eos_token_id: 70000");
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* Where the configurations are silent the tokenizer's end of sequence counts, before the architecture's default. */
static void the_tokenizer_names_an_end(void **state) {
    static const struct {
        const char *config, *tokenizer, *generation; /* NULL: no such file */
        int32_t n, id;
    } cases[] = {
        {"{\"eos_token\":\"<e>\",\"added_tokens_decoder\":{\"3\":{\"content\":\"<x>\"},\"7\":{\"content\":\"<e>\"}}}",
         NULL, NULL, 1, 7},
        {"{\"eos_token\":{\"content\":\"<e>\"}}",
         "{\"added_tokens\":[{\"id\":5,\"content\":\"<e>\"}],\"model\":{\"vocab\":{\"<e>\":6}}}", NULL, 1, 5},
        {"{\"eos_token\":\"<e>\"}", "{\"model\":{\"vocab\":{\"\\u0000\":1,\"<e>\":6}}}", NULL, 1, 6},
        {"{\"eos_token\":\"<e>\"}", "{\"model\":{\"vocab\":[[\"a\",0],[\"<e>\",-1.5]]}}", NULL, 1, 1},
        {"{\"eos_token\":\"<e>\"}", "{\"model\":{\"vocab\":{}}}", NULL, 1, 2}, /* no such token: the default */
        {"{\"eos_token\":null}", NULL, NULL, 1, 2},
        {NULL, NULL, NULL, 1, 2},
        {"{\"eos_token\":\"<e>\",\"added_tokens_decoder\":{\"7\":{\"content\":\"<e>\"}}}", NULL, "{\"eos_token_id\":9}",
         1, 9},
        {"{\"eos_token\":\"<e>\",\"added_tokens_decoder\":{\"7\":{\"content\":\"<e>\"}}}", NULL,
         "{\"eos_token_id\":null}", 0, 0},
    };
    char dir[] = "/tmp/ls-test-XXXXXX", line[1024];
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(line, sizeof line, "rm -f %s/*; grep -v eos_token_id %s/jamba-nobias/config.json > %s/config.json",
                 dir, LS_FIXTURES, dir);
        assert_int_equal(system(line), 0);
        if (cases[i].config != NULL) write_text(dir, "tokenizer_config.json", cases[i].config);
        if (cases[i].tokenizer != NULL) write_text(dir, "tokenizer.json", cases[i].tokenizer);
        if (cases[i].generation != NULL) write_text(dir, "generation_config.json", cases[i].generation);
        assert_ok(ls_model_config_open(&c, dir, &err), err);
        if (c.n_eos != cases[i].n || (c.n_eos > 0 && c.eos[0] != cases[i].id))
            fail_msg("case %zu: %d ends, %d", i, c.n_eos, c.eos[0]);
    }
    write_text(dir, "tokenizer_config.json",
               "{\"eos_token\":\"<e>\",\"added_tokens_decoder\":{\"70000\":{\"content\":\"<e>\"}}}");
    unlink(strcat(strcpy(line, dir), "/generation_config.json"));
    check_failed(ls_model_config_open(&c, dir, &err), &err, "tokenizer_config.json: eos_token: '<e>' is token 70000");
    snprintf(line, sizeof line, "rm -r %s", dir);
    assert_int_equal(system(line), 0);
}

/* Of a directory with an adapter the configuration is that of its base. */
static void adapters_have_bases(void **state) {
    static const char lora[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"base_model_name_or_path\":";
    char dir[] = "/tmp/ls-test-XXXXXX", text[1024];
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(dir));
    write_text(dir, "adapter_config.json", "{\"peft_type\":\"LORA\"}");
    check_failed(ls_model_config_open(&c, dir, &err), &err, "adapter_config.json: ");
    snprintf(text, sizeof text, "%s\"someone/base\"}", lora);
    write_text(dir, "adapter_config.json", text);
    check_failed(ls_model_config_open(&c, dir, &err), &err, "'someone/base' is no directory of a model here");
    write_text(dir, "config.json", "{\"model_type\":\"jamba\"}"); /* weights beside it that are not its base */
    check_failed(ls_model_config_open(&c, dir, &err), &err, "'someone/base' is no directory of a model here");
    snprintf(text, sizeof text, "%s\"%s/jamba-nobias\"}", lora, LS_FIXTURES);
    write_text(dir, "adapter_config.json", text);
    assert_ok(ls_model_config_open(&c, dir, &err), err);
    assert_int_equal(c.n_layers, 3);
    snprintf(text, sizeof text, "rm -r %s", dir);
    assert_int_equal(system(text), 0);
}

/* A chain of adapters that comes back to itself ends. */
static void circles_of_adapters_end(void **state) {
    char one[] = "/tmp/ls-test-XXXXXX", two[] = "/tmp/ls-test-XXXXXX", text[1024];
    ls_model_config c;
    ls_error err;
    (void)state;
    assert_non_null(mkdtemp(one));
    assert_non_null(mkdtemp(two));
    for (int k = 0; k < 2; k++) {
        snprintf(text, sizeof text,
                 "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"base_model_name_or_path\":\"%s\"}",
                 k == 0 ? two : one);
        write_text(k == 0 ? one : two, "adapter_config.json", text);
    }
    check_failed(ls_model_config_open(&c, one, &err), &err, "an adapter of more than 7 adapters");
    snprintf(text, sizeof text, "rm -r %s %s", one, two);
    assert_int_equal(system(text), 0);
}

/* The first bytes, or the names beside, tell what stands where a model should, and what makes one of it. */
static void other_forms_of_models_are_named(void **state) {
    static const struct {
        const char *file, *text, *says;
    } cases[] = {
        {"config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "`git lfs pull`"},
        {"config.json", "\n<!DOCTYPE html><html></html>", "is an HTML page"},
        {"config.json", "<html>", "is an HTML page"},
        {"config.json", "Entry not found", "is a server's answer"},
        {"config.json", "\xef\xbb\xbf{}", "begins with a byte order mark"},
        {"config.json", "{\"d_model\":768,\"n_layer\":24,\"ssm_cfg\":{}}", "mamba_ssm's own format"},
        {"config.json", "{\"d_model\":768}", "model_type: missing"},
        {"snapshots", "", "a folder of the Hub's cache"},
        {"model.Q4_K_M.gguf", "GGUF", "but GGUF"},
        {"consolidated.00.pth", "", "pickled weights alone"},
        {"other", "", "config.json: cannot open"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[] = "/tmp/ls-test-XXXXXX", command[100];
        ls_model_config c;
        ls_error err;
        assert_non_null(mkdtemp(dir));
        write_text(dir, cases[i].file, cases[i].text);
        check_failed(ls_model_config_open(&c, dir, &err), &err, cases[i].says);
        snprintf(command, sizeof command, "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_format),
        cmocka_unit_test(three_billion_model_is_read),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(inert_and_neutral_fields_are_accepted),
        cmocka_unit_test(other_arithmetic_is_refused_by_name),
        cmocka_unit_test(ranges_are_checked),
        cmocka_unit_test(failure_leaves_the_output_untouched),
        cmocka_unit_test(generation_config_names_the_end_tokens),
        cmocka_unit_test(the_tokenizer_names_an_end),
        cmocka_unit_test(adapters_have_bases),
        cmocka_unit_test(circles_of_adapters_end),
        cmocka_unit_test(other_forms_of_models_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
