/* What CUDA ops without a long reduction share: four neighbouring elements as float32, kernels over flat arrays of
 * elements, tiles over rows, and the check of row numbers that lie in device memory. */
#ifndef LS_OP_CUDA_ELEMENTS_CUDA_H
#define LS_OP_CUDA_ELEMENTS_CUDA_H

#include "op/cuda/check_cuda.h"
#include "op/cuda/vector_cuda.h"

/* ---- four elements ---- */

/* Whether fours of this type can be moved as one word from this address on. */
static inline bool ls_four_fits(const void *memory, ls_dtype dtype) {
    return (uintptr_t)memory % (uintptr_t)(4 * ls_dtype_bytes(dtype)) == 0;
}

/* Elements i .. i + 3 of the n that are left at i, widened as num/half.h does, NaN included. `whole`: all four are
 * there, and at an address of four elements' alignment. Others are loaded one by one and what is not there is +0. */
template <int DTYPE>
static __device__ __forceinline__ void ls_four_load(const void *base, int64_t i, int64_t n, bool whole, float x[4]) {
    if (!whole) {
        for (int j = 0; j < 4; j++) x[j] = j < n ? ls_load_one<DTYPE>(base, i + j) : 0.0f;
    } else if (DTYPE == LS_F32) {
        const float4 v = *(const float4 *)((const float *)base + i);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        const uint2 v = *(const uint2 *)((const uint16_t *)base + i);
        x[0] = ls_widen_raw<DTYPE>(v.x & 0xFFFFu), x[1] = ls_widen_raw<DTYPE>(v.x >> 16);
        x[2] = ls_widen_raw<DTYPE>(v.y & 0xFFFFu), x[3] = ls_widen_raw<DTYPE>(v.y >> 16);
    }
}

/* The same the other way, one rounding each. */
template <int DTYPE>
static __device__ __forceinline__ void ls_four_store(void *base, int64_t i, int64_t n, bool whole, const float x[4]) {
    if (!whole) {
        for (int j = 0; j < 4; j++)
            if (j < n) ls_store_one<DTYPE>(base, i + j, x[j]);
    } else if (DTYPE == LS_F32) {
        *(float4 *)((float *)base + i) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
        uint2 v;
        v.x = ls_narrow_one<DTYPE>(x[0]) | (uint32_t)ls_narrow_one<DTYPE>(x[1]) << 16;
        v.y = ls_narrow_one<DTYPE>(x[2]) | (uint32_t)ls_narrow_one<DTYPE>(x[3]) << 16;
        *(uint2 *)((uint16_t *)base + i) = v;
    }
}

/* ---- eight elements ---- */

/* Whether eight neighbouring elements of a matrix are one load, or two. */
static inline bool ls_eight_fits(const void *rows, int64_t stride, int64_t elem) {
    return (uintptr_t)rows % 16 == 0 && stride * elem % 16 == 0;
}

/* Eight neighbouring elements of memory that the kernel does not write, by one load, or two, or by eight. */
template <int IN>
static __device__ __forceinline__ ls_vec8<IN> ls_eight_load(const void *base, int64_t i, bool vectors) {
    ls_vec8<IN> v;
    if (vectors) {
        const uint4 *from = (const uint4 *)((const char *)base + i * (IN == LS_F32 ? 4 : 2));
#pragma unroll
        for (int w = 0; w < (IN == LS_F32 ? 2 : 1); w++) v.word[w] = __ldg(from + w);
        return v;
    }
    uint32_t raw[8];
#pragma unroll
    for (int j = 0; j < 8; j++) raw[j] = ls_load_raw<IN>(base, i + j);
    if constexpr (IN == LS_F32) {
        v.word[0] = make_uint4(raw[0], raw[1], raw[2], raw[3]);
        v.word[1] = make_uint4(raw[4], raw[5], raw[6], raw[7]);
    } else {
        v.word[0] =
            make_uint4(raw[0] | raw[1] << 16, raw[2] | raw[3] << 16, raw[4] | raw[5] << 16, raw[6] | raw[7] << 16);
    }
    return v;
}

template <int IN>
static __device__ __forceinline__ void ls_eight_widen(float *to, const ls_vec8<IN> &v) {
    ((float4 *)to)[0] =
        make_float4(ls_vec8_get<IN>(v, 0), ls_vec8_get<IN>(v, 1), ls_vec8_get<IN>(v, 2), ls_vec8_get<IN>(v, 3));
    ((float4 *)to)[1] =
        make_float4(ls_vec8_get<IN>(v, 4), ls_vec8_get<IN>(v, 5), ls_vec8_get<IN>(v, 6), ls_vec8_get<IN>(v, 7));
}

static inline ls_status ls_cuda_check_dtype(const char *op, const char *name, ls_dtype dtype, ls_error *err) {
    if (ls_dtype_bytes(dtype) > 0) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %s is of type %d", op, name, (int)dtype);
}

/* ---- flat arrays ---- */

#define LS_FLAT_THREADS 256

/* `vector`: every array of the call fits fours. */
template <typename CALL>
struct ls_flat {
    CALL call;
    int64_t n;
    bool vector;
};

