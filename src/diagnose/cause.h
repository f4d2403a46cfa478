/* Causes by name: what goes wrong, where to look for it, and what an experiment shows of it. Everything that finds,
 * compares or reports one has the enumerator; words are for people. */
#ifndef LS_DIAGNOSE_CAUSE_H
#define LS_DIAGNOSE_CAUSE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_cause {
    LS_CAUSE_NONE = 0,
#define LS_CAUSE_ROW(name, ...) LS_CAUSE_##name,
#include "diagnose/cause.def"
    LS_CAUSES
} ls_cause;

typedef enum ls_family {
    LS_FAMILY_NONE = 0,
    LS_FAMILY_SLOTS,
    LS_FAMILY_PAGES,
    LS_FAMILY_CACHE,
    LS_FAMILY_CHUNKS,
    LS_FAMILY_COMPANY, /* of sequences that run together */
    LS_FAMILY_LENGTHS,
    LS_FAMILY_DECODE,
    LS_FAMILY_PREEMPTION,
    LS_FAMILY_RACES,
    LS_FAMILY_SAMPLING,  /* the distribution that a record is of */
    LS_FAMILY_MISPLACED, /* the token that a record is of */
    LS_FAMILY_RECORDS,
    LS_FAMILY_TOKENS,
    LS_FAMILY_PRECISION,
    LS_FAMILY_WEIGHTS,
    LS_FAMILY_FORMULAS,
    LS_FAMILY_SEQUENCES,
    LS_FAMILY_FAILURES,
    LS_FAMILY_UNLISTED /* what is seen and has no cause: it is listed and keeps others from being named */
} ls_family;

/* What a cause demands besides verdicts. */
typedef enum ls_sign {
    LS_SIGN_NONE = 0,
    LS_SIGN_LATE,        /* each record is the value of the token before */
    LS_SIGN_UNREPEATABLE /* the baseline's second run is not the first */
} ls_sign;

/* What experiments (bits/bits_trials.h) show of it in an engine that promises bits. */
typedef struct ls_bits_pattern {
    const char *text, *look;      /* where they say more than those of any stack; or NULL */
    uint64_t large, small, moved; /* sets of experiments that must come out so, by bit 1 << ls_experiment */
    uint64_t any;                 /* these may come out in any way; all others must be clean */
    ls_sign sign;
} ls_bits_pattern;

typedef struct ls_cause_row {
    const char *name; /* "stale state of a reused slot" */
    ls_family family;
    const char *text;            /* what goes wrong, one sentence; NULL: no stack is told so */
    const char *look;            /* where to look for it */
    const char *look_of_records; /* the same where two records are all there is; NULL: no other place */
    bool is_fallback;            /* what is left when no explanation fits: it says less when not all were tried */
    ls_bits_pattern bits;        /* of zeros: its experiments do not know it */
} ls_cause_row;

const ls_cause_row *ls_cause_of(ls_cause cause);
const char *ls_cause_name(ls_cause cause);
bool ls_cause_is_of_bits(ls_cause cause);
/* Of an engine that promises bits. */
const char *ls_cause_bits_text(ls_cause cause);
const char *ls_cause_bits_look(ls_cause cause);
const char *ls_cause_records_look(ls_cause cause);

#endif
