/* Gradients of the selective scan against a textbook reading of their contract, bit for bit, and against central
 * differences of a float64 scan. */
#include "op/op_grad.h"
#include "op/scan.h"

/* Optional parts and the way dt comes. */
enum { WITH_Z = 1, WITH_BIAS = 2, WITH_D = 4, ACTIVATED = 8, N_FLAGS = 16, WITH_STATES = 16 };

typedef struct problem {
    grad_layout layout;
    int64_t dim, n_states;
    int flags;
    op_array u, dt, b, cc, z, dout; /* [rows] */
    op_array a2, bias, d;           /* [dim][n_states], [1][dim], [1][dim] */
    op_array initial, dfinal;       /* [spans * dim][n_states], and a row for a pointer where there are no spans */
} problem;

/* Gradients in the order of the arguments. */
enum { DU, DDT, DB, DCC, DZ, DA2, DDT_BIAS, DD, DINITIAL, N_GRADS };
static const char *const grad_names[N_GRADS] = {"du", "ddt", "db", "dcc", "dz", "da2", "ddt_bias", "dd", "dinitial"};

typedef struct grads {
    op_array of[N_GRADS];
} grads;

static grads grads_make(int64_t rows, int64_t dim, int64_t states) {
    const int64_t shape[N_GRADS][2] = {{rows, dim},    {rows, dim}, {rows, states},
                                       {rows, states}, {rows, dim}, {dim, states},
                                       {1, dim},       {1, dim},    {GRAD_SPANS_MAX * dim, states}};
    grads g;
    for (int i = 0; i < N_GRADS; i++) {
        g.of[i] = op_array_make(LS_F32, shape[i][0], shape[i][1], 0);
        op_guard(&g.of[i]);
    }
    return g;
}

static void grads_free(grads *g) {
    for (int i = 0; i < N_GRADS; i++) op_array_free(&g->of[i]);
}

static float *grads_at(const grads *g, int i) { return (float *)(void *)g->of[i].data; }

static void problem_alloc(problem *p, const grad_layout *layout, int64_t dim, int64_t states, int flags, ls_dtype in,
                          uint64_t *seed) {
    op_array *rows[] = {&p->u, &p->dt, &p->z, &p->b, &p->cc};
    p->layout = *layout;
    p->dim = dim;
    p->n_states = states;
    p->flags = flags;
    for (int i = 0; i < 5; i++)
        *rows[i] = op_array_make(in, layout->rows, i < 3 ? dim : states, (int64_t)(test_random(seed) % 4));
    p->dout = op_array_make(LS_F32, layout->rows, dim, (int64_t)(test_random(seed) % 4));
    p->a2 = op_array_make(LS_F32, dim, states, 0);
    p->bias = op_array_make(LS_F32, 1, dim, 0);
    p->d = op_array_make(LS_F32, 1, dim, 0);
    p->initial = op_array_make(LS_F32, layout->n_spans * dim + 1, states, 0);
    p->dfinal = op_array_make(LS_F32, layout->n_spans * dim + 1, states, 0);
}

static float op_dt(uint64_t *seed) { return test_uniform(seed, 0.001f, 2.0f); }
static float op_bias(uint64_t *seed) { return test_uniform(seed, -5.0f, 1.0f); }
/* Rates whose decay leaves 2^-126 .. 2^127 for a large dt, some of them upwards, some always. */
static float op_rate(uint64_t *seed) {
    const uint64_t kind = test_random(seed) >> 59;
    const float rate = ls_mul(test_uniform(seed, -16.0f, -0.05f), LS_LOG2E);
    return kind == 0 ? -rate : kind == 1 ? -1e9f : rate;
}

/* special: NaN, infinities and denormals among the values. */
static problem problem_make(const grad_layout *layout, int64_t dim, int64_t states, int flags, ls_dtype in,
                            bool special, uint64_t seed) {
    const op_maker plain = special ? op_special : op_plain, wide = special ? op_special : op_wide;
    problem p;
    problem_alloc(&p, layout, dim, states, flags, in, &seed);
    grad_fill(&p.u, layout, plain, &seed);
    grad_fill(&p.dt, layout, flags & ACTIVATED && !special ? op_dt : wide, &seed);
    grad_fill(&p.z, layout, wide, &seed);
    grad_fill(&p.b, layout, plain, &seed);
    grad_fill(&p.cc, layout, plain, &seed);
    grad_fill(&p.dout, layout, plain, &seed);
    op_fill(&p.a2, op_rate, &seed);
    op_fill(&p.bias, op_bias, &seed);
    op_fill(&p.d, op_plain, &seed);
    op_fill(&p.initial, plain, &seed);
    op_fill(&p.dfinal, plain, &seed);
    for (int64_t i = 0; i < layout->n_spans && flags & WITH_STATES; i++) p.layout.spans[i].pos = 3 * i;
    return p;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->u,  &p->dt,   &p->b, &p->cc,      &p->z,     &p->dout,
                          &p->a2, &p->bias, &p->d, &p->initial, &p->dfinal};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

