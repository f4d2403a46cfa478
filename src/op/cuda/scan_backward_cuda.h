/* What the kernels of the scan's gradient share. */
#ifndef LS_OP_CUDA_SCAN_BACKWARD_CUDA_H
#define LS_OP_CUDA_SCAN_BACKWARD_CUDA_H

#include "op/cuda/scan_cuda.h"

#define LS_BACK_KEEP LS_SCAN_KEEP
#define LS_BACK_WARPS (LS_SCAN_SUM_BLOCK / LS_WARP_CHANNELS)

typedef struct back_params {
    ls_scan_backward_args a;
    ls_scan_backward_plan plan;
    float *work;
    const ls_fault *fault;
} back_params;

/* Where h before a piece of LS_BACK_KEEP tokens of a span is kept. */
static __device__ __forceinline__ float *ls_kept_state(const back_params *p, const ls_span *span, int64_t span_i,
                                                       int64_t piece, int64_t channel, int state) {
    return p->work + p->plan.states +
           ((span->row / LS_BACK_KEEP + span_i + piece) * p->a.dim + channel) * p->a.n_states + state;
}

/* Where a channel's states of a span lie in a tensor of them. */
static __device__ __forceinline__ int64_t ls_span_state(const back_params *p, int64_t span_i, int64_t channel,
                                                        int state) {
    return (span_i * p->a.dim + channel) * p->a.n_states + state;
}

/* Where a block of channels, or a run where shares are by runs, puts its share of db (part 0) or dcc (part 1). */
static __device__ __forceinline__ float *ls_channel_share(const back_params *p, int64_t block, int64_t row, int part,
                                                          int state) {
    return p->work + p->plan.sums + ((block * p->a.rows + row) * 2 + part) * p->a.n_states + state;
}

/* The four runs of eight channels by halves 2, 1. */
static __device__ __forceinline__ float ls_four_runs(float x0, float x1, float x2, float x3) {
    return ls_add(ls_add(x0, x2), ls_add(x1, x3));
}

/* An element of a tensor that is bf16 or float32 as the call has it. */
static __device__ __forceinline__ float ls_load_either(bool bf16, const void *from, int64_t i) {
    return bf16 ? ls_load_one<LS_BF16>(from, i) : ls_load_one<LS_F32>(from, i);
}

static __device__ __forceinline__ void ls_store_either(bool bf16, void *to, int64_t i, float x) {
    if (bf16)
        ls_store_one<LS_BF16>(to, i, x);
    else
        ls_store_one<LS_F32>(to, i, x);
}

#endif
