/* Lockstep's trainer inside another program: steps on given tokens. lockstep/engine.h has models, sizes of structs,
 * ownership and errors.
 *
 *   lockstep_trainer_open    over a model; at most one at a time
 *   lockstep_trainer_sft     a supervised step;  _policy  one by advantages (GRPO, PPO, GSPO, CISPO, REINFORCE)
 *   lockstep_trainer_save    a checkpoint, which is a model directory as well;  _resume goes on from one
 *
 * A step changes the weights of the model in place. Engines over it go on after lockstep_engine_update. Before it
 * learns, a policy step compares its own forward with the log-probabilities that the engine recorded: with an engine
 * over the same weights no bit differs. */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include "lockstep/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lockstep_trainer lockstep_trainer;

typedef enum lockstep_schedule { LOCKSTEP_CONSTANT = 0, LOCKSTEP_LINEAR = 1, LOCKSTEP_COSINE = 2 } lockstep_schedule;

/* docs/reference/losses.md has the formulas. */
typedef enum lockstep_loss {
    LOCKSTEP_PPO = 0,
    LOCKSTEP_GSPO = 1,
    LOCKSTEP_CISPO = 2,
    LOCKSTEP_REINFORCE = 3
} lockstep_loss;
typedef enum lockstep_norm {
    LOCKSTEP_NORM_TOKEN = 0,    /* a mean over all tokens of the batch */
    LOCKSTEP_NORM_SEQUENCE = 1, /* a mean over sequences of means over their tokens */
    LOCKSTEP_NORM_LENGTH = 2    /* a mean over sequences of sums over their tokens, divided by norm_length */
} lockstep_norm;
typedef enum lockstep_kl { LOCKSTEP_K1 = 0, LOCKSTEP_K2 = 1, LOCKSTEP_K3 = 2 } lockstep_kl;

typedef struct lockstep_trainer_options {
    size_t size;
    int64_t sequences_max, length_max; /* of a batch; tokens of a sequence; defaults 64 and 2,048 */
    /* These carry bits. */
    int64_t leaf;       /* sequences whose gradient is one ordered computation; default 1 */
    double temperature; /* of the log-probabilities, above 0; default 1 */
    int32_t schedule;   /* lockstep_schedule; default constant */
    double rate, rate_floor;
    int64_t warmup, schedule_steps;  /* steps; schedule_steps is not read where the schedule is constant */
    double beta1, beta2, eps, decay; /* of AdamW; defaults 0.9, 0.95, 1e-8, 0.1 */
    double clip;                     /* largest norm of a gradient, default 1; 0: no limit */
    int32_t loss, norm, kl;          /* lockstep_loss, lockstep_norm, lockstep_kl of policy steps; defaults 0, 0, K3 */
    double eps_low, eps_high;        /* default 0.2 */
    double dual_clip;                /* above 1; 0: none */
    double kl_weight;                /* of the KL term; 0: none, else batches have `reference` */
    double entropy_weight;           /* 0: none */
    double norm_length;              /* of LOCKSTEP_NORM_LENGTH */
    int32_t mask_overlong;           /* tokens of sequences that a limit of length ended do not count */
    /* These do not. */
    int32_t recompute;  /* activations again in the backward instead of keeping them */
    int64_t microbatch; /* leaves of one forward, at most; default 4 */
    /* This does: the type that both moments are stored in, LS_F32 (default) or LS_BF16, which halves their memory; they
     * are rounded by random numbers of the seed 0 then (NUMERICS.md). */
    int32_t moments;
    int32_t reserved; /* 0 */
} lockstep_trainer_options;

