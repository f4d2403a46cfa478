/* Scoring: sequences are packed into forwards of at most batch spans, each of at most chunk tokens; the head runs over
 * blocks of rows, so that logits of long sequences never exist all at once. */
#include "model/jamba_score.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "num/expf.h"
#include "op/logprob.h"

#define HEAD_ROWS 64

typedef struct process_context {
    ls_isa isa;
    float *logits;
    int64_t vocab;
    const ls_head_row *rows;
    int32_t *sort_space;
} process_context;

static void process_rows(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const process_context *p = context;
    (void)thread_i;
    for (int64_t r = begin; r < end; r++) {
        float *row = p->logits + r * p->vocab;
        if (p->rows[r].of == LS_LOGPROB_PROCESSED &&
            ls_sampling_process(p->isa, row, row, p->vocab, p->rows[r].sampling, p->sort_space + 2 * r * p->vocab) == 0)
            row[0] = ls_from_bits(LS_NAN_BITS); /* nothing could be drawn: the row's log-probability is NaN */
    }
}

ls_status ls_head_logprob(ls_queue *queue, float *logits, int64_t vocab, const ls_head_row *rows, int64_t n,
                          int64_t *targets, int32_t *sort_space, float *logprob, ls_error *err) {
    process_context process = {queue->isa, logits, vocab, rows, sort_space};
    const ls_logprob_args args = {.logits = logits,
                                  .dtype = LS_F32,
                                  .rows = n,
                                  .vocab = vocab,
                                  .row_stride = vocab,
                                  .targets = targets,
                                  .ignore_index = -1,
                                  .logprob = logprob};
    for (int64_t r = 0; r < n; r++) targets[r] = rows[r].target;
    ls_parallel_for(queue->pool, n, 1, process_rows, &process);
    return ls_logprob(queue, &args, err);
}

/* Everything one scoring run owns. */
typedef struct scorer {
    const ls_jamba *model;
    ls_queue *queue;
    const ls_score_opts *opts;
    ls_cache *cache;
    ls_workspace *ws;
    int64_t pages_each; /* pages per sequence */
    int32_t *pages;     /* [batch][pages_each] */
    int32_t *tokens;    /* [batch * chunk] */
    ls_span *spans;     /* [batch] */
    float *logits;      /* [HEAD_ROWS][V] */
    int32_t *sort_space;
    ls_error *err;
} scorer;

static void scorer_deinit(scorer *s) {
    free(s->sort_space);
    free(s->logits);
    free(s->spans);
    free(s->tokens);
    free(s->pages);
    ls_workspace_free(s->ws);
    ls_cache_free(s->cache);
}

static ls_status scorer_init(scorer *s, const ls_score_item *items, int64_t n_items, int64_t batch) {
    const ls_jamba_config *c = &s->model->config;
    int64_t longest = 1, chunk, rows;
    bool processed = false;
    ls_cache_opts cache;
    ls_status status;
    for (int64_t i = 0; i < n_items; i++) {
        if (items[i].n_tokens > longest) longest = items[i].n_tokens;
        processed |= items[i].of == LS_LOGPROB_PROCESSED;
    }
    chunk = s->opts->chunk > 0 && s->opts->chunk < longest ? s->opts->chunk : longest;
    s->pages_each = (longest + s->opts->page_tokens - 1) / s->opts->page_tokens;
    if (!ls_mul_i64(batch, chunk, &rows)) return LS_FAIL(s->err, LS_ERR_NOMEM, "score: batch %lld", (long long)batch);
    cache = (ls_cache_opts){.dtype = s->opts->dtype,
                            .n_slots = batch,
                            .n_pages = batch * s->pages_each,
                            .page_tokens = s->opts->page_tokens};
    LS_TRY(ls_cache_create(&s->cache, c, &cache, s->err));
    LS_TRY(ls_workspace_create(&s->ws, c, s->opts->dtype, rows, false, s->err));
    LS_TRY(ls_array_alloc((void **)&s->pages, cache.n_pages, sizeof *s->pages, "page ids", s->err));
    LS_TRY(ls_array_alloc((void **)&s->tokens, rows, sizeof *s->tokens, "tokens", s->err));
    LS_TRY(ls_array_alloc((void **)&s->spans, batch, sizeof *s->spans, "spans", s->err));
    LS_TRY(ls_array_alloc((void **)&s->logits, HEAD_ROWS * (int64_t)c->vocab, sizeof *s->logits, "logits", s->err));
    if (processed)
        LS_TRY(ls_array_alloc((void **)&s->sort_space, HEAD_ROWS * 2 * (int64_t)c->vocab, sizeof *s->sort_space,
                              "sort space", s->err));
    for (int64_t i = 0; i < cache.n_pages; i++) s->pages[i] = (int32_t)i;
done:
    return status;
}

