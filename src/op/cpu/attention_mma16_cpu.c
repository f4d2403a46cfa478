/* attention of the profile mma16 on the CPU, forward and backward: tiles of queries that share a KV head, blocks of 128
 * keys. All chains are those of gemm_mma16_cpu.c, which are asked for a tile of outputs at a time. */
#include "base/mem.h"
#include "num/expf.h"
#include "num/half.h"
#include "num/sum.h"
#include "op/attention_backward.h"
#include "op/cpu/gemm_mma16.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"

#define TILE LS_ATTENTION_TILE_MMA16
#define BLOCK LS_ATTENTION_BLOCK_MMA16

extern const ls_grid_kernel LS_KERNEL(ls_mma16_kernel);

static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : ls_min_i64(x, most); }

/* The first factor of a product: element k of row i is at[i * row + k * step]; what is float32 is rounded. */
typedef struct left {
    const void *at;
    ls_dtype dtype;
    int64_t row, step;
} left;

/* out[i][j]: chain over depth of (a(i, k), b[k * b_row + j]), from +0 or from what out holds. */
static void product(float *out, int64_t out_stride, left a, const uint16_t *b, int64_t b_row, int64_t rows,
                    int64_t cols, int64_t depth, ls_mma16_mode mode, float *scratch) {
    const int64_t segments[] = {0, depth};
    const ls_mma16_chain chain = {.rows = rows,
                                  .cols = cols,
                                  .segments = segments,
                                  .n_segments = 1,
                                  .a = a.at,
                                  .a_dtype = a.dtype,
                                  .a_row = a.row,
                                  .a_k = a.step,
                                  .b = b,
                                  .b_k = b_row,
                                  .b_panel = LS_MMA16_PANEL,
                                  .out = out,
                                  .out_dtype = LS_F32,
                                  .out_stride = out_stride,
                                  .mode = mode};
    LS_KERNEL(ls_mma16_kernel).run(&chain, 0, rows, 0, cols, scratch);
}

static float *take(float **free, int64_t floats) {
    float *from = *free;
    *free += floats;
    return from;
}
static uint16_t *take16(float **free, int64_t elements) { return (uint16_t *)(void *)take(free, elements / 2); }

/* What a tile and a block take behind the scratch of the products. */
#define DIMS LS_ATTENTION_DIM_MMA16
#define WIDTH (DIMS + 2) /* of values, and of what they add up to: room for a dimension more */
#define FORWARD_FLOATS (TILE * BLOCK + 2 * TILE * WIDTH + TILE * DIMS / 2 + BLOCK * (DIMS + WIDTH) / 2)
#define BACKWARD_FLOATS (2 * TILE * BLOCK + 3 * BLOCK * DIMS)
_Static_assert(LS_MMA16_SCRATCH_FLOATS + FORWARD_FLOATS <= LS_SCRATCH_FLOATS &&
                   LS_MMA16_SCRATCH_FLOATS + BACKWARD_FLOATS <= LS_SCRATCH_FLOATS,
               "a tile fits the scratch of a thread");

/* ---- forward ---- */

/* n queries of a KV head. Query i of a span is head i % group of token i / group. */
typedef struct tile {
    const ls_attention_args *a;
    const ls_span *span;
    int64_t kv_head, group, first, n;
    uint16_t *q;        /* [n][head_dim] */
    uint16_t *keys;     /* [head_dim][BLOCK] */
    uint16_t *values;   /* [BLOCK][head_dim + 1]: the last is 1 */
    float *e;           /* [n][BLOCK]: scores, then exponentials */
    float *acc, *total; /* [n][head_dim + 1], of a segment and of all: the last is l, or L */
    float part_m[TILE], all_m[TILE];
    float *scratch; /* of products */
} tile;

static int64_t position(const tile *t, int64_t row) { return t->span->pos + (t->first + row) / t->group; }
static int64_t row_of(const tile *t, int64_t row) { return t->span->row + (t->first + row) / t->group; }
static int64_t head_of(const tile *t, int64_t row) { return t->kv_head * t->group + (t->first + row) % t->group; }

