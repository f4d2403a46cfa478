/* Log-probability of a token among logits: op/logprob.h. */
#ifndef SPEC_LOGPROB_H
#define SPEC_LOGPROB_H

#include "numbers.h"

enum { LEAF = 2048 };

/* S 2^K, and Q of a leaf or of a node. E, which the entropy needs, is not made here. */
typedef struct node {
    float k, s;
} node;

static node leaf_of(const float *z, int64_t n) {
    float top = -INFINITY, chain[256] = {0};
    bool near = true;
    for (int64_t i = 0; i < n; i++) {
        top = fmaxf(top, z[i]);
        near = near && fabsf(z[i]) <= 64.0f;
    }
    if (top < -0x1p20f) return (node){-0x1p24f, 0.0f};
    const float q = fmaf(top, LOG2E, MAGIC) - MAGIC, k = near ? 0.0f : q, low = near ? -64.0f : floorf(top - 80.0f);
    const float shift = MAGIC - k;
    for (int64_t i = 0; i < n; i++) {
        const float x = fmaxf(z[i], low), r = fmaf(x, LOG2E, shift), f = fmaf(x, LOG2E, -(r - shift));
        chain[i % 256] = chain[i % 256] + exp2_scale(exp2_poly(f), r);
    }
    return (node){k, fold(chain)};
}

static float shrink(float d) { return d < -126.0f ? 0.0f : power_of_two(d); }

/* Leaves [first, first + n) of the aligned tree, n a power of two. */
static node tree(const float *z, int64_t vocab, int64_t first, int64_t n) {
    const int64_t at = first * LEAF;
    if (n == 1) return leaf_of(z + at, vocab - at < LEAF ? vocab - at : LEAF);
    const node a = tree(z, vocab, first, n / 2);
    if ((first + n / 2) * LEAF >= vocab) return a;
    const node b = tree(z, vocab, first + n / 2, n / 2);
    const float k = fmaxf(a.k, b.k);
    return (node){k, a.s * shrink(a.k - k) + b.s * shrink(b.k - k)};
}

static float logprob(const float *z, int64_t vocab, int64_t target) {
    int64_t n = 1;
    int exponent;
    while (n * LEAF < vocab) n *= 2;
    const node root = tree(z, vocab, 0, n);
    const float s = 2.0f * frexpf(root.s, &exponent), k = root.k + (float)(exponent - 1);
    const float result = fmaf(fmaf(z[target], LOG2E, -k), LN2, -log_law(s));
    return result > 0.0f ? 0.0f : result;
}

#endif
