/* The CUDA ops of a build without CUDA. */
#include "base/status.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/digest_cuda.h"

#define OP(name)                                                                                        \
    ls_status ls_cuda_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err) { \
        (void)exec, (void)args;                                                                         \
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, #name ": this build has no CUDA back end");             \
    }
LS_OPS(OP)
#undef OP

ls_status ls_cuda_digest_walk(const ls_exec *exec, ls_digest_slab *slab, ls_digest_walk walk, int64_t n_runs,
                              int64_t n_chunks, ls_error *err) {
    (void)exec, (void)slab, (void)walk, (void)n_runs, (void)n_chunks;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "digest: this build has no CUDA back end");
}
