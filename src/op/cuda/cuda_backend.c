/* CUDA as a back end: one stream that calls are put on and that a wait waits for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "dev/device.h"
#include "dev/gpu.h"
#include "op/cuda/cuda_ops.h"
#include "op/gemm_cuda.h"

/* Bytes of host memory that reads go through, so that none of them waits; larger reads wait. */
#define STAGING_BYTES (1 << 20)
#define READS_MAX 256

/* One fault record for each op, so that a fault found at a wait has its op's name. */
enum {
#define OP(name) FAULT_##name,
    LS_OPS(OP)
#undef OP
        FAULTS
};

#define OP(name) #name,
static const char *const op_names[] = {LS_OPS(OP)};
#undef OP

/* A read whose bytes lie in the staging memory until the wait. */
typedef struct pending_read {
    void *host;
    int64_t at, bytes;
} pending_read;

typedef struct cuda_device {
    ls_device base;
    int32_t ordinal;
    ls_fault *faults, *host_faults; /* [FAULTS] */
    uint8_t *staging;
    int64_t staged;
    pending_read reads[READS_MAX];
    int64_t n_reads;
} cuda_device;

/* exec is that of a device. */
static const cuda_device *device_with(const ls_exec *exec) {
    return (const cuda_device *)(const void *)((const char *)exec - offsetof(ls_device, exec));
}

static cuda_device *cuda_of(ls_device *device) { return (cuda_device *)(void *)device; }

/* A thread's current GPU is the one that it used last, or the first: every call says which one it means. */
static ls_status enter(const ls_exec *exec, ls_error *err) { return ls_cuda_use(device_with(exec)->ordinal, err); }

/* ---- ops: those of the flat ABI as they are; on a device, with the op's own fault record ---- */

