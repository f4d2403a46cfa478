/* Memory of devices: every allocation is written into the device's ledger, and one that fails says what was asked
 * for, what there is and what holds the rest. */
#include "op/memory.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/shared.h"

static ls_status size_of(int64_t *bytes, int64_t count, int64_t elem_bytes, const char *what, ls_error *err) {
    if (ls_mul_i64(count, elem_bytes, bytes)) return LS_OK;
    return LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld elements of %lld bytes do not fit 64 bits", what, (long long)count,
                   (long long)elem_bytes);
}

double ls_mib(int64_t bytes) { return (double)bytes / (double)(1 << 20); }

/* ---- how much there is ---- */

/* Of a context, its code and its libraries: what a process takes beside its allocations. */
#define CONTEXT_BYTES_MAX ((int64_t)1536 << 20)

ls_status ls_device_memory(ls_device *device, ls_memory_state *out, ls_error *err) {
    const ls_ledger *l = &device->ledger;
    memset(out, 0, sizeof *out);
    LS_TRY(device->table->memory(device, out, err));
    out->used = l->used;
    out->used_max = l->used_max;
    out->pinned = l->pinned;
    out->n_allocations = l->n_allocations;
    if (device->limit > 0) {
        out->is_limited = true;
        out->total = device->limit;
        out->free = device->limit > l->used ? device->limit - l->used : 0;
        out->kept = 0;
    }
    return LS_OK;
}

int64_t ls_memory_of_others(const ls_memory_state *state) {
    const int64_t bytes = state->total - state->free - state->used - CONTEXT_BYTES_MAX;
    return state->is_limited && bytes > 0 ? bytes : 0;
}

void ls_device_limit(ls_device *device, int64_t bytes) { device->limit = bytes; }

ls_status ls_memory_trim(ls_device *device, ls_error *err) {
    LS_TRY(device->table->wait(device, err));
    return device->table->trim == NULL ? LS_OK : device->table->trim(device, err);
}

/* ---- out of memory ---- */

/* Settings that make smaller what an allocation is for, as users know them. */
typedef struct hint {
    const char *what, *smaller;
} hint;

static const hint hints[] = {
    {"KV pages", "--pages, --batch or --max-length"},
    {"state slots", "--slots, --batch or --prefix-memory"},
    {"workspace", "--tick-tokens or --batch, in training rows_max or microbatch"},
    {"residual stream", "--tick-tokens or --batch, in training rows_max or microbatch"},
    {"head", "--batch"},
    {"swap", "--swap-memory or --batch"},
    {"tape", "rows_max, microbatch or recompute=true"},
    {"training workspace", "rows_max, microbatch or recompute=true"},
    {"gradient", "a smaller model, or more processes"},
    {"trainer", "a smaller model"},
    {"parameters", "a smaller model"},
    {"weights", "a smaller model, or weights in bf16"},
    {"gemm weight", "a smaller model, or weights in bf16"},
    {"tensor", "a smaller model, or weights in bf16"},
};

static const char *smaller_with(const char *what) {
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (strcmp(hints[i].what, what) == 0) return hints[i].smaller;
    return "--batch or --tick-tokens";
}

#define HOLDERS_MAX 8

/* What holds most of the memory, up to `most` names: "2048.0 MiB of weights, .." */
static void list_holders(char *text, size_t bytes, const ls_ledger *ledger, int64_t most) {
    ls_ledger_sum sums[HOLDERS_MAX];
    const int64_t n = ls_ledger_largest(ledger, sums, most);
    size_t used = 0;
    snprintf(text, bytes, "nothing");
    for (int64_t i = 0; i < n && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%.1f MiB of %s", i == 0 ? "" : ", ",
                                 ls_mib(sums[i].bytes), sums[i].what);
}

void ls_memory_tell(const ls_device *device, char *text, size_t bytes) {
    char holders[320];
    list_holders(holders, sizeof holders, &device->ledger, HOLDERS_MAX);
    snprintf(text, bytes, "%.1f MiB of memory: %s", ls_mib(device->ledger.used), holders);
}

static ls_status out_of_memory(ls_device *device, int64_t bytes, const char *what, ls_error *err) {
    ls_memory_state state;
    char holders[160], others[96] = "";
    LS_TRY(ls_device_memory(device, &state, err));
    list_holders(holders, sizeof holders, &device->ledger, 3);
    if (ls_memory_of_others(&state) > 0)
        snprintf(others, sizeof others, ", other processes about %.1f MiB", ls_mib(ls_memory_of_others(&state)));
    return LS_FAIL(err, LS_ERR_NOMEM,
                   "%s: %s: out of memory: %lld bytes (%.1f MiB) are asked for, %.1f of %.1f MiB are free; this "
                   "process holds %s%s; smaller with %s",
                   device->table->title, what, (long long)bytes, ls_mib(bytes), ls_mib(state.free), ls_mib(state.total),
                   holders, others, smaller_with(what));
}

