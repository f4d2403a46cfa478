/* What becomes of a request whose body is there: errands of the crew, waits for the engine, replies, streams. */
#define _GNU_SOURCE
#include "serve/serve_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* What takes longer than a moment: bytes of a body to be read, of a reply to be made. */
enum { HEAVY_BODY = 65536, HEAVY_REPLY = 262144, LIGHT_REPLY = 16384 };

void ls_http_count(struct ls_http *h, int64_t *counter, int64_t n) {
    pthread_mutex_lock(&h->server->count_lock);
    *counter += n;
    pthread_mutex_unlock(&h->server->count_lock);
}

void ls_exchange_deadline(ls_exchange *x, double seconds) {
    if (x->link == NULL) return;
    pthread_mutex_lock(&x->http->lock);
    x->link->deadline = seconds > 0 ? ls_clock_seconds() + seconds : 0;
    pthread_mutex_unlock(&x->http->lock);
}

/* ---- parking ---- */

/* With park_lock. */
static void suspend(ls_exchange *x) {
    x->is_parked = true;
    MHD_suspend_connection(x->connection);
}

static void resume(ls_exchange *x) {
    x->is_parked = false;
    MHD_resume_connection(x->connection);
}

/* False: there were news, or the server closes; it is not parked. */
static bool park(ls_exchange *x) {
    struct ls_http *h = x->http;
    bool parks;
    pthread_mutex_lock(&h->park_lock);
    parks = !x->has_news && !h->closes;
    x->has_news = false;
    if (parks) suspend(x);
    pthread_mutex_unlock(&h->park_lock);
    return parks;
}

/* Parks it, whatever news there are: they are looked for when it is given back. False: the server closes. With
 * park_lock, under which whoever it is busy for gets it as well: the server closes before they end. */
static bool make_busy(ls_exchange *x) {
    x->is_busy = !x->http->closes;
    if (x->is_busy) suspend(x);
    return x->is_busy;
}

void ls_exchange_give_back(ls_exchange *x) {
    struct ls_http *h = x->http;
    pthread_mutex_lock(&h->park_lock);
    x->is_busy = false;
    resume(x);
    pthread_mutex_unlock(&h->park_lock);
}

/* There are news. */
static void wake(void *exchange) {
    ls_exchange *x = exchange;
    struct ls_http *h = x->http;
    pthread_mutex_lock(&h->park_lock);
    if (x->is_parked && !x->is_busy)
        resume(x);
    else
        x->has_news = true;
    pthread_mutex_unlock(&h->park_lock);
}

static bool closes(ls_exchange *x) {
    bool closes;
    pthread_mutex_lock(&x->http->park_lock);
    closes = x->http->closes;
    pthread_mutex_unlock(&x->http->park_lock);
    return closes;
}

void ls_http_send_away(struct ls_http *h) {
    pthread_mutex_lock(&h->lock);
    pthread_mutex_lock(&h->park_lock);
    h->closes = true;
    for (ls_exchange *x = h->exchanges; x != NULL; x = x->next)
        if (x->is_parked && !x->is_busy) resume(x);
    pthread_mutex_unlock(&h->park_lock);
    pthread_mutex_unlock(&h->lock);
}

/* Gives it to the crew. It is parked before, so that what the crew writes is not read meanwhile. */
static bool send_errand(ls_exchange *x, ls_exchange_step step, void (*run)(void *context), bool is_heavy) {
    struct ls_http *h = x->http;
    bool sent;
    pthread_mutex_lock(&h->park_lock);
    if ((sent = make_busy(x))) {
        x->step = step;
        x->errand = (ls_errand){run, x, NULL};
        ls_crew_add(h->crew, &x->errand, is_heavy);
    }
    pthread_mutex_unlock(&h->park_lock);
    return sent;
}

/* ---- replies ---- */

static void count_status(struct ls_http *h, int status) {
    ls_http_counts *c = &h->server->counts;
    if (status == 400 || status == 405 || status == 409 || status == 413) ls_http_count(h, &c->refused_400, 1);
    if (status == 401) ls_http_count(h, &c->refused_401, 1);
    if (status == 403) ls_http_count(h, &c->refused_403, 1);
    if (status == 404) ls_http_count(h, &c->refused_404, 1);
    if (status == 429) ls_http_count(h, &c->refused_429, 1);
    if (status == 500 || status == 503) ls_http_count(h, &c->failed_500, 1);
}

