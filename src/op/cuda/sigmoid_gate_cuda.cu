/* sigmoid_gate has no kernel for GPUs: both directions are refused by name. */
#include "base/status.h"
#include "op/cuda/cuda_ops.h"

ls_status ls_cuda_sigmoid_gate(const ls_exec *exec, const struct ls_sigmoid_gate_args *args, ls_error *err) {
    (void)exec, (void)args;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "sigmoid_gate: not built for CUDA");
}

ls_status ls_cuda_sigmoid_gate_backward(const ls_exec *exec, const struct ls_sigmoid_gate_backward_args *args,
                                        ls_error *err) {
    (void)exec, (void)args;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "sigmoid_gate_backward: not built for CUDA");
}
