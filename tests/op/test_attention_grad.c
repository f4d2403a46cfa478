/* Gradients of attention against a textbook reading of their contract, bit for bit, and against the analytic gradient
 * in float64, which central differences hold to the truth. */
#include "num/half.h"
#include "num/mma16.h"
#include "num/sum.h"
#include "op/attention_backward.h"
#include "op/op_grad.h"

typedef struct shape {
    int64_t n_heads, n_kv_heads, head_dim;
    ls_dtype dtype;
    int64_t window;
    ls_profile profile;
} shape;

typedef struct problem {
    grad_layout layout;
    shape of;
    float scale;
    op_array q, k, v, dout;
    op_array out, log_sum; /* mma16: of the forward */
    bool branches;         /* spans continue others, their keys at key_rows */
    int64_t key_rows[GRAD_SPANS_MAX], n_key_rows;
} problem;

/* Where the keys of a span lie: a span of their rows. */
static ls_span keys_of(const problem *p, const ls_span *span) {
    ls_span keys = *span;
    if (!p->branches) return keys;
    keys.row = p->key_rows[span - p->layout.spans];
    keys.n_rows += span->pos;
    keys.pos = 0;
    return keys;
}

enum { DQ, DK, DV, N_GRADS };
static const char *const grad_names[N_GRADS] = {"dq", "dk", "dv"};

typedef struct grads {
    op_array of[N_GRADS];
} grads;

static grads grads_make(const problem *p, int64_t rows, int64_t pad) {
    grads g;
    for (int i = 0; i < N_GRADS; i++) {
        const int64_t heads = i == DQ ? p->of.n_heads : p->of.n_kv_heads;
        g.of[i] = op_array_make(LS_F32, i != DQ && p->branches ? p->n_key_rows : rows, heads * p->of.head_dim,
                                i == DQ ? pad : 2 * pad);
        op_guard(&g.of[i]);
    }
    return g;
}

static void grads_free(grads *g) {
    for (int i = 0; i < N_GRADS; i++) op_array_free(&g->of[i]);
}

static float *grads_at(const grads *g, int i) { return (float *)(void *)g->of[i].data; }

static void copy_rows(const op_array *to, int64_t to_row, const op_array *from, int64_t from_row, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        memcpy(op_at(to, to_row + i, 0), op_at(from, from_row + i, 0), (size_t)(to->cols * ls_dtype_bytes(to->dtype)));
}

/* out and log_sum, by the op. Queries before a span's own are zeros, and what they give is left. */
static void forward_make(problem *p) {
    const int64_t page_tokens = 16, rows = p->k.rows, n_pages = rows / page_tokens + GRAD_SPANS_MAX;
    const int64_t page_bytes = ls_kv_page_bytes(p->of.n_kv_heads, p->of.head_dim, page_tokens, LS_BF16);
    uint8_t *pages = op_alloc(n_pages * page_bytes);
    int32_t *tables = op_alloc(n_pages * (int64_t)sizeof *tables);
    op_array q = op_array_make(LS_BF16, rows, p->q.cols, 0), out = op_array_make(LS_BF16, rows, p->q.cols, 1);
    op_array log_sum = op_array_make(LS_F32, rows, p->of.n_heads, 2);
    ls_span spans[GRAD_SPANS_MAX];
    ls_error err;
    int64_t at = 0;
    memset(q.data, 0, (size_t)q.bytes);
    p->out = op_array_make(LS_BF16, p->layout.rows, p->q.cols, 1);
    p->log_sum = op_array_make(LS_F32, p->layout.rows, p->of.n_heads, 2);
    for (int64_t i = 0; i < n_pages; i++) tables[i] = (int32_t)i;
    for (int64_t i = 0; i < p->layout.n_spans; i++) {
        spans[i] = keys_of(p, &p->layout.spans[i]);
        copy_rows(&q, spans[i].row + p->layout.spans[i].pos, &p->q, p->layout.spans[i].row, p->layout.spans[i].n_rows);
        spans[i].table = at;
        at += spans[i].n_rows / page_tokens + 1;
    }
    const ls_attention_args args = {.q = q.data,
                                    .k = p->k.data,
                                    .v = p->v.data,
                                    .out = out.data,
                                    .dtype = LS_BF16,
                                    .q_stride = q.stride,
                                    .kv_stride = p->k.stride,
                                    .out_stride = out.stride,
                                    .n_heads = p->of.n_heads,
                                    .n_kv_heads = p->of.n_kv_heads,
                                    .head_dim = p->of.head_dim,
                                    .scale = p->scale,
                                    .page_tokens = page_tokens,
                                    .pages = {pages, page_bytes, n_pages},
                                    .spans = spans,
                                    .n_spans = p->layout.n_spans,
                                    .tables = tables,
                                    .n_tables = n_pages,
                                    .rows = rows,
                                    .window = p->of.window,
                                    .profile = LS_PROFILE_MMA16,
                                    .log_sum = (float *)(void *)log_sum.data,
                                    .log_sum_stride = log_sum.stride};
    assert_ok(ls_attention(op_devices[ls_isa_best()][0], &args, &err), err);
    for (int64_t i = 0; i < p->layout.n_spans; i++) {
        const ls_span *span = &p->layout.spans[i];
        copy_rows(&p->out, span->row, &out, spans[i].row + span->pos, span->n_rows);
        copy_rows(&p->log_sum, span->row, &log_sum, spans[i].row + span->pos, span->n_rows);
    }
    op_array_free(&q);
    op_array_free(&out);
    op_array_free(&log_sum);
    free(pages);
    free(tables);
}

/* Positions within tiles, steps and segments; keys lie in order, a row of nobody behind each span's. */
static void branches_make(problem *p, grad_layout *keys, uint64_t *seed) {
    static const int64_t positions[] = {0, 1, 16, 63, 64, 70, 129, 200};
    for (int64_t i = 0; i < p->layout.n_spans; i++) {
        if (p->layout.spans[i].pos == 0) p->layout.spans[i].pos = positions[test_random(seed) % OP_COUNT(positions)];
        p->key_rows[i] = p->n_key_rows;
        p->n_key_rows += p->layout.spans[i].pos + p->layout.spans[i].n_rows + 1;
    }
    keys->rows = p->n_key_rows;
    for (int64_t i = 0; i < p->layout.n_spans; i++) keys->spans[i] = keys_of(p, &p->layout.spans[i]);
}

static problem problem_with_keys(const grad_layout *layout, const shape *of, bool branches, op_maker make,
                                 uint64_t seed) {
    const int64_t q_cols = of->n_heads * of->head_dim, kv_cols = of->n_kv_heads * of->head_dim;
    const int64_t kv_pad = (int64_t)(test_random(&seed) % 4);
    problem p = {
        .layout = *layout, .of = *of, .scale = ls_div(1.0f, ls_sqrt((float)of->head_dim)), .branches = branches};
    grad_layout keys = *layout;
    if (branches) branches_make(&p, &keys, &seed);
    p.q = op_array_make(of->dtype, layout->rows, q_cols, (int64_t)(test_random(&seed) % 4));
    p.k = op_array_make(of->dtype, keys.rows, kv_cols, kv_pad);
    p.v = op_array_make(of->dtype, keys.rows, kv_cols, kv_pad);
    p.dout = op_array_make(LS_F32, layout->rows, q_cols, (int64_t)(test_random(&seed) % 4));
    grad_fill(&p.q, layout, make, &seed);
    grad_fill(&p.k, &keys, make, &seed);
    grad_fill(&p.v, &keys, make, &seed);
    grad_fill(&p.dout, layout, make, &seed);
    if (of->profile == LS_PROFILE_MMA16) forward_make(&p);
    return p;
}

static problem problem_make(const grad_layout *layout, const shape *of, op_maker make, uint64_t seed) {
    return problem_with_keys(layout, of, false, make, seed);
}

static void problem_free(problem *p) {
    op_array_free(&p->q);
    op_array_free(&p->k);
    op_array_free(&p->v);
    op_array_free(&p->dout);
    if (p->of.profile != LS_PROFILE_MMA16) return;
    op_array_free(&p->out);
    op_array_free(&p->log_sum);
}

