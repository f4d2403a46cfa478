/* Any bytes as a config.json, as one of any architecture, and as a generation_config.json. What is accepted must be in
 * range. */
#include <stdlib.h>
#include <string.h>

#include "load/stack_config.h"
#include "model/architectures.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_attention(const ls_model_config *c) {
    if (c->n_heads < 1 || c->n_kv_heads < 1 || c->n_heads % c->n_kv_heads != 0 || c->head_dim < 1) abort();
    if ((int64_t)c->n_heads * c->head_dim > INT32_MAX) abort();
}

static bool is_granite(const ls_model_config *c) { return c->attention_scale > 0.0f; }

static void check_factors(const ls_model_config *c) {
    const float factors[] = {c->embed_scale, c->residual_scale, c->logit_scale, c->attention_scale};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++)
        if (!(factors[i] >= 0.0f && factors[i] <= 1e38f) || (factors[i] > 0.0f && !is_granite(c))) abort();
}

/* Heads rotate where all layers are attention, and there alone, but for Granite, which says whether. */
static void check_rope(const ls_model_config *c) {
    if (!(is_granite(c) && c->rope.half == 0) && c->rope.half * 2 != c->head_dim) abort();
    if (c->rope.half > LS_ROPE_HALF_MAX || (c->rope.half > 0 && !(c->rope.scale > 0.0f))) abort();
    for (int32_t j = 0; j < c->rope.half; j++)
        if (!(c->rope.inv_freq[j] >= 0.0f && c->rope.inv_freq[j] <= 1.0f)) abort();
    if (c->inner_norms || c->conv_bias || c->proj_bias) abort();
    for (int32_t i = 0; i < LS_LAYERS_MAX; i++)
        if (c->is_attention[i] != (i < c->n_layers) || c->is_moe[i] != (i < c->n_layers && c->n_experts > 1)) abort();
}

static void check_mamba(const ls_model_config *c, bool is_alone) {
    if (is_alone == c->inner_weights || is_alone != c->pad_is_trained || c->rope.half != 0 || c->head_norms) abort();
    if ((c->inner_weights && !c->inner_norms) || c->inner_norms != (c->inner_eps > 0.0f) || c->inner_eps > 1.0f)
        abort();
    if (c->d_inner < (is_alone ? 1 : c->hidden) || c->d_inner > INT32_MAX / 2) abort();
    if (c->d_state < 1 || c->d_conv < 1) abort();
    if (c->dt_rank < 1 || (int64_t)c->dt_rank + 2 * (int64_t)c->d_state > INT32_MAX) abort();
}

/* Alone, with layers of one sublayer each, or beside attention of whose heads half rotates. */
static void check_mamba2(const ls_model_config *c, bool is_alone) {
    const int64_t states = (int64_t)c->ssd_groups * c->d_state;
    if (c->ssd_groups < 1 || c->ssd_heads % c->ssd_groups != 0 || c->d_inner % c->ssd_heads != 0) abort();
    if (c->d_state < 1 || c->d_conv < 1 || 2 * (int64_t)c->d_inner + 2 * states + c->ssd_heads > INT32_MAX) abort();
    if (!(c->dt_min >= 0.0f && c->dt_max > 0.0f && c->dt_min <= c->dt_max) || c->dt_rank != 0) abort();
    if (c->inner_norms || c->head_norms) abort();
    if (c->rope.half != 0 && (is_granite(c) ? 2 : 4) * c->rope.half != c->head_dim) abort();
    if ((is_alone || c->ungated) && (c->rope.half != 0 || !c->pad_is_trained)) abort();
    for (int32_t i = 0; i < LS_LAYERS_MAX; i++) {
        const bool is_half = c->ungated && i < c->n_layers;
        if (c->no_mixer[i] + c->no_ffn[i] != is_half || (c->no_mixer[i] && c->is_attention[i])) abort();
        if (c->is_moe[i] && (c->n_experts < 2 || c->shared_ffn < 1)) abort();
        if (is_alone && c->is_attention[i]) abort();
    }
}

