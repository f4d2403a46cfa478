/* Policy losses, token by token; owns nothing. */
#include "rl/loss.h"

#include <math.h>
#include <string.h>

#include "num/exp64.h"

const char *const ls_policy_names[] = {"ppo", "gspo", "cispo", "reinforce", NULL};
const char *const ls_loss_norm_names[] = {"token", "sequence", "length", NULL};
const char *const ls_kl_names[] = {"k1", "k2", "k3", NULL};

enum { CLIP_NONE, CLIP_LOW, CLIP_HIGH, CLIP_DUAL };

/* A term of the loss and its derivative with respect to t, or to the mean of t - o. */
typedef struct term {
    double value, slope;
    int clip;
} term;

ls_status ls_loss_options_check(const ls_loss_options *o, ls_error *err) {
    if (o->policy < LS_LOSS_POLICY_PPO || o->policy > LS_LOSS_POLICY_REINFORCE)
        return LS_FAIL(err, LS_ERR_ARG, "policy loss %d", (int)o->policy);
    if (o->norm < LS_LOSS_NORM_TOKEN || o->norm > LS_LOSS_NORM_LENGTH)
        return LS_FAIL(err, LS_ERR_ARG, "norm %d", (int)o->norm);
    if (o->kl < LS_KL_K1 || o->kl > LS_KL_K3) return LS_FAIL(err, LS_ERR_ARG, "KL kind %d", (int)o->kl);
    if (!(o->eps_low >= 0.0 && o->eps_low < 1.0))
        return LS_FAIL(err, LS_ERR_ARG, "eps_low: %g is not at least 0 and below 1", o->eps_low);
    if (!(o->eps_high >= 0.0 && isfinite(o->eps_high)))
        return LS_FAIL(err, LS_ERR_ARG, "eps_high: %g is negative or not finite", o->eps_high);
    if (o->dual_clip != 0.0 && !(o->dual_clip > 1.0 && isfinite(o->dual_clip)))
        return LS_FAIL(err, LS_ERR_ARG, "dual_clip: %g is neither 0 nor above 1", o->dual_clip);
    if (!isfinite(o->beta)) return LS_FAIL(err, LS_ERR_ARG, "beta: %g is not finite", o->beta);
    if (!isfinite(o->entropy_bonus))
        return LS_FAIL(err, LS_ERR_ARG, "entropy_bonus: %g is not finite", o->entropy_bonus);
    if (o->norm == LS_LOSS_NORM_LENGTH && !(o->length > 0.0 && isfinite(o->length)))
        return LS_FAIL(err, LS_ERR_ARG, "length: %g is not a positive number", o->length);
    return LS_OK;
}

/* ---- what is counted ---- */

static bool sequence_counts(const ls_loss_input *in, const ls_loss_options *o, int64_t s) {
    if (in->keep != NULL && in->keep[s] == 0) return false;
    return !(o->mask_overlong && in->overlong != NULL && in->overlong[s] != 0);
}

static int64_t count_tokens(const ls_loss_input *in, const ls_loss_options *o, int64_t s) {
    int64_t n = 0;
    if (!sequence_counts(in, o, s)) return 0;
    for (int64_t i = in->tokens.offsets[s]; i < in->tokens.offsets[s + 1]; i++) n += ls_token_counts(&in->tokens, i);
    return n;
}

void ls_loss_count(ls_loss_totals *totals, const ls_loss_input *input, const ls_loss_options *options) {
    for (int64_t s = 0; s < input->tokens.n_sequences; s++) {
        const int64_t n = count_tokens(input, options, s);
        totals->n_tokens += n;
        totals->n_sequences += n > 0;
    }
}

