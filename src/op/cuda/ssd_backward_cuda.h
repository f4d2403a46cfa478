/* What the kernels of the gradient of ssd share. */
#ifndef LS_OP_CUDA_SSD_BACKWARD_CUDA_H
#define LS_OP_CUDA_SSD_BACKWARD_CUDA_H

#include "op/cuda/ssd_cuda.h"

typedef struct ssd_back_params {
    ls_ssd_backward_args a;
    ls_ssd_backward_plan plan;
    float *work;
    int64_t group_heads;
    bool vectors; /* eight neighbouring elements of every input are one load, or two */
    const ls_fault *fault;
} ssd_back_params;

/* On a device of sm_90: both walks, of heads that models have; `taken` is whether these are. */
ls_status ls_ssd_back_walks(const ls_exec *exec, const ssd_back_params *p, bool *taken, ls_error *err);

/* A block's shares of db and dcc of a row, without what tokens do to themselves: side 0 is db's. */
static __device__ __forceinline__ float *ls_ssd_share(const ssd_back_params *p, int64_t block, int64_t row, int side) {
    return p->work + p->plan.sums + ((block * p->a.rows + row) * 2 + side) * p->a.n_states;
}
/* Where a head's state of a span lies in a tensor of them. */
static __device__ __forceinline__ int64_t ls_ssd_state_at(const ssd_back_params *p, int64_t span_i, int64_t head) {
    return (span_i * p->a.n_heads + head) * p->a.n_states * p->a.head_dim;
}
/* A before the first token of a span. */
static __device__ __forceinline__ float ls_ssd_first_scale(const ssd_back_params *p, int64_t span_i, int64_t head) {
    return p->a.initial_scale != NULL ? p->a.initial_scale[span_i * p->a.n_heads + head] : 1.0f;
}
/* S before piece j of span i, of the first head. */
static __device__ __forceinline__ float *ls_ssd_kept(const ssd_back_params *p, int64_t entry, int64_t head) {
    return p->work + p->plan.states + (entry * p->a.n_heads + head) * p->a.n_states * p->a.head_dim;
}

#endif
