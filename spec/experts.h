/* Feed-forwards, of which a token may take some of many: op/elementwise.h, op/moe.h, op/moe_sigmoid.h. */
#ifndef SPEC_EXPERTS_H
#define SPEC_EXPERTS_H

#include "model.h"

/* R(silu(gate) * up), or ungated R(relu2(up)). */
static void feed_expert(float *y, const expert *e, const float *x) {
    const int64_t n = e->up.rows;
    float *gate = scratch(n), *up = scratch(n);
    product(up, x, &e->up, NULL);
    if (e->gate.w != NULL) product(gate, x, &e->gate, NULL);
    for (int64_t i = 0; i < n; i++) {
        const float above = up[i] > 0.0f ? up[i] : 0.0f;
        up[i] = activation(e->gate.w != NULL ? silu(gate[i]) * up[i] : above * above);
    }
    product(y, up, &e->down, NULL);
}

/* The `picks` largest of those that may be chosen, the lower first among equals. */
static void choose(bool *chosen, const float *score, const bool *may, int n, int64_t picks) {
    for (int e = 0; e < n; e++) {
        int64_t before = 0;
        for (int i = 0; i < n; i++) before += may[i] && (score[i] > score[e] || (score[i] == score[e] && i < e));
        chosen[e] = may[e] && before < picks;
    }
}

/* Shares of those that take part; their maximum and their sum are over them alone. */
static void softmax(float *p, const float *logit, const bool *takes, int n) {
    float largest = -INFINITY, sum = 0.0f;
    for (int e = 0; e < n; e++) largest = takes[e] ? fmaxf(largest, logit[e]) : largest;
    for (int e = 0; e < n; e++) sum = takes[e] ? sum + (p[e] = exp_law(logit[e] - largest)) : sum;
    for (int e = 0; e < n; e++) p[e] = p[e] / sum;
}

/* op/moe.h, route and reweigh. */
static void route(float *weight, bool *chosen, const float *logit, int n) {
    bool all[EXPERTS];
    memset(all, 1, sizeof all);
    softmax(weight, logit, all, n);
    choose(chosen, weight, all, n, m.picks);
    if (m.reweighs) softmax(weight, logit, chosen, n);
}

/* The two largest c of a group, added. */
static float score_of_group(const float *c, int n) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = 0; e < n; e++) {
        second = fmaxf(second, fminf(first, c[e]));
        first = fmaxf(first, c[e]);
    }
    return first + second;
}

/* op/moe_sigmoid.h, route. */
static void route_sigmoid(float *weight, bool *chosen, const float *logit, const float *bias, int n) {
    const int groups = (int)count("n_group", 1), size = n / groups;
    const float scale = (float)figure(config, "routed_scaling_factor", 1.0);
    float s[EXPERTS], c[EXPERTS], score[EXPERTS] = {0}, d = 0.0f;
    bool stays[EXPERTS], may[EXPERTS];
    memset(may, 1, sizeof may);
    for (int e = 0; e < n; e++) s[e] = sigmoid(logit[e]), c[e] = s[e] + bias[e];
    for (int g = 0; g < groups; g++) score[g] = score_of_group(c + g * size, size);
    choose(stays, score, may, groups, count("topk_group", 1));
    for (int e = 0; e < n; e++) may[e] = groups == 1 || stays[e / size];
    choose(chosen, c, may, n, m.picks);
    for (int e = 0; e < n; e++) d = chosen[e] ? d + s[e] : d;
    d = d + 1e-20f;
    for (int e = 0; e < n; e++) weight[e] = m.reweighs ? scale * (s[e] / d) : scale * s[e];
}

static void feed(float *y, const ffn_part *f, const float *x) {
    float logit[EXPERTS], weight[EXPERTS], gate, *part = scratch(m.hidden);
    bool chosen[EXPERTS];
    if (f->router.w == NULL) {
        feed_expert(y, &f->experts[0], x);
        return;
    }
    for (int e = 0; e < f->n_experts; e++) /* the router is a float32 chain in both profiles */
        logit[e] = chain_exact(x, f->router.w + e * m.hidden, m.hidden);
    if (f->router_bias != NULL)
        route_sigmoid(weight, chosen, logit, f->router_bias, f->n_experts);
    else
        route(weight, chosen, logit, f->n_experts);
    memset(y, 0, (size_t)m.hidden * sizeof *y);
    for (int e = 0; e < f->n_experts; e++) {
        if (!chosen[e]) continue;
        feed_expert(part, &f->experts[e], x);
        for (int64_t c = 0; c < m.hidden; c++) y[c] = fmaf(weight[e], part[c], y[c]);
    }
    if (f->shared.down.w == NULL) return;
    feed_expert(part, &f->shared, x); /* "A shared expert is added last" */
    if (f->shared_gate.w != NULL) product(&gate, x, &f->shared_gate, NULL);
    for (int64_t c = 0; c < m.hidden; c++) y[c] = y[c] + (f->shared_gate.w != NULL ? part[c] * sigmoid(gate) : part[c]);
}

#endif
