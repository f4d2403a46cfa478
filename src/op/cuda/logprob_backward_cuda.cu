/* Gradient of the log-probability on the GPU: elementwise, a block a piece of a row, vectors where the row's logits and
 * gradients lie alike in memory. */
#include "dev/device.h"
#include "num/expf.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"
#include "op/logprob.h"

#define THREADS 256
#define VECTORS 4                     /* of a thread */
#define PIECE (8 * THREADS * VECTORS) /* columns of a block */

typedef struct backward_params {
    ls_logprob_backward_args a;
    int64_t pieces; /* of a row */
    const ls_fault *fault;
} backward_params;

/* What all columns of a row share. */
typedef struct row_terms {
    float lse, entropy, base, d_entropy, d_target, inv_t;
    int64_t target;
} row_terms;

static __device__ __forceinline__ row_terms terms_of(const ls_logprob_backward_args *a, int64_t row) {
    row_terms t;
    t.target = a->targets[row];
    t.lse = a->lse[row];
    t.d_target = a->d_logprob != NULL ? a->d_logprob[row] : 0.0f;
    t.base = ls_sub(a->d_lse != NULL ? a->d_lse[row] : 0.0f, t.d_target);
    t.d_entropy = a->d_entropy != NULL ? a->d_entropy[row] : 0.0f;
    t.entropy = a->d_entropy != NULL ? a->entropy[row] : 0.0f;
    t.inv_t = a->temperature != NULL ? ls_div(1.0f, a->temperature[row]) : 1.0f;
    return t;
}

/* No column's gradient can be NaN: all factors are finite and far from overflow. */
static __device__ __forceinline__ bool tame(const row_terms *t) {
    return fabsf(t->base) < 0x1p60f && fabsf(t->d_target) < 0x1p60f && fabsf(t->d_entropy) < 0x1p60f &&
           fabsf(t->entropy) < 0x1p20f && t->inv_t < 0x1p60f && t->lse > -0x1p22f;
}

/* Of a column that is the target or not. */
template <bool ENTROPY>
static __device__ __forceinline__ float gradient(const row_terms *t, float logit, bool target, bool scaled) {
    const float z = scaled ? ls_mul(logit, t->inv_t) : logit;
    const float from_lse = ls_sub(z, t->lse);
    const float x = ls_max(from_lse, -87.0f);
    const float r = ls_fma(x, LS_LOG2E, LS_ROUND_MAGIC);
    const float f = ls_fma(x, LS_LOG2E, -ls_sub(r, LS_ROUND_MAGIC));
    const float term = ls_exp2_scale(ls_exp2_poly(f), r);
    const float p = from_lse < -87.0f ? 0.0f : term;
    const float w = ENTROPY ? ls_fma(-t->d_entropy, ls_add(x, t->entropy), t->base) : t->base;
    float g = ls_mul(p, w);
    if (target) g = ls_add(g, t->d_target);
    return scaled ? ls_mul(g, t->inv_t) : g;
}

