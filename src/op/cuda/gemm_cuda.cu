/* Dense products on the GPU: checks, which kernel runs, and what is brought into shape before one does. Which kernel it
 * is carries no bit; ls_product_mma16_plain is the one that takes everything. */
#include "base/mem.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/gemm_size_cuda.h"
#include "op/cuda/product_cuda.h"
#include "op/cuda/ring_cuda.h"
#include "op/elementwise.h"
#include "op/gemm_cuda.h"
#include "op/profile.h"
#include "op/weight.h"

/* ---- gathering rows ---- */

#define GATHER_THREADS 256
#define STEP 16

static int64_t up_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* Where each sequence's padded rows begin: starts [n + 1], from the sequences' offsets. */
typedef struct starts_params {
    const int64_t *sequences;
    int64_t n;
    int64_t *starts;
    const ls_fault *fault;
} starts_params;

static __global__ void __launch_bounds__(GATHER_THREADS) starts_kernel(const __grid_constant__ starts_params p) {
    ls_cuda_begin();
    __shared__ int64_t before[GATHER_THREADS];
    const int64_t each = (p.n + GATHER_THREADS - 1) / GATHER_THREADS, first = threadIdx.x * each;
    int64_t sum = 0, at = 0;
    if (p.fault->code != LS_FAULT_NONE) return;
    for (int64_t s = first; s < first + each && s < p.n; s++)
        sum += (p.sequences[s + 1] - p.sequences[s] + STEP - 1) / STEP * STEP;
    before[threadIdx.x] = sum;
    __syncthreads();
    for (int t = 0; t < (int)threadIdx.x; t++) at += before[t];
    for (int64_t s = first; s < first + each && s < p.n; s++) {
        p.starts[s] = at;
        at += (p.sequences[s + 1] - p.sequences[s] + STEP - 1) / STEP * STEP;
    }
    if (first < p.n && first + each >= p.n) p.starts[p.n] = at;
}

/* to [rows][stride] bf16 from [from_rows][from_stride]: rounded, or as it is; zero where there is nothing. With starts,
 * a row's place is that of its sequence. */
typedef struct gather_params {
    uint16_t *to;
    int64_t rows, stride;
    const void *from;
    bool f32;
    int64_t from_rows, cols, from_stride;
    const int64_t *sequences, *starts;
    int64_t n_sequences;
    const ls_fault *fault;
    bool wide; /* four neighbours at a time: whole rows of them, at addresses that vectors can load */
} gather_params;

static __device__ __forceinline__ uint2 rounded4(const float *from) {
    const float4 x = *(const float4 *)from;
    return make_uint2((uint32_t)ls_f32_to_bf16(x.x) | (uint32_t)ls_f32_to_bf16(x.y) << 16,
                      (uint32_t)ls_f32_to_bf16(x.z) | (uint32_t)ls_f32_to_bf16(x.w) << 16);
}

