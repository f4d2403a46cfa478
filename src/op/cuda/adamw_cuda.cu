/* The optimizer on the GPU: adamw is elementwise, 28 bytes an element, 20 with moments in bf16; squares takes a block
 * of threads for each block of the tensor. */
#include "op/adamw.h"
#include "op/adamw_math.h"
#include "op/cuda/chains_cuda.h"
#include "op/cuda/cuda_ops.h"

/* ---- adamw ---- */

/* A tensor's value. */
typedef struct adamw_target {
    void *value;
    ls_dtype dtype;
} adamw_target;

static __device__ __forceinline__ void store_value(const adamw_target *to, int64_t i, int64_t n, bool whole,
                                                   const float w[4]) {
    if (to->dtype == LS_BF16)
        ls_four_store<LS_BF16>(to->value, i, n, whole, w);
    else if (to->dtype == LS_F16)
        ls_four_store<LS_F16>(to->value, i, n, whole, w);
    else
        ls_four_store<LS_F32>(to->value, i, n, whole, w);
}

static __device__ __forceinline__ ls_philox draw_at(const ls_adamw_rounding *r, int64_t draw) {
    return ls_philox_draw(r->seed, (uint32_t)draw, (uint32_t)(draw >> 32), (uint32_t)r->step,
                          ls_moment_counter(r->step));
}

/* The random words of elements i .. i + 3 of the call: of one draw, or where numbers do not begin with it, of two. */
static __device__ __forceinline__ void draw_words(const ls_adamw_rounding *r, int64_t i, uint32_t word[4]) {
    const int64_t element = r->first + i;
    const int skip = (int)(element % 4);
    const ls_philox x = draw_at(r, element / 4), next = skip == 0 ? x : draw_at(r, element / 4 + 1);
    const uint4 a = make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
    const uint4 b = make_uint4(next.word[0], next.word[1], next.word[2], next.word[3]);
    for (int j = 0; j < 4; j++) word[j] = j + skip < 4 ? ls_word_of(a, j + skip) : ls_word_of(b, j + skip - 4);
}

/* A call whose moments have a type that the compiler knows. */
template <int MOMENTS>
struct adamw_call {
    ls_adamw_args a;
};

/* Values of elements from..end of the four at i of the call, which are the part's. */
static __device__ __forceinline__ void store_part(const adamw_target *to, int64_t begin, int64_t i, int from, int end,
                                                  const float w[4]) {
    const int64_t size = to->dtype == LS_F32 ? 4 : 2;
    if (to->value == NULL) return;
    if (end - from == 4) {
        const bool whole = (uint64_t)((char *)to->value + (i - begin) * size) % (4 * size) == 0;
        store_value(to, i - begin, 4, whole, w);
        return;
    }
    for (int j = 0; j < 4; j++)
        if (j >= from && j < end) store_value(to, i + j - begin, 1, false, w + j);
}

template <int MOMENTS>
static __device__ __forceinline__ void ls_flat_four(const adamw_call<MOMENTS> *call, int64_t i, int64_t n, bool whole) {
    const ls_adamw_args *a = &call->a;
    const ls_adamw_factors f = a->factors;
    float w[4], m[4], v[4], grad[4], decay[4];
    ls_four_load<LS_F32>(a->w, i, n, whole, w);
    ls_four_load<MOMENTS>(a->m, i, n, whole, m);
    ls_four_load<MOMENTS>(a->v, i, n, whole, v);
    ls_four_load<LS_F32>(a->grad, i, n, whole, grad);
    /* Four elements may be of several parts. */
    int64_t first = 0;
    const int there = n < 4 ? (int)n : 4;
    for (int j = 0; j < 4; j++) decay[j] = f.decay;
    if (a->parts != NULL) {
        first = ls_adamw_part_of(a, i);
        int64_t part = first;
        for (int j = 0; j < 4; j++) {
            if (j < there && part + 1 < a->n_parts && a->parts[part + 1].begin <= i + j) part++;
            if (!a->parts[part].decays) decay[j] = 0.0f;
        }
    }
    for (int j = 0; j < 4; j++) {
        const float g = ls_mul(grad[j], a->scale);
        m[j] = ls_fma(f.beta1, m[j], ls_mul(f.rest1, g));
        v[j] = ls_fma(f.beta2, v[j], ls_mul(ls_mul(f.rest2, g), g));
        const float d = ls_div(ls_mul(m[j], f.debias1), ls_fma(ls_sqrt(v[j]), f.debias2, f.eps));
        w[j] = ls_fma(-f.lr, ls_fma(decay[j], w[j], d), w[j]);
    }
    if (MOMENTS == LS_BF16) {
        uint32_t word[4];
        draw_words(&a->rounding, i, word);
        for (int j = 0; j < 4; j++) {
            m[j] = ls_moment_round(m[j], word[j] & 0xFFFFu);
            v[j] = ls_moment_round(v[j], word[j] >> 16);
        }
    }
    ls_four_store<LS_F32>(a->w, i, n, whole, w);
    ls_four_store<MOMENTS>(a->m, i, n, whole, m);
    ls_four_store<MOMENTS>(a->v, i, n, whole, v);
    if (a->parts == NULL) {
        const adamw_target to = {a->value, a->value_dtype};
        if (a->value != NULL) store_value(&to, i, n, whole, w);
        return;
    }
    for (int from = 0, end; from < there; from = end, first++) {
        const ls_adamw_part *part = &a->parts[first];
        const int64_t left = first + 1 < a->n_parts ? part[1].begin - i : n;
        const adamw_target to = {part->value, part->value_dtype};
        end = left < there ? (int)left : there;
        store_part(&to, part->begin, i, from, end, w);
    }
}

