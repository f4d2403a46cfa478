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

ls_status ls_cuda_digest_lows(const ls_exec *exec, uint8_t *lows, const void *memory, int64_t bytes, ls_error *err) {
    (void)exec, (void)lows, (void)memory, (void)bytes;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "digest: this build has no CUDA back end");
}

ls_status ls_cuda_digest_ends(const ls_exec *exec, uint64_t *ends, const uint8_t *starts, const void *memory,
                              int64_t bytes, ls_error *err) {
    (void)exec, (void)ends, (void)starts, (void)memory, (void)bytes;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "digest: this build has no CUDA back end");
}
