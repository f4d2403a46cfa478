/* The state while one definition is evaluated, and what the files that do so share. */
#ifndef LS_AUDIT_STEP_H
#define LS_AUDIT_STEP_H

#include "audit/work.h"

/* A type at the end of an opcode. */
typedef struct ls_step_type {
    int32_t bits;
    bool is_signed, is_float;
} ls_step_type;

typedef struct ls_step {
    ls_work *w;
    const ls_ptx_instruction *in;
    int32_t at, block, check;
    ls_sum a, b, c, out; /* operands, result */
    int32_t a_value, b_value, c_value;
    int32_t a_block, b_block; /* of the two ways that meet */
    ls_step_type t;
    int32_t n_halves; /* looked at for one pair of registers */
} ls_step;

/* step.c: The type that ends at *end, which goes in front of it; bits 0 where there is none. */
ls_step_type ls_step_type_before(ls_ptx_name op, int32_t *end);
ls_step_type ls_step_type_of(ls_ptx_name op);
ls_range ls_step_type_range(int32_t bits, bool is_signed);
/* What an integer of these bits is where nothing is said: a size, an index, not less than 0 and as if it were
 * signed. */
ls_range ls_step_plain_range(int32_t bits);
/* A symbol of the step's width, block and line, defined nowhere and of no parameter. */
ls_symbol ls_step_symbol(const ls_step *s, int kind, ls_range type);
ls_status ls_step_add_symbol(ls_work *w, const ls_symbol *symbol, int32_t *id, ls_error *err);
/* Gives the symbol the range that the file of ranges has for it. */
void ls_step_declare(ls_work *w, ls_symbol *s, ls_range_subject subject, int32_t index);
/* s->out = an operation's result that is no sum, of s->a and s->b. */
ls_status ls_step_result(ls_step *s, ls_rule rule, ls_range known, bool vague, ls_error *err);
ls_status ls_step_plain_result(ls_step *s, bool vague, ls_error *err);
/* s->out = one of two values. */
ls_status ls_step_either(ls_step *s, const ls_sum *a, const ls_sum *b, ls_error *err);
/* The sum must lie in the window, or what is taken is not what is meant. */
ls_status ls_step_check(ls_step *s, const ls_sum *sum, int32_t source, ls_range window, ls_error *err);
ls_status ls_step_check_number(ls_step *s, const ls_sum *sum, int32_t source, bool is_signed, ls_error *err);
/* The instruction that defines a value, NULL for a join. */
const ls_ptx_instruction *ls_step_definition(const ls_work *w, int32_t value);

/* sources.c: the operands behind the results: a, b, c. */
ls_status ls_step_read_operands(ls_step *s, int32_t results, ls_error *err);
/* The sum of one operand and its definition (-1: none). */
ls_status ls_step_read_operand(ls_step *s, int32_t index, int32_t bits, ls_sum *out, int32_t *value, ls_error *err);
ls_status ls_step_parameter(ls_step *s, const ls_ptx_operand *o, int32_t index, int32_t part, ls_error *err);
ls_status ls_step_load(ls_step *s, const ls_ptx_operand *o, int32_t index, int32_t part, ls_error *err);

/* bitwise.c: s->out = an operation on the bits of s->a, s->b, s->c. */
ls_status ls_step_shift_left(ls_step *s, ls_error *err);
ls_status ls_step_shift_right(ls_step *s, ls_error *err);
ls_status ls_step_or(ls_step *s, ls_error *err);
ls_status ls_step_and(ls_step *s, ls_error *err);
ls_status ls_step_logic(ls_step *s, ls_error *err);
ls_status ls_step_permute(ls_step *s, ls_error *err);

/* carry.c: s->out = the number of 64 bits of two operands, its halves; lost where it is not understood. */
ls_status ls_step_halves(ls_step *s, int32_t low, int32_t high, ls_error *err);

/* compute.c: s->out = what the instruction makes of its operands, by the beginning of its name. */
ls_status ls_step_compute(ls_step *s, int32_t results, int32_t part, ls_error *err);
void ls_step_sum_of(ls_step *s, int64_t b_factor); /* a + b * b_factor */

#endif
