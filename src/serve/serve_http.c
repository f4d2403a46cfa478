/* HTTP: connections, bodies, limits, waiting, streams. The only file that knows the HTTP library.
 *
 * Locks: `lock` guards lists and counts here and is taken before the work's lock, never inside it; the library's own
 * lock is innermost. A suspended connection belongs to whoever will resume it: the engine's thread (through wake) or
 * the control thread. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_out.h"
#include "base/mem.h"
#include "serve/serve_guard.h"
#include "serve/serve_state.h"

enum { DAEMONS_MAX = 64 };

/* A connection, from its beginning to its end: the library's end of a pair of sockets. */
typedef struct peer {
    int fd;
    double deadline; /* clock; 0: none */
    struct peer *next, *previous;
} peer;

/* One request and its reply. */
typedef struct exchange {
    struct ls_http *http;
    struct MHD_Connection *connection;
    peer *link;
    const ls_route *route;
    char *url;
    char *body, *mode, *clear_cache;
    int64_t body_bytes, body_cap;
    bool is_begun, is_suspended, is_answered, is_gone;
    ls_group *group;
    /* A reply of the control thread. */
    bool is_ready;
    int status;
    char *reply;
    size_t reply_bytes;
    struct exchange *next_control;
    /* A stream. */
    ls_told *told;
    char *chunk;
    size_t chunk_bytes, chunk_at;
    bool is_stream_done;
    double born;
    struct exchange *next, *previous; /* of all that are open */
} exchange;

struct ls_http {
    ls_server *server;
    ls_guard *guard;
    /* Each with a thread: the library has no pool for sockets from elsewhere. next_daemon is the guard's thread's. */
    struct MHD_Daemon *daemons[DAEMONS_MAX];
    int64_t n_daemons, next_daemon;
    char url[96];
    pthread_mutex_t lock;
    peer *links;
    exchange *exchanges;
    exchange *controls, *last_control;
    pthread_cond_t control_news;
    pthread_t control_thread, watch_thread;
    bool has_control, has_watch, ends, drains;
};

/* ---- lists ---- */

static void count(struct ls_http *h, int64_t *counter, int64_t n) {
    pthread_mutex_lock(&h->server->count_lock);
    *counter += n;
    pthread_mutex_unlock(&h->server->count_lock);
}

static void set_deadline(exchange *x, double seconds) {
    if (x->link == NULL) return;
    pthread_mutex_lock(&x->http->lock);
    x->link->deadline = seconds > 0 ? ls_clock_seconds() + seconds : 0;
    pthread_mutex_unlock(&x->http->lock);
}

