/* Qwen3.5, the language model, and Qwen3-Next: layers of the gated delta rule and of attention with output gates, each
 * followed by a dense feed-forward, or by a mixture of experts and one that all rows have. Absent fields take the
 * defaults that Hugging Face's Qwen3_5TextConfig, Qwen3_5MoeTextConfig and Qwen3NextConfig give them. */
#include <string.h>

#include "load/config_fields.h"
#include "load/rope_fields.h"
#include "model/architectures.h"
#include "op/delta.h"
#include "op/gemm_groups.h"

/* Fields as they stand in the file, before anything is derived from them. */
typedef struct raw_config {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim, positions_max;
    int64_t d_conv, key_dim, value_dim, key_heads, value_heads, interval;
    int64_t bos, pad;
    int64_t n_experts, top_k, shared_ffn; /* 0 without experts */
    int64_t tied, norm_topk_prob;
} raw_config;

#define AT(field) offsetof(raw_config, field)
#define ABSENT LS_FIELD_ABSENT
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

/* Of all kinds. */
#define INTEGERS(vocab, hidden, layers, kv_heads)                                      \
    {"vocab_size", AT(vocab_size), vocab, 1, INT32_MAX, false},                        \
        {"hidden_size", AT(hidden_size), hidden, 1, INT32_MAX, false},                 \
        {"num_hidden_layers", AT(n_layers), layers, 1, LS_LAYERS_MAX, false},          \
        {"num_attention_heads", AT(n_heads), 16, 1, INT32_MAX, false},                 \
        {"num_key_value_heads", AT(n_kv_heads), kv_heads, 1, INT32_MAX, false},        \
        {"head_dim", AT(head_dim), 256, 1, INT32_MAX, false},                          \
        {"max_position_embeddings", AT(positions_max), 32768, 1, INT64_MAX, false},    \
        {"linear_conv_kernel_dim", AT(d_conv), 4, 1, INT32_MAX, false},                \
        {"linear_key_head_dim", AT(key_dim), 128, 1, LS_DELTA_DIM_MAX, false},         \
        {"linear_value_head_dim", AT(value_dim), 128, 1, LS_DELTA_DIM_MAX, false},     \
        {"linear_num_key_heads", AT(key_heads), 16, 1, LS_DELTA_HEADS_MAX, false},     \
        {"linear_num_value_heads", AT(value_heads), 32, 1, LS_DELTA_HEADS_MAX, false}, \
        {"full_attention_interval", AT(interval), 4, 1, INT32_MAX, false},             \
        {"bos_token_id", AT(bos), ABSENT, 0, INT32_MAX, true}, {                       \
        "pad_token_id", AT(pad), ABSENT, 0, INT32_MAX, true                            \
    }

static const ls_field_integer integers[] = {
    INTEGERS(248320, 4096, 32, 4), {"intermediate_size", AT(intermediate_size), 12288, 1, INT32_MAX, false}, {0}};

#define EXPERTS(experts, top)                                                          \
    {"moe_intermediate_size", AT(intermediate_size), 512, 1, INT32_MAX, false},        \
        {"shared_expert_intermediate_size", AT(shared_ffn), 512, 1, INT32_MAX, false}, \
        {"num_experts", AT(n_experts), experts, 1, LS_EXPERTS_MAX, false}, {           \
        "num_experts_per_tok", AT(top_k), top, 1, INT32_MAX, false                     \
    }

static const ls_field_integer integers_moe[] = {INTEGERS(248320, 2048, 40, 2), EXPERTS(256, 8), {0}};
static const ls_field_integer integers_next[] = {INTEGERS(151936, 2048, 48, 2), EXPERTS(512, 10), {0}};

static const ls_field_switch switches[] = {{"tie_word_embeddings", AT(tied), false}, {0}};
static const ls_field_switch switches_next[] = {
    {"tie_word_embeddings", AT(tied), false}, {"norm_topk_prob", AT(norm_topk_prob), true}, {0}};

/* Output gates are always there, and the state is float32. */
static const ls_field_fixed fixed[] = {{"hidden_act", "\"silu\""},
                                       {"hidden_act", "\"swish\""},
                                       {"attn_output_gate", "true"},
                                       {"mamba_ssm_dtype", "\"float32\""},
                                       {0}};

