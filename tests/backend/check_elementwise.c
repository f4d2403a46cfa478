/* The elementwise ops, rmsnorm, rows by number and casts: what a forward pass does between its products. */
#include "elements.h"
#include "op/elementwise.h"
#include "op/gather.h"
#include "op/rmsnorm.h"
#include "op/weight.h"

static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};

/* Elements of arrays and columns of rows: by no multiple of anything, around a four, a block and a piece. */
static const int64_t sizes[] = {1, 2, 3, 4, 31, 33, 64, 255, 257, 1000, 1023, 1024, 1025, 2560, 4097, 5004, 8203};

/* ---- embed ---- */

static sides_buffer put_tokens(sides *d, int64_t rows, int64_t vocab, uint64_t seed, int64_t offset) {
    int32_t *tokens = bk_alloc(rows * 4);
    sides_buffer b;
    for (int64_t r = 0; r < rows; r++) tokens[r] = (int32_t)(test_random(&seed) % (uint64_t)vocab);
    if (rows > 2) tokens[0] = (int32_t)vocab - 1, tokens[1] = 0;
    b = sides_put(d, "tokens", tokens, rows * 4, offset);
    free(tokens);
    return b;
}

static void embed_one(sides *d, ls_dtype from, ls_dtype to, int64_t vocab, int64_t rows, int64_t dim, bool apart) {
    const int64_t from_elem = ls_dtype_bytes(from), to_elem = ls_dtype_bytes(to);
    const sides_buffer table = values_put(d, "table", from, vocab * dim, VALUES_SPECIAL, (uint64_t)(dim + rows),
                                          apart ? from_elem : 0),
                       tokens = put_tokens(d, rows, vocab, (uint64_t)dim, apart ? 4 : 0),
                       y = sides_put(d, "y", NULL, rows * dim * to_elem, apart ? 3 * to_elem : 0);
    for (int repeat = 0; repeat < 2; repeat++) {
        SIDES_CALL(d, embed, .table = table.at[s], .table_dtype = from, .vocab = vocab, .dim = dim,
                   .tokens = tokens.at[s], .y = y.at[s], .y_dtype = to, .rows = rows);
        sides_same(d, &y, to_elem, "%s to %s, %lld rows of %lld%s", ls_dtype_name(from), ls_dtype_name(to),
                   (long long)rows, (long long)dim, apart ? ", unaligned" : "");
    }
    sides_clear_to(d, 0);
}

static void embed(bk_run *run) {
    static const int64_t rows[] = {0, 1, 2, 3, 31, 33};
    sides d = sides_open(run);
    for (int64_t t = 0; t < 9; t++)
        for (int64_t i = 0; i < BK_COUNT(sizes); i++)
            embed_one(&d, types[t / 3], types[t % 3], 37, rows[(i + t) % BK_COUNT(rows)], sizes[i], (i + t) % 3 == 0);
    embed_one(&d, LS_BF16, LS_BF16, 1, 1001, 4, false);
    embed_one(&d, LS_BF16, LS_F32, bk_size(run, 40, 200, 5000), bk_size(run, 50, 300, 8192), 2560, false);
    sides_close(&d);
}

