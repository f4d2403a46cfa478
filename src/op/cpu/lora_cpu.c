/* Low-rank adapters on the CPU. Vectors run over columns, or over chains that share a row. */
#include "base/mem.h"
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/cpu/lora_kernel.h"
#include "op/rows.h"

/* An item is a row. */
LS_KERNEL_DEFINE(ls_lora_merge_kernel) {
    const ls_lora_merge_args *a = context;
    const int64_t elem = ls_dtype_bytes(a->dtype);
    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t k = 0; k < a->k; k += LS_LORA_BLOCK) {
            const int64_t count = ls_min_i64(LS_LORA_BLOCK, a->k - k), at = (n * a->k + k) * elem;
            float p[LS_LORA_BLOCK] = {0}, w[LS_LORA_BLOCK] = {0};
            for (int64_t j = 0; j < a->rank; j++)
                for (int64_t i = 0; i < count; i++) p[i] = ls_fma(a->b[n * a->rank + j], a->a[j * a->k + k + i], p[i]);
            ls_row_widen(w, (const uint8_t *)a->w0 + at, a->dtype, count);
            for (int64_t i = 0; i < count; i++) w[i] = ls_fma(a->scale, p[i], w[i]);
            ls_row_narrow((uint8_t *)a->out + at, a->dtype, w, count);
        }
}

#define CHAINS 8

/* An item is a block of columns. */
LS_KERNEL_DEFINE(ls_lora_backward_a_kernel) {
    const ls_lora_backward_args *a = context;
    (void)scratch;
    for (int64_t k = begin * LS_LORA_BLOCK; k < ls_min_i64(end * LS_LORA_BLOCK, a->k); k += LS_LORA_BLOCK)
        for (int64_t j = 0; j < a->rank; j++) {
            const int64_t count = ls_min_i64(LS_LORA_BLOCK, a->k - k);
            float sum[LS_LORA_BLOCK] = {0};
            for (int64_t n = 0; n < a->n; n++)
                for (int64_t i = 0; i < count; i++)
                    sum[i] = ls_fma(a->b[n * a->rank + j], a->dw[n * a->k + k + i], sum[i]);
            for (int64_t i = 0; i < count; i++) a->da[j * a->k + k + i] = ls_mul(a->scale, sum[i]);
        }
}

/* An item is a row: some of its chains at a time. */
LS_KERNEL_DEFINE(ls_lora_backward_b_kernel) {
    const ls_lora_backward_args *a = context;
    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t j = 0; j < a->rank; j += CHAINS) {
            const int64_t count = ls_min_i64(CHAINS, a->rank - j);
            float sum[CHAINS] = {0};
            for (int64_t k = 0; k < a->k; k++)
                for (int64_t i = 0; i < count; i++)
                    sum[i] = ls_fma(a->dw[n * a->k + k], a->a[(j + i) * a->k + k], sum[i]);
            for (int64_t i = 0; i < count; i++) a->db[n * a->rank + j + i] = ls_mul(a->scale, sum[i]);
        }
}
