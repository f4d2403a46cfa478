/* attention through the device interface: the same bits as the CPU in every shape, page size and cut; one token at a
 * time, chunks and whole prompts equal; what is wrong in device memory is refused before a byte is written. */
#include "attention_case.h"
#include "op/attention.h"

/* ---- a problem: sequences with all their tokens ---- */

#define SEQS_MAX 512

typedef struct shape {
    int64_t n_heads, n_kv_heads, head_dim, page_tokens;
    ls_dtype dtype;
} shape;

typedef struct problem {
    shape of;
    int64_t n_seqs, length[SEQS_MAX], first[SEQS_MAX], table[SEQS_MAX];
    int64_t tokens, n_tables, n_pages;
    uint8_t *q, *k, *v; /* [tokens][heads * head_dim] */
    uint8_t *out;       /* of each token, when `seen` */
    bool *seen;
    int32_t *tables;
    int64_t window;
    int64_t stride_more, at_more; /* elements between rows, and before the first */
} problem;

/* Set for all cases of the profile mma16: of a shape, what it has is taken; values are finite, which is what it
 * promises bits of. */
static ls_profile profile = LS_PROFILE_EXACT;

static int64_t elem(const problem *p) { return ls_dtype_bytes(p->of.dtype); }
static int64_t q_cols(const problem *p) { return p->of.n_heads * p->of.head_dim; }
static int64_t kv_cols(const problem *p) { return p->of.n_kv_heads * p->of.head_dim; }

static uint8_t *values(const problem *p, int64_t cols, maker *make, uint64_t *seed) {
    uint8_t *x = bk_alloc(p->tokens * cols * elem(p));
    for (int64_t i = 0; i < p->tokens * cols; i++) put(x, p->of.dtype, i, make(seed));
    return x;
}

static problem problem_make(const shape *of, const int64_t *length, int64_t n_seqs, maker *q, maker *kv,
                            uint64_t seed) {
    problem p;
    memset(&p, 0, sizeof p);
    p.of = *of;
    if (profile == LS_PROFILE_MMA16) {
        p.of.dtype = LS_BF16;
        p.of.head_dim = of->head_dim > LS_ATTENTION_DIM_MMA16 ? LS_ATTENTION_DIM_MMA16 : of->head_dim;
        kv = kv == wild ? plain : kv;
    }
    of = &p.of;
    p.n_seqs = n_seqs;
    for (int64_t s = 0; s < n_seqs; s++) {
        p.length[s] = length[s];
        p.first[s] = p.tokens;
        p.table[s] = p.n_tables;
        p.tokens += length[s];
        p.n_tables += (length[s] + of->page_tokens - 1) / of->page_tokens;
    }
    p.q = values(&p, q_cols(&p), q, &seed);
    p.k = values(&p, kv_cols(&p), kv, &seed);
    p.v = values(&p, kv_cols(&p), kv, &seed);
    p.out = bk_alloc(p.tokens * q_cols(&p) * elem(&p));
    p.seen = bk_alloc(p.tokens);
    memset(p.seen, 0, (size_t)p.tokens);
    /* Scattered pages, some of nobody: an odd step over a power of two comes by each page once. */
    for (p.n_pages = 1; p.n_pages < p.n_tables + 3; p.n_pages *= 2) {
    }
    p.tables = bk_alloc(p.n_tables * 4);
    for (int64_t i = 0; i < p.n_tables; i++) p.tables[i] = (int32_t)((p.n_pages - 1 - i * 5) & (p.n_pages - 1));
    return p;
}

static void problem_free(problem *p) {
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->out);
    free(p->seen);
    free(p->tables);
}

/* ---- calls ---- */

typedef struct piece {
    int64_t seq, pos, n_rows; /* seq < 0: rows of padding */
} piece;

typedef struct call {
    const problem *p;
    sides_buffer q, k, v, out, pool, spans, tables;
    int64_t q_stride, kv_stride, out_stride, page_stride, rows, n_spans;
    float scale;
} call;

#define CALL_ARGS(c, n_rows, spans_n)                                                                               \
    .q = (c)->q.at[s], .k = (c)->k.at[s], .v = (c)->v.at[s], .out = (c)->out.at[s], .dtype = (c)->p->of.dtype,      \
    .q_stride = (c)->q_stride, .kv_stride = (c)->kv_stride, .out_stride = (c)->out_stride,                          \
    .n_heads = (c)->p->of.n_heads, .n_kv_heads = (c)->p->of.n_kv_heads, .head_dim = (c)->p->of.head_dim,            \
    .scale = (c)->scale, .page_tokens = (c)->p->of.page_tokens,                                                     \
    .pages = {(c)->pool.at[s], (c)->page_stride, (c)->p->n_pages}, .spans = (c)->spans.at[s], .n_spans = (spans_n), \
    .tables = (c)->tables.at[s], .n_tables = (c)->p->n_tables, .rows = (n_rows), .window = (c)->p->window,          \
    .profile = profile

