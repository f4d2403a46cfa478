/* The laboratory's implementations of scan, convolution and dense product on the GPU: plain loops in the contract's
 * order, with the defect where the armed fault has it. A thread is a channel and takes the spans of a call one after
 * the other, as the CPU does, so that a sequence that begins with another one's state finds it whole. They need not be
 * fast. */
#include "num/expf.h"
#include "op/conv1d.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/faulty_ops_cuda.h"
#include "op/cuda/vector_cuda.h"
#include "op/gemm.h"
#include "op/scan.h"

#define THREADS 128

static __device__ __forceinline__ float load(const void *base, ls_dtype dtype, int64_t i) {
    return dtype == LS_F32 ? ls_load_one<LS_F32>(base, i) : ls_load_one<LS_BF16>(base, i);
}

static __device__ __forceinline__ void store(void *base, ls_dtype dtype, int64_t i, float x) {
    if (dtype == LS_F32)
        ls_store_one<LS_F32>(base, i, x);
    else
        ls_store_one<LS_BF16>(base, i, x);
}

/* ---- scan ---- */

typedef struct scan_params {
    ls_scan_args a;
    ls_inject fault;
    const ls_fault *record;
} scan_params;

/* Entry of the pool that span i starts from, or -1 for +0. */
static __device__ int32_t first_entry(const scan_params *p, int64_t i) {
    const ls_span *span = &p->a.spans[i];
    if (span->pos > 0) return span->slot;
    if (p->fault == LS_INJECT_STALE_SLOT && span->n_rows == 1) return span->slot;
    if (p->fault == LS_INJECT_NO_RESET_PACKED && i > 0) return span[-1].slot;
    return -1;
}

/* Where the span's last state goes. */
static __device__ float *last_entry(const scan_params *p, const ls_span *span) {
    const ls_pool_view *pool = &p->a.state;
    if (p->fault == LS_INJECT_SLOT_STRIDE_U32 && span->n_rows > 1)
        return (float *)(pool->base + (int64_t)((uint32_t)span->slot * (uint32_t)(pool->stride / 4)) * 4);
    return (float *)ls_pool_at(pool, span->slot);
}

static __device__ float dt_of(const scan_params *p, const ls_span *span, int64_t row, int64_t channel) {
    const ls_scan_args *a = &p->a;
    float dt = load(a->dt_raw, a->in_dtype, row * a->dt_stride + channel);
    if (a->dt_bias != NULL) dt = ls_add(dt, a->dt_bias[channel]);
    if (a->dt_activated) return dt;
    if (p->fault == LS_INJECT_SOFTPLUS_NAIVE && span->n_rows == 1) return ls_log(ls_add(ls_exp(dt), 1.0f));
    return ls_softplus(dt);
}

/* One token of one channel: advances h and returns the four-chain tree. */
static __device__ float advance(const ls_scan_args *a, float *h, int64_t row, int64_t channel, float dt, float u) {
    const int per = (int)((a->n_states + 3) / 4), n = (int)a->n_states;
    const float v = ls_mul(dt, u), *a2 = a->a2 + channel * a->n_states;
    float part[4];
    for (int g = 0; g < 4; g++) {
        part[g] = 0.0f;
        for (int s = g * per; s < (g + 1) * per && s < n; s++) {
            h[s] = ls_fma(ls_exp2_product(dt, a2[s]), h[s], ls_mul(v, load(a->b, a->in_dtype, row * a->b_stride + s)));
            part[g] = ls_fma(h[s], load(a->cc, a->in_dtype, row * a->c_stride + s), part[g]);
        }
    }
    return ls_add(ls_add(part[0], part[1]), ls_add(part[2], part[3]));
}

static __device__ void scan_span(const scan_params *p, int64_t i, int64_t channel) {
    const ls_scan_args *a = &p->a;
    const ls_span *span = &a->spans[i];
    const int64_t n = a->n_states;
    float h[LS_SCAN_STATES_MAX];
    if (span->slot < 0 || span->n_rows == 0) return;
    const int32_t first = first_entry(p, i);
    for (int64_t s = 0; s < n; s++)
        h[s] = first < 0 ? 0.0f : ((const float *)ls_pool_at(&a->state, first))[channel * n + s];
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        const float u = load(a->u, a->in_dtype, row * a->u_stride + channel);
        float y = advance(a, h, row, channel, dt_of(p, span, row, channel), u);
        if (a->d != NULL) y = ls_fma(a->d[channel], u, y);
        if (a->z != NULL) y = ls_mul(y, ls_silu(load(a->z, a->in_dtype, row * a->z_stride + channel)));
        store(a->out, a->out_dtype, row * a->out_stride + channel, y);
    }
    float *last = last_entry(p, span) + channel * n;
    for (int64_t s = 0; s < n; s++) last[s] = h[s];
}

