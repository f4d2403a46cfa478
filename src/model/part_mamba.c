/* Mamba-1: forward, backward, tensors. */
#include "model/parts.h"
#include "model/tape_state.h"
#include "num/expf.h"
#include "op/conv1d.h"
#include "op/elementwise.h"
#include "op/mamba_step.h"
#include "op/rmsnorm_backward.h"
#include "op/scan.h"

/* dt, B and C of the narrow rows begin at these columns. */
static int64_t b_column(const ls_model_config *c) { return c->dt_rank; }
static int64_t c_column(const ls_model_config *c) { return c->dt_rank + (int64_t)c->d_state; }

/* to = R(from), unless they are the same rows, as in the profile exact. */
static ls_status round_into(const ls_forward *f, ls_rows to, ls_rows from, int64_t dim, ls_error *err) {
    const ls_round_rows_args args = {from.data, from.stride, to.data, to.stride, f->batch->n_rows, dim};
    return to.data == from.data ? LS_OK : ls_round_rows(f->ws->device, &args, err);
}

/* One of the norms of dt, B and C, which begin at `column` of both. */
static ls_rmsnorm_args inner_norm(const ls_forward *f, ls_rows out, const float *w, int64_t column, int64_t dim) {
    ls_rmsnorm_args args = ls_part_norm_call(f, out, ls_rows_column(f->ws->a.narrow_raw, column), w, dim);
    args.eps = f->model->config.inner_eps;
    return args;
}

/* Norms of dt, B and C; a model without them computes with what x_proj gave. */
static ls_rmsnorm_parts_args inner_norms(const ls_forward *f, const ls_mamba_weights *w) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    return (ls_rmsnorm_parts_args){
        .part = {inner_norm(f, a->dt_in, w->dt_norm, 0, c->dt_rank),
                 inner_norm(f, ls_rows_column(a->narrow, b_column(c)), w->b_norm, b_column(c), c->d_state),
                 inner_norm(f, ls_rows_column(a->narrow, c_column(c)), w->c_norm, c_column(c), c->d_state)},
        .n = 3};
}

/* What the scan reads B and C of. */
static ls_rows narrow_of(const ls_model_config *c, const ls_activations *a) {
    return c->inner_norms ? a->narrow : a->narrow_raw;
}

static ls_status scan_runs(const ls_forward *f, int64_t layer_i, ls_scan_args args, ls_error *err) {
    for (int64_t i = ls_batch_n_runs(f->batch) - 1; i >= 0; i--) {
        const ls_span_run run = ls_batch_run(f->batch, i);
        args.spans = f->batch->spans + run.begin;
        args.n_spans = run.n;
        args.span_rows_max = run.rows_max;
        LS_TRY(ls_part_hand_state(f, layer_i, "scan", &run, err));
        LS_TRY(ls_scan(f->ws->device, &args, err));
    }
    return LS_OK;
}

static ls_status in_turn(const ls_forward *f, int64_t layer_i, const ls_mamba_step_args *ops, ls_error *err) {
    const ls_activations *a = &f->ws->a;
    ls_device *device = f->ws->device;
    LS_TRY(ls_gemm(device, &ops->in_proj, err));
    LS_TRY(ls_part_convolve(f, layer_i, ops->conv, err));
    LS_TRY(ls_gemm(device, &ops->x_proj, err));
    LS_TRY(ops->norms.n > 0 ? ls_rmsnorm_parts(device, &ops->norms, err)
                            : round_into(f, a->dt_in, a->narrow_raw, f->model->config.dt_rank, err));
    LS_TRY(ls_gemm(device, &ops->dt_proj, err));
    return scan_runs(f, layer_i, ops->scan, err);
}

