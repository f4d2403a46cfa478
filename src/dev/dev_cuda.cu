/* The CUDA device: errors, launches, checks of operands, fault records; memory, streams and graphs for tests and tools.
 * Owns no state: device and stream are the caller's. */
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <mutex>

#include "dev/cuda.h"
#include "dev/device.h"
#include "dev/gpu.h"

#define DEVICES_MAX 64

static cudaStream_t stream_of(const ls_exec *exec) { return (cudaStream_t)exec->stream; }

/* Errors are judged where no CUDA is needed, by their numbers. */
#define SAME(ours, theirs) static_assert((int)ours == (int)theirs, #theirs)
SAME(LS_CUDA_NO_MEMORY, cudaErrorMemoryAllocation);
SAME(LS_CUDA_OLD_DRIVER, cudaErrorInsufficientDriver);
SAME(LS_CUDA_TAKEN, cudaErrorDevicesUnavailable);
SAME(LS_CUDA_NO_CODE, cudaErrorNoKernelImageForDevice);
SAME(LS_CUDA_ECC, cudaErrorECCUncorrectable);
SAME(LS_CUDA_BAD_PTX, cudaErrorInvalidPtx);
SAME(LS_CUDA_NVLINK, cudaErrorNvlinkUncorrectable);
SAME(LS_CUDA_NO_COMPILER, cudaErrorJitCompilerNotFound);
SAME(LS_CUDA_NEW_PTX, cudaErrorUnsupportedPtxVersion);
SAME(LS_CUDA_ILLEGAL_ADDRESS, cudaErrorIllegalAddress);
SAME(LS_CUDA_LAUNCH_TIMEOUT, cudaErrorLaunchTimeout);
SAME(LS_CUDA_DESTROYED, cudaErrorContextIsDestroyed);
SAME(LS_CUDA_ASSERT, cudaErrorAssert);
SAME(LS_CUDA_STACK, cudaErrorHardwareStackError);
SAME(LS_CUDA_INSTRUCTION, cudaErrorIllegalInstruction);
SAME(LS_CUDA_MISALIGNED, cudaErrorMisalignedAddress);
SAME(LS_CUDA_SPACE, cudaErrorInvalidAddressSpace);
SAME(LS_CUDA_COUNTER, cudaErrorInvalidPc);
SAME(LS_CUDA_LAUNCH_FAILURE, cudaErrorLaunchFailure);
SAME(LS_CUDA_UNKNOWN, cudaErrorUnknown);
#undef SAME

ls_status ls_cuda_status(cudaError_t error, const char *what, ls_error *err) {
    if (error == cudaSuccess) return LS_OK;
    (void)cudaGetLastError(); /* errors that do not stick must not show up in the next call */
    return ls_gpu_failed((int32_t)error, what, cudaGetErrorString(error), err);
}

/* Launches a kernel with the shared memory that it asks for. What a kernel may ask for belongs to the kernel: of two
 * threads that launch the same one, neither may lower that between the other's request and launch. */
static cudaError_t launch_with(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
    static std::mutex lock;
    const int bytes = (int)config->dynamicSmemBytes;
    if (bytes <= 32 * 1024) /* with what a kernel declares itself, no more than 48 KB, which all may have */
        return cudaLaunchKernelExC(config, kernel, arguments);
    const std::lock_guard<std::mutex> held(lock);
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return error != cudaSuccess ? error : cudaLaunchKernelExC(config, kernel, arguments);
}

/* Of the current device, looked up once for each. */
static ls_status capability_of(int *major, const char *what, ls_error *err) {
    static std::atomic<int> known[DEVICES_MAX];
    int device;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), what, err));
    *major = device < DEVICES_MAX ? known[device].load() : 0;
    if (*major != 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_status(cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device), what, err));
    if (device < DEVICES_MAX) known[device].store(*major);
    return LS_OK;
}

ls_status ls_cuda_launch(const ls_exec *exec, const ls_launch *launch, const void *kernel, void *params,
                         ls_error *err) {
    return ls_cuda_launch_within(exec, launch, LS_CUDA_SHARED_MAX, kernel, params, err);
}

