/* ssd on the GPU: which of three kernels runs a call. The choice is one of speed and carries no bits: each kernel is a
 * implementation of op/ssd.h. Prefill of heads that models have is in ssd_sm90a_cuda.cu. */
#include "dev/device.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/held_cuda.h"
#include "op/cuda/ssd_cuda.h"

/* ---- any shape: a block is one head of one span, its state in shared memory, a thread a channel ---- */

template <int IN>
static __global__ void __launch_bounds__(256) head_kernel(const __grid_constant__ ssd_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) float s[]; /* [states][dim], then b and cc */
    const ls_ssd_args *a = &p.a;
    const ls_span *span = &a->spans[blockIdx.x / a->n_heads];
    const int64_t head = blockIdx.x % a->n_heads, group = head / p.group_heads, dim = a->head_dim, states = a->n_states;
    const int64_t each = dim * states, channel = threadIdx.x;
    float *b = s + each, *cc = b + states;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    float *stored = (float *)ls_pool_at(&a->state, span->slot) + head * each;
    float *stored_scale = (float *)ls_pool_at(&a->scale, span->slot) + head;
    float scale = span->pos == 0 ? 1.0f : *stored_scale;
    for (int64_t i = threadIdx.x; i < each; i += blockDim.x) s[i] = span->pos == 0 ? 0.0f : stored[i];
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        __syncthreads();
        for (int64_t n = threadIdx.x; n < states; n += blockDim.x) {
            b[n] = ls_load_one<IN>(a->b, row * a->b_stride + group * states + n);
            cc[n] = ls_load_one<IN>(a->cc, row * a->c_stride + group * states + n);
        }
        __syncthreads();
        const float dt = ls_ssd_dt<IN>(a->dt_raw, row * a->dt_stride + head, a->dt_bias[head], a->dt_min, a->dt_max);
        const ls_ssd_step step = ls_ssd_step_of(scale, dt, a->a[head]);
        scale = step.scale;
        if (channel >= dim) continue;
        const float x = ls_load_one<IN>(a->x, row * a->x_stride + head * dim + channel), u = ls_mul(step.w, x);
        for (int64_t n = 0; n < states; n++) {
            float *at = &s[n * dim + channel];
            *at = ls_fma(u, b[n], step.rescaled ? ls_mul(*at, step.product) : *at);
        }
        const float y = ls_mul(scale, ls_ssd_fold_states(cc, 1, s + channel, dim, states));
        const float out = ls_fma(a->d[head], x, y);
        const int64_t to = row * a->out_stride + head * dim + channel;
        if (a->out_dtype == LS_F32)
            ls_store_one<LS_F32>(a->out, to, out);
        else
            ls_store_one<LS_BF16>(a->out, to, out);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < each; i += blockDim.x) stored[i] = s[i];
    if (threadIdx.x == 0) *stored_scale = scale;
}

/* ---- one token a span: bound by the states' bytes; a thread has 16 states of four channels ---- */

#define TOKEN_DIM_MAX 128

typedef ls_held_batch<LS_SSD_STATES, TOKEN_DIM_MAX> held_batch;

static __device__ __forceinline__ void rescale(float4 s[LS_SSD_OWN], float factor) {
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++)
        s[m] =
            make_float4(ls_mul(s[m].x, factor), ls_mul(s[m].y, factor), ls_mul(s[m].z, factor), ls_mul(s[m].w, factor));
}

/* One outer product more in the thread's states. */
static __device__ __forceinline__ void add_product(float4 s[LS_SSD_OWN], const float4 u, const float *b) {
#pragma unroll
    for (int i = 0; i < LS_SSD_OWN / 4; i++) {
        const float4 b4 = *(const float4 *)(b + i * 4 * LS_SSD_SLICES);
        const float own[4] = {b4.x, b4.y, b4.z, b4.w};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float4 *at = &s[4 * i + n];
            *at = make_float4(ls_fma(u.x, own[n], at->x), ls_fma(u.y, own[n], at->y), ls_fma(u.z, own[n], at->z),
                              ls_fma(u.w, own[n], at->w));
        }
    }
}

/* What a token leaves where its state is not written: threads of the first slice have all channels. */
static __device__ __forceinline__ void keep_token(const ssd_params *p, float *entry, int64_t head, int count, int slice,
                                                  int first, const float u[4], const float *b, float factor) {
    float *record = ls_held_record(&p->held, entry, count);
    if (slice == 0) *(float4 *)(ls_held_own(&p->held, record, head) + first) = make_float4(u[0], u[1], u[2], u[3]);
    if (ls_held_writes_shared(&p->held, head) && threadIdx.x < LS_SSD_STATES / 4)
        ((float4 *)ls_held_shared(&p->held, record, head))[threadIdx.x] = ((const float4 *)b)[threadIdx.x];
    if (threadIdx.x == 0) *ls_held_factor(&p->held, record, head) = factor;
}