static ls_status mamba_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_mamba_weights *w = &f->model->layers[layer_i].mamba;
    const ls_activations *a = &f->ws->a;
    const ls_batch *batch = f->batch;
    const int64_t dim = c->d_inner, rows = batch->n_rows;
    const ls_rows narrow = narrow_of(c, a), b = ls_rows_column(narrow, b_column(c)),
                  cc = ls_rows_column(narrow, c_column(c)), z = ls_rows_column(a->uz, dim);
    const ls_conv1d_args conv = {.x = a->uz.data,
                                 .x_dtype = LS_F32,
                                 .y_dtype = LS_F32,
                                 .state_dtype = f->ws->dtype,
                                 .x_stride = a->uz.stride,
                                 .w = w->conv_w,
                                 .bias = w->conv_bias,
                                 .y = a->u.data,
                                 .y_stride = a->u.stride,
                                 .rounded = a->u_in.data == a->u.data ? NULL : a->u_in.data,
                                 .rounded_stride = a->u_in.stride,
                                 .rows = rows,
                                 .dim = dim,
                                 .d_conv = c->d_conv,
                                 .state = ls_cache_state(f->cache, layer_i, "conv"),
                                 .spans = batch->spans,
                                 .n_spans = batch->n_spans,
                                 .span_rows_max = batch->span_rows_max,
                                 .spans_checked = (f->spans_checked & LS_CHECKED_MAMBA) != 0};
    const ls_scan_args scan = {.in_dtype = LS_F32,
                               .out_dtype = f->ws->dtype,
                               .u = a->u.data,
                               .dt_raw = a->dt.data,
                               .b = b.data,
                               .cc = cc.data,
                               .z = z.data,
                               .out = a->scanned.data,
                               .u_stride = a->u.stride,
                               .dt_stride = a->dt.stride,
                               .b_stride = b.stride,
                               .c_stride = cc.stride,
                               .z_stride = z.stride,
                               .out_stride = a->scanned.stride,
                               .a2 = w->a2,
                               .dt_bias = w->dt_bias,
                               .d = w->d,
                               .rows = rows,
                               .dim = dim,
                               .n_states = c->d_state,
                               .state = ls_cache_state(f->cache, layer_i, "scan"),
                               .spans = batch->spans,
                               .n_spans = batch->n_spans,
                               .span_rows_max = batch->span_rows_max,
                               .spans_checked = (f->spans_checked & LS_CHECKED_MAMBA) != 0};
    const ls_mamba_step_args ops = {.in_proj = ls_part_product(f, a->uz, a->x, &w->in_proj, w->in_bias, rows),
                                    .conv = conv,
                                    .x_proj = ls_part_product(f, a->narrow_raw, a->u_in, &w->x_proj, NULL, rows),
                                    .norms = c->inner_norms ? inner_norms(f, w) : (ls_rmsnorm_parts_args){.n = 0},
                                    .dt_proj = ls_part_product(f, a->dt, a->dt_in, &w->dt_proj, NULL, rows),
                                    .scan = scan};
    /* One token of each sequence, whose steps nobody reads later. */
    LS_TRY(batch->span_rows_max == 1 && c->inner_norms && !f->keeps ? ls_mamba_step(f->ws->device, &ops, err)
                                                                    : in_turn(f, layer_i, &ops, err));
    return ls_part_project(f, a->y, a->scanned, &w->out_proj, w->out_bias, err);
}

static ls_status mamba_again(const ls_forward *f, int64_t layer_i, ls_error *err) {
    (void)layer_i;
    return round_into(f, f->ws->a.u_in, f->ws->a.u, f->model->config.d_inner, err);
}

/* dz and, behind the convolution, its input's gradient are the two halves of duz. */
static ls_status scan_backward(const ls_leaf *l, int64_t layer_i, const float *dout, ls_rows ddt, ls_rows duz,
                               ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_mamba_weights *w = &l->model->layers[layer_i].mamba;
    const ls_activations *a = &l->ws.a;
    ls_tape *t = l->tape;
    const int64_t dim = c->d_inner;
    const ls_rows narrow = narrow_of(c, a), z = ls_rows_column(a->uz, dim);
    ls_scan_backward_args args = {.in_dtype = LS_F32,
                                  .u = a->u.data,
                                  .dt_raw = a->dt.data,
                                  .b = ls_rows_column(narrow, b_column(c)).data,
                                  .cc = ls_rows_column(narrow, c_column(c)).data,
                                  .z = z.data,
                                  .u_stride = a->u.stride,
                                  .dt_stride = a->dt.stride,
                                  .b_stride = narrow.stride,
                                  .c_stride = narrow.stride,
                                  .z_stride = z.stride,
                                  .a2 = w->a2,
                                  .dt_bias = w->dt_bias,
                                  .d = w->d,
                                  .dout = dout,
                                  .dout_stride = dim,
                                  .du = t->du,
                                  .ddt = ddt.data,
                                  .db = t->db_state,
                                  .dcc = t->dc_state,
                                  .dz = ls_rows_column(duz, dim).data,
                                  .out_dtype = ddt.dtype,
                                  .dz_stride = duz.stride,
                                  .da2 = ls_leaf_gradient(l, w->a2),
                                  .ddt_bias = ls_leaf_gradient(l, w->dt_bias),
                                  .dd = ls_leaf_gradient(l, w->d),
                                  .rows = l->rows,
                                  .dim = dim,
                                  .n_states = c->d_state,
                                  .continued = true};
    for (int64_t i = 0; i < ls_batch_n_runs(l->batch); i++) {
        const ls_span_run run = ls_batch_run(l->batch, i);
        ls_leaf_border border;
        LS_TRY(ls_leaf_border_of(&border, l, layer_i, "scan", i, err));
        args.spans = l->batch->spans + run.begin;
        args.n_spans = run.n;
        args.span_rows_max = run.rows_max;
        args.initial = border.initial;
        args.dinitial = border.dinitial;
        args.dfinal = border.dfinal;
        LS_TRY(ls_scan_backward(l->device, &args, err));
    }
    return LS_OK;
}

