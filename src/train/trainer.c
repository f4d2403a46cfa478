/* The step. Owns everything that a step writes. */
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"

struct ls_trainer {
    ls_trainer_opts opts;
    ls_device *device;
    ls_train_state state;
    ls_tape *tape;
    ls_gradient *gradient;
    float *blocks; /* of the squares of all parameters, device memory */
    int64_t n_blocks;
    float *host_blocks; /* the same on the host */
    float *staging;     /* [n_elements] of a gradient on its way to another process; NULL alone */
    /* Of one forward. */
    float *logprob, *entropy, *d_logprob, *d_entropy; /* [rows_max] */
    int64_t *offsets;                                 /* [sequences_max + 1] */
    /* Of one step. */
    double *metrics, *totals; /* [sequences_max][n_metrics], [n_metrics] */
    int64_t *begins;          /* [n_ranks + 1] */
};

bool ls_trainer_decays(ls_slot_kind kind) {
    return kind == LS_SLOT_MATRIX || kind == LS_SLOT_EMBED || kind == LS_SLOT_CONV;
}

static int32_t ranks_of(const ls_trainer *t) { return t->opts.comm == NULL ? 1 : ls_comm_ranks(t->opts.comm); }
static int64_t leaves_of(const ls_trainer *t, int64_t n) { return (n - 1) / t->opts.leaf + 1; }

/* ---- creation ---- */

static ls_status check_opts(const ls_trainer_opts *o, ls_error *err) {
    ls_adamw_options adamw = o->adamw;
    ls_adamw_factors factors;
    if (o->leaf < 1 || o->microbatch < 1 || o->sequences_max < 1 || o->rows_max < 1 || o->n_metrics < 1)
        return LS_FAIL(err, LS_ERR_ARG,
                       "trainer: leaves of %lld, %lld of them in a forward of %lld rows, batches of %lld, %lld metrics",
                       (long long)o->leaf, (long long)o->microbatch, (long long)o->rows_max,
                       (long long)o->sequences_max, (long long)o->n_metrics);
    if (!(o->max_norm > 0.0)) return LS_FAIL(err, LS_ERR_ARG, "trainer: a largest norm of %g", o->max_norm);
    LS_TRY(ls_rate_check(&o->rate, err));
    adamw.lr = o->rate.peak;
    return ls_adamw_factors_make(&factors, &adamw, 1, err);
}

static ls_status alloc_floats(float **out, int64_t n, ls_error *err) {
    return ls_array_alloc((void **)out, n, sizeof(float), "trainer", err);
}

static ls_status device_floats(const ls_trainer *t, float **out, int64_t n, ls_error *err) {
    return ls_memory_alloc(t->device, (void **)out, n, sizeof(float), "trainer", err);
}

static ls_status make_arrays(ls_trainer *t, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    const ls_parameters *p = t->state.parameters;
    for (int64_t i = 0; i < p->n; i++) t->n_blocks += ls_squares_blocks(p->list[i].n_elements);
    LS_TRY(device_floats(t, &t->blocks, t->n_blocks, err));
    LS_TRY(device_floats(t, &t->state.m, p->n_elements, err));
    LS_TRY(device_floats(t, &t->state.v, p->n_elements, err));
    LS_TRY(alloc_floats(&t->host_blocks, t->n_blocks, err));
    LS_TRY(alloc_floats(&t->logprob, o->rows_max, err));
    LS_TRY(alloc_floats(&t->d_logprob, o->rows_max, err));
    if (o->entropy) {
        LS_TRY(alloc_floats(&t->entropy, o->rows_max, err));
        LS_TRY(alloc_floats(&t->d_entropy, o->rows_max, err));
    }
    if (o->comm != NULL) LS_TRY(alloc_floats(&t->staging, p->n_elements, err));
    LS_TRY(ls_array_alloc((void **)&t->offsets, o->sequences_max + 1, sizeof *t->offsets, "trainer", err));
    LS_TRY(
        ls_array_alloc((void **)&t->metrics, o->sequences_max, o->n_metrics * (int64_t)sizeof(double), "trainer", err));
    LS_TRY(ls_array_alloc((void **)&t->totals, o->n_metrics, sizeof(double), "trainer", err));
    return ls_array_alloc((void **)&t->begins, ranks_of(t) + 1, sizeof *t->begins, "trainer", err);
}