/* One rounding of a pair without NaN: the hardware's NaN is not ours. */
template <int DTYPE>
static __device__ __forceinline__ uint32_t narrow_pair(float low, float high) {
    uint32_t pair;
    if (DTYPE == LS_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <int DTYPE>
static __device__ __forceinline__ void store_vec8(void *address, const float g[8]) {
    uint4 word;
    if (DTYPE == LS_F32) {
        for (int w = 0; w < 2; w++) {
            word = make_uint4(__float_as_uint(g[4 * w]), __float_as_uint(g[4 * w + 1]), __float_as_uint(g[4 * w + 2]),
                              __float_as_uint(g[4 * w + 3]));
            __stcs((uint4 *)address + w, word);
        }
        return;
    }
    word = make_uint4(narrow_pair<DTYPE>(g[0], g[1]), narrow_pair<DTYPE>(g[2], g[3]), narrow_pair<DTYPE>(g[4], g[5]),
                      narrow_pair<DTYPE>(g[6], g[7]));
    __stcs((uint4 *)address, word);
}

template <int DTYPE, bool ENTROPY>
static __global__ void __launch_bounds__(THREADS) backward_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    const ls_logprob_backward_args *a = &p.a;
    const int64_t elem = DTYPE == LS_F32 ? 4 : 2, row = blockIdx.x / p.pieces, from = blockIdx.x % p.pieces * PIECE;
    const int64_t to = from + PIECE < a->vocab ? from + PIECE : a->vocab;
    const char *logits = (const char *)a->logits + row * a->row_stride * elem;
    char *out = (char *)a->d_logits + row * a->d_stride * elem;
    if (p.fault->code != LS_FAULT_NONE) return;
    const bool kept = ls_logprob_keeps(a->targets, a->ignore_index, a->mask, row), scaled = a->temperature != NULL;
    const float lse = kept ? a->lse[row] : 0.0f;
    if (!kept || lse != lse) {
        for (int64_t c = from + threadIdx.x; c < to; c += THREADS)
            ls_store_one<DTYPE>(out, c, kept ? __uint_as_float(LS_NAN_BITS) : 0.0f);
        return;
    }
    const row_terms t = terms_of(a, row);
    /* Vectors from the first column with an aligned address on, where the two rows lie alike and no product can be NaN.
     */
    const bool vectors = (uint64_t)logits % 16 == (uint64_t)out % 16 && tame(&t);
    const int64_t skew = (int64_t)((16 - (uint64_t)(logits + from * elem) % 16) % 16) / elem;
    const int64_t head = !vectors || from + skew > to ? to : from + skew, n = (to - head) / 8, tail = head + 8 * n;
    ls_vec8<DTYPE> v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int64_t at = threadIdx.x + (int64_t)i * THREADS;
        if (at < n) v[i] = ls_vec8_load<DTYPE>(logits + (head + 8 * at) * elem);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int64_t column = head + 8 * (threadIdx.x + (int64_t)i * THREADS);
        float g[8];
        if (column >= tail) break;
#pragma unroll
        for (int j = 0; j < 8; j++) g[j] = gradient<ENTROPY>(&t, ls_vec8_get<DTYPE>(v[i], j), false, scaled);
        if (t.target >= column && t.target < column + 8) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (t.target == column + j) g[j] = gradient<ENTROPY>(&t, ls_vec8_get<DTYPE>(v[i], j), true, scaled);
        }
        store_vec8<DTYPE>(out + column * elem, g);
    }
    for (int64_t c = from + threadIdx.x; c < head; c += THREADS)
        ls_store_one<DTYPE>(out, c, gradient<ENTROPY>(&t, ls_load_one<DTYPE>(logits, c), c == t.target, scaled));
    for (int64_t c = tail + threadIdx.x; c < to; c += THREADS)
        ls_store_one<DTYPE>(out, c, gradient<ENTROPY>(&t, ls_load_one<DTYPE>(logits, c), c == t.target, scaled));
}