/* From A2 = -exp(A_log) log2 e to A_log. */
static ls_status mamba_finish(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const float *a2 = l->model->layers[layer_i].mamba.a2;
    const ls_multiply_args a_log = {ls_leaf_gradient(l, a2), a2, (int64_t)c->d_inner * c->d_state, LS_LN2};
    return ls_multiply(l->device, &a_log, err);
}

/* The gradient of the convolution's input into duz, from du. */
static ls_status conv_backward(const ls_leaf *l, int64_t layer_i, ls_rows duz, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_mamba_weights *w = &l->model->layers[layer_i].mamba;
    ls_tape *t = l->tape;
    const ls_rows x = l->ws.a.uz;
    const int64_t dim = c->d_inner;
    const ls_conv1d_backward_args args = {.x = x.data,
                                          .x_dtype = LS_F32,
                                          .state_dtype = l->ws.dtype,
                                          .x_stride = x.stride,
                                          .w = w->conv_w,
                                          .bias = w->conv_bias,
                                          .dy = t->du,
                                          .dy_stride = dim,
                                          .dx = duz.data,
                                          .dx_dtype = duz.dtype,
                                          .dx_stride = duz.stride,
                                          .dw = ls_leaf_gradient(l, w->conv_w),
                                          .dbias = w->conv_bias != NULL ? ls_leaf_gradient(l, w->conv_bias) : NULL,
                                          .rows = l->rows,
                                          .dim = dim,
                                          .d_conv = c->d_conv,
                                          .continued = true,
                                          .dw_by_channel = true}; /* [D][1][W] */
    return ls_leaf_through_convolution(l, layer_i, args, err);
}

/* Through the norms of dt, B and C. */
static ls_status inner_norms_backward(const ls_leaf *l, const ls_mamba_weights *w, ls_rows ddt, ls_rows db, ls_rows dc,
                                      ls_rows draw, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_rows raw = l->ws.a.narrow_raw;
    ls_rmsnorm_parts_backward_args args = {{ls_leaf_norm_call(l, w->dt_norm, raw, ddt, draw, false, c->dt_rank),
                                            ls_leaf_norm_call(l, w->b_norm, ls_rows_column(raw, b_column(c)), db,
                                                              ls_rows_column(draw, b_column(c)), false, c->d_state),
                                            ls_leaf_norm_call(l, w->c_norm, ls_rows_column(raw, c_column(c)), dc,
                                                              ls_rows_column(draw, c_column(c)), false, c->d_state)},
                                           3};
    for (int64_t i = 0; i < args.n; i++) {
        args.part[i].eps = c->inner_eps;
        args.part[i].scale += i * l->rows;
    }
    return ls_rmsnorm_parts_backward(l->device, &args, err);
}

static ls_status copy_matrix(const ls_leaf *l, ls_rows to, ls_rows from, int64_t columns, ls_error *err) {
    const int64_t f32 = (int64_t)sizeof(float);
    const ls_copy_args args = {to.data, from.data, to.stride * f32, from.stride * f32, l->rows, columns * f32};
    return ls_memory_copy_rows(l->device, &args, err);
}