static void embed_faults(bk_run *run) {
    static const struct {
        int64_t row;
        int32_t token;
    } bad[] = {{0, -1}, {1999, 50}, {700, INT32_MAX}, {1025, INT32_MIN}, {3, 51}};
    enum { ROWS = 2000, DIM = 12, VOCAB = 50 };
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        static int32_t tokens[ROWS];
        char row[32], token[40];
        const char *const words[] = {"embed", row, token, "is not in 0..49"};
        snprintf(row, sizeof row, "row %lld: ", (long long)bad[i].row);
        snprintf(token, sizeof token, "token %d ", bad[i].token);
        memset(tokens, 0, sizeof tokens);
        tokens[ROWS - 1] = VOCAB; /* later ones are not named */
        tokens[bad[i].row] = bad[i].token;
        const sides_buffer table = values_put(&d, "table", LS_F32, VOCAB * DIM, VALUES_PLAIN, 1, 0),
                           wrong = sides_in(&d, "tokens", tokens, sizeof tokens),
                           y = sides_out(&d, "y", ROWS * DIM * 4), z = sides_out(&d, "z", 700 * DIM * 4);
        SIDES_REFUSED(&d, "a bad token", words, embed, .table = table.at[s], .table_dtype = LS_F32, .vocab = VOCAB,
                      .dim = DIM, .tokens = wrong.at[s], .y = y.at[s], .y_dtype = LS_F32, .rows = ROWS);
        values_are(&d, &y, NULL, "after a fault");
        /* A stretch that is sound. */
        const int64_t first = bad[i].row < 10 ? 4 : 0;
        SIDES_CALL(&d, embed, .table = table.at[s], .table_dtype = LS_F32, .vocab = VOCAB, .dim = DIM,
                   .tokens = (const int32_t *)wrong.at[s] + first, .y = z.at[s], .y_dtype = LS_F32, .rows = 690);
        sides_same(&d, &z, 4, "after a fault");
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

/* ---- residual, multiply, scale, round_rows, swiglu ---- */

static void residual_one(sides *d, int64_t rows, int64_t dim, value_kind kind, int64_t offset, int where) {
    static const char *const names[] = {"apart", "over h", "h itself", "over y"};
    const int64_t n = rows * dim;
    const sides_buffer h = values_put(d, "h", LS_F32, n, kind, 3, offset),
                       y = values_put(d, "y", LS_F32, n, kind, 4, 2 * offset % 16),
                       out = sides_put(d, "out", NULL, n * 4, offset);
    SIDES_CALL(d, residual, .h = h.at[s], .y = y.at[s], .rows = rows, .dim = dim,
               .out = where == 0   ? out.at[s]
                      : where == 1 ? h.at[s]
                      : where == 2 ? NULL
                                   : y.at[s]);
    for (int i = 0; i < 3; i++)
        values_same(d,
                    i == 0   ? &h
                    : i == 1 ? &y
                             : &out,
                    LS_F32, "%s, %s, %lld x %lld, offset %lld", names[where], value_names[kind], (long long)rows,
                    (long long)dim, (long long)offset);
    sides_clear_to(d, 0);
}

static void residual(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int kind = 0; kind < VALUE_KINDS; kind++)
            residual_one(&d, 1 + i % 4, sizes[i], (value_kind)kind, (i + kind) % 3 * 4, (int)(i + kind) % 4);
    residual_one(&d, 0, 5, VALUES_PLAIN, 0, 0);
    residual_one(&d, bk_size(run, 20, 200, 8192), 2560, VALUES_WIDE, 0, 2);
    sides_close(&d);
}

static void multiply_one(sides *d, int64_t n, value_kind kind, int64_t x_offset, int64_t y_offset) {
    const sides_buffer x = values_put(d, "x", LS_F32, n, kind, 5, x_offset),
                       y = values_put(d, "y", LS_F32, n, kind, 6, y_offset);
    SIDES_CALL(d, multiply, .x = x.at[s], .y = y.at[s], .n = n, .scale = 0.693147182f);
    values_same(d, &x, LS_F32, "%s, %lld elements, offsets %lld %lld", value_names[kind], (long long)n,
                (long long)x_offset, (long long)y_offset);
    values_same(d, &y, LS_F32, "%lld elements", (long long)n);
    sides_clear_to(d, 0);
}

static void multiply(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int kind = 0; kind < VALUE_KINDS; kind++)
            multiply_one(&d, sizes[i], (value_kind)kind, (i + kind) % 2 * 4, (i + kind) % 3 * 4);
    multiply_one(&d, 0, VALUES_PLAIN, 0, 0);
    multiply_one(&d, bk_size(run, 5000, 300001, 30000001), VALUES_WIDE, 0, 0);
    sides_close(&d);
}

static void scale_one(sides *d, int64_t n, value_kind kind, int64_t x_offset, int64_t y_offset, bool in_place) {
    const sides_buffer x = values_put(d, "x", LS_F32, n, kind, 5, x_offset),
                       y = in_place ? x : sides_put(d, "y", NULL, n * 4, y_offset);
    SIDES_CALL(d, scale, .x = x.at[s], .y = y.at[s], .n = n, .scale = 0.22f);
    values_same(d, &y, LS_F32, "%s, %lld elements, offsets %lld %lld, in place %d", value_names[kind], (long long)n,
                (long long)x_offset, (long long)y_offset, in_place);
    values_same(d, &x, LS_F32, "%lld elements", (long long)n);
    sides_clear_to(d, 0);
}

static void scale(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int kind = 0; kind < VALUE_KINDS; kind++)
            scale_one(&d, sizes[i], (value_kind)kind, (i + kind) % 2 * 4, (i + kind) % 3 * 4, (i + kind) % 5 == 0);
    scale_one(&d, 0, VALUES_PLAIN, 0, 0, false);
    scale_one(&d, bk_size(run, 5000, 300001, 30000001), VALUES_WIDE, 0, 0, true);
    sides_close(&d);
}

