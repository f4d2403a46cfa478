/* The server: a model behind HTTP, in the dialects of docs/reference/http.md.
 *
 * One thread drives the engine (serve_work.h). Around it: a thread that owns clients' sockets (serve_guard.h); threads
 * of the HTTP library, which read requests and write replies and do nothing that takes long; a crew (serve_crew.h) that
 * makes bodies ls_asks and results replies; one thread for what operators do to weights, in order, one at a time; one
 * that watches connections: clients that are gone, time that is up.
 *
 * The HTTP library is GNU libmicrohttpd. Against libevent's evhttp, the other one in Debian that is well kept: a
 * connection can be suspended and resumed from any thread, which is what a request that waits for a GPU needs, where
 * evhttp wants every call on its loop's thread; a body arrives in pieces, so its limit holds before it is in memory;
 * memory of a connection is one pool of a given size, so headers without end cannot grow; a hook at both ends of a
 * connection lets slow clients be measured by the clock, where evhttp has a timeout between bytes only. It leaves to
 * us: refusing what is no request, to the byte, and telling a client that is gone from one that ended its side. Both
 * are the guard's, which owns the clients' sockets (serve_guard.h). */
#ifndef LS_SERVE_SERVE_H
#define LS_SERVE_SERVE_H

#include <stdio.h>

#include "rollout/engine.h"

typedef struct ls_serve_opts {
    const char *model_dir;      /* where tokenizer, chat template and weights are */
    const char *name;           /* of the model, to clients; NULL: model_dir as it was given */
    const char *host;           /* address to listen on; NULL: 127.0.0.1 */
    int64_t port;               /* 0: any that is free */
    const char *api_key_file;   /* a key on each line; NULL: none is asked for */
    const char *admin_key_file; /* likewise, for what changes weights or work; NULL: the others do for it */
    const char *tool_calls;     /* a format of text/tool_calls.h, "auto" or "off" */
    const char *state_file;     /* which weights are served, told to the next start; NULL: --model's always */
    int64_t queue;              /* completions that may wait beside those that run */
    int64_t connections;        /* at once */
    int64_t body_bytes;         /* of a request */
    int64_t idle_seconds;       /* until a connection has sent a whole header, or the next one; and between its reads */
    int64_t body_seconds;       /* until a body is there */
    int64_t drain_seconds;      /* that a stop waits for what is unfinished */
    int64_t reply_seconds;      /* until a client has read a reply that is not a stream */
    int64_t stream_ms;          /* at most so often does a stream send */
    int64_t http_threads;
    int64_t crew;           /* threads for bodies and replies */
    int64_t request_bytes;  /* of memory that a request and its answer may hold */
    int64_t key_bytes;      /* all those of a key */
    int64_t held_bytes;     /* all of them */
    int64_t least_priority; /* of requests, where their key says nothing else */
    bool has_seed;
    uint64_t seed; /* of requests without one; without has_seed, of the system's random numbers */
    bool log;      /* a line of JSON on standard error for each request */
} ls_serve_opts;

void ls_serve_opts_init(ls_serve_opts *opts);

typedef struct ls_server ls_server;

/* What computes: an opened model with its profile, and the engine's options (levers, dtype, logprob_of, length_max).
 * Two devices, which are one with two orders of calls: the engine's, and one on which the model was opened and others
 * will be while the engine runs. Devices are borrowed; the model is the server's, whatever ls_server_start returns. */
typedef struct ls_serve_engine {
    ls_model *model;
    ls_device *device, *load_device;
    ls_engine_opts opts;
} ls_serve_engine;

/* Opens what there is of tokenizer and chat template, starts the engine and listens. */
ls_status ls_server_start(ls_server **out, const ls_serve_opts *opts, const ls_serve_engine *engine, ls_error *err);
/* "http://127.0.0.1:8000" */
const char *ls_server_url(const ls_server *server);
/* Lines for people: the model that it began with, and what holds how much memory. */
void ls_server_tell(const ls_server *server, FILE *out);
/* Takes nothing new, waits for what is unfinished as long as the options say, cancels the rest and frees everything. */
void ls_server_stop(ls_server *server);

/* The weights to begin with: what the state file says, else *path is model_dir and *version 0. path has room for
 * LS_SERVE_PATH_MAX bytes. A state whose weights are gone is an error. */
enum { LS_SERVE_PATH_MAX = 4096 };
ls_status ls_serve_first_weights(const ls_serve_opts *opts, char *path, uint64_t *version, ls_error *err);

/* Opens the weights of a directory; one that holds nothing else takes configuration and text from the directory
 * `model`. */
ls_status ls_serve_open_weights(ls_model **out, ls_device *device, const char *directory, const char *model,
                                ls_error *err);

#endif
