/* Words that Python writes into JSON and JSON does not have. */
#ifndef LS_JSON_JSON_WORDS_H
#define LS_JSON_JSON_WORDS_H

#include "base/status.h"

/* Whether the text has such a word, in a string or outside: most lines have none and need no copy. */
bool ls_json_has_words(const char *text, int64_t bytes);
/* A copy, released with free(), in which NaN, Infinity and -Infinity outside strings are null. */
ls_status ls_json_plain(char **out, int64_t *n, const char *text, int64_t bytes, ls_error *err);
/* The same, but they are strings: for a file where null would say something else. */
ls_status ls_json_quoted(char **out, int64_t *n, const char *text, int64_t bytes, ls_error *err);

#endif