template <int IN>
static __global__ void __launch_bounds__(2 * TOKEN_DIM_MAX) token_kernel(const __grid_constant__ ssd_params p) {
    ls_cuda_begin();
    __shared__ float part[LS_SSD_SLICES][TOKEN_DIM_MAX + 4];
    __shared__ __align__(16) float b[LS_SSD_STATES], cc[LS_SSD_STATES];
    __shared__ held_batch batch;
    const ls_ssd_args *a = &p.a;
    const ls_span *span = &a->spans[blockIdx.x / a->n_heads];
    const int dim = (int)a->head_dim, fours = dim / 4, slice = (int)threadIdx.x / fours,
              first = (int)threadIdx.x % fours * 4;
    const int64_t head = blockIdx.x % a->n_heads, group = head / p.group_heads * LS_SSD_STATES;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    const int64_t row = span->row;
    const bool holds = p.held.total > 0;
    float *entry = holds ? (float *)ls_pool_at(&a->held, span->slot) : NULL;
    float *stored = (float *)ls_pool_at(&a->state, span->slot) + head * LS_SSD_STATES * dim + slice * 4 * dim + first;
    float *stored_scale = (float *)ls_pool_at(&a->scale, span->slot) + head;
    /* The count comes first: what it asks for is to travel beside the states. */
    const int count = holds && span->pos > 0 ? (int)ls_held_count(&p.held, entry, head) : 0;
    const bool keeps = holds && ls_held_keeps(&p.held, span, count);
    float4 s[LS_SSD_OWN];
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++)
        s[m] = span->pos == 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                              : __ldcs((const float4 *)(stored + (m / 4 * 4 * LS_SSD_SLICES + m % 4) * dim));
    ls_held_send(&batch, &p.held, entry, head, 0, min(count, LS_HELD_BATCH));
    const float before = span->pos == 0 ? 1.0f : *stored_scale;
    const float dt = ls_ssd_dt<IN>(a->dt_raw, row * a->dt_stride + head, a->dt_bias[head], a->dt_min, a->dt_max);
    const ls_ssd_step step = ls_ssd_step_of(before, dt, a->a[head]);
    float x[4], y[4];
    ls_four_load<IN>(a->x, row * a->x_stride + head * dim + first, 4, p.vectors, x);
    for (int n = (int)threadIdx.x; n < LS_SSD_STATES; n += (int)blockDim.x) {
        b[n] = ls_load_one<IN>(a->b, row * a->b_stride + group + n);
        cc[n] = ls_load_one<IN>(a->cc, row * a->c_stride + group + n);
    }
    ls_held_each(&batch, &p.held, entry, head, count, [&](const float *own, const float *shared, float factor) {
        if (factor != 1.0f) rescale(s, factor);
        add_product(s, *(const float4 *)(own + first), shared + slice * 4);
    });
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = ls_mul(step.w, x[j]), y[j] = 0.0f;
    if (step.rescaled) rescale(s, step.product);
    add_product(s, make_float4(x[0], x[1], x[2], x[3]), b + slice * 4);
#pragma unroll
    for (int i = 0; i < LS_SSD_OWN / 4; i++) {
        const float4 c4 = *(const float4 *)(cc + slice * 4 + i * 4 * LS_SSD_SLICES);
        const float c[4] = {c4.x, c4.y, c4.z, c4.w};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float4 v = s[4 * i + n];
            y[0] = ls_fma(c[n], v.x, y[0]), y[1] = ls_fma(c[n], v.y, y[1]);
            y[2] = ls_fma(c[n], v.z, y[2]), y[3] = ls_fma(c[n], v.w, y[3]);
        }
    }
    *(float4 *)&part[slice][first] = make_float4(y[0], y[1], y[2], y[3]);
    if (keeps)
        keep_token(&p, entry, head, count, slice, first, x, b, step.rescaled ? step.product : 1.0f);
    else
#pragma unroll
        for (int m = 0; m < LS_SSD_OWN; m++)
            __stcs((float4 *)(stored + (m / 4 * 4 * LS_SSD_SLICES + m % 4) * dim), s[m]);
    __syncthreads();
    if (threadIdx.x == 0) *stored_scale = step.scale;
    if (threadIdx.x == 0 && holds) ls_held_set_count(entry, head, keeps ? count + 1 : 0);
    if ((int)threadIdx.x >= dim) return;
    float slices[LS_SSD_SLICES];
