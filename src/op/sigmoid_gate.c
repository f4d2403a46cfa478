/* sigmoid_gate: what the host can see of a call, in both directions. */
#include "op/sigmoid_gate.h"

#include "op/operand.h"

/* The widest row: its gates lie in a thread's scratch. */
#define DIM_MAX (288 * 1024)

static ls_status check_gate_sizes(const char *op, int64_t rows, int64_t dim, int64_t gates, ls_error *err) {
    if (rows < 0 || dim < 1 || dim > DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld, dim %lld (dim is at most %d)", op, (long long)rows,
                       (long long)dim, DIM_MAX);
    if (gates < 1 || dim % gates != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: gates %lld does not divide dim %lld", op, (long long)gates,
                       (long long)dim);
    return LS_OK;
}

static ls_status check_stored(const char *op, const char *name, ls_dtype dtype, ls_error *err) {
    if (dtype == LS_F32 || dtype == LS_BF16) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %s %s; f32 and bf16 are built", op, name, ls_dtype_name(dtype));
}

ls_status ls_sigmoid_gate_check(const ls_sigmoid_gate_args *a, ls_error *err) {
    static const char op[] = "sigmoid_gate";
    const int64_t rows = a->rows;
    LS_TRY(check_gate_sizes(op, rows, a->dim, a->gates, err));
    LS_TRY(check_stored(op, "x", a->x_dtype, err));
    LS_TRY(check_stored(op, "y", a->y_dtype, err));
    {
        const ls_operand operands[] = {
            {"x", a->x, rows, a->dim, a->x_stride, ls_dtype_bytes(a->x_dtype), rows == 0},
            {"gate", a->gate, rows, a->gates, a->gate_stride, 4, rows == 0},
            {"y", a->y, rows, a->dim, a->y_stride, ls_dtype_bytes(a->y_dtype), rows == 0},
        };
        return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
    }
}

ls_status ls_sigmoid_gate_backward_check(const ls_sigmoid_gate_backward_args *a, ls_error *err) {
    static const char op[] = "sigmoid_gate_backward";
    const int64_t rows = a->rows;
    LS_TRY(check_gate_sizes(op, rows, a->dim, a->gates, err));
    LS_TRY(check_stored(op, "x", a->x_dtype, err));
    LS_TRY(check_stored(op, "dgate", a->dgate_dtype, err));
    {
        const ls_operand operands[] = {
            {"x", a->x, rows, a->dim, a->x_stride, ls_dtype_bytes(a->x_dtype), rows == 0},
            {"gate", a->gate, rows, a->gates, a->gate_stride, 4, rows == 0},
            {"dy", a->dy, rows, a->dim, a->dy_stride, 4, rows == 0},
            {"dx", a->dx, rows, a->dim, a->dx_stride, 4, rows == 0},
            {"dgate", a->dgate, rows, a->gates, a->dgate_stride, ls_dtype_bytes(a->dgate_dtype), rows == 0},
        };
        return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
    }
}
