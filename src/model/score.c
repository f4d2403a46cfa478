/* Scoring: sequences are packed into forwards of at most batch spans, each of at most chunk tokens; the head runs over
 * blocks of rows. */
#include "model/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/attention.h"
#include "op/logprob.h"

#define BATCH_MAX 1024

/* Everything one scoring run owns. */
typedef struct scorer {
    const ls_model *model;
    ls_device *device;
    const ls_score_opts *opts;
    ls_cache *cache;
    ls_workspace *ws;
    ls_batch *batch;
    ls_head *head;
    float *h;           /* [batch * chunk][H], device memory */
    int64_t pages_each; /* page numbers per sequence */
    int32_t *pages;     /* [batch][pages_each] */
    int32_t *tokens;    /* [batch * chunk] */
    ls_span *spans;     /* [batch] */
    /* [rows of a block of the head] */
    int64_t *index, *targets;
    ls_sampling *sampling;
    ls_error *err;
} scorer;

static void scorer_deinit(scorer *s) {
    (void)ls_device_wait(s->device, NULL); /* after a failure the items' memory may still be waited for */
    free(s->sampling);
    free(s->targets);
    free(s->index);
    free(s->spans);
    free(s->tokens);
    free(s->pages);
    ls_memory_free(s->device, s->h);
    ls_head_free(s->head);
    ls_batch_free(s->batch);
    ls_workspace_free(s->ws);
    ls_cache_free(s->cache);
}

/* Pages that a sequence has in turn: with a window those in front of it take the next tokens. */
static int64_t pages_held(const ls_model_config *c, int64_t pages, int64_t chunk, int64_t page_tokens) {
    const int64_t window = ls_config_window(c), reach = window + LS_ATTENTION_BLOCK_MMA16 - 2 + chunk;
    return window == 0 ? pages : ls_min_i64(pages, (reach + page_tokens - 1) / page_tokens);
}

static ls_status scorer_init(scorer *s, const ls_score_item *items, int64_t n_items, int64_t batch) {
    const ls_model_config *c = &s->model->config;
    ls_head_opts head = {
        .dtype = s->opts->dtype, .rows_max = ls_head_block_rows(s->device, c->vocab, false), .temperature = 1.0f};
    int64_t longest = 1, chunk, rows, held;
    ls_cache_opts cache;
    for (int64_t i = 0; i < n_items; i++) {
        if (items[i].n_tokens > longest) longest = items[i].n_tokens;
        head.samples |= items[i].of == LS_LOGPROB_PROCESSED;
    }
    chunk = s->opts->chunk > 0 && s->opts->chunk < longest ? s->opts->chunk : longest;
    s->pages_each = (longest + s->opts->page_tokens - 1) / s->opts->page_tokens;
    held = pages_held(c, s->pages_each, chunk, s->opts->page_tokens);
    if (!ls_mul_i64(batch, chunk, &rows)) return LS_FAIL(s->err, LS_ERR_NOMEM, "score: batch %lld", (long long)batch);
    cache = (ls_cache_opts){
        .dtype = s->opts->dtype, .n_slots = batch, .n_pages = batch * held, .page_tokens = s->opts->page_tokens};
    LS_TRY(ls_cache_create(&s->cache, s->device, c, &cache, s->err));
    LS_TRY(ls_workspace_create(&s->ws, s->device, s->model, s->opts->dtype, rows, false, s->err));
    LS_TRY(ls_batch_create(&s->batch, s->device, rows, batch, batch * s->pages_each, s->err));
    LS_TRY(ls_head_create(&s->head, s->device, c, &head, s->err));
    LS_TRY(
        ls_memory_alloc(s->device, (void **)&s->h, rows, c->hidden * (int64_t)sizeof *s->h, "residual stream", s->err));
    LS_TRY(ls_array_alloc((void **)&s->pages, batch, s->pages_each * (int64_t)sizeof *s->pages, "page ids", s->err));
    LS_TRY(ls_array_alloc((void **)&s->tokens, rows, sizeof *s->tokens, "tokens", s->err));
    LS_TRY(ls_array_alloc((void **)&s->spans, batch, sizeof *s->spans, "spans", s->err));
    LS_TRY(ls_array_alloc((void **)&s->index, head.rows_max, sizeof *s->index, "rows", s->err));
    LS_TRY(ls_array_alloc((void **)&s->targets, head.rows_max, sizeof *s->targets, "rows", s->err));
    LS_TRY(ls_array_alloc((void **)&s->sampling, head.rows_max, sizeof *s->sampling, "rows", s->err));
    for (int64_t i = 0; i < batch * s->pages_each; i++)
        s->pages[i] = (int32_t)(i / s->pages_each * held + i % s->pages_each % held);
    return LS_OK;
}

