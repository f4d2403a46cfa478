/* Two records of log-probabilities for the same tokens, measured against each other.
 *
 * A is the rollout side, r; B the trainer side, t, in the sense of measure/mismatch.h.
 *
 * Alignment. Sequences are matched by id; those that one side alone has are counted, and not compared. At least one
 * must be on both. Token ids must agree wherever both sides have them; text is never looked at. A line is of one of
 * three forms: completion (entries for the completion tokens), full (token_ids; entries for every token after the
 * first), or bare (entries only). Two lines of one form must have equally many entries. A completion line against a
 * full one is aligned at the end: the last entries of the longer list belong to those of the shorter one; what is
 * before them is not compared. A bare line is taken as whichever form makes it fit: equal counts, else aligned at the
 * end.
 *
 * Two lines that name their distributions (meta.logprob_of) must name the same one.
 *
 * Counting. A token is compared when both sides have a value. Bits are compared as bits, so 0.0 differs from -0.0; NaN
 * and +infinity, which no log-probability can be, are never equal to anything. Every other measure is over the tokens
 * that are finite on both sides. */
#ifndef LS_DIAGNOSE_COMPARE_COMPARE_H
#define LS_DIAGNOSE_COMPARE_COMPARE_H

#include <stdio.h>

#include "diagnose/compare/compare_causes.h"
#include "json/json_out.h"
#include "measure/mismatch.h"
#include "record/record.h"

#define LS_WORST_MAX 1000
enum { LS_COMPARE_PLACES = 256 };

/* A token whose bits differ. */
typedef struct ls_worst_token {
    const char *id; /* of A's record */
    int64_t sequence_i;
    int64_t position; /* of the compared entry in the shorter of the two lists, from 0 */
    int32_t token;    /* -1 when neither side has token ids */
    float a, b;
    int64_t ulps; /* number of float32 steps between them; -1 when one is NaN */
} ls_worst_token;

typedef struct ls_special_counts {
    int64_t nan, plus_infinity, minus_infinity, positive, zero;
} ls_special_counts;

typedef struct ls_comparison {
    int64_t n_sequences, n_sequences_different; /* of both sides */
    int64_t n_only_a, n_only_b;                 /* sequences of one side alone */
    int64_t n_error_a, n_error_b;               /* compared ones with finish "error", which are as far as they came */
    int64_t n_seeds_differ, n_temperatures_differ; /* of sequences where both sides tell theirs */
    int64_t n_sequences_without_ids; /* token ids on at most one side, so identity rests on the id alone */
    int64_t n_compared, n_equal, n_different;
    int64_t missing_a, missing_b, missing_both; /* of A only, of B only, of both */
    int64_t unaligned;                          /* entries before the common tail, not compared */
    ls_special_counts special_a, special_b;     /* over compared tokens */

    ls_mismatch measures;       /* over the tokens that are finite on both sides */
    const char *sequence_worst; /* id in A's record of measures.sequence_worst; NULL without a finite token */

    ls_compare_causes causes;            /* none where every bit is the same */
    double place_abs[LS_COMPARE_PLACES]; /* mean abs d by place in the common tail; the last holds all further ones */
    int64_t place_n[LS_COMPARE_PLACES];

    const char *digest; /* of numerics, that every compared record has; NULL: not all say it, or not the same */

    ls_worst_token *worst; /* largest abs d first; not-finite pairs before all */
    int64_t n_worst;
} ls_comparison;

/* The records of one file. */
typedef struct ls_compared {
    const ls_record *records;
    int64_t n;
    const char *name; /* starts error sentences */
} ls_compared;

/* Strings in *out point into a. An error when no id is on both sides, when token ids do not match up or when there is
 * no token to compare. */
ls_status ls_compare(ls_comparison *out, const ls_compared *a, const ls_compared *b, int64_t worst_max, ls_error *err);
void ls_comparison_deinit(ls_comparison *comparison);

/* True when every token has the same bits, and no token and no sequence is on one side only. */
bool ls_comparison_same(const ls_comparison *comparison);

/* A table for people. */
void ls_comparison_print(FILE *file, const ls_comparison *comparison, const char *name_a, const char *name_b);
/* A page that stands alone: no scripts, no outside files. */
void ls_comparison_html(FILE *file, const ls_comparison *comparison, const char *name_a, const char *name_b);
/* One JSON object with its newline; "aliases" repeats the measures under the names of other trainers' dashboards. */
void ls_comparison_write(ls_json_out *json, const ls_comparison *comparison, const char *name_a, const char *name_b);

#endif
