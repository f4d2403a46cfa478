/* sigmoid_gate on the CPU: items are rows. */
#include "num/expf.h"
#include "num/sum.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"
#include "op/sigmoid_gate.h"

LS_KERNEL_DEFINE(ls_sigmoid_gate_kernel) {
    const ls_sigmoid_gate_args *a = context;
    const int64_t width = a->dim / a->gates;
    for (int64_t row = begin; row < end; row++) {
        const float *gate = a->gate + row * a->gate_stride;
        ls_row_widen(scratch, ls_at(a->x, a->x_dtype, row * a->x_stride), a->x_dtype, a->dim);
        for (int64_t i = 0; i < a->gates; i++) {
            const float k = ls_sigmoid(gate[i]);
            for (int64_t c = i * width; c < (i + 1) * width; c++) scratch[c] = ls_mul(scratch[c], k);
        }
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->y_stride), a->y_dtype, scratch, a->dim);
    }
}

/* The tree over the products of n columns. */
static float product_sum(const float *x, const float *y, int64_t n) {
    float chain[LS_SUM_CHAINS] = {0};
    if (n == 1) return ls_add(ls_fma(x[0], y[0], 0.0f), 0.0f); /* chains without elements turn -0 to +0 */
    for (int64_t base = 0; base < n; base += LS_SUM_CHAINS) {
        const int64_t count = n - base < LS_SUM_CHAINS ? n - base : LS_SUM_CHAINS;
        for (int64_t i = 0; i < count; i++) chain[i] = ls_fma(x[base + i], y[base + i], chain[i]);
    }
    return ls_sum_fold(chain);
}

LS_KERNEL_DEFINE(ls_sigmoid_gate_backward_kernel) {
    const ls_sigmoid_gate_backward_args *a = context;
    const int64_t width = a->dim / a->gates;
    for (int64_t row = begin; row < end; row++) {
        const float *gate = a->gate + row * a->gate_stride;
        const float *dy = a->dy + row * a->dy_stride;
        float *dx = a->dx + row * a->dx_stride;
        ls_row_widen(scratch, ls_at(a->x, a->x_dtype, row * a->x_stride), a->x_dtype, a->dim);
        for (int64_t i = 0; i < a->gates; i++) {
            const float k = ls_sigmoid(gate[i]), sum = product_sum(dy + i * width, scratch + i * width, width);
            for (int64_t c = i * width; c < (i + 1) * width; c++) dx[c] = ls_mul(dy[c], k);
            scratch[i] = ls_mul(sum, ls_mul(k, ls_sigmoid(-gate[i]))); /* columns up to here have been read */
        }
        ls_row_narrow(ls_at_mut(a->dgate, a->dgate_dtype, row * a->dgate_stride), a->dgate_dtype, scratch, a->gates);
    }
}
