/* Llama 1 to 3.3 and what is built like them: TinyLlama, SmolLM2. Absent fields take the defaults that
 * Hugging Face's LlamaConfig gives them. */
#include "load/rope_fields.h"
#include "model/transformer.h"

#define AT LS_TRANSFORMER_AT

static const ls_field_integer integers[] = {
    {"vocab_size", AT(vocab_size), 32000, 1, INT32_MAX, false},
    {"hidden_size", AT(hidden_size), 4096, 1, INT32_MAX, false},
    {"intermediate_size", AT(intermediate_size), 11008, 1, INT32_MAX, false},
    {"num_hidden_layers", AT(n_layers), 32, 1, LS_LAYERS_MAX, false},
    {"num_attention_heads", AT(n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", AT(n_kv_heads), LS_FIELD_ABSENT, 1, INT32_MAX, true},
    {"head_dim", AT(head_dim), LS_FIELD_ABSENT, 1, INT32_MAX, true},
    {"max_position_embeddings", AT(positions_max), 2048, 1, INT64_MAX, false},
    {"bos_token_id", AT(bos), 1, 0, INT32_MAX, true},
    {"pad_token_id", AT(pad), LS_FIELD_ABSENT, 0, INT32_MAX, true},
    {0},
};

static const ls_field_switch switches[] = {
    {"tie_word_embeddings", AT(tied), false},
    {"attention_bias", AT(attention_bias), false},
    {0},
};

static const ls_field_fixed fixed[] = {
    {"hidden_act", "\"silu\""}, {"hidden_act", "\"swish\""}, {"mlp_bias", "false"}, {0}};

static const char *const special[] = {"rms_norm_eps", LS_ROPE_FIELDS, NULL};

static const char *const inert[] = {"attention_dropout", NULL};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};

static ls_status read_llama(ls_model_config *out, struct json_t *config, ls_error *err) {
    static const ls_transformer family = {
        .fields = &fields, .rope_theta = 10000.0, .eos = 2, .head_norms = false, .qkv_bias = false};
    return ls_transformer_read(out, config, &family, err);
}

const ls_architecture ls_llama = {"llama", "LlamaForCausalLM", read_llama};
