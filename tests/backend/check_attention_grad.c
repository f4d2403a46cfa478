/* The gradient of attention through the device interface: the same bits as the CPU in every shape, with sequences side
 * by side and alone; rows of padding are not written; what is wrong in device memory is refused before a byte is
 * written. */
#include "attention_case.h"
#include "op/attention_backward.h"

typedef struct shape {
    int64_t n_heads, n_kv_heads, head_dim;
    ls_dtype dtype;
} shape;

#define SPANS_MAX 64

/* Packed sequences with gaps between them; a span in four is padding if `padding`. */
typedef struct layout {
    ls_span spans[SPANS_MAX];
    int64_t n_spans, rows, most; /* most: rows of the longest span */
    /* Of spans that continue others: where their keys are, and the most that one has. */
    bool branches;
    int64_t key_rows[SPANS_MAX], n_key_rows, keys_most;
} layout;

static layout layout_make(const int64_t *length, int64_t n, bool padding) {
    layout l;
    memset(&l, 0, sizeof l);
    for (int64_t i = 0; i < n; i++) {
        const bool idle = padding && i % 4 == 3;
        l.spans[l.n_spans++] = (ls_span){l.rows, length[i], 0, idle ? -1 : (int32_t)i, 0};
        l.rows += length[i] + i % 3;
        l.most = length[i] > l.most ? length[i] : l.most;
    }
    return l;
}

/* The same spans behind others, from positions within tiles, steps and segments; rows of nobody between their keys. */
static layout branches_make(const layout *from, const int64_t *pos, int64_t n_pos) {
    layout l = *from;
    l.branches = true;
    for (int64_t i = 0; i < l.n_spans; i++) {
        ls_span *span = &l.spans[i];
        span->pos = pos[i % n_pos];
        l.key_rows[i] = l.n_key_rows;
        l.n_key_rows += span->pos + span->n_rows + i % 2;
        l.keys_most = span->pos + span->n_rows > l.keys_most ? span->pos + span->n_rows : l.keys_most;
    }
    return l;
}

/* Where keys lie: spans of their rows. */
static layout keys_of(const layout *from) {
    layout l = *from;
    if (!l.branches) return l;
    l.rows = l.n_key_rows;
    for (int64_t i = 0; i < l.n_spans; i++) {
        l.spans[i].row = l.key_rows[i];
        l.spans[i].n_rows += l.spans[i].pos;
    }
    return l;
}

/* Set for the cases of the profile mma16: of a shape, what it has is taken. */
static ls_profile profile = LS_PROFILE_EXACT;

typedef struct call {
    shape of;
    const layout *l;
    sides_buffer q, k, v, dout, dq, dk, dv, spans, out, log_sum, key_rows;
    int64_t out_stride, log_sum_stride, q_stride, kv_stride, dout_stride, dq_stride, dkv_stride, span_rows_max, window;
    int64_t keys_max;
    float scale;
} call;

#define CALL_ARGS(c, n_rows, spans_n)                                                                             \
    .q = (c)->q.at[s], .k = (c)->k.at[s], .v = (c)->v.at[s], .dtype = (c)->of.dtype, .q_stride = (c)->q_stride,   \
    .kv_stride = (c)->kv_stride, .dout = (c)->dout.at[s], .dout_stride = (c)->dout_stride, .dq = (c)->dq.at[s],   \
    .dk = (c)->dk.at[s], .dv = (c)->dv.at[s], .dq_stride = (c)->dq_stride, .dkv_stride = (c)->dkv_stride,         \
    .rows = (n_rows), .n_heads = (c)->of.n_heads, .n_kv_heads = (c)->of.n_kv_heads, .head_dim = (c)->of.head_dim, \
    .scale = (c)->scale, .spans = (c)->spans.at[s], .n_spans = (spans_n), .span_rows_max = (c)->span_rows_max,    \
    .window = (c)->window, .profile = profile, .out = (c)->out.at[s], .out_stride = (c)->out_stride,              \
    .log_sum = (c)->log_sum.at[s], .log_sum_stride = (c)->log_sum_stride, .key_rows = (c)->key_rows.at[s],        \
    .key_rows_n = (c)->l->n_key_rows, .keys_max = (c)->keys_max

