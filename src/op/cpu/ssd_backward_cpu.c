/* ssd backward on the CPU: an item is a block of heads of one span, lanes are a head's channels. A first pass keeps the
 * state before every LS_SSD_KEEP tokens. From the last of these segments to the first, the state before every INNER
 * tokens is made from it, then that after each of INNER tokens, which are walked backwards. */
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"
#include "op/ssd.h"
#include "op/ssd_math.h"

#define HEAD_MAX 256
#define INNER 8
#define INNERS (LS_SSD_KEEP / INNER)

_Static_assert((INNERS + INNER + 2) * LS_SSD_STATE_MAX <= LS_SCRATCH_FLOATS, "states fit the scratch of a thread");

/* Scalars of a token: raw is what softplus took. */
typedef struct scalars {
    float raw, dt;
    bool clamped;
    ls_ssd_step step;
} scalars;

/* One head of one span. */
typedef struct head {
    const ls_ssd_backward_args *a;
    const ls_span *span;
    int64_t h, group, dim, states, each; /* dim: of the head; each: states * dim */
    float rate, dt_bias, d;              /* rate: a */
    float da, dd, ddt_bias;
    float *inner; /* [INNERS][each]: S before each run of INNER tokens of a segment */
    float *after; /* [INNER + 1][each]: S before a run, then after each of its tokens */
    float *g;     /* [each] */
    scalars token[LS_SSD_KEEP];
    float x[HEAD_MAX], u[HEAD_MAX], dy[HEAD_MAX], b[LS_SCAN_STATES_MAX], cc[LS_SCAN_STATES_MAX];
} head;

static void load(float *out, const head *k, const void *rows, int64_t at, int64_t n) {
    ls_row_widen(out, ls_at(rows, k->a->in_dtype, at), k->a->in_dtype, n);
}

/* Scalars of token t of the span, which follows one that left `scale`. */
static scalars scalars_of(const head *k, int64_t t, float scale) {
    const ls_ssd_backward_args *a = k->a;
    scalars s;
    float raw, soft;
    load(&raw, k, a->dt_raw, (k->span->row + t) * a->dt_stride + k->h, 1);
    s.raw = ls_add(raw, k->dt_bias);
    soft = ls_softplus(s.raw);
    s.clamped = soft < a->dt_min || soft > a->dt_max;
    s.dt = ls_ssd_clamp(soft, a->dt_min, a->dt_max);
    s.step = ls_ssd_step_of(scale, s.dt, k->rate);
    return s;
}

static void load_inputs(head *k, int64_t t) {
    const ls_ssd_backward_args *a = k->a;
    const int64_t row = k->span->row + t;
    load(k->x, k, a->x, row * a->x_stride + k->h * k->dim, k->dim);
    load(k->b, k, a->b, row * a->b_stride + k->group * k->states, k->states);
}

