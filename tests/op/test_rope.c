/* Bias, norm of heads, rotation and their gradients against a textbook reading of op/rope.h, bit for bit: shapes,
 * parts, strides, types, instruction sets, threads, special values, rows split over calls; gradients against central
 * differences in float64; variants that must be caught; bad arguments. */
#include "num/sincosf.h"
#include "op/op_case.h"
#include "op/rope.h"

enum { PARTS = 3 };

typedef struct shape {
    int64_t dim, half, heads[PARTS], n_parts;
    bool bias, norm; /* of all parts but the last, which has no norm and does not rotate */
} shape;

static const shape shapes[] = {
    {2, 1, {1}, 1, false, true},          {16, 8, {4, 2, 2}, 3, false, false}, {16, 8, {4, 2, 2}, 3, true, false},
    {64, 32, {3, 1, 1}, 3, false, true},  {128, 64, {4, 1, 1}, 3, true, true}, {10, 5, {3, 1, 1}, 3, true, true},
    {20, 6, {2, 1, 1}, 3, true, true},    {80, 40, {2, 2}, 2, false, true},    {256, 128, {2, 1, 1}, 3, false, true},
    {512, 256, {1, 1, 1}, 3, true, true}, {300, 31, {1, 1}, 2, true, true},    {7, 0, {2, 3}, 2, true, true},
};

/* Wrong on purpose: rounded between norm and rotation, the pair's products summed the other way, neighbours rotate in
 * place of halves, bias behind the norm. */
typedef enum variant { RIGHT, ROUNDED_BETWEEN, OTHER_FUSION, INTERLEAVED, BIAS_AFTER } variant;

typedef struct problem {
    shape s;
    int64_t rows, heads;
    ls_dtype dtype; /* of y and dx */
    op_array x, y, dy, dx, table, scale, bias[PARTS], norm[PARTS], dnorm[PARTS];
    ls_rope_part part[PARTS];
} problem;

static int64_t columns_of(const problem *p) { return p->heads * p->s.dim; }

static bool has_norm(const shape *s, int64_t part) { return s->norm && (part + 1 < s->n_parts || s->n_parts < 3); }

static problem problem_make(const shape *s, int64_t rows, ls_dtype dtype, op_maker make, uint64_t seed) {
    problem p = {.s = *s, .rows = rows, .dtype = dtype};
    for (int64_t i = 0; i < s->n_parts; i++) p.heads += s->heads[i];
    p.x = op_array_make(LS_F32, rows, columns_of(&p), (int64_t)(seed % 3));
    p.dy = op_array_make(LS_F32, rows, columns_of(&p), (int64_t)(seed % 2) * 5);
    p.y = op_array_make(dtype, rows, columns_of(&p), (int64_t)(seed % 4));
    p.dx = op_array_make(dtype, rows, columns_of(&p), (int64_t)(seed % 5));
    p.table = op_array_make(LS_F32, rows, 2 * s->half, 0);
    p.scale = op_array_make(LS_F32, rows, p.heads, 0);
    for (int64_t r = 0; r < rows; r++) {
        op_fill_row(&p.x, r, r % 3 == 1 ? op_plain : make, &seed);
        op_fill_row(&p.dy, r, r % 3 == 1 ? op_plain : make, &seed);
    }
    op_fill(&p.table, op_plain, &seed);
    op_guard(&p.scale);
    for (int64_t i = 0; i < s->n_parts; i++) {
        p.bias[i] = op_array_make(LS_F32, 1, s->heads[i] * s->dim, 0);
        p.norm[i] = op_array_make(LS_F32, 1, s->dim, 0);
        p.dnorm[i] = op_array_make(LS_F32, s->heads[i], s->dim, 0);
        op_fill(&p.bias[i], op_plain, &seed);
        op_fill(&p.norm[i], op_plain, &seed);
        op_fill(&p.dnorm[i], op_plain, &seed);
        p.part[i] = (ls_rope_part){.n_heads = s->heads[i],
                                   .bias = s->bias ? op_floats(&p.bias[i]) : NULL,
                                   .norm = has_norm(s, i) ? op_floats(&p.norm[i]) : NULL,
                                   .rotates = s->half > 0 && (i + 1 < s->n_parts || s->n_parts < 3),
                                   .dnorm = has_norm(s, i) ? op_floats(&p.dnorm[i]) : NULL};
    }
    return p;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->x, &p->dy, &p->y, &p->dx, &p->table, &p->scale};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
    for (int64_t i = 0; i < p->s.n_parts; i++) {
        op_array_free(&p->bias[i]);
        op_array_free(&p->norm[i]);
        op_array_free(&p->dnorm[i]);
    }
}

