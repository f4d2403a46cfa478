/* Explanations: what a suspect would record with one thing changed, against what it did record. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "parity/foreign.h"

/* Of one rung: large models have more changes than time. */
#define EXPLAIN_SECONDS 45.0
/* |d| of nine tenths of requests alone below which nothing is there to be explained. */
#define EXPLAIN_LEAST 5e-5
/* So many texts are all looked at where only some of them are off. */
#define PARTLY_TEXTS 8
/* Fewest tokens that an explanation is measured on. */
#define EXPLAIN_TOKENS 8
/* Longest prompt of those that check an explanation. */
#define CHECK_LENGTH 24

/* A sequence, and the logits of the unchanged model behind each of its tokens. */
typedef struct text {
    int32_t *tokens; /* [n], prompt and completion */
    int64_t n, n_prompt, n_recorded;
    const float *recorded, *scored; /* [n_recorded] the suspect's and the trainer's */
    double *rows;                   /* [n][V]; NULL without a reference */
} text;

/* How a record is made from logits. */
typedef enum recipe {
    PLAIN = 0,
    SHIFTED, /* k places late */
    AT_TEMPERATURE,
    TIMES, /* the log-probability times x */
    TOP_K,
    TOP_P,
    MIN_P,
    WITHOUT_EOS,
    OF_LIKELIEST,
    OF_OTHER_ID, /* token + k */
    AT_LEAST,    /* that of the k-th likeliest */
    REPETITION,  /* of all tokens seen */
    REPETITION_OF_COMPLETION,
    PRESENCE, /* of tokens of the completion */
    FREQUENCY,
    LOGITS_ROUNDED,
    LOGPROBS_ROUNDED,
    DECIMALS,
    SOFTCAPPED,
    DIVIDED /* the log-probability of temperature 1, divided by that of sampling */
} recipe;

typedef struct how {
    recipe kind;
    double x;
    int64_t k;
} how;

/* What the suspect is given in place of the prompt. */
typedef enum reading {
    AS_GIVEN = 0,
    WITH_BOS,
    DOUBLED_BOS,
    WITH_EOS,
    WITHOUT_FIRST,
    WITHOUT_LAST,
    STRIPPED_EOS,
    STRIPPED_BOS,
    LAST_TOKENS,
    FIRST_AGAIN
} reading;

typedef struct explainer {
    ls_inquiry *q;
    text *texts;
    int64_t n_texts;
    double temperature;        /* of sampling */
    double record_temperature; /* that records should be of */
    double *work;              /* [V] */
    double *errors;            /* [all recorded tokens] */
    int64_t n_errors;
    double *rows; /* of changed models, the longest text */
    int32_t *changed;
    int64_t longest;
    bool partly; /* most tokens are right as they are */
    double end;  /* seconds of ls_clock_seconds, after which no further change of the model is tried */
} explainer;

/* ---- one record ---- */

static double log_of_sum(const double *row, int64_t vocab, double temperature) {
    double most = -(double)INFINITY, sum = 0.0;
    for (int64_t i = 0; i < vocab; i++) most = row[i] > most ? row[i] : most;
    for (int64_t i = 0; i < vocab; i++) sum += exp((row[i] - most) / temperature);
    return most / temperature + log(sum);
}

static double logprob(const double *row, int64_t vocab, int32_t token, double temperature) {
    return row[token] / temperature - log_of_sum(row, vocab, temperature);
}

/* The logits that are left when those below `least` go. */
static void keep_from(double *out, const double *row, int64_t vocab, double least) {
    for (int64_t i = 0; i < vocab; i++) out[i] = row[i] >= least ? row[i] : -(double)INFINITY;
}

