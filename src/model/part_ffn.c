/* Feed-forward, dense with a gate and without, and as a mixture of experts: forward, backward, tensors. */
#include <stdio.h>

#include "model/parts.h"
#include "model/tape_state.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gather.h"
#include "op/gemm_groups.h"
#include "op/moe_backward.h"
#include "op/moe_sigmoid.h"
#include "op/sigmoid_gate.h"

/* What down reads, from gate and up or from up alone, over m rows of this width. */
static ls_status activate(const ls_forward *f, int64_t m, int64_t width, ls_error *err) {
    const ls_activations *a = &f->ws->a;
    const ls_swiglu_args swiglu = {a->gate.data, a->up.data, a->gated.data, a->gated.dtype, m, width};
    const ls_relu2_args relu2 = {a->up.data, a->gated.data, a->gated.dtype, m, width};
    return f->model->config.ungated ? ls_relu2(f->ws->device, &relu2, err) : ls_swiglu(f->ws->device, &swiglu, err);
}

/* The rows of a dense feed-forward. */
static ls_status activate_again(const ls_forward *f, int64_t layer_i, ls_error *err) {
    (void)layer_i;
    return activate(f, f->batch->n_rows, f->model->config.ffn, err);
}

/* Where no gradient needs gate and up. */
static ls_status gated_at_once(const ls_forward *f, const ls_ffn_weights *w, int64_t m, ls_error *err) {
    const ls_activations *a = &f->ws->a;
    const ls_gemm_gated_args args = {ls_part_product(f, a->gate, a->x, &w->gate, NULL, m), &w->up, a->up.data,
                                     a->gated.data, a->gated.dtype};
    return ls_gemm_gated(f->ws->device, &args, err);
}

static ls_status dense_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_ffn_weights *w = &f->model->layers[layer_i].expert[0];
    const ls_activations *a = &f->ws->a;
    if (f->ws->for_training) {
        LS_TRY(ls_part_project(f, a->gate, a->x, &w->gate, NULL, err));
        LS_TRY(ls_part_project(f, a->up, a->x, &w->up, NULL, err));
        LS_TRY(activate_again(f, layer_i, err));
    } else {
        LS_TRY(gated_at_once(f, w, f->batch->n_rows, err));
    }
    return ls_part_project(f, a->y, a->gated, &w->down, NULL, err);
}

static ls_status ungated_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_ffn_weights *w = &f->model->layers[layer_i].expert[0];
    const ls_activations *a = &f->ws->a;
    LS_TRY(ls_part_project(f, a->up, a->x, &w->up, NULL, err));
    LS_TRY(activate_again(f, layer_i, err));
    return ls_part_project(f, a->y, a->gated, &w->down, NULL, err);
}

/* ---- mixture of experts ----
 *
 * Every choice of a row is a pick. Picks lie in the order of their experts, so that an expert's products run over one
 * range of them, whose ends only the device knows. */

static ls_status gather_rows(ls_device *device, ls_rows x, int64_t x_rows, const int64_t *index, int64_t n,
                             int64_t columns, ls_rows out, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(x.dtype);
    const ls_gather_args args = {x.data,          index, out.data,          x_rows,
                                 x.stride * elem, n,     out.stride * elem, columns * elem};
    return ls_gather(device, &args, err);
}

typedef const ls_gemm_weight *(*matrix_of)(const ls_ffn_weights *);
static const ls_gemm_weight *gate_of(const ls_ffn_weights *w) { return &w->gate; }
static const ls_gemm_weight *up_of(const ls_ffn_weights *w) { return &w->up; }
static const ls_gemm_weight *down_of(const ls_ffn_weights *w) { return &w->down; }

/* Every expert's picks through one of its matrices. */
static ls_status through_experts(const ls_forward *f, int64_t layer_i, matrix_of matrix, ls_rows out, ls_rows x,
                                 ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_layer *layer = &f->model->layers[layer_i];
    const ls_gemm_weight *weights[LS_EXPERTS_MAX];
    const ls_gemm_groups_args args = {.x = x.data,
                                      .x_dtype = x.dtype,
                                      .x_stride = x.stride,
                                      .weights = weights,
                                      .n_groups = c->n_experts,
                                      .offsets = f->ws->a.expert_offsets,
                                      .out = out.data,
                                      .out_dtype = out.dtype,
                                      .out_stride = out.stride,
                                      .m = f->batch->n_rows * c->top_k,
                                      .profile = f->model->profile};
    for (int64_t e = 0; e < c->n_experts; e++) weights[e] = matrix(&layer->expert[e]);
    return ls_gemm_groups(f->ws->device, &args, err);
}

