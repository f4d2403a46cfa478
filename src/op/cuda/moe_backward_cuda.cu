/* Gradients of routing and combination on the GPU: a warp a row. */
#include "num/sum.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/moe_cuda.h"
#include "op/moe_backward.h"

/* ---- combination ---- */

#define COMBINE_WARPS 4
#define LANE_CHAINS (LS_SUM_CHAINS / 32)

/* The rows that a list names. */
typedef struct entry_check {
    const int64_t *rows;
    int64_t n, limit;
    ls_fault *fault;
} entry_check;

static __device__ __forceinline__ ls_fault ls_fault_at(const entry_check *c, int64_t i) {
    ls_fault fault = {.code = LS_FAULT_ROW, .index = i, .value = c->rows[i], .limit = c->limit};
    if (fault.value >= 0 && fault.value < c->limit) fault.code = LS_FAULT_NONE;
    return fault;
}

typedef struct combine_params {
    ls_moe_combine_backward_args a;
    const ls_fault *fault;
} combine_params;

/* Eight neighbouring columns, which are a lane's eight chains. VECTORS: two groups of four at multiples of 16 bytes,
 * each inside the row or outside as a whole. Columns outside have no element, so their chains stay as they are. */
template <bool VECTORS>
static __device__ __forceinline__ void add_columns(const float *y, const float *dacc, float *dy, float weight,
                                                   int64_t left, float chain[LANE_CHAINS]) {
    if (VECTORS) {
#pragma unroll
        for (int j = 0; j < LANE_CHAINS; j += 4) {
            if (j >= left) break;
            const float4 b = *(const float4 *)(y + j), d = *(const float4 *)(dacc + j);
            chain[j] = ls_fma(b.x, d.x, chain[j]);
            chain[j + 1] = ls_fma(b.y, d.y, chain[j + 1]);
            chain[j + 2] = ls_fma(b.z, d.z, chain[j + 2]);
            chain[j + 3] = ls_fma(b.w, d.w, chain[j + 3]);
            *(float4 *)(dy + j) =
                make_float4(ls_mul(weight, d.x), ls_mul(weight, d.y), ls_mul(weight, d.z), ls_mul(weight, d.w));
        }
    } else {
#pragma unroll
        for (int j = 0; j < LANE_CHAINS; j++) {
            if (j >= left) break;
            const float d = dacc[j];
            chain[j] = ls_fma(y[j], d, chain[j]);
            dy[j] = ls_mul(weight, d);
        }
    }
}

/* A lane's run of eight chains, then the 32 runs by halves; lane 0 has the sum. */
static __device__ __forceinline__ float fold(const float chain[LANE_CHAINS]) {
    float x = ls_add(ls_add(ls_add(chain[0], chain[4]), ls_add(chain[2], chain[6])),
                     ls_add(ls_add(chain[1], chain[5]), ls_add(chain[3], chain[7])));
    for (int lanes = 16; lanes > 0; lanes /= 2) x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, lanes));
    return x;
}

/* dy may be y: an element is read and written by one lane. */
template <bool VECTORS>
static __global__ void __launch_bounds__(32 * COMBINE_WARPS) combine_kernel(const __grid_constant__ combine_params p) {
    ls_cuda_begin();
    const ls_moe_combine_backward_args *a = &p.a;
    const int lane = (int)(threadIdx.x % 32);
    const int64_t i = (int64_t)blockIdx.x * COMBINE_WARPS + threadIdx.x / 32;
    float chain[LANE_CHAINS] = {0, 0, 0, 0, 0, 0, 0, 0}, sum;
    if (i >= a->n || p.fault->code != LS_FAULT_NONE) return;
    const float *y = a->y + i * a->dim, *dacc = a->dacc + a->rows[i] * a->dim, weight = a->weight[i];
    float *dy = a->dy + i * a->dim;
    for (int64_t c = LANE_CHAINS * lane; c < a->dim; c += LS_SUM_CHAINS)
        add_columns<VECTORS>(y + c, dacc + c, dy + c, weight, a->dim - c, chain);
    __syncwarp();
    sum = fold(chain);
    if (lane == 0) a->dweight[i] = sum;
}

