/* Training by policy gradients: rollouts of the problems of a task or of data, rewards, advantages, updates, with the
 * gate in between.
 *
 * Step t, from 1 on:
 *   problems   [(t - 1) prompts, t prompts) of the train split, `samples` episodes each (rl/episode.h), drawn by one
 *              engine that computes with the very weights that the trainer publishes, or by servers that get them from
 *              disk (rl/rollout.h)
 *   rewards    of the task, of verifiers, commands, servers and Python functions, added by weights; then advantages
 *              (rl/advantage.h)
 *   gate       the trainer's forward gives every drawn token its log-probability, which must have the bits that the
 *              rollout recorded (rl/gate.h). It is the forward of the first update; only sequences of other minibatches
 *              take a forward of their own. Where bits differ the run ends before it learns from them, with a bundle
 *              (rl/bundle.h), or goes on with gate=warn
 *   updates    `epochs` times all minibatches: minibatch m is the episodes of prompts [m P / M, (m + 1) P / M), in
 *              index order; their order is drawn for each epoch. One whose tokens all do not count is passed over.
 *              loss: rl/loss.h. o is what the rollout recorded or, with gate=warn, differing bits and a correction,
 *              what the trainer's forward gave before the step's first update; corrections compare that with the record
 * Where rollouts are truncated (top_k, top_p, min_p) every token is learnt from under the distribution that it was
 * drawn from: the model's at the temperature, over the support that was kept, renormalised. The rollout records how
 * many tokens were kept and their mass. The trainer finds the same support in the forward that has the record's bits
 * and keeps it for the updates of the step (model/supports.h): ratios, gradient and entropy are of that support.
 * Nothing is learnt of tokens outside of it. Where older weights drew, they find it.
 *
 * The gate's equality makes every ratio of the step's first update exactly 1 and k1, k2, k3 and the clipped fraction
 * exactly 0, which is asserted.
 *
 * With a lag of k the episodes of step t are drawn with the weights behind step max(0, t - 1 - k), by a thread that
 * draws while the trainer trains. The gate of those that are not of the step's own weights is a forward of the weights
 * that drew them. The trainer's log-probabilities then differ from the record by the staleness alone, which is reported
 * as such, and ratios are not 1. With updates=in_flight a new version reaches the draws as soon as it is there: which
 * one drew which tokens is written into a log (rl/borders.h), and the run is a function of it, too.
 *
 * A run has one result: its digest covers the tokens, recorded log-probabilities and rewards of every step and the
 * weights behind it. It depends on the options that carry bits, the model and the rewards; not on microbatches,
 * recomputation, threads, instruction set, processes, levers of the engine, evaluations, or stops in between. */
#ifndef LS_RL_GRPO_H
#define LS_RL_GRPO_H

#include "base/inject.h"
#include "rl/advantage.h"
#include "rl/correction.h"
#include "rl/episode.h"
#include "rl/loss.h"
#include "rl/replay.h"
#include "train/data.h"
#include "train/train_options.h"

#define LS_GRPO_LEVERS_MAX 32
#define LS_GRPO_LAG_MAX 16

typedef enum ls_push_mode { LS_PUSH_WHOLE, LS_PUSH_CHANGED } ls_push_mode;
typedef enum ls_gate_mode { LS_GATE_STOP, LS_GATE_WARN } ls_gate_mode;

/* How often what a group's episodes begin with in common is trained: train/shared_rows.h. */
typedef enum ls_beginnings { LS_BEGINNINGS_APART, LS_BEGINNINGS_SHARED } ls_beginnings;

/* When draws ahead get new weights: before a step's draws, or as soon as they are there. */
typedef enum ls_updates { LS_UPDATES_BETWEEN, LS_UPDATES_IN_FLIGHT } ls_updates;

/* Who judges: with auto the command or server that is named, else the task. "python:SPEC" is a function
 * (rl/reward_python.h). Several, with commas between, are added by reward_weights. */
typedef enum ls_reward_mode {
    LS_REWARD_AUTO,
    LS_REWARD_TASK,
    LS_REWARD_EXACT, /* from here on in the order of ls_verify_kind */
    LS_REWARD_NUMBER,
    LS_REWARD_CHOICE,
    LS_REWARD_REGEX,
    LS_REWARD_JSON,
    LS_REWARD_COMMAND,
    LS_REWARD_SERVER,
    LS_REWARD_ENVIRONMENT,
    LS_REWARD_PYTHON
} ls_reward_mode;

#define LS_PYTHON_PREFIX "python:"

typedef struct ls_grpo_judge {
    ls_reward_mode mode;
    char spec[LS_OPTION_TEXT_MAX]; /* as it was given */
    char name[64];                 /* in records: of a function its own name */
    double weight;
} ls_grpo_judge;

#define LS_STOP_AUTO "auto"

