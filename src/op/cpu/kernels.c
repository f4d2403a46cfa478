/* Runs one kernel over the workers. */
#include "op/cpu/kernels.h"

#include "op/cpu/grid.h"

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

void ls_kernel_run(ls_workers *workers, const ls_kernel *table, const void *args, int64_t n_items, int64_t item_ops) {
    run_context run = {workers, table[workers->isa], args};
    const int64_t parts = ls_grid_parts(workers, (double)n_items * (double)item_ops, PART_OPS_MIN);
    if (n_items < 1) return;
    if (parts == 1)
        run_part(&run, 0, n_items, 0);
    else
        ls_parallel_for(workers->pool, n_items, (n_items - 1) / parts + 1, run_part, &run);
}
