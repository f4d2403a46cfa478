/* delta backward on the CPU: an item is a key head of one span, whose value heads follow one another. Each is walked
 * forwards with S and backwards with G, lanes being its columns; then come its pieces, lanes being the rows of a key;
 * then the scalars. */
#include "op/cpu/delta_row.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"

#define PIECE LS_DELTA_PIECE

typedef float piece_rows[PIECE][LS_DELTA_DIM_MAX];

/* What a thread works in. */
typedef struct memory {
    float state[LS_DELTA_STATE_MAX];                            /* S, then G */
    float entry[LS_DELTA_STATE_MAX], after[LS_DELTA_STATE_MAX]; /* [V][K]: S0 and G1 of a piece */
    piece_rows q, k, dy, p, d;
    float y_d[PIECE][PIECE], p_d[PIECE][PIECE]; /* Y and P */
    ls_delta_chains chains;
} memory;

_Static_assert(sizeof(memory) <= LS_SCRATCH_FLOATS * sizeof(float), "a head fits the scratch of a thread");

/* One value head of one span. */
typedef struct head {
    const ls_delta_backward_args *a;
    const ls_delta_backward_plan *plan;
    const ls_span *span;
    float *work;
    memory *m;
    int64_t span_i, entry, h, key_head, keys, dim, each; /* entry: of the first piece; dim: columns; each: keys * dim */
    float rate, dt_bias, top;
} head;

static void load(float *out, const head *k, const void *rows, int64_t at, int64_t n) {
    ls_row_widen(out, ls_at(rows, k->a->in_dtype, at), k->a->in_dtype, n);
}

static float load_one(const head *k, const void *rows, int64_t at) {
    float x;
    load(&x, k, rows, at, 1);
    return x;
}

static void load_key(float *out, const head *k, int64_t row) {
    load(out, k, k->a->k, row * k->a->k_stride + k->key_head * k->keys, k->keys);
    ls_delta_normalize(out, k->keys);
}

static void load_query(float *out, const head *k, int64_t row) {
    load(out, k, k->a->q, row * k->a->q_stride + k->key_head * k->keys, k->keys);
    ls_delta_normalize(out, k->keys);
}

/* The head's number of a row in a part of the workspace, and its vector. */
static float *number_of(const head *k, int64_t part, int64_t row) {
    return k->work + part + row * k->a->n_heads + k->h;
}
static float *vector_of(const head *k, int64_t part, int64_t row) {
    return k->work + part + (row * k->a->n_heads + k->h) * k->dim;
}
/* Its matrix of a piece. */
static float *matrix_of(const head *k, int64_t part, int64_t piece) {
    return k->work + part + ((k->entry + piece) * k->a->n_heads + k->h) * k->each;
}
static const float *gradient_of(const head *k, int64_t row) {
    return k->a->dout + row * k->a->dout_stride + k->h * k->dim;
}

/* Scalars of a row, which follows one that left `scale`. */
static ls_delta_step step_of(const head *k, int64_t row, float scale) {
    return ls_delta_step_of(scale, load_one(k, k->a->a, row * k->a->a_stride + k->h), k->dt_bias, k->rate,
                            load_one(k, k->a->b, row * k->a->b_stride + k->h));
}

static void scale_matrix(float *s, float factor, int64_t n) {
    for (int64_t i = 0; i < n && factor != 1.0f; i++) s[i] = ls_mul(s[i], factor);
}

/* Where the head's state is in a tensor of states of spans. */
static int64_t state_at(const head *k) { return (k->span_i * k->a->n_heads + k->h) * k->each; }

static void load_state(const head *k, float *s, const float *states) {
    if (states == NULL)
        memset(s, 0, (size_t)k->each * sizeof *s);
    else
        memcpy(s, states + state_at(k), (size_t)k->each * sizeof *s);
}

/* The quad fold of x[i] * y[i]; of x[i] where y is NULL. */
static float quad_fold(const float *x, const float *y, int64_t n) {
    float chain[LS_DELTA_FOLD] = {0};
    for (int64_t i = 0; i < n; i++) {
        float *at = &chain[i / 4 % LS_DELTA_FOLD];
        *at = y == NULL ? ls_add(*at, x[i]) : ls_fma(x[i], y[i], *at);
    }
    for (int step = 1; step < LS_DELTA_FOLD; step *= 2)
        for (int i = 0; i < LS_DELTA_FOLD; i += 2 * step) chain[i] = ls_add(chain[i], chain[i + step]);
    return chain[0];
}

