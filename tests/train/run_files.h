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

/* A port of this machine that nobody listens on. */
static inline void choose_address(char out[LS_OPTION_TEXT_MAX]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    snprintf(out, LS_OPTION_TEXT_MAX, "127.0.0.1:%d", (int)ntohs(a.sin_port));
}

#endif