/* Sequences to learn from; arrays [tokens] lie beside `tokens`. */
typedef struct lockstep_batch {
    size_t size;
    int64_t n;
    const int64_t *offsets; /* [n + 1], ascending from 0; every sequence has two tokens at least */
    const int32_t *tokens;
    const uint8_t *mask; /* [tokens] not 0: the token is learnt from. NULL: all of them but the first of a sequence, of
                            which nothing is learnt in any case */
    /* The rest is of policy steps alone. */
    const float *advantages; /* [n] */
    const float *recorded;   /* [tokens] of the rollout; read where the mask is set; NULL only for REINFORCE */
    const float *reference;  /* [tokens] of the reference model, with kl_weight; else NULL */
    const uint8_t *overlong; /* [n] not 0: a limit of length ended it; NULL: none */
    /* Default 1: where a bit of `recorded` differs from the trainer's own, nothing is learnt and the step fails, saying
     * where. 0 for updates behind the first one of the same rollouts. */
    int32_t check;
    int32_t reserved; /* 0 */
} lockstep_batch;

/* What a step saw and did. Numbers of policy steps are NaN or 0 for supervised ones. */
typedef struct lockstep_step_stats {
    size_t size;
    int64_t step; /* steps done */
    double loss;
    int64_t tokens, sequences;   /* that counted */
    double rate, norm;           /* norm of the gradient before clipping */
    int64_t compared, differing; /* tokens with a recorded log-probability; of those with other bits */
    double ratio_mean, ratio_min, ratio_max, clip_fraction, kl, entropy;
} lockstep_step_stats;

void lockstep_trainer_options_init(lockstep_trainer_options *options, size_t size);
void lockstep_batch_init(lockstep_batch *batch, size_t size);

/* Takes all memory: masters, moments, gradients, activations. options may be NULL. The weights must be as the model's
 * directory has them. */
ls_status lockstep_trainer_open(lockstep_trainer **out, lockstep_model *model, const lockstep_trainer_options *options,
                                ls_error *err);
void lockstep_trainer_close(lockstep_trainer *trainer);

/* The forward of a step alone: logprob [offsets[n]], +0 where a token is not learnt from. */
ls_status lockstep_trainer_score(lockstep_trainer *trainer, const lockstep_batch *batch, float *logprob, ls_error *err);
/* The loss is the mean of -log-probability over the tokens of the mask. A failure changes no weight. stats may be NULL;
 * its caller sets stats->size. */
ls_status lockstep_trainer_sft(lockstep_trainer *trainer, const lockstep_batch *batch, lockstep_step_stats *stats,
                               ls_error *err);
/* The loss of the options. Where bits differ that were to be checked: LS_ERR_ARG, with `compared` and `differing` in
 * stats. */
ls_status lockstep_trainer_policy(lockstep_trainer *trainer, const lockstep_batch *batch, lockstep_step_stats *stats,
                                  ls_error *err);
int64_t lockstep_trainer_step(const lockstep_trainer *trainer); /* steps done; -1 for NULL */

/* RUN/step-00000040, a model directory with masters and moments, of which the newest `keep` stay (0: all). RUN is made
 * where it is missing, not its parents. */
ls_status lockstep_trainer_save(lockstep_trainer *trainer, const char *run, int64_t keep, ls_error *err);
/* The weights alone, as a model directory, which is made where it is missing. */
ls_status lockstep_trainer_export(lockstep_trainer *trainer, const char *directory, ls_error *err);
/* Masters, moments and step of the checkpoint that the model was opened from, before the first step. Options that carry
 * bits must be those of the run that saved it. A trainer that fails to resume does nothing more. */
ls_status lockstep_trainer_resume(lockstep_trainer *trainer, ls_error *err);

/* How rewards become advantages: sample i belongs to group i / group. */
typedef enum lockstep_advantage {
    LOCKSTEP_ADVANTAGE_MEAN = 0, /* r - mean */
    LOCKSTEP_ADVANTAGE_STD = 1,  /* (r - mean) / (std + 1e-6), std with n - 1: GRPO's */
    LOCKSTEP_ADVANTAGE_RLOO = 2  /* r - the mean of the others */
} lockstep_advantage;
/* out [n] and rewards [n], n a multiple of group; a reward that is not finite is left out and gets 0. */
ls_status lockstep_advantages(float *out, const float *rewards, int64_t n, int64_t group, int32_t kind, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
