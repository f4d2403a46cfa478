/* Sampling on the CPU: one row at a time, so that its order is plain; the caller runs rows in parallel. */
#include <math.h>

#include "base/rng.h"
#include "num/expf.h"
#include "op/kernels.h"
#include "op/sample_kernel.h"

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
    float max = -HUGE_VALF;
    for (int64_t i = 0; i < vocab; i++) {
        out[i] = s->temperature > 0.0f && s->temperature != 1.0f ? ls_mul(logits[i], inv_t) : logits[i];
        if (!(out[i] < HUGE_VALF)) return 0;
        max = ls_max(out[i], max);
        kept += out[i] > -HUGE_VALF;
    }
    if (s->temperature == 0.0f || kept == 0) return kept;
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

static int32_t draw_token(const float *processed, int64_t vocab, const ls_sampling *s, const ls_draw *draw) {
    int32_t best = -1;
    float best_key = 0.0f;
    for (int64_t base = 0; base < vocab; base += DRAW_BLOCK) {
        const int64_t n = vocab - base < DRAW_BLOCK ? vocab - base : DRAW_BLOCK;
        float key[DRAW_BLOCK] = {0};
        if (s->temperature > 0.0f) {
            for (int64_t i = 0; i < DRAW_BLOCK; i += 4) {
                const ls_philox words =
                    ls_philox_draw(s->seed, (uint32_t)((base + i) / 4), draw->position, draw->sample, draw->prompt);
                for (int j = 0; j < 4; j++) key[i + j] = (float)(int32_t)(words.word[j] >> 9);
            }
            for (int i = 0; i < DRAW_BLOCK; i++) {
                const float u = ls_mul(ls_add(key[i], 0.5f), 1.1920928955078125e-7f);
                key[i] = -ls_log(-ls_log(u));
            }
        }
        for (int64_t i = 0; i < n; i++) {
            key[i] = s->temperature > 0.0f ? ls_add(processed[base + i], key[i]) : processed[base + i];
            if (processed[base + i] > -HUGE_VALF && (best < 0 || key[i] > best_key)) {
                best = (int32_t)(base + i);
                best_key = key[i];
            }
        }
    }
    return best;
}

extern const ls_sample_kernel LS_KERNEL(ls_sample_kernel);
const ls_sample_kernel LS_KERNEL(ls_sample_kernel) = {process, draw_token};
