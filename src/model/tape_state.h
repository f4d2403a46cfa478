/* What the two halves of training share; private to src/model. */
#ifndef LS_MODEL_TAPE_STATE_H
#define LS_MODEL_TAPE_STATE_H

#include "model/head.h"
#include "model/span_order.h"
#include "model/tape.h"

/* The gradient of a leaf whose layers are not all on the device: that of one layer at a time, and that of what belongs
 * to none, the elements [0, begin) and [end, n). Device memory; NULL where the gradient is there as a whole. */
typedef struct ls_layer_gradients {
    float *layer, *ends;
    int64_t *begins; /* [n_layers + 1]: elements where layers begin; host memory */
    int64_t begin, end, n;
} ls_layer_gradients;

/* Pointers to float are device memory, those to spans, pages and offsets the host's. */
struct ls_tape {
    const ls_parameters *parameters;
    const ls_model *model;
    ls_device *device;
    ls_tape_opts opts;
    ls_sampling truncation; /* what opts points to */
    ls_cache *cache;
    ls_batch *batch, *leaf_batch; /* of the last forward; of the leaf on its way back */
    ls_head *head;
    int64_t n_sublayers;
    float **h; /* [n_sublayers + 1][rows][H]: the residual stream before each sublayer, and behind the last */
    ls_workspace *shared; /* what sublayers use in turn */
    ls_workspace **ws;    /* [n_sublayers]: what each sublayer computed; `shared` of those that are recomputed */
    ls_rows x_last;       /* H: the head's input */
    int32_t *tokens;      /* [rows_max] of the last forward */
    ls_span *spans, *leaf_spans, *host_cut; /* [spans_max]; host_cut: what goes to cut_spans */
    int64_t *leaf_offsets;                  /* [spans_max + 1] */
    int32_t *pages;                         /* the spans' tables */
    int64_t n_spans, rows, n_pages;
    int64_t *parents, *leaf_parents; /* [spans_max]: the span that each continues, -1: none */
    ls_span_order order, leaf_order; /* where spans may continue others */
    struct ls_tape_block *block;     /* what one block of the head takes on the host, of one call at a time */

    /* Where the sequences begin and end that a gradient of a matrix sums over, of the leaf and of the head's block;
     * device memory. */
    int64_t *sequences;      /* [spans_max + 1] */
    int64_t *head_sequences; /* [rows of a head block + 1] */

    /* Backward: gradients of activations, of a leaf's rows. */
    float *dh; /* [rows][H], behind the last sublayer the embedding's */
    /* Of a tied embedding, whose rows wait for the head's share of all parts: [leaf rows][H] and [leaf rows]. leaf_dh
     * is the caller's, the host's, pinned; NULL where a leaf has one part, whose dh it is. */
    float *leaf_dh;
    int32_t *leaf_tokens;
    int64_t leaf_rows; /* of the parts that were there */
    float *dy;         /* [rows][H]: dh as it enters a sublayer whose output is scaled; NULL: it enters as it is */
    float *dx;         /* [rows][H] */
    uint16_t *rounded; /* [rows][widest projection]: a gradient as both of its products read it; mma16 only */
    float *da, *db;    /* [rows][widest projection] */
    float *dnarrow, *dnarrow_raw; /* [rows][R+2S] */
    float *db_state, *dc_state;   /* [rows][S] */
    float *du, *ddt;              /* [rows][D] */
    ls_span *cut_spans;           /* [spans_max], device memory: spans of a cut (parts.c); NULL with Mamba-1 */
    int64_t cut_bytes;            /* workspace that a cut takes where it has more than one sequence; carries no bit */
    float *scale;       /* [LS_NORM_PARTS][rows], or of norms of heads [rows][A+2G], or of groups [rows][groups] */
    float *dhead_norms; /* [n_layers][A+G][P]: gradients of norms of heads, of each head (op/rope.h) */
    float *dweight, *drouter;     /* [rows][k], [rows][E] */
    float *picked_dweight;        /* [rows][k] */
    float *picked_dx;             /* [rows][k][H]: a gradient that came through experts' up */
    float *d_logprob, *d_entropy; /* [rows of a head block] */

    /* Where spans continue others: of the spans of one run, the states before them, their gradients, and those of the
     * states behind them; keys and values of a run's spans with all before them (k | v), and their gradients; gradients
     * of the leaf's rows' own. NULL where there are none. */
    void *initial;
    float *initial_scale;
    float *dinitial, *dfinal;
    void *keys;
    float *dkeys, *dkv;                /* [group * longest][2GP], [rows][2GP] */
    int64_t *key_rows, *host_key_rows; /* [spans_max]: of each span, in `keys` */

    ls_layer_gradients layer_gradients;

    /* NULL unless it truncates. */
    uint32_t *support;           /* [rows of a head block][words], device memory */
    uint32_t *host_support;      /* the same on the host */
    ls_supports *supports;       /* the caller's */
    int64_t support_row;         /* of the forward's first row there */
    const int64_t *support_rows; /* of its others, from there on; NULL: they follow */
};

typedef struct ls_tape_block {
    int64_t index[LS_HEAD_BLOCK_MAX], targets[LS_HEAD_BLOCK_MAX], sequences[LS_HEAD_BLOCK_MAX + 1];
    float values[2][LS_HEAD_BLOCK_MAX];
} ls_tape_block;

/* Whether a sublayer is computed again in the backward. */
bool ls_tape_recomputes(const ls_tape *tape, int64_t sublayer);
/* Takes the logits of the head's block, rows index[0..n) + base of the tape, down to their supports; nothing where the
 * tape does not truncate. */
ls_status ls_tape_restrict(ls_tape *tape, const int64_t *index, int64_t base, int64_t n, ls_error *err);
/* Rows with a target among [*row, end), at most a head block of them: their numbers in the tape and their targets. *row
 * moves on; returns their number. */
int64_t ls_tape_next_rows(const ls_tape *tape, const int64_t *targets, int64_t *row, int64_t end, int64_t *index,
                          int64_t *block_targets);

#endif