static int down(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static double kth_largest(double *work, const double *row, int64_t vocab, int64_t k) {
    memcpy(work, row, (size_t)vocab * sizeof *work);
    qsort(work, (size_t)vocab, sizeof *work, down);
    return work[(k < vocab ? k : vocab) - 1];
}

/* The smallest logit among the likeliest of total probability p. */
static double nucleus(double *work, const double *row, int64_t vocab, double p, double temperature) {
    const double all = log_of_sum(row, vocab, temperature);
    double sum = 0.0;
    memcpy(work, row, (size_t)vocab * sizeof *work);
    qsort(work, (size_t)vocab, sizeof *work, down);
    for (int64_t i = 0; i < vocab; i++)
        if ((sum += exp(work[i] / temperature - all)) >= p) return work[i];
    return work[vocab - 1];
}

static double penalised(const explainer *x, const text *t, int64_t i, const double *row, how h) {
    const int64_t vocab = x->q->config->vocab, from = h.kind == REPETITION ? 0 : t->n_prompt, to = t->n_prompt + i;
    double *w = x->work;
    memcpy(w, row, (size_t)vocab * sizeof *w);
    for (int64_t at = from; at < to; at++) {
        const int32_t token = t->tokens[at];
        bool before = false;
        for (int64_t j = from; j < at && !before; j++) before = t->tokens[j] == token;
        if (before && h.kind != FREQUENCY) continue;
        if (h.kind == PRESENCE || h.kind == FREQUENCY)
            w[token] -= h.x;
        else
            w[token] = w[token] > 0.0 ? w[token] / h.x : w[token] * h.x;
    }
    return logprob(w, vocab, t->tokens[to], x->record_temperature);
}

/* The same from the trainer's values alone. */
static double record_of_values(const explainer *x, const text *t, int64_t i, how h) {
    const double value = (double)t->scored[i];
    switch (h.kind) {
        case PLAIN: return value;
        case SHIFTED: return i - h.k < 0 || i - h.k >= t->n_recorded ? (double)NAN : (double)t->scored[i - h.k];
        case TIMES: return h.x * value;
        case DIVIDED: return value / x->temperature;
        case LOGPROBS_ROUNDED: return ls_rounded(value, (ls_rounding)h.k);
        case DECIMALS: return rint(value * pow(10.0, (double)h.k)) / pow(10.0, (double)h.k);
        default: return (double)NAN; /* it takes the logits */
    }
}

/* What would be recorded for completion token i of t, whose logits are rows; NaN where it cannot be told. */
static double record(const explainer *x, const text *t, const double *rows, int64_t i, how h) {
    const ls_model_config *c = x->q->config;
    const int64_t vocab = c->vocab, at = t->n_prompt + i;
    const double *row = rows != NULL ? rows + (at - 1) * vocab : NULL, temperature = x->record_temperature;
    const int32_t token = t->tokens[at];
    double *w = x->work;
    if (row == NULL) return record_of_values(x, t, i, h);
    switch (h.kind) {
        case PLAIN: return logprob(row, vocab, token, temperature);
        case SHIFTED: {
            const int64_t from = at - h.k;
            if (from < t->n_prompt || from >= t->n) return (double)NAN; /* what stands there nobody knows */
            return logprob(rows + (from - 1) * vocab, vocab, t->tokens[from], temperature);
        }
        case AT_TEMPERATURE: return logprob(row, vocab, token, h.x);
        case TIMES: return h.x * logprob(row, vocab, token, temperature);
        case TOP_K:
            keep_from(w, row, vocab, kth_largest(w, row, vocab, h.k));
            return logprob(w, vocab, token, h.x > 0.0 ? h.x : temperature);
        case TOP_P:
            keep_from(w, row, vocab, nucleus(w, row, vocab, h.x, h.k ? x->temperature : 1.0));
            return logprob(w, vocab, token, h.k == 2 ? x->temperature : temperature);
        case MIN_P: {
            double most = row[0];
            for (int64_t j = 1; j < vocab; j++) most = row[j] > most ? row[j] : most;
            keep_from(w, row, vocab, most + x->temperature * log(h.x));
            return logprob(w, vocab, token, h.k ? x->temperature : temperature);
        }
        case WITHOUT_EOS:
            memcpy(w, row, (size_t)vocab * sizeof *w);
            for (int32_t j = 0; j < c->n_eos; j++) w[c->eos[j]] = -(double)INFINITY;
            return logprob(w, vocab, token, temperature);
        case OF_LIKELIEST: {
            int32_t best = 0;
            for (int32_t j = 1; j < vocab; j++)
                if (row[j] > row[best]) best = j;
            return logprob(row, vocab, best, temperature);
        }
        case AT_LEAST:
            return fmax(logprob(row, vocab, token, temperature),
                        kth_largest(w, row, vocab, h.k) / temperature - log_of_sum(row, vocab, temperature));
        case OF_OTHER_ID: return logprob(row, vocab, (int32_t)(((int64_t)token + h.k + vocab) % vocab), temperature);
        case REPETITION:
        case REPETITION_OF_COMPLETION:
        case PRESENCE:
        case FREQUENCY: return penalised(x, t, i, row, h);
        case LOGITS_ROUNDED:
            for (int64_t j = 0; j < vocab; j++) w[j] = ls_rounded(row[j], (ls_rounding)h.k);
            return logprob(w, vocab, token, temperature);
        case LOGPROBS_ROUNDED: return ls_rounded(logprob(row, vocab, token, temperature), (ls_rounding)h.k);
        case DECIMALS: {
            const double tens = pow(10.0, (double)h.k);
            return rint(logprob(row, vocab, token, temperature) * tens) / tens;
        }
        case SOFTCAPPED:
            for (int64_t j = 0; j < vocab; j++) w[j] = h.x * tanh(row[j] / h.x);
            return logprob(w, vocab, token, temperature);
        case DIVIDED: return logprob(row, vocab, token, 1.0) / x->temperature;
    }
    return (double)NAN;
}

/* ---- how well it fits ---- */

static int up(const void *a, const void *b) { return -down(a, b); }

static void begin(explainer *x) { x->n_errors = 0; }

static void add_errors(explainer *x, const text *t, const double *rows, how h) {
    for (int64_t i = 0; i < t->n_recorded; i++) {
        double e = fabs((double)t->recorded[i] - record(x, t, rows, i, h));
        if (isnan(e) && h.kind == SHIFTED) continue; /* outside */
        x->errors[x->n_errors++] = isfinite(e) ? e : 1e9;
    }
}

static void finish(explainer *x, ls_explanation *out) {
    qsort(x->errors, (size_t)x->n_errors, sizeof *x->errors, up);
    out->median = x->n_errors > 0 ? x->errors[x->n_errors / 2] : 0.0;
    out->q90 = x->n_errors > 0 ? x->errors[x->n_errors * 9 / 10] : 0.0;
}

/* Keeps it when it says clearly more than nothing does. */
static void offer(explainer *x, ls_explanation e) {
    ls_foreign *f = x->q->f;
    int64_t at = f->n_best;
    /* Where few tokens are off, the median is of those that are right, and must stay what it is. */
    if (x->partly ? !(e.median <= 1.5 * f->before.median + f->floor && e.q90 <= 0.3 * f->before.q90)
                  : !(e.median <= 0.3 * f->before.median && e.q90 <= 0.5 * f->before.q90))
        return;
    /* A factor or a temperature draws records together that have nothing to do with each other. */
    if (e.fitted && !x->partly && !(e.median <= 0.2 * f->before.median && e.q90 <= 0.25 * f->before.q90)) return;
    if (x->n_errors < EXPLAIN_TOKENS) return; /* too little to say anything */
    while (at > 0 && f->best[at - 1].median + f->best[at - 1].q90 > e.median + e.q90) at--;
    if (at == LS_EXPLANATIONS_KEPT) return;
    if (f->n_best < LS_EXPLANATIONS_KEPT) f->n_best++;
    memmove(&f->best[at + 1], &f->best[at], (size_t)(f->n_best - 1 - at) * sizeof *f->best);
    f->best[at] = e;
}

static void measure(explainer *x, how h, ls_explanation *out) {
    begin(x);
    for (int64_t t = 0; t < x->n_texts; t++) add_errors(x, &x->texts[t], x->texts[t].rows, h);
    finish(x, out);
}

static void __attribute__((format(printf, 4, 5)))
try_recipe(explainer *x, how h, const char *cause, const char *format, ...) {
    ls_explanation e = {.cause = cause, .fitted = h.kind == TIMES || h.kind == AT_TEMPERATURE};
    va_list args;
    va_start(args, format);
    vsnprintf(e.what, sizeof e.what, format, args);
    va_end(args);
    measure(x, h, &e);
    offer(x, e);
}

/* The x in [low, high] with the least median error; it has one valley, or is searched in steps first. */
static double fit(explainer *x, recipe kind, double low, double high) {
    double best = low, least = (double)INFINITY, step = pow(high / low, 1.0 / 40.0);
    ls_explanation e;
    for (int round = 0; round < 4; round++) {
        const double from = round == 0 ? low : best / step, to = round == 0 ? high : best * step;
        if (round > 0) step = pow(to / from, 1.0 / 20.0);
        for (double v = from; v <= to * 1.0000001; v *= step) {
            measure(x, (how){kind, v, 0}, &e);
            if (e.median + e.q90 < least) {
                least = e.median + e.q90;
                best = v;
            }
        }
    }
    return best;
}

/* Those that the trainer's values are enough for. */
static void try_values(explainer *x) {
    double best;
    for (int64_t k = -3; k <= 3; k++)
        if (k != 0)
            try_recipe(x, (how){SHIFTED, 0.0, k}, "records shifted", "each record is the value of the token %lld %s",
                       (long long)llabs(k), k > 0 ? "before" : "after");
    if (x->temperature != 1.0 && x->temperature > 0.0)
        try_recipe(x, (how){DIVIDED, 0.0, 0}, "temperature on one side only",
                   "log-probabilities are divided by the temperature, not logits");
    best = fit(x, TIMES, 0.1, 8.0);
    try_recipe(x, (how){TIMES, best, 0}, "log-probabilities scaled", "log-probabilities are multiplied by %.4g", best);
    try_recipe(x, (how){LOGPROBS_ROUNDED, 0.0, LS_ROUND_BF16}, "log-probabilities in low precision",
               "log-probabilities are rounded to bf16");
    try_recipe(x, (how){LOGPROBS_ROUNDED, 0.0, LS_ROUND_F16}, "log-probabilities in low precision",
               "log-probabilities are rounded to f16");
    for (int64_t k = 1; k < 5; k++)
        try_recipe(x, (how){DECIMALS, 0.0, k}, "log-probabilities in low precision",
                   "log-probabilities have %lld decimals", (long long)k);
}

static void try_records(explainer *x) {
    static const double penalties[] = {1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 0.1, 0.2, 0.5, 1.0, 1.5};
    const int64_t vocab = x->q->config->vocab;
    const double t = x->temperature;
    double best;
    try_values(x);
    if (t != x->record_temperature)
        try_recipe(x, (how){AT_TEMPERATURE, t, 0}, "temperature on one side only",
                   "records are of the sampling temperature %g, not of %g", t, x->record_temperature);
    if (x->record_temperature != 1.0) {
        try_recipe(x, (how){AT_TEMPERATURE, 1.0, 0}, "temperature on one side only",
                   "records are of temperature 1, not of %g", x->record_temperature);
        try_recipe(x, (how){AT_TEMPERATURE, 1.0 / t, 0}, "temperature on one side only",
                   "logits are multiplied by the temperature, not divided");
    }
    best = fit(x, AT_TEMPERATURE, 0.2, 8.0);
    try_recipe(x, (how){AT_TEMPERATURE, best, 0}, "temperature on one side only", "records are of temperature %.4g",
               best);
    for (int64_t k = 1; k < vocab; k = k < 128 ? k + 1 : k + k / 8)
        try_recipe(x, (how){TOP_K, 0.0, k}, "top-k or top-p on one side only", "renormalised over the %lld likeliest",
                   (long long)k);
    /* The same where what is recorded is what was drawn from. */
    for (int64_t k = 1; t != x->record_temperature && t > 0.0 && k < vocab; k = k < 128 ? k + 1 : k + k / 8)
        try_recipe(x, (how){TOP_K, t, k}, "top-k or top-p on one side only",
                   "renormalised over the %lld likeliest at the temperature of sampling", (long long)k);
    for (double p = 0.01; t != x->record_temperature && t > 0.0 && p < 0.6; p += 0.01)
        try_recipe(x, (how){MIN_P, p, 1}, "top-k or top-p on one side only",
                   "renormalised over those above %.2g of the largest at the temperature of sampling", p);
    for (int k = 0; k < (t != x->record_temperature && t > 0.0 ? 3 : 2); k++)
        for (double p = 0.995; p > 0.3; p -= p > 0.95 ? 0.005 : 0.01)
            try_recipe(x, (how){TOP_P, p, k}, "top-k or top-p on one side only",
                       "renormalised over the likeliest of total probability %.3g", p);
    for (double p = 0.01; p < 0.6; p += 0.01)
        try_recipe(x, (how){MIN_P, p, 0}, "top-k or top-p on one side only",
                   "renormalised over those above %.2g of the largest", p);
    try_recipe(x, (how){WITHOUT_EOS, 0.0, 0}, "end of sequence masked",
               "renormalised without the end-of-sequence token");
    try_recipe(x, (how){OF_LIKELIEST, 0.0, 0}, "records of other tokens", "each record is the likeliest token's");
    for (int64_t k = 2; k < vocab; k = k < 64 ? k + 1 : k + k / 8)
        try_recipe(x, (how){AT_LEAST, 0.0, k}, "records of other tokens",
                   "tokens beyond the %lld likeliest have the last of these' record", (long long)k);
    for (int64_t k = -2; k <= 2; k++)
        if (k != 0)
            try_recipe(x, (how){OF_OTHER_ID, 0.0, k}, "records of other tokens", "each record is that of id %+lld",
                       (long long)k);
    for (size_t i = 0; i < sizeof penalties / sizeof penalties[0]; i++) {
        const bool factor = i < 7;
        const double p = penalties[i];
        if (factor) {
            try_recipe(x, (how){REPETITION, p, 0}, "penalty on one side only", "repetition penalty %g", p);
            try_recipe(x, (how){REPETITION_OF_COMPLETION, p, 0}, "penalty on one side only",
                       "repetition penalty %g, on the completion", p);
        } else {
            try_recipe(x, (how){PRESENCE, p, 0}, "penalty on one side only", "presence penalty %g", p);
            try_recipe(x, (how){FREQUENCY, p, 0}, "penalty on one side only", "frequency penalty %g", p);
        }
    }
    try_recipe(x, (how){LOGITS_ROUNDED, 0.0, LS_ROUND_BF16}, "head in low precision", "logits are rounded to bf16");
    try_recipe(x, (how){LOGITS_ROUNDED, 0.0, LS_ROUND_F16}, "head in low precision", "logits are rounded to f16");
    for (double cap = 5.0; cap < 60.0; cap += 5.0)
        try_recipe(x, (how){SOFTCAPPED, cap, 0}, "another formula in the model", "logits are capped at %g", cap);
}

/* ---- other models, other prompts ---- */

/* Once it is, what was not tried might have been the cause. */
static bool past(const explainer *x) {
    const bool is_past = x->q->deadline > 0.0 && ls_clock_seconds() > x->q->deadline;
    if (is_past) x->q->f->out_of_time = true;
    return is_past;
}

/* The text as it is read, into x->changed. Its completion begins at *n_prompt. False: it reads the same. */
static bool read_as(const explainer *x, const text *t, reading r, int64_t k, int64_t *n, int64_t *n_prompt) {
    const ls_model_config *c = x->q->config;
    const int32_t eos = c->n_eos > 0 ? c->eos[0] : -1;
    int64_t at = 0, from = 0, to = t->n_prompt;
    if ((r == WITH_BOS || r == DOUBLED_BOS) && c->bos < 0) return false;
    if (r == WITH_BOS || (r == DOUBLED_BOS && t->tokens[0] == c->bos)) x->changed[at++] = c->bos;
    if (r == FIRST_AGAIN) x->changed[at++] = t->tokens[0];
    if (r == WITHOUT_FIRST && to > 1) from = 1;
    if (r == STRIPPED_BOS && to > 1 && t->tokens[0] == c->bos) from = 1;
    if (r == WITHOUT_LAST && to > 1) to--;
    if (r == LAST_TOKENS && to > k) from = to - k;
    for (int64_t i = from; i < to; i++)
        if (r != STRIPPED_EOS || t->tokens[i] != eos || to == 1) x->changed[at++] = t->tokens[i];
    if (r == WITH_EOS && eos >= 0) x->changed[at++] = eos;
    *n_prompt = at;
    for (int64_t i = t->n_prompt; i < t->n; i++) x->changed[at++] = t->tokens[i];
    *n = at;
    return !(at == t->n && memcmp(x->changed, t->tokens, (size_t)at * sizeof *x->changed) == 0) || r == AS_GIVEN;
}

/* Errors of the texts [0, n_texts) under a changed model that reads changed prompts. cut: 0 none, 1 within the prompt,
 * 2 where decoding begins, 3 at every token that is decoded. */
static ls_status measure_changed(explainer *x, ls_edit e, int cut, reading r, int64_t k, int64_t n_texts,
                                 ls_explanation *out, ls_error *err) {
    begin(x);
    for (int64_t i = 0; i < n_texts; i++) {
        const text *t = &x->texts[i];
        text other = *t;
        const double *rows = x->rows;
        if (cut == 1) e.cut_before = t->n_prompt;
        if (cut >= 2) e.cut_every = 1, e.cut_from = t->n_prompt, e.cut_before = cut == 2 ? t->n_prompt + 1 : 0;
        if (read_as(x, t, r, k, &other.n, &other.n_prompt)) {
            LS_TRY(ls_reference_logits(x->q->reference, &e, x->changed, other.n, x->rows, err));
            other.tokens = x->changed;
        } else {
            rows = t->rows;
        }
        add_errors(x, &other, rows, (how){PLAIN, 0.0, 0});
    }
    finish(x, out);
    return LS_OK;
}

/* First on few texts: most explanations fail there. */
static ls_status try_changed(explainer *x, const ls_edit *e, int cut, reading r, int64_t k, ls_explanation what,
                             ls_error *err) {
    const int64_t few = x->n_texts < 4 ? x->n_texts : 4;
    if (past(x)) return LS_OK;
    LS_TRY(measure_changed(x, *e, cut, r, k, few, &what, err));
    if (few < x->n_texts && what.median > 0.7 * x->q->f->before.median && !(x->partly && x->n_texts <= PARTLY_TEXTS))
        return LS_OK;
    if (few < x->n_texts) LS_TRY(measure_changed(x, *e, cut, r, k, x->n_texts, &what, err));
    offer(x, what);
    return LS_OK;
}

static ls_explanation __attribute__((format(printf, 2, 3))) named(const char *cause, const char *format, ...) {
    ls_explanation e = {.cause = cause};
    va_list args;
    va_start(args, format);
    vsnprintf(e.what, sizeof e.what, format, args);
    va_end(args);
    return e;
}

static ls_status try_readings(explainer *x, ls_error *err) {
    static const char *const words[] = {"",
                                        "a begin-of-sequence token is put in front of every prompt",
                                        "a begin-of-sequence token is put in front of prompts that have one",
                                        "an end-of-sequence token is put behind every prompt",
                                        "the first token of prompts is dropped",
                                        "the last token of prompts is dropped",
                                        "end-of-sequence tokens are taken out of prompts",
                                        "a begin-of-sequence token at the front is taken away",
                                        "",
                                        "the first token of prompts is read twice"};
    const ls_edit same = {.layer = -1};
    int64_t longest = 0;
    for (int r = WITH_BOS; r <= FIRST_AGAIN; r++)
        if (r != LAST_TOKENS)
            LS_TRY(try_changed(x, &same, 0, (reading)r, 0, named("other tokens than were sent", "%s", words[r]), err));
    for (int64_t t = 0; t < x->n_texts; t++) longest = x->texts[t].n_prompt > longest ? x->texts[t].n_prompt : longest;
    for (int64_t k = 1; k < longest && k < 160; k++) {
        const ls_explanation e =
            named("other tokens than were sent", "only the last %lld tokens of a prompt are read", (long long)k);
        LS_TRY(try_changed(x, &same, 0, LAST_TOKENS, k, e, err));
    }
    return LS_OK;
}

/* The same tensors of all layers, or of one. */
static ls_status try_weights(explainer *x, ls_error *err) {
    static const char *const types[] = {
        "", "bf16", "f16", "fp8, by row", "fp8, by matrix", "int8, by row", "int8, by matrix", "int4, by row"};
    const ls_model_config *c = x->q->config;
    for (int32_t layer = -1; layer < c->n_layers; layer++) {
        for (int w = LS_WEIGHTS_BF16; w <= LS_WEIGHTS_INT4; w++) {
            const ls_edit e = {.layer = layer, .weights = (ls_weight_change)w};
            LS_TRY(try_changed(
                x, &e, 0, AS_GIVEN, 0,
                layer < 0 ? named("weights in low precision", "all weights are %s", types[w])
                          : named("one layer has other weights", "the weights of layer %d are %s", layer, types[w]),
                err));
        }
        for (int w = LS_WEIGHTS_NO_MIXER; w <= LS_WEIGHTS_FFN_NORM_ONES; w++) {
            static const char *const lost[] = {"mixer adds nothing", "feed-forward adds nothing",
                                               "input norm has no weights", "feed-forward's norm has no weights"};
            const ls_edit e = {.layer = layer, .weights = (ls_weight_change)w};
            if (layer < 0) continue;
            LS_TRY(try_changed(
                x, &e, 0, AS_GIVEN, 0,
                named("one layer has other weights", "layer %d: the %s", layer, lost[w - LS_WEIGHTS_NO_MIXER]), err));
        }
        for (int32_t other = 0; layer >= 0 && other < c->n_layers; other++) {
            const ls_edit e = {.layer = layer, .weights = LS_WEIGHTS_OF_LAYER, .other = other};
            if (other == layer || c->is_attention[other] != c->is_attention[layer]) continue;
            LS_TRY(try_changed(
                x, &e, 0, AS_GIVEN, 0,
                named("one layer has other weights", "layer %d has the weights of layer %d", layer, other), err));
        }
    }
    for (int w = LS_WEIGHTS_BF16; w <= LS_WEIGHTS_INT4; w++) {
        const ls_edit e = {.layer = -1, .head_weights = (ls_weight_change)w};
        LS_TRY(try_changed(x, &e, 0, AS_GIVEN, 0,
                           named("head in low precision", "the weights of the head are %s", types[w]), err));
    }
    return LS_OK;
}

typedef struct formula {
    ls_edit edit;
    const char *cause, *what;
    bool harmless;
} formula;

static ls_status try_formulas(explainer *x, ls_error *err) {
    const double size = x->q->config->head_dim > 0 ? (double)x->q->config->head_dim : 1.0;
    const char *const positions = "positions or scale of attention", *const other = "another formula in the model";
    const char *const bits8 = "keys and values in 8 bits";
    const formula list[] = {
        {{.layer = -1, .rope = true}, positions, "queries and keys are rotated by position, in halves", false},
        {{.layer = -1, .rope_pairs = true}, positions, "queries and keys are rotated by position, in pairs", false},
        {{.layer = -1, .attention_scale = 1.0 / sqrt(size)}, positions, "attention is scaled by 1/P", false},
        {{.layer = -1, .attention_scale = sqrt(size)}, positions, "attention has no scale", false},
        {{.layer = -1, .head_input = LS_ROUND_BF16}, "head in low precision", "what enters the head is bf16", false},
        {{.layer = -1, .head_input = LS_ROUND_BF16, .logits = LS_ROUND_BF16},
         "head in low precision",
         "what enters the head and the logits are bf16",
         false},
        {{.layer = -1, .head_input = LS_ROUND_F16, .logits = LS_ROUND_F16},
         "head in low precision",
         "what enters the head and the logits are f16",
         false},
        {{.layer = -1, .head_input = LS_ROUND_BF16, .logits = LS_ROUND_BF16, .head_weights = LS_WEIGHTS_BF16},
         "head in low precision",
         "the head is bf16 as a whole",
         false},
        {{.layer = -1, .head_input = LS_ROUND_BF16, .head_weights = LS_WEIGHTS_BF16},
         "head in low precision",
         "weights of the head and what enters it are bf16",
         false},
        {{.layer = -1, .keys = LS_ROUND_F16}, "keys and values in f16", "keys and values are f16", true},
        {{.layer = -1, .keys = LS_ROUND_BF16}, "keys and values in bf16", "keys and values are bf16", true},
        {{.layer = -1, .keys = LS_ROUND_FP8}, bits8, "keys and values are fp8 (e4m3)", false},
        {{.layer = -1, .keys = LS_ROUND_E5M2}, bits8, "keys and values are fp8 (e5m2)", false},
        {{.layer = -1, .keys = LS_ROUND_FP8, .keys_per = 1}, bits8, "keys and values are fp8, by head", false},
        {{.layer = -1, .keys = LS_ROUND_FP8, .keys_per = 2}, bits8, "keys and values are fp8, by token", false},
        {{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 1}, bits8, "keys and values are int8, by head", false},
        {{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 2}, bits8, "keys and values are int8, by token", false},
        {{.layer = -1, .keys = LS_ROUND_INT8, .keys_per = 3}, bits8, "keys and values are int8, by 32", false},
        {{.layer = -1, .activations = LS_ROUND_BF16}, "activations in low precision", "activations are bf16", true},
        {{.layer = -1, .activations = LS_ROUND_F16}, "activations in low precision", "activations are f16", true},
        {{.layer = -1, .norm_eps = 1e-5}, other, "norms add 1e-5", false},
        {{.layer = -1, .norm_eps = 1e-8}, other, "norms add 1e-8", false},
        {{.layer = -1, .norm_eps = 1e-3}, other, "norms add 1e-3", false},
        {{.layer = -1, .no_inner_norms = true}, other, "dt, B and C are not normalised", false},
        {{.layer = -1, .router_renormalised = true},
         other,
         "weights of the chosen experts are made to sum to 1",
         false},
        {{.layer = -1, .no_d = true}, other, "the scan has no D", false},
        {{.layer = -1, .gelu = true}, other, "the feed-forward has gelu for silu", false},
        {{.layer = -1, .embed_scale = sqrt((double)x->q->config->hidden)},
         other,
         "embeddings are multiplied by sqrt(H)",
         false},
    };
    static const int64_t windows[] = {1, 2, 4, 8, 16, 32, 64};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        ls_explanation e = named(list[i].cause, "%s", list[i].what);
        e.harmless = list[i].harmless;
        LS_TRY(try_changed(x, &list[i].edit, 0, AS_GIVEN, 0, e, err));
    }
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        const ls_edit e = {.layer = -1, .window = windows[i]};
        LS_TRY(try_changed(x, &e, 0, AS_GIVEN, 0,
                           named(positions, "attention sees the last %lld tokens", (long long)windows[i]), err));
    }
    return LS_OK;
}

