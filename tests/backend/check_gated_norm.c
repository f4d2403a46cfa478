/* The gated norm, the squared rectifier and the sigmoid gate with their gradients, and columns regrouped, on every back
 * end. */
#include "elements.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gated_norm.h"
#include "op/regroup.h"
#include "op/sigmoid_gate.h"

typedef struct norm_case {
    int64_t rows, dim, groups, gap; /* gap between rows, in elements */
    ls_dtype rounded;               /* of y and dz */
    value_kind kind;
} norm_case;

static void gated_norm_one(sides *d, const norm_case *c) {
    const int64_t stride = c->dim + c->gap, elem = ls_dtype_bytes(c->rounded), n = c->rows * stride;
    const sides_buffer x = values_put(d, "x", LS_F32, n, c->kind, 1, 4 * (c->gap % 4)),
                       z = values_put(d, "z", LS_F32, n, c->kind, 2, 0),
                       dy = values_put(d, "dy", LS_F32, n, c->kind, 3, 0),
                       w = values_put(d, "w", LS_F32, c->dim, VALUES_PLAIN, 4, 0),
                       dw = values_put(d, "dw", LS_F32, c->dim, VALUES_PLAIN, 5, 0),
                       y = sides_put(d, "y", NULL, n * elem, 0), dz = sides_put(d, "dz", NULL, n * elem, elem),
                       dx = sides_put(d, "dx", NULL, n * 4, 0),
                       scale = sides_put(d, "scale", NULL, c->rows * c->groups * 4, 0);
    const sides_buffer *const out[] = {&y, &dx, &dz, &dw, &scale};
    for (int repeat = 0; repeat < 2; repeat++) {
        SIDES_CALL(d, gated_norm, .x = x.at[s], .z = z.at[s], .x_stride = stride, .z_stride = stride, .w = w.at[s],
                   .eps = 1e-5f, .y = y.at[s], .y_dtype = c->rounded, .y_stride = stride, .rows = c->rows,
                   .dim = c->dim, .groups = c->groups);
        SIDES_CALL(d, gated_norm_backward, .x = x.at[s], .z = z.at[s], .x_stride = stride, .z_stride = stride,
                   .w = w.at[s], .eps = 1e-5f, .dy = dy.at[s], .dy_stride = stride, .dx = dx.at[s], .dx_stride = stride,
                   .dz = dz.at[s], .dz_dtype = c->rounded, .dz_stride = stride, .dw = dw.at[s], .scale = scale.at[s],
                   .rows = c->rows, .dim = c->dim, .groups = c->groups);
        for (int64_t i = 0; i < BK_COUNT(out); i++)
            values_same(d, out[i], i == 0 || i == 2 ? c->rounded : LS_F32, "%s, %lld rows of %lld in %lld groups",
                        value_names[c->kind], (long long)c->rows, (long long)c->dim, (long long)c->groups);
    }
    sides_clear_to(d, 0);
}

static void gated_norm(bk_run *run) {
    static const int64_t dims[][2] = {{1, 1},    {3, 1},     {6, 2},     {64, 1},   {255, 1},  {257, 1},
                                      {1024, 8}, {1026, 2},  {4097, 1},  {5120, 8}, {8192, 8}, {8192, 1},
                                      {8203, 1}, {10240, 8}, {12291, 1}, {20000, 1}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims); i++)
        for (int k = 0; k < VALUE_KINDS; k++) {
            const norm_case c = {
                1 + (i + k) % 5 * 17,          dims[i][0],   dims[i][1], (i + k) % 3 == 0 ? 3 : 4 * (k % 2),
                i % 2 == 0 ? LS_BF16 : LS_F32, (value_kind)k};
            gated_norm_one(&d, &c);
        }
    {
        const norm_case long_one = {bk_size(run, 70, 200, 3000), 512, 4, 0, LS_BF16, VALUES_PLAIN};
        gated_norm_one(&d, &long_one);
    }
    sides_close(&d);
}

