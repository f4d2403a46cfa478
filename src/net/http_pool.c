/* The pool owns the transfers, as many as may run at a time, and what they send and receive. */
#define _POSIX_C_SOURCE 200809L
#include "net/http_pool.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/relay.h"

#define BACKOFF_MAX_S 10.0
#define CONNECT_MAX_S 30.0
#define LOOK_S 0.2 /* between two looks at whether a signal stops the run */
enum { ANSWER_BYTES_MAX = 64 << 20, WHY_MAX = 200 };

typedef struct request {
    int64_t tries;
    double ready_at;
    bool active, done;
} request;

typedef struct running running;

typedef struct transfer {
    CURL *curl;
    running *of;      /* and */
    request *request; /* NULL: free */
    char *body, *answer;
    size_t body_bytes;
    int64_t answer_bytes, answer_cap;
    bool too_long;
    char error[CURL_ERROR_SIZE];
} transfer;

struct ls_http_pool {
    struct curl_slist *headers;
    int64_t concurrency, retries;
    double timeout_s, backoff_s, patience_s;
    ls_relay relay;
    /* Under its lock. Who has the relay alone calls curl, but to wake it. */
    CURLM *multi;
    transfer *transfers; /* [concurrency] */
    int64_t n_active;
    running *runs; /* the oldest first */
    int64_t n_runs;
};

struct running {
    running *next_run;
    ls_http_pool *pool;
    const ls_http_user *user;
    request *requests;                          /* [n] */
    int64_t n, n_done, n_active, first, resent; /* first: those before it are done */
    double heard_s;                             /* when there was an answer last */
    ls_status status;
    ls_error reason; /* where it is not LS_OK */
};

static bool run_is_over(const void *part) {
    const running *r = part;
    return r->status != LS_OK || r->n_done == r->n;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_code;
static void init_library(void) { global_code = curl_global_init(CURL_GLOBAL_DEFAULT); }

bool ls_http_is_url(const char *url) { return strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0; }

/* ---- one transfer ---- */

/* There is always room for a NUL. */
static size_t take_try_answer(char *data, size_t size, size_t count, void *context) {
    transfer *t = context;
    const int64_t n = (int64_t)(size * count);
    void *answer = t->answer;
    t->too_long = t->answer_bytes + n > ANSWER_BYTES_MAX;
    if (t->too_long || ls_array_grow(&answer, &t->answer_cap, t->answer_bytes + n + 1, 1, "answer", NULL) != LS_OK)
        return 0;
    t->answer = answer;
    memcpy(t->answer + t->answer_bytes, data, (size_t)n);
    t->answer_bytes += n;
    t->answer[t->answer_bytes] = '\0';
    return (size_t)n;
}

static ls_status write_body(const running *r, transfer *t, int64_t i, ls_error *err) {
    ls_status status;
    FILE *stream = open_memstream(&t->body, &t->body_bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "request to a server");
    status = r->user->write(r->user->context, i, stream, err);
    if (fclose(stream) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "request to a server");
    return status;
}

static void free_body(transfer *t) {
    free(t->body);
    t->body = NULL;
}

static ls_status begin_try(running *r, transfer *t, int64_t i, ls_error *err) {
    request *q = &r->requests[i];
    t->answer_bytes = 0;
    t->too_long = false;
    t->error[0] = '\0';
    if (r->user->write != NULL) {
        free_body(t); /* of a try that could not begin */
        LS_TRY(write_body(r, t, i, err));
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, t->body);
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->body_bytes);
    } else {
        curl_easy_setopt(t->curl, CURLOPT_HTTPGET, 1L);
    }
    if (curl_easy_setopt(t->curl, CURLOPT_URL, r->user->url(r->user->context, i)) != CURLE_OK ||
        curl_multi_add_handle(r->pool->multi, t->curl) != CURLM_OK)
        return LS_FAIL(err, LS_ERR_NOMEM, "request to a server");
    if (q->tries++ > 0) r->resent++;
    t->request = q;
    t->of = r;
    q->active = true;
    r->n_active++;
    r->pool->n_active++;
    return LS_OK;
}

