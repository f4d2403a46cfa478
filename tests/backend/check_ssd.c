/* The scan of Mamba-2 and its gradient on every back end: bits of the CPU contract for every shape, cut, batch, slot,
 * packing and repetition. */
#include "grad_case.h"
#include "op/ssd.h"

enum { SSD_X, SSD_DT, SSD_B, SSD_C };
enum { SSD_A, SSD_D, SSD_DT_BIAS };
/* Beside IN_BF16 and OUT_BF16: dt within limits; decays near 1, where the past counts. */
enum { LIMITED = 4, SLOW = 8, SSD_OPTIONS = 16 };

typedef struct ssd_shape {
    int64_t heads, dim, groups, states;
    int options;
    values kind;
} ssd_shape;

/* An entry of the pool is the state and behind it the scales. */
static ls_ssd_args ssd_args(const problem *p, const operands *o) {
    const int64_t heads = p->in[SSD_DT].cols;
    const ls_pool_view scale = {o->pool.base + p->dim * p->width * 4, o->pool.stride, o->pool.n_entries};
    const ls_pool_view held = {o->pool.base + p->held_at, o->pool.stride, o->pool.n_entries};
    const ls_ssd_args args = {.in_dtype = p->in[SSD_X].dtype,
                              .out_dtype = p->out.dtype,
                              .x = o->in[SSD_X],
                              .dt_raw = o->in[SSD_DT],
                              .b = o->in[SSD_B],
                              .cc = o->in[SSD_C],
                              .out = o->out,
                              .x_stride = o->in_stride[SSD_X],
                              .dt_stride = o->in_stride[SSD_DT],
                              .b_stride = o->in_stride[SSD_B],
                              .c_stride = o->in_stride[SSD_C],
                              .out_stride = o->out_stride,
                              .a = o->param[SSD_A],
                              .dt_bias = o->param[SSD_DT_BIAS],
                              .d = o->param[SSD_D],
                              .dt_min = p->activated ? 0.01f : 0.0f,
                              .dt_max = p->activated ? 0.8f : INFINITY,
                              .rows = o->rows,
                              .n_heads = heads,
                              .head_dim = p->dim / heads,
                              .n_groups = p->in[SSD_B].cols / p->width,
                              .n_states = p->width,
                              .state = o->pool,
                              .scale = scale,
                              .state_every = p->every,
                              .held = held,
                              .spans = o->spans,
                              .n_spans = o->n_spans,
                              .span_rows_max = o->span_rows_max};
    return args;
}

static ls_status ssd_call(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    const ls_ssd_args args = ssd_args(p, o);
    return ls_op_ssd(exec, &args, err);
}

static int64_t ssd_workspace(const problem *p, const operands *o) {
    const ls_ssd_args args = ssd_args(p, o);
    return ls_op_ssd_workspace(&args);
}

static ls_status ssd_write_held(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    const ls_ssd_args a = ssd_args(p, o);
    const ls_held held = ls_ssd_held(&a);
    const ls_write_held_args args = ls_held_args(&held, &a.state, &a.held, a.spans, a.n_spans, 0);
    return ls_op_write_held(exec, &args, err);
}

static problem ssd_problem(bk_run *run, const ssd_shape *shape, const int64_t *length, int64_t n_seqs, uint64_t seed) {
    const ls_dtype in = shape->options & IN_BF16 ? LS_BF16 : LS_F32;
    const bool slow = (shape->options & SLOW) != 0;
    problem p;
    problem_sequences(&p, length, n_seqs);
    snprintf(p.name, sizeof p.name, "ssd %lld x %lld heads, %lld groups, %lld states in %s out %s%s%s",
             (long long)shape->heads, (long long)shape->dim, (long long)shape->groups, (long long)shape->states,
             ls_dtype_name(in), shape->options & OUT_BF16 ? "bf16" : "f32",
             shape->options & LIMITED ? ", dt limited" : "", slow ? ", slow" : "");
    p.dim = shape->heads * shape->dim;
    p.width = shape->states;
    p.activated = (shape->options & LIMITED) != 0;
    p.in[SSD_X] = tensor_make(&p, "x", in, p.dim, -1.0f, 1.0f, shape->kind, &seed);
    p.in[SSD_DT] =
        tensor_make(&p, "dt_raw", in, shape->heads, slow ? -4.0f : -6.0f, slow ? 0.0f : 4.0f, shape->kind, &seed);
    p.in[SSD_B] = tensor_make(&p, "b", in, shape->groups * shape->states, -1.0f, 1.0f, shape->kind, &seed);
    p.in[SSD_C] = tensor_make(&p, "cc", in, shape->groups * shape->states, -1.0f, 1.0f, shape->kind, &seed);
    p.out = (tensor){"out", shape->options & OUT_BF16 ? LS_BF16 : LS_F32, p.dim, NULL};
    p.param[SSD_A] = param_make("a", shape->heads, slow ? -1.0f : -16.0f, -0.05f, &seed);
    p.param[SSD_D] = param_make("d", shape->heads, -1.0f, 1.0f, &seed);
    p.param[SSD_DT_BIAS] = param_make("dt_bias", shape->heads, -3.0f, 1.0f, &seed);
    p.state_dtype = LS_F32;
    p.state_bytes = (p.dim * shape->states + shape->heads) * 4;
    p.state_align = 16;
    p.token_work = p.dim * shape->states;
    p.call = ssd_call;
    p.workspace = ssd_workspace;
    p.write_held = ssd_write_held;
    problem_solve(run, &p);
    return p;
}

