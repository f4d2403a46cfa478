/* Requests to one server over libcurl. Owns one transfer for each request that may run at a time. */
#define _POSIX_C_SOURCE 200809L
#include "net/http_calls.h"

#include <curl/curl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum { ANSWER_BYTES_MAX = 64 << 20, URL_BYTES = 2048 };

typedef struct transfer {
    CURL *curl;
    ls_http_call *call; /* NULL: free */
    int64_t cap;        /* of the call's answer */
    double begun;
    bool too_long;
    char error[CURL_ERROR_SIZE];
} transfer;

struct ls_http {
    char url[URL_BYTES];
    struct curl_slist *headers;
    CURLM *multi;
    transfer *transfers; /* [2 * LS_HTTP_AT_ONCE_MAX] */
};

typedef struct run {
    ls_http *http;
    ls_http_call *calls;
    bool *begun; /* [n] */
    int64_t n, n_left, at_once, n_running, first;
    double start, timeout, end;
} run;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_code;
static void init_library(void) { global_code = curl_global_init(CURL_GLOBAL_DEFAULT); }

static size_t take_call_answer(char *data, size_t size, size_t count, void *context) {
    transfer *t = context;
    ls_http_call *c = t->call;
    const int64_t n = (int64_t)(size * count);
    t->too_long = c->answer_bytes + n > ANSWER_BYTES_MAX;
    if (t->too_long ||
        ls_array_grow((void **)&c->answer, &t->cap, c->answer_bytes + n + 1, 1, "answer of the server", NULL) != LS_OK)
        return 0;
    memcpy(c->answer + c->answer_bytes, data, (size_t)n);
    c->answer_bytes += n;
    c->answer[c->answer_bytes] = '\0';
    return (size_t)n;
}

static ls_status begin_call(run *r, transfer *t, ls_http_call *c, ls_error *err) {
    char url[2 * URL_BYTES];
    if (t->curl == NULL) t->curl = curl_easy_init();
    if (t->curl == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "request to the server");
    snprintf(url, sizeof url, "%s%s", r->http->url, c->path);
    curl_easy_reset(t->curl);
    t->call = c;
    t->cap = 0;
    t->too_long = false;
    t->error[0] = '\0';
    t->begun = ls_clock_seconds();
    curl_easy_setopt(t->curl, CURLOPT_PRIVATE, (char *)t);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->error);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, take_call_answer);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, r->http->headers);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    if (r->timeout > 0.0) curl_easy_setopt(t->curl, CURLOPT_TIMEOUT_MS, (long)(1000.0 * r->timeout) + 1);
    curl_easy_setopt(t->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    if (c->body != NULL) {
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, c->body);
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body_bytes);
    }
    if (curl_easy_setopt(t->curl, CURLOPT_URL, url) != CURLE_OK ||
        curl_multi_add_handle(r->http->multi, t->curl) != CURLM_OK) {
        t->call = NULL;
        return LS_FAIL(err, LS_ERR_NOMEM, "request to the server");
    }
    r->n_running += !c->is_extra;
    return LS_OK;
}

/* Takes a transfer out; what there is of an answer stays with its call. */
static void take_out(run *r, transfer *t) {
    ls_http_call *c = t->call;
    curl_multi_remove_handle(r->http->multi, t->curl);
    t->call = NULL;
    r->n_running -= !c->is_extra;
    r->n_left -= !c->is_extra;
}

static void conclude(run *r, transfer *t, CURLcode code) {
    ls_http_call *c = t->call;
    c->end = code == CURLE_OK                   ? LS_HTTP_ANSWERED
             : code == CURLE_OPERATION_TIMEDOUT ? LS_HTTP_TIMED_OUT
                                                : LS_HTTP_BROKEN;
    if (code == CURLE_OK)
        curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &c->http);
    else
        snprintf(c->why, sizeof c->why, "%.150s",
                 t->too_long           ? "the server's answer is too long"
                 : t->error[0] != '\0' ? t->error
                                       : curl_easy_strerror(code));
    take_out(r, t);
}

static bool is_over(const run *r) { return r->end > 0.0 && ls_clock_seconds() > r->end; }

/* Begins what may begin; *next: seconds until something else may. */
static ls_status begin_ready(run *r, double *next, ls_error *err) {
    const double now = ls_clock_seconds() - r->start;
    int64_t free_i = 0;
    if (is_over(r)) return LS_OK;
    while (r->first < r->n && r->begun[r->first]) r->first++;
    for (int64_t i = r->first; i < r->n; i++) {
        ls_http_call *c = &r->calls[i];
        if (r->begun[i]) continue;
        if (!c->is_extra && r->n_running >= r->at_once) break;
        if (c->start > now) {
            *next = c->start - now < *next ? c->start - now : *next;
            continue;
        }
        while (free_i < 2 * LS_HTTP_AT_ONCE_MAX && r->http->transfers[free_i].call != NULL) free_i++;
        if (free_i == 2 * LS_HTTP_AT_ONCE_MAX) break;
        LS_TRY(begin_call(r, &r->http->transfers[free_i], c, err));
        r->begun[i] = true;
    }
    return LS_OK;
}

/* Closes connections whose time has come. */
static void close_idle(run *r, double *next) {
    const double now = ls_clock_seconds();
    for (int64_t i = 0; i < 2 * LS_HTTP_AT_ONCE_MAX; i++) {
        transfer *t = &r->http->transfers[i];
        if (t->call == NULL || t->call->leave <= 0.0) continue;
        if (now - t->begun < t->call->leave) {
            if (t->call->leave - (now - t->begun) < *next) *next = t->call->leave - (now - t->begun);
            continue;
        }
        t->call->end = LS_HTTP_LEFT;
        snprintf(t->call->why, sizeof t->call->why, "given up, as was asked for");
        take_out(r, t);
    }
}