static ls_scan_backward_args problem_args(const problem *p, const grads *g) {
    const ls_scan_backward_args args = {
        .in_dtype = p->u.dtype,
        .dt_activated = (p->flags & ACTIVATED) != 0,
        .u = p->u.data,
        .dt_raw = p->dt.data,
        .b = p->b.data,
        .cc = p->cc.data,
        .z = p->flags & WITH_Z ? p->z.data : NULL,
        .u_stride = p->u.stride,
        .dt_stride = p->dt.stride,
        .b_stride = p->b.stride,
        .c_stride = p->cc.stride,
        .z_stride = p->z.stride,
        .a2 = (const float *)(const void *)p->a2.data,
        .dt_bias = p->flags & WITH_BIAS ? (const float *)(const void *)p->bias.data : NULL,
        .d = p->flags & WITH_D ? (const float *)(const void *)p->d.data : NULL,
        .dout = (const float *)(const void *)p->dout.data,
        .dout_stride = p->dout.stride,
        .du = grads_at(g, DU),
        .ddt = grads_at(g, DDT),
        .db = grads_at(g, DB),
        .dcc = grads_at(g, DCC),
        .dz = p->flags & WITH_Z ? grads_at(g, DZ) : NULL,
        .da2 = grads_at(g, DA2),
        .ddt_bias = p->flags & WITH_BIAS ? grads_at(g, DDT_BIAS) : NULL,
        .dd = p->flags & WITH_D ? grads_at(g, DD) : NULL,
        .rows = p->layout.rows,
        .dim = p->dim,
        .n_states = p->n_states,
        .spans = p->layout.spans,
        .n_spans = p->layout.n_spans,
        .initial = p->flags & WITH_STATES ? (const float *)(const void *)p->initial.data : NULL,
        .dinitial = p->flags & WITH_STATES ? grads_at(g, DINITIAL) : NULL,
        .dfinal = p->flags & WITH_STATES ? (const float *)(const void *)p->dfinal.data : NULL,
    };
    return args;
}

/* The op on a device, in a workspace of exactly its size. */
static void run(const problem *p, const grads *g, ls_device *device) {
    const ls_scan_backward_args args = problem_args(p, g);
    grad_workspace workspace = grad_workspace_lend(device, ls_op_scan_backward_workspace(&args));
    ls_error err;
    assert_ok(ls_scan_backward(device, &args, &err), err);
    grad_workspace_take_back(&workspace);
}

/* ---- the textbook ---- */

/* Wrong on purpose: sums over channels and over states as one chain, spans added from the last to the first, the
 * factors of w in another order, a bounded decay that lets a gradient through, the gradient of the last state
 * where that of the first token's is, a first token whose decay has nothing before it. */
typedef enum variant {
    RIGHT,
    CHANNEL_CHAIN,
    STATE_CHAIN,
    SPANS_REVERSED,
    W_REORDERED,
    BOUNDED_FLOWS,
    FINAL_LATE,
    INITIAL_LOST
} variant;

typedef struct decayed {
    float decay;
    bool inside;
} decayed;

static decayed decay_ref(float dt, float a2) {
    const float x = ls_mul(dt, a2), r = ls_fma(dt, a2, LS_ROUND_MAGIC);
    const float p = ls_exp2_poly(ls_fma(dt, a2, -ls_sub(r, LS_ROUND_MAGIC)));
    decayed out = {x > 127.0f ? 0x1p127f : 0x1p-126f, x >= -126.0f && x <= 127.0f};
    if (out.inside) out.decay = ls_from_bits(ls_bits(p) + (ls_bits(r) << 23));
    return out;
}

static float tree_ref(const float p[4]) { return ls_add(ls_add(p[0], p[1]), ls_add(p[2], p[3])); }

/* x[0 .. dim) of stride n, over blocks of 32 channels. */
static float channels_ref(const float *x, int64_t dim, int64_t n, variant v) {
    float sum = 0.0f;
    if (v == CHANNEL_CHAIN) {
        for (int64_t c = 0; c < dim; c++) sum = ls_add(sum, x[c * n]);
        return sum;
    }
    for (int64_t block = 0; block < dim; block += 32) {
        float lane[32] = {0};
        for (int64_t c = 0; c < 32 && block + c < dim; c++) lane[c] = x[(block + c) * n];
        sum = ls_add(sum, ls_add(ls_add(op_fold_run(lane, 0, 1), op_fold_run(lane + 16, 0, 1)),
                                 ls_add(op_fold_run(lane + 8, 0, 1), op_fold_run(lane + 24, 0, 1))));
    }
    return sum;
}

/* What channel c of a row sees. */
typedef struct seen {
    float raw, dt, u, v;
} seen;

static seen seen_ref(const problem *p, int64_t row, int64_t c) {
    seen t;
    t.raw = op_get(&p->dt, row, c);
    if (p->flags & WITH_BIAS) t.raw = ls_add(t.raw, op_get(&p->bias, 0, c));
    t.dt = p->flags & ACTIVATED ? t.raw : ls_softplus(t.raw);
    t.u = op_get(&p->u, row, c);
    t.v = ls_mul(t.dt, t.u);
    return t;
}

static float add_into(const op_array *a, int64_t row, int64_t col, float x) {
    const float sum = ls_add(op_get(a, row, col), x);
    op_put(a, row, col, sum);
    return sum;
}

