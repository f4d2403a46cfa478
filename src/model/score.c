/* Scoring: sequences in the order of their lengths are packed into forwards of at most batch spans, each of at most
 * chunk tokens; the head runs over blocks of rows. */
#define _GNU_SOURCE
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
    ls_score_item *items; /* of the caller */
    int64_t *order;       /* [items]: their numbers, the longest first */
    float *h;             /* [rows][H], device memory */
    int32_t *pages;       /* [pages] numbers of a batch's sequences, one behind the other */
    int64_t *pages_at;    /* [batch]: where those of each begin */
    int32_t *tokens;      /* [rows] */
    ls_span *spans;       /* [batch] */
    /* [rows of a block of the head] */
    int64_t *index, *targets;
    ls_sampling *sampling;
    /* [rows of a block][words], NULL where nobody wants supports; `support` is device memory. */
    uint32_t *support, *host_support;
    ls_error *err;
} scorer;

static void scorer_deinit(scorer *s) {
    (void)ls_device_wait(s->device, NULL); /* after a failure the items' memory may still be waited for */
    ls_memory_free(s->device, s->support);
    free(s->host_support);
    free(s->sampling);
    free(s->targets);
    free(s->index);
    free(s->spans);
    free(s->tokens);
    free(s->pages_at);
    free(s->pages);
    free(s->order);
    ls_memory_free(s->device, s->h);
    ls_head_free(s->head);
    ls_batch_free(s->batch);
    ls_workspace_free(s->ws);
    ls_cache_free(s->cache);
}

/* What a batch takes: sequences, rows of a forward, pages that they have, and numbers of pages. */
typedef struct extent {
    int64_t n, rows, held, pages;
} extent;

static int64_t chunk_of(const scorer *s, int64_t n_tokens) {
    return s->opts->chunk > 0 ? ls_min_i64(s->opts->chunk, n_tokens) : n_tokens;
}

static int64_t pages_of(const scorer *s, int64_t n_tokens) {
    return (n_tokens + s->opts->page_tokens - 1) / s->opts->page_tokens;
}

/* Pages that a sequence has in turn: with a window those in front of it take the next tokens. */
static int64_t pages_held(const scorer *s, int64_t n_tokens) {
    const int64_t window = ls_config_window(&s->model->config), pages = pages_of(s, n_tokens);
    const int64_t reach = window + LS_ATTENTION_BLOCK_MMA16 - 2 + chunk_of(s, n_tokens);
    return window == 0 ? pages : ls_min_i64(pages, pages_of(s, reach));
}

/* The batch that begins with the item at `first` of the order. */
static extent extent_of_batch(const scorer *s, int64_t n_items, int64_t first) {
    extent e = {0};
    for (; e.n < s->opts->batch && first + e.n < n_items; e.n++) {
        const int64_t n_tokens = s->items[s->order[first + e.n]].n_tokens, rows = e.rows + chunk_of(s, n_tokens);
        if (e.n > 0 && s->opts->rows > 0 && rows > s->opts->rows) break;
        e.rows = rows;
        e.held += pages_held(s, n_tokens);
        e.pages += pages_of(s, n_tokens);
    }
    return e;
}

static extent extent_of_all(const scorer *s, int64_t n_items) {
    extent most = {1, 1, 1, 1};
    for (int64_t i = 0; i < n_items;) {
        const extent e = extent_of_batch(s, n_items, i);
        most = (extent){ls_max_i64(most.n, e.n), ls_max_i64(most.rows, e.rows), ls_max_i64(most.held, e.held),
                        ls_max_i64(most.pages, e.pages)};
        i += e.n;
    }
    return most;
}

/* Of equal lengths the first item is first. */
static int compare_items(const void *left, const void *right, void *context) {
    const ls_score_item *items = context;
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    if (items[a].n_tokens != items[b].n_tokens) return items[a].n_tokens > items[b].n_tokens ? -1 : 1;
    return a < b ? -1 : 1;
}

