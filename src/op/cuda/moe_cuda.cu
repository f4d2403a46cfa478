/* Routing, places of picks and the ordered combination on the GPU. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/moe_cuda.h"

/* ---- routing: a warp a row ---- */

/* An expert is chosen if fewer than top_k others go before it: those with a larger p, and lower ones with the same. No
 * p is negative, so the bits of p are in the order of p; where one is NaN all are the one NaN, hence equal. */
static __device__ __forceinline__ bool chosen(const float *p, int n, int64_t top_k, int e) {
    const uint32_t own = ls_bits(p[e]);
    int before = 0;
#pragma unroll 4
    for (int other = 0; other < n; other++) {
        const uint32_t bits = ls_bits(p[other]);
        before += bits > own || (bits == own && other < e);
    }
    return before < top_k;
}

static __global__ void __launch_bounds__(LS_MOE_THREADS) route_kernel(const __grid_constant__ ls_moe_route_args a) {
    ls_cuda_begin();
    __shared__ float probabilities[LS_MOE_WARPS][LS_EXPERTS_MAX];
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32), n = (int)a.n_experts;
    const int64_t row = (int64_t)blockIdx.x * LS_MOE_WARPS + warp;
    float *p = probabilities[warp];
    int64_t at = row * a.top_k;
    if (row >= a.rows) return;
    ls_moe_softmax(p, a.logits + row * a.n_experts, n);
    /* Ascending experts: 32 at a time, a chosen one behind those of lower lanes. */
    for (int first = 0; first < n; first += 32) {
        const int e = first + lane;
        const bool takes = e < n && chosen(p, n, a.top_k, e);
        const uint32_t takers = __ballot_sync(LS_ALL_LANES, takes);
        if (takes) {
            const int64_t to = at + __popc(takers & ((1u << lane) - 1u));
            a.expert[to] = e;
            a.weight[to] = p[e];
        }
        at += __popc(takers);
    }
}

ls_status ls_cuda_moe_route(const ls_exec *exec, const ls_moe_route_args *a, ls_error *err) {
    const bool none = a->rows <= 0;
    const ls_cuda_operand operands[] = {
        {"logits", a->logits, 4, none}, {"expert", a->expert, 4, none}, {"weight", a->weight, 4, none}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"experts", a->n_experts}, {"element", 4}}}}};
    const ls_launch launch = {
        "moe_route", {(a->rows + LS_MOE_WARPS - 1) / LS_MOE_WARPS, 1, 1}, LS_MOE_THREADS, 0, index, 1};
    ls_moe_route_args params = *a;
    LS_CUDA_TRY(ls_cuda_check("moe_route", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)route_kernel, &params, err);
}

/* ---- places: a block an expert, so that nothing is counted together ---- */

#define PLACE_THREADS 1024
#define PLACE_WARPS (PLACE_THREADS / 32)

typedef struct place_params {
    ls_moe_place_args a;
    ls_expert_check check;
} place_params;

/* Of one warp's picks, and then of those before it. */
typedef struct pick_counts {
    int64_t lower, own; /* picks of lower experts, of the block's own */
} pick_counts;

static __device__ __forceinline__ int64_t warp_sum(int64_t x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(LS_ALL_LANES, (long long)x, lanes);
    return x;
}

/* Each warp counts in its own run of picks, then walks through it again: the picks of an expert keep their order. Every
 * block looks at all picks, so that none writes if one is bad. */
static __global__ void __launch_bounds__(PLACE_THREADS) place_kernel(const __grid_constant__ place_params p) {
    ls_cuda_begin();
    __shared__ pick_counts counts[PLACE_WARPS];
    const ls_moe_place_args *a = &p.a;
    const int32_t own = (int32_t)blockIdx.x, *expert = a->expert;
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    const int64_t n = p.check.n, run = (n + PLACE_THREADS - 1) / PLACE_THREADS * 32;
    const int64_t begin = warp * run, end = begin + run < n ? begin + run : n;
    int64_t lower = 0, same = 0, first = 0, at = 0;
    bool bad = p.check.fault->code != LS_FAULT_NONE;
#pragma unroll 4
    for (int64_t i = begin + lane; i < end; i += 32) {
        const int32_t e = expert[i];
        bad = bad || e < 0 || e >= a->n_experts;
        lower += e < own;
        same += e == own;
    }
    if (__syncthreads_or(bad)) {
        if (blockIdx.x == 0) ls_report_first_bad<PLACE_THREADS>(&p.check, n);
        return;
    }
    lower = warp_sum(lower);
    same = warp_sum(same);
    if (lane == 0) counts[warp] = {lower, same};
    __syncthreads();
    for (int w = 0; w < PLACE_WARPS; w++) {
        first += counts[w].lower;
        at += w < warp ? counts[w].own : 0;
    }
    if (threadIdx.x == 0) {
        a->offsets[own] = first;
        if (own == 0) a->offsets[a->n_experts] = n;
    }
    at += first;
    for (int64_t base = begin; base < end; base += 32) {
        const int64_t i = base + lane;
        const bool mine = i < end && expert[i] == own;
        const uint32_t takers = __ballot_sync(LS_ALL_LANES, mine);
        if (mine) {
            const int64_t to = at + __popc(takers & ((1u << lane) - 1u));
            a->pick[to] = i;
            a->row[to] = i / a->top_k;
            a->place[i] = to;
        }
        at += __popc(takers);
    }
}

