/* What the two halves of training share; private to src/model. */
#ifndef LS_MODEL_TAPE_STATE_H
#define LS_MODEL_TAPE_STATE_H

#include "model/jamba_tape.h"

/* Rows that the head takes at a time: logits of a whole batch need never exist. */
#define LS_TAPE_HEAD_ROWS 64

struct ls_tape {
    const ls_parameters *parameters;
    ls_tape_opts opts;
    ls_cache *cache;
    int64_t n_halves;
    float **h;         /* [n_halves + 1][rows][H]: the residual stream before each half, and behind the last */
    ls_workspace **ws; /* [n_halves]: what each half computed; one and the same when recomputing */
    void *x_last;      /* [rows][H]: the head's input */
    const int32_t *tokens;
    ls_span *spans; /* [spans_max] of the last forward */
    int32_t *pages;
    int64_t n_spans, rows;

    /* The head's block. */
    int64_t *block_rows; /* rows of the tape */
    int64_t *block_targets;
    void *block_x; /* [HEAD_ROWS][H] */
    float *logits; /* [HEAD_ROWS][V] */
    float *block_logprob, *block_lse, *block_entropy, *block_d, *block_d_entropy, *temperature;

    /* Backward: gradients of activations, of a leaf's rows. */
    float *dh, *dx;               /* [rows][H] */
    float *da, *db;               /* [rows][widest projection] */
    float *dnarrow, *dnarrow_raw; /* [rows][R+2S] */
    float *db_state, *dc_state;   /* [rows][S] */
    float *du, *ddt, *dz;         /* [rows][D] */
    float *scale;                 /* [rows] */
    float *dweight, *drouter;     /* [rows][k], [rows][E] */
    float *picked_dweight;        /* [rows] */
    float *conv_dw;               /* [W][D] */
    void *workspace;              /* of the ops */
    int64_t workspace_bytes;
};

/* The next rows of [row, end) that have a target, at most LS_TAPE_HEAD_ROWS: their x and logits. *row moves on; the
 * number found. */
ls_status ls_tape_head_block(ls_tape *tape, ls_queue *queue, const int64_t *targets, int64_t *row, int64_t end,
                             int64_t *n, ls_error *err);

#endif
