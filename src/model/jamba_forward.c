/* The forward pass, straight down: read it beside the formulas in jamba.h. */
#include <math.h>
#include <string.h>

#include "model/jamba.h"
#include "op/attention.h"
#include "op/conv1d.h"
#include "op/elementwise.h"
#include "op/moe.h"
#include "op/rmsnorm.h"
#include "op/rows.h"
#include "op/scan.h"

/* What every layer of one forward shares. */
typedef struct forward {
    const ls_jamba *model;
    const ls_jamba_config *config;
    ls_queue *queue;
    const ls_cache *cache;
    ls_workspace *ws;
    const ls_span *spans;
    int64_t n_spans, rows;
    ls_dtype dtype;
    ls_error *err;
} forward;

/* out[m][n] = x . w + bias, with explicit row strides and output type. */
static ls_status project(const forward *f, void *out, ls_dtype out_dtype, int64_t out_stride, const void *x,
                         int64_t x_stride, const ls_gemm_weight *w, const float *bias, int64_t m) {
    const ls_gemm_args args = {.x = x, .x_dtype = f->dtype, .x_stride = x_stride, .weight = w, .bias = bias, .out = out,
                               .out_dtype = out_dtype, .out_stride = out_stride, .m = m};
    return ls_gemm(f->queue, &args, f->err);
}

static ls_status normalise(const forward *f, void *y, int64_t y_stride, const void *x, int64_t x_stride, const float *w,
                           int64_t dim) {
    const ls_rmsnorm_args args = {.x = x, .dtype = f->dtype, .x_stride = x_stride, .w = w, .eps = f->config->rms_eps, .y = y,
                                  .y_stride = y_stride, .rows = f->rows, .dim = dim};
    return ls_rmsnorm(f->queue, &args, f->err);
}

/* h += x, where x holds the mixer's or the feed-forward's output. */
static ls_status add_to_h(const forward *f) {
    const ls_residual_args args = {f->ws->h, f->ws->x, f->dtype, f->rows, f->config->hidden};
    return ls_residual(f->queue, &args, f->err);
}

static ls_status attention_layer(const forward *f, const ls_layer *layer, int64_t layer_i) {
    const ls_jamba_config *c = f->config;
    const ls_attention_weights *w = &layer->attention;
    ls_workspace *ws = f->ws;
    const int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t stride = q_dim + 2 * kv_dim;
    void *k = ls_at_mut(ws->wide_a, f->dtype, q_dim), *v = ls_at_mut(ws->wide_a, f->dtype, q_dim + kv_dim);
    ls_status status;
    LS_TRY(project(f, ws->wide_a, f->dtype, stride, ws->x, c->hidden, &w->q, NULL, f->rows));
    LS_TRY(project(f, k, f->dtype, stride, ws->x, c->hidden, &w->k, NULL, f->rows));
    LS_TRY(project(f, v, f->dtype, stride, ws->x, c->hidden, &w->v, NULL, f->rows));
    {
        const ls_attention_args args = {
            .q = ws->wide_a, .k = k, .v = v, .out = ws->wide_b, .dtype = f->dtype, .q_stride = stride, .kv_stride = stride,
            .out_stride = q_dim, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
            .scale = ls_div(1.0f, ls_sqrt((float)c->head_dim)), .page_tokens = f->cache->page_tokens,
            .pages = ls_cache_pages(f->cache, layer_i), .spans = f->spans, .n_spans = f->n_spans};
        LS_TRY(ls_attention(f->queue, &args, f->err));
    }
    LS_TRY(project(f, ws->x, f->dtype, c->hidden, ws->wide_b, q_dim, &w->o, NULL, f->rows));
done:
    return status;
}

