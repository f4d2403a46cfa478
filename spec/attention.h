/* Attention, and what makes its heads: op/attention.h, op/rope.h, op/sigmoid_gate.h. */
#ifndef SPEC_ATTENTION_H
#define SPEC_ATTENTION_H

#include "model.h"

/* ---- attention: op/attention.h ---- */

enum { BLOCK = 64, WIDE_BLOCK = 128, SEGMENT = 1024 };

/* What a segment of keys comes to. */
typedef struct segment {
    float m, l, acc[HEAD];
} segment;

/* One block of keys [from, to), which lies at a multiple of 64: online softmax. */
static void attend_block(segment *s, const attention_part *a, const float *q, int64_t group, int64_t from, int64_t to) {
    const int64_t dim = m.head_dim, width = a->k.rows;
    const float scale = m.attention_scale;
    float score[BLOCK], e[BLOCK] = {0}, largest = s->m;
    for (int64_t j = from; j < to; j++) {
        score[j % BLOCK] = scale * chain_exact(q, a->keys + j * width + group * dim, dim);
        largest = fmaxf(largest, score[j % BLOCK]);
    }
    const float c = exp_law(s->m - largest);
    for (int64_t j = from; j < to; j++) e[j % BLOCK] = exp_law(score[j % BLOCK] - largest);
    for (int64_t d = 0; d < dim; d++) {
        float acc = s->acc[d] * c;
        for (int64_t j = from; j < to; j++) acc = fmaf(e[j % BLOCK], a->values[j * width + group * dim + d], acc);
        s->acc[d] = acc;
    }
    for (int half = BLOCK / 2; half >= 1; half /= 2)
        for (int j = 0; j < half; j++) e[j] = e[j] + e[j + half];
    s->l = fmaf(s->l, c, e[0]);
    s->m = largest;
}

/* Segments combine in ascending order; the first is taken as it is. */
static void combine(segment *all, const segment *next) {
    const float largest = fmaxf(all->m, next->m), a = exp_law(all->m - largest), b = exp_law(next->m - largest);
    all->l = fmaf(all->l, a, next->l * b);
    for (int64_t d = 0; d < m.head_dim; d++) all->acc[d] = fmaf(all->acc[d], a, next->acc[d] * b);
    all->m = largest;
}

