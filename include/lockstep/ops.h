/* The ops as one flat C ABI: raw pointers, strides, a stream, a status. The same call runs on every back end and gives
 * the same bits on each; NUMERICS.md and src/op hold the arithmetic, this header shapes, types, ownership and errors.
 *
 * Every pointer in an argument struct, `spans` and `offsets` included, is memory of the call's back end and stays the
 * caller's. Nothing is allocated and nothing is kept. Strides and counts are in elements unless a name says _bytes.
 * Shapes are written [rows][dim], the last index contiguous. A CUDA call is in the stream's order and returns before it
 * has run; it may be captured in a graph.
 *
 * Errors. What the host can see (null pointers, types, shapes, strides, memory of another device, a workspace too
 * small, index expressions that would not fit) is refused before anything is launched. What lies in device memory
 * (targets, temperatures, spans) is checked on the device before anything is written: see ls_fault. */
#ifndef LOCKSTEP_OPS_H
#define LOCKSTEP_OPS_H

#include "lockstep/ops_base.h"
#include "lockstep/ops_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- selected-token log-probability ---- */

/* Vocabulary entries of a leaf: the unit of sums, splits and shards. */
#define LS_LOGPROB_LEAF 2048
#define LS_LOGPROB_VOCAB_MAX 1000000

/* One leaf's partial sums; op/logprob.h says of what. */
typedef struct ls_logprob_leaf {
    float k, q, s, e;
} ls_logprob_leaf;

typedef struct ls_logprob_args {
    const void *logits; /* [rows][row_stride], vocab used; aligned to its element */
    ls_dtype dtype;     /* f32, bf16 or f16 */
    int64_t rows, vocab, row_stride;
    const int64_t *targets;   /* [rows], each ignore_index or in [0, vocab) */
    int64_t ignore_index;     /* for example -100 */
    const uint8_t *mask;      /* [rows], 0 = leave out; NULL takes all rows */
    const float *temperature; /* [rows], finite and > 0; NULL is 1 */
    float *logprob;           /* [rows] */
    float *lse, *entropy;     /* [rows] each, or NULL */
} ls_logprob_args;

/* Rows left out (masked, or target == ignore_index) give +0 everywhere; their logits are not read. */
ls_status ls_op_logprob(const ls_exec *exec, const ls_logprob_args *args, ls_error *err);
int64_t ls_op_logprob_workspace(const ls_logprob_args *args);

/* A shard of the vocabulary: the columns [first, first + vocab) of `total`, first a multiple of LS_LOGPROB_LEAF, and
 * vocab too unless the shard is the last. Writes the leaves of its columns and, where the target is one of them, the
 * target's scaled logit. Bring the shards' arrays together (leaves side by side, targets by shard of the target) and
 * combine: bits are those of one call over all columns, however many shards there are. */
typedef struct ls_logprob_shard_args {
    const void *logits; /* [rows][row_stride], vocab used */
    ls_dtype dtype;
    int64_t rows, vocab, row_stride, first, total;
    const int64_t *targets; /* [rows], in [0, total) or ignore_index */
    int64_t ignore_index;
    const uint8_t *mask;
    const float *temperature;
    ls_logprob_leaf *leaves; /* [rows][leaf_stride], 16-byte aligned on CUDA; entry first / LS_LOGPROB_LEAF + j written:
                                all shards may share it */
    int64_t leaf_stride;     /* at least the leaves of `total` */
    float *target_z;         /* [rows]; written for rows whose target lies in this shard */
} ls_logprob_shard_args;

ls_status ls_op_logprob_shard(const ls_exec *exec, const ls_logprob_shard_args *args, ls_error *err);
int64_t ls_op_logprob_shard_workspace(const ls_logprob_shard_args *args);

typedef struct ls_logprob_combine_args {
    const ls_logprob_leaf *leaves; /* [rows][leaf_stride], all leaves of `total`; 16-byte aligned on CUDA */
    int64_t rows, total, leaf_stride;
    const float *target_z; /* [rows] */
    const int64_t *targets;
    int64_t ignore_index;
    const uint8_t *mask;
    float *logprob, *lse, *entropy; /* [rows]; the last two may be NULL */
} ls_logprob_combine_args;

ls_status ls_op_logprob_combine(const ls_exec *exec, const ls_logprob_combine_args *args, ls_error *err);
int64_t ls_op_logprob_combine_workspace(const ls_logprob_combine_args *args);

