/* Gradients of the scan and of the convolution on every back end: bits of the CPU contract for every shape, option and
 * packing, from a workspace full of NaN, as often as one asks. */
#include "refusal.h"
#include "state_case.h"

#define ROW_GRADS 5

typedef struct grad_operands {
    operands in;
    const void *dout;
    int64_t dout_stride;
    void *row[ROW_GRADS];
    float *param[PARAMS_MAX];
    int64_t row_stride[ROW_GRADS];
} grad_operands;

/* A problem, the gradient of its output, and the gradients of its inputs by the contract. Gradients of parameters
 * depend on which sequences share a call and in which order, so they belong to an arrangement. */
typedef struct grad_problem grad_problem;
struct grad_problem {
    problem p;
    tensor dout, row[ROW_GRADS];
    bool tight; /* rows of gradients have no stride */
    ls_status (*call)(const ls_exec *exec, const problem *p, const grad_operands *o, ls_error *err);
    int64_t (*workspace)(const problem *p, const grad_operands *o);
};

static const char *const param_names[] = {"gradient of parameter 0", "gradient of parameter 1",
                                          "gradient of parameter 2"};

/* ---- the ops ---- */

/* Types of gradients: where those of dt and z are bf16, most have du, db and dcc or dout in it as well. */
static ls_dtype scan_du_dtype(const problem *p) {
    return p->out.dtype == LS_BF16 && p->param[SCAN_D].data != NULL ? LS_BF16 : LS_F32;
}

static ls_dtype scan_dout_dtype(const problem *p) {
    return p->out.dtype == LS_BF16 && !p->activated ? LS_BF16 : LS_F32;
}

static ls_scan_backward_args scan_backward_args(const problem *p, const grad_operands *o) {
    const ls_scan_args f = scan_args(p, &o->in);
    const ls_scan_backward_args args = {.in_dtype = f.in_dtype,
                                        .dt_activated = f.dt_activated,
                                        .u = f.u,
                                        .dt_raw = f.dt_raw,
                                        .b = f.b,
                                        .cc = f.cc,
                                        .z = f.z,
                                        .u_stride = f.u_stride,
                                        .dt_stride = f.dt_stride,
                                        .b_stride = f.b_stride,
                                        .c_stride = f.c_stride,
                                        .z_stride = f.z_stride,
                                        .a2 = f.a2,
                                        .dt_bias = f.dt_bias,
                                        .d = f.d,
                                        .dout = o->dout,
                                        .dout_stride = o->dout_stride,
                                        .du = o->row[SCAN_U],
                                        .ddt = o->row[SCAN_DT],
                                        .db = o->row[SCAN_B],
                                        .dcc = o->row[SCAN_C],
                                        .dz = o->row[SCAN_Z],
                                        .da2 = o->param[SCAN_A2],
                                        .ddt_bias = o->param[SCAN_DT_BIAS],
                                        .dd = o->param[SCAN_D],
                                        .rows = f.rows,
                                        .dim = f.dim,
                                        .n_states = f.n_states,
                                        .spans = f.spans,
                                        .n_spans = f.n_spans,
                                        .span_rows_max = f.span_rows_max,
                                        .out_dtype = f.out_dtype,
                                        .dout_bf16 = scan_dout_dtype(p) == LS_BF16,
                                        .du_bf16 = scan_du_dtype(p) == LS_BF16};
    return args;
}

static ls_status scan_backward_call(const ls_exec *exec, const problem *p, const grad_operands *o, ls_error *err) {
    const ls_scan_backward_args args = scan_backward_args(p, o);
    return ls_op_scan_backward(exec, &args, err);
}

static int64_t scan_backward_workspace(const problem *p, const grad_operands *o) {
    const ls_scan_backward_args args = scan_backward_args(p, o);
    return ls_op_scan_backward_workspace(&args);
}

static ls_conv1d_backward_args conv_backward_args(const problem *p, const grad_operands *o) {
    const ls_conv1d_args f = conv_args(p, &o->in);
    const ls_conv1d_backward_args args = {.x = f.x,
                                          .x_dtype = f.x_dtype,
                                          .state_dtype = f.state_dtype,
                                          .x_stride = f.x_stride,
                                          .w = f.w,
                                          .bias = f.bias,
                                          .dy = o->dout,
                                          .dy_stride = o->dout_stride,
                                          .dx = o->row[0],
                                          .dx_stride = o->row_stride[0],
                                          .dw = o->param[CONV_W],
                                          .dbias = o->param[CONV_BIAS],
                                          .rows = f.rows,
                                          .dim = f.dim,
                                          .d_conv = f.d_conv,
                                          .spans = f.spans,
                                          .n_spans = f.n_spans,
                                          .span_rows_max = f.span_rows_max,
                                          .dx_dtype = f.y_dtype};
    return args;
}

