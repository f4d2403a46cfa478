/* The CPU behind a queue: a back end for tests that behaves as a GPU does to those who call it.
 *
 * Every call is copied, with its arguments and with the host's data that it writes, and runs at the next wait. The
 * destination of a read is filled with POISON when it is asked for and with the data at the wait. All memory but what
 * is pinned lies in an arena that the host cannot touch but while a wait runs calls: who looks at it in between dies,
 * and the sentence names the buffer and the last queued call that knows it. Memory is there when alloc returns and is
 * taken back at the end of a wait, after the calls that may use it.
 *
 * A call that fails ends its wait: the error names it, the calls behind it are dropped, later calls work. Between
 * record and recorded calls go to the recording instead of the queue, a wait is refused, and so is a call that needs a
 * larger workspace than there is. A recording holds its calls as they were made, host data of writes included; the
 * memory that they name must outlive it. */
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "dev/arena.h"
#include "op/cpu/cpu_ops.h"

#define POISON 0xA5
#define WEIGHTS_MAX 3

typedef ls_status call_run(ls_device *device, const void *args, ls_error *err);

typedef struct call {
    const char *name;
    call_run *run;
    int64_t n_holders;                  /* places in the queue and in recordings */
    ls_gemm_weight weight[WEIGHTS_MAX]; /* what args of products point to */
    int64_t args_bytes;
    _Alignas(max_align_t) uint8_t args[]; /* then arrays of the host that they name, or the host's data of a write */
} call;

typedef struct call_list {
    call **calls; /* [n] */
    int64_t n, cap;
} call_list;

typedef struct deferred {
    ls_device base;
    ls_arena *arena;
    call_list queue;
    int64_t n_done;       /* calls that have left the queue: the first one in it has number n_done + 1 */
    call_list *recording; /* NULL outside of record and recorded */
} deferred;

static deferred *deferred_of(ls_device *device) { return (deferred *)device; }

/* The device whose exec an op was given. */
static deferred *deferred_with(const ls_exec *exec) {
    return (deferred *)((uintptr_t)exec - offsetof(deferred, base) - offsetof(ls_device, exec));
}

/* ---- lists of calls ---- */

static void call_drop(call *c) {
    if (--c->n_holders == 0) free(c);
}

static ls_status list_add(call_list *list, call *c, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&list->calls, &list->cap, list->n + 1, (int64_t)sizeof(call *), c->name, err));
    list->calls[list->n++] = c;
    c->n_holders++;
    return LS_OK;
}

static void list_clear(call_list *list) {
    for (int64_t i = 0; i < list->n; i++) call_drop(list->calls[i]);
    list->n = 0;
}

static void list_free(call_list *list) {
    list_clear(list);
    free(list->calls);
}

/* ---- who knows a buffer ---- */

static bool holds(const void *memory, int64_t bytes, const uint8_t *begin, const uint8_t *end) {
    for (int64_t i = 0; i + (int64_t)sizeof(uintptr_t) <= bytes; i += (int64_t)sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, (const uint8_t *)memory + i, sizeof word);
        if (word >= (uintptr_t)begin && word < (uintptr_t)end) return true;
    }
    return false;
}

/* Index of the last call of a list with a pointer into [begin, end); -1 where there is none. */
static int64_t last_with(const call_list *list, const uint8_t *begin, const uint8_t *end) {
    int64_t i = list == NULL ? -1 : list->n - 1;
    for (; i >= 0; i--) {
        const call *c = list->calls[i];
        if (holds(c->args, c->args_bytes, begin, end) || holds(c->weight, (int64_t)sizeof c->weight, begin, end)) break;
    }
    return i;
}

static void name_last_call(const void *owner, const uint8_t *begin, const uint8_t *end) {
    const deferred *d = owner;
    const int64_t recorded = last_with(d->recording, begin, end), queued = last_with(&d->queue, begin, end);
    if (recorded < 0 && queued < 0) {
        ls_arena_say("; no call with a pointer into it is waiting");
        return;
    }
    ls_arena_say("; the last call with a pointer into it is ");
    ls_arena_say(recorded >= 0 ? d->recording->calls[recorded]->name : d->queue.calls[queued]->name);
    ls_arena_say(recorded >= 0 ? ", recorded as number " : ", number ");
    ls_arena_say_number(recorded >= 0 ? recorded + 1 : d->n_done + queued + 1);
}

/* ---- calls ---- */

typedef struct move_args {
    void *to;
    const void *from;
    int64_t bytes;
} move_args;

typedef struct fill_args {
    void *to;
    int byte;
    int64_t bytes;
} fill_args;

