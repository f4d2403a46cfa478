/* A client of torch's TCPStore (torch/csrc/distributed/c10d/TCPStore.cpp): queries of one byte, texts and lists with
 * their length as 64 bits before them, everything in the machine's order of bytes. Owns its socket. */
#define _GNU_SOURCE
#include "serve/torch_store.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"

enum { QUERY_VALIDATE = 0, QUERY_GET = 3, QUERY_ADD = 4, QUERY_WAIT = 6 };
#define MAGIC UINT32_C(0x3C85F7CE)
enum { VALUE_BYTES_MAX = 1 << 20, KEY_BYTES_MAX = 256, LOOK_MS = 100 };

typedef struct store {
    int fd;
    double until;
    const char *host;
    int64_t port;
} store;

static ls_status fail_store(const store *s, ls_error *err, const char *what) {
    return LS_FAIL(err, LS_ERR_IO, "store %.200s:%lld: %s", s->host, (long long)s->port, what);
}

/* ---- bytes ---- */

/* A server that stops waits for no trainer. */
static bool is_over(const store *s) { return ls_interrupt_pending() != 0 || ls_clock_seconds() > s->until; }

static ls_status await_events(const store *s, short events, ls_error *err) {
    struct pollfd one = {s->fd, events, 0};
    while (!is_over(s)) {
        const int n = poll(&one, 1, LOOK_MS);
        if (n > 0) return LS_OK;
        if (n < 0 && errno != EINTR) return fail_store(s, err, strerror(errno));
    }
    return fail_store(s, err, ls_interrupt_pending() != 0 ? "the server is stopping" : "it does not answer in time");
}

static ls_status put_bytes(const store *s, const void *data, size_t bytes, ls_error *err) {
    const char *at = data;
    while (bytes > 0) {
        LS_TRY(await_events(s, POLLOUT, err));
        const ssize_t n = send(s->fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR && errno != EAGAIN) return fail_store(s, err, strerror(errno));
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return LS_OK;
}

static ls_status get(const store *s, void *out, size_t bytes, ls_error *err) {
    char *at = out;
    while (bytes > 0) {
        LS_TRY(await_events(s, POLLIN, err));
        const ssize_t n = recv(s->fd, at, bytes, 0);
        if (n == 0) return fail_store(s, err, "it closed the connection");
        if (n < 0 && errno != EINTR && errno != EAGAIN) return fail_store(s, err, strerror(errno));
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return LS_OK;
}

/* ---- queries ---- */

typedef struct query {
    uint8_t bytes[KEY_BYTES_MAX + 64];
    size_t n;
} query;

static void add_bytes(query *q, const void *data, size_t bytes) {
    LS_ASSERT(q->n + bytes <= sizeof q->bytes, "a query of %zu bytes", q->n + bytes);
    memcpy(q->bytes + q->n, data, bytes);
    q->n += bytes;
}

static query begin_query(uint8_t kind) { return (query){{kind}, 1}; }

static void add_query_text(query *q, const char *text) {
    const uint64_t n = strlen(text);
    add_bytes(q, &n, sizeof n);
    add_bytes(q, text, (size_t)n);
}

static ls_status greet(const store *s, ls_error *err) {
    query q = begin_query(QUERY_VALIDATE);
    const uint32_t magic = MAGIC;
    add_bytes(&q, &magic, sizeof magic);
    return put_bytes(s, q.bytes, q.n, err);
}

/* The trainer waits until all workers have said that they are there. */
static ls_status join_workers(const store *s, ls_error *err) {
    query q = begin_query(QUERY_ADD);
    int64_t one = 1, count;
    add_query_text(&q, "init/");
    add_bytes(&q, &one, sizeof one);
    LS_TRY(put_bytes(s, q.bytes, q.n, err));
    return get(s, &count, sizeof count, err);
}

static ls_status wait_for(const store *s, const char *key, ls_error *err) {
    query q = begin_query(QUERY_WAIT);
    const uint64_t n_keys = 1;
    uint8_t answer;
    add_bytes(&q, &n_keys, sizeof n_keys);
    add_query_text(&q, key);
    LS_TRY(put_bytes(s, q.bytes, q.n, err));
    LS_TRY(get(s, &answer, sizeof answer, err));
    return answer == 0 ? LS_OK : fail_store(s, err, "it gave up the wait");
}

static ls_status read_store_value(const store *s, const char *key, uint8_t **out, int64_t *bytes, ls_error *err) {
    query q = begin_query(QUERY_GET);
    uint64_t n;
    ls_status status;
    add_query_text(&q, key);
    LS_TRY(put_bytes(s, q.bytes, q.n, err));
    LS_TRY(get(s, &n, sizeof n, err));
    if (n > VALUE_BYTES_MAX) return fail_store(s, err, "the value is too long");
    LS_TRY(ls_array_alloc((void **)out, (int64_t)n + 1, 1, "value of a store", err));
    *bytes = (int64_t)n;
    if ((status = get(s, *out, (size_t)n, err)) == LS_OK) return LS_OK;
    free(*out);
    *out = NULL;
    return status;
}

/* ---- the connection ---- */

static ls_status connect_one(store *s, const struct addrinfo *address, ls_error *err) {
    int failure = 0;
    socklen_t length = sizeof failure;
    s->fd = socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol);
    if (s->fd < 0) return fail_store(s, err, strerror(errno));
    if (connect(s->fd, address->ai_addr, address->ai_addrlen) == 0) return LS_OK;
    if (errno != EINPROGRESS) return fail_store(s, err, strerror(errno));
    LS_TRY(await_events(s, POLLOUT, err));
    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &failure, &length) == 0 && failure == 0) return LS_OK;
    return fail_store(s, err, strerror(failure));
}