static const char *lost_words(int32_t lose) {
    static const char *const words[8] = {"",
                                         "the convolution window",
                                         "the scan state",
                                         "window and scan state",
                                         "the keys and values",
                                         "window, keys and values",
                                         "scan state, keys and values",
                                         "everything"};
    return words[lose & 7];
}

static ls_status try_handover(explainer *x, ls_error *err) {
    for (int cut = 2; cut <= 3; cut++)
        for (int32_t lose = 1; lose < 8; lose++) {
            const ls_edit e = {.layer = -1, .lose = lose};
            LS_TRY(try_changed(x, &e, cut, AS_GIVEN, 0,
                               named("state lost between prefill and decode", "%s: %s lost",
                                     cut == 2 ? "where decoding begins" : "at every decoded token", lost_words(lose)),
                               err));
        }
    if (x->q->config->n_eos > 0) {
        const ls_edit e = {.layer = -1, .reset_token = x->q->config->eos[0] + 1, .lose = 7};
        LS_TRY(try_changed(
            x, &e, 0, AS_GIVEN, 0,
            named("end of sequence inside a context", "nothing is remembered across an end-of-sequence token"), err));
    }
    return LS_OK;
}

/* How much a stack that is bf16 throughout would change these records, as a measure of what is ordinary there. */
static ls_status measure_bf16(explainer *x, ls_error *err) {
    const ls_edit e = {.layer = -1, .activations = LS_ROUND_BF16, .weights = LS_WEIGHTS_BF16, .keys = LS_ROUND_BF16};
    ls_explanation size;
    begin(x);
    for (int64_t t = 0; t < x->n_texts; t++) {
        const text *one = &x->texts[t];
        LS_TRY(ls_reference_logits(x->q->reference, &e, one->tokens, one->n, x->rows, err));
        for (int64_t i = 0; i < one->n_recorded; i++)
            x->errors[x->n_errors++] = fabs(record(x, one, x->rows, i, (how){PLAIN, 0.0, 0}) -
                                            record(x, one, one->rows, i, (how){PLAIN, 0.0, 0}));
    }
    finish(x, &size);
    x->q->f->bf16_size = size.median;
    return LS_OK;
}

