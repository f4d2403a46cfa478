/* Sizes of all that an engine owns, from levers, length and budget; then its allocation. Nothing is allocated later. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/layer_buffer.h"
#include "num/contract.h"
#include "rollout/engine_state.h"

#define DRAWS_ENOUGH 256

/* Mamba and attention layers of the model. */
static int64_t count_layers(const ls_model_config *c, bool attention) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_layers; i++) n += attention ? ls_config_has_pages(c, i) : ls_config_has_slots(c, i);
    return n;
}

static int64_t share_of_fraction(int64_t n, double fraction) {
    const int64_t part = (int64_t)((double)n * fraction);
    return part > 0 ? part : 1;
}

static ls_head_opts head_opts(const ls_engine *e) {
    return (ls_head_opts){.dtype = e->opts.dtype,
                          .rows_max = e->draws_max,
                          .samples = true,
                          .keeps_logits = true,
                          .weighs = e->opts.weighs,
                          .weighs_model = e->opts.weighs_model,
                          .top = e->opts.top,
                          .temperature = 1.0f};
}

/* Bytes that a forward over the plan's rows works in: the workspace, and the residual stream. */
static ls_status plan_workspace(ls_engine *e, ls_error *err) {
    const ls_model_config *c = &e->model->config;
    const ls_head_opts head = head_opts(e);
    const int64_t bytes = ls_workspace_bytes(e->model, e->opts.dtype, e->plan.rows, false);
    int64_t stream;
    if (bytes < 0 || !ls_mul_i64(e->plan.rows, c->hidden * (int64_t)sizeof(float), &stream) ||
        !ls_add_i64(bytes, stream, &e->plan.workspace_bytes))
        return LS_FAIL(err, LS_ERR_CAPACITY, "tick-tokens: a workspace of %lld rows does not fit 64 bits",
                       (long long)e->plan.rows);
    e->plan.head_bytes = ls_head_bytes(c, &head) + ls_penalty_bytes(e);
    e->plan.ops_bytes = ls_max_i64(ls_head_workspace_bytes(c, &head), e->device->exec.workspace_bytes);
    e->plan.weight_bytes = e->model->device_bytes;
    return LS_OK;
}

/* What a forward is told: a page number of every sequence is there, whether it has the page or not. And the answer of a
 * comparison, which each of the three caches has, and the slot whose states are written first. */
static ls_status plan_tick(ls_engine *e, ls_error *err) {
    const int64_t each = (int64_t)sizeof(int64_t) + (e->state_every > 1 ? (int64_t)sizeof(ls_span) : 0);
    const int64_t answers = 3 * each;
    int64_t spans, tables;
    if (!ls_mul_i64(e->plan.rows, (int64_t)sizeof(int32_t), &e->plan.tick_bytes) ||
        !ls_mul_i64(e->batch, (int64_t)sizeof(ls_span), &spans) ||
        !ls_mul_i64(e->batch, e->pages_max * (int64_t)sizeof(int32_t), &tables) ||
        !ls_add_i64(e->plan.tick_bytes, spans, &e->plan.tick_bytes) ||
        !ls_add_i64(e->plan.tick_bytes, tables, &e->plan.tick_bytes) ||
        !ls_add_i64(e->plan.tick_bytes, answers, &e->plan.tick_bytes))
        return LS_FAIL(err, LS_ERR_CAPACITY, "batch: %lld sequences of %lld pages", (long long)e->batch,
                       (long long)e->pages_max);
    return LS_OK;
}

/* A recorded tick has some twenty calls a layer, and those that bring one into the model's window, of which the device
 * keeps about a KB each. */
static void plan_recordings(ls_engine *e, bool is_limited) {
    if (!is_limited) return;
    e->plan.recordings = ls_decode_sizes(e);
    e->plan.recording_bytes =
        e->plan.recordings * e->model->config.n_layers * (20 + ls_layer_buffer_calls(e->model)) * 1024;
}

/* Without the pools. */
static int64_t fixed_bytes(const ls_engine *e) {
    const ls_engine_plan *p = &e->plan;
    return p->workspace_bytes + p->head_bytes + p->tick_bytes + p->ops_bytes + p->recording_bytes;
}

static ls_status plan_rows(ls_engine *e, ls_error *err) {
    const ls_levers *l = &e->opts.levers;
    const int64_t chunk = l->chunk > 0 ? ls_min_i64(l->chunk, e->opts.length_max) : e->opts.length_max;
    /* Rows of the head are costly where there are many words: of large batches fewer sequences have drafts at once. */
    e->draws_max = ls_max_i64(e->batch, ls_min_i64(e->batch * (1 + l->drafts), DRAWS_ENOUGH));
    e->plan.rows = l->tick_tokens > 0 ? l->tick_tokens : e->draws_max + chunk;
    if (e->plan.rows < e->batch)
        return LS_FAIL(err, LS_ERR_ARG, "tick-tokens: %lld rows do not hold one token of each of %lld sequences",
                       (long long)e->plan.rows, (long long)e->batch);
    return LS_OK;
}

