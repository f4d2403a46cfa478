/* logprob entry: every row is checked before any is computed; one item a row. */
#include "op/logprob.h"

#include <math.h>

#include "op/kernels.h"

LS_KERNEL_TABLE(ls_logprob_kernel);
LS_KERNEL_TABLE(ls_sequence_sum_kernel);

ls_status ls_logprob_check(const ls_logprob_args *args, ls_error *err) {
    if (args->logits == NULL || args->targets == NULL || args->logprob == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "logprob: logits, targets or logprob is a null pointer");
    if (ls_dtype_bytes(args->dtype) == 0)
        return LS_FAIL(err, LS_ERR_ARG, "logprob: data type %d is unknown", (int)args->dtype);
    if (args->rows < 0 || args->vocab < 1 || args->vocab > LS_LOGPROB_VOCAB_MAX || args->row_stride < args->vocab)
        return LS_FAIL(err, LS_ERR_ARG, "logprob: rows %lld, vocab %lld, row stride %lld", (long long)args->rows,
                       (long long)args->vocab, (long long)args->row_stride);
    return LS_OK;
}

ls_status ls_logprob(ls_queue *queue, const ls_logprob_args *args, ls_error *err) {
    const ls_status status = ls_logprob_check(args, err);
    if (status != LS_OK) return status;
    for (int64_t r = 0; r < args->rows; r++) {
        const int64_t target = args->targets[r];
        if (target == args->ignore_index || (args->mask != NULL && args->mask[r] == 0)) continue;
        if (target < 0 || target >= args->vocab)
            return LS_FAIL(err, LS_ERR_ARG, "logprob: row %lld: target %lld is not in 0..%lld", (long long)r,
                           (long long)target, (long long)args->vocab - 1);
        if (args->temperature != NULL && !(args->temperature[r] > 0.0f && isfinite(args->temperature[r])))
            return LS_FAIL(err, LS_ERR_ARG, "logprob: row %lld: temperature %g is not finite and positive",
                           (long long)r, (double)args->temperature[r]);
    }
    ls_kernel_run(queue, ls_logprob_kernel_table, args, args->rows, 15 * args->vocab);
    return LS_OK;
}

ls_status ls_sequence_sum(ls_queue *queue, const ls_sequence_sum_args *args, ls_error *err) {
    for (int64_t s = 0; s < args->n_sequences; s++)
        if (args->offsets[s] < 0 || args->offsets[s + 1] < args->offsets[s])
            return LS_FAIL(err, LS_ERR_ARG, "sequence sum: sequence %lld has rows %lld to %lld", (long long)s,
                           (long long)args->offsets[s], (long long)args->offsets[s + 1]);
    ls_kernel_run(queue, ls_sequence_sum_kernel_table, args, args->n_sequences, 1000);
    return LS_OK;
}