/* Rows of values, NaN between the columns and in rows of no span. */
static sides_buffer input(sides *d, const char *name, const layout *l, int64_t cols, int64_t stride, ls_dtype dtype,
                          maker *make, uint64_t seed, int64_t offset) {
    const int64_t elem = ls_dtype_bytes(dtype);
    uint8_t *host = bk_alloc(l->rows * stride * elem);
    sides_buffer b;
    memset(host, 0xFF, (size_t)(l->rows * stride * elem));
    for (int64_t i = 0; i < l->n_spans; i++)
        for (int64_t t = 0; t < l->spans[i].n_rows; t++)
            for (int64_t col = 0; col < cols; col++)
                put(host, dtype, (l->spans[i].row + t) * stride + col, make(&seed));
    b = sides_put(d, name, host, l->rows * stride * elem, offset * elem);
    free(host);
    return b;
}

static call call_make(sides *d, const shape *of, const layout *l, int64_t pad, maker *make, uint64_t seed) {
    const int64_t q_cols = of->n_heads * of->head_dim, kv_cols = of->n_kv_heads * of->head_dim;
    const layout keys = keys_of(l);
    call c;
    memset(&c, 0, sizeof c);
    c.of = *of;
    /* What a forward wrote is any output, and a sum that is not far from those of the scores. */
    c.out_stride = q_cols + 2 * pad;
    c.log_sum_stride = of->n_heads + pad;
    if (profile == LS_PROFILE_MMA16) {
        c.out = input(d, "out", l, q_cols, c.out_stride, LS_BF16, make, seed + 5, pad);
        c.log_sum = input(d, "log_sum", l, of->n_heads, c.log_sum_stride, LS_F32, make, seed + 6, pad);
    }
    c.l = l;
    c.scale = ls_div(1.0f, ls_sqrt((float)of->head_dim));
    c.q_stride = q_cols + pad;
    c.kv_stride = kv_cols + 2 * pad;
    c.dout_stride = q_cols + 3 * pad;
    c.dq_stride = q_cols + pad;
    c.dkv_stride = kv_cols + pad;
    c.span_rows_max = pad > 0 ? 0 : l->most;
    c.q = input(d, "q", l, q_cols, c.q_stride, of->dtype, make, seed + 1, pad);
    c.k = input(d, "k", &keys, kv_cols, c.kv_stride, of->dtype, make, seed + 2, pad);
    c.v = input(d, "v", &keys, kv_cols, c.kv_stride, of->dtype, make, seed + 3, pad);
    c.dout = input(d, "dout", l, q_cols, c.dout_stride, LS_F32, make, seed + 4, pad);
    c.dq = sides_put(d, "dq", NULL, l->rows * c.dq_stride * 4, 4 * pad);
    c.dk = sides_put(d, "dk", NULL, keys.rows * c.dkv_stride * 4, 4 * pad);
    c.dv = sides_put(d, "dv", NULL, keys.rows * c.dkv_stride * 4, 4 * pad);
    c.spans = sides_in(d, "spans", l->spans, l->n_spans * (int64_t)sizeof(ls_span));
    if (l->branches) c.key_rows = sides_in(d, "key rows", l->key_rows, l->n_spans * (int64_t)sizeof *l->key_rows);
    c.keys_max = l->branches && pad == 0 ? l->keys_most : 0;
    return c;
}

/* No pattern of NaN is promised. */
static void same(sides *d, const sides_buffer *b, const char *what) {
    uint8_t *side[2];
    bool guarded = true;
    for (int s = 0; s < 2; s++) {
        side[s] = sides_take(d, b, s);
        for (int64_t i = 0; i < BK_GUARD; i++)
            guarded = guarded && side[s][i] == BK_PATTERN && side[s][BK_GUARD + b->bytes + i] == BK_PATTERN;
        canon(side[s] + BK_GUARD, LS_F32, b->bytes / 4);
    }
    if (!guarded) bk_fail(d->run, "%s: bytes around %s were written", what, b->name);
    bk_same(d->run, side[0] + BK_GUARD, side[1] + BK_GUARD, b->bytes / 4, 4, "%s: %s", what, b->name);
    for (int s = 0; s < 2; s++) free(side[s]);
}

static void check_call(sides *d, const call *c, const char *what) {
    char name[160];
    snprintf(name, sizeof name, "heads %lld/%lld dim %lld window %lld %s, %s", (long long)c->of.n_heads,
             (long long)c->of.n_kv_heads, (long long)c->of.head_dim, (long long)c->window,
             c->of.dtype == LS_F32 ? "f32" : "bf16", what);
    SIDES_CALL(d, attention_backward, CALL_ARGS(c, c->l->rows, c->l->n_spans));
    same(d, &c->dq, name);
    same(d, &c->dk, name);
    same(d, &c->dv, name);
}

