/* Bias, norm of heads, rotation and their gradients (op/rope.h) on the device against the CPU. */
#include "elements.h"
#include "op/rope.h"

enum { PARTS = LS_ROPE_PARTS };

typedef struct shape {
    int64_t dim, half, heads[PARTS], n_parts;
    bool bias, norm;
} shape;

/* Of published models, and by no multiple of anything. */
static const shape shapes[] = {
    {128, 64, {32, 8, 8}, 3, false, true}, {128, 64, {28, 4, 4}, 3, true, false}, {64, 32, {9, 3, 3}, 3, false, false},
    {80, 40, {5, 1, 1}, 3, true, true},    {256, 128, {4, 1, 1}, 3, false, true}, {96, 20, {2, 1, 1}, 3, true, true},
    {10, 5, {3, 1, 1}, 3, true, true},     {7, 3, {2, 1, 2}, 3, true, true},      {512, 256, {1, 1, 1}, 3, true, true},
    {300, 31, {1, 2}, 2, true, true},      {130, 65, {2}, 1, false, true},        {64, 0, {3, 2}, 2, true, true},
};

typedef struct operands {
    sides_buffer x, y, dy, dx, table, scale, bias[PARTS], norm[PARTS], dnorm[PARTS];
    int64_t heads, x_stride, y_stride, dy_stride, dx_stride;
} operands;

static int64_t columns_of(const shape *of, int64_t part) { return of->heads[part] * of->dim; }

/* gap: elements between rows; offset: elements from an aligned address. */
static operands operands_make(sides *d, const shape *of, int64_t rows, ls_dtype dtype, value_kind kind, int64_t gap,
                              int64_t offset) {
    const int64_t elem = ls_dtype_bytes(dtype);
    operands o = {.heads = 0};
    for (int64_t k = 0; k < of->n_parts; k++) o.heads += of->heads[k];
    o.x_stride = o.heads * of->dim + gap;
    o.dy_stride = o.heads * of->dim + gap / 2;
    o.y_stride = o.dx_stride = o.heads * of->dim + 2 * gap;
    o.x = values_put(d, "x", LS_F32, rows * o.x_stride, kind, 3, 4 * offset);
    o.dy = values_put(d, "dy", LS_F32, rows * o.dy_stride, kind, 4, 4 * offset);
    o.y = sides_put(d, "y", NULL, rows * o.y_stride * elem, elem * offset);
    o.dx = sides_put(d, "dx", NULL, rows * o.dx_stride * elem, elem * offset);
    o.table = values_put(d, "table", LS_F32, rows * 2 * of->half + 1, VALUES_PLAIN, 5, 0);
    o.scale = sides_put(d, "scale", NULL, rows * o.heads * 4, 0);
    for (int64_t k = 0; k < of->n_parts; k++) {
        o.bias[k] = values_put(d, "bias", LS_F32, columns_of(of, k), VALUES_PLAIN, (uint64_t)k + 6, 4 * offset);
        o.norm[k] = values_put(d, "norm", LS_F32, of->dim, VALUES_PLAIN, (uint64_t)k + 9, 4 * offset);
        o.dnorm[k] = values_put(d, "dnorm", LS_F32, columns_of(of, k), VALUES_PLAIN, (uint64_t)k + 12, 0);
    }
    return o;
}

/* The last of three parts neither has a norm nor rotates, as v. */
static ls_rope_part part_of(const shape *of, const operands *o, int64_t k, int side) {
    const bool plain = k == 2;
    ls_rope_part part = {.n_heads = of->heads[k]};
    if (k >= of->n_parts) return part;
    if (of->bias) part.bias = o->bias[k].at[side];
    if (of->norm && !plain) part.norm = o->norm[k].at[side];
    if (of->norm && !plain) part.dnorm = o->dnorm[k].at[side];
    part.rotates = of->half > 0 && !plain;
    return part;
}

static void rope_one(sides *d, const shape *of, int64_t rows, ls_dtype dtype, value_kind kind, int64_t gap,
                     int64_t offset) {
    const operands o = operands_make(d, of, rows, dtype, kind, gap, offset);
    SIDES_CALL(d, rope, .x = o.x.at[s], .x_stride = o.x_stride, .y = o.y.at[s], .y_dtype = dtype,
               .y_stride = o.y_stride, .table = o.table.at[s], .half = of->half, .eps = 1e-6f, .rows = rows,
               .head_dim = of->dim, .part = {part_of(of, &o, 0, s), part_of(of, &o, 1, s), part_of(of, &o, 2, s)},
               .n_parts = of->n_parts);
    values_same(d, &o.y, dtype, "dim %lld, %lld rows, %s, %s, gap %lld, offset %lld", (long long)of->dim,
                (long long)rows, ls_dtype_name(dtype), value_names[kind], (long long)gap, (long long)offset);
    SIDES_CALL(d, rope_backward, .x = o.x.at[s], .x_stride = o.x_stride, .dy = o.dy.at[s], .dy_stride = o.dy_stride,
               .dx = o.dx.at[s], .dx_dtype = dtype, .dx_stride = o.dx_stride, .table = o.table.at[s], .half = of->half,
               .eps = 1e-6f, .rows = rows, .head_dim = of->dim,
               .part = {part_of(of, &o, 0, s), part_of(of, &o, 1, s), part_of(of, &o, 2, s)}, .n_parts = of->n_parts,
               .scale = o.scale.at[s]);
    values_same(d, &o.dx, dtype, "backward, dim %lld, %lld rows, %s, %s, gap %lld, offset %lld", (long long)of->dim,
                (long long)rows, ls_dtype_name(dtype), value_names[kind], (long long)gap, (long long)offset);
    values_same(d, &o.scale, LS_F32, "backward, dim %lld, %lld rows", (long long)of->dim, (long long)rows);
    for (int64_t k = 0; k < of->n_parts; k++)
        values_same(d, &o.dnorm[k], LS_F32, "part %lld, dim %lld, %lld rows, %s", (long long)k, (long long)of->dim,
                    (long long)rows, value_names[kind]);
    sides_clear_to(d, 0);
}

