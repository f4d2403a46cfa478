/* What parts of layers are made of: products and norms over the rows of a forward, and their gradients in a leaf. */
#include "model/parts.h"

#include <string.h>

#include "base/inject.h"
#include "base/mem.h"
#include "model/tape_state.h"
#include "op/elementwise.h"
#include "op/gemm_backward.h"
#include "op/rmsnorm_backward.h"

ls_status ls_part_scale(ls_device *device, float *x, int64_t n, float scale, ls_error *err) {
    const ls_scale_args args = {x, x, n, scale};
    return scale == 0.0f ? LS_OK : ls_scale(device, &args, err);
}

/* ---- forward ---- */

ls_gemm_args ls_part_product(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, const float *bias,
                             int64_t m) {
    const ls_gemm_args args = {.x = x.data,
                               .x_dtype = x.dtype,
                               .x_stride = x.stride,
                               .weight = w,
                               .bias = bias,
                               .out = out.data,
                               .out_dtype = out.dtype,
                               .out_stride = out.stride,
                               .m = m,
                               .profile = f->model->profile,
                               .nan_open = true};
    return args;
}

ls_status ls_part_project(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, const float *bias,
                          ls_error *err) {
    const ls_gemm_args args = ls_part_product(f, out, x, w, bias, f->batch->n_rows);
    return ls_gemm(f->ws->device, &args, err);
}

ls_status ls_part_project_three(const ls_forward *f, ls_rows out, ls_rows second_out, ls_rows third_out, ls_rows x,
                                const ls_gemm_weight *const weights[3], ls_error *err) {
    const ls_gemm_three_args args = {.first = ls_part_product(f, out, x, weights[0], NULL, f->batch->n_rows),
                                     .others = {weights[1], weights[2]},
                                     .outs = {second_out.data, third_out.data},
                                     .outs_stride = second_out.stride};
    return ls_gemm_three(f->ws->device, &args, err);
}

ls_status ls_part_project_exact(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, ls_error *err) {
    ls_gemm_args args = ls_part_product(f, out, x, w, NULL, f->batch->n_rows);
    args.profile = LS_PROFILE_EXACT;
    return ls_gemm(f->ws->device, &args, err);
}

ls_rmsnorm_args ls_part_norm_call(const ls_forward *f, ls_rows y, ls_rows x, const float *w, int64_t dim) {
    const ls_rmsnorm_args args = {.x = x.data,
                                  .x_dtype = x.dtype,
                                  .x_stride = x.stride,
                                  .w = w != NULL ? w : f->ws->ones,
                                  .eps = f->model->config.rms_eps,
                                  .y = y.data,
                                  .y_dtype = y.dtype,
                                  .y_stride = y.stride,
                                  .rows = f->batch->n_rows,
                                  .dim = dim};
    return args;
}

ls_status ls_part_norm(const ls_forward *f, ls_rows y, ls_rows x, const float *w, int64_t dim, ls_error *err) {
    const ls_rmsnorm_args args = ls_part_norm_call(f, y, x, w, dim);
    return ls_rmsnorm(f->ws->device, &args, err);
}

/* ---- backward ---- */

float *ls_leaf_gradient_of(const ls_leaf *l, const ls_parameter *p) {
    const ls_layer_gradients *w = &l->tape->layer_gradients;
    if (w->layer == NULL) return l->gradient + p->offset;
    if (p->offset < w->begin) return w->ends + p->offset;
    if (p->offset >= w->end) return w->ends + (p->offset - w->end + w->begin);
    LS_ASSERT(p->slot.layer_i == l->layer_i, "%s, while layer %lld is on its way back", p->slot.name,
              (long long)l->layer_i);
    return w->layer + (p->offset - w->begins[l->layer_i]);
}

float *ls_leaf_gradient(const ls_leaf *l, const float *vector) {
    return ls_leaf_gradient_of(l, ls_parameter_of_vector(l->tape->parameters, l->layer_i, vector));
}

ls_dtype ls_leaf_product_dtype(const ls_leaf *l) { return l->model->profile == LS_PROFILE_MMA16 ? LS_BF16 : LS_F32; }

/* dy as both products read it: in mma16 rounded once. */
static ls_status round_gradient(const ls_leaf *l, const ls_leaf_product *p, ls_rows *out, ls_error *err) {
    const ls_round_rows_args args = {p->dy.data, p->dy.stride, l->tape->rounded, p->w->n, p->m, p->w->n};
    *out = p->dy;
    if (p->exact || p->dy.dtype == ls_leaf_product_dtype(l)) return LS_OK;
    *out = (ls_rows){l->tape->rounded, LS_BF16, p->w->n};
    return ls_round_rows(l->device, &args, err);
}

