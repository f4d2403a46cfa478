/* The laboratory's implementations of ops on the GPU, in which a fault of base/inject.h can be armed. Arguments have
 * passed ls_NAME_check, as those of cuda_ops.h have. The library that is delivered holds none of this. */
#ifndef LS_OP_CUDA_FAULTY_OPS_CUDA_H
#define LS_OP_CUDA_FAULTY_OPS_CUDA_H

#include "base/inject.h"
#include "op/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

ls_status ls_cuda_faulty_scan(const ls_exec *exec, const ls_scan_args *args, ls_inject fault, ls_error *err);
ls_status ls_cuda_faulty_conv1d(const ls_exec *exec, const ls_conv1d_args *args, ls_inject fault, ls_error *err);
ls_status ls_cuda_faulty_gemm(const ls_exec *exec, const struct ls_gemm_args *args, ls_inject fault, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