static void round_rows_one(sides *d, int64_t rows, int64_t dim, int64_t x_gap, int64_t y_gap, value_kind kind,
                           int64_t offset) {
    const int64_t x_stride = dim + x_gap, y_stride = dim + y_gap;
    const sides_buffer x = values_put(d, "x", LS_F32, rows * x_stride, kind, 7, 4 * offset),
                       y = sides_put(d, "y", NULL, rows * y_stride * 2, 2 * offset);
    SIDES_CALL(d, round_rows, .x = x.at[s], .x_stride = x_stride, .y = y.at[s], .y_stride = y_stride, .rows = rows,
               .dim = dim);
    sides_same(d, &y, 2, "%s, %lld x %lld, gaps %lld %lld, offset %lld", value_names[kind], (long long)rows,
               (long long)dim, (long long)x_gap, (long long)y_gap, (long long)offset);
    sides_clear_to(d, 0);
}

static void round_rows(bk_run *run) {
    static const int64_t gaps[] = {0, 4, 8, 3};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int kind = 0; kind < VALUE_KINDS; kind++)
            for (int64_t g = 0; g < 4; g++)
                round_rows_one(&d, 1 + (i + g) % 5, sizes[i], gaps[(g + kind) % 4], gaps[g], (value_kind)kind,
                               (i + g) % 3);
    round_rows_one(&d, 0, 5, 0, 0, VALUES_PLAIN, 0);
    round_rows_one(&d, bk_size(run, 20, 200, 8192), 5120, 5120, 0, VALUES_WIDE, 0);
    sides_close(&d);
}

static void swiglu_one(sides *d, int64_t rows, int64_t dim, ls_dtype to, value_kind kind, int64_t offset, bool over) {
    const int64_t n = rows * dim, elem = ls_dtype_bytes(to);
    const sides_buffer gate = values_put(d, "gate", LS_F32, n, kind, 7, offset),
                       up = values_put(d, "up", LS_F32, n, kind, 8, 0),
                       y = sides_put(d, "y", NULL, n * elem, offset > 0 ? elem : 0);
    SIDES_CALL(d, swiglu, .gate = gate.at[s], .up = up.at[s], .y = over ? gate.at[s] : y.at[s], .y_dtype = to,
               .rows = rows, .dim = dim);
    values_same(d, over ? &gate : &y, to, "%s to %s, %lld x %lld, offset %lld%s", value_names[kind], ls_dtype_name(to),
                (long long)rows, (long long)dim, (long long)offset, over ? ", in place" : "");
    sides_clear_to(d, 0);
}

static void swiglu(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int k = 0; k < VALUE_KINDS * 3; k++)
            swiglu_one(&d, 1 + (i + k) % 3, sizes[i], types[k % 3], (value_kind)(k / 3), (i + k) % 3 == 0 ? 4 : 0,
                       k % 3 == 0 && i % 2 == 0);
    swiglu_one(&d, 0, 5, LS_F32, VALUES_PLAIN, 0, false);
    swiglu_one(&d, bk_size(run, 2, 40, 2048), 8192, LS_BF16, VALUES_WIDE, 0, false);
    swiglu_one(&d, bk_size(run, 2, 40, 2048), 8191, LS_F32, VALUES_PLAIN, 0, false);
    sides_close(&d);
}

/* ---- rmsnorm ---- */

typedef struct norm_case {
    ls_dtype from, to;
    int64_t rows, dim, x_gap, y_gap, offset; /* gaps and offset in elements */
    value_kind kind;
    float eps;
    bool over;
} norm_case;

static void rmsnorm_one(sides *d, const norm_case *c) {
    const int64_t x_stride = c->dim + c->x_gap, y_stride = c->over ? x_stride : c->dim + c->y_gap;
    const int64_t from_elem = ls_dtype_bytes(c->from), to_elem = ls_dtype_bytes(c->to);
    const sides_buffer x = values_put(d, "x", c->from, c->rows * x_stride, c->kind, (uint64_t)c->dim,
                                      c->offset * from_elem),
                       w = values_put(d, "w", LS_F32, c->dim, VALUES_PLAIN, 9, c->offset % 2 * 4),
                       y = sides_put(d, "y", NULL, c->rows * y_stride * to_elem, c->offset * to_elem);
    for (int repeat = 0; repeat < (c->over ? 1 : 2); repeat++) {
        SIDES_CALL(d, rmsnorm, .x = x.at[s], .x_dtype = c->from, .x_stride = x_stride, .w = w.at[s], .eps = c->eps,
                   .y = c->over ? x.at[s] : y.at[s], .y_dtype = c->to, .y_stride = y_stride, .rows = c->rows,
                   .dim = c->dim);
        values_same(d, c->over ? &x : &y, c->to, "%s %s to %s, %lld x %lld, gaps %lld %lld, offset %lld%s",
                    value_names[c->kind], ls_dtype_name(c->from), ls_dtype_name(c->to), (long long)c->rows,
                    (long long)c->dim, (long long)c->x_gap, (long long)c->y_gap, (long long)c->offset,
                    c->over ? ", in place" : "");
    }
    sides_clear_to(d, 0);
}

