/* The two kinds of JSON lines of the tokenize and detokenize commands. Errors begin "NAME: line NUMBER"; other members
 * are ignored. */
#ifndef LS_RECORD_TEXT_LINES_H
#define LS_RECORD_TEXT_LINES_H

#include "base/status.h"

/* {"text": STRING, "id": anything}, the id being optional. */
typedef struct ls_text_line {
    char *text; /* may hold NUL characters; a further one ends it */
    int64_t bytes;
    char *id; /* as JSON on one line, or NULL */
} ls_text_line;

ls_status ls_text_line_parse(ls_text_line *out, const char *line, int64_t bytes, const char *name, int64_t line_number,
                             ls_error *err);
void ls_text_line_deinit(ls_text_line *line);

/* {"ids": [WHOLE NUMBERS], "id": anything} */
typedef struct ls_ids_line {
    int32_t *ids;
    int64_t n;
    char *id;
} ls_ids_line;

ls_status ls_ids_line_parse(ls_ids_line *out, const char *line, int64_t bytes, const char *name, int64_t line_number,
                            ls_error *err);
void ls_ids_line_deinit(ls_ids_line *line);

#endif
