/* The architectures that there are, and how a config.json becomes ls_model_config. docs/guide/adding-a-model.md tells
 * how to add one. */
#ifndef LS_MODEL_ARCHITECTURES_H
#define LS_MODEL_ARCHITECTURES_H

#include "load/model_config.h"

extern const ls_architecture ls_jamba, ls_mamba, ls_falcon_mamba, ls_mamba2, ls_nemotron_h, ls_bamba, ls_granite,
    ls_llama, ls_mistral, ls_mixtral, ls_qwen2, ls_qwen3, ls_qwen3_moe, ls_qwen3_5, ls_qwen3_5_moe, ls_qwen3_next;

/* Reads DIR/config.json and, where it exists, DIR/generation_config.json, whose eos_token_id then replaces the one of
 * config.json. A model_type that is none of the list is refused with the types that there are. On failure *out is
 * untouched. */
ls_status ls_model_config_open(ls_model_config *out, const char *dir, ls_error *err);
/* The same for the text of a config.json alone; `name` starts the error sentence. */
ls_status ls_model_config_parse(ls_model_config *out, const char *json, int64_t bytes, const char *name, ls_error *err);

#endif
