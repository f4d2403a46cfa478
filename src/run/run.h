/* Records of a training run. A run is a directory:
 *
 *   run.sqlite      everything (run/run_db.h): the record; the other files are made from it
 *   metrics.jsonl   one line a step, {"step","time","seconds"} and the step's measures; NaN and infinities are null
 *   events.out.tfevents.*.lockstep   the same for TensorBoard
 *
 * A step begins, is told its measures, samples and gate results, and is committed: it is then in all three files. When
 * that fails it is in none of them, what was committed before stays, and the next step may be tried. After a kill at
 * any moment the database holds whole steps only; the other files may be a step ahead of it, or end in a piece of one,
 * or be those from before a resumed start, until the run is resumed. One process writes a directory at a time.
 *
 * Measures that the progress line and the report know go by the names below; any others are recorded alike. */
#ifndef LS_RUN_RUN_H
#define LS_RUN_RUN_H

#include "json/json_out.h"

#define LS_METRIC_REWARD "reward/mean"
#define LS_METRIC_JUDGES "rewards/"    /* NAME/mean: of each of several judges */
#define LS_METRIC_LENGTH "length/mean" /* tokens of a completion */
#define LS_METRIC_LOSS "loss/loss"     /* ls_loss_metrics_write with the key "loss" */
#define LS_METRIC_RATE "learning_rate"
#define LS_METRIC_HELD_OUT "held_out/reward"
#define LS_METRIC_HELD_OUT_LOSS "held_out/loss"
#define LS_METRIC_SPEED "tokens_per_second"
#define LS_METRIC_MISMATCH "mismatch" /* of ls_mismatch_write: mismatch/abs_max, ... */
#define LS_METRIC_MISMATCH_BF16 \
    "mismatch_bf16" /* the same, had the rollout been bf16 whose bits vary with the batch \
                     */

typedef struct ls_run ls_run;

typedef struct ls_run_setup {
    const char *kind;     /* "grpo", "sft" */
    const char *config;   /* its text, for the record */
    int64_t config_bytes; /* with -1 config ends in NUL */
    bool resume;          /* go on with a run whose last step that counts is `keep`: later ones are removed */
    int64_t keep;
    int64_t n_steps; /* planned, for the progress line; 0: not known */
} ls_run_setup;

/* A new run makes the directory where it is missing, and needs one without recorded steps. */
ls_status ls_run_open(ls_run **out, const char *dir, const ls_run_setup *setup, ls_error *err);
/* With `resume`, goes on with the records where there are some, setup->keep telling the checkpoint's step; a run that
 * was killed before it had a record to go on with (keep 0) begins anew. Without, ls_run_open of a new run. */
ls_status ls_run_open_or_resume(ls_run **out, const char *dir, const ls_run_setup *setup, bool resume, ls_error *err);
void ls_run_close(ls_run *run); /* a step that is not committed is dropped; NULL is accepted */

/* Steps ascend; they are not negative. */
ls_status ls_run_step_begin(ls_run *run, int64_t step, ls_error *err);
/* Also when it fails, the step is over. What went wrong since its beginning is told here. */
ls_status ls_run_step_commit(ls_run *run, ls_error *err);
void ls_run_step_drop(ls_run *run);
/* What the step took, where the caller was at work on it before it began here. */
void ls_run_step_seconds(ls_run *run, double seconds);
/* Seconds that the run will still take behind the step that is open or was committed last, by those behind the first
 * one of this process; 0: not known. */
double ls_run_seconds_left(const ls_run *run);

/* Within a step. Of measures of one name the last counts. */
void ls_run_metric(ls_run *run, const char *name, double value);
/* A JSON writer whose numbers become measures, by their path below `prefix`: with ls_mismatch_write and "mismatch"
 * there is mismatch/k3. What stands in an object "aliases" is recorded by its own name, without a path. It is good
 * until the next one is asked for; nothing has to be ended. prefix "" is none. */
ls_json_out *ls_run_metrics(ls_run *run, const char *prefix);

typedef struct ls_run_sample {
    const char *id; /* of the prompt, problem or episode */
    const char *prompt, *completion;
    int64_t prompt_bytes, completion_bytes; /* of any bytes */
    double reward, advantage;
    int64_t n_prompt, n_completion; /* tokens */
    const char *finish;
} ls_run_sample;

void ls_run_sample_add(ls_run *run, const ls_run_sample *sample);

/* Trainer against rollout: d = t - r over `tokens`, of which `different` have other bits. The numbers are also recorded
 * as measures, gate/NAME/different, .... */
typedef struct ls_run_gate {
    const char *name; /* "rollout" */
    int64_t tokens, different;
    double abs_max, k1, k2, k3;
    bool passed;
} ls_run_gate;

void ls_run_gate_add(ls_run *run, const ls_run_gate *gate);

/* What the progress line says of a step. NaN: not known. */
typedef struct ls_run_glance {
    int64_t step, n_steps;
    double reward, length, loss, rate, speed;
    int64_t tokens, different; /* of the gates; tokens 0: there was none */
    double left;               /* seconds to the end of the run; 0: not known */
} ls_run_glance;

/* "step 3/100  reward 0.5  length 81.2  rate 1e-5  12034 tokens/s  mismatch 0 of 8123 tokens  25 min left" */
void ls_run_glance_text(char *text, size_t bytes, const ls_run_glance *glance);

#endif