/* Pages from what the budget leaves. */
static ls_status pages_from_budget(ls_engine *e, int64_t page_bytes, ls_error *err) {
    const ls_engine_plan *p = &e->plan;
    const int64_t swap = p->swap_on_host ? 0 : p->swap_bytes;
    const int64_t fixed = p->slot_bytes + p->snapshot_bytes + swap + fixed_bytes(e);
    const int64_t budget = e->opts.levers.memory_bytes, running = e->batch * e->pages_held;
    int64_t pages;
    if (page_bytes == 0) {
        if (fixed > budget)
            return LS_FAIL(err, LS_ERR_CAPACITY, "memory: %lld bytes are needed, the budget is %lld", (long long)fixed,
                           (long long)budget);
        e->plan.pages = running; /* they cost nothing: there is no attention layer */
        return LS_OK;
    }
    pages = (budget - fixed) / page_bytes;
    /* The others hold what is swapped out. */
    if (p->swap_slots > 0 && !p->swap_on_host) pages = ls_max_i64(pages - running, pages / 2);
    if (pages < 1)
        return LS_FAIL(err, LS_ERR_CAPACITY,
                       "memory: %lld bytes are needed for slots, snapshots and workspace and %lld for a KV page, the "
                       "budget is %lld",
                       (long long)fixed, (long long)page_bytes, (long long)budget);
    e->plan.pages = ls_min_i64(pages, INT32_MAX);
    return LS_OK;
}

/* Sequences that swap space is for: all that run, or as many as its size holds. slot, page: bytes of one. */
static ls_status plan_swap(ls_engine *e, int64_t slot, int64_t page, ls_error *err) {
    const int64_t bytes = e->opts.levers.swap_bytes;
    int64_t each;
    if (e->opts.levers.preempt_by == LS_PREEMPT_RECOMPUTE) return LS_OK;
    e->plan.swap_slots = e->batch;
    if (!ls_mul_i64(e->pages_held, page, &each) || !ls_add_i64(each, slot, &each))
        return LS_FAIL(err, LS_ERR_CAPACITY, "swap-memory: a sequence of %lld pages does not fit 64 bits",
                       (long long)e->pages_held);
    if (bytes > 0 && bytes < each)
        return LS_FAIL(err, LS_ERR_CAPACITY,
                       "swap-memory: %lld bytes do not hold the longest sequence, which takes %lld", (long long)bytes,
                       (long long)each);
    if (bytes > 0 && each > 0) e->plan.swap_slots = ls_min_i64(e->batch, bytes / each);
    return LS_OK;
}

/* slot: bytes of one snapshot. */
static ls_status plan_snapshots(ls_engine *e, int64_t slot, ls_error *err) {
    const int64_t bytes = e->opts.levers.prefix_bytes;
    if (bytes > 0 && bytes < slot)
        return LS_FAIL(err, LS_ERR_CAPACITY, "prefix-memory: %lld bytes do not hold one snapshot, which takes %lld",
                       (long long)bytes, (long long)slot);
    e->plan.snapshots = bytes == 0 ? 4 * e->batch : slot == 0 ? e->batch : bytes / slot;
    if (e->plan.snapshots > INT32_MAX)
        return LS_FAIL(err, LS_ERR_CAPACITY, "prefix-memory: %lld bytes are %lld snapshots of %lld, the most is %d",
                       (long long)bytes, (long long)e->plan.snapshots, (long long)slot, INT32_MAX);
    return LS_OK;
}

