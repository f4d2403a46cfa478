/* ssd backward on the CPU: an item is a block of heads of one span, lanes are a head's channels. Each head is walked
 * forwards with S and then backwards with g; a later pass makes the gradients of scalars, a piece at a time. */
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"
#include "op/ssd.h"
#include "op/ssd_math.h"

#define HEAD_MAX 256

_Static_assert(2 * LS_SSD_STATE_MAX <= LS_SCRATCH_FLOATS, "S and g fit the scratch of a thread");

/* Scalars of a token that do not depend on the tokens before: raw is what softplus took. */
typedef struct scalars {
    float raw, dt;
    bool clamped;
} scalars;

/* One head of one span. */
typedef struct head {
    const ls_ssd_backward_args *a;
    const ls_ssd_backward_plan *plan;
    const ls_span *span;
    float *work, *sums;                                 /* sums: [rows][2][states] of the head's block, which go on */
    int64_t span_i, entry, h, group, dim, states, each; /* entry: of the first piece; each: states * dim, of the head */
    float rate, d;                                      /* rate: a */
    float x[HEAD_MAX], u[HEAD_MAX], dy[HEAD_MAX], b[LS_SCAN_STATES_MAX], cc[LS_SCAN_STATES_MAX];
} head;

static void load(float *out, const head *k, const void *rows, int64_t at, int64_t n) {
    ls_row_widen(out, ls_at(rows, k->a->in_dtype, at), k->a->in_dtype, n);
}

static scalars scalars_of(const ls_ssd_backward_args *a, int64_t row, int64_t h) {
    scalars s;
    float raw, soft;
    ls_row_widen(&raw, ls_at(a->dt_raw, a->in_dtype, row * a->dt_stride + h), a->in_dtype, 1);
    s.raw = ls_add(raw, a->dt_bias[h]);
    soft = ls_softplus(s.raw);
    s.clamped = soft < a->dt_min || soft > a->dt_max;
    s.dt = ls_ssd_clamp(soft, a->dt_min, a->dt_max);
    return s;
}

static void load_inputs(head *k, int64_t row) {
    const ls_ssd_backward_args *a = k->a;
    load(k->x, k, a->x, row * a->x_stride + k->h * k->dim, k->dim);
    load(k->b, k, a->b, row * a->b_stride + k->group * k->states, k->states);
    load(k->cc, k, a->cc, row * a->c_stride + k->group * k->states, k->states);
    memcpy(k->dy, a->dout + row * a->dout_stride + k->h * k->dim, (size_t)k->dim * sizeof(float));
}

/* 16 chains, by halves. */
static float fold_chains(float *chain) {
    for (int half = LS_SSD_FOLD / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) chain[i] = ls_add(chain[i], chain[i + half]);
    return chain[0];
}

/* The fold over p of x[p] * y[p]. */
static float fold_products(const float *x, const float *y, int64_t dim) {
    float chain[LS_SSD_FOLD] = {0};
    for (int64_t base = 0; base < dim; base += LS_SSD_FOLD) {
        const int64_t n = dim - base < LS_SSD_FOLD ? dim - base : LS_SSD_FOLD;
        for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(x[base + i], y[base + i], chain[i]);
    }
    return fold_chains(chain);
}

static float fold_sum(const float *x, int64_t dim) {
    float chain[LS_SSD_FOLD] = {0};
    for (int64_t p = 0; p < dim; p++) chain[p % LS_SSD_FOLD] = ls_add(chain[p % LS_SSD_FOLD], x[p]);
    return fold_chains(chain);
}

typedef float slices[LS_SSD_SLICES][HEAD_MAX];

/* Into slice 0. */
static void fold_slices(slices s, int64_t dim) {
    for (int64_t p = 0; p < dim; p++)
        s[0][p] = ls_add(ls_add(ls_add(s[0][p], s[1][p]), ls_add(s[2][p], s[3][p])),
                         ls_add(ls_add(s[4][p], s[5][p]), ls_add(s[6][p], s[7][p])));
}
_Static_assert(LS_SSD_SLICES == 8, "the fold is written out");