ls_status ls_cuda_moe_combine_backward(const ls_exec *exec, const ls_moe_combine_backward_args *a, ls_error *err) {
    static const char op[] = "moe_combine_backward";
    const bool none = a->n == 0;
    const ls_cuda_operand operands[] = {{"y", a->y, 4, none},           {"rows", a->rows, 8, none},
                                        {"weight", a->weight, 4, none}, {"dacc", a->dacc, 4, none || a->acc_rows == 0},
                                        {"dy", a->dy, 4, none},         {"dweight", a->dweight, 4, none}};
    const bool vectors =
        a->dim % 4 == 0 && (uintptr_t)a->y % 16 == 0 && (uintptr_t)a->dacc % 16 == 0 && (uintptr_t)a->dy % 16 == 0;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"entry", a->n}, {"dim", a->dim}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->acc_rows}, {"dim", a->dim}, {"element", 4}}}}};
    const ls_launch checks = {op, {1, 1, 1}, LS_MOE_CHECK_THREADS, 0, NULL, 0};
    const ls_launch launch = {op, {(a->n + COMBINE_WARPS - 1) / COMBINE_WARPS, 1, 1}, 32 * COMBINE_WARPS, 0, index, 2};
    combine_params p = {*a, NULL};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 6, LS_WORKSPACE_HEAD, err));
    if (none) return LS_OK;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &fault, err));
    entry_check check = {a->rows, a->n, a->acc_rows, fault};
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_launch(exec, &checks, (const void *)ls_moe_check_kernel<entry_check>, &check, err));
    LS_CUDA_TRY(ls_cuda_fault_end(op, exec, fault, err));
    return ls_cuda_launch(exec, &launch,
                          vectors ? (const void *)combine_kernel<true> : (const void *)combine_kernel<false>, &p, err);
}

/* ---- routing ---- */

typedef struct route_params {
    ls_moe_route_backward_args a;
    const ls_fault *fault;
} route_params;

/* g_e of a row in g[n]. */
static __device__ __forceinline__ void spread(float *g, const int32_t *expert, const float *d_weight, int n,
                                              int64_t top_k) {
    const int lane = (int)(threadIdx.x % 32);
    for (int e = lane; e < n; e += 32) g[e] = 0.0f;
    __syncwarp();
    for (int64_t k = lane; k < top_k; k += 32) g[expert[k]] = d_weight[k];
    __syncwarp();
}

/* The chain over the chosen experts is every lane's own. */
static __global__ void __launch_bounds__(LS_MOE_THREADS) route_kernel(const __grid_constant__ route_params params) {
    ls_cuda_begin();
    __shared__ float probabilities[LS_MOE_WARPS][LS_EXPERTS_MAX], gradients[LS_MOE_WARPS][LS_EXPERTS_MAX];
    const ls_moe_route_backward_args *a = &params.a;
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32), n = (int)a->n_experts;
    const int64_t row = (int64_t)blockIdx.x * LS_MOE_WARPS + warp;
    float *p = probabilities[warp], *g = gradients[warp], sum = 0.0f;
    if (row >= a->rows || params.fault->code != LS_FAULT_NONE) return;
    const int32_t *expert = a->expert + row * a->top_k;
    ls_moe_softmax(p, a->logits + row * a->n_experts, n);
    spread(g, expert, a->d_weight + row * a->top_k, n, a->top_k);
#pragma unroll 4
    for (int64_t k = 0; k < a->top_k; k++) sum = ls_fma(p[expert[k]], g[expert[k]], sum);
    for (int e = lane; e < n; e += 32) a->dlogits[row * a->n_experts + e] = ls_mul(p[e], ls_sub(g[e], sum));
}

ls_status ls_cuda_moe_route_backward(const ls_exec *exec, const ls_moe_route_backward_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none},
                                        {"expert", a->expert, 4, none},
                                        {"d_weight", a->d_weight, 4, none},
                                        {"dlogits", a->dlogits, 4, none}};
    route_params p = {*a, NULL};
    LS_CUDA_TRY(ls_cuda_check("moe_route_backward", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_moe_run_rows("moe_route_backward", exec, &p, (const void *)route_kernel, err);
}

/* ---- weights over the chosen experts alone, and their gradient ---- */

/* w_k of a row in w[top_k], which is the warp's own: ls_moe_softmax over the chosen. */
static __device__ __forceinline__ void chosen_softmax(float *w, const float *logit, const int32_t *expert, int top_k) {
    const int lane = (int)(threadIdx.x % 32);
    for (int k = lane; k < top_k; k += 32) w[k] = logit[expert[k]];
    __syncwarp();
    ls_moe_softmax(w, w, top_k);
}

typedef struct reweigh_params {
    ls_moe_reweigh_args a;
    const ls_fault *fault;
} reweigh_params;

static __global__ void __launch_bounds__(LS_MOE_THREADS) reweigh_kernel(const __grid_constant__ reweigh_params params) {
    ls_cuda_begin();
    __shared__ float weights[LS_MOE_WARPS][LS_EXPERTS_MAX];
    const ls_moe_reweigh_args *a = &params.a;
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32), top_k = (int)a->top_k;
    const int64_t row = (int64_t)blockIdx.x * LS_MOE_WARPS + warp;
    float *w = weights[warp], *weight = a->weight + row * a->top_k;
    if (row >= a->rows || params.fault->code != LS_FAULT_NONE || weight[0] != weight[0]) return;
    chosen_softmax(w, a->logits + row * a->n_experts, a->expert + row * a->top_k, top_k);
    for (int k = lane; k < top_k; k += 32) weight[k] = w[k];
}

