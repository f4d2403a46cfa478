/* Rewards from a web server. Owns the transfers, as many as may run at a time, and what they send and receive. */
#define _POSIX_C_SOURCE 200809L
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "rl/reward_source.h"

#define BACKOFF_MAX_S 10.0
enum { ANSWER_BYTES_MAX = 64 << 20, CONCURRENCY_MAX = 1024, BATCH_MAX = 65536 };

/* Items begin..begin + n - 1, which are one request. */
typedef struct request {
    int64_t begin, n, tries;
    double ready_at;
    bool active, done;
} request;

typedef struct transfer {
    CURL *curl;
    request *request; /* NULL: free */
    char *body, *answer;
    size_t body_bytes;
    int64_t answer_bytes, answer_cap;
    bool too_long;
    char error[CURL_ERROR_SIZE];
} transfer;

typedef struct source {
    ls_reward base;
    char *url;
    struct curl_slist *headers;
    int64_t batch, concurrency, retries;
    double timeout_s, backoff_s;
    CURLM *multi;
    transfer *transfers; /* [concurrency] */
} source;

typedef struct ask {
    source *s;
    ls_reward_result *results;
    const ls_reward_item *items;
    request *requests;
    ls_reward_answer *answers; /* [batch], for one response */
    bool *done;
    int64_t n, n_requests, n_done, n_active, first; /* first: those before it are done */
} ask;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_code;
static void init_library(void) { global_code = curl_global_init(CURL_GLOBAL_DEFAULT); }

static size_t take_answer(char *data, size_t size, size_t count, void *context) {
    transfer *t = context;
    const int64_t n = (int64_t)(size * count);
    void *answer = t->answer;
    t->too_long = t->answer_bytes + n > ANSWER_BYTES_MAX;
    if (t->too_long ||
        ls_array_grow(&answer, &t->answer_cap, t->answer_bytes + n, 1, "answer of the server", NULL) != LS_OK)
        return 0;
    t->answer = answer;
    memcpy(t->answer + t->answer_bytes, data, (size_t)n);
    t->answer_bytes += n;
    return (size_t)n;
}

static ls_status write_body(const ask *a, transfer *t, const request *r, ls_error *err) {
    const int64_t first_id = a->s->base.first_id;
    ls_json_out json;
    FILE *stream = open_memstream(&t->body, &t->body_bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "request to the server");
    ls_json_init(&json, stream);
    if (a->s->batch == 1) {
        ls_reward_write_item(&json, first_id + r->begin, &a->items[r->begin]);
    } else {
        ls_json_begin_object(&json, NULL);
        ls_json_begin_array(&json, "items");
        for (int64_t i = r->begin; i < r->begin + r->n; i++) ls_reward_write_item(&json, first_id + i, &a->items[i]);
        ls_json_end_array(&json);
        ls_json_end_object(&json);
    }
    return fclose(stream) == 0 ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "request to the server");
}

static ls_status begin(ask *a, transfer *t, request *r, ls_error *err) {
    const ls_status status = write_body(a, t, r, err);
    if (status != LS_OK) return status;
    t->answer_bytes = 0;
    t->too_long = false;
    t->error[0] = '\0';
    curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, t->body);
    curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->body_bytes);
    if (curl_multi_add_handle(a->s->multi, t->curl) != CURLM_OK)
        return LS_FAIL(err, LS_ERR_NOMEM, "request to the server");
    if (r->tries++ > 0) a->s->base.tally.retried++;
    t->request = r;
    r->active = true;
    a->n_active++;
    return LS_OK;
}

/* Starts what may start. *next is when the first of those that must wait may. */
static ls_status begin_ready(ask *a, double *next, ls_error *err) {
    const double now = ls_clock_seconds();
    int64_t free_i = 0;
    *next = now + 1;
    while (a->first < a->n_requests && a->requests[a->first].done) a->first++;
    for (int64_t i = a->first; i < a->n_requests && a->n_active < a->s->concurrency; i++) {
        request *r = &a->requests[i];
        if (r->active || r->done) continue;
        if (r->ready_at > now) {
            if (r->ready_at < *next) *next = r->ready_at;
            continue;
        }
        while (a->s->transfers[free_i].request != NULL) free_i++;
        const ls_status status = begin(a, &a->s->transfers[free_i], r, err);
        if (status != LS_OK) return status;
    }
    return LS_OK;
}

static void release(ask *a, transfer *t) {
    curl_multi_remove_handle(a->s->multi, t->curl);
    free(t->body);
    t->body = NULL;
    if (t->request == NULL) return;
    t->request->active = false;
    t->request = NULL;
    a->n_active--;
}

static void fail_request(ask *a, const request *r, const char *text) {
    for (int64_t i = r->begin; i < r->begin + r->n; i++)
        if (!a->done[i]) ls_reward_fail(&a->results[i], text);
}

