/* Gradients of the gated delta rule against a textbook reading of their contract, bit for bit, and against central
 * differences of the rule in float64. */
#include "op/delta.h"
#include "op/op_grad.h"

typedef struct shape {
    int64_t heads, key_heads, keys, dim; /* dim: columns of a head */
} shape;

typedef struct problem {
    grad_layout layout;
    shape s;
    op_array q, k, v, a, b, dout; /* [rows] */
    op_array rate, bias;          /* [1][heads] */
    op_array initial, dfinal;     /* [n_spans][heads * keys * dim]; data NULL: none */
    op_array scale;               /* [n_spans][heads]; data NULL: none */
} problem;

/* Gradients in the order of the arguments. */
enum { DQ, DK, DV, DA, DB, DRATE, DDT_BIAS, DINITIAL, N_GRADS };
static const char *const grad_names[N_GRADS] = {"dq", "dk", "dv", "da", "db", "drate", "ddt_bias", "dinitial"};

typedef struct grads {
    op_array of[N_GRADS];
} grads;

static grads grads_make(int64_t rows, int64_t n_spans, const shape *s, int64_t pad) {
    const int64_t keys = s->key_heads * s->keys, values = s->heads * s->dim;
    const int64_t cols[N_GRADS] = {keys, keys, values, s->heads, s->heads, s->heads, s->heads, values * s->keys};
    grads g;
    for (int i = 0; i < N_GRADS; i++) {
        const int64_t n = i < DRATE ? rows : i == DINITIAL ? n_spans : 1;
        g.of[i] = op_array_make(LS_F32, n, cols[i], i < DRATE ? pad + i * (pad != 0) : 0);
        op_guard(&g.of[i]);
    }
    return g;
}

static void grads_free(grads *g) {
    for (int i = 0; i < N_GRADS; i++) op_array_free(&g->of[i]);
}

static float op_rate(uint64_t *seed) { return test_uniform(seed, -16.0f, -0.05f); }
static float op_slow(uint64_t *seed) { return test_uniform(seed, -0.5f, -0.02f); }
static float op_bias(uint64_t *seed) { return test_uniform(seed, -5.0f, 1.0f); }

static problem problem_make(const grad_layout *layout, const shape *s, ls_dtype in, bool special, uint64_t seed) {
    const int64_t keys = s->key_heads * s->keys, values = s->heads * s->dim;
    const int64_t cols[] = {keys, keys, values, s->heads, s->heads, values};
    problem p = {.layout = *layout, .s = *s};
    op_array *rows[] = {&p.q, &p.k, &p.v, &p.a, &p.b, &p.dout};
    for (int i = 0; i < 6; i++) {
        *rows[i] = op_array_make(i < 5 ? in : LS_F32, layout->rows, cols[i], (int64_t)(test_random(&seed) % 4));
        grad_fill(rows[i], layout, special ? op_special : i == 3 || i == 4 ? op_wide : op_plain, &seed);
    }
    p.rate = op_array_make(LS_F32, 1, s->heads, 0);
    p.bias = op_array_make(LS_F32, 1, s->heads, 0);
    op_fill(&p.rate, op_rate, &seed);
    op_fill(&p.bias, op_bias, &seed);
    return p;
}

static void initial_make(problem *p, uint64_t seed) {
    p->initial = op_array_make(LS_F32, p->layout.n_spans, p->s.heads * p->s.keys * p->s.dim, 0);
    op_fill(&p->initial, op_plain, &seed);
}

static float op_scale(uint64_t *seed) { return ls_exp(test_uniform(seed, -27.0f, 0.0f)); }

/* The spans continue others, and others continue them. */
static void states_make(problem *p, uint64_t seed) {
    initial_make(p, seed);
    p->dfinal = op_array_make(LS_F32, p->layout.n_spans, p->initial.cols, 0);
    p->scale = op_array_make(LS_F32, p->layout.n_spans, p->s.heads, 0);
    op_fill(&p->dfinal, op_plain, &seed);
    op_fill(&p->scale, op_scale, &seed);
    for (int64_t i = 0; i < p->layout.n_spans; i++) p->layout.spans[i].pos = 3 * i;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->q,    &p->k,    &p->v,       &p->a,      &p->b,    &p->dout,
                          &p->rate, &p->bias, &p->initial, &p->dfinal, &p->scale};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

static ls_delta_backward_args problem_args(const problem *p, const grads *g) {
    const ls_delta_backward_args args = {.in_dtype = p->q.dtype,
                                         .q = p->q.data,
                                         .k = p->k.data,
                                         .v = p->v.data,
                                         .a = p->a.data,
                                         .b = p->b.data,
                                         .q_stride = p->q.stride,
                                         .k_stride = p->k.stride,
                                         .v_stride = p->v.stride,
                                         .a_stride = p->a.stride,
                                         .b_stride = p->b.stride,
                                         .rate = op_floats(&p->rate),
                                         .dt_bias = op_floats(&p->bias),
                                         .initial = (const float *)(const void *)p->initial.data,
                                         .dout = op_floats(&p->dout),
                                         .dout_stride = p->dout.stride,
                                         .dq = op_floats(&g->of[DQ]),
                                         .dk = op_floats(&g->of[DK]),
                                         .dv = op_floats(&g->of[DV]),
                                         .da = g->of[DA].data,
                                         .db = g->of[DB].data,
                                         .dab_dtype = g->of[DA].dtype,
                                         .dq_stride = g->of[DQ].stride,
                                         .dk_stride = g->of[DK].stride,
                                         .dv_stride = g->of[DV].stride,
                                         .da_stride = g->of[DA].stride,
                                         .db_stride = g->of[DB].stride,
                                         .drate = op_floats(&g->of[DRATE]),
                                         .ddt_bias = op_floats(&g->of[DDT_BIAS]),
                                         .dinitial = op_floats(&g->of[DINITIAL]),
                                         .rows = p->layout.rows,
                                         .n_heads = p->s.heads,
                                         .n_key_heads = p->s.key_heads,
                                         .key_dim = p->s.keys,
                                         .value_dim = p->s.dim,
                                         .spans = p->layout.spans,
                                         .n_spans = p->layout.n_spans,
                                         .initial_scale = (const float *)(const void *)p->scale.data,
                                         .dfinal = (const float *)(const void *)p->dfinal.data};
    return args;
}

