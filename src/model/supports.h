/* Supports of the rows of a training step: which entries a truncated distribution (top-k, top-p, min-p) was drawn from.
 * A trainer finds a row's support once, in the forward that has the bits of the rollout, and keeps it: all later
 * updates of the step take log-probabilities of that support, however the weights have moved.
 *
 * A row costs what it keeps: the ids, or one bit for each entry where that is less. */
#ifndef LS_MODEL_SUPPORTS_H
#define LS_MODEL_SUPPORTS_H

#include "op/support.h"

typedef struct ls_supports {
    int64_t n_rows, vocab, words;
    int64_t *at;    /* [n_rows]: where a row begins in pool; -1: not found yet */
    int64_t *kept;  /* [n_rows]: entries of a row that is known */
    uint32_t *pool; /* ids ascending where they are fewer than words, else the words */
    int64_t used, cap;
} ls_supports;

ls_status ls_supports_create(ls_supports **out, int64_t n_rows, int64_t vocab, ls_error *err);
void ls_supports_free(ls_supports *supports); /* accepts NULL */
/* Forgets all rows. */
void ls_supports_clear(ls_supports *supports);
bool ls_supports_has(const ls_supports *supports, int64_t row);
/* bits [words], as op/support.h has them. */
ls_status ls_supports_put(ls_supports *supports, int64_t row, const uint32_t *bits, ls_error *err);
void ls_supports_get(const ls_supports *supports, int64_t row, uint32_t *bits);

/* A row as it is kept. */
typedef struct ls_support_row {
    int64_t kept, n; /* entries; n numbers have them: ids ascending, or where there are no fewer than words, these */
    const uint32_t *numbers; /* [n], borrowed until a row is put */
} ls_support_row;

ls_support_row ls_supports_row(const ls_supports *supports, int64_t row);
/* Puts a row of other supports of the same vocabulary, or one that came from outside: numbers that no support is kept
 * as are an error that names the row. */
ls_status ls_supports_put_row(ls_supports *supports, int64_t row, const ls_support_row *of, ls_error *err);

#endif
