/* The ops of lockstep/ops.h that carry a state from token to token: convolution, scans, the gated delta rule. */
#ifndef LOCKSTEP_OPS_STATE_H
#define LOCKSTEP_OPS_STATE_H

#include "lockstep/ops_base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_CONV_WIDTH_MAX 16
#define LS_SCAN_STATES_MAX 256

/* Causal depthwise convolution, then SiLU. */
typedef struct ls_conv1d_args {
    const void *x;                          /* [rows][x_stride], first dim elements of each row */
    ls_dtype x_dtype, y_dtype, state_dtype; /* f32 or bf16 each */
    int64_t x_stride;
    const float *w;    /* [d_conv][dim] */
    const float *bias; /* [dim], or NULL */
    void *y;           /* [rows][y_stride]; must not overlap x */
    int64_t y_stride;
    uint16_t *rounded; /* [rows][rounded_stride]: y of type f32 once more, rounded to bf16; NULL: not wanted */
    int64_t rounded_stride;
    int64_t rows, dim, d_conv;
    ls_pool_view state; /* entries [d_conv-1][dim] of state_dtype: the last inputs, oldest first */
    const ls_span *spans;
    int64_t n_spans;
    int64_t
        span_rows_max; /* no span has more rows; 0: no better bound than rows. A GPU launches for n_spans such spans */
    /* CUDA only: an earlier call of this op, in the stream and with the record of this one, has checked the same spans
     * for as many rows and slots; nothing is written if it found a fault. Other back ends check again. */
    bool spans_checked;
} ls_conv1d_args;

ls_status ls_op_conv1d(const ls_exec *exec, const ls_conv1d_args *args, ls_error *err);
int64_t ls_op_conv1d_workspace(const ls_conv1d_args *args);

/* Gradients of whole sequences, or with `initial` of spans that continue others: without it every span has pos 0. Slots
 * only tell padding (< 0) from tokens. Rows of no span are not written. */
typedef struct ls_conv1d_backward_args {
    const void *x; /* as in the forward call */
    ls_dtype x_dtype, state_dtype;
    int64_t x_stride;
    const float *w, *bias;
    const float *dy; /* [rows][dy_stride] */
    int64_t dy_stride;
    void *dx; /* [rows][dx_stride] */
    int64_t dx_stride;
    float *dw;    /* [d_conv][dim], written */
    float *dbias; /* [dim], written; NULL where bias is */
    int64_t rows, dim, d_conv;
    const ls_span *spans;
    int64_t n_spans, span_rows_max;
    bool continued;     /* the sums over spans go on from what dw and dbias hold, those of earlier spans or +0 */
    bool dw_by_channel; /* dw is [dim][d_conv], as checkpoints store taps */
    ls_dtype dx_dtype;  /* f32, or bf16, rounded once, as products in mma16 read it */
    /* Windows of each span, [n_spans][d_conv-1][dim], oldest input first. */
    const void *initial; /* of state_dtype: the inputs before the first token; NULL: all 0 */
    float *dinitial;     /* their gradients, written where a span has tokens; NULL: not wanted */
    const float *dfinal; /* gradients of the window behind the last token; NULL: all 0 */
} ls_conv1d_backward_args;

ls_status ls_op_conv1d_backward(const ls_exec *exec, const ls_conv1d_backward_args *args, ls_error *err);
int64_t ls_op_conv1d_backward_workspace(const ls_conv1d_backward_args *args);

/* Selective scan of Mamba-1. */
typedef struct ls_scan_args {
    ls_dtype in_dtype;  /* of u, dt_raw, b, cc and z: f32 or bf16 */
    ls_dtype out_dtype; /* f32 or bf16 */
    bool dt_activated;  /* dt_raw is dt already: no softplus (a bias is still added where there is one) */
    const void *u;      /* [rows][u_stride], dim used */
    const void *dt_raw; /* [rows][dt_stride], dim used */
    const void *b, *cc; /* [rows][b_stride], [rows][c_stride], n_states used */
    const void *z;      /* [rows][z_stride], dim used; NULL: no gate */
    void *out;          /* [rows][out_stride] */
    int64_t u_stride, dt_stride, b_stride, c_stride, z_stride, out_stride;
    const float *a2;      /* [dim][n_states], A * log2(e); 16-byte aligned on CUDA */
    const float *dt_bias; /* [dim], or NULL */
    const float *d;       /* [dim], or NULL */
    int64_t rows, dim, n_states;
    ls_pool_view state; /* entries [dim][n_states] float32, 16-byte aligned base and stride */
    const ls_span *spans;
    int64_t n_spans;
    int64_t span_rows_max; /* no span has more rows; 0: no better bound than rows. 1 takes the decode kernel */
    bool spans_checked;    /* as in ls_conv1d_args */
} ls_scan_args;