static ls_status check_finite(const float *values, int64_t i, const char *name, int64_t s, int64_t position,
                              ls_error *err) {
    if (values == NULL || isfinite(values[i])) return LS_OK;
    if (position < 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s of sequence %lld is %g", name, (long long)s, (double)values[i]);
    return LS_FAIL(err, LS_ERR_ARG, "%s of sequence %lld, token %lld is %g", name, (long long)s, (long long)position,
                   (double)values[i]);
}

static ls_status check_sequence(const ls_loss_input *in, int64_t s, ls_error *err) {
    const int64_t begin = in->tokens.offsets[s];
    LS_TRY(check_finite(in->advantages, s, "the advantage", s, -1, err));
    for (int64_t i = begin; i < in->tokens.offsets[s + 1]; i++) {
        if (!ls_token_counts(&in->tokens, i)) continue;
        LS_TRY(check_finite(in->logprobs, i, "the log-probability", s, i - begin, err));
        LS_TRY(check_finite(in->old, i, "the old log-probability", s, i - begin, err));
        LS_TRY(check_finite(in->reference, i, "the reference log-probability", s, i - begin, err));
        LS_TRY(check_finite(in->weights, i, "the weight", s, i - begin, err));
        LS_TRY(check_finite(in->entropy, i, "the entropy", s, i - begin, err));
    }
    return LS_OK;
}

/* ---- the terms ---- */

/* d rho / d d, which is rho itself inside the bound. */
static double ratio_slope(double d, double rho) { return fabs(d) <= LS_LOG_RATIO_MAX ? rho : 0.0; }

/* max(-A rho, -A clip(rho)), bounded by -A c. Only a clip that takes effect is named. */
static term clipped_term(double advantage, double d, double rho, const ls_loss_options *o) {
    const double low = 1.0 - o->eps_low, high = 1.0 + o->eps_high;
    if (advantage > 0.0 && rho > high) return (term){-advantage * high, 0.0, CLIP_HIGH};
    if (advantage < 0.0 && rho < low) return (term){-advantage * low, 0.0, CLIP_LOW};
    if (advantage < 0.0 && o->dual_clip > 0.0 && rho > o->dual_clip)
        return (term){-advantage * o->dual_clip, 0.0, CLIP_DUAL};
    return (term){-advantage * rho, -advantage * ratio_slope(d, rho), CLIP_NONE};
}

static term policy_term(double advantage, double t, double d, double rho, const ls_loss_options *o) {
    const double high = 1.0 + o->eps_high;
    double factor = rho;
    int clip = CLIP_NONE;
    if (o->policy == LS_LOSS_POLICY_PPO || o->policy == LS_LOSS_POLICY_GSPO) return clipped_term(advantage, d, rho, o);
    if (o->policy == LS_LOSS_POLICY_CISPO && rho > high) {
        factor = high;
        clip = CLIP_HIGH;
    }
    return (term){-advantage * factor * t, -advantage * factor, clip};
}

/* d = f - t. */
static term kl_term(double d, ls_kl_kind kind) {
    const double bounded = ls_log_ratio_bound(d);
    switch (kind) {
        case LS_KL_K1: return (term){-d, 1.0, CLIP_NONE};
        case LS_KL_K2: return (term){0.5 * d * d, -d, CLIP_NONE};
        case LS_KL_K3: break;
    }
    return (term){ls_exp64_excess(bounded), bounded == d ? 1.0 - ls_exp64(d) : 0.0, CLIP_NONE};
}

static double divisor_of(int64_t n, const ls_loss_totals *totals, const ls_loss_options *o) {
    const double sequences = (double)totals->n_sequences;
    if (o->norm == LS_LOSS_NORM_TOKEN) return (double)totals->n_tokens;
    return sequences * (o->norm == LS_LOSS_NORM_SEQUENCE ? (double)n : o->length);
}

static double log_ratio_of(const ls_loss_input *in, int64_t i) {
    return in->old != NULL ? (double)in->logprobs[i] - (double)in->old[i] : 0.0;
}

/* The mean of t - o and the sum of the weights, which the sequence's ratio needs. */
static void sum_sequence(double *mean, double *weights, const ls_loss_input *in, int64_t s, int64_t n) {
    double sum = 0.0;
    *weights = 0.0;
    for (int64_t i = in->tokens.offsets[s]; i < in->tokens.offsets[s + 1]; i++) {
        if (!ls_token_counts(&in->tokens, i)) continue;
        sum += log_ratio_of(in, i);
        *weights += in->weights != NULL ? (double)in->weights[i] : 1.0;
    }
    *mean = sum / (double)n;
}

static void add_ratio(ls_loss_sums *sums, double d, double rho, int clip) {
    const double bounded = ls_log_ratio_bound(d);
    if (sums->n_tokens == 0 || rho < sums->ratio_min) sums->ratio_min = rho;
    if (sums->n_tokens == 0 || rho > sums->ratio_max) sums->ratio_max = rho;
    sums->ratio += rho;
    sums->clip_low += clip == CLIP_LOW;
    sums->clip_high += clip == CLIP_HIGH;
    sums->clip_dual += clip == CLIP_DUAL;
    sums->old_k1 += 0.0 - d;
    sums->old_k2 += 0.5 * d * d;
    sums->old_k3 += ls_exp64_excess(bounded);
    sums->n_tokens++;
}

static void run_sequence(float *d_logprob, float *d_entropy, ls_loss_sums *sums, const ls_loss_input *in, int64_t s,
                         int64_t n, const ls_loss_totals *totals, const ls_loss_options *o) {
    const double advantage = (double)in->advantages[s], divisor = divisor_of(n, totals, o);
    double mean = 0.0, weights = 0.0, policy = 0.0, kl = 0.0, entropy = 0.0;
    if (o->policy == LS_LOSS_POLICY_GSPO) sum_sequence(&mean, &weights, in, s, n);
    for (int64_t i = in->tokens.offsets[s]; i < in->tokens.offsets[s + 1]; i++) {
        const double w = in->weights != NULL ? (double)in->weights[i] : 1.0;
        const double own = log_ratio_of(in, i), d = o->policy == LS_LOSS_POLICY_GSPO ? mean : own;
        const double rho = o->policy == LS_LOSS_POLICY_REINFORCE ? 1.0 : ls_exp64(ls_log_ratio_bound(d));
        double slope;
        term p;
        if (!ls_token_counts(&in->tokens, i)) continue;
        p = policy_term(advantage, (double)in->logprobs[i], d, rho, o);
        policy += w * p.value;
        /* A sequence's ratio moves with every token by 1 / n, and every token's weight is on it. */
        slope = o->policy == LS_LOSS_POLICY_GSPO ? weights * p.slope / (double)n : w * p.slope;
        if (o->beta != 0.0) {
            const term k = kl_term((double)in->reference[i] - (double)in->logprobs[i], o->kl);
            kl += k.value;
            slope += o->beta * k.slope;
        }
        if (in->entropy != NULL) entropy += (double)in->entropy[i];
        d_logprob[i] = (float)(slope / divisor);
        if (d_entropy != NULL) d_entropy[i] = (float)(-o->entropy_bonus / divisor);
        add_ratio(sums, own, rho, p.clip);
    }
    sums->policy = policy / divisor;
    sums->kl = o->beta * kl / divisor;
    sums->entropy = o->entropy_bonus != 0.0 ? -o->entropy_bonus * entropy / divisor : 0.0;
    if (o->beta != 0.0) sums->reference_kl = kl;
    if (in->entropy != NULL) sums->token_entropy = entropy;
}

ls_status ls_loss(float *d_logprob, float *d_entropy, ls_loss_sums *sums, const ls_loss_input *input,
                  const ls_loss_totals *totals, const ls_loss_options *options, ls_error *err) {
    ls_loss_totals own = {0};
    LS_TRY(ls_loss_options_check(options, err));
    if ((input->old == NULL && options->policy != LS_LOSS_POLICY_REINFORCE) ||
        (input->reference == NULL && options->beta != 0.0) ||
        (input->entropy == NULL && options->entropy_bonus != 0.0)) {
        return LS_FAIL(err, LS_ERR_ARG, "the %s are missing",
                       input->old == NULL && options->policy != LS_LOSS_POLICY_REINFORCE ? "old log-probabilities"
                       : input->reference == NULL && options->beta != 0.0                ? "reference log-probabilities"
                                                                                         : "entropies");
    }
    ls_loss_count(&own, input, options);
    if (own.n_tokens > totals->n_tokens || own.n_sequences > totals->n_sequences) {
        return LS_FAIL(err, LS_ERR_ARG, "%lld tokens and %lld sequences here, of %lld and %lld in the whole step",
                       (long long)own.n_tokens, (long long)own.n_sequences, (long long)totals->n_tokens,
                       (long long)totals->n_sequences);
    }
    for (int64_t s = 0; s < input->tokens.n_sequences; s++) {
        const int64_t begin = input->tokens.offsets[s], end = input->tokens.offsets[s + 1];
        const int64_t n = count_tokens(input, options, s);
        for (int64_t i = begin; i < end; i++) {
            d_logprob[i] = 0.0f;
            if (d_entropy != NULL) d_entropy[i] = 0.0f;
        }
        sums[s] = (ls_loss_sums){.reference_kl = (double)NAN, .token_entropy = (double)NAN};
        if (n == 0) continue;
        LS_TRY(check_sequence(input, s, err));
        run_sequence(d_logprob, d_entropy, &sums[s], input, s, n, totals, options);
    }
    return LS_OK;
}

/* ---- measures ---- */

void ls_loss_measure(ls_loss_metrics *out, const ls_loss_sums *sums, int64_t n_sequences) {
    ls_loss_metrics m = {0};
    double n;
    for (int64_t s = 0; s < n_sequences; s++) {
        const ls_loss_sums *one = &sums[s];
        if (one->n_tokens == 0) continue;
        if (m.n_tokens == 0 || one->ratio_min < m.ratio_min) m.ratio_min = one->ratio_min;
        if (m.n_tokens == 0 || one->ratio_max > m.ratio_max) m.ratio_max = one->ratio_max;
        m.n_tokens += one->n_tokens;
        m.n_sequences++;
        m.policy_loss += one->policy;
        m.kl_loss += one->kl;
        m.entropy_loss += one->entropy;
        m.clip_low += (double)one->clip_low;
        m.clip_high += (double)one->clip_high;
        m.clip_dual += (double)one->clip_dual;
        m.ratio_mean += one->ratio;
        m.old_k1 += one->old_k1;
        m.old_k2 += one->old_k2;
        m.old_k3 += one->old_k3;
        m.reference_kl += one->reference_kl;
        m.entropy += one->token_entropy;
    }
    n = (double)m.n_tokens;
    m.loss = m.policy_loss + m.kl_loss + m.entropy_loss;
    m.clip_fraction = (m.clip_low + m.clip_high + m.clip_dual) / n;
    {
        double *const means[] = {&m.clip_low, &m.clip_high, &m.clip_dual, &m.ratio_mean,  &m.old_k1,
                                 &m.old_k2,   &m.old_k3,    &m.entropy,   &m.reference_kl};
        for (size_t i = 0; i < sizeof means / sizeof means[0]; i++) *means[i] /= n;
    }
    if (m.n_tokens == 0) m.ratio_min = m.ratio_max = (double)NAN;
    *out = m;
}

void ls_loss_metrics_write(ls_json_out *json, const char *key, const ls_loss_metrics *m, ls_policy_kind policy) {
    const struct {
        const char *name;
        double value;
    } own[] =
        {
            {"loss", m->loss},
            {"policy_loss", m->policy_loss},
            {"kl_loss", m->kl_loss},
            {"entropy_loss", m->entropy_loss},
            {"clip_fraction", m->clip_fraction},
            {"clip_low", m->clip_low},
            {"clip_high", m->clip_high},
            {"clip_dual", m->clip_dual},
            {"ratio_mean", m->ratio_mean},
            {"ratio_min", m->ratio_min},
            {"ratio_max", m->ratio_max},
            {"old_k1", m->old_k1},
            {"old_k2", m->old_k2},
            {"old_k3", m->old_k3},
            {"reference_kl", m->reference_kl},
            {"entropy", m->entropy},
        },
      aliases[] = {
          {"actor/pg_loss", m->policy_loss},
          {"actor/pg_clipfrac", m->clip_low + m->clip_high},
          {"actor/pg_clipfrac_lower", m->clip_dual},
          {"actor/ppo_kl", m->old_k1},
          {"actor/entropy", m->entropy},
          {"kl", m->reference_kl},
          {"probs_ratio", m->ratio_mean},
          {"probs_ratio_min", m->ratio_min},
          {"probs_ratio_max", m->ratio_max},
      };
    ls_json_begin_object(json, key);
    ls_json_int(json, "tokens", m->n_tokens);
    ls_json_int(json, "sequences", m->n_sequences);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) ls_json_double(json, own[i].name, own[i].value);
    ls_json_begin_object(json, "aliases");
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        ls_json_double(json, aliases[i].name, aliases[i].value);
    if (policy != LS_LOSS_POLICY_GSPO) { /* TRL counts these by sequences there, not by tokens */
        ls_json_double(json, "clip_ratio/low_mean", m->clip_low);
        ls_json_double(json, "clip_ratio/high_mean", m->clip_high);
        ls_json_double(json, "clip_ratio/region_mean", m->clip_low + m->clip_high);
    }
    ls_json_end_object(json);
    ls_json_end_object(json);
}