ls_status ls_cuda_launch_within(const ls_exec *exec, const ls_launch *launch, int64_t shared_max, const void *kernel,
                                void *params, ls_error *err) {
    const dim3 grid((unsigned)launch->grid[0], (unsigned)launch->grid[1], (unsigned)launch->grid[2]);
    void *arguments[] = {params};
    LS_CUDA_TRY(ls_launch_check(launch, shared_max, err));
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    int major;
    LS_CUDA_TRY(capability_of(&major, launch->kernel, err));
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)launch->threads);
    config.dynamicSmemBytes = (size_t)launch->shared_bytes;
    config.stream = stream_of(exec);
    config.attrs = &attribute;
    config.numAttrs = major >= 9 ? 1 : 0;
    return ls_cuda_status(launch_with(&config, kernel, arguments), launch->kernel, err);
}

static ls_status check_operand(const char *op, const char *name, const void *memory, int64_t align, int device,
                               ls_error *err) {
    cudaPointerAttributes attributes;
    LS_CUDA_TRY(ls_cuda_status(cudaPointerGetAttributes(&attributes, memory), name, err));
    if (attributes.type == cudaMemoryTypeUnregistered)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %s at %p is not memory that a GPU can address", op, name, memory);
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != device)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %s is memory of device %d, the current device is %d", op, name,
                       attributes.device, device);
    if ((uintptr_t)memory % (uintptr_t)align != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %s at %p is not aligned to %lld bytes", op, name, memory,
                       (long long)align);
    return LS_OK;
}

ls_status ls_cuda_check(const char *op, const ls_exec *exec, const ls_cuda_operand *operands, int64_t n,
                        int64_t workspace, ls_error *err) {
    int device;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), op, err)); /* where there is no device, this says so */
    for (int64_t i = 0; i < n; i++) {
        if (operands[i].memory == NULL && operands[i].optional) continue;
        if (operands[i].memory == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: %s is null", op, operands[i].name);
        LS_CUDA_TRY(check_operand(op, operands[i].name, operands[i].memory, operands[i].align, device, err));
    }
    if (workspace < 0) return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace does not fit 64 bits", op);
    if (exec->workspace == NULL || exec->workspace_bytes < workspace)
        return LS_FAIL(err, LS_ERR_CAPACITY, "%s: workspace of %lld bytes at %p, %lld are needed", op,
                       (long long)exec->workspace_bytes, exec->workspace, (long long)workspace);
    LS_CUDA_TRY(check_operand(op, "workspace", exec->workspace, 256, device, err));
    return exec->fault == NULL ? LS_OK : check_operand(op, "fault record", exec->fault, 8, device, err);
}

ls_status ls_cuda_fault_begin(const char *op, const ls_exec *exec, ls_fault **record, ls_error *err) {
    cudaStreamCaptureStatus capture;
    *record = exec->fault;
    if (exec->fault != NULL) return LS_OK;
    LS_CUDA_TRY(ls_cuda_status(cudaStreamIsCapturing(stream_of(exec), &capture), op, err));
    if (capture != cudaStreamCaptureStatusNone)
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: while a stream is captured a call cannot wait for its checks: pass a fault "
                       "record",
                       op);
    *record = (ls_fault *)exec->workspace;
    return ls_cuda_status(cudaMemsetAsync(*record, 0, sizeof **record, stream_of(exec)), op, err);
}

ls_status ls_cuda_fault_end(const char *op, const ls_exec *exec, const ls_fault *record, ls_error *err) {
    ls_fault fault;
    if (exec->fault != NULL) return LS_OK;
    LS_CUDA_TRY(ls_cuda_status(cudaMemcpyAsync(&fault, record, sizeof fault, cudaMemcpyDeviceToHost, stream_of(exec)),
                               op, err));
    LS_CUDA_TRY(ls_cuda_status(cudaStreamSynchronize(stream_of(exec)), op, err));
    return ls_fault_status(op, &fault, err);
}