/* Reads and writes; a read's `to` and a write's `from` are the host's. */
static ls_status run_move(ls_device *device, const void *args, ls_error *err) {
    const move_args *a = args;
    return ls_backend_table_cpu.write(device, a->to, a->from, a->bytes, err);
}

static ls_status run_read(ls_device *device, const void *args, ls_error *err) { return run_move(device, args, err); }

static ls_status run_copy(ls_device *device, const void *args, ls_error *err) {
    return ls_backend_table_cpu.copy(device, args, err);
}

static ls_status run_fill(ls_device *device, const void *args, ls_error *err) {
    const fill_args *a = args;
    return ls_backend_table_cpu.fill(device, a->to, a->byte, a->bytes, err);
}

static ls_status run_drop(ls_device *device, const void *args, ls_error *err) {
    const fill_args *a = args;
    return ls_backend_table_cpu.drop(device, a->to, a->bytes, err);
}

#define OP(name)                                                                         \
    static ls_status run_##name(ls_device *device, const void *args, ls_error *err) {    \
        return ls_cpu_##name(&device->exec, (const struct ls_##name##_args *)args, err); \
    }
LS_OPS(OP)
#undef OP

/* ---- arrays of the host that arguments point to ---- */

/* Bytes of those of a call's arguments. */
static int64_t list_bytes(call_run *run, const void *args) {
    if (run == run_gemm_groups)
        return ((const ls_gemm_groups_args *)args)->n_groups * (int64_t)(sizeof(void *) + sizeof(ls_gemm_weight));
    if (run == run_gemm_groups_backward_input)
        return ((const ls_gemm_groups_backward_input_args *)args)->n_groups * (int64_t)sizeof(void *);
    if (run == run_gemm_groups_backward_weight)
        return ((const ls_gemm_groups_backward_weight_args *)args)->n_groups * (int64_t)sizeof(void *);
    return 0;
}

/* Copies them behind the call's arguments, to `list`, which its arguments name from then on. */
static void keep_lists(call *c, void *list) {
    if (c->run == run_gemm_groups) {
        ls_gemm_groups_args *own = (ls_gemm_groups_args *)(void *)c->args;
        ls_gemm_weight *weights = list;
        const ls_gemm_weight **pointers = (const ls_gemm_weight **)(void *)(weights + own->n_groups);
        for (int64_t g = 0; g < own->n_groups; g++) {
            weights[g] = *own->weights[g];
            pointers[g] = &weights[g];
        }
        own->weights = pointers;
    } else if (c->run == run_gemm_groups_backward_input) {
        ls_gemm_groups_backward_input_args *own = (ls_gemm_groups_backward_input_args *)(void *)c->args;
        own->w = memcpy(list, own->w, (size_t)own->n_groups * sizeof(void *));
    } else if (c->run == run_gemm_groups_backward_weight) {
        ls_gemm_groups_backward_weight_args *own = (ls_gemm_groups_backward_weight_args *)(void *)c->args;
        own->dw = memcpy(list, own->dw, (size_t)own->n_groups * sizeof(void *));
    }
}

static void keep_weight(call *c, int64_t i, const ls_gemm_weight **weight) {
    c->weight[i] = **weight;
    *weight = &c->weight[i];
}

/* A call with a copy of its arguments and of `data_bytes` of the host's memory, which a write has; NULL where there is
 * no memory for it. */
static call *call_make(const char *name, call_run *run, const void *args, int64_t args_bytes, const void *data,
                       int64_t data_bytes) {
    const int64_t lists = list_bytes(run, args);
    int64_t bytes;
    call *c = NULL;
    if (ls_add_i64((int64_t)sizeof *c + args_bytes, data_bytes + lists, &bytes)) c = malloc((size_t)bytes);
    if (c == NULL) return NULL;
    *c = (call){.name = name, .run = run, .args_bytes = args_bytes + lists};
    memcpy(c->args, args, (size_t)args_bytes);
    if (lists > 0) keep_lists(c, c->args + args_bytes);
    if (data_bytes > 0) memcpy(c->args + args_bytes, data, (size_t)data_bytes);
    /* What their arguments point to in host memory. */
    if (run == run_gemm) {
        ls_gemm_args *own = (ls_gemm_args *)(void *)c->args;
        keep_weight(c, 0, &own->weight);
    } else if (run == run_gemm_gated) {
        ls_gemm_gated_args *own = (ls_gemm_gated_args *)(void *)c->args;
        keep_weight(c, 0, &own->gate.weight);
        keep_weight(c, 1, &own->up);
    } else if (run == run_gemm_three) {
        ls_gemm_three_args *own = (ls_gemm_three_args *)(void *)c->args;
        keep_weight(c, 0, &own->first.weight);
        keep_weight(c, 1, &own->others[0]);
        keep_weight(c, 2, &own->others[1]);
    } else if (run == run_mamba_step) {
        ls_mamba_step_args *own = (ls_mamba_step_args *)(void *)c->args;
        keep_weight(c, 0, &own->in_proj.weight);
        keep_weight(c, 1, &own->x_proj.weight);
        keep_weight(c, 2, &own->dt_proj.weight);
    } else if (run == run_gemm_repack) {
        ls_gemm_repack_args *own = (ls_gemm_repack_args *)(void *)c->args;
        keep_weight(c, 0, &own->weight);
    } else if (data_bytes > 0) {
        ((move_args *)(void *)c->args)->from = c->args + args_bytes;
    }
    return c;
}