#define OP(name)                                                                                                 \
    static ls_status on_device_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err) { \
        const ls_status status = enter(exec, err);                                                               \
        ls_exec own = *exec;                                                                                     \
        own.fault = &device_with(exec)->faults[FAULT_##name];                                                    \
        return status != LS_OK ? status : ls_cuda_##name(&own, args, err);                                       \
    }
LS_OPS(OP)
#undef OP

/* ---- memory ---- */

static ls_status cuda_alloc(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    ls_status status;
    *out = NULL;
    LS_TRY(enter(&device->exec, err));
    LS_TRY(ls_cuda_alloc_ordered(&device->exec, out, bytes, what, err));
done:
    return status;
}

static void cuda_release(ls_device *device, void *memory) {
    if (enter(&device->exec, NULL) == LS_OK) ls_cuda_free_ordered(&device->exec, memory);
}

static void cuda_unreserve(ls_device *device, void *memory, int64_t bytes) {
    (void)bytes;
    cuda_release(device, memory);
}

static ls_status cuda_fill(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err) {
    const ls_status status = enter(&device->exec, err);
    return status != LS_OK ? status : ls_cuda_set(&device->exec, to, byte, bytes, err);
}

/* The memory stays: what is promised is that it is zero. */
static ls_status cuda_drop(ls_device *device, void *memory, int64_t bytes, ls_error *err) {
    return cuda_fill(device, memory, 0, bytes, err);
}

static ls_status cuda_write(ls_device *device, void *to, const void *host, int64_t bytes, ls_error *err) {
    const ls_status status = enter(&device->exec, err);
    return status != LS_OK ? status : ls_cuda_move(&device->exec, to, bytes, host, bytes, 1, bytes, err);
}

static ls_status cuda_read(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    cuda_device *d = cuda_of(device);
    const ls_status status = enter(&device->exec, err);
    if (status != LS_OK) return status;
    if (bytes > STAGING_BYTES - d->staged || d->n_reads == READS_MAX)
        return ls_cuda_move(&device->exec, host, bytes, from, bytes, 1, bytes, err);
    d->reads[d->n_reads++] = (pending_read){host, d->staged, bytes};
    d->staged += bytes;
    return ls_cuda_move(&device->exec, d->staging + d->staged - bytes, bytes, from, bytes, 1, bytes, err);
}

static ls_status cuda_copy(ls_device *device, const ls_copy_args *a, ls_error *err) {
    const ls_status status = enter(&device->exec, err);
    return status != LS_OK
               ? status
               : ls_cuda_move(&device->exec, a->to, a->to_stride, a->from, a->from_stride, a->rows, a->row_bytes, err);
}

/* The first op in the table's order whose record holds a fault; all records are cleared. */
static ls_status take_fault(cuda_device *d, ls_error *err) {
    ls_status status = LS_OK;
    int i = 0;
    while (i < FAULTS && d->host_faults[i].code == LS_FAULT_NONE) i++;
    if (i == FAULTS) return LS_OK;
    LS_TRY(ls_cuda_set(&d->base.exec, d->faults, 0, FAULTS * (int64_t)sizeof *d->faults, err));
    status = ls_fault_status(op_names[i], &d->host_faults[i], err);
done:
    return status;
}

static ls_status cuda_wait(ls_device *device, ls_error *err) {
    cuda_device *d = cuda_of(device);
    const int64_t bytes = FAULTS * (int64_t)sizeof *d->faults, n = d->n_reads;
    ls_status status;
    d->n_reads = 0;
    d->staged = 0;
    LS_TRY(enter(&device->exec, err));
    LS_TRY(ls_cuda_move(&device->exec, d->host_faults, bytes, d->faults, bytes, 1, bytes, err));
    LS_TRY(ls_cuda_synchronize(&device->exec, err));
    for (int64_t i = 0; i < n; i++) memcpy(d->reads[i].host, d->staging + d->reads[i].at, (size_t)d->reads[i].bytes);
    LS_TRY(take_fault(d, err));
done:
    return status;
}

static void cuda_close(ls_device *device) {
    cuda_device *d = cuda_of(device);
    (void)enter(&device->exec, NULL);
    if (d->faults != NULL) ls_cuda_free(d->faults);
    ls_cuda_host_free(d->host_faults);
    ls_cuda_host_free(d->staging);
    if (device->exec.stream != NULL) ls_cuda_stream_free(device->exec.stream);
    free(d);
}

static void cuda_describe(const ls_device *device, char *text, size_t bytes) {
    const int32_t ordinal = device_with(&device->exec)->ordinal;
    ls_gpu gpu;
    if (ls_cuda_gpu(&gpu, ordinal, NULL) == LS_OK)
        snprintf(text, bytes, "cuda:%d, %s, %lld GiB", ordinal, gpu.name, (long long)(gpu.bytes >> 30));
    else
        snprintf(text, bytes, "cuda:%d", ordinal);
}

/* ---- the tables ---- */

#define OP(name) .name = ls_cuda_##name,
const ls_backend_table ls_backend_table_cuda = {.title = "cuda", LS_OPS(OP)};
#undef OP

#define OP(name) .name = on_device_##name,
static const ls_backend_table device_table = {.title = "cuda",
                                              .close = cuda_close,
                                              .describe = cuda_describe,
                                              .alloc = cuda_alloc,
                                              .release = cuda_release,
                                              .reserve = cuda_alloc,
                                              .unreserve = cuda_unreserve,
                                              .drop = cuda_drop,
                                              .write = cuda_write,
                                              .read = cuda_read,
                                              .copy = cuda_copy,
                                              .fill = cuda_fill,
                                              .wait = cuda_wait,
                                              .pack_plan = ls_cuda_gemm_pack_plan,
                                              LS_OPS(OP)};
#undef OP

ls_status ls_device_open_cuda(ls_device **out, int32_t ordinal, ls_error *err) {
    const int64_t bytes = FAULTS * (int64_t)sizeof(ls_fault);
    cuda_device *d = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY(ls_cuda_device_check(ordinal, err));
    LS_TRY(ls_cuda_code_check(ordinal, err));
    d = calloc(1, sizeof *d);
    if (d == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "device");
        goto done;
    }
    d->base.table = &device_table;
    d->base.exec.backend = LS_BACKEND_CUDA;
    d->ordinal = ordinal;
    LS_TRY(ls_cuda_stream_create(&d->base.exec.stream, err));
    LS_TRY(ls_cuda_alloc((void **)&d->faults, bytes, err));
    LS_TRY(ls_cuda_set(&d->base.exec, d->faults, 0, bytes, err));
    LS_TRY(ls_cuda_host_alloc((void **)&d->host_faults, bytes, err));
    LS_TRY(ls_cuda_host_alloc((void **)&d->staging, STAGING_BYTES, err));
    LS_TRY(ls_device_prepare(&d->base, LS_WORKSPACE_HEAD, err));
    *out = &d->base;
    d = NULL;
done:
    if (d != NULL) cuda_close(&d->base);
    return status;
}
