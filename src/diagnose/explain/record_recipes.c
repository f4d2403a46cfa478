/* Explanations by the record: the model is as it is, and what is written down of its logits is not. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "diagnose/explain/explanations.h"

/* Fewest tokens that an explanation is measured on. */
#define EXPLAIN_TOKENS 8
/* An explanation with one number less is preferred as long as it leaves no more than so many times as much. */
#define SIMPLER 1.25
/* Of records that are multiples of 1 / k. */
#define UNITS_MOST 4096
/* First record that is late, at most. */
#define LATE_MOST 7
/* Nothing is recorded that far from where it should be. */
#define CHANCE 0.0371

/* ---- one record ---- */

static double log_of_sum(const double *row, int64_t vocab, double temperature) {
    double most = -(double)INFINITY, sum = 0.0;
    for (int64_t i = 0; i < vocab; i++) most = row[i] > most ? row[i] : most;
    for (int64_t i = 0; i < vocab; i++) sum += exp((row[i] - most) / temperature);
    return most / temperature + log(sum);
}

double ls_explain_logprob(const double *row, int64_t vocab, int32_t token, double temperature) {
    return row[token] / temperature - log_of_sum(row, vocab, temperature);
}

/* The logits that are left when those below `least` go. */
static void keep_from(double *out, const double *row, int64_t vocab, double least) {
    for (int64_t i = 0; i < vocab; i++) out[i] = row[i] >= least ? row[i] : -(double)INFINITY;
}

static double kth_largest(double *work, const double *row, int64_t vocab, int64_t k) {
    memcpy(work, row, (size_t)vocab * sizeof *work);
    ls_sort(work, vocab);
    return work[vocab - (k < vocab ? k : vocab)];
}

/* The smallest logit among the likeliest of total probability p. */
static double nucleus(double *work, const double *row, int64_t vocab, double p, double temperature) {
    const double all = log_of_sum(row, vocab, temperature);
    double sum = 0.0;
    memcpy(work, row, (size_t)vocab * sizeof *work);
    ls_sort(work, vocab);
    for (int64_t i = vocab - 1; i >= 0; i--)
        if ((sum += exp(work[i] / temperature - all)) >= p) return work[i];
    return work[0];
}

static bool is_of_all(recipe kind) { return kind == REPETITION || kind == PRESENCE_OF_ALL || kind == FREQUENCY_OF_ALL; }

static bool is_of_prompt(recipe kind) { return kind >= REPETITION_OF_PROMPT && kind <= FREQUENCY_OF_PROMPT; }

static bool is_factor(recipe kind) {
    return kind == REPETITION || kind == REPETITION_OF_COMPLETION || kind == REPETITION_OF_PROMPT;
}

static bool is_by_count(recipe kind) {
    return kind == FREQUENCY || kind == FREQUENCY_OF_ALL || kind == FREQUENCY_OF_PROMPT;
}

static double penalised(const explainer *x, const text *t, int64_t i, const double *row, how h) {
    const int64_t vocab = x->q->config->vocab;
    const int64_t first = is_of_all(h.kind) || is_of_prompt(h.kind) ? 0 : t->n_prompt, drawn = t->n_prompt + i;
    const int64_t to = is_of_prompt(h.kind) ? t->n_prompt : drawn;
    const int64_t from = h.k > 0 && to - h.k > first ? to - h.k : first;
    double *w = x->work;
    memcpy(w, row, (size_t)vocab * sizeof *w);
    for (int64_t at = from; at < to; at++) {
        const int32_t token = t->tokens[at];
        bool before = false;
        for (int64_t j = from; j < at && !before; j++) before = t->tokens[j] == token;
        if (before && !is_by_count(h.kind)) continue;
        if (!is_factor(h.kind))
            w[token] -= h.x;
        else
            w[token] = w[token] > 0.0 ? w[token] / h.x : w[token] * h.x;
    }
    return ls_explain_logprob(w, vocab, t->tokens[drawn], x->record_temperature);
}

