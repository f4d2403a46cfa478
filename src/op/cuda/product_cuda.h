/* What the dense products on CUDA share: every direction is one product of two matrices, whichever way they lie. */
#ifndef LS_OP_PRODUCT_CUDA_H
#define LS_OP_PRODUCT_CUDA_H

#include "dev/cuda.h"
#include "num/half.h"
#include "op/cuda/vector_cuda.h"

/* How a chain begins and ends: from +0, with bias and rounding, into out; from +0 and added to out; from out into out.
 */
typedef enum ls_product_mode { LS_PRODUCT_STORE, LS_PRODUCT_ADD, LS_PRODUCT_CONTINUE } ls_product_mode;

/* out[i][j]: chain over s < depth of (a(i, s), b(s, j)). */
typedef struct ls_product {
    const char *op;
    int64_t rows, cols, depth;
    const void *a; /* a(i, s) at i * a_row + s * a_step elements; one of the two strides is 1 */
    ls_dtype a_dtype;
    int64_t a_row, a_step;
    const void *b; /* b(s, j) at j * b_col + s * b_step; one of the two strides is 1 */
    ls_dtype b_dtype;
    int64_t b_col, b_step;
    void *out; /* i * out_stride + j */
    ls_dtype out_dtype;
    int64_t out_stride;
    const float *bias; /* [cols] or NULL; LS_PRODUCT_STORE only */
    ls_product_mode mode;
    ls_fault *fault; /* nothing is written where it holds one; NULL: nothing is checked on the device */
    /* What only device memory knows. NULL: all rows and depths, in order. range is for ls_product_exact and
     * ls_product_mma16_plain alone, out_rows for ls_product_mma16_wgmma as well, b_steps for ls_product_exact alone. */
    const int64_t *range;    /* two numbers: the first row and the row after the last, or the same of the depth */
    bool range_of_depth;     /* which of the two */
    const int64_t *out_rows; /* [rows]: row i of the product is row out_rows[i] of out */
    const int64_t *b_steps;  /* [depth]: step s takes step b_steps[s] of b */
} ls_product;

/* The float32 fma chain, any types. */
ls_status ls_product_exact(const ls_exec *exec, const ls_product *product, ls_error *err);

/* Chains of steps of 16. Operands are bf16. plain: any strides and sizes; the others say in *taken whether they could.
 */
ls_status ls_product_mma16_plain(const ls_exec *exec, const ls_product *product, ls_error *err);
ls_status ls_product_mma16_wgmma(const ls_exec *exec, const ls_product *product, bool *taken, ls_error *err);

/* Three products of one a, each with an out of its own. All store, have no bias and know no range. */
ls_status ls_product_mma16_wgmma_three(const ls_exec *exec, const ls_product products[3], bool *taken, ls_error *err);

/* How the kernel for few rows cuts its work; none of it carries a bit. */
typedef struct ls_decode_plan {
    int64_t stage_tiles;  /* of 64 depths, that travel together */
    int64_t shared_bytes; /* of a block: as many stages as fit */
    int64_t block_rows;   /* of x, that a block takes: in sixteens up to 64, or 128 by two warpgroups */
} ls_decode_plan;

ls_decode_plan ls_decode_plan_for(int64_t rows, int64_t cols);
/* Whether so many rows and a weight of `cols` are for this kernel: up to LS_CUDA_GEMM_DECODE_ROWS rows, more beside a
 * narrow weight and beside a wide one (op/gemm_cuda.h). */
bool ls_decode_takes(int64_t rows, int64_t cols);
/* b as tiles of ls_cuda_gemm_pack. */
ls_status ls_product_mma16_decode(const ls_exec *exec, const ls_product *product, const void *tiles,
                                  ls_decode_plan plan, bool *taken, ls_error *err);
/* Two of them, whose weights have the same shape, each with an out of the same type and stride; other_out NULL: out =
 * R(silu(first) * second). */
ls_status ls_product_mma16_two(const ls_exec *exec, const ls_product *product, const void *tiles,
                               const void *other_tiles, void *other_out, bool *taken, ls_error *err);

/* Three of one a, the second and third narrow, of one size and one stride of their outs. */
ls_status ls_product_mma16_three(const ls_exec *exec, const ls_product products[3], const void *const tiles[3],
                                 bool *taken, ls_error *err);

/* A second product of the same x and sizes: its b and out. */
typedef struct ls_product_other {
    const void *b;
    void *out;
} ls_product_other;

/* cuBLASLt. With `other`, two products in one call, which fill the chip where one does not. prepare: proves an
 * algorithm for the product's sizes, layouts and types on data of its own, once; waits and allocates; the error says
 * why there is none. The product is then taken by it, where it is faster than what takes it otherwise. in_out: nobody
 * uses the product's out meanwhile, and the proof may write there, which spares memory. */
ls_status ls_product_cublas_prepare(const ls_product *product, const ls_product_other *other, bool in_out,
                                    bool *admitted, ls_error *err);
/* Whether prepare has been called for such a product, whatever it found; true also where the library is not there. */
bool ls_product_cublas_known(const ls_product *product, const ls_product_other *other);
/* For tests: the same proof of algorithms that are made to split the depth; keeps nothing. */
ls_status ls_product_cublas_planted(const ls_product *product, bool *admitted, ls_error *err);
ls_status ls_product_mma16_cublas(const ls_exec *exec, const ls_product *product, const ls_product_other *other,
                                  bool *taken, ls_error *err);

