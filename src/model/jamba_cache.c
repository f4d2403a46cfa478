/* Cached state and working memory: sizes are planned here, nothing else allocates during a run. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/jamba.h"
#include "op/attention.h"
#include "op/span.h"

#define SLOT_ALIGN 64
#define GUARD_BYTES 64
#define GUARD_BYTE 0xA5

static const char *const ablations[LS_ABLATION_COUNT] = {"none", "attention-only", "mamba-only"};

const char *ls_ablation_name(ls_ablation ablation) {
    return (unsigned)ablation < LS_ABLATION_COUNT ? ablations[ablation] : "unknown";
}

bool ls_ablation_parse(ls_ablation *out, const char *name) {
    for (int i = 0; i < LS_ABLATION_COUNT; i++)
        if (strcmp(ablations[i], name) == 0) {
            *out = (ls_ablation)i;
            return true;
        }
    return false;
}

static int64_t aligned(int64_t bytes) { return (bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN; }

static int64_t conv_bytes(const ls_jamba_config *c, ls_dtype dtype) {
    return (int64_t)(c->d_conv - 1) * c->d_inner * ls_dtype_bytes(dtype);
}

static int64_t ssm_bytes(const ls_jamba_config *c) { return (int64_t)c->d_inner * c->d_state * (int64_t)sizeof(float); }

int64_t ls_slot_ssm_offset(const ls_jamba_config *c, ls_dtype dtype) { return aligned(conv_bytes(c, dtype)); }

int64_t ls_slot_bytes(const ls_jamba_config *c, ls_dtype dtype) {
    return ls_slot_ssm_offset(c, dtype) + aligned(ssm_bytes(c));
}

int64_t ls_page_bytes(const ls_jamba_config *c, ls_dtype dtype, int64_t page_tokens) {
    return ls_kv_page_bytes(c->n_kv_heads, c->head_dim, page_tokens, dtype);
}

/* Entries of a pool: their distance, and what follows the bytes in use. */
static ls_status pool_stride(int64_t *out, int64_t bytes, int64_t wanted, bool guards, const char *what,
                             ls_error *err) {
    const int64_t least = bytes + (guards ? GUARD_BYTES : 0);
    *out = wanted > 0 ? wanted : aligned(least);
    if (*out < least || *out % SLOT_ALIGN != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: stride of %lld bytes; it must be a multiple of %d and at least %lld", what,
                       (long long)*out, SLOT_ALIGN, (long long)least);
    return LS_OK;
}

static void write_guards(const ls_cache *cache) {
    if (!cache->guards) return;
    for (int64_t i = 0; i < cache->n_layers; i++) {
        const bool attention = cache->is_attention[i];
        const int64_t n = attention ? cache->n_pages : cache->n_slots;
        const int64_t stride = attention ? cache->page_stride : cache->slot_stride;
        const int64_t bytes = attention ? cache->page_bytes : cache->slot_bytes;
        for (int64_t entry = 0; entry < n; entry++)
            memset(cache->layer[i] + entry * stride + bytes, GUARD_BYTE, GUARD_BYTES);
    }
}

ls_status ls_cache_create(ls_cache **out, const ls_jamba_config *config, const ls_cache_opts *opts, ls_error *err) {
    ls_cache *cache = calloc(1, sizeof *cache);
    ls_status status = LS_OK;
    *out = NULL;
    if (cache == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "cache");
    if (opts->n_slots < 0 || opts->n_slots > INT32_MAX || opts->n_pages < 0 || opts->n_pages > INT32_MAX) {
        status = LS_FAIL(err, LS_ERR_ARG, "cache: %lld slots and %lld pages; each must be in 0..%d",
                         (long long)opts->n_slots, (long long)opts->n_pages, INT32_MAX);
        goto done;
    }
    cache->dtype = opts->dtype;
    cache->n_slots = opts->n_slots;
    cache->n_pages = opts->n_pages;
    cache->page_tokens = opts->page_tokens;
    cache->guards = opts->guards;
    cache->slot_bytes = ls_slot_bytes(config, opts->dtype);
    cache->ssm_offset = ls_slot_ssm_offset(config, opts->dtype);
    cache->conv_bytes = conv_bytes(config, opts->dtype);
    cache->ssm_bytes = ssm_bytes(config);
    cache->page_bytes = ls_page_bytes(config, opts->dtype, opts->page_tokens);
    cache->n_layers = config->n_layers;
    cache->n_kv_heads = config->n_kv_heads;
    memcpy(cache->is_attention, config->is_attention, sizeof cache->is_attention);
    LS_TRY(pool_stride(&cache->slot_stride, cache->slot_bytes, opts->slot_stride, opts->guards, "state slots", err));
    LS_TRY(pool_stride(&cache->page_stride, cache->page_bytes, 0, opts->guards, "KV pages", err));
    LS_TRY(ls_array_alloc((void **)&cache->layer, config->n_layers, sizeof *cache->layer, "cache layers", err));
    for (int64_t i = 0; i < config->n_layers; i++) {
        const bool attention = config->is_attention[i];
        LS_TRY(ls_region_map((void **)&cache->layer[i], attention ? opts->n_pages : opts->n_slots,
                             attention ? cache->page_stride : cache->slot_stride,
                             attention ? "KV pages" : "state slots", err));
    }
    write_guards(cache);
    *out = cache;
    cache = NULL;
done:
    ls_cache_free(cache);
    return status;
}

