/* Mamba-2: forward, backward, tensors. */
#include "model/parts.h"
#include "model/tape_state.h"
#include "op/conv1d.h"
#include "op/elementwise.h"
#include "op/gated_norm.h"
#include "op/ssd.h"

/* Columns of B and of C, which begin behind x. */
static int64_t states_of(const ls_model_config *c) { return (int64_t)c->ssd_groups * c->d_state; }

static ls_status convolve(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_mamba2_weights *w = &f->model->layers[layer_i].mamba2;
    const ls_activations *a = &f->ws->a;
    const ls_batch *batch = f->batch;
    const ls_rows x = ls_rows_column(a->zxbcdt, c->d_inner);
    const ls_conv1d_args args = {.x = x.data,
                                 .x_dtype = LS_F32,
                                 .y_dtype = LS_F32,
                                 .state_dtype = f->ws->dtype,
                                 .x_stride = x.stride,
                                 .w = w->conv_w,
                                 .bias = w->conv_bias,
                                 .y = a->xbc.data,
                                 .y_stride = a->xbc.stride,
                                 .rows = batch->n_rows,
                                 .dim = ls_config_conv_dim(c),
                                 .d_conv = c->d_conv,
                                 .state = ls_cache_state(f->cache, layer_i, "conv"),
                                 .spans = batch->spans,
                                 .n_spans = batch->n_spans,
                                 .span_rows_max = batch->span_rows_max,
                                 .spans_checked = (f->spans_checked & LS_CHECKED_MAMBA) != 0};
    return ls_part_convolve(f, layer_i, args, err);
}

static ls_status scan_spans(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_mamba2_weights *w = &f->model->layers[layer_i].mamba2;
    const ls_activations *a = &f->ws->a;
    const ls_batch *batch = f->batch;
    ls_ssd_args args = {.in_dtype = LS_F32,
                        .out_dtype = LS_F32,
                        .x = a->xbc.data,
                        .dt_raw = ls_rows_column(a->zxbcdt, c->d_inner + ls_config_conv_dim(c)).data,
                        .b = ls_rows_column(a->xbc, c->d_inner).data,
                        .cc = ls_rows_column(a->xbc, c->d_inner + states_of(c)).data,
                        .out = a->ssd.data,
                        .x_stride = a->xbc.stride,
                        .dt_stride = a->zxbcdt.stride,
                        .b_stride = a->xbc.stride,
                        .c_stride = a->xbc.stride,
                        .out_stride = a->ssd.stride,
                        .a = w->a,
                        .dt_bias = w->dt_bias,
                        .d = w->d,
                        .dt_min = c->dt_min,
                        .dt_max = c->dt_max,
                        .rows = batch->n_rows,
                        .n_heads = c->ssd_heads,
                        .head_dim = c->d_inner / c->ssd_heads,
                        .n_groups = c->ssd_groups,
                        .n_states = c->d_state,
                        .state = ls_cache_state(f->cache, layer_i, "ssd"),
                        .scale = ls_cache_state(f->cache, layer_i, "scale"),
                        .state_every = f->cache->state_every,
                        .held = ls_cache_held(f->cache, layer_i),
                        .spans = batch->spans,
                        .n_spans = batch->n_spans,
                        .span_rows_max = batch->span_rows_max,
                        .spans_checked = (f->spans_checked & LS_CHECKED_MAMBA) != 0};
    for (int64_t i = ls_batch_n_runs(f->batch) - 1; i >= 0; i--) {
        const ls_span_run run = ls_batch_run(f->batch, i);
        args.spans = f->batch->spans + run.begin;
        args.n_spans = run.n;
        args.span_rows_max = run.rows_max;
        LS_TRY(ls_part_hand_state(f, layer_i, "ssd", &run, err));
        LS_TRY(ls_part_hand_state(f, layer_i, "scale", &run, err));
        LS_TRY(ls_ssd(f->ws->device, &args, err));
    }
    return LS_OK;
}

