/* Error records, status and type names, the assertion handler. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ls_status_name(ls_status status) {
    switch (status) {
        case LS_OK: return "ok";
        case LS_ERR_ARG: return "argument";
        case LS_ERR_IO: return "io";
        case LS_ERR_FORMAT: return "format";
        case LS_ERR_UNSUPPORTED: return "unsupported";
        case LS_ERR_NOMEM: return "memory";
        case LS_ERR_CAPACITY: return "capacity";
        case LS_ERR_DEVICE: return "device";
    }
    return "unknown";
}

int64_t ls_dtype_bytes(ls_dtype dtype) {
    switch (dtype) {
        case LS_F32: return 4;
        case LS_BF16:
        case LS_F16: return 2;
    }
    return 0;
}

const char *ls_dtype_name(ls_dtype dtype) {
    switch (dtype) {
        case LS_F32: return "f32";
        case LS_BF16: return "bf16";
        case LS_F16: return "f16";
    }
    return "unknown";
}

ls_status ls_error_set(ls_error *err, ls_status status, const char *format, ...) {
    if (err != NULL) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(err->text, sizeof err->text, format, ap);
        va_end(ap);
        err->status = status;
    }
    return status;
}

void ls_error_prefix(ls_error *err, const char *format, ...) {
    char text[2 * LS_ERROR_TEXT_MAX + 8];
    va_list ap;
    size_t used;
    if (err == NULL) return;
    va_start(ap, format);
    vsnprintf(text, LS_ERROR_TEXT_MAX, format, ap);
    va_end(ap);
    used = strlen(text);
    snprintf(text + used, sizeof text - used, ": %s", err->text);
    text[LS_ERROR_TEXT_MAX - 1] = '\0';
    memcpy(err->text, text, LS_ERROR_TEXT_MAX);
}

void ls_assert_fail(const char *cond, const char *file, int line, const char *format, ...) {
    va_list ap;
    fprintf(stderr, "lockstep: %s:%d: invariant broken: %s: ", file, line, cond);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

const char *ls_profile_name(ls_profile profile) {
    switch (profile) {
        case LS_PROFILE_EXACT: return "exact";
        case LS_PROFILE_MMA16: return "mma16";
    }
    return "unknown";
}
