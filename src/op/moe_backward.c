/* Gradients of the mixture of experts: what the host can see of a call. */
#include "op/moe_backward.h"

#include "op/operand.h"

ls_status ls_moe_combine_backward_check(const ls_moe_combine_backward_args *a, ls_error *err) {
    static const char op[] = "moe_combine_backward";
    const ls_operand operands[] = {
        {"y", a->y, a->n, a->dim, a->dim, 4, false},   {"rows", a->rows, a->n, 1, 1, 8, false},
        {"weight", a->weight, a->n, 1, 1, 4, false},   {"dacc", a->dacc, a->acc_rows, a->dim, a->dim, 4, false},
        {"dy", a->dy, a->n, a->dim, a->dim, 4, false}, {"dweight", a->dweight, a->n, 1, 1, 4, false},
    };
    if (a->n < 0 || a->dim < 1 || a->acc_rows < 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld rows of %lld out of %lld", op, (long long)a->n, (long long)a->dim,
                       (long long)a->acc_rows);
    if (a->n == 0) return LS_OK;
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_moe_gather_backward_check(const ls_moe_gather_backward_args *a, ls_error *err) {
    static const char op[] = "moe_gather_backward";
    if (a->rows < 0 || a->top_k < 1 || a->top_k > LS_EXPERTS_MAX || a->dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld rows of %lld choices of %lld", op, (long long)a->rows,
                       (long long)a->top_k, (long long)a->dim);
    const ls_operand operands[] = {{"first", a->first, a->rows, a->top_k * a->dim, a->top_k * a->dim, 4, false},
                                   {"second", a->second, a->rows, a->top_k * a->dim, a->top_k * a->dim, 4, true},
                                   {"place", a->place, a->rows, a->top_k, a->top_k, 8, false},
                                   {"d", a->d, a->rows, a->dim, a->dim, 4, false}};
    if (a->rows == 0) return LS_OK;
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

/* Of both routings, whose arguments are the same. */
static ls_status check_routing(const char *op, const ls_moe_route_backward_args *a, ls_error *err) {
    const int64_t rows = a->rows, n_experts = a->n_experts, top_k = a->top_k;
    const ls_operand operands[] = {
        {"logits", a->logits, rows, n_experts, n_experts, 4, false},
        {"expert", a->expert, rows, top_k, top_k, 4, false},
        {"d_weight", a->d_weight, rows, top_k, top_k, 4, false},
        {"dlogits", a->dlogits, rows, n_experts, n_experts, 4, false},
    };
    if (n_experts < 1 || n_experts > LS_EXPERTS_MAX || top_k < 1 || top_k > n_experts)
        return LS_FAIL(err, LS_ERR_ARG, "%s: top %lld of %lld experts (at most %d)", op, (long long)top_k,
                       (long long)n_experts, LS_EXPERTS_MAX);
    if (rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)rows);
    if (rows == 0) return LS_OK;
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_moe_route_backward_check(const ls_moe_route_backward_args *a, ls_error *err) {
    return check_routing("moe_route_backward", a, err);
}

ls_status ls_moe_reweigh_backward_check(const ls_moe_reweigh_backward_args *a, ls_error *err) {
    const ls_moe_route_backward_args routing = {.logits = a->logits,
                                                .rows = a->rows,
                                                .n_experts = a->n_experts,
                                                .top_k = a->top_k,
                                                .expert = a->expert,
                                                .d_weight = a->d_weight,
                                                .dlogits = a->dlogits};
    return check_routing("moe_reweigh_backward", &routing, err);
}