/* Bytes of one layer's pool. */
static int64_t pool_bytes(const ls_cache *cache, int64_t layer_i) {
    return cache->is_attention[layer_i] ? cache->n_pages * cache->page_stride : cache->n_slots * cache->slot_stride;
}

void ls_cache_free(ls_cache *cache) {
    if (cache == NULL) return;
    if (cache->layer != NULL)
        for (int64_t i = 0; i < cache->n_layers; i++) ls_region_unmap(cache->layer[i], pool_bytes(cache, i));
    free(cache->layer);
    free(cache);
}

/* The whole slots of a Mamba layer: window and state together. */
static ls_pool_view slots_of(const ls_cache *cache, int64_t layer_i) {
    const ls_pool_view view = {cache->layer[layer_i], cache->slot_stride, cache->n_slots};
    return view;
}

ls_pool_view ls_cache_conv(const ls_cache *cache, int64_t layer_i) { return slots_of(cache, layer_i); }

ls_pool_view ls_cache_ssm(const ls_cache *cache, int64_t layer_i) {
    ls_pool_view view = slots_of(cache, layer_i);
    if (view.base != NULL) view.base += cache->ssm_offset;
    return view;
}

ls_pool_view ls_cache_pages(const ls_cache *cache, int64_t layer_i) {
    const ls_pool_view view = {cache->layer[layer_i], cache->page_stride, cache->n_pages};
    return view;
}

/* Entry `id` of a layer's pool. */
static uint8_t *entry_at(const ls_cache *cache, int64_t layer_i, int32_t id) {
    const ls_pool_view view = cache->is_attention[layer_i] ? ls_cache_pages(cache, layer_i) : slots_of(cache, layer_i);
    LS_ASSERT(id >= 0 && id < view.n_entries, "entry %d of a pool of %lld", id, (long long)view.n_entries);
    return ls_pool_at(&view, id);
}

void ls_cache_copy_slot(const ls_cache *to, int32_t to_slot, const ls_cache *from, int32_t from_slot) {
    for (int64_t i = 0; i < to->n_layers; i++)
        if (!to->is_attention[i])
            memcpy(entry_at(to, i, to_slot), entry_at(from, i, from_slot), (size_t)to->slot_bytes);
}

void ls_cache_copy_page(const ls_cache *to, int32_t to_page, const ls_cache *from, int32_t from_page) {
    for (int64_t i = 0; i < to->n_layers; i++)
        if (to->is_attention[i]) memcpy(entry_at(to, i, to_page), entry_at(from, i, from_page), (size_t)to->page_bytes);
}

/* Window and state; what lies between and behind them is nobody's, and may be poison in one and zero in the other. */
int64_t ls_cache_slot_differs(const ls_cache *a, int32_t slot_a, const ls_cache *b, int32_t slot_b) {
    for (int64_t i = 0; i < a->n_layers; i++) {
        const uint8_t *x, *y;
        if (a->is_attention[i]) continue;
        x = entry_at(a, i, slot_a);
        y = entry_at(b, i, slot_b);
        if (memcmp(x, y, (size_t)a->conv_bytes) != 0 ||
            memcmp(x + a->ssm_offset, y + a->ssm_offset, (size_t)a->ssm_bytes) != 0)
            return i;
    }
    return -1;
}

/* In a page lie, for every KV head and dimension, the keys of all its positions, then, for every KV head, the values
 * position by position (op/attention.h). */
