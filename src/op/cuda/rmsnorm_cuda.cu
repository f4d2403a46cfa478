/* rmsnorm on the GPU: a block a row. A row of up to 4,096 columns lies in registers, with all its loads and those of
 * the weight on their way at once; a longer one is read twice. */
#include "op/cuda/chains_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/rmsnorm.h"

#define SHORT_STEPS 4
#define LONG_STEPS 16

typedef struct norm_params {
    ls_rmsnorm_args a;
    bool vector;
} norm_params;

static __device__ __forceinline__ float scale_of(const ls_rmsnorm_args *a, const float chain[4]) {
    __shared__ float runs[LS_CHAIN_RUNS];
    const float q = ls_chain_fold(chain, runs);
    return ls_div(1.0f, ls_sqrt(ls_add(ls_div(q, (float)a->dim), a->eps)));
}

/* y of four columns; x is overwritten. */
template <int Y>
static __device__ __forceinline__ void store_normed(const norm_params *p, int64_t row, int64_t c, float x[4],
                                                    const float w[4], float scale) {
    for (int j = 0; j < 4; j++) x[j] = ls_mul(ls_mul(x[j], scale), w[j]);
    ls_four_store<Y>(p->a.y, row * p->a.y_stride + c, p->a.dim - c, p->vector, x);
}

template <int X, int Y, int STEPS>
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) norm_kernel(const __grid_constant__ norm_params p) {
    const int64_t row = blockIdx.x, first = 4 * threadIdx.x, dim = p.a.dim;
    float x[STEPS][4], w[STEPS][4], chain[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int64_t c = first + s * LS_CHAIN_STEP;
        if (c >= dim) continue;
        ls_four_load<X>(p.a.x, row * p.a.x_stride + c, dim - c, p.vector, x[s]);
        ls_four_load<LS_F32>(p.a.w, c, dim - c, p.vector, w[s]);
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) ls_chain_add(chain, x[s], x[s], dim - first - s * LS_CHAIN_STEP);
    const float scale = scale_of(&p.a, chain);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int64_t c = first + s * LS_CHAIN_STEP;
        if (c < dim) store_normed<Y>(&p, row, c, x[s], w[s], scale);
    }
}

/* A thread reads again only what it overwrites itself, and no thread writes before the fold: y may be x. */
template <int X, int Y>
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) wide_kernel(const __grid_constant__ norm_params p) {
    const int64_t row = blockIdx.x, first = 4 * threadIdx.x, dim = p.a.dim;
    float x[4], w[4], chain[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int64_t c = first; c < dim; c += LS_CHAIN_STEP) {
        ls_four_load<X>(p.a.x, row * p.a.x_stride + c, dim - c, p.vector, x);
        ls_chain_add(chain, x, x, dim - c);
    }
    const float scale = scale_of(&p.a, chain);
    for (int64_t c = first; c < dim; c += LS_CHAIN_STEP) {
        ls_four_load<X>(p.a.x, row * p.a.x_stride + c, dim - c, p.vector, x);
        ls_four_load<LS_F32>(p.a.w, c, dim - c, p.vector, w);
        store_normed<Y>(&p, row, c, x, w, scale);
    }
}

template <int X, int Y>
static const void *kernel_for(int64_t dim) {
    if (dim <= SHORT_STEPS * LS_CHAIN_STEP) return (const void *)norm_kernel<X, Y, SHORT_STEPS>;
    if (dim <= LONG_STEPS * LS_CHAIN_STEP) return (const void *)norm_kernel<X, Y, LONG_STEPS>;
    return (const void *)wide_kernel<X, Y>;
}

static const void *kernel_of(const ls_rmsnorm_args *a) {
    if (a->x_dtype == LS_F32)
        return a->y_dtype == LS_F32 ? kernel_for<LS_F32, LS_F32>(a->dim) : kernel_for<LS_F32, LS_BF16>(a->dim);
    return a->y_dtype == LS_F32 ? kernel_for<LS_BF16, LS_F32>(a->dim) : kernel_for<LS_BF16, LS_BF16>(a->dim);
}

ls_status ls_cuda_rmsnorm(const ls_exec *exec, const ls_rmsnorm_args *a, ls_error *err) {
    if ((a->x_dtype != LS_F32 && a->x_dtype != LS_BF16) || (a->y_dtype != LS_F32 && a->y_dtype != LS_BF16))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "rmsnorm: from %s to %s; f32 and bf16 are built",
                       ls_dtype_name(a->x_dtype), ls_dtype_name(a->y_dtype));
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), a->rows == 0},
                                        {"w", a->w, 4, a->rows == 0},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), a->rows == 0}};
    LS_CUDA_TRY(ls_cuda_check("rmsnorm", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    norm_params p = {*a, a->dim % 4 == 0 && a->x_stride % 4 == 0 && a->y_stride % 4 == 0 &&
                             ls_four_fits(a->x, a->x_dtype) && ls_four_fits(a->w, LS_F32) &&
                             ls_four_fits(a->y, a->y_dtype)};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"y stride", a->y_stride}, {"element", 4}}}}};
    const ls_launch launch = {"rmsnorm", {a->rows, 1, 1}, LS_CHAIN_THREADS, 0, index, 2, false};
    return ls_cuda_launch(exec, &launch, kernel_of(a), &p, err);
}
