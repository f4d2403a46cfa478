/* What sublayers are: one table for each kind of mixer and of feed-forward. Private to src/model.
 *
 *   part_attention.c   attention
 *   part_mamba.c       Mamba-1
 *   part_mamba2.c      Mamba-2
 *   part_delta.c       gated delta rule
 *   part_ffn.c         dense feed-forward and mixture of experts
 *   parts.c            what they are made of */
#ifndef LS_MODEL_PARTS_H
#define LS_MODEL_PARTS_H

#include "model/forward.h"
#include "model/slots.h"
#include "model/tape.h"
#include "op/conv1d.h"
#include "op/rmsnorm.h"
#include "op/rope.h"

/* A leaf or a part of one on its way back: a run of whole sequences of a tape. All matrices begin at its first row. */
typedef struct ls_leaf {
    ls_tape *tape;
    const ls_model *model;
    ls_device *device;
    const ls_batch *batch; /* the leaf's sequences alone */
    int64_t row, rows;     /* first row of the tape; number */
    ls_workspace ws;       /* a view: what the current sublayer computed for these rows */
    ls_rows h;             /* H: the residual stream before the sublayer */
    ls_rows dh;            /* H: gradient of the stream behind the sublayer, then before it */
    ls_rows dy, dx;        /* H: of the sublayer's output, and of its normalised input, which the part writes */
    int64_t layer_i;       /* whose sublayer is on its way back; -1: none's */
    float *gradient;       /* [parameters], device memory; of a model whose weights come by layer the host's, where
                            * layers' gradients wait (backward.c) */
    bool gradient_is_zero; /* before it: the leaf's first part */
    bool sequences_whole;  /* of each a multiple of 16 rows */
} ls_leaf;

struct ls_part {
    const char *name;
    /* ws->a.x to ws->a.y, from rows that are normalised already. */
    ls_status (*forward)(const ls_forward *f, int64_t layer_i, ls_error *err);
    /* leaf->dy to leaf->dx, and the gradients of the part's parameters. */
    ls_status (*backward)(const ls_leaf *leaf, int64_t layer_i, ls_error *err);
    /* What the backward reads and a tape does not keep (ls_workspace_keep), from what it keeps, before the backward of
     * rows that are not computed again; NULL: nothing. */
    ls_status (*again)(const ls_forward *f, int64_t layer_i, ls_error *err);
    /* What is left to do with those gradients when the leaf has had all its rows; NULL: nothing. */
    ls_status (*finish)(const ls_leaf *leaf, int64_t layer_i, ls_error *err);
    /* The part's tensors, in the order of all sums over parameters. */
    ls_status (*walk)(const ls_walk *walk, ls_layer *layer);
    bool picks; /* whether it computes over picks of rows, not over rows: a mixture of experts */
};

/* Whether q, k and v are what the products gave, rounded: no bias, norm, rotation (op/rope.h) or gate lies between. */
static inline bool ls_attention_is_bare(const ls_model_config *c) {
    return c->rope.half == 0 && !c->head_norms && !c->qkv_bias && !c->head_gates;
}

extern const ls_part ls_part_attention, ls_part_mamba, ls_part_mamba2, ls_part_delta, ls_part_dense, ls_part_ungated,
    ls_part_experts;

/* x = x * scale, n elements; a scale of 0 stands for none. */
ls_status ls_part_scale(ls_device *device, float *x, int64_t n, float scale, ls_error *err);

/* ---- forward ---- */

/* out[m][n] = R(x . w + bias) as a call of its op, of m rows; bias may be NULL. */
ls_gemm_args ls_part_product(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, const float *bias,
                             int64_t m);
/* out[m][n] = R(x . w + bias) over all rows. */
ls_status ls_part_project(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, const float *bias,
                          ls_error *err);
/* Three of them without bias; the weights of the second and third have one shape, and their outs are of out's type and
 * of one stride. */
ls_status ls_part_project_three(const ls_forward *f, ls_rows out, ls_rows second_out, ls_rows third_out, ls_rows x,
                                const ls_gemm_weight *const weights[3], ls_error *err);
/* One without bias, a float32 chain whatever the profile: the router. */
ls_status ls_part_project_exact(const ls_forward *f, ls_rows out, ls_rows x, const ls_gemm_weight *w, ls_error *err);
/* The rotations of the batch's positions into ws->a.rope; nothing where nothing rotates. */
ls_status ls_part_positions(const ls_forward *f, ls_error *err);
/* y = rms(x; w). */
ls_status ls_part_norm(const ls_forward *f, ls_rows y, ls_rows x, const float *w, int64_t dim, ls_error *err);
/* That norm as a call of its op, for several that are made together; w NULL: without weight, which is a weight of
 * one. */
