/* What the files share that write the function that is analysed from machine code. */
#ifndef LS_AUDIT_SASS_EMIT_H
#define LS_AUDIT_SASS_EMIT_H

#include <string.h>

#include "audit/sass_lower.h"

static inline ls_ptx_name ls_sass_name_of(const char *text) { return (ls_ptx_name){text, (int32_t)strlen(text)}; }
static inline ls_ptx_operand ls_sass_register_of(int32_t reg) {
    return (ls_ptx_operand){.kind = LS_PTX_REG, .reg = reg};
}
static inline ls_ptx_operand ls_sass_number_of(int64_t value) {
    return (ls_ptx_operand){.kind = LS_PTX_INT, .reg = -1, .value = value};
}
static inline ls_ptx_operand ls_sass_symbol_of(const char *text) {
    return (ls_ptx_operand){.kind = LS_PTX_SYMBOL, .reg = -1, .name = ls_sass_name_of(text)};
}

ls_status ls_sass_new_register(ls_sass_lowering *l, ls_ptx_type type, int32_t *reg, ls_error *err);
/* Writes an instruction in the name of one of the machine's. */
ls_status ls_sass_emit(ls_sass_lowering *l, const ls_ptx_instruction *by, const char *op,
                       const ls_ptx_operand *operands, int32_t n, ls_error *err);
/* The same into a new register, which is *out. */
ls_status ls_sass_emit_new(ls_sass_lowering *l, const ls_ptx_instruction *by, const char *op, ls_ptx_type type,
                           ls_ptx_operand *out, const ls_ptx_operand *from, int32_t n, ls_error *err);
/* An offset of a constant bank (the bank's number in the upper half of place) as what the launch gives there. */
ls_status ls_sass_emit_bank(ls_sass_lowering *l, const ls_ptx_instruction *by, int64_t place, int32_t bits,
                            ls_ptx_operand *out, ls_error *err);

/* The operands of an instruction behind its results. */
typedef struct ls_sass_sources {
    int32_t first, n;  /* in the machine's operands */
    int32_t n_results; /* in front of them */
} ls_sass_sources;

ls_sass_sources ls_sass_sources_of(const ls_sass_lowering *l, const ls_ptx_instruction *in);
/* A source of 32 bits, ready to be read. */
ls_status ls_sass_take_source(ls_sass_lowering *l, const ls_ptx_instruction *by, int32_t at, ls_ptx_operand *out,
                              ls_error *err);
ls_status ls_sass_take_sources(ls_sass_lowering *l, const ls_ptx_instruction *in, ls_ptx_operand *out, int32_t n,
                               ls_error *err);
ls_ptx_operand ls_sass_pair_register(const ls_sass_lowering *l, int32_t pair); /* a float for pair -1 */
/* An access' address: *out is [register + number]; false in *known where its form is not understood. */
ls_status ls_sass_take_address(ls_sass_lowering *l, const ls_ptx_instruction *in, int32_t at, ls_ptx_operand *out,
                               bool *known, ls_error *err);
/* The results from number `from` on get op, which says nothing of them; predicates a carry. */
ls_status ls_sass_forget(ls_sass_lowering *l, const ls_ptx_instruction *in, int32_t from, const char *op,
                         ls_error *err);
/* op with the first sources into the first result; the other results are forgotten. */
ls_status ls_sass_simple(ls_sass_lowering *l, const ls_ptx_instruction *in, const char *op, int32_t n, ls_error *err);

/* Writes what one instruction of the machine does (sass_operations.c). */
ls_status ls_sass_lower_instruction(ls_sass_lowering *l, int32_t at, ls_error *err);

#endif
