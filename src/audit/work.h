/* The analysis of one function, shared by the files that do its parts: symbols, the sum of every definition, facts of
 * blocks, ranges, checks. */
#ifndef LS_AUDIT_WORK_H
#define LS_AUDIT_WORK_H

#include "audit/flow.h"
#include "audit/poly.h"
#include "audit/ranges.h"

typedef enum ls_symbol_kind {
    LS_SYMBOL_PARAMETER,
    LS_SYMBOL_TID,
    LS_SYMBOL_CTAID,
    LS_SYMBOL_NTID,
    LS_SYMBOL_NCTAID,
    LS_SYMBOL_LOADED,
    LS_SYMBOL_VARIABLE, /* the address of a variable */
    LS_SYMBOL_RESULT,   /* of an operation that is no sum or product; `rule` bounds it */
    LS_SYMBOL_JOIN,     /* one of several values */
    LS_SYMBOL_LOOP,     /* what a register holds at the head of a loop */
    LS_SYMBOL_TURN      /* the turn of a loop, from 0 */
} ls_symbol_kind;

/* How a RESULT is bounded by its operands a and b. */
typedef enum ls_rule {
    LS_RULE_TYPE,     /* low and high are all that is known */
    LS_RULE_QUOTIENT, /* floor(a / b), b > 0 */
    LS_RULE_REST,     /* a mod b */
    LS_RULE_HIGH,     /* a * b >> shift */
    LS_RULE_AND,
    LS_RULE_OR,
    LS_RULE_XOR,
    LS_RULE_MIN,
    LS_RULE_MAX,
    LS_RULE_ABS,
    LS_RULE_POWER, /* 2^a */
    LS_RULE_SAME   /* something of a's range: a shuffle */
} ls_rule;

typedef struct ls_kept {
    int32_t first, n; /* in terms; n = -1: lost */
} ls_kept;

typedef struct ls_symbol {
    uint8_t kind, rule, bits, axis, subject;
    bool is_declared, is_affine, is_vague, is_ranged, is_open; /* open: its range is being found */
    int32_t block, value;                                      /* where it is defined, -1 everywhere; its definition */
    int32_t parameter, shift;
    int64_t offset, line;
    ls_kept a, b;             /* RESULT: operands. LOOP that is affine: start and step */
    int32_t turn;             /* LOOP that is affine: its TURN */
    int32_t a_block, b_block; /* JOIN: from where each comes, 0 where that says nothing */
    ls_range type, range;     /* what is known without operands; what was found */
    const char *name;         /* declared, or NULL */
} ls_symbol;

/* A place where the 32 or 16 bits of a sum become a wider number, or are taken as one. */
typedef struct ls_check {
    int32_t at, block, next; /* instruction; next check of the same definition, -1 */
    int32_t source;          /* the definition that is taken, -1 */
    ls_kept sum;
    ls_range window;
    uint8_t state;  /* ls_state */
    int32_t access; /* the first access that it reaches, -1 */
    int32_t n_accesses;
    const char *reason; /* why nothing is known, where that does not lie in the sum; else NULL */
} ls_check;

typedef enum ls_state { LS_STATE_NEW, LS_STATE_EXACT, LS_STATE_UNKNOWN, LS_STATE_WRAPS } ls_state;

/* What is known of one definition. */
typedef struct ls_cell {
    ls_kept sum;
    int32_t check;   /* the first check of its instruction, -1 */
    int32_t compare; /* predicates: the instruction that compares, -1 */
    uint8_t through; /* whether its operands' truth is its own: sums yes, loads no */
} ls_cell;

/* sum <= bound, in a block and all that it dominates. */
typedef struct ls_fact {
    ls_kept sum;
    ls_wide bound;
    int32_t next;
} ls_fact;

typedef struct ls_work {
    const ls_ptx_function *f;
    const ls_flow *flow;
    const ls_ranges *ranges;
    const char *file;
    ls_term *terms;
    int64_t n_terms, cap_terms;
    ls_symbol *symbols;
    int64_t n_symbols, cap_symbols;
    ls_cell *cells; /* [flow->n_values] */
    int64_t cap_cells;
    ls_check *checks;
    int64_t n_checks, cap_checks;
    ls_fact *facts;
    int64_t n_facts, cap_facts;
    int32_t *block_facts; /* [blocks] the first fact, -1 */
    int64_t cap_block_facts;
    int32_t *turns; /* [blocks] the TURN of a loop's head, -1 */
    int64_t cap_turns;
    int32_t axis[4][3];
    ls_range threads[3]; /* of nctaid * ntid */
    int32_t tentative;   /* ranges found now are not kept */
    int32_t depth;
    bool turn_declared, turn_vague; /* of what bounds the turn that is being bounded */
    int64_t budget;                 /* of one range */
} ls_work;

ls_status ls_work_keep(ls_work *work, ls_kept *out, const ls_sum *sum, ls_error *err);
void ls_work_sum(const ls_work *work, ls_sum *out, ls_kept kept);

/* Gives every definition its sum and makes the checks. */
ls_status ls_work_evaluate(ls_work *work, ls_error *err);

/* Loops whose registers move by the same step each turn; then facts of blocks, turns of loops. */
ls_status ls_work_bound(ls_work *work, ls_error *err);

/* Writes loops' registers as start + turn * step. */
void ls_work_expand(const ls_work *work, ls_sum *sum);
/* The range of a sum in a block. */
ls_range ls_work_range(ls_work *work, const ls_sum *sum, int32_t block);
/* The same without the facts of blocks, with one symbol in a range of its own. */
ls_wide ls_work_high_with(ls_work *work, const ls_sum *sum, int32_t block, int32_t symbol, ls_range range);
ls_range ls_work_symbol_range(ls_work *work, int32_t symbol);

/* Whether every value of the sum has a declared range, or one that the machine gives. */
bool ls_work_declared(const ls_work *work, const ls_sum *sum);
/* The same of one symbol, through what it is made of as far as depth. */
bool ls_work_is_declared(const ls_work *work, int32_t symbol, int depth);

/* Whether a part of the sum is bounded by nothing that is seen. */
bool ls_work_is_vague(const ls_work *work, const ls_sum *sum);

/* How far a value surely stays below a power of two: the bits that can be set, 64 where that is not seen. */
int32_t ls_work_bits(const ls_work *work, const ls_sum *sum);
/* Whether every factor of the sum is a multiple of 2^bits. */
bool ls_work_aligned(const ls_sum *sum, int32_t bits);

void ls_work_deinit(ls_work *work);

#endif
