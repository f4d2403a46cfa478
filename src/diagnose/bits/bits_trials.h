/* The experiments as trials, for the files of sweep alone: which prompts each takes and which levers it moves. */
#ifndef LS_DIAGNOSE_BITS_BITS_TRIALS_H
#define LS_DIAGNOSE_BITS_BITS_TRIALS_H

#include "diagnose/bits/bits_run.h"

/* Short and long prompts are multiples of every chunk of an experiment, so that no chunk is shorter than it says. */
enum { LS_PROBE_TOKENS = 6, LS_PLAIN_TOKENS = 12, LS_LONG_PROMPTS = 16, LS_LONG_TOKENS = 32 };

typedef struct ls_bits_trials {
    const ls_sweep_opts *opts;
    const ls_model_config *config;
    ls_prompt *set[LS_SETS];
    int64_t n_set[LS_SETS];
    int32_t *tokens;   /* of all sets but the given one */
    int64_t far_pages; /* pages whose offsets leave 32 bits; 0 without attention */
} ls_bits_trials;

ls_status ls_bits_trials_create(ls_bits_trials *out, const ls_sweep_opts *opts, const ls_model_config *config,
                                ls_error *err);
void ls_bits_trials_deinit(ls_bits_trials *trials);
/* Sets type of activations and profile: float32 is always exact. */
void ls_bits_trials_numerics(ls_trial *trial, const ls_bits_trials *trials, ls_dtype dtype);
void ls_bits_trials_of(ls_trial *out, const ls_bits_trials *trials, ls_experiment experiment);
ls_prompt_set ls_experiment_set(ls_experiment experiment);
/* The experiment whose tokens this one's should be; LS_EXPERIMENTS: none. It comes earlier. */
ls_experiment ls_experiment_baseline(ls_experiment experiment);
/* The largest abs d that rounding explains. */
double ls_bits_noise(ls_dtype dtype);

/* What lays out trials and counts them. */
typedef struct ls_runner {
    ls_sweep *sweep;
    const ls_bits_trials *trials;
    ls_door *door;
} ls_runner;

/* A trial through the door, and what is seen. outcomes may be NULL; otherwise the caller releases them, in every case.
 * What the suspect cannot do or fails to do is observed; an error is the trainer's. */
ls_status ls_runner_try(const ls_runner *runner, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                        const ls_outcomes *baseline, ls_outcomes *outcomes, ls_observation *seen, ls_error *err);

/* The series over rollouts per prompt, into runner->sweep. */
ls_status ls_series_run(const ls_runner *runner, ls_error *err);
/* Onset and period from bad[n], a flag for each sequence in order: the first bad one, and the first one behind `gap`
 * clean ones that follow a bad one; -1 where there is none. */
void ls_series_edges(const uint8_t *bad, int64_t n, int64_t gap, int64_t *first, int64_t *second);
/* Slope of log y on log x over the points where y is above 0; NaN with fewer than 3. */
double ls_series_slope(const double *x, const double *y, int64_t n);

#endif