ls_status ls_op_scan(const ls_exec *exec, const ls_scan_args *args, ls_error *err);
int64_t ls_op_scan_workspace(const ls_scan_args *args);

/* Gradients of whole sequences, or with `initial` of spans that continue others, as in ls_conv1d_backward_args. The
 * forward values are computed again. Rows of no span are not written. */
typedef struct ls_scan_backward_args {
    ls_dtype in_dtype;
    bool dt_activated;
    const void *u, *dt_raw, *b, *cc, *z; /* as in the forward call */
    int64_t u_stride, dt_stride, b_stride, c_stride, z_stride;
    const float *a2, *dt_bias, *d;
    const void *dout; /* [rows][dout_stride]: of the unrounded output */
    int64_t dout_stride;
    void *du;        /* [rows][dim] */
    void *ddt;       /* [rows][dim], of dt_raw */
    void *db, *dcc;  /* [rows][n_states] */
    void *dz;        /* [rows][dz_stride]; NULL where z is */
    float *da2;      /* [dim][n_states], written */
    float *ddt_bias; /* [dim], written; NULL where dt_bias is */
    float *dd;       /* [dim], written; NULL where d is */
    int64_t rows, dim, n_states;
    const ls_span *spans;
    int64_t n_spans, span_rows_max;
    /* The sums over spans go on from what da2, ddt_bias and dd hold, those of earlier spans or +0; da2 is left without
     * the factor LN2 that it has at the end. */
    bool continued;
    bool dout_bf16;     /* dout is bf16, else f32 */
    bool du_bf16;       /* du, db and dcc are bf16, rounded once, else f32 */
    ls_dtype out_dtype; /* of ddt and dz: f32, or bf16, rounded once, as products in mma16 read them */
    int64_t dz_stride;  /* 0: dim */
    /* States of each span, [n_spans][dim][n_states]; 16-byte aligned on CUDA. */
    const float *initial; /* before the first token; NULL: all 0 */
    float *dinitial;      /* their gradients, written where a span has tokens; NULL: not wanted */
    const float *dfinal;  /* gradients of the states behind the last token; NULL: all 0 */
} ls_scan_backward_args;

ls_status ls_op_scan_backward(const ls_exec *exec, const ls_scan_backward_args *args, ls_error *err);
int64_t ls_op_scan_backward_workspace(const ls_scan_backward_args *args);

/* States that are not written with every token: src/op/held.h. */
#define LS_STATE_EVERY_MAX 64

/* Scan of Mamba-2: src/op/ssd.h. Heads of head_dim channels; group g has the heads [g, g + 1) * n_heads / n_groups. */
#define LS_SSD_HEADS_MAX 65536
#define LS_SSD_STATE_MAX 16384 /* n_states * head_dim; head_dim is at most 256, n_states LS_SCAN_STATES_MAX */

