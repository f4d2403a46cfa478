/* Gradients of the ops without products and the optimizer. */
#include "elements.h"
#include "op/adamw.h"
#include "op/elementwise_backward.h"
#include "op/logprob.h"
#include "op/lora.h"
#include "op/rmsnorm_backward.h"

static const int64_t sizes[] = {1, 2, 3, 4, 31, 33, 64, 255, 257, 1000, 1023, 1024, 1025, 2560, 4097, 5004, 8203};

/* ---- swiglu_backward ---- */

/* over: of gate, up, dy the input that dgate lies on, and the next one that dup does; -1: none. */
static void swiglu_backward_one(sides *d, int64_t rows, int64_t dim, value_kind kind, int64_t offset, int over) {
    const int64_t n = rows * dim;
    const sides_buffer in[] = {values_put(d, "gate", LS_F32, n, kind, 1, offset),
                               values_put(d, "up", LS_F32, n, kind, 2, 0),
                               values_put(d, "dy", LS_F32, n, kind, 3, offset)},
                       dgate = sides_put(d, "dgate", NULL, n * 4, 0), dup = sides_put(d, "dup", NULL, n * 4, offset);
    SIDES_CALL(d, swiglu_backward, .gate = in[0].at[s], .up = in[1].at[s], .dy = in[2].at[s],
               .dgate = over < 0 ? dgate.at[s] : in[over].at[s], .dup = over < 0 ? dup.at[s] : in[(over + 1) % 3].at[s],
               .rows = rows, .dim = dim);
    for (int i = 0; i < 5; i++)
        values_same(d,
                    i < 3    ? &in[i]
                    : i == 3 ? &dgate
                             : &dup,
                    LS_F32, "%s, %lld x %lld, offset %lld, over %d", value_names[kind], (long long)rows, (long long)dim,
                    (long long)offset, over);
    sides_clear_to(d, 0);
}

static void swiglu_backward_rounded_one(sides *d, int64_t rows, int64_t dim, value_kind kind, int64_t offset) {
    const int64_t n = rows * dim;
    const sides_buffer gate = values_put(d, "gate", LS_F32, n, kind, 1, offset),
                       up = values_put(d, "up", LS_F32, n, kind, 2, 0), dy = values_put(d, "dy", LS_F32, n, kind, 3, 0),
                       dgate = sides_put(d, "dgate", NULL, n * 2, 0),
                       dup = sides_put(d, "dup", NULL, n * 2, offset / 2);
    SIDES_CALL(d, swiglu_backward_rounded, .gate = gate.at[s], .up = up.at[s], .dy = dy.at[s], .dgate = dgate.at[s],
               .dup = dup.at[s], .rows = rows, .dim = dim);
    values_same(d, &dgate, LS_BF16, "%s, dgate, %lld x %lld", value_names[kind], (long long)rows, (long long)dim);
    values_same(d, &dup, LS_BF16, "%s, dup, %lld x %lld", value_names[kind], (long long)rows, (long long)dim);
    sides_clear_to(d, 0);
}

static void swiglu_backward_rounded(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int k = 0; k < VALUE_KINDS; k++)
            swiglu_backward_rounded_one(&d, 1 + (i + k) % 3, sizes[i], (value_kind)k, (i + k) % 3 == 0 ? 4 : 0);
    swiglu_backward_rounded_one(&d, 0, 5, VALUES_PLAIN, 0);
    swiglu_backward_rounded_one(&d, bk_size(run, 2, 40, 2048), 8192, VALUES_WIDE, 0);
    sides_close(&d);
}

static void swiglu_backward(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int k = 0; k < 2 * VALUE_KINDS; k++)
            swiglu_backward_one(&d, 1 + (i + k) % 3, sizes[i], (value_kind)(k / 2), (i + k) % 3 == 0 ? 4 : 0,
                                (int)(i + k) % 4 - 1);
    swiglu_backward_one(&d, 0, 5, VALUES_PLAIN, 0, -1);
    swiglu_backward_one(&d, bk_size(run, 2, 40, 2048), 8192, VALUES_WIDE, 0, -1);
    sides_close(&d);
}

/* ---- embed_backward ---- */

/* EQUAL: all rows have one token. APART: each its own. FEW: three tokens. MANY: of all, some often. PADDED: many are
 * the padding token. */
typedef enum token_kind { EQUAL, APART, FEW, MANY, PADDED, TOKEN_KINDS } token_kind;

static const char *const token_names[] = {"equal", "apart", "few", "many", "padded"};

