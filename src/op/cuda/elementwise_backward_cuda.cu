/* Gradients of the elementwise ops on the GPU.
 *
 * embed_backward: there is no room for lists of the rows of a token, so blocks find them in the tokens, which lie in
 * the cache. A block belongs to a row and a piece of its columns. It looks at the tokens before its own: if one is the
 * same, another block has the sum. Else it goes on from its row in ascending order and adds the rows of its token to
 * sums in registers: one chain a column, whatever the blocks. R rows cost about R * R / 2 comparisons for each piece,
 * those of frequent tokens, found early, fewer. */
#include "num/expf.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/elementwise_backward.h"

/* ---- swiglu_backward ---- */

/* Both gradients of four elements, to float32 or to bf16. */
template <int OUT, typename ARGS>
static __device__ __forceinline__ void gate_four(const ARGS *a, int64_t i, int64_t n, bool whole) {
    float gate[4], up[4], dy[4], dup[4];
    ls_four_load<LS_F32>(a->gate, i, n, whole, gate);
    ls_four_load<LS_F32>(a->up, i, n, whole, up);
    ls_four_load<LS_F32>(a->dy, i, n, whole, dy);
    for (int j = 0; j < 4; j++) {
        const float s = ls_sigmoid(gate[j]), l = ls_silu(gate[j]);
        dup[j] = ls_mul(dy[j], l);
        gate[j] = ls_mul(ls_mul(dy[j], up[j]), ls_fma(l, ls_sub(1.0f, s), s));
    }
    ls_four_store<OUT>(a->dgate, i, n, whole, gate);
    ls_four_store<OUT>(a->dup, i, n, whole, dup);
}

static __device__ __forceinline__ void ls_flat_four(const ls_swiglu_backward_args *a, int64_t i, int64_t n,
                                                    bool whole) {
    gate_four<LS_F32>(a, i, n, whole);
}

static __device__ __forceinline__ void ls_flat_four(const ls_swiglu_backward_rounded_args *a, int64_t i, int64_t n,
                                                    bool whole) {
    gate_four<LS_BF16>(a, i, n, whole);
}

template <int OUT, typename ARGS>
static ls_status run_gate(const char *op, const ls_exec *exec, const ARGS *a, ls_error *err) {
    const int64_t n = ls_launch_blocks(a->rows, a->dim, 1), out_bytes = OUT == LS_F32 ? 4 : 2;
    const ls_cuda_operand operands[] = {{"gate", a->gate, 4, n == 0},
                                        {"up", a->up, 4, n == 0},
                                        {"dy", a->dy, 4, n == 0},
                                        {"dgate", a->dgate, out_bytes, n == 0},
                                        {"dup", a->dup, out_bytes, n == 0}};
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 5, LS_WORKSPACE_HEAD, err));
    if (n == 0) return LS_OK;
    const ls_dtype out = OUT == LS_F32 ? LS_F32 : LS_BF16;
    const bool vector = ls_four_fits(a->gate, LS_F32) && ls_four_fits(a->up, LS_F32) && ls_four_fits(a->dy, LS_F32) &&
                        ls_four_fits(a->dgate, out) && ls_four_fits(a->dup, out);
    return ls_flat_run(op, exec, a, n, vector, err);
}

ls_status ls_cuda_swiglu_backward(const ls_exec *exec, const ls_swiglu_backward_args *a, ls_error *err) {
    return run_gate<LS_F32>("swiglu_backward", exec, a, err);
}

ls_status ls_cuda_swiglu_backward_rounded(const ls_exec *exec, const ls_swiglu_backward_rounded_args *a,
                                          ls_error *err) {
    return run_gate<LS_BF16>("swiglu_backward_rounded", exec, a, err);
}

/* ---- relu2_backward ---- */

template <int OUT>
struct relu2_call {
    ls_relu2_backward_args a;
};

template <int OUT>
static __device__ __forceinline__ void ls_flat_four(const relu2_call<OUT> *call, int64_t i, int64_t n, bool whole) {
    float x[4], dy[4];
    ls_four_load<LS_F32>(call->a.x, i, n, whole, x);
    ls_four_load<LS_F32>(call->a.dy, i, n, whole, dy);
    for (int j = 0; j < 4; j++) {
        const float m = x[j] <= 0.0f ? 0.0f : x[j];
        dy[j] = ls_mul(dy[j], ls_add(m, m));
    }
    ls_four_store<OUT>(call->a.dx, i, n, whole, dy);
}