/* Of two maxima; NaN if one is. */
static float larger(float a, float b) { return a != a || b != b ? ls_from_bits(0x7FC00000u) : ls_max(a, b); }

static void load_block(const tile *t, int64_t first, int64_t n_keys) {
    const ls_attention_args *a = t->a;
    const int64_t dim = a->head_dim, page_tokens = a->page_tokens;
    for (int64_t base = 0; base < n_keys; base += page_tokens) {
        const int64_t part = ls_min_i64(page_tokens, n_keys - base);
        const uint16_t *page = ls_pool_at(&a->pages, a->tables[t->span->table + (first + base) / page_tokens]);
        const uint16_t *keys = page + t->kv_head * dim * page_tokens;
        const uint16_t *values = page + (a->n_kv_heads + t->kv_head) * dim * page_tokens;
        for (int64_t d = 0; d < dim; d++)
            memcpy(t->keys + d * BLOCK + base, keys + d * page_tokens, (size_t)part * sizeof *keys);
        for (int64_t i = 0; i < part; i++) {
            memcpy(t->values + (base + i) * (dim + 1), values + i * dim, (size_t)dim * sizeof *values);
            t->values[(base + i) * (dim + 1) + dim] = ls_f32_to_bf16(1.0f);
        }
    }
}

/* Scores of a row become e, not rounded yet, and m follows; returns w. The row takes keys [low, high) of the block. */
static float take_scores(float *of_row, float *e, float c, int64_t low, int64_t high) {
    const float before = *of_row;
    float top = -HUGE_VALF, m = before;
    bool is_nan = false;
    for (int64_t j = low; j < high; j++) {
        is_nan = is_nan || e[j] != e[j];
        top = ls_max(e[j], top);
    }
    if (low < high) m = is_nan ? ls_from_bits(LS_NAN_BITS) : ls_attention_maximum(m, ls_mul(c, top));
    for (int64_t j = low; j < high; j++) e[j] = ls_exp2_lifted(ls_fma(e[j], c, -m));
    for (int64_t j = 0; j < low; j++) e[j] = 0.0f;
    for (int64_t j = high < low ? low : high; j < BLOCK; j++) e[j] = 0.0f;
    *of_row = m;
    return ls_exp2_bounded(ls_sub(before, m));
}

static void take_block(tile *t, int64_t first, int64_t n_keys, float c) {
    const int64_t dim = t->a->head_dim, width = dim + 1;
    const left q = {t->q, LS_BF16, dim, 1}, e = {t->e, LS_F32, BLOCK, 1};
    load_block(t, first, n_keys);
    product(t->e, BLOCK, q, t->keys, BLOCK, t->n, n_keys, dim, LS_MMA16_STORE, t->scratch);
    for (int64_t r = 0; r < t->n; r++) {
        const int64_t pos = position(t, r);
        const float weight =
            take_scores(&t->part_m[r], t->e + r * BLOCK, c,
                        clamp(ls_attention_first(pos, t->a->window) - first, n_keys), clamp(pos + 1 - first, n_keys));
        for (int64_t d = r * width; d < (r + 1) * width; d++) t->acc[d] = ls_mul(t->acc[d], weight);
    }
    product(t->acc, width, e, t->values, width, t->n, width, n_keys, LS_MMA16_CONTINUE, t->scratch);
}

/* The segment joins the total of each row, and the next one starts afresh. */
static void join_segment(tile *t) {
    const int64_t width = t->a->head_dim + 1;
    for (int64_t r = 0; r < t->n; r++) {
        const float m = larger(t->all_m[r], t->part_m[r]);
        const float of_all = ls_exp2_bounded(ls_sub(t->all_m[r], m)),
                    of_part = ls_exp2_bounded(ls_sub(t->part_m[r], m));
        for (int64_t d = r * width; d < (r + 1) * width; d++)
            t->total[d] = ls_fma(t->total[d], of_all, ls_mul(t->acc[d], of_part));
        t->all_m[r] = m;
        t->part_m[r] = -HUGE_VALF;
    }
    memset(t->acc, 0, (size_t)(t->n * width) * sizeof(float));
}

