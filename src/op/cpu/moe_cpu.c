/* moe on the CPU. */
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/moe.h"

static void route_row(const ls_moe_route_args *a, int64_t row) {
    const float *logit = a->logits + row * a->n_experts;
    float p[LS_EXPERTS_MAX], m = -HUGE_VALF, sum = 0.0f;
    bool chosen[LS_EXPERTS_MAX] = {false};
    int64_t next = 0;
    for (int64_t e = 0; e < a->n_experts; e++) m = ls_max(logit[e], m);
    for (int64_t e = 0; e < a->n_experts; e++) {
        p[e] = ls_exp(ls_sub(logit[e], m));
        sum = ls_add(sum, p[e]);
    }
    for (int64_t e = 0; e < a->n_experts; e++) p[e] = ls_div(p[e], sum);
    for (int64_t k = 0; k < a->top_k; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < a->n_experts; e++)
            if (!chosen[e] && (best < 0 || p[e] > p[best])) best = e;
        chosen[best] = true;
    }
    for (int64_t e = 0; e < a->n_experts; e++)
        if (chosen[e]) {
            a->expert[row * a->top_k + next] = (int32_t)e;
            a->weight[row * a->top_k + next] = p[e];
            next++;
        }
}

LS_KERNEL_DEFINE(ls_moe_route_kernel) {
    (void)scratch;
    for (int64_t row = begin; row < end; row++) route_row(context, row);
}

static void reweigh_row(const ls_moe_reweigh_args *a, int64_t row) {
    const float *logit = a->logits + row * a->n_experts;
    const int32_t *expert = a->expert + row * a->top_k;
    float *weight = a->weight + row * a->top_k, m = -HUGE_VALF, sum = 0.0f;
    if (weight[0] != weight[0]) return;
    for (int64_t k = 0; k < a->top_k; k++) m = ls_max(logit[expert[k]], m);
    for (int64_t k = 0; k < a->top_k; k++) {
        weight[k] = ls_exp(ls_sub(logit[expert[k]], m));
        sum = ls_add(sum, weight[k]);
    }
    for (int64_t k = 0; k < a->top_k; k++) weight[k] = ls_div(weight[k], sum);
}

LS_KERNEL_DEFINE(ls_moe_reweigh_kernel) {
    (void)scratch;
    for (int64_t row = begin; row < end; row++) reweigh_row(context, row);
}

LS_KERNEL_DEFINE(ls_moe_sum_kernel) {
    const ls_moe_sum_args *a = context;
    (void)scratch;
    for (int64_t row = begin; row < end; row++) {
        float *out = a->out + row * a->dim;
        for (int64_t c = 0; c < a->dim; c++) out[c] = 0.0f;
        for (int64_t k = 0; k < a->top_k; k++) {
            const float weight = a->weight[row * a->top_k + k];
            const float *y = a->y + a->place[row * a->top_k + k] * a->dim;
            for (int64_t c = 0; c < a->dim; c++) out[c] = ls_fma(weight, y[c], out[c]);
        }
    }
}

LS_KERNEL_DEFINE(ls_moe_combine_kernel) {
    const ls_moe_combine_args *a = context;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        const float *y = a->y + i * a->dim;
        float *acc = a->acc + a->rows[i] * a->dim;
        for (int64_t c = 0; c < a->dim; c++) acc[c] = ls_fma(a->weight[i], y[c], acc[c]);
    }
}
