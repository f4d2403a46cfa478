/* The forward that keeps what a gradient needs. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/tape_state.h"
#include "op/logprob.h"

#define PAGE_TOKENS 64

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static ls_status floats(float **out, int64_t rows, int64_t columns, ls_error *err) {
    return ls_array_alloc((void **)out, rows, columns * (int64_t)sizeof(float), "training workspace", err);
}

static ls_status make_head(ls_tape *t, const ls_jamba_config *c, ls_error *err) {
    const int64_t n = LS_TAPE_HEAD_ROWS;
    ls_status status;
    LS_TRY(ls_array_alloc((void **)&t->block_rows, n, sizeof(int64_t), "head", err));
    LS_TRY(ls_array_alloc((void **)&t->block_targets, n, sizeof(int64_t), "head", err));
    LS_TRY(ls_array_alloc(&t->block_x, n, c->hidden * ls_dtype_bytes(t->opts.dtype), "head", err));
    LS_TRY(floats(&t->logits, n, c->vocab, err));
    LS_TRY(floats(&t->block_logprob, n, 1, err));
    LS_TRY(floats(&t->block_lse, n, 1, err));
    LS_TRY(floats(&t->block_entropy, n, 1, err));
    LS_TRY(floats(&t->block_d, n, 1, err));
    LS_TRY(floats(&t->block_d_entropy, n, 1, err));
    LS_TRY(floats(&t->temperature, n, 1, err));
    for (int64_t i = 0; i < n; i++) t->temperature[i] = t->opts.temperature;
done:
    return status;
}

static ls_status make_backward(ls_tape *t, const ls_jamba_config *c, ls_error *err) {
    const int64_t rows = t->opts.rows_max, q = (int64_t)c->n_heads * c->head_dim;
    const int64_t wide = larger(larger(2 * (int64_t)c->d_inner, c->ffn), q + 2 * (int64_t)c->n_kv_heads * c->head_dim);
    const int64_t narrow = c->dt_rank + 2 * (int64_t)c->d_state;
    ls_status status;
    LS_TRY(floats(&t->dh, rows, c->hidden, err));
    LS_TRY(floats(&t->dx, rows, c->hidden, err));
    LS_TRY(floats(&t->da, rows, wide, err));
    LS_TRY(floats(&t->db, rows, wide, err));
    LS_TRY(floats(&t->dnarrow, rows, narrow, err));
    LS_TRY(floats(&t->dnarrow_raw, rows, narrow, err));
    LS_TRY(floats(&t->db_state, rows, c->d_state, err));
    LS_TRY(floats(&t->dc_state, rows, c->d_state, err));
    LS_TRY(floats(&t->du, rows, c->d_inner, err));
    LS_TRY(floats(&t->ddt, rows, c->d_inner, err));
    LS_TRY(floats(&t->dz, rows, c->d_inner, err));
    LS_TRY(floats(&t->scale, rows, 1, err));
    LS_TRY(floats(&t->dweight, rows, c->top_k, err));
    LS_TRY(floats(&t->drouter, rows, c->n_experts, err));
    LS_TRY(floats(&t->picked_dweight, rows, 1, err));
    LS_TRY(floats(&t->conv_dw, c->d_conv, c->d_inner, err));
done:
    return status;
}

static ls_status make_forward(ls_tape *t, const ls_jamba_config *c, ls_error *err) {
    const int64_t rows = t->opts.rows_max;
    ls_cache_opts cache = {.dtype = t->opts.dtype, .n_slots = t->opts.spans_max, .page_tokens = PAGE_TOKENS};
    ls_status status;
    if (!ls_add_i64(rows / PAGE_TOKENS, t->opts.spans_max, &cache.n_pages))
        return LS_FAIL(err, LS_ERR_NOMEM, "tape: %lld rows", (long long)rows);
    LS_TRY(ls_cache_create(&t->cache, c, &cache, err));
    LS_TRY(ls_array_alloc((void **)&t->spans, t->opts.spans_max, sizeof *t->spans, "spans", err));
    LS_TRY(ls_array_alloc((void **)&t->pages, cache.n_pages, sizeof *t->pages, "pages", err));
    for (int64_t i = 0; i < cache.n_pages; i++) t->pages[i] = (int32_t)i;
    LS_TRY(ls_array_alloc((void **)&t->h, t->n_halves + 1, sizeof(float *), "tape", err));
    LS_TRY(ls_array_alloc((void **)&t->ws, t->n_halves, sizeof(ls_workspace *), "tape", err));
    for (int64_t i = 0; i <= t->n_halves; i++) LS_TRY(floats(&t->h[i], rows, c->hidden, err));
    for (int64_t i = 0; i < t->n_halves; i++) {
        if (i > 0 && t->opts.recompute)
            t->ws[i] = t->ws[0];
        else
            LS_TRY(ls_workspace_create(&t->ws[i], c, t->opts.dtype, rows, true, err));
    }
    LS_TRY(ls_array_alloc(&t->x_last, rows, c->hidden * ls_dtype_bytes(t->opts.dtype), "tape", err));
done:
    return status;
}

ls_status ls_tape_create(ls_tape **out, const ls_parameters *parameters, const ls_tape_opts *opts, ls_error *err) {
    const ls_jamba_config *c = &parameters->model->config;
    ls_tape *t = calloc(1, sizeof *t);
    ls_status status = LS_OK;
    *out = NULL;
    if (t == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "tape");
    t->parameters = parameters;
    t->opts = *opts;
    t->n_halves = 2 * (int64_t)c->n_layers;
    if (opts->rows_max < 1 || opts->spans_max < 1 || !(opts->temperature > 0.0f)) {
        status = LS_FAIL(err, LS_ERR_ARG, "tape: %lld rows, %lld sequences, temperature %g", (long long)opts->rows_max,
                         (long long)opts->spans_max, (double)opts->temperature);
        goto done;
    }
    LS_TRY(make_forward(t, c, err));
    LS_TRY(make_head(t, c, err));
    LS_TRY(make_backward(t, c, err));
    *out = t;
    t = NULL;
done:
    ls_tape_free(t);
    return status;
}

void ls_tape_free(ls_tape *t) {
    if (t == NULL) return;
    float *const arrays[] = {t->logits,      t->block_logprob,
                             t->block_lse,   t->block_entropy,
                             t->block_d,     t->block_d_entropy,
                             t->temperature, t->dh,
                             t->dx,          t->da,
                             t->db,          t->dnarrow,
                             t->dnarrow_raw, t->db_state,
                             t->dc_state,    t->du,
                             t->ddt,         t->dz,
                             t->scale,       t->dweight,
                             t->drouter,     t->picked_dweight,
                             t->conv_dw};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
    for (int64_t i = 0; t->ws != NULL && i < t->n_halves; i++)
        if (i == 0 || !t->opts.recompute) ls_workspace_free(t->ws[i]);
    for (int64_t i = 0; t->h != NULL && i <= t->n_halves; i++) free(t->h[i]);
    free(t->ws);
    free(t->h);
    free(t->workspace);
    free(t->block_x);
    free(t->block_targets);
    free(t->block_rows);
    free(t->x_last);
    free(t->pages);
    free(t->spans);
    ls_cache_free(t->cache);
    free(t);
}

static ls_status lay_out_spans(ls_tape *t, const int64_t *offsets, int64_t n, ls_error *err) {
    const int32_t *pages = t->pages;
    if (n < 1 || n > t->opts.spans_max || offsets[n] - offsets[0] > t->opts.rows_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "tape: %lld sequences of %lld tokens; it holds %lld of %lld", (long long)n,
                       (long long)(n < 1 ? 0 : offsets[n] - offsets[0]), (long long)t->opts.spans_max,
                       (long long)t->opts.rows_max);
    for (int64_t i = 0; i < n; i++) {
        const int64_t rows = offsets[i + 1] - offsets[i];
        if (rows < 1) return LS_FAIL(err, LS_ERR_ARG, "tape: sequence %lld is empty", (long long)i);
        t->spans[i] = (ls_span){offsets[i] - offsets[0], rows, 0, (int32_t)i, pages};
        pages += (rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
    }
    t->n_spans = n;
    t->rows = offsets[n] - offsets[0];
    return LS_OK;
}

ls_status ls_tape_forward(ls_tape *t, ls_queue *queue, const int32_t *tokens, const int64_t *offsets, int64_t n,
                          ls_error *err) {
    const ls_jamba *model = t->parameters->model;
    size_t h_bytes;
    ls_forward f = {model, queue, t->cache, t->ws[0], t->spans, n, 0};
    ls_status status;
    LS_TRY(lay_out_spans(t, offsets, n, err));
    t->tokens = tokens + offsets[0];
    f.rows = t->rows;
    h_bytes = (size_t)(t->rows * model->config.hidden) * sizeof(float);
    LS_TRY(ls_jamba_embed(&f, t->tokens, err));
    for (int64_t i = 0; i < t->n_halves; i++) {
        const float *h = f.ws->h;
        f.ws = t->ws[i];
        if (f.ws->h != h) memcpy(f.ws->h, h, h_bytes);
        memcpy(t->h[i], f.ws->h, h_bytes);
        LS_TRY(ls_jamba_half(&f, i / 2, (ls_half)(i % 2), err));
    }
    memcpy(t->h[t->n_halves], f.ws->h, h_bytes);
    {
        /* The last norm's output has a place of its own; the half's x is kept. */
        ls_workspace last = *f.ws;
        last.x = t->x_last;
        f.ws = &last;
        LS_TRY(ls_jamba_last_norm(&f, err));
    }