ls_status ls_cuda_fault_take(const ls_exec *exec, ls_error *err) {
    ls_fault fault;
    const ls_fault none = {};
    if (exec->fault == NULL) return LS_FAIL(err, LS_ERR_ARG, "fault: there is no record");
    LS_CUDA_TRY(ls_cuda_copy(exec, &fault, exec->fault, (int64_t)sizeof fault, err));
    if (fault.code == LS_FAULT_NONE) return LS_OK;
    LS_CUDA_TRY(ls_cuda_copy(exec, exec->fault, &none, (int64_t)sizeof none, err));
    return ls_fault_status("fault", &fault, err);
}

void ls_cuda_gpus(ls_gpus *out) {
    int driver = 0, runtime = 0, count = 0;
    cudaError_t error;
    memset(out, 0, sizeof *out);
    out->is_built = true;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) (void)cudaGetLastError();
    out->driver = driver;
    out->runtime = runtime;
    out->count = error == cudaSuccess ? count : 0;
    out->is_driver_old = error == cudaErrorInsufficientDriver && driver > 0;
    if (error != cudaSuccess && error != cudaErrorInsufficientDriver && error != cudaErrorNoDevice)
        snprintf(out->failure, sizeof out->failure, "%s", cudaGetErrorString(error));
}

ls_status ls_cuda_gpu(ls_gpu *out, int32_t ordinal, ls_error *err) {
    cudaDeviceProp properties;
    memset(out, 0, sizeof *out);
    LS_CUDA_TRY(ls_cuda_status(cudaGetDeviceProperties(&properties, ordinal), "its properties", err));
    snprintf(out->name, sizeof out->name, "%.*s", LS_GPU_TEXT_MAX - 1, properties.name);
    out->bytes = (int64_t)properties.totalGlobalMem;
    out->major = properties.major;
    out->minor = properties.minor;
    return LS_OK;
}

/* Any kernel: all are built for the same devices. */
static __global__ void any_kernel(void) {}

ls_status ls_cuda_code_check(int32_t ordinal, ls_error *err) {
    cudaFuncAttributes attributes;
    ls_gpu gpu;
    cudaError_t error;
    LS_CUDA_TRY(ls_cuda_use(ordinal, err));
    error = cudaFuncGetAttributes(&attributes, (const void *)any_kernel);
    switch (error) {
        case cudaSuccess: return LS_OK;
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDeviceFunction:
        case cudaErrorInvalidPtx:
        case cudaErrorUnsupportedPtxVersion:
        case cudaErrorJitCompilerNotFound: break;
        default: return ls_cuda_status(error, "a kernel", err);
    }
    (void)cudaGetLastError();
    LS_CUDA_TRY(ls_cuda_gpu(&gpu, ordinal, err));
    return ls_gpu_no_code(&gpu, ordinal, LS_BUILT_FOR, cudaGetErrorString(error), err);
}

ls_status ls_cuda_device_check(int32_t ordinal, ls_error *err) {
    ls_gpus gpus;
    ls_gpu gpu;
    ls_cuda_gpus(&gpus);
    LS_CUDA_TRY(ls_gpus_check(&gpus, ordinal, err));
    LS_CUDA_TRY(ls_cuda_gpu(&gpu, ordinal, err));
    return ls_gpu_check(&gpu, ordinal, err);
}

bool ls_cuda_available(ls_error *err) {
    ls_gpus gpus;
    int device = 0;
    ls_cuda_gpus(&gpus);
    return ls_gpus_check(&gpus, 0, err) == LS_OK &&
           ls_cuda_status(cudaGetDevice(&device), "the current device", err) == LS_OK &&
           ls_cuda_device_check(device, err) == LS_OK;
}

ls_status ls_cuda_alloc(void **out, int64_t bytes, ls_error *err) {
    return ls_cuda_status(cudaMalloc(out, (size_t)bytes), "allocation", err);
}

/* What cannot be freed is the caller's mistake, not the next call's error. */
static void forget(cudaError_t error) {
    if (error != cudaSuccess) (void)cudaGetLastError();
}

void ls_cuda_free(void *memory) { forget(cudaFree(memory)); }

ls_status ls_cuda_synchronize(const ls_exec *exec, ls_error *err) {
    return ls_cuda_status(cudaStreamSynchronize(stream_of(exec)), "synchronize", err);
}

