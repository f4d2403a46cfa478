/* attention backward on the CPU, in tiles of 64 queries by 64 keys, counted from a span's first of each. One product of
 * tiles does all sums: its lanes are queries, keys or dimensions, its chains are those of the contract. */
#include "num/expf.h"
#include "op/attention_backward.h"
#include "op/cpu/kernels.h"
#include "op/cpu/simd.h"
#include "op/rows.h"

#define TILE LS_ATTENTION_BLOCK

/* ---- products of tiles ---- */

/* A register tile: rows by 2 vectors. */
#define GROUP 4
#define VECS 2
#define GROUP_LANES (VECS * LS_VF_LANES)
_Static_assert(TILE % GROUP_LANES == 0, "a row of scores is whole register tiles");

/* The left factor of a product: element t of row r is at[r * row + t * step]. */
typedef struct left {
    const float *at;
    int64_t row, step;
} left;

static left left_from(left a, int64_t r) {
    a.at += r * a.row;
    return a;
}

/* Which t row r takes: those in [r + from, r + until). */
typedef struct reach {
    int64_t from, until;
} reach;

#define FAR (INT64_MAX / 2)
static const reach all_t = {-FAR, FAR};

static int64_t begin_of(reach takes, int64_t r) { return r + takes.from > 0 ? r + takes.from : 0; }
static int64_t end_of(reach takes, int64_t r, int64_t n_t) { return r + takes.until < n_t ? r + takes.until : n_t; }

/* rows is a literal in every call, so the loops unroll and acc lives in registers. */
static LS_SIMD void chain_rows(float *c, int64_t stride, left a, const float *b, int64_t t_begin, int64_t t_end,
                               const int rows) {
    ls_vf acc[GROUP][VECS], right[VECS];
    LS_UNROLL
    for (int r = 0; r < rows; r++) {
        LS_UNROLL
        for (int v = 0; v < VECS; v++) acc[r][v] = ls_vf_load(c + r * stride + v * LS_VF_LANES);
    }
    for (int64_t t = t_begin; t < t_end; t++) {
        LS_UNROLL
        for (int v = 0; v < VECS; v++) right[v] = ls_vf_load(b + t * stride + v * LS_VF_LANES);
        LS_UNROLL
        for (int r = 0; r < rows; r++) {
            const ls_vf x = ls_vf_set1(a.at[r * a.row + t * a.step]);
            LS_UNROLL
            for (int v = 0; v < VECS; v++) acc[r][v] = ls_vf_fma(x, right[v], acc[r][v]);
        }
    }
    LS_UNROLL
    for (int r = 0; r < rows; r++) {
        LS_UNROLL
        for (int v = 0; v < VECS; v++) ls_vf_store(c + r * stride + v * LS_VF_LANES, acc[r][v]);
    }
}

static void chain_group(float *c, int64_t stride, left a, const float *b, int64_t t_begin, int64_t t_end) {
    chain_rows(c, stride, a, b, t_begin, t_end, GROUP);
}
static void chain_row(float *c, int64_t stride, left a, const float *b, int64_t t_begin, int64_t t_end) {
    if (t_begin < t_end) chain_rows(c, stride, a, b, t_begin, t_end, 1);
}

/* c[r][lane] = chain over t of fma(a[r][t], b[t][lane], c[r][lane]), t ascending from what c holds. The rows of c and b
 * are `stride` apart and hold whole register tiles. A group of rows goes through the t that all of its rows take
 * together, each row through the others by itself. */
static void product(float *c, int64_t stride, left a, const float *b, int64_t n_rows, int64_t n_t, int64_t n_lanes,
                    reach takes) {
    for (int64_t lane = 0; lane < n_lanes; lane += GROUP_LANES)
        for (int64_t r = 0; r < n_rows; r += GROUP) {
            const int64_t n = n_rows - r < GROUP ? n_rows - r : GROUP;
            const int64_t begin = begin_of(takes, r + GROUP - 1), end = end_of(takes, r, n_t);
            const bool together = n == GROUP && begin < end;
            for (int64_t i = r; i < r + n; i++)
                chain_row(c + i * stride + lane, stride, left_from(a, i), b + lane, begin_of(takes, i),
                          together ? begin : end_of(takes, i, n_t));
            if (!together) continue;
            chain_group(c + r * stride + lane, stride, left_from(a, r), b + lane, begin, end);
            for (int64_t i = r; i < r + n; i++)
                chain_row(c + i * stride + lane, stride, left_from(a, i), b + lane, end, end_of(takes, i, n_t));
        }
}

/* ---- rows of one head as tiles of [64][stride] floats ---- */

