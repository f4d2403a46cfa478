/* Reading of PTX text, one function at a time: bounded memory, errors with file and line. Nothing is computed here.
 *
 * The reader keeps what a function's text says: parameters, registers, labels, instructions with their operands. It is
 * strict about structure (every register is declared, every label exists once, every brace closes) and open about
 * instructions: an opcode that it does not know is kept by its name, and whoever analyses says what it makes of it. */
#ifndef LS_AUDIT_PTX_H
#define LS_AUDIT_PTX_H

#include "audit/name.h"

typedef enum ls_ptx_kind {
    LS_PTX_REG,     /* reg */
    LS_PTX_INT,     /* value */
    LS_PTX_FLOAT,   /* an immediate that is no integer */
    LS_PTX_SYMBOL,  /* name: a variable, a label, a function, a special register */
    LS_PTX_ADDRESS, /* [reg + value], [name + value] or [value] */
    LS_PTX_SINK,    /* _ */
    LS_PTX_BANK     /* machine code alone: c[value >> 32][reg + the low half of value] */
} ls_ptx_kind;

typedef struct ls_ptx_operand {
    uint8_t kind;           /* ls_ptx_kind */
    bool is_not;            /* !%p */
    bool is_tail;           /* belongs to the operand before it: elements of {a, b} and the second of a|b */
    bool is_minus, is_wide; /* machine code alone: -R2, and an address in two registers; is_not is also ~R2 */
    uint8_t scale;          /* machine code alone: of the register of an address, 0 for 1 */
    int32_t reg;            /* -1: none */
    int32_t instance;       /* of the function that was unfolded around it, 0: none (ptx_calls.h) */
    int64_t value;
    ls_ptx_name name;
} ls_ptx_operand;

typedef struct ls_ptx_instruction {
    ls_ptx_name op; /* with its modifiers: mul.wide.s32 */
    int32_t guard;  /* the predicate's register, -1 for none */
    bool guard_not;
    int32_t first, n;  /* operands */
    int64_t line;      /* of the text */
    int32_t scope;     /* in which it stands */
    int32_t source;    /* line of the source by .loc, 0 where none is given */
    ls_ptx_name shown; /* what a reader of machine code finds on the line; text NULL: op */
} ls_ptx_instruction;

typedef enum ls_ptx_type { LS_PTX_PRED, LS_PTX_B8, LS_PTX_B16, LS_PTX_B32, LS_PTX_B64, LS_PTX_B128 } ls_ptx_type;

typedef struct ls_ptx_register {
    ls_ptx_name name;
    ls_ptx_type type;
} ls_ptx_register;

typedef struct ls_ptx_parameter {
    ls_ptx_name name;
    int64_t bytes;
    bool is_array;
} ls_ptx_parameter;

typedef struct ls_ptx_label {
    ls_ptx_name name;
    int32_t at;    /* the instruction behind it, n_instructions at the end */
    int32_t scope; /* labels of inner scopes may share a name with others */
    int64_t line;
} ls_ptx_label;

/* The labels of a .branchtargets line. */
typedef struct ls_ptx_targets {
    ls_ptx_name name;
    int32_t first, n; /* in targets_names */
    int32_t scope;
} ls_ptx_targets;

/* A function with a body. */
typedef struct ls_ptx_function {
    ls_ptx_name name;
    bool is_entry;
    int64_t line;
    int32_t max_threads[3]; /* .maxntid or .reqntid; 0: not given */
    ls_ptx_parameter *parameters;
    int64_t n_parameters, cap_parameters;
    ls_ptx_name result; /* the parameter that a .func returns; bytes 0 where it returns none or several */
    ls_ptx_register *registers;
    int64_t n_registers, cap_registers;
    ls_ptx_instruction *instructions;
    int64_t n_instructions, cap_instructions;
    ls_ptx_operand *operands;
    int64_t n_operands, cap_operands;
    ls_ptx_label *labels;
    int64_t n_labels, cap_labels;
    ls_ptx_targets *targets;
    int64_t n_targets, cap_targets;
    int32_t *scopes; /* [n_scopes]: the scope around each; 0 is around the body */
    int64_t n_scopes, cap_scopes;
    ls_ptx_name *target_names;
    int64_t n_target_names, cap_target_names;
} ls_ptx_function;

#define LS_PTX_INSTRUCTIONS_MAX 4000000 /* of a function */
#define LS_PTX_NAME_MAX 65536           /* bytes of one name */
#define LS_PTX_DEPTH_MAX 64             /* scopes inside scopes */

typedef struct ls_ptx_reader ls_ptx_reader;

/* Reads text[0..bytes), which must live as long as the reader. `name` starts the error sentences. What stands before
 * the first .version line (headers of cuobjdump) is passed over; several modules may follow each other. */
ls_status ls_ptx_open(ls_ptx_reader **out, const char *text, int64_t bytes, const char *name, ls_error *err);
void ls_ptx_close(ls_ptx_reader *reader); /* accepts NULL */

/* The next function that has a body; *function is NULL at the end. It belongs to the reader and lives until the next
 * call. */
ls_status ls_ptx_next(ls_ptx_reader *reader, const ls_ptx_function **function, ls_error *err);

/* Where the function stands that was read last: its place in the text and the number of its module. A reader that is
 * sent there reads it again. */
typedef struct ls_ptx_place {
    int64_t at, line;
    int32_t module;
} ls_ptx_place;

ls_ptx_place ls_ptx_tell(const ls_ptx_reader *reader);
void ls_ptx_seek(ls_ptx_reader *reader, ls_ptx_place place);

/* The address size that the module gives, 64 where it gives none. */
int32_t ls_ptx_address_bits(const ls_ptx_reader *reader);

#endif
