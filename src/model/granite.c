/* Granite 4: attention and Mamba-2 mixers, each followed by a dense feed-forward, or by a mixture of experts beside one
 * that all rows have. Embedding, sublayers, attention and logits have factors. Absent fields take the defaults that
 * Hugging Face's GraniteMoeHybridConfig gives them, but for layer_types, which must be there. */
#include <math.h>
#include <string.h>

#include "load/config_fields.h"
#include "load/rope_fields.h"
#include "model/architectures.h"
#include "model/mamba2_sizes.h"
#include "op/moe.h"
#include "op/ssd.h"

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, intermediate_size, shared_size, n_layers, n_heads, n_kv_heads, head_dim;
    int64_t n_experts, top_k;
    int64_t ssd_heads, ssd_head_dim, n_groups, d_state, d_conv, expand, positions_max;
    int64_t bos, pad;
    int64_t tied, conv_bias, proj_bias, attention_bias;
    char layers[LS_LAYERS_MAX + 1]; /* M Mamba-2, * attention */
} raw_config;

#define ABSENT LS_FIELD_ABSENT
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const ls_field_integer integers[] = {
    {"vocab_size", offsetof(raw_config, vocab_size), 32000, 1, INT32_MAX, false},
    {"hidden_size", offsetof(raw_config, hidden_size), 4096, 1, INT32_MAX, false},
    {"intermediate_size", offsetof(raw_config, intermediate_size), 11008, 1, INT32_MAX, false},
    {"shared_intermediate_size", offsetof(raw_config, shared_size), 1024, 1, INT32_MAX, false},
    {"num_hidden_layers", offsetof(raw_config, n_layers), 32, 1, LS_LAYERS_MAX, false},
    {"num_attention_heads", offsetof(raw_config, n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", offsetof(raw_config, n_kv_heads), ABSENT, 1, INT32_MAX, true},
    {"head_dim", offsetof(raw_config, head_dim), ABSENT, 1, INT32_MAX, false},
    {"num_local_experts", offsetof(raw_config, n_experts), 8, 0, LS_EXPERTS_MAX, false},
    {"num_experts_per_tok", offsetof(raw_config, top_k), 2, 0, INT32_MAX, false},
    {"mamba_n_heads", offsetof(raw_config, ssd_heads), 128, 1, LS_SSD_HEADS_MAX, false},
    {"mamba_n_groups", offsetof(raw_config, n_groups), 1, 1, INT32_MAX, false},
    {"mamba_d_state", offsetof(raw_config, d_state), 256, 1, INT32_MAX, false},
    {"mamba_d_conv", offsetof(raw_config, d_conv), 4, 1, INT32_MAX, false},
    {"mamba_expand", offsetof(raw_config, expand), 2, 1, INT32_MAX, false},
    {"max_position_embeddings", offsetof(raw_config, positions_max), 2048, 1, INT64_MAX, false},
    {"bos_token_id", offsetof(raw_config, bos), 1, 0, INT32_MAX, true},
    {"pad_token_id", offsetof(raw_config, pad), ABSENT, 0, INT32_MAX, true},
    {0},
};

static const ls_field_switch switches[] = {
    {"tie_word_embeddings", offsetof(raw_config, tied), false},
    {"mamba_conv_bias", offsetof(raw_config, conv_bias), true},
    {"mamba_proj_bias", offsetof(raw_config, proj_bias), false},
    {"attention_bias", offsetof(raw_config, attention_bias), false},
    {0},
};

static const ls_field_fixed fixed[] = {
    {"hidden_act", "\"silu\""}, {"hidden_act", "\"swish\""}, {"normalization_function", "\"rmsnorm\""}, {0}};

static const char *const special[] = {"attention_multiplier",
                                      "embedding_multiplier",
                                      "layer_types",
                                      "logits_scaling",
                                      "mamba_d_head",
                                      "position_embedding_type",
                                      "residual_multiplier",
                                      "rms_norm_eps",
                                      "time_step_limit",
                                      LS_ROPE_FIELDS,
                                      NULL};

/* Training, and the order of computation. */
static const char *const inert[] = {"attention_dropout",    "init_method",          "mamba_chunk_size",
                                    "output_router_logits", "router_aux_loss_coef", NULL};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};

#define NAMES                                                                                                         \
    .embed = "model.embed_tokens.weight", .final_norm = "model.norm.weight", .head = "lm_head.weight",                \
    .layers = "model.layers.", .input_norm = "input_layernorm.weight", .ffn_norm = "post_attention_layernorm.weight", \
    .attention = "self_attn.", .mamba = "mamba.", .gate_up = "input_linear.weight", .down = "output_linear.weight"

static const ls_tensor_names names_dense = {NAMES, .ffn = "shared_mlp."};
static const ls_tensor_names names_experts = {NAMES, .ffn = "", .router = "block_sparse_moe.router.layer.weight",
                                              .experts = "block_sparse_moe.", .shared = "shared_mlp."};

static ls_status read_layers(raw_config *raw, const struct json_t *config, ls_error *err) {
    static const char *const kinds[][3] = {{"linear_attention", "mamba", NULL}, {"full_attention", "attention", NULL}};
    LS_TRY(ls_field_read_kinds(raw->layers, LS_LAYERS_MAX, config, "layer_types", NULL, "M*", kinds, err));
    if ((int64_t)strlen(raw->layers) != raw->n_layers)
        return LS_FAIL(err, LS_ERR_FORMAT, "layer_types: %zu items for %lld layers", strlen(raw->layers),
                       (long long)raw->n_layers);
    return LS_OK;
}

static bool has_kind(const raw_config *raw, char kind) { return strchr(raw->layers, kind) != NULL; }

static ls_status check_attention(const raw_config *raw, ls_error *err) {
    const ls_field_rows rows[] = {{"(num_attention_heads + 2 x num_key_value_heads) x head_dim",
                                   (raw->n_heads + 2 * raw->n_kv_heads) * raw->head_dim}};
    const ls_field_product products[] = {
        {"num_attention_heads x head_dim x hidden_size", {raw->n_heads, raw->head_dim, raw->hidden_size, 1}}};
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    return ls_field_check_products(products, COUNT(products), err);
}

static ls_status check_mamba(const raw_config *raw, ls_error *err) {
    const ls_mamba2_sizes sizes = {.hidden = raw->hidden_size,
                                   .n_heads = raw->ssd_heads,
                                   .head_dim = raw->ssd_head_dim,
                                   .n_groups = raw->n_groups,
                                   .n_states = raw->d_state,
                                   .d_conv = raw->d_conv,
                                   .heads_name = "mamba_n_heads",
                                   .head_dim_name = "mamba_d_head",
                                   .states_name = "mamba_d_state"};
    return ls_mamba2_check_sizes(&sizes, err);
}

static ls_status check_granite_experts(const raw_config *raw, ls_error *err) {
    const ls_field_product products[] = {{"num_local_experts x 2 x intermediate_size x hidden_size",
                                          {raw->n_experts, 2, raw->intermediate_size, raw->hidden_size}}};
    if (raw->n_experts == 1)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "num_local_experts: 1; a mixture has two at least, and 0 is none");
    if (raw->top_k < 1 || raw->top_k > raw->n_experts)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_experts_per_tok: %lld of %lld experts", (long long)raw->top_k,
                       (long long)raw->n_experts);
    return ls_field_check_products(products, COUNT(products), err);
}

