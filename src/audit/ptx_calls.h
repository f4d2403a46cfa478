/* PTX functions that kernels call, put in the place of the call; then parameters of calls and local memory whose places
 * are known, as registers. What is analysed is one function without calls. */
#ifndef LS_AUDIT_PTX_CALLS_H
#define LS_AUDIT_PTX_CALLS_H

#include "audit/ptx.h"

typedef struct ls_ptx_calls ls_ptx_calls;

/* Finds the functions with bodies in text[0..bytes), which must live as long; `name` starts the error sentences. */
ls_status ls_ptx_calls_open(ls_ptx_calls **out, const char *text, int64_t bytes, const char *name, ls_error *err);
void ls_ptx_calls_close(ls_ptx_calls *calls); /* accepts NULL */

/* Whether some function of the text calls this .func by name: it is then analysed where it is called. */
bool ls_ptx_is_called(const ls_ptx_calls *calls, const ls_ptx_function *f, int32_t module);

/* *out: f of that module unfolded; f itself where nothing is to be done, else it lives until the next call. *refused
 * is NULL or why its calls cannot be unfolded, a sentence that lives as long; *out is f then. */
ls_status ls_ptx_unfold(ls_ptx_calls *calls, const ls_ptx_function *f, int32_t module, const ls_ptx_function **out,
                        const char **refused, ls_error *err);

/* Copies of functions, with other numbers (ptx_copy.c). */
typedef struct ls_ptx_shift {
    int32_t reg, scope, instance; /* added to registers and scopes; the instance of operands that have none */
} ls_ptx_shift;

/* Appends the operands and the instruction, shifted; the new instruction is the last one. */
ls_status ls_ptx_append(ls_ptx_function *out, const ls_ptx_function *f, const ls_ptx_instruction *in,
                        ls_ptx_shift shift, ls_error *err);
/* Appends an instruction in the name of another. */
ls_status ls_ptx_append_made(ls_ptx_function *out, const ls_ptx_instruction *by, ls_ptx_name op,
                             const ls_ptx_operand *operands, int32_t n, ls_error *err);
/* Appends labels at or behind instruction *next of f that stand at `at` or in front of it, as labels of the next
 * instruction of out. f's labels stand in the order of their places. */
ls_status ls_ptx_append_labels(ls_ptx_function *out, const ls_ptx_function *f, int64_t *next, int64_t at,
                               ls_ptx_shift shift, ls_error *err);
ls_status ls_ptx_append_label(ls_ptx_function *out, ls_ptx_label label, ls_error *err);
/* Appends registers, scopes (those around the body inside `around`) and tables. */
ls_status ls_ptx_append_names(ls_ptx_function *out, const ls_ptx_function *f, int32_t around, ls_ptx_shift shift,
                              ls_error *err);
/* out becomes an empty function with f's head. */
ls_status ls_ptx_begin(ls_ptx_function *out, const ls_ptx_function *f, ls_error *err);
void ls_ptx_function_deinit(ls_ptx_function *f);

/* out = f with slots of parameters that are none of f's, and of local memory, as registers (ptx_slots.c), and the two
 * registers that are shifted and joined to one of 64 bits as a pair. */
ls_status ls_ptx_slots(ls_ptx_function *out, const ls_ptx_function *f, ls_error *err);

#endif
