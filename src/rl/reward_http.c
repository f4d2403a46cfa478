/* Rewards from a web server. A request is some items; the pool (net/http_pool.h) sends it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/url.h"
#include "net/http_pool.h"
#include "rl/reward_source.h"

enum { CONCURRENCY_MAX = 1024, BATCH_MAX = 65536, URL_MAX = 2048 };

typedef struct source {
    ls_reward base;
    char *url;
    int64_t batch;
    ls_http_pool *pool;
} source;

/* Request i is items [i batch, i batch + batch), as far as there are some. */
typedef struct ask {
    source *s;
    ls_reward_asked *of;
    ls_reward_answer *answers; /* [batch], for one response */
    int64_t *there;            /* [requests] items of each that have come; NULL: all are there */
    int64_t n, n_there;
} ask;

static int64_t begin_of(const ask *a, int64_t i) { return i * a->s->batch; }
static int64_t end_of(const ask *a, int64_t i) {
    return a->n - begin_of(a, i) < a->s->batch ? a->n : begin_of(a, i) + a->s->batch;
}

static const char *url_of(void *context, int64_t i) {
    const ask *a = context;
    (void)i;
    return a->s->url;
}

static ls_status write_items(void *context, int64_t request, FILE *body, ls_error *err) {
    const ask *a = context;
    ls_json_out json;
    (void)err;
    ls_json_init(&json, body);
    if (a->s->batch == 1) {
        ls_reward_write_item(&json, a->of->q, request);
        return LS_OK;
    }
    ls_json_begin_object(&json, NULL);
    ls_json_begin_array(&json, "items");
    for (int64_t i = begin_of(a, request); i < end_of(a, request); i++) ls_reward_write_item(&json, a->of->q, i);
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    return LS_OK;
}

static void fail_items(ask *a, int64_t request, const char *text) {
    for (int64_t i = begin_of(a, request); i < end_of(a, request); i++)
        if (!a->of->done[i]) ls_reward_fail(&a->of->q->results[i], text);
}

/* What the server said, to the items of its request and to no others. */
static ls_status resolve_answers(void *context, int64_t request, char *answer, int64_t bytes, ls_error *ignored) {
    ask *a = context;
    source *s = a->s;
    const int64_t first_id = a->of->q->first_id + begin_of(a, request),
                  n_items = end_of(a, request) - begin_of(a, request);
    ls_error err;
    int64_t n = 1;
    ls_status status;
    (void)ignored;
    if (s->batch == 1) {
        status = ls_reward_answer_parse(a->answers, answer, bytes, "answer", &err);
        if (status == LS_OK && a->answers[0].id < 0) a->answers[0].id = first_id;
    } else {
        status = ls_reward_answers_parse(a->answers, &n, s->batch, answer, bytes, "answer", &err);
    }
    if (status != LS_OK) {
        a->of->q->counts.unreadable++;
        fail_items(a, request, err.text);
        return LS_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        if (a->answers[i].id < first_id || a->answers[i].id >= first_id + n_items) a->answers[i].id = -1;
        ls_reward_resolve(a->of, &a->answers[i]);
    }
    fail_items(a, request, "the server's answer leaves this item out");
    return LS_OK;
}

static ls_status fail_request(void *context, int64_t i, const char *why, const char *answer, int64_t bytes,
                              int64_t tries, ls_error *err) {
    char text[LS_REWARD_ERROR_MAX];
    (void)answer, (void)bytes, (void)err;
    snprintf(text, sizeof text, "%.150s, %lld tries", why, (long long)tries);
    fail_items(context, i, text);
    return LS_OK;
}

static void note(void *context, int64_t i, const char *why) {
    const ask *a = context;
    ls_reward_note(a->of->q, "request %lld: %s", (long long)i, why);
}

/* Items that have come since. */
static ls_status take_late(void *context, ls_error *err) {
    ask *a = context;
    const ls_reward_late *late = a->of->q->late;
    int64_t i;
    while (ls_feed_take(late->feed, &i)) {
        LS_TRY(late->complete(late->context, i, err));
        a->there[i / a->s->batch]++;
        a->n_there++;
    }
    if (a->n_there < a->n && ls_feed_is_over(late->feed))
        return LS_FAIL(err, LS_ERR_ARG, "rewards: %lld of %lld items came", (long long)a->n_there, (long long)a->n);
    return LS_OK;
}

static bool request_is_whole(void *context, int64_t i) {
    const ask *a = context;
    return a->there[i] == end_of(a, i) - begin_of(a, i);
}

static ls_status http_ask(ls_reward *reward, ls_reward_asked *asked, ls_error *err) {
    source *s = (source *)reward;
    ask a = {.s = s, .of = asked, .n = asked->q->n};
    const int64_t n_requests = (a.n - 1) / s->batch + 1;
    ls_http_user user = {.context = &a,
                         .url = url_of,
                         .write = write_items,
                         .take = resolve_answers,
                         .fail = fail_request,
                         .note = note,
                         .is_left = asked->q->is_left};
    void *answers = NULL, *there = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc(&answers, s->batch, sizeof *a.answers, "answers", err));
    a.answers = answers;
    if (asked->q->late != NULL) {
        LS_TRY_DONE(ls_array_alloc(&there, n_requests, sizeof *a.there, "rewards", err));
        a.there = there;
        user.look = take_late;
        user.is_there = request_is_whole;
        user.look_fd = ls_feed_fd(asked->q->late->feed);
    }
    status = ls_http_pool_run(s->pool, n_requests, &user, &asked->q->counts.retried, err);
done:
    free(there);
    free(answers);
    return status;
}

static void http_close(ls_reward *reward) {
    source *s = (source *)reward;
    ls_http_pool_close(s->pool);
    ls_reward_deinit(reward);
    free(s->url);
    free(s);
}

static ls_status check_options(const ls_reward_http_options *o, ls_error *err) {
    if (o->url == NULL || !ls_http_is_url(o->url)) {
        char shown[URL_MAX];
        ls_url_redact(shown, sizeof shown, o->url != NULL ? o->url : "");
        return LS_FAIL(err, LS_ERR_ARG, "reward server: '%.200s' does not begin with http:// or https://", shown);
    }
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

ls_status ls_reward_http_open(ls_reward **out, const ls_reward_http_options *o, ls_error *err) {
    const ls_http_opts opts = {.headers = o->headers,
                               .n_headers = o->n_headers,
                               .concurrency = o->concurrency,
                               .retries = o->retries,
                               .timeout_s = o->timeout_s,
                               .backoff_s = o->backoff_s};
    char url[URL_MAX];
    source *s;
    ls_status status;
    LS_TRY(check_options(o, err));
    if ((s = calloc(1, sizeof *s)) == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "reward server");
    ls_reward_init(&s->base);
    s->base.ask = http_ask;
    s->base.close = http_close;
    s->base.takes_late = true;
    s->batch = o->batch;
    LS_TRY_DONE(ls_url_complete(url, sizeof url, o->url, o->name != NULL ? o->name : "reward_url", err));
    LS_TRY_DONE(ls_text_copy(&s->url, url, (int64_t)strlen(url), err));
    if ((status = ls_http_pool_open(&s->pool, &opts, err)) != LS_OK) ls_error_prefix(err, "reward server");
done:
    if (status == LS_OK)
        *out = &s->base;
    else
        http_close(&s->base);
    return status;
}
