/* Causal depthwise convolution with carried state, then SiLU (the Mamba-1 convolution).
 *
 * x' = x rounded to the type of the state;  a = bias[c] (or +0);
 * for k = 0 .. d_conv-1: a = fma(w[k][c], x'[t - (d_conv-1) + k][c], a);  y[t][c] = R(silu(a))
 * Taps run oldest to newest. Inputs before the sequence's first token are +0. State: the last d_conv-1 inputs x',
 * oldest first, before convolution and SiLU. An input has the same bits whether it comes from this span or from the
 * state, and channel c of token t depends on its own d_conv inputs only, so any cut of a sequence into spans gives the
 * same bits. */
#ifndef LS_OP_CONV1D_H
#define LS_OP_CONV1D_H

#include "dev/queue.h"
#include "op/span.h"

#define LS_CONV_WIDTH_MAX 16
/* Channels that one CPU work item takes; carries no bits. */
#define LS_CONV1D_BLOCK 64

typedef struct ls_conv1d_args {
    const void *x;                          /* [rows][x_stride], first dim elements of each row */
    ls_dtype x_dtype, y_dtype, state_dtype; /* f32 or bf16 each */
    int64_t x_stride;
    const float *w;    /* [d_conv][dim] */
    const float *bias; /* [dim], or NULL */
    void *y;           /* [rows][y_stride]; must not overlap x */
    int64_t y_stride;
    int64_t dim, d_conv;
    ls_pool_view state; /* entries [d_conv-1][dim] */
    const ls_span *spans;
    int64_t n_spans;
} ls_conv1d_args;

/* A slot that is not in the pool is an error before anything is written. */
ls_status ls_conv1d(ls_queue *queue, const ls_conv1d_args *args, ls_error *err);

#endif
