/* A small web server of plain sockets, a thread for each connection, that answers as the test wants. */
#ifndef LS_TESTS_HTTP_SERVER_H
#define LS_TESTS_HTTP_SERVER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

enum { CONNECTIONS_MAX = 2000, REQUEST_MAX = 1 << 20 };

/* What one request is answered with. */
typedef struct reply {
    int status;
    const char *head; /* further header lines, or NULL */
    char *body;       /* freed by the server */
    bool hang_up;     /* close without an answer */
    int64_t cut;      /* bytes of the body that are announced and never come */
    int64_t delay_ms;
} reply;

typedef struct server {
    reply (*answer)(int64_t request_i, const char *body);
    int listener;
    pthread_t thread, threads[CONNECTIONS_MAX];
    int64_t n_threads;
    atomic_llong n_requests, n_now, n_now_max;
    char url[64], last_head[4096];
} server;

static server the_server;

static inline void pause_ms(int64_t ms) {
    const struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static inline void send_all(int fd, const char *text, size_t n) {
    while (n > 0) {
        const ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        text += sent;
        n -= (size_t)sent;
    }
}

/* Head and body of one request into text; the body's start, or NULL. */
static inline char *read_request(int fd, char *text) {
    size_t used = 0;
    for (;;) {
        const ssize_t n = recv(fd, text + used, REQUEST_MAX - 1 - used, 0);
        char *body, *length;
        if (n <= 0) return NULL;
        used += (size_t)n;
        text[used] = '\0';
        body = strstr(text, "\r\n\r\n");
        length = strcasestr(text, "content-length:");
        if (body == NULL || length == NULL) continue;
        body += 4;
        if (used - (size_t)(body - text) >= strtoul(length + 15, NULL, 10)) return body;
    }
}

static inline void *serve_one(void *context) {
    server *s = &the_server;
    const int fd = (int)(intptr_t)context;
    char *text = malloc(REQUEST_MAX), *body = read_request(fd, text), head[512];
    long long now, most;
    if (body != NULL) {
        now = atomic_fetch_add(&s->n_now, 1) + 1;
        most = atomic_load(&s->n_now_max);
        while (now > most && !atomic_compare_exchange_weak(&s->n_now_max, &most, now)) continue;
        const int64_t request_i = atomic_fetch_add(&s->n_requests, 1);
        if (request_i == 0) snprintf(s->last_head, sizeof s->last_head, "%.*s", (int)(body - text), text);
        const reply r = s->answer(request_i, body);
        pause_ms(r.delay_ms);
        atomic_fetch_sub(&s->n_now, 1); /* from here on the client may send the next */
        if (!r.hang_up) {
            snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n", r.status,
                     strlen(r.body) + (size_t)r.cut, r.head != NULL ? r.head : "");
            send_all(fd, head, strlen(head));
            send_all(fd, r.body, strlen(r.body));
        }
        free(r.body);
    }
    free(text);
    close(fd);
    return NULL;
}

static inline void *serve(void *context) {
    server *s = context;
    for (;;) {
        const int fd = accept(s->listener, NULL, NULL);
        if (fd < 0) return NULL;
        if (s->n_threads == CONNECTIONS_MAX ||
            pthread_create(&s->threads[s->n_threads], NULL, serve_one, (void *)(intptr_t)fd) != 0)
            close(fd);
        else
            s->n_threads++;
    }
}

static inline void server_start(reply (*answer)(int64_t, const char *)) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    server *s = &the_server;
    memset(s, 0, sizeof *s);
    s->answer = answer;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(s->listener >= 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(s->listener, 128), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&address, &size), 0);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d/reward", ntohs(address.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static inline void server_stop(void) {
    server *s = &the_server;
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (int64_t i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    close(s->listener);
}

/* The members of the items of a body, which hold no escapes; at most max. */
static inline int64_t members(const char *body, const char *name, char out[][32], int64_t max) {
    char key[32];
    int64_t n = 0;
    snprintf(key, sizeof key, "\"%s\":\"", name);
    for (const char *at = body; n < max && (at = strstr(at, key)) != NULL; n++) {
        at += strlen(key);
        snprintf(out[n], 32, "%.*s", (int)strcspn(at, "\""), at);
    }
    return n;
}

static inline reply say(int status, const char *body) { return (reply){.status = status, .body = strdup(body)}; }

#endif
