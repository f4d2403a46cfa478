/* CUDA as a back end: one stream that calls are put on and that a wait waits for. Recordings are CUDA graphs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/inject.h"
#include "base/mem.h"
#include "dev/device.h"
#include "dev/gpu.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/digest_cuda.h"
#include "op/cuda/faulty_ops_cuda.h"
#include "op/gemm_cuda.h"
#include "op/mamba_step.h"

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

/* Loads fill one piece of pinned memory while the other one is on its way. */
#define PIECES 2

typedef struct load_piece {
    uint8_t *host;
    void *sent; /* event: what was put on the stream from here has arrived */
    bool is_under_way;
} load_piece;

typedef struct cuda_device {
    ls_device base;
    int32_t ordinal;
    ls_fault *faults, *host_faults; /* [FAULTS] */
    uint8_t *staging;
    int64_t staged;
    pending_read reads[READS_MAX];
    int64_t n_reads;
    bool recording;
    load_piece pieces[PIECES];
    int64_t piece_bytes; /* of each; 0 before the first load */
} cuda_device;

static cuda_device *cuda_of(ls_device *device) { return (cuda_device *)(void *)device; }

/* exec is that of a device. */
static cuda_device *device_with(const ls_exec *exec) {
    return (cuda_device *)(uintptr_t)((const char *)exec - offsetof(ls_device, exec));
}

/* A thread's current GPU is the one that it used last, or the first: every call says which one it means. */
static ls_status enter(const ls_exec *exec, ls_error *err) { return ls_cuda_use(device_with(exec)->ordinal, err); }

/* The same for what a recording cannot hold: a graph runs without the host. */
static ls_status enter_unrecorded(ls_device *device, const char *what, ls_error *err) {
    if (cuda_of(device)->recording) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: %s while calls are recorded", what);
    return enter(&device->exec, err);
}

/* ---- ops: those of the flat ABI as they are; on a device, with the op's own fault record ---- */

/* Workspace of ops that need none on other back ends. */
static int64_t own_workspace(int op, const void *args) {
    if (op == FAULT_gemm_backward_input) return ls_cuda_gemm_backward_input_workspace(args);
    if (op == FAULT_gemm_backward_weight) return ls_cuda_gemm_backward_weight_workspace(args);
    return 0;
}

static ls_status assure_workspace(ls_device *device, int op, const void *args, ls_error *err) {
    const int64_t bytes = own_workspace(op, args);
    if (bytes >= 0 && bytes <= device->exec.workspace_bytes) return LS_OK;
    LS_TRY(enter_unrecorded(device, "a larger workspace", err));
    return ls_device_prepare(device, bytes, err);
}

#ifdef LS_FAULTS
/* Each with its own hook. */
static ls_status mamba_step_in_turn(ls_device *device, const ls_mamba_step_args *a, ls_error *err) {
    LS_TRY(ls_gemm(device, &a->in_proj, err));
    LS_TRY(ls_conv1d(device, &a->conv, err));
    LS_TRY(ls_gemm(device, &a->x_proj, err));
    LS_TRY(ls_rmsnorm_parts(device, &a->norms, err));
    LS_TRY(ls_gemm(device, &a->dt_proj, err));
    return ls_scan(device, &a->scan, err);
}
#endif

/* The laboratory's implementation of an op in which the armed fault sits; *ran is false where the sound one is to run.
 *  */
static ls_status run_faulty(bool *ran, int op, ls_device *device, const ls_exec *exec, const void *args,
                            ls_error *err) {
    *ran = true;
#ifdef LS_FAULTS
    const ls_inject fault = ls_inject_armed;
    if (op == FAULT_scan && (fault == LS_INJECT_SLOT_STRIDE_U32 || fault == LS_INJECT_STALE_SLOT ||
                             fault == LS_INJECT_NO_RESET_PACKED || fault == LS_INJECT_SOFTPLUS_NAIVE))
        return ls_cuda_faulty_scan(exec, args, fault, err);
    if (op == FAULT_conv1d && (fault == LS_INJECT_STALE_SLOT || fault == LS_INJECT_CONV_SHORT_CHUNK))
        return ls_cuda_faulty_conv1d(exec, args, fault, err);
    if (op == FAULT_gemm && fault == LS_INJECT_SPLIT_K) return ls_cuda_faulty_gemm(exec, args, fault, err);
    if (op == FAULT_mamba_step && fault != LS_INJECT_NONE) return mamba_step_in_turn(device, args, err);
#endif
    (void)op, (void)device, (void)exec, (void)args, (void)err;
    *ran = false;
    return LS_OK;
}