ls_status ls_part_positions(const ls_forward *f, ls_error *err) {
    const ls_rope_config *rope = &f->model->config.rope;
    const ls_rope_table_args args = {.inv_freq = f->ws->inv_freq,
                                     .half = rope->half,
                                     .scale = rope->scale,
                                     .table = f->ws->a.rope.data,
                                     .spans = f->batch->spans,
                                     .n_spans = f->batch->n_spans,
                                     .span_rows_max = f->batch->span_rows_max,
                                     .rows = f->batch->n_rows};
    return rope->half == 0 ? LS_OK : ls_rope_table(f->ws->device, &args, err);
}

/* ---- spans that continue others ---- */

ls_status ls_part_hand_state(const ls_forward *f, int64_t layer_i, const char *tensor, const ls_span_run *run,
                             ls_error *err) {
    const ls_span_tree *tree = f->batch->tree;
    const ls_pool_view pool = ls_cache_state(f->cache, layer_i, tensor);
    const int64_t bytes = ls_cache_tensor(f->cache, tensor)->bytes;
    LS_ASSERT(!run->continues || f->cache->state_every <= 1, "a state that lacks tokens is handed on");
    for (int64_t i = run->begin; run->continues && i < run->begin + run->n; i++)
        LS_TRY(ls_memory_copy(f->ws->device, ls_pool_at(&pool, tree->spans[i].slot),
                              ls_pool_at(&pool, tree->spans[tree->parents[i]].slot), bytes, err));
    return LS_OK;
}

/* Full pages are those of the span before; the one that goes on is copied. */
ls_status ls_part_hand_page(const ls_forward *f, int64_t layer_i, const ls_span_run *run, ls_error *err) {
    const ls_span_tree *tree = f->batch->tree;
    const ls_pool_view pages = ls_cache_pages(f->cache, layer_i);
    for (int64_t i = run->begin; run->continues && i < run->begin + run->n; i++) {
        const ls_span *span = &tree->spans[i], *parent = &tree->spans[tree->parents[i]];
        const int64_t page = span->pos / f->cache->page_tokens;
        if (span->pos % f->cache->page_tokens == 0) continue;
        LS_TRY(ls_memory_copy(f->ws->device, ls_pool_at(&pages, tree->tables[span->table + page]),
                              ls_pool_at(&pages, tree->tables[parent->table + page]), f->cache->page_bytes, err));
    }
    return LS_OK;
}

ls_status ls_part_convolve(const ls_forward *f, int64_t layer_i, ls_conv1d_args args, ls_error *err) {
    for (int64_t i = ls_batch_n_runs(f->batch) - 1; i >= 0; i--) {
        const ls_span_run run = ls_batch_run(f->batch, i);
        args.spans = f->batch->spans + run.begin;
        args.n_spans = run.n;
        args.span_rows_max = run.rows_max;
        LS_TRY(ls_part_hand_state(f, layer_i, "conv", &run, err));
        LS_TRY(ls_conv1d(f->ws->device, &args, err));
    }
    return LS_OK;
}

ls_status ls_leaf_through_product(const ls_leaf *l, const ls_leaf_product *p, ls_error *err) {
    const ls_parameter *w = ls_parameter_of_matrix(l->tape->parameters, p->w);
    const float *dy = p->dy.dtype == LS_F32 ? p->dy.data : NULL;
    const ls_profile profile = p->exact ? LS_PROFILE_EXACT : l->model->profile;
    ls_rows read;
    LS_TRY(round_gradient(l, p, &read, err));
    const uint16_t *rounded = read.dtype == LS_BF16 ? read.data : NULL;
    const ls_gemm_backward_weight_args weight = {.dy = dy,
                                                 .dy_stride = p->dy.stride,
                                                 .dy_rounded = rounded,
                                                 .dy_rounded_stride = read.stride,
                                                 .x = p->x.data,
                                                 .x_dtype = p->x.dtype,
                                                 .x_stride = p->x.stride,
                                                 .x_count = p->m,
                                                 .dw = ls_leaf_gradient_of(l, w),
                                                 .dbias = p->bias != NULL ? ls_leaf_gradient(l, p->bias) : NULL,
                                                 .m = p->m,
                                                 .n = p->w->n,
                                                 .k = p->w->k,
                                                 .profile = profile,
                                                 .sequences = l->tape->sequences,
                                                 .n_sequences = l->batch->n_spans,
                                                 .sequences_whole = l->sequences_whole,
                                                 .dw_is_zero = l->gradient_is_zero};
    const ls_gemm_backward_input_args input = {.dy = dy,
                                               .dy_stride = p->dy.stride,
                                               .dy_rounded = rounded,
                                               .dy_rounded_stride = read.stride,
                                               .w = ls_parameter_value(w),
                                               .w_dtype = w->dtype,
                                               .dx = p->dx.data,
                                               .dx_stride = p->dx.stride,
                                               .dx_count = p->m,
                                               .add = p->add,
                                               .m = p->m,
                                               .n = p->w->n,
                                               .k = p->w->k,
                                               .profile = profile};
    LS_TRY(ls_gemm_backward_weight(l->device, &weight, err));
    return ls_gemm_backward_input(l->device, &input, err);
}

