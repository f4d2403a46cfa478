/* Gradients of the ops of op/elementwise.h without a sum over columns. R is taken as the identity.
 *
 * swiglu: y = R(silu(gate) * up). With s = sigmoid(gate), l = silu(gate):
 *   dup = dy * l;  dgate = (dy * up) * fma(l, 1 - s, s)
 * embed:  y[r] = R(table[token[r]]): dtable[token[r]][c] = dtable[token[r]][c] + dy[r][c], rows ascending. dtable
 *   continues from the float32 values that are there: the caller sets it to +0 once, and a sum that is cut into calls
 *   at any row has the bits of one call. Rows of tokens that do not occur are not touched, nor is that of the
 *   padding token, which torch.nn.Embedding (padding_idx) does not train either.
 * residual: the gradient passes through unchanged; there is nothing to compute.
 *
 * Which NaN a NaN is, is left open. */
#ifndef LS_OP_ELEMENTWISE_BACKWARD_H
#define LS_OP_ELEMENTWISE_BACKWARD_H

#include "base/status.h"
#include "lockstep/lockstep.h"

typedef struct ls_swiglu_backward_args {
    const float *gate, *up, *dy; /* [rows][dim] */
    float *dgate, *dup;          /* [rows][dim]; each may be one of the inputs, and not the other */
    int64_t rows, dim;
} ls_swiglu_backward_args;

ls_status ls_swiglu_backward_check(const ls_swiglu_backward_args *args, ls_error *err);

typedef struct ls_embed_backward_args {
    const int32_t *tokens; /* [rows] */
    const float *dy;       /* [rows], rows dy_stride elements apart */
    int64_t dy_stride;
    float *dtable; /* [vocab][dim], continued */
    int64_t vocab, dim, rows;
    int32_t pad; /* the padding token; -1 for none */
} ls_embed_backward_args;

/* A token outside [0, vocab) is an error that names row and token; nothing is written then. */
ls_status ls_embed_backward_check(const ls_embed_backward_args *args, ls_error *err);

/* Columns that a work item of the embedding takes; carries no bits. */
#define LS_EMBED_BLOCK 64

#endif
