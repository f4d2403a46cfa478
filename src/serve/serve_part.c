/* Texts of samples. */
#define _GNU_SOURCE
#include "serve/serve_part.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

ls_status ls_part_decode(const ls_part *p, const int32_t *ids, int64_t n, bool skip_special, char **text,
                         int64_t *bytes, ls_error *err) {
    *bytes = 0;
    if (p->about->tokenizer == NULL) return ls_text_copy(text, "", 0, err);
    return ls_tokenizer_decode_known(p->about->tokenizer, ids, n, skip_special, text, bytes, err);
}

/* The stop text that ended a text: the one that ends first, and of several that end there the longest. */
typedef struct stopped {
    int64_t which; /* of the request's; -1: none */
    int64_t begin, end;
} stopped;

static stopped find_stop(const ls_ask *a, const char *text, int64_t bytes) {
    stopped found = {-1, bytes, bytes};
    for (int64_t i = 0; i < a->n_stop; i++) {
        const char *at = memmem(text, (size_t)bytes, a->stop[i], strlen(a->stop[i]));
        const int64_t begin = at != NULL ? at - text : 0, end = begin + (int64_t)strlen(a->stop[i]);
        if (at == NULL || (found.which >= 0 && (end > found.end || (end == found.end && begin >= found.begin))))
            continue;
        found = (stopped){i, begin, end};
    }
    return found;
}

/* The stop text that ended the sample, or NULL. It was found in text without special tokens (text/stop.h). */
ls_status ls_part_stop_text(const ls_part *p, const char **out, ls_error *err) {
    const ls_ask *a = p->group->ask;
    char *text;
    int64_t bytes;
    stopped found;
    *out = NULL;
    if (p->finish != LS_FINISH_STOP || p->sample->ended_by_id) return LS_OK;
    LS_TRY(ls_part_decode(p, p->sample->completion, p->n, true, &text, &bytes, err));
    found = find_stop(a, text, bytes);
    free(text);
    if (found.which >= 0) *out = a->stop[found.which];
    return LS_OK;
}

/* Bytes that may still become something else: of a character that is not complete, or of a stop text. */
int64_t ls_part_final(const ls_ask *a, const char *text, int64_t bytes) {
    int64_t held = 0;
    while (bytes >= 3 && memcmp(text + bytes - 3, "\xEF\xBF\xBD", 3) == 0) bytes -= 3;
    for (int64_t i = 0; i < a->n_stop && !a->keeps_stop; i++)
        if ((int64_t)strlen(a->stop[i]) - 1 > held) held = (int64_t)strlen(a->stop[i]) - 1;
    bytes = bytes > held ? bytes - held : 0;
    while (bytes > 0 && ((uint8_t)text[bytes] & 0xC0) == 0x80) bytes--;
    return bytes;
}

/* The text of tokens [0, n), as far as it is certain. */
ls_status ls_part_text(const ls_part *p, char **text, int64_t *bytes, ls_error *err) {
    const ls_ask *a = p->group->ask;
    const bool drops = p->finish == LS_FINISH_STOP && p->sample->ended_by_id && !a->keeps_stop;
    LS_TRY(ls_part_decode(p, p->sample->completion, p->n - drops, !a->keeps_special, text, bytes, err));
    if (p->finish == LS_FINISH_NONE)
        *bytes = ls_part_final(a, *text, *bytes);
    else if (p->finish == LS_FINISH_STOP && !p->sample->ended_by_id)
        *bytes = a->keeps_stop ? find_stop(a, *text, *bytes).end : find_stop(a, *text, *bytes).begin;
    (*text)[*bytes] = '\0';
    return LS_OK;
}

/* The text of a sample that has ended, and the tool calls in it, which are not of its text. */
ls_status ls_part_text_and_calls(const ls_part *p, ls_tool_calls *calls, char **text, int64_t *bytes, ls_error *err) {
    const ls_call_format format = p->group->ask->calls;
    ls_status status;
    LS_TRY(ls_part_text(p, text, bytes, err));
    if (format == LS_CALLS_NONE) return LS_OK;
    status = ls_tool_calls_find(calls, format, *text, *bytes, err);
    free(*text);
    *text = status == LS_OK ? calls->content : NULL;
    *bytes = calls->content_bytes;
    if (status == LS_OK) calls->content = NULL; /* the caller's */
    return status;
}