ls_rmsnorm_backward_args ls_leaf_norm_call(const ls_leaf *l, const float *w, ls_rows x, ls_rows dy, ls_rows dx,
                                           bool add, int64_t dim) {
    const ls_rmsnorm_backward_args args = {.x = x.data,
                                           .x_dtype = x.dtype,
                                           .x_stride = x.stride,
                                           .w = w != NULL ? w : l->ws.ones,
                                           .eps = l->model->config.rms_eps,
                                           .dy = dy.data,
                                           .dy_stride = dy.stride,
                                           .dx = dx.data,
                                           .dx_stride = dx.stride,
                                           .add = add,
                                           .dw = w != NULL ? ls_leaf_gradient(l, w) : NULL,
                                           .scale = l->tape->scale,
                                           .rows = l->rows,
                                           .dim = dim};
    return args;
}

ls_status ls_leaf_through_norm(const ls_leaf *l, const float *w, ls_rows x, ls_rows dy, ls_rows dx, bool add,
                               int64_t dim, ls_error *err) {
    const ls_rmsnorm_backward_args args = ls_leaf_norm_call(l, w, x, dy, dx, add, dim);
    return ls_rmsnorm_backward(l->device, &args, err);
}

/* ---- runs ---- */

/* A tensor of the slots that the run's spans began from, one behind the other. */
static ls_status gather_states(const ls_leaf *l, int64_t layer_i, const char *name, const ls_span_run *run, void *out,
                               ls_error *err) {
    const ls_span_tree *tree = l->batch->tree;
    const ls_cache *cache = l->tape->cache;
    const ls_pool_view pool = ls_cache_state(cache, layer_i, name);
    const int64_t bytes = ls_cache_tensor(cache, name)->bytes;
    for (int64_t i = 0; i < run->n; i++) {
        const ls_span *before = &tree->spans[tree->parents[run->begin + i]];
        LS_TRY(ls_memory_copy(l->device, (uint8_t *)out + i * bytes, ls_pool_at(&pool, before->slot), bytes, err));
    }
    return LS_OK;
}

/* What the spans of a run get from those of the run before it, which continue them: n floats each. */
static ls_status sum_states(const ls_leaf *l, int64_t run_i, int64_t n, ls_error *err) {
    const ls_span_tree *tree = l->batch->tree;
    const ls_span_run *run = &tree->runs[run_i], *branches = &tree->runs[run_i - 1];
    float *sums = l->tape->dfinal;
    const int64_t dim = ls_min_i64(n & -n, 1 << 16); /* any that divides n: rows are as wide as an op takes */
    LS_TRY(ls_memory_fill(l->device, sums, 0, run->n * n * (int64_t)sizeof *sums, err));
    for (int64_t i = 0; i < branches->n; i++) {
        const bool falls = LS_INJECTED(LS_INJECT_BRANCH_ORDER) && l->tape->n_spans > l->batch->n_spans;
        const int64_t k = falls ? branches->n - 1 - i : i;
        const ls_residual_args add = {.h = sums + (tree->parents[branches->begin + k] - run->begin) * n,
                                      .y = l->tape->dinitial + k * n,
                                      .rows = n / dim,
                                      .dim = dim};
        LS_TRY(ls_residual(l->device, &add, err));
    }
    return LS_OK;
}

