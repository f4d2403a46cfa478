/* The engine's interface: creation, submission, ticks, weights, runs. */
#include "rollout/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "num/contract.h"
#include "rollout/engine_state.h"

const char *ls_finish_name(ls_finish finish) {
    switch (finish) {
        case LS_FINISH_NONE: return "none";
        case LS_FINISH_STOP: return "stop";
        case LS_FINISH_LENGTH: return "length";
        case LS_FINISH_CANCEL: return "cancel";
        case LS_FINISH_ERROR: return "error";
    }
    return "unknown";
}

static ls_prefix_key key_of(ls_dtype dtype, const ls_model *model, uint64_t weights) {
    const ls_prefix_key key = {weights, (uint64_t)LS_NUMERICS_VERSION << 32 | (uint64_t)model->profile << 24 |
                                            (uint64_t)model->ablation << 16 | (uint64_t)dtype};
    return key;
}

ls_status ls_engine_create(ls_engine **out, const ls_model *model, ls_device *device, const ls_engine_opts *opts,
                           ls_error *err) {
    ls_engine *e = calloc(1, sizeof *e);
    ls_status status = LS_OK;
    *out = NULL;
    if (e == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "engine");
    e->model = model;
    e->device = device;
    e->opts = *opts;
    e->opts.stop = NULL;
    e->batch = opts->levers.batch;
    e->key = key_of(opts->dtype, model, opts->weights);
    LS_TRY_DONE(ls_levers_check(&opts->levers, err));
    e->state_every = ls_levers_state_every(&opts->levers, &model->config, device);
    LS_TRY_DONE(ls_sampling_check(&opts->sampling, err));
    if (opts->length_max < 1 || opts->length_max > INT32_MAX || opts->n_stop < 0) {
        status = LS_FAIL(err, LS_ERR_ARG, "engine: longest request %lld, %lld stop ids", (long long)opts->length_max,
                         (long long)opts->n_stop);
        goto done;
    }
    if (opts->top < 0 || opts->top > LS_TOP_MAX || opts->top > model->config.vocab) {
        status = LS_FAIL(err, LS_ERR_ARG, "engine: %lld likeliest of %d tokens; %d at most", (long long)opts->top,
                         model->config.vocab, LS_TOP_MAX);
        goto done;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&e->stop, opts->n_stop, sizeof *e->stop, "stop ids", err));
    if (opts->n_stop > 0) memcpy(e->stop, opts->stop, (size_t)opts->n_stop * sizeof *e->stop);
    LS_TRY_DONE(ls_engine_allocate(e, err));
    *out = e;
    e = NULL;
done:
    ls_engine_free(e);
    return status;
}

void ls_engine_free(ls_engine *e) {
    if (e == NULL) return;
    if (e->device != NULL) (void)ls_device_wait(e->device, NULL); /* reads of a tick that failed end in its arrays */
    for (int64_t i = 0; i < e->waiting.table_cap; i++) {
        if (e->waiting.table[i] != NULL) ls_token_counts_free(e->waiting.table[i]->counts);
        free(e->waiting.table[i]);
    }
    while (e->free_entries != NULL) {
        entry *x = e->free_entries;
        e->free_entries = x->next_free;
        free(x);
    }
    ls_waiting_deinit(&e->waiting);
    ls_engine_deallocate(e);
    free(e->stop);
    free(e);
}

void ls_engine_get_plan(const ls_engine *e, ls_engine_plan *out) { *out = e->plan; }

void ls_engine_get_stats(const ls_engine *e, ls_engine_stats *out) {
    *out = e->stats;
    out->slots_used = e->plan.slots - ls_ids_available(e->slots);
    out->pages_used = e->plan.pages - ls_ids_available(e->pages);
    if (e->prefix != NULL) ls_prefix_get_stats(e->prefix, &out->prefix);
}

int64_t ls_engine_unfinished(const ls_engine *e) { return e->n_live; }

/* The error that poisoned the engine, once more. */
static ls_status check_alive(const ls_engine *e, ls_error *err) {
    if (e->poisoned.status != LS_OK && err != NULL) *err = e->poisoned;
    return e->poisoned.status;
}

/* ---- requests ---- */