static void rescale(float *s, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++) s[i] = ls_mul(s[i], factor);
}

/* s + u b for all states and channels. */
static void advance(float *restrict s, const float *restrict u, const float *restrict b, int64_t states, int64_t dim) {
    for (int64_t n = 0; n < states; n++)
        for (int64_t p = 0; p < dim; p++) s[n * dim + p] = ls_fma(u[p], b[n], s[n * dim + p]);
}

/* The eight-slice fold over n of x[n] * y[n]. */
static float fold_states(const float *x, const float *y, int64_t n) {
    float s[LS_SSD_SLICES] = {0};
    for (int64_t i = 0; i < n; i++) s[ls_ssd_slice(i)] = ls_fma(x[i], y[i], s[ls_ssd_slice(i)]);
    return ls_add(ls_add(ls_add(s[0], s[1]), ls_add(s[2], s[3])), ls_add(ls_add(s[4], s[5]), ls_add(s[6], s[7])));
}

/* Where the head's state is in a tensor of states of spans. */
static int64_t state_at(const head *k) { return (k->span_i * k->a->n_heads + k->h) * k->each; }

static void load_state(const head *k, float *s, const float *states) {
    if (states == NULL)
        memset(s, 0, (size_t)k->each * sizeof *s);
    else
        memcpy(s, states + state_at(k), (size_t)k->each * sizeof *s);
}

/* One state of all channels, into its slice. They do not overlap. */
static inline void add_slice(float *restrict to, const float *restrict from, float factor, int64_t n) {
    for (int64_t p = 0; p < n; p++) to[p] = ls_fma(factor, from[p], to[p]);
}

/* factor times the fold over p of T[p], T[p] the eight-slice fold over n of g[n][p] * s[n][p]. */
static float border_of(const head *k, const float *g, const float *s, float factor) {
    slices v;
    memset(v, 0, sizeof v);
    for (int64_t n = 0; n < k->states; n++) {
        float *to = v[ls_ssd_slice(n)];
        for (int64_t p = 0; p < k->dim; p++) to[p] = ls_fma(g[n * k->dim + p], s[n * k->dim + p], to[p]);
    }
    fold_slices(v, k->dim);
    return ls_mul(factor, fold_sum(v[0], k->dim));
}

/* S through the span: dcc's sums without what tokens do to themselves, e, y, k, and what the pieces begin with. */
static void walk_forwards(head *k, float *s) {
    const ls_ssd_backward_args *a = k->a;
    float scale = a->initial_scale != NULL ? a->initial_scale[k->span_i * a->n_heads + k->h] : 1.0f;
    float fold[LS_SCAN_STATES_MAX];
    load_state(k, s, a->initial);
    for (int64_t t = 0; t < k->span->n_rows; t++) {
        const int64_t row = k->span->row + t, at = (k->entry + t / LS_SSD_PIECE) * a->n_heads + k->h;
        const ls_ssd_step step = ls_ssd_step_of(scale, scalars_of(a, row, k->h).dt, k->rate);
        float *sums = k->sums + (2 * row + 1) * k->states;
        load_inputs(k, row);
        scale = step.scale;
        if (step.rescaled) rescale(s, k->each, step.product);
        if (t % LS_SSD_PIECE == 0 && (t > 0 || a->initial != NULL)) {
            memcpy(k->work + k->plan->states + at * k->each, s, (size_t)k->each * sizeof *s);
            k->work[k->plan->first + at] = scale;
        }
        for (int64_t n = 0; n < k->states; n++) {
            fold[n] = fold_products(k->dy, s + n * k->dim, k->dim);
            sums[n] = ls_fma(scale, fold[n], sums[n]);
        }
        k->work[k->plan->e + row * a->n_heads + k->h] = ls_mul(scale, fold_states(k->cc, fold, k->states));
        k->work[k->plan->y + row * a->n_heads + k->h] = fold_products(k->dy, k->x, k->dim);
        k->work[k->plan->k + row * a->n_groups + k->group] = fold_states(k->b, k->cc, k->states);
        for (int64_t p = 0; p < k->dim; p++) k->u[p] = ls_mul(step.w, k->x[p]);
        advance(s, k->u, k->b, k->states, k->dim);
    }
    if (a->dfinal != NULL)
        k->work[k->plan->last + k->span_i * a->n_heads + k->h] = border_of(k, a->dfinal + state_at(k), s, scale);
}