/* What the server said, to the items of its request and to no others. */
static void settle_answers(ask *a, const transfer *t, const request *r) {
    source *s = a->s;
    const int64_t first_id = s->base.first_id + r->begin;
    ls_error err;
    int64_t n = 1;
    ls_status status;
    if (s->batch == 1) {
        status = ls_reward_answer_parse(a->answers, t->answer, t->answer_bytes, "answer", &err);
        if (status == LS_OK && a->answers[0].id < 0) a->answers[0].id = first_id;
    } else {
        status = ls_reward_answers_parse(a->answers, &n, s->batch, t->answer, t->answer_bytes, "answer", &err);
    }
    if (status != LS_OK) {
        s->base.tally.unreadable++;
        fail_request(a, r, err.text);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (a->answers[i].id < first_id || a->answers[i].id >= first_id + r->n) a->answers[i].id = -1;
        ls_reward_settle(&s->base, a->results, a->done, a->n, &a->answers[i]);
    }
    fail_request(a, r, "the server's answer leaves this item out");
}

/* A finished transfer: answers, another try later, or a failure. */
static void conclude(ask *a, transfer *t, CURLcode code) {
    source *s = a->s;
    request *r = t->request;
    char text[LS_REWARD_ERROR_MAX];
    long http = 0;
    bool again;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
    if (code == CURLE_OK && http >= 200 && http < 300) {
        settle_answers(a, t, r);
        r->done = true;
    } else {
        if (code != CURLE_OK) {
            again = !t->too_long && code != CURLE_URL_MALFORMAT && code != CURLE_UNSUPPORTED_PROTOCOL;
            snprintf(text, sizeof text, "%.150s",
                     t->too_long           ? "the server's answer is too long"
                     : t->error[0] != '\0' ? t->error
                                           : curl_easy_strerror(code));
        } else {
            again = http == 408 || http == 429 || http >= 500;
            snprintf(text, sizeof text, "the server answered with status %ld", http);
        }
        ls_reward_note(&s->base, "request %lld: %s", (long long)(r - a->requests), text);
        r->done = !again || r->tries > s->retries;
        if (r->done) {
            const size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, ", %lld tries", (long long)r->tries);
            fail_request(a, r, text);
        } else {
            double wait = s->backoff_s;
            for (int64_t i = 1; i < r->tries && wait < BACKOFF_MAX_S; i++) wait *= 2;
            r->ready_at = ls_clock_seconds() + (wait < BACKOFF_MAX_S ? wait : BACKOFF_MAX_S);
        }
    }
    a->n_done += r->done;
    release(a, t);
}

static ls_status run(ask *a, ls_error *err) {
    while (a->n_done < a->n_requests) {
        double next;
        int n_running, n_left;
        CURLMsg *message;
        const ls_status status = begin_ready(a, &next, err);
        if (status != LS_OK) return status;
        if (curl_multi_perform(a->s->multi, &n_running) != CURLM_OK)
            return LS_FAIL(err, LS_ERR_NOMEM, "transfers of rewards");
        while ((message = curl_multi_info_read(a->s->multi, &n_left)) != NULL) {
            char *pointer;
            if (message->msg != CURLMSG_DONE) continue;
            const CURLcode code = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &pointer);
            conclude(a, (transfer *)(void *)pointer, code);
            next = 0; /* there is room for another */
        }
        const double wait_s = next - ls_clock_seconds();
        if (wait_s > 0) curl_multi_poll(a->s->multi, NULL, 0, (int)(1000 * wait_s) + 1, NULL);
    }
    return LS_OK;
}

static ls_status http_ask(ls_reward *reward, ls_reward_result *results, const ls_reward_item *items, int64_t n,
                          ls_error *err) {
    source *s = (source *)reward;
    ask a = {.s = s, .results = results, .items = items, .n = n, .n_requests = (n - 1) / s->batch + 1};
    void *requests = NULL, *answers = NULL, *done = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc(&requests, a.n_requests, sizeof *a.requests, "requests", err));
    LS_TRY_DONE(ls_array_alloc(&answers, s->batch, sizeof *a.answers, "answers", err));
    LS_TRY_DONE(ls_array_alloc(&done, n, sizeof *a.done, "rewards", err));
    a.requests = requests;
    a.answers = answers;
    a.done = done;
    for (int64_t i = 0; i < a.n_requests; i++) {
        a.requests[i].begin = i * s->batch;
        a.requests[i].n = n - i * s->batch < s->batch ? n - i * s->batch : s->batch;
    }
    status = run(&a, err);
    for (int64_t i = 0; i < s->concurrency; i++)
        if (s->transfers[i].request != NULL || s->transfers[i].body != NULL) release(&a, &s->transfers[i]);
done:
    free(requests);
    free(answers);
    free(done);
    return status;
}

