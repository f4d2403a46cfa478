/* The line, when it is due, and a thread that shows it while a single piece of work takes its time. */
#define _POSIX_C_SOURCE 200809L
#include "cli/progress.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define QUIET_SECONDS 2.0
#define PAUSE_SECONDS 0.2

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *what, *unit;
    double begin, shown; /* shown 0: not yet */
    bool is_known;       /* what follows was told */
    int64_t done, total;
    char more[160];
} line;

static bool is_due(void) {
    const double now = ls_clock_seconds();
    return line.what != NULL && isatty(STDERR_FILENO) && now - line.begin > QUIET_SECONDS &&
           now - line.shown > PAUSE_SECONDS;
}

static void paint(void) {
    const double seconds = ls_clock_seconds() - line.begin;
    char of[32] = "", rate[32] = "";
    if (!line.is_known || !is_due()) return;
    if (line.total > 0) snprintf(of, sizeof of, " of %lld", (long long)line.total);
    if (line.done > 0) snprintf(rate, sizeof rate, ", %.3g/s", (double)line.done / seconds);
    fprintf(stderr, "\r\033[K%s: %lld%s %s%s%s%s", line.what, (long long)line.done, of, line.unit, rate,
            line.more[0] != '\0' ? ", " : "", line.more);
    line.shown = line.begin + seconds;
}

static void *repaint(void *unused) {
    static const struct timespec pause = {0, (long)(PAUSE_SECONDS * 1e9)};
    for (;;) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
        paint();
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

/* Once, and only where somebody looks. It hears no signal. Without it the line stands still, and that is all. */
static void start_painter(void) {
    static bool is_started;
    sigset_t all, before;
    pthread_t thread;
    if (is_started || !isatty(STDERR_FILENO)) return;
    is_started = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, repaint, NULL) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void take_away(void) {
    if (line.what != NULL && line.shown > 0) fputs("\r\033[K", stderr);
    line.what = NULL;
    line.shown = 0;
    line.is_known = false;
}

void ls_progress_begin(const char *what, const char *unit) {
    start_painter();
    pthread_mutex_lock(&lock);
    take_away();
    line.what = what;
    line.unit = unit;
    line.begin = ls_clock_seconds();
    pthread_mutex_unlock(&lock);
}

int ls_progress_is_due(void) {
    int due;
    pthread_mutex_lock(&lock);
    due = is_due();
    pthread_mutex_unlock(&lock);
    return due;
}

void ls_progress_show(int64_t done, int64_t total, const char *more) {
    pthread_mutex_lock(&lock);
    line.done = done;
    line.total = total;
    snprintf(line.more, sizeof line.more, "%s", more);
    line.is_known = true;
    paint();
    pthread_mutex_unlock(&lock);
}

void ls_progress_end(void) {
    pthread_mutex_lock(&lock);
    take_away();
    pthread_mutex_unlock(&lock);
}
