/* Supports and penalties on the CPU: an item is a row. */
#include <math.h>

#include "op/cpu/kernels.h"
#include "op/support_math.h"

static uint32_t find_word(const float *row, int64_t n) {
    uint32_t word = 0;
    for (int64_t i = 0; i < n; i++) word |= (uint32_t) !(row[i] == -HUGE_VALF) << i;
    return word;
}

LS_KERNEL_DEFINE(ls_support_kernel) {
    const ls_support_args *a = context;
    const int64_t words = ls_support_words(a->vocab);
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t w = 0; w < words; w++) {
            float *row = a->logits + r * a->vocab + 32 * w;
            uint32_t *word = a->bits + r * words + w;
            const int64_t n = a->vocab - 32 * w < 32 ? a->vocab - 32 * w : 32;
            if (!a->apply)
                *word = find_word(row, n);
            else
                for (int64_t i = 0; i < n; i++) row[i] = (*word >> i & 1u) != 0 ? row[i] : -HUGE_VALF;
        }
    }
}

LS_KERNEL_DEFINE(ls_penalize_kernel) {
    const ls_penalize_args *a = context;
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        float *row = a->logits + r * a->vocab;
        for (int64_t i = a->begins[r]; i < a->begins[r + 1]; i++) {
            float *logit = row + a->items[i].token;
            if (a->undo) {
                *logit = a->saved[i];
            } else {
                a->saved[i] = *logit;
                *logit = ls_penalized(*logit, &a->penalties[r], a->items[i].count);
            }
        }
    }
}