static ls_status check_granite(const raw_config *raw, ls_error *err) {
    const ls_field_rows rows[] = {{"2 x shared_intermediate_size", 2 * raw->shared_size},
                                  {"2 x intermediate_size", 2 * raw->intermediate_size}};
    const ls_field_product products[] = {
        {"vocab_size x hidden_size", {raw->vocab_size, raw->hidden_size, 1, 1}},
        {"2 x shared_intermediate_size x hidden_size", {2, raw->shared_size, raw->hidden_size, 1}}};
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    LS_TRY(ls_field_check_products(products, COUNT(products), err));
    LS_TRY(check_attention(raw, err));
    if (has_kind(raw, 'M')) LS_TRY(check_mamba(raw, err));
    return raw->n_experts > 0 ? check_granite_experts(raw, err) : LS_OK;
}

static void take_mixers(ls_model_config *out, const raw_config *raw) {
    for (int64_t i = 0; i < raw->n_layers; i++) out->is_attention[i] = raw->layers[i] == '*';
    out->n_heads = (int32_t)raw->n_heads;
    out->n_kv_heads = (int32_t)raw->n_kv_heads;
    out->head_dim = (int32_t)raw->head_dim;
    out->qkv_bias = out->o_bias = raw->attention_bias != 0;
    if (!has_kind(raw, 'M')) return;
    out->d_inner = (int32_t)(raw->ssd_heads * raw->ssd_head_dim);
    out->d_state = (int32_t)raw->d_state;
    out->d_conv = (int32_t)raw->d_conv;
    out->ssd_heads = (int32_t)raw->ssd_heads;
    out->ssd_groups = (int32_t)raw->n_groups;
    out->dt_max = INFINITY;
    out->conv_bias = raw->conv_bias != 0;
    out->proj_bias = raw->proj_bias != 0;
}

