/* Feed-forward, dense and as a mixture of experts: forward, backward, tensors. */
#include <stdio.h>

#include "model/parts.h"
#include "model/tape_state.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gather.h"
#include "op/moe_backward.h"

static ls_status swiglu(const ls_forward *f, int64_t m, ls_error *err) {
    const ls_activations *a = &f->ws->a;
    const ls_swiglu_args args = {a->gate.data, a->up.data, a->gated.data, f->ws->dtype, m, f->model->config.ffn};
    return ls_swiglu(f->ws->device, &args, err);
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
    const int64_t rows = f->batch->n_rows;
    if (f->ws->for_training) {
        LS_TRY(ls_part_project(f, a->gate, a->x, &w->gate, NULL, err));
        LS_TRY(ls_part_project(f, a->up, a->x, &w->up, NULL, err));
        LS_TRY(swiglu(f, rows, err));
    } else {
        LS_TRY(gated_at_once(f, w, rows, err));
    }
    return ls_part_project(f, a->y, a->gated, &w->down, NULL, err);
}

static ls_status dense_again(const ls_forward *f, int64_t layer_i, ls_error *err) {
    (void)layer_i;
    return swiglu(f, f->batch->n_rows, err);
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
    ls_gemm_args args = ls_part_product(f, out, x, NULL, NULL, f->batch->n_rows * c->top_k);
    for (int32_t e = 0; e < c->n_experts; e++) {
        args.weight = matrix(&layer->expert[e]);
        args.range = f->ws->a.expert_offsets + e;
        LS_TRY(ls_gemm(f->ws->device, &args, err));
    }
    return LS_OK;
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
    LS_TRY(through_experts(f, layer_i, gate_of, a->gate, a->picked_x, err));
    LS_TRY(through_experts(f, layer_i, up_of, a->up, a->picked_x, err));
    LS_TRY(swiglu(f, picks, err));
    return through_experts(f, layer_i, down_of, a->picked_y, a->gated, err);
}

static ls_status experts_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t rows = f->batch->n_rows, picks = rows * c->top_k;
    const ls_moe_route_args route = {a->router.data, rows, c->n_experts, c->top_k, a->expert, a->expert_weight};
    const ls_moe_reweigh_args reweigh = {a->router.data, rows, c->n_experts, c->top_k, a->expert, a->expert_weight};
    LS_TRY(ls_part_project_exact(f, a->router, a->x, &f->model->layers[layer_i].router, err));
    LS_TRY(ls_moe_route(f->ws->device, &route, err));
    if (c->reweighs) LS_TRY(ls_moe_reweigh(f->ws->device, &reweigh, err));
    LS_TRY(run_experts(f, layer_i, err));
    LS_TRY(ls_memory_fill(f->ws->device, a->y.data, 0, rows * c->hidden * (int64_t)sizeof(float), err));
    for (int32_t e = 0; e < c->n_experts; e++) {
        const ls_moe_combine_args combine = {a->picked_y.data, a->pick_row,          a->picked_weight, a->y.data, picks,
                                             c->hidden,        a->expert_offsets + e};
        LS_TRY(ls_moe_combine(f->ws->device, &combine, err));
    }
    return LS_OK;
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

/* Behind the gate: dgated, which lies in da, to dgate and dup, over m rows. */
static ls_status swiglu_backward(const ls_leaf *l, int64_t m, ls_error *err) {
    const ls_activations *a = &l->ws.a;
    const ls_rows dgate = dgate_of(l), dup = dup_of(l);
    const ls_swiglu_backward_args args = {a->gate.data, a->up.data, l->tape->da,         dgate.data,
                                          dup.data,     m,          l->model->config.ffn};
    const ls_swiglu_backward_rounded_args rounded = {a->gate.data, a->up.data, l->tape->da,         dgate.data,
                                                     dup.data,     m,          l->model->config.ffn};
    return dgate.dtype == LS_F32 ? ls_swiglu_backward(l->device, &args, err)
                                 : ls_swiglu_backward_rounded(l->device, &rounded, err);
}

/* Gradients of gate and up, behind swiglu_backward, into their weights and into dx. */
static ls_status gate_and_up_backward(const ls_leaf *l, const ls_ffn_weights *w, const ls_leaf_product *of,
                                      ls_error *err) {
    ls_leaf_product gate = *of, up = *of;
    gate.w = &w->gate;
    gate.dy = dgate_of(l);
    up.w = &w->up;
    up.dy = dup_of(l);
    up.add = true;
    LS_TRY(ls_leaf_through_product(l, &gate, err));
    return ls_leaf_through_product(l, &up, err);
}