static ls_status normalise(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const ls_gated_norm_args args = {.x = a->ssd.data,
                                     .z = a->zxbcdt.data,
                                     .x_stride = a->ssd.stride,
                                     .z_stride = a->zxbcdt.stride,
                                     .w = f->model->layers[layer_i].mamba2.norm,
                                     .eps = c->rms_eps,
                                     .y = a->scanned.data,
                                     .y_dtype = a->scanned.dtype,
                                     .y_stride = a->scanned.stride,
                                     .rows = f->batch->n_rows,
                                     .dim = c->d_inner,
                                     .groups = c->ssd_groups};
    return ls_gated_norm(f->ws->device, &args, err);
}

static ls_status mamba2_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_mamba2_weights *w = &f->model->layers[layer_i].mamba2;
    const ls_activations *a = &f->ws->a;
    LS_TRY(ls_part_project(f, a->zxbcdt, a->x, &w->in_proj, w->in_bias, err));
    LS_TRY(convolve(f, layer_i, err));
    LS_TRY(scan_spans(f, layer_i, err));
    LS_TRY(normalise(f, layer_i, err));
    return ls_part_project(f, a->y, a->scanned, &w->out_proj, w->out_bias, err);
}

/* ---- backward ---- */

/* From the gradient of what out_proj reads to those of the scan's output and of the gate. */
static ls_status norm_backward(const ls_leaf *l, const ls_mamba2_weights *w, const float *dy, float *dssd, ls_rows dz,
                               ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    const ls_gated_norm_backward_args args = {.x = a->ssd.data,
                                              .z = a->zxbcdt.data,
                                              .x_stride = a->ssd.stride,
                                              .z_stride = a->zxbcdt.stride,
                                              .w = w->norm,
                                              .eps = c->rms_eps,
                                              .dy = dy,
                                              .dy_stride = c->d_inner,
                                              .dx = dssd,
                                              .dx_stride = c->d_inner,
                                              .dz = dz.data,
                                              .dz_dtype = dz.dtype,
                                              .dz_stride = dz.stride,
                                              .dw = ls_leaf_gradient(l, w->norm),
                                              .scale = l->tape->scale,
                                              .rows = l->rows,
                                              .dim = c->d_inner,
                                              .groups = c->ssd_groups};
    return ls_gated_norm_backward(l->device, &args, err);
}

/* The gradient of the scan over all of the leaf's rows and spans. */
static ls_ssd_backward_args scan_call(const ls_leaf *l, const ls_mamba2_weights *w, const float *dssd, ls_rows dxbc,
                                      ls_rows ddt) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    const int64_t b = c->d_inner, cc = c->d_inner + states_of(c);
    return (ls_ssd_backward_args){.in_dtype = LS_F32,
                                  .x = a->xbc.data,
                                  .dt_raw = ls_rows_column(a->zxbcdt, c->d_inner + ls_config_conv_dim(c)).data,
                                  .b = ls_rows_column(a->xbc, b).data,
                                  .cc = ls_rows_column(a->xbc, cc).data,
                                  .x_stride = a->xbc.stride,
                                  .dt_stride = a->zxbcdt.stride,
                                  .b_stride = a->xbc.stride,
                                  .c_stride = a->xbc.stride,
                                  .a = w->a,
                                  .dt_bias = w->dt_bias,
                                  .d = w->d,
                                  .dt_min = c->dt_min,
                                  .dt_max = c->dt_max,
                                  .dout = dssd,
                                  .dout_stride = c->d_inner,
                                  .dx = dxbc.data,
                                  .db = ls_rows_column(dxbc, b).data,
                                  .dcc = ls_rows_column(dxbc, cc).data,
                                  .ddt = ddt.data,
                                  .ddt_dtype = ddt.dtype,
                                  .dx_stride = dxbc.stride,
                                  .db_stride = dxbc.stride,
                                  .dc_stride = dxbc.stride,
                                  .ddt_stride = ddt.stride,
                                  .da = ls_leaf_gradient(l, w->a),
                                  .ddt_bias = ls_leaf_gradient(l, w->dt_bias),
                                  .dd = ls_leaf_gradient(l, w->d),
                                  .rows = l->rows,
                                  .n_heads = c->ssd_heads,
                                  .head_dim = c->d_inner / c->ssd_heads,
                                  .n_groups = c->ssd_groups,
                                  .n_states = c->d_state,
                                  .n_spans = l->batch->n_spans,
                                  .continued = true};
}