static ls_status mamba_layer(const forward *f, const ls_layer *layer, int64_t layer_i) {
    const ls_jamba_config *c = f->config;
    const ls_mamba_weights *w = &layer->mamba;
    ls_workspace *ws = f->ws;
    const int64_t dim = c->d_inner, n_dbc = c->dt_rank + 2 * (int64_t)c->d_state;
    void *z = ls_at_mut(ws->wide_a, f->dtype, dim); /* wide_a: [rows][u | z] */
    void *u = ws->wide_b, *dt = ls_at_mut(ws->wide_b, f->dtype, dim); /* wide_b: [rows][conv output | dt] */
    void *b = ls_at_mut(ws->narrow, f->dtype, c->dt_rank), *cc = ls_at_mut(ws->narrow, f->dtype, c->dt_rank + c->d_state);
    ls_status status;
    LS_TRY(project(f, ws->wide_a, f->dtype, 2 * dim, ws->x, c->hidden, &w->in_proj, w->in_bias, f->rows));
    {
        const ls_conv1d_args args = {.x = ws->wide_a, .dtype = f->dtype, .x_stride = 2 * dim, .w = w->conv_w,
                                     .bias = w->conv_bias, .y = u, .y_stride = 2 * dim, .dim = dim, .d_conv = c->d_conv,
                                     .state = ls_cache_conv(f->cache, layer_i), .spans = f->spans, .n_spans = f->n_spans};
        LS_TRY(ls_conv1d(f->queue, &args, f->err));
    }
    LS_TRY(project(f, ws->narrow, f->dtype, n_dbc, u, 2 * dim, &w->x_proj, NULL, f->rows));
    LS_TRY(normalise(f, ws->narrow, n_dbc, ws->narrow, n_dbc, w->dt_norm, c->dt_rank));
    LS_TRY(normalise(f, b, n_dbc, b, n_dbc, w->b_norm, c->d_state));
    LS_TRY(normalise(f, cc, n_dbc, cc, n_dbc, w->c_norm, c->d_state));
    LS_TRY(project(f, dt, f->dtype, 2 * dim, ws->narrow, n_dbc, &w->dt_proj, NULL, f->rows));
    {
        const ls_scan_args args = {.dtype = f->dtype, .u = u, .dt_raw = dt, .b = b, .cc = cc, .z = z, .out = u,
                                   .u_stride = 2 * dim, .dt_stride = 2 * dim, .b_stride = n_dbc, .c_stride = n_dbc,
                                   .z_stride = 2 * dim, .out_stride = 2 * dim, .a2 = w->a2, .dt_bias = w->dt_bias, .d = w->d,
                                   .dim = dim, .n_states = c->d_state, .state = ls_cache_ssm(f->cache, layer_i),
                                   .spans = f->spans, .n_spans = f->n_spans};
        LS_TRY(ls_scan(f->queue, &args, f->err));
    }
    LS_TRY(project(f, ws->x, f->dtype, c->hidden, u, 2 * dim, &w->out_proj, w->out_bias, f->rows));
done:
    return status;
}

/* out [n][H] = the feed-forward of x [n][H]. */
static ls_status feed_forward(const forward *f, const ls_ffn_weights *w, const void *x, int64_t n, void *out,
                              ls_dtype out_dtype) {
    const ls_jamba_config *c = f->config;
    ls_workspace *ws = f->ws;
    const ls_swiglu_args gate = {ws->wide_a, ws->wide_b, ws->wide_a, f->dtype, n, c->ffn};
    ls_status status;
    LS_TRY(project(f, ws->wide_a, f->dtype, c->ffn, x, c->hidden, &w->gate, NULL, n));
    LS_TRY(project(f, ws->wide_b, f->dtype, c->ffn, x, c->hidden, &w->up, NULL, n));
    LS_TRY(ls_swiglu(f->queue, &gate, f->err));
    LS_TRY(project(f, out, out_dtype, c->hidden, ws->wide_a, c->ffn, &w->down, NULL, n));
done:
    return status;
}

/* Collects the rows that chose expert e: ids, weights and inputs. Returns their number. */
static int64_t pick_rows(const forward *f, int32_t e) {
    const int64_t top_k = f->config->top_k, row_bytes = f->config->hidden * ls_dtype_bytes(f->dtype);
    ls_workspace *ws = f->ws;
    int64_t n = 0;
    for (int64_t row = 0; row < f->rows; row++)
        for (int64_t k = 0; k < top_k; k++) {
            if (ws->expert[row * top_k + k] != e) continue;
            ws->picked_rows[n] = row;
            ws->picked_weight[n] = ws->expert_weight[row * top_k + k];
            memcpy((uint8_t *)ws->picked_x + n * row_bytes, (const uint8_t *)ws->x + row * row_bytes, (size_t)row_bytes);
            n++;
        }
    return n;
}

