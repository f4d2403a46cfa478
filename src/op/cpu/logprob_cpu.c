/* logprob on the CPU: a leaf's 256 chains are vector lanes; a row's leaves wait in scratch for the tree over them. */
#include "num/sum.h"
#include "op/cpu/kernels.h"
#include "op/cpu/row_math.h"
#include "op/logprob.h"
#include "op/logprob_math.h"
#include "op/rows.h"

/* Partial sums of z[0..n): terms against the integer reference k, powers against q. */
static ls_logprob_leaf sum_terms(const float *z, int64_t n, float k, float q, float low) {
    float s[LS_SUM_CHAINS] = {0}, e[LS_SUM_CHAINS] = {0};
    const float shift = ls_sub(LS_ROUND_MAGIC, k), power_shift = ls_add(shift, q);
    ls_logprob_leaf leaf;
    for (int64_t base = 0; base < n; base += LS_SUM_CHAINS) {
        const int64_t part = n - base < LS_SUM_CHAINS ? n - base : LS_SUM_CHAINS;
        for (int64_t i = 0; i < part; i++) {
            const float x = ls_max(z[base + i], low);
            const float r = ls_fma(x, LS_LOG2E, shift);
            const float f = ls_fma(x, LS_LOG2E, -ls_sub(r, shift));
            const float term = ls_exp2_scale(ls_exp2_poly(f), r);
            s[i] = ls_add(s[i], term);
            e[i] = ls_fma(term, ls_add(ls_sub(r, power_shift), f), e[i]);
        }
    }
    leaf.k = k;
    leaf.q = q;
    leaf.s = ls_sum_fold(s);
    leaf.e = ls_sum_fold(e);
    return leaf;
}

/* Partial sums of z[0..n), n <= LS_LOGPROB_LEAF. */
static ls_logprob_leaf leaf_sums(const float *z, int64_t n) {
    float m, q;
    int32_t far = 0, bad = 0;
    for (int64_t i = 0; i < n; i++) {
        far |= !(z[i] >= -LS_LOGPROB_NEAR && z[i] <= LS_LOGPROB_NEAR);
        bad |= !(z[i] <= LS_LOGPROB_LIMIT);
    }
    if (bad) return ls_logprob_dead_leaf(ls_from_bits(LS_NAN_BITS));
    m = ls_row_largest(z, n);
    if (m < -LS_LOGPROB_LIMIT) return ls_logprob_dead_leaf(0.0f);
    q = ls_logprob_reference(m);
    return far ? sum_terms(z, n, q, q, __builtin_floorf(ls_sub(m, 80.0f))) : sum_terms(z, n, 0.0f, q, -LS_LOGPROB_NEAR);
}

/* The aligned binary tree over leaf[0..n), n >= 1; destroys them. */
static ls_logprob_leaf combine_all(ls_logprob_leaf *leaf, int64_t n) {
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t j = 0; j + step < n; j += 2 * step) leaf[j] = ls_logprob_join(leaf[j], leaf[j + step]);
    return leaf[0];
}

/* Logits [at, at + n) as z. */
static void load_z(float *z, const void *logits, ls_dtype dtype, int64_t at, int64_t n, float temperature) {
    const float inv_t = ls_div(1.0f, temperature);
    ls_row_widen(z, ls_at(logits, dtype, at), dtype, n);
    if (temperature != 1.0f)
        for (int64_t i = 0; i < n; i++) z[i] = ls_mul(z[i], inv_t);
}

/* All leaves of the n logits from `at` on; z[target] where 0 <= target < n. z: room for a leaf. */
static void row_leaves(ls_logprob_leaf *leaf, float *target_z, const void *logits, ls_dtype dtype, int64_t at,
                       int64_t n, int64_t target, float temperature, float *z) {
    for (int64_t base = 0; base < n; base += LS_LOGPROB_LEAF) {
        const int64_t part = n - base < LS_LOGPROB_LEAF ? n - base : LS_LOGPROB_LEAF;
        load_z(z, logits, dtype, at + base, part, temperature);
        if (target >= base && target < base + part) *target_z = z[target - base];
        *leaf++ = leaf_sums(z, part);
    }
}

/* A row's results; `entropy` and `lse` may be NULL. */
typedef struct outputs {
    float *logprob, *lse, *entropy;
} outputs;

static void store(const outputs *out, int64_t row, float logprob, float lse, float entropy) {
    out->logprob[row] = logprob;
    if (out->lse != NULL) out->lse[row] = lse;
    if (out->entropy != NULL) out->entropy[row] = entropy;
}

static void finish_row(const outputs *out, int64_t row, ls_logprob_leaf sum, float z_target) {
    const ls_logprob_result result = ls_logprob_finish(sum, z_target);
    store(out, row, result.logprob, result.lse, result.entropy);
}

/* Scratch: a leaf's z, then the leaves of a row. */
static ls_logprob_leaf *leaves_at(float *scratch) { return (ls_logprob_leaf *)(void *)(scratch + LS_LOGPROB_LEAF); }

LS_KERNEL_DEFINE(ls_logprob_kernel) {
    const ls_logprob_args *a = context;
    const outputs out = {a->logprob, a->lse, a->entropy};
    ls_logprob_leaf *leaf = leaves_at(scratch);
    for (int64_t row = begin; row < end; row++) {
        float z_target = 0.0f;
        if (!ls_logprob_keeps(a->targets, a->ignore_index, a->mask, row)) {
            store(&out, row, 0.0f, 0.0f, 0.0f);
            continue;
        }
        row_leaves(leaf, &z_target, a->logits, a->dtype, row * a->row_stride, a->vocab, a->targets[row],
                   a->temperature != NULL ? a->temperature[row] : 1.0f, scratch);
        finish_row(&out, row, combine_all(leaf, ls_logprob_leaves(a->vocab)), z_target);
    }
}