/* Without experts, what stands beside them is the feed-forward. */
static void take_ffn(ls_model_config *out, const raw_config *raw) {
    const bool experts = raw->n_experts > 0;
    out->names = experts ? &names_experts : &names_dense;
    out->ffn = (int32_t)(experts ? raw->intermediate_size : raw->shared_size);
    out->shared_ffn = experts ? (int32_t)raw->shared_size : 0;
    out->n_experts = experts ? (int32_t)raw->n_experts : 1;
    out->top_k = experts ? (int32_t)raw->top_k : 1;
    out->reweighs = experts;
    memset(out->is_moe, experts, (size_t)raw->n_layers);
}

static ls_status read_factor(float *out, const struct json_t *config, const char *field, ls_error *err) {
    LS_TRY(ls_field_read_factor(out, config, field, 1.0f, err));
    if (*out == 1.0f) *out = 0.0f;
    return LS_OK;
}

static ls_status read_factors(ls_model_config *out, const struct json_t *config, ls_error *err) {
    LS_TRY(read_factor(&out->embed_scale, config, "embedding_multiplier", err));
    LS_TRY(read_factor(&out->residual_scale, config, "residual_multiplier", err));
    LS_TRY(read_factor(&out->logit_scale, config, "logits_scaling", err));
    if (out->logit_scale > 0.0f) out->logit_scale = 1.0f / out->logit_scale;
    return ls_field_read_factor(&out->attention_scale, config, "attention_multiplier", 1.0f, err);
}

static ls_status read_positions(ls_model_config *out, const raw_config *raw, const struct json_t *config,
                                ls_error *err) {
    static const char *const types[] = {"rope", "nope", NULL};
    int64_t type;
    LS_TRY(ls_field_read_word(&type, config, "position_embedding_type", types, 1, err));
    if (type != 0) return LS_OK;
    return ls_rope_fields_read(&out->rope, config, raw->head_dim, 10000.0, raw->positions_max, err);
}

static ls_status read_granite(ls_model_config *out, struct json_t *config, ls_error *err) {
    raw_config raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, &fields, err));
    LS_TRY(read_layers(&raw, config, err));
    LS_TRY(ls_field_derive_heads(&raw.n_kv_heads, &raw.head_dim, raw.n_heads, raw.hidden_size, err));
    if (has_kind(&raw, 'M'))
        LS_TRY(ls_mamba2_read_head_dim(&raw.ssd_head_dim, config, raw.ssd_heads, raw.expand * raw.hidden_size, err));
    LS_TRY(check_granite(&raw, err));
    out->n_layers = (int32_t)raw.n_layers;
    out->hidden = (int32_t)raw.hidden_size;
    out->vocab = (int32_t)raw.vocab_size;
    out->positions_max = raw.positions_max;
    out->tied = raw.tied != 0;
    take_mixers(out, &raw);
    take_ffn(out, &raw);
    LS_TRY(read_factors(out, config, err));
    LS_TRY(read_positions(out, &raw, config, err));
    if (has_kind(&raw, 'M')) LS_TRY(ls_field_read_limits(&out->dt_min, &out->dt_max, config, "time_step_limit", err));
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "rms_norm_eps", 1e-6f, err));
    LS_TRY(ls_field_read_dtype(out, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, 2, err);
}

const ls_architecture ls_granite = {"granitemoehybrid", "GraniteMoeHybridForCausalLM", read_granite};
