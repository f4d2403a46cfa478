/* Correction weights and their measures; owns nothing. */
#include "rl/correction.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "num/exp64.h"

const char *const ls_correction_names[] = {"token-truncate",
                                           "token-mask",
                                           "sequence-truncate",
                                           "sequence-mask",
                                           "token-reject",
                                           "sequence-reject",
                                           "geometric-reject",
                                           "token-k2",
                                           "token-k3",
                                           "sum-k2",
                                           "sum-k3",
                                           "mean-k2",
                                           "mean-k3",
                                           "max-k2",
                                           "max-k3",
                                           "veto",
                                           "error-reject",
                                           NULL};

static bool is_weight(ls_correction_kind kind) { return kind <= LS_CORRECT_SEQUENCE_MASK; }

static bool is_of_tokens(ls_correction_kind kind) {
    return kind == LS_CORRECT_TOKEN_TRUNCATE || kind == LS_CORRECT_TOKEN_MASK || kind == LS_CORRECT_TOKEN_REJECT ||
           kind == LS_CORRECT_TOKEN_K2 || kind == LS_CORRECT_TOKEN_K3;
}

/* ---- the list ---- */

/* A non-negative number up to one of the characters in `ends`, which *text is set to. */
static bool parse_bound(double *out, const char **text, const char *ends) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    *out = strtod(*text, &end);
    *text = end;
    return isfinite(*out) && strchr(ends, *end) != NULL;
}

static ls_status parse_step(ls_correction_step *step, const char **text, ls_error *err) {
    const char *begin = *text, *equals = begin + strcspn(begin, "=,");
    char name[32] = "";
    int kind;
    if (equals - begin < (ptrdiff_t)sizeof name) memcpy(name, begin, (size_t)(equals - begin));
    kind = ls_name_find(ls_correction_names, name);
    if (kind < 0)
        return LS_FAIL(err, LS_ERR_ARG,
                       "correction: '%.*s' is not one of token-truncate, token-mask, "
                       "sequence-truncate, sequence-mask, *-reject, *-k2, *-k3, veto",
                       (int)(equals - begin < 60 ? equals - begin : 60), begin);
    *step = (ls_correction_step){.kind = (ls_correction_kind)kind, .high = (double)INFINITY};
    *text = equals + (*equals == '=');
    if (*equals != '=' || !parse_bound(&step->low, text, ":,"))
        return LS_FAIL(err, LS_ERR_ARG, "correction: %s needs a bound that is not negative: %s=NUMBER or %s=LOW:HIGH",
                       name, name, name);
    if (**text == ':') {
        (*text)++;
        if (!parse_bound(&step->high, text, ",") || step->high < step->low)
            return LS_FAIL(err, LS_ERR_ARG, "correction: %s: the upper bound is not a number above the lower", name);
    } else if (step->kind != LS_CORRECT_VETO) {
        step->high = step->low;
        step->low = 0.0;
    }
    return LS_OK;
}

ls_status ls_correction_parse(ls_correction *out, const char *text, ls_error *err) {
    int n_weights = 0;
    *out = (ls_correction){0};
    if (*text == '\0' || strcmp(text, "none") == 0) return LS_OK;
    for (;;) {
        if (out->n == LS_CORRECTION_STEPS)
            return LS_FAIL(err, LS_ERR_ARG, "correction: more than %d steps", LS_CORRECTION_STEPS);
        LS_TRY(parse_step(&out->steps[out->n], &text, err));
        for (int k = 0; k < out->n; k++)
            if (out->steps[k].kind == out->steps[out->n].kind)
                return LS_FAIL(err, LS_ERR_ARG, "correction: %s twice", ls_correction_names[out->steps[k].kind]);
        n_weights += is_weight(out->steps[out->n++].kind);
        if (n_weights > 1)
            return LS_FAIL(err, LS_ERR_ARG,
                           "correction: two of token-truncate, token-mask, sequence-truncate, "
                           "sequence-mask: a token has one weight");
        if (*text == '\0') break;
        text++;
    }
    return LS_OK;
}

/* ---- values ---- */

typedef struct sequence_values {
    int64_t n;
    double sum, k2_sum, k2_max, k3_sum, k3_max, rho_min, rho_max, error_sum;
} sequence_values;

