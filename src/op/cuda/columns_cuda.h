/* Sums over all rows, a chain for each column: sum[c] = fma(a[r][c], b[r][c], sum[c]), rows ascending. Such a chain is
 * one thread's, so a block has few columns: most of its warps bring a and b of many rows, and its last warp adds what
 * they brought before. */
#ifndef LS_OP_CUDA_COLUMNS_CUDA_H
#define LS_OP_CUDA_COLUMNS_CUDA_H

#include "op/cuda/vector_cuda.h"

/* A block of COLUMNS columns. Each of its WARPS warps that bring rows brings SLOTS times as many as lie side by side in
 * its lanes. */
template <int COLUMNS_, int WARPS_, int SLOTS_>
struct ls_columns {
    static constexpr int COLUMNS = COLUMNS_, WARPS = WARPS_, SLOTS = SLOTS_;
    static constexpr int BLOCK_THREADS = 32 * (WARPS + 1);
    static constexpr int STEP = WARPS * (32 / COLUMNS); /* rows from one slot of a lane to its next */
    static constexpr int ROWS = STEP * SLOTS;
    float2 pair[2][ROWS][COLUMNS]; /* a and b */
};

#define LS_COLUMNS_RUN 8 /* rows of a chain that are in registers together */

template <int COLUMNS>
static __device__ __forceinline__ void ls_columns_load(float2 run[LS_COLUMNS_RUN], const float2 *pair) {
#pragma unroll
    for (int i = 0; i < LS_COLUMNS_RUN; i++) run[i] = pair[i * COLUMNS];
}

static __device__ __forceinline__ float ls_columns_add(const float2 run[LS_COLUMNS_RUN], float sum) {
#pragma unroll
    for (int i = 0; i < LS_COLUMNS_RUN; i++) sum = ls_fma(run[i].x, run[i].y, sum);
    return sum;
}

/* The chain over n of the ROWS rows of a column. While a run is added the next is on its way to registers; behind the
 * last the first is read once more. */
template <class SHAPE>
static __device__ __forceinline__ float ls_columns_chain(const float2 *pair, int n, float sum) {
    constexpr int COLUMNS = SHAPE::COLUMNS, MANY = LS_COLUMNS_RUN;
    static_assert(SHAPE::ROWS % (2 * MANY) == 0, "two runs at a time");
    float2 even[MANY], odd[MANY];
    int r = 0;
    ls_columns_load<COLUMNS>(even, pair);
#pragma unroll 1
    for (; r + 2 * MANY <= n; r += 2 * MANY) {
        const int next = r + 2 * MANY < SHAPE::ROWS ? r + 2 * MANY : 0;
        ls_columns_load<COLUMNS>(odd, pair + (r + MANY) * COLUMNS);
        sum = ls_columns_add(even, sum);
        ls_columns_load<COLUMNS>(even, pair + next * COLUMNS);
        sum = ls_columns_add(odd, sum);
    }
    for (; r < n; r++) sum = ls_fma(pair[r * COLUMNS].x, pair[r * COLUMNS].y, sum);
    return sum;
}

/* A reader is told a row and brings what belongs to its lane's column of it:
 *   type raw: what was read;  raw read(int64_t row): begins to read;  float2 pair(const raw &): a and b.
 * All lanes of a warp call pair together. Behind the last row the last is read once more; nothing adds it.
 *
 * The block's BLOCK_THREADS threads call this together, with at least one row. The sum of column `lane` is returned in
 * the first COLUMNS lanes of the last warp, which begins at `sum` there. */
template <class SHAPE, class READER>
static __device__ __forceinline__ float ls_columns_sum(SHAPE *shared, const READER &reader, int64_t rows, float sum) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, column = lane % SHAPE::COLUMNS;
    const int first = warp * (32 / SHAPE::COLUMNS) + lane / SHAPE::COLUMNS;
    const bool adds = warp == SHAPE::WARPS;
    const int64_t parts = (rows + SHAPE::ROWS - 1) / SHAPE::ROWS;
    typename READER::raw own[SHAPE::SLOTS];
    for (int64_t k = -1; k <= parts; k++) {
        if (!adds && k >= 0 && k < parts) {
#pragma unroll
            for (int i = 0; i < SHAPE::SLOTS; i++)
                shared->pair[k & 1][first + i * SHAPE::STEP][column] = reader.pair(own[i]);
        }
        if (!adds && k + 1 < parts) {
#pragma unroll
            for (int i = 0; i < SHAPE::SLOTS; i++) {
                const int64_t row = (k + 1) * SHAPE::ROWS + first + i * SHAPE::STEP;
                own[i] = reader.read(row < rows ? row : rows - 1);
            }
        }
        if (adds && k > 0 && lane < SHAPE::COLUMNS) {
            const int64_t left = rows - (k - 1) * SHAPE::ROWS;
            sum = ls_columns_chain<SHAPE>(&shared->pair[(k - 1) & 1][0][column],
                                          left < SHAPE::ROWS ? (int)left : SHAPE::ROWS, sum);
        }
        __syncthreads();
    }
    return sum;
}

#endif
