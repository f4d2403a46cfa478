/* Sampling: what the host can see of a call. */
#include "op/sample.h"

#include <math.h>

#include "op/operand.h"

ls_status ls_sampling_check(const ls_sampling *s, ls_error *err) {
    if (!(s->temperature >= 0.0f && isfinite(s->temperature)))
        return LS_FAIL(err, LS_ERR_ARG, "temperature: %g is not a finite number of at least 0", (double)s->temperature);
    if (s->temperature > 0.0f && !isfinite(1.0f / s->temperature))
        return LS_FAIL(err, LS_ERR_ARG, "temperature: 1 / %g overflows", (double)s->temperature);
    if (s->top_k < 0) return LS_FAIL(err, LS_ERR_ARG, "top_k: %lld is negative", (long long)s->top_k);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return LS_FAIL(err, LS_ERR_ARG, "top_p: %g is not in (0, 1]", (double)s->top_p);
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return LS_FAIL(err, LS_ERR_ARG, "min_p: %g is not in [0, 1]", (double)s->min_p);
    return LS_OK;
}

ls_status ls_process_check(const ls_process_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"logits", a->logits, a->rows, a->vocab, a->vocab, 4, a->rows == 0},
        {"sampling", a->sampling, a->rows, 1, 1, (int64_t)sizeof(ls_sampling), a->rows == 0},
        {"out", a->out, a->rows, a->vocab, a->vocab, 4, a->rows == 0},
        {"sort_space", a->sort_space, a->rows, a->vocab, a->vocab, 8, a->rows == 0},
    };
    if (a->rows < 0 || a->vocab < 1)
        return LS_FAIL(err, LS_ERR_ARG, "process: %lld rows of %lld", (long long)a->rows, (long long)a->vocab);
    return ls_operands_check("process", operands, 4, err);
}

ls_status ls_sample_check(const ls_sample_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"processed", a->processed, a->rows, a->vocab, a->vocab, 4, a->rows == 0},
        {"kept", a->kept, a->rows, 1, 1, 8, a->rows == 0},
        {"sampling", a->sampling, a->rows, 1, 1, (int64_t)sizeof(ls_sampling), a->rows == 0},
        {"draws", a->draws, a->rows, 1, 1, (int64_t)sizeof(ls_draw), a->rows == 0},
        {"token", a->token, a->rows, 1, 1, 8, a->rows == 0},
    };
    if (a->rows < 0 || a->vocab < 1)
        return LS_FAIL(err, LS_ERR_ARG, "sample: %lld rows of %lld", (long long)a->rows, (long long)a->vocab);
    return ls_operands_check("sample", operands, 5, err);
}
