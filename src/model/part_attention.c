/* Attention: forward, backward, tensors. */
#include "base/mem.h"
#include "model/parts.h"
#include "model/tape_state.h"
#include "op/attention_backward.h"
#include "op/elementwise.h"
#include "op/sigmoid_gate.h"

static float scale_of(const ls_model_config *c) {
    return c->attention_scale > 0.0f ? c->attention_scale : ls_div(1.0f, ls_sqrt((float)c->head_dim));
}

/* Heads that are treated alike: q, k, v. */
static void parts_of(ls_rope_part part[LS_ROPE_PARTS], const ls_model_config *c, const ls_attention_weights *w) {
    const bool rotates = c->rope.half > 0;
    part[0] = (ls_rope_part){c->n_heads, w->q_bias, w->q_norm, rotates, NULL};
    part[1] = (ls_rope_part){c->n_kv_heads, w->k_bias, w->k_norm, rotates, NULL};
    part[2] = (ls_rope_part){c->n_kv_heads, w->v_bias, NULL, false, NULL};
}

/* n of these parts from `first` on: y of x. */
static ls_rope_args making_parts(const ls_forward *f, const ls_attention_weights *w, int64_t first, int64_t n,
                                 ls_rows y, ls_rows x) {
    const ls_model_config *c = &f->model->config;
    ls_rope_part all[LS_ROPE_PARTS];
    ls_rope_args args = {.x = x.data,
                         .x_stride = x.stride,
                         .y = y.data,
                         .y_dtype = y.dtype,
                         .y_stride = y.stride,
                         .table = f->ws->a.rope.data,
                         .half = c->rope.half,
                         .eps = c->rms_eps,
                         .rows = f->batch->n_rows,
                         .head_dim = c->head_dim,
                         .n_parts = n};
    parts_of(all, c, w);
    for (int64_t i = 0; i < n; i++) args.part[i] = all[first + i];
    return args;
}

static ls_status make_parts(const ls_forward *f, const ls_attention_weights *w, int64_t first, int64_t n, ls_rows y,
                            ls_rows x, ls_error *err) {
    const ls_rope_args args = making_parts(f, w, first, n, y, x);
    return ls_rope(f->ws->device, &args, err);
}

/* Heads of q between their own columns and those that have a gate behind each. */
static ls_status copy_heads(ls_device *device, const ls_model_config *c, void *to, int64_t to_stride, const void *from,
                            int64_t from_stride, int64_t rows, ls_error *err) {
    const int64_t size = (int64_t)sizeof(float);
    const ls_copy_args args = {to, from, to_stride * size, from_stride * size, rows * c->n_heads, c->head_dim * size};
    return ls_memory_copy_rows(device, &args, err);
}

/* q, k and v of what the products gave. */
static ls_status make_heads(const ls_forward *f, const ls_attention_weights *w, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    if (!c->head_gates) return make_parts(f, w, 0, LS_ROPE_PARTS, a->q, a->qkv_raw, err);
    LS_TRY(copy_heads(f->ws->device, c, a->q_raw.data, c->head_dim, a->q_gates.data, 2 * (int64_t)c->head_dim,
                      f->batch->n_rows, err));
    LS_TRY(make_parts(f, w, 0, 1, a->q, a->q_raw, err));
    return make_parts(f, w, 1, LS_ROPE_PARTS - 1, a->k, a->kv_raw, err);
}

/* What o_proj reads: the heads' outputs, each through its gate. */
static ls_status gate_heads(const ls_forward *f, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const int64_t size = c->head_dim;
    const ls_sigmoid_gate_args args = {.x = a->heads.data,
                                       .x_dtype = a->heads.dtype,
                                       .gate = ls_rows_column(a->q_gates, size).data,
                                       .x_stride = size,
                                       .gate_stride = 2 * size,
                                       .y = a->gated_heads.data,
                                       .y_dtype = a->gated_heads.dtype,
                                       .y_stride = size,
                                       .rows = f->batch->n_rows * c->n_heads,
                                       .dim = size,
                                       .gates = size};
    return c->head_gates ? ls_sigmoid_gate(f->ws->device, &args, err) : LS_OK;
}