static ls_attention_backward_args problem_args(const problem *p, const grads *g) {
    const ls_attention_backward_args args = {
        .q = p->q.data,
        .k = p->k.data,
        .v = p->v.data,
        .dtype = p->of.dtype,
        .q_stride = p->q.stride,
        .kv_stride = p->k.stride,
        .dout = (const float *)(const void *)p->dout.data,
        .dout_stride = p->dout.stride,
        .dq = grads_at(g, DQ),
        .dk = grads_at(g, DK),
        .dv = grads_at(g, DV),
        .dq_stride = g->of[DQ].stride,
        .dkv_stride = g->of[DK].stride,
        .rows = p->layout.rows,
        .n_heads = p->of.n_heads,
        .n_kv_heads = p->of.n_kv_heads,
        .head_dim = p->of.head_dim,
        .scale = p->scale,
        .spans = p->layout.spans,
        .n_spans = p->layout.n_spans,
        .window = p->of.window,
        .profile = p->of.profile,
        .out = p->out.data,
        .out_stride = p->out.stride,
        .log_sum = (const float *)(const void *)p->log_sum.data,
        .log_sum_stride = p->log_sum.stride,
        .key_rows = p->branches ? p->key_rows : NULL,
        .key_rows_n = p->n_key_rows,
    };
    return args;
}

/* The op on a device, in a workspace of exactly its size. */
static void run(const problem *p, const grads *g, ls_device *device) {
    const ls_attention_backward_args args = problem_args(p, g);
    grad_workspace workspace = grad_workspace_lend(device, ls_op_attention_backward_workspace(&args));
    ls_error err;
    assert_ok(ls_attention_backward(device, &args, &err), err);
    grad_workspace_take_back(&workspace);
}

/* ---- the textbook ---- */

/* Wrong on purpose: p by division, D from p and dp, D in descending order, the scale inside the chains of dq, keys in
 * descending order, a group's heads as one chain, queries in descending order, no segments; windows of one more and of
 * one less, a key of a window that has no query of the last tile that sees it. */
typedef enum variant {
    RIGHT,
    P_DIVIDED,
    D_FROM_P,
    D_DESCENDING,
    SCALE_INSIDE,
    KEYS_DESCENDING,
    ONE_CHAIN_FOR_HEADS,
    QUERIES_DESCENDING,
    NO_SEGMENTS,
    WINDOW_MORE,
    WINDOW_LESS,
    TILE_SKIPPED
} variant;

typedef struct partial {
    float m, l, acc[LS_HEAD_DIM_MAX];
} partial;

static float fold_halves(const float *e, int64_t i, int64_t step) {
    return step == 64 ? e[i] : ls_add(fold_halves(e, i, 2 * step), fold_halves(e, i + step, 2 * step));
}

/* The first key that query i sees. */
static int64_t first_ref(const problem *p, int64_t i, variant which) {
    const int64_t window = p->of.window + (which == WINDOW_MORE) - (which == WINDOW_LESS);
    return p->of.window == 0 || i < window ? 0 : i - window + 1;
}

/* The forward of one query with the keys [low, n) that it sees: score[low..n) is filled in. */
static partial forward_ref(const float *q, const float *k, const float *v, int64_t low, int64_t n, int64_t dim,
                           float scale, float *score, variant which) {
    const int64_t segment = which == NO_SEGMENTS ? INT64_MAX / 2 : 1024;
    partial all, part;
    for (int64_t j = low; j < n; j++) {
        float chain = 0.0f;
        for (int64_t d = 0; d < dim; d++) chain = ls_fma(q[d], k[j * dim + d], chain);
        score[j] = ls_mul(scale, chain);
    }
    for (int64_t from = low / segment * segment; from < n; from += segment) {
        memset(&part, 0, sizeof part);
        part.m = -INFINITY;
        for (int64_t block = from; block < n && block - from < segment; block += 64) {
            float e[64] = {0}, m = part.m, c;
            const int64_t begin = low > block ? low - block : 0;
            if (begin >= 64) continue;
            for (int64_t j = begin; j < 64 && block + j < n; j++) m = ls_max(score[block + j], m);
            c = ls_exp(ls_sub(part.m, m));
            for (int64_t j = begin; j < 64 && block + j < n; j++) e[j] = ls_exp(ls_sub(score[block + j], m));
            part.l = ls_fma(part.l, c, fold_halves(e, 0, 1));
            part.m = m;
            for (int64_t d = 0; d < dim; d++) {
                part.acc[d] = ls_mul(part.acc[d], c);
                for (int64_t j = begin; j < 64 && block + j < n; j++)
                    part.acc[d] = ls_fma(e[j], v[(block + j) * dim + d], part.acc[d]);
            }
        }
        if (from <= low) {
            all = part;
        } else {
            const float m = ls_max(all.m, part.m), a = ls_exp(ls_sub(all.m, m)), b = ls_exp(ls_sub(part.m, m));
            all.l = ls_fma(all.l, a, ls_mul(part.l, b));
            for (int64_t d = 0; d < dim; d++) all.acc[d] = ls_fma(all.acc[d], a, ls_mul(part.acc[d], b));
            all.m = m;
        }
    }
    return all;
}

/* A head's columns of a span as [n_rows][dim] floats. */
static float *columns_of(const op_array *a, const ls_span *span, int64_t head, int64_t dim) {
    float *out = op_alloc(span->n_rows * dim * 4);
    for (int64_t t = 0; t < span->n_rows; t++)
        for (int64_t d = 0; d < dim; d++) out[t * dim + d] = op_get(a, span->row + t, head * dim + d);
    return out;
}

/* One head of a span: dq to dq, p and ds to [n_rows][pos + n_rows]. */
static void head_ref(const problem *p, const ls_span *span, const float *q, const float *k, const float *v,
                     const float *dout, float *prob, float *ds, float *dq, variant which) {
    const int64_t n = span->pos + span->n_rows, dim = p->of.head_dim;
    for (int64_t i = 0; i < span->n_rows; i++) {
        float *pi = prob + i * n, *dsi = ds + i * n, big_d = 0.0f;
        const int64_t pos = span->pos + i, low = first_ref(p, pos, which);
        const partial f = forward_ref(q + i * dim, k, v, low, pos + 1, dim, p->scale, pi, which);
        for (int64_t j = low; j <= pos; j++) {
            const float e = ls_exp(ls_sub(pi[j], f.m));
            pi[j] = which == P_DIVIDED ? ls_div(e, f.l) : ls_mul(e, ls_div(1.0f, f.l));
            dsi[j] = 0.0f;
            for (int64_t d = 0; d < dim; d++) dsi[j] = ls_fma(dout[i * dim + d], v[j * dim + d], dsi[j]);
        }
        if (which == D_FROM_P)
            for (int64_t j = low; j <= pos; j++) big_d = ls_fma(pi[j], dsi[j], big_d);
        else
            for (int64_t step = 0; step < dim; step++) {
                const int64_t d = which == D_DESCENDING ? dim - 1 - step : step;
                big_d = ls_fma(dout[i * dim + d], ls_div(f.acc[d], f.l), big_d);
            }
        for (int64_t j = low; j <= pos; j++) dsi[j] = ls_mul(pi[j], ls_sub(dsi[j], big_d));
        for (int64_t d = 0; d < dim; d++) {
            float sum = 0.0f;
            for (int64_t step = low; step <= pos; step++) {
                const int64_t j = which == KEYS_DESCENDING ? pos - step : step;
                const float x = which == SCALE_INSIDE ? ls_mul(p->scale, dsi[j]) : dsi[j];
                sum = ls_fma(x, k[j * dim + d], sum);
            }
            dq[i * dim + d] = which == SCALE_INSIDE ? sum : ls_mul(p->scale, sum);
        }
    }
}

/* Adds the chain over queries of w[i][j] * x[i][d] to sum[j][d]; continues it where the heads make one chain. */
static void keys_ref(const problem *p, const ls_span *span, float *sum, const float *w, const float *x, variant which) {
    const int64_t n = span->pos + span->n_rows, dim = p->of.head_dim;
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < dim; d++) {
            float chain = which == ONE_CHAIN_FOR_HEADS ? sum[j * dim + d] : 0.0f;
            for (int64_t step = 0; step < span->n_rows; step++) {
                const int64_t row = which == QUERIES_DESCENDING ? span->n_rows - 1 - step : step, i = span->pos + row;
                if (i < j || first_ref(p, i, which) > j) continue;
                if (which == TILE_SKIPPED && i / 64 == (j + p->of.window - 1) / 64) continue;
                chain = ls_fma(w[row * n + j], x[row * dim + d], chain);
            }
            sum[j * dim + d] = which == ONE_CHAIN_FOR_HEADS ? chain : ls_add(sum[j * dim + d], chain);
        }
}