/* `both` times the quad fold over j of the sixteen-chain fold over i of g[i][j] * (factor * s[i][j]). */
static float border_of(const head *k, const float *g, const float *s, float factor, float both) {
    float t[LS_DELTA_DIM_MAX];
    ls_delta_chains_clear(k->m->chains, k->dim);
    for (int64_t i = 0; i < k->keys; i++) {
        float *chain = k->m->chains[i % LS_DELTA_FOLD];
        for (int64_t j = 0; j < k->dim; j++)
            chain[j] = ls_fma(g[i * k->dim + j], ls_mul(factor, s[i * k->dim + j]), chain[j]);
    }
    ls_delta_chains_fold(t, k->m->chains, k->dim);
    return ls_mul(both, quad_fold(t, NULL, k->dim));
}

/* ---- walks ---- */

/* Leaves S0 of pieces, d, A and f; W after the last token comes back. */
static float walk_forwards(const head *k) {
    const ls_delta_backward_args *a = k->a;
    const ls_delta_backward_plan *plan = k->plan;
    float key[LS_DELTA_DIM_MAX], u[LS_DELTA_DIM_MAX], v[LS_DELTA_DIM_MAX], *s = k->m->state;
    float scale = a->initial_scale != NULL ? a->initial_scale[k->span_i * a->n_heads + k->h] : 1.0f;
    load_state(k, s, a->initial);
    for (int64_t t = 0; t < k->span->n_rows; t++) {
        const int64_t row = k->span->row + t;
        const ls_delta_step step = step_of(k, row, scale);
        float *d = vector_of(k, plan->deltas, row);
        scale = *number_of(k, plan->scale, row) = step.scale;
        *number_of(k, plan->factor, row) = step.rescaled ? step.product : 1.0f;
        if (t % PIECE == 0) memcpy(matrix_of(k, plan->states, t / PIECE), s, (size_t)k->each * sizeof *s);
        scale_matrix(s, step.rescaled ? step.product : 1.0f, k->each);
        load_key(key, k, row);
        load(v, k, a->v, row * a->v_stride + k->h * k->dim, k->dim);
        ls_delta_fold(u, k->m->chains, key, s, k->keys, k->dim);
        for (int64_t j = 0; j < k->dim; j++) d[j] = ls_fma(-step.beta, u[j], ls_mul(step.w, v[j]));
        for (int64_t i = 0; i < k->keys; i++) ls_delta_chain(s + i * k->dim, d, key[i], k->dim);
    }
    return a->dfinal != NULL ? border_of(k, a->dfinal + state_at(k), s, 1.0f, scale) : 0.0f;
}

/* c and p from c'; z: r * dy. */
static void finish_inner(float *restrict c, float *restrict p, const float *restrict inner, const float *restrict z,
                         float own, float beta, int64_t dim) {
    for (int64_t j = 0; j < dim; j++) {
        c[j] = ls_fma(own, z[j], inner[j]);
        p[j] = ls_mul(beta, c[j]);
    }
}

/* r of a row. */
static float rest_of(const head *k, int64_t row) {
    return ls_mul(ls_div(1.0f, *number_of(k, k->plan->g_scale, row)), k->top);
}

/* c and p of a row whose c' is there. */
static void inner_of(const head *k, float *c, float *p, int64_t row, float beta) {
    const float *dy = gradient_of(k, row), own = k->work[k->plan->own + row * k->a->n_key_heads + k->key_head];
    const float rest = rest_of(k, row);
    float z[LS_DELTA_DIM_MAX];
    for (int64_t j = 0; j < k->dim; j++) z[j] = ls_mul(rest, dy[j]);
    finish_inner(c, p, vector_of(k, k->plan->inner, row), z, own, beta, k->dim);
}

static float beta_of(const head *k, int64_t row) {
    return ls_sigmoid(load_one(k, k->a->b, row * k->a->b_stride + k->h));
}

