/* The laboratory's implementations of a build without CUDA. */
#include "base/status.h"
#include "op/cuda/faulty_ops_cuda.h"

#define OP(name)                                                                                               \
    ls_status ls_cuda_faulty_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_inject fault, \
                                    ls_error *err) {                                                           \
        (void)exec, (void)args, (void)fault;                                                                   \
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, #name ": this build has no CUDA back end");                    \
    }
OP(scan)
OP(conv1d)
OP(gemm)
