/* The CPU as a back end: calls have run when they return, and device memory is the host's. */
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "op/cpu/cpu_ops.h"

/* Arrays of this size and more lie on huge pages where the system grants them: a product reads several panels of a
 * weight side by side, and with 4 KB pages address translation is what a lone row waits for. */
#define HUGE_PAGE_BYTES (2 << 20)
/* Of the others. */
#define ALIGN_BYTES 256

/* What the allocator has lies in front of an array. calloc knows whether the system's pages are zero already: a large
 * array is then zeroed page by page where threads first touch it, not by one thread that all others wait for. */
static ls_status cpu_alloc(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    const int64_t align = bytes < 2 * HUGE_PAGE_BYTES ? ALIGN_BYTES : HUGE_PAGE_BYTES;
    int64_t padded;
    void *taken = NULL;
    (void)device;
    *out = NULL;
    if (ls_add_i64(bytes == 0 ? 1 : bytes, align, &padded)) taken = calloc(1, (size_t)padded);
    if (taken == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot allocate %lld bytes", what, (long long)bytes);
    *out = (void *)(((uintptr_t)taken / (uintptr_t)align + 1) * (uintptr_t)align);
    ((void **)*out)[-1] = taken;
#ifdef MADV_HUGEPAGE
    /* Advice: refused, the panels are only slower. */
    if (align == HUGE_PAGE_BYTES) (void)madvise(*out, (size_t)(bytes / align * align), MADV_HUGEPAGE);
#endif
    return LS_OK;
}

static void cpu_release(ls_device *device, void *memory) {
    (void)device;
    free(((void **)memory)[-1]);
}

static ls_status cpu_reserve(ls_device *device, void **out, int64_t bytes, const char *what, ls_error *err) {
    (void)device;
    return ls_region_map(out, bytes, 1, what, err);
}

static void cpu_unreserve(ls_device *device, void *memory, int64_t bytes) {
    (void)device;
    ls_region_unmap(memory, bytes);
}

static ls_status cpu_drop(ls_device *device, void *memory, int64_t bytes, ls_error *err) {
    (void)device, (void)err;
    ls_region_drop(memory, bytes);
    return LS_OK;
}

/* ---- memory of several processes: its place is the region as its maker has it ---- */

_Static_assert(sizeof(ls_shared_region) <= LS_SHARED_PLACE_BYTES, "a place holds a region");

static ls_status cpu_share(ls_device *device, ls_shared *shared, const char *what, ls_error *err) {
    ls_shared_region region;
    (void)device;
    LS_TRY(ls_shared_region_make(&region, shared->bytes, what, err));
    shared->memory = region.memory;
    memcpy(shared->name.place, &region, sizeof region);
    return LS_OK;
}

static void cpu_unshare(ls_device *device, ls_shared *shared) {
    ls_shared_region region;
    (void)device;
    memcpy(&region, shared->name.place, sizeof region);
    ls_shared_region_drop(&region);
}

static ls_status cpu_map(ls_device *device, ls_shared *shared, ls_error *err) {
    ls_shared_region maker, region;
    (void)device;
    memcpy(&maker, shared->name.place, sizeof maker);
    LS_TRY(ls_shared_region_map(&region, maker.process, maker.number, shared->bytes, err));
    shared->memory = region.memory;
    return LS_OK;
}

static void cpu_unmap(ls_device *device, ls_shared *shared) {
    ls_shared_region region = {shared->memory, shared->bytes, 0, -1};
    (void)device;
    ls_shared_region_drop(&region);
}

/* Pools are no memory until they are touched, so that nothing here is a limit. */
static ls_status cpu_memory(ls_device *device, ls_memory_state *out, ls_error *err) {
    const int64_t page = sysconf(_SC_PAGESIZE), total = sysconf(_SC_PHYS_PAGES), free_pages = sysconf(_SC_AVPHYS_PAGES);
    (void)device;
    if (!ls_mul_i64(total, page, &out->total) || !ls_mul_i64(free_pages, page, &out->free))
        return LS_FAIL(err, LS_ERR_DEVICE, "cpu: the system does not tell its memory");
    return LS_OK;
}

static ls_status cpu_move(ls_device *device, void *to, const void *from, int64_t bytes, ls_error *err) {
    (void)device, (void)err;
    memcpy(to, from, (size_t)bytes);
    return LS_OK;
}

static ls_status cpu_load(ls_device *device, void *to, int64_t bytes, int64_t piece_bytes, ls_memory_source source,
                          void *context, ls_error *err) {
    ls_status status = LS_OK;
    (void)device;
    for (int64_t at = 0; at < bytes && status == LS_OK; at += piece_bytes)
        status = source(context, (uint8_t *)to + at, at, bytes - at < piece_bytes ? bytes - at : piece_bytes, err);
    return status;
}

static ls_status cpu_copy(ls_device *device, const ls_copy_args *a, ls_error *err) {
    (void)device, (void)err;
    for (int64_t i = 0; i < a->rows; i++)
        memcpy((uint8_t *)a->to + i * a->to_stride, (const uint8_t *)a->from + i * a->from_stride,
               (size_t)a->row_bytes);
    return LS_OK;
}

static ls_status cpu_fill(ls_device *device, void *to, int byte, int64_t bytes, ls_error *err) {
    (void)device, (void)err;
    memset(to, byte, (size_t)bytes);
    return LS_OK;
}

static ls_status cpu_wait(ls_device *device, ls_error *err) {
    (void)device, (void)err;
    return LS_OK;
}

static void cpu_close(ls_device *device) {
    ls_workers_free(device->exec.workers);
    free(device);
}

static void cpu_describe(const ls_device *device, char *text, size_t bytes) {
    ls_workers_describe(device->exec.workers, "cpu", text, bytes);
}

/* A device with these workers, which it owns. */
static ls_status open_with(ls_device **out, ls_workers *workers, ls_error *err) {
    ls_device *device = calloc(1, sizeof *device);
    *out = device;
    if (device == NULL) {
        ls_workers_free(workers);
        return LS_FAIL(err, LS_ERR_NOMEM, "device");
    }
    device->table = &ls_backend_table_cpu;
    device->exec.backend = LS_BACKEND_CPU;
    device->exec.workers = workers;
    return LS_OK;
}

ls_status ls_device_open_cpu(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err) {
    ls_workers *workers;
    *out = NULL;
    LS_TRY(ls_workers_create(&workers, n_threads, isa, err));
    return open_with(out, workers, err);
}

/* All devices of the CPU share their memory. */
static ls_status cpu_open_beside(ls_device **out, const ls_device *home, int32_t n_threads, ls_isa isa, ls_error *err) {
    (void)home;
    return ls_device_open_cpu(out, n_threads, isa, err);
}

static ls_status cpu_open_sharing(ls_device **out, const ls_device *home, int32_t n_most, ls_error *err) {
    ls_workers *workers;
    *out = NULL;
    LS_TRY(ls_workers_create_beside(&workers, home->exec.workers, n_most, err));
    return open_with(out, workers, err);
}

#define OP(name) .name = ls_cpu_##name,
const ls_backend_table ls_backend_table_cpu = {.title = "cpu",
                                               .block_bytes = LS_BLOCK_BYTES_CPU,
                                               .gradient_block_bytes = LS_BLOCK_BYTES_CPU,
                                               .close = cpu_close,
                                               .describe = cpu_describe,
                                               .open_beside = cpu_open_beside,
                                               .open_sharing = cpu_open_sharing,
                                               .alloc = cpu_alloc,
                                               .release = cpu_release,
                                               .reserve = cpu_reserve,
                                               .unreserve = cpu_unreserve,
                                               .drop = cpu_drop,
                                               .pin = cpu_reserve,
                                               .unpin = cpu_unreserve,
                                               .share = cpu_share,
                                               .unshare = cpu_unshare,
                                               .map = cpu_map,
                                               .unmap = cpu_unmap,
                                               .memory = cpu_memory,
                                               .write = cpu_move,
                                               .load = cpu_load,
                                               .read = cpu_move,
                                               .copy = cpu_copy,
                                               .fill = cpu_fill,
                                               .wait = cpu_wait,
                                               .pack_plan = ls_cpu_gemm_pack_plan,
                                               LS_OPS(OP)};
#undef OP
