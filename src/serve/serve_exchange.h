/* One request and its reply, from its header to its end, as serve_http.c (connections, headers, bodies, threads beside)
 * and serve_exchange.c (what becomes of a whole body) see it. These two are the only ones that know the HTTP library.
 *
 * A connection whose request waits is suspended: parked. Whoever has news for it wakes it, once or more often, before
 * or after it is parked; news that come before are kept, so that none is lost and no connection is resumed twice. While
 * an errand or the control thread has it, it is busy: nobody else writes to it, and news wait until it is given back.
 *
 * Locks: `lock` of ls_http guards lists and counts there and is taken before the work's lock, never inside it;
 * park_lock is inside both; the library's own lock is innermost. */
#ifndef LS_SERVE_EXCHANGE_H
#define LS_SERVE_EXCHANGE_H

#include <microhttpd.h>

#include "serve/serve_crew.h"
#include "serve/serve_guard.h"
#include "serve/serve_state.h"

enum { LS_DAEMONS_MAX = 64 };

/* A connection, from its beginning to its end: the library's end of a pair of sockets. */
typedef struct ls_peer {
    int fd;
    double deadline; /* clock; 0: none */
    struct ls_peer *next, *previous;
} ls_peer;

/* What is being done with a request whose body is there. */
typedef enum ls_exchange_step {
    LS_STEP_BODY, /* it is not all there */
    LS_STEP_READ, /* the crew makes it a request of the engine */
    LS_STEP_RUN,  /* the engine has it */
    LS_STEP_TELL, /* the crew makes its reply, or a part of a stream */
    LS_STEP_DO    /* the control thread, or the crew, does what it says; it may wait for the engine */
} ls_exchange_step;

typedef struct ls_exchange {
    struct ls_http *http;
    struct MHD_Connection *connection;
    ls_peer *link;
    const ls_route *route;
    ls_client *client;
    char *url;
    char *body, *mode, *clear_cache;
    int64_t body_bytes, body_cap;
    ls_holding holding; /* body, then reply */
    bool is_answered, is_gone;
    ls_exchange_step step;
    ls_errand errand;
    ls_work_wait wait;
    bool is_parked, is_busy, has_news; /* with park_lock; busy: an errand or the control thread has it */
    ls_group *group;
    int64_t n_samples, n_tokens; /* of the group that it had, for the log */
    char group_name[64];
    const char *finish;
    /* A reply that is not a stream: status 0 until it is there. */
    int status;
    char *reply;
    size_t reply_bytes;
    struct ls_exchange *next_control;
    /* A stream. */
    ls_sent *sent;
    char *chunk;
    size_t chunk_bytes, chunk_at;
    bool is_filled, is_broken, is_stream_done;
    double born;
    struct ls_exchange *next, *previous; /* of all that are open */
} ls_exchange;

struct ls_http {
    ls_server *server;
    ls_guard *guard;
    /* Each with a thread: the library has no pool for sockets from elsewhere. next_daemon is the guard's thread's. */
    struct MHD_Daemon *daemons[LS_DAEMONS_MAX];
    int64_t n_daemons, next_daemon;
    ls_crew *crew;
    char url[96];
    pthread_mutex_t lock;
    ls_peer *links;
    ls_exchange *exchanges;
    ls_exchange *controls, *last_control;
    pthread_cond_t control_news;
    pthread_t control_thread, watch_thread;
    bool has_control, has_watch, ends, drains;
    pthread_mutex_t park_lock;
    bool closes; /* with park_lock: nothing is parked any more */
};

void ls_http_count(struct ls_http *http, int64_t *counter, int64_t n);
/* Seconds from now until the connection ends; 0: it does not. */
void ls_exchange_deadline(ls_exchange *x, double seconds);

/* What was busy is so no longer, and goes on. It may be gone behind this. */
void ls_exchange_give_back(ls_exchange *x);
/* From now on nothing is parked; what is, and is not busy, goes on. */
void ls_http_send_away(struct ls_http *http);

enum MHD_Result ls_exchange_error(ls_exchange *x, int status, const char *message, bool closes);
/* The body is there. */
enum MHD_Result ls_exchange_begin(ls_exchange *x);
/* It was parked. */
enum MHD_Result ls_exchange_resume(ls_exchange *x);
/* Leaves an error to be sent. */
void ls_exchange_set_error(ls_exchange *x, int status, const char *message);
/* Its results are not needed any more. */
void ls_exchange_drop_group(ls_exchange *x);
/* Runs a handler into x->reply and x->status. */
void ls_exchange_handle(ls_exchange *x);
void ls_exchange_free(ls_exchange *x);

#endif