static ls_status conv_backward_call(const ls_exec *exec, const problem *p, const grad_operands *o, ls_error *err) {
    const ls_conv1d_backward_args args = conv_backward_args(p, o);
    return ls_op_conv1d_backward(exec, &args, err);
}

static int64_t conv_backward_workspace(const problem *p, const grad_operands *o) {
    const ls_conv1d_backward_args args = conv_backward_args(p, o);
    return ls_op_conv1d_backward_workspace(&args);
}

/* ---- arrangements ---- */

/* Sequences that share a call, in order, and their parameters' gradients by the contract. */
typedef struct arrangement {
    int64_t order[SEQS_MAX], n;
    float *param[PARAMS_MAX];
} arrangement;

/* The rows of one call of the arrangement: without seed nothing but its tokens. */
static batch arrangement_batch(const problem *p, const arrangement *a, uint64_t seed) {
    batch b = batch_make(p);
    for (int64_t i = 0; i < a->n; i++) {
        const int64_t s = a->order[i];
        if (seed != 0) {
            const uint64_t dice = test_random(&seed);
            if (dice % 2 == 0) batch_span(&b, 1 + (int64_t)(dice / 2 % 3), 0, -1, -1);
            if (dice / 16 % 4 == 0) batch_rows(&b, 2, -1);
            if (dice / 64 % 4 == 0) batch_span(&b, 0, 0, 2, -1);
        }
        batch_span(&b, p->length[s], 0, (int32_t)(seed != 0 ? test_random(&seed) % 1000 : 0), p->first[s]);
    }
    for (int64_t i = 0; i < b.n_spans; i++)
        if (b.spans[i].n_rows > b.longest) b.longest = b.spans[i].n_rows;
    return b;
}

/* Tokens of the arrangement's sequences one after another, from `t` or back to it. */
static void gather(const tensor *t, const batch *b, uint8_t *packed, bool back) {
    for (int64_t row = 0; row < b->n_rows; row++) {
        uint8_t *at = t->data + b->source[row] * row_bytes(t), *to = packed + row * row_bytes(t);
        memcpy(back ? at : to, back ? to : at, (size_t)row_bytes(t));
    }
}

/* One call of the reference, without padding: parameters' gradients, and the rows' where asked for. */
static void arrangement_solve(bk_run *run, const grad_problem *g, arrangement *a, bool rows_too) {
    const problem *p = &g->p;
    batch b = arrangement_batch(p, a, 0);
    uint8_t *in[INPUTS_MAX] = {NULL}, *dout = bk_alloc(b.n_rows * row_bytes(&g->dout));
    grad_operands o;
    ls_exec *exec;
    memset(&o, 0, sizeof o);
    for (int64_t i = 0; i < INPUTS_MAX; i++) {
        if (p->in[i].data == NULL) continue;
        in[i] = bk_alloc(b.n_rows * row_bytes(&p->in[i]));
        gather(&p->in[i], &b, in[i], false);
        o.in.in[i] = in[i];
        o.in.in_stride[i] = p->in[i].cols;
        o.row[i] = bk_alloc(b.n_rows * row_bytes(&g->row[i]));
        o.row_stride[i] = p->in[i].cols;
    }
    for (int64_t i = 0; i < PARAMS_MAX; i++) {
        o.in.param[i] = p->param[i].data;
        a->param[i] = o.param[i] = p->param[i].data == NULL ? NULL : bk_alloc(p->param[i].n * 4);
    }
    gather(&g->dout, &b, dout, false);
    o.dout = dout;
    o.dout_stride = g->dout.cols;
    o.in.rows = b.n_rows;
    o.in.spans = b.spans;
    o.in.n_spans = b.n_spans;
    exec = bk_reference(run, g->workspace(p, &o), 3 * b.n_rows * p->token_work);
    memset(exec->workspace, POISON, (size_t)exec->workspace_bytes);
    bk_reference_done(run, p->name, g->call(exec, p, &o, &run->err));
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        if (a->param[i] != NULL) canon(a->param[i], LS_F32, p->param[i].n);
    for (int64_t i = 0; i < INPUTS_MAX; i++) {
        if (in[i] == NULL) continue;
        canon(o.row[i], g->row[i].dtype, b.n_rows * g->row[i].cols);
        if (rows_too) gather(&g->row[i], &b, o.row[i], true);
        free(o.row[i]);
        free(in[i]);
    }
    free(dout);
    free(b.source);
}

static void arrangement_free(arrangement *a) {
    for (int64_t i = 0; i < PARAMS_MAX; i++) free(a->param[i]);
}

/* All sequences in their order; the one call that g->row comes from. */
static arrangement everything(const grad_problem *g) {
    arrangement a;
    memset(&a, 0, sizeof a);
    a.n = g->p.n_seqs;
    for (int64_t s = 0; s < a.n; s++) a.order[s] = s;
    return a;
}

/* ---- problems ---- */

