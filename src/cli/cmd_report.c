/* lockstep report RUN: the records of a training run as one HTML page. */
#include <argp.h>

#include "base/file.h"
#include "cli/commands.h"
#include "run/run_report.h"

typedef struct report_options {
    const char *run, *out;
} report_options;

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    report_options *options = state->input;
    switch (key) {
        case 'o': options->out = arg; return 0;
        case ARGP_KEY_ARG:
            if (options->run != NULL) ls_cli_wrong(state, "unexpected argument '%s'", arg);
            options->run = arg;
            return 0;
        case ARGP_KEY_END:
            if (options->run == NULL) ls_cli_wrong(state, "the directory of a run is needed");
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
    parse_option,
    "RUN",
    "Write the records in the directory RUN as one HTML page: curves of reward, length, entropy, KL and mismatch, gate "
    "results, completions, configuration.\v"
    "The page needs nothing else: no scripts, no network. The run may still be going on; the page shows it as it was "
    "after its last whole step.",
    NULL,
    NULL,
    NULL,
};

int ls_cmd_report(int argc, char **argv) {
    report_options options = {0};
    ls_history history = {0};
    ls_history_sample *samples = NULL;
    ls_output *output = NULL;
    int64_t n_samples = 0;
    ls_status status;
    ls_error err;
    ls_cli_parse(&parser, argc, argv, &options);
    LS_TRY(ls_history_read(&history, options.run, &err));
    LS_TRY(ls_report_samples(&samples, &n_samples, options.run, &history, &err));
    LS_TRY(ls_output_open(&output, options.out, &err));
    LS_TRY(ls_report_write(ls_output_stream(output), options.run, &history, samples, n_samples, &err));
    status = ls_output_commit(output, &err);
    output = NULL;
done:
    ls_output_abandon(output);
    ls_history_samples_free(samples, n_samples);
    ls_history_deinit(&history);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
