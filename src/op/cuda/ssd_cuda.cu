/* ssd has no kernel for GPUs: both directions are refused by name. */
#include "base/status.h"
#include "op/cuda/cuda_ops.h"

ls_status ls_cuda_ssd(const ls_exec *exec, const ls_ssd_args *args, ls_error *err) {
    (void)exec, (void)args;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "ssd: not built for CUDA");
}

ls_status ls_cuda_ssd_backward(const ls_exec *exec, const ls_ssd_backward_args *args, ls_error *err) {
    (void)exec, (void)args;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "ssd_backward: not built for CUDA");
}
