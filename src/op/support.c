/* Supports and penalties: what the host can see of a call. */
#include "op/support.h"

#include <math.h>

#include "op/operand.h"

ls_status ls_support_check(const ls_support_args *a, ls_error *err) {
    const int64_t words = a->vocab < 1 ? 1 : ls_support_words(a->vocab);
    const ls_operand operands[] = {
        {"logits", a->logits, a->rows, a->vocab, a->vocab, 4, a->rows == 0},
        {"bits", a->bits, a->rows, words, words, 4, a->rows == 0},
    };
    if (a->rows < 0 || a->vocab < 1)
        return LS_FAIL(err, LS_ERR_ARG, "support: %lld rows of %lld", (long long)a->rows, (long long)a->vocab);
    return ls_operands_check("support", operands, 2, err);
}

ls_status ls_penalties_check(const ls_penalties *p, ls_error *err) {
    if (!(p->repetition > 0.0f && isfinite(p->repetition)))
        return LS_FAIL(err, LS_ERR_ARG, "repetition_penalty: %g is not a finite number above 0", (double)p->repetition);
    if (!isfinite(p->frequency))
        return LS_FAIL(err, LS_ERR_ARG, "frequency_penalty: %g is not finite", (double)p->frequency);
    if (!isfinite(p->presence))
        return LS_FAIL(err, LS_ERR_ARG, "presence_penalty: %g is not finite", (double)p->presence);
    return LS_OK;
}

ls_status ls_penalize_check(const ls_penalize_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"logits", a->logits, a->rows, a->vocab, a->vocab, 4, a->rows == 0},
        {"penalties", a->penalties, a->rows, 1, 1, (int64_t)sizeof(ls_penalties), a->rows == 0},
        {"begins", a->begins, a->rows + 1, 1, 1, 8, a->rows == 0},
        {"items", a->items, a->items_max, 1, 1, (int64_t)sizeof(ls_penalty_item), a->items_max == 0},
        {"saved", a->saved, a->items_max, 1, 1, 4, a->items_max == 0},
    };
    if (a->rows < 0 || a->vocab < 1 || a->items_max < 0)
        return LS_FAIL(err, LS_ERR_ARG, "penalize: %lld rows of %lld, %lld items", (long long)a->rows,
                       (long long)a->vocab, (long long)a->items_max);
    return ls_operands_check("penalize", operands, 5, err);
}
