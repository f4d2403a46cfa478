/* What every test includes first: cmocka with its prerequisites, and raw-bit comparison. */
#ifndef LS_TESTS_HARNESS_H
#define LS_TESTS_HARNESS_H

/* cmocka.h needs these four before it. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "random.h"

/* A sanitizer looks at addresses, which few steps and values reach as well as many. There a program takes several times
 * as long, so tests take less of what differs in values alone. */
#ifdef LS_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Number of floats whose bits differ (NaN payloads and signs of zero count). */
static inline int64_t count_bit_diffs(const float *a, const float *b, int64_t n) {
    int64_t diffs = 0;
    for (int64_t i = 0; i < n; i++) diffs += memcmp(&a[i], &b[i], sizeof a[i]) != 0;
    return diffs;
}

#define assert_same_bits(a, b, n)                                                                           \
    do {                                                                                                    \
        const int64_t diffs_ = count_bit_diffs((a), (b), (n));                                              \
        if (diffs_ != 0) fail_msg("%lld of %lld floats differ in bits", (long long)diffs_, (long long)(n)); \
    } while (0)

#define assert_ok(call, err)                                                               \
    do {                                                                                   \
        if ((call) != LS_OK) fail_msg("%s: %s", ls_status_name((err).status), (err).text); \
    } while (0)

/* The call must fail, and its sentence must contain every given word. */
static inline void check_failed(ls_status status, const ls_error *err, const char *word) {
    if (status == LS_OK) fail_msg("expected a failure that mentions '%s'", word);
    if (strstr(err->text, word) == NULL) fail_msg("'%s' does not mention '%s'", err->text, word);
}

#endif