static void http_close(ls_reward *reward) {
    source *s = (source *)reward;
    for (int64_t i = 0; s->transfers != NULL && i < s->concurrency; i++) {
        curl_easy_cleanup(s->transfers[i].curl);
        free(s->transfers[i].answer);
    }
    if (s->multi != NULL) curl_multi_cleanup(s->multi);
    curl_slist_free_all(s->headers);
    free(s->transfers);
    free(s->url);
    free(s);
}

/* All that stays the same from request to request. */
static ls_status prepare_transfer(const source *s, transfer *t, ls_error *err) {
    CURL *curl = t->curl = curl_easy_init();
    if (curl == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "reward server: transfer");
    curl_easy_setopt(curl, CURLOPT_PRIVATE, (char *)t);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, t->error);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, s->headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)(1000 * s->timeout_s) + 1);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    if (curl_easy_setopt(curl, CURLOPT_URL, s->url) != CURLE_OK)
        return LS_FAIL(err, LS_ERR_NOMEM, "reward server: transfer");
    return LS_OK;
}

static ls_status add_header(source *s, const char *text, ls_error *err) {
    struct curl_slist *headers = curl_slist_append(s->headers, text);
    if (headers == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "reward server: header");
    s->headers = headers;
    return LS_OK;
}

static ls_status check_options(const ls_reward_http_options *o, ls_error *err) {
    if (o->url == NULL || (strncmp(o->url, "http://", 7) != 0 && strncmp(o->url, "https://", 8) != 0))
        return LS_FAIL(err, LS_ERR_ARG, "reward server: '%.200s' does not begin with http:// or https://",
                       o->url != NULL ? o->url : "");
    if (o->batch < 1 || o->batch > BATCH_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "reward server: batch %lld is not in 1..%d", (long long)o->batch, BATCH_MAX);
    if (o->concurrency < 1 || o->concurrency > CONCURRENCY_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "reward server: concurrency %lld is not in 1..%d", (long long)o->concurrency,
                       CONCURRENCY_MAX);
    if (o->retries < 0 || o->retries > 100)
        return LS_FAIL(err, LS_ERR_ARG, "reward server: %lld retries are not in 0..100", (long long)o->retries);
    if (!(o->timeout_s > 0 && o->timeout_s <= 86400) || !(o->backoff_s >= 0 && o->backoff_s <= 86400))
        return LS_FAIL(err, LS_ERR_ARG, "reward server: timeout of %g s or back-off of %g s is out of range",
                       o->timeout_s, o->backoff_s);
    for (int64_t i = 0; i < o->n_headers; i++)
        if (strchr(o->headers[i], ':') == NULL || strpbrk(o->headers[i], "\r\n") != NULL)
            return LS_FAIL(err, LS_ERR_ARG, "reward server: header %lld is not 'Name: value'", (long long)i);
    return LS_OK;
}

void ls_reward_http_init(ls_reward_http_options *out) {
    *out = (ls_reward_http_options){.batch = 1, .concurrency = 8, .retries = 3, .timeout_s = 30, .backoff_s = 0.1};
}

ls_status ls_reward_http_open(ls_reward **out, const ls_reward_http_options *options, ls_error *err) {
    source *s = NULL;
    void *transfers = NULL;
    ls_status status = check_options(options, err);
    if (status != LS_OK) return status;
    pthread_once(&once, init_library);
    if (global_code != CURLE_OK)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "reward server: %s", curl_easy_strerror(global_code));
    s = calloc(1, sizeof *s);
    if (s == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "reward server");
    s->base.ask = http_ask;
    s->base.close = http_close;
    s->batch = options->batch;
    s->concurrency = options->concurrency;
    s->retries = options->retries;
    s->timeout_s = options->timeout_s;
    s->backoff_s = options->backoff_s;
    LS_TRY_DONE(ls_text_copy(&s->url, options->url, (int64_t)strlen(options->url), err));
    LS_TRY_DONE(add_header(s, "Content-Type: application/json", err));
    LS_TRY_DONE(add_header(s, "Expect:", err)); /* curl waits a second for the server's leave to send a large body */
    for (int64_t i = 0; i < options->n_headers; i++) LS_TRY_DONE(add_header(s, options->headers[i], err));
    s->multi = curl_multi_init();
    if (s->multi == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "reward server: transfers");
        goto done;
    }
    LS_TRY_DONE(ls_array_alloc(&transfers, s->concurrency, sizeof *s->transfers, "reward server: transfers", err));
    s->transfers = transfers;
    for (int64_t i = 0; i < s->concurrency; i++) LS_TRY_DONE(prepare_transfer(s, &s->transfers[i], err));
    *out = &s->base;
    s = NULL;
done:
    if (s != NULL) http_close(&s->base);
    return status;
}
