/* A text or regular expression to look for, and the division of a text into matches and what lies between. */
#ifndef LS_TEXT_PATTERN_H
#define LS_TEXT_PATTERN_H

#include "text/regex.h"

typedef struct ls_pattern {
    ls_regex *regex; /* NULL: look for text */
    char *text;
    int64_t bytes;
} ls_pattern;

void ls_pattern_deinit(ls_pattern *pattern);

typedef struct ls_pattern_span {
    int64_t begin, end;
    bool match;
} ls_pattern_span;

typedef struct ls_spans {
    ls_pattern_span *items;
    int64_t n, cap;
} ls_spans;

ls_status ls_spans_append(ls_spans *spans, int64_t begin, int64_t end, bool match, ls_error *err);
void ls_spans_deinit(ls_spans *spans);

/* Replaces *spans by contiguous spans over the whole text. An empty match is kept, unless it touches the match before
 * it: then the search goes on one character further. `search` belongs to pattern->regex (NULL without one). */
ls_status ls_pattern_spans(const ls_pattern *pattern, ls_regex_search *search, const char *text, int64_t bytes,
                           ls_spans *spans, ls_error *err);
/* Likewise, with every code point that `is` accepts a match of its own. */
ls_status ls_code_spans(bool (*is)(int32_t code), const char *text, int64_t bytes, ls_spans *spans, ls_error *err);

/* Appends text to *out with every match replaced by `content`. */
ls_status ls_pattern_replace(const ls_pattern *pattern, const char *content, int64_t content_bytes, const char *text,
                             int64_t bytes, ls_text *out, ls_error *err);

#endif
