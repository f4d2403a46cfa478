/* A run as one HTML page that stands alone. */
#ifndef LS_RUN_RUN_REPORT_H
#define LS_RUN_RUN_REPORT_H

#include <stdio.h>

#include "run/history.h"

/* `samples` are the completions to show, those of ls_report_samples or others. */
ls_status ls_report_write(FILE *file, const char *dir, const ls_history *history, const ls_history_sample *samples,
                          int64_t n_samples, ls_error *err);

/* Several runs on one page: a table of them, one chart for each measure with a line for each run, and what their
 * configurations differ in. n is 2 to LS_REPORT_RUNS_MAX. */
#define LS_REPORT_RUNS_MAX 16
ls_status ls_report_write_several(FILE *file, const char *const *dirs, const ls_history *histories, int64_t n,
                                  ls_error *err);

/* Of a few steps over the whole run, the first completions. */
ls_status ls_report_samples(ls_history_sample **out, int64_t *n, const char *dir, const ls_history *history,
                            ls_error *err);

#endif