static void on_connection(void *context, struct MHD_Connection *connection, void **place,
                          enum MHD_ConnectionNotificationCode code) {
    struct ls_http *h = context;
    peer *l = *place;
    pthread_mutex_lock(&h->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *place = l = calloc(1, sizeof *l);
        if (l != NULL) {
            l->fd = info->connect_fd; /* without a deadline: its first header is there, and whole */
            l->next = h->links;
            if (h->links != NULL) h->links->previous = l;
            h->links = l;
        }
    } else {
        if (l != NULL) {
            if (l->previous != NULL)
                l->previous->next = l->next;
            else
                h->links = l->next;
            if (l->next != NULL) l->next->previous = l->previous;
            free(l);
        }
        *place = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}

static exchange *exchange_create(struct ls_http *h, struct MHD_Connection *connection, const char *url) {
    exchange *x = calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    x->url = strdup(url);
    if (x->url == NULL) {
        free(x);
        return NULL;
    }
    x->http = h;
    x->connection = connection;
    x->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    x->born = ls_clock_seconds();
    pthread_mutex_lock(&h->lock);
    count(h, &h->server->counts.requests, 1);
    x->next = h->exchanges;
    if (h->exchanges != NULL) h->exchanges->previous = x;
    h->exchanges = x;
    pthread_mutex_unlock(&h->lock);
    return x;
}

/* One line of JSON on standard error. */
static void log_request(const exchange *x) {
    const ls_group *g = x->group;
    ls_json_out json;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file;
    if (!x->http->server->opts.log || (file = open_memstream(&text, &bytes)) == NULL) return;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_double(&json, "seconds", (double)(int64_t)((ls_clock_seconds() - x->born) * 1e6) * 1e-6);
    ls_json_string(&json, "path", x->url);
    ls_json_int(&json, "status", x->status);
    if (g != NULL && g->is_finished) {
        int64_t tokens = 0;
        for (int64_t i = 0; i < g->n_samples; i++) tokens += g->samples[i].request.n_completion;
        ls_json_string(&json, "id", g->ask->id != NULL ? g->ask->id : g->name);
        ls_json_int(&json, "completions", g->n_samples);
        ls_json_int(&json, "tokens", tokens);
        ls_json_string(&json, "finish", ls_finish_name(g->samples[0].finish));
    }
    ls_json_end_object(&json);
    ls_json_newline(&json);
    if (fclose(file) == 0) (void)fwrite(text, 1, bytes, stderr);
    free(text);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **place,
                         enum MHD_RequestTerminationCode code) {
    struct ls_http *h = context;
    exchange *x = *place;
    (void)connection;
    if (x == NULL) return;
    *place = NULL;
    pthread_mutex_lock(&h->lock);
    if (x->group != NULL && code != MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->is_gone)
        count(h, &h->server->counts.clients_gone, 1);
    if (x->previous != NULL)
        x->previous->next = x->next;
    else
        h->exchanges = x->next;
    if (x->next != NULL) x->next->previous = x->previous;
    if (x->link != NULL) x->link->deadline = ls_clock_seconds() + (double)h->server->opts.idle_seconds;
    pthread_mutex_unlock(&h->lock);
    if (x->link != NULL) ls_guard_answered(h->guard, x->link->fd);
    log_request(x);
    if (x->group != NULL) ls_group_release(x->group);
    free(x->told);
    free(x->chunk);
    free(x->reply);
    free(x->body);
    free(x->mode);
    free(x->clear_cache);
    free(x->url);
    free(x);
}

/* ---- replies ---- */

static void count_status(struct ls_http *h, int status) {
    ls_http_counts *c = &h->server->counts;
    if (status == 400 || status == 413 || status == 405) count(h, &c->refused_400, 1);
    if (status == 401) count(h, &c->refused_401, 1);
    if (status == 404) count(h, &c->refused_404, 1);
    if (status == 429) count(h, &c->refused_429, 1);
    if (status == 500 || status == 503) count(h, &c->failed_500, 1);
}

/* body is taken over. */
static enum MHD_Result send_body(exchange *x, int status, char *body, size_t bytes, const char *type, bool closes) {
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
    set_deadline(x, 0);
    result = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_error(exchange *x, int status, const char *message, bool closes) {
    char *body = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&body, &bytes);
    if (file == NULL) return MHD_NO;
    ls_reply_error(file, status, message);
    if (fclose(file) != 0) {
        free(body);
        return MHD_NO;
    }
    return send_body(x, status, body, bytes, NULL, closes);
}

/* Runs a handler into x->reply and x->status. */
static void handle(exchange *x) {
    const ls_call call = {x->body != NULL ? x->body : "", x->body_bytes, x->mode, x->clear_cache};
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

static enum MHD_Result send_handled(exchange *x) {
    char *reply = x->reply;
    x->reply = NULL;
    if (reply == NULL) return send_error(x, 500, "out of memory", false);
    return send_body(x, x->status, reply, x->reply_bytes, x->route->type, false);
}

/* ---- waiting for the engine ---- */

/* From the engine's thread, with the work's lock. */
static void on_news(void *context) {
    exchange *x = context;
    if (!x->is_suspended) return;
    x->is_suspended = false;
    MHD_resume_connection(x->connection);
}

/* The status of what failed behind the reading of a request: more than the engine's pools ever hold is the client's. */
static int failure_of(const ls_error *err) {
    const int status = ls_reply_status(err);
    return status == 400 && err->status != LS_ERR_CAPACITY ? 500 : status;
}

static enum MHD_Result send_group(exchange *x) {
    ls_error err = {.status = LS_OK};
    char *body = NULL;
    size_t bytes = 0;
    FILE *file;
    ls_status status = ls_reply_check(x->group, &err);
    if (status != LS_OK) return send_error(x, failure_of(&err), err.text, false);
    file = open_memstream(&body, &bytes);
    if (file == NULL) return send_error(x, 500, "out of memory", false);
    status = ls_reply_whole(file, &x->http->server->about, x->group, &err);
    if (fclose(file) != 0 || status != LS_OK) {
        free(body);
        return send_error(x, 500, status != LS_OK ? err.text : "out of memory", false);
    }
    return send_body(x, 200, body, bytes, NULL, false);
}

/* Sends the finished group, or waits for it. */
static enum MHD_Result await_group(exchange *x) {
    bool finished;
    ls_work_lock(x->http->server->work);
    finished = x->group->is_finished;
    if (!finished) {
        x->is_suspended = true;
        MHD_suspend_connection(x->connection);
    }
    ls_work_unlock(x->http->server->work);
    return finished ? send_group(x) : MHD_YES;
}

/* ---- streams ---- */

/* Whether there is anything to tell; if not, the connection sleeps until there is. */
static bool await_news(exchange *x) {
    bool news = false;
    ls_work_lock(x->http->server->work);
    for (int64_t i = 0; i < x->group->n_samples && !news; i++) {
        const ls_completion *s = &x->group->samples[i];
        news = !x->told[i].ended && (s->n_public != x->told[i].tokens || s->finish != LS_FINISH_NONE);
    }
    if (!news) {
        x->is_suspended = true;
        MHD_suspend_connection(x->connection);
    }
    ls_work_unlock(x->http->server->work);
    return news;
}

static bool fill_chunk(exchange *x) {
    ls_error err;
    FILE *file;
    ls_status status;
    free(x->chunk);
    x->chunk = NULL;
    x->chunk_bytes = x->chunk_at = 0;
    if ((file = open_memstream(&x->chunk, &x->chunk_bytes)) == NULL) return false;
    status = ls_reply_more(file, &x->http->server->about, x->group, x->told, &x->is_stream_done, &err);
    return fclose(file) == 0 && status == LS_OK;
}

static ssize_t read_stream(void *context, uint64_t at, char *to, size_t room) {
    exchange *x = context;
    size_t n;
    (void)at;
    if (x->chunk_at == x->chunk_bytes) {
        if (x->is_stream_done) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!await_news(x)) return 0;
        if (!fill_chunk(x)) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (x->chunk_bytes == 0) return await_news(x) ? MHD_CONTENT_READER_END_WITH_ERROR : 0;
    }
    n = x->chunk_bytes - x->chunk_at < room ? x->chunk_bytes - x->chunk_at : room;
    memcpy(to, x->chunk + x->chunk_at, n);
    x->chunk_at += n;
    return (ssize_t)n;
}

static enum MHD_Result send_stream(exchange *x) {
    struct MHD_Response *response;
    enum MHD_Result result;
    if (ls_array_alloc((void **)&x->told, x->group->n_samples, sizeof *x->told, "stream", NULL) != LS_OK)
        return send_error(x, 500, "out of memory", false);
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 65536, read_stream, x, NULL);
    if (response == NULL) return MHD_NO;
    x->status = 200;
    x->is_answered = true;
    MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    set_deadline(x, 0);
    result = MHD_queue_response(x->connection, 200, response);
    MHD_destroy_response(response);
    return result;
}

