/* The guard's thread, and its connections. All of a connection is the thread's; others only queue that an answer has
 * been sent. */
#define _GNU_SOURCE
#include "serve/serve_guard.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/serve_frame.h"

enum { PIECE = 65536, EVENTS = 256, PAIR_BYTES = 65536, TURNS = 16 };
#define LINGER_SECONDS 2.0
#define LINGER_BYTES ((int64_t)1 << 24)

typedef struct caller caller;

/* What epoll tells of a descriptor. */
typedef struct end {
    caller *of; /* NULL: the listener or the bell */
    int fd;     /* -1: none */
    uint32_t events;
} end;

struct caller {
    end client, library;
    int library_fd; /* the library's own end, while it has it */
    ls_frame frame;
    char *left; /* came behind the end of a request */
    int64_t left_bytes;
    char *out; /* for the client, who has no room */
    int64_t out_bytes, out_at;
    int64_t thrown;    /* bytes, while it lingers */
    int64_t reported;  /* bytes of the library since the request was whole */
    bool is_half;      /* the client has ended its side, perhaps behind bytes that are not read yet */
    bool has_ended;    /* the same, and nothing is left to be read */
    bool is_reported;  /* the library knows that */
    bool is_probed;    /* the client has been sent an interim reply */
    bool is_answered;  /* the library says so: the answer is on its way here, or past */
    bool is_left;      /* the library has closed its end; what it had sent is still to be read */
    bool is_closing;   /* nothing is read of requests any more; ends when out is sent */
    bool is_lingering; /* all is sent: what still comes is thrown away */
    bool is_dead;
    double deadline; /* clock; 0: none, or the library's */
    caller *next, *previous;
};

struct ls_guard {
    ls_guard_opts opts;
    pthread_t thread;
    bool has_thread;
    int poll;
    end listener, bell;
    caller *callers, *dead;
    int64_t n_callers;
    caller **by_fd; /* [fds_cap]: of the library's ends */
    int64_t fds_cap;
    pthread_mutex_t handing; /* held while the library is given something; of is_detached */
    bool is_detached;
    pthread_mutex_t lock; /* of what follows */
    int *answered;
    int64_t n_answered, answered_cap;
    bool quiesces, ends;
    char piece[PIECE]; /* the thread's */
};

/* ---- descriptors ---- */

static void watch_end(ls_guard *g, end *e, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = e};
    if (e->fd < 0 || e->events == events) return;
    (void)epoll_ctl(g->poll, EPOLL_CTL_MOD, e->fd, &event);
    e->events = events;
}

static bool begin_watch(ls_guard *g, end *e, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = e};
    e->events = events;
    return epoll_ctl(g->poll, EPOLL_CTL_ADD, e->fd, &event) == 0;
}

static void close_end(end *e) {
    if (e->fd >= 0) close(e->fd); /* leaves epoll */
    e->fd = -1;
}

static void close_library(ls_guard *g, caller *l) {
    close_end(&l->library);
    if (l->library_fd >= 0 && g->by_fd[l->library_fd] == l) g->by_fd[l->library_fd] = NULL;
    l->library_fd = -1;
}

/* Freed when the events at hand are through. */
static void kill_caller(ls_guard *g, caller *l) {
    if (l->is_dead) return;
    l->is_dead = true;
    close_end(&l->client);
    close_library(g, l);
    if (l->previous != NULL)
        l->previous->next = l->next;
    else
        g->callers = l->next;
    if (l->next != NULL) l->next->previous = l->previous;
    l->next = g->dead;
    g->dead = l;
    g->n_callers--;
    g->opts.on_connection(g->opts.context, -1);
}

static void bury(ls_guard *g) {
    while (g->dead != NULL) {
        caller *l = g->dead;
        g->dead = l->next;
        ls_frame_reset(&l->frame);
        free(l->left);
        free(l->out);
        free(l);
    }
}

/* ---- to the client ---- */

/* Sends what waits. */
static void send_out(ls_guard *g, caller *l) {
    while (l->out_at < l->out_bytes) {
        const ssize_t n =
            send(l->client.fd, l->out + l->out_at, (size_t)(l->out_bytes - l->out_at), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0) {
            kill_caller(g, l);
            return;
        }
        l->out_at += n;
    }
    free(l->out);
    l->out = NULL;
    l->out_at = l->out_bytes = 0;
}

