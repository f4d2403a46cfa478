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

/* A row-major matrix of the workspace: where it starts, its type and row stride in elements. */
typedef struct rows_view {
    void *data;
    ls_dtype dtype;
    int64_t stride;
} rows_view;

/* out[m][n] = R(x . w + bias). */
static ls_status project(const ls_forward *f, rows_view out, rows_view x, const ls_gemm_weight *w, const float *bias,
                         int64_t m, ls_error *err) {
    const ls_gemm_args args = {.x = x.data,
                               .x_dtype = x.dtype,
                               .x_stride = x.stride,
                               .weight = w,
                               .bias = bias,
                               .out = out.data,
                               .out_dtype = out.dtype,
                               .out_stride = out.stride,
                               .m = m};
    return ls_gemm(f->queue, &args, err);
}

/* x = rms(h): what a mixer, a feed-forward or the head reads. */
static ls_status normalise_h(const ls_forward *f, const float *w, ls_error *err) {
    const int64_t dim = f->model->config.hidden;
    const ls_rmsnorm_args args = {.x = f->ws->h,
                                  .x_dtype = LS_F32,
                                  .x_stride = dim,
                                  .w = w,
                                  .eps = f->model->config.rms_eps,
                                  .y = f->ws->x,
                                  .y_dtype = f->ws->dtype,
                                  .y_stride = dim,
                                  .rows = f->rows,
                                  .dim = dim};
    return ls_rmsnorm(f->queue, &args, err);
}

/* One of the dt, B and C parts of the narrow rows, which begins at column `at`. */
static ls_status normalise_part(const ls_forward *f, int64_t at, const float *w, int64_t dim, ls_error *err) {
    const int64_t stride = f->model->config.dt_rank + 2 * (int64_t)f->model->config.d_state;
    const ls_rmsnorm_args args = {.x = f->ws->narrow_raw + at,
                                  .x_dtype = LS_F32,
                                  .x_stride = stride,
                                  .w = w,
                                  .eps = f->model->config.rms_eps,
                                  .y = f->ws->narrow + at,
                                  .y_dtype = LS_F32,
                                  .y_stride = stride,
                                  .rows = f->rows,
                                  .dim = dim};
    return ls_rmsnorm(f->queue, &args, err);
}

/* h += y, the mixer's or the feed-forward's output. */
static ls_status add_to_h(const ls_forward *f, ls_error *err) {
    const ls_residual_args args = {f->ws->h, f->ws->y, f->rows, f->model->config.hidden};
    return ls_residual(f->queue, &args, err);
}

static ls_status attention_layer(const ls_forward *f, const ls_layer *layer, int64_t layer_i, ls_error *err) {
    const ls_jamba_config *c = &f->model->config;
    const ls_attention_weights *w = &layer->attention;
    ls_workspace *ws = f->ws;
    const int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t stride = q_dim + 2 * kv_dim;
    const rows_view x = {ws->x, f->ws->dtype, c->hidden}, y = {ws->y, LS_F32, c->hidden},
                    out = {ws->gated, f->ws->dtype, q_dim};
    const rows_view q = {ws->wide_a, f->ws->dtype, stride};
    const rows_view k = {ls_at_mut(ws->wide_a, f->ws->dtype, q_dim), f->ws->dtype, stride};
    const rows_view v = {ls_at_mut(ws->wide_a, f->ws->dtype, q_dim + kv_dim), f->ws->dtype, stride};
    const ls_attention_args attention = {.q = q.data,
                                         .k = k.data,
                                         .v = v.data,
                                         .out = out.data,
                                         .dtype = f->ws->dtype,
                                         .q_stride = stride,
                                         .kv_stride = stride,
                                         .out_stride = q_dim,
                                         .n_heads = c->n_heads,
                                         .n_kv_heads = c->n_kv_heads,
                                         .head_dim = c->head_dim,
                                         .scale = ls_div(1.0f, ls_sqrt((float)c->head_dim)),
                                         .page_tokens = f->cache->page_tokens,
                                         .pages = ls_cache_pages(f->cache, layer_i),
                                         .spans = f->spans,
                                         .n_spans = f->n_spans};
    ls_status status;
    LS_TRY(project(f, q, x, &w->q, NULL, f->rows, err));
    LS_TRY(project(f, k, x, &w->k, NULL, f->rows, err));
    LS_TRY(project(f, v, x, &w->v, NULL, f->rows, err));
    LS_TRY(ls_attention(f->queue, &attention, err));
    LS_TRY(project(f, y, out, &w->o, NULL, f->rows, err));
done:
    return status;
}

