/* The line and when it is due. */
#define _POSIX_C_SOURCE 200809L
#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

#define QUIET_SECONDS 2.0
#define PAUSE_SECONDS 0.2

static struct {
    const char *what, *unit;
    double begin, shown; /* shown 0: not yet */
} line;

void ls_progress_begin(const char *what, const char *unit) {
    ls_progress_end();
    line.what = what;
    line.unit = unit;
    line.begin = ls_clock_seconds();
}

int ls_progress_is_due(void) {
    const double now = ls_clock_seconds();
    return line.what != NULL && isatty(STDERR_FILENO) && now - line.begin > QUIET_SECONDS &&
           now - line.shown > PAUSE_SECONDS;
}

void ls_progress_show(int64_t done, int64_t total, const char *more) {
    const double seconds = ls_clock_seconds() - line.begin;
    char of[32] = "";
    if (!ls_progress_is_due()) return;
    if (total > 0) snprintf(of, sizeof of, " of %lld", (long long)total);
    fprintf(stderr, "\r\033[K%s: %lld%s %s, %.3g/s%s%s", line.what, (long long)done, of, line.unit,
            (double)done / seconds, more[0] != '\0' ? ", " : "", more);
    line.shown = line.begin + seconds;
}

void ls_progress_end(void) {
    if (line.what != NULL && line.shown > 0) fputs("\r\033[K", stderr);
    line.what = NULL;
    line.shown = 0;
}
