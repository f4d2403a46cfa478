/* Causal depthwise convolution with carried state, then SiLU (the Mamba-1 convolution).
 *
 * x' = x rounded to the type of the state;  a = bias[c] (or +0);
 * for k = 0 .. d_conv-1: a = fma(w[k][c], x'[t - (d_conv-1) + k][c], a);  y[t][c] = R(silu(a))
 * rounded[t][c] = y[t][c] of type f32 rounded to bf16, where it is wanted: what a product of the profile mma16 reads
 * Taps run oldest to newest. Inputs before the sequence's first token are +0. State: the last d_conv-1 inputs x',
 * oldest first, before convolution and SiLU. An input has the same bits whether it comes from this span or from the
 * state, and channel c of token t depends on its own d_conv inputs only, so any cut of a sequence into spans gives the
 * same bits.
 *
 * Backward, of whole sequences or of spans that continue others, with a computed again and the rounding to x' taken as
 * the identity. Inputs before a span's first token are those of `initial`, +0 without it:
 *   s = sigmoid(a), l = silu(a);  da[t] = dy[t] * fma(l, 1 - s, s)
 *   dx[t] = chain over t' = t .. t + d_conv-1 within the span, ascending from +0, fma(w[t - t' + d_conv-1], da[t'], dx)
 *           then + dfinal of that input, where there is one, and then float32 or rounded once to bf16
 *   dinitial[j] = the same for the input t = j - (d_conv-1) before the span, in float32; t' from 0 on
 *   dfinal[j] is of the input t = n - (d_conv-1) + j of a span of n tokens, one before the span where t < 0
 *   dw[k] = sum over t of fma(da[t], x'[t - (d_conv-1) + k], dw)
 *   dbias = sum over t of da[t]
 * Both sums: blocks of 64 tokens from the span's start, in a block one ascending chain from +0; a span's blocks add as
 * one ascending chain from +0, then the spans do, from +0 or `continued` from what an earlier call left: calls may be
 * cut between spans. Spans are in ascending order of their rows.
 *
 * Which NaN a float32 NaN of y, state or gradients is, is left open. */
#ifndef LS_OP_CONV1D_H
#define LS_OP_CONV1D_H

#include "op/span.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Channels that one CPU work item takes; carries no bits. */
#define LS_CONV1D_BLOCK 64
/* Tokens of a block of the gradient sums. */
#define LS_CONV1D_SUM_BLOCK 64

ls_status ls_conv1d_check(const ls_conv1d_args *args, ls_error *err);
ls_status ls_conv1d_backward_check(const ls_conv1d_backward_args *args, ls_error *err);

/* Floats of the backward's workspace behind its head: [rows / 64 + n_spans][d_conv + 1][dim], the shares of block j of
 * span i at row / 64 + i + j: dw's taps, then dbias. -1 where it does not fit int64_t. */
int64_t ls_conv1d_backward_floats(const ls_conv1d_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