static bool is_missing(float r, float t) { return !isfinite(r) || isnan(t) || (isinf(t) && t > 0.0f); }
static bool is_seen(const ls_tokens *tokens, const float *r, const float *t, int64_t i) {
    return ls_token_counts(tokens, i) && !is_missing(r[i], t[i]);
}
static double bounded_exp(double d) { return ls_exp64(ls_log_ratio_bound(d)); }
static double k2_of(double d) { return 0.5 * d * d; }
static double k3_of(double d) { return ls_exp64_excess(ls_log_ratio_bound(d)); }

static sequence_values values_of(const ls_tokens *tokens, const float *r, const float *t, int64_t s) {
    sequence_values v = {0};
    for (int64_t i = tokens->offsets[s]; i < tokens->offsets[s + 1]; i++) {
        double d, rho, k2, k3;
        if (!is_seen(tokens, r, t, i)) continue;
        d = (double)t[i] - (double)r[i];
        rho = bounded_exp(d);
        k2 = k2_of(d);
        k3 = k3_of(d);
        v.sum += d;
        v.k2_sum += k2;
        v.k3_sum += k3;
        if (k2 > v.k2_max) v.k2_max = k2;
        if (k3 > v.k3_max) v.k3_max = k3;
        if (v.n == 0 || rho < v.rho_min) v.rho_min = rho;
        if (v.n == 0 || rho > v.rho_max) v.rho_max = rho;
        v.error_sum += bounded_exp(fabs(d));
        v.n++;
    }
    return v;
}

/* What a step bounds, of a token with the log ratio d in this sequence. */
static double metric_value(ls_correction_kind kind, const sequence_values *v, double d) {
    const double n = (double)v->n;
    switch (kind) {
        case LS_CORRECT_TOKEN_TRUNCATE:
        case LS_CORRECT_TOKEN_MASK:
        case LS_CORRECT_TOKEN_REJECT: return bounded_exp(d);
        case LS_CORRECT_SEQUENCE_TRUNCATE:
        case LS_CORRECT_SEQUENCE_MASK:
        case LS_CORRECT_SEQUENCE_REJECT: return bounded_exp(v->sum);
        case LS_CORRECT_GEOMETRIC_REJECT: return bounded_exp(v->sum / n);
        case LS_CORRECT_TOKEN_K2: return k2_of(d);
        case LS_CORRECT_TOKEN_K3: return k3_of(d);
        case LS_CORRECT_SUM_K2: return v->k2_sum;
        case LS_CORRECT_SUM_K3: return v->k3_sum;
        case LS_CORRECT_MEAN_K2: return v->k2_sum / n;
        case LS_CORRECT_MEAN_K3: return v->k3_sum / n;
        case LS_CORRECT_MAX_K2: return v->k2_max;
        case LS_CORRECT_MAX_K3: return v->k3_max;
        case LS_CORRECT_VETO: return v->rho_min;
        case LS_CORRECT_ERROR_REJECT: return v->error_sum / n;
    }
    return 0.0;
}

static bool is_outside(const ls_correction_step *step, const sequence_values *v, double value) {
    if (step->kind == LS_CORRECT_VETO) return value < step->low || v->rho_max > step->high;
    return value < step->low || value > step->high;
}

static double weight_of(const ls_correction_step *step, double value) {
    if (value >= step->low && value <= step->high) return value;
    if (step->kind == LS_CORRECT_TOKEN_MASK || step->kind == LS_CORRECT_SEQUENCE_MASK) return 0.0;
    return value < step->low ? step->low : step->high;
}

/* ---- measures ---- */

static void widen(double *min, double *max, bool first, double value) {
    if (first || value < *min) *min = value;
    if (first || value > *max) *max = value;
}

static void add_share(ls_correction_share *share, bool first, double value) {
    share->mean += value;
    widen(&share->min, &share->max, first, value);
}

/* Of a token, before its sequence is complete. */
typedef struct token_outcome {
    double raw, weight;
    bool outside, rejected;
} token_outcome;

/* Sums over a sequence's tokens. */
typedef struct sequence_outcome {
    int64_t n, n_zero, n_rejected, n_outside[LS_CORRECTION_STEPS];
    double weight, rho, rho_abs, outside;
} sequence_outcome;

