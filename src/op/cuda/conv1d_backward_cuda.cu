/* Gradient of conv1d on the GPU: a thread a channel of 64 tokens of a span, which walks them in order of time with a
 * window of inputs and of unfinished dx; a second kernel adds the blocks' shares of the parameters' gradients. */
#include "dev/device.h"
#include "num/expf.h"
#include "op/conv1d.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/gates_cuda.h"

#define THREADS 64
#define BLOCK LS_CONV1D_SUM_BLOCK

typedef struct conv_params {
    ls_conv1d_backward_args a;
    int64_t blocks, pieces; /* of channels, of a span's tokens */
    float *shares;          /* [rows / BLOCK + n_spans][d_conv + 1][dim] */
    const ls_fault *fault;
} conv_params;

template <int TYPE>
static __device__ __forceinline__ float rounded(float x) {
    return TYPE == LS_F32 ? x : ls_widen_raw<LS_BF16>(ls_narrow_one<LS_BF16>(x));
}

/* Entry j of the window of a span, in a tensor of windows. */
static __device__ __forceinline__ int64_t window_at(const ls_conv1d_backward_args *a, int64_t span_i, int64_t j,
                                                    int64_t channel) {
    return (span_i * (a->d_conv - 1) + j) * a->dim + channel;
}

template <int X, int STATE>
static __device__ __forceinline__ float input(const ls_conv1d_backward_args *a, const ls_span *span, int64_t span_i,
                                              int64_t t, int64_t channel) {
    if (t < 0)
        return a->initial != NULL ? ls_load_one<STATE>(a->initial, window_at(a, span_i, t + a->d_conv - 1, channel))
                                  : 0.0f;
    return rounded<STATE>(ls_load_one<X>(a->x, (span->row + t) * a->x_stride + channel));
}

/* da of token t. */
template <int X, int STATE>
static __device__ __forceinline__ float gate_gradient(const ls_conv1d_backward_args *a, const ls_span *span,
                                                      int64_t span_i, int64_t t, int64_t channel) {
    const int64_t past = a->d_conv - 1;
    float acc = a->bias != NULL ? a->bias[channel] : 0.0f;
    for (int64_t k = 0; k <= past; k++)
        acc = ls_fma(a->w[k * a->dim + channel], input<X, STATE>(a, span, span_i, t - past + k, channel), acc);
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
        const float da = t < span->n_rows ? gate_gradient<X, STATE>(a, span, span_i, t, channel) : 0.0f;
#pragma unroll
        for (int i = 0; i < LS_CONV_WIDTH_MAX; i++)
            if (i <= past && t < span->n_rows) dx[i] = ls_fma(a->w[i * a->dim + channel], da, dx[i]);
        if (inside) {
            dbias = ls_add(dbias, da);
#pragma unroll
            for (int i = 0; i < LS_CONV_WIDTH_MAX; i++)
                if (i <= past) dw[i] = ls_fma(da, input<X, STATE>(a, span, span_i, t - past + i, channel), dw[i]);
        }
        const int64_t out = (span->row + t - past) * a->dx_stride + channel;
        /* The input at the window's entry t - n_rows behind the span, and before it at entry t of the first window. */
        if (a->dfinal != NULL && t >= span->n_rows)
            dx[0] = ls_add(dx[0], a->dfinal[window_at(a, span_i, t - span->n_rows, channel)]);
        if (t - past >= first && a->dx_dtype == LS_F32) ls_store_one<LS_F32>(a->dx, out, dx[0]);
        if (t - past >= first && a->dx_dtype != LS_F32) ls_store_one<LS_BF16>(a->dx, out, dx[0]);
        if (t < past && a->dinitial != NULL) a->dinitial[window_at(a, span_i, t, channel)] = dx[0];
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
#define AT_ONCE 4 /* tokens that are on their way while as many are computed */

/* A thread on its way through a block's tokens. Everything that it needs of arguments and span lies here: stores could
 * be to those. in and dx are of the three tokens before the next ones, whose x and dy are on their way; the pointers
 * are behind those, out where the next dx goes. */
typedef struct walker {
    const char *x, *dy;
    char *out;
    int64_t x_step, dy_step, out_step; /* in bytes */
    int last, reach;                   /* tokens of the block; and those that reach back into it */
    float next_x[AT_ONCE], next_dy[AT_ONCE];
    float bias, w[TAPS], in[TAPS - 1], dx[TAPS - 1], dw[TAPS], dbias;
    const float *dfinal; /* of the span's window behind it, and before it; NULL: none, or not this block's */
    float *dinitial;
    int64_t window_step;
} walker;

/* One row on. The compiler does not see through it: it would multiply for each row anew. */
template <typename POINTER>
static __device__ __forceinline__ void advance(POINTER *at, int64_t step) {
    *at += step;
    asm("" : "+l"(*at));
    __builtin_assume(__isGlobal(*at));
}

/* Sends for `n` tokens; what is not there keeps an older value, which nobody reads. */
template <int X>
static __device__ __forceinline__ void fetch_some(walker *k, int n) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i < n) k->next_x[i] = ls_load_one<X>(k->x, 0);
        if (i < n) k->next_dy[i] = ls_load_one<LS_F32>(k->dy, 0);
        advance(&k->x, k->x_step);
        advance(&k->dy, k->dy_step);
    }
}