static void put_columns(const op_array *to, const ls_span *span, int64_t head, int64_t dim, const float *x,
                        float factor) {
    for (int64_t t = 0; t < span->n_rows; t++)
        for (int64_t d = 0; d < dim; d++)
            op_put(to, span->row + t, head * dim + d, factor == 1.0f ? x[t * dim + d] : ls_mul(factor, x[t * dim + d]));
}

/* ---- the profile mma16 ---- */

/* Wrong on purpose: D of the unrounded dout, another exponential, ds of the unrounded p, heads as chains apart, dq from
 * the last key. */
typedef enum mma16_variant {
    MMA16_RIGHT,
    MMA16_DOUT_NOT_ROUNDED,
    MMA16_P_DIVIDED,
    MMA16_P_NOT_ROUNDED,
    MMA16_HEADS_APART,
    MMA16_KEYS_DESCENDING
} mma16_variant;

/* One step more of a chain: n <= 16 products. */
static float mma16_step(float c, const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t b_step, int64_t n) {
    uint16_t x[16] = {0}, y[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        x[i] = a[i * a_step];
        y[i] = b[i * b_step];
    }
    return ls_from_bits(ls_mma16_step(ls_bits(c), x, 1, y, 1));
}

static float mma16_chain(float c, const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t b_step, int64_t n) {
    for (int64_t k = 0; k < n; k += 16)
        c = mma16_step(c, a + k * a_step, a_step, b + k * b_step, b_step, n - k < 16 ? n - k : 16);
    return ls_canonical(c);
}

/* A head's columns of a span as [n_rows][dim] bf16, rounded if they are not. */
static uint16_t *rounded_of(const op_array *a, const ls_span *span, int64_t head, int64_t dim) {
    uint16_t *out = op_alloc(span->n_rows * dim * 2);
    for (int64_t t = 0; t < span->n_rows; t++)
        for (int64_t d = 0; d < dim; d++) out[t * dim + d] = ls_f32_to_bf16(op_get(a, span->row + t, head * dim + d));
    return out;
}

/* exp2_lifted by another library's exponential: what is rounded next leaves one value. */
static float lifted_power(float lifted) {
    const float x = ls_sub(lifted, 1536.0f);
    return x < -126.0f ? 0.0f : (float)exp2((double)x);
}

static void mma16_head(const problem *p, const ls_span *span, int64_t head, const uint16_t *k, const uint16_t *v,
                       float *dk, float *dv, const grads *out, mma16_variant which) {
    const int64_t n = span->pos + span->n_rows, rows = span->n_rows, dim = p->of.head_dim;
    const float c = ls_mul(p->scale, 0x1.715476p+0f);
    uint16_t *q = rounded_of(&p->q, span, head, dim), *dout = rounded_of(&p->dout, span, head, dim);
    uint16_t *prob = calloc((size_t)(rows * n), 2), *ds = calloc((size_t)(rows * n), 2);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = span->row + i, pos = span->pos + i, low = first_ref(p, pos, RIGHT);
        const float log_sum = op_get(&p->log_sum, row, head);
        float chain[256] = {0}, big_d;
        for (int64_t d = 0; d < dim; d++)
            chain[d] = ls_fma(which == MMA16_DOUT_NOT_ROUNDED ? op_get(&p->dout, row, head * dim + d)
                                                              : ls_bf16_to_f32(dout[i * dim + d]),
                              op_get(&p->out, row, head * dim + d), 0.0f);
        big_d = ls_sum_fold(chain);
        for (int64_t j = low; j <= pos; j++) {
            const float s = mma16_chain(0.0f, q + i * dim, 1, k + j * dim, 1, dim);
            const float dp = mma16_chain(0.0f, dout + i * dim, 1, v + j * dim, 1, dim);
            const float e = which == MMA16_P_DIVIDED ? ls_exp(ls_sub(ls_mul(s, p->scale), ls_mul(log_sum, 0.6931472f)))
                                                     : lifted_power(fminf(ls_fma(s, c, 1536.0f - log_sum), 1537.0f));
            prob[i * n + j] = ls_f32_to_bf16(e);
            ds[i * n + j] = ls_f32_to_bf16(
                ls_mul(which == MMA16_P_NOT_ROUNDED ? e : ls_bf16_to_f32(prob[i * n + j]), ls_sub(dp, big_d)));
        }
        for (int64_t d = 0; d < dim; d++) {
            float sum = 0.0f;
            if (which == MMA16_KEYS_DESCENDING)
                for (int64_t j = pos / 16 * 16; j >= 0; j -= 16)
                    sum = mma16_step(sum, ds + i * n + j, 1, k + j * dim + d, dim, n - j < 16 ? n - j : 16);
            else
                sum = mma16_chain(0.0f, ds + i * n, 1, k + d, dim, n);
            op_put(&out->of[DQ], row, head * dim + d, ls_mul(p->scale, ls_canonical(sum)));
        }
    }
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < dim; d++) {
            float *const to_k = &dk[j * dim + d], *const to_v = &dv[j * dim + d];
            const bool apart = which == MMA16_HEADS_APART;
            const float of_k = mma16_chain(apart ? 0.0f : *to_k, ds + j, n, q + d, dim, rows);
            const float of_v = mma16_chain(apart ? 0.0f : *to_v, prob + j, n, dout + d, dim, rows);
            *to_k = apart ? ls_add(*to_k, of_k) : of_k;
            *to_v = apart ? ls_add(*to_v, of_v) : of_v;
        }
    free(q);
    free(dout);
    free(prob);
    free(ds);
}

static void mma16_span(const problem *p, const ls_span *span, const grads *out, mma16_variant which) {
    const ls_span keys = keys_of(p, span);
    const int64_t n = keys.n_rows, dim = p->of.head_dim, group = p->of.n_heads / p->of.n_kv_heads;
    for (int64_t g = 0; g < p->of.n_kv_heads; g++) {
        uint16_t *k = rounded_of(&p->k, &keys, g, dim), *v = rounded_of(&p->v, &keys, g, dim);
        float *dk = calloc((size_t)(n * dim) + 1, 4), *dv = calloc((size_t)(n * dim) + 1, 4);
        for (int64_t a = g * group; a < (g + 1) * group; a++) mma16_head(p, span, a, k, v, dk, dv, out, which);
        put_columns(&out->of[DK], &keys, g, dim, dk, p->scale);
        put_columns(&out->of[DV], &keys, g, dim, dv, 1.0f);
        free(k);
        free(v);
        free(dk);
        free(dv);
    }
}

static void span_ref(const problem *p, const ls_span *span, const grads *out, variant which) {
    const ls_span keys = keys_of(p, span);
    const int64_t n = keys.n_rows, dim = p->of.head_dim, group = p->of.n_heads / p->of.n_kv_heads;
    float *prob = op_alloc(n * n * 4), *ds = op_alloc(n * n * 4), *dq = op_alloc(n * dim * 4);
    for (int64_t g = 0; g < p->of.n_kv_heads; g++) {
        float *k = columns_of(&p->k, &keys, g, dim), *v = columns_of(&p->v, &keys, g, dim);
        float *dk = calloc((size_t)(n * dim) + 1, 4), *dv = calloc((size_t)(n * dim) + 1, 4);
        for (int64_t a = g * group; a < (g + 1) * group; a++) {
            float *q = columns_of(&p->q, span, a, dim), *dout = columns_of(&p->dout, span, a, dim);
            head_ref(p, span, q, k, v, dout, prob, ds, dq, which);
            put_columns(&out->of[DQ], span, a, dim, dq, 1.0f);
            keys_ref(p, span, dk, ds, q, which);
            keys_ref(p, span, dv, prob, dout, which);
            free(q);
            free(dout);
        }
        put_columns(&out->of[DK], &keys, g, dim, dk, p->scale);
        put_columns(&out->of[DV], &keys, g, dim, dv, 1.0f);
        free(k);
        free(v);
        free(dk);
        free(dv);
    }
    free(prob);
    free(ds);
    free(dq);
}

