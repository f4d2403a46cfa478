/* Mixture of experts: routing and the ordered combination (Jamba, arXiv:2403.19887: softmax over all experts, no
 * renormalisation of the chosen).
 *
 * Logits are float32.
 * route: m = max_e logit[r][e];  w_e = exp(logit - m);  p_e = w_e / chain_e(w_e, ascending from +0)
 *        The top_k largest p are chosen, the lower expert first among equals; they are listed by ascending expert.
 *        A row with a NaN or +inf, or without a logit above -inf, has NaN for every p: the lowest top_k experts are
 *        chosen, with weight NaN.
 * reweigh: where the chosen alone share the weight (Mixtral, arXiv:2401.04088; Qwen3's norm_topk_prob), over a row's
 *        chosen experts, ascending: m = max logit[e];  w = exp(logit[e] - m);  weight = w / chain(w from +0)
 *        A row whose weights are NaN keeps them.
 * combine: acc[r][c] = fma(p_e, y_e[r][c], acc[r][c]) over the chosen experts in ascending order, from +0; y_e is the
 *        expert's unrounded float32 output; one rounding at the end.
 * sum: combine of all of a row's choices in one call, from +0:
 *        out[r][c]: acc = +0; for k = 0 .. top_k - 1: acc = fma(weight[r][k], y[place[r][k]][c], acc) */
#ifndef LS_OP_MOE_H
#define LS_OP_MOE_H

#include "base/status.h"
#include "lockstep/ops.h"

ls_status ls_moe_route_check(const ls_moe_route_args *args, ls_error *err);

/* Experts that do not exist or do not ascend within their row are an error before anything is written. */
ls_status ls_moe_reweigh_check(const ls_moe_reweigh_args *args, ls_error *err);

/* An expert outside [0, n_experts) is an error before anything is written. */
ls_status ls_moe_place_check(const ls_moe_place_args *args, ls_error *err);

ls_status ls_moe_combine_check(const ls_moe_combine_args *args, ls_error *err);

typedef struct ls_moe_sum_args {
    const float *y;       /* [rows * top_k][dim], in the order of places */
    const int64_t *place; /* [rows][top_k], of ls_moe_place: their range is the caller's care */
    const float *weight;  /* [rows][top_k] */
    float *out;           /* [rows][dim] */
    int64_t rows, top_k, dim;
} ls_moe_sum_args;

ls_status ls_moe_sum_check(const ls_moe_sum_args *args, ls_error *err);

#endif
