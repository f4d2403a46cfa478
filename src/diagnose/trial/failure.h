/* How trials fail: kinds, counts, and the sentence of the first. Sentences are for people; everything else looks at
 * kinds. */
#ifndef LS_DIAGNOSE_TRIAL_FAILURE_H
#define LS_DIAGNOSE_TRIAL_FAILURE_H

#include "base/status.h"

typedef enum ls_failure {
#define LS_FAILURE_ROW(name, words, is_untried) LS_FAILURE_##name,
#include "diagnose/trial/failure.def"
    LS_FAILURES
} ls_failure;

enum { LS_NOTE_BYTES = 200 };

/* Of one trial, or of many. */
typedef struct ls_failures {
    ls_failure whole;          /* the trial as a whole came to nothing, for this; NONE: there are outcomes */
    int64_t n[LS_FAILURES];    /* requests that ended so, and trials */
    char first[LS_NOTE_BYTES]; /* the sentence of the first */
} ls_failures;

const char *ls_failure_words(ls_failure kind);
bool ls_failure_is_untried(ls_failure kind);
void ls_failures_add(ls_failures *failures, ls_failure kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The trial as a whole ended with this error; kind NONE: the error's status says which. */
void ls_failures_end(ls_failures *failures, ls_failure kind, const ls_error *err);
/* Why there are no outcomes; "" where there are. */
const char *ls_failures_note(const ls_failures *failures);

#endif
