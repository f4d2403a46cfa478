/* Routing by sigmoids on the GPU, in both directions: a warp a row. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/moe_cuda.h"
#include "op/moe_sigmoid.h"

/* What a warp knows of its row, in shared memory. */
typedef struct row_state {
    float *s;       /* [n_experts] */
    uint32_t *keys; /* [n_experts]: c in the order of integers, 0 for experts of groups that do not stay */
    uint32_t *list; /* [n_experts]: keys of groups, then the chosen experts */
} row_state;

/* Finite floats in the order of integers, none of which is 0. No c is -0: a sum of +0 and anything is not. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    const uint32_t bits = ls_bits(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float of_key(uint32_t key) {
    return ls_from_bits(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

/* Whether fewer than n of the others go before i. */
static __device__ __forceinline__ bool is_among(const uint32_t *keys, int count, int64_t n, int i) {
    const uint32_t own = keys[i];
    int before = 0;
#pragma unroll 4
    for (int other = 0; other < count; other++) before += keys[other] > own || (keys[other] == own && other < i);
    return before < n;
}

static __device__ __forceinline__ float group_score(const uint32_t *keys, int64_t size) {
    uint32_t first = keys[0], second = 0;
    for (int64_t i = 1; i < size; i++) {
        const uint32_t key = keys[i];
        second = key > first ? first : key > second ? key : second;
        first = key > first ? key : first;
    }
    return ls_add(of_key(first), of_key(second));
}

/* Keys of experts whose group does not stay become 0. A score may overflow to infinity, whose key is in order too. */
static __device__ __forceinline__ void close_groups(const ls_moe_sigmoid_route_args *a, const row_state *r) {
    const int64_t size = a->n_experts / a->n_groups;
    const int lane = (int)(threadIdx.x % 32), groups = (int)a->n_groups;
    if (groups == 1) return;
    for (int g = lane; g < groups; g += 32) r->list[g] = key_of(group_score(r->keys + g * size, size));
    __syncwarp();
    for (int e = lane; e < a->n_experts; e += 32)
        if (!is_among(r->list, groups, a->top_groups, (int)(e / size))) r->keys[e] = 0;
    __syncwarp();
}

/* The chosen, ascending, into the list and memory; a lane holds which of its experts are among them. */
static __device__ __forceinline__ void choose(const ls_moe_sigmoid_route_args *a, const row_state *r, int32_t *expert) {
    const int lane = (int)(threadIdx.x % 32), n = (int)a->n_experts;
    uint32_t mine = 0;
    int64_t at = 0;
    static_assert(LS_EXPERTS_MAX <= 32 * 32, "a bit for each of a lane's experts");
    for (int e = lane; e < n; e += 32) mine |= (uint32_t)is_among(r->keys, n, a->top_k, e) << (e / 32);
    __syncwarp();
    for (int first = 0; first < n; first += 32) {
        const bool takes = mine >> (first / 32) & 1u;
        const uint32_t takers = __ballot_sync(LS_ALL_LANES, takes);
        const int64_t to = at + __popc(takers & ((1u << lane) - 1u));
        if (takes) {
            r->list[to] = (uint32_t)(first + lane);
            expert[to] = first + lane;
        }
        at += __popc(takers);
    }
    __syncwarp();
}

static __global__ void __launch_bounds__(LS_MOE_THREADS)
    sigmoid_route_kernel(const __grid_constant__ ls_moe_sigmoid_route_args a) {
    ls_cuda_begin();
    __shared__ float s[LS_MOE_WARPS][LS_EXPERTS_MAX];
    __shared__ uint32_t keys[LS_MOE_WARPS][LS_EXPERTS_MAX], list[LS_MOE_WARPS][LS_EXPERTS_MAX];
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32), n = (int)a.n_experts;
    const int64_t row = (int64_t)blockIdx.x * LS_MOE_WARPS + warp;
    const row_state r = {s[warp], keys[warp], list[warp]};
    float sum = 0.0f;
    bool ordered = true;
    if (row >= a.rows) return;
    int32_t *const expert = a.expert + row * a.top_k;
    float *const weight = a.weight + row * a.top_k;
    for (int e = lane; e < n; e += 32) {
        r.s[e] = ls_sigmoid(a.logits[row * a.n_experts + e]);
        const float c = ls_add(r.s[e], a.bias[e]);
        r.keys[e] = key_of(c);
        ordered = ordered && ls_sub(c, c) == 0.0f;
    }
    if (!__all_sync(LS_ALL_LANES, ordered)) {
        for (int64_t k = lane; k < a.top_k; k += 32) {
            expert[k] = (int32_t)k;
            weight[k] = ls_from_bits(LS_NAN_BITS);
        }
        return;
    }
    __syncwarp();
    close_groups(&a, &r);
    choose(&a, &r, expert);
