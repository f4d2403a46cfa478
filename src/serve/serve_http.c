/* HTTP: connections, headers, bodies, limits, and the threads beside. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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
#include "base/mem.h"
#include "json/json_out.h"
#include "serve/serve_exchange.h"

/* ---- lists ---- */

static void on_connection(void *context, struct MHD_Connection *connection, void **place,
                          enum MHD_ConnectionNotificationCode code) {
    struct ls_http *h = context;
    ls_peer *l = *place;
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

static ls_exchange *exchange_create(struct ls_http *h, struct MHD_Connection *connection, const char *url) {
    ls_exchange *x = calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    x->url = strdup(url);
    if (x->url == NULL) {
        free(x);
        return NULL;
    }
    x->http = h;
    x->connection = connection;
    x->link = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    x->client = &h->server->anonymous;
    x->holding.quota = &h->server->quota;
    x->born = ls_clock_seconds();
    pthread_mutex_lock(&h->lock);
    ls_http_count(h, &h->server->counts.requests, 1);
    x->next = h->exchanges;
    if (h->exchanges != NULL) h->exchanges->previous = x;
    h->exchanges = x;
    pthread_mutex_unlock(&h->lock);
    return x;
}

/* One line of JSON on standard error. */
static void log_request(const ls_exchange *x) {
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
    if (x->finish != NULL) {
        ls_json_string(&json, "id", x->group_name);
        ls_json_int(&json, "completions", x->n_samples);
        ls_json_int(&json, "tokens", x->n_tokens);
        ls_json_string(&json, "finish", x->finish);
    }
    ls_json_end_object(&json);
    ls_json_newline(&json);
    if (fclose(file) == 0) (void)fwrite(text, 1, bytes, stderr);
    free(text);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **place,
                         enum MHD_RequestTerminationCode code) {
    struct ls_http *h = context;
    ls_exchange *x = *place;
    (void)connection;
    if (x == NULL) return;
    *place = NULL;
    pthread_mutex_lock(&h->lock);
    if (x->group != NULL && code != MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->is_gone)
        ls_http_count(h, &h->server->counts.clients_gone, 1);
    if (x->previous != NULL)
        x->previous->next = x->next;
    else
        h->exchanges = x->next;
    if (x->next != NULL) x->next->previous = x->previous;
    if (x->link != NULL) x->link->deadline = ls_clock_seconds() + (double)h->server->opts.idle_seconds;
    pthread_mutex_unlock(&h->lock);
    ls_exchange_drop_group(x);
    if (x->link != NULL) ls_guard_answered(h->guard, x->link->fd);
    log_request(x);
    ls_exchange_free(x);
}

/* ---- headers and bodies ---- */

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

static char *copy_query(ls_exchange *x, const char *key) {
    const char *value = MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, key);
    return value == NULL ? NULL : strdup(value);
}

/* Whose request it is, and whether that client may do this: the status. */
static int check_key(ls_exchange *x) {
    const char *header = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    const int status = ls_keys_check(x->http->server, x->route, header, &x->client);
    if (x->client->key != NULL) x->holding.client = &x->client->account;
    return status;
}

/* Memory for so many bytes of body. */
static ls_status hold_body(ls_exchange *x, int64_t bytes, ls_error *err) {
    bool is_own;
    return bytes <= x->holding.bytes ? LS_OK : ls_holding_take(&x->holding, bytes - x->holding.bytes, &is_own, err);
}

