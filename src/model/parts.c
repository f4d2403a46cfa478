/* What parts of layers are made of: products and norms over the rows of a forward, and their gradients in a leaf. */
#include "model/parts.h"

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

/* ---- cuts ---- */

/* What one call takes from sequence `begin` on. */
static ls_leaf_cut cut_from(const ls_leaf *l, const ls_leaf_cuts *cuts, int64_t begin) {
    const ls_span *spans = l->tape->leaf_spans;
    ls_leaf_cut cut = {.row = spans[begin].row, .spans = l->tape->cut_spans + begin};
    for (int64_t i = begin; i < l->batch->n_spans; i++) {
        ls_leaf_cut more = cut;
        int64_t bytes;
        more.n_spans++;
        more.rows += spans[i].n_rows;
        if (spans[i].n_rows > more.span_rows_max) more.span_rows_max = spans[i].n_rows;
        bytes = cuts->bytes(cuts->call, &more);
        if (more.n_spans > 1 && (bytes < 0 || bytes > l->tape->cut_bytes)) break;
        cut = more;
    }
    return cut;
}

ls_status ls_leaf_run_cuts(const ls_leaf *l, const ls_leaf_cuts *cuts, ls_error *err) {
    const ls_tape *t = l->tape;
    for (int64_t begin = 0; begin < l->batch->n_spans;) {
        const ls_leaf_cut cut = cut_from(l, cuts, begin);
        for (int64_t i = 0; i < cut.n_spans; i++) {
            t->host_cut[i] = t->leaf_spans[begin + i];
            t->host_cut[i].row -= cut.row;
        }
        LS_TRY(
            ls_memory_write(l->device, t->cut_spans + begin, t->host_cut, cut.n_spans * (int64_t)sizeof(ls_span), err));
        LS_TRY(cuts->run(l, cuts->call, &cut, err));
        begin += cut.n_spans;
    }
    return LS_OK;
}
