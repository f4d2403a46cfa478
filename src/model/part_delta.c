/* Gated delta rule: forward, backward, tensors. */
#include "model/parts.h"
#include "model/tape_state.h"
#include "op/conv1d.h"
#include "op/delta.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/regroup.h"
#include "op/rmsnorm_backward.h"

/* Columns of all key heads, which those of q are and those of k behind them. */
static int64_t keys_of(const ls_model_config *c) { return (int64_t)c->delta_key_heads * c->d_state; }
static int64_t head_of(const ls_model_config *c) { return c->d_inner / c->delta_heads; }

/* ---- forward ---- */

/* q | k | v and z, and b | a, parted from what a product gave by head, or put together to it. */
static ls_regroup_args qkvz_by_head(const ls_model_config *c, ls_rows by_head, ls_rows qkv, ls_rows z, int64_t rows) {
    const int64_t keys = keys_of(c), heads = c->delta_key_heads, values = c->d_inner / heads;
    return (ls_regroup_args){.x = by_head.data,
                             .x_stride = by_head.stride,
                             .part = {{qkv.data, qkv.stride, c->d_state},
                                      {ls_rows_column(qkv, keys).data, qkv.stride, c->d_state},
                                      {ls_rows_column(qkv, 2 * keys).data, qkv.stride, values},
                                      {z.data, z.stride, values}},
                             .n_parts = 4,
                             .rows = rows,
                             .heads = heads};
}

static ls_regroup_args ba_by_head(const ls_model_config *c, ls_rows by_head, ls_rows ba, int64_t rows) {
    const int64_t heads = c->delta_key_heads, each = c->delta_heads / heads;
    return (ls_regroup_args){
        .x = by_head.data,
        .x_stride = by_head.stride,
        .part = {{ba.data, ba.stride, each}, {ls_rows_column(ba, c->delta_heads).data, ba.stride, each}},
        .n_parts = 2,
        .rows = rows,
        .heads = heads};
}

/* Columns of what the second product gives by head. */
static ls_rows ba_columns(const ls_model_config *c, ls_rows by_head) {
    return (ls_rows){by_head.data, by_head.dtype, 2 * (int64_t)c->delta_heads};
}

static ls_status project_by_head(const ls_forward *f, const ls_delta_weights *w, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const ls_rows ba = ba_columns(c, a->by_head);
    const ls_regroup_args wide = qkvz_by_head(c, a->by_head, a->qkv, a->z, f->batch->n_rows);
    const ls_regroup_args narrow = ba_by_head(c, ba, a->ba, f->batch->n_rows);
    LS_TRY(ls_part_project(f, a->by_head, a->x, &w->qkvz, NULL, err));
    LS_TRY(ls_regroup(f->ws->device, &wide, err));
    LS_TRY(ls_part_project(f, ba, a->x, &w->ba, NULL, err));
    return ls_regroup(f->ws->device, &narrow, err);
}

static ls_status project(const ls_forward *f, const ls_delta_weights *w, ls_error *err) {
    const ls_activations *a = &f->ws->a;
    const ls_rows decays = ls_rows_column(a->ba, f->model->config.delta_heads);
    if (f->model->config.delta_by_head) return project_by_head(f, w, err);
    LS_TRY(ls_part_project(f, a->qkv, a->x, &w->qkv, NULL, err));
    LS_TRY(ls_part_project(f, a->z, a->x, &w->z, NULL, err));
    LS_TRY(ls_part_project(f, a->ba, a->x, &w->b, NULL, err));
    return ls_part_project(f, decays, a->x, &w->a, NULL, err);
}

