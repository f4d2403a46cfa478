/* Choosing the next token from a row of logits, independent of batch, slot and arrival.
 *
 * z = logit * inv_t as in logprob.h. The kept set starts as every entry with z > -inf and shrinks in this order; ties
 * are always broken in favour of the lower token id:
 *   top_k > 0:  the top_k largest z
 *   top_p < 1:  in order of descending z, the shortest prefix, at least one token, whose sum of exp(z - max), an
 *               ascending chain in that order, reaches top_p times the same chain over the whole set
 *   min_p > 0:  tokens with exp(z - max) >= min_p
 * process: z of kept tokens, -inf for the others (greedy: z = logit, all above -inf are kept). Where no z exceeds
 *   -inf, or a z is NaN or +inf (a finite logit times inv_t may be), nothing is kept, and the row's first entry is NaN,
 *   so that its log-probability is.
 * sample: temperature 0 is greedy: the largest logit, the lower id among equals. Otherwise Gumbel-max (Maddison et al.
 *   2014, arXiv:1411.0030): the kept token with the largest z + g, lower id among equals,
 *     g = -log(-log(u)), u = ((word >> 9) + 0.5) * 2^-23,
 *     word number id % 4 of Philox4x32-10(key = seed; counter = id / 4, position, sample, prompt)
 *   position is the index in the whole sequence of the token being drawn. */
#ifndef LS_OP_SAMPLE_H
#define LS_OP_SAMPLE_H

#include "base/status.h"
#include "lockstep/lockstep.h"

/* What options and requests may ask for beside 0: with anything smaller, logits that models have overflow. */
#define LS_TEMPERATURE_MIN 1e-20

typedef struct ls_sampling {
    float temperature; /* >= 0; 0 is greedy */
    int64_t top_k;     /* 0 keeps all */
    float top_p;       /* (0, 1]; 1 keeps all */
    float min_p;       /* [0, 1]; 0 keeps all */
    uint64_t seed;
} ls_sampling;

/* Whether some tokens with a probability may be left out. */
static inline bool ls_sampling_truncates(const ls_sampling *s) {
    return s->top_k > 0 || s->top_p < 1.0f || s->min_p > 0.0f;
}

typedef struct ls_draw {
    uint32_t prompt, sample, position;
} ls_draw;

/* Checks the ranges above; the error names the field. */
ls_status ls_sampling_check(const ls_sampling *sampling, ls_error *err);

typedef struct ls_process_args {
    const float *logits; /* [rows][vocab] */
    int64_t rows, vocab;
    const ls_sampling *sampling; /* [rows] */
    const uint8_t *mask;         /* [rows]: 0 leaves a row alone; NULL takes all */
    float *out;                  /* [rows][vocab]; may be logits */
    int64_t *kept;               /* [rows], written where the mask takes the row; NULL: not asked for */
    int32_t *sort_space;         /* [rows][2 vocab] */
} ls_process_args;

ls_status ls_process_check(const ls_process_args *args, ls_error *err);

typedef struct ls_sample_args {
    const float *processed; /* [rows][vocab] */
    int64_t rows, vocab;
    const int64_t *kept;         /* [rows], of the processing */
    const ls_sampling *sampling; /* [rows] */
    const ls_draw *draws;        /* [rows] */
    int64_t *token;              /* [rows]; -1 where nothing is kept */
} ls_sample_args;

ls_status ls_sample_check(const ls_sample_args *args, ls_error *err);

#endif
