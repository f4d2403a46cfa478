/* The tables of a run, in DIR/run.sqlite. They can be read with any SQLite, while the run goes on, too:
 *
 *   runs(id, time, program, kind, config, kept)   one row for each start; kept: the last step that a resumed start kept
 *   steps(step, run, time, seconds)
 *   names(id, name), metrics(step, name, value)   the view metric(step, name, value) has the names in place
 *   samples(step, sample, id, prompt, completion, reward, advantage, prompt_tokens, completion_tokens, finish)
 *   gates(step, name, tokens, different, abs_max, k1, k2, k3, passed)
 *
 * Times are seconds since 1970. A step is one transaction: it is there with all that belongs to it or not at all. */
#ifndef LS_RUN_RUN_DB_H
#define LS_RUN_RUN_DB_H

#include "run/sql.h"

#define LS_RUN_DB "run.sqlite"
#define LS_RUN_VERSION 1 /* of the tables; PRAGMA user_version */

/* Opens the records of a directory. For writing, a file without tables gets them. Other versions are refused. */
ls_status ls_run_db_open(ls_sql **out, const char *dir, bool write, ls_error *err);

/* "DIR/NAME", released with free(). */
ls_status ls_run_path(char **out, const char *dir, const char *name, ls_error *err);

#endif