static ls_status check_request(const ls_engine *e, const ls_request *r, ls_error *err) {
    const int32_t vocab = e->model->config.vocab;
    const unsigned p = r->prompt_i, s = r->sample_i;
    int64_t total;
    if (r->n_prompt < 1) return LS_FAIL(err, LS_ERR_ARG, "prompt %u, sample %u: the prompt is empty", p, s);
    if (r->max_tokens < 0)
        return LS_FAIL(err, LS_ERR_ARG, "prompt %u, sample %u: max_tokens %lld is negative", p, s,
                       (long long)r->max_tokens);
    for (int64_t t = 0; t < r->n_prompt; t++)
        if (r->prompt[t] < 0 || r->prompt[t] >= vocab)
            return LS_FAIL(err, LS_ERR_ARG, "prompt %u, sample %u: token %lld is %d, the vocabulary is 0..%d", p, s,
                           (long long)t, r->prompt[t], vocab - 1);
    if (!ls_add_i64(r->n_prompt, r->max_tokens, &total) || total > e->opts.length_max)
        return LS_FAIL(err, LS_ERR_CAPACITY,
                       "prompt %u, sample %u: %lld tokens and a completion of %lld are more than the engine's %lld", p,
                       s, (long long)r->n_prompt, (long long)r->max_tokens, (long long)e->opts.length_max);
    if (ls_engine_pages_at_once(e, total) > e->plan.pages)
        return LS_FAIL(err, LS_ERR_CAPACITY, "prompt %u, sample %u: %lld tokens take %lld KV pages, the pool has %lld",
                       p, s, (long long)total, (long long)ls_engine_pages_at_once(e, total), (long long)e->plan.pages);
    if (r->sampling != NULL && ls_sampling_check(r->sampling, err) != LS_OK) {
        ls_error_prefix(err, "prompt %u, sample %u", p, s);
        return LS_ERR_ARG;
    }
    LS_TRY(ls_penalty_check(e, r, err));
    if ((ls_request_weighs(r) && !e->opts.weighs) || (r->of_model != NULL && !e->opts.weighs_model))
        return LS_FAIL(err, LS_ERR_ARG,
                       "prompt %u, sample %u: the kept mass is wanted of an engine that does not weigh", p, s);
    if ((r->top_id != NULL) != (r->top_logprob != NULL) || (r->top_id != NULL && e->opts.top == 0))
        return LS_FAIL(err, LS_ERR_ARG,
                       "prompt %u, sample %u: likeliest tokens without their values, or of an engine that gives none",
                       p, s);
    if (ls_live_find(&e->waiting, r) != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "prompt %u, sample %u: a request with this address is not finished", p, s);
    if (e->opts.requests_max > 0 && e->n_live >= e->opts.requests_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "prompt %u, sample %u: %lld requests are unfinished, which is the limit",
                       p, s, (long long)e->n_live);
    return LS_OK;
}

ls_status ls_engine_submit(ls_engine *e, ls_request *r, ls_error *err) {
    entry *x = e->free_entries;
    ls_token_counts *counts = NULL; /* the entry's, once there is one */
    ls_status status;
    LS_TRY_DONE(check_alive(e, err));
    LS_TRY_DONE(check_request(e, r, err));
    LS_TRY_DONE(ls_waiting_reserve(&e->waiting, e->n_live + 1, err));
    if (r->penalties != NULL && ls_penalties_act(r->penalties))
        LS_TRY_DONE(ls_token_counts_create(&counts, r->prompt, r->n_prompt, r->max_tokens, e->model->config.vocab,
                                           r->penalties, err));
    if (x == NULL) x = malloc(sizeof *x);
    if (x == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "request");
        goto done;
    }
    if (x == e->free_entries) e->free_entries = x->next_free;
    *x = (entry){.request = r,
                 .counts = counts,
                 .arrival = e->n_arrivals++,
                 .slot = -1,
                 .lane = -1,
                 .swap_slot = -1,
                 .heap_i = -1};
    ls_draft_begin(x);
    r->n_completion = 0;
    r->finish = LS_FINISH_NONE;
    r->error.status = LS_OK;
    r->slot = -1;
    r->n_hit = r->n_preempted = 0;
    r->tick_first = r->tick_last = -1;
    e->n_live++;
    ls_live_add(&e->waiting, x);
    ls_waiting_push(&e->waiting, x);
    counts = NULL;
done:
    ls_token_counts_free(counts);
    return status;
}