static void store_rows(const tile *t) {
    const ls_attention_args *a = t->a;
    const int64_t dim = a->head_dim;
    for (int64_t r = 0; r < t->n; r++) {
        const float m = t->all_m[r], *total = t->total + r * (dim + 1), sum = total[dim];
        const bool finite = m - m == 0.0f;
        const float inverse = finite ? ls_div(1.0f, sum) : ls_from_bits(0x7FC00000u);
        uint16_t *out = (uint16_t *)a->out + row_of(t, r) * a->out_stride + head_of(t, r) * dim;
        for (int64_t d = 0; d < dim; d++) out[d] = ls_f32_to_bf16(ls_fma(total[d], inverse, 0.0f));
        if (a->log_sum != NULL)
            a->log_sum[row_of(t, r) * a->log_sum_stride + head_of(t, r)] =
                finite ? ls_fma(ls_log(sum), LS_LOG2E, ls_add(m, LS_EXP2_LIFT)) : inverse;
    }
}

static void attend(tile *t, float *free) {
    const ls_attention_args *a = t->a;
    const int64_t dim = a->head_dim, end = position(t, t->n - 1) + 1;
    const float c = ls_attention_scale2(a->scale);
    t->scratch = free;
    free += LS_MMA16_SCRATCH_FLOATS;
    t->e = take(&free, TILE * BLOCK);
    t->acc = take(&free, TILE * WIDTH);
    t->total = take(&free, TILE * WIDTH);
    t->q = take16(&free, TILE * DIMS);
    t->keys = take16(&free, BLOCK * DIMS);
    t->values = take16(&free, BLOCK * WIDTH);
    for (int64_t r = 0; r < t->n; r++) {
        memcpy(t->q + r * dim, (const uint16_t *)a->q + row_of(t, r) * a->q_stride + head_of(t, r) * dim,
               (size_t)dim * sizeof *t->q);
        t->part_m[r] = t->all_m[r] = -HUGE_VALF;
    }
    memset(t->acc, 0, (size_t)(t->n * (dim + 1)) * sizeof(float));
    memset(t->total, 0, (size_t)(t->n * (dim + 1)) * sizeof(float));
    for (int64_t first = ls_attention_first(position(t, 0), a->window) / BLOCK * BLOCK; first < end; first += BLOCK) {
        take_block(t, first, ls_min_i64(BLOCK, end - first), c);
        if (first + BLOCK >= end || (first + BLOCK) % LS_ATTENTION_SEGMENT == 0) join_segment(t);
    }
    store_rows(t);
}

/* Items are tiles of queries of a KV head of a span, those of a KV head together. */
LS_KERNEL_DEFINE(ls_attention_mma16_kernel) {
    const ls_attention_args *a = context;
    const int64_t group = a->n_heads / a->n_kv_heads;
    int64_t first = 0; /* items of the spans before this one */
    for (int64_t i = 0; i < a->n_spans && first < end; i++) {
        const ls_span *span = &a->spans[i];
        const int64_t n_tiles = ls_attention_tiles_mma16(span->n_rows, group), n = n_tiles * a->n_kv_heads;
        const int64_t from = begin > first ? begin - first : 0, to = end - first < n ? end - first : n;
        for (int64_t item = from; item < to && span->slot >= 0; item++) {
            tile t = {.a = a, .span = span, .kv_head = item / n_tiles, .group = group, .first = item % n_tiles * TILE};
            t.n = ls_min_i64(TILE, span->n_rows * group - t.first);
            attend(&t, scratch);
        }
        first += n;
    }
}

/* ---- backward ---- */

/* What the workspace keeps. */
typedef struct kept {
    float *log_sum, *dot; /* [n_heads][rows]: N and D */
    uint16_t *dout;       /* [rows][n_heads * head_dim] */
} kept;

static kept kept_of(const ls_workspace_call *call) {
    const ls_attention_backward_args *a = call->args;
    float *floats = call->floats;
    const kept k = {floats, floats + a->n_heads * a->rows, ls_attention_rounded(floats, a->n_heads, a->rows)};
    return k;
}