/* The picks of the rows, from their routing, and what every expert makes of its own: picked_y. */
static ls_status run_experts(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t rows = f->batch->n_rows, picks = rows * c->top_k;
    const ls_moe_place_args place = {a->expert, rows,        c->n_experts, c->top_k,
                                     a->pick,   a->pick_row, a->place,     a->expert_offsets};
    const ls_rows weights = {a->expert_weight, LS_F32, 1}, picked = {a->picked_weight, LS_F32, 1};
    LS_TRY(ls_moe_place(f->ws->device, &place, err));
    LS_TRY(gather_rows(f->ws->device, a->x, rows, a->pick_row, picks, c->hidden, a->picked_x, err));
    LS_TRY(gather_rows(f->ws->device, weights, picks, a->pick, picks, 1, picked, err));
    if (!c->ungated) LS_TRY(through_experts(f, layer_i, gate_of, a->gate, a->picked_x, err));
    LS_TRY(through_experts(f, layer_i, up_of, a->up, a->picked_x, err));
    LS_TRY(activate(f, picks, c->ffn, err));
    return through_experts(f, layer_i, down_of, a->picked_y, a->gated, err);
}

/* ---- the expert of all rows: it runs where those that were chosen have run, in their memory ---- */

static ls_rows columns_of(ls_rows rows, int64_t columns) { return (ls_rows){rows.data, rows.dtype, columns}; }

static bool shared_is_gated(const ls_model_config *c) { return c->names->shared_gate != NULL; }

/* Its output, and what its gate takes where it has one. */
static ls_status run_shared(const ls_forward *f, const ls_layer *layer, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t width = c->shared_ffn;
    if (!c->ungated) LS_TRY(ls_part_project(f, columns_of(a->gate, width), a->x, &layer->shared.gate, NULL, err));
    LS_TRY(ls_part_project(f, columns_of(a->up, width), a->x, &layer->shared.up, NULL, err));
    LS_TRY(activate(f, f->batch->n_rows, width, err));
    LS_TRY(ls_part_project(f, a->shared, columns_of(a->gated, width), &layer->shared.down, NULL, err));
    return shared_is_gated(c) ? ls_part_project(f, a->shared_gate, a->x, &layer->shared_gate, NULL, err) : LS_OK;
}

/* Onto what the chosen experts gave. */
static ls_status add_shared(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t rows = f->batch->n_rows, hidden = c->hidden;
    const ls_sigmoid_gate_args gate = {.x = a->shared.data,
                                       .x_dtype = LS_F32,
                                       .gate = a->shared_gate.data,
                                       .x_stride = hidden,
                                       .gate_stride = 1,
                                       .y = a->picked_y.data,
                                       .y_dtype = LS_F32,
                                       .y_stride = hidden,
                                       .rows = rows,
                                       .dim = hidden,
                                       .gates = 1};
    const ls_residual_args add = {a->y.data, shared_is_gated(c) ? a->picked_y.data : a->shared.data, rows, hidden,
                                  NULL};
    if (c->shared_ffn == 0) return LS_OK;
    LS_TRY(run_shared(f, &f->model->layers[layer_i], err));
    if (shared_is_gated(c)) LS_TRY(ls_sigmoid_gate(f->ws->device, &gate, err));
    return ls_residual(f->ws->device, &add, err);
}

/* The chosen experts of each row and their weights. */
static ls_status route(const ls_forward *f, const ls_layer *layer, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t rows = f->batch->n_rows;
    const ls_moe_route_args softmax = {a->router.data, rows, c->n_experts, c->top_k, a->expert, a->expert_weight};
    const ls_moe_reweigh_args reweigh = {a->router.data, rows, c->n_experts, c->top_k, a->expert, a->expert_weight};
    const ls_moe_sigmoid_route_args sigmoid = {.logits = a->router.data,
                                               .bias = layer->router_bias,
                                               .rows = rows,
                                               .n_experts = c->n_experts,
                                               .top_k = c->top_k,
                                               .n_groups = c->router_groups,
                                               .top_groups = c->router_top_groups,
                                               .normalised = c->reweighs,
                                               .scale = c->router_scale,
                                               .expert = a->expert,
                                               .weight = a->expert_weight};
    LS_TRY(ls_part_project_exact(f, a->router, a->x, &layer->router, err));
    if (c->router_groups > 0) return ls_moe_sigmoid_route(f->ws->device, &sigmoid, err);
    LS_TRY(ls_moe_route(f->ws->device, &softmax, err));
    return c->reweighs ? ls_moe_reweigh(f->ws->device, &reweigh, err) : LS_OK;
}

