/* logprob: what the host can see of a call. */
#include "op/logprob.h"

#include "base/mem.h"
#include "op/operand.h"

static ls_status check_logprob_sizes(const char *op, ls_dtype dtype, int64_t rows, const char *name, int64_t vocab,
                                     ls_error *err) {
    if (ls_dtype_bytes(dtype) == 0) return LS_FAIL(err, LS_ERR_ARG, "%s: data type %d is unknown", op, (int)dtype);
    if (rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows is %lld", op, (long long)rows);
    if (vocab < 1 || vocab > LS_LOGPROB_VOCAB_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %s %lld is not in 1..%d", op, name, (long long)vocab,
                       LS_LOGPROB_VOCAB_MAX);
    return LS_OK;
}

ls_status ls_logprob_check(const ls_logprob_args *args, ls_error *err) {
    const int64_t rows = args->rows;
    const ls_operand operands[] = {
        {"logits", args->logits, rows, args->vocab, args->row_stride, ls_dtype_bytes(args->dtype), false},
        {"targets", args->targets, rows, 1, 1, 8, false},
        {"logprob", args->logprob, rows, 1, 1, 4, false},
    };
    const ls_status status = check_logprob_sizes("logprob", args->dtype, rows, "vocab", args->vocab, err);
    return status != LS_OK ? status : ls_operands_check("logprob", operands, 3, err);
}

ls_status ls_logprob_shard_check(const ls_logprob_shard_args *args, ls_error *err) {
    const char *op = "logprob_shard";
    const int64_t rows = args->rows, n_leaves = ls_logprob_leaves(args->total);
    const ls_operand operands[] = {
        {"logits", args->logits, rows, args->vocab, args->row_stride, ls_dtype_bytes(args->dtype), false},
        {"targets", args->targets, rows, 1, 1, 8, false},
        {"leaves", args->leaves, rows, n_leaves, args->leaf_stride, (int64_t)sizeof(ls_logprob_leaf), false},
        {"target_z", args->target_z, rows, 1, 1, 4, false},
    };
    const ls_status status = check_logprob_sizes(op, args->dtype, rows, "total", args->total, err);
    if (status != LS_OK) return status;
    if (args->first < 0 || args->first >= args->total || args->first % LS_LOGPROB_LEAF != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: first %lld is not a multiple of %d below %lld", op, (long long)args->first,
                       LS_LOGPROB_LEAF, (long long)args->total);
    if (args->vocab < 1 || args->vocab > args->total - args->first)
        return LS_FAIL(err, LS_ERR_ARG, "%s: vocab %lld is not in 1..%lld, the columns from %lld on", op,
                       (long long)args->vocab, (long long)(args->total - args->first), (long long)args->first);
    if (args->vocab % LS_LOGPROB_LEAF != 0 && args->vocab != args->total - args->first)
        return LS_FAIL(err, LS_ERR_ARG, "%s: vocab %lld is not a multiple of %d and the shard is not the last", op,
                       (long long)args->vocab, LS_LOGPROB_LEAF);
    return ls_operands_check(op, operands, 4, err);
}

ls_status ls_logprob_combine_check(const ls_logprob_combine_args *args, ls_error *err) {
    const int64_t rows = args->rows, n_leaves = ls_logprob_leaves(args->total);
    const ls_operand operands[] = {
        {"leaves", args->leaves, rows, n_leaves, args->leaf_stride, (int64_t)sizeof(ls_logprob_leaf), false},
        {"target_z", args->target_z, rows, 1, 1, 4, false},
        {"targets", args->targets, rows, 1, 1, 8, false},
        {"logprob", args->logprob, rows, 1, 1, 4, false},
    };
    const ls_status status = check_logprob_sizes("logprob_combine", LS_F32, rows, "total", args->total, err);
    return status != LS_OK ? status : ls_operands_check("logprob_combine", operands, 4, err);
}

ls_status ls_logprob_backward_check(const ls_logprob_backward_args *args, ls_error *err) {
    const char *op = "logprob_backward";
    const int64_t rows = args->rows, elem = ls_dtype_bytes(args->dtype);
    const ls_operand operands[] = {
        {"logits", args->logits, rows, args->vocab, args->row_stride, elem, false},
        {"targets", args->targets, rows, 1, 1, 8, false},
        {"lse", args->lse, rows, 1, 1, 4, false},
        {"d_logits", args->d_logits, rows, args->vocab, args->d_stride, args->d_bf16 ? 2 : elem, false},
    };
    const int64_t wide = args->d_bf16 ? 2 : 1;
    int64_t d_stride;
    ls_status status = check_logprob_sizes(op, args->dtype, rows, "vocab", args->vocab, err);
    if (status != LS_OK) return status;
    if (args->d_bf16 && args->dtype != LS_F32)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: d_bf16 with logits of type %s", op, ls_dtype_name(args->dtype));
    status = ls_operands_check(op, operands, 4, err);
    if (status != LS_OK) return status;
    if (args->d_entropy != NULL && args->entropy == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: entropy is a null pointer and d_entropy is not", op);
    if (args->d_logits == args->logits &&
        (!ls_mul_i64(args->row_stride, wide, &d_stride) || args->d_stride != d_stride))
        return LS_FAIL(err, LS_ERR_ARG, "%s: d_logits is logits, but d_stride %lld is not row_stride %lld%s", op,
                       (long long)args->d_stride, (long long)args->row_stride, args->d_bf16 ? " twice" : "");
    return LS_OK;
}

ls_status ls_sequence_sum_check(const ls_sequence_sum_args *args, ls_error *err) {
    const char *op = "sequence_sum";
    const int64_t n = args->n_sequences;
    const ls_operand operands[] = {
        {"logprob", args->logprob, args->rows, 1, 1, 4, false},
        {"offsets", args->offsets, n, 1, 1, 8, true},
        {"out", args->out, n, 1, 1, 4, false},
    };
    int64_t rows;
    if (args->rows < 0 || n < 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows is %lld, n_sequences %lld", op, (long long)args->rows, (long long)n);
    if (args->offsets == NULL && (args->length < 0 || !ls_mul_i64(n, args->length, &rows) || rows > args->rows))
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld sequences of length %lld do not fit %lld rows", op, (long long)n,
                       (long long)args->length, (long long)args->rows);
    return ls_operands_check(op, operands, 3, err);
}