/* Gradient with respect to the logits, from the outputs of the forward call. */
typedef struct ls_logprob_backward_args {
    const void *logits; /* as in the forward call */
    ls_dtype dtype;
    int64_t rows, vocab, row_stride;
    const int64_t *targets;
    int64_t ignore_index;
    const uint8_t *mask;
    const float *temperature;
    const float *lse;       /* [rows], of the forward call */
    const float *entropy;   /* [rows], of the forward call; only with d_entropy */
    const float *d_logprob; /* [rows] or NULL, which is 0 */
    const float *d_lse;     /* [rows] or NULL */
    const float *d_entropy; /* [rows] or NULL */
    void *d_logits;         /* [rows][d_stride] of dtype, every entry written; may be logits itself */
    int64_t d_stride;       /* row_stride where d_logits is logits */
    /* Of logits in f32 alone: d_logits is bf16, each gradient rounded once. d_stride counts its elements, and where
     * d_logits is logits it is 2 * row_stride: a row of gradients begins where the row of logits does. */
    bool d_bf16;
} ls_logprob_backward_args;

ls_status ls_op_logprob_backward(const ls_exec *exec, const ls_logprob_backward_args *args, ls_error *err);
int64_t ls_op_logprob_backward_workspace(const ls_logprob_backward_args *args);

/* Sums of log-probabilities by sequence. Packed: sequence s is the rows [offsets[s], offsets[s+1]). Padded: offsets is
 * NULL and sequence s is the rows [s * length, (s + 1) * length). Rows that the mask leaves out do not count, so
 * padding on either side or in between changes no bit. */
typedef struct ls_sequence_sum_args {
    const float *logprob;   /* [rows] */
    const uint8_t *mask;    /* [rows] or NULL */
    const int64_t *offsets; /* [n_sequences + 1], ascending, or NULL */
    int64_t length;         /* only without offsets */
    int64_t n_sequences, rows;
    float *out; /* [n_sequences] */
} ls_sequence_sum_args;

ls_status ls_op_sequence_sum(const ls_exec *exec, const ls_sequence_sum_args *args, ls_error *err);
int64_t ls_op_sequence_sum_workspace(const ls_sequence_sum_args *args);

/* ---- layers ---- */

/* What dense models and their trainers are made of; NUMERICS.md and the headers of src/op named below hold the
 * arithmetic. Types are f32 or bf16 unless said otherwise; gradients are f32. Sums over rows (dw, dbias, dtable) go on
 * from what is there: set them to +0 once, and calls may be cut between sequences. */

/* Dense product out = R(x w^T + bias): src/op/gemm.h. A weight is packed once: plan tells its layout, the caller brings
 * panel_bytes of memory, aligned to 256 bytes, as `panels`, and repack fills them. The layout is the back end's own. */
typedef struct ls_gemm_weight {
    ls_dtype dtype; /* f32 or bf16: f16 is widened, exactly, when it is packed */
    int64_t n, k;
    void *panels; /* device memory */
    int64_t panel_stride;
    int64_t panel_bytes; /* of the whole array */
} ls_gemm_weight;

/* Fills all of *out but panels, for a weight [n][k] that is stored as dtype: f32, bf16 or f16. Host memory alone. */
ls_status ls_op_gemm_plan(ls_backend backend, ls_dtype dtype, int64_t n, int64_t k, ls_gemm_weight *out, ls_error *err);

/* Packs another w [n][k], rows contiguous, into a weight of the same n, k and packed type; allocates nothing. */
typedef struct ls_gemm_repack_args {
    const ls_gemm_weight *weight; /* host memory */
    const void *w;
    ls_dtype dtype;
} ls_gemm_repack_args;

ls_status ls_op_gemm_repack(const ls_exec *exec, const ls_gemm_repack_args *args, ls_error *err);
int64_t ls_op_gemm_repack_workspace(const ls_gemm_repack_args *args);

