/* Finding why a rollout program and the trainer's forward disagree: move one lever at a time from a small baseline,
 * watch how the structure of the mismatch changes, and name the cause that has this structure.
 *
 * The suspect is a black box: prompts and levers go in, completions and recorded log-probabilities come out. The
 * trainer is ls_score of this process, or another program. Words:
 *   trial        one run of the suspect: settings and prompts (trial/trial.h)
 *   outcome      what came of one request, with the trainer's values beside the recorded ones
 *   observation  the features of a trial's outcomes
 *   experiment   a trial with a purpose, a row of experiment.def (bits_trials.c)
 *   cause        a set of expectations on experiments (bits_causes.c)
 *   series       an RL-like run: steps of prompts x rollouts, the pools' ids rotating below (series.c) */
#ifndef LS_DIAGNOSE_BITS_BITS_RUN_H
#define LS_DIAGNOSE_BITS_BITS_RUN_H

#include <stdio.h>

#include "diagnose/bits/threshold.h"
#include "diagnose/cause.h"
#include "diagnose/experiment.h"
#include "diagnose/trial/door.h"
#include "json/json_out.h"

/* ---- features ---- */

enum { LS_POSITIONS = 32, LS_SLOT_BINS = 128 };

typedef enum ls_verdict {
    LS_UNTRIED = 0,
    LS_CLEAN,
    LS_MOVED, /* records agree with the trainer, tokens are not those of the baseline */
    LS_SMALL, /* bits differ by no more than rounding does */
    LS_LARGE  /* bits differ by more, or the run failed */
} ls_verdict;
const char *ls_verdict_name(ls_verdict verdict); /* "not tried", "clean", "tokens moved", "rounding", "differs" */

typedef struct ls_observation {
    ls_verdict verdict;
    ls_failures failures; /* why not tried, or how it failed */
    int64_t n_sequences, n_sequences_different, n_tokens, n_different, n_bits;
    int64_t n_failed, n_not_finite;
    int64_t n_hits, n_hits_different;           /* sequences that took something from a prefix cache */
    int64_t n_preempted, n_preempted_different; /* sequences */
    int64_t n_moved;                            /* sequences whose tokens are not the baseline's; -1: not compared */
    int64_t n_changed;                          /* the same, or whose recorded bits are not */
    int64_t first_sequence, first_position;     /* the first that differs, and the earliest place in a completion; -1 */
    int64_t lag_tokens, lag_equal;   /* tokens behind a completion's first; recorded with the bits of the one before */
    double abs_mean, abs_max, slope; /* of finite d = t - r; of t on r, NaN where it has none */
    int64_t position_n[LS_POSITIONS];
    double position_abs[LS_POSITIONS]; /* mean abs d by place in the completion; the last holds all further ones */
} ls_observation;

/* baseline: outcomes of the same requests whose tokens should be the same, or NULL. noise: the largest abs d that
 * rounding explains. */
void ls_observe(ls_observation *out, const ls_outcomes *outcomes, const ls_outcomes *baseline, double noise);
void ls_observe_failure(ls_observation *out, const ls_failures *failures);
bool ls_observed_difference(const ls_observation *observation); /* small or large */
/* One phrase on the structure: which sequences, from which place on, what they have in common. */
void ls_observation_describe(char *text, size_t bytes, const ls_observation *observation);
/* Bits of one outcome differ, or it failed. */
bool ls_outcome_differs(const ls_outcome *outcome);
/* Mean abs d; 0 without a finite token. */
double ls_outcome_abs(const ls_outcome *outcome);

/* ---- causes ---- */

typedef struct ls_ranked {
    ls_cause cause;
    double score;         /* mean of the shares of differing and of clean expectations that are met */
    bool fits;            /* every expectation that was tried is met, and one that is not "clean" was */
    uint64_t met, missed; /* sets of experiments */
} ls_ranked;

/* All causes that the experiments know, the best first; how many. */
int64_t ls_causes_rank(ls_ranked out[LS_CAUSES], const ls_observation seen[LS_EXPERIMENTS]);

/* ---- the whole ---- */

/* A monotone lever, bisected to the value where the verdict changes. */
typedef struct ls_bound {
    ls_bounded lever;
    ls_dtype dtype;
    int64_t value;   /* the one next to the clean side that differs */
    bool from_above; /* it and those below differ; otherwise it and those above */
    int64_t n_trials;
} ls_bound;

enum { LS_BOUNDS_MAX = 5, LS_SERIES_MAX = 8, LS_PROBES_MAX = 64, LS_STEPS_MAX = 256 };

typedef struct ls_series {
    int64_t rollouts, n_prompts, n_steps;
    double step_abs[LS_STEPS_MAX]; /* mean abs d */
    int64_t n_sequences, n_sequences_different, n_bits;
    int64_t first_bad, second_bad; /* first sequence of the first and second run of bad ones, from 0; -1: none */
    double onset, period;          /* in steps, fractions counted; NaN where there is none */
} ls_series;

