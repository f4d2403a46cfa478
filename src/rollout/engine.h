/* The rollout engine: continuous batching of prompts into completions with log-probabilities. Owns all KV pages and
 * state slots. Its promise: batch, chunk, order of arrival, slot and page numbers never change a bit of a request's
 * result. */
#ifndef LS_ROLLOUT_ENGINE_H
#define LS_ROLLOUT_ENGINE_H

#include "model/jamba.h"
#include "model/jamba_score.h"

#define LS_BATCH_MAX 1024

typedef enum ls_finish { LS_FINISH_NONE = 0, LS_FINISH_STOP, LS_FINISH_LENGTH } ls_finish;
const char *ls_finish_name(ls_finish finish); /* "stop", "length" */

typedef struct ls_request {
    const int32_t *prompt;
    int64_t n_prompt;
    uint32_t prompt_i, sample_i; /* address the random draws; nothing else about the request does */
    int64_t max_tokens;
    /* Result. */
    int32_t *completion; /* [max_tokens], caller's */
    float *logprob;      /* [max_tokens], caller's */
    int64_t n_completion;
    ls_finish finish;
} ls_request;

typedef struct ls_engine_opts {
    ls_dtype dtype; /* of activations */
    int64_t batch;  /* sequences that run at once, 1..LS_BATCH_MAX */
    int64_t chunk;  /* prompt tokens of a sequence in one forward; 0 takes the whole prompt */
    int64_t page_tokens;
    ls_logprob_of logprob_of;
    ls_sampling sampling;
    const int64_t *order; /* [n_requests] permutation in which requests are admitted; NULL is ascending */
    const int32_t *slots; /* [batch] slot ids handed out first to last; NULL is 0, 1, ... */
    int64_t n_slots;      /* size of the slot pool; 0 is batch */
    const int32_t *stop;  /* [n_stop] token ids that end a completion (and are its last token) */
    int64_t n_stop;
    void (*progress)(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens); /* or NULL */
    void *progress_context;
} ls_engine_opts;

/* Runs all requests to their end. A prompt that is empty or has a token outside the vocabulary is an error that names
 * the request; nothing runs then. */
ls_status ls_engine_run(const ls_jamba *model, ls_queue *queue, const ls_engine_opts *opts, ls_request *requests,
                        int64_t n_requests, ls_error *err);

#endif
