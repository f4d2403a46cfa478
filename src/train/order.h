/* In which order a run takes its examples: one permutation an epoch, one behind the other, without end. A position is
 * an example's place in that order, so a run that knows its position needs nothing else to go on.
 *
 * Permutation of epoch e: Fisher-Yates from the identity, i from n - 1 down to 1, swapping places i and j, j the upper
 * 64 bits of (i + 1) * u, u = words 0 (low) and 1 of Philox with the seed as its key and counter (i low, i high, e low,
 * e high). */
#ifndef LS_TRAIN_ORDER_H
#define LS_TRAIN_ORDER_H

#include "base/status.h"

typedef struct ls_order ls_order;

ls_status ls_order_create(ls_order **out, int64_t n, uint64_t seed, ls_error *err);
void ls_order_free(ls_order *order); /* accepts NULL */
/* The example at a position, from 0 on. */
int64_t ls_order_at(ls_order *order, int64_t position);

#endif
