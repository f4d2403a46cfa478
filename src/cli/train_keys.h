/* The keys of a kind of training, for people: by subject, with those that a run cannot do without first. */
#ifndef LS_CLI_TRAIN_KEYS_H
#define LS_CLI_TRAIN_KEYS_H

#include "train/config.h"

/* required: names up to NULL. A key that no subject has stands at the end, under a heading of its own. */
void ls_train_keys_print(FILE *file, const ls_config *config, const char *const *required);

#endif
