/* The profile of a model's dense products: its name, and which models and gradients it has. */
#include <stdio.h>
#include <string.h>

#include "load/safetensors.h"
#include "model/parts.h"
#include "num/contract.h"

bool ls_profile_parse(ls_profile *out, const char *name) {
    for (int i = LS_PROFILE_EXACT; i <= LS_PROFILE_MMA16; i++)
        if (strcmp(ls_profile_name((ls_profile)i), name) == 0) {
            *out = (ls_profile)i;
            return true;
        }
    return false;
}

void ls_numerics_text(char text[LS_NUMERICS_BYTES], ls_profile profile, ls_dtype activations) {
    snprintf(text, LS_NUMERICS_BYTES, "%s/%d/%s", ls_profile_name(profile), LS_NUMERICS_VERSION,
             ls_dtype_name(activations));
}

static bool is_router(const ls_model *model, const ls_gemm_weight *w) {
    for (int64_t i = 0; i < model->config.n_layers; i++)
        if (&model->layers[i].router == w) return true;
    return false;
}

/* A dense product of mma16 takes its weight as it is stored. */
static ls_status check_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    const ls_model *model = context;
    const bool is_head = slot->kind == LS_SLOT_EMBED && model->config.tied;
    const ls_tensor_view *view;
    if (!is_head && (slot->kind != LS_SLOT_MATRIX || is_router(model, slot->matrix))) return LS_OK;
    view = ls_checkpoint_find(model->checkpoint, slot->name);
    if (view != NULL && view->dtype == LS_ST_BF16) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "profile mma16: %s is stored as %s, the profile multiplies bf16 only",
                   slot->name, view == NULL ? "nothing" : ls_st_dtype_name(view->dtype));
}

ls_status ls_model_set_profile(ls_model *model, ls_profile profile, ls_dtype activations, ls_error *err) {
    if (profile != LS_PROFILE_EXACT && profile != LS_PROFILE_MMA16)
        return LS_FAIL(err, LS_ERR_ARG, "profile %d is neither exact nor mma16", (int)profile);
    if (profile == LS_PROFILE_MMA16 && activations != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "profile mma16: activations are %s, the profile multiplies bf16 only",
                       ls_dtype_name(activations));
    if (profile == LS_PROFILE_MMA16) LS_TRY(ls_model_slots(model, check_slot, model, err));
    model->profile = profile;
    return LS_OK;
}

ls_status ls_model_check_gradient(const ls_model *model, ls_error *err) {
    if (model->profile == LS_PROFILE_EXACT) return LS_OK;
    for (int64_t i = 0; i < model->config.n_layers; i++)
        if (model->layers[i].ffn != NULL && model->layers[i].ffn->picks)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                           "profile %s: layer %lld is a mixture of experts, whose gradient the profile does not define",
                           ls_profile_name(model->profile), (long long)i);
    return LS_OK;
}