/* A pool of NaN, and the tables. */
static call call_open(sides *d, const problem *p) {
    call c;
    memset(&c, 0, sizeof c);
    c.p = p;
    c.scale = ls_div(1.0f, ls_sqrt((float)p->of.head_dim));
    c.q_stride = q_cols(p) + p->stride_more;
    c.kv_stride = kv_cols(p) + p->stride_more;
    c.out_stride = q_cols(p) + 2 * p->stride_more;
    c.page_stride = ls_kv_page_bytes(p->of.n_kv_heads, p->of.head_dim, p->of.page_tokens, p->of.dtype);
    c.page_stride = p->at_more > 0 ? c.page_stride + 3 * elem(p) : (c.page_stride + 15) / 16 * 16 + 32;
    uint8_t *pool = bk_alloc(p->n_pages * c.page_stride);
    memset(pool, 0xFF, (size_t)(p->n_pages * c.page_stride));
    c.pool = sides_put(d, "pool", pool, p->n_pages * c.page_stride, p->at_more * elem(p));
    c.tables = sides_in(d, "tables", p->tables, p->n_tables * 4);
    free(pool);
    return c;
}

static sides_buffer gathered(sides *d, const char *name, const problem *p, const uint8_t *from, int64_t cols,
                             int64_t stride, const int64_t *source, int64_t rows) {
    uint8_t *host = bk_alloc(rows * stride * elem(p));
    sides_buffer b;
    memset(host, 0xFF, (size_t)(rows * stride * elem(p)));
    for (int64_t r = 0; r < rows; r++)
        if (source[r] >= 0)
            memcpy(host + r * stride * elem(p), from + source[r] * cols * elem(p), (size_t)(cols * elem(p)));
    b = sides_put(d, name, host, rows * stride * elem(p), p->at_more * elem(p));
    free(host);
    return b;
}

/* Token of each row, -1 for padding. */
static int64_t *sources(const problem *p, const piece *pieces, int64_t n, int64_t *rows) {
    int64_t *source, at = 0;
    *rows = 1; /* a row of no span at the end */
    for (int64_t i = 0; i < n; i++) *rows += pieces[i].n_rows;
    source = bk_alloc(*rows * 8);
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < pieces[i].n_rows; t++)
            source[at++] = pieces[i].seq < 0 ? -1 : p->first[pieces[i].seq] + pieces[i].pos + t;
    source[at] = -1;
    return source;
}

static void call_put(sides *d, call *c, const piece *pieces, int64_t n, const int64_t *source, int64_t rows) {
    const problem *p = c->p;
    ls_span *spans = bk_alloc(n * (int64_t)sizeof *spans);
    int64_t at = 0;
    memset(spans, 0, (size_t)n * sizeof *spans);
    for (int64_t i = 0; i < n; i++) {
        const bool padding = pieces[i].seq < 0;
        spans[i] = (ls_span){at, pieces[i].n_rows, pieces[i].pos, padding ? -1 : (int32_t)i,
                             padding ? -7 : p->table[pieces[i].seq]};
        at += pieces[i].n_rows;
    }
    c->rows = rows;
    c->n_spans = n;
    c->q = gathered(d, "q", p, p->q, q_cols(p), c->q_stride, source, rows);
    c->k = gathered(d, "k", p, p->k, kv_cols(p), c->kv_stride, source, rows);
    c->v = gathered(d, "v", p, p->v, kv_cols(p), c->kv_stride, source, rows);
    c->out = sides_put(d, "out", NULL, rows * c->out_stride * elem(p), p->at_more * elem(p));
    c->spans = sides_in(d, "spans", spans, n * (int64_t)sizeof *spans);
    free(spans);
}

/* ---- comparisons ---- */

/* out of both sides, and of every token that a call computed before. */
static void check_out(sides *d, const call *c, problem *p, const int64_t *source, const char *what) {
    const int64_t row_bytes = q_cols(p) * elem(p), n = c->rows * c->out_stride;
    uint8_t *side[2];
    for (int s = 0; s < 2; s++) {
        side[s] = sides_take(d, &c->out, s);
        for (int64_t i = 0; i < BK_GUARD; i++)
            if (side[s][i] != BK_PATTERN || side[s][BK_GUARD + c->out.bytes + i] != BK_PATTERN) {
                bk_fail(d->run, "%s: bytes around out were written", what);
                break;
            }
        canon(side[s] + BK_GUARD, p->of.dtype, n);
    }
    bk_same(d->run, side[0] + BK_GUARD, side[1] + BK_GUARD, n, elem(p), "%s: out", what);
    for (int64_t r = 0; r < c->rows; r++) {
        const uint8_t *got = side[1] + BK_GUARD + r * c->out_stride * elem(p);
        const int64_t token = source[r];
        if (token < 0) continue;
        if (p->seen[token])
            bk_same(d->run, p->out + token * row_bytes, got, q_cols(p), elem(p), "%s: token %lld in another cut", what,
                    (long long)token);
        memcpy(p->out + token * row_bytes, got, (size_t)row_bytes);
        p->seen[token] = true;
    }
    for (int s = 0; s < 2; s++) free(side[s]);
}

/* One call of these pieces. */
static void attend(sides *d, call *c, problem *p, const piece *pieces, int64_t n, const char *what) {
    const int64_t before = d->n;
    int64_t rows, *source = sources(p, pieces, n, &rows);
    char name[160];
    snprintf(name, sizeof name, "heads %lld/%lld dim %lld page %lld window %lld %s, %s, %lld spans from %lld",
             (long long)p->of.n_heads, (long long)p->of.n_kv_heads, (long long)p->of.head_dim,
             (long long)p->of.page_tokens, (long long)p->window, p->of.dtype == LS_F32 ? "f32" : "bf16", what,
             (long long)n, (long long)pieces[0].pos);
    call_put(d, c, pieces, n, source, rows);
    SIDES_CALL(d, attention, CALL_ARGS(c, c->rows, c->n_spans));
    check_out(d, c, p, source, name);
    sides_same(d, &c->pool, elem(p), "%s", name);
    sides_clear_to(d, before);
    free(source);
}