/* A thread takes four elements: ls_flat_four(&call, first element, elements left, whole), written next to the op. It
 * loads all that it needs before it stores, so that an output may be an input. */
template <typename CALL>
static __global__ void __launch_bounds__(LS_FLAT_THREADS) ls_flat_kernel(const __grid_constant__ ls_flat<CALL> p) {
    ls_cuda_begin();
    const int64_t i = ((int64_t)blockIdx.x * LS_FLAT_THREADS + threadIdx.x) * 4;
    if (i < p.n) ls_flat_four(&p.call, i, p.n - i, p.vector && p.n - i >= 4);
}

/* n is positive; INT64_MAX, which no grid takes, stands for what does not fit 64 bits. */
template <typename CALL>
static ls_status ls_flat_run(const char *op, const ls_exec *exec, const CALL *call, int64_t n, bool vector,
                             ls_error *err) {
    const int64_t tile = 4 * LS_FLAT_THREADS;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"n", n}, {"element", 4}}}}};
    const ls_launch launch = {op, {n / tile + (n % tile != 0), 1, 1}, LS_FLAT_THREADS, 0, index, 1};
    ls_flat<CALL> p = {*call, n, vector};
    return ls_cuda_launch(exec, &launch, (const void *)ls_flat_kernel<CALL>, &p, err);
}

/* ---- tiles over rows ---- */

#define LS_TILE_THREADS 256
#define LS_TILE_UNITS 4 /* of a thread */

/* Rows of units: `width` threads, a power of two, take neighbouring units of a row; a block takes as many rows as it
 * has widths; rows of more than width * LS_TILE_UNITS units are cut into pieces. */
typedef struct ls_tile {
    int64_t rows, units, pieces;
    int32_t width;
} ls_tile;

/* units is positive. */
static inline ls_tile ls_tile_of(int64_t rows, int64_t units) {
    ls_tile tile = {.rows = rows, .units = units, .pieces = 1, .width = 1};
    while (tile.width < units && tile.width < LS_TILE_THREADS) tile.width *= 2;
    tile.pieces = (units - 1) / (tile.width * LS_TILE_UNITS) + 1;
    return tile;
}

static inline int64_t ls_tile_blocks(const ls_tile *tile) {
    const int64_t rows = LS_TILE_THREADS / tile->width;
    return ls_launch_blocks(tile->rows / rows + (tile->rows % rows != 0), tile->pieces, 1);
}

/* The thread's row, which may be one past the last; its units are unit, unit + width, .. LS_TILE_UNITS of them. */
typedef struct ls_tile_place {
    int64_t row, unit;
} ls_tile_place;

static __device__ __forceinline__ ls_tile_place ls_tile_place_of(const ls_tile *tile) {
    const int32_t rows = LS_TILE_THREADS / tile->width, thread = (int32_t)threadIdx.x;
    ls_tile_place place;
    place.row = blockIdx.x / tile->pieces * rows + thread / tile->width;
    place.unit = blockIdx.x % tile->pieces * (tile->width * LS_TILE_UNITS) + thread % tile->width;
    return place;
}

/* ---- row numbers ---- */

/* Tokens or row numbers, each in [0, limit). */
template <typename INDEX>
struct ls_index_check {
    const INDEX *index; /* [n] */
    int64_t n, limit, code;
    ls_fault *fault;
};

template <typename INDEX>
static __device__ __forceinline__ ls_fault ls_fault_at(const ls_index_check<INDEX> *c, int64_t i) {
    ls_fault fault = {.code = LS_FAULT_NONE, .index = i, .value = (int64_t)c->index[i], .limit = c->limit};
    if (fault.value < 0 || fault.value >= c->limit) fault.code = c->code;
    return fault;
}

#define LS_INDEX_CHECK_THREADS 1024

template <typename INDEX>
static __global__ void __launch_bounds__(LS_INDEX_CHECK_THREADS)
    ls_index_check_kernel(const __grid_constant__ ls_index_check<INDEX> c) {
    ls_cuda_begin();
    const int64_t bad = ls_first_bad<LS_INDEX_CHECK_THREADS>(&c, c.n);
    if (threadIdx.x == 0 && bad != INT64_MAX && c.fault->code == LS_FAULT_NONE) *c.fault = ls_fault_at(&c, bad);
}

/* The lowest bad entry goes to the record, unless it holds an earlier fault. Without a record of the caller's this
 * waits for the verdict. */
template <typename INDEX>
static ls_status ls_cuda_check_index(const char *op, const ls_exec *exec, ls_index_check<INDEX> *check, ls_error *err) {
    const ls_index index[] = {{LS_WIDTH_I64, {{{"entry", check->n}, {"element", (int64_t)sizeof(INDEX)}}}}};
    const ls_launch launch = {op, {1, 1, 1}, LS_INDEX_CHECK_THREADS, 0, index, 1};
    LS_CUDA_TRY(ls_cuda_launch(exec, &launch, (const void *)ls_index_check_kernel<INDEX>, check, err));
    return ls_cuda_fault_end(op, exec, check->fault, err);
}

#endif