static ls_status experts_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t rows = f->batch->n_rows;
    const ls_moe_sum_args sum = {a->picked_y.data, a->place, a->expert_weight, a->y.data, rows, c->top_k, c->hidden};
    LS_TRY(route(f, &f->model->layers[layer_i], err));
    LS_TRY(run_experts(f, layer_i, err));
    LS_TRY(ls_moe_sum(f->ws->device, &sum, err));
    return add_shared(f, layer_i, err);
}

/* ---- backward ---- */

/* What only products read, and where it lies. */
static ls_rows dgate_of(const ls_leaf *l) {
    const ls_dtype dtype = ls_leaf_product_dtype(l);
    return (ls_rows){dtype == LS_F32 ? (void *)l->tape->da : l->tape->rounded, dtype, l->model->config.ffn};
}
static ls_rows dup_of(const ls_leaf *l) {
    return (ls_rows){l->tape->db, ls_leaf_product_dtype(l), l->model->config.ffn};
}

/* Behind the activation: dgated, which lies in da, to dup and, where there is a gate, dgate, over m rows. */
static ls_status activate_backward(const ls_leaf *l, int64_t m, ls_rows dgate, ls_rows dup, ls_error *err) {
    const ls_activations *a = &l->ws.a;
    const int64_t width = dup.stride;
    const ls_swiglu_backward_args swiglu = {a->gate.data, a->up.data, l->tape->da, dgate.data, dup.data, m, width};
    const ls_swiglu_backward_rounded_args rounded = {a->gate.data, a->up.data, l->tape->da, dgate.data,
                                                     dup.data,     m,          width};
    const ls_relu2_backward_args relu2 = {a->up.data, l->tape->da, dup.data, dup.dtype, m, width};
    if (l->model->config.ungated) return ls_relu2_backward(l->device, &relu2, err);
    return dgate.dtype == LS_F32 ? ls_swiglu_backward(l->device, &swiglu, err)
                                 : ls_swiglu_backward_rounded(l->device, &rounded, err);
}

static ls_status dense_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_ffn_weights *w = &l->model->layers[layer_i].expert[0];
    const ls_activations *a = &l->ws.a;
    const ls_rows dgate = {l->tape->da, LS_F32, l->model->config.ffn};
    const ls_leaf_product down = {.w = &w->down, .dy = l->dy, .x = a->gated, .dx = dgate, .m = l->rows};
    const ls_leaf_product gate = {.w = &w->gate, .dy = dgate_of(l), .x = a->x, .dx = l->dx, .m = l->rows};
    const ls_leaf_product up = {.w = &w->up, .dy = dup_of(l), .x = a->x, .dx = l->dx, .add = true, .m = l->rows};
    LS_TRY(ls_leaf_through_product(l, &down, err));
    LS_TRY(activate_backward(l, l->rows, gate.dy, up.dy, err));
    LS_TRY(ls_leaf_through_product(l, &gate, err));
    return ls_leaf_through_product(l, &up, err);
}

static ls_status ungated_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_ffn_weights *w = &l->model->layers[layer_i].expert[0];
    const ls_activations *a = &l->ws.a;
    const ls_rows dsquared = {l->tape->da, LS_F32, l->model->config.ffn}, dup = dup_of(l);
    const ls_leaf_product down = {.w = &w->down, .dy = l->dy, .x = a->gated, .dx = dsquared, .m = l->rows};
    const ls_leaf_product up = {.w = &w->up, .dy = dup, .x = a->x, .dx = l->dx, .m = l->rows};
    LS_TRY(ls_leaf_through_product(l, &down, err));
    LS_TRY(activate_backward(l, l->rows, dup, dup, err));
    return ls_leaf_through_product(l, &up, err);
}

