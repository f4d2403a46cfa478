/* Cutting a matrix of outputs into blocks for threads. Carries no bits. */
#ifndef LS_OP_CPU_GRID_H
#define LS_OP_CPU_GRID_H

#include <stdint.h>

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
