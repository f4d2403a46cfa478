/* rmsnorm backward on the CPU: in a row chains are vector lanes; in dw columns are, and rows follow one another. */
#include "num/sum.h"
#include "op/cpu/kernels.h"
#include "op/rmsnorm_backward.h"
#include "op/rows.h"

/* The 256-chain sum of a[i] * b[i]. */
static float sum_of_products(const float *a, const float *b, int64_t dim) {
    float chain[LS_SUM_CHAINS] = {0};
    for (int64_t base = 0; base < dim; base += LS_SUM_CHAINS) {
        const int64_t n = dim - base < LS_SUM_CHAINS ? dim - base : LS_SUM_CHAINS;
        for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(a[base + i], b[base + i], chain[i]);
    }
    return ls_sum_fold(chain);
}

LS_KERNEL_DEFINE(ls_rmsnorm_backward_kernel) {
    const ls_rmsnorm_backward_args *a = context;
    float *normed = scratch, *g = scratch + a->dim;
    for (int64_t row = begin; row < end; row++) {
        const float *dy = a->dy + row * a->dy_stride;
        float *dx = a->dx + row * a->dx_stride;
        float q, s, u;
        ls_row_widen(normed, ls_at(a->x, a->x_dtype, row * a->x_stride), a->x_dtype, a->dim);
        q = sum_of_products(normed, normed, a->dim);
        s = ls_div(1.0f, ls_sqrt(ls_add(ls_div(q, (float)a->dim), a->eps)));
        for (int64_t c = 0; c < a->dim; c++) {
            normed[c] = ls_mul(normed[c], s);
            g[c] = ls_mul(dy[c], a->w[c]);
        }
        u = ls_div(sum_of_products(g, normed, a->dim), (float)a->dim);
        for (int64_t c = 0; c < a->dim; c++) g[c] = ls_mul(s, ls_fma(-normed[c], u, g[c]));
        if (a->add)
            for (int64_t c = 0; c < a->dim; c++) dx[c] = ls_add(dx[c], g[c]);
        else
            memcpy(dx, g, (size_t)a->dim * sizeof *dx);
        a->scale[row] = s;
    }
}

/* Items are blocks of columns. */
LS_KERNEL_DEFINE(ls_rmsnorm_dw_kernel) {
    const ls_rmsnorm_backward_args *a = context;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const int64_t column = item * LS_RMSNORM_BLOCK;
        const int64_t n = a->dim - column < LS_RMSNORM_BLOCK ? a->dim - column : LS_RMSNORM_BLOCK;
        float x[LS_RMSNORM_BLOCK], acc[LS_RMSNORM_BLOCK];
        memcpy(acc, a->dw + column, (size_t)n * sizeof *acc);
        for (int64_t row = 0; row < a->rows; row++) {
            const float *dy = a->dy + row * a->dy_stride + column, s = a->scale[row];
            ls_row_widen(x, ls_at(a->x, a->x_dtype, row * a->x_stride + column), a->x_dtype, n);
            for (int64_t c = 0; c < n; c++) acc[c] = ls_fma(dy[c], ls_mul(x[c], s), acc[c]);
        }
        memcpy(a->dw + column, acc, (size_t)n * sizeof *acc);
    }
}
