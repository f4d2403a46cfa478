/* Rows of a forward that computes what sequences have in common once.
 *
 * Sequences come in groups of neighbours. Where the tokens of some of a group are the same up to a place, the rows
 * before it become a trunk, and theirs begin behind it:
 *   A set of sequences begins with the whole group at row 0. Its tokens agree up to row e, where two differ or one
 *   ends. With e - 1 - row at least LS_TRUNK_LEAST rows [row, e - 1) are a trunk; what follows begins at e - 1, so that
 *   a row of a trunk has one target at most. Then the set falls into those that have the same token at row e, one that
 *   ends there being alone, in the order of their first sequences; each is a set again. A sequence alone is a branch.
 * Trunks and branches lie in this order, each trunk before what continues it. All of this follows from the group's
 * tokens alone.
 *
 * A row that several sequences have gets the sum of their gradients, one float32 chain from +0 over them in order. */
#ifndef LS_TRAIN_SHARED_ROWS_H
#define LS_TRAIN_SHARED_ROWS_H

#include "base/status.h"

/* Rows of the shortest trunk: less costs more calls than it saves. Carries bits of gradients. */
#define LS_TRUNK_LEAST 8

typedef struct ls_shared_opts {
    int64_t group;               /* sequences */
    int64_t rows_max, spans_max; /* of the forward: tokens, trunks and branches */
    int64_t whole_rows_max;      /* tokens of its sequences */
    bool entropy;
} ls_shared_opts;

/* Of a forward; rows of sequences count from the forward's first. */
typedef struct ls_shared_rows {
    ls_shared_opts opts;
    int64_t n_spans, n_rows;
    int32_t *tokens;            /* [n_rows] */
    int64_t *targets, *sources; /* [n_rows]; sources: the sequences' row that the target is of */
    int64_t *offsets, *parents; /* [n_spans + 1], [n_spans]: as ls_tape_forward_trees takes them */
    int64_t *begins;            /* [groups + 1]: the first span of each group */
    int64_t *rows;              /* [whole rows]: of each row of the sequences, that here */
    float *logprob, *entropy, *d_logprob, *d_entropy; /* [n_rows]; entropy and d_entropy NULL unless asked for */
    int64_t *members, *moved;                         /* [group] */
} ls_shared_rows;

/* Sequence i is tokens [offsets[i], offsets[i + 1]); a target of -1 is none. */
typedef struct ls_whole_rows {
    const int32_t *tokens;
    const int64_t *offsets, *targets;
} ls_whole_rows;

ls_status ls_shared_rows_create(ls_shared_rows **out, const ls_shared_opts *opts, ls_error *err);
void ls_shared_rows_free(ls_shared_rows *shared); /* accepts NULL */
/* What a forward of the groups of sequences [first, end) has: adds to *rows and *spans. */
void ls_shared_rows_count(ls_shared_rows *shared, const ls_whole_rows *whole, int64_t first, int64_t end, int64_t *rows,
                          int64_t *spans);
/* Lays the groups of sequences [first, end) out, which fit. */
void ls_shared_rows_lay_out(ls_shared_rows *shared, const ls_whole_rows *whole, int64_t first, int64_t end);
/* Of n rows of the sequences, from those here: 0 where there is no target. */
void ls_shared_rows_spread(const ls_shared_rows *shared, const int64_t *targets, int64_t n, const float *from,
                           float *to);
/* The other way round: sums. */
void ls_shared_rows_gather(const ls_shared_rows *shared, const int64_t *targets, int64_t n, const float *from,
                           float *to);

#endif