/* How many slots, pages and snapshots are wanted, and how many of them the device holds. */
static ls_status plan_pools(ls_engine *e, const ls_plan_units *units, ls_error *err) {
    const ls_levers *l = &e->opts.levers;
    ls_engine_plan *p = &e->plan;
    p->slots = l->slots > 0 ? l->slots : e->batch * ls_engine_slots_each(e, units->slot > 0);
    if (l->prefix != LS_PREFIX_OFF) LS_TRY(plan_snapshots(e, units->snapshot, err));
    LS_TRY(plan_swap(e, units->snapshot, units->page, err));
    if (l->pages > 0)
        p->pages = l->pages;
    else if (!ls_mul_i64(e->batch, e->pages_held * (l->prefix != LS_PREFIX_OFF ? 2 : 1), &p->pages))
        return LS_FAIL(err, LS_ERR_CAPACITY, "batch: %lld sequences of %lld pages", (long long)e->batch,
                       (long long)e->pages_held);
    if (l->memory_bytes == 0) LS_TRY(ls_plan_fit(e, units, err));
    p->slots = share_of_fraction(p->slots, l->pool_share);
    if (l->slot_base >= p->slots)
        return LS_FAIL(err, LS_ERR_ARG, "slot-base: %lld is none of the %lld slots", (long long)l->slot_base,
                       (long long)p->slots);
    if (!ls_mul_i64(p->slots, units->slot, &p->slot_bytes) ||
        !ls_mul_i64(p->snapshots, units->snapshot, &p->snapshot_bytes))
        return LS_FAIL(err, LS_ERR_CAPACITY, "slots: %lld of %lld bytes in all layers do not fit 64 bits",
                       (long long)p->slots, (long long)units->slot);
    p->swap_bytes = p->swap_slots * units->snapshot;
    if (l->memory_bytes > 0 && l->pages == 0) LS_TRY(pages_from_budget(e, units->page, err));
    p->pages = share_of_fraction(p->pages, l->pool_share);
    if (p->swap_slots > 0) p->swap_pages = ls_min_i64(p->swap_slots * e->pages_held, p->pages);
    if (p->slots > INT32_MAX || p->pages > INT32_MAX || !ls_mul_i64(p->pages, units->page, &p->page_bytes))
        return LS_FAIL(err, LS_ERR_CAPACITY, "pages: %lld, and %lld slots: ids have 31 bits, bytes 64",
                       (long long)p->pages, (long long)p->slots);
    p->swap_bytes += p->swap_pages * units->page;
    return LS_OK;
}

static ls_status plan_total(ls_engine *e, ls_error *err) {
    const ls_levers *l = &e->opts.levers;
    ls_engine_plan *p = &e->plan;
    int64_t total = fixed_bytes(e);
    if (!ls_add_i64(total, p->slot_bytes, &total) || !ls_add_i64(total, p->page_bytes, &total) ||
        !ls_add_i64(total, p->snapshot_bytes, &total) ||
        !ls_add_i64(total, p->swap_on_host ? 0 : p->swap_bytes, &total))
        return LS_FAIL(err, LS_ERR_CAPACITY, "memory: the pools together do not fit 64 bits");
    p->total_bytes = total;
    if (l->memory_bytes > 0 && l->pages > 0 && total > l->memory_bytes)
        return LS_FAIL(err, LS_ERR_CAPACITY, "memory: %lld bytes are needed, the budget is %lld", (long long)total,
                       (long long)l->memory_bytes);
    return ls_plan_check(e, err);
}

static ls_status make_plan(ls_engine *e, ls_error *err) {
    const ls_model_config *c = &e->model->config;
    const ls_levers *l = &e->opts.levers;
    const int64_t n_attention = count_layers(c, true), n_mamba = count_layers(c, false);
    const int64_t slot = ls_slot_bytes(c, e->opts.dtype, e->state_every);
    ls_engine_plan *p = &e->plan;
    ls_plan_units units = {.snapshot = slot * n_mamba,
                           .page = ls_page_bytes(c, e->opts.dtype, l->page_tokens) * n_attention};
    ls_memory_state memory;
    LS_TRY(ls_device_memory(e->device, &memory, err));
    p->swap_on_host = memory.is_limited;
    p->device_bytes = memory.is_limited ? memory.total : 0;
    p->before_bytes = memory.is_limited ? memory.total - memory.free - e->device->exec.workspace_bytes : 0;
    LS_TRY(plan_rows(e, err));
    e->window = ls_config_window(c);
    e->pages_max = ls_engine_pages(e, e->opts.length_max);
    e->pages_held = ls_engine_pages_at_once(e, e->opts.length_max);
    LS_TRY(plan_workspace(e, err));
    LS_TRY(plan_tick(e, err));
    plan_recordings(e, memory.is_limited);
    p->slot_stride = l->slot_words > 0 ? 4 * l->slot_words : slot;
    p->page_stride = n_attention == 0 ? 0 : units.page / n_attention;
    units.fixed = fixed_bytes(e);
    if (!ls_mul_i64(p->slot_stride, n_mamba, &units.slot))
        return LS_FAIL(err, LS_ERR_CAPACITY, "slots: %lld bytes in %lld layers do not fit 64 bits",
                       (long long)p->slot_stride, (long long)n_mamba);
    LS_TRY(plan_pools(e, &units, err));
    return plan_total(e, err);
}