ls_status ls_cuda_moe_place(const ls_exec *exec, const ls_moe_place_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"expert", a->expert, 4, none},
                                        {"pick", a->pick, 8, none},
                                        {"row", a->row, 8, none},
                                        {"place", a->place, 8, none},
                                        {"offsets", a->offsets, 8, false}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"top k", a->top_k}, {"element", 8}}}}};
    const ls_launch launch = {"moe_place", {a->n_experts, 1, 1}, PLACE_THREADS, 0, index, 1};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("moe_place", exec, operands, 5, LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("moe_place", exec, &fault, err));
    place_params p = {*a,
                      {.expert = a->expert,
                       .n = a->rows * a->top_k,
                       .top_k = a->top_k,
                       .n_experts = a->n_experts,
                       .ascending = false,
                       .fault = fault}};
    LS_CUDA_TRY(ls_cuda_launch(exec, &launch, (const void *)place_kernel, &p, err));
    return ls_cuda_fault_end("moe_place", exec, fault, err);
}

/* ---- combination: a block a piece of a row, blocks taking pieces in turn ----
 *
 * Only the device knows how many rows a range has, so the grid is that of a GPU with enough to do, at most that of all
 * rows. */

#define COMBINE_THREADS 256
#define COMBINE_COLUMNS (4 * COMBINE_THREADS)
#define COMBINE_BLOCKS 2048

typedef struct combine_params {
    ls_moe_combine_args a;
    int64_t pieces; /* of a row */
    bool vectors;   /* rows of y and acc lie at multiples of 16 bytes */
    ls_fault *fault;
} combine_params;

/* Which NaN a sum is, the contract leaves open; here it is the one of the products. */
static __device__ __forceinline__ float combined(float weight, float y, float acc) {
    return ls_canonical(ls_fma(weight, y, acc));
}

static __device__ __forceinline__ void combine_piece(const ls_moe_combine_args *a, bool vectors, int64_t i,
                                                     int64_t first) {
    const float *y = a->y + i * a->dim, weight = a->weight[i];
    float *acc = a->acc + a->rows[i] * a->dim;
    if (vectors) {
        const int64_t c = first + 4 * (int64_t)threadIdx.x;
        if (c >= a->dim) return;
        const float4 from = *(const float4 *)(y + c), to = *(const float4 *)(acc + c);
        *(float4 *)(acc + c) = make_float4(combined(weight, from.x, to.x), combined(weight, from.y, to.y),
                                           combined(weight, from.z, to.z), combined(weight, from.w, to.w));
        return;
    }
    for (int64_t c = first + threadIdx.x; c < a->dim && c < first + COMBINE_COLUMNS; c += COMBINE_THREADS)
        acc[c] = combined(weight, y[c], acc[c]);
}

static __global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(const __grid_constant__ combine_params p) {
    ls_cuda_begin();
    int64_t first = 0, end = p.a.n;
    if (p.a.range != NULL) {
        /* A thread that sees the record of this fault sees the bad range, too: all of them return either way. */
        if (p.fault->code != LS_FAULT_NONE) return;
        first = p.a.range[0];
        end = p.a.range[1];
        if (first < 0 || end < first || end > p.a.n) {
            if (blockIdx.x == 0 && threadIdx.x == 0) *p.fault = {LS_FAULT_RANGE, first, end, p.a.n};
            return;
        }
    }
    for (int64_t item = blockIdx.x; item < (end - first) * p.pieces; item += gridDim.x)
        combine_piece(&p.a, p.vectors, first + item / p.pieces, item % p.pieces * COMBINE_COLUMNS);
}

