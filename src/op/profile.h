/* What every op that takes a profile refuses. */
#ifndef LS_OP_PROFILE_H
#define LS_OP_PROFILE_H

#include "base/status.h"
#include "lockstep/lockstep.h"

/* LS_OK when `profile` is exact, or mma16 and the operand, which it multiplies as it is, has the type bf16. */
static inline ls_status ls_profile_check(const char *op, ls_profile profile, const char *operand, ls_dtype dtype,
                                         ls_error *err) {
    if (profile == LS_PROFILE_EXACT || (profile == LS_PROFILE_MMA16 && dtype == LS_BF16)) return LS_OK;
    if (profile != LS_PROFILE_MMA16)
        return LS_FAIL(err, LS_ERR_ARG, "%s: profile %d is neither exact nor mma16", op, (int)profile);
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: profile mma16: %s is %s, the profile multiplies bf16 only", op,
                   operand, ls_dtype_name(dtype));
}

#endif
