/* Routing by sigmoids on the CPU, in both directions: items are rows. */
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/moe_sigmoid.h"

/* Marks the n largest of x[count] among those that are `open`, the lower first among equals. */
static void mark_largest(bool *marks, const float *x, const bool *open, int64_t count, int64_t n) {
    for (int64_t i = 0; i < count; i++) marks[i] = false;
    for (int64_t k = 0; k < n; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++)
            if (open[i] && !marks[i] && (best < 0 || x[i] > x[best])) best = i;
        marks[best] = true;
    }
}

static float group_score(const float *c, int64_t size) {
    float first = c[0], second = -HUGE_VALF;
    for (int64_t i = 1; i < size; i++) {
        if (c[i] > first) {
            second = first;
            first = c[i];
        } else if (c[i] > second) {
            second = c[i];
        }
    }
    return ls_add(first, second);
}

/* Which experts the choice is among. */
static void open_groups(const ls_moe_sigmoid_route_args *a, bool *open, const float *c) {
    const int64_t size = a->n_experts / a->n_groups;
    float score[LS_EXPERTS_MAX];
    bool stays[LS_EXPERTS_MAX];
    for (int64_t e = 0; e < a->n_experts; e++) open[e] = true;
    if (a->n_groups == 1) return;
    for (int64_t g = 0; g < a->n_groups; g++) score[g] = group_score(c + g * size, size);
    mark_largest(stays, score, open, a->n_groups, a->top_groups);
    for (int64_t e = 0; e < a->n_experts; e++) open[e] = stays[e / size];
}

/* Weights of the chosen from their s, which is there. */
static void share(const ls_moe_sigmoid_route_args *a, float *weight) {
    float sum = 0.0f;
    for (int64_t k = 0; k < a->top_k; k++) sum = ls_add(sum, weight[k]);
    sum = ls_add(sum, 1e-20f);
    for (int64_t k = 0; k < a->top_k; k++)
        weight[k] = ls_mul(a->scale, a->normalised ? ls_div(weight[k], sum) : weight[k]);
}

static void route_row(const ls_moe_sigmoid_route_args *a, int64_t row) {
    const float *logit = a->logits + row * a->n_experts;
    int32_t *expert = a->expert + row * a->top_k;
    float *weight = a->weight + row * a->top_k, s[LS_EXPERTS_MAX], c[LS_EXPERTS_MAX];
    bool open[LS_EXPERTS_MAX], chosen[LS_EXPERTS_MAX], ordered = true;
    int64_t next = 0;
    for (int64_t e = 0; e < a->n_experts; e++) {
        s[e] = ls_sigmoid(logit[e]);
        c[e] = ls_add(s[e], a->bias[e]);
        ordered = ordered && ls_sub(c[e], c[e]) == 0.0f;
    }
    if (!ordered) {
        for (int64_t k = 0; k < a->top_k; k++) {
            expert[k] = (int32_t)k;
            weight[k] = ls_from_bits(LS_NAN_BITS);
        }
        return;
    }
    open_groups(a, open, c);
    mark_largest(chosen, c, open, a->n_experts, a->top_k);
    for (int64_t e = 0; e < a->n_experts; e++)
        if (chosen[e]) {
            expert[next] = (int32_t)e;
            weight[next++] = s[e];
        }
    share(a, weight);
}

LS_KERNEL_DEFINE(ls_moe_sigmoid_route_kernel) {
    (void)scratch;
    for (int64_t row = begin; row < end; row++) route_row(context, row);
}

static void back_row(const ls_moe_sigmoid_route_backward_args *a, int64_t row, float *s) {
    const float *logit = a->logits + row * a->n_experts, *g = a->d_weight + row * a->top_k;
    const int32_t *expert = a->expert + row * a->top_k;
    float *dlogit = a->dlogits + row * a->n_experts, total = 0.0f, sum = 0.0f;
    for (int64_t k = 0; k < a->top_k; k++) total = ls_add(total, s[k] = ls_sigmoid(logit[expert[k]]));
    total = ls_add(total, 1e-20f);
    for (int64_t k = 0; k < a->top_k; k++) sum = ls_fma(ls_div(s[k], total), g[k], sum);
    for (int64_t e = 0; e < a->n_experts; e++) dlogit[e] = 0.0f;
    for (int64_t k = 0; k < a->top_k; k++) {
        const float t = a->normalised ? ls_div(ls_sub(g[k], sum), total) : g[k];
        dlogit[expert[k]] = ls_mul(ls_mul(a->scale, t), ls_mul(s[k], ls_sigmoid(-logit[expert[k]])));
    }
}

LS_KERNEL_DEFINE(ls_moe_sigmoid_route_backward_kernel) {
    for (int64_t row = begin; row < end; row++) back_row(context, row, scratch);
}
