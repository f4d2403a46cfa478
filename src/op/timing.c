/* A table around a device's table. Owns rows and events; the device is borrowed. */
#define _POSIX_C_SOURCE 200809L
#include "op/timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "dev/device.h"
#include "op/gemm_backward.h"
#include "op/gemm_groups.h"

/* A call whose end the device has not been waited for. */
typedef struct pending {
    int64_t row;
    void *begin, *end; /* events */
} pending;

struct ls_timing {
    ls_backend_table table; /* first: a device's table leads here */
    const ls_backend_table *own;
    ls_device *device;
    bool uses_events;
    ls_timed_row *rows;
    int64_t n_rows, rows_cap;
    pending *pending;
    int64_t n_pending, pending_cap;
    void **spare; /* events that nothing waits for */
    int64_t n_spare, spare_cap;
    void *first, *last; /* events of begin and of the reading */
    double start_ms;
    ls_timed_row *sorted; /* what was read last */
};

static double clock_ms(void) { return 1e3 * ls_clock_seconds(); }

static ls_timing *timing_of(const ls_device *device) { return (ls_timing *)(uintptr_t)device->table; }

/* exec is that of a device. */
static ls_timing *timing_with(const ls_exec *exec) {
    return timing_of((const ls_device *)(const void *)((const char *)exec - offsetof(ls_device, exec)));
}

/* ---- rows ---- */

static ls_status row_of(ls_timing *t, int64_t *out, const char *name, ls_error *err) {
    for (*out = 0; *out < t->n_rows; ++*out)
        if (strcmp(t->rows[*out].name, name) == 0) return LS_OK;
    LS_TRY(ls_array_grow((void **)&t->rows, &t->rows_cap, t->n_rows + 1, (int64_t)sizeof *t->rows, "timing", err));
    t->rows[t->n_rows] = (ls_timed_row){0};
    snprintf(t->rows[t->n_rows++].name, LS_TIMED_NAME_MAX, "%s", name);
    return LS_OK;
}

static void add_timed_call(ls_timing *t, int64_t row, double ms) {
    t->rows[row].calls++;
    t->rows[row].ms += ms;
}

/* ---- events ---- */

static ls_status event_take(ls_timing *t, void **out, ls_error *err) {
    *out = NULL;
    if (t->n_spare > 0)
        *out = t->spare[--t->n_spare];
    else
        LS_TRY(ls_cuda_event_create(out, true, err));
    return LS_OK;
}

/* There is room: every event was spare once, or is made in event_pair. */
static void event_give(ls_timing *t, void *event) {
    if (event != NULL) t->spare[t->n_spare++] = event;
}

/* Two events, and room to give them and all others back. */
static ls_status event_pair(ls_timing *t, pending *out, ls_error *err) {
    const int64_t all = t->n_spare + 2 * t->n_pending + 2;
    ls_status status;
    *out = (pending){0};
    LS_TRY_DONE(ls_array_grow((void **)&t->spare, &t->spare_cap, all, (int64_t)sizeof(void *), "timing", err));
    LS_TRY_DONE(ls_array_grow((void **)&t->pending, &t->pending_cap, t->n_pending + 1, (int64_t)sizeof *t->pending,
                              "timing", err));
    LS_TRY_DONE(event_take(t, &out->begin, err));
    LS_TRY_DONE(event_take(t, &out->end, err));
done:
    if (status != LS_OK) event_give(t, out->begin);
    return status;
}

/* The device has been waited for. */
static ls_status read_pending(ls_timing *t, ls_error *err) {
    ls_status status = LS_OK;
    for (int64_t i = 0; i < t->n_pending; i++) {
        const pending *p = &t->pending[i];
        double ms = 0.0;
        if (status == LS_OK) status = ls_cuda_event_ms(&ms, p->begin, p->end, err);
        if (status == LS_OK) add_timed_call(t, p->row, ms);
        event_give(t, p->begin);
        event_give(t, p->end);
    }
    t->n_pending = 0;
    return status;
}

/* ---- a call ---- */

typedef struct call {
    ls_timing *timing;
    int64_t row;
    double start_ms;
    pending events;
} call;

static ls_status call_begin(call *c, ls_timing *t, const char *name, ls_error *err) {
    ls_status status;
    *c = (call){.timing = t};
    LS_TRY_DONE(row_of(t, &c->row, name, err));
    if (t->uses_events) {
        LS_TRY_DONE(event_pair(t, &c->events, err));
        c->events.row = c->row;
        status = ls_cuda_event_record(&t->device->exec, c->events.begin, err);
    }
    c->start_ms = clock_ms();
done:
    return status;
}

