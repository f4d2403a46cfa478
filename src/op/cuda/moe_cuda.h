/* What the CUDA implementations of the mixture of experts share: the softmax of a row of logits, and checks of experts.
 *  */
#ifndef LS_OP_CUDA_MOE_CUDA_H
#define LS_OP_CUDA_MOE_CUDA_H

#include "num/expf.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"
#include "op/moe.h"

/* Warps of a block whose warps take a row of logits each. */
#define LS_MOE_WARPS 4
#define LS_MOE_THREADS (32 * LS_MOE_WARPS)

/* The choices of a routing, [n / top_k][top_k]. */
typedef struct ls_expert_check {
    const int32_t *expert;
    int64_t n, top_k, n_experts;
    bool ascending; /* within a row */
    ls_fault *fault;
} ls_expert_check;

static __device__ __forceinline__ ls_fault ls_fault_at(const ls_expert_check *c, int64_t i) {
    ls_fault fault = {.code = LS_FAULT_EXPERT, .index = i / c->top_k, .value = c->expert[i], .limit = c->n_experts};
    if (fault.value < 0 || fault.value >= c->n_experts) return fault;
    fault.code = LS_FAULT_NONE;
    if (!c->ascending || i % c->top_k == 0 || c->expert[i - 1] < fault.value) return fault;
    fault.code = LS_FAULT_EXPERT_ORDER;
    fault.limit = c->expert[i - 1];
    return fault;
}

/* Writes the lowest bad index of n to the record, unless it holds an earlier fault. All threads of a block call it. */
template <int THREADS, typename CHECK>
static __device__ void ls_report_first_bad(const CHECK *c, int64_t n) {
    const int64_t bad = ls_first_bad<THREADS>(c, n);
    if (threadIdx.x == 0 && bad != INT64_MAX && c->fault->code == LS_FAULT_NONE) *c->fault = ls_fault_at(c, bad);
}

#define LS_MOE_CHECK_THREADS 1024

template <typename CHECK>
static __global__ void __launch_bounds__(LS_MOE_CHECK_THREADS) ls_moe_check_kernel(const __grid_constant__ CHECK c) {
    ls_cuda_begin();
    ls_report_first_bad<LS_MOE_CHECK_THREADS>(&c, c.n);
}

/* Checks the experts, then runs a warp for each row; p.fault is set here. */
template <typename PARAMS>
static ls_status ls_moe_run_rows(const char *op, const ls_exec *exec, PARAMS *p, const void *kernel, ls_error *err) {
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", p->a.rows}, {"experts", p->a.n_experts}, {"element", 4}}}}};
    const ls_launch checks = {op, {1, 1, 1}, LS_MOE_CHECK_THREADS, 0, NULL, 0};
    const ls_launch launch = {op, {(p->a.rows + LS_MOE_WARPS - 1) / LS_MOE_WARPS, 1, 1}, LS_MOE_THREADS, 0, index, 1};
    ls_fault *fault;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &fault, err));
    ls_expert_check check = {.expert = p->a.expert,
                             .n = p->a.rows * p->a.top_k,
                             .top_k = p->a.top_k,
                             .n_experts = p->a.n_experts,
                             .ascending = true,
                             .fault = fault};
    p->fault = fault;
    LS_CUDA_TRY(ls_cuda_launch(exec, &checks, (const void *)ls_moe_check_kernel<ls_expert_check>, &check, err));
    LS_CUDA_TRY(ls_cuda_fault_end(op, exec, fault, err));
    return ls_cuda_launch(exec, &launch, kernel, p, err);
}

/* p_e of a row in p[n], which is the warp's own. The maximum has no order; the sum is one ascending chain, which every
 * lane computes for itself. */
static __device__ __forceinline__ void ls_moe_softmax(float *p, const float *logit, int n) {
    const int lane = (int)(threadIdx.x % 32);
    float m = -ls_from_bits(LS_INF_BITS), sum = 0.0f;
    for (int e = lane; e < n; e += 32) m = ls_max(logit[e], m);
    for (int lanes = 16; lanes > 0; lanes /= 2) m = ls_max(__shfl_xor_sync(LS_ALL_LANES, m, lanes), m);
    for (int e = lane; e < n; e += 32) p[e] = ls_exp(ls_sub(logit[e], m));
    __syncwarp();
#pragma unroll 8
    for (int e = 0; e < n; e++) sum = ls_add(sum, p[e]);
    __syncwarp();
    for (int e = lane; e < n; e += 32) p[e] = ls_canonical(ls_div(p[e], sum));
    __syncwarp();
}

#endif