static int32_t token_of(token_kind kind, int64_t row, int64_t vocab, uint64_t *state) {
    const uint64_t random = test_random(state), often = random % 4;
    if (kind == EQUAL) return (int32_t)(vocab / 2);
    if (kind == APART) return (int32_t)((vocab - 1 - row % vocab + vocab) % vocab);
    if (kind == FEW || often == 0) return (int32_t)((uint64_t)vocab * (random / 4 % 3) / 3);
    if (kind == PADDED && often == 1) return (int32_t)(vocab - 1);
    return (int32_t)(random / 4 % (uint64_t)vocab);
}

typedef struct table_case {
    token_kind tokens;
    value_kind values;
    int64_t rows, dim, vocab, gap, offset;
} table_case;

/* In one call, and again in pieces, which are the same to the bit. */
static void embed_backward_one(sides *d, const table_case *c) {
    const int64_t stride = c->dim + c->gap, n = c->vocab * c->dim, pad = c->tokens == PADDED ? c->vocab - 1 : -1;
    const int64_t cuts[] = {0, c->rows / 3, c->rows / 3, c->rows - c->rows / 5, c->rows};
    int32_t *host = bk_alloc(c->rows * 4);
    uint64_t state = (uint64_t)(c->rows * 31 + c->dim + 1);
    for (int64_t r = 0; r < c->rows; r++) host[r] = token_of(c->tokens, r, c->vocab, &state);
    const sides_buffer tokens = sides_put(d, "tokens", host, c->rows * 4, c->offset),
                       dy = values_put(d, "dy", LS_F32, c->rows * stride, c->values, 11, c->offset),
                       whole = values_put(d, "dtable", LS_F32, n, c->values, 12, 0),
                       pieces = values_put(d, "dtable", LS_F32, n, c->values, 12, c->offset);
    char what[160];
    snprintf(what, sizeof what, "%s tokens, %s, %lld rows of %lld, vocab %lld, gap %lld, offset %lld",
             token_names[c->tokens], value_names[c->values], (long long)c->rows, (long long)c->dim, (long long)c->vocab,
             (long long)c->gap, (long long)c->offset);
    SIDES_CALL(d, embed_backward, .tokens = tokens.at[s], .dy = dy.at[s], .dy_stride = stride, .dtable = whole.at[s],
               .vocab = c->vocab, .dim = c->dim, .rows = c->rows, .pad = (int32_t)pad);
    for (int64_t i = 0; i + 1 < BK_COUNT(cuts); i++)
        SIDES_CALL(d, embed_backward, .tokens = (const int32_t *)tokens.at[s] + cuts[i],
                   .dy = (const float *)dy.at[s] + cuts[i] * stride, .dy_stride = stride, .dtable = pieces.at[s],
                   .vocab = c->vocab, .dim = c->dim, .rows = cuts[i + 1] - cuts[i], .pad = (int32_t)pad);
    values_same(d, &whole, LS_F32, "%s", what);
    values_same(d, &pieces, LS_F32, "in pieces: %s", what);
    if (c->values == VALUES_WIDE || c->values == VALUES_CANCELLING) {
        uint8_t *a = sides_take(d, &whole, 1), *b = sides_take(d, &pieces, 1);
        bk_same(d->run, a + BK_GUARD, b + BK_GUARD, n, 4, "one call and pieces: %s", what);
        free(a);
        free(b);
    }
    free(host);
    sides_clear_to(d, 0);
}

static void embed_backward(bk_run *run) {
    static const int64_t rows[] = {0, 1, 2, 3, 31, 33, 255, 257, 1023, 1025, 2100};
    static const int64_t dims[] = {1, 3, 4, 33, 64, 100, 255, 1023, 1024, 1028, 2560};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(rows); i++)
        for (int k = 0; k < TOKEN_KINDS; k++) {
            const table_case c = {.tokens = (token_kind)k,
                                  .values = (value_kind)((i + k) % VALUE_KINDS),
                                  .rows = rows[i],
                                  .dim = rows[i] > 300 ? dims[(i + k) % 6] : dims[(i + 2 * k) % BK_COUNT(dims)],
                                  .vocab = 1 + (i * 7 + k * 29) % 60,
                                  .gap = (i + k) % 3 * 2,
                                  .offset = (i + k) % 4 == 0 ? 4 : 0};
            embed_backward_one(&d, &c);
        }
    for (int k = 0; k < TOKEN_KINDS; k++) {
        const table_case c = {.tokens = (token_kind)k,
                              .values = VALUES_CANCELLING,
                              .rows = bk_size(run, 100, 600, 8192),
                              .dim = bk_size(run, 20, 300, 2560),
                              .vocab = bk_size(run, 50, 500, 9000)};
        embed_backward_one(&d, &c);
    }
    sides_close(&d);
}

