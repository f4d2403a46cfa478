/* Likeliest entries: what the host can see of a call. */
#include "op/top.h"

#include "op/logprob.h"
#include "op/operand.h"

ls_status ls_top_check(const ls_top_args *a, ls_error *err) {
    const int64_t leaves = a->vocab < 1 ? 1 : ls_logprob_leaves(a->vocab);
    const ls_operand operands[] = {
        {"logits", a->logits, a->rows, a->vocab, a->vocab, 4, a->rows == 0},
        {"leaves", a->leaves, a->rows, leaves, leaves, (int64_t)sizeof *a->leaves, a->rows == 0},
        {"id", a->id, a->rows, a->k, a->k, 4, a->rows == 0},
        {"logprob", a->logprob, a->rows, a->k, a->k, 4, a->rows == 0},
    };
    if (a->rows < 0 || a->vocab < 1 || a->vocab > INT32_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "top: %lld rows of %lld", (long long)a->rows, (long long)a->vocab);
    if (a->k < 1 || a->k > LS_TOP_MAX || a->k > a->vocab)
        return LS_FAIL(err, LS_ERR_ARG, "top: %lld entries of %lld; %d at most", (long long)a->k, (long long)a->vocab,
                       LS_TOP_MAX);
    return ls_operands_check("top", operands, 4, err);
}
