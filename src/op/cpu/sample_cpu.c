/* Sampling on the CPU: one row at a time, so that its order is plain; the caller runs rows in parallel. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "op/cpu/kernels.h"
#include "op/cpu/row_math.h"
#include "op/cpu/sample_kernel.h"
#include "op/sample_math.h"

/* Merge sort of ids by descending z, lower id first among equals: stable, and bounded whatever the values. */
static void sort_ids(int32_t *ids, int32_t *spare, const float *z, int64_t n) {
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t left = 0; left < n; left += 2 * width) {
            const int64_t middle = left + width < n ? left + width : n, right = middle + width < n ? middle + width : n;
            int64_t i = left, j = middle;
            for (int64_t out = left; out < right; out++)
                spare[out] = i < middle && (j >= right || z[ids[i]] >= z[ids[j]]) ? ids[i++] : ids[j++];
        }
        for (int64_t i = 0; i < n; i++) ids[i] = spare[i];
    }
}

static int64_t process(float *out, const float *logits, int64_t vocab, const ls_sampling *s, int32_t *workspace) {
    const float inv_t = s->temperature > 0.0f ? ls_div(1.0f, s->temperature) : 1.0f;
    int64_t kept = 0;
    int32_t bad = 0;
    float max;
    for (int64_t i = 0; i < vocab; i++) out[i] = inv_t != 1.0f ? ls_mul(logits[i], inv_t) : logits[i];
    for (int64_t i = 0; i < vocab; i++) bad |= !(out[i] < HUGE_VALF);
    if (bad) return 0;
    for (int64_t i = 0; i < vocab; i++) kept += out[i] > -HUGE_VALF;
    if (s->temperature == 0.0f || kept == 0) return kept;
    max = ls_row_largest(out, vocab);
    if ((s->top_k > 0 && s->top_k < kept) || s->top_p < 1.0f) {
        int32_t *ids = workspace;
        int64_t n = 0;
        for (int64_t i = 0; i < vocab; i++)
            if (out[i] > -HUGE_VALF) ids[n++] = (int32_t)i;
        sort_ids(ids, workspace + vocab, out, n);
        if (s->top_k > 0 && s->top_k < n) n = s->top_k;
        if (s->top_p < 1.0f) {
            float total = 0.0f, reached = 0.0f;
            int64_t prefix = 0;
            for (int64_t i = 0; i < n; i++) total = ls_add(total, ls_exp(ls_sub(out[ids[i]], max)));
            while (prefix < n && (prefix == 0 || reached < ls_mul(s->top_p, total)))
                reached = ls_add(reached, ls_exp(ls_sub(out[ids[prefix++]], max)));
            n = prefix;
        }
        for (int64_t i = n; i < kept; i++) out[ids[i]] = -HUGE_VALF;
        kept = n;
    }
    if (s->min_p > 0.0f) {
        kept = 0;
        for (int64_t i = 0; i < vocab; i++) {
            if (out[i] > -HUGE_VALF && ls_exp(ls_sub(out[i], max)) < s->min_p) out[i] = -HUGE_VALF;
            kept += out[i] > -HUGE_VALF;
        }
    }
    return kept;
}

#define DRAW_BLOCK 64
#define DRAW_WORDS (DRAW_BLOCK / 4)

/* Gumbel-max. Most blocks hold nothing that could win: their bounds say so, and their logarithms are never taken. */
static int32_t draw_token(const float *processed, int64_t vocab, const ls_sampling *s, const ls_draw *draw) {
    int32_t best = -1;
    float best_key = -HUGE_VALF;
    for (int64_t base = 0; base < vocab; base += DRAW_BLOCK) {
        const int64_t n = vocab - base < DRAW_BLOCK ? vocab - base : DRAW_BLOCK;
        float z[DRAW_BLOCK], key[DRAW_BLOCK];
        for (int64_t i = 0; i < DRAW_BLOCK; i++) z[i] = i < n ? processed[base + i] : -HUGE_VALF;
        if (s->temperature > 0.0f) {
            uint32_t word[4][DRAW_WORDS];
            int32_t hopes = 0;
            ls_philox_lanes(word[0], DRAW_WORDS, s->seed, (uint32_t)(base / 4), draw->position, draw->sample,
                            draw->prompt);
            for (int i = 0; i < DRAW_WORDS; i++)
                for (int j = 0; j < 4; j++) key[4 * i + j] = (float)(int32_t)(word[j][i] >> 9);
            /* A key is at most z plus the bound, rounded; -inf in an empty row stays below nothing. */
            for (int i = 0; i < DRAW_BLOCK; i++)
                hopes |= ls_add(z[i], ls_gumbel_bound(ls_sub(8388607.5f, key[i]))) > best_key;
            if (!hopes) continue;
            for (int i = 0; i < DRAW_BLOCK; i++) key[i] = ls_add(z[i], ls_gumbel(key[i]));
        } else {
            memcpy(key, z, sizeof key);
        }
        for (int64_t i = 0; i < n; i++)
            if (z[i] > -HUGE_VALF && (best < 0 || key[i] > best_key)) {
                best = (int32_t)(base + i);
                best_key = key[i];
            }
    }
    return best;
}

extern const ls_sample_kernel LS_KERNEL(ls_sample_kernel);
const ls_sample_kernel LS_KERNEL(ls_sample_kernel) = {process, draw_token};
