/* The GPUs of this machine: what the driver tells of them, and the sentence that names what is missing. dev_cuda.cu
 * reads; the judgement is in gpu.c, so that a machine without a GPU can test every sentence. */
#ifndef LS_DEV_GPU_H
#define LS_DEV_GPU_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_GPU_TEXT_MAX = 128 };

typedef struct ls_gpus {
    bool is_built;                 /* this build has CUDA; the rest is 0 otherwise */
    bool is_driver_old;            /* too old for this build */
    int32_t driver, runtime;       /* CUDA versions of driver and build, 12040 for 12.4; driver 0: there is none */
    int32_t count;                 /* of GPUs */
    char failure[LS_GPU_TEXT_MAX]; /* CUDA's reason why they cannot be counted, or "" */
} ls_gpus;

typedef struct ls_gpu {
    char name[LS_GPU_TEXT_MAX];
    int64_t bytes;        /* of its memory */
    int32_t major, minor; /* compute capability */
} ls_gpu;

/* GPU `ordinal` is there. LS_ERR_ARG where there are others, LS_ERR_UNSUPPORTED where none can be used. */
ls_status ls_gpus_check(const ls_gpus *gpus, int32_t ordinal, ls_error *err);
/* Nobody would expect one to be used: no CUDA in the build, no driver, or no GPU. */
bool ls_gpus_is_none(const ls_gpus *gpus);
/* Its kind is one that the ops can run on. */
ls_status ls_gpu_check(const ls_gpu *gpu, int32_t ordinal, ls_error *err);
/* The failure of a build without machine code for it; built_for: what it has code for, "80-real;90-real". */
ls_status ls_gpu_no_code(const ls_gpu *gpu, int32_t ordinal, const char *built_for, const char *reason, ls_error *err);

/* Numbers of cudaError_t that mean more than that a call failed. */
enum {
    LS_CUDA_NO_MEMORY = 2,
    LS_CUDA_OLD_DRIVER = 35,
    LS_CUDA_TAKEN = 46,
    LS_CUDA_NO_CODE = 209,
    LS_CUDA_ECC = 214,
    LS_CUDA_BAD_PTX = 218,
    LS_CUDA_NVLINK = 220,
    LS_CUDA_NO_COMPILER = 221,
    LS_CUDA_NEW_PTX = 222,
    LS_CUDA_CONTAINED = 226,
    LS_CUDA_ILLEGAL_ADDRESS = 700,
    LS_CUDA_LAUNCH_TIMEOUT = 702,
    LS_CUDA_DESTROYED = 709,
    LS_CUDA_ASSERT = 710,
    LS_CUDA_STACK = 714,
    LS_CUDA_INSTRUCTION = 715,
    LS_CUDA_MISALIGNED = 716,
    LS_CUDA_SPACE = 717,
    LS_CUDA_COUNTER = 718,
    LS_CUDA_LAUNCH_FAILURE = 719,
    LS_CUDA_TENSOR_LEAK = 721,
    LS_CUDA_UNKNOWN = 999
};

/* What a failed call of CUDA means for who made it. */
typedef enum ls_gpu_failure {
    LS_GPU_FAILED = 0, /* the call alone */
    LS_GPU_NO_MEMORY,  /* there is too little for it */
    LS_GPU_LOST,       /* every later call of the process fails as well */
    LS_GPU_TAKEN,      /* another process has the GPU for itself */
    LS_GPU_OLD_DRIVER, /* for this build */
    LS_GPU_NO_CODE     /* in this build, for this GPU */
} ls_gpu_failure;
/* code: a cudaError_t. */
ls_gpu_failure ls_gpu_failure_of(int32_t code);
/* The sentence of a failed call; what: which one, or what it was for; reason: CUDA's. */
ls_status ls_gpu_failed(int32_t code, const char *what, const char *reason, ls_error *err);

/* What the driver tells. Nothing is allocated on a GPU. */
void ls_cuda_gpus(ls_gpus *out);
ls_status ls_cuda_gpu(ls_gpu *out, int32_t ordinal, ls_error *err);
/* Both checks, by what the driver tells. */
ls_status ls_cuda_device_check(int32_t ordinal, ls_error *err);
/* The build has machine code for it, or code from which the driver makes some. Makes the GPU's context. */
ls_status ls_cuda_code_check(int32_t ordinal, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