/* What q, k and v of x are made of, or in a bare model they themselves. */
static ls_status project_heads(const ls_forward *f, const ls_attention_weights *w, ls_error *err) {
    const ls_model_config *c = &f->model->config;
    const ls_activations *a = &f->ws->a;
    const bool bare = ls_attention_is_bare(c);
    const int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    const ls_rows q = c->head_gates ? a->q_gates : bare ? a->q : a->qkv_raw;
    const ls_rows k = c->head_gates ? a->kv_raw : ls_rows_column(q, q_dim);
    const ls_gemm_weight *const weights[3] = {&w->q, &w->k, &w->v};
    return ls_part_project_three(f, q, k, ls_rows_column(k, kv_dim), a->x, weights, err);
}

/* A run of a forward whose q, k and v are made of all heads of its rows: both in one call. */
static ls_status attend_made(const ls_forward *f, const ls_attention_weights *w, int64_t layer_i,
                             ls_attention_args args, ls_error *err) {
    const ls_span_run run = ls_batch_run(f->batch, 0);
    const ls_activations *a = &f->ws->a;
    args.spans = f->batch->spans + run.begin;
    args.n_spans = run.n;
    /* A gradient reads q, k and v; in mma16 it reads the sums, too. */
    const ls_attention_heads_args both = {making_parts(f, w, 0, LS_ROPE_PARTS, a->q, a->qkv_raw), args,
                                          args.log_sum != NULL || args.profile == LS_PROFILE_EXACT};
    LS_TRY(ls_part_hand_page(f, layer_i, &run, err));
    return ls_attention_heads(f->ws->device, &both, err);
}

static ls_status attend_runs(const ls_forward *f, int64_t layer_i, ls_attention_args args, ls_error *err) {
    for (int64_t i = ls_batch_n_runs(f->batch) - 1; i >= 0; i--) {
        const ls_span_run run = ls_batch_run(f->batch, i);
        args.spans = f->batch->spans + run.begin;
        args.n_spans = run.n;
        LS_TRY(ls_part_hand_page(f, layer_i, &run, err));
        LS_TRY(ls_attention(f->ws->device, &args, err));
    }
    return LS_OK;
}

static ls_status attention_again(const ls_forward *f, int64_t layer_i, ls_error *err) {
    if (!f->model->config.head_norms && !f->model->config.head_gates) return LS_OK;
    LS_TRY(make_heads(f, &f->model->layers[layer_i].attention, err));
    return gate_heads(f, err);
}

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
                                         .spans_checked = (f->spans_checked & LS_CHECKED_ATTENTION) != 0,
                                         .window = c->window[layer_i],
                                         .profile = f->model->profile,
                                         .log_sum = a->log_sum.data,
                                         .log_sum_stride = a->log_sum.stride};
    LS_TRY(project_heads(f, w, err));
    if (!ls_attention_is_bare(c) && !c->head_gates && ls_batch_n_runs(b) == 1) {
        LS_TRY(attend_made(f, w, layer_i, attention, err));
    } else {
        if (!ls_attention_is_bare(c)) LS_TRY(make_heads(f, w, err));
        LS_TRY(attend_runs(f, layer_i, attention, err));
    }
    LS_TRY(gate_heads(f, err));
    return ls_part_project(f, a->y, c->head_gates ? a->gated_heads : a->heads, &w->o, w->o_bias, err);
}

/* Chains of the gradients of a layer's norms of heads: those of q, then of k. They wait for the leaf's last part. */
static float *norm_chains(const ls_leaf *l, int64_t layer_i) {
    const ls_model_config *c = &l->model->config;
    return l->tape->dhead_norms + layer_i * ((int64_t)c->n_heads + c->n_kv_heads) * c->head_dim;
}

/* Where gradients of attention with output gates lie: each with all rows of the leaf. dheads, of the heads' outputs, is
 * in da behind those of q | k | v. In db is dgated, of what o_proj reads, in whose place dq_raw and dkv_raw come, and
 * behind them dgates, as q_proj gives heads and gates. */
typedef struct gate_gradients {
    ls_rows dgated, dheads, dq_raw, dkv_raw, dgates;
} gate_gradients;

static gate_gradients gate_gradients_of(const ls_leaf *l) {
    const ls_model_config *c = &l->model->config;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim, rows = l->rows;
    const ls_tape *t = l->tape;
    return (gate_gradients){.dgated = {t->db, LS_F32, q},
                            .dheads = {t->da + rows * (q + 2 * kv), LS_F32, q},
                            .dq_raw = {t->db, LS_F32, q},
                            .dkv_raw = {t->db + rows * q, LS_F32, 2 * kv},
                            .dgates = {t->db + rows * (q + 2 * kv), LS_F32, 2 * q}};
}