static void rmsnorm(bk_run *run) {
    static const int64_t dims[] = {1,   2,   3,    4,    5,    7,    8,    16,   31,   33,   160,   255,  256,
                                   257, 511, 1000, 1024, 1025, 1028, 2560, 3333, 4096, 4097, 10004, 20001};
    static const float eps[] = {1e-6f, 0.0f, 1e-5f};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims); i++)
        for (int64_t k = 0; k < 4 * VALUE_KINDS; k++) {
            const norm_case c = {.from = types[k % 2],
                                 .to = types[k / 2 % 2],
                                 .rows = 1 + (i + k) % 4,
                                 .dim = dims[i],
                                 .x_gap = (i + k) % 3 * 4,
                                 .y_gap = (i + k) % 5 == 0 ? 3 : 0,
                                 .offset = (i + k) % 4 == 0 ? 1 : 0,
                                 .kind = (value_kind)(k / 4),
                                 .eps = eps[(i + k) % 3],
                                 .over = k % 2 == k / 2 % 2 && (i + k) % 3 == 0};
            rmsnorm_one(&d, &c);
        }
    /* Many rows, for which a GPU has kernels of its own. */
    for (int64_t k = 0; k < 2 * VALUE_KINDS; k++)
        rmsnorm_one(&d, &(norm_case){.from = LS_F32,
                                     .to = types[k % 2],
                                     .rows = bk_size(run, 5, 1024 + k, 1024 + k),
                                     .dim = 1028 + 4 * k,
                                     .x_gap = 4 * (k / 2),
                                     .y_gap = k % 2 == 0 ? 4 * (k / 2) : 8,
                                     .kind = (value_kind)(k / 2),
                                     .eps = 1e-6f,
                                     .over = k % 2 == 0});
    rmsnorm_one(&d, &(norm_case){LS_F32, LS_BF16, 0, 64, 0, 0, 0, VALUES_PLAIN, 1e-6f, false});
    rmsnorm_one(&d,
                &(norm_case){LS_F32, LS_BF16, bk_size(run, 10, 100, 8192), 2560, 0, 0, 0, VALUES_PLAIN, 1e-6f, false});
    rmsnorm_one(&d, &(norm_case){LS_BF16, LS_BF16, bk_size(run, 10, 300, 70001), 160, 32, 32, 0, VALUES_CANCELLING,
                                 1e-6f, false});
    for (int64_t dim = 128; dim <= 256; dim += 128)
        rmsnorm_one(
            &d, &(norm_case){LS_F32, LS_BF16, bk_size(run, 10, 301, 70001), dim, dim, 0, 0, VALUES_WIDE, 1e-6f, false});
    rmsnorm_one(&d, &(norm_case){LS_F32, LS_F32, 2, bk_size(run, 20000, 288 * 1024, 288 * 1024), 0, 0, 0, VALUES_PLAIN,
                                 1e-6f, true});
    sides_close(&d);
}

/* The sum may be the stream itself. */
static void add_rmsnorm_one(sides *d, ls_dtype to, int64_t rows, int64_t dim, int64_t y_gap, int64_t offset, bool over,
                            value_kind kind) {
    const int64_t y_stride = dim + y_gap;
    const sides_buffer h = values_put(d, "h", LS_F32, rows * dim, kind, (uint64_t)dim, offset),
                       add = values_put(d, "add", LS_F32, rows * dim, kind, (uint64_t)dim + 1, 0),
                       w = values_put(d, "w", LS_F32, dim, VALUES_PLAIN, 9, 0),
                       sum = sides_out(d, "sum", rows * dim * 4),
                       y = sides_out(d, "y", rows * y_stride * ls_dtype_bytes(to));
    SIDES_CALL(d, add_rmsnorm, .h = h.at[s], .add = add.at[s], .sum = over ? h.at[s] : sum.at[s], .w = w.at[s],
               .eps = 1e-6f, .y = y.at[s], .y_dtype = to, .y_stride = y_stride, .rows = rows, .dim = dim);
    values_same(d, over ? &h : &sum, LS_F32, "sum of %lld x %lld", (long long)rows, (long long)dim);
    values_same(d, &y, to, "%s to %s, %lld x %lld", value_names[kind], ls_dtype_name(to), (long long)rows,
                (long long)dim);
    sides_clear_to(d, 0);
}