/* Leaves of the trees that this process folds: its share, or the ranks. */
static int64_t tree_leaves(const ls_trainer *t) {
    const int64_t n_ranks = ranks_of(t), share = ls_gradient_share(leaves_of(t, t->opts.sequences_max), n_ranks);
    return share > n_ranks ? share : n_ranks;
}

ls_status ls_trainer_create(ls_trainer **out, ls_model *model, const char *directory, ls_device *device,
                            const ls_trainer_opts *opts, ls_error *err) {
    ls_trainer *t = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(check_opts(opts, err));
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, sizeof *t, "trainer", err));
    t->opts = *opts;
    t->device = device;
    LS_TRY_DONE(ls_parameters_open(&t->state.parameters, model, device, directory, err));
    LS_TRY_DONE(make_arrays(t, err));
    LS_TRY_DONE(ls_gradient_create(&t->gradient, device, t->state.parameters->n_elements, tree_leaves(t), err));
    {
        const int64_t spans =
            opts->microbatch < leaves_of(t, opts->sequences_max) ? opts->microbatch * opts->leaf : opts->sequences_max;
        const ls_tape_opts tape = {opts->dtype, opts->rows_max, spans, opts->recompute, opts->temperature};
        LS_TRY_DONE(ls_tape_create(&t->tape, t->state.parameters, device, &tape, err));
    }
    *out = t;
    t = NULL;
done:
    ls_trainer_free(t);
    return status;
}

void ls_trainer_free(ls_trainer *t) {
    if (t == NULL) return;
    ls_tape_free(t->tape);
    ls_gradient_free(t->gradient);
    ls_parameters_free(t->state.parameters);
    ls_memory_free(t->device, t->state.m);
    ls_memory_free(t->device, t->state.v);
    ls_memory_free(t->device, t->blocks);
    free(t->host_blocks);
    free(t->staging);
    free(t->logprob);
    free(t->entropy);
    free(t->d_logprob);
    free(t->d_entropy);
    free(t->offsets);
    free(t->metrics);
    free(t->totals);
    free(t->begins);
    free(t);
}

ls_train_state *ls_trainer_state(ls_trainer *t) { return &t->state; }

int64_t ls_trainer_bytes(const ls_trainer *t) {
    const ls_parameters *p = t->state.parameters;
    int64_t bytes = 3 * p->n_elements * (int64_t)sizeof(float) + ls_gradient_bytes(p->n_elements, tree_leaves(t));
    for (int64_t i = 0; i < p->n; i++) bytes += 2 * p->list[i].n_elements * ls_dtype_bytes(p->list[i].dtype);
    return bytes;
}

ls_status ls_train_state_digest(const ls_train_state *s, uint64_t *out, ls_error *err) {
    const float *const arrays[] = {s->parameters->masters, s->m, s->v};
    const int64_t bytes = s->parameters->n_elements * (int64_t)sizeof(float);
    uint64_t hash = LS_FNV_START;
    for (int i = 0; i < 3; i++) LS_TRY(ls_memory_digest(s->parameters->device, &hash, arrays[i], bytes, err));
    *out = hash;
    return LS_OK;
}

ls_status ls_trainer_agree(ls_trainer *t, ls_error *err) {
    const int32_t n_ranks = ranks_of(t);
    uint64_t digests[LS_RANKS_MAX], own;
    if (t->opts.comm == NULL) return LS_OK;
    LS_TRY(ls_train_state_digest(&t->state, &own, err));
    for (int32_t r = 0; r <= n_ranks; r++) t->begins[r] = r * (int64_t)sizeof *digests;
    digests[ls_comm_rank(t->opts.comm)] = ls_fnv_mix(own, &t->state.step, (int64_t)sizeof t->state.step);
    LS_TRY(ls_comm_share(t->opts.comm, digests, t->begins, "the digests", err));
    for (int32_t r = 1; r < n_ranks; r++)
        if (digests[r] != digests[0])
            return LS_FAIL(err, LS_ERR_ARG, "rank %d has another step or other weights than rank 0", r);
    return LS_OK;
}

/* ---- gradient ---- */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* First sequence of a leaf, or the batch's end. */
static int64_t leaf_begin(const ls_trainer *t, const ls_train_batch *b, int64_t leaf_i) {
    return leaf_i > b->n / t->opts.leaf ? b->n : smaller(leaf_i * t->opts.leaf, b->n);
}

