/* Teacher-forced log-probabilities: the training forward's view of given sequences. */
#ifndef LS_MODEL_JAMBA_SCORE_H
#define LS_MODEL_JAMBA_SCORE_H

#include "model/jamba.h"
#include "op/sample.h"

/* Which distribution a recorded log-probability is of: the model's own (raw, temperature 1, all tokens), or the one
 * that was sampled from (processed: temperature, top-k, top-p and min-p applied). */
typedef enum ls_logprob_of { LS_LOGPROB_RAW = 0, LS_LOGPROB_PROCESSED = 1 } ls_logprob_of;

/* One sequence to score: logprob[i] is of tokens[i + 1] given tokens[0..i], n_tokens - 1 of them. */
typedef struct ls_score_item {
    const int32_t *tokens;
    int64_t n_tokens;
    ls_logprob_of of;
    ls_sampling sampling; /* used when of is processed */
    float *logprob;       /* [n_tokens - 1] */
} ls_score_item;

typedef struct ls_score_opts {
    ls_dtype dtype; /* of activations */
    int64_t batch;  /* sequences packed into one forward */
    int64_t chunk;  /* tokens of a sequence in one forward; 0 takes all */
    int64_t page_tokens;
} ls_score_opts;

/* Scores items in order, batch by batch. No option changes a bit of the result. */
ls_status ls_score(const ls_jamba *model, ls_queue *queue, const ls_score_opts *opts, ls_score_item *items,
                   int64_t n_items, ls_error *err);

/* Log-probabilities of targets [n] from rows x [n][H]; what both rollout and scoring use for every token they report.
 * workspace holds logits [n][V] floats and ints [n][2 V] when any of the rows is processed. A processed row whose kept
 * set lacks the target gives -inf. */
typedef struct ls_head_row {
    int32_t target;
    ls_logprob_of of;
    const ls_sampling *sampling;
} ls_head_row;

ls_status ls_head_logprob(ls_queue *queue, float *logits, int64_t vocab, const ls_head_row *rows, int64_t n,
                          int64_t *targets, int32_t *sort_space, float *logprob, ls_error *err);

#endif