/* One call of these pieces out of a graph, played again and again, on the device under test. */
static void replay(sides *d, call *c, problem *p, const piece *pieces, int64_t n, const char *what) {
    const int64_t before = d->n;
    const ls_exec *exec = &d->device[1]->exec;
    int64_t rows, *source = sources(p, pieces, n, &rows);
    void *graph;
    call_put(d, c, pieces, n, source, rows);
    if (sides_wait(d, 1) != LS_OK || ls_graph_begin(exec, &d->run->err) != LS_OK) bk_die(d->run, "capture");
    SIDES_CALL(d, attention, CALL_ARGS(c, c->rows, c->n_spans));
    if (ls_graph_end(exec, &graph, &d->run->err) != LS_OK) bk_die(d->run, "capture");
    for (int64_t i = 0; i < 3; i++) {
        if (ls_device_fill(exec, c->out.at[1], BK_PATTERN, c->out.bytes, &d->run->err) != LS_OK ||
            ls_graph_launch(exec, graph, &d->run->err) != LS_OK)
            bk_die(d->run, "replay");
        check_out(d, c, p, source, what);
        sides_same(d, &c->pool, elem(p), "%s: pages", what);
    }
    ls_graph_free(graph);
    sides_clear_to(d, before);
    free(source);
}

/* How sequences are cut: whole, by this many tokens, or anyhow. */
enum { WHOLE = 0, ANYHOW = -1 };

static int64_t cut_of(int64_t chunk, int64_t rest, uint64_t *seed) {
    static const int64_t some[] = {1, 1, 1, 2, 17, 40, 64, 65};
    const int64_t n = chunk == ANYHOW ? some[test_random(seed) % 8] : chunk == WHOLE ? rest : chunk;
    return n < rest ? n : rest;
}

/* All sequences side by side until the last is done, with padding between them. */
static void drive(bk_run *run, problem *p, int64_t chunk, const char *what) {
    int64_t done[SEQS_MAX] = {0}, left = p->n_seqs;
    uint64_t seed = 77;
    piece *pieces = bk_alloc((2 * SEQS_MAX + 1) * (int64_t)sizeof *pieces);
    sides d = sides_open(run);
    call c = call_open(&d, p);
    while (left > 0) {
        int64_t n = 0;
        for (int64_t i = 0; i < p->n_seqs; i++) {
            const int64_t rows = cut_of(chunk, p->length[i] - done[i], &seed);
            if (test_random(&seed) % 5 == 0) pieces[n++] = (piece){-1, 3, (int64_t)(test_random(&seed) % 3)};
            if (done[i] == p->length[i]) continue;
            pieces[n++] = (piece){i, done[i], rows};
            done[i] += rows;
            left -= done[i] == p->length[i];
        }
        attend(&d, &c, p, pieces, n, what);
    }
    free(pieces);
    sides_close(&d);
}

/* ---- cases ---- */

static const shape shapes[] = {
    {1, 1, 1, 1, LS_F32},    {3, 1, 16, 16, LS_BF16},  {8, 1, 64, 16, LS_BF16},   {8, 8, 16, 4, LS_F32},
    {6, 2, 80, 16, LS_BF16}, {6, 2, 80, 8, LS_F32},    {20, 1, 128, 16, LS_BF16}, {4, 4, 64, 64, LS_BF16},
    {3, 3, 33, 2, LS_BF16},  {2, 1, 256, 32, LS_BF16}, {3, 1, 128, 16, LS_F32},   {1, 1, 512, 16, LS_BF16},
    {2, 1, 512, 64, LS_F32}, {9, 3, 7, 1, LS_BF16},    {2, 2, 256, 4, LS_F32},    {40, 1, 12, 16, LS_F32},
    {5, 1, 200, 8, LS_BF16}, {2, 1, 500, 32, LS_BF16},
};

/* Short sequences, whole and cut anyhow, aligned and not; every page size and number of heads. */
static void all_shapes(bk_run *run) {
    static const int64_t length[] = {1, 65, 2, 33, 64, 3, 131, 31};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        const int64_t n_seqs = bk_size(run, 2, shapes[i].n_heads * shapes[i].head_dim > 500 ? 4 : 7, 8);
        problem p = problem_make(&shapes[i], length, n_seqs, wide, plain, (uint64_t)i + 1);
        drive(run, &p, WHOLE, "whole");
        p.stride_more = 1 + i % 3;
        p.at_more = 1;
        drive(run, &p, ANYHOW, "cut anyhow, not aligned");
        problem_free(&p);
    }
}

