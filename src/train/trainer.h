/* The trainer: parameters, tape, moments and gradient of one model, and the step that changes them. What a step learns
 * is the caller's, who turns log-probabilities into their gradients: in a callback, or between the calls of a step.
 *
 * A step, for sequences in index order (t: its number, from 1 on):
 *   leaves      [j leaf, (j + 1) leaf) of the sequences, each in one forward or in several; forward,
 *               log-probabilities, the caller's gradients of them, backward (model/tape.h); a leaf whose rows
 *               all have gradients of 0 needs no backward: its own is +0. With groups, what sequences of a group
 *               have in common is computed once (train/shared_rows.h)
 *   gradient    of all leaves by the leaf tree (train/gradient.h)
 *   norm        ls_squares over the parameters in order, ls_gradient_scale(count, max_norm)
 *   update      ls_adamw of all parameters with the rate of step t (train/rate.h), moments in bf16 being rounded by
 *               the seed, t and the numbers that elements have over all parameters; decay is 0 but for matrices, the
 *               embedding and the taps of convolutions: norms, biases, D and A_log do not decay
 *               With adapters (model/adapters.h) the gradient of the weights becomes that of A and B, of which alone
 *               there are norm, masters and moments; weights without one keep their values
 *   publish     every weight is its master, rounded once; the model computes with it from here on
 * With several processes each computes a subtree of the leaves, owns a range of the elements (ls_parameters_share), and
 * has masters and moments of that range only: it adds the ranks' gradients there (train/comm.h), updates it, and hands
 * the rounded weights on. Leaves are chosen by the number of the sequence, blocks of squares add in their order.
 *
 * Its bits depend on these, the options marked so and the weights; not on what shares a forward, on
 * recomputation, threads, instruction set, or how many processes share the leaves.
 *
 * A loss or gradient that is not finite, or any other failure, ends a step before anything has changed. Everything is
 * allocated at creation. */
#ifndef LS_TRAIN_TRAINER_H
#define LS_TRAIN_TRAINER_H

#include "model/adapters.h"
#include "model/tape.h"
#include "op/adamw.h"
#include "train/comm.h"
#include "train/gradient.h"
#include "train/rate.h"
#include "train/train_plan.h"

typedef struct ls_trainer ls_trainer;

/* Rows of one forward, for the caller: whole sequences [sequence, sequence + n_sequences) of the batch, sequence
 * sequence + i being rows [offsets[i], offsets[i + 1]) here. */
typedef struct ls_train_rows {
    int64_t sequence, n_sequences, n_rows;
    const int64_t *offsets;       /* [n_sequences + 1], from 0 */
    const int64_t *targets;       /* [n_rows]; -1: none */
    const float *logprob;         /* [n_rows], 0 without a target */
    const float *entropy;         /* the same; NULL unless asked for */
    float *d_logprob, *d_entropy; /* [n_rows], 0 at first; read where there is a target; d_entropy NULL as above */
    double *metrics;              /* [n_sequences][n_metrics], 0 at first; metric 0 is the sequence's loss */
} ls_train_rows;

/* Called once for every sequence of a step, of this process's share. What it writes about a sequence may depend on that
 * sequence and on what holds for the whole batch, nothing else. */
typedef ls_status (*ls_train_loss)(void *context, const ls_train_rows *rows, ls_error *err);

typedef struct ls_trainer_opts {
    /* These carry bits. */
    ls_dtype dtype;                /* of activations */
    float temperature;             /* of the log-probabilities */
    const ls_sampling *truncation; /* of them, as ls_tape_opts; NULL: none. Copied */
    int64_t leaf;                  /* sequences of a leaf */
    int64_t group;                 /* neighbours that share what they have in common, whole groups a leaf; 0: none do */
    ls_adamw_options adamw;        /* lr is not read: it is the rate's */
    ls_dtype moments;              /* f32 or bf16 */
    uint64_t seed;                 /* of the rounding of moments in bf16 */
    ls_rate rate;
    double max_norm;           /* infinity: no clipping */
    ls_adapters_opts adapters; /* what is learnt instead of the weights; rank 0: the weights */
    /* These do not. */
    int64_t microbatch;    /* leaves of one forward, at most */
    int64_t rows_max;      /* tokens of one forward, at most; every sequence must fit */
    int64_t spans_max;     /* sequences of one forward, at most, with groups their trunks and branches; 0: those of
                            * microbatch leaves */
    int64_t longest;       /* with groups: tokens of a sequence, at most; else not read */
    int64_t leaf_rows_max; /* tokens of a leaf that does not fit and goes through in parts; 0: every leaf must fit */
    int64_t sequences_max; /* of a batch */
    int64_t gradients;     /* that the device holds at a time, at most: others wait on the host. 0: what fits */
    bool moments_on_host;  /* in pinned memory, which the update reads and writes where it lies */
    int64_t recompute;     /* halves, as ls_tape_opts */
    bool entropy;          /* whether the rows of a forward have entropies */
    int64_t n_metrics;     /* at least 1 */
    ls_comm *comm;         /* NULL: alone */
    ls_train_loss loss;    /* of ls_trainer_step; NULL where the caller takes its parts */
    void *context;
} ls_trainer_opts;

