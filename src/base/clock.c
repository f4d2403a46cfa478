/* The one reading of the monotonic clock. */
#define _POSIX_C_SOURCE 200809L
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

double ls_clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void ls_duration_text(char text[LS_DURATION_TEXT_MAX], double seconds) {
    const long long s = seconds < 0 ? 0 : seconds > 1e11 ? 100000000000 : (long long)(seconds + 0.5);
    const long long minutes = (s + 30) / 60, hours = (s + 1800) / 3600;
    if (s < 100)
        snprintf(text, LS_DURATION_TEXT_MAX, "%lld s", s);
    else if (minutes < 100)
        snprintf(text, LS_DURATION_TEXT_MAX, "%lld min", minutes);
    else if (hours < 48)
        snprintf(text, LS_DURATION_TEXT_MAX, "%lld h %lld min", minutes / 60, minutes % 60);
    else
        snprintf(text, LS_DURATION_TEXT_MAX, "%lld d %lld h", hours / 24, hours % 24);
}
