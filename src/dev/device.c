/* Back ends by name, and device memory, streams and graphs dispatched to them. */
#include "dev/device.h"

#include <stdlib.h>
#include <string.h>

#include "dev/workers.h"

static const char *const names[LS_BACKEND_COUNT] = {"cpu", "cuda", "hip", "triton"};

const char *ls_backend_name(ls_backend backend) {
    return (unsigned)backend < LS_BACKEND_COUNT ? names[backend] : "unknown";
}

static ls_status unavailable(ls_backend backend, ls_error *err) {
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: no such back end has been written", ls_backend_name(backend));
}

bool ls_backend_available(ls_backend backend, ls_error *err) {
    if (backend == LS_BACKEND_CPU) return true;
    if (backend == LS_BACKEND_CUDA) return ls_cuda_available(err);
    return unavailable(backend, err) == LS_OK;
}

ls_status ls_cpu_workers_create(ls_workers **out, int32_t n_threads, const char *isa, ls_error *err) {
    ls_isa set = ls_isa_best();
    *out = NULL;
    if (isa != NULL && !ls_isa_parse(&set, isa))
        return LS_FAIL(err, LS_ERR_ARG, "cpu workers: instruction set '%s' is not generic, avx2 or avx512", isa);
    return ls_workers_create(out, n_threads, set, err);
}

void ls_cpu_workers_free(ls_workers *workers) { ls_workers_free(workers); }

ls_status ls_fault_take(const ls_exec *exec, ls_error *err) {
    /* The CPU checks before it computes and keeps no record. */
    if (exec->backend == LS_BACKEND_CPU) return LS_OK;
    return exec->backend == LS_BACKEND_CUDA ? ls_cuda_fault_take(exec, err) : unavailable(exec->backend, err);
}

ls_status ls_device_alloc(ls_backend backend, void **out, int64_t bytes, ls_error *err) {
    *out = NULL;
    if (bytes < 0) return LS_FAIL(err, LS_ERR_ARG, "device memory: %lld bytes", (long long)bytes);
    if (backend == LS_BACKEND_CUDA) return ls_cuda_alloc(out, bytes, err);
    if (backend != LS_BACKEND_CPU) return unavailable(backend, err);
    if (bytes > INT64_MAX - 256) return LS_FAIL(err, LS_ERR_NOMEM, "device memory: %lld bytes", (long long)bytes);
    *out = aligned_alloc(256, (size_t)((bytes + 256) / 256 * 256));
    return *out != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "device memory: %lld bytes", (long long)bytes);
}

void ls_device_free(ls_backend backend, void *memory) {
    if (backend == LS_BACKEND_CPU) free(memory);
    if (backend == LS_BACKEND_CUDA) ls_cuda_free(memory);
}

static ls_status copy(const ls_exec *exec, void *to, const void *from, int64_t bytes, ls_error *err) {
    if (bytes < 0) return LS_FAIL(err, LS_ERR_ARG, "copy: %lld bytes", (long long)bytes);
    if (exec->backend == LS_BACKEND_CUDA) return ls_cuda_copy(exec, to, from, bytes, err);
    if (exec->backend != LS_BACKEND_CPU) return unavailable(exec->backend, err);
    memcpy(to, from, (size_t)bytes);
    return LS_OK;
}

ls_status ls_device_upload(const ls_exec *exec, void *device, const void *host, int64_t bytes, ls_error *err) {
    return copy(exec, device, host, bytes, err);
}

ls_status ls_device_download(const ls_exec *exec, void *host, const void *device, int64_t bytes, ls_error *err) {
    return copy(exec, host, device, bytes, err);
}

ls_status ls_device_fill(const ls_exec *exec, void *device, int byte, int64_t bytes, ls_error *err) {
    if (bytes < 0) return LS_FAIL(err, LS_ERR_ARG, "fill: %lld bytes", (long long)bytes);
    if (exec->backend == LS_BACKEND_CUDA) return ls_cuda_fill(exec, device, byte, bytes, err);
    if (exec->backend != LS_BACKEND_CPU) return unavailable(exec->backend, err);
    memset(device, byte, (size_t)bytes);
    return LS_OK;
}

ls_status ls_device_synchronize(const ls_exec *exec, ls_error *err) {
    if (exec->backend == LS_BACKEND_CPU) return LS_OK;
    return exec->backend == LS_BACKEND_CUDA ? ls_cuda_synchronize(exec, err) : unavailable(exec->backend, err);
}

ls_status ls_stream_create(ls_backend backend, void **out, ls_error *err) {
    *out = NULL;
    if (backend == LS_BACKEND_CPU) return LS_OK;
    return backend == LS_BACKEND_CUDA ? ls_cuda_stream_create(out, err) : unavailable(backend, err);
}

void ls_stream_free(ls_backend backend, void *stream) {
    if (backend == LS_BACKEND_CUDA) ls_cuda_stream_free(stream);
}

static ls_status graphs(const ls_exec *exec, ls_error *err) {
    return exec->backend == LS_BACKEND_CUDA
               ? LS_OK
               : LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: graphs are a feature of CUDA", ls_backend_name(exec->backend));
}

ls_status ls_graph_begin(const ls_exec *exec, ls_error *err) {
    const ls_status status = graphs(exec, err);
    return status != LS_OK ? status : ls_cuda_graph_begin(exec, err);
}

ls_status ls_graph_end(const ls_exec *exec, void **graph, ls_error *err) {
    const ls_status status = graphs(exec, err);
    return status != LS_OK ? status : ls_cuda_graph_end(exec, graph, err);
}

ls_status ls_graph_launch(const ls_exec *exec, void *graph, ls_error *err) {
    const ls_status status = graphs(exec, err);
    return status != LS_OK ? status : ls_cuda_graph_launch(exec, graph, err);
}

void ls_graph_free(void *graph) { ls_cuda_graph_free(graph); }
