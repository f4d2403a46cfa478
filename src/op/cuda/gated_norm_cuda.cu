/* gated_norm on the GPU, forward and backward. A block is a group of a row; what the first 64 threads add up lies in
 * shared memory where it fits, else it is made again. dw has a block for each 32 columns: all its threads make the
 * normed values of a tile of rows, one warp adds them. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/gates_cuda.h"
#include "op/cuda/rmsnorm_cuda.h"
#include "op/gated_norm.h"

#define THREADS 256
#define STASH_MAX 12288 /* columns of a group whose two arrays fit shared memory */
#define COLUMNS 32      /* of a block of dw */
#define TILE_ROWS 64

typedef struct gated_params {
    ls_gated_norm_backward_args a; /* dy and what follows: of the gradient only */
    void *y;
    ls_dtype y_dtype;
    int64_t y_stride, each; /* columns of a group */
    bool vector, stash;
} gated_params;

/* v of columns c .. c + 3 of the block's group. */
static __device__ __forceinline__ void gate_four(const gated_params *p, int64_t row, int64_t first, int64_t c,
                                                 float v[4]) {
    float x[4];
    ls_four_load<LS_F32>(p->a.x, row * p->a.x_stride + first + c, p->each - c, p->vector, x);
    ls_four_load<LS_F32>(p->a.z, row * p->a.z_stride + first + c, p->each - c, p->vector, v);
    for (int j = 0; j < 4; j++) v[j] = ls_mul(x[j], ls_silu(v[j]));
}

/* Fours of a stash that is padded to a multiple of four. */
static __device__ __forceinline__ void put_four(float *stash, int64_t c, const float v[4]) {
    *(float4 *)(stash + c) = make_float4(v[0], v[1], v[2], v[3]);
}
static __device__ __forceinline__ void get_four(const float *stash, int64_t c, float v[4]) {
    const float4 four = *(const float4 *)(stash + c);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}

/* s of the block's group; v is left in the stash where there is one. All threads call it. */
static __device__ __forceinline__ float group_scale(const gated_params *p, int64_t row, int64_t first, float *stash) {
    __shared__ float runs[LS_CHAIN_RUNS];
    float chain[4] = {0, 0, 0, 0}, v[4];
    for (int64_t c = 4 * threadIdx.x; p->stash && c < p->each; c += 4 * THREADS) {
        gate_four(p, row, first, c, v);
        put_four(stash, c, v);
    }
    __syncthreads();
    for (int64_t c = 4 * threadIdx.x; threadIdx.x < LS_CHAIN_THREADS && c < p->each; c += LS_CHAIN_STEP) {
        if (p->stash)
            get_four(stash, c, v);
        else
            gate_four(p, row, first, c, v);
        ls_chain_add(chain, v, v, p->each - c);
    }
    return ls_norm_scale(ls_chain_fold(chain, runs), p->each, p->a.eps);
}

static __global__ void __launch_bounds__(THREADS) gated_kernel(const __grid_constant__ gated_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) float stash[];
    const int64_t row = blockIdx.x / p.a.groups, first = blockIdx.x % p.a.groups * p.each;
    const float s = group_scale(&p, row, first, stash);
    for (int64_t c = 4 * threadIdx.x; c < p.each; c += 4 * THREADS) {
        float v[4], w[4];
        if (p.stash)
            get_four(stash, c, v);
        else
            gate_four(&p, row, first, c, v);
        ls_four_load<LS_F32>(p.a.w, first + c, p.each - c, p.vector, w);
        for (int j = 0; j < 4; j++) v[j] = ls_mul(ls_mul(v[j], s), w[j]);
        if (p.y_dtype == LS_F32)
            ls_four_store<LS_F32>(p.y, row * p.y_stride + first + c, p.each - c, p.vector, v);
        else
            ls_four_store<LS_BF16>(p.y, row * p.y_stride + first + c, p.each - c, p.vector, v);
    }
}

/* e of columns c .. c + 3. */
static __device__ __forceinline__ void weigh_four(const gated_params *p, int64_t row, int64_t first, int64_t c,
                                                  float e[4]) {
    float w[4];
    ls_four_load<LS_F32>(p->a.dy, row * p->a.dy_stride + first + c, p->each - c, p->vector, e);
    ls_four_load<LS_F32>(p->a.w, first + c, p->each - c, p->vector, w);
    for (int j = 0; j < 4; j++) e[j] = ls_mul(e[j], w[j]);
}

