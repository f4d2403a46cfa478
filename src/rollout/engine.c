/* One tick: every running sequence contributes a span (a chunk of its prompt, or its last token), one forward runs over
 * all spans, and sequences whose prompt is consumed draw their next token. Finished ones make room for the next. */
#include "rollout/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *ls_finish_name(ls_finish finish) {
    switch (finish) {
        case LS_FINISH_NONE: return "none";
        case LS_FINISH_STOP: return "stop";
        case LS_FINISH_LENGTH: return "length";
    }
    return "unknown";
}

/* A place in the batch. Its slot and pages are its own for the whole run. */
typedef struct lane {
    ls_request *request; /* NULL when free */
    int64_t n_cached;    /* tokens whose state is in the cache */
    int32_t slot;
    int32_t *pages;
} lane;

typedef struct engine {
    const ls_jamba *model;
    ls_queue *queue;
    const ls_engine_opts *opts;
    int64_t batch, rows_max;
    ls_cache *cache;
    ls_workspace *ws;
    lane *lanes;         /* [batch] */
    int32_t *page_ids;   /* [batch][pages each] */
    int32_t *tokens;     /* [rows_max] */
    ls_span *spans;      /* [batch] */
    lane **span_lane;    /* [batch] */
    lane **drawing;      /* [batch]: lanes that draw in this tick */
    uint8_t *x;          /* [batch][H]: their last rows */
    float *logits;       /* [batch][V] */
    float *processed;    /* [batch][V] */
    int32_t *sort_space; /* [batch][2 V] */
    int32_t *drawn;      /* [batch] */
    float *logprob;      /* [batch] */
    int64_t *targets;    /* [batch] */
    ls_head_row *rows;   /* [batch] */
    int64_t n_done, n_tokens;
    ls_error *err;
} engine;

static void engine_deinit(engine *e) {
    free(e->rows);
    free(e->targets);
    free(e->logprob);
    free(e->drawn);
    free(e->sort_space);
    free(e->processed);
    free(e->logits);
    free(e->x);
    free(e->drawing);
    free(e->span_lane);
    free(e->spans);
    free(e->tokens);
    free(e->page_ids);
    free(e->lanes);
    ls_workspace_free(e->ws);
    ls_cache_free(e->cache);
}

static ls_status check_requests(const engine *e, const ls_request *requests, int64_t n) {
    const int32_t vocab = e->model->config.vocab;
    for (int64_t i = 0; i < n; i++) {
        const ls_request *r = &requests[i];
        if (r->n_prompt < 1) return LS_FAIL(e->err, LS_ERR_ARG, "request %lld: the prompt is empty", (long long)i);
        if (r->max_tokens < 1)
            return LS_FAIL(e->err, LS_ERR_ARG, "request %lld: max_tokens %lld is not positive", (long long)i,
                           (long long)r->max_tokens);
        for (int64_t t = 0; t < r->n_prompt; t++)
            if (r->prompt[t] < 0 || r->prompt[t] >= vocab)
                return LS_FAIL(e->err, LS_ERR_ARG, "request %lld: prompt token %lld is %d, the vocabulary is 0..%d",
                               (long long)i, (long long)t, r->prompt[t], vocab - 1);
    }
    return LS_OK;
}

