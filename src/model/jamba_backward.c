/* The backward of one leaf, straight up: read it beside jamba_forward.c. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/tape_state.h"
#include "op/attention_backward.h"
#include "op/conv1d.h"
#include "op/elementwise_backward.h"
#include "op/gemm_backward.h"
#include "op/logprob.h"
#include "op/moe_backward.h"
#include "op/rmsnorm_backward.h"
#include "op/rows.h"
#include "op/scan.h"

/* A leaf on its way: its rows of the tape, what the current half computed, and where its gradient goes. */
typedef struct leaf {
    ls_tape *t;
    ls_queue *queue;
    const ls_jamba_config *config;
    int64_t row, rows; /* first row of the tape; number */
    ls_span *spans;    /* [n_spans], rows counted from the leaf's first */
    int64_t n_spans;
    const float *h;  /* [rows][H]: residual stream before the half */
    ls_workspace ws; /* a view: every array begins at the leaf's first row */
    float *gradient;
    ls_error *err;
} leaf;

/* A matrix of rows: where it starts, and its row stride in elements. */
typedef struct rows_of {
    void *data;
    ls_dtype dtype;
    int64_t stride;
} rows_of;

static float *gradient_of(const leaf *l, const void *place) {
    return l->gradient + ls_parameter_of(l->t->parameters, place)->offset;
}

/* dw += dy^T x, dbias += dy; row i of dy belongs to row x_rows[i] of x. */
static ls_status into_weight(const leaf *l, const ls_gemm_weight *w, rows_of dy, rows_of x, const float *bias,
                             int64_t m) {
    const ls_gemm_backward_weight_args args = {.dy = dy.data,
                                               .dy_stride = dy.stride,
                                               .x = x.data,
                                               .x_dtype = x.dtype,
                                               .x_stride = x.stride,
                                               .x_count = m,
                                               .dw = gradient_of(l, w),
                                               .dbias = bias != NULL ? gradient_of(l, bias) : NULL,
                                               .m = m,
                                               .n = w->n,
                                               .k = w->k};
    return ls_gemm_backward_weight(l->queue, &args, l->err);
}

/* dx = dy w, or dx += dy w. With `rows`, row i of the product is row rows[i] of dx. */
static ls_status into_input(const leaf *l, const ls_gemm_weight *w, rows_of dy, rows_of dx, bool add,
                            const int64_t *rows, int64_t m) {
    const ls_parameter *p = ls_parameter_of(l->t->parameters, w);
    const ls_gemm_backward_input_args args = {.dy = dy.data,
                                              .dy_stride = dy.stride,
                                              .w = p->value,
                                              .w_dtype = p->dtype,
                                              .dx = dx.data,
                                              .dx_stride = dx.stride,
                                              .dx_count = rows != NULL ? l->rows : m,
                                              .dx_rows = rows,
                                              .add = add,
                                              .m = m,
                                              .n = w->n,
                                              .k = w->k};
    return ls_gemm_backward_input(l->queue, &args, l->err);
}

/* dx (= or +=) the gradient through y = rms(x; w). */
static ls_status through_norm(const leaf *l, const float *w, rows_of x, rows_of dy, rows_of dx, bool add, int64_t dim) {
    const ls_rmsnorm_backward_args args = {.x = x.data,
                                           .x_dtype = x.dtype,
                                           .x_stride = x.stride,
                                           .w = w,
                                           .eps = l->config->rms_eps,
                                           .dy = dy.data,
                                           .dy_stride = dy.stride,
                                           .dx = dx.data,
                                           .dx_stride = dx.stride,
                                           .add = add,
                                           .dw = gradient_of(l, w),
                                           .scale = l->t->scale,
                                           .rows = l->rows,
                                           .dim = dim};
    return ls_rmsnorm_backward(l->queue, &args, l->err);
}

/* Room for an op's own workspace. */
static ls_status assure_workspace(ls_tape *t, int64_t bytes, ls_error *err) {
    if (bytes < 0) return LS_FAIL(err, LS_ERR_NOMEM, "backward: a workspace does not fit 64 bits");
    if (bytes <= t->workspace_bytes) return LS_OK;
    free(t->workspace);
    t->workspace_bytes = 0;
    if (ls_array_alloc(&t->workspace, bytes, 1, "backward workspace", err) != LS_OK) return LS_ERR_NOMEM;
    t->workspace_bytes = bytes;
    return LS_OK;
}