/* ---- allocations ---- */

typedef ls_status taking(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err);

static bool is_within_limit(const ls_device *device, int64_t bytes) {
    return device->limit == 0 || bytes <= device->limit - device->ledger.used;
}

static ls_status take_memory(ls_device *device, taking *how, bool is_pinned, void **out, int64_t bytes,
                             const char *what, ls_error *err) {
    ls_memory_state state;
    ls_status status = LS_ERR_NOMEM;
    LS_TRY(ls_ledger_assure(&device->ledger, err));
    if (is_pinned || is_within_limit(device, bytes)) {
        status = how(device, out, bytes, what, err);
    } else {
        LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld bytes", what, (long long)bytes);
    }
    if (status == LS_OK && *out != NULL) ls_ledger_add(&device->ledger, *out, bytes, is_pinned, what);
    if (status != LS_ERR_NOMEM || is_pinned) return status;
    if (ls_device_memory(device, &state, NULL) != LS_OK || !state.is_limited) return status;
    return out_of_memory(device, bytes, what, err);
}

ls_status ls_memory_alloc(ls_device *device, void **out, int64_t count, int64_t elem_bytes, const char *what,
                          ls_error *err) {
    int64_t bytes;
    *out = NULL;
    LS_TRY(size_of(&bytes, count, elem_bytes, what, err));
    return take_memory(device, device->table->alloc, false, out, bytes, what, err);
}

void ls_memory_free(ls_device *device, void *memory) {
    if (memory == NULL) return;
    ls_ledger_remove(&device->ledger, memory);
    device->table->release(device, memory);
}

ls_status ls_memory_reserve(ls_device *device, void **out, int64_t count, int64_t elem_bytes, const char *what,
                            ls_error *err) {
    int64_t bytes;
    *out = NULL;
    LS_TRY(size_of(&bytes, count, elem_bytes, what, err));
    return take_memory(device, device->table->reserve, false, out, bytes, what, err);
}

void ls_memory_unreserve(ls_device *device, void *memory, int64_t bytes) {
    if (memory == NULL) return;
    ls_ledger_remove(&device->ledger, memory);
    device->table->unreserve(device, memory, bytes);
}

ls_status ls_memory_pin(ls_device *device, void **out, int64_t count, int64_t elem_bytes, const char *what,
                        ls_error *err) {
    int64_t bytes;
    *out = NULL;
    LS_TRY(size_of(&bytes, count, elem_bytes, what, err));
    return take_memory(device, device->table->pin, true, out, bytes, what, err);
}

void ls_memory_unpin(ls_device *device, void *memory, int64_t bytes) {
    if (memory == NULL) return;
    /* A copy may still reach it; an error of that copy is the next wait's too. */
    (void)device->table->wait(device, NULL);
    ls_ledger_remove(&device->ledger, memory);
    device->table->unpin(device, memory, bytes);
}

/* ---- memory of several processes ---- */

/* `taking`, of the shared memory whose first field `out` is. */
static ls_status share_memory(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    ls_shared *shared = (ls_shared *)(void *)out;
    shared->bytes = shared->name.bytes = bytes;
    return device->table->share(device, shared, what, err);
}

ls_status ls_memory_share(ls_device *device, ls_shared *out, int64_t bytes, const char *what, ls_error *err) {
    memset(out, 0, sizeof *out);
    if (device->table->share == NULL)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %s: this back end has no memory that processes share",
                       device->table->title, what);
    LS_TRY(ls_machine_name(out->name.machine, err));
    return take_memory(device, share_memory, false, &out->memory, bytes > 0 ? bytes : 1, what, err);
}

void ls_memory_unshare(ls_device *device, ls_shared *shared) {
    if (shared->memory == NULL) return;
    (void)device->table->wait(device, NULL);
    ls_ledger_remove(&device->ledger, shared->memory);
    device->table->unshare(device, shared);
    memset(shared, 0, sizeof *shared);
}

ls_status ls_memory_map(ls_device *device, ls_shared *out, const ls_shared_name *name, ls_error *err) {
    char machine[LS_MACHINE_BYTES];
    memset(out, 0, sizeof *out);
    LS_TRY(ls_machine_name(machine, err));
    if (memcmp(machine, name->machine, sizeof machine) != 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "its memory is on another machine");
    LS_ASSERT(device->table->map != NULL, "%s", device->table->title);
    out->bytes = name->bytes;
    out->name = *name;
    return device->table->map(device, out, err);
}

void ls_memory_unmap(ls_device *device, ls_shared *shared) {
    if (shared->memory == NULL) return;
    (void)device->table->wait(device, NULL);
    device->table->unmap(device, shared);
    memset(shared, 0, sizeof *shared);
}