ls_status ls_cuda_relu2_backward(const ls_exec *exec, const ls_relu2_backward_args *a, ls_error *err) {
    const int64_t n = ls_launch_blocks(a->rows, a->dim, 1);
    const ls_cuda_operand operands[] = {
        {"x", a->x, 4, n == 0}, {"dy", a->dy, 4, n == 0}, {"dx", a->dx, ls_dtype_bytes(a->dx_dtype), n == 0}};
    LS_CUDA_TRY(ls_cuda_check("relu2_backward", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (n == 0) return LS_OK;
    const bool vector = ls_four_fits(a->x, LS_F32) && ls_four_fits(a->dy, LS_F32) && ls_four_fits(a->dx, a->dx_dtype);
    const relu2_call<LS_F32> wide = {*a};
    const relu2_call<LS_BF16> rounded = {*a};
    return a->dx_dtype == LS_F32 ? ls_flat_run("relu2_backward", exec, &wide, n, vector, err)
                                 : ls_flat_run("relu2_backward", exec, &rounded, n, vector, err);
}

/* ---- embed_backward ---- */

#define THREADS 256
#define COLUMNS (4 * THREADS)   /* of a piece */
#define SPANS 4                 /* tokens of a thread in a round, THREADS apart */
#define ROUND (SPANS * THREADS) /* tokens that a block looks at at once */
#define WORDS (ROUND / 32)
#define BATCH 8 /* rows on their way at once */

typedef struct embed_params {
    ls_embed_backward_args a;
    int64_t pieces;
    bool vector;
    const ls_fault *fault;
} embed_params;

/* Whether the token occurs before row `end`; the same in all threads. */
static __device__ bool occurs_before(const int32_t *tokens, int64_t end, int32_t token) {
    for (int64_t base = 0; base < end; base += ROUND) {
        bool found = false;
#pragma unroll
        for (int s = 0; s < SPANS; s++) {
            const int64_t row = base + s * THREADS + threadIdx.x;
            found = (row < end && tokens[row] == token) || found;
        }
        if (__syncthreads_or(found)) return true;
    }
    return false;
}

/* Rows base + list[0 .. count) are those of the token among base .. base + ROUND, ascending; count is returned in all
 * threads. words[w] has a bit for each of the rows from base + 32 w on; two rounds that follow one another are given
 * different words, and the list is free once all threads are in the next round. */
static __device__ int list_rows(const int32_t *tokens, int64_t rows, int32_t token, int64_t base, uint32_t *words,
                                int32_t *list) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint32_t mine[SPANS];
#pragma unroll
    for (int s = 0; s < SPANS; s++) {
        const int64_t row = base + s * THREADS + threadIdx.x;
        mine[s] = __ballot_sync(LS_ALL_LANES, row < rows && tokens[row] == token);
        if (lane == 0) words[s * (THREADS / 32) + warp] = mine[s];
    }
    __syncthreads();
    /* A lane a word: how many rows are in it and in the words before it. */
    const int own = __popc(words[lane]);
    int sum = own;
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(LS_ALL_LANES, sum, step);
        if (lane >= step) sum += before;
    }
    const int count = __shfl_sync(LS_ALL_LANES, sum, WORDS - 1);
    if (count == 0) return 0;
#pragma unroll
    for (int s = 0; s < SPANS; s++) {
        const int first = __shfl_sync(LS_ALL_LANES, sum - own, s * (THREADS / 32) + warp);
        if ((mine[s] >> lane & 1u) != 0)
            list[first + __popc(mine[s] & ((1u << lane) - 1u))] = s * THREADS + (int)threadIdx.x;
    }
    __syncthreads();
    return count;
}

/* sum += dy of the listed rows, in their order; n columns from c on are there. */
static __device__ __forceinline__ void add_rows(const embed_params *p, int64_t base, const int32_t *list, int count,
                                                int64_t c, int64_t n, float sum[4]) {
    for (int i = 0; i < count; i += BATCH) {
        float dy[BATCH][4];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (i + b < count)
                ls_four_load<LS_F32>(p->a.dy, (base + list[i + b]) * p->a.dy_stride + c, n, p->vector, dy[b]);
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (i + b < count)
                for (int j = 0; j < 4; j++) sum[j] = ls_add(sum[j], dy[b][j]);
    }
}

static __global__ void __launch_bounds__(THREADS) embed_kernel(const __grid_constant__ embed_params p) {
    ls_cuda_begin();
    __shared__ uint32_t words[2][WORDS];
    __shared__ int32_t list[ROUND];
    const int64_t row = blockIdx.x / p.pieces, c = blockIdx.x % p.pieces * COLUMNS + 4 * threadIdx.x;
    const int64_t n = p.a.dim - c; /* not positive where the thread has no columns */
    float sum[4] = {0, 0, 0, 0};
    int turn = 0;
    if (p.fault->code != LS_FAULT_NONE) return;
    const int32_t token = p.a.tokens[row];
    if (token == p.a.pad || occurs_before(p.a.tokens, row, token)) return;
    if (n > 0) ls_four_load<LS_F32>(p.a.dtable, token * p.a.dim + c, n, p.vector, sum);
    for (int64_t base = row; base < p.a.rows; base += ROUND, turn ^= 1) {
        const int count = list_rows(p.a.tokens, p.a.rows, token, base, words[turn], list);
        if (n > 0) add_rows(&p, base, list, count, c, n, sum);
    }
    if (n > 0) ls_four_store<LS_F32>(p.a.dtable, token * p.a.dim + c, n, p.vector, sum);
}

ls_status ls_cuda_embed_backward(const ls_exec *exec, const ls_embed_backward_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {
        {"tokens", a->tokens, 4, a->rows == 0}, {"dy", a->dy, 4, a->rows == 0}, {"dtable", a->dtable, 4, a->rows == 0}};
    LS_CUDA_TRY(ls_cuda_check("embed_backward", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    embed_params p = {
        *a, (a->dim - 1) / COLUMNS + 1,
        a->dim % 4 == 0 && a->dy_stride % 4 == 0 && ls_four_fits(a->dy, LS_F32) && ls_four_fits(a->dtable, LS_F32),
        NULL};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"dy stride", a->dy_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"token", a->vocab}, {"dim", a->dim}, {"element", 4}}}}};
    const ls_launch launch = {"embed_backward", {ls_launch_blocks(a->rows, p.pieces, 1), 1, 1}, THREADS, 0, index, 2};
    ls_fault *fault;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("embed_backward", exec, &fault, err));
    ls_index_check<int32_t> check = {a->tokens, a->rows, a->vocab, LS_FAULT_TOKEN, fault};
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_index("embed_backward", exec, &check, err));
    return ls_cuda_launch(exec, &launch, (const void *)embed_kernel, &p, err);
}
