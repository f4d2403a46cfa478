/* delta on the GPU: which of three kernels runs a call. The choice is one of speed and carries no bits: each kernel is
 * a reading of op/delta.h. Prefill of heads that models have is in delta_sm90a_cuda.cu. */
#include "dev/device.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/delta_cuda.h"
#include "op/cuda/held_cuda.h"

/* ---- any shape: a block is one head of one span, its state in shared memory, a thread a column ---- */

template <int IN>
static __device__ __forceinline__ void load_row(float *to, const void *from, int64_t at, int64_t n) {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) to[i] = ls_load_one<IN>(from, at + i);
}

template <int IN>
static __global__ void __launch_bounds__(LS_DELTA_DIM_MAX) head_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) float s[]; /* [keys][dim], then q and k */
    const ls_span *span = &p.a.spans[blockIdx.x / p.a.n_heads];
    const int64_t head = blockIdx.x % p.a.n_heads, key = head / p.group, dim = p.a.value_dim, keys = p.a.key_dim;
    const int64_t each = dim * keys, j = threadIdx.x;
    float *q = s + each, *k = q + keys;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    float *stored = (float *)ls_pool_at(&p.state, span->slot) + head * each;
    float *stored_scale = (float *)ls_pool_at(&p.scale, span->slot) + head;
    float scale = span->pos == 0 ? 1.0f : *stored_scale;
    for (int64_t i = threadIdx.x; i < each; i += blockDim.x) s[i] = span->pos == 0 ? 0.0f : stored[i];
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        __syncthreads();
        load_row<IN>(q, p.a.q, row * p.a.q_stride + key * keys, keys);
        load_row<IN>(k, p.a.k, row * p.a.k_stride + key * keys, keys);
        __syncthreads();
        if (threadIdx.x < 64) ls_delta_warp_normalize(threadIdx.x < 32 ? q : k, keys);
        __syncthreads();
        const ls_delta_step step = ls_delta_step_at<IN>(&p, row, head, scale);
        scale = step.scale;
        if (j >= dim) continue;
        for (int64_t i = 0; i < keys && step.rescaled; i++) s[i * dim + j] = ls_mul(s[i * dim + j], step.product);
        const float v = ls_load_one<IN>(p.a.v, row * p.a.v_stride + head * dim + j);
        const float d = ls_fma(-step.beta, ls_delta_fold_rows(k, s + j, dim, keys), ls_mul(step.w, v));
        for (int64_t i = 0; i < keys; i++) s[i * dim + j] = ls_fma(k[i], d, s[i * dim + j]);
        const float o = ls_mul(ls_mul(scale, ls_delta_query_scale(keys)), ls_delta_fold_rows(q, s + j, dim, keys));
        const int64_t to = row * p.out_stride + head * dim + j;
        if (p.out_dtype == LS_F32)
            ls_store_one<LS_F32>(p.out, to, o);
        else
            ls_store_one<LS_BF16>(p.out, to, o);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < each; i += blockDim.x) stored[i] = s[i];
    if (threadIdx.x == 0) *stored_scale = scale;
}

/* ---- one token a span: bound by the states' bytes; a warp has four of sixteen chains, a thread four columns ---- */

#define TOKEN_THREADS 128
#define OWN (LS_DELTA_KEYS / 4) /* rows of a thread */

