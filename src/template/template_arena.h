/* Memory that lives as long as a template, or as one rendering of it: given out piece by piece, taken back at once,
 * with a limit. And the place where the reader or the evaluator stands, for its errors. */
#ifndef LS_TEMPLATE_TEMPLATE_ARENA_H
#define LS_TEMPLATE_TEMPLATE_ARENA_H

#include "base/status.h"

struct ls_tpl_block;

typedef struct ls_tpl_arena {
    struct ls_tpl_block *blocks; /* the newest first */
    int64_t bytes, bytes_max;
} ls_tpl_arena;

/* Where it is, and what it may use. */
typedef struct ls_tpl_run {
    ls_tpl_arena *arena;
    const char *name; /* of the template */
    int32_t line;
    int64_t steps, steps_max;
    int32_t depth;
    ls_error *err;
} ls_tpl_run;

#define LS_TPL_DEPTH_MAX 200

/* Zeroed, aligned for any value. */
ls_status ls_tpl_alloc(ls_tpl_run *run, void **out, int64_t count, int64_t elem_bytes);
void ls_tpl_arena_deinit(ls_tpl_arena *arena);

/* Grows *array, which is the arena's, to hold `need` elements. */
ls_status ls_tpl_grow(ls_tpl_run *run, void **array, int64_t *cap, int64_t need, int64_t elem_bytes);

/* "NAME: line N: sentence". */
ls_status ls_tpl_fail(ls_tpl_run *run, ls_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Counts work; an error past the limit. */
ls_status ls_tpl_step(ls_tpl_run *run, int64_t steps);

/* Growing text of the arena. */
typedef struct ls_tpl_text {
    char *data;
    int64_t bytes, cap;
} ls_tpl_text;

ls_status ls_tpl_append(ls_tpl_run *run, ls_tpl_text *text, const char *data, int64_t bytes);
ls_status ls_tpl_append_string(ls_tpl_run *run, ls_tpl_text *text, const char *string);
ls_status ls_tpl_append_code(ls_tpl_run *run, ls_tpl_text *text, int32_t code);

#endif
