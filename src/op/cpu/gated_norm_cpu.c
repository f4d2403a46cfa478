/* gated_norm on the CPU, forward and backward: in a row chains are vector lanes; in dw columns are, and rows follow one
 * another. */
#include "num/sum.h"
#include "op/cpu/kernels.h"
#include "op/cpu/row_math.h"
#include "op/gated_norm.h"
#include "op/rows.h"

/* The 256-chain tree of a[i] * b[i]. */
static float sum_of_products(const float *a, const float *b, int64_t n) {
    float chain[LS_SUM_CHAINS] = {0};
    for (int64_t base = 0; base < n; base += LS_SUM_CHAINS) {
        const int64_t count = n - base < LS_SUM_CHAINS ? n - base : LS_SUM_CHAINS;
        for (int64_t i = 0; i < count; i++) chain[i] = ls_fma(a[base + i], b[base + i], chain[i]);
    }
    return ls_sum_fold(chain);
}

/* v of n columns. */
static void gate(float *v, const float *x, const float *z, int64_t n) {
    ls_row_silu(v, z, n);
    for (int64_t c = 0; c < n; c++) v[c] = ls_mul(x[c], v[c]);
}

static float scale_of(const float *v, int64_t n, float eps) {
    return ls_div(1.0f, ls_sqrt(ls_add(ls_div(sum_of_products(v, v, n), (float)n), eps)));
}

LS_KERNEL_DEFINE(ls_gated_norm_kernel) {
    const ls_gated_norm_args *a = context;
    const int64_t n = a->dim / a->groups;
    float *v = scratch;
    for (int64_t row = begin; row < end; row++) {
        gate(v, a->x + row * a->x_stride, a->z + row * a->z_stride, a->dim);
        for (int64_t first = 0; first < a->dim; first += n) {
            const float s = scale_of(v + first, n, a->eps);
            for (int64_t c = first; c < first + n; c++) v[c] = ls_mul(ls_mul(v[c], s), a->w[c]);
        }
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->y_stride), a->y_dtype, v, a->dim);
    }
}

/* One group of a row: n[] and the scratch e[] of its length. */
static void group_back(const ls_gated_norm_backward_args *a, int64_t row, int64_t g, float *normed, float *e) {
    const int64_t n = a->dim / a->groups, first = g * n;
    const float *x = a->x + row * a->x_stride + first, *z = a->z + row * a->z_stride + first;
    const float *dy = a->dy + row * a->dy_stride + first, *w = a->w + first;
    float *dx = a->dx + row * a->dx_stride + first, s, u;
    gate(normed, x, z, n);
    s = scale_of(normed, n, a->eps);
    for (int64_t c = 0; c < n; c++) {
        normed[c] = ls_mul(normed[c], s);
        e[c] = ls_mul(dy[c], w[c]);
    }
    u = ls_div(sum_of_products(e, normed, n), (float)n);
    for (int64_t c = 0; c < n; c++) {
        const float dv = ls_mul(s, ls_fma(-normed[c], u, e[c])), k = ls_sigmoid(z[c]), l = ls_silu(z[c]);
        dx[c] = ls_mul(dv, l);
        e[c] = ls_mul(ls_mul(dv, x[c]), ls_fma(l, ls_sub(1.0f, k), k));
    }
    ls_row_narrow(ls_at_mut(a->dz, a->dz_dtype, row * a->dz_stride + first), a->dz_dtype, e, n);
    a->scale[row * a->groups + g] = s;
}

LS_KERNEL_DEFINE(ls_gated_norm_backward_kernel) {
    const ls_gated_norm_backward_args *a = context;
    for (int64_t row = begin; row < end; row++)
        for (int64_t g = 0; g < a->groups; g++) group_back(a, row, g, scratch, scratch + a->dim);
}

/* Items are blocks of columns. */
LS_KERNEL_DEFINE(ls_gated_norm_dw_kernel) {
    const ls_gated_norm_backward_args *a = context;
    const int64_t each = a->dim / a->groups;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const int64_t column = item * LS_GATED_NORM_BLOCK;
        const int64_t n = a->dim - column < LS_GATED_NORM_BLOCK ? a->dim - column : LS_GATED_NORM_BLOCK;
        float v[LS_GATED_NORM_BLOCK], acc[LS_GATED_NORM_BLOCK];
        memcpy(acc, a->dw + column, (size_t)n * sizeof *acc);
        for (int64_t row = 0; row < a->rows; row++) {
            const float *dy = a->dy + row * a->dy_stride + column, *scale = a->scale + row * a->groups;
            gate(v, a->x + row * a->x_stride + column, a->z + row * a->z_stride + column, n);
            for (int64_t c = 0; c < n; c++) acc[c] = ls_fma(dy[c], ls_mul(v[c], scale[(column + c) / each]), acc[c]);
        }
        memcpy(a->dw + column, acc, (size_t)n * sizeof *acc);
    }
}