static void run_args(const ls_delta_backward_args *args, ls_device *device) {
    grad_workspace workspace = grad_workspace_lend(device, ls_op_delta_backward_workspace(args));
    ls_error err;
    assert_ok(ls_delta_backward(device, args, &err), err);
    grad_workspace_take_back(&workspace);
}

/* The op on a device, in a workspace of exactly its size. */
static void run(const problem *p, const grads *g, ls_device *device) {
    const ls_delta_backward_args args = problem_args(p, g);
    run_args(&args, device);
}

/* ---- the textbook ---- */

/* Wrong on purpose: a fold over rows as one chain, and the quad fold as one; value heads from the last to the first; a
 * whole span as one piece, and pieces of parameters added from the last to the first; the gradient of the norm missing;
 * a token's own decay before its delta goes in; the gradient of beta without its second factor; a scale of G that never
 * goes into it, and one that always does; scales that went into S or G left out of a piece's products; the token itself
 * in E; the two products of a later token the other way round; W not begun anew at a piece, W +0 after the last token
 * of a span that others continue, and the gradient of the state there left out of K. */
typedef enum variant {
    RIGHT,
    ROW_CHAIN,
    QUAD_CHAIN,
    HEADS_REVERSED,
    PIECES_REVERSED,
    ONE_PIECE,
    NORM_IS_CONSTANT,
    DECAY_FIRST,
    BETA_LINEAR,
    NO_RESCALE,
    PLAIN_CHAIN,
    NO_FORWARD_FACTOR,
    NO_BACKWARD_FACTOR,
    SELF_IN_E,
    KEYS_BEFORE_QUERIES,
    W_GOES_ON,
    LAST_W_LOST,
    LAST_K_LOST
} variant;

/* Chains by neighbours: step 1 of the index is one chain (i % 16) or four (i / 4 % 16). */
static float sixteen_ref(const float *x, const float *y, int64_t n, int64_t run) {
    float c[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float *at = &c[i / run % 16];
        *at = y == NULL ? ls_add(*at, x[i]) : ls_fma(x[i], y[i], *at);
    }
    for (int step = 1; step < 16; step *= 2)
        for (int i = 0; i < 16; i += 2 * step) c[i] = ls_add(c[i], c[i + step]);
    return c[0];
}

static float chain_ref(const float *x, const float *y, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum = ls_fma(x[i], y[i], sum);
    return sum;
}

static float rows_ref(const float *x, const float *y, int64_t n, variant v) {
    return v == ROW_CHAIN ? chain_ref(x, y, n) : sixteen_ref(x, y, n, 1);
}

static float quad_ref(const float *x, const float *y, int64_t n, variant v) {
    return v == QUAD_CHAIN && y != NULL ? chain_ref(x, y, n) : sixteen_ref(x, y, n, 4);
}

static float tree_ref(const float *x, const float *y, int64_t n) {
    float chain[256] = {0};
    for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(x[i], y[i], chain[i]);
    return op_fold(chain);
}

/* out: the normalised row; l of what it was. */
static float normalized_ref(float *out, const op_array *x, int64_t row, int64_t first, int64_t n) {
    float l;
    for (int64_t i = 0; i < n; i++) out[i] = op_get(x, row, first + i);
    l = ls_div(1.0f, ls_sqrt(ls_add(tree_ref(out, out, n), 1e-6f)));
    for (int64_t i = 0; i < n; i++) out[i] = ls_mul(out[i], l);
    return l;
}

/* What a token of a head leaves. Matrices have columns before rows: [dim][keys]. */
typedef struct step {
    float raw, soft, decay, scale, factor, beta;    /* forwards */
    float back, back_factor, rest, own, e, x, of_d; /* backwards: F, g, r, x, E, X and what db takes */
    float q[256], k[256], v[256], d[256], dy[256], inner[256], c[256], p[256];
    float *before, *after_g; /* S before the token, as the one before left it; G after it */
} step;

static void step_ref(const problem *p, int64_t row, int64_t h, const float *before, float scale, step *t, float *s) {
    const int64_t n = p->s.keys, dim = p->s.dim, m = h / (p->s.heads / p->s.key_heads);
    float w;
    normalized_ref(t->q, &p->q, row, m * n, n);
    normalized_ref(t->k, &p->k, row, m * n, n);
    t->raw = ls_add(op_get(&p->a, row, h), op_get(&p->bias, 0, h));
    t->soft = ls_softplus(t->raw);
    t->decay = ls_exp(ls_mul(t->soft, op_get(&p->rate, 0, h)));
    t->scale = ls_mul(scale, t->decay);
    t->beta = ls_sigmoid(op_get(&p->b, row, h));
    t->factor = 1.0f;
    if (t->scale < 0x1p-40f) {
        t->factor = t->scale;
        t->scale = 1.0f;
    }
    w = ls_mul(t->beta, ls_div(1.0f, t->scale));
    for (int64_t i = 0; i < n * dim; i++) s[i] = ls_mul(before[i], t->factor);
    for (int64_t c = 0; c < dim; c++) {
        t->v[c] = op_get(&p->v, row, h * dim + c);
        t->dy[c] = op_get(&p->dout, row, h * dim + c);
        t->d[c] = ls_fma(-t->beta, sixteen_ref(t->k, s + c * n, n, 1), ls_mul(w, t->v[c]));
        for (int64_t i = 0; i < n; i++) s[c * n + i] = ls_fma(t->k[i], t->d[c], s[c * n + i]);
    }
}

/* Where the walk backwards is. */
typedef struct walk {
    float *g; /* [dim][keys] */
    float scale, decay_after;
} walk;

