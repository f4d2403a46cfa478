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

ls_status ls_gpu_no_code(const ls_gpu *g, int32_t ordinal, const char *reason, ls_error *err) {
    return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                   "cuda:%d: this build has no code for %s, compute capability %d.%d (LS_CUDA_ARCHITECTURES): %s",
                   ordinal, g->name, g->major, g->minor, reason);
}
