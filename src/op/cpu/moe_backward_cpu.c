/* moe backward on the CPU: the chains of a row's sum are vector lanes. */
#include "num/expf.h"
#include "num/sum.h"
#include "op/cpu/kernels.h"
#include "op/moe_backward.h"

LS_KERNEL_DEFINE(ls_moe_combine_backward_kernel) {
    const ls_moe_combine_backward_args *a = context;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        const float *y = a->y + i * a->dim, *dacc = a->dacc + a->rows[i] * a->dim;
        const float weight = a->weight[i];
        float chain[LS_SUM_CHAINS] = {0}, *dy = a->dy + i * a->dim;
        for (int64_t base = 0; base < a->dim; base += LS_SUM_CHAINS) {
            const int64_t n = a->dim - base < LS_SUM_CHAINS ? a->dim - base : LS_SUM_CHAINS;
            for (int64_t c = 0; c < n; c++) chain[c] = ls_fma(y[base + c], dacc[base + c], chain[c]);
        }
        for (int64_t c = 0; c < a->dim; c++) dy[c] = ls_mul(weight, dacc[c]);
        a->dweight[i] = ls_sum_fold(chain);
    }
}

LS_KERNEL_DEFINE(ls_moe_gather_backward_kernel) {
    const ls_moe_gather_backward_args *a = context;
    (void)scratch;
    for (int64_t row = begin; row < end; row++) {
        float *d = a->d + row * a->dim;
        for (int64_t c = 0; c < a->dim; c++) d[c] = 0.0f;
        for (int64_t k = 0; k < a->top_k; k++) {
            const int64_t from = a->place[row * a->top_k + k] * a->dim;
            for (int64_t c = 0; c < a->dim; c++) d[c] = ls_add(d[c], a->first[from + c]);
            for (int64_t c = 0; a->second != NULL && c < a->dim; c++) d[c] = ls_add(d[c], a->second[from + c]);
        }
    }
}

static void route_row(const ls_moe_route_backward_args *a, int64_t row, float *p) {
    const float *logit = a->logits + row * a->n_experts, *d_weight = a->d_weight + row * a->top_k;
    const int32_t *expert = a->expert + row * a->top_k;
    float *dlogit = a->dlogits + row * a->n_experts, m = -HUGE_VALF, total = 0.0f, sum = 0.0f;
    for (int64_t e = 0; e < a->n_experts; e++) m = ls_max(logit[e], m);
    for (int64_t e = 0; e < a->n_experts; e++) p[e] = ls_exp(ls_sub(logit[e], m));
    for (int64_t e = 0; e < a->n_experts; e++) total = ls_add(total, p[e]);
    for (int64_t e = 0; e < a->n_experts; e++) p[e] = ls_div(p[e], total);
    for (int64_t k = 0; k < a->top_k; k++) sum = ls_fma(p[expert[k]], d_weight[k], sum);
    for (int64_t e = 0; e < a->n_experts; e++) dlogit[e] = ls_mul(p[e], ls_sub(0.0f, sum));
    for (int64_t k = 0; k < a->top_k; k++) dlogit[expert[k]] = ls_mul(p[expert[k]], ls_sub(d_weight[k], sum));
}

LS_KERNEL_DEFINE(ls_moe_route_backward_kernel) {
    for (int64_t row = begin; row < end; row++) route_row(context, row, scratch);
}

static void reweigh_row(const ls_moe_reweigh_backward_args *a, int64_t row, float *w) {
    const float *logit = a->logits + row * a->n_experts, *g = a->d_weight + row * a->top_k;
    const int32_t *expert = a->expert + row * a->top_k;
    float *dlogit = a->dlogits + row * a->n_experts, m = -HUGE_VALF, total = 0.0f, sum = 0.0f;
    for (int64_t k = 0; k < a->top_k; k++) m = ls_max(logit[expert[k]], m);
    for (int64_t k = 0; k < a->top_k; k++) {
        w[k] = ls_exp(ls_sub(logit[expert[k]], m));
        total = ls_add(total, w[k]);
    }
    for (int64_t k = 0; k < a->top_k; k++) w[k] = ls_div(w[k], total);
    for (int64_t k = 0; k < a->top_k; k++) sum = ls_fma(w[k], g[k], sum);
    for (int64_t e = 0; e < a->n_experts; e++) dlogit[e] = 0.0f;
    for (int64_t k = 0; k < a->top_k; k++) dlogit[expert[k]] = ls_mul(w[k], ls_sub(g[k], sum));
}

LS_KERNEL_DEFINE(ls_moe_reweigh_backward_kernel) {
    for (int64_t row = begin; row < end; row++) reweigh_row(context, row, scratch);
}