/* The thread's chains over its rows, folded; what other warps have follows through shared memory. */
static __device__ __forceinline__ void fold_own(float to[4], const float4 s[OWN], const float *x, int warp) {
    float chain[4][4]; /* [chain][column] */
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) chain[c][j] = 0.0f;
#pragma unroll
    for (int m = 0; m < OWN / 4; m++) {
        const float4 x4 = *(const float4 *)(x + m * LS_DELTA_FOLD + 4 * warp);
        const float own[4] = {x4.x, x4.y, x4.z, x4.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float4 v = s[4 * m + c];
            chain[c][0] = ls_fma(own[c], v.x, chain[c][0]);
            chain[c][1] = ls_fma(own[c], v.y, chain[c][1]);
            chain[c][2] = ls_fma(own[c], v.z, chain[c][2]);
            chain[c][3] = ls_fma(own[c], v.w, chain[c][3]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) to[j] = ls_add(ls_add(chain[0][j], chain[1][j]), ls_add(chain[2][j], chain[3][j]));
}

/* The folds of all warps, of the thread's columns; all threads call it. */
static __device__ __forceinline__ void fold_warps(float y[4], float (*part)[LS_DELTA_COLUMNS], int warp, int first) {
    *(float4 *)&part[warp][first] = make_float4(y[0], y[1], y[2], y[3]);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 4; j++)
        y[j] = ls_add(ls_add(part[0][first + j], part[1][first + j]), ls_add(part[2][first + j], part[3][first + j]));
}

typedef ls_held_batch<LS_DELTA_KEYS, LS_DELTA_COLUMNS> held_batch;

/* One outer product more in the thread's rows and columns. */
static __device__ __forceinline__ void add_product(float4 s[OWN], const float4 d, const float *k, int warp) {
#pragma unroll
    for (int m = 0; m < OWN / 4; m++) {
        const float4 k4 = *(const float4 *)(k + m * LS_DELTA_FOLD + 4 * warp);
        const float own[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 *at = &s[4 * m + i];
            *at = make_float4(ls_fma(own[i], d.x, at->x), ls_fma(own[i], d.y, at->y), ls_fma(own[i], d.z, at->z),
                              ls_fma(own[i], d.w, at->w));
        }
    }
}

static __device__ __forceinline__ void rescale(float4 s[OWN], float factor) {
#pragma unroll
    for (int i = 0; i < OWN; i++)
        s[i] =
            make_float4(ls_mul(s[i].x, factor), ls_mul(s[i].y, factor), ls_mul(s[i].z, factor), ls_mul(s[i].w, factor));
}

/* What a token leaves where its state is not written: the first warp has all columns. */
static __device__ __forceinline__ void keep_token(const delta_params *p, float *entry, int64_t head, int count,
                                                  const float d[4], const float *k, float factor) {
    float *record = ls_held_record(&p->held, entry, count);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (warp == 0) ((float4 *)ls_held_own(&p->held, record, head))[lane] = make_float4(d[0], d[1], d[2], d[3]);
    if (warp == 1 && ls_held_writes_shared(&p->held, head))
        ((float4 *)ls_held_shared(&p->held, record, head))[lane] = ((const float4 *)k)[lane];
    if (threadIdx.x == 0) *ls_held_factor(&p->held, record, head) = factor;
}

template <int IN>
static __global__ void __launch_bounds__(TOKEN_THREADS, 3) token_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    __shared__ __align__(16) float q[LS_DELTA_KEYS], k[LS_DELTA_KEYS], part[2][4][LS_DELTA_COLUMNS];
    __shared__ held_batch batch;
    const ls_span *span = &p.a.spans[blockIdx.x / p.a.n_heads];
    const int64_t head = blockIdx.x % p.a.n_heads, key = head / p.group;
    const int warp = (int)threadIdx.x / 32, first = (int)threadIdx.x % 32 * 4;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    const int64_t row = span->row, at = head * LS_DELTA_COLUMNS + first;
    float *stored = (float *)ls_pool_at(&p.state, span->slot) + head * (LS_DELTA_KEYS * LS_DELTA_COLUMNS) + first;
    float *stored_scale = (float *)ls_pool_at(&p.scale, span->slot) + head;
    const bool holds = p.held.total > 0;
    float *entry = holds ? (float *)ls_pool_at(&p.held_pool, span->slot) : NULL;
    const int count = holds && span->pos > 0 ? (int)ls_held_count(&p.held, entry, head) : 0;
    const bool keeps = holds && ls_held_keeps(&p.held, span, count);
    float4 s[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++)
        s[i] = span->pos == 0
                   ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                   : __ldcs((const float4 *)(stored + (i / 4 * LS_DELTA_FOLD + 4 * warp + i % 4) * LS_DELTA_COLUMNS));
    ls_held_send(&batch, &p.held, entry, head, 0, min(count, LS_HELD_BATCH));
    const float before = span->pos == 0 ? 1.0f : *stored_scale;
    load_row<IN>(q, p.a.q, row * p.a.q_stride + key * LS_DELTA_KEYS, LS_DELTA_KEYS);
    load_row<IN>(k, p.a.k, row * p.a.k_stride + key * LS_DELTA_KEYS, LS_DELTA_KEYS);
    float v[4], y[4];
    ls_four_load<IN>(p.a.v, row * p.a.v_stride + at, 4, p.vectors, v);
    const ls_delta_step step = ls_delta_step_at<IN>(&p, row, head, before);
    __syncthreads();
    if (threadIdx.x < 64) ls_delta_warp_normalize(threadIdx.x < 32 ? q : k, LS_DELTA_KEYS);
    ls_held_each(&batch, &p.held, entry, head, count, [&](const float *own, const float *shared, float factor) {
        if (factor != 1.0f) rescale(s, factor);
        add_product(s, *(const float4 *)(own + first), shared, warp);
    });
    if (step.rescaled) rescale(s, step.product);
    fold_own(y, s, k, warp);
    fold_warps(y, part[0], warp, first);
