/* Cached state and working memory: sizes are planned here, nothing else allocates during a run. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/jamba.h"
#include "op/attention.h"

#define SLOT_ALIGN 64

int64_t ls_slot_ssm_offset(const ls_jamba_config *c, ls_dtype dtype) {
    const int64_t conv = (int64_t)(c->d_conv - 1) * c->d_inner * ls_dtype_bytes(dtype);
    return (conv + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

int64_t ls_slot_bytes(const ls_jamba_config *c, ls_dtype dtype) {
    const int64_t ssm = (int64_t)c->d_inner * c->d_state * (int64_t)sizeof(float);
    return ls_slot_ssm_offset(c, dtype) + (ssm + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

int64_t ls_page_bytes(const ls_jamba_config *c, ls_dtype dtype, int64_t page_tokens) {
    return ls_kv_page_bytes(c->n_kv_heads, c->head_dim, page_tokens, dtype);
}

ls_status ls_cache_create(ls_cache **out, const ls_jamba_config *config, const ls_cache_opts *opts, ls_error *err) {
    ls_cache *cache = calloc(1, sizeof *cache);
    ls_status status = LS_OK;
    *out = NULL;
    if (cache == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "cache");
    if (opts->n_slots < 1 || opts->n_slots > INT32_MAX || opts->n_pages < 1 || opts->n_pages > INT32_MAX) {
        status = LS_FAIL(err, LS_ERR_ARG, "cache: %lld slots and %lld pages; each must be in 1..%d",
                         (long long)opts->n_slots, (long long)opts->n_pages, INT32_MAX);
        goto done;
    }
    cache->dtype = opts->dtype;
    cache->n_slots = opts->n_slots;
    cache->n_pages = opts->n_pages;
    cache->page_tokens = opts->page_tokens;
    cache->slot_stride = ls_slot_bytes(config, opts->dtype);
    cache->ssm_offset = ls_slot_ssm_offset(config, opts->dtype);
    cache->page_bytes = ls_page_bytes(config, opts->dtype, opts->page_tokens);
    cache->n_layers = config->n_layers;
    LS_TRY(ls_array_alloc((void **)&cache->layer, config->n_layers, sizeof *cache->layer, "cache layers", err));
    for (int64_t i = 0; i < config->n_layers; i++) {
        const bool attention = config->is_attention[i];
        LS_TRY(ls_array_alloc((void **)&cache->layer[i], attention ? opts->n_pages : opts->n_slots,
                              attention ? cache->page_bytes : cache->slot_stride,
                              attention ? "KV pages" : "state slots", err));
    }
    *out = cache;
    cache = NULL;
done:
    ls_cache_free(cache);
    return status;
}

void ls_cache_free(ls_cache *cache) {
    if (cache == NULL) return;
    if (cache->layer != NULL)
        for (int64_t i = 0; i < cache->n_layers; i++) free(cache->layer[i]);
    free(cache->layer);
    free(cache);
}

ls_pool_view ls_cache_conv(const ls_cache *cache, int64_t layer_i) {
    const ls_pool_view view = {cache->layer[layer_i], cache->slot_stride, cache->n_slots};
    return view;
}

ls_pool_view ls_cache_ssm(const ls_cache *cache, int64_t layer_i) {
    const ls_pool_view view = {cache->layer[layer_i] + cache->ssm_offset, cache->slot_stride, cache->n_slots};
    return view;
}

ls_pool_view ls_cache_pages(const ls_cache *cache, int64_t layer_i) {
    const ls_pool_view view = {cache->layer[layer_i], cache->page_bytes, cache->n_pages};
    return view;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

ls_status ls_workspace_create(ls_workspace **out, const ls_jamba_config *c, ls_dtype dtype, int64_t rows_max,
                              ls_error *err) {
    ls_workspace *ws = calloc(1, sizeof *ws);
    ls_status status = LS_OK;
    const int64_t elem = ls_dtype_bytes(dtype), f32 = (int64_t)sizeof(float), q = (int64_t)c->n_heads * c->head_dim;
    const int64_t wide = larger(larger(2 * (int64_t)c->d_inner, c->ffn), q + 2 * (int64_t)c->n_kv_heads * c->head_dim);
    *out = NULL;
    if (ws == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "workspace");
    ws->dtype = dtype;
    ws->rows_max = rows_max;
    LS_TRY(ls_array_alloc((void **)&ws->h, rows_max, c->hidden * f32, "workspace", err));
    LS_TRY(ls_array_alloc((void **)&ws->y, rows_max, c->hidden * f32, "workspace", err));
    LS_TRY(ls_array_alloc(&ws->x, rows_max, c->hidden * elem, "workspace", err));
    LS_TRY(ls_array_alloc((void **)&ws->wide_a, rows_max, wide * f32, "workspace", err));
    LS_TRY(ls_array_alloc((void **)&ws->wide_b, rows_max, wide * f32, "workspace", err));
    LS_TRY(
        ls_array_alloc((void **)&ws->narrow, rows_max, (c->dt_rank + 2 * (int64_t)c->d_state) * f32, "workspace", err));
    LS_TRY(ls_array_alloc(&ws->gated, rows_max, larger(larger(c->d_inner, c->ffn), q) * elem, "workspace", err));
    if (c->n_experts > 1) {
        LS_TRY(ls_array_alloc((void **)&ws->router, rows_max, c->n_experts * (int64_t)sizeof(float), "workspace", err));
        LS_TRY(ls_array_alloc((void **)&ws->expert, rows_max, c->top_k * (int64_t)sizeof(int32_t), "workspace", err));
        LS_TRY(
            ls_array_alloc((void **)&ws->expert_weight, rows_max, c->top_k * (int64_t)sizeof(float), "workspace", err));
        LS_TRY(ls_array_alloc((void **)&ws->moe_y, rows_max, c->hidden * f32, "workspace", err));
        LS_TRY(ls_array_alloc((void **)&ws->picked_weight, rows_max, sizeof(float), "workspace", err));
        LS_TRY(ls_array_alloc((void **)&ws->picked_rows, rows_max, sizeof(int64_t), "workspace", err));
        LS_TRY(ls_array_alloc(&ws->picked_x, rows_max, c->hidden * elem, "workspace", err));
    }
    *out = ws;
    ws = NULL;
done:
    ls_workspace_free(ws);
    return status;
}

void ls_workspace_free(ls_workspace *ws) {
    if (ws == NULL) return;
    free(ws->picked_x);
    free(ws->picked_rows);
    free(ws->picked_weight);
    free(ws->moe_y);
    free(ws->expert_weight);
    free(ws->expert);
    free(ws->router);
    free(ws->gated);
    free(ws->narrow);
    free(ws->wide_b);
    free(ws->wide_a);
    free(ws->x);
    free(ws->y);
    free(ws->h);
    free(ws);
}
