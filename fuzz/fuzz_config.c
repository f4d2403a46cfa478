/* Any bytes as a config.json, then the same bytes as a generation_config.json. What is accepted must be in range. */
#include <stdlib.h>
#include <string.h>

#include "load/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const ls_model_config *c) {
    if (c->n_layers < 1 || c->n_layers > LS_LAYERS_MAX || c->hidden < 1 || c->vocab < 1 || c->ffn < 1) abort();
    if (c->n_heads < 1 || c->n_kv_heads < 1 || c->n_heads % c->n_kv_heads != 0 || c->head_dim < 1) abort();
    if ((int64_t)c->n_heads * c->head_dim > INT32_MAX) abort();
    if (c->n_experts < 1 || c->top_k < 1 || c->top_k > c->n_experts) abort();
    if (c->d_inner < c->hidden || c->d_inner > INT32_MAX / 2 || c->d_state < 1 || c->d_conv < 1) abort();
    if (c->dt_rank < 1 || (int64_t)c->dt_rank + 2 * (int64_t)c->d_state > INT32_MAX) abort();
    if (!(c->rms_eps > 0.0f && c->rms_eps <= 1.0f) || ls_dtype_bytes(c->stored_dtype) == 0) abort();
    if (c->bos < -1 || c->bos >= c->vocab || c->pad < -1 || c->pad >= c->vocab) abort();
    if (c->n_eos < 0 || c->n_eos > LS_EOS_MAX) abort();
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] < 0 || c->eos[i] >= c->vocab) abort();
    for (int32_t i = 0; i < LS_LAYERS_MAX; i++)
        if (c->is_attention[i] > 1 || c->is_moe[i] > 1) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const char plain[] = "{\"model_type\":\"jamba\"}";
    ls_model_config config;
    ls_error err;
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    if (ls_model_config_parse(&config, copy, (int64_t)n_bytes, "input", &err) == LS_OK) check(&config);
    if (ls_model_config_parse(&config, plain, sizeof plain - 1, "plain", &err) != LS_OK) abort();
    if (ls_model_config_parse_generation(&config, copy, (int64_t)n_bytes, "input", &err) != LS_OK &&
        strstr(err.text, "input") != err.text)
        abort();
    check(&config);
    free(copy);
    return 0;
}