typedef struct ls_sweep_opts {
    const char *model; /* directory */
    const ls_prompt *prompts;
    int64_t n_prompts;
    int64_t samples, max_tokens; /* of the prompts as given */
    ls_dtype dtype;
    ls_profile profile; /* of the trials whose activations are bf16; those in float32 are exact */
    uint64_t seed;
    int32_t threads;
    ls_isa isa;
    int64_t far_slots, far_words; /* the pool with far slots */
    bool story;                   /* the series over rollouts per prompt */
    /* What begins now, behind so many of `total` experiments; total 0: it is none of them. */
    void (*progress)(int64_t done, int64_t total, const char *what);
    const int32_t *ids; /* [n_ids] that prompts are made of; NULL: all of the vocabulary */
    int64_t n_ids;
    const int32_t *text_ids; /* of the texts of LS_OUTSIDE_TEXT, one behind the other */
    const int64_t *text_n;   /* [n_texts] tokens of each */
    int64_t n_texts;
    ls_sweep_trainer *checkpoint; /* the model that a server should have; NULL: not known */
    double temperature;           /* of trials with a server */
    bool hot_differs;             /* far above 1 its records were not the prompt's values */
    int64_t length_max;           /* of a sequence; 0: not known */
} ls_sweep_opts;

static inline void ls_sweep_tell(const ls_sweep_opts *opts, int64_t done, int64_t total, const char *what) {
    if (opts->progress != NULL) opts->progress(done, total, what);
}

typedef struct ls_sweep {
    ls_sweep_opts opts; /* dtype is the one of the last experiments: float32 after bf16 that showed rounding alone */
    ls_observation seen[LS_EXPERIMENTS];
    ls_ranked ranked[LS_CAUSES];
    int64_t n_ranked;
    bool different; /* anything but clean and not tried */
    ls_bound bounds[LS_BOUNDS_MAX];
    int64_t n_bounds;
    /* Single sequences placed at chosen slots. */
    struct {
        int64_t slot;
        double abs_mean;
        bool differs;
    } probes[LS_PROBES_MAX];
    int64_t n_probes;
    ls_pooled_tensor tensors[LS_POOLED_MAX];
    int64_t n_tensors;
    ls_wrap wraps[LS_WRAPS_MAX]; /* for a bound on slots */
    int64_t n_wraps;
    /* The smallest requests that still fail. */
    ls_experiment repro_of;
    ls_trial repro_trial;
    ls_prompt *repro; /* [n_repro], ids in repro_ids */
    int32_t *repro_ids;
    int64_t n_repro, repro_trials, repro_from; /* trials taken; prompts before */
    char *repro_text;                          /* command lines; NULL: those of a program */
    ls_series series[LS_SERIES_MAX];
    int64_t n_series;
    double onset_slope, period_slope; /* of log(steps) on log(rollouts); NaN where there is none */
    double slot_abs[LS_SLOT_BINS];    /* of all series: mean abs d by slot */
    int64_t slot_n[LS_SLOT_BINS];
    int64_t n_trials, n_sequences, n_bits;
    double seconds;
    struct ls_foreign
        *foreign; /* of a suspect that promises no bits (inquiry.h), in place of seen and ranked; or NULL */
} ls_sweep;

/* A suspect that promises no bits is tried within the door's seconds. */
ls_status ls_sweep_run(ls_sweep *out, const ls_sweep_opts *opts, ls_door *door, ls_error *err);
/* A server against itself. opts->model stands for it in the report. */
ls_status ls_sweep_run_server(ls_sweep *out, const ls_sweep_opts *opts, const ls_model_config *config, ls_door *door,
                              ls_error *err);
/* An error where a stack that promises no bits showed no difference, and time was left for so few experiments that this
 * says nothing of it. */
ls_status ls_sweep_check_complete(const ls_sweep *sweep, ls_error *err);
void ls_sweep_deinit(ls_sweep *sweep);
/* Copies the smallest requests into the sweep; gives them up again. */
ls_status ls_sweep_keep_repro(ls_sweep *sweep, const ls_prompt *prompts, int64_t n, const ls_trial *trial,
                              ls_error *err);
void ls_sweep_drop_repro(ls_sweep *sweep);
/* The cause that is named: the best one when it fits; NULL without a difference or when none does. */
const ls_ranked *ls_sweep_cause(const ls_sweep *sweep);

void ls_sweep_print(FILE *file, const ls_sweep *sweep);
void ls_sweep_write(ls_json_out *json, const ls_sweep *sweep);
/* The smallest requests as lines of a prompt file. */
void ls_sweep_repro(FILE *file, const ls_sweep *sweep);
/* A page that stands alone: no scripts, no outside files. */
void ls_sweep_html(FILE *file, const ls_sweep *sweep);

#endif
