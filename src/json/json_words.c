/* NaN and the infinities as null, or as strings. */
#define _GNU_SOURCE
#include "json/json_words.h"

#include <string.h>

#include "base/mem.h"

bool ls_json_has_words(const char *text, int64_t bytes) {
    return memmem(text, (size_t)bytes, "NaN", 3) != NULL || memmem(text, (size_t)bytes, "Infinity", 8) != NULL;
}

static ls_status replace(char **out, int64_t *n, const char *text, int64_t bytes, bool quotes, ls_error *err) {
    static const char *const words[] = {"-Infinity", "Infinity", "NaN", NULL};
    bool in_string = false;
    char *to;
    /* NaN grows by one byte in three, quoted by two */
    LS_TRY(ls_array_alloc((void **)out, bytes + 2 * (bytes / 3) + 1, 1, "line", err));
    to = *out;
    for (int64_t i = 0; i < bytes;) {
        const char c = text[i];
        int k = 3;
        if (!in_string && (c == '-' || c == 'I' || c == 'N'))
            for (k = 0; words[k] != NULL; k++)
                if ((int64_t)strlen(words[k]) <= bytes - i && memcmp(text + i, words[k], strlen(words[k])) == 0) break;
        if (words[k] != NULL) {
            const int64_t word = (int64_t)strlen(words[k]);
            if (quotes) *to++ = '"';
            memcpy(to, quotes ? words[k] : "null", quotes ? (size_t)word : 4);
            to += quotes ? word : 4;
            if (quotes) *to++ = '"';
            i += word;
            continue;
        }
        if (c == '"') in_string = !in_string;
        *to++ = text[i++];
        if (in_string && c == '\\' && i < bytes) *to++ = text[i++];
    }
    *n = to - *out;
    return LS_OK;
}

ls_status ls_json_plain(char **out, int64_t *n, const char *text, int64_t bytes, ls_error *err) {
    return replace(out, n, text, bytes, false, err);
}

ls_status ls_json_quoted(char **out, int64_t *n, const char *text, int64_t bytes, ls_error *err) {
    return replace(out, n, text, bytes, true, err);
}