/* body is taken over. */
static enum MHD_Result send_body(ls_exchange *x, int status, char *body, size_t bytes, const char *type, bool closes) {
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, body, MHD_RESPMEM_MUST_FREE);
    enum MHD_Result result;
    if (response == NULL) {
        free(body);
        return MHD_NO;
    }
    x->status = status;
    x->is_answered = true;
    count_status(x->http, status);
    MHD_add_response_header(response, "Content-Type", type != NULL ? type : "application/json");
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == 429) MHD_add_response_header(response, "Retry-After", "1");
    if (status == 405) MHD_add_response_header(response, "Allow", x->route->post ? "POST" : "GET");
    if (closes) MHD_add_response_header(response, "Connection", "close");
    ls_exchange_deadline(x, (double)x->http->server->opts.reply_seconds);
    result = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

/* The sentence as a reply, or NULL. */
static char *error_body(int status, const char *message, size_t *bytes) {
    char *body = NULL;
    FILE *file = open_memstream(&body, bytes);
    if (file == NULL) return NULL;
    ls_reply_error(file, status, message);
    if (fclose(file) == 0) return body;
    free(body);
    return NULL;
}

enum MHD_Result ls_exchange_error(ls_exchange *x, int status, const char *message, bool closes) {
    size_t bytes = 0;
    char *body = error_body(status, message, &bytes);
    return body != NULL ? send_body(x, status, body, bytes, NULL, closes) : MHD_NO;
}

static enum MHD_Result send_stopping(ls_exchange *x) {
    return ls_exchange_error(x, 503, "the server is stopping", true);
}

/* Leaves an error to be sent. */
void ls_exchange_set_error(ls_exchange *x, int status, const char *message) {
    x->reply = error_body(status, message, &x->reply_bytes);
    x->status = status;
}

static enum MHD_Result send_reply(ls_exchange *x, const char *type) {
    char *reply = x->reply;
    x->reply = NULL;
    if (reply == NULL) return ls_exchange_error(x, 500, "out of memory", false);
    return send_body(x, x->status, reply, x->reply_bytes, type, false);
}

void ls_exchange_handle(ls_exchange *x) {
    const ls_call call = {x->body != NULL ? x->body : "", x->body_bytes, x->mode, x->clear_cache, &x->wait};
    ls_error err = {.status = LS_OK};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    int status = 500;
    if (file != NULL) {
        status = x->route->handler(x->http->server, &call, file, &err);
        if (status >= 300 && err.status != LS_OK) ls_reply_error(file, status, err.text);
        if (fclose(file) != 0) status = 500;
    }
    x->reply = text;
    x->reply_bytes = bytes;
    x->status = status;
}

/* ---- memory ---- */

static void drop_body(ls_exchange *x) {
    free(x->body);
    x->body = NULL;
    x->body_cap = 0;
    ls_holding_give(&x->holding, x->holding.bytes);
}

static bool is_finished(const ls_exchange *x) {
    bool finished;
    ls_work_lock(x->http->server->work);
    finished = x->group->is_finished;
    ls_work_unlock(x->http->server->work);
    return finished;
}

/* The group's results are not needed any more; what the log tells of it is kept. */
void ls_exchange_drop_group(ls_exchange *x) {
    struct ls_http *h = x->http;
    ls_group *g = x->group;
    if (g == NULL) return;
    if (is_finished(x)) {
        for (int64_t i = 0; i < g->n_samples; i++) x->n_tokens += g->samples[i].request.n_completion;
        x->n_samples = g->n_samples;
        x->finish = ls_finish_name(g->samples[0].finish);
        snprintf(x->group_name, sizeof x->group_name, "%s", g->ask->id != NULL ? g->ask->id : g->name);
    }
    pthread_mutex_lock(&h->lock); /* the thread that watches looks at it */
    x->group = NULL;
    pthread_mutex_unlock(&h->lock);
    ls_group_release(g);
}

void ls_exchange_free(ls_exchange *x) {
    ls_work_forget(x->http->server->work, &x->wait);
    ls_exchange_drop_group(x);
    ls_holding_give(&x->holding, x->holding.bytes);
    free(x->sent);
    free(x->chunk);
    free(x->reply);
    free(x->body);
    free(x->mode);
    free(x->clear_cache);
    free(x->url);
    free(x);
}

/* ---- whole replies ---- */

/* The status of what failed behind the reading of a request: more than it may hold, or than the engine's pools ever
 * hold, is the client's. */
static int failure_of(const ls_group *g, const ls_error *err) {
    const int status = ls_reply_status(err);
    return status == 400 && g->excess.status == LS_OK && err->status != LS_ERR_CAPACITY ? 500 : status;
}

/* Of a finished group. */
static void make_reply(ls_exchange *x) {
    ls_error err = {.status = LS_OK};
    char *body = NULL;
    size_t bytes = 0;
    FILE *file;
    ls_status status = ls_reply_check(x->group, &err);
    if (status != LS_OK) {
        ls_exchange_set_error(x, failure_of(x->group, &err), err.text);
        return;
    }
    if ((file = open_memstream(&body, &bytes)) == NULL) return;
    status = ls_reply_whole(file, &x->http->server->about, x->group, &err);
    if (fclose(file) == 0 && status == LS_OK) {
        x->reply = body;
        x->reply_bytes = bytes;
        x->status = 200;
        ls_holding_add(&x->holding, (int64_t)bytes);
        return;
    }
    free(body);
    if (status != LS_OK) ls_exchange_set_error(x, 500, err.text);
}