template <int MOMENTS>
static ls_status run_adamw(const ls_exec *exec, const ls_adamw_args *a, ls_error *err) {
    const adamw_call<MOMENTS> call = {*a};
    const bool vector = ls_four_fits(a->w, LS_F32) && ls_four_fits(a->m, (ls_dtype)MOMENTS) &&
                        ls_four_fits(a->v, (ls_dtype)MOMENTS) && ls_four_fits(a->grad, LS_F32) &&
                        (a->value == NULL || ls_four_fits(a->value, a->value_dtype));
    return ls_flat_run("adamw", exec, &call, a->n, vector, err);
}

ls_status ls_cuda_adamw(const ls_exec *exec, const ls_adamw_args *a, ls_error *err) {
    const int64_t moment = ls_dtype_bytes(a->moments);
    const ls_cuda_operand operands[] = {{"w", a->w, 4, a->n == 0},
                                        {"m", a->m, moment, a->n == 0},
                                        {"v", a->v, moment, a->n == 0},
                                        {"grad", a->grad, 4, a->n == 0},
                                        {"value", a->value, ls_dtype_bytes(a->value_dtype), true},
                                        {"parts", a->parts, 8, true}};
    LS_CUDA_TRY(ls_cuda_check("adamw", exec, operands, 6, LS_WORKSPACE_HEAD, err));
    if (a->n == 0) return LS_OK;
    return a->moments == LS_BF16 ? run_adamw<LS_BF16>(exec, a, err) : run_adamw<LS_F32>(exec, a, err);
}

/* ---- squares ---- */

#define AT_ONCE 16 /* loads of a thread on their way */

typedef struct squares_params {
    ls_squares_args a;
    bool vector;
} squares_params;

static __global__ void __launch_bounds__(LS_CHAIN_THREADS) squares_kernel(const __grid_constant__ squares_params p) {
    ls_cuda_begin();
    __shared__ float runs[LS_CHAIN_RUNS];
    const ls_squares_range *range = p.a.ranges != NULL ? &p.a.ranges[blockIdx.x] : NULL;
    const int64_t first = range != NULL ? range->begin : (int64_t)blockIdx.x * LS_SQUARES_BLOCK;
    const int64_t left = range != NULL ? range->n : p.a.n - first;
    const int64_t last = first + (left < LS_SQUARES_BLOCK ? left : LS_SQUARES_BLOCK);
    const bool vector = p.vector && first % 4 == 0;
    float chain[4] = {0, 0, 0, 0};
    int64_t i = first + 4 * threadIdx.x;
    for (; vector && i + (AT_ONCE - 1) * LS_CHAIN_STEP + 4 <= last; i += AT_ONCE * LS_CHAIN_STEP) {
        float x[AT_ONCE][4];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) ls_four_load<LS_F32>(p.a.x, i + j * LS_CHAIN_STEP, 4, true, x[j]);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) ls_chain_add(chain, x[j], x[j], 4);
    }
    for (; i < last; i += LS_CHAIN_STEP) {
        float x[4];
        ls_four_load<LS_F32>(p.a.x, i, last - i, vector && last - i >= 4, x);
        ls_chain_add(chain, x, x, last - i);
    }
    const float sum = ls_chain_fold(chain, runs);
    if (threadIdx.x == 0) p.a.blocks[blockIdx.x] = sum;
}

ls_status ls_cuda_squares(const ls_exec *exec, const ls_squares_args *a, ls_error *err) {
    const int64_t blocks = a->ranges != NULL ? a->n_ranges : a->n / LS_SQUARES_BLOCK + (a->n % LS_SQUARES_BLOCK != 0);
    const ls_cuda_operand operands[] = {
        {"x", a->x, 4, a->n == 0}, {"blocks", a->blocks, 4, a->n == 0}, {"ranges", a->ranges, 8, true}};
    LS_CUDA_TRY(ls_cuda_check("squares", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (blocks == 0) return LS_OK;
    squares_params p = {*a, ls_four_fits(a->x, LS_F32)};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"n", a->n}, {"element", 4}}}}};
    const ls_launch launch = {"squares", {blocks, 1, 1}, LS_CHAIN_THREADS, 0, index, 1};
    return ls_cuda_launch(exec, &launch, (const void *)squares_kernel, &p, err);
}