static void embed_backward_faults(bk_run *run) {
    static const struct {
        int64_t row;
        int32_t token;
    } bad[] = {{0, -2}, {1998, 50}, {1024, INT32_MIN}, {5, -1}};
    enum { ROWS = 2000, DIM = 8, VOCAB = 50 };
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(bad); i++) {
        static int32_t tokens[ROWS];
        float *values = values_make(LS_F32, VOCAB * DIM, VALUES_PLAIN, 5);
        char row[32], token[40];
        const char *const words[] = {"embed_backward", row, token, "is not in 0..49"};
        snprintf(row, sizeof row, "row %lld: ", (long long)bad[i].row);
        snprintf(token, sizeof token, "token %d ", bad[i].token);
        memset(tokens, 0, sizeof tokens);
        tokens[ROWS - 1] = INT32_MAX;
        tokens[bad[i].row] = bad[i].token;
        const sides_buffer dy = values_put(&d, "dy", LS_F32, ROWS * DIM, VALUES_PLAIN, 1, 0),
                           wrong = sides_in(&d, "tokens", tokens, sizeof tokens),
                           dtable = sides_in(&d, "dtable", values, VOCAB * DIM * 4);
        /* The padding token's number does not excuse one that is no token. */
        SIDES_REFUSED(&d, "a bad token", words, embed_backward, .tokens = wrong.at[s], .dy = dy.at[s], .dy_stride = DIM,
                      .dtable = dtable.at[s], .vocab = VOCAB, .dim = DIM, .rows = ROWS, .pad = -1);
        values_are(&d, &dtable, values, "after a fault");
        SIDES_CALL(&d, embed_backward, .tokens = (const int32_t *)wrong.at[s] + 10, .dy = dy.at[s], .dy_stride = DIM,
                   .dtable = dtable.at[s], .vocab = VOCAB, .dim = DIM, .rows = 1000, .pad = -1);
        sides_same(&d, &dtable, 4, "after a fault");
        free(values);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

/* ---- rmsnorm_backward ---- */

typedef struct norm_case {
    ls_dtype from;
    int64_t rows, dim, x_gap, dy_gap, dx_gap, offset; /* in elements */
    value_kind kind;
    float eps;
    bool add, dw;
} norm_case;

static void rmsnorm_backward_one(sides *d, const norm_case *c) {
    const int64_t x_stride = c->dim + c->x_gap, dy_stride = c->dim + c->dy_gap, dx_stride = c->dim + c->dx_gap;
    const int64_t elem = ls_dtype_bytes(c->from);
    const sides_buffer x = values_put(d, "x", c->from, c->rows * x_stride, c->kind, (uint64_t)c->dim, c->offset * elem),
                       w = values_put(d, "w", LS_F32, c->dim, VALUES_PLAIN, 2, 0),
                       dy = values_put(d, "dy", LS_F32, c->rows * dy_stride, c->kind, 3, c->offset * 4),
                       dx = values_put(d, "dx", LS_F32, c->rows * dx_stride, c->kind, 4, c->offset * 4),
                       dw = values_put(d, "dw", LS_F32, c->dim, c->kind, 5, 0),
                       scale = sides_out(d, "scale", c->rows * 4);
    char what[160];
    snprintf(what, sizeof what, "%s %s, %lld x %lld, gaps %lld %lld %lld, offset %lld%s%s", value_names[c->kind],
             ls_dtype_name(c->from), (long long)c->rows, (long long)c->dim, (long long)c->x_gap, (long long)c->dy_gap,
             (long long)c->dx_gap, (long long)c->offset, c->add ? ", add" : "", c->dw ? "" : ", no dw");
    SIDES_CALL(d, rmsnorm_backward, .x = x.at[s], .x_dtype = c->from, .x_stride = x_stride, .w = w.at[s], .eps = c->eps,
               .dy = dy.at[s], .dy_stride = dy_stride, .dx = dx.at[s], .dx_stride = dx_stride, .add = c->add,
               .dw = c->dw ? dw.at[s] : NULL, .scale = scale.at[s], .rows = c->rows, .dim = c->dim);
    values_same(d, &dx, LS_F32, "%s", what);
    values_same(d, &dw, LS_F32, "%s", what);
    values_same(d, &scale, LS_F32, "%s", what);
    sides_clear_to(d, 0);
}

/* Three norms side by side, as those of dt, B and C are. */
static void rmsnorm_parts_backward_one(sides *d, int64_t rows, const int64_t dims[3], value_kind kind) {
    const int64_t all = dims[0] + dims[1] + dims[2];
    const sides_buffer x = values_put(d, "x", LS_F32, rows * all, kind, (uint64_t)all, 0),
                       w = values_put(d, "w", LS_F32, all, VALUES_PLAIN, 2, 0),
                       dy = values_put(d, "dy", LS_F32, rows * all, kind, 3, 0),
                       dx = values_put(d, "dx", LS_F32, rows * all, kind, 4, 0),
                       dw = values_put(d, "dw", LS_F32, all, kind, 5, 0), scale = sides_out(d, "scale", rows * 3 * 4);
    ls_rmsnorm_parts_backward_args args[2];
    for (int s = 0; s < 2; s++) {
        int64_t at = 0;
        args[s].n = 3;
        for (int64_t i = 0; i < 3; at += dims[i++])
            args[s].part[i] = (ls_rmsnorm_backward_args){.x = (const float *)x.at[s] + at,
                                                         .x_dtype = LS_F32,
                                                         .x_stride = all,
                                                         .w = (const float *)w.at[s] + at,
                                                         .eps = 1e-6f,
                                                         .dy = (const float *)dy.at[s] + at,
                                                         .dy_stride = all,
                                                         .dx = (float *)dx.at[s] + at,
                                                         .dx_stride = all,
                                                         .dw = (float *)dw.at[s] + at,
                                                         .scale = (float *)scale.at[s] + i * rows,
                                                         .rows = rows,
                                                         .dim = dims[i]};
        if (ls_rmsnorm_parts_backward(d->device[s], &args[s], &d->run->err) != LS_OK) bk_die(d->run, "parts");
    }
    values_same(d, &dx, LS_F32, "parts, %lld x %lld, dx", (long long)rows, (long long)all);
    values_same(d, &dw, LS_F32, "parts, %lld x %lld, dw", (long long)rows, (long long)all);
    values_same(d, &scale, LS_F32, "parts, %lld x %lld, scale", (long long)rows, (long long)all);
    sides_clear_to(d, 0);
}

static void rmsnorm_parts_backward(bk_run *run) {
    static const int64_t dims[][3] = {{160, 16, 16}, {1, 3, 17}, {1024, 16, 5}, {16, 1025, 8}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims); i++)
        for (int kind = 0; kind < VALUE_KINDS; kind++)
            rmsnorm_parts_backward_one(&d, 1 + 300 * (i % 2), dims[i], (value_kind)kind);
    rmsnorm_parts_backward_one(&d, 0, dims[0], VALUES_PLAIN);
    rmsnorm_parts_backward_one(&d, bk_size(run, 40, 2051, 8192), dims[0], VALUES_PLAIN);
    sides_close(&d);
}