static void hard_values(bk_run *run) {
    static const int64_t length[] = {70, 7, 130, 20};
    static maker *const makers[] = {odd, wild};
    static const shape list[] = {
        {3, 1, 16, 16, LS_F32}, {4, 2, 64, 16, LS_BF16}, {8, 1, 20, 4, LS_BF16}, {2, 1, 80, 16, LS_F32}};
    for (int64_t i = 0; i < BK_COUNT(list); i++)
        for (int64_t m = 0; m < BK_COUNT(makers); m++) {
            problem p = problem_make(&list[i], length, BK_COUNT(length), makers[m], makers[m], (uint64_t)i + 31);
            drive(run, &p, WHOLE, m == 0 ? "odd values" : "wild values");
            drive(run, &p, ANYHOW, m == 0 ? "odd values, cut" : "wild values, cut");
            problem_free(&p);
        }
}

/* Scores far apart: e underflows, a new maximum wipes out what came before, later segments vanish or take over. */
static void steep_scores(bk_run *run) {
    static const shape of = {2, 1, 2, 16, LS_F32};
    const int64_t length = bk_size(run, 150, 1200, 2300);
    for (int64_t i = 0; i < 4; i++) {
        problem p = problem_make(&of, &length, 1, plain, plain, 8);
        for (int64_t t = 0; t < length; t++) {
            const float rise = (float)t - 1000.0f;
            for (int64_t h = 0; h < 2; h++) {
                put(p.q, LS_F32, 4 * t + 2 * h, 3.0f);
                put(p.q, LS_F32, 4 * t + 2 * h + 1, 0.0f);
            }
            put(p.k, LS_F32, 2 * t, i == 0 ? rise : i == 1 ? -rise : i == 2 ? (float)(t % 97) * 50.0f : -0.0f);
            put(p.v, LS_F32, 2 * t + 1, i == 3 ? -0.0f : -1e-39f * (float)t);
        }
        drive(run, &p, WHOLE, "steep");
        problem_free(&p);
    }
}

/* Windows within a block, of a block, over blocks and segments, and of all there is, in tiles of every kind: all
 * shapes whole, cut anyhow, and the last token of each sequence. What lies before a window, NaN or not, has no part. */
static void windows(bk_run *run) {
    static const int64_t window[] = {1, 2, 17, 63, 64, 65, 100, 128, 190, 1000, INT64_MAX};
    for (int64_t i = 0; i < 2 * BK_COUNT(shapes); i++) {
        const int64_t length[] = {1, 65, bk_size(run, 70, 140, 2200), 40, bk_size(run, 80, 80, 1100), 131};
        const int64_t n_seqs = bk_size(run, 3, 3, BK_COUNT(length));
        problem p = problem_make(&shapes[i / 2], length, n_seqs, wide, i % 2 == 0 ? plain : wild, (uint64_t)i + 51);
        piece pieces[BK_COUNT(length)];
        p.window = window[i % BK_COUNT(window)];
        drive(run, &p, WHOLE, "window");
        drive(run, &p, ANYHOW, "window, cut anyhow");
        {
            sides d = sides_open(run);
            call c = call_open(&d, &p);
            for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, 0, length[s]};
            attend(&d, &c, &p, pieces, n_seqs, "window, prompts");
            for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, length[s] - 1, 1};
            attend(&d, &c, &p, pieces, n_seqs, "window, last tokens");
            sides_close(&d);
        }
        problem_free(&p);
    }
}

/* Every position of a long sequence as one decoded token, in chunks and in one prompt: the same bits. Pages hold the
 * whole sequence after the first call, and what a call stores is there already. Windows that begin in a later segment
 * than they end in, and blocks of 128 keys of which the first half is before the window. */
static void positions(bk_run *run) {
    static const shape list[] = {{3, 1, 16, 16, LS_BF16}, {8, 1, 128, 16, LS_BF16}, {2, 2, 64, 64, LS_F32}};
    static const int64_t chunks[] = {1, 64, 100, 1023}, window[] = {0, 70, 1030};
    for (int64_t i = 0; i < (run->cuda ? BK_COUNT(list) * BK_COUNT(window) : 1); i++) {
        const int64_t length = bk_size(run, 140, 1100, 4096);
        problem p = problem_make(&list[i / BK_COUNT(window)], &length, 1, wide, plain, 5);
        p.window = window[i % BK_COUNT(window)];
        piece *pieces = bk_alloc(length * (int64_t)sizeof *pieces);
        sides d = sides_open(run);
        call c = call_open(&d, &p);
        pieces[0] = (piece){0, 0, length};
        attend(&d, &c, &p, pieces, 1, "prompt");
        for (int64_t k = 0; k < BK_COUNT(chunks); k++) {
            int64_t n = 0;
            for (int64_t pos = 0; pos < length; pos += chunks[k], n++)
                pieces[n] = (piece){0, pos, length - pos < chunks[k] ? length - pos : chunks[k]};
            attend(&d, &c, &p, pieces, n, chunks[k] == 1 ? "tokens" : "chunks");
        }
        free(pieces);
        sides_close(&d);
        problem_free(&p);
    }
}

