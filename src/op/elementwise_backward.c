/* Gradients of the elementwise ops: what the host can see of a call. */
#include "op/elementwise_backward.h"

#include "op/operand.h"

static ls_status check_size(const char *op, int64_t rows, int64_t dim, ls_error *err) {
    if (rows < 0 || dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld, dim %lld", op, (long long)rows, (long long)dim);
    return LS_OK;
}

/* The tensors of a SwiGLU's gradient; dgate and dup have this many bytes an element. */
typedef struct swiglu_tensors {
    const void *gate, *up, *dy, *dgate, *dup;
    int64_t rows, dim, out_bytes;
} swiglu_tensors;

static ls_status check_swiglu(const char *op, const swiglu_tensors *t, ls_error *err) {
    const int64_t rows = t->rows, dim = t->dim;
    const ls_operand operands[] = {
        {"gate", t->gate, rows, dim, dim, 4, rows == 0},
        {"up", t->up, rows, dim, dim, 4, rows == 0},
        {"dy", t->dy, rows, dim, dim, 4, rows == 0},
        {"dgate", t->dgate, rows, dim, dim, t->out_bytes, rows == 0},
        {"dup", t->dup, rows, dim, dim, t->out_bytes, rows == 0},
    };
    LS_TRY(check_size(op, rows, dim, err));
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}

ls_status ls_swiglu_backward_check(const ls_swiglu_backward_args *a, ls_error *err) {
    const swiglu_tensors t = {a->gate, a->up, a->dy, a->dgate, a->dup, a->rows, a->dim, 4};
    return check_swiglu("swiglu_backward", &t, err);
}

ls_status ls_swiglu_backward_rounded_check(const ls_swiglu_backward_rounded_args *a, ls_error *err) {
    const swiglu_tensors t = {a->gate, a->up, a->dy, a->dgate, a->dup, a->rows, a->dim, 2};
    return check_swiglu("swiglu_backward_rounded", &t, err);
}

ls_status ls_relu2_backward_check(const ls_relu2_backward_args *a, ls_error *err) {
    const ls_operand operands[] = {
        {"x", a->x, a->rows, a->dim, a->dim, 4, a->rows == 0},
        {"dy", a->dy, a->rows, a->dim, a->dim, 4, a->rows == 0},
        {"dx", a->dx, a->rows, a->dim, a->dim, ls_dtype_bytes(a->dx_dtype), a->rows == 0},
    };
    LS_TRY(check_size("relu2_backward", a->rows, a->dim, err));
    if (a->dx_dtype != LS_F32 && a->dx_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "relu2_backward: dx %s; f32 and bf16 are built",
                       ls_dtype_name(a->dx_dtype));
    return ls_operands_check("relu2_backward", operands, 3, err);
}

ls_status ls_embed_backward_check(const ls_embed_backward_args *args, ls_error *err) {
    static const char op[] = "embed_backward";
    const int64_t rows = args->rows, dim = args->dim;
    const ls_operand operands[] = {
        {"tokens", args->tokens, rows, 1, 1, 4, rows == 0},
        {"dy", args->dy, rows, dim, args->dy_stride, 4, rows == 0},
        {"dtable", args->dtable, args->vocab, dim, dim, 4, rows == 0},
    };
    LS_TRY(check_size(op, rows, dim, err));
    if (args->vocab < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: vocab %lld", op, (long long)args->vocab);
    return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
}