/* ---- requests ---- */

static enum MHD_Result begin_ask(exchange *x) {
    ls_server *s = x->http->server;
    ls_ask *ask;
    ls_group *group;
    ls_error err;
    bool is_full = false;
    if (ls_ask_parse(&ask, x->route->ask, &s->limits, x->body, x->body_bytes, &err) != LS_OK)
        return send_error(x, ls_reply_status(&err), err.text, false);
    if (ls_work_submit(&group, s->work, ask, &s->limits, on_news, x, &is_full, &err) != LS_OK)
        return send_error(x, is_full ? 429 : ls_reply_status(&err), err.text, false);
    pthread_mutex_lock(&x->http->lock); /* the thread that watches looks at it */
    x->group = group;
    pthread_mutex_unlock(&x->http->lock);
    return group->ask->stream ? send_stream(x) : await_group(x);
}

static enum MHD_Result begin_control(exchange *x) {
    struct ls_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    if (h->last_control == NULL)
        h->controls = x;
    else
        h->last_control->next_control = x;
    h->last_control = x;
    x->is_suspended = true;
    MHD_suspend_connection(x->connection);
    pthread_cond_signal(&h->control_news);
    pthread_mutex_unlock(&h->lock);
    return MHD_YES;
}

static enum MHD_Result begin(exchange *x) {
    x->is_begun = true;
    set_deadline(x, 0);
    if (x->body == NULL && (x->body = strdup("")) == NULL) return MHD_NO;
    switch (x->route->kind) {
        case LS_ROUTE_ASK: return begin_ask(x);
        case LS_ROUTE_CONTROL: return begin_control(x);
        case LS_ROUTE_NOW: break;
    }
    handle(x);
    return send_handled(x);
}

