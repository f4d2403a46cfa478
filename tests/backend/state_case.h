/* Problems of the ops with state, scan and conv1d, and what every one of them must survive: all cuts, all batches,
 * repetition, graphs, streams. */
#ifndef LS_TESTS_STATE_CASE_H
#define LS_TESTS_STATE_CASE_H

#include <math.h>

#include "golden_state.h"
#include "num/expf.h"
#include "num/half.h"
#include "spans.h"

/* ---- values ---- */

/* PLAIN: every decay in range. SPECIAL: odd sequences hold NaN, infinities, denormals and huge values next to even ones
 * that do not. BOUNDED: decays beyond 2^-126 and 2^127 here and there. BORDERS: most decays at these borders or next to
 * them, where inputs of 0 let them show; for steps that come activated and without bias. */
typedef enum values { PLAIN, SPECIAL, BOUNDED, BORDERS } values;

/* Mostly plain; sometimes NaN of either sign and any payload, infinities, zeros, denormals, huge and tiny values. */
static inline float special_value(uint64_t *seed) {
    const uint64_t dice = test_random(seed);
    const uint32_t sign = (uint32_t)(dice >> 63) << 31, bits = (uint32_t)(dice >> 32) & 0x007FFFFFu;
    switch (dice % 300) {
        case 0: return ls_from_bits(sign | 0x7F800000u | bits | 1u);
        case 1: return ls_from_bits(sign | 0x7F800000u);
        case 2: return ls_from_bits(sign | 0x7F7FFFFFu);
        default: break;
    }
    switch (dice % 16) {
        case 3: return ls_from_bits(sign);
        case 4: return ls_from_bits(sign | bits);
        case 5: return ls_from_bits(sign | 0x1F800000u | bits);
        case 6: return ls_from_bits(sign | 0x5D000000u | bits);
        case 7: return ls_from_bits(sign | 0x00800000u | bits);
        default: return test_uniform(seed, -1.0f, 1.0f);
    }
}

static inline void tensor_put(const tensor *t, int64_t row, int64_t col, float x) {
    const uint16_t half = ls_f32_to_bf16(x);
    uint8_t *at = t->data + (row * t->cols + col) * ls_dtype_bytes(t->dtype);
    if (t->dtype == LS_F32)
        memcpy(at, &x, sizeof x);
    else
        memcpy(at, &half, sizeof half);
}

static inline float tensor_get(const tensor *t, int64_t row, int64_t col) {
    const uint8_t *at = t->data + (row * t->cols + col) * ls_dtype_bytes(t->dtype);
    uint16_t half;
    float x;
    if (t->dtype == LS_F32) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    memcpy(&half, at, sizeof half);
    return ls_bf16_to_f32(half);
}

static inline tensor tensor_make(const problem *p, const char *name, ls_dtype dtype, int64_t cols, float low,
                                 float high, values kind, uint64_t *seed) {
    tensor t = {name, dtype, cols, NULL};
    t.data = bk_alloc(p->tokens * row_bytes(&t));
    for (int64_t s = 0; s < p->n_seqs; s++)
        for (int64_t i = 0; i < p->length[s] * cols; i++)
            tensor_put(&t, p->first[s] + i / cols, i % cols,
                       kind == SPECIAL && s % 2 == 1 ? special_value(seed) : test_uniform(seed, low, high));
    return t;
}

static inline param param_make(const char *name, int64_t n, float low, float high, uint64_t *seed) {
    param q = {name, n, NULL};
    q.data = bk_alloc(n * 4);
    for (int64_t i = 0; i < n; i++) q.data[i] = test_uniform(seed, low, high);
    return q;
}

static inline void problem_sequences(problem *p, const int64_t *length, int64_t n_seqs) {
    memset(p, 0, sizeof *p);
    p->n_seqs = n_seqs;
    for (int64_t s = 0; s < n_seqs; p->tokens += length[s++]) {
        p->length[s] = length[s];
        p->first[s] = p->tokens;
    }
}

/* ---- scan ---- */

enum { IN_BF16 = 1, OUT_BF16 = 2, NO_GATE = 4, NO_D = 8, NO_DT_BIAS = 16, DT_ACTIVATED = 32, SCAN_OPTIONS = 64 };
enum { SCAN_U, SCAN_DT, SCAN_B, SCAN_C, SCAN_Z };
enum { SCAN_A2, SCAN_D, SCAN_DT_BIAS };