static void rmsnorm_backward(bk_run *run) {
    static const int64_t dims[] = {1,   2,   3,    4,    5,    8,    16,   31,   33,   160,  255,  256,
                                   257, 511, 1000, 1024, 1025, 1028, 2560, 3333, 4096, 4097, 10004};
    static const int64_t rows[] = {1, 2, 15, 16, 129, 128, 33};
    static const float eps[] = {1e-6f, 0.0f, 1e-5f};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims); i++)
        for (int64_t k = 0; k < 2 * VALUE_KINDS; k++) {
            const norm_case c = {.from = k % 2 == 0 ? LS_F32 : LS_BF16,
                                 .rows = rows[(i + k) % (dims[i] < 3000 ? BK_COUNT(rows) : 2)],
                                 .dim = dims[i],
                                 .x_gap = (i + k) % 3 * 4,
                                 .dy_gap = (i + k) % 2 * 8,
                                 .dx_gap = (i + k) % 5 == 0 ? 3 : 0,
                                 .offset = (i + k) % 4 == 0 ? 1 : 0,
                                 .kind = (value_kind)(k / 2),
                                 .eps = eps[(i + k) % 3],
                                 .add = (i + k / 2) % 2 == 0,
                                 .dw = (i + k) % 7 != 0};
            rmsnorm_backward_one(&d, &c);
        }
    rmsnorm_backward_one(&d, &(norm_case){.from = LS_F32, .dim = 64, .eps = 1e-6f, .dw = true});
    rmsnorm_backward_one(
        &d,
        &(norm_case){
            .from = LS_F32, .rows = bk_size(run, 10, 1000, 8192), .dim = 2560, .eps = 1e-6f, .add = true, .dw = true});
    /* More rows than the ring of a GPU holds at a time, and columns that are no whole box. */
    for (int kind = 0; kind < VALUE_KINDS; kind++)
        rmsnorm_backward_one(&d, &(norm_case){.from = LS_F32,
                                              .rows = bk_size(run, 20, 2100 + kind, 5000),
                                              .dim = 1028 + 8 * kind,
                                              .x_gap = 4,
                                              .dy_gap = 8,
                                              .dx_gap = 12,
                                              .kind = (value_kind)kind,
                                              .eps = 1e-6f,
                                              .add = kind % 2 == 0,
                                              .dw = true});
    /* Heads: rows that share a block, and few columns with many rows. */
    for (int64_t dim = 128; dim <= 256; dim += 64)
        rmsnorm_backward_one(&d, &(norm_case){.from = LS_F32,
                                              .rows = bk_size(run, 70, 2051, 65543),
                                              .dim = dim,
                                              .dy_gap = dim - 128,
                                              .kind = VALUES_WIDE,
                                              .eps = 1e-6f,
                                              .add = dim == 128,
                                              .dw = true});
    rmsnorm_backward_one(&d, &(norm_case){.from = LS_BF16,
                                          .rows = bk_size(run, 50, 1000, 20011),
                                          .dim = 160,
                                          .x_gap = 32,
                                          .kind = VALUES_CANCELLING,
                                          .eps = 1e-6f,
                                          .dw = true});
    sides_close(&d);
}

