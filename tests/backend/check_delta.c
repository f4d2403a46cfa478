/* The gated delta rule and its gradient on every back end: bits of the CPU contract for every shape, cut, batch, slot,
 * packing and repetition. */
#include "grad_case.h"
#include "op/delta.h"

enum { DELTA_Q, DELTA_K, DELTA_V, DELTA_A, DELTA_B };
enum { DELTA_RATE, DELTA_DT_BIAS };
/* Beside IN_BF16 and OUT_BF16: decays near 1, where the past counts. */
enum { SLOW = 4, DELTA_OPTIONS = 8 };

typedef struct delta_shape {
    int64_t heads, key_heads, keys, dim;
    int options;
    values kind;
} delta_shape;

/* An entry of the pool is the state and behind it the scales. */
static ls_delta_args delta_args(const problem *p, const operands *o) {
    const int64_t heads = p->in[DELTA_A].cols;
    const ls_pool_view scale = {o->pool.base + p->dim * p->width * 4, o->pool.stride, o->pool.n_entries};
    const ls_pool_view held = {o->pool.base + p->held_at, o->pool.stride, o->pool.n_entries};
    const ls_delta_args args = {.in_dtype = p->in[DELTA_Q].dtype,
                                .out_dtype = p->out.dtype,
                                .q = o->in[DELTA_Q],
                                .k = o->in[DELTA_K],
                                .v = o->in[DELTA_V],
                                .a = o->in[DELTA_A],
                                .b = o->in[DELTA_B],
                                .out = o->out,
                                .q_stride = o->in_stride[DELTA_Q],
                                .k_stride = o->in_stride[DELTA_K],
                                .v_stride = o->in_stride[DELTA_V],
                                .a_stride = o->in_stride[DELTA_A],
                                .b_stride = o->in_stride[DELTA_B],
                                .out_stride = o->out_stride,
                                .rate = o->param[DELTA_RATE],
                                .dt_bias = o->param[DELTA_DT_BIAS],
                                .rows = o->rows,
                                .n_heads = heads,
                                .n_key_heads = p->in[DELTA_Q].cols / p->width,
                                .key_dim = p->width,
                                .value_dim = p->dim / heads,
                                .state = o->pool,
                                .scale = scale,
                                .state_every = p->every,
                                .held = held,
                                .spans = o->spans,
                                .n_spans = o->n_spans,
                                .span_rows_max = o->span_rows_max};
    return args;
}

static ls_status delta_call(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    const ls_delta_args args = delta_args(p, o);
    return ls_op_delta(exec, &args, err);
}

static int64_t delta_workspace(const problem *p, const operands *o) {
    const ls_delta_args args = delta_args(p, o);
    return ls_op_delta_workspace(&args);
}

static ls_status delta_write_held(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    const ls_delta_args a = delta_args(p, o);
    const ls_held held = ls_delta_held(&a);
    const ls_write_held_args args = ls_held_args(&held, &a.state, &a.held, a.spans, a.n_spans, 0);
    return ls_op_write_held(exec, &args, err);
}

static problem delta_problem(bk_run *run, const delta_shape *shape, const int64_t *length, int64_t n_seqs,
                             uint64_t seed) {
    const ls_dtype in = shape->options & IN_BF16 ? LS_BF16 : LS_F32;
    const bool slow = (shape->options & SLOW) != 0;
    const int64_t keys = shape->key_heads * shape->keys;
    problem p;
    problem_sequences(&p, length, n_seqs);
    snprintf(p.name, sizeof p.name, "delta %lld over %lld heads, %lld x %lld in %s out %s%s", (long long)shape->heads,
             (long long)shape->key_heads, (long long)shape->keys, (long long)shape->dim, ls_dtype_name(in),
             shape->options & OUT_BF16 ? "bf16" : "f32", slow ? ", slow" : "");
    p.dim = shape->heads * shape->dim;
    p.width = shape->keys;
    p.activated = false;
    p.in[DELTA_Q] = tensor_make(&p, "q", in, keys, -1.0f, 1.0f, shape->kind, &seed);
    p.in[DELTA_K] = tensor_make(&p, "k", in, keys, -1.0f, 1.0f, shape->kind, &seed);
    p.in[DELTA_V] = tensor_make(&p, "v", in, p.dim, -1.0f, 1.0f, shape->kind, &seed);
    p.in[DELTA_A] =
        tensor_make(&p, "a", in, shape->heads, slow ? -4.0f : -6.0f, slow ? 0.0f : 4.0f, shape->kind, &seed);
    p.in[DELTA_B] = tensor_make(&p, "b", in, shape->heads, -3.0f, 3.0f, shape->kind, &seed);
    p.out = (tensor){"out", shape->options & OUT_BF16 ? LS_BF16 : LS_F32, p.dim, NULL};
    p.param[DELTA_RATE] = param_make("rate", shape->heads, slow ? -1.0f : -16.0f, -0.05f, &seed);
    p.param[DELTA_DT_BIAS] = param_make("dt_bias", shape->heads, -3.0f, 1.0f, &seed);
    p.state_dtype = LS_F32;
    p.state_bytes = (p.dim * shape->keys + shape->heads) * 4;
    p.state_align = 16;
    p.token_work = p.dim * shape->keys;
    p.call = delta_call;
    p.workspace = delta_workspace;
    p.write_held = delta_write_held;
    problem_solve(run, &p);
    return p;
}

