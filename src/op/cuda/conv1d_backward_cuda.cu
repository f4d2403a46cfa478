/* Gradient of conv1d on the GPU: a thread a channel of 64 tokens of a span, which walks them in order of time with a
 * window of inputs and of unfinished dx; a second kernel adds the blocks' shares of the parameters' gradients. */
#include "dev/device.h"
#include "num/expf.h"
#include "op/conv1d.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"

#define THREADS 64
#define BLOCK LS_CONV1D_SUM_BLOCK

typedef struct conv_params {
    ls_conv1d_backward_args a;
    int64_t blocks, pieces; /* of channels, of a span's tokens */
    float *shares;          /* [rows / BLOCK + n_spans][d_conv + 1][dim] */
    const ls_fault *fault;
} conv_params;

template <int X, int STATE>
static __device__ __forceinline__ float input(const ls_conv1d_backward_args *a, const ls_span *span, int64_t t,
                                              int64_t channel) {
    if (t < 0) return 0.0f;
    const float x = ls_load_one<X>(a->x, (span->row + t) * a->x_stride + channel);
    return STATE == LS_F32 ? x : ls_round_bf16(x);
}

/* da of token t. */
template <int X, int STATE>
static __device__ __forceinline__ float gate_gradient(const ls_conv1d_backward_args *a, const ls_span *span, int64_t t,
                                                      int64_t channel) {
    const int64_t past = a->d_conv - 1;
    float acc = a->bias != NULL ? a->bias[channel] : 0.0f;
    for (int64_t k = 0; k <= past; k++)
        acc = ls_fma(a->w[k * a->dim + channel], input<X, STATE>(a, span, t - past + k, channel), acc);
    const float s = ls_sigmoid(acc), l = ls_silu(acc);
    return ls_mul(a->dy[(span->row + t) * a->dy_stride + channel], ls_fma(l, ls_sub(1.0f, s), s));
}

template <int X, int STATE>
static __global__ void __launch_bounds__(THREADS) gradient_kernel(const __grid_constant__ conv_params p) {
    ls_cuda_begin();
    const ls_conv1d_backward_args *a = &p.a;
    const int64_t channel = blockIdx.x % p.blocks * THREADS + threadIdx.x, item = blockIdx.x / p.blocks;
    const int64_t span_i = item / p.pieces, piece = item % p.pieces, first = piece * BLOCK, past = a->d_conv - 1;
    const ls_span *span = &a->spans[span_i];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || channel >= a->dim || first >= span->n_rows) return;
    const int64_t last = first + BLOCK < span->n_rows ? first + BLOCK : span->n_rows;
    float dx[LS_CONV_WIDTH_MAX], dw[LS_CONV_WIDTH_MAX], dbias = 0.0f; /* dx[i]: of token t - past + i */
#pragma unroll
    for (int i = 0; i < LS_CONV_WIDTH_MAX; i++) dx[i] = dw[i] = 0.0f;
    /* Tokens past the block still reach back into it. */
    for (int64_t t = first; t < last + past; t++) {
        const bool inside = t < last;
        const float da = t < span->n_rows ? gate_gradient<X, STATE>(a, span, t, channel) : 0.0f;
#pragma unroll
        for (int i = 0; i < LS_CONV_WIDTH_MAX; i++)
            if (i <= past && t < span->n_rows) dx[i] = ls_fma(a->w[i * a->dim + channel], da, dx[i]);
        if (inside) {
            dbias = ls_add(dbias, da);
#pragma unroll
            for (int i = 0; i < LS_CONV_WIDTH_MAX; i++)
                if (i <= past) dw[i] = ls_fma(da, input<X, STATE>(a, span, t - past + i, channel), dw[i]);
        }
        if (t - past >= first) a->dx[(span->row + t - past) * a->dx_stride + channel] = dx[0];
#pragma unroll
        for (int i = 0; i + 1 < LS_CONV_WIDTH_MAX; i++)
            if (i < past) dx[i] = dx[i + 1];
#pragma unroll
        for (int i = 0; i < LS_CONV_WIDTH_MAX; i++)
            if (i == past) dx[i] = 0.0f;
    }
    float *share = p.shares + (span->row / BLOCK + span_i + piece) * (a->d_conv + 1) * a->dim + channel;
