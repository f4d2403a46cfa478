/* regroup: what the host can see of a call. */
#include "op/regroup.h"

#include "op/operand.h"

/* Columns of x, so that no sum of widths leaves 64 bits. */
#define DIM_MAX (1024 * 1024)

ls_status ls_regroup_check(const ls_regroup_args *a, ls_error *err) {
    ls_operand operands[LS_REGROUP_PARTS_MAX + 1];
    int64_t width = 0;
    if (a->rows < 0 || a->heads < 1 || a->heads > DIM_MAX || a->n_parts < 1 || a->n_parts > LS_REGROUP_PARTS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "regroup: rows %lld, heads %lld, parts %lld of at most %d", (long long)a->rows,
                       (long long)a->heads, (long long)a->n_parts, LS_REGROUP_PARTS_MAX);
    for (int64_t p = 0; p < a->n_parts; p++) {
        const ls_regroup_part *part = &a->part[p];
        if (part->width < 1 || part->width > DIM_MAX)
            return LS_FAIL(err, LS_ERR_ARG, "regroup: width %lld of part %lld", (long long)part->width, (long long)p);
        width += part->width;
    }
    if (width > DIM_MAX / a->heads)
        return LS_FAIL(err, LS_ERR_ARG, "regroup: %lld heads of %lld columns are more than %d", (long long)a->heads,
                       (long long)width, DIM_MAX);
    operands[0] = (ls_operand){"x", a->x, a->rows, a->heads * width, a->x_stride, 4, a->rows == 0};
    for (int64_t p = 0; p < a->n_parts; p++) {
        const ls_regroup_part *part = &a->part[p];
        operands[p + 1] =
            (ls_operand){"part", part->rows, a->rows, a->heads * part->width, part->stride, 4, a->rows == 0};
    }
    return ls_operands_check("regroup", operands, a->n_parts + 1, err);
}
