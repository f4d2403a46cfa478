/* Tiles of outputs by wgmma, for kernels whose blocks have one thread that fetches operands and a warpgroup for each 64
 * rows that multiplies: sizes, operands in shared memory, and accumulators on their way from and to memory. */
#ifndef LS_OP_WIDE_CUDA_H
#define LS_OP_WIDE_CUDA_H

#include <cuda.h>

#include "op/cuda/product_cuda.h"
#include "op/cuda/ring_cuda.h"
#include "op/cuda/wgmma_cuda.h"

/* Rows that one warpgroup multiplies; rows or depths that a box has side by side. */
#define GROUP_ROWS 64
#define SIDE_BY_SIDE 64
#define STAGES_MAX 8
/* Floats from a row to the next of outputs on their way from accumulators, at which they meet in no bank. */
#define PITCH 40

/* What follows from a tile's size. */
template <int ROWS, int COLS>
struct tile_size {
    static constexpr int MULTIPLIERS = ROWS / GROUP_ROWS; /* warpgroups */
    static constexpr int THREADS = 128 * (1 + MULTIPLIERS);
    /* A box takes the thread that asks for it some 75 ns however small it is. */
    static constexpr int DEPTH = ROWS + COLS <= 160 ? 2 * SIDE_BY_SIDE : SIDE_BY_SIDE;
    static constexpr int A_BYTES = ROWS * DEPTH * 2;
    static constexpr int STAGE_BYTES = (ROWS + COLS) * DEPTH * 2;
    static constexpr int REST_BYTES = ROWS * PITCH * 4; /* outputs on their way, beside 1 KB to align and barriers */
    static constexpr int FIT = (LS_HOPPER_SHARED_MAX - 2048 - REST_BYTES) / STAGE_BYTES;
    static constexpr int STAGES = FIT < STAGES_MAX ? FIT : STAGES_MAX;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 1024;
    /* Columns that go from accumulators to out together. */
    static constexpr int CHUNK = COLS % 32 == 0 ? 32 : 16;
};

/* What threads wrote is seen by the tensor cores. */
static __device__ __forceinline__ void show_writes(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Copies of this thread but for the last PENDING have arrived, and the tensor cores see them. */
template <int PENDING>
static __device__ __forceinline__ void hand_over(uint32_t barrier) {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    show_writes();
    ls_barrier_arrive(barrier);
}

/* A stage's part of an operand of ROWS rows. SIDE: its rows lie side by side, and it is 64 rows at all depths after
 * another 64; else it is 64 depths of all rows after another 64. That is one box where the map knows of them. */
template <int SIDE, int ROWS, int DEPTH>
static __device__ __forceinline__ void fetch(const CUtensorMap *map, uint32_t to, uint32_t barrier, int32_t row,
                                             int32_t depth, bool whole) {
    if (whole) {
        ls_box_fetch3(map, to, barrier, 0, SIDE ? depth : row, (SIDE ? row : depth) / SIDE_BY_SIDE);
    } else if (SIDE) {
        for (int r = 0; r < ROWS; r += SIDE_BY_SIDE) ls_box_fetch(map, to + r * DEPTH * 2, barrier, row + r, depth);
    } else {
        for (int d = 0; d < DEPTH; d += SIDE_BY_SIDE) ls_box_fetch(map, to + d * ROWS * 2, barrier, depth + d, row);
    }
}

/* Descriptor of 64 rows or more of a stage's part from `row` on, at the k-th 16 depths. */
template <int SIDE, int ROWS, int DEPTH>
static __device__ __forceinline__ uint64_t operand(uint32_t address, int row, int k) {
    constexpr int STEPS = SIDE_BY_SIDE / 16;
    if (SIDE)
        return ls_wgmma_descriptor(address + row * DEPTH * 2, SIDE_BY_SIDE * DEPTH * 2, 1024, LS_WG_SWIZZLE_128) +
               (k * 16 * SIDE_BY_SIDE * 2 >> 4);
    return ls_wgmma_descriptor(address + row * SIDE_BY_SIDE * 2, 16, 1024, LS_WG_SWIZZLE_128) +
           ((k / STEPS * ROWS * SIDE_BY_SIDE * 2 + k % STEPS * 32) >> 4);
}

/* A warp's 16 rows of CHUNK columns on their way between accumulators and out, in shared memory: code that handles
 * edges, types and modes stands there once for each chunk, not once for each register. */
template <int CHUNK>
static __device__ __forceinline__ void store_chunk(const ls_product *p, float (*rest)[PITCH], const float *d,
                                                   int64_t row, int64_t col) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i += 2)
        *(float2 *)&rest[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2] = make_float2(d[i], d[i + 1]);
    __syncwarp();
