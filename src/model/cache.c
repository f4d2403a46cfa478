/* Cached state: sizes are planned here, nothing else allocates during a run. */
#include "model/cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/inject.h"
#include "base/mem.h"
#include "op/attention.h"
#include "op/gather.h"
#include "op/held.h"

#define SLOT_ALIGN 64
#define GUARD_BYTES 64
#define GUARD_BYTE 0xA5

static int64_t aligned(int64_t bytes) { return (bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN; }

static void add_tensor(ls_slot_layout *layout, ls_state_tensor tensor) {
    LS_ASSERT(layout->n < LS_STATE_TENSORS_MAX, "%lld tensors of a slot", (long long)layout->n);
    tensor.offset = layout->bytes;
    tensor.bytes = ls_dtype_bytes(tensor.dtype);
    for (int32_t i = 0; i < tensor.n_dims; i++) tensor.bytes *= tensor.dims[i];
    layout->bytes += aligned(tensor.bytes);
    layout->tensor[layout->n++] = tensor;
}

/* Heads with the same b, or the same key; 0 where states are not of heads. */
static int64_t state_groups(const ls_model_config *c) {
    switch (ls_config_recurrence(c)) {
        case LS_RECURRENCE_DELTA: return c->delta_key_heads;
        case LS_RECURRENCE_SSD: return c->ssd_groups;
        case LS_RECURRENCE_SCAN: return 0;
    }
    return 0;
}

/* States of heads that have a scale each, and what they lack. pools: of the three tensors. */
static void add_heads(ls_slot_layout *out, const ls_model_config *c, const char *name, const char *const pools[3],
                      int64_t n_heads, int64_t state_every) {
    const int64_t cols = c->d_inner / n_heads;
    const int64_t floats = ls_held_floats(state_every, n_heads, state_groups(c), c->d_state, cols);
    const ls_state_tensor states = {
        .name = name, .pool = pools[0], .dtype = LS_F32, .n_dims = 3, .dims = {n_heads, c->d_state, cols}};
    const ls_state_tensor scale = {.name = "scale", .pool = pools[1], .dtype = LS_F32, .n_dims = 1, .dims = {n_heads}};
    const ls_state_tensor held = {.name = "held", .pool = pools[2], .dtype = LS_F32, .n_dims = 1, .dims = {floats}};
    add_tensor(out, states);
    add_tensor(out, scale);
    if (floats > 0) add_tensor(out, held);
}

void ls_slot_layout_make(ls_slot_layout *out, const ls_model_config *c, ls_dtype dtype, int64_t state_every) {
    static const char *const delta[3] = {"delta rule state pool, states of heads",
                                         "delta rule state pool, scales of heads",
                                         "delta rule state pool, what states lack"};
    static const char *const ssd[3] = {"Mamba-2 state pool, states of heads", "Mamba-2 state pool, scales of heads",
                                       "Mamba-2 state pool, what states lack"};
    const ls_state_tensor conv = {.name = "conv",
                                  .pool = "Mamba state pool, convolution window",
                                  .dtype = dtype,
                                  .n_dims = 2,
                                  .dims = {c->d_conv - 1, ls_config_conv_dim(c)}};
    const ls_state_tensor scan = {.name = "scan",
                                  .pool = "Mamba state pool, scan state",
                                  .dtype = LS_F32,
                                  .n_dims = 2,
                                  .dims = {c->d_inner, c->d_state}};
    memset(out, 0, sizeof *out);
    add_tensor(out, conv);
    switch (ls_config_recurrence(c)) {
        case LS_RECURRENCE_DELTA: add_heads(out, c, "delta", delta, c->delta_heads, state_every); return;
        case LS_RECURRENCE_SSD: add_heads(out, c, "ssd", ssd, c->ssd_heads, state_every); return;
        case LS_RECURRENCE_SCAN: add_tensor(out, scan); return;
    }
}

int64_t ls_slot_bytes(const ls_model_config *c, ls_dtype dtype, int64_t state_every) {
    ls_slot_layout layout;
    ls_slot_layout_make(&layout, c, dtype, state_every);
    return layout.bytes;
}

int64_t ls_page_bytes(const ls_model_config *c, ls_dtype dtype, int64_t page_tokens) {
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

/* The pool of one layer, by what kind of layer it is. */
typedef struct pool {
    uint8_t *base;
    int64_t n, stride, bytes; /* entries; bytes between them; bytes of each in use */
} pool;

static pool pool_of(const ls_cache *c, int64_t layer_i) {
    if (c->kind[layer_i] == LS_POOL_NONE) return (pool){NULL, 0, 0, 0};
    return c->kind[layer_i] == LS_POOL_PAGES ? (pool){c->layer[layer_i], c->n_pages, c->page_stride, c->page_bytes}
                                             : (pool){c->layer[layer_i], c->n_slots, c->slot_stride, c->slot_bytes};
}

static ls_status write_guards(const ls_cache *cache, ls_error *err) {
    for (int64_t i = 0; cache->guards && i < cache->n_layers; i++) {
        const pool p = pool_of(cache, i);
        for (int64_t entry = 0; entry < p.n; entry++)
            LS_TRY(ls_memory_fill(cache->device, p.base + entry * p.stride + p.bytes, GUARD_BYTE, GUARD_BYTES, err));
    }
    return LS_OK;
}

static ls_status reserve_layers(ls_cache *cache, ls_error *err) {
    for (int64_t i = 0; i < cache->n_layers; i++) {
        const pool p = pool_of(cache, i);
        if (p.n == 0) continue;
        if (cache->on_host)
            LS_TRY(ls_memory_pin(cache->device, (void **)&cache->layer[i], p.n, p.stride, "swap", err));
        else
            LS_TRY(ls_memory_reserve(cache->device, (void **)&cache->layer[i], p.n, p.stride,
                                     cache->kind[i] == LS_POOL_PAGES ? "KV pages" : "state slots", err));
    }
    return LS_OK;
}

static void unreserve_layers(ls_cache *cache) {
    for (int64_t i = 0; cache->layer != NULL && i < cache->n_layers; i++) {
        const pool p = pool_of(cache, i);
        if (cache->on_host)
            ls_memory_unpin(cache->device, p.base, p.n * p.stride);
        else
            ls_memory_unreserve(cache->device, p.base, p.n * p.stride);
        cache->layer[i] = NULL;
    }
}

static ls_status reserve_pools(ls_cache *cache, ls_error *err) {
    LS_TRY(ls_array_alloc((void **)&cache->layer, cache->n_layers, sizeof *cache->layer, "cache layers", err));
    LS_TRY(reserve_layers(cache, err));
    LS_TRY(ls_memory_alloc(cache->device, (void **)&cache->differs, 1, sizeof *cache->differs, "comparison", err));
    if (cache->state_every > 1)
        LS_TRY(ls_memory_alloc(cache->device, (void **)&cache->span, 1, sizeof *cache->span, "comparison", err));
    if (cache->guards)
        LS_TRY(ls_array_alloc((void **)&cache->guard_bytes,
                              cache->n_pages > cache->n_slots ? cache->n_pages : cache->n_slots, GUARD_BYTES, "guards",
                              err));
    return write_guards(cache, err);
}

ls_status ls_cache_create(ls_cache **out, ls_device *device, const ls_model_config *config, const ls_cache_opts *opts,
                          ls_error *err) {
    ls_cache *cache = calloc(1, sizeof *cache);
    ls_status status = LS_OK;
    *out = NULL;
    if (cache == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "cache");
    if (opts->n_slots < 0 || opts->n_slots > INT32_MAX || opts->n_pages < 0 || opts->n_pages > INT32_MAX) {
        status = LS_FAIL(err, LS_ERR_ARG, "cache: %lld slots and %lld pages; each must be in 0..%d",
                         (long long)opts->n_slots, (long long)opts->n_pages, INT32_MAX);
        goto done;
    }
    cache->device = device;
    cache->dtype = opts->dtype;
    cache->n_slots = opts->n_slots;
    cache->n_pages = opts->n_pages;
    cache->page_tokens = opts->page_tokens;
    cache->guards = opts->guards;
    cache->on_host = opts->on_host;
    ls_slot_layout_make(&cache->slot, config, opts->dtype, opts->state_every);
    cache->n_groups = state_groups(config);
    cache->state_every = opts->state_every > 1 && cache->n_groups > 0 ? opts->state_every : 1;
    cache->slot_bytes = cache->slot.bytes;
    cache->page_bytes = ls_page_bytes(config, opts->dtype, opts->page_tokens);
    cache->n_layers = config->n_layers;
    cache->n_kv_heads = config->n_kv_heads;
    for (int64_t i = 0; i < config->n_layers; i++)
        cache->kind[i] = ls_config_has_pages(config, i)   ? LS_POOL_PAGES
                         : ls_config_has_slots(config, i) ? LS_POOL_SLOTS
                                                          : LS_POOL_NONE;
    LS_TRY_DONE(
        pool_stride(&cache->slot_stride, cache->slot_bytes, opts->slot_stride, opts->guards, "state slots", err));
    LS_TRY_DONE(pool_stride(&cache->page_stride, cache->page_bytes, 0, opts->guards, "KV pages", err));
    LS_TRY_DONE(reserve_pools(cache, err));
    *out = cache;
    cache = NULL;
done:
    ls_cache_free(cache);
    return status;
}

void ls_cache_free(ls_cache *cache) {
    if (cache == NULL) return;
    unreserve_layers(cache);
    ls_memory_free(cache->device, cache->differs);
    ls_memory_free(cache->device, cache->span);
    free(cache->guard_bytes);
    free(cache->layer);
    free(cache);
}

static ls_pool_view view_of(const ls_cache *cache, int64_t layer_i) {
    const pool p = pool_of(cache, layer_i);
    const ls_pool_view view = {p.base, p.stride, p.n};
    return view;
}

const ls_state_tensor *ls_cache_tensor(const ls_cache *cache, const char *name) {
    int64_t i = 0;
    while (i < cache->slot.n && strcmp(cache->slot.tensor[i].name, name) != 0) i++;
    LS_ASSERT(i < cache->slot.n, "slots have no tensor %s", name);
    return &cache->slot.tensor[i];
}

ls_pool_view ls_cache_state(const ls_cache *cache, int64_t layer_i, const char *name) {
    const ls_state_tensor *tensor = ls_cache_tensor(cache, name);
    ls_pool_view view = view_of(cache, layer_i);
    if (view.base != NULL) view.base += tensor->offset;
    return view;
}

ls_pool_view ls_cache_held(const ls_cache *cache, int64_t layer_i) {
    return cache->state_every > 1 ? ls_cache_state(cache, layer_i, "held") : (ls_pool_view){NULL, 0, 0};
}

ls_pool_view ls_cache_pages(const ls_cache *cache, int64_t layer_i) { return view_of(cache, layer_i); }

/* Entry `id` of a layer's pool. */
static uint8_t *entry_at(const ls_cache *cache, int64_t layer_i, int32_t id) {
    const ls_pool_view view = view_of(cache, layer_i);
    LS_ASSERT(id >= 0 && id < view.n_entries, "entry %d of a pool of %lld", id, (long long)view.n_entries);
    return ls_pool_at(&view, id);
}

/* ---- all layers of an entry ---- */

static int64_t copied_bytes(const ls_cache *c, ls_pool_kind kind) {
    const bool forgets = LS_INJECTED(LS_INJECT_HELD_LEFT_BEHIND) && c->state_every > 1;
    if (kind == LS_POOL_PAGES) return c->page_bytes;
    return forgets ? ls_cache_tensor(c, "held")->offset : c->slot_bytes;
}

static ls_status copy_entry(const ls_cache *to, int32_t to_id, const ls_cache *from, int32_t from_id, ls_pool_kind kind,
                            ls_error *err) {
    LS_ASSERT(to->state_every == from->state_every, "states of %lld tokens and of %lld", (long long)to->state_every,
              (long long)from->state_every);
    for (int64_t i = 0; i < to->n_layers; i++)
        if (to->kind[i] == kind)
            LS_TRY(ls_memory_copy(to->device, entry_at(to, i, to_id), entry_at(from, i, from_id),
                                  copied_bytes(to, kind), err));
    return LS_OK;
}

ls_status ls_cache_copy_slot(const ls_cache *to, int32_t to_slot, const ls_cache *from, int32_t from_slot,
                             ls_error *err) {
    return copy_entry(to, to_slot, from, from_slot, LS_POOL_SLOTS, err);
}

ls_status ls_cache_copy_page(const ls_cache *to, int32_t to_page, const ls_cache *from, int32_t from_page,
                             ls_error *err) {
    return copy_entry(to, to_page, from, from_page, LS_POOL_PAGES, err);
}

/* All bits set is a NaN in every type. */
static ls_status poison_entry(const ls_cache *cache, int32_t id, ls_pool_kind kind, ls_error *err) {
    for (int64_t i = 0; i < cache->n_layers; i++)
        if (cache->kind[i] == kind)
            LS_TRY(ls_memory_fill(cache->device, entry_at(cache, i, id), 0xFF, pool_of(cache, i).bytes, err));
    return LS_OK;
}

ls_status ls_cache_poison_slot(const ls_cache *cache, int32_t slot, ls_error *err) {
    return poison_entry(cache, slot, LS_POOL_SLOTS, err);
}

ls_status ls_cache_poison_page(const ls_cache *cache, int32_t page, ls_error *err) {
    return poison_entry(cache, page, LS_POOL_PAGES, err);
}

ls_status ls_cache_drop_slot(const ls_cache *cache, int32_t slot, ls_error *err) {
    for (int64_t i = 0; i < cache->n_layers; i++)
        if (cache->kind[i] == LS_POOL_SLOTS)
            LS_TRY(ls_memory_drop(cache->device, entry_at(cache, i, slot), cache->slot_bytes, err));
    return LS_OK;
}

ls_status ls_cache_drop(const ls_cache *cache, ls_error *err) {
    for (int64_t i = 0; i < cache->n_layers; i++) {
        const pool p = pool_of(cache, i);
        if (p.base != NULL) LS_TRY(ls_memory_drop(cache->device, p.base, p.n * p.stride, err));
    }
    return write_guards(cache, err);
}

ls_status ls_cache_release(ls_cache *cache, ls_error *err) {
    if (cache->is_released) return LS_OK;
    LS_TRY(ls_device_wait(cache->device, err));
    unreserve_layers(cache);
    cache->is_released = true;
    return ls_device_wait(cache->device, err); /* a back end may take memory back behind its calls */
}

ls_status ls_cache_restore(ls_cache *cache, ls_error *err) {
    ls_status status;
    if (!cache->is_released) return LS_OK;
    LS_TRY_DONE(reserve_layers(cache, err));
    cache->is_released = false;
    return write_guards(cache, err);
done:
    unreserve_layers(cache);
    return status;
}

/* ---- comparison ---- */

static ls_status begin_compare(const ls_cache *a, ls_error *err) {
    return ls_memory_fill(a->device, a->differs, 0, (int64_t)sizeof *a->differs, err);
}

static ls_status compare_states(const ls_cache *a, const uint8_t *x, const uint8_t *y, int64_t rows, int64_t stride,
                                int64_t row_bytes, ls_error *err) {
    const ls_differs_args args = {x, y, rows, stride, row_bytes, a->differs};
    return row_bytes == 0 ? LS_OK : ls_differs(a->device, &args, err);
}

/* What the comparisons since begin_compare found. */
static ls_status end_compare(const ls_cache *a, bool *differs, ls_error *err) {
    int64_t found = 0;
    const ls_status status = ls_memory_take(a->device, &found, a->differs, (int64_t)sizeof found, err);
    *differs = found != 0;
    return status;
}

/* Writes all layers' states that lack tokens. */
static ls_status write_states(const ls_cache *c, int32_t slot, ls_error *err) {
    const ls_span span = {.n_rows = 1, .pos = 1, .slot = slot};
    const ls_state_tensor *states = &c->slot.tensor[1]; /* behind the window */
    ls_held h;
    if (c->state_every <= 1) return LS_OK;
    h = ls_held_make(c->state_every, states->dims[0], c->n_groups, states->dims[1], states->dims[2]);
    LS_TRY(ls_memory_write(c->device, c->span, &span, (int64_t)sizeof span, err));
    for (int64_t i = 0; i < c->n_layers; i++) {
        const ls_pool_view state = ls_cache_state(c, i, states->name), held = ls_cache_held(c, i);
        const ls_write_held_args args = ls_held_args(&h, &state, &held, c->span, 1, 1);
        if (c->kind[i] == LS_POOL_SLOTS) LS_TRY(ls_write_held(c->device, &args, err));
    }
    return LS_OK;
}

/* What lies between and behind the tensors is nobody's, and may be poison in one and zero in the other. So are held
 * tokens that a state has. */
ls_status ls_cache_slot_differs(int64_t *layer_i, const ls_cache *a, int32_t slot_a, const ls_cache *b, int32_t slot_b,
                                ls_error *err) {
    const int64_t n = a->slot.n - (a->state_every > 1 ? 1 : 0);
    bool differs = false;
    *layer_i = -1;
    LS_TRY(write_states(a, slot_a, err));
    LS_TRY(write_states(b, slot_b, err));
    for (int64_t i = 0; i < a->n_layers && !differs; i++) {
        const uint8_t *x, *y;
        if (a->kind[i] != LS_POOL_SLOTS) continue;
        x = entry_at(a, i, slot_a);
        y = entry_at(b, i, slot_b);
        LS_TRY(begin_compare(a, err));
        for (const ls_state_tensor *t = a->slot.tensor; t < a->slot.tensor + n; t++)
            LS_TRY(compare_states(a, x + t->offset, y + t->offset, 1, a->slot_bytes, t->bytes, err));
        LS_TRY(end_compare(a, &differs, err));
        if (differs) *layer_i = i;
    }
    return LS_OK;
}

/* In a page lie, for every KV head and dimension, the keys of all its positions, then, for every KV head, the values
 * position by position (op/attention.h). */
ls_status ls_cache_page_differs(int64_t *layer_i, const ls_cache *a, int32_t page_a, const ls_cache *b, int32_t page_b,
                                int64_t n_tokens, ls_error *err) {
    const int64_t element = ls_dtype_bytes(a->dtype), token_bytes = a->page_bytes / a->page_tokens;
    const int64_t k_rows = token_bytes / (2 * element), row_bytes = a->page_tokens * element;
    bool differs = false;
    *layer_i = -1;
    for (int64_t i = 0; i < a->n_layers && !differs; i++) {
        const uint8_t *x, *y;
        int64_t head_bytes;
        if (a->kind[i] != LS_POOL_PAGES) continue; /* a model without attention has no heads to divide by */
        head_bytes = a->page_bytes / (2 * a->n_kv_heads);
        x = entry_at(a, i, page_a);
        y = entry_at(b, i, page_b);
        LS_TRY(begin_compare(a, err));
        LS_TRY(compare_states(a, x, y, k_rows, row_bytes, n_tokens * element, err));
        x += k_rows * row_bytes;
        y += k_rows * row_bytes;
        LS_TRY(compare_states(a, x, y, a->n_kv_heads, head_bytes, head_bytes / a->page_tokens * n_tokens, err));
        LS_TRY(end_compare(a, &differs, err));
        if (differs) *layer_i = i;
    }
    return LS_OK;
}

/* ---- guards ---- */

static ls_status read_guards(const ls_cache *cache, const pool *p, ls_error *err) {
    for (int64_t entry = 0; entry < p->n; entry++)
        LS_TRY(ls_memory_read(cache->device, cache->guard_bytes + entry * GUARD_BYTES,
                              p->base + entry * p->stride + p->bytes, GUARD_BYTES, err));
    return ls_device_wait(cache->device, err);
}

static ls_status check_layer_guards(const ls_cache *cache, int64_t layer_i, ls_error *err) {
    const pool p = pool_of(cache, layer_i);
    const ls_status status = read_guards(cache, &p, err);
    if (status != LS_OK) {
        (void)ls_device_wait(cache->device, NULL); /* reads may still end there */
        return status;
    }
    for (int64_t k = 0; k < p.n * GUARD_BYTES; k++)
        if (cache->guard_bytes[k] != GUARD_BYTE)
            return LS_FAIL(err, LS_ERR_DEVICE, "layer %lld: byte %lld behind %s %lld was overwritten with 0x%02x",
                           (long long)layer_i, (long long)(k % GUARD_BYTES),
                           cache->kind[layer_i] == LS_POOL_PAGES ? "page" : "slot", (long long)(k / GUARD_BYTES),
                           cache->guard_bytes[k]);
    return LS_OK;
}

ls_status ls_cache_check_guards(const ls_cache *cache, ls_error *err) {
    for (int64_t i = 0; cache->guards && i < cache->n_layers; i++) LS_TRY(check_layer_guards(cache, i, err));
    return LS_OK;
}
