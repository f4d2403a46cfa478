/* Gradients of the scan of Mamba-2 against a textbook reading of their contract, bit for bit, and against central
 * differences of a float64 scan. */
#include "op/op_grad.h"
#include "op/ssd.h"

typedef struct shape {
    int64_t heads, dim, groups, states;
    float dt_min, dt_max;
} shape;

typedef struct problem {
    grad_layout layout;
    shape s;
    op_array x, dt, b, cc, dout; /* [rows] */
    op_array a, bias, d;         /* [1][heads] */
    op_array initial, dfinal;    /* [spans][heads * states * dim]; data NULL: none */
    op_array scale;              /* [spans][heads] */
} problem;

/* Gradients in the order of the arguments. */
enum { DX, DDT, DB, DCC, DA, DDT_BIAS, DD, DINITIAL, N_GRADS };
static const char *const grad_names[N_GRADS] = {"dx", "ddt", "db", "dcc", "da", "ddt_bias", "dd", "dinitial"};

typedef struct grads {
    op_array of[N_GRADS];
} grads;

static grads grads_make(int64_t rows, const shape *s, int64_t pad) {
    const int64_t cols[N_GRADS] = {
        s->heads * s->dim, s->heads, s->groups * s->states,        s->groups * s->states, s->heads,
        s->heads,          s->heads, s->heads * s->dim * s->states};
    grads g;
    for (int i = 0; i < N_GRADS; i++) {
        g.of[i] = op_array_make(LS_F32,
                                i < DA          ? rows
                                : i == DINITIAL ? GRAD_SPANS_MAX
                                                : 1,
                                cols[i], i < DA ? pad + i * (pad != 0) : 0);
        op_guard(&g.of[i]);
    }
    return g;
}

static void grads_free(grads *g) {
    for (int i = 0; i < N_GRADS; i++) op_array_free(&g->of[i]);
}

static float op_rate(uint64_t *seed) { return test_uniform(seed, -16.0f, -0.05f); }
static float op_slow(uint64_t *seed) { return test_uniform(seed, -1.0f, -0.05f); }
static float op_bias(uint64_t *seed) { return test_uniform(seed, -5.0f, 1.0f); }

static problem problem_make(const grad_layout *layout, const shape *s, ls_dtype in, bool special, uint64_t seed) {
    const op_maker plain = special ? op_special : op_plain;
    op_array *rows[5];
    problem p = {.layout = *layout, .s = *s};
    rows[0] = &p.x, rows[1] = &p.dt, rows[2] = &p.b, rows[3] = &p.cc, rows[4] = &p.dout;
    for (int i = 0; i < 5; i++) {
        const int64_t cols = i == 1 ? s->heads : i == 2 || i == 3 ? s->groups * s->states : s->heads * s->dim;
        *rows[i] = op_array_make(i < 4 ? in : LS_F32, layout->rows, cols, (int64_t)(test_random(&seed) % 4));
        grad_fill(rows[i], layout, i == 1 && !special ? op_wide : plain, &seed);
    }
    p.a = op_array_make(LS_F32, 1, s->heads, 0);
    p.bias = op_array_make(LS_F32, 1, s->heads, 0);
    p.d = op_array_make(LS_F32, 1, s->heads, 0);
    op_fill(&p.a, op_rate, &seed);
    op_fill(&p.bias, op_bias, &seed);
    op_fill(&p.d, op_plain, &seed);
    return p;
}

static float op_scale(uint64_t *seed) { return ls_exp(test_uniform(seed, -27.0f, 0.0f)); }

/* The spans continue others, and others continue them. */
static void states_make(problem *p, op_maker make, uint64_t seed) {
    const int64_t n = p->layout.n_spans, cols = p->s.heads * p->s.dim * p->s.states;
    p->initial = op_array_make(LS_F32, n, cols, 0);
    p->dfinal = op_array_make(LS_F32, n, cols, 0);
    p->scale = op_array_make(LS_F32, n, p->s.heads, 0);
    op_fill(&p->initial, make, &seed);
    op_fill(&p->dfinal, make, &seed);
    op_fill(&p->scale, op_scale, &seed);
    for (int64_t i = 0; i < n; i++) p->layout.spans[i].pos = 3 * i;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->x,    &p->dt, &p->b,       &p->cc,     &p->dout, &p->a,
                          &p->bias, &p->d,  &p->initial, &p->dfinal, &p->scale};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

static ls_ssd_backward_args problem_args(const problem *p, const grads *g) {
    const ls_ssd_backward_args args = {.in_dtype = p->x.dtype,
                                       .x = p->x.data,
                                       .dt_raw = p->dt.data,
                                       .b = p->b.data,
                                       .cc = p->cc.data,
                                       .x_stride = p->x.stride,
                                       .dt_stride = p->dt.stride,
                                       .b_stride = p->b.stride,
                                       .c_stride = p->cc.stride,
                                       .a = op_floats(&p->a),
                                       .dt_bias = op_floats(&p->bias),
                                       .d = op_floats(&p->d),
                                       .dt_min = p->s.dt_min,
                                       .dt_max = p->s.dt_max,
                                       .dout = op_floats(&p->dout),
                                       .dout_stride = p->dout.stride,
                                       .dx = op_floats(&g->of[DX]),
                                       .db = op_floats(&g->of[DB]),
                                       .dcc = op_floats(&g->of[DCC]),
                                       .ddt = g->of[DDT].data,
                                       .ddt_dtype = g->of[DDT].dtype,
                                       .dx_stride = g->of[DX].stride,
                                       .db_stride = g->of[DB].stride,
                                       .dc_stride = g->of[DCC].stride,
                                       .ddt_stride = g->of[DDT].stride,
                                       .da = op_floats(&g->of[DA]),
                                       .ddt_bias = op_floats(&g->of[DDT_BIAS]),
                                       .dd = op_floats(&g->of[DD]),
                                       .rows = p->layout.rows,
                                       .n_heads = p->s.heads,
                                       .head_dim = p->s.dim,
                                       .n_groups = p->s.groups,
                                       .n_states = p->s.states,
                                       .spans = p->layout.spans,
                                       .n_spans = p->layout.n_spans,
                                       .initial = (const float *)(const void *)p->initial.data,
                                       .initial_scale = (const float *)(const void *)p->scale.data,
                                       .dinitial = op_floats(&g->of[DINITIAL]),
                                       .dfinal = (const float *)(const void *)p->dfinal.data};
    return args;
}