static ls_status engine_init(engine *e, const ls_request *requests, int64_t n_requests) {
    const ls_jamba_config *c = &e->model->config;
    const ls_engine_opts *o = e->opts;
    const int64_t b = e->batch, elem = ls_dtype_bytes(o->dtype);
    int64_t longest = 1, longest_prompt = 1, pages_each, chunk;
    ls_cache_opts cache;
    ls_status status;
    for (int64_t i = 0; i < n_requests; i++) {
        int64_t total;
        if (!ls_add_i64(requests[i].n_prompt, requests[i].max_tokens, &total))
            return LS_FAIL(e->err, LS_ERR_NOMEM, "request %lld: length does not fit", (long long)i);
        if (total > longest) longest = total;
        if (requests[i].n_prompt > longest_prompt) longest_prompt = requests[i].n_prompt;
    }
    chunk = o->chunk > 0 && o->chunk < longest_prompt ? o->chunk : longest_prompt;
    if (!ls_mul_i64(b, chunk, &e->rows_max)) return LS_FAIL(e->err, LS_ERR_NOMEM, "batch %lld", (long long)b);
    pages_each = (longest + o->page_tokens - 1) / o->page_tokens;
    cache.dtype = o->dtype;
    cache.n_slots = o->n_slots > 0 ? o->n_slots : b;
    cache.n_pages = b * pages_each;
    cache.page_tokens = o->page_tokens;
    LS_TRY(ls_cache_create(&e->cache, c, &cache, e->err));
    LS_TRY(ls_workspace_create(&e->ws, c, o->dtype, e->rows_max, e->err));
    LS_TRY(ls_array_alloc((void **)&e->lanes, b, sizeof *e->lanes, "lanes", e->err));
    LS_TRY(ls_array_alloc((void **)&e->page_ids, cache.n_pages, sizeof *e->page_ids, "page ids", e->err));
    LS_TRY(ls_array_alloc((void **)&e->tokens, e->rows_max, sizeof *e->tokens, "tokens", e->err));
    LS_TRY(ls_array_alloc((void **)&e->spans, b, sizeof *e->spans, "spans", e->err));
    LS_TRY(ls_array_alloc((void **)&e->span_lane, b, sizeof *e->span_lane, "spans", e->err));
    LS_TRY(ls_array_alloc((void **)&e->drawing, b, sizeof *e->drawing, "lanes", e->err));
    LS_TRY(ls_array_alloc((void **)&e->x, b, c->hidden * elem, "head rows", e->err));
    LS_TRY(ls_array_alloc((void **)&e->logits, b * c->vocab, sizeof(float), "logits", e->err));
    LS_TRY(ls_array_alloc((void **)&e->processed, b * c->vocab, sizeof(float), "logits", e->err));
    LS_TRY(ls_array_alloc((void **)&e->sort_space, b * c->vocab, 2 * sizeof(int32_t), "sort space", e->err));
    LS_TRY(ls_array_alloc((void **)&e->drawn, b, sizeof *e->drawn, "tokens", e->err));
    LS_TRY(ls_array_alloc((void **)&e->logprob, b, sizeof *e->logprob, "logprobs", e->err));
    LS_TRY(ls_array_alloc((void **)&e->targets, b, sizeof *e->targets, "targets", e->err));
    LS_TRY(ls_array_alloc((void **)&e->rows, b, sizeof *e->rows, "head rows", e->err));
    for (int64_t i = 0; i < cache.n_pages; i++) e->page_ids[i] = (int32_t)i;
    for (int64_t i = 0; i < b; i++) {
        e->lanes[i].slot = o->slots != NULL ? o->slots[i] : (int32_t)i;
        e->lanes[i].pages = e->page_ids + i * pages_each;
    }
done:
    return status;
}

/* Token number i of the request's sequence: prompt, then completion. */
static int32_t token_at(const ls_request *r, int64_t i) {
    return i < r->n_prompt ? r->prompt[i] : r->completion[i - r->n_prompt];
}

/* Lays out one forward; returns the number of spans. */
static int64_t plan_tick(engine *e) {
    int64_t n_spans = 0, rows = 0;
    for (int64_t i = 0; i < e->batch; i++) {
        lane *l = &e->lanes[i];
        ls_span *span = &e->spans[n_spans];
        int64_t n;
        if (l->request == NULL) continue;
        n = l->request->n_prompt + l->request->n_completion - l->n_cached;
        if (e->opts->chunk > 0 && n > e->opts->chunk) n = e->opts->chunk;
        span->row = rows;
        span->n_rows = n;
        span->pos = l->n_cached;
        span->slot = l->slot;
        span->pages = l->pages;
        for (int64_t t = 0; t < n; t++) e->tokens[rows + t] = token_at(l->request, l->n_cached + t);
        e->span_lane[n_spans++] = l;
        rows += n;
    }
    return n_spans;
}

static void draw_rows(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    engine *e = context;
    const int64_t vocab = e->model->config.vocab;
    (void)thread_i;
    for (int64_t i = begin; i < end; i++) {
        const ls_request *r = e->drawing[i]->request;
        const ls_draw draw = {r->prompt_i, r->sample_i, (uint32_t)(r->n_prompt + r->n_completion)};
        float *processed = e->processed + i * vocab;
        const int64_t kept = ls_sampling_process(e->queue->isa, processed, e->logits + i * vocab, vocab,
                                                 &e->opts->sampling, e->sort_space + 2 * i * vocab);
        e->drawn[i] = kept > 0 ? ls_sample(e->queue->isa, processed, vocab, &e->opts->sampling, &draw) : -1;
    }
}

