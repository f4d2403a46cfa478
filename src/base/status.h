/* Errors and assertions. Operating errors return ls_status; broken invariants abort. */
#ifndef LS_BASE_STATUS_H
#define LS_BASE_STATUS_H

#include "lockstep/lockstep.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills err (when not NULL) with a printf-style sentence and returns status. */
ls_status ls_error_set(ls_error *err, ls_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the sentence already in err; for callers that know the file or the field. */
void ls_error_prefix(ls_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define LS_FAIL(err, status, ...) ls_error_set((err), (status), __VA_ARGS__)

/* Runs expr; on failure returns its status. For functions that own nothing at that point. */
#define LS_TRY(expr)                            \
    do {                                        \
        const ls_status ls_tried = (expr);      \
        if (ls_tried != LS_OK) return ls_tried; \
    } while (0)

/* Runs expr; on failure keeps its status in `status` and leaves through the one cleanup label. For owners. */
#define LS_TRY_DONE(expr)                          \
    do {                                           \
        if ((status = (expr)) != LS_OK) goto done; \
    } while (0)

/* Always compiled in: prints the condition, place and a printf-style message with the values, then aborts. */
#define LS_ASSERT(cond, ...)                                                 \
    do {                                                                     \
        if (!(cond)) ls_assert_fail(#cond, __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

void ls_assert_fail(const char *cond, const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#ifdef __cplusplus
}
#endif
#endif
