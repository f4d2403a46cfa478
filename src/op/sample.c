/* Sampling: argument checks and the choice of the body compiled for an instruction set. */
#include "op/sample.h"

#include <math.h>

#include "op/cpu/kernels.h"
#include "op/cpu/sample_kernel.h"

LS_KERNEL_TABLE_OF(ls_sample_kernel, ls_sample_kernel);

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

int64_t ls_sampling_process(ls_isa isa, float *out, const float *logits, int64_t vocab, const ls_sampling *sampling,
                            int32_t *workspace) {
    return ls_sample_kernel_table[isa]->process(out, logits, vocab, sampling, workspace);
}

int32_t ls_sample(ls_isa isa, const float *processed, int64_t vocab, const ls_sampling *sampling, const ls_draw *draw) {
    return ls_sample_kernel_table[isa]->draw(processed, vocab, sampling, draw);
}
