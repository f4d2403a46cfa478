/* The options that every kind of training has, as a table of a configuration (train/config.h). */
#ifndef LS_TRAIN_TRAIN_OPTIONS_H
#define LS_TRAIN_TRAIN_OPTIONS_H

#include "op/choice.h"
#include "train/config.h"
#include "train/own_rank.h"
#include "train/train_plan.h"
#include "train/trainer.h"

/* The value of `profile` that means the default: that of the run which goes on, else ls_model_default_profile. */
#define LS_TRAIN_PROFILE_AUTO 2
/* The same of the type of activations: bf16 where the profile is mma16 or would be, else f32. */
#define LS_TRAIN_DTYPE_AUTO 2

/* Where a model's weights are: all on the device of every process, or of layers each process's share and the layers
 * that are being used (model/layer_buffer.h). */
typedef enum ls_weights_kind { LS_WEIGHTS_WHOLE, LS_WEIGHTS_BY_LAYER } ls_weights_kind;

/* Where moments are. */
typedef enum ls_moments_place { LS_MOMENTS_AUTO, LS_MOMENTS_ON_DEVICE, LS_MOMENTS_ON_HOST } ls_moments_place;

/* Which sequences of an update share a leaf. */
typedef enum ls_leaves_kind {
    LS_LEAVES_BY_NUMBER, /* neighbours */
    LS_LEAVES_BY_LENGTH  /* as ls_balance deals them */
} ls_leaves_kind;

typedef struct ls_train_options {
    char model[LS_OPTION_TEXT_MAX], run[LS_OPTION_TEXT_MAX];
    /* These carry bits. */
    uint64_t seed;
    int32_t dtype;    /* ls_dtype, f32 or bf16, or LS_TRAIN_DTYPE_AUTO until the model is open */
    int32_t profile;  /* ls_profile, or LS_TRAIN_PROFILE_AUTO until the model is open */
    int64_t leaf;     /* 0: until the model is open */
    int32_t leaves;   /* ls_leaves_kind */
    int32_t schedule; /* ls_rate_kind */
    double rate, rate_floor;
    int64_t warmup, schedule_steps;
    double beta1, beta2, eps, decay, clip; /* clip 0: none */
    int32_t moments;                       /* ls_dtype: f32 or bf16 */
    int64_t lora_rank;                     /* 0: the weights themselves are trained */
    double lora_alpha;
    char lora_targets[LS_OPTION_TEXT_MAX];
    /* These do not. */
    int64_t steps, save_every, keep;
    bool save_behind;
    bool resume, new_schedule;
    int64_t microbatch, rows; /* rows 0: the plan's */
    int32_t recompute;        /* 0: the plan's; 1: false; 2: true */
    int32_t sleep;            /* likewise */
    int32_t moments_on;       /* ls_moments_place */
    int64_t gradients;
    int64_t threads;
    int32_t isa; /* 0: the best there is, else ls_isa + 1 */
    char device[LS_OPTION_TEXT_MAX];
    int64_t rank, ranks;
    char address[LS_OPTION_TEXT_MAX];
    double timeout;
    int32_t launcher;  /* ls_launcher */
    int32_t transport; /* ls_transport_kind */
    int32_t weights;   /* ls_weights_kind */
    /* No option: which process this one is, by options and environment, once they are checked. */
    ls_own_rank own_rank;
} ls_train_options;

void ls_train_options_init(ls_train_options *options); /* the defaults */
ls_option_table ls_train_option_table(ls_train_options *options);
/* What no single value shows to be wrong. The schedule can only be checked when steps are known: with steps 0 it is
 * left out, and the check is to be done again. Fills in schedule_steps where it is 0: it becomes steps; and place. */
ls_status ls_train_options_check(ls_train_options *options, ls_error *err);
/* *order: [n], the number of the sequence at each place of an update's batch. lengths: [n], tokens. */
ls_status ls_train_options_order(int64_t *order, const int64_t *lengths, int64_t n, const ls_train_options *options,
                                 ls_error *err);
