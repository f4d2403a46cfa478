/* The parts of the log-probability contract (op/logprob.h) that work on one leaf or one row: combining leaves and the
 * final step. One text for every compiler. */
#ifndef LS_OP_LOGPROB_MATH_H
#define LS_OP_LOGPROB_MATH_H

#include "lockstep/ops.h"
#include "num/expf.h"

#define LS_LOGPROB_NEAR 64.0f
#define LS_LOGPROB_LIMIT 1048576.0f    /* 2^20 */
#define LS_LOGPROB_NONE (-16777216.0f) /* K and Q of a leaf without terms */

typedef struct ls_logprob_result {
    float logprob, lse, entropy;
} ls_logprob_result;

static LS_HD ls_logprob_leaf ls_logprob_leaf_make(float k, float q, float s, float e) {
    ls_logprob_leaf leaf;
    leaf.k = k;
    leaf.q = q;
    leaf.s = s;
    leaf.e = e;
    return leaf;
}

/* A leaf without terms (sum +0) or one that makes its row NaN: NaN stays, scaled by a power of two or by +0. */
static LS_HD ls_logprob_leaf ls_logprob_dead_leaf(float sum) {
    return ls_logprob_leaf_make(LS_LOGPROB_NONE, LS_LOGPROB_NONE, sum, sum);
}

/* The integer nearest to m log2 e. */
static LS_HD float ls_logprob_reference(float m) { return ls_sub(ls_fma(m, LS_LOG2E, LS_ROUND_MAGIC), LS_ROUND_MAGIC); }

/* 2^d for integral d in [-126, 0], +0 below. */
static LS_HD float ls_logprob_pow2(float d) {
    return d < -126.0f ? 0.0f : ls_from_bits((uint32_t)((int32_t)d + 127) << 23);
}

static LS_HD ls_logprob_leaf ls_logprob_join(ls_logprob_leaf a, ls_logprob_leaf b) {
    const float k = ls_max(a.k, b.k), q = ls_max(a.q, b.q);
    const float scale_a = ls_logprob_pow2(ls_sub(a.k, k)), scale_b = ls_logprob_pow2(ls_sub(b.k, k));
    const float s = ls_add(ls_mul(a.s, scale_a), ls_mul(b.s, scale_b));
    const float e_a = ls_mul(ls_fma(ls_sub(a.q, q), a.s, a.e), scale_a);
    const float e_b = ls_mul(ls_fma(ls_sub(b.q, q), b.s, b.e), scale_b);
    return ls_logprob_leaf_make(k, q, s, ls_add(e_a, e_b));
}

static LS_HD ls_logprob_result ls_logprob_finish(ls_logprob_leaf sum, float z_target) {
    ls_logprob_result out;
    /* No leaf, or a NaN: the exponent arithmetic below then runs on NaN and leaves one. */
    const float total = sum.s > 0.0f ? sum.s : ls_from_bits(LS_NAN_BITS);
    const float e = (float)((int32_t)(ls_bits(total) >> 23) - 127);
    const float s = ls_from_bits((ls_bits(total) & 0x7FFFFFu) | (total > 0.0f ? 0x3F800000u : 0x7F800000u));
    const float k = ls_add(sum.k, e), log_s = ls_log(s);
    const float logprob = ls_fma(ls_fma(z_target, LS_LOG2E, -k), LS_LN2, -log_s);
    const float entropy = ls_fma(-LS_LN2, ls_div(ls_fma(ls_sub(sum.q, k), total, sum.e), total), log_s);
    out.logprob = ls_canonical(logprob > 0.0f ? 0.0f : logprob);
    out.lse = ls_canonical(ls_fma(k, LS_LN2_HI, ls_fma(k, LS_LN2_LO, log_s)));
    out.entropy = ls_canonical(entropy < 0.0f ? 0.0f : entropy);
    return out;
}

#endif