static void run_args(const ls_ssd_backward_args *args, ls_device *device) {
    grad_workspace workspace = grad_workspace_lend(device, ls_op_ssd_backward_workspace(args));
    ls_error err;
    assert_ok(ls_ssd_backward(device, args, &err), err);
    grad_workspace_take_back(&workspace);
}

/* The op on a device, in a workspace of exactly its size. */
static void run(const problem *p, const grads *g, ls_device *device) {
    const ls_ssd_backward_args args = problem_args(p, g);
    run_args(&args, device);
}

/* ---- the textbook ---- */

/* Wrong on purpose: folds over channels and over states as one chain, heads of a group as one chain, spans added from
 * the last to the first, a clamped step that lets a gradient through, the factors of W in another order, W carried
 * through borders of pieces, parameters summed through them, W not reset where a decay is
 * tiny, W +0 at the first token and after the last one of spans that others continue. */
typedef enum variant {
    RIGHT,
    CHANNEL_CHAIN,
    STATE_CHAIN,
    HEAD_CHAIN,
    SPANS_REVERSED,
    CLAMP_FLOWS,
    W_REORDERED,
    W_CARRIED,
    NO_PIECES,
    NO_RESET,
    FIRST_W_LOST,
    LAST_W_LOST
} variant;

static float slices_ref(const float *a, const float *b, int64_t n, variant v) {
    float s[8] = {0};
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = v == STATE_CHAIN ? 0 : i / 4 % 8;
        s[at] = ls_fma(a[i], b[i], s[at]);
    }
    return ls_add(ls_add(ls_add(s[0], s[1]), ls_add(s[2], s[3])), ls_add(ls_add(s[4], s[5]), ls_add(s[6], s[7])));
}

static float halves_ref(float *chain, int64_t n) {
    if (n == 1) return chain[0];
    for (int64_t i = 0; i < n / 2; i++) chain[i] = ls_add(chain[i], chain[i + n / 2]);
    return halves_ref(chain, n / 2);
}

/* y NULL: a sum. */
static float channels_ref(const float *x, const float *y, int64_t n, variant v) {
    float chain[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float *at = &chain[v == CHANNEL_CHAIN ? 0 : i % 16];
        *at = y == NULL ? ls_add(*at, x[i]) : ls_fma(x[i], y[i], *at);
    }
    return halves_ref(chain, 16);
}

typedef struct step {
    float raw, soft, dt, decay, product, scale, w;
    bool rescaled;
} step;

static step step_ref(const problem *p, int64_t row, int64_t h, float scale) {
    step s;
    s.raw = ls_add(op_get(&p->dt, row, h), op_get(&p->bias, 0, h));
    s.soft = s.dt = ls_softplus(s.raw);
    if (s.dt < p->s.dt_min) s.dt = p->s.dt_min;
    if (s.dt > p->s.dt_max) s.dt = p->s.dt_max;
    s.decay = ls_exp(ls_mul(s.dt, op_get(&p->a, 0, h)));
    s.product = ls_mul(scale, s.decay);
    s.rescaled = s.product < 0x1p-40f;
    s.scale = s.rescaled ? 1.0f : s.product;
    s.w = ls_mul(s.dt, ls_div(1.0f, s.scale));
    return s;
}

static float add_into(const op_array *a, int64_t row, int64_t col, float x) {
    const float sum = ls_add(op_get(a, row, col), x);
    op_put(a, row, col, sum);
    return sum;
}

static bool is_border(int64_t t) { return t % 64 == 0; }

/* Scalars of a head's tokens, and the parameters' gradients. */
static void scalars_ref(const problem *p, const ls_span *span, int64_t h, const grads *out, const step *steps,
                        const float *first_w, float last_w, const float *e, const float *x, const float *y,
                        const float *own, variant v) {
    const int64_t n = span->n_rows;
    float sums[8][3] = {{0}}, w = last_w; /* [piece][da, dd, ddt_bias] */
    assert_true(n <= 8 * 64);
    for (int64_t t = n - 1; t >= 0; t--) {
        const step s = steps[t];
        float *sum = sums[v == NO_PIECES ? 0 : t / 64], ddt;
        if (is_border(t) && !(v == W_CARRIED && t > 0))
            w = first_w[t / 64];
        else
            w = s.decay < 0x1p-24f && v != NO_RESET ? e[t] : ls_add(w, ls_fma(-s.dt, x[t], e[t]));
        ddt = ls_mul(ls_fma(w, op_get(&p->a, 0, h), ls_fma(own[t], y[t], x[t])), ls_sigmoid(s.raw));
        if ((s.soft < p->s.dt_min || s.soft > p->s.dt_max) && v != CLAMP_FLOWS) ddt = 0.0f;
        op_put(&out->of[DDT], span->row + t, h, ddt);
        sum[0] = ls_fma(w, s.dt, sum[0]);
        sum[1] = ls_add(sum[1], y[t]);
        sum[2] = ls_add(sum[2], ddt);
    }
    for (int64_t j = 0; j < (n + 63) / 64; j++) {
        add_into(&out->of[DA], 0, h, sums[j][0]);
        add_into(&out->of[DD], 0, h, sums[j][1]);
        add_into(&out->of[DDT_BIAS], 0, h, sums[j][2]);
    }
}