ls_status ls_engine_cancel(ls_engine *e, ls_request *r, ls_error *err) {
    entry *x = ls_live_find(&e->waiting, r);
    if (x == NULL || x->request != r)
        return LS_FAIL(err, LS_ERR_ARG, "prompt %u, sample %u: cancel: no such unfinished request", r->prompt_i,
                       r->sample_i);
    ls_commit_finish(e, x, LS_FINISH_CANCEL);
    return LS_OK;
}

/* ---- ticks ---- */

static ls_status check_guards(const ls_engine *e, ls_error *err) {
    return e->opts.levers.guards && !e->sleeps ? ls_cache_check_guards(e->cache, err) : LS_OK;
}

/* Shows the observer each sequence's rows. */
static ls_status observe_forward(void *context, const ls_forward *f, int64_t sublayer, ls_error *err) {
    const ls_engine *e = context;
    const int64_t hidden = e->model->config.hidden, rows = f->batch->n_rows;
    LS_TRY(ls_memory_take(e->device, e->seen, f->h, rows * hidden * (int64_t)sizeof *e->seen, err));
    for (int64_t i = 0; i < e->n_spans; i++)
        e->observer(e->observer_context, e->span_entry[i]->request, e->spans[i].pos, e->spans[i].n_rows, sublayer,
                    e->seen + e->spans[i].row * hidden);
    return LS_OK;
}

/* What moved wrongly since the last tick. */
static ls_status check_movement(const ls_engine *e, ls_error *err) {
    if (e->movement.status != LS_OK && err != NULL) *err = e->movement;
    return e->movement.status;
}

/* Spans of any length. */
static ls_status mixed_tick(ls_engine *e, ls_error *err) {
    const ls_forward f = {e->model, e->cache, e->ws, e->tick, e->h, 0, false};
    LS_TRY(ls_batch_write(e->tick, e->tokens, e->spans, e->n_spans, e->tables, e->batch * e->pages_max, err));
    LS_TRY(ls_model_forward(&f, e->observer == NULL ? NULL : observe_forward, e, err));
    return ls_commit_forward(e, err);
}

static ls_status run_tick(ls_engine *e, ls_error *err) {
    ls_schedule_force(e);
    ls_schedule_admit(e);
    ls_schedule_spans(e);
    LS_TRY(check_movement(e, err));
    if (e->n_spans == 0) return LS_OK;
    e->stats.forwards++;
    LS_TRY(ls_decode_fits(e) ? ls_decode_tick(e, err) : mixed_tick(e, err));
    LS_TRY(check_movement(e, err));
    return check_guards(e, err);
}

/* The sleep that the lever asks for. Only when a sequence has drawn since it came back: what sleeps is computed again,
 * which could go on for ever. */
static bool is_to_sleep(const ls_engine *e) {
    const int64_t every = e->opts.levers.sleep_every;
    if (every == 0 || e->stats.ticks == 0 || e->stats.ticks % every != 0) return false;
    for (int64_t i = 0; i < e->n_running; i++)
        if (e->running[i]->drew) return true;
    return false;
}

/* The pools are there, and the weights. What fails here can be put right by who let the engine sleep: it poisons
 * nothing. Where that was the lever there is nobody, and who has requests here, or will have, must be told. */
static ls_status assure_awake(ls_engine *e, ls_error *err) {
    bool by_lever = false;
    ls_status status;
    if (e->model->parked != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "engine: the weights are parked on the host: ls_model_unpark brings them back");
    if (!e->sleeps && is_to_sleep(e)) {
        by_lever = true;
        LS_TRY(ls_engine_sleep(e, &e->poisoned) == LS_OK ? LS_OK : check_alive(e, err));
    }
    if (!by_lever) return ls_engine_wake(e, err);
    status = ls_engine_wake(e, &e->poisoned);
    return status == LS_OK ? LS_OK : check_alive(e, err);
}

ls_status ls_engine_tick(ls_engine *e, ls_error *err) {
    ls_status status;
    LS_TRY(check_alive(e, err));
    LS_TRY(assure_awake(e, err));
    e->stats.ticks++;
    ls_inject_arm(e->opts.inject);
    status = run_tick(e, &e->poisoned);
    /* A fault stays armed until a device that puts calls off has run those of the tick. */
    if (status == LS_OK && e->opts.inject != LS_INJECT_NONE && LS_INJECTED(e->opts.inject))
        status = ls_device_wait(e->device, &e->poisoned);
    ls_inject_arm(LS_INJECT_NONE);
    return status == LS_OK ? LS_OK : check_alive(e, err);
}