/* The call out of a graph, played again and again, on the device under test. */
static void replay(sides *d, const call *c, const char *what) {
    const sides_buffer *const outs[] = {&c->dq, &c->dk, &c->dv};
    const ls_exec *exec = &d->device[1]->exec;
    void *graph;
    if (sides_wait(d, 1) != LS_OK || ls_graph_begin(exec, &d->run->err) != LS_OK) bk_die(d->run, "capture");
    SIDES_CALL(d, attention_backward, CALL_ARGS(c, c->l->rows, c->l->n_spans));
    if (ls_graph_end(exec, &graph, &d->run->err) != LS_OK) bk_die(d->run, "capture");
    for (int64_t i = 0; i < 3; i++) {
        for (int64_t k = 0; k < BK_COUNT(outs); k++)
            if (ls_device_fill(exec, outs[k]->at[1], BK_PATTERN, outs[k]->bytes, &d->run->err) != LS_OK)
                bk_die(d->run, "fill");
        if (ls_graph_launch(exec, graph, &d->run->err) != LS_OK) bk_die(d->run, "replay");
        for (int64_t k = 0; k < BK_COUNT(outs); k++) same(d, outs[k], what);
    }
    ls_graph_free(graph);
}

static void check_window(bk_run *run, const shape *of, const layout *l, int64_t pad, maker *make, int64_t window,
                         const char *what) {
    shape taken = *of;
    sides d = sides_open(run);
    if (profile == LS_PROFILE_MMA16) {
        taken.dtype = LS_BF16;
        taken.head_dim = of->head_dim > LS_ATTENTION_DIM_MMA16 ? LS_ATTENTION_DIM_MMA16 : of->head_dim;
        make = make == wild ? plain : make;
    }
    call c = call_make(&d, &taken, l, pad, make, 17);
    c.window = window;
    check_call(&d, &c, what);
    if (pad > 0) check_call(&d, &c, "again");
    if (pad > 0 && run->cuda) replay(&d, &c, "out of a graph");
    sides_close(&d);
}

static void check_shape(bk_run *run, const shape *of, const layout *l, int64_t pad, maker *make, const char *what) {
    check_window(run, of, l, pad, make, 0, what);
}

/* ---- cases ---- */

static const shape shapes[] = {
    {1, 1, 1, LS_F32},   {3, 1, 16, LS_BF16},  {8, 1, 64, LS_BF16},   {2, 2, 64, LS_F32},
    {6, 2, 80, LS_BF16}, {3, 3, 33, LS_BF16},  {20, 1, 128, LS_BF16}, {2, 1, 128, LS_F32},
    {2, 1, 256, LS_F32}, {1, 1, 512, LS_BF16}, {2, 2, 200, LS_BF16},  {4, 2, 7, LS_F32},
};

static void all_shapes(bk_run *run) {
    static const int64_t length[] = {1, 65, 64, 7, 33, 2, 131, 12};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        const int64_t n = bk_size(run, 2, shapes[i].n_heads * shapes[i].head_dim > 400 ? 4 : 7, 8);
        const layout l = layout_make(length, n, false), padded = layout_make(length, n, true);
        check_shape(run, &shapes[i], &l, 0, plain, "aligned");
        check_shape(run, &shapes[i], &padded, 1 + i % 3, wide, "not aligned, with padding");
    }
}

static void hard_values(bk_run *run) {
    static const int64_t length[] = {70, 7, 20};
    static const shape list[] = {{3, 1, 16, LS_F32}, {4, 2, 64, LS_BF16}, {2, 1, 80, LS_F32}};
    const layout l = layout_make(length, BK_COUNT(length), false);
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        check_shape(run, &list[i], &l, 0, odd, "odd values");
        check_shape(run, &list[i], &l, 1, wild, "wild values");
    }
}

/* Across segments of 1,024 keys, and spans of all lengths side by side. */
static void long_sequences(bk_run *run) {
    static const shape list[] = {{3, 1, 16, LS_F32}, {8, 2, 64, LS_BF16}, {20, 1, 128, LS_BF16}};
    for (int64_t i = 0; i < (run->cuda ? BK_COUNT(list) : 1); i++) {
        const int64_t length[] = {bk_size(run, 130, 1100, 2200), 3, 64, 100, bk_size(run, 5, 300, 1025)};
        const layout l = layout_make(length, BK_COUNT(length), false);
        check_shape(run, &list[i], &l, 0, plain, "long");
    }
}

