/* Rows of activations as float32: exact widening from, and one rounding to, the stored type. */
#ifndef LS_OP_ROWS_H
#define LS_OP_ROWS_H

#include "lockstep/lockstep.h"
#include "num/half.h"

static inline void ls_row_widen(float *out, const void *row, ls_dtype dtype, int64_t n) {
    if (dtype == LS_F32) {
        const float *in = (const float *)row;
        for (int64_t i = 0; i < n; i++) out[i] = in[i];
    } else if (dtype == LS_BF16) {
        const uint16_t *in = (const uint16_t *)row;
        for (int64_t i = 0; i < n; i++) out[i] = ls_bf16_to_f32(in[i]);
    } else {
        const uint16_t *in = (const uint16_t *)row;
        for (int64_t i = 0; i < n; i++) out[i] = ls_f16_to_f32(in[i]);
    }
}

static inline void ls_row_narrow(void *row, ls_dtype dtype, const float *in, int64_t n) {
    if (dtype == LS_F32) {
        float *out = (float *)row;
        for (int64_t i = 0; i < n; i++) out[i] = in[i];
    } else if (dtype == LS_BF16) {
        uint16_t *out = (uint16_t *)row;
        for (int64_t i = 0; i < n; i++) out[i] = ls_f32_to_bf16(in[i]);
    } else {
        uint16_t *out = (uint16_t *)row;
        for (int64_t i = 0; i < n; i++) out[i] = ls_f32_to_f16(in[i]);
    }
}

/* Four rows of src as four columns of dst; strides in floats. */
static inline void ls_transpose_4x4(float *dst, int64_t dst_stride, const float *src, int64_t src_stride) {
    typedef float four __attribute__((vector_size(16)));
    four a, b, c, d, low_ab, high_ab, low_cd, high_cd;
    memcpy(&a, src, sizeof a);
    memcpy(&b, src + src_stride, sizeof b);
    memcpy(&c, src + 2 * src_stride, sizeof c);
    memcpy(&d, src + 3 * src_stride, sizeof d);
    low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    low_cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    high_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5);
    b = __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7);
    c = __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5);
    d = __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7);
    memcpy(dst, &a, sizeof a);
    memcpy(dst + dst_stride, &b, sizeof b);
    memcpy(dst + 2 * dst_stride, &c, sizeof c);
    memcpy(dst + 3 * dst_stride, &d, sizeof d);
}

/* dst[j][i] = src[i][j] for i < rows, j < columns. */
static inline void ls_transpose(float *dst, int64_t dst_stride, const float *src, int64_t src_stride, int64_t rows,
                                int64_t columns) {
    for (int64_t i = 0; i < rows; i += 4)
        for (int64_t j = 0; j < columns; j += 4) {
            if (i + 4 <= rows && j + 4 <= columns) {
                ls_transpose_4x4(dst + j * dst_stride + i, dst_stride, src + i * src_stride + j, src_stride);
                continue;
            }
            for (int64_t r = i; r < rows && r < i + 4; r++)
                for (int64_t c = j; c < columns && c < j + 4; c++) dst[c * dst_stride + r] = src[r * src_stride + c];
        }
}

/* Address of element i of a tensor of this type. */
static inline const void *ls_at(const void *base, ls_dtype dtype, int64_t i) {
    return (const uint8_t *)base + i * (dtype == LS_F32 ? 4 : 2);
}
static inline void *ls_at_mut(void *base, ls_dtype dtype, int64_t i) {
    return (uint8_t *)base + i * (dtype == LS_F32 ? 4 : 2);
}

/* x rounded to the type and widened again. */
static inline float ls_round_to(float x, ls_dtype dtype) {
    if (dtype == LS_F32) return x;
    return dtype == LS_BF16 ? ls_round_bf16(x) : ls_f16_to_f32(ls_f32_to_f16(x));
}

#endif
