/* What a forward left behind: sequences move on, snapshots are published, forks are served, drawn tokens accepted. */
#include <math.h>
#include <string.h>

#include "op/logprob.h"
#include "rollout/engine_state.h"

void ls_commit_finish(ls_engine *e, entry *x, ls_finish finish) {
    x->request->finish = finish;
    x->request->tick_last = e->stats.ticks;
    if (x->lane >= 0)
        ls_schedule_leave(e, x);
    else {
        ls_schedule_drop_swap(e, x);
        ls_waiting_remove(&e->waiting, x);
    }
    ls_live_remove(&e->waiting, x);
    ls_token_counts_free(x->counts);
    x->counts = NULL;
    x->next_free = e->free_entries;
    e->free_entries = x;
    e->n_live--;
    e->stats.finished++;
}

/* ---- state at a depth ---- */

/* A recomputed prefix against what the cache holds of it. */
static ls_status verify_hit(ls_engine *e, entry *x, ls_error *err) {
    const ls_request *r = x->request;
    const int64_t each = e->opts.levers.page_tokens, n = x->verify.n_tokens;
    int64_t layer;
    ls_status status = LS_OK;
    status = ls_cache_slot_differs(&layer, e->cache, x->slot, e->snapshots, x->verify.snapshot, err);
    if (status == LS_OK && layer >= 0)
        status = LS_FAIL(err, LS_ERR_DEVICE,
                         "prompt %u, sample %u: the cached state behind %lld tokens differs from its recomputation in "
                         "layer %lld",
                         r->prompt_i, r->sample_i, (long long)n, (long long)layer);
    for (int64_t p = ls_engine_first_page(e, n); status == LS_OK && p * each < n; p++) {
        const int32_t cached = ls_prefix_page(e->prefix, x->verify.node, p);
        const int64_t tokens = n - p * each < each ? n - p * each : each;
        status = ls_cache_page_differs(&layer, e->cache, ls_entry_pages(e, x)[p], e->cache, cached, tokens, err);
        if (status == LS_OK && layer >= 0)
            status = LS_FAIL(err, LS_ERR_DEVICE,
                             "prompt %u, sample %u: cached keys or values of tokens %lld to %lld differ from their "
                             "recomputation in layer %lld",
                             r->prompt_i, r->sample_i, (long long)(p * each), (long long)(p * each + tokens - 1),
                             (long long)layer);
    }
    ls_prefix_unpin(e->prefix, x->verify.node);
    x->verify.node = NULL;
    e->stats.verified++;
    return status;
}

/* Gives a follower what its leader has: shared pages, a copy of the state. */
static void fork_to(ls_engine *e, const entry *leader, entry *x) {
    const int32_t *from = ls_entry_pages(e, leader);
    int32_t *to = ls_entry_pages(e, x);
    x->first_page = ls_engine_first_page(e, leader->n_cached);
    for (int64_t p = x->first_page; p < ls_engine_pages(e, leader->n_cached); p++) {
        to[p] = from[p];
        ls_ids_share(e->pages, to[p]);
    }
    LS_MOVE(e, ls_cache_copy_slot(e->cache, x->slot, e->cache, leader->slot, &e->movement));
    x->n_pages = ls_engine_pages(e, leader->n_cached);
    x->n_cached = leader->n_cached;
    x->leader = NULL;
    if (x->request->n_preempted == 0) x->request->n_hit = x->n_cached;
    e->stats.forked++;
}

static void publish_snapshot(ls_engine *e, entry *x, int64_t depth) {
    const ls_request *r = x->request;
    int32_t snapshot;
    if (r->salt != 0 || ls_prefix_has(e->prefix, r->prompt, depth)) return;
    snapshot = ls_prefix_take(e->prefix);
    if (snapshot < 0) return;
    LS_MOVE(e, ls_cache_copy_slot(e->snapshots, snapshot, e->cache, x->slot, &e->movement));
    ls_prefix_publish(e->prefix, r->prompt, depth, ls_entry_pages(e, x), snapshot);
}

