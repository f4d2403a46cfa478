/* The optimizer on the CPU: lanes are elements; in the sum of squares they are chains. */
#include "num/sum.h"
#include "op/cpu/adamw_kernel.h"
#include "op/rows.h"

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

LS_KERNEL_DEFINE(ls_adamw_kernel) {
    const ls_adamw_args *a = context;
    const ls_adamw_factors f = a->factors;
    const int64_t last = min_i64(end * LS_ADAMW_BLOCK, a->n);
    const float *restrict grad = a->grad;
    float *restrict w = a->w, *restrict m = a->m, *restrict v = a->v;
    const float scale = a->scale;
    (void)scratch;
    for (int64_t i = begin * LS_ADAMW_BLOCK; i < last; i++) {
        const float g = ls_mul(grad[i], scale);
        const float m_new = ls_fma(f.beta1, m[i], ls_mul(f.rest1, g));
        const float v_new = ls_fma(f.beta2, v[i], ls_mul(ls_mul(f.rest2, g), g));
        const float d = ls_div(ls_mul(m_new, f.debias1), ls_fma(ls_sqrt(v_new), f.debias2, f.eps));
        m[i] = m_new;
        v[i] = v_new;
        w[i] = ls_fma(-f.lr, ls_fma(f.decay, w[i], d), w[i]);
    }
    if (a->value != NULL && begin * LS_ADAMW_BLOCK < last)
        ls_row_narrow(ls_at_mut(a->value, a->value_dtype, begin * LS_ADAMW_BLOCK), a->value_dtype,
                      w + begin * LS_ADAMW_BLOCK, last - begin * LS_ADAMW_BLOCK);
}

LS_KERNEL_DEFINE(ls_squares_kernel) {
    const ls_squares_args *call = context;
    (void)scratch;
    for (int64_t block = begin; block < end; block++) {
        const ls_squares_range *range = call->ranges != NULL ? &call->ranges[block] : NULL;
        const int64_t first = range != NULL ? range->begin : block * LS_SQUARES_BLOCK;
        const int64_t last = range != NULL ? first + range->n : min_i64(first + LS_SQUARES_BLOCK, call->n);
        float chain[LS_SUM_CHAINS] = {0};
        for (int64_t base = first; base < last; base += LS_SUM_CHAINS) {
            const float *x = call->x + base;
            const int64_t n = min_i64(LS_SUM_CHAINS, last - base);
            for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(x[i], x[i], chain[i]);
        }
        call->blocks[block] = ls_sum_fold(chain);
    }
}

LS_KERNEL_DEFINE(ls_weight_cast_kernel) {
    const ls_weight_cast_args *call = context;
    const int64_t first = begin * LS_ADAMW_BLOCK, n = min_i64(end * LS_ADAMW_BLOCK, call->n) - first;
    (void)scratch;
    if (n > 0) ls_row_narrow(ls_at_mut(call->out, call->dtype, first), call->dtype, call->w + first, n);
}
