/* Advantages of the samples of a group from their rewards.
 *
 * Sample i belongs to group i / group_size. A reward that is not finite, or flagged, is a failure: the sample is left
 * out of its group, has advantage 0 and is not kept. With n samples left, r their rewards and m = sum r / n:
 *   mean  r - m
 *   std   (r - m) / (s + eps), s the sample's standard deviation (n - 1), or the population's (n)
 *   rloo  r - (sum r - r) / (n - 1), the mean of the others
 * A group whose rewards are all equal, and so a group of one, has advantages of exactly 0; drop_equal does not keep its
 * samples (dynamic sampling). Arithmetic is binary64 in index order with one rounding to float32 at the end. */
#ifndef LS_RL_ADVANTAGE_H
#define LS_RL_ADVANTAGE_H

#include "base/status.h"

typedef enum ls_advantage_kind { LS_ADVANTAGE_MEAN, LS_ADVANTAGE_STD, LS_ADVANTAGE_RLOO } ls_advantage_kind;
extern const char *const ls_advantage_names[]; /* in the order of the kinds, NULL at the end */

typedef struct ls_advantage_options {
    ls_advantage_kind kind;
    bool population; /* of std: divide by n instead of n - 1 */
    double eps;      /* of std; 1e-6 is usual */
    bool drop_equal;
} ls_advantage_options;

typedef struct ls_advantage_metrics {
    int64_t n_samples, n_failed, n_kept;
    int64_t n_groups, n_groups_equal, n_groups_empty; /* equal: one reward or all the same; empty: all failed */
    double reward_mean, reward_std;                   /* over what did not fail, std with n - 1; NaN without a value */
    double reward_min, reward_max;
    double group_std_mean; /* mean over groups with two rewards or more of the std with n - 1 */
} ls_advantage_metrics;

typedef struct ls_group_rewards {
    const float *rewards;  /* [n] */
    const uint8_t *failed; /* [n], or NULL */
    int64_t n, group_size; /* n is a multiple of group_size */
} ls_group_rewards;

/* out[n]; keep[n], 0 or 1, and metrics may be NULL. */
ls_status ls_advantages(float *out, uint8_t *keep, ls_advantage_metrics *metrics, const ls_group_rewards *of,
                        const ls_advantage_options *options, ls_error *err);

#endif