ls_status ls_cuda_copy(const ls_exec *exec, void *to, const void *from, int64_t bytes, ls_error *err) {
    LS_CUDA_TRY(
        ls_cuda_status(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, stream_of(exec)), "copy", err));
    return ls_cuda_synchronize(exec, err);
}

ls_status ls_cuda_fill(const ls_exec *exec, void *memory, int byte, int64_t bytes, ls_error *err) {
    LS_CUDA_TRY(ls_cuda_status(cudaMemsetAsync(memory, byte, (size_t)bytes, stream_of(exec)), "fill", err));
    return ls_cuda_synchronize(exec, err);
}

ls_status ls_cuda_stream_create(void **out, ls_error *err) {
    return ls_cuda_status(cudaStreamCreateWithFlags((cudaStream_t *)out, cudaStreamNonBlocking), "stream", err);
}

void ls_cuda_stream_free(void *stream) { forget(cudaStreamDestroy((cudaStream_t)stream)); }

ls_status ls_cuda_graph_begin(const ls_exec *exec, ls_error *err) {
    return ls_cuda_status(cudaStreamBeginCapture(stream_of(exec), cudaStreamCaptureModeThreadLocal), "graph", err);
}

ls_status ls_cuda_graph_end(const ls_exec *exec, void **graph, ls_error *err) {
    cudaGraph_t captured = NULL;
    ls_status status;
    *graph = NULL;
    LS_CUDA_TRY(ls_cuda_status(cudaStreamEndCapture(stream_of(exec), &captured), "graph", err));
    status = ls_cuda_status(cudaGraphInstantiate((cudaGraphExec_t *)graph, captured, 0), "graph", err);
    (void)cudaGraphDestroy(captured);
    return status;
}

ls_status ls_cuda_graph_launch(const ls_exec *exec, void *graph, ls_error *err) {
    return ls_cuda_status(cudaGraphLaunch((cudaGraphExec_t)graph, stream_of(exec)), "graph", err);
}

void ls_cuda_graph_free(void *graph) { forget(cudaGraphExecDestroy((cudaGraphExec_t)graph)); }

ls_status ls_cuda_use(int32_t ordinal, ls_error *err) {
    return ls_cuda_status(cudaSetDevice(ordinal), "choice of the device", err);
}

static ls_status current_pool(cudaMemPool_t *pool, ls_error *err) {
    int device;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), "memory", err));
    return ls_cuda_status(cudaDeviceGetDefaultMemPool(pool, device), "memory", err);
}

/* Released memory stays with the process, for the next allocation. */
static ls_status keep_released(ls_error *err) {
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    LS_CUDA_TRY(current_pool(&pool, err));
    return ls_cuda_status(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "memory", err);
}

ls_status ls_cuda_alloc_ordered(const ls_exec *exec, void **out, int64_t bytes, const char *what, ls_error *err) {
    const size_t size = bytes > 0 ? (size_t)bytes : 1;
    *out = NULL;
    LS_CUDA_TRY(keep_released(err));
    LS_CUDA_TRY(ls_cuda_status(cudaMallocAsync(out, size, stream_of(exec)), what, err));
    return ls_cuda_status(cudaMemsetAsync(*out, 0, size, stream_of(exec)), what, err);
}

void ls_cuda_free_ordered(const ls_exec *exec, void *memory) { forget(cudaFreeAsync(memory, stream_of(exec))); }

ls_status ls_cuda_trim(const ls_exec *exec, ls_error *err) {
    cudaMemPool_t pool;
    LS_CUDA_TRY(ls_cuda_synchronize(exec, err));
    LS_CUDA_TRY(current_pool(&pool, err));
    return ls_cuda_status(cudaMemPoolTrimTo(pool, 0), "memory", err);
}

/* What the pool keeps and does not use is this process's as well. */
ls_status ls_cuda_memory(int64_t *free_bytes, int64_t *kept, int64_t *total, ls_error *err) {
    size_t free_now = 0, all = 0;
    uint64_t reserved = 0, used = 0;
    cudaMemPool_t pool;
    LS_CUDA_TRY(ls_cuda_status(cudaMemGetInfo(&free_now, &all), "memory", err));
    LS_CUDA_TRY(current_pool(&pool, err));
    LS_CUDA_TRY(
        ls_cuda_status(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved), "memory", err));
    LS_CUDA_TRY(ls_cuda_status(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), "memory", err));
    *kept = (int64_t)(reserved > used ? reserved - used : 0);
    *free_bytes = (int64_t)free_now + *kept;
    *total = (int64_t)all;
    return LS_OK;
}

