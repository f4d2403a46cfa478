/* Measures of t against r; scratch arrays live during one call. */
#include "measure/mismatch.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/sort.h"
#include "num/exp64.h"

const double ls_mismatch_quantiles[LS_QUANTILES] = {0.5, 0.9, 0.99, 0.999};

/* A measure and where it lies. */
typedef struct named_field {
    const char *name;
    size_t offset;
} named_field;

#define FIELD(name) \
    { #name, offsetof(ls_mismatch, name) }
#define ALIAS(alias, name) \
    { alias, offsetof(ls_mismatch, name) }

static const named_field fields[] = {
    FIELD(equal_fraction),
    FIELD(abs_mean),
    FIELD(abs_std),
    FIELD(abs_min),
    FIELD(abs_max),
    FIELD(signed_mean),
    FIELD(sequence_abs_mean),
    FIELD(sequence_abs_max),
    FIELD(sequence_mult_mean),
    FIELD(sequence_mult_min),
    FIELD(sequence_mult_max),
    FIELD(k1),
    FIELD(k2),
    FIELD(k3),
    FIELD(k3_std),
    FIELD(k3_max),
    FIELD(k3_reverse),
    FIELD(js),
    FIELD(rho_mean),
    FIELD(rho_geometric),
    FIELD(rho_min),
    FIELD(rho_max),
    FIELD(rho_std),
    FIELD(chi2_token),
    FIELD(chi2_sequence),
    FIELD(effective_fraction),
    FIELD(mult_error),
    FIELD(prob_mean),
    FIELD(prob_std),
    FIELD(prob_max),
    FIELD(prob_correlation),
    FIELD(trainer_ppl),
    FIELD(trainer_log_ppl),
    FIELD(rollout_ppl),
    FIELD(rollout_log_ppl),
    FIELD(ppl_ratio),
    FIELD(log_ppl_diff),
    FIELD(log_ppl_abs_diff),
    FIELD(log_ppl_diff_max),
    FIELD(log_ppl_diff_min),
    FIELD(slope),
    FIELD(intercept),
    FIELD(residual),
    FIELD(position_slope),
    FIELD(position_abs_slope),
};

static const named_field aliases[] = {
    ALIAS("training/rollout_probs_diff_mean", prob_mean),
    ALIAS("training/rollout_probs_diff_max", prob_max),
    ALIAS("training/rollout_probs_diff_std", prob_std),
    ALIAS("training/rollout_actor_probs_pearson_corr", prob_correlation),
    ALIAS("rollout_corr/kl", k1),
    ALIAS("rollout_corr/k3_kl", k3),
    ALIAS("rollout_corr/training_ppl", trainer_ppl),
    ALIAS("rollout_corr/training_log_ppl", trainer_log_ppl),
    ALIAS("rollout_corr/rollout_ppl", rollout_ppl),
    ALIAS("rollout_corr/rollout_log_ppl", rollout_log_ppl),
    ALIAS("rollout_corr/log_ppl_diff", log_ppl_diff),
    ALIAS("rollout_corr/log_ppl_abs_diff", log_ppl_abs_diff),
    ALIAS("rollout_corr/log_ppl_diff_max", log_ppl_diff_max),
    ALIAS("rollout_corr/log_ppl_diff_min", log_ppl_diff_min),
    ALIAS("rollout_corr/ppl_ratio", ppl_ratio),
    ALIAS("rollout_corr/chi2_token", chi2_token),
    ALIAS("rollout_corr/chi2_seq", chi2_sequence),
    ALIAS("sampling/sampling_logp_difference/mean", abs_mean),
    ALIAS("sampling/sampling_logp_difference/max", abs_max),
    ALIAS("mismatch_kl/all/mean", k3),
    ALIAS("mismatch_kl/all/std", k3_std),
    ALIAS("mismatch_kl/all/max", k3_max),
    ALIAS("train/train_rollout_logprob_abs_diff", sequence_abs_mean),
    ALIAS("vllm_kl", k1),
    ALIAS("token_mult_prob_error", mult_error),
    ALIAS("gen_kl_error", k3),
    ALIAS("policy_kl_error", k3_reverse),
    ALIAS("js_divergence_error", js),
    ALIAS("sampling_importance_ratio", rho_mean),
    ALIAS("mean_seq_mult_prob_error", sequence_mult_mean),
    ALIAS("min_seq_mult_prob_error", sequence_mult_min),
    ALIAS("max_seq_mult_prob_error", sequence_mult_max),
    ALIAS("policy/rollout_train_logprobs_abs_diff_mean", abs_mean),
    ALIAS("policy/rollout_train_logprobs_abs_diff_std", abs_std),
    ALIAS("policy/rollout_train_logprobs_abs_diff_max", abs_max),
    ALIAS("policy/rollout_train_logprobs_abs_diff_min", abs_min),
    ALIAS("debug/vllm_vs_local_logprob_diff_mean", abs_mean),
    ALIAS("debug/vllm_vs_local_logprob_diff_max", abs_max),
    ALIAS("debug/vllm_vs_local_logprob_diff_std", abs_std),
    ALIAS("optim/kl_sample_train_v1", k1),
    ALIAS("optim/kl_sample_train_v2", k2),
};

static double *field_of(ls_mismatch *m, size_t offset) { return (double *)((char *)m + offset); }
static double measure_value(const ls_mismatch *m, size_t offset) { return *(const double *)((const char *)m + offset); }

/* ---- statistics ---- */

typedef struct fit_result {
    double slope, intercept, correlation, residual;
} fit_result;

static double sample_std(const double *x, int64_t n, double mean) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : (double)NAN;
}

