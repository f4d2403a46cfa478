/* What is missing where no GPU can be used, in one sentence. */
#include "dev/gpu.h"

/* Of the oldest kind that the kernels are written for. */
#define CAPABILITY_MIN 8

bool ls_gpus_is_none(const ls_gpus *g) {
    return !g->is_built || g->driver == 0 || (g->count == 0 && !g->is_driver_old && g->failure[0] == '\0');
}

ls_status ls_gpus_check(const ls_gpus *g, int32_t ordinal, ls_error *err) {
    if (!g->is_built) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: this build has no CUDA back end");
    if (g->driver == 0) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: this machine has no NVIDIA driver");
    if (g->is_driver_old)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "cuda: the driver is too old: it is for CUDA %d.%d, this build for %d.%d", g->driver / 1000,
                       g->driver % 1000 / 10, g->runtime / 1000, g->runtime % 1000 / 10);
    if (g->failure[0] != '\0')
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: the GPUs cannot be counted: %s", g->failure);
    if (g->count == 0) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: the driver finds no GPU");
    if (ordinal >= 0 && ordinal < g->count) return LS_OK;
    if (g->count == 1) return LS_FAIL(err, LS_ERR_ARG, "cuda:%d: there is 1 GPU, cuda:0", ordinal);
    return LS_FAIL(err, LS_ERR_ARG, "cuda:%d: there are %d GPUs, cuda:0 to cuda:%d", ordinal, g->count, g->count - 1);
}

ls_status ls_gpu_check(const ls_gpu *g, int32_t ordinal, ls_error *err) {
    if (g->major >= CAPABILITY_MIN) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda:%d: %s has compute capability %d.%d, %d.0 is needed", ordinal,
                   g->name, g->major, g->minor, CAPABILITY_MIN);
}

ls_status ls_gpu_no_code(const ls_gpu *g, int32_t ordinal, const char *built_for, const char *reason, ls_error *err) {
    return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                   "cuda:%d: this build has no code for %s, compute capability %d.%d (sm_%d%d): it was built for "
                   "LS_CUDA_ARCHITECTURES=%s: %s",
                   ordinal, g->name, g->major, g->minor, g->major, g->minor, built_for, reason);
}

/* ---- failed calls ---- */

/* Numbers of cudaError_t, which CUDA keeps; dev_cuda.cu compares them with its header. */
ls_gpu_failure ls_gpu_failure_of(int32_t code) {
    switch (code) {
        case LS_CUDA_NO_MEMORY: return LS_GPU_NO_MEMORY;
        case LS_CUDA_OLD_DRIVER: return LS_GPU_OLD_DRIVER;
        case LS_CUDA_TAKEN: return LS_GPU_TAKEN;
        case LS_CUDA_NO_CODE:
        case LS_CUDA_BAD_PTX:
        case LS_CUDA_NEW_PTX:
        case LS_CUDA_NO_COMPILER: return LS_GPU_NO_CODE;
        case LS_CUDA_ECC:
        case LS_CUDA_NVLINK:
        case LS_CUDA_ILLEGAL_ADDRESS:
        case LS_CUDA_LAUNCH_TIMEOUT:
        case LS_CUDA_DESTROYED:
        case LS_CUDA_ASSERT:
        case LS_CUDA_STACK:
        case LS_CUDA_INSTRUCTION:
        case LS_CUDA_MISALIGNED:
        case LS_CUDA_SPACE:
        case LS_CUDA_COUNTER:
        case LS_CUDA_LAUNCH_FAILURE:
        case LS_CUDA_CONTAINED:
        case LS_CUDA_TENSOR_LEAK:
        case LS_CUDA_UNKNOWN: return LS_GPU_LOST;
        default: return LS_GPU_FAILED;
    }
}

ls_status ls_gpu_failed(int32_t code, const char *what, const char *reason, ls_error *err) {
    switch (ls_gpu_failure_of(code)) {
        case LS_GPU_NO_MEMORY: return LS_FAIL(err, LS_ERR_NOMEM, "cuda: %s: %s", what, reason);
        case LS_GPU_LOST:
            return LS_FAIL(
                err, LS_ERR_DEVICE,
                "cuda: the GPU is lost to this process, found at %s: %s (error %d); start the process again%s", what,
                reason, code, code == LS_CUDA_ECC ? "; its memory has a defect, see nvidia-smi -q -d ECC" : "");
        case LS_GPU_TAKEN:
            return LS_FAIL(err, LS_ERR_DEVICE,
                           "cuda: %s: %s: another process has the GPU for itself (nvidia-smi -q -d COMPUTE)", what,
                           reason);
        case LS_GPU_OLD_DRIVER:
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: %s: the driver is too old for this build: %s", what, reason);
        case LS_GPU_NO_CODE:
            return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                           "cuda: %s: this build has no code for this GPU (LS_CUDA_ARCHITECTURES): %s", what, reason);
        case LS_GPU_FAILED: break;
    }
    return LS_FAIL(err, LS_ERR_DEVICE, "cuda: %s: %s", what, reason);
}