/* S after the token, whose inputs are loaded; next may be s. */
static void advance(head *k, float *next, const float *s, const ls_ssd_step *step) {
    for (int64_t p = 0; p < k->dim; p++) k->u[p] = ls_mul(step->w, k->x[p]);
    for (int64_t n = 0; n < k->states; n++) {
        const float b = k->b[n];
        const float *from = s + n * k->dim;
        float *to = next + n * k->dim;
        if (step->rescaled)
            for (int64_t p = 0; p < k->dim; p++) to[p] = ls_fma(k->u[p], b, ls_mul(from[p], step->product));
        else
            for (int64_t p = 0; p < k->dim; p++) to[p] = ls_fma(k->u[p], b, from[p]);
    }
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

/* One state of all channels backwards: g, and slices of U and T. None overlap. */
static inline void state_back(float *restrict g, float *restrict to_u, float *restrict to_t, const float *restrict dy,
                              const float *restrict before, float b, float cc, int64_t n) {
    for (int64_t p = 0; p < n; p++) {
        g[p] = ls_fma(dy[p], cc, g[p]);
        to_u[p] = ls_fma(b, g[p], to_u[p]);
        to_t[p] = ls_fma(g[p], before[p], to_t[p]);
    }
}

/* Token t of the span; S before and after it; sums: its [2][states] of this block, which go on. */
static void step_back(head *k, int64_t t, const scalars *s, const float *before, const float *after, float *sums) {
    const ls_ssd_backward_args *a = k->a;
    const int64_t row = k->span->row + t, dim = k->dim;
    slices u, v;
    float dx[HEAD_MAX], w, ddt;
    memset(u, 0, sizeof u);
    memset(v, 0, sizeof v);
    load_inputs(k, t);
    load(k->cc, k, a->cc, row * a->c_stride + k->group * k->states, k->states);
    memcpy(k->dy, a->dout + row * a->dout_stride + k->h * dim, (size_t)dim * sizeof(float));
    for (int64_t n = 0; n < k->states; n++) {
        float *g = k->g + n * dim;
        const int64_t slice = ls_ssd_slice(n);
        state_back(g, u[slice], v[slice], k->dy, before + n * dim, k->b[n], k->cc[n], dim);
        sums[n] = ls_fma(s->dt, fold_products(k->x, g, dim), sums[n]);
        sums[k->states + n] = ls_fma(s->step.scale, fold_products(k->dy, after + n * dim, dim), sums[k->states + n]);
        for (int64_t p = 0; p < dim; p++) g[p] = ls_mul(g[p], s->step.decay);
    }
    fold_slices(u, dim);
    fold_slices(v, dim);
    for (int64_t p = 0; p < dim; p++) dx[p] = ls_fma(k->d, k->dy[p], ls_mul(s->dt, u[0][p]));
    w = ls_mul(s->step.product, fold_sum(v[0], dim));
    ddt = ls_mul(ls_fma(w, k->rate, fold_products(k->x, u[0], dim)), ls_sigmoid(s->raw));
    if (s->clamped) ddt = 0.0f;
    k->da = ls_fma(w, s->dt, k->da);
    k->dd = ls_add(k->dd, fold_products(k->dy, k->x, dim));
    k->ddt_bias = ls_add(k->ddt_bias, ddt);
    memcpy(a->dx + row * a->dx_stride + k->h * dim, dx, (size_t)dim * sizeof(float));
    ls_row_narrow(ls_at_mut(a->ddt, a->ddt_dtype, row * a->ddt_stride + k->h), a->ddt_dtype, &ddt, 1);
}

/* The tokens [first, first + n) of the span from the state and the scale before them; sums: the block's rows. */
static void segment_back(head *k, int64_t first, int64_t n, const float *kept, float scale, float *sums) {
    const int64_t runs = (n + INNER - 1) / INNER;
    memcpy(k->inner, kept, (size_t)k->each * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        k->token[i] = scalars_of(k, first + i, scale);
        scale = k->token[i].step.scale;
    }
    for (int64_t r = 0; r + 1 < runs; r++) {
        float *s = k->inner + (r + 1) * k->each;
        for (int64_t i = r * INNER; i < (r + 1) * INNER; i++) {
            load_inputs(k, first + i);
            advance(k, s, i == r * INNER ? k->inner + r * k->each : s, &k->token[i].step);
        }
    }
    for (int64_t r = runs - 1; r >= 0; r--) {
        const int64_t begin = r * INNER, count = n - begin < INNER ? n - begin : INNER;
        memcpy(k->after, k->inner + r * k->each, (size_t)k->each * sizeof(float));
        for (int64_t i = 0; i < count; i++) {
            load_inputs(k, first + begin + i);
            advance(k, k->after + (i + 1) * k->each, k->after + i * k->each, &k->token[begin + i].step);
        }
        for (int64_t i = count - 1; i >= 0; i--) {
            const int64_t t = first + begin + i;
            step_back(k, t, &k->token[begin + i], k->after + i * k->each, k->after + (i + 1) * k->each,
                      sums + 2 * (k->span->row + t) * k->states);
        }
    }
}

/* Head h of span i. */
static void run_head(const ls_ssd_backward_args *a, const ls_ssd_backward_plan *plan, float *work, int64_t i, int64_t h,
                     float *sums, float *scratch) {
    const ls_span *span = &a->spans[i];
    const int64_t each = a->n_states * a->head_dim, last = (span->n_rows - 1) / LS_SSD_KEEP * LS_SSD_KEEP;
    const int64_t entry = (span->row / LS_SSD_KEEP + i) * a->n_heads + h;
    float *kept = work + plan->states + entry * each, *kept_scale = work + plan->scales + entry, scale = 1.0f;
    head k = {.a = a,
              .span = span,
              .h = h,
              .group = h / (a->n_heads / a->n_groups),
              .dim = a->head_dim,
              .states = a->n_states,
              .each = each,
              .rate = a->a[h],
              .dt_bias = a->dt_bias[h],
              .d = a->d[h],
              .inner = scratch,
              .after = scratch + INNERS * each,
              .g = scratch + (INNERS + INNER + 1) * each};
    memset(k.g, 0, (size_t)each * sizeof(float));
    memset(k.after, 0, (size_t)each * sizeof(float));
    for (int64_t t = 0; t <= last && span->n_rows > 0; t++) {
        if (t % LS_SSD_KEEP == 0) {
            memcpy(kept + t / LS_SSD_KEEP * a->n_heads * each, k.after, (size_t)each * sizeof(float));
            kept_scale[t / LS_SSD_KEEP * a->n_heads] = scale;
        }
        if (t < last) {
            const scalars s = scalars_of(&k, t, scale);
            load_inputs(&k, t);
            advance(&k, k.after, k.after, &s.step);
            scale = s.step.scale;
        }
    }
    for (int64_t first = last; first >= 0 && span->n_rows > 0; first -= LS_SSD_KEEP) {
        const int64_t left = span->n_rows - first, at = first / LS_SSD_KEEP * a->n_heads;
        segment_back(&k, first, left < LS_SSD_KEEP ? left : LS_SSD_KEEP, kept + at * each, kept_scale[at], sums);
    }
    work[plan->a + i * a->n_heads + h] = k.da;
    work[plan->d + i * a->n_heads + h] = k.dd;
    work[plan->bias + i * a->n_heads + h] = k.ddt_bias;
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
        for (int64_t h = first; h < first + n; h++) run_head(a, &plan, call->floats, i, h, sums, scratch);
    }
}