/* Shapes for BORDERS: with few states a decay shows in the output too. */
#define AT_BORDERS (DT_ACTIVATED | NO_DT_BIAS | NO_D)

typedef struct scan_shape {
    int64_t dim, n_states;
    int options;
    values kind;
} scan_shape;

static inline ls_scan_args scan_args(const problem *p, const operands *o) {
    const ls_scan_args args = {.in_dtype = p->in[SCAN_U].dtype,
                               .out_dtype = p->out.dtype,
                               .dt_activated = p->activated,
                               .u = o->in[SCAN_U],
                               .dt_raw = o->in[SCAN_DT],
                               .b = o->in[SCAN_B],
                               .cc = o->in[SCAN_C],
                               .z = o->in[SCAN_Z],
                               .out = o->out,
                               .u_stride = o->in_stride[SCAN_U],
                               .dt_stride = o->in_stride[SCAN_DT],
                               .b_stride = o->in_stride[SCAN_B],
                               .c_stride = o->in_stride[SCAN_C],
                               .z_stride = o->in_stride[SCAN_Z],
                               .out_stride = o->out_stride,
                               .a2 = o->param[SCAN_A2],
                               .dt_bias = o->param[SCAN_DT_BIAS],
                               .d = o->param[SCAN_D],
                               .rows = o->rows,
                               .dim = p->dim,
                               .n_states = p->width,
                               .state = o->pool,
                               .spans = o->spans,
                               .n_spans = o->n_spans,
                               .span_rows_max = o->span_rows_max};
    return args;
}

static inline ls_status scan_call(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    const ls_scan_args args = scan_args(p, o);
    return ls_op_scan(exec, &args, err);
}

static inline int64_t scan_workspace(const problem *p, const operands *o) {
    const ls_scan_args args = scan_args(p, o);
    return ls_op_scan_workspace(&args);
}

/* The last products with a decay of their own, the first without, and the ones inside. */
static const float scan_borders[] = {-126.0f,        -0x1.f80002p+6f, -0x1.f7fffep+6f, 127.0f,
                                     0x1.fc0002p+6f, 0x1.fbfffep+6f,  -INFINITY};
/* Steps that leave the range in which a decay needs no clamp; the first one also before softplus. */
static const float scan_steps[] = {14.0f, -9.0f, 0.0f, 1.0f};

static inline void scan_bound(problem *p, uint64_t *seed) {
    for (int64_t i = 0; i < p->dim * p->width; i++) {
        const uint64_t dice = test_random(seed);
        if (dice % 64 < 2) p->param[SCAN_A2].data[i] = scan_borders[dice / 64 % BK_COUNT(scan_borders)];
        if (dice % 512 == 2) p->param[SCAN_A2].data[i] = 20.0f;
    }
    /* A NaN that is not the last of its neighbours. */
    if (p->width % 8 == 0) p->param[SCAN_A2].data[p->dim * p->width / 16 * 8] = NAN;
    for (int64_t s = 1; s < p->n_seqs; s += 2)
        for (int64_t i = 0; i < p->length[s] * p->dim; i++) {
            const uint64_t dice = test_random(seed);
            if (dice % 32 == 0)
                tensor_put(&p->in[SCAN_DT], p->first[s] + i / p->dim, i % p->dim,
                           scan_steps[p->activated ? dice / 32 % BK_COUNT(scan_steps) : 0]);
        }
}

static inline void scan_at_borders(problem *p, uint64_t *seed) {
    for (int64_t i = 0; i < p->dim * p->width; i++) {
        const uint64_t dice = test_random(seed);
        if (dice % 8 > 0) p->param[SCAN_A2].data[i] = scan_borders[dice / 8 % BK_COUNT(scan_borders)];
    }
    for (int64_t i = 0; i < p->tokens * p->dim; i++) {
        const uint64_t dice = test_random(seed);
        tensor_put(&p->in[SCAN_DT], i / p->dim, i % p->dim,
                   dice % 4 > 0 ? 1.0f : scan_steps[dice / 4 % BK_COUNT(scan_steps)]);
        if (dice / 64 % 4 > 0) tensor_put(&p->in[SCAN_U], i / p->dim, i % p->dim, 0.0f);
    }
}