typedef struct ls_gemm_args {
    const void *x;                /* [m][weight->k], rows x_stride elements apart */
    ls_dtype x_dtype;             /* f32 or bf16 */
    int64_t x_stride;             /* elements, at least weight->k */
    const ls_gemm_weight *weight; /* host memory; its panels are the device's */
    const float *bias;            /* [weight->n], or NULL */
    void *out;          /* [m][weight->n], rows out_stride elements apart; elements between rows are not touched */
    ls_dtype out_dtype; /* f32 or bf16 */
    int64_t out_stride; /* elements, at least weight->n */
    int64_t m;          /* 0 is allowed and does nothing */
    ls_profile profile; /* mma16 takes x and weight in bf16 only */
    /* Two numbers in device memory: only rows [range[0], range[1]) of the m are computed. NULL: all. It lets a product
     * run over rows whose number only the device knows, those of one expert. */
    const int64_t *range;
    /* Which NaN a NaN leaves as may be left open, so that a library can compute whose NaN is another one. */
    bool nan_open;
} ls_gemm_args;

ls_status ls_op_gemm(const ls_exec *exec, const ls_gemm_args *args, ls_error *err);
int64_t ls_op_gemm_workspace(const ls_gemm_args *args);

/* Gradients of that product: src/op/gemm_backward.h. */
typedef struct ls_gemm_backward_input_args {
    const float *dy; /* [m][n], rows dy_stride elements apart */
    int64_t dy_stride;
    const void *w; /* [n][k] as stored, rows contiguous: not packed */
    ls_dtype w_dtype;
    float *dx; /* [dx_count][k], rows dx_stride elements apart; elements between rows are not touched */
    int64_t dx_stride;
    int64_t dx_count;
    const int64_t *dx_rows; /* [m], strictly ascending: row i of the product is row dx_rows[i] of dx; NULL: row i */
    bool add;
    int64_t m, n, k; /* m 0 is allowed and does nothing */
    ls_profile profile;
    const int64_t *range;       /* as in ls_gemm_args: rows of dy, and of dx or dx_rows; NULL: all */
    const uint16_t *dy_rounded; /* mma16 only: dy rounded to bf16, rows dy_rounded_stride elements apart, which is read
                                 * in its place: dy may then be NULL, but for dbias; NULL: the op rounds */
    int64_t dy_rounded_stride;
} ls_gemm_backward_input_args;

ls_status ls_op_gemm_backward_input(const ls_exec *exec, const ls_gemm_backward_input_args *args, ls_error *err);
int64_t ls_op_gemm_backward_input_workspace(const ls_gemm_backward_input_args *args);

typedef struct ls_gemm_backward_weight_args {
    const float *dy; /* [m][n], rows dy_stride elements apart */
    int64_t dy_stride;
    const void *x;    /* [x_count][k], rows x_stride elements apart */
    ls_dtype x_dtype; /* f32 or bf16 */
    int64_t x_stride;
    int64_t x_count;
    const int64_t *x_rows; /* [m], in any order: row i of dy belongs to row x_rows[i] of x; NULL: to row i */
    float *dw;             /* [n][k], rows contiguous; continued */
    float *dbias;          /* [n], continued; or NULL */
    int64_t m, n, k;       /* m 0 is allowed and does nothing */
    ls_profile profile;
    /* mma16 only: sequence i holds rows [sequences[i], sequences[i + 1]) of dy; ascending from 0 to m. */
    const int64_t *sequences; /* [n_sequences + 1] */
    int64_t n_sequences;
    const int64_t *range;       /* as in ls_gemm_args: rows of dy, and of x or x_rows; NULL: all. Not with mma16 */
    const uint16_t *dy_rounded; /* as above */
    int64_t dy_rounded_stride;
    /* What the caller knows, so that work can be left out. */
    bool sequences_whole; /* the rows of every sequence are a multiple of 16: there is nothing to pad */
    bool dw_is_zero;      /* all of dw is +0 */
} ls_gemm_backward_weight_args;

ls_status ls_op_gemm_backward_weight(const ls_exec *exec, const ls_gemm_backward_weight_args *args, ls_error *err);
int64_t ls_op_gemm_backward_weight_workspace(const ls_gemm_backward_weight_args *args);

/* RMS normalisation: src/op/rmsnorm.h, src/op/rmsnorm_backward.h. */
typedef struct ls_rmsnorm_args {
    const void *x;    /* [rows][x_stride] */
    ls_dtype x_dtype; /* f32 or bf16 */
    int64_t x_stride;
    const float *w; /* [dim], widened exactly */
    float eps;
    void *y;          /* [rows][y_stride]; may be x when the types are the same */
    ls_dtype y_dtype; /* f32 or bf16 */
    int64_t y_stride;
    int64_t rows, dim;
} ls_rmsnorm_args;