/* status: of the call between. */
static ls_status call_end(call *c, ls_status status, ls_error *err) {
    ls_timing *t = c->timing;
    if (!t->uses_events) {
        if (status == LS_OK) add_timed_call(t, c->row, clock_ms() - c->start_ms);
        return status;
    }
    if (status == LS_OK) status = ls_cuda_event_record(&t->device->exec, c->events.end, err);
    if (status == LS_OK) {
        t->pending[t->n_pending++] = c->events;
    } else {
        event_give(t, c->events.begin);
        event_give(t, c->events.end);
    }
    return status;
}

/* Makes the call between two readings of the clock. */
#define TIMED(timing, name, expression)                                                                 \
    do {                                                                                                \
        call call_;                                                                                     \
        ls_status status_ = call_begin(&call_, (timing), (name), err);                                  \
        return status_ != LS_OK ? call_end(&call_, status_, err) : call_end(&call_, (expression), err); \
    } while (0)

/* ---- ops ---- */

typedef char row_name[LS_TIMED_NAME_MAX];

static const char *by_size(row_name out, const char *op, int64_t n, int64_t k) {
    snprintf(out, LS_TIMED_NAME_MAX, "%s %lld x %lld", op, (long long)n, (long long)k);
    return out;
}

static const char *gemm_name(row_name out, const char *op, const void *args) {
    const ls_gemm_args *a = args;
    return by_size(out, op, a->weight->n, a->weight->k);
}

static const char *gemm_gated_name(row_name out, const char *op, const void *args) {
    const ls_gemm_gated_args *a = args;
    return by_size(out, op, a->up->n, a->up->k);
}

static const char *gemm_three_name(row_name out, const char *op, const void *args) {
    const ls_gemm_three_args *a = args;
    return by_size(out, op, a->first.weight->n, a->first.weight->k);
}

static const char *gemm_groups_name(row_name out, const char *op, const void *args) {
    const ls_gemm_groups_args *a = args;
    return by_size(out, op, a->weights[0]->n, a->weights[0]->k);
}

static const char *plain_name(row_name out, const char *op, const void *args) {
    (void)out, (void)args;
    return op;
}

#define NAME_OF(args) \
    _Generic((args), const struct ls_gemm_args *                   \
             : gemm_name, const struct ls_gemm_gated_args *        \
             : gemm_gated_name, const struct ls_gemm_three_args *         \
             : gemm_three_name, const struct ls_gemm_groups_args *         \
             : gemm_groups_name, default                            \
             : plain_name)