static void release_transfer(transfer *t) {
    running *r = t->of;
    curl_multi_remove_handle(r->pool->multi, t->curl);
    free_body(t);
    t->request->active = false;
    t->request = NULL;
    t->of = NULL;
    r->n_active--;
    r->pool->n_active--;
}

static void fail_run(running *r, const ls_error *reason) {
    for (int64_t i = 0; i < r->pool->concurrency; i++)
        if (r->pool->transfers[i].of == r) release_transfer(&r->pool->transfers[i]);
    r->status = reason->status;
    r->reason = *reason;
}

/* ---- the run ---- */

/* Starts what may start of a run. *next becomes when the first of those that must wait may, if that is before. */
static ls_status begin_ready(running *r, double now, double *next, ls_error *err) {
    ls_http_pool *p = r->pool;
    int64_t free_i = 0;
    while (r->first < r->n && r->requests[r->first].done) r->first++;
    for (int64_t i = r->first; i < r->n && p->n_active < p->concurrency; i++) {
        request *q = &r->requests[i];
        if (q->active || q->done || (r->user->look != NULL && !r->user->is_there(r->user->context, i))) continue;
        if (q->ready_at > now) {
            if (q->ready_at < *next) *next = q->ready_at;
            continue;
        }
        while (p->transfers[free_i].request != NULL) free_i++;
        LS_TRY(begin_try(r, &p->transfers[free_i], i, err));
    }
    return LS_OK;
}

/* Why a try failed, and whether another one may help. */
static bool explain_failure(const transfer *t, CURLcode code, long http, char why[WHY_MAX]) {
    if (code == CURLE_OK) {
        snprintf(why, WHY_MAX, "the server answered with status %ld", http);
        return http == 408 || http == 429 || http >= 500;
    }
    snprintf(why, WHY_MAX, "%.150s",
             t->too_long           ? "the server's answer is too long"
             : t->error[0] != '\0' ? t->error
                                   : curl_easy_strerror(code));
    return !t->too_long && code != CURLE_URL_MALFORMAT && code != CURLE_UNSUPPORTED_PROTOCOL;
}

static bool has_patience(const running *r, const request *q) {
    if (r->pool->retries >= 0) return q->tries <= r->pool->retries;
    return ls_clock_seconds() - r->heard_s < r->pool->patience_s;
}

static void put_off(const running *r, request *q) {
    double wait = r->pool->backoff_s;
    for (int64_t i = 1; i < q->tries && wait < BACKOFF_MAX_S; i++) wait *= 2;
    q->ready_at = ls_clock_seconds() + (wait < BACKOFF_MAX_S ? wait : BACKOFF_MAX_S);
}

/* A finished transfer: an answer, another try later, or a failure. */
static ls_status conclude(transfer *t, CURLcode code, ls_error *err) {
    running *r = t->of;
    const ls_http_user *u = r->user;
    request *q = t->request;
    const int64_t i = q - r->requests;
    char why[WHY_MAX];
    long http = 0;
    ls_status status = LS_OK;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
    if (code == CURLE_OK) r->heard_s = ls_clock_seconds();
    if (code == CURLE_OK && http >= 200 && http < 300) {
        q->done = true;
        status = u->take(u->context, i, t->answer_bytes > 0 ? t->answer : (char[1]){""}, t->answer_bytes, err);
    } else {
        const bool again = explain_failure(t, code, http, why);
        q->done = !again || !has_patience(r, q);
        if (!q->done && u->note != NULL) u->note(u->context, i, why);
        if (q->done)
            status = u->fail(u->context, i, why, code == CURLE_OK && t->answer_bytes > 0 ? t->answer : NULL,
                             t->answer_bytes, q->tries, err);
        else
            put_off(r, q);
    }
    r->n_done += q->done;
    release_transfer(t);
    return status;
}

