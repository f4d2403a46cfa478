/* Answers of a rollout server: one completion as POST /inference/v1/generate gives it with "lockstep". Whatever does
 * not say, token by token, what was asked for, is no completion: another address, other numerics, other weights. */
#ifndef LS_RECORD_ROLLOUT_JSON_H
#define LS_RECORD_ROLLOUT_JSON_H

#include "base/status.h"

/* What was asked for. */
typedef struct ls_rollout_asked {
    const char *numerics;   /* "exact/2/f32" */
    const char *logprob_of; /* "raw" or "processed" */
    uint64_t seed, version; /* of the draws; of the weights */
    uint32_t prompt, sample;
    int64_t max_tokens;
    int32_t vocab;
    bool is_recorded; /* its log-probabilities count: logprob_of must be right */
    bool is_weighed;  /* what truncation kept was asked for */
} ls_rollout_asked;

typedef struct ls_rollout_answer {
    int32_t *tokens; /* [max_tokens], the caller's, as the next three */
    float *logprobs;
    int32_t *kept;   /* NULL unless weighed */
    float *log_mass; /* the same */
    int64_t n;
    bool is_stopped; /* else the length ended it */
    int32_t slot;
    int64_t hit, preempted;
} ls_rollout_answer;

/* Errors begin with name and say which value is not as it should be. */
ls_status ls_rollout_answer_parse(ls_rollout_answer *out, const ls_rollout_asked *asked, const char *text,
                                  int64_t bytes, const char *name, ls_error *err);

/* What a server says of itself (GET /server_info). */
typedef struct ls_rollout_server {
    char numerics[64], logprob_of[16]; /* "raw", "processed" */
    int64_t length_max;
} ls_rollout_server;
ls_status ls_rollout_server_parse(ls_rollout_server *out, const char *text, int64_t bytes, const char *name,
                                  ls_error *err);
/* The version that weights got (POST /update_weights). */
ls_status ls_rollout_version_parse(uint64_t *out, const char *text, int64_t bytes, const char *name, ls_error *err);
/* The sentence of a refusal, {"error": {"message", "code"}}, on one line, or "". Returns its code, or 0. */
int64_t ls_rollout_refusal(char *out, int64_t room, const char *text, int64_t bytes);

#endif