static ls_status convolve(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const ls_batch *batch = f->batch;
    const ls_conv1d_args args = {.x = a->qkv.data,
                                 .x_dtype = LS_F32,
                                 .y_dtype = LS_F32,
                                 .state_dtype = f->ws->dtype,
                                 .x_stride = a->qkv.stride,
                                 .w = f->model->layers[layer_i].delta.conv_w,
                                 .y = a->qkv_conv.data,
                                 .y_stride = a->qkv_conv.stride,
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

static ls_status run_rule(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_delta_weights *w = &f->model->layers[layer_i].delta;
    const ls_activations *a = &f->ws->a;
    const ls_batch *batch = f->batch;
    const ls_rows in = a->qkv_conv;
    ls_delta_args args = {.in_dtype = LS_F32,
                          .out_dtype = LS_F32,
                          .q = in.data,
                          .k = ls_rows_column(in, keys_of(c)).data,
                          .v = ls_rows_column(in, 2 * keys_of(c)).data,
                          .a = ls_rows_column(a->ba, c->delta_heads).data,
                          .b = a->ba.data,
                          .out = a->delta.data,
                          .q_stride = in.stride,
                          .k_stride = in.stride,
                          .v_stride = in.stride,
                          .a_stride = a->ba.stride,
                          .b_stride = a->ba.stride,
                          .out_stride = a->delta.stride,
                          .rate = w->rate,
                          .dt_bias = w->dt_bias,
                          .rows = batch->n_rows,
                          .n_heads = c->delta_heads,
                          .n_key_heads = c->delta_key_heads,
                          .key_dim = c->d_state,
                          .value_dim = head_of(c),
                          .state = ls_cache_state(f->cache, layer_i, "delta"),
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
        LS_TRY(ls_part_hand_state(f, layer_i, "delta", &run, err));
        LS_TRY(ls_part_hand_state(f, layer_i, "scale", &run, err));
        LS_TRY(ls_delta(f->ws->device, &args, err));
    }
    return LS_OK;
}

/* A head of a row is a row of the norm; then the gate. */
static ls_status normalise(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t size = head_of(c);
    const ls_rows heads = {a->delta.data, LS_F32, size}, normed = {a->normed.data, LS_F32, size};
    const ls_swiglu_args gate = {a->z.data,        a->normed.data,   a->scanned.data,
                                 a->scanned.dtype, f->batch->n_rows, c->d_inner};
    ls_rmsnorm_args norm = ls_part_norm_call(f, normed, heads, f->model->layers[layer_i].delta.norm, size);
    norm.rows = f->batch->n_rows * c->delta_heads;
    LS_TRY(ls_rmsnorm(f->ws->device, &norm, err));
    return ls_swiglu(f->ws->device, &gate, err);
}

static ls_status delta_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_delta_weights *w = &f->model->layers[layer_i].delta;
    const ls_activations *a = &f->ws->a;
    LS_TRY(project(f, w, err));
    LS_TRY(convolve(f, layer_i, err));
    LS_TRY(run_rule(f, layer_i, err));
    LS_TRY(normalise(f, layer_i, err));
    return ls_part_project(f, a->y, a->scanned, &w->out_proj, NULL, err);
}

/* ---- backward: matrices of float32, which a product in mma16 rounds ---- */

/* Where gradients lie, in da and db: each with all rows of the leaf behind the one before. */
typedef struct gradients {
    ls_rows dqkv, dz, dba;  /* in da: of what the products gave */
    ls_rows dgated, ddelta; /* in db, one after the other: of what out_proj reads, of the rule's output */
    ls_rows dconv;          /* in db behind them: of what the rule reads */
} gradients;

static gradients gradients_of(const ls_leaf *l) {
    const ls_model_config *c = &l->model->config;
    const int64_t qkv = ls_config_conv_dim(c), values = c->d_inner, rows = l->rows;
    const ls_tape *t = l->tape;
    return (gradients){.dqkv = {t->da, LS_F32, qkv},
                       .dz = {t->da + rows * qkv, LS_F32, values},
                       .dba = {t->da + rows * (qkv + values), LS_F32, 2 * (int64_t)c->delta_heads},
                       .dgated = {t->db, LS_F32, values},
                       .ddelta = {t->db, LS_F32, values},
                       .dconv = {t->db + rows * values, LS_F32, qkv}};
}

/* Through the gate and the norm of heads. */
static ls_status norm_backward(const ls_leaf *l, const ls_delta_weights *w, const gradients *g, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    const int64_t size = head_of(c);
    const ls_rows heads = {a->delta.data, LS_F32, size}, dnormed = {l->tape->du, LS_F32, size};
    const ls_rows dheads = {g->ddelta.data, LS_F32, size};
    const ls_swiglu_backward_args gate = {a->z.data,   a->normed.data, g->dgated.data, g->dz.data,
                                          l->tape->du, l->rows,        c->d_inner};
    ls_rmsnorm_backward_args norm = ls_leaf_norm_call(l, w->norm, heads, dnormed, dheads, false, size);
    norm.rows = l->rows * c->delta_heads;
    LS_TRY(ls_swiglu_backward(l->device, &gate, err));
    return ls_rmsnorm_backward(l->device, &norm, err);
}

/* The gradient of the rule over all of the leaf's rows and spans. */
static ls_delta_backward_args rule_call(const ls_leaf *l, const ls_delta_weights *w, const gradients *g) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    const ls_rows in = a->qkv_conv;
    return (ls_delta_backward_args){.in_dtype = LS_F32,
                                    .q = in.data,
                                    .k = ls_rows_column(in, keys_of(c)).data,
                                    .v = ls_rows_column(in, 2 * keys_of(c)).data,
                                    .a = ls_rows_column(a->ba, c->delta_heads).data,
                                    .b = a->ba.data,
                                    .q_stride = in.stride,
                                    .k_stride = in.stride,
                                    .v_stride = in.stride,
                                    .a_stride = a->ba.stride,
                                    .b_stride = a->ba.stride,
                                    .rate = w->rate,
                                    .dt_bias = w->dt_bias,
                                    .dout = g->ddelta.data,
                                    .dout_stride = g->ddelta.stride,
                                    .dq = g->dconv.data,
                                    .dk = ls_rows_column(g->dconv, keys_of(c)).data,
                                    .dv = ls_rows_column(g->dconv, 2 * keys_of(c)).data,
                                    .da = ls_rows_column(g->dba, c->delta_heads).data,
                                    .db = g->dba.data,
                                    .dab_dtype = LS_F32,
                                    .dq_stride = g->dconv.stride,
                                    .dk_stride = g->dconv.stride,
                                    .dv_stride = g->dconv.stride,
                                    .da_stride = g->dba.stride,
                                    .db_stride = g->dba.stride,
                                    .drate = ls_leaf_gradient(l, w->rate),
                                    .ddt_bias = ls_leaf_gradient(l, w->dt_bias),
                                    .n_heads = c->delta_heads,
                                    .n_key_heads = c->delta_key_heads,
                                    .key_dim = c->d_state,
                                    .value_dim = head_of(c),
                                    .continued = true};
}