/* Head h of a span; its shares of db, dcc and of what tokens do to themselves go to the sums [rows][2 * states + 1] of
 * its block, which go on. */
static void head_ref(const problem *p, const ls_span *span, int64_t h, const grads *out, float *sums, variant v) {
    const int64_t n = p->s.states, dim = p->s.dim, each = n * dim, group = h / (p->s.heads / p->s.groups);
    float *state = op_alloc((span->n_rows + 1) * each * 4), *g = op_alloc(each * 4); /* [..][dim][states] */
    float *e = op_alloc(span->n_rows * 4), *x = op_alloc(span->n_rows * 4), *y = op_alloc(span->n_rows * 4);
    float *own = op_alloc(span->n_rows * 4);
    step *steps = op_alloc(span->n_rows * (int64_t)sizeof *steps);
    const int64_t span_i = span - p->layout.spans;
    float scale = p->scale.data == NULL ? 1.0f : op_get(&p->scale, span_i, h);
    float back = 1.0f, first_w[8] = {0}, last_w = 0.0f, to_last[256];
    for (int64_t i = 0; i < each; i++) {
        const int64_t at = h * each + i % n * dim + i / n;
        state[i] = p->initial.data == NULL ? 0.0f : op_get(&p->initial, span_i, at);
        g[i] = p->dfinal.data == NULL ? 0.0f : op_get(&p->dfinal, span_i, at);
    }
    for (int64_t t = 0; t < span->n_rows; t++) {
        const int64_t row = span->row + t;
        const step s = steps[t] = step_ref(p, row, h, scale);
        float *before = state + t * each, *after = before + each, *sum = sums + t * (2 * n + 1);
        float fold[256], b[256], cc[256], xs[256], dy[256];
        for (int64_t c = 0; c < dim; c++) {
            xs[c] = op_get(&p->x, row, h * dim + c);
            dy[c] = op_get(&p->dout, row, h * dim + c);
        }
        for (int64_t i = 0; i < n; i++) {
            float column[256];
            b[i] = op_get(&p->b, row, group * n + i);
            cc[i] = op_get(&p->cc, row, group * n + i);
            for (int64_t c = 0; c < dim; c++) {
                float *at = &before[c * n + i];
                if (s.rescaled) *at = ls_mul(*at, s.product);
                column[c] = *at;
                after[c * n + i] = ls_fma(ls_mul(s.w, xs[c]), b[i], *at);
            }
            fold[i] = channels_ref(dy, column, dim, v);
            sum[n + i] = ls_fma(s.scale, fold[i], sum[n + i]);
        }
        e[t] = ls_mul(s.scale, slices_ref(cc, fold, n, v));
        y[t] = channels_ref(dy, xs, dim, v);
        own[t] = slices_ref(b, cc, n, v);
        sum[2 * n] = ls_fma(s.dt, y[t], sum[2 * n]);
        scale = s.scale;
    }
    for (int64_t c = 0; c < dim; c++) to_last[c] = slices_ref(g + c * n, state + span->n_rows * each + c * n, n, v);
    if (p->dfinal.data != NULL && v != LAST_W_LOST) last_w = ls_mul(scale, channels_ref(to_last, NULL, dim, v));
    for (int64_t t = span->n_rows - 1; t >= 0; t--) {
        const int64_t row = span->row + t;
        const step s = steps[t];
        float xs[256], b[256], u[256], to_t[256], product;
        product = back = t + 1 < span->n_rows ? ls_mul(back, steps[t + 1].decay) : 1.0f;
        if (product < 0x1p-40f) back = 1.0f;
        for (int64_t i = 0; i < n; i++) b[i] = op_get(&p->b, row, group * n + i);
        for (int64_t i = 0; i < each && product < 0x1p-40f; i++) g[i] = ls_mul(g[i], product);
        for (int64_t c = 0; c < dim; c++) xs[c] = op_get(&p->x, row, h * dim + c);
        for (int64_t i = 0; i < n; i++) {
            float gs[256], *sum = sums + t * (2 * n + 1) + i;
            for (int64_t c = 0; c < dim; c++) gs[c] = g[c * n + i];
            *sum = ls_fma(ls_mul(s.dt, back), channels_ref(xs, gs, dim, v), *sum);
        }
        for (int64_t c = 0; c < dim; c++) {
            const float dy = op_get(&p->dout, row, h * dim + c), drive = ls_mul(ls_div(1.0f, back), dy);
            float *at = g + c * n;
            u[c] = ls_mul(back, slices_ref(b, at, n, v));
            op_put(&out->of[DX], row, h * dim + c,
                   ls_fma(op_get(&p->d, 0, h), dy, ls_mul(s.dt, ls_fma(own[t], dy, u[c]))));
            for (int64_t i = 0; i < n; i++) at[i] = ls_fma(drive, op_get(&p->cc, row, group * n + i), at[i]);
            to_t[c] = slices_ref(at, state + t * each + c * n, n, v);
        }
        x[t] = channels_ref(xs, u, dim, v);
        if (is_border(t) && (t > 0 || (p->initial.data != NULL && v != FIRST_W_LOST))) {
            const float z = channels_ref(to_t, NULL, dim, v);
            first_w[t / 64] = v == W_REORDERED ? ls_mul(s.scale, ls_mul(back, z)) : ls_mul(ls_mul(s.scale, back), z);
        }
    }
    scalars_ref(p, span, h, out, steps, first_w, last_w, e, x, y, own, v);
    for (int64_t i = 0; i < each && span->n_rows > 0; i++)
        op_put(&out->of[DINITIAL], span_i, h * each + i % n * dim + i / n, ls_mul(ls_mul(back, steps[0].decay), g[i]));
    free(state);
    free(g);
    free(e);
    free(x);
    free(y);
    free(own);
    free(steps);
}

