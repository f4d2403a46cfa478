/* Products of groups of rows on the GPU. In mma16 on Hopper all groups are one launch; else each is a product of its
 * own, whose range only the device knows. */
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/groups_cuda.h"
#include "op/cuda/moe_cuda.h"
#include "op/cuda/ring_cuda.h"
#include "op/gemm_cuda.h"
#include "op/gemm_groups.h"

/* ---- steps of a gradient ---- */

#define STEPS_THREADS 256

typedef struct steps_params {
    ls_gemm_groups_backward_weight_args a;
    ls_group_step *steps;
    int64_t *n_steps; /* -1 - i: row i of the list is bad */
    const ls_fault *fault;
} steps_params;

/* The first of rows[begin..end) that is not below `row`. */
static __device__ __forceinline__ int64_t first_not_below(const int64_t *rows, int64_t begin, int64_t end,
                                                          int64_t row) {
    while (begin < end) {
        const int64_t middle = (begin + end) / 2;
        if (rows[middle] < row)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Row i of a group's list: outside of all sequences, or not above the one before it. */
static __device__ ls_fault fault_of_row(const ls_gemm_groups_backward_weight_args *a, int64_t begin, int64_t i) {
    ls_fault fault = {.code = LS_FAULT_ROW, .index = i, .value = a->rows[i], .limit = a->sequences[a->n_sequences]};
    if (fault.value < 0 || fault.value >= fault.limit) return fault;
    fault.code = LS_FAULT_NONE;
    if (i == begin || fault.value > a->rows[i - 1]) return fault;
    fault.code = LS_FAULT_ROW_ORDER;
    fault.limit = a->rows[i - 1];
    return fault;
}

/* The block's lowest bad row, `none` without one. */
static __device__ int64_t first_bad_row(const ls_gemm_groups_backward_weight_args *a, int64_t begin, int64_t end,
                                        int64_t none) {
    __shared__ int64_t first[STEPS_THREADS];
    int64_t mine = none;
    for (int64_t i = begin + threadIdx.x; i < end && mine == none; i += STEPS_THREADS)
        if (fault_of_row(a, begin, i).code != LS_FAULT_NONE) mine = i;
    if (!__syncthreads_or(mine != none)) return none;
    first[threadIdx.x] = mine;
    __syncthreads();
    for (int t = 0; t < STEPS_THREADS; t++) mine = first[t] < mine ? first[t] : mine;
    return mine;
}

/* The sum of what lower threads have, and of all. */
static __device__ int64_t sum_before(int64_t own, int64_t *all) {
    __shared__ int64_t of_warp[STEPS_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t sum = own, before = 0;
    for (int by = 1; by < 32; by *= 2) {
        const int64_t lower = __shfl_up_sync(LS_ALL_LANES, (long long)sum, by);
        sum += lane >= by ? lower : 0;
    }
    __syncthreads();
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < STEPS_THREADS / 32; w++) {
        before += w < warp ? of_warp[w] : 0;
        *all += of_warp[w];
    }
    return before + sum - own;
}

/* A block a group, a thread a sequence. */
static __global__ void __launch_bounds__(STEPS_THREADS) steps_kernel(const __grid_constant__ steps_params p) {
    ls_cuda_begin();
    const ls_gemm_groups_backward_weight_args *a = &p.a;
    const int64_t group = blockIdx.x;
    if (p.fault->code != LS_FAULT_NONE) return;
    const int64_t begin = a->offsets[group], end = a->offsets[group + 1];
    const int64_t bad = first_bad_row(a, begin, end, INT64_MAX);
    ls_group_step *steps = p.steps + ls_group_first_step(group, begin, a->n_sequences);
    int64_t count = 0;
    if (bad != INT64_MAX) {
        if (threadIdx.x == 0) p.n_steps[group] = -1 - bad;
        return;
    }
    for (int64_t first = 0; first < a->n_sequences; first += STEPS_THREADS) {
        const int64_t s = first + threadIdx.x;
        int64_t row = 0, row_end = 0, all;
        if (s < a->n_sequences) {
            row = first_not_below(a->rows, begin, end, a->sequences[s]);
            row_end = first_not_below(a->rows, row, end, a->sequences[s + 1]);
        }
        int64_t at = count + sum_before((row_end - row + 15) / 16, &all);
        for (; row < row_end; row += 16) steps[at++] = ls_group_step{row, row_end - row < 16 ? row_end - row : 16};
        count += all;
    }
    if (threadIdx.x == 0) p.n_steps[group] = count;
}

/* What steps_kernel found, for the record. */
typedef struct steps_check {
    ls_gemm_groups_backward_weight_args a;
    const int64_t *n_steps;
    ls_fault *fault;
} steps_check;

static __device__ ls_fault ls_fault_at(const steps_check *c, int64_t group) {
    const ls_fault none = {.code = LS_FAULT_NONE, .index = group, .value = 0, .limit = 0};
    return c->n_steps[group] < 0 ? fault_of_row(&c->a, c->a.offsets[group], -1 - c->n_steps[group]) : none;
}

static __global__ void __launch_bounds__(STEPS_THREADS) report_kernel(const __grid_constant__ steps_check c) {
    ls_cuda_begin();
    if (__syncthreads_or(c.fault->code != LS_FAULT_NONE)) return;
    ls_report_first_bad<STEPS_THREADS>(&c, c.a.n_groups);
}

static ls_status make_steps(const ls_exec *exec, const ls_gemm_groups_backward_weight_args *a, ls_fault *fault,
                            ls_group_product *product, ls_error *err) {
    static const char op[] = "gemm_groups_backward_weight";
    int64_t *n_steps = (int64_t *)((uint8_t *)exec->workspace + LS_WORKSPACE_HEAD);
    ls_group_step *steps = (ls_group_step *)(n_steps + a->n_groups + a->n_groups % 2);
    const ls_index index[] = {{LS_WIDTH_I64,
                               {{{"step", a->m / 16 + 1}, {"bytes", 16}},
                                {{"group", a->n_groups}, {"sequence", a->n_sequences + 1}, {"bytes", 16}}}}};
    const ls_launch make = {op, {a->n_groups, 1, 1}, STEPS_THREADS, 0, index, 1};
    const ls_launch report = {op, {1, 1, 1}, STEPS_THREADS, 0, NULL, 0};
    ls_offset_check sequences = {a->sequences, a->n_sequences, INT64_MAX, fault};
    steps_params p = {*a, steps, n_steps, fault};
    steps_check check = {*a, n_steps, fault};
    product->steps = steps;
    product->n_steps = n_steps;
    product->n_sequences = a->n_sequences;
    LS_CUDA_TRY(ls_cuda_check_offsets(op, exec, &sequences, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &make, (const void *)steps_kernel, &p, err));
    return ls_cuda_launch(exec, &report, (const void *)report_kernel, &check, err);
}

/* ---- products ---- */

/* Group by group. */
static ls_status one_by_one(const ls_exec *exec, const ls_group_product *product, ls_profile profile, ls_error *err) {
    for (int64_t g = 0; g < product->n_groups; g++) {
        ls_product p = product->p;
        const ls_step_list list = {product->steps, product->n_steps + g, product->offsets + g, g, product->n_sequences};
        if (product->of_depths)
            p.out = (void *)product->list[g];
        else
            p.b = product->list[g];
        if (profile == LS_PROFILE_MMA16 && product->of_depths) {
            LS_CUDA_TRY(ls_product_mma16_steps(exec, &p, &list, err));
            continue;
        }
        p.range = product->offsets + g;
        p.range_of_depth = product->of_depths;
        LS_CUDA_TRY(profile == LS_PROFILE_MMA16 ? ls_product_mma16_plain(exec, &p, err)
                                                : ls_product_exact(exec, &p, err));
    }
    return LS_OK;
}

static ls_status run_groups(const ls_exec *exec, const ls_group_product *product, ls_profile profile, ls_error *err) {
    bool hopper = false;
    if (profile == LS_PROFILE_MMA16) {
        LS_CUDA_TRY(ls_cuda_mma16_proven(err));
        LS_CUDA_TRY(ls_is_hopper(&hopper, product->p.op, err));
    }
    return hopper ? ls_group_product_wgmma(exec, product, err) : one_by_one(exec, product, profile, err);
}

/* What is the device's, in each group. */
static ls_status check_memory(const char *op, const ls_exec *exec, const char *name, const void *const *list, int64_t n,
                              ls_dtype dtype, ls_error *err) {
    for (int64_t g = 0; g < n; g++) {
        const ls_cuda_operand operand = {name, list[g], ls_dtype_bytes(dtype), false};
        LS_CUDA_TRY(ls_cuda_check(op, exec, &operand, 1, LS_WORKSPACE_HEAD, err));
    }
    return LS_OK;
}

ls_status ls_cuda_gemm_groups(const ls_exec *exec, const ls_gemm_groups_args *a, ls_error *err) {
    static const char op[] = "gemm_groups";
    const ls_gemm_weight *first = a->weights[0];
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), a->m == 0},
                                        {"offsets", a->offsets, 8, false},
                                        {"out", a->out, ls_dtype_bytes(a->out_dtype), a->m == 0}};
    const void *list[LS_EXPERTS_MAX];
    ls_fault *fault;
    for (int64_t g = 0; g < a->n_groups; g++) list[g] = a->weights[g]->panels;
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 3, LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(check_memory(op, exec, "weight", list, a->n_groups, first->dtype, err));
    if (a->m == 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &fault, err));
    const ls_product p = {.op = op,
                          .rows = a->m,
                          .cols = first->n,
                          .depth = first->k,
                          .a = a->x,
                          .a_dtype = a->x_dtype,
                          .a_row = a->x_stride,
                          .a_step = 1,
                          .b = NULL,
                          .b_dtype = first->dtype,
                          .b_col = first->k,
                          .b_step = 1,
                          .out = a->out,
                          .out_dtype = a->out_dtype,
                          .out_stride = a->out_stride,
                          .bias = NULL,
                          .mode = LS_PRODUCT_STORE,
                          .fault = fault,
                          .range = NULL,
                          .range_of_depth = false,
                          .out_rows = NULL,
                          .b_steps = NULL};
    const ls_group_product product = {.p = p,
                                      .list = list,
                                      .n_groups = a->n_groups,
                                      .offsets = a->offsets,
                                      .of_depths = false,
                                      .steps = NULL,
                                      .n_steps = NULL,
                                      .n_sequences = 0};
    LS_CUDA_TRY(run_groups(exec, &product, a->profile, err));
    return ls_cuda_fault_end(op, exec, fault, err);
}

