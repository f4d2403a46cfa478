/* The CUDA ops of a build without CUDA. */
#include "base/status.h"
#include "op/cuda/cuda_ops.h"

#define OP(name)                                                                                        \
    ls_status ls_cuda_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err) { \
        (void)exec, (void)args;                                                                         \
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, #name ": this build has no CUDA back end");             \
    }
LS_OPS(OP)
