/* Counts of failures. */
#include "diagnose/trial/failure.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *words;
    bool is_untried;
} rows[LS_FAILURES] = {
#define LS_FAILURE_ROW(name, words, is_untried) {words, is_untried},
#include "diagnose/trial/failure.def"
};

const char *ls_failure_words(ls_failure kind) { return rows[kind].words; }
bool ls_failure_is_untried(ls_failure kind) { return rows[kind].is_untried; }

void ls_failures_add(ls_failures *f, ls_failure kind, const char *format, ...) {
    va_list args;
    f->n[kind]++;
    if (f->first[0] != '\0') return;
    va_start(args, format);
    vsnprintf(f->first, sizeof f->first, format, args);
    va_end(args);
}

static ls_failure kind_of(ls_status status) {
    switch (status) {
        case LS_ERR_UNSUPPORTED:
        case LS_ERR_CAPACITY:
        case LS_ERR_NOMEM: return LS_FAILURE_UNABLE;
        case LS_ERR_FORMAT: return LS_FAILURE_UNREADABLE;
        default: return LS_FAILURE_BROKE;
    }
}

void ls_failures_end(ls_failures *f, ls_failure kind, const ls_error *err) {
    f->whole = kind != LS_FAILURE_NONE ? kind : kind_of(err->status);
    f->first[0] = '\0'; /* what ended the trial says more than what one request of it said before */
    ls_failures_add(f, f->whole, "%.*s", LS_NOTE_BYTES - 1, err->text);
}

const char *ls_failures_note(const ls_failures *f) { return f->whole != LS_FAILURE_NONE ? f->first : ""; }