static void span_ref(const problem *p, const ls_span *span, const grads *out, variant v) {
    const int64_t n = p->s.states, heads = p->s.heads / p->s.groups, block = v == HEAD_CHAIN ? heads : 4;
    const int64_t floats = span->n_rows * (2 * n + 1);
    float *sums = op_alloc(floats * 4);
    for (int64_t group = 0; group < p->s.groups; group++) {
        for (int64_t t = 0; t < span->n_rows; t++)
            for (int64_t i = 0; i < n; i++) {
                op_put(&out->of[DB], span->row + t, group * n + i, 0.0f);
                op_put(&out->of[DCC], span->row + t, group * n + i, 0.0f);
            }
        for (int64_t first = 0; first < heads; first += block) {
            for (int64_t i = 0; i < floats; i++) sums[i] = 0.0f;
            for (int64_t h = first; h < heads && h < first + block; h++)
                head_ref(p, span, group * heads + h, out, sums, v);
            for (int64_t t = 0; t < span->n_rows; t++)
                for (int64_t i = 0; i < n; i++) {
                    const float *sum = sums + t * (2 * n + 1), own = sum[2 * n];
                    const int64_t row = span->row + t, col = group * n + i;
                    add_into(&out->of[DB], row, col, ls_fma(own, op_get(&p->cc, row, col), sum[i]));
                    add_into(&out->of[DCC], row, col, ls_fma(own, op_get(&p->b, row, col), sum[n + i]));
                }
        }
    }
    free(sums);
}

/* Of all that grad_ref reads. */
static uint64_t key_of(const problem *p, variant v) {
    const op_array *inputs[] = {&p->x,    &p->dt, &p->b,       &p->cc,     &p->dout, &p->a,
                                &p->bias, &p->d,  &p->initial, &p->dfinal, &p->scale};
    const int64_t form[] = {p->s.heads, p->s.dim, p->s.groups, p->s.states, v};
    const float limits[] = {p->s.dt_min, p->s.dt_max};
    uint64_t key = grad_key(op_key(op_key(0, form, sizeof form), limits, sizeof limits), &p->layout);
    for (int64_t i = 0; i < OP_COUNT(inputs); i++) key = op_key_array(key, inputs[i]);
    return key;
}

static void grad_ref(const problem *p, const grads *out, variant v) {
    uint64_t keys[N_GRADS];
    if (grad_recall(keys, key_of(p, v), out->of, N_GRADS)) return;
    for (int i = DA; i < DINITIAL; i++)
        for (int64_t h = 0; h < p->s.heads; h++) op_put(&out->of[i], 0, h, 0.0f);
    for (int64_t j = 0; j < p->layout.n_spans; j++) {
        const ls_span *span = &p->layout.spans[v == SPANS_REVERSED ? p->layout.n_spans - 1 - j : j];
        if (span->slot >= 0) span_ref(p, span, out, v);
    }
    grad_keep(keys, out->of, N_GRADS);
}

static void problem_check(const problem *p, ls_isa isa, const char *what) {
    grads expected = grads_make(p->layout.rows, &p->s, 3);
    grad_ref(p, &expected, RIGHT);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        grads got = grads_make(p->layout.rows, &p->s, 3);
        run(p, &got, op_devices[isa][t]);
        for (int i = 0; i < N_GRADS; i++)
            op_check(&expected.of[i], &got.of[i], OP_NAN_ANY, "%s: %s of %lld x %lld heads, %lld groups, %lld states",
                     what, grad_names[i], (long long)p->s.heads, (long long)p->s.dim, (long long)p->s.groups,
                     (long long)p->s.states);
        grads_free(&got);
    }
    grads_free(&expected);
}

static const shape shapes[] = {
    {1, 1, 1, 1, 0.0f, INFINITY},    {2, 3, 1, 5, 0.0f, INFINITY},   {4, 8, 2, 4, 0.05f, 0.5f},
    {10, 16, 2, 31, 0.0f, INFINITY}, {9, 17, 1, 32, 0.1f, INFINITY}, {2, 33, 2, 64, 0.0f, INFINITY},
    {1, 64, 1, 128, 0.0f, INFINITY},
};

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t choices[] = {1, 2, 7, 8, 9, 17};
    uint64_t seed = 1;
    for (int64_t i = 0; i < 2 * OP_COUNT(shapes); i++) {
        const grad_layout layout = grad_layout_random(choices, OP_COUNT(choices), &seed);
        problem p = problem_make(&layout, &shapes[i / 2], i / 2 % 2 ? LS_BF16 : LS_F32, i % 2 == 1, seed);
        if (i % 3 != 0) states_make(&p, i % 2 == 1 ? op_special : op_plain, seed);
        problem_check(&p, isa, i % 2 ? "special" : "plain");
        problem_free(&p);
    }
}

static void every_length_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t lengths[] = {8, 63, 64, 65, 128, 192, 193, 300};
    const shape s = {3, 5, 1, 6, 0.0f, INFINITY};
    for (int64_t i = 0; i < OP_COUNT(lengths); i++) {
        const grad_layout layout = grad_layout_make(1, &lengths[i], i % 2 == 1, (uint64_t)i + 1);
        problem p = problem_make(&layout, &s, LS_F32, false, (uint64_t)i + 1);
        if (i % 3 != 0) states_make(&p, op_plain, (uint64_t)i + 1);
        problem_check(&p, isa, "length");
        problem_free(&p);
    }
}

