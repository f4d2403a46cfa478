/* What tests that watch runs of several processes need: how far a run is, and where its processes meet. */
#ifndef LS_TESTS_RUN_FILES_H
#define LS_TESTS_RUN_FILES_H

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "train/train_options.h"

/* Lines of the metrics, which come after their steps. */
static inline int64_t steps_done(const char *run) {
    char path[1200];
    FILE *file;
    int64_t n = 0;
    int c;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    file = fopen(path, "r");
    while (file != NULL && (c = getc(file)) != EOF) n += c == '\n';
    if (file != NULL) fclose(file);
    return n;
}

/* A port of this machine that nobody has. One that the system gives to clients it may give again before a rank listens
 * there: so it is one below those, by the process. */
static inline void choose_address(char out[LS_OPTION_TEXT_MAX]) {
    enum { FIRST = 20000, PORTS = 12000, TRIED = 100 };
    static int64_t n_chosen;
    for (int i = 0; i < TRIED; i++) {
        const int port = FIRST + (int)((97 * (int64_t)getpid() + n_chosen++) % PORTS);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        bool is_free;
        assert_true(fd >= 0);
        a.sin_port = htons((uint16_t)port);
        is_free = bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        snprintf(out, LS_OPTION_TEXT_MAX, "127.0.0.1:%d", port);
        if (is_free) return;
    }
    fail_msg("%d ports are taken", TRIED);
}

#endif