/* The same from row `first` on, over `rows` of them. */
static ls_ssd_backward_args scan_rows(ls_ssd_backward_args args, int64_t first, int64_t rows) {
    args.x = (const float *)args.x + first * args.x_stride;
    args.dt_raw = (const float *)args.dt_raw + first * args.dt_stride;
    args.b = (const float *)args.b + first * args.b_stride;
    args.cc = (const float *)args.cc + first * args.c_stride;
    args.dout += first * args.dout_stride;
    args.dx += first * args.dx_stride;
    args.db += first * args.db_stride;
    args.dcc += first * args.dc_stride;
    args.ddt = (uint8_t *)args.ddt + first * args.ddt_stride * ls_dtype_bytes(args.ddt_dtype);
    args.rows = rows;
    return args;
}

static ls_ssd_backward_args scan_over(const ls_ssd_backward_args *all, const ls_leaf_cut *cut) {
    ls_ssd_backward_args args = scan_rows(*all, cut->row, cut->rows);
    args.spans = cut->spans;
    args.n_spans = cut->n_spans;
    args.span_rows_max = cut->span_rows_max;
    args.initial = cut->border.initial;
    args.initial_scale = cut->border.initial_scale;
    args.dinitial = cut->border.dinitial;
    args.dfinal = cut->border.dfinal;
    return args;
}

static int64_t scan_bytes(const void *call, const ls_leaf_cut *cut) {
    const ls_ssd_backward_args args = scan_over(call, cut);
    return ls_op_ssd_backward_workspace(&args);
}

static ls_status scan_run(const ls_leaf *l, const void *call, const ls_leaf_cut *cut, ls_error *err) {
    const ls_ssd_backward_args args = scan_over(call, cut);
    return ls_ssd_backward(l->device, &args, err);
}

static ls_status conv_backward(const ls_leaf *l, int64_t layer_i, ls_rows dy, ls_rows dx, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_mamba2_weights *w = &l->model->layers[layer_i].mamba2;
    const ls_rows x = ls_rows_column(l->ws.a.zxbcdt, c->d_inner);
    const ls_conv1d_backward_args args = {.x = x.data,
                                          .x_dtype = LS_F32,
                                          .state_dtype = l->ws.dtype,
                                          .x_stride = x.stride,
                                          .w = w->conv_w,
                                          .bias = w->conv_bias,
                                          .dy = dy.data,
                                          .dy_stride = dy.stride,
                                          .dx = dx.data,
                                          .dx_dtype = dx.dtype,
                                          .dx_stride = dx.stride,
                                          .dw = ls_leaf_gradient(l, w->conv_w),
                                          .dbias = w->conv_bias != NULL ? ls_leaf_gradient(l, w->conv_bias) : NULL,
                                          .rows = l->rows,
                                          .dim = ls_config_conv_dim(c),
                                          .d_conv = c->d_conv,
                                          .continued = true,
                                          .dw_by_channel = true}; /* [D + 2GS][1][W] */
    return ls_leaf_through_convolution(l, layer_i, args, err);
}

