/* Attention: forward, backward, tensors. */
#include "model/parts.h"
#include "model/tape_state.h"
#include "op/attention_backward.h"

static float scale_of(const ls_model_config *c) { return ls_div(1.0f, ls_sqrt((float)c->head_dim)); }

static ls_status attention_forward(const ls_forward *f, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_attention_weights *w = &f->model->layers[layer_i].attention;
    const ls_activations *a = &f->ws->a;
    const ls_batch *b = f->batch;
    const int64_t rows = b->n_rows;
    const ls_attention_args attention = {.q = a->q.data,
                                         .k = a->k.data,
                                         .v = a->v.data,
                                         .out = a->heads.data,
                                         .dtype = f->ws->dtype,
                                         .q_stride = a->q.stride,
                                         .kv_stride = a->k.stride,
                                         .out_stride = a->heads.stride,
                                         .n_heads = c->n_heads,
                                         .n_kv_heads = c->n_kv_heads,
                                         .head_dim = c->head_dim,
                                         .scale = scale_of(c),
                                         .page_tokens = f->cache->page_tokens,
                                         .pages = ls_cache_pages(f->cache, layer_i),
                                         .spans = b->spans,
                                         .n_spans = b->n_spans,
                                         .tables = b->tables,
                                         .n_tables = b->n_tables,
                                         .rows = rows,
                                         .spans_checked = (f->spans_checked & LS_CHECKED_ATTENTION) != 0};
    LS_TRY(ls_part_project(f, a->q, a->x, &w->q, NULL, err));
    LS_TRY(ls_part_project(f, a->k, a->x, &w->k, NULL, err));
    LS_TRY(ls_part_project(f, a->v, a->x, &w->v, NULL, err));
    LS_TRY(ls_attention(f->ws->device, &attention, err));
    return ls_part_project(f, a->y, a->heads, &w->o, NULL, err);
}

static ls_status attention_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_attention_weights *w = &l->model->layers[layer_i].attention;
    const ls_activations *a = &l->ws.a;
    const int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t rows = l->rows;
    const ls_rows dout = {l->tape->db, LS_F32, q_dim}, dq = {l->tape->da, LS_F32, q_dim + 2 * kv_dim};
    const ls_rows dk = ls_rows_column(dq, q_dim), dv = ls_rows_column(dq, q_dim + kv_dim);
    const ls_attention_backward_args args = {.q = a->q.data,
                                             .k = a->k.data,
                                             .v = a->v.data,
                                             .dtype = l->ws.dtype,
                                             .q_stride = a->q.stride,
                                             .kv_stride = a->k.stride,
                                             .dout = dout.data,
                                             .dout_stride = q_dim,
                                             .dq = dq.data,
                                             .dk = dk.data,
                                             .dv = dv.data,
                                             .dq_stride = dq.stride,
                                             .dkv_stride = dk.stride,
                                             .rows = rows,
                                             .n_heads = c->n_heads,
                                             .n_kv_heads = c->n_kv_heads,
                                             .head_dim = c->head_dim,
                                             .scale = scale_of(c),
                                             .spans = l->batch->spans,
                                             .n_spans = l->batch->n_spans,
                                             .span_rows_max = l->batch->span_rows_max};
    const ls_leaf_product o = {.w = &w->o, .dy = l->dh, .x = a->heads, .dx = dout, .m = rows};
    const ls_leaf_product q = {.w = &w->q, .dy = dq, .x = a->x, .dx = l->dx, .m = rows};
    const ls_leaf_product k = {.w = &w->k, .dy = dk, .x = a->x, .dx = l->dx, .add = true, .m = rows};
    const ls_leaf_product v = {.w = &w->v, .dy = dv, .x = a->x, .dx = l->dx, .add = true, .m = rows};
    LS_TRY(ls_leaf_through_product(l, &o, err));
    LS_TRY(ls_attention_backward(l->device, &args, err));
    LS_TRY(ls_leaf_through_product(l, &q, err));
    LS_TRY(ls_leaf_through_product(l, &k, err));
    return ls_leaf_through_product(l, &v, err);
}

static ls_status attention_walk(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    ls_attention_weights *a = &layer->attention;
    LS_TRY(ls_walk_matrix(w, &a->q, q, c->hidden, w->names->attention, "q_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &a->k, kv, c->hidden, w->names->attention, "k_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &a->v, kv, c->hidden, w->names->attention, "v_proj.weight"));
    return ls_walk_matrix(w, &a->o, c->hidden, q, w->names->attention, "o_proj.weight");
}

const ls_part ls_part_attention = {"attention", attention_forward, attention_backward, NULL, NULL, attention_walk,
                                   false};