ls_status ls_engine_observe(ls_engine *e, ls_engine_observer observer, void *context, ls_error *err) {
    if (e->seen == NULL)
        LS_TRY(ls_array_alloc((void **)&e->seen, e->plan.rows, e->model->config.hidden * (int64_t)sizeof *e->seen,
                              "observer", err));
    e->observer = observer;
    e->observer_context = context;
    return LS_OK;
}

/* ---- weights ---- */

/* Whether what the engine has planned and caches for one model fits the other: all that shapes arithmetic, and not what
 * a file says besides. */
static bool computes_alike(const ls_model_config *a, const ls_model_config *b) {
    const size_t layers = (size_t)a->n_layers;
    return a->n_layers == b->n_layers && a->hidden == b->hidden && a->vocab == b->vocab && a->ffn == b->ffn &&
           a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
           a->n_experts == b->n_experts && a->top_k == b->top_k && a->d_inner == b->d_inner &&
           a->d_state == b->d_state && a->d_conv == b->d_conv && a->dt_rank == b->dt_rank &&
           a->delta_heads == b->delta_heads && a->delta_key_heads == b->delta_key_heads &&
           a->head_gates == b->head_gates && a->shared_ffn == b->shared_ffn &&
           a->norms_above_one == b->norms_above_one && a->ssd_heads == b->ssd_heads && a->ssd_groups == b->ssd_groups &&
           a->dt_min == b->dt_min && a->dt_max == b->dt_max && a->inner_norms == b->inner_norms &&
           a->inner_weights == b->inner_weights && a->inner_eps == b->inner_eps && a->conv_bias == b->conv_bias &&
           a->proj_bias == b->proj_bias && a->rms_eps == b->rms_eps && a->head_norms == b->head_norms &&
           a->reweighs == b->reweighs && a->router_groups == b->router_groups &&
           a->router_top_groups == b->router_top_groups && a->router_scale == b->router_scale &&
           a->embed_scale == b->embed_scale && a->residual_scale == b->residual_scale &&
           a->logit_scale == b->logit_scale && a->attention_scale == b->attention_scale &&
           a->delta_by_head == b->delta_by_head && a->qkv_bias == b->qkv_bias && a->o_bias == b->o_bias &&
           memcmp(a->window, b->window, layers * sizeof *a->window) == 0 &&
           memcmp(&a->rope, &b->rope, sizeof a->rope) == 0 && memcmp(a->is_attention, b->is_attention, layers) == 0 &&
           memcmp(a->is_moe, b->is_moe, layers) == 0 && a->ungated == b->ungated &&
           memcmp(a->no_mixer, b->no_mixer, layers) == 0 && memcmp(a->no_ffn, b->no_ffn, layers) == 0;
}

ls_status ls_engine_set_weights(ls_engine *e, const ls_model *model, uint64_t version, ls_error *err) {
    const ls_status status = check_alive(e, err);
    if (status != LS_OK) return status;
    if (!computes_alike(&model->config, &e->model->config))
        return LS_FAIL(err, LS_ERR_ARG, "weights version %llu: the configuration is another one",
                       (unsigned long long)version);
    if (model->profile != e->model->profile)
        return LS_FAIL(err, LS_ERR_ARG, "weights version %llu: the profile is %s, the engine's is %s",
                       (unsigned long long)version, ls_profile_name(model->profile),
                       ls_profile_name(e->model->profile));
    ls_engine_preempt_all(e);
    if (model != e->model) ls_decode_forget(e); /* recordings read the weights where they lie */
    e->model = model;
    e->key = key_of(e->opts.dtype, model, version);
    ls_inject_arm(e->opts.inject);
    if (e->prefix != NULL) ls_prefix_set_key(e->prefix, e->key);
    ls_inject_arm(LS_INJECT_NONE);
    return LS_OK;
}

void ls_engine_flush(ls_engine *e) {
    if (e->prefix != NULL) ls_prefix_clear(e->prefix);
}

/* ---- runs ---- */

