/* logprob on the CPU: a leaf's 256 chains are vector lanes; leaves combine as they complete an aligned pair. */
#include "op/logprob.h"

#include "num/expf.h"
#include "num/sum.h"
#include "op/kernels.h"
#include "op/rows.h"

#define MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define LIMIT 1048576.0f  /* 2^20 */
#define K_NONE (-16777216.0f)

static const ls_logprob_leaf empty_leaf = {K_NONE, 0.0f, 0.0f};

/* Partial sums of z[0..n), n <= LS_LOGPROB_LEAF. */
static ls_logprob_leaf leaf_sums(const float *z, int64_t n) {
    float s[LS_SUM_CHAINS] = {0}, e[LS_SUM_CHAINS] = {0};
    float m = -HUGE_VALF, low, shift;
    int32_t bad = 0;
    ls_logprob_leaf leaf;
    for (int64_t i = 0; i < n; i++) {
        m = ls_max(z[i], m);
        bad |= !(z[i] <= LIMIT);
    }
    if (bad) {
        leaf.k = K_NONE;
        leaf.s = leaf.e = ls_from_bits(0x7FC00000u);
        return leaf; /* the tree keeps the NaN: scaling by a power of two or by +0 leaves it one */
    }
    if (m < -LIMIT) return empty_leaf;
    leaf.k = ls_sub(ls_fma(m, LS_LOG2E, MAGIC), MAGIC);
    low = __builtin_floorf(ls_sub(m, 80.0f));
    shift = ls_sub(MAGIC, leaf.k);
    for (int64_t base = 0; base < n; base += LS_SUM_CHAINS) {
        const int64_t part = n - base < LS_SUM_CHAINS ? n - base : LS_SUM_CHAINS;
        for (int64_t i = 0; i < part; i++) {
            const float x = ls_max(z[base + i], low);
            const float r = ls_fma(x, LS_LOG2E, shift);
            const float f = ls_fma(x, LS_LOG2E, -ls_sub(r, shift));
            const float term = ls_from_bits(ls_bits(ls_exp2_poly(f)) + (ls_bits(r) << 23));
            s[i] = ls_add(s[i], term);
            e[i] = ls_fma(term, ls_add(ls_sub(r, MAGIC), f), e[i]);
        }
    }
    leaf.s = ls_sum_fold(s);
    leaf.e = ls_sum_fold(e);
    return leaf;
}

/* 2^d for integral d in [-126, 0], +0 below. */
static float pow2(float d) {
    return d < -126.0f ? 0.0f : ls_from_bits((uint32_t)((int32_t)d + 127) << 23);
}

static ls_logprob_leaf combine(ls_logprob_leaf a, ls_logprob_leaf b) {
    ls_logprob_leaf out;
    const float k = ls_max(a.k, b.k), da = ls_sub(a.k, k), db = ls_sub(b.k, k);
    const float scale_a = pow2(da), scale_b = pow2(db);
    out.k = k;
    out.s = ls_add(ls_mul(a.s, scale_a), ls_mul(b.s, scale_b));
    out.e = ls_add(ls_mul(ls_fma(da, a.s, a.e), scale_a), ls_mul(ls_fma(db, b.s, b.e), scale_b));
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

static void logprob_row(const ls_logprob_args *a, int64_t row, float *z) {
    leaf_tree tree;
    ls_logprob_leaf sum;
    const int64_t target = a->targets[row];
    const float t = a->temperature != NULL ? a->temperature[row] : 1.0f;
    const float inv_t = ls_div(1.0f, t);
    float z_target = 0.0f, log_s;
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
    sum = tree_finish(&tree);
    if (sum.s == 0.0f) sum.s = ls_from_bits(0x7FC00000u); /* no leaf contributed */
    log_s = ls_log(sum.s);
    a->logprob[row] = ls_canonical(ls_fma(ls_fma(z_target, LS_LOG2E, -sum.k), LS_LN2, -log_s));
    if (a->lse != NULL) a->lse[row] = ls_canonical(ls_fma(sum.k, LS_LN2_HI, ls_fma(sum.k, LS_LN2_LO, log_s)));
    if (a->entropy != NULL) a->entropy[row] = ls_canonical(ls_fma(-LS_LN2, ls_div(sum.e, sum.s), log_s));
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
