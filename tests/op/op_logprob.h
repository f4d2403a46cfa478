/* What tests of log-probabilities share: the textbook reading of leaves, their tree and a row's results, written from
 * op/logprob.h with num/ only, and rows of every kind that the contract tells apart. */
#ifndef LS_TESTS_OP_LOGPROB_H
#define LS_TESTS_OP_LOGPROB_H

#include <float.h>

#include "op/logprob.h"
#include "op/op_case.h"

#define LEAF 2048
#define LIMIT 1048576.0f /* 2^20 */
#define DEAD (-16777216.0f)

/* ---- the textbook ---- */

/* Wrong on purpose: a sum per leaf as one chain, leaves of half the size, leaves combined from left to right, the
 * target's share of K rounded before it is subtracted. */
typedef enum variant { RIGHT, ONE_CHAIN, LEAVES_OF_1024, COMBINED_IN_A_CHAIN, TARGET_UNFUSED } variant;

static inline ls_logprob_leaf leaf_ref(const float *z, int64_t n, variant v) {
    ls_logprob_leaf leaf = {DEAD, DEAD, 0.0f, 0.0f};
    float m = -INFINITY, low, shift, s[256] = {0}, e[256] = {0};
    bool bad = false, near = true;
    for (int64_t i = 0; i < n; i++) {
        bad = bad || z[i] != z[i] || z[i] > LIMIT;
        near = near && fabsf(z[i]) <= 64.0f;
        m = ls_max(z[i], m);
    }
    if (bad) {
        leaf.s = leaf.e = ls_from_bits(LS_NAN_BITS);
        return leaf;
    }
    if (m < -LIMIT) return leaf;
    leaf.q = ls_sub(ls_fma(m, LS_LOG2E, LS_ROUND_MAGIC), LS_ROUND_MAGIC);
    leaf.k = near ? 0.0f : leaf.q;
    low = near ? -64.0f : floorf(ls_sub(m, 80.0f));
    shift = ls_sub(LS_ROUND_MAGIC, leaf.k);
    for (int64_t i = 0; i < n; i++) {
        const float x = z[i] > low ? z[i] : low;
        const float r = ls_fma(x, LS_LOG2E, shift);
        const float f = ls_fma(x, LS_LOG2E, -ls_sub(r, shift));
        const float term = ls_from_bits(ls_bits(ls_exp2_poly(f)) + (ls_bits(r) << 23));
        const float power = ls_add(ls_sub(r, ls_add(shift, leaf.q)), f);
        const int64_t chain = v == ONE_CHAIN ? 0 : i % 256;
        s[chain] = ls_add(s[chain], term);
        e[chain] = ls_fma(term, power, e[chain]);
    }
    leaf.s = op_fold(s);
    leaf.e = op_fold(e);
    return leaf;
}

static inline float pow2_ref(float d) { return d < -126.0f ? 0.0f : ldexpf(1.0f, (int)d); }

static inline ls_logprob_leaf combine_ref(ls_logprob_leaf a, ls_logprob_leaf b) {
    ls_logprob_leaf c;
    float da, db;
    c.k = a.k > b.k ? a.k : b.k;
    da = ls_sub(a.k, c.k);
    db = ls_sub(b.k, c.k);
    c.q = a.q > b.q ? a.q : b.q;
    c.e = ls_add(ls_mul(ls_fma(ls_sub(a.q, c.q), a.s, a.e), pow2_ref(da)),
                 ls_mul(ls_fma(ls_sub(b.q, c.q), b.s, b.e), pow2_ref(db)));
    c.s = ls_add(ls_mul(a.s, pow2_ref(da)), ls_mul(b.s, pow2_ref(db)));
    return c;
}

/* The aligned binary tree over leaves [first, first + size), size a power of two. */
static inline ls_logprob_leaf tree_ref(const ls_logprob_leaf *leaves, int64_t n, int64_t first, int64_t size) {
    if (size == 1) return leaves[first];
    if (first + size / 2 >= n) return tree_ref(leaves, n, first, size / 2);
    return combine_ref(tree_ref(leaves, n, first, size / 2), tree_ref(leaves, n, first + size / 2, size / 2));
}

typedef struct result {
    float logprob, lse, entropy;
} result;

