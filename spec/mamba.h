/* Mamba-1 and Mamba-2: op/conv1d.h, op/scan.h, op/ssd.h, op/gated_norm.h. */
#ifndef SPEC_MAMBA_H
#define SPEC_MAMBA_H

#include "model.h"

/* ---- the convolution: op/conv1d.h ---- */

/* u in place; the window moves on by one token. */
static void convolve(convolution *v, float *u) {
    for (int64_t c = 0; c < v->channels; c++) {
        const float now = activation(u[c]), *w = v->w + c * v->taps;
        float a = v->bias != NULL ? v->bias[c] : 0.0f;
        for (int64_t k = 0; k + 1 < v->taps; k++) a = fmaf(w[k], v->past[k * v->channels + c], a);
        a = fmaf(w[v->taps - 1], now, a);
        for (int64_t k = 0; k + 2 < v->taps; k++) v->past[k * v->channels + c] = v->past[(k + 1) * v->channels + c];
        if (v->taps > 1) v->past[(v->taps - 2) * v->channels + c] = now;
        u[c] = silu(a);
    }
}

/* ---- Mamba-1: op/scan.h ---- */

/* 2^(dt a2): the product is never rounded but where it says how far it may go. */
static float decay_of(float dt, float a2) {
    const float x = dt * a2, r = fmaf(dt, a2, MAGIC), n = r - MAGIC, f = fmaf(dt, a2, -n);
    if (x > 127.0f) return 0x1p127f;
    return x >= -126.0f ? exp2_scale(exp2_poly(f), r) : 0x1p-126f;
}

/* The four-chain tree over states. */
static float scan_channel(int64_t states, const float *a2, float *h, float dt, float v, const float *b,
                          const float *c) {
    const int64_t group = (states + 3) / 4;
    float p[4] = {0};
    for (int64_t s = 0; s < states; s++) {
        h[s] = fmaf(decay_of(dt, a2[s]), h[s], v * b[s]);
        p[s / group] = fmaf(h[s], c[s], p[s / group]);
    }
    return (p[0] + p[1]) + (p[2] + p[3]);
}

static void mamba(float *y, mamba_part *p, const float *x) {
    const int64_t dim = p->out.columns, rank = p->dt.columns, states = (p->x.rows - rank) / 2;
    float *u = scratch(2 * dim), *z = u + dim, *rounded = scratch(dim), *dt = scratch(dim);
    float *low = scratch(p->x.rows), *b = low + rank, *c = b + states;
    product(u, x, &p->in, p->in_bias);
    convolve(&p->conv, u);
    for (int64_t i = 0; i < dim; i++) rounded[i] = is_mma16 ? round_bf16(u[i]) : u[i];
    product(low, rounded, &p->x, NULL);
    if (m.normalises) {
        rmsnorm(low, low, p->dt_norm, rank, m.inner_eps);
        rmsnorm(b, b, p->b_norm, states, m.inner_eps);
        rmsnorm(c, c, p->c_norm, states, m.inner_eps);
    }
    for (int64_t i = 0; i < rank; i++) low[i] = is_mma16 ? round_bf16(low[i]) : low[i];
    product(dt, low, &p->dt, NULL);
    for (int64_t i = 0; i < dim; i++) {
        const float step = softplus(p->dt_bias != NULL ? dt[i] + p->dt_bias[i] : dt[i]);
        float out = scan_channel(states, p->a2 + i * states, p->state + i * states, step, step * u[i], b, c);
        if (p->d != NULL) out = fmaf(p->d[i], u[i], out);
        rounded[i] = activation(out * silu(z[i]));
    }
    product(y, rounded, &p->out, p->out_bias);
}

/* ---- states with one scale a head: op/ssd.h, op/delta.h ---- */

/* A head's state is A S; A takes the decay, and goes into S before it is too small. */
static void decay_state(float *scale, float *state, int64_t n, float decay) {
    *scale = *scale * decay;
    if (!(*scale < 0x1p-40f)) return;
    for (int64_t i = 0; i < n; i++) state[i] = state[i] * *scale;
    *scale = 1.0f;
}

/* Chains add by neighbours, then pairs of these sums, and so on. */
static float add_neighbours(float *chain, int n) {
    for (n /= 2; n >= 1; n /= 2)
        for (int i = 0; i < n; i++) chain[i] = chain[2 * i] + chain[2 * i + 1];
    return chain[0];
}

/* ---- Mamba-2: op/ssd.h, op/gated_norm.h ---- */

/* Eight-slice fold over n of c[n] * S[n][p]. */
static float fold_slices(const float *c, const float *s, int64_t states, int64_t stride) {
    float slice[8] = {0};
    for (int64_t n = 0; n < states; n++) slice[n / 4 % 8] = fmaf(c[n], s[n * stride], slice[n / 4 % 8]);
    return add_neighbours(slice, 8);
}

/* One head: x becomes what the scan gives, unrounded. */
static void scan_head(mamba2_part *p, int64_t head, float *x, float dt_raw, const float *b, const float *c) {
    const int64_t dim = p->dim, size = p->states * dim;
    float *s = p->state + head * size, *scale = p->scale + head;
    const float dt = fminf(p->dt_max, fmaxf(p->dt_min, softplus(dt_raw + p->dt_bias[head])));
    decay_state(scale, s, size, exp_law(dt * p->a[head]));
    const float w = dt * (1.0f / *scale);
    for (int64_t i = 0; i < dim; i++) {
        const float u = w * x[i];
        for (int64_t n = 0; n < p->states; n++) s[n * dim + i] = fmaf(u, b[n], s[n * dim + i]);
        x[i] = fmaf(p->d[head], x[i], *scale * fold_slices(c, s + i, p->states, dim));
    }
}

static void mamba2(float *y, mamba2_part *p, const float *input) {
    const int64_t inner = p->heads * p->dim, group = inner / p->groups, per_group = p->heads / p->groups;
    float *z = scratch(p->in.rows), *x = z + inner, *b = x + inner, *c = b + p->groups * p->states;
    const float *dt = c + p->groups * p->states;
    product(z, input, &p->in, p->in_bias);
    convolve(&p->conv, x);
    for (int64_t h = 0; h < p->heads; h++)
        scan_head(p, h, x + h * p->dim, dt[h], b + h / per_group * p->states, c + h / per_group * p->states);
    for (int64_t i = 0; i < inner; i++) x[i] = x[i] * silu(z[i]);
    for (int64_t i = 0; i < inner; i += group) rmsnorm(x + i, x + i, p->norm + i, group, m.eps);
    round_all(x, inner);
    product(y, x, &p->out, p->out_bias);
}

#endif
