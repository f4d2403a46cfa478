/* Low-rank adapters on the GPU: a thread for each element of a merged weight, for some chains of a column of A's
 * gradient, for a chain of B's. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/lora.h"

#define THREADS 256
#define CHAINS 8

static int64_t blocks_of(int64_t n, int64_t block) { return n / block + (n % block != 0); }

/* ---- merge ---- */

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ ls_lora_merge_args a) {
    ls_cuda_begin();
    const int64_t pieces = (a.k - 1) / THREADS + 1, n = blockIdx.x / pieces;
    const int64_t k = blockIdx.x % pieces * THREADS + threadIdx.x;
    if (k >= a.k) return;
    float p = 0.0f;
    for (int64_t j = 0; j < a.rank; j++) p = ls_fma(a.b[n * a.rank + j], a.a[j * a.k + k], p);
    ls_store_one<DTYPE>(a.out, n * a.k + k, ls_fma(a.scale, p, ls_load_one<DTYPE>(a.w0, n * a.k + k)));
}

ls_status ls_cuda_lora_merge(const ls_exec *exec, const ls_lora_merge_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype);
    const ls_cuda_operand operands[] = {
        {"w0", a->w0, elem, false}, {"a", a->a, 4, false}, {"b", a->b, 4, false}, {"out", a->out, elem, false}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->n}, {"column", a->k}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->n}, {"rank", a->rank}, {"element", 4}}}}};
    const ls_launch launch = {
        "lora_merge", {ls_launch_blocks(a->n, blocks_of(a->k, THREADS), 1), 1, 1}, THREADS, 0, index, 2};
    ls_lora_merge_args params = *a;
    LS_CUDA_TRY(ls_cuda_check("lora_merge", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return ls_cuda_launch(exec, &launch,
                          a->dtype == LS_F32    ? (const void *)merge_kernel<LS_F32>
                          : a->dtype == LS_BF16 ? (const void *)merge_kernel<LS_BF16>
                                                : (const void *)merge_kernel<LS_F16>,
                          &params, err);
}

/* ---- gradients ---- */

static __global__ void __launch_bounds__(THREADS) backward_a_kernel(const __grid_constant__ ls_lora_backward_args a) {
    ls_cuda_begin();
    const int64_t pieces = (a.k - 1) / THREADS + 1, first = blockIdx.x / pieces * CHAINS;
    const int64_t k = blockIdx.x % pieces * THREADS + threadIdx.x;
    const int count = a.rank - first < CHAINS ? (int)(a.rank - first) : CHAINS;
    float sum[CHAINS];
    if (k >= a.k) return;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum[i] = 0.0f;
    for (int64_t n = 0; n < a.n; n++) {
        const float dw = a.dw[n * a.k + k];
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            if (i < count) sum[i] = ls_fma(a.b[n * a.rank + first + i], dw, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        if (i < count) a.da[(first + i) * a.k + k] = ls_mul(a.scale, sum[i]);
}

static __global__ void __launch_bounds__(THREADS) backward_b_kernel(const __grid_constant__ ls_lora_backward_args a) {
    ls_cuda_begin();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n * a.rank) return;
    const float *dw = a.dw + i / a.rank * a.k, *row = a.a + i % a.rank * a.k;
    float sum = 0.0f;
    for (int64_t k = 0; k < a.k; k++) sum = ls_fma(dw[k], row[k], sum);
    a.db[i] = ls_mul(a.scale, sum);
}

ls_status ls_cuda_lora_backward(const ls_exec *exec, const ls_lora_backward_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"dw", a->dw, 4, false},
                                        {"a", a->a, 4, false},
                                        {"b", a->b, 4, false},
                                        {"da", a->da, 4, false},
                                        {"db", a->db, 4, false}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->n}, {"column", a->k}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->n}, {"rank", a->rank}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"rank", a->rank}, {"column", a->k}, {"element", 4}}}}};
    const ls_launch of_a = {
        "lora_backward", {ls_launch_blocks(blocks_of(a->rank, CHAINS), blocks_of(a->k, THREADS), 1), 1, 1},
        THREADS,         0,
        index,           3};
    const ls_launch of_b = {"lora_backward", {blocks_of(a->n * a->rank, THREADS), 1, 1}, THREADS, 0, index, 3};
    ls_lora_backward_args params = *a;
    LS_CUDA_TRY(ls_cuda_check("lora_backward", exec, operands, 5, LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &of_a, (const void *)backward_a_kernel, &params, err));
    return ls_cuda_launch(exec, &of_b, (const void *)backward_b_kernel, &params, err);
}
