/* Elementwise ops on the CPU. */
#include "op/cpu/kernels.h"
#include "op/cpu/row_math.h"
#include "op/elementwise.h"
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
    (void)scratch;
    float *out = a->out != NULL ? a->out : a->h;
    for (int64_t i = begin * a->dim; i < end * a->dim; i++) out[i] = ls_add(a->h[i], a->y[i]);
}

LS_KERNEL_DEFINE(ls_round_rows_kernel) {
    const ls_round_rows_args *a = context;
    (void)scratch;
    for (int64_t row = begin; row < end; row++)
        ls_row_narrow(a->y + row * a->y_stride, LS_BF16, a->x + row * a->x_stride, a->dim);
}

LS_KERNEL_DEFINE(ls_swiglu_kernel) {
    const ls_swiglu_args *a = context;
    for (int64_t row = begin; row < end; row++) {
        const float *gate = a->gate + row * a->dim, *up = a->up + row * a->dim;
        ls_row_silu(scratch, gate, a->dim);
        for (int64_t c = 0; c < a->dim; c++) scratch[c] = ls_mul(scratch[c], up[c]);
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->dim), a->y_dtype, scratch, a->dim);
    }
}

LS_KERNEL_DEFINE(ls_relu2_kernel) {
    const ls_relu2_args *a = context;
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->x + row * a->dim;
        for (int64_t c = 0; c < a->dim; c++) {
            const float m = x[c] <= 0.0f ? 0.0f : x[c];
            scratch[c] = ls_mul(m, m);
        }
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->dim), a->y_dtype, scratch, a->dim);
    }
}