/* Sends for the tokens from `begin` on. */
template <int X>
static __device__ __forceinline__ void fetch(walker *k, int begin) {
    if (begin + AT_ONCE <= k->reach)
        fetch_some<X>(k, AT_ONCE);
    else
        fetch_some<X>(k, k->reach - begin);
}

/* AT_ONCE tokens from `begin` on. INSIDE: the block's, and so are those before them that they reach back to. WINDOWS:
 * there are gradients of windows. */
template <int X, int STATE, int OUT, bool INSIDE, bool WINDOWS>
static __device__ __forceinline__ void walk(walker *k, int begin) {
    float in[TAPS - 1 + AT_ONCE], dy[AT_ONCE], acc[AT_ONCE], sig[AT_ONCE], silu[AT_ONCE], dx[TAPS - 1 + AT_ONCE];
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) in[i] = k->in[i], dx[i] = k->dx[i];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        in[TAPS - 1 + i] = rounded<STATE>(k->next_x[i]);
        dy[i] = k->next_dy[i];
        dx[TAPS - 1 + i] = 0.0f;
    }
    fetch<X>(k, begin + AT_ONCE);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        acc[i] = k->bias;
#pragma unroll
        for (int j = 0; j < TAPS; j++) acc[i] = ls_fma(k->w[j], in[i + j], acc[i]);
    }
    ls_gates_all<AT_ONCE>(acc, sig, silu);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++, advance(&k->out, k->out_step)) {
        const float da = ls_mul(dy[i], ls_fma(silu[i], ls_sub(1.0f, sig[i]), sig[i]));
        const int t = begin + i, done = t - (TAPS - 1);
        if (INSIDE || t < k->reach)
#pragma unroll
            for (int j = 0; j < TAPS; j++) dx[i + j] = ls_fma(k->w[j], da, dx[i + j]);
        if (INSIDE || t < k->last) {
            k->dbias = ls_add(k->dbias, da);
#pragma unroll
            for (int j = 0; j < TAPS; j++) k->dw[j] = ls_fma(da, in[i + j], k->dw[j]);
        }
        if (WINDOWS && !INSIDE && k->dfinal != NULL && t >= k->reach && done < k->last)
            dx[i] = ls_add(dx[i], k->dfinal[(t - k->reach) * k->window_step]);
        if (WINDOWS && !INSIDE && k->dinitial != NULL && done < 0) k->dinitial[t * k->window_step] = dx[i];
        if (INSIDE || (done >= 0 && done < k->last)) ls_store_one<OUT>(k->out, 0, dx[i]);
    }
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) k->in[i] = in[AT_ONCE + i], k->dx[i] = dx[AT_ONCE + i];
}

template <int X, int STATE, int OUT, bool WINDOWS>
static __global__ void __launch_bounds__(THREADS) four_taps_kernel(const __grid_constant__ conv_params p) {
    ls_cuda_begin();
    const ls_conv1d_backward_args *a = &p.a;
    const int64_t channel = blockIdx.x % p.blocks * THREADS + threadIdx.x, item = blockIdx.x / p.blocks;
    const int64_t span_i = item / p.pieces, piece = item % p.pieces, first = piece * BLOCK;
    const ls_span span = a->spans[span_i];
    if (p.fault->code != LS_FAULT_NONE || span.slot < 0 || channel >= a->dim || first >= span.n_rows) return;
    const int64_t left = span.n_rows - first, row = span.row + first;
    const int64_t x_bytes = X == LS_F32 ? 4 : 2, out_bytes = OUT == LS_F32 ? 4 : 2;
    walker k = {.x = (const char *)a->x + (row * a->x_stride + channel) * x_bytes,
                .dy = (const char *)(a->dy + row * a->dy_stride + channel),
                .out = (char *)a->dx + ((row - (TAPS - 1)) * a->dx_stride + channel) * out_bytes,
                .x_step = a->x_stride * x_bytes,
                .dy_step = a->dy_stride * 4,
                .out_step = a->dx_stride * out_bytes,
                .last = left < BLOCK ? (int)left : BLOCK,
                .reach = left < BLOCK + TAPS - 1 ? (int)left : BLOCK + TAPS - 1,
                .bias = a->bias != NULL ? a->bias[channel] : 0.0f};
    if (WINDOWS) {
        k.dfinal = a->dfinal != NULL ? a->dfinal + window_at(a, span_i, 0, channel) : NULL;
        k.dinitial = a->dinitial != NULL && piece == 0 ? a->dinitial + window_at(a, span_i, 0, channel) : NULL;
        k.window_step = a->dim;
    }
#pragma unroll
    for (int i = 0; i < TAPS; i++) k.w[i] = a->w[i * a->dim + channel];
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) k.in[i] = input<X, STATE>(a, &span, span_i, first - (TAPS - 1) + i, channel);
    fetch<X>(&k, 0);
