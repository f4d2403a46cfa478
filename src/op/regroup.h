/* Columns that lie head by head, regrouped into a matrix of each kind, and back: what one product gives q, k, v and z
 * of all heads in, as in Qwen3-Next. Nothing is rounded.
 *
 * A head has neighbouring columns of every kind, in the order of the kinds: with widths w[p] of kind p, W their sum and
 * o[p] the sum of those before p,
 *   x[r][h * W + o[p] + c] = part p[r][h * w[p] + c]
 * for row r, head h and column c of kind p. Which side is written is `gathers`. A row depends on itself only. */
#ifndef LS_OP_REGROUP_H
#define LS_OP_REGROUP_H

#include "base/status.h"
#include "lockstep/lockstep.h"

enum { LS_REGROUP_PARTS_MAX = 4 };

typedef struct ls_regroup_part {
    float *rows;           /* [rows][stride], heads * width used */
    int64_t stride, width; /* width: columns of a head, positive */
} ls_regroup_part;

typedef struct ls_regroup_args {
    float *x; /* [rows][x_stride], heads * W used; overlaps no part, nor does a part another that is written */
    int64_t x_stride;
    ls_regroup_part part[LS_REGROUP_PARTS_MAX];
    int64_t n_parts, rows, heads;
    bool gathers; /* x is written from the parts; else the parts from x */
} ls_regroup_args;

ls_status ls_regroup_check(const ls_regroup_args *args, ls_error *err);

/* W: columns of a head of x. */
static inline int64_t ls_regroup_width(const ls_regroup_args *args) {
    int64_t width = 0;
    for (int64_t p = 0; p < args->n_parts; p++) width += args->part[p].width;
    return width;
}

#endif
