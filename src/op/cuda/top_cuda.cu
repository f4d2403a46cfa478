/* Likeliest entries on the GPU: a block a row. Every thread has the nearest place of its own entries; the least of all
 * is the next one of the row, and the thread whose it was looks for its next. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"
#include "op/logprob.h"
#include "op/logprob_math.h"
#include "op/top.h"
#include "op/top_math.h"

#define THREADS 1024 /* no fewer than LS_TOP_MAX */
#define WARPS (THREADS / 32)

/* The least place of the thread's entries from `from` on. */
static __device__ __forceinline__ uint64_t next_place(const float *row, int64_t vocab, uint64_t from) {
    uint64_t least = UINT64_MAX;
#pragma unroll 8
    for (int64_t v = threadIdx.x; v < vocab; v += THREADS) {
        const uint64_t place = ls_top_place(row[v], v);
        if (place >= from && place < least) least = place;
    }
    return least;
}

/* Of all threads. Rooms take turns, so that one barrier is enough. */
static __device__ __forceinline__ uint64_t block_least(uint64_t room[WARPS], uint64_t x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const uint64_t other = __shfl_xor_sync(LS_ALL_LANES, (unsigned long long)x, lanes);
        x = other < x ? other : x;
    }
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) x = room[w] < x ? room[w] : x;
    return x;
}

/* The aligned tree, in place. */
static __device__ __forceinline__ ls_logprob_leaf join_leaves(ls_logprob_leaf *leaves, int64_t n) {
    for (int64_t step = 1; step < n; step *= 2) {
        for (int64_t i = 2 * step * threadIdx.x; i + step < n; i += 2 * step * THREADS)
            leaves[i] = ls_logprob_join(leaves[i], leaves[i + step]);
        __syncthreads();
    }
    return leaves[0];
}

typedef struct top_params {
    ls_top_args a;
    int64_t n_leaves; /* of a row */
} top_params;

static __global__ void __launch_bounds__(THREADS) top_kernel(const __grid_constant__ top_params p) {
    ls_cuda_begin();
    __shared__ uint64_t room[2][WARPS];
    const ls_top_args a = p.a;
    const int64_t row = blockIdx.x;
    const float *z = a.logits + row * a.vocab;
    uint64_t nearest = next_place(z, a.vocab, 0), own = 0;
    for (int i = 0; i < (int)a.k; i++) {
        const uint64_t least = block_least(room[i % 2], nearest);
        if ((int)threadIdx.x == i) own = least;
        if (nearest == least) nearest = next_place(z, a.vocab, least + 1);
    }
    const ls_logprob_leaf sum = join_leaves(a.leaves + row * p.n_leaves, p.n_leaves);
    if ((int)threadIdx.x < (int)a.k) {
        const int32_t id = (int32_t)(uint32_t)own;
        a.id[row * a.k + threadIdx.x] = id;
        a.logprob[row * a.k + threadIdx.x] = ls_logprob_finish(sum, z[id]).logprob;
    }
}

ls_status ls_cuda_top(const ls_exec *exec, const ls_top_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none},
                                        {"leaves", a->leaves, 16, none},
                                        {"id", a->id, 4, none},
                                        {"logprob", a->logprob, 4, none}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"vocab", a->vocab}, {"element", 4}}}}};
    const ls_launch launch = {"top", {a->rows, 1, 1}, THREADS, 0, index, 1};
    top_params params = {*a, ls_logprob_leaves(a->vocab)};
    LS_CUDA_TRY(ls_cuda_check("top", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)top_kernel, &params, err);
}