/* n and e of columns c .. c + 3. */
static __device__ __forceinline__ void norm_four(const gated_params *p, int64_t row, int64_t first, int64_t c, float s,
                                                 const float *stash, float n[4], float e[4]) {
    if (p->stash) {
        get_four(stash, c, n);
        get_four(stash + (p->each + 3) / 4 * 4, c, e);
    } else {
        gate_four(p, row, first, c, n);
        weigh_four(p, row, first, c, e);
    }
    for (int j = 0; j < 4; j++) n[j] = ls_mul(n[j], s);
}

static __global__ void __launch_bounds__(THREADS) gated_back_kernel(const __grid_constant__ gated_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) float stash[]; /* v, then e */
    __shared__ float runs[LS_CHAIN_RUNS];
    const int64_t row = blockIdx.x / p.a.groups, group = blockIdx.x % p.a.groups, first = group * p.each;
    float chain[4] = {0, 0, 0, 0}, n[4], e[4];
    for (int64_t c = 4 * threadIdx.x; p.stash && c < p.each; c += 4 * THREADS) {
        weigh_four(&p, row, first, c, e);
        put_four(stash + (p.each + 3) / 4 * 4, c, e);
    }
    const float s = group_scale(&p, row, first, stash);
    for (int64_t c = 4 * threadIdx.x; threadIdx.x < LS_CHAIN_THREADS && c < p.each; c += LS_CHAIN_STEP) {
        norm_four(&p, row, first, c, s, stash, n, e);
        ls_chain_add(chain, e, n, p.each - c);
    }
    const float u = ls_div(ls_chain_fold(chain, runs), (float)p.each);
    for (int64_t c = 4 * threadIdx.x; c < p.each; c += 4 * THREADS) {
        float x[4], z[4], dx[4];
        norm_four(&p, row, first, c, s, stash, n, e);
        ls_four_load<LS_F32>(p.a.x, row * p.a.x_stride + first + c, p.each - c, p.vector, x);
        ls_four_load<LS_F32>(p.a.z, row * p.a.z_stride + first + c, p.each - c, p.vector, z);
        for (int j = 0; j < 4; j++) {
            const float dv = ls_mul(s, ls_fma(-n[j], u, e[j])), k = ls_sigmoid(z[j]), l = ls_silu(z[j]);
            dx[j] = ls_mul(dv, l);
            z[j] = ls_mul(ls_mul(dv, x[j]), ls_fma(l, ls_sub(1.0f, k), k));
        }
        ls_four_store<LS_F32>(p.a.dx, row * p.a.dx_stride + first + c, p.each - c, p.vector, dx);
        if (p.a.dz_dtype == LS_F32)
            ls_four_store<LS_F32>(p.a.dz, row * p.a.dz_stride + first + c, p.each - c, p.vector, z);
        else
            ls_four_store<LS_BF16>(p.a.dz, row * p.a.dz_stride + first + c, p.each - c, p.vector, z);
    }
    if (threadIdx.x == 0) p.a.scale[row * p.a.groups + group] = s;
}

/* Normed values and dy of a tile of rows, for a column each lane. */
typedef struct dw_tile {
    float n[TILE_ROWS][COLUMNS], dy[TILE_ROWS][COLUMNS];
} dw_tile;

static __device__ __forceinline__ void make_tile(dw_tile *tile, const ls_gated_norm_backward_args *a, int64_t each,
                                                 int64_t row, int64_t column, int rows) {
    const int lane = (int)threadIdx.x % COLUMNS;
#pragma unroll 4
    for (int r = (int)threadIdx.x / COLUMNS; r < rows; r += THREADS / COLUMNS) {
        const float x = a->x[(row + r) * a->x_stride + column], z = a->z[(row + r) * a->z_stride + column];
        tile->dy[r][lane] = a->dy[(row + r) * a->dy_stride + column];
        tile->n[r][lane] = ls_mul(ls_mul(x, ls_silu(z)), a->scale[(row + r) * a->groups + column / each]);
    }
}

static __global__ void __launch_bounds__(THREADS) gated_dw_kernel(const __grid_constant__ gated_params p) {
    ls_cuda_begin();
    __shared__ dw_tile tiles[2];
    const ls_gated_norm_backward_args *a = &p.a;
    const int lane = (int)threadIdx.x % COLUMNS;
    const int64_t mine = (int64_t)blockIdx.x * COLUMNS + lane, column = mine < a->dim ? mine : a->dim - 1;
    const bool adds = threadIdx.x < COLUMNS && mine < a->dim;
    float sum = adds ? a->dw[mine] : 0.0f;
    int parity = 0;
    for (int64_t row = 0; row < a->rows; row += TILE_ROWS, parity ^= 1) {
        const int rows = a->rows - row < TILE_ROWS ? (int)(a->rows - row) : TILE_ROWS;
        make_tile(&tiles[parity], a, p.each, row, column, rows);
        /* The tile before the last has been added when its buffer is filled again: the adding warp meets here too. */
        __syncthreads();
        for (int r = 0; adds && r < rows; r++) sum = ls_fma(tiles[parity].dy[r][lane], tiles[parity].n[r][lane], sum);
    }
    if (adds) a->dw[mine] = sum;
}