static void no_tokens_give_zero_gradients(void **state) {
    const ls_isa isa = op_isa(state);
    const grad_layout layout = {6, 2, {{0, 3, 0, -1, 0}, {4, 0, 0, 1, 0}}};
    const shape s = {4, 5, 2, 3, 0.0f, INFINITY};
    problem p = problem_make(&layout, &s, LS_F32, false, 3);
    grads got = grads_make(6, &s, 0);
    problem_check(&p, isa, "no tokens");
    run(&p, &got, op_devices[isa][0]);
    for (int i = DA; i < DINITIAL; i++)
        for (int64_t h = 0; h < 4; h++) assert_int_equal(ls_bits(op_get(&got.of[i], 0, h)), 0);
    grads_free(&got);
    problem_free(&p);
}

/* ---- independence ---- */

static problem problem_alone(const problem *p, const ls_span *span) {
    problem q = *p;
    q.x = grad_rows(&p->x, span);
    q.dt = grad_rows(&p->dt, span);
    q.b = grad_rows(&p->b, span);
    q.cc = grad_rows(&p->cc, span);
    q.dout = grad_rows(&p->dout, span);
    q.layout = grad_layout_make(1, &span->n_rows, false, 1);
    return q;
}

static void problem_alone_free(problem *q) {
    op_array *rows[] = {&q->x, &q->dt, &q->b, &q->cc, &q->dout};
    for (int64_t i = 0; i < OP_COUNT(rows); i++) op_array_free(rows[i]);
}

/* Gradients of a sequence's rows are the same alone and packed, and calls may be cut between spans. */
static void sequences_do_not_see_each_other(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t three[] = {33, 5, 150};
    const shape s = {6, 7, 2, 9, 0.0f, INFINITY};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const grad_layout layout = grad_layout_make(3, three, seed > 1, seed);
        problem p = problem_make(&layout, &s, seed % 2 ? LS_F32 : LS_BF16, false, seed);
        grads packed = grads_make(layout.rows, &s, 0), sums = grads_make(1, &s, 0);
        for (int i = DA; i < DINITIAL; i++) memset(sums.of[i].data, 0, (size_t)sums.of[i].bytes);
        run(&p, &packed, op_devices[isa][2]);
        for (int64_t j = 0; j < layout.n_spans; j++) {
            const ls_span *span = &layout.spans[j];
            ls_ssd_backward_args args;
            problem q;
            grads alone;
            if (span->slot < 0) continue;
            q = problem_alone(&p, span);
            alone = grads_make(span->n_rows, &s, 0);
            args = problem_args(&q, &alone);
            args.continued = true;
            args.da = op_floats(&sums.of[DA]);
            args.ddt_bias = op_floats(&sums.of[DDT_BIAS]);
            args.dd = op_floats(&sums.of[DD]);
            run_args(&args, op_devices[isa][j % OP_THREADS_MAX]);
            for (int i = 0; i < DA; i++) {
                op_array rows = grad_rows(&packed.of[i], span);
                op_check(&alone.of[i], &rows, OP_NAN_PINNED, "packed: %s of span %lld", grad_names[i], (long long)j);
                op_array_free(&rows);
            }
            grads_free(&alone);
            problem_alone_free(&q);
        }
        for (int i = DA; i < DINITIAL; i++)
            op_check(&sums.of[i], &packed.of[i], OP_NAN_PINNED, "continued: %s", grad_names[i]);
        grads_free(&packed);
        grads_free(&sums);
        problem_free(&p);
    }
}

static void ddt_is_rounded_once(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t one[] = {9};
    const grad_layout layout = grad_layout_make(1, one, false, 1);
    const shape s = {4, 5, 2, 3, 0.0f, INFINITY};
    problem p = problem_make(&layout, &s, LS_F32, false, 3);
    grads full = grads_make(9, &s, 0), half = grads_make(9, &s, 0);
    op_array_free(&half.of[DDT]);
    half.of[DDT] = op_array_make(LS_BF16, 9, 4, 0);
    run(&p, &full, op_devices[isa][0]);
    run(&p, &half, op_devices[isa][0]);
    for (int64_t r = 0; r < 9; r++)
        for (int64_t h = 0; h < 4; h++)
            assert_int_equal(ls_bits(op_get(&half.of[DDT], r, h)), ls_bits(ls_round_bf16(op_get(&full.of[DDT], r, h))));
    op_check(&full.of[DDT_BIAS], &half.of[DDT_BIAS], OP_NAN_PINNED, "ddt_bias");
    grads_free(&full);
    grads_free(&half);
    problem_free(&p);
}

/* ---- truth ---- */

enum { T_ROWS = 135, T_HEADS = 4, T_DIM = 3, T_GROUPS = 2, T_STATES = 5 };

/* The same problem in float64: two sequences of 130 and 5 tokens, or a tree. */
typedef struct exact {
    grad_layout layout;
    bool is_tree;
    double x[T_ROWS * T_HEADS * T_DIM], dt[T_ROWS * T_HEADS], dout[T_ROWS * T_HEADS * T_DIM];
    double b[T_ROWS * T_GROUPS * T_STATES], cc[T_ROWS * T_GROUPS * T_STATES], a[T_HEADS], bias[T_HEADS], d[T_HEADS];
    double dt_min, dt_max;
} exact;

/* dout * out of token t of a channel; its state moves on. */
static double exact_token(const exact *e, double *state, int64_t t, int64_t h, int64_t c) {
    const int64_t at = (t * T_HEADS + h) * T_DIM + c, group = t * T_GROUPS + h / (T_HEADS / T_GROUPS);
    const double dt = fmin(e->dt_max, fmax(e->dt_min, log1p(exp(e->dt[t * T_HEADS + h] + e->bias[h]))));
    double y = e->d[h] * e->x[at];
    for (int s = 0; s < T_STATES; s++) {
        state[s] = exp(dt * e->a[h]) * state[s] + dt * e->x[at] * e->b[group * T_STATES + s];
        y += state[s] * e->cc[group * T_STATES + s];
    }
    return e->dout[at] * y;
}

