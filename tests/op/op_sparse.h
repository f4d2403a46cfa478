/* A pool of 69,776 slots of 358,400 bytes, 25 GB of addresses of which only the touched pages exist: element offsets
 * pass 2^32 at slot 47,935, byte offsets long before. A slot is one of a layer with d_inner 5,120, d_conv 4 and d_state
 * 16: the bf16 convolution window [3][5120], then the scan state [5120][16]. The file that includes this defines
 * _GNU_SOURCE. */
#ifndef LS_TESTS_OP_SPARSE_H
#define LS_TESTS_OP_SPARSE_H

#include <sys/mman.h>

#include "op/op_case.h"

#define SPARSE_DIM 5120
#define SPARSE_STATES 16
#define SPARSE_CONV 4
#define SPARSE_SLOTS 69776
#define SPARSE_STRIDE 358400
#define SPARSE_CONV_BYTES ((SPARSE_CONV - 1) * SPARSE_DIM * 2)

static const int32_t sparse_slots[] = {0, 47662, 47663, 47934, 47935, 69775};
#define SPARSE_LISTED OP_COUNT(sparse_slots)

/* The listed slots are poison, the others zero. Skips the case where the address space does not allow it. */
static inline ls_pool_view sparse_open(void) {
    ls_pool_view pool = {NULL, SPARSE_STRIDE, SPARSE_SLOTS};
    void *base = mmap(NULL, (size_t)SPARSE_SLOTS * SPARSE_STRIDE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        print_message("skipped: 25 GB of addresses are not to be had here\n");
        skip();
    }
    pool.base = base;
    for (int64_t i = 0; i < SPARSE_LISTED; i++)
        memset(pool.base + (int64_t)sparse_slots[i] * SPARSE_STRIDE, OP_POISON, SPARSE_STRIDE);
    return pool;
}

static inline void sparse_close(const ls_pool_view *pool) { munmap(pool->base, (size_t)SPARSE_SLOTS * SPARSE_STRIDE); }

/* Listed slots whose content is not expected[i] at bytes [from, from + bytes) and poison elsewhere, or whose neighbours
 * were touched at their ends; text (200 bytes) names the first. */
static inline int64_t sparse_damage(const ls_pool_view *pool, const op_array *expected, int64_t from, char *text) {
    const int64_t bytes = expected->cols * ls_dtype_bytes(expected->dtype);
    int64_t n_bad = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < SPARSE_LISTED; i++) {
        const int64_t start = (int64_t)sparse_slots[i] * SPARSE_STRIDE;
        const uint8_t *slot = pool->base + start;
        int64_t bad = 0;
        for (int64_t b = 0; b < SPARSE_STRIDE; b++) {
            const bool inside = b >= from && b < from + bytes;
            bad += slot[b] != (inside ? ((const uint8_t *)op_at(expected, i, 0))[b - from] : OP_POISON);
        }
        if (i > 0 && sparse_slots[i - 1] != sparse_slots[i] - 1)
            for (int64_t b = 1; b <= 4096; b++) bad += slot[-b] != 0;
        if (i + 1 < SPARSE_LISTED && sparse_slots[i + 1] != sparse_slots[i] + 1)
            for (int64_t b = 0; b < 4096; b++) bad += slot[SPARSE_STRIDE + b] != 0;
        if (bad > 0 && n_bad++ == 0) snprintf(text, 200, "slot %d: %lld bytes differ", sparse_slots[i], (long long)bad);
    }
    return n_bad;
}

/* The accessor as it must not be written: the element offset wraps in 32 bits. */
static inline void *sparse_narrow_at(const ls_pool_view *pool, int32_t entry) {
    const uint32_t element = (uint32_t)entry * (uint32_t)(pool->stride / 4);
    return pool->base + (size_t)element * 4;
}

/* Slots from the first wrong one on, of the whole pool. */
static inline void sparse_explain(const ls_pool_view *pool, void *(*at)(const ls_pool_view *, int32_t), char *text,
                                  size_t text_n) {
    int32_t first = 0;
    while (first < SPARSE_SLOTS && at(pool, first) == ls_pool_at(pool, first)) first++;
    snprintf(text, text_n, "first bad slot %d, %.1f %% of %d slots", first,
             100.0 * (double)(SPARSE_SLOTS - first) / SPARSE_SLOTS, SPARSE_SLOTS);
}

/* The negative control: states stored through the wrong accessor are damage that sparse_damage() sees, and stored
 * through ls_pool_at they are none. `view` is the part of the slots that starts `from` bytes in. */
static inline void sparse_control(const ls_pool_view *pool, const op_array *expected, int64_t from) {
    ls_pool_view view = *pool;
    char damage[200], why[200];
    const size_t bytes = (size_t)(expected->cols * ls_dtype_bytes(expected->dtype));
    view.base += from;
    for (int64_t i = 0; i < SPARSE_LISTED; i++) {
        memset(ls_pool_at(pool, sparse_slots[i]), OP_POISON, SPARSE_STRIDE);
        memcpy(ls_pool_at(&view, sparse_slots[i]), op_at(expected, i, 0), bytes);
    }
    assert_int_equal(sparse_damage(pool, expected, from, damage), 0);
    for (int64_t i = 0; i < SPARSE_LISTED; i++) memset(ls_pool_at(pool, sparse_slots[i]), OP_POISON, SPARSE_STRIDE);
    for (int64_t i = 0; i < SPARSE_LISTED; i++)
        memcpy(sparse_narrow_at(&view, sparse_slots[i]), op_at(expected, i, 0), bytes);
    assert_true(sparse_damage(pool, expected, from, damage) >= 2);
    sparse_explain(&view, sparse_narrow_at, why, sizeof why);
    print_message("offsets of 32 bits, caught: %s; %s\n", damage, why);
    assert_string_equal(why, "first bad slot 47935, 31.3 % of 69776 slots");
}

#endif
