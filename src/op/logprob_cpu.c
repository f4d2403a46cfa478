/* logprob on the CPU: a leaf's 256 chains are vector lanes; leaves combine as they complete an aligned pair. */
#include "num/expf.h"
#include "num/sum.h"
#include "op/kernels.h"
#include "op/logprob.h"
#include "op/rows.h"

#define NEAR 64.0f
#define LIMIT 1048576.0f /* 2^20 */
#define K_NONE (-16777216.0f)

static const ls_logprob_leaf empty_leaf = {K_NONE, K_NONE, 0.0f, 0.0f};

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
    float m = -HUGE_VALF, q;
    int32_t far = 0, bad = 0;
    for (int64_t i = 0; i < n; i++) {
        m = ls_max(z[i], m);
        far |= !(z[i] >= -NEAR && z[i] <= NEAR);
        bad |= !(z[i] <= LIMIT);
    }
    if (bad) {
        const float nan = ls_from_bits(LS_NAN_BITS);
        const ls_logprob_leaf leaf = {K_NONE, K_NONE, nan,
                                      nan}; /* stays NaN: it is scaled by a power of two or by +0 */
        return leaf;
    }
    if (m < -LIMIT) return empty_leaf;
    q = ls_sub(ls_fma(m, LS_LOG2E, LS_ROUND_MAGIC), LS_ROUND_MAGIC);
    return far ? sum_terms(z, n, q, q, __builtin_floorf(ls_sub(m, 80.0f))) : sum_terms(z, n, 0.0f, q, -NEAR);
}

/* 2^d for integral d in [-126, 0], +0 below. */
static float pow2(float d) { return d < -126.0f ? 0.0f : ls_from_bits((uint32_t)((int32_t)d + 127) << 23); }

static ls_logprob_leaf combine(ls_logprob_leaf a, ls_logprob_leaf b) {
    ls_logprob_leaf out;
    const float k = ls_max(a.k, b.k), da = ls_sub(a.k, k), db = ls_sub(b.k, k);
    const float scale_a = pow2(da), scale_b = pow2(db);
    const float q = ls_max(a.q, b.q);
    out.k = k;
    out.q = q;
    out.s = ls_add(ls_mul(a.s, scale_a), ls_mul(b.s, scale_b));
    out.e =
        ls_add(ls_mul(ls_fma(ls_sub(a.q, q), a.s, a.e), scale_a), ls_mul(ls_fma(ls_sub(b.q, q), b.s, b.e), scale_b));
    return out;
}

/* The aligned binary tree over leaves, fed in ascending order: node[l] waits for its right neighbour at level l. */
typedef struct leaf_tree {
    ls_logprob_leaf node[48];
    int64_t n_leaves;
} leaf_tree;

static void tree_add(leaf_tree *tree, ls_logprob_leaf leaf) {
    int level = 0;
    for (int64_t n = tree->n_leaves; n & 1; n >>= 1) leaf = combine(tree->node[level++], leaf);
    tree->node[level] = leaf;
    tree->n_leaves++;
}

static ls_logprob_leaf tree_finish(const leaf_tree *tree) {
    ls_logprob_leaf total = empty_leaf;
    bool any = false;
    int level = 0;
    for (int64_t n = tree->n_leaves; n != 0; n >>= 1, level++) {
        if (!(n & 1)) continue;
        total = any ? combine(tree->node[level], total) : tree->node[level];
        any = true;
    }
    return total;
}

static void finish_row(const ls_logprob_args *a, int64_t row, ls_logprob_leaf sum, float z_target) {
    /* No leaf, or a NaN: the exponent arithmetic below then runs on NaN and leaves one. */
    const float total = sum.s > 0.0f ? sum.s : ls_from_bits(LS_NAN_BITS);
    const float e = (float)((int32_t)(ls_bits(total) >> 23) - 127);
    const float s = ls_from_bits((ls_bits(total) & 0x7FFFFFu) | (total > 0.0f ? 0x3F800000u : 0x7F800000u));
    const float k = ls_add(sum.k, e), log_s = ls_log(s);
    const float logprob = ls_fma(ls_fma(z_target, LS_LOG2E, -k), LS_LN2, -log_s);
    const float entropy = ls_fma(-LS_LN2, ls_div(ls_fma(ls_sub(sum.q, k), total, sum.e), total), log_s);
    a->logprob[row] = ls_canonical(logprob > 0.0f ? 0.0f : logprob);
    if (a->lse != NULL) a->lse[row] = ls_canonical(ls_fma(k, LS_LN2_HI, ls_fma(k, LS_LN2_LO, log_s)));
    if (a->entropy != NULL) a->entropy[row] = ls_canonical(entropy < 0.0f ? 0.0f : entropy);
}

static void logprob_row(const ls_logprob_args *a, int64_t row, float *z) {
    leaf_tree tree;
    const int64_t target = a->targets[row];
    const float t = a->temperature != NULL ? a->temperature[row] : 1.0f;
    const float inv_t = ls_div(1.0f, t);
    float z_target = 0.0f;
    if (target == a->ignore_index || (a->mask != NULL && a->mask[row] == 0)) {
        a->logprob[row] = 0.0f;
        if (a->lse != NULL) a->lse[row] = 0.0f;
        if (a->entropy != NULL) a->entropy[row] = 0.0f;
        return;
    }
    tree.n_leaves = 0;
    for (int64_t base = 0; base < a->vocab; base += LS_LOGPROB_LEAF) {
        const int64_t n = a->vocab - base < LS_LOGPROB_LEAF ? a->vocab - base : LS_LOGPROB_LEAF;
        ls_row_widen(z, ls_at(a->logits, a->dtype, row * a->row_stride + base), a->dtype, n);
        if (t != 1.0f)
            for (int64_t i = 0; i < n; i++) z[i] = ls_mul(z[i], inv_t);
        if (target >= base && target < base + n) z_target = z[target - base];
        tree_add(&tree, leaf_sums(z, n));
    }
    finish_row(a, row, tree_finish(&tree), z_target);
}

LS_KERNEL_DEFINE(ls_logprob_kernel) {
    for (int64_t row = begin; row < end; row++) logprob_row(context, row, scratch);
}

LS_KERNEL_DEFINE(ls_sequence_sum_kernel) {
    const ls_sequence_sum_args *a = context;
    (void)scratch;
    for (int64_t s = begin; s < end; s++) {
        float chain[LS_SUM_CHAINS] = {0};
        int64_t number = 0;
        for (int64_t row = a->offsets[s]; row < a->offsets[s + 1]; row++) {
            if (a->mask != NULL && a->mask[row] == 0) continue;
            chain[number % LS_SUM_CHAINS] = ls_add(chain[number % LS_SUM_CHAINS], a->logprob[row]);
            number++;
        }
        a->out[s] = ls_sum_fold(chain);
    }
}