static bool is_key(const ls_server *s, const char *text) {
    const size_t n = strlen(text);
    bool found = false;
    for (int64_t k = 0; k < s->n_keys; k++) { /* in a time that does not tell how much of a key is right */
        const size_t length = strlen(s->keys[k]);
        unsigned differs = n != length;
        for (size_t i = 0; i < n; i++) differs |= (unsigned char)(text[i] ^ s->keys[k][length == 0 ? 0 : i % length]);
        found = found || differs == 0;
    }
    return found;
}

static bool is_allowed(const exchange *x) {
    const ls_server *s = x->http->server;
    const char *header;
    if (s->n_keys == 0 || x->route->is_open) return true;
    header = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    return header != NULL && strncasecmp(header, "Bearer ", 7) == 0 && is_key(s, header + 7);
}

/* How a request says its length: once, or it might be read as two. */
typedef struct framing {
    int64_t lengths, codings, hosts;
    bool is_bad;
    int64_t length;
} framing;

static enum MHD_Result look_at_header(void *context, enum MHD_ValueKind kind, const char *key, const char *value) {
    framing *f = context;
    (void)kind;
    if (strcasecmp(key, "Content-Length") == 0) {
        char *end;
        f->lengths++;
        errno = 0;
        f->length = value == NULL ? -1 : strtoll(value, &end, 10);
        if (value == NULL || value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0) f->is_bad = true;
    }
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        f->codings++;
        if (value == NULL || strcasecmp(value, "chunked") != 0) f->is_bad = true;
    }
    if (strcasecmp(key, "Host") == 0) f->hosts++;
    for (const char *c = key; *c != '\0'; c++)
        if (*c == ' ' || *c == '\t' || (unsigned char)*c < 33) f->is_bad = true;
    return MHD_YES;
}

static char *copy_query(exchange *x, const char *key) {
    const char *value = MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, key);
    return value == NULL ? NULL : strdup(value);
}

