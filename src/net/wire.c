/* Sockets: names, meeting, bytes. Owns nothing. */
#define _GNU_SOURCE
#include "net/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define RETRY_MS 50
#define CONNECT_SECONDS 3.0 /* for one try */

/* ---- bytes ---- */

ls_wire_outcome ls_wire_wait(int fd, short events, double seconds) {
    const double deadline = ls_clock_seconds() + seconds;
    for (;;) {
        const double left = deadline - ls_clock_seconds();
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1);
        if (n > 0) return LS_WIRE_MOVED;
        if (n == 0 && ls_clock_seconds() >= deadline) return LS_WIRE_SILENT;
        if (n < 0 && errno != EINTR) return LS_WIRE_LOST;
    }
}

ls_wire_outcome ls_wire_send(int fd, const void *data, int64_t bytes, double seconds) {
    const uint8_t *at = data;
    while (bytes > 0) {
        const ssize_t n = send(fd, at, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            const ls_wire_outcome ready = ls_wire_wait(fd, POLLOUT, seconds);
            if (ready != LS_WIRE_MOVED) return ready;
        } else if (n < 0 && errno != EINTR) {
            return LS_WIRE_LOST;
        } else if (n > 0) {
            at += n;
            bytes -= n;
        }
    }
    return LS_WIRE_MOVED;
}

ls_wire_outcome ls_wire_receive(int fd, void *data, int64_t bytes, double seconds) {
    uint8_t *at = data;
    while (bytes > 0) {
        const ssize_t n = recv(fd, at, (size_t)bytes, MSG_DONTWAIT);
        if (n == 0) return LS_WIRE_LOST;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            const ls_wire_outcome ready = ls_wire_wait(fd, POLLIN, seconds);
            if (ready != LS_WIRE_MOVED) return ready;
        } else if (n < 0 && errno != EINTR) {
            return LS_WIRE_LOST;
        } else if (n > 0) {
            at += n;
            bytes -= n;
        }
    }
    return LS_WIRE_MOVED;
}

void ls_wire_tune(int fd) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* ---- addresses ---- */

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

void ls_wire_peer(int fd, char host[LS_WIRE_HOST_MAX], bool *is_loopback) {
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    host[0] = '\0';
    *is_loopback = false;
    if (getpeername(fd, (struct sockaddr *)&a, &n) != 0) return;
    if (getnameinfo((struct sockaddr *)&a, n, host, LS_WIRE_HOST_MAX, NULL, 0, NI_NUMERICHOST) != 0) host[0] = '\0';
    *is_loopback = strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strncmp(host, "::ffff:127.", 11) == 0;
}

void ls_wire_join(char *out, size_t bytes, const char *host, int32_t port) {
    snprintf(out, bytes, strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d", host, (int)port);
}

/* ---- meeting ---- */

static int listener(const struct addrinfo *a, int backlog, int *saved) {
    const int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) {
        *saved = errno;
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, backlog) == 0) return fd;
    *saved = errno;
    close(fd);
    return -1;
}

ls_status ls_wire_listen(int *out, const char *address, int backlog, ls_error *err) {
    struct addrinfo *found = NULL;
    int saved = 0;
    *out = -1;
    LS_TRY(resolve(&found, address, true, err));
    for (const struct addrinfo *a = found; a != NULL && *out < 0; a = a->ai_next) *out = listener(a, backlog, &saved);
    freeaddrinfo(found);
    if (*out < 0) return LS_FAIL(err, LS_ERR_IO, "rank 0 cannot listen at %s: %s", address, strerror(saved));
    return LS_OK;
}

ls_status ls_wire_listen_anywhere(int *out, int32_t *port, int backlog, ls_error *err) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    const struct addrinfo ways[2] = {{.ai_family = AF_INET6,
                                      .ai_socktype = SOCK_STREAM,
                                      .ai_addr = (struct sockaddr *)&six,
                                      .ai_addrlen = sizeof six},
                                     {.ai_family = AF_INET,
                                      .ai_socktype = SOCK_STREAM,
                                      .ai_addr = (struct sockaddr *)&four,
                                      .ai_addrlen = sizeof four}};
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    int saved = 0;
    *out = listener(&ways[0], backlog, &saved); /* takes IPv4 as well, where the system has both */
    if (*out < 0) *out = listener(&ways[1], backlog, &saved);
    if (*out < 0) return LS_FAIL(err, LS_ERR_IO, "cannot listen for other ranks: %s", strerror(saved));
    if (getsockname(*out, (struct sockaddr *)&at, &n) != 0) {
        close(*out);
        *out = -1;
        return LS_FAIL(err, LS_ERR_IO, "cannot listen for other ranks: %s", strerror(errno));
    }
    *port = at.ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)&at)->sin6_port)
                                     : ntohs(((const struct sockaddr_in *)&at)->sin_port);
    return LS_OK;
}

/* One try at one address, without waiting for longer than the deadline. */
static int try_connect(const struct addrinfo *a, double deadline) {
    const double left = deadline - ls_clock_seconds();
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    int failed = 0;
    socklen_t n = sizeof failed;
    if (fd < 0) return -1;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return fd;
    if (errno == EINPROGRESS &&
        ls_wire_wait(fd, POLLOUT, left < CONNECT_SECONDS ? left : CONNECT_SECONDS) == LS_WIRE_MOVED &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n) == 0 && failed == 0)
        return fd;
    close(fd);
    return -1;
}

ls_status ls_wire_connect(int *out, const char *address, double deadline, ls_error *err) {
    struct addrinfo *found = NULL;
    *out = -1;
    LS_TRY(resolve(&found, address, false, err));
    while (*out < 0) {
        for (const struct addrinfo *a = found; a != NULL && *out < 0; a = a->ai_next) *out = try_connect(a, deadline);
        if (*out >= 0 || ls_clock_seconds() >= deadline) break;
        (void)poll(NULL, 0, RETRY_MS);
    }
    freeaddrinfo(found);
    return *out >= 0 ? LS_OK : LS_FAIL(err, LS_ERR_IO, "nobody answers at %s", address);
}