/* Many sequences of all lengths, decoded and prefilled in the same calls; the same call again gives the same bits. */
static void many_spans(bk_run *run) {
    static const shape list[] = {{5, 1, 16, 16, LS_BF16}, {8, 2, 64, 16, LS_BF16}, {20, 1, 128, 16, LS_BF16}};
    for (int64_t i = 0; i < (run->cuda ? BK_COUNT(list) : 1); i++) {
        const int64_t n_seqs = bk_size(run, 9, 40, 300);
        int64_t length[SEQS_MAX];
        piece pieces[SEQS_MAX];
        uint64_t seed = 3;
        for (int64_t s = 0; s < n_seqs; s++)
            length[s] = 2 + (int64_t)(test_random(&seed) % (s % 8 == 0 ? (uint64_t)bk_size(run, 80, 1300, 2100) : 60));
        problem p = problem_make(&list[i], length, n_seqs, wide, plain, 6);
        sides d = sides_open(run);
        call c = call_open(&d, &p);
        for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, 0, length[s] - 1};
        attend(&d, &c, &p, pieces, n_seqs, "prompts");
        for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, length[s] - 1, 1};
        attend(&d, &c, &p, pieces, n_seqs, "last tokens");
        attend(&d, &c, &p, pieces, n_seqs, "last tokens again");
        for (int64_t s = 0; s < n_seqs; s++)
            pieces[s] = s % 3 == 0 ? (piece){s, length[s] / 2, length[s] - length[s] / 2} : pieces[s];
        attend(&d, &c, &p, pieces, n_seqs, "halves and tokens");
        sides_close(&d);
        problem_free(&p);
    }
}

/* No more rows than spans, which is how an engine decodes: a token a span, and one span of three beside spans of none;
 * groups of every kind, few spans and more than the chip has multiprocessors, one and two segments. */
static void tokens(bk_run *run) {
    static const shape list[] = {{20, 1, 128, 16, LS_BF16}, {1, 1, 8, 16, LS_F32},     {6, 2, 80, 16, LS_BF16},
                                 {5, 1, 64, 16, LS_BF16},   {40, 1, 128, 16, LS_F32},  {33, 1, 72, 16, LS_BF16},
                                 {12, 3, 128, 16, LS_F32},  {20, 1, 128, 32, LS_BF16}, {16, 2, 256, 16, LS_BF16},
                                 {9, 1, 20, 16, LS_BF16},   {16, 1, 96, 16, LS_BF16}};
    for (int64_t i = 0; i < 2 * BK_COUNT(list); i++) {
        const int64_t n_seqs = i % 2 == 0 ? 3 : bk_size(run, 4, 6, 140);
        int64_t length[SEQS_MAX];
        piece pieces[SEQS_MAX];
        uint64_t seed = (uint64_t)i;
        const int64_t window = i % 3 == 0 ? 0 : 1 + (int64_t)(test_random(&seed) % (i % 3 == 1 ? 200 : 1100));
        for (int64_t s = 0; s < n_seqs; s++)
            length[s] = 4 + (int64_t)(test_random(&seed) % 150) + (s % 70 == 1 ? bk_size(run, 130, 130, 1100) : 0);
        problem p = problem_make(&list[i / 2], length, n_seqs, wide, plain, (uint64_t)i);
        p.window = window;
        sides d = sides_open(run);
        call c = call_open(&d, &p);
        for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, 0, length[s] - 4};
        attend(&d, &c, &p, pieces, n_seqs, "prompts");
        for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, length[s] - 4, 1};
        for (int64_t e = 0; e < 4; e++) pieces[n_seqs + e] = (piece){-1, 3 * e, 0};
        attend(&d, &c, &p, pieces, n_seqs + 1, "a token each");
        for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, length[s] - 3, s == 1 ? 3 : 1};
        attend(&d, &c, &p, pieces, n_seqs + 3, "one of three tokens");
        for (int64_t s = 0; s < n_seqs; s++) pieces[s] = (piece){s, length[s] - 4, 4};
        attend(&d, &c, &p, pieces, n_seqs, "the same as chunks");
        sides_close(&d);
        problem_free(&p);
    }
}

/* Spans of padding and without rows, calls without spans or rows: nothing is written, whatever their pages. */
static void nothing_to_do(bk_run *run) {
    static const shape of = {4, 2, 12, 16, LS_F32};
    static const int64_t length[] = {20};
    static const piece pieces[] = {{-1, 5, 3}, {0, 9, 0}, {-1, 9, 1}};
    problem p = problem_make(&of, length, 1, plain, plain, 2);
    sides d = sides_open(run);
    call c = call_open(&d, &p);
    const int64_t before = d.n;
    for (int64_t n = 0; n < 3; n++) {
        int64_t rows, *source = sources(&p, pieces, BK_COUNT(pieces), &rows);
        uint8_t *out;
        call_put(&d, &c, pieces, BK_COUNT(pieces), source, rows);
        if (n == 2) /* one span without rows */
            SIDES_CALL(&d, attention, CALL_ARGS(&c, 3, 2));
        else
            SIDES_CALL(&d, attention, CALL_ARGS(&c, n == 0 ? rows : 0, n == 0 ? c.n_spans : 0));
        sides_same(&d, &c.pool, 4, "nothing to do: %lld", (long long)n);
        sides_same(&d, &c.out, 4, "nothing to do: %lld", (long long)n);
        out = sides_take(&d, &c.out, 1);
        for (int64_t i = 0; i < c.out.bytes; i++)
            if (out[BK_GUARD + i] != BK_PATTERN) {
                bk_fail(run, "nothing to do: %lld: out was written", (long long)n);
                break;
            }
        free(out);
        sides_clear_to(&d, before);
        free(source);
    }
    sides_close(&d);
    problem_free(&p);
}

/* ---- refusals ---- */

