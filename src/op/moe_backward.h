/* Gradients of the mixture of experts (op/moe.h); which experts were chosen is taken as constant.
 *
 * combine backward, for one expert's rows: with a = dacc[rows[i]], the gradient of the combined output,
 *   dy[i][c] = weight[i] * a[c]
 *   dweight[i] = sum over c of y[i][c] * a[c]: the 256-chain sum of num/sum.h with fma(y, a, chain)
 *   The experts' calls are independent. The accumulator itself gets dacc as it is.
 * route backward: p_e over all experts is that of the forward, computed again from the logits; g_e is d_weight of the
 *   chosen, +0 for the others.
 *   S = chain over the chosen experts, ascending, of fma(p_e, g_e, S) from +0;  dlogits[e] = p_e * (g_e - S)
 * reweigh backward: with w_k the weights of the forward, computed again from the logits, and g_k = d_weight:
 *   S = chain over the chosen experts, ascending, of fma(w_k, g_k, S) from +0;  dlogits[chosen k] = w_k * (g_k - S)
 *   and +0 for the experts that were not chosen: route has no further gradient then.
 * gather backward: of rows that were copied to the places of their choices and went through two products from there,
 *   with the gradients of both: d[r][c]: acc = +0; for k = 0 .. top_k - 1, with i = place[r][k]:
 *   acc = acc + first[i][c], then acc = acc + second[i][c]; of one product the second is left out
 * No NaN pattern is promised. */
#ifndef LS_OP_MOE_BACKWARD_H
#define LS_OP_MOE_BACKWARD_H

#include "op/moe.h"

/* A row outside [0, acc_rows) is an error before anything is written. */
ls_status ls_moe_combine_backward_check(const ls_moe_combine_backward_args *args, ls_error *err);

/* Experts that do not exist or do not ascend within their row are an error before anything is written. */
ls_status ls_moe_route_backward_check(const ls_moe_route_backward_args *args, ls_error *err);

typedef struct ls_moe_gather_backward_args {
    const float *first, *second; /* [rows * top_k][dim], in the order of places; second NULL: of one product */
    const int64_t *place;        /* [rows][top_k], of ls_moe_place: their range is the caller's care */
    float *d;                    /* [rows][dim] */
    int64_t rows, top_k, dim;
} ls_moe_gather_backward_args;

ls_status ls_moe_gather_backward_check(const ls_moe_gather_backward_args *args, ls_error *err);

ls_status ls_moe_reweigh_backward_check(const ls_moe_reweigh_backward_args *args, ls_error *err);

#endif