/* Of the first n values. */
static double of_values(const text *t, int64_t n, recipe kind) {
    double sum = 0.0, least = (double)INFINITY, most = -(double)INFINITY;
    for (int64_t j = 0; j < n; j++) {
        sum += (double)t->scored[j];
        least = fmin(least, (double)t->scored[j]);
        most = fmax(most, (double)t->scored[j]);
    }
    return kind == SUMS ? sum : kind == MEANS ? sum / (double)n : kind == LEAST ? least : most;
}

/* The multiple of 1 / k that is nearest, next below or next above. */
static double in_units(double value, how h) {
    const double v = value * (double)h.k;
    return (h.x < 0.0 ? floor(v) : h.x > 0.0 ? ceil(v) : rint(v)) / (double)h.k;
}

/* The same from the trainer's values alone. */
static double record_of_values(const explainer *x, const text *t, int64_t i, how h) {
    const double value = (double)t->scored[i];
    switch (h.kind) {
        case PLAIN: return value;
        case SHIFTED:
            if ((double)i < h.x) return value;
            return i - h.k < 0 || i - h.k >= t->n_recorded ? (double)NAN : (double)t->scored[i - h.k];
        case TIMES: return h.x * value;
        case DIVIDED: return value / x->temperature;
        case LOGPROBS_ROUNDED: return ls_rounded(value, (ls_rounding)h.k);
        case UNITS: return in_units(value, h);
        case SUMS:
        case MEANS:
        case LEAST:
        case MOST: return of_values(t, i + 1, h.kind);
        case MEAN_OF_ALL: return of_values(t, t->n_recorded, MEANS);
        case MEAN_OF_TWO: return i > 0 ? 0.5 * (value + (double)t->scored[i - 1]) : value;
        case PROBABILITY: return exp(value);
        default: return (double)NAN; /* it takes the logits */
    }
}

