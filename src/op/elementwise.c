/* Entries of the elementwise ops: one item a row. */
#include "op/elementwise.h"

#include "op/cpu/kernels.h"

LS_KERNEL_TABLE(ls_embed_kernel);
LS_KERNEL_TABLE(ls_residual_kernel);
LS_KERNEL_TABLE(ls_swiglu_kernel);

static ls_status check_size(const char *op, int64_t rows, int64_t dim, ls_error *err) {
    if (rows < 0 || dim <= 0 || dim > LS_SCRATCH_FLOATS / 2)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld, dim %lld (dim is at most %d)", op, (long long)rows,
                       (long long)dim, LS_SCRATCH_FLOATS / 2);
    return LS_OK;
}

ls_status ls_embed(ls_queue *queue, const ls_embed_args *args, ls_error *err) {
    ls_status status = check_size("embed", args->rows, args->dim, err);
    if (status != LS_OK) return status;
    for (int64_t r = 0; r < args->rows; r++)
        if (args->tokens[r] < 0 || args->tokens[r] >= args->vocab)
            return LS_FAIL(err, LS_ERR_ARG, "embed: row %lld: token %d is not in 0..%lld", (long long)r,
                           args->tokens[r], (long long)args->vocab - 1);
    ls_kernel_run(queue, ls_embed_kernel_table, args, args->rows, args->dim);
    return LS_OK;
}

ls_status ls_residual(ls_queue *queue, const ls_residual_args *args, ls_error *err) {
    ls_status status = check_size("residual", args->rows, args->dim, err);
    if (status != LS_OK) return status;
    ls_kernel_run(queue, ls_residual_kernel_table, args, args->rows, args->dim);
    return LS_OK;
}

ls_status ls_swiglu(ls_queue *queue, const ls_swiglu_args *args, ls_error *err) {
    ls_status status = check_size("swiglu", args->rows, args->dim, err);
    if (status != LS_OK) return status;
    ls_kernel_run(queue, ls_swiglu_kernel_table, args, args->rows, 50 * args->dim);
    return LS_OK;
}
