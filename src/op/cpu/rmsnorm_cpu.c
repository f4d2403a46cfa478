/* rmsnorm on the CPU: chains are vector lanes. */
#include "num/sum.h"
#include "op/cpu/kernels.h"
#include "op/rmsnorm.h"
#include "op/rows.h"

LS_KERNEL_DEFINE(ls_rmsnorm_kernel) {
    const ls_rmsnorm_args *a = context;
    float *x = scratch;
    for (int64_t row = begin; row < end; row++) {
        float chain[LS_SUM_CHAINS] = {0};
        float scale;
        ls_row_widen(x, ls_at(a->x, a->x_dtype, row * a->x_stride), a->x_dtype, a->dim);
        for (int64_t base = 0; base < a->dim; base += LS_SUM_CHAINS) {
            const int64_t n = a->dim - base < LS_SUM_CHAINS ? a->dim - base : LS_SUM_CHAINS;
            for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(x[base + i], x[base + i], chain[i]);
        }
        scale = ls_div(1.0f, ls_sqrt(ls_add(ls_div(ls_sum_fold_used(chain, a->dim), (float)a->dim), a->eps)));
        for (int64_t c = 0; c < a->dim; c++) x[c] = ls_mul(ls_mul(x[c], scale), a->w[c]);
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->y_stride), a->y_dtype, x, a->dim);
    }
}
