/* The device on paper. Addresses come from a range that no process has, so that two allocations differ and none can be
 * touched. */
#include "op/planned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/cpu/cpu_ops.h"
#include "op/gemm_cuda.h"

/* Beyond what a processor translates. */
#define FIRST_ADDRESS ((uintptr_t)1 << 60)
/* What the CUDA back end's allocator hands out. */
#define GRAIN 512

typedef struct planned {
    ls_device base;
    ls_planned_opts opts;
    ls_backend_table table;
    uintptr_t next;
} planned;

static planned *planned_of(const ls_device *device) { return (planned *)(uintptr_t)device; }

/* The device whose exec an op was given. */
static ls_device *device_with(const ls_exec *exec) {
    return (ls_device *)((uintptr_t)exec - offsetof(ls_device, exec));
}

/* ---- memory ---- */

static ls_status planned_alloc(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    planned *p = planned_of(device);
    const int64_t free_bytes = p->opts.total - p->opts.taken - device->ledger.used;
    *out = NULL;
    if (bytes > INT64_MAX / 4) return LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld bytes", what, (long long)bytes);
    if (p->opts.total > 0 && bytes > free_bytes)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: %s: out of memory: %lld bytes", p->opts.title, what, (long long)bytes);
    *out = (void *)p->next;
    p->next += (uintptr_t)(bytes + GRAIN) / GRAIN * GRAIN;
    return LS_OK;
}

static void planned_release(ls_device *device, void *memory) { (void)device, (void)memory; }

static void planned_unreserve(ls_device *device, void *memory, int64_t bytes) {
    (void)device, (void)memory, (void)bytes;
}

/* The host's is not counted against the device's. */
static ls_status planned_pin(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    planned *p = planned_of(device);
    const int64_t most = p->opts.pinned_max > 0 ? p->opts.pinned_max : INT64_MAX / 4;
    *out = NULL;
    if (bytes > most - device->ledger.pinned)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: the host's memory: %lld bytes", what, (long long)bytes);
    *out = (void *)p->next;
    p->next += (uintptr_t)(bytes + GRAIN) / GRAIN * GRAIN;
    return LS_OK;
}

static ls_status planned_memory(ls_device *device, ls_memory_state *out, ls_error *err) {
    const planned *p = planned_of(device);
    (void)err;
    out->is_limited = p->opts.total > 0;
    out->total = p->opts.total > 0 ? p->opts.total : INT64_MAX / 4;
    out->free = out->total - p->opts.taken - device->ledger.used;
    return LS_OK;
}

/* Of this process alone: others have no memory of a device on paper, and their names mean nothing. */
static ls_status planned_share(ls_device *device, ls_shared *shared, const char *what, ls_error *err) {
    return planned_alloc(device, &shared->memory, shared->bytes, what, err);
}

static void planned_unshare(ls_device *device, ls_shared *shared) { (void)device, (void)shared; }

static ls_status planned_map(ls_device *device, ls_shared *shared, ls_error *err) {
    planned *p = planned_of(device);
    (void)err;
    shared->memory = (void *)p->next;
    p->next += (uintptr_t)(shared->bytes + GRAIN) / GRAIN * GRAIN;
    return LS_OK;
}

/* ---- moves: nothing ---- */

static ls_status planned_drop(ls_device *device, void *memory, int64_t bytes, ls_error *err) {
    (void)device, (void)memory, (void)bytes, (void)err;
    return LS_OK;
}

static ls_status planned_write(ls_device *device, void *to, const void *host, int64_t bytes, ls_error *err) {
    (void)device, (void)to, (void)host, (void)bytes, (void)err;
    return LS_OK;
}

/* The source is not asked. */
static ls_status planned_load(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                              void *context, ls_error *err) {
    (void)device, (void)to, (void)bytes, (void)piece_bytes, (void)source, (void)context, (void)err;
    return LS_OK;
}

static ls_status planned_read(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    (void)device, (void)from, (void)err;
    memset(host, 0, (size_t)bytes);
    return LS_OK;
}

static ls_status planned_digest(ls_device *device, uint64_t *hash, const ls_digest_part *parts, int64_t n,
                                ls_error *err) {
    (void)device, (void)hash, (void)parts, (void)n, (void)err;
    return LS_OK;
}