/* Behind the calls that wait; from here on the destination of a read is not what it was. */
static ls_status call_queue(deferred *d, call *c, ls_error *err) {
    const move_args *a = (const move_args *)(const void *)c->args;
    ls_arena_watch();
    LS_TRY(list_add(d->recording != NULL ? d->recording : &d->queue, c, err));
    if (c->run == run_read) memset(a->to, POISON, (size_t)a->bytes);
    return LS_OK;
}

static ls_status defer(deferred *d, const char *name, call_run *run, const void *args, int64_t args_bytes,
                       const void *data, int64_t data_bytes, ls_error *err) {
    call *c = call_make(name, run, args, args_bytes, data, data_bytes);
    ls_status status;
    if (c == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: a copy of %lld bytes", name, (long long)data_bytes);
    status = call_queue(d, c, err);
    if (status != LS_OK) free(c);
    return status;
}

#define OP(name)                                                                                             \
    static ls_status defer_##name(const ls_exec *exec, const struct ls_##name##_args *args, ls_error *err) { \
        return defer(deferred_with(exec), #name, run_##name, args, (int64_t)sizeof *args, NULL, 0, err);     \
    }
LS_OPS(OP)
#undef OP

/* ---- memory ---- */

static ls_status deferred_alloc(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    return ls_arena_alloc(deferred_of(device)->arena, out, bytes, what, err);
}

static void deferred_release(ls_device *device, void *memory) { ls_arena_release(deferred_of(device)->arena, memory); }

static void deferred_unreserve(ls_device *device, void *memory, int64_t bytes) {
    (void)bytes;
    ls_arena_release(deferred_of(device)->arena, memory);
}

/* The host's own, which it may look at behind a wait: before one it sees what was there. */
static ls_status deferred_pin(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    (void)device;
    LS_TRY(ls_array_alloc(out, bytes, 1, what, err));
    memset(*out, POISON, (size_t)bytes);
    return LS_OK;
}

static void deferred_unpin(ls_device *device, void *memory, int64_t bytes) {
    (void)device, (void)bytes;
    free(memory);
}

static ls_status deferred_drop(ls_device *device, void *memory, int64_t bytes, ls_error *err) {
    const fill_args args = {memory, 0, bytes};
    return defer(deferred_of(device), "drop", run_drop, &args, (int64_t)sizeof args, NULL, 0, err);
}

static ls_status deferred_memory(ls_device *device, ls_memory_state *out, ls_error *err) {
    return ls_backend_table_cpu.memory(device, out, err);
}

static ls_status deferred_write(ls_device *device, void *to, const void *host, int64_t bytes, ls_error *err) {
    const move_args args = {to, NULL, bytes};
    return defer(deferred_of(device), "write", run_move, &args, (int64_t)sizeof args, host, bytes, err);
}

/* Piece by piece through the host, as writes: a destination is no memory of the host's. */
static ls_status deferred_load(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                               void *context, ls_error *err) {
    void *piece = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc(&piece, bytes < piece_bytes ? bytes : piece_bytes, 1, "piece", err));
    for (int64_t at = 0; at < bytes; at += piece_bytes) {
        const int64_t n = bytes - at < piece_bytes ? bytes - at : piece_bytes;
        LS_TRY_DONE(source(context, piece, at, n, err));
        LS_TRY_DONE(deferred_write(device, (uint8_t *)to + at, piece, n, err));
    }
done:
    free(piece);
    return status;
}

static ls_status deferred_read(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    const move_args args = {host, from, bytes};
    return defer(deferred_of(device), "read", run_read, &args, (int64_t)sizeof args, NULL, 0, err);
}