static ls_status run_all(run *r, ls_error *err) {
    while (r->n_left > 0) {
        double next = 0.5;
        int n_running, n_messages;
        CURLMsg *message;
        LS_TRY(begin_ready(r, &next, err));
        if (curl_multi_perform(r->http->multi, &n_running) != CURLM_OK)
            return LS_FAIL(err, LS_ERR_NOMEM, "requests to the server");
        while ((message = curl_multi_info_read(r->http->multi, &n_messages)) != NULL) {
            char *pointer;
            const CURLcode code = message->data.result;
            if (message->msg != CURLMSG_DONE) continue;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &pointer);
            conclude(r, (transfer *)(void *)pointer, code);
            next = 0.0; /* there is room for another */
        }
        close_idle(r, &next);
        if (is_over(r)) break; /* what was not begun stays so, and nobody waits for the rest */
        if (r->end > 0.0) next = fmin(next, r->end - ls_clock_seconds() + 1e-3);
        if (next > 0.0) curl_multi_poll(r->http->multi, NULL, 0, (int)(1000.0 * next) + 1, NULL);
    }
    return LS_OK;
}

ls_status ls_http_run(ls_http *http, ls_http_call *calls, int64_t n, int64_t at_once, double timeout, double end,
                      ls_error *err) {
    run r = {.http = http, .calls = calls, .n = n, .at_once = at_once, .timeout = timeout, .end = end};
    void *begun = NULL;
    ls_status status;
    if (at_once > LS_HTTP_AT_ONCE_MAX) r.at_once = LS_HTTP_AT_ONCE_MAX;
    LS_TRY_DONE(ls_array_alloc(&begun, n, sizeof *r.begun, "requests", err));
    r.begun = begun;
    r.start = ls_clock_seconds();
    for (int64_t i = 0; i < n; i++) {
        r.n_left += !calls[i].is_extra;
        calls[i].http = 0;
        calls[i].end = LS_HTTP_NOT_BEGUN;
        calls[i].answer = NULL;
        calls[i].answer_bytes = 0;
        snprintf(calls[i].why, sizeof calls[i].why, "not begun");
    }
    status = run_all(&r, err);
    for (int64_t i = 0; i < 2 * LS_HTTP_AT_ONCE_MAX; i++)
        if (http->transfers[i].call != NULL) {
            http->transfers[i].call->end = http->transfers[i].call->is_extra ? LS_HTTP_LEFT : LS_HTTP_CUT;
            take_out(&r, &http->transfers[i]);
        }
done:
    free(begun);
    return status;
}

void ls_http_call_deinit(ls_http_call *call) {
    free(call->answer);
    call->answer = NULL;
    call->answer_bytes = 0;
}

static ls_status add_header(ls_http *h, const char *text, ls_error *err) {
    struct curl_slist *headers = curl_slist_append(h->headers, text);
    if (headers == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "header");
    h->headers = headers;
    return LS_OK;
}

void ls_http_close(ls_http *http) {
    if (http == NULL) return;
    for (int64_t i = 0; http->transfers != NULL && i < 2 * LS_HTTP_AT_ONCE_MAX; i++)
        curl_easy_cleanup(http->transfers[i].curl);
    if (http->multi != NULL) curl_multi_cleanup(http->multi);
    curl_slist_free_all(http->headers);
    free(http->transfers);
    free(http);
}

ls_status ls_http_open(ls_http **out, const char *url, const char *key, ls_error *err) {
    ls_http *h = NULL;
    size_t bytes = strlen(url);
    char header[1024];
    ls_status status;
    *out = NULL;
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        return LS_FAIL(err, LS_ERR_ARG, "'%.200s' does not begin with http:// or https://", url);
    if (bytes >= URL_BYTES) return LS_FAIL(err, LS_ERR_ARG, "an address of %zu bytes", bytes);
    if (key != NULL && (strlen(key) > 900 || strpbrk(key, "\r\n") != NULL))
        return LS_FAIL(err, LS_ERR_ARG, "the key is not one line of at most 900 bytes");
    pthread_once(&once, init_library);
    if (global_code != CURLE_OK) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s", curl_easy_strerror(global_code));
    h = calloc(1, sizeof *h);
    if (h == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "server");
    while (bytes > 0 && url[bytes - 1] == '/') bytes--;
    memcpy(h->url, url, bytes);
    LS_TRY_DONE(add_header(h, "Content-Type: application/json", err));
    LS_TRY_DONE(add_header(h, "Expect:", err)); /* curl waits a second for the server's leave to send a large body */
    if (key != NULL) {
        snprintf(header, sizeof header, "Authorization: Bearer %s", key);
        LS_TRY_DONE(add_header(h, header, err));
    }
    LS_TRY_DONE(
        ls_array_alloc((void **)&h->transfers, 2 * LS_HTTP_AT_ONCE_MAX, sizeof *h->transfers, "transfers", err));
    h->multi = curl_multi_init();
    if (h->multi == NULL) status = LS_FAIL(err, LS_ERR_NOMEM, "transfers");
    *out = h;
done:
    if (status != LS_OK) {
        ls_http_close(h);
        *out = NULL;
    }
    return status;
}
