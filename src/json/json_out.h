/* A streaming JSON writer: commas and escapes are its business, structure is the caller's.
 * Floats print with 9 significant digits, which a float32 survives, doubles with as many as they need; NaN and
 * infinities print as null. A writer can also be made to tell its numbers instead, so that whatever is written as JSON
 * can be recorded as measures under the same names. */
#ifndef LS_JSON_JSON_OUT_H
#define LS_JSON_JSON_OUT_H

#include <stdio.h>

#include "base/status.h"

#define LS_JSON_DEPTH_MAX 32

#define LS_JSON_PATH_MAX 256

/* A number or a truth value (0 or 1), and where it stands: keys and indices from the top, with '/' between. NaN and
 * infinities come as they are. */
typedef void (*ls_json_visit)(void *context, const char *path, double value);

typedef struct ls_json_out {
    FILE *file; /* NULL: the numbers are told */
    int32_t depth;
    int64_t n_items[LS_JSON_DEPTH_MAX];
    ls_json_visit visit;
    void *context;
    char path[LS_JSON_PATH_MAX]; /* of the open object or array, when numbers are told */
    int32_t path_bytes[LS_JSON_DEPTH_MAX];
} ls_json_out;

void ls_json_init(ls_json_out *json, FILE *file);
void ls_json_init_visit(ls_json_out *json, ls_json_visit visit, void *context);
/* key is NULL inside an array and at the top. */
void ls_json_begin_object(ls_json_out *json, const char *key);
void ls_json_end_object(ls_json_out *json);
void ls_json_begin_array(ls_json_out *json, const char *key);
void ls_json_end_array(ls_json_out *json);
void ls_json_text(ls_json_out *json, const char *key, const char *text,
                  int64_t bytes);                                          /* UTF-8; invalid bytes become U+FFFD */
void ls_json_string(ls_json_out *json, const char *key, const char *text); /* NUL-terminated */
void ls_json_int(ls_json_out *json, const char *key, int64_t value);
void ls_json_uint(ls_json_out *json, const char *key, uint64_t value);
void ls_json_float(ls_json_out *json, const char *key, float value);
void ls_json_double(ls_json_out *json, const char *key, double value); /* as ls_double_show */
void ls_json_bool(ls_json_out *json, const char *key, bool value);
/* A value that is JSON already. */
void ls_json_raw(ls_json_out *json, const char *key, const char *text);
void ls_json_string_or_null(ls_json_out *json, const char *key, const char *text); /* NULL: null */
void ls_json_null(ls_json_out *json, const char *key);
void ls_json_newline(ls_json_out *json);

/* A file that is written whole or not at all: `fill` writes what is in it. */
typedef ls_status (*ls_json_fill)(ls_json_out *json, const void *context, ls_error *err);
ls_status ls_json_save(const char *path, ls_json_fill fill, const void *context, ls_error *err);

#define LS_DOUBLE_TEXT_MAX 32
/* The shortest text that reads back as this finite value. */
void ls_double_text(char text[LS_DOUBLE_TEXT_MAX], double value);
/* The same as people write it: 1e-6 and not 1e-06. */
void ls_double_show(char text[LS_DOUBLE_TEXT_MAX], double value);
/* So many digits of it. */
void ls_double_round(char text[LS_DOUBLE_TEXT_MAX], double value, int digits);
/* The double with the shortest text that reads back as this float32: 0.7 of 0.7f. */
double ls_float_plain(float value);

#endif
