/* Rows by number, and whether two regions are the same. No arithmetic: nothing here carries a bit.
 *
 * gather:  out[i] = x[index[i]], row_bytes of each
 * differs: *differs = 1 where any byte of the rows of a and b differs; it is never set to 0 */
#ifndef LS_OP_GATHER_H
#define LS_OP_GATHER_H

#include "base/status.h"
#include "lockstep/lockstep.h"

typedef struct ls_gather_args {
    const void *x;        /* [x_rows], x_stride bytes apart */
    const int64_t *index; /* [n], each in [0, x_rows) */
    void *out;            /* [n], out_stride bytes apart */
    int64_t x_rows, x_stride, n, out_stride, row_bytes;
} ls_gather_args;

/* out must not overlap x. A number outside [0, x_rows) is an error before anything is written. */
ls_status ls_gather_check(const ls_gather_args *args, ls_error *err);

typedef struct ls_differs_args {
    const void *a, *b; /* [rows], stride bytes apart */
    int64_t rows, stride, row_bytes;
    int64_t *differs;
} ls_differs_args;

ls_status ls_differs_check(const ls_differs_args *args, ls_error *err);

#endif