void ls_engine_poison(ls_engine *e) {
    if (!e->opts.levers.poison) return;
    for (int64_t i = 0; i < e->plan.slots; i++) LS_MOVE(e, ls_cache_poison_slot(e->cache, (int32_t)i, &e->movement));
    for (int64_t i = 0; i < e->plan.pages; i++) LS_MOVE(e, ls_cache_poison_page(e->cache, (int32_t)i, &e->movement));
}

/* Token ids of the prefix cache: of a sequence with a window it holds more of them than of their pages. */
static int64_t prefix_tokens(const ls_engine *e) {
    const int64_t longer = (e->pages_max + e->pages_held - 1) / e->pages_held;
    int64_t n;
    return ls_mul_i64(e->plan.pages * e->opts.levers.page_tokens, longer, &n) ? n : INT64_MAX;
}

static ls_status make_pools(ls_engine *e, ls_error *err) {
    const ls_levers *l = &e->opts.levers;
    const ls_model_config *c = &e->model->config;
    const ls_engine_plan *p = &e->plan;
    const ls_ids_opts slot_ids = {p->slots, l->policy, l->slot_base, l->slot_permutation, l->policy_seed};
    const ls_ids_opts page_ids = {p->pages, l->policy, 0, 0, l->policy_seed + 1};
    const ls_ids_opts swap_slot_ids = {.n = p->swap_slots, .policy = LS_POLICY_LOWEST};
    const ls_ids_opts swap_page_ids = {.n = p->swap_pages, .policy = LS_POLICY_LOWEST};
    ls_cache_opts cache = {.dtype = e->opts.dtype,
                           .n_slots = p->slots,
                           .n_pages = p->pages,
                           .page_tokens = l->page_tokens,
                           .slot_stride = 4 * l->slot_words,
                           .guards = l->guards,
                           .state_every = e->state_every};
    ls_status status;
    if ((status = ls_cache_create(&e->cache, e->device, c, &cache, err)) != LS_OK) {
        if (l->slot_words > 0) ls_error_prefix(err, "slot-words");
        goto done;
    }
    LS_TRY_DONE(ls_ids_create(&e->slots, &slot_ids, "slots", err));
    LS_TRY_DONE(ls_ids_create(&e->pages, &page_ids, "pages", err));
    ls_engine_poison(e);
    cache.slot_stride = 0;
    cache.guards = false;
    if (p->snapshots > 0) {
        const ls_prefix_opts prefix = {.n_snapshots = p->snapshots,
                                       .snapshot_bytes = p->snapshot_bytes / p->snapshots,
                                       .page_tokens = l->page_tokens,
                                       .page_bytes = p->page_bytes / p->pages,
                                       .tokens_max = prefix_tokens(e),
                                       .nodes_max = 4 * p->snapshots + 16,
                                       .window = e->window,
                                       .pages = e->pages,
                                       .page_freed = ls_schedule_page_freed,
                                       .context = e};
        cache.n_slots = p->snapshots;
        cache.n_pages = 0;
        LS_TRY_DONE(ls_cache_create(&e->snapshots, e->device, c, &cache, err));
        LS_TRY_DONE(ls_prefix_create(&e->prefix, &prefix, err));
        ls_prefix_set_key(e->prefix, e->key);
    }
    if (p->swap_slots > 0) {
        cache.n_slots = p->swap_slots;
        cache.n_pages = p->swap_pages;
        cache.on_host = p->swap_on_host;
        LS_TRY_DONE(ls_cache_create(&e->swap, e->device, c, &cache, err));
        LS_TRY_DONE(ls_ids_create(&e->swap_slots, &swap_slot_ids, "swap slots", err));
        LS_TRY_DONE(ls_ids_create(&e->swap_pages, &swap_page_ids, "swap pages", err));
        LS_TRY_DONE(ls_array_alloc((void **)&e->swap_tables, p->swap_slots,
                                   e->pages_max * (int64_t)sizeof *e->swap_tables, "swap tables", err));
    }
done:
    return status;
}