/* A permutation of 0..n-1 by Fisher-Yates with counter-based draws; ascending for seed 0. */
static void shuffle(int64_t *order, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; seed != 0 && i > 0; i--) {
        const int64_t j = (int64_t)(ls_philox_draw(seed, 2, (uint32_t)i, 0, 0).word[0] % (uint64_t)(i + 1));
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static ls_status tick_to_end(ls_engine *e, int64_t n, ls_engine_progress progress, void *context, ls_error *err) {
    const int64_t tokens_before = e->stats.tokens;
    while (e->n_live > 0 && !(e->opts.stops != NULL && e->opts.stops())) {
        LS_TRY(ls_engine_tick(e, err));
        if (progress != NULL) progress(context, n - e->n_live, n, e->stats.tokens - tokens_before);
    }
    return LS_OK;
}

/* Nothing that was refused, and no tick that failed, leaves a request of the caller's behind in the engine. */
static void cancel_unfinished(ls_engine *e, ls_request *requests, int64_t n) {
    for (int64_t i = 0; i < n && e->n_live > 0; i++) {
        const entry *x = ls_live_find(&e->waiting, &requests[i]);
        if (x != NULL && x->request == &requests[i]) ls_engine_cancel(e, &requests[i], NULL);
    }
}

/* Prefills every prompt once. */
static ls_status warm_up(ls_engine *e, const ls_request *requests, int64_t n, ls_error *err) {
    ls_request *prompts = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&prompts, n, sizeof *prompts, "warm-up", err));
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && requests[i].prompt_i == requests[i - 1].prompt_i) continue;
        prompts[i] = (ls_request){.prompt = requests[i].prompt,
                                  .n_prompt = requests[i].n_prompt,
                                  .prompt_i = requests[i].prompt_i,
                                  .sample_i = UINT32_MAX};
        LS_TRY_DONE(ls_engine_submit(e, &prompts[i], err));
    }
    LS_TRY_DONE(tick_to_end(e, n, NULL, NULL, err));
done:
    if (status != LS_OK) ls_error_prefix(err, "warm-up");
    if (prompts != NULL) cancel_unfinished(e, prompts, n);
    free(prompts);
    return status;
}

ls_status ls_engine_run(ls_engine *e, ls_request *requests, int64_t n, ls_engine_progress progress, void *context,
                        ls_error *err) {
    int64_t *order = NULL;
    ls_status status;
    LS_ASSERT(e->n_live == 0, "%lld requests are unfinished", (long long)e->n_live);
    if (e->prefix != NULL && e->opts.levers.prefix == LS_PREFIX_COLD) ls_prefix_clear(e->prefix);
    if (e->prefix != NULL && e->opts.levers.prefix == LS_PREFIX_WARM) LS_TRY_DONE(warm_up(e, requests, n, err));
    LS_TRY_DONE(ls_array_alloc((void **)&order, n, sizeof *order, "order", err));
    shuffle(order, n, e->opts.levers.shuffle);
    for (int64_t i = 0; i < n; i++) LS_TRY_DONE(ls_engine_submit(e, &requests[order[i]], err));
    LS_TRY_DONE(tick_to_end(e, n, progress, context, err));
done:
    cancel_unfinished(e, requests, n); /* of a failure, or of a run that was stopped */
    free(order);
    return status;
}

void ls_engine_check_idle(ls_engine *e) {
    ls_error err;
    LS_ASSERT(e->n_live == 0 && e->n_running == 0 && e->waiting.n == 0, "%lld live requests", (long long)e->n_live);
    if (e->prefix != NULL) {
        ls_prefix_check(e->prefix);
        ls_prefix_clear(e->prefix);
    }
    LS_ASSERT(ls_ids_available(e->slots) == e->plan.slots, "%lld of %lld slots are free",
              (long long)ls_ids_available(e->slots), (long long)e->plan.slots);
    LS_ASSERT(ls_ids_available(e->pages) == e->plan.pages, "%lld of %lld pages are free",
              (long long)ls_ids_available(e->pages), (long long)e->plan.pages);
    LS_ASSERT(e->waiting.table_n == 0, "%lld live addresses", (long long)e->waiting.table_n);
    LS_ASSERT(check_guards(e, &err) == LS_OK, "%s", err.text);
    LS_ASSERT(e->n_lanes == e->batch, "%lld of %lld lanes are free", (long long)e->n_lanes, (long long)e->batch);
    if (e->swap != NULL)
        LS_ASSERT(ls_ids_available(e->swap_slots) == e->plan.swap_slots &&
                      ls_ids_available(e->swap_pages) == e->plan.swap_pages,
                  "%lld swap slots, %lld swap pages are free", (long long)ls_ids_available(e->swap_slots),
                  (long long)ls_ids_available(e->swap_pages));
}