ls_status ls_cuda_move(const ls_exec *exec, void *to, int64_t to_stride, const void *from, int64_t from_stride,
                       int64_t rows, int64_t row_bytes, ls_error *err) {
    if (rows == 1 || (to_stride == row_bytes && from_stride == row_bytes))
        return ls_cuda_status(cudaMemcpyAsync(to, from, (size_t)(rows * row_bytes), cudaMemcpyDefault, stream_of(exec)),
                              "copy", err);
    return ls_cuda_status(cudaMemcpy2DAsync(to, (size_t)to_stride, from, (size_t)from_stride, (size_t)row_bytes,
                                            (size_t)rows, cudaMemcpyDefault, stream_of(exec)),
                          "copy", err);
}

ls_status ls_cuda_set(const ls_exec *exec, void *memory, int byte, int64_t bytes, ls_error *err) {
    return ls_cuda_status(cudaMemsetAsync(memory, byte, (size_t)bytes, stream_of(exec)), "fill", err);
}

ls_status ls_cuda_host_alloc(void **out, int64_t bytes, ls_error *err) {
    return ls_cuda_status(cudaMallocHost(out, (size_t)bytes), "host memory", err);
}

void ls_cuda_host_free(void *memory) { forget(cudaFreeHost(memory)); }

static_assert(sizeof(cudaIpcMemHandle_t) == LS_CUDA_HANDLE_BYTES, "CUDA's handle");

ls_status ls_cuda_handle(uint8_t out[LS_CUDA_HANDLE_BYTES], void *memory, ls_error *err) {
    cudaIpcMemHandle_t handle;
    LS_CUDA_TRY(ls_cuda_status(cudaIpcGetMemHandle(&handle, memory), "handle of shared memory", err));
    memcpy(out, &handle, sizeof handle);
    return LS_OK;
}

ls_status ls_cuda_handle_open(void **out, const uint8_t handle[LS_CUDA_HANDLE_BYTES], ls_error *err) {
    cudaIpcMemHandle_t h;
    memcpy(&h, handle, sizeof h);
    *out = NULL;
    return ls_cuda_status(cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess), "opening of shared memory",
                          err);
}

void ls_cuda_handle_close(void *memory) { forget(cudaIpcCloseMemHandle(memory)); }

ls_status ls_cuda_event_create(void **out, bool timed, ls_error *err) {
    *out = NULL;
    return ls_cuda_status(
        cudaEventCreateWithFlags((cudaEvent_t *)out, timed ? cudaEventDefault : cudaEventDisableTiming), "event", err);
}

void ls_cuda_event_free(void *event) {
    if (event != NULL) forget(cudaEventDestroy((cudaEvent_t)event));
}

ls_status ls_cuda_event_record(const ls_exec *exec, void *event, ls_error *err) {
    return ls_cuda_status(cudaEventRecord((cudaEvent_t)event, stream_of(exec)), "event", err);
}

ls_status ls_cuda_event_wait(void *event, ls_error *err) {
    return ls_cuda_status(cudaEventSynchronize((cudaEvent_t)event), "wait for an event", err);
}

ls_status ls_cuda_event_reached(void *event, bool *out, ls_error *err) {
    const cudaError_t found = cudaEventQuery((cudaEvent_t)event);
    *out = found == cudaSuccess;
    return found == cudaErrorNotReady ? LS_OK : ls_cuda_status(found, "look at an event", err);
}

ls_status ls_cuda_event_ms(double *out, void *begin, void *end, ls_error *err) {
    float ms = 0.0f;
    LS_CUDA_TRY(
        ls_cuda_status(cudaEventElapsedTime(&ms, (cudaEvent_t)begin, (cudaEvent_t)end), "time of an event", err));
    *out = (double)ms;
    return LS_OK;
}
