/* Group advantages; owns nothing. */
#include "rl/advantage.h"

#include <math.h>

const char *const ls_advantage_names[] = {"mean", "std", "rloo", NULL};

/* What a group has in common, over the rewards that are there. */
typedef struct group_sums {
    int64_t n;
    double sum, squares; /* of rewards; of their distances from the mean */
    bool equal;
} group_sums;

static bool is_failed(const float *rewards, const uint8_t *failed, int64_t i) {
    return !isfinite(rewards[i]) || (failed != NULL && failed[i] != 0);
}

static group_sums sum_group(const float *rewards, const uint8_t *failed, int64_t begin, int64_t end) {
    group_sums g = {.equal = true};
    int64_t first = -1;
    for (int64_t i = begin; i < end; i++) {
        if (is_failed(rewards, failed, i)) continue;
        if (first < 0) first = i;
        if (rewards[i] != rewards[first]) g.equal = false;
        g.sum += (double)rewards[i];
        g.n++;
    }
    for (int64_t i = begin; i < end && !g.equal; i++) {
        const double d = (double)rewards[i] - g.sum / (double)g.n;
        if (!is_failed(rewards, failed, i)) g.squares += d * d;
    }
    return g;
}

static double advantage_of(double reward, const group_sums *g, const ls_advantage_options *options) {
    const double n = (double)g->n, centred = reward - g->sum / n;
    if (g->equal) return 0.0;
    switch (options->kind) {
        case LS_ADVANTAGE_MEAN: return centred;
        case LS_ADVANTAGE_STD: return centred / (sqrt(g->squares / (options->population ? n : n - 1.0)) + options->eps);
        case LS_ADVANTAGE_RLOO: return reward - (g->sum - reward) / (n - 1.0);
    }
    return 0.0;
}

static void measure_rewards(ls_advantage_metrics *m, const float *rewards, const uint8_t *failed, int64_t n) {
    const group_sums all = sum_group(rewards, failed, 0, n);
    const double none = (double)NAN;
    bool any = false;
    m->reward_mean = all.n > 0 ? all.sum / (double)all.n : none;
    m->reward_std = all.n > 1 ? sqrt(all.squares / (double)(all.n - 1)) : none;
    m->reward_min = m->reward_max = none;
    for (int64_t i = 0; i < n; i++) {
        const double r = (double)rewards[i];
        if (is_failed(rewards, failed, i)) continue;
        if (!any || r < m->reward_min) m->reward_min = r;
        if (!any || r > m->reward_max) m->reward_max = r;
        any = true;
    }
}

ls_status ls_advantages(float *out, uint8_t *keep, ls_advantage_metrics *metrics, const ls_group_rewards *of,
                        const ls_advantage_options *options, ls_error *err) {
    const float *rewards = of->rewards;
    const uint8_t *failed = of->failed;
    const int64_t n = of->n, group_size = of->group_size;
    ls_advantage_metrics m = {.n_samples = n};
    double std_sum = 0.0;
    int64_t n_std = 0;
    if (group_size <= 0 || n < 0 || n % group_size != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%lld samples are not groups of %lld", (long long)n, (long long)group_size);
    if (!(options->eps >= 0.0 && isfinite(options->eps)))
        return LS_FAIL(err, LS_ERR_ARG, "eps: %g is negative or not finite", options->eps);
    if (options->kind < LS_ADVANTAGE_MEAN || options->kind > LS_ADVANTAGE_RLOO)
        return LS_FAIL(err, LS_ERR_ARG, "advantage kind %d", (int)options->kind);
    for (int64_t begin = 0; begin < n; begin += group_size) {
        const group_sums g = sum_group(rewards, failed, begin, begin + group_size);
        m.n_groups++;
        m.n_groups_empty += g.n == 0;
        m.n_groups_equal += g.n > 0 && g.equal;
        m.n_failed += group_size - g.n;
        if (g.n > 1) {
            std_sum += sqrt(g.squares / (double)(g.n - 1));
            n_std++;
        }
        for (int64_t i = begin; i < begin + group_size; i++) {
            const bool counts = !is_failed(rewards, failed, i);
            const bool kept = counts && !(g.equal && options->drop_equal);
            out[i] = counts ? (float)advantage_of((double)rewards[i], &g, options) : 0.0f;
            if (keep != NULL) keep[i] = kept;
            m.n_kept += kept;
        }
    }
    measure_rewards(&m, rewards, failed, n);
    m.group_std_mean = n_std > 0 ? std_sum / (double)n_std : (double)NAN;
    if (metrics != NULL) *metrics = m;
    return LS_OK;
}
