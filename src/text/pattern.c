/* Finding all matches of a pattern; owns patterns and span lists. */
#define _GNU_SOURCE /* memmem */
#include "text/pattern.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

void ls_pattern_deinit(ls_pattern *pattern) {
    ls_regex_free(pattern->regex);
    free(pattern->text);
    memset(pattern, 0, sizeof *pattern);
}

ls_status ls_spans_append(ls_spans *spans, int64_t begin, int64_t end, bool match, ls_error *err) {
    const ls_status status =
        ls_array_grow((void **)&spans->items, &spans->cap, spans->n + 1, sizeof *spans->items, "spans", err);
    if (status == LS_OK) spans->items[spans->n++] = (ls_pattern_span){.begin = begin, .end = end, .match = match};
    return status;
}

void ls_spans_deinit(ls_spans *spans) {
    free(spans->items);
    memset(spans, 0, sizeof *spans);
}

/* Without a match found->match is false. */
static ls_status find_match(const ls_pattern *pattern, ls_regex_search *search, const char *text, int64_t bytes,
                            int64_t from, ls_pattern_span *found, ls_error *err) {
    const char *at;
    if (pattern->regex != NULL)
        return ls_regex_find(search, text, bytes, from, &found->match, &found->begin, &found->end, err);
    at = memmem(text + from, (size_t)(bytes - from), pattern->text, (size_t)pattern->bytes);
    found->match = at != NULL;
    if (at != NULL) {
        found->begin = at - text;
        found->end = found->begin + pattern->bytes;
    }
    return LS_OK;
}

ls_status ls_pattern_spans(const ls_pattern *pattern, ls_regex_search *search, const char *text, int64_t bytes,
                           ls_spans *spans, ls_error *err) {
    int64_t from = 0, covered = 0, last_end = -1;
    spans->n = 0;
    if (bytes == 0) return ls_spans_append(spans, 0, 0, false, err);
    while (from <= bytes) {
        ls_pattern_span found = {0};
        LS_TRY(find_match(pattern, search, text, bytes, from, &found, err));
        if (!found.match) break;
        if (found.begin == found.end && found.end == last_end) {
            int32_t code;
            if (from >= bytes) break;
            from += ls_utf8_decode((const uint8_t *)text + from, bytes - from, &code);
            continue;
        }
        if (covered < found.begin) LS_TRY(ls_spans_append(spans, covered, found.begin, false, err));
        LS_TRY(ls_spans_append(spans, found.begin, found.end, true, err));
        covered = from = last_end = found.end;
    }
    if (covered < bytes) LS_TRY(ls_spans_append(spans, covered, bytes, false, err));
    return LS_OK;
}

ls_status ls_code_spans(bool (*is)(int32_t code), const char *text, int64_t bytes, ls_spans *spans, ls_error *err) {
    int64_t at = 0, covered = 0;
    spans->n = 0;
    while (at < bytes) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
        if (is(code)) {
            if (covered < at) LS_TRY(ls_spans_append(spans, covered, at, false, err));
            LS_TRY(ls_spans_append(spans, at, at + used, true, err));
            covered = at + used;
        }
        at += used;
    }
    if (covered < bytes) LS_TRY(ls_spans_append(spans, covered, bytes, false, err));
    return LS_OK;
}

ls_status ls_pattern_replace(const ls_pattern *pattern, const char *content, int64_t content_bytes, const char *text,
                             int64_t bytes, ls_text *out, ls_error *err) {
    ls_spans spans = {0};
    ls_regex_search *search = NULL;
    ls_status status = LS_OK;
    if (pattern->regex != NULL) LS_TRY_DONE(ls_regex_search_create(&search, pattern->regex, err));
    LS_TRY_DONE(ls_pattern_spans(pattern, search, text, bytes, &spans, err));
    for (int64_t i = 0; i < spans.n; i++) {
        const ls_pattern_span *span = &spans.items[i];
        if (span->match)
            LS_TRY_DONE(ls_text_append(out, content, content_bytes, err));
        else
            LS_TRY_DONE(ls_text_append(out, text + span->begin, span->end - span->begin, err));
    }
done:
    ls_regex_search_free(search);
    ls_spans_deinit(&spans);
    return status;
}