#pragma unroll 1
    for (int begin = 0; begin < k.last + TAPS - 1; begin += AT_ONCE)
        if (begin > 0 && begin + AT_ONCE <= k.last)
            walk<X, STATE, OUT, true, WINDOWS>(&k, begin);
        else
            walk<X, STATE, OUT, false, WINDOWS>(&k, begin);
    float *share = p.shares + (span.row / BLOCK + span_i + piece) * (TAPS + 1) * a->dim + channel;
#pragma unroll
    for (int i = 0; i < TAPS; i++) share[i * a->dim] = k.dw[i];
    share[TAPS * a->dim] = k.dbias;
}

#define SHARES 16 /* that are on their way together */

/* A thread a parameter: spans in order, a span's blocks in order. */
static __global__ void __launch_bounds__(THREADS, 8) parameter_kernel(const __grid_constant__ conv_params p) {
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
        const float *share = p.shares + (span->row / BLOCK + s) * n + i;
        for (int64_t j = 0; j < blocks; j += SHARES) {
            float some[SHARES];
#pragma unroll
            for (int k = 0; k < SHARES; k++) some[k] = j + k < blocks ? share[(j + k) * n] : 0.0f;
#pragma unroll
            for (int k = 0; k < SHARES; k++)
                if (j + k < blocks) of_span = ls_add(of_span, some[k]);
        }
        if (blocks > 0) sum = ls_add(sum, of_span);
    }
    *to = sum;
}

template <int X, int STATE>
static const void *kernel_of(const ls_conv1d_backward_args *a) {
    if (a->d_conv != TAPS) return (const void *)gradient_kernel<X, STATE>;
    if (a->dfinal != NULL || a->dinitial != NULL)
        return a->dx_dtype == LS_F32 ? (const void *)four_taps_kernel<X, STATE, LS_F32, true>
                                     : (const void *)four_taps_kernel<X, STATE, LS_BF16, true>;
    return a->dx_dtype == LS_F32 ? (const void *)four_taps_kernel<X, STATE, LS_F32, false>
                                 : (const void *)four_taps_kernel<X, STATE, LS_BF16, false>;
}

template <int X>
static const void *kernel_of(const ls_conv1d_backward_args *a) {
    return a->state_dtype == LS_F32 ? kernel_of<X, LS_F32>(a) : kernel_of<X, LS_BF16>(a);
}

ls_status ls_cuda_conv1d_backward(const ls_exec *exec, const ls_conv1d_backward_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), false},
                                        {"w", a->w, 4, false},
                                        {"bias", a->bias, 4, true},
                                        {"dy", a->dy, 4, false},
                                        {"dx", a->dx, ls_dtype_bytes(a->dx_dtype), false},
                                        {"dw", a->dw, 4, false},
                                        {"dbias", a->dbias, 4, true},
                                        {"initial", a->initial, ls_dtype_bytes(a->state_dtype), true},
                                        {"dinitial", a->dinitial, 4, true},
                                        {"dfinal", a->dfinal, 4, true},
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
    ls_span_check check = ls_span_check_back(a, most, a->initial == NULL, fault);
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_spans("conv1d_backward", exec, &check, err));
    if (a->n_spans > 0 && a->rows > 0)
        LS_CUDA_TRY(ls_cuda_launch(exec, &gradient, a->x_dtype == LS_F32 ? kernel_of<LS_F32>(a) : kernel_of<LS_BF16>(a),
                                   &p, err));
    return ls_cuda_launch(exec, &parameters, (const void *)parameter_kernel, &p, err);
}