static void back_ref(const problem *p, int64_t row, int64_t h, step *t, walk *k, const grads *out, variant v) {
    const int64_t n = p->s.keys, dim = p->s.dim;
    const float top = ls_div(1.0f, ls_sqrt((float)n));
    float *g = k->g;
    t->back = ls_mul(k->scale, v == DECAY_FIRST ? t->decay : k->decay_after);
    t->back_factor = 1.0f;
    if ((t->back < 0x1p-40f && v != NO_RESCALE) || v == PLAIN_CHAIN) {
        t->back_factor = t->back;
        t->back = 1.0f;
    }
    k->scale = t->back;
    k->decay_after = t->decay;
    t->rest = ls_mul(ls_div(1.0f, t->back), top);
    t->own = tree_ref(t->q, t->k, n);
    for (int64_t i = 0; i < n * dim; i++) g[i] = ls_mul(g[i], t->back_factor);
    for (int64_t j = 0; j < dim; j++) {
        const float z = ls_mul(t->rest, t->dy[j]);
        t->inner[j] = rows_ref(t->k, g + j * n, n, v);
        t->c[j] = ls_fma(t->own, z, t->inner[j]);
        t->p[j] = ls_mul(t->beta, t->c[j]);
        op_put(&out->of[DV], row, h * dim + j, ls_mul(t->back, t->p[j]));
        for (int64_t i = 0; i < n; i++) g[j * n + i] = ls_fma(t->k[i], -t->p[j], ls_fma(t->q[i], z, g[j * n + i]));
    }
    memcpy(t->after_g, g, (size_t)(n * dim) * sizeof *g);
    t->x = ls_mul(ls_mul(t->back, t->beta), quad_ref(t->inner, t->v, dim, v));
    t->of_d = ls_mul(ls_mul(t->scale, t->back), quad_ref(t->c, t->d, dim, v));
}

/* e(s, t) and g(t, s) of the steps of a piece. */
static float forward_factor(const step *piece, int64_t s, int64_t t, variant v) {
    float product = 1.0f;
    for (int64_t u = s + 1; u <= t && v != NO_FORWARD_FACTOR; u++) product = ls_mul(product, piece[u].factor);
    return product;
}
static float backward_factor(const step *piece, int64_t t, int64_t s, variant v) {
    float product = 1.0f;
    for (int64_t u = s - 1; u >= t && v != NO_BACKWARD_FACTOR; u--) product = ls_mul(product, piece[u].back_factor);
    return product;
}

/* The chain over j of x[j] * m[i][j]. */
static float matrix_ref(const float *x, const float *m, int64_t i, const shape *s) {
    float sum = 0.0f;
    for (int64_t j = 0; j < s->dim; j++) sum = ls_fma(x[j], m[j * s->keys + i], sum);
    return sum;
}

/* Q and K of token t of a piece of n, and E. after: G1, or NULL. */
static void piece_token_ref(const problem *p, step *piece, int64_t t, int64_t n, const float *after, float *q, float *k,
                            variant v) {
    const int64_t dim = p->s.dim, keys = p->s.keys;
    const float top = ls_div(1.0f, ls_sqrt((float)keys)), all = forward_factor(piece, -1, t, v);
    const float end = backward_factor(piece, t, n, v);
    float *into_q = op_alloc(3 * n * 4), *of_q = into_q + n, *minus = of_q + n, r[256];
    step *at = &piece[t];
    for (int64_t s = 0; s < n; s++) {
        const float back = s > t ? backward_factor(piece, t, s, v) : 1.0f;
        if (s <= t) into_q[s] = ls_mul(forward_factor(piece, s, t, v), chain_ref(at->dy, piece[s].d, dim));
        of_q[s] = ls_mul(back, ls_mul(piece[s].rest, chain_ref(piece[s].dy, at->d, dim)));
        minus[s] = s < t ? -ls_mul(forward_factor(piece, s, t, v), chain_ref(at->p, piece[s].d, dim))
                         : -ls_mul(back, chain_ref(piece[s].p, at->d, dim));
    }
    for (int64_t i = 0; i < keys; i++) {
        float x = ls_mul(all, matrix_ref(at->dy, piece[0].before, i, &p->s));
        for (int64_t s = 0; s < t; s++) x = ls_fma(into_q[s], piece[s].k[i], x);
        r[i] = ls_fma(-ls_mul(at->own, at->beta), at->k[i], at->q[i]);
        q[i] = x;
        x = after == NULL ? 0.0f : ls_mul(end, matrix_ref(at->d, after, i, &p->s));
        x = ls_sub(x, ls_mul(all, matrix_ref(at->p, piece[0].before, i, &p->s)));
        for (int64_t s = 0; s < n; s++) {
            if (s < t || (s > t && v == KEYS_BEFORE_QUERIES)) x = ls_fma(minus[s], piece[s].k[i], x);
            if (s >= t) x = ls_fma(of_q[s], piece[s].q[i], x);
            if (s > t && v != KEYS_BEFORE_QUERIES) x = ls_fma(minus[s], piece[s].k[i], x);
        }
        k[i] = x;
    }
    if (v != SELF_IN_E) at->e = ls_mul(ls_mul(at->scale, top), quad_ref(r, q, keys, v));
    for (int64_t i = 0; i < keys; i++) q[i] = ls_fma(into_q[t], at->k[i], q[i]);
    if (v == SELF_IN_E) at->e = ls_mul(ls_mul(at->scale, top), quad_ref(r, q, keys, v));
    free(into_q);
}

/* W of a piece's first token. */
static float first_ref(const problem *p, const step *first, variant v) {
    const int64_t n = p->s.keys;
    float to[256], m[256];
    for (int64_t j = 0; j < p->s.dim; j++) {
        for (int64_t i = 0; i < n; i++) m[i] = ls_mul(first->factor, first->before[j * n + i]);
        to[j] = rows_ref(first->after_g + j * n, m, n, v);
    }
    return ls_mul(ls_mul(first->scale, first->back), quad_ref(to, NULL, p->s.dim, v));
}