static inline problem scan_problem(bk_run *run, const scan_shape *shape, const int64_t *length, int64_t n_seqs,
                                   uint64_t seed) {
    const int64_t dim = shape->dim, n = shape->n_states;
    const int options = shape->options;
    const ls_dtype in = options & IN_BF16 ? LS_BF16 : LS_F32;
    problem p;
    problem_sequences(&p, length, n_seqs);
    snprintf(p.name, sizeof p.name, "scan dim %lld states %lld in %s out %s%s%s%s%s", (long long)dim, (long long)n,
             ls_dtype_name(in), options & OUT_BF16 ? "bf16" : "f32", options & NO_GATE ? ", no z" : "",
             options & NO_D ? ", no d" : "", options & NO_DT_BIAS ? ", no bias" : "",
             options & DT_ACTIVATED ? ", dt activated" : "");
    p.dim = dim;
    p.width = n;
    p.activated = (options & DT_ACTIVATED) != 0;
    p.in[SCAN_U] = tensor_make(&p, "u", in, dim, -1.0f, 1.0f, shape->kind, &seed);
    p.in[SCAN_DT] = tensor_make(&p, "dt_raw", in, dim, p.activated ? 0.001f : -6.0f, 2.0f, shape->kind, &seed);
    p.in[SCAN_B] = tensor_make(&p, "b", in, n, -1.0f, 1.0f, shape->kind, &seed);
    p.in[SCAN_C] = tensor_make(&p, "cc", in, n, -1.0f, 1.0f, shape->kind, &seed);
    if (!(options & NO_GATE)) p.in[SCAN_Z] = tensor_make(&p, "z", in, dim, -8.0f, 8.0f, shape->kind, &seed);
    p.out = (tensor){"out", options & OUT_BF16 ? LS_BF16 : LS_F32, dim, NULL};
    p.param[SCAN_A2] = param_make("a2", dim * n, -16.0f * LS_LOG2E, -0.05f * LS_LOG2E, &seed);
    if (!(options & NO_D)) p.param[SCAN_D] = param_make("d", dim, -1.0f, 1.0f, &seed);
    if (!(options & NO_DT_BIAS))
        p.param[SCAN_DT_BIAS] = param_make("dt_bias", dim, p.activated ? 0.0f : -5.0f, 1.0f, &seed);
    if (shape->kind == BOUNDED) scan_bound(&p, &seed);
    if (shape->kind == BORDERS) scan_at_borders(&p, &seed);
    p.state_dtype = LS_F32;
    p.state_bytes = dim * n * 4;
    p.state_align = 16;
    p.token_work = dim * n;
    p.call = scan_call;
    p.workspace = scan_workspace;
    problem_solve(run, &p);
    return p;
}

static const scan_shape border_shapes[] = {{33, 1, AT_BORDERS, BORDERS},
                                           {64, 2, AT_BORDERS | IN_BF16, BORDERS},
                                           {64, 4, AT_BORDERS | OUT_BF16, BORDERS},
                                           {64, 16, AT_BORDERS | NO_GATE, BORDERS},
                                           {9, 17, AT_BORDERS | IN_BF16, BORDERS}};

/* ---- conv1d ---- */

enum { X_BF16 = 1, Y_BF16 = 2, STATE_BF16 = 4, NO_BIAS = 8, CONV_OPTIONS = 16 };
enum { CONV_W, CONV_BIAS };

typedef struct conv_shape {
    int64_t dim, d_conv;
    int options;
    values kind;
} conv_shape;

static inline ls_conv1d_args conv_args(const problem *p, const operands *o) {
    const ls_conv1d_args args = {.x = o->in[0],
                                 .x_dtype = p->in[0].dtype,
                                 .y_dtype = p->out.dtype,
                                 .state_dtype = p->state_dtype,
                                 .x_stride = o->in_stride[0],
                                 .w = o->param[CONV_W],
                                 .bias = o->param[CONV_BIAS],
                                 .y = o->out,
                                 .y_stride = o->out_stride,
                                 .rows = o->rows,
                                 .dim = p->dim,
                                 .d_conv = p->width,
                                 .state = o->pool,
                                 .spans = o->spans,
                                 .n_spans = o->n_spans,
                                 .span_rows_max = o->span_rows_max};
    return args;
}

static inline ls_status conv_call(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    const ls_conv1d_args args = conv_args(p, o);
    return ls_op_conv1d(exec, &args, err);
}

