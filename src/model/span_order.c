/* Depths of spans, and runs of them. */
#include "model/span_order.h"

#include <stdlib.h>

#include "base/mem.h"

ls_status ls_span_order_create(ls_span_order *o, int64_t n_max, ls_error *err) {
    LS_TRY(ls_array_alloc((void **)&o->spans, n_max, sizeof *o->spans, "spans", err));
    LS_TRY(ls_array_alloc((void **)&o->parents, n_max, sizeof *o->parents, "spans", err));
    LS_TRY(ls_array_alloc((void **)&o->runs, n_max, sizeof *o->runs, "spans", err));
    LS_TRY(ls_array_alloc((void **)&o->depths, n_max, sizeof *o->depths, "spans", err));
    return ls_array_alloc((void **)&o->places, n_max, sizeof *o->places, "spans", err);
}

void ls_span_order_free(ls_span_order *o) {
    free(o->spans);
    free(o->parents);
    free(o->runs);
    free(o->depths);
    free(o->places);
}

ls_status ls_span_order_check(const int64_t *parents, int64_t n, ls_error *err) {
    for (int64_t i = 0; i < n; i++) {
        int64_t before = i - 1;
        while (before >= 0 && before != parents[i]) before = parents[before];
        if (before != parents[i] || parents[i] < -1)
            return LS_FAIL(err, LS_ERR_ARG, "sequence %lld continues %lld, which is no beginning of the one before it",
                           (long long)i, (long long)parents[i]);
    }
    return LS_OK;
}

/* The spans of [begin, end) that are this deep become a run, or join that before it. */
static void add_run(ls_span_order *o, const ls_span *spans, const int64_t *parents, int64_t begin, int64_t end,
                    int64_t depth, bool joins) {
    ls_span_run *run = &o->runs[joins ? o->tree.n_runs - 1 : o->tree.n_runs];
    int64_t at = o->tree.n_runs == 0 ? 0 : run[joins ? 0 : -1].begin + run[joins ? 0 : -1].n;
    if (!joins) {
        *run = (ls_span_run){.begin = at, .continues = depth > 0};
        o->tree.n_runs++;
    }
    for (int64_t i = begin; i < end; i++) {
        if (o->depths[i] != depth) continue;
        o->spans[at] = spans[i];
        o->parents[at] = parents[i]; /* a place behind the last run */
        o->places[i] = at++;
        run->n++;
        run->rows_max = ls_max_i64(run->rows_max, spans[i].n_rows);
    }
}

/* Trees from `begin` on that are taken together, up to *end; returns how deep they go. */
static int64_t take_trees(const ls_span_order *o, int64_t begin, int64_t n, bool by_tree, int64_t *end) {
    int64_t i = begin, deepest = 0;
    do deepest = ls_max_i64(deepest, o->depths[i++]);
    while (i < n && !(by_tree && o->depths[i] == 0));
    *end = i;
    return deepest;
}

void ls_span_order_make(ls_span_order *o, const ls_span *spans, const int64_t *parents, int64_t n,
                        const int32_t *tables, bool by_tree) {
    o->tree = (ls_span_tree){.spans = o->spans, .parents = o->parents, .tables = tables, .runs = o->runs};
    for (int64_t i = 0; i < n; i++) o->depths[i] = parents[i] < 0 ? 0 : o->depths[parents[i]] + 1;
    bool was_alone = false; /* the tree before */
    for (int64_t begin = 0, end; begin < n; begin = end) {
        const int64_t deepest = take_trees(o, begin, n, by_tree, &end);
        for (int64_t depth = deepest; depth >= 0; depth--)
            add_run(o, spans, parents, begin, end, depth, deepest == 0 && was_alone);
        was_alone = deepest == 0;
    }
    for (int64_t at = 0; at < n; at++)
        if (o->parents[at] >= 0) o->parents[at] = o->places[o->parents[at]];
}