static grad_problem grad_finish(bk_run *run, grad_problem g, values kind, uint64_t seed) {
    static const char *const names[] = {"gradient of input 0", "gradient of input 1", "gradient of input 2",
                                        "gradient of input 3", "gradient of input 4"};
    arrangement all = everything(&g);
    seed += 1000;
    g.dout = tensor_make(&g.p, "dout", g.dout.dtype, g.p.dim, -1.0f, 1.0f, kind, &seed);
    for (int64_t i = 0; i < ROW_GRADS; i++) {
        g.row[i] = (tensor){names[i], g.row[i].dtype, g.p.in[i].cols, NULL};
        if (g.p.in[i].data != NULL) g.row[i].data = bk_alloc(g.p.tokens * row_bytes(&g.row[i]));
    }
    arrangement_solve(run, &g, &all, true);
    arrangement_free(&all);
    return g;
}

static grad_problem scan_grad_problem(bk_run *run, const scan_shape *shape, const int64_t *length, int64_t n_seqs,
                                      uint64_t seed) {
    const problem p = scan_problem(run, shape, length, n_seqs, seed);
    const ls_dtype rounded = p.out.dtype, du = scan_du_dtype(&p);
    const grad_problem g = {.p = p,
                            .dout = {.dtype = scan_dout_dtype(&p)},
                            .row = {[SCAN_U].dtype = du,
                                    [SCAN_DT].dtype = rounded,
                                    [SCAN_B].dtype = du,
                                    [SCAN_C].dtype = du,
                                    [SCAN_Z].dtype = rounded},
                            .tight = true,
                            .call = scan_backward_call,
                            .workspace = scan_backward_workspace};
    return grad_finish(run, g, shape->kind, seed);
}

static grad_problem conv_grad_problem(bk_run *run, const conv_shape *shape, const int64_t *length, int64_t n_seqs,
                                      uint64_t seed) {
    const grad_problem g = {.p = conv_problem(run, shape, length, n_seqs, seed),
                            .row = {{.dtype = shape->options & Y_BF16 ? LS_BF16 : LS_F32}},
                            .call = conv_backward_call,
                            .workspace = conv_backward_workspace};
    return grad_finish(run, g, shape->kind, seed);
}

static void grad_problem_free(grad_problem *g) {
    problem_free(&g->p);
    free(g->dout.data);
    for (int64_t i = 0; i < ROW_GRADS; i++) free(g->row[i].data);
}

/* ---- calls ---- */

typedef struct grad_rig {
    bk_run *run;
    const grad_problem *g;
    image image;
    ls_fault *record;
} grad_rig;

static grad_rig grad_rig_make(bk_run *run, const grad_problem *g) {
    grad_rig r;
    memset(&r, 0, sizeof r);
    r.run = run;
    r.g = g;
    r.record = record_make(run);
    return r;
}

static void grad_rig_free(grad_rig *r) {
    image_free(&r->image);
    bk_clear(r->run);
}

static grad_operands grad_prepare(grad_rig *r, const arrangement *a, const batch *b, uint64_t seed) {
    const grad_problem *g = r->g;
    const problem *p = &g->p;
    image *m = &r->image;
    const style how = (style)(test_random(&seed) % 4);
    const style out_how = g->tight ? how == TIGHT || how == WIDE ? TIGHT : ODD_TIGHT : how;
    int64_t row_at[ROW_GRADS] = {0}, param_at[PARAMS_MAX] = {0}, dout_at;
    grad_operands o;
    offsets at;
    memset(&o, 0, sizeof o);
    at = image_inputs(m, p, b, how, &seed, &o.in);
    dout_at = image_rows(m, &g->dout, b, false, how, &seed, &o.dout_stride);
    for (int64_t i = 0; i < ROW_GRADS; i++)
        if (g->row[i].data != NULL) row_at[i] = image_rows(m, &g->row[i], b, true, out_how, &seed, &o.row_stride[i]);
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        if (a->param[i] != NULL)
            param_at[i] = image_flat(m, param_names[i], a->param[i], p->param[i].n * 4, true, 4 * i);
    image_upload(r->run, m);
    image_address(m, p, &at, &o.in);
    o.dout = m->device + dout_at;
    for (int64_t i = 0; i < ROW_GRADS; i++) o.row[i] = g->row[i].data == NULL ? NULL : m->device + row_at[i];
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        o.param[i] = a->param[i] == NULL ? NULL : (float *)(void *)(m->device + param_at[i]);
    return o;
}

