/* The trainer's TCPStore as a thread that speaks as torch does, to one client. */
#ifndef LS_TESTS_SERVE_FAKE_STORE_H
#define LS_TESTS_SERVE_FAKE_STORE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

typedef struct fake {
    int listener;
    int64_t port;
    const uint8_t *value;
    uint64_t bytes, told; /* told: the length that is said */
    uint8_t verdict;      /* of the wait */
    char seen[3][64];     /* keys: joined, waited for, read */
    uint32_t magic;
    pthread_t thread;
} fake;

static inline void read_all(int fd, void *out, size_t n) { assert_int_equal(recv(fd, out, n, MSG_WAITALL), n); }

static inline void read_text(int fd, char out[64]) {
    uint64_t n;
    read_all(fd, &n, sizeof n);
    assert_in_range(n, 1, 63);
    read_all(fd, out, n);
    out[n] = '\0';
}

static inline void *serve_store(void *context) {
    fake *f = context;
    const int fd = accept(f->listener, NULL, NULL);
    const int64_t two = 2;
    uint64_t n_keys;
    int64_t one;
    uint8_t kind;
    read_all(fd, &kind, 1);
    read_all(fd, &f->magic, sizeof f->magic);
    read_all(fd, &kind, 1);
    assert_int_equal(kind, 4);
    read_text(fd, f->seen[0]);
    read_all(fd, &one, sizeof one);
    assert_int_equal(one, 1);
    assert_int_equal(send(fd, &two, sizeof two, 0), sizeof two);
    read_all(fd, &kind, 1);
    assert_int_equal(kind, 6);
    read_all(fd, &n_keys, sizeof n_keys);
    read_text(fd, f->seen[1]);
    assert_int_equal(send(fd, &f->verdict, 1, 0), 1);
    if (f->verdict == 0) {
        read_all(fd, &kind, 1);
        assert_int_equal(kind, 3);
        read_text(fd, f->seen[2]);
        assert_int_equal(send(fd, &f->told, sizeof f->told, 0), sizeof f->told);
        assert_int_equal(send(fd, f->value, f->bytes, 0), f->bytes);
    }
    close(fd);
    return NULL;
}

static inline void start(fake *f) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    f->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(f->listener, 1), 0);
    assert_int_equal(getsockname(f->listener, (struct sockaddr *)&address, &n), 0);
    f->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&f->thread, NULL, serve_store, f), 0);
}

#endif