/* Of all that grad_ref reads. */
static uint64_t key_of(const problem *p, variant which) {
    const int64_t form[] = {p->of.n_heads, p->of.n_kv_heads, p->of.head_dim, p->of.dtype, p->of.window,
                            p->of.profile, p->branches,      p->n_key_rows,  which};
    uint64_t key = grad_key(op_key(op_key(0, form, sizeof form), &p->scale, sizeof p->scale), &p->layout);
    key = op_key(key, p->key_rows, p->layout.n_spans * (int64_t)sizeof *p->key_rows);
    key = op_key_array(op_key_array(op_key_array(op_key_array(key, &p->q), &p->k), &p->v), &p->dout);
    return op_key_array(op_key_array(key, &p->out), &p->log_sum);
}

/* out holds guards. */
static void grad_ref(const problem *p, const grads *out, variant which) {
    uint64_t keys[N_GRADS];
    if (grad_recall(keys, key_of(p, which), out->of, N_GRADS)) return;
    for (int64_t i = 0; i < p->layout.n_spans; i++)
        if (p->layout.spans[i].slot >= 0 && p->layout.spans[i].n_rows > 0) {
            if (p->of.profile == LS_PROFILE_MMA16)
                mma16_span(p, &p->layout.spans[i], out, MMA16_RIGHT);
            else
                span_ref(p, &p->layout.spans[i], out, which);
        }
    grad_keep(keys, out->of, N_GRADS);
}

/* ---- equality in bits ---- */

/* threads 0: every number of threads. */
static void problem_check(const problem *p, ls_isa isa, int32_t threads, const char *what) {
    const int64_t pad = p->q.stride - p->q.cols;
    grads expected = grads_make(p, p->layout.rows, pad);
    grad_ref(p, &expected, RIGHT);
    for (int32_t t = threads == 0 ? 1 : threads; t <= (threads == 0 ? OP_THREADS_MAX : threads); t++) {
        grads got = grads_make(p, p->layout.rows, pad);
        run(p, &got, op_devices[isa][t - 1]);
        for (int i = 0; i < N_GRADS; i++)
            op_check(&expected.of[i], &got.of[i], OP_NAN_ANY, "%s: %s of heads %lld/%lld, dim %lld, %s, threads %d",
                     what, grad_names[i], (long long)p->of.n_heads, (long long)p->of.n_kv_heads,
                     (long long)p->of.head_dim, ls_dtype_name(p->of.dtype), t);
        grads_free(&got);
    }
    grads_free(&expected);
}

static const int64_t lengths[] = {1, 2, 3, 63, 64, 65, 66, 130};

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const shape shapes[] = {{1, 1, 1, LS_F32, 0, LS_PROFILE_EXACT},   {1, 1, 5, LS_BF16, 0, LS_PROFILE_EXACT},
                            {2, 1, 16, LS_F32, 0, LS_PROFILE_EXACT},  {4, 2, 24, LS_BF16, 0, LS_PROFILE_EXACT},
                            {3, 3, 7, LS_F32, 0, LS_PROFILE_EXACT},   {6, 2, 12, LS_BF16, 0, LS_PROFILE_EXACT},
                            {5, 1, 8, LS_F32, 0, LS_PROFILE_EXACT},   {2, 2, 33, LS_F32, 0, LS_PROFILE_EXACT},
                            {2, 1, 64, LS_BF16, 0, LS_PROFILE_EXACT}, {4, 4, 31, LS_F32, 0, LS_PROFILE_EXACT}};
    uint64_t seed = 21;
    for (int64_t i = 0; i < OP_COUNT(shapes); i++)
        for (int special = 0; special < 2; special++) {
            const grad_layout layout = grad_layout_random(lengths, OP_COUNT(lengths), &seed);
            problem p = problem_make(&layout, &shapes[i], special ? op_special : op_plain, test_random(&seed));
            problem_check(&p, isa, 0, special ? "special" : "plain");
            problem_free(&p);
        }
}

/* Every length by itself, and next to others. */
static void every_length_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t more[] = {1, 2, 4, 5, 31, 62, 63, 64, 65, 67, 127, 128, 129, 130, 193};
    const shape of = {2, 1, 5, LS_F32, 0, LS_PROFILE_EXACT};
    uint64_t seed = 22;
    for (int64_t i = 0; i < OP_COUNT(more); i++) {
        const int64_t three[] = {more[i], more[(i * 4 + 3) % OP_COUNT(more)], more[i]};
        const grad_layout layout = grad_layout_make(1 + i % 3, three, i % 2 == 1, test_random(&seed));
        problem p = problem_make(&layout, &of, op_plain, test_random(&seed));
        problem_check(&p, isa, 0, "lengths");
        problem_free(&p);
    }
}

static void wide_heads_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const shape shapes[] = {{1, 1, 128, LS_F32, 0, LS_PROFILE_EXACT},
                            {2, 1, 257, LS_BF16, 0, LS_PROFILE_EXACT},
                            {1, 1, LS_HEAD_DIM_MAX, LS_F32, 0, LS_PROFILE_EXACT}};
    const int64_t length[] = {70};
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        const grad_layout layout = grad_layout_make(1, length, true, (uint64_t)i + 1);
        problem p = problem_make(&layout, &shapes[i], op_plain, (uint64_t)i + 60);
        problem_check(&p, isa, 0, "wide");
        problem_free(&p);
    }
}

/* Through the borders of segments. */
static void long_sequences_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const struct {
        shape of;
        int64_t lengths[2];
    } cases[] = {{{1, 1, 5, LS_F32, 0, LS_PROFILE_EXACT}, {1025, 70}},
                 {{2, 1, 3, LS_BF16, 0, LS_PROFILE_EXACT}, {1024, 1088}},
                 {{1, 1, 4, LS_F32, 0, LS_PROFILE_EXACT}, {2100, 1}}};
    for (int64_t i = 0; i < OP_COUNT(cases); i++) {
        const grad_layout layout = grad_layout_make(2, cases[i].lengths, true, (uint64_t)i + 1);
        problem p = problem_make(&layout, &cases[i].of, op_plain, (uint64_t)i + 70);
        problem_check(&p, isa, 1 + (int32_t)i, "long");
        problem_free(&p);
    }
}

/* Windows within a tile, of a tile, over tiles and segments, and of more than there is. */
static void windows_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    static const int64_t windows[] = {1, 2, 63, 64, 65, 66, 100, 128, 190, 1000, INT64_MAX};
    const int64_t some[] = {1, 65, 200, 129, 64};
    uint64_t seed = 26;
    for (int64_t i = 0; i < OP_COUNT(windows); i++) {
        const shape of = {4, 2, 5 + i % 3, i % 2 ? LS_BF16 : LS_F32, windows[i], LS_PROFILE_EXACT};
        const grad_layout layout = grad_layout_random(some, OP_COUNT(some), &seed);
        problem p = problem_make(&layout, &of, i % 3 == 1 ? op_special : op_plain, test_random(&seed));
        problem_check(&p, isa, 0, "window");
        problem_free(&p);
    }
    for (int64_t i = 0; i < 2; i++) {
        const shape of = {1, 1, 4, LS_F32, i == 0 ? 1025 : 300, LS_PROFILE_EXACT};
        const int64_t length[] = {2100};
        const grad_layout layout = grad_layout_make(1, length, true, (uint64_t)i + 1);
        problem p = problem_make(&layout, &of, op_plain, (uint64_t)i + 80);
        problem_check(&p, isa, 1 + (int32_t)i, "window over segments");
        problem_free(&p);
    }
}

/* Spans that continue others, in both profiles: from positions within tiles, steps and segments, in windows too. */
static void branches_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const shape shapes[] = {{2, 1, 5, LS_F32, 0, LS_PROFILE_EXACT},   {4, 2, 7, LS_BF16, 70, LS_PROFILE_EXACT},
                            {1, 1, 4, LS_F32, 1, LS_PROFILE_EXACT},   {2, 2, 3, LS_BF16, 0, LS_PROFILE_EXACT},
                            {4, 2, 12, LS_BF16, 0, LS_PROFILE_MMA16}, {1, 1, 7, LS_BF16, 70, LS_PROFILE_MMA16},
                            {2, 1, 16, LS_BF16, 0, LS_PROFILE_MMA16}, {1, 1, 8, LS_BF16, 1, LS_PROFILE_MMA16}};
    uint64_t seed = 27;
    for (int64_t i = 0; i < 2 * OP_COUNT(shapes); i++) {
        const int64_t three[] = {lengths[(3 * i + 1) % OP_COUNT(lengths)], lengths[i % OP_COUNT(lengths)], 5};
        const grad_layout layout = grad_layout_make(1 + i % 3, three, i % 2 == 1, test_random(&seed));
        const op_maker odd = shapes[i / 2].profile == LS_PROFILE_EXACT ? op_special : op_wide;
        problem p = problem_with_keys(&layout, &shapes[i / 2], true, i % 3 == 1 ? odd : op_plain, test_random(&seed));
        problem_check(&p, isa, 1 + (int32_t)(i % OP_THREADS_MAX), "branches");
        problem_free(&p);
    }
}