/* ---- mixers: dh holds the gradient of h behind the half; dx receives that of the normalised input ---- */

static ls_status attention_backward(const leaf *l, const ls_attention_weights *w, rows_of dh, rows_of x, rows_of dx) {
    const ls_jamba_config *c = l->config;
    ls_tape *t = l->t;
    const ls_dtype dtype = l->ws.dtype;
    const int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t stride = q_dim + 2 * kv_dim;
    const rows_of out = {l->ws.gated, dtype, q_dim}, dout = {t->db, LS_F32, q_dim};
    const rows_of dq = {t->da, LS_F32, stride}, dk = {t->da + q_dim, LS_F32, stride},
                  dv = {t->da + q_dim + kv_dim, LS_F32, stride};
    const ls_attention_backward_args args = {.q = l->ws.wide_a,
                                             .k = ls_at(l->ws.wide_a, dtype, q_dim),
                                             .v = ls_at(l->ws.wide_a, dtype, q_dim + kv_dim),
                                             .dtype = dtype,
                                             .q_stride = stride,
                                             .kv_stride = stride,
                                             .dout = dout.data,
                                             .dout_stride = q_dim,
                                             .dq = dq.data,
                                             .dk = dk.data,
                                             .dv = dv.data,
                                             .dq_stride = stride,
                                             .dkv_stride = stride,
                                             .rows = l->rows,
                                             .n_heads = c->n_heads,
                                             .n_kv_heads = c->n_kv_heads,
                                             .head_dim = c->head_dim,
                                             .scale = ls_div(1.0f, ls_sqrt((float)c->head_dim)),
                                             .spans = l->spans,
                                             .n_spans = l->n_spans};
    ls_status status;
    LS_TRY(into_weight(l, &w->o, dh, out, NULL, l->rows));
    LS_TRY(into_input(l, &w->o, dh, dout, false, NULL, l->rows));
    LS_TRY(assure_workspace(t, ls_attention_backward_workspace(&args), l->err));
    LS_TRY(ls_attention_backward(l->queue, &args, t->workspace, l->err));
    LS_TRY(into_weight(l, &w->q, dq, x, NULL, l->rows));
    LS_TRY(into_weight(l, &w->k, dk, x, NULL, l->rows));
    LS_TRY(into_weight(l, &w->v, dv, x, NULL, l->rows));
    LS_TRY(into_input(l, &w->q, dq, dx, false, NULL, l->rows));
    LS_TRY(into_input(l, &w->k, dk, dx, true, NULL, l->rows));
    LS_TRY(into_input(l, &w->v, dv, dx, true, NULL, l->rows));
done:
    return status;
}

static ls_status scan_backward(const leaf *l, const ls_mamba_weights *w, const float *dout) {
    const ls_jamba_config *c = l->config;
    ls_tape *t = l->t;
    const int64_t dim = c->d_inner, narrow = c->dt_rank + 2 * (int64_t)c->d_state;
    float *da2 = gradient_of(l, w->a2);
    const ls_scan_backward_args args = {.in_dtype = LS_F32,
                                        .u = l->ws.wide_b,
                                        .dt_raw = l->ws.wide_b + dim,
                                        .b = l->ws.narrow + c->dt_rank,
                                        .cc = l->ws.narrow + c->dt_rank + c->d_state,
                                        .z = l->ws.wide_a + dim,
                                        .u_stride = 2 * dim,
                                        .dt_stride = 2 * dim,
                                        .b_stride = narrow,
                                        .c_stride = narrow,
                                        .z_stride = 2 * dim,
                                        .a2 = w->a2,
                                        .dt_bias = w->dt_bias,
                                        .d = w->d,
                                        .dout = dout,
                                        .dout_stride = dim,
                                        .du = t->du,
                                        .ddt = t->ddt,
                                        .db = t->db_state,
                                        .dcc = t->dc_state,
                                        .dz = t->dz,
                                        .da2 = da2,
                                        .ddt_bias = gradient_of(l, w->dt_bias),
                                        .dd = gradient_of(l, w->d),
                                        .rows = l->rows,
                                        .dim = dim,
                                        .n_states = c->d_state,
                                        .spans = l->spans,
                                        .n_spans = l->n_spans};
    ls_status status;
    LS_TRY(assure_workspace(t, ls_op_scan_backward_workspace(&args), l->err));
    LS_TRY(ls_scan_backward(l->queue, &args, t->workspace, l->err));
    for (int64_t i = 0; i < dim * c->d_state; i++) da2[i] = ls_mul(da2[i], w->a2[i]); /* A2 = -exp(A_log) log2 e */
done:
    return status;
}

