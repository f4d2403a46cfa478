/* What the two sides of check_scalars share: the functions under test, the inputs they get, and the sum that stands for
 * the results of a block of inputs. One text for gcc, clang and nvcc. */
#ifndef LS_TESTS_SCALARS_H
#define LS_TESTS_SCALARS_H

#include "lockstep/ops.h"
#include "num/expf.h"
#include "num/half.h"
#ifdef __CUDACC__
#include "op/cuda/vector_cuda.h"
#endif

#define SCALARS_BLOCK 65536 /* inputs that one sum stands for */

/* ---- pairs of factors for ls_exp2_product ---- */

typedef struct scalars_pair {
    float a, b;
} scalars_pair;

/* 64 bits without pattern for each i. */
static LS_HD uint64_t scalars_random(uint64_t i) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
    x = (x ^ x >> 29) * 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

/* The sign and significand of these bits with this exponent. */
static LS_HD float scalars_with_exponent(uint32_t bits, int exponent) {
    return ls_from_bits((bits & 0x807FFFFFu) | (uint32_t)(127 + exponent) << 23);
}

/* Zeros, subnormals, the borders -126 and 127, what rounds at the magic number, infinity, NaN; i < 16. */
static LS_HD float scalars_edge(uint32_t i) {
    const uint32_t edges[16] = {0x00000000u, 0x00000001u, 0x007FFFFFu, 0x00800000u, 0x33800000u, 0x3F000000u,
                                0x3F7FFFFFu, 0x3F800000u, 0x3F800001u, 0x42FC0000u, 0x42FDFFFFu, 0x42FE0000u,
                                0x4B400000u, 0x7F7FFFFFu, LS_INF_BITS, 0x7FA00001u};
    return ls_from_bits(edges[i]);
}

/* The first 2^10 pairs are every edge with every edge, under both signs. Of the others a quarter is any bits, a quarter
 * has a product within [2^-24, 2^8), and a half has a product a few ulps around a border or a tie between integers. */
static LS_HD scalars_pair scalars_pair_at(uint32_t i) {
    const uint64_t random = scalars_random(i);
    const uint32_t low = (uint32_t)random, high = (uint32_t)(random >> 32),
                   more = (uint32_t)scalars_random(~(uint64_t)i);
    const int exponent = (int)(more % 61) - 30, nudge = (int)(more >> 16 & 7) - 4;
    scalars_pair pair;
    if (i < 1024) {
        pair.a = ls_mul(scalars_edge(i & 15), (i & 256) != 0 ? -1.0f : 1.0f);
        pair.b = ls_mul(scalars_edge(i >> 4 & 15), (i & 512) != 0 ? -1.0f : 1.0f);
    } else if (i % 4 == 0) {
        pair.a = ls_from_bits(low);
        pair.b = ls_from_bits(high);
    } else if (i % 4 == 1) {
        pair.a = scalars_with_exponent(low, exponent);
        pair.b = scalars_with_exponent(high, (int)(more >> 16 & 31) - 24 - exponent);
    } else {
        const float border = (i & 4) != 0 ? 127.0f : -126.0f, tie = ls_add((float)((int)(low % 256) - 128), 0.5f);
        pair.b = scalars_with_exponent(high, exponent);
        pair.a = ls_from_bits(ls_bits(ls_div(i % 4 == 2 ? border : tie, pair.b)) + (uint32_t)nudge);
    }
    return pair;
}

static LS_HD float scalars_product(uint32_t i) {
    const scalars_pair pair = scalars_pair_at(i);
    return ls_exp2_product(pair.a, pair.b);
}

/* All multiples of 2^-13 from 9 down to -247, in this order. */
#define SCALARS_LIFTED_LOG2 21
static LS_HD uint16_t scalars_lifted(uint32_t i) {
    return ls_f32_to_bf16(ls_exp2_lifted(ls_sub(LS_EXP2_LIFT + 9.0f, ls_mul((float)i, 0x1p-13f))));
}

