/* The one thread that drives the engine, and what other threads see of it.
 *
 * A client's request (ls_ask) becomes a group of samples, each a request of the engine. Groups come in through a
 * bounded queue; between two ticks the engine's thread takes them in, cancels those that nobody waits for, swaps
 * weights, and publishes what the tick drew. Whoever reads a group holds the lock and reads what is published: tokens
 * below n_public, which are never written again.
 *
 * Threads: ls_work_* may be called from any, but for create and free. wake callbacks come from the engine's thread,
 * with the lock held; they must be short and must not call ls_work_*. */
#ifndef LS_SERVE_WORK_H
#define LS_SERVE_WORK_H

#include <pthread.h>

#include "rollout/engine.h"
#include "rollout/sight.h"
#include "serve/serve_ask.h"
#include "text/stop.h"

typedef struct ls_worker ls_worker;
typedef struct ls_group ls_group;

typedef struct ls_completion {
    ls_group *group;
    ls_request request; /* the engine's while live */
    ls_stop_state stop_state;
    int32_t *completion;
    float *logprob, *prompt_logprob;
    uint64_t *weights;
    ls_sights sights, prompt_sights; /* rows: position - n_prompt; position - 1 */
    ls_error look_error;
    int32_t stop_id;                /* the token that ended it, or -1: a text did */
    bool ended_by_id, ended_by_eos; /* eos: the model's own end, not the request's */
    /* Published. */
    int64_t n_public;
    ls_finish finish;           /* LS_FINISH_NONE while it goes on */
    uint64_t version;           /* of the weights at the end: prompt_logprob is of these */
    double first_s, last_s;     /* clock at the first token and at the end */
    struct ls_completion *next; /* of the live ones */
} ls_completion;

struct ls_group {
    ls_ask *ask;
    ls_worker *work;
    ls_sampling sampling; /* with the seed that counts */
    ls_stop *stop;
    ls_completion *samples; /* [n_samples], by (prompt, completion) */
    int64_t n_samples, n_done;
    bool is_cancelled, is_finished;
    int64_t holders;        /* who must ls_group_release it */
    double born_s, woken_s; /* clock */
    int64_t created;        /* seconds since 1970 */
    char name[48];          /* "cmpl-..", unique */
    uint64_t number;
    void (*wake)(void *context); /* something was published, or it is finished; NULL: nobody waits */
    void *wake_context;
    struct ls_group *next, *previous;
};

typedef struct ls_work_opts {
    const ls_model *model;
    ls_device *device;
    ls_engine_opts engine;
    const ls_tokenizer *tokenizer; /* or NULL */
    int32_t eos[LS_EOS_MAX];       /* of the first model: a swap leaves them as they are */
    int64_t n_eos;
    int64_t queue_max;     /* samples that may be unfinished beside those that run */
    double stream_seconds; /* at most so often is a stream woken between its first token and its end */
    uint64_t version;      /* of the model */
    uint64_t seed;         /* of requests without one, with their number */
} ls_work_opts;

ls_status ls_work_create(ls_worker **out, const ls_work_opts *opts, ls_error *err);
/* Cancels what is unfinished, ends the thread, frees the engine. No group may be held any more. */
void ls_work_free(ls_worker *work); /* accepts NULL */

/* Queues a group for the ask, which it takes over whatever the result. LS_ERR_CAPACITY with *is_full: there is no room
 * now. The caller holds the group until ls_group_release. */
ls_status ls_work_submit(ls_group **out, ls_worker *work, ls_ask *ask, const ls_ask_limits *limits,
                         void (*wake)(void *context), void *wake_context, bool *is_full, ls_error *err);
/* Nobody wants it any more: it is cancelled if it still runs. */
void ls_group_release(ls_group *group);
/* Cancels a group that is still held; it will finish soon. */
void ls_group_cancel(ls_group *group);
/* Waits until it is finished. */
void ls_group_wait(ls_group *group);
void ls_work_lock(ls_worker *work);
void ls_work_unlock(ls_worker *work);

/* ---- what operators do ---- */

typedef enum ls_pause { LS_PAUSE_NONE, LS_PAUSE_KEEP, LS_PAUSE_WAIT, LS_PAUSE_ABORT } ls_pause;
/* keep: everything stays where it is. wait: returns when all that was taken in is done; what comes meanwhile waits.
 * abort: all that is unfinished is cancelled. Until ls_work_resume nothing new runs. */
void ls_work_pause(ls_worker *work, ls_pause how);
void ls_work_resume(ls_worker *work);
bool ls_work_is_paused(ls_worker *work);
/* Cancels a request by the name that the client gave it or that it was answered under; "" is all. Returns how many. */
int64_t ls_work_abort(ls_worker *work, const char *name);

/* Swaps the weights between two ticks; returns when that is done. *old is the model that was. */
ls_status ls_work_swap(ls_worker *work, const ls_model *model, uint64_t version, const ls_model **old, ls_error *err);
/* Empties the prefix cache, between two ticks. */
ls_status ls_work_flush(ls_worker *work, ls_error *err);

typedef struct ls_work_view {
    ls_engine_stats engine;
    ls_engine_plan plan;
    int64_t running, waiting; /* samples: on a slot; not yet */
    int64_t groups, finished_stop, finished_length, finished_cancel, finished_error, refused_full;
    int64_t prompt_tokens;
    uint64_t version;
    bool paused, failed;
    ls_error failure;
    double first_sum, whole_sum; /* seconds to the first token and to the end, of finished samples */
    int64_t first_n, whole_n;
    int64_t first_bucket[16], whole_bucket[16]; /* not cumulative; ls_work_buckets; the last is beyond */
} ls_work_view;
enum { LS_WORK_BUCKETS = 15 };
extern const double ls_work_buckets[LS_WORK_BUCKETS]; /* upper ends, in seconds */
void ls_work_look(ls_worker *work, ls_work_view *out);

#endif