typedef struct ls_ssd_args {
    ls_dtype in_dtype;  /* of x, dt_raw, b and cc: f32 or bf16 */
    ls_dtype out_dtype; /* f32 or bf16 */
    const void *x;      /* [rows][x_stride], n_heads * head_dim used */
    const void *dt_raw; /* [rows][dt_stride], n_heads used */
    const void *b, *cc; /* [rows][b_stride], [rows][c_stride], n_groups * n_states used */
    void *out;          /* [rows][out_stride], n_heads * head_dim written */
    int64_t x_stride, dt_stride, b_stride, c_stride, out_stride;
    const float *a;       /* [n_heads], -exp(A_log) */
    const float *dt_bias; /* [n_heads] */
    const float *d;       /* [n_heads] */
    float dt_min, dt_max; /* 0 and INFINITY: softplus as it is; dt_max is above 0 and not below dt_min */
    int64_t rows, n_heads, head_dim, n_groups, n_states;
    ls_pool_view state;  /* entries [n_heads][n_states][head_dim] float32, 16-byte aligned base and stride */
    ls_pool_view scale;  /* entries [n_heads] float32, as many as of state */
    int64_t state_every; /* tokens of a state that spans of one row write, up to LS_STATE_EVERY_MAX; 0 and 1: one */
    ls_pool_view held;   /* above 1: entries of ls_held_floats float32, as many as of state, aligned as they are */
    const ls_span *spans;
    int64_t n_spans;
    int64_t span_rows_max; /* no span has more rows; 0: no better bound than rows */
    bool spans_checked;    /* as in ls_conv1d_args */
} ls_ssd_args;

ls_status ls_op_ssd(const ls_exec *exec, const ls_ssd_args *args, ls_error *err);
int64_t ls_op_ssd_workspace(const ls_ssd_args *args);

/* Gradients of whole sequences, or with `initial` of spans that continue others, as in ls_conv1d_backward_args. The
 * forward values are computed again. Rows of no span are not written. Outputs overlap neither inputs nor each other. */
typedef struct ls_ssd_backward_args {
    ls_dtype in_dtype;
    const void *x, *dt_raw, *b, *cc; /* as in the forward call */
    int64_t x_stride, dt_stride, b_stride, c_stride;
    const float *a, *dt_bias, *d;
    float dt_min, dt_max;
    const float *dout; /* [rows][dout_stride]: of the unrounded output */
    int64_t dout_stride;
    float *dx;          /* [rows][dx_stride] */
    float *db, *dcc;    /* [rows][db_stride], [rows][dc_stride] */
    void *ddt;          /* [rows][ddt_stride], of dt_raw */
    ls_dtype ddt_dtype; /* f32, or bf16, rounded once, as products in mma16 read it */
    int64_t dx_stride, db_stride, dc_stride, ddt_stride;
    float *da, *ddt_bias, *dd; /* [n_heads] each, written; da is of a */
    int64_t rows, n_heads, head_dim, n_groups, n_states;
    const ls_span *spans;
    int64_t n_spans, span_rows_max;
    bool continued; /* the sums over spans go on from what da, ddt_bias and dd hold, those of earlier spans or +0 */
    /* States of each span, [n_spans][n_heads][n_states][head_dim]; 16-byte aligned on CUDA. */
    const float *initial;       /* as stored, before the first token; NULL: all 0 */
    const float *initial_scale; /* [n_spans][n_heads]: the scales beside them; NULL: all 1. Needs initial */
    float *dinitial;            /* gradients of state times scale, written where a span has tokens; NULL: not wanted */
    const float *dfinal;        /* the same of the states behind the last token; NULL: all 0 */
} ls_ssd_backward_args;

ls_status ls_op_ssd_backward(const ls_exec *exec, const ls_ssd_backward_args *args, ls_error *err);
int64_t ls_op_ssd_backward_workspace(const ls_ssd_backward_args *args);

/* Gated delta rule: src/op/delta.h. Value head h reads query and key of key head h / (n_heads / n_key_heads). */
#define LS_DELTA_HEADS_MAX 65536
#define LS_DELTA_DIM_MAX 256     /* key_dim and value_dim */
#define LS_DELTA_STATE_MAX 16384 /* key_dim * value_dim */