/* With the header there, and nothing of the body. */
static enum MHD_Result check_header(exchange *x, const char *method, const char *version) {
    const ls_serve_opts *o = &x->http->server->opts;
    framing f = {0};
    char message[256];
    bool post = strcmp(method, "POST") == 0;
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, look_at_header, &f);
    if (f.is_bad || f.lengths + f.codings > 1 || (f.hosts != 1 && strcmp(version, MHD_HTTP_VERSION_1_1) == 0))
        return send_error(x, 400, "the header does not say once and clearly how long the request is, and for whom",
                          true);
    for (int64_t i = 0; i < x->http->server->n_routes && x->route == NULL; i++)
        if (strcmp(x->http->server->routes[i].path, x->url) == 0) x->route = &x->http->server->routes[i];
    if (x->route == NULL) {
        snprintf(message, sizeof message, "%.200s: there is no such path", x->url);
        return send_error(x, 404, message, f.lengths + f.codings > 0);
    }
    if (!is_allowed(x)) return send_error(x, 401, "the API key is missing or wrong", f.lengths + f.codings > 0);
    if (!(post ? x->route->post : x->route->get && strcmp(method, "GET") == 0)) {
        snprintf(message, sizeof message, "%.200s: %s", x->url,
                 x->route->post ? "POST is asked for" : "GET is asked for");
        return send_error(x, 405, message, f.lengths + f.codings > 0);
    }
    if (f.length > o->body_bytes) {
        snprintf(message, sizeof message, "the body has %lld bytes; %lld are the most", (long long)f.length,
                 (long long)o->body_bytes);
        return send_error(x, 413, message, true);
    }
    pthread_mutex_lock(&x->http->lock);
    post = x->http->drains;
    pthread_mutex_unlock(&x->http->lock);
    if (post) return send_error(x, 503, "the server is stopping", true);
    x->mode = copy_query(x, "mode");
    x->clear_cache = copy_query(x, "clear_cache");
    set_deadline(x, (double)o->body_seconds);
    return MHD_YES;
}

/* false: the connection is to be dropped. */
static bool take_body(exchange *x, const char *data, size_t bytes) {
    if (x->body_bytes + (int64_t)bytes > x->http->server->opts.body_bytes) return false;
    if (ls_array_grow((void **)&x->body, &x->body_cap, x->body_bytes + (int64_t)bytes + 1, 1, "body", NULL) != LS_OK)
        return false;
    memcpy(x->body + x->body_bytes, data, bytes);
    x->body_bytes += (int64_t)bytes;
    x->body[x->body_bytes] = '\0';
    return true;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *data_bytes, void **place) {
    exchange *x = *place;
    if (x == NULL) {
        x = exchange_create(context, connection, url);
        if (x == NULL) return MHD_NO;
        *place = x;
        return check_header(x, method, version);
    }
    if (*data_bytes > 0) {
        const bool taken = x->is_answered || take_body(x, data, *data_bytes);
        *data_bytes = 0;
        if (!taken) count(x->http, &x->http->server->counts.refused_400, 1);
        return taken ? MHD_YES : MHD_NO;
    }
    if (x->is_answered) return MHD_YES;
    if (!x->is_begun) return begin(x);
    if (x->group != NULL) return await_group(x);
    return send_handled(x);
}

/* ---- threads beside ---- */

