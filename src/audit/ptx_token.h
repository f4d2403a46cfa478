/* The state of the reader of PTX text and its tokens, shared by the files that read. */
#ifndef LS_AUDIT_PTX_TOKEN_H
#define LS_AUDIT_PTX_TOKEN_H

#include "audit/ptx.h"

/* A register by its name, in a chain of its hash; inner scopes stand before outer ones. */
typedef struct ls_ptx_known {
    uint64_t hash;
    int32_t reg, next, scope;
} ls_ptx_known;

/* .reg .b32 %r<100>; the registers come into being when they are used. */
typedef struct ls_ptx_declaration {
    ls_ptx_name prefix;
    int64_t count; /* -1: the name itself */
    ls_ptx_type type;
    int32_t scope;
} ls_ptx_declaration;

enum { LS_PTX_BUCKETS = 4096 };

struct ls_ptx_reader {
    const char *text, *name;
    int64_t bytes, at, line;
    ls_ptx_place began; /* of the function */
    int32_t module;     /* how many .version lines have come */
    int32_t address_bits;
    int32_t source, scope, depth;
    int32_t scopes[LS_PTX_DEPTH_MAX];
    int64_t declared_before[LS_PTX_DEPTH_MAX];
    ls_ptx_function function;
    ls_ptx_known *known;
    int64_t n_known, cap_known;
    ls_ptx_declaration *declared;
    int64_t n_declared, cap_declared;
    int32_t buckets[LS_PTX_BUCKETS];
};

static inline bool ls_ptx_is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' || c == '.';
}

static inline bool ls_ptx_is_digit(char c) { return c >= '0' && c <= '9'; }

ls_status ls_ptx_fail_at(const ls_ptx_reader *r, int64_t line, ls_error *err, const char *sentence, ls_ptx_name name);
ls_status ls_ptx_fail(const ls_ptx_reader *r, ls_error *err, const char *sentence);
/* Passes over white space and comments; false at the end. A NUL counts as white space: dumps of binaries hold some. */
ls_status ls_ptx_skip_space(ls_ptx_reader *r, ls_error *err);
/* The next character that counts, 0 at the end. */
ls_status ls_ptx_peek(ls_ptx_reader *r, char *c, ls_error *err);
ls_status ls_ptx_expect(ls_ptx_reader *r, char wanted, ls_error *err);
/* Takes the character if it comes next. */
ls_status ls_ptx_take(ls_ptx_reader *r, char wanted, bool *taken, ls_error *err);
/* A name: letters, digits, _ $ % . and ::, which some opcodes hold. */
ls_status ls_ptx_read_name(ls_ptx_reader *r, ls_ptx_name *out, ls_error *err);
/* An integer in base 2, 8, 10 or 16, with U behind it perhaps; a float (0f.., 0d.., 1.5) is kind LS_PTX_FLOAT. */
ls_status ls_ptx_read_number(ls_ptx_reader *r, ls_ptx_operand *out, ls_error *err);

#endif