/* What a checkpoint must hold besides options. */
typedef struct ls_train_state {
    int64_t step;              /* steps done */
    ls_parameters *parameters; /* masters, of this process's range */
    void *m, *v;               /* [parameters->end - begin] of `moments`, device memory or the host's, pinned */
    ls_dtype moments;          /* f32 or bf16 */
    bool moments_on_host;
    ls_comm *comm;          /* who has the others; NULL: alone */
    ls_parameters *weights; /* the model's: parameters itself, or without masters beside adapters */
    ls_adapters *adapters;  /* whose list is parameters; NULL: the weights are learnt themselves */
} ls_train_state;

/* Model and device are borrowed; the model was opened from directory. */
ls_status ls_trainer_create(ls_trainer **out, ls_model *model, const char *directory, ls_device *device,
                            const ls_trainer_opts *opts, ls_error *err);
void ls_trainer_free(ls_trainer *trainer); /* accepts NULL */
/* Between steps: gives back what steps alone need, tape and gradients, and takes it again. Until ls_trainer_wake there
 * may be neither a step nor a score; masters and moments stay. Both wait; either one twice changes nothing. */
ls_status ls_trainer_sleep(ls_trainer *trainer, ls_error *err);
ls_status ls_trainer_wake(ls_trainer *trainer, ls_error *err);
/* Whoever writes masters publishes them. */
ls_train_state *ls_trainer_state(ls_trainer *trainer);
/* The masters that all processes have become weights on all of them. */
ls_status ls_train_state_publish(const ls_train_state *state, ls_error *err);
/* With several processes, whether all of them have the same step, masters and moments. */
ls_status ls_trainer_agree(ls_trainer *trainer, ls_error *err);
/* The end of a run: no process reads weights of another any more. Before it, none of them may free its trainer. */
ls_status ls_trainer_end(const ls_trainer *trainer, ls_error *err);
/* Of masters and moments, all processes' together: each calls it, and gets the same. */
ls_status ls_train_state_digest(const ls_train_state *state, uint64_t *out, ls_error *err);
/* What a step asks of the device's workspace is asked for now, on a device on paper: a forward and a backward of as
 * many tokens as a forward takes, in sequences of `longest` and in the shortest. The trainer is of no use behind
 * that. */
ls_status ls_trainer_rehearse(ls_trainer *trainer, int64_t longest, ls_error *err);
/* Gradients that the device holds. */
int64_t ls_trainer_device_gradients(const ls_trainer *trainer);
/* What a plan asks of it (train/train_plan.h); slot_bytes is the engine's. */
ls_train_outlook ls_trainer_outlook(const ls_trainer *trainer);
/* Bytes of masters, weights, moments and gradients on the device; the tape comes on top. */
int64_t ls_trainer_bytes(const ls_trainer *trainer);
/* Of gradients and moments in the host's memory. */
int64_t ls_trainer_host_bytes(const ls_trainer *trainer);
/* Whether the weight decay reaches a parameter. */
bool ls_trainer_decays(ls_slot_kind kind);

typedef struct ls_train_batch {
    const int32_t *tokens;  /* sequence i is tokens [offsets[i], offsets[i + 1]) */
    const int64_t *offsets; /* [n + 1], ascending from 0 or, for a part of a larger batch, from where it begins */
    const int64_t *targets; /* [offsets[n]]: what each row predicts, or -1 */
    int64_t n;
    double count;          /* the gradient is divided by it once: of tokens, for a mean over tokens */
    ls_supports *supports; /* of a trainer that truncates: row r is that of tokens[r] (model/tape.h); else NULL */
} ls_train_batch;

typedef struct ls_train_stats {
    int64_t step;
    double rate, norm; /* norm: before clipping */
    bool clipped;
    const double *metrics; /* [n][n_metrics] of all sequences, whichever process ran them; good until the next step */
    const double *totals;  /* [n_metrics]: their sums, sequences ascending */
} ls_train_stats;

/* Only the forward of a step: log-probabilities [offsets[n]], written from offsets[0] on, on every process all of them.
 * Not within a step that has begun. */
ls_status ls_trainer_score(ls_trainer *trainer, const ls_train_batch *batch, float *logprob, ls_error *err);

/* A step in its parts, for who looks at log-probabilities before anything is learnt from them:
 *   begin      checks the batch, whose arrays stay as they are until the step ends
 *   forward    of the next leaves that this process has, at most a microbatch, or of a part of one; *rows is good
 *              until the next forward
 *   backward   of what the last forward left, by the gradients that the caller has written into rows; a forward without
 *              one adds nothing, and the step cannot be updated then
 *   update     once nothing is left: gradient, norm, AdamW, publish
 * Before the update nothing has changed: a step ends with it, with a failure, or where the caller begins another. */
ls_status ls_trainer_begin(ls_trainer *trainer, const ls_train_batch *batch, ls_error *err);
bool ls_trainer_has_more(const ls_trainer *trainer); /* sequences that have had no forward */
ls_status ls_trainer_forward(ls_trainer *trainer, ls_train_rows *rows, ls_error *err);
ls_status ls_trainer_backward(ls_trainer *trainer, ls_error *err);
ls_status ls_trainer_update(ls_trainer *trainer, ls_train_stats *stats, ls_error *err);
/* Within a step that has begun: of values [offsets[n]], written from offsets[0] on, every process has those of the rows
 * that it ran; afterwards all have all. */
ls_status ls_trainer_share(ls_trainer *trainer, float *values, const char *what, ls_error *err);

/* These parts, with the callback between forward and backward. */
ls_status ls_trainer_step(ls_trainer *trainer, const ls_train_batch *batch, ls_train_stats *stats, ls_error *err);

#endif
