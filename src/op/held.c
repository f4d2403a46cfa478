/* Held tokens: what the host can see of a call. */
#include "op/held.h"

#include <stdio.h>

#include "op/operand.h"

ls_status ls_held_check(const char *op, const ls_held *held, const ls_pool_view *pool, int64_t n_entries,
                        ls_error *err) {
    char name[64];
    if (held->every < 0 || held->every > LS_STATE_EVERY_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: state_every %lld is not in 0..%d", op, (long long)held->every,
                       LS_STATE_EVERY_MAX);
    if (held->every <= 1) return LS_OK;
    snprintf(name, sizeof name, "%s: held", op);
    LS_TRY(ls_pool_check(name, pool, held->total * 4, 16, err));
    if (pool->n_entries != n_entries)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld entries of held, %lld of state", op, (long long)pool->n_entries,
                       (long long)n_entries);
    return LS_OK;
}

ls_status ls_write_held_check(const ls_write_held_args *args, ls_error *err) {
    const int64_t heads = args->n_heads, rows = args->state_rows, cols = args->state_cols;
    ls_held held;
    if (heads < 1 || heads > LS_SSD_HEADS_MAX || args->n_groups < 1 || heads % args->n_groups != 0)
        return LS_FAIL(err, LS_ERR_ARG, "write_held: n_heads %lld, n_groups %lld", (long long)heads,
                       (long long)args->n_groups);
    if (rows < 1 || cols < 1 || rows > LS_SSD_STATE_MAX || cols > LS_SSD_STATE_MAX || rows * cols > LS_SSD_STATE_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "write_held: a state of %lld x %lld, above %d", (long long)rows,
                       (long long)cols, LS_SSD_STATE_MAX);
    if (args->state_every < 2)
        return LS_FAIL(err, LS_ERR_ARG, "write_held: state_every %lld, which holds nothing",
                       (long long)args->state_every);
    held = ls_held_make(args->state_every, heads, args->n_groups, rows, cols);
    LS_TRY(ls_pool_check("write_held", &args->state, heads * rows * cols * 4, 16, err));
    LS_TRY(ls_held_check("write_held", &held, &args->held, args->state.n_entries, err));
    return ls_spans_check_count("write_held", args->spans, args->n_spans, args->rows, 0, err);
}
