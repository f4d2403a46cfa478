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

/* Folds chain[256] to one float; destroys chain. */
static inline float ls_sum_fold(float *chain) {
    for (int half = 4; half > 0; half /= 2)
        for (int run = 0; run < LS_SUM_CHAINS; run += 8)
            for (int j = 0; j < half; j++) chain[run + j] = ls_add(chain[run + j], chain[run + j + half]);
    for (int half = 16; half > 0; half /= 2)
        for (int run = 0; run < half; run++) chain[8 * run] = ls_add(chain[8 * run], chain[8 * (run + half)]);
    return chain[0];
}

#endif