int64_t ls_cache_page_differs(const ls_cache *a, int32_t page_a, const ls_cache *b, int32_t page_b, int64_t n_tokens) {
    const int64_t element = ls_dtype_bytes(a->dtype), token_bytes = a->page_bytes / a->page_tokens;
    const int64_t k_rows = token_bytes / (2 * element), row_bytes = a->page_tokens * element;
    for (int64_t i = 0; i < a->n_layers; i++) {
        const uint8_t *x, *y;
        if (!a->is_attention[i]) continue;
        x = entry_at(a, i, page_a);
        y = entry_at(b, i, page_b);
        for (int64_t row = 0; row < k_rows; row++)
            if (memcmp(x + row * row_bytes, y + row * row_bytes, (size_t)(n_tokens * element)) != 0) return i;
        x += k_rows * row_bytes;
        y += k_rows * row_bytes;
        for (int64_t head = 0; head < a->n_kv_heads; head++) {
            const int64_t head_bytes = a->page_bytes / (2 * a->n_kv_heads), at = head * head_bytes;
            if (memcmp(x + at, y + at, (size_t)(head_bytes / a->page_tokens * n_tokens)) != 0) return i;
        }
    }
    return -1;
}

/* All bits set is a NaN in every type. */
void ls_cache_poison_slot(const ls_cache *cache, int32_t slot) {
    for (int64_t i = 0; i < cache->n_layers; i++)
        if (!cache->is_attention[i]) memset(entry_at(cache, i, slot), 0xFF, (size_t)cache->slot_bytes);
}

void ls_cache_poison_page(const ls_cache *cache, int32_t page) {
    for (int64_t i = 0; i < cache->n_layers; i++)
        if (cache->is_attention[i]) memset(entry_at(cache, i, page), 0xFF, (size_t)cache->page_bytes);
}

static ls_status check_guard(const ls_cache *cache, bool attention, int32_t id, int64_t bytes, ls_error *err) {
    for (int64_t i = 0; cache->guards && i < cache->n_layers; i++) {
        const uint8_t *guard;
        if (cache->is_attention[i] != attention) continue;
        guard = entry_at(cache, i, id) + bytes;
        for (int64_t k = 0; k < GUARD_BYTES; k++)
            if (guard[k] != GUARD_BYTE)
                return LS_FAIL(err, LS_ERR_DEVICE, "layer %lld: byte %lld behind %s %d was overwritten with 0x%02x",
                               (long long)i, (long long)k, attention ? "page" : "slot", id, guard[k]);
    }
    return LS_OK;
}

ls_status ls_cache_guard_slot(const ls_cache *cache, int32_t slot, ls_error *err) {
    return check_guard(cache, false, slot, cache->slot_bytes, err);
}

ls_status ls_cache_guard_page(const ls_cache *cache, int32_t page, ls_error *err) {
    return check_guard(cache, true, page, cache->page_bytes, err);
}

void ls_cache_drop_slot(const ls_cache *cache, int32_t slot) {
    for (int64_t i = 0; i < cache->n_layers; i++)
        if (!cache->is_attention[i]) ls_region_drop(entry_at(cache, i, slot), cache->slot_bytes);
}

void ls_cache_drop(const ls_cache *cache) {
    for (int64_t i = 0; i < cache->n_layers; i++) ls_region_drop(cache->layer[i], pool_bytes(cache, i));
    write_guards(cache);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

ls_status ls_workspace_create(ls_workspace **out, const ls_jamba_config *c, ls_dtype dtype, int64_t rows_max,
                              bool for_training, ls_error *err) {
    ls_workspace *ws = calloc(1, sizeof *ws);
    ls_status status = LS_OK;
    const int64_t elem = ls_dtype_bytes(dtype), f32 = (int64_t)sizeof(float), q = (int64_t)c->n_heads * c->head_dim;
    const int64_t narrow = c->dt_rank + 2 * (int64_t)c->d_state;
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
    LS_TRY(ls_array_alloc((void **)&ws->narrow_raw, rows_max, narrow * f32, "workspace", err));
    ws->narrow = ws->narrow_raw;
    if (for_training) LS_TRY(ls_array_alloc((void **)&ws->narrow, rows_max, narrow * f32, "workspace", err));
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
    if (ws->narrow != ws->narrow_raw) free(ws->narrow);
    free(ws->narrow_raw);
    free(ws->wide_b);
    free(ws->wide_a);
    free(ws->x);
    free(ws->y);
    free(ws->h);
    free(ws);
}