typedef struct ls_grpo_options {
    ls_train_options train;
    ls_data_config data;
    /* These carry bits. */
    char task[LS_OPTION_TEXT_MAX], task_options[LS_OPTION_TEXT_MAX], stop[LS_OPTION_TEXT_MAX];
    int64_t prompts, samples, max_tokens, length;
    char data_max_tokens[LS_OPTION_TEXT_MAX]; /* the field of a line's own max_tokens; "": none */
    double temperature;
    int64_t top_k;
    double top_p, min_p;
    int32_t advantages; /* ls_advantage_kind */
    bool population, drop_equal;
    double advantage_eps;
    bool filter_groups;
    int64_t max_num_gen_batches; /* with filter_groups, once they are checked; else 1 */
    int64_t overlong_buffer;
    double overlong_penalty;
    int32_t loss, norm, kl; /* ls_policy_kind, ls_loss_norm, ls_kl_kind */
    double norm_length, eps_low, eps_high, dual_clip, beta, entropy_bonus;
    bool mask_overlong;
    int32_t overlong_prompts; /* 0: refused; 1: left out */
    char correction[LS_OPTION_TEXT_MAX];
    int64_t epochs, minibatches;
    int64_t lag;
    int32_t updates; /* ls_updates */
    int32_t prefix;  /* ls_beginnings */
    /* These do not, as long as rewards are the same. */
    char reward[LS_OPTION_TEXT_MAX], reward_weights[LS_OPTION_TEXT_MAX];
    ls_grpo_judge judges[LS_JUDGES_MAX]; /* what these say, once they are checked */
    int64_t n_judges;
    char reward_pattern[LS_OPTION_TEXT_MAX], reward_schema[LS_OPTION_TEXT_MAX];
    char reward_command[LS_OPTION_TEXT_MAX], reward_url[LS_OPTION_TEXT_MAX];
    double reward_timeout;
    int64_t reward_batch, reward_concurrency, reward_workers;
    char python[LS_OPTION_TEXT_MAX];
    char environment[LS_OPTION_TEXT_MAX]; /* "python:SPEC", or "" */
    char environment_command[LS_OPTION_TEXT_MAX], environment_url[LS_OPTION_TEXT_MAX];
    char environment_record[LS_OPTION_TEXT_MAX];
    int64_t environment_turns;
    char rollout_url[LS_OPTION_TEXT_MAX], rollout_key_file[LS_OPTION_TEXT_MAX];
    double rollout_timeout;
    int64_t rollout_concurrency;
    int32_t rollout_push; /* ls_push_mode */
    char reference[LS_OPTION_TEXT_MAX];
    int32_t gate;                         /* ls_gate_mode */
    int64_t draw_threads;                 /* of a lag, while the trainer works, at most; 0: a third of threads */
    char draw_device[LS_OPTION_TEXT_MAX]; /* of a lag; "": the trainer's */
    double check_share;                   /* of a lag: of the episodes whose weights are not the step's own */
    char follow[LS_OPTION_TEXT_MAX];      /* of updates=in_flight */
    int64_t eval_every, eval_n, record_samples;
    double eval_temperature;
    /* Levers of the engine, as texts. */
    ls_option lever_options[LS_GRPO_LEVERS_MAX];
    char lever_names[LS_GRPO_LEVERS_MAX][40], lever_values[LS_GRPO_LEVERS_MAX][LS_OPTION_TEXT_MAX];
    char inject[LS_OPTION_TEXT_MAX]; /* in builds with LS_FAULTS */
} ls_grpo_options;

/* The defaults, and in *config the tables over *options. */
void ls_grpo_options_init(ls_grpo_options *options, ls_config *config);
/* What no single value shows to be wrong; fills in what follows from others. */
ls_status ls_grpo_options_check(ls_grpo_options *options, ls_error *err);
/* The parts that follow from checked options. */
/* batch 0: left open, the plan says (train/train_plan.h). */
ls_status ls_grpo_levers(ls_levers *out, const ls_grpo_options *options, ls_error *err);
/* Of rollouts, and of the log-probabilities that are learnt from; with the run's seed. */
ls_sampling ls_grpo_sampling(const ls_grpo_options *options);
ls_loss_options ls_grpo_loss(const ls_grpo_options *options);
ls_advantage_options ls_grpo_advantages(const ls_grpo_options *options);
ls_inject ls_grpo_inject(const ls_grpo_options *options);
/* With prefix=shared: tokens that the trainer computes of a group, at most. */
int64_t ls_grpo_group_rows(const ls_grpo_options *o);
/* With a lag: threads that draw while the trainer works, at most; at least one. */
int64_t ls_grpo_draw_threads(const ls_grpo_options *options);
/* Whether the trainer's device draws; name: as it was chosen ("cuda:0"), "" before that. */
bool ls_grpo_draws_here(const ls_grpo_options *options, const char *name);
/* Whether such a judge is among them. */
bool ls_grpo_judged_by(const ls_grpo_options *options, ls_reward_mode mode);

typedef struct ls_grpo_result {
    int64_t step;    /* steps done */
    uint64_t digest; /* of the run so far */
    bool stopped;    /* a signal ended the run behind this step, saved */
    bool differs;    /* the gate met other bits: in this step, with gate=stop, or in some step */
    ls_gate gate;    /* of the last step */
    char bundle[LS_SAVES_PATH_MAX + 32];
    ls_replay_finding finding; /* of the bundle */
} ls_grpo_result;

/* Trains; the run's directory gets its records (run/run.h), checkpoints/ (train/run_checkpoint.h) and bundles.
 * progress: where lines for people go, or NULL. Other bits are no failure: result->differs tells. */
ls_status ls_grpo_run(ls_grpo_options *options, const ls_config *config, FILE *progress, ls_grpo_result *result,
                      ls_error *err);
/* What such a run would choose (train/train_plan.h), as a table into `out`; nothing is run, and no directory made. */
ls_status ls_grpo_plan(ls_grpo_options *options, const ls_config *config, const ls_train_target *target, FILE *out,
                       ls_error *err);

#endif