static inline int64_t conv_workspace(const problem *p, const operands *o) {
    const ls_conv1d_args args = conv_args(p, o);
    return ls_op_conv1d_workspace(&args);
}

static inline problem conv_problem(bk_run *run, const conv_shape *shape, const int64_t *length, int64_t n_seqs,
                                   uint64_t seed) {
    const int64_t dim = shape->dim, taps = shape->d_conv;
    const int options = shape->options;
    problem p;
    problem_sequences(&p, length, n_seqs);
    snprintf(p.name, sizeof p.name, "conv1d dim %lld taps %lld x %s y %s state %s%s", (long long)dim, (long long)taps,
             options & X_BF16 ? "bf16" : "f32", options & Y_BF16 ? "bf16" : "f32",
             options & STATE_BF16 ? "bf16" : "f32", options & NO_BIAS ? ", no bias" : "");
    p.dim = dim;
    p.width = taps;
    p.in[0] = tensor_make(&p, "x", options & X_BF16 ? LS_BF16 : LS_F32, dim, -4.0f, 4.0f, shape->kind, &seed);
    p.out = (tensor){"y", options & Y_BF16 ? LS_BF16 : LS_F32, dim, NULL};
    p.param[CONV_W] = param_make("w", taps * dim, -1.0f, 1.0f, &seed);
    if (!(options & NO_BIAS)) p.param[CONV_BIAS] = param_make("bias", dim, -1.0f, 1.0f, &seed);
    p.state_dtype = options & STATE_BF16 ? LS_BF16 : LS_F32;
    p.state_align = ls_dtype_bytes(p.state_dtype);
    p.state_bytes = (taps - 1) * dim * p.state_align;
    p.token_work = dim * (taps + 16);
    p.call = conv_call;
    p.workspace = conv_workspace;
    problem_solve(run, &p);
    return p;
}

/* ---- what every problem must survive ---- */

/* Every cut gives the same bits, in slots that hold NaN and in slots that hold what other sequences left. */
static inline void check_cuts(bk_run *run, const problem *p) {
    rig r = rig_make(run, p);
    for (int64_t i = 0; i < BK_COUNT(cuts); i++) {
        plan pl = plan_make(p, (uint64_t)i + 1);
        cut c = cuts[i];
        if (p->tokens * p->token_work > (1 << 17)) c.watch = false;
        if (i % 3 == 0) rig_poison(&r);
        drive_check(&r, &pl, &c);
        rig_turn(&r);
    }
    rig_free(&r);
    bk_clear(run);
}

/* Decoded with states that are written every so many tokens, the last three tokens in one span or decoded as well. */
static inline void check_held(bk_run *run, const problem *p, int64_t every, int64_t held_bytes) {
    static const cut decoded = {1, PACKED, BOUND_EXACT, false, true, 3};
    static const cut rest[] = {{WHOLE, PACKED, BOUND_EXACT, false, true, 0}, {1, ALONE, BOUND_EXACT, false, false, 0}};
    problem q = *p;
    q.every = every;
    q.held_at = round_up(p->state_bytes, 16);
    q.held_bytes = held_bytes;
    for (int64_t i = 0; i < BK_COUNT(rest); i++) {
        char why[WHY_MAX] = "";
        rig r = rig_make(run, &q);
        plan pl = plan_make(&q, (uint64_t)(every + i));
        uint8_t *expect = r.expect;
        r.expect = NULL; /* nothing writes the states in between */
        if (!drive(&r, &pl, &decoded, why)) bk_fail(run, "%s, every %lld: %s", q.name, (long long)every, why);
        r.expect = expect;
        drive_check(&r, &pl, &rest[i]);
        rig_free(&r);
        bk_clear(run);
    }
}

/* The first sequence at every position of batches of every size, prefilled and decoded. */
static inline void check_batches(bk_run *run, const problem *p) {
    static const int64_t sizes[] = {1, 2, 3, 7, SEQS_MAX};
    static const cut how[] = {{WHOLE, PACKED, BOUND_EXACT, false, true, 0}, {1, PACKED, BOUND_EXACT, false, false, 0}};
    rig r = rig_make(run, p);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int64_t position = 0; position < sizes[i]; position++) {
            plan pl = plan_make(p, (uint64_t)position + 1);
            pl.n = sizes[i];
            pl.fixed = true;
            for (int64_t k = 0; k < sizes[i]; k++) pl.order[k] = k == position ? 0 : k < position ? k + 1 : k;
            drive_check(&r, &pl, &how[position % 2]);
            if (run->small) position += sizes[i] / 4;
        }
    rig_free(&r);
    bk_clear(run);
}

