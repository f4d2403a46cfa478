/* Teacher-forced log-probabilities: the training forward's view of given sequences. */
#ifndef LS_MODEL_SCORE_H
#define LS_MODEL_SCORE_H

#include "model/head.h"
#include "model/supports.h"

/* Where a sequence's supports go: row i, from row `begin` on, becomes row `row` + i of list, which does not know it
 * yet. list NULL: nobody wants them. */
typedef struct ls_score_supports {
    ls_supports *list; /* borrowed */
    int64_t row, begin;
} ls_score_supports;

/* One sequence to score: logprob[i] is of tokens[i + 1] given tokens[0..i], n_tokens - 1 of them. */
typedef struct ls_score_item {
    const int32_t *tokens;
    int64_t n_tokens;
    ls_logprob_of of;
    ls_sampling sampling;       /* used when of is processed */
    float *logprob;             /* [n_tokens - 1] */
    ls_score_supports supports; /* of processed ones */
} ls_score_item;

typedef struct ls_score_opts {
    ls_dtype dtype; /* of activations */
    int64_t batch;  /* sequences packed into one forward */
    int64_t chunk;  /* tokens of a sequence in one forward; 0 takes all */
    int64_t page_tokens;
    int64_t rows; /* tokens in one forward of several sequences, at most; 0: as many as `batch` has */
} ls_score_opts;

/* Scores items, those of like length together, the longest first: an op with state takes as long as the longest
 * sequence of a forward. Memory is that of the largest forward. No option and no order changes a bit of the result. A
 * token without a log-probability (NaN, op/logprob.h) is an error that names item and token, counted from 0. */
ls_status ls_score(const ls_model *model, ls_device *device, const ls_score_opts *opts, ls_score_item *items,
                   int64_t n_items, ls_error *err);
/* The same; progress is told after every batch how many items are scored, unless it is NULL. */
typedef void (*ls_score_progress)(void *context, int64_t n_done, int64_t n_items);
ls_status ls_score_watched(const ls_model *model, ls_device *device, const ls_score_opts *opts, ls_score_item *items,
                           int64_t n_items, ls_score_progress progress, void *context, ls_error *err);

#endif
