/* What a device back end offers besides its ops: the CUDA half of the device functions of lockstep/ops.h. A build
 * without CUDA links dev_cuda_none.c, where every one says so. */
#ifndef LS_DEV_DEVICE_H
#define LS_DEV_DEVICE_H

#include "base/status.h"
#include "lockstep/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every workspace begins with room for a fault record; what the op keeps follows. */
#define LS_WORKSPACE_HEAD 256

/* A fault in words; LS_OK where there is none. */
ls_status ls_fault_status(const char *op, const ls_fault *fault, ls_error *err);

bool ls_cuda_available(ls_error *err);
ls_status ls_cuda_fault_take(const ls_exec *exec, ls_error *err);
ls_status ls_cuda_alloc(void **out, int64_t bytes, ls_error *err);
void ls_cuda_free(void *memory);
ls_status ls_cuda_copy(const ls_exec *exec, void *to, const void *from, int64_t bytes, ls_error *err);
ls_status ls_cuda_fill(const ls_exec *exec, void *memory, int byte, int64_t bytes, ls_error *err);
ls_status ls_cuda_synchronize(const ls_exec *exec, ls_error *err);
ls_status ls_cuda_stream_create(void **out, ls_error *err);
void ls_cuda_stream_free(void *stream);
ls_status ls_cuda_graph_begin(const ls_exec *exec, ls_error *err);
ls_status ls_cuda_graph_end(const ls_exec *exec, void **graph, ls_error *err);
ls_status ls_cuda_graph_launch(const ls_exec *exec, void *graph, ls_error *err);
void ls_cuda_graph_free(void *graph);

/* The CUDA device of the interface (op/cuda/cuda_backend.c). Nothing here waits but ls_cuda_synchronize.
 * Makes device `ordinal` the calling thread's. */
ls_status ls_cuda_use(int32_t ordinal, ls_error *err);
/* Memory in stream order: zeroed when the calls after it run, and released when those before it have run. */
ls_status ls_cuda_alloc_ordered(const ls_exec *exec, void **out, int64_t bytes, const char *what, ls_error *err);
void ls_cuda_free_ordered(const ls_exec *exec, void *memory);
/* Waits, and gives released memory, which stays with the process, back to the system. */
ls_status ls_cuda_trim(const ls_exec *exec, ls_error *err);
/* Bytes of the current device, those of it that this process can have, and those of these that it keeps already. */
ls_status ls_cuda_memory(int64_t *free_bytes, int64_t *kept, int64_t *total, ls_error *err);
/* rows pieces of row_bytes, strides in bytes; each side is host or device memory. Pageable host memory may be reused
 * when the call returns. */
ls_status ls_cuda_move(const ls_exec *exec, void *to, int64_t to_stride, const void *from, int64_t from_stride,
                       int64_t rows, int64_t row_bytes, ls_error *err);
ls_status ls_cuda_set(const ls_exec *exec, void *memory, int byte, int64_t bytes, ls_error *err);
/* Host memory that a copy reaches without waiting. */
ls_status ls_cuda_host_alloc(void **out, int64_t bytes, ls_error *err);
void ls_cuda_host_free(void *memory);

/* Memory of ls_cuda_alloc as other processes of the machine open it. Its maker frees it last. */
#define LS_CUDA_HANDLE_BYTES 64
ls_status ls_cuda_handle(uint8_t out[LS_CUDA_HANDLE_BYTES], void *memory, ls_error *err);
ls_status ls_cuda_handle_open(void **out, const uint8_t handle[LS_CUDA_HANDLE_BYTES], ls_error *err);
void ls_cuda_handle_close(void *memory);

/* A place in the stream: reached when every call before its record has run. timed: ls_cuda_event_ms can read it. */
ls_status ls_cuda_event_create(void **out, bool timed, ls_error *err);
void ls_cuda_event_free(void *event);
ls_status ls_cuda_event_record(const ls_exec *exec, void *event, ls_error *err);
/* Waits until it is reached. */
ls_status ls_cuda_event_wait(void *event, ls_error *err);
/* Whether it is reached, without waiting. */
ls_status ls_cuda_event_reached(void *event, bool *out, ls_error *err);
/* Milliseconds from one timed event to another, both reached. */
ls_status ls_cuda_event_ms(double *out, void *begin, void *end, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
