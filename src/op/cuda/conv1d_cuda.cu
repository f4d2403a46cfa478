/* conv1d on the GPU: a thread takes four channels, or one where there are other than four taps, and a few tokens. With
 * four taps the inputs stay in registers from token to token; otherwise every output reads its own d_conv inputs. The
 * state is written by a second kernel, after every output has read the old one; with one token a span the same thread
 * does both. */
#include "dev/device.h"
#include "num/expf.h"
#include "op/conv1d.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/cuda/expect_cuda.h"
#include "op/cuda/gates_cuda.h"

#define THREADS 128
#define TOKENS 16 /* of a thread */
#define MANY 2    /* tokens whose loads are on their way while those before them are computed */
#define WIDTH 4   /* of the kernel for four channels */

typedef struct conv_params {
    ls_conv1d_args a;
    int64_t blocks, pieces; /* of channels, of a span's tokens */
    bool decode;            /* one token a span */
    const ls_fault *fault;
} conv_params;

template <int TYPE>
static __device__ __forceinline__ float rounded(float x) {
    return TYPE == LS_F32 ? x : ls_widen_raw<LS_BF16>(ls_narrow_one<LS_BF16>(x));
}

/* Input x' at time t of the span, t >= -(d_conv - 1). */
template <int X, int STATE>
static __device__ __forceinline__ float input(const ls_conv1d_args *a, const ls_span *span, const void *state,
                                              int64_t t, int64_t channel) {
    if (t >= 0) return rounded<STATE>(ls_load_one<X>(a->x, (span->row + t) * a->x_stride + channel));
    return span->pos > 0 ? ls_load_one<STATE>(state, (t + a->d_conv - 1) * a->dim + channel) : 0.0f;
}

/* The new window, oldest first: an entry comes from later in the old one, so ascending order overwrites nothing that is
 * still to be read. */
template <int X, int STATE>
static __device__ __forceinline__ void shift_state(const ls_conv1d_args *a, const ls_span *span, void *state,
                                                   int64_t channel) {
    for (int64_t k = 0; k < a->d_conv - 1; k++)
        ls_store_one<STATE>(state, k * a->dim + channel,
                            input<X, STATE>(a, span, state, span->n_rows - (a->d_conv - 1) + k, channel));
}

template <int X, int Y, int STATE>
static __global__ void __launch_bounds__(THREADS) conv_kernel(const __grid_constant__ conv_params p) {
    ls_cuda_begin();
    const ls_conv1d_args *a = &p.a;
    const int64_t channel = blockIdx.x % p.blocks * THREADS + threadIdx.x, item = blockIdx.x / p.blocks;
    const ls_span *span = &a->spans[item / p.pieces];
    const int64_t first = item % p.pieces * TOKENS, past = a->d_conv - 1;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || channel >= a->dim) return;
    void *state = ls_pool_at(&a->state, span->slot);
    const float bias = a->bias != NULL ? a->bias[channel] : 0.0f;
    for (int64_t t = first; t < first + TOKENS && t < span->n_rows; t++) {
        float acc = bias;
        for (int64_t k = 0; k <= past; k++)
            acc = ls_fma(a->w[k * a->dim + channel], input<X, STATE>(a, span, state, t - past + k, channel), acc);
        acc = ls_silu(acc);
        ls_store_one<Y>(a->y, (span->row + t) * a->y_stride + channel, acc);
        if (a->rounded != NULL) ls_store_one<LS_BF16>(a->rounded, (span->row + t) * a->rounded_stride + channel, acc);
    }
    if (p.decode && span->n_rows > 0) shift_state<X, STATE>(a, span, state, channel);
}

/* Four channels of x' at time t of the span. */
template <int X, int STATE>
static __device__ __forceinline__ void input_four(const ls_conv1d_args *a, const ls_span *span, const void *state,
                                                  int64_t t, int64_t channel, float x[4]) {
    if (t >= 0) {
        ls_four_load<X>(a->x, (span->row + t) * a->x_stride + channel, 4, true, x);
        for (int j = 0; j < 4; j++) x[j] = rounded<STATE>(x[j]);
    } else if (span->pos > 0) {
        ls_four_load<STATE>(state, (t + WIDTH - 1) * a->dim + channel, 4, true, x);
    } else {
        for (int j = 0; j < 4; j++) x[j] = 0.0f;
    }
}