/* ---- the contract, read a head at a time ---- */

static float dot_ref(const float *a, const float *b, int64_t dim) {
    float chain[256] = {0};
    for (int64_t c = 0; c < dim; c++) chain[c % 256] = ls_fma(a[c], b[c], chain[c % 256]);
    return op_fold(chain);
}

static float scale_ref(const float *b, int64_t dim) {
    return ls_div(1.0f, ls_sqrt(ls_add(ls_div(dot_ref(b, b, dim), (float)dim), 1e-6f)));
}

static void b_ref(const problem *p, float *b, int64_t row, int64_t part, int64_t head, int64_t column) {
    for (int64_t c = 0; c < p->s.dim; c++) {
        b[c] = op_get(&p->x, row, column + c);
        if (p->part[part].bias != NULL) b[c] = ls_add(b[c], op_get(&p->bias[part], 0, head * p->s.dim + c));
    }
}

static void head_ref(const problem *p, const op_array *y, int64_t row, int64_t part, int64_t head, int64_t column,
                     variant v) {
    const int64_t dim = p->s.dim, half = p->s.half;
    const ls_rope_part *q = &p->part[part];
    float n[LS_HEAD_DIM_MAX];
    b_ref(p, n, row, part, head, column);
    if (v == BIAS_AFTER)
        for (int64_t c = 0; c < dim; c++) n[c] = op_get(&p->x, row, column + c);
    if (q->norm != NULL) {
        const float s = scale_ref(n, dim);
        for (int64_t c = 0; c < dim; c++) n[c] = ls_mul(ls_mul(n[c], s), op_get(&p->norm[part], 0, c));
    }
    for (int64_t c = 0; c < dim && v == BIAS_AFTER && q->bias != NULL; c++)
        n[c] = ls_add(n[c], op_get(&p->bias[part], 0, head * dim + c));
    for (int64_t c = 0; c < dim && v == ROUNDED_BETWEEN; c++) n[c] = op_round(n[c], LS_BF16);
    for (int64_t c = 0; c < dim; c++) op_put(y, row, column + c, n[c]);
    for (int64_t j = 0; j < half && q->rotates; j++) {
        const int64_t low = v == INTERLEAVED ? 2 * j : j, high = v == INTERLEAVED ? 2 * j + 1 : j + half;
        const float a = n[low], b = n[high], c = op_get(&p->table, row, j), s = op_get(&p->table, row, half + j);
        op_put(y, row, column + low, v == OTHER_FUSION ? ls_fma(-b, s, ls_mul(a, c)) : ls_fma(a, c, -ls_mul(b, s)));
        op_put(y, row, column + high, ls_fma(b, c, ls_mul(a, s)));
    }
}

