/* A part of a sample that is told at a time, and what its tokens say: text, the stop text that ended it, tool calls. */
#ifndef LS_SERVE_SERVE_PART_H
#define LS_SERVE_SERVE_PART_H

#include "serve/serve_reply.h"

/* Tokens [first, n) are told. */
typedef struct ls_part {
    const ls_reply_about *about;
    const ls_group *group;
    const ls_completion *sample;
    int64_t first, n;
    ls_finish finish;
    const ls_tool_calls *calls; /* of the whole sample, or NULL */
    int64_t *offset;            /* of the text of token `first`, carried along by a stream; NULL: 0 */
} ls_part;

ls_status ls_part_decode(const ls_part *part, const int32_t *ids, int64_t n, bool skip_special, char **text,
                         int64_t *bytes, ls_error *err);
/* Bytes that cannot become something else: of a character that is not complete, or of a stop text. */
int64_t ls_part_final(const ls_ask *ask, const char *text, int64_t bytes);
/* The text of tokens [0, n), as far as it is certain. */
ls_status ls_part_text(const ls_part *part, char **text, int64_t *bytes, ls_error *err);
/* The text of a sample that has ended, and the tool calls in it, which are not of its text. */
ls_status ls_part_text_and_calls(const ls_part *part, ls_tool_calls *calls, char **text, int64_t *bytes, ls_error *err);
/* The stop text that ended the sample, or NULL. */
ls_status ls_part_stop_text(const ls_part *part, const char **out, ls_error *err);

#endif
