/* Sockets with deadlines; rank 0 is the hub. Owns the connections. */
#define _GNU_SOURCE
#include "train/comm.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define MAGIC UINT64_C(0x31544C4B434F4C2E)
#define VERSION 1
#define HELLO_SECONDS 10.0
#define RETRY_MS 50

typedef enum message_kind { MESSAGE_HELLO = 1, MESSAGE_WELCOME, MESSAGE_DATA, MESSAGE_FAILURE } message_kind;

typedef struct header {
    uint64_t magic;
    int32_t kind, rank;
    int64_t number, bytes; /* number: of this message on its way */
} header;

typedef struct hello {
    int32_t version, n_ranks;
    uint64_t identity;
} hello;

typedef struct peer_link {
    int fd; /* -1: none, or broken */
    int64_t n_sent, n_received;
} peer_link;

struct ls_comm {
    int32_t rank, n_ranks;
    double timeout_s;
    peer_link *links; /* [n_ranks]; of rank 0 to all others, of the others to rank 0 */
};

int32_t ls_comm_rank(const ls_comm *comm) { return comm->rank; }
int32_t ls_comm_ranks(const ls_comm *comm) { return comm->n_ranks; }

/* ---- bytes ---- */

typedef enum outcome { MOVED, SILENT, LOST } outcome;

/* Waits until fd is ready; SILENT after the given time. */
static outcome wait_for(int fd, short events, double seconds) {
    const double deadline = ls_clock_seconds() + seconds;
    for (;;) {
        const double left = deadline - ls_clock_seconds();
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1);
        if (n > 0) return MOVED;
        if (n == 0 && ls_clock_seconds() >= deadline) return SILENT;
        if (n < 0 && errno != EINTR) return LOST;
    }
}

static outcome send_all(int fd, const void *data, int64_t bytes, double timeout_s) {
    const uint8_t *at = data;
    while (bytes > 0) {
        const ssize_t n = send(fd, at, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            const outcome ready = wait_for(fd, POLLOUT, timeout_s);
            if (ready != MOVED) return ready;
        } else if (n < 0 && errno != EINTR) {
            return LOST;
        } else if (n > 0) {
            at += n;
            bytes -= n;
        }
    }
    return MOVED;
}

static outcome receive_all(int fd, void *data, int64_t bytes, double timeout_s) {
    uint8_t *at = data;
    while (bytes > 0) {
        const ssize_t n = recv(fd, at, (size_t)bytes, MSG_DONTWAIT);
        if (n == 0) return LOST;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            const outcome ready = wait_for(fd, POLLIN, timeout_s);
            if (ready != MOVED) return ready;
        } else if (n < 0 && errno != EINTR) {
            return LOST;
        } else if (n > 0) {
            at += n;
            bytes -= n;
        }
    }
    return MOVED;
}

/* ---- messages ---- */

static void drop_link(peer_link *l) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

static ls_status fail_link(ls_comm *c, int32_t peer, outcome how, const char *what, ls_error *err) {
    drop_link(&c->links[peer]);
    if (how == SILENT)
        return LS_FAIL(err, LS_ERR_IO, "rank %d was silent for %g s while rank %d waited for %s", peer, c->timeout_s,
                       c->rank, what);
    return LS_FAIL(err, LS_ERR_IO, "rank %d lost the connection to rank %d at %s", c->rank, peer, what);
}

static ls_status send_message(ls_comm *c, int32_t peer, message_kind kind, const void *data, int64_t bytes,
                              const char *what, ls_error *err) {
    peer_link *to = &c->links[peer];
    const header h = {MAGIC, (int32_t)kind, c->rank, to->n_sent++, bytes};
    outcome sent = to->fd < 0 ? LOST : send_all(to->fd, &h, sizeof h, c->timeout_s);
    if (sent == MOVED) sent = send_all(to->fd, data, bytes, c->timeout_s);
    return sent == MOVED ? LS_OK : fail_link(c, peer, sent, what, err);
}

