/* What a row of logits tells beside the log-probability that the engine records: likeliest tokens, rank of the token,
 * the same token's log-probability under the other distribution, and the mass that truncation kept. Computed on the
 * host with the ops themselves, so every value has the bits of the contract (op/logprob.h); only for requests that
 * ask. Likeliest tokens alone are the engine's own, on its device (op/top.h). */
#ifndef LS_ROLLOUT_SIGHT_H
#define LS_ROLLOUT_SIGHT_H

#include "model/head.h"

enum { LS_SIGHT_MASK_MAX = 1024 }; /* kept tokens that are listed */

/* Working memory for one row at a time. */
typedef struct ls_sight_tools ls_sight_tools;
ls_status ls_sight_tools_create(ls_sight_tools **out, int32_t vocab, ls_error *err);
void ls_sight_tools_free(ls_sight_tools *tools); /* accepts NULL */

/* For the tokens of one sequence that are looked at: rows 0..n_rows. Arrays are NULL where they are not wanted. */
typedef struct ls_sights {
    int64_t n_rows, top;    /* top: alternatives of each row, fewer where the vocabulary is smaller */
    int32_t *top_id;        /* [n_rows][top], likeliest first, -1 behind the last; ties: the lower id */
    float *top_logprob;     /* [n_rows][top], of the distribution that is recorded */
    int64_t *rank;          /* [n_rows]: 1 is the likeliest */
    float *raw, *processed; /* [n_rows] */
    double *kept_mass;      /* [n_rows]: probability, at the temperature, of what truncation left to draw from */
    int64_t *kept;          /* [n_rows]: of how many tokens it is */
    int32_t *mask;          /* [n_rows][LS_SIGHT_MASK_MAX]: its ids, ascending, -1 behind the last */
} ls_sights;

/* wanted_top < 0: neither alternatives nor ranks. */
ls_status ls_sights_init(ls_sights *out, int64_t n_rows, int64_t wanted_top, bool distributions, bool mask,
                         ls_error *err);
void ls_sights_deinit(ls_sights *sights);
/* Looks at row `row`: the model's logits [V], in host memory, that gave `token`. Does not allocate. */
ls_status ls_sights_look(ls_sights *sights, ls_sight_tools *tools, int64_t row, int32_t token, const float *logits,
                         const ls_sampling *sampling, ls_logprob_of of, ls_error *err);

#endif
