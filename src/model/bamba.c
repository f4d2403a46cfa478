/* Bamba: attention, of whose heads half rotates, and Mamba-2 mixers, each followed by a dense feed-forward. Absent
 * fields take the defaults that Hugging Face's BambaConfig gives them. */
#include <math.h>

#include "load/config_fields.h"
#include "load/rope_fields.h"
#include "model/architectures.h"
#include "model/mamba2_sizes.h"
#include "op/ssd.h"

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim, rotated;
    int64_t ssd_heads, ssd_head_dim, n_groups, d_state, d_conv, expand, positions_max;
    int64_t bos, pad;
    int64_t tied, conv_bias, proj_bias, attention_bias;
} raw_config;

#define ABSENT LS_FIELD_ABSENT
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const ls_field_integer integers[] = {
    {"vocab_size", offsetof(raw_config, vocab_size), 128000, 1, INT32_MAX, false},
    {"hidden_size", offsetof(raw_config, hidden_size), 4096, 1, INT32_MAX, false},
    {"intermediate_size", offsetof(raw_config, intermediate_size), 14336, 1, INT32_MAX, false},
    {"num_hidden_layers", offsetof(raw_config, n_layers), 32, 1, LS_LAYERS_MAX, false},
    {"num_attention_heads", offsetof(raw_config, n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", offsetof(raw_config, n_kv_heads), 8, 1, INT32_MAX, true},
    {"head_dim", offsetof(raw_config, head_dim), ABSENT, 1, INT32_MAX, false},
    {"attn_rotary_emb", offsetof(raw_config, rotated), ABSENT, 1, INT32_MAX, true},
    {"mamba_n_heads", offsetof(raw_config, ssd_heads), 128, 1, LS_SSD_HEADS_MAX, false},
    {"mamba_n_groups", offsetof(raw_config, n_groups), 1, 1, INT32_MAX, false},
    {"mamba_d_state", offsetof(raw_config, d_state), 256, 1, INT32_MAX, false},
    {"mamba_d_conv", offsetof(raw_config, d_conv), 4, 1, INT32_MAX, false},
    {"mamba_expand", offsetof(raw_config, expand), 2, 1, INT32_MAX, false},
    {"max_position_embeddings", offsetof(raw_config, positions_max), 262144, 1, INT64_MAX, false},
    {"bos_token_id", offsetof(raw_config, bos), 1, 0, INT32_MAX, true},
    {"pad_token_id", offsetof(raw_config, pad), 0, 0, INT32_MAX, true},
    {0},
};

static const ls_field_switch switches[] = {
    {"tie_word_embeddings", offsetof(raw_config, tied), false},
    {"mamba_conv_bias", offsetof(raw_config, conv_bias), true},
    {"mamba_proj_bias", offsetof(raw_config, proj_bias), false},
    {"attention_bias", offsetof(raw_config, attention_bias), false},
    {0},
};

static const ls_field_fixed fixed[] = {{"hidden_act", "\"silu\""}, {"hidden_act", "\"swish\""}, {0}};

static const char *const special[] = {"rms_norm_eps",    "mamba_d_head", "attn_layer_indices",
                                      "time_step_limit", LS_ROPE_FIELDS, NULL};

/* Training, and the order of computation. */
static const char *const inert[] = {"attention_dropout", "mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient",
                                    NULL};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};

static const ls_tensor_names tensor_names = {.embed = "model.embed_tokens.weight",
                                             .final_norm = "model.final_layernorm.weight",
                                             .head = "lm_head.weight",
                                             .layers = "model.layers.",
                                             .input_norm = "input_layernorm.weight",
                                             .ffn_norm = "pre_ff_layernorm.weight",
                                             .attention = "self_attn.",
                                             .mamba = "mamba.",
                                             .ffn = "feed_forward.",
                                             .gate = "gate_proj.weight",
                                             .up = "up_proj.weight",
                                             .down = "down_proj.weight"};

static ls_status derive_bamba(raw_config *raw, const struct json_t *config, ls_error *err) {
    LS_TRY(ls_field_derive_heads(&raw->n_kv_heads, &raw->head_dim, raw->n_heads, raw->hidden_size, err));
    if (raw->rotated != ABSENT && 2 * raw->rotated != raw->head_dim)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "attn_rotary_emb: %lld, expected half of heads of %lld",
                       (long long)raw->rotated, (long long)raw->head_dim);
    return ls_mamba2_read_head_dim(&raw->ssd_head_dim, config, raw->ssd_heads, raw->expand * raw->hidden_size, err);
}

