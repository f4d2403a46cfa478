/* Jamba: attention and Mamba-1 mixers, each followed by a dense feed-forward or a mixture of experts. Absent fields
 * take the defaults that Hugging Face's JambaConfig gives them. */
#include "load/config_fields.h"
#include "model/architectures.h"

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int64_t n_experts, n_local_experts, top_k, expert_period, expert_offset, attn_period, attn_offset;
    int64_t d_state, d_conv, expand, dt_rank, positions_max;
    int64_t bos, pad;
    int64_t tied, conv_bias, proj_bias;
} raw_config;

#define ABSENT LS_FIELD_ABSENT
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const ls_field_integer integers[] = {
    {"vocab_size", offsetof(raw_config, vocab_size), 65536, 1, INT32_MAX, false},
    {"hidden_size", offsetof(raw_config, hidden_size), 4096, 1, INT32_MAX, false},
    {"intermediate_size", offsetof(raw_config, intermediate_size), 14336, 1, INT32_MAX, false},
    {"num_hidden_layers", offsetof(raw_config, n_layers), 32, 1, LS_LAYERS_MAX, false},
    {"num_attention_heads", offsetof(raw_config, n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", offsetof(raw_config, n_kv_heads), 8, 1, INT32_MAX, true},
    {"head_dim", offsetof(raw_config, head_dim), ABSENT, 1, INT32_MAX, true},
    {"num_experts", offsetof(raw_config, n_experts), ABSENT, 1, INT32_MAX, false},
    {"num_local_experts", offsetof(raw_config, n_local_experts), ABSENT, 1, INT32_MAX, true},
    {"num_experts_per_tok", offsetof(raw_config, top_k), 2, 1, INT32_MAX, false},
    {"expert_layer_period", offsetof(raw_config, expert_period), 2, 1, INT32_MAX, false},
    {"expert_layer_offset", offsetof(raw_config, expert_offset), 1, 0, INT32_MAX, false},
    {"attn_layer_period", offsetof(raw_config, attn_period), 8, 1, INT32_MAX, false},
    {"attn_layer_offset", offsetof(raw_config, attn_offset), 4, 0, INT32_MAX, false},
    {"mamba_d_state", offsetof(raw_config, d_state), 16, 1, INT32_MAX, false},
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
    {0},
};

static const ls_field_fixed fixed[] = {
    {"hidden_act", "\"silu\""}, {"hidden_act", "\"swish\""}, {"mamba_inner_layernorms", "true"}, {0}};

static const char *const special[] = {"rms_norm_eps", "mamba_dt_rank", "layers_block_type", NULL};

static const char *const inert[] = {
    "attention_dropout",
    "calc_logits_for_entire_prompt",
    "num_logits_to_keep",
    "output_router_logits",
    "router_aux_loss_coef",
    "use_associative_scan",
    "use_mamba_kernels",
    "use_mambapy",
    NULL,
};

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
                                             .router = "router.weight",
                                             .gate = "gate_proj.weight",
                                             .up = "up_proj.weight",
                                             .down = "down_proj.weight"};

static ls_status derive_experts(raw_config *raw, ls_error *err) {
    if (raw->n_local_experts != ABSENT && raw->n_experts != ABSENT && raw->n_local_experts != raw->n_experts)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_local_experts: %lld, but num_experts is %lld",
                       (long long)raw->n_local_experts, (long long)raw->n_experts);
    if (raw->n_experts == ABSENT) raw->n_experts = raw->n_local_experts == ABSENT ? 16 : raw->n_local_experts;
    if (raw->n_experts == 1) {
        raw->top_k = 1; /* no router, so what the file says has no effect */
    } else if (raw->top_k > raw->n_experts) {
        return LS_FAIL(err, LS_ERR_FORMAT, "num_experts_per_tok: %lld exceeds num_experts %lld", (long long)raw->top_k,
                       (long long)raw->n_experts);
    }
    if (raw->expert_offset >= raw->expert_period)
        return LS_FAIL(err, LS_ERR_FORMAT, "expert_layer_offset: %lld is not below expert_layer_period %lld",
                       (long long)raw->expert_offset, (long long)raw->expert_period);
    return LS_OK;
}