/* Leaves G0 of pieces, c', F and g, x, dv; the decay of the first token comes back. */
static float walk_backwards(const head *k) {
    const ls_delta_backward_args *a = k->a;
    const ls_delta_backward_plan *plan = k->plan;
    float query[LS_DELTA_DIM_MAX], key[LS_DELTA_DIM_MAX], c[LS_DELTA_DIM_MAX], p[LS_DELTA_DIM_MAX];
    float *g = k->m->state, scale = 1.0f, decay = 1.0f;
    load_state(k, g, a->dfinal);
    for (int64_t t = k->span->n_rows - 1; t >= 0; t--) {
        const int64_t row = k->span->row + t;
        const ls_delta_back back = ls_delta_back_of(scale, decay);
        const ls_delta_step step = step_of(k, row, 1.0f);
        const float *dy = gradient_of(k, row);
        float *dv = a->dv + row * a->dv_stride + k->h * k->dim, rest;
        scale = *number_of(k, plan->g_scale, row) = back.scale;
        *number_of(k, plan->g_factor, row) = back.factor;
        decay = step.decay;
        rest = rest_of(k, row);
        scale_matrix(g, back.factor, k->each);
        load_query(query, k, row);
        load_key(key, k, row);
        k->work[plan->own + row * a->n_key_heads + k->key_head] = ls_delta_dot(query, key, k->keys);
        ls_delta_fold(vector_of(k, plan->inner, row), k->m->chains, key, g, k->keys, k->dim);
        inner_of(k, c, p, row, step.beta);
        for (int64_t j = 0; j < k->dim; j++) {
            dv[j] = ls_mul(scale, p[j]);
            c[j] = ls_mul(rest, dy[j]);
        }
        for (int64_t i = 0; i < k->keys; i++) {
            ls_delta_chain(g + i * k->dim, c, query[i], k->dim);
            ls_delta_chain(g + i * k->dim, p, -key[i], k->dim);
        }
        if (t % PIECE == 0) memcpy(matrix_of(k, plan->grads, t / PIECE), g, (size_t)k->each * sizeof *g);
    }
    return decay;
}

/* ---- pieces ---- */

/* to [dim][keys] of [keys][dim]. */
static void transpose(float *to, const float *from, int64_t keys, int64_t dim) {
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < dim; j++) to[j * keys + i] = from[i * dim + j];
}

/* The chain over j of x[j] * y[j]. */
static float chain_of(const float *x, const float *y, int64_t n) {
    float sum = 0.0f;
    for (int64_t j = 0; j < n; j++) sum = ls_fma(x[j], y[j], sum);
    return sum;
}

/* The chains over j of x[j] * matrix[i][j], each times factor. */
static void chains_of(float *out, const float *x, const float *matrix, float factor, const head *k) {
    memset(out, 0, (size_t)k->keys * sizeof *out);
    for (int64_t j = 0; j < k->dim; j++) ls_delta_chain(out, matrix + j * k->keys, x[j], k->keys);
    for (int64_t i = 0; i < k->keys; i++) out[i] = ls_mul(factor, out[i]);
}

static void load_piece(const head *k, int64_t begin, int64_t n) {
    memory *m = k->m;
    float c[LS_DELTA_DIM_MAX];
    for (int64_t t = 0; t < n; t++) {
        const int64_t row = begin + t;
        load_query(m->q[t], k, row);
        load_key(m->k[t], k, row);
        memcpy(m->dy[t], gradient_of(k, row), (size_t)k->dim * sizeof(float));
        memcpy(m->d[t], vector_of(k, k->plan->deltas, row), (size_t)k->dim * sizeof(float));
        inner_of(k, c, m->p[t], row, beta_of(k, row));
    }
    for (int64_t t = 0; t < n; t++)
        for (int64_t s = 0; s <= t; s++) {
            m->y_d[t][s] = chain_of(m->dy[t], m->d[s], k->dim);
            m->p_d[t][s] = chain_of(m->p[t], m->d[s], k->dim);
        }
}