/* ---- what a GPU does in hardware ---- */

static LS_HD uint16_t scalars_narrow_bf16(float x) {
#ifdef __CUDA_ARCH__
    return ls_narrow_one<LS_BF16>(x);
#else
    return ls_f32_to_bf16(x);
#endif
}

static LS_HD uint16_t scalars_narrow_f16(float x) {
#ifdef __CUDA_ARCH__
    return ls_narrow_one<LS_F16>(x);
#else
    return ls_f32_to_f16(x);
#endif
}

#ifdef __CUDACC__
/* The low half of x out of the place that the next three bits name, among elements that are its complement. */
template <int DTYPE>
static __device__ __forceinline__ float scalars_out_of_vector(uint32_t x) {
    const int j = (int)(x >> 16 & 7);
    const uint32_t half = x & 0xFFFFu, other = half ^ 0xFFFFu;
    const uint32_t pair = j % 2 == 0 ? other << 16 | half : half << 16 | other, others = other << 16 | other;
    ls_vec8<DTYPE> v;
    v.word[0].x = j / 2 == 0 ? pair : others;
    v.word[0].y = j / 2 == 1 ? pair : others;
    v.word[0].z = j / 2 == 2 ? pair : others;
    v.word[0].w = j / 2 == 3 ? pair : others;
    return ls_vec8_get<DTYPE>(v, j);
}
#endif

static LS_HD float scalars_widen_bf16(uint32_t x) {
#ifdef __CUDA_ARCH__
    return scalars_out_of_vector<LS_BF16>(x);
#else
    return ls_bf16_to_f32((uint16_t)x);
#endif
}

static LS_HD float scalars_widen_f16(uint32_t x) {
#ifdef __CUDA_ARCH__
    return scalars_out_of_vector<LS_F16>(x);
#else
    return ls_f16_to_f32((uint16_t)x);
#endif
}

/* What kernels of scan and convolution use for arguments of ordinary size; the CPU keeps to the general functions. */
static LS_HD float scalars_softplus_ordinary(float x) {
#ifdef __CUDA_ARCH__
    if (fabsf(x) <= LS_ORDINARY) return ls_softplus_ordinary(x);
#endif
    return ls_softplus(x);
}

static LS_HD float scalars_sigmoid_ordinary(float x) {
#ifdef __CUDA_ARCH__
    if (fabsf(x) <= LS_ORDINARY) return ls_sigmoid_ordinary(x);
#endif
    return ls_sigmoid(x);
}

static LS_HD float scalars_silu_ordinary(float x) {
#ifdef __CUDA_ARCH__
    if (fabsf(x) <= LS_ORDINARY) return ls_silu_ordinary(x);
#endif
    return ls_silu(x);
}

/* ---- the functions ---- */

/* Identifier, name, binary logarithm of the number of inputs, the back ends that have it, and the bits of the result
 * for input x. Hardware may keep the payload of a NaN that it widens, so any NaN equals any NaN there. */