/* A piece of n tokens from `row` on. w: W of the token after it, then that of its first; share: rate, bias. */
static void piece_ref(const problem *p, step *piece, int64_t row, int64_t h, int64_t n, const float *after, float *w,
                      float share[2], const grads *out, variant v) {
    const int64_t keys = p->s.keys, m = h / (p->s.heads / p->s.key_heads) * keys;
    const float top = ls_div(1.0f, ls_sqrt((float)keys));
    for (int64_t t = 0; t < n; t++) {
        float q[256], k[256];
        piece_token_ref(p, piece, t, n, after, q, k, v);
        for (int64_t i = 0; i < keys; i++) {
            op_put(&out->of[DQ], row + t, m + i,
                   ls_fma(ls_mul(piece[t].scale, top), q[i], op_get(&out->of[DQ], row + t, m + i)));
            op_put(&out->of[DK], row + t, m + i,
                   ls_fma(ls_mul(piece[t].scale, piece[t].back), k[i], op_get(&out->of[DK], row + t, m + i)));
        }
    }
    for (int64_t t = n - 1; t >= 0; t--) {
        const step *at = &piece[t];
        float da, db = at->of_d;
        if (t == 0 && v != W_GOES_ON)
            *w = first_ref(p, at, v);
        else
            *w = at->decay < 0x1p-24f ? at->e : ls_add(*w, ls_sub(at->e, at->x));
        da = ls_mul(ls_mul(*w, op_get(&p->rate, 0, h)), ls_sigmoid(at->raw));
        if (v != BETA_LINEAR) db = ls_mul(db, ls_sigmoid(-op_get(&p->b, row + t, h)));
        share[0] = ls_fma(*w, at->soft, share[0]);
        share[1] = ls_add(share[1], da);
        op_put(&out->of[DA], row + t, h, da);
        op_put(&out->of[DB], row + t, h, db);
    }
}

/* shares: of the span's pieces, those of rate before those of the bias. */
static void head_ref(const problem *p, int64_t span_i, int64_t h, const grads *out, float (*shares)[2], variant v) {
    const ls_span *span = &p->layout.spans[span_i];
    const int64_t n = p->s.keys, dim = p->s.dim, each = n * dim, rows = span->n_rows;
    const int64_t length = v == ONE_PIECE && rows > 0 ? rows : 64;
    float *matrices = op_alloc((2 * rows + 3) * each * 4), *last = matrices + (2 * rows + 2) * each, w = 0.0f;
    const bool goes_on = p->dfinal.data != NULL;
    const float scale = p->scale.data == NULL ? 1.0f : op_get(&p->scale, span_i, h);
    step *steps = op_alloc((rows + 1) * (int64_t)sizeof *steps);
    walk k = {.g = matrices, .scale = 1.0f, .decay_after = 1.0f};
    for (int64_t t = 0; t <= rows; t++) {
        steps[t].before = matrices + (1 + t) * each;
        if (t < rows) steps[t].after_g = matrices + (2 + rows + t) * each;
    }
    for (int64_t i = 0; i < each; i++) {
        last[i] = k.g[i] = goes_on ? op_get(&p->dfinal, span_i, h * each + i % n * dim + i / n) : 0.0f;
        steps[0].before[i] =
            p->initial.data == NULL ? 0.0f : op_get(&p->initial, span_i, h * each + i % n * dim + i / n);
    }
    for (int64_t t = 0; t < rows; t++)
        step_ref(p, span->row + t, h, steps[t].before, t > 0 ? steps[t - 1].scale : scale, &steps[t],
                 steps[t + 1].before);
    if (goes_on && rows > 0 && v != LAST_W_LOST) {
        float to[256];
        for (int64_t j = 0; j < dim; j++) to[j] = rows_ref(last + j * n, steps[rows].before + j * n, n, v);
        w = ls_mul(steps[rows - 1].scale, quad_ref(to, NULL, dim, v));
    }
    for (int64_t t = rows - 1; t >= 0; t--) back_ref(p, span->row + t, h, &steps[t], &k, out, v);
    for (int64_t at = (rows - 1) / length * length; at >= 0 && rows > 0; at -= length) {
        const int64_t left = rows - at;
        piece_ref(p, steps + at, span->row + at, h, left < length ? left : length,
                  left > length                 ? steps[at + length].after_g
                  : goes_on && v != LAST_K_LOST ? last
                                                : NULL,
                  &w, shares[at / length], out, v);
    }
    for (int64_t i = 0; i < each && rows > 0; i++)
        op_put(&out->of[DINITIAL], span_i, h * each + i % n * dim + i / n,
               ls_mul(ls_mul(k.scale, k.decay_after), k.g[i]));
    free(steps);
    free(matrices);
}

static void norm_ref(const op_array *dx, const op_array *x, int64_t row, const shape *s, variant v) {
    for (int64_t m = 0; m < s->key_heads; m++) {
        float y[256], d[256], l, t;
        l = normalized_ref(y, x, row, m * s->keys, s->keys);
        for (int64_t i = 0; i < s->keys; i++) d[i] = op_get(dx, row, m * s->keys + i);
        t = v == NORM_IS_CONSTANT ? 0.0f : tree_ref(d, y, s->keys);
        for (int64_t i = 0; i < s->keys; i++) op_put(dx, row, m * s->keys + i, ls_mul(l, ls_fma(-y[i], t, d[i])));
    }
}

#define PIECES_MAX 32

/* Of all that grad_ref reads. */
static uint64_t key_of(const problem *p, variant v) {
    const op_array *inputs[] = {&p->q,    &p->k,    &p->v,       &p->a,      &p->b,    &p->dout,
                                &p->rate, &p->bias, &p->initial, &p->dfinal, &p->scale};
    const int64_t form[] = {p->s.heads, p->s.key_heads, p->s.keys, p->s.dim, v};
    uint64_t key = grad_key(op_key(0, form, sizeof form), &p->layout);
    for (int64_t i = 0; i < OP_COUNT(inputs); i++) key = op_key_array(key, inputs[i]);
    return key;
}

