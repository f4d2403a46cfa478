/* Weights on the GPU: casts, decay, rates and taps, a thread for four elements; of taps, whose reads are strided, for
 * one. */
#include "num/expf.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/weight.h"

/* ---- weight_cast ---- */

template <int OUT>
struct cast_call {
    const float *w;
    void *out;
};

template <int OUT>
static __device__ __forceinline__ void ls_flat_four(const cast_call<OUT> *call, int64_t i, int64_t n, bool whole) {
    float x[4];
    ls_four_load<LS_F32>(call->w, i, n, whole, x);
    ls_four_store<OUT>(call->out, i, n, whole, x);
}

template <int OUT>
static ls_status run_cast(const ls_exec *exec, const ls_weight_cast_args *a, bool vector, ls_error *err) {
    const cast_call<OUT> call = {a->w, a->out};
    return ls_flat_run("weight_cast", exec, &call, a->n, vector, err);
}

ls_status ls_cuda_weight_cast(const ls_exec *exec, const ls_weight_cast_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"w", a->w, 4, a->n == 0},
                                        {"out", a->out, ls_dtype_bytes(a->dtype), a->n == 0}};
    const bool vector = ls_four_fits(a->w, LS_F32) && ls_four_fits(a->out, a->dtype);
    LS_CUDA_TRY(ls_cuda_check("weight_cast", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    if (a->n == 0) return LS_OK;
    if (a->dtype == LS_F32) return run_cast<LS_F32>(exec, a, vector, err);
    if (a->dtype == LS_BF16) return run_cast<LS_BF16>(exec, a, vector, err);
    return run_cast<LS_F16>(exec, a, vector, err);
}

/* ---- widen, decay and rates ---- */

enum { AS_IT_IS, PLUS_ONE, DECAY, RATES };

template <int X, int MAKES>
struct widen_call {
    const void *x;
    float *out;
};

template <int X, int MAKES>
static __device__ __forceinline__ void ls_flat_four(const widen_call<X, MAKES> *call, int64_t i, int64_t n,
                                                    bool whole) {
    float x[4];
    ls_four_load<X>(call->x, i, n, whole, x);
    if (MAKES == PLUS_ONE)
        for (int j = 0; j < 4; j++) x[j] = ls_add(1.0f, x[j]);
    if (MAKES == DECAY)
        for (int j = 0; j < 4; j++) x[j] = ls_mul(-ls_exp(x[j]), LS_LOG2E);
    if (MAKES == RATES)
        for (int j = 0; j < 4; j++) x[j] = -ls_exp(x[j]);
    ls_four_store<LS_F32>(call->out, i, n, whole, x);
}

template <int X, int MAKES>
static ls_status run_widen(const char *op, const ls_exec *exec, const void *x, float *out, int64_t n, bool vector,
                           ls_error *err) {
    const widen_call<X, MAKES> call = {x, out};
    return ls_flat_run(op, exec, &call, n, vector, err);
}

template <int MAKES>
static ls_status widen(const char *op, const ls_exec *exec, const void *x, ls_dtype dtype, float *out, int64_t n,
                       ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", x, ls_dtype_bytes(dtype), n == 0}, {"out", out, 4, n == 0}};
    const bool vector = ls_four_fits(x, dtype) && ls_four_fits(out, LS_F32);
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 2, LS_WORKSPACE_HEAD, err));
    if (n == 0) return LS_OK;
    if (dtype == LS_F32) return run_widen<LS_F32, MAKES>(op, exec, x, out, n, vector, err);
    if (dtype == LS_BF16) return run_widen<LS_BF16, MAKES>(op, exec, x, out, n, vector, err);
    return run_widen<LS_F16, MAKES>(op, exec, x, out, n, vector, err);
}

ls_status ls_cuda_widen(const ls_exec *exec, const ls_widen_args *a, ls_error *err) {
    if (a->plus_one) return widen<PLUS_ONE>("widen", exec, a->x, a->dtype, a->out, a->n, err);
    return widen<AS_IT_IS>("widen", exec, a->x, a->dtype, a->out, a->n, err);
}

ls_status ls_cuda_decay(const ls_exec *exec, const ls_decay_args *a, ls_error *err) {
    return widen<DECAY>("decay", exec, a->x, a->dtype, a->out, a->n, err);
}

ls_status ls_cuda_rates(const ls_exec *exec, const ls_rates_args *a, ls_error *err) {
    return widen<RATES>("rates", exec, a->x, a->dtype, a->out, a->n, err);
}

/* ---- taps ---- */

#define TAPS_THREADS 256

/* Element i of the output, which is written in ascending order. */
template <int X>
static __global__ void __launch_bounds__(TAPS_THREADS) taps_kernel(const __grid_constant__ ls_taps_args a) {
    ls_cuda_begin();
    const int64_t i = (int64_t)blockIdx.x * TAPS_THREADS + threadIdx.x;
    if (i < a.rows * a.cols) a.out[i] = ls_load_one<X>(a.x, i % a.rows * a.cols + i / a.rows);
}

ls_status ls_cuda_taps(const ls_exec *exec, const ls_taps_args *args, ls_error *err) {
    const int64_t n = ls_launch_blocks(args->rows, args->cols, 1);
    const ls_cuda_operand operands[] = {{"x", args->x, ls_dtype_bytes(args->dtype), n == 0},
                                        {"out", args->out, 4, n == 0}};
    ls_taps_args a = *args;
    LS_CUDA_TRY(ls_cuda_check("taps", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    if (n == 0) return LS_OK;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a.rows}, {"cols", a.cols}, {"element", 4}}}}};
    const ls_launch launch = {"taps", {n / TAPS_THREADS + (n % TAPS_THREADS != 0), 1, 1}, TAPS_THREADS, 0, index, 1};
    return ls_cuda_launch(exec, &launch,
                          a.dtype == LS_F32    ? (const void *)taps_kernel<LS_F32>
                          : a.dtype == LS_BF16 ? (const void *)taps_kernel<LS_BF16>
                                               : (const void *)taps_kernel<LS_F16>,
                          &a, err);
}
