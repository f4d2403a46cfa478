/* For the files of explanations alone: what they are measured with. record_recipes.c has those of records, for which
 * the unchanged model's logits are enough; changed_models.c those of changed models and changed prompts;
 * explanations.c lays out the texts and weighs what is left. */
#ifndef LS_DIAGNOSE_EXPLAIN_EXPLANATIONS_H
#define LS_DIAGNOSE_EXPLAIN_EXPLANATIONS_H

#include "diagnose/rounding/inquiry.h"

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
    SHIFTED, /* k places late; from the record of number x on */
    AT_TEMPERATURE,
    TIMES, /* the log-probability times x */
    TOP_K,
    TOP_P,
    MIN_P,       /* k & 1: recorded at the temperature of sampling; k & 2: cut at temperature 1 */
    WITHOUT_EOS, /* of the first k tokens alone, counted from the prompt's begin where x is 1; k 0: all */
    OF_LIKELIEST,
    OF_ANY_TOKEN, /* the token of this row whose log-probability is nearest to the record plus x */
    SUMS,         /* of all values so far */
    MEANS,        /* likewise */
    LEAST,
    MOST,
    MEAN_OF_ALL, /* of the request */
    MEAN_OF_TWO, /* with the value before */
    ENTROPY,     /* of the row */
    LOGIT,
    PROBABILITY,
    UNITS,       /* multiples of 1 / k: the nearest; the next below where x is -1, the next above where it is 1 */
    OF_OTHER_ID, /* token + k */
    AT_LEAST,    /* that of the k-th likeliest */
    REPETITION,  /* of all tokens seen, or of the last k */
    REPETITION_OF_COMPLETION,
    PRESENCE, /* of tokens of the completion */
    FREQUENCY,
    PRESENCE_OF_ALL, /* of the prompt as well */
    FREQUENCY_OF_ALL,
    REPETITION_OF_PROMPT, /* of the prompt's tokens alone */
    PRESENCE_OF_PROMPT,
    FREQUENCY_OF_PROMPT,
    LOGITS_ROUNDED,
    LOGPROBS_ROUNDED,
    SOFTCAPPED,
    DIVIDED /* the log-probability of temperature 1, divided by that of sampling */
} recipe;

typedef struct how {
    recipe kind;
    double x;
    int64_t k;
} how;

/* What the suspect is given in place of the prompt. */
typedef enum hypothesis {
    AS_GIVEN = 0,
    WITH_BOS,
    DOUBLED_BOS,
    WITH_EOS,
    WITHOUT_FIRST,
    WITHOUT_LAST,
    STRIPPED_EOS,
    STRIPPED_BOS,
    LAST_TOKENS,
    FIRST_AGAIN,
    FIRST_TOKENS,
    INSERTED_FIRST, /* token k and x->inserted */
    INSERTED_LAST,
    LAST_AGAIN,
    STRIPPED_SPECIAL,
    BACKWARDS,
    IDS_MODULO,  /* |k|; of prompts where k > 0, else of completions as well */
    IDS_AT_MOST, /* |k| - 1, likewise */
    IDS_MOVED,   /* by k, of prompts */
    IDS_FLIPPED, /* of prompts, from x->kept on: in the bits of k */
    IDS_LOST,    /* of prompts, below k: taken out */
    IDS_UNKNOWN  /* of prompts, from k on: x->unknown */
} hypothesis;

enum { INSERTED_MOST = 6 };

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
    int32_t inserted[INSERTED_MOST]; /* the nearest to what is recorded first */
    int64_t n_inserted;
    int32_t unknown, kept;
    int64_t longest;
    int64_t n_solo;                          /* texts in front of those that check */
    bool partly;                             /* most tokens are right as they are */
    int64_t n_few;                           /* texts that a change is first tried on, and what they are without it */
    ls_explanation few_before, first_before; /* the latter of the first text alone */
    double end; /* seconds of ls_clock_seconds, after which no further change is tried where there is a deadline */
} explainer;

/* What would be recorded for completion token i of t, whose logits are rows [n][V]; NaN where it cannot be told. */
double ls_explain_record(const explainer *x, const text *t, const double *rows, int64_t i, how h);
double ls_explain_logprob(const double *row, int64_t vocab, int32_t token, double temperature);
/* Errors are gathered between begin and finish. */
void ls_explain_begin(explainer *x);
void ls_explain_errors(explainer *x, const text *t, const double *rows, how h);
void ls_explain_finish(explainer *x, ls_explanation *out);
/* All texts, with the unchanged model. */
void ls_explain_measure(explainer *x, how h, ls_explanation *out);
void ls_explain_measure_few(explainer *x, how h, int64_t n_texts, ls_explanation *out);
/* Keeps it when it says clearly more than nothing does. */
void ls_explain_offer(explainer *x, ls_explanation e);
ls_explanation ls_explain_named(ls_cause cause, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Those that the trainer's values are enough for; those that take logits as well. */
void ls_explain_values(explainer *x);
void ls_explain_records(explainer *x);
/* How much a stack that is bf16 throughout would change these records. */
ls_status ls_explain_bf16(explainer *x, ls_error *err);
/* Other prompts, other formulas, other weights. */
ls_status ls_explain_models(explainer *x, ls_error *err);
ls_status ls_explain_changed(explainer *x, ls_edit e, int cut, hypothesis r, int64_t k, int64_t n_texts,
                             ls_explanation *out, ls_error *err);

#endif
