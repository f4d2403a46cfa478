/* All ways of an exchange at once. Owns the connections, and host memory for what lies on a device. */
#define _GNU_SOURCE
#include "train/mesh.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "net/wire.h"

#define MAGIC UINT64_C(0x31544C4B434F4C2E)
#define VERSION 2
#define HELLO_SECONDS 10.0
/* Of device memory that is on the host at a time, for each way. */
#define PIECE_BYTES ((int64_t)1 << 18)
/* Signs of life within a timeout. */
#define PULSES 4
/* How long a lost connection waits for the sentence of somebody who knows more. */
#define LAST_WORDS_SECONDS 0.25

typedef enum message_kind {
    MESSAGE_HELLO = 1,
    MESSAGE_WELCOME,
    MESSAGE_DATA,
    MESSAGE_FAILURE,
    MESSAGE_ALIVE
} message_kind;

typedef struct header {
    uint64_t magic;
    int32_t kind, rank;
    int64_t number, bytes; /* number: of this message on its way */
} header;

typedef struct hello {
    int32_t version, n_ranks;
    uint64_t identity;
    int32_t port, unused; /* where this rank listens */
} hello;

/* Where a rank listens, as rank 0 sees it. */
typedef struct place {
    char host[LS_WIRE_HOST_MAX];
    int32_t port, is_loopback;
} place;

/* One direction of a connection. */
typedef struct way {
    int64_t n;     /* messages so far */
    header h;      /* of the one under way */
    int64_t h_at;  /* bytes of it that have moved */
    int64_t left;  /* bytes behind it that have not */
    int64_t total; /* of this exchange */
    bool active;
    const ls_comm_move *move; /* the next one of this way, or NULL */
    int64_t at;               /* bytes of it that have moved */
    uint8_t *piece;           /* [PIECE_BYTES], NULL without a device */
    int64_t piece_at, piece_n;
} way;

typedef struct peer_link {
    int fd; /* -1: none, or broken */
    way out, in;
    header pulse;
    int64_t pulse_left; /* bytes of a sign of life that have not gone yet */
    double seen;
} peer_link;

struct ls_mesh {
    int32_t rank, n_ranks;
    double timeout_s;
    peer_link *links; /* [n_ranks] */
    struct pollfd *polls;
    int32_t *polled; /* rank of each */
    uint8_t *pieces; /* [2 n_ranks][PIECE_BYTES]; NULL before the first device */
    const char *what;
};

/* ---- failing ---- */

