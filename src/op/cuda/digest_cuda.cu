/* A warp a chunk. Its bytes pass through shared memory, tile by tile, where all lanes read the same word. */
#include "base/fnv.h"
#include "dev/cuda.h"
#include "op/cuda/digest_cuda.h"

#define LANES 32
#define WARPS 4 /* of a block */
#define TILE_BYTES (16 * LANES)

typedef struct digest_params {
    uint32_t *lows; /* [chunks][LANES]: four bytes each */
    uint64_t *ends;
    const uint8_t *starts;
    const uint8_t *memory;
    int64_t bytes;
    bool vector; /* memory is aligned to 16 bytes */
} digest_params;

/* The bytes [begin, end) of this warp's chunk. */
typedef struct chunk_range {
    int64_t chunk, begin, end;
} chunk_range;

static __device__ __forceinline__ chunk_range own_chunk(const digest_params &p) {
    const int64_t chunk = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, begin = chunk * LS_DIGEST_CHUNK;
    return {chunk, begin, p.bytes - begin < LS_DIGEST_CHUNK ? p.bytes : begin + LS_DIGEST_CHUNK};
}

/* The tile at byte `at` of memory, up to `end`; returns how many bytes it has. */
static __device__ __forceinline__ int bring_tile(const digest_params &p, uint8_t *tile, int64_t at, int64_t end) {
    const int own = (int)threadIdx.x % LANES * 16, count = end - at < TILE_BYTES ? (int)(end - at) : TILE_BYTES;
    const uint8_t *from = p.memory + at;
    __syncwarp(); /* the last tile has been read */
    if (p.vector && own + 16 <= count)
        *(uint4 *)(tile + own) = *(const uint4 *)(from + own);
    else
        for (int i = own; i < own + 16 && i < count; i++) tile[i] = from[i];
    __syncwarp();
    return count;
}

/* Four lowest bytes take a step by a byte that stands in all four places. */
static __device__ __forceinline__ uint32_t step_lows(uint32_t lows, uint32_t byte) {
    const uint32_t even = 0x00FF00FF, prime = (uint32_t)LS_FNV_PRIME & 0xFF, x = lows ^ byte;
    return ((x & even) * prime & even) | ((x & ~even) * prime & ~even);
}

static __global__ void __launch_bounds__(LANES *WARPS) digest_lows_kernel(const __grid_constant__ digest_params p) {
    ls_cuda_begin();
    __shared__ __align__(16) uint8_t tiles[WARPS][TILE_BYTES];
    uint8_t *const tile = tiles[threadIdx.x / LANES];
    const chunk_range c = own_chunk(p);
    uint32_t lows = 0x03020100 + threadIdx.x % LANES * 0x04040404;
    if (c.begin >= p.bytes) return;
    for (int64_t at = c.begin; at < c.end; at += TILE_BYTES) {
        const int count = bring_tile(p, tile, at, c.end);
        int i = 0;
        for (; i + 4 <= count; i += 4) {
            const uint32_t word = *(const uint32_t *)(tile + i);
            lows = step_lows(lows, __byte_perm(word, 0, 0x0000));
            lows = step_lows(lows, __byte_perm(word, 0, 0x1111));
            lows = step_lows(lows, __byte_perm(word, 0, 0x2222));
            lows = step_lows(lows, __byte_perm(word, 0, 0x3333));
        }
        for (; i < count; i++) lows = step_lows(lows, tile[i] * 0x01010101u);
    }
    p.lows[c.chunk * LANES + threadIdx.x % LANES] = lows;
}

/* All lanes bring the bytes, the first one walks. */
static __global__ void __launch_bounds__(LANES *WARPS) digest_ends_kernel(const __grid_constant__ digest_params p) {
    ls_cuda_begin();
    __shared__ __align__(16) uint8_t tiles[WARPS][TILE_BYTES];
    uint8_t *const tile = tiles[threadIdx.x / LANES];
    const chunk_range c = own_chunk(p);
    if (c.begin >= p.bytes) return;
    uint64_t hash = p.starts[c.chunk];
    for (int64_t at = c.begin; at < c.end; at += TILE_BYTES) {
        const int count = bring_tile(p, tile, at, c.end);
        if (threadIdx.x % LANES != 0) continue;
        int i = 0;
        for (; i + 8 <= count; i += 8) {
            uint64_t word = *(const uint64_t *)(tile + i);
#pragma unroll
            for (int k = 0; k < 8; k++, word >>= 8) hash = (hash ^ (word & 0xFF)) * LS_FNV_PRIME;
        }
        for (; i < count; i++) hash = (hash ^ tile[i]) * LS_FNV_PRIME;
    }
    if (threadIdx.x % LANES == 0) p.ends[c.chunk] = hash;
}

static ls_status run(const ls_exec *exec, const char *name, const void *kernel, digest_params p, int64_t element,
                     ls_error *err) {
    const int64_t chunks = (p.bytes - 1) / LS_DIGEST_CHUNK + 1;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"byte", p.bytes}}}},
                              {LS_WIDTH_I64, {{{"chunk", chunks}, {"element", element}}}}};
    const ls_launch launch = {name, {(chunks - 1) / WARPS + 1, 1, 1}, LANES * WARPS, 0, index, 2};
    p.vector = (uintptr_t)p.memory % 16 == 0;
    return ls_cuda_launch(exec, &launch, kernel, (void *)&p, err);
}

ls_status ls_cuda_digest_lows(const ls_exec *exec, uint8_t *lows, const void *memory, int64_t bytes, ls_error *err) {
    const digest_params p = {(uint32_t *)lows, NULL, NULL, (const uint8_t *)memory, bytes, false};
    return run(exec, "digest", (const void *)digest_lows_kernel, p, LS_DIGEST_LOWS, err);
}

ls_status ls_cuda_digest_ends(const ls_exec *exec, uint64_t *ends, const uint8_t *starts, const void *memory,
                              int64_t bytes, ls_error *err) {
    const digest_params p = {NULL, ends, starts, (const uint8_t *)memory, bytes, false};
    return run(exec, "digest", (const void *)digest_ends_kernel, p, (int64_t)sizeof *ends, err);
}
