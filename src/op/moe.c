/* Mixture of experts: what the host can see of a call. */
#include "op/moe.h"

#include "op/operand.h"

ls_status ls_moe_route_check(const ls_moe_route_args *args, ls_error *err) {
    if (args->n_experts < 1 || args->n_experts > LS_EXPERTS_MAX || args->top_k < 1 || args->top_k > args->n_experts)
        return LS_FAIL(err, LS_ERR_ARG, "moe: top %lld of %lld experts (at most %d)", (long long)args->top_k,
                       (long long)args->n_experts, LS_EXPERTS_MAX);
    if (args->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "moe_route: rows %lld", (long long)args->rows);
    {
        const int64_t rows = args->rows;
        const ls_operand operands[] = {
            {"logits", args->logits, rows, args->n_experts, args->n_experts, 4, rows == 0},
            {"expert", args->expert, rows, args->top_k, args->top_k, 4, rows == 0},
            {"weight", args->weight, rows, args->top_k, args->top_k, 4, rows == 0},
        };
        return ls_operands_check("moe_route", operands, 3, err);
    }
}

ls_status ls_moe_reweigh_check(const ls_moe_reweigh_args *a, ls_error *err) {
    const ls_operand operands[] = {{"logits", a->logits, a->rows, a->n_experts, a->n_experts, 4, a->rows == 0},
                                   {"expert", a->expert, a->rows, a->top_k, a->top_k, 4, a->rows == 0},
                                   {"weight", a->weight, a->rows, a->top_k, a->top_k, 4, a->rows == 0}};
    if (a->rows < 0 || a->n_experts < 1 || a->n_experts > LS_EXPERTS_MAX || a->top_k < 1 || a->top_k > a->n_experts)
        return LS_FAIL(err, LS_ERR_ARG, "moe_reweigh: %lld rows, top %lld of %lld experts (at most %d)",
                       (long long)a->rows, (long long)a->top_k, (long long)a->n_experts, LS_EXPERTS_MAX);
    return ls_operands_check("moe_reweigh", operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_moe_place_check(const ls_moe_place_args *args, ls_error *err) {
    const int64_t rows = args->rows;
    const ls_operand operands[] = {
        {"expert", args->expert, rows, args->top_k, args->top_k, 4, rows == 0},
        {"pick", args->pick, rows, args->top_k, args->top_k, 8, rows == 0},
        {"row", args->row, rows, args->top_k, args->top_k, 8, rows == 0},
        {"place", args->place, rows, args->top_k, args->top_k, 8, rows == 0},
        {"offsets", args->offsets, 1, args->n_experts + 1, args->n_experts + 1, 8, false},
    };
    if (rows < 0 || args->n_experts < 1 || args->n_experts > LS_EXPERTS_MAX || args->top_k < 1 ||
        args->top_k > args->n_experts)
        return LS_FAIL(err, LS_ERR_ARG, "moe_place: %lld rows, top %lld of %lld experts (at most %d)", (long long)rows,
                       (long long)args->top_k, (long long)args->n_experts, LS_EXPERTS_MAX);
    return ls_operands_check("moe_place", operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_moe_sum_check(const ls_moe_sum_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    if (a->rows < 0 || a->top_k < 1 || a->top_k > LS_EXPERTS_MAX || a->dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "moe_sum: %lld rows of %lld choices of %lld", (long long)a->rows,
                       (long long)a->top_k, (long long)a->dim);
    const ls_operand operands[] = {{"y", a->y, a->rows, a->top_k * a->dim, a->top_k * a->dim, 4, none},
                                   {"place", a->place, a->rows, a->top_k, a->top_k, 8, none},
                                   {"weight", a->weight, a->rows, a->top_k, a->top_k, 4, none},
                                   {"out", a->out, a->rows, a->dim, a->dim, 4, none}};
    return ls_operands_check("moe_sum", operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_moe_combine_check(const ls_moe_combine_args *args, ls_error *err) {
    if (args->n < 0 || args->dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "moe: combine %lld rows of %lld", (long long)args->n, (long long)args->dim);
    {
        const int64_t n = args->n;
        const ls_operand operands[] = {{"y", args->y, n, args->dim, args->dim, 4, n == 0},
                                       {"rows", args->rows, n, 1, 1, 8, n == 0},
                                       {"weight", args->weight, n, 1, 1, 4, n == 0},
                                       {"acc", args->acc, 0, args->dim, args->dim, 4, n == 0}};
        return ls_operands_check("moe_combine", operands, 4, err);
    }
}