static ls_status planned_copy(ls_device *device, const ls_copy_args *args, ls_error *err) {
    (void)device, (void)args, (void)err;
    return LS_OK;
}

static ls_status planned_fill(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err) {
    (void)device, (void)to, (void)byte, (void)bytes, (void)err;
    return LS_OK;
}

static ls_status planned_wait(ls_device *device, ls_error *err) {
    (void)device, (void)err;
    return LS_OK;
}

/* ---- ops: their workspaces alone ---- */

static bool is_gpu(const ls_exec *exec) { return exec->backend == LS_BACKEND_CUDA; }

#define OP(name)                                                                                            \
    static ls_status plan_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err) { \
        (void)exec, (void)args, (void)err;                                                                  \
        return LS_OK;                                                                                       \
    }
LS_OPS(OP)
#undef OP

/* The CUDA back end has workspaces for these that others do without. */
static ls_status plan_input(const ls_exec *exec, const ls_gemm_backward_input_args *args, ls_error *err) {
    LS_TRY(plan_gemm_backward_input(exec, args, err));
    if (!is_gpu(exec)) return LS_OK;
    return ls_device_prepare(device_with(exec), ls_cuda_gemm_backward_input_workspace(args), err);
}

static ls_status plan_weight(const ls_exec *exec, const ls_gemm_backward_weight_args *args, ls_error *err) {
    LS_TRY(plan_gemm_backward_weight(exec, args, err));
    if (!is_gpu(exec)) return LS_OK;
    return ls_device_prepare(device_with(exec), ls_cuda_gemm_backward_weight_workspace(args), err);
}

/* ---- the tables ---- */

static void planned_close(ls_device *device) { free(planned_of(device)); }

static void planned_describe(const ls_device *device, char *text, size_t bytes) {
    snprintf(text, bytes, "%s, on paper", planned_of(device)->opts.title);
}

static bool prefers_mma16(ls_device *device) { return is_gpu(&device->exec); }

static ls_backend_table make_table(const ls_planned_opts *opts) {
#define OP(name) .name = plan_##name,
    ls_backend_table table = {.title = opts->title,
                              .packs_behind_rows = opts->is_gpu,
                              .block_bytes = opts->is_gpu ? LS_BLOCK_BYTES_CUDA : LS_BLOCK_BYTES_CPU,
                              .gradient_block_bytes = opts->is_gpu ? LS_GRADIENT_BLOCK_BYTES_CUDA : LS_BLOCK_BYTES_CPU,
                              .close = planned_close,
                              .describe = planned_describe,
                              .alloc = planned_alloc,
                              .release = planned_release,
                              .reserve = planned_alloc,
                              .unreserve = planned_unreserve,
                              .drop = planned_drop,
                              .pin = planned_pin,
                              .unpin = planned_unreserve,
                              .share = planned_share,
                              .unshare = planned_unshare,
                              .map = planned_map,
                              .unmap = planned_unshare,
                              .memory = planned_memory,
                              .write = planned_write,
                              .load = planned_load,
                              .read = planned_read,
                              .digest = planned_digest,
                              .copy = planned_copy,
                              .fill = planned_fill,
                              .wait = planned_wait,
                              .prefers_mma16 = prefers_mma16,
                              .pack_plan = opts->is_gpu ? ls_cuda_gemm_pack_plan : ls_cpu_gemm_pack_plan,
                              LS_OPS(OP)};
#undef OP
    table.gemm_backward_input = plan_input;
    table.gemm_backward_weight = plan_weight;
    return table;
}

ls_status ls_device_open_planned(ls_device **out, const ls_planned_opts *opts, ls_error *err) {
    planned *p = calloc(1, sizeof *p);
    *out = NULL;
    if (p == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "device");
    *p = (planned){.opts = *opts, .table = make_table(opts), .next = FIRST_ADDRESS};
    p->base.table = &p->table;
    p->base.exec.backend = opts->is_gpu ? LS_BACKEND_CUDA : LS_BACKEND_CPU;
    *out = &p->base;
    return opts->is_gpu ? ls_device_prepare(*out, LS_WORKSPACE_HEAD, err) : LS_OK;
}