ls_status ls_cuda_gemm_groups_backward_input(const ls_exec *exec, const ls_gemm_groups_backward_input_args *a,
                                             ls_error *err) {
    static const char op[] = "gemm_groups_backward_input";
    const ls_cuda_operand operands[] = {{"dy", a->dy, ls_dtype_bytes(a->dy_dtype), a->m == 0},
                                        {"offsets", a->offsets, 8, false},
                                        {"dx", a->dx, 4, a->m == 0}};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 3, LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(check_memory(op, exec, "w", a->w, a->n_groups, a->w_dtype, err));
    if (a->m == 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &fault, err));
    const ls_product p = {.op = op,
                          .rows = a->m,
                          .cols = a->k,
                          .depth = a->n,
                          .a = a->dy,
                          .a_dtype = a->dy_dtype,
                          .a_row = a->dy_stride,
                          .a_step = 1,
                          .b = NULL,
                          .b_dtype = a->w_dtype,
                          .b_col = 1,
                          .b_step = a->k,
                          .out = a->dx,
                          .out_dtype = LS_F32,
                          .out_stride = a->dx_stride,
                          .bias = NULL,
                          .mode = LS_PRODUCT_STORE,
                          .fault = fault,
                          .range = NULL,
                          .range_of_depth = false,
                          .out_rows = NULL,
                          .b_steps = NULL};
    const ls_group_product product = {.p = p,
                                      .list = a->w,
                                      .n_groups = a->n_groups,
                                      .offsets = a->offsets,
                                      .of_depths = false,
                                      .steps = NULL,
                                      .n_steps = NULL,
                                      .n_sequences = 0};
    LS_CUDA_TRY(run_groups(exec, &product, a->profile, err));
    return ls_cuda_fault_end(op, exec, fault, err);
}

