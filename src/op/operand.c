/* Checks of a call's tensors. */
#include "op/operand.h"

ls_status ls_operands_check(const char *op, const ls_operand *operands, int64_t n, ls_error *err) {
    for (const ls_operand *o = operands; o < operands + n; o++) {
        int64_t elements, bytes;
        if (o->memory == NULL && o->optional) continue;
        if (o->memory == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: %s is a null pointer", op, o->name);
        if (o->stride < o->cols)
            return LS_FAIL(err, LS_ERR_ARG, "%s: %s: stride %lld is below %lld elements a row", op, o->name,
                           (long long)o->stride, (long long)o->cols);
        if (__builtin_mul_overflow(o->rows, o->stride, &elements) || /* neither is negative */
            __builtin_mul_overflow(elements, o->elem_bytes, &bytes))
            return LS_FAIL(err, LS_ERR_ARG, "%s: %s: %lld rows of stride %lld do not fit 64 bits", op, o->name,
                           (long long)o->rows, (long long)o->stride);
    }
    return LS_OK;
}

ls_status ls_operands_check_pair(const char *op, const char *name, const void *memory, const char *other_name,
                                 const void *other, ls_error *err) {
    if ((memory == NULL) == (other == NULL)) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: %s is a null pointer and %s is not", op, memory == NULL ? name : other_name,
                   memory == NULL ? other_name : name);
}
