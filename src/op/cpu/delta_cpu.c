/* delta on the CPU. An item is one value head of one span; lanes are the head's columns, and its state is updated where
 * it lies in the pool; in a copy of it, where the token is held. */
#include "op/cpu/delta_row.h"
#include "op/cpu/held_row.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"

/* A value head of the op. */
typedef struct head {
    const ls_delta_args *args;
    const ls_held *held;
    int64_t h, key_head;
    float rate, dt_bias, query_scale;
} head;

/* One token of a head. */
typedef struct token {
    float q[LS_DELTA_DIM_MAX], k[LS_DELTA_DIM_MAX]; /* normalised */
    float v[LS_DELTA_DIM_MAX], u[LS_DELTA_DIM_MAX], d[LS_DELTA_DIM_MAX];
    ls_delta_step step;
    float copy[LS_DELTA_STATE_MAX];
} token;

static void load(float *out, const head *k, const void *rows, int64_t at, int64_t n) {
    ls_row_widen(out, ls_at(rows, k->args->in_dtype, at), k->args->in_dtype, n);
}

static void load_token(token *t, const head *k, int64_t row, float scale) {
    const ls_delta_args *p = k->args;
    float a, b;
    load(t->q, k, p->q, row * p->q_stride + k->key_head * p->key_dim, p->key_dim);
    load(t->k, k, p->k, row * p->k_stride + k->key_head * p->key_dim, p->key_dim);
    load(t->v, k, p->v, row * p->v_stride + k->h * p->value_dim, p->value_dim);
    load(&a, k, p->a, row * p->a_stride + k->h, 1);
    load(&b, k, p->b, row * p->b_stride + k->h, 1);
    ls_delta_normalize(t->q, p->key_dim);
    ls_delta_normalize(t->k, p->key_dim);
    t->step = ls_delta_step_of(scale, a, k->dt_bias, k->rate, b);
}

/* One row of the state after a token, and its chain of o. None overlap. */
static inline void update_row(float *restrict s, float *restrict o, const float *restrict d, float k, float q,
                              int64_t dim) {
    for (int64_t j = 0; j < dim; j++) {
        s[j] = ls_fma(k, d[j], s[j]);
        o[j] = ls_fma(q, s[j], o[j]);
    }
}

/* S after the token, in place, and the row of out before it is rounded, in u. */
static void run_token(float *s, token *t, const head *k) {
    const int64_t rows = k->args->key_dim, dim = k->args->value_dim;
    const float top = ls_mul(t->step.scale, k->query_scale);
    ls_delta_chains chains;
    if (t->step.rescaled)
        for (int64_t i = 0; i < rows * dim; i++) s[i] = ls_mul(s[i], t->step.product);
    ls_delta_fold(t->u, chains, t->k, s, rows, dim);
    for (int64_t j = 0; j < dim; j++) t->d[j] = ls_fma(-t->step.beta, t->u[j], ls_mul(t->step.w, t->v[j]));
    ls_delta_chains_clear(chains, dim);
    for (int64_t i = 0; i < rows; i++) update_row(s + i * dim, chains[i % LS_DELTA_FOLD], t->d, t->k[i], t->q[i], dim);
    ls_delta_chains_fold(t->u, chains, dim);
    for (int64_t j = 0; j < dim; j++) t->u[j] = ls_mul(top, t->u[j]);
}

static void run_span(const head *k, const ls_span *span, token *t) {
    const ls_delta_args *p = k->args;
    const int64_t dim = p->value_dim;
    const ls_held_head held = ls_held_begin(k->held, &p->held, span, k->h);
    float *stored = (float *)ls_pool_at(&p->state, span->slot) + k->h * p->key_dim * dim;
    float *s = ls_held_open(&held, span, stored, t->copy);
    float *scale = (float *)ls_pool_at(&p->scale, span->slot) + k->h;
    if (span->pos == 0) *scale = 1.0f;
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        load_token(t, k, row, *scale);
        run_token(s, t, k);
        *scale = t->step.scale;
        ls_row_narrow(ls_at_mut(p->out, p->out_dtype, row * p->out_stride + k->h * dim), p->out_dtype, t->u, dim);
    }
    ls_held_close(&held, t->d, t->k, t->step.rescaled ? t->step.product : 1.0f);
}

LS_KERNEL_DEFINE(ls_delta_kernel) {
    const ls_delta_args *a = context;
    const int64_t group = a->n_heads / a->n_key_heads;
    const ls_held held = ls_delta_held(a);
    token t;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item % a->n_spans];
        const int64_t h = item / a->n_spans;
        const head k = {a, &held, h, h / group, a->rate[h], a->dt_bias[h], ls_delta_query_scale(a->key_dim)};
        if (span->slot >= 0 && span->n_rows > 0) run_span(&k, span, &t);
    }
}