/* With nothing that waits. */
static void send_now(ls_guard *g, caller *l, const char *bytes, int64_t n) {
    const ssize_t sent = send(l->client.fd, bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    const int64_t at = sent > 0 ? sent : 0;
    if (at == n) return;
    if ((sent < 0 && errno != EAGAIN && errno != EINTR) || ls_text_copy(&l->out, bytes + at, n - at, NULL) != LS_OK) {
        kill_caller(g, l);
        return;
    }
    l->out_bytes = n - at;
}

/* All is said that will be. */
static void close_caller(ls_guard *g, caller *l) {
    close_library(g, l);
    if (!l->is_closing) l->deadline = ls_clock_seconds() + g->opts.idle_seconds;
    l->is_closing = true;
    if (l->out_bytes > 0 || l->is_lingering) return;
    if (l->has_ended || shutdown(l->client.fd, SHUT_WR) != 0) {
        kill_caller(g, l);
        return;
    }
    l->is_lingering = true; /* a close with unread bytes would reset what the client has yet to read */
    l->deadline = ls_clock_seconds() + LINGER_SECONDS;
}

static const char *reason_of(int status) {
    switch (status) {
        case 408: return "Request Timeout";
        case 431: return "Request Header Fields Too Large";
        case 500: return "Internal Server Error";
        case 503: return "Service Unavailable";
        case 505: return "HTTP Version Not Supported";
        default: return "Bad Request";
    }
}

/* Answers what is no request, and ends the connection. Where an answer has begun there is no other. */
static void refuse_bytes(ls_guard *g, caller *l, int status, const char *why) {
    char *body = NULL, *whole = NULL;
    size_t body_bytes = 0;
    FILE *file;
    int n;
    g->opts.on_refusal(g->opts.context, status);
    if (l->reported == 0 && l->out_bytes == 0 && (file = open_memstream(&body, &body_bytes)) != NULL) {
        g->opts.say_error(file, status, why);
        if (fclose(file) == 0) {
            n = asprintf(&whole,
                         "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                         "Connection: close\r\n\r\n%s",
                         status, reason_of(status), body_bytes, body);
            if (n > 0) send_now(g, l, whole, n);
            if (n < 0) whole = NULL;
        }
    }
    free(whole);
    free(body);
    if (!l->is_dead) close_caller(g, l);
}

/* ---- from the client ---- */

/* A number that is used again: what was queued for who had it before is of no account. */
static void forget_answered(ls_guard *g, int fd) {
    int64_t n = 0;
    pthread_mutex_lock(&g->lock);
    for (int64_t i = 0; i < g->n_answered; i++)
        if (g->answered[i] != fd) g->answered[n++] = g->answered[i];
    g->n_answered = n;
    pthread_mutex_unlock(&g->lock);
}

static bool hand_over(ls_guard *g, int fd) {
    bool taken = false;
    pthread_mutex_lock(&g->handing);
    if (g->is_detached)
        close(fd);
    else
        taken = g->opts.hand_over(g->opts.context, fd);
    pthread_mutex_unlock(&g->handing);
    return taken;
}

/* The library's end of a new pair. False: the connection is refused. */
static bool open_library(ls_guard *g, caller *l) {
    const int room = PAIR_BYTES;
    int pair[2];
    int64_t cap = g->fds_cap;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) goto none;
    for (int i = 0; i < 2; i++) (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (pair[1] >= cap) {
        if (ls_array_grow((void **)&g->by_fd, &g->fds_cap, pair[1] + 1, sizeof *g->by_fd, "connections", NULL) !=
            LS_OK) {
            close(pair[0]);
            close(pair[1]);
            goto none;
        }
        memset(g->by_fd + cap, 0, (size_t)(g->fds_cap - cap) * sizeof *g->by_fd);
    }
    forget_answered(g, pair[1]);
    l->library = (end){l, pair[0], 0};
    l->library_fd = pair[1];
    g->by_fd[pair[1]] = l;
    if (!begin_watch(g, &l->library, EPOLLIN)) {
        close(pair[1]);
        close_library(g, l);
        goto none;
    }
    l->deadline = 0; /* the library's from here on */
    if (hand_over(g, pair[1])) return true;
    close_library(g, l);
none:
    refuse_bytes(g, l, 503, "no room for another request, or the server is stopping");
    return false;
}

/* Hands on what has been read. */
static void send_in(ls_guard *g, caller *l) {
    ls_frame *f = &l->frame;
    int64_t at = 0;
    if (f->out_bytes == 0 || l->is_closing || (l->library.fd < 0 && !open_library(g, l))) return;
    while (at < f->out_bytes) {
        const ssize_t n = send(l->library.fd, f->out + at, (size_t)(f->out_bytes - at), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break; /* full, or closed, which reading will tell */
        at += n;
    }
    if (at < f->out_bytes && at > 0) memmove(f->out, f->out + at, (size_t)(f->out_bytes - at));
    f->out_bytes -= at;
}

static bool is_whole(const caller *l) { return l->frame.state == LS_FRAME_END; }

/* Bytes of the present request, and perhaps more, which is kept. */
static void take_bytes(ls_guard *g, caller *l, const char *bytes, int64_t n) {
    const int64_t used = ls_frame_feed(&l->frame, bytes, n);
    char *left = NULL;
    if (l->frame.state == LS_FRAME_BAD) {
        refuse_bytes(g, l, l->frame.status, l->frame.why);
        return;
    }
    if (used < n && ls_text_copy(&left, bytes + used, n - used, NULL) != LS_OK) {
        kill_caller(g, l);
        return;
    }
    free(l->left);
    l->left = left;
    l->left_bytes = n - used;
    send_in(g, l);
}

/* The client said all that it will. */
static void end_client(ls_guard *g, caller *l) {
    l->is_half = l->has_ended = true;
    if (l->is_closing) {
        if (l->is_lingering) kill_caller(g, l);
        return;
    }
    if (is_whole(l)) return;                                    /* it may still read */
    if (l->library.fd < 0 || l->frame.state != LS_FRAME_HEAD) { /* what is half there is not answered */
        close_caller(g, l);
        return;
    }
    if (!l->is_reported) (void)shutdown(l->library.fd, SHUT_WR);
    l->is_reported = true;
}

static void read_client(ls_guard *g, caller *l) {
    while (!l->is_dead && !l->has_ended &&
           (l->is_closing ? l->is_lingering : !is_whole(l) && l->frame.out_bytes == 0)) {
        const ssize_t n = recv(l->client.fd, g->piece, sizeof g->piece, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0)
            kill_caller(g, l);
        else if (n == 0)
            end_client(g, l);
        else if (!l->is_closing)
            take_bytes(g, l, g->piece, n);
        if (l->is_lingering && n > 0) {
            l->thrown += n;
            if (l->thrown > LINGER_BYTES) kill_caller(g, l);
            return; /* others have their turn */
        }
    }
}

/* What came behind the last request. */
static void read_left(ls_guard *g, caller *l) {
    while (!l->is_dead && !l->is_closing && l->left_bytes > 0 && !is_whole(l) && l->frame.out_bytes == 0) {
        char *left = l->left;
        const int64_t n = l->left_bytes;
        l->left = NULL;
        l->left_bytes = 0;
        take_bytes(g, l, left, n);
        free(left);
    }
}

/* ---- from the library ---- */

static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";

/* The library's leave to send a body: no part of an answer. */
static bool is_interim(const char *bytes, int64_t n) {
    return n == (int64_t)sizeof interim - 1 && memcmp(bytes, interim, sizeof interim - 1) == 0;
}

/* Returns whether there is nothing more at the moment. So much at a time that others have their turn. */
static bool read_library(ls_guard *g, caller *l) {
    for (int turn = 0; !l->is_dead && l->library.fd >= 0; turn++) {
        ssize_t n;
        if (turn == TURNS && !l->is_left)
            return recv(l->library.fd, g->piece, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
        if (l->out_bytes > 0) return false;
        n = recv(l->library.fd, g->piece, sizeof g->piece, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return true;
        if (n <= 0) {
            close_caller(g, l);
            return false;
        }
        if (!is_interim(g->piece, n)) l->reported += n;
        send_now(g, l, g->piece, n);
    }
    return false;
}

/* The answer is past: the next request may come. */
static void begin_next(caller *l) {
    l->is_answered = l->is_probed = false;
    l->reported = 0;
    ls_frame_reset(&l->frame);
}

/* A request that is whole, whose client has ended its side, and of whose answer there is nothing yet. */
static void probe(ls_guard *g, caller *l) {
    if (l->is_dead || !l->is_half || l->is_probed || !is_whole(l) || l->is_answered || l->reported > 0 ||
        l->out_bytes > 0 || l->frame.is_old || l->is_closing)
        return;
    l->is_probed = true;
    send_now(g, l, interim, sizeof interim - 1);
}

static void set_events(ls_guard *g, caller *l) {
    const bool reads = l->is_closing ? l->is_lingering : !is_whole(l) && l->frame.out_bytes == 0 && l->left_bytes == 0;
    uint32_t events = 0;
    if (l->is_dead) return;
    if (!l->has_ended && reads) events |= EPOLLIN;
    if (!l->is_half && is_whole(l) && !l->is_closing) events |= EPOLLRDHUP;
    if (l->out_bytes > 0) events |= EPOLLOUT;
    watch_end(g, &l->client, events);
    events = l->out_bytes > 0 ? 0 : EPOLLIN;
    if (l->frame.out_bytes > 0) events |= EPOLLOUT;
    watch_end(g, &l->library, events);
}

/* Whatever can go on, goes on. */
static void pump(ls_guard *g, caller *l) {
    bool is_empty;
    if (l->is_dead) return;
    send_out(g, l);
    if (!l->is_dead) send_in(g, l);
    is_empty = read_library(g, l);
    if (!l->is_dead && is_empty && l->is_answered && is_whole(l) && l->out_bytes == 0) begin_next(l);
    if (!l->is_dead && l->is_closing) close_caller(g, l);
    read_left(g, l);
    if (!l->is_dead && l->has_ended && !l->is_closing && l->left_bytes == 0) end_client(g, l);
    read_client(g, l);
    if (!l->is_dead && is_whole(l) && l->is_half && l->library.fd >= 0 && read_library(g, l)) probe(g, l);
    set_events(g, l);
}

static void on_client(ls_guard *g, caller *l, uint32_t events) {
    if (events & (EPOLLERR | EPOLLHUP)) { /* reset: nobody reads any more */
        kill_caller(g, l);
        return;
    }
    if (events & EPOLLRDHUP) l->is_half = true;
    pump(g, l);
}

static void on_library(ls_guard *g, caller *l, uint32_t events) {
    pump(g, l);
    if (l->is_dead || l->library.fd < 0 || l->is_left || (events & (EPOLLERR | EPOLLHUP)) == 0) return;
    /* The client has no room for what the library sent before it left: epoll would tell that without end. */
    l->is_left = true;
    l->deadline = ls_clock_seconds() + g->opts.idle_seconds;
    (void)epoll_ctl(g->poll, EPOLL_CTL_DEL, l->library.fd, NULL);
    pump(g, l);
}

/* ---- the thread ---- */

static void accept_all(ls_guard *g) {
    while (g->listener.fd >= 0 && g->n_callers < g->opts.connections_max) {
        const int on = 1;
        caller *l;
        const int fd = accept4(g->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0 && errno == EAGAIN) return;
        if (fd < 0 || (l = calloc(1, sizeof *l)) == NULL) {
            if (fd >= 0) close(fd);
            break; /* no descriptors or memory: when some are free again */
        }
        l->client = (end){l, fd, 0};
        l->library = (end){l, -1, 0};
        l->library_fd = -1;
        l->deadline = ls_clock_seconds() + g->opts.idle_seconds;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        l->next = g->callers;
        if (g->callers != NULL) g->callers->previous = l;
        g->callers = l;
        g->n_callers++;
        g->opts.on_connection(g->opts.context, 1);
        if (!begin_watch(g, &l->client, EPOLLIN)) kill_caller(g, l);
    }
    watch_end(g, &g->listener, 0);
}

static void take_answered(ls_guard *g) {
    uint64_t count;
    ssize_t unused = read(g->bell.fd, &count, sizeof count);
    (void)unused;
    for (;;) {
        caller *l = NULL;
        int fd;
        pthread_mutex_lock(&g->lock);
        fd = g->n_answered > 0 ? g->answered[--g->n_answered] : -1;
        if (fd >= 0 && fd < g->fds_cap) l = g->by_fd[fd];
        pthread_mutex_unlock(&g->lock);
        if (fd < 0) return;
        if (l == NULL || l->is_dead) continue;
        l->is_answered = true;
        pump(g, l);
    }
}

/* Ends what has taken too long, and listens again where there is room. */
static void look_at_clock(ls_guard *g) {
    const double now = ls_clock_seconds();
    for (caller *l = g->callers, *next; l != NULL; l = next) {
        next = l->next;
        if (l->deadline == 0 || now < l->deadline) continue;
        if (l->is_closing || l->frame.line_bytes == 0) {
            if (!l->is_closing) g->opts.on_refusal(g->opts.context, 408);
            kill_caller(g, l);
        } else {
            refuse_bytes(g, l, 408, "the header was not there in time");
        }
    }
    if (g->listener.fd >= 0 && g->n_callers < g->opts.connections_max) watch_end(g, &g->listener, EPOLLIN);
}

static bool is_ending(ls_guard *g, bool *quiesces) {
    bool ends;
    pthread_mutex_lock(&g->lock);
    ends = g->ends;
    *quiesces = g->quiesces;
    pthread_mutex_unlock(&g->lock);
    return ends;
}

static bool has_unsent(const ls_guard *g) {
    for (const caller *l = g->callers; l != NULL; l = l->next)
        if (l->out_bytes > 0 || l->library.fd >= 0) return true;
    return false;
}

static void *run_guard(void *context) {
    ls_guard *g = context;
    struct epoll_event events[EVENTS];
    double last = ls_clock_seconds(), until = 0;
    bool quiesces;
    for (;;) {
        const int n = epoll_wait(g->poll, events, EVENTS, 50);
        for (int i = 0; i < n; i++) {
            end *e = events[i].data.ptr;
            if (e == &g->listener) accept_all(g);
            if (e == &g->bell) take_answered(g);
            if (e->of == NULL || e->of->is_dead) continue;
            if (e == &e->of->client)
                on_client(g, e->of, events[i].events);
            else
                on_library(g, e->of, events[i].events);
        }
        if (ls_clock_seconds() - last >= 0.05) {
            look_at_clock(g);
            last = ls_clock_seconds();
        }
        bury(g);
        if (is_ending(g, &quiesces)) {
            if (until == 0) until = ls_clock_seconds() + LINGER_SECONDS;
            if (!has_unsent(g) || ls_clock_seconds() > until) return NULL;
        }
        if (quiesces) close_end(&g->listener);
    }
}

static void ring(ls_guard *g) {
    const uint64_t one = 1;
    ssize_t unused = write(g->bell.fd, &one, sizeof one);
    (void)unused;
}

void ls_guard_answered(ls_guard *g, int fd) {
    pthread_mutex_lock(&g->lock);
    if (ls_array_grow((void **)&g->answered, &g->answered_cap, g->n_answered + 1, sizeof *g->answered, "answers",
                      NULL) == LS_OK)
        g->answered[g->n_answered++] = fd;
    pthread_mutex_unlock(&g->lock);
    ring(g);
}

void ls_guard_quiesce(ls_guard *g) {
    pthread_mutex_lock(&g->lock);
    g->quiesces = true;
    pthread_mutex_unlock(&g->lock);
    ring(g);
}

void ls_guard_detach(ls_guard *g) {
    pthread_mutex_lock(&g->handing);
    g->is_detached = true;
    pthread_mutex_unlock(&g->handing);
}

ls_status ls_guard_start(ls_guard **out, int listener, const ls_guard_opts *opts, ls_error *err) {
    ls_guard *g = calloc(1, sizeof *g);
    bool runs;
    *out = NULL;
    if (g == NULL) {
        close(listener);
        return LS_FAIL(err, LS_ERR_NOMEM, "server");
    }
    g->opts = *opts;
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->handing, NULL);
    g->listener = (end){NULL, listener, 0};
    g->bell = (end){NULL, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), 0};
    g->poll = epoll_create1(EPOLL_CLOEXEC);
    *out = g; /* before the thread, whose callbacks may need it */
    runs =
        g->bell.fd >= 0 && g->poll >= 0 && begin_watch(g, &g->listener, EPOLLIN) && begin_watch(g, &g->bell, EPOLLIN);
    g->has_thread = runs && pthread_create(&g->thread, NULL, run_guard, g) == 0;
    if (g->has_thread) return LS_OK;
    ls_guard_free(g);
    *out = NULL;
    return LS_FAIL(err, LS_ERR_NOMEM, "server: no descriptors or threads");
}

void ls_guard_free(ls_guard *g) {
    if (g == NULL) return;
    pthread_mutex_lock(&g->lock);
    g->ends = g->quiesces = true;
    pthread_mutex_unlock(&g->lock);
    if (g->has_thread) {
        ring(g);
        pthread_join(g->thread, NULL);
    }
    while (g->callers != NULL) kill_caller(g, g->callers);
    bury(g);
    close_end(&g->listener);
    close_end(&g->bell);
    if (g->poll >= 0) close(g->poll);
    pthread_mutex_destroy(&g->handing);
    pthread_mutex_destroy(&g->lock);
    free(g->answered);
    free(g->by_fd);
    free(g);
}
