/* What a row of logits tells beside the log-probability that the engine records: likeliest tokens, the rank of the
 * token, and which tokens truncation kept. Read on the host from rows that the engine shows (ls_request.see), with the
 * ops themselves, so every value has the bits of the contract (op/logprob.h); only for requests that ask. What is one
 * number of a row comes from the engine's device instead (ls_request.of_all and its kind), and so do likeliest tokens
 * of an engine with `top` (op/top.h). */
#ifndef LS_ROLLOUT_LOGIT_STATS_H
#define LS_ROLLOUT_LOGIT_STATS_H

#include "base/mem.h"
#include "model/head.h"

enum { LS_STATS_MASK_MAX = 1024 }; /* kept tokens that are listed */

/* Working memory for one row at a time. */
typedef struct ls_logit_tools ls_logit_tools;
ls_status ls_logit_tools_create(ls_logit_tools **out, int32_t vocab, ls_error *err);
void ls_logit_tools_free(ls_logit_tools *tools); /* accepts NULL */

/* For the tokens of one sequence that are looked at: rows 0..n_rows. Arrays are NULL where they are not wanted. */
typedef struct ls_logit_stats {
    int64_t n_rows, top; /* top: alternatives of each row, fewer where the vocabulary is smaller */
    int32_t *top_id;     /* [n_rows][top], likeliest first, -1 behind the last; ties: the lower id */
    float *top_logprob;  /* [n_rows][top], of the distribution that is recorded */
    int64_t *rank;       /* [n_rows]: 1 is the likeliest */
    int32_t *mask;       /* [n_rows][LS_STATS_MASK_MAX]: ids of what truncation left, ascending, -1 behind the last */
    ls_sparse memory;    /* all of them: rows that were not looked at cost little or nothing */
} ls_logit_stats;

/* Bytes of a row. wanted_top < 0: neither alternatives nor ranks. */
int64_t ls_logit_stats_row_bytes(int64_t wanted_top, bool mask);
ls_status ls_logit_stats_init(ls_logit_stats *out, int64_t n_rows, int64_t wanted_top, bool mask, ls_error *err);
void ls_logit_stats_deinit(ls_logit_stats *stats);
/* Looks at row `row`, which gave `token`, in host memory: the model's logits [V] and what was drawn from, `processed`
 * [V], which may be NULL where no mask is wanted and `recorded`, one of the two, is not it. Does not allocate. */
ls_status ls_logit_stats_take(ls_logit_stats *stats, ls_logit_tools *tools, int64_t row, int32_t token,
                              const float *logits, const float *processed, const float *recorded, ls_error *err);

#endif
