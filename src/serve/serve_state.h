/* What the parts of the server share. Private to src/serve.
 *
 *   serve_http.c     connections and their limits, bodies, suspension, streams
 *   serve_guard.c    clients' sockets; serve_frame.c: where requests end
 *   serve_routes.c   the table of paths, and what is answered at once
 *   serve_control.c  what operators do: weights, pauses, caches, checks
 *   serve_weights.c  weights from disk, and which are served
 *   serve_transfer.c weights over NCCL, which become weights on disk
 *   serve_changes.c  changes of weights, which become whole weights on disk
 *   serve_keys.c     who may do what
 *   serve_text.c     tokenizing for clients
 *   serve_metrics.c  Prometheus
 *   serve_ask.c, serve_reply.c, serve_part.c, serve_group.c, serve_work.c, serve_quota.c, serve_crew.c: see their
 *                    headers */
#ifndef LS_SERVE_STATE_H
#define LS_SERVE_STATE_H

#include <pthread.h>
#include <stdio.h>

#include "model/summary.h"
#include "serve/serve.h"
#include "serve/serve_changes.h"
#include "serve/serve_reply.h"
#include "serve/serve_transfer.h"

/* What a path does. */
typedef enum ls_route_kind {
    LS_ROUTE_ASK,
    LS_ROUTE_NOW,
    LS_ROUTE_TEXT,    /* by the crew: it takes as long as its body */
    LS_ROUTE_CONTROL, /* one at a time, on the control thread */
    LS_ROUTE_STEER    /* beside each other and the control thread, which none of them waits for */
} ls_route_kind;

/* A request as handlers see it. */
typedef struct ls_call {
    const char *body; /* NUL-terminated */
    int64_t body_bytes;
    const char *mode, *clear_cache; /* of the query, or NULL */
    ls_work_wait *wait;             /* of a call that steers: the reply is sent when it is over */
} ls_call;

/* Writes the reply and returns its HTTP status; with err filled where that is not 2xx and nothing was written. */
typedef int (*ls_handler)(ls_server *server, const ls_call *call, FILE *out, ls_error *err);

typedef struct ls_route {
    const char *path;
    bool post, get;
    ls_route_kind kind;
    ls_ask_kind ask;
    ls_handler handler;
    bool is_open;     /* asks for no key */
    const char *type; /* of the reply; NULL: JSON */
} ls_route;

typedef struct ls_http_counts {
    int64_t connections, requests, refused_400, refused_401, refused_403, refused_404, refused_429, failed_500,
        clients_gone, timed_out;
} ls_http_counts;

/* Weights that were opened, and where they lie. All zero: none. */
typedef struct ls_opened {
    ls_model *model;
    ls_remade *remade;            /* of changes; NULL: they lie in path */
    char path[LS_SERVE_PATH_MAX]; /* where they came from */
    bool is_other;                /* they were not opened: changes that begin with other weights than are served */
} ls_opened;

struct ls_server {
    ls_serve_opts opts;
    ls_worker *work;
    ls_device *load_device;                                /* beside the engine's; the control thread's */
    ls_model *model;                                       /* that is served; the control thread's */
    ls_opened staged;                                      /* to be served at /finish_weight_update */
    char path[LS_SERVE_PATH_MAX], kept[LS_SERVE_PATH_MAX]; /* where the served weights came from, and where they lie */
    ls_remade *remade;                                     /* what made them of changes, or NULL */
    ls_transfer *transfer;             /* weights over NCCL, once a trainer has been met; the control thread's */
    ls_transfer_shards *shards;        /* what has come of them since /start_weight_update */
    ls_transfer_shards *served_shards; /* the last of them that were served, on disk until the next ones are */
    bool is_updating;                  /* between /start_weight_update and /finish_weight_update */
    char version_name[128];            /* what the trainer calls the version, or "" */
    ls_tokenizer *tokenizer;
    ls_stop_tokens *stop_tokens; /* NULL where there is no tokenizer, or stop_error */
    ls_error stop_error;
    ls_chat *chat;
    ls_reply_about about;
    ls_ask_limits limits;
    char numerics[LS_NUMERICS_BYTES];
    ls_engine_opts engine;
    ls_client anonymous; /* who has no key */
    ls_client *keys;
    int64_t n_keys;
    bool asks_key, asks_admin; /* for a key at all; for one of --admin-key-file where weights or work are changed */
    ls_quota quota;
    int64_t started, n_parameters;
    const ls_route *routes; /* [n_routes] */
    int64_t n_routes;
    pthread_mutex_t count_lock;
    ls_http_counts counts;
    struct ls_http *http;
};

/* serve_http.c */
ls_status ls_http_start(struct ls_http **out, ls_server *server, ls_error *err);
void ls_http_stop(struct ls_http *http); /* accepts NULL */
const char *ls_http_url(const struct ls_http *http);

/* serve_keys.c */
/* A key on each line, and behind a space "priority=N", the least priority of its requests. */
ls_status ls_keys_read(ls_server *server, const char *path, bool is_admin, ls_error *err);
void ls_keys_free(ls_server *server);
/* 200, and whose request it is; 401 without a key that is known, 403 with one that may not do this. header: of
 * Authorization, or NULL. */
int ls_keys_check(ls_server *server, const ls_route *route, const char *header, ls_client **client);

/* serve_routes.c */
extern const ls_route ls_routes[];
extern const int64_t ls_n_routes;

/* serve_weights.c: on the control thread */
/* The weights to begin with, as ls_serve_first_weights finds them: where they came from and where they lie. */
ls_status ls_weights_begin(ls_server *server, uint64_t *version, ls_error *err);
/* Opens a directory's weights, with the served model's configuration where it has none; of changes, what they make of
 * the weights that are served. */
ls_status ls_weights_load(ls_server *server, ls_opened *out, const char *directory, ls_error *err);
void ls_opened_free(ls_opened *opened);
ls_status ls_weights_summarize(const ls_server *server, ls_stored_summary *out, ls_error *err);
/* Serves them as the next version (at least `wish`), told to the state file first; takes them over whatever happens. */
ls_status ls_weights_serve(ls_server *server, ls_opened *opened, uint64_t wish, ls_error *err);

/* serve_control.c */
int ls_control_pause(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_pause_sglang(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_resume(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_abort(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_abort_sglang(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_flush(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_init_transfer(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_start_update(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_update(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_finish_update(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_name_version(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_update_sglang(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_weight_info(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_weight_checker(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_check(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_control_unbuilt(ls_server *s, const ls_call *c, FILE *out, ls_error *err);

/* serve_text.c: work that grows with the body */
int ls_text_tokenize(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
int ls_text_detokenize(ls_server *s, const ls_call *c, FILE *out, ls_error *err);

/* serve_metrics.c */
int ls_metrics(ls_server *s, const ls_call *c, FILE *out, ls_error *err);
/* serve_openapi.c */
int ls_openapi(ls_server *s, const ls_call *c, FILE *out, ls_error *err);

#endif