/* The same over a cut's rows. */
static ls_delta_backward_args rule_over(const ls_delta_backward_args *all, const ls_leaf_cut *cut) {
    ls_delta_backward_args args = *all;
    args.q = (const float *)args.q + cut->row * args.q_stride;
    args.k = (const float *)args.k + cut->row * args.k_stride;
    args.v = (const float *)args.v + cut->row * args.v_stride;
    args.a = (const float *)args.a + cut->row * args.a_stride;
    args.b = (const float *)args.b + cut->row * args.b_stride;
    args.dout += cut->row * args.dout_stride;
    args.dq += cut->row * args.dq_stride;
    args.dk += cut->row * args.dk_stride;
    args.dv += cut->row * args.dv_stride;
    args.da = (float *)args.da + cut->row * args.da_stride;
    args.db = (float *)args.db + cut->row * args.db_stride;
    args.rows = cut->rows;
    args.spans = cut->spans;
    args.n_spans = cut->n_spans;
    args.span_rows_max = cut->span_rows_max;
    args.initial = cut->border.initial;
    args.initial_scale = cut->border.initial_scale;
    args.dinitial = cut->border.dinitial;
    args.dfinal = cut->border.dfinal;
    return args;
}

static int64_t rule_bytes(const void *call, const ls_leaf_cut *cut) {
    const ls_delta_backward_args args = rule_over(call, cut);
    return ls_op_delta_backward_workspace(&args);
}

static ls_status rule_run(const ls_leaf *l, const void *call, const ls_leaf_cut *cut, ls_error *err) {
    const ls_delta_backward_args args = rule_over(call, cut);
    return ls_delta_backward(l->device, &args, err);
}

static ls_status conv_backward(const ls_leaf *l, int64_t layer_i, const gradients *g, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_delta_weights *w = &l->model->layers[layer_i].delta;
    const ls_rows x = l->ws.a.qkv;
    const ls_conv1d_backward_args args = {.x = x.data,
                                          .x_dtype = LS_F32,
                                          .state_dtype = l->ws.dtype,
                                          .x_stride = x.stride,
                                          .w = w->conv_w,
                                          .dy = g->dconv.data,
                                          .dy_stride = g->dconv.stride,
                                          .dx = g->dqkv.data,
                                          .dx_dtype = LS_F32,
                                          .dx_stride = g->dqkv.stride,
                                          .dw = ls_leaf_gradient(l, w->conv_w),
                                          .rows = l->rows,
                                          .dim = ls_config_conv_dim(c),
                                          .d_conv = c->d_conv,
                                          .continued = true,
                                          .dw_by_channel = true}; /* [C][1][W] */
    return ls_leaf_through_convolution(l, layer_i, args, err);
}

/* The gradients of what the products gave are put together in db, which nothing reads any more. */
static ls_status by_head_backward(const ls_leaf *l, const ls_delta_weights *w, const gradients *g, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_rows wide = {l->tape->db, LS_F32, g->dqkv.stride + g->dz.stride}, narrow = ba_columns(c, wide);
    ls_regroup_args of_qkvz = qkvz_by_head(c, wide, g->dqkv, g->dz, l->rows);
    ls_regroup_args of_ba = ba_by_head(c, narrow, g->dba, l->rows);
    const ls_leaf_product qkvz = {.w = &w->qkvz, .dy = wide, .x = l->ws.a.x, .dx = l->dx, .m = l->rows};
    const ls_leaf_product ba = {.w = &w->ba, .dy = narrow, .x = l->ws.a.x, .dx = l->dx, .add = true, .m = l->rows};
    of_qkvz.gathers = of_ba.gathers = true;
    LS_TRY(ls_regroup(l->device, &of_qkvz, err));
    LS_TRY(ls_leaf_through_product(l, &qkvz, err));
    LS_TRY(ls_regroup(l->device, &of_ba, err));
    return ls_leaf_through_product(l, &ba, err);
}