ls_status ls_cuda_moe_combine(const ls_exec *exec, const ls_moe_combine_args *a, ls_error *err) {
    const bool none = a->n == 0;
    const ls_cuda_operand operands[] = {{"y", a->y, 4, none},
                                        {"rows", a->rows, 8, none},
                                        {"weight", a->weight, 4, none},
                                        {"acc", a->acc, 4, none},
                                        {"range", a->range, 8, true}};
    const bool vectors = a->dim % 4 == 0 && (uintptr_t)a->y % 16 == 0 && (uintptr_t)a->acc % 16 == 0;
    combine_params p = {*a, (a->dim + COMBINE_COLUMNS - 1) / COMBINE_COLUMNS, vectors, NULL};
    const int64_t items = ls_launch_blocks(a->n, p.pieces, 1);
    const ls_index index[] = {{LS_WIDTH_I64, {{{"entry", a->n}, {"dim", a->dim}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"entry", a->n}, {"piece", p.pieces}}}}};
    const ls_launch launch = {"moe_combine",   {none ? 1 : items < COMBINE_BLOCKS ? items : COMBINE_BLOCKS, 1, 1},
                              COMBINE_THREADS, 0,
                              index,           2};
    LS_CUDA_TRY(ls_cuda_check("moe_combine", exec, operands, 5, LS_WORKSPACE_HEAD, err));
    if (none && a->range == NULL) return LS_OK;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    if (a->range != NULL) LS_CUDA_TRY(ls_cuda_fault_begin("moe_combine", exec, &p.fault, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &launch, (const void *)combine_kernel, &p, err));
    return a->range == NULL ? LS_OK : ls_cuda_fault_end("moe_combine", exec, p.fault, err);
}

/* ---- all picks of a row at once: a block a piece of a row ---- */

typedef struct sum_params {
    ls_moe_sum_args a;
    int64_t pieces;
    bool vectors;
} sum_params;

static __device__ __forceinline__ float summed(const ls_moe_sum_args *a, int64_t row, int64_t column) {
    float sum = 0.0f;
    for (int64_t k = 0; k < a->top_k; k++) {
        const int64_t pick = row * a->top_k + k;
        sum = ls_fma(a->weight[pick], a->y[a->place[pick] * a->dim + column], sum);
    }
    return ls_canonical(sum);
}

static __device__ __forceinline__ float4 summed4(const ls_moe_sum_args *a, int64_t row, int64_t column) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int64_t k = 0; k < a->top_k; k++) {
        const int64_t pick = row * a->top_k + k;
        const float weight = a->weight[pick];
        const float4 y = *(const float4 *)&a->y[a->place[pick] * a->dim + column];
        sum = make_float4(ls_fma(weight, y.x, sum.x), ls_fma(weight, y.y, sum.y), ls_fma(weight, y.z, sum.z),
                          ls_fma(weight, y.w, sum.w));
    }
    return make_float4(ls_canonical(sum.x), ls_canonical(sum.y), ls_canonical(sum.z), ls_canonical(sum.w));
}

static __global__ void __launch_bounds__(COMBINE_THREADS) sum_kernel(const __grid_constant__ sum_params p) {
    ls_cuda_begin();
    const ls_moe_sum_args *a = &p.a;
    const int64_t row = blockIdx.x / p.pieces, first = blockIdx.x % p.pieces * COMBINE_COLUMNS;
    if (p.vectors) {
        const int64_t c = first + 4 * (int64_t)threadIdx.x;
        if (c < a->dim) *(float4 *)&a->out[row * a->dim + c] = summed4(a, row, c);
        return;
    }
    for (int64_t c = first + threadIdx.x; c < a->dim && c < first + COMBINE_COLUMNS; c += COMBINE_THREADS)
        a->out[row * a->dim + c] = summed(a, row, c);
}

ls_status ls_cuda_moe_sum(const ls_exec *exec, const ls_moe_sum_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {
        {"y", a->y, 4, none}, {"place", a->place, 8, none}, {"weight", a->weight, 4, none}, {"out", a->out, 4, none}};
    const bool vectors = a->dim % 4 == 0 && (uintptr_t)a->y % 16 == 0 && (uintptr_t)a->out % 16 == 0;
    sum_params p = {*a, (a->dim + COMBINE_COLUMNS - 1) / COMBINE_COLUMNS, vectors};
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"top k", a->top_k}, {"dim", a->dim}, {"element", 4}}}}};
    const ls_launch launch = {"moe_sum", {ls_launch_blocks(a->rows, p.pieces, 1), 1, 1}, COMBINE_THREADS, 0, index, 1};
    LS_CUDA_TRY(ls_cuda_check("moe_sum", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)sum_kernel, &p, err);
}
