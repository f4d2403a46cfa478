/* moe entries: one item a row. */
#include "op/moe.h"

#include "op/cpu/kernels.h"

LS_KERNEL_TABLE(ls_moe_route_kernel);
LS_KERNEL_TABLE(ls_moe_combine_kernel);

ls_status ls_moe_route(ls_queue *queue, const ls_moe_route_args *args, ls_error *err) {
    if (args->n_experts < 1 || args->n_experts > LS_EXPERTS_MAX || args->top_k < 1 || args->top_k > args->n_experts)
        return LS_FAIL(err, LS_ERR_ARG, "moe: top %lld of %lld experts (at most %d)", (long long)args->top_k,
                       (long long)args->n_experts, LS_EXPERTS_MAX);
    ls_kernel_run(queue, ls_moe_route_kernel_table, args, args->rows, 50 * args->n_experts);
    return LS_OK;
}

ls_status ls_moe_combine(ls_queue *queue, const ls_moe_combine_args *args, ls_error *err) {
    if (args->n < 0 || args->dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "moe: combine %lld rows of %lld", (long long)args->n, (long long)args->dim);
    ls_kernel_run(queue, ls_moe_combine_kernel_table, args, args->n, args->dim);
    return LS_OK;
}
