/* Reading the records of a run, also of one that goes on: as it was at one moment. */
#ifndef LS_RUN_HISTORY_H
#define LS_RUN_HISTORY_H

#include "run/run.h"

/* A start of the run: the first, or a resumed one. */
typedef struct ls_history_start {
    double time;
    char *program, *kind, *config;
    int64_t config_bytes;
    bool resumed;
    int64_t kept; /* the last step that a resumed start kept */
} ls_history_start;

typedef struct ls_history_gate {
    int64_t step;
    ls_run_gate gate; /* its name is owned */
} ls_history_gate;

typedef struct ls_history_sample {
    int64_t step;
    ls_run_sample sample; /* its texts are owned and end in NUL */
} ls_history_sample;

typedef struct ls_history {
    ls_history_start *starts;
    int64_t n_starts;
    int64_t *steps; /* [n_steps], ascending; the following belong to them */
    double *times, *seconds;
    int64_t *n_samples; /* recorded of each step */
    int64_t n_steps;
    char **names;   /* [n_names] in the order of their first use */
    double *values; /* [n_names][n_steps], NaN where there is none */
    int64_t n_names;
    ls_history_gate *gates; /* by step, then name */
    int64_t n_gates;

    int64_t starts_cap, gates_cap, steps_cap, names_cap;
    int64_t *ids; /* [n_names] in the tables */
} ls_history;

ls_status ls_history_read(ls_history *out, const char *dir, ls_error *err);
void ls_history_deinit(ls_history *history);

/* The values of a measure, [n_steps], or NULL. */
const double *ls_history_series(const ls_history *history, const char *name);

/* The first samples, n_each at most, of each of the given steps. */
ls_status ls_history_samples(ls_history_sample **out, int64_t *n, const char *dir, const int64_t *steps,
                             int64_t n_steps, int64_t n_each, ls_error *err);
void ls_history_samples_free(ls_history_sample *samples, int64_t n);

#endif