ls_status ls_engine_allocate(ls_engine *e, ls_error *err) {
    const ls_model_config *c = &e->model->config;
    const int64_t b = e->batch;
    ls_head_opts head;
    int64_t n;
    LS_TRY(make_plan(e, err));
    LS_TRY(make_pools(e, err));
    head = head_opts(e); /* of what was planned */
    n = e->draws_max;
    LS_TRY(ls_workspace_create(&e->ws, e->device, e->model, e->opts.dtype, e->plan.rows, false, err));
    LS_TRY(ls_batch_create(&e->tick, e->device, e->plan.rows, b, b * e->pages_max, err));
    LS_TRY(ls_head_create(&e->head, e->device, c, &head, err));
    LS_TRY(ls_penalty_allocate(e, err));
    LS_TRY(ls_draft_allocate(e, err));
    LS_TRY(ls_memory_alloc(e->device, (void **)&e->h, e->plan.rows, c->hidden * (int64_t)sizeof *e->h,
                           "residual stream", err));
    LS_TRY(ls_array_alloc((void **)&e->recordings, 4 * (b + 1), sizeof *e->recordings, "recordings", err));
    LS_TRY(ls_array_alloc((void **)&e->was_run, 4 * (b + 1), sizeof *e->was_run, "recordings", err));
    LS_TRY(ls_array_alloc((void **)&e->running, b, sizeof(entry *), "running list", err));
    LS_TRY(ls_array_alloc((void **)&e->tables, b, e->pages_max * (int64_t)sizeof *e->tables, "page tables", err));
    LS_TRY(ls_array_alloc((void **)&e->lanes, b, sizeof *e->lanes, "lanes", err));
    LS_TRY(ls_array_alloc((void **)&e->tokens, e->plan.rows, sizeof *e->tokens, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&e->spans, b, sizeof *e->spans, "spans", err));
    LS_TRY(ls_array_alloc((void **)&e->span_entry, b, sizeof(entry *), "spans", err));
    LS_TRY(ls_array_alloc((void **)&e->span_drafts, b, sizeof *e->span_drafts, "spans", err));
    LS_TRY(ls_array_alloc((void **)&e->drawing, n, sizeof(entry *), "drawing list", err));
    LS_TRY(ls_array_alloc((void **)&e->last_row, n, sizeof *e->last_row, "head rows", err));
    LS_TRY(ls_array_alloc((void **)&e->draws, n, sizeof *e->draws, "draws", err));
    LS_TRY(ls_array_alloc((void **)&e->sampling, n, sizeof *e->sampling, "draws", err));
    LS_TRY(ls_array_alloc((void **)&e->drawn, n, sizeof *e->drawn, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&e->logprob, n, sizeof *e->logprob, "log-probabilities", err));
    LS_TRY(ls_array_alloc((void **)&e->kept, n, sizeof *e->kept, "log-probabilities", err));
    LS_TRY(ls_array_alloc((void **)&e->of_all, n, sizeof *e->of_all, "log-probabilities", err));
    LS_TRY(ls_array_alloc((void **)&e->of_kept, n, sizeof *e->of_kept, "log-probabilities", err));
    LS_TRY(ls_array_alloc((void **)&e->of_model, n, sizeof *e->of_model, "log-probabilities", err));
    LS_TRY(ls_array_alloc((void **)&e->top_id, n * e->opts.top, sizeof *e->top_id, "likeliest tokens", err));
    LS_TRY(ls_array_alloc((void **)&e->top_logprob, n * e->opts.top, sizeof *e->top_logprob, "likeliest tokens", err));
    LS_TRY(ls_array_alloc((void **)&e->row, c->vocab, sizeof *e->row, "row of logits", err));
    LS_TRY(ls_array_alloc((void **)&e->processed_row, c->vocab, sizeof *e->processed_row, "row of logits", err));
    for (int64_t i = 0; i < b; i++) e->lanes[e->n_lanes++] = (int32_t)(b - 1 - i);
    return LS_OK;
}

void ls_engine_deallocate(ls_engine *e) {
    ls_decode_forget(e);
    free(e->was_run);
    free(e->recordings);
    free(e->row);
    free(e->processed_row);
    free(e->seen);
    free(e->top_logprob);
    free(e->top_id);
    free(e->of_model);
    free(e->of_kept);
    free(e->of_all);
    free(e->kept);
    free(e->logprob);
    free(e->drawn);
    free(e->sampling);
    free(e->draws);
    free(e->last_row);
    free(e->drawing);
    free(e->span_drafts);
    free(e->span_entry);
    free(e->spans);
    free(e->tokens);
    free(e->lanes);
    free(e->tables);
    free(e->running);
    ls_memory_free(e->device, e->h);
    ls_penalty_deallocate(e);
    ls_draft_deallocate(e);
    ls_head_free(e->head);
    ls_batch_free(e->tick);
    ls_workspace_free(e->ws);
    free(e->swap_tables);
    ls_ids_free(e->swap_pages);
    ls_ids_free(e->swap_slots);
    ls_prefix_free(e->prefix);
    ls_ids_free(e->pages);
    ls_ids_free(e->slots);
    ls_cache_free(e->swap);
    ls_cache_free(e->snapshots);
    ls_cache_free(e->cache);
}