#pragma unroll
    for (int i = 0; i < LS_SSD_SLICES; i++) slices[i] = part[i][threadIdx.x];
    const int64_t channel = head * dim + threadIdx.x, to = row * a->out_stride + channel;
    const float own = ls_load_one<IN>(a->x, row * a->x_stride + channel);
    const float out = ls_fma(a->d[head], own, ls_mul(step.scale, ls_ssd_join(slices)));
    if (a->out_dtype == LS_F32)
        ls_store_one<LS_F32>(a->out, to, out);
    else
        ls_store_one<LS_BF16>(a->out, to, out);
}

/* What other kernels read: whole states. */
static ls_status write_held(const ls_exec *exec, const ssd_params *p, ls_error *err) {
    const ls_ssd_args *a = &p->a;
    const ls_write_held_args args = ls_held_args(&p->held, &a->state, &a->held, a->spans, a->n_spans, a->rows);
    return p->held.total == 0 ? LS_OK : ls_held_write("ssd", exec, &args, true, p->fault, err);
}

static ls_status launch(const ls_exec *exec, const ssd_params *p, int64_t most, ls_error *err) {
    const ls_ssd_args *a = &p->a;
    const bool bf16 = a->in_dtype == LS_BF16, token = most == 1 && a->n_states == LS_SSD_STATES &&
                                                      a->head_dim % 16 == 0 && a->head_dim <= TOKEN_DIM_MAX;
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dt stride", a->dt_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"b stride", a->b_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"c stride", a->c_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"out stride", a->out_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"slot", a->state.n_entries}, {"state stride in bytes", a->state.stride}}}},
        {LS_WIDTH_I64, {{{"slot", a->scale.n_entries}, {"scale stride in bytes", a->scale.stride}}}},
        {LS_WIDTH_I64, {{{"slot", a->held.n_entries}, {"held stride in bytes", a->held.stride}}}}};
    const ls_launch launch = {"ssd",
                              {ls_launch_blocks(a->n_spans, a->n_heads, 1), 1, 1},
                              token ? 2 * a->head_dim : (a->head_dim + 31) / 32 * 32,
                              token ? 0 : (a->head_dim + 2) * a->n_states * 4,
                              index,
                              (int64_t)(sizeof index / sizeof index[0])};
    bool taken = false;
    ssd_params params = *p;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    if (!token) LS_CUDA_TRY(write_held(exec, p, err));
    if (!token) LS_CUDA_TRY(ls_ssd_walk(exec, &params, &taken, err));
    if (taken) return LS_OK;
    if (token)
        return ls_cuda_launch(exec, &launch,
                              bf16 ? (const void *)token_kernel<LS_BF16> : (const void *)token_kernel<LS_F32>, &params,
                              err);
    return ls_cuda_launch(exec, &launch, bf16 ? (const void *)head_kernel<LS_BF16> : (const void *)head_kernel<LS_F32>,
                          &params, err);
}

ls_status ls_cuda_ssd(const ls_exec *exec, const ls_ssd_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->in_dtype), most = ls_spans_most(a->span_rows_max, a->rows);
    const ls_cuda_operand operands[] = {{"x", a->x, elem, false},
                                        {"dt_raw", a->dt_raw, elem, false},
                                        {"b", a->b, elem, false},
                                        {"cc", a->cc, elem, false},
                                        {"out", a->out, ls_dtype_bytes(a->out_dtype), false},
                                        {"a", a->a, 4, false},
                                        {"dt_bias", a->dt_bias, 4, false},
                                        {"d", a->d, 4, false},
                                        {"state", a->state.base, 16, a->state.n_entries == 0},
                                        {"scale", a->scale.base, 4, a->scale.n_entries == 0},
                                        {"held", a->held.base, 16, a->state_every < 2 || a->held.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    ssd_params p;
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("ssd", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_ssd_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    p.a = *a;
    p.held = ls_ssd_held(a);
    p.blocks = a->n_heads;
    p.group_heads = a->n_heads / a->n_groups;
    p.vectors = ls_eight_fits(a->x, a->x_stride, elem) && ls_eight_fits(a->b, a->b_stride, elem) &&
                ls_eight_fits(a->cc, a->c_stride, elem);
    p.fours = ls_four_fits(a->out, a->out_dtype) && a->out_stride % 4 == 0;
    LS_CUDA_TRY(ls_cuda_fault_begin("ssd", exec, &fault, err));
    ls_span_check check = ls_span_check_of(a, most, a->state.n_entries, fault);
    p.fault = fault;
    LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("ssd", exec, err)
                                 : ls_cuda_check_spans("ssd", exec, &check, err));
    return launch(exec, &p, most, err);
}