ls_status ls_cuda_gemm_groups_backward_weight(const ls_exec *exec, const ls_gemm_groups_backward_weight_args *a,
                                              ls_error *err) {
    static const char op[] = "gemm_groups_backward_weight";
    const bool mma16 = a->profile == LS_PROFILE_MMA16, none = a->m == 0;
    const ls_cuda_operand operands[] = {{"dy", a->dy, ls_dtype_bytes(a->dy_dtype), none},
                                        {"x", a->x, ls_dtype_bytes(a->x_dtype), none},
                                        {"offsets", a->offsets, 8, false},
                                        {"rows", a->rows, 8, !mma16 || none},
                                        {"sequences", a->sequences, 8, !mma16 || none}};
    const void *const *list = (const void *const *)a->dw;
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 5, ls_op_gemm_groups_backward_weight_workspace(a), err));
    LS_CUDA_TRY(check_memory(op, exec, "dw", list, a->n_groups, LS_F32, err));
    if (none) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &fault, err));
    const ls_product p = {.op = op,
                          .rows = a->n,
                          .cols = a->k,
                          .depth = a->m,
                          .a = a->dy,
                          .a_dtype = a->dy_dtype,
                          .a_row = 1,
                          .a_step = a->dy_stride,
                          .b = a->x,
                          .b_dtype = a->x_dtype,
                          .b_col = 1,
                          .b_step = a->x_stride,
                          .out = NULL,
                          .out_dtype = LS_F32,
                          .out_stride = a->k,
                          .bias = NULL,
                          .mode = LS_PRODUCT_CONTINUE,
                          .fault = fault,
                          .range = NULL,
                          .range_of_depth = false,
                          .out_rows = NULL,
                          .b_steps = NULL};
    ls_group_product product = {.p = p,
                                .list = list,
                                .n_groups = a->n_groups,
                                .offsets = a->offsets,
                                .of_depths = true,
                                .steps = NULL,
                                .n_steps = NULL,
                                .n_sequences = 0};
    ls_offset_check offsets = {a->offsets, a->n_groups, a->m, fault};
    if (a->dw_is_zero) product.p.mode = LS_PRODUCT_STORE;
    LS_CUDA_TRY(ls_cuda_check_offsets(op, exec, &offsets, err));
    if (mma16) LS_CUDA_TRY(make_steps(exec, a, fault, &product, err));
    LS_CUDA_TRY(run_groups(exec, &product, a->profile, err));
    return ls_cuda_fault_end(op, exec, fault, err);
}