/* The sentence of a peer that failed. */
static ls_status receive_failure(ls_comm *c, int32_t peer, int64_t bytes, const char *what, ls_error *err) {
    char text[LS_ERROR_TEXT_MAX] = "";
    const int64_t n = bytes < (int64_t)sizeof text ? bytes : (int64_t)sizeof text - 1;
    const outcome got = receive_all(c->links[peer].fd, text, n, c->timeout_s);
    if (got != MOVED) return fail_link(c, peer, got, what, err);
    drop_link(&c->links[peer]);
    return LS_FAIL(err, LS_ERR_IO, "rank %d failed: %s", peer, text);
}

static ls_status receive_message(ls_comm *c, int32_t peer, message_kind kind, void *data, int64_t bytes,
                                 const char *what, ls_error *err) {
    peer_link *from = &c->links[peer];
    header h;
    outcome got = from->fd < 0 ? LOST : receive_all(from->fd, &h, sizeof h, c->timeout_s);
    if (got != MOVED) return fail_link(c, peer, got, what, err);
    if (h.magic == MAGIC && h.kind == MESSAGE_FAILURE && h.bytes >= 0)
        return receive_failure(c, peer, h.bytes, what, err);
    if (h.magic != MAGIC || h.kind != (int32_t)kind || h.rank != peer || h.number != from->n_received ||
        h.bytes != bytes) {
        drop_link(from);
        return LS_FAIL(err, LS_ERR_FORMAT,
                       "rank %d sent message %lld of %lld bytes where rank %d waited for %s: message %lld of %lld",
                       peer, (long long)h.number, (long long)h.bytes, c->rank, what, (long long)from->n_received,
                       (long long)bytes);
    }
    from->n_received++;
    got = receive_all(from->fd, data, bytes, c->timeout_s);
    return got == MOVED ? LS_OK : fail_link(c, peer, got, what, err);
}

void ls_comm_abort(ls_comm *c, const ls_error *reason) {
    for (int32_t peer = 0; peer < c->n_ranks; peer++)
        if (c->links[peer].fd >= 0) {
            (void)send_message(c, peer, MESSAGE_FAILURE, reason->text, (int64_t)strlen(reason->text), "a failure",
                               NULL);
            drop_link(&c->links[peer]);
        }
}

/* ---- meeting ---- */

/* Splits HOST:PORT; an IPv6 host stands in brackets. */
static ls_status resolve(struct addrinfo **out, const char *address, bool to_listen, ls_error *err) {
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = to_listen ? AI_PASSIVE : 0};
    const char *colon = strrchr(address, ':');
    char host[256];
    size_t n;
    int failed;
    if (colon == NULL || colon == address || colon[1] == '\0' || (size_t)(colon - address) >= sizeof host)
        return LS_FAIL(err, LS_ERR_ARG, "address '%.200s' is not HOST:PORT", address);
    n = (size_t)(colon - address);
    memcpy(host, address, n);
    host[n] = '\0';
    if (host[0] == '[' && host[n - 1] == ']') {
        memmove(host, host + 1, n - 2);
        host[n - 2] = '\0';
    }
    failed = getaddrinfo(host, colon + 1, &hints, out);
    if (failed != 0) return LS_FAIL(err, LS_ERR_ARG, "address '%.200s': %s", address, gai_strerror(failed));
    return LS_OK;
}

static void tune(int fd) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

static ls_status listen_at(int *out, const char *address, int backlog, ls_error *err) {
    struct addrinfo *found = NULL;
    ls_status status = resolve(&found, address, true, err);
    int saved = 0;
    *out = -1;
    if (status != LS_OK) return status;
    for (const struct addrinfo *a = found; a != NULL && *out < 0; a = a->ai_next) {
        const int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            saved = errno;
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, backlog) == 0) {
            *out = fd;
        } else {
            saved = errno;
            close(fd);
        }
    }
    freeaddrinfo(found);
    if (*out < 0) return LS_FAIL(err, LS_ERR_IO, "rank 0 cannot listen at %s: %s", address, strerror(saved));
    return LS_OK;
}

/* A connection that does not open with the right words is none of ours and is closed; one of a rank that belongs to
 * another run, or is here already, is told so and ends this run, too. */
