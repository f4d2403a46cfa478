/* Outer products that states lack, on the GPU: op/held.h. */
#ifndef LS_OP_CUDA_HELD_CUDA_H
#define LS_OP_CUDA_HELD_CUDA_H

#include "op/cuda/check_cuda.h"
#include "op/held.h"

/* Records that a block fetches at a time. */
#define LS_HELD_BATCH 8

/* One head's parts of them, in shared memory. */
template <int ROWS, int COLS>
struct ls_held_batch {
    __align__(16) float own[LS_HELD_BATCH][COLS];
    __align__(16) float shared[LS_HELD_BATCH][ROWS];
    float factor[LS_HELD_BATCH];
};

/* Fills the batch with records [first, first + n) of a head whose rows and columns come in fours; the threads of the
 * block share it, and wait for each other behind it. */
template <int ROWS, int COLS>
static __device__ __forceinline__ void ls_held_fetch(ls_held_batch<ROWS, COLS> *to, const ls_held *h, float *entry,
                                                     int64_t head, int first, int n) {
    const int own = (int)h->cols / 4, fours = own + (int)h->rows / 4;
    for (int i = (int)threadIdx.x; i < n * fours; i += (int)blockDim.x) {
        const int t = i / fours, at = i % fours;
        float *record = ls_held_record(h, entry, first + t);
        if (at < own)
            *(float4 *)&to->own[t][4 * at] = __ldcs((const float4 *)ls_held_own(h, record, head) + at);
        else
            *(float4 *)&to->shared[t][4 * (at - own)] = *((const float4 *)ls_held_shared(h, record, head) + (at - own));
    }
    if ((int)threadIdx.x < n)
        to->factor[threadIdx.x] = *ls_held_factor(h, ls_held_record(h, entry, first + (int)threadIdx.x), head);
}

/* settle, of spans that have been checked, for `op`. */
ls_status ls_held_settle(const char *op, const ls_exec *exec, const ls_settle_args *args, const ls_fault *fault,
                         ls_error *err);

#endif