/* The row of `from` for row i, or -1. */
static __device__ int64_t source_row(const gather_params *p, int64_t i) {
    int64_t low = 0, high = p->n_sequences;
    if (p->starts == NULL) return i < p->from_rows ? i : -1;
    if (i >= p->starts[p->n_sequences]) return -1;
    while (high - low > 1) { /* starts[low] <= i < starts[high] */
        const int64_t middle = (low + high) / 2;
        if (p->starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    const int64_t row = p->sequences[low] + i - p->starts[low];
    return row < p->sequences[low + 1] ? row : -1;
}

static __global__ void __launch_bounds__(GATHER_THREADS) gather_kernel(const __grid_constant__ gather_params p) {
    ls_cuda_begin();
    __shared__ int64_t row;
    const int64_t i = blockIdx.x;
    if (p.fault != NULL && p.fault->code != LS_FAULT_NONE) return;
    if (threadIdx.x == 0) row = source_row(&p, i);
    __syncthreads();
    const int64_t at = row * p.from_stride;
    if (row >= 0 && p.wide) {
        for (int64_t j = 4 * (int64_t)threadIdx.x; j < p.stride; j += 4 * GATHER_THREADS)
            *(uint2 *)&p.to[i * p.stride + j] =
                p.f32 ? rounded4((const float *)p.from + at + j) : *(const uint2 *)((const uint16_t *)p.from + at + j);
        return;
    }
    for (int64_t j = threadIdx.x; j < p.stride; j += GATHER_THREADS) {
        uint16_t x = 0;
        if (row >= 0 && j < p.cols)
            x = p.f32 ? ls_f32_to_bf16(((const float *)p.from)[at + j]) : ((const uint16_t *)p.from)[at + j];
        p.to[i * p.stride + j] = x;
    }
}

static ls_status gather(const ls_exec *exec, const char *op, gather_params *p, ls_error *err) {
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", p->rows}, {"stride", p->stride}, {"element", 2}}}},
                              {LS_WIDTH_I64, {{{"row", p->from_rows}, {"stride", p->from_stride}, {"element", 4}}}}};
    const ls_launch launch = {op, {p->rows, 1, 1}, GATHER_THREADS, 0, index, 2};
    p->wide = p->cols == p->stride && p->from_stride % 4 == 0 && (uintptr_t)p->from % (p->f32 ? 16 : 8) == 0;
    return ls_cuda_launch(exec, &launch, (const void *)gather_kernel, p, err);
}

/* ---- row numbers and ranges ---- */

/* Rows of a tensor of `count` rows, and the range of them that is used. */
typedef struct list_check {
    const int64_t *rows, *range; /* either may be NULL */
    int64_t m, count;
    bool ascending;
    ls_fault *fault;
} list_check;

static __device__ ls_fault ls_fault_at(const list_check *c, int64_t i) {
    const int64_t first = c->range == NULL ? 0 : c->range[0], end = c->range == NULL ? c->m : c->range[1];
    ls_fault fault = {.code = LS_FAULT_RANGE, .index = first, .value = end, .limit = c->m};
    if (first < 0 || end < first || end > c->m) return fault;
    fault.code = LS_FAULT_NONE;
    if (c->rows == NULL || i < first || i >= end) return fault;
    fault = ls_fault{LS_FAULT_ROW, i, c->rows[i], c->count};
    if (fault.value < 0 || fault.value >= c->count) return fault;
    fault.code = LS_FAULT_ROW_ORDER;
    if (c->ascending && i > first && fault.value <= c->rows[i - 1]) {
        fault.limit = c->rows[i - 1];
        return fault;
    }
    fault.code = LS_FAULT_NONE;
    return fault;
}

#define LIST_THREADS 1024

static __global__ void __launch_bounds__(LIST_THREADS) list_kernel(const __grid_constant__ list_check c) {
    ls_cuda_begin();
    const int64_t bad = ls_first_bad<LIST_THREADS>(&c, c.m);
    if (threadIdx.x == 0 && bad != INT64_MAX && c.fault->code == LS_FAULT_NONE) *c.fault = ls_fault_at(&c, bad);
}

/* Nothing to look at: check->fault stays NULL. */
static ls_status check_list(const char *op, const ls_exec *exec, list_check *check, ls_error *err) {
    const ls_launch launch = {op, {1, 1, 1}, LIST_THREADS, 0, NULL, 0};
    if (check->rows == NULL && check->range == NULL) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &check->fault, err));
    return ls_cuda_launch(exec, &launch, (const void *)list_kernel, check, err);
}

/* ---- dbias ---- */

typedef struct bias_params {
    ls_gemm_backward_weight_args a;
    const ls_fault *fault;
} bias_params;

#define BIAS_THREADS 64

static __global__ void __launch_bounds__(BIAS_THREADS) bias_kernel(const __grid_constant__ bias_params p) {
    ls_cuda_begin();
    const int64_t n = (int64_t)blockIdx.x * BIAS_THREADS + threadIdx.x;
    if ((p.fault != NULL && p.fault->code != LS_FAULT_NONE) || n >= p.a.n) return;
    const int64_t first = p.a.range == NULL ? 0 : p.a.range[0], end = p.a.range == NULL ? p.a.m : p.a.range[1];
    float acc = p.a.dbias[n];
#pragma unroll 8
    for (int64_t m = first; m < end; m++) acc = ls_add(acc, p.a.dy[m * p.a.dy_stride + n]);
    p.a.dbias[n] = acc;
}

/* ---- products of the profile mma16 ---- */

static ls_status product_mma16(const ls_exec *exec, const ls_product *product, const void *tiles, bool nan_open,
                               ls_error *err) {
    bool taken = false, hopper;
    LS_CUDA_TRY(ls_cuda_mma16_proven(err));
    if (product->range != NULL) return ls_product_mma16_plain(exec, product, err);
    /* Fewer rows are faster by the kernel that reads tiles, which overlaps with the one ahead of it besides
     * (docs/lab/gpu-ops.md). */
    if (nan_open && (tiles == NULL || !ls_decode_takes(product->rows, product->cols)))
        LS_CUDA_TRY(ls_product_mma16_cublas(exec, product, NULL, &taken, err));
    if (taken) return LS_OK;
    LS_CUDA_TRY(ls_is_hopper(&hopper, product->op, err));
    if (hopper && product->out_rows == NULL)
        LS_CUDA_TRY(ls_product_mma16_decode(exec, product, tiles, ls_decode_plan_for(product->rows, product->cols),
                                            &taken, err));
    if (hopper && !taken) LS_CUDA_TRY(ls_product_mma16_wgmma(exec, product, &taken, err));
    return taken ? LS_OK : ls_product_mma16_plain(exec, product, err);
}

/* ---- forward ---- */

int64_t ls_cuda_gemm_workspace(const ls_cuda_gemm_args *args) {
    (void)args;
    return LS_WORKSPACE_HEAD;
}

