/* Rows of logits, looked at on the host. */
#include "rollout/sight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/choice.h"
#include "op/logprob.h"
#include "op/logprob_math.h"
#include "op/top.h"

struct ls_sight_tools {
    ls_device *device; /* one thread of the CPU */
    int32_t vocab;
    int64_t n_leaves;
    ls_logprob_leaf *leaves;
    float *logits, *processed; /* [V] */
    int32_t *sort_space;
    ls_sampling *sampling;
    int64_t *target, *kept;
    float *target_z, *temperature;
};

static ls_status own(ls_sight_tools *t, void *out, int64_t count, int64_t bytes, ls_error *err) {
    return ls_memory_alloc(t->device, out, count, bytes, "row of logits", err);
}

ls_status ls_sight_tools_create(ls_sight_tools **out, int32_t vocab, ls_error *err) {
    ls_sight_tools *t = calloc(1, sizeof *t);
    const ls_logprob_shard_args args = {.rows = 1, .vocab = vocab};
    ls_status status;
    *out = NULL;
    if (t == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "row of logits");
    t->vocab = vocab;
    t->n_leaves = ls_logprob_leaves(vocab);
    LS_TRY_DONE(ls_device_open_named(&t->device, "cpu", 1, ls_isa_best(), err));
    LS_TRY_DONE(ls_device_prepare(t->device, ls_op_logprob_shard_workspace(&args), err));
    LS_TRY_DONE(own(t, &t->leaves, t->n_leaves, sizeof *t->leaves, err));
    LS_TRY_DONE(own(t, &t->logits, vocab, sizeof *t->logits, err));
    LS_TRY_DONE(own(t, &t->processed, vocab, sizeof *t->processed, err));
    LS_TRY_DONE(own(t, &t->sort_space, 2 * (int64_t)vocab, sizeof *t->sort_space, err));
    LS_TRY_DONE(own(t, &t->sampling, 1, sizeof *t->sampling, err));
    LS_TRY_DONE(own(t, &t->target, 1, sizeof *t->target, err));
    LS_TRY_DONE(own(t, &t->kept, 1, sizeof *t->kept, err));
    LS_TRY_DONE(own(t, &t->target_z, 1, sizeof *t->target_z, err));
    LS_TRY_DONE(own(t, &t->temperature, 1, sizeof *t->temperature, err));
    *out = t;
    t = NULL;
done:
    ls_sight_tools_free(t);
    return status;
}

void ls_sight_tools_free(ls_sight_tools *t) {
    if (t == NULL) return;
    if (t->device != NULL) {
        void *const arrays[] = {t->leaves, t->logits, t->processed, t->sort_space, t->sampling,
                                t->target, t->kept,   t->target_z,  t->temperature};
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) ls_memory_free(t->device, arrays[i]);
    }
    ls_device_close(t->device);
    free(t);
}

ls_status ls_sights_init(ls_sights *s, int64_t n_rows, int64_t wanted_top, bool distributions, bool mask,
                         ls_error *err) {
    *s = (ls_sights){.n_rows = n_rows, .top = wanted_top > 0 ? wanted_top : 0};
    if (wanted_top >= 0) LS_TRY(ls_array_alloc((void **)&s->rank, n_rows, sizeof *s->rank, "ranks", err));
    if (wanted_top > 0) {
        LS_TRY(ls_array_alloc((void **)&s->top_id, n_rows, s->top * (int64_t)sizeof *s->top_id, "alternatives", err));
        LS_TRY(ls_array_alloc((void **)&s->top_logprob, n_rows, s->top * (int64_t)sizeof(float), "alternatives", err));
    }
    if (distributions) {
        LS_TRY(ls_array_alloc((void **)&s->raw, n_rows, sizeof *s->raw, "distributions", err));
        LS_TRY(ls_array_alloc((void **)&s->processed, n_rows, sizeof *s->processed, "distributions", err));
        LS_TRY(ls_array_alloc((void **)&s->kept_mass, n_rows, sizeof *s->kept_mass, "distributions", err));
        LS_TRY(ls_array_alloc((void **)&s->kept, n_rows, sizeof *s->kept, "distributions", err));
    }
    if (!mask) return LS_OK;
    return ls_array_alloc((void **)&s->mask, n_rows, LS_SIGHT_MASK_MAX * (int64_t)sizeof *s->mask, "masks", err);
}

void ls_sights_deinit(ls_sights *s) {
    free(s->mask);
    free(s->kept_mass);
    free(s->kept);
    free(s->processed);
    free(s->raw);
    free(s->rank);
    free(s->top_logprob);
    free(s->top_id);
    *s = (ls_sights){0};
}

/* Leaves of a row at a temperature. */
static ls_status make_leaves(ls_sight_tools *t, const float *logits, float temperature, ls_error *err) {
    const ls_logprob_shard_args args = {.logits = logits,
                                        .dtype = LS_F32,
                                        .rows = 1,
                                        .vocab = t->vocab,
                                        .row_stride = t->vocab,
                                        .total = t->vocab,
                                        .targets = t->target,
                                        .ignore_index = -1,
                                        .temperature = temperature == 1.0f ? NULL : t->temperature,
                                        .leaves = t->leaves,
                                        .leaf_stride = t->n_leaves,
                                        .target_z = t->target_z};
    *t->target = 0;
    *t->temperature = temperature;
    return ls_logprob_shard(t->device, &args, err);
}

