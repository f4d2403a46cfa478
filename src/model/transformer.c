/* From the fields of a transformer's config.json to ls_model_config. */
#include "model/transformer.h"

#include <string.h>

#include "load/rope_fields.h"

#define ABSENT LS_FIELD_ABSENT
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const ls_tensor_names tensor_names = {.embed = "model.embed_tokens.weight",
                                             .final_norm = "model.norm.weight",
                                             .head = "lm_head.weight",
                                             .layers = "model.layers.",
                                             .input_norm = "input_layernorm.weight",
                                             .ffn_norm = "post_attention_layernorm.weight",
                                             .attention = "self_attn.",
                                             .ffn = "mlp.",
                                             .router = "gate.weight",
                                             .gate = "gate_proj.weight",
                                             .up = "up_proj.weight",
                                             .down = "down_proj.weight"};

static const ls_tensor_names mixtral_names = {.embed = "model.embed_tokens.weight",
                                              .final_norm = "model.norm.weight",
                                              .head = "lm_head.weight",
                                              .layers = "model.layers.",
                                              .input_norm = "input_layernorm.weight",
                                              .ffn_norm = "post_attention_layernorm.weight",
                                              .attention = "self_attn.",
                                              .ffn = "block_sparse_moe.",
                                              .router = "gate.weight",
                                              .gate = "w1.weight",
                                              .up = "w3.weight",
                                              .down = "w2.weight"};

static ls_status check_transformer(const ls_transformer_raw *raw, ls_error *err) {
    const ls_field_rows rows[] = {{"(num_attention_heads + 2 x num_key_value_heads) x head_dim",
                                   (raw->n_heads + 2 * raw->n_kv_heads) * raw->head_dim}};
    const ls_field_product products[] = {
        {"vocab_size x hidden_size", {raw->vocab_size, raw->hidden_size, 1, 1}},
        {"intermediate_size x hidden_size", {raw->intermediate_size, raw->hidden_size, 1, 1}},
        {"num_attention_heads x head_dim x hidden_size", {raw->n_heads, raw->head_dim, raw->hidden_size, 1}}};
    LS_TRY(ls_field_check_rows(rows, COUNT(rows), err));
    return ls_field_check_products(products, COUNT(products), err);
}

/* The number goes by two names. */
static ls_status derive_experts(ls_transformer_raw *raw, const ls_transformer *family, ls_error *err) {
    if (family->experts == LS_EXPERTS_NONE) return LS_OK;
    if (raw->n_experts != ABSENT && raw->n_local_experts != ABSENT && raw->n_experts != raw->n_local_experts)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_local_experts: %lld, but num_experts is %lld",
                       (long long)raw->n_local_experts, (long long)raw->n_experts);
    if (raw->n_experts == ABSENT) raw->n_experts = raw->n_local_experts;
    if (raw->n_experts == ABSENT) raw->n_experts = family->n_experts;
    return LS_OK;
}

/* Every layer has a mixture, or none has one. */
static ls_status check_experts(const ls_transformer_raw *raw, const struct json_t *config, const ls_transformer *family,
                               ls_error *err) {
    const ls_field_product experts = {"num_experts x intermediate_size x hidden_size",
                                      {raw->n_experts, raw->intermediate_size, raw->hidden_size, 1}};
    if (family->experts == LS_EXPERTS_NONE) return LS_OK;
    if (raw->top_k > raw->n_experts)
        return LS_FAIL(err, LS_ERR_FORMAT, "num_experts_per_tok: %lld exceeds the %lld experts", (long long)raw->top_k,
                       (long long)raw->n_experts);
    if (raw->n_experts < 2)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "one expert: a mixture has two at least; %s of dense layers is built",
                       family->dense);
    if (family->experts == LS_EXPERTS_QWEN3) LS_TRY(ls_field_expect_empty(config, "mlp_only_layers", err));
    return ls_field_check_products(&experts, 1, err);
}