/* The parts of *out that follow from options and plan; the rest is the caller's. */
void ls_train_options_trainer(ls_trainer_opts *out, const ls_train_options *options, const ls_train_plan *plan);
/* Sequences of a leaf where `leaf` says nothing, of an update of so many sequences: it has 8 leaves, or, so that all
 * gradients of the leaf tree that are there at a time take no more than 26e9 bytes, 4 or 2; of a model of which one
 * gradient takes more, which is for several GPUs, 8. */
int64_t ls_train_options_leaf(int64_t sequences, int64_t n_parameters);
/* Of options that leave `leaf` open: options say from here on what it is, for the model in a directory. */
ls_status ls_train_options_choose_leaf(ls_train_options *options, int64_t sequences, const char *directory,
                                       ls_error *err);
/* With n_cards the options are those of rank 0 of so many: before they are checked. */
void ls_train_options_cards(ls_train_options *options, const ls_train_target *target);
/* Memory that a plan has: of the target's card, or of the options' device, which must have a limit. */
ls_status ls_train_options_target(const ls_card **card, int64_t *total, int64_t *taken, ls_train_options *options,
                                  const ls_train_target *target, ls_error *err);
/* Of this machine's memory, what one of the run's processes may pin, if all of them are here. */
int64_t ls_train_options_host_bytes(const ls_train_options *options);
/* plan_changes.c: adds to a refusal which one change of the options would fit: adapters, more processes, or of a run
 * that has one a shorter length. `fits` says whether the options as they are now do; all are as before at the end. */
typedef bool ls_train_fits(void *context);
void ls_train_plan_suggest(ls_error *err, ls_train_options *options, int64_t *length, ls_train_fits *fits,
                           void *context);
/* The parts of *out that follow from options. */
void ls_train_options_wish(ls_train_wish *out, const ls_train_options *options);
/* Where the model of a run is opened that begins or goes on at `begin`: a checkpoint of adapters holds no model. */
const char *ls_train_options_weights(const ls_train_options *options, const char *begin);
/* A model that computes as the options say, its weights being where `weights` says, with tiles if it decodes; of a
 * profile and a type of activations that are left open, options say from here on which they are. *out is the caller's
 * to close where the call fails, too. */
ls_status ls_train_options_open(ls_model **out, ls_device *device, const char *directory, ls_weights_kind weights,
                                bool decodes, ls_train_options *options, ls_error *err);
/* Meets the other processes, where there are some; *out NULL: there are none. The device is borrowed. */
ls_status ls_train_options_comm(ls_comm **out, const ls_train_options *options, ls_device *device, uint64_t identity,
                                ls_error *err);
/* A line of a run's plan, of one whose weights come by layer: what is where. */
void ls_train_options_tell_weights(FILE *file, const ls_parameters *parameters);
/* The first line of a run: its device and its profile. */
void ls_train_options_tell(FILE *file, const ls_device_choice *choice, const ls_train_options *options);
/* Where the schedule leaves a rate of 0 for a tenth or more of the updates (done, updates]: how many, what to set. */
void ls_train_options_tell_rate(FILE *file, const ls_train_options *options, int64_t done, int64_t updates);
/* What PEFT and transformers do not do with some adapters (docs/guide/adapters.md); of other weights nothing. */
void ls_train_options_tell_adapters(FILE *file, const ls_parameters *parameters);
/* The digest of the run's numerics. */
void ls_train_options_numerics(char text[LS_NUMERICS_BYTES], const ls_train_options *options);
/* Names of options that need not be those of the run that is resumed, up to NULL: the schedule where a new one is asked
 * for, and what a checkpoint tells in another place, where it is compared: profile, moments. */
const char *const *ls_train_options_free(const ls_train_options *options);
ls_isa ls_train_options_isa(const ls_train_options *options);
/* The device of this process. */
ls_status ls_train_options_device(ls_device **out, ls_device_choice *choice, const ls_train_options *options,
                                  ls_error *err);

#endif