/* duz[u]: the gradient of the convolution's input, from du. */
static ls_status conv_backward(const leaf *l, const ls_mamba_weights *w, rows_of duz) {
    const ls_jamba_config *c = l->config;
    ls_tape *t = l->t;
    const int64_t dim = c->d_inner;
    float *dw = gradient_of(l, w->conv_w);
    const ls_conv1d_backward_args args = {.x = l->ws.wide_a,
                                          .x_dtype = LS_F32,
                                          .state_dtype = l->ws.dtype,
                                          .x_stride = 2 * dim,
                                          .w = w->conv_w,
                                          .bias = w->conv_bias,
                                          .dy = t->du,
                                          .dy_stride = dim,
                                          .dx = duz.data,
                                          .dx_stride = duz.stride,
                                          .dw = t->conv_dw,
                                          .dbias = w->conv_bias != NULL ? gradient_of(l, w->conv_bias) : NULL,
                                          .rows = l->rows,
                                          .dim = dim,
                                          .d_conv = c->d_conv,
                                          .spans = l->spans,
                                          .n_spans = l->n_spans};
    ls_status status;
    LS_TRY(assure_workspace(t, ls_op_conv1d_backward_workspace(&args), l->err));
    LS_TRY(ls_conv1d_backward(l->queue, &args, t->workspace, l->err));
    for (int64_t channel = 0; channel < dim; channel++) /* the parameter is [D][1][W] */
        for (int64_t k = 0; k < c->d_conv; k++) dw[channel * c->d_conv + k] = t->conv_dw[k * dim + channel];
done:
    return status;
}

static ls_status mamba_backward(const leaf *l, const ls_mamba_weights *w, rows_of dh, rows_of x, rows_of dx) {
    const ls_jamba_config *c = l->config;
    ls_tape *t = l->t;
    const int64_t dim = c->d_inner, rank = c->dt_rank, states = c->d_state, stride = rank + 2 * states;
    const rows_of gated = {l->ws.gated, l->ws.dtype, dim}, dscan = {t->db, LS_F32, dim};
    const rows_of ddt = {t->ddt, LS_F32, dim}, du = {t->du, LS_F32, dim}, duz = {t->da, LS_F32, 2 * dim};
    const rows_of u = {l->ws.wide_b, LS_F32, 2 * dim};
    const rows_of narrow = {l->ws.narrow, LS_F32, stride}, raw = {l->ws.narrow_raw, LS_F32, stride};
    const rows_of raw_b = {l->ws.narrow_raw + rank, LS_F32, stride};
    const rows_of raw_c = {l->ws.narrow_raw + rank + states, LS_F32, stride};
    const rows_of dnarrow = {t->dnarrow, LS_F32, rank}, draw = {t->dnarrow_raw, LS_F32, stride};
    const rows_of draw_b = {t->dnarrow_raw + rank, LS_F32, stride};
    const rows_of draw_c = {t->dnarrow_raw + rank + states, LS_F32, stride};
    const rows_of db = {t->db_state, LS_F32, states}, dc = {t->dc_state, LS_F32, states};
    ls_status status;
    LS_TRY(into_weight(l, &w->out_proj, dh, gated, w->out_bias, l->rows));
    LS_TRY(into_input(l, &w->out_proj, dh, dscan, false, NULL, l->rows));
    LS_TRY(scan_backward(l, w, dscan.data));
    LS_TRY(into_weight(l, &w->dt_proj, ddt, narrow, NULL, l->rows));
    LS_TRY(into_input(l, &w->dt_proj, ddt, dnarrow, false, NULL, l->rows));
    LS_TRY(through_norm(l, w->dt_norm, raw, dnarrow, draw, false, rank));
    LS_TRY(through_norm(l, w->b_norm, raw_b, db, draw_b, false, states));
    LS_TRY(through_norm(l, w->c_norm, raw_c, dc, draw_c, false, states));
    LS_TRY(into_weight(l, &w->x_proj, draw, u, NULL, l->rows));
    LS_TRY(into_input(l, &w->x_proj, draw, du, true, NULL, l->rows));
    LS_TRY(conv_backward(l, w, duz));
    for (int64_t r = 0; r < l->rows; r++)
        memcpy(t->da + r * 2 * dim + dim, t->dz + r * dim, (size_t)dim * sizeof(float));
    LS_TRY(into_weight(l, &w->in_proj, duz, x, w->in_bias, l->rows));
    LS_TRY(into_input(l, &w->in_proj, duz, dx, false, NULL, l->rows));
done:
    return status;
}