static void write_both(sides *d, const sides_buffer *b, int64_t at, const void *from, int64_t bytes) {
    for (int s = 0; s < 2; s++)
        if (ls_memory_write(d->device[s], (uint8_t *)b->at[s] + at, from, bytes, &d->run->err) != LS_OK)
            bk_die(d->run, b->name);
}

/* Pool and out are as they were before any call. */
static void check_untouched(sides *d, const call *c, const char *what) {
    const sides_buffer *buffers[] = {&c->pool, &c->out};
    for (int64_t b = 0; b < BK_COUNT(buffers); b++)
        for (int s = 0; s < 2; s++) {
            uint8_t *now = sides_take(d, buffers[b], s);
            for (int64_t i = 0; i < buffers[b]->bytes; i++)
                if (now[BK_GUARD + i] != (b == 0 ? 0xFF : BK_PATTERN)) {
                    bk_fail(d->run, "%s: side %d wrote %s", what, s, buffers[b]->name);
                    break;
                }
            free(now);
        }
}

#define REFUSED(d, c, what, ...)                                                               \
    do {                                                                                       \
        const char *const words[] = {__VA_ARGS__};                                             \
        SIDES_REFUSED((d), (what), words, attention, CALL_ARGS((c), (c)->rows, (c)->n_spans)); \
        check_untouched((d), (c), (what));                                                     \
    } while (0)

/* Spans 0 and 2 are right, span 1 is not. */
static void bad_spans(sides *d, call *c, const ls_span *good) {
    static const struct {
        ls_span span;
        const char *words;
    } list[] = {
        {{-1, 1, 0, 1, 0}, "span 1: row"},
        {{0, -1, 0, 1, 0}, "span 1: row"},
        {{0, -1, 0, -1, 0}, "span 1: row"},
        {{1000, 1, 0, 1, 0}, "span 1: row"},
        {{INT64_MAX, 1, 0, 1, 0}, "span 1: row"},
        {{0, INT64_MAX, 0, 1, 0}, "span 1: row"},
        {{3, 1, -2, 1, 0}, "span 1: position -2"},
        {{3, 1, INT64_MIN, -4, 0}, "span 1: position -9223372036854775808"},
        {{3, 2, INT64_MAX - 1, 1, 0}, "span 1: position 9223372036854775806"},
        {{3, 2, 0, 1, -1}, "pages from -1 on"},
        {{3, 2, 0, 1, INT64_MIN}, "pages from -9223372036854775808 on"},
        {{3, 2, 0, 1, INT64_MAX}, "pages from 9223372036854775807 on"},
        {{3, 2, 0, 1, 1000}, "pages from 1000 on"},
        {{3, 2, INT64_MAX - 2, 1, 0}, "pages from 0 on"},
        {{3, 2, 15, 1, 3}, "pages from 3 on"},
        {{3, 0, 17, 1, 3}, "pages from 3 on"},
    };
    const int64_t at = (int64_t)sizeof(ls_span);
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        write_both(d, &c->spans, at, &list[i].span, at);
        REFUSED(d, c, list[i].words, "span 1", list[i].words);
    }
    write_both(d, &c->spans, at, &good[1], at);
}

/* Rows of all spans are looked at before pages of any; then the lowest span is named, and its first bad page. */
static void bad_pages(sides *d, call *c, const ls_span *good) {
    static const int32_t bad[] = {1000, -1, -3};
    const int64_t at = (int64_t)sizeof(ls_span);
    ls_span span = good[2];
    write_both(d, &c->tables, 4, &bad[0], 4);
    REFUSED(d, c, "a page", "span 0", "page 1000 is not in a pool of");
    write_both(d, &c->tables, 12, &bad[1], 4);
    REFUSED(d, c, "two pages", "span 0", "page 1000 is not in a pool of");
    write_both(d, &c->tables, 4, &c->p->tables[1], 4);
    REFUSED(d, c, "a page of a later span", "span 2", "page -1 is not in a pool of");
    write_both(d, &c->tables, 0, &bad[2], 4);
    REFUSED(d, c, "the first page", "span 0", "page -3 is not in a pool of");
    span.pos = -1;
    write_both(d, &c->spans, 2 * at, &span, at);
    REFUSED(d, c, "a page, and a later position", "span 2", "position -1");
    write_both(d, &c->spans, 2 * at, &good[2], at);
    write_both(d, &c->tables, 0, c->p->tables, 4 * c->p->n_tables);
}

static void refusals(bk_run *run) {
    static const shape of = {4, 2, 12, 16, LS_BF16};
    static const int64_t length[] = {20, 9, 5};
    static const piece pieces[] = {{0, 0, 20}, {1, 0, 9}, {2, 0, 5}};
    problem p = problem_make(&of, length, 3, plain, plain, 2);
    int64_t rows, *source = sources(&p, pieces, 3, &rows);
    const ls_span good[] = {{0, 20, 0, 0, p.table[0]}, {20, 9, 0, 1, p.table[1]}, {29, 5, 0, 2, p.table[2]}};
    sides d = sides_open(run);
    call c = call_open(&d, &p);
    call_put(&d, &c, pieces, 3, source, rows);
    bad_spans(&d, &c, good);
    bad_pages(&d, &c, good);
    for (int64_t i = 0; i < 2; i++) {
        SIDES_CALL(&d, attention, CALL_ARGS(&c, c.rows, c.n_spans));
        check_out(&d, &c, &p, source, "after refusals");
        sides_same(&d, &c.pool, 2, "after refusals");
    }
    free(source);
    sides_close(&d);
    problem_free(&p);
}