/* "layer_types" may name the layers that have the window, or say again what follows from the other fields. */
static ls_status read_layer_types(uint8_t *slides, const struct json_t *config, const ls_model_config *c,
                                  const ls_transformer *family, bool has_window, ls_error *err) {
    static const char *const kinds[2] = {"full_attention", "sliding_attention"};
    uint8_t said[LS_LAYERS_MAX];
    memcpy(said, slides, sizeof said);
    LS_TRY(ls_field_read_pairs(said, c->n_layers, config, "layer_types", kinds, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (said[i] && !has_window)
            return LS_FAIL(err, LS_ERR_FORMAT, "layer_types: layer %d is \"%s\", but no window is used", i, kinds[1]);
        if (said[i] != slides[i] && family->windows != LS_WINDOWS_BY_LAYER)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                           "layer_types: layer %d is \"%s\", but the window of this type of model is all layers'", i,
                           kinds[said[i]]);
    }
    memcpy(slides, said, sizeof said);
    return LS_OK;
}

static ls_status read_windows(ls_model_config *out, const struct json_t *config, const ls_transformer_raw *raw,
                              const ls_transformer *family, ls_error *err) {
    const bool by_layer = family->windows == LS_WINDOWS_BY_LAYER;
    uint8_t slides[LS_LAYERS_MAX] = {0};
    int64_t window = ABSENT, from = 0;
    if (family->windows == LS_WINDOWS_NONE) return LS_OK;
    if (family->windows == LS_WINDOWS_ALL || raw->use_window != 0)
        LS_TRY(ls_field_read_optional(&window, config, "sliding_window", family->window, err));
    if (by_layer && window != ABSENT) {
        if (raw->max_window_layers == ABSENT)
            return LS_FAIL(err, LS_ERR_FORMAT, "max_window_layers: null, but a window is used");
        from = raw->max_window_layers;
    }
    for (int64_t i = from; i < out->n_layers && window != ABSENT; i++) slides[i] = 1;
    if (family->windows != LS_WINDOWS_ALL) LS_TRY(read_layer_types(slides, config, out, family, window != ABSENT, err));
    for (int32_t i = 0; i < out->n_layers; i++) out->window[i] = slides[i] ? (int32_t)window : 0;
    return LS_OK;
}

static void take_transformer(ls_model_config *out, const ls_transformer_raw *raw, const ls_transformer *family) {
    const bool mixes = family->experts != LS_EXPERTS_NONE;
    out->names = family->experts == LS_EXPERTS_MIXTRAL ? &mixtral_names : &tensor_names;
    out->n_layers = (int32_t)raw->n_layers;
    out->hidden = (int32_t)raw->hidden_size;
    out->vocab = (int32_t)raw->vocab_size;
    out->ffn = (int32_t)raw->intermediate_size;
    out->n_heads = (int32_t)raw->n_heads;
    out->n_kv_heads = (int32_t)raw->n_kv_heads;
    out->head_dim = (int32_t)raw->head_dim;
    out->n_experts = mixes ? (int32_t)raw->n_experts : 1;
    out->top_k = mixes ? (int32_t)raw->top_k : 1;
    out->reweighs = family->experts == LS_EXPERTS_MIXTRAL || raw->norm_topk_prob != 0;
    out->positions_max = raw->positions_max;
    out->tied = raw->tied != 0;
    out->head_norms = family->head_norms;
    out->qkv_bias = family->qkv_bias || raw->attention_bias != 0;
    out->o_bias = raw->attention_bias != 0;
    memset(out->is_attention, 1, (size_t)raw->n_layers);
    memset(out->is_moe, mixes, (size_t)raw->n_layers);
}

ls_status ls_transformer_read(ls_model_config *out, struct json_t *config, const ls_transformer *family,
                              ls_error *err) {
    ls_transformer_raw raw = {0};
    LS_TRY(ls_field_read_tables(&raw, config, family->fields, err));
    LS_TRY(ls_field_derive_heads(&raw.n_kv_heads, &raw.head_dim, raw.n_heads, raw.hidden_size, err));
    LS_TRY(derive_experts(&raw, family, err));
    LS_TRY(check_transformer(&raw, err));
    LS_TRY(check_experts(&raw, config, family, err));
    take_transformer(out, &raw, family);
    LS_TRY(read_windows(out, config, &raw, family, err));
    LS_TRY(ls_rope_fields_read(&out->rope, config, raw.head_dim, family->rope_theta, raw.positions_max, err));
    LS_TRY(ls_field_read_eps(&out->rms_eps, config, "rms_norm_eps", 1e-6f, err));
    LS_TRY(ls_field_read_dtype(out, config, err));
    return ls_field_read_tokens(out, config, raw.bos, raw.pad, family->eos, err);
}