static void head_backward_ref(const problem *p, const op_array *dx, const op_array *scale, const op_array *dnorm,
                              int64_t row, int64_t part, int64_t head, int64_t column) {
    const int64_t dim = p->s.dim, half = p->s.half;
    const ls_rope_part *q = &p->part[part];
    float g[LS_HEAD_DIM_MAX], n[LS_HEAD_DIM_MAX], gw[LS_HEAD_DIM_MAX], s, u;
    for (int64_t c = 0; c < dim; c++) g[c] = op_get(&p->dy, row, column + c);
    for (int64_t j = 0; j < half && q->rotates; j++) {
        const float a = g[j], b = g[j + half], c = op_get(&p->table, row, j), t = op_get(&p->table, row, half + j);
        g[j] = ls_fma(a, c, ls_mul(b, t));
        g[j + half] = ls_fma(b, c, -ls_mul(a, t));
    }
    for (int64_t c = 0; c < dim; c++) op_put(dx, row, column + c, g[c]);
    if (q->norm == NULL) return;
    b_ref(p, n, row, part, head, column);
    s = scale_ref(n, dim);
    for (int64_t c = 0; c < dim; c++) {
        n[c] = ls_mul(n[c], s);
        gw[c] = ls_mul(g[c], op_get(&p->norm[part], 0, c));
    }
    u = ls_div(dot_ref(gw, n, dim), (float)dim);
    for (int64_t c = 0; c < dim; c++) op_put(dx, row, column + c, ls_mul(s, ls_fma(-n[c], u, gw[c])));
    op_put(scale, row, column / dim, s);
    for (int64_t c = 0; c < dim; c++) op_put(&dnorm[part], head, c, ls_fma(g[c], n[c], op_get(&dnorm[part], head, c)));
}

/* Calls the reading for every head of every row. */
static void rope_ref(const problem *p, const op_array *y, variant v) {
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t part = 0, column = 0; part < p->s.n_parts; part++)
            for (int64_t head = 0; head < p->s.heads[part]; head++, column += p->s.dim)
                head_ref(p, y, row, part, head, column, v);
}

static void rope_backward_ref(const problem *p, const op_array *dx, const op_array *scale, const op_array *dnorm) {
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t part = 0, column = 0; part < p->s.n_parts; part++)
            for (int64_t head = 0; head < p->s.heads[part]; head++, column += p->s.dim)
                head_backward_ref(p, dx, scale, dnorm, row, part, head, column);
}

static ls_rope_args forward_args(const problem *p, int64_t begin, int64_t end) {
    ls_rope_args a = {.x = op_at(&p->x, begin, 0),
                      .x_stride = p->x.stride,
                      .y = op_at(&p->y, begin, 0),
                      .y_dtype = p->dtype,
                      .y_stride = p->y.stride,
                      .table = p->s.half > 0 ? op_at(&p->table, begin, 0) : NULL,
                      .half = p->s.half,
                      .eps = 1e-6f,
                      .rows = end - begin,
                      .head_dim = p->s.dim,
                      .n_parts = p->s.n_parts};
    memcpy(a.part, p->part, sizeof a.part);
    return a;
}

static ls_rope_backward_args backward_args(const problem *p, int64_t begin, int64_t end) {
    ls_rope_backward_args a = {.x = op_at(&p->x, begin, 0),
                               .x_stride = p->x.stride,
                               .dy = op_at(&p->dy, begin, 0),
                               .dy_stride = p->dy.stride,
                               .dx = op_at(&p->dx, begin, 0),
                               .dx_dtype = p->dtype,
                               .dx_stride = p->dx.stride,
                               .table = p->s.half > 0 ? op_at(&p->table, begin, 0) : NULL,
                               .half = p->s.half,
                               .eps = 1e-6f,
                               .rows = end - begin,
                               .head_dim = p->s.dim,
                               .n_parts = p->s.n_parts,
                               .scale = op_at(&p->scale, begin, 0)};
    memcpy(a.part, p->part, sizeof a.part);
    return a;
}

/* ---- forward ---- */

static void heads_are_normed_and_rotated(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < 4 * OP_COUNT(shapes); i++) {
        const int64_t rows = i % 3 == 0 ? 1 : 13;
        problem p = problem_make(&shapes[i / 4], rows, i % 2 == 0 ? LS_F32 : LS_BF16,
                                 i / 2 % 2 == 0 ? op_plain : op_special, (uint64_t)i + 3);
        op_array expected = op_copy(&p.y);
        op_guard(&expected);
        rope_ref(&p, &expected, RIGHT);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            ls_error err;
            op_guard(&p.y);
            for (int64_t row = 0, n; row < rows; row += n) { /* rows in pieces: a row is its own */
                const ls_rope_args a = forward_args(&p, row, row + (n = t == 0 || rows - row < 4 ? rows - row : 4));
                assert_ok(ls_rope(op_devices[isa][t], &a, &err), err);
            }
            op_check(&expected, &p.y, OP_NAN_ANY, "shape %lld, %s, threads %d", (long long)i / 4,
                     ls_dtype_name(p.dtype), t + 1);
        }
        op_array_free(&expected);
        problem_free(&p);
    }
}