static void grad_ref(const problem *p, const grads *out, variant v) {
    uint64_t keys[N_GRADS];
    if (grad_recall(keys, key_of(p, v), out->of, N_GRADS)) return;
    const int64_t n_spans = p->layout.n_spans, heads = p->s.heads;
    float *sums = op_alloc(heads * 2 * 4); /* rate, bias */
    float(*shares)[PIECES_MAX][2] = op_alloc(heads * n_spans * (int64_t)sizeof *shares);
    memset(sums, 0, (size_t)(heads * 2 * 4));
    memset(shares, 0, (size_t)(heads * n_spans) * sizeof *shares);
    for (int64_t at = 0; at < n_spans; at++) {
        const ls_span *span = &p->layout.spans[at];
        if (span->slot < 0) continue;
        assert_true(span->n_rows <= 64 * PIECES_MAX);
        for (int64_t row = span->row; row < span->row + span->n_rows; row++)
            for (int64_t i = 0; i < out->of[DQ].cols; i++) {
                op_put(&out->of[DQ], row, i, 0.0f);
                op_put(&out->of[DK], row, i, 0.0f);
            }
        for (int64_t h = 0; h < heads; h++) {
            const int64_t head = v == HEADS_REVERSED ? heads - 1 - h : h;
            head_ref(p, at, head, out, shares[head * n_spans + at], v);
        }
        for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
            norm_ref(&out->of[DQ], &p->q, row, &p->s, v);
            norm_ref(&out->of[DK], &p->k, row, &p->s, v);
        }
    }
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = 0; i < n_spans * PIECES_MAX; i++) {
            const int64_t at = v == PIECES_REVERSED ? n_spans * PIECES_MAX - 1 - i : i;
            for (int j = 0; j < 2; j++)
                sums[h * 2 + j] = ls_add(sums[h * 2 + j], shares[h * n_spans + at / PIECES_MAX][at % PIECES_MAX][j]);
        }
        op_put(&out->of[DRATE], 0, h, sums[h * 2]);
        op_put(&out->of[DDT_BIAS], 0, h, sums[h * 2 + 1]);
    }
    free(shares);
    free(sums);
    grad_keep(keys, out->of, N_GRADS);
}

/* ---- the op equals the textbook ---- */

static void problem_check(const problem *p, ls_isa isa, const char *what) {
    grads expected = grads_make(p->layout.rows, p->layout.n_spans, &p->s, 3);
    grad_ref(p, &expected, RIGHT);
    for (int t = 0; t < OP_THREADS_MAX; t++) {
        grads got = grads_make(p->layout.rows, p->layout.n_spans, &p->s, 3);
        run(p, &got, op_devices[isa][t]);
        for (int i = 0; i < N_GRADS; i++)
            op_check(&expected.of[i], &got.of[i], OP_NAN_ANY, "%s: %s of %lld heads of %lld, %lld x %lld", what,
                     grad_names[i], (long long)p->s.heads, (long long)p->s.key_heads, (long long)p->s.keys,
                     (long long)p->s.dim);
        grads_free(&got);
    }
    grads_free(&expected);
}

static const shape shapes[] = {{1, 1, 1, 1},   {2, 1, 3, 5},  {4, 2, 8, 4},   {6, 2, 16, 31},
                               {3, 3, 17, 32}, {4, 1, 33, 7}, {2, 2, 64, 33}, {1, 1, 40, 128}};

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t choices[] = {1, 2, 7, 8, 9, 17};
    uint64_t seed = 1;
    for (int64_t i = 0; i < 2 * OP_COUNT(shapes); i++) {
        const grad_layout layout = grad_layout_random(choices, OP_COUNT(choices), &seed);
        problem p = problem_make(&layout, &shapes[i / 2], i / 2 % 2 ? LS_BF16 : LS_F32, i % 2 == 1, seed);
        if (i % 3 == 0) initial_make(&p, seed);
        if (i % 3 == 1) states_make(&p, seed);
        problem_check(&p, isa, i % 2 ? "special" : "plain");
        problem_free(&p);
    }
}

static void every_length_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t lengths[] = {8, 63, 64, 65, 72, 128, 129, 200};
    const shape s = {3, 1, 6, 5};
    for (int64_t i = 0; i < OP_COUNT(lengths); i++) {
        const grad_layout layout = grad_layout_make(1, &lengths[i], i % 2 == 1, (uint64_t)i + 1);
        problem p = problem_make(&layout, &s, LS_F32, false, (uint64_t)i + 1);
        if (i % 3 != 0) states_make(&p, (uint64_t)i + 1);
        problem_check(&p, isa, "length");
        problem_free(&p);
    }
}

static void the_largest_heads_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    static const shape large[] = {{2, 1, 128, 128}, {1, 1, 256, 64}, {1, 1, 64, 256}};
    const int64_t nine[] = {9};
    const grad_layout layout = grad_layout_make(1, nine, false, 1);
    for (int64_t i = 0; i < OP_COUNT(large); i++) {
        problem p = problem_make(&layout, &large[i], LS_BF16, false, (uint64_t)i + 1);
        problem_check(&p, isa, "large");
        problem_free(&p);
    }
}

static void no_tokens_give_zero_gradients(void **state) {
    const ls_isa isa = op_isa(state);
    const grad_layout layout = {6, 2, {{0, 3, 0, -1, 0}, {4, 0, 0, 1, 0}}};
    const shape s = {4, 2, 3, 5};
    problem p = problem_make(&layout, &s, LS_F32, false, 3);
    grads got = grads_make(6, 2, &s, 0);
    problem_check(&p, isa, "no tokens");
    run(&p, &got, op_devices[isa][0]);
    for (int i = DRATE; i <= DDT_BIAS; i++)
        for (int64_t h = 0; h < 4; h++) assert_int_equal(ls_bits(op_get(&got.of[i], 0, h)), 0);
    grads_free(&got);
    problem_free(&p);
}

/* ---- independence ---- */

static problem problem_alone(const problem *p, int64_t span_i) {
    const ls_span *span = &p->layout.spans[span_i];
    const ls_span one = {span_i, 1, 0, 0, 0};
    problem q = *p;
    q.q = grad_rows(&p->q, span);
    q.k = grad_rows(&p->k, span);
    q.v = grad_rows(&p->v, span);
    q.a = grad_rows(&p->a, span);
    q.b = grad_rows(&p->b, span);
    q.dout = grad_rows(&p->dout, span);
    q.initial = grad_rows(&p->initial, &one);
    q.layout = grad_layout_make(1, &span->n_rows, false, 1);
    return q;
}

static void problem_alone_free(problem *q) {
    op_array *rows[] = {&q->q, &q->k, &q->v, &q->a, &q->b, &q->dout, &q->initial};
    for (int64_t i = 0; i < OP_COUNT(rows); i++) op_array_free(rows[i]);
}