static ls_status put_in_order(scorer *s, int64_t n_items) {
    LS_TRY(ls_array_alloc((void **)&s->order, n_items, sizeof *s->order, "sequences", s->err));
    for (int64_t i = 0; i < n_items; i++) s->order[i] = i;
    qsort_r(s->order, (size_t)n_items, sizeof *s->order, compare_items, s->items);
    return LS_OK;
}

static ls_status make_supports(scorer *s, int64_t n_items, int64_t rows) {
    const int64_t row_bytes = ls_support_words(s->model->config.vocab) * (int64_t)sizeof *s->support;
    bool are_wanted = false;
    for (int64_t i = 0; i < n_items; i++) {
        if (s->items[i].supports.list == NULL) continue;
        LS_ASSERT(s->items[i].of == LS_LOGPROB_PROCESSED, "supports of what was not processed");
        are_wanted = true;
    }
    if (!are_wanted) return LS_OK;
    LS_TRY(ls_memory_alloc(s->device, (void **)&s->support, rows, row_bytes, "supports", s->err));
    return ls_array_alloc((void **)&s->host_support, rows, row_bytes, "supports", s->err);
}

static ls_status scorer_init(scorer *s, int64_t n_items) {
    const ls_model_config *c = &s->model->config;
    ls_head_opts head = {
        .dtype = s->opts->dtype, .rows_max = ls_head_block_rows(s->device, c->vocab, false), .temperature = 1.0f};
    extent most;
    ls_cache_opts cache;
    LS_TRY(put_in_order(s, n_items));
    for (int64_t i = 0; i < n_items; i++) head.samples |= s->items[i].of == LS_LOGPROB_PROCESSED;
    most = extent_of_all(s, n_items);
    cache = (ls_cache_opts){
        .dtype = s->opts->dtype, .n_slots = most.n, .n_pages = most.held, .page_tokens = s->opts->page_tokens};
    LS_TRY(ls_cache_create(&s->cache, s->device, c, &cache, s->err));
    LS_TRY(ls_workspace_create(&s->ws, s->device, s->model, s->opts->dtype, most.rows, false, s->err));
    LS_TRY(ls_batch_create(&s->batch, s->device, most.rows, most.n, most.pages, s->err));
    LS_TRY(ls_head_create(&s->head, s->device, c, &head, s->err));
    LS_TRY(ls_memory_alloc(s->device, (void **)&s->h, most.rows, c->hidden * (int64_t)sizeof *s->h, "residual stream",
                           s->err));
    LS_TRY(ls_array_alloc((void **)&s->pages, most.pages, sizeof *s->pages, "page ids", s->err));
    LS_TRY(ls_array_alloc((void **)&s->pages_at, most.n, sizeof *s->pages_at, "page ids", s->err));
    LS_TRY(ls_array_alloc((void **)&s->tokens, most.rows, sizeof *s->tokens, "tokens", s->err));
    LS_TRY(ls_array_alloc((void **)&s->spans, most.n, sizeof *s->spans, "spans", s->err));
    LS_TRY(make_supports(s, n_items, head.rows_max));
    LS_TRY(ls_array_alloc((void **)&s->index, head.rows_max, sizeof *s->index, "rows", s->err));
    LS_TRY(ls_array_alloc((void **)&s->targets, head.rows_max, sizeof *s->targets, "rows", s->err));
    return ls_array_alloc((void **)&s->sampling, head.rows_max, sizeof *s->sampling, "rows", s->err);
}

/* Of the block: rows [row, row + n) of the sequence. */
static ls_status take_supports(scorer *s, const ls_score_supports *to, int64_t row, int64_t n) {
    const int64_t words = ls_support_words(s->head->vocab);
    if (to->list == NULL || row + n <= to->begin) return LS_OK;
    LS_TRY(ls_head_support(s->head, s->support, s->host_support, s->err));
    for (int64_t i = ls_max_i64(to->begin - row, 0); i < n; i++)
        LS_TRY(ls_supports_put(to->list, to->row + row + i, s->host_support + i * words, s->err));
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
    LS_TRY(take_supports(s, &item->supports, span->pos + t, n));
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

/* Pages of a batch's sequences: order [n] are their items. */
static void lay_out_pages(scorer *s, const int64_t *order, int64_t n) {
    int64_t at = 0, first = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t n_tokens = s->items[order[i]].n_tokens, held = pages_held(s, n_tokens);
        s->pages_at[i] = at;
        for (int64_t p = 0; p < pages_of(s, n_tokens); p++) s->pages[at++] = (int32_t)(first + p % held);
        first += held;
    }
}