#ifdef __CUDACC__
/* Rows and depths of a product that are computed. */
typedef struct ls_product_part {
    int64_t row, row_end, depth, depth_end;
} ls_product_part;

/* False where nothing may be written: a fault is known, or the range is none, which is then put on record. */
static __device__ __forceinline__ bool ls_product_part_of(const ls_product *p, ls_product_part *part) {
    const int64_t count = p->range_of_depth ? p->depth : p->rows;
    *part = ls_product_part{0, p->rows, 0, p->depth};
    if (p->fault != NULL && p->fault->code != LS_FAULT_NONE) return false;
    if (p->range == NULL) return true;
    const int64_t first = p->range[0], end = p->range[1];
    if (first < 0 || end < first || end > count) {
        if (blockIdx.x == 0 && threadIdx.x == 0) *p->fault = ls_fault{LS_FAULT_RANGE, first, end, count};
        return false;
    }
    (p->range_of_depth ? part->depth : part->row) = first;
    (p->range_of_depth ? part->depth_end : part->row_end) = end;
    return true;
}

/* Where output (i, j) lies in out. */
static __device__ __forceinline__ int64_t ls_product_at(const ls_product *p, int64_t i, int64_t j) {
    return (p->out_rows == NULL ? i : p->out_rows[i]) * p->out_stride + j;
}

/* The end of a chain for one output: canonical NaN, then the bias or what is there, then one rounding. */
static __device__ __forceinline__ float ls_product_end(const ls_product *p, int64_t i, int64_t j, float acc) {
    float y = ls_canonical(acc);
    if (p->bias != NULL) y = ls_canonical(ls_add(y, p->bias[j]));
    if (p->mode == LS_PRODUCT_ADD) y = ls_canonical(ls_add(((const float *)p->out)[ls_product_at(p, i, j)], y));
    return y;
}

static __device__ __forceinline__ void ls_product_store(const ls_product *p, int64_t i, int64_t j, float acc) {
    const float y = ls_product_end(p, i, j, acc);
    const int64_t at = ls_product_at(p, i, j);
    if (p->out_dtype == LS_F32)
        ((float *)p->out)[at] = y;
    else
        ((uint16_t *)p->out)[at] = ls_f32_to_bf16(y);
}

static __device__ __forceinline__ float ls_product_begin(const ls_product *p, int64_t i, int64_t j) {
    if (p->mode != LS_PRODUCT_CONTINUE || i >= p->rows || j >= p->cols) return 0.0f;
    return ((const float *)p->out)[ls_product_at(p, i, j)];
}

/* Eight neighbouring outputs from shared memory, to one store or two where they are aligned and all there. */
static __device__ __forceinline__ void ls_product_store8(const ls_product *p, int64_t i, int64_t j, const float *acc) {
    if (i >= p->rows || j >= p->cols) return;
    const int64_t at = ls_product_at(p, i, j);
    uint8_t *to = (uint8_t *)p->out + at * (p->out_dtype == LS_F32 ? 4 : 2);
    float y[8];
    if (j + 8 > p->cols || (uintptr_t)to % 16 != 0) {
#pragma unroll 1
        for (int c = 0; c < 8 && j + c < p->cols; c++) ls_product_store(p, i, j + c, acc[c]);
        return;
    }
#pragma unroll
    for (int c = 0; c < 8; c++) y[c] = ls_canonical(acc[c]);
    if (p->bias != NULL)
#pragma unroll
        for (int c = 0; c < 8; c++) y[c] = ls_canonical(ls_add(y[c], p->bias[j + c]));
    if (p->mode == LS_PRODUCT_ADD)
#pragma unroll
        for (int c = 0; c < 8; c++) y[c] = ls_canonical(ls_add(((const float *)to)[c], y[c]));
    if (p->out_dtype == LS_F32) {
        ((float4 *)to)[0] = make_float4(y[0], y[1], y[2], y[3]);
        ((float4 *)to)[1] = make_float4(y[4], y[5], y[6], y[7]);
    } else {
        uint32_t pair[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            pair[c] = (uint32_t)ls_narrow_one<LS_BF16>(y[2 * c]) | (uint32_t)ls_narrow_one<LS_BF16>(y[2 * c + 1]) << 16;
        *(uint4 *)to = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
}

static __device__ __forceinline__ bool ls_product_faulty(const ls_product *p) {
    return p->fault != NULL && p->fault->code != LS_FAULT_NONE;
}
#endif

/* Every index expression of a product, for its launch contract: three of them. */
#define LS_PRODUCT_INDEX(p)                                                                          \
    {                                                                                                \
        {LS_WIDTH_I64,                                                                               \
         {{{"row", (p)->rows}, {"a row", (p)->a_row}, {"element", 4}},                               \
          {{"depth", (p)->depth}, {"a step", (p)->a_step}, {"element", 4}}}},                        \
            {LS_WIDTH_I64,                                                                           \
             {{{"column", (p)->cols}, {"b column", (p)->b_col}, {"element", 4}},                     \
              {{"depth", (p)->depth}, {"b step", (p)->b_step}, {"element", 4}}}},                    \
            {LS_WIDTH_I64, {{{"row", (p)->rows}, {"out stride", (p)->out_stride}, {"element", 4}}}}, \
    }
#define LS_PRODUCT_INDICES 3

#endif