/* ---- the whole ---- */

static void close_explainer(explainer *x) {
    for (int64_t t = 0; x->texts != NULL && t < x->n_texts; t++) {
        free(x->texts[t].tokens);
        free(x->texts[t].rows);
    }
    free(x->texts);
    free(x->work);
    free(x->errors);
    free(x->rows);
    free(x->changed);
}

static ls_status open_text(explainer *x, text *t, const ls_outcome *c, ls_error *err) {
    const int64_t vocab = x->q->config->vocab;
    int64_t elements;
    *t = (text){.n = c->n_prompt + c->n,
                .n_prompt = c->n_prompt,
                .n_recorded = c->n,
                .recorded = c->logprob,
                .scored = c->scored};
    if (!ls_mul_i64(t->n, vocab, &elements)) return LS_FAIL(err, LS_ERR_NOMEM, "logits of the reference forward");
    LS_TRY(ls_array_alloc((void **)&t->tokens, t->n, sizeof *t->tokens, "tokens", err));
    memcpy(t->tokens, c->prompt, (size_t)c->n_prompt * sizeof *t->tokens);
    memcpy(t->tokens + c->n_prompt, c->completion, (size_t)c->n * sizeof *t->tokens);
    if (t->n > x->longest) x->longest = t->n;
    x->n_errors += t->n_recorded;
    if (x->q->reference == NULL) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&t->rows, elements, sizeof *t->rows, "logits", err));
    return ls_reference_logits(x->q->reference, NULL, t->tokens, t->n, t->rows, err);
}