/* W of the first token of a piece, whose S is in the workspace. */
static float first_w(const head *k, const float *g, float scale, int64_t at) {
    return border_of(k, g, k->work + k->plan->states + at * k->each, ls_mul(k->work[k->plan->first + at], scale));
}

/* g back through the span: dx, db's sums without what tokens do to themselves, x, and W of the pieces' first tokens. */
static void walk_backwards(head *k, float *g) {
    const ls_ssd_backward_args *a = k->a;
    float scale = 1.0f, decay = 1.0f;
    load_state(k, g, a->dfinal);
    for (int64_t t = k->span->n_rows - 1; t >= 0; t--) {
        const int64_t row = k->span->row + t, at = (k->entry + t / LS_SSD_PIECE) * a->n_heads + k->h;
        const float dt = scalars_of(a, row, k->h).dt, product = ls_mul(scale, decay);
        const float own = k->work[k->plan->k + row * a->n_groups + k->group];
        const bool rescaled = product < LS_SSD_SCALE_MIN;
        float *sums = k->sums + 2 * row * k->states, *dx = a->dx + row * a->dx_stride + k->h * k->dim, factor;
        slices u;
        scale = rescaled ? 1.0f : product;
        decay = ls_exp(ls_mul(dt, k->rate));
        factor = ls_mul(dt, scale);
        load_inputs(k, row);
        memset(u, 0, sizeof u);
        if (rescaled) rescale(g, k->each, product);
        for (int64_t n = 0; n < k->states; n++) {
            add_slice(u[ls_ssd_slice(n)], g + n * k->dim, k->b[n], k->dim);
            sums[n] = ls_fma(factor, fold_products(k->x, g + n * k->dim, k->dim), sums[n]);
        }
        fold_slices(u, k->dim);
        for (int64_t p = 0; p < k->dim; p++) {
            u[0][p] = ls_mul(scale, u[0][p]);
            dx[p] = ls_fma(k->d, k->dy[p], ls_mul(dt, ls_fma(own, k->dy[p], u[0][p])));
            k->u[p] = ls_mul(ls_div(1.0f, scale), k->dy[p]);
        }
        k->work[k->plan->x + row * a->n_heads + k->h] = fold_products(k->x, u[0], k->dim);
        advance(g, k->u, k->cc, k->states, k->dim);
        if (t % LS_SSD_PIECE == 0)
            k->work[k->plan->first + at] = t == 0 && a->initial == NULL ? 0.0f : first_w(k, g, scale, at);
    }
    if (a->dinitial == NULL || k->span->n_rows == 0) return;
    for (int64_t j = 0; j < k->each; j++) a->dinitial[state_at(k) + j] = ls_mul(ls_mul(scale, decay), g[j]);
}

/* J of a block of n heads. */
static void sum_own(head *k, int64_t block_i, int64_t n) {
    const ls_ssd_backward_args *a = k->a;
    for (int64_t row = k->span->row; row < k->span->row + k->span->n_rows; row++) {
        float *own = &k->work[k->plan->j + row * k->plan->n_blocks + block_i];
        *own = 0.0f;
        for (int64_t h = k->h; h < k->h + n; h++)
            *own = ls_fma(scalars_of(a, row, h).dt, k->work[k->plan->y + row * a->n_heads + h], *own);
    }
}