/* x has reached a depth where its state is wanted. */
static ls_status catch_state(ls_engine *e, entry *x, ls_error *err) {
    const int64_t last = x->request->n_prompt - 1, every = e->opts.levers.snapshot_every;
    const int64_t late = LS_INJECTED(LS_INJECT_PREFIX_STATE_SHIFT) ? 1 : 0, depth = x->n_cached - late;
    if (x->verify.node != NULL && x->n_cached == x->verify.n_tokens) {
        const ls_status status = verify_hit(e, x, err);
        if (status != LS_OK) return status;
    }
    if (x->n_followers > 0 && x->n_cached == last) {
        for (int64_t i = 0; i < e->n_running; i++)
            if (e->running[i]->leader == x) fork_to(e, x, e->running[i]);
        x->n_followers = 0;
    }
    if (e->prefix != NULL && depth > 0 &&
        (depth == last || depth == x->branch || (every > 0 && depth < last && depth % every == 0)))
        publish_snapshot(e, x, depth);
    return LS_OK;
}

/* ---- drawing ---- */

static bool is_stop(const ls_engine *e, const ls_request *r, int32_t token) {
    for (int64_t i = 0; i < e->opts.n_stop; i++)
        if (e->stop[i] == token) return true;
    return r->stop != NULL && r->stop(r->stop_context, r->completion, r->n_completion);
}

static void accept_token(ls_engine *e, entry *x, int32_t token, float logprob) {
    ls_request *r = x->request;
    const float recorded = LS_INJECTED(LS_INJECT_LAG_ONE) && r->n_completion > 0 ? x->last_logprob : logprob;
    if (r->n_completion == 0) r->tick_first = e->stats.ticks;
    x->last_logprob = logprob;
    x->drew = true;
    if (r->weights != NULL) r->weights[r->n_completion] = e->key.weights;
    r->completion[r->n_completion] = token;
    if (x->counts != NULL) ls_token_counts_add(x->counts, token);
    r->logprob[r->n_completion++] = recorded;
    e->stats.tokens++;
    if (is_stop(e, r, token))
        ls_commit_finish(e, x, LS_FINISH_STOP);
    else if (r->n_completion == r->max_tokens)
        ls_commit_finish(e, x, LS_FINISH_LENGTH);
}

static void fail_request(ls_engine *e, entry *x) {
    ls_request *r = x->request;
    LS_FAIL(&r->error, LS_ERR_FORMAT, "prompt %u, sample %u: logits at position %lld hold NaN or no finite value",
            r->prompt_i, r->sample_i, (long long)ls_entry_total(x));
    ls_commit_finish(e, x, LS_FINISH_ERROR);
}

/* Remembers the first token of a request that has no log-probability. */
static void note_nan(ls_request *r, int64_t position) {
    if (r->error.status != LS_OK) return;
    LS_FAIL(&r->error, LS_ERR_FORMAT, "prompt %u, sample %u: token %lld: " LS_LOGPROB_NAN_TEXT, r->prompt_i,
            r->sample_i, (long long)position);
}

/* Whether all that is told of a draw is a number. */
static bool is_reported(const ls_engine *e, const ls_request *r, int64_t i) {
    if (isnan(e->logprob[i])) return false;
    if (!ls_request_weighs(r)) return true;
    return !isnan(e->of_all[i]) && !isnan(e->of_kept[i]) && !isnan(e->of_all[i] - e->of_kept[i]) &&
           (r->of_model == NULL || !isnan(e->of_model[i]));
}

