/* A batch of sequences as the rows that the trainer learns from. */
#include <stdlib.h>

#include "api/api_state.h"
#include "base/mem.h"

ls_status ls_api_rows_create(ls_api_rows *r, int64_t sequences_max, int64_t length_max, ls_error *err) {
    int64_t rows;
    if (!ls_mul_i64(sequences_max, length_max, &rows))
        return LS_FAIL(err, LS_ERR_NOMEM, "a batch of %lld sequences of %lld tokens", (long long)sequences_max,
                       (long long)length_max);
    LS_TRY(ls_array_alloc((void **)&r->offsets, sequences_max + 1, sizeof *r->offsets, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->sums, sequences_max, sizeof *r->sums, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->targets, rows, sizeof *r->targets, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->tokens, rows, sizeof *r->tokens, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->mask, rows, sizeof *r->mask, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->recorded, rows, sizeof *r->recorded, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->reference, rows, sizeof *r->reference, "rows", err));
    return ls_array_alloc((void **)&r->trainer, rows, sizeof *r->trainer, "rows", err);
}

void ls_api_rows_free(ls_api_rows *r) {
    free(r->offsets);
    free(r->sums);
    free(r->targets);
    free(r->tokens);
    free(r->mask);
    free(r->recorded);
    free(r->reference);
    free(r->trainer);
}

/* Row `row` is the one that predicts token t of the batch. */
static void fill_row(ls_api_rows *r, const lockstep_batch *b, int64_t row, int64_t t) {
    const bool counts = b->mask == NULL || b->mask[t] != 0;
    r->tokens[row] = b->tokens[t - 1];
    r->targets[row] = counts ? b->tokens[t] : -1;
    r->mask[row] = counts;
    r->recorded[row] = counts && b->recorded != NULL ? b->recorded[t] : 0.0f;
    r->reference[row] = counts && b->reference != NULL ? b->reference[t] : 0.0f;
    r->n_targets += counts;
}

void ls_api_rows_fill(ls_api_rows *r, const lockstep_batch *b) {
    int64_t row = 0;
    r->n = b->n;
    r->n_targets = 0;
    for (int64_t s = 0; s < b->n; s++) {
        r->offsets[s] = row;
        for (int64_t t = b->offsets[s] + 1; t < b->offsets[s + 1]; t++) fill_row(r, b, row++, t);
    }
    r->offsets[b->n] = row;
}
