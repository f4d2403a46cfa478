/* What every op that takes a profile refuses. */
#ifndef LS_OP_PROFILE_H
#define LS_OP_PROFILE_H

#include "base/status.h"
#include "lockstep/lockstep.h"

#ifdef __cplusplus
extern "C" {
#endif

/* LS_OK when `profile` is exact, or mma16 and the operand, which it multiplies as it is, has the type bf16. */
ls_status ls_profile_check(const char *op, ls_profile profile, const char *operand, ls_dtype dtype, ls_error *err);

#ifdef __cplusplus
}
#endif

#endif