/* All layers have a mixture, so that a dense one's width is of none. */
static const ls_field_fixed fixed_next[] = {
    {"hidden_act", "\"silu\""}, {"hidden_act", "\"swish\""}, {"decoder_sparse_step", "1"}, {0}};

static const char *const special[] = {"rms_norm_eps", "layer_types", "mlp_only_layers", LS_ROPE_FIELDS, NULL};

/* Training, and the layers that guess further tokens. */
static const char *const inert[] = {"attention_dropout", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", NULL};

static const char *const inert_moe[] = {"attention_dropout",    "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                                        "output_router_logits", "router_aux_loss_coef",  NULL};

static const char *const inert_next[] = {"attention_dropout", "intermediate_size", "output_router_logits",
                                         "router_aux_loss_coef", NULL};

static const ls_field_tables fields = {integers, switches, fixed, special, inert};
static const ls_field_tables fields_moe = {integers_moe, switches, fixed, special, inert_moe};
static const ls_field_tables fields_next = {integers_next, switches_next, fixed_next, special, inert_next};

/* Of text all three positions of a token are the same, so that it does not matter which frequency is of which. */
static const char *const of_images[] = {"mrope_section", "mrope_interleaved", NULL};
static const ls_rope_family rotations = {.theta = 10000.0, .share = 0.25, .inert = of_images};

/* Layers that guess further tokens, and those of images: the file says that it is of text. */
static const char *const unread[] = {"mtp.", "model.visual.", NULL};

static const ls_tensor_names tensor_names = {.embed = "model.embed_tokens.weight",
                                             .final_norm = "model.norm.weight",
                                             .head = "lm_head.weight",
                                             .layers = "model.layers.",
                                             .input_norm = "input_layernorm.weight",
                                             .ffn_norm = "post_attention_layernorm.weight",
                                             .attention = "self_attn.",
                                             .mamba = "linear_attn.",
                                             .ffn = "mlp.",
                                             .router = "gate.weight",
                                             .shared = "shared_expert.",
                                             .shared_gate = "shared_expert_gate.weight",
                                             .gate = "gate_proj.weight",
                                             .up = "up_proj.weight",
                                             .down = "down_proj.weight",
                                             .unread = unread};

static ls_status check_delta(const raw_config *raw, ls_error *err) {
    const int64_t keys = raw->key_heads * raw->key_dim, values = raw->value_heads * raw->value_dim;
    const ls_field_rows rows[] = {{"columns of linear attention's q, k, v and z", 2 * keys + 2 * values}};
    const ls_field_product products[] = {
        {"columns of linear attention x hidden_size", {2 * keys + 2 * values, raw->hidden_size, 1, 1}},
        {"channels of the convolution x its kernel", {2 * keys + values, raw->d_conv, 1, 1}},
        {"states of a slot", {values, raw->key_dim, 1, 1}}};
    const ls_delta_shape shape = {.n_heads = raw->value_heads,
                                  .n_key_heads = raw->key_heads,
                                  .key_dim = raw->key_dim,
                                  .value_dim = raw->value_dim};
    if (raw->value_heads % raw->key_heads != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "linear_num_key_heads: %lld does not divide linear_num_value_heads %lld",
                       (long long)raw->key_heads, (long long)raw->value_heads);
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    LS_TRY(ls_field_check_products(products, COUNT(products), err));
    return ls_delta_check_shape("linear attention", &shape, err);
}

static ls_status check_qwen3_5(const raw_config *raw, ls_error *err) {
    const ls_field_product heads[] = {{"num_attention_heads x head_dim", {raw->n_heads, raw->head_dim, 1, 1}},
                                      {"num_key_value_heads x head_dim", {raw->n_kv_heads, raw->head_dim, 1, 1}}};
    const ls_field_product products[] = {
        {"vocab_size x hidden_size", {raw->vocab_size, raw->hidden_size, 1, 1}},
        {"intermediate_size x hidden_size", {raw->intermediate_size, raw->hidden_size, 1, 1}},
        {"num_attention_heads x head_dim x hidden_size", {2 * raw->n_heads, raw->head_dim, raw->hidden_size, 1}}};
    LS_TRY(ls_field_check_products(heads, COUNT(heads), err));
    {
        const ls_field_rows rows[] = {{"(3 x num_attention_heads + 2 x num_key_value_heads) x head_dim",
                                       (3 * raw->n_heads + 2 * raw->n_kv_heads) * raw->head_dim}};
        LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    }
    if (raw->n_heads % raw->n_kv_heads != 0)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_key_value_heads: %lld does not divide num_attention_heads %lld",
                       (long long)raw->n_kv_heads, (long long)raw->n_heads);
    LS_TRY(ls_field_check_products(products, COUNT(products), err));
    return check_delta(raw, err);
}

/* Every layer has a mixture. */
static ls_status check_experts(const raw_config *raw, ls_error *err) {
    const ls_field_product products[] = {
        {"num_experts x moe_intermediate_size x hidden_size",
         {raw->n_experts, raw->intermediate_size, raw->hidden_size, 1}},
        {"shared_expert_intermediate_size x hidden_size", {raw->shared_ffn, raw->hidden_size, 1, 1}}};
    if (raw->top_k > raw->n_experts)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_experts_per_tok: %lld exceeds the %lld experts", (long long)raw->top_k,
                       (long long)raw->n_experts);
    if (raw->n_experts < 2)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "one expert: a mixture has two at least; qwen3_5_text of dense layers "
                       "is built");
    return ls_field_check_products(products, COUNT(products), err);
}