/* What has come since. While nothing is with the server it is not silent. */
static ls_status look(running *r, ls_error *err) {
    if (r->user->look == NULL) return LS_OK;
    if (r->n_active == 0) r->heard_s = ls_clock_seconds();
    return r->user->look(r->user->context, err);
}

/* Others may begin a run meanwhile. */
static void wait_for_more(ls_http_pool *p, double seconds) {
    struct curl_waitfd fds[LS_HTTP_RUNS_MAX];
    unsigned n = 0;
    if (seconds <= 0) return;
    for (const running *r = p->runs; r != NULL; r = r->next_run)
        if (r->user->look != NULL && !run_is_over(r))
            fds[n++] = (struct curl_waitfd){.fd = r->user->look_fd, .events = CURL_WAIT_POLLIN};
    pthread_mutex_unlock(&p->relay.lock);
    curl_multi_poll(p->multi, fds, n, (int)(1000 * seconds) + 1, NULL);
    pthread_mutex_lock(&p->relay.lock);
}

static void begin_all(ls_http_pool *p, double *next) {
    const double now = ls_clock_seconds();
    ls_error err;
    *next = now + LOOK_S;
    for (running *r = p->runs; r != NULL; r = r->next_run)
        if (!run_is_over(r) && (look(r, &err) != LS_OK || begin_ready(r, now, next, &err) != LS_OK)) fail_run(r, &err);
}

static void fail_runs(const ls_http_pool *p, const ls_error *reason) {
    for (running *r = p->runs; r != NULL; r = r->next_run)
        if (!run_is_over(r)) fail_run(r, reason);
}

/* Returns whether there was something. */
static bool conclude_all(ls_http_pool *p) {
    CURLMsg *message;
    int n_left;
    bool any = false;
    while ((message = curl_multi_info_read(p->multi, &n_left)) != NULL) {
        char *pointer;
        transfer *t;
        running *r;
        ls_error err;
        if (message->msg != CURLMSG_DONE) continue;
        const CURLcode code = message->data.result;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &pointer);
        t = (transfer *)(void *)pointer;
        r = t->of;
        if (conclude(t, code, &err) != LS_OK) fail_run(r, &err);
        any = true;
    }
    return any;
}

static bool any_waits(const ls_http_pool *p) {
    for (const running *r = p->runs; r != NULL; r = r->next_run)
        if (!run_is_over(r)) return true;
    return false;
}

static void give_up(const ls_http_pool *p) {
    ls_error err;
    for (running *r = p->runs; r != NULL; r = r->next_run) {
        const atomic_bool *is_left = r->user->is_left;
        if (run_is_over(r)) continue;
        if (is_left != NULL && atomic_load(is_left))
            (void)LS_FAIL(&err, LS_ERR_IO, "nobody waits for the server any more");
        else if (ls_interrupt_is_over(r->heard_s, ls_clock_seconds()))
            (void)LS_FAIL(&err, LS_ERR_IO, "a signal stops the run, and the server is silent");
        else
            continue;
        fail_run(r, &err);
    }
}

/* A step of all runs. */
static void take_step(void *conversation) {
    ls_http_pool *p = conversation;
    ls_error err;
    double next;
    int n_running;
    begin_all(p, &next);
    if (curl_multi_perform(p->multi, &n_running) != CURLM_OK) {
        (void)LS_FAIL(&err, LS_ERR_NOMEM, "transfers to a server");
        fail_runs(p, &err);
        return;
    }
    if (conclude_all(p)) next = 0; /* there is room for another */
    give_up(p);
    if (any_waits(p)) wait_for_more(p, next - ls_clock_seconds());
}

static void join(running *r) {
    ls_http_pool *p = r->pool;
    running **end = &p->runs;
    LS_ASSERT(p->n_runs < LS_HTTP_RUNS_MAX, "%lld runs at a time", (long long)p->n_runs + 1);
    while (*end != NULL) end = &(*end)->next_run;
    *end = r;
    p->n_runs++;
    curl_multi_wakeup(p->multi);
}