/* Channel c of a span: h [n_rows + 1][n] is of this channel; C and B go to [n_rows][dim][n]. */
static void channel_ref(const problem *p, const ls_span *span, int64_t c, const grads *out, float *h, float *to_c,
                        float *to_b, variant v) {
    const int64_t n = p->n_states, group = v == STATE_CHAIN ? n : (n + 3) / 4;
    float g[LS_SCAN_STATES_MAX] = {0}, da2[LS_SCAN_STATES_MAX] = {0}, dd = 0.0f, ddt_bias = 0.0f;
    const bool with_states = (p->flags & WITH_STATES) != 0;
    const int64_t entry = (span - p->layout.spans) * p->dim + c;
    for (int64_t s = 0; s < n; s++) {
        h[s] = with_states ? op_get(&p->initial, entry, s) : 0.0f;
        if (with_states && v != FINAL_LATE) g[s] = op_get(&p->dfinal, entry, s);
    }
    for (int64_t t = 0; t < span->n_rows; t++) {
        const seen x = seen_ref(p, span->row + t, c);
        for (int64_t s = 0; s < n; s++)
            h[(t + 1) * n + s] = ls_fma(decay_ref(x.dt, op_get(&p->a2, c, s)).decay, h[t * n + s],
                                        ls_mul(x.v, op_get(&p->b, span->row + t, s)));
    }
    for (int64_t t = span->n_rows - 1; t >= 0; t--) {
        const int64_t row = span->row + t;
        const seen x = seen_ref(p, row, c);
        const float dout = op_get(&p->dout, row, c);
        float part_y[4] = {0}, part_v[4] = {0}, part_t[4] = {0}, y, dy = dout, sum_v, ddt, du;
        for (int64_t s = 0; s < n; s++)
            part_y[s / group] = ls_fma(h[(t + 1) * n + s], op_get(&p->cc, row, s), part_y[s / group]);
        y = tree_ref(part_y);
        if (p->flags & WITH_D) y = ls_fma(op_get(&p->d, 0, c), x.u, y);
        if (p->flags & WITH_Z) {
            const float z = op_get(&p->z, row, c), sig = ls_sigmoid(z), sl = ls_silu(z);
            op_put(&out->of[DZ], row, c, ls_mul(ls_mul(dout, y), ls_fma(sl, ls_sub(1.0f, sig), sig)));
            dy = ls_mul(dout, sl);
        }
        for (int64_t s = 0; s < n; s++) {
            const float a2 = op_get(&p->a2, c, s), before = v == INITIAL_LOST && t == 0 ? 0.0f : h[t * n + s];
            const decayed d = decay_ref(x.dt, a2);
            float w;
            g[s] = ls_fma(dy, op_get(&p->cc, row, s), g[s]);
            to_c[(t * p->dim + c) * n + s] = ls_mul(dy, h[(t + 1) * n + s]);
            to_b[(t * p->dim + c) * n + s] = ls_mul(g[s], x.v);
            part_v[s / group] = ls_fma(g[s], op_get(&p->b, row, s), part_v[s / group]);
            w = v == W_REORDERED ? ls_mul(ls_mul(g[s], d.decay), before) : ls_mul(g[s], ls_mul(d.decay, before));
            if (!d.inside && v != BOUNDED_FLOWS) w = 0.0f;
            part_t[s / group] = ls_fma(w, a2, part_t[s / group]);
            da2[s] = ls_fma(w, x.dt, da2[s]);
            g[s] = ls_mul(g[s], d.decay);
        }
        sum_v = tree_ref(part_v);
        ddt = ls_fma(tree_ref(part_t), LS_LN2, ls_mul(sum_v, x.u));
        du = ls_mul(sum_v, x.dt);
        if (p->flags & WITH_D) {
            du = ls_fma(dy, op_get(&p->d, 0, c), du);
            dd = ls_fma(dy, x.u, dd);
        }
        if (!(p->flags & ACTIVATED)) ddt = ls_mul(ddt, ls_sigmoid(x.raw));
        ddt_bias = ls_add(ddt_bias, ddt);
        op_put(&out->of[DU], row, c, du);
        op_put(&out->of[DDT], row, c, ddt);
    }
    for (int64_t s = 0; s < n && with_states && span->n_rows > 0; s++)
        op_put(&out->of[DINITIAL], entry, s, v == FINAL_LATE ? ls_add(g[s], op_get(&p->dfinal, entry, s)) : g[s]);
    for (int64_t s = 0; s < n; s++) add_into(&out->of[DA2], c, s, da2[s]);
    if (p->flags & WITH_D) add_into(&out->of[DD], 0, c, dd);
    if (p->flags & WITH_BIAS) add_into(&out->of[DDT_BIAS], 0, c, ddt_bias);
}

static void span_ref(const problem *p, const ls_span *span, const grads *out, variant v) {
    const int64_t n = p->n_states, each = span->n_rows * p->dim * n * 4;
    float *h = op_alloc((span->n_rows + 1) * n * 4), *to_c = op_alloc(each), *to_b = op_alloc(each);
    for (int64_t c = 0; c < p->dim; c++) channel_ref(p, span, c, out, h, to_c, to_b, v);
    for (int64_t t = 0; t < span->n_rows; t++)
        for (int64_t s = 0; s < n; s++) {
            op_put(&out->of[DCC], span->row + t, s, channels_ref(to_c + t * p->dim * n + s, p->dim, n, v));
            op_put(&out->of[DB], span->row + t, s, channels_ref(to_b + t * p->dim * n + s, p->dim, n, v));
        }
    free(h);
    free(to_c);
    free(to_b);
}

/* out holds guards. */
static void grad_ref(const problem *p, const grads *out, variant v) {
    const int64_t n_spans = p->layout.n_spans;
    memset(out->of[DA2].data, 0, (size_t)out->of[DA2].bytes);
    if (p->flags & WITH_BIAS) memset(out->of[DDT_BIAS].data, 0, (size_t)out->of[DDT_BIAS].bytes);
    if (p->flags & WITH_D) memset(out->of[DD].data, 0, (size_t)out->of[DD].bytes);
    for (int64_t i = 0; i < n_spans; i++) {
        const ls_span *span = &p->layout.spans[v == SPANS_REVERSED ? n_spans - 1 - i : i];
        if (span->slot >= 0) span_ref(p, span, out, v);
    }
    for (int64_t c = 0; c < p->dim; c++)
        for (int64_t s = 0; s < p->n_states; s++)
            op_put(&out->of[DA2], c, s, ls_mul(op_get(&out->of[DA2], c, s), LS_LN2));
}

/* ---- equality in bits ---- */

