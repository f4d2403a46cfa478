/* Sampling. Scalar and sequential: one row at a time, so that its order is plain; the caller runs rows in parallel. */
#include "op/sample.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "num/expf.h"

ls_status ls_sampling_check(const ls_sampling *s, ls_error *err) {
    if (!(s->temperature >= 0.0f && isfinite(s->temperature)))
        return LS_FAIL(err, LS_ERR_ARG, "temperature: %g is not a finite number of at least 0", (double)s->temperature);
    if (s->temperature > 0.0f && !isfinite(1.0f / s->temperature))
        return LS_FAIL(err, LS_ERR_ARG, "temperature: 1 / %g overflows", (double)s->temperature);
    if (s->top_k < 0) return LS_FAIL(err, LS_ERR_ARG, "top_k: %lld is negative", (long long)s->top_k);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return LS_FAIL(err, LS_ERR_ARG, "top_p: %g is not in (0, 1]", (double)s->top_p);
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return LS_FAIL(err, LS_ERR_ARG, "min_p: %g is not in [0, 1]", (double)s->min_p);
    return LS_OK;
}

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

int64_t ls_sampling_process(float *out, const float *logits, int64_t vocab, const ls_sampling *s, int32_t *workspace) {
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

int32_t ls_sample(const float *processed, int64_t vocab, const ls_sampling *s, const ls_draw *draw) {
    int32_t best = -1;
    float best_key = 0.0f;
    ls_philox words = {{0, 0, 0, 0}};
    for (int64_t i = 0; i < vocab; i++) {
        float key = processed[i];
        if (s->temperature > 0.0f) {
            float u;
            if (i % 4 == 0) words = ls_philox_draw(s->seed, (uint32_t)(i / 4), draw->position, draw->sample, draw->prompt);
            u = ls_mul(ls_add((float)(int32_t)(words.word[i % 4] >> 9), 0.5f), 1.1920928955078125e-7f);
            key = ls_sub(key, ls_log(-ls_log(u)));
        }
        if (processed[i] > -HUGE_VALF && (best < 0 || key > best_key)) {
            best = (int32_t)i;
            best_key = key;
        }
    }
    return best;
}