static double mean_of(const double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return n > 0 ? sum / (double)n : (double)NAN;
}

/* Least squares y = slope * x + intercept. */
static fit_result fit_line(const double *x, const double *y, int64_t n) {
    const double mean_x = mean_of(x, n), mean_y = mean_of(y, n);
    double xx = 0.0, yy = 0.0, xy = 0.0, squares = 0.0;
    fit_result result = {(double)NAN, (double)NAN, (double)NAN, (double)NAN};
    for (int64_t i = 0; i < n; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        yy += (y[i] - mean_y) * (y[i] - mean_y);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    if (!(xx > 0.0)) return result;
    result.slope = xy / xx;
    result.intercept = mean_y - result.slope * mean_x;
    if (yy > 0.0) result.correlation = xy / sqrt(xx * yy);
    for (int64_t i = 0; i < n; i++) {
        const double e = y[i] - (result.slope * x[i] + result.intercept);
        squares += e * e;
    }
    result.residual = sqrt(squares / (double)n);
    return result;
}

/* x is sorted. */
static double quantile(const double *x, int64_t n, double q) {
    const double at = q * (double)(n - 1);
    const int64_t low = (int64_t)at;
    if (n == 0) return (double)NAN;
    if (low + 1 >= n) return x[n - 1];
    return x[low] + (at - (double)low) * (x[low + 1] - x[low]);
}

/* ---- measures ---- */

/* 1/2 (e^(t - m) - 1 - (t - m)) + 1/2 (e^(r - m) - 1 - (r - m)), m = log((e^t + e^r) / 2). */
static double js_of(double d) {
    const double far = fabs(d);
    /* m is this far below the larger of the two. */
    const double below = -ls_log64((1.0 + ls_exp64(-far)) * 0.5);
    return 0.5 * (ls_exp64_excess(below) + ls_exp64_excess(below - far));
}

static void measure_rho(ls_mismatch *out, const ls_mismatch_pair *pairs, int64_t n, double *x) {
    double squares = 0.0, k3_reverse = 0.0, js = 0.0, mult = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double d = pairs[i].t - pairs[i].r;
        x[i] = ls_exp64_excess(d);
        k3_reverse += ls_exp64_excess(-d);
        js += js_of(d);
        mult += ls_exp64(fabs(d));
        if (i == 0 || x[i] > out->k3_max) out->k3_max = x[i];
    }
    out->k3 = mean_of(x, n);
    out->k3_std = sample_std(x, n, out->k3);
    out->k3_reverse = k3_reverse / (double)n;
    out->js = js / (double)n;
    out->mult_error = mult / (double)n;
    for (int64_t i = 0; i < n; i++) {
        x[i] = ls_exp64(pairs[i].t - pairs[i].r);
        squares += x[i] * x[i];
        if (i == 0 || x[i] < out->rho_min) out->rho_min = x[i];
        if (i == 0 || x[i] > out->rho_max) out->rho_max = x[i];
    }
    out->rho_mean = mean_of(x, n);
    out->rho_std = sample_std(x, n, out->rho_mean);
    out->rho_geometric = ls_exp64(out->signed_mean);
    out->chi2_token = squares / (double)n - 1.0;
    out->effective_fraction = out->rho_mean * out->rho_mean / (squares / (double)n);
}