static ls_status check_sizes(const char *op, int64_t m, int64_t n, int64_t k, ls_error *err) {
    int64_t elements;
    if (m < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: m %lld is negative", op, (long long)m);
    if (n < 1) return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld is less than 1", op, (long long)n);
    if (k < 1) return LS_FAIL(err, LS_ERR_ARG, "%s: k %lld is less than 1", op, (long long)k);
    if (!ls_mul_i64(n, k, &elements) || !ls_mul_i64(elements, 4, &elements))
        return LS_FAIL(err, LS_ERR_ARG, "%s: n %lld times k %lld does not fit 64 bits", op, (long long)n, (long long)k);
    return LS_OK;
}

static ls_status check_type(const char *op, const char *name, ls_dtype dtype, bool f16, ls_error *err) {
    if (dtype == LS_F32 || dtype == LS_BF16 || (f16 && dtype == LS_F16)) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: %s %d (%s) is not %s", op, name, (int)dtype, ls_dtype_name(dtype),
                   f16 ? "f32, bf16 or f16" : "f32 or bf16");
}

static ls_status check_stride(const char *op, const char *name, int64_t stride, int64_t least, ls_error *err) {
    if (stride >= least) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: %s %lld is less than %lld", op, name, (long long)stride, (long long)least);
}

static ls_status forward_check(const ls_cuda_gemm_args *a, ls_error *err) {
    const char *op = "gemm";
    LS_CUDA_TRY(check_sizes(op, a->m, a->n, a->k, err));
    LS_CUDA_TRY(check_type(op, "x_dtype", a->x_dtype, false, err));
    LS_CUDA_TRY(check_type(op, "w_dtype", a->w_dtype, true, err));
    LS_CUDA_TRY(check_type(op, "out_dtype", a->out_dtype, false, err));
    LS_CUDA_TRY(check_stride(op, "x_stride", a->x_stride, a->k, err));
    LS_CUDA_TRY(check_stride(op, "out_stride", a->out_stride, a->n, err));
    LS_CUDA_TRY(ls_profile_check(op, a->profile, "x", a->x_dtype, err));
    return ls_profile_check(op, a->profile, "w", a->w_dtype, err);
}

static ls_product forward_product(const ls_cuda_gemm_args *a) {
    const ls_product product = {.op = "gemm",
                                .rows = a->m,
                                .cols = a->n,
                                .depth = a->k,
                                .a = a->x,
                                .a_dtype = a->x_dtype,
                                .a_row = a->x_stride,
                                .a_step = 1,
                                .b = a->w,
                                .b_dtype = a->w_dtype,
                                .b_col = a->k,
                                .b_step = 1,
                                .out = a->out,
                                .out_dtype = a->out_dtype,
                                .out_stride = a->out_stride,
                                .bias = a->bias,
                                .mode = LS_PRODUCT_STORE,
                                .fault = NULL,
                                .range = NULL,
                                .range_of_depth = false,
                                .out_rows = NULL,
                                .b_steps = NULL};
    return product;
}

ls_status ls_cuda_gemm_stored(const ls_exec *exec, const ls_cuda_gemm_args *a, ls_error *err) {
    ls_fault *fault = NULL;
    LS_CUDA_TRY(forward_check(a, err));
    const ls_cuda_operand operands[] = {{"x", a->x, ls_dtype_bytes(a->x_dtype), a->m == 0},
                                        {"w", a->w, ls_dtype_bytes(a->w_dtype), false},
                                        {"w_tiles", a->w_tiles, 128, true},
                                        {"bias", a->bias, 4, true},
                                        {"out", a->out, ls_dtype_bytes(a->out_dtype), a->m == 0},
                                        {"range", a->range, 8, true}};
    LS_CUDA_TRY(ls_cuda_check("gemm", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_cuda_gemm_workspace(a), err));
    if (a->m == 0) return LS_OK;
    ls_product product = forward_product(a);
    if (a->range != NULL) {
        LS_CUDA_TRY(ls_cuda_fault_begin("gemm", exec, &fault, err));
        product.range = a->range;
        product.fault = fault;
    }
    LS_CUDA_TRY(a->profile == LS_PROFILE_MMA16 ? product_mma16(exec, &product, a->w_tiles, a->nan_open, err)
                                               : ls_product_exact(exec, &product, err));
    return fault == NULL ? LS_OK : ls_cuda_fault_end("gemm", exec, fault, err);
}

/* ---- memory of the device: weights as stored, and as tiles ---- */

static const void *tiles_of(const ls_gemm_weight *w) {
    return w->dtype == LS_BF16 && w->panel_stride != 0 ? (const uint8_t *)w->panels + w->panel_stride : NULL;
}