static ls_status greet(ls_comm *c, int fd, uint64_t identity, int32_t *n_there, ls_error *err) {
    header h;
    hello said;
    ls_error reason;
    tune(fd);
    if (receive_all(fd, &h, sizeof h, HELLO_SECONDS) != MOVED || h.magic != MAGIC || h.kind != MESSAGE_HELLO ||
        h.bytes != (int64_t)sizeof said || receive_all(fd, &said, sizeof said, HELLO_SECONDS) != MOVED) {
        close(fd);
        return LS_OK;
    }
    if (said.version != VERSION || said.n_ranks != c->n_ranks || h.rank < 1 || h.rank >= c->n_ranks ||
        c->links[h.rank].fd >= 0)
        LS_FAIL(&reason, LS_ERR_ARG, "rank %d of %d came to rank 0 of %d, which has %d of them", h.rank, said.n_ranks,
                c->n_ranks, *n_there);
    else if (said.identity != identity)
        LS_FAIL(&reason, LS_ERR_ARG, "rank %d was started with other options, data or weights than rank 0", h.rank);
    else {
        c->links[h.rank] = (peer_link){fd, 0, 1};
        ++*n_there;
        return LS_OK;
    }
    {
        const header failure = {MAGIC, MESSAGE_FAILURE, 0, 0, (int64_t)strlen(reason.text)};
        if (send_all(fd, &failure, sizeof failure, HELLO_SECONDS) == MOVED)
            (void)send_all(fd, reason.text, failure.bytes, HELLO_SECONDS);
    }
    close(fd);
    return LS_FAIL(err, LS_ERR_ARG, "%s", reason.text);
}

static ls_status gather_ranks(ls_comm *c, const char *address, uint64_t identity, ls_error *err) {
    const double deadline = ls_clock_seconds() + c->timeout_s;
    int32_t n_there = 1;
    int listener;
    ls_status status;
    LS_TRY_DONE(listen_at(&listener, address, c->n_ranks, err));
    while (n_there < c->n_ranks) {
        int fd;
        if (wait_for(listener, POLLIN, deadline - ls_clock_seconds()) != MOVED) {
            status = LS_FAIL(err, LS_ERR_IO, "rank 0 at %s: %d of %d ranks came within %g s", address, n_there,
                             c->n_ranks, c->timeout_s);
            break;
        }
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && (status = greet(c, fd, identity, &n_there, err)) != LS_OK) break;
    }
    close(listener);
    for (int32_t r = 1; status == LS_OK && r < c->n_ranks; r++)
        status = send_message(c, r, MESSAGE_WELCOME, "", 0, "the welcome", err);
    if (status != LS_OK) ls_comm_abort(c, err);
done:
    return status;
}

static ls_status connect_once(int *out, const struct addrinfo *found) {
    for (const struct addrinfo *a = found; a != NULL; a = a->ai_next) {
        const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            *out = fd;
            return LS_OK;
        }
        close(fd);
    }
    return LS_ERR_IO;
}

/* Rank 0 may start later than the others. */
static ls_status join_root(ls_comm *c, const char *address, uint64_t identity, ls_error *err) {
    const double deadline = ls_clock_seconds() + c->timeout_s;
    const hello words = {VERSION, c->n_ranks, identity};
    struct addrinfo *found = NULL;
    int fd;
    ls_status status;
    LS_TRY_DONE(resolve(&found, address, false, err));
    while (connect_once(&fd, found) != LS_OK) {
        if (ls_clock_seconds() >= deadline) {
            status = LS_FAIL(err, LS_ERR_IO, "rank %d found nobody at %s within %g s: %s", c->rank, address,
                             c->timeout_s, strerror(errno));
            goto done;
        }
        (void)poll(NULL, 0, RETRY_MS);
    }
    tune(fd);
    c->links[0].fd = fd;
    LS_TRY_DONE(send_message(c, 0, MESSAGE_HELLO, &words, sizeof words, "the greeting", err));
    LS_TRY_DONE(receive_message(c, 0, MESSAGE_WELCOME, NULL, 0, "the welcome", err));
done:
    if (found != NULL) freeaddrinfo(found);
    return status;
}

