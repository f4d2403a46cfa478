/* Nemotron-H: layers of one sublayer each, which are a Mamba-2 mixer, attention without positions, or a feed-forward
 * without a gate, dense or as a mixture of such experts beside one that all rows have. Absent fields take the defaults
 * that Hugging Face's NemotronHConfig gives them. */
#include <math.h>
#include <string.h>

#include "load/config_fields.h"
#include "model/architectures.h"
#include "model/mamba2_sizes.h"
#include "op/moe_sigmoid.h"
#include "op/ssd.h"

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers;
    int64_t n_heads, n_kv_heads, head_dim, old_head_dim;
    int64_t ssd_heads, ssd_head_dim, d_state, d_conv, n_groups, positions_max;
    int64_t bos, pad;
    int64_t expert_size, shared_size, n_experts, top_k, n_groups_of_experts, top_groups;
    int64_t conv_bias, proj_bias, norm_topk_prob;
} raw_config;

#define ABSENT LS_FIELD_ABSENT
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const ls_field_integer integers[] = {
    {"vocab_size", offsetof(raw_config, vocab_size), 131072, 1, INT32_MAX, false},
    {"hidden_size", offsetof(raw_config, hidden_size), 4096, 1, INT32_MAX, false},
    {"intermediate_size", offsetof(raw_config, intermediate_size), 21504, 1, INT32_MAX, false},
    {"num_hidden_layers", offsetof(raw_config, n_layers), ABSENT, 1, LS_LAYERS_MAX, true},
    {"num_attention_heads", offsetof(raw_config, n_heads), 32, 1, INT32_MAX, false},
    {"num_key_value_heads", offsetof(raw_config, n_kv_heads), 8, 1, INT32_MAX, true},
    {"head_dim", offsetof(raw_config, head_dim), 128, 1, INT32_MAX, false},
    {"attention_head_dim", offsetof(raw_config, old_head_dim), ABSENT, 1, INT32_MAX, true},
    {"mamba_num_heads", offsetof(raw_config, ssd_heads), 128, 1, LS_SSD_HEADS_MAX, false},
    {"mamba_head_dim", offsetof(raw_config, ssd_head_dim), 64, 1, INT32_MAX, false},
    {"ssm_state_size", offsetof(raw_config, d_state), 128, 1, INT32_MAX, false},
    {"conv_kernel", offsetof(raw_config, d_conv), 4, 1, INT32_MAX, false},
    {"n_groups", offsetof(raw_config, n_groups), 8, 1, INT32_MAX, false},
    {"max_position_embeddings", offsetof(raw_config, positions_max), 4096, 1, INT64_MAX, false},
    {"moe_intermediate_size", offsetof(raw_config, expert_size), 7688, 1, INT32_MAX, false},
    {"moe_shared_expert_intermediate_size", offsetof(raw_config, shared_size), 7688, 1, INT32_MAX, false},
    {"n_routed_experts", offsetof(raw_config, n_experts), 8, 1, LS_EXPERTS_MAX, false},
    {"num_experts_per_tok", offsetof(raw_config, top_k), 2, 1, INT32_MAX, false},
    {"n_group", offsetof(raw_config, n_groups_of_experts), 1, 1, INT32_MAX, false},
    {"topk_group", offsetof(raw_config, top_groups), 1, 1, INT32_MAX, false},
    {"bos_token_id", offsetof(raw_config, bos), 1, 0, INT32_MAX, true},
    {"pad_token_id", offsetof(raw_config, pad), 0, 0, INT32_MAX, true},
    {0},
};

static const ls_field_switch switches[] = {
    {"use_conv_bias", offsetof(raw_config, conv_bias), true},
    {"use_bias", offsetof(raw_config, proj_bias), false},
    {"norm_topk_prob", offsetof(raw_config, norm_topk_prob), true},
    {0},
};