/* Q of token t; E on the way. forward[s]: e(s - 1, t). */
static void query_of(const head *k, float *q, int64_t row, int64_t t, const float *forward) {
    const memory *m = k->m;
    const float own = k->work[k->plan->own + row * k->a->n_key_heads + k->key_head];
    const float minus = -ls_mul(own, beta_of(k, row)), top = ls_mul(*number_of(k, k->plan->scale, row), k->top);
    float r[LS_DELTA_DIM_MAX];
    chains_of(q, m->dy[t], m->entry, forward[0], k);
    for (int64_t s = 0; s < t; s++) ls_delta_chain(q, m->k[s], ls_mul(forward[s + 1], m->y_d[t][s]), k->keys);
    for (int64_t i = 0; i < k->keys; i++) r[i] = ls_fma(minus, m->k[t][i], m->q[t][i]);
    *number_of(k, k->plan->e, row) = ls_mul(top, quad_fold(r, q, k->keys));
    ls_delta_chain(q, m->k[t], m->y_d[t][t], k->keys);
}

/* K of token t of a piece of n; ends: nothing comes after. backward[s]: g(t, s). */
static void key_of(const head *k, float *out, int64_t begin, int64_t t, int64_t n, bool ends, const float *forward,
                   const float *backward) {
    const memory *m = k->m;
    float of_p[LS_DELTA_DIM_MAX];
    if (ends)
        memset(out, 0, (size_t)k->keys * sizeof *out);
    else
        chains_of(out, m->d[t], m->after, backward[n], k);
    chains_of(of_p, m->p[t], m->entry, forward[0], k);
    for (int64_t i = 0; i < k->keys; i++) out[i] = ls_sub(out[i], of_p[i]);
    for (int64_t s = 0; s < t; s++) ls_delta_chain(out, m->k[s], -ls_mul(forward[s + 1], m->p_d[t][s]), k->keys);
    for (int64_t s = t; s < n; s++) {
        const float y = ls_mul(rest_of(k, begin + s), m->y_d[s][t]);
        ls_delta_chain(out, m->q[s], s == t ? y : ls_mul(backward[s], y), k->keys);
        if (s > t) ls_delta_chain(out, m->k[s], -ls_mul(backward[s], m->p_d[s][t]), k->keys);
    }
}

/* forward[s]: the ascending product of f of tokens s to t. backward[s]: the descending product of g of tokens s - 1 to
 * t. */
static void factors_of(const head *k, int64_t begin, int64_t t, int64_t n, float *forward, float *backward) {
    for (int64_t s = 0; s <= t + 1; s++) {
        forward[s] = 1.0f;
        for (int64_t u = s; u <= t; u++) forward[s] = ls_mul(forward[s], *number_of(k, k->plan->factor, begin + u));
    }
    for (int64_t s = t; s <= n; s++) {
        backward[s] = 1.0f;
        for (int64_t u = s - 1; u >= t; u--)
            backward[s] = ls_mul(backward[s], *number_of(k, k->plan->g_factor, begin + u));
    }
}

/* dq' and dk' take a piece's head: fma(factor, x, what is there). */
static void add_head(float *restrict out, float factor, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = ls_fma(factor, x[i], out[i]);
}

static void piece_rows_back(const head *k, int64_t piece, int64_t begin, int64_t n, bool last) {
    const ls_delta_backward_args *a = k->a;
    memory *m = k->m;
    transpose(m->entry, matrix_of(k, k->plan->states, piece), k->keys, k->dim);
    if (!last)
        transpose(m->after, matrix_of(k, k->plan->grads, piece + 1), k->keys, k->dim);
    else if (a->dfinal != NULL)
        transpose(m->after, a->dfinal + state_at(k), k->keys, k->dim);
    load_piece(k, begin, n);
    for (int64_t t = 0; t < n; t++) {
        const int64_t row = begin + t, at = k->key_head * k->keys;
        const float scale = *number_of(k, k->plan->scale, row), back = *number_of(k, k->plan->g_scale, row);
        float forward[PIECE + 1], backward[PIECE + 1], out[LS_DELTA_DIM_MAX];
        factors_of(k, begin, t, n, forward, backward);
        query_of(k, out, row, t, forward);
        add_head(a->dq + row * a->dq_stride + at, ls_mul(scale, k->top), out, k->keys);
        key_of(k, out, begin, t, n, last && a->dfinal == NULL, forward, backward);
        add_head(a->dk + row * a->dk_stride + at, ls_mul(scale, back), out, k->keys);
    }
}