ls_status ls_op_rmsnorm(const ls_exec *exec, const ls_rmsnorm_args *args, ls_error *err);
int64_t ls_op_rmsnorm_workspace(const ls_rmsnorm_args *args);

typedef struct ls_rmsnorm_backward_args {
    const void *x;    /* [rows][x_stride] */
    ls_dtype x_dtype; /* f32 or bf16 */
    int64_t x_stride;
    const float *w; /* [dim] */
    float eps;
    const float *dy; /* [rows][dy_stride] */
    int64_t dy_stride;
    float *dx; /* [rows][dx_stride]; elements between rows are not touched */
    int64_t dx_stride;
    bool add;
    float *dw;    /* [dim], continued; or NULL */
    float *scale; /* [rows], receives s(r) */
    int64_t rows, dim;
} ls_rmsnorm_backward_args;

ls_status ls_op_rmsnorm_backward(const ls_exec *exec, const ls_rmsnorm_backward_args *args, ls_error *err);
int64_t ls_op_rmsnorm_backward_workspace(const ls_rmsnorm_backward_args *args);

/* RMS normalisation of what a gate lets through: src/op/gated_norm.h. */
typedef struct ls_gated_norm_args {
    const float *x, *z; /* [rows][x_stride], [rows][z_stride], dim used */
    int64_t x_stride, z_stride;
    const float *w; /* [dim] */
    float eps;
    void *y;          /* [rows][y_stride]; overlaps nothing */
    ls_dtype y_dtype; /* f32 or bf16 */
    int64_t y_stride;
    int64_t rows, dim, groups; /* groups divides dim */
} ls_gated_norm_args;

ls_status ls_op_gated_norm(const ls_exec *exec, const ls_gated_norm_args *args, ls_error *err);
int64_t ls_op_gated_norm_workspace(const ls_gated_norm_args *args);

typedef struct ls_gated_norm_backward_args {
    const float *x, *z; /* as in the forward call */
    int64_t x_stride, z_stride;
    const float *w;
    float eps;
    const float *dy; /* [rows][dy_stride] */
    int64_t dy_stride;
    float *dx; /* [rows][dx_stride]; nothing that is written overlaps an input or another of them */
    int64_t dx_stride;
    void *dz;          /* [rows][dz_stride] */
    ls_dtype dz_dtype; /* f32 or bf16 */
    int64_t dz_stride;
    float *dw;    /* [dim], continued */
    float *scale; /* [rows][groups], receives s(r, g) */
    int64_t rows, dim, groups;
} ls_gated_norm_backward_args;

ls_status ls_op_gated_norm_backward(const ls_exec *exec, const ls_gated_norm_backward_args *args, ls_error *err);
int64_t ls_op_gated_norm_backward_workspace(const ls_gated_norm_backward_args *args);

/* Bias, norm of heads and rotation before attention: src/op/rope.h. */
typedef struct ls_rope_table_args {
    const float *inv_freq; /* [half] */
    int64_t half;          /* at least 1 */
    float scale;           /* of cosines and sines: 1, or YaRN's */
    float *table;          /* [rows][2 * half]: cosines, then sines */
    const ls_span *spans;  /* [n_spans]; of a span row, n_rows and pos are read */
    int64_t n_spans;
    int64_t span_rows_max; /* rows of the longest span; 0: not known */
    int64_t rows;
} ls_rope_table_args;

ls_status ls_op_rope_table(const ls_exec *exec, const ls_rope_table_args *args, ls_error *err);
int64_t ls_op_rope_table_workspace(const ls_rope_table_args *args);

#define LS_ROPE_PARTS 3

/* Neighbouring heads that are treated alike. */
typedef struct ls_rope_part {
    int64_t n_heads;
    const float *bias; /* [n_heads * head_dim] or NULL */
    const float *norm; /* [head_dim] or NULL */
    bool rotates;
    float *dnorm; /* backward alone: [n_heads][head_dim], continued; NULL: not wanted. Needs norm */
} ls_rope_part;

typedef struct ls_rope_args {
    const float *x; /* [rows][heads of all parts * head_dim], rows x_stride elements apart */
    int64_t x_stride;
    void *y;          /* the same shape */
    ls_dtype y_dtype; /* f32 or bf16 */
    int64_t y_stride;
    const float *table; /* [rows][2 * half], of rope_table; NULL where no part rotates */
    int64_t half;       /* 2 * half <= head_dim */
    float eps;          /* of norms */
    int64_t rows, head_dim;
    ls_rope_part part[LS_ROPE_PARTS];
    int64_t n_parts;
} ls_rope_args;

