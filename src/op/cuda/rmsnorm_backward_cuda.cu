/* rmsnorm backward on the GPU: dx takes a block a row, or a warp, or half of one, as the forward op does; dw a thread a
 * column, whose chain goes over all rows as other threads bring them. */
#include "op/cuda/columns_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/rmsnorm_cuda.h"

#define SHORT_STEPS LS_NORM_SHORT_STEPS
#define LONG_STEPS 16

/* dx of four columns from n and g. */
static __device__ __forceinline__ void store_dx(const ls_norm_params *p, int64_t row, int64_t c, const float n[4],
                                                const float g[4], float s, float u) {
    const int64_t at = row * p->a.dx_stride + c;
    float d[4], old[4];
    ls_norm_dx(d, n, g, s, u);
    if (p->a.add) {
        ls_four_load<LS_F32>(p->a.dx, at, p->a.dim - c, p->vector, old);
        for (int j = 0; j < 4; j++) d[j] = ls_add(old[j], d[j]);
    }
    ls_four_store<LS_F32>(p->a.dx, at, p->a.dim - c, p->vector, d);
}

/* x and dy of four columns. */
template <int X>
static __device__ __forceinline__ void load_row(const ls_norm_params *p, int64_t row, int64_t c, float x[4],
                                                float dy[4]) {
    ls_four_load<X>(p->a.x, row * p->a.x_stride + c, p->a.dim - c, p->vector, x);
    ls_four_load<LS_F32>(p->a.dy, row * p->a.dy_stride + c, p->a.dim - c, p->vector, dy);
}

/* A row in registers. */
template <int X, int STEPS>
static __device__ __forceinline__ void row_dx(const ls_norm_params *p, int64_t row) {
    __shared__ float runs[2][LS_CHAIN_RUNS];
    const int64_t first = 4 * threadIdx.x, dim = p->a.dim;
    float x[STEPS][4], g[STEPS][4], w[4], squares[4] = {0, 0, 0, 0}, products[4] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int64_t c = first + step * LS_CHAIN_STEP;
        if (c < dim) load_row<X>(p, row, c, x[step], g[step]);
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        ls_chain_add(squares, x[step], x[step], dim - first - step * LS_CHAIN_STEP);
    const float s = ls_norm_scale(ls_chain_fold(squares, runs[0]), dim, p->a.eps);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int64_t c = first + step * LS_CHAIN_STEP;
        if (c >= dim) continue;
        ls_four_load<LS_F32>(p->a.w, c, dim - c, p->vector, w);
        ls_norm_normalise(x[step], g[step], w, s);
        ls_chain_add(products, g[step], x[step], dim - c);
    }
    const float u = ls_div(ls_chain_fold(products, runs[1]), (float)dim);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int64_t c = first + step * LS_CHAIN_STEP;
        if (c < dim) store_dx(p, row, c, x[step], g[step], s, u);
    }
    if (threadIdx.x == 0) p->a.scale[row] = s;
}

template <int X, int STEPS>
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) dx_kernel(const __grid_constant__ ls_norm_params p) {
    ls_cuda_begin();
    row_dx<X, STEPS>(&p, blockIdx.x);
}

/* Several norms of the same rows, which lie side by side. */
typedef struct parts_params {
    ls_norm_params part[LS_NORM_PARTS];
    int64_t n;
    int64_t first_block[LS_NORM_PARTS]; /* of a part's dw */
} parts_params;

static __global__ void __launch_bounds__(LS_CHAIN_THREADS) parts_dx_kernel(const __grid_constant__ parts_params p) {
    ls_cuda_begin();
    row_dx<LS_F32, SHORT_STEPS>(&p.part[blockIdx.x % p.n], blockIdx.x / p.n);
}

/* A row in the registers of four times as many threads; the first 64, whose chains they are, find it in shared
 * memory. */
#define GROUPS 4

