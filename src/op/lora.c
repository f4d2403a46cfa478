/* Low-rank adapters: what the host can see of a call. */
#include "op/lora.h"

#include <math.h>

#include "num/half.h"
#include "op/operand.h"

static ls_status check_lora_sizes(const char *op, int64_t n, int64_t k, int64_t rank, float scale, ls_error *err) {
    if (n < 1 || k < 1 || rank < 1 || rank > LS_LORA_RANK_MAX || !isfinite(scale))
        return LS_FAIL(err, LS_ERR_ARG, "%s: a matrix %lld x %lld of rank %lld times %g", op, (long long)n,
                       (long long)k, (long long)rank, (double)scale);
    return LS_OK;
}

ls_status ls_lora_merge_check(const ls_lora_merge_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype);
    const ls_operand operands[] = {{"w0", a->w0, a->n, a->k, a->k, elem, false},
                                   {"a", a->a, a->rank, a->k, a->k, 4, false},
                                   {"b", a->b, a->n, a->rank, a->rank, 4, false},
                                   {"out", a->out, a->n, a->k, a->k, elem, false}};
    if (elem == 0) return LS_FAIL(err, LS_ERR_ARG, "lora_merge: weights of type %d", (int)a->dtype);
    LS_TRY(check_lora_sizes("lora_merge", a->n, a->k, a->rank, a->scale, err));
    return ls_operands_check("lora_merge", operands, 4, err);
}

ls_status ls_lora_backward_check(const ls_lora_backward_args *a, ls_error *err) {
    const ls_operand operands[] = {{"dw", a->dw, a->n, a->k, a->k, 4, false},
                                   {"a", a->a, a->rank, a->k, a->k, 4, false},
                                   {"b", a->b, a->n, a->rank, a->rank, 4, false},
                                   {"da", a->da, a->rank, a->k, a->k, 4, false},
                                   {"db", a->db, a->n, a->rank, a->rank, 4, false}};
    LS_TRY(check_lora_sizes("lora_backward", a->n, a->k, a->rank, a->scale, err));
    return ls_operands_check("lora_backward", operands, 5, err);
}