static void problem_check(const problem *p, ls_isa isa, const char *what) {
    grads expected = grads_make(p->layout.rows, p->dim, p->n_states);
    grad_ref(p, &expected, RIGHT);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        grads got = grads_make(p->layout.rows, p->dim, p->n_states);
        run(p, &got, op_devices[isa][t]);
        for (int i = 0; i < N_GRADS; i++)
            op_check(&expected.of[i], &got.of[i], OP_NAN_ANY,
                     "%s: %s of dim %lld, %lld states, %s, flags %d, threads %d", what, grad_names[i],
                     (long long)p->dim, (long long)p->n_states, ls_dtype_name(p->u.dtype), p->flags, t + 1);
        grads_free(&got);
    }
    grads_free(&expected);
}

static const int64_t lengths[] = {1, 2, 5, 31, 32, 33, 70};

static void every_option_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {1, 7, 17, 33, 65}, states[] = {1, 2, 3, 4, 5, 8, 16, 17};
    uint64_t seed = 11;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int flags = 0; flags < N_FLAGS; flags++) {
            const grad_layout layout = grad_layout_random(lengths, OP_COUNT(lengths), &seed);
            const bool special = (d + flags) % 3 == 0;
            problem p = problem_make(&layout, dims[d], states[test_random(&seed) % 8],
                                     flags | ((d + flags / 2) % 2 ? WITH_STATES : 0),
                                     (d + flags) % 2 ? LS_BF16 : LS_F32, special, test_random(&seed));
            problem_check(&p, isa, special ? "special" : "plain");
            problem_free(&p);
        }
}

/* Every length by itself and next to another, on both sides of a kept state. */
static void every_length_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t more[] = {1, 2, 5, 31, 32, 33, 63, 64, 65, 70, 97};
    uint64_t seed = 12;
    for (int64_t i = 0; i < OP_COUNT(more); i++)
        for (int gaps = 0; gaps < 2; gaps++) {
            const int64_t three[] = {more[i], more[(i * 3 + 4) % OP_COUNT(more)], more[i]};
            const grad_layout layout = grad_layout_make(1 + i % 3, three, gaps == 1, test_random(&seed));
            problem p = problem_make(&layout, 9, 5, WITH_Z | WITH_BIAS | WITH_D | (i % 2 ? WITH_STATES : 0), LS_F32,
                                     false, test_random(&seed));
            problem_check(&p, isa, "lengths");
            problem_free(&p);
        }
}

static void wide_and_deep_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t shapes[][3] = {{256, 16, 6}, {300, 3, 34}, {40, 64, 35}, {3, LS_SCAN_STATES_MAX, 34}, {32, 255, 5}};
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        const grad_layout layout = grad_layout_make(1, &shapes[i][2], true, (uint64_t)i + 1);
        problem p = problem_make(&layout, shapes[i][0], shapes[i][1],
                                 WITH_Z | WITH_BIAS | WITH_D | (i / 2 % 2 ? WITH_STATES : 0), i % 2 ? LS_BF16 : LS_F32,
                                 false, (uint64_t)i + 50);
        problem_check(&p, isa, "wide");
        problem_free(&p);
    }
}

/* Without tokens the gradients of parameters are +0 and nothing else is written. */
static void no_tokens_give_zero_gradients(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t n_spans = 0; n_spans < 3; n_spans++) {
        grad_layout layout = {6, n_spans, {{0, 3, 0, -1, 0}, {4, 0, 0, 2, 0}}};
        problem p = problem_make(&layout, 20, 4, WITH_Z | WITH_BIAS | WITH_D, LS_F32, false, 3);
        grads got = grads_make(6, 20, 4);
        problem_check(&p, isa, "no tokens");
        run(&p, &got, op_devices[isa][0]);
        for (int64_t c = 0; c < 20; c++) assert_int_equal(ls_bits(op_get(&got.of[DD], 0, c)), 0);
        grads_free(&got);
        problem_free(&p);
    }
}

/* An infinity that meets the +0 of channels beyond dim must not become their NaN. */
static void channels_that_are_not_there_add_nothing(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t one[] = {5};
    const grad_layout layout = grad_layout_make(1, one, false, 1);
    for (int64_t dim = 1; dim <= 33; dim += 32)
        for (int which = 0; which < 2; which++) {
            problem p = problem_make(&layout, dim, 3, WITH_D, LS_F32, false, 6);
            grads got = grads_make(5, dim, 3);
            for (int64_t c = 0; c < dim; c++) op_put(&p.dout, 2, c, 0.5f);
            op_put(which == 0 ? &p.b : &p.cc, 2, 1, INFINITY);
            problem_check(&p, isa, "infinity");
            run(&p, &got, op_devices[isa][0]);
            if (dim == 1) assert_true(isinf(op_get(&got.of[which == 0 ? DCC : DB], 2, 1)));
            grads_free(&got);
            problem_free(&p);
        }
}

/* ---- independence ---- */

/* The sequence of a span in a call of its own. */
static problem problem_alone(const problem *p, const ls_span *span) {
    problem q = *p;
    q.u = grad_rows(&p->u, span);
    q.dt = grad_rows(&p->dt, span);
    q.b = grad_rows(&p->b, span);
    q.cc = grad_rows(&p->cc, span);
    q.z = grad_rows(&p->z, span);
    q.dout = grad_rows(&p->dout, span);
    q.layout = grad_layout_make(1, &span->n_rows, false, 1);
    return q;
}

static void problem_alone_free(problem *q) {
    op_array *rows[] = {&q->u, &q->dt, &q->b, &q->cc, &q->z, &q->dout};
    for (int64_t i = 0; i < OP_COUNT(rows); i++) op_array_free(rows[i]);
}

