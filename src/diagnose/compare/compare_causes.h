/* What a difference of two records looks like: the causes that its structure fits, each with a confidence. No model is
 * at hand here, so only what can be seen in the numbers, the tokens and what the records tell of slots, cache hits and
 * preemptions counts. */
#ifndef LS_DIAGNOSE_COMPARE_COMPARE_CAUSES_H
#define LS_DIAGNOSE_COMPARE_COMPARE_CAUSES_H

#include "diagnose/finding.h"
#include "measure/mismatch.h"
#include "record/record.h"

typedef struct ls_compare_causes {
    ls_findings found;
    double floor, limit; /* lower quartile of |d|; |d| from which on a token is off */
    int64_t n_off, n_sequences_off;
    bool rounding; /* nothing stands out of what rounding does */
} ls_compare_causes;

/* One sequence as it is compared: its records, and the pairs [from, to) of it, whose positions count in the common
 * tail. */
typedef struct ls_compare_sequence {
    const ls_record *a, *b;
    int64_t from, to;
    int64_t n_tail; /* entries of the common tail */
} ls_compare_sequence;

ls_status ls_compare_explain(ls_compare_causes *out, const ls_mismatch_pair *pairs, int64_t n,
                             const ls_compare_sequence *sequences, int64_t n_sequences, ls_error *err);
/* The cause that is named: the best one when it is sure enough and no other is as sure; else NULL. */
const ls_finding *ls_compare_named(const ls_compare_causes *causes);

#endif
