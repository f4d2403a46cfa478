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

/* n sequences of about as many tokens each, `rows` together. */
static ls_status rehearse_shape(ls_trainer *t, int64_t n, int64_t rows, float *gradient, ls_error *err) {
    int64_t *offsets = NULL, *targets = NULL;
    int32_t *tokens = NULL;
    float *values = NULL;
    ls_supports *supports = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&offsets, n + 1, sizeof *offsets, "rehearsal", err));
    LS_TRY_DONE(ls_array_alloc((void **)&targets, rows, sizeof *targets, "rehearsal", err));
    LS_TRY_DONE(ls_array_alloc((void **)&tokens, rows, sizeof *tokens, "rehearsal", err));
    LS_TRY_DONE(ls_array_alloc((void **)&values, rows, sizeof *values, "rehearsal", err));
    for (int64_t i = 0; i <= n; i++) offsets[i] = i * (rows / n) + ls_min_i64(i, rows % n);
    for (int64_t i = 0; i < rows; i++) values[i] = 1.0f;
    if (t->opts.truncation != NULL)
        LS_TRY_DONE(ls_supports_create(&supports, rows, t->state.weights->model->config.vocab, err));
    LS_TRY_DONE(ls_tape_forward(t->tape, tokens, offsets, n, err));
    ls_tape_support(t->tape, supports, 0);
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
    free(tokens);
    free(targets);
    free(offsets);
    return status;
}

ls_status ls_trainer_rehearse(ls_trainer *t, int64_t longest, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    const int64_t spans = o->spans_max, most = ls_min_i64(o->rows_max, spans * longest), few = (most - 1) / longest + 1;
    float *gradient;
    ls_gradient_begin(t->gradient);
    LS_TRY(ls_gradient_leaf(t->gradient, t->state.parameters->shared == NULL, &gradient, err));
    LS_TRY(rehearse_shape(t, few, most, gradient, err));
    LS_TRY(rehearse_shape(t, ls_min_i64(spans, most), most, gradient, err));
    return ls_gradient_fold(t->gradient, err);
}