LS_KERNEL_DEFINE(ls_logprob_shard_kernel) {
    const ls_logprob_shard_args *a = context;
    for (int64_t row = begin; row < end; row++)
        if (ls_logprob_keeps(a->targets, a->ignore_index, a->mask, row))
            row_leaves(a->leaves + row * a->leaf_stride + a->first / LS_LOGPROB_LEAF, a->target_z + row, a->logits,
                       a->dtype, row * a->row_stride, a->vocab, a->targets[row] - a->first,
                       a->temperature != NULL ? a->temperature[row] : 1.0f, scratch);
}

LS_KERNEL_DEFINE(ls_logprob_combine_kernel) {
    const ls_logprob_combine_args *a = context;
    const outputs out = {a->logprob, a->lse, a->entropy};
    const int64_t n = ls_logprob_leaves(a->total);
    ls_logprob_leaf *leaf = leaves_at(scratch);
    for (int64_t row = begin; row < end; row++) {
        if (!ls_logprob_keeps(a->targets, a->ignore_index, a->mask, row)) {
            store(&out, row, 0.0f, 0.0f, 0.0f);
            continue;
        }
        memcpy(leaf, a->leaves + row * a->leaf_stride, (size_t)n * sizeof *leaf);
        finish_row(&out, row, combine_all(leaf, n), a->target_z[row]);
    }
}

/* ---- backward ---- */

/* What a row's entries have in common. */
typedef struct row_gradient {
    float lse, base, entropy, d_entropy;
    bool with_entropy;
} row_gradient;

/* z becomes p * w. */
static void multiply_out(float *z, int64_t n, row_gradient row) {
    for (int64_t i = 0; i < n; i++) {
        const float t = ls_sub(z[i], row.lse), x = ls_max(t, -87.0f);
        const float r = ls_fma(x, LS_LOG2E, LS_ROUND_MAGIC);
        const float f = ls_fma(x, LS_LOG2E, -ls_sub(r, LS_ROUND_MAGIC));
        const float p = t < -87.0f ? 0.0f : ls_exp2_scale(ls_exp2_poly(f), r);
        z[i] = ls_mul(p, row.with_entropy ? ls_fma(-row.d_entropy, ls_add(x, row.entropy), row.base) : row.base);
    }
}

static void backward_row(const ls_logprob_backward_args *a, int64_t row, float *g) {
    const bool kept = ls_logprob_keeps(a->targets, a->ignore_index, a->mask, row);
    const float d_logprob = a->d_logprob != NULL ? a->d_logprob[row] : 0.0f;
    const float temperature = kept && a->temperature != NULL ? a->temperature[row] : 1.0f;
    const float inv_t = ls_div(1.0f, temperature);
    const ls_dtype out = a->d_bf16 ? LS_BF16 : a->dtype; /* a leaf of these ends before the next of logits */
    row_gradient common = {0};
    common.lse = a->lse[row];
    common.base = ls_sub(a->d_lse != NULL ? a->d_lse[row] : 0.0f, d_logprob);
    common.with_entropy = a->d_entropy != NULL;
    if (common.with_entropy) {
        common.entropy = a->entropy[row];
        common.d_entropy = a->d_entropy[row];
    }
    for (int64_t base = 0; base < a->vocab; base += LS_LOGPROB_LEAF) {
        const int64_t n = a->vocab - base < LS_LOGPROB_LEAF ? a->vocab - base : LS_LOGPROB_LEAF;
        if (!kept || common.lse != common.lse) {
            const float fill = kept ? ls_from_bits(LS_NAN_BITS) : 0.0f;
            for (int64_t i = 0; i < n; i++) g[i] = fill;
        } else {
            const int64_t target = a->targets[row] - base;
            load_z(g, a->logits, a->dtype, row * a->row_stride + base, n, temperature);
            multiply_out(g, n, common);
            if (target >= 0 && target < n) g[target] = ls_add(g[target], d_logprob);
            if (temperature != 1.0f)
                for (int64_t i = 0; i < n; i++) g[i] = ls_mul(g[i], inv_t);
        }
        ls_row_narrow(ls_at_mut(a->d_logits, out, row * a->d_stride + base), out, g, n);
    }
}

LS_KERNEL_DEFINE(ls_logprob_backward_kernel) {
    for (int64_t row = begin; row < end; row++) backward_row(context, row, scratch);
}

/* ---- sums of sequences ---- */

LS_KERNEL_DEFINE(ls_sequence_sum_kernel) {
    const ls_sequence_sum_args *a = context;
    (void)scratch;
    for (int64_t s = begin; s < end; s++) {
        const int64_t first = a->offsets != NULL ? a->offsets[s] : s * a->length;
        const int64_t last = a->offsets != NULL ? a->offsets[s + 1] : first + a->length;
        float chain[LS_SUM_CHAINS] = {0};
        int64_t number = 0;
        for (int64_t row = first; row < last; row++) {
            if (a->mask != NULL && a->mask[row] == 0) continue;
            chain[number % LS_SUM_CHAINS] = ls_add(chain[number % LS_SUM_CHAINS], a->logprob[row]);
            number++;
        }
        a->out[s] = ls_canonical(ls_sum_fold(chain));
    }
}
