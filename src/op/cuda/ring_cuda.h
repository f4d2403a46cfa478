/* What kernels with a ring of stages in shared memory share, on sm_90: barriers that count bytes, bulk copies, boxes of
 * a matrix by its map. */
#ifndef LS_OP_RING_CUDA_H
#define LS_OP_RING_CUDA_H

#include <cuda.h>

#include "dev/cuda.h"

/* Dynamic shared memory that a block of sm_90 can have. */
#define LS_HOPPER_SHARED_MAX (227 * 1024)

static __device__ __forceinline__ uint32_t ls_shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

static __device__ __forceinline__ void ls_barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/* After the last init, before other threads or copies use them. */
static __device__ __forceinline__ void ls_barrier_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ __forceinline__ void ls_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void ls_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Until the barrier has completed the phase of this parity. */
static __device__ __forceinline__ void ls_barrier_wait(uint32_t barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

/* Bytes, a multiple of 16 at addresses that are multiples of 16, counted by the barrier. */
static __device__ __forceinline__ void ls_bulk_fetch(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* Into the second-level cache only: harmless whatever is written there meanwhile. */
static __device__ __forceinline__ void ls_bulk_expect(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
/* A vector's elements from `first` on, as many as its map's box has; what lies behind its end is +0. */
static __device__ __forceinline__ void ls_line_fetch(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                                     int32_t first) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], "
        "[%3];" ::"r"(to),
        "l"(map), "r"(first), "r"(barrier)
        : "memory");
}
/* The map itself, on its way before the first box is asked for. */
static __device__ __forceinline__ void ls_box_expect(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* The map's box from (inner, outer) on; what lies outside the matrix is +0. */
static __device__ __forceinline__ void ls_box_fetch(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                                    int32_t inner, int32_t outer) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(to),
        "l"(map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}

static __device__ __forceinline__ void ls_box_fetch3(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                                     int32_t inner, int32_t middle, int32_t outer) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(to),
        "l"(map), "r"(inner), "r"(middle), "r"(outer), "r"(barrier)
        : "memory");
}

static __device__ __forceinline__ void ls_box_fetch4(const CUtensorMap *map, uint32_t to, uint32_t barrier, int32_t a,
                                                     int32_t b, int32_t c, int32_t d) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], "
        "[%6];" ::"r"(to),
        "l"(map), "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier)
        : "memory");
}

/* A matrix that a map can describe: aligned, rows a multiple of 16 bytes apart, coordinates within 31 bits. */
static inline bool ls_box_possible(const void *base, ls_dtype dtype, int64_t stride, int64_t a, int64_t b) {
    return (uintptr_t)base % 16 == 0 && stride < ((int64_t)1 << 37) && stride * ls_dtype_bytes(dtype) % 16 == 0 &&
           a < INT32_MAX - 256 && b < INT32_MAX - 256;
}

/* A matrix [outer][inner], rows `stride` elements apart. */
typedef struct ls_box_matrix {
    const void *base;
    int64_t inner, outer, stride;
} ls_box_matrix;

/* Map of a bf16 matrix in boxes of 64 x box_rows, rows of 128 bytes swizzled. */
ls_status ls_box_map(CUtensorMap *map, const char *op, const ls_box_matrix *matrix, int box_rows, ls_error *err);
/* Of a bf16 matrix of rows of 64 * chunks, as [chunk][row][64], in boxes of 64 x box_rows x box_chunks. */
ls_status ls_box_map3(CUtensorMap *map, const char *op, const ls_box_matrix *matrix, int box_rows, int box_chunks,
                      ls_error *err);
/* Maps of pages of 16 tokens, bf16 (op/attention.h). keys: as [page][KV head and dimension][16], in boxes of a head's
 * dimensions, rows of 32 bytes swizzled; values: as [page][KV head][16][dimension], in boxes of 64 dimensions. */
ls_status ls_page_maps(CUtensorMap *keys, CUtensorMap *values, const char *op, const ls_pool_view *pages,
                       int64_t n_kv_heads, int64_t head_dim, ls_error *err);
/* Of a bf16 matrix of rows [head][dimension], in boxes of 64 dimensions of box_heads heads of box_rows rows. */
ls_status ls_heads_map(CUtensorMap *map, const char *op, const ls_box_matrix *matrix, int64_t head_dim, int box_heads,
                       int box_rows, ls_error *err);
/* Map of a float32 matrix in boxes of box_inner x box_rows as they are; with outer 0 of a vector [inner]. */
ls_status ls_box_map_f32(CUtensorMap *map, const char *op, const ls_box_matrix *matrix, int box_inner, int box_rows,
                         ls_error *err);
/* Whether the current device is of sm_90, for which kernels with a ring are compiled. */
ls_status ls_is_hopper(bool *out, const char *op, ls_error *err);
/* Multiprocessors of the current device. */
ls_status ls_processors(int *out, const char *op, ls_error *err);

#endif
