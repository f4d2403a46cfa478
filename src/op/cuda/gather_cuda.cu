/* Rows by number and comparison of regions on the GPU: rows in tiles of units, the widest of 16, 4 and 1 bytes that
 * every address and size is a multiple of. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/gather.h"

/* bits: all addresses, strides and sizes, joined by `or`. */
static int64_t unit_bytes(uint64_t bits) { return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1; }

static __device__ __forceinline__ bool is_same(uint4 a, uint4 b) {
    return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}
static __device__ __forceinline__ bool is_same(uint32_t a, uint32_t b) { return a == b; }
static __device__ __forceinline__ bool is_same(uint8_t a, uint8_t b) { return a == b; }

/* ---- gather ---- */

typedef struct gather_params {
    ls_gather_args a;
    ls_tile tile;
    const ls_fault *fault;
} gather_params;

template <typename UNIT>
static __global__ void __launch_bounds__(LS_TILE_THREADS) gather_kernel(const __grid_constant__ gather_params p) {
    ls_cuda_begin();
    const ls_tile_place place = ls_tile_place_of(&p.tile);
    UNIT unit[LS_TILE_UNITS];
    if (p.fault->code != LS_FAULT_NONE || place.row >= p.a.n) return;
    const UNIT *from = (const UNIT *)((const uint8_t *)p.a.x + p.a.index[place.row] * p.a.x_stride);
    UNIT *to = (UNIT *)((uint8_t *)p.a.out + place.row * p.a.out_stride);
#pragma unroll
    for (int k = 0; k < LS_TILE_UNITS; k++)
        if (place.unit + k * p.tile.width < p.tile.units) unit[k] = from[place.unit + k * p.tile.width];
#pragma unroll
    for (int k = 0; k < LS_TILE_UNITS; k++)
        if (place.unit + k * p.tile.width < p.tile.units) to[place.unit + k * p.tile.width] = unit[k];
}

ls_status ls_cuda_gather(const ls_exec *exec, const ls_gather_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {
        {"x", a->x, 1, a->n == 0 || a->x_rows == 0}, {"index", a->index, 8, a->n == 0}, {"out", a->out, 1, a->n == 0}};
    const int64_t unit = unit_bytes((uint64_t)(uintptr_t)a->x | (uint64_t)(uintptr_t)a->out | (uint64_t)a->x_stride |
                                    (uint64_t)a->out_stride | (uint64_t)a->row_bytes);
    LS_CUDA_TRY(ls_cuda_check("gather", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (a->n == 0) return LS_OK;
    gather_params p = {*a, ls_tile_of(a->n, a->row_bytes / unit), NULL};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row of x", a->x_rows}, {"stride", a->x_stride}}}},
                              {LS_WIDTH_I64, {{{"entry", a->n}, {"out stride", a->out_stride}}}}};
    const ls_launch launch = {"gather", {ls_tile_blocks(&p.tile), 1, 1}, LS_TILE_THREADS, 0, index, 2};
    ls_fault *fault;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("gather", exec, &fault, err));
    ls_index_check<int64_t> check = {a->index, a->n, a->x_rows, LS_FAULT_ROW, fault};
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_index("gather", exec, &check, err));
    return ls_cuda_launch(exec, &launch,
                          unit == 16  ? (const void *)gather_kernel<uint4>
                          : unit == 4 ? (const void *)gather_kernel<uint32_t>
                                      : (const void *)gather_kernel<uint8_t>,
                          &p, err);
}

/* ---- differs ---- */

typedef struct differs_params {
    ls_differs_args a;
    ls_tile tile;
} differs_params;

/* Every thread that sees a difference stores the same 1. */
template <typename UNIT>
static __global__ void __launch_bounds__(LS_TILE_THREADS) differs_kernel(const __grid_constant__ differs_params p) {
    ls_cuda_begin();
    const ls_tile_place place = ls_tile_place_of(&p.tile);
    bool same = true;
    if (place.row >= p.a.rows) return;
    const UNIT *a = (const UNIT *)((const uint8_t *)p.a.a + place.row * p.a.stride);
    const UNIT *b = (const UNIT *)((const uint8_t *)p.a.b + place.row * p.a.stride);
#pragma unroll
    for (int k = 0; k < LS_TILE_UNITS; k++) {
        const int64_t unit = place.unit + k * p.tile.width;
        if (unit < p.tile.units) same = is_same(a[unit], b[unit]) && same;
    }
    if (!same) *p.a.differs = 1;
}

ls_status ls_cuda_differs(const ls_exec *exec, const ls_differs_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {
        {"a", a->a, 1, a->rows == 0}, {"b", a->b, 1, a->rows == 0}, {"differs", a->differs, 8, false}};
    const int64_t unit = unit_bytes((uint64_t)(uintptr_t)a->a | (uint64_t)(uintptr_t)a->b | (uint64_t)a->stride |
                                    (uint64_t)a->row_bytes);
    LS_CUDA_TRY(ls_cuda_check("differs", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    differs_params p = {*a, ls_tile_of(a->rows, a->row_bytes / unit)};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"stride", a->stride}}}}};
    const ls_launch launch = {"differs", {ls_tile_blocks(&p.tile), 1, 1}, LS_TILE_THREADS, 0, index, 1};
    return ls_cuda_launch(exec, &launch,
                          unit == 16  ? (const void *)differs_kernel<uint4>
                          : unit == 4 ? (const void *)differs_kernel<uint32_t>
                                      : (const void *)differs_kernel<uint8_t>,
                          &p, err);
}
