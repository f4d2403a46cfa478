/* What delta's kernels of both directions share: folds over a head's rows for all its columns, which are lanes. */
#ifndef LS_OP_CPU_DELTA_ROW_H
#define LS_OP_CPU_DELTA_ROW_H

#include "num/sum.h"
#include "op/delta.h"
#include "op/delta_math.h"

typedef float ls_delta_chains[LS_DELTA_FOLD][LS_DELTA_DIM_MAX];

static inline void ls_delta_chains_clear(ls_delta_chains c, int64_t dim) {
    for (int i = 0; i < LS_DELTA_FOLD; i++)
        for (int64_t j = 0; j < dim; j++) c[i][j] = 0.0f;
}

/* out: the chains' sums by neighbours; c is used up. */
static inline void ls_delta_chains_fold(float *restrict out, ls_delta_chains c, int64_t dim) {
    for (int64_t j = 0; j < dim; j++) {
        const float a = ls_add(ls_add(c[0][j], c[1][j]), ls_add(c[2][j], c[3][j]));
        const float b = ls_add(ls_add(c[4][j], c[5][j]), ls_add(c[6][j], c[7][j]));
        const float d = ls_add(ls_add(c[8][j], c[9][j]), ls_add(c[10][j], c[11][j]));
        const float e = ls_add(ls_add(c[12][j], c[13][j]), ls_add(c[14][j], c[15][j]));
        out[j] = ls_add(ls_add(a, b), ls_add(d, e));
    }
}
_Static_assert(LS_DELTA_FOLD == 16, "the fold is written out");

/* acc = fma(x, row, acc); they do not overlap. */
static inline void ls_delta_chain(float *restrict acc, const float *restrict row, float x, int64_t dim) {
    for (int64_t j = 0; j < dim; j++) acc[j] = ls_fma(x, row[j], acc[j]);
}

/* out: the folds over the rows of x[i] * s[i][j]. */
static inline void ls_delta_fold(float *out, ls_delta_chains c, const float *x, const float *s, int64_t rows,
                                 int64_t dim) {
    ls_delta_chains_clear(c, dim);
    for (int64_t i = 0; i < rows; i++) ls_delta_chain(c[i % LS_DELTA_FOLD], s + i * dim, x[i], dim);
    ls_delta_chains_fold(out, c, dim);
}

/* The 256-chain tree over at most 256 products. */
static inline float ls_delta_dot(const float *x, const float *y, int64_t n) {
    float chain[LS_SUM_CHAINS];
    for (int64_t i = 0; i < LS_SUM_CHAINS; i++) chain[i] = i < n ? ls_fma(x[i], y[i], 0.0f) : 0.0f;
    return ls_sum_fold(chain);
}
_Static_assert(LS_DELTA_DIM_MAX <= LS_SUM_CHAINS, "a chain has one element");

/* x = x * l(x), and l(x). */
static inline float ls_delta_normalize(float *x, int64_t n) {
    const float l = ls_delta_norm_of(ls_delta_dot(x, x, n));
    for (int64_t i = 0; i < n; i++) x[i] = ls_mul(x[i], l);
    return l;
}

#endif
