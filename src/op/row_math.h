/* Activations over rows. The scalars of num/expf.h have a shorter form for ordinary arguments with the same bits; one look
 * at the row chooses it, because a choice for each element would keep the loop from vectors. */
#ifndef LS_OP_ROW_MATH_H
#define LS_OP_ROW_MATH_H

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