/* From dgated to dheads, and the gates' columns of dgates. */
static ls_status gates_backward(const ls_leaf *l, const gate_gradients *g, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    const int64_t size = c->head_dim;
    const ls_sigmoid_gate_backward_args args = {.x = a->heads.data,
                                                .x_dtype = a->heads.dtype,
                                                .gate = ls_rows_column(a->q_gates, size).data,
                                                .x_stride = size,
                                                .gate_stride = 2 * size,
                                                .dy = g->dgated.data,
                                                .dy_stride = size,
                                                .dx = g->dheads.data,
                                                .dx_stride = size,
                                                .dgate = ls_rows_column(g->dgates, size).data,
                                                .dgate_dtype = LS_F32,
                                                .dgate_stride = 2 * size,
                                                .rows = l->rows * c->n_heads,
                                                .dim = size,
                                                .gates = size};
    return ls_sigmoid_gate_backward(l->device, &args, err);
}

/* From gradients of q, k and v, or n of them from `first` on, to those of what the products gave. */
static ls_status parts_backward(const ls_leaf *l, int64_t layer_i, int64_t first, int64_t n, ls_rows raw,
                                ls_rows dheads, ls_rows draw, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    ls_rope_part all[LS_ROPE_PARTS];
    float *chains = norm_chains(l, layer_i);
    ls_rope_backward_args args = {.x = raw.data,
                                  .x_stride = raw.stride,
                                  .dy = dheads.data,
                                  .dy_stride = dheads.stride,
                                  .dx = draw.data,
                                  .dx_dtype = draw.dtype,
                                  .dx_stride = draw.stride,
                                  .table = l->ws.a.rope.data,
                                  .half = c->rope.half,
                                  .eps = c->rms_eps,
                                  .rows = l->rows,
                                  .head_dim = c->head_dim,
                                  .n_parts = n,
                                  .scale = l->tape->scale};
    parts_of(all, c, &l->model->layers[layer_i].attention);
    if (c->head_norms) {
        all[0].dnorm = chains;
        all[1].dnorm = chains + (int64_t)c->n_heads * c->head_dim;
    }
    for (int64_t i = 0; i < n; i++) args.part[i] = all[first + i];
    return ls_rope_backward(l->device, &args, err);
}

/* The chains begin with the leaf. */
static ls_status begin_norms(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const int64_t n = ((int64_t)c->n_heads + c->n_kv_heads) * c->head_dim;
    if (!c->head_norms || !l->gradient_is_zero) return LS_OK;
    return ls_memory_fill(l->device, norm_chains(l, layer_i), 0, n * (int64_t)sizeof(float), err);
}

/* From gradients of q, k and v in dq to those of what the products gave, `draw` without gates, else of g. */
static ls_status heads_backward(const ls_leaf *l, int64_t layer_i, ls_rows dq, ls_rows draw, const gate_gradients *g,
                                ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_activations *a = &l->ws.a;
    LS_TRY(begin_norms(l, layer_i, err));
    if (!c->head_gates) return parts_backward(l, layer_i, 0, LS_ROPE_PARTS, a->qkv_raw, dq, draw, err);
    LS_TRY(parts_backward(l, layer_i, 0, 1, a->q_raw, dq, g->dq_raw, err));
    LS_TRY(parts_backward(l, layer_i, 1, LS_ROPE_PARTS - 1, a->kv_raw,
                          ls_rows_column(dq, (int64_t)c->n_heads * c->head_dim), g->dkv_raw, err));
    return copy_heads(l->device, c, g->dgates.data, 2 * (int64_t)c->head_dim, g->dq_raw.data, c->head_dim, l->rows,
                      err);
}

static ls_status attention_finish(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_attention_weights *w = &l->model->layers[layer_i].attention;
    if (!c->head_norms) return LS_OK;
    {
        const float *chains = norm_chains(l, layer_i);
        const ls_rope_norm_fold_args q = {chains, c->n_heads, c->head_dim, ls_leaf_gradient(l, w->q_norm)};
        const ls_rope_norm_fold_args k = {chains + (int64_t)c->n_heads * c->head_dim, c->n_kv_heads, c->head_dim,
                                          ls_leaf_gradient(l, w->k_norm)};
        LS_TRY(ls_rope_norm_fold(l->device, &q, err));
        return ls_rope_norm_fold(l->device, &k, err);
    }
}