/* Lays out the next chunk of every item that has tokens left from pos on; owner[i] is span i's. Returns their
 * number. */
static int64_t lay_out_items(scorer *s, const int64_t *order, int64_t n, int64_t pos, int64_t *owner) {
    int64_t rows = 0, live = 0;
    for (int64_t i = 0; i < n; i++) {
        const ls_score_item *item = &s->items[order[i]];
        const int64_t left = item->n_tokens - pos;
        ls_span *span = &s->spans[live];
        if (left <= 0) continue;
        *span = (ls_span){rows, chunk_of(s, left), pos, (int32_t)i, s->pages_at[i]};
        memcpy(s->tokens + rows, item->tokens + pos, (size_t)span->n_rows * sizeof(int32_t));
        rows += span->n_rows;
        owner[live++] = order[i];
    }
    return live;
}

static ls_status score_batch(scorer *s, const int64_t *order, const extent *e) {
    const ls_forward f = {s->model, s->cache, s->ws, s->batch, s->h, 0, false};
    int64_t owner[BATCH_MAX], live;
    lay_out_pages(s, order, e->n);
    for (int64_t pos = 0; (live = lay_out_items(s, order, e->n, pos, owner)) > 0;
         pos += s->opts->chunk > 0 ? s->opts->chunk : INT64_MAX / 2) {
        LS_TRY(ls_batch_write(s->batch, s->tokens, s->spans, live, s->pages, e->pages, s->err));
        LS_TRY(ls_model_forward(&f, NULL, NULL, s->err));
        for (int64_t i = 0; i < live; i++) LS_TRY(score_span(s, &s->spans[i], &s->items[owner[i]]));
    }
    return ls_device_wait(s->device, s->err);
}

/* Every value is a number. */
static ls_status check_values(const scorer *s, const int64_t *order, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const ls_score_item *item = &s->items[order[i]];
        for (int64_t t = 0; t + 1 < item->n_tokens; t++)
            if (isnan(item->logprob[t]))
                return LS_FAIL(s->err, LS_ERR_FORMAT, "sequence %lld, token %lld: " LS_LOGPROB_NAN_TEXT,
                               (long long)order[i], (long long)(t + 1));
    }
    return LS_OK;
}

ls_status ls_score(const ls_model *model, ls_device *device, const ls_score_opts *opts, ls_score_item *items,
                   int64_t n_items, ls_error *err) {
    return ls_score_watched(model, device, opts, items, n_items, NULL, NULL, err);
}

ls_status ls_score_watched(const ls_model *model, ls_device *device, const ls_score_opts *opts, ls_score_item *items,
                           int64_t n_items, ls_score_progress progress, void *context, ls_error *err) {
    scorer s = {.model = model, .device = device, .opts = opts, .items = items, .err = err};
    ls_status status;
    if (n_items == 0) return LS_OK;
    if (opts->batch < 1 || opts->batch > BATCH_MAX || opts->chunk < 0)
        return LS_FAIL(err, LS_ERR_ARG, "score: batch %lld is not in 1..1024 or chunk %lld is negative",
                       (long long)opts->batch, (long long)opts->chunk);
    LS_TRY_DONE(scorer_init(&s, n_items));
    for (int64_t i = 0; i < n_items;) {
        const extent e = extent_of_batch(&s, n_items, i);
        LS_TRY_DONE(score_batch(&s, s.order + i, &e));
        LS_TRY_DONE(check_values(&s, s.order + i, e.n));
        i += e.n;
        if (progress != NULL) progress(context, i, n_items);
    }
done:
    scorer_deinit(&s);
    return status;
}