/* The sum of dout * out. */
static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int64_t h = 0; h < T_HEADS; h++)
        for (int64_t c = 0; c < T_DIM; c++) {
            double state[GRAD_SPANS_MAX][T_STATES] = {{0}};
            for (int64_t i = 0; i < e->layout.n_spans; i++) {
                const ls_span *span = &e->layout.spans[i];
                if (e->is_tree && i > 0) memcpy(state[i], state[grad_tree_parent[i]], sizeof state[i]);
                for (int64_t t = 0; t < span->n_rows; t++) loss += exact_token(e, state[i], span->row + t, h, c);
            }
        }
    return loss;
}

static void widen_to(double *to, const op_array *from) {
    for (int64_t r = 0; r < from->rows; r++)
        for (int64_t c = 0; c < from->cols; c++) *to++ = op_get(from, r, c);
}

/* Slow rates, where the past counts, or fast ones, where the scale goes into the state; clamped steps or not. */
static problem truth_problem(const grad_layout *layout, int kind) {
    const bool clamped = kind % 2 == 1;
    const shape s = {T_HEADS, T_DIM, T_GROUPS, T_STATES, clamped ? 0.05f : 0.0f, clamped ? 2.0f : INFINITY};
    problem p = problem_make(layout, &s, LS_F32, false, (uint64_t)kind + 1);
    uint64_t seed = (uint64_t)kind + 9;
    op_fill(&p.a, kind / 2 ? op_rate : op_slow, &seed);
    return p;
}

/* The worst error, within 1e-4 of the largest gradient of its kind. */
static double truth_check(const problem *p, const grads *got, int kind, bool is_tree) {
    static exact e;
    double *const inputs[DINITIAL] = {e.x, e.dt, e.b, e.cc, e.a, e.bias, e.d};
    const op_array *from[DINITIAL] = {&p->x, &p->dt, &p->b, &p->cc, &p->a, &p->bias, &p->d};
    double worst = 0.0;
    e.layout = p->layout;
    e.is_tree = is_tree;
    e.dt_min = p->s.dt_min;
    e.dt_max = p->s.dt_max;
    for (int i = 0; i < DINITIAL; i++) widen_to(inputs[i], from[i]);
    widen_to(e.dout, &p->dout);
    for (int i = 0; i < DINITIAL; i++) {
        const double error =
            grad_worst(op_floats(&got->of[i]), inputs[i], from[i]->rows * from[i]->cols, exact_loss, &e);
        if (!(error <= 1e-4)) fail_msg("%s, kind %d: error %g of the largest", grad_names[i], kind, error);
        worst = fmax(worst, error);
    }
    return worst;
}

/* Of every instruction set: differences in float64 take longest, so the sets are compared with each other first. */
static void gradients_are_those_of_float64(void **state) {
    const int64_t two[] = {130, 5};
    const grad_layout layout = grad_layout_make(2, two, false, 1);
    double worst = 0.0;
    (void)state;
    for (int kind = 0; kind < 4; kind += SANITIZED ? 3 : 1) {
        problem p = truth_problem(&layout, kind);
        grads got = grads_make(T_ROWS, &p.s, 0);
        run(&p, &got, op_devices[LS_ISA_GENERIC][0]);
        for (int isa = LS_ISA_GENERIC + 1; isa < LS_ISA_COUNT && op_devices[isa][0] != NULL; isa++) {
            grads other = grads_make(T_ROWS, &p.s, 0);
            run(&p, &other, op_devices[isa][0]);
            for (int i = 0; i < DINITIAL; i++)
                op_check(&got.of[i], &other.of[i], OP_NAN_PINNED, "%s of %s", grad_names[i], ls_isa_name((ls_isa)isa));
            grads_free(&other);
        }
        worst = fmax(worst, truth_check(&p, &got, kind, false));
        grads_free(&got);
        problem_free(&p);
    }
    print_message("worst error %.3g of the largest gradient of its kind\n", worst);
}

/* ---- spans that continue others ---- */

enum { ENTRY = T_HEADS * T_STATES * T_DIM }; /* floats of a state */

/* The forward of a level, from the states and scales that its parents left: [spans]. */
static void tree_forward(const problem *p, const grads *g, const grad_level *l, float *states, float *scales,
                         ls_device *device) {
    const ls_ssd_backward_args back = problem_args(p, g);
    const op_array out = op_array_make(LS_F32, back.rows, T_HEADS * T_DIM, 0);
    const ls_ssd_args args = {.in_dtype = back.in_dtype,
                              .x = back.x,
                              .dt_raw = back.dt_raw,
                              .b = back.b,
                              .cc = back.cc,
                              .out = out.data,
                              .x_stride = back.x_stride,
                              .dt_stride = back.dt_stride,
                              .b_stride = back.b_stride,
                              .c_stride = back.c_stride,
                              .out_stride = out.stride,
                              .a = back.a,
                              .dt_bias = back.dt_bias,
                              .d = back.d,
                              .dt_min = back.dt_min,
                              .dt_max = back.dt_max,
                              .rows = back.rows,
                              .n_heads = back.n_heads,
                              .head_dim = back.head_dim,
                              .n_groups = back.n_groups,
                              .n_states = back.n_states,
                              .state = {(uint8_t *)states, ENTRY * 4, GRAD_TREE_SPANS},
                              .scale = {(uint8_t *)scales, T_HEADS * 4, GRAD_TREE_SPANS},
                              .spans = l->spans,
                              .n_spans = l->n};
    op_array to_free = out;
    ls_error err;
    assert_ok(ls_ssd(device, &args, &err), err);
    op_array_free(&to_free);
}

