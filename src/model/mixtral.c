/* Mixtral: a mixture of experts in every layer, of which the chosen share the weight. Absent fields take the defaults
 * that Hugging Face's MixtralConfig gives them. */
#include "load/rope_fields.h"
#include "model/transformer.h"

#define AT LS_TRANSFORMER_AT

static const ls_field_integer integers[] = {
    {"vocab_size", AT(vocab_size), 32000, 1, INT32_MAX, false},
    {"hidden_size", AT(hidden_size), 4096, 1, INT32_MAX, false},
    {"intermediate_size", AT(intermediate_size), 14336, 1, INT32_MAX, false},
    {"num_hidden_layers", AT(n_layers), 32, 1, LS_LAYERS_MAX, false},
    {"num_attention_heads", AT(n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", AT(n_kv_heads), 8, 1, INT32_MAX, true},
    {"head_dim", AT(head_dim), LS_FIELD_ABSENT, 1, INT32_MAX, true},
    {"max_position_embeddings", AT(positions_max), 131072, 1, INT64_MAX, false},
    {"bos_token_id", AT(bos), 1, 0, INT32_MAX, true},
    {"pad_token_id", AT(pad), LS_FIELD_ABSENT, 0, INT32_MAX, true},
    {"num_experts", AT(n_experts), LS_FIELD_ABSENT, 1, INT32_MAX, false},
    {"num_local_experts", AT(n_local_experts), LS_FIELD_ABSENT, 1, INT32_MAX, false},
    {"num_experts_per_tok", AT(top_k), 2, 1, INT32_MAX, false},
    {0},
};

static const ls_field_switch switches[] = {
    {"tie_word_embeddings", AT(tied), false},
    {0},
};

static const ls_field_fixed fixed[] = {{"hidden_act", "\"silu\""}, {"hidden_act", "\"swish\""}, {0}};

static const char *const special[] = {"rms_norm_eps", LS_ROPE_FIELDS, "sliding_window", NULL};

static const char *const inert[] = {"attention_dropout", "output_router_logits", "router_aux_loss_coef",
                                    "router_jitter_noise", NULL};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};

static ls_status read_mixtral(ls_model_config *out, struct json_t *config, ls_error *err) {
    static const ls_transformer family = {.fields = &fields,
                                          .rope_theta = 1000000.0,
                                          .windows = LS_WINDOWS_ALL,
                                          .window = LS_FIELD_ABSENT,
                                          .eos = 2,
                                          .experts = LS_EXPERTS_MIXTRAL,
                                          .n_experts = 8,
                                          .dense = "mistral",
                                          .head_norms = false,
                                          .qkv_bias = false};
    return ls_transformer_read(out, config, &family, err);
}

const ls_architecture ls_mixtral = {"mixtral", "MixtralForCausalLM", read_mixtral};