/* Gradients of a sequence's rows are the same alone and packed, and calls may be cut between spans. */
static void sequences_do_not_see_each_other(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t three[] = {33, 5, 70};
    const shape s = {6, 2, 9, 7};
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const grad_layout layout = grad_layout_make(3, three, seed > 1, seed);
        problem p = problem_make(&layout, &s, seed % 2 ? LS_F32 : LS_BF16, false, seed);
        grads packed = grads_make(layout.rows, layout.n_spans, &s, 0), sums = grads_make(1, 1, &s, 0);
        initial_make(&p, seed);
        for (int i = DRATE; i <= DDT_BIAS; i++) memset(sums.of[i].data, 0, (size_t)sums.of[i].bytes);
        run(&p, &packed, op_devices[isa][2]);
        for (int64_t j = 0; j < layout.n_spans; j++) {
            const ls_span *span = &layout.spans[j], one = {j, 1, 0, 0, 0};
            ls_delta_backward_args args;
            problem q;
            grads alone;
            if (span->slot < 0 || span->n_rows == 0) continue;
            q = problem_alone(&p, j);
            alone = grads_make(span->n_rows, 1, &s, 0);
            args = problem_args(&q, &alone);
            args.continued = true;
            args.drate = op_floats(&sums.of[DRATE]);
            args.ddt_bias = op_floats(&sums.of[DDT_BIAS]);
            run_args(&args, op_devices[isa][j % OP_THREADS_MAX]);
            for (int i = 0; i < N_GRADS; i++) {
                op_array rows;
                if (i == DRATE || i == DDT_BIAS) continue;
                rows = grad_rows(&packed.of[i], i == DINITIAL ? &one : span);
                op_check(&alone.of[i], &rows, OP_NAN_PINNED, "packed: %s of span %lld", grad_names[i], (long long)j);
                op_array_free(&rows);
            }
            grads_free(&alone);
            problem_alone_free(&q);
        }
        for (int i = DRATE; i <= DDT_BIAS; i++)
            op_check(&sums.of[i], &packed.of[i], OP_NAN_PINNED, "continued: %s", grad_names[i]);
        grads_free(&packed);
        grads_free(&sums);
        problem_free(&p);
    }
}

/* da and db in bf16 are those in float32, rounded; states of zeros, or none wanted back, change nothing. */
static void types_and_absent_states_carry_no_bit(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t one[] = {9};
    const grad_layout layout = grad_layout_make(1, one, false, 1);
    const shape s = {4, 2, 3, 5};
    problem p = problem_make(&layout, &s, LS_F32, false, 3);
    grads full = grads_make(9, 1, &s, 0), half = grads_make(9, 1, &s, 0);
    const float ones[] = {1.0f, 1.0f, 1.0f, 1.0f};
    ls_delta_backward_args args;
    for (int i = DA; i <= DB; i++) {
        op_array_free(&half.of[i]);
        half.of[i] = op_array_make(LS_BF16, 9, 4, 0);
    }
    run(&p, &full, op_devices[isa][0]);
    initial_make(&p, 1);
    memset(p.initial.data, 0, (size_t)p.initial.bytes);
    p.layout.spans[0].pos = 7;
    args = problem_args(&p, &half);
    args.initial_scale = ones;
    args.dfinal = op_floats(&p.initial);
    args.dinitial = NULL;
    run_args(&args, op_devices[isa][0]);
    for (int64_t i = 0; i < 9 * 4; i++)
        for (int j = DA; j <= DB; j++)
            assert_int_equal(ls_bits(op_get(&half.of[j], i / 4, i % 4)),
                             ls_bits(ls_round_bf16(op_get(&full.of[j], i / 4, i % 4))));
    for (int i = 0; i < DINITIAL; i++)
        if (i != DA && i != DB) op_check(&full.of[i], &half.of[i], OP_NAN_PINNED, "%s", grad_names[i]);
    grads_free(&full);
    grads_free(&half);
    problem_free(&p);
}

/* ---- truth ---- */

enum { T_ROWS = 45, T_CUT = 40, T_HEADS = 4, T_KEY_HEADS = 2, T_KEYS = 5, T_DIM = 3 };

/* The same problem in float64: two sequences of 40 and 5 tokens, or a tree, which begins with zeros. */
typedef struct exact {
    grad_layout layout;
    bool is_tree;
    double q[T_ROWS * T_KEY_HEADS * T_KEYS], k[T_ROWS * T_KEY_HEADS * T_KEYS], v[T_ROWS * T_HEADS * T_DIM];
    double a[T_ROWS * T_HEADS], b[T_ROWS * T_HEADS], rate[T_HEADS], bias[T_HEADS];
    double initial[GRAD_TREE_SPANS * T_HEADS * T_KEYS * T_DIM], dout[T_ROWS * T_HEADS * T_DIM];
} exact;

static void unit(double *out, const double *x) {
    double sum = 1e-6;
    for (int i = 0; i < T_KEYS; i++) sum += x[i] * x[i];
    for (int i = 0; i < T_KEYS; i++) out[i] = x[i] / sqrt(sum);
}

/* dout * out of token t of a head; its state moves on. */
static double exact_token(const exact *e, double state[T_KEYS][T_DIM], int64_t t, int64_t h) {
    const int64_t at = (t * T_KEY_HEADS + h / (T_HEADS / T_KEY_HEADS)) * T_KEYS, value = (t * T_HEADS + h) * T_DIM;
    const double soft = log1p(exp(e->a[t * T_HEADS + h] + e->bias[h]));
    const double decay = exp(e->rate[h] * soft), beta = 1.0 / (1.0 + exp(-e->b[t * T_HEADS + h]));
    double q[T_KEYS], k[T_KEYS], loss = 0.0;
    unit(q, e->q + at);
    unit(k, e->k + at);
    for (int c = 0; c < T_DIM; c++) {
        double u = 0.0, o = 0.0;
        for (int i = 0; i < T_KEYS; i++) {
            state[i][c] *= decay;
            u += k[i] * state[i][c];
        }
        for (int i = 0; i < T_KEYS; i++) {
            state[i][c] += k[i] * beta * (e->v[value + c] - u);
            o += q[i] * state[i][c];
        }
        loss += e->dout[value + c] * o / sqrt((double)T_KEYS);
    }
    return loss;
}

