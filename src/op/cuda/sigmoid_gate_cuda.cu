/* sigmoid_gate on the GPU: a warp is a gate of a row, a lane a run of eight columns of every 256. Where each column has
 * a gate of its own, a thread has four of them. */
#include "num/expf.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/sigmoid_gate.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define RUN 8
#define STEP (32 * RUN)

/* Both directions; dy and what follows of the gradient only, whose dx has a row's stride of its own. */
typedef struct gate_params {
    ls_sigmoid_gate_backward_args a;
    void *y;
    ls_dtype y_dtype;
    int64_t y_stride, width; /* width: columns of a gate */
    bool fours;              /* four neighbouring columns of every matrix are one word */
} gate_params;

/* What a warp works on: a gate of a row, its first column. */
typedef struct place {
    int64_t row, gate, first;
    float raw;
} place;

static __device__ __forceinline__ place place_of(const gate_params *p) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    place at = {i / p->a.gates, i % p->a.gates, i % p->a.gates * p->width, 0.0f};
    if (at.row < p->a.rows) at.raw = p->a.gate[at.row * p->a.gate_stride + at.gate];
    return at;
}

template <int IN, int OUT>
static __global__ void __launch_bounds__(THREADS) gate_kernel(const __grid_constant__ gate_params p) {
    ls_cuda_begin();
    const place at = place_of(&p);
    if (at.row >= p.a.rows) return;
    const float k = ls_sigmoid(at.raw);
    for (int64_t c = threadIdx.x % 32 * 4; c < p.width; c += 128) {
        const bool whole = p.fours && p.width - c >= 4;
        float x[4];
        ls_four_load<IN>(p.a.x, at.row * p.a.x_stride + at.first + c, p.width - c, whole, x);
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = ls_mul(x[j], k);
        ls_four_store<OUT>(p.y, at.row * p.y_stride + at.first + c, p.width - c, whole, x);
    }
}

/* A lane's run of a row from column c on, +0 behind the last column. */
template <int DTYPE>
static __device__ __forceinline__ void load_run(float x[RUN], const gate_params *p, const void *from, int64_t row,
                                                int64_t c) {
#pragma unroll
    for (int j = 0; j < RUN; j += 4)
        if (c + j < p->width)
            ls_four_load<DTYPE>(from, row + c + j, p->width - c - j, p->fours && p->width - c - j >= 4, x + j);
        else
            x[j] = x[j + 1] = x[j + 2] = x[j + 3] = 0.0f;
}

template <int IN>
static __global__ void __launch_bounds__(THREADS) gate_back_kernel(const __grid_constant__ gate_params p) {
    ls_cuda_begin();
    const place at = place_of(&p);
    if (at.row >= p.a.rows) return;
    const float k = ls_sigmoid(at.raw);
    float chain[RUN];
#pragma unroll
    for (int j = 0; j < RUN; j++) chain[j] = 0.0f;
    for (int64_t c = threadIdx.x % 32 * RUN; c < p.width; c += STEP) {
        float x[RUN], dy[RUN];
        load_run<IN>(x, &p, p.a.x, at.row * p.a.x_stride + at.first, c);
        load_run<LS_F32>(dy, &p, p.a.dy, at.row * p.a.dy_stride + at.first, c);
#pragma unroll
        for (int j = 0; j < RUN; j++) {
            if (c + j < p.width) chain[j] = ls_fma(dy[j], x[j], chain[j]);
            dy[j] = ls_mul(dy[j], k);
        }
#pragma unroll
        for (int j = 0; j < RUN; j += 4)
            if (c + j < p.width)
                ls_four_store<LS_F32>(p.a.dx, at.row * p.a.dx_stride + at.first + c + j, p.width - c - j,
                                      p.fours && p.width - c - j >= 4, dy + j);
    }
    const float even = ls_add(ls_add(chain[0], chain[4]), ls_add(chain[2], chain[6]));
    float sum = ls_add(even, ls_add(ls_add(chain[1], chain[5]), ls_add(chain[3], chain[7])));
#pragma unroll
    for (int half = 16; half > 0; half /= 2) sum = ls_add(sum, __shfl_down_sync(LS_ALL_LANES, sum, half));
    if (threadIdx.x % 32 != 0) return;
    const float d = ls_mul(sum, ls_mul(k, ls_sigmoid(-at.raw)));
    if (p.a.dgate_dtype == LS_F32)
        ls_store_one<LS_F32>(p.a.dgate, at.row * p.a.dgate_stride + at.gate, d);
    else
        ls_store_one<LS_BF16>(p.a.dgate, at.row * p.a.dgate_stride + at.gate, d);
}