/* The leaf of a whole row: leaves joined in the aligned binary tree over their numbers. */
static ls_status sum_row(ls_sight_tools *t, const float *logits, float temperature, ls_logprob_leaf *out,
                         ls_error *err) {
    LS_TRY(make_leaves(t, logits, temperature, err));
    LS_TRY(ls_device_wait(t->device, err));
    for (int64_t step = 1; step < t->n_leaves; step *= 2)
        for (int64_t i = 0; i + step < t->n_leaves; i += 2 * step)
            t->leaves[i] = ls_logprob_join(t->leaves[i], t->leaves[i + step]);
    *out = t->leaves[0];
    return LS_OK;
}

static float logprob_of(ls_logprob_leaf sum, float z) { return ls_logprob_finish(sum, z).logprob; }

/* What is told must be a number. */
static ls_status check_value(double value, const char *what, int32_t token, ls_error *err) {
    if (!isnan(value)) return LS_OK;
    return LS_FAIL(err, LS_ERR_FORMAT, "%s of token id %d: " LS_LOGPROB_NAN_TEXT, what, token);
}

static ls_status find_top(ls_sights *s, ls_sight_tools *t, int64_t row, const float *logits, ls_error *err) {
    int32_t *ids = s->top_id + row * s->top;
    const int64_t k = s->top < t->vocab ? s->top : t->vocab;
    const ls_top_args args = {logits, 1, t->vocab, k, t->leaves, ids, s->top_logprob + row * s->top};
    LS_TRY(make_leaves(t, logits, 1.0f, err));
    LS_TRY(ls_top(t->device, &args, err));
    for (int64_t i = k; i < s->top; i++) ids[i] = -1;
    LS_TRY(ls_device_wait(t->device, err));
    for (int64_t i = 0; i < k; i++)
        if (ids[i] >= 0) LS_TRY(check_value((double)args.logprob[i], "the alternatives", ids[i], err));
    return LS_OK;
}

static void list_mask(ls_sights *s, int64_t row, const float *processed, int32_t vocab) {
    int32_t *ids = s->mask + row * LS_SIGHT_MASK_MAX;
    int64_t n = 0;
    for (int32_t v = 0; v < vocab && n < LS_SIGHT_MASK_MAX; v++)
        if (processed[v] > -INFINITY) ids[n++] = v;
    if (n < LS_SIGHT_MASK_MAX) ids[n] = -1;
}

static ls_status process(ls_sight_tools *t, const ls_sampling *sampling, ls_error *err) {
    const ls_process_args args = {.logits = t->logits,
                                  .rows = 1,
                                  .vocab = t->vocab,
                                  .sampling = t->sampling,
                                  .out = t->processed,
                                  .kept = t->kept,
                                  .sort_space = t->sort_space};
    *t->sampling = *sampling;
    LS_TRY(ls_process(t->device, &args, err));
    return ls_device_wait(t->device, err);
}

ls_status ls_sights_look(ls_sights *s, ls_sight_tools *t, int64_t row, int32_t token, const float *logits,
                         const ls_sampling *sampling, ls_logprob_of of, ls_error *err) {
    const bool needs_processed = s->raw != NULL || s->mask != NULL || of == LS_LOGPROB_PROCESSED;
    const float *recorded = of == LS_LOGPROB_PROCESSED ? t->processed : t->logits;
    ls_logprob_leaf sum;
    memcpy(t->logits, logits, (size_t)t->vocab * sizeof *logits);
    if (needs_processed) LS_TRY(process(t, sampling, err));
    if (s->rank != NULL) {
        s->rank[row] = 1;
        for (int32_t v = 0; v < t->vocab; v++) s->rank[row] += logits[v] > logits[token];
    }
    if (s->top > 0) LS_TRY(find_top(s, t, row, recorded, err));
    if (s->mask != NULL) list_mask(s, row, t->processed, t->vocab);
    if (s->raw == NULL) return LS_OK;
    LS_TRY(sum_row(t, t->logits, 1.0f, &sum, err));
    s->raw[row] = logprob_of(sum, t->logits[token]);
    LS_TRY(sum_row(t, t->processed, 1.0f, &sum, err));
    s->processed[row] = logprob_of(sum, t->processed[token]);
    s->kept[row] = *t->kept;
    LS_TRY(check_value((double)s->raw[row], "the raw distribution", token, err));
    LS_TRY(check_value((double)s->processed[row], "the processed distribution", token, err));
    if (sampling->temperature == 0) { /* greedy keeps all, and is no distribution at a temperature */
        s->kept_mass[row] = 1;
        return LS_OK;
    }
    LS_TRY(sum_row(t, t->logits, sampling->temperature, &sum, err));
    {
        const float all = logprob_of(sum, ls_mul(t->logits[token], ls_div(1.0f, sampling->temperature)));
        s->kept_mass[row] = exp((double)all - (double)s->processed[row]);
        LS_TRY(check_value(s->kept_mass[row], "the kept mass", token, err));
        if (s->kept_mass[row] > 1) s->kept_mass[row] = 1;
    }
    return LS_OK;
}
