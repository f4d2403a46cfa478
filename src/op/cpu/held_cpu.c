/* write_held on the CPU. An item is one head of one span. */
#include "op/cpu/held_row.h"
#include "op/cpu/kernels.h"

LS_KERNEL_DEFINE(ls_write_held_kernel) {
    const ls_write_held_args *a = context;
    const ls_held held = ls_held_make(a->state_every, a->n_heads, a->n_groups, a->state_rows, a->state_cols);
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item % a->n_spans];
        const int64_t h = item / a->n_spans;
        if (span->slot < 0) continue;
        const ls_held_head k = {&held, (float *)ls_pool_at(&a->held, span->slot), h, false};
        if (span->pos > 0) ls_held_run(&k, (float *)ls_pool_at(&a->state, span->slot) + h * held.rows * held.cols);
        ls_held_set_count(k.entry, h, 0);
    }
}