static const ls_field_fixed fixed[] = {
    {"mlp_hidden_act", "\"relu2\""},
    {"mamba_hidden_act", "\"silu\""},
    {"mamba_hidden_act", "\"swish\""},
    {"num_nextn_predict_layers", "0"},
    {0},
};

static const char *const special[] = {"layer_norm_epsilon", "layers_block_type",     "hybrid_override_pattern",
                                      "time_step_min",      "routed_scaling_factor", NULL};

/* How new weights are drawn and how the reference computes; and what it does not read, time_step_limit among them,
 * whose place time_step_min has. */
static const char *const inert[] = {
    "attention_dropout",
    "chunk_size",
    "expand",
    "hidden_dropout",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "n_shared_experts",
    "num_logits_to_keep",
    "num_query_groups",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "rms_norm_eps",
    "time_step_floor",
    "time_step_limit",
    "time_step_max",
    "time_step_rank",
    "use_mamba_kernels",
    NULL,
};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};

static const ls_tensor_names tensor_names = {.embed = "backbone.embeddings.weight",
                                             .final_norm = "backbone.norm_f.weight",
                                             .head = "lm_head.weight",
                                             .layers = "backbone.layers.",
                                             .input_norm = "norm.weight",
                                             .ffn_norm = "norm.weight",
                                             .attention = "mixer.",
                                             .mamba = "mixer.",
                                             .ffn = "mixer.",
                                             .router = "gate.weight",
                                             .router_bias = "gate.e_score_correction_bias",
                                             .shared = "shared_experts.",
                                             .up = "up_proj.weight",
                                             .down = "down_proj.weight"};

/* ---- layers ---- */

/* Kinds by their letters in the pattern; names in the list, new and old. */
static const char letters[] = "M*-E";
static const char *const kinds[][3] = {
    {"linear_attention", "mamba", NULL}, {"full_attention", "attention", NULL}, {"mlp", NULL}, {"moe", NULL}};

static ls_status check_experts(const raw_config *raw, ls_error *err) {
    const ls_field_product products[] = {
        {"n_routed_experts x moe_intermediate_size x hidden_size",
         {raw->n_experts, raw->expert_size, raw->hidden_size, 1}},
        {"moe_shared_expert_intermediate_size x hidden_size", {raw->shared_size, raw->hidden_size, 1, 1}}};
    const int64_t groups = raw->n_groups_of_experts;
    if (raw->n_experts < 2)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "n_routed_experts: %lld, a mixture has two at least",
                       (long long)raw->n_experts);
    if (raw->top_k > raw->n_experts)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_experts_per_tok: %lld exceeds the %lld experts", (long long)raw->top_k,
                       (long long)raw->n_experts);
    if (raw->n_experts % groups != 0 || raw->n_experts / groups < 2)
        return LS_FAIL(err, LS_ERR_FORMAT, "n_group: %lld groups of %lld experts, expected equal ones of two at least",
                       (long long)groups, (long long)raw->n_experts);
    if (raw->top_groups > groups || raw->top_groups * (raw->n_experts / groups) < raw->top_k)
        return LS_FAIL(err, LS_ERR_FORMAT, "topk_group: %lld of %lld groups do not have the %lld experts of a token",
                       (long long)raw->top_groups, (long long)groups, (long long)raw->top_k);
    return ls_field_check_products(products, COUNT(products), err);
}

/* Layers of both kinds have one width. */
static ls_status take_experts(ls_model_config *out, const raw_config *raw, bool experts, bool dense, ls_error *err) {
    if (!experts) return LS_OK;
    LS_TRY(check_experts(raw, err));
    if (dense && raw->expert_size != raw->intermediate_size)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "moe_intermediate_size: %lld beside dense feed-forwards of %lld; one width is built",
                       (long long)raw->expert_size, (long long)raw->intermediate_size);
    out->ffn = (int32_t)raw->expert_size;
    out->shared_ffn = (int32_t)raw->shared_size;
    out->n_experts = (int32_t)raw->n_experts;
    out->top_k = (int32_t)raw->top_k;
    out->router_groups = (int32_t)raw->n_groups_of_experts;
    out->router_top_groups = (int32_t)raw->top_groups;
    out->reweighs = raw->norm_topk_prob != 0;
    return LS_OK;
}