/* With the header there, and nothing of the body. */
static enum MHD_Result check_header(ls_exchange *x, const char *method, const char *version) {
    const ls_serve_opts *o = &x->http->server->opts;
    framing f = {0};
    ls_error err;
    char message[256];
    bool post = strcmp(method, "POST") == 0;
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, look_at_header, &f);
    if (f.is_bad || f.lengths + f.codings > 1 || (f.hosts != 1 && strcmp(version, MHD_HTTP_VERSION_1_1) == 0))
        return ls_exchange_error(
            x, 400, "the header does not say once and clearly how long the request is, and for whom", true);
    for (int64_t i = 0; i < x->http->server->n_routes && x->route == NULL; i++)
        if (strcmp(x->http->server->routes[i].path, x->url) == 0) x->route = &x->http->server->routes[i];
    if (x->route == NULL) {
        snprintf(message, sizeof message, "%.200s: there is no such path", x->url);
        return ls_exchange_error(x, 404, message, f.lengths + f.codings > 0);
    }
    switch (check_key(x)) {
        case 401: return ls_exchange_error(x, 401, "the API key is missing or wrong", f.lengths + f.codings > 0);
        case 403:
            return ls_exchange_error(x, 403, "this key may not change weights or work", f.lengths + f.codings > 0);
    }
    if (!(post ? x->route->post : x->route->get && strcmp(method, "GET") == 0)) {
        snprintf(message, sizeof message, "%.200s: %s", x->url,
                 x->route->post ? "POST is asked for" : "GET is asked for");
        return ls_exchange_error(x, 405, message, f.lengths + f.codings > 0);
    }
    if (f.length > o->body_bytes) {
        snprintf(message, sizeof message, "the body has %lld bytes; %lld are the most", (long long)f.length,
                 (long long)o->body_bytes);
        return ls_exchange_error(x, 413, message, true);
    }
    if (hold_body(x, f.length, &err) != LS_OK) return ls_exchange_error(x, 429, err.text, true);
    pthread_mutex_lock(&x->http->lock);
    post = x->http->drains;
    pthread_mutex_unlock(&x->http->lock);
    if (post) return ls_exchange_error(x, 503, "the server is stopping", true);
    x->mode = copy_query(x, "mode");
    x->clear_cache = copy_query(x, "clear_cache");
    ls_exchange_deadline(x, (double)o->body_seconds);
    return MHD_YES;
}

/* 200, or why the connection is to be dropped. */
static int take_body(ls_exchange *x, const char *data, size_t bytes) {
    const int64_t n = x->body_bytes + (int64_t)bytes, most = x->http->server->opts.body_bytes;
    int64_t cap = x->body_cap < 1024 ? 1024 : x->body_cap;
    if (n > most) return 413;
    while (cap < n + 1) cap *= 2;
    if (cap > most + 1) cap = most + 1;
    if (hold_body(x, cap, NULL) != LS_OK) return 429;
    if (cap > x->body_cap) {
        char *body = realloc(x->body, (size_t)cap);
        if (body == NULL) return 429;
        x->body = body;
        x->body_cap = cap;
    }
    memcpy(x->body + x->body_bytes, data, bytes);
    x->body_bytes = n;
    x->body[n] = '\0';
    return 200;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *data_bytes, void **place) {
    ls_exchange *x = *place;
    if (x == NULL) {
        x = exchange_create(context, connection, url);
        if (x == NULL) return MHD_NO;
        *place = x;
        return check_header(x, method, version);
    }
    if (*data_bytes > 0) {
        const int status = x->is_answered ? 200 : take_body(x, data, *data_bytes);
        ls_http_counts *c = &x->http->server->counts;
        *data_bytes = 0;
        if (status != 200) ls_http_count(x->http, status == 429 ? &c->refused_429 : &c->refused_400, 1);
        return status == 200 ? MHD_YES : MHD_NO;
    }
    if (x->is_answered) return MHD_YES;
    return x->step == LS_STEP_BODY ? ls_exchange_begin(x) : ls_exchange_resume(x);
}

/* ---- threads beside ---- */

