/* Order of doubles; none may be a NaN. */
#ifndef LS_BASE_SORT_H
#define LS_BASE_SORT_H

#include <stdint.h>

/* Ascending, in place. */
void ls_sort(double *list, int64_t n);

/* Sorts list [n]; the element at q of the way from the first to the last, rounded down; `none` where n is 0. */
double ls_quantile(double *list, int64_t n, double q, double none);

#endif