static void add_rmsnorm(bk_run *run) {
    static const int64_t dims[] = {1, 3, 4, 64, 255, 256, 1000, 1024, 1025, 2560, 4096, 4100, 10004};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims); i++)
        for (int64_t k = 0; k < 2 * VALUE_KINDS; k++)
            add_rmsnorm_one(&d, types[k % 2], 1 + (i + k) % 4, dims[i], (i + k) % 3, (i + k) % 5 == 0 ? 4 : 0,
                            (i + k) % 2 == 0, (value_kind)(k / 2));
    for (int64_t k = 0; k < 2 * VALUE_KINDS; k++)
        add_rmsnorm_one(&d, types[k % 2], bk_size(run, 5, 1024 + k, 1024 + k), 1028 + 4 * k, 4 * (k / 3), 0, k % 3 == 0,
                        (value_kind)(k / 2));
    add_rmsnorm_one(&d, LS_BF16, 0, 64, 0, 0, false, VALUES_PLAIN);
    add_rmsnorm_one(&d, LS_BF16, bk_size(run, 10, 100, 8192), 2560, 0, 0, true, VALUES_PLAIN);
    sides_close(&d);
}

/* Three norms of columns of one matrix, two of them in place, as a mixer has them; and wider ones, one by one. */
static void rmsnorm_parts_one(sides *d, int64_t rows, int64_t dim, int64_t small, value_kind kind) {
    const int64_t stride = dim + 2 * small;
    const sides_buffer x = values_put(d, "x", LS_F32, rows * stride, kind, (uint64_t)dim, 0),
                       w = values_put(d, "w", LS_F32, stride, VALUES_PLAIN, 9, 0),
                       y = sides_out(d, "y", rows * dim * 2);
    for (int s = 0; s < 2; s++) {
        float *at = x.at[s], *weight = w.at[s];
        const ls_rmsnorm_parts_args args = {
            .part = {{at, LS_F32, stride, weight, 1e-6f, y.at[s], LS_BF16, dim, rows, dim},
                     {at + dim, LS_F32, stride, weight + dim, 1e-6f, at + dim, LS_F32, stride, rows, small},
                     {at + dim + small, LS_F32, stride, weight + dim + small, 1e-5f, at + dim + small, LS_F32, stride,
                      rows, small}},
            .n = 3};
        if (ls_rmsnorm_parts(d->device[s], &args, &d->run->err) != LS_OK) bk_die(d->run, "rmsnorm_parts");
    }
    values_same(d, &x, LS_F32, "parts of %lld and %lld, %lld rows", (long long)dim, (long long)small, (long long)rows);
    values_same(d, &y, LS_BF16, "parts of %lld and %lld, %lld rows", (long long)dim, (long long)small, (long long)rows);
    sides_clear_to(d, 0);
}

static void rmsnorm_parts(bk_run *run) {
    static const int64_t dims[][2] = {{1, 1}, {4, 3}, {160, 16}, {33, 256}, {1024, 16}, {1030, 8}, {20, 4099}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims) * VALUE_KINDS; i++)
        rmsnorm_parts_one(&d, 1 + i % 5, dims[i / VALUE_KINDS][0], dims[i / VALUE_KINDS][1],
                          (value_kind)(i % VALUE_KINDS));
    rmsnorm_parts_one(&d, 0, 160, 16, VALUES_PLAIN);
    rmsnorm_parts_one(&d, bk_size(run, 20, 512, 8192), 160, 16, VALUES_PLAIN);
    sides_close(&d);
}

/* ---- gather and differs ---- */

typedef struct gather_case {
    int64_t row_bytes, x_gap, out_gap, x_offset, out_offset, x_rows, n;
} gather_case;

static void gather_one(sides *d, const gather_case *c) {
    const int64_t x_stride = c->row_bytes + c->x_gap, out_stride = c->row_bytes + c->out_gap;
    int64_t *index = bk_alloc(c->n * 8);
    uint64_t seed = (uint64_t)c->row_bytes + 77;
    for (int64_t i = 0; i < c->n; i++) index[i] = (int64_t)(test_random(&seed) % (uint64_t)c->x_rows);
    if (c->n > 1) index[0] = c->x_rows - 1, index[1] = 0;
    void *bytes = values_make(LS_BF16, (c->x_rows * x_stride + 1) / 2, VALUES_SPECIAL, seed);
    const sides_buffer x = sides_put(d, "x", bytes, c->x_rows * x_stride, c->x_offset),
                       list = sides_in(d, "index", index, c->n * 8),
                       out = sides_put(d, "out", NULL, c->n * out_stride, c->out_offset);
    SIDES_CALL(d, gather, .x = x.at[s], .index = list.at[s], .out = out.at[s], .x_rows = c->x_rows,
               .x_stride = x_stride, .n = c->n, .out_stride = out_stride, .row_bytes = c->row_bytes);
    sides_same(d, &out, 1, "%lld of %lld rows of %lld bytes, gaps %lld %lld, offsets %lld %lld", (long long)c->n,
               (long long)c->x_rows, (long long)c->row_bytes, (long long)c->x_gap, (long long)c->out_gap,
               (long long)c->x_offset, (long long)c->out_offset);
    free(bytes);
    free(index);
    sides_clear_to(d, 0);
}