/* ---- feed-forward ---- */

/* One gated feed-forward over n rows whose input is x (compact) and whose output's gradient is dy; its input's gradient
 * goes to the rows `rows` of dx. */
static ls_status ffn_backward(const leaf *l, const ls_ffn_weights *w, rows_of dy, rows_of x, rows_of dx, bool add,
                              const int64_t *rows, int64_t n) {
    const ls_jamba_config *c = l->config;
    ls_tape *t = l->t;
    const rows_of gated = {l->ws.gated, l->ws.dtype, c->ffn};
    const rows_of dgate = {t->da, LS_F32, c->ffn}, dup = {t->db, LS_F32, c->ffn};
    const ls_swiglu_backward_args swiglu = {l->ws.wide_a, l->ws.wide_b, t->da, t->da, t->db, n, c->ffn};
    ls_status status;
    LS_TRY(into_weight(l, &w->down, dy, gated, NULL, n));
    LS_TRY(into_input(l, &w->down, dy, dgate, false, NULL, n));
    LS_TRY(ls_swiglu_backward(l->queue, &swiglu, l->err));
    LS_TRY(into_weight(l, &w->gate, dgate, x, NULL, n));
    LS_TRY(into_weight(l, &w->up, dup, x, NULL, n));
    LS_TRY(into_input(l, &w->gate, dgate, dx, add, rows, n));
    LS_TRY(into_input(l, &w->up, dup, dx, true, rows, n));
done:
    return status;
}

/* Experts are run again one by one: what one computed does not outlive the next. */
static ls_status moe_backward(leaf *l, int64_t layer_i, rows_of dh, rows_of x, rows_of dx) {
    const ls_jamba_config *c = l->config;
    const ls_layer *layer = &l->t->parameters->model->layers[layer_i];
    ls_tape *t = l->t;
    ls_workspace *ws = &l->ws;
    const ls_forward f = {t->parameters->model, l->queue, t->cache, ws, l->spans, l->n_spans, l->rows};
    const rows_of y = {ws->moe_y, LS_F32, c->hidden}, picked = {ws->picked_x, ws->dtype, c->hidden};
    const rows_of drouter = {t->drouter, LS_F32, c->n_experts};
    const ls_moe_route_backward_args route = {ws->router, l->rows,    c->n_experts, c->top_k,
                                              ws->expert, t->dweight, t->drouter};
    ls_status status = LS_OK;
    memset(t->dx, 0, (size_t)(l->rows * c->hidden) * sizeof(float));
    for (int32_t e = 0; e < c->n_experts; e++) {
        int64_t n;
        LS_TRY(ls_jamba_expert(&f, layer_i, e, &n, l->err));
        const ls_moe_combine_backward_args combine = {ws->moe_y, ws->picked_rows, ws->picked_weight,
                                                      dh.data,   ws->moe_y,       t->picked_dweight,
                                                      n,         c->hidden,       l->rows};
        if (n == 0) continue;
        LS_TRY(ls_moe_combine_backward(l->queue, &combine, l->err));
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = ws->picked_rows[i] * c->top_k;
            for (int64_t k = 0; k < c->top_k; k++)
                if (ws->expert[at + k] == e) t->dweight[at + k] = t->picked_dweight[i];
        }
        LS_TRY(ffn_backward(l, &layer->ffn[e], y, picked, dx, true, ws->picked_rows, n));
    }
    LS_TRY(ls_moe_route_backward(l->queue, &route, l->err));
    LS_TRY(into_weight(l, &layer->router, drouter, x, NULL, l->rows));
    LS_TRY(into_input(l, &layer->router, drouter, dx, true, NULL, l->rows));
done:
    return status;
}

/* ---- halves, head, embedding ---- */