static void drop_link(peer_link *l) {
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

static ls_status fail_silent(ls_mesh *m, int32_t peer, const char *what, ls_error *err) {
    drop_link(&m->links[peer]);
    return LS_FAIL(err, LS_ERR_IO, "rank %d was silent for %g s while rank %d waited for %s", peer, m->timeout_s,
                   m->rank, what);
}

static ls_status fail_lost(ls_mesh *m, int32_t peer, const char *what, ls_error *err) {
    drop_link(&m->links[peer]);
    return LS_FAIL(err, LS_ERR_IO, "rank %d lost the connection to rank %d at %s", m->rank, peer, what);
}

static ls_status fail_link(ls_mesh *m, int32_t peer, ls_wire_outcome how, const char *what, ls_error *err) {
    return how == LS_WIRE_SILENT ? fail_silent(m, peer, what, err) : fail_lost(m, peer, what, err);
}

/* The sentence of a peer that failed; its header has been read. */
static ls_status receive_failure(ls_mesh *m, int32_t peer, int64_t bytes, const char *what, ls_error *err) {
    char text[LS_ERROR_TEXT_MAX] = "";
    const int64_t n = bytes < (int64_t)sizeof text ? bytes : (int64_t)sizeof text - 1;
    const ls_wire_outcome got = ls_wire_receive(m->links[peer].fd, text, n, m->timeout_s);
    if (got != LS_WIRE_MOVED) return fail_link(m, peer, got, what, err);
    drop_link(&m->links[peer]);
    return LS_FAIL(err, LS_ERR_IO, "rank %d failed: %s", peer, text);
}

void ls_mesh_abort(ls_mesh *m, const ls_error *reason) {
    for (int32_t peer = 0; peer < m->n_ranks; peer++) {
        peer_link *l = &m->links[peer];
        const header h = {MAGIC, MESSAGE_FAILURE, m->rank, l->out.n, (int64_t)strlen(reason->text)};
        if (l->fd < 0) continue;
        /* In the middle of a message there is no place for another one. */
        if (!(l->out.active && l->out.h_at > 0) && l->pulse_left % (int64_t)sizeof(header) == 0 &&
            ls_wire_send(l->fd, &h, sizeof h, HELLO_SECONDS) == LS_WIRE_MOVED)
            (void)ls_wire_send(l->fd, reason->text, h.bytes, HELLO_SECONDS);
        drop_link(l);
    }
}

/* ---- one way ---- */

/* The next move with this peer from `from` on, or NULL. */
static const ls_comm_move *find_move(const ls_comm_move *from, const ls_comm_move *end, int32_t peer) {
    while (from < end && (from->peer != peer || from->bytes == 0)) from++;
    return from < end ? from : NULL;
}

static void begin_way(way *w, const ls_comm_move *moves, int64_t n, int32_t peer, int64_t total) {
    w->total = w->left = total;
    w->active = total > 0;
    w->at = w->piece_at = w->piece_n = 0;
    w->move = w->active ? find_move(moves, moves + n, peer) : NULL;
}

/* Bytes of the way have moved. */
static void advance(way *w, int64_t n, const ls_comm_move *end, int32_t peer) {
    w->at += n;
    w->left -= n;
    if (w->at < w->move->bytes) return;
    w->move = find_move(w->move + 1, end, peer);
    w->at = 0;
}

typedef enum step { STEP_BLOCKED, STEP_WENT, STEP_LOST } step;

static step blocked_or_lost(ssize_t n) {
    if (n == 0) return STEP_LOST;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? STEP_BLOCKED : STEP_LOST;
}

/* Sends some of a header; *at counts. */
static step push_header(int fd, const header *h, int64_t *at) {
    const ssize_t n = send(fd, (const uint8_t *)h + *at, sizeof *h - (size_t)*at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) return blocked_or_lost(n);
    *at += n;
    return STEP_WENT;
}

static step push_pulse(peer_link *l) {
    int64_t at = (int64_t)sizeof l->pulse - l->pulse_left;
    const step s = push_header(l->fd, &l->pulse, &at);
    l->pulse_left = (int64_t)sizeof l->pulse - at;
    return s;
}

/* Sends what goes at once of a piece of the way's memory. */
static ls_status push_bytes(way *w, int fd, ls_device *device, const ls_comm_move *end, int32_t peer, step *out,
                            ls_error *err) {
    const uint8_t *from = (const uint8_t *)w->move->memory + w->at;
    int64_t n = w->move->bytes - w->at;
    ssize_t sent;
    if (device != NULL) {
        if (w->piece_at == w->piece_n) {
            w->piece_n = n < PIECE_BYTES ? n : PIECE_BYTES;
            w->piece_at = 0;
            LS_TRY(ls_memory_take(device, w->piece, from, w->piece_n, err));
        }
        from = w->piece + w->piece_at;
        n = w->piece_n - w->piece_at;
    }
    sent = send(fd, from, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    *out = sent > 0 ? STEP_WENT : blocked_or_lost(sent == 0 ? -1 : sent);
    if (sent <= 0) return LS_OK;
    w->piece_at += sent;
    advance(w, sent, end, peer);
    return LS_OK;
}

/* Receives what is there of a piece of the way's memory. */
static ls_status pull_bytes(way *w, int fd, ls_device *device, const ls_comm_move *end, int32_t peer, step *out,
                            ls_error *err) {
    int64_t n = w->move->bytes - w->at;
    uint8_t *to = (uint8_t *)w->move->memory + w->at;
    ssize_t got;
    if (device != NULL) {
        if (w->piece_n == 0) w->piece_n = n < PIECE_BYTES ? n : PIECE_BYTES;
        n = w->piece_n - w->piece_at;
    }
    got = recv(fd, device != NULL ? w->piece + w->piece_at : to, (size_t)n, MSG_DONTWAIT);
    *out = got > 0 ? STEP_WENT : blocked_or_lost(got);
    if (got <= 0) return LS_OK;
    if (device == NULL) {
        advance(w, got, end, peer);
        return LS_OK;
    }
    w->piece_at += got;
    if (w->piece_at < w->piece_n) return LS_OK;
    LS_TRY(ls_memory_write(device, to, w->piece, w->piece_n, err));
    advance(w, w->piece_n, end, peer);
    w->piece_at = w->piece_n = 0;
    return LS_OK;
}

/* ---- headers that come in ---- */

static ls_status check_data(ls_mesh *m, int32_t peer, const char *what, ls_error *err) {
    const way *w = &m->links[peer].in;
    if (w->h.number == w->n && w->h.bytes == w->total) return LS_OK;
    drop_link(&m->links[peer]);
    return LS_FAIL(err, LS_ERR_FORMAT,
                   "rank %d sent message %lld of %lld bytes where rank %d waited for %s: message %lld of %lld", peer,
                   (long long)w->h.number, (long long)w->h.bytes, m->rank, what, (long long)w->n, (long long)w->total);
}

/* A whole header is there: a sign of life and a failure are dealt with, data wait for their exchange. */
static ls_status take_header(ls_mesh *m, int32_t peer, const char *what, ls_error *err) {
    way *w = &m->links[peer].in;
    const header *h = &w->h;
    if (h->magic == MAGIC && h->rank == peer && h->kind == MESSAGE_ALIVE) {
        w->h_at = 0;
        return LS_OK;
    }
    if (h->magic == MAGIC && h->kind == MESSAGE_FAILURE && h->bytes >= 0)
        return receive_failure(m, peer, h->bytes, what, err);
    if (h->magic == MAGIC && h->rank == peer && h->kind == MESSAGE_DATA)
        return w->active ? check_data(m, peer, what, err) : LS_OK;
    drop_link(&m->links[peer]);
    return LS_FAIL(err, LS_ERR_FORMAT, "rank %d sent something that is no message while rank %d waited for %s", peer,
                   m->rank, what);
}

static step pull_header(way *w, int fd) {
    const ssize_t n = recv(fd, (uint8_t *)&w->h + w->h_at, sizeof w->h - (size_t)w->h_at, MSG_DONTWAIT);
    if (n <= 0) return blocked_or_lost(n);
    w->h_at += n;
    return STEP_WENT;
}

/* A connection is lost. Who closed it may have said why, or have heard it from somebody else. */
static ls_status last_words(ls_mesh *m, int32_t peer, const char *what, ls_error *err) {
    const double deadline = ls_clock_seconds() + LAST_WORDS_SECONDS;
    bool open = true;
    while (open && ls_clock_seconds() < deadline) {
        open = false;
        for (int32_t r = 0; r < m->n_ranks; r++) {
            peer_link *l = &m->links[r];
            step s = STEP_WENT;
            if (l->fd < 0 || (l->in.h_at == (int64_t)sizeof l->in.h && l->in.left > 0)) continue;
            while (s == STEP_WENT && l->in.h_at < (int64_t)sizeof l->in.h) s = pull_header(&l->in, l->fd);
            if (l->in.h_at == (int64_t)sizeof l->in.h && l->in.h.magic == MAGIC && l->in.h.kind == MESSAGE_FAILURE)
                return receive_failure(m, r, l->in.h.bytes, what, err);
            if (l->in.h_at == (int64_t)sizeof l->in.h && l->in.h.kind == MESSAGE_ALIVE) l->in.h_at = 0;
            open = open || (r != peer && s == STEP_BLOCKED);
        }
        if (open) (void)poll(NULL, 0, 10);
    }
    return fail_lost(m, peer, what, err);
}

/* ---- the exchange ---- */

static ls_status serve_in(ls_mesh *m, int32_t peer, ls_device *device, const ls_comm_moves *moves, ls_error *err) {
    peer_link *l = &m->links[peer];
    way *w = &l->in;
    step s = STEP_WENT;
    while (s == STEP_WENT) {
        if (w->h_at < (int64_t)sizeof w->h) {
            s = pull_header(w, l->fd);
            if (s == STEP_WENT) l->seen = ls_clock_seconds();
            if (s == STEP_WENT && w->h_at == (int64_t)sizeof w->h) LS_TRY(take_header(m, peer, m->what, err));
        } else if (w->active && w->left > 0) {
            LS_TRY(pull_bytes(w, l->fd, device, moves->receives + moves->n_receives, peer, &s, err));
            if (s == STEP_WENT) l->seen = ls_clock_seconds();
        } else {
            break;
        }
        if (w->active && w->left == 0) {
            w->active = false;
            w->h_at = 0;
            w->n++;
            return LS_OK;
        }
    }
    if (s == STEP_LOST && !w->active && !l->out.active && w->h_at == 0) {
        drop_link(l); /* it needs nothing more, or it will be missed when it is waited for */
        return LS_OK;
    }
    return s == STEP_LOST ? last_words(m, peer, m->what, err) : LS_OK;
}

static ls_status serve_out(ls_mesh *m, int32_t peer, ls_device *device, const ls_comm_moves *moves, ls_error *err) {
    peer_link *l = &m->links[peer];
    way *w = &l->out;
    step s = STEP_WENT;
    while (s == STEP_WENT && (l->pulse_left > 0 || w->active)) {
        if (l->pulse_left > 0 && w->h_at == 0)
            s = push_pulse(l);
        else if (w->h_at < (int64_t)sizeof w->h)
            s = push_header(l->fd, &w->h, &w->h_at);
        else
            LS_TRY(push_bytes(w, l->fd, device, moves->sends + moves->n_sends, peer, &s, err));
        if (s == STEP_WENT) l->seen = ls_clock_seconds();
        if (w->active && w->left == 0) {
            w->active = false;
            w->h_at = 0;
            w->n++;
        }
    }
    return s == STEP_LOST ? last_words(m, peer, m->what, err) : LS_OK;
}

/* Says that this rank is there, on all ways that are between messages. */
static void pulse(ls_mesh *m) {
    for (int32_t r = 0; r < m->n_ranks; r++) {
        peer_link *l = &m->links[r];
        if (l->fd < 0 || l->pulse_left > 0 || l->out.h_at > 0) continue;
        l->pulse = (header){MAGIC, MESSAGE_ALIVE, m->rank, 0, 0};
        l->pulse_left = (int64_t)sizeof l->pulse;
        (void)push_pulse(l); /* a lost connection shows where it is read */
    }
}

static bool is_pending(const ls_mesh *m) {
    for (int32_t r = 0; r < m->n_ranks; r++)
        if (m->links[r].out.active || m->links[r].in.active) return true;
    return false;
}

/* A peer that is waited for and gave no sign for too long, or -1. Receiving comes first: who does not read may wait. */
static int32_t silent_peer(const ls_mesh *m) {
    const double now = ls_clock_seconds();
    for (int32_t r = 0; r < m->n_ranks; r++)
        if (m->links[r].in.active && now - m->links[r].seen > m->timeout_s) return r;
    for (int32_t r = 0; r < m->n_ranks; r++)
        if (m->links[r].out.active && now - m->links[r].seen > m->timeout_s) return r;
    return -1;
}

/* Waits for the ways that have something to do, and serves them. */
static ls_status serve(ls_mesh *m, ls_device *device, const ls_comm_moves *moves, double seconds, ls_error *err) {
    int32_t n = 0;
    for (int32_t r = 0; r < m->n_ranks; r++) {
        const peer_link *l = &m->links[r];
        short events = 0;
        if (l->fd < 0) continue;
        if (l->out.active || l->pulse_left > 0) events |= POLLOUT;
        /* Data of the next exchange stay where they are. */
        if (l->in.active || l->in.h_at < (int64_t)sizeof l->in.h) events |= POLLIN;
        if (events == 0) continue;
        m->polled[n] = r;
        m->polls[n++] = (struct pollfd){.fd = l->fd, .events = events};
    }
    if (poll(m->polls, (nfds_t)n, (int)(seconds * 1e3) + 1) <= 0) return LS_OK;
    for (int32_t i = 0; i < n; i++) {
        const int32_t r = m->polled[i];
        if ((m->polls[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && m->links[r].fd >= 0)
            LS_TRY(serve_in(m, r, device, moves, err));
        if ((m->polls[i].revents & POLLOUT) != 0 && m->links[r].fd >= 0) LS_TRY(serve_out(m, r, device, moves, err));
    }
    return LS_OK;
}

static ls_status make_pieces(ls_mesh *m, ls_error *err) {
    if (m->pieces != NULL) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&m->pieces, 2 * (int64_t)m->n_ranks, PIECE_BYTES, "exchange", err));
    for (int32_t r = 0; r < m->n_ranks; r++) {
        m->links[r].out.piece = m->pieces + 2 * r * PIECE_BYTES;
        m->links[r].in.piece = m->pieces + (2 * r + 1) * PIECE_BYTES;
    }
    return LS_OK;
}

static int64_t bytes_with(const ls_comm_move *moves, int64_t n, int32_t peer) {
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += moves[i].peer == peer ? moves[i].bytes : 0;
    return total;
}

static ls_status begin_exchange(ls_mesh *m, const ls_comm_moves *moves, const char *what, ls_error *err) {
    m->what = what;
    for (int32_t r = 0; r < m->n_ranks; r++) {
        peer_link *l = &m->links[r];
        begin_way(&l->out, moves->sends, moves->n_sends, r, bytes_with(moves->sends, moves->n_sends, r));
        begin_way(&l->in, moves->receives, moves->n_receives, r, bytes_with(moves->receives, moves->n_receives, r));
        LS_ASSERT(r != m->rank || (!l->out.active && !l->in.active), "rank %d sends to itself", r);
        l->seen = ls_clock_seconds();
        if ((l->out.active || l->in.active) && l->fd < 0) return fail_lost(m, r, what, err);
        if (l->out.active) l->out.h = (header){MAGIC, MESSAGE_DATA, m->rank, l->out.n, l->out.total};
        /* Its header came in while this rank waited for something else. */
        if (l->in.active && l->in.h_at == (int64_t)sizeof l->in.h) LS_TRY(check_data(m, r, what, err));
    }
    return LS_OK;
}

ls_status ls_mesh_exchange(ls_mesh *m, ls_device *device, const ls_comm_moves *moves, const char *what, ls_error *err) {
    const double period = m->timeout_s / PULSES;
    double next = ls_clock_seconds() + period;
    if (device != NULL) LS_TRY(make_pieces(m, err));
    LS_TRY(begin_exchange(m, moves, what, err));
    while (is_pending(m)) {
        int32_t silent;
        LS_TRY(serve(m, device, moves, period < 0.5 ? period : 0.5, err));
        if ((silent = silent_peer(m)) >= 0) return fail_silent(m, silent, what, err);
        if (ls_clock_seconds() < next) continue;
        pulse(m);
        next = ls_clock_seconds() + period;
    }
    return LS_OK;
}

ls_status ls_mesh_look(ls_mesh *m, double seconds, const char *what, ls_error *err) {
    static const ls_comm_moves none = {NULL, NULL, 0, 0};
    m->what = what;
    return serve(m, NULL, &none, seconds, err);
}

/* ---- meeting ---- */

static ls_status send_words(ls_mesh *m, int32_t peer, message_kind kind, const void *data, int64_t bytes,
                            const char *what, ls_error *err) {
    const header h = {MAGIC, (int32_t)kind, m->rank, 0, bytes};
    const int fd = m->links[peer].fd;
    ls_wire_outcome sent = ls_wire_send(fd, &h, sizeof h, m->timeout_s);
    if (sent == LS_WIRE_MOVED) sent = ls_wire_send(fd, data, bytes, m->timeout_s);
    return sent == LS_WIRE_MOVED ? LS_OK : fail_link(m, peer, sent, what, err);
}

static ls_status receive_words(ls_mesh *m, int32_t peer, message_kind kind, void *data, int64_t bytes, const char *what,
                               ls_error *err) {
    header h;
    ls_wire_outcome got = ls_wire_receive(m->links[peer].fd, &h, sizeof h, m->timeout_s);
    if (got != LS_WIRE_MOVED) return fail_link(m, peer, got, what, err);
    if (h.magic == MAGIC && h.kind == MESSAGE_FAILURE && h.bytes >= 0)
        return receive_failure(m, peer, h.bytes, what, err);
    if (h.magic != MAGIC || h.kind != (int32_t)kind || h.rank != peer || h.bytes != bytes) {
        drop_link(&m->links[peer]);
        return LS_FAIL(err, LS_ERR_FORMAT, "rank %d sent something else where rank %d waited for %s", peer, m->rank,
                       what);
    }
    got = ls_wire_receive(m->links[peer].fd, data, bytes, m->timeout_s);
    return got == LS_WIRE_MOVED ? LS_OK : fail_link(m, peer, got, what, err);
}

/* The words of who comes; false: it is none of ours, and the connection is closed. */
static bool read_hello(int fd, header *h, hello *said) {
    ls_wire_tune(fd);
    if (ls_wire_receive(fd, h, sizeof *h, HELLO_SECONDS) == LS_WIRE_MOVED && h->magic == MAGIC &&
        h->kind == MESSAGE_HELLO && h->bytes == (int64_t)sizeof *said &&
        ls_wire_receive(fd, said, sizeof *said, HELLO_SECONDS) == LS_WIRE_MOVED)
        return true;
    close(fd);
    return false;
}

/* A rank that belongs to another run, or is here already, is told so and ends this run, too. */
static ls_status greet(ls_mesh *m, int fd, uint64_t identity, place *places, int32_t *n_there, ls_error *err) {
    header h;
    hello said;
    ls_error reason;
    bool is_loopback;
    if (!read_hello(fd, &h, &said)) return LS_OK;
    if (said.version != VERSION || said.n_ranks != m->n_ranks || h.rank < 1 || h.rank >= m->n_ranks ||
        m->links[h.rank].fd >= 0)
        LS_FAIL(&reason, LS_ERR_ARG, "rank %d of %d came to rank 0 of %d, which has %d of them", h.rank, said.n_ranks,
                m->n_ranks, *n_there);
    else if (said.identity != identity)
        LS_FAIL(&reason, LS_ERR_ARG, "rank %d was started with other options, data or weights than rank 0", h.rank);
    else {
        m->links[h.rank].fd = fd;
        ls_wire_peer(fd, places[h.rank].host, &is_loopback);
        places[h.rank].port = said.port;
        places[h.rank].is_loopback = is_loopback;
        ++*n_there;
        return LS_OK;
    }
    {
        const header failure = {MAGIC, MESSAGE_FAILURE, 0, 0, (int64_t)strlen(reason.text)};
        if (ls_wire_send(fd, &failure, sizeof failure, HELLO_SECONDS) == LS_WIRE_MOVED)
            (void)ls_wire_send(fd, reason.text, failure.bytes, HELLO_SECONDS);
    }
    close(fd);
    return LS_FAIL(err, LS_ERR_ARG, "%s", reason.text);
}

/* The number of this meeting: of strangers nobody knows it. */
static uint64_t meeting_number(uint64_t identity) {
    const double now = ls_clock_seconds();
    const int64_t id = (int64_t)getpid();
    return ls_fnv_mix(ls_fnv_mix(identity, &now, (int64_t)sizeof now), &id, (int64_t)sizeof id);
}

/* Rank 0: all come, then all are told where the others are. */
static ls_status gather_ranks(ls_mesh *m, const char *address, uint64_t identity, ls_error *err) {
    const double deadline = ls_clock_seconds() + m->timeout_s;
    const uint64_t number = meeting_number(identity);
    place *places = NULL;
    int32_t n_there = 1;
    int listener = -1;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&places, m->n_ranks, sizeof *places, "ranks", err));
    memcpy(places[0].host, &number, sizeof number);
    LS_TRY_DONE(ls_wire_listen(&listener, address, m->n_ranks, err));
    while (n_there < m->n_ranks) {
        int fd;
        if (ls_wire_wait(listener, POLLIN, deadline - ls_clock_seconds()) != LS_WIRE_MOVED) {
            status = LS_FAIL(err, LS_ERR_IO, "rank 0 at %s: %d of %d ranks came within %g s", address, n_there,
                             m->n_ranks, m->timeout_s);
            goto done;
        }
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) LS_TRY_DONE(greet(m, fd, identity, places, &n_there, err));
    }
    for (int32_t r = 1; r < m->n_ranks; r++)
        LS_TRY_DONE(
            send_words(m, r, MESSAGE_WELCOME, places, m->n_ranks * (int64_t)sizeof *places, "the welcome", err));