/* ---- a gate for each column ---- */

/* Four columns of a row, or those that are left of it. */
typedef struct four {
    int64_t row, c, n;
    bool whole;
} four;

static __device__ __forceinline__ four four_of(const gate_params *p) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, each = (p->a.gates + 3) / 4;
    four at = {i / each, i % each * 4, 0, false};
    at.n = p->a.gates - at.c;
    at.whole = p->fours && at.n >= 4;
    return at;
}

template <int IN, int OUT>
static __global__ void __launch_bounds__(THREADS) columns_kernel(const __grid_constant__ gate_params p) {
    ls_cuda_begin();
    const four at = four_of(&p);
    float x[4], raw[4];
    if (at.row >= p.a.rows) return;
    ls_four_load<IN>(p.a.x, at.row * p.a.x_stride + at.c, at.n, at.whole, x);
    ls_four_load<LS_F32>(p.a.gate, at.row * p.a.gate_stride + at.c, at.n, at.whole, raw);
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = ls_mul(x[j], ls_sigmoid(raw[j]));
    ls_four_store<OUT>(p.y, at.row * p.y_stride + at.c, at.n, at.whole, x);
}

/* The sum of one column's product and of nothing else, which makes +0 of -0. */
template <int IN>
static __global__ void __launch_bounds__(THREADS) columns_back_kernel(const __grid_constant__ gate_params p) {
    ls_cuda_begin();
    const four at = four_of(&p);
    float x[4], raw[4], dy[4], d[4];
    if (at.row >= p.a.rows) return;
    ls_four_load<IN>(p.a.x, at.row * p.a.x_stride + at.c, at.n, at.whole, x);
    ls_four_load<LS_F32>(p.a.gate, at.row * p.a.gate_stride + at.c, at.n, at.whole, raw);
    ls_four_load<LS_F32>(p.a.dy, at.row * p.a.dy_stride + at.c, at.n, at.whole, dy);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float k = ls_sigmoid(raw[j]), sum = ls_add(ls_fma(dy[j], x[j], 0.0f), 0.0f);
        d[j] = ls_mul(sum, ls_mul(k, ls_sigmoid(-raw[j])));
        dy[j] = ls_mul(dy[j], k);
    }
    ls_four_store<LS_F32>(p.a.dx, at.row * p.a.dx_stride + at.c, at.n, at.whole, dy);
    if (p.a.dgate_dtype == LS_F32)
        ls_four_store<LS_F32>(p.a.dgate, at.row * p.a.dgate_stride + at.c, at.n, at.whole, d);
    else
        ls_four_store<LS_BF16>(p.a.dgate, at.row * p.a.dgate_stride + at.c, at.n, at.whole, d);
}

/* ---- the host's side ---- */

static bool fits(const void *rows, ls_dtype dtype, int64_t stride) {
    return ls_four_fits(rows, dtype) && stride % 4 == 0;
}

/* items: of a row; each of them is one of each_block. */
static ls_status launch(const char *op, const ls_exec *exec, const void *kernel, gate_params *p, int64_t items,
                        int64_t each_block, ls_error *err) {
    const ls_sigmoid_gate_backward_args *a = &p->a;
    const int64_t all = ls_launch_blocks(a->rows, items, 1);
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"gate stride", a->gate_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"y stride", p->y_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dy stride", a->dy_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dx stride", a->dx_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dgate stride", a->dgate_stride}, {"element", 4}}}}};
    const ls_launch launch = {op,    {all / each_block + (all % each_block != 0), 1, 1}, THREADS, 0,
                              index, (int64_t)(sizeof index / sizeof index[0])};
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    return ls_cuda_launch(exec, &launch, kernel, p, err);
}

