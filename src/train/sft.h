/* Supervised training on pairs of prompt and completion.
 *
 * A sequence is a pair's prompt and completion ids one behind the other; texts are encoded each for itself, the prompt
 * with the tokenizer's special tokens, the completion without and, with append_eos, with the model's first
 * end-of-sequence token behind it. The loss of a step is the mean of -log-probability over all completion tokens of its
 * batch: a sum, divided once by their exact number. Data that are not pairs (record/pair_lines.h) are read as
 * train/data.h says: the answer is the completion, and held-out lines are only measured. Step t (from 1 on) takes the
 * pairs at positions
 * [(t - 1) batch, t batch) of the run's order (train/order.h, with several files train/data.h). */
#ifndef LS_TRAIN_SFT_H
#define LS_TRAIN_SFT_H

#include "train/data.h"
#include "train/train_options.h"

typedef struct ls_sft_options {
    ls_train_options train;
    ls_data_config data;
    /* These carry bits. */
    int64_t batch;
    bool append_eos;
    /* These do not. */
    int64_t epochs, length, eval_every;
} ls_sft_options;

/* The defaults, and in *config the tables over *options. */
void ls_sft_options_init(ls_sft_options *options, ls_config *config);
/* Trains; the run's directory gets its records (run/run.h) and checkpoints/ (train/run_checkpoint.h). progress: where
 * lines for people go, or NULL. *stopped, which may be NULL: a signal ended it behind a step, saved. */
ls_status ls_sft_run(ls_sft_options *options, const ls_config *config, FILE *progress, bool *stopped, ls_error *err);
/* What such a run would choose (train/train_plan.h), as a table into `out`; the data is read, nothing is run. */
ls_status ls_sft_plan(ls_sft_options *options, const ls_config *config, const ls_train_target *target, FILE *out,
                      ls_error *err);

#endif