template <int X>
static __global__ void __launch_bounds__(GROUPS *LS_CHAIN_THREADS)
    long_dx_kernel(const __grid_constant__ ls_norm_params p) {
    ls_cuda_begin();
    __shared__ float runs[2][LS_CHAIN_RUNS];
    __shared__ __align__(16) float n[LONG_STEPS * LS_CHAIN_STEP], g[LONG_STEPS * LS_CHAIN_STEP];
    const int64_t row = blockIdx.x, dim = p.a.dim;
    const int64_t first = 4 * (threadIdx.x % LS_CHAIN_THREADS), group = threadIdx.x / LS_CHAIN_THREADS;
    float x[LONG_STEPS / GROUPS][4], dy[LONG_STEPS / GROUPS][4], w[LONG_STEPS / GROUPS][4];
    float squares[4] = {0, 0, 0, 0}, products[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < LONG_STEPS / GROUPS; i++) {
        const int64_t c = first + (GROUPS * i + group) * LS_CHAIN_STEP;
        if (c >= dim) continue;
        load_row<X>(&p, row, c, x[i], dy[i]);
        ls_four_load<LS_F32>(p.a.w, c, dim - c, p.vector, w[i]);
        *(float4 *)&n[c] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
    __syncthreads();
    for (int64_t c = first; group == 0 && c < dim; c += LS_CHAIN_STEP) ls_chain_add(squares, &n[c], &n[c], dim - c);
    const float s = ls_norm_scale(ls_chain_fold(squares, runs[0]), dim, p.a.eps);
#pragma unroll
    for (int i = 0; i < LONG_STEPS / GROUPS; i++) {
        const int64_t c = first + (GROUPS * i + group) * LS_CHAIN_STEP;
        if (c >= dim) continue;
        ls_norm_normalise(x[i], dy[i], w[i], s);
        *(float4 *)&n[c] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        *(float4 *)&g[c] = make_float4(dy[i][0], dy[i][1], dy[i][2], dy[i][3]);
    }
    __syncthreads();
    for (int64_t c = first; group == 0 && c < dim; c += LS_CHAIN_STEP) ls_chain_add(products, &g[c], &n[c], dim - c);
    const float u = ls_div(ls_chain_fold(products, runs[1]), (float)dim);
#pragma unroll
    for (int i = 0; i < LONG_STEPS / GROUPS; i++) {
        const int64_t c = first + (GROUPS * i + group) * LS_CHAIN_STEP;
        if (c < dim) store_dx(&p, row, c, x[i], dy[i], s, u);
    }
    if (threadIdx.x == 0) p.a.scale[row] = s;
}

/* A row of any length, read three times. */
template <int X>
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) wide_dx_kernel(const __grid_constant__ ls_norm_params p) {
    ls_cuda_begin();
    __shared__ float runs[2][LS_CHAIN_RUNS];
    const int64_t row = blockIdx.x, first = 4 * threadIdx.x, dim = p.a.dim;
    float x[4], g[4], w[4], squares[4] = {0, 0, 0, 0}, products[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int64_t c = first; c < dim; c += LS_CHAIN_STEP) {
        ls_four_load<X>(p.a.x, row * p.a.x_stride + c, dim - c, p.vector, x);
        ls_chain_add(squares, x, x, dim - c);
    }
    const float s = ls_norm_scale(ls_chain_fold(squares, runs[0]), dim, p.a.eps);
#pragma unroll 4
    for (int64_t c = first; c < dim; c += LS_CHAIN_STEP) {
        load_row<X>(&p, row, c, x, g);
        ls_four_load<LS_F32>(p.a.w, c, dim - c, p.vector, w);
        ls_norm_normalise(x, g, w, s);
        ls_chain_add(products, g, x, dim - c);
    }
    const float u = ls_div(ls_chain_fold(products, runs[1]), (float)dim);
    for (int64_t c = first; c < dim; c += LS_CHAIN_STEP) {
        load_row<X>(&p, row, c, x, g);
        ls_four_load<LS_F32>(p.a.w, c, dim - c, p.vector, w);
        ls_norm_normalise(x, g, w, s);
        store_dx(&p, row, c, x, g, s, u);
    }
    if (threadIdx.x == 0) p.a.scale[row] = s;
}

template <int X, int LANES>
static __global__ void __launch_bounds__(LS_NORM_RUN_THREADS) run_dx_kernel(const __grid_constant__ ls_norm_params p) {
    ls_cuda_begin();
    const int64_t row = (int64_t)blockIdx.x * (LS_NORM_RUN_THREADS / LANES) + threadIdx.x / LANES;
    const int64_t first = threadIdx.x % LANES * 8, n = row < p.a.rows ? p.a.dim - first : 0;
    const int64_t to = row * p.a.dx_stride + first;
    float x[8], g[8], w[8], old[8];
    ls_run_load<X>(p.a.x, row * p.a.x_stride + first, n, p.vector, x);
    ls_run_load<LS_F32>(p.a.dy, row * p.a.dy_stride + first, n, p.vector, g);
    ls_run_load<LS_F32>(p.a.w, first, n, p.vector, w);
    if (p.a.add) ls_run_load<LS_F32>(p.a.dx, to, n, p.vector, old);
    const float s = ls_norm_scale(ls_runs_sum<LANES>(x, x, n), p.a.dim, p.a.eps);
#pragma unroll
    for (int j = 0; j < 8; j += 4) ls_norm_normalise(x + j, g + j, w + j, s);
    const float u = ls_div(ls_runs_sum<LANES>(g, x, n), (float)p.a.dim);
#pragma unroll
    for (int j = 0; j < 8; j += 4) ls_norm_dx(g + j, x + j, g + j, s, u);
#pragma unroll
    for (int j = 0; j < 8 && p.a.add; j++) g[j] = ls_add(old[j], g[j]);
    ls_run_store<LS_F32>(p.a.dx, to, n, p.vector, g);
    if (first == 0 && n > 0) p.a.scale[row] = s;
}