/* Of one token: parameters and the state, while the kernel ahead still runs. The span may not have been checked. */
template <int STATE>
static __device__ __forceinline__ void expect_four(const ls_conv1d_args *a, const ls_span *span, int64_t channel) {
    const int32_t slot = span->slot;
    for (int k = 0; k < WIDTH; k++) ls_cuda_expect(a->w + k * a->dim + channel);
    if (a->bias != NULL) ls_cuda_expect(a->bias + channel);
    if (slot < 0 || slot >= a->state.n_entries) return;
    const uint8_t *state = (const uint8_t *)ls_pool_at(&a->state, slot);
    for (int k = 0; k < WIDTH - 1; k++) ls_cuda_expect(state + (k * a->dim + channel) * (STATE == LS_F32 ? 4 : 2));
}

/* BATCH: 1 where a span has one token, else MANY. */
template <int X, int Y, int STATE, int BATCH>
static __global__ void __launch_bounds__(THREADS) four_kernel(const __grid_constant__ conv_params p) {
    const ls_conv1d_args *a = &p.a;
    const int64_t channel = (blockIdx.x % p.blocks * THREADS + threadIdx.x) * 4, item = blockIdx.x / p.blocks;
    const ls_span *span = &a->spans[item / p.pieces];
    if (BATCH == 1 && channel < a->dim) expect_four<STATE>(a, span, channel);
    ls_cuda_begin();
    const int64_t first = BATCH == 1 ? 0 : item % p.pieces * TOKENS;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || channel >= a->dim || first >= span->n_rows) return;
    void *state = ls_pool_at(&a->state, span->slot);
    const int64_t last = span->n_rows - first < TOKENS ? span->n_rows : first + TOKENS;
    float w[WIDTH][4], bias[4] = {0, 0, 0, 0};
    float x[WIDTH - 1 + BATCH][4]; /* the inputs before the first token, then its own */
    float next[BATCH][4];          /* of the tokens behind those */
#pragma unroll
    for (int k = 0; k < WIDTH; k++) ls_four_load<LS_F32>(a->w, k * a->dim + channel, 4, true, w[k]);
    if (a->bias != NULL) ls_four_load<LS_F32>(a->bias, channel, 4, true, bias);
#pragma unroll
    for (int k = 0; k < WIDTH - 1; k++) input_four<X, STATE>(a, span, state, first - (WIDTH - 1) + k, channel, x[k]);
    const int64_t at = span->row * a->x_stride + channel;
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        if (first + i < last) ls_four_load<X>(a->x, at + (first + i) * a->x_stride, 4, true, next[i]);
#pragma unroll 1
    for (int64_t t = first; t < last; t += BATCH) {
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            for (int j = 0; j < 4; j++) x[WIDTH - 1 + i][j] = rounded<STATE>(next[i][j]);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (t + BATCH + i < last) ls_four_load<X>(a->x, at + (t + BATCH + i) * a->x_stride, 4, true, next[i]);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float y[4];
            if (t + i >= last) break;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                y[j] = bias[j];
                for (int k = 0; k < WIDTH; k++) y[j] = ls_fma(w[k][j], x[i + k][j], y[j]);
            }
            ls_silu_all<4>(y);
            ls_four_store<Y>(a->y, (span->row + t + i) * a->y_stride + channel, 4, true, y);
            if (a->rounded != NULL)
                ls_four_store<LS_BF16>(a->rounded, (span->row + t + i) * a->rounded_stride + channel, 4, true, y);
        }
        /* The last inputs of a whole batch come before the next one; behind a part of one there is none. */
        if (last - t > BATCH)
#pragma unroll
            for (int k = 0; k < WIDTH - 1; k++)
                for (int j = 0; j < 4; j++) x[k][j] = x[BATCH + k][j];
    }
    if (!p.decode) return;
#pragma unroll
    for (int k = 0; k < WIDTH - 1; k++) ls_four_store<STATE>(state, k * a->dim + channel, 4, true, x[k + 1]);
}

template <int X, int STATE>
static __global__ void __launch_bounds__(THREADS) state_kernel(const __grid_constant__ conv_params p) {
    ls_cuda_begin();
    const int64_t channel = blockIdx.x % p.blocks * THREADS + threadIdx.x;
    const ls_span *span = &p.a.spans[blockIdx.x / p.blocks];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || channel >= p.a.dim || span->n_rows == 0) return;
    shift_state<X, STATE>(&p.a, span, ls_pool_at(&p.a.state, span->slot), channel);
}

template <int X, int STATE, int BATCH>
static const void *four_of(ls_dtype y) {
    return y == LS_F32 ? (const void *)four_kernel<X, LS_F32, STATE, BATCH>
                       : (const void *)four_kernel<X, LS_BF16, STATE, BATCH>;
}

