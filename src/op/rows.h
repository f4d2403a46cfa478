/* Rows of activations as float32: exact widening from, and one rounding to, the stored type. */
#ifndef LS_OP_ROWS_H
#define LS_OP_ROWS_H

#include "lockstep/lockstep.h"
#include "num/half.h"

static inline void ls_row_widen(float *out, const void *row, ls_dtype dtype, int64_t n) {
    if (dtype == LS_F32) {
        memcpy(out, row, (size_t)n * sizeof(float));
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
        memcpy(row, in, (size_t)n * sizeof(float));
    } else if (dtype == LS_BF16) {
        uint16_t *out = (uint16_t *)row;
        for (int64_t i = 0; i < n; i++) out[i] = ls_f32_to_bf16(in[i]);
    } else {
        uint16_t *out = (uint16_t *)row;
        for (int64_t i = 0; i < n; i++) out[i] = ls_f32_to_f16(in[i]);
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
