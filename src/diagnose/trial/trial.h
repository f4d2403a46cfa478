/* Trials: what a suspect is asked for, what came of it, and who it is. Engine, program and server are subjects behind
 * one function; the trainer gives the values beside theirs. */
#ifndef LS_DIAGNOSE_TRIAL_TRIAL_H
#define LS_DIAGNOSE_TRIAL_TRIAL_H

#include <stdio.h>

#include "base/inject.h"
#include "diagnose/trial/failure.h"
#include "model/score.h"
#include "rollout/levers.h"

typedef struct ls_prompt {
    const int32_t *ids;
    int64_t n;
} ls_prompt;

/* What the door lets a trial take (trial/door.h). */
typedef struct ls_limits {
    double timeout; /* seconds of one answer; 0: none */
    double end;     /* of ls_clock_seconds, after which nothing more is begun; 0: none */
} ls_limits;
bool ls_limits_are_over(const ls_limits *limits);

typedef struct ls_trial {
    ls_levers levers;
    ls_dtype dtype; /* of activations, on both sides */
    ls_profile profile;
    ls_sampling sampling;
    ls_logprob_of logprob_of;
    int64_t max_tokens; /* of every completion; nothing stops one earlier */
    int64_t rounds;     /* runs over the same prompts, one after another in one engine */
    bool update;        /* every round after the first begins with other weights */
    uint32_t outside;   /* set of LS_OUTSIDE_..: what only a server's client can do */
    ls_limits limits;   /* the door's */
} ls_trial;

enum {
    LS_OUTSIDE_STAGGERED = 1, /* requests begin one after another while the ones before are running */
    LS_OUTSIDE_LEAVERS = 2,   /* other requests whose clients go away in the middle */
    LS_OUTSIDE_LOAD = 4,      /* many others at the same time */
    LS_OUTSIDE_RESET = 8,     /* the prefix cache is emptied between rounds */
    LS_OUTSIDE_TEXT = 16,     /* prompts are sent as text */
    LS_OUTSIDE_MARKED = 32,   /* behind other requests, with penalties and biases */
    LS_OUTSIDE_STOPS = 64,    /* half of all tokens end the completion */
    LS_OUTSIDE_UNSALTED = 128 /* requests bring no salt of the prefix cache, as those of most clients */
};

typedef struct ls_outcome {
    const int32_t *prompt;
    int64_t n_prompt;
    int32_t *completion;
    float *logprob; /* the suspect's */
    float *scored;  /* the trainer's */
    int64_t n;
    ls_failure failure;         /* why the request came to nothing, or ended too early */
    int64_t n_zero;             /* of its records that are 0 for tokens that are not sure; such lack, too */
    bool lacks;                 /* a server has no value for some of its tokens; such count as agreeing */
    int32_t slot;               /* -1: not told */
    int64_t n_hit, n_preempted; /* -1: not told */
    int32_t version;            /* of the weights: 0, and 1 in rounds behind an update */
    uint64_t excused;           /* tokens, by bit, that are as far off as rounding puts them at this very place */
} ls_outcome;

/* In the order (round, prompt, sample). */
typedef struct ls_outcomes {
    ls_outcome *of;
    int64_t n;
    int32_t *completions; /* storage of the above */
    float *logprobs, *scored;
    bool promises_nothing; /* the suspect does not say by a numeric digest that its bits are ours */
    bool tells_levers;     /* its records have meta.levers */
    uint64_t levers;       /* of these, by number: the ones that have the value that was asked for */
    ls_failures failures;
} ls_outcomes;

/* Room for a trial's outcomes; prompts and versions are filled in. */
ls_status ls_outcomes_create(ls_outcomes *out, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                             ls_error *err);
void ls_outcomes_deinit(ls_outcomes *outcomes);

/* What a server's answers said that was not asked for; counts of answers. */
typedef struct ls_server_oddities {
    int64_t n_longer, n_shorter; /* the prompt has more or fewer tokens than were sent */
    int64_t longer_by;           /* the last time, tokens */
    int64_t n_other;             /* as many, but others */
    int64_t n_unforced;          /* llama.cpp: another token than the only one that a bias left */
    int64_t n_forced_before;     /* of them: one that a request before was biased to */
    int64_t n_not_again;         /* values of a prompt that could not be had */
    int64_t n_answers;
    int64_t n_values, n_missing,
        n_missing_first;              /* decoded ones; those that an answer does not have, and of them first */
    int64_t n_again, n_missing_again; /* the same of prompts' tokens */
    int64_t n_requests;               /* that were sent */
    ls_failures failures;             /* of them */
} ls_server_oddities;

