/* From machine code to the form that flow.c and evaluate.c work on: 32-bit registers stay what they are, and every pair
 * of them that is taken as one number of 64 bits (an address, the summand of a wide product, a comparison in two steps)
 * becomes a register of 64 bits of its own, found by what its halves are: the two results of one instruction, a sum
 * and the sum that takes its carry, zero or the sign above a number, halves that meet in the same block. A pair that is
 * none of these makes what depends on it unknown. */
#ifndef LS_AUDIT_SASS_LOWER_H
#define LS_AUDIT_SASS_LOWER_H

#include "audit/flow.h"
#include "audit/sass.h"

typedef enum ls_register_half_kind {
    LS_REGISTER_HALF_NONE,
    LS_REGISTER_HALF_VALUE,  /* a definition */
    LS_REGISTER_HALF_NUMBER, /* 32 bits, with sign */
    LS_REGISTER_HALF_BANK,   /* 32 bits at an offset of constant bank 0 */
    LS_REGISTER_HALF_SIGN    /* above another: its sign */
} ls_register_half_kind;

typedef struct ls_register_half {
    int32_t kind;
    int32_t value; /* the definition, the number or the offset */
} ls_register_half;

typedef enum ls_pair_rule {
    LS_PAIR_PARTS, /* not understood */
    LS_PAIR_NUMBER,
    LS_PAIR_BANK,
    LS_PAIR_ZERO,
    LS_PAIR_SIGN,
    LS_PAIR_WIDE, /* a wide product; the part: its summand */
    LS_PAIR_LOAD,
    LS_PAIR_GIVEN, /* of an instruction whose result is any number */
    LS_PAIR_SUM,
    LS_PAIR_PRODUCT, /* parts: factor, factor, summand */
    LS_PAIR_JOIN,    /* parts: one for each way in */
    LS_PAIR_EITHER,
    LS_PAIR_RIGHT, /* shifted to the right */
    LS_PAIR_AND
} ls_pair_rule;

typedef struct ls_pair_part {
    int32_t pair; /* -1: none */
    int64_t factor;
} ls_pair_part;

typedef struct ls_register_pair {
    ls_register_half low, high;
    int32_t guard; /* the predicate's definition under which it is taken, -1 for none: what it guards is done then */
    bool guard_not;
    bool is_signed, is_emitted, is_emitting;
    uint8_t rule;
    int32_t next;          /* of the bucket */
    int32_t by, at;        /* the instruction that takes it, and the one that makes it */
    int32_t block, behind; /* where its register is set: behind this instruction, -1 at the start of the block */
    int32_t chained;       /* the next one that is set at the same place */
    int32_t first, n;      /* parts */
    int64_t number;
    int32_t reg, inner; /* of 64 bits; JOIN: what the ways in set */
} ls_register_pair;

enum { LS_PAIR_BUCKETS = 8192 };

typedef struct ls_sass_lowering {
    const ls_sass_function *from;
    const ls_ptx_function *f;
    const char *name;
    ls_flow flow;
    ls_ptx_function out;
    ls_register_pair *pairs;
    int64_t n_pairs, cap_pairs;
    ls_pair_part *parts;
    int64_t n_parts, cap_parts;
    int32_t *snapshots; /* [values]: the register that keeps it, -1 */
    int32_t *behind;    /* [instructions]: the first pair that is set behind it, -1 */
    int32_t *starts;    /* [blocks]: the first pair that is set at its start */
    int32_t *kept;      /* [blocks]: the first join of the block that is kept; chained */
    int32_t *kept_next; /* [values] */
    int32_t *places;    /* [instructions + 1] of the function that comes out */
    int64_t cap_snapshots, cap_behind, cap_starts, cap_kept, cap_kept_next, cap_places;
    int32_t guard; /* as of a pair, while one is looked at */
    bool guard_not;
    int32_t buckets[LS_PAIR_BUCKETS];
} ls_sass_lowering;

/* Fills l->out, which lives until the next call; all zero before the first. `name` starts the errors. */
ls_status ls_sass_lower(ls_sass_lowering *l, const ls_sass_function *function, const char *name, ls_error *err);
void ls_sass_lowering_deinit(ls_sass_lowering *l);

/* Finds what every pair that the function takes is made of (sass_pair.c). */
ls_status ls_sass_find_pairs(ls_sass_lowering *l, ls_error *err);
/* The half that an operand is, -1 and NONE for what is none. */
ls_register_half ls_sass_half_of(const ls_sass_lowering *l, int32_t operand);
/* The pair of two halves under l->guard, -1 where it was never found. */
int32_t ls_sass_pair_of(const ls_sass_lowering *l, ls_register_half low, ls_register_half high);
/* Sets l->guard to what holds where an instruction stands. */
void ls_sass_enter(ls_sass_lowering *l, int32_t at);
/* The comparison of the lower halves, for one of the upper halves; -1. */
int32_t ls_sass_lower_compare(const ls_sass_lowering *l, int32_t at);

#endif