/* dw of one call is that of two which follow one another. */
static void rmsnorm_backward_continues(bk_run *run) {
    enum { ROWS = 77, DIM = 300, CUT = 29 };
    static const int64_t cuts[][2] = {{0, ROWS}, {0, CUT}, {CUT, ROWS}};
    sides d = sides_open(run);
    const sides_buffer x = values_put(&d, "x", LS_F32, ROWS * DIM, VALUES_PLAIN, 1, 0),
                       w = values_put(&d, "w", LS_F32, DIM, VALUES_PLAIN, 2, 0),
                       dy = values_put(&d, "dy", LS_F32, ROWS * DIM, VALUES_CANCELLING, 3, 0),
                       dx = sides_out(&d, "dx", ROWS * DIM * 4), scale = sides_out(&d, "scale", ROWS * 4),
                       whole = values_put(&d, "dw", LS_F32, DIM, VALUES_PLAIN, 4, 0),
                       pieces = values_put(&d, "dw", LS_F32, DIM, VALUES_PLAIN, 4, 0);
    for (int64_t i = 0; i < BK_COUNT(cuts); i++)
        SIDES_CALL(&d, rmsnorm_backward, .x = (const float *)x.at[s] + cuts[i][0] * DIM, .x_dtype = LS_F32,
                   .x_stride = DIM, .w = w.at[s], .eps = 1e-6f, .dy = (const float *)dy.at[s] + cuts[i][0] * DIM,
                   .dy_stride = DIM, .dx = (float *)dx.at[s] + cuts[i][0] * DIM, .dx_stride = DIM, .add = false,
                   .dw = i == 0 ? whole.at[s] : pieces.at[s], .scale = (float *)scale.at[s] + cuts[i][0],
                   .rows = cuts[i][1] - cuts[i][0], .dim = DIM);
    sides_same(&d, &whole, 4, "one call");
    sides_same(&d, &pieces, 4, "two calls");
    for (int s = 0; s < 2; s++) {
        uint8_t *a = sides_take(&d, &whole, s), *b = sides_take(&d, &pieces, s);
        bk_same(run, a + BK_GUARD, b + BK_GUARD, DIM, 4, "one call and two, side %d", s);
        free(a);
        free(b);
    }
    sides_close(&d);
}

/* ---- adamw and squares ---- */

/* `first`: number of the first element, of which moments in bf16 are rounded; -1: they are float32. */
static void adamw_one(sides *d, int64_t n, value_kind kind, int64_t step, double decay, int64_t offset, int64_t first) {
    const ls_dtype moments = first < 0 ? LS_F32 : LS_BF16;
    static const char *const names[] = {"w", "m", "v"};
    const ls_adamw_options options = {1e-3, 0.9, 0.95, 1e-8, decay};
    const sides_buffer w = values_put(d, "w", LS_F32, n, kind, 1, offset),
                       m = values_put(d, "m", moments, n, kind == VALUES_SPECIAL && first < 0 ? VALUES_PLAIN : kind, 2,
                                      0),
                       grad = values_put(d, "grad", LS_F32, n, kind, 4, offset);
    const ls_dtype dtype = n % 3 == 0 ? LS_F32 : n % 3 == 1 ? LS_BF16 : LS_F16;
    const sides_buffer value = values_put(d, "value", dtype, n, VALUES_PLAIN, 5, offset);
    ls_adamw_factors factors;
    void *squares = values_make(moments, n, kind == VALUES_SPECIAL ? VALUES_PLAIN : kind, 3);
    sides_buffer v;
    for (int64_t i = 0; i < n; i++) /* the sign's byte */
        ((uint8_t *)squares)[(i + 1) * ls_dtype_bytes(moments) - 1] &= 0x7F;
    v = sides_put(d, "v", squares, n * ls_dtype_bytes(moments), 2 * offset % 16);
    free(squares);
    if (ls_adamw_factors_make(&factors, &options, step, &d->run->err) != LS_OK) bk_die(d->run, "factors");
    for (int64_t call = 0; call < 2; call++)
        SIDES_CALL(d, adamw, .w = w.at[s], .m = m.at[s], .v = v.at[s], .moments = moments,
                   .rounding = {(uint64_t)n << 30, step + call, first}, .grad = grad.at[s],
                   .scale = call == 0 ? 0.37f : 1.0f, .factors = factors, .n = n,
                   .value = call == 0 ? NULL : value.at[s], .value_dtype = dtype);
    for (int i = 0; i < 3; i++)
        values_same(d,
                    i == 0   ? &w
                    : i == 1 ? &m
                             : &v,
                    i == 0 ? LS_F32 : moments, "%s of %lld, %s, step %lld, offset %lld, first %lld", names[i],
                    (long long)n, value_names[kind], (long long)step, (long long)offset, (long long)first);
    values_same(d, &value, dtype, "value of %lld, %s, step %lld, offset %lld", (long long)n, value_names[kind],
                (long long)step, (long long)offset);
    sides_clear_to(d, 0);
}