/* A span's own rows and those before it, k | v side by side, and its keys: what is done with each pair of them. */
typedef ls_status (*keys_pair)(const ls_leaf *l, int64_t row, int64_t key, int64_t rows, ls_error *err);

static ls_status for_keys(const ls_leaf *l, int64_t i, keys_pair pair, ls_error *err) {
    const ls_span_tree *tree = l->batch->tree;
    for (int64_t at = i; at >= 0; at = tree->parents[at]) {
        const ls_span *span = &tree->spans[at];
        LS_TRY(pair(l, span->row, l->tape->host_key_rows[i] + span->pos, span->n_rows, err));
    }
    return LS_OK;
}

static int64_t pair_columns(const ls_leaf *l) {
    return 2 * (int64_t)l->model->config.n_kv_heads * l->model->config.head_dim;
}

static ls_status gather_keys(const ls_leaf *l, int64_t row, int64_t key, int64_t rows, ls_error *err) {
    const ls_rows from = ls_rows_from(l->ws.a.k, row);
    const int64_t columns = pair_columns(l), size = ls_dtype_bytes(from.dtype);
    const ls_copy_args args = {(uint8_t *)l->tape->keys + key * columns * size,
                               from.data,
                               columns * size,
                               from.stride * size,
                               rows,
                               columns * size};
    return ls_memory_copy_rows(l->device, &args, err);
}

static ls_status add_keys(const ls_leaf *l, int64_t row, int64_t key, int64_t rows, ls_error *err) {
    const int64_t columns = pair_columns(l);
    const ls_residual_args args = {
        .h = l->tape->dkv + row * columns, .y = l->tape->dkeys + key * columns, .rows = rows, .dim = columns};
    return ls_residual(l->device, &args, err);
}

/* A run of spans that continue others: what their queries give to keys is added to what came before. */
static ls_status attend_behind(const ls_leaf *l, ls_attention_backward_args args, const ls_span_run *run,
                               ls_error *err) {
    const ls_tape *t = l->tape;
    const ls_span_tree *tree = l->batch->tree;
    const int64_t columns = pair_columns(l), end = run->begin + run->n;
    args.k = t->keys;
    args.v = (const uint8_t *)t->keys + columns / 2 * ls_dtype_bytes(args.dtype);
    args.kv_stride = columns;
    args.dk = t->dkeys;
    args.dv = t->dkeys + columns / 2;
    args.key_rows = t->key_rows + run->begin;
    for (int64_t i = run->begin; i < end; i++) {
        const int64_t n = tree->spans[i].pos + tree->spans[i].n_rows;
        args.key_rows_n += n;
        args.keys_max = ls_max_i64(args.keys_max, n);
        LS_TRY(for_keys(l, i, gather_keys, err));
    }
    LS_TRY(ls_attention_backward(l->device, &args, err));
    for (int64_t i = run->begin; i < end; i++) LS_TRY(for_keys(l, i, add_keys, err));
    return LS_OK;
}

/* Of a leaf where spans continue others, keys' gradients are sums: what a span's own queries gave is first, then what
 * spans behind it gave, depth by depth. */
static ls_status attend_tree(const ls_leaf *l, ls_attention_backward_args args, ls_error *err) {
    const int64_t columns = pair_columns(l), size = (int64_t)sizeof(float);
    const ls_copy_args out = {args.dk, l->tape->dkv, args.dkv_stride * size, columns * size, l->rows, columns * size};
    args.dk = l->tape->dkv;
    args.dv = l->tape->dkv + columns / 2;
    args.dkv_stride = columns;
    LS_TRY(ls_memory_fill(l->device, l->tape->dkv, 0, l->rows * columns * size, err));
    for (int64_t i = ls_batch_n_runs(l->batch) - 1; i >= 0; i--) {
        const ls_span_run run = ls_batch_run(l->batch, i);
        args.spans = l->batch->spans + run.begin;
        args.n_spans = run.n;
        args.span_rows_max = run.rows_max;
        LS_TRY(run.continues ? attend_behind(l, args, &run, err) : ls_attention_backward(l->device, &args, err));
    }
    return ls_memory_copy_rows(l->device, &out, err);
}

