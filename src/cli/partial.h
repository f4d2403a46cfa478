/* What a generation that a signal stopped had finished: FILE.partial beside the output FILE. Its first line says of
 * which generation it is, with a digest of everything that results depend on, and which requests follow; the others are
 * their records. A generation that goes on takes these lines as they are. */
#ifndef LS_CLI_PARTIAL_H
#define LS_CLI_PARTIAL_H

#include <stdio.h>

#include "cli/job.h"

typedef struct ls_partial ls_partial;

/* Of the job's requests, as they are laid out. With `resume` what is there is read; *n_done is how many requests it
 * has, -1 where there is no such file. One of another generation is an error. */
ls_status ls_partial_open(ls_partial **out, int64_t *n_done, const ls_job *job, const ls_run_options *options,
                          ls_error *err);
void ls_partial_free(ls_partial *partial); /* accepts NULL */
const char *ls_partial_path(const ls_partial *partial);
/* The record of request i, a line without its end, or NULL. */
const char *ls_partial_line(const ls_partial *partial, int64_t i);

typedef ls_status (*ls_partial_writer)(void *context, FILE *stream, int64_t i, ls_error *err);
/* The file anew: lines that are there, and of the other requests with done[i] what `write` writes, a line each. */
ls_status ls_partial_save(const ls_partial *partial, const bool *done, ls_partial_writer write, void *context,
                          ls_error *err);

#endif