static void measure_difference(ls_mismatch *out, const ls_mismatch_pair *pairs, int64_t n, double *x, double *y) {
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double d = pairs[i].t - pairs[i].r;
        sum += d;
        squares += d * d;
        x[i] = (double)pairs[i].position;
        y[i] = d;
    }
    out->signed_mean = sum / (double)n;
    out->k1 = 0.0 - out->signed_mean;
    out->k2 = squares / (double)n / 2.0;
    out->position_slope = fit_line(x, y, n).slope;
    for (int64_t i = 0; i < n; i++) y[i] = fabs(y[i]);
    out->position_abs_slope = fit_line(x, y, n).slope;
    out->abs_mean = mean_of(y, n);
    out->abs_std = sample_std(y, n, out->abs_mean);
    ls_sort(y, n);
    out->abs_min = y[0];
    out->abs_max = y[n - 1];
    for (int i = 0; i < LS_QUANTILES; i++) out->abs_quantiles[i] = quantile(y, n, ls_mismatch_quantiles[i]);
}

static void measure_probabilities(ls_mismatch *out, const ls_mismatch_pair *pairs, int64_t n, double *x, double *y) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = ls_exp64(pairs[i].r);
        y[i] = ls_exp64(pairs[i].t);
    }
    out->prob_correlation = fit_line(x, y, n).correlation;
    for (int64_t i = 0; i < n; i++) {
        x[i] = fabs(y[i] - x[i]);
        if (i == 0 || x[i] > out->prob_max) out->prob_max = x[i];
    }
    out->prob_mean = mean_of(x, n);
    out->prob_std = sample_std(x, n, out->prob_mean);
}

/* Sums over one sequence's pairs, which begin at `begin`; returns where they end. */
typedef struct sequence_sums {
    double n, r, t, d, abs, mult;
} sequence_sums;

static int64_t sum_sequence(sequence_sums *sums, const ls_mismatch_pair *pairs, int64_t n, int64_t begin) {
    int64_t i = begin;
    *sums = (sequence_sums){0};
    for (; i < n && pairs[i].sequence == pairs[begin].sequence; i++) {
        const double d = pairs[i].t - pairs[i].r;
        sums->r += pairs[i].r;
        sums->t += pairs[i].t;
        sums->d += d;
        sums->abs += fabs(d);
        sums->mult += ls_exp64(fabs(d));
    }
    sums->n = (double)(i - begin);
    return i;
}

static void add_measured_sequence(ls_mismatch *out, const sequence_sums *s, int64_t sequence) {
    const double abs = s->abs / s->n, mult = s->mult / s->n, r = s->r / s->n, t = s->t / s->n, diff = r - t;
    const bool first = out->n_sequences == 0;
    if (first || abs > out->sequence_abs_max) {
        out->sequence_abs_max = abs;
        out->sequence_worst = sequence;
    }
    if (first || mult > out->sequence_mult_max) out->sequence_mult_max = mult;
    if (first || mult < out->sequence_mult_min) out->sequence_mult_min = mult;
    if (first || diff > out->log_ppl_diff_max) out->log_ppl_diff_max = diff;
    if (first || diff < out->log_ppl_diff_min) out->log_ppl_diff_min = diff;
    out->sequence_abs_mean += abs;
    out->sequence_mult_mean += mult;
    out->chi2_sequence += ls_exp64(2.0 * ls_log_ratio_bound(s->d));
    out->rollout_ppl += ls_exp64(-r);
    out->trainer_ppl += ls_exp64(-t);
    out->ppl_ratio += ls_exp64(diff);
    out->rollout_log_ppl -= r;
    out->trainer_log_ppl -= t;
    out->log_ppl_diff += diff;
    out->log_ppl_abs_diff += fabs(diff);
    out->n_sequences++;
}

static void measure_sequences(ls_mismatch *out, const ls_mismatch_pair *pairs, int64_t n) {
    double *const means[] = {&out->sequence_abs_mean, &out->sequence_mult_mean, &out->chi2_sequence,
                             &out->rollout_ppl,       &out->trainer_ppl,        &out->ppl_ratio,
                             &out->rollout_log_ppl,   &out->trainer_log_ppl,    &out->log_ppl_diff,
                             &out->log_ppl_abs_diff};
    enum { N_MEANS = sizeof means / sizeof means[0] };
    for (int k = 0; k < N_MEANS; k++) *means[k] = 0.0;
    for (int64_t i = 0; i < n;) {
        sequence_sums sums;
        const int64_t sequence = pairs[i].sequence;
        i = sum_sequence(&sums, pairs, n, i);
        add_measured_sequence(out, &sums, sequence);
    }
    for (int k = 0; k < N_MEANS; k++) *means[k] /= (double)out->n_sequences;
    out->chi2_sequence -= 1.0;
}