/* Gradients of the weights that the experts' outputs were added with, row by row. */
static ls_status router_backward(const ls_leaf *l, const ls_layer *layer, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    const int64_t picks = l->rows * c->top_k;
    const ls_rows picked = {l->tape->picked_dweight, LS_F32, 1}, dweight = {l->tape->dweight, LS_F32, 1};
    const ls_rows drouter = {l->tape->drouter, LS_F32, c->n_experts};
    const ls_moe_route_backward_args route = {a->router.data, l->rows,          c->n_experts,    c->top_k,
                                              a->expert,      l->tape->dweight, l->tape->drouter};
    const ls_moe_reweigh_backward_args reweigh = {a->router.data, l->rows,          c->n_experts,    c->top_k,
                                                  a->expert,      l->tape->dweight, l->tape->drouter};
    const ls_moe_sigmoid_route_backward_args sigmoid = {.logits = a->router.data,
                                                        .rows = l->rows,
                                                        .n_experts = c->n_experts,
                                                        .top_k = c->top_k,
                                                        .expert = a->expert,
                                                        .d_weight = l->tape->dweight,
                                                        .normalised = c->reweighs,
                                                        .scale = c->router_scale,
                                                        .dlogits = l->tape->drouter};
    const ls_leaf_product router = {
        .w = &layer->router, .dy = drouter, .x = a->x, .dx = l->dx, .add = true, .exact = true, .m = l->rows};
    LS_TRY(gather_rows(l->device, picked, picks, a->place, picks, 1, dweight, err));
    LS_TRY(c->router_groups > 0 ? ls_moe_sigmoid_route_backward(l->device, &sigmoid, err)
           : c->reweighs        ? ls_moe_reweigh_backward(l->device, &reweigh, err)
                                : ls_moe_route_backward(l->device, &route, err));
    return ls_leaf_through_product(l, &router, err);
}

/* A product of every expert on its way back, over its picks: dw of each; then dx = dy w. dy is of
 * ls_leaf_product_dtype. */
static ls_status back_through_experts(const ls_leaf *l, int64_t layer_i, matrix_of matrix, ls_rows dy, ls_rows x,
                                      ls_rows dx, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_layer *layer = &l->model->layers[layer_i];
    const ls_activations *a = &l->ws.a;
    const ls_gemm_weight *shape = matrix(&layer->expert[0]);
    const void *w[LS_EXPERTS_MAX];
    float *dw[LS_EXPERTS_MAX];
    ls_dtype w_dtype = shape->dtype;
    for (int64_t e = 0; e < c->n_experts; e++) {
        const ls_parameter *p = ls_parameter_of_matrix(l->tape->parameters, matrix(&layer->expert[e]));
        w[e] = ls_parameter_value(p);
        dw[e] = ls_leaf_gradient_of(l, p);
        w_dtype = p->dtype;
    }
    const ls_gemm_groups_backward_weight_args weight = {.dy = dy.data,
                                                        .dy_dtype = dy.dtype,
                                                        .dy_stride = dy.stride,
                                                        .x = x.data,
                                                        .x_dtype = x.dtype,
                                                        .x_stride = x.stride,
                                                        .dw = dw,
                                                        .n_groups = c->n_experts,
                                                        .offsets = a->expert_offsets,
                                                        .rows = a->pick_row,
                                                        .sequences = l->tape->sequences,
                                                        .n_sequences = l->batch->n_spans,
                                                        .m = l->rows * c->top_k,
                                                        .n = shape->n,
                                                        .k = shape->k,
                                                        .profile = l->model->profile,
                                                        .dw_is_zero = l->gradient_is_zero};
    const ls_gemm_groups_backward_input_args input = {.dy = dy.data,
                                                      .dy_dtype = dy.dtype,
                                                      .dy_stride = dy.stride,
                                                      .w = w,
                                                      .w_dtype = w_dtype,
                                                      .n_groups = c->n_experts,
                                                      .offsets = a->expert_offsets,
                                                      .dx = dx.data,
                                                      .dx_stride = dx.stride,
                                                      .m = l->rows * c->top_k,
                                                      .n = shape->n,
                                                      .k = shape->k,
                                                      .profile = l->model->profile};
    LS_TRY(ls_gemm_groups_backward_weight(l->device, &weight, err));
    return ls_gemm_groups_backward_input(l->device, &input, err);
}

/* Gradients of the experts' outputs as products read them: in mma16 rounded. */
static ls_status round_picks(const ls_leaf *l, ls_rows *dy, int64_t picks, ls_error *err) {
    const int64_t hidden = l->model->config.hidden;
    const ls_round_rows_args args = {dy->data, dy->stride, l->tape->rounded, hidden, picks, hidden};
    if (ls_leaf_product_dtype(l) == LS_F32) return LS_OK;
    *dy = (ls_rows){l->tape->rounded, LS_BF16, hidden};
    return ls_round_rows(l->device, &args, err);
}

