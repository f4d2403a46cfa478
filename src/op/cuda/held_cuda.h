/* Outer products that states lack, on the GPU: op/held.h. */
#ifndef LS_OP_CUDA_HELD_CUDA_H
#define LS_OP_CUDA_HELD_CUDA_H

#include <cuda_pipeline_primitives.h>

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

/* Sends for records [first, first + n) of a head whose rows and columns come in fours. A warp takes a record at a time;
 * ls_held_wait is for all threads of the block. */
template <int ROWS, int COLS>
static __device__ __forceinline__ void ls_held_send(ls_held_batch<ROWS, COLS> *to, const ls_held *h, float *entry,
                                                    int64_t head, int first, int n) {
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    for (int t = (int)threadIdx.x / 32; t < n; t += warps) {
        float *record = ls_held_record(h, entry, first + t);
        const float *own = ls_held_own(h, record, head), *shared = ls_held_shared(h, record, head);
        for (int i = 4 * lane; i < (int)h->cols; i += 128) __pipeline_memcpy_async(&to->own[t][i], own + i, 16);
        for (int i = 4 * lane; i < (int)h->rows; i += 128) __pipeline_memcpy_async(&to->shared[t][i], shared + i, 16);
        if (lane == 0) __pipeline_memcpy_async(&to->factor[t], ls_held_factor(h, record, head), 4);
    }
    __pipeline_commit();
}
static __device__ __forceinline__ void ls_held_wait(void) {
    __pipeline_wait_prior(0);
    __syncthreads();
}

/* add(own, shared, factor) for each of the `count` tokens that a head holds, of which the first LS_HELD_BATCH have been
 * sent for; all threads of the block call it. What other threads wrote to shared memory before is there behind it. */
template <int ROWS, int COLS, typename ADD>
static __device__ __forceinline__ void ls_held_each(ls_held_batch<ROWS, COLS> *batch, const ls_held *h, float *entry,
                                                    int64_t head, int count, ADD add) {
    ls_held_wait();
    for (int done = 0; done < count; done += LS_HELD_BATCH) {
        const int n = min(count - done, LS_HELD_BATCH);
        if (done > 0) {
            __syncthreads();
            ls_held_send(batch, h, entry, head, done, n);
            ls_held_wait();
        }
        for (int t = 0; t < n; t++) add(batch->own[t], batch->shared[t], batch->factor[t]);
    }
}

/* write_held, of spans that have been checked, for `op`; of those that have rows alone, where the op is another. */
ls_status ls_held_write(const char *op, const ls_exec *exec, const ls_write_held_args *args, bool with_rows,
                        const ls_fault *fault, ls_error *err);

#endif