/* The head over one span's rows: row t predicts token pos + t + 1; the sequence's last row predicts nothing. */
static ls_status score_span(scorer *s, const ls_span *span, const ls_score_item *item) {
    const ls_jamba_config *c = &s->model->config;
    const int64_t row_bytes = c->hidden * ls_dtype_bytes(s->opts->dtype);
    const int64_t end = span->pos + span->n_rows < item->n_tokens ? span->n_rows : item->n_tokens - 1 - span->pos;
    int64_t targets[HEAD_ROWS];
    ls_head_row rows[HEAD_ROWS];
    ls_status status = LS_OK;
    for (int64_t t = 0; t < end; t += HEAD_ROWS) {
        const int64_t n = end - t < HEAD_ROWS ? end - t : HEAD_ROWS;
        const uint8_t *x = (const uint8_t *)s->ws->x + (span->row + t) * row_bytes;
        for (int64_t i = 0; i < n; i++) {
            rows[i].target = item->tokens[span->pos + t + i + 1];
            rows[i].of = item->of;
            rows[i].sampling = &item->sampling;
        }
        LS_TRY(ls_jamba_logits(s->model, s->queue, x, s->opts->dtype, n, s->logits, s->err));
        LS_TRY(ls_head_logprob(s->queue, s->logits, c->vocab, rows, n, targets, s->sort_space,
                               item->logprob + span->pos + t, s->err));
    }
done:
    return status;
}

static ls_status score_batch(scorer *s, const ls_score_item *items, int64_t n) {
    int64_t pos = 0, live;
    ls_status status = LS_OK;
    do {
        int64_t rows = 0;
        int64_t owner[1024];
        live = 0;
        for (int64_t i = 0; i < n; i++) {
            const int64_t left = items[i].n_tokens - pos, chunk = s->opts->chunk > 0 ? s->opts->chunk : left;
            ls_span *span = &s->spans[live];
            if (left <= 0) continue;
            span->row = rows;
            span->n_rows = left < chunk ? left : chunk;
            span->pos = pos;
            span->slot = (int32_t)i;
            span->pages = s->pages + i * s->pages_each;
            memcpy(s->tokens + rows, items[i].tokens + pos, (size_t)span->n_rows * sizeof(int32_t));
            rows += span->n_rows;
            owner[live++] = i;
        }
        if (live == 0) break;
        LS_TRY(ls_jamba_forward(s->model, s->queue, s->cache, s->ws, s->tokens, s->spans, live, s->err));
        for (int64_t i = 0; i < live; i++) LS_TRY(score_span(s, &s->spans[i], &items[owner[i]]));
        pos += s->opts->chunk > 0 ? s->opts->chunk : INT64_MAX / 2;
    } while (live > 0);
done:
    return status;
}

ls_status ls_score(const ls_jamba *model, ls_queue *queue, const ls_score_opts *opts, ls_score_item *items,
                   int64_t n_items, ls_error *err) {
    scorer s = {.model = model, .queue = queue, .opts = opts, .err = err};
    const int64_t batch = opts->batch < n_items ? opts->batch : n_items;
    ls_status status;
    if (n_items == 0) return LS_OK;
    if (opts->batch < 1 || opts->batch > 1024 || opts->chunk < 0)
        return LS_FAIL(err, LS_ERR_ARG, "score: batch %lld is not in 1..1024 or chunk %lld is negative",
                       (long long)opts->batch, (long long)opts->chunk);
    LS_TRY(scorer_init(&s, items, n_items, batch));
    for (int64_t i = 0; i < n_items; i += batch)
        LS_TRY(score_batch(&s, items + i, n_items - i < batch ? n_items - i : batch));
done:
    scorer_deinit(&s);
    return status;
}