static inline void check_repeats(bk_run *run, const problem *p, int64_t times) {
    static const cut how[] = {{WHOLE, PACKED, BOUND_EXACT, false, true, 3}, {1, PACKED, BOUND_EXACT, false, true, 0}};
    rig r = rig_make(run, p);
    for (int64_t i = 0; i < times; i++) {
        plan pl = plan_make(p, 7);
        drive_check(&r, &pl, &how[0]);
        drive_check(&r, &pl, &how[1]);
    }
    rig_free(&r);
    bk_clear(run);
}

static inline void golden_compare(bk_run *run, const char *name, const golden *now, const golden *recorded) {
    if (now->out != recorded->out || now->rest != recorded->rest)
        bk_fail(run, "%s: hashes {0x%016llx, 0x%016llx}, recorded {0x%016llx, 0x%016llx}", name,
                (unsigned long long)now->out, (unsigned long long)now->rest, (unsigned long long)recorded->out,
                (unsigned long long)recorded->rest);
}

/* The back end gives the contract's bits, and the contract's bits are the recorded ones. */
static inline void check_golden(bk_run *run, const problem *p, const golden *recorded) {
    static const cut whole = {WHOLE, PACKED, BOUND_EXACT, false, true, 0};
    golden now = {bk_hash(BK_HASH_START, p->out.data, p->tokens * row_bytes(&p->out)), BK_HASH_START};
    plan pl = plan_make(p, 1);
    rig r = rig_make(run, p);
    for (int64_t s = 0; s < p->n_seqs; s++)
        now.rest = bk_hash(now.rest, p->state + s * p->state_stride, p->state_bytes);
    drive_check(&r, &pl, &whole);
    golden_compare(run, p->name, &now, recorded);
    rig_free(&r);
    bk_clear(run);
}

/* A call that is wrong on purpose, in a cut where that must show, or must not. */
typedef struct variant_cut {
    int variant;
    cut cut;
    bool caught;
} variant_cut;

static inline void check_variant(bk_run *run, const problem *p, const variant_cut *v) {
    char why[WHY_MAX] = "", name[100];
    rig r = rig_make(run, p);
    plan pl = plan_make(p, 1);
    if (drive(&r, &pl, &v->cut, why) == v->caught)
        bk_fail(run, "variant %d, %s: %s", v->variant, cut_name(&v->cut, name, sizeof name),
                v->caught ? "not caught" : why);
    rig_free(&r);
    bk_clear(run);
}

/* A prefill and a decode of one token, made ready to run without the host. */
typedef struct two_calls {
    rig rig;
    plan plan;
    batch batch[2];
    image image[2];
    operands operands[2];
    ls_exec exec;
} two_calls;

static inline void two_calls_make(two_calls *t, bk_run *run, const problem *p) {
    static const cut how[] = {{WHOLE, PACKED, BOUND_EXACT, false, true, 1}, {1, PACKED, BOUND_EXACT, false, true, 0}};
    int64_t workspace;
    memset(t, 0, sizeof *t);
    t->rig = rig_make(run, p);
    t->plan = plan_make(p, 11);
    for (int i = 0; i < 2; i++) {
        t->batch[i] = batch_make(p);
        if (!plan_next(&t->plan, p, &how[i], t->rig.slot, t->rig.idle_slot, &t->batch[i])) bk_die(run, "no call");
        t->operands[i] = rig_prepare(&t->rig, &t->image[i], &t->batch[i], &how[i], (uint64_t)i + 1);
    }
    workspace = p->workspace(p, &t->operands[0]);
    if (workspace < p->workspace(p, &t->operands[1])) workspace = p->workspace(p, &t->operands[1]);
    t->exec = bk_async_exec(run, workspace);
}

static inline void two_calls_free(two_calls *t) {
    ls_stream_free(t->exec.backend, t->exec.stream);
    for (int i = 0; i < 2; i++) {
        free(t->batch[i].source);
        image_free(&t->image[i]);
    }
    rig_free(&t->rig);
}

static inline void two_calls_reset(two_calls *t) {
    rig_poison(&t->rig);
    for (int i = 0; i < 2; i++) bk_upload(t->rig.run, t->image[i].device, t->image[i].host, t->image[i].bytes);
}

