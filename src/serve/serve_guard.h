/* What stands between clients and the HTTP library: a thread that owns the sockets of clients and hands the library the
 * requests of each over a pair of sockets, one request at a time, each held to its frame (serve_frame.h) before the
 * library sees the last byte of its head. What is no request is answered here, once, and its connection ends.
 *
 * The library of Debian 12 takes a lone LF or CR for the end of a line, so that it finds other requests in the same
 * bytes than a proxy before it; it has no option against that.
 *
 * A client that ends its own side still reads: its request is answered. One that closed its connection sends the same
 * FIN. TCP tells them apart by what they do with bytes that come: the closed one resets. So whoever ends his side while
 * his request is not answered yet gets an interim reply, 100 Continue, which clients of HTTP/1.1 pass over, and is gone
 * if he resets. HTTP/1.0 knows no interim replies: there, the first bytes of the answer tell. */
#ifndef LS_SERVE_SERVE_GUARD_H
#define LS_SERVE_SERVE_GUARD_H

#include <stdio.h>

#include "base/status.h"

typedef struct ls_guard ls_guard;

typedef struct ls_guard_opts {
    int64_t connections_max;
    double idle_seconds; /* for the whole head of a connection's first request */
    /* Gives the library its end of a pair; false: it does not want it, and has closed it. */
    bool (*hand_over)(void *context, int fd);
    void (*say_error)(FILE *out, int status, const char *why); /* the body of an answer */
    void (*on_connection)(void *context, int64_t more);        /* 1 or -1 */
    void (*on_refusal)(void *context, int status);             /* 408: time was up */
    void *context;
} ls_guard_opts;

/* Takes over the socket that listens, also where it fails. Callbacks come from the guard's thread. */
ls_status ls_guard_start(ls_guard **out, int listener, const ls_guard_opts *opts, ls_error *err);
/* The library has sent its answer to the request on its end `fd`: the connection's next one may come. Any thread. */
void ls_guard_answered(ls_guard *guard, int fd);
/* Listens no more. */
void ls_guard_quiesce(ls_guard *guard);
/* Hands nothing over any more: when it returns, the library may be stopped. */
void ls_guard_detach(ls_guard *guard);
/* Ends, once the library has closed its ends: sends what is left, for a short while. */
void ls_guard_free(ls_guard *guard); /* accepts NULL */

#endif
