/* The forward pass: one code path for prefill, chunks, decode, packed batches, scoring and training. */
#ifndef LS_MODEL_FORWARD_H
#define LS_MODEL_FORWARD_H

#include "model/cache.h"
#include "model/model.h"

/* A row-major matrix in device memory: where it starts, its type and row stride in elements. */
typedef struct ls_rows {
    void *data;
    ls_dtype dtype;
    int64_t stride;
} ls_rows;

/* The same matrix from another row, or column, on. */
static inline ls_rows ls_rows_from(ls_rows rows, int64_t row) {
    if (rows.data != NULL) rows.data = (uint8_t *)rows.data + row * rows.stride * ls_dtype_bytes(rows.dtype);
    return rows;
}
static inline ls_rows ls_rows_column(ls_rows rows, int64_t column) {
    rows.data = (uint8_t *)rows.data + column * ls_dtype_bytes(rows.dtype);
    return rows;
}

/* What one sublayer computes between its norm and the residual stream, [rows][..]. Which of these it uses, the
 * sublayer says; they share memory where sublayers take turns (ls_workspace_create). */
typedef struct ls_activations {
    ls_rows x; /* H: normalised h */
    ls_rows y; /* H: what is added to h */
    /* attention */
    ls_rows q, k, v; /* A*P, G*P, G*P, columns of one matrix */
    ls_rows heads;   /* A*P: their outputs */
    ls_rows log_sum; /* A, float32, for training in mma16: of their softmax; data NULL else */
    ls_rows qkv_raw; /* float32, the columns of q | k | v: what the products gave, where op/rope.h follows */
    /* with output gates, in place of qkv_raw, all float32 */
    ls_rows q_gates;       /* 2*A*P: each head of q, then its gate */
    ls_rows q_raw, kv_raw; /* A*P; 2*G*P: k | v */
    ls_rows gated_heads;   /* A*P: what o_proj reads */
    ls_rows rope;          /* 2 half: cosines and sines of the rows' positions, of a whole forward; data NULL without */
    /* Mamba */
    ls_rows uz;                 /* 2D: u | z before the convolution */
    ls_rows u, dt;              /* D each: behind it; of the scan */
    ls_rows u_in, dt_in;        /* D, R: what x_proj and dt_proj read; in exact u, and dt of the narrow rows */
    ls_rows scanned;            /* D: the scan's output; of Mamba-2 behind its norm */
    ls_rows narrow_raw, narrow; /* R+2S: dt | B | C before and behind their norms; one matrix in inference */
    /* Mamba-2 */
    ls_rows zxbcdt; /* 2D+2GS+heads: z | x | B | C | dt before the convolution */
    ls_rows xbc;    /* D+2GS: x | B | C behind it */
    ls_rows ssd;    /* D, float32: the scan's output */
    /* delta rule; scanned is what out_proj reads */
    ls_rows qkv, z;   /* C, D, float32: what the products gave */
    ls_rows ba;       /* 2*heads, float32: b | a */
    ls_rows by_head;  /* C+D, float32: q | k | v | z of every key head in turn; then b | a, of which it needs less */
    ls_rows qkv_conv; /* C, float32: behind the convolution */
    ls_rows delta, normed; /* D, float32: the rule's output, and behind its norm */
    /* feed-forward, over rows or over picks (rows of experts) */
    ls_rows gate, up, gated; /* F */
    /* mixture of experts */
    ls_rows router;                   /* E */
    int32_t *expert;                  /* [rows][top_k] */
    float *expert_weight;             /* [rows][top_k] */
    int64_t *pick, *pick_row, *place; /* [rows * top_k], of ls_moe_place */
    int64_t *expert_offsets;          /* [E + 1] */
    ls_rows picked_x, picked_y;       /* [rows * top_k], H */
    float *picked_weight;             /* [rows * top_k] */
    ls_rows shared, shared_gate;      /* H, 1: the shared expert's output, and what its gate takes */
} ls_activations;

enum { LS_WORKSPACE_ARRAYS_MAX = 24 }; /* that a workspace is made of */

/* Working memory of a forward over at most rows_max rows, on a device. */
typedef struct ls_workspace {
    ls_device *device;
    ls_dtype dtype;
    ls_profile profile;
    int64_t rows_max;
    bool for_training;
    ls_activations a;
    float *inv_freq; /* [half], device memory; NULL: nothing rotates */
    float *ones;     /* the weights of norms that have none, device memory; NULL: all have weights */
    void *owned[LS_WORKSPACE_ARRAYS_MAX];
    int64_t n_owned;
} ls_workspace;

/* For models of this model's configuration and profile. for_training: nothing that a gradient needs is overwritten
 * within one sublayer. */
ls_status ls_workspace_create(ls_workspace **out, ls_device *device, const ls_model *model, ls_dtype dtype,
                              int64_t rows_max, bool for_training, ls_error *err);
/* What one sublayer of a tape keeps for its backward, beside a workspace that all sublayers use in turn: a view of
 * `shared`, which is for training, with arrays of its own in place of those that the part's backward reads and does not
 * make again (ls_part.again). shared must live longer. */
ls_status ls_workspace_keep(ls_workspace **out, const ls_workspace *shared, const ls_model *model,
                            const struct ls_part *part, ls_error *err);
void ls_workspace_free(ls_workspace *workspace);
/* Bytes of the above, for planning; -1 where they do not fit 64 bits. */
int64_t ls_workspace_bytes(const ls_model *model, ls_dtype dtype, int64_t rows_max, bool for_training);

