/* The log of a run whose weights change under its episodes (updates=in_flight): which version drew which tokens. It is
 * a file of lines, one for each step from 1 on:
 *
 *   {"format":1,"step":3,"digest":"0123456789abcdef","borders":[[[5,1],[9,2]],[[5,2]]]}
 *
 * borders has a list for each episode of the step, in their order. [5,1] says: from token 5 on, version 1 drew. Version
 * v is the weights behind step v. digest is of the episodes' tokens and of the log-probabilities that were recorded; a
 * log that somebody wrote may leave it out. What a log says, with the options that carry bits, is enough to draw the
 * run again.
 *
 * A line is on the disk before anything is learnt from its step. A last line without its end was never relied on. */
#ifndef LS_RL_BORDERS_H
#define LS_RL_BORDERS_H

#include "rl/episode.h"

#define LS_BORDERS_NAME "borders.jsonl"

typedef struct ls_border {
    int64_t token, version; /* this and what follows is of this version */
} ls_border;

typedef struct ls_step_borders {
    bool has_digest;
    uint64_t digest;
    int64_t n;       /* episodes */
    int64_t *ends;   /* [n + 1]: those of episode i are [ends[i], ends[i + 1]), at least one; ends[0] = 0 */
    ls_border *list; /* within an episode tokens and versions ascend */
} ls_step_borders;

/* Steps 1 to n, in their order. */
typedef struct ls_borders {
    ls_step_borders *steps;
    int64_t n, cap;
    int64_t bytes; /* of the lines that are whole */
} ls_borders;

/* What a log must fit. */
typedef struct ls_borders_limits {
    int64_t episodes, length; /* of a step; tokens of an episode, at most */
    int64_t lag;              /* versions that a step's may be older than the newest one that can draw it */
} ls_borders_limits;

/* `name` stands for the file in errors. */
ls_status ls_borders_parse(ls_borders **out, const char *text, int64_t bytes, const ls_borders_limits *limits,
                           const char *name, ls_error *err);
ls_status ls_borders_read(ls_borders **out, const char *path, const ls_borders_limits *limits, ls_error *err);
void ls_borders_free(ls_borders *borders); /* accepts NULL */
/* Those of a step; NULL: it is not in the log, or there is none. */
const ls_step_borders *ls_borders_of(const ls_borders *borders, int64_t step);

/* As the episodes were drawn, which have versions. */
ls_status ls_borders_find(ls_step_borders *out, const ls_episodes *episodes, ls_error *err);
void ls_step_borders_deinit(ls_step_borders *borders);
/* Whether the episodes were drawn as `logged` says; the error names the first that was not. */
ls_status ls_borders_agree(const ls_step_borders *drawn, const ls_step_borders *logged, ls_error *err);
/* Versions of tokens of episode i. */
int64_t ls_borders_version(const ls_step_borders *borders, int64_t i, int64_t token);
/* The first token behind this one that another version draws, or `end`. */
int64_t ls_borders_next(const ls_step_borders *borders, int64_t i, int64_t token, int64_t end);

/* Makes the file, or cuts off what is behind `bytes`. */
ls_status ls_borders_begin(const char *path, int64_t bytes, ls_error *err);
/* Adds a step's line at byte *bytes, which moves on. It lasts when this returns. */
ls_status ls_borders_add(const char *path, int64_t *bytes, int64_t step, const ls_step_borders *borders, ls_error *err);

#endif