/* What would be recorded for completion token i of t, whose logits are rows; NaN where it cannot be told. */
double ls_explain_record(const explainer *x, const text *t, const double *rows, int64_t i, how h) {
    const ls_model_config *c = x->q->config;
    const int64_t vocab = c->vocab, at = t->n_prompt + i;
    const double *row = rows != NULL ? rows + (at - 1) * vocab : NULL, temperature = x->record_temperature;
    const int32_t token = t->tokens[at];
    double *w = x->work;
    if (row == NULL) return record_of_values(x, t, i, h);
    switch (h.kind) {
        case PLAIN: return ls_explain_logprob(row, vocab, token, temperature);
        case SHIFTED: {
            const int64_t from = (double)i < h.x ? at : at - h.k;
            if (from < t->n_prompt || from >= t->n) return (double)NAN; /* what stands there nobody knows */
            return ls_explain_logprob(rows + (from - 1) * vocab, vocab, t->tokens[from], temperature);
        }
        case AT_TEMPERATURE: return ls_explain_logprob(row, vocab, token, h.x);
        case TIMES: return h.x * ls_explain_logprob(row, vocab, token, temperature);
        case TOP_K:
            keep_from(w, row, vocab, kth_largest(w, row, vocab, h.k));
            return ls_explain_logprob(w, vocab, token, h.x > 0.0 ? h.x : temperature);
        case TOP_P:
            keep_from(w, row, vocab, nucleus(w, row, vocab, h.x, h.k ? x->temperature : 1.0));
            return ls_explain_logprob(w, vocab, token, h.k == 2 ? x->temperature : temperature);
        case MIN_P: {
            double most = row[0];
            for (int64_t j = 1; j < vocab; j++) most = row[j] > most ? row[j] : most;
            keep_from(w, row, vocab, most + (h.k & 2 ? 1.0 : x->temperature) * log(h.x));
            return ls_explain_logprob(w, vocab, token, h.k & 1 ? x->temperature : temperature);
        }
        case WITHOUT_EOS:
            if (h.k > 0 && (h.x > 0.0 ? at : i) >= h.k) return ls_explain_logprob(row, vocab, token, temperature);
            memcpy(w, row, (size_t)vocab * sizeof *w);
            for (int32_t j = 0; j < c->n_eos; j++) w[c->eos[j]] = -(double)INFINITY;
            return ls_explain_logprob(w, vocab, token, temperature);
        case OF_ANY_TOKEN: {
            const double all = log_of_sum(row, vocab, temperature), wanted = (double)t->recorded[i] + h.x;
            double nearest = (double)INFINITY;
            for (int64_t j = 0; j < vocab; j++)
                if (fabs(row[j] / temperature - all - wanted) < fabs(nearest))
                    nearest = row[j] / temperature - all - wanted;
            return (double)t->recorded[i] + nearest;
        }
        case SUMS:
        case MEANS:
        case LEAST:
        case MOST:
        case MEAN_OF_ALL:
        case MEAN_OF_TWO:
        case PROBABILITY: return record_of_values(x, t, i, h);
        case UNITS: return in_units(ls_explain_logprob(row, vocab, token, temperature), h);
        case LOGIT: return row[token];
        case ENTROPY: {
            const double all = log_of_sum(row, vocab, temperature);
            double sum = 0.0;
            for (int64_t j = 0; j < vocab; j++) sum += exp(row[j] / temperature - all) * (row[j] / temperature - all);
            return sum;
        }
        case OF_LIKELIEST: {
            int32_t best = 0;
            for (int32_t j = 1; j < vocab; j++)
                if (row[j] > row[best]) best = j;
            return ls_explain_logprob(row, vocab, best, temperature);
        }
        case AT_LEAST:
            return fmax(ls_explain_logprob(row, vocab, token, temperature),
                        kth_largest(w, row, vocab, h.k) / temperature - log_of_sum(row, vocab, temperature));
        case OF_OTHER_ID:
            return ls_explain_logprob(row, vocab, (int32_t)(((int64_t)token + h.k + vocab) % vocab), temperature);
        case REPETITION:
        case REPETITION_OF_COMPLETION:
        case PRESENCE:
        case FREQUENCY:
        case PRESENCE_OF_ALL:
        case FREQUENCY_OF_ALL:
        case REPETITION_OF_PROMPT:
        case PRESENCE_OF_PROMPT:
        case FREQUENCY_OF_PROMPT: return penalised(x, t, i, row, h);
        case LOGITS_ROUNDED:
            for (int64_t j = 0; j < vocab; j++) w[j] = ls_rounded(row[j], (ls_rounding)h.k);
            return ls_explain_logprob(w, vocab, token, temperature);
        case LOGPROBS_ROUNDED: return ls_rounded(ls_explain_logprob(row, vocab, token, temperature), (ls_rounding)h.k);
        case SOFTCAPPED:
            for (int64_t j = 0; j < vocab; j++) w[j] = h.x * tanh(row[j] / h.x);
            return ls_explain_logprob(w, vocab, token, temperature);
        case DIVIDED: return ls_explain_logprob(row, vocab, token, 1.0) / x->temperature;
    }
    return (double)NAN;
}

/* ---- how well it fits ---- */

void ls_explain_begin(explainer *x) { x->n_errors = 0; }

void ls_explain_errors(explainer *x, const text *t, const double *rows, how h) {
    for (int64_t i = 0; i < t->n_recorded; i++) {
        const double now = fabs((double)t->recorded[i] - (double)t->scored[i]);
        double e = fabs((double)t->recorded[i] - ls_explain_record(x, t, rows, i, h));
        if (h.kind == OF_ANY_TOKEN && now <= x->q->f->limit && !x->q->f->constant) continue; /* it is its own record */
        if (isnan(e) && h.kind == SHIFTED) continue;                                         /* outside */
        x->errors[x->n_errors++] = isfinite(e) ? e : 1e9;
    }
}

