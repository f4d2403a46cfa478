/* Launch contracts: what a kernel multiplies to address memory, evaluated in 128 bits before it runs.
 *
 * A kernel states its grid and each index expression as a sum of products of named values, every one at its largest,
 * with the width the kernel computes it in. A launch whose expression could pass that width is refused with names and
 * values: "scan: uint32 slot * stride = 69775 * 89600 = 6251840000 passes 4294967295". */
#ifndef LS_DEV_LAUNCH_H
#define LS_DEV_LAUNCH_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_width { LS_WIDTH_I32, LS_WIDTH_U32, LS_WIDTH_I64 } ls_width;

/* Unused factors have no name. */
typedef struct ls_factor {
    const char *name;
    int64_t value; /* the largest one, >= 0 */
} ls_factor;

#define LS_FACTORS_MAX 4
#define LS_TERMS_MAX 4

typedef struct ls_index {
    ls_width width;
    ls_factor terms[LS_TERMS_MAX][LS_FACTORS_MAX]; /* a sum of products; a term without factors ends it */
} ls_index;

typedef struct ls_launch {
    const char *kernel;
    int64_t grid[3], threads, shared_bytes;
    const ls_index *index;
    int64_t n_index;
} ls_launch;

/* a * b * c, all not negative; INT64_MAX, which no grid takes, where that does not fit. */
static inline int64_t ls_launch_blocks(int64_t a, int64_t b, int64_t c) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ? INT64_MAX : product;
}

/* Grid within 2^31 - 1, 65,535 and 65,535 blocks, 1 to 1,024 threads, shared memory within shared_max, and every index
 * expression within its width. */
ls_status ls_launch_check(const ls_launch *launch, int64_t shared_max, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
