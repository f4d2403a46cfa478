/* The profile mma16 on the CPU: the split of the outputs over threads. */
#include "op/cpu/gemm_mma16.h"

LS_KERNEL_TABLE_OF(ls_grid_kernel, ls_mma16_kernel); /* args: ls_mma16_chain */

/* Below this many products a part is not worth waking a thread for. */
#define PART_PRODUCTS_MIN (1 << 15)

void ls_mma16_run(ls_workers *workers, const ls_mma16_chain *chain) {
    const int64_t steps = chain->segments[chain->n_segments] - chain->segments[0];
    const ls_grid grid = {.rows = chain->rows,
                          .cols = chain->cols,
                          .operations = (double)chain->rows * (double)chain->cols * (double)steps,
                          .part_min = PART_PRODUCTS_MIN,
                          .cols_first = true}; /* then each panel is decoded by one thread */
    ls_grid_run(workers, ls_mma16_kernel_table, chain, &grid);
}
