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
    snprintf(text, LS_NUMERICS_BYTES, "%s/%d/%s", ls_profile_name(profile),
             profile == LS_PROFILE_EXACT ? LS_NUMERICS_VERSION_EXACT : LS_NUMERICS_VERSION, ls_dtype_name(activations));
}

static bool is_router(const ls_model *model, const ls_gemm_weight *w) {
    for (int64_t i = 0; i < model->config.n_layers; i++)
        if (&model->layers[i].router == w) return true;
    return false;
}

ls_profile ls_profile_default(bool device_prefers_mma16, ls_dtype activations) {
    return device_prefers_mma16 && activations == LS_BF16 ? LS_PROFILE_MMA16 : LS_PROFILE_EXACT;
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

/* Whether the model's weights, with these activations, can be multiplied in the profile. */
static ls_status check_profile(const ls_model *model, ls_profile profile, ls_dtype activations, ls_error *err) {
    ls_model *walked = (ls_model *)(uintptr_t)model; /* the walk hands out what others may write; check_slot does not */
    if (profile == LS_PROFILE_EXACT) return LS_OK;
    if (activations != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "profile mma16: activations are %s, the profile multiplies bf16 only",
                       ls_dtype_name(activations));
    return ls_model_slots(walked, check_slot, walked, err);
}

ls_status ls_model_set_profile(ls_model *model, ls_profile profile, ls_dtype activations, ls_error *err) {
    if (profile != LS_PROFILE_EXACT && profile != LS_PROFILE_MMA16)
        return LS_FAIL(err, LS_ERR_ARG, "profile %d is neither exact nor mma16", (int)profile);
    LS_TRY(check_profile(model, profile, activations, err));
    model->profile = profile;
    return LS_OK;
}

ls_profile ls_model_default_profile(const ls_model *model, ls_dtype activations) {
    const ls_profile profile =
        ls_profile_default(activations == LS_BF16 && ls_device_prefers_mma16(model->device), activations);
    return check_profile(model, profile, activations, NULL) == LS_OK ? profile : LS_PROFILE_EXACT;
}