/* The call on the back end, from a workspace of NaN. */
static bool grad_call(grad_rig *r, const grad_operands *o, bool record, char *why) {
    bk_run *run = r->run;
    ls_status status;
    bk_before_call(run, r->g->workspace(&r->g->p, o));
    if (ls_device_fill(&run->exec, run->exec.workspace, POISON, run->exec.workspace_bytes, &run->err) != LS_OK)
        bk_die(run, "workspace");
    run->exec.fault = record && run->cuda ? r->record : NULL;
    status = r->g->call(&run->exec, &r->g->p, o, &run->err);
    if (status == LS_OK && run->exec.fault != NULL) status = ls_fault_take(&run->exec, &run->err);
    run->exec.fault = NULL;
    if (status != LS_OK) snprintf(why, WHY_MAX, "%s: %.300s", ls_status_name(status), run->err.text);
    bk_after_call(run);
    return status == LS_OK;
}

/* One call of the arrangement; false, and why, where a bit differs from the contract. */
static bool grad_drive(grad_rig *r, const arrangement *a, uint64_t seed, char *why) {
    static const cut bounds[] = {{WHOLE, PACKED, BOUND_EXACT, false, false, 0},
                                 {WHOLE, PACKED, BOUND_LOOSE, false, true, 0},
                                 {WHOLE, PACKED, BOUND_OPEN, false, true, 0}};
    const cut *bound = &bounds[seed % BK_COUNT(bounds)];
    batch b = arrangement_batch(&r->g->p, a, seed);
    grad_operands o = grad_prepare(r, a, &b, seed + 1);
    bool good;
    o.in.span_rows_max = bound_of(bound, &b);
    good = grad_call(r, &o, bound->record, why) && image_check(r->run, &r->image, &b, why);
    free(b.source);
    return good;
}

static void grad_check(grad_rig *r, arrangement *a, uint64_t seed) {
    char why[WHY_MAX] = "";
    if (a->param[0] == NULL) arrangement_solve(r->run, r->g, a, false);
    if (!grad_drive(r, a, seed, why))
        bk_fail(r->run, "gradients of %s, %lld of %lld sequences, seed %llu: %s", r->g->p.name, (long long)a->n,
                (long long)r->g->p.n_seqs, (unsigned long long)seed, why);
}

/* Packed with and without padding, in another order, in pairs and alone: rows' gradients are those of the one call of
 * everything, parameters' those of the same sequences on the reference. `times` packed runs must be equal. */
static void check_packings(bk_run *run, grad_problem *g, int64_t times) {
    grad_rig r = grad_rig_make(run, g);
    arrangement all = everything(g);
    for (int64_t i = 0; i < times; i++) grad_check(&r, &all, (uint64_t)i / 3 + 1);
    arrangement_free(&all);
    all = everything(g);
    for (int64_t s = 0; s < all.n; s++) all.order[s] = all.n - 1 - s;
    grad_check(&r, &all, 40);
    arrangement_free(&all);
    for (int64_t s = 0; s < g->p.n_seqs; s++) {
        arrangement few = everything(g);
        few.order[0] = s;
        few.order[1] = (s + 1) % g->p.n_seqs;
        few.n = g->p.n_seqs > 1 ? 1 + s % 2 : 1;
        grad_check(&r, &few, 50 + (uint64_t)s);
        arrangement_free(&few);
    }
    grad_rig_free(&r);
    grad_problem_free(g);
}

/* ---- cases ---- */

static void every_scan_shape(bk_run *run) {
    static const int64_t dims[] = {1, 7, 8, 9, 33, 64, 65, 128},
                         states[] = {1, 2, 3, 4, 5, 8, 13, 14, 15, 16, 17, 32, 64, 256};
    static const int64_t length[] = {3, 1, 34, 2};
    for (int64_t i = 0; i < BK_COUNT(dims) * BK_COUNT(states); i++) {
        const scan_shape shape = {dims[i / BK_COUNT(states)], states[i % BK_COUNT(states)],
                                  (int)(i * 29 % SCAN_OPTIONS), (values)(i % 3 == 0 ? BOUNDED : PLAIN)};
        grad_problem g;
        if (run->small && shape.dim * shape.n_states > 300) continue;
        g = scan_grad_problem(run, &shape, length, bk_size(run, 2, 4, 4), (uint64_t)i + 1);
        check_packings(run, &g, 3);
    }
}

static void wide_scans(bk_run *run) {
    static const int64_t length[] = {17, 2, 33, 1, 100, 300};
    static const scan_shape list[] = {{2560, 16, IN_BF16, PLAIN}, {5120, 16, OUT_BF16, BOUNDED},
                                      {2560, 1, 0, PLAIN},        {5120, 5, IN_BF16, PLAIN},
                                      {2560, 64, NO_GATE, PLAIN}, {5120, 16, IN_BF16, SPECIAL}};
    for (int64_t i = 0; i < bk_size(run, 0, BK_COUNT(list), BK_COUNT(list)); i++) {
        grad_problem g = scan_grad_problem(run, &list[i], length, bk_size(run, 1, 4, 6), (uint64_t)i + 100);
        check_packings(run, &g, 3);
    }
}

static const int64_t lengths[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 300};

