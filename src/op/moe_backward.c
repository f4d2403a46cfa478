/* moe backward entries: checks, then one item a row. */
#include "op/moe_backward.h"

#include "op/cpu/kernels.h"
#include "op/operand.h"

LS_KERNEL_TABLE(ls_moe_combine_backward_kernel);
LS_KERNEL_TABLE(ls_moe_route_backward_kernel);

static ls_status check_combine(const ls_moe_combine_backward_args *a, ls_error *err) {
    static const char op[] = "moe_combine_backward";
    const ls_operand operands[] = {
        {"y", a->y, a->n, a->dim, a->dim, 4, false},   {"rows", a->rows, a->n, 1, 1, 8, false},
        {"weight", a->weight, a->n, 1, 1, 4, false},   {"dacc", a->dacc, a->acc_rows, a->dim, a->dim, 4, false},
        {"dy", a->dy, a->n, a->dim, a->dim, 4, false}, {"dweight", a->dweight, a->n, 1, 1, 4, false},
    };
    ls_status status;
    if (a->n < 0 || a->dim < 1 || a->acc_rows < 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld rows of %lld out of %lld", op, (long long)a->n, (long long)a->dim,
                       (long long)a->acc_rows);
    if (a->n == 0) return LS_OK;
    LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    for (int64_t i = 0; i < a->n; i++)
        if (a->rows[i] < 0 || a->rows[i] >= a->acc_rows)
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld, entry %lld, is not in 0..%lld", op, (long long)a->rows[i],
                           (long long)i, (long long)a->acc_rows - 1);
done:
    return status;
}

ls_status ls_moe_combine_backward(ls_queue *queue, const ls_moe_combine_backward_args *args, ls_error *err) {
    const ls_status status = check_combine(args, err);
    if (status != LS_OK) return status;
    ls_kernel_run(queue, ls_moe_combine_backward_kernel_table, args, args->n, 2 * args->dim + 300);
    return LS_OK;
}

static ls_status check_route(const ls_moe_route_backward_args *a, ls_error *err) {
    static const char op[] = "moe_route_backward";
    const ls_operand operands[] = {
        {"logits", a->logits, a->rows, a->n_experts, a->n_experts, 4, false},
        {"expert", a->expert, a->rows, a->top_k, a->top_k, 4, false},
        {"d_weight", a->d_weight, a->rows, a->top_k, a->top_k, 4, false},
        {"dlogits", a->dlogits, a->rows, a->n_experts, a->n_experts, 4, false},
    };
    ls_status status;
    if (a->n_experts < 1 || a->n_experts > LS_EXPERTS_MAX || a->top_k < 1 || a->top_k > a->n_experts)
        return LS_FAIL(err, LS_ERR_ARG, "%s: top %lld of %lld experts (at most %d)", op, (long long)a->top_k,
                       (long long)a->n_experts, LS_EXPERTS_MAX);
    if (a->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)a->rows);
    if (a->rows == 0) return LS_OK;
    LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    for (int64_t i = 0; i < a->rows * a->top_k; i++) {
        const int32_t least = i % a->top_k == 0 ? 0 : a->expert[i - 1] + 1;
        if (a->expert[i] < least || a->expert[i] >= a->n_experts)
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: expert %d, choice %lld, is not in %d..%lld", op,
                           (long long)(i / a->top_k), a->expert[i], (long long)(i % a->top_k), least,
                           (long long)a->n_experts - 1);
    }
done:
    return status;
}

ls_status ls_moe_route_backward(ls_queue *queue, const ls_moe_route_backward_args *args, ls_error *err) {
    const ls_status status = check_route(args, err);
    if (status != LS_OK) return status;
    ls_kernel_run(queue, ls_moe_route_backward_kernel_table, args, args->rows, 40 * args->n_experts);
    return LS_OK;
}