/* checked: with short prompts of the rung of lengths behind, which an explanation must hold for as well. */
static ls_status open_explainer(explainer *x, ls_inquiry *q, const ls_rung *rungs, int64_t n_rungs, bool checked,
                                ls_error *err) {
    const int64_t vocab = q->config->vocab;
    ls_trial trial;
    uint64_t needs;
    int64_t n = 0;
    memset(x, 0, sizeof *x);
    x->q = q;
    x->end = ls_clock_seconds() + EXPLAIN_SECONDS;
    ls_rung_trial(q, rungs[0], &trial, &needs);
    x->temperature = (double)trial.sampling.temperature;
    x->record_temperature = trial.logprob_of == LS_LOGPROB_RAW ? 1.0 : x->temperature;
    for (int64_t r = 0; r < n_rungs; r++) n += q->f->seen[rungs[r]].outcomes.n;
    if (checked) n += q->f->seen[LS_RUNG_LENGTHS].outcomes.n;
    LS_TRY(ls_array_alloc((void **)&x->texts, n, sizeof *x->texts, "texts", err));
    for (int64_t r = 0; r < n_rungs; r++)
        for (int64_t s = 0; s < q->f->seen[rungs[r]].outcomes.n; s++)
            if (q->f->seen[rungs[r]].outcomes.of[s].n > 0)
                LS_TRY(open_text(x, &x->texts[x->n_texts++], &q->f->seen[rungs[r]].outcomes.of[s], err));
    for (int64_t s = 0; checked && s < q->f->seen[LS_RUNG_LENGTHS].outcomes.n; s++) {
        const ls_outcome *c = &q->f->seen[LS_RUNG_LENGTHS].outcomes.of[s];
        if (c->n > 0 && c->n_prompt <= CHECK_LENGTH) LS_TRY(open_text(x, &x->texts[x->n_texts++], c, err));
    }
    LS_TRY(ls_array_alloc((void **)&x->work, vocab, sizeof *x->work, "logits", err));
    LS_TRY(ls_array_alloc((void **)&x->errors, x->n_errors + 1, sizeof *x->errors, "errors", err));
    if (q->reference != NULL)
        LS_TRY(ls_array_alloc((void **)&x->rows, (x->longest + 2) * vocab, sizeof *x->rows, "logits", err));
    return ls_array_alloc((void **)&x->changed, x->longest + 2, sizeof *x->changed, "tokens", err);
}

