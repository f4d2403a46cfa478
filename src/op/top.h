/* The likeliest entries of rows of logits, with their log-probabilities.
 *
 * top: id[r][i] is entry number i of row r in the order of descending logits, the lower id first among equals, as both
 *   zeros are; NaN stands behind -inf, the lower id first. logprob[r][i] is what op/logprob.h says of row r and the
 *   target id[r][i] at temperature 1: the row's leaves, joined in the aligned binary tree over their numbers, and the
 *   final step. The leaves are the caller's, by logprob_shard of the same rows; they are used up. */
#ifndef LS_OP_TOP_H
#define LS_OP_TOP_H

#include "base/status.h"
#include "lockstep/ops.h"

#define LS_TOP_MAX 256 /* entries of a row, at most */

typedef struct ls_top_args {
    const float *logits;     /* [rows][vocab] */
    int64_t rows, vocab, k;  /* k: 1 .. LS_TOP_MAX, no more than vocab */
    ls_logprob_leaf *leaves; /* [rows][ls_logprob_leaves(vocab)], of all rows; 16-byte aligned on CUDA */
    int32_t *id;             /* [rows][k] */
    float *logprob;          /* [rows][k] */
} ls_top_args;

ls_status ls_top_check(const ls_top_args *args, ls_error *err);

#endif
