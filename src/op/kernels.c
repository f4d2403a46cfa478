/* Runs one kernel over the queue's threads. */
#include "op/kernels.h"

/* About 10 microseconds of vector arithmetic. */
#define PART_OPS_MIN 200000

typedef struct run_context {
    const ls_queue *queue;
    ls_kernel kernel;
    const void *args;
} run_context;

static void run_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const run_context *run = context;
    run->kernel(run->args, begin, end, ls_queue_scratch(run->queue, thread_i));
}

void ls_kernel_run(ls_queue *queue, const ls_kernel *table, const void *args, int64_t n_items, int64_t item_ops) {
    run_context run = {queue, table[queue->isa], args};
    const int64_t grain = item_ops > 0 && item_ops < PART_OPS_MIN ? PART_OPS_MIN / item_ops : 1;
    ls_parallel_for(queue->pool, n_items, grain, run_part, &run);
}
