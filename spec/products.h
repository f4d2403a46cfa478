/* Dense products and RMS norms: op/gemm.h, op/rmsnorm.h; NUMERICS.md, "mma16". */
#ifndef SPEC_PRODUCTS_H
#define SPEC_PRODUCTS_H

#include "read.h"

/* ---- dense products: op/gemm.h; NUMERICS.md, "mma16" ---- */

/* Everything that a run is told. */
static bool is_mma16, is_bf16;

/* R: one rounding to the activation type. */
static float activation(float x) { return is_bf16 ? round_bf16(x) : x; }

/* A float as +-s 2^e, s an integer; of a bf16 whose low bits are 0 as well. */
static int64_t integer_of(float x, int *exponent) {
    const uint32_t u = bits(x);
    const int biased = (int)(u >> 23 & 255u);
    *exponent = biased == 0 ? -126 : biased - 127;
    const int64_t s = (int64_t)(u & 0x7FFFFFu) + (biased == 0 ? 0 : 0x800000);
    return u >> 31 != 0 ? -s : s;
}

/* s 2^up, cut toward zero. */
static int64_t cut(int64_t s, int up) {
    const int64_t magnitude = s < 0 ? -s : s;
    const int64_t result = up >= 0 ? magnitude << up : up > -63 ? magnitude >> -up : 0;
    return s < 0 ? -result : result;
}

/* sum 2^unit, cut toward zero to float32; what is zero then is +0. */
static float cut_float(int64_t sum, int unit) {
    int64_t magnitude = sum < 0 ? -sum : sum;
    int leading = 0;
    while (leading < 62 && magnitude >> (leading + 1) != 0) leading++;
    int drop = leading - 23;
    if (unit + drop < -149) drop = -149 - unit; /* subnormals are kept */
    magnitude = cut(magnitude, -drop);
    if (magnitude == 0) return 0.0f;
    if (leading + unit >= 128) return sum < 0 ? -INFINITY : INFINITY;
    return ldexpf((float)(sum < 0 ? -magnitude : magnitude), unit + drop);
}

/* One step of 16 products, of which n are there; all operands are finite here. */
static float mma16_step(float c, const float *x, const float *w, int64_t n) {
    int64_t product[16], own, sum;
    int exponent[16], own_exponent, ex, ew, largest = -133;
    own = integer_of(c, &own_exponent);
    if (own != 0 && own_exponent > largest) largest = own_exponent;
    for (int64_t i = 0; i < n; i++) {
        /* bf16: 16 low bits are 0, so s < 256 of the law is s / 2^16 here */
        product[i] = integer_of(x[i], &ex) / 65536 * (integer_of(w[i], &ew) / 65536);
        exponent[i] = ex + ew;
        if (product[i] != 0 && exponent[i] > largest) largest = exponent[i];
    }
    sum = cut(own, own_exponent - 23 - (largest - 25)); /* to multiples of 2^(E - 25) */
    for (int64_t i = 0; i < n; i++) sum += cut(product[i], exponent[i] - 14 - (largest - 25));
    return cut_float(sum, largest - 25);
}

/* exact: one fma chain, k ascending from +0. */
static float chain_exact(const float *x, const float *w, int64_t k) {
    float acc = 0.0f;
    for (int64_t i = 0; i < k; i++) acc = fmaf(x[i], w[i], acc);
    return acc;
}

static float chain_mma16(const float *x, const float *w, int64_t k) {
    float acc = 0.0f;
    for (int64_t i = 0; i < k; i += 16) acc = mma16_step(acc, x + i, w + i, k - i < 16 ? k - i : 16);
    return acc;
}

/* out = x w^T + bias, before R. */
static void product(float *out, const float *x, const matrix *w, const float *bias) {
    if (w->w == NULL) fail("no tensor", "of a product");
    for (int64_t n = 0; n < w->rows; n++) {
        const float *row = w->w + n * w->columns;
        const float chain = is_mma16 ? chain_mma16(x, row, w->columns) : chain_exact(x, row, w->columns);
        out[n] = bias != NULL ? chain + bias[n] : chain;
    }
}

/* ---- the norm: op/rmsnorm.h ---- */

/* Without rounding; y may be x. A norm without weight is one whose weights are 1. */
static void rmsnorm(float *y, const float *x, const float *w, int64_t dim, float eps) {
    const float s = 1.0f / sqrtf(squares(x, dim) / (float)dim + eps);
    for (int64_t c = 0; c < dim; c++) y[c] = (x[c] * s) * (w != NULL ? w[c] : 1.0f);
}

static void round_all(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = activation(x[i]);
}

/* ---- memory of a step ---- */

static float pool[1 << 22];
static int64_t pool_used;

/* Zeroes, until the step ends. */
static float *scratch(int64_t n) {
    float *x = pool + pool_used;
    if (pool_used + n > (int64_t)(sizeof pool / sizeof *pool)) fail("too large a model", "scratch");
    pool_used += n;
    return memset(x, 0, (size_t)n * sizeof *x);
}

#endif