typedef struct ls_delta_args {
    ls_dtype in_dtype;  /* of q, k, v, a and b: f32 or bf16 */
    ls_dtype out_dtype; /* f32 or bf16 */
    const void *q, *k;  /* [rows][q_stride], [rows][k_stride], n_key_heads * key_dim used; not yet normalised */
    const void *v;      /* [rows][v_stride], n_heads * value_dim used */
    const void *a;      /* [rows][a_stride], n_heads used: what softplus takes with dt_bias */
    const void *b;      /* [rows][b_stride], n_heads used: what the sigmoid takes */
    void *out;          /* [rows][out_stride], n_heads * value_dim written */
    int64_t q_stride, k_stride, v_stride, a_stride, b_stride, out_stride;
    const float *rate;                                      /* [n_heads], -exp(A_log) */
    const float *dt_bias;                                   /* [n_heads] */
    int64_t rows, n_heads, n_key_heads, key_dim, value_dim; /* n_key_heads divides n_heads */
    ls_pool_view state;  /* entries [n_heads][key_dim][value_dim] float32, 16-byte aligned base and stride */
    ls_pool_view scale;  /* entries [n_heads] float32, as many as of state */
    int64_t state_every; /* tokens of a state that spans of one row write, up to LS_STATE_EVERY_MAX; 0 and 1: one */
    ls_pool_view held;   /* above 1: entries of ls_held_floats float32, as many as of state, aligned as they are */
    const ls_span *spans;
    int64_t n_spans;
    int64_t span_rows_max; /* no span has more rows; 0: no better bound than rows */
    bool spans_checked;    /* as in ls_conv1d_args */
} ls_delta_args;

ls_status ls_op_delta(const ls_exec *exec, const ls_delta_args *args, ls_error *err);
int64_t ls_op_delta_workspace(const ls_delta_args *args);

/* Writes states of ssd or delta whose last tokens are held, and holds none then: of the spans' slots, once each. */
typedef struct ls_write_held_args {
    int64_t n_heads, n_groups;      /* n_groups: of heads with the same b, or the same key */
    int64_t state_rows, state_cols; /* n_states and head_dim, or key_dim and value_dim */
    int64_t state_every;            /* of the calls that held; above 1 */
    ls_pool_view state, held;       /* theirs */
    const ls_span *spans;           /* slot and pos count; pos 0: there is no state yet, and what is held goes */
    int64_t n_spans;
    int64_t rows;       /* that spans may name */
    bool spans_checked; /* as in ls_conv1d_args */
} ls_write_held_args;

ls_status ls_op_write_held(const ls_exec *exec, const ls_write_held_args *args, ls_error *err);

/* Gradients of whole sequences, or with `initial` of spans that continue others, as in ls_conv1d_backward_args. The
 * forward values are computed again. Rows of no span are not written. Outputs overlap neither inputs nor each other. */
typedef struct ls_delta_backward_args {
    ls_dtype in_dtype;
    const void *q, *k, *v, *a, *b; /* as in the forward call */
    int64_t q_stride, k_stride, v_stride, a_stride, b_stride;
    const float *rate, *dt_bias;
    const float *initial; /* [n_spans][n_heads][key_dim][value_dim]: states before the first tokens, as stored; NULL:
                             all 0; 16-byte aligned on CUDA, dfinal as well */
    const float *dout;    /* [rows][dout_stride]: of the unrounded output */
    int64_t dout_stride;
    float *dq, *dk;     /* [rows][dq_stride], [rows][dk_stride]: of q and k before they are normalised */
    float *dv;          /* [rows][dv_stride] */
    void *da, *db;      /* [rows][da_stride], [rows][db_stride] */
    ls_dtype dab_dtype; /* of da and db: f32, or bf16, rounded once, as products in mma16 read them */
    int64_t dq_stride, dk_stride, dv_stride, da_stride, db_stride;
    float *drate, *ddt_bias; /* [n_heads] each, written */
    float *dinitial;         /* gradients of state times scale, written where a span has tokens; NULL: not wanted */
    int64_t rows, n_heads, n_key_heads, key_dim, value_dim;
    const ls_span *spans;
    int64_t n_spans, span_rows_max;
    bool continued; /* the sums over spans go on from what drate and ddt_bias hold, those of earlier spans or +0 */
    const float *initial_scale; /* [n_spans][n_heads]: the scales beside initial, which it needs; NULL: all 1 */
    const float *dfinal;        /* as dinitial, of the states behind the last token; NULL: all 0 */
} ls_delta_backward_args;

ls_status ls_op_delta_backward(const ls_exec *exec, const ls_delta_backward_args *args, ls_error *err);
int64_t ls_op_delta_backward_workspace(const ls_delta_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
