/* Weights, rows by number and other movers of data on the CPU. */
#include "base/mem.h"
#include "num/expf.h"
#include "op/cpu/adamw_kernel.h"
#include "op/elementwise.h"
#include "op/gather.h"
#include "op/rows.h"

LS_KERNEL_DEFINE(ls_widen_kernel) {
    const ls_widen_args *a = context;
    const int64_t first = begin * LS_ADAMW_BLOCK, n = ls_min_i64(end * LS_ADAMW_BLOCK, a->n) - first;
    (void)scratch;
    if (n <= 0) return;
    ls_row_widen(a->out + first, ls_at(a->x, a->dtype, first), a->dtype, n);
    for (int64_t i = first; i < first + n && a->plus_one; i++) a->out[i] = ls_add(1.0f, a->out[i]);
}

LS_KERNEL_DEFINE(ls_decay_kernel) {
    const ls_decay_args *a = context;
    const int64_t first = begin * LS_ADAMW_BLOCK, last = ls_min_i64(end * LS_ADAMW_BLOCK, a->n);
    (void)scratch;
    ls_row_widen(a->out + first, ls_at(a->x, a->dtype, first), a->dtype, last - first);
    for (int64_t i = first; i < last; i++) a->out[i] = ls_mul(-ls_exp(a->out[i]), LS_LOG2E);
}

LS_KERNEL_DEFINE(ls_rates_kernel) {
    const ls_rates_args *a = context;
    const int64_t first = begin * LS_ADAMW_BLOCK, last = ls_min_i64(end * LS_ADAMW_BLOCK, a->n);
    (void)scratch;
    ls_row_widen(a->out + first, ls_at(a->x, a->dtype, first), a->dtype, last - first);
    for (int64_t i = first; i < last; i++) a->out[i] = -ls_exp(a->out[i]);
}

LS_KERNEL_DEFINE(ls_taps_kernel) {
    const ls_taps_args *a = context;
    (void)scratch;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < a->cols; j++)
            ls_row_widen(&a->out[j * a->rows + i], ls_at(a->x, a->dtype, i * a->cols + j), a->dtype, 1);
}

LS_KERNEL_DEFINE(ls_multiply_kernel) {
    const ls_multiply_args *a = context;
    const int64_t last = ls_min_i64(end * LS_ADAMW_BLOCK, a->n);
    (void)scratch;
    for (int64_t i = begin * LS_ADAMW_BLOCK; i < last; i++) a->x[i] = ls_mul(ls_mul(a->x[i], a->scale), a->y[i]);
}

LS_KERNEL_DEFINE(ls_scale_kernel) {
    const ls_scale_args *a = context;
    const int64_t last = ls_min_i64(end * LS_ADAMW_BLOCK, a->n);
    (void)scratch;
    for (int64_t i = begin * LS_ADAMW_BLOCK; i < last; i++) a->y[i] = ls_mul(a->x[i], a->scale);
}

LS_KERNEL_DEFINE(ls_gather_kernel) {
    const ls_gather_args *a = context;
    (void)scratch;
    for (int64_t i = begin; i < end; i++)
        memcpy((uint8_t *)a->out + i * a->out_stride, (const uint8_t *)a->x + a->index[i] * a->x_stride,
               (size_t)a->row_bytes);
}
