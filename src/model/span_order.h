/* Sequences that continue others, in the order in which ops with state take them. */
#ifndef LS_MODEL_SPAN_ORDER_H
#define LS_MODEL_SPAN_ORDER_H

#include "model/forward.h"

/* Host memory, for at most n_max spans. */
typedef struct ls_span_order {
    ls_span_tree tree; /* of the arrays below; made by ls_span_order_make */
    ls_span *spans;
    int64_t *parents;
    ls_span_run *runs;        /* [n_max] */
    int64_t *depths, *places; /* [n_max] by span: how many spans are before it; where it is in `spans` */
} ls_span_order;

ls_status ls_span_order_create(ls_span_order *out, int64_t n_max, ls_error *err);
void ls_span_order_free(ls_span_order *order);
/* LS_OK when every span continues one that is before it (parents[i]; -1: none), and spans of a tree are neighbours with
 * each branch behind its trunk: span i continues span i - 1, or one that span i - 1 or those before it continue. */
ls_status ls_span_order_check(const int64_t *parents, int64_t n, ls_error *err);
/* Order of n spans, whose rows ascend: runs of equal depth, the deepest first, of all trees together or tree by tree.
 * Neighbours that are trees of one span are one run: a sum over spans has the same order. */
void ls_span_order_make(ls_span_order *order, const ls_span *spans, const int64_t *parents, int64_t n,
                        const int32_t *tables, bool by_tree);

#endif
