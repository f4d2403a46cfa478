/* What of a config.json counts for whoever only asks a model of any architecture: its vocabulary, its special tokens
 * and how far its convolution looks back. */
#ifndef LS_LOAD_STACK_CONFIG_H
#define LS_LOAD_STACK_CONFIG_H

#include "load/model_config.h"

/* Fills vocab, bos, pad, eos and d_conv, and leaves the rest 0. Members are looked for at the top and under
 * "text_config"; vocab_size must be there. */
ls_status ls_stack_config_parse(ls_model_config *out, const char *json, int64_t bytes, const char *name, ls_error *err);
/* DIR/config.json. */
ls_status ls_stack_config_open(ls_model_config *out, const char *dir, ls_error *err);

#endif
