/* rmsnorm on the GPU. Rows of up to 256 columns, heads mostly, have a warp each, or half of one. Of longer ones a block
 * has one: a row of up to 1,024 columns lies in the registers of 64 threads, with all its loads and those of the weight
 * on their way at once; one of up to 4,096 in those of 256, and in shared memory, where the first 64 threads find what
 * they add up; a longer one is read twice. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/rmsnorm_cuda.h"
#include "op/elementwise.h"

#define SHORT_STEPS LS_NORM_SHORT_STEPS
#define LONG_STEPS 16
#define GROUPS 4 /* of 64 threads, which take turns in the steps of a long row */

static __device__ __forceinline__ float scale_of(const ls_rmsnorm_args *a, const float chain[4]) {
    __shared__ float runs[LS_CHAIN_RUNS];
    return ls_norm_scale(ls_chain_fold(chain, runs), a->dim, a->eps);
}

/* Fours of x, or of the sum, which is written, at columns first, first + stride and so on. All loads are on their way
 * before the first sum is written: the compiler leaves a load behind a store that might be to its address, and each
 * four would wait for the one before it. */
template <int X, int STEPS, bool ADD>
static __device__ __forceinline__ void load_row(const ls_norm_call *p, int64_t row, int64_t first, int64_t stride,
                                                float x[STEPS][4]) {
    const int64_t dim = p->a.dim;
    float add[STEPS][4];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int64_t c = first + s * stride;
        if (c >= dim) continue;
        ls_four_load<X>(p->a.x, row * p->a.x_stride + c, dim - c, p->vector, x[s]);
        if (ADD) ls_four_load<LS_F32>(p->add, row * dim + c, dim - c, p->vector, add[s]);
    }
#pragma unroll
    for (int s = 0; ADD && s < STEPS; s++) {
        const int64_t c = first + s * stride;
        if (c >= dim) continue;
        for (int j = 0; j < 4; j++) x[s][j] = ls_add(x[s][j], add[s][j]);
        ls_four_store<LS_F32>(p->sum, row * dim + c, dim - c, p->vector, x[s]);
    }
}

/* The weight's fours at the same columns. */
template <int STEPS>
static __device__ __forceinline__ void load_weight(const ls_norm_call *p, int64_t first, int64_t stride,
                                                   float w[STEPS][4]) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int64_t c = first + s * stride;
        if (c < p->a.dim) ls_four_load<LS_F32>(p->a.w, c, p->a.dim - c, p->vector, w[s]);
    }
}

/* y of four columns; x is overwritten. */
template <int Y>
static __device__ __forceinline__ void store_normed(const ls_norm_call *p, int64_t row, int64_t c, float x[4],
                                                    const float w[4], float scale) {
    for (int j = 0; j < 4; j++) x[j] = ls_mul(ls_mul(x[j], scale), w[j]);
    ls_four_store<Y>(p->a.y, row * p->a.y_stride + c, p->a.dim - c, p->vector, x);
}

template <int X, int Y, int STEPS, bool ADD>
static __device__ __forceinline__ void norm_row(const ls_norm_call *p, int64_t row) {
    const int64_t first = 4 * threadIdx.x, dim = p->a.dim;
    float x[STEPS][4], w[STEPS][4], chain[4] = {0, 0, 0, 0};
    load_row<X, STEPS, ADD>(p, row, first, LS_CHAIN_STEP, x);
    load_weight<STEPS>(p, first, LS_CHAIN_STEP, w);
#pragma unroll
    for (int s = 0; s < STEPS; s++) ls_chain_add(chain, x[s], x[s], dim - first - s * LS_CHAIN_STEP);
    const float scale = scale_of(&p->a, chain);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int64_t c = first + s * LS_CHAIN_STEP;
        if (c < dim) store_normed<Y>(p, row, c, x[s], w[s], scale);
    }
}

