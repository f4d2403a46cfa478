/* The reduction tree of long sums: 256 ascending chains, then folds by halves.
 *
 * Chain i of 256 takes the elements with index % 256 == i, in ascending order, from +0. The chains fold first within
 * each run of 8 (j += j+4, j += j+2, j += j+1), then over the 32 runs by halves 16, 8, 4, 2, 1. On a GPU a run of 8 is
 * one lane's 16-byte bf16 vector and the 32 runs are a warp; on a CPU the chains are contiguous vector lanes. Chains
 * that no element reaches hold +0, which adds nothing to sums that are not -0. */
#ifndef LS_NUM_SUM_H
#define LS_NUM_SUM_H

#include "num/round.h"

#define LS_SUM_CHAINS 256

/* Folds chain[256] to one float, of which chains from `used` on hold +0 and none of the others -0, as in sums of
 * squares: what adds nothing is left out. */
static inline float ls_sum_fold_used(const float *chain, int64_t used) {
    float run[LS_SUM_CHAINS / 8];
    int runs = LS_SUM_CHAINS / 8;
    while (runs > 1 && 4 * runs >= used) runs /= 2;
    for (int r = 0; r < runs; r++) {
        const float *c = chain + 8 * r;
        const float even = ls_add(ls_add(c[0], c[4]), ls_add(c[2], c[6]));
        run[r] = ls_add(even, ls_add(ls_add(c[1], c[5]), ls_add(c[3], c[7])));
    }
    for (int half = runs / 2; half > 0; half /= 2)
        for (int r = 0; r < half; r++) run[r] = ls_add(run[r], run[r + half]);
    return run[0];
}

/* Folds chain[256] to one float. */
static inline float ls_sum_fold(const float *chain) { return ls_sum_fold_used(chain, LS_SUM_CHAINS); }

#endif