/* ---- dw ---- */

/* Few columns, so that those of one row are on many processors. */
typedef ls_columns<8, 16, 8> dw_columns;

/* dy and n of a column. */
template <int X>
struct dw_reader {
    const ls_rmsnorm_backward_args *a;
    int64_t c;
    struct raw {
        float x, dy, s;
    };
    __device__ __forceinline__ raw read(int64_t row) const {
        return raw{ls_load_one<X>(a->x, row * a->x_stride + c), a->dy[row * a->dy_stride + c], a->scale[row]};
    }
    __device__ __forceinline__ float2 pair(const raw &r) const { return make_float2(r.dy, ls_mul(r.x, r.s)); }
};

/* Columns behind the last are the last once more. */
template <int X>
static __device__ __forceinline__ void columns_dw(const ls_rmsnorm_backward_args *a, int64_t block) {
    extern __shared__ __align__(16) uint8_t memory[];
    const int64_t mine = block * dw_columns::COLUMNS + threadIdx.x % 32;
    const bool adds = threadIdx.x / 32 == dw_columns::WARPS && threadIdx.x % 32 < dw_columns::COLUMNS && mine < a->dim;
    const int64_t c = block * dw_columns::COLUMNS + threadIdx.x % dw_columns::COLUMNS;
    const dw_reader<X> reader = {a, c < a->dim ? c : a->dim - 1};
    const float sum = ls_columns_sum((dw_columns *)memory, reader, a->rows, adds ? a->dw[mine] : 0.0f);
    if (adds) a->dw[mine] = sum;
}

template <int X>
static __global__ void __launch_bounds__(dw_columns::BLOCK_THREADS)
    dw_kernel(const __grid_constant__ ls_rmsnorm_backward_args a) {
    ls_cuda_begin();
    columns_dw<X>(&a, blockIdx.x);
}

static __global__ void __launch_bounds__(dw_columns::BLOCK_THREADS)
    parts_dw_kernel(const __grid_constant__ parts_params p) {
    ls_cuda_begin();
    int64_t part = p.n - 1;
    while (blockIdx.x < p.first_block[part]) part--;
    columns_dw<LS_F32>(&p.part[part].a, blockIdx.x - p.first_block[part]);
}

/* ---- the op ---- */

/* rows: of a block. */
typedef struct dx_launch {
    const void *kernel;
    int64_t threads, rows;
} dx_launch;

template <int X>
static dx_launch dx_kernel_for(int64_t dim) {
    if (dim <= LS_RUN_ROW)
        return dx_launch{
            ls_norm_run_lanes(dim) == 16 ? (const void *)run_dx_kernel<X, 16> : (const void *)run_dx_kernel<X, 32>,
            LS_NORM_RUN_THREADS, LS_NORM_RUN_THREADS / ls_norm_run_lanes(dim)};
    if (dim <= SHORT_STEPS * LS_CHAIN_STEP)
        return dx_launch{(const void *)dx_kernel<X, SHORT_STEPS>, LS_CHAIN_THREADS, 1};
    if (dim <= LONG_STEPS * LS_CHAIN_STEP)
        return dx_launch{(const void *)long_dx_kernel<X>, GROUPS * LS_CHAIN_THREADS, 1};
    return dx_launch{(const void *)wide_dx_kernel<X>, LS_CHAIN_THREADS, 1};
}

static bool fits_fours(const ls_rmsnorm_backward_args *a) {
    return a->dim % 4 == 0 && a->x_stride % 4 == 0 && a->dy_stride % 4 == 0 && a->dx_stride % 4 == 0 &&
           ls_four_fits(a->x, a->x_dtype) && ls_four_fits(a->w, LS_F32) && ls_four_fits(a->dy, LS_F32) &&
           ls_four_fits(a->dx, LS_F32);
}

#define NORM_INDEX(a)                                                                              \
    {                                                                                              \
        {LS_WIDTH_I64, {{{"row", (a)->rows}, {"x stride", (a)->x_stride}, {"element", 4}}}},       \
            {LS_WIDTH_I64, {{{"row", (a)->rows}, {"dy stride", (a)->dy_stride}, {"element", 4}}}}, \
            {LS_WIDTH_I64, {{{"row", (a)->rows}, {"dx stride", (a)->dx_stride}, {"element", 4}}}}, \
    }