template <int X, int Y, int STEPS, bool ADD>
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) norm_kernel(const __grid_constant__ ls_norm_call p) {
    ls_cuda_begin();
    norm_row<X, Y, STEPS, ADD>(&p, blockIdx.x);
}

template <int X, int Y, bool ADD>
static __global__ void __launch_bounds__(GROUPS *LS_CHAIN_THREADS) long_kernel(const __grid_constant__ ls_norm_call p) {
    ls_cuda_begin();
    __shared__ __align__(16) float values[LONG_STEPS * LS_CHAIN_STEP];
    const int64_t row = blockIdx.x, dim = p.a.dim;
    const int64_t first = 4 * (threadIdx.x % LS_CHAIN_THREADS), group = threadIdx.x / LS_CHAIN_THREADS;
    float x[LONG_STEPS / GROUPS][4], w[LONG_STEPS / GROUPS][4], chain[4] = {0, 0, 0, 0};
    load_weight<LONG_STEPS / GROUPS>(&p, first + group * LS_CHAIN_STEP, GROUPS * LS_CHAIN_STEP, w);
    load_row<X, LONG_STEPS / GROUPS, ADD>(&p, row, first + group * LS_CHAIN_STEP, GROUPS * LS_CHAIN_STEP, x);
#pragma unroll
    for (int s = 0; s < LONG_STEPS / GROUPS; s++) {
        const int64_t c = first + (GROUPS * s + group) * LS_CHAIN_STEP;
        if (c < dim) *(float4 *)&values[c] = make_float4(x[s][0], x[s][1], x[s][2], x[s][3]);
    }
    __syncthreads();
    for (int64_t c = first; group == 0 && c < dim; c += LS_CHAIN_STEP) {
        const float4 v = *(const float4 *)&values[c];
        const float four[4] = {v.x, v.y, v.z, v.w};
        ls_chain_add(chain, four, four, dim - c);
    }
    const float scale = scale_of(&p.a, chain);
#pragma unroll
    for (int s = 0; s < LONG_STEPS / GROUPS; s++) {
        const int64_t c = first + (GROUPS * s + group) * LS_CHAIN_STEP;
        if (c < dim) store_normed<Y>(&p, row, c, x[s], w[s], scale);
    }
}

/* A thread reads again only what it overwrites itself, and no thread writes y before the fold: y may be x. */
template <int X, int Y, bool ADD>
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) wide_kernel(const __grid_constant__ ls_norm_call p) {
    ls_cuda_begin();
    const int64_t row = blockIdx.x, first = 4 * threadIdx.x, dim = p.a.dim;
    float x[1][4], w[4], chain[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int64_t c = first; c < dim; c += LS_CHAIN_STEP) {
        load_row<X, 1, ADD>(&p, row, c, 0, x);
        ls_chain_add(chain, x[0], x[0], dim - c);
    }
    const float scale = scale_of(&p.a, chain);
    for (int64_t c = first; c < dim; c += LS_CHAIN_STEP) {
        if (ADD)
            ls_four_load<LS_F32>(p.sum, row * dim + c, dim - c, p.vector, x[0]);
        else
            ls_four_load<X>(p.a.x, row * p.a.x_stride + c, dim - c, p.vector, x[0]);
        ls_four_load<LS_F32>(p.a.w, c, dim - c, p.vector, w);
        store_normed<Y>(&p, row, c, x[0], w, scale);
    }
}

template <int X, int Y, int LANES>
static __global__ void __launch_bounds__(LS_NORM_RUN_THREADS) run_kernel(const __grid_constant__ ls_norm_call p) {
    ls_cuda_begin();
    const int64_t row = (int64_t)blockIdx.x * (LS_NORM_RUN_THREADS / LANES) + threadIdx.x / LANES;
    const int64_t first = threadIdx.x % LANES * 8, n = row < p.a.rows ? p.a.dim - first : 0;
    float x[8], w[8];
    ls_run_load<X>(p.a.x, row * p.a.x_stride + first, n, p.vector, x);
    ls_run_load<LS_F32>(p.a.w, first, n, p.vector, w);
    const float scale = ls_norm_scale(ls_runs_sum<LANES>(x, x, n), p.a.dim, p.a.eps);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = ls_mul(ls_mul(x[j], scale), w[j]);
    ls_run_store<Y>(p.a.y, row * p.a.y_stride + first, n, p.vector, x);
}