/* dz, the gradient of the convolution's input and ddt are columns of one matrix, as in_proj's output is. */
static ls_status mamba2_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_mamba2_weights *w = &l->model->layers[layer_i].mamba2;
    const ls_activations *a = &l->ws.a;
    ls_tape *t = l->tape;
    const int64_t dim = c->d_inner, conv = ls_config_conv_dim(c), rows = l->rows;
    const ls_dtype dtype = w->in_bias == NULL ? ls_leaf_product_dtype(l) : LS_F32;
    const ls_rows dnormed = {t->db, LS_F32, dim}, dz = {t->da, dtype, a->zxbcdt.stride};
    const ls_rows dx = ls_rows_column(dz, dim), ddt = ls_rows_column(dz, dim + conv);
    const ls_rows dxbc = {t->db, LS_F32, conv}; /* dnormed has been read when it is written */
    const ls_ssd_backward_args scan = scan_call(l, w, t->du, dxbc, ddt);
    const ls_leaf_cuts cuts = {&scan, scan_bytes, scan_run};
    const ls_leaf_product out_proj = {
        .w = &w->out_proj, .bias = w->out_bias, .dy = l->dy, .x = a->scanned, .dx = dnormed, .m = rows};
    const ls_leaf_product in_proj = {.w = &w->in_proj, .bias = w->in_bias, .dy = dz, .x = a->x, .dx = l->dx, .m = rows};
    LS_TRY(ls_leaf_through_product(l, &out_proj, err));
    LS_TRY(norm_backward(l, w, dnormed.data, t->du, dz, err));
    LS_TRY(ls_leaf_run_cuts(l, layer_i, "ssd", &cuts, err));
    LS_TRY(conv_backward(l, layer_i, dxbc, dx, err));
    return ls_leaf_through_product(l, &in_proj, err);
}

/* From a = -exp(A_log) to A_log. */
static ls_status mamba2_finish(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const float *a = l->model->layers[layer_i].mamba2.a;
    const ls_multiply_args a_log = {ls_leaf_gradient(l, a), a, l->model->config.ssd_heads, 1.0f};
    return ls_multiply(l->device, &a_log, err);
}

static ls_status mamba2_walk(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    const int64_t dim = c->d_inner, heads = c->ssd_heads, columns = ls_config_conv_dim(c);
    ls_mamba2_weights *m = &layer->mamba2;
    const ls_weight_slot conv = {
        .kind = LS_SLOT_CONV, .n_dims = 3, .dims = {columns, 1, c->d_conv}, .vector = &m->conv_w};
    const ls_weight_slot rates = {.kind = LS_SLOT_RATES, .n_dims = 1, .dims = {heads}, .vector = &m->a};
    LS_TRY(ls_walk_matrix(w, &m->in_proj, dim + columns + heads, c->hidden, w->names->mamba, "in_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &m->out_proj, c->hidden, dim, w->names->mamba, "out_proj.weight"));
    if (c->proj_bias) {
        LS_TRY(ls_walk_vector(w, &m->in_bias, dim + columns + heads, w->names->mamba, "in_proj.bias"));
        LS_TRY(ls_walk_vector(w, &m->out_bias, c->hidden, w->names->mamba, "out_proj.bias"));
    }
    LS_TRY(ls_walk_slot(w, conv, w->names->mamba, "conv1d.weight"));
    if (c->conv_bias) LS_TRY(ls_walk_vector(w, &m->conv_bias, columns, w->names->mamba, "conv1d.bias"));
    LS_TRY(ls_walk_vector(w, &m->norm, dim, w->names->mamba, "norm.weight"));
    LS_TRY(ls_walk_vector(w, &m->dt_bias, heads, w->names->mamba, "dt_bias"));
    LS_TRY(ls_walk_vector(w, &m->d, heads, w->names->mamba, "D"));
    return ls_walk_slot(w, rates, w->names->mamba, "A_log");
}

/* The norm's output, which out_proj's gradient reads, is made again of what a tape keeps. */
const ls_part ls_part_mamba2 = {"mamba2",    mamba2_forward, mamba2_backward, normalise, mamba2_finish,
                                mamba2_walk, false};