static int64_t padded(int64_t dim) { return (dim + 31) / 32 * 32; }
_Static_assert(32 % GROUP_LANES == 0, "padded rows are whole register tiles");

/* The state of one thread: its tiles lie in scratch. */
typedef struct tiles {
    const ls_attention_backward_args *a;
    float *kept;         /* the workspace */
    int64_t dim, stride; /* stride: padded(dim) */
    float *free;         /* the rest of the scratch */
} tiles;

static tiles tiles_open(const ls_workspace_call *call, float *scratch) {
    const ls_attention_backward_args *a = call->args;
    const tiles t = {a, call->floats, a->head_dim, padded(a->head_dim), scratch};
    return t;
}

static float *take(tiles *t, int64_t floats) {
    float *tile = t->free;
    t->free += floats;
    memset(tile, 0, (size_t)floats * sizeof(float));
    return tile;
}

/* n rows of a head from `row` on, its first element `column`. */
static void load_rows(const tiles *t, float *tile, const void *rows, ls_dtype dtype, int64_t rows_stride, int64_t row,
                      int64_t column, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        ls_row_widen(tile + i * t->stride, ls_at(rows, dtype, (row + i) * rows_stride + column), dtype, t->dim);
}

static void store_rows(const tiles *t, float *rows, int64_t rows_stride, int64_t row, int64_t column, const float *tile,
                       int64_t n) {
    for (int64_t i = 0; i < n; i++)
        memcpy(rows + (row + i) * rows_stride + column, tile + i * t->stride, (size_t)t->dim * sizeof(float));
}

/* [dim][64] of a tile of n rows; the lanes of absent rows keep what they held. */
static void turn(const tiles *t, float *turned, const float *tile, int64_t n) {
    ls_transpose(turned, TILE, tile, t->stride, n, t->dim);
}

static left by_rows(const float *tile, int64_t stride) {
    const left l = {tile, stride, 1};
    return l;
}
static left by_columns(const float *tile, int64_t stride) {
    const left l = {tile, 1, stride};
    return l;
}

/* What the workspace keeps of query `row`, and the queries after it, of a head. */
static float *kept_at(const tiles *t, int what, int64_t head, int64_t row) {
    return t->kept + (what * t->a->n_heads + head) * t->a->rows + row;
}

static int64_t window_of(const ls_attention_backward_args *a) {
    return a->window > 0 && a->window < FAR ? a->window : FAR;
}

/* The position of a tile's first query. */
static int64_t tile_pos(const ls_span *span, int64_t tile) { return span->pos + tile * TILE; }

/* The row of a span's key. */
static int64_t key_row(const tiles *t, const ls_span *span, int64_t key) {
    return ls_attention_key_row(t->a, span - t->a->spans) + key;
}

/* Keys of a tile as the queries of a tile take them. */
static reach keys_of_query(const tiles *t, const ls_span *span, int64_t queries, int64_t keys) {
    const int64_t apart = tile_pos(span, queries) - keys * TILE;
    const reach takes = {apart - window_of(t->a) + 1, apart + 1};
    return takes;
}

/* Queries of a tile as the keys of a tile take them. */
static reach queries_of_key(const tiles *t, const ls_span *span, int64_t queries, int64_t keys) {
    const int64_t apart = keys * TILE - tile_pos(span, queries);
    const reach takes = {apart, apart + window_of(t->a)};
    return takes;
}

static int64_t tile_rows(const ls_span *span, int64_t tile) {
    const int64_t left_over = span->n_rows - tile * TILE;
    return left_over < TILE ? left_over : TILE;
}

/* ---- first pass: M, r and D of every query ---- */

/* A running softmax of 64 queries. */
typedef struct softmax {
    float m[TILE], l[TILE];
    float *acc; /* [64][stride] */
} softmax;

static void softmax_reset(const tiles *t, softmax *s) {
    for (int q = 0; q < TILE; q++) {
        s->m[q] = -HUGE_VALF;
        s->l[q] = 0.0f;
    }
    memset(s->acc, 0, (size_t)(TILE * t->stride) * sizeof(float));
}

static void scale_row(float *row, float factor, int64_t n) {
    for (int64_t d = 0; d < n; d++) row[d] = ls_mul(row[d], factor);
}

/* Takes n_keys keys, of which `sees` says what a query takes and `seen` which queries take a key. q: [dim][64]; e: room
 * for [64][64]. A query that takes none keeps all it has. */