/* From the gradient of the shared expert's gated output to those of its own output, and of what its gate takes. */
static ls_status shared_gate_backward(const ls_leaf *l, ls_rows dshared, ls_rows dtaken, ls_error *err) {
    const ls_activations *a = &l->ws.a;
    const int64_t hidden = l->model->config.hidden;
    const ls_sigmoid_gate_backward_args gate = {.x = a->shared.data,
                                                .x_dtype = LS_F32,
                                                .gate = a->shared_gate.data,
                                                .x_stride = hidden,
                                                .gate_stride = 1,
                                                .dy = l->dy.data,
                                                .dy_stride = l->dy.stride,
                                                .dx = dshared.data,
                                                .dx_stride = hidden,
                                                .dgate = dtaken.data,
                                                .dgate_dtype = LS_F32,
                                                .dgate_stride = 1,
                                                .rows = l->rows,
                                                .dim = hidden,
                                                .gates = 1};
    return ls_sigmoid_gate_backward(l->device, &gate, err);
}

/* The shared expert is run again for the leaf too, behind the gradients of the others, whose memory it takes. */
static ls_status shared_backward(const ls_leaf *l, const ls_layer *layer, const ls_forward *f, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    const int64_t rows = l->rows, width = c->shared_ffn;
    const ls_rows dgated = {l->tape->picked_dx, LS_F32, c->hidden}, dtaken = {l->tape->dweight, LS_F32, 1};
    const ls_rows dgate = {l->tape->da, LS_F32, width}, dup = {l->tape->db, LS_F32, width};
    const ls_rows dshared = shared_is_gated(c) ? dgated : l->dy;
    const ls_leaf_product down = {
        .w = &layer->shared.down, .dy = dshared, .x = columns_of(a->gated, width), .dx = dgate, .m = rows};
    const ls_leaf_product gate = {
        .w = &layer->shared.gate, .dy = dgate, .x = a->x, .dx = l->dx, .add = true, .m = rows};
    const ls_leaf_product up = {.w = &layer->shared.up, .dy = dup, .x = a->x, .dx = l->dx, .add = true, .m = rows};
    const ls_leaf_product taken = {
        .w = &layer->shared_gate, .dy = dtaken, .x = a->x, .dx = l->dx, .add = true, .m = rows};
    LS_TRY(run_shared(f, layer, err));
    if (shared_is_gated(c)) LS_TRY(shared_gate_backward(l, dgated, dtaken, err));
    LS_TRY(ls_leaf_through_product(l, &down, err));
    LS_TRY(activate_backward(l, rows, dgate, dup, err));
    if (!c->ungated) LS_TRY(ls_leaf_through_product(l, &gate, err));
    LS_TRY(ls_leaf_through_product(l, &up, err));
    return shared_is_gated(c) ? ls_leaf_through_product(l, &taken, err) : LS_OK;
}

/* The experts are run again for the leaf: places of picks are those of its own rows. Behind its products the gradient
 * of the experts' outputs is not needed any more, and the one that comes through gate takes its place. */
static ls_status experts_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_layer *layer = &l->model->layers[layer_i];
    const ls_activations *a = &l->ws.a;
    const int64_t picks = l->rows * c->top_k;
    const ls_forward f = {l->model, l->tape->cache, &l->ws, l->batch, l->h.data, 0, false};
    const ls_rows dgated = {l->tape->da, LS_F32, c->ffn};
    const ls_rows through_gate = a->picked_y, through_up = {l->tape->picked_dx, LS_F32, c->hidden};
    const ls_moe_combine_backward_args combine = {
        a->picked_y.data,        a->pick_row, a->picked_weight, l->dy.data, a->picked_y.data,
        l->tape->picked_dweight, picks,       c->hidden,        l->rows};
    const ls_moe_gather_backward_args gather = {.first = c->ungated ? through_up.data : through_gate.data,
                                                .second = c->ungated ? NULL : through_up.data,
                                                .place = a->place,
                                                .d = l->dx.data,
                                                .rows = l->rows,
                                                .top_k = c->top_k,
                                                .dim = c->hidden};
    ls_rows dy = a->picked_y;
    LS_TRY(run_experts(&f, layer_i, err));
    LS_TRY(ls_moe_combine_backward(l->device, &combine, err));
    LS_TRY(round_picks(l, &dy, picks, err));
    LS_TRY(back_through_experts(l, layer_i, down_of, dy, a->gated, dgated, err));
    LS_TRY(activate_backward(l, picks, dgate_of(l), dup_of(l), err));
    if (!c->ungated) LS_TRY(back_through_experts(l, layer_i, gate_of, dgate_of(l), a->picked_x, through_gate, err));
    LS_TRY(back_through_experts(l, layer_i, up_of, dup_of(l), a->picked_x, through_up, err));
    LS_TRY(ls_moe_gather_backward(l->device, &gather, err));
    LS_TRY(router_backward(l, layer, err));
    return c->shared_ffn > 0 ? shared_backward(l, layer, &f, err) : LS_OK;
}