ls_status ls_commit_write(ls_engine *e, int64_t n, int64_t rows, ls_error *err) {
    e->tick_weighs = false;
    for (int64_t i = 0; i < n; i++) e->tick_weighs = e->tick_weighs || ls_request_weighs(e->drawing[i]->request);
    for (int64_t i = 0, ahead = 0; i < rows; i++) {
        const ls_request *r = i < n ? e->drawing[i]->request : NULL;
        ahead = i > 0 && i < n && e->drawing[i] == e->drawing[i - 1] ? ahead + 1 : 0;
        e->sampling[i] = r != NULL && r->sampling != NULL ? *r->sampling : e->opts.sampling;
        e->draws[i] = r == NULL ? (ls_draw){0, 0, 0}
                                : (ls_draw){LS_INJECTED(LS_INJECT_SEED_BY_SLOT) ? (uint32_t)r->slot : r->prompt_i,
                                            r->sample_i, (uint32_t)(r->n_prompt + r->n_completion + ahead)};
    }
    LS_TRY(ls_penalty_write(e, n, rows, err));
    return ls_head_write(e->head, e->last_row, e->sampling, e->draws, rows, err);
}

ls_status ls_commit_draw(ls_engine *e, int64_t rows, ls_error *err) {
    const bool raw = e->opts.logprob_of == LS_LOGPROB_RAW || LS_INJECTED(LS_INJECT_TEMPERATURE);
    ls_head *head = e->head;
    LS_TRY(ls_head_take(head, e->model, e->ws->a.x, e->tick->n_rows, NULL, rows, err));
    LS_TRY(ls_penalty_apply(e, rows, false, err));
    LS_TRY(ls_head_process(head, NULL, NULL, err));
    LS_TRY(ls_penalty_apply(e, rows, true, err));
    LS_TRY(ls_head_sample(head, NULL, err));
    if (e->tick_weighs) LS_TRY(ls_head_weigh(head, err));
    if (e->opts.top > 0) LS_TRY(ls_head_top(head, raw ? head->logits : head->processed, err));
    return ls_head_logprob(head, raw ? head->logits : head->processed, NULL, false, err);
}

/* Shows a request row i of the head's block. */
static ls_status show_row(ls_engine *e, const ls_request *r, int64_t i, int64_t position, int32_t token, bool drawn,
                          ls_error *err) {
    const int64_t vocab = e->head->vocab, bytes = vocab * (int64_t)sizeof *e->row;
    const bool both = drawn && r->sees_processed;
    LS_TRY(ls_memory_take(e->device, e->row, e->head->logits + i * vocab, bytes, err));
    if (both) LS_TRY(ls_memory_take(e->device, e->processed_row, e->head->processed + i * vocab, bytes, err));
    r->see(r->see_context, position, token, e->row, both ? e->processed_row : NULL, vocab);
    return LS_OK;
}

static ls_status read_weights_of_draws(ls_engine *e, int64_t n, ls_error *err) {
    const int64_t bytes = n * (int64_t)sizeof(float);
    LS_TRY(ls_memory_read(e->device, e->kept, e->head->kept, n * (int64_t)sizeof *e->kept, err));
    LS_TRY(ls_memory_read(e->device, e->of_all, e->head->of_all, bytes, err));
    if (e->opts.weighs_model) LS_TRY(ls_memory_read(e->device, e->of_model, e->head->of_model, bytes, err));
    return ls_memory_read(e->device, e->of_kept, e->head->of_kept, bytes, err);
}

/* What the next token of the request was drawn from. */
static void tell_support(const ls_engine *e, const ls_request *r, int64_t i) {
    const float log_mass = e->of_all[i] - e->of_kept[i];
    if (r->kept != NULL) r->kept[r->n_completion] = (int32_t)e->kept[i];
    if (r->log_mass != NULL) r->log_mass[r->n_completion] = log_mass > 0.0f ? 0.0f : log_mass;
    if (r->of_all != NULL) r->of_all[r->n_completion] = e->of_all[i];
    if (r->of_kept != NULL) r->of_kept[r->n_completion] = e->of_kept[i];
    if (r->of_model != NULL) r->of_model[r->n_completion] = e->of_model[i];
}