static void take_block(const tiles *t, softmax *s, const float *q, const float *k, const float *v, float *e,
                       int64_t n_queries, int64_t n_keys, reach sees, reach seen) {
    float m[TILE], correction[TILE], folded[TILE / 2][TILE];
    memset(e, 0, TILE * TILE * sizeof(float));
    memcpy(m, s->m, sizeof m);
    product(e, TILE, by_rows(k, t->stride), q, n_keys, t->dim, TILE, all_t);
    for (int64_t j = 0; j < n_keys; j++) {
        float *score = e + j * TILE;
        for (int64_t i = begin_of(seen, j); i < end_of(seen, j, TILE); i++) {
            score[i] = ls_mul(t->a->scale, score[i]);
            m[i] = ls_max(score[i], m[i]);
        }
    }
    for (int i = 0; i < TILE; i++) correction[i] = ls_exp(ls_sub(s->m[i], m[i]));
    for (int64_t i = 0; i < TILE; i++)
        if (begin_of(sees, i) >= end_of(sees, i, n_keys)) correction[i] = 1.0f;
    for (int64_t j = 0; j < n_keys; j++) {
        const int64_t begin = begin_of(seen, j), end = end_of(seen, j, TILE);
        float *row = e + j * TILE;
        for (int i = 0; i < TILE; i++) row[i] = ls_exp(ls_sub(row[i], m[i]));
        for (int64_t i = 0; i < begin && i < TILE; i++) row[i] = 0.0f;
        for (int64_t i = end > 0 ? end : 0; i < TILE; i++) row[i] = 0.0f;
    }
    for (int half = TILE / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) {
            const float *low = half == TILE / 2 ? e + j * TILE : folded[j];
            const float *high = half == TILE / 2 ? e + (j + half) * TILE : folded[j + half];
            for (int i = 0; i < TILE; i++) folded[j][i] = ls_add(low[i], high[i]);
        }
    for (int i = 0; i < TILE; i++) s->l[i] = ls_fma(s->l[i], correction[i], folded[0][i]);
    memcpy(s->m, m, sizeof m);
    for (int64_t i = 0; i < n_queries; i++) scale_row(s->acc + i * t->stride, correction[i], t->dim);
    product(s->acc, t->stride, by_columns(e, TILE), v, n_queries, n_keys, t->dim, sees);
}

/* The segment that begins at `start` joins the total of a tile's queries, the first at pos. A query's first one is
 * taken as it is. */
static void combine(const tiles *t, softmax *total, const softmax *segment, int64_t pos, int64_t start) {
    for (int i = 0; i < TILE; i++) {
        const float m = ls_max(segment->m[i], total->m[i]);
        const float from_total = ls_exp(ls_sub(total->m[i], m)), from_segment = ls_exp(ls_sub(segment->m[i], m));
        float *acc = total->acc + i * t->stride;
        const float *more = segment->acc + i * t->stride;
        if (pos + i < start) continue;
        if (ls_attention_first(pos + i, t->a->window) >= start) {
            total->m[i] = segment->m[i];
            total->l[i] = segment->l[i];
            memcpy(acc, more, (size_t)t->dim * sizeof(float));
            continue;
        }
        total->l[i] = ls_fma(total->l[i], from_total, ls_mul(segment->l[i], from_segment));
        total->m[i] = m;
        for (int64_t d = 0; d < t->dim; d++) acc[d] = ls_fma(acc[d], from_total, ls_mul(more[d], from_segment));
    }
}

