/* What the kernels of delta and of its gradient share. */
#ifndef LS_OP_CUDA_DELTA_CUDA_H
#define LS_OP_CUDA_DELTA_CUDA_H

#include "num/expf.h"
#include "op/cuda/chains_cuda.h"
#include "op/cuda/check_cuda.h"
#include "op/delta.h"
#include "op/delta_math.h"

/* Rows of a key and columns that kernels for models know at compile time. */
#define LS_DELTA_KEYS 128
#define LS_DELTA_COLUMNS 128

/* What a walk through time does: the op; its gradient's walk forwards, which keeps states and d; its walk backwards. */
enum { LS_DELTA_FORWARD, LS_DELTA_KEEP, LS_DELTA_BACK };

/* Both directions: `a` has what they share, and dout and what follows of the gradient only. */
typedef struct delta_params {
    ls_delta_backward_args a;
    ls_delta_backward_plan plan;
    float *work;
    ls_pool_view state, scale, held_pool; /* of the op alone, as held and out */
    ls_held held;
    void *out;
    ls_dtype out_dtype;
    int64_t out_stride;
    int64_t group; /* value heads of a key head */
    bool vectors;  /* eight neighbouring elements of every matrix are one load, or two */
    const ls_fault *fault;
} delta_params;

/* On a device of sm_90: a walk of heads that models have; `taken` is whether these are. */
ls_status ls_delta_walk(const ls_exec *exec, const delta_params *p, int mode, bool *taken, ls_error *err);
/* Likewise: dq', dk' and E of all pieces. most: rows that a span has at most. */
ls_status ls_delta_pieces_back(const ls_exec *exec, const delta_params *p, int64_t most, bool *taken, ls_error *err);

/* A head's number of a row in a part of the workspace, and its vector; its matrix of a piece. */
static __device__ __forceinline__ float *ls_delta_number(const delta_params *p, int64_t part, int64_t row,
                                                         int64_t head) {
    return p->work + part + row * p->a.n_heads + head;
}
static __device__ __forceinline__ float *ls_delta_vector(const delta_params *p, int64_t part, int64_t row,
                                                         int64_t head) {
    return p->work + part + (row * p->a.n_heads + head) * p->a.value_dim;
}
static __device__ __forceinline__ float *ls_delta_matrix(const delta_params *p, int64_t part, int64_t entry,
                                                         int64_t head) {
    return p->work + part + (entry * p->a.n_heads + head) * p->a.key_dim * p->a.value_dim;
}
/* Where a head's state of a span lies in a tensor of them. */
static __device__ __forceinline__ int64_t ls_delta_state_at(const delta_params *p, int64_t span_i, int64_t head) {
    return (span_i * p->a.n_heads + head) * p->a.key_dim * p->a.value_dim;
}
/* A before the first token of a span, in the gradient. */
static __device__ __forceinline__ float ls_delta_first_scale(const delta_params *p, int64_t span_i, int64_t head) {
    return p->a.initial_scale != NULL ? p->a.initial_scale[span_i * p->a.n_heads + head] : 1.0f;
}
/* T after the last token of a span. */
static __device__ __forceinline__ float *ls_delta_last(const delta_params *p, int64_t span_i, int64_t head) {
    return p->work + p->plan.last + (span_i * p->a.n_heads + head) * p->a.value_dim;
}
/* T of a piece's first token. */
static __device__ __forceinline__ float *ls_delta_border(const delta_params *p, int64_t entry, int64_t head) {
    return p->work + p->plan.borders + (entry * p->a.n_heads + head) * p->a.value_dim;
}
/* Normalised rows of a key head. */
static __device__ __forceinline__ float *ls_delta_row(const delta_params *p, int64_t part, int64_t row, int64_t key) {
    return p->work + part + (row * p->a.n_key_heads + key) * p->a.key_dim;
}

/* 16 chains, by neighbours. */
static __device__ __forceinline__ float ls_delta_join(const float c[LS_DELTA_FOLD]) {
    float pair[LS_DELTA_FOLD / 2];
#pragma unroll
    for (int i = 0; i < LS_DELTA_FOLD / 2; i++) pair[i] = ls_add(c[2 * i], c[2 * i + 1]);
    return ls_add(ls_add(ls_add(pair[0], pair[1]), ls_add(pair[2], pair[3])),
                  ls_add(ls_add(pair[4], pair[5]), ls_add(pair[6], pair[7])));
}

/* The sixteen-chain fold over i of x[i] * s[i * step]. */
static __device__ __forceinline__ float ls_delta_fold_rows(const float *x, const float *s, int64_t step, int64_t keys) {
    float chain[LS_DELTA_FOLD];
#pragma unroll
    for (int c = 0; c < LS_DELTA_FOLD; c++) chain[c] = 0.0f;
    for (int64_t base = 0; base < keys; base += LS_DELTA_FOLD)
#pragma unroll
        for (int c = 0; c < LS_DELTA_FOLD; c++)
            if (base + c < keys) chain[c] = ls_fma(x[base + c], s[(base + c) * step], chain[c]);
    return ls_delta_join(chain);
}

/* Normalises a row in place; all lanes of a warp call it. Returns l. */
static __device__ __forceinline__ float ls_delta_warp_normalize(float *x, int64_t n) {
    const int64_t first = threadIdx.x % 32 * 8;
    float run[8];
#pragma unroll
    for (int i = 0; i < 8; i++) run[i] = first + i < n ? x[first + i] : 0.0f;
    const float l = ls_delta_norm_of(ls_runs_sum<32>(run, run, n - first));
    __syncwarp();
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) x[i] = ls_mul(x[i], l);
    __syncwarp();
    return l;
}

/* Scalars of a row's head. */
template <int IN>
static __device__ __forceinline__ ls_delta_step ls_delta_step_at(const delta_params *p, int64_t row, int64_t head,
                                                                 float scale) {
    return ls_delta_step_of(scale, ls_load_one<IN>(p->a.a, row * p->a.a_stride + head), p->a.dt_bias[head],
                            p->a.rate[head], ls_load_one<IN>(p->a.b, row * p->a.b_stride + head));
}

#endif