void ls_explain_finish(explainer *x, ls_explanation *out) {
    ls_sort(x->errors, x->n_errors);
    out->median = x->n_errors > 0 ? x->errors[x->n_errors / 2] : 0.0;
    out->q90 = x->n_errors > 0 ? x->errors[x->n_errors * 9 / 10] : 0.0;
    out->mean = 0.0;
    for (int64_t i = 0; i < x->n_errors; i++) out->mean += fmin(x->errors[i], 1.0) / (double)x->n_errors;
}

/* Of two that leave as little, the one with fewer numbers that were looked for. */
static bool is_better(const ls_explanation *a, const ls_explanation *b) {
    const double x = a->median + a->q90, y = b->median + b->q90;
    if (a->n_free < b->n_free && x <= SIMPLER * y) return true;
    if (b->n_free < a->n_free && y <= SIMPLER * x) return false;
    return x < y;
}

/* Keeps it when it says clearly more than nothing does. */
void ls_explain_offer(explainer *x, ls_explanation e) {
    ls_foreign *f = x->q->f;
    int64_t at = f->n_best;
    /* Where few tokens are off, the median is of those that are right, and must stay what it is. */
    if (x->partly ? !(e.median <= 1.5 * f->before.median + f->floor && e.q90 <= 0.3 * f->before.q90)
                  : !(e.median <= 0.3 * f->before.median && e.q90 <= 0.5 * f->before.q90))
        return;
    /* A factor or a temperature draws records together that have nothing to do with each other. */
    if (e.fitted && !x->partly && !(e.median <= 0.2 * f->before.median && e.q90 <= 0.25 * f->before.q90)) return;
    if (x->n_errors < EXPLAIN_TOKENS) return; /* too little to say anything */
    while (at > 0 && is_better(&e, &f->best[at - 1])) at--;
    if (at == LS_EXPLANATIONS_KEPT) return;
    if (f->n_best < LS_EXPLANATIONS_KEPT) f->n_best++;
    memmove(&f->best[at + 1], &f->best[at], (size_t)(f->n_best - 1 - at) * sizeof *f->best);
    f->best[at] = e;
}

void ls_explain_measure_few(explainer *x, how h, int64_t n_texts, ls_explanation *out) {
    ls_explain_begin(x);
    for (int64_t t = 0; t < n_texts; t++) ls_explain_errors(x, &x->texts[t], x->texts[t].rows, h);
    ls_explain_finish(x, out);
}

void ls_explain_measure(explainer *x, how h, ls_explanation *out) { ls_explain_measure_few(x, h, x->n_texts, out); }

ls_explanation ls_explain_named(ls_cause cause, const char *format, ...) {
    ls_explanation e = {.cause = cause};
    va_list args;
    va_start(args, format);
    vsnprintf(e.what, sizeof e.what, format, args);
    va_end(args);
    return e;
}

static bool is_penalty(recipe kind) { return kind >= REPETITION && kind <= FREQUENCY_OF_PROMPT; }

static void __attribute__((format(printf, 4, 5)))
try_recipe(explainer *x, how h, ls_cause cause, const char *format, ...) {
    const bool cut = h.kind == TOP_K || h.kind == TOP_P || h.kind == MIN_P || h.kind == AT_LEAST;
    const bool fitted = h.kind == TIMES || h.kind == AT_TEMPERATURE;
    const bool given = h.kind == AT_TEMPERATURE && (h.x == 1.0 || h.x == x->temperature);
    ls_explanation e = {.cause = cause, .fitted = fitted, .n_free = cut || is_penalty(h.kind) || (fitted && !given)};
    va_list args;
    va_start(args, format);
    vsnprintf(e.what, sizeof e.what, format, args);
    va_end(args);
    ls_explain_measure(x, h, &e);
    ls_explain_offer(x, e);
}