/* Tile `tile` of a span's queries, one head. */
static void keep_softmax(tiles t, const ls_span *span, int64_t tile, int64_t head) {
    const ls_attention_backward_args *a = t.a;
    const int64_t row = span->row + tile * TILE, n = tile_rows(span, tile), each = TILE * t.stride;
    const int64_t q_column = head * t.dim, kv_column = head / (a->n_heads / a->n_kv_heads) * t.dim;
    const int64_t pos = tile_pos(span, tile), from = ls_attention_first(pos, a->window) / TILE * TILE, end = pos + n;
    float *q = take(&t, each), *dout = take(&t, each), *rows = take(&t, each), *k = take(&t, each);
    float *v = take(&t, each), *e = take(&t, TILE * TILE), sum[TILE] = {0};
    softmax total, segment;
    total.acc = take(&t, each);
    segment.acc = take(&t, each);
    load_rows(&t, rows, a->q, a->dtype, a->q_stride, row, q_column, n);
    turn(&t, q, rows, n);
    load_rows(&t, rows, a->dout, LS_F32, a->dout_stride, row, q_column, n);
    turn(&t, dout, rows, n);
    softmax_reset(&t, &total);
    for (int64_t first = from; first < end; first += TILE) {
        const int64_t start = first / LS_ATTENTION_SEGMENT * LS_ATTENTION_SEGMENT, keys = first / TILE;
        const bool in_first = start <= from, is_last = first + TILE >= end;
        const int64_t n_keys = is_last ? end - first : TILE, keys_from = key_row(&t, span, first);
        if (!in_first && first == start) softmax_reset(&t, &segment);
        load_rows(&t, k, a->k, a->dtype, a->kv_stride, keys_from, kv_column, n_keys);
        load_rows(&t, v, a->v, a->dtype, a->kv_stride, keys_from, kv_column, n_keys);
        take_block(&t, in_first ? &total : &segment, q, k, v, e, n, n_keys, keys_of_query(&t, span, tile, keys),
                   queries_of_key(&t, span, tile, keys));
        if (!in_first && (is_last || (first + TILE) % LS_ATTENTION_SEGMENT == 0))
            combine(&t, &total, &segment, pos, start);
    }
    turn(&t, rows, total.acc, n);
    for (int64_t d = 0; d < t.dim; d++)
        for (int i = 0; i < TILE; i++)
            sum[i] = ls_fma(dout[d * TILE + i], ls_div(rows[d * TILE + i], total.l[i]), sum[i]);
    for (int64_t i = 0; i < n; i++) {
        kept_at(&t, LS_ATTENTION_KEPT_M, head, row)[i] = total.m[i];
        kept_at(&t, LS_ATTENTION_KEPT_R, head, row)[i] = ls_div(1.0f, total.l[i]);
        kept_at(&t, LS_ATTENTION_KEPT_D, head, row)[i] = sum[i];
    }
}

/* Items are tiles of queries of a head, the tiles of a head together. */
LS_KERNEL_DEFINE(ls_attention_softmax_kernel) {
    const ls_workspace_call *call = context;
    const ls_attention_backward_args *a = call->args;
    int64_t first = 0; /* items of the spans before this one */
    for (int64_t i = 0; i < a->n_spans && first < end; i++) {
        const int64_t n_tiles = ls_attention_tiles(a->spans[i].n_rows), n = n_tiles * a->n_heads;
        const int64_t from = begin > first ? begin - first : 0, to = end - first < n ? end - first : n;
        for (int64_t item = from; item < to && a->spans[i].slot >= 0; item++)
            keep_softmax(tiles_open(call, scratch), &a->spans[i], item % n_tiles, item / n_tiles);
        first += n;
    }
}

/* ---- second pass: gradients ---- */

/* Keys of one KV head and what they get; all tiles [64][stride], turned [dim][64]. */
typedef struct key_tile {
    int64_t tile, n;
    float *k, *k_turned, *v_turned;
    float *dk, *dv;         /* of one head */
    float *dk_sum, *dv_sum; /* of all heads */
} key_tile;

/* Room for a tile of queries. */
typedef struct query_tile {
    float *q, *dout, *dq;
    float *p, *ds; /* [64 queries][64 keys] */
} query_tile;

#define SCRATCH_MAX (10 * TILE * LS_HEAD_DIM_MAX + 2 * TILE * TILE)
_Static_assert(SCRATCH_MAX <= LS_SCRATCH_FLOATS && LS_HEAD_DIM_MAX % 32 == 0, "tiles fit the scratch of a thread");

/* p and ds of n queries from `row` on; what they hold for keys that a query does not see means nothing. */
static void probabilities(const tiles *t, const query_tile *of, const key_tile *keys, int64_t head, int64_t row,
                          int64_t n) {
    const float *m = kept_at(t, LS_ATTENTION_KEPT_M, head, row), *r = kept_at(t, LS_ATTENTION_KEPT_R, head, row);
    const float *d = kept_at(t, LS_ATTENTION_KEPT_D, head, row);
    memset(of->p, 0, TILE * TILE * sizeof(float));
    memset(of->ds, 0, TILE * TILE * sizeof(float));
    product(of->p, TILE, by_rows(of->q, t->stride), keys->k_turned, n, t->dim, TILE, all_t);
    product(of->ds, TILE, by_rows(of->dout, t->stride), keys->v_turned, n, t->dim, TILE, all_t);
    for (int64_t i = 0; i < n; i++) {
        float *p = of->p + i * TILE, *ds = of->ds + i * TILE;
        for (int j = 0; j < TILE; j++) {
            p[j] = ls_mul(ls_exp(ls_sub(ls_mul(t->a->scale, p[j]), m[i])), r[i]);
            ds[j] = ls_mul(p[j], ls_sub(ds[j], d[i]));
        }
    }
}