/* The black box. run fills everything but scored. With an error the trial came to nothing: failures.whole says why
 * where the error's status alone does not. */
typedef struct ls_subject {
    void *context;
    ls_status (*run)(void *context, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                     ls_outcomes *out, ls_error *err);
    bool is_program;        /* which may be a stack that promises no bits */
    bool is_server;         /* the same, moved from outside; obeys and does are known then */
    bool scores_by_token;   /* a value of a prompt is a request of its own, whatever stands behind it */
    bool records_processed; /* what it generates has values of the temperature asked for, as it says of itself */
    uint64_t obeys;         /* levers, by number */
    uint32_t does;          /* set of LS_OUTSIDE_.. */
    const ls_server_oddities *odd;
    /* The ids [most] that these become as text and back, with or without special tokens around them; how many. 0: they
     * become none, or more than that. NULL: nobody says. */
    int64_t (*through_text)(void *context, const int32_t *ids, int64_t n, bool special, int32_t *out, int64_t most);
    bool (*is_near_limit)(void *context); /* what may still be sent is for trials that decide; NULL: no limit */
    /* The command lines of a trial; NULL: those of a program. */
    void (*repro)(void *context, FILE *file, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts);
} ls_subject;

typedef struct ls_program_subject ls_program_subject;

/* The trainer: the model in two versions (the second's normalisation weights are moved), its scores kept by tokens. */
typedef struct ls_sweep_trainer ls_sweep_trainer;

ls_status ls_sweep_trainer_create(ls_sweep_trainer **out, const char *directory, ls_device *device, ls_error *err);
/* A sequence of n tokens, n - 1 values are wanted of it. */
typedef struct ls_scored {
    const int32_t *tokens;
    int64_t n, from; /* values of tokens before `from` are not used */
    float *values;
} ls_scored;
/* What gives values in place of our models: a program, a server. */
typedef struct ls_scorer {
    void *context;
    ls_status (*score)(void *context, const ls_trial *trial, const ls_scored *list, int64_t n, ls_error *err);
} ls_scorer;
/* Another trainer, for a model of any architecture. It has the first version alone. */
ls_status ls_sweep_trainer_create_by(ls_sweep_trainer **out, ls_scorer scorer, ls_error *err);
bool ls_sweep_trainer_is_other(const ls_sweep_trainer *trainer);
/* Of its model; NULL: it is another trainer. */
const char *ls_sweep_trainer_directory(const ls_sweep_trainer *trainer);
void ls_sweep_trainer_free(ls_sweep_trainer *trainer);
/* The second version is opened when it is first asked for. */
ls_status ls_sweep_trainer_model(ls_sweep_trainer *trainer, int32_t version, ls_model **out, ls_error *err);
/* The same, of the trial's ablation and profile until it is asked for again. */
ls_status ls_sweep_trainer_model_for(ls_sweep_trainer *trainer, const ls_trial *trial, int32_t version, ls_model **out,
                                     ls_error *err);
/* Fills scored of every outcome. */
ls_status ls_sweep_trainer_score(ls_sweep_trainer *trainer, const ls_trial *trial, ls_outcomes *outcomes,
                                 ls_error *err);

/* The engine of this process. A trial has a device with its threads and its instruction set where `device` is one of
 * the CPU; elsewhere trials with others than the run's cannot be tried. inject is for builds with faults. */
typedef struct ls_engine_subject {
    ls_sweep_trainer *trainer;
    ls_device *device; /* the trainer's */
    ls_inject inject;
    int32_t threads; /* of the run */
    ls_isa isa;
} ls_engine_subject;
ls_subject ls_subject_engine(ls_engine_subject *engine);

/* PROGRAM generate .. in a process of its own for every trial, by files in a directory. */
struct ls_program_subject {
    const char *program, *model, *directory;
    char *const *more; /* [n_more] further words of its command line */
    int64_t n_more;
    double patience; /* time-outs that it may take for one answer; 0: one */
    bool resident;   /* PROGRAM serve: one process that is sent all trials, by a line of JSON each */
    int protocol;    /* what it speaks (trial/resident.h); 0: the first version. A resident program says it itself */
    int pid, pipe;   /* of that process; 0: not started */
    double timeout;  /* of the trial that is running; 0: none */
    ls_failure why;  /* it came to nothing, where that is known */
};
/* PROGRAM score .. in a process of its own, or in the resident one. */
ls_scorer ls_scorer_program(ls_program_subject *program);
/* Ends a resident process. */
void ls_program_subject_end(ls_program_subject *program);
ls_subject ls_subject_program(ls_program_subject *program);

#endif