#pragma unroll 1
    for (int at = lane; at < 16 * CHUNK / 8; at += 32)
        ls_product_store8(p, row + at / (CHUNK / 8), col + at % (CHUNK / 8) * 8,
                          &rest[at / (CHUNK / 8)][at % (CHUNK / 8) * 8]);
}

template <int CHUNK>
static __device__ __forceinline__ void load_chunk(const ls_product *p, float (*rest)[PITCH], float *d, int64_t row,
                                                  int64_t col) {
    constexpr int ROWS = 32 / CHUNK; /* that a warp loads at a time */
    const int lane = threadIdx.x % 32;
    float x[16 / ROWS]; /* all on their way at once */
#pragma unroll
    for (int r = 0; r < 16 / ROWS; r++) x[r] = ls_product_begin(p, row + r * ROWS + lane / CHUNK, col + lane % CHUNK);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 16 / ROWS; r++) rest[r * ROWS + lane / CHUNK][lane % CHUNK] = x[r];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i++) d[i] = rest[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

/* Accumulators of a tile without an edge from what is there: all loads on their way at once, two columns each. */
template <int COLS>
static __device__ __forceinline__ void load_pairs(const ls_product *p, float (&d)[COLS / 2], int64_t row, int64_t col) {
    const int lane = threadIdx.x % 32;
    const float *from = (const float *)p->out + (row + lane / 4) * p->out_stride + col + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLS / 2; i += 2) {
        const float2 x = *(const float2 *)(from + i % 4 / 2 * 8 * p->out_stride + i / 4 * 8);
        d[i] = x.x;
        d[i + 1] = x.y;
    }
}

/* Outputs of a tile without an edge straight from accumulators, where nothing is added to them. float32: two columns of
 * a lane at once. bf16: the four lanes that hold a row's columns exchange what they have of 32, so that each has eight
 * neighbours: words w[0..3] of lanes 0..3 become their transpose. */
template <int COLS>
static __device__ __forceinline__ void store_straight(const ls_product *p, const float (&d)[COLS / 2], int64_t row,
                                                      int64_t col) {
    const int lane = threadIdx.x % 32, quarter = lane % 4;
    const int64_t first = (row + lane / 4) * p->out_stride + col;
    if (p->out_dtype == LS_F32) {
        float *to = (float *)p->out + first + quarter * 2;
#pragma unroll
        for (int i = 0; i < COLS / 2; i += 2)
            *(float2 *)(to + i % 4 / 2 * 8 * p->out_stride + i / 4 * 8) =
                make_float2(ls_canonical(d[i]), ls_canonical(d[i + 1]));
        return;
    }
    uint16_t *to = (uint16_t *)p->out + first + quarter * 8;
#pragma unroll
    for (int i = 0; i < COLS / 2; i += 16)
#pragma unroll
        for (int low = 0; low < 4; low += 2) {
            uint32_t w[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[j] = (uint32_t)ls_narrow_one<LS_BF16>(d[i + 4 * j + low]) |
                       (uint32_t)ls_narrow_one<LS_BF16>(d[i + 4 * j + low + 1]) << 16;
#pragma unroll
            for (int step = 1; step <= 2; step *= 2)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int a = step == 1 ? 2 * k : k, b = a + step;
                    const bool upper = (quarter & step) != 0;
                    const uint32_t got = __shfl_xor_sync(LS_ALL_LANES, upper ? w[a] : w[b], step);
                    w[a] = upper ? got : w[a];
                    w[b] = upper ? w[b] : got;
                }
            *(uint4 *)(to + low / 2 * 8 * p->out_stride + i * 2) = make_uint4(w[0], w[1], w[2], w[3]);
        }
}

#endif