static void variants_are_caught(void **state) {
    (void)state;
    for (variant v = ROUNDED_BETWEEN; v <= BIAS_AFTER; v++) {
        problem p = problem_make(&shapes[4], 9, LS_F32, op_plain, 7);
        op_array right = op_copy(&p.y), wrong = op_copy(&p.y);
        char text[160];
        rope_ref(&p, &right, RIGHT);
        rope_ref(&p, &wrong, v);
        assert_true(op_diffs(&right, &wrong, OP_NAN_ANY, text) > 0);
        op_array_free(&right);
        op_array_free(&wrong);
        problem_free(&p);
    }
}

/* ---- table ---- */

static void tables_hold_positions(void **state) {
    const ls_isa isa = op_isa(state);
    enum { HALF = 5, ROWS = 40 };
    const float inv_freq[HALF] = {1.0f, 0.5f, 0.1f, 0.003f, 1e-5f};
    const ls_span spans[] = {{30, 6, 131066, -1, 0}, {0, 7, 0, 0, 0}, {9, 20, 5, 1, 0}, {37, 1, 1 << 24, 2, 0}};
    op_array expected = op_array_make(LS_F32, ROWS, 2 * HALF, 0), table = op_array_make(LS_F32, ROWS, 2 * HALF, 0);
    op_guard(&expected);
    for (int64_t i = 0; i < OP_COUNT(spans); i++)
        for (int64_t r = 0; r < spans[i].n_rows; r++)
            for (int64_t j = 0; j < HALF; j++) {
                float s, c;
                const int64_t pos = spans[i].pos + r;
                ls_sincosf((float)pos * inv_freq[j], &s, &c);
                if (pos >= 1 << 24) s = c = NAN;
                op_put(&expected, spans[i].row + r, j, ls_mul(c, 1.25f));
                op_put(&expected, spans[i].row + r, HALF + j, ls_mul(s, 1.25f));
            }
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        const ls_rope_table_args a = {inv_freq,        HALF,         1.25f, op_floats(&table), spans,
                                      OP_COUNT(spans), 20 * (t % 2), ROWS};
        ls_error err;
        op_guard(&table);
        assert_ok(ls_rope_table(op_devices[isa][t], &a, &err), err);
        op_check(&expected, &table, OP_NAN_ANY, "table, threads %d", t + 1);
    }
    op_array_free(&expected);
    op_array_free(&table);
}

/* ---- backward ---- */

static void gradients_are_the_contract(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < 4 * OP_COUNT(shapes); i++) {
        const int64_t rows = i % 3 == 0 ? 1 : 13;
        problem p = problem_make(&shapes[i / 4], rows, i % 2 == 0 ? LS_F32 : LS_BF16,
                                 i / 2 % 2 == 0 ? op_plain : op_special, (uint64_t)i + 3);
        op_array dx = op_copy(&p.dx), scale = op_copy(&p.scale), start[PARTS], dnorm[PARTS];
        op_guard(&dx);
        op_guard(&scale);
        for (int64_t k = 0; k < p.s.n_parts; k++) {
            start[k] = op_copy(&p.dnorm[k]);
            dnorm[k] = op_copy(&p.dnorm[k]);
        }
        rope_backward_ref(&p, &dx, &scale, dnorm);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            ls_error err;
            op_guard(&p.dx);
            op_guard(&p.scale);
            for (int64_t k = 0; k < p.s.n_parts; k++) memcpy(p.dnorm[k].data, start[k].data, (size_t)start[k].bytes);
            for (int64_t row = 0, n; row < rows; row += n) {
                const ls_rope_backward_args a =
                    backward_args(&p, row, row + (n = t == 0 || rows - row < 5 ? rows - row : 5));
                assert_ok(ls_rope_backward(op_devices[isa][t], &a, &err), err);
            }
            op_check(&dx, &p.dx, OP_NAN_ANY, "dx, shape %lld, threads %d", (long long)i / 4, t + 1);
            op_check(&scale, &p.scale, OP_NAN_ANY, "scale, shape %lld, threads %d", (long long)i / 4, t + 1);
            for (int64_t k = 0; k < p.s.n_parts; k++)
                op_check(&dnorm[k], &p.dnorm[k], OP_NAN_ANY, "dnorm %lld, shape %lld, threads %d", (long long)k,
                         (long long)i / 4, t + 1);
        }
        op_array_free(&dx);
        op_array_free(&scale);
        for (int64_t k = 0; k < p.s.n_parts; k++) {
            op_array_free(&start[k]);
            op_array_free(&dnorm[k]);
        }
        problem_free(&p);
    }
}