static ls_status moe_layer(const forward *f, const ls_layer *layer) {
    const ls_jamba_config *c = f->config;
    ls_workspace *ws = f->ws;
    const ls_moe_route_args route = {ws->router, f->rows, c->n_experts, c->top_k, ws->expert, ws->expert_weight};
    ls_status status;
    LS_TRY(project(f, ws->router, LS_F32, c->n_experts, ws->x, c->hidden, &layer->router, NULL, f->rows));
    LS_TRY(ls_moe_route(f->queue, &route, f->err));
    memset(ws->moe_acc, 0, (size_t)(f->rows * c->hidden) * sizeof(float));
    for (int32_t e = 0; e < c->n_experts; e++) {
        const int64_t n = pick_rows(f, e);
        const ls_moe_combine_args combine = {ws->moe_y, ws->picked_rows, ws->picked_weight, ws->moe_acc, n, c->hidden};
        if (n == 0) continue;
        LS_TRY(feed_forward(f, &layer->ffn[e], ws->picked_x, n, ws->moe_y, LS_F32));
        LS_TRY(ls_moe_combine(f->queue, &combine, f->err));
    }
    ls_row_narrow(ws->x, f->dtype, ws->moe_acc, f->rows * c->hidden);
done:
    return status;
}

static ls_status check_rows(const forward *f) {
    if (f->dtype != f->cache->dtype)
        return LS_FAIL(f->err, LS_ERR_ARG, "forward: workspace is %s, cache is %s", ls_dtype_name(f->dtype),
                       ls_dtype_name(f->cache->dtype));
    if (f->rows > f->ws->rows_max)
        return LS_FAIL(f->err, LS_ERR_CAPACITY, "forward: %lld rows, the workspace holds %lld", (long long)f->rows,
                       (long long)f->ws->rows_max);
    return LS_OK;
}

ls_status ls_jamba_forward(const ls_jamba *model, ls_queue *queue, const ls_cache *cache, ls_workspace *workspace,
                           const int32_t *tokens, const ls_span *spans, int64_t n_spans, ls_error *err) {
    const ls_jamba_config *c = &model->config;
    forward f = {model, c, queue, cache, workspace, spans, n_spans, 0, workspace->dtype, err};
    ls_status status;
    for (int64_t i = 0; i < n_spans; i++) {
        LS_ASSERT(spans[i].row == f.rows, "span %lld starts at row %lld, expected %lld", (long long)i,
                  (long long)spans[i].row, (long long)f.rows);
        f.rows += spans[i].n_rows;
    }
    LS_TRY(check_rows(&f));
    {
        const ls_embed_args embed = {model->embed->data, model->embed_dtype, c->vocab, c->hidden, tokens, workspace->h,
                                     f.dtype, f.rows};
        LS_TRY(ls_embed(queue, &embed, err));
    }
    for (int64_t i = 0; i < c->n_layers; i++) {
        const ls_layer *layer = &model->layers[i];
        LS_TRY(normalise(&f, workspace->x, c->hidden, workspace->h, c->hidden, layer->input_norm, c->hidden));
        LS_TRY(layer->is_attention ? attention_layer(&f, layer, i) : mamba_layer(&f, layer, i));
        LS_TRY(add_to_h(&f));
        LS_TRY(normalise(&f, workspace->x, c->hidden, workspace->h, c->hidden, layer->ffn_norm, c->hidden));
        LS_TRY(layer->is_moe ? moe_layer(&f, layer)
                             : feed_forward(&f, &layer->ffn[0], workspace->x, f.rows, workspace->x, f.dtype));
        LS_TRY(add_to_h(&f));
    }
    LS_TRY(normalise(&f, workspace->x, c->hidden, workspace->h, c->hidden, model->final_norm, c->hidden));
done:
    return status;
}

ls_status ls_jamba_logits(const ls_jamba *model, ls_queue *queue, const void *x, ls_dtype dtype, int64_t n, float *logits,
                          ls_error *err) {
    const ls_gemm_args args = {.x = x, .x_dtype = dtype, .x_stride = model->config.hidden, .weight = &model->head, .out = logits,
                               .out_dtype = LS_F32, .out_stride = model->config.vocab, .m = n};
    return ls_gemm(queue, &args, err);
}