/* How many of the leaves [leaf_i, end) the next forward takes. */
static int64_t take_leaves(const ls_trainer *t, const ls_train_batch *b, int64_t leaf_i, int64_t end) {
    const int64_t row = b->offsets[leaf_begin(t, b, leaf_i)];
    int64_t n = 1;
    while (n < t->opts.microbatch && leaf_i + n < end &&
           b->offsets[leaf_begin(t, b, leaf_i + n + 1)] - row <= t->opts.rows_max)
        n++;
    return n;
}

/* The leaves [begin, end) of a batch that this process computes, of n in all. */
typedef struct own_leaves {
    int64_t begin, end, n, share;
} own_leaves;

static own_leaves leaves_here(const ls_trainer *t, const ls_train_batch *b) {
    const int64_t n = leaves_of(t, b->n), share = ls_gradient_share(n, ranks_of(t));
    const int64_t rank = t->opts.comm == NULL ? 0 : ls_comm_rank(t->opts.comm);
    return (own_leaves){rank * share, smaller((rank + 1) * share, n), n, share};
}

/* The first sequence of a rank's share. */
static int64_t share_begin(const ls_trainer *t, const ls_train_batch *b, const own_leaves *own, int64_t rank) {
    return leaf_begin(t, b, smaller(rank * own->share, own->n));
}

static ls_status score_microbatch(ls_trainer *t, const ls_train_batch *b, int64_t leaf_i, int64_t n_leaves,
                                  float *logprob, ls_error *err) {
    const int64_t first = leaf_begin(t, b, leaf_i), n = leaf_begin(t, b, leaf_i + n_leaves) - first;
    const int64_t row = b->offsets[first];
    LS_TRY(ls_tape_forward(t->tape, b->tokens, b->offsets + first, n, err));
    return ls_tape_logprob(t->tape, b->targets + row, logprob + row, NULL, err);
}

/* Rows of a leaf that nothing is learnt from. */
static bool is_flat(const ls_trainer *t, int64_t row, int64_t end) {
    for (; row < end; row++)
        if (t->d_logprob[row] != 0.0f || (t->opts.entropy && t->d_entropy[row] != 0.0f)) return false;
    return true;
}

static ls_status run_microbatch(ls_trainer *t, const ls_train_batch *b, int64_t leaf_i, int64_t n_leaves,
                                ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    const int64_t first = leaf_begin(t, b, leaf_i), n = leaf_begin(t, b, leaf_i + n_leaves) - first;
    const int64_t row = b->offsets[first], n_rows = b->offsets[first + n] - row;
    const int64_t *targets = b->targets + row;
    const ls_train_rows rows = {first,      n,          n_rows,       t->offsets,   targets,
                                t->logprob, t->entropy, t->d_logprob, t->d_entropy, t->metrics + first * o->n_metrics};
    for (int64_t i = 0; i <= n; i++) t->offsets[i] = b->offsets[first + i] - row;
    LS_TRY(ls_tape_forward(t->tape, b->tokens, b->offsets + first, n, err));
    LS_TRY(ls_tape_logprob(t->tape, targets, t->logprob, t->entropy, err));
    memset(t->d_logprob, 0, (size_t)n_rows * sizeof(float));
    if (o->entropy) memset(t->d_entropy, 0, (size_t)n_rows * sizeof(float));
    LS_TRY(o->loss(o->context, &rows, err));
    for (int64_t i = 0; i < n_leaves; i++) {
        const int64_t begin = leaf_begin(t, b, leaf_i + i) - first, end = leaf_begin(t, b, leaf_i + i + 1) - first;
        float *gradient;
        LS_TRY(ls_gradient_leaf(t->gradient, true, &gradient, err));
        if (!is_flat(t, t->offsets[begin], t->offsets[end]))
            LS_TRY(ls_tape_backward(t->tape, begin, end, targets, t->d_logprob, t->d_entropy, gradient, true, err));
        LS_TRY(ls_gradient_fold(t->gradient, err));
    }
    return LS_OK;
}

