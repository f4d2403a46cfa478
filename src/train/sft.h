/* Supervised training on pairs of prompt and completion.
 *
 * A sequence is a pair's prompt and completion ids one behind the other; texts are encoded each for itself, the prompt
 * with the tokenizer's special tokens, the completion without and, with append_eos, with the model's first
 * end-of-sequence token behind it. The loss of a step is the mean of -log-probability over all completion tokens of its
 * batch: a sum, divided once by their exact number. Step t (from 1 on) takes the pairs at positions
 * [(t - 1) batch, t batch) of the run's order (train/order.h). */
#ifndef LS_TRAIN_SFT_H
#define LS_TRAIN_SFT_H

#include "train/train_options.h"

typedef struct ls_sft_options {
    ls_train_options train;
    char data[LS_OPTION_TEXT_MAX];
    /* These carry bits. */
    int64_t batch;
    bool append_eos;
    /* These do not. */
    int64_t epochs, length;
} ls_sft_options;

/* The defaults, and in *config the tables over *options. */
void ls_sft_options_init(ls_sft_options *options, ls_config *config);
/* Trains and writes checkpoints and metrics.jsonl into the run's directory. progress: where lines for people go, or
 * NULL.
 */
ls_status ls_sft_run(ls_sft_options *options, const ls_config *config, FILE *progress, ls_error *err);

#endif