ls_status ls_explain(ls_inquiry *q, const ls_rung *rungs, int64_t n_rungs, ls_error *err) {
    explainer x = {0};
    ls_status status;
    q->f->n_best = 0;
    LS_TRY_DONE(open_explainer(&x, q, rungs, n_rungs, n_rungs > 1, err));
    if (x.n_texts == 0) goto done;
    q->f->before = named(NULL, "nothing is changed");
    measure(&x, (how){PLAIN, 0.0, 0}, &q->f->before);
    x.partly = n_rungs == 1 && q->f->before.median < q->f->limit && q->f->before.q90 > q->f->limit;
    if (q->reference == NULL) {
        if (q->f->before.q90 >= EXPLAIN_LEAST) try_values(&x);
        goto done;
    }
    LS_TRY_DONE(measure_bf16(&x, err));
    if (n_rungs > 1 && q->f->before.q90 < EXPLAIN_LEAST) goto done; /* as good as equal */
    try_records(&x);
    LS_TRY_DONE(try_readings(&x, err));
    LS_TRY_DONE(try_formulas(&x, err));
    LS_TRY_DONE(try_handover(&x, err));
    LS_TRY_DONE(try_weights(&x, err));
done:
    close_explainer(&x);
    return status;
}

/* By what is left unexplained, and by how far the best explanation of another family is behind. */
double ls_explained_confidence(const ls_foreign *f) {
    const ls_explanation *best = &f->best[0];
    const double left = best->q90 / fmax(f->before.q90, 1e-12), size = best->median + best->q90;
    double share = 0.0;
    for (int64_t i = 1; i < f->n_best && share == 0.0; i++)
        if (f->best[i].cause != best->cause && !f->best[i].harmless)
            share = size / fmax(f->best[i].median + f->best[i].q90, 1e-12);
    return fmax(0.0, 0.99 - 0.35 * left - 0.4 * fmax(0.0, share - 0.5));
}