static void run_tell(void *exchange) {
    ls_exchange *x = exchange;
    make_reply(x);
    ls_exchange_drop_group(x);
    ls_exchange_give_back(x);
}

static int64_t count_tokens(const ls_group *g) {
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_samples; i++) n += g->samples[i].request.n_completion;
    return n;
}

/* Sends the finished group, or waits for it. */
static enum MHD_Result await_group(ls_exchange *x) {
    int64_t bytes;
    while (!is_finished(x)) {
        if (park(x)) return MHD_YES;
        if (closes(x)) return send_stopping(x);
    }
    bytes = ls_group_reply_bytes(x->group, count_tokens(x->group));
    if (bytes > LIGHT_REPLY)
        return send_errand(x, LS_STEP_TELL, run_tell, bytes > HEAVY_REPLY) ? MHD_YES : send_stopping(x);
    make_reply(x);
    ls_exchange_drop_group(x);
    return send_reply(x, NULL);
}

/* ---- streams ---- */

/* Bytes of what can be told now, about; -1: nothing. */
static int64_t look_for_news(const ls_exchange *x) {
    const ls_group *g = x->group;
    const bool retells = g->ask->kind == LS_ASK_SGLANG;
    int64_t n = 0, ended = 0, bytes = -1;
    bool news = false;
    ls_work_lock(x->http->server->work);
    for (int64_t i = 0; i < g->n_samples; i++) {
        const ls_completion *s = &g->samples[i];
        const bool ends = !x->sent[i].ended && s->finish != LS_FINISH_NONE;
        if (x->sent[i].ended || (s->n_public == x->sent[i].tokens && !ends)) continue;
        news = true;
        n += s->n_public - (retells ? 0 : x->sent[i].tokens);
        ended += ends ? s->n_public : 0;
    }
    if (news) bytes = ls_group_reply_bytes(g, n) + 8 * ended;
    ls_work_unlock(x->http->server->work);
    return bytes;
}

static void fill_chunk(ls_exchange *x) {
    ls_error err;
    FILE *file;
    ls_status status;
    free(x->chunk);
    x->chunk = NULL;
    x->chunk_bytes = x->chunk_at = 0;
    x->is_filled = x->is_broken = true;
    if ((file = open_memstream(&x->chunk, &x->chunk_bytes)) == NULL) return;
    status = ls_reply_more(file, &x->http->server->about, x->group, x->sent, &x->is_stream_done, &err);
    x->is_broken = fclose(file) != 0 || status != LS_OK;
}

static void run_fill(void *exchange) {
    fill_chunk(exchange);
    ls_exchange_give_back(exchange);
}

/* False: the connection is parked until there is more. */
static bool get_chunk(ls_exchange *x) {
    while (!x->is_filled) {
        const int64_t bytes = look_for_news(x);
        if (bytes < 0) {
            if (park(x)) return false;
        } else if (bytes <= LIGHT_REPLY) {
            fill_chunk(x);
        } else if (send_errand(x, LS_STEP_TELL, run_fill, bytes > HEAVY_REPLY)) {
            return false;
        }
        if (!x->is_filled && closes(x)) x->is_filled = x->is_broken = true;
    }
    return true;
}

static ssize_t read_stream(void *context, uint64_t at, char *to, size_t room) {
    ls_exchange *x = context;
    size_t n;
    (void)at;
    while (x->chunk_at == x->chunk_bytes) { /* news may have nothing that is certain */
        if (x->is_stream_done) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!get_chunk(x)) return 0;
        x->is_filled = false;
        if (x->is_broken) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    n = x->chunk_bytes - x->chunk_at < room ? x->chunk_bytes - x->chunk_at : room;
    memcpy(to, x->chunk + x->chunk_at, n);
    x->chunk_at += n;
    return (ssize_t)n;
}

static enum MHD_Result send_stream(ls_exchange *x) {
    struct MHD_Response *response;
    enum MHD_Result result;
    if (ls_array_alloc((void **)&x->sent, x->group->n_samples, sizeof *x->sent, "stream", NULL) != LS_OK)
        return ls_exchange_error(x, 500, "out of memory", false);
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 65536, read_stream, x, NULL);
    if (response == NULL) return MHD_NO;
    x->status = 200;
    x->is_answered = true;
    MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    ls_exchange_deadline(x, 0);
    result = MHD_queue_response(x->connection, 200, response);
    MHD_destroy_response(response);
    return result;
}