#pragma unroll
    for (int j = 0; j < 4; j++) y[j] = ls_fma(-step.beta, y[j], ls_mul(step.w, v[j]));
    add_product(s, make_float4(y[0], y[1], y[2], y[3]), k, warp);
    if (keeps)
        keep_token(&p, entry, head, count, y, k, step.rescaled ? step.product : 1.0f);
    else
#pragma unroll
        for (int i = 0; i < OWN; i++)
            __stcs((float4 *)(stored + (i / 4 * LS_DELTA_FOLD + 4 * warp + i % 4) * LS_DELTA_COLUMNS), s[i]);
    fold_own(y, s, q, warp);
    fold_warps(y, part[1], warp, first);
    if (threadIdx.x == 0) *stored_scale = step.scale;
    if (threadIdx.x == 0 && holds) ls_held_set_count(entry, head, keeps ? count + 1 : 0);
    if (warp != 0) return;
    const float top = ls_mul(step.scale, ls_delta_query_scale(LS_DELTA_KEYS));
#pragma unroll
    for (int j = 0; j < 4; j++) y[j] = ls_mul(top, y[j]);
    if (p.out_dtype == LS_F32)
        ls_four_store<LS_F32>(p.out, row * p.out_stride + at, 4, p.out_stride % 4 == 0 && p.vectors, y);
    else
        ls_four_store<LS_BF16>(p.out, row * p.out_stride + at, 4, p.out_stride % 4 == 0 && p.vectors, y);
}

/* What other kernels read: whole states. */
static ls_status write_held(const ls_exec *exec, const delta_params *p, ls_error *err) {
    const ls_delta_backward_args *a = &p->a;
    const ls_write_held_args args = ls_held_args(&p->held, &p->state, &p->held_pool, a->spans, a->n_spans, a->rows);
    return p->held.total == 0 ? LS_OK : ls_held_write("delta", exec, &args, true, p->fault, err);
}