ls_status ls_explain_cuts(ls_inquiry *q, ls_rung rung, int64_t every, int32_t *lost, ls_error *err) {
    explainer x = {0};
    ls_explanation before = {0}, best = {0};
    ls_status status;
    *lost = 0;
    if (q->reference == NULL) return LS_OK;
    LS_TRY_DONE(open_explainer(&x, q, &rung, 1, false, err));
    if (x.n_texts == 0) goto done;
    measure(&x, (how){PLAIN, 0.0, 0}, &before);
    best = before;
    for (int32_t lose = 1; lose < 8; lose++) {
        const ls_edit e = {.layer = -1, .lose = lose, .cut_every = every};
        ls_explanation one;
        LS_TRY_DONE(measure_changed(&x, e, 1, AS_GIVEN, 0, x.n_texts, &one, err));
        if (one.q90 >= 0.3 * before.q90 || one.q90 >= best.q90) continue;
        best = one;
        *lost = lose;
    }
done:
    close_explainer(&x);
    return status;
}

ls_status ls_sensitivity(ls_inquiry *q, const ls_outcome *c, double *out, ls_error *err) {
    static const ls_edit edits[3] = {
        {.layer = -1}, {.layer = -1, .activations = LS_ROUND_BF16}, {.layer = -1, .activations = LS_ROUND_F16}};
    const int64_t vocab = q->config->vocab, n = c->n_prompt + c->n;
    explainer x = {.q = q};
    ls_outcome bare = *c;
    double *plain = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&x.texts, 1, sizeof *x.texts, "texts", err));
    LS_TRY_DONE(ls_array_alloc((void **)&plain, c->n, sizeof *plain, "records", err));
    LS_TRY_DONE(ls_array_alloc((void **)&x.rows, n * vocab, sizeof *x.rows, "logits", err));
    x.n_texts = 1;
    LS_TRY_DONE(open_text(&x, &x.texts[0], &bare, err));
    for (int e = 0; e < 3; e++) {
        LS_TRY_DONE(ls_reference_logits(q->reference, &edits[e], x.texts[0].tokens, n, x.rows, err));
        for (int64_t i = 0; i < c->n; i++) {
            const double v = logprob(x.rows + (c->n_prompt + i - 1) * vocab, vocab, c->completion[i], 1.0);
            if (e == 0) plain[i] = v, out[i] = 0.0;
            /* f16 has three bits more. */
            if (e > 0) out[i] = fmax(out[i], fabs(v - plain[i]) * (e == 1 ? 1.0 : 8.0));
        }
    }
done:
    free(plain);
    close_explainer(&x);
    return status;
}
