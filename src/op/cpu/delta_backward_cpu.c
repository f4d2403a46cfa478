/* delta backward on the CPU: an item is a key head of one span, whose value heads follow one another; lanes are a
 * head's columns. A first pass keeps the state before every LS_DELTA_PIECE tokens, and d of every token, so that states
 * are made again without folds. From the last of these pieces to the first, the state before every INNER tokens is
 * made, then that after each of INNER tokens, which are walked backwards. */
#include "op/cpu/delta_row.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"

#define INNER 8
#define INNERS (LS_DELTA_PIECE / INNER)

_Static_assert((INNERS + INNER + 2) * LS_DELTA_STATE_MAX <= LS_SCRATCH_FLOATS, "states fit the scratch of a thread");

/* One value head of one span. */
typedef struct head {
    const ls_delta_backward_args *args;
    const ls_span *span;
    int64_t h, key_head, keys, dim, each; /* dim: columns; each: keys * dim */
    float rate, dt_bias, query_scale;
    float drate, ddt_bias; /* of a piece */
    float g_scale, decay;  /* F, and the decay of the token after: 1 where there is none */
    float *deltas;         /* d of the span's tokens, n_heads * dim apart */
    float *inner;          /* [INNERS][each]: S before each run of INNER tokens of a piece */
    float *after;          /* [INNER + 1][each]: S before a run, then after each of its tokens */
    float *g;              /* [each] */
    ls_delta_step step[LS_DELTA_PIECE];
    float q[LS_DELTA_DIM_MAX], k[LS_DELTA_DIM_MAX]; /* normalised */
    ls_delta_chains chains;
} head;

static void load(float *out, const head *k, const void *rows, int64_t at, int64_t n) {
    ls_row_widen(out, ls_at(rows, k->args->in_dtype, at), k->args->in_dtype, n);
}

static float load_one(const head *k, const void *rows, int64_t at) {
    float x;
    load(&x, k, rows, at, 1);
    return x;
}

static float *delta_of(const head *k, int64_t t) { return k->deltas + t * k->args->n_heads * k->dim; }

/* Scalars of token t of the span, which follows one that left `scale`. */
static ls_delta_step step_of(const head *k, int64_t t, float scale) {
    const ls_delta_backward_args *a = k->args;
    const int64_t row = k->span->row + t;
    return ls_delta_step_of(scale, load_one(k, a->a, row * a->a_stride + k->h), k->dt_bias, k->rate,
                            load_one(k, a->b, row * a->b_stride + k->h));
}

static void load_key(head *k, int64_t t) {
    const ls_delta_backward_args *a = k->args;
    load(k->k, k, a->k, (k->span->row + t) * a->k_stride + k->key_head * k->keys, k->keys);
    ls_delta_normalize(k->k, k->keys);
}

static void load_query(head *k, int64_t t) {
    const ls_delta_backward_args *a = k->args;
    load(k->q, k, a->q, (k->span->row + t) * a->q_stride + k->key_head * k->keys, k->keys);
    ls_delta_normalize(k->q, k->keys);
}

/* d of token t, whose key is loaded; s: before the token, and multiplied where the token rescales. */
static void make_delta(head *k, int64_t t, float *s, const ls_delta_step *step) {
    const ls_delta_backward_args *a = k->args;
    float u[LS_DELTA_DIM_MAX], v[LS_DELTA_DIM_MAX], *d = delta_of(k, t);
    if (step->rescaled)
        for (int64_t i = 0; i < k->each; i++) s[i] = ls_mul(s[i], step->product);
    ls_delta_fold(u, k->chains, k->k, s, k->keys, k->dim);
    load(v, k, a->v, (k->span->row + t) * a->v_stride + k->h * k->dim, k->dim);
    for (int64_t j = 0; j < k->dim; j++) d[j] = ls_fma(-step->beta, u[j], ls_mul(step->w, v[j]));
}

/* S after token t, whose key is loaded and whose d is made; next may be s. */
static void advance(head *k, int64_t t, float *next, const float *s, const ls_delta_step *step) {
    const float *d = delta_of(k, t);
    for (int64_t i = 0; i < k->keys; i++) {
        const float key = k->k[i];
        const float *from = s + i * k->dim;
        float *to = next + i * k->dim;
        if (step->rescaled)
            for (int64_t j = 0; j < k->dim; j++) to[j] = ls_fma(key, d[j], ls_mul(from[j], step->product));
        else
            for (int64_t j = 0; j < k->dim; j++) to[j] = ls_fma(key, d[j], from[j]);
    }
}

/* 8 chains, by halves. */
static inline float fold_block(float *chain) {
    for (int half = LS_DELTA_BLOCK_CHAINS / 2; half > 0; half /= 2)
        for (int c = 0; c < half; c++) chain[c] = ls_add(chain[c], chain[c + half]);
    return chain[0];
}