/* rows: of a block. */
typedef struct norm_launch {
    const void *kernel;
    int64_t threads, rows;
} norm_launch;

template <int X, int Y, bool ADD>
static norm_launch kernel_for(int64_t dim) {
    if (dim <= LS_RUN_ROW && !ADD)
        return norm_launch{
            ls_norm_run_lanes(dim) == 16 ? (const void *)run_kernel<X, Y, 16> : (const void *)run_kernel<X, Y, 32>,
            LS_NORM_RUN_THREADS, LS_NORM_RUN_THREADS / ls_norm_run_lanes(dim)};
    if (dim <= SHORT_STEPS * LS_CHAIN_STEP)
        return norm_launch{(const void *)norm_kernel<X, Y, SHORT_STEPS, ADD>, LS_CHAIN_THREADS, 1};
    if (dim <= LONG_STEPS * LS_CHAIN_STEP)
        return norm_launch{(const void *)long_kernel<X, Y, ADD>, GROUPS * LS_CHAIN_THREADS, 1};
    return norm_launch{(const void *)wide_kernel<X, Y, ADD>, LS_CHAIN_THREADS, 1};
}

static norm_launch kernel_of(const ls_norm_call *p) {
    const ls_rmsnorm_args *a = &p->a;
    const bool y_f32 = a->y_dtype == LS_F32;
    if (p->add != NULL)
        return y_f32 ? kernel_for<LS_F32, LS_F32, true>(a->dim) : kernel_for<LS_F32, LS_BF16, true>(a->dim);
    if (a->x_dtype == LS_F32)
        return y_f32 ? kernel_for<LS_F32, LS_F32, false>(a->dim) : kernel_for<LS_F32, LS_BF16, false>(a->dim);
    return y_f32 ? kernel_for<LS_BF16, LS_F32, false>(a->dim) : kernel_for<LS_BF16, LS_BF16, false>(a->dim);
}

/* ---- the host's side ---- */

static ls_status params_of(ls_norm_call *p, const char *op, const ls_exec *exec, const ls_rmsnorm_args *a,
                           const float *add, float *sum, ls_error *err) {
    if ((a->x_dtype != LS_F32 && a->x_dtype != LS_BF16) || (a->y_dtype != LS_F32 && a->y_dtype != LS_BF16))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: from %s to %s; f32 and bf16 are built", op,
                       ls_dtype_name(a->x_dtype), ls_dtype_name(a->y_dtype));
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), a->rows == 0},
                                        {"w", a->w, 4, a->rows == 0},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), a->rows == 0},
                                        {"add", add, 4, a->rows == 0 || sum == NULL},
                                        {"sum", sum, 4, a->rows == 0 || add == NULL}};
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 5, LS_WORKSPACE_HEAD, err));
    *p = ls_norm_call{*a, add, sum,
                      a->dim % 4 == 0 && a->x_stride % 4 == 0 && a->y_stride % 4 == 0 &&
                          ls_four_fits(a->x, a->x_dtype) && ls_four_fits(a->w, LS_F32) &&
                          ls_four_fits(a->y, a->y_dtype) && ls_four_fits(add, LS_F32) && ls_four_fits(sum, LS_F32)};
    return LS_OK;
}

#define NORM_INDEX(a)                                                                            \
    {                                                                                            \
        {LS_WIDTH_I64, {{{"row", (a)->rows}, {"x stride", (a)->x_stride}, {"element", 4}}}},     \
            {LS_WIDTH_I64, {{{"row", (a)->rows}, {"y stride", (a)->y_stride}, {"element", 4}}}}, \
    }