ls_status ls_op_rope(const ls_exec *exec, const ls_rope_args *args, ls_error *err);
int64_t ls_op_rope_workspace(const ls_rope_args *args);

typedef struct ls_rope_backward_args {
    const float *x; /* as in the forward; read by parts with a norm alone, NULL without them */
    int64_t x_stride;
    const float *dy; /* [rows][heads * head_dim], rows dy_stride elements apart */
    int64_t dy_stride;
    void *dx;          /* the same shape */
    ls_dtype dx_dtype; /* f32 or bf16 */
    int64_t dx_stride;
    const float *table;
    int64_t half;
    float eps;
    int64_t rows, head_dim;
    ls_rope_part part[LS_ROPE_PARTS];
    int64_t n_parts;
    float *scale; /* [rows][heads], receives s of heads whose part has dnorm; NULL: no part has */
} ls_rope_backward_args;

ls_status ls_op_rope_backward(const ls_exec *exec, const ls_rope_backward_args *args, ls_error *err);
int64_t ls_op_rope_backward_workspace(const ls_rope_backward_args *args);

typedef struct ls_rope_norm_fold_args {
    const float *chains; /* [n_heads][head_dim] */
    int64_t n_heads, head_dim;
    float *out; /* [head_dim] */
} ls_rope_norm_fold_args;

ls_status ls_op_rope_norm_fold(const ls_exec *exec, const ls_rope_norm_fold_args *args, ls_error *err);
int64_t ls_op_rope_norm_fold_workspace(const ls_rope_norm_fold_args *args);

/* Rows of a table, and the gate of a feed-forward: src/op/elementwise.h, src/op/elementwise_backward.h. */
typedef struct ls_embed_args {
    const void *table; /* [vocab][dim] */
    ls_dtype table_dtype;
    int64_t vocab, dim;
    const int32_t *tokens; /* [rows] */
    void *y;               /* [rows][dim] */
    ls_dtype y_dtype;
    int64_t rows;
} ls_embed_args;

/* A token outside [0, vocab) is an error that names row and token; nothing is written then. */
ls_status ls_op_embed(const ls_exec *exec, const ls_embed_args *args, ls_error *err);
int64_t ls_op_embed_workspace(const ls_embed_args *args);

typedef struct ls_embed_backward_args {
    const int32_t *tokens; /* [rows] */
    const float *dy;       /* [rows], rows dy_stride elements apart */
    int64_t dy_stride;
    float *dtable; /* [vocab][dim], continued */
    int64_t vocab, dim, rows;
    int32_t pad; /* the padding token; -1 for none */
} ls_embed_backward_args;

ls_status ls_op_embed_backward(const ls_exec *exec, const ls_embed_backward_args *args, ls_error *err);
int64_t ls_op_embed_backward_workspace(const ls_embed_backward_args *args);

typedef struct ls_swiglu_args {
    const float *gate, *up; /* [rows][dim] */
    void *y;                /* [rows][dim] */
    ls_dtype y_dtype;
    int64_t rows, dim;
} ls_swiglu_args;

ls_status ls_op_swiglu(const ls_exec *exec, const ls_swiglu_args *args, ls_error *err);
int64_t ls_op_swiglu_workspace(const ls_swiglu_args *args);

typedef struct ls_swiglu_backward_args {
    const float *gate, *up, *dy; /* [rows][dim] */
    float *dgate, *dup;          /* [rows][dim]; each may be one of the inputs, and not the other */
    int64_t rows, dim;
} ls_swiglu_backward_args;

ls_status ls_op_swiglu_backward(const ls_exec *exec, const ls_swiglu_backward_args *args, ls_error *err);
int64_t ls_op_swiglu_backward_workspace(const ls_swiglu_backward_args *args);

/* A feed-forward without a gate: src/op/elementwise.h, src/op/elementwise_backward.h. */
typedef struct ls_relu2_args {
    const float *x; /* [rows][dim] */
    void *y;        /* [rows][dim]; must not overlap x */
    ls_dtype y_dtype;
    int64_t rows, dim;
} ls_relu2_args;

ls_status ls_op_relu2(const ls_exec *exec, const ls_relu2_args *args, ls_error *err);
int64_t ls_op_relu2_workspace(const ls_relu2_args *args);