static void *run_controls(void *context) {
    struct ls_http *h = context;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        exchange *x = h->controls;
        if (x == NULL) {
            if (h->ends) break;
            pthread_cond_wait(&h->control_news, &h->lock);
            continue;
        }
        h->controls = x->next_control;
        if (h->controls == NULL) h->last_control = NULL;
        pthread_mutex_unlock(&h->lock);
        handle(x);
        pthread_mutex_lock(&h->lock);
        x->is_suspended = false;
        MHD_resume_connection(x->connection);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Connections whose time is up end here: the library then finds them ended. */
static void end_late(struct ls_http *h, double now) {
    for (peer *l = h->links; l != NULL; l = l->next) {
        if (l->deadline == 0 || now < l->deadline) continue;
        l->deadline = 0;
        count(h, &h->server->counts.timed_out, 1);
        shutdown(l->fd, SHUT_RDWR);
    }
}

/* Clients that went away while their request waits or streams: the guard has closed its end. */
static void end_gone(struct ls_http *h) {
    int64_t n = 0, i = 0;
    struct pollfd *list;
    for (exchange *x = h->exchanges; x != NULL; x = x->next) n += x->group != NULL;
    if (n == 0 || ls_array_alloc((void **)&list, n, sizeof *list, "connections", NULL) != LS_OK) return;
    for (exchange *x = h->exchanges; x != NULL; x = x->next)
        if (x->group != NULL)
            list[i++] = (struct pollfd){.fd = x->link != NULL ? x->link->fd : -1, .events = POLLRDHUP};
    if (poll(list, (nfds_t)n, 0) > 0) {
        i = 0;
        for (exchange *x = h->exchanges; x != NULL; x = x->next) {
            if (x->group == NULL || (list[i++].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) continue;
            if (!x->is_gone) count(h, &h->server->counts.clients_gone, 1);
            x->is_gone = true;
            ls_group_cancel(x->group);
            x->link->deadline = ls_clock_seconds() + (double)h->server->opts.idle_seconds;
        }
    }
    free(list);
}

static void *watch(void *context) {
    struct ls_http *h = context;
    pthread_mutex_lock(&h->lock);
    while (!h->ends) {
        pthread_mutex_unlock(&h->lock);
        usleep(50000);
        pthread_mutex_lock(&h->lock);
        end_late(h, ls_clock_seconds());
        end_gone(h);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- beginning and end ---- */

const char *ls_http_url(const struct ls_http *h) { return h->url; }

/* The library tries TCP's options on the guard's pairs, which have none, and says so for every answer. */
static bool is_of_pairs(const char *format) {
    static const char *const begins[] = {"Setting %s option", "Setting TCP_", "Failed to push the data"};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (strncmp(format, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

/* The library's own words, for a log: one line, without its line break. */
static void on_library_error(void *context, const char *format, va_list args) {
    const struct ls_http *h = context;
    char text[256];
    ls_json_out json;
    if (!h->server->opts.log || is_of_pairs(format)) return;
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    ls_json_init(&json, stderr);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "http", text);
    ls_json_end_object(&json);
    ls_json_newline(&json);
}

static ls_status listen_on(int *out, const char *host, int64_t port, char url[96], ls_error *err) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } a;
    socklen_t bytes;
    const int on = 1;
    int fd;
    memset(&a, 0, sizeof a);
    if (inet_pton(AF_INET, host, &a.four.sin_addr) == 1) {
        a.four.sin_family = AF_INET;
        a.four.sin_port = htons((uint16_t)port);
        bytes = sizeof a.four;
    } else if (inet_pton(AF_INET6, host, &a.six.sin6_addr) == 1) {
        a.six.sin6_family = AF_INET6;
        a.six.sin6_port = htons((uint16_t)port);
        bytes = sizeof a.six;
    } else {
        return LS_FAIL(err, LS_ERR_ARG, "--host: '%s' is not an address (127.0.0.1, 0.0.0.0, ::1)", host);
    }
    fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return LS_FAIL(err, LS_ERR_IO, "socket: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &a.any, bytes) != 0 || listen(fd, 4096) != 0 || getsockname(fd, &a.any, &bytes) != 0) {
        const int why = errno;
        close(fd);
        return LS_FAIL(err, LS_ERR_IO, "cannot listen on %s, port %lld: %s", host, (long long)port, strerror(why));
    }
    snprintf(url, 96, a.any.sa_family == AF_INET6 ? "http://[%s]:%d" : "http://%s:%d", host,
             ntohs(a.any.sa_family == AF_INET6 ? a.six.sin6_port : a.four.sin_port));
    *out = fd;
    return LS_OK;
}

/* As many descriptors as connections may need, where the system lets us: the client's, and a pair. */
static void raise_descriptors(int64_t connections) {
    const rlim_t wanted = 3 * (rlim_t)connections + 512;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static bool hand_over(void *context, int fd) {
    const struct sockaddr_un nobody = {.sun_family = AF_UNIX};
    struct ls_http *h = context;
    struct MHD_Daemon *daemon = h->daemons[h->next_daemon++ % h->n_daemons];
    return MHD_add_connection(daemon, fd, (const struct sockaddr *)&nobody, sizeof nobody) == MHD_YES;
}

static void on_guarded(void *context, int64_t more) {
    struct ls_http *h = context;
    count(h, &h->server->counts.connections, more);
}

static void on_guard_refusal(void *context, int status) {
    struct ls_http *h = context;
    ls_http_counts *c = &h->server->counts;
    count(h, status == 408 ? &c->timed_out : status >= 500 && status != 505 ? &c->failed_500 : &c->refused_400, 1);
}

static ls_status start_library(struct ls_http *h, ls_error *err) {
    const ls_serve_opts *o = &h->server->opts;
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG |
                           MHD_USE_NO_LISTEN_SOCKET;
    for (; h->n_daemons < o->http_threads && h->n_daemons < DAEMONS_MAX; h->n_daemons++) {
        struct MHD_Daemon *daemon = MHD_start_daemon(
            flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_library_error, h,
            MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections, MHD_OPTION_CONNECTION_TIMEOUT,
            (unsigned)o->idle_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536,
            MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)4096, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
        if (daemon == NULL)
            return LS_FAIL(err, LS_ERR_IO, "the HTTP library does not start: %lld connections, %lld threads",
                           (long long)o->connections, (long long)o->http_threads);
        h->daemons[h->n_daemons] = daemon;
    }
    return LS_OK;
}

ls_status ls_http_start(struct ls_http **out, ls_server *server, ls_error *err) {
    struct ls_http *h = calloc(1, sizeof *h);
    const ls_serve_opts *o = &server->opts;
    const ls_guard_opts guard = {.connections_max = o->connections,
                                 .idle_seconds = (double)o->idle_seconds,
                                 .hand_over = hand_over,
                                 .say_error = ls_reply_error,
                                 .on_connection = on_guarded,
                                 .on_refusal = on_guard_refusal,
                                 .context = h};
    int fd = -1;
    ls_status status;
    *out = NULL;
    if (h == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "server");
    h->server = server;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->control_news, NULL);
    raise_descriptors(o->connections);
    LS_TRY_DONE(listen_on(&fd, o->host, o->port, h->url, err));
    if (pthread_create(&h->control_thread, NULL, run_controls, h) == 0) h->has_control = true;
    if (pthread_create(&h->watch_thread, NULL, watch, h) == 0) h->has_watch = true;
    if (!h->has_control || !h->has_watch) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "server: cannot start a thread");
        goto done;
    }
    LS_TRY_DONE(start_library(h, err));
    status = ls_guard_start(&h->guard, fd, &guard, err);
    fd = -1; /* the guard's */
    if (status != LS_OK) goto done;
    *out = h;
    h = NULL;
done:
    if (fd >= 0) close(fd);
    ls_http_stop(h);
    return status;
}

static bool has_exchanges(struct ls_http *h) {
    bool has;
    pthread_mutex_lock(&h->lock);
    has = h->exchanges != NULL;
    pthread_mutex_unlock(&h->lock);
    return has;
}

/* Waits until no request is open, so long. */
static void await_quiet(struct ls_http *h, double seconds) {
    const double until = ls_clock_seconds() + seconds;
    while (has_exchanges(h) && ls_clock_seconds() < until) usleep(5000);
}

void ls_http_stop(struct ls_http *h) {
    if (h == NULL) return;
    if (h->guard != NULL) {
        ls_guard_quiesce(h->guard);
        pthread_mutex_lock(&h->lock);
        h->drains = true;
        pthread_mutex_unlock(&h->lock);
        await_quiet(h, (double)h->server->opts.drain_seconds);
        ls_work_resume(h->server->work);
        ls_work_abort(h->server->work, "");
        await_quiet(h, 5);
    }
    pthread_mutex_lock(&h->lock);
    h->ends = true;
    pthread_cond_signal(&h->control_news);
    pthread_mutex_unlock(&h->lock);
    if (h->has_control) pthread_join(h->control_thread, NULL);
    if (h->has_watch) pthread_join(h->watch_thread, NULL);
    if (h->guard != NULL) ls_guard_detach(h->guard);
    for (int64_t i = 0; i < h->n_daemons; i++) MHD_stop_daemon(h->daemons[i]);
    ls_guard_free(h->guard);
    pthread_cond_destroy(&h->control_news);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