template <int X, int STATE>
static const void *kernel_of(ls_dtype y, bool four, bool decode) {
    if (four) return decode ? four_of<X, STATE, 1>(y) : four_of<X, STATE, MANY>(y);
    return y == LS_F32 ? (const void *)conv_kernel<X, LS_F32, STATE> : (const void *)conv_kernel<X, LS_BF16, STATE>;
}

static bool fours(const ls_conv1d_args *a) {
    return a->d_conv == WIDTH && a->dim % 4 == 0 && a->x_stride % 4 == 0 && a->y_stride % 4 == 0 &&
           a->state.stride % (4 * ls_dtype_bytes(a->state_dtype)) == 0 && ls_four_fits(a->x, a->x_dtype) &&
           ls_four_fits(a->y, a->y_dtype) && ls_four_fits(a->state.base, a->state_dtype) &&
           ls_four_fits(a->w, LS_F32) && ls_four_fits(a->bias, LS_F32) && ls_four_fits(a->rounded, LS_BF16) &&
           (a->rounded == NULL || a->rounded_stride % 4 == 0);
}

ls_status ls_cuda_conv1d(const ls_exec *exec, const ls_conv1d_args *a, ls_error *err) {
    const int64_t state_elem = ls_dtype_bytes(a->state_dtype);
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), false},
                                        {"w", a->w, 4, false},
                                        {"bias", a->bias, 4, true},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), false},
                                        {"state", a->state.base, state_elem, a->d_conv == 1 || a->state.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0},
                                        {"rounded", a->rounded, 2, true}};
    const int64_t most = ls_spans_most(a->span_rows_max, a->rows);
    const bool x_f32 = a->x_dtype == LS_F32, state_f32 = a->state_dtype == LS_F32;
    LS_CUDA_TRY(ls_cuda_check("conv1d", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_conv1d_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    const bool four = fours(a);
    const int64_t channels = four ? 4 * THREADS : THREADS;
    conv_params p = {*a, (a->dim + channels - 1) / channels, (most - 1) / TOKENS + 1, a->span_rows_max == 1, NULL};
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"y stride", a->y_stride}, {"element", 4}}}},
        {LS_WIDTH_I64,
         {{{"row", a->rows}, {"rounded stride", a->rounded != NULL ? a->rounded_stride : 0}, {"element", 2}}}},
        {LS_WIDTH_I64,
         {{{"slot", a->state.n_entries}, {"state stride in bytes", a->d_conv > 1 ? a->state.stride : 0}}}},
        {LS_WIDTH_I64, {{{"tap", a->d_conv}, {"dim", a->dim}, {"element", 4}}}}};
    const ls_launch outputs = {"conv1d", {ls_launch_blocks(a->n_spans, p.pieces, p.blocks), 1, 1}, THREADS, 0, index,
                               5};
    conv_params single = p; /* a thread a channel, for the state */
    single.blocks = (a->dim + THREADS - 1) / THREADS;
    const ls_launch states = {
        "conv1d state", {ls_launch_blocks(a->n_spans, single.blocks, 1), 1, 1}, THREADS, 0, index, 5};
    ls_fault *fault;
    LS_CUDA_TRY(ls_launch_check(&outputs, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("conv1d", exec, &fault, err));
    ls_span_check check = ls_span_check_of(a, most, a->state.n_entries, fault);
    p.fault = single.fault = fault;
    LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("conv1d", exec, err)
                                 : ls_cuda_check_spans("conv1d", exec, &check, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &outputs,
                               x_f32       ? state_f32 ? kernel_of<LS_F32, LS_F32>(a->y_dtype, four, p.decode)
                                                       : kernel_of<LS_F32, LS_BF16>(a->y_dtype, four, p.decode)
                                     : state_f32 ? kernel_of<LS_BF16, LS_F32>(a->y_dtype, four, p.decode)
                                           : kernel_of<LS_BF16, LS_BF16>(a->y_dtype, four, p.decode),
                               &p, err));
    if (p.decode || a->d_conv == 1) return LS_OK;
    return ls_cuda_launch(
        exec, &states,
        x_f32 ? state_f32 ? (const void *)state_kernel<LS_F32, LS_F32> : (const void *)state_kernel<LS_F32, LS_BF16>
        : state_f32 ? (const void *)state_kernel<LS_BF16, LS_F32>
                    : (const void *)state_kernel<LS_BF16, LS_BF16>,
        &single, err);
}