static void take_qwen3_5(ls_model_config *out, const raw_config *raw) {
    out->names = &tensor_names;
    out->n_layers = (int32_t)raw->n_layers;
    out->hidden = (int32_t)raw->hidden_size;
    out->vocab = (int32_t)raw->vocab_size;
    out->ffn = (int32_t)raw->intermediate_size;
    out->n_heads = (int32_t)raw->n_heads;
    out->n_kv_heads = (int32_t)raw->n_kv_heads;
    out->head_dim = (int32_t)raw->head_dim;
    out->head_norms = out->head_gates = out->norms_above_one = true;
    out->n_experts = raw->n_experts > 0 ? (int32_t)raw->n_experts : 1;
    out->top_k = raw->n_experts > 0 ? (int32_t)raw->top_k : 1;
    out->shared_ffn = (int32_t)raw->shared_ffn;
    out->reweighs = raw->norm_topk_prob != 0;
    out->d_inner = (int32_t)(raw->value_heads * raw->value_dim);
    out->d_state = (int32_t)raw->key_dim;
    out->d_conv = (int32_t)raw->d_conv;
    out->delta_heads = (int32_t)raw->value_heads;
    out->delta_key_heads = (int32_t)raw->key_heads;
    out->positions_max = raw->positions_max;
    out->tied = raw->tied != 0;
    for (int64_t i = 0; i < raw->n_layers; i++) out->is_attention[i] = (i + 1) % raw->interval == 0;
    memset(out->is_moe, raw->n_experts > 0, (size_t)raw->n_layers);
}

static ls_status read_with(ls_model_config *out, struct json_t *config, const ls_field_tables *tables, ls_error *err) {
    static const char *const kinds[2] = {"linear_attention", "full_attention"};
    raw_config raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, tables, err));
    LS_TRY(check_qwen3_5(&raw, err));
    if (tables != &fields) LS_TRY(check_experts(&raw, err));
    if (tables == &fields_moe) raw.norm_topk_prob = 1; /* always */
    take_qwen3_5(out, &raw);
    out->delta_by_head = tables == &fields_next;
    LS_TRY(ls_field_expect_empty(config, "mlp_only_layers", err));
    LS_TRY(ls_field_read_pairs(out->is_attention, out->n_layers, config, "layer_types", kinds, err));
    LS_TRY(ls_rope_fields_read_share(&out->rope, config, raw.head_dim, &rotations, raw.positions_max, err));
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "rms_norm_eps", 1e-6f, err));
    LS_TRY(ls_field_read_dtype(out, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, ABSENT, err);
}

static ls_status read_qwen3_5(ls_model_config *out, struct json_t *config, ls_error *err) {
    return read_with(out, config, &fields, err);
}

static ls_status read_qwen3_5_moe(ls_model_config *out, struct json_t *config, ls_error *err) {
    return read_with(out, config, &fields_moe, err);
}

static ls_status read_qwen3_next(ls_model_config *out, struct json_t *config, ls_error *err) {
    return read_with(out, config, &fields_next, err);
}

const ls_architecture ls_qwen3_5 = {"qwen3_5_text", "Qwen3_5ForCausalLM", read_qwen3_5};
const ls_architecture ls_qwen3_5_moe = {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", read_qwen3_5_moe};
const ls_architecture ls_qwen3_next = {"qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next};