static ls_status read_top(ls_engine *e, int64_t n, ls_error *err) {
    const int64_t count = n * e->opts.top;
    LS_TRY(ls_memory_read(e->device, e->top_id, e->head->top_id, count * (int64_t)sizeof *e->top_id, err));
    return ls_memory_read(e->device, e->top_logprob, e->head->top_logprob, count * (int64_t)sizeof *e->top_logprob,
                          err);
}

static void tell_top(const ls_engine *e, const ls_request *r, int64_t i) {
    const int64_t top = e->opts.top, at = r->n_completion * top;
    memcpy(r->top_id + at, e->top_id + i * top, (size_t)top * sizeof *r->top_id);
    memcpy(r->top_logprob + at, e->top_logprob + i * top, (size_t)top * sizeof *r->top_logprob);
}

/* The next token of x, from row i of the head's block. It may be its last. */
static ls_status accept_row(ls_engine *e, entry *x, int64_t i, ls_error *err) {
    ls_request *r = x->request;
    if (e->drawn[i] < 0) {
        fail_request(e, x);
        return LS_OK;
    }
    if (!is_reported(e, r, i)) note_nan(r, ls_entry_total(x));
    if (r->error.status != LS_OK) {
        ls_commit_finish(e, x, LS_FINISH_ERROR);
        return LS_OK;
    }
    if (r->see != NULL) LS_TRY(show_row(e, r, i, ls_entry_total(x), (int32_t)e->drawn[i], true, err));
    if (e->tick_weighs) tell_support(e, r, i);
    if (r->top_id != NULL) tell_top(e, r, i);
    accept_token(e, x, (int32_t)e->drawn[i], e->logprob[i]);
    return LS_OK;
}

/* x has had `accepted` of its drafts, and the forward computed all of them. Keys and values behind those count no
 * more; a state cannot go back, so that the spare one takes its place where a draft was refused, and what has been
 * accepted since is computed again with the next span. */
static void conclude_drafts(ls_engine *e, entry *x, int64_t n_drafts, int64_t accepted) {
    const int64_t known = x->n_cached - x->spare_cached;
    int64_t rows = n_drafts;
    if (x->spare < 0 || accepted == n_drafts || LS_INJECTED(LS_INJECT_DRAFT_STATE)) {
        x->n_cached += accepted;
    } else {
        const int32_t refused = x->slot;
        x->slot = x->request->slot = x->spare;
        x->spare = refused;
        x->n_cached = x->spare_cached;
        rows += known + accepted;
    }
    if (x->spare >= 0) ls_schedule_release_slot(e, x->spare);
    x->spare = -1;
    ls_schedule_trim(e, x, ls_entry_total(x));
    ls_draft_learn(e, x, rows, accepted);
}

/* The tokens of x from n rows on, as long as each is what the next row was computed for. */
static ls_status accept_rows(ls_engine *e, entry *x, int64_t first, int64_t n, ls_error *err) {
    const ls_request *r = x->request;
    const int32_t *drafts = e->tokens + e->last_row[first] + 1;
    int64_t i = 0;
    for (; i < n; i++) {
        LS_TRY(accept_row(e, x, first + i, err));
        if (i == n - 1 || e->drawn[first + i] != drafts[i]) break;
        e->stats.drafts_accepted++;
        if (r->finish != LS_FINISH_NONE) break;
    }
    if (n > 1 && r->finish == LS_FINISH_NONE) conclude_drafts(e, x, n - 1, i);
    return LS_OK;
}

ls_status ls_commit_accept(ls_engine *e, int64_t n, ls_error *err) {
    int64_t n_rows;
    LS_TRY(ls_memory_read(e->device, e->drawn, e->head->targets, n * (int64_t)sizeof *e->drawn, err));
    LS_TRY(ls_memory_read(e->device, e->logprob, e->head->logprob, n * (int64_t)sizeof *e->logprob, err));
    if (e->tick_weighs) LS_TRY(read_weights_of_draws(e, n, err));
    if (e->opts.top > 0) LS_TRY(read_top(e, n, err));
    LS_TRY(ls_device_wait(e->device, err));
    for (int64_t i = 0; i < n; i += n_rows) {
        n_rows = ls_drawing_rows(e, i, n);
        LS_TRY(accept_rows(e, e->drawing[i], i, n_rows, err));
    }
    ls_draft_end_tick(e);
    return LS_OK;
}