static void every_scan_length(bk_run *run) {
    static const scan_shape list[] = {
        {65, 16, IN_BF16, PLAIN}, {128, 16, 0, PLAIN}, {33, 5, IN_BF16, BOUNDED}, {64, 17, 0, SPECIAL}};
    for (int64_t i = 0; i < bk_size(run, 1, BK_COUNT(list), BK_COUNT(list)); i++) {
        grad_problem g = scan_grad_problem(run, &list[i], lengths,
                                           bk_size(run, 6, BK_COUNT(lengths), BK_COUNT(lengths)), (uint64_t)i + 200);
        check_packings(run, &g, 3);
    }
}

static void every_scan_option(bk_run *run) {
    static const int64_t length[] = {5, 18, 2, 33}, shapes[][2] = {{33, 4}, {64, 16}, {9, 17}};
    for (int64_t i = 0; i < 3 * SCAN_OPTIONS; i++) {
        const scan_shape shape = {shapes[i % 3][0], shapes[i % 3][1], (int)(i % SCAN_OPTIONS),
                                  (values)(i / SCAN_OPTIONS)};
        grad_problem g;
        if (run->small && i % 13 != 0) continue;
        g = scan_grad_problem(run, &shape, length, BK_COUNT(length), (uint64_t)i + 300);
        check_packings(run, &g, 3);
    }
}

static void borders_of_the_decay(bk_run *run) {
    static const int64_t length[] = {5, 18, 2, 33};
    for (int64_t i = 0; i < BK_COUNT(border_shapes); i++) {
        grad_problem g = scan_grad_problem(run, &border_shapes[i], length, BK_COUNT(length), (uint64_t)i + 380);
        check_packings(run, &g, 3);
    }
}

static void every_conv_width(bk_run *run) {
    static const int64_t length[] = {3, 1, 18, 2, 70, 5}, dims[] = {1, 7, 8, 33, 65};
    for (int64_t taps = 1; taps <= LS_CONV_WIDTH_MAX; taps++)
        for (int64_t i = 0; i < bk_size(run, 1, BK_COUNT(dims), BK_COUNT(dims)); i++) {
            const conv_shape shape = {dims[(i + taps) % BK_COUNT(dims)], taps, (int)((taps * 5 + i * 3) % CONV_OPTIONS),
                                      (values)(i % 2)};
            grad_problem g = conv_grad_problem(run, &shape, length, BK_COUNT(length), (uint64_t)(taps * 10 + i));
            check_packings(run, &g, 3);
        }
}

static void every_conv_dim(bk_run *run) {
    static const int64_t dims[] = {1, 7, 8, 9, 33, 64, 65, 128, 2560, 5120};
    for (int64_t i = 0; i < 2 * BK_COUNT(dims); i++) {
        const conv_shape shape = {dims[i / 2], 4, (int)(i * 7 % CONV_OPTIONS), (values)(i % 2)};
        grad_problem g;
        if (run->small && shape.dim > 65) continue;
        g = conv_grad_problem(run, &shape, lengths, BK_COUNT(lengths), (uint64_t)i + 200);
        check_packings(run, &g, 3);
    }
}

static void repeated_runs(bk_run *run) {
    static const scan_shape scan = {65, 16, IN_BF16, PLAIN};
    static const conv_shape conv = {65, 4, X_BF16 | STATE_BF16, PLAIN};
    grad_problem g = scan_grad_problem(run, &scan, lengths, 9, 400);
    check_packings(run, &g, bk_size(run, 3, 60, 60));
    g = conv_grad_problem(run, &conv, lengths, 9, 401);
    check_packings(run, &g, bk_size(run, 3, 60, 60));
}

/* Nothing but padding: parameters' gradients are written, as +0. */
static void nothing_to_sum(bk_run *run) {
    static const int64_t length[] = {4};
    static const scan_shape scan = {33, 5, 0, PLAIN};
    static const conv_shape conv = {33, 4, 0, PLAIN};
    for (int k = 0; k < 2; k++) {
        grad_problem g =
            k == 0 ? scan_grad_problem(run, &scan, length, 1, 1) : conv_grad_problem(run, &conv, length, 1, 1);
        grad_rig r = grad_rig_make(run, &g);
        arrangement none = everything(&g);
        batch b = batch_make(&g.p);
        grad_operands o;
        char why[WHY_MAX] = "";
        arrangement_solve(run, &g, &none, false);
        for (int64_t i = 0; i < PARAMS_MAX; i++)
            for (int64_t j = 0; j < g.p.param[i].n; j++) none.param[i][j] = 0.0f;
        batch_span(&b, 3, 0, -1, -1);
        batch_span(&b, 0, 0, 5, -1);
        batch_rows(&b, 1, -1);
        o = grad_prepare(&r, &none, &b, 1);
        if (!grad_call(&r, &o, false, why) || !image_check(run, &r.image, &b, why))
            bk_fail(run, "%s: %s", g.p.name, why);
        free(b.source);
        arrangement_free(&none);
        grad_rig_free(&r);
        grad_problem_free(&g);
    }
}

