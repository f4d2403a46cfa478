/* Elementwise ops on the GPU: a thread takes four neighbouring elements. Nothing is added up, so who takes what carries
 * no bit; the time is that of the bytes. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/cuda/gates_cuda.h"
#include "op/elementwise.h"

/* ---- embed ---- */

typedef struct embed_params {
    ls_embed_args a;
    ls_tile tile; /* units are fours of columns */
    bool vector;
    const ls_fault *fault;
} embed_params;

template <int TABLE, int Y>
static __global__ void __launch_bounds__(LS_TILE_THREADS) embed_kernel(const __grid_constant__ embed_params p) {
    ls_cuda_begin();
    const ls_tile_place place = ls_tile_place_of(&p.tile);
    float x[LS_TILE_UNITS][4];
    if (p.fault->code != LS_FAULT_NONE || place.row >= p.a.rows) return;
    const int64_t token = p.a.tokens[place.row];
#pragma unroll
    for (int k = 0; k < LS_TILE_UNITS; k++) {
        const int64_t unit = place.unit + k * p.tile.width;
        if (unit < p.tile.units)
            ls_four_load<TABLE>(p.a.table, token * p.a.dim + 4 * unit, p.a.dim - 4 * unit, p.vector, x[k]);
    }
#pragma unroll
    for (int k = 0; k < LS_TILE_UNITS; k++) {
        const int64_t unit = place.unit + k * p.tile.width;
        if (unit < p.tile.units)
            ls_four_store<Y>(p.a.y, place.row * p.a.dim + 4 * unit, p.a.dim - 4 * unit, p.vector, x[k]);
    }
}

template <int TABLE>
static const void *embed_kernel_to(ls_dtype y) {
    return y == LS_F32    ? (const void *)embed_kernel<TABLE, LS_F32>
           : y == LS_BF16 ? (const void *)embed_kernel<TABLE, LS_BF16>
                          : (const void *)embed_kernel<TABLE, LS_F16>;
}

static const void *embed_kernel_of(ls_dtype table, ls_dtype y) {
    return table == LS_F32    ? embed_kernel_to<LS_F32>(y)
           : table == LS_BF16 ? embed_kernel_to<LS_BF16>(y)
                              : embed_kernel_to<LS_F16>(y);
}

ls_status ls_cuda_embed(const ls_exec *exec, const ls_embed_args *a, ls_error *err) {
    const int64_t vocab = a->vocab > 0 ? a->vocab : 0, table_elem = ls_dtype_bytes(a->table_dtype);
    LS_CUDA_TRY(ls_cuda_check_dtype("embed", "table", a->table_dtype, err));
    LS_CUDA_TRY(ls_cuda_check_dtype("embed", "y", a->y_dtype, err));
    const ls_cuda_operand operands[] = {{"table", a->table, table_elem, a->rows == 0 || vocab == 0},
                                        {"tokens", a->tokens, 4, a->rows == 0},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), a->rows == 0}};
    const ls_tile tile = ls_tile_of(a->rows, (a->dim + 3) / 4);
    const bool vector = a->dim % 4 == 0 && ls_four_fits(a->table, a->table_dtype) && ls_four_fits(a->y, a->y_dtype);
    LS_CUDA_TRY(ls_cuda_check("embed", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"token", vocab}, {"dim", a->dim}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dim", a->dim}, {"element", 4}}}}};
    const ls_launch launch = {"embed", {ls_tile_blocks(&tile), 1, 1}, LS_TILE_THREADS, 0, index, 2};
    ls_fault *fault;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("embed", exec, &fault, err));
    ls_index_check<int32_t> check = {a->tokens, a->rows, a->vocab, LS_FAULT_TOKEN, fault};
    LS_CUDA_TRY(ls_cuda_check_index("embed", exec, &check, err));
    embed_params p = {*a, tile, vector, fault};
    return ls_cuda_launch(exec, &launch, embed_kernel_of(a->table_dtype, a->y_dtype), &p, err);
}

/* ---- residual ---- */

static __device__ __forceinline__ void ls_flat_four(const ls_residual_args *a, int64_t i, int64_t n, bool whole) {
    float h[4], y[4];
    ls_four_load<LS_F32>(a->h, i, n, whole, h);
    ls_four_load<LS_F32>(a->y, i, n, whole, y);
    for (int j = 0; j < 4; j++) h[j] = ls_add(h[j], y[j]);
    ls_four_store<LS_F32>(a->out, i, n, whole, h);
}

