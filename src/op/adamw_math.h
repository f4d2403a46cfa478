/* Arithmetic of op/adamw.h that every back end reads from here: how moments in bf16 are rounded. */
#ifndef LS_OP_ADAMW_MATH_H
#define LS_OP_ADAMW_MATH_H

#include "base/rng.h"
#include "num/round.h"
#include "op/adamw.h"

#define LS_MOMENT_BITS_MAX 0x7F7F0000u /* the largest finite bf16, widened */

/* A moment as bf16 holds it, as a float: `random` is below 2^16. */
static LS_HD float ls_moment_round(float x, uint32_t random) {
    const uint32_t bits = ls_bits(x), size = bits & 0x7FFFFFFFu;
    const uint32_t cut = (bits + (size < LS_MOMENT_BITS_MAX ? random : 0u)) & 0xFFFF0000u;
    return ls_from_bits(size > 0x7F800000u ? 0x7FC00000u : cut);
}

/* The last word of a draw's counter; the others are two of the element's number and the low one of the step's. */
static LS_HD uint32_t ls_moment_counter(int64_t step) {
    return 0x6D6F6D65u ^ (uint32_t)((uint64_t)step >> 32); /* "mome" */
}

/* The part that element i belongs to. */
static LS_HD int64_t ls_adamw_part_of(const ls_adamw_args *a, int64_t i) {
    int64_t low = 0, high = a->n_parts;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (a->parts[middle].begin <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
