/* Elementwise ops on the CPU. */
#include "op/elementwise.h"

#include "num/expf.h"
#include "op/kernels.h"
#include "op/rows.h"

LS_KERNEL_DEFINE(ls_embed_kernel) {
    const ls_embed_args *a = context;
    for (int64_t row = begin; row < end; row++) {
        ls_row_widen(scratch, ls_at(a->table, a->table_dtype, a->tokens[row] * a->dim), a->table_dtype, a->dim);
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->dim), a->y_dtype, scratch, a->dim);
    }
}

LS_KERNEL_DEFINE(ls_residual_kernel) {
    const ls_residual_args *a = context;
    float *h = scratch, *y = scratch + a->dim;
    for (int64_t row = begin; row < end; row++) {
        ls_row_widen(h, ls_at(a->h, a->dtype, row * a->dim), a->dtype, a->dim);
        ls_row_widen(y, ls_at(a->y, a->dtype, row * a->dim), a->dtype, a->dim);
        for (int64_t c = 0; c < a->dim; c++) h[c] = ls_add(h[c], y[c]);
        ls_row_narrow(ls_at_mut(a->h, a->dtype, row * a->dim), a->dtype, h, a->dim);
    }
}

LS_KERNEL_DEFINE(ls_swiglu_kernel) {
    const ls_swiglu_args *a = context;
    float *gate = scratch, *up = scratch + a->dim;
    for (int64_t row = begin; row < end; row++) {
        ls_row_widen(gate, ls_at(a->gate, a->dtype, row * a->dim), a->dtype, a->dim);
        ls_row_widen(up, ls_at(a->up, a->dtype, row * a->dim), a->dtype, a->dim);
        for (int64_t c = 0; c < a->dim; c++) gate[c] = ls_mul(ls_silu(gate[c]), up[c]);
        ls_row_narrow(ls_at_mut(a->y, a->dtype, row * a->dim), a->dtype, gate, a->dim);
    }
}
