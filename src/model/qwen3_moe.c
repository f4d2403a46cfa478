/* Qwen3 with a mixture of experts in every layer. Absent fields take the defaults that
 * Hugging Face's Qwen3MoeConfig gives them. */
#include "load/rope_fields.h"
#include "model/transformer.h"

#define AT LS_TRANSFORMER_AT

static const ls_field_integer integers[] = {
    {"vocab_size", AT(vocab_size), 151936, 1, INT32_MAX, false},
    {"hidden_size", AT(hidden_size), 2048, 1, INT32_MAX, false},
    {"moe_intermediate_size", AT(intermediate_size), 768, 1, INT32_MAX, false},
    {"num_hidden_layers", AT(n_layers), 24, 1, LS_LAYERS_MAX, false},
    {"num_attention_heads", AT(n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", AT(n_kv_heads), 4, 1, INT32_MAX, true},
    {"head_dim", AT(head_dim), LS_FIELD_ABSENT, 1, INT32_MAX, true},
    {"max_position_embeddings", AT(positions_max), 32768, 1, INT64_MAX, false},
    {"bos_token_id", AT(bos), LS_FIELD_ABSENT, 0, INT32_MAX, true},
    {"pad_token_id", AT(pad), LS_FIELD_ABSENT, 0, INT32_MAX, true},
    {"num_experts", AT(n_experts), LS_FIELD_ABSENT, 1, INT32_MAX, false},
    {"num_local_experts", AT(n_local_experts), LS_FIELD_ABSENT, 1, INT32_MAX, false},
    {"num_experts_per_tok", AT(top_k), 8, 1, INT32_MAX, false},
    {0},
};

static const ls_field_switch switches[] = {
    {"tie_word_embeddings", AT(tied), false},
    {"use_sliding_window", AT(use_window), false},
    {"attention_bias", AT(attention_bias), false},
    {"norm_topk_prob", AT(norm_topk_prob), false},
    {0},
};

static const ls_field_fixed fixed[] = {
    {"hidden_act", "\"silu\""}, {"hidden_act", "\"swish\""}, {"decoder_sparse_step", "1"}, {0}};

static const char *const special[] = {"rms_norm_eps",    LS_ROPE_FIELDS,   "layer_types",
                                      "mlp_only_layers", "sliding_window", NULL};

static const char *const inert[] = {"attention_dropout",    "intermediate_size", "output_router_logits",
                                    "router_aux_loss_coef", "max_window_layers", NULL};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};

static ls_status read_qwen3_moe(ls_model_config *out, struct json_t *config, ls_error *err) {
    static const ls_transformer family = {.fields = &fields,
                                          .rope_theta = 10000.0,
                                          .windows = LS_WINDOWS_ALL_IF_USED,
                                          .window = 4096,
                                          .eos = LS_FIELD_ABSENT,
                                          .experts = LS_EXPERTS_QWEN3,
                                          .n_experts = 128,
                                          .dense = "qwen3",
                                          .head_norms = true,
                                          .qkv_bias = false};
    return ls_transformer_read(out, config, &family, err);
}

const ls_architecture ls_qwen3_moe = {"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe};
