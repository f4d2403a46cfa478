/* bf16 and fp16 as 16-bit patterns. Widening is exact; narrowing rounds to nearest even, keeps subnormals and maps
 * every NaN to one canonical quiet NaN (bf16 0x7FC0, fp16 0x7E00). */
#ifndef LS_NUM_HALF_H
#define LS_NUM_HALF_H

#include "num/round.h"

static LS_HD float ls_bf16_to_f32(uint16_t h) { return ls_from_bits((uint32_t)h << 16); }

static LS_HD uint16_t ls_f32_to_bf16(float x) {
    const uint32_t u = ls_bits(x);
    const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

/* x rounded to bf16 and widened again. */
static LS_HD float ls_round_bf16(float x) { return ls_bf16_to_f32(ls_f32_to_bf16(x)); }

static LS_HD float ls_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t mag = h & 0x7FFFu;
    /* Normal: rebias the exponent by 112. Subnormal: mag * 2^-24, exact in float32. Inf and NaN: exponent to 255. */
    const uint32_t normal = (mag << 13) + (112u << 23);
    const float tiny = (float)(int32_t)mag * 5.9604644775390625e-8f;
    const uint32_t special = (mag << 13) | 0x7F800000u | (mag > 0x7C00u ? 0x400000u : 0u);
    return ls_from_bits(sign | (mag < 0x400u ? ls_bits(tiny) : mag >= 0x7C00u ? special : normal));
}

static LS_HD uint16_t ls_f32_to_f16(float x) {
    const uint32_t u = ls_bits(x);
    const uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7FFFFFFFu;
    /* Normal: drop 13 bits, nearest even, a carry runs into the exponent (65520 and more give infinity). Below 2^-14:
     * adding 0.5 aligns the last kept bit (2^-24) with float32's last bit, so the add itself rounds. */
    const uint32_t normal = (mag - (112u << 23) + 0xFFFu + ((mag >> 13) & 1u)) >> 13;
    const uint32_t tiny = ls_bits(ls_add(ls_from_bits(mag), 0.5f)) - 0x3F000000u;
    const uint32_t finite = mag < 0x38800000u ? tiny : mag >= 0x477FF000u ? 0x7C00u : normal;
    return (uint16_t)(mag > 0x7F800000u ? 0x7E00u : sign | finite);
}

#endif