static void adamw(bk_run *run) {
    static const int64_t steps[] = {1, 2, 1000, 1000000}, late = INT64_C(1) << 40;
    static const int64_t firsts[] = {-1, 0, 3, 4096, (INT64_C(1) << 34) - 8, (INT64_C(1) << 34) - 7};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(sizes); i++)
        for (int kind = 0; kind < VALUE_KINDS; kind++)
            for (int64_t f = 0; f < BK_COUNT(firsts); f++)
                adamw_one(&d, sizes[i], (value_kind)kind, steps[(i + kind) % 4] + (f == 3 ? late : 0),
                          (i + kind) % 2 == 0 ? 0.1 : 0.0, (i + kind) % 3 == 0 ? 4 : 0, firsts[f]);
    for (int64_t first = -1; first <= 1; first++) {
        adamw_one(&d, 0, VALUES_PLAIN, 1, 0.0, 0, first);
        adamw_one(&d, bk_size(run, 5000, 300001, 20000001), VALUES_WIDE, 7, 0.01, 0, first);
    }
    sides_close(&d);
}

/* Tensors that follow one another, values of every type at any address, or none. */
static void adamw_parts_one(sides *d, ls_dtype moments, int64_t offset) {
    enum { PARTS = 9, N = 200003 };
    static const int64_t begins[PARTS] = {0, 1, 2, 5, 8, 1032, 1033, 1036, 199999};
    const ls_adamw_options options = {1e-3, 0.9, 0.95, 1e-8, 0.1};
    const sides_buffer w = values_put(d, "w", LS_F32, N, VALUES_WIDE, 1, offset),
                       m = values_put(d, "m", moments, N, VALUES_WIDE, 2, 0),
                       grad = values_put(d, "grad", LS_F32, N, VALUES_WIDE, 4, offset),
                       value = sides_put(d, "value", NULL, (N + 1) * 4, 0),
                       table = sides_put(d, "parts", NULL, PARTS * (int64_t)sizeof(ls_adamw_part), 0);
    const sides_buffer v = sides_put(d, "v", NULL, N * ls_dtype_bytes(moments), 0);
    ls_adamw_factors factors;
    for (int s = 0; s < 2; s++) {
        ls_adamw_part parts[PARTS];
        for (int64_t i = 0; i < PARTS; i++) /* type and address are of no alignment but the element's */
            parts[i] =
                (ls_adamw_part){begins[i], i % 4 == 3 ? NULL : (uint8_t *)value.at[s] + begins[i] * 4 + i % 3 % 2 * 2,
                                (ls_dtype)(i % 3), i % 2 == 0};
        if (ls_memory_fill(d->device[s], v.at[s], 0, v.bytes, &d->run->err) != LS_OK ||
            ls_memory_write(d->device[s], table.at[s], parts, sizeof parts, &d->run->err) != LS_OK)
            bk_die(d->run, "parts");
    }
    if (ls_adamw_factors_make(&factors, &options, 3, &d->run->err) != LS_OK) bk_die(d->run, "factors");
    SIDES_CALL(d, adamw, .w = w.at[s], .m = m.at[s], .v = v.at[s], .moments = moments, .rounding = {9, 3, 1001},
               .grad = grad.at[s], .scale = 0.37f, .factors = factors, .n = N, .parts = table.at[s], .n_parts = PARTS);
    values_same(d, &w, LS_F32, "w of parts, offset %lld", (long long)offset);
    values_same(d, &m, moments, "m of parts, offset %lld", (long long)offset);
    values_same(d, &v, moments, "v of parts, offset %lld", (long long)offset);
    sides_same(d, &value, 1, "values of parts");
    sides_clear_to(d, 0);
}