static ls_status projections_backward(const ls_leaf *l, const ls_delta_weights *w, const gradients *g, ls_error *err) {
    const ls_rows da = ls_rows_column(g->dba, l->model->config.delta_heads);
    const struct {
        const ls_gemm_weight *w;
        ls_rows dy;
    } products[] = {{&w->qkv, g->dqkv}, {&w->z, g->dz}, {&w->b, g->dba}, {&w->a, da}};
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        const ls_leaf_product product = {
            .w = products[i].w, .dy = products[i].dy, .x = l->ws.a.x, .dx = l->dx, .add = i > 0, .m = l->rows};
        LS_TRY(ls_leaf_through_product(l, &product, err));
    }
    return LS_OK;
}

static ls_status delta_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_delta_weights *w = &l->model->layers[layer_i].delta;
    const gradients g = gradients_of(l);
    const ls_delta_backward_args rule = rule_call(l, w, &g);
    const ls_leaf_cuts cuts = {&rule, rule_bytes, rule_run};
    const ls_leaf_product out_proj = {
        .w = &w->out_proj, .dy = l->dy, .x = l->ws.a.scanned, .dx = g.dgated, .m = l->rows};
    LS_TRY(ls_leaf_through_product(l, &out_proj, err));
    LS_TRY(norm_backward(l, w, &g, err));
    LS_TRY(ls_leaf_run_cuts(l, layer_i, "delta", &cuts, err));
    LS_TRY(conv_backward(l, layer_i, &g, err));
    if (l->model->config.delta_by_head) return by_head_backward(l, w, &g, err);
    return projections_backward(l, w, &g, err);
}

/* From rate = -exp(A_log) to A_log. */
static ls_status delta_finish(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const float *rate = l->model->layers[layer_i].delta.rate;
    const ls_multiply_args a_log = {ls_leaf_gradient(l, rate), rate, l->model->config.delta_heads, 1.0f};
    return ls_multiply(l->device, &a_log, err);
}

/* ---- tensors ---- */

static ls_status walk_projections(const ls_walk *w, ls_delta_weights *d) {
    const ls_model_config *c = &w->model->config;
    const int64_t values = c->d_inner, heads = c->delta_heads, qkv = ls_config_conv_dim(c);
    const char *prefix = w->names->mamba;
    if (c->delta_by_head) {
        LS_TRY(ls_walk_matrix(w, &d->qkvz, qkv + values, c->hidden, prefix, "in_proj_qkvz.weight"));
        return ls_walk_matrix(w, &d->ba, 2 * heads, c->hidden, prefix, "in_proj_ba.weight");
    }
    LS_TRY(ls_walk_matrix(w, &d->qkv, qkv, c->hidden, prefix, "in_proj_qkv.weight"));
    LS_TRY(ls_walk_matrix(w, &d->z, values, c->hidden, prefix, "in_proj_z.weight"));
    LS_TRY(ls_walk_matrix(w, &d->b, heads, c->hidden, prefix, "in_proj_b.weight"));
    return ls_walk_matrix(w, &d->a, heads, c->hidden, prefix, "in_proj_a.weight");
}

static ls_status delta_walk(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    const int64_t dim = c->d_inner, heads = c->delta_heads, qkv = ls_config_conv_dim(c);
    const char *prefix = w->names->mamba;
    ls_delta_weights *d = &layer->delta;
    const ls_weight_slot conv = {.kind = LS_SLOT_CONV, .n_dims = 3, .dims = {qkv, 1, c->d_conv}, .vector = &d->conv_w};
    const ls_weight_slot rate = {.kind = LS_SLOT_RATES, .n_dims = 1, .dims = {heads}, .vector = &d->rate};
    LS_TRY(walk_projections(w, d));
    LS_TRY(ls_walk_matrix(w, &d->out_proj, c->hidden, dim, prefix, "out_proj.weight"));
    LS_TRY(ls_walk_slot(w, conv, prefix, "conv1d.weight"));
    LS_TRY(ls_walk_vector(w, &d->norm, head_of(c), prefix, "norm.weight"));
    LS_TRY(ls_walk_vector(w, &d->dt_bias, heads, prefix, "dt_bias"));
    return ls_walk_slot(w, rate, prefix, "A_log");
}

/* What the norm and the gate give is made again of what a tape keeps. */
const ls_part ls_part_delta = {"delta", delta_forward, delta_backward, normalise, delta_finish, delta_walk, false};
