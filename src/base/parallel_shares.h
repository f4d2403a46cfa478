/* How many processors each of two callers uses that have the same ones: an account without a lock. It says into how
 * many parts a parallel range is cut, which carries no bits (base/parallel.h).
 *
 * One caller is at home. While it works, the one beside it has `most` processors, and home has what the other does not
 * hold. A caller works while it is in a range, and for QUIET behind its last one; who waits, for whatever, or computes
 * alone for longer gives all of its processors to the other. What is held follows the ranges: as many as the widest of
 * the last WINDOW took, at most `most`. So one with few rows, whose ranges are not worth more, holds few.
 *
 * A range keeps what it was given to its end: for so long both together may have more than there are. */
#ifndef LS_BASE_PARALLEL_SHARES_H
#define LS_BASE_PARALLEL_SHARES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum ls_side { LS_SIDE_HOME, LS_SIDE_BESIDE, LS_SIDES } ls_side;

#define LS_SHARES_QUIET 0.001 /* seconds */
#define LS_SHARES_WINDOW 256  /* ranges */

/* Written by the caller of that side alone. */
typedef struct ls_share {
    atomic_bool is_in_range;
    _Atomic(double) last; /* when its last range ended; before the first: long ago */
    atomic_int held;      /* the widest of the window before, or of this one */
    int32_t widest;       /* of this window */
    int32_t n_ranges;     /* of this window */
    char apart[64];
} ls_share;

typedef struct ls_shares {
    int32_t n, most;
    ls_share of[LS_SIDES];
} ls_shares;

/* 1 <= most, n processors. One of two keeps one: while both work, no more than n - 1 are beside, or 1 of 1. */
void ls_shares_init(ls_shares *shares, int32_t n, int32_t most);
/* What a range may take that begins now (seconds of base/clock.h), 1..n, its caller included. */
int32_t ls_shares_limit(const ls_shares *shares, ls_side side, double now);
/* A range begins that is worth so many parts: how many it gets, 1..worth. Each is followed by an end. */
int32_t ls_shares_begin(ls_shares *shares, ls_side side, int32_t worth, double now);
void ls_shares_end(ls_shares *shares, ls_side side, double now);
/* The widest of its ranges lately, 1..n: as many threads are worth keeping awake. */
int32_t ls_shares_held(const ls_shares *shares, ls_side side);

#endif