/* Items are rows. */
LS_KERNEL_DEFINE(ls_attention_rounded_kernel) {
    const ls_workspace_call *call = context;
    const ls_attention_backward_args *a = call->args;
    const kept k = kept_of(call);
    const int64_t dim = a->head_dim;
    (void)scratch;
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < a->n_heads; head++) {
            float products[LS_SUM_CHAINS] = {0}; /* a chain each: there are no more dimensions */
            uint16_t *rounded = k.dout + (row * a->n_heads + head) * dim;
            const float *dout = a->dout + row * a->dout_stride + head * dim;
            const uint16_t *out = (const uint16_t *)a->out + row * a->out_stride + head * dim;
            for (int64_t d = 0; d < dim; d++) {
                rounded[d] = ls_f32_to_bf16(dout[d]);
                products[d] = ls_fma(ls_bf16_to_f32(rounded[d]), ls_bf16_to_f32(out[d]), 0.0f);
            }
            k.log_sum[head * a->rows + row] = a->log_sum[row * a->log_sum_stride + head];
            k.dot[head * a->rows + row] = ls_sum_fold(products);
        }
}

/* Columns of n rows of a head as rows of BLOCK. */
static void turn(uint16_t *turned, const uint16_t *rows, int64_t stride, int64_t n, int64_t dim) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < dim; d++) turned[d * BLOCK + i] = rows[i * stride + d];
}

/* A block of keys of one KV head and what it gets. */
typedef struct key_block {
    const ls_attention_backward_args *a;
    kept kept;
    const ls_span *span;
    int64_t first, n;              /* keys */
    const uint16_t *k;             /* [n][kv_stride] */
    uint16_t *k_turned, *v_turned; /* [head_dim][BLOCK] */
    float *dk, *dv;                /* [n][head_dim] */
    float *p, *ds;                 /* [TILE][BLOCK] */
    float *scratch;
} key_block;

/* p and ds of a row, from its scores and dp. */
static void weigh(const key_block *b, float *p, float *ds, int64_t head, int64_t query, float c) {
    const int64_t row = head * b->a->rows + b->span->row + query, pos = b->span->pos + query;
    const int64_t low = clamp(ls_attention_first(pos, b->a->window) - b->first, b->n);
    const int64_t high = clamp(pos + 1 - b->first, b->n);
    const float lift = ls_attention_lift(b->kept.log_sum[row]), dot = b->kept.dot[row];
    for (int64_t j = low; j < high; j++) {
        p[j] = ls_bf16_to_f32(ls_f32_to_bf16(ls_attention_probability(p[j], c, lift)));
        ds[j] = ls_mul(p[j], ls_sub(ds[j], dot));
    }
    for (int64_t j = 0; j < b->n; j++)
        if (j < low || j >= high) p[j] = ds[j] = 0.0f;
}