/* Windows within a tile, of a tile, over tiles and segments, and of more than there is. */
static void windows(bk_run *run) {
    static const int64_t window[] = {1, 2, 63, 64, 65, 66, 100, 128, 190, 1030, INT64_MAX};
    for (int64_t i = 0; i < 2 * BK_COUNT(shapes); i++) {
        const int64_t length[] = {65, bk_size(run, 70, 140, 2200), 7, 129, bk_size(run, 2, 192, 1025)};
        const layout l = layout_make(length, bk_size(run, 2, 2, BK_COUNT(length)), false);
        check_window(run, &shapes[i / 2], &l, i % 2, i % 2 == 0 ? plain : wild, window[i % BK_COUNT(window)],
                     "windows");
    }
}

static void branches(bk_run *run) {
    static const int64_t pos[] = {5, 64, 0, 130, 16, 1, 63, 200}, far[] = {1000, 1023, 2040, 64};
    static const int64_t window[] = {0, 70, 0, 1, 64, 300};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        const int64_t length[] = {65, bk_size(run, 9, 70, 300), 1, 129, 0, bk_size(run, 2, 64, 192), 7};
        if (!run->cuda && profile == LS_PROFILE_MMA16 && i % 4 != 0) continue;
        const layout whole = layout_make(length, bk_size(run, 2, 3, BK_COUNT(length)), i % 2 == 1);
        const layout l = branches_make(&whole, pos, BK_COUNT(pos)), long_l = branches_make(&whole, far, BK_COUNT(far));
        check_window(run, &shapes[i], &l, i % 3, plain, window[i % BK_COUNT(window)], "branches");
        if (run->cuda) check_window(run, &shapes[i], &l, 0, wide, window[(i + 1) % BK_COUNT(window)], "branches");
        if (run->cuda || i == 0)
            check_window(run, &shapes[i], &long_l, 0, plain, i % 2 * 1000, "branches over segments");
    }
}

/* No spans, no rows, spans without rows and of padding alone. */
static void nothing_to_do(bk_run *run) {
    static const shape of = {2, 1, 12, LS_BF16};
    static const int64_t length[] = {0, 0, 0, 5};
    const layout l = layout_make(length, 4, true);
    sides d = sides_open(run);
    call c = call_make(&d, &of, &l, 0, plain, 3);
    check_call(&d, &c, "padding and no rows");
    for (int64_t n = 0; n < 2; n++) {
        SIDES_CALL(&d, attention_backward, CALL_ARGS(&c, n * l.rows, 0));
        same(&d, &c.dq, "no spans");
    }
    sides_close(&d);
}

static void check_untouched(sides *d, const call *c, const char *what) {
    const sides_buffer *buffers[] = {&c->dq, &c->dk, &c->dv};
    for (int64_t b = 0; b < BK_COUNT(buffers); b++)
        for (int s = 0; s < 2; s++) {
            uint8_t *now = sides_take(d, buffers[b], s);
            for (int64_t i = 0; i < buffers[b]->bytes; i++)
                if (now[BK_GUARD + i] != BK_PATTERN) {
                    bk_fail(d->run, "%s: side %d wrote %s", what, s, buffers[b]->name);
                    break;
                }
            free(now);
        }
}

/* Span 1 is wrong; after the refusals the call runs. */
static void refusals(bk_run *run) {
    static const shape of = {4, 2, 12, LS_BF16};
    static const int64_t length[] = {20, 9, 5};
    static const struct {
        ls_span span;
        const char *words;
    } list[] = {
        {{-1, 1, 0, 1, 0}, "span 1: row"},
        {{20, -1, 0, 1, 0}, "span 1: row"},
        {{1000, 1, 0, -1, 0}, "span 1: row"},
        {{20, INT64_MAX, 0, 1, 0}, "span 1: row"},
        {{INT64_MAX, 1, 0, 1, 0}, "span 1: row"},
        {{20, 21, 0, 1, 0}, "span 1: row"},
        {{20, 9, 5, 1, 0}, "span 1: position 5"},
        {{20, 9, -5, 1, 0}, "span 1: position -5"},
        {{19, 9, 0, 1, 0}, "end of the span before it"},
        {{0, 1, 0, -1, 0}, "end of the span before it"},
    };
    const layout l = layout_make(length, 3, false);
    const int64_t at = (int64_t)sizeof(ls_span);
    sides d = sides_open(run);
    call c = call_make(&d, &of, &l, 0, plain, 3);
    for (int64_t i = 0; i <= BK_COUNT(list); i++) {
        const ls_span *span = i < BK_COUNT(list) ? &list[i].span : &l.spans[1];
        for (int s = 0; s < 2; s++)
            if (ls_memory_write(d.device[s], (uint8_t *)c.spans.at[s] + at, span, at, &run->err) != LS_OK)
                bk_die(run, "spans");
        if (i == BK_COUNT(list)) break;
        const char *const words[] = {"span 1", list[i].words};
        SIDES_REFUSED(&d, list[i].words, words, attention_backward, CALL_ARGS(&c, l.rows, l.n_spans));
        check_untouched(&d, &c, list[i].words);
    }
    check_call(&d, &c, "after refusals");
    sides_close(&d);
}

