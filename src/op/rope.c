/* rope: what the host can see of a call. */
#include "op/rope.h"

#include "base/mem.h"
#include "op/operand.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

ls_status ls_rope_table_check(const ls_rope_table_args *a, ls_error *err) {
    LS_TRY(ls_spans_check_count("rope_table", a->spans, a->n_spans, a->rows, a->span_rows_max, err));
    if (a->half < 1 || a->half > LS_HEAD_DIM_MAX / 2)
        return LS_FAIL(err, LS_ERR_ARG, "rope_table: half %lld is not in 1..%d", (long long)a->half,
                       LS_HEAD_DIM_MAX / 2);
    {
        const ls_operand operands[] = {{"inv_freq", a->inv_freq, 1, a->half, a->half, 4, false},
                                       {"table", a->table, a->rows, 2 * a->half, 2 * a->half, 4, a->rows == 0}};
        return ls_operands_check("rope_table", operands, COUNT(operands), err);
    }
}

/* What forward and backward have in common. *heads: of all parts. */
static ls_status check_parts(const char *op, const ls_rope_args *a, int64_t *heads, ls_error *err) {
    bool rotates = false;
    *heads = 0;
    if (a->n_parts < 1 || a->n_parts > LS_ROPE_PARTS)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld parts are not 1..%d", op, (long long)a->n_parts, LS_ROPE_PARTS);
    if (a->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)a->rows);
    if (a->head_dim < 1 || a->head_dim > LS_HEAD_DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: head dim %lld is not in 1..%d", op, (long long)a->head_dim,
                       LS_HEAD_DIM_MAX);
    for (int64_t i = 0; i < a->n_parts; i++) {
        const ls_rope_part *part = &a->part[i];
        int64_t columns;
        if (part->n_heads < 1 || !ls_add_i64(*heads, part->n_heads, heads) ||
            !ls_mul_i64(*heads, a->head_dim, &columns))
            return LS_FAIL(err, LS_ERR_ARG, "%s: part %lld: %lld heads of %lld", op, (long long)i,
                           (long long)part->n_heads, (long long)a->head_dim);
        rotates |= part->rotates;
    }
    if (rotates && (a->half < 1 || a->half > a->head_dim / 2))
        return LS_FAIL(err, LS_ERR_ARG, "%s: half %lld of a head of %lld", op, (long long)a->half,
                       (long long)a->head_dim);
    if (rotates && a->rows > 0 && a->table == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: table is a null pointer", op);
    return LS_OK;
}

ls_status ls_rope_check(const ls_rope_args *a, ls_error *err) {
    int64_t heads;
    LS_TRY(check_parts("rope", a, &heads, err));
    if (a->y_dtype != LS_F32 && a->y_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "rope: y %s; f32 and bf16 are built", ls_dtype_name(a->y_dtype));
    {
        const int64_t columns = heads * a->head_dim;
        const ls_operand operands[] = {
            {"x", a->x, a->rows, columns, a->x_stride, 4, a->rows == 0},
            {"y", a->y, a->rows, columns, a->y_stride, ls_dtype_bytes(a->y_dtype), a->rows == 0}};
        return ls_operands_check("rope", operands, COUNT(operands), err);
    }
}

ls_status ls_rope_backward_check(const ls_rope_backward_args *a, ls_error *err) {
    ls_rope_args same = {
        .table = a->table, .half = a->half, .rows = a->rows, .head_dim = a->head_dim, .n_parts = a->n_parts};
    bool norms = false;
    int64_t heads;
    for (int64_t i = 0; i < a->n_parts && i < LS_ROPE_PARTS; i++) {
        same.part[i] = a->part[i];
        norms |= a->part[i].norm != NULL;
        if (a->part[i].dnorm != NULL && a->part[i].norm == NULL)
            return LS_FAIL(err, LS_ERR_ARG, "rope_backward: part %lld: dnorm, but no norm", (long long)i);
    }
    LS_TRY(check_parts("rope_backward", &same, &heads, err));
    for (int64_t i = 0; i < a->n_parts; i++)
        if (a->part[i].dnorm != NULL && a->rows > 0 && a->scale == NULL)
            return LS_FAIL(err, LS_ERR_ARG, "rope_backward: part %lld has dnorm: scale is a null pointer",
                           (long long)i);
    if (a->dx_dtype != LS_F32 && a->dx_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "rope_backward: dx %s; f32 and bf16 are built",
                       ls_dtype_name(a->dx_dtype));
    {
        const int64_t columns = heads * a->head_dim;
        const ls_operand operands[] = {
            {"x", a->x, a->rows, columns, norms ? a->x_stride : columns, 4, a->rows == 0 || !norms},
            {"dy", a->dy, a->rows, columns, a->dy_stride, 4, a->rows == 0},
            {"dx", a->dx, a->rows, columns, a->dx_stride, ls_dtype_bytes(a->dx_dtype), a->rows == 0}};
        return ls_operands_check("rope_backward", operands, COUNT(operands), err);
    }
}

ls_status ls_rope_norm_fold_check(const ls_rope_norm_fold_args *a, ls_error *err) {
    const ls_operand operands[] = {{"chains", a->chains, a->n_heads, a->head_dim, a->head_dim, 4, false},
                                   {"out", a->out, 1, a->head_dim, a->head_dim, 4, false}};
    if (a->n_heads < 1 || a->head_dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "rope_norm_fold: %lld heads of %lld", (long long)a->n_heads,
                       (long long)a->head_dim);
    return ls_operands_check("rope_norm_fold", operands, COUNT(operands), err);
}
