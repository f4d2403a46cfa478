/* rope on the CPU: a head at a time lies in the thread's scratch; columns are vector lanes. */
#include "num/sincosf.h"
#include "num/sum.h"
#include "op/cpu/kernels.h"
#include "op/rope.h"
#include "op/rows.h"

/* Items are spans. */
LS_KERNEL_DEFINE(ls_rope_table_kernel) {
    const ls_rope_table_args *a = context;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item];
        for (int64_t r = 0; r < span->n_rows; r++) {
            float *c = a->table + (span->row + r) * 2 * a->half, *s = c + a->half;
            for (int64_t j = 0; j < a->half; j++) {
                ls_sincosf(ls_angle(span->pos + r, a->inv_freq[j]), &s[j], &c[j]);
                c[j] = ls_canonical(ls_mul(c[j], a->scale));
                s[j] = ls_canonical(ls_mul(s[j], a->scale));
            }
        }
    }
}

/* b of one head. */
static void load_head(float *b, const float *x, const float *bias, int64_t dim) {
    for (int64_t c = 0; c < dim; c++) b[c] = bias == NULL ? x[c] : ls_add(x[c], bias[c]);
}

/* s of one head: the 256-chain sum of squares, of which a head reaches at most two elements a chain. */
static float scale_of(const float *b, int64_t dim, float eps) {
    float chain[LS_SUM_CHAINS] = {0};
    for (int64_t base = 0; base < dim; base += LS_SUM_CHAINS) {
        const int64_t n = dim - base < LS_SUM_CHAINS ? dim - base : LS_SUM_CHAINS;
        for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(b[base + i], b[base + i], chain[i]);
    }
    return ls_div(1.0f, ls_sqrt(ls_add(ls_div(ls_sum_fold_used(chain, dim), (float)dim), eps)));
}

static void rotate(float *n, const float *table, int64_t half) {
    for (int64_t j = 0; j < half; j++) {
        const float low = n[j], high = n[j + half], c = table[j], s = table[half + j];
        n[j] = ls_fma(low, c, -ls_mul(high, s));
        n[j + half] = ls_fma(high, c, ls_mul(low, s));
    }
}

static void rotate_back(float *g, const float *table, int64_t half) {
    for (int64_t j = 0; j < half; j++) {
        const float low = g[j], high = g[j + half], c = table[j], s = table[half + j];
        g[j] = ls_fma(low, c, ls_mul(high, s));
        g[j + half] = ls_fma(high, c, -ls_mul(low, s));
    }
}

/* Items are rows. */
LS_KERNEL_DEFINE(ls_rope_kernel) {
    const ls_rope_args *a = context;
    const int64_t dim = a->head_dim;
    float *n = scratch;
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->x + row * a->x_stride;
        int64_t column = 0;
        for (int64_t p = 0; p < a->n_parts; p++)
            for (int64_t head = 0; head < a->part[p].n_heads; head++, column += dim) {
                const ls_rope_part *part = &a->part[p];
                load_head(n, x + column, part->bias == NULL ? NULL : part->bias + head * dim, dim);
                if (part->norm != NULL) {
                    const float s = scale_of(n, dim, a->eps);
                    for (int64_t c = 0; c < dim; c++) n[c] = ls_mul(ls_mul(n[c], s), part->norm[c]);
                }
                if (part->rotates) rotate(n, a->table + row * 2 * a->half, a->half);
                ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->y_stride + column), a->y_dtype, n, dim);
            }
    }
}

/* g becomes the gradient through the norm of b, as in op/rmsnorm_backward.h; b becomes b s. Returns s. */
static float through_norm(float *g, float *b, const float *norm, int64_t dim, float eps) {
    const float s = scale_of(b, dim, eps);
    float chain[LS_SUM_CHAINS] = {0}, u;
    for (int64_t c = 0; c < dim; c++) {
        b[c] = ls_mul(b[c], s);
        g[c] = ls_mul(g[c], norm[c]);
    }
    for (int64_t base = 0; base < dim; base += LS_SUM_CHAINS) {
        const int64_t n = dim - base < LS_SUM_CHAINS ? dim - base : LS_SUM_CHAINS;
        for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(g[base + i], b[base + i], chain[i]);
    }
    u = ls_div(ls_sum_fold(chain), (float)dim);
    for (int64_t c = 0; c < dim; c++) g[c] = ls_mul(s, ls_fma(-b[c], u, g[c]));
    return s;
}

/* Items are rows. */
LS_KERNEL_DEFINE(ls_rope_backward_kernel) {
    const ls_rope_backward_args *a = context;
    const int64_t dim = a->head_dim, heads = ls_rope_heads(a->part, a->n_parts);
    float *g = scratch, *b = scratch + LS_HEAD_DIM_MAX;
    for (int64_t row = begin; row < end; row++) {
        int64_t column = 0;
        for (int64_t p = 0; p < a->n_parts; p++)
            for (int64_t head = 0; head < a->part[p].n_heads; head++, column += dim) {
                const ls_rope_part *part = &a->part[p];
                memcpy(g, a->dy + row * a->dy_stride + column, (size_t)dim * sizeof *g);
                if (part->rotates) rotate_back(g, a->table + row * 2 * a->half, a->half);
                if (part->norm != NULL) {
                    float s;
                    load_head(b, a->x + row * a->x_stride + column, part->bias == NULL ? NULL : part->bias + head * dim,
                              dim);
                    s = through_norm(g, b, part->norm, dim, a->eps);
                    if (part->dnorm != NULL) a->scale[row * heads + column / dim] = s;
                }
                ls_row_narrow(ls_at_mut(a->dx, a->dx_dtype, row * a->dx_stride + column), a->dx_dtype, g, dim);
            }
    }
}

/* Items are heads: a head's chains take the rows one after another. */
LS_KERNEL_DEFINE(ls_rope_dnorm_kernel) {
    const ls_rope_backward_args *a = context;
    const int64_t dim = a->head_dim, heads = ls_rope_heads(a->part, a->n_parts);
    float *g = scratch, *b = scratch + LS_HEAD_DIM_MAX;
    for (int64_t item = begin; item < end; item++) {
        const ls_rope_part *part = a->part;
        int64_t head = item;
        while (head >= part->n_heads) head -= part++->n_heads;
        if (part->dnorm == NULL) continue;
        for (int64_t row = 0; row < a->rows; row++) {
            const float s = a->scale[row * heads + item];
            float *chain = part->dnorm + head * dim;
            memcpy(g, a->dy + row * a->dy_stride + item * dim, (size_t)dim * sizeof *g);
            if (part->rotates) rotate_back(g, a->table + row * 2 * a->half, a->half);
            load_head(b, a->x + row * a->x_stride + item * dim, part->bias == NULL ? NULL : part->bias + head * dim,
                      dim);
            for (int64_t c = 0; c < dim; c++) chain[c] = ls_fma(g[c], ls_mul(b[c], s), chain[c]);
        }
    }
}

/* Items are columns. */
LS_KERNEL_DEFINE(ls_rope_norm_fold_kernel) {
    const ls_rope_norm_fold_args *a = context;
    (void)scratch;
    for (int64_t c = begin; c < end; c++) {
        float sum = 0.0f;
        for (int64_t head = 0; head < a->n_heads; head++) sum = ls_add(sum, a->chains[head * a->head_dim + c]);
        a->out[c] = sum;
    }
}