/* Rows [t, t + n) of a span: row t predicts token pos + t + 1. */
static ls_status score_rows(scorer *s, const ls_span *span, const ls_score_item *item, int64_t t, int64_t n) {
    int64_t *index = s->index, *targets = s->targets;
    ls_head *head = s->head;
    for (int64_t i = 0; i < n; i++) {
        index[i] = span->row + t + i;
        targets[i] = item->tokens[span->pos + t + i + 1];
        s->sampling[i] = item->sampling;
    }
    LS_TRY(ls_head_take(head, s->model, s->ws->a.x, s->batch->n_rows, index, n, s->err));
    if (item->of == LS_LOGPROB_PROCESSED) LS_TRY(ls_head_process(head, s->sampling, NULL, s->err));
    LS_TRY(ls_head_logprob(head, head->logits, targets, false, s->err));
    return ls_memory_read(s->device, item->logprob + span->pos + t, head->logprob, n * (int64_t)sizeof(float), s->err);
}

/* The sequence's last row predicts nothing. */
static ls_status score_span(scorer *s, const ls_span *span, const ls_score_item *item) {
    const int64_t end = span->pos + span->n_rows < item->n_tokens ? span->n_rows : item->n_tokens - 1 - span->pos;
    for (int64_t t = 0; t < end; t += s->head->opts.rows_max)
        LS_TRY(score_rows(s, span, item, t, end - t < s->head->opts.rows_max ? end - t : s->head->opts.rows_max));
    return LS_OK;
}

/* Lays out the next chunk of every item that has tokens left from pos on; owner[i] is span i's. Returns their
 * number. */
static int64_t lay_out_items(scorer *s, const ls_score_item *items, int64_t n, int64_t pos, int64_t *owner) {
    int64_t rows = 0, live = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t left = items[i].n_tokens - pos, chunk = s->opts->chunk > 0 ? s->opts->chunk : left;
        ls_span *span = &s->spans[live];
        if (left <= 0) continue;
        *span = (ls_span){rows, left < chunk ? left : chunk, pos, (int32_t)i, i * s->pages_each};
        memcpy(s->tokens + rows, items[i].tokens + pos, (size_t)span->n_rows * sizeof(int32_t));
        rows += span->n_rows;
        owner[live++] = i;
    }
    return live;
}

static ls_status score_batch(scorer *s, const ls_score_item *items, int64_t n) {
    const ls_forward f = {s->model, s->cache, s->ws, s->batch, s->h, 0, false};
    int64_t owner[BATCH_MAX], live;
    for (int64_t pos = 0; (live = lay_out_items(s, items, n, pos, owner)) > 0;
         pos += s->opts->chunk > 0 ? s->opts->chunk : INT64_MAX / 2) {
        LS_TRY(ls_batch_write(s->batch, s->tokens, s->spans, live, s->pages, n * s->pages_each, s->err));
        LS_TRY(ls_model_forward(&f, NULL, NULL, s->err));
        for (int64_t i = 0; i < live; i++) LS_TRY(score_span(s, &s->spans[i], &items[owner[i]]));
    }
    return ls_device_wait(s->device, s->err);
}

/* Every value is a number; items[0] is sequence `first` of the caller's. */
static ls_status check_values(const ls_score_item *items, int64_t n, int64_t first, ls_error *err) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t + 1 < items[i].n_tokens; t++)
            if (isnan(items[i].logprob[t]))
                return LS_FAIL(err, LS_ERR_FORMAT, "sequence %lld, token %lld: " LS_LOGPROB_NAN_TEXT,
                               (long long)(first + i), (long long)(t + 1));
    return LS_OK;
}

ls_status ls_score(const ls_model *model, ls_device *device, const ls_score_opts *opts, ls_score_item *items,
                   int64_t n_items, ls_error *err) {
    return ls_score_watched(model, device, opts, items, n_items, NULL, NULL, err);
}

ls_status ls_score_watched(const ls_model *model, ls_device *device, const ls_score_opts *opts, ls_score_item *items,
                           int64_t n_items, ls_score_progress progress, void *context, ls_error *err) {
    scorer s = {.model = model, .device = device, .opts = opts, .err = err};
    const int64_t batch = opts->batch < n_items ? opts->batch : n_items;
    ls_status status;
    if (n_items == 0) return LS_OK;
    if (opts->batch < 1 || opts->batch > BATCH_MAX || opts->chunk < 0)
        return LS_FAIL(err, LS_ERR_ARG, "score: batch %lld is not in 1..1024 or chunk %lld is negative",
                       (long long)opts->batch, (long long)opts->chunk);
    LS_TRY_DONE(scorer_init(&s, items, n_items, batch));
    for (int64_t i = 0; i < n_items; i += batch) {
        const int64_t n = n_items - i < batch ? n_items - i : batch;
        LS_TRY_DONE(score_batch(&s, items + i, n));
        LS_TRY_DONE(check_values(items + i, n, i, err));
        if (progress != NULL) progress(context, i + n, n_items);
    }
done:
    scorer_deinit(&s);
    return status;
}