static ls_status mamba_layer(const ls_forward *f, const ls_layer *layer, int64_t layer_i, ls_error *err) {
    const ls_jamba_config *c = &f->model->config;
    const ls_mamba_weights *w = &layer->mamba;
    ls_workspace *ws = f->ws;
    const int64_t dim = c->d_inner, n_narrow = c->dt_rank + 2 * (int64_t)c->d_state;
    float *b = ws->narrow + c->dt_rank, *cc = b + c->d_state;
    const rows_view x = {ws->x, f->ws->dtype, c->hidden}, y = {ws->y, LS_F32, c->hidden};
    const rows_view uz = {ws->wide_a, LS_F32, 2 * dim};                                          /* [rows][u | z] */
    const rows_view u = {ws->wide_b, LS_F32, 2 * dim}, dt = {ws->wide_b + dim, LS_F32, 2 * dim}; /* [rows][u | dt] */
    const rows_view narrow_raw = {ws->narrow_raw, LS_F32, n_narrow}, narrow = {ws->narrow, LS_F32, n_narrow};
    const rows_view gated = {ws->gated, f->ws->dtype, dim};
    const ls_conv1d_args conv = {.x = uz.data,
                                 .x_dtype = LS_F32,
                                 .y_dtype = LS_F32,
                                 .state_dtype = f->ws->dtype,
                                 .x_stride = uz.stride,
                                 .w = w->conv_w,
                                 .bias = w->conv_bias,
                                 .y = u.data,
                                 .y_stride = u.stride,
                                 .rows = f->rows,
                                 .dim = dim,
                                 .d_conv = c->d_conv,
                                 .state = ls_cache_conv(f->cache, layer_i),
                                 .spans = f->spans,
                                 .n_spans = f->n_spans};
    const ls_scan_args scan = {.in_dtype = LS_F32,
                               .out_dtype = f->ws->dtype,
                               .u = u.data,
                               .dt_raw = dt.data,
                               .b = b,
                               .cc = cc,
                               .z = ws->wide_a + dim,
                               .out = gated.data,
                               .u_stride = u.stride,
                               .dt_stride = dt.stride,
                               .b_stride = n_narrow,
                               .c_stride = n_narrow,
                               .z_stride = uz.stride,
                               .out_stride = dim,
                               .a2 = w->a2,
                               .dt_bias = w->dt_bias,
                               .d = w->d,
                               .rows = f->rows,
                               .dim = dim,
                               .n_states = c->d_state,
                               .state = ls_cache_ssm(f->cache, layer_i),
                               .spans = f->spans,
                               .n_spans = f->n_spans};
    ls_status status;
    LS_TRY(project(f, uz, x, &w->in_proj, w->in_bias, f->rows, err));
    LS_TRY(ls_conv1d(f->queue, &conv, err));
    LS_TRY(project(f, narrow_raw, u, &w->x_proj, NULL, f->rows, err));
    LS_TRY(normalise_part(f, 0, w->dt_norm, c->dt_rank, err));
    LS_TRY(normalise_part(f, c->dt_rank, w->b_norm, c->d_state, err));
    LS_TRY(normalise_part(f, c->dt_rank + c->d_state, w->c_norm, c->d_state, err));
    LS_TRY(project(f, dt, narrow, &w->dt_proj, NULL, f->rows, err));
    LS_TRY(ls_scan(f->queue, &scan, err));
    LS_TRY(project(f, y, gated, &w->out_proj, w->out_bias, f->rows, err));
done:
    return status;
}

/* y [n][H] = the feed-forward of x [n][H]. */
static ls_status feed_forward(const ls_forward *f, const ls_ffn_weights *w, void *x_rows, int64_t n, float *y_rows,
                              ls_error *err) {
    const ls_jamba_config *c = &f->model->config;
    ls_workspace *ws = f->ws;
    const rows_view x = {x_rows, f->ws->dtype, c->hidden}, y = {y_rows, LS_F32, c->hidden};
    const rows_view gate = {ws->wide_a, LS_F32, c->ffn}, up = {ws->wide_b, LS_F32, c->ffn};
    const rows_view gated = {ws->gated, f->ws->dtype, c->ffn};
    const ls_swiglu_args swiglu = {ws->wide_a, ws->wide_b, gated.data, f->ws->dtype, n, c->ffn};
    ls_status status;
    LS_TRY(project(f, gate, x, &w->gate, NULL, n, err));
    LS_TRY(project(f, up, x, &w->up, NULL, n, err));
    LS_TRY(ls_swiglu(f->queue, &swiglu, err));
    LS_TRY(project(f, y, gated, &w->down, NULL, n, err));
done:
    return status;
}

/* Collects the rows that chose expert e: ids, weights and inputs. Returns their number. */
static int64_t pick_rows(const ls_forward *f, int32_t e) {
    const int64_t top_k = f->model->config.top_k, row_bytes = f->model->config.hidden * ls_dtype_bytes(f->ws->dtype);
    ls_workspace *ws = f->ws;
    int64_t n = 0;
    for (int64_t row = 0; row < f->rows; row++)
        for (int64_t k = 0; k < top_k; k++) {
            if (ws->expert[row * top_k + k] != e) continue;
            ws->picked_rows[n] = row;
            ws->picked_weight[n] = ws->expert_weight[row * top_k + k];
            memcpy((uint8_t *)ws->picked_x + n * row_bytes, (const uint8_t *)ws->x + row * row_bytes,
                   (size_t)row_bytes);
            n++;
        }
    return n;
}