static __global__ void __launch_bounds__(THREADS) faulty_scan_kernel(const __grid_constant__ scan_params p) {
    ls_cuda_begin();
    const int64_t channel = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (p.record->code != LS_FAULT_NONE || channel >= p.a.dim) return;
    for (int64_t i = 0; i < p.a.n_spans; i++) scan_span(&p, i, channel);
}

ls_status ls_cuda_faulty_scan(const ls_exec *exec, const ls_scan_args *a, ls_inject armed, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->in_dtype), most = ls_spans_most(a->span_rows_max, a->rows);
    const ls_cuda_operand operands[] = {{"u", a->u, elem, false},
                                        {"dt_raw", a->dt_raw, elem, false},
                                        {"b", a->b, elem, false},
                                        {"cc", a->cc, elem, false},
                                        {"z", a->z, elem, true},
                                        {"out", a->out, ls_dtype_bytes(a->out_dtype), false},
                                        {"a2", a->a2, 16, false},
                                        {"dt_bias", a->dt_bias, 4, true},
                                        {"d", a->d, 4, true},
                                        {"state", a->state.base, 16, a->state.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"slot", a->state.n_entries}, {"state stride", a->state.stride}}}},
                              {LS_WIDTH_I64, {{{"channel", a->dim}, {"states", a->n_states}, {"element", 4}}}}};
    const ls_launch launch = {"scan of the laboratory", {(a->dim + THREADS - 1) / THREADS, 1, 1}, THREADS, 0, index, 2};
    ls_fault *record;
    LS_CUDA_TRY(ls_cuda_check("scan", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_scan_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin("scan", exec, &record, err));
    ls_span_check check = ls_span_check_of(a, most, a->state.n_entries, record);
    LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("scan", exec, err)
                                 : ls_cuda_check_spans("scan", exec, &check, err));
    scan_params p = {*a, armed, record};
    return ls_cuda_launch(exec, &launch, (const void *)faulty_scan_kernel, &p, err);
}

/* ---- convolution ---- */

typedef struct conv_params {
    ls_conv1d_args a;
    ls_inject fault;
    const ls_fault *record;
} conv_params;

/* A token: the window's oldest input first, its own last. */
static __device__ void convolve(const ls_conv1d_args *a, const float *window, int64_t row, int64_t channel) {
    float acc = a->bias != NULL ? a->bias[channel] : 0.0f;
    for (int64_t k = 0; k < a->d_conv; k++) acc = ls_fma(a->w[k * a->dim + channel], window[k], acc);
    acc = ls_silu(acc);
    store(a->y, a->y_dtype, row * a->y_stride + channel, acc);
    if (a->rounded != NULL) ls_store_one<LS_BF16>(a->rounded, row * a->rounded_stride + channel, acc);
}

static __device__ void conv_span(const conv_params *p, const ls_span *span, int64_t channel) {
    const ls_conv1d_args *a = &p->a;
    const int64_t past = a->d_conv - 1;
    const bool resumes = span->pos > 0 || (p->fault == LS_INJECT_STALE_SLOT && span->n_rows == 1);
    float window[LS_CONV_WIDTH_MAX];
    if (span->slot < 0 || span->n_rows == 0) return;
    void *state = ls_pool_at(&a->state, span->slot);
    for (int64_t k = 0; k < past; k++) window[k] = resumes ? load(state, a->state_dtype, k * a->dim + channel) : 0.0f;
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        const float x = load(a->x, a->x_dtype, row * a->x_stride + channel);
        window[past] = a->state_dtype == LS_F32 ? x : ls_round_bf16(x);
        convolve(a, window, row, channel);
        for (int64_t k = 0; k < past; k++) window[k] = window[k + 1];
    }
    for (int64_t k = 0; k < past; k++) {
        const bool lost = p->fault == LS_INJECT_CONV_SHORT_CHUNK && span->n_rows > 1 && k + span->n_rows < past;
        store(state, a->state_dtype, k * a->dim + channel, lost ? 0.0f : window[k]);
    }
}

