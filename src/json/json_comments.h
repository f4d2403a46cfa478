/* Comments in JSON that people write: // up to the end of the line, and between slash-star and star-slash, which do not
 * nest. Each of their bytes becomes a space, line breaks stay: an error of the parser names the line that it was. What
 * looks like a comment within a string is none. */
#ifndef LS_JSON_JSON_COMMENTS_H
#define LS_JSON_JSON_COMMENTS_H

#include "base/status.h"

/* A copy of text[0..bytes) without its comments, released with free(). One that does not end is an error, in which
 * `name` starts the sentence. */
ls_status ls_json_without_comments(char **out, const char *text, int64_t bytes, const char *name, ls_error *err);

#endif