ls_status ls_leaf_border_of(ls_leaf_border *out, const ls_leaf *l, int64_t layer_i, const char *name, int64_t i,
                            ls_error *err) {
    const ls_state_tensor *tensor = ls_cache_tensor(l->tape->cache, name);
    const ls_span_run run = ls_batch_run(l->batch, i);
    const ls_tape *t = l->tape;
    *out = (ls_leaf_border){NULL, NULL, NULL, NULL};
    if (i > 0 && l->batch->tree->runs[i - 1].continues) {
        LS_TRY(sum_states(l, i, tensor->bytes / ls_dtype_bytes(tensor->dtype), err));
        out->dfinal = t->dfinal;
    }
    if (!run.continues) return LS_OK;
    LS_TRY(gather_states(l, layer_i, name, &run, t->initial, err));
    out->initial = t->initial;
    out->dinitial = t->dinitial;
    if (strcmp(name, "ssd") != 0 && strcmp(name, "delta") != 0) return LS_OK;
    out->initial_scale = t->initial_scale;
    return gather_states(l, layer_i, "scale", &run, t->initial_scale, err);
}

ls_status ls_leaf_through_convolution(const ls_leaf *l, int64_t layer_i, ls_conv1d_backward_args args, ls_error *err) {
    for (int64_t i = 0; i < ls_batch_n_runs(l->batch); i++) {
        const ls_span_run run = ls_batch_run(l->batch, i);
        ls_leaf_border border;
        LS_TRY(ls_leaf_border_of(&border, l, layer_i, "conv", i, err));
        args.spans = l->batch->spans + run.begin;
        args.n_spans = run.n;
        args.span_rows_max = run.rows_max;
        args.initial = border.initial;
        args.dinitial = border.dinitial;
        args.dfinal = border.dfinal;
        LS_TRY(ls_conv1d_backward(l->device, &args, err));
    }
    return LS_OK;
}

/* ---- cuts ---- */

/* What one call takes of spans [begin, end). */
static ls_leaf_cut cut_from(const ls_leaf *l, const ls_leaf_cuts *cuts, const ls_span *spans, int64_t begin,
                            int64_t end) {
    ls_leaf_cut cut = {.row = spans[begin].row, .spans = l->tape->cut_spans + begin};
    for (int64_t i = begin; i < end; i++) {
        ls_leaf_cut more = cut;
        int64_t bytes;
        more.n_spans++;
        more.rows = spans[i].row + spans[i].n_rows - cut.row;
        if (spans[i].n_rows > more.span_rows_max) more.span_rows_max = spans[i].n_rows;
        bytes = cuts->bytes(cuts->call, &more);
        if (more.n_spans > 1 && (bytes < 0 || bytes > l->tape->cut_bytes)) break;
        cut = more;
    }
    return cut;
}

/* The border from a span of the run on; states are of float32 where calls are cut. */
static ls_leaf_border border_from(const ls_leaf *l, const char *tensor, ls_leaf_border b, int64_t span) {
    const int64_t f32 = (int64_t)sizeof(float);
    const int64_t at = span * (ls_cache_tensor(l->tape->cache, tensor)->bytes / f32);
    if (b.initial != NULL) b.initial = (const float *)b.initial + at;
    if (b.initial_scale != NULL) b.initial_scale += span * (ls_cache_tensor(l->tape->cache, "scale")->bytes / f32);
    if (b.dinitial != NULL) b.dinitial += at;
    if (b.dfinal != NULL) b.dfinal += at;
    return b;
}

static ls_status cut_run(const ls_leaf *l, const ls_leaf_cuts *cuts, const char *tensor, const ls_span_run *run,
                         const ls_leaf_border *border, ls_error *err) {
    const ls_tape *t = l->tape;
    const ls_span *spans = l->batch->tree == NULL ? t->leaf_spans : l->batch->tree->spans;
    for (int64_t begin = run->begin, end = begin + run->n; begin < end;) {
        ls_leaf_cut cut = cut_from(l, cuts, spans, begin, end);
        cut.border = border_from(l, tensor, *border, begin - run->begin);
        for (int64_t i = 0; i < cut.n_spans; i++) {
            t->host_cut[i] = spans[begin + i];
            t->host_cut[i].row -= cut.row;
        }
        LS_TRY(
            ls_memory_write(l->device, t->cut_spans + begin, t->host_cut, cut.n_spans * (int64_t)sizeof(ls_span), err));
        LS_TRY(cuts->run(l, cuts->call, &cut, err));
        begin += cut.n_spans;
    }
    return LS_OK;
}

ls_status ls_leaf_run_cuts(const ls_leaf *l, int64_t layer_i, const char *tensor, const ls_leaf_cuts *cuts,
                           ls_error *err) {
    for (int64_t i = 0; i < ls_batch_n_runs(l->batch); i++) {
        const ls_span_run run = ls_batch_run(l->batch, i);
        ls_leaf_border border;
        LS_TRY(ls_leaf_border_of(&border, l, layer_i, tensor, i, err));
        LS_TRY(cut_run(l, cuts, tensor, &run, &border, err));
    }
    return LS_OK;
}