static ls_status mamba_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_mamba_weights *w = &l->model->layers[layer_i].mamba;
    const ls_activations *a = &l->ws.a;
    ls_tape *t = l->tape;
    const int64_t dim = c->d_inner, rank = c->dt_rank, states = c->d_state, rows = l->rows;
    const ls_dtype dtype = w->in_bias == NULL ? ls_leaf_product_dtype(l) : LS_F32;
    const ls_rows dscan = {t->db, LS_F32, dim}, ddt = {t->ddt, dtype, dim}, du = {t->du, LS_F32, dim};
    const ls_rows duz = {t->da, dtype, 2 * dim};
    const ls_rows dnarrow = {t->dnarrow, LS_F32, rank}, draw = {t->dnarrow_raw, LS_F32, rank + 2 * states};
    const ls_rows db = {t->db_state, LS_F32, states}, dc = {t->dc_state, LS_F32, states};
    const ls_leaf_product out_proj = {
        .w = &w->out_proj, .bias = w->out_bias, .dy = l->dy, .x = a->scanned, .dx = dscan, .m = rows};
    const ls_leaf_product dt_proj = {
        .w = &w->dt_proj, .dy = ddt, .x = a->dt_in, .dx = c->inner_norms ? dnarrow : draw, .m = rows};
    const ls_leaf_product x_proj = {.w = &w->x_proj, .dy = draw, .x = a->u_in, .dx = du, .add = true, .m = rows};
    const ls_leaf_product in_proj = {
        .w = &w->in_proj, .bias = w->in_bias, .dy = duz, .x = a->x, .dx = l->dx, .m = rows};
    LS_TRY(ls_leaf_through_product(l, &out_proj, err));
    LS_TRY(scan_backward(l, layer_i, dscan.data, ddt, duz, err));
    LS_TRY(ls_leaf_through_product(l, &dt_proj, err));
    if (c->inner_norms) {
        LS_TRY(inner_norms_backward(l, w, dnarrow, db, dc, draw, err));
    } else {
        LS_TRY(copy_matrix(l, ls_rows_column(draw, b_column(c)), db, states, err));
        LS_TRY(copy_matrix(l, ls_rows_column(draw, c_column(c)), dc, states, err));
    }
    LS_TRY(ls_leaf_through_product(l, &x_proj, err));
    LS_TRY(conv_backward(l, layer_i, duz, err));
    return ls_leaf_through_product(l, &in_proj, err);
}

static ls_status mamba_walk(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    const int64_t dim = c->d_inner, states = c->d_state, rank = c->dt_rank;
    ls_mamba_weights *m = &layer->mamba;
    const ls_weight_slot conv = {.kind = LS_SLOT_CONV, .n_dims = 3, .dims = {dim, 1, c->d_conv}, .vector = &m->conv_w};
    const ls_weight_slot decay = {.kind = LS_SLOT_DECAY, .n_dims = 2, .dims = {dim, states}, .vector = &m->a2};
    LS_TRY(ls_walk_matrix(w, &m->in_proj, 2 * dim, c->hidden, w->names->mamba, "in_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &m->x_proj, rank + 2 * states, dim, w->names->mamba, "x_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &m->dt_proj, dim, rank, w->names->mamba, "dt_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &m->out_proj, c->hidden, dim, w->names->mamba, "out_proj.weight"));
    if (c->proj_bias) {
        LS_TRY(ls_walk_vector(w, &m->in_bias, 2 * dim, w->names->mamba, "in_proj.bias"));
        LS_TRY(ls_walk_vector(w, &m->out_bias, c->hidden, w->names->mamba, "out_proj.bias"));
    }
    LS_TRY(ls_walk_slot(w, conv, w->names->mamba, "conv1d.weight"));
    if (c->conv_bias) LS_TRY(ls_walk_vector(w, &m->conv_bias, dim, w->names->mamba, "conv1d.bias"));
    if (c->inner_weights) {
        LS_TRY(ls_walk_vector(w, &m->dt_norm, rank, w->names->mamba, "dt_layernorm.weight"));
        LS_TRY(ls_walk_vector(w, &m->b_norm, states, w->names->mamba, "b_layernorm.weight"));
        LS_TRY(ls_walk_vector(w, &m->c_norm, states, w->names->mamba, "c_layernorm.weight"));
    }
    LS_TRY(ls_walk_vector(w, &m->dt_bias, dim, w->names->mamba, "dt_proj.bias"));
    LS_TRY(ls_walk_vector(w, &m->d, dim, w->names->mamba, "D"));
    return ls_walk_slot(w, decay, w->names->mamba, "A_log");
}

const ls_part ls_part_mamba = {"mamba", mamba_forward, mamba_backward, mamba_again, mamba_finish, mamba_walk, false};