static void add_token(ls_correction_metrics *m, sequence_outcome *s, const token_outcome *token, double d,
                      const ls_correction_step *weight) {
    const double rho = bounded_exp(d);
    const int64_t seen = m->n_tokens - m->n_missing; /* this token included */
    widen(&m->raw_min, &m->raw_max, seen == 1, token->raw);
    m->raw_mean += token->raw;
    if (weight != NULL) {
        m->fraction_high += token->raw > weight->high;
        m->fraction_low += token->raw < (weight->low > 0.0 ? weight->low : 1.0 / weight->high);
        m->outside_fraction += token->outside;
        s->outside += token->outside;
    }
    m->rejected_fraction += token->rejected;
    s->n++;
    s->n_rejected += token->rejected;
    s->rho += rho;
    s->rho_abs += fabs(rho - 1.0);
}

static void add_weight(ls_correction_metrics *m, sequence_outcome *s, float weight, double d) {
    const int64_t seen = m->n_tokens - m->n_missing;
    const bool zero = weight == 0.0f;
    widen(&m->weight_min, &m->weight_max, seen == 1, (double)weight);
    m->weight_mean += (double)weight;
    s->weight += (double)weight;
    s->n_zero += zero;
    m->zero_fraction += zero;
    *(zero ? &m->k3_zero : &m->k3_kept) += k3_of(d);
}

static void add_corrected_sequence(ls_correction_metrics *m, const sequence_outcome *s,
                                   const ls_correction *correction) {
    const double n = (double)s->n;
    if (s->n == 0) return;
    widen(&m->sequence_weight_min, &m->sequence_weight_max, m->n_sequences == 0, s->weight / n);
    m->n_sequences++;
    m->sequence_weight_mean += s->weight / n;
    m->sequence_raw_mean += s->rho / n;
    m->sequence_abs_mean += s->rho_abs / n;
    m->sequence_outside_mean += s->outside / n;
    m->sequences_rejected_fraction += s->n_rejected > 0;
    m->sequences_zero += s->n_zero == s->n;
    for (int k = 0; k < correction->n; k++) {
        m->shares[k].tokens += (double)s->n_outside[k];
        m->shares[k].sequences += s->n_outside[k] > 0;
    }
}

/* Spread of weights about means that are known, which a sum of squares alone would cancel away. */
static void measure_spread(ls_correction_metrics *m, const float *weights, const ls_tokens *tokens, const float *r,
                           const float *t) {
    const double n = (double)(m->n_tokens - m->n_missing), sequences = (double)m->n_sequences;
    double spread = 0.0, squares = 0.0, sequence_spread = 0.0;
    for (int64_t s = 0; s < tokens->n_sequences; s++) {
        double sum = 0.0, seen = 0.0;
        for (int64_t i = tokens->offsets[s]; i < tokens->offsets[s + 1]; i++) {
            const double w = (double)weights[i];
            if (!is_seen(tokens, r, t, i)) continue;
            spread += (w - m->weight_mean) * (w - m->weight_mean);
            squares += w * w;
            sum += w;
            seen += 1.0;
        }
        if (seen == 0.0) continue;
        sum = sum / seen - m->sequence_weight_mean;
        sequence_spread += sum * sum;
    }
    m->weight_std = sqrt(spread / n);
    m->effective_fraction = m->weight_mean * m->weight_mean / (squares / n);
    m->sequence_weight_std = m->n_sequences > 1 ? sqrt(sequence_spread / (sequences - 1.0)) : (double)NAN;
}