#define SCALARS_OF_FLOAT(f) ls_bits(f(ls_from_bits(x)))
#define SCALARS_EACH(X)                                                                                         \
    X(SCALARS_EXP, exp, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_exp))                                                 \
    X(SCALARS_LOG, log, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_log))                                                 \
    X(SCALARS_LOG1P, log1p, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_log1p))                                           \
    X(SCALARS_SIGMOID, sigmoid, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_sigmoid))                                     \
    X(SCALARS_SILU, silu, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_silu))                                              \
    X(SCALARS_SOFTPLUS, softplus, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_softplus))                                  \
    X(SCALARS_SOFTPLUS_ORDINARY, softplus_ordinary, 32, CUDA_ONLY, SCALARS_OF_FLOAT(scalars_softplus_ordinary)) \
    X(SCALARS_SIGMOID_ORDINARY, sigmoid_ordinary, 32, CUDA_ONLY, SCALARS_OF_FLOAT(scalars_sigmoid_ordinary))    \
    X(SCALARS_SILU_ORDINARY, silu_ordinary, 32, CUDA_ONLY, SCALARS_OF_FLOAT(scalars_silu_ordinary))             \
    X(SCALARS_EXP2_BOUNDED, exp2_bounded, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_exp2_bounded))                      \
    X(SCALARS_CANONICAL, canonical, 32, ANYWHERE, SCALARS_OF_FLOAT(ls_canonical))                               \
    X(SCALARS_F32_TO_BF16, f32_to_bf16, 32, ANYWHERE, ls_f32_to_bf16(ls_from_bits(x)))                          \
    X(SCALARS_F32_TO_F16, f32_to_f16, 32, ANYWHERE, ls_f32_to_f16(ls_from_bits(x)))                             \
    X(SCALARS_NARROW_BF16, hardware_narrowing_bf16, 32, CUDA_ONLY, scalars_narrow_bf16(ls_from_bits(x)))        \
    X(SCALARS_NARROW_F16, hardware_narrowing_f16, 32, CUDA_ONLY, scalars_narrow_f16(ls_from_bits(x)))           \
    X(SCALARS_BF16_TO_F32, bf16_to_f32, 16, ANYWHERE, ls_bits(ls_bf16_to_f32((uint16_t)x)))                     \
    X(SCALARS_F16_TO_F32, f16_to_f32, 16, ANYWHERE, ls_bits(ls_f16_to_f32((uint16_t)x)))                        \
    X(SCALARS_WIDEN_BF16, vector_widening_bf16, 19, CUDA_ONLY, ls_bits(ls_canonical(scalars_widen_bf16(x))))    \
    X(SCALARS_WIDEN_F16, vector_widening_f16, 19, CUDA_ONLY, ls_bits(ls_canonical(scalars_widen_f16(x))))       \
    X(SCALARS_EXP2_PRODUCT, exp2_product, 26, ANYWHERE, ls_bits(scalars_product(x)))                            \
    X(SCALARS_EXP2_LIFTED, exp2_lifted, SCALARS_LIFTED_LOG2, ANYWHERE, scalars_lifted(x))

enum {
#define SCALARS_ID(id, name, log2_inputs, where, result) id,
    SCALARS_EACH(SCALARS_ID)
#undef SCALARS_ID
        SCALARS_FUNCTIONS
};

/* The bits of a result; a constant `function` leaves nothing of the switch. */
static LS_HD uint32_t scalars_result(int function, uint32_t x) {
    switch (function) {
#define SCALARS_CASE(id, name, log2_inputs, where, result) \
    case id: return result;
        SCALARS_EACH(SCALARS_CASE)
#undef SCALARS_CASE
        default: return 0;
    }
}

/* ---- inputs and sums ---- */

/* Input j of a block. Step 1 gives all inputs in order; an odd step spreads fewer of them, each once. */
static LS_HD uint32_t scalars_input(uint32_t block, uint32_t j, uint32_t step) {
    return (block * SCALARS_BLOCK + j) * step;
}

/* What result j adds to the sum of its block, modulo 2^64. A one-to-one function of the bits times a weight that is
 * never 0: a change of one result always changes the sum, and more changes do not cancel but by chance. */
static LS_HD uint64_t scalars_term(uint32_t bits, uint32_t j) {
    const uint32_t weight = (j + 1) * 0x9E3779B1u;
    uint32_t mixed = (bits ^ weight) * 0x85EBCA6Bu;
    mixed ^= mixed >> 15;
    return (uint64_t)mixed * weight;
}

/* ---- the GPU's side, scalars_cuda.cu ---- */

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the sums of blocks 0 to n_blocks - 1, or the results of one block, into device memory. */
ls_status scalars_cuda_sums(uint64_t *sums, const ls_exec *exec, int function, int64_t n_blocks, uint32_t step,
                            ls_error *err);
ls_status scalars_cuda_results(uint32_t *results, const ls_exec *exec, int function, uint32_t block, uint32_t step,
                               ls_error *err);

#ifdef __cplusplus
}
#endif

#endif
