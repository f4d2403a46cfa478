/* Corrections for the difference of trainer and rollout: a weight for every token.
 *
 * t and r are the log-probabilities of the trainer (at the step's beginning) and of the rollout, d = t - r,
 * b() bounds a log ratio to +-20, rho = exp(b(d)). Of a sequence, over its counted tokens: S = sum d, G = S / n,
 * k2 = d^2 / 2, k3 = exp(b(d)) - 1 - b(d). A correction is a list NAME=BOUNDS, separated by commas, where BOUNDS is
 * LOW:HIGH or one number, which is the upper bound, for `veto` the lower.
 *
 * One of these at most; without one every weight is 1:
 *   token-truncate=2           rho brought into [LOW, HIGH]; LOW is 0 where it is not given
 *   token-mask=0.5:5           rho, 0 outside the bounds (IcePop)
 *   sequence-truncate=2        exp(b(S)) for all tokens of the sequence, brought into the bounds
 *   sequence-mask=3            exp(b(S)), 0 outside the bounds
 * Any of these, each once; what is outside the bounds gets weight 0:
 *   token-reject=0.5:2         tokens by rho
 *   sequence-reject=0.5:2      sequences by exp(b(S))
 *   geometric-reject=0.99:1.01 sequences by exp(b(G))
 *   token-k2=B  token-k3=B     tokens by k2, k3
 *   sum-k2=B  mean-k2=B  max-k2=B, and k3: sequences by sum, mean and largest of their tokens' values
 *   veto=1e-4                  sequences by their smallest rho; LOW:HIGH bounds the largest, too
 *   error-reject=1.5           sequences by their mean of exp(|b(d)|)
 * All are evaluated on the sequence as it came and multiplied: their order does not matter. Bounds belong to the
 * accepted range. Weights are constants of the loss.
 *
 * A counted token is missing when t or r is NaN, r is infinite or t is +inf: it has weight 0 and takes no part in its
 * sequence's values; t = -inf takes part (rho = exp(-20)). Arithmetic is binary64 in index order, one rounding to
 * float32; what a sequence gets depends on nothing but itself. With t = r every weight is exactly 1 (if the bounds
 * contain 1). */
#ifndef LS_RL_CORRECTION_H
#define LS_RL_CORRECTION_H

#include "json/json_out.h"
#include "measure/tokens.h"

enum { LS_CORRECTION_STEPS = 16 };

typedef enum ls_correction_kind {
    LS_CORRECT_TOKEN_TRUNCATE,
    LS_CORRECT_TOKEN_MASK,
    LS_CORRECT_SEQUENCE_TRUNCATE,
    LS_CORRECT_SEQUENCE_MASK,
    LS_CORRECT_TOKEN_REJECT, /* from here on: rejections */
    LS_CORRECT_SEQUENCE_REJECT,
    LS_CORRECT_GEOMETRIC_REJECT,
    LS_CORRECT_TOKEN_K2,
    LS_CORRECT_TOKEN_K3,
    LS_CORRECT_SUM_K2,
    LS_CORRECT_SUM_K3,
    LS_CORRECT_MEAN_K2,
    LS_CORRECT_MEAN_K3,
    LS_CORRECT_MAX_K2,
    LS_CORRECT_MAX_K3,
    LS_CORRECT_VETO,
    LS_CORRECT_ERROR_REJECT
} ls_correction_kind;
extern const char *const ls_correction_names[]; /* in the order of the kinds, NULL at the end */

typedef struct ls_correction_step {
    ls_correction_kind kind;
    double low, high;
} ls_correction_step;

typedef struct ls_correction {
    ls_correction_step steps[LS_CORRECTION_STEPS];
    int32_t n;
} ls_correction;

/* "" and "none" are the empty list. */
ls_status ls_correction_parse(ls_correction *out, const char *text, ls_error *err);

/* Of one step of the list, over tokens that are not missing and sequences that have one. */
typedef struct ls_correction_share {
    double tokens, sequences; /* fractions outside the bounds; of a token's step, sequences with such a token */
    double mean, min, max;    /* of the value that is bounded; over tokens or over sequences, as the step is */
} ls_correction_share;

typedef struct ls_correction_metrics {
    int64_t n_tokens, n_missing, n_sequences; /* counted; of those missing; sequences with a token that is not */
    /* Over tokens that are not missing. raw is rho, or exp(b(S)) for a weight of sequences, before bounds. std is the
     * population's. */
    double raw_mean, raw_min, raw_max;
    double weight_mean, weight_std, weight_min, weight_max;
    double effective_fraction; /* (mean weight)^2 / mean weight^2 */
    double fraction_high,
        fraction_low;         /* raw above HIGH, below LOW (below 1 / HIGH where LOW is 0); 0 without bounds */
    double outside_fraction;  /* raw outside [LOW, HIGH] */
    double rejected_fraction; /* tokens that a rejection took */
    double zero_fraction;     /* tokens of weight 0 */
    double sequences_rejected_fraction; /* sequences of which a rejection took a token */
    double sequences_zero_fraction;     /* sequences whose weights are all 0 */
    int64_t sequences_zero;
    double k3_kept, k3_zero; /* mean k3 over tokens with and without weight */
    /* Of each sequence's mean weight; std with n - 1. */
    double sequence_weight_mean, sequence_weight_std, sequence_weight_min, sequence_weight_max;
    /* Means over sequences of the sequence's mean rho, |rho - 1| and share of tokens outside the bounds. */
    double sequence_raw_mean, sequence_abs_mean, sequence_outside_mean;
    ls_correction_share shares[LS_CORRECTION_STEPS];
} ls_correction_metrics;

/* weights[tokens], +0 where a token is not counted. kept[tokens] (may be NULL): 1 where a token is counted, not missing
 * and not rejected, which is a mask for who wants rejected tokens out of the loss's divisor. metrics may be NULL. */
ls_status ls_correction_apply(float *weights, uint8_t *kept, ls_correction_metrics *metrics, const ls_tokens *tokens,
                              const float *r, const float *t, const ls_correction *correction, ls_error *err);

/* The same for people, indented lines. */
void ls_correction_print(FILE *file, const ls_correction_metrics *metrics, const ls_correction *correction);
/* Members of an open object: every measure by its own name, then "steps". */
void ls_correction_write(ls_json_out *json, const ls_correction_metrics *metrics, const ls_correction *correction);
/* Members of an open object: what other trainers log of the same, as far as this list is what they have. */
void ls_correction_write_aliases(ls_json_out *json, const ls_correction_metrics *metrics,
                                 const ls_correction *correction);

#endif
