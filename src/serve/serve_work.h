/* The one thread that drives the engine, and what other threads see of it.
 *
 * Groups (serve_group.h) come in through a bounded queue. Between two ticks the engine's thread gives the engine as
 * many samples as it has slots, cancels those that nobody waits for, swaps weights, and publishes what the tick drew. A
 * slot goes to the most urgent sample; among equals to the client with the fewest running ones, then to the group with
 * the fewest, then to the one that came first: so nobody's many requests keep out another's few. Whoever reads a group
 * holds the lock and reads what is published: tokens below n_public, which are never written again.
 *
 * A group that is finished or given up is freed where nobody walks lists: it lies among the dead until then.
 *
 * Threads: ls_work_* and ls_group_* may be called from any, but for create and free. wake callbacks come with the lock
 * held; they must be short and must not call ls_work_*. */
#ifndef LS_SERVE_WORK_H
#define LS_SERVE_WORK_H

#include <pthread.h>

#include "serve/serve_group.h"

typedef struct ls_worker ls_worker;

typedef struct ls_work_opts {
    const ls_model *model;
    ls_device *device;
    ls_engine_opts engine;
    ls_group_shop shop;    /* but for its tools, which the work makes */
    int64_t queue_max;     /* samples that may be unfinished beside those that run */
    double stream_seconds; /* at most so often is a stream woken between its first token and its end */
    uint64_t version;      /* of the model */
    bool one_client;       /* there are no others, so that clients need not be compared */
} ls_work_opts;

ls_status ls_work_create(ls_worker **out, const ls_work_opts *opts, ls_error *err);
/* Nothing new is taken, all is cancelled, and whoever waits for the engine is told that there is no more of it. Groups
 * that are held can still be read. */
void ls_work_end(ls_worker *work);
/* Cancels what is unfinished, ends the thread, frees the engine. No group may be held any more. */
void ls_work_free(ls_worker *work); /* accepts NULL */

/* Whether there is room for a client's request of n samples. */
bool ls_work_has_room(ls_worker *work, const ls_client *client, int64_t n);
/* Queues a group for the ask, which it takes over whatever the result. LS_ERR_CAPACITY with *is_full: there is no room
 * now; nothing was allocated for it. The caller holds the group until ls_group_release. */
ls_status ls_work_submit(ls_group **out, ls_worker *work, ls_client *client, ls_ask *ask, const ls_ask_limits *limits,
                         ls_group_wake wake, bool *is_full, ls_error *err);
/* Nobody wants it any more: it is cancelled if it still runs. */
void ls_group_release(ls_group *group);
/* Cancels a group that is still held; it will finish soon. */
void ls_group_cancel(ls_group *group);
/* Waits until it is finished. False: generation is paused, so that it will not be soon. */
bool ls_group_wait(ls_group *group);
void ls_work_lock(ls_worker *work);
void ls_work_unlock(ls_worker *work);

/* ---- what operators do ---- */

typedef enum ls_pause { LS_PAUSE_NONE, LS_PAUSE_KEEP, LS_PAUSE_WAIT, LS_PAUSE_ABORT } ls_pause;

/* Something that is done between two ticks. The caller's, until it is no longer pending or ls_work_forget. */
typedef struct ls_work_wait {
    void (*wake)(void *context);
    void *context;
    bool is_pending; /* with the lock */
    ls_error err;    /* status != LS_OK: why it did not come about */
    /* The work's. */
    ls_pause pause;
    bool flush;
    struct ls_work_wait *next;
} ls_work_wait;

/* keep: everything stays where it is. wait: all that was taken in goes on to its end; what comes meanwhile waits.
 * abort: all that is unfinished is cancelled. Until ls_work_resume nothing new runs. The wait ends when that is so,
 * when somebody pauses or resumes otherwise, and behind a flush of the prefix cache where it is asked for. */
void ls_work_pause(ls_worker *work, ls_pause how, bool flush, ls_work_wait *wait);
/* Empties the prefix cache, between two ticks. */
void ls_work_flush(ls_worker *work, ls_work_wait *wait);
bool ls_work_is_waiting(ls_worker *work, const ls_work_wait *wait);
void ls_work_forget(ls_worker *work, ls_work_wait *wait);
void ls_work_resume(ls_worker *work);
bool ls_work_is_paused(ls_worker *work);
/* Cancels a request by the name that the client gave it or that it was answered under; "" is all. Returns how many. */
int64_t ls_work_abort(ls_worker *work, const char *name);

/* Swaps the weights between two ticks; returns when that is done. *old is the model that was. One caller at a time. */
ls_status ls_work_swap(ls_worker *work, const ls_model *model, uint64_t version, const ls_model **old, ls_error *err);

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