static inline void two_calls_enqueue(two_calls *t) {
    bk_run *run = t->rig.run;
    for (int i = 0; i < 2; i++)
        if (t->rig.p->call(&t->exec, t->rig.p, &t->operands[i], &run->err) != LS_OK) bk_die(run, t->rig.p->name);
}

static inline void two_calls_check(two_calls *t, const char *what, int64_t round) {
    bk_run *run = t->rig.run;
    char why[WHY_MAX] = "";
    if (ls_fault_take(&t->exec, &run->err) != LS_OK)
        bk_fail(run, "%s, %s, round %lld: %s", t->rig.p->name, what, (long long)round, run->err.text);
    else if (!image_check(run, &t->image[0], &t->batch[0], why) || !image_check(run, &t->image[1], &t->batch[1], why) ||
             !rig_check_pool(&t->rig, &t->plan, why))
        bk_fail(run, "%s, %s, round %lld: %s", t->rig.p->name, what, (long long)round, why);
}

/* A bad slot that reaches device memory between two replays: the record names it, nothing is written. */
static inline void check_graph_fault(two_calls *t, void *graph) {
    bk_run *run = t->rig.run;
    const batch *b = &t->batch[0];
    const plan none = plan_make(t->rig.p, 1);
    ls_span *span = (ls_span *)(void *)(t->image[0].host + t->image[0].sections[0].at) + b->n_spans - 1;
    char why[WHY_MAX] = "", word[40];
    span->slot = (int32_t)t->rig.pool.n_entries;
    snprintf(word, sizeof word, "slot %d", span->slot);
    two_calls_reset(t);
    if (ls_graph_launch(&t->exec, graph, &run->err) != LS_OK) bk_die(run, "graph");
    if (ls_fault_take(&t->exec, &run->err) == LS_OK)
        bk_fail(run, "%s: a bad slot in a graph was not found", t->rig.p->name);
    else if (strstr(run->err.text, word) == NULL)
        bk_fail(run, "%s: '%s' does not say '%s'", t->rig.p->name, run->err.text, word);
    for (int i = 0; i < 2; i++) {
        image untouched = t->image[i];
        untouched.expect = untouched.host;
        if (!image_check(run, &untouched, &t->batch[i], why))
            bk_fail(run, "%s: after a fault: %s", t->rig.p->name, why);
    }
    if (!rig_check_pool(&t->rig, &none, why)) bk_fail(run, "%s: after a fault: %s", t->rig.p->name, why);
    span->slot = b->spans[b->n_spans - 1].slot;
}

/* Captured once, replayed over fresh memory. */
static inline void check_graph(bk_run *run, const problem *p) {
    two_calls t;
    void *graph = NULL;
    two_calls_make(&t, run, p);
    if (ls_graph_begin(&t.exec, &run->err) != LS_OK) bk_die(run, "graph");
    two_calls_enqueue(&t);
    if (ls_graph_end(&t.exec, &graph, &run->err) != LS_OK) bk_die(run, "graph");
    for (int64_t round = 0; round < 3; round++) {
        two_calls_reset(&t);
        if (ls_graph_launch(&t.exec, graph, &run->err) != LS_OK) bk_die(run, "graph");
        two_calls_check(&t, "graph", round);
    }
    check_graph_fault(&t, graph);
    two_calls_reset(&t);
    if (ls_graph_launch(&t.exec, graph, &run->err) != LS_OK) bk_die(run, "graph");
    two_calls_check(&t, "graph after a fault", 0);
    ls_graph_free(graph);
    two_calls_free(&t);
    bk_clear(run);
}

/* The same calls in two streams at once. */
static inline void check_streams(bk_run *run, const problem *p) {
    two_calls t[2];
    for (int k = 0; k < 2; k++) two_calls_make(&t[k], run, p);
    for (int64_t round = 0; round < bk_size(run, 2, 2, 20); round++) {
        for (int k = 0; k < 2; k++) two_calls_reset(&t[k]);
        for (int k = 0; k < 2; k++) two_calls_enqueue(&t[k]);
        for (int k = 0; k < 2; k++) two_calls_check(&t[k], "two streams", round);
    }
    for (int k = 0; k < 2; k++) two_calls_free(&t[k]);
    bk_clear(run);
}

#endif