#pragma unroll
    for (int i = 0; i < LS_CONV_WIDTH_MAX; i++)
        if (i <= past) share[i * a->dim] = dw[i];
    share[a->d_conv * a->dim] = dbias;
}

#define TAPS 4    /* as models have them: the window stays in registers */
#define AT_ONCE 8 /* tokens whose loads are on their way together */

/* Everything that the loop reads of arguments and span is read before it: its stores could be to them. */
template <int X, int STATE>
static __global__ void __launch_bounds__(THREADS) four_taps_kernel(const __grid_constant__ conv_params p) {
    ls_cuda_begin();
    const ls_conv1d_backward_args *a = &p.a;
    const int64_t channel = blockIdx.x % p.blocks * THREADS + threadIdx.x, item = blockIdx.x / p.blocks;
    const int64_t span_i = item / p.pieces, piece = item % p.pieces, first = piece * BLOCK;
    const ls_span span = a->spans[span_i];
    if (p.fault->code != LS_FAULT_NONE || span.slot < 0 || channel >= a->dim || first >= span.n_rows) return;
    const int64_t left = span.n_rows - first;
    const int last = left < BLOCK ? (int)left : BLOCK;                        /* tokens of the block */
    const int reach = left < BLOCK + TAPS - 1 ? (int)left : BLOCK + TAPS - 1; /* and those that reach back into it */
    const int64_t x_stride = a->x_stride, dy_stride = a->dy_stride, dx_stride = a->dx_stride;
    const int64_t x = (span.row + first) * x_stride + channel;
    const float *dy = a->dy + (span.row + first) * dy_stride + channel;
    float *out = a->dx + (span.row + first) * dx_stride + channel;
    const float bias = a->bias != NULL ? a->bias[channel] : 0.0f;
    float w[TAPS], in[TAPS], dx[TAPS], dw[TAPS], dbias = 0.0f; /* in[i], dx[i]: of token t - 3 + i */
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        w[i] = a->w[i * a->dim + channel];
        in[i] = input<X, STATE>(a, &span, first - TAPS + i, channel);
        dx[i] = dw[i] = 0.0f;
    }
#pragma unroll 1
    for (int begin = 0; begin < last + TAPS - 1; begin += AT_ONCE) {
        float next[AT_ONCE], gradient[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const bool there = begin + i < reach;
            const float value = there ? ls_load_one<X>(a->x, x + (begin + i) * x_stride) : 0.0f;
            next[i] = STATE == LS_F32 ? value : ls_round_bf16(value);
            gradient[i] = there ? dy[(begin + i) * dy_stride] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int t = begin + i, done = t - (TAPS - 1);
#pragma unroll
            for (int k = 0; k + 1 < TAPS; k++) in[k] = in[k + 1];
            in[TAPS - 1] = next[i];
            if (t < reach) {
                float acc = bias;
#pragma unroll
                for (int k = 0; k < TAPS; k++) acc = ls_fma(w[k], in[k], acc);
                const float s = ls_sigmoid(acc), l = ls_silu(acc);
                const float da = ls_mul(gradient[i], ls_fma(l, ls_sub(1.0f, s), s));
#pragma unroll
                for (int k = 0; k < TAPS; k++) dx[k] = ls_fma(w[k], da, dx[k]);
                if (t < last) {
                    dbias = ls_add(dbias, da);
#pragma unroll
                    for (int k = 0; k < TAPS; k++) dw[k] = ls_fma(da, in[k], dw[k]);
                }
            }
            if (done >= 0 && done < last) out[done * dx_stride] = dx[0];
#pragma unroll
            for (int k = 0; k + 1 < TAPS; k++) dx[k] = dx[k + 1];
            dx[TAPS - 1] = 0.0f;
        }
    }
    float *share = p.shares + (span.row / BLOCK + span_i + piece) * (TAPS + 1) * a->dim + channel;