/* Prompts, then their last tokens, each out of a graph. */
static void graphs(bk_run *run) {
    static const shape list[] = {{3, 1, 16, 16, LS_F32}, {8, 2, 64, 16, LS_BF16}, {20, 1, 128, 16, LS_BF16}};
    const int64_t length[] = {bk_size(run, 70, 300, 2100), 65, 2, 131};
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        problem p = problem_make(&list[i], length, BK_COUNT(length), wide, plain, 9);
        piece pieces[BK_COUNT(length)];
        sides d = sides_open(run);
        call c = call_open(&d, &p);
        for (int64_t s = 0; s < BK_COUNT(length); s++) pieces[s] = (piece){s, 0, length[s]};
        attend(&d, &c, &p, pieces, BK_COUNT(length), "prompts");
        replay(&d, &c, &p, pieces, BK_COUNT(length), "prompts out of a graph");
        for (int64_t s = 0; s < BK_COUNT(length); s++) pieces[s] = (piece){s, length[s] - 1, 1};
        replay(&d, &c, &p, pieces, BK_COUNT(length), "tokens out of a graph");
        sides_close(&d);
        problem_free(&p);
    }
}

/* ---- queries, keys and values that the call makes ---- */

typedef struct made_shape {
    shape of;
    int64_t half, rows_each; /* rows of each sequence, the first of which stands anywhere */
    bool norms, biases;
} made_shape;

/* The last rows of sequences whose keys and values of before lie in pages: as one call, with what lies between kept and
 * not, and as two. */
static void make_heads_of(bk_run *run, const made_shape *m, int64_t n_seqs, uint64_t seed) {
    const int64_t dim = m->of.head_dim, heads = m->of.n_heads + 2 * m->of.n_kv_heads, cols = heads * dim;
    const int64_t rows = n_seqs * m->rows_each, each = 2 + bk_size(run, 10, 20, 24), n_pages = n_seqs * each + 1;
    const int64_t page = ls_kv_page_bytes(m->of.n_kv_heads, dim, m->of.page_tokens, LS_BF16);
    float *x = bk_alloc(rows * cols * 4), *table = bk_alloc(rows * 2 * m->half * 4 + 4);
    float *weight = bk_alloc((2 + heads) * dim * 4);
    uint8_t *pool = bk_alloc(n_pages * page);
    int32_t *tables = bk_alloc(n_seqs * each * 4);
    ls_span *spans = bk_alloc(n_seqs * (int64_t)sizeof *spans);
    for (int64_t i = 0; i < rows * cols; i++) x[i] = plain(&seed);
    for (int64_t i = 0; i < rows * 2 * m->half; i++) table[i] = plain(&seed);
    for (int64_t i = 0; i < (2 + heads) * dim; i++) weight[i] = plain(&seed);
    for (int64_t i = 0; i < n_pages * page / 2; i++) put(pool, LS_BF16, i, plain(&seed));
    for (int64_t i = 0; i < n_seqs * each; i++) tables[i] = (int32_t)(n_pages - 1 - i);
    memset(spans, 0, (size_t)n_seqs * sizeof *spans);
    for (int64_t s = 0; s < n_seqs; s++) {
        const int64_t most = each * m->of.page_tokens - m->rows_each + 1;
        spans[s] = (ls_span){s * m->rows_each, m->rows_each, (int64_t)(test_random(&seed) % (uint64_t)most),
                             s % 9 == 7 ? -1 : (int32_t)s, s * each};
    }
    sides d = sides_open(run);
    const sides_buffer xs = sides_in(&d, "x", x, rows * cols * 4),
                       at = sides_in(&d, "spans", spans, n_seqs * (int64_t)sizeof *spans),
                       turns = sides_in(&d, "table", table, rows * 2 * m->half * 4 + 4),
                       w = sides_in(&d, "weights", weight, (2 + heads) * dim * 4),
                       numbers = sides_in(&d, "tables", tables, n_seqs * each * 4);
    for (int way = 0; way < 3; way++) {
        const int64_t before = d.n;
        const sides_buffer y = sides_out(&d, "y", rows * cols * 2), pages = sides_in(&d, "pool", pool, n_pages * page),
                           out = sides_out(&d, "out", rows * m->of.n_heads * dim * 2);
        for (int s = 0; s < 2; s++) {
            const float *norm = m->norms ? w.at[s] : NULL, *bias = m->biases ? (float *)w.at[s] + 2 * dim : NULL;
            const int64_t q = m->of.n_heads * dim, kv = m->of.n_kv_heads * dim;
            uint16_t *made = y.at[s];
            const ls_attention_heads_args args = {
                .heads = {.x = xs.at[s],
                          .x_stride = cols,
                          .y = made,
                          .y_dtype = LS_BF16,
                          .y_stride = cols,
                          .table = m->half > 0 ? turns.at[s] : NULL,
                          .half = m->half,
                          .eps = 1e-6f,
                          .rows = rows,
                          .head_dim = dim,
                          .part = {{m->of.n_heads, bias, norm, m->half > 0, NULL},
                                   {m->of.n_kv_heads, bias == NULL ? NULL : bias + q, norm == NULL ? NULL : norm + dim,
                                    m->half > 0, NULL},
                                   {m->of.n_kv_heads, bias == NULL ? NULL : bias + q + kv, NULL, false, NULL}},
                          .n_parts = 3},
                .attention = {.q = made,
                              .k = made + q,
                              .v = made + q + kv,
                              .out = out.at[s],
                              .dtype = LS_BF16,
                              .q_stride = cols,
                              .kv_stride = cols,
                              .out_stride = q,
                              .n_heads = m->of.n_heads,
                              .n_kv_heads = m->of.n_kv_heads,
                              .head_dim = dim,
                              .scale = 0.2f,
                              .page_tokens = m->of.page_tokens,
                              .pages = {pages.at[s], page, n_pages},
                              .spans = at.at[s],
                              .n_spans = n_seqs,
                              .tables = numbers.at[s],
                              .n_tables = n_seqs * each,
                              .rows = rows,
                              .spans_checked = true,
                              .window = seed % 2 == 0 ? 70 : 0,
                              .profile = profile},
                .keeps = way > 0};
            if (way < 2 ? ls_attention_heads(d.device[s], &args, &run->err)
                        : ls_rope(d.device[s], &args.heads, &run->err) ||
                              ls_attention(d.device[s], &args.attention, &run->err))
                bk_fail(run, "attention_heads: side %d: %s", s, run->err.text);
        }
        sides_same(&d, &out, 2, "dim %lld, %lld sequences: out, %d", (long long)dim, (long long)n_seqs, way);
        sides_same(&d, &pages, 2, "dim %lld, %lld sequences: pages, %d", (long long)dim, (long long)n_seqs, way);
        if (way > 0) sides_same(&d, &y, 2, "dim %lld, %lld sequences: y, %d", (long long)dim, (long long)n_seqs, way);
        sides_clear_to(&d, before);
    }
    sides_close(&d);
    free(x), free(table), free(weight), free(pool), free(tables), free(spans);
}