static void relu2(bk_run *run) {
    static const int64_t dims[] = {1, 3, 4, 33, 1023, 1024, 5004};
    static const ls_dtype types[] = {LS_F32, LS_BF16};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims) * 2 * VALUE_KINDS; i++) {
        const int64_t dim = dims[i / 2 / VALUE_KINDS], rows = 1 + i % 3;
        const ls_dtype to = types[i % 2];
        const value_kind kind = (value_kind)(i / 2 % VALUE_KINDS);
        const sides_buffer x = values_put(&d, "x", LS_F32, rows * dim, kind, 1, i % 3 * 4),
                           dy = values_put(&d, "dy", LS_F32, rows * dim, kind, 2, 0),
                           y = sides_put(&d, "y", NULL, rows * dim * ls_dtype_bytes(to), 0),
                           dx = sides_put(&d, "dx", NULL, rows * dim * ls_dtype_bytes(to), 0);
        SIDES_CALL(&d, relu2, .x = x.at[s], .y = y.at[s], .y_dtype = to, .rows = rows, .dim = dim);
        SIDES_CALL(&d, relu2_backward, .x = x.at[s], .dy = dy.at[s], .dx = dx.at[s], .dx_dtype = to, .rows = rows,
                   .dim = dim);
        values_same(&d, &y, to, "%s, %lld of %lld", value_names[kind], (long long)rows, (long long)dim);
        values_same(&d, &dx, to, "%s, %lld of %lld", value_names[kind], (long long)rows, (long long)dim);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

static void sigmoid_gate(bk_run *run) {
    static const int64_t dims[][2] = {{1, 1},   {6, 6},   {12, 2},   {64, 1},    {255, 5},  {256, 1},
                                      {514, 2}, {768, 3}, {1025, 1}, {4096, 16}, {4100, 1}, {2048, 2048}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(dims) * 4; i++) {
        const int64_t dim = dims[i / 4][0], gates = dims[i / 4][1], rows = 1 + i % 5 * 7, gap = i % 3 == 0 ? 3 : 4;
        const ls_dtype in = i % 2 == 0 ? LS_F32 : LS_BF16, out = i / 2 % 2 == 0 ? LS_F32 : LS_BF16;
        const int64_t stride = dim + gap, n = rows * stride, bytes = ls_dtype_bytes(out);
        const value_kind kind = (value_kind)(i % VALUE_KINDS);
        const sides_buffer x = values_put(&d, "x", in, n, kind, 1, 0),
                           gate = values_put(&d, "gate", LS_F32, rows * gates, kind, 2, 4),
                           dy = values_put(&d, "dy", LS_F32, n, kind, 3, 0), y = sides_put(&d, "y", NULL, n * bytes, 0),
                           dx = sides_put(&d, "dx", NULL, n * 4, 0),
                           dgate = sides_put(&d, "dgate", NULL, rows * gates * bytes, bytes);
        SIDES_CALL(&d, sigmoid_gate, .x = x.at[s], .x_dtype = in, .gate = gate.at[s], .x_stride = stride,
                   .gate_stride = gates, .y = y.at[s], .y_dtype = out, .y_stride = stride, .rows = rows, .dim = dim,
                   .gates = gates);
        SIDES_CALL(&d, sigmoid_gate_backward, .x = x.at[s], .x_dtype = in, .gate = gate.at[s], .x_stride = stride,
                   .gate_stride = gates, .dy = dy.at[s], .dy_stride = stride, .dx = dx.at[s], .dx_stride = stride,
                   .dgate = dgate.at[s], .dgate_dtype = out, .dgate_stride = gates, .rows = rows, .dim = dim,
                   .gates = gates);
        values_same(&d, &y, out, "%s, %lld of %lld", value_names[kind], (long long)gates, (long long)dim);
        values_same(&d, &dx, LS_F32, "%s, %lld of %lld", value_names[kind], (long long)gates, (long long)dim);
        values_same(&d, &dgate, out, "%s, %lld of %lld", value_names[kind], (long long)gates, (long long)dim);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

static void regroup(bk_run *run) {
    static const int64_t widths[][4] = {{1, 1, 0, 0}, {2, 2, 0, 0}, {128, 128, 256, 256}, {3, 5, 4, 1}, {8, 8, 12, 0}};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(widths) * 8; i++) {
        const int64_t *w = widths[i / 8], rows = i % 2 == 0 ? 3 : bk_size(run, 5, 70, 3000),
                      heads = i % 3 == 0 ? 1 : 16;
        const int64_t gap = i / 2 % 2 == 0 ? 0 : 3, columns = w[0] + w[1] + w[2] + w[3], stride = heads * columns + gap;
        const int64_t n_parts = w[2] == 0 ? 2 : w[3] == 0 ? 3 : 4;
        const bool gathers = i / 4 % 2 == 1;
        const sides_buffer x = gathers ? sides_put(&d, "x", NULL, rows * stride * 4, 0)
                                       : values_put(&d, "x", LS_F32, rows * stride, VALUES_SPECIAL, 1, 0);
        sides_buffer part[4];
        for (int64_t p = 0; p < n_parts; p++) {
            const int64_t n = rows * (heads * w[p] + gap);
            part[p] = gathers ? values_put(&d, "part", LS_F32, n, VALUES_SPECIAL, 2 + (uint64_t)p, 0)
                              : sides_put(&d, "part", NULL, n * 4, 0);
        }
        for (int64_t p = n_parts; p < 4; p++) part[p] = part[0];
#define PART(p) {(float *)part[p].at[s], heads * w[p] + gap, w[p]}
        SIDES_CALL(&d, regroup, .x = x.at[s], .x_stride = stride, .part = {PART(0), PART(1), PART(2), PART(3)},
                   .n_parts = n_parts, .rows = rows, .heads = heads, .gathers = gathers);
#undef PART
        if (gathers) values_same(&d, &x, LS_F32, "x, %lld heads of %lld", (long long)heads, (long long)columns);
        for (int64_t p = 0; p < n_parts && !gathers; p++)
            values_same(&d, &part[p], LS_F32, "part %lld, %lld heads of %lld", (long long)p, (long long)heads,
                        (long long)columns);
        sides_clear_to(&d, 0);
    }
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {{"gated_norm", gated_norm, BK_ANYWHERE},
                                    {"relu2", relu2, BK_ANYWHERE},
                                    {"sigmoid_gate", sigmoid_gate, BK_ANYWHERE},
                                    {"regroup", regroup, BK_ANYWHERE}};
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