#pragma unroll 4
    for (int64_t k = 0; k < a.top_k; k++) sum = ls_add(sum, r.s[r.list[k]]);
    sum = ls_add(sum, 1e-20f);
    for (int64_t k = lane; k < a.top_k; k += 32) {
        const float own = r.s[r.list[k]];
        weight[k] = ls_mul(a.scale, a.normalised ? ls_div(own, sum) : own);
    }
}

ls_status ls_cuda_moe_sigmoid_route(const ls_exec *exec, const ls_moe_sigmoid_route_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none},
                                        {"bias", a->bias, 4, none},
                                        {"expert", a->expert, 4, none},
                                        {"weight", a->weight, 4, none}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"experts", a->n_experts}, {"element", 4}}}}};
    const ls_launch launch = {
        "moe_sigmoid_route", {(a->rows + LS_MOE_WARPS - 1) / LS_MOE_WARPS, 1, 1}, LS_MOE_THREADS, 0, index, 1};
    ls_moe_sigmoid_route_args params = *a;
    LS_CUDA_TRY(ls_cuda_check("moe_sigmoid_route", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)sigmoid_route_kernel, &params, err);
}

/* ---- backward ---- */

typedef struct back_params {
    ls_moe_sigmoid_route_backward_args a;
    const ls_fault *fault;
} back_params;

/* The chains over the chosen are every lane's own. */
static __global__ void __launch_bounds__(LS_MOE_THREADS) sigmoid_back_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    __shared__ float chosen[LS_MOE_WARPS][LS_EXPERTS_MAX];
    const ls_moe_sigmoid_route_backward_args *a = &p.a;
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    const int64_t row = (int64_t)blockIdx.x * LS_MOE_WARPS + warp;
    float *s = chosen[warp], total = 0.0f, sum = 0.0f;
    if (row >= a->rows || p.fault->code != LS_FAULT_NONE) return;
    const float *const logit = a->logits + row * a->n_experts, *const g = a->d_weight + row * a->top_k;
    const int32_t *const expert = a->expert + row * a->top_k;
    float *const dlogit = a->dlogits + row * a->n_experts;
    for (int64_t k = lane; k < a->top_k; k += 32) s[k] = ls_sigmoid(logit[expert[k]]);
    for (int64_t e = lane; e < a->n_experts; e += 32) dlogit[e] = 0.0f;
    __syncwarp();
#pragma unroll 4
    for (int64_t k = 0; k < a->top_k; k++) total = ls_add(total, s[k]);
    total = ls_add(total, 1e-20f);
#pragma unroll 4
    for (int64_t k = 0; k < a->top_k; k++) sum = ls_fma(ls_div(s[k], total), g[k], sum);
    for (int64_t k = lane; k < a->top_k; k += 32) {
        const float t = a->normalised ? ls_div(ls_sub(g[k], sum), total) : g[k];
        dlogit[expert[k]] = ls_mul(ls_mul(a->scale, t), ls_mul(s[k], ls_sigmoid(-logit[expert[k]])));
    }
}

ls_status ls_cuda_moe_sigmoid_route_backward(const ls_exec *exec, const ls_moe_sigmoid_route_backward_args *a,
                                             ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none},
                                        {"expert", a->expert, 4, none},
                                        {"d_weight", a->d_weight, 4, none},
                                        {"dlogits", a->dlogits, 4, none}};
    back_params p = {*a, NULL};
    LS_CUDA_TRY(ls_cuda_check("moe_sigmoid_route_backward", exec, operands, 4, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK
                : ls_moe_run_rows("moe_sigmoid_route_backward", exec, &p, (const void *)sigmoid_back_kernel, err);
}