static ls_ssd_backward_args ssd_backward_args(const problem *p, const grad_operands *o) {
    const ls_ssd_args f = ssd_args(p, &o->in);
    const ls_ssd_backward_args args = {.in_dtype = f.in_dtype,
                                       .x = f.x,
                                       .dt_raw = f.dt_raw,
                                       .b = f.b,
                                       .cc = f.cc,
                                       .x_stride = f.x_stride,
                                       .dt_stride = f.dt_stride,
                                       .b_stride = f.b_stride,
                                       .c_stride = f.c_stride,
                                       .a = f.a,
                                       .dt_bias = f.dt_bias,
                                       .d = f.d,
                                       .dt_min = f.dt_min,
                                       .dt_max = f.dt_max,
                                       .dout = o->dout,
                                       .dout_stride = o->dout_stride,
                                       .dx = o->row[SSD_X],
                                       .ddt = o->row[SSD_DT],
                                       .db = o->row[SSD_B],
                                       .dcc = o->row[SSD_C],
                                       .dx_stride = o->row_stride[SSD_X],
                                       .ddt_stride = o->row_stride[SSD_DT],
                                       .db_stride = o->row_stride[SSD_B],
                                       .dc_stride = o->row_stride[SSD_C],
                                       .ddt_dtype = f.out_dtype,
                                       .da = o->param[SSD_A],
                                       .dd = o->param[SSD_D],
                                       .ddt_bias = o->param[SSD_DT_BIAS],
                                       .rows = f.rows,
                                       .n_heads = f.n_heads,
                                       .head_dim = f.head_dim,
                                       .n_groups = f.n_groups,
                                       .n_states = f.n_states,
                                       .spans = f.spans,
                                       .n_spans = f.n_spans,
                                       .span_rows_max = f.span_rows_max};
    return args;
}

static ls_status ssd_backward_call(const ls_exec *exec, const problem *p, const grad_operands *o, ls_error *err) {
    const ls_ssd_backward_args args = ssd_backward_args(p, o);
    return ls_op_ssd_backward(exec, &args, err);
}

static int64_t ssd_backward_workspace(const problem *p, const grad_operands *o) {
    const ls_ssd_backward_args args = ssd_backward_args(p, o);
    return ls_op_ssd_backward_workspace(&args);
}

static grad_problem ssd_grad_problem(bk_run *run, const ssd_shape *shape, const int64_t *length, int64_t n_seqs,
                                     uint64_t seed) {
    const problem p = ssd_problem(run, shape, length, n_seqs, seed);
    const grad_problem g = {
        .p = p, .row = {[SSD_DT].dtype = p.out.dtype}, .call = ssd_backward_call, .workspace = ssd_backward_workspace};
    return grad_finish(run, g, shape->kind, seed);
}

/* ---- cases ---- */

static void forward_and_back(bk_run *run, const ssd_shape *shape, const int64_t *length, int64_t n_seqs,
                             uint64_t seed) {
    static const int64_t every[] = {2, 5, 8, LS_STATE_EVERY_MAX};
    problem p = ssd_problem(run, shape, length, n_seqs, seed);
    grad_problem g;
    check_cuts(run, &p);
    for (int64_t i = 0; i < BK_COUNT(every); i++)
        check_held(run, &p, every[i],
                   ls_held_floats(every[i], shape->heads, shape->groups, shape->states, shape->dim) * 4);
    problem_free(&p);
    g = ssd_grad_problem(run, shape, length, n_seqs, seed + 1);
    check_packings(run, &g, 3);
}