#pragma unroll
    for (int i = 0; i < TAPS; i++) share[i * a->dim] = dw[i];
    share[TAPS * a->dim] = dbias;
}

/* A thread a parameter: spans in order, a span's blocks in order. */
static __global__ void __launch_bounds__(THREADS) parameter_kernel(const __grid_constant__ conv_params p) {
    ls_cuda_begin();
    const ls_conv1d_backward_args *a = &p.a;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = (a->d_conv + 1) * a->dim;
    const int64_t tap = i / a->dim, channel = i % a->dim;
    if (p.fault->code != LS_FAULT_NONE || i >= n || (tap == a->d_conv && a->dbias == NULL)) return;
    float *to = tap == a->d_conv ? a->dbias + channel : a->dw + (a->dw_by_channel ? channel * a->d_conv + tap : i);
    float sum = a->continued ? *to : 0.0f;
    for (int64_t s = 0; s < a->n_spans; s++) {
        const ls_span *span = &a->spans[s];
        const int64_t blocks = span->slot < 0 ? 0 : (span->n_rows + BLOCK - 1) / BLOCK;
        float of_span = 0.0f;
#pragma unroll 8
        for (int64_t j = 0; j < blocks; j++) of_span = ls_add(of_span, p.shares[(span->row / BLOCK + s + j) * n + i]);
        if (blocks > 0) sum = ls_add(sum, of_span);
    }
    *to = sum;
}

template <int X>
static const void *kernel_of(ls_dtype state, int64_t d_conv) {
    if (d_conv == TAPS)
        return state == LS_F32 ? (const void *)four_taps_kernel<X, LS_F32> : (const void *)four_taps_kernel<X, LS_BF16>;
    return state == LS_F32 ? (const void *)gradient_kernel<X, LS_F32> : (const void *)gradient_kernel<X, LS_BF16>;
}

ls_status ls_cuda_conv1d_backward(const ls_exec *exec, const ls_conv1d_backward_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), false},
                                        {"w", a->w, 4, false},
                                        {"bias", a->bias, 4, true},
                                        {"dy", a->dy, 4, false},
                                        {"dx", a->dx, 4, false},
                                        {"dw", a->dw, 4, false},
                                        {"dbias", a->dbias, 4, true},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    const int64_t most = ls_spans_most(a->span_rows_max, a->rows);
    LS_CUDA_TRY(ls_cuda_check("conv1d_backward", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_conv1d_backward_workspace(a), err));
    const int64_t pieces = (most + BLOCK - 1) / BLOCK, n = (a->d_conv + 1) * a->dim;
    conv_params p = {*a, (a->dim + THREADS - 1) / THREADS, pieces,
                     (float *)((char *)exec->workspace + LS_WORKSPACE_HEAD), NULL};
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dy stride", a->dy_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dx stride", a->dx_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"block", a->rows / BLOCK + a->n_spans}, {"parameters", n}, {"element", 4}}}}};
    const ls_launch gradient = {
        "conv1d_backward", {ls_launch_blocks(a->n_spans, pieces, p.blocks), 1, 1}, THREADS, 0, index, 4};
    const ls_launch parameters = {
        "conv1d_backward, parameters", {(n + THREADS - 1) / THREADS, 1, 1}, THREADS, 0, index, 4};
    ls_fault *fault;
    if (a->n_spans > 0 && a->rows > 0) LS_CUDA_TRY(ls_launch_check(&gradient, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_launch_check(&parameters, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("conv1d_backward", exec, &fault, err));
    ls_span_check check = {a->spans, a->n_spans, a->rows, most, INT64_MAX, true, fault};
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_spans("conv1d_backward", exec, &check, err));
    if (a->n_spans > 0 && a->rows > 0)
        LS_CUDA_TRY(ls_cuda_launch(exec, &gradient,
                                   a->x_dtype == LS_F32 ? kernel_of<LS_F32>(a->state_dtype, a->d_conv)
                                                        : kernel_of<LS_BF16>(a->state_dtype, a->d_conv),
                                   &p, err));
    return ls_cuda_launch(exec, &parameters, (const void *)parameter_kernel, &p, err);
}