static void *run_controls(void *context) {
    struct ls_http *h = context;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        ls_exchange *x = h->controls;
        bool ends;
        if (x == NULL) {
            if (h->ends) break;
            pthread_cond_wait(&h->control_news, &h->lock);
            continue;
        }
        h->controls = x->next_control;
        if (h->controls == NULL) h->last_control = NULL;
        ends = h->ends;
        pthread_mutex_unlock(&h->lock);
        if (ends)
            ls_exchange_set_error(x, 503, "the server is stopping");
        else
            ls_exchange_handle(x);
        ls_exchange_give_back(x);
        pthread_mutex_lock(&h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Connections whose time is up end here: the library then finds them ended. */
static void end_late(struct ls_http *h, double now) {
    for (ls_peer *l = h->links; l != NULL; l = l->next) {
        if (l->deadline == 0 || now < l->deadline) continue;
        l->deadline = 0;
        ls_http_count(h, &h->server->counts.timed_out, 1);
        shutdown(l->fd, SHUT_RDWR);
    }
}

/* Clients that went away while their request waits or streams: the guard has closed its end. */
static void end_gone(struct ls_http *h) {
    int64_t n = 0, i = 0;
    struct pollfd *list;
    for (ls_exchange *x = h->exchanges; x != NULL; x = x->next) n += x->group != NULL;
    if (n == 0 || ls_array_alloc((void **)&list, n, sizeof *list, "connections", NULL) != LS_OK) return;
    for (ls_exchange *x = h->exchanges; x != NULL; x = x->next)
        if (x->group != NULL)
            list[i++] = (struct pollfd){.fd = x->link != NULL ? x->link->fd : -1, .events = POLLRDHUP};
    if (poll(list, (nfds_t)n, 0) > 0) {
        i = 0;
        for (ls_exchange *x = h->exchanges; x != NULL; x = x->next) {
            if (x->group == NULL || (list[i++].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) continue;
            if (!x->is_gone) ls_http_count(h, &h->server->counts.clients_gone, 1);
            x->is_gone = true;
            ls_group_cancel(x->group);
            x->link->deadline = ls_clock_seconds() + (double)h->server->opts.idle_seconds;
        }
    }
    free(list);
}

static void *watch_connections(void *context) {
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
    ls_http_count(h, &h->server->counts.connections, more);
}

static void on_guard_refusal(void *context, int status) {
    struct ls_http *h = context;
    ls_http_counts *c = &h->server->counts;
    ls_http_count(h,
                  status == 408                    ? &c->timed_out
                  : status >= 500 && status != 505 ? &c->failed_500
                                                   : &c->refused_400,
                  1);
}

static ls_status start_library(struct ls_http *h, ls_error *err) {
    const ls_serve_opts *o = &h->server->opts;
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG |
                           MHD_USE_NO_LISTEN_SOCKET;
    for (; h->n_daemons < o->http_threads && h->n_daemons < LS_DAEMONS_MAX; h->n_daemons++) {
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
    pthread_mutex_init(&h->park_lock, NULL);
    raise_descriptors(o->connections);
    LS_TRY_DONE(listen_on(&fd, o->host, o->port, h->url, err));
    LS_TRY_DONE(ls_crew_start(&h->crew, o->crew, err));
    if (pthread_create(&h->control_thread, NULL, run_controls, h) == 0) h->has_control = true;
    if (pthread_create(&h->watch_thread, NULL, watch_connections, h) == 0) h->has_watch = true;
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

/* How long cancelled requests have to be answered as such, and those that are sent away after that. */
#define CANCEL_SECONDS 5.0
#define AWAY_SECONDS 1.0

/* The daemon ends with no connection suspended, whatever the engine does meanwhile: those that wait for it are sent
 * away. What the crew and the control thread have is given back before they end; they wait for the engine no longer. */
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
        await_quiet(h, CANCEL_SECONDS);
    }
    ls_work_end(h->server->work);
    ls_http_send_away(h);
    pthread_mutex_lock(&h->lock);
    h->ends = true;
    pthread_cond_signal(&h->control_news);
    pthread_mutex_unlock(&h->lock);
    if (h->has_control) pthread_join(h->control_thread, NULL);
    if (h->has_watch) pthread_join(h->watch_thread, NULL);
    ls_crew_stop(h->crew);
    if (h->n_daemons > 0) await_quiet(h, AWAY_SECONDS);
    if (h->guard != NULL) ls_guard_detach(h->guard);
    for (int64_t i = 0; i < h->n_daemons; i++) MHD_stop_daemon(h->daemons[i]);
    ls_guard_free(h->guard);
    pthread_cond_destroy(&h->control_news);
    pthread_mutex_destroy(&h->park_lock);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
