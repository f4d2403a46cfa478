/* Training's forward and backward over whole packed sequences.
 *
 * The forward is that of forward.h, step by step (ls_model_sublayer), so log-probabilities have the bits of rollout and
 * scoring; the tape keeps the residual stream before every sublayer and, of sublayers that it does not recompute,
 * what its backward needs. Recomputation runs the same ops on the same rows and changes no bit.
 *
 * The backward runs by leaves. A leaf is a run of whole sequences, which may come in several forwards, a part after the
 * other; its gradient is one ordered computation, and all its sums go on from part to part:
 *   head          rows with a target, ascending, in blocks that carry no bits; last norm
 *   sublayers     descending: h_out = h_in + f(rms(h_in)): dh goes through f, then dh = dh + d of the norm; where the
 *                 configuration scales f, what goes through f is dh * residual_scale
 *   matrices      dw chains over the leaf's rows ascending from +0; inputs of several products add in this order:
 *                 dense gate, up; experts ascending (gate, up), then router; q, k, v; scan's du, then x_proj's
 *   embedding     the leaf's rows ascending; with tied embeddings after the head's share
 *   A_log         dA_log = dA2 * A2, at the leaf's end
 * Where sequences continue others, a tree is one with all that continue it, its depth is how many are before it:
 *   ops           those with state take the leaf tree by tree, and a tree depth by depth, the deepest first, of each
 *                 depth sequences ascending; neighbouring trees of one sequence are one call. This is the order of
 *                 their sums over sequences
 *   states        behind a sequence's last token the gradient of a state, or of the convolution's window, is the sum
 *                 of those before the first tokens of the sequences that continue it: one chain from +0, ascending
 *   attention     a sequence's queries give gradients to its own keys and values and to those of all before it. A
 *                 row's are a chain: what its own sequence gives, of depth 0 as it is, of others from +0; then what
 *                 the sequences behind it give, depth by depth from its own on, of each depth ascending
 * and the contracts of the ops (op/NAME_backward.h, op/scan.h, op/conv1d.h). It depends on the leaf's sequences, their
 * order and the weights only: not on how forwards held it and which other leaves, on threads, or on recomputation. */
#ifndef LS_MODEL_TAPE_H
#define LS_MODEL_TAPE_H

#include "model/params.h"
#include "model/supports.h"
#include "op/sample.h"

typedef struct ls_tape ls_tape;

/* All sublayers, of any model. */
#define LS_RECOMPUTE_ALL INT64_MAX

typedef struct ls_tape_opts {
    ls_dtype dtype;              /* of activations */
    int64_t rows_max, spans_max; /* tokens and sequences of one forward */
    int64_t recompute;           /* sublayers of which the residual stream alone is kept: mixers, then feed-forwards */
    float temperature;           /* of the log-probabilities; 1 is the model's own */
    int64_t leaf_rows_max;       /* tokens of a leaf that may have several parts; 0: a leaf is of one forward */
    float *leaf_dh; /* the caller's, of ls_memory_pin, [leaf_rows_max][hidden]: of a tied model with leaves of several
                     * parts, where the rows of their embedding's gradient wait; else not read */
    /* NULL: log-probabilities are over the whole vocabulary. Else over the support that top-k, top-p and min-p leave at
     * the same temperature (op/sample.h); the seed is not read. Copied. */
    const ls_sampling *truncation;
    /* Where sequences may continue others of their forward: tokens of one with those before it, at most, and how many
     * of a tree none continues, at most. 0: none does. */
    int64_t longest, group;
} ls_tape_opts;

ls_status ls_tape_create(ls_tape **out, const ls_parameters *parameters, ls_device *device, const ls_tape_opts *opts,
                         ls_error *err);
void ls_tape_free(ls_tape *tape);

/* Runs n sequences packed one behind the other: sequence i is tokens [offsets[i], offsets[i + 1]). */
ls_status ls_tape_forward(ls_tape *tape, const int32_t *tokens, const int64_t *offsets, int64_t n, ls_error *err);
/* The same of sequences that continue others: sequence i begins where sequence parents[i] ends, whose rows it does not
 * have again; -1: it continues none. The order is that of ls_span_order_check. Log-probabilities of a row have the bits
 * that they have in the whole sequence. */
ls_status ls_tape_forward_trees(ls_tape *tape, const int32_t *tokens, const int64_t *offsets, const int64_t *parents,
                                int64_t n, ls_error *err);
/* Of a tape that truncates, behind each forward: its row r is row `row` + rows[r], or of rows NULL `row` + r, of
 * supports; the caller owns both. A row that is known there has this support; another's is found from its logits when
 * they are first there, and put there. */
void ls_tape_support(ls_tape *tape, ls_supports *supports, int64_t row, const int64_t *rows);
/* Of the tape's rows: row r predicts targets[r], or nothing where it is -1 (0 then). entropy may be NULL. All are host
 * memory; waits for the device. */
ls_status ls_tape_logprob(ls_tape *tape, const int64_t *targets, float *logprob, float *entropy, ls_error *err);
/* Rows [row, row + n) of the residual stream of the last forward into out [n][H], host memory: before sublayer
 * `sublayer` of the model's 2 n_layers, or behind the last. Waits for the device. */
ls_status ls_tape_residual(const ls_tape *tape, int64_t sublayer, int64_t row, int64_t n, float *out, ls_error *err);
/* A leaf or the next part of one: the sequences [begin, end) of the last forward. Host arrays are over all rows of the
 * tape and may be reused at once. */
typedef struct ls_leaf_part {
    int64_t begin, end;
    const int64_t *targets;
    const float *d_logprob, *d_entropy; /* d_entropy may be NULL */
    bool is_first, is_last;             /* of its leaf */
} ls_leaf_part;

/* Into gradient [parameters->n_elements], device memory, all of it +0 before the first part; of a model whose weights
 * come by layer the host's (ls_memory_pin), and undefined before the first part: after the last part the gradient of
 *   sum over rows of d_logprob[r] * logprob[r] + d_entropy[r] * entropy[r] */
ls_status ls_tape_backward(ls_tape *tape, const ls_leaf_part *part, float *gradient, ls_error *err);

#endif
