/* The dense products of a build without CUDA. */
#include "op/gemm_cuda.h"

static ls_status none(const char *op, ls_error *err) {
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: this build has no CUDA back end", op);
}

int64_t ls_cuda_gemm_workspace(const ls_cuda_gemm_args *args) {
    (void)args;
    return LS_WORKSPACE_HEAD;
}
ls_status ls_cuda_gemm_stored(const ls_exec *exec, const ls_cuda_gemm_args *args, ls_error *err) {
    (void)exec, (void)args;
    return none("gemm", err);
}
ls_status ls_cuda_gemm_prepare(const ls_cuda_gemm_args *args, ls_error *err) {
    (void)args;
    return none("gemm", err);
}
ls_status ls_cuda_gemm_prepare_planted(const ls_cuda_gemm_args *args, ls_error *err) {
    (void)args;
    return none("gemm", err);
}
ls_status ls_cuda_gemm_pack(const ls_exec *exec, void *tiles, const void *w, int64_t n, int64_t k, ls_error *err) {
    (void)exec, (void)tiles, (void)w, (void)n, (void)k;
    return none("gemm_pack", err);
}
ls_status ls_cuda_mma16_proven(ls_error *err) { return none("profile mma16", err); }