/* The column fold of x[j] * y[j] and, where z is not NULL, of z[j] * w[j] after it. */
static inline float fold_columns(const float *x, const float *y, const float *z, const float *w, int64_t dim) {
    float total = 0.0f;
    for (int64_t base = 0; base < dim; base += LS_DELTA_BLOCK) {
        float chain[LS_DELTA_BLOCK_CHAINS] = {0};
        for (int64_t part = base; part < dim && part < base + LS_DELTA_BLOCK; part += LS_DELTA_BLOCK_CHAINS) {
            const int64_t n = dim - part < LS_DELTA_BLOCK_CHAINS ? dim - part : LS_DELTA_BLOCK_CHAINS;
            for (int64_t c = 0; c < n; c++) chain[c] = ls_fma(x[part + c], y[part + c], chain[c]);
            for (int64_t c = 0; c < n && z != NULL; c++) chain[c] = ls_fma(z[part + c], w[part + c], chain[c]);
        }
        total = ls_add(total, fold_block(chain));
    }
    return total;
}

/* The column fold of one add for each x[j]. */
static float sum_columns(const float *x, int64_t dim) {
    float total = 0.0f;
    for (int64_t base = 0; base < dim; base += LS_DELTA_BLOCK) {
        float chain[LS_DELTA_BLOCK_CHAINS] = {0};
        for (int64_t j = base; j < dim && j < base + LS_DELTA_BLOCK; j++)
            chain[j % LS_DELTA_BLOCK_CHAINS] = ls_add(chain[j % LS_DELTA_BLOCK_CHAINS], x[j]);
        total = ls_add(total, fold_block(chain));
    }
    return total;
}

/* One row of G takes the token's output, and goes into its chain of c. None overlap. */
static inline void take_output(float *restrict g, float *restrict c, const float *restrict z, float q, float k,
                               int64_t dim) {
    for (int64_t j = 0; j < dim; j++) {
        g[j] = ls_fma(q, z[j], g[j]);
        c[j] = ls_fma(k, g[j], c[j]);
    }
}

/* One row of G leaves the token, into its chain of T. minus_p: -p. None overlap. */
static inline void leave_token(float *restrict g, float *restrict to, const float *restrict minus_p,
                               const float *restrict m, float k, int64_t dim) {
    for (int64_t j = 0; j < dim; j++) {
        g[j] = ls_fma(k, minus_p[j], g[j]);
        to[j] = ls_fma(g[j], m[j], to[j]);
    }
}

/* F of a token, from that of the token after. */
static void scale_gradient(head *k, float decay) {
    const float product = ls_mul(k->g_scale, k->decay);
    const bool rescaled = product < LS_DELTA_SCALE_MIN;
    for (int64_t i = 0; i < k->each && rescaled; i++) k->g[i] = ls_mul(k->g[i], product);
    k->g_scale = rescaled ? 1.0f : product;
    k->decay = decay;
}

/* da, db and the parameters' gradients of a token; sum: the column fold of T, of_d: that of c * d. */
static void scalars_back(head *k, int64_t t, const ls_delta_step *s, float sum, float of_d) {
    const ls_delta_backward_args *a = k->args;
    const int64_t row = k->span->row + t;
    const float both = ls_mul(s->scale, k->g_scale), w = ls_mul(both, sum);
    const float da = ls_mul(ls_mul(w, k->rate), ls_sigmoid(s->raw));
    const float db = ls_mul(ls_mul(both, of_d), ls_sigmoid(-load_one(k, a->b, row * a->b_stride + k->h)));
    k->drate = ls_fma(w, s->soft, k->drate);
    k->ddt_bias = ls_add(k->ddt_bias, da);
    ls_row_narrow(ls_at_mut(a->da, a->dab_dtype, row * a->da_stride + k->h), a->dab_dtype, &da, 1);
    ls_row_narrow(ls_at_mut(a->db, a->dab_dtype, row * a->db_stride + k->h), a->dab_dtype, &db, 1);
}