/* The gradient of the batch, on every process, and all metrics. */
static ls_status make_gradient(ls_trainer *t, const ls_train_batch *b, float **root, ls_error *err) {
    const own_leaves own = leaves_here(t, b);
    const int64_t n_ranks = ranks_of(t);
    memset(t->metrics, 0, (size_t)(b->n * t->opts.n_metrics) * sizeof(double));
    ls_gradient_begin(t->gradient);
    for (int64_t leaf_i = own.begin; leaf_i < own.end;) {
        const int64_t n = take_leaves(t, b, leaf_i, own.end);
        LS_TRY(run_microbatch(t, b, leaf_i, n, err));
        leaf_i += n;
    }
    if (t->opts.comm == NULL) {
        LS_TRY(ls_gradient_root(t->gradient, root, err));
        return LS_OK;
    }
    for (int64_t r = 0; r <= n_ranks; r++)
        t->begins[r] = share_begin(t, b, &own, r) * t->opts.n_metrics * (int64_t)sizeof(double);
    LS_TRY(ls_comm_share(t->opts.comm, t->metrics, t->begins, "the losses", err));
    return ls_comm_fold(t->opts.comm, t->gradient, t->state.parameters->n_elements, t->staging, t->device,
                        (int32_t)((own.n - 1) / own.share + 1), root, err);
}

/* ---- checks ---- */

static ls_status check_batch(const ls_trainer *t, const ls_train_batch *b, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    if (b->n < 1 || b->n > o->sequences_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "a batch of %lld sequences; the trainer was made for %lld",
                       (long long)b->n, (long long)o->sequences_max);
    if (!(b->count > 0.0) || isinf(b->count)) return LS_FAIL(err, LS_ERR_ARG, "a mean over %g tokens", b->count);
    for (int64_t i = 0; i < b->n; i++)
        if (b->offsets[i] < 0 || b->offsets[i + 1] <= b->offsets[i])
            return LS_FAIL(err, LS_ERR_ARG, "sequence %lld is rows %lld to %lld", (long long)i,
                           (long long)b->offsets[i], (long long)b->offsets[i + 1]);
    for (int64_t i = 0; i < leaves_of(t, b->n); i++) {
        const int64_t begin = leaf_begin(t, b, i), end = leaf_begin(t, b, i + 1);
        if (b->offsets[end] - b->offsets[begin] > o->rows_max)
            return LS_FAIL(err, LS_ERR_CAPACITY, "sequences %lld to %lld have %lld tokens; a forward holds %lld",
                           (long long)begin, (long long)end - 1, (long long)(b->offsets[end] - b->offsets[begin]),
                           (long long)o->rows_max);
    }
    return LS_OK;
}

/* What is wrong with a parameter's gradient. */
static ls_status describe_bad(const ls_trainer *t, const ls_parameter *p, const float *root, char *text, size_t bytes,
                              ls_error *err) {
    float *values = NULL;
    int64_t at = 0;
    ls_status status;
    LS_TRY_DONE(alloc_floats(&values, p->n_elements, err));
    LS_TRY_DONE(ls_memory_take(t->device, values, root + p->offset, p->n_elements * (int64_t)sizeof *values, err));
    while (at < p->n_elements && isfinite(values[at])) at++;
    if (at < p->n_elements)
        snprintf(text, bytes, "the gradient of %s is %g at element %lld", p->slot.name, (double)values[at],
                 (long long)at);
    else
        snprintf(text, bytes, "the squares of the gradient of %s exceed float32", p->slot.name);
done:
    free(values);
    return status;
}

/* Squares over all parameters. The error names the first parameter with a gradient that is not finite, and before it
 * the first sequence of such a loss. */
static ls_status sum_squares(ls_trainer *t, const ls_train_batch *b, const float *root, double *squares,
                             ls_error *err) {
    const ls_parameters *list = t->state.parameters;
    const ls_parameter *bad = NULL;
    char loss[96] = "", gradient[256] = "";
    int64_t at = 0;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < list->n; i++) {
        const ls_parameter *p = &list->list[i];
        const ls_squares_args args = {root + p->offset, p->n_elements, t->blocks + at};
        LS_TRY_DONE(ls_squares(t->device, &args, err));
        at += ls_squares_blocks(p->n_elements);
    }
    LS_TRY_DONE(ls_memory_take(t->device, t->host_blocks, t->blocks, t->n_blocks * (int64_t)sizeof(float), err));
    *squares = 0.0;
    at = 0;
    for (int64_t i = 0; i < list->n && bad == NULL; i++) {
        const int64_t n = ls_squares_blocks(list->list[i].n_elements);
        *squares = ls_squares_add(*squares, t->host_blocks + at, n);
        at += n;
        if (!isfinite(*squares)) bad = &list->list[i];
    }
    for (int64_t i = 0; i < b->n && loss[0] == '\0'; i++)
        if (!isfinite(t->metrics[i * t->opts.n_metrics]))
            snprintf(loss, sizeof loss, "the loss of sequence %lld is %g", (long long)i,
                     t->metrics[i * t->opts.n_metrics]);
    if (bad != NULL) LS_TRY_DONE(describe_bad(t, bad, root, gradient, sizeof gradient, err));
    if (loss[0] != '\0' || bad != NULL)
        status = LS_FAIL(err, LS_ERR_ARG, "%s%s%s", loss, loss[0] != '\0' && bad != NULL ? "; " : "", gradient);
