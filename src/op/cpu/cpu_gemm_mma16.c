/* The profile mma16 on the CPU: the split of the outputs over threads. */
#include "op/cpu/gemm_mma16.h"
#include "op/cpu/grid.h"

LS_KERNEL_TABLE_OF(ls_mma16_kernel, ls_mma16_kernel);

/* Below this many products a part is not worth waking a thread for. */
#define PART_PRODUCTS_MIN (1 << 15)

/* Rows of a part: the second factor is decoded once for all rows of a part. */
#define ROW_UNIT 8

typedef struct job {
    const ls_mma16_chain *chain;
    const ls_mma16_kernel *kernel;
    const ls_workers *workers;
    int64_t row_parts, col_parts, row_units, col_units;
} job;

static int64_t part_begin(int64_t units, int64_t part, int64_t parts, int64_t unit, int64_t limit) {
    const int64_t at = units * part / parts * unit;
    return at < limit ? at : limit;
}

static void run_parts(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const job *j = context;
    for (int64_t part = begin; part < end; part++) {
        const int64_t r = part / j->col_parts, c = part % j->col_parts;
        j->kernel->run(j->chain, part_begin(j->row_units, r, j->row_parts, ROW_UNIT, j->chain->rows),
                       part_begin(j->row_units, r + 1, j->row_parts, ROW_UNIT, j->chain->rows),
                       part_begin(j->col_units, c, j->col_parts, LS_MMA16_PANEL, j->chain->cols),
                       part_begin(j->col_units, c + 1, j->col_parts, LS_MMA16_PANEL, j->chain->cols),
                       ls_workers_scratch(j->workers, thread_i));
    }
}

void ls_mma16_run(ls_workers *workers, const ls_mma16_chain *chain) {
    const int64_t steps = chain->segments[chain->n_segments] - chain->segments[0];
    const double products = (double)chain->rows * (double)chain->cols * (double)steps;
    job j;
    j.chain = chain;
    j.kernel = ls_mma16_kernel_table[workers->isa];
    j.workers = workers;
    j.row_units = (chain->rows - 1) / ROW_UNIT + 1;
    j.col_units = (chain->cols - 1) / LS_MMA16_PANEL + 1;
    /* Columns before rows: then each panel is decoded by one thread. */
    ls_grid_choose(&j.col_parts, &j.row_parts, j.col_units, j.row_units,
                   ls_grid_parts(workers, products, PART_PRODUCTS_MIN));
    ls_parallel_for(workers->pool, j.row_parts * j.col_parts, 1, run_parts, &j);
}