static void rope(bk_run *run) {
    static const int64_t rows[] = {1, 5, 129, 0, 64, 33};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(shapes); i++)
        for (int kind = 0; kind < VALUE_KINDS; kind++)
            rope_one(&d, &shapes[i], rows[(i + kind) % BK_COUNT(rows)], (i + kind) % 2 == 0 ? LS_BF16 : LS_F32,
                     (value_kind)kind, (i + kind) % 3 * 4 + (kind == 3), (i + kind) % 3 == 1 ? 1 : 0);
    rope_one(&d, &shapes[0], bk_size(run, 40, 400, 8192), LS_BF16, VALUES_PLAIN, 0, 0);
    rope_one(&d, &shapes[4], bk_size(run, 33, 401, 3001), LS_F32, VALUES_PLAIN, 0, 0);
    sides_close(&d);
}

static void table_one(sides *d, const ls_span *spans, int64_t n_spans, int64_t rows, int64_t half, int64_t longest) {
    float inv_freq[64];
    for (int64_t j = 0; j < half; j++) inv_freq[j] = (float)pow(1000000.0, -(double)j / (double)half);
    const sides_buffer f = sides_in(d, "inv_freq", inv_freq, half * 4),
                       sp = sides_in(d, "spans", spans, n_spans * (int64_t)sizeof *spans),
                       table = sides_out(d, "table", rows * 2 * half * 4);
    SIDES_CALL(d, rope_table, .inv_freq = f.at[s], .half = half, .scale = half == 5 ? 1.2f : 1.0f, .table = table.at[s],
               .spans = sp.at[s], .n_spans = n_spans, .span_rows_max = longest, .rows = rows);
    sides_same(d, &table, 4, "%lld spans, half %lld", (long long)n_spans, (long long)half);
    sides_clear_to(d, 0);
}

/* Every position below 262,144 on a GPU; some of them elsewhere. */
static void rope_table(bk_run *run) {
    const int64_t rows = bk_size(run, 1000, 20000, 262144);
    const ls_span all[] = {{0, rows, 0, 0, 0}}, odd[] = {{70, 9, 131070, -1, 0},
                                                         {0, 1, 0, 0, 0},
                                                         {5, 60, 77, 3, 0},
                                                         {66, 1, 16777215, 2, 0},
                                                         {67, 2, 16777215, 0, 0}};
    sides d = sides_open(run);
    table_one(&d, all, 1, rows, 64, 0);
    table_one(&d, odd, BK_COUNT(odd), 80, 5, 0);
    table_one(&d, odd, BK_COUNT(odd), 80, 64, 60);
    table_one(&d, odd, 0, 3, 64, 0);
    sides_close(&d);
}

static void table_faults(bk_run *run) {
    static const struct {
        ls_span span;
        const char *word;
    } bad[] = {{{0, 11, 0, 0, 0}, "span 0"},
               {{3, 8, 0, 0, 0}, "span 0"},
               {{-1, 2, 0, 0, 0}, "span 0"},
               {{0, 2, -5, 0, 0}, "position -5"}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        const float inv_freq[2] = {1.0f, 0.5f};
        const char *const words[] = {"rope_table", bad[i].word};
        const sides_buffer f = sides_in(&d, "inv_freq", inv_freq, sizeof inv_freq),
                           sp = sides_in(&d, "spans", &bad[i].span, (int64_t)sizeof bad[i].span),
                           table = sides_out(&d, "table", 10 * 4 * 4);
        SIDES_REFUSED(&d, "a bad span", words, rope_table, .inv_freq = f.at[s], .half = 2, .scale = 1.0f,
                      .table = table.at[s], .spans = sp.at[s], .n_spans = 1, .rows = 10);
        values_are(&d, &table, NULL, "after a fault");
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

static void rope_norm_fold(bk_run *run) {
    static const int64_t sizes[][2] = {{1, 1}, {32, 128}, {7, 300}, {64, 512}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++) {
        const sides_buffer chains = values_put(&d, "chains", LS_F32, sizes[i][0] * sizes[i][1], VALUES_WIDE, 3, 0),
                           out = sides_out(&d, "out", sizes[i][1] * 4);
        SIDES_CALL(&d, rope_norm_fold, .chains = chains.at[s], .n_heads = sizes[i][0], .head_dim = sizes[i][1],
                   .out = out.at[s]);
        values_same(&d, &out, LS_F32, "%lld heads of %lld", (long long)sizes[i][0], (long long)sizes[i][1]);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {{"rope", rope, BK_ANYWHERE},
                                    {"rope_table", rope_table, BK_ANYWHERE},
                                    {"table_faults", table_faults, BK_ANYWHERE},
                                    {"rope_norm_fold", rope_norm_fold, BK_ANYWHERE}};
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