ls_status ls_jamba_expert(const ls_forward *f, int64_t layer_i, int32_t e, int64_t *n, ls_error *err) {
    *n = pick_rows(f, e);
    if (*n == 0) return LS_OK;
    return feed_forward(f, &f->model->layers[layer_i].ffn[e], f->ws->picked_x, *n, f->ws->moe_y, err);
}

static ls_status moe_layer(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_layer *layer = &f->model->layers[layer_i];
    const ls_jamba_config *c = &f->model->config;
    ls_workspace *ws = f->ws;
    const rows_view x = {ws->x, f->ws->dtype, c->hidden}, logits = {ws->router, LS_F32, c->n_experts};
    const ls_moe_route_args route = {ws->router, f->rows, c->n_experts, c->top_k, ws->expert, ws->expert_weight};
    ls_status status;
    LS_TRY(project(f, logits, x, &layer->router, NULL, f->rows, err));
    LS_TRY(ls_moe_route(f->queue, &route, err));
    memset(ws->y, 0, (size_t)(f->rows * c->hidden) * sizeof(float));
    for (int32_t e = 0; e < c->n_experts; e++) {
        int64_t n;
        LS_TRY(ls_jamba_expert(f, layer_i, e, &n, err));
        const ls_moe_combine_args combine = {ws->moe_y, ws->picked_rows, ws->picked_weight, ws->y, n, c->hidden};
        if (n == 0) continue;
        LS_TRY(ls_moe_combine(f->queue, &combine, err));
    }
done:
    return status;
}

static ls_status check_rows(const ls_forward *f, ls_error *err) {
    if (f->ws->dtype != f->cache->dtype)
        return LS_FAIL(err, LS_ERR_ARG, "forward: workspace is %s, cache is %s", ls_dtype_name(f->ws->dtype),
                       ls_dtype_name(f->cache->dtype));
    if (f->rows > f->ws->rows_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "forward: %lld rows, the workspace holds %lld", (long long)f->rows,
                       (long long)f->ws->rows_max);
    return LS_OK;
}

ls_status ls_jamba_embed(const ls_forward *f, const int32_t *tokens, ls_error *err) {
    const ls_jamba *model = f->model;
    const ls_embed_args embed = {
        model->embed, model->embed_dtype, model->config.vocab, model->config.hidden, tokens, f->ws->h, LS_F32, f->rows};
    return ls_embed(f->queue, &embed, err);
}

ls_status ls_jamba_half(const ls_forward *f, int64_t layer_i, ls_half half, ls_error *err) {
    const ls_layer *layer = &f->model->layers[layer_i];
    const ls_ablation ablation = f->model->ablation;
    ls_status status;
    if (half == LS_HALF_MIXER) {
        if (ablation != LS_ABLATE_NONE && layer->is_attention != (ablation == LS_ATTENTION_ONLY)) return LS_OK;
        LS_TRY(normalise_h(f, layer->input_norm, err));
        LS_TRY(layer->is_attention ? attention_layer(f, layer, layer_i, err) : mamba_layer(f, layer, layer_i, err));
    } else {
        LS_TRY(normalise_h(f, layer->ffn_norm, err));
        LS_TRY(layer->is_moe ? moe_layer(f, layer_i, err)
                             : feed_forward(f, &layer->ffn[0], f->ws->x, f->rows, f->ws->y, err));
    }
    LS_TRY(add_to_h(f, err));
done:
    return status;
}

ls_status ls_jamba_last_norm(const ls_forward *f, ls_error *err) { return normalise_h(f, f->model->final_norm, err); }

static void show(const ls_forward *f, int64_t half) {
    if (f->ws->observer != NULL) f->ws->observer(f->ws->observer_context, f, half);
}

ls_status ls_jamba_forward(const ls_jamba *model, ls_queue *queue, const ls_cache *cache, ls_workspace *workspace,
                           const int32_t *tokens, const ls_span *spans, int64_t n_spans, ls_error *err) {
    ls_forward f = {model, queue, cache, workspace, spans, n_spans, 0};
    ls_status status;
    for (int64_t i = 0; i < n_spans; i++) {
        LS_ASSERT(spans[i].row == f.rows, "span %lld starts at row %lld, expected %lld", (long long)i,
                  (long long)spans[i].row, (long long)f.rows);
        f.rows += spans[i].n_rows;
    }
    LS_TRY(check_rows(&f, err));
    LS_TRY(ls_jamba_embed(&f, tokens, err));
    show(&f, 0);
    for (int64_t i = 0; i < 2 * (int64_t)model->config.n_layers; i++) {
        LS_TRY(ls_jamba_half(&f, i / 2, (ls_half)(i % 2), err));
        show(&f, i + 1);
    }
    LS_TRY(ls_jamba_last_norm(&f, err));
done:
    return status;
}

ls_status ls_jamba_logits(const ls_jamba *model, ls_queue *queue, const void *x, ls_dtype dtype, int64_t n,
                          float *logits, ls_error *err) {
    const ls_gemm_args args = {.x = x,
                               .x_dtype = dtype,
                               .x_stride = model->config.hidden,
                               .weight = &model->head,
                               .out = logits,
                               .out_dtype = LS_F32,
                               .out_stride = model->config.vocab,
                               .m = n};
    return ls_gemm(queue, &args, err);
}
