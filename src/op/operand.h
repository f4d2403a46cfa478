/* Tensors of a call as its arguments describe them: one table serves the checks of pointers, strides and sizes. */
#ifndef LS_OP_OPERAND_H
#define LS_OP_OPERAND_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* memory holds `rows` rows, the first `cols` elements of each used, `stride` elements from one row to the next. */
typedef struct ls_operand {
    const char *name;
    const void *memory;
    int64_t rows, cols, stride; /* rows and cols are not negative */
    int64_t elem_bytes;
    bool optional; /* may be NULL, and is not looked at then */
} ls_operand;

/* Types in which activations are stored. */
static inline bool ls_dtype_is_stored(ls_dtype dtype) { return dtype == LS_F32 || dtype == LS_BF16; }

/* Memory is there, a row fits its stride and all rows fit 64 bits; the error names op, tensor and value. */
ls_status ls_operands_check(const char *op, const ls_operand *operands, int64_t n, ls_error *err);

/* Both or neither: an optional input and its gradient. */
ls_status ls_operands_check_pair(const char *op, const char *name, const void *memory, const char *other_name,
                                 const void *other, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
