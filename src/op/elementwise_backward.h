/* Gradients of the ops of op/elementwise.h without a sum over columns. R is taken as the identity.
 *
 * swiglu: y = R(silu(gate) * up). With s = sigmoid(gate), l = silu(gate):
 *   dup = dy * l;  dgate = (dy * up) * fma(l, 1 - s, s)
 * swiglu_backward_rounded: the same two gradients, each rounded once to bf16, as products in mma16 read them.
 * relu2: y = R(m * m), m = x where it is above 0 or NaN, else +0:  dx = dy * (m + m), stored as float32 or rounded once
 *   to bf16, as products in mma16 read it.
 * embed:  y[r] = R(table[token[r]]): dtable[token[r]][c] = dtable[token[r]][c] + dy[r][c], rows ascending. dtable
 *   continues from the float32 values that are there: the caller sets it to +0 once, and a sum that is cut into calls
 *   at any row has the bits of one call. Rows of tokens that do not occur are not touched, nor is that of the
 *   padding token, which torch.nn.Embedding (padding_idx) does not train either. dy may be the host's memory
 *   (ls_memory_pin).
 * residual: the gradient passes through unchanged; there is nothing to compute.
 *
 * Which NaN a NaN is, is left open. */
#ifndef LS_OP_ELEMENTWISE_BACKWARD_H
#define LS_OP_ELEMENTWISE_BACKWARD_H

#include "base/status.h"
#include "lockstep/ops.h"

ls_status ls_swiglu_backward_check(const ls_swiglu_backward_args *args, ls_error *err);

typedef struct ls_swiglu_backward_rounded_args {
    const float *gate, *up, *dy; /* [rows][dim] */
    uint16_t *dgate, *dup;       /* [rows][dim] bf16; neither overlaps the other or an input */
    int64_t rows, dim;
} ls_swiglu_backward_rounded_args;

ls_status ls_swiglu_backward_rounded_check(const ls_swiglu_backward_rounded_args *args, ls_error *err);

ls_status ls_relu2_backward_check(const ls_relu2_backward_args *args, ls_error *err);

/* A token outside [0, vocab) is an error that names row and token; nothing is written then. */
ls_status ls_embed_backward_check(const ls_embed_backward_args *args, ls_error *err);

/* Columns that a work item of the embedding takes; carries no bits. */
#define LS_EMBED_BLOCK 64

#endif
