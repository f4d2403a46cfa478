/* What rounding does to the log-probabilities of a completion, by the reference forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/rounding/inquiry.h"

static double logprob(const double *row, int64_t vocab, int32_t token) {
    double most = row[0], sum = 0.0;
    for (int64_t i = 1; i < vocab; i++) most = fmax(most, row[i]);
    for (int64_t i = 0; i < vocab; i++) sum += exp(row[i] - most);
    return row[token] - most - log(sum);
}

ls_status ls_values_of_edits(ls_inquiry *q, const ls_outcome *c, int64_t n, const ls_edit *edits, int64_t n_edits,
                             double *out, ls_error *err) {
    const int64_t vocab = ls_reference_config(q->reference)->vocab, length = c->n_prompt + n;
    int32_t *tokens = NULL;
    double *rows = NULL;
    ls_status status;
    int64_t elements;
    if (!ls_mul_i64(length, vocab, &elements)) return LS_FAIL(err, LS_ERR_NOMEM, "logits of the reference forward");
    LS_TRY_DONE(ls_array_alloc((void **)&tokens, length, sizeof *tokens, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&rows, elements, sizeof *rows, "logits", err));
    memcpy(tokens, c->prompt, (size_t)c->n_prompt * sizeof *tokens);
    memcpy(tokens + c->n_prompt, c->completion, (size_t)n * sizeof *tokens);
    for (int64_t e = 0; e < n_edits; e++) {
        LS_TRY_DONE(ls_reference_logits(q->reference, &edits[e], tokens, length, rows, err));
        for (int64_t i = 0; i < n; i++)
            out[e * n + i] = logprob(rows + (c->n_prompt + i - 1) * vocab, vocab, c->completion[i]);
    }
done:
    free(tokens);
    free(rows);
    return status;
}

ls_status ls_rounding_of(ls_inquiry *q, const ls_outcome *c, int64_t n, double *out, ls_error *err) {
    static const ls_edit edits[2] = {{.layer = -1},
                                     {.layer = -1,
                                      .weights = LS_CHANGED_BF16,
                                      .everything = true,
                                      .activations = LS_ROUND_BF16,
                                      .keys = LS_ROUND_BF16}};
    double *values = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&values, n, 2 * sizeof *values, "log-probabilities", err));
    LS_TRY_DONE(ls_values_of_edits(q, c, n, edits, 2, values, err));
    for (int64_t i = 0; i < n; i++) out[i] = values[n + i] - values[i];
done:
    free(values);
    return status;
}

ls_status ls_sensitivity(ls_inquiry *q, const ls_outcome *c, double *out, ls_error *err) {
    static const ls_edit edits[4] = {{.layer = -1},
                                     {.layer = -1, .activations = LS_ROUND_BF16},
                                     {.layer = -1, .activations = LS_ROUND_F16},
                                     {.layer = -1, .keys = LS_ROUND_F16}};
    double *values = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&values, c->n, 4 * sizeof *values, "log-probabilities", err));
    LS_TRY_DONE(ls_values_of_edits(q, c, c->n, edits, 4, values, err));
    for (int64_t i = 0; i < c->n; i++) { /* f16 has three bits more */
        const double of_bf16 = fabs(values[c->n + i] - values[i]), of_f16 = fabs(values[2 * c->n + i] - values[i]);
        out[i] = fmax(of_bf16, 8.0 * fmax(of_f16, fabs(values[3 * c->n + i] - values[i])));
    }
done:
    free(values);
    return status;
}

ls_status ls_cut_effects(ls_inquiry *q, const ls_outcome *c, int64_t every, double *out, ls_error *err) {
    ls_edit edits[1 + LS_LOST_KINDS] = {{.layer = -1}};
    double values[1 + LS_LOST_KINDS];
    for (int k = 0; k < LS_LOST_KINDS; k++)
        edits[1 + k] = (ls_edit){.layer = -1, .lose = 1 << k, .cut_every = every, .cut_before = c->n_prompt};
    LS_TRY(ls_values_of_edits(q, c, 1, edits, 1 + LS_LOST_KINDS, values, err));
    for (int k = 0; k < LS_LOST_KINDS; k++) out[k] = fabs(values[1 + k] - values[0]);
    return LS_OK;
}
