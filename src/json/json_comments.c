/* Takes comments out of JSON. */
#include "json/json_comments.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Behind the string that begins at `at`; the end of the text where it does not end, which the parser will say. */
static int64_t skip_string(const char *text, int64_t bytes, int64_t at) {
    for (at++; at < bytes && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at < bytes ? at + 1 : bytes;
}

/* Behind the comment that begins at `at`, before the line break of one that ends with its line; -1 where it does not
 * end. */
static int64_t skip_comment(const char *text, int64_t bytes, int64_t at) {
    if (text[at + 1] == '/') {
        const char *end = memchr(text + at, '\n', (size_t)(bytes - at));
        return end == NULL ? bytes : end - text;
    }
    for (at += 2; at + 1 < bytes; at++)
        if (text[at] == '*' && text[at + 1] == '/') return at + 2;
    return -1;
}

static int64_t line_of(const char *text, int64_t at) {
    int64_t line = 1;
    for (int64_t i = 0; i < at; i++) line += text[i] == '\n';
    return line;
}

static void blank(char *text, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        if (text[i] != '\n') text[i] = ' ';
}

ls_status ls_json_without_comments(char **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    char *copy;
    LS_TRY(ls_text_copy(&copy, text, bytes, err));
    for (int64_t at = 0; at < bytes;) {
        const bool begins = copy[at] == '/' && at + 1 < bytes && (copy[at + 1] == '/' || copy[at + 1] == '*');
        const int64_t begin = at;
        if (copy[at] == '"')
            at = skip_string(copy, bytes, at);
        else if (begins)
            at = skip_comment(copy, bytes, at);
        else
            at++;
        if (at < 0) {
            const int64_t line = line_of(copy, begin);
            free(copy);
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: invalid JSON at line %lld: a comment that does not end", name,
                           (long long)line);
        }
        if (begins) blank(copy, begin, at);
    }
    *out = copy;
    return LS_OK;
}