/* y . dy of one row in float64, without a rounding. */
static double objective(const problem *p, const double *x, const double *norm) {
    const int64_t dim = p->s.dim, half = p->s.half;
    double sum = 0.0;
    for (int64_t part = 0, column = 0; part < p->s.n_parts; part++)
        for (int64_t head = 0; head < p->s.heads[part]; head++, column += dim) {
            double n[LS_HEAD_DIM_MAX], q = 0.0;
            for (int64_t c = 0; c < dim; c++) {
                n[c] = x[column + c];
                if (p->part[part].bias != NULL) n[c] += (double)op_get(&p->bias[part], 0, head * dim + c);
                q += n[c] * n[c];
            }
            for (int64_t c = 0; c < dim && p->part[part].norm != NULL; c++)
                n[c] *= norm[part * dim + c] / sqrt(q / (double)dim + 1e-6);
            for (int64_t j = 0; j < half && p->part[part].rotates; j++) {
                const double c = (double)op_get(&p->table, 0, j), s = (double)op_get(&p->table, 0, half + j);
                const double a = n[j], b = n[j + half];
                n[j] = a * c - b * s;
                n[j + half] = b * c + a * s;
            }
            for (int64_t c = 0; c < dim; c++) sum += n[c] * (double)op_get(&p->dy, 0, column + c);
        }
    return sum;
}

/* dx and the folded gradient of the norms against central differences. */
static void gradients_are_derivatives(void **state) {
    const shape s = {10, 4, {3, 2, 1}, 3, true, true};
    problem p = problem_make(&s, 1, LS_F32, op_plain, 11);
    double x[60], norm[30];
    float folded[10];
    ls_error err;
    (void)state;
    for (int64_t k = 0; k < 3; k++) memset(p.dnorm[k].data, 0, (size_t)p.dnorm[k].bytes);
    {
        const ls_rope_backward_args a = backward_args(&p, 0, 1);
        assert_ok(ls_rope_backward(op_devices[0][0], &a, &err), err);
    }
    for (int64_t c = 0; c < 60; c++) x[c] = (double)op_get(&p.x, 0, c);
    for (int64_t c = 0; c < 30; c++) norm[c] = (double)op_get(&p.norm[c / 10], 0, c % 10);
    for (int64_t c = 0; c < 60; c++) {
        const double h = 1e-5, at = x[c];
        double up, down;
        x[c] = at + h;
        up = objective(&p, x, norm);
        x[c] = at - h;
        down = objective(&p, x, norm);
        x[c] = at;
        assert_float_equal((float)((up - down) / (2.0 * h)), op_get(&p.dx, 0, c), 2e-5);
    }
    for (int64_t k = 0; k < 2; k++) {
        const ls_rope_norm_fold_args fold = {op_floats(&p.dnorm[k]), s.heads[k], 10, folded};
        assert_ok(ls_rope_norm_fold(op_devices[0][0], &fold, &err), err);
        for (int64_t c = 0; c < 10; c++) {
            const double h = 1e-5, at = norm[k * 10 + c];
            double up, down;
            norm[k * 10 + c] = at + h;
            up = objective(&p, x, norm);
            norm[k * 10 + c] = at - h;
            down = objective(&p, x, norm);
            norm[k * 10 + c] = at;
            assert_float_equal((float)((up - down) / (2.0 * h)), folded[c], 2e-5);
        }
    }
    problem_free(&p);
}