done:
    if (listener >= 0) close(listener);
    free(places);
    return status;
}

/* Goes to a rank at the place that rank 0 saw. What rank 0 saw on its own loopback is on rank 0's machine. */
static ls_status visit(ls_mesh *m, int32_t peer, const place *p, const hello *words, double deadline, ls_error *err) {
    char address[LS_WIRE_HOST_MAX + 16], host[LS_WIRE_HOST_MAX];
    bool is_loopback;
    ls_wire_peer(m->links[0].fd, host, &is_loopback);
    ls_wire_join(address, sizeof address, p->is_loopback != 0 && !is_loopback ? host : p->host, p->port);
    if (ls_wire_connect(&m->links[peer].fd, address, deadline, err) != LS_OK)
        return LS_FAIL(err, LS_ERR_IO, "rank %d found nobody at %s, where rank %d should be, within %g s", m->rank,
                       address, peer, m->timeout_s);
    ls_wire_tune(m->links[peer].fd);
    return send_words(m, peer, MESSAGE_HELLO, words, (int64_t)sizeof *words, "the greeting", err);
}

/* Ranks above this one come. */
static ls_status receive_visits(ls_mesh *m, int listener, uint64_t number, double deadline, ls_error *err) {
    for (int32_t n_left = m->n_ranks - 1 - m->rank; n_left > 0;) {
        header h;
        hello said;
        int fd;
        if (ls_wire_wait(listener, POLLIN, deadline - ls_clock_seconds()) != LS_WIRE_MOVED) {
            int32_t missing = m->rank + 1;
            while (m->links[missing].fd >= 0) missing++;
            return LS_FAIL(err, LS_ERR_IO, "rank %d did not come to rank %d within %g s", missing, m->rank,
                           m->timeout_s);
        }
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || !read_hello(fd, &h, &said)) continue;
        if (said.identity != number || h.rank <= m->rank || h.rank >= m->n_ranks || m->links[h.rank].fd >= 0) {
            close(fd); /* none of this meeting */
            continue;
        }
        m->links[h.rank].fd = fd;
        n_left--;
    }
    return LS_OK;
}