static void golden_check(bk_run *run, grad_problem *g, const golden *recorded) {
    golden now = {BK_HASH_START, BK_HASH_START};
    arrangement all = everything(g);
    arrangement_solve(run, g, &all, false);
    for (int64_t i = 0; i < ROW_GRADS; i++)
        if (g->row[i].data != NULL) now.out = bk_hash(now.out, g->row[i].data, g->p.tokens * row_bytes(&g->row[i]));
    for (int64_t i = 0; i < PARAMS_MAX; i++)
        if (all.param[i] != NULL) now.rest = bk_hash(now.rest, all.param[i], g->p.param[i].n * 4);
    golden_compare(run, g->p.name, &now, recorded);
    arrangement_free(&all);
    check_packings(run, g, 3);
}

static void golden_bits(bk_run *run) {
    static const int64_t length[] = {40, 1, 17, 64};
    static const scan_shape scans[] = {{33, 5, 0, PLAIN},
                                       {128, 16, IN_BF16, PLAIN},
                                       {64, 16, NO_GATE | NO_D | NO_DT_BIAS | DT_ACTIVATED, PLAIN},
                                       {65, 17, IN_BF16, BOUNDED},
                                       {33, 1, AT_BORDERS, BORDERS}};
    static const conv_shape convs[] = {{33, 4, 0, PLAIN},
                                       {128, 4, X_BF16 | STATE_BF16, PLAIN},
                                       {65, 2, STATE_BF16 | NO_BIAS, PLAIN},
                                       {64, 16, 0, PLAIN}};
    for (int64_t i = 0; i < BK_COUNT(scans); i++) {
        grad_problem g = scan_grad_problem(run, &scans[i], length, BK_COUNT(length), (uint64_t)i + 500);
        golden_check(run, &g, &golden_scan_backward[i]);
    }
    for (int64_t i = 0; i < BK_COUNT(convs); i++) {
        grad_problem g = conv_grad_problem(run, &convs[i], length, BK_COUNT(length), (uint64_t)i + 600);
        golden_check(run, &g, &golden_conv1d_backward[i]);
    }
}

/* The order of sequences shows in the parameters' gradients, and a row of another sequence in the rows': the comparison
 * of this program tells them apart. */
static void differences_are_caught(bk_run *run) {
    static const int64_t length[] = {5, 18, 5, 33};
    static const scan_shape scan = {33, 16, 0, PLAIN};
    static const conv_shape conv = {33, 4, 0, PLAIN};
    for (int k = 0; k < 2; k++) {
        grad_problem g =
            k == 0 ? scan_grad_problem(run, &scan, length, 4, 1) : conv_grad_problem(run, &conv, length, 4, 1);
        grad_rig r = grad_rig_make(run, &g);
        arrangement there = everything(&g), back = everything(&g);
        char why[WHY_MAX] = "";
        for (int64_t s = 0; s < back.n; s++) back.order[s] = back.n - 1 - s;
        arrangement_solve(run, &g, &back, false);
        memcpy(there.param, back.param, sizeof there.param);
        if (grad_drive(&r, &there, 1, why)) bk_fail(run, "%s: the order of sequences was not noticed", g.p.name);
        if (strstr(why, "parameter") == NULL) bk_fail(run, "%s: %s", g.p.name, why);
        if (!grad_drive(&r, &back, 1, why)) bk_fail(run, "%s: %s", g.p.name, why);
        memcpy(g.row[0].data + g.p.first[2] * row_bytes(&g.row[0]), g.row[0].data, (size_t)row_bytes(&g.row[0]));
        if (grad_drive(&r, &back, 1, why)) bk_fail(run, "%s: a wrong row was not noticed", g.p.name);
        arrangement_free(&back);
        grad_rig_free(&r);
        grad_problem_free(&g);
    }
}

/* ---- refusals ---- */

/* A call of everything that is right, with padding. */
typedef struct whole_call {
    grad_rig rig;
    batch batch;
    grad_operands operands;
} whole_call;

static void whole_call_make(whole_call *c, bk_run *run, const grad_problem *g, arrangement *all) {
    memset(c, 0, sizeof *c);
    c->rig = grad_rig_make(run, g);
    *all = everything(g);
    arrangement_solve(run, g, all, false);
    c->batch = arrangement_batch(&g->p, all, 0);
    c->operands = grad_prepare(&c->rig, all, &c->batch, 1);
    c->operands.in.span_rows_max = c->batch.longest;
}

static bool whole_call_untouched(void *context, char *why) {
    whole_call *c = context;
    image before = c->rig.image;
    before.expect = before.host;
    return image_check(c->rig.run, &before, &c->batch, why);
}