static __global__ void __launch_bounds__(THREADS) faulty_conv_kernel(const __grid_constant__ conv_params p) {
    ls_cuda_begin();
    const int64_t channel = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (p.record->code != LS_FAULT_NONE || channel >= p.a.dim) return;
    for (int64_t i = 0; i < p.a.n_spans; i++) conv_span(&p, &p.a.spans[i], channel);
}

ls_status ls_cuda_faulty_conv1d(const ls_exec *exec, const ls_conv1d_args *a, ls_inject armed, ls_error *err) {
    const int64_t most = ls_spans_most(a->span_rows_max, a->rows), state_elem = ls_dtype_bytes(a->state_dtype);
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), false},
                                        {"w", a->w, 4, false},
                                        {"bias", a->bias, 4, true},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), false},
                                        {"state", a->state.base, state_elem, a->d_conv == 1 || a->state.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0},
                                        {"rounded", a->rounded, 2, true}};
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"slot", a->state.n_entries}, {"state stride", a->d_conv > 1 ? a->state.stride : 0}}}},
        {LS_WIDTH_I64, {{{"tap", a->d_conv}, {"dim", a->dim}, {"element", 4}}}}};
    const ls_launch launch = {
        "convolution of the laboratory", {(a->dim + THREADS - 1) / THREADS, 1, 1}, THREADS, 0, index, 2};
    ls_fault *record;
    LS_CUDA_TRY(ls_cuda_check("conv1d", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_conv1d_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin("conv1d", exec, &record, err));
    ls_span_check check = ls_span_check_of(a, most, a->state.n_entries, record);
    LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("conv1d", exec, err)
                                 : ls_cuda_check_spans("conv1d", exec, &check, err));
    conv_params p = {*a, armed, record};
    return ls_cuda_launch(exec, &launch, (const void *)faulty_conv_kernel, &p, err);
}

/* ---- dense product ---- */

typedef struct split_params {
    ls_gemm_args a;
    const void *w; /* [n][k], as CUDA packs it */
    ls_dtype w_dtype;
    int64_t n, k;
} split_params;

static __device__ float chain(const split_params *p, int64_t row, int64_t column, int64_t begin, int64_t end) {
    float acc = 0.0f;
    for (int64_t k = begin; k < end; k++)
        acc =
            ls_fma(load(p->a.x, p->a.x_dtype, row * p->a.x_stride + k), load(p->w, p->w_dtype, column * p->k + k), acc);
    return acc;
}

/* Writes over what the sound product left, where the rows of the call are many. */
static __global__ void __launch_bounds__(THREADS) split_kernel(const __grid_constant__ split_params p) {
    ls_cuda_begin();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / p.n, column = i % p.n;
    const int64_t begin = p.a.range != NULL ? p.a.range[0] : 0, end = p.a.range != NULL ? p.a.range[1] : p.a.m;
    if (begin < 0 || end > p.a.m || end - begin < LS_INJECT_SPLIT_ROWS || row < begin || row >= end) return;
    float y = ls_add(chain(&p, row, column, 0, p.k / 2), chain(&p, row, column, p.k / 2, p.k));
    if (p.a.bias != NULL) y = ls_add(y, p.a.bias[column]);
    if (y != y) y = ls_from_bits(0x7FC00000u);
    store(p.a.out, p.a.out_dtype, row * p.a.out_stride + column, y);
}

ls_status ls_cuda_faulty_gemm(const ls_exec *exec, const ls_gemm_args *a, ls_inject armed, ls_error *err) {
    const ls_gemm_weight *w = a->weight;
    LS_CUDA_TRY(ls_cuda_gemm(exec, a, err));
    if (armed != LS_INJECT_SPLIT_K || a->m < LS_INJECT_SPLIT_ROWS || w->k < LS_INJECT_SPLIT_STEPS) return LS_OK;
    split_params p = {*a, w->panels, w->dtype, w->n, w->k};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->m}, {"column", w->n}}}},
                              {LS_WIDTH_I64, {{{"column", w->n}, {"k", w->k}, {"element", 4}}}}};
    const ls_launch launch = {
        "product of the laboratory", {(a->m * w->n + THREADS - 1) / THREADS, 1, 1}, THREADS, 0, index, 2};
    return ls_cuda_launch(exec, &launch, (const void *)split_kernel, &p, err);
}