ls_status ls_cuda_residual(const ls_exec *exec, const ls_residual_args *args, ls_error *err) {
    const int64_t n = ls_launch_blocks(args->rows, args->dim, 1);
    ls_residual_args a = *args;
    if (a.out == NULL) a.out = a.h;
    const ls_cuda_operand operands[] = {{"h", a.h, 4, n == 0}, {"y", a.y, 4, n == 0}, {"out", a.out, 4, n == 0}};
    LS_CUDA_TRY(ls_cuda_check("residual", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (n == 0) return LS_OK;
    const bool vector = ls_four_fits(a.h, LS_F32) && ls_four_fits(a.y, LS_F32) && ls_four_fits(a.out, LS_F32);
    return ls_flat_run("residual", exec, &a, n, vector, err);
}

/* ---- multiply ---- */

static __device__ __forceinline__ void ls_flat_four(const ls_multiply_args *a, int64_t i, int64_t n, bool whole) {
    float x[4], y[4];
    ls_four_load<LS_F32>(a->x, i, n, whole, x);
    ls_four_load<LS_F32>(a->y, i, n, whole, y);
    for (int j = 0; j < 4; j++) x[j] = ls_mul(ls_mul(x[j], a->scale), y[j]);
    ls_four_store<LS_F32>(a->x, i, n, whole, x);
}

ls_status ls_cuda_multiply(const ls_exec *exec, const ls_multiply_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, 4, a->n == 0}, {"y", a->y, 4, a->n == 0}};
    LS_CUDA_TRY(ls_cuda_check("multiply", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    if (a->n == 0) return LS_OK;
    return ls_flat_run("multiply", exec, a, a->n, ls_four_fits(a->x, LS_F32) && ls_four_fits(a->y, LS_F32), err);
}

/* ---- scale ---- */

static __device__ __forceinline__ void ls_flat_four(const ls_scale_args *a, int64_t i, int64_t n, bool whole) {
    float x[4];
    ls_four_load<LS_F32>(a->x, i, n, whole, x);
    for (int j = 0; j < 4; j++) x[j] = ls_mul(x[j], a->scale);
    ls_four_store<LS_F32>(a->y, i, n, whole, x);
}

ls_status ls_cuda_scale(const ls_exec *exec, const ls_scale_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, 4, a->n == 0}, {"y", a->y, 4, a->n == 0}};
    LS_CUDA_TRY(ls_cuda_check("scale", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    if (a->n == 0) return LS_OK;
    return ls_flat_run("scale", exec, a, a->n, ls_four_fits(a->x, LS_F32) && ls_four_fits(a->y, LS_F32), err);
}

/* ---- round_rows ---- */

typedef struct round_params {
    ls_round_rows_args a;
    ls_tile tile; /* units are fours of columns */
    bool vector;
} round_params;

static __global__ void __launch_bounds__(LS_TILE_THREADS) round_rows_kernel(const __grid_constant__ round_params p) {
    ls_cuda_begin();
    const ls_tile_place place = ls_tile_place_of(&p.tile);
    float x[LS_TILE_UNITS][4];
    if (place.row >= p.a.rows) return;
#pragma unroll
    for (int k = 0; k < LS_TILE_UNITS; k++) {
        const int64_t unit = place.unit + k * p.tile.width;
        if (unit < p.tile.units)
            ls_four_load<LS_F32>(p.a.x, place.row * p.a.x_stride + 4 * unit, p.a.dim - 4 * unit, p.vector, x[k]);
    }
#pragma unroll
    for (int k = 0; k < LS_TILE_UNITS; k++) {
        const int64_t unit = place.unit + k * p.tile.width;
        if (unit < p.tile.units)
            ls_four_store<LS_BF16>(p.a.y, place.row * p.a.y_stride + 4 * unit, p.a.dim - 4 * unit, p.vector, x[k]);
    }
}

ls_status ls_cuda_round_rows(const ls_exec *exec, const ls_round_rows_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, 4, a->rows == 0}, {"y", a->y, 2, a->rows == 0}};
    const ls_tile tile = ls_tile_of(a->rows, (a->dim + 3) / 4);
    const bool vector = a->dim % 4 == 0 && a->x_stride % 4 == 0 && a->y_stride % 4 == 0 && ls_four_fits(a->x, LS_F32) &&
                        ls_four_fits(a->y, LS_BF16);
    LS_CUDA_TRY(ls_cuda_check("round_rows", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"x_stride", a->x_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"y_stride", a->y_stride}, {"element", 2}}}}};
    const ls_launch launch = {"round_rows", {ls_tile_blocks(&tile), 1, 1}, LS_TILE_THREADS, 0, index, 2};
    round_params p = {*a, tile, vector};
    return ls_cuda_launch(exec, &launch, (const void *)round_rows_kernel, &p, err);
}