static ls_status dense_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_ffn_weights *w = &l->model->layers[layer_i].expert[0];
    const ls_activations *a = &l->ws.a;
    const ls_rows dgate = {l->tape->da, LS_F32, l->model->config.ffn};
    const ls_leaf_product down = {.w = &w->down, .dy = l->dh, .x = a->gated, .dx = dgate, .m = l->rows};
    const ls_leaf_product gate_and_up = {.x = a->x, .dx = l->dx, .m = l->rows};
    LS_TRY(ls_leaf_through_product(l, &down, err));
    LS_TRY(swiglu_backward(l, l->rows, err));
    return gate_and_up_backward(l, w, &gate_and_up, err);
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
    const ls_leaf_product router = {
        .w = &layer->router, .dy = drouter, .x = a->x, .dx = l->dx, .add = true, .m = l->rows};
    LS_TRY(gather_rows(l->device, picked, picks, a->place, picks, 1, dweight, err));
    LS_TRY(c->reweighs ? ls_moe_reweigh_backward(l->device, &reweigh, err)
                       : ls_moe_route_backward(l->device, &route, err));
    return ls_leaf_through_product(l, &router, err);
}

/* The experts are run again for the leaf: places of picks are those of its own rows. */
static ls_status experts_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_layer *layer = &l->model->layers[layer_i];
    const ls_activations *a = &l->ws.a;
    const int64_t picks = l->rows * c->top_k;
    const ls_forward f = {l->model, l->tape->cache, &l->ws, l->batch, l->h.data, 0, false};
    const ls_rows dy = a->picked_y, dgate = {l->tape->da, LS_F32, c->ffn};
    const ls_moe_combine_backward_args combine = {
        a->picked_y.data,        a->pick_row, a->picked_weight, l->dh.data, a->picked_y.data,
        l->tape->picked_dweight, picks,       c->hidden,        l->rows};
    LS_TRY(run_experts(&f, layer_i, err));
    LS_TRY(ls_moe_combine_backward(l->device, &combine, err));
    for (int32_t e = 0; e < c->n_experts; e++) {
        const ls_leaf_product down = {.w = &layer->expert[e].down,
                                      .dy = dy,
                                      .x = a->gated,
                                      .dx = dgate,
                                      .m = picks,
                                      .range = a->expert_offsets + e};
        LS_TRY(ls_leaf_through_product(l, &down, err));
    }
    LS_TRY(swiglu_backward(l, picks, err));
    LS_TRY(ls_memory_fill(l->device, l->dx.data, 0, l->rows * c->hidden * (int64_t)sizeof(float), err));
    for (int32_t e = 0; e < c->n_experts; e++) {
        const ls_leaf_product gate_and_up = {.x = a->picked_x,
                                             .dx = l->dx,
                                             .add = true,
                                             .m = picks,
                                             .dx_rows = a->pick_row,
                                             .range = a->expert_offsets + e};
        LS_TRY(gate_and_up_backward(l, &layer->expert[e], &gate_and_up, err));
    }
    return router_backward(l, layer, err);
}

/* ---- tensors ---- */

static ls_status walk_ffn(const ls_walk *w, ls_ffn_weights *f, const char *prefix) {
    const ls_model_config *c = &w->model->config;
    LS_TRY(ls_walk_matrix(w, &f->gate, c->ffn, c->hidden, prefix, w->names->gate));
    LS_TRY(ls_walk_matrix(w, &f->up, c->ffn, c->hidden, prefix, w->names->up));
    return ls_walk_matrix(w, &f->down, c->hidden, c->ffn, prefix, w->names->down);
}

static ls_status dense_walk(const ls_walk *w, ls_layer *layer) { return walk_ffn(w, &layer->expert[0], w->names->ffn); }

static ls_status experts_walk(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    char prefix[64];
    LS_TRY(ls_walk_matrix(w, &layer->router, c->n_experts, c->hidden, w->names->ffn, w->names->router));
    for (int64_t e = 0; e < c->n_experts; e++) {
        snprintf(prefix, sizeof prefix, "%sexperts.%lld.", w->names->ffn, (long long)e);
        LS_TRY(walk_ffn(w, &layer->expert[e], prefix));
    }
    return LS_OK;
}

const ls_part ls_part_dense = {"dense", dense_forward, dense_backward, dense_again, NULL, dense_walk, false};
const ls_part ls_part_experts = {"experts", experts_forward, experts_backward, NULL, NULL, experts_walk, true};