/* ---- requests for the engine ---- */

static void refuse_request(ls_exchange *x, const ls_error *err, bool is_full) {
    ls_exchange_set_error(x, is_full ? 429 : ls_reply_status(err), err->text);
}

static ls_status read_ask(ls_exchange *x, ls_ask **ask, ls_error *err) {
    const ls_server *s = x->http->server;
    LS_TRY(ls_ask_parse(ask, x->route->ask, &s->limits, x->body, x->body_bytes, err));
    if ((*ask)->priority >= x->client->least_priority) return LS_OK;
    LS_FAIL(err, LS_ERR_ARG, "request: priority: %lld is below %lld, the least that this client may have",
            (long long)(*ask)->priority, (long long)x->client->least_priority);
    ls_ask_free(*ask);
    return LS_ERR_ARG;
}

/* The body becomes a group, or an error to be sent. */
static void run_read(void *exchange) {
    ls_exchange *x = exchange;
    ls_server *s = x->http->server;
    ls_ask *ask;
    ls_group *group = NULL;
    ls_error err;
    bool is_full = false;
    ls_status status = read_ask(x, &ask, &err);
    drop_body(x);
    if (status == LS_OK)
        status = ls_work_submit(&group, s->work, x->client, ask, &s->limits, (ls_group_wake){wake, x}, &is_full, &err);
    if (status != LS_OK) refuse_request(x, &err, is_full);
    pthread_mutex_lock(&x->http->lock); /* the thread that watches looks at it */
    x->group = group;
    pthread_mutex_unlock(&x->http->lock);
    ls_exchange_give_back(x);
}

static enum MHD_Result begin_ask(ls_exchange *x) {
    if (!ls_work_has_room(x->http->server->work, x->client, 1))
        return ls_exchange_error(x, 429, "as many completions are unfinished as the server takes", false);
    return send_errand(x, LS_STEP_READ, run_read, x->body_bytes > HEAVY_BODY) ? MHD_YES : send_stopping(x);
}

static enum MHD_Result resume_ask(ls_exchange *x) {
    if (x->group == NULL) return send_reply(x, NULL);
    x->step = LS_STEP_RUN;
    return x->group->ask->stream ? send_stream(x) : await_group(x);
}

/* ---- requests of operators ---- */

static void run_handler(void *exchange) {
    ls_exchange *x = exchange;
    ls_exchange_handle(x);
    ls_exchange_give_back(x);
}

static enum MHD_Result resume_steer(ls_exchange *x) {
    while (ls_work_is_waiting(x->http->server->work, &x->wait)) {
        if (park(x)) return MHD_YES;
        if (closes(x)) return send_stopping(x);
    }
    if (x->wait.err.status != LS_OK) return ls_exchange_error(x, 503, x->wait.err.text, false);
    return send_reply(x, NULL);
}

static enum MHD_Result begin_control(ls_exchange *x) {
    struct ls_http *h = x->http;
    bool sent;
    x->step = LS_STEP_DO;
    pthread_mutex_lock(&h->lock);
    pthread_mutex_lock(&h->park_lock);
    sent = make_busy(x);
    pthread_mutex_unlock(&h->park_lock);
    if (sent) {
        if (h->last_control == NULL)
            h->controls = x;
        else
            h->last_control->next_control = x;
        h->last_control = x;
        pthread_cond_signal(&h->control_news);
    }
    pthread_mutex_unlock(&h->lock);
    return sent ? MHD_YES : send_stopping(x);
}

enum MHD_Result ls_exchange_begin(ls_exchange *x) {
    ls_exchange_deadline(x, 0);
    if (x->body == NULL && (x->body = strdup("")) == NULL) return MHD_NO;
    x->wait.wake = wake;
    x->wait.context = x;
    switch (x->route->kind) {
        case LS_ROUTE_ASK: return begin_ask(x);
        case LS_ROUTE_CONTROL: return begin_control(x);
        case LS_ROUTE_TEXT:
        case LS_ROUTE_STEER:
            return send_errand(x, LS_STEP_DO, run_handler, x->body_bytes > HEAVY_BODY) ? MHD_YES : send_stopping(x);
        case LS_ROUTE_NOW: break;
    }
    x->step = LS_STEP_DO;
    ls_exchange_handle(x);
    return send_reply(x, x->route->type);
}

enum MHD_Result ls_exchange_resume(ls_exchange *x) {
    switch (x->step) {
        case LS_STEP_READ: return resume_ask(x);
        case LS_STEP_RUN: return await_group(x);
        case LS_STEP_TELL: return send_reply(x, NULL);
        case LS_STEP_DO: return x->route->kind == LS_ROUTE_STEER ? resume_steer(x) : send_reply(x, x->route->type);
        case LS_STEP_BODY: break;
    }
    return MHD_NO;
}