static inline result result_ref(ls_logprob_leaf row, float target, variant v) {
    result out;
    int exponent;
    const float s = 2.0f * frexpf(row.s, &exponent), e = (float)(exponent - 1), k = ls_add(row.k, e);
    const float log_s = ls_log(s);
    const float share = v == TARGET_UNFUSED ? ls_sub(ls_mul(target, LS_LOG2E), k) : ls_fma(target, LS_LOG2E, -k);
    out.logprob = ls_fma(share, LS_LN2, -log_s);
    out.lse = ls_canonical(ls_fma(k, LS_LN2_HI, ls_fma(k, LS_LN2_LO, log_s)));
    out.entropy = ls_fma(-LS_LN2, ls_div(ls_fma(ls_sub(row.q, k), row.s, row.e), row.s), log_s);
    out.logprob = out.logprob > 0.0f ? 0.0f : ls_canonical(out.logprob);
    out.entropy = out.entropy < 0.0f ? 0.0f : ls_canonical(out.entropy);
    if (!(row.s > 0.0f)) out.logprob = out.lse = out.entropy = ls_from_bits(LS_NAN_BITS);
    return out;
}

static inline int64_t leaves_ref(ls_logprob_leaf **leaves, const float *z, int64_t vocab, int64_t size, variant v) {
    const int64_t n = (vocab + size - 1) / size;
    *leaves = op_alloc(n * (int64_t)sizeof **leaves);
    for (int64_t j = 0; j < n; j++)
        (*leaves)[j] = leaf_ref(z + j * size, vocab - j * size < size ? vocab - j * size : size, v);
    return n;
}

static inline result row_ref(const float *logits, int64_t vocab, int64_t target, float temperature, variant v) {
    float *z = op_alloc(vocab * 4);
    const float inv_t = ls_div(1.0f, temperature);
    ls_logprob_leaf *leaves, row;
    int64_t n, size = 1;
    result out;
    for (int64_t i = 0; i < vocab; i++) z[i] = temperature == 1.0f ? logits[i] : ls_mul(logits[i], inv_t);
    n = leaves_ref(&leaves, z, vocab, v == LEAVES_OF_1024 ? 1024 : LEAF, v);
    while (size < n) size *= 2;
    row = tree_ref(leaves, n, 0, size);
    if (v == COMBINED_IN_A_CHAIN) {
        row = leaves[0];
        for (int64_t j = 1; j < n; j++) row = combine_ref(row, leaves[j]);
    }
    out = result_ref(row, z[target], v);
    free(leaves);
    free(z);
    return out;
}

static const ls_dtype types[] __attribute__((unused)) = {LS_F32, LS_BF16, LS_F16};

/* ---- rows ---- */

static inline float *row_widened(const op_array *logits, int64_t row) {
    float *x = op_alloc(logits->cols * 4);
    for (int64_t i = 0; i < logits->cols; i++) x[i] = op_get(logits, row, i);
    return x;
}

static inline float op_logit(uint64_t *seed) { return test_uniform(seed, -40.0f, 40.0f); }

/* Row r of one of a dozen kinds, all that the contract tells apart. */
static inline void fill_kind(const op_array *logits, int64_t r, int64_t kind, uint64_t *seed) {
    const int64_t vocab = logits->cols, leaf = (int64_t)(test_random(seed) % (uint64_t)((vocab + LEAF - 1) / LEAF));
    const int64_t one = (int64_t)(test_random(seed) % (uint64_t)vocab);
    op_fill_row(logits, r, kind == 9 ? op_plain : op_logit, seed);
    for (int64_t i = 0; i < vocab; i++) {
        const bool in_leaf = i / LEAF == leaf;
        if (kind == 1 && test_random(seed) % 3 == 0) op_put(logits, r, i, -INFINITY);
        if (kind == 2 && in_leaf) op_put(logits, r, i, -INFINITY);
        if (kind == 3) op_put(logits, r, i, -INFINITY);
        if (kind == 4 && (in_leaf || i % 5 == 0)) op_put(logits, r, i, -FLT_MAX);
        if (kind == 5 && in_leaf) op_put(logits, r, i, -LIMIT * (i % 2 ? 1.0f : 4.0f));
        if (kind == 6) op_put(logits, r, i, -1.5f * LIMIT - (float)i);
        if (kind == 7) op_put(logits, r, i, op_get(logits, r, i) * 20000.0f);
        if (kind == 8) op_put(logits, r, i, op_special(seed) * 0x1p-20f);
    }
    if (kind == 9) op_put(logits, r, one, 30.0f);
    if (kind == 10) op_put(logits, r, one, ls_from_bits(0xFFC12345u));
    if (kind == 11) op_put(logits, r, one, INFINITY);
    if (kind == 12) op_put(logits, r, one, LIMIT);
    if (kind == 13) op_put(logits, r, one, ls_from_bits(ls_bits(LIMIT) + 1));
    if (kind == 14) {
        op_put(logits, r, one, NAN);
        op_put(logits, r, vocab - 1 - one, -INFINITY);
    }
}
#define KINDS 15

#endif