static ls_status visit_all(ls_mesh *m, int listener, double deadline, ls_error *err) {
    place *places = NULL;
    hello words = {VERSION, m->n_ranks, 0, 0, 0};
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&places, m->n_ranks, sizeof *places, "ranks", err));
    LS_TRY_DONE(receive_words(m, 0, MESSAGE_WELCOME, places, m->n_ranks * (int64_t)sizeof *places, "the welcome", err));
    memcpy(&words.identity, places[0].host, sizeof words.identity);
    for (int32_t r = 1; r < m->n_ranks; r++) places[r].host[LS_WIRE_HOST_MAX - 1] = '\0';
    for (int32_t r = 1; r < m->rank; r++) LS_TRY_DONE(visit(m, r, &places[r], &words, deadline, err));
    LS_TRY_DONE(receive_visits(m, listener, words.identity, deadline, err));
done:
    free(places);
    return status;
}

/* Rank 0 may start later than the others. */
static ls_status join_root(ls_mesh *m, const char *address, uint64_t identity, ls_error *err) {
    const double start = ls_clock_seconds();
    hello words = {VERSION, m->n_ranks, identity, 0, 0};
    int listener = -1;
    ls_error why;
    ls_status status;
    LS_TRY_DONE(ls_wire_listen_anywhere(&listener, &words.port, m->n_ranks, err));
    status = ls_wire_connect(&m->links[0].fd, address, start + m->timeout_s, &why);
    if (status == LS_ERR_IO)
        status = LS_FAIL(err, LS_ERR_IO, "rank %d found nobody at %s within %g s", m->rank, address, m->timeout_s);
    else if (status != LS_OK && err != NULL)
        *err = why;
    if (status != LS_OK) goto done;
    ls_wire_tune(m->links[0].fd);
    LS_TRY_DONE(send_words(m, 0, MESSAGE_HELLO, &words, sizeof words, "the greeting", err));
    LS_TRY_DONE(visit_all(m, listener, ls_clock_seconds() + m->timeout_s, err));
done:
    if (listener >= 0) close(listener);
    return status;
}