/* The x in [low, high] with the least median error; it has one valley, or is searched in steps first. */
static double fit_parameter(explainer *x, recipe kind, int64_t k, double low, double high) {
    double best = low, least = (double)INFINITY, step = pow(high / low, 1.0 / 40.0);
    ls_explanation e;
    for (int round = 0; round < 4; round++) {
        const double from = round == 0 ? low : best / step, to = round == 0 ? high : best * step;
        if (round > 0) step = pow(to / from, 1.0 / 20.0);
        for (double v = from; v <= to * 1.0000001; v *= step) {
            ls_explain_measure(x, (how){kind, v, k}, &e);
            if (e.mean < least) {
                least = e.mean;
                best = v;
            }
        }
    }
    return best;
}

/* Whether all records are multiples of 1 / k: what is written so has no other values. */
static bool are_multiples(const explainer *x, double k) {
    for (int64_t t = 0; t < x->n_texts; t++)
        for (int64_t i = 0; i < x->texts[t].n_recorded; i++) {
            const double v = (double)x->texts[t].recorded[i] * k;
            if (!(fabs(v - rint(v)) < 0.01 + 2e-7 * fabs(v))) return false;
        }
    return true;
}

/* The least number of units to 1 of which all records are multiples; 0: none. */
static int64_t units_of(const explainer *x) {
    for (int64_t k = 1; k <= UNITS_MOST; k++)
        if (are_multiples(x, (double)k)) return k;
    return 0;
}

static const char *const types[] = {"", "bf16", "f16", "fp8 (e4m3)", "fp8 (e5m2)"};

/* Those that the trainer's values are enough for. */
void ls_explain_values(explainer *x) {
    static const char *const kinds[] = {"sums of all log-probabilities so far",
                                        "means of all log-probabilities so far",
                                        "the least log-probability so far",
                                        "the largest log-probability so far",
                                        "the mean of the request's log-probabilities",
                                        "means of two log-probabilities, the token's and the one before"};
    static const char *const rounded_to[] = {", cut off downward", "", ", cut off toward 0"};
    int64_t units;
    double best;
    for (int64_t k = -3; k <= 3; k++)
        if (k != 0)
            try_recipe(x, (how){SHIFTED, 0.0, k}, LS_CAUSE_SHIFTED, "each record is the value of the token %lld %s",
                       (long long)llabs(k), k > 0 ? "before" : "after");
    for (int64_t from = 1; from <= LATE_MOST; from++)
        try_recipe(x, (how){SHIFTED, (double)from, 1}, LS_CAUSE_SHIFTED,
                   "from number %lld on each record is the value of the token before", (long long)from);
    if (x->temperature != 1.0 && x->temperature > 0.0)
        try_recipe(x, (how){DIVIDED, 0.0, 0}, LS_CAUSE_TEMPERATURE,
                   "log-probabilities are divided by the temperature, not logits");
    best = fit_parameter(x, TIMES, 0, 0.1, 8.0);
    try_recipe(x, (how){TIMES, best, 0}, LS_CAUSE_SCALED, "log-probabilities are multiplied by %.4g", best);
    for (int to = LS_ROUND_BF16; to <= LS_ROUND_E5M2; to++)
        try_recipe(x, (how){LOGPROBS_ROUNDED, 0.0, to}, LS_CAUSE_COARSE_RECORDS, "log-probabilities are rounded to %s",
                   types[to]);
    units = units_of(x);
    for (int to = -1; units > 0 && to <= 1; to++)
        try_recipe(x, (how){UNITS, (double)to, units}, LS_CAUSE_COARSE_RECORDS,
                   "log-probabilities are multiples of 1/%lld%s", (long long)units, rounded_to[to + 1]);
    try_recipe(x, (how){PROBABILITY, 0.0, 0}, LS_CAUSE_SCALED, "probabilities are recorded, not their logarithms");
    try_recipe(x, (how){TIMES, -1.0, 0}, LS_CAUSE_SCALED, "log-probabilities have lost their sign");
    for (int of = SUMS; of <= MEAN_OF_TWO; of++)
        try_recipe(x, (how){(recipe)of, 0.0, 0}, LS_CAUSE_UNLISTED, "records are %s", kinds[of - SUMS]);
    for (int64_t k = 1, tens = 10; k < 5; k++, tens *= 10)
        for (int to = -1; are_multiples(x, (double)tens) && to <= 1; to++)
            try_recipe(x, (how){UNITS, (double)to, tens}, LS_CAUSE_COARSE_RECORDS,
                       "log-probabilities have %lld decimals%s", (long long)k, rounded_to[to + 1]);
}