/* Gradients of a tree, level by level, the deepest first; initial, scale, dfinal: [spans]. */
static void tree_back(const problem *p, const grads *got, const float *initial, const float *scale, float *dfinal,
                      ls_device *device) {
    for (int64_t level = GRAD_TREE_LEVELS - 1; level >= 0; level--) {
        const grad_level l = grad_level_make(&p->layout, level);
        float *before = grad_level_gather(&l, initial, ENTRY * 4), *last = grad_level_gather(&l, dfinal, ENTRY * 4);
        float *scales = grad_level_gather(&l, scale, T_HEADS * 4), *first = op_alloc(l.n * ENTRY * 4);
        ls_ssd_backward_args args = problem_args(p, got);
        args.spans = l.spans;
        args.n_spans = l.n;
        args.continued = level < GRAD_TREE_LEVELS - 1;
        args.initial = level > 0 ? before : NULL;
        args.initial_scale = level > 0 ? scales : NULL;
        args.dinitial = level > 0 ? first : NULL;
        args.dfinal = level < GRAD_TREE_LEVELS - 1 ? last : NULL;
        run_args(&args, device);
        if (level > 0) grad_level_give(&l, first, dfinal, ENTRY);
        free(before);
        free(last);
        free(scales);
        free(first);
    }
}

/* A trunk is computed once for all that continue it, and its gradients are as near to float64 as others. */
static void gradients_of_a_tree_are_those_of_float64(void **state) {
    const int64_t rows[] = {20, 3, 4, 10};
    const grad_layout tree = grad_tree_make(rows);
    ls_device *device = op_devices[ls_isa_best()][1];
    (void)state;
    for (int kind = 0; kind < 4; kind += 2) {
        problem p = truth_problem(&tree, kind);
        grads got = grads_make(tree.rows, &p.s, 0);
        _Alignas(16) float states[GRAD_TREE_SPANS * ENTRY], scales[GRAD_TREE_SPANS * T_HEADS];
        float initial[GRAD_TREE_SPANS * ENTRY] = {0}, scale[GRAD_TREE_SPANS * T_HEADS] = {0};
        float dfinal[GRAD_TREE_SPANS * ENTRY] = {0};
        for (int64_t level = 0; level < GRAD_TREE_LEVELS; level++) {
            const grad_level l = grad_level_make(&tree, level);
            grad_level_fork(&l, states, ENTRY * 4);
            grad_level_fork(&l, scales, T_HEADS * 4);
            for (int64_t i = 0; i < l.n && level > 0; i++) {
                memcpy(initial + l.of[i] * ENTRY, states + l.of[i] * ENTRY, ENTRY * 4);
                memcpy(scale + l.of[i] * T_HEADS, scales + l.of[i] * T_HEADS, T_HEADS * 4);
            }
            tree_forward(&p, &got, &l, states, scales, device);
        }
        tree_back(&p, &got, initial, scale, dfinal, device);
        (void)truth_check(&p, &got, kind, true);
        grads_free(&got);
        problem_free(&p);
    }
}

/* The second part of a sequence, cut where a piece begins, has the rows' gradients of the whole, in bits. */
static void a_cut_changes_no_row_behind_it(void **state) {
    enum { ROWS = 130, CUT = 64 };
    const int64_t one[] = {ROWS};
    const grad_layout layout = grad_layout_make(1, one, false, 1);
    const grad_level trunk = {1, {0}, {{0, CUT, 0, 0, 0}}}, behind = {1, {0}, {{CUT, ROWS - CUT, CUT, 0, 0}}};
    ls_device *device = op_devices[op_isa(state)][1];
    problem p = truth_problem(&layout, 2);
    grads whole = grads_make(ROWS, &p.s, 0), got = grads_make(ROWS, &p.s, 0);
    _Alignas(16) float states[GRAD_TREE_SPANS * ENTRY], scales[GRAD_TREE_SPANS * T_HEADS];
    ls_ssd_backward_args args = problem_args(&p, &got);
    run(&p, &whole, device);
    tree_forward(&p, &got, &trunk, states, scales, device);
    args.spans = behind.spans;
    args.initial = states;
    args.initial_scale = scales;
    run_args(&args, device);
    for (int i = DX; i <= DCC; i++) grad_rows_check(&whole.of[i], &got.of[i], behind.spans, grad_names[i]);
    grads_free(&whole);
    grads_free(&got);
    problem_free(&p);
}