/* Items: spans x blocks of heads. */
LS_KERNEL_DEFINE(ls_ssd_backward_kernel) {
    const ls_workspace_call *call = context;
    const ls_ssd_backward_args *a = call->args;
    const int64_t group_heads = a->n_heads / a->n_groups, row_floats = 2 * a->n_states;
    ls_ssd_backward_plan plan;
    ls_ssd_backward_plan_make(&plan, a);
    for (int64_t item = begin; item < end; item++) {
        const int64_t i = item / plan.n_blocks, block_i = item % plan.n_blocks;
        const int64_t in_group = block_i % plan.group_blocks * LS_SSD_SUM_HEADS;
        const int64_t first = block_i / plan.group_blocks * group_heads + in_group;
        const int64_t n = group_heads - in_group < LS_SSD_SUM_HEADS ? group_heads - in_group : LS_SSD_SUM_HEADS;
        const ls_span *span = &a->spans[i];
        float *sums = call->floats + plan.sums + block_i * a->rows * row_floats;
        if (span->slot < 0) continue;
        memset(sums + span->row * row_floats, 0, (size_t)(span->n_rows * row_floats) * sizeof(float));
        head k = {.a = a,
                  .plan = &plan,
                  .span = span,
                  .work = call->floats,
                  .sums = sums,
                  .span_i = i,
                  .entry = ls_ssd_entry(span, i),
                  .group = first / group_heads,
                  .dim = a->head_dim,
                  .states = a->n_states,
                  .each = a->n_states * a->head_dim};
        for (k.h = first; k.h < first + n; k.h++) {
            k.rate = a->a[k.h];
            k.d = a->d[k.h];
            walk_forwards(&k, scratch);
            walk_backwards(&k, scratch);
        }
        k.h = first;
        sum_own(&k, block_i, n);
    }
}

/* The tokens [begin, end) of head h, those of a piece; w: of the token at end. */
static void piece_scalars(const ls_ssd_backward_args *a, const ls_ssd_backward_plan *plan, float *work, int64_t entry,
                          int64_t h, int64_t begin, int64_t end, float w) {
    float da = 0.0f, dd = 0.0f, ddt_bias = 0.0f;
    for (int64_t row = end - 1; row >= begin; row--) {
        const int64_t at = row * a->n_heads + h;
        const scalars s = scalars_of(a, row, h);
        const float own = work[plan->k + row * a->n_groups + h / (a->n_heads / a->n_groups)];
        const float y = work[plan->y + at], x = work[plan->x + at];
        float ddt;
        if (row == begin)
            w = work[plan->first + entry * a->n_heads + h];
        else if (ls_exp(ls_mul(s.dt, a->a[h])) < LS_SSD_DECAY_MIN)
            w = work[plan->e + at];
        else
            w = ls_add(w, ls_fma(-s.dt, x, work[plan->e + at]));
        ddt = s.clamped ? 0.0f : ls_mul(ls_fma(w, a->a[h], ls_fma(own, y, x)), ls_sigmoid(s.raw));
        da = ls_fma(w, s.dt, da);
        dd = ls_add(dd, y);
        ddt_bias = ls_add(ddt_bias, ddt);
        ls_row_narrow(ls_at_mut(a->ddt, a->ddt_dtype, row * a->ddt_stride + h), a->ddt_dtype, &ddt, 1);
    }
    work[plan->a + entry * a->n_heads + h] = da;
    work[plan->d + entry * a->n_heads + h] = dd;
    work[plan->bias + entry * a->n_heads + h] = ddt_bias;
}

