/* Choosing the next token from a row of logits, independent of batch, slot and arrival.
 *
 * z = logit * inv_t as in logprob.h. The kept set starts as every entry with z > -inf and shrinks in this order; ties
 * are always broken in favour of the lower token id: top_k > 0:  the top_k largest z. top_p < 1:  in order of
 * descending z, the shortest prefix, at least one token, whose sum of exp(z - max), an ascending chain in that order,
 * reaches top_p times the same chain over the whole set. min_p > 0:  tokens with exp(z - max) >= min_p. temperature 0
 * is greedy: the largest logit, the lower id among equals. Otherwise Gumbel-max (Maddison et al. 2014,
 * arXiv:1411.0030): the kept token with the largest z + g, g = -log(-log(u)), u = ((word >> 9) + 0.5) * 2^-23, word
 * number id % 4 of Philox(key = seed; counter = id / 4, position, sample, prompt); lower id among equals. position is
 * the index in the whole sequence of the token being drawn. */
#ifndef LS_OP_SAMPLE_H
#define LS_OP_SAMPLE_H

#include "dev/queue.h"

typedef struct ls_sampling {
    float temperature; /* >= 0; 0 is greedy */
    int64_t top_k;     /* 0 keeps all */
    float top_p;       /* (0, 1]; 1 keeps all */
    float min_p;       /* [0, 1]; 0 keeps all */
    uint64_t seed;
} ls_sampling;

typedef struct ls_draw {
    uint32_t prompt, sample, position;
} ls_draw;

/* Checks the ranges above; the error names the field. */
ls_status ls_sampling_check(const ls_sampling *sampling, ls_error *err);

/* The processed logits: out[i] = z of kept tokens, -inf for the others (greedy: z = logit, all above -inf are kept).
 * workspace holds 2 * vocab int32. out may be logits. Returns the number kept; 0 when no z exceeds -inf, or a z is NaN
 * or +inf (a finite logit times inv_t may be), and then out holds nothing to draw from. */
int64_t ls_sampling_process(ls_isa isa, float *out, const float *logits, int64_t vocab, const ls_sampling *sampling,
                            int32_t *workspace);

/* Token for a row of processed logits; -1 when nothing is kept. */
int32_t ls_sample(ls_isa isa, const float *processed, int64_t vocab, const ls_sampling *sampling, const ls_draw *draw);

#endif