/* Sets l->h and l->ws to what half number half_i computed for the leaf, running it again where it was not kept. */
static ls_status recall(leaf *l, int64_t half_i) {
    const ls_jamba_config *c = l->config;
    const int64_t elem = ls_dtype_bytes(l->t->opts.dtype), row = l->row;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    const bool ffn = half_i % 2 == 1, attention = !ffn && c->is_attention[half_i / 2];
    ls_workspace *ws = l->t->ws[half_i];
    ls_tape *t = l->t;
    l->h = t->h[half_i] + row * c->hidden;
    l->ws = *ws;
    if (t->opts.recompute) {
        const ls_forward f = {t->parameters->model, l->queue, t->cache, ws, l->spans, l->n_spans, l->rows};
        memcpy(ws->h, l->h, (size_t)(l->rows * c->hidden) * sizeof(float));
        return ls_jamba_half(&f, half_i / 2, (ls_half)(half_i % 2), l->err);
    }
    l->ws.x = (uint8_t *)ws->x + row * c->hidden * elem;
    if (ffn) {
        l->ws.wide_a += row * c->ffn;
        l->ws.wide_b += row * c->ffn;
        l->ws.gated = (uint8_t *)ws->gated + row * c->ffn * elem;
        if (c->n_experts > 1) {
            l->ws.router += row * c->n_experts;
            l->ws.expert += row * c->top_k;
            l->ws.expert_weight += row * c->top_k;
        }
        if (c->is_moe[half_i / 2]) { /* scratch of the experts, not by rows of the tape */
            l->ws.wide_a = ws->wide_a;
            l->ws.wide_b = ws->wide_b;
            l->ws.gated = ws->gated;
        }
    } else if (attention) {
        l->ws.wide_a = (float *)(void *)((uint8_t *)ws->wide_a + row * (q + 2 * kv) * elem);
        l->ws.gated = (uint8_t *)ws->gated + row * q * elem;
    } else {
        l->ws.wide_a += row * 2 * c->d_inner;
        l->ws.wide_b += row * 2 * c->d_inner;
        l->ws.narrow_raw += row * (c->dt_rank + 2 * (int64_t)c->d_state);
        l->ws.narrow += row * (c->dt_rank + 2 * (int64_t)c->d_state);
        l->ws.gated = (uint8_t *)ws->gated + row * c->d_inner * elem;
    }
    return LS_OK;
}

static ls_status half_backward(leaf *l, int64_t half_i) {
    const ls_jamba *model = l->t->parameters->model;
    const ls_layer *layer = &model->layers[half_i / 2];
    const int64_t dim = l->config->hidden;
    const bool ffn = half_i % 2 == 1;
    ls_status status;
    if (!ffn && model->ablation != LS_ABLATE_NONE && layer->is_attention != (model->ablation == LS_ATTENTION_ONLY))
        return LS_OK;
    LS_TRY(recall(l, half_i));
    {
        const rows_of dh = {l->t->dh, LS_F32, dim}, dx = {l->t->dx, LS_F32, dim}, x = {l->ws.x, l->ws.dtype, dim};
        float *h = l->t->h[half_i] + l->row * dim;
        const rows_of before = {h, LS_F32, dim};
        if (!ffn)
            LS_TRY(layer->is_attention ? attention_backward(l, &layer->attention, dh, x, dx)
                                       : mamba_backward(l, &layer->mamba, dh, x, dx));
        else
            LS_TRY(layer->is_moe ? moe_backward(l, half_i / 2, dh, x, dx)
                                 : ffn_backward(l, &layer->ffn[0], dh, x, dx, false, NULL, l->rows));
        LS_TRY(through_norm(l, ffn ? layer->ffn_norm : layer->input_norm, before, dx, dh, true, dim));
    }
done:
    return status;
}

