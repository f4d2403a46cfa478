/* The CUDA implementations of ops. Arguments have passed ls_NAME_check. */
#ifndef LS_OP_CUDA_CUDA_OPS_H
#define LS_OP_CUDA_CUDA_OPS_H

#include "op/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OP(name) ls_status ls_cuda_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err);
LS_OPS(OP)
#undef OP

#ifdef __cplusplus
}
#endif
#endif