ls_status ls_cuda_gemm_repack(const ls_exec *exec, const ls_gemm_repack_args *a, ls_error *err) {
    const ls_gemm_weight *weight = a->weight;
    const int64_t stored = weight->n * weight->k * ls_dtype_bytes(weight->dtype);
    uint8_t *panels = (uint8_t *)weight->panels;
    if (a->dtype == weight->dtype) {
        if (a->w != panels) LS_CUDA_TRY(ls_cuda_move(exec, panels, stored, a->w, stored, 1, stored, err));
        if (weight->dtype != LS_BF16 || weight->panel_stride == 0) return LS_OK;
        return ls_cuda_gemm_pack(exec, panels + weight->panel_stride, panels, weight->n, weight->k, err);
    }
    if (a->dtype != LS_F16 || weight->dtype != LS_F32)
        return LS_FAIL(err, LS_ERR_ARG, "gemm weight: %s into panels of %s", ls_dtype_name(a->dtype),
                       ls_dtype_name(weight->dtype));
    const ls_widen_args widen = {a->w, LS_F16, weight->n * weight->k, (float *)weight->panels, false};
    return ls_cuda_widen(exec, &widen, err);
}

/* Rows that are worth a proof of cuBLASLt, so that there are few of them: multiples to which engines pad their batches;
 * of gradients, whose rows are those of whatever sequences a leaf has, round numbers. */
static bool forward_worth_proof(int64_t rows) { return rows % 64 == 0; }
static bool gradient_worth_proof(int64_t rows) { return rows % 512 == 0 || rows == 128 || rows == 256; }

/* Proves cuBLASLt for a product of this kind at its first call outside of a captured graph. A refusal is no error: the
 * project's own kernels compute it. */
static ls_status assure_proof(const ls_exec *exec, const ls_product *product, const ls_product_other *other,
                              ls_error *err) {
    cudaStreamCaptureStatus capture;
    ls_error why;
    bool admitted;
    if (ls_product_cublas_known(product, other)) return LS_OK;
    LS_CUDA_TRY(ls_cuda_status(cudaStreamIsCapturing((cudaStream_t)exec->stream, &capture), product->op, err));
    if (capture != cudaStreamCaptureStatusNone) return LS_OK;
    /* What still reads the place of out is before this call on its stream. */
    LS_CUDA_TRY(ls_cuda_status(cudaStreamSynchronize((cudaStream_t)exec->stream), product->op, err));
    if (ls_product_cublas_prepare(product, other, true, &admitted, &why) == LS_OK || why.status == LS_ERR_UNSUPPORTED ||
        why.status == LS_ERR_CAPACITY)
        return LS_OK;
    *err = why;
    return why.status;
}

ls_status ls_cuda_gemm(const ls_exec *exec, const ls_gemm_args *a, ls_error *err) {
    const ls_gemm_weight *w = a->weight;
    const void *tiles = tiles_of(w);
    const ls_cuda_gemm_args args = {.x = a->x,
                                    .x_dtype = a->x_dtype,
                                    .x_stride = a->x_stride,
                                    .w = w->panels,
                                    .w_dtype = w->dtype,
                                    .w_tiles = tiles,
                                    .bias = a->bias,
                                    .out = a->out,
                                    .out_dtype = a->out_dtype,
                                    .out_stride = a->out_stride,
                                    .m = a->m,
                                    .n = w->n,
                                    .k = w->k,
                                    .profile = a->profile,
                                    .nan_open = a->nan_open,
                                    .range = a->range};
    if (a->profile == LS_PROFILE_MMA16 && a->nan_open && a->m > 0 && a->bias == NULL && a->range == NULL &&
        forward_worth_proof(a->m) && (tiles == NULL || !ls_decode_takes(a->m, w->n))) {
        const ls_product product = forward_product(&args);
        LS_CUDA_TRY(assure_proof(exec, &product, NULL, err));
    }
    return ls_cuda_gemm_stored(exec, &args, err);
}

/* Two products of one x, by weights of one shape. */
typedef struct two_products {
    const char *op;
    const ls_gemm_args *first; /* its out is float32 where a gate comes behind */
    const ls_gemm_weight *other;
    void *other_out;
} two_products;

/* One of several products of an x in one kernel. */
static ls_product one_of_several(const char *op, const ls_gemm_args *g, void *out, ls_dtype out_dtype) {
    const ls_product product = {.op = op,
                                .rows = g->m,
                                .cols = g->weight->n,
                                .depth = g->weight->k,
                                .a = g->x,
                                .a_dtype = g->x_dtype,
                                .a_row = g->x_stride,
                                .a_step = 1,
                                .b = g->weight->panels,
                                .b_dtype = g->weight->dtype,
                                .b_col = g->weight->k,
                                .b_step = 1,
                                .out = out,
                                .out_dtype = out_dtype,
                                .out_stride = g->out_stride,
                                .bias = NULL,
                                .mode = LS_PRODUCT_STORE,
                                .fault = NULL,
                                .range = NULL,
                                .range_of_depth = false,
                                .out_rows = NULL,
                                .b_steps = NULL};
    return product;
}