/* Gradients of a sequence's rows are the same alone and packed; gradients of vectors add over the spans of a call. */
static void sequences_do_not_see_each_other(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t three[] = {33, 5, 70};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        const grad_layout layout = grad_layout_make(3, three, seed > 1, seed);
        problem p = problem_make(&layout, 40, 6, WITH_Z | WITH_BIAS | WITH_D, seed % 2 ? LS_F32 : LS_BF16, false, seed);
        grads packed = grads_make(layout.rows, 40, 6), sums = grads_make(1, 40, 6);
        for (int i = DDT_BIAS; i <= DD; i++) memset(sums.of[i].data, 0, (size_t)sums.of[i].bytes);
        run(&p, &packed, op_devices[isa][2]);
        for (int64_t s = 0; s < layout.n_spans; s++) {
            const ls_span *span = &layout.spans[s];
            problem q;
            grads alone;
            if (span->slot < 0) continue;
            q = problem_alone(&p, span);
            alone = grads_make(span->n_rows, 40, 6);
            run(&q, &alone, op_devices[isa][s % OP_THREADS_MAX]);
            for (int i = DU; i <= DZ; i++) {
                op_array rows = grad_rows(&packed.of[i], span);
                op_check(&alone.of[i], &rows, OP_NAN_PINNED, "packed: %s of span %lld", grad_names[i], (long long)s);
                op_array_free(&rows);
            }
            for (int i = DDT_BIAS; i <= DD; i++)
                for (int64_t c = 0; c < 40; c++) add_into(&sums.of[i], 0, c, op_get(&alone.of[i], 0, c));
            grads_free(&alone);
            problem_alone_free(&q);
        }
        for (int i = DDT_BIAS; i <= DD; i++)
            op_check(&sums.of[i], &packed.of[i], OP_NAN_PINNED, "sum over spans: %s", grad_names[i]);
        grads_free(&packed);
        grads_free(&sums);
        problem_free(&p);
    }
}

/* One sequence among padding gives all the gradients that it gives alone. */
static void padding_changes_no_gradient(void **state) {
    const ls_isa isa = op_isa(state);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const grad_layout layout = grad_layout_make(1, &lengths[seed], true, seed);
        const ls_span *span = &layout.spans[layout.n_spans - 1];
        problem p = problem_make(&layout, 34, 7, WITH_Z | WITH_BIAS | WITH_D, LS_F32, false, seed);
        problem q = problem_alone(&p, span);
        grads packed = grads_make(layout.rows, 34, 7), alone = grads_make(span->n_rows, 34, 7);
        run(&p, &packed, op_devices[isa][1]);
        run(&q, &alone, op_devices[isa][0]);
        for (int i = 0; i < N_GRADS; i++) {
            op_array rows = i <= DZ ? grad_rows(&packed.of[i], span) : packed.of[i];
            op_check(&alone.of[i], &rows, OP_NAN_PINNED, "padding: %s", grad_names[i]);
            if (i <= DZ) op_array_free(&rows);
        }
        grads_free(&packed);
        grads_free(&alone);
        problem_alone_free(&q);
        problem_free(&p);
    }
}

/* ---- truth ---- */

enum { T_ROWS = 45, T_DIM = 3, T_STATES = 5 };

/* The same problem in float64: two sequences of 40 and 5 tokens, or a tree. */
typedef struct exact {
    int flags;
    bool is_tree;
    grad_layout layout;
    double u[T_ROWS * T_DIM], dt[T_ROWS * T_DIM], z[T_ROWS * T_DIM], dout[T_ROWS * T_DIM];
    double b[T_ROWS * T_STATES], cc[T_ROWS * T_STATES], a2[T_DIM * T_STATES], bias[T_DIM], d[T_DIM];
} exact;

/* The sum of dout * out of token t of channel c; h moves on. */
static double exact_token(const exact *e, double *h, int64_t t, int64_t c) {
    const int64_t at = t * T_DIM + c;
    const double raw = e->dt[at] + (e->flags & WITH_BIAS ? e->bias[c] : 0.0);
    const double dt = e->flags & ACTIVATED ? raw : log1p(exp(raw));
    double y = e->flags & WITH_D ? e->d[c] * e->u[at] : 0.0;
    for (int s = 0; s < T_STATES; s++) {
        h[s] = exp2(dt * e->a2[c * T_STATES + s]) * h[s] + dt * e->u[at] * e->b[t * T_STATES + s];
        y += h[s] * e->cc[t * T_STATES + s];
    }
    if (e->flags & WITH_Z) y *= e->z[at] / (1.0 + exp(-e->z[at]));
    return e->dout[at] * y;
}

/* The sum of dout * out. */
static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int64_t c = 0; c < T_DIM; c++) {
        double h[GRAD_SPANS_MAX][T_STATES] = {{0}};
        for (int64_t i = 0; i < e->layout.n_spans; i++) {
            const ls_span *span = &e->layout.spans[i];
            if (e->is_tree && i > 0) memcpy(h[i], h[grad_tree_parent[i]], sizeof h[i]);
            for (int64_t t = 0; t < span->n_rows; t++) loss += exact_token(e, h[i], span->row + t, c);
        }
    }
    return loss;
}

static void widen_to(double *to, const op_array *from) {
    for (int64_t r = 0; r < from->rows; r++)
        for (int64_t c = 0; c < from->cols; c++) *to++ = op_get(from, r, c);
}

/* Slow rates, so that the past counts, and steps that stay positive. */
static problem truth_problem(const grad_layout *layout, int flags) {
    uint64_t seed = (uint64_t)flags + 9;
    problem p = problem_make(layout, T_DIM, T_STATES, flags, LS_F32, false, (uint64_t)flags + 1);
    for (int64_t i = 0; i < T_DIM * T_STATES; i++)
        op_put(&p.a2, i / T_STATES, i % T_STATES, test_uniform(&seed, -2.0f, -0.05f));
    for (int64_t c = 0; c < T_DIM && flags & ACTIVATED; c++) op_put(&p.bias, 0, c, op_dt(&seed));
    return p;
}