static int64_t dw_blocks(const ls_rmsnorm_backward_args *a) {
    return (a->dim + dw_columns::COLUMNS - 1) / dw_columns::COLUMNS;
}

static ls_status check(const char *op, const ls_exec *exec, const ls_rmsnorm_backward_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), none},
                                        {"w", a->w, 4, none},
                                        {"dy", a->dy, 4, none},
                                        {"dx", a->dx, 4, none},
                                        {"dw", a->dw, 4, true},
                                        {"scale", a->scale, 4, none}};
    return ls_cuda_check(op, exec, operands, (int64_t)(sizeof operands / sizeof operands[0]), LS_WORKSPACE_HEAD, err);
}

ls_status ls_cuda_rmsnorm_backward(const ls_exec *exec, const ls_rmsnorm_backward_args *args, ls_error *err) {
    ls_norm_params p = {*args, fits_fours(args)};
    ls_rmsnorm_backward_args *a = &p.a;
    LS_CUDA_TRY(check("rmsnorm_backward", exec, a, err));
    if (a->rows == 0) return LS_OK;
    const ls_index index[] = NORM_INDEX(a);
    const bool f32 = a->x_dtype == LS_F32;
    const dx_launch of = f32 ? dx_kernel_for<LS_F32>(a->dim) : dx_kernel_for<LS_BF16>(a->dim);
    const ls_launch dx = {"rmsnorm_backward", {ls_norm_blocks(a->rows, of.rows), 1, 1}, of.threads, 0, index, 3};
    const ls_launch dw = {
        "rmsnorm_backward dw", {dw_blocks(a), 1, 1}, dw_columns::BLOCK_THREADS, sizeof(dw_columns), index, 2};
    bool taken = false;
    LS_CUDA_TRY(ls_norm_dx_staged(exec, &p, &taken, err));
    if (!taken) LS_CUDA_TRY(ls_cuda_launch(exec, &dx, of.kernel, &p, err));
    if (a->dw == NULL) return LS_OK;
    LS_CUDA_TRY(ls_norm_dw_ring(exec, "rmsnorm_backward dw", a, 1, &taken, err));
    if (taken) return LS_OK;
    return ls_cuda_launch(exec, &dw, f32 ? (const void *)dw_kernel<LS_F32> : (const void *)dw_kernel<LS_BF16>, a, err);
}

/* Short rows of float32, all with a dw. */
static bool shares(const ls_rmsnorm_parts_backward_args *a) {
    for (int64_t i = 0; i < a->n; i++)
        if (a->part[i].x_dtype != LS_F32 || a->part[i].dim > SHORT_STEPS * LS_CHAIN_STEP || a->part[i].dw == NULL)
            return false;
    return true;
}

ls_status ls_cuda_rmsnorm_parts_backward(const ls_exec *exec, const ls_rmsnorm_parts_backward_args *a, ls_error *err) {
    const char *op = "rmsnorm_parts_backward";
    const int64_t rows = a->part[0].rows;
    int64_t blocks = 0;
    parts_params p;
    if (!shares(a)) {
        for (int64_t i = 0; i < a->n; i++) LS_CUDA_TRY(ls_cuda_rmsnorm_backward(exec, &a->part[i], err));
        return LS_OK;
    }
    p.n = a->n;
    for (int64_t i = 0; i < a->n; i++) {
        const ls_index index[] = NORM_INDEX(&a->part[i]);
        const ls_launch part = {op, {ls_launch_blocks(rows, a->n, 1), 1, 1}, LS_CHAIN_THREADS, 0, index, 3};
        LS_CUDA_TRY(check(op, exec, &a->part[i], err));
        if (rows > 0) LS_CUDA_TRY(ls_launch_check(&part, LS_CUDA_SHARED_MAX, err));
        p.part[i] = ls_norm_params{a->part[i], fits_fours(&a->part[i])};
        p.first_block[i] = blocks;
        blocks += dw_blocks(&a->part[i]);
    }
    if (rows == 0) return LS_OK;
    const ls_launch dx = {op, {ls_launch_blocks(rows, a->n, 1), 1, 1}, LS_CHAIN_THREADS, 0, NULL, 0};
    const ls_launch dw = {op, {blocks, 1, 1}, dw_columns::BLOCK_THREADS, sizeof(dw_columns), NULL, 0};
    bool taken;
    LS_CUDA_TRY(ls_cuda_launch(exec, &dx, (const void *)parts_dx_kernel, &p, err));
    LS_CUDA_TRY(ls_norm_dw_ring(exec, op, a->part, a->n, &taken, err));
    if (taken) return LS_OK;
    return ls_cuda_launch(exec, &dw, (const void *)parts_dw_kernel, &p, err);
}