#define OP(op)                                                                                           \
    static ls_status timed_##op(const ls_exec *exec, const struct ls_##op##_args *args, ls_error *err) { \
        ls_timing *t = timing_with(exec);                                                                \
        row_name name;                                                                                   \
        TIMED(t, NAME_OF(args)(name, #op, args), t->own->op(exec, args, err));                           \
    }
LS_OPS(OP)
#undef OP

/* ---- memory ---- */

static ls_status timed_write(ls_device *device, void *to, const void *host, int64_t bytes, ls_error *err) {
    ls_timing *t = timing_of(device);
    TIMED(t, "write", t->own->write(device, to, host, bytes, err));
}

static ls_status timed_load(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                            void *context, ls_error *err) {
    ls_timing *t = timing_of(device);
    TIMED(t, "load", t->own->load(device, to, bytes, piece_bytes, source, context, err));
}

static ls_status timed_read(ls_device *device, void *host, const void *from, int64_t bytes, ls_error *err) {
    ls_timing *t = timing_of(device);
    TIMED(t, "read", t->own->read(device, host, from, bytes, err));
}

static ls_status timed_copy(ls_device *device, const ls_copy_args *args, ls_error *err) {
    ls_timing *t = timing_of(device);
    TIMED(t, "copy", t->own->copy(device, args, err));
}

static ls_status timed_fill(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err) {
    ls_timing *t = timing_of(device);
    TIMED(t, "fill", t->own->fill(device, to, byte, bytes, err));
}

static ls_status timed_wait(ls_device *device, ls_error *err) {
    ls_timing *t = timing_of(device);
    LS_TRY(t->own->wait(device, err));
    return read_pending(t, err);
}

static ls_status timed_replay(ls_device *device, void *recording, ls_error *err) {
    ls_timing *t = timing_of(device);
    TIMED(t, "replay", t->own->replay(device, recording, err));
}

/* A device is closed with its timing still open: the own table closes it. */
static void timed_close(ls_device *device) {
    ls_timing_end(timing_of(device));
    device->table->close(device);
}

/* ---- begin, read, end ---- */

static void wrap(ls_timing *t) {
    t->table = *t->own;
    t->table.close = timed_close;
    t->table.write = timed_write;
    t->table.load = timed_load;
    t->table.read = timed_read;
    t->table.copy = timed_copy;
    t->table.fill = timed_fill;
    t->table.wait = timed_wait;
    t->table.record = NULL;
    t->table.recorded = NULL;
    t->table.replay = t->own->replay != NULL ? timed_replay : NULL;
#define OP(op) t->table.op = t->own->op != NULL ? timed_##op : NULL;
    LS_OPS(OP)
#undef OP
    t->device->table = &t->table;
}

static ls_status begin_events(ls_timing *t, ls_error *err) {
    LS_TRY(ls_cuda_event_create(&t->first, true, err));
    LS_TRY(ls_cuda_event_create(&t->last, true, err));
    return ls_cuda_event_record(&t->device->exec, t->first, err);
}

ls_status ls_timing_begin(ls_timing **out, ls_device *device, ls_error *err) {
    const bool is_cpu = device->table == &ls_backend_table_cpu, is_cuda = device->exec.backend == LS_BACKEND_CUDA;
    ls_timing *t = NULL;
    ls_status status = LS_OK;
    *out = NULL;
    if (device->table->wait == timed_wait)
        return LS_FAIL(err, LS_ERR_ARG, "timing: the device %s is timed already", device->table->title);
    if (!is_cpu && !is_cuda)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "timing: not on %s, whose calls return before they run",
                       device->table->title);
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, (int64_t)sizeof *t, "timing", err));
    t->device = device;
    t->own = device->table;
    t->uses_events = is_cuda;
    LS_TRY_DONE(ls_device_wait(device, err));
    if (is_cuda) LS_TRY_DONE(begin_events(t, err));
    t->start_ms = clock_ms();
    wrap(t);
    *out = t;
    t = NULL;
done:
    ls_timing_end(t);
    return status;
}

static int longest_first(const void *a, const void *b) {
    const ls_timed_row *x = a, *y = b;
    return x->ms != y->ms ? (x->ms < y->ms) - (x->ms > y->ms) : strcmp(x->name, y->name);
}

ls_status ls_timing_read(ls_timing *t, const ls_timed_row **rows, int64_t *n, double *total_ms, ls_error *err) {
    ls_timed_row *sorted = NULL;
    if (t->uses_events) LS_TRY(ls_cuda_event_record(&t->device->exec, t->last, err));
    LS_TRY(ls_device_wait(t->device, err));
    *total_ms = clock_ms() - t->start_ms;
    if (t->uses_events) LS_TRY(ls_cuda_event_ms(total_ms, t->first, t->last, err));
    LS_TRY(ls_array_alloc((void **)&sorted, t->n_rows, (int64_t)sizeof *sorted, "timing", err));
    if (t->n_rows > 0) memcpy(sorted, t->rows, (size_t)t->n_rows * sizeof *sorted);
    qsort(sorted, (size_t)t->n_rows, sizeof *sorted, longest_first);
    free(t->sorted);
    *rows = t->sorted = sorted;
    *n = t->n_rows;
    return LS_OK;
}

void ls_timing_end(ls_timing *t) {
    if (t == NULL) return;
    if (t->device->table == &t->table) {
        (void)ls_device_wait(t->device, NULL); /* an error of calls that nobody waited for is nobody's */
        t->device->table = t->own;
    }
    for (int64_t i = 0; i < t->n_spare; i++) ls_cuda_event_free(t->spare[i]);
    for (int64_t i = 0; i < t->n_pending; i++) {
        ls_cuda_event_free(t->pending[i].begin);
        ls_cuda_event_free(t->pending[i].end);
    }
    ls_cuda_event_free(t->first);
    ls_cuda_event_free(t->last);
    free((void *)t->spare);
    free(t->pending);
    free(t->rows);
    free(t->sorted);
    free(t);
}