/* The sum of dout * out. */
static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int64_t h = 0; h < T_HEADS; h++) {
        double state[GRAD_SPANS_MAX][T_KEYS][T_DIM];
        for (int64_t i = 0; i < e->layout.n_spans; i++) {
            const ls_span *span = &e->layout.spans[i];
            if (e->is_tree && i > 0)
                memcpy(state[i], state[grad_tree_parent[i]], sizeof state[i]);
            else
                memcpy(state[i], e->initial + (i * T_HEADS + h) * T_KEYS * T_DIM, sizeof state[i]);
            for (int64_t t = 0; t < span->n_rows; t++) loss += exact_token(e, state[i], span->row + t, h);
        }
    }
    return loss;
}

static void widen_to(double *to, const op_array *from) {
    for (int64_t r = 0; r < from->rows; r++)
        for (int64_t c = 0; c < from->cols; c++) *to++ = op_get(from, r, c);
}

/* Slow rates, where the past counts, or fast ones, where the scale goes into the state. */
static problem truth_problem(const grad_layout *layout, int kind) {
    const shape s = {T_HEADS, T_KEY_HEADS, T_KEYS, T_DIM};
    problem p = problem_make(layout, &s, LS_F32, false, (uint64_t)kind + 1);
    uint64_t seed = (uint64_t)kind + 9;
    op_fill(&p.rate, kind / 2 ? op_rate : op_slow, &seed);
    return p;
}

/* The worst error, within 1e-4 of the largest gradient of its kind; those of the first n kinds. */
static double truth_check(const problem *p, const grads *got, int n, int kind, bool is_tree) {
    static exact e;
    double *const inputs[N_GRADS] = {e.q, e.k, e.v, e.a, e.b, e.rate, e.bias, e.initial};
    const op_array *from[N_GRADS] = {&p->q, &p->k, &p->v, &p->a, &p->b, &p->rate, &p->bias, &p->initial};
    double worst = 0.0;
    e.layout = p->layout;
    e.is_tree = is_tree;
    memset(e.initial, 0, sizeof e.initial);
    for (int i = 0; i < n; i++) widen_to(inputs[i], from[i]);
    widen_to(e.dout, &p->dout);
    for (int i = 0; i < n; i++) {
        const double error =
            grad_worst(op_floats(&got->of[i]), inputs[i], from[i]->rows * from[i]->cols, exact_loss, &e);
        if (!(error <= 1e-4)) fail_msg("%s, kind %d: error %g of the largest", grad_names[i], kind, error);
        worst = fmax(worst, error);
    }
    return worst;
}

static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t two[] = {T_CUT, T_ROWS - T_CUT};
    const grad_layout layout = grad_layout_make(2, two, false, 1);
    double worst = 0.0;
    for (int kind = 0; kind < 4; kind++) {
        problem p = truth_problem(&layout, kind);
        grads got = grads_make(T_ROWS, 2, &p.s, 0);
        initial_make(&p, (uint64_t)kind + 9);
        run(&p, &got, op_devices[isa][0]);
        worst = fmax(worst, truth_check(&p, &got, N_GRADS, kind, false));
        grads_free(&got);
        problem_free(&p);
    }
    print_message("worst error %.3g of the largest gradient of its kind\n", worst);
}

/* ---- spans that continue others ---- */

enum { ENTRY = T_HEADS * T_KEYS * T_DIM }; /* floats of a state */

/* The forward of a level, from the states and scales that its parents left: [spans]. */
static void tree_forward(const problem *p, const grads *g, const grad_level *l, float *states, float *scales,
                         ls_device *device) {
    const ls_delta_backward_args back = problem_args(p, g);
    op_array out = op_array_make(LS_F32, back.rows, T_HEADS * T_DIM, 0);
    const ls_delta_args args = {.in_dtype = back.in_dtype,
                                .q = back.q,
                                .k = back.k,
                                .v = back.v,
                                .a = back.a,
                                .b = back.b,
                                .out = out.data,
                                .q_stride = back.q_stride,
                                .k_stride = back.k_stride,
                                .v_stride = back.v_stride,
                                .a_stride = back.a_stride,
                                .b_stride = back.b_stride,
                                .out_stride = out.stride,
                                .rate = back.rate,
                                .dt_bias = back.dt_bias,
                                .rows = back.rows,
                                .n_heads = back.n_heads,
                                .n_key_heads = back.n_key_heads,
                                .key_dim = back.key_dim,
                                .value_dim = back.value_dim,
                                .state = {(uint8_t *)states, ENTRY * 4, GRAD_TREE_SPANS},
                                .scale = {(uint8_t *)scales, T_HEADS * 4, GRAD_TREE_SPANS},
                                .spans = l->spans,
                                .n_spans = l->n};
    ls_error err;
    assert_ok(ls_delta(device, &args, &err), err);
    op_array_free(&out);
}

