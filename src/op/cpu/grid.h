/* Cutting outputs into parts for threads. Carries no bits. */
#ifndef LS_OP_CPU_GRID_H
#define LS_OP_CPU_GRID_H

#include "dev/workers.h"

/* Parts that so many operations are cut into: as many as there are threads, fewer where a part would have less than
 * `least` of them. */
static inline int64_t ls_grid_parts(const ls_workers *workers, double operations, double least) {
    const int32_t threads = ls_pool_threads(workers->pool);
    if (threads == 1 || operations < least) return 1;
    return operations < least * threads ? (int64_t)(operations / least) : threads;
}

/* a_units x b_units, both positive, in a_parts x b_parts blocks, at most `parts` and at least one: the grid whose
 * largest block is smallest; among equals the one that cuts a most. */
static inline void ls_grid_choose(int64_t *a_parts, int64_t *b_parts, int64_t a_units, int64_t b_units, int64_t parts) {
    int64_t best = INT64_MAX;
    for (int64_t a = 1; a <= parts && a <= a_units; a++) {
        const int64_t b = parts / a < b_units ? parts / a : b_units;
        const int64_t largest = ((a_units - 1) / a + 1) * ((b_units - 1) / b + 1);
        if (largest > best) continue;
        best = largest;
        *a_parts = a;
        *b_parts = b;
    }
}

#endif