/* ---- the host's side ---- */

static bool fours(const float *rows, int64_t stride) { return ls_four_fits(rows, LS_F32) && stride % 4 == 0; }

static ls_launch launch_of(const char *op, const gated_params *p, int64_t arrays, const ls_index *index, int64_t n) {
    const int64_t shared = p->stash ? arrays * ((p->each + 3) / 4 * 4) * 4 : 0;
    const ls_launch launch = {op, {ls_launch_blocks(p->a.rows, p->a.groups, 1), 1, 1}, THREADS, shared, index, n};
    return launch;
}

#define ROWS_OF(p, name)                                                                    \
    {                                                                                       \
        LS_WIDTH_I64, {                                                                     \
            {                                                                               \
                {"row", (p)->rows}, {#name " stride", (p)->name##_stride}, { "element", 4 } \
            }                                                                               \
        }                                                                                   \
    }

ls_status ls_cuda_gated_norm(const ls_exec *exec, const ls_gated_norm_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, 4, a->rows == 0},
                                        {"z", a->z, 4, a->rows == 0},
                                        {"w", a->w, 4, false},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), a->rows == 0}};
    const ls_index index[] = {ROWS_OF(a, x), ROWS_OF(a, z), ROWS_OF(a, y)};
    gated_params p = {};
    LS_CUDA_TRY(ls_cuda_check("gated_norm", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    p.a.x = a->x, p.a.z = a->z, p.a.w = a->w, p.a.eps = a->eps;
    p.a.x_stride = a->x_stride, p.a.z_stride = a->z_stride;
    p.a.rows = a->rows, p.a.dim = a->dim, p.a.groups = a->groups;
    p.y = a->y, p.y_dtype = a->y_dtype, p.y_stride = a->y_stride;
    p.each = a->dim / a->groups;
    p.vector = p.each % 4 == 0 && fours(a->x, a->x_stride) && fours(a->z, a->z_stride) && fours(a->w, 0) &&
               ls_four_fits(a->y, a->y_dtype) && a->y_stride % 4 == 0;
    p.stash = p.each <= STASH_MAX;
    const ls_launch launch = launch_of("gated_norm", &p, 1, index, 3);
    return ls_cuda_launch(exec, &launch, (const void *)gated_kernel, &p, err);
}

ls_status ls_cuda_gated_norm_backward(const ls_exec *exec, const ls_gated_norm_backward_args *a, ls_error *err) {
    static const char op[] = "gated_norm_backward";
    const ls_cuda_operand operands[] = {
        {"x", a->x, 4, a->rows == 0},   {"z", a->z, 4, a->rows == 0},
        {"w", a->w, 4, false},          {"dy", a->dy, 4, a->rows == 0},
        {"dx", a->dx, 4, a->rows == 0}, {"dz", a->dz, ls_dtype_bytes(a->dz_dtype), a->rows == 0},
        {"dw", a->dw, 4, false},        {"scale", a->scale, 4, a->rows == 0}};
    const ls_index index[] = {ROWS_OF(a, x), ROWS_OF(a, z), ROWS_OF(a, dy), ROWS_OF(a, dx), ROWS_OF(a, dz)};
    gated_params p = {};
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 8, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    p.a = *a;
    p.each = a->dim / a->groups;
    p.vector = p.each % 4 == 0 && fours(a->x, a->x_stride) && fours(a->z, a->z_stride) && fours(a->w, 0) &&
               fours(a->dy, a->dy_stride) && fours(a->dx, a->dx_stride) && ls_four_fits(a->dz, a->dz_dtype) &&
               a->dz_stride % 4 == 0;
    p.stash = p.each <= STASH_MAX;
    const ls_launch rows = launch_of(op, &p, 2, index, 5);
    const ls_launch dw = {op, {(a->dim + COLUMNS - 1) / COLUMNS, 1, 1}, THREADS, 0, index, 5};
    LS_CUDA_TRY(ls_launch_check(&dw, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &rows, (const void *)gated_back_kernel, &p, err));
    return ls_cuda_launch(exec, &dw, (const void *)gated_dw_kernel, &p, err);
}