static ls_status deferred_copy(ls_device *device, const ls_copy_args *args, ls_error *err) {
    return defer(deferred_of(device), "copy", run_copy, args, (int64_t)sizeof *args, NULL, 0, err);
}

static ls_status deferred_fill(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err) {
    const fill_args args = {to, byte, bytes};
    return defer(deferred_of(device), "fill", run_fill, &args, (int64_t)sizeof args, NULL, 0, err);
}

/* ---- wait ---- */

static ls_status run_all(deferred *d, ls_error *err) {
    for (int64_t i = 0; i < d->queue.n; i++) {
        const call *c = d->queue.calls[i];
        const ls_status status = c->run(&d->base, c->args, err);
        if (status == LS_OK) continue;
        ls_error_prefix(err, "call %lld, %s", (long long)(d->n_done + i + 1), c->name);
        return status;
    }
    return LS_OK;
}

static ls_status deferred_wait(ls_device *device, ls_error *err) {
    deferred *d = deferred_of(device);
    ls_status status;
    if (d->recording != NULL) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "deferred: a wait while calls are recorded");
    LS_TRY_DONE(ls_arena_open(d->arena, err));
    LS_TRY_DONE(run_all(d, err));
done:
    ls_arena_close(d->arena);
    d->n_done += d->queue.n;
    list_clear(&d->queue);
    return status;
}

/* ---- recordings ---- */

static ls_status deferred_record(ls_device *device, ls_error *err) {
    deferred *d = deferred_of(device);
    if (d->recording != NULL) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "deferred: record while calls are recorded");
    d->recording = calloc(1, sizeof *d->recording);
    return d->recording != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "deferred: recording");
}

static ls_status deferred_recorded(ls_device *device, void **recording, ls_error *err) {
    deferred *d = deferred_of(device);
    *recording = d->recording;
    if (d->recording == NULL) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "deferred: recorded without record");
    d->recording = NULL;
    return LS_OK;
}

static ls_status deferred_replay(ls_device *device, void *recording, ls_error *err) {
    const call_list *list = recording;
    for (int64_t i = 0; i < list->n; i++) LS_TRY(call_queue(deferred_of(device), list->calls[i], err));
    return LS_OK;
}

static void deferred_forget(ls_device *device, void *recording) {
    (void)device;
    if (recording == NULL) return;
    list_free(recording);
    free(recording);
}

/* ---- the table ---- */

static void deferred_close(ls_device *device) {
    deferred *d = deferred_of(device);
    deferred_forget(device, d->recording);
    list_free(&d->queue);
    ls_arena_free(d->arena);
    ls_workers_free(device->exec.workers);
    free(d);
}

static void deferred_describe(const ls_device *device, char *text, size_t bytes) {
    ls_workers_describe(device->exec.workers, "deferred", text, bytes);
}

#define OP(name) .name = defer_##name,
static const ls_backend_table table_deferred = {.title = "deferred",
                                                .block_bytes = LS_BLOCK_BYTES_CPU,
                                                .gradient_block_bytes = LS_BLOCK_BYTES_CPU,
                                                .close = deferred_close,
                                                .describe = deferred_describe,
                                                .alloc = deferred_alloc,
                                                .release = deferred_release,
                                                .reserve = deferred_alloc,
                                                .unreserve = deferred_unreserve,
                                                .drop = deferred_drop,
                                                .pin = deferred_pin,
                                                .unpin = deferred_unpin,
                                                .memory = deferred_memory,
                                                .write = deferred_write,
                                                .load = deferred_load,
                                                .read = deferred_read,
                                                .copy = deferred_copy,
                                                .fill = deferred_fill,
                                                .wait = deferred_wait,
                                                .record = deferred_record,
                                                .recorded = deferred_recorded,
                                                .replay = deferred_replay,
                                                .forget = deferred_forget,
                                                .pack_plan = ls_cpu_gemm_pack_plan,
                                                LS_OPS(OP)};
#undef OP

ls_status ls_device_open_deferred(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err) {
    deferred *d = calloc(1, sizeof *d);
    ls_status status;
    *out = NULL;
    if (d == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "device");
    d->base.table = &table_deferred;
    d->base.exec.backend = LS_BACKEND_CPU;
    LS_TRY_DONE(ls_workers_create(&d->base.exec.workers, n_threads, isa, err));
    LS_TRY_DONE(ls_arena_make(&d->arena, name_last_call, d, err));
    *out = &d->base;
    d = NULL;
done:
    if (d != NULL) ls_workers_free(d->base.exec.workers);
    free(d);
    return status;
}
