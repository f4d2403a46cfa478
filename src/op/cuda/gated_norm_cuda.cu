/* gated_norm and relu2 have no kernels for GPUs: refused by name. */
#include "base/status.h"
#include "op/cuda/cuda_ops.h"

#define OP(name)                                                                                        \
    ls_status ls_cuda_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err) { \
        (void)exec, (void)args;                                                                         \
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, #name ": not built for CUDA");                          \
    }
OP(gated_norm)
OP(gated_norm_backward)
OP(relu2)
OP(relu2_backward)
