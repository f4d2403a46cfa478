/* Requests to web servers, many at a time, with retries. Who sends them (rewards, rollouts) says where each goes, what
 * it carries and what becomes of its answer. Inside src/rl only. */
#ifndef LS_NET_HTTP_POOL_H
#define LS_NET_HTTP_POOL_H

#include <stdatomic.h>
#include <stdio.h>

#include "base/status.h"

/* One request of a run, numbered from 0. Functions other than note end the run where they do not return LS_OK. */
typedef struct ls_http_user {
    void *context;
    const char *(*url)(void *context, int64_t i);
    /* Its body, written anew for every try. NULL: the requests are GETs. */
    ls_status (*write)(void *context, int64_t i, FILE *body, ls_error *err);
    /* A 2xx answer, NUL-terminated, valid during the call. */
    ls_status (*take)(void *context, int64_t i, char *answer, int64_t bytes, ls_error *err);
    /* It will not be sent again. why is the sentence of the last try; answer what a server said besides its status, or
     * NULL. */
    ls_status (*fail)(void *context, int64_t i, const char *why, const char *answer, int64_t bytes, int64_t tries,
                      ls_error *err);
    /* A try failed, and another one will follow; NULL: nobody wants to know. */
    void (*note)(void *context, int64_t i, const char *why);
    /* Of requests that come while others are sent; look NULL: all are there. It is called again and again, also when
     * its descriptor can be read, and sees what has come; is_there says of which requests all has. */
    ls_status (*look)(void *context, ls_error *err);
    bool (*is_there)(void *context, int64_t i);
    int look_fd;
    const atomic_bool *is_left; /* looked at some times a second: once it is set the run ends with an error. Or NULL */
} ls_http_user;

/* What could not be made, ran out of time or was answered 408, 429 or 5xx is sent again, after backoff_s, twice that,
 * and so on up to 10 seconds: at most `retries` times, or, where retries is negative, until no request of the run has
 * been answered for patience_s. */
typedef struct ls_http_opts {
    const char *const *headers; /* [n_headers] as "Name: value"; copied */
    int64_t n_headers;
    int64_t concurrency, retries;
    double timeout_s; /* of one try */
    double backoff_s, patience_s;
} ls_http_opts;

typedef struct ls_http_pool ls_http_pool;

ls_status ls_http_pool_open(ls_http_pool **out, const ls_http_opts *opts, ls_error *err);
void ls_http_pool_close(ls_http_pool *pool); /* accepts NULL */
/* Sends requests 0..n and returns when all are answered or have failed. *resent (or NULL) grows by what was sent again.
 * Connections stay open from run to run. Several threads may run a pool at a time, at most LS_HTTP_RUNS_MAX: together
 * they have its concurrency, the run that began first before others. One of them then calls the functions of all users,
 * one call at a time. */
#define LS_HTTP_RUNS_MAX 32
ls_status ls_http_pool_run(ls_http_pool *pool, int64_t n, const ls_http_user *user, int64_t *resent, ls_error *err);
/* Whether a URL is one that a pool can be given. */
bool ls_http_is_url(const char *url);

#endif
