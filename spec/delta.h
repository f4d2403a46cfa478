/* The gated delta rule: op/delta.h, op/regroup.h. */
#ifndef SPEC_DELTA_H
#define SPEC_DELTA_H

#include "mamba.h"

/* Sixteen-chain fold over i of x[i] * S[i][j]. */
static float fold_rows(const float *x, const float *s, int64_t rows, int64_t stride) {
    float chain[16] = {0};
    for (int64_t i = 0; i < rows; i++) chain[i % 16] = fmaf(x[i], s[i * stride], chain[i % 16]);
    return add_neighbours(chain, 16);
}

/* One head: v becomes what the rule gives. */
static void delta_head(delta_part *p, int64_t head, float *v, const float *q, const float *k, float a, float b) {
    const int64_t dim = p->dim, rows = p->key_dim;
    float *s = p->state + head * rows * dim, *scale = p->scale + head;
    const float beta = sigmoid(b), top = 1.0f / sqrtf((float)rows);
    decay_state(scale, s, rows * dim, exp_law(softplus(a + p->dt_bias[head]) * p->rate[head]));
    const float w = beta * (1.0f / *scale), out = *scale * top;
    for (int64_t j = 0; j < dim; j++) {
        const float d = fmaf(-beta, fold_rows(k, s + j, rows, dim), w * v[j]);
        for (int64_t i = 0; i < rows; i++) s[i * dim + j] = fmaf(k[i], d, s[i * dim + j]);
        v[j] = out * fold_rows(q, s + j, rows, dim);
    }
}

static void l2norm(float *x, int64_t n) {
    const float l = 1.0f / sqrtf(squares(x, n) + 1e-6f);
    for (int64_t i = 0; i < n; i++) x[i] = x[i] * l;
}

/* The next n columns of a head. */
static const float *part_of_head(float *out, const float *x, int64_t n) {
    memcpy(out, x, (size_t)n * sizeof *out);
    return x + n;
}

/* q|k|v, z, b and a. By head, each key head has its columns of all of them: op/regroup.h. */
static void project(float *q, float *z, float *b, float *a, const delta_part *p, const float *x) {
    const int64_t keys = p->key_heads * p->key_dim, ratio = p->heads / p->key_heads, values = ratio * p->dim;
    const float *qkvz = scratch(p->qkvz.rows), *ba = scratch(p->ba.rows);
    if (p->qkv.w != NULL) {
        product(q, x, &p->qkv, NULL);
        product(z, x, &p->z, NULL);
        product(b, x, &p->b, NULL);
        product(a, x, &p->a, NULL);
        return;
    }
    product((float *)qkvz, x, &p->qkvz, NULL);
    product((float *)ba, x, &p->ba, NULL);
    for (int64_t h = 0; h < p->key_heads; h++) {
        qkvz = part_of_head(q + h * p->key_dim, qkvz, p->key_dim);
        qkvz = part_of_head(q + keys + h * p->key_dim, qkvz, p->key_dim);
        qkvz = part_of_head(q + 2 * keys + h * values, qkvz, values);
        qkvz = part_of_head(z + h * values, qkvz, values);
        ba = part_of_head(b + h * ratio, ba, ratio);
        ba = part_of_head(a + h * ratio, ba, ratio);
    }
}

static void delta(float *y, delta_part *p, const float *x) {
    const int64_t inner = p->heads * p->dim, keys = p->key_heads * p->key_dim, rows = p->key_dim;
    float *q = scratch(p->conv.channels), *k = q + keys, *v = k + keys, *z = scratch(inner);
    float *b = scratch(p->heads), *a = scratch(p->heads);
    project(q, z, b, a, p, x);
    convolve(&p->conv, q);
    for (int64_t h = 0; h < 2 * p->key_heads; h++) l2norm(q + h * rows, rows);
    for (int64_t h = 0; h < p->heads; h++) {
        const int64_t at = h / (p->heads / p->key_heads) * rows;
        float *head = v + h * p->dim;
        delta_head(p, h, head, q + at, k + at, a[h], b[h]);
        rmsnorm(head, head, p->norm, p->dim, m.eps);
    }
    for (int64_t i = 0; i < inner; i++) v[i] = activation(silu(z[i]) * v[i]);
    product(y, v, &p->out, NULL);
}

#endif