/* A tile of queries on both sides of a segment's border, or with windows that begin there. */
static void branches_over_segments_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t cases[][2] = {{1000, 0}, {1023, 0}, {2040, 0}, {1000, 300}, {2000, 1000}}, rows[] = {70};
    for (int64_t i = 0; i < OP_COUNT(cases); i++) {
        const shape of = {1, 1, 3, LS_F32, cases[i][1], LS_PROFILE_EXACT};
        grad_layout layout = grad_layout_make(1, rows, false, 1);
        layout.spans[0].pos = cases[i][0];
        problem p = problem_with_keys(&layout, &of, true, op_plain, (uint64_t)i + 90);
        problem_check(&p, isa, 2, "branches over segments");
        problem_free(&p);
    }
}

/* The second part of a sequence has the dq that it has in the whole, in bits and in both profiles. */
static void a_cut_changes_no_query_behind_it(void **state) {
    enum { ROWS = 150, CUT = 37 };
    const int64_t one[] = {ROWS};
    const ls_span behind = {CUT, ROWS - CUT, CUT, 0, 0};
    const grad_layout layout = grad_layout_make(1, one, false, 1);
    for (int profile = 0; profile < 2; profile++) {
        const shape of = {4, 2, 9, LS_BF16, 0, profile == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16};
        problem p = problem_make(&layout, &of, op_plain, 13);
        grads whole = grads_make(&p, ROWS, 0), got = grads_make(&p, ROWS, 0);
        run(&p, &whole, op_devices[op_isa(state)][0]);
        p.layout.spans[0] = behind;
        p.n_key_rows = ROWS;
        p.branches = true;
        run(&p, &got, op_devices[op_isa(state)][1]);
        grad_rows_check(&whole.of[DQ], &got.of[DQ], &behind, "behind a cut: dq");
        grads_free(&whole);
        grads_free(&got);
        p.branches = false;
        problem_free(&p);
    }
}

/* Whole sequences whose keys are said to be their own rows have the bits that they have without. */
static void own_keys_change_nothing(void **state) {
    const int64_t three[] = {70, 5, 129};
    const grad_layout layout = grad_layout_make(3, three, true, 4);
    for (int profile = 0; profile < 2; profile++) {
        const shape of = {4, 2, 9, LS_BF16, 0, profile == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16};
        problem p = problem_make(&layout, &of, op_plain, 12);
        grads whole = grads_make(&p, layout.rows, 0), got = grads_make(&p, layout.rows, 0);
        run(&p, &whole, op_devices[op_isa(state)][0]);
        for (int64_t i = 0; i < layout.n_spans; i++) p.key_rows[i] = layout.spans[i].row;
        p.n_key_rows = layout.rows;
        p.branches = true;
        run(&p, &got, op_devices[op_isa(state)][1]);
        for (int i = 0; i < N_GRADS; i++) op_check(&whole.of[i], &got.of[i], OP_NAN_PINNED, "own: %s", grad_names[i]);
        grads_free(&whole);
        grads_free(&got);
        p.branches = false;
        problem_free(&p);
    }
}

/* Scores far apart: probabilities underflow, a new maximum wipes out what came before. */
static void steep_scores_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const shape of = {1, 1, 2, LS_F32, 0, LS_PROFILE_EXACT};
    const int64_t length[] = {1100};
    const grad_layout layout = grad_layout_make(1, length, false, 1);
    for (int i = 0; i < 3; i++) {
        problem p = problem_make(&layout, &of, op_plain, 8);
        for (int64_t t = 0; t < length[0]; t++) {
            const float rise = (float)t - 500.0f;
            op_put(&p.q, t, 0, 3.0f);
            op_put(&p.q, t, 1, 0.0f);
            op_put(&p.k, t, 0, i == 0 ? rise : i == 1 ? -rise : (float)(t % 97) * 50.0f);
            op_put(&p.v, t, 1, -1e-39f * (float)t);
        }
        problem_check(&p, isa, 1 + i, "steep");
        problem_free(&p);
    }
}

/* A later key that is NaN or infinite does not show in an earlier query, nor an earlier query in a later key. */
static void later_keys_take_no_part(void **state) {
    const ls_isa isa = op_isa(state);
    const shape of = {2, 1, 5, LS_F32, 0, LS_PROFILE_EXACT};
    const int64_t length[] = {130};
    const grad_layout layout = grad_layout_make(1, length, false, 1);
    for (int64_t at = 1; at < 130; at += 32) {
        problem p = problem_make(&layout, &of, op_plain, 9);
        grads right = grads_make(&p, 130, 0), bad_key = grads_make(&p, 130, 0), bad_query = grads_make(&p, 130, 0);
        const float dout = op_get(&p.dout, at - 1, 3);
        run(&p, &right, op_devices[isa][0]);
        op_put(&p.dout, at - 1, 3, INFINITY);
        run(&p, &bad_query, op_devices[isa][1]);
        op_put(&p.dout, at - 1, 3, dout);
        op_put(&p.k, at, 2, NAN);
        op_put(&p.v, at, 1, -INFINITY);
        run(&p, &bad_key, op_devices[isa][2]);
        assert_same_bits(grads_at(&right, DQ), grads_at(&bad_key, DQ), at * 10);
        assert_same_bits(grads_at(&right, DV) + at * 5, grads_at(&bad_query, DV) + at * 5, (130 - at) * 5);
        assert_same_bits(grads_at(&right, DK) + at * 5, grads_at(&bad_query, DK) + at * 5, (130 - at) * 5);
        for (int64_t i = at * 10; i < 1300; i++) assert_true(isnan(grads_at(&bad_key, DQ)[i]) != 0);
        for (int64_t t = 0; t < at; t++) assert_true(!isfinite(op_get(&bad_query.of[DV], t, 3)));
        grads_free(&right);
        grads_free(&bad_key);
        grads_free(&bad_query);
        problem_free(&p);
    }
}

/* mma16: odd heads and dimensions, lengths around tiles and blocks, windows. */
static void mma16_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const shape shapes[] = {{1, 1, 5, LS_BF16, 0, LS_PROFILE_MMA16},
                            {4, 2, 24, LS_BF16, 0, LS_PROFILE_MMA16},
                            {3, 1, 16, LS_BF16, 70, LS_PROFILE_MMA16},
                            {2, 2, 7, LS_BF16, 1, LS_PROFILE_MMA16},
                            {2, 1, 64, LS_BF16, 128, LS_PROFILE_MMA16}};
    uint64_t seed = 121;
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        const int64_t some[] = {1, 65, 200, 129, 64};
        const grad_layout layout = grad_layout_random(some, OP_COUNT(some), &seed);
        problem p = problem_make(&layout, &shapes[i], i % 2 ? op_wide : op_plain, test_random(&seed));
        problem_check(&p, isa, 0, "mma16");
        problem_free(&p);
    }
}

static void mma16_variants_are_caught(void **state) {
    const shape of = {4, 2, 12, LS_BF16, 0, LS_PROFILE_MMA16};
    const int64_t length[] = {200};
    const grad_layout layout = grad_layout_make(1, length, false, 1);
    problem p = problem_make(&layout, &of, op_plain, 5);
    grads right = grads_make(&p, 200, 0);
    char text[160];
    (void)state;
    grad_ref(&p, &right, RIGHT);
    for (int v = MMA16_RIGHT; v <= MMA16_KEYS_DESCENDING; v++) {
        grads wrong = grads_make(&p, 200, 0);
        int64_t differ = 0;
        mma16_span(&p, &layout.spans[0], &wrong, (mma16_variant)v);
        for (int i = 0; i < N_GRADS; i++) differ += op_diffs(&right.of[i], &wrong.of[i], OP_NAN_ANY, text);
        if ((differ == 0) != (v == MMA16_RIGHT)) fail_msg("variant %d: %lld numbers differ", v, (long long)differ);
        grads_free(&wrong);
    }
    grads_free(&right);
    problem_free(&p);
}

