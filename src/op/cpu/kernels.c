/* Runs one kernel over the workers: over items, or over blocks of a matrix of outputs. Carries no bits. */
#include "op/cpu/kernels.h"

/* About 2 microseconds of vector arithmetic: several times what handing a part to a waiting thread takes. */
#define PART_OPS_MIN 40000

typedef struct run_context {
    const ls_workers *workers;
    ls_kernel kernel;
    const void *args;
} run_context;

static void run_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const run_context *run = context;
    run->kernel(run->args, begin, end, ls_workers_scratch(run->workers, thread_i));
}

/* Parts that so many operations are cut into: as many as threads may run them, fewer where a part would have less than
 * `least` of them. */
static int64_t parts_worth(const ls_workers *workers, double operations, double least) {
    const int32_t threads = operations < least ? 1 : ls_pool_width(workers->pool);
    if (threads == 1) return 1;
    return operations < least * threads ? (int64_t)(operations / least) : threads;
}

void ls_kernel_run(ls_workers *workers, const ls_kernel *table, const void *args, int64_t n_items, int64_t item_ops) {
    run_context run = {workers, table[workers->isa], args};
    const int64_t parts = parts_worth(workers, (double)n_items * (double)item_ops, PART_OPS_MIN);
    if (n_items > 0) ls_parallel_for(workers->pool, n_items, (n_items - 1) / parts + 1, run_part, &run);
}

/* ---- blocks of a matrix ---- */

/* row_parts x col_parts blocks; part i is block (i / col_parts, i % col_parts). */
typedef struct grid_context {
    const ls_workers *workers;
    const ls_grid_kernel *kernel;
    const void *args;
    const ls_grid *grid;
    int64_t row_units, col_units, row_parts, col_parts;
} grid_context;

static int64_t part_begin(int64_t units, int64_t part, int64_t parts, int64_t unit, int64_t limit) {
    const int64_t at = units * part / parts * unit;
    return at < limit ? at : limit;
}

static void run_blocks(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const grid_context *g = context;
    const int64_t row_unit = g->kernel->row_unit, col_unit = g->kernel->col_unit;
    for (int64_t part = begin; part < end; part++) {
        const int64_t r = part / g->col_parts, c = part % g->col_parts;
        g->kernel->run(g->args, part_begin(g->row_units, r, g->row_parts, row_unit, g->grid->rows),
                       part_begin(g->row_units, r + 1, g->row_parts, row_unit, g->grid->rows),
                       part_begin(g->col_units, c, g->col_parts, col_unit, g->grid->cols),
                       part_begin(g->col_units, c + 1, g->col_parts, col_unit, g->grid->cols),
                       ls_workers_scratch(g->workers, thread_i));
    }
}

/* a_units x b_units in a_parts x b_parts blocks, at most `parts`: the cut whose largest block is smallest; among equals
 * the one that cuts a most. */
static void choose_cut(int64_t *a_parts, int64_t *b_parts, int64_t a_units, int64_t b_units, int64_t parts) {
    int64_t best = INT64_MAX;
    for (int64_t a = 1; a <= parts && a <= a_units; a++) {
        const int64_t b = parts / a < b_units ? parts / a : b_units;
        const int64_t largest = ((a_units - 1) / a + 1) * ((b_units - 1) / b + 1);
        if (largest > best) continue;
        best = largest;
        *a_parts = a;
        *b_parts = b;
    }
}

void ls_grid_run(ls_workers *workers, const ls_grid_kernel *const *table, const void *args, const ls_grid *grid) {
    const ls_grid_kernel *kernel = table[workers->isa];
    const int64_t parts = parts_worth(workers, grid->operations, grid->part_min);
    grid_context g = {.workers = workers, .kernel = kernel, .args = args, .grid = grid};
    g.row_units = (grid->rows - 1) / kernel->row_unit + 1;
    g.col_units = (grid->cols - 1) / kernel->col_unit + 1;
    if (grid->cols_first)
        choose_cut(&g.col_parts, &g.row_parts, g.col_units, g.row_units, parts);
    else
        choose_cut(&g.row_parts, &g.col_parts, g.row_units, g.col_units, parts);
    ls_parallel_for(workers->pool, g.row_parts * g.col_parts, 1, run_blocks, &g);
}
