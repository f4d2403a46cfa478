/* The CUDA device of a build without CUDA: nothing is available, and every call says so. */
#include <string.h>

#include "dev/device.h"
#include "dev/gpu.h"

static ls_status none(ls_error *err) {
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: this build has no CUDA back end");
}

bool ls_cuda_available(ls_error *err) { return none(err) == LS_OK; }

void ls_cuda_gpus(ls_gpus *out) { memset(out, 0, sizeof *out); }

ls_status ls_cuda_gpu(ls_gpu *out, int32_t ordinal, ls_error *err) {
    (void)ordinal;
    memset(out, 0, sizeof *out);
    return none(err);
}

ls_status ls_cuda_device_check(int32_t ordinal, ls_error *err) {
    (void)ordinal;
    return none(err);
}

ls_status ls_cuda_code_check(int32_t ordinal, ls_error *err) {
    (void)ordinal;
    return none(err);
}

ls_status ls_cuda_fault_take(const ls_exec *exec, ls_error *err) {
    (void)exec;
    return none(err);
}

ls_status ls_cuda_alloc(void **out, int64_t bytes, ls_error *err) {
    (void)bytes;
    *out = NULL;
    return none(err);
}

void ls_cuda_free(void *memory) { (void)memory; }

ls_status ls_cuda_copy(const ls_exec *exec, void *to, const void *from, int64_t bytes, ls_error *err) {
    (void)exec, (void)to, (void)from, (void)bytes;
    return none(err);
}

ls_status ls_cuda_fill(const ls_exec *exec, void *memory, int byte, int64_t bytes, ls_error *err) {
    (void)exec, (void)memory, (void)byte, (void)bytes;
    return none(err);
}

ls_status ls_cuda_synchronize(const ls_exec *exec, ls_error *err) {
    (void)exec;
    return none(err);
}

ls_status ls_cuda_stream_create(void **out, ls_error *err) {
    *out = NULL;
    return none(err);
}

void ls_cuda_stream_free(void *stream) { (void)stream; }

ls_status ls_cuda_graph_begin(const ls_exec *exec, ls_error *err) {
    (void)exec;
    return none(err);
}

ls_status ls_cuda_graph_end(const ls_exec *exec, void **graph, ls_error *err) {
    (void)exec;
    *graph = NULL;
    return none(err);
}

ls_status ls_cuda_graph_launch(const ls_exec *exec, void *graph, ls_error *err) {
    (void)exec, (void)graph;
    return none(err);
}

void ls_cuda_graph_free(void *graph) { (void)graph; }

ls_status ls_cuda_use(int32_t ordinal, ls_error *err) {
    (void)ordinal;
    return none(err);
}

ls_status ls_cuda_alloc_ordered(const ls_exec *exec, void **out, int64_t bytes, const char *what, ls_error *err) {
    (void)exec, (void)bytes, (void)what;
    *out = NULL;
    return none(err);
}

void ls_cuda_free_ordered(const ls_exec *exec, void *memory) { (void)exec, (void)memory; }

ls_status ls_cuda_trim(const ls_exec *exec, ls_error *err) {
    (void)exec;
    return none(err);
}

ls_status ls_cuda_memory(int64_t *free_bytes, int64_t *kept, int64_t *total, ls_error *err) {
    *free_bytes = *kept = *total = 0;
    return none(err);
}

ls_status ls_cuda_move(const ls_exec *exec, void *to, int64_t to_stride, const void *from, int64_t from_stride,
                       int64_t rows, int64_t row_bytes, ls_error *err) {
    (void)exec, (void)to, (void)to_stride, (void)from, (void)from_stride, (void)rows, (void)row_bytes;
    return none(err);
}

ls_status ls_cuda_set(const ls_exec *exec, void *memory, int byte, int64_t bytes, ls_error *err) {
    (void)exec, (void)memory, (void)byte, (void)bytes;
    return none(err);
}

ls_status ls_cuda_host_alloc(void **out, int64_t bytes, ls_error *err) {
    (void)bytes;
    *out = NULL;
    return none(err);
}

void ls_cuda_host_free(void *memory) { (void)memory; }

ls_status ls_cuda_handle(uint8_t out[LS_CUDA_HANDLE_BYTES], void *memory, ls_error *err) {
    (void)out, (void)memory;
    return none(err);
}

ls_status ls_cuda_handle_open(void **out, const uint8_t handle[LS_CUDA_HANDLE_BYTES], ls_error *err) {
    (void)handle;
    *out = NULL;
    return none(err);
}

void ls_cuda_handle_close(void *memory) { (void)memory; }

ls_status ls_cuda_event_create(void **out, bool timed, ls_error *err) {
    (void)timed;
    *out = NULL;
    return none(err);
}

void ls_cuda_event_free(void *event) { (void)event; }

ls_status ls_cuda_event_record(const ls_exec *exec, void *event, ls_error *err) {
    (void)exec, (void)event;
    return none(err);
}

ls_status ls_cuda_event_wait(void *event, ls_error *err) {
    (void)event;
    return none(err);
}

ls_status ls_cuda_event_reached(void *event, bool *out, ls_error *err) {
    (void)event;
    *out = false;
    return none(err);
}

ls_status ls_cuda_event_ms(double *out, void *begin, void *end, ls_error *err) {
    (void)begin, (void)end;
    *out = 0.0;
    return none(err);
}
