/* Gradients of the scan and of the convolution on every back end: bits of the CPU contract for every shape, option and
 * packing, from a workspace full of NaN, as often as one asks. */
#include "grad_case.h"
#include "refusal.h"

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

/* ---- problems ---- */

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