/* The worst error, within 1e-4 of the largest gradient of its kind. */
static double truth_check(const problem *p, const grads *got, int flags, bool is_tree) {
    static exact e;
    double *const inputs[DINITIAL] = {e.u, e.dt, e.b, e.cc, e.z, e.a2, e.bias, e.d};
    const op_array *from[DINITIAL] = {&p->u, &p->dt, &p->b, &p->cc, &p->z, &p->a2, &p->bias, &p->d};
    double worst = 0.0;
    e.flags = flags;
    e.is_tree = is_tree;
    e.layout = p->layout;
    for (int i = 0; i < DINITIAL; i++) widen_to(inputs[i], from[i]);
    widen_to(e.dout, &p->dout);
    for (int i = 0; i < DINITIAL; i++) {
        double error;
        if ((i == DZ && !(flags & WITH_Z)) || (i == DDT_BIAS && !(flags & WITH_BIAS)) || (i == DD && !(flags & WITH_D)))
            continue;
        error = grad_worst(grads_at(got, i), inputs[i], from[i]->rows * from[i]->cols, exact_loss, &e);
        if (!(error <= 1e-4)) fail_msg("%s, flags %d: error %g of the largest", grad_names[i], flags, error);
        worst = fmax(worst, error);
    }
    return worst;
}

/* Every gradient is within 1e-4 of the largest of its kind; measured errors are near 1e-6. */
static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t two[] = {40, 5};
    const grad_layout layout = grad_layout_make(2, two, false, 1);
    double worst = 0.0;
    for (int flags = 0; flags < N_FLAGS; flags++) {
        problem p = truth_problem(&layout, flags);
        grads got = grads_make(T_ROWS, T_DIM, T_STATES);
        run(&p, &got, op_devices[isa][0]);
        worst = fmax(worst, truth_check(&p, &got, flags, false));
        grads_free(&got);
        problem_free(&p);
    }
    print_message("worst error %.3g of the largest gradient of its kind\n", worst);
}

/* ---- spans that continue others ---- */

#define ENTRY (T_DIM * T_STATES / 4 * 4 + 4) /* floats, aligned to 16 bytes */

/* The forward of a level, from the states that its parents left: entries of `states`. */
static void tree_forward(const problem *p, const grads *g, const grad_level *l, float *states, const op_array *out,
                         ls_device *device) {
    const ls_scan_backward_args back = problem_args(p, g);
    const ls_scan_args args = {.in_dtype = back.in_dtype,
                               .dt_activated = back.dt_activated,
                               .u = back.u,
                               .dt_raw = back.dt_raw,
                               .b = back.b,
                               .cc = back.cc,
                               .z = back.z,
                               .out = out->data,
                               .u_stride = back.u_stride,
                               .dt_stride = back.dt_stride,
                               .b_stride = back.b_stride,
                               .c_stride = back.c_stride,
                               .z_stride = back.z_stride,
                               .out_stride = out->stride,
                               .a2 = back.a2,
                               .dt_bias = back.dt_bias,
                               .d = back.d,
                               .rows = back.rows,
                               .dim = back.dim,
                               .n_states = back.n_states,
                               .state = {(uint8_t *)states, ENTRY * 4, GRAD_TREE_SPANS},
                               .spans = l->spans,
                               .n_spans = l->n};
    ls_error err;
    assert_ok(ls_scan(device, &args, &err), err);
}

/* Gradients of a tree, level by level, the deepest first; initial, dfinal: [spans] states. */
static void tree_back(const problem *p, const grads *got, const float *initial, float *dfinal, ls_device *device) {
    const int64_t each = p->dim * p->n_states;
    memset(got->of[DA2].data, 0, (size_t)got->of[DA2].bytes);
    memset(got->of[DDT_BIAS].data, 0, (size_t)got->of[DDT_BIAS].bytes);
    memset(got->of[DD].data, 0, (size_t)got->of[DD].bytes);
    for (int64_t level = GRAD_TREE_LEVELS - 1; level >= 0; level--) {
        const grad_level l = grad_level_make(&p->layout, level);
        float *before = grad_level_gather(&l, initial, each * 4), *last = grad_level_gather(&l, dfinal, each * 4);
        float *first = op_alloc(l.n * each * 4);
        ls_scan_backward_args args = problem_args(p, got);
        ls_error err;
        args.spans = l.spans;
        args.n_spans = l.n;
        args.continued = true;
        args.initial = level > 0 ? before : NULL;
        args.dinitial = level > 0 ? first : NULL;
        args.dfinal = level < GRAD_TREE_LEVELS - 1 ? last : NULL;
        assert_ok(ls_scan_backward(device, &args, &err), err);
        if (level > 0) grad_level_give(&l, first, dfinal, each);
        free(before);
        free(last);
        free(first);
    }
    for (int64_t i = 0; i < each; i++) grads_at(got, DA2)[i] = ls_mul(grads_at(got, DA2)[i], LS_LN2);
}

/* A trunk is computed once for all that continue it, and its gradients are as near to float64 as others. */
static void gradients_of_a_tree_are_those_of_float64(void **state) {
    const int64_t rows[] = {17, 4, 3, 21};
    const grad_layout tree = grad_tree_make(rows);
    const int64_t each = T_DIM * T_STATES;
    ls_device *device = op_devices[op_isa(state)][1];
    problem p = truth_problem(&tree, WITH_Z | WITH_BIAS | WITH_D);
    grads got = grads_make(T_ROWS, T_DIM, T_STATES);
    op_array out = op_array_make(LS_F32, T_ROWS, T_DIM, 0);
    float *states = op_alloc(GRAD_TREE_SPANS * ENTRY * 4), *initial = op_alloc(GRAD_TREE_SPANS * each * 4);
    float *dfinal = (float *)(void *)p.dfinal.data;
    memset(dfinal, 0, (size_t)p.dfinal.bytes);
    for (int64_t level = 0; level < GRAD_TREE_LEVELS; level++) {
        const grad_level l = grad_level_make(&tree, level);
        grad_level_fork(&l, states, ENTRY * 4);
        for (int64_t i = 0; i < l.n; i++) memcpy(initial + l.of[i] * each, states + l.of[i] * ENTRY, (size_t)each * 4);
        tree_forward(&p, &got, &l, states, &out, device);
    }
    tree_back(&p, &got, initial, dfinal, device);
    (void)truth_check(&p, &got, p.flags, true);
    free(states);
    free(initial);
    op_array_free(&out);
    grads_free(&got);
    problem_free(&p);
}