static void finish_metrics(ls_correction_metrics *m, const ls_correction *correction) {
    const double n = (double)(m->n_tokens - m->n_missing), sequences = (double)m->n_sequences, zero = m->zero_fraction;
    double *const of_tokens[] = {&m->raw_mean,         &m->weight_mean,       &m->fraction_high, &m->fraction_low,
                                 &m->outside_fraction, &m->rejected_fraction, &m->zero_fraction};
    double *const of_sequences[] = {&m->sequence_weight_mean, &m->sequence_raw_mean, &m->sequence_abs_mean,
                                    &m->sequence_outside_mean, &m->sequences_rejected_fraction};
    m->k3_kept /= n - zero;
    m->k3_zero /= zero;
    for (size_t i = 0; i < sizeof of_tokens / sizeof of_tokens[0]; i++) *of_tokens[i] /= n;
    for (size_t i = 0; i < sizeof of_sequences / sizeof of_sequences[0]; i++) *of_sequences[i] /= sequences;
    m->sequences_zero_fraction = (double)m->sequences_zero / sequences;
    for (int k = 0; k < correction->n; k++) {
        ls_correction_share *share = &m->shares[k];
        share->tokens /= n;
        share->sequences /= sequences;
        share->mean /= is_of_tokens(correction->steps[k].kind) ? n : sequences;
        if (m->n_sequences == 0) share->min = share->max = (double)NAN;
    }
    if (m->n_sequences == 0)
        m->raw_min = m->raw_max = m->weight_min = m->weight_max = m->sequence_weight_min = m->sequence_weight_max =
            (double)NAN;
}

/* ---- weights ---- */

static token_outcome outcome_of(ls_correction_metrics *m, sequence_outcome *s, const sequence_values *v, double d,
                                const ls_correction *correction) {
    token_outcome token = {.raw = bounded_exp(d), .weight = 1.0};
    for (int k = 0; k < correction->n; k++) {
        const ls_correction_step *step = &correction->steps[k];
        const double value = metric_value(step->kind, v, d);
        const bool outside = is_outside(step, v, value);
        if (is_of_tokens(step->kind))
            add_share(&m->shares[k], m->n_tokens - m->n_missing == 1, value);
        else if (s->n == 0)
            add_share(&m->shares[k], m->n_sequences == 0, value);
        s->n_outside[k] += outside;
        if (is_weight(step->kind)) {
            token.raw = value;
            token.weight = weight_of(step, value);
            token.outside = outside;
        } else {
            token.rejected = token.rejected || outside;
        }
    }
    return token;
}

ls_status ls_correction_apply(float *weights, uint8_t *kept, ls_correction_metrics *metrics, const ls_tokens *tokens,
                              const float *r, const float *t, const ls_correction *correction, ls_error *err) {
    ls_correction_metrics m = {0};
    const ls_correction_step *weight = NULL;
    if (correction->n < 0 || correction->n > LS_CORRECTION_STEPS)
        return LS_FAIL(err, LS_ERR_ARG, "correction: %d steps", correction->n);
    for (int k = 0; k < correction->n; k++)
        if (is_weight(correction->steps[k].kind)) weight = &correction->steps[k];
    for (int64_t s = 0; s < tokens->n_sequences; s++) {
        const sequence_values v = values_of(tokens, r, t, s);
        sequence_outcome sequence = {0};
        for (int64_t i = tokens->offsets[s]; i < tokens->offsets[s + 1]; i++) {
            const double d = (double)t[i] - (double)r[i];
            token_outcome token;
            weights[i] = 0.0f;
            if (kept != NULL) kept[i] = 0;
            if (!ls_token_counts(tokens, i)) continue;
            m.n_tokens++;
            m.n_missing += is_missing(r[i], t[i]);
            if (is_missing(r[i], t[i])) continue;
            token = outcome_of(&m, &sequence, &v, d, correction);
            if (!token.rejected) weights[i] = (float)token.weight;
            if (kept != NULL) kept[i] = !token.rejected;
            add_token(&m, &sequence, &token, d, weight);
            add_weight(&m, &sequence, weights[i], d);
        }
        add_corrected_sequence(&m, &sequence, correction);
    }
    finish_metrics(&m, correction);
    measure_spread(&m, weights, tokens, r, t);
    if (metrics != NULL) *metrics = m;
    return LS_OK;
}

/* ---- names ---- */