static void every_shape(bk_run *run) {
    static const int64_t length[] = {3, 1, 34, 2}, heads[] = {1, 2, 3, 5, 8}, dims[] = {1, 7, 16, 33, 64},
                         states[] = {1, 4, 5, 31, 32, 64, 128};
    for (int64_t i = 0; i < BK_COUNT(heads) * BK_COUNT(dims) * BK_COUNT(states); i++) {
        const int64_t n = heads[i % BK_COUNT(heads)];
        const ssd_shape shape = {n,
                                 dims[i / BK_COUNT(heads) % BK_COUNT(dims)],
                                 n % 2 == 0 && i % 3 == 0 ? 2 : 1,
                                 states[i / BK_COUNT(heads) / BK_COUNT(dims)],
                                 (int)(i * 7 % SSD_OPTIONS),
                                 PLAIN};
        if (i % bk_size(run, 29, 7, 1) != 0 || (!run->cuda && shape.dim * shape.states > 2048)) continue;
        forward_and_back(run, &shape, length, bk_size(run, 2, 4, 4), (uint64_t)i + 1);
    }
}

/* Heads of models, few of them: every kernel of prefill, of a token, of the gradient. */
static const ssd_shape models[] = {
    {4, 64, 1, 128, IN_BF16 | OUT_BF16, PLAIN},
    {8, 64, 2, 128, SLOW, PLAIN},
    {3, 64, 1, 128, IN_BF16, PLAIN},
    {4, 80, 1, 128, IN_BF16 | OUT_BF16 | SLOW | LIMITED, PLAIN},
    {8, 80, 1, 128, OUT_BF16, PLAIN},
    {2, 128, 1, 128, IN_BF16 | SLOW, PLAIN},
    {4, 64, 1, 128, IN_BF16, SPECIAL},
    {4, 80, 1, 128, SLOW, SPECIAL},
    {256, 64, 8, 128, IN_BF16 | OUT_BF16 | SLOW, PLAIN},
    {240, 80, 2, 128, IN_BF16 | OUT_BF16, PLAIN},
    {8, 64, 1, 256, IN_BF16 | OUT_BF16 | SLOW, PLAIN},
};

static void heads_of_models(bk_run *run) {
    static const int64_t length[] = {9, 1, 70, 133, 64, 2, 200, 5};
    for (int64_t i = 0; i < bk_size(run, 2, 1, BK_COUNT(models)); i++) {
        const bool large = models[i].heads > 8;
        forward_and_back(run, &models[i], length, bk_size(run, 2, 2, large ? 5 : BK_COUNT(length)), (uint64_t)i + 1000);
    }
}

static void every_length(bk_run *run) {
    static const int64_t length[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 63, 64, 65, 100, 127, 128, 129, 300};
    static const ssd_shape shapes[] = {{4, 64, 1, 128, IN_BF16 | OUT_BF16, PLAIN},
                                       {4, 80, 1, 128, SLOW, PLAIN},
                                       {2, 128, 1, 128, IN_BF16, PLAIN},
                                       {5, 9, 1, 17, SLOW, PLAIN}};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        if (!run->cuda && i < 3) continue;
        forward_and_back(run, &shapes[i], length, bk_size(run, 5, BK_COUNT(length), BK_COUNT(length)),
                         (uint64_t)i + 2000);
    }
}

static void for_each_serving(bk_run *run, void (*check)(bk_run *, const problem *)) {
    static const ssd_shape serving[] = {
        {3, 5, 1, 7, 0, PLAIN}, {4, 64, 1, 128, IN_BF16 | OUT_BF16, PLAIN}, {4, 80, 1, 128, IN_BF16, PLAIN}};
    int64_t length[SEQS_MAX];
    for (int64_t s = 0; s < SEQS_MAX; s++) length[s] = 1 + (s * 7 + 17) % 20;
    for (int64_t i = 0; i < bk_size(run, 1, 1, BK_COUNT(serving)); i++) {
        problem p = ssd_problem(run, &serving[i], length, SEQS_MAX, (uint64_t)i + 400);
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
    grad_problem g = ssd_grad_problem(run, &models[0], length, bk_size(run, 2, 2, 4), 400);
    check_packings(run, &g, bk_size(run, 3, 3, 60));
}

static void golden_bits(bk_run *run) {
    static const int64_t length[] = {40, 1, 17, 70};
    static const ssd_shape shapes[] = {{4, 64, 1, 128, IN_BF16 | OUT_BF16, PLAIN},
                                       {6, 9, 2, 17, SLOW | LIMITED, PLAIN}};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        problem p = ssd_problem(run, &shapes[i], length, BK_COUNT(length), (uint64_t)i + 500);
        grad_problem g = ssd_grad_problem(run, &shapes[i], length, BK_COUNT(length), (uint64_t)i + 500);
        check_golden(run, &p, &golden_ssd[i]);
        golden_check(run, &g, &golden_ssd_backward[i]);
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
