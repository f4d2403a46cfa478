/* Activations over rows. The scalars of num/expf.h have a shorter form for ordinary arguments with the same bits; one
 * look at the row chooses it, because a choice for each element would keep the loop from vectors. */
#ifndef LS_OP_CPU_ROW_MATH_H
#define LS_OP_CPU_ROW_MATH_H

#include "num/expf.h"

/* The largest magnitude of x[0..n); NaN if there is one, whose bits are above those of any number. */
static inline float ls_row_magnitude(const float *x, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t magnitude = ls_bits(x[i]) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
    }
    return ls_from_bits(most);
}

/* The largest of x[0..n), by lanes: a maximum has no order of its own, and a single chain of them would be most of the
 * time of a leaf of logits. No x is NaN. */
static inline float ls_row_largest(const float *x, int64_t n) {
    float lane[32], m = -HUGE_VALF;
    int64_t base = 0;
    for (int i = 0; i < 32; i++) lane[i] = m;
    for (; base + 32 <= n; base += 32)
        for (int i = 0; i < 32; i++) lane[i] = ls_max(x[base + i], lane[i]);
    for (int i = 0; i < 32; i++) m = ls_max(lane[i], m);
    for (; base < n; base++) m = ls_max(x[base], m);
    return m;
}

/* y = silu(x); y may be x. */
static inline void ls_row_silu(float *y, const float *x, int64_t n) {
    if (ls_row_magnitude(x, n) <= LS_ORDINARY)
        for (int64_t i = 0; i < n; i++) y[i] = ls_silu_ordinary(x[i]);
    else
        for (int64_t i = 0; i < n; i++) y[i] = ls_silu(x[i]);
}

/* x = softplus(x) */
static inline void ls_row_softplus(float *x, int64_t n) {
    if (ls_row_magnitude(x, n) <= LS_ORDINARY)
        for (int64_t i = 0; i < n; i++) x[i] = ls_softplus_ordinary(x[i]);
    else
        for (int64_t i = 0; i < n; i++) x[i] = ls_softplus(x[i]);
}

#endif
