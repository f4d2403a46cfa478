/* Allocation with checked sizes. Every size that comes from a file or a request passes through here. */
#ifndef LS_BASE_MEM_H
#define LS_BASE_MEM_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *out = a * b, or false when a or b is negative or the product exceeds INT64_MAX; *out means nothing
 * then. */
static inline bool ls_mul_i64(int64_t a, int64_t b, int64_t *out) {
    const bool over = __builtin_mul_overflow(a, b, out);
    return a >= 0 && b >= 0 && !over;
}
/* *out = a + b, or false when a or b is negative or the sum exceeds INT64_MAX; likewise. */
static inline bool ls_add_i64(int64_t a, int64_t b, int64_t *out) {
    const bool over = __builtin_add_overflow(a, b, out);
    return a >= 0 && b >= 0 && !over;
}
static inline int64_t ls_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ls_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
/* a * b * c, or -1 when one is negative or the product exceeds INT64_MAX. */
static inline int64_t ls_mul3_i64(int64_t a, int64_t b, int64_t c) {
    int64_t out;
    return ls_mul_i64(a, b, &out) && ls_mul_i64(out, c, &out) ? out : -1;
}
/* Takes `count` of what is counted in *total, which is -1 from then on where that cannot be; where they begin. */
static inline int64_t ls_take_i64(int64_t *total, int64_t count) {
    const int64_t at = *total;
    if (!ls_add_i64(at, count, total)) *total = -1;
    return at;
}

/* Zeroed array of count elements of elem_bytes each, 64-byte aligned, released with free(). count 0 gives a valid
 * pointer. `what` names the array in the error. */
ls_status ls_array_alloc(void **out, int64_t count, int64_t elem_bytes, const char *what, ls_error *err);

/* Address space for count elements of elem_bytes each, 4096-byte aligned, zero, backed by memory page by page where it
 * is first touched, so that a large pool costs what is used of it. NULL for no bytes. */
ls_status ls_region_map(void **out, int64_t count, int64_t elem_bytes, const char *what, ls_error *err);
void ls_region_unmap(void *region, int64_t bytes); /* accepts NULL */
/* Gives memory back as far as it covers whole system pages; they read as zero. */
void ls_region_drop(void *begin, int64_t bytes);

/* Zeroed memory, 64-byte aligned; a large one costs what is touched of it. */
typedef struct ls_sparse {
    void *data;
    int64_t bytes;
    bool is_mapped;
} ls_sparse;
ls_status ls_sparse_alloc(ls_sparse *out, int64_t bytes, const char *what, ls_error *err);
void ls_sparse_free(ls_sparse *memory); /* accepts what is all zero */

/* Grows *array to hold at least need elements (doubling), keeping its content; *cap is the capacity in elements. */
ls_status ls_array_grow(void **array, int64_t *cap, int64_t need, int64_t elem_bytes, const char *what, ls_error *err);

/* Copy of text of `bytes` bytes with a terminating NUL, released with free(). */
ls_status ls_text_copy(char **out, const char *text, int64_t bytes, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