/* Items are rows: those of spans that are no padding get db and dcc. */
LS_KERNEL_DEFINE(ls_ssd_sums_kernel) {
    const ls_workspace_call *call = context;
    const ls_ssd_backward_args *a = call->args;
    const int64_t row_floats = 2 * a->n_states;
    ls_ssd_backward_plan plan;
    ls_ssd_backward_plan_make(&plan, a);
    for (int64_t item = begin * a->n_groups; item < end * a->n_groups; item++) {
        const int64_t row = item / a->n_groups, group = item % a->n_groups;
        bool is_token = false;
        for (int64_t i = 0; i < a->n_spans && !is_token; i++)
            is_token = a->spans[i].slot >= 0 && row >= a->spans[i].row && row < a->spans[i].row + a->spans[i].n_rows;
        if (!is_token) continue;
        memset(scratch, 0, (size_t)row_floats * sizeof(float));
        for (int64_t block_i = group * plan.group_blocks; block_i < (group + 1) * plan.group_blocks; block_i++) {
            const float *share = call->floats + plan.sums + (block_i * a->rows + row) * row_floats;
            for (int64_t s = 0; s < row_floats; s++) scratch[s] = ls_add(scratch[s], share[s]);
        }
        memcpy(a->db + row * a->db_stride + group * a->n_states, scratch, (size_t)a->n_states * sizeof(float));
        memcpy(a->dcc + row * a->dc_stride + group * a->n_states, scratch + a->n_states,
               (size_t)a->n_states * sizeof(float));
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
            const int64_t share = i * a->n_heads + h;
            if (a->spans[i].slot < 0) continue;
            da = ls_add(da, call->floats[plan.a + share]);
            dd = ls_add(dd, call->floats[plan.d + share]);
            ddt_bias = ls_add(ddt_bias, call->floats[plan.bias + share]);
        }
        a->da[h] = da;
        a->dd[h] = dd;
        a->ddt_bias[h] = ddt_bias;
    }
}