/* ---- tensors ---- */

/* Gate and up in one tensor, the n of them behind each other. */
static ls_status walk_gate_up(const ls_walk *w, ls_ffn_weights *f, int64_t n, int64_t width, const char *prefix) {
    const int64_t hidden = w->model->config.hidden;
    ls_slot_tensor tensor = {0, 2, {2 * width, hidden}};
    if (n > 1) tensor = (ls_slot_tensor){0, 3, {n, 2 * width, hidden}};
    for (int64_t i = 0; i < 2 * n; i++, tensor.at += width * hidden)
        LS_TRY(ls_walk_part(w, i % 2 == 0 ? &f[i / 2].gate : &f[i / 2].up, width, hidden, &tensor, prefix,
                            w->names->gate_up));
    return LS_OK;
}

static ls_status walk_ffn(const ls_walk *w, ls_ffn_weights *f, int64_t width, const char *prefix) {
    const ls_model_config *c = &w->model->config;
    if (w->names->gate_up != NULL) {
        LS_TRY(walk_gate_up(w, f, 1, width, prefix));
        return ls_walk_matrix(w, &f->down, c->hidden, width, prefix, w->names->down);
    }
    if (!c->ungated) LS_TRY(ls_walk_matrix(w, &f->gate, width, c->hidden, prefix, w->names->gate));
    LS_TRY(ls_walk_matrix(w, &f->up, width, c->hidden, prefix, w->names->up));
    return ls_walk_matrix(w, &f->down, c->hidden, width, prefix, w->names->down);
}

static ls_status dense_walk(const ls_walk *w, ls_layer *layer) {
    return walk_ffn(w, &layer->expert[0], w->model->config.ffn, w->names->ffn);
}

/* All experts of a layer in two tensors. */
static ls_status walk_joined_experts(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    ls_slot_tensor tensor = {0, 3, {c->n_experts, c->hidden, c->ffn}};
    LS_TRY(walk_gate_up(w, layer->expert, c->n_experts, c->ffn, w->names->experts));
    for (int64_t e = 0; e < c->n_experts; e++, tensor.at += (int64_t)c->hidden * c->ffn)
        LS_TRY(ls_walk_part(w, &layer->expert[e].down, c->hidden, c->ffn, &tensor, w->names->experts, w->names->down));
    return LS_OK;
}

static ls_status experts_walk(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    char prefix[64];
    LS_TRY(ls_walk_matrix(w, &layer->router, c->n_experts, c->hidden, w->names->ffn, w->names->router));
    if (c->router_groups > 0)
        LS_TRY(ls_walk_vector(w, &layer->router_bias, c->n_experts, w->names->ffn, w->names->router_bias));
    if (w->names->experts != NULL) LS_TRY(walk_joined_experts(w, layer));
    for (int64_t e = 0; w->names->experts == NULL && e < c->n_experts; e++) {
        snprintf(prefix, sizeof prefix, "%sexperts.%lld.", w->names->ffn, (long long)e);
        LS_TRY(walk_ffn(w, &layer->expert[e], c->ffn, prefix));
    }
    if (c->shared_ffn == 0) return LS_OK;
    snprintf(prefix, sizeof prefix, "%s%s", w->names->ffn, w->names->shared);
    LS_TRY(walk_ffn(w, &layer->shared, c->shared_ffn, prefix));
    if (!shared_is_gated(c)) return LS_OK;
    return ls_walk_matrix(w, &layer->shared_gate, 1, c->hidden, w->names->ffn, w->names->shared_gate);
}

const ls_part ls_part_dense = {"dense", dense_forward, dense_backward, activate_again, NULL, dense_walk, false};
const ls_part ls_part_ungated = {"ungated", ungated_forward, ungated_backward, activate_again, NULL, dense_walk, false};
const ls_part ls_part_experts = {"experts", experts_forward, experts_backward, NULL, NULL, experts_walk, true};
