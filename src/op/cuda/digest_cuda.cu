/* A thread a chunk. It reads 64 bytes at a time, one time ahead: whole sectors of a line that no other thread reads. */
#include "base/fnv.h"
#include "dev/cuda.h"
#include "op/cuda/digest_cuda.h"

#define THREADS 64
#define WORDS 16 /* of four bytes: those of one time */

typedef struct digest_params {
    const ls_digest_run *runs;
    const uint8_t *starts;
    uint64_t *ends;
    int64_t n_runs, n_chunks;
} digest_params;

typedef struct chunk_bytes {
    const uint8_t *memory;
    int64_t n;
} chunk_bytes;

/* The eight ways of the four lowest bits, a byte each. */
typedef struct nibble_walk {
    uint32_t a, b;
    __device__ nibble_walk(uint8_t) : a(0x03020100), b(0x07060504) {}
    /* The byte stands in all four places. */
    __device__ void step(uint32_t byte) {
        const uint32_t prime = (uint32_t)LS_FNV_PRIME & 0xF;
        a = ((a & 0x0F0F0F0F) ^ byte) * prime;
        b = ((b & 0x0F0F0F0F) ^ byte) * prime;
    }
    __device__ void word(uint32_t w) {
        w &= 0x0F0F0F0F;
        step(__byte_perm(w, 0, 0x0000));
        step(__byte_perm(w, 0, 0x1111));
        step(__byte_perm(w, 0, 0x2222));
        step(__byte_perm(w, 0, 0x3333));
    }
    __device__ void byte(uint8_t x) { step((x & 0xF) * 0x01010101u); }
    __device__ uint64_t end() const { return (a & 0x0F0F0F0F) | (uint64_t)(b & 0x0F0F0F0F) << 32; }
} nibble_walk;

/* The ways of the lowest bytes with the same four lowest bits, 16 bits each: the product of two bytes has room. */
typedef struct low_walk {
    uint32_t pairs[4];
    __device__ low_walk(uint8_t start) {
        for (uint32_t i = 0; i < 4; i++) pairs[i] = start * 0x00010001u + (0x00100000 + i * 0x00200020u);
    }
    __device__ void step(uint32_t byte) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = ((pairs[i] & 0x00FF00FF) ^ byte) * ((uint32_t)LS_FNV_PRIME & 0xFF);
    }
    __device__ void word(uint32_t w) {
        step(__byte_perm(w, 0, 0x4040));
        step(__byte_perm(w, 0, 0x4141));
        step(__byte_perm(w, 0, 0x4242));
        step(__byte_perm(w, 0, 0x4343));
    }
    __device__ void byte(uint8_t x) { step(x * 0x00010001u); }
    __device__ uint64_t end() const {
        const uint32_t a = __byte_perm(pairs[0], pairs[1], 0x6420), b = __byte_perm(pairs[2], pairs[3], 0x6420);
        return a | (uint64_t)b << 32;
    }
} low_walk;

typedef struct hash_walk {
    uint64_t hash;
    __device__ hash_walk(uint8_t start) : hash(start) {}
    __device__ void word(uint32_t w) {
#pragma unroll
        for (int i = 0; i < 4; i++, w >>= 8) byte((uint8_t)w);
    }
    __device__ void byte(uint8_t x) { hash = (hash ^ x) * LS_FNV_PRIME; }
    __device__ uint64_t end() const { return hash; }
} hash_walk;

/* The run is the last one that begins at or before the chunk. */
static __device__ __forceinline__ chunk_bytes bytes_of(const digest_params &p, int64_t chunk) {
    int64_t low = 0, high = p.n_runs;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (p.runs[middle].first <= chunk)
            low = middle;
        else
            high = middle;
    }
    const ls_digest_run run = p.runs[low];
    const int64_t at = (chunk - run.first) * LS_DIGEST_CHUNK;
    return {run.memory + at, run.bytes - at < LS_DIGEST_CHUNK ? run.bytes - at : LS_DIGEST_CHUNK};
}

static __device__ __forceinline__ void bring(uint4 *words, const uint8_t *from) {
#pragma unroll
    for (int i = 0; i < WORDS / 4; i++) words[i] = __ldg((const uint4 *)from + i);
}

template <typename walk>
static __global__ void __launch_bounds__(THREADS) digest_kernel(const __grid_constant__ digest_params p) {
    ls_cuda_begin();
    const int64_t chunk = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (chunk >= p.n_chunks) return;
    const chunk_bytes c = bytes_of(p, chunk);
    const uint8_t *m = c.memory;
    const uint8_t *const end = m + c.n;
    walk w(p.starts[chunk]);
    uint4 next[WORDS / 4], now[WORDS / 4];
    while (m < end && (uintptr_t)m % 16 != 0) w.byte(*m++);
    if (end - m >= 4 * WORDS) bring(next, m);
    for (; end - m >= 4 * WORDS; m += 4 * WORDS) {
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) now[i] = next[i];
        if (end - m >= 8 * WORDS) bring(next, m + 4 * WORDS);
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) w.word(now[i].x), w.word(now[i].y), w.word(now[i].z), w.word(now[i].w);
    }
    while (m < end) w.byte(*m++);
    p.ends[chunk] = w.end();
}

ls_status ls_cuda_digest_walk(const ls_exec *exec, ls_digest_slab *slab, ls_digest_walk walk, int64_t n_runs,
                              int64_t n_chunks, ls_error *err) {
    static const void *const kernels[] = {(const void *)digest_kernel<nibble_walk>,
                                          (const void *)digest_kernel<low_walk>,
                                          (const void *)digest_kernel<hash_walk>};
    digest_params p = {slab->runs, slab->starts, slab->ends, n_runs, n_chunks};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"chunk", n_chunks}, {"byte", LS_DIGEST_CHUNK}}}},
                              {LS_WIDTH_I64, {{{"run", n_runs}, {"byte", (int64_t)sizeof *slab->runs}}}}};
    const ls_launch launch = {"digest", {(n_chunks - 1) / THREADS + 1, 1, 1}, THREADS, 0, index, 2};
    return ls_cuda_launch(exec, &launch, kernels[walk], &p, err);
}