static ls_status derive_attention(raw_config *raw, ls_error *err) {
    if (raw->attn_offset >= raw->attn_period)
        return LS_FAIL(err, LS_ERR_FORMAT, "attn_layer_offset: %lld is not below attn_layer_period %lld",
                       (long long)raw->attn_offset, (long long)raw->attn_period);
    return ls_field_derive_heads(&raw->n_kv_heads, &raw->head_dim, raw->n_heads, raw->hidden_size, err);
}

/* Rows and sizes of the largest tensors must fit the types that hold them. */
static ls_status check_jamba(const raw_config *raw, ls_error *err) {
    const int64_t d_inner = raw->expand * raw->hidden_size, narrow = raw->dt_rank + 2 * raw->d_state;
    const ls_field_rows rows[] = {{"2 x mamba_expand x hidden_size", 2 * d_inner},
                                  {"mamba_dt_rank + 2 x mamba_d_state", narrow},
                                  {"num_attention_heads x head_dim", raw->n_heads * raw->head_dim}};
    const ls_field_product products[] = {
        {"vocab_size x hidden_size", {raw->vocab_size, raw->hidden_size, 1, 1}},
        {"num_experts x intermediate_size x hidden_size",
         {raw->n_experts, raw->intermediate_size, raw->hidden_size, 1}},
        {"2 x mamba_expand x hidden_size x hidden_size", {2, raw->expand, raw->hidden_size, raw->hidden_size}},
        {"mamba_expand x hidden_size x mamba_d_state", {raw->expand, raw->hidden_size, raw->d_state, 1}},
        {"mamba_expand x hidden_size x mamba_d_conv", {raw->expand, raw->hidden_size, raw->d_conv, 1}},
        {"mamba_expand x hidden_size x (mamba_dt_rank + 2 x mamba_d_state)",
         {raw->expand, raw->hidden_size, narrow, 1}},
        {"num_attention_heads x head_dim x hidden_size", {raw->n_heads, raw->head_dim, raw->hidden_size, 1}},
    };
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    return ls_field_check_products(products, COUNT(products), err);
}

static ls_status read_layers(ls_model_config *out, const raw_config *raw, const struct json_t *config, ls_error *err) {
    static const char *const kinds[2] = {"mamba", "attention"};
    for (int32_t i = 0; i < out->n_layers; i++) {
        out->is_attention[i] = i % raw->attn_period == raw->attn_offset;
        out->is_moe[i] = out->n_experts > 1 && i % raw->expert_period == raw->expert_offset;
    }
    return ls_field_read_pairs(out->is_attention, out->n_layers, config, "layers_block_type", kinds, err);
}

static void take_jamba(ls_model_config *out, const raw_config *raw) {
    out->names = &tensor_names;
    out->inner_norms = out->inner_weights = true;
    out->n_layers = (int32_t)raw->n_layers;
    out->hidden = (int32_t)raw->hidden_size;
    out->vocab = (int32_t)raw->vocab_size;
    out->ffn = (int32_t)raw->intermediate_size;
    out->n_heads = (int32_t)raw->n_heads;
    out->n_kv_heads = (int32_t)raw->n_kv_heads;
    out->head_dim = (int32_t)raw->head_dim;
    out->n_experts = (int32_t)raw->n_experts;
    out->top_k = (int32_t)raw->top_k;
    out->d_inner = (int32_t)(raw->expand * raw->hidden_size);
    out->d_state = (int32_t)raw->d_state;
    out->d_conv = (int32_t)raw->d_conv;
    out->dt_rank = (int32_t)raw->dt_rank;
    out->positions_max = raw->positions_max;
    out->conv_bias = raw->conv_bias != 0;
    out->proj_bias = raw->proj_bias != 0;
    out->tied = raw->tied != 0;
}

static ls_status read_jamba(ls_model_config *out, struct json_t *config, ls_error *err) {
    raw_config raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, &fields, err));
    LS_TRY(derive_experts(&raw, err));
    LS_TRY(derive_attention(&raw, err));
    LS_TRY(ls_field_read_auto(&raw.dt_rank, config, "mamba_dt_rank", (raw.hidden_size + 15) / 16, err));
    LS_TRY(check_jamba(&raw, err));
    take_jamba(out, &raw);
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "rms_norm_eps", 1e-6f, err));
    out->inner_eps = out->rms_eps;
    LS_TRY(ls_field_read_dtype(out, config, err));
    LS_TRY(read_layers(out, &raw, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, 2, err);
}

const ls_architecture ls_jamba = {"jamba", "JambaForCausalLM", read_jamba};