ls_status ls_mesh_open(ls_mesh **out, const ls_mesh_opts *o, uint64_t identity, ls_error *err) {
    ls_mesh *m = NULL;
    ls_error reason = {LS_OK, ""};
    ls_status status;
    *out = NULL;
    if (o->n_ranks < 2 || o->n_ranks > LS_RANKS_MAX || o->rank < 0 || o->rank >= o->n_ranks)
        return LS_FAIL(err, LS_ERR_ARG, "rank %d of %d", o->rank, o->n_ranks);
    if (!(o->timeout_s > 0.0)) return LS_FAIL(err, LS_ERR_ARG, "a timeout of %g s", o->timeout_s);
    LS_TRY_DONE(ls_array_alloc((void **)&m, 1, sizeof *m, "connections", &reason));
    m->rank = o->rank;
    m->n_ranks = o->n_ranks;
    m->timeout_s = o->timeout_s;
    LS_TRY_DONE(ls_array_alloc((void **)&m->links, m->n_ranks, sizeof *m->links, "connections", &reason));
    for (int32_t r = 0; r < m->n_ranks; r++) m->links[r].fd = -1;
    LS_TRY_DONE(ls_array_alloc((void **)&m->polls, m->n_ranks, sizeof *m->polls, "connections", &reason));
    LS_TRY_DONE(ls_array_alloc((void **)&m->polled, m->n_ranks, sizeof *m->polled, "connections", &reason));
    LS_TRY_DONE(m->rank == 0 ? gather_ranks(m, o->address, identity, &reason)
                             : join_root(m, o->address, identity, &reason));
    *out = m;
    m = NULL;
done:
    if (status != LS_OK && m != NULL && m->links != NULL) ls_mesh_abort(m, &reason);
    if (status != LS_OK && err != NULL) *err = reason;
    ls_mesh_close(m);
    return status;
}

/* What was never read would make closing take away what the peer has not read yet. */
static void drain(int fd) {
    uint8_t piece[256];
    while (fd >= 0 && recv(fd, piece, sizeof piece, MSG_DONTWAIT) > 0) continue;
}

void ls_mesh_close(ls_mesh *m) {
    if (m == NULL) return;
    for (int32_t r = 0; m->links != NULL && r < m->n_ranks; r++) {
        drain(m->links[r].fd);
        drop_link(&m->links[r]);
    }
    free(m->links);
    free(m->polls);
    free(m->polled);
    free(m->pieces);
    free(m);
}
