/* A list under a lock, and an eventfd that says when to look. */
#define _GNU_SOURCE
#include "rl/feed.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

struct ls_feed {
    int64_t *list; /* [n_max] */
    int64_t n_max;
    int fd;
    pthread_mutex_t lock;
    /* Under the lock. */
    int64_t n, n_taken;
    bool ended;
};

ls_status ls_feed_create(ls_feed **out, int64_t n, ls_error *err) {
    ls_feed *f;
    LS_TRY(ls_array_alloc((void **)&f, 1, sizeof *f, "feed", err));
    *out = f;
    f->n_max = n;
    pthread_mutex_init(&f->lock, NULL);
    f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->fd < 0) return LS_FAIL(err, LS_ERR_IO, "eventfd: %s", strerror(errno));
    return ls_array_alloc((void **)&f->list, n, sizeof *f->list, "feed", err);
}

void ls_feed_free(ls_feed *f) {
    if (f == NULL) return;
    if (f->fd >= 0) close(f->fd);
    pthread_mutex_destroy(&f->lock);
    free(f->list);
    free(f);
}

void ls_feed_begin(ls_feed *f) {
    pthread_mutex_lock(&f->lock);
    f->n = f->n_taken = 0;
    f->ended = false;
    pthread_mutex_unlock(&f->lock);
}

/* Where it cannot be written it is readable already. */
static void say_something_came(ls_feed *f) {
    const uint64_t one = 1;
    (void)!write(f->fd, &one, sizeof one);
}

void ls_feed_put(ls_feed *f, int64_t i) {
    pthread_mutex_lock(&f->lock);
    LS_ASSERT(f->n < f->n_max, "number %lld of %lld", (long long)f->n, (long long)f->n_max);
    f->list[f->n++] = i;
    say_something_came(f);
    pthread_mutex_unlock(&f->lock);
}

void ls_feed_end(ls_feed *f) {
    pthread_mutex_lock(&f->lock);
    f->ended = true;
    say_something_came(f);
    pthread_mutex_unlock(&f->lock);
}

bool ls_feed_take(ls_feed *f, int64_t *i) {
    uint64_t seen;
    bool is_there;
    pthread_mutex_lock(&f->lock);
    is_there = f->n_taken < f->n;
    if (is_there)
        *i = f->list[f->n_taken++];
    else
        (void)!read(f->fd, &seen, sizeof seen);
    pthread_mutex_unlock(&f->lock);
    return is_there;
}

bool ls_feed_is_over(ls_feed *f) {
    bool is_over;
    pthread_mutex_lock(&f->lock);
    is_over = f->ended && f->n_taken == f->n;
    pthread_mutex_unlock(&f->lock);
    return is_over;
}

int ls_feed_fd(const ls_feed *f) { return f->fd; }

void ls_feed_wait(ls_feed *f) {
    struct pollfd fd = {f->fd, POLLIN, 0};
    int64_t i;
    for (;;) {
        while (ls_feed_take(f, &i)) continue;
        if (ls_feed_is_over(f)) return;
        (void)poll(&fd, 1, -1);
    }
}