/* Spans of whole sequences that are wrong in device memory, in place of span 1, which has the rows 5 and on. */
static void check_spans(refusal *r, whole_call *c) {
    const int64_t rows = c->operands.in.rows;
    image *m = &c->rig.image;
    ls_span *span = (ls_span *)(void *)(m->host + m->sections[0].at) + 1;
    const ls_span good = *span;
    const struct {
        ls_span span;
        const char *name; /* of the value; a row and a count are not told apart */
        int64_t value;
    } list[] = {
        {{5, 2, 1, 1, 0}, "position ", 1},
        {{5, 2, -1, 1, 0}, "position ", -1},
        {{4, 2, 0, 1, 0}, "", 4},
        {{-1, 2, 0, 1, 0}, "", -1},
        {{5, -2, 0, 1, 0}, "", -2},
        {{rows - 1, 2, 0, 1, 0}, "", rows - 1},
        {{INT64_MAX, 2, 0, -1, 0}, "", INT64_MAX},
        {{5, 19, 0, 1, 0}, "", 19},
    };
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        char value[60];
        const char *words[] = {"span 1", value};
        snprintf(value, sizeof value, "%s%lld", list[i].name, (long long)list[i].value);
        *span = list[i].span;
        image_upload(r->run, m);
        check_fault(r, c->rig.record, words);
        *span = good;
    }
    image_upload(r->run, m);
}

static ls_status any_scan(const ls_exec *exec, const void *args, ls_error *err) {
    return ls_op_scan_backward(exec, args, err);
}

static ls_status any_conv1d(const ls_exec *exec, const void *args, ls_error *err) {
    return ls_op_conv1d_backward(exec, args, err);
}

/* All refusals of an op; at the end the call as it was succeeds. */
static void check_refusals(bk_run *run, grad_problem *g, refusal *r, whole_call *c, arrangement *all, const spoil *list,
                           int64_t n) {
    char why[WHY_MAX] = "";
    r->run = run;
    r->workspace_bytes = g->workspace(&g->p, &c->operands);
    r->untouched = whole_call_untouched;
    r->context = c;
    check_spoils(r, list, n);
    check_workspace(r);
    check_spans(r, c);
    if (!grad_call(&c->rig, &c->operands, true, why) || !image_check(run, &c->rig.image, &c->batch, why))
        bk_fail(run, "%s after refusals: %s", r->op, why);
    free(c->batch.source);
    arrangement_free(all);
    grad_rig_free(&c->rig);
    grad_problem_free(g);
}

static const int64_t refused_lengths[] = {5, 18, 2, 3};

static void scan_refusals(bk_run *run) {
    static const spoil list[] = {
        NOT_NULL(ls_scan_backward_args, u),
        NOT_NULL(ls_scan_backward_args, dt_raw),
        NOT_NULL(ls_scan_backward_args, b),
        NOT_NULL(ls_scan_backward_args, cc),
        NOT_NULL(ls_scan_backward_args, a2),
        NOT_NULL(ls_scan_backward_args, dout),
        NOT_NULL(ls_scan_backward_args, du),
        NOT_NULL(ls_scan_backward_args, ddt),
        NOT_NULL(ls_scan_backward_args, db),
        NOT_NULL(ls_scan_backward_args, dcc),
        NOT_NULL(ls_scan_backward_args, da2),
        NOT_NULL(ls_scan_backward_args, z),
        NOT_NULL(ls_scan_backward_args, dz),
        NOT_NULL(ls_scan_backward_args, dt_bias),
        NOT_NULL(ls_scan_backward_args, ddt_bias),
        {{"d ", "null"}, offsetof(ls_scan_backward_args, d), WORD, 0},
        NOT_NULL(ls_scan_backward_args, dd),
        {{"spans", "scan"}, offsetof(ls_scan_backward_args, spans), WORD, 0},
        {{"u", "GPU"}, offsetof(ls_scan_backward_args, u), HOST, 0},
        {{"da2", "GPU"}, offsetof(ls_scan_backward_args, da2), HOST, 0},
        {{"inputs f16", "scan"}, offsetof(ls_scan_backward_args, in_dtype), TYPE, LS_F16},
        {{"outputs f16", "scan"}, offsetof(ls_scan_backward_args, out_dtype), TYPE, LS_F16},
        {{"u", "stride 32"}, offsetof(ls_scan_backward_args, u_stride), WORD, 32},
        {{"dt_raw", "stride 32"}, offsetof(ls_scan_backward_args, dt_stride), WORD, 32},
        {{"b", "stride 4"}, offsetof(ls_scan_backward_args, b_stride), WORD, 4},
        {{"cc", "stride 4"}, offsetof(ls_scan_backward_args, c_stride), WORD, 4},
        {{"z", "stride 32"}, offsetof(ls_scan_backward_args, z_stride), WORD, 32},
        {{"dout", "stride 32"}, offsetof(ls_scan_backward_args, dout_stride), WORD, 32},
        FITS(ls_scan_backward_args, "u", u_stride),
        FITS(ls_scan_backward_args, "dt_raw", dt_stride),
        FITS(ls_scan_backward_args, "b", b_stride),
        FITS(ls_scan_backward_args, "cc", c_stride),
        FITS(ls_scan_backward_args, "z", z_stride),
        FITS(ls_scan_backward_args, "dout", dout_stride),
        {{"states", "0"}, offsetof(ls_scan_backward_args, n_states), WORD, 0},
        {{"states", "257"}, offsetof(ls_scan_backward_args, n_states), WORD, 257},
        {{"span", "-1"}, offsetof(ls_scan_backward_args, span_rows_max), WORD, -1},
    };
    static const scan_shape shape = {33, 5, 0, PLAIN};
    grad_problem g = scan_grad_problem(run, &shape, refused_lengths, BK_COUNT(refused_lengths), 1);
    arrangement all;
    whole_call c;
    whole_call_make(&c, run, &g, &all);
    {
        const ls_scan_backward_args args = scan_backward_args(&g.p, &c.operands);
        refusal r = {.op = "scan backward", .call = any_scan, .args = &args, .args_bytes = sizeof args};
        check_refusals(run, &g, &r, &c, &all, list, BK_COUNT(list));
    }
}

