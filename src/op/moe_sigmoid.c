/* Routing by sigmoids: what the host can see of a call, in both directions. */
#include "op/moe_sigmoid.h"

#include "op/operand.h"

static ls_status check_moe_sizes(const char *op, int64_t rows, int64_t n_experts, int64_t top_k, ls_error *err) {
    if (rows >= 0 && n_experts >= 1 && n_experts <= LS_EXPERTS_MAX && top_k >= 1 && top_k <= n_experts) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: %lld rows, top %lld of %lld experts (at most %d)", op, (long long)rows,
                   (long long)top_k, (long long)n_experts, LS_EXPERTS_MAX);
}

ls_status ls_moe_sigmoid_route_check(const ls_moe_sigmoid_route_args *a, ls_error *err) {
    static const char op[] = "moe_sigmoid_route";
    const int64_t groups = a->n_groups;
    const bool none = a->rows == 0;
    LS_TRY(check_moe_sizes(op, a->rows, a->n_experts, a->top_k, err));
    if (groups < 1 || a->n_experts % groups != 0 || (groups > 1 && a->n_experts / groups < 2))
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld groups of %lld experts", op, (long long)groups,
                       (long long)a->n_experts);
    if (a->top_groups < 1 || a->top_groups > groups || a->top_groups * (a->n_experts / groups) < a->top_k)
        return LS_FAIL(err, LS_ERR_ARG, "%s: top %lld of %lld groups for %lld of %lld experts", op,
                       (long long)a->top_groups, (long long)groups, (long long)a->top_k, (long long)a->n_experts);
    {
        const ls_operand operands[] = {{"logits", a->logits, a->rows, a->n_experts, a->n_experts, 4, none},
                                       {"bias", a->bias, 1, a->n_experts, a->n_experts, 4, none},
                                       {"expert", a->expert, a->rows, a->top_k, a->top_k, 4, none},
                                       {"weight", a->weight, a->rows, a->top_k, a->top_k, 4, none}};
        return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
    }
}

ls_status ls_moe_sigmoid_route_backward_check(const ls_moe_sigmoid_route_backward_args *a, ls_error *err) {
    static const char op[] = "moe_sigmoid_route_backward";
    const bool none = a->rows == 0;
    LS_TRY(check_moe_sizes(op, a->rows, a->n_experts, a->top_k, err));
    {
        const ls_operand operands[] = {{"logits", a->logits, a->rows, a->n_experts, a->n_experts, 4, none},
                                       {"expert", a->expert, a->rows, a->top_k, a->top_k, 4, none},
                                       {"d_weight", a->d_weight, a->rows, a->top_k, a->top_k, 4, none},
                                       {"dlogits", a->dlogits, a->rows, a->n_experts, a->n_experts, 4, none}};
        return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
    }
}
