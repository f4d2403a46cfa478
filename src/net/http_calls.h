/* Many requests to one server: so many at a time, begun at chosen moments, some of them given up on the way. */
#ifndef LS_NET_HTTP_CALLS_H
#define LS_NET_HTTP_CALLS_H

#include "base/status.h"

typedef struct ls_http ls_http;

enum { LS_HTTP_AT_ONCE_MAX = 256, LS_HTTP_WHY_BYTES = 160 };

/* How a request ended. */
typedef enum ls_http_end {
    LS_HTTP_NOT_BEGUN = 0,
    LS_HTTP_ANSWERED, /* with any status */
    LS_HTTP_TIMED_OUT,
    LS_HTTP_LEFT,  /* given up, as was asked for */
    LS_HTTP_CUT,   /* it was on its way when the end came */
    LS_HTTP_BROKEN /* no connection, or it was closed in the middle, or the answer is too long */
} ls_http_end;

/* What is asked is the caller's; what came of it is owned until ls_http_call_deinit. */
typedef struct ls_http_call {
    const char *path; /* behind the server's address: "/v1/models" */
    const char *body; /* JSON to be posted; NULL: GET */
    int64_t body_bytes;
    double start;  /* seconds behind the first call's beginning before which it is not begun */
    double leave;  /* seconds after its beginning at which the connection is closed; 0: never */
    bool is_extra; /* nobody waits for it, and it takes none of the places of the others */
    ls_http_end end;
    long http;    /* status of the answer; 0: none came, and why says what happened */
    char *answer; /* ends in NUL */
    int64_t answer_bytes;
    char why[LS_HTTP_WHY_BYTES];
} ls_http_call;

/* url: http:// or https://, perhaps with a path. key: for "Authorization: Bearer"; NULL: none. */
ls_status ls_http_open(ls_http **out, const char *url, const char *key, ls_error *err);
void ls_http_close(ls_http *http);
/* All calls, `at_once` of them at a time, in their order. Returns when those that are not extra have ended; extra ones
 * that still run are given up. timeout: seconds of each, 0: none. end: the moment of ls_clock_seconds after which none
 * is begun and those on their way are given up, 0: none. */
ls_status ls_http_run(ls_http *http, ls_http_call *calls, int64_t n, int64_t at_once, double timeout, double end,
                      ls_error *err);
void ls_http_call_deinit(ls_http_call *call);

#endif
