/* Pairs to learn from, JSON Lines: {"prompt", "completion"}, both texts, or {"prompt_ids", "completion_ids"}, both
 * lists of token ids. A pair is of one kind, has all its parts, and a prompt and a completion that are not empty; other
 * members are ignored, lines of white space skipped. Errors begin "PATH: line NUMBER". */
#ifndef LS_RECORD_PAIR_LINES_H
#define LS_RECORD_PAIR_LINES_H

#include "base/status.h"

typedef struct ls_pair {
    int64_t line; /* where it was read, from 1 */
    /* One of these kinds is NULL. Texts end in NUL and may contain more of them. */
    char *prompt, *completion;
    int64_t prompt_bytes, completion_bytes;
    int32_t *prompt_ids, *completion_ids;
    int64_t n_prompt, n_completion;
} ls_pair;

/* At least one pair is demanded. */
ls_status ls_pairs_read(ls_pair **out, int64_t *n, const char *path, ls_error *err);
/* Whether the file's first line is a pair, or no JSON at all, which the reader of pairs then tells; false: its fields
 * have other names (record/data_lines.h). */
ls_status ls_pairs_detect(bool *out, const char *path, ls_error *err);
ls_status ls_pair_parse(ls_pair *out, const char *line, int64_t bytes, const char *name, int64_t line_number,
                        ls_error *err);
void ls_pair_deinit(ls_pair *pair);
void ls_pairs_free(ls_pair *pairs, int64_t n);

#endif
