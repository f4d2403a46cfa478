/* The list of architectures. */
#include "model/architectures.h"

static const ls_architecture *const architectures[] = {
    &ls_jamba,   &ls_mamba,     &ls_falcon_mamba, &ls_mamba2,      &ls_nemotron_h,
    &ls_bamba,   &ls_llama,     &ls_mistral,      &ls_mixtral,     &ls_qwen2,
    &ls_qwen3,   &ls_qwen3_moe, &ls_qwen3_5,      &ls_qwen3_5_moe, &ls_qwen3_next,
    &ls_granite, NULL};

ls_status ls_model_config_open(ls_model_config *out, const char *dir, ls_error *err) {
    return ls_architectures_open(out, architectures, dir, err);
}

ls_status ls_model_config_parse(ls_model_config *out, const char *json, int64_t bytes, const char *name,
                                ls_error *err) {
    return ls_architectures_parse(out, architectures, json, bytes, name, err);
}