static void conv1d_refusals(bk_run *run) {
    static const spoil list[] = {
        NOT_NULL(ls_conv1d_backward_args, x),
        NOT_NULL(ls_conv1d_backward_args, w),
        NOT_NULL(ls_conv1d_backward_args, dy),
        NOT_NULL(ls_conv1d_backward_args, dx),
        NOT_NULL(ls_conv1d_backward_args, dw),
        NOT_NULL(ls_conv1d_backward_args, bias),
        NOT_NULL(ls_conv1d_backward_args, dbias),
        {{"spans", "conv1d"}, offsetof(ls_conv1d_backward_args, spans), WORD, 0},
        {{"x", "GPU"}, offsetof(ls_conv1d_backward_args, x), HOST, 0},
        {{"x f16", "conv1d"}, offsetof(ls_conv1d_backward_args, x_dtype), TYPE, LS_F16},
        {{"state f16", "conv1d"}, offsetof(ls_conv1d_backward_args, state_dtype), TYPE, LS_F16},
        {{"dx f16", "conv1d"}, offsetof(ls_conv1d_backward_args, dx_dtype), TYPE, LS_F16},
        {{"x", "stride 32"}, offsetof(ls_conv1d_backward_args, x_stride), WORD, 32},
        {{"dy", "stride 32"}, offsetof(ls_conv1d_backward_args, dy_stride), WORD, 32},
        {{"dx", "stride 32"}, offsetof(ls_conv1d_backward_args, dx_stride), WORD, 32},
        FITS(ls_conv1d_backward_args, "x", x_stride),
        FITS(ls_conv1d_backward_args, "dy", dy_stride),
        FITS(ls_conv1d_backward_args, "dx", dx_stride),
        {{"width", "0"}, offsetof(ls_conv1d_backward_args, d_conv), WORD, 0},
        {{"width", "17"}, offsetof(ls_conv1d_backward_args, d_conv), WORD, 17},
        {{"span", "-1"}, offsetof(ls_conv1d_backward_args, span_rows_max), WORD, -1},
    };
    static const conv_shape shape = {33, 4, STATE_BF16, PLAIN};
    grad_problem g = conv_grad_problem(run, &shape, refused_lengths, BK_COUNT(refused_lengths), 1);
    arrangement all;
    whole_call c;
    whole_call_make(&c, run, &g, &all);
    {
        const ls_conv1d_backward_args args = conv_backward_args(&g.p, &c.operands);
        refusal r = {.op = "conv1d backward", .call = any_conv1d, .args = &args, .args_bytes = sizeof args};
        check_refusals(run, &g, &r, &c, &all, list, BK_COUNT(list));
    }
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"every scan shape", every_scan_shape, BK_ANYWHERE},
        {"wide scans", wide_scans, BK_ANYWHERE},
        {"every scan length", every_scan_length, BK_ANYWHERE},
        {"every scan option", every_scan_option, BK_ANYWHERE},
        {"borders of the decay", borders_of_the_decay, BK_ANYWHERE},
        {"every convolution width", every_conv_width, BK_ANYWHERE},
        {"every convolution dim", every_conv_dim, BK_ANYWHERE},
        {"repeated runs", repeated_runs, BK_ANYWHERE},
        {"nothing to sum", nothing_to_sum, BK_ANYWHERE},
        {"golden bits", golden_bits, BK_ANYWHERE},
        {"differences are caught", differences_are_caught, BK_ANYWHERE},
        {"scan refusals", scan_refusals, BK_ANYWHERE},
        {"conv1d refusals", conv1d_refusals, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
