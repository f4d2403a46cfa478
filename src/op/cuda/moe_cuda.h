/* What the CUDA implementations of the mixture of experts share: the softmax of a row of logits, and checks of experts.
 *  */
#ifndef LS_OP_CUDA_MOE_CUDA_H
#define LS_OP_CUDA_MOE_CUDA_H

#include "num/expf.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/vector_cuda.h"
#include "op/moe.h"

/* Warps of a block whose warps take a row of logits each. */
#define LS_MOE_WARPS 4

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