/* Spans that begin with zeros, and that nothing continues, have the bits of whole sequences. */
static void zero_states_change_nothing(void **state) {
    const int64_t two[] = {70, 2};
    const grad_layout layout = grad_layout_make(2, two, true, 3);
    const shape s = {4, 5, 2, 3, 0.0f, INFINITY};
    problem p = problem_make(&layout, &s, LS_F32, false, 3);
    grads whole = grads_make(layout.rows, &s, 0), got = grads_make(layout.rows, &s, 0);
    run(&p, &whole, op_devices[op_isa(state)][0]);
    states_make(&p, op_plain, 1);
    memset(p.initial.data, 0, (size_t)p.initial.bytes);
    memset(p.dfinal.data, 0, (size_t)p.dfinal.bytes);
    for (int64_t i = 0; i < p.scale.rows * 4; i++) op_put(&p.scale, i / 4, i % 4, 1.0f);
    run(&p, &got, op_devices[op_isa(state)][1]);
    for (int i = 0; i < N_GRADS; i++) op_check(&whole.of[i], &got.of[i], OP_NAN_PINNED, "zero: %s", grad_names[i]);
    grads_free(&got);
    grads_free(&whole);
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    const grad_layout layout = {9, 2, {{0, 4, 0, 0, 0}, {4, 5, 0, 1, 0}}};
    const shape s = {4, 5, 2, 3, 0.0f, INFINITY};
    problem p = problem_make(&layout, &s, LS_F32, false, 1);
    grads got = grads_make(9, &s, 0), untouched = grads_make(9, &s, 0);
    const ls_ssd_backward_args right = problem_args(&p, &got);
    ls_device *device = op_devices[0][1];
    grad_workspace workspace = grad_workspace_lend(device, ls_op_ssd_backward_workspace(&right));
    ls_ssd_backward_args args;
    ls_span spans[2];
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                              \
    do {                                                                \
        args = right;                                                   \
        memcpy(spans, layout.spans, sizeof spans);                      \
        args.spans = spans;                                             \
        __VA_ARGS__;                                                    \
        check_failed(ls_ssd_backward(device, &args, &err), &err, word); \
        check_failed(err.status, &err, "ssd_backward");                 \
    } while (0)
    REFUSED("x is a null", args.x = NULL);
    REFUSED("dt_raw is a null", args.dt_raw = NULL);
    REFUSED("b is a null", args.b = NULL);
    REFUSED("cc is a null", args.cc = NULL);
    REFUSED("a is a null", args.a = NULL);
    REFUSED("dt_bias is a null", args.dt_bias = NULL);
    REFUSED("d is a null", args.d = NULL);
    REFUSED("dout is a null", args.dout = NULL);
    REFUSED("dx is a null", args.dx = NULL);
    REFUSED("db is a null", args.db = NULL);
    REFUSED("dcc is a null", args.dcc = NULL);
    REFUSED("ddt is a null", args.ddt = NULL);
    REFUSED("da is a null", args.da = NULL);
    REFUSED("ddt_bias is a null", args.ddt_bias = NULL);
    REFUSED("dd is a null", args.dd = NULL);
    REFUSED("inputs f16", args.in_dtype = LS_F16);
    REFUSED("ddt f16", args.ddt_dtype = LS_F16);
    REFUSED("n_heads 0", args.n_heads = 0);
    REFUSED("n_groups 3", args.n_groups = 3);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("dout: stride 19", args.dout_stride = 19);
    REFUSED("dx: stride 19", args.dx_stride = 19);
    REFUSED("db: stride 5", args.db_stride = 5);
    REFUSED("dcc: stride 5", args.dc_stride = 5);
    REFUSED("ddt: stride 3", args.ddt_stride = 3);
    REFUSED("9223372036854775807 rows", args.rows = INT64_MAX);
    REFUSED("9223372036854775807 spans", args.n_spans = INT64_MAX);
    REFUSED("2 spans at", args.spans = NULL);
    REFUSED("span 1: position 2", spans[1].pos = 2);
    REFUSED("span 1: position -2", spans[1].pos = -2; args.initial = op_floats(&got.of[DINITIAL]));
    REFUSED("initial is a null pointer and initial_scale is not", args.initial_scale = args.a);
    REFUSED("span 1: row 3 before", spans[1].row = 3);
    REFUSED("span 1: row 4, rows 6", spans[1].n_rows = 6);
#undef REFUSED
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
    for (int64_t i = 0; i < 7 * 7 * 7 * 7 * 7; i++) {
        const ls_ssd_backward_args args = {.rows = wild[i % 7],
                                           .n_heads = wild[i / 7 % 7],
                                           .head_dim = wild[i / 49 % 7],
                                           .n_groups = wild[i / 343 % 7],
                                           .n_states = 3,
                                           .n_spans = wild[i / 2401]};
        const bool negative =
            args.rows < 0 || args.n_heads < 0 || args.head_dim < 0 || args.n_groups < 1 || args.n_spans < 0;
        const int64_t bytes = ls_op_ssd_backward_workspace(&args);
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
    } cases[] = {{CHANNEL_CHAIN, DB},  {CHANNEL_CHAIN, DCC}, {CHANNEL_CHAIN, DD}, {STATE_CHAIN, DX},
                 {STATE_CHAIN, DDT},   {HEAD_CHAIN, DB},     {HEAD_CHAIN, DCC},   {SPANS_REVERSED, DA},
                 {SPANS_REVERSED, DD}, {CLAMP_FLOWS, DDT},   {W_REORDERED, DDT},  {W_CARRIED, DDT},
                 {NO_PIECES, DA},      {NO_PIECES, DD},      {NO_RESET, DDT},     {FIRST_W_LOST, DDT},
                 {LAST_W_LOST, DA}};
    const int64_t three[] = {33, 260, 15};
    const grad_layout layout = grad_layout_make(3, three, true, 2);
    const shape s = {12, 21, 2, 40, 0.01f, INFINITY};
    problem p = problem_make(&layout, &s, LS_F32, false, 8);
    states_make(&p, op_plain, 9);
    grads right = grads_make(layout.rows, &s, 0);
    (void)state;
    grad_ref(&p, &right, RIGHT);
    for (int64_t i = 0; i < OP_COUNT(cases); i++) {
        const int seen_in = cases[i].seen_in;
        grads wrong = grads_make(layout.rows, &s, 0);
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
        OP_CASES(every_shape_equals_the_textbook),
        OP_CASES(every_length_equals_the_textbook),
        OP_CASES(no_tokens_give_zero_gradients),
        OP_CASES(sequences_do_not_see_each_other),
        OP_CASES(ddt_is_rounded_once),
        cmocka_unit_test(gradients_are_those_of_float64),
        cmocka_unit_test(gradients_of_a_tree_are_those_of_float64),
        OP_CASES(a_cut_changes_no_row_behind_it),
        OP_CASES(zero_states_change_nothing),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(workspaces_that_do_not_fit),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