/* Beside attention with output gates, of whose heads some columns rotate. */
static void check_delta(const ls_model_config *c) {
    const int64_t keys = (int64_t)c->delta_key_heads * c->d_state;
    if (c->delta_key_heads < 1 || c->delta_heads % c->delta_key_heads != 0 || c->d_inner % c->delta_heads != 0) abort();
    if (c->d_state < 1 || c->d_conv < 1 || 2 * keys + 2 * (int64_t)c->d_inner > INT32_MAX || c->ffn < 1) abort();
    if (c->rope.half < 1 || 2 * c->rope.half > c->head_dim || !c->head_gates || !c->norms_above_one) abort();
    if (c->shared_ffn < 0 || (c->shared_ffn > 0) != (c->n_experts > 1)) abort();
    if (c->inner_norms || c->conv_bias || c->proj_bias || c->qkv_bias || c->ssd_heads != 0 || c->dt_rank != 0) abort();
    for (int32_t i = 0; i < LS_LAYERS_MAX; i++)
        if (c->no_mixer[i] || c->no_ffn[i] || (i >= c->n_layers && c->is_attention[i])) abort();
}

static void check(const ls_model_config *c) {
    const bool is_mamba = c->ffn == 0; /* the one architecture without feed-forward has no attention either */
    if (c->n_layers < 1 || c->n_layers > LS_LAYERS_MAX || c->hidden < 1 || c->vocab < 1 || c->ffn < 0) abort();
    if (c->names == NULL) abort();
    check_factors(c);
    if (!is_mamba) check_attention(c);
    if (c->delta_heads > 0)
        check_delta(c);
    else if (c->ssd_heads > 0)
        check_mamba2(c, is_mamba);
    else if (c->d_inner > 0)
        check_mamba(c, is_mamba);
    else
        check_rope(c);
    if (c->n_experts < 1 || c->top_k < 1 || c->top_k > c->n_experts || c->positions_max < 1) abort();
    if (!(c->rms_eps > 0.0f && c->rms_eps <= 1.0f) || ls_dtype_bytes(c->stored_dtype) == 0) abort();
    if (c->bos < -1 || c->bos >= c->vocab || c->pad < -1 || c->pad >= c->vocab) abort();
    if (c->n_eos < 0 || c->n_eos > LS_EOS_MAX) abort();
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] < 0 || c->eos[i] >= c->vocab) abort();
    for (int32_t i = 0; i < LS_LAYERS_MAX; i++)
        if (c->is_attention[i] > 1 || c->is_moe[i] > 1 || (is_mamba && c->is_attention[i] + c->is_moe[i] > 0)) abort();
}

/* A good configuration with the bytes as the end tokens of its generation_config.json. */
static void check_generation(const char *plain, const char *text, size_t n_bytes) {
    ls_model_config config;
    ls_error err;
    if (ls_model_config_parse(&config, plain, (int64_t)strlen(plain), "plain", &err) != LS_OK) abort();
    if (ls_model_config_parse_generation(&config, text, (int64_t)n_bytes, "input", &err) != LS_OK &&
        strstr(err.text, "input") != err.text)
        abort();
    check(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ls_model_config config;
    ls_error err;
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    if (ls_model_config_parse(&config, copy, (int64_t)n_bytes, "input", &err) == LS_OK) check(&config);
    if (ls_stack_config_parse(&config, copy, (int64_t)n_bytes, "input", &err) == LS_OK) {
        if (config.vocab < 2 || config.bos < -1 || config.pad < -1 || config.d_conv < 0) abort();
        if (config.n_eos < 0 || config.n_eos > LS_EOS_MAX) abort();
    } else if (strstr(err.text, "input") != err.text) {
        abort();
    }
    check_generation("{\"model_type\":\"jamba\"}", copy, n_bytes);
    check_generation("{\"model_type\":\"mamba\"}", copy, n_bytes);
    free(copy);
    return 0;
}