/* dh behind the last half, from the log-probabilities of the leaf's rows. */
static ls_status head_backward(leaf *l, const int64_t *targets, const float *d_logprob, const float *d_entropy) {
    ls_tape *t = l->t;
    const ls_jamba *model = t->parameters->model;
    const ls_gemm_weight *head = &model->head;
    const int64_t vocab = l->config->vocab, dim = l->config->hidden, end = l->row + l->rows;
    const void *place = l->config->tied ? model->embed : (const void *)head;
    const ls_parameter *p = ls_parameter_of(t->parameters, place);
    const rows_of dx = {t->dx, LS_F32, dim}, dh = {t->dh, LS_F32, dim},
                  h = {t->h[t->n_halves] + l->row * dim, LS_F32, dim};
    int64_t row = l->row, n;
    ls_status status = LS_OK;
    memset(t->dx, 0, (size_t)(l->rows * dim) * sizeof(float));
    while (row < end) {
        LS_TRY(ls_tape_head_block(t, l->queue, targets, &row, end, &n, l->err));
        if (n == 0) break;
        for (int64_t i = 0; i < n; i++) {
            t->block_d[i] = d_logprob[t->block_rows[i]];
            t->block_d_entropy[i] = d_entropy != NULL ? d_entropy[t->block_rows[i]] : 0.0f;
            t->block_rows[i] -= l->row;
        }
        const float *temperature = t->opts.temperature == 1.0f ? NULL : t->temperature;
        const ls_logprob_args forward = {.logits = t->logits,
                                         .rows = n,
                                         .vocab = vocab,
                                         .row_stride = vocab,
                                         .targets = t->block_targets,
                                         .ignore_index = -1,
                                         .temperature = temperature,
                                         .logprob = t->block_logprob,
                                         .lse = t->block_lse,
                                         .entropy = d_entropy != NULL ? t->block_entropy : NULL};
        const ls_logprob_backward_args backward = {.logits = t->logits,
                                                   .rows = n,
                                                   .vocab = vocab,
                                                   .row_stride = vocab,
                                                   .targets = t->block_targets,
                                                   .ignore_index = -1,
                                                   .temperature = temperature,
                                                   .lse = t->block_lse,
                                                   .entropy = forward.entropy,
                                                   .d_logprob = t->block_d,
                                                   .d_entropy = d_entropy != NULL ? t->block_d_entropy : NULL,
                                                   .d_logits = t->logits,
                                                   .d_stride = vocab};
        const ls_gemm_backward_weight_args weight = {.dy = t->logits,
                                                     .dy_stride = vocab,
                                                     .x = t->block_x,
                                                     .x_dtype = t->opts.dtype,
                                                     .x_stride = dim,
                                                     .x_count = n,
                                                     .dw = l->gradient + p->offset,
                                                     .m = n,
                                                     .n = vocab,
                                                     .k = dim};
        const ls_gemm_backward_input_args input = {.dy = t->logits,
                                                   .dy_stride = vocab,
                                                   .w = p->value,
                                                   .w_dtype = p->dtype,
                                                   .dx = t->dx,
                                                   .dx_stride = dim,
                                                   .dx_count = l->rows,
                                                   .dx_rows = t->block_rows,
                                                   .m = n,
                                                   .n = vocab,
                                                   .k = dim};
        LS_TRY(ls_logprob(l->queue, &forward, l->err));
        LS_TRY(ls_logprob_backward(l->queue, &backward, l->err));
        LS_TRY(ls_gemm_backward_weight(l->queue, &weight, l->err));
        LS_TRY(ls_gemm_backward_input(l->queue, &input, l->err));
    }
    LS_TRY(through_norm(l, model->final_norm, h, dx, dh, false, dim));
done:
    return status;
}

ls_status ls_tape_backward(ls_tape *t, ls_queue *queue, int64_t begin, int64_t end, const int64_t *targets,
                           const float *d_logprob, const float *d_entropy, float *gradient, ls_error *err) {
    const ls_jamba *model = t->parameters->model;
    leaf l = {.t = t, .queue = queue, .config = &model->config, .gradient = gradient, .err = err};
    const ls_span *last;
    ls_status status = LS_OK;
    LS_ASSERT(begin >= 0 && begin < end && end <= t->n_spans, "sequences %lld to %lld of %lld", (long long)begin,
              (long long)end, (long long)t->n_spans);
    last = &t->spans[end - 1];
    l.row = t->spans[begin].row;
    l.rows = last->row + last->n_rows - l.row;
    l.n_spans = end - begin;
    LS_TRY(ls_array_alloc((void **)&l.spans, l.n_spans, sizeof *l.spans, "spans", err));
    for (int64_t i = 0; i < l.n_spans; i++) {
        l.spans[i] = t->spans[begin + i];
        l.spans[i].row -= l.row;
    }
    LS_TRY(head_backward(&l, targets, d_logprob, d_entropy));
    for (int64_t i = t->n_halves - 1; i >= 0; i--) LS_TRY(half_backward(&l, i));
    {
        const ls_embed_backward_args embed = {t->tokens + l.row,
                                              t->dh,
                                              model->config.hidden,
                                              gradient + ls_parameter_of(t->parameters, model->embed)->offset,
                                              model->config.vocab,
                                              model->config.hidden,
                                              l.rows,
                                              model->config.pad};
        LS_TRY(ls_embed_backward(queue, &embed, err));
    }
done:
    free(l.spans);
    return status;
}
