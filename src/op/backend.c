/* Dispatch: each op is checked once and goes to the table of its device. */
#include "op/backend.h"

#include <string.h>

#include "base/mem.h"
#include "op/adamw.h"
#include "op/attention_backward.h"
#include "op/conv1d.h"
#include "op/delta.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gated_norm.h"
#include "op/gather.h"
#include "op/gemm_backward.h"
#include "op/gemm_groups.h"
#include "op/held.h"
#include "op/logprob.h"
#include "op/lora.h"
#include "op/mamba_step.h"
#include "op/moe_backward.h"
#include "op/moe_sigmoid.h"
#include "op/regroup.h"
#include "op/rmsnorm.h"
#include "op/rmsnorm_backward.h"
#include "op/rope.h"
#include "op/sample.h"
#include "op/scan.h"
#include "op/sigmoid_gate.h"
#include "op/ssd.h"
#include "op/support.h"
#include "op/top.h"
#include "op/weight.h"

static ls_status missing(const char *op, const char *backend, ls_error *err) {
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: not on %s", op, backend);
}

/* ---- devices ---- */

/* The workspace of the device, at least this large. */
static ls_status assure_workspace(ls_device *device, const char *op, int64_t bytes, ls_error *err) {
    ls_exec *exec = &device->exec;
    if (bytes < 0) return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace does not fit 64 bits", op);
    if (bytes <= exec->workspace_bytes) return LS_OK;
    LS_TRY(ls_device_wait(device, err));
    ls_memory_free(device, exec->workspace);
    exec->workspace = NULL;
    exec->workspace_bytes = 0;
    LS_TRY(ls_memory_alloc(device, &exec->workspace, bytes, 1, "workspace", err));
    exec->workspace_bytes = bytes;
    return LS_OK;
}

ls_status ls_device_prepare(ls_device *device, int64_t workspace_bytes, ls_error *err) {
    return assure_workspace(device, "device", workspace_bytes, err);
}

static ls_status check_call(const char *op, const ls_device *device, const void *args, ls_error *err) {
    if (device == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: device is NULL", op);
    if (args == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: args is NULL", op);
    return LS_OK;
}

#define OP(name)                                                                           \
    ls_status ls_##name(ls_device *device, const ls_##name##_args *args, ls_error *err) {  \
        LS_TRY(check_call(#name, device, args, err));                                      \
        LS_TRY(ls_##name##_check(args, err));                                              \
        if (device->table->name == NULL) return missing(#name, device->table->title, err); \
        return device->table->name(&device->exec, args, err);                              \
    }
LS_OPS_PLAIN(OP)
#undef OP

#define OP(name)                                                                           \
    ls_status ls_##name(ls_device *device, const ls_##name##_args *args, ls_error *err) {  \
        LS_TRY(check_call(#name, device, args, err));                                      \
        LS_TRY(ls_##name##_check(args, err));                                              \
        LS_TRY(assure_workspace(device, #name, ls_op_##name##_workspace(args), err));      \
        if (device->table->name == NULL) return missing(#name, device->table->title, err); \
        return device->table->name(&device->exec, args, err);                              \
    }
LS_OPS_WITH_WORKSPACE(OP)
#undef OP

void ls_device_describe(const ls_device *device, char *text, size_t bytes) {
    device->table->describe(device, text, bytes);
}

ls_status ls_device_open_beside(ls_device **out, ls_device *home, int32_t n_threads, ls_isa isa, ls_error *err) {
    *out = NULL;
    return home->table->open_beside == NULL ? LS_OK : home->table->open_beside(out, home, n_threads, isa, err);
}

ls_status ls_device_open_sharing(ls_device **out, ls_device *home, int32_t n_most, ls_error *err) {
    *out = NULL;
    return home->table->open_sharing == NULL ? LS_OK : home->table->open_sharing(out, home, n_most, err);
}

void ls_device_close(ls_device *device) {
    if (device == NULL) return;
    (void)ls_device_wait(device, NULL); /* an error of calls that nobody waited for is nobody's */
    ls_memory_free(device, device->exec.workspace);
    ls_ledger_deinit(&device->ledger);
    device->table->close(device);
}

ls_status ls_device_wait(ls_device *device, ls_error *err) { return device->table->wait(device, err); }

bool ls_device_prefers_mma16(ls_device *device) {
    return device->table->prefers_mma16 != NULL && device->table->prefers_mma16(device);
}

/* ---- recordings ---- */

bool ls_device_records(const ls_device *device) { return device->table->record != NULL; }

ls_status ls_device_record(ls_device *device, ls_error *err) {
    return ls_device_records(device) ? device->table->record(device, err)
                                     : missing("record", device->table->title, err);
}

ls_status ls_device_recorded(ls_device *device, ls_recording *out, ls_error *err) {
    ls_status status;
    *out = (ls_recording){NULL, device->exec.workspace};
    status = device->table->recorded(device, &out->calls, err);
    if (status != LS_OK) out->calls = NULL;
    return status;
}

bool ls_recording_is_valid(const ls_device *device, const ls_recording *recording) {
    return recording->calls != NULL && recording->workspace == device->exec.workspace;
}

ls_status ls_device_replay(ls_device *device, const ls_recording *recording, ls_error *err) {
    LS_ASSERT(ls_recording_is_valid(device, recording), "a recording at %p is void", recording->calls);
    return device->table->replay(device, recording->calls, err);
}

void ls_device_forget(ls_device *device, ls_recording *recording) {
    if (recording->calls == NULL) return;
    (void)ls_device_wait(device, NULL); /* it may still run */
    device->table->forget(device, recording->calls);
    recording->calls = NULL;
}

/* ---- moves ---- */

ls_status ls_memory_drop(ls_device *device, void *memory, int64_t bytes, ls_error *err) {
    return device->table->drop(device, memory, bytes, err);
}

ls_status ls_memory_write(ls_device *device, void *to, const void *host, int64_t bytes, ls_error *err) {
    return bytes == 0 ? LS_OK : device->table->write(device, to, host, bytes, err);
}

ls_status ls_memory_read(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    return bytes == 0 ? LS_OK : device->table->read(device, host, from, bytes, err);
}

ls_status ls_memory_load(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                         void *context, ls_error *err) {
    LS_ASSERT(piece_bytes > 0, "pieces of %lld bytes", (long long)piece_bytes);
    return bytes == 0 ? LS_OK : device->table->load(device, to, bytes, piece_bytes, source, context, err);
}

ls_status ls_memory_take(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    const ls_status status = ls_memory_read(device, host, from, bytes, err);
    return status != LS_OK ? status : ls_device_wait(device, err);
}

ls_status ls_memory_copy_rows(ls_device *device, const ls_copy_args *args, ls_error *err) {
    return args->rows == 0 || args->row_bytes == 0 ? LS_OK : device->table->copy(device, args, err);
}

ls_status ls_memory_copy(ls_device *device, void *to, const void *from, int64_t bytes, ls_error *err) {
    const ls_copy_args args = {to, from, bytes, bytes, 1, bytes};
    return ls_memory_copy_rows(device, &args, err);
}

ls_status ls_memory_fill(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err) {
    return bytes == 0 ? LS_OK : device->table->fill(device, to, byte, bytes, err);
}