static ls_delta_backward_args delta_backward_args(const problem *p, const grad_operands *o) {
    const ls_delta_args f = delta_args(p, &o->in);
    const ls_delta_backward_args args = {.in_dtype = f.in_dtype,
                                         .q = f.q,
                                         .k = f.k,
                                         .v = f.v,
                                         .a = f.a,
                                         .b = f.b,
                                         .q_stride = f.q_stride,
                                         .k_stride = f.k_stride,
                                         .v_stride = f.v_stride,
                                         .a_stride = f.a_stride,
                                         .b_stride = f.b_stride,
                                         .rate = f.rate,
                                         .dt_bias = f.dt_bias,
                                         .dout = o->dout,
                                         .dout_stride = o->dout_stride,
                                         .dq = o->row[DELTA_Q],
                                         .dk = o->row[DELTA_K],
                                         .dv = o->row[DELTA_V],
                                         .da = o->row[DELTA_A],
                                         .db = o->row[DELTA_B],
                                         .dab_dtype = f.out_dtype,
                                         .dq_stride = o->row_stride[DELTA_Q],
                                         .dk_stride = o->row_stride[DELTA_K],
                                         .dv_stride = o->row_stride[DELTA_V],
                                         .da_stride = o->row_stride[DELTA_A],
                                         .db_stride = o->row_stride[DELTA_B],
                                         .drate = o->param[DELTA_RATE],
                                         .ddt_bias = o->param[DELTA_DT_BIAS],
                                         .rows = f.rows,
                                         .n_heads = f.n_heads,
                                         .n_key_heads = f.n_key_heads,
                                         .key_dim = f.key_dim,
                                         .value_dim = f.value_dim,
                                         .spans = f.spans,
                                         .n_spans = f.n_spans,
                                         .span_rows_max = f.span_rows_max};
    return args;
}

static ls_status delta_backward_call(const ls_exec *exec, const problem *p, const grad_operands *o, ls_error *err) {
    const ls_delta_backward_args args = delta_backward_args(p, o);
    return ls_op_delta_backward(exec, &args, err);
}

static int64_t delta_backward_workspace(const problem *p, const grad_operands *o) {
    const ls_delta_backward_args args = delta_backward_args(p, o);
    return ls_op_delta_backward_workspace(&args);
}

static grad_problem delta_grad_problem(bk_run *run, const delta_shape *shape, const int64_t *length, int64_t n_seqs,
                                       uint64_t seed) {
    const problem p = delta_problem(run, shape, length, n_seqs, seed);
    const grad_problem g = {.p = p,
                            .row = {[DELTA_A].dtype = p.out.dtype, [DELTA_B].dtype = p.out.dtype},
                            .call = delta_backward_call,
                            .workspace = delta_backward_workspace};
    return grad_finish(run, g, shape->kind, seed);
}

/* ---- cases ---- */

static void forward_and_back(bk_run *run, const delta_shape *shape, const int64_t *length, int64_t n_seqs,
                             uint64_t seed) {
    static const int64_t every[] = {2, 5, 8, LS_STATE_EVERY_MAX};
    problem p = delta_problem(run, shape, length, n_seqs, seed);
    grad_problem g;
    check_cuts(run, &p);
    for (int64_t i = 0; i < BK_COUNT(every); i++)
        check_held(run, &p, every[i],
                   ls_held_floats(every[i], shape->heads, shape->key_heads, shape->keys, shape->dim) * 4);
    problem_free(&p);
    g = delta_grad_problem(run, shape, length, n_seqs, seed + 1);
    check_packings(run, &g, 3);
}

static void every_shape(bk_run *run) {
    static const int64_t length[] = {3, 1, 34, 2}, heads[] = {1, 2, 3, 4, 6}, dims[] = {1, 7, 16, 33, 64},
                         keys[] = {1, 4, 5, 16, 31, 64, 128};
    for (int64_t i = 0; i < BK_COUNT(heads) * BK_COUNT(dims) * BK_COUNT(keys); i++) {
        const int64_t n = heads[i % BK_COUNT(heads)];
        const delta_shape shape = {n,
                                   n % 2 == 0 && i % 3 == 0 ? n / 2
                                   : n % 3 == 0             ? n / 3
                                                            : 1,
                                   keys[i / BK_COUNT(heads) / BK_COUNT(dims)],
                                   dims[i / BK_COUNT(heads) % BK_COUNT(dims)],
                                   (int)(i * 7 % DELTA_OPTIONS),
                                   PLAIN};
        if (i % bk_size(run, 29, 7, 1) != 0 || (!run->cuda && shape.dim * shape.keys > 2048)) continue;
        forward_and_back(run, &shape, length, bk_size(run, 2, 4, 4), (uint64_t)i + 1);
    }
}