static ls_status check_bamba(const raw_config *raw, ls_error *err) {
    const ls_field_rows rows[] = {{"(num_attention_heads + 2 x num_key_value_heads) x head_dim",
                                   (raw->n_heads + 2 * raw->n_kv_heads) * raw->head_dim}};
    const ls_field_product products[] = {
        {"vocab_size x hidden_size", {raw->vocab_size, raw->hidden_size, 1, 1}},
        {"intermediate_size x hidden_size", {raw->intermediate_size, raw->hidden_size, 1, 1}},
        {"num_attention_heads x head_dim x hidden_size", {raw->n_heads, raw->head_dim, raw->hidden_size, 1}},
    };
    const ls_mamba2_sizes sizes = {.hidden = raw->hidden_size,
                                   .n_heads = raw->ssd_heads,
                                   .head_dim = raw->ssd_head_dim,
                                   .n_groups = raw->n_groups,
                                   .n_states = raw->d_state,
                                   .d_conv = raw->d_conv,
                                   .heads_name = "mamba_n_heads",
                                   .head_dim_name = "mamba_d_head",
                                   .states_name = "mamba_d_state"};
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    LS_TRY(ls_field_check_products(products, COUNT(products), err));
    return ls_mamba2_check_sizes(&sizes, err);
}

static void take_bamba(ls_model_config *out, const raw_config *raw) {
    out->names = &tensor_names;
    out->n_layers = (int32_t)raw->n_layers;
    out->hidden = (int32_t)raw->hidden_size;
    out->vocab = (int32_t)raw->vocab_size;
    out->ffn = (int32_t)raw->intermediate_size;
    out->n_heads = (int32_t)raw->n_heads;
    out->n_kv_heads = (int32_t)raw->n_kv_heads;
    out->head_dim = (int32_t)raw->head_dim;
    out->n_experts = 1;
    out->top_k = 1;
    out->d_inner = (int32_t)(raw->ssd_heads * raw->ssd_head_dim);
    out->d_state = (int32_t)raw->d_state;
    out->d_conv = (int32_t)raw->d_conv;
    out->ssd_heads = (int32_t)raw->ssd_heads;
    out->ssd_groups = (int32_t)raw->n_groups;
    out->dt_max = INFINITY;
    out->positions_max = raw->positions_max;
    out->conv_bias = raw->conv_bias != 0;
    out->proj_bias = raw->proj_bias != 0;
    out->tied = raw->tied != 0;
    out->qkv_bias = out->o_bias = raw->attention_bias != 0;
}

static ls_status read_bamba(ls_model_config *out, struct json_t *config, ls_error *err) {
    raw_config raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, &fields, err));
    LS_TRY(derive_bamba(&raw, config, err));
    LS_TRY(check_bamba(&raw, err));
    take_bamba(out, &raw);
    LS_TRY(ls_field_read_marks(out->is_attention, out->n_layers, config, "attn_layer_indices", err));
    LS_TRY(ls_rope_fields_read_half(&out->rope, config, raw.head_dim, 10000.0, raw.positions_max, err));
    LS_TRY(ls_field_read_limits(&out->dt_min, &out->dt_max, config, "time_step_limit", err));
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "rms_norm_eps", 1e-5f, err));
    LS_TRY(ls_field_read_dtype(out, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, 2, err);
}

const ls_architecture ls_bamba = {"bamba", "BambaForCausalLM", read_bamba};
