/* Entries of the gradients of the elementwise ops: one item a row for the gate; one item a block of columns for the
 * embedding, where rows of one token must follow one another. */
#include "op/elementwise_backward.h"

#include "op/cpu/kernels.h"
#include "op/operand.h"

LS_KERNEL_TABLE(ls_swiglu_backward_kernel);
LS_KERNEL_TABLE(ls_embed_backward_kernel);

static ls_status check_size(const char *op, int64_t rows, int64_t dim, ls_error *err) {
    if (rows < 0 || dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld, dim %lld", op, (long long)rows, (long long)dim);
    return LS_OK;
}

ls_status ls_swiglu_backward(ls_queue *queue, const ls_swiglu_backward_args *args, ls_error *err) {
    static const char op[] = "swiglu_backward";
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {
        {"gate", args->gate, rows, dim, dim, 4, rows == 0}, {"up", args->up, rows, dim, dim, 4, rows == 0},
        {"dy", args->dy, rows, dim, dim, 4, rows == 0},     {"dgate", args->dgate, rows, dim, dim, 4, rows == 0},
        {"dup", args->dup, rows, dim, dim, 4, rows == 0},
    };
    ls_status status;
    LS_TRY(check_size(op, rows, dim, err));
    LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    ls_kernel_run(queue, ls_swiglu_backward_kernel_table, args, rows, 60 * dim);
done:
    return status;
}

ls_status ls_embed_backward(ls_queue *queue, const ls_embed_backward_args *args, ls_error *err) {
    static const char op[] = "embed_backward";
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {
        {"tokens", args->tokens, rows, 1, 1, 4, rows == 0},
        {"dy", args->dy, rows, dim, args->dy_stride, 4, rows == 0},
        {"dtable", args->dtable, args->vocab, dim, dim, 4, rows == 0},
    };
    ls_status status;
    LS_TRY(check_size(op, rows, dim, err));
    if (args->vocab < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: vocab %lld", op, (long long)args->vocab);
    LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    for (int64_t r = 0; r < rows; r++)
        if (args->tokens[r] < 0 || args->tokens[r] >= args->vocab)
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: token %d is not in 0..%lld", op, (long long)r,
                           args->tokens[r], (long long)args->vocab - 1);
    ls_kernel_run(queue, ls_embed_backward_kernel_table, args, (dim - 1) / LS_EMBED_BLOCK + 1,
                  2 * LS_EMBED_BLOCK * rows);
done:
    return status;
}