/* What a tile of queries, from the span's `from` on, and the block give each other. */
static void add_block_tile(const key_block *b, int64_t from, int64_t head) {
    const ls_attention_backward_args *a = b->a;
    const int64_t n = ls_min_i64(TILE, b->span->n_rows - from), row = b->span->row + from, dim = a->head_dim;
    const int64_t dout_row = a->n_heads * dim;
    const uint16_t *q = (const uint16_t *)a->q + row * a->q_stride + head * dim;
    const uint16_t *dout = b->kept.dout + row * dout_row + head * dim;
    const left q_rows = {q, LS_BF16, a->q_stride, 1}, dout_rows = {dout, LS_BF16, dout_row, 1};
    const left p_turned = {b->p, LS_F32, 1, BLOCK}, ds_turned = {b->ds, LS_F32, 1, BLOCK};
    const left ds_rows = {b->ds, LS_F32, BLOCK, 1};
    const int64_t pos = b->span->pos + from;
    const bool is_first = ls_attention_first(pos, a->window) / BLOCK * BLOCK == b->first;
    float *dq = a->dq + row * a->dq_stride + head * dim;
    product(b->p, BLOCK, q_rows, b->k_turned, BLOCK, n, b->n, dim, LS_MMA16_STORE, b->scratch);
    product(b->ds, BLOCK, dout_rows, b->v_turned, BLOCK, n, b->n, dim, LS_MMA16_STORE, b->scratch);
    for (int64_t i = 0; i < n; i++)
        weigh(b, b->p + i * BLOCK, b->ds + i * BLOCK, head, from + i, ls_attention_scale2(a->scale));
    product(b->dv, dim, p_turned, dout, dout_row, b->n, dim, n, LS_MMA16_CONTINUE, b->scratch);
    product(b->dk, dim, ds_turned, q, a->q_stride, b->n, dim, n, LS_MMA16_CONTINUE, b->scratch);
    product(dq, a->dq_stride, ds_rows, b->k, a->kv_stride, n, dim, b->n, is_first ? LS_MMA16_STORE : LS_MMA16_CONTINUE,
            b->scratch);
    if ((pos + n - 1) / BLOCK * BLOCK != b->first) return;
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < dim; d++) dq[i * a->dq_stride + d] = ls_mul(a->scale, dq[i * a->dq_stride + d]);
}

/* All keys of a KV head of a span; dq waits in its rows for the next block. */
static void span_back(key_block *b, int64_t kv_head, float *free) {
    const ls_attention_backward_args *a = b->a;
    const int64_t dim = a->head_dim, group = a->n_heads / a->n_kv_heads;
    const int64_t pos = b->span->pos, n_keys = pos + b->span->n_rows;
    b->scratch = free;
    free += LS_MMA16_SCRATCH_FLOATS;
    b->p = take(&free, TILE * BLOCK);
    b->ds = take(&free, TILE * BLOCK);
    b->dk = take(&free, BLOCK * DIMS);
    b->dv = take(&free, BLOCK * DIMS);
    b->k_turned = take16(&free, BLOCK * DIMS);
    b->v_turned = take16(&free, BLOCK * DIMS);
    for (b->first = 0; b->first < n_keys && b->span->n_rows > 0; b->first += BLOCK) {
        const int64_t row = ls_attention_key_row(a, b->span - a->spans) + b->first;
        /* The first tile of queries of which one sees a key, and what is behind the last one. */
        const int64_t begin = b->first > pos ? (b->first - pos) / TILE * TILE : 0;
        int64_t behind;
        b->n = ls_min_i64(BLOCK, n_keys - b->first);
        behind = ls_min_i64(n_keys, ls_attention_after(b->first + b->n - 1, a->window)) - pos;
        b->k = (const uint16_t *)a->k + row * a->kv_stride + kv_head * dim;
        turn(b->k_turned, b->k, a->kv_stride, b->n, dim);
        turn(b->v_turned, (const uint16_t *)a->v + row * a->kv_stride + kv_head * dim, a->kv_stride, b->n, dim);
        memset(b->dk, 0, (size_t)(BLOCK * dim) * sizeof(float));
        memset(b->dv, 0, (size_t)(BLOCK * dim) * sizeof(float));
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int64_t from = begin; from < behind; from += TILE) add_block_tile(b, from, head);
        for (int64_t i = 0; i < b->n; i++)
            for (int64_t d = 0; d < dim; d++) {
                a->dk[(row + i) * a->dkv_stride + kv_head * dim + d] = ls_mul(a->scale, b->dk[i * dim + d]);
                a->dv[(row + i) * a->dkv_stride + kv_head * dim + d] = b->dv[i * dim + d];
            }
    }
}

/* Items are KV heads of spans. */
LS_KERNEL_DEFINE(ls_attention_backward_mma16_kernel) {
    const ls_workspace_call *call = context;
    const ls_attention_backward_args *a = call->args;
    for (int64_t item = begin; item < end; item++) {
        key_block b = {.a = a, .kept = kept_of(call), .span = &a->spans[item / a->n_kv_heads]};
        if (b.span->slot >= 0) span_back(&b, item % a->n_kv_heads, scratch);
    }
}