done:
    return status;
}

const float *ls_tape_residual(const ls_tape *t, int64_t half) { return t->h[half]; }

ls_status ls_tape_head_block(ls_tape *t, ls_queue *queue, const int64_t *targets, int64_t *row, int64_t end, int64_t *n,
                             ls_error *err) {
    const int64_t row_bytes = t->parameters->model->config.hidden * ls_dtype_bytes(t->opts.dtype);
    *n = 0;
    for (; *row < end && *n < LS_TAPE_HEAD_ROWS; (*row)++) {
        if (targets[*row] == -1) continue;
        memcpy((uint8_t *)t->block_x + *n * row_bytes, (const uint8_t *)t->x_last + *row * row_bytes,
               (size_t)row_bytes);
        t->block_rows[*n] = *row;
        t->block_targets[(*n)++] = targets[*row];
    }
    return *n == 0 ? LS_OK
                   : ls_jamba_logits(t->parameters->model, queue, t->block_x, t->opts.dtype, *n, t->logits, err);
}

ls_status ls_tape_logprob(ls_tape *t, ls_queue *queue, const int64_t *targets, float *logprob, float *entropy,
                          ls_error *err) {
    const int64_t vocab = t->parameters->model->config.vocab;
    int64_t row = 0, n;
    ls_status status = LS_OK;
    memset(logprob, 0, (size_t)t->rows * sizeof *logprob);
    if (entropy != NULL) memset(entropy, 0, (size_t)t->rows * sizeof *entropy);
    while (row < t->rows) {
        LS_TRY(ls_tape_head_block(t, queue, targets, &row, t->rows, &n, err));
        const ls_logprob_args args = {.logits = t->logits,
                                      .rows = n,
                                      .vocab = vocab,
                                      .row_stride = vocab,
                                      .targets = t->block_targets,
                                      .ignore_index = -1,
                                      .temperature = t->opts.temperature == 1.0f ? NULL : t->temperature,
                                      .logprob = t->block_logprob,
                                      .entropy = entropy == NULL ? NULL : t->block_entropy};
        if (n == 0) break;
        LS_TRY(ls_logprob(queue, &args, err));
        for (int64_t i = 0; i < n; i++) {
            logprob[t->block_rows[i]] = t->block_logprob[i];
            if (entropy != NULL) entropy[t->block_rows[i]] = t->block_entropy[i];
        }
    }
done:
    return status;
}