typedef struct reweigh_backward_params {
    ls_moe_reweigh_backward_args a;
    const ls_fault *fault;
} reweigh_backward_params;

static __global__ void __launch_bounds__(LS_MOE_THREADS)
    reweigh_backward_kernel(const __grid_constant__ reweigh_backward_params params) {
    ls_cuda_begin();
    __shared__ float weights[LS_MOE_WARPS][LS_EXPERTS_MAX];
    const ls_moe_reweigh_backward_args *a = &params.a;
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32), n = (int)a->n_experts;
    const int64_t row = (int64_t)blockIdx.x * LS_MOE_WARPS + warp;
    float *w = weights[warp], *dlogit = a->dlogits + row * a->n_experts, sum = 0.0f;
    if (row >= a->rows || params.fault->code != LS_FAULT_NONE) return;
    const int32_t *expert = a->expert + row * a->top_k;
    const float *g = a->d_weight + row * a->top_k;
    chosen_softmax(w, a->logits + row * a->n_experts, expert, (int)a->top_k);
#pragma unroll 4
    for (int64_t k = 0; k < a->top_k; k++) sum = ls_fma(w[k], g[k], sum);
    for (int e = lane; e < n; e += 32) dlogit[e] = 0.0f;
    __syncwarp();
    for (int64_t k = lane; k < a->top_k; k += 32) dlogit[expert[k]] = ls_mul(w[k], ls_sub(g[k], sum));
}

ls_status ls_cuda_moe_reweigh(const ls_exec *exec, const ls_moe_reweigh_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {
        {"logits", a->logits, 4, none}, {"expert", a->expert, 4, none}, {"weight", a->weight, 4, none}};
    reweigh_params p = {*a, NULL};
    LS_CUDA_TRY(ls_cuda_check("moe_reweigh", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_moe_run_rows("moe_reweigh", exec, &p, (const void *)reweigh_kernel, err);
}

ls_status ls_cuda_moe_reweigh_backward(const ls_exec *exec, const ls_moe_reweigh_backward_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none},
                                        {"expert", a->expert, 4, none},
                                        {"d_weight", a->d_weight, 4, none},
                                        {"dlogits", a->dlogits, 4, none}};
    reweigh_backward_params p = {*a, NULL};
    LS_CUDA_TRY(ls_cuda_check("moe_reweigh_backward", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_moe_run_rows("moe_reweigh_backward", exec, &p, (const void *)reweigh_backward_kernel, err);
}

/* ---- gradients of picks, back to their rows: a block a piece of a row ---- */

#define GATHER_THREADS 256

typedef struct gather_params {
    ls_moe_gather_backward_args a;
    int64_t pieces;
} gather_params;

static __global__ void __launch_bounds__(GATHER_THREADS)
    gather_backward_kernel(const __grid_constant__ gather_params p) {
    ls_cuda_begin();
    const ls_moe_gather_backward_args *a = &p.a;
    const int64_t row = blockIdx.x / p.pieces, c = blockIdx.x % p.pieces * GATHER_THREADS + threadIdx.x;
    float d = 0.0f;
    if (c >= a->dim) return;
#pragma unroll 4
    for (int64_t k = 0; k < a->top_k; k++) {
        const int64_t from = a->place[row * a->top_k + k] * a->dim + c;
        d = ls_add(d, a->first[from]);
        if (a->second != NULL) d = ls_add(d, a->second[from]);
    }
    a->d[row * a->dim + c] = d;
}

ls_status ls_cuda_moe_gather_backward(const ls_exec *exec, const ls_moe_gather_backward_args *a, ls_error *err) {
    static const char op[] = "moe_gather_backward";
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"first", a->first, 4, none},
                                        {"second", a->second, 4, true},
                                        {"place", a->place, 8, none},
                                        {"d", a->d, 4, none}};
    gather_params p = {*a, (a->dim + GATHER_THREADS - 1) / GATHER_THREADS};
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"top k", a->top_k}, {"dim", a->dim}, {"element", 4}}}}};
    const ls_launch launch = {op, {ls_launch_blocks(a->rows, p.pieces, 1), 1, 1}, GATHER_THREADS, 0, index, 1};
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)gather_backward_kernel, &p, err);
}
