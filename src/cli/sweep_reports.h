/* What sweep and probe share: the files of a report, and the line of progress. */
#ifndef LS_CLI_SWEEP_REPORTS_H
#define LS_CLI_SWEEP_REPORTS_H

#include "base/file.h"
#include "diagnose/bits/bits_run.h"

/* Where they go: a file, or NULL: standard output for `out`, nothing for the others. */
typedef struct ls_report_paths {
    const char *out, *html, *repro;
    bool json; /* `out` is one JSON object */
} ls_report_paths;

typedef struct ls_reports {
    ls_output *out, *html, *repro;
} ls_reports;

/* Before the work begins: an unwritable report should not cost one. */
ls_status ls_reports_open(ls_reports *reports, const ls_report_paths *paths, ls_error *err);
ls_status ls_reports_write(ls_reports *reports, const ls_report_paths *paths, const ls_sweep *sweep, ls_error *err);
/* What was opened and not written leaves nothing. */
void ls_reports_abandon(ls_reports *reports);

/* Shows what is being tried, for ls_sweep_opts; the line of progress begins with the first. Its end is the caller's. */
void ls_show_trial(int64_t done, int64_t total, const char *what);

#endif
