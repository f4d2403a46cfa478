/* The audit of index widths: where, in compiled kernels, an index of 32 bits passes its type before it becomes part of
 * an address. docs/reference/audit.md tells how it works. */
#ifndef LS_AUDIT_AUDIT_H
#define LS_AUDIT_AUDIT_H

#include "audit/poly.h"
#include "audit/ranges.h"

enum { LS_AUDIT_TEXT = 512, LS_AUDIT_FACTORS = 8 };

/* A value in a finding's expression. */
typedef struct ls_audit_symbol {
    char name[128];
    ls_wide low, high;
    bool is_declared;
} ls_audit_symbol;

/* A product of a finding's expression: factor * symbols. */
typedef struct ls_audit_term {
    int64_t factor;
    int32_t n, symbols[LS_DEGREE_MAX]; /* indices into the finding's symbols */
} ls_audit_term;

typedef struct ls_audit_finding {
    const char *file;               /* of those given to the audit */
    char kernel[LS_AUDIT_TEXT];     /* as the binary names it */
    char op[64];                    /* the instruction that takes too few bits */
    char expression[LS_AUDIT_TEXT]; /* what it takes, with names */
    char made_by[64];               /* the instruction of 32 bits that makes it */
    int64_t line, made_line;        /* of the text */
    int32_t source;                 /* line of the source, 0 where none is known */
    int32_t bits;
    bool is_signed;
    ls_wide high; /* the largest value in the ranges */
    char lever[128];
    ls_wide lever_low, lever_high, first; /* the first value of the lever with which something wraps */
    double share;                         /* of the lever's range, from the first value on */
    bool is_declared;                     /* every value in it has a declared range */
    char access[64];                      /* the first access that it reaches */
    int64_t access_line, n_accesses;
    int64_t scale; /* bytes that the address moves by one of the expression, 0 where that is not seen */
    int32_t n_symbols, n_terms, lever_symbol;
    ls_audit_symbol symbols[LS_AUDIT_FACTORS];
    ls_audit_term terms[LS_AUDIT_FACTORS]; /* n_terms 0: the expression has more of them than this */
} ls_audit_finding;

/* An access of which nothing is claimed. */
typedef struct ls_audit_unknown {
    const char *file;
    char kernel[LS_AUDIT_TEXT];
    char access[64];
    char reason[LS_AUDIT_TEXT];
    int64_t line;
} ls_audit_unknown;

typedef struct ls_audit {
    int64_t arch;                        /* what is asked for: machine code of this architecture (90), 0 for none */
    bool machine;                        /* machine code also where PTX is there */
    const char *only;                    /* kernels whose names hold this, NULL for all */
    void (*progress)(int64_t n_kernels); /* NULL: nobody looks */
    int64_t n_files, n_kernels, n_instructions;
    int64_t n_accesses, n_exact, n_wraps, n_unknown; /* accesses by what is known of them */
    ls_audit_finding *findings;
    int64_t n_findings, cap_findings;
    int64_t n_left_out; /* findings past those that are kept */
    ls_audit_unknown *unknowns;
    int64_t n_unknowns, cap_unknowns;
    char **names; /* of files that were found in folders */
    int64_t n_names, cap_names;
} ls_audit;

/* Adds the functions of PTX text. file must live as long as the audit. */
ls_status ls_audit_ptx(ls_audit *audit, const char *text, int64_t bytes, const char *file, const ls_ranges *ranges,
                       ls_error *err);
/* The same of machine code as `nvdisasm` or `cuobjdump -sass` writes it. */
ls_status ls_audit_sass(ls_audit *audit, const char *text, int64_t bytes, const char *file, const ls_ranges *ranges,
                        ls_error *err);
void ls_audit_deinit(ls_audit *audit);

#endif
