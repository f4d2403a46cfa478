/* Words of machine code as text: names, numbers, operands, and what an opcode writes. Owns nothing. */
#ifndef LS_AUDIT_SASS_TEXT_H
#define LS_AUDIT_SASS_TEXT_H

#include "audit/ptx.h"

ls_ptx_name ls_sass_trim(ls_ptx_name text);
bool ls_sass_ends(ls_ptx_name name, const char *text);
/* Whether the opcode is this one, with modifiers or without, of threads or uniform: "MOV" is also UMOV and MOV.X. */
bool ls_sass_is_op(ls_ptx_name op, const char *base);
/* Takes the next part of *text up to a comma outside of brackets; false at the end. */
bool ls_sass_split(ls_ptx_name *text, char at, ls_ptx_name *token);
int32_t ls_sass_digit(char c); /* hexadecimal, -1 for others */
/* An integer, 0x.. or decimal, that fits 64 bits. */
bool ls_sass_integer(ls_ptx_name text, int64_t *value);
/* The 16 bits of a number that is written as a fraction, where it is one of half precision exactly. */
bool ls_sass_half(ls_ptx_name text, uint32_t *bits);

/* One operand. RZ and URZ are the number 0 with scale 2, PT and UPT the number 1 or, negated, 0 with scale 1, labels
 * symbols with scale 1; other numbers have scale 0 and their text as name. What is no integer operand that is
 * understood is LS_PTX_FLOAT. Of an address with a uniform register, that is *uniform. False where it is no operand. */
bool ls_sass_operand(ls_ptx_name token, ls_ptx_operand *out, ls_ptx_operand *uniform, bool *has_uniform);

/* What an opcode writes: up to so many predicates in front, then a register and those behind it, then up to so many
 * predicates. */
typedef struct ls_sass_form {
    int32_t predicates, registers, carries;
    bool writes_predicates; /* all of them */
} ls_sass_form;

ls_sass_form ls_sass_form_of(ls_ptx_name op);

/* Whether it reads or writes global or shared memory, or an address that may be either. */
bool ls_sass_is_access(ls_ptx_name op);
/* Registers that a load fills, from its size. */
int32_t ls_sass_width(ls_ptx_name op);

/* Gives every CALL what the function that it calls writes, as results whose value nobody knows. */
ls_status ls_sass_calls(ls_ptx_function *f, ls_error *err);

#endif