/* Heads of models: every kernel of prefill, of a token, of the gradient, with blocks of all columns and of fewer. */
static const delta_shape models[] = {
    {2, 1, 128, 128, IN_BF16 | OUT_BF16, PLAIN},
    {4, 2, 128, 128, SLOW, PLAIN},
    {1, 1, 128, 128, IN_BF16, PLAIN},
    {3, 1, 128, 128, OUT_BF16 | SLOW, PLAIN},
    {2, 2, 128, 128, IN_BF16, SPECIAL},
    {2, 1, 128, 128, SLOW, SPECIAL},
    {32, 16, 128, 128, IN_BF16 | OUT_BF16 | SLOW, PLAIN},
    {48, 16, 128, 128, SLOW, PLAIN},
    {2, 1, 128, 64, SLOW, PLAIN},
    {1, 1, 64, 256, IN_BF16, PLAIN},
};

static void heads_of_models(bk_run *run) {
    static const int64_t length[] = {9, 1, 70, 133, 64, 2, 200, 5};
    for (int64_t i = 0; i < bk_size(run, 1, 1, BK_COUNT(models)); i++) {
        const bool large = models[i].heads > 8;
        forward_and_back(run, &models[i], length, bk_size(run, 2, 2, large ? 6 : BK_COUNT(length)), (uint64_t)i + 1000);
    }
}

static void every_length(bk_run *run) {
    static const int64_t length[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 63, 64, 65, 100, 127, 128, 129, 300};
    static const delta_shape shapes[] = {
        {2, 1, 128, 128, IN_BF16 | OUT_BF16, PLAIN}, {2, 2, 128, 128, SLOW, PLAIN}, {4, 2, 17, 9, SLOW, PLAIN}};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        if (!run->cuda && i < 2) continue;
        forward_and_back(run, &shapes[i], length, bk_size(run, 5, BK_COUNT(length), BK_COUNT(length)),
                         (uint64_t)i + 2000);
    }
}

static void for_each_serving(bk_run *run, void (*check)(bk_run *, const problem *)) {
    static const delta_shape serving[] = {
        {4, 2, 7, 5, 0, PLAIN}, {2, 1, 128, 128, IN_BF16 | OUT_BF16, PLAIN}, {32, 16, 128, 128, IN_BF16, PLAIN}};
    int64_t length[SEQS_MAX];
    for (int64_t s = 0; s < SEQS_MAX; s++) length[s] = 1 + (s * 7 + 17) % 20;
    for (int64_t i = 0; i < bk_size(run, 1, 1, BK_COUNT(serving)); i++) {
        problem p = delta_problem(run, &serving[i], length, SEQS_MAX, (uint64_t)i + 400);
        check(run, &p);
        problem_free(&p);
    }
}

static void twenty_times(bk_run *run, const problem *p) { check_repeats(run, p, bk_size(run, 3, 3, 20)); }
static void any_batch_and_position(bk_run *run) { for_each_serving(run, check_batches); }
static void repeated_runs(bk_run *run) { for_each_serving(run, twenty_times); }
static void replayed_graph(bk_run *run) { for_each_serving(run, check_graph); }
static void two_streams(bk_run *run) { for_each_serving(run, check_streams); }

static void repeated_gradients(bk_run *run) {
    static const int64_t length[] = {33, 5, 150, 64};
    grad_problem g = delta_grad_problem(run, &models[0], length, bk_size(run, 2, 2, 4), 400);
    check_packings(run, &g, bk_size(run, 3, 3, 60));
}

static void golden_bits(bk_run *run) {
    static const int64_t length[] = {40, 1, 17, 70};
    static const delta_shape shapes[] = {{2, 1, 128, 128, IN_BF16 | OUT_BF16, PLAIN}, {6, 2, 17, 9, SLOW, PLAIN}};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        problem p = delta_problem(run, &shapes[i], length, BK_COUNT(length), (uint64_t)i + 500);
        grad_problem g = delta_grad_problem(run, &shapes[i], length, BK_COUNT(length), (uint64_t)i + 500);
        check_golden(run, &p, &golden_delta[i]);
        golden_check(run, &g, &golden_delta_backward[i]);
        problem_free(&p);
    }
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"every shape", every_shape, BK_ANYWHERE},
        {"heads of models", heads_of_models, BK_ANYWHERE},
        {"every length", every_length, BK_ANYWHERE},
        {"any batch and position", any_batch_and_position, BK_ANYWHERE},
        {"repeated runs", repeated_runs, BK_ANYWHERE},
        {"repeated gradients", repeated_gradients, BK_ANYWHERE},
        {"replayed graph", replayed_graph, BK_CUDA_ONLY},
        {"two streams", two_streams, BK_CUDA_ONLY},
        {"golden bits", golden_bits, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