/* W of a piece's first token. */
static float first_w(const head *k, int64_t piece, int64_t row) {
    const float *g = matrix_of(k, k->plan->grads, piece), *s = matrix_of(k, k->plan->states, piece);
    const float factor = *number_of(k, k->plan->factor, row);
    const float both = ls_mul(*number_of(k, k->plan->scale, row), *number_of(k, k->plan->g_scale, row));
    return border_of(k, g, s, factor, both);
}

/* da, db and the piece's shares of the parameters. after: W of the token after the piece, +0 without one. */
static void piece_scalars(const head *k, int64_t piece, int64_t begin, int64_t n, float after) {
    const ls_delta_backward_args *a = k->a;
    const ls_delta_backward_plan *plan = k->plan;
    const int64_t at = (k->entry + piece) * a->n_heads + k->h;
    float w = after, drate = 0.0f, ddt_bias = 0.0f;
    for (int64_t row = begin + n - 1; row >= begin; row--) {
        const ls_delta_step step = step_of(k, row, 1.0f);
        const float e = *number_of(k, plan->e, row), back = *number_of(k, plan->g_scale, row);
        const float b = load_one(k, a->b, row * a->b_stride + k->h);
        float v[LS_DELTA_DIM_MAX], c[LS_DELTA_DIM_MAX], p[LS_DELTA_DIM_MAX], x, da, db;
        load(v, k, a->v, row * a->v_stride + k->h * k->dim, k->dim);
        inner_of(k, c, p, row, step.beta);
        x = ls_mul(ls_mul(back, step.beta), quad_fold(vector_of(k, plan->inner, row), v, k->dim));
        if (row == begin)
            w = k->work[plan->first + at];
        else
            w = step.decay < LS_DELTA_DECAY_MIN ? e : ls_add(w, ls_sub(e, x));
        db = ls_mul(ls_mul(*number_of(k, plan->scale, row), back),
                    quad_fold(c, vector_of(k, plan->deltas, row), k->dim));
        db = ls_mul(db, ls_sigmoid(-b));
        drate = ls_fma(w, step.soft, drate);
        da = ls_mul(ls_mul(w, k->rate), ls_sigmoid(step.raw));
        ddt_bias = ls_add(ddt_bias, da);
        ls_row_narrow(ls_at_mut(a->da, a->dab_dtype, row * a->da_stride + k->h), a->dab_dtype, &da, 1);
        ls_row_narrow(ls_at_mut(a->db, a->dab_dtype, row * a->db_stride + k->h), a->dab_dtype, &db, 1);
    }
    k->work[plan->rate + at] = drate;
    k->work[plan->bias + at] = ddt_bias;
}

/* ---- heads ---- */

static void run_head(const head *k) {
    const ls_delta_backward_args *a = k->a;
    const int64_t pieces = ls_delta_pieces(k->span);
    const float *first = matrix_of(k, k->plan->grads, 0);
    const float end = walk_forwards(k);
    const float decay = walk_backwards(k);
    for (int64_t piece = pieces - 1; piece >= 0; piece--) {
        const int64_t begin = k->span->row + piece * PIECE, left = k->span->n_rows - piece * PIECE;
        const int64_t at = (k->entry + piece) * a->n_heads + k->h;
        float *w = k->work + k->plan->first;
        w[at] = first_w(k, piece, begin);
        piece_rows_back(k, piece, begin, left < PIECE ? left : PIECE, piece == pieces - 1);
        piece_scalars(k, piece, begin, left < PIECE ? left : PIECE, piece == pieces - 1 ? end : w[at + a->n_heads]);
    }
    if (a->dinitial == NULL) return;
    for (int64_t j = 0; j < k->each; j++)
        a->dinitial[state_at(k) + j] = ls_mul(ls_mul(*number_of(k, k->plan->g_scale, k->span->row), decay), first[j]);
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
        for (int64_t h = m * group; h < (m + 1) * group; h++) {
            const head k = {.a = a,
                            .plan = &plan,
                            .span = span,
                            .work = call->floats,
                            .m = (memory *)(void *)scratch,
                            .span_i = i,
                            .entry = ls_delta_entry(span, i),
                            .h = h,
                            .key_head = m,
                            .keys = keys,
                            .dim = a->value_dim,
                            .each = keys * a->value_dim,
                            .rate = a->rate[h],
                            .dt_bias = a->dt_bias[h],
                            .top = ls_delta_query_scale(keys)};
            run_head(&k);
        }
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
