/* A client's request (ls_ask) as a group of samples, each a request of the engine: their memory, what it costs, and
 * what the engine calls while it draws. Memory of a sample's results is taken when the engine takes the sample, as
 * address space that is backed where tokens come, and counted (serve_quota.h) as they come. It never moves: tokens
 * below n_public are read by other threads without a lock. */
#ifndef LS_SERVE_GROUP_H
#define LS_SERVE_GROUP_H

#include "rollout/engine.h"
#include "rollout/logit_stats.h"
#include "serve/serve_ask.h"
#include "serve/serve_quota.h"
#include "text/stop.h"

typedef struct ls_group ls_group;

/* Somebody who sends requests: the owner of a key, or all who have none. The last two are the work's, with its lock. */
typedef struct ls_client {
    char *key;
    bool is_admin;          /* may change weights and stop work */
    int64_t least_priority; /* that its requests may have: none is more urgent */
    ls_account account;
    int64_t running;    /* samples in the engine */
    int64_t unfinished; /* samples */
} ls_client;

typedef struct ls_completion {
    ls_group *group;
    ls_request request; /* the engine's while live */
    ls_stop_state stop_state;
    ls_sparse memory; /* of these: */
    int32_t *completion, *kept;
    float *logprob, *prompt_logprob, *of_all, *of_kept, *of_model;
    uint64_t *weights;
    ls_logit_stats stats, prompt_stats; /* rows: position - n_prompt; position - 1 */
    ls_error look_error;
    int32_t stop_id;                /* the token that ended it, or -1: a text did */
    bool ended_by_id, ended_by_eos; /* eos: the model's own end, not the request's */
    int64_t n_counted;              /* tokens that the quota knows of */
    /* Published. */
    int64_t n_public;
    ls_finish finish;           /* LS_FINISH_NONE while it goes on */
    uint64_t version;           /* of the weights at the end: prompt_logprob is of these */
    double first_s, last_s;     /* clock at the first token and at the end */
    struct ls_completion *next; /* of the live ones */
} ls_completion;

/* What groups of one server share. */
typedef struct ls_group_shop {
    ls_logit_tools *tools; /* the engine's thread's */
    ls_logprob_of logprob_of;
    const ls_tokenizer *tokenizer; /* or NULL */
    ls_stop_tokens *stop_tokens;   /* or NULL: no request has stop texts */
    ls_error stop_error;           /* why */
    int32_t eos[LS_EOS_MAX];       /* of the first model: a swap leaves them as they are */
    int64_t n_eos;
    ls_quota *quota;
    uint64_t seed; /* of requests without one, with their number */
} ls_group_shop;

/* Called when something was published, or the group is finished; call NULL: nobody waits. */
typedef struct ls_group_wake {
    void (*call)(void *context);
    void *context;
} ls_group_wake;

struct ls_group {
    const ls_group_shop *shop;
    ls_ask *ask;
    struct ls_worker *work;
    ls_client *client;
    ls_holding holding;
    ls_sampling sampling; /* with the seed that counts */
    ls_stop *stop;
    ls_completion *samples;         /* [n_samples], by (prompt, completion) */
    int64_t n_samples, n_done;      /* n_done: ended */
    int64_t n_taken, n_running;     /* of them taken by the engine, in order; in it now */
    int64_t length_max;             /* of prompt and completion */
    int64_t token_bytes;            /* that a token's results and its part of the reply take */
    bool is_cancelled, is_finished; /* is_cancelled: nothing of it goes on */
    ls_error excess;                /* why it was ended for what it held; status LS_OK: it was not */
    int64_t holders;                /* who must release it */
    double born_s, woken_s;         /* clock */
    int64_t created;                /* seconds since 1970 */
    char name[48];                  /* "cmpl-..", unique */
    uint64_t number;
    ls_group_wake wake;
    ls_group *next, *previous; /* of the unfinished ones, in the order in which they came; next of the dead */
};

/* Takes the ask over whatever the result. Needs LS_ERR_CAPACITY to be told apart: *is_own as in ls_holding_take. */
ls_status ls_group_create(ls_group **out, const ls_group_shop *shop, ls_client *client, uint64_t number, ls_ask *ask,
                          const ls_ask_limits *limits, bool *is_own, ls_error *err);
void ls_group_free(ls_group *group); /* accepts NULL */
int64_t ls_ask_samples(const ls_ask *ask);

/* Memory of sample i's results, before the engine has it. */
ls_status ls_sample_open(ls_group *group, int64_t i, ls_error *err);
/* Counts the tokens that were drawn; the group's `excess` where they are too many. */
void ls_sample_count(ls_completion *sample);

/* Bytes of a reply, about: of n tokens that are told. With the work's lock, or of a finished group. */
int64_t ls_group_reply_bytes(const ls_group *group, int64_t n_tokens);

#endif
