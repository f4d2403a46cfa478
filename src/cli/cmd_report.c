/* lockstep report RUN: the records of a training run as one HTML page. */
#include <argp.h>

#include "base/file.h"
#include "cli/commands.h"
#include "run/run_report.h"

typedef struct report_options {
    const char *runs[LS_REPORT_RUNS_MAX], *out;
    int64_t n;
} report_options;

static error_t parse_report_option(int key, char *arg, struct argp_state *state) {
    report_options *options = state->input;
    switch (key) {
        case 'o': options->out = arg; return 0;
        case ARGP_KEY_ARG:
            if (options->n == LS_REPORT_RUNS_MAX) ls_cli_wrong(state, "more than %d runs", LS_REPORT_RUNS_MAX);
            options->runs[options->n++] = arg;
            return 0;
        case ARGP_KEY_END:
            if (options->n == 0) ls_cli_wrong(state, "the directory of a run is needed");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options_known[] = {
    {"out", 'o', "FILE", 0, "Write to FILE, which appears only when complete (default: standard output)", 0},
    {0},
};

static const struct argp parser = {
    options_known,
    parse_report_option,
    "RUN...",
    "Write the records in the directory RUN as one HTML page: curves of held-out reward, reward, length, entropy, KL "
    "and mismatch, gate "
    "results, completions, configuration. Several runs are one page with their curves side by side.\v"
    "The page needs nothing else: no scripts, no network. The run may still be going on; the page shows it as it was "
    "after its last whole step.",
    NULL,
    NULL,
    NULL,
};

static ls_status write_one(const char *run, const ls_history *history, FILE *file, ls_error *err) {
    ls_history_sample *samples = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_report_samples(&samples, &n, run, history, err));
    LS_TRY_DONE(ls_report_write(file, run, history, samples, n, err));
done:
    ls_history_samples_free(samples, n);
    return status;
}

int ls_cmd_report(int argc, char **argv) {
    static ls_history histories[LS_REPORT_RUNS_MAX];
    report_options o = {.n = 0};
    ls_output *output = NULL;
    FILE *file;
    ls_status status = LS_OK;
    ls_error err;
    ls_cli_parse(&parser, argc, argv, &o);
    for (int64_t i = 0; i < o.n; i++)
        if ((status = ls_history_read(&histories[i], o.runs[i], &err)) != LS_OK) goto done;
    LS_TRY_DONE(ls_output_open(&output, o.out, &err));
    file = ls_output_stream(output);
    LS_TRY_DONE(o.n == 1 ? write_one(o.runs[0], &histories[0], file, &err)
                         : ls_report_write_several(file, o.runs, histories, o.n, &err));
    status = ls_output_commit(output, &err);
    output = NULL;
done:
    ls_output_abandon(output);
    for (int64_t i = 0; i < o.n; i++) ls_history_deinit(&histories[i]);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