static double lag_correlation(const ls_mismatch_pair *pairs, int64_t n_pairs, int64_t lag, double *x, double *y) {
    int64_t n = 0;
    for (int64_t i = 0; i < n_pairs; i++) {
        const ls_mismatch_pair *from = &pairs[i];
        /* Positions ascend within a sequence, so the partner is at most `lag` entries away. */
        for (int64_t j = i + (lag < 0 ? lag : 0); j <= i + (lag > 0 ? lag : 0); j++) {
            if (j < 0 || j >= n_pairs) continue;
            if (pairs[j].sequence != from->sequence || pairs[j].position != from->position + lag) continue;
            x[n] = from->r;
            y[n++] = pairs[j].t;
        }
    }
    return fit_line(x, y, n).correlation;
}

ls_status ls_mismatch_of_pairs(ls_mismatch *out, const ls_mismatch_pair *pairs, int64_t n, ls_error *err) {
    ls_status status;
    double *x = NULL, *y = NULL;
    fit_result line;
    *out = (ls_mismatch){.n = n, .sequence_worst = -1};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) *field_of(out, fields[i].offset) = (double)NAN;
    for (int i = 0; i < LS_LAGS; i++) out->lag_correlation[i] = (double)NAN;
    for (int i = 0; i < LS_QUANTILES; i++) out->abs_quantiles[i] = (double)NAN;
    if (n == 0) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&x, n, sizeof *x, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&y, n, sizeof *y, "tokens", err));
    measure_difference(out, pairs, n, x, y);
    measure_rho(out, pairs, n, x);
    measure_probabilities(out, pairs, n, x, y);
    measure_sequences(out, pairs, n);
    for (int i = 0; i < LS_LAGS; i++) out->lag_correlation[i] = lag_correlation(pairs, n, i - LS_LAGS / 2, x, y);
    for (int64_t i = 0; i < n; i++) {
        x[i] = pairs[i].r;
        y[i] = pairs[i].t;
    }
    line = fit_line(x, y, n);
    out->slope = line.slope;
    out->intercept = line.intercept;
    out->residual = line.residual;
done:
    free(x);
    free(y);
    return status;
}

ls_status ls_mismatch_of(ls_mismatch *out, const ls_tokens *tokens, const float *r, const float *t, ls_error *err) {
    ls_status status;
    ls_mismatch_pair *pairs = NULL;
    int64_t n = 0, counted = 0, equal = 0;
    LS_TRY_DONE(ls_array_alloc((void **)&pairs, tokens->offsets[tokens->n_sequences], sizeof *pairs, "tokens", err));
    for (int64_t s = 0; s < tokens->n_sequences; s++)
        for (int64_t i = tokens->offsets[s]; i < tokens->offsets[s + 1]; i++) {
            if (!ls_token_counts(tokens, i)) continue;
            counted++;
            equal += memcmp(&r[i], &t[i], sizeof r[i]) == 0;
            if (isfinite(r[i]) && isfinite(t[i]))
                pairs[n++] = (ls_mismatch_pair){(double)r[i], (double)t[i], s, i - tokens->offsets[s]};
        }
    LS_TRY_DONE(ls_mismatch_of_pairs(out, pairs, n, err));
    if (counted > 0) out->equal_fraction = (double)equal / (double)counted;
done:
    free(pairs);
    return status;
}

/* ---- names ---- */

void ls_mismatch_write(ls_json_out *json, const ls_mismatch *m) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        ls_json_double(json, fields[i].name, measure_value(m, fields[i].offset));
    ls_json_begin_object(json, "abs_quantiles");
    for (int i = 0; i < LS_QUANTILES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%g", ls_mismatch_quantiles[i]);
        ls_json_double(json, name, m->abs_quantiles[i]);
    }
    ls_json_end_object(json);
    ls_json_begin_object(json, "lag_correlation");
    for (int i = 0; i < LS_LAGS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i - LS_LAGS / 2);
        ls_json_double(json, name, m->lag_correlation[i]);
    }
    ls_json_end_object(json);
}

void ls_mismatch_write_aliases(ls_json_out *json, const ls_mismatch *m) {
    ls_json_int(json, "training/rollout_probs_diff_valid", m->n > 0);
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        ls_json_double(json, aliases[i].name, measure_value(m, aliases[i].offset));
}