static void disconnect(store *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

/* The trainer's store may come up a little later than it is told of. */
static ls_status reach(store *s, ls_error *err) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[24];
    int failure;
    ls_status status = LS_ERR_IO;
    snprintf(port, sizeof port, "%lld", (long long)s->port);
    if ((failure = getaddrinfo(s->host, port, &hints, &found)) != 0) return fail_store(s, err, gai_strerror(failure));
    while (status != LS_OK) {
        for (const struct addrinfo *a = found; a != NULL && status != LS_OK; a = a->ai_next) {
            disconnect(s);
            status = connect_one(s, a, err);
        }
        if (status != LS_OK && is_over(s)) break;
        if (status != LS_OK) usleep(50000);
    }
    freeaddrinfo(found);
    return status;
}

ls_status ls_torch_store_get(uint8_t **out, int64_t *bytes, const char *host, int64_t port, const char *key,
                             double timeout_s, ls_error *err) {
    store s = {-1, ls_clock_seconds() + timeout_s, host, port};
    char full[KEY_BYTES_MAX];
    ls_status status;
    *out = NULL;
    *bytes = 0;
    if (snprintf(full, sizeof full, "/%s", key) >= (int)sizeof full) return fail_store(&s, err, "the key is too long");
    LS_TRY_DONE(reach(&s, err));
    LS_TRY_DONE(greet(&s, err));
    LS_TRY_DONE(join_workers(&s, err));
    LS_TRY_DONE(wait_for(&s, full, err));
    status = read_store_value(&s, full, out, bytes, err);
done:
    disconnect(&s);
    return status;
}

/* ---- the name of the group ---- */

/* A pickle is opcodes and their arguments; a byte string of 128 bytes is C, its length, and they. */
ls_status ls_nccl_id_unpickle(ls_nccl_id *out, const uint8_t *pickle, int64_t bytes, ls_error *err) {
    const int64_t n = (int64_t)sizeof out->bytes;
    for (int64_t i = 0; i + 2 + n <= bytes; i++) {
        if (pickle[i] != 'C' || pickle[i + 1] != n) continue;
        memcpy(out->bytes, pickle + i + 2, sizeof out->bytes);
        return LS_OK;
    }
    return LS_FAIL(err, LS_ERR_FORMAT, "the store's object of %lld bytes holds no ncclUniqueId", (long long)bytes);
}
