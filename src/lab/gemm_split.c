/* The laboratory's wrong product, LS_INJECT_SPLIT_K: what a kernel that splits K to fill a machine computes,
 * chain over [0, K/2) + chain over [K/2, K), the second from +0 too. Bias, NaN and rounding: as op/gemm.h has them. */
#include "base/inject.h"
#include "base/parallel.h"
#include "num/half.h"
#include "op/gemm.h"
#include "op/rows.h"

static float value_at(const void *base, ls_dtype dtype, int64_t i) {
    float value;
    ls_row_widen(&value, ls_at(base, dtype, i), dtype, 1);
    return value;
}

static float chain(const ls_gemm_args *args, int64_t m, int64_t n, int64_t begin, int64_t end) {
    const ls_gemm_weight *weight = args->weight;
    const char *panel = (const char *)weight->panels + n / LS_GEMM_PANEL * weight->panel_stride;
    float acc = 0.0f;
    for (int64_t k = begin; k < end; k++)
        acc = ls_fma(value_at(args->x, args->x_dtype, m * args->x_stride + k),
                     value_at(panel, weight->dtype, k * LS_GEMM_PANEL + n % LS_GEMM_PANEL), acc);
    return acc;
}

/* Rows [begin, end) of the product; context is its ls_gemm_args. */
static void split_rows(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const ls_gemm_args *args = context;
    const int64_t k = args->weight->k;
    (void)thread_i;
    for (int64_t m = begin; m < end; m++)
        for (int64_t n = 0; n < args->weight->n; n++) {
            float y = ls_add(chain(args, m, n, 0, k / 2), chain(args, m, n, k / 2, k));
            if (args->bias != NULL) y = ls_add(y, args->bias[n]);
            if (y != y) y = ls_from_bits(0x7FC00000u);
            ls_row_narrow(ls_at_mut(args->out, args->out_dtype, m * args->out_stride + n), args->out_dtype, &y, 1);
        }
}

bool ls_inject_split_k(ls_pool *pool, const ls_gemm_args *args) {
    ls_gemm_args split = *args;
    if (!LS_INJECTED(LS_INJECT_SPLIT_K) || args->m < LS_INJECT_SPLIT_ROWS || args->weight->k < LS_INJECT_SPLIT_STEPS)
        return false;
    ls_parallel_for(pool, split.m, 1, split_rows, &split);
    return true;
}
