/* The end of sequence of a model whose config.json and generation_config.json name none: what tokenizer_config.json
 * calls eos_token, as servers and trainers that stop at the tokenizer's end take it. */
#ifndef LS_LOAD_TOKENIZER_EOS_H
#define LS_LOAD_TOKENIZER_EOS_H

#include "load/model_config.h"

/* Into n_eos and eos, which stay as they are where tokenizer_config.json, or its eos_token, is not there. The id is
 * that of added_tokens_decoder, or of tokenizer.json. */
ls_status ls_tokenizer_eos(ls_model_config *out, const char *directory, ls_error *err);

#endif