#define FIELD(name) \
    { #name, offsetof(ls_correction_metrics, name) }

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    FIELD(raw_mean),
    FIELD(raw_min),
    FIELD(raw_max),
    FIELD(weight_mean),
    FIELD(weight_std),
    FIELD(weight_min),
    FIELD(weight_max),
    FIELD(effective_fraction),
    FIELD(fraction_high),
    FIELD(fraction_low),
    FIELD(outside_fraction),
    FIELD(rejected_fraction),
    FIELD(zero_fraction),
    FIELD(sequences_rejected_fraction),
    FIELD(sequences_zero_fraction),
    FIELD(k3_kept),
    FIELD(k3_zero),
    FIELD(sequence_weight_mean),
    FIELD(sequence_weight_std),
    FIELD(sequence_weight_min),
    FIELD(sequence_weight_max),
    FIELD(sequence_raw_mean),
    FIELD(sequence_abs_mean),
    FIELD(sequence_outside_mean),
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

static double field_of(const ls_correction_metrics *m, int i) {
    return *(const double *)((const char *)m + fields[i].offset);
}

void ls_correction_print(FILE *file, const ls_correction_metrics *m, const ls_correction *correction) {
    fprintf(file, "  %-30s %14lld\n  %-30s %14lld\n  %-30s %14lld\n  %-30s %14lld\n", "tokens", (long long)m->n_tokens,
            "missing", (long long)m->n_missing, "sequences", (long long)m->n_sequences, "sequences of weight 0",
            (long long)m->sequences_zero);
    for (int i = 0; i < N_FIELDS; i++) {
        if (isnan(field_of(m, i)))
            fprintf(file, "  %-30s %14s\n", fields[i].name, "n/a");
        else
            fprintf(file, "  %-30s %14.7g\n", fields[i].name, field_of(m, i));
    }
    if (correction->n == 0) return;
    fprintf(file, "\n%-20s %10s %10s %12s %12s %12s %12s %12s\n", "step", "low", "high", "tokens out", "seqs out",
            "mean", "min", "max");
    for (int k = 0; k < correction->n; k++) {
        const ls_correction_step *step = &correction->steps[k];
        const ls_correction_share *share = &m->shares[k];
        fprintf(file, "%-20s %10.4g %10.4g %10.4f %% %10.4f %% %12.6g %12.6g %12.6g\n", ls_correction_names[step->kind],
                step->low, step->high, 100.0 * share->tokens, 100.0 * share->sequences, share->mean, share->min,
                share->max);
    }
}

void ls_correction_write(ls_json_out *json, const ls_correction_metrics *m, const ls_correction *correction) {
    ls_json_int(json, "tokens", m->n_tokens);
    ls_json_int(json, "missing", m->n_missing);
    ls_json_int(json, "sequences", m->n_sequences);
    ls_json_int(json, "sequences_zero", m->sequences_zero);
    for (int i = 0; i < N_FIELDS; i++) ls_json_double(json, fields[i].name, field_of(m, i));
    ls_json_begin_array(json, "steps");
    for (int k = 0; k < correction->n; k++) {
        const ls_correction_step *step = &correction->steps[k];
        const ls_correction_share *share = &m->shares[k];
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "name", ls_correction_names[step->kind]);
        ls_json_double(json, "low", step->low);
        ls_json_double(json, "high", step->high);
        ls_json_double(json, "tokens_outside", share->tokens);
        ls_json_double(json, "sequences_outside", share->sequences);
        ls_json_double(json, "mean", share->mean);
        ls_json_double(json, "min", share->min);
        ls_json_double(json, "max", share->max);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

/* verl's are of the weights before a rejection, which is a mask of its own there. */
static void write_verl_weights(ls_json_out *json, const ls_correction_metrics *m, const ls_correction_step *weight) {
    const bool tokens = is_of_tokens(weight->kind);
    ls_json_double(json, "rollout_corr/rollout_is_mean", m->weight_mean);
    ls_json_double(json, "rollout_corr/rollout_is_std", m->weight_std);
    ls_json_double(json, "rollout_corr/rollout_is_max", tokens ? m->weight_max : m->raw_max);
    ls_json_double(json, "rollout_corr/rollout_is_min", tokens ? m->weight_min : m->raw_min);
    ls_json_double(json, "rollout_corr/rollout_is_eff_sample_size", m->effective_fraction);
    ls_json_double(json, "rollout_corr/rollout_is_seq_mean", m->sequence_weight_mean);
    ls_json_double(json, "rollout_corr/rollout_is_seq_std", m->sequence_weight_std);
    ls_json_double(json, "rollout_corr/rollout_is_seq_max", m->sequence_weight_max);
    ls_json_double(json, "rollout_corr/rollout_is_seq_min", m->sequence_weight_min);
    if (!tokens) return;
    ls_json_double(json, "rollout_corr/rollout_is_ratio_fraction_high", m->fraction_high);
    ls_json_double(json, "rollout_corr/rollout_is_ratio_fraction_low", m->fraction_low);
    if (weight->kind == LS_CORRECT_TOKEN_MASK)
        ls_json_double(json, "rollout_corr/rollout_is_oob_ratio", m->outside_fraction);
}

static void write_weight_aliases(ls_json_out *json, const ls_correction_metrics *m, const ls_correction_step *weight) {
    const bool tokens = is_of_tokens(weight->kind);
    ls_json_double(json, "sampling/importance_sampling_ratio/mean", tokens ? m->weight_mean : m->sequence_weight_mean);
    ls_json_double(json, "sampling/importance_sampling_ratio/min", tokens ? m->weight_min : m->sequence_weight_min);
    ls_json_double(json, "sampling/importance_sampling_ratio/max", tokens ? m->weight_max : m->sequence_weight_max);
    if (!tokens) return;
    ls_json_double(json, "train/tis", m->sequence_raw_mean);
    ls_json_double(json, "train/tis_abs", m->sequence_abs_mean);
    ls_json_double(json, "train/tis_clipfrac", m->sequence_outside_mean);
    ls_json_double(json, "sampling_importance_ratio", m->weight_mean);
    ls_json_double(json, "is_oob_ratio", m->outside_fraction);
}

/* Rejections that verl has under a name of its own; in its token_k1, seq_sum_k1 and seq_mean_k1 the statistic is -d. */
static const char *verl_name(ls_correction_kind kind) {
    switch (kind) {
        case LS_CORRECT_TOKEN_K2: return "token_k2";
        case LS_CORRECT_TOKEN_K3: return "token_k3";
        case LS_CORRECT_SUM_K2: return "seq_sum_k2";
        case LS_CORRECT_SUM_K3: return "seq_sum_k3";
        case LS_CORRECT_MEAN_K2: return "seq_mean_k2";
        case LS_CORRECT_MEAN_K3: return "seq_mean_k3";
        case LS_CORRECT_MAX_K2: return "seq_max_k2";
        case LS_CORRECT_MAX_K3: return "seq_max_k3";
        default: return NULL;
    }
}

static void write_verl(ls_json_out *json, const char *option, const char *what, double value) {
    char name[80];
    snprintf(name, sizeof name, "rollout_corr/rollout_rs_%s_%s", option, what);
    ls_json_double(json, name, value);
}

void ls_correction_write_aliases(ls_json_out *json, const ls_correction_metrics *m, const ls_correction *correction) {
    bool rejects = false;
    for (int k = 0; k < correction->n; k++) rejects = rejects || !is_weight(correction->steps[k].kind);
    for (int k = 0; k < correction->n; k++) {
        const ls_correction_step *step = &correction->steps[k];
        const ls_correction_share *share = &m->shares[k];
        const char *option = verl_name(step->kind);
        if (is_weight(step->kind) && !rejects) write_verl_weights(json, m, step);
        if (is_weight(step->kind)) write_weight_aliases(json, m, step);
        if (step->kind == LS_CORRECT_ERROR_REJECT)
            ls_json_int(json, "num_masked_seqs_by_logprob_error",
                        (int64_t)(share->sequences * (double)m->n_sequences + 0.5));
        if (option == NULL) continue;
        write_verl(json, option, is_of_tokens(step->kind) ? "mean" : "seq_mean", share->mean);
        write_verl(json, option, "min", share->min);
        write_verl(json, option, "max", share->max);
        write_verl(json, option, "masked_fraction", share->tokens);
        write_verl(json, option, "seq_masked_fraction", share->sequences);
    }
    ls_json_double(json, "rollout_corr/rollout_rs_masked_fraction", m->rejected_fraction);
    ls_json_double(json, "rollout_corr/rollout_rs_seq_masked_fraction", m->sequences_rejected_fraction);
    ls_json_double(json, "is_masked", m->zero_fraction);
    ls_json_double(json, "masked_mismatch_kl", m->k3_zero);
    ls_json_double(json, "unmasked_mismatch_kl", m->k3_kept);
}