static void leave(const running *r) {
    running **at = &r->pool->runs;
    while (*at != r) at = &(*at)->next_run;
    *at = r->next_run;
    r->pool->n_runs--;
}

ls_status ls_http_pool_run(ls_http_pool *p, int64_t n, const ls_http_user *user, int64_t *resent, ls_error *err) {
    running r = {.pool = p, .user = user, .n = n, .heard_s = ls_clock_seconds()};
    void *requests = NULL;
    LS_TRY(ls_array_alloc(&requests, n, sizeof *r.requests, "requests", err));
    r.requests = requests;
    pthread_mutex_lock(&p->relay.lock);
    join(&r);
    ls_relay_run(&p->relay, take_step, p, run_is_over, &r);
    leave(&r);
    pthread_mutex_unlock(&p->relay.lock);
    if (resent != NULL) *resent += r.resent;
    if (r.status != LS_OK && err != NULL) *err = r.reason;
    free(requests);
    return r.status;
}

/* ---- opening ---- */

/* All that stays the same from request to request. */
static ls_status prepare_transfer(const ls_http_pool *p, transfer *t, ls_error *err) {
    CURL *curl = t->curl = curl_easy_init();
    const double connect_s = p->timeout_s < CONNECT_MAX_S ? p->timeout_s : CONNECT_MAX_S;
    if (curl == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "transfers to a server");
    curl_easy_setopt(curl, CURLOPT_PRIVATE, (char *)t);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, t->error);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_try_answer);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, p->headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)(1000 * p->timeout_s) + 1);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(1000 * connect_s) + 1);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    return LS_OK;
}

static ls_status add_header(ls_http_pool *p, const char *text, ls_error *err) {
    struct curl_slist *headers = curl_slist_append(p->headers, text);
    if (headers == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "header of a request");
    p->headers = headers;
    return LS_OK;
}

static ls_status open_pool(ls_http_pool *p, const ls_http_opts *opts, ls_error *err) {
    void *transfers = NULL;
    LS_TRY(add_header(p, "Content-Type: application/json", err));
    LS_TRY(add_header(p, "Expect:", err)); /* curl waits a second for the server's leave to send a large body */
    for (int64_t i = 0; i < opts->n_headers; i++) LS_TRY(add_header(p, opts->headers[i], err));
    if ((p->multi = curl_multi_init()) == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "transfers to a server");
    LS_TRY(ls_array_alloc(&transfers, p->concurrency, sizeof *p->transfers, "transfers to a server", err));
    p->transfers = transfers;
    for (int64_t i = 0; i < p->concurrency; i++) LS_TRY(prepare_transfer(p, &p->transfers[i], err));
    return LS_OK;
}

ls_status ls_http_pool_open(ls_http_pool **out, const ls_http_opts *opts, ls_error *err) {
    ls_http_pool *p;
    ls_status status;
    *out = NULL;
    pthread_once(&once, init_library);
    if (global_code != CURLE_OK) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s", curl_easy_strerror(global_code));
    if ((p = calloc(1, sizeof *p)) == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "transfers to a server");
    p->concurrency = opts->concurrency;
    p->retries = opts->retries;
    p->timeout_s = opts->timeout_s;
    p->backoff_s = opts->backoff_s;
    p->patience_s = opts->patience_s;
    ls_relay_init(&p->relay);
    if ((status = open_pool(p, opts, err)) == LS_OK)
        *out = p;
    else
        ls_http_pool_close(p);
    return status;
}

void ls_http_pool_close(ls_http_pool *p) {
    if (p == NULL) return;
    for (int64_t i = 0; p->transfers != NULL && i < p->concurrency; i++) {
        curl_easy_cleanup(p->transfers[i].curl);
        free(p->transfers[i].body);
        free(p->transfers[i].answer);
    }
    if (p->multi != NULL) curl_multi_cleanup(p->multi);
    curl_slist_free_all(p->headers);
    ls_relay_deinit(&p->relay);
    free(p->transfers);
    free(p);
}