static ls_status launch(const ls_exec *exec, const delta_params *p, int64_t most, ls_error *err) {
    const ls_delta_backward_args *a = &p->a;
    const bool bf16 = a->in_dtype == LS_BF16;
    const bool token = most == 1 && a->key_dim == LS_DELTA_KEYS && a->value_dim == LS_DELTA_COLUMNS;
    const int64_t threads = token ? TOKEN_THREADS : (a->value_dim <= 64 ? 64 : (a->value_dim + 31) / 32 * 32);
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"k stride", a->k_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"v stride", a->v_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"a stride", a->a_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"b stride", a->b_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"out stride", p->out_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"slot", p->state.n_entries}, {"state stride in bytes", p->state.stride}}}},
        {LS_WIDTH_I64, {{{"slot", p->scale.n_entries}, {"scale stride in bytes", p->scale.stride}}}},
        {LS_WIDTH_I64, {{{"slot", p->held_pool.n_entries}, {"held stride in bytes", p->held_pool.stride}}}}};
    const ls_launch launch = {"delta", {ls_launch_blocks(a->n_spans, a->n_heads, 1), 1, 1},
                              threads, token ? 0 : (a->value_dim + 2) * a->key_dim * 4,
                              index,   (int64_t)(sizeof index / sizeof index[0])};
    bool taken = false;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    if (!token) LS_CUDA_TRY(write_held(exec, p, err));
    if (!token) LS_CUDA_TRY(ls_delta_walk(exec, p, LS_DELTA_FORWARD, &taken, err));
    if (taken) return LS_OK;
    delta_params params = *p;
    if (token)
        return ls_cuda_launch(exec, &launch,
                              bf16 ? (const void *)token_kernel<LS_BF16> : (const void *)token_kernel<LS_F32>, &params,
                              err);
    return ls_cuda_launch(exec, &launch, bf16 ? (const void *)head_kernel<LS_BF16> : (const void *)head_kernel<LS_F32>,
                          &params, err);
}

/* What the gradient's arguments have as well. */
static ls_delta_backward_args shared_args(const ls_delta_args *a) {
    ls_delta_backward_args args = {};
    args.in_dtype = a->in_dtype;
    args.q = a->q;
    args.k = a->k;
    args.v = a->v;
    args.a = a->a;
    args.b = a->b;
    args.q_stride = a->q_stride;
    args.k_stride = a->k_stride;
    args.v_stride = a->v_stride;
    args.a_stride = a->a_stride;
    args.b_stride = a->b_stride;
    args.rate = a->rate;
    args.dt_bias = a->dt_bias;
    args.rows = a->rows;
    args.n_heads = a->n_heads;
    args.n_key_heads = a->n_key_heads;
    args.key_dim = a->key_dim;
    args.value_dim = a->value_dim;
    args.spans = a->spans;
    args.n_spans = a->n_spans;
    return args;
}

ls_status ls_cuda_delta(const ls_exec *exec, const ls_delta_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->in_dtype), most = ls_spans_most(a->span_rows_max, a->rows);
    const ls_cuda_operand operands[] = {{"q", a->q, elem, false},
                                        {"k", a->k, elem, false},
                                        {"v", a->v, elem, false},
                                        {"a", a->a, elem, false},
                                        {"b", a->b, elem, false},
                                        {"out", a->out, ls_dtype_bytes(a->out_dtype), false},
                                        {"rate", a->rate, 4, false},
                                        {"dt_bias", a->dt_bias, 4, false},
                                        {"state", a->state.base, 16, a->state.n_entries == 0},
                                        {"scale", a->scale.base, 4, a->scale.n_entries == 0},
                                        {"held", a->held.base, 16, a->state_every < 2 || a->held.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    delta_params p = {};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("delta", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_delta_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    p.a = shared_args(a);
    p.state = a->state;
    p.scale = a->scale;
    p.held_pool = a->held;
    p.held = ls_delta_held(a);
    p.out = a->out;
    p.out_dtype = a->out_dtype;
    p.out_stride = a->out_stride;
    p.group = a->n_heads / a->n_key_heads;
    p.vectors = ls_eight_fits(a->q, a->q_stride, elem) && ls_eight_fits(a->k, a->k_stride, elem) &&
                ls_eight_fits(a->v, a->v_stride, elem) && ls_four_fits(a->out, a->out_dtype);
    LS_CUDA_TRY(ls_cuda_fault_begin("delta", exec, &fault, err));
    ls_span_check check = ls_span_check_of(a, most, a->state.n_entries, fault);
    p.fault = fault;
    LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("delta", exec, err)
                                 : ls_cuda_check_spans("delta", exec, &check, err));
    return launch(exec, &p, most, err);
}