/* Nothing but padding: nothing is written. */
static void no_tokens_write_nothing(void **state) {
    const ls_isa isa = op_isa(state);
    const shape of = {2, 1, 5, LS_F32, 0, LS_PROFILE_EXACT};
    for (int64_t n_spans = 0; n_spans < 3; n_spans++) {
        const grad_layout layout = {6, n_spans, {{0, 3, 0, -1, 0}, {4, 0, 0, 2, 0}}};
        problem p = problem_make(&layout, &of, op_plain, 3);
        problem_check(&p, isa, 0, "no tokens");
        problem_free(&p);
    }
}

/* ---- independence ---- */

/* The sequence of a span in a call of its own. */
static problem problem_alone(const problem *p, const ls_span *span) {
    problem q = *p;
    q.q = grad_rows(&p->q, span);
    q.k = grad_rows(&p->k, span);
    q.v = grad_rows(&p->v, span);
    q.dout = grad_rows(&p->dout, span);
    q.layout = grad_layout_make(1, &span->n_rows, false, 1);
    return q;
}

/* Gradients of a sequence are the same alone and packed, whatever the neighbours are. */
static void sequences_do_not_see_each_other(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t three[] = {65, 5, 130};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        const grad_layout layout = grad_layout_make(3, three, seed > 1, seed);
        const shape of = {4, 2, 24, seed % 2 ? LS_F32 : LS_BF16, 0, LS_PROFILE_EXACT};
        problem p = problem_make(&layout, &of, op_plain, seed);
        grads packed = grads_make(&p, layout.rows, 1);
        if (seed == 3) /* the middle one is hostile */
            for (int64_t i = 0; i < layout.n_spans; i++)
                for (int64_t t = 0; t < layout.spans[i].n_rows && layout.spans[i].slot == 1; t++)
                    op_put(&p.k, layout.spans[i].row + t, 3, t % 2 ? NAN : INFINITY);
        run(&p, &packed, op_devices[isa][2]);
        for (int64_t s = 0; s < layout.n_spans; s++) {
            const ls_span *span = &layout.spans[s];
            problem q;
            grads alone;
            if (span->slot < 0) continue;
            q = problem_alone(&p, span);
            alone = grads_make(&q, span->n_rows, 1);
            run(&q, &alone, op_devices[isa][s % OP_THREADS_MAX]);
            for (int i = 0; i < N_GRADS; i++) {
                op_array rows = grad_rows(&packed.of[i], span), expected = grad_rows(&alone.of[i], &q.layout.spans[0]);
                op_check(&expected, &rows, OP_NAN_ANY, "packed: %s of span %lld", grad_names[i], (long long)s);
                op_array_free(&rows);
                op_array_free(&expected);
            }
            grads_free(&alone);
            problem_free(&q);
        }
        grads_free(&packed);
        problem_free(&p);
    }
}

/* ---- truth ---- */

/* One sequence in float64. */
typedef struct exact {
    int64_t n, heads, kv_heads, dim, window;
    double scale;
    double *x[4], *grad[N_GRADS]; /* q, k, v, dout; [n][heads or kv_heads][dim] */
} exact;

static double exact_dot(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double *exact_row(const exact *e, double *x, int64_t heads, int64_t t, int64_t head) {
    return x + (t * heads + head) * e->dim;
}

/* The probabilities of token i and head a; prob [n]. */
static void exact_softmax(const exact *e, int64_t i, int64_t a, double *prob) {
    const int64_t g = a / (e->heads / e->kv_heads);
    double top = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j <= i; j++) {
        prob[j] = -INFINITY;
        if (e->window > 0 && j + e->window <= i) continue;
        prob[j] = e->scale *
                  exact_dot(exact_row(e, e->x[0], e->heads, i, a), exact_row(e, e->x[1], e->kv_heads, j, g), e->dim);
        top = fmax(top, prob[j]);
    }
    for (int64_t j = 0; j <= i; j++) sum += prob[j] = exp(prob[j] - top);
    for (int64_t j = 0; j <= i; j++) prob[j] /= sum;
}

/* The sum of dout * out. */
static double exact_loss(const void *context) {
    const exact *e = context;
    double *prob = op_alloc(e->n * 8), loss = 0.0;
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t a = 0; a < e->heads; a++) {
            exact_softmax(e, i, a, prob);
            for (int64_t j = 0; j <= i; j++)
                loss +=
                    prob[j] * exact_dot(exact_row(e, e->x[3], e->heads, i, a),
                                        exact_row(e, e->x[2], e->kv_heads, j, a / (e->heads / e->kv_heads)), e->dim);
        }
    free(prob);
    return loss;
}

static void exact_backward(const exact *e) {
    double *prob = op_alloc(e->n * 8), *dp = op_alloc(e->n * 8);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t a = 0; a < e->heads; a++) {
            const int64_t g = a / (e->heads / e->kv_heads);
            const double *q = exact_row(e, e->x[0], e->heads, i, a), *dout = exact_row(e, e->x[3], e->heads, i, a);
            double mean = 0.0;
            exact_softmax(e, i, a, prob);
            for (int64_t j = 0; j <= i; j++) {
                dp[j] = exact_dot(dout, exact_row(e, e->x[2], e->kv_heads, j, g), e->dim);
                mean += prob[j] * dp[j];
            }
            for (int64_t j = 0; j <= i; j++)
                for (int64_t d = 0; d < e->dim; d++) {
                    const double ds = e->scale * prob[j] * (dp[j] - mean);
                    exact_row(e, e->grad[DQ], e->heads, i, a)[d] += ds * exact_row(e, e->x[1], e->kv_heads, j, g)[d];
                    exact_row(e, e->grad[DK], e->kv_heads, j, g)[d] += ds * q[d];
                    exact_row(e, e->grad[DV], e->kv_heads, j, g)[d] += prob[j] * dout[d];
                }
        }
    free(prob);
    free(dp);
}

static exact exact_make(const problem *p) {
    const op_array *from[] = {&p->q, &p->k, &p->v, &p->dout};
    exact e = {p->layout.rows, p->of.n_heads,    p->of.n_kv_heads, p->of.head_dim,
               p->of.window,   (double)p->scale, {NULL},           {NULL}};
    for (int i = 0; i < 4; i++) {
        e.x[i] = op_alloc(from[i]->rows * from[i]->cols * 8);
        for (int64_t at = 0; at < from[i]->rows * from[i]->cols; at++)
            e.x[i][at] = (double)op_get(from[i], at / from[i]->cols, at % from[i]->cols);
    }
    for (int i = 0; i < N_GRADS; i++) {
        e.grad[i] = calloc((size_t)(from[i]->rows * from[i]->cols), 8);
        assert_non_null(e.grad[i]);
    }
    exact_backward(&e);
    return e;
}

static void exact_free(exact *e) {
    for (int i = 0; i < 4; i++) free(e->x[i]);
    for (int i = 0; i < N_GRADS; i++) free(e->grad[i]);
}

/* The float64 gradient is that of the differences. */
static void float64_is_the_truth(void **state) {
    const shape of = {4, 2, 3, LS_F32, 5, LS_PROFILE_EXACT};
    const int64_t length[] = {9};
    const grad_layout layout = grad_layout_make(1, length, false, 1);
    problem p = problem_make(&layout, &of, op_wide, 31);
    exact e = exact_make(&p);
    (void)state;
    for (int i = 0; i < N_GRADS; i++) {
        const int64_t n = 9 * 3 * (i == DQ ? 4 : 2);
        double worst = 0.0, largest = 0.0;
        for (int64_t at = 0; at < n; at++) {
            const double expected = grad_difference(exact_loss, &e, &e.x[i][at]);
            worst = fmax(worst, fabs(expected - e.grad[i][at]));
            largest = fmax(largest, fabs(expected));
        }
        if (!(worst <= 1e-7 * largest)) fail_msg("%s: error %g of %g", grad_names[i], worst, largest);
    }
    exact_free(&e);
    problem_free(&p);
}

