/* Gradients of the elementwise ops on the CPU. */
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/elementwise_backward.h"

/* Columns of a row read before any of them is written, since gradients may lie on inputs. */
#define GATE_BLOCK 64

LS_KERNEL_DEFINE(ls_swiglu_backward_kernel) {
    const ls_swiglu_backward_args *a = context;
    (void)scratch;
    for (int64_t at = begin * a->dim; at < end * a->dim; at += GATE_BLOCK) {
        const int64_t n = end * a->dim - at < GATE_BLOCK ? end * a->dim - at : GATE_BLOCK;
        const float *gate = a->gate + at, *up = a->up + at, *dy = a->dy + at;
        float dgate[GATE_BLOCK], dup[GATE_BLOCK];
        for (int64_t i = 0; i < n; i++) {
            const float s = ls_sigmoid(gate[i]), l = ls_silu(gate[i]);
            dup[i] = ls_mul(dy[i], l);
            dgate[i] = ls_mul(ls_mul(dy[i], up[i]), ls_fma(l, ls_sub(1.0f, s), s));
        }
        memcpy(a->dgate + at, dgate, (size_t)n * sizeof *dgate);
        memcpy(a->dup + at, dup, (size_t)n * sizeof *dup);
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