ls_status ls_comm_open(ls_comm **out, const ls_comm_opts *o, uint64_t identity, ls_error *err) {
    ls_comm *c = NULL;
    ls_status status;
    *out = NULL;
    if (o->n_ranks < 2 || o->n_ranks > LS_RANKS_MAX || o->rank < 0 || o->rank >= o->n_ranks)
        return LS_FAIL(err, LS_ERR_ARG, "rank %d of %d", o->rank, o->n_ranks);
    if (!(o->timeout_s > 0.0)) return LS_FAIL(err, LS_ERR_ARG, "a timeout of %g s", o->timeout_s);
    LS_TRY_DONE(ls_array_alloc((void **)&c, 1, sizeof *c, "connections", err));
    c->rank = o->rank;
    c->n_ranks = o->n_ranks;
    c->timeout_s = o->timeout_s;
    LS_TRY_DONE(ls_array_alloc((void **)&c->links, c->n_ranks, sizeof *c->links, "connections", err));
    for (int32_t r = 0; r < c->n_ranks; r++) c->links[r].fd = -1;
    LS_TRY_DONE(c->rank == 0 ? gather_ranks(c, o->address, identity, err) : join_root(c, o->address, identity, err));
    *out = c;
    c = NULL;
done:
    ls_comm_close(c);
    return status;
}

void ls_comm_close(ls_comm *c) {
    if (c == NULL) return;
    for (int32_t r = 0; c->links != NULL && r < c->n_ranks; r++) drop_link(&c->links[r]);
    free(c->links);
    free(c);
}

/* ---- exchanges ---- */

ls_status ls_comm_share(ls_comm *c, void *data, const int64_t *begins, const char *what, ls_error *err) {
    uint8_t *bytes = data;
    const int64_t all = begins[c->n_ranks];
    if (c->rank != 0) {
        LS_TRY(send_message(c, 0, MESSAGE_DATA, bytes + begins[c->rank], begins[c->rank + 1] - begins[c->rank], what,
                            err));
        LS_TRY(receive_message(c, 0, MESSAGE_DATA, bytes, all, what, err));
        return LS_OK;
    }
    for (int32_t r = 1; r < c->n_ranks; r++)
        LS_TRY(receive_message(c, r, MESSAGE_DATA, bytes + begins[r], begins[r + 1] - begins[r], what, err));
    for (int32_t r = 1; r < c->n_ranks; r++) LS_TRY(send_message(c, r, MESSAGE_DATA, bytes, all, what, err));
    return LS_OK;
}

/* A gradient from device memory to a rank, and one from a rank into the next leaf of the tree. */
static ls_status send_gradient(ls_comm *c, int32_t rank, const float *gradient, int64_t bytes, float *staging,
                               ls_device *device, ls_error *err) {
    LS_TRY(ls_memory_take(device, staging, gradient, bytes, err));
    return send_message(c, rank, MESSAGE_DATA, staging, bytes, "the gradient", err);
}

static ls_status receive_gradient(ls_comm *c, int32_t rank, ls_gradient *g, int64_t bytes, float *staging,
                                  ls_device *device, float **leaf, ls_error *err) {
    LS_TRY(receive_message(c, rank, MESSAGE_DATA, staging, bytes, "the gradient", err));
    LS_TRY(ls_gradient_leaf(g, false, leaf, err));
    return ls_memory_write(device, *leaf, staging, bytes, err);
}

ls_status ls_comm_fold(ls_comm *c, ls_gradient *g, int64_t n_elements, float *staging, ls_device *device,
                       int32_t n_parts, float **root, ls_error *err) {
    const int64_t bytes = n_elements * (int64_t)sizeof(float);
    float *leaf;
    if (c->rank != 0) {
        if (c->rank < n_parts) {
            LS_TRY(ls_gradient_root(g, &leaf, err));
            LS_TRY(send_gradient(c, 0, leaf, bytes, staging, device, err));
        }
        LS_TRY(receive_gradient(c, 0, g, bytes, staging, device, root, err));
        return LS_OK;
    }
    /* Rank 0's own sum is the first leaf of a tree over ranks: the top of the tree over leaves. */
    LS_TRY(ls_gradient_root(g, &leaf, err));
    for (int32_t r = 1; r < n_parts; r++) {
        LS_TRY(receive_gradient(c, r, g, bytes, staging, device, &leaf, err));
        LS_TRY(ls_gradient_fold(g, err));
    }
    LS_TRY(ls_gradient_root(g, root, err));
    LS_TRY(ls_memory_take(device, staging, *root, bytes, err));
    for (int32_t r = 1; r < c->n_ranks; r++)
        LS_TRY(send_message(c, r, MESSAGE_DATA, staging, bytes, "the gradient", err));
    return LS_OK;
}