/* Every gradient is within 1e-5 of the largest of its kind; measured errors are near 1e-6. */
static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    const struct {
        shape of;
        int64_t length;
    } cases[] = {{{4, 2, 16, LS_F32, 0, LS_PROFILE_EXACT}, 130},
                 {{2, 1, 64, LS_BF16, 0, LS_PROFILE_EXACT}, 200},
                 {{1, 1, 24, LS_F32, 0, LS_PROFILE_EXACT}, 1500},
                 {{4, 2, 16, LS_F32, 90, LS_PROFILE_EXACT}, 200}};
    double worst = 0.0;
    for (int64_t c = 0; c < OP_COUNT(cases); c++) {
        const grad_layout layout = grad_layout_make(1, &cases[c].length, false, 1);
        problem p = problem_make(&layout, &cases[c].of, op_plain, (uint64_t)c + 40);
        grads got = grads_make(&p, layout.rows, 0);
        exact e = exact_make(&p);
        run(&p, &got, op_devices[isa][1]);
        for (int i = 0; i < N_GRADS; i++) {
            double error = 0.0, largest = 0.0;
            for (int64_t at = 0; at < got.of[i].rows * got.of[i].cols; at++) {
                error = fmax(error, fabs((double)grads_at(&got, i)[at] - e.grad[i][at]));
                largest = fmax(largest, fabs(e.grad[i][at]));
            }
            if (!(error <= 1e-5 * largest))
                fail_msg("%s, case %lld: error %g of %g", grad_names[i], (long long)c, error, largest);
            worst = fmax(worst, error / largest);
        }
        exact_free(&e);
        grads_free(&got);
        problem_free(&p);
    }
    print_message("worst error %.3g of the largest gradient of its kind\n", worst);
}

enum { TRUNK = 75, BRANCHES = 3 };

/* Branch i with the trunk before it as one sequence; the trunk's queries count in the first of them alone. */
static problem whole_of(const problem *trunk, const problem *p, int64_t i) {
    const ls_span *span = &p->layout.spans[i];
    const int64_t n = TRUNK + span->n_rows;
    const grad_layout layout = grad_layout_make(1, &n, false, 1);
    problem whole = problem_make(&layout, &p->of, op_plain, 44);
    copy_rows(&whole.q, 0, &trunk->q, 0, TRUNK);
    copy_rows(&whole.q, TRUNK, &p->q, span->row, span->n_rows);
    copy_rows(&whole.k, 0, &p->k, p->key_rows[i], n);
    copy_rows(&whole.v, 0, &p->v, p->key_rows[i], n);
    copy_rows(&whole.dout, 0, &trunk->dout, 0, TRUNK);
    copy_rows(&whole.dout, TRUNK, &p->dout, span->row, span->n_rows);
    for (int64_t t = 0; t < TRUNK && i > 0; t++) memset(op_at(&whole.dout, t, 0), 0, (size_t)whole.dout.cols * 4);
    return whole;
}

/* What branches gave the trunk's keys, in index order, joins what its own queries gave. */
static void add_branches(const problem *p, const grads *trunk, const grads *branches) {
    for (int g = DK; g <= DV; g++)
        for (int64_t at = 0; at < TRUNK * trunk->of[g].cols; at++) {
            float more = 0.0f;
            for (int64_t i = 0; i < BRANCHES; i++)
                more = ls_add(more, grads_at(branches, g)[p->key_rows[i] * trunk->of[g].cols + at]);
            grads_at(trunk, g)[at] = ls_add(grads_at(trunk, g)[at], more);
        }
}

/* The worst error of n gradients, relative to the largest. */
static double worst_of(const float *got, const double *expected, int64_t n) {
    double error = 0.0, largest = 0.0;
    for (int64_t at = 0; at < n; at++) {
        error = fmax(error, fabs((double)got[at] - expected[at]));
        largest = fmax(largest, fabs(expected[at]));
    }
    return error / largest;
}

/* A trunk is computed once, and its keys are copied for each that continues it: within 1e-5 of float64 of whole
 * sequences. */
static void gradients_of_branches_are_those_of_float64(void **state) {
    const int64_t rows[] = {TRUNK, 1, 66, 9};
    const shape of = {4, 2, 8, LS_F32, 0, LS_PROFILE_EXACT};
    const grad_layout trunk_layout = grad_layout_make(1, rows, false, 1);
    grad_layout layout = grad_layout_make(BRANCHES, rows + 1, false, 1);
    problem trunk = problem_make(&trunk_layout, &of, op_plain, 42), p;
    grads got = grads_make(&trunk, TRUNK, 0), branches;
    double *sum[N_GRADS], worst = 0.0;
    for (int64_t i = 0; i < BRANCHES; i++) layout.spans[i].pos = TRUNK;
    p = problem_with_keys(&layout, &of, true, op_plain, 43);
    branches = grads_make(&p, layout.rows, 0);
    for (int64_t i = 0; i < BRANCHES; i++) {
        copy_rows(&p.k, p.key_rows[i], &trunk.k, 0, TRUNK);
        copy_rows(&p.v, p.key_rows[i], &trunk.v, 0, TRUNK);
    }
    run(&trunk, &got, op_devices[op_isa(state)][0]);
    run(&p, &branches, op_devices[op_isa(state)][1]);
    add_branches(&p, &got, &branches);
    for (int g = 0; g < N_GRADS; g++) assert_non_null(sum[g] = calloc((size_t)(TRUNK * got.of[g].cols), 8));
    for (int64_t i = 0; i < BRANCHES; i++) {
        problem whole = whole_of(&trunk, &p, i);
        exact e = exact_make(&whole);
        for (int g = 0; g < N_GRADS; g++) {
            const int64_t cols = got.of[g].cols, first = g == DQ ? layout.spans[i].row : p.key_rows[i] + TRUNK;
            for (int64_t at = 0; at < TRUNK * cols; at++) sum[g][at] += e.grad[g][at];
            worst = fmax(worst,
                         worst_of(grads_at(&branches, g) + first * cols, e.grad[g] + TRUNK * cols, rows[i + 1] * cols));
        }
        exact_free(&e);
        problem_free(&whole);
    }
    for (int g = 0; g < N_GRADS; g++) worst = fmax(worst, worst_of(grads_at(&got, g), sum[g], TRUNK * got.of[g].cols));
    if (!(worst <= 1e-5)) fail_msg("error %g of the largest gradient of its kind", worst);
    for (int g = 0; g < N_GRADS; g++) free(sum[g]);
    grads_free(&branches);
    grads_free(&got);
    problem_free(&p);
    problem_free(&trunk);
}

