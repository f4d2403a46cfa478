/* Mixture of experts: routing and the ordered combination (Jamba, arXiv:2403.19887: softmax over all experts, no
 * renormalisation of the chosen).
 *
 * Logits are float32.
 * route: m = max_e logit[r][e];  w_e = exp(logit - m);  p_e = w_e / chain_e(w_e, ascending from +0)
 *        The top_k largest p are chosen, the lower expert first among equals; they are listed by ascending expert.
 *        A row with a NaN or +inf, or without a logit above -inf, has NaN for every p: the lowest top_k experts are
 *        chosen, with weight NaN.
 * combine: acc[r][c] = fma(p_e, y_e[r][c], acc[r][c]) over the chosen experts in ascending order, from +0; y_e is the
 *        expert's unrounded float32 output; one rounding at the end. */
#ifndef LS_OP_MOE_H
#define LS_OP_MOE_H

#include "base/status.h"
#include "lockstep/lockstep.h"

#define LS_EXPERTS_MAX 1024

typedef struct ls_moe_route_args {
    const float *logits; /* [rows][n_experts] */
    int64_t rows, n_experts, top_k;
    int32_t *expert; /* [rows][top_k], ascending */
    float *weight;   /* [rows][top_k] */
} ls_moe_route_args;

ls_status ls_moe_route_check(const ls_moe_route_args *args, ls_error *err);

/* Rows in the order of their experts. Pick number row * top_k + k is the k-th choice of a row; picks are sorted by
 * (expert, row). No arithmetic: nothing of it carries a bit. */
typedef struct ls_moe_place_args {
    const int32_t *expert; /* [rows][top_k], of the routing */
    int64_t rows, n_experts, top_k;
    int64_t *pick;    /* [rows * top_k]: pick number in i-th place */
    int64_t *row;     /* [rows * top_k]: its row, pick[i] / top_k */
    int64_t *place;   /* [rows * top_k]: place of a pick, the inverse of pick */
    int64_t *offsets; /* [n_experts + 1]: expert e has the places [offsets[e], offsets[e + 1]) */
} ls_moe_place_args;

/* An expert outside [0, n_experts) is an error before anything is written. */
ls_status ls_moe_place_check(const ls_moe_place_args *args, ls_error *err);

/* Adds one expert's rows: acc[rows[i]] = fma(weight[i], y[i], acc[rows[i]]). Called for experts in ascending order. */
typedef struct ls_moe_combine_args {
    const float *y;      /* [n][dim] */
    const int64_t *rows; /* [n], distinct */
    const float *weight; /* [n] */
    float *acc;          /* [..][dim] */
    int64_t n, dim;
    const int64_t *range; /* as in ls_gemm_args: of y, rows and weight; NULL: all */
} ls_moe_combine_args;

ls_status ls_moe_combine_check(const ls_moe_combine_args *args, ls_error *err);

#endif