/* Whether there are kernels for several products at once here. */
static ls_status several_possible(const char *op, const ls_gemm_args *g, ls_dtype out_dtype, bool *possible,
                                  ls_error *err) {
    *possible = false;
    if (g->profile != LS_PROFILE_MMA16 || g->m < 1 || out_dtype == LS_F16) return LS_OK;
    return ls_is_hopper(possible, op, err);
}

/* Few rows in mma16: one kernel. gated: what comes out of the gate and its type, else NULL. *taken says whether it
 * could. */
static ls_status two_at_once(const ls_exec *exec, const two_products *two, const ls_swiglu_args *gated, bool *taken,
                             ls_error *err) {
    const ls_gemm_args *g = two->first;
    const ls_gemm_weight *w = g->weight, *other = two->other;
    void *out = gated != NULL ? gated->y : g->out;
    const ls_dtype out_dtype = gated != NULL ? gated->y_dtype : g->out_dtype;
    void *other_out = gated != NULL ? NULL : two->other_out;
    const ls_cuda_operand operands[] = {{"x", g->x, 2, false},
                                        {"weight", w->panels, 128, false},
                                        {"other weight", other->panels, 128, false},
                                        {"out", out, ls_dtype_bytes(out_dtype), false},
                                        {"other out", other_out, ls_dtype_bytes(out_dtype), gated != NULL}};
    const ls_product product = one_of_several(two->op, g, out, out_dtype);
    bool possible;
    *taken = false;
    LS_CUDA_TRY(several_possible(two->op, g, out_dtype, &possible, err));
    if (!possible) return LS_OK;
    LS_CUDA_TRY(ls_cuda_check(two->op, exec, operands, 5, LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(ls_cuda_mma16_proven(err));
    return ls_product_mma16_two(exec, &product, tiles_of(w), tiles_of(other), other_out, taken, err);
}

/* Rows up to which products that share an x are one call: more fill the chip one by one. */
#define TOGETHER_ROWS 512

/* Three products in one kernel: of few rows, where two are narrow, or of some more. */
static ls_status three_at_once(const ls_exec *exec, const ls_gemm_three_args *a, bool *taken, ls_error *err) {
    const ls_gemm_args *g = &a->first;
    const int64_t elem = ls_dtype_bytes(g->out_dtype);
    const ls_cuda_operand operands[] = {{"x", g->x, 2, false},
                                        {"weight", g->weight->panels, 128, false},
                                        {"second weight", a->others[0]->panels, 128, false},
                                        {"third weight", a->others[1]->panels, 128, false},
                                        {"out", g->out, elem, false},
                                        {"second out", a->outs[0], elem, false},
                                        {"third out", a->outs[1], elem, false}};
    ls_product products[3] = {one_of_several("gemm_three", g, g->out, g->out_dtype)};
    const void *tiles[3] = {tiles_of(g->weight)};
    bool possible;
    *taken = false;
    LS_CUDA_TRY(several_possible("gemm_three", g, g->out_dtype, &possible, err));
    if (!possible || g->m > TOGETHER_ROWS) return LS_OK;
    for (int i = 0; i < 2; i++) {
        const ls_gemm_args other = ls_gemm_other(a, i);
        products[i + 1] = one_of_several("gemm_three", &other, other.out, other.out_dtype);
        tiles[i + 1] = tiles_of(other.weight);
    }
    LS_CUDA_TRY(ls_cuda_check("gemm_three", exec, operands, 7, LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(ls_cuda_mma16_proven(err));
    LS_CUDA_TRY(ls_product_mma16_three(exec, products, tiles, taken, err));
    return *taken || g->m <= LS_CUDA_GEMM_DECODE_ROWS ? LS_OK
                                                      : ls_product_mma16_wgmma_three(exec, products, taken, err);
}

/* Some rows more: both products in one call. */
static ls_status both_at_once(const ls_exec *exec, const two_products *two, bool *taken, ls_error *err) {
    const ls_gemm_args *g = two->first;
    const ls_cuda_gemm_args args = {.x = g->x,
                                    .x_dtype = g->x_dtype,
                                    .x_stride = g->x_stride,
                                    .w = g->weight->panels,
                                    .w_dtype = g->weight->dtype,
                                    .w_tiles = NULL,
                                    .bias = g->bias,
                                    .out = g->out,
                                    .out_dtype = g->out_dtype,
                                    .out_stride = g->out_stride,
                                    .m = g->m,
                                    .n = g->weight->n,
                                    .k = g->weight->k,
                                    .profile = g->profile,
                                    .nan_open = g->nan_open,
                                    .range = g->range};
    const int64_t elem = ls_dtype_bytes(g->out_dtype);
    const ls_product_other other = {two->other->panels, two->other_out};
    *taken = false;
    if (g->profile != LS_PROFILE_MMA16 || !g->nan_open || g->m <= LS_CUDA_GEMM_DECODE_ROWS || g->m > TOGETHER_ROWS)
        return LS_OK;
    const ls_product product = forward_product(&args);
    const ls_cuda_operand operands[] = {{"x", g->x, 2, false},
                                        {"weight", g->weight->panels, 128, false},
                                        {"other weight", two->other->panels, 128, false},
                                        {"out", g->out, elem, false},
                                        {"other out", two->other_out, elem, false}};
    LS_CUDA_TRY(forward_check(&args, err));
    LS_CUDA_TRY(ls_cuda_check(two->op, exec, operands, 5, LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(ls_cuda_mma16_proven(err));
    if (forward_worth_proof(g->m)) {
        LS_CUDA_TRY(assure_proof(exec, &product, NULL, err));
        LS_CUDA_TRY(assure_proof(exec, &product, &other, err));
    }
    return ls_product_mma16_cublas(exec, &product, &other, taken, err);
}

/* One call where that can be, else one after the other. */
static ls_status compute_both(const ls_exec *exec, const two_products *two, ls_error *err) {
    ls_gemm_args other = *two->first;
    bool taken;
    LS_CUDA_TRY(both_at_once(exec, two, &taken, err));
    if (taken) return LS_OK;
    other.weight = two->other;
    other.out = two->other_out;
    LS_CUDA_TRY(ls_cuda_gemm(exec, two->first, err));
    return ls_cuda_gemm(exec, &other, err);
}

ls_status ls_cuda_gemm_gated(const ls_exec *exec, const ls_gemm_gated_args *a, ls_error *err) {
    const ls_swiglu_args swiglu = {(const float *)a->gate.out, a->up_out, a->y, a->y_dtype, a->gate.m, a->up->n};
    const two_products two = {"gemm_gated", &a->gate, a->up, a->up_out};
    bool taken;
    LS_CUDA_TRY(two_at_once(exec, &two, &swiglu, &taken, err));
    if (taken) return LS_OK;
    LS_CUDA_TRY(compute_both(exec, &two, err));
    return ls_cuda_swiglu(exec, &swiglu, err);
}

ls_status ls_cuda_gemm_three(const ls_exec *exec, const ls_gemm_three_args *a, ls_error *err) {
    const ls_gemm_args second = ls_gemm_other(a, 0);
    const two_products others = {"gemm_three", &second, a->others[1], a->outs[1]};
    bool taken;
    LS_CUDA_TRY(three_at_once(exec, a, &taken, err));
    if (taken) return LS_OK;
    LS_CUDA_TRY(ls_cuda_gemm(exec, &a->first, err));
    LS_CUDA_TRY(two_at_once(exec, &others, NULL, &taken, err));
    return taken ? LS_OK : compute_both(exec, &others, err);
}

ls_status ls_cuda_gemm_prepare(const ls_cuda_gemm_args *a, ls_error *err) {
    const ls_product product = forward_product(a);
    bool admitted;
    LS_CUDA_TRY(forward_check(a, err));
    if (a->profile != LS_PROFILE_MMA16 || a->m == 0)
        return LS_FAIL(err, LS_ERR_ARG, "gemm: nothing to prepare for profile %s and m %lld",
                       ls_profile_name(a->profile), (long long)a->m);
    LS_CUDA_TRY(ls_cuda_mma16_proven(err));
    return ls_product_cublas_prepare(&product, NULL, false, &admitted, err);
}

ls_status ls_cuda_gemm_prepare_planted(const ls_cuda_gemm_args *a, ls_error *err) {
    const ls_product product = forward_product(a);
    bool admitted;
    LS_CUDA_TRY(forward_check(a, err));
    return ls_product_cublas_planted(&product, &admitted, err);
}

/* ---- backward ---- */

/* Whether products read a matrix of bf16 as it is: at addresses that bulk copies take. */
static bool can_read(const void *rows, int64_t stride) {
    return rows != NULL && (uintptr_t)rows % 16 == 0 && stride % 8 == 0;
}

/* Gradients of the outputs: float32, rounded, or both. */
typedef struct dy_source {
    const float *dy;
    const void *rounded;
    int64_t dy_stride, rounded_stride, m, n;
} dy_source;

/* Rounded rows that a product can read: those that the caller has or, in the workspace, rows made of what there is. */
static ls_status readable_dy(const ls_exec *exec, const char *op, const dy_source *s, const ls_fault *fault,
                             const void **rows, int64_t *stride, ls_error *err) {
    uint16_t *to = (uint16_t *)((uint8_t *)exec->workspace + LS_WORKSPACE_HEAD);
    const bool f32 = s->rounded == NULL;
    gather_params g = {.to = to,
                       .rows = s->m,
                       .stride = up_to(s->n, 8),
                       .from = f32 ? s->dy : s->rounded,
                       .f32 = f32,
                       .from_rows = s->m,
                       .cols = s->n,
                       .from_stride = f32 ? s->dy_stride : s->rounded_stride,
                       .sequences = NULL,
                       .starts = NULL,
                       .n_sequences = 0,
                       .fault = fault,
                       .wide = false};
    *rows = s->rounded;
    *stride = s->rounded_stride;
    if (can_read(s->rounded, s->rounded_stride)) return LS_OK;
    *rows = to;
    *stride = g.stride;
    return gather(exec, op, &g, err);
}

ls_status ls_cuda_gemm_backward_input(const ls_exec *exec, const ls_gemm_backward_input_args *a, ls_error *err) {
    const char *op = "gemm_backward_input";
    ls_fault *fault = NULL;
    LS_CUDA_TRY(ls_gemm_backward_input_check(a, err));
    const bool is_rounded = a->profile == LS_PROFILE_MMA16 && a->dy_rounded != NULL;
    const ls_cuda_operand operands[] = {{"dy", a->dy, 4, a->m == 0 || is_rounded},
                                        {"w", a->w, ls_dtype_bytes(a->w_dtype), false},
                                        {"dx", a->dx, 4, a->m == 0},
                                        {"dx_rows", a->dx_rows, 8, true},
                                        {"range", a->range, 8, true}};
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 5, ls_cuda_gemm_backward_input_workspace(a), err));
    if (a->m == 0) return LS_OK;
    list_check list = {
        .rows = a->dx_rows, .range = a->range, .m = a->m, .count = a->dx_count, .ascending = true, .fault = NULL};
    LS_CUDA_TRY(check_list(op, exec, &list, err));
    fault = list.fault;
    ls_product product = {.op = op,
                          .rows = a->m,
                          .cols = a->k,
                          .depth = a->n,
                          .a = a->dy,
                          .a_dtype = LS_F32,
                          .a_row = a->dy_stride,
                          .a_step = 1,
                          .b = a->w,
                          .b_dtype = a->w_dtype,
                          .b_col = 1,
                          .b_step = a->k,
                          .out = a->dx,
                          .out_dtype = LS_F32,
                          .out_stride = a->dx_stride,
                          .bias = NULL,
                          .mode = a->add ? LS_PRODUCT_ADD : LS_PRODUCT_STORE,
                          .fault = fault,
                          .range = a->range,
                          .range_of_depth = false,
                          .out_rows = a->dx_rows,
                          .b_steps = NULL};
    if (a->profile == LS_PROFILE_EXACT) {
        LS_CUDA_TRY(ls_product_exact(exec, &product, err));
    } else {
        const dy_source dy = {.dy = a->dy,
                              .rounded = a->dy_rounded,
                              .dy_stride = a->dy_stride,
                              .rounded_stride = a->dy_rounded_stride,
                              .m = a->m,
                              .n = a->n};
        product.a_dtype = LS_BF16;
        LS_CUDA_TRY(readable_dy(exec, op, &dy, fault, &product.a, &product.a_row, err));
        if (gradient_worth_proof(a->m)) LS_CUDA_TRY(assure_proof(exec, &product, NULL, err));
        LS_CUDA_TRY(product_mma16(exec, &product, NULL, true, err));
    }
    return fault == NULL ? LS_OK : ls_cuda_fault_end(op, exec, fault, err);
}

/* Nothing to pad: x as it is, and dy rounded. */
static ls_status whole_weight_mma16(const ls_exec *exec, const ls_gemm_backward_weight_args *a, ls_product *product,
                                    ls_error *err) {
    const dy_source dy = {.dy = a->dy,
                          .rounded = a->dy_rounded,
                          .dy_stride = a->dy_stride,
                          .rounded_stride = a->dy_rounded_stride,
                          .m = a->m,
                          .n = a->n};
    product->a_dtype = LS_BF16;
    LS_CUDA_TRY(readable_dy(exec, product->op, &dy, NULL, &product->a, &product->a_step, err));
    if (gradient_worth_proof(a->m)) LS_CUDA_TRY(assure_proof(exec, product, NULL, err));
    return product_mma16(exec, product, NULL, true, err);
}

/* Rows where their sequences' steps of 16 have them. */
static ls_status weight_mma16(const ls_exec *exec, const ls_gemm_backward_weight_args *a, ls_product *product,
                              ls_fault *fault, ls_error *err) {
    const int64_t rows = ls_gemm_padded_rows(a);
    uint8_t *workspace = (uint8_t *)exec->workspace + LS_WORKSPACE_HEAD;
    int64_t *starts = (int64_t *)workspace;
    uint16_t *dy = (uint16_t *)(workspace + ls_gemm_starts_bytes(a));
    uint16_t *x = (uint16_t *)((uint8_t *)dy + ls_gemm_gathered_bytes(rows, a->n));
    const bool is_rounded = a->dy_rounded != NULL;
    starts_params s = {a->sequences, a->n_sequences, starts, fault};
    gather_params of_dy = {.to = dy,
                           .rows = rows,
                           .stride = up_to(a->n, 8),
                           .from = is_rounded ? (const void *)a->dy_rounded : a->dy,
                           .f32 = !is_rounded,
                           .from_rows = a->m,
                           .cols = a->n,
                           .from_stride = is_rounded ? a->dy_rounded_stride : a->dy_stride,
                           .sequences = a->sequences,
                           .starts = starts,
                           .n_sequences = a->n_sequences,
                           .fault = fault,
                           .wide = false};
    gather_params of_x = {.to = x,
                          .rows = rows,
                          .stride = up_to(a->k, 8),
                          .from = a->x,
                          .f32 = false,
                          .from_rows = a->m,
                          .cols = a->k,
                          .from_stride = a->x_stride,
                          .sequences = a->sequences,
                          .starts = starts,
                          .n_sequences = a->n_sequences,
                          .fault = fault,
                          .wide = false};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"sequence", a->n_sequences + 1}, {"offset", 8}}}}};
    const ls_launch launch = {product->op, {1, 1, 1}, GATHER_THREADS, 0, index, 1};
    LS_CUDA_TRY(ls_cuda_launch(exec, &launch, (const void *)starts_kernel, &s, err));
    LS_CUDA_TRY(gather(exec, product->op, &of_dy, err));
    LS_CUDA_TRY(gather(exec, product->op, &of_x, err));
    product->depth = rows;
    product->a = dy;
    product->a_dtype = LS_BF16;
    product->a_step = of_dy.stride;
    product->b = x;
    product->b_step = of_x.stride;
    product->fault = fault;
    return product_mma16(exec, product, NULL, false, err);
}