static void adamw_parts(bk_run *run) {
    sides d = sides_open(run);
    for (int64_t offset = 0; offset <= 4; offset += 4) {
        adamw_parts_one(&d, LS_F32, offset);
        adamw_parts_one(&d, LS_BF16, offset);
    }
    sides_close(&d);
}

static void squares_one(sides *d, int64_t n, value_kind kind, int64_t offset) {
    const int64_t blocks = n / LS_SQUARES_BLOCK + (n % LS_SQUARES_BLOCK != 0);
    const sides_buffer x = values_put(d, "x", LS_F32, n, kind, (uint64_t)n, offset),
                       sums = sides_put(d, "blocks", NULL, blocks * 4, offset);
    for (int repeat = 0; repeat < 2; repeat++) {
        SIDES_CALL(d, squares, .x = x.at[s], .n = n, .blocks = sums.at[s]);
        values_same(d, &sums, LS_F32, "%lld %s, offset %lld", (long long)n, value_names[kind], (long long)offset);
    }
    sides_clear_to(d, 0);
}

/* Blocks of three tensors that lie in one array, out of order and not side by side. */
static void squares_of_ranges(sides *d) {
    static const ls_squares_range ranges[] = {{70001, 65536}, {135537, 1},   {0, 257},
                                              {261, 4096},    {4360, 65533}, {9, 0}};
    const int64_t n = 135538, n_ranges = BK_COUNT(ranges);
    const sides_buffer x = values_put(d, "x", LS_F32, n, VALUES_WIDE, 3, 0),
                       of = sides_in(d, "ranges", ranges, sizeof ranges), sums = sides_out(d, "blocks", n_ranges * 4);
    SIDES_CALL(d, squares, .x = x.at[s], .n = n, .blocks = sums.at[s], .ranges = of.at[s], .n_ranges = n_ranges);
    values_same(d, &sums, LS_F32, "ranges");
    sides_clear_to(d, 0);
}

static void squares(bk_run *run) {
    static const int64_t around[] = {65535, 65536, 65537, 65536 + 255, 131072, 200003};
    sides d = sides_open(run);
    for (int kind = 0; kind < VALUE_KINDS; kind++) {
        for (int64_t i = 0; i < BK_COUNT(sizes); i++)
            squares_one(&d, sizes[i], (value_kind)kind, (i + kind) % 3 == 0 ? 4 : 0);
        for (int64_t i = 0; i < BK_COUNT(around); i++)
            squares_one(&d, around[i], (value_kind)kind, (i + kind) % 3 == 0 ? 4 : 0);
    }
    squares_one(&d, 0, VALUES_PLAIN, 0);
    squares_of_ranges(&d);
    squares_one(&d, bk_size(run, 100001, 1000003, 50000003), VALUES_PLAIN, 0);
    sides_close(&d);
}

/* ---- adapters ---- */

static void adapters_one(sides *d, int64_t n, int64_t k, int64_t rank, ls_dtype dtype, int64_t offset) {
    const sides_buffer w0 = values_put(d, "w0", dtype, n * k, VALUES_PLAIN, 1, 0),
                       a = values_put(d, "a", LS_F32, rank * k, VALUES_PLAIN, 2, offset),
                       b = values_put(d, "b", LS_F32, n * rank, VALUES_PLAIN, 3, 0),
                       dw = values_put(d, "dw", LS_F32, n * k, VALUES_PLAIN, 4, offset),
                       out = sides_put(d, "out", NULL, n * k * ls_dtype_bytes(dtype), 0),
                       da = sides_put(d, "da", NULL, rank * k * 4, 0),
                       db = sides_put(d, "db", NULL, n * rank * 4, offset);
    const char *const what = "%lld x %lld of rank %lld";
    SIDES_CALL(d, lora_merge, .w0 = w0.at[s], .a = a.at[s], .b = b.at[s], .out = out.at[s], .dtype = dtype, .n = n,
               .k = k, .rank = rank, .scale = 0.3f);
    values_same(d, &out, dtype, what, (long long)n, (long long)k, (long long)rank);
    SIDES_CALL(d, lora_backward, .dw = dw.at[s], .a = a.at[s], .b = b.at[s], .da = da.at[s], .db = db.at[s], .n = n,
               .k = k, .rank = rank, .scale = 0.3f);
    values_same(d, &da, LS_F32, what, (long long)n, (long long)k, (long long)rank);
    values_same(d, &db, LS_F32, what, (long long)n, (long long)k, (long long)rank);
    sides_clear_to(d, 0);
}