done:
    return status;
}

/* ---- the forward alone ---- */

static ls_status score_batch(ls_trainer *t, const ls_train_batch *b, float *logprob, ls_error *err) {
    const own_leaves own = leaves_here(t, b);
    for (int64_t leaf_i = own.begin; leaf_i < own.end;) {
        const int64_t n = take_leaves(t, b, leaf_i, own.end);
        LS_TRY(score_microbatch(t, b, leaf_i, n, logprob, err));
        leaf_i += n;
    }
    if (t->opts.comm == NULL) return LS_OK;
    for (int64_t r = 0; r <= ranks_of(t); r++)
        t->begins[r] = (b->offsets[share_begin(t, b, &own, r)] - b->offsets[0]) * (int64_t)sizeof *logprob;
    return ls_comm_share(t->opts.comm, logprob + b->offsets[0], t->begins, "the log-probabilities", err);
}

ls_status ls_trainer_score(ls_trainer *t, const ls_train_batch *b, float *logprob, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    ls_status status = check_batch(t, b, &reason);
    if (status == LS_OK) status = score_batch(t, b, logprob, &reason);
    if (status != LS_OK && t->opts.comm != NULL) ls_comm_abort(t->opts.comm, &reason);
    if (status != LS_OK && err != NULL) *err = reason;
    return status;
}

/* ---- the step ---- */

static ls_status update(ls_trainer *t, const float *root, float scale, const ls_adamw_factors *factors, ls_error *err) {
    const ls_parameters *list = t->state.parameters;
    for (int64_t i = 0; i < list->n; i++) {
        const ls_parameter *p = &list->list[i];
        ls_adamw_args args = {p->master, t->state.m + p->offset, t->state.v + p->offset, root + p->offset, scale,
                              *factors,  p->n_elements};
        if (!ls_trainer_decays(p->slot.kind)) args.factors.decay = 0.0f;
        LS_TRY(ls_adamw(t->device, &args, err));
    }
    return LS_OK;
}

static void sum_metrics(ls_trainer *t, int64_t n) {
    const int64_t width = t->opts.n_metrics;
    memset(t->totals, 0, (size_t)width * sizeof *t->totals);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++) t->totals[k] += t->metrics[i * width + k];
}

ls_status ls_trainer_step(ls_trainer *t, const ls_train_batch *b, ls_train_stats *stats, ls_error *err) {
    const int64_t step = t->state.step + 1;
    ls_adamw_options adamw = t->opts.adamw;
    ls_adamw_factors factors;
    ls_error reason = {LS_OK, ""};
    double squares, norm;
    float *root, scale;
    ls_status status;
    adamw.lr = ls_rate_at(&t->opts.rate, step);
    LS_TRY_DONE(ls_adamw_factors_make(&factors, &adamw, step, &reason));
    LS_TRY_DONE(check_batch(t, b, &reason));
    LS_TRY_DONE(make_gradient(t, b, &root, &reason));
    LS_TRY_DONE(sum_squares(t, b, root, &squares, &reason));
    LS_TRY_DONE(ls_gradient_scale(&scale, &norm, squares, b->count, t->opts.max_norm, &reason));
    LS_TRY_DONE(update(t, root, scale, &factors, &reason));
    LS_TRY_DONE(ls_parameters_publish(t->state.parameters, &reason));
    LS_TRY_DONE(ls_device_wait(t->device, &reason));
    t->state.step = step;
    sum_metrics(t, b->n);
    *stats = (ls_train_stats){step, adamw.lr, norm, norm > t->opts.max_norm, t->metrics, t->totals};
done:
    if (status != LS_OK) {
        ls_error_prefix(&reason, "step %lld", (long long)step);
        if (t->opts.comm != NULL) ls_comm_abort(t->opts.comm, &reason);
        if (err != NULL) *err = reason;
    }
    return status;
}