static void heads_fold_in_order(void **state) {
    const ls_isa isa = op_isa(state);
    enum { HEADS = 7, DIM = 130 };
    op_array chains = op_array_make(LS_F32, HEADS, DIM, 0), out = op_array_make(LS_F32, 1, DIM, 0), expected;
    uint64_t seed = 3;
    op_fill(&chains, op_special, &seed);
    expected = op_copy(&out);
    for (int64_t c = 0; c < DIM; c++) {
        float sum = 0.0f;
        for (int64_t h = 0; h < HEADS; h++) sum = ls_add(sum, op_get(&chains, h, c));
        op_put(&expected, 0, c, sum);
    }
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        const ls_rope_norm_fold_args a = {op_floats(&chains), HEADS, DIM, op_floats(&out)};
        ls_error err;
        op_guard(&out);
        assert_ok(ls_rope_norm_fold(op_devices[isa][t], &a, &err), err);
        op_check(&expected, &out, OP_NAN_ANY, "fold, threads %d", t + 1);
    }
    op_array_free(&chains);
    op_array_free(&out);
    op_array_free(&expected);
}

/* ---- bad calls ---- */

static void bad_calls_are_named(void **state) {
    problem p = problem_make(&shapes[4], 3, LS_F32, op_plain, 1);
    ls_rope_args f;
    ls_rope_backward_args b;
    ls_rope_table_args t = {op_floats(&p.norm[0]), 4, 1.0f, op_floats(&p.table), NULL, 0, 0, 3};
    ls_error err;
    (void)state;
#define REFUSED(op, a, change, word)                                     \
    do {                                                                 \
        change;                                                          \
        check_failed(ls_##op(op_devices[0][0], &(a), &err), &err, word); \
    } while (0)
#define FORWARD(change, word) REFUSED(rope, f, f = forward_args(&p, 0, 3); change, "rope: " word)
#define BACKWARD(change, word) REFUSED(rope_backward, b, b = backward_args(&p, 0, 3); change, "rope_backward: " word)
    FORWARD(f.n_parts = 0, "0 parts");
    FORWARD(f.n_parts = 4, "4 parts");
    FORWARD(f.rows = -1, "rows -1");
    FORWARD(f.head_dim = 513, "head dim 513");
    FORWARD(f.part[1].n_heads = 0, "part 1: 0 heads");
    FORWARD(f.part[0].n_heads = INT64_MAX, "part 0: 9223372036854775807 heads");
    FORWARD(f.half = 65, "half 65 of a head of 128");
    FORWARD(f.half = 0, "half 0");
    FORWARD(f.table = NULL, "table is a null pointer");
    FORWARD(f.x = NULL, "x is a null");
    FORWARD(f.y = NULL, "y is a null");
    FORWARD(f.x_stride = 1, "x: stride 1");
    FORWARD(f.y_dtype = LS_F16, "y f16");
    BACKWARD(b.part[2].dnorm = b.part[0].dnorm, "part 2: dnorm, but no norm");
    BACKWARD(b.scale = NULL, "part 0 has dnorm: scale");
    BACKWARD(b.x = NULL, "x is a null");
    BACKWARD(b.dy = NULL, "dy is a null");
    BACKWARD(b.dx_dtype = LS_F16, "dx f16");
    REFUSED(rope_table, t, t.half = 0, "rope_table: half 0");
    REFUSED(rope_table, t, t.half = 257, "rope_table: half 257");
    REFUSED(rope_table, t, (t.half = 4, t.n_spans = 1), "rope_table: 1 spans");
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {OP_CASES(heads_are_normed_and_rotated),
                                       cmocka_unit_test(variants_are_caught),
                                       OP_CASES(tables_hold_positions),
                                       OP_CASES(gradients_are_the_contract),
                                       cmocka_unit_test(gradients_are_derivatives),
                                       OP_CASES(heads_fold_in_order),
                                       cmocka_unit_test(bad_calls_are_named)};
    return cmocka_run_group_tests(tests, op_open, op_close);
}
