/* Gradients of the elementwise ops on the CPU. */
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/elementwise_backward.h"
#include "op/rows.h"

/* Columns of a row read before any of them is written, since gradients may lie on inputs. */
#define GATE_BLOCK 64

static void gate_block(const float *gate, const float *up, const float *dy, float *dgate, float *dup, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float s = ls_sigmoid(gate[i]), l = ls_silu(gate[i]);
        dup[i] = ls_mul(dy[i], l);
        dgate[i] = ls_mul(ls_mul(dy[i], up[i]), ls_fma(l, ls_sub(1.0f, s), s));
    }
}

LS_KERNEL_DEFINE(ls_swiglu_backward_kernel) {
    const ls_swiglu_backward_args *a = context;
    (void)scratch;
    for (int64_t at = begin * a->dim; at < end * a->dim; at += GATE_BLOCK) {
        const int64_t n = end * a->dim - at < GATE_BLOCK ? end * a->dim - at : GATE_BLOCK;
        float dgate[GATE_BLOCK], dup[GATE_BLOCK];
        gate_block(a->gate + at, a->up + at, a->dy + at, dgate, dup, n);
        memcpy(a->dgate + at, dgate, (size_t)n * sizeof *dgate);
        memcpy(a->dup + at, dup, (size_t)n * sizeof *dup);
    }
}

LS_KERNEL_DEFINE(ls_swiglu_backward_rounded_kernel) {
    const ls_swiglu_backward_rounded_args *a = context;
    (void)scratch;
    for (int64_t at = begin * a->dim; at < end * a->dim; at += GATE_BLOCK) {
        const int64_t n = end * a->dim - at < GATE_BLOCK ? end * a->dim - at : GATE_BLOCK;
        float dgate[GATE_BLOCK], dup[GATE_BLOCK];
        gate_block(a->gate + at, a->up + at, a->dy + at, dgate, dup, n);
        ls_row_narrow(a->dgate + at, LS_BF16, dgate, n);
        ls_row_narrow(a->dup + at, LS_BF16, dup, n);
    }
}

LS_KERNEL_DEFINE(ls_relu2_backward_kernel) {
    const ls_relu2_backward_args *a = context;
    (void)scratch;
    for (int64_t at = begin * a->dim; at < end * a->dim; at += GATE_BLOCK) {
        const int64_t n = end * a->dim - at < GATE_BLOCK ? end * a->dim - at : GATE_BLOCK;
        float dx[GATE_BLOCK];
        for (int64_t i = 0; i < n; i++) {
            const float m = a->x[at + i] <= 0.0f ? 0.0f : a->x[at + i];
            dx[i] = ls_mul(a->dy[at + i], ls_add(m, m));
        }
        ls_row_narrow(ls_at_mut(a->dx, a->dx_dtype, at), a->dx_dtype, dx, n);
    }
}

/* Items are blocks of columns: each takes all rows, in ascending order. */
LS_KERNEL_DEFINE(ls_embed_backward_kernel) {
    const ls_embed_backward_args *a = context;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const int64_t column = item * LS_EMBED_BLOCK;
        const int64_t n = a->dim - column < LS_EMBED_BLOCK ? a->dim - column : LS_EMBED_BLOCK;
        for (int64_t row = 0; row < a->rows; row++) {
            const float *dy = a->dy + row * a->dy_stride + column;
            float *sum = a->dtable + (int64_t)a->tokens[row] * a->dim + column;
            if (a->tokens[row] == a->pad) continue;
            for (int64_t c = 0; c < n; c++) sum[c] = ls_add(sum[c], dy[c]);
        }
    }
}
