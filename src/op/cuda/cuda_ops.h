/* The CUDA readings of ops. Arguments have passed ls_NAME_check. */
#ifndef LS_OP_CUDA_CUDA_OPS_H
#define LS_OP_CUDA_CUDA_OPS_H

#include "lockstep/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_CUDA_OPS(OP)  \
    OP(logprob)          \
    OP(logprob_shard)    \
    OP(logprob_combine)  \
    OP(logprob_backward) \
    OP(sequence_sum)     \
    OP(conv1d)           \
    OP(conv1d_backward)  \
    OP(scan)             \
    OP(scan_backward)

#define OP(name) ls_status ls_cuda_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err);
LS_CUDA_OPS(OP)
#undef OP

#ifdef __cplusplus
}
#endif
#endif