/* Eight columns' logits of the row, of which those before `end` are there. */
static __device__ __forceinline__ void load8(const float *from, int64_t column, int64_t end, bool vectors, float x[8]) {
    if (vectors) {
        const ls_vec8<LS_F32> v = ls_vec8_load<LS_F32>(from + column);
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = ls_vec8_get<LS_F32>(v, j);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = column + j < end ? from[column + j] : 0.0f;
}

/* The same with gradients in bf16, which may come where the logits are: a block takes a row, and a piece of it is read
 * whole before its gradients are written. Those lie before what later pieces read. */
template <bool ENTROPY>
static __global__ void __launch_bounds__(THREADS) rounded_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    const ls_logprob_backward_args *a = &p.a;
    const int64_t row = blockIdx.x;
    const float *logits = (const float *)a->logits + row * a->row_stride;
    uint16_t *out = (uint16_t *)a->d_logits + row * a->d_stride;
    if (p.fault->code != LS_FAULT_NONE) return;
    const bool kept = ls_logprob_keeps(a->targets, a->ignore_index, a->mask, row), scaled = a->temperature != NULL;
    const float lse = kept ? a->lse[row] : 0.0f;
    if (!kept || lse != lse) {
        for (int64_t c = threadIdx.x; c < a->vocab; c += THREADS)
            ls_store_one<LS_BF16>(out, c, kept ? __uint_as_float(LS_NAN_BITS) : 0.0f);
        return;
    }
    const row_terms t = terms_of(a, row);
    const bool vectors = (uint64_t)logits % 16 == 0 && (uint64_t)out % 16 == 0 && tame(&t);
    for (int64_t from = 0; from < a->vocab; from += PIECE) {
        float g[VECTORS][8];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int64_t column = from + 8 * (threadIdx.x + (int64_t)i * THREADS);
            if (column < a->vocab) load8(logits, column, a->vocab, vectors && column + 8 <= a->vocab, g[i]);
        }
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int64_t column = from + 8 * (threadIdx.x + (int64_t)i * THREADS);
            const bool has_target = t.target >= column && t.target < column + 8;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const bool target = has_target && t.target == column + j;
                g[i][j] = gradient<ENTROPY>(&t, g[i][j], target, scaled);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int64_t column = from + 8 * (threadIdx.x + (int64_t)i * THREADS);
            if (vectors && column + 8 <= a->vocab) {
                store_vec8<LS_BF16>(out + column, g[i]);
                continue;
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (column + j < a->vocab) ls_store_one<LS_BF16>(out, column + j, g[i][j]);
        }
    }
}

template <int DTYPE>
static const void *kernel_of(bool entropy) {
    return entropy ? (const void *)backward_kernel<DTYPE, true> : (const void *)backward_kernel<DTYPE, false>;
}

ls_status ls_cuda_logprob_backward(const ls_exec *exec, const ls_logprob_backward_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype), d_elem = a->d_bf16 ? 2 : elem;
    const ls_cuda_operand operands[] = {{"logits", a->logits, elem, false},
                                        {"targets", a->targets, 8, false},
                                        {"mask", a->mask, 1, true},
                                        {"temperature", a->temperature, 4, true},
                                        {"lse", a->lse, 4, false},
                                        {"entropy", a->entropy, 4, true},
                                        {"d_logprob", a->d_logprob, 4, true},
                                        {"d_lse", a->d_lse, 4, true},
                                        {"d_entropy", a->d_entropy, 4, true},
                                        {"d_logits", a->d_logits, d_elem, false}};
    const void *kernel;
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("logprob_backward", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_logprob_backward_workspace(a), err));
    if (a->rows == 0) return LS_OK;
    backward_params p = {*a, (a->vocab + PIECE - 1) / PIECE, NULL};
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"row stride", a->row_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"gradient's row stride", a->d_stride}, {"element", d_elem}}}}};
    const int64_t pieces = a->d_bf16 ? 1 : p.pieces;
    const ls_launch launch = {"logprob_backward", {ls_launch_blocks(a->rows, pieces, 1), 1, 1}, THREADS, 0, index, 2};
    kernel = a->d_bf16 ? a->d_entropy != NULL ? (const void *)rounded_kernel<true> : (const void *)rounded_kernel<false>
             : a->dtype == LS_F32  ? kernel_of<LS_F32>(a->d_entropy != NULL)
             : a->dtype == LS_BF16 ? kernel_of<LS_BF16>(a->d_entropy != NULL)
                                   : kernel_of<LS_F16>(a->d_entropy != NULL);
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("logprob_backward", exec, &fault, err));
    ls_row_check check = ls_row_check_of(a, a->temperature, a->vocab, fault);
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_rows("logprob_backward", exec, &check, err));
    return ls_cuda_launch(exec, &launch, kernel, &p, err);
}
