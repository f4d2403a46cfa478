/* Parsing of JSON text from outside, for the readers of this folder. The JSON library's types stay opaque here. */
#ifndef LS_JSON_JSON_READ_H
#define LS_JSON_JSON_READ_H

#include "base/status.h"

struct json_t;

/* Parses one JSON object that fills text[0..bytes) (white space around it is allowed; duplicate keys, deep nesting,
 * invalid UTF-8 and NUL in strings are errors). `name` starts the error sentence. Released with ls_json_release. */
ls_status ls_json_parse(struct json_t **out, const char *text, int64_t bytes, const char *name, ls_error *err);
/* The same, but strings (not keys) may contain NUL, so their lengths must be asked for. */
ls_status ls_json_parse_with_nul(struct json_t **out, const char *text, int64_t bytes, const char *name, ls_error *err);
/* NULL is accepted. */
void ls_json_release(struct json_t *json);

/* A short rendering of a value for error sentences: what it is and, where that is short, what it says. */
#define LS_JSON_SHOW_MAX 80
const char *ls_json_show(const struct json_t *json, char out[LS_JSON_SHOW_MAX]);

#endif
