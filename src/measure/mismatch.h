/* How far the trainer's log-probabilities t are from the rollout's r: measures, and their names elsewhere.
 *
 * d = t - r and rho = exp(d) for each token. Measures are over the tokens whose t and r are finite, in binary64 with
 * num/exp64.h, summed in the order given; where one has no value (no token, no variance) it is NaN, null in JSON. std
 * is the sample's, with n - 1. With t = r everywhere d, k1, k2, k3, js and chi2 are exactly 0 and rho exactly 1. */
#ifndef LS_MEASURE_MISMATCH_H
#define LS_MEASURE_MISMATCH_H

#include "json/json_out.h"
#include "measure/tokens.h"

enum { LS_LAGS = 5, LS_QUANTILES = 4 }; /* lags -2..2; quantiles 0.5, 0.9, 0.99, 0.999 */
extern const double ls_mismatch_quantiles[LS_QUANTILES];

typedef struct ls_mismatch {
    int64_t n; /* tokens that are finite on both sides */
    int64_t n_sequences;
    double equal_fraction;                                                   /* of what was compared, as bits */
    double abs_mean, abs_std, abs_max, abs_min, abs_quantiles[LS_QUANTILES]; /* of abs d; linear interpolation */
    double signed_mean;                                                      /* mean d */
    double k1, k2, k3;     /* mean -d; mean d^2 / 2; mean rho - 1 - d */
    double k3_std, k3_max; /* of rho - 1 - d */
    double k3_reverse;     /* mean 1 / rho - 1 + d */
    double js;             /* mean of half the k3 of each side against the mean of both probabilities */
    double rho_mean, rho_geometric, rho_min, rho_max, rho_std;
    double chi2_token;                    /* mean rho^2 - 1 */
    double chi2_sequence;                 /* mean over sequences of exp(2 b(sum d)) - 1, b() a bound of +-20 */
    double effective_fraction;            /* 1 / mean (rho / mean rho)^2 */
    double mult_error;                    /* mean exp(abs d) */
    double prob_mean, prob_std, prob_max; /* of abs(exp t - exp r) */
    double prob_correlation;              /* Pearson of exp r and exp t */
    double sequence_abs_mean;             /* mean over sequences of the sequence's mean abs d */
    double sequence_abs_max;
    double sequence_mult_mean, sequence_mult_min, sequence_mult_max; /* of the sequence's mean exp(abs d) */
    /* log_ppl of a sequence is minus its mean log-probability, ppl its exp. Means over sequences; the differences are
     * trainer minus rollout, ppl_ratio the mean of their exp. */
    double trainer_ppl, trainer_log_ppl, rollout_ppl, rollout_log_ppl, ppl_ratio;
    double log_ppl_diff, log_ppl_abs_diff, log_ppl_diff_max, log_ppl_diff_min;
    double lag_correlation[LS_LAGS];   /* Pearson of r at position i and t at position i + lag */
    double slope, intercept, residual; /* least squares t = slope * r + intercept; root mean square residual */
    double position_slope;             /* least squares of d on the position */
    double position_abs_slope;         /* least squares of abs d on the position */
    int64_t sequence_worst;            /* index of the sequence of sequence_abs_max; -1 without a token */
} ls_mismatch;

/* A token that is finite on both sides. Pairs of a sequence stand together, their positions ascending. */
typedef struct ls_mismatch_pair {
    double r, t;
    int64_t sequence, position;
} ls_mismatch_pair;

/* equal_fraction is left NaN for the caller. */
ls_status ls_mismatch_of_pairs(ls_mismatch *out, const ls_mismatch_pair *pairs, int64_t n, ls_error *err);
/* Counted tokens of r[tokens] and t[tokens]; positions count from each sequence's first token. */
ls_status ls_mismatch_of(ls_mismatch *out, const ls_tokens *tokens, const float *r, const float *t, ls_error *err);

/* Members of an open object: every measure under its own name. */
void ls_mismatch_write(ls_json_out *json, const ls_mismatch *mismatch);
/* Members of an open object: the measures under the names that other trainers log, so that two dashboards can be laid
 * side by side. */
void ls_mismatch_write_aliases(ls_json_out *json, const ls_mismatch *mismatch);

#endif