/* "Its keys are the positions j <= p; with a window w > 0 those with p - w < j <= p." */
static int64_t first_key(const attention_part *a, int64_t position) {
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static void attend(float *out, const attention_part *a, const float *q, int64_t position, int64_t group) {
    const int64_t first = first_key(a, position);
    segment all = {.m = -INFINITY}, s = all;
    for (int64_t from = first, to; from <= position; from = to) {
        to = smaller((from / BLOCK + 1) * BLOCK, position + 1);
        attend_block(&s, a, q, group, from, to);
        if (to <= position && to % SEGMENT != 0) continue;
        if (from / SEGMENT == first / SEGMENT)
            all = s;
        else
            combine(&all, &s);
        s = (segment){.m = -INFINITY};
    }
    for (int64_t d = 0; d < m.head_dim; d++) out[d] = activation(all.acc[d] / all.l);
}

#define LIFT 1536.0f

/* exp2_bounded */
static float power(float x) {
    const float b = fminf(fmaxf(x, -126.0f), 127.0f), r = b + MAGIC, f = b - (r - MAGIC);
    return exp2_scale(exp2_poly(f), r);
}

/* mma16: top and acc are of the segment, all_top and result of those before; behind the dimensions are l and L. */
static void attend_mma16(float *out, const attention_part *a, const float *q, int64_t position, int64_t group) {
    const int64_t dim = m.head_dim, width = a->k.rows, at = group * dim, first = first_key(a, position);
    const float c = m.attention_scale * LOG2E;
    float top = -INFINITY, all_top = -INFINITY, acc[HEAD + 1] = {0}, result[HEAD + 1] = {0};
    for (int64_t block = first / WIDE_BLOCK * WIDE_BLOCK; block <= position; block += WIDE_BLOCK) {
        const int64_t from = block < first ? first - block : 0, to = smaller(WIDE_BLOCK, position + 1 - block);
        float s[WIDE_BLOCK], e[WIDE_BLOCK] = {0}, v[WIDE_BLOCK] = {0}, largest = -INFINITY;
        for (int64_t j = from; j < to; j++) s[j] = chain_mma16(q, a->keys + (block + j) * width + at, dim);
        for (int64_t j = from; j < to; j++) largest = fmaxf(largest, s[j]);
        const float before = top;
        if (c * largest - LIFT > top + 8.0f) top = c * largest - LIFT;
        const float w = power(before - top);
        for (int64_t j = from; j < to; j++) {
            const float x = fmaf(s[j], c, -top) - LIFT;
            e[j] = x >= -126.0f ? round_bf16(power(x)) : 0.0f;
        }
        for (int64_t d = 0; d <= dim; d++) {
            for (int64_t j = from; j < to; j++) v[j] = d < dim ? a->values[(block + j) * width + at + d] : 1.0f;
            acc[d] = acc[d] * w;
            for (int64_t j = 0; j < to; j += 16) acc[d] = mma16_step(acc[d], e + j, v + j, 16);
        }
        if (block + WIDE_BLOCK <= position && (block + WIDE_BLOCK) % SEGMENT != 0) continue;
        const float most = fmaxf(all_top, top), x = power(all_top - most), y = power(top - most);
        for (int64_t d = 0; d <= dim; d++) result[d] = fmaf(result[d], x, acc[d] * y), acc[d] = 0.0f;
        all_top = most, top = -INFINITY;
    }
    for (int64_t d = 0; d < dim; d++) out[d] = activation(fmaf(result[d], 1.0f / result[dim], 0.0f));
}

/* ---- bias, norm of heads, rotation: op/rope.h ---- */

/* A head of q or k, in place, before R. */
static void rotate(float *x, int64_t position) {
    for (int64_t j = 0; j < m.half; j++) {
        const double angle = (float)position * m.inv_freq[j]; /* binary64's sine is rounded to the nearest binary32 */
        const float c = (float)cos(angle) * m.rope_scale, s = (float)sin(angle) * m.rope_scale;
        const float a = x[j], b = x[j + m.half];
        x[j] = fmaf(a, c, -(b * s));
        x[j + m.half] = fmaf(b, c, a * s);
    }
}

/* The heads of a product, `stride` columns apart; position -1: they do not rotate. */
static void make_heads(float *out, const float *x, int64_t n, int64_t stride, const float *bias, const float *norm,
                       int64_t position) {
    for (int64_t h = 0; h < n; h++, out += m.head_dim) {
        for (int64_t c = 0, i = h * stride; c < m.head_dim; c++, i++) out[c] = bias != NULL ? x[i] + bias[i] : x[i];
        if (norm != NULL) rmsnorm(out, out, norm, m.head_dim, m.eps);
        if (position >= 0) rotate(out, position);
        round_all(out, m.head_dim);
    }
}

static void attention(float *y, attention_part *a, const float *x, int64_t position) {
    const int64_t dim = m.head_dim, n = m.heads * dim, stride = a->q.rows / m.heads;
    float *made = scratch(a->q.rows), *q = scratch(n), *out = scratch(n), *k = scratch(a->k.rows),
          *v = scratch(a->v.rows);
    product(made, x, &a->q, NULL);
    product(k, x, &a->k, NULL);
    product(v, x, &a->v, NULL);
    make_heads(q, made, m.heads, stride, a->q_bias, a->q_norm, position);
    make_heads(a->keys + position * a->k.rows, k, m.kv_heads, dim, a->k_bias, a->k_norm, position);
    make_heads(a->values + position * a->v.rows, v, m.kv_heads, dim, a->v_bias, NULL, -1);
    for (int64_t h = 0; h < m.heads; h++)
        (is_mma16 ? attend_mma16 : attend)(out + h * dim, a, q + h * dim, position, h / (m.heads / m.kv_heads));
    for (int64_t i = 0; i < n && a->has_gates; i++) /* op/sigmoid_gate.h: behind each head of q lies its gate */
        out[i] = activation(out[i] * sigmoid(made[i / dim * stride + dim + i % dim]));
    product(y, out, &a->o, a->o_bias);
}

#endif