/* Few spans and more than the chip has multiprocessors; a token each, three and nine; heads that turn whole, in part
 * and not at all. */
static void made_heads(bk_run *run) {
    static const made_shape list[] = {
        {{8, 2, 128, 16, LS_BF16}, 64, 1, true, false}, {{4, 2, 64, 16, LS_BF16}, 32, 1, false, true},
        {{16, 1, 96, 16, LS_BF16}, 20, 1, true, true},  {{4, 1, 256, 16, LS_BF16}, 128, 1, true, false},
        {{3, 3, 16, 16, LS_BF16}, 0, 1, false, true},   {{4, 1, 128, 16, LS_BF16}, 64, 3, true, false},
        {{6, 2, 80, 16, LS_BF16}, 40, 1, false, false}, {{8, 2, 128, 32, LS_BF16}, 64, 1, true, false},
        {{2, 1, 128, 16, LS_BF16}, 64, 9, true, true},
    };
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        make_heads_of(run, &list[i], 1, (uint64_t)i + 1);
        make_heads_of(run, &list[i], bk_size(run, 3, 5, 150), (uint64_t)i + 2);
    }
}

static void in_mma16(bk_run *run, void (*check)(bk_run *)) {
    profile = LS_PROFILE_MMA16;
    check(run);
    profile = LS_PROFILE_EXACT;
}

static void mma16_shapes(bk_run *run) { in_mma16(run, all_shapes); }
static void mma16_positions(bk_run *run) { in_mma16(run, positions); }
static void mma16_many_spans(bk_run *run) { in_mma16(run, many_spans); }
static void mma16_tokens(bk_run *run) { in_mma16(run, tokens); }
static void mma16_windows(bk_run *run) { in_mma16(run, windows); }
static void mma16_refusals(bk_run *run) { in_mma16(run, refusals); }
static void mma16_graphs(bk_run *run) { in_mma16(run, graphs); }
static void mma16_made_heads(bk_run *run) { in_mma16(run, made_heads); }

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"all_shapes", all_shapes, BK_ANYWHERE},
        {"hard_values", hard_values, BK_ANYWHERE},
        {"steep_scores", steep_scores, BK_ANYWHERE},
        {"positions", positions, BK_ANYWHERE},
        {"many_spans", many_spans, BK_ANYWHERE},
        {"tokens", tokens, BK_ANYWHERE},
        {"nothing_to_do", nothing_to_do, BK_ANYWHERE},
        {"refusals", refusals, BK_ANYWHERE},
        {"windows", windows, BK_ANYWHERE},
        {"mma16_shapes", mma16_shapes, BK_ANYWHERE},
        {"mma16_positions", mma16_positions, BK_ANYWHERE},
        {"mma16_many_spans", mma16_many_spans, BK_ANYWHERE},
        {"mma16_tokens", mma16_tokens, BK_ANYWHERE},
        {"mma16_windows", mma16_windows, BK_ANYWHERE},
        {"mma16_refusals", mma16_refusals, BK_ANYWHERE},
        {"made_heads", made_heads, BK_ANYWHERE},
        {"mma16_made_heads", mma16_made_heads, BK_ANYWHERE},
        {"graphs", graphs, BK_CUDA_ONLY},
        {"mma16_graphs", mma16_graphs, BK_CUDA_ONLY},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