#define OP(name)                                                                                                 \
    static ls_status on_device_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err) { \
        cuda_device *d = device_with(exec);                                                                      \
        ls_exec own;                                                                                             \
        bool faulty;                                                                                             \
        ls_status status;                                                                                        \
        LS_TRY_DONE(enter(exec, err));                                                                           \
        LS_TRY_DONE(assure_workspace(&d->base, FAULT_##name, args, err));                                        \
        own = d->base.exec;                                                                                      \
        own.fault = &d->faults[FAULT_##name];                                                                    \
        LS_TRY_DONE(run_faulty(&faulty, FAULT_##name, &d->base, &own, args, err));                               \
        if (!faulty) LS_TRY_DONE(ls_cuda_##name(&own, args, err));                                               \
    done:                                                                                                        \
        return status;                                                                                           \
    }
LS_OPS(OP)
#undef OP

/* ---- memory ---- */

static void cuda_release(ls_device *device, void *memory) {
    if (enter(&device->exec, NULL) == LS_OK) ls_cuda_free_ordered(&device->exec, memory);
}

/* Released memory is kept for the next allocation; what cannot be had may lie there. */
static ls_status cuda_trim(ls_device *device, ls_error *err) {
    LS_TRY(enter_unrecorded(device, "a trim", err));
    return ls_cuda_trim(&device->exec, err);
}

static ls_status cuda_alloc(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    ls_status status;
    *out = NULL;
    LS_TRY(enter_unrecorded(device, "an allocation", err));
    status = ls_cuda_alloc_ordered(&device->exec, out, bytes, what, err);
    if (status != LS_ERR_NOMEM || cuda_trim(device, err) != LS_OK) return status;
    return ls_cuda_alloc_ordered(&device->exec, out, bytes, what, err);
}

/* Pools of this size and more are memory of their own, so that what is given back is the system's at once. */
#define OWN_POOL_BYTES ((int64_t)32 << 20)

static ls_status cuda_reserve(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    ls_status status;
    *out = NULL;
    if (bytes < OWN_POOL_BYTES) return cuda_alloc(device, out, bytes, what, err);
    LS_TRY(enter_unrecorded(device, "an allocation", err));
    status = ls_cuda_alloc(out, bytes, err);
    if (status == LS_ERR_NOMEM && cuda_trim(device, err) == LS_OK) status = ls_cuda_alloc(out, bytes, err);
    if (status != LS_OK) {
        ls_error_prefix(err, "%s", what);
        return status;
    }
    return ls_cuda_set(&device->exec, *out, 0, bytes, err);
}

static void cuda_unreserve(ls_device *device, void *memory, int64_t bytes) {
    if (bytes < OWN_POOL_BYTES) {
        cuda_release(device, memory);
        return;
    }
    if (enter(&device->exec, NULL) != LS_OK) return;
    (void)ls_cuda_synchronize(&device->exec, NULL); /* a call may still read it; its error is the next wait's too */
    ls_cuda_free(memory);
}

static ls_status cuda_pin(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    ls_status status;
    *out = NULL;
    LS_TRY(enter_unrecorded(device, "an allocation", err));
    status = ls_cuda_host_alloc(out, bytes > 0 ? bytes : 1, err);
    if (status == LS_ERR_NOMEM)
        return LS_FAIL(err, status,
                       "cuda: %s: %lld bytes (%.1f MiB) of pinned host memory cannot be had: the machine has less, or "
                       "its limit of locked memory is lower",
                       what, (long long)bytes, (double)bytes / (double)(1 << 20));
    return status;
}

static void cuda_unpin(ls_device *device, void *memory, int64_t bytes) {
    (void)bytes;
    if (enter(&device->exec, NULL) == LS_OK) ls_cuda_host_free(memory);
}

/* ---- memory of several processes: its place is CUDA's handle ---- */

_Static_assert(LS_CUDA_HANDLE_BYTES <= LS_SHARED_PLACE_BYTES, "a place holds a handle");

/* Whole pages of CUDA's, so that no other allocation is handed out with them. */
#define SHARED_UNIT ((int64_t)2 << 20)

static ls_status cuda_share(ls_device *device, ls_shared *shared, const char *what, ls_error *err) {
    const int64_t bytes = (shared->bytes + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT;
    ls_status status;
    LS_TRY(enter_unrecorded(device, "an allocation", err));
    status = ls_cuda_alloc(&shared->memory, bytes, err);
    if (status == LS_ERR_NOMEM && cuda_trim(device, err) == LS_OK) status = ls_cuda_alloc(&shared->memory, bytes, err);
    if (status != LS_OK) shared->memory = NULL;
    if (status == LS_OK) status = ls_cuda_handle(shared->name.place, shared->memory, err);
    if (status == LS_OK) return ls_cuda_set(&device->exec, shared->memory, 0, bytes, err);
    if (shared->memory != NULL) ls_cuda_free(shared->memory);
    shared->memory = NULL;
    ls_error_prefix(err, "%s", what);
    return status;
}

static void cuda_unshare(ls_device *device, ls_shared *shared) {
    if (enter(&device->exec, NULL) == LS_OK) ls_cuda_free(shared->memory);
}

static ls_status cuda_map(ls_device *device, ls_shared *shared, ls_error *err) {
    LS_TRY(enter_unrecorded(device, "an allocation", err));
    return ls_cuda_handle_open(&shared->memory, shared->name.place, err);
}

static void cuda_unmap(ls_device *device, ls_shared *shared) {
    if (enter(&device->exec, NULL) == LS_OK) ls_cuda_handle_close(shared->memory);
}

static ls_status cuda_memory(ls_device *device, ls_memory_state *out, ls_error *err) {
    LS_TRY(enter(&device->exec, err));
    out->is_limited = true;
    return ls_cuda_memory(&out->free, &out->kept, &out->total, err);
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
    LS_TRY(enter_unrecorded(device, "a write from the host", err));
    return ls_cuda_move(&device->exec, to, bytes, host, bytes, 1, bytes, err);
}

static void free_pieces(cuda_device *d) {
    for (int i = 0; i < PIECES; i++) {
        if (d->pieces[i].host != NULL) ls_cuda_host_free(d->pieces[i].host);
        ls_cuda_event_free(d->pieces[i].sent);
        d->pieces[i] = (load_piece){0};
    }
    d->piece_bytes = 0;
}

/* Pieces of at least this size, made once for all loads of one piece size. */
static ls_status assure_pieces(cuda_device *d, int64_t bytes, ls_error *err) {
    if (bytes <= d->piece_bytes) return LS_OK;
    LS_TRY(ls_cuda_synchronize(&d->base.exec, err));
    free_pieces(d);
    for (int i = 0; i < PIECES; i++) {
        LS_TRY(ls_cuda_host_alloc((void **)&d->pieces[i].host, bytes, err));
        LS_TRY(ls_cuda_event_create(&d->pieces[i].sent, false, err));
    }
    d->piece_bytes = bytes;
    return LS_OK;
}

/* What was sent from the piece before has to have arrived before it is filled again. */
static ls_status send_piece(cuda_device *d, load_piece *piece, void *to, int64_t at, int64_t bytes,
                            ls_memory_source source, void *context, ls_error *err) {
    const ls_exec *exec = &d->base.exec;
    if (piece->is_under_way) LS_TRY(ls_cuda_event_wait(piece->sent, err));
    piece->is_under_way = false;
    LS_TRY(source(context, piece->host, at, bytes, err));
    LS_TRY(ls_cuda_move(exec, (uint8_t *)to + at, bytes, piece->host, bytes, 1, bytes, err));
    piece->is_under_way = true;
    return ls_cuda_event_record(exec, piece->sent, err);
}

static ls_status cuda_load(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                           void *context, ls_error *err) {
    cuda_device *d = cuda_of(device);
    int64_t n = 0;
    LS_TRY(enter_unrecorded(device, "a load", err));
    LS_TRY(assure_pieces(d, piece_bytes, err));
    for (int64_t at = 0; at < bytes; at += piece_bytes, n++)
        LS_TRY(send_piece(d, &d->pieces[n % PIECES], to, at, bytes - at < piece_bytes ? bytes - at : piece_bytes,
                          source, context, err));
    return LS_OK;
}

static ls_status cuda_read(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    cuda_device *d = cuda_of(device);
    LS_TRY(enter_unrecorded(device, "a read by the host", err));
    if (bytes > STAGING_BYTES - d->staged || d->n_reads == READS_MAX)
        return ls_cuda_move(&device->exec, host, bytes, from, bytes, 1, bytes, err);
    LS_TRY(ls_cuda_move(&device->exec, d->staging + d->staged, bytes, from, bytes, 1, bytes, err));
    d->reads[d->n_reads++] = (pending_read){host, d->staged, bytes};
    d->staged += bytes;
    return LS_OK;
}

static ls_status cuda_digest(ls_device *device, uint64_t *hash, const ls_digest_part *parts, int64_t n, ls_error *err) {
    ls_digest_slab *host = NULL;
    ls_status status;
    LS_TRY_DONE(enter_unrecorded(device, "a digest", err));
    LS_TRY_DONE(ls_device_prepare(device, LS_WORKSPACE_HEAD + (int64_t)sizeof *host, err));
    LS_TRY_DONE(ls_array_alloc((void **)&host, 1, sizeof *host, "digest", err));
    status = ls_cuda_digest(device, hash, parts, n, host,
                            (ls_digest_slab *)(void *)((uint8_t *)device->exec.workspace + LS_WORKSPACE_HEAD), err);
done:
    free(host);
    return status;
}

static ls_status cuda_copy(ls_device *device, const ls_copy_args *a, ls_error *err) {
    const ls_status status = enter(&device->exec, err);
    return status != LS_OK
               ? status
               : ls_cuda_move(&device->exec, a->to, a->to_stride, a->from, a->from_stride, a->rows, a->row_bytes, err);
}

/* The first op in the table's order whose record holds a fault; all records are cleared. */
static ls_status take_fault(cuda_device *d, ls_error *err) {
    int i = 0;
    while (i < FAULTS && d->host_faults[i].code == LS_FAULT_NONE) i++;
    if (i == FAULTS) return LS_OK;
    LS_TRY(ls_cuda_set(&d->base.exec, d->faults, 0, FAULTS * (int64_t)sizeof *d->faults, err));
    return ls_fault_status(op_names[i], &d->host_faults[i], err);
}

static ls_status cuda_wait(ls_device *device, ls_error *err) {
    cuda_device *d = cuda_of(device);
    const int64_t bytes = FAULTS * (int64_t)sizeof *d->faults, n = d->n_reads;
    LS_TRY(enter_unrecorded(device, "a wait", err));
    d->n_reads = 0;
    d->staged = 0;
    LS_TRY(ls_cuda_move(&device->exec, d->host_faults, bytes, d->faults, bytes, 1, bytes, err));
    LS_TRY(ls_cuda_synchronize(&device->exec, err));
    for (int64_t i = 0; i < n; i++) memcpy(d->reads[i].host, d->staging + d->reads[i].at, (size_t)d->reads[i].bytes);
    return take_fault(d, err);
}

/* ---- recordings ---- */

static ls_status cuda_record(ls_device *device, ls_error *err) {
    LS_TRY(enter_unrecorded(device, "record", err));
    LS_TRY(ls_cuda_graph_begin(&device->exec, err));
    cuda_of(device)->recording = true;
    return LS_OK;
}

static ls_status cuda_recorded(ls_device *device, void **recording, ls_error *err) {
    cuda_device *d = cuda_of(device);
    *recording = NULL;
    if (!d->recording) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "cuda: recorded without record");
    d->recording = false;
    return ls_cuda_graph_end(&device->exec, recording, err);
}

static ls_status cuda_replay(ls_device *device, void *recording, ls_error *err) {
    LS_TRY(enter_unrecorded(device, "a replay", err));
    return ls_cuda_graph_launch(&device->exec, recording, err);
}

static void cuda_forget(ls_device *device, void *recording) {
    (void)device;
    if (recording != NULL) ls_cuda_graph_free(recording);
}

static void cuda_close(ls_device *device) {
    cuda_device *d = cuda_of(device);
    (void)enter(&device->exec, NULL);
    if (d->faults != NULL) ls_cuda_free(d->faults);
    ls_cuda_host_free(d->host_faults);
    ls_cuda_host_free(d->staging);
    free_pieces(d);
    ls_ledger_deinit(&device->ledger);
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

static bool cuda_prefers_mma16(ls_device *device) {
    return enter(&device->exec, NULL) == LS_OK && ls_cuda_mma16_proven(NULL) == LS_OK;
}

/* ---- the tables ---- */

#define OP(name) .name = ls_cuda_##name,
const ls_backend_table ls_backend_table_cuda = {.title = "cuda", .pack_plan = ls_cuda_gemm_pack_plan, LS_OPS(OP)};
#undef OP

#define OP(name) .name = on_device_##name,
static const ls_backend_table device_table = {.title = "cuda",
                                              .packs_behind_rows = true,
                                              .block_bytes = LS_BLOCK_BYTES_CUDA,
                                              .gradient_block_bytes = LS_GRADIENT_BLOCK_BYTES_CUDA,
                                              .close = cuda_close,
                                              .describe = cuda_describe,
                                              .alloc = cuda_alloc,
                                              .release = cuda_release,
                                              .reserve = cuda_reserve,
                                              .unreserve = cuda_unreserve,
                                              .drop = cuda_drop,
                                              .pin = cuda_pin,
                                              .unpin = cuda_unpin,
                                              .share = cuda_share,
                                              .unshare = cuda_unshare,
                                              .map = cuda_map,
                                              .unmap = cuda_unmap,
                                              .memory = cuda_memory,
                                              .trim = cuda_trim,
                                              .write = cuda_write,
                                              .load = cuda_load,
                                              .read = cuda_read,
                                              .digest = cuda_digest,
                                              .copy = cuda_copy,
                                              .fill = cuda_fill,
                                              .wait = cuda_wait,
                                              .record = cuda_record,
                                              .recorded = cuda_recorded,
                                              .replay = cuda_replay,
                                              .forget = cuda_forget,
                                              .prefers_mma16 = cuda_prefers_mma16,
                                              .pack_plan = ls_cuda_gemm_pack_plan,
                                              LS_OPS(OP)};
#undef OP

ls_status ls_device_open_cuda(ls_device **out, int32_t ordinal, ls_error *err) {
    const int64_t bytes = FAULTS * (int64_t)sizeof(ls_fault);
    cuda_device *d = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_cuda_device_check(ordinal, err));
    LS_TRY_DONE(ls_cuda_code_check(ordinal, err));
    d = calloc(1, sizeof *d);
    if (d == NULL) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "device");
        goto done;
    }
    d->base.table = &device_table;
    d->base.exec.backend = LS_BACKEND_CUDA;
    d->ordinal = ordinal;
    LS_TRY_DONE(ls_cuda_stream_create(&d->base.exec.stream, err));
    LS_TRY_DONE(ls_cuda_alloc((void **)&d->faults, bytes, err));
    LS_TRY_DONE(ls_cuda_set(&d->base.exec, d->faults, 0, bytes, err));
    LS_TRY_DONE(ls_cuda_host_alloc((void **)&d->host_faults, bytes, err));
    LS_TRY_DONE(ls_cuda_host_alloc((void **)&d->staging, STAGING_BYTES, err));
    LS_TRY_DONE(ls_device_prepare(&d->base, LS_WORKSPACE_HEAD, err));
    *out = &d->base;
    d = NULL;
done:
    if (d != NULL) cuda_close(&d->base);
    return status;
}
