/* delta has no kernel for GPUs: both directions are refused by name. */
#include "base/status.h"
#include "op/cuda/cuda_ops.h"

ls_status ls_cuda_delta(const ls_exec *exec, const ls_delta_args *args, ls_error *err) {
    (void)exec, (void)args;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "delta: not built for CUDA");
}

ls_status ls_cuda_delta_backward(const ls_exec *exec, const ls_delta_backward_args *args, ls_error *err) {
    (void)exec, (void)args;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "delta_backward: not built for CUDA");
}