static void gather(bk_run *run) {
    static const int64_t row_bytes[] = {1, 2, 3, 4, 8, 12, 16, 31, 48, 100, 1000, 4096, 5000, 16384, 16400, 40001};
    static const int64_t rows[] = {1, 2, 3, 31, 33, 100};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(row_bytes); i++)
        for (int64_t k = 0; k < 4; k++) {
            const gather_case c = {.row_bytes = row_bytes[i],
                                   .x_gap = k == 1   ? 16
                                            : k == 2 ? 5
                                                     : 0,
                                   .out_gap = k == 1   ? 32
                                              : k == 3 ? 4
                                                       : 0,
                                   .x_offset = k == 3 ? 4 : 0,
                                   .out_offset = k == 2 ? 1 : 0,
                                   .x_rows = rows[(i + k) % BK_COUNT(rows)],
                                   .n = rows[(i + 2 * k) % BK_COUNT(rows)]};
            gather_one(&d, &c);
        }
    gather_one(&d, &(gather_case){.row_bytes = 8, .x_rows = 1000, .n = bk_size(run, 2000, 20000, 1000001)});
    gather_one(&d, &(gather_case){.row_bytes = 5120, .x_rows = 300, .n = bk_size(run, 10, 500, 40000)});
    gather_one(&d, &(gather_case){.row_bytes = 8, .x_rows = 3, .n = 0});
    sides_close(&d);
}

static void gather_faults(bk_run *run) {
    static const int64_t bad[][2] = {{0, -1}, {1500, 20}, {2999, INT64_MAX}, {7, INT64_MIN}};
    enum { N = 3000, X_ROWS = 20, BYTES = 24 };
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        static int64_t index[N];
        char entry[40], row[48];
        const char *const words[] = {"gather", entry, row, "is not in 0..19"};
        snprintf(entry, sizeof entry, "entry %lld: ", (long long)bad[i][0]);
        snprintf(row, sizeof row, "row %lld ", (long long)bad[i][1]);
        memset(index, 0, sizeof index);
        index[N - 1] = X_ROWS;
        index[bad[i][0]] = bad[i][1];
        const sides_buffer x = values_put(&d, "x", LS_F32, X_ROWS * BYTES / 4, VALUES_PLAIN, 1, 0),
                           list = sides_in(&d, "index", index, sizeof index), out = sides_out(&d, "out", N * BYTES);
        SIDES_REFUSED(&d, "a bad row", words, gather, .x = x.at[s], .index = list.at[s], .out = out.at[s],
                      .x_rows = X_ROWS, .x_stride = BYTES, .n = N, .out_stride = BYTES, .row_bytes = BYTES);
        values_are(&d, &out, NULL, "after a fault");
        SIDES_CALL(&d, gather, .x = x.at[s], .index = (const int64_t *)list.at[s] + 10, .out = out.at[s],
                   .x_rows = X_ROWS, .x_stride = BYTES, .n = 1400, .out_stride = BYTES, .row_bytes = BYTES);
        sides_same(&d, &out, 1, "after a fault");
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

/* `changed`: -1, or the byte of b, gaps included, that differs from a. */
static void differs_one(sides *d, int64_t rows, int64_t row_bytes, int64_t gap, int64_t offset, int64_t changed,
                        int64_t before) {
    const int64_t stride = row_bytes + gap, bytes = rows * stride;
    const bool counts = changed >= 0 && changed % stride < row_bytes;
    const int64_t expected = counts ? 1 : before;
    uint8_t *a = values_make(LS_BF16, (bytes + 1) / 2, VALUES_PLAIN, (uint64_t)bytes);
    const sides_buffer first = sides_put(d, "a", a, bytes, offset);
    if (changed >= 0) a[changed] ^= 0x10;
    const sides_buffer second = sides_put(d, "b", a, bytes, offset), flag = sides_in(d, "differs", &before, 8);
    char what[120];
    snprintf(what, sizeof what, "%lld rows of %lld, gap %lld, offset %lld, byte %lld", (long long)rows,
             (long long)row_bytes, (long long)gap, (long long)offset, (long long)changed);
    SIDES_CALL(d, differs, .a = first.at[s], .b = second.at[s], .rows = rows, .stride = stride, .row_bytes = row_bytes,
               .differs = flag.at[s]);
    values_are(d, &flag, &expected, what);
    sides_same(d, &flag, 8, "%s", what);
    free(a);
    sides_clear_to(d, 0);
}

static void differs(bk_run *run) {
    static const int64_t row_bytes[] = {1, 3, 4, 12, 16, 100, 1000, 4096, 16388, 20001};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(row_bytes); i++)
        for (int64_t k = 0; k < 6; k++) {
            const int64_t rows = 1 + (i * 7 + k * 13) % 40, gap = k % 2 == 0 ? 0 : k == 1 ? 16 : 7;
            const int64_t bytes = rows * (row_bytes[i] + gap), offset = k % 3 == 2 ? 1 : k == 4 ? 4 : 0;
            differs_one(&d, rows, row_bytes[i], gap, offset, -1, 0);
            differs_one(&d, rows, row_bytes[i], gap, offset, k == 0 ? 0 : k == 1 ? bytes - 1 : bytes * k / 7, 0);
            differs_one(&d, rows, row_bytes[i], gap, offset, bytes * k / 6, k % 2);
        }
    differs_one(&d, 0, 16, 0, 0, -1, 0);
    differs_one(&d, 0, 16, 0, 0, -1, 5);
    differs_one(&d, bk_size(run, 10, 500, 40000), 5120, 0, 0, -1, 0);
    differs_one(&d, bk_size(run, 10, 500, 40000), 5120, 0, 0, bk_size(run, 10, 500, 40000) * 5120 - 1, 0);
    sides_close(&d);
}