typedef struct ls_relu2_backward_args {
    const float *x, *dy; /* [rows][dim] */
    void *dx;            /* [rows][dim]; overlaps no input */
    ls_dtype dx_dtype;   /* f32 or bf16 */
    int64_t rows, dim;
} ls_relu2_backward_args;

ls_status ls_op_relu2_backward(const ls_exec *exec, const ls_relu2_backward_args *args, ls_error *err);
int64_t ls_op_relu2_backward_workspace(const ls_relu2_backward_args *args);

/* What a sigmoid lets through: src/op/sigmoid_gate.h. */
typedef struct ls_sigmoid_gate_args {
    const void *x;     /* [rows][x_stride], dim used */
    ls_dtype x_dtype;  /* f32 or bf16, which is widened */
    const float *gate; /* [rows][gate_stride], gates used */
    int64_t x_stride, gate_stride;
    void *y;          /* [rows][y_stride]; overlaps nothing */
    ls_dtype y_dtype; /* f32 or bf16 */
    int64_t y_stride;
    int64_t rows, dim, gates; /* gates divides dim */
} ls_sigmoid_gate_args;

ls_status ls_op_sigmoid_gate(const ls_exec *exec, const ls_sigmoid_gate_args *args, ls_error *err);
int64_t ls_op_sigmoid_gate_workspace(const ls_sigmoid_gate_args *args);

typedef struct ls_sigmoid_gate_backward_args {
    const void *x; /* as in the forward call, like x_dtype and gate */
    ls_dtype x_dtype;
    const float *gate;
    int64_t x_stride, gate_stride;
    const float *dy; /* [rows][dy_stride] */
    int64_t dy_stride;
    float *dx; /* [rows][dx_stride]; neither dx nor dgate overlaps an input or the other */
    int64_t dx_stride;
    void *dgate;          /* [rows][dgate_stride] */
    ls_dtype dgate_dtype; /* f32 or bf16 */
    int64_t dgate_stride;
    int64_t rows, dim, gates;
} ls_sigmoid_gate_backward_args;

ls_status ls_op_sigmoid_gate_backward(const ls_exec *exec, const ls_sigmoid_gate_backward_args *args, ls_error *err);
int64_t ls_op_sigmoid_gate_backward_workspace(const ls_sigmoid_gate_backward_args *args);

/* Causal attention over paged keys and values, grouped-query heads: src/op/attention.h. A page of the pool holds
 * 2 * n_kv_heads * head_dim * page_tokens elements. */
#define LS_HEAD_DIM_MAX 512

typedef struct ls_attention_args {
    const void *q;     /* [rows][q_stride]: n_heads * head_dim used */
    const void *k, *v; /* [rows][kv_stride]: n_kv_heads * head_dim used; the new tokens' keys and values */
    void *out;         /* [rows][out_stride] */
    ls_dtype dtype;    /* of all of these and of the pages: f32 or bf16 */
    int64_t q_stride, kv_stride, out_stride;
    int64_t n_heads, n_kv_heads, head_dim;
    float scale;
    int64_t page_tokens; /* divides 64 */
    ls_pool_view pages;
    const ls_span *spans;
    int64_t n_spans;
    /* Page numbers of all sequences: page p of a span is tables[span->table + p], and there are enough of them for
     * positions up to pos + n_rows. */
    const int32_t *tables;
    int64_t n_tables;
    int64_t rows;       /* of the call; no span goes beyond them */
    bool spans_checked; /* as in ls_conv1d_args; the tables as well */
    int64_t window;     /* positions that a query sees, the last of which is its own; 0: all */
    ls_profile profile; /* mma16 takes bf16 and a scale above 0 */
    /* mma16: the binary logarithm of each query's sum of exponentials, [rows][log_sum_stride]: n_heads used; what the
     * gradient needs. NULL: not kept. */
    float *log_sum;
    int64_t log_sum_stride;
} ls_attention_args;

ls_status ls_op_attention(const ls_exec *exec, const ls_attention_args *args, ls_error *err);
int64_t ls_op_attention_workspace(const ls_attention_args *args);