static void adapters(bk_run *run) {
    static const int64_t ranks[] = {1, 2, 7, 8, 9, 16, 64};
    static const ls_dtype dtypes[] = {LS_F32, LS_BF16, LS_F16};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(ranks); i++)
        for (int64_t k = 0; k < 3; k++)
            adapters_one(&d, 1 + 13 * i,
                         k == 0   ? 1 + i
                         : k == 1 ? 64 * i + 1
                                  : 256 + 255 * (i % 3),
                         ranks[i], dtypes[(i + k) % 3], i % 2 * 4);
    sides_close(&d);
}

/* ---- logprob_backward with gradients in bf16 ---- */

static void logprob_rounded_one(sides *d, int64_t vocab, int64_t stride, bool entropy, bool scaled, value_kind kind) {
    enum { ROWS = 5 };
    const sides_buffer logits = values_put(d, "logits", LS_F32, ROWS * stride, kind, 1, 0),
                       apart = sides_out(d, "d_logits", ROWS * stride * 2), logprob = sides_out(d, "logprob", ROWS * 4),
                       lse = sides_out(d, "lse", ROWS * 4), mean = sides_out(d, "entropy", ROWS * 4),
                       from = values_put(d, "d_logprob", LS_F32, ROWS, VALUES_PLAIN, 4, 0),
                       from_entropy = values_put(d, "d_entropy", LS_F32, ROWS, VALUES_PLAIN, 5, 0);
    const int64_t ids[ROWS] = {0, vocab - 1, vocab / 2, -1, vocab / 3};
    const float heats[ROWS] = {0.7f, 1.0f, 1.3f, 1.0f, 2.0f};
    const sides_buffer targets = sides_in(d, "targets", ids, sizeof ids),
                       temperature = sides_in(d, "temperature", heats, sizeof heats);
    SIDES_CALL(d, logprob, .logits = logits.at[s], .dtype = LS_F32, .rows = ROWS, .vocab = vocab, .row_stride = stride,
               .targets = targets.at[s], .ignore_index = -1, .temperature = scaled ? temperature.at[s] : NULL,
               .logprob = logprob.at[s], .lse = lse.at[s], .entropy = mean.at[s]);
    for (int in_place = 0; in_place < 2; in_place++)
        SIDES_CALL(d, logprob_backward, .logits = logits.at[s], .dtype = LS_F32, .rows = ROWS, .vocab = vocab,
                   .row_stride = stride, .targets = targets.at[s], .ignore_index = -1,
                   .temperature = scaled ? temperature.at[s] : NULL, .lse = lse.at[s],
                   .entropy = entropy ? mean.at[s] : NULL, .d_logprob = from.at[s],
                   .d_entropy = entropy ? from_entropy.at[s] : NULL, .d_logits = in_place ? logits.at[s] : apart.at[s],
                   .d_stride = in_place ? 2 * stride : stride, .d_bf16 = true);
    values_same(d, &apart, LS_BF16, "apart, vocab %lld, stride %lld", (long long)vocab, (long long)stride);
    values_same(d, &logits, LS_BF16, "in place, vocab %lld, stride %lld", (long long)vocab, (long long)stride);
    sides_clear_to(d, 0);
}

static void logprob_rounded(bk_run *run) {
    static const int64_t vocabs[] = {1, 7, 8, 2049, 8192, 8200, 16391, 50000};
    static const value_kind kinds[] = {VALUES_PLAIN, VALUES_WIDE, VALUES_SPECIAL, VALUES_WIDE};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(vocabs); i++)
        for (int k = 0; k < 4; k++)
            logprob_rounded_one(&d, vocabs[i], vocabs[i] + (k == 3 ? 5 : k % 2 * 8), k % 2 == 1, k > 1, kinds[k]);
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {{"swiglu_backward", swiglu_backward, BK_ANYWHERE},
                                    {"swiglu_backward_rounded", swiglu_backward_rounded, BK_ANYWHERE},
                                    {"embed_backward", embed_backward, BK_ANYWHERE},
                                    {"embed_backward_faults", embed_backward_faults, BK_ANYWHERE},
                                    {"rmsnorm_backward", rmsnorm_backward, BK_ANYWHERE},
                                    {"rmsnorm_parts_backward", rmsnorm_parts_backward, BK_ANYWHERE},
                                    {"rmsnorm_backward_continues", rmsnorm_backward_continues, BK_ANYWHERE},
                                    {"adamw", adamw, BK_ANYWHERE},
                                    {"adamw_parts", adamw_parts, BK_ANYWHERE},
                                    {"logprob_rounded", logprob_rounded, BK_ANYWHERE},
                                    {"adapters", adapters, BK_ANYWHERE},
                                    {"squares", squares, BK_ANYWHERE}};
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
