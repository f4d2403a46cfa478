/* Checked size arithmetic and the few allocators that use it. */
#define _DEFAULT_SOURCE
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LS_ALIGN_BYTES 64

ls_status ls_array_alloc(void **out, int64_t count, int64_t elem_bytes, const char *what, ls_error *err) {
    int64_t bytes, padded;
    void *array;
    *out = NULL;
    if (!ls_mul_i64(count, elem_bytes, &bytes) || !ls_add_i64(bytes, 2 * LS_ALIGN_BYTES, &padded))
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld elements of %lld bytes do not fit 64-bit arithmetic", what,
                       (long long)count, (long long)elem_bytes);
    padded = (padded - LS_ALIGN_BYTES) / LS_ALIGN_BYTES * LS_ALIGN_BYTES;
    array = aligned_alloc(LS_ALIGN_BYTES, (size_t)padded);
    if (array == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot allocate %lld bytes", what, (long long)bytes);
    memset(array, 0, (size_t)padded);
    *out = array;
    return LS_OK;
}

ls_status ls_region_map(void **out, int64_t count, int64_t elem_bytes, const char *what, ls_error *err) {
    int64_t bytes;
    void *region;
    *out = NULL;
    if (!ls_mul_i64(count, elem_bytes, &bytes))
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld elements of %lld bytes do not fit 64-bit arithmetic", what,
                       (long long)count, (long long)elem_bytes);
    if (bytes == 0) return LS_OK;
    region = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot map %lld bytes", what, (long long)bytes);
    *out = region;
    return LS_OK;
}

void ls_region_unmap(void *region, int64_t bytes) {
    if (region != NULL) LS_ASSERT(munmap(region, (size_t)bytes) == 0, "region of %lld bytes", (long long)bytes);
}

void ls_region_drop(void *begin, int64_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)begin + page - 1) / page * page;
    const uintptr_t last = ((uintptr_t)begin + (uintptr_t)bytes) / page * page;
    if (first < last)
        LS_ASSERT(madvise((void *)first, last - first, MADV_DONTNEED) == 0, "drop of %lld bytes", (long long)bytes);
}

/* A mapping costs a call of the system and whole pages of it. */
#define SPARSE_BYTES ((int64_t)65536)

ls_status ls_sparse_alloc(ls_sparse *out, int64_t bytes, const char *what, ls_error *err) {
    *out = (ls_sparse){.bytes = bytes, .is_mapped = bytes >= SPARSE_BYTES};
    return out->is_mapped ? ls_region_map(&out->data, bytes, 1, what, err)
                          : ls_array_alloc(&out->data, bytes, 1, what, err);
}

void ls_sparse_free(ls_sparse *m) {
    if (m->is_mapped)
        ls_region_unmap(m->data, m->bytes);
    else
        free(m->data);
    *m = (ls_sparse){0};
}

ls_status ls_array_grow(void **array, int64_t *cap, int64_t need, int64_t elem_bytes, const char *what, ls_error *err) {
    int64_t next = *cap < 16 ? 16 : *cap, bytes;
    void *grown;
    if (need <= *cap) return LS_OK;
    while (next < need)
        if (!ls_mul_i64(next, 2, &next)) return LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld elements", what, (long long)need);
    if (!ls_mul_i64(next, elem_bytes, &bytes))
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld elements of %lld bytes do not fit 64-bit arithmetic", what,
                       (long long)next, (long long)elem_bytes);
    grown = realloc(*array, (size_t)bytes);
    if (grown == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot allocate %lld bytes", what, (long long)bytes);
    *array = grown;
    *cap = next;
    return LS_OK;
}

ls_status ls_text_copy(char **out, const char *text, int64_t bytes, ls_error *err) {
    int64_t total;
    *out = NULL;
    if (!ls_add_i64(bytes, 1, &total)) return LS_FAIL(err, LS_ERR_NOMEM, "text of %lld bytes", (long long)bytes);
    *out = malloc((size_t)total);
    if (*out == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "text: cannot allocate %lld bytes", (long long)total);
    if (bytes > 0) memcpy(*out, text, (size_t)bytes);
    (*out)[bytes] = '\0';
    return LS_OK;
}
