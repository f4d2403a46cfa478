/* Sorting of doubles by the C library. */
#include "base/sort.h"

#include <stdlib.h>

static int up(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void ls_sort(double *list, int64_t n) {
    if (n > 1) qsort(list, (size_t)n, sizeof *list, up);
}

double ls_quantile(double *list, int64_t n, double q, double none) {
    if (n == 0) return none;
    ls_sort(list, n);
    return list[(int64_t)((double)(n - 1) * q)];
}