static ls_status attention_backward(const ls_leaf *l, int64_t layer_i, ls_error *err) {
    const ls_model_config *c = &l->model->config;
    const ls_attention_weights *w = &l->model->layers[layer_i].attention;
    const ls_activations *a = &l->ws.a;
    const int64_t q_dim = (int64_t)c->n_heads * c->head_dim, kv_dim = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t rows = l->rows;
    const ls_tape *t = l->tape;
    const gate_gradients g = gate_gradients_of(l);
    const bool gates = c->head_gates;
    const ls_rows dout = gates ? g.dheads : (ls_rows){l->tape->db, LS_F32, q_dim},
                  dq = {l->tape->da, LS_F32, q_dim + 2 * kv_dim};
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
                                             .span_rows_max = l->batch->span_rows_max,
                                             .window = c->window[layer_i],
                                             .profile = l->model->profile,
                                             .out = a->heads.data,
                                             .out_stride = a->heads.stride,
                                             .log_sum = a->log_sum.data,
                                             .log_sum_stride = a->log_sum.stride};
    const bool bare = ls_attention_is_bare(c);
    /* dout has been read when these are written. */
    const ls_rows raw = {t->db, c->qkv_bias ? LS_F32 : ls_leaf_product_dtype(l), dq.stride}, through = bare ? dq : raw;
    const ls_rows dkv = gates ? g.dkv_raw : ls_rows_column(through, q_dim);
    const ls_leaf_product o = {.w = &w->o,
                               .bias = w->o_bias,
                               .dy = l->dy,
                               .x = gates ? a->gated_heads : a->heads,
                               .dx = gates ? g.dgated : dout,
                               .m = rows};
    const ls_leaf_product q = {
        .w = &w->q, .bias = w->q_bias, .dy = gates ? g.dgates : through, .x = a->x, .dx = l->dx, .m = rows};
    const ls_leaf_product k = {
        .w = &w->k, .bias = w->k_bias, .dy = dkv, .x = a->x, .dx = l->dx, .add = true, .m = rows};
    const ls_leaf_product v = {.w = &w->v,
                               .bias = w->v_bias,
                               .dy = ls_rows_column(dkv, kv_dim),
                               .x = a->x,
                               .dx = l->dx,
                               .add = true,
                               .m = rows};
    LS_TRY(ls_leaf_through_product(l, &o, err));
    if (gates) LS_TRY(gates_backward(l, &g, err));
    LS_TRY(l->batch->tree == NULL ? ls_attention_backward(l->device, &args, err) : attend_tree(l, args, err));
    if (!bare) LS_TRY(heads_backward(l, layer_i, dq, raw, &g, err));
    LS_TRY(ls_leaf_through_product(l, &q, err));
    LS_TRY(ls_leaf_through_product(l, &k, err));
    return ls_leaf_through_product(l, &v, err);
}

static ls_status attention_walk(const ls_walk *w, ls_layer *layer) {
    const ls_model_config *c = &w->model->config;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    ls_attention_weights *a = &layer->attention;
    LS_TRY(ls_walk_matrix(w, &a->q, (c->head_gates ? 2 : 1) * q, c->hidden, w->names->attention, "q_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &a->k, kv, c->hidden, w->names->attention, "k_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &a->v, kv, c->hidden, w->names->attention, "v_proj.weight"));
    LS_TRY(ls_walk_matrix(w, &a->o, c->hidden, q, w->names->attention, "o_proj.weight"));
    if (c->qkv_bias) {
        LS_TRY(ls_walk_vector(w, &a->q_bias, q, w->names->attention, "q_proj.bias"));
        LS_TRY(ls_walk_vector(w, &a->k_bias, kv, w->names->attention, "k_proj.bias"));
        LS_TRY(ls_walk_vector(w, &a->v_bias, kv, w->names->attention, "v_proj.bias"));
    }
    if (c->o_bias) LS_TRY(ls_walk_vector(w, &a->o_bias, c->hidden, w->names->attention, "o_proj.bias"));
    if (!c->head_norms) return LS_OK;
    LS_TRY(ls_walk_norm(w, &a->q_norm, c->head_dim, w->names->attention, "q_norm.weight"));
    return ls_walk_norm(w, &a->k_norm, c->head_dim, w->names->attention, "k_norm.weight");
}

const ls_part ls_part_attention = {
    "attention", attention_forward, attention_backward, attention_again, attention_finish, attention_walk, false};