/* ---- swiglu ---- */

template <int Y>
struct swiglu_call {
    ls_swiglu_args a;
};

template <int Y>
static __device__ __forceinline__ void ls_flat_four(const swiglu_call<Y> *call, int64_t i, int64_t n, bool whole) {
    float gate[4], up[4];
    ls_four_load<LS_F32>(call->a.gate, i, n, whole, gate);
    ls_four_load<LS_F32>(call->a.up, i, n, whole, up);
    ls_silu_all<4>(gate);
    for (int j = 0; j < 4; j++) gate[j] = ls_mul(gate[j], up[j]);
    ls_four_store<Y>(call->a.y, i, n, whole, gate);
}

template <int Y>
static ls_status run_swiglu(const ls_exec *exec, const ls_swiglu_args *a, int64_t n, bool vector, ls_error *err) {
    const swiglu_call<Y> call = {*a};
    return ls_flat_run("swiglu", exec, &call, n, vector, err);
}

ls_status ls_cuda_swiglu(const ls_exec *exec, const ls_swiglu_args *a, ls_error *err) {
    const int64_t n = ls_launch_blocks(a->rows, a->dim, 1);
    LS_CUDA_TRY(ls_cuda_check_dtype("swiglu", "y", a->y_dtype, err));
    const ls_cuda_operand operands[] = {
        {"gate", a->gate, 4, n == 0}, {"up", a->up, 4, n == 0}, {"y", a->y, ls_dtype_bytes(a->y_dtype), n == 0}};
    LS_CUDA_TRY(ls_cuda_check("swiglu", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (n == 0) return LS_OK;
    const bool vector = ls_four_fits(a->gate, LS_F32) && ls_four_fits(a->up, LS_F32) && ls_four_fits(a->y, a->y_dtype);
    if (a->y_dtype == LS_F32) return run_swiglu<LS_F32>(exec, a, n, vector, err);
    if (a->y_dtype == LS_BF16) return run_swiglu<LS_BF16>(exec, a, n, vector, err);
    return run_swiglu<LS_F16>(exec, a, n, vector, err);
}

/* ---- relu2 ---- */

template <int Y>
struct relu2_call {
    ls_relu2_args a;
};

template <int Y>
static __device__ __forceinline__ void ls_flat_four(const relu2_call<Y> *call, int64_t i, int64_t n, bool whole) {
    float x[4];
    ls_four_load<LS_F32>(call->a.x, i, n, whole, x);
    for (int j = 0; j < 4; j++) {
        const float m = x[j] <= 0.0f ? 0.0f : x[j];
        x[j] = ls_mul(m, m);
    }
    ls_four_store<Y>(call->a.y, i, n, whole, x);
}

template <int Y>
static ls_status run_relu2(const ls_exec *exec, const ls_relu2_args *a, int64_t n, ls_error *err) {
    const relu2_call<Y> call = {*a};
    return ls_flat_run("relu2", exec, &call, n, ls_four_fits(a->x, LS_F32) && ls_four_fits(a->y, a->y_dtype), err);
}

ls_status ls_cuda_relu2(const ls_exec *exec, const ls_relu2_args *a, ls_error *err) {
    const int64_t n = ls_launch_blocks(a->rows, a->dim, 1);
    LS_CUDA_TRY(ls_cuda_check_dtype("relu2", "y", a->y_dtype, err));
    const ls_cuda_operand operands[] = {{"x", a->x, 4, n == 0}, {"y", a->y, ls_dtype_bytes(a->y_dtype), n == 0}};
    LS_CUDA_TRY(ls_cuda_check("relu2", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    if (n == 0) return LS_OK;
    if (a->y_dtype == LS_F32) return run_relu2<LS_F32>(exec, a, n, err);
    return a->y_dtype == LS_BF16 ? run_relu2<LS_BF16>(exec, a, n, err) : run_relu2<LS_F16>(exec, a, n, err);
}