/* Gradients of a tree, level by level, the deepest first; initial, scale, dfinal: [spans]. */
static void tree_back(const problem *p, const grads *got, const float *initial, const float *scale, float *dfinal,
                      ls_device *device) {
    for (int64_t level = GRAD_TREE_LEVELS - 1; level >= 0; level--) {
        const grad_level l = grad_level_make(&p->layout, level);
        float *before = grad_level_gather(&l, initial, ENTRY * 4), *last = grad_level_gather(&l, dfinal, ENTRY * 4);
        float *scales = grad_level_gather(&l, scale, T_HEADS * 4), *first = op_alloc(l.n * ENTRY * 4);
        ls_delta_backward_args args = problem_args(p, got);
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
    const int64_t rows[] = {17, 4, 3, 12};
    const grad_layout tree = grad_tree_make(rows);
    ls_device *device = op_devices[ls_isa_best()][1];
    (void)state;
    for (int kind = 0; kind < 4; kind += 2) {
        problem p = truth_problem(&tree, kind);
        grads got = grads_make(tree.rows, GRAD_TREE_SPANS, &p.s, 0);
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
        (void)truth_check(&p, &got, DINITIAL, kind, true);
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
    grads whole = grads_make(ROWS, 1, &p.s, 0), got = grads_make(ROWS, 1, &p.s, 0);
    _Alignas(16) float states[GRAD_TREE_SPANS * ENTRY], scales[GRAD_TREE_SPANS * T_HEADS];
    ls_delta_backward_args args = problem_args(&p, &got);
    run(&p, &whole, device);
    tree_forward(&p, &got, &trunk, states, scales, device);
    args.spans = behind.spans;
    args.initial = states;
    args.initial_scale = scales;
    run_args(&args, device);
    for (int i = DQ; i <= DB; i++) grad_rows_check(&whole.of[i], &got.of[i], behind.spans, grad_names[i]);
    grads_free(&whole);
    grads_free(&got);
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    const grad_layout layout = {9, 2, {{0, 4, 0, 0, 0}, {4, 5, 0, 1, 0}}};
    const shape s = {4, 2, 3, 5};
    problem p = problem_make(&layout, &s, LS_F32, false, 1);
    grads got = grads_make(9, 2, &s, 0), untouched = grads_make(9, 2, &s, 0);
    const ls_delta_backward_args right = problem_args(&p, &got);
    ls_device *device = op_devices[0][1];
    grad_workspace workspace = grad_workspace_lend(device, ls_op_delta_backward_workspace(&right));
    ls_delta_backward_args args;
    ls_span spans[2];
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                \
    do {                                                                  \
        args = right;                                                     \
        memcpy(spans, layout.spans, sizeof spans);                        \
        args.spans = spans;                                               \
        __VA_ARGS__;                                                      \
        check_failed(ls_delta_backward(device, &args, &err), &err, word); \
        check_failed(err.status, &err, "delta_backward");                 \
    } while (0)
    REFUSED("q is a null", args.q = NULL);
    REFUSED("k is a null", args.k = NULL);
    REFUSED("v is a null", args.v = NULL);
    REFUSED("a is a null", args.a = NULL);
    REFUSED("b is a null", args.b = NULL);
    REFUSED("rate is a null", args.rate = NULL);
    REFUSED("dt_bias is a null", args.dt_bias = NULL);
    REFUSED("dout is a null", args.dout = NULL);
    REFUSED("dq is a null", args.dq = NULL);
    REFUSED("dk is a null", args.dk = NULL);
    REFUSED("dv is a null", args.dv = NULL);
    REFUSED("da is a null", args.da = NULL);
    REFUSED("db is a null", args.db = NULL);
    REFUSED("drate is a null", args.drate = NULL);
    REFUSED("ddt_bias is a null", args.ddt_bias = NULL);
    REFUSED("inputs f16", args.in_dtype = LS_F16);
    REFUSED("da and db f16", args.dab_dtype = LS_F16);
    REFUSED("n_heads 0", args.n_heads = 0);
    REFUSED("n_key_heads 3", args.n_key_heads = 3);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("dout: stride 19", args.dout_stride = 19);
    REFUSED("dq: stride 5", args.dq_stride = 5);
    REFUSED("dk: stride 5", args.dk_stride = 5);
    REFUSED("dv: stride 19", args.dv_stride = 19);
    REFUSED("da: stride 3", args.da_stride = 3);
    REFUSED("db: stride 3", args.db_stride = 3);
    REFUSED("9223372036854775807 rows", args.rows = INT64_MAX);
    REFUSED("9223372036854775807 spans", args.n_spans = INT64_MAX);
    REFUSED("2 spans at", args.spans = NULL);
    REFUSED("span 1: position 2", spans[1].pos = 2);
    REFUSED("span 1: position -2", spans[1].pos = -2; args.initial = args.dinitial);
    REFUSED("initial is a null pointer and initial_scale is not", args.initial_scale = args.rate);
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
        const ls_delta_backward_args args = {.rows = wild[i % 7],
                                             .n_heads = wild[i / 7 % 7],
                                             .key_dim = wild[i / 49 % 7],
                                             .value_dim = wild[i / 343 % 7],
                                             .n_spans = wild[i / 2401]};
        const bool negative =
            args.rows < 0 || args.n_heads < 0 || args.key_dim < 0 || args.value_dim < 0 || args.n_spans < 0;
        const int64_t bytes = ls_op_delta_backward_workspace(&args);
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
    } cases[] = {{ROW_CHAIN, DV},           {ROW_CHAIN, DA},         {QUAD_CHAIN, DA},   {QUAD_CHAIN, DB},
                 {HEADS_REVERSED, DQ},      {HEADS_REVERSED, DK},    {ONE_PIECE, DK},    {ONE_PIECE, DRATE},
                 {PIECES_REVERSED, DRATE},  {NORM_IS_CONSTANT, DQ},  {DECAY_FIRST, DK},  {BETA_LINEAR, DB},
                 {DECAY_FIRST, DA},         {DECAY_FIRST, DV},       {ONE_PIECE, DQ},    {PIECES_REVERSED, DDT_BIAS},
                 {NO_RESCALE, DV},          {PLAIN_CHAIN, DV},       {PLAIN_CHAIN, DK},  {NORM_IS_CONSTANT, DK},
                 {NO_FORWARD_FACTOR, DQ},   {NO_FORWARD_FACTOR, DK}, {SELF_IN_E, DA},    {NO_BACKWARD_FACTOR, DK},
                 {KEYS_BEFORE_QUERIES, DK}, {W_GOES_ON, DA},         {W_GOES_ON, DRATE}, {LAST_W_LOST, DRATE},
                 {LAST_K_LOST, DK}};
    const int64_t three[] = {70, 20, 15};
    const grad_layout layout = grad_layout_make(3, three, true, 2);
    const shape s = {12, 4, 40, 37};
    problem p = problem_make(&layout, &s, LS_F32, false, 8);
    states_make(&p, 9);
    grads right = grads_make(layout.rows, layout.n_spans, &s, 0);
    (void)state;
    grad_ref(&p, &right, RIGHT);
    for (int64_t i = 0; i < OP_COUNT(cases); i++) {
        const int seen_in = cases[i].seen_in;
        grads wrong = grads_make(layout.rows, layout.n_spans, &s, 0);
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
        OP_CASES(the_largest_heads_equal_the_textbook),
        OP_CASES(no_tokens_give_zero_gradients),
        OP_CASES(sequences_do_not_see_each_other),
        OP_CASES(types_and_absent_states_carry_no_bit),
        OP_CASES(a_cut_changes_no_row_behind_it),
        OP_CASES(gradients_are_those_of_float64),
        cmocka_unit_test(gradients_of_a_tree_are_those_of_float64),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(workspaces_that_do_not_fit),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