/* ---- casts ---- */

static void widen_one(sides *d, const void *values, ls_dtype from, int64_t n, int64_t offset) {
    const int64_t elem = ls_dtype_bytes(from);
    const sides_buffer x = sides_put(d, "x", values, n * elem, offset * elem),
                       wide = sides_put(d, "wide", NULL, n * 4, offset * 4),
                       raised = sides_put(d, "raised", NULL, n * 4, offset * 4),
                       decays = sides_put(d, "decays", NULL, n * 4, 0), rates = sides_put(d, "rates", NULL, n * 4, 0);
    SIDES_CALL(d, widen, .x = x.at[s], .dtype = from, .n = n, .out = wide.at[s]);
    SIDES_CALL(d, widen, .x = x.at[s], .dtype = from, .n = n, .out = raised.at[s], .plus_one = true);
    SIDES_CALL(d, decay, .x = x.at[s], .dtype = from, .n = n, .out = decays.at[s]);
    SIDES_CALL(d, rates, .x = x.at[s], .dtype = from, .n = n, .out = rates.at[s]);
    sides_same(d, &wide, 4, "%lld of %s, offset %lld", (long long)n, ls_dtype_name(from), (long long)offset);
    values_same(d, &raised, LS_F32, "1 + %lld of %s, offset %lld", (long long)n, ls_dtype_name(from),
                (long long)offset);
    values_same(d, &decays, LS_F32, "decay of %lld of %s, offset %lld", (long long)n, ls_dtype_name(from),
                (long long)offset);
    values_same(d, &rates, LS_F32, "rates of %lld of %s, offset %lld", (long long)n, ls_dtype_name(from),
                (long long)offset);
    sides_clear_to(d, 0);
}

/* Every pattern of 16 bits, and float32 of all kinds. */
static void widen_and_decay(bk_run *run) {
    static uint16_t all[65536];
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(all); i++) all[i] = (uint16_t)i;
    widen_one(&d, all, LS_BF16, BK_COUNT(all), 0);
    widen_one(&d, all, LS_F16, BK_COUNT(all), 0);
    widen_one(&d, all, LS_BF16, BK_COUNT(all), 1);
    widen_one(&d, all, LS_F16, BK_COUNT(all), 3);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int64_t k = 0; k < 3 * VALUE_KINDS; k++) {
            void *values = values_make(types[k % 3], sizes[i], (value_kind)(k / 3), (uint64_t)(i + k));
            widen_one(&d, values, types[k % 3], sizes[i], (i + k) % 2);
            free(values);
        }
    for (int64_t t = 0; t < 3; t++) widen_one(&d, all, types[t], 0, 0);
    sides_close(&d);
}

