/* What .cu files share: statuses for CUDA errors and the one way to launch a kernel. Plain C in all but the compiler.
 */
#ifndef LS_DEV_CUDA_H
#define LS_DEV_CUDA_H

#include <cuda_runtime.h>

#include "dev/device.h"
#include "dev/launch.h"
#include "lockstep/ops.h"

/* Returns from the function with the status of expr unless it is LS_OK. */
#define LS_CUDA_TRY(expr)                     \
    do {                                      \
        const ls_status status_ = (expr);     \
        if (status_ != LS_OK) return status_; \
    } while (0)

/* Status of a CUDA call; the sentence names what was tried and CUDA's reason. */
ls_status ls_cuda_status(cudaError_t error, const char *what, ls_error *err);

/* Dynamic shared memory of a block that every device from sm_80 on has. */
#define LS_CUDA_SHARED_MAX (99 * 1024)

/* Kernels overlap: one is set up while the kernels ahead of it in the stream still run. So before it touches memory,
 * and before any of its threads ends, each thread of every kernel waits here: after it, every earlier kernel has ended
 * and what it wrote can be read. Devices before sm_90 do not overlap and need no wait. */
static __device__ __forceinline__ void ls_cuda_wait_for_previous(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

/* The kernel after this one may be set up from here on. */
static __device__ __forceinline__ void ls_cuda_let_next_start(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* The first statement of a kernel that has nothing to do before it waits. */
static __device__ __forceinline__ void ls_cuda_begin(void) {
    ls_cuda_wait_for_previous();
    ls_cuda_let_next_start();
}

/* Checks the contract, launches kernel(*params) and checks the launch. params is the kernel's only parameter. */
ls_status ls_cuda_launch(const ls_exec *exec, const ls_launch *launch, const void *kernel, void *params, ls_error *err);

/* The same for a kernel that may use up to shared_max bytes of dynamic shared memory, on devices that have them. */
ls_status ls_cuda_launch_within(const ls_exec *exec, const ls_launch *launch, int64_t shared_max, const void *kernel,
                                void *params, ls_error *err);

/* A tensor that a call reads or writes. NULL memory is skipped where `optional`, else an error. */
typedef struct ls_cuda_operand {
    const char *name;
    const void *memory;
    int64_t align; /* bytes that its address must be a multiple of */
    bool optional;
} ls_cuda_operand;

/* Every operand, and the workspace with at least `workspace` bytes, is memory of the current device (or host memory
 * that it can address) and aligned. The error names op, operand and address or device. */
ls_status ls_cuda_check(const char *op, const ls_exec *exec, const ls_cuda_operand *operands, int64_t n,
                        int64_t workspace, ls_error *err);

/* The record that this call's checks write: the caller's, or the start of the workspace, cleared in stream order. */
ls_status ls_cuda_fault_begin(const char *op, const ls_exec *exec, ls_fault **record, ls_error *err);
/* Without a record of the caller's: waits and returns what the check found. */
ls_status ls_cuda_fault_end(const char *op, const ls_exec *exec, const ls_fault *record, ls_error *err);

#endif