/* Against float64, each within what bf16 weights, gradients and outputs leave. */
static void mma16_gradients_are_those_of_float64(void **state) {
    const shape of = {4, 2, 32, LS_BF16, 0, LS_PROFILE_MMA16};
    const int64_t length[] = {300};
    const grad_layout layout = grad_layout_make(1, length, false, 1);
    problem p = problem_make(&layout, &of, op_plain, 41);
    grads got = grads_make(&p, layout.rows, 0);
    exact e = exact_make(&p);
    double worst = 0.0;
    (void)state;
    run(&p, &got, op_devices[ls_isa_best()][1]);
    for (int i = 0; i < N_GRADS; i++) {
        double error = 0.0, largest = 0.0;
        for (int64_t at = 0; at < got.of[i].rows * got.of[i].cols; at++) {
            error = fmax(error, fabs((double)grads_at(&got, i)[at] - e.grad[i][at]));
            largest = fmax(largest, fabs(e.grad[i][at]));
        }
        if (!(error <= 0x1p-7 * largest)) fail_msg("%s: error %g of %g", grad_names[i], error, largest);
        worst = fmax(worst, error / largest);
    }
    print_message("worst error %.3g of the largest gradient of its kind\n", worst);
    exact_free(&e);
    grads_free(&got);
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    const grad_layout layout = {9, 2, {{0, 4, 0, 0, 0}, {4, 5, 0, 1, 0}}};
    const shape of = {4, 2, 5, LS_F32, 0, LS_PROFILE_EXACT};
    problem p = problem_make(&layout, &of, op_plain, 1);
    grads got = grads_make(&p, 9, 0), untouched = grads_make(&p, 9, 0);
    const ls_attention_backward_args right = problem_args(&p, &got);
    ls_device *device = op_devices[0][1];
    const int64_t key_rows[] = {0, 4}, outside[] = {-1, 4};
    ls_attention_backward_args args = right;
    grad_workspace workspace;
    ls_span spans[2];
    ls_error err;
    (void)state;
    args.key_rows = key_rows;
    args.key_rows_n = 10;
    workspace = grad_workspace_lend(device, ls_op_attention_backward_workspace(&args));
#define REFUSED(word, ...)                                                    \
    do {                                                                      \
        args = right;                                                         \
        memcpy(spans, layout.spans, sizeof spans);                            \
        args.spans = spans;                                                   \
        __VA_ARGS__;                                                          \
        check_failed(ls_attention_backward(device, &args, &err), &err, word); \
        check_failed(err.status, &err, "attention_backward");                 \
    } while (0)
    REFUSED("q is a null", args.q = NULL);
    REFUSED("k is a null", args.k = NULL);
    REFUSED("v is a null", args.v = NULL);
    REFUSED("dout is a null", args.dout = NULL);
    REFUSED("dq is a null", args.dq = NULL);
    REFUSED("dk is a null", args.dk = NULL);
    REFUSED("dv is a null", args.dv = NULL);
    REFUSED("f16", args.dtype = LS_F16);
    REFUSED("head dim 0", args.head_dim = 0);
    REFUSED("head dim 513", args.head_dim = 513);
    REFUSED("4 heads over 3 KV heads", args.n_kv_heads = 3);
    REFUSED("4 heads over 0 KV heads", args.n_kv_heads = 0);
    REFUSED("0 heads over 2 KV heads", args.n_heads = 0);
    REFUSED("-4 heads over 2 KV heads", args.n_heads = -4);
    REFUSED("9223372036854775806 heads", args.n_heads = INT64_MAX - 1);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("a window of -1 positions", args.window = -1);
    REFUSED("q: stride 19", args.q_stride = 19);
    REFUSED("k: stride 9", args.kv_stride = 9);
    REFUSED("dout: stride -7", args.dout_stride = -7);
    REFUSED("dq: stride 19", args.dq_stride = 19);
    REFUSED("dk: stride 9", args.dkv_stride = 9);
    REFUSED("q: 9 rows of stride 9223372036854775807", args.q_stride = INT64_MAX);
    REFUSED("9223372036854775807 rows", args.rows = INT64_MAX);
    REFUSED("-1 spans", args.n_spans = -1);
    REFUSED("2 spans at", args.spans = NULL);
    REFUSED("-3 rows a span", args.span_rows_max = -3);
    REFUSED("span 1: row 4, rows 5", args.span_rows_max = 4);
    REFUSED("span 1: position 2", spans[1].pos = 2);
    REFUSED("key_rows is a null pointer, and there are 9 key rows", args.key_rows_n = 9);
    REFUSED("key_rows is a null pointer, and there are 0 key rows, 5", args.keys_max = 5);
    REFUSED("-1 key rows", args.key_rows = key_rows; args.key_rows_n = -1);
    REFUSED("-2 keys a span", args.key_rows = key_rows; args.keys_max = -2);
    REFUSED("span 1: position -2", spans[1].pos = -2; args.key_rows = key_rows; args.key_rows_n = 9);
    REFUSED("span 1: key row 4, position 1, rows 5; there are 9 key rows", spans[1].pos = 1; args.key_rows = key_rows;
            args.key_rows_n = 9);
    REFUSED("span 1: key row 4, position 1, rows 5; there are 10 key rows, a span has 5", spans[1].pos = 1;
            args.key_rows = key_rows; args.key_rows_n = 10; args.keys_max = 5);
    REFUSED("span 1: key row 4, position 9223372036854775807", spans[1].pos = INT64_MAX; args.key_rows = key_rows;
            args.key_rows_n = 10);
    REFUSED("span 1: key row 4 before the end of the keys", spans[0].pos = 1; args.key_rows = key_rows;
            args.key_rows_n = 10);
    REFUSED("span 0: key row -1", args.key_rows = outside; args.key_rows_n = 9);
    REFUSED("workspace of 9 rows", args.key_rows = key_rows; args.key_rows_n = INT64_MAX / 60);
    REFUSED("span 1: row 3 before", spans[1].row = 3);
    REFUSED("span 0: row -1", spans[0].row = -1);
    REFUSED("span 1: row 4, rows 6", spans[1].n_rows = 6);
    REFUSED("span 1: row 4, rows 9223372036854775807", spans[1].n_rows = INT64_MAX);
#undef REFUSED
    {
        const ls_exec without = {.workers = device->exec.workers, .workspace_bytes = workspace.n};
        check_failed(ls_backend_table_cpu.attention_backward(&without, &right, &err), &err,
                     "attention_backward: workspace of");
    }
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
    (void)state;
    for (int64_t i = 0; i < 49; i++) {
        const ls_attention_backward_args args = {.rows = wild[i % 7], .n_heads = wild[i / 7]};
        const bool small = args.rows >= 0 && args.n_heads >= 0 && (args.rows <= 33 || args.n_heads == 0) &&
                           (args.n_heads <= 33 || args.rows == 0);
        const int64_t bytes = ls_op_attention_backward_workspace(&args);
        assert_int_equal(bytes, small ? LS_WORKSPACE_HEAD + 12 * args.rows * args.n_heads : -1);
    }
}

/* ---- the comparison itself ---- */

typedef struct variant_case {
    variant wrong;
    int seen_in;
} variant_case;

static void variants_are_caught_of(int64_t window, const variant_case *cases, int64_t n_cases) {
    const int64_t length[] = {window == 0 ? 1100 : 200};
    const grad_layout layout = grad_layout_make(1, length, false, 2);
    const shape of = {2, 1, 3, LS_F32, window, LS_PROFILE_EXACT};
    problem p = problem_make(&layout, &of, op_plain, 8);
    grads right = grads_make(&p, layout.rows, 0);
    grad_ref(&p, &right, RIGHT);
    for (int64_t i = 0; i < n_cases; i++) {
        grads wrong = grads_make(&p, layout.rows, 0);
        char text[160];
        grad_ref(&p, &wrong, cases[i].wrong);
        if (op_diffs(&right.of[cases[i].seen_in], &wrong.of[cases[i].seen_in], OP_NAN_ANY, text) == 0)
            fail_msg("variant %d is not seen in %s", (int)cases[i].wrong, grad_names[cases[i].seen_in]);
        grads_free(&wrong);
    }
    grads_free(&right);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    static const variant_case cases[] = {
        {P_DIVIDED, DV},    {P_DIVIDED, DQ},           {D_FROM_P, DQ},           {D_FROM_P, DK},
        {D_DESCENDING, DQ}, {SCALE_INSIDE, DQ},        {KEYS_DESCENDING, DQ},    {ONE_CHAIN_FOR_HEADS, DK},
        {NO_SEGMENTS, DQ},  {ONE_CHAIN_FOR_HEADS, DV}, {QUERIES_DESCENDING, DV}, {QUERIES_DESCENDING, DK}};
    static const variant_case of_windows[] = {{WINDOW_MORE, DQ}, {WINDOW_MORE, DV},  {WINDOW_LESS, DQ},
                                              {WINDOW_LESS, DK}, {TILE_SKIPPED, DK}, {TILE_SKIPPED, DV}};
    (void)state;
    variants_are_caught_of(0, cases, OP_COUNT(cases));
    variants_are_caught_of(70, of_windows, OP_COUNT(of_windows));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(windows_equal_the_textbook),
        OP_CASES(every_shape_equals_the_textbook),
        OP_CASES(every_length_equals_the_textbook),
        OP_CASES(wide_heads_equal_the_textbook),
        OP_CASES(long_sequences_equal_the_textbook),
        OP_CASES(steep_scores_equal_the_textbook),
        OP_CASES(later_keys_take_no_part),
        OP_CASES(branches_equal_the_textbook),
        OP_CASES(branches_over_segments_equal_the_textbook),
        OP_CASES(a_cut_changes_no_query_behind_it),
        OP_CASES(own_keys_change_nothing),
        OP_CASES(no_tokens_write_nothing),
        OP_CASES(sequences_do_not_see_each_other),
        cmocka_unit_test(float64_is_the_truth),
        OP_CASES(gradients_are_those_of_float64),
        OP_CASES(gradients_of_branches_are_those_of_float64),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(workspaces_that_do_not_fit),
        cmocka_unit_test(variants_are_caught),
        OP_CASES(mma16_equals_the_textbook),
        cmocka_unit_test(mma16_variants_are_caught),
        cmocka_unit_test(mma16_gradients_are_those_of_float64),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
