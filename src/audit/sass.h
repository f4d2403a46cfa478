/* Reading of machine code as text (SASS): what `nvdisasm` and `cuobjdump -sass` write, one function at a time, in
 * bounded memory, errors with file and line. Nothing is computed here.
 *
 * A function comes out in the form of ptx.h with these differences: opcodes are those of the machine but for `bra` and
 * `exit`; registers are numbered by ls_sass_register; results stand in front, each register of a wide one by itself,
 * predicates behind the register of the same instruction; behind an address in two registers stands the upper one, and
 * behind that the uniform ones, both as tails; the 64-bit summand of a wide product is followed by its upper half. An
 * access under a predicate stands behind a jump of its own. */
#ifndef LS_AUDIT_SASS_H
#define LS_AUDIT_SASS_H

#include "audit/ptx.h"

enum {
    LS_SASS_UNIFORM = 256,    /* UR0 */
    LS_SASS_PREDICATE = 320,  /* P0 */
    LS_SASS_UPREDICATE = 328, /* UP0 */
    LS_SASS_UNSEEN = 335,     /* a predicate that nothing sets: of jumps whose condition is not seen */
    LS_SASS_REGISTERS = 336
};

/* Where the machine keeps what a launch gives, as offsets in constant bank 0. */
typedef struct ls_sass_bank {
    int32_t parameters, blocks, grids; /* of parameter 0, blockDim.x, gridDim.x */
} ls_sass_bank;

typedef struct ls_sass_function {
    ls_ptx_function f;
    const int32_t *offsets; /* [f.n_parameters] of the parameters, in bytes from the first */
    const char *refused;    /* why nothing can be said of its accesses, NULL for nothing */
    ls_sass_bank bank;
} ls_sass_function;

typedef struct ls_sass_reader ls_sass_reader;

/* Whether text is machine code: a line "Function : " or a section .text. */
bool ls_sass_is(const char *text, int64_t bytes);

/* Reads text[0..bytes), which must live as long as the reader. `name` starts the error sentences. */
ls_status ls_sass_open(ls_sass_reader **out, const char *text, int64_t bytes, const char *name, ls_error *err);
void ls_sass_close(ls_sass_reader *reader); /* accepts NULL */

/* The next function; *function is NULL at the end. It belongs to the reader and lives until the next call. */
ls_status ls_sass_next(ls_sass_reader *reader, const ls_sass_function **function, ls_error *err);

#endif
