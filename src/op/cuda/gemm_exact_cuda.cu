/* Dense products of the profile exact on the GPU: every thread holds some outputs and takes the depths in ascending
 * order, one fma each. Blocks, tiles and what waits in shared memory carry no bit. */
#include "op/cuda/product_cuda.h"

typedef struct exact_params {
    ls_product p;
    int64_t col_tiles;
} exact_params;

/* a(i, s) of the tile as [s][i]; A_TYPE is its type, whichever way it lies. */
template <int TYPE, int SIDE, int DEPTH, int THREADS>
static __device__ __forceinline__ void fetch(float (*to)[SIDE + 4], const void *from, int64_t first, int64_t count,
                                             int64_t along, int64_t depth, int64_t depths, int64_t step,
                                             const int64_t *steps) {
#pragma unroll
    for (int n = 0; n < SIDE * DEPTH / THREADS; n++) {
        const int at = threadIdx.x + n * THREADS;
        /* Neighbouring threads read neighbouring elements. */
        const int i = step == 1 ? at / DEPTH : at % SIDE, s = step == 1 ? at % DEPTH : at / SIDE;
        const bool inside = first + i < count && depth + s < depths;
        const int64_t at_step = inside && steps != NULL ? steps[depth + s] : depth + s;
        to[s][i] = inside ? ls_load_one<TYPE>(from, (first + i) * along + at_step * step) : 0.0f;
    }
}

template <int HIGH, int WIDE>
static __device__ __forceinline__ void one_step(float (&acc)[HIGH][WIDE], const float *a, const float *b) {
    float x[HIGH], y[WIDE];
#pragma unroll
    for (int i = 0; i < HIGH; i++) x[i] = a[i];
#pragma unroll
    for (int j = 0; j < WIDE; j++) y[j] = b[j];
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++) acc[i][j] = ls_fma(x[i], y[j], acc[i][j]);
}

/* ROWS x COLS outputs a block, of which a thread holds HIGH x WIDE. Depths that are not there are not taken: fma with
 * +0 could turn a -0. */
template <int A_TYPE, int B_TYPE, int ROWS, int COLS, int DEPTH, int HIGH, int WIDE>
static __global__ void __launch_bounds__(ROWS *COLS / HIGH / WIDE, 2)
    exact_kernel(const __grid_constant__ exact_params q) {
    ls_cuda_begin();
    constexpr int THREADS = ROWS * COLS / HIGH / WIDE;
    __shared__ __align__(16) float a[DEPTH][ROWS + 4], b[DEPTH][COLS + 4];
    const ls_product *p = &q.p;
    const int64_t row = blockIdx.x / q.col_tiles * ROWS, col = blockIdx.x % q.col_tiles * COLS;
    const int ty = threadIdx.x / (COLS / WIDE) * HIGH, tx = threadIdx.x % (COLS / WIDE) * WIDE;
    float acc[HIGH][WIDE];
    ls_product_part part;
    if (!ls_product_part_of(p, &part) || row >= part.row_end || row + ROWS <= part.row) return;
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++) acc[i][j] = ls_product_begin(p, row + ty + i, col + tx + j);
    for (int64_t depth = part.depth; depth < part.depth_end; depth += DEPTH) {
        const int steps = part.depth_end - depth < DEPTH ? (int)(part.depth_end - depth) : DEPTH;
        fetch<A_TYPE, ROWS, DEPTH, THREADS>(a, p->a, row, p->rows, p->a_row, depth, part.depth_end, p->a_step, NULL);
        fetch<B_TYPE, COLS, DEPTH, THREADS>(b, p->b, col, p->cols, p->b_col, depth, part.depth_end, p->b_step,
                                            p->b_steps);
        __syncthreads();
        if (steps == DEPTH) {
#pragma unroll 8
            for (int s = 0; s < DEPTH; s++) one_step<HIGH, WIDE>(acc, &a[s][ty], &b[s][tx]);
        } else {
#pragma unroll 1
            for (int s = 0; s < steps; s++) one_step<HIGH, WIDE>(acc, &a[s][ty], &b[s][tx]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < HIGH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            if (row + ty + i >= part.row && row + ty + i < part.row_end && col + tx + j < p->cols)
                ls_product_store(p, row + ty + i, col + tx + j, acc[i][j]);
}

template <int A_TYPE, int B_TYPE>
static ls_status launch(const ls_exec *exec, const ls_product *product, ls_error *err) {
    const bool few = product->rows <= 32;
    const int64_t rows = few ? 16 : 128, cols = few ? 64 : 128;
    const exact_params q = {*product, (product->cols - 1) / cols + 1};
    const ls_index index[LS_PRODUCT_INDICES] = LS_PRODUCT_INDEX(product);
    const ls_launch launch = {product->op, {ls_launch_blocks((product->rows - 1) / rows + 1, q.col_tiles, 1), 1, 1},
                              256,         0,
                              index,       LS_PRODUCT_INDICES};
    return ls_cuda_launch(exec, &launch,
                          few ? (const void *)exact_kernel<A_TYPE, B_TYPE, 16, 64, 16, 2, 2>
                              : (const void *)exact_kernel<A_TYPE, B_TYPE, 128, 128, 16, 8, 8>,
                          (void *)&q, err);
}

template <int A_TYPE>
static ls_status launch_a(const ls_exec *exec, const ls_product *product, ls_error *err) {
    switch (product->b_dtype) {
        case LS_F32: return launch<A_TYPE, LS_F32>(exec, product, err);
        case LS_BF16: return launch<A_TYPE, LS_BF16>(exec, product, err);
        default: return launch<A_TYPE, LS_F16>(exec, product, err);
    }
}

ls_status ls_product_exact(const ls_exec *exec, const ls_product *product, ls_error *err) {
    return product->a_dtype == LS_F32 ? launch_a<LS_F32>(exec, product, err) : launch_a<LS_BF16>(exec, product, err);
}
