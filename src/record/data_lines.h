/* Problems of one's own, JSON Lines: every line an object with a prompt, mostly an answer, perhaps an id, under any
 * names.
 *
 * A line may be a conversation: `messages`, which counts before the usual names of a prompt, or a prompt that is a list
 * of messages; with it come `tools`, `documents` and `chat_template_kwargs` (template/chat.h). Its prompt is that
 * conversation as JSON until somebody renders it.
 *
 * A name is a member's, or a path of members with dots between. Without a name the first of the usual ones counts:
 *   prompt  prompt, question, problem, input, instruction
 *   answer  answer, completion, solution, output, target, label, ground_truth,
 *           reward_model.ground_truth
 *   id      id, task_id, unique_id; without any, the digest of the prompt
 * `instruction` counts before an empty `input`; beside one that is not empty, and without another name, the line is
 * refused. A byte order mark before the first line is skipped.
 *
 * A prompt is a string that is not empty, and no JSON text of messages: that is refused. An answer is a string, or
 * another value, which becomes its JSON text; null is none. An id is a string or an integer, given once in its file.
 * max_tokens, only where it has a name, is an integer, 1..LS_DATA_TOKENS_MAX; it may be missing.
 * The whole line is kept. A line with images, videos or audios (lists or objects that are not empty) is refused: the
 * model would not see them. Lines of white space are skipped. Errors begin "PATH: line NUMBER: FIELD". */
#ifndef LS_RECORD_DATA_LINES_H
#define LS_RECORD_DATA_LINES_H

#include "base/status.h"

#define LS_DATA_ID_MAX 255 /* bytes */
#define LS_DATA_TOKENS_MAX ((int64_t)1 << 24)

/* NULL or "": the usual names. */
typedef struct ls_data_fields {
    const char *prompt, *answer, *id;
    const char *max_tokens; /* NULL or "": no line has such a number */
} ls_data_fields;

/* Owned; texts end in NUL and may contain more of them. */
typedef struct ls_data_line {
    int64_t line; /* where it was read, from 1 */
    char *id;
    bool has_id;           /* it was given */
    char *prompt, *answer; /* answer NULL: none */
    int64_t prompt_bytes, answer_bytes;
    bool is_list;       /* the answer was a list: the text is its JSON */
    bool is_chat;       /* the prompt is a conversation as JSON, or what its rendering made of it */
    char *chat;         /* the conversation as JSON, where the prompt is its rendering; else NULL */
    int64_t max_tokens; /* 0: it says none */
    bool is_answered;   /* the conversation's last message is the assistant's */
    char *whole;        /* the line as JSON */
} ls_data_line;

/* At least one line is demanded. */
ls_status ls_data_lines_read(ls_data_line **out, int64_t *n, const char *path, const ls_data_fields *fields,
                             ls_error *err);
ls_status ls_data_lines_parse(ls_data_line **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                              const ls_data_fields *fields, ls_error *err);
void ls_data_lines_free(ls_data_line *lines, int64_t n);

#endif