/* ---- the prompt's own log-probabilities ---- */

/* Of rows [first, first + n) of a span, in one block of the head. */
static ls_status score_block(ls_engine *e, const ls_span *span, ls_request *r, int64_t first, int64_t n,
                             ls_error *err) {
    for (int64_t i = 0; i < n; i++) {
        e->last_row[i] = span->row + first + i;
        e->drawn[i] = r->prompt[span->pos + first + i + 1];
    }
    LS_TRY(ls_head_take(e->head, e->model, e->ws->a.x, e->tick->n_rows, e->last_row, n, err));
    LS_TRY(ls_head_logprob(e->head, e->head->logits, e->drawn, false, err));
    LS_TRY(ls_memory_take(e->device, r->prompt_logprob + span->pos + first, e->head->logprob,
                          n * (int64_t)sizeof *e->logprob, err));
    for (int64_t i = 0; i < n; i++)
        if (isnan(r->prompt_logprob[span->pos + first + i])) note_nan(r, span->pos + first + i + 1);
    for (int64_t i = 0; r->see != NULL && i < n; i++)
        LS_TRY(show_row(e, r, i, span->pos + first + i + 1, (int32_t)e->drawn[i], false, err));
    return LS_OK;
}

static ls_status score_prompts(ls_engine *e, ls_error *err) {
    for (int64_t i = 0; i < e->n_spans; i++) {
        const ls_span *span = &e->spans[i];
        ls_request *r = e->span_entry[i]->request;
        int64_t n = r->n_prompt - 1 - span->pos;
        if (r->prompt_logprob == NULL) continue;
        if (n > span->n_rows) n = span->n_rows;
        for (int64_t first = 0; first < n; first += e->batch)
            LS_TRY(score_block(e, span, r, first, n - first < e->batch ? n - first : e->batch, err));
    }
    return LS_OK;
}

ls_status ls_commit_span(ls_engine *e, int64_t i, ls_error *err) {
    entry *x = e->span_entry[i];
    x->n_cached += e->spans[i].n_rows - e->span_drafts[i];
    return catch_state(e, x, err);
}

ls_status ls_commit_forward(ls_engine *e, ls_error *err) {
    int64_t n = 0;
    LS_TRY(score_prompts(e, err));
    for (int64_t i = 0; i < e->n_spans; i++) {
        const ls_span *span = &e->spans[i];
        LS_TRY(ls_commit_span(e, i, err));
        if (e->span_entry[i]->n_cached < ls_entry_total(e->span_entry[i])) continue;
        for (int64_t row = span->n_rows - 1 - e->span_drafts[i]; row < span->n_rows; row++) {
            e->last_row[n] = span->row + row;
            e->drawing[n++] = e->span_entry[i];
        }
    }
    e->stats.prefill_tokens += e->tick->n_rows - n;
    /* Requests that only wanted their prompt in the cache are done. */
    for (int64_t i = n - 1; i >= 0; i--) {
        if (e->drawing[i]->request->max_tokens > 0) continue;
        ls_commit_finish(e, e->drawing[i],
                         e->drawing[i]->request->error.status != LS_OK ? LS_FINISH_ERROR : LS_FINISH_LENGTH);
        n--;
        memmove(e->drawing + i, e->drawing + i + 1, (size_t)(n - i) * sizeof(entry *));
        memmove(e->last_row + i, e->last_row + i + 1, (size_t)(n - i) * sizeof *e->last_row);
    }
    if (n == 0) return LS_OK;
    LS_TRY(ls_commit_write(e, n, n, err));
    LS_TRY(ls_commit_draw(e, n, err));
    return ls_commit_accept(e, n, err);
}