/* Adds what a tile of queries and a tile of keys give each other. */
static void add_tile_pair(const tiles *t, const query_tile *of, const key_tile *keys, const ls_span *span, int64_t tile,
                          int64_t head) {
    const ls_attention_backward_args *a = t->a;
    const int64_t row = span->row + tile * TILE, n = tile_rows(span, tile), column = head * t->dim;
    const int64_t pos = tile_pos(span, tile);
    const reach sees = keys_of_query(t, span, tile, keys->tile), seen = queries_of_key(t, span, tile, keys->tile);
    load_rows(t, of->q, a->q, a->dtype, a->q_stride, row, column, n);
    load_rows(t, of->dout, a->dout, LS_F32, a->dout_stride, row, column, n);
    if (keys->tile == ls_attention_first(pos, a->window) / TILE)
        memset(of->dq, 0, (size_t)(TILE * t->stride) * sizeof(float));
    else
        load_rows(t, of->dq, a->dq, LS_F32, a->dq_stride, row, column, n);
    probabilities(t, of, keys, head, row, n);
    product(keys->dv, t->stride, by_columns(of->p, TILE), of->dout, keys->n, n, t->dim, seen);
    product(keys->dk, t->stride, by_columns(of->ds, TILE), of->q, keys->n, n, t->dim, seen);
    product(of->dq, t->stride, by_rows(of->ds, TILE), keys->k, n, keys->n, t->dim, sees);
    if (keys->tile == (pos + n - 1) / TILE) scale_row(of->dq, a->scale, n * t->stride);
    store_rows(t, a->dq, a->dq_stride, row, column, of->dq, n);
}

static void add_tile(const tiles *t, float *sum, const float *tile) {
    for (int64_t i = 0; i < TILE * t->stride; i++) sum[i] = ls_add(sum[i], tile[i]);
}

/* All keys of one KV head of a span, tile by tile; dq waits in its rows for the next tile of keys. */
static void span_back(tiles t, const ls_span *span, int64_t kv_head) {
    const ls_attention_backward_args *a = t.a;
    const int64_t n_tiles = ls_attention_tiles(span->n_rows), n_keys = span->pos + span->n_rows, each = TILE * t.stride,
                  column = kv_head * t.dim;
    const int64_t heads = a->n_heads / a->n_kv_heads;
    const size_t bytes = (size_t)each * sizeof(float);
    query_tile of = {take(&t, each), take(&t, each), take(&t, each), take(&t, TILE * TILE), take(&t, TILE * TILE)};
    key_tile keys = {0,
                     0,
                     take(&t, each),
                     take(&t, each),
                     take(&t, each),
                     take(&t, each),
                     take(&t, each),
                     take(&t, each),
                     take(&t, each)};
    for (; keys.tile * TILE < n_keys && n_tiles > 0; keys.tile++) {
        const int64_t first = keys.tile * TILE, row = key_row(&t, span, first);
        /* The first tile of queries of which one sees a key, and the position behind the last one that does. */
        const int64_t from = first > span->pos ? (first - span->pos) / TILE : 0;
        const int64_t behind = ls_attention_after(first + TILE - 1, a->window);
        keys.n = n_keys - first < TILE ? n_keys - first : TILE;
        load_rows(&t, keys.k, a->v, a->dtype, a->kv_stride, row, column, keys.n);
        turn(&t, keys.v_turned, keys.k, keys.n);
        load_rows(&t, keys.k, a->k, a->dtype, a->kv_stride, row, column, keys.n);
        turn(&t, keys.k_turned, keys.k, keys.n);
        memset(keys.dk_sum, 0, bytes);
        memset(keys.dv_sum, 0, bytes);
        for (int64_t head = kv_head * heads; head < (kv_head + 1) * heads; head++) {
            memset(keys.dk, 0, bytes);
            memset(keys.dv, 0, bytes);
            for (int64_t tile = from; tile < n_tiles && tile_pos(span, tile) < behind; tile++)
                add_tile_pair(&t, &of, &keys, span, tile, head);
            add_tile(&t, keys.dk_sum, keys.dk);
            add_tile(&t, keys.dv_sum, keys.dv);
        }
        scale_row(keys.dk_sum, a->scale, each);
        store_rows(&t, a->dk, a->dkv_stride, row, column, keys.dk_sum, keys.n);
        store_rows(&t, a->dv, a->dkv_stride, row, column, keys.dv_sum, keys.n);
    }
}

/* Items are KV heads of spans. */
LS_KERNEL_DEFINE(ls_attention_backward_kernel) {
    const ls_workspace_call *call = context;
    const ls_attention_backward_args *a = call->args;
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item / a->n_kv_heads];
        if (span->slot >= 0) span_back(tiles_open(call, scratch), span, item % a->n_kv_heads);
    }
}