/* A sequence cut in two has the rows' gradients of the whole, in bits: its states are the same, and so is g. */
static void a_cut_changes_no_row(void **state) {
    enum { ROWS = 45, CUT = 19 };
    const int64_t one[] = {ROWS};
    const grad_layout layout = grad_layout_make(1, one, false, 1);
    const grad_level trunk = {1, {0}, {{0, CUT, 0, 0, 0}}}, branch = {1, {0}, {{CUT, ROWS - CUT, CUT, 0, 0}}};
    ls_device *device = op_devices[op_isa(state)][1];
    problem p = truth_problem(&layout, WITH_Z | WITH_BIAS | WITH_D);
    grads whole = grads_make(ROWS, T_DIM, T_STATES), got = grads_make(ROWS, T_DIM, T_STATES);
    op_array out = op_array_make(LS_F32, ROWS, T_DIM, 0);
    float *states = op_alloc(GRAD_TREE_SPANS * ENTRY * 4);
    ls_scan_backward_args args = problem_args(&p, &got);
    ls_error err;
    run(&p, &whole, device);
    tree_forward(&p, &got, &trunk, states, &out, device);
    args.spans = branch.spans;
    args.initial = states;
    args.dinitial = grads_at(&got, DINITIAL);
    assert_ok(ls_scan_backward(device, &args, &err), err);
    args.spans = trunk.spans;
    args.initial = NULL;
    args.dinitial = NULL;
    args.dfinal = grads_at(&got, DINITIAL);
    assert_ok(ls_scan_backward(device, &args, &err), err);
    for (int i = DU; i <= DZ; i++) op_check(&whole.of[i], &got.of[i], OP_NAN_PINNED, "cut: %s", grad_names[i]);
    free(states);
    op_array_free(&out);
    grads_free(&whole);
    grads_free(&got);
    problem_free(&p);
}

/* Spans that begin with zeros, and that nothing continues, have the bits of whole sequences. */
static void zero_states_change_nothing(void **state) {
    const int64_t two[] = {33, 2};
    const grad_layout layout = grad_layout_make(2, two, true, 3);
    const int flags = WITH_Z | WITH_BIAS | WITH_D;
    problem p = problem_make(&layout, 34, 5, flags, LS_F32, false, 3);
    grads whole = grads_make(layout.rows, 34, 5), got = grads_make(layout.rows, 34, 5);
    run(&p, &whole, op_devices[op_isa(state)][0]);
    memset(p.initial.data, 0, (size_t)p.initial.bytes);
    memset(p.dfinal.data, 0, (size_t)p.dfinal.bytes);
    p.flags |= WITH_STATES;
    for (int64_t i = 0; i < p.layout.n_spans; i++) p.layout.spans[i].pos = 7;
    run(&p, &got, op_devices[op_isa(state)][1]);
    for (int i = 0; i < DINITIAL; i++) op_check(&whole.of[i], &got.of[i], OP_NAN_PINNED, "zero: %s", grad_names[i]);
    grads_free(&got);
    grads_free(&whole);
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    const grad_layout layout = {9, 2, {{0, 4, 0, 0, 0}, {4, 5, 0, 1, 0}}};
    problem p = problem_make(&layout, 4, 3, WITH_Z | WITH_BIAS | WITH_D, LS_F32, false, 1);
    grads got = grads_make(9, 4, 3), untouched = grads_make(9, 4, 3);
    const ls_scan_backward_args right = problem_args(&p, &got);
    ls_device *device = op_devices[0][1];
    grad_workspace workspace = grad_workspace_lend(device, ls_op_scan_backward_workspace(&right));
    ls_scan_backward_args args;
    ls_span spans[2];
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                               \
    do {                                                                 \
        args = right;                                                    \
        memcpy(spans, layout.spans, sizeof spans);                       \
        args.spans = spans;                                              \
        __VA_ARGS__;                                                     \
        check_failed(ls_scan_backward(device, &args, &err), &err, word); \
        check_failed(err.status, &err, "scan_backward");                 \
    } while (0)
    REFUSED("u is a null", args.u = NULL);
    REFUSED("dt_raw is a null", args.dt_raw = NULL);
    REFUSED("b is a null", args.b = NULL);
    REFUSED("cc is a null", args.cc = NULL);
    REFUSED("a2 is a null", args.a2 = NULL);
    REFUSED("dout is a null", args.dout = NULL);
    REFUSED("du is a null", args.du = NULL);
    REFUSED("ddt is a null", args.ddt = NULL);
    REFUSED("db is a null", args.db = NULL);
    REFUSED("dcc is a null", args.dcc = NULL);
    REFUSED("da2 is a null", args.da2 = NULL);
    REFUSED("z is a null pointer and dz is not", args.z = NULL);
    REFUSED("dz is a null pointer and z is not", args.dz = NULL);
    REFUSED("dt_bias is a null pointer and ddt_bias is not", args.dt_bias = NULL);
    REFUSED("ddt_bias is a null pointer and dt_bias is not", args.ddt_bias = NULL);
    REFUSED("d is a null pointer and dd is not", args.d = NULL);
    REFUSED("dd is a null pointer and d is not", args.dd = NULL);
    REFUSED("f16", args.in_dtype = LS_F16);
    REFUSED("n_states 0", args.n_states = 0);
    REFUSED("n_states 257", args.n_states = 257);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("dim 0", args.dim = 0);
    REFUSED("u: stride 3", args.u_stride = 3);
    REFUSED("dt_raw: stride 3", args.dt_stride = 3);
    REFUSED("b: stride 2", args.b_stride = 2);
    REFUSED("cc: stride -7", args.c_stride = -7);
    REFUSED("z: stride 3", args.z_stride = 3);
    REFUSED("dout: stride 3", args.dout_stride = 3);
    REFUSED("u: 9 rows of stride 9223372036854775807", args.u_stride = INT64_MAX);
    REFUSED("9223372036854775807 rows", args.rows = INT64_MAX);
    REFUSED("-1 spans", args.n_spans = -1);
    REFUSED("workspace of 9 rows, 9223372036854775807 spans", args.n_spans = INT64_MAX);
    REFUSED("2 spans at", args.spans = NULL);
    REFUSED("-3 rows a span", args.span_rows_max = -3);
    REFUSED("span 1: row 4, rows 5", args.span_rows_max = 4);
    REFUSED("span 1: position 2", spans[1].pos = 2);
    REFUSED("span 1: position 2", spans[1].pos = 2; args.dfinal = grads_at(&got, DINITIAL));
    REFUSED("span 1: position -2", spans[1].pos = -2; args.initial = grads_at(&got, DINITIAL));
    REFUSED("span 1: row 3 before", spans[1].row = 3);
    REFUSED("span 0: row -1", spans[0].row = -1);
    REFUSED("span 1: row 4, rows 6", spans[1].n_rows = 6);
    REFUSED("span 1: row 4, rows 9223372036854775807", spans[1].n_rows = INT64_MAX);
#undef REFUSED
    args = right;
    args.z = NULL;
    args.dz = NULL;
    args.z_stride = 0;
    assert_ok(ls_scan_backward_check(&args, &err), err);
    for (int i = 0; i < N_GRADS; i++)
        op_check(&untouched.of[i], &got.of[i], OP_NAN_PINNED, "refused: %s", grad_names[i]);
    grad_workspace_take_back(&workspace);
    grads_free(&got);
    grads_free(&untouched);
    problem_free(&p);
}