/* Keys of span 1 are wrong; after the refusals the call runs. */
static void branch_refusals(bk_run *run) {
    static const shape of = {4, 2, 12, LS_BF16};
    static const int64_t length[] = {20, 9, 5}, pos[] = {5, 4, 0};
    static const struct {
        ls_span span;
        int64_t key_row;
        const char *words;
    } list[] = {
        {{20, 9, 4, 1, 0}, -1, "row -1"},           {{20, 9, 4, 1, 0}, 24, "row 24"},
        {{20, 9, 4, 1, 0}, 32, "row 32"},           {{20, 9, 4, 1, 0}, INT64_MAX, "row 9223372036854775807"},
        {{20, 9, 36, 1, 0}, 25, "position 36"},     {{20, 9, INT64_MAX, 1, 0}, 25, "position 9223372036854775807"},
        {{20, 9, -1, 1, 0}, 25, "span 1: position"}};
    const layout whole = layout_make(length, 3, false), l = branches_make(&whole, pos, 3);
    sides d = sides_open(run);
    call c = call_make(&d, &of, &l, 0, plain, 3);
    c.keys_max = 0;
    for (int64_t i = 0; i <= BK_COUNT(list); i++) {
        const ls_span *span = i < BK_COUNT(list) ? &list[i].span : &l.spans[1];
        const int64_t *key_row = i < BK_COUNT(list) ? &list[i].key_row : &l.key_rows[1];
        for (int s = 0; s < 2; s++)
            if (ls_memory_write(d.device[s], (ls_span *)c.spans.at[s] + 1, span, sizeof *span, &run->err) != LS_OK ||
                ls_memory_write(d.device[s], (int64_t *)c.key_rows.at[s] + 1, key_row, 8, &run->err) != LS_OK)
                bk_die(run, "spans");
        if (i == BK_COUNT(list)) break;
        const char *const words[] = {list[i].words};
        SIDES_REFUSED(&d, list[i].words, words, attention_backward, CALL_ARGS(&c, l.rows, l.n_spans));
        check_untouched(&d, &c, list[i].words);
    }
    check_call(&d, &c, "after refusals");
    sides_close(&d);
}

static void in_mma16(bk_run *run, void (*check)(bk_run *)) {
    profile = LS_PROFILE_MMA16;
    check(run);
    profile = LS_PROFILE_EXACT;
}

static void mma16_shapes(bk_run *run) { in_mma16(run, all_shapes); }
static void mma16_long_sequences(bk_run *run) { in_mma16(run, long_sequences); }
static void mma16_nothing_to_do(bk_run *run) { in_mma16(run, nothing_to_do); }
static void mma16_windows(bk_run *run) { in_mma16(run, windows); }
static void mma16_branches(bk_run *run) { in_mma16(run, branches); }

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"all_shapes", all_shapes, BK_ANYWHERE},
        {"hard_values", hard_values, BK_ANYWHERE},
        {"long_sequences", long_sequences, BK_ANYWHERE},
        {"nothing_to_do", nothing_to_do, BK_ANYWHERE},
        {"refusals", refusals, BK_ANYWHERE},
        {"windows", windows, BK_ANYWHERE},
        {"mma16_shapes", mma16_shapes, BK_ANYWHERE},
        {"mma16_long_sequences", mma16_long_sequences, BK_ANYWHERE},
        {"mma16_nothing_to_do", mma16_nothing_to_do, BK_ANYWHERE},
        {"mma16_windows", mma16_windows, BK_ANYWHERE},
        {"branches", branches, BK_ANYWHERE},
        {"branch_refusals", branch_refusals, BK_ANYWHERE},
        {"mma16_branches", mma16_branches, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