ls_status ls_cuda_sigmoid_gate(const ls_exec *exec, const ls_sigmoid_gate_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), a->rows == 0},
                                        {"gate", a->gate, 4, a->rows == 0},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), a->rows == 0}};
    const bool in = a->x_dtype == LS_F32, out = a->y_dtype == LS_F32;
    gate_params p = {};
    LS_CUDA_TRY(ls_cuda_check("sigmoid_gate", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    p.a.x = a->x;
    p.a.gate = a->gate;
    p.a.x_stride = a->x_stride;
    p.a.gate_stride = a->gate_stride;
    p.a.rows = a->rows;
    p.a.gates = a->gates;
    p.y = a->y;
    p.y_stride = a->y_stride;
    p.width = a->dim / a->gates;
    p.fours = fits(a->x, a->x_dtype, a->x_stride) && fits(a->y, a->y_dtype, a->y_stride);
    if (p.width == 1) {
        const void *columns = in && out ? (const void *)columns_kernel<LS_F32, LS_F32>
                              : in      ? (const void *)columns_kernel<LS_F32, LS_BF16>
                              : out     ? (const void *)columns_kernel<LS_BF16, LS_F32>
                                        : (const void *)columns_kernel<LS_BF16, LS_BF16>;
        p.fours = p.fours && fits(a->gate, LS_F32, a->gate_stride);
        return launch("sigmoid_gate", exec, columns, &p, (a->gates - 1) / 4 + 1, THREADS, err);
    }
    p.fours = p.fours && p.width % 4 == 0;
    const void *kernel = in && out ? (const void *)gate_kernel<LS_F32, LS_F32>
                         : in      ? (const void *)gate_kernel<LS_F32, LS_BF16>
                         : out     ? (const void *)gate_kernel<LS_BF16, LS_F32>
                                   : (const void *)gate_kernel<LS_BF16, LS_BF16>;
    return launch("sigmoid_gate", exec, kernel, &p, a->gates, WARPS, err);
}

ls_status ls_cuda_sigmoid_gate_backward(const ls_exec *exec, const ls_sigmoid_gate_backward_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), a->rows == 0},
                                        {"gate", a->gate, 4, a->rows == 0},
                                        {"dy", a->dy, 4, a->rows == 0},
                                        {"dx", a->dx, 4, a->rows == 0},
                                        {"dgate", a->dgate, ls_dtype_bytes(a->dgate_dtype), a->rows == 0}};
    gate_params p = {};
    LS_CUDA_TRY(ls_cuda_check("sigmoid_gate_backward", exec, operands, 5, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    p.a = *a;
    p.width = a->dim / a->gates;
    p.fours =
        fits(a->x, a->x_dtype, a->x_stride) && fits(a->dy, LS_F32, a->dy_stride) && fits(a->dx, LS_F32, a->dx_stride);
    const bool f32 = a->x_dtype == LS_F32;
    if (p.width == 1) {
        p.fours = p.fours && fits(a->gate, LS_F32, a->gate_stride) && fits(a->dgate, a->dgate_dtype, a->dgate_stride);
        return launch("sigmoid_gate_backward", exec,
                      f32 ? (const void *)columns_back_kernel<LS_F32> : (const void *)columns_back_kernel<LS_BF16>, &p,
                      (a->gates - 1) / 4 + 1, THREADS, err);
    }
    p.fours = p.fours && p.width % 4 == 0;
    return launch("sigmoid_gate_backward", exec,
                  f32 ? (const void *)gate_back_kernel<LS_F32> : (const void *)gate_back_kernel<LS_BF16>, &p, a->gates,
                  WARPS, err);
}