static void weight_cast_one(sides *d, ls_dtype to, int64_t n, value_kind kind, int64_t offset) {
    const int64_t elem = ls_dtype_bytes(to);
    const sides_buffer w = values_put(d, "w", LS_F32, n, kind, (uint64_t)n, offset * 4),
                       out = sides_put(d, "out", NULL, n * elem, offset * elem);
    SIDES_CALL(d, weight_cast, .w = w.at[s], .n = n, .out = out.at[s], .dtype = to);
    sides_same(d, &out, elem, "%lld %s to %s, offset %lld", (long long)n, value_names[kind], ls_dtype_name(to),
               (long long)offset);
    sides_clear_to(d, 0);
}

/* Every float32 whose low bits decide a rounding: exponents, the last bits that stay, and what is cut around a half. */
static void cast_edges(sides *d, ls_dtype to) {
    const int cut = to == LS_F16 ? 13 : 16;
    enum { PER = 2 * 256 * 4 * 5 };
    static uint32_t bits[PER];
    int64_t n = 0;
    for (uint32_t top = 0; top < 512; top++)
        for (uint32_t kept = 0; kept < 4; kept++)
            for (uint32_t low = 0; low < 5; low++) {
                const uint32_t half = 1u << (cut - 1), lows[] = {0, 1, half - 1, half, half + 1};
                bits[n++] = top << 23 | (kept < 2 ? kept : (0x7FFFFFu >> cut) - kept + 2) << cut | lows[low];
            }
    const sides_buffer w = sides_in(d, "w", bits, sizeof bits), out = sides_out(d, "out", n * ls_dtype_bytes(to));
    SIDES_CALL(d, weight_cast, .w = w.at[s], .n = n, .out = out.at[s], .dtype = to);
    sides_same(d, &out, ls_dtype_bytes(to), "edges of %s", ls_dtype_name(to));
    sides_clear_to(d, 0);
}

static void weight_cast(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t t = 0; t < 3; t++) {
        cast_edges(&d, types[t]);
        weight_cast_one(&d, types[t], 0, VALUES_PLAIN, 0);
        weight_cast_one(&d, types[t], bk_size(run, 3000, 200003, 50000003), VALUES_WIDE, 0);
        for (int64_t i = 0; i < BK_COUNT(sizes); i++)
            for (int kind = 0; kind < VALUE_KINDS; kind++)
                weight_cast_one(&d, types[t], sizes[i], (value_kind)kind, (i + kind) % 3);
    }
    sides_close(&d);
}

static void taps_one(sides *d, ls_dtype from, int64_t rows, int64_t cols, int64_t offset) {
    const int64_t elem = ls_dtype_bytes(from);
    const sides_buffer x = values_put(d, "x", from, rows * cols, VALUES_SPECIAL, (uint64_t)rows, offset * elem),
                       out = sides_put(d, "out", NULL, rows * cols * 4, offset * 4);
    SIDES_CALL(d, taps, .x = x.at[s], .dtype = from, .rows = rows, .cols = cols, .out = out.at[s]);
    sides_same(d, &out, 4, "%lld x %lld of %s", (long long)rows, (long long)cols, ls_dtype_name(from));
    sides_clear_to(d, 0);
}

static void taps(bk_run *run) {
    static const int64_t shapes[][2] = {{1, 1}, {0, 4}, {4, 0}, {3, 4}, {257, 4}, {4, 1000}, {31, 33}, {5120, 4}};
    sides d = sides_open(run);
    for (int64_t t = 0; t < 3; t++)
        for (int64_t i = 0; i < BK_COUNT(shapes); i++) taps_one(&d, types[t], shapes[i][0], shapes[i][1], (i + t) % 2);
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {{"embed", embed, BK_ANYWHERE},
                                    {"embed_faults", embed_faults, BK_ANYWHERE},
                                    {"residual", residual, BK_ANYWHERE},
                                    {"multiply", multiply, BK_ANYWHERE},
                                    {"scale", scale, BK_ANYWHERE},
                                    {"round_rows", round_rows, BK_ANYWHERE},
                                    {"add_rmsnorm", add_rmsnorm, BK_ANYWHERE},
                                    {"rmsnorm_parts", rmsnorm_parts, BK_ANYWHERE},
                                    {"swiglu", swiglu, BK_ANYWHERE},
                                    {"rmsnorm", rmsnorm, BK_ANYWHERE},
                                    {"gather", gather, BK_ANYWHERE},
                                    {"gather_faults", gather_faults, BK_ANYWHERE},
                                    {"differs", differs, BK_ANYWHERE},
                                    {"widen_and_decay", widen_and_decay, BK_ANYWHERE},
                                    {"weight_cast", weight_cast, BK_ANYWHERE},
                                    {"taps", taps, BK_ANYWHERE}};
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
