/* The CUDA ops of a build without CUDA. */
#include "op/conv1d.h"
#include "op/logprob.h"
#include "op/scan.h"

#define NONE(name)                                                                               \
    ls_status ls_cuda_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err) { \
        (void)exec, (void)args;                                                                  \
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, #name ": this build has no CUDA back end");      \
    }

NONE(logprob)
NONE(logprob_shard)
NONE(logprob_combine)
NONE(logprob_backward)
NONE(sequence_sum)
NONE(conv1d)
NONE(conv1d_backward)
NONE(scan)
NONE(scan_backward)