/* Token t of the span; S before and after it. dq' and dk' go on in dq and dk. */
static void step_back(head *k, int64_t t, const ls_delta_step *s, const float *before, const float *after) {
    const ls_delta_backward_args *a = k->args;
    const int64_t row = k->span->row + t, dim = k->dim;
    const float *dy = a->dout + row * a->dout_stride + k->h * dim, *d = delta_of(k, t);
    const float top = ls_mul(s->scale, k->query_scale);
    float both, into;
    float *dq = a->dq + row * a->dq_stride + k->key_head * k->keys;
    float *dk = a->dk + row * a->dk_stride + k->key_head * k->keys;
    float *dv = a->dv + row * a->dv_stride + k->h * dim;
    float z[LS_DELTA_DIM_MAX], c[LS_DELTA_DIM_MAX], minus_p[LS_DELTA_DIM_MAX], scaled[LS_DELTA_DIM_MAX];
    load_key(k, t);
    load_query(k, t);
    scale_gradient(k, s->decay);
    both = ls_mul(s->scale, k->g_scale);
    into = ls_mul(ls_div(1.0f, k->g_scale), k->query_scale);
    for (int64_t j = 0; j < dim; j++) z[j] = ls_mul(into, dy[j]);
    ls_delta_chains_clear(k->chains, dim);
    for (int64_t i = 0; i < k->keys; i++)
        take_output(k->g + i * dim, k->chains[i % LS_DELTA_FOLD], z, k->q[i], k->k[i], dim);
    ls_delta_chains_fold(c, k->chains, dim);
    for (int64_t j = 0; j < dim; j++) {
        minus_p[j] = -ls_mul(s->beta, c[j]);
        dv[j] = ls_mul(k->g_scale, -minus_p[j]);
    }
    ls_delta_chains_clear(k->chains, dim);
    for (int64_t i = 0; i < k->keys; i++) {
        float *g = k->g + i * dim;
        const float *m = before + i * dim;
        if (s->rescaled) {
            for (int64_t j = 0; j < dim; j++) scaled[j] = ls_mul(m[j], s->product);
            m = scaled;
        }
        dq[i] = ls_fma(top, fold_columns(dy, after + i * dim, NULL, NULL, dim), dq[i]);
        dk[i] = ls_fma(both, fold_columns(d, g, minus_p, m, dim), dk[i]);
        leave_token(g, k->chains[i % LS_DELTA_FOLD], minus_p, m, k->k[i], dim);
    }
    ls_delta_chains_fold(z, k->chains, dim);
    scalars_back(k, t, s, sum_columns(z, dim), fold_columns(c, d, NULL, NULL, dim));
}

/* The tokens [first, first + n) of the span from the state and the scale before them. */
static void piece_back(head *k, int64_t first, int64_t n, const float *kept, float scale) {
    const int64_t runs = (n + INNER - 1) / INNER;
    memcpy(k->inner, kept, (size_t)k->each * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        k->step[i] = step_of(k, first + i, scale);
        scale = k->step[i].scale;
    }
    for (int64_t r = 0; r + 1 < runs; r++) {
        float *s = k->inner + (r + 1) * k->each;
        for (int64_t i = r * INNER; i < (r + 1) * INNER; i++) {
            load_key(k, first + i);
            advance(k, first + i, s, i == r * INNER ? k->inner + r * k->each : s, &k->step[i]);
        }
    }
    for (int64_t r = runs - 1; r >= 0; r--) {
        const int64_t begin = r * INNER, count = n - begin < INNER ? n - begin : INNER;
        memcpy(k->after, k->inner + r * k->each, (size_t)k->each * sizeof(float));
        for (int64_t i = 0; i < count; i++) {
            load_key(k, first + begin + i);
            advance(k, first + begin + i, k->after + (i + 1) * k->each, k->after + i * k->each, &k->step[begin + i]);
        }
        for (int64_t i = count - 1; i >= 0; i--)
            step_back(k, first + begin + i, &k->step[begin + i], k->after + i * k->each, k->after + (i + 1) * k->each);
    }
}

/* The forward of a span's head: kept states, their scales and d. initial: NULL for zeros. */
static void run_forward(head *k, const float *initial, float *kept, float *kept_scale) {
    const int64_t heads = k->args->n_heads;
    float scale = 1.0f, *s = k->after;
    if (initial != NULL)
        memcpy(s, initial, (size_t)k->each * sizeof(float));
    else
        memset(s, 0, (size_t)k->each * sizeof(float));
    for (int64_t t = 0; t < k->span->n_rows; t++) {
        ls_delta_step step = step_of(k, t, scale);
        if (t % LS_DELTA_PIECE == 0) {
            memcpy(kept + t / LS_DELTA_PIECE * heads * k->each, s, (size_t)k->each * sizeof(float));
            kept_scale[t / LS_DELTA_PIECE * heads] = scale;
        }
        load_key(k, t);
        make_delta(k, t, s, &step);
        step.rescaled = false; /* make_delta has done it */
        advance(k, t, s, s, &step);
        scale = step.scale;
    }
}