/* Items: spans x heads. */
LS_KERNEL_DEFINE(ls_ssd_pieces_kernel) {
    const ls_workspace_call *call = context;
    const ls_ssd_backward_args *a = call->args;
    ls_ssd_backward_plan plan;
    (void)scratch;
    ls_ssd_backward_plan_make(&plan, a);
    for (int64_t item = begin; item < end; item++) {
        const int64_t i = item / a->n_heads, h = item % a->n_heads;
        const ls_span *span = &a->spans[i];
        const int64_t pieces = span->slot < 0 ? 0 : ls_ssd_pieces(span);
        for (int64_t j = 0; j < pieces; j++) {
            const int64_t entry = ls_ssd_entry(span, i) + j, first = span->row + j * LS_SSD_PIECE;
            const bool is_last = j + 1 == pieces;
            const float last = a->dfinal != NULL ? call->floats[plan.last + item] : 0.0f;
            piece_scalars(a, &plan, call->floats, entry, h, first,
                          is_last ? span->row + span->n_rows : first + LS_SSD_PIECE,
                          is_last ? last : call->floats[plan.first + (entry + 1) * a->n_heads + h]);
        }
    }
}

/* Items are rows: those of spans that are no padding get db and dcc. */
LS_KERNEL_DEFINE(ls_ssd_sums_kernel) {
    const ls_workspace_call *call = context;
    const ls_ssd_backward_args *a = call->args;
    const int64_t n = a->n_states;
    float b[LS_SCAN_STATES_MAX], cc[LS_SCAN_STATES_MAX];
    ls_ssd_backward_plan plan;
    (void)scratch;
    ls_ssd_backward_plan_make(&plan, a);
    for (int64_t item = begin * a->n_groups; item < end * a->n_groups; item++) {
        const int64_t row = item / a->n_groups, group = item % a->n_groups;
        float *db = a->db + row * a->db_stride + group * n, *dcc = a->dcc + row * a->dc_stride + group * n;
        bool is_token = false;
        for (int64_t i = 0; i < a->n_spans && !is_token; i++)
            is_token = a->spans[i].slot >= 0 && row >= a->spans[i].row && row < a->spans[i].row + a->spans[i].n_rows;
        if (!is_token) continue;
        ls_row_widen(b, ls_at(a->b, a->in_dtype, row * a->b_stride + group * n), a->in_dtype, n);
        ls_row_widen(cc, ls_at(a->cc, a->in_dtype, row * a->c_stride + group * n), a->in_dtype, n);
        memset(db, 0, (size_t)n * sizeof *db);
        memset(dcc, 0, (size_t)n * sizeof *dcc);
        for (int64_t block_i = group * plan.group_blocks; block_i < (group + 1) * plan.group_blocks; block_i++) {
            const float *share = call->floats + plan.sums + (block_i * a->rows + row) * 2 * n;
            const float own = call->floats[plan.j + row * plan.n_blocks + block_i];
            for (int64_t s = 0; s < n; s++) {
                db[s] = ls_add(db[s], ls_fma(own, cc[s], share[s]));
                dcc[s] = ls_add(dcc[s], ls_fma(own, b[s], share[n + s]));
            }
        }
    }
}

/* Items are heads. */
LS_KERNEL_DEFINE(ls_ssd_parameters_kernel) {
    const ls_workspace_call *call = context;
    const ls_ssd_backward_args *a = call->args;
    ls_ssd_backward_plan plan;
    (void)scratch;
    ls_ssd_backward_plan_make(&plan, a);
    for (int64_t h = begin; h < end; h++) {
        float da = a->continued ? a->da[h] : 0.0f, dd = a->continued ? a->dd[h] : 0.0f;
        float ddt_bias = a->continued ? a->ddt_bias[h] : 0.0f;
        for (int64_t i = 0; i < a->n_spans; i++) {
            const int64_t pieces = a->spans[i].slot < 0 ? 0 : ls_ssd_pieces(&a->spans[i]);
            for (int64_t j = 0; j < pieces; j++) {
                const int64_t share = (ls_ssd_entry(&a->spans[i], i) + j) * a->n_heads + h;
                da = ls_add(da, call->floats[plan.a + share]);
                dd = ls_add(dd, call->floats[plan.d + share]);
                ddt_bias = ls_add(ddt_bias, call->floats[plan.bias + share]);
            }
        }
        a->da[h] = da;
        a->dd[h] = dd;
        a->ddt_bias[h] = ddt_bias;
    }
}