static ls_status read_layers(ls_model_config *out, const raw_config *raw, const struct json_t *config, ls_error *err) {
    char pattern[LS_LAYERS_MAX + 1];
    LS_TRY(ls_field_read_kinds(pattern, LS_LAYERS_MAX, config, "layers_block_type", "hybrid_override_pattern", letters,
                               kinds, err));
    out->n_layers = (int32_t)strlen(pattern);
    if (raw->n_layers != ABSENT && raw->n_layers != out->n_layers)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_hidden_layers: %lld, but %d layers are listed",
                       (long long)raw->n_layers, out->n_layers);
    for (int32_t i = 0; i < out->n_layers; i++) {
        out->is_attention[i] = pattern[i] == '*';
        out->is_moe[i] = pattern[i] == 'E';
        out->no_mixer[i] = pattern[i] == '-' || pattern[i] == 'E';
        out->no_ffn[i] = !out->no_mixer[i];
    }
    return take_experts(out, raw, strchr(pattern, 'E') != NULL, strchr(pattern, '-') != NULL, err);
}

/* ---- sizes ---- */

static ls_status derive_heads(raw_config *raw, ls_error *err) {
    if (raw->n_kv_heads == ABSENT) raw->n_kv_heads = raw->n_heads;
    if (raw->n_heads % raw->n_kv_heads != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_key_value_heads: %lld does not divide num_attention_heads %lld",
                       (long long)raw->n_kv_heads, (long long)raw->n_heads);
    if (raw->old_head_dim != ABSENT && raw->old_head_dim != raw->head_dim)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "attention_head_dim: %lld, but head_dim is %lld",
                       (long long)raw->old_head_dim, (long long)raw->head_dim);
    return LS_OK;
}

static ls_status check_nemotron_h(const raw_config *raw, ls_error *err) {
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
                                   .heads_name = "mamba_num_heads",
                                   .head_dim_name = "mamba_head_dim",
                                   .states_name = "ssm_state_size"};
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    LS_TRY(ls_field_check_products(products, COUNT(products), err));
    return ls_mamba2_check_sizes(&sizes, err);
}

static void take_nemotron_h(ls_model_config *out, const raw_config *raw) {
    out->names = &tensor_names;
    out->hidden = (int32_t)raw->hidden_size;
    out->vocab = (int32_t)raw->vocab_size;
    out->ffn = (int32_t)raw->intermediate_size;
    out->ungated = true;
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
    out->positions_max = raw->positions_max;
    out->conv_bias = raw->conv_bias != 0;
    out->proj_bias = raw->proj_bias != 0;
    out->pad_is_trained = true;
}

static ls_status read_nemotron_h(ls_model_config *out, struct json_t *config, ls_error *err) {
    raw_config raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, &fields, err));
    LS_TRY(derive_heads(&raw, err));
    LS_TRY(check_nemotron_h(&raw, err));
    take_nemotron_h(out, &raw);
    LS_TRY(read_layers(out, &raw, config, err));
    out->dt_max = INFINITY;
    LS_TRY(ls_field_read_eps(&out->dt_min, config, "time_step_min", 1e-3f, err));
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "layer_norm_epsilon", 1e-5f, err));
    LS_TRY(ls_field_read_factor(&out->router_scale, config, "routed_scaling_factor", 1.0f, err));
    LS_TRY(ls_field_read_dtype(out, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, 2, err);
}

const ls_architecture ls_nemotron_h = {"nemotron_h", "NemotronHForCausalLM", read_nemotron_h};