/* Gradients of whole sequences, or with `key_rows` of spans that continue others: src/op/attention_backward.h. */
typedef struct ls_attention_backward_args {
    const void *q;     /* [rows][q_stride]: n_heads * head_dim used */
    const void *k, *v; /* [rows][kv_stride]: n_kv_heads * head_dim used; with key_rows [key_rows_n] */
    ls_dtype dtype;    /* of these three: f32 or bf16 */
    int64_t q_stride, kv_stride;
    const float *dout; /* [rows][dout_stride]: of the unrounded output */
    int64_t dout_stride;
    float *dq;      /* [rows][dq_stride] */
    float *dk, *dv; /* [rows][dkv_stride]; with key_rows [key_rows_n] */
    int64_t dq_stride, dkv_stride;
    int64_t rows, n_heads, n_kv_heads, head_dim;
    float scale;
    const ls_span *spans; /* ascending rows; pos 0 without key_rows; slots only tell padding (< 0) from tokens */
    int64_t n_spans, span_rows_max;
    int64_t window; /* as in ls_attention_args */
    ls_profile profile;
    /* mma16: what the forward wrote; exact computes both again. */
    const void *out; /* [rows][out_stride], of dtype */
    int64_t out_stride;
    const float *log_sum; /* [rows][log_sum_stride] */
    int64_t log_sum_stride;
    /* [n_spans]: the first row of a span's pos + n_rows keys in k, v, dk and dv. Key rows of spans ascend and do not
     * overlap; dk and dv are written where a span has rows. NULL: a span's keys are its own rows. */
    const int64_t *key_rows;
    int64_t key_rows_n; /* rows of k, v, dk and dv; 0 without key_rows */
    int64_t keys_max;   /* no span has more keys; 0: no better bound than key_rows_n. A GPU launches for such spans */
} ls_attention_backward_args;

ls_status ls_op_attention_backward(const ls_exec *exec, const ls_attention_backward_args *args, ls_error *err);
int64_t ls_op_attention_backward_workspace(const ls_attention_backward_args *args);

/* a2 of the scan from A_log, -exp(x) * log2(e): src/op/weight.h. */
typedef struct ls_decay_args {
    const void *x; /* [n] */
    ls_dtype dtype;
    int64_t n;
    float *out; /* [n] */
} ls_decay_args;

ls_status ls_op_decay(const ls_exec *exec, const ls_decay_args *args, ls_error *err);
int64_t ls_op_decay_workspace(const ls_decay_args *args);

/* a of ssd and rate of delta from A_log, -exp(x): src/op/weight.h. */
typedef struct ls_rates_args {
    const void *x; /* [n] */
    ls_dtype dtype;
    int64_t n;
    float *out; /* [n] */
} ls_rates_args;

ls_status ls_op_rates(const ls_exec *exec, const ls_rates_args *args, ls_error *err);
int64_t ls_op_rates_workspace(const ls_rates_args *args);

/* Mixture of experts: src/op/moe.h, src/op/moe_backward.h. */
#define LS_EXPERTS_MAX 1024

typedef struct ls_moe_route_args {
    const float *logits; /* [rows][n_experts] */
    int64_t rows, n_experts, top_k;
    int32_t *expert; /* [rows][top_k], ascending */
    float *weight;   /* [rows][top_k] */
} ls_moe_route_args;

ls_status ls_op_moe_route(const ls_exec *exec, const ls_moe_route_args *args, ls_error *err);
int64_t ls_op_moe_route_workspace(const ls_moe_route_args *args);

typedef struct ls_moe_reweigh_args {
    const float *logits; /* [rows][n_experts] */
    int64_t rows, n_experts, top_k;
    const int32_t *expert; /* [rows][top_k], of the routing */
    float *weight;         /* [rows][top_k], of the routing; replaced */
} ls_moe_reweigh_args;

ls_status ls_op_moe_reweigh(const ls_exec *exec, const ls_moe_reweigh_args *args, ls_error *err);
int64_t ls_op_moe_reweigh_workspace(const ls_moe_reweigh_args *args);

/* Rows in the order of their experts. Pick number row * top_k + k is the k-th choice of a row; picks are sorted by
 * (expert, row). No arithmetic: nothing of it carries a bit. */
typedef struct ls_moe_place_args {
    const int32_t *expert; /* [rows][top_k], of the routing */
    int64_t rows, n_experts, top_k;
    int64_t *pick;    /* [rows * top_k]: pick number in i-th place */
    int64_t *row;     /* [rows * top_k]: its row, pick[i] / top_k */
    int64_t *place;   /* [rows * top_k]: place of a pick, the inverse of pick */
    int64_t *offsets; /* [n_experts + 1]: expert e has the places [offsets[e], offsets[e + 1]) */
} ls_moe_place_args;