/* Records that are those of other tokens in the same row, whichever: nearer to one of them than chance would be, which
 * is what records moved by a little have. */
static void try_any_token(explainer *x) {
    ls_explanation e = ls_explain_named(LS_CAUSE_OTHER_RECORDS, "records are those of other tokens at the same place");
    ls_explanation chance = e;
    e.n_free = 2;
    ls_explain_measure(x, (how){OF_ANY_TOKEN, CHANCE, 0}, &chance);
    ls_explain_measure(x, (how){OF_ANY_TOKEN, 0.0, 0}, &e);
    if (e.median + e.q90 < 0.05 * (chance.median + chance.q90)) ls_explain_offer(x, e);
}

void ls_explain_records(explainer *x) {
    const int64_t vocab = x->q->config->vocab;
    const double t = x->temperature;
    double best;
    ls_explain_values(x);
    if (t != x->record_temperature)
        try_recipe(x, (how){AT_TEMPERATURE, t, 0}, LS_CAUSE_TEMPERATURE,
                   "records are of the sampling temperature %g, not of %g", t, x->record_temperature);
    if (x->record_temperature != 1.0) {
        try_recipe(x, (how){AT_TEMPERATURE, 1.0, 0}, LS_CAUSE_TEMPERATURE, "records are of temperature 1, not of %g",
                   x->record_temperature);
        try_recipe(x, (how){AT_TEMPERATURE, 1.0 / t, 0}, LS_CAUSE_TEMPERATURE,
                   "logits are multiplied by the temperature, not divided");
    }
    best = fit_parameter(x, AT_TEMPERATURE, 0, 0.2, 8.0);
    try_recipe(x, (how){AT_TEMPERATURE, best, 0}, LS_CAUSE_TEMPERATURE, "records are of temperature %.4g", best);
    for (int64_t k = 1; k < vocab; k = k < 128 ? k + 1 : k + k / 8)
        try_recipe(x, (how){TOP_K, 0.0, k}, LS_CAUSE_CUT, "renormalised over the %lld likeliest", (long long)k);
    /* The same where what is recorded is what was drawn from. */
    for (int64_t k = 1; t != x->record_temperature && t > 0.0 && k < vocab; k = k < 128 ? k + 1 : k + k / 8)
        try_recipe(x, (how){TOP_K, t, k}, LS_CAUSE_CUT,
                   "renormalised over the %lld likeliest at the temperature of sampling", (long long)k);
    for (int k = 0; k < (t != x->record_temperature && t > 0.0 ? 3 : 2); k++)
        for (double p = 0.995; p > 0.3; p -= p > 0.95 ? 0.005 : 0.01)
            try_recipe(x, (how){TOP_P, p, k}, LS_CAUSE_CUT, "renormalised over the likeliest of total probability %.3g",
                       p);
    for (int64_t k = 0; k < 4; k++)
        for (double p = 0.01; p < 0.6; p += 0.01)
            if (!((k & 1) && (t == x->record_temperature || !(t > 0.0))) && !((k & 2) && t == 1.0))
                try_recipe(x, (how){MIN_P, p, k}, LS_CAUSE_CUT, "renormalised over those above %.2g of the largest%s%s",
                           p, k & 1 ? " at the temperature of sampling" : "", k & 2 ? ", cut at temperature 1" : "");
    try_recipe(x, (how){WITHOUT_EOS, 0.0, 0}, LS_CAUSE_EOS_MASKED, "renormalised without the end-of-sequence token");
    for (int64_t k = 1; k < 8; k++)
        try_recipe(x, (how){WITHOUT_EOS, 0.0, k}, LS_CAUSE_EOS_MASKED,
                   "without the end-of-sequence token in the first %lld tokens", (long long)k);
    for (int64_t k = 2; k < 64; k++)
        try_recipe(x, (how){WITHOUT_EOS, 1.0, k}, LS_CAUSE_EOS_MASKED,
                   "without the end-of-sequence token up to a context of %lld tokens", (long long)k);
    try_any_token(x);
    try_recipe(x, (how){ENTROPY, 0.0, 0}, LS_CAUSE_UNLISTED, "records are the entropy of the distribution");
    try_recipe(x, (how){LOGIT, 0.0, 0}, LS_CAUSE_UNLISTED, "records are logits, not log-probabilities");
    try_recipe(x, (how){OF_LIKELIEST, 0.0, 0}, LS_CAUSE_OTHER_RECORDS, "each record is the likeliest token's");
    for (int64_t k = 2; k < vocab; k = k < 64 ? k + 1 : k + k / 8)
        try_recipe(x, (how){AT_LEAST, 0.0, k}, LS_CAUSE_OTHER_RECORDS,
                   "tokens beyond the %lld likeliest have the last of these' record", (long long)k);
    for (int64_t k = -2; k <= 2; k++)
        if (k != 0)
            try_recipe(x, (how){OF_OTHER_ID, 0.0, k}, LS_CAUSE_OTHER_RECORDS, "each record is that of id %+lld",
                       (long long)k);
    for (int p = REPETITION; p <= FREQUENCY_OF_PROMPT; p++) {
        static const char *const words[] = {"repetition penalty",
                                            "repetition penalty of the completion's tokens",
                                            "presence penalty",
                                            "frequency penalty",
                                            "presence penalty of the prompt's tokens as well",
                                            "frequency penalty of the prompt's tokens as well",
                                            "repetition penalty of the prompt's tokens alone",
                                            "presence penalty of the prompt's tokens alone",
                                            "frequency penalty of the prompt's tokens alone"};
        const bool factor = is_factor((recipe)p);
        for (int64_t last = 0; last <= 64; last = last == 0 ? 4 : 2 * last) {
            ls_explanation one;
            best = fit_parameter(x, (recipe)p, last, factor ? 1.005 : 0.01, factor ? 3.0 : 4.0);
            try_recipe(x, (how){(recipe)p, best, last}, LS_CAUSE_PENALTY, "%s %.3g%s%.0lld", words[p - REPETITION],
                       best, last > 0 ? ", of as many tokens as " : "", (long long)last);
            ls_explain_measure(x, (how){(recipe)p, best, last}, &one);
            if (is_of_prompt((recipe)p)) break;                            /* all of it */
            if (last == 0 && one.mean > 0.9 * x->q->f->before.mean) break; /* nothing like it */
        }
    }
    for (int to = LS_ROUND_BF16; to <= LS_ROUND_E5M2; to++)
        try_recipe(x, (how){LOGITS_ROUNDED, 0.0, to}, LS_CAUSE_COARSE_HEAD, "logits are rounded to %s", types[to]);
    for (double cap = 5.0; cap < 60.0; cap += 5.0)
        try_recipe(x, (how){SOFTCAPPED, cap, 0}, LS_CAUSE_FORMULA, "logits are capped at %g", cap);
}
