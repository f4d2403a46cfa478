/* A trainer on paper: what a step will ask of the device's workspace. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/supports.h"
#include "train/trainer_state.h"

ls_train_outlook ls_trainer_outlook(const ls_trainer *t) {
    const ls_parameters *p = t->state.parameters;
    return (ls_train_outlook){.parameters = t->state.weights->n_elements,
                              .learnt = p->end - p->begin,
                              .moment_bytes = 2 * ls_dtype_bytes(t->state.moments),
                              .halves = 2 * (int64_t)t->state.weights->model->config.n_layers,
                              .host_gradient_bytes = ls_gradient_host_bytes(t->gradient)};
}

/* n sequences of about as many tokens each, `rows` together; of a trunk above 0 the first has so many, and the others
 * continue it. */
static ls_status rehearse_shape(ls_trainer *t, int64_t n, int64_t rows, int64_t trunk, float *gradient, ls_error *err) {
    const int64_t first = trunk > 0, each = (rows - trunk) / (n - first), longer = (rows - trunk) % (n - first);
    int64_t *offsets = NULL, *targets = NULL, *parents = NULL;
    int32_t *tokens = NULL;
    float *values = NULL;
    ls_supports *supports = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&offsets, n + 1, sizeof *offsets, "rehearsal", err));
    LS_TRY_DONE(ls_array_alloc((void **)&targets, rows, sizeof *targets, "rehearsal", err));
    LS_TRY_DONE(ls_array_alloc((void **)&tokens, rows, sizeof *tokens, "rehearsal", err));
    LS_TRY_DONE(ls_array_alloc((void **)&values, rows, sizeof *values, "rehearsal", err));
    LS_TRY_DONE(ls_array_alloc((void **)&parents, n, sizeof *parents, "rehearsal", err));
    for (int64_t i = first; i <= n; i++) offsets[i] = trunk + (i - first) * each + ls_min_i64(i - first, longer);
    for (int64_t i = 0; i < n; i++) parents[i] = i < first ? -1 : 0;
    for (int64_t i = 0; i < rows; i++) values[i] = 1.0f;
    if (t->opts.truncation != NULL)
        LS_TRY_DONE(ls_supports_create(&supports, rows, t->state.weights->model->config.vocab, err));
    LS_TRY_DONE(ls_tape_forward_trees(t->tape, tokens, offsets, trunk > 0 ? parents : NULL, n, err));
    ls_tape_support(t->tape, supports, 0, NULL);
    LS_TRY_DONE(ls_tape_logprob(t->tape, targets, t->logprob, t->entropy, err));
    const ls_leaf_part part = {.begin = 0,
                               .end = n,
                               .targets = targets,
                               .d_logprob = values,
                               .d_entropy = t->opts.entropy ? values : NULL,
                               .is_first = true,
                               .is_last = true};
    LS_TRY_DONE(ls_tape_backward(t->tape, &part, gradient, err));
done:
    ls_supports_free(supports);
    free(values);
    free(parents);
    free(tokens);
    free(targets);
    free(offsets);
    return status;
}

/* A group whose sequences are all as long as can be, and have the trunk with which they fill a forward. */
static ls_status rehearse_group(ls_trainer *t, int64_t longest, float *gradient, ls_error *err) {
    const int64_t n = t->opts.group, rows = ls_min_i64(t->opts.rows_max, 1 + n * (longest - 1));
    if (n < 2 || longest < 2) return LS_OK;
    return rehearse_shape(t, n + 1, rows, (n * longest - rows) / (n - 1), gradient, err);
}

ls_status ls_trainer_rehearse(ls_trainer *t, int64_t longest, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    const int64_t spans = o->spans_max, most = ls_min_i64(o->rows_max, spans * longest), few = (most - 1) / longest + 1;
    float *gradient;
    ls_gradient_begin(t->gradient);
    LS_TRY(ls_gradient_leaf(t->gradient, t->state.parameters->shared == NULL, &gradient, err));
    LS_TRY(rehearse_shape(t, few, most, 0, gradient, err));
    LS_TRY(rehearse_shape(t, ls_min_i64(spans, most), most, 0, gradient, err));
    LS_TRY(rehearse_group(t, longest, gradient, err));
    return ls_gradient_fold(t->gradient, err);
}
