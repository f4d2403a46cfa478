/* Reports of sweep and probe as files. */
#define _POSIX_C_SOURCE 200809L
#include "cli/sweep_reports.h"

#include <stdio.h>

#include "cli/progress.h"

ls_status ls_reports_open(ls_reports *r, const ls_report_paths *paths, ls_error *err) {
    LS_TRY(ls_output_open(&r->out, paths->out, err));
    if (paths->html != NULL) LS_TRY(ls_output_open(&r->html, paths->html, err));
    if (paths->repro != NULL) LS_TRY(ls_output_open(&r->repro, paths->repro, err));
    return LS_OK;
}

static ls_status commit(ls_output **output, ls_error *err) {
    ls_output *whole = *output;
    *output = NULL;
    return whole != NULL ? ls_output_commit(whole, err) : LS_OK;
}

ls_status ls_reports_write(ls_reports *r, const ls_report_paths *paths, const ls_sweep *sweep, ls_error *err) {
    if (r->repro != NULL && sweep->repro_text != NULL)
        fputs(sweep->repro_text, ls_output_stream(r->repro));
    else if (r->repro != NULL)
        ls_sweep_repro(ls_output_stream(r->repro), sweep);
    if (r->html != NULL) ls_sweep_html(ls_output_stream(r->html), sweep);
    if (paths->json) {
        ls_json_out json;
        ls_json_init(&json, ls_output_stream(r->out));
        ls_sweep_write(&json, sweep);
    } else {
        ls_sweep_print(ls_output_stream(r->out), sweep);
    }
    LS_TRY(commit(&r->repro, err));
    LS_TRY(commit(&r->html, err));
    return commit(&r->out, err);
}

void ls_reports_abandon(ls_reports *r) {
    ls_output_abandon(r->repro);
    ls_output_abandon(r->html);
    ls_output_abandon(r->out);
}

void ls_show_trial(int64_t done, int64_t total, const char *what) {
    static int64_t last_done, last_total; /* what is no experiment comes behind these */
    if (last_total == 0) ls_progress_begin("trying", "experiments");
    if (total > 0) {
        last_done = done;
        last_total = total;
    }
    ls_progress_show(last_done, last_total, what);
}