ls_status ls_op_moe_place(const ls_exec *exec, const ls_moe_place_args *args, ls_error *err);
int64_t ls_op_moe_place_workspace(const ls_moe_place_args *args);

/* Adds one expert's rows: acc[rows[i]] = fma(weight[i], y[i], acc[rows[i]]). Called for experts in ascending order. */
typedef struct ls_moe_combine_args {
    const float *y;      /* [n][dim] */
    const int64_t *rows; /* [n], distinct rows of acc: the caller's care */
    const float *weight; /* [n] */
    float *acc;          /* [..][dim] */
    int64_t n, dim;
    const int64_t *range; /* as in ls_gemm_args: of y, rows and weight; NULL: all */
} ls_moe_combine_args;

ls_status ls_op_moe_combine(const ls_exec *exec, const ls_moe_combine_args *args, ls_error *err);
int64_t ls_op_moe_combine_workspace(const ls_moe_combine_args *args);

typedef struct ls_moe_combine_backward_args {
    const float *y;      /* [n][dim], as in the forward call */
    const int64_t *rows; /* [n] */
    const float *weight; /* [n] */
    const float *dacc;   /* [acc_rows][dim] */
    float *dy;           /* [n][dim]; may be y */
    float *dweight;      /* [n] */
    int64_t n, dim, acc_rows;
} ls_moe_combine_backward_args;

ls_status ls_op_moe_combine_backward(const ls_exec *exec, const ls_moe_combine_backward_args *args, ls_error *err);
int64_t ls_op_moe_combine_backward_workspace(const ls_moe_combine_backward_args *args);

typedef struct ls_moe_route_backward_args {
    const float *logits; /* [rows][n_experts], as in the forward call */
    int64_t rows, n_experts, top_k;
    const int32_t *expert; /* [rows][top_k], of the forward call */
    const float *d_weight; /* [rows][top_k] */
    float *dlogits;        /* [rows][n_experts] */
} ls_moe_route_backward_args;

typedef struct ls_moe_reweigh_backward_args {
    const float *logits; /* [rows][n_experts], as in the forward call */
    int64_t rows, n_experts, top_k;
    const int32_t *expert; /* [rows][top_k], of the routing */
    const float *d_weight; /* [rows][top_k] */
    float *dlogits;        /* [rows][n_experts] */
} ls_moe_reweigh_backward_args;

ls_status ls_op_moe_reweigh_backward(const ls_exec *exec, const ls_moe_reweigh_backward_args *args, ls_error *err);
int64_t ls_op_moe_reweigh_backward_workspace(const ls_moe_reweigh_backward_args *args);

ls_status ls_op_moe_route_backward(const ls_exec *exec, const ls_moe_route_backward_args *args, ls_error *err);
int64_t ls_op_moe_route_backward_workspace(const ls_moe_route_backward_args *args);

/* Routing by sigmoids: src/op/moe_sigmoid.h. */
typedef struct ls_moe_sigmoid_route_args {
    const float *logits; /* [rows][n_experts] */
    const float *bias;   /* [n_experts] */
    int64_t rows, n_experts, top_k;
    int64_t n_groups, top_groups; /* n_groups divides n_experts, into two or more where there is more than one group;
                                   * the groups that stay have top_k experts at least */
    bool normalised;
    float scale;
    int32_t *expert; /* [rows][top_k], ascending */
    float *weight;   /* [rows][top_k] */
} ls_moe_sigmoid_route_args;

ls_status ls_op_moe_sigmoid_route(const ls_exec *exec, const ls_moe_sigmoid_route_args *args, ls_error *err);
int64_t ls_op_moe_sigmoid_route_workspace(const ls_moe_sigmoid_route_args *args);

typedef struct ls_moe_sigmoid_route_backward_args {
    const float *logits; /* [rows][n_experts] */
    int64_t rows, n_experts, top_k;
    const int32_t *expert; /* [rows][top_k], of the routing */
    const float *d_weight; /* [rows][top_k] */
    bool normalised;
    float scale;
    float *dlogits; /* [rows][n_experts] */
} ls_moe_sigmoid_route_backward_args;

ls_status ls_op_moe_sigmoid_route_backward(const ls_exec *exec, const ls_moe_sigmoid_route_backward_args *args,
                                           ls_error *err);
int64_t ls_op_moe_sigmoid_route_backward_workspace(const ls_moe_sigmoid_route_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