/* Spans that an op with state takes in one call: all of a batch or, where spans continue others of the batch, some that
 * do not wait for each other. */
typedef struct ls_span_run {
    int64_t begin, n, rows_max; /* spans; rows of the longest */
    bool continues;             /* each begins where a span of the next run ends */
} ls_span_run;

/* Which spans of a batch continue others; host memory of who writes the batch. */
typedef struct ls_span_tree {
    const ls_span *spans;    /* as the batch has them: run by run, of each in ascending rows */
    const int64_t *parents;  /* the span, in this order, that each continues; -1: none */
    const int32_t *tables;   /* the batch's */
    const ls_span_run *runs; /* those of others' ends first: gradients take them so, a forward the other way round */
    int64_t n_runs;
} ls_span_tree;

/* What a forward reads of its batch, in device memory: addresses stay, contents change. */
typedef struct ls_batch {
    ls_device *device;
    int64_t rows_max, spans_max, pages_max; /* pages_max: page numbers of all spans together */
    int32_t *tokens;                        /* [rows_max] */
    ls_span *spans;                         /* [spans_max] */
    int32_t *tables;                        /* [pages_max] */
    int64_t n_rows, n_spans, n_tables;      /* of the batch that is there */
    int64_t span_rows_max;                  /* rows of its longest span */
    const ls_span_tree *tree;               /* NULL: no span continues another */
} ls_batch;

ls_status ls_batch_create(ls_batch **out, ls_device *device, int64_t rows_max, int64_t spans_max, int64_t pages_max,
                          ls_error *err);
void ls_batch_free(ls_batch *batch);
/* Host arrays: tokens of all spans, span i taking rows spans[i].row on (spans cover the rows in order, without gaps;
 * one without slot is padding, whose rows mean nothing), and the tables that the spans refer to. They may be reused at
 * once. */
ls_status ls_batch_write(ls_batch *batch, const int32_t *tokens, const ls_span *spans, int64_t n_spans,
                         const int32_t *tables, int64_t n_tables, ls_error *err);
/* Behind that: the same spans in the tree's order. It stays until the batch is written again. */
ls_status ls_batch_write_tree(ls_batch *batch, const ls_span_tree *tree, ls_error *err);

static inline int64_t ls_batch_n_runs(const ls_batch *b) { return b->tree == NULL ? 1 : b->tree->n_runs; }
static inline ls_span_run ls_batch_run(const ls_batch *b, int64_t i) {
    return b->tree == NULL ? (ls_span_run){0, b->n_spans, b->span_rows_max, false} : b->tree->runs[i];
}

/* One forward on its way. */
typedef struct ls_forward {
    const ls_model *model;
    const ls_cache *cache;
    const ls_workspace *ws;
    const ls_batch *batch;
    float *h; /* [rows][H]: the residual stream, device memory */
    /* Mixers whose ops have checked the batch's spans in this forward, so that later layers need not. */
    unsigned spans_checked;
    bool keeps; /* what parts compute on their way is read later: a tape */
} ls_forward;

enum { LS_CHECKED_ATTENTION = 1, LS_CHECKED_MAMBA = 2 };

/* Who looks on while a forward runs: called with the residual stream f->h behind the embedding (sublayer 0) and behind
 * each sublayer (sublayer 2 i + 1: the mixer of layer i, 2 i + 2: its feed-forward). */
typedef ls_status (*ls_forward_observer)(void *context, const ls_forward *f, int64_t sublayer, ls_error *err);

/* Runs the batch through the model: every span continues its sequence from pos and leaves the cache ready for pos +
 * n_rows. Result: workspace->a.x [rows][H], the head's input. A row's bits depend on its own sequence only. observer
 * may be NULL. */
ls_status ls_model_forward(const ls_forward *f, ls_forward_observer observer, void *context, ls_error *err);

/* Its steps, for the trainer, which keeps what each of them computed; ls_model_forward is these and nothing else: the
 * embedding into f->h, with the rotations of the rows' positions, which all sublayers read; the norm that the first
 * sublayer reads through; and each sublayer that there is. */
typedef enum ls_sublayer { LS_SUBLAYER_MIXER = 0, LS_SUBLAYER_FFN = 1 } ls_sublayer;
ls_status ls_model_embed(const ls_forward *f, ls_error *err);
/* sublayer(rms(h)) into workspace->a.y, and all that leads to it into the sublayer's other activations. */
ls_status ls_model_sublayer_output(const ls_forward *f, int64_t layer_i, ls_sublayer sublayer, ls_error *err);
/* x = rms(h), as the first sublayer, or without sublayers the head, reads it. */
ls_status ls_model_first_norm(const ls_forward *f, ls_rows x, ls_error *err);
/* Sublayer i from workspace->a.x: sum = h + its output, where sum may be h, and x = rms(sum), as the next sublayer, or
 * the head, reads it; x may be workspace->a.x. */
ls_status ls_model_sublayer(const ls_forward *f, int64_t i, float *sum, ls_rows x, ls_error *err);
/* False where the sublayer computes nothing: no feed-forward, or a mixer that the ablation leaves out. */
bool ls_model_has_sublayer(const ls_model *model, int64_t layer_i, ls_sublayer sublayer);
/* The sublayer that computes something from number i on, 2 n_layers where there is none. */
int64_t ls_model_next_sublayer(const ls_model *model, int64_t i);

/* logits [n][V] = head . x [n][H], float32. */
ls_status ls_model_logits(const ls_model *model, ls_device *device, ls_rows x, int64_t n, float *logits, ls_error *err);

#endif