ls_rmsnorm_args ls_part_norm_call(const ls_forward *f, ls_rows y, ls_rows x, const float *w, int64_t dim);

/* Before an op's call of a run: its spans get the state, or of attention the page, that those before them left. */
ls_status ls_part_hand_state(const ls_forward *f, int64_t layer_i, const char *tensor, const ls_span_run *run,
                             ls_error *err);
ls_status ls_part_hand_page(const ls_forward *f, int64_t layer_i, const ls_span_run *run, ls_error *err);
/* The convolution's call over all spans of the batch, run by run. */
ls_status ls_part_convolve(const ls_forward *f, int64_t layer_i, ls_conv1d_args args, ls_error *err);

/* ---- backward: gradients of matrices are float32 ---- */

/* Where the gradient of a parameter goes, and that of this vector of the leaf's layer. */
float *ls_leaf_gradient_of(const ls_leaf *leaf, const ls_parameter *parameter);
float *ls_leaf_gradient(const ls_leaf *leaf, const float *vector);
/* The type of a gradient that only products without bias read: in mma16 it is rounded where it is made. */
ls_dtype ls_leaf_product_dtype(const ls_leaf *leaf);
/* A product y = x w^T + bias on its way back. */
typedef struct ls_leaf_product {
    const ls_gemm_weight *w;
    const float *bias; /* NULL: none */
    ls_rows dy, x, dx; /* dx must not be dy; dy is of float32 or, without bias, of ls_leaf_product_dtype */
    bool add;          /* to what dx holds */
    bool exact;        /* float32 chains whatever the profile, as ls_part_project_exact; dy is float32 then */
    int64_t m;         /* rows of dy and x */
} ls_leaf_product;

/* dw = dy^T x, dbias = dy summed over rows; then dx = dy w, or dx += dy w. A weight is given once for a leaf. */
ls_status ls_leaf_through_product(const ls_leaf *leaf, const ls_leaf_product *product, ls_error *err);
/* dx (= or +=) the gradient through y = rms(x; w). */
ls_status ls_leaf_through_norm(const ls_leaf *leaf, const float *w, ls_rows x, ls_rows dy, ls_rows dx, bool add,
                               int64_t dim, ls_error *err);

/* That call of its op, for several that are made together: each after the first takes its scale from the caller. A norm
 * without weight (w NULL) has no gradient of one. */
ls_rmsnorm_backward_args ls_leaf_norm_call(const ls_leaf *leaf, const float *w, ls_rows x, ls_rows dy, ls_rows dx,
                                           bool add, int64_t dim);

/* ---- runs of spans: gradients of states that go from span to span ---- */

/* Of an op's call of a run, for each of its spans; NULL where there is nothing of it. Good until the next run's. */
typedef struct ls_leaf_border {
    const void *initial;        /* the state before the first token, as slots have it */
    const float *initial_scale; /* the scale beside it; of slots that have one */
    float *dinitial;            /* its gradient, which the call writes */
    const float *dfinal;        /* of the state behind the last token: the sum over the spans that continue it, one
                                 * chain from +0 in their order */
} ls_leaf_border;

/* That of run i and a tensor of slots; runs are asked for in their order, each behind the call of that before it. */
ls_status ls_leaf_border_of(ls_leaf_border *out, const ls_leaf *leaf, int64_t layer_i, const char *tensor, int64_t i,
                            ls_error *err);
/* The convolution's call over all spans of the leaf, run by run. */
ls_status ls_leaf_through_convolution(const ls_leaf *leaf, int64_t layer_i, ls_conv1d_backward_args args,
                                      ls_error *err);

/* ---- calls that are cut between sequences ---- */

/* Some neighbours of one run of the leaf's spans; `spans` counts rows from the first one's, and is device memory. */
typedef struct ls_leaf_cut {
    int64_t row, rows, n_spans, span_rows_max;
    const ls_span *spans;
    ls_leaf_border border; /* of these spans */
} ls_leaf_cut;

/* An op whose workspace grows with rows and sequences, and whose law allows a cut between any two of them. */
typedef struct ls_leaf_cuts {
    const void *call;                                           /* what the two below are given */
    int64_t (*bytes)(const void *call, const ls_leaf_cut *cut); /* its workspace; negative: too much for 64 bits */
    ls_status (*run)(const ls_leaf *leaf, const void *call, const ls_leaf_cut *cut, ls_error *err);
} ls_leaf_cuts;

/* Runs the op over all spans of the leaf, in cuts whose workspace is at most the tape's cut_bytes, or of one; `tensor`
 * is the state that goes from span to span. */
ls_status ls_leaf_run_cuts(const ls_leaf *leaf, int64_t layer_i, const char *tensor, const ls_leaf_cuts *cuts,
                           ls_error *err);

#endif