/* Draws the next token of every lane in drawing and records its log-probability. */
static ls_status draw_tokens(engine *e, int64_t n) {
    const int64_t vocab = e->model->config.vocab;
    ls_status status;
    LS_TRY(ls_jamba_logits(e->model, e->queue, e->x, e->opts->dtype, n, e->logits, e->err));
    ls_parallel_for(e->queue->pool, n, 1, draw_rows, e);
    for (int64_t i = 0; i < n; i++) {
        if (e->drawn[i] < 0) {
            const ls_request *r = e->drawing[i]->request;
            return LS_FAIL(e->err, LS_ERR_FORMAT,
                           "prompt %u, sample %u: logits at position %lld hold NaN or no finite value", r->prompt_i,
                           r->sample_i, (long long)(r->n_prompt + r->n_completion));
        }
        e->rows[i].target = e->drawn[i];
        e->rows[i].of = e->opts->logprob_of;
        e->rows[i].sampling = &e->opts->sampling;
    }
    LS_TRY(ls_head_logprob(e->queue, e->logits, vocab, e->rows, n, e->targets, e->sort_space, e->logprob, e->err));
done:
    return status;
}

static bool is_stop(const ls_engine_opts *o, int32_t token) {
    for (int64_t i = 0; i < o->n_stop; i++)
        if (o->stop[i] == token) return true;
    return false;
}

static void accept_token(engine *e, lane *l, int32_t token, float logprob) {
    ls_request *r = l->request;
    r->completion[r->n_completion] = token;
    r->logprob[r->n_completion++] = logprob;
    e->n_tokens++;
    if (is_stop(e->opts, token))
        r->finish = LS_FINISH_STOP;
    else if (r->n_completion == r->max_tokens)
        r->finish = LS_FINISH_LENGTH;
    if (r->finish == LS_FINISH_NONE) return;
    l->request = NULL;
    e->n_done++;
}

static ls_status run_tick(engine *e) {
    const int64_t row_bytes = e->model->config.hidden * ls_dtype_bytes(e->opts->dtype);
    const int64_t n_spans = plan_tick(e);
    int64_t n = 0;
    ls_status status;
    LS_TRY(ls_jamba_forward(e->model, e->queue, e->cache, e->ws, e->tokens, e->spans, n_spans, e->err));
    for (int64_t i = 0; i < n_spans; i++) {
        lane *l = e->span_lane[i];
        const int64_t last = e->spans[i].row + e->spans[i].n_rows - 1;
        l->n_cached += e->spans[i].n_rows;
        if (l->n_cached < l->request->n_prompt + l->request->n_completion) continue;
        memcpy(e->x + n * row_bytes, (const uint8_t *)e->ws->x + last * row_bytes, (size_t)row_bytes);
        e->drawing[n++] = l;
    }
    if (n == 0) return LS_OK;
    LS_TRY(draw_tokens(e, n));
    for (int64_t i = 0; i < n; i++) accept_token(e, e->drawing[i], e->drawn[i], e->logprob[i]);
done:
    return status;
}

ls_status ls_engine_run(const ls_jamba *model, ls_queue *queue, const ls_engine_opts *opts, ls_request *requests,
                        int64_t n_requests, ls_error *err) {
    engine e = {.model = model, .queue = queue, .opts = opts, .err = err};
    int64_t n_admitted = 0;
    ls_status status;
    if (n_requests == 0) return LS_OK;
    if (opts->batch < 1 || opts->batch > LS_BATCH_MAX || opts->chunk < 0)
        return LS_FAIL(err, LS_ERR_ARG, "batch %lld is not in 1..%d or chunk %lld is negative", (long long)opts->batch,
                       LS_BATCH_MAX, (long long)opts->chunk);
    e.batch = opts->batch < n_requests ? opts->batch : n_requests;
    LS_TRY(ls_sampling_check(&opts->sampling, err));
    LS_TRY(check_requests(&e, requests, n_requests));
    LS_TRY(engine_init(&e, requests, n_requests));
    while (e.n_done < n_requests) {
        for (int64_t i = 0; i < e.batch && n_admitted < n_requests; i++) {
            lane *l = &e.lanes[i];
            if (l->request != NULL) continue;
            l->request = &requests[opts->order != NULL ? opts->order[n_admitted] : n_admitted];
            l->request->n_completion = 0;
            l->request->finish = LS_FINISH_NONE;
            l->n_cached = 0;
            n_admitted++;
        }
        LS_TRY(run_tick(&e));
        if (opts->progress != NULL) opts->progress(opts->progress_context, e.n_done, n_requests, e.n_tokens);
    }
done:
    engine_deinit(&e);
    return status;
}