static ls_status run(const char *op, const ls_exec *exec, const ls_rmsnorm_args *a, const float *add, float *sum,
                     ls_error *err) {
    const ls_index index[] = NORM_INDEX(a);
    ls_norm_call p;
    LS_CUDA_TRY(params_of(&p, op, exec, a, add, sum, err));
    if (a->rows == 0) return LS_OK;
    bool taken = false;
    LS_CUDA_TRY(ls_norm_staged(exec, op, &p, &taken, err));
    if (taken) return LS_OK;
    const norm_launch norm = kernel_of(&p);
    const ls_launch launch = {op, {ls_norm_blocks(a->rows, norm.rows), 1, 1}, norm.threads, 0, index, 2};
    return ls_cuda_launch(exec, &launch, norm.kernel, &p, err);
}

ls_status ls_cuda_rmsnorm(const ls_exec *exec, const ls_rmsnorm_args *a, ls_error *err) {
    return run("rmsnorm", exec, a, NULL, NULL, err);
}

ls_status ls_cuda_add_rmsnorm(const ls_exec *exec, const ls_add_rmsnorm_args *a, ls_error *err) {
    ls_rmsnorm_args norm = ls_add_rmsnorm_norm(a);
    norm.x = a->h;
    if (a->rows > 0 && (a->add == NULL || a->sum == NULL))
        return LS_FAIL(err, LS_ERR_ARG, "add_rmsnorm: %s is null", a->add == NULL ? "add" : "sum");
    return run("add_rmsnorm", exec, &norm, a->add, a->sum, err);
}

/* ---- parts: a block a row and part ---- */

typedef struct parts_params {
    ls_norm_call part[LS_NORM_PARTS];
    int64_t n;
} parts_params;

static __global__ void __launch_bounds__(LS_CHAIN_THREADS) parts_kernel(const __grid_constant__ parts_params p) {
    ls_cuda_begin();
    const ls_norm_call *part = &p.part[blockIdx.x % p.n];
    const int64_t row = blockIdx.x / p.n;
    if (part->a.y_dtype == LS_F32)
        norm_row<LS_F32, LS_F32, SHORT_STEPS, false>(part, row);
    else
        norm_row<LS_F32, LS_BF16, SHORT_STEPS, false>(part, row);
}

/* Narrow float32 rows, which is what small norms side by side are, share a launch. */
static bool shares(const ls_rmsnorm_parts_args *a) {
    for (int64_t i = 0; i < a->n; i++)
        if (a->part[i].x_dtype != LS_F32 || a->part[i].dim > SHORT_STEPS * LS_CHAIN_STEP) return false;
    return true;
}

ls_status ls_cuda_rmsnorm_parts(const ls_exec *exec, const ls_rmsnorm_parts_args *a, ls_error *err) {
    const char *op = "rmsnorm_parts";
    const int64_t rows = a->part[0].rows;
    parts_params p;
    if (!shares(a)) {
        for (int64_t i = 0; i < a->n; i++) LS_CUDA_TRY(run(op, exec, &a->part[i], NULL, NULL, err));
        return LS_OK;
    }
    p.n = a->n;
    const ls_launch launch = {op, {ls_launch_blocks(rows, a->n, 1), 1, 1}, LS_CHAIN_THREADS, 0, NULL, 0};
    for (int64_t i = 0; i < a->n; i++) {
        const ls_index index[] = NORM_INDEX(&a->part[i]);
        const ls_launch part = {op, {ls_launch_blocks(rows, a->n, 1), 1, 1}, LS_CHAIN_THREADS, 0, index, 2};
        LS_CUDA_TRY(params_of(&p.part[i], op, exec, &a->part[i], NULL, NULL, err));
        if (rows > 0) LS_CUDA_TRY(ls_launch_check(&part, LS_CUDA_SHARED_MAX, err));
    }
    return rows == 0 ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)parts_kernel, &p, err);
}
