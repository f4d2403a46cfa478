/* A block a chunk, a thread a start; bytes pass through shared memory, where all threads read the same word. */
#include "base/fnv.h"
#include "dev/cuda.h"
#include "op/cuda/digest_cuda.h"

#define TILE_BYTES (16 * LS_DIGEST_STARTS)

typedef struct digest_params {
    uint64_t *ends;
    const uint8_t *memory;
    int64_t bytes;
    bool vector; /* memory is aligned to 16 bytes */
} digest_params;

static __global__ void __launch_bounds__(LS_DIGEST_STARTS) digest_kernel(const __grid_constant__ digest_params p) {
    ls_cuda_begin();
    __shared__ __align__(16) uint8_t tile[TILE_BYTES];
    const int64_t first = (int64_t)blockIdx.x * LS_DIGEST_CHUNK;
    const int64_t n = p.bytes - first < LS_DIGEST_CHUNK ? p.bytes - first : LS_DIGEST_CHUNK;
    const int own = (int)threadIdx.x * 16;
    uint64_t hash = threadIdx.x;
    for (int64_t at = 0; at < n; at += TILE_BYTES) {
        const int64_t left = n - at, count = left < TILE_BYTES ? left : TILE_BYTES;
        const uint8_t *from = p.memory + first + at;
        __syncthreads(); /* the last tile has been read */
        if (p.vector && own + 16 <= count)
            *(uint4 *)(tile + own) = *(const uint4 *)(from + own);
        else
            for (int i = own; i < own + 16 && i < count; i++) tile[i] = from[i];
        __syncthreads();
        int64_t i = 0;
        for (; i + 8 <= count; i += 8) {
            uint64_t word = *(const uint64_t *)(tile + i);
#pragma unroll
            for (int k = 0; k < 8; k++, word >>= 8) hash = (hash ^ (word & 0xFF)) * LS_FNV_PRIME;
        }
        for (; i < count; i++) hash = (hash ^ tile[i]) * LS_FNV_PRIME;
    }
    p.ends[(int64_t)blockIdx.x * LS_DIGEST_STARTS + threadIdx.x] = hash;
}

ls_status ls_cuda_digest_chunks(const ls_exec *exec, uint64_t *ends, const void *memory, int64_t bytes, ls_error *err) {
    const digest_params p = {ends, (const uint8_t *)memory, bytes, (uintptr_t)memory % 16 == 0};
    const int64_t chunks = (bytes - 1) / LS_DIGEST_CHUNK + 1;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"byte", bytes}}}},
                              {LS_WIDTH_I64, {{{"chunk", chunks}, {"start", LS_DIGEST_STARTS}, {"element", 8}}}}};
    const ls_launch launch = {"digest", {chunks, 1, 1}, LS_DIGEST_STARTS, 0, index, 2};
    return ls_cuda_launch(exec, &launch, (const void *)digest_kernel, (void *)&p, err);
}
