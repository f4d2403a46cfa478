/* Profiles: what the host can see of a call. */
#include "op/profile.h"

ls_status ls_profile_check(const char *op, ls_profile profile, const char *operand, ls_dtype dtype, ls_error *err) {
    if (profile != LS_PROFILE_EXACT && profile != LS_PROFILE_MMA16)
        return LS_FAIL(err, LS_ERR_ARG, "%s: profile %d is neither exact nor mma16", op, (int)profile);
    if (profile == LS_PROFILE_MMA16 && dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: profile mma16: %s is %s, the profile multiplies bf16 only", op,
                       operand, ls_dtype_name(dtype));
    return LS_OK;
}
