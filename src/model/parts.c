/* What parts of layers are made of: products and norms over the rows of a forward, and their gradients in a leaf. */
#include "model/parts.h"

#include "model/tape_state.h"
#include "op/gemm_backward.h"
#include "op/rmsnorm.h"
#include "op/rmsnorm_backward.h"

/* ---- forward ---- */

static ls_status project(const ls_forward *f, ls_profile profile, ls_rows out, ls_rows x, const ls_gemm_weight *w,
                         const float *bias, int64_t m, const int64_t *range, ls_error *err) {
    const ls_gemm_args args = {.x = x.data,
                               .x_dtype = x.dtype,
                               .x_stride = x.stride,
                               .weight = w,
                               .bias = bias,
                               .out = out.data,
                               .out_dtype = out.dtype,
                               .out_stride = out.stride,
                               .m = m,
                               .profile = profile,
                               .range = range,
                               .nan_open = true};
    return ls_gemm(f->ws->device, &args, err);
}

ls_status ls_part_project(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, const float *bias,
                          int64_t m, const int64_t *range, ls_error *err) {
    return project(f, f->model->profile, out, x, w, bias, m, range, err);
}

ls_status ls_part_project_exact(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, ls_error *err) {
    return project(f, LS_PROFILE_EXACT, out, x, w, NULL, f->batch->n_rows, NULL, err);
}

ls_status ls_part_norm(const ls_forward *f, ls_rows y, ls_rows x, const float *w, int64_t dim, ls_error *err) {
    const ls_rmsnorm_args args = {.x = x.data,
                                  .x_dtype = x.dtype,
                                  .x_stride = x.stride,
                                  .w = w,
                                  .eps = f->model->config.rms_eps,
                                  .y = y.data,
                                  .y_dtype = y.dtype,
                                  .y_stride = y.stride,
                                  .rows = f->batch->n_rows,
                                  .dim = dim};
    return ls_rmsnorm(f->ws->device, &args, err);
}

/* ---- backward ---- */

float *ls_leaf_gradient(const ls_leaf *l, const void *place) {
    return l->gradient + ls_parameter_of(l->tape->parameters, place)->offset;
}

ls_status ls_leaf_into_weight(const ls_leaf *l, const ls_gemm_weight *w, ls_rows dy, ls_rows x, const float *bias,
                              int64_t m, const int64_t *range, ls_error *err) {
    const ls_gemm_backward_weight_args args = {.dy = dy.data,
                                               .dy_stride = dy.stride,
                                               .x = x.data,
                                               .x_dtype = x.dtype,
                                               .x_stride = x.stride,
                                               .x_count = m,
                                               .dw = ls_leaf_gradient(l, w),
                                               .dbias = bias != NULL ? ls_leaf_gradient(l, bias) : NULL,
                                               .m = m,
                                               .n = w->n,
                                               .k = w->k,
                                               .profile = l->model->profile,
                                               .sequences = l->tape->sequences,
                                               .n_sequences = l->batch->n_spans,
                                               .range = range};
    return ls_gemm_backward_weight(l->device, &args, err);
}

ls_status ls_leaf_into_input(const ls_leaf *l, const ls_gemm_weight *w, ls_rows dy, ls_rows dx, bool add,
                             const int64_t *rows, int64_t m, const int64_t *range, ls_error *err) {
    const ls_parameter *p = ls_parameter_of(l->tape->parameters, w);
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
                                              .k = w->k,
                                              .profile = l->model->profile,
                                              .range = range};
    return ls_gemm_backward_input(l->device, &args, err);
}

ls_status ls_leaf_through_norm(const ls_leaf *l, const float *w, ls_rows x, ls_rows dy, ls_rows dx, bool add,
                               int64_t dim, ls_error *err) {
    const ls_rmsnorm_backward_args args = {.x = x.data,
                                           .x_dtype = x.dtype,
                                           .x_stride = x.stride,
                                           .w = w,
                                           .eps = l->model->config.rms_eps,
                                           .dy = dy.data,
                                           .dy_stride = dy.stride,
                                           .dx = dx.data,
                                           .dx_stride = dx.stride,
                                           .add = add,
                                           .dw = ls_leaf_gradient(l, w),
                                           .scale = l->tape->scale,
                                           .rows = l->rows,
                                           .dim = dim};
    return ls_rmsnorm_backward(l->device, &args, err);
}
