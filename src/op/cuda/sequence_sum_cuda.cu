/* Sequence sums on the GPU: a block a sequence, a thread a chain. Kept rows are numbered by counting them in tiles of
 * as many rows as there are chains, so that each chain gets at most one row of a tile. */
#include "dev/device.h"
#include "num/sum.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"
#include "op/logprob.h"

#define CHAINS LS_SUM_CHAINS

typedef struct sum_params {
    ls_sequence_sum_args a;
    const ls_fault *fault;
} sum_params;

static __global__ void __launch_bounds__(CHAINS) sum_kernel(const __grid_constant__ sum_params p) {
    ls_cuda_begin();
    __shared__ float value[CHAINS];
    __shared__ int kept_before[CHAINS / 32 + 1];
    const int chain = (int)threadIdx.x, lane = chain % 32, warp = chain / 32;
    const int64_t s = blockIdx.x;
    int64_t number = 0; /* rows kept so far */
    float sum = 0.0f;
    if (p.fault->code != LS_FAULT_NONE) return;
    const int64_t from = p.a.offsets != NULL ? p.a.offsets[s] : s * p.a.length;
    const int64_t to = p.a.offsets != NULL ? p.a.offsets[s + 1] : from + p.a.length;
    for (int64_t base = from; base < to; base += CHAINS) {
        const int64_t row = base + chain;
        const bool kept = row < to && (p.a.mask == NULL || p.a.mask[row] != 0);
        const unsigned votes = __ballot_sync(LS_ALL_LANES, kept);
        if (lane == 0) kept_before[warp + 1] = __popc(votes);
        if (chain == 0) kept_before[0] = 0;
        __syncthreads();
        if (chain == 0)
            for (int w = 0; w < CHAINS / 32; w++) kept_before[w + 1] += kept_before[w];
        __syncthreads();
        const int total = kept_before[CHAINS / 32];
        const int64_t mine = number + kept_before[warp] + __popc(votes & ((1u << lane) - 1u));
        if (kept) value[mine % CHAINS] = p.a.logprob[row];
        __syncthreads();
        if ((chain - number % CHAINS + CHAINS) % CHAINS < total) sum = ls_add(sum, value[chain]);
        number += total;
        __syncthreads();
    }
    /* num/sum.h: within runs of 8 by halves, then over the runs. */
    for (int half = 4; half > 0; half /= 2) sum = ls_add(sum, __shfl_down_sync(LS_ALL_LANES, sum, half, 8));
    if (chain % 8 == 0) value[chain / 8] = sum;
    __syncthreads();
    if (warp != 0) return;
    sum = value[lane];
    for (int half = 16; half > 0; half /= 2) sum = ls_add(sum, __shfl_down_sync(LS_ALL_LANES, sum, half));
    if (lane == 0) p.a.out[s] = ls_canonical(sum);
}

ls_status ls_cuda_sequence_sum(const ls_exec *exec, const ls_sequence_sum_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"logprob", a->logprob, 4, false},
                                        {"mask", a->mask, 1, true},
                                        {"offsets", a->offsets, 8, true},
                                        {"out", a->out, 4, false}};
    const ls_launch launch = {"sequence_sum", {a->n_sequences, 1, 1}, CHAINS, 0, NULL, 0};
    sum_params p = {*a, NULL};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("sequence_sum", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_sequence_sum_workspace(a), err));
    if (a->n_sequences == 0) return LS_OK;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("sequence_sum", exec, &fault, err));
    p.fault = fault;
    if (a->offsets != NULL) {
        ls_offset_check check = {a->offsets, a->n_sequences, a->rows, fault};
        LS_CUDA_TRY(ls_cuda_check_offsets("sequence_sum", exec, &check, err));
    }
    return ls_cuda_launch(exec, &launch, (const void *)sum_kernel, &p, err);
}
