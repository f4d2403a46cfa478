/* What a trainer holds. Private to the trainer and its rehearsal. */
#ifndef LS_TRAIN_TRAINER_STATE_H
#define LS_TRAIN_TRAINER_STATE_H

#include "train/shared_rows.h"
#include "train/trainer.h"

/* The leaves [begin, end) of a batch that this process computes, of n in all. */
typedef struct own_leaves {
    int64_t begin, end, n, share;
} own_leaves;

/* A step that has begun. */
typedef struct step_state {
    ls_train_batch batch;
    own_leaves own;
    int64_t next; /* sequence that the next forward begins with */
    int64_t first,
        n; /* sequences [first, first + n) of the batch: those of the last forward; n is 0 behind its backward */
    float *gradient; /* of the leaf that is being made */
    bool is_flat;    /* nothing has been learnt from the parts that it has had: its gradient is +0 everywhere */
    ls_adamw_factors factors;
    double rate;
} step_state;

struct ls_trainer {
    ls_trainer_opts opts;
    ls_device *device;
    ls_train_state state;
    ls_tape *tape;          /* NULL while it sleeps */
    ls_sampling truncation; /* what opts point to */
    float *leaf_dh;         /* ls_tape_opts; NULL where it has none */
    ls_gradient *gradient;
    float *adapted; /* the gradient of adapters, device memory; NULL without */
    float *blocks;  /* of the squares of all parameters, device memory */
    int64_t n_blocks;
    float *host_blocks;       /* the same on the host */
    ls_squares_range *ranges; /* of the blocks whose elements this process owns, device memory */
    int64_t n_ranges;
    ls_adamw_part *parts, *host_parts; /* [parameters] of this process's range, device memory and the host's */
    /* With other processes. */
    int64_t *owned; /* [n_ranks + 1]: elements where their ranges begin */
    float *slices;  /* [n_slices] of a sum over processes, device memory */
    int64_t n_slices;
    /* Where weights come by layer, and gradients wait on the host; device memory. Else NULL. */
    float *sent; /* [n_slices] */
    float *sum;  /* [elements of the range]: the batch's gradient */
    /* Of one forward. */
    ls_shared_rows *shared;                           /* NULL without groups */
    float *logprob, *entropy, *d_logprob, *d_entropy; /* [tokens of its sequences] */
    int64_t *offsets;                                 /* [sequences_max + 1] */
    /* Of one step. */
    double *metrics, *totals; /* [sequences_max][n_metrics], [n_metrics] */
    int64_t *begins;          /* [n_ranks + 1] */
    step_state now;
};

/* trainer_rows.c: which rows go through which forward. */

/* Leaves of n sequences. */
int64_t ls_trainer_leaves(const ls_trainer *t, int64_t n);
/* Tokens of a leaf that may have several parts; 0: it has one. */
int64_t ls_trainer_leaf_rows(const ls_trainer *t);
/* What is known of the rows of a forward. */
ls_status ls_trainer_make_rows(ls_trainer *t, ls_error *err);
/* First sequence of a leaf, or the batch's end. */
int64_t ls_trainer_leaf_begin(const ls_trainer *t, const ls_train_batch *b, int64_t leaf_i);
/* How many sequences the next forward takes, of those from `first` to the end of leaf end_leaf - 1: whole leaves, or as
 * much of one as fits where it does not. */
int64_t ls_trainer_take(const ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t end_leaf);
ls_status ls_trainer_check_batch(const ls_trainer *t, const ls_train_batch *b, ls_error *err);
/* A forward of sequences [first, first + n), and what it gives their rows; entropy may be NULL. */
ls_status ls_trainer_run(ls_trainer *t, const ls_train_batch *b, int64_t first, int64_t n, float *logprob,
                         float *entropy, ls_error *err);
/* Of groups, behind a forward: the gradients of the rows that its sequences have together. */
void ls_trainer_gather(ls_trainer *t);

#endif