ls_status ls_cuda_gemm_backward_weight(const ls_exec *exec, const ls_gemm_backward_weight_args *a, ls_error *err) {
    const char *op = "gemm_backward_weight";
    const bool mma16 = a->profile == LS_PROFILE_MMA16;
    ls_fault *fault = NULL;
    LS_CUDA_TRY(ls_gemm_backward_weight_check(a, err));
    if (mma16 && a->x_rows != NULL)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: x_rows: not on cuda in profile mma16", op);
    const bool dy_open = a->m == 0 || (mma16 && a->dy_rounded != NULL && a->dbias == NULL);
    const ls_cuda_operand operands[] = {{"dy", a->dy, 4, dy_open},
                                        {"x", a->x, ls_dtype_bytes(a->x_dtype), a->m == 0},
                                        {"sequences", a->sequences, 8, !mma16 || a->m == 0},
                                        {"dw", a->dw, 4, false},
                                        {"dbias", a->dbias, 4, true},
                                        {"x_rows", a->x_rows, 8, true},
                                        {"range", a->range, 8, true}};
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 7, ls_cuda_gemm_backward_weight_workspace(a), err));
    if (a->m == 0) return LS_OK;
    ls_product product = {.op = op,
                          .rows = a->n,
                          .cols = a->k,
                          .depth = a->m,
                          .a = a->dy,
                          .a_dtype = LS_F32,
                          .a_row = 1,
                          .a_step = a->dy_stride,
                          .b = a->x,
                          .b_dtype = a->x_dtype,
                          .b_col = 1,
                          .b_step = a->x_stride,
                          .out = a->dw,
                          .out_dtype = LS_F32,
                          .out_stride = a->k,
                          .bias = NULL,
                          .mode = LS_PRODUCT_CONTINUE,
                          .fault = NULL,
                          .range = a->range,
                          .range_of_depth = true,
                          .out_rows = NULL,
                          .b_steps = a->x_rows};
    if (a->dw_is_zero) product.mode = LS_PRODUCT_STORE;
    if (mma16 && a->sequences_whole) {
        LS_CUDA_TRY(whole_weight_mma16(exec, a, &product, err));
    } else if (mma16) {
        LS_CUDA_TRY(ls_cuda_mma16_proven(err));
        LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &fault, err));
        ls_offset_check check = {a->sequences, a->n_sequences, a->m, fault};
        LS_CUDA_TRY(ls_cuda_check_offsets(op, exec, &check, err));
        LS_CUDA_TRY(weight_mma16(exec, a, &product, fault, err));
    } else {
        list_check list = {
            .rows = a->x_rows, .range = a->range, .m = a->m, .count = a->x_count, .ascending = false, .fault = NULL};
        LS_CUDA_TRY(check_list(op, exec, &list, err));
        product.fault = fault = list.fault;
        LS_CUDA_TRY(ls_product_exact(exec, &product, err));
    }
    if (a->dbias != NULL) {
        bias_params p = {*a, fault};
        const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->m}, {"dy stride", a->dy_stride}, {"element", 4}}}}};
        const ls_launch launch = {op, {(a->n - 1) / BIAS_THREADS + 1, 1, 1}, BIAS_THREADS, 0, index, 1};
        LS_CUDA_TRY(ls_cuda_launch(exec, &launch, (const void *)bias_kernel, &p, err));
    }
    return fault == NULL ? LS_OK : ls_cuda_fault_end(op, exec, fault, err);
}