/* Sizes that do not fit are no workspace, whatever the other arguments are. */
static void workspaces_that_do_not_fit(void **state) {
    const int64_t wild[] = {0, 1, 33, INT64_MAX / 2, INT64_MAX, -1, INT64_MIN};
    int64_t refused = 0;
    (void)state;
    for (int64_t i = 0; i < 7 * 7 * 7 * 7; i++) {
        const ls_scan_backward_args args = {
            .rows = wild[i % 7], .dim = wild[i / 7 % 7], .n_states = wild[i / 49 % 7], .n_spans = wild[i / 343]};
        const bool negative = args.rows < 0 || args.dim < 0 || args.n_states < 0 || args.n_spans < 0;
        const int64_t bytes = ls_op_scan_backward_workspace(&args);
        assert_true(bytes == -1 || (!negative && bytes >= LS_WORKSPACE_HEAD));
        refused += bytes == -1;
    }
    assert_true(refused > 7 * 7 * 7);
}

/* ---- the comparison itself ---- */

static void variants_are_caught(void **state) {
    const struct {
        variant wrong;
        int seen_in;
    } cases[] = {{CHANNEL_CHAIN, DB}, {CHANNEL_CHAIN, DCC},  {STATE_CHAIN, DU},    {STATE_CHAIN, DDT},
                 {STATE_CHAIN, DZ},   {SPANS_REVERSED, DA2}, {SPANS_REVERSED, DD}, {SPANS_REVERSED, DDT_BIAS},
                 {W_REORDERED, DDT},  {BOUNDED_FLOWS, DA2},  {FINAL_LATE, DU},     {FINAL_LATE, DINITIAL},
                 {INITIAL_LOST, DA2}, {INITIAL_LOST, DDT}};
    const int64_t three[] = {33, 20, 15};
    const grad_layout layout = grad_layout_make(3, three, true, 2);
    problem p = problem_make(&layout, 37, 9, WITH_Z | WITH_BIAS | WITH_D | WITH_STATES, LS_F32, false, 8);
    grads right = grads_make(layout.rows, 37, 9);
    (void)state;
    /* A channel that forgets everything: its decays are bounded. */
    for (int64_t s = 0; s < 9; s++) op_put(&p.a2, 0, s, -1e9f);
    grad_ref(&p, &right, RIGHT);
    for (int64_t i = 0; i < OP_COUNT(cases); i++) {
        const int seen_in = cases[i].seen_in;
        grads wrong = grads_make(layout.rows, 37, 9);
        char text[160];
        grad_ref(&p, &wrong, cases[i].wrong);
        if (op_diffs(&right.of[seen_in], &wrong.of[seen_in], OP_NAN_ANY, text) == 0)
            fail_msg("variant %d is not seen in %s", (int)cases[i].wrong, grad_names[seen_in]);
        grads_free(&wrong);
    }
    grads_free(&right);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_option_equals_the_textbook),
        OP_CASES(every_length_equals_the_textbook),
        OP_CASES(wide_and_deep_equal_the_textbook),
        OP_CASES(no_tokens_give_zero_gradients),
        OP_CASES(channels_that_are_not_there_add_nothing),
        OP_CASES(sequences_do_not_see_each_other),
        OP_CASES(padding_changes_no_gradient),
        OP_CASES(gradients_are_those_of_float64),
        OP_CASES(gradients_of_a_tree_are_those_of_float64),
        OP_CASES(a_cut_changes_no_row),
        OP_CASES(zero_states_change_nothing),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(workspaces_that_do_not_fit),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