/* Head h of span i, which has tokens. */
static void run_head(const ls_delta_backward_args *a, const ls_delta_backward_plan *plan, float *work, int64_t i,
                     int64_t h, float *scratch) {
    const ls_span *span = &a->spans[i];
    const int64_t each = a->key_dim * a->value_dim, at = (i * a->n_heads + h) * each;
    const int64_t entry = ls_delta_entry(span, i);
    head k = {.args = a,
              .span = span,
              .h = h,
              .key_head = h / (a->n_heads / a->n_key_heads),
              .keys = a->key_dim,
              .dim = a->value_dim,
              .each = each,
              .rate = a->rate[h],
              .dt_bias = a->dt_bias[h],
              .query_scale = ls_delta_query_scale(a->key_dim),
              .g_scale = 1.0f,
              .decay = 1.0f,
              .deltas = work + plan->deltas + (span->row * a->n_heads + h) * a->value_dim,
              .inner = scratch,
              .after = scratch + INNERS * each,
              .g = scratch + (INNERS + INNER + 1) * each};
    float *kept = work + plan->states + (entry * a->n_heads + h) * each;
    float *scales = work + plan->scales + entry * a->n_heads + h;
    memset(k.g, 0, (size_t)each * sizeof(float));
    run_forward(&k, a->initial != NULL ? a->initial + at : NULL, kept, scales);
    for (int64_t piece = ls_delta_pieces(span) - 1; piece >= 0; piece--) {
        const int64_t first = piece * LS_DELTA_PIECE, left = span->n_rows - first, share = piece * a->n_heads;
        k.drate = k.ddt_bias = 0.0f;
        piece_back(&k, first, left < LS_DELTA_PIECE ? left : LS_DELTA_PIECE, kept + share * each, scales[share]);
        work[plan->rate + entry * a->n_heads + h + share] = k.drate;
        work[plan->bias + entry * a->n_heads + h + share] = k.ddt_bias;
    }
    if (a->dinitial == NULL) return;
    for (int64_t j = 0; j < each; j++) a->dinitial[at + j] = ls_mul(ls_mul(k.g_scale, k.decay), k.g[j]);
}

/* dx' becomes dx; x: the row before it is normalised. */
static void norm_back(float *dx, const void *x, ls_dtype dtype, int64_t at, int64_t n) {
    float y[LS_DELTA_DIM_MAX], l, t;
    ls_row_widen(y, ls_at(x, dtype, at), dtype, n);
    l = ls_delta_normalize(y, n);
    t = ls_delta_dot(dx, y, n);
    for (int64_t i = 0; i < n; i++) dx[i] = ls_mul(l, ls_fma(-y[i], t, dx[i]));
}

/* Items: spans x key heads. */
LS_KERNEL_DEFINE(ls_delta_backward_kernel) {
    const ls_workspace_call *call = context;
    const ls_delta_backward_args *a = call->args;
    const int64_t group = a->n_heads / a->n_key_heads, keys = a->key_dim;
    ls_delta_backward_plan plan;
    ls_delta_backward_plan_make(&plan, a);
    for (int64_t item = begin; item < end; item++) {
        const int64_t i = item / a->n_key_heads, m = item % a->n_key_heads;
        const ls_span *span = &a->spans[i];
        if (span->slot < 0 || span->n_rows == 0) continue;
        for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
            memset(a->dq + row * a->dq_stride + m * keys, 0, (size_t)keys * sizeof(float));
            memset(a->dk + row * a->dk_stride + m * keys, 0, (size_t)keys * sizeof(float));
        }
        for (int64_t h = m * group; h < (m + 1) * group; h++) run_head(a, &plan, call->floats, i, h, scratch);
        for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
            norm_back(a->dq + row * a->dq_stride + m * keys, a->q, a->in_dtype, row * a->q_stride + m * keys, keys);
            norm_back(a->dk + row * a->dk_stride + m * keys, a->k, a->in_dtype, row * a->k_stride + m * keys, keys);
        }
    }
}

/* Items are heads. */
LS_KERNEL_DEFINE(ls_delta_parameters_kernel) {
    const ls_workspace_call *call = context;
    const ls_delta_backward_args *a = call->args;
    ls_delta_backward_plan plan;
    (void)scratch;
    ls_delta_backward_plan_make(&plan, a);
    for (int64_t h = begin; h < end; h++) {
        float drate = a->continued ? a->drate[h] : 0.0f, ddt_bias = a->continued ? a->ddt_bias[h] : 0.0f;
        for (int64_t i = 0; i < a->n_spans; i++) {
            const int64_t entry = ls_delta_entry(&a->spans[i], i);
            const int64_t pieces = a->spans[i].slot < 0 ? 0 : ls_delta_pieces(&a->spans[i]);
            for (int64_t at = entry * a->n_heads + h; at < (entry + pieces) * a->n_heads; at += a->n_heads) {
                drate = ls_add(drate, call->floats[plan.rate + at]);
                ddt_bias = ls_add(ddt_bias, call->floats[plan.bias + at]);
            }
        }
        a->drate[h] = drate;
        a->ddt_bias[h] = ddt_bias;
    }
}
