/* How a bench ends when it cannot go on: its name, a sentence, an exit code. */
#ifndef LS_BENCH_FAILURES_H
#define LS_BENCH_FAILURES_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

static void __attribute__((noreturn, format(printf, 2, 3))) quit(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(code);
}

static inline void need(ls_status status, const ls_error *err) {
    if (status != LS_OK) quit(2, "%s", err->text);
}

#endif
