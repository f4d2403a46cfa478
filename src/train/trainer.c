/* The step. Owns everything that a step writes. */
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "model/layer_buffer.h"
#include "model/shared_weights.h"
#include "op/logprob.h"
#include "train/trainer_state.h"

/* Of a device whose memory is limited a 32nd stays free: libraries and graphs take some behind the trainer's back. */
#define KEPT_FREE 32
/* Of the memory in which the ranks' slices of a sum wait, at most: bytes. */
#define SUM_BYTES ((int64_t)256 << 20)
/* The same, twice, where weights come by layer. */
#define SMALL_SUM_BYTES ((int64_t)8 << 20)

bool ls_trainer_decays(ls_slot_kind kind) {
    return kind == LS_SLOT_MATRIX || kind == LS_SLOT_EMBED || kind == LS_SLOT_CONV;
}

static int32_t ranks_of(const ls_trainer *t) { return t->opts.comm == NULL ? 1 : ls_comm_ranks(t->opts.comm); }
static int32_t rank_of(const ls_trainer *t) { return t->opts.comm == NULL ? 0 : ls_comm_rank(t->opts.comm); }
/* Whether weights come by layer. */
static bool by_layer(const ls_trainer *t) { return t->state.parameters->shared != NULL; }

/* ---- creation ---- */

static ls_status check_opts(const ls_trainer_opts *o, ls_error *err) {
    ls_adamw_options adamw = o->adamw;
    ls_adamw_factors factors;
    if (o->leaf < 1 || o->microbatch < 1 || o->sequences_max < 1 || o->rows_max < 1 || o->n_metrics < 1)
        return LS_FAIL(err, LS_ERR_ARG,
                       "trainer: leaves of %lld, %lld of them in a forward of %lld rows, batches of %lld, %lld metrics",
                       (long long)o->leaf, (long long)o->microbatch, (long long)o->rows_max,
                       (long long)o->sequences_max, (long long)o->n_metrics);
    if (o->group < 0 || (o->group > 0 && (o->leaf % o->group != 0 || o->longest < 1)))
        return LS_FAIL(err, LS_ERR_ARG, "trainer: leaves of %lld in groups of %lld, of at most %lld tokens each",
                       (long long)o->leaf, (long long)o->group, (long long)o->longest);
    if (!(o->max_norm > 0.0)) return LS_FAIL(err, LS_ERR_ARG, "trainer: a largest norm of %g", o->max_norm);
    if (o->moments != LS_F32 && o->moments != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "trainer: moments of type %s", ls_dtype_name(o->moments));
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

/* What a process needs to share the elements with others. */
static ls_status make_shares(ls_trainer *t, ls_error *err) {
    const ls_parameters *p = t->state.parameters;
    const int64_t n_ranks = ranks_of(t), least = ls_comm_buffer_min((int32_t)n_ranks);
    LS_TRY(ls_array_alloc((void **)&t->owned, n_ranks + 1, sizeof *t->owned, "trainer", err));
    for (int64_t r = 0; r <= n_ranks; r++) t->owned[r] = ls_parameters_share(p, r, n_ranks);
    if (t->opts.comm == NULL) return LS_OK;
    t->n_slices = ls_min_i64((by_layer(t) ? SMALL_SUM_BYTES : SUM_BYTES) / (int64_t)sizeof(float),
                             p->n_elements + n_ranks * least);
    if (t->n_slices < least) t->n_slices = least;
    LS_TRY(device_floats(t, &t->slices, t->n_slices, err));
    if (!by_layer(t)) return LS_OK;
    LS_TRY(device_floats(t, &t->sent, t->n_slices, err));
    return device_floats(t, &t->sum, p->end - p->begin, err);
}

/* Blocks of a parameter's elements [begin, end), in the range that begins at element `first` of all. */
static int64_t put_ranges(ls_squares_range *ranges, const ls_parameter *p, int64_t first) {
    int64_t n = 0;
    for (int64_t at = p->begin; at < p->end; at += LS_SQUARES_BLOCK, n++)
        ranges[n] = (ls_squares_range){p->offset + at - first, ls_min_i64(LS_SQUARES_BLOCK, p->end - at)};
    return n;
}

static ls_status make_ranges(ls_trainer *t, ls_error *err) {
    const ls_parameters *p = t->state.parameters;
    const int64_t bytes = (int64_t)sizeof *t->ranges;
    ls_squares_range *ranges = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&ranges, t->n_blocks, bytes, "trainer", err));
    for (int64_t i = 0; i < p->n; i++) t->n_ranges += put_ranges(ranges + t->n_ranges, &p->list[i], p->begin);
    LS_TRY_DONE(ls_memory_alloc(t->device, (void **)&t->ranges, t->n_blocks, bytes, "trainer", err));
    LS_TRY_DONE(ls_memory_write(t->device, t->ranges, ranges, t->n_ranges * bytes, err));
done:
    free(ranges);
    return status;
}

static int64_t moment_bytes(const ls_train_state *s) {
    return (s->parameters->end - s->parameters->begin) * ls_dtype_bytes(s->moments);
}

/* A moment of this process's range, +0 everywhere. */
static ls_status make_moment(ls_trainer *t, void **out, ls_error *err) {
    const int64_t bytes = moment_bytes(&t->state);
    if (!t->state.moments_on_host) return ls_memory_alloc(t->device, out, bytes, 1, "moments", err);
    LS_TRY(ls_memory_pin(t->device, out, bytes, 1, "moments", err));
    return ls_memory_fill(t->device, *out, 0, bytes, err);
}

static void free_moment(ls_trainer *t, void *moment) {
    if (moment == NULL) return;
    if (t->state.moments_on_host)
        ls_memory_unpin(t->device, moment, moment_bytes(&t->state));
    else
        ls_memory_free(t->device, moment);
}

static ls_status make_arrays(ls_trainer *t, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    const ls_parameters *p = t->state.parameters;
    for (int64_t i = 0; i < p->n; i++) t->n_blocks += ls_squares_blocks(p->list[i].n_elements);
    LS_TRY(device_floats(t, &t->blocks, t->n_blocks, err));
    LS_TRY(make_ranges(t, err));
    LS_TRY(ls_array_alloc((void **)&t->host_parts, p->n, sizeof *t->host_parts, "trainer", err));
    LS_TRY(ls_memory_alloc(t->device, (void **)&t->parts, p->n, sizeof *t->parts, "trainer", err));
    LS_TRY(make_moment(t, &t->state.m, err));
    LS_TRY(make_moment(t, &t->state.v, err));
    LS_TRY(alloc_floats(&t->host_blocks, t->n_blocks, err));
    LS_TRY(ls_trainer_make_rows(t, err));
    LS_TRY(ls_array_alloc((void **)&t->offsets, o->sequences_max + 1, sizeof *t->offsets, "trainer", err));
    LS_TRY(
        ls_array_alloc((void **)&t->metrics, o->sequences_max, o->n_metrics * (int64_t)sizeof(double), "trainer", err));
    LS_TRY(ls_array_alloc((void **)&t->totals, o->n_metrics, sizeof(double), "trainer", err));
    LS_TRY(ls_array_alloc((void **)&t->begins, ranks_of(t) + 1, sizeof *t->begins, "trainer", err));
    return make_shares(t, err);
}

/* Leaves of the trees that this process folds, at most. */
static int64_t tree_leaves(const ls_trainer *t) {
    return ls_gradient_share(ls_trainer_leaves(t, t->opts.sequences_max), ranks_of(t));
}

/* Gradients that the device is to hold: as many as ever are there at once, or fit what all else has left of a device
 * whose memory is limited. */
static ls_status device_nodes(const ls_trainer *t, int64_t *out, ls_error *err) {
    const int64_t bytes = t->state.weights->n_elements * (int64_t)sizeof(float);
    ls_memory_state memory;
    int64_t fit;
    *out = 0;
    if (by_layer(t)) return LS_OK;
    *out = ls_gradient_nodes(tree_leaves(t));
    if (t->opts.gradients > 0 && t->opts.gradients < *out) *out = t->opts.gradients;
    if (t->opts.gradients > 0) return LS_OK;
    LS_TRY(ls_device_memory(t->device, &memory, err));
    fit = (memory.free - memory.total / KEPT_FREE) / bytes;
    if (memory.is_limited && fit < *out) *out = fit > 1 ? fit : 1;
    return LS_OK;
}

/* Sequences of a forward, at most. */
static int64_t spans_of(const ls_trainer *t) {
    const ls_trainer_opts *o = &t->opts;
    const int64_t n =
        (o->group > 0 ? 2 : 1) * /* a trunk has two that continue it, or more */
        (o->microbatch < ls_trainer_leaves(t, o->sequences_max) ? o->microbatch * o->leaf : o->sequences_max);
    return o->spans_max > 0 ? ls_min_i64(o->spans_max, n) : n;
}

/* Last of all that a trainer makes. */
static ls_status make_gradient(ls_trainer *t, ls_error *err) {
    int64_t nodes;
    LS_TRY(device_nodes(t, &nodes, err));
    return ls_gradient_create(&t->gradient, t->device, t->state.weights->n_elements, tree_leaves(t), nodes, err);
}

static int64_t leaf_dh_bytes(const ls_trainer *t) {
    return ls_trainer_leaf_rows(t) * t->state.weights->model->config.hidden * (int64_t)sizeof *t->leaf_dh;
}

static ls_status make_leaf_dh(ls_trainer *t, ls_error *err) {
    if (!t->state.weights->model->config.tied || ls_trainer_leaf_rows(t) == 0) return LS_OK;
    return ls_memory_pin(t->device, (void **)&t->leaf_dh, leaf_dh_bytes(t), 1, "gradient of the embedding's rows", err);
}

static ls_status make_tape(ls_trainer *t, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    const ls_tape_opts tape = {.dtype = o->dtype,
                               .rows_max = o->rows_max,
                               .spans_max = o->spans_max,
                               .recompute = o->recompute,
                               .temperature = o->temperature,
                               .leaf_rows_max = ls_trainer_leaf_rows(t),
                               .leaf_dh = t->leaf_dh,
                               .truncation = o->truncation,
                               .longest = o->longest,
                               .group = o->group};
    return ls_tape_create(&t->tape, t->state.weights, t->device, &tape, err);
}

ls_status ls_trainer_sleep(ls_trainer *t, ls_error *err) {
    ls_tape_free(t->tape);
    t->tape = NULL;
    ls_gradient_sleep(t->gradient);
    return ls_memory_trim(t->device, err);
}

ls_status ls_trainer_wake(ls_trainer *t, ls_error *err) {
    if (t->tape == NULL) LS_TRY(make_tape(t, err));
    return ls_gradient_wake(t->gradient, err);
}

/* Where the others' parts of the weights are; they have been read when their names come. */
static ls_status connect_weights(const ls_trainer *t, ls_error *err) {
    ls_shared_name names[LS_RANKS_MAX];
    int64_t begins[LS_RANKS_MAX + 1];
    if (t->opts.comm == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "weights=by_layer: one process has nobody to share the weights with");
    for (int32_t r = 0; r <= ranks_of(t); r++) begins[r] = r * (int64_t)sizeof *names;
    for (int32_t r = 0; r < ranks_of(t); r++)
        names[r] = *ls_shared_weights_name(t->state.parameters->shared); /* on paper it stays so */
    LS_TRY(ls_device_wait(t->device, err));
    LS_TRY(ls_comm_share(t->opts.comm, names, begins, "the weights", err));
    return ls_shared_weights_connect(t->state.parameters->shared, names, err);
}

/* The weights, or without their masters and adapters beside them. */
static ls_status open_parameters(ls_trainer *t, ls_model *model, const char *directory, ls_error *err) {
    ls_train_state *s = &t->state;
    if (t->opts.adapters.rank == 0) {
        LS_TRY(ls_parameters_open_share(&s->parameters, model, t->device, directory, rank_of(t), ranks_of(t), err));
        s->weights = s->parameters;
        return by_layer(t) ? connect_weights(t, err) : LS_OK;
    }
    if (t->opts.comm != NULL) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "lora_rank: adapters are trained by one process");
    LS_TRY(ls_parameters_open_share(&s->weights, model, t->device, directory, 1, 1, err));
    LS_TRY(ls_adapters_open(&s->adapters, s->weights, directory, &t->opts.adapters, err));
    s->parameters = s->adapters->list;
    return device_floats(t, &t->adapted, s->parameters->n_elements, err);
}

ls_status ls_trainer_create(ls_trainer **out, ls_model *model, const char *directory, ls_device *device,
                            const ls_trainer_opts *opts, ls_error *err) {
    ls_trainer *t = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(check_opts(opts, err));
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, sizeof *t, "trainer", err));
    t->opts = *opts;
    t->opts.spans_max = spans_of(t);
    if (opts->truncation != NULL) {
        t->truncation = *opts->truncation;
        t->opts.truncation = &t->truncation;
    }
    t->device = device;
    t->state.comm = opts->comm;
    t->state.moments = opts->moments;
    t->state.moments_on_host = opts->moments_on_host;
    LS_TRY_DONE(open_parameters(t, model, directory, err));
    LS_TRY_DONE(make_arrays(t, err));
    LS_TRY_DONE(make_leaf_dh(t, err));
    LS_TRY_DONE(make_tape(t, err));
    LS_TRY_DONE(make_gradient(t, err));
    *out = t;
    t = NULL;
done:
    ls_trainer_free(t);
    return status;
}

void ls_trainer_free(ls_trainer *t) {
    if (t == NULL) return;
    ls_tape_free(t->tape);
    if (t->leaf_dh != NULL) ls_memory_unpin(t->device, t->leaf_dh, leaf_dh_bytes(t));
    ls_gradient_free(t->gradient);
    free_moment(t, t->state.m);
    free_moment(t, t->state.v);
    if (t->state.adapters == NULL) ls_parameters_free(t->state.parameters);
    ls_adapters_free(t->state.adapters);
    if (t->state.adapters != NULL || t->state.parameters == NULL) ls_parameters_free(t->state.weights);
    ls_memory_free(t->device, t->adapted);
    ls_memory_free(t->device, t->blocks);
    ls_memory_free(t->device, t->ranges);
    ls_memory_free(t->device, t->parts);
    free(t->host_parts);
    free(t->host_blocks);
    ls_memory_free(t->device, t->slices);
    ls_memory_free(t->device, t->sent);
    ls_memory_free(t->device, t->sum);
    free(t->owned);
    ls_shared_rows_free(t->shared);
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
    const ls_parameters *p = t->state.parameters, *w = t->state.weights;
    int64_t bytes = (p->end - p->begin + t->n_slices) * (int64_t)sizeof(float) + ls_gradient_bytes(t->gradient);
    if (!t->state.moments_on_host) bytes += 2 * moment_bytes(&t->state);
    if (by_layer(t))
        bytes += (p->end - p->begin + t->n_slices) * (int64_t)sizeof(float) + ls_shared_weights_bytes(p->shared);
    bytes += by_layer(t) ? p->model->device_bytes : p->model->weight_bytes;
    for (int64_t i = 0; i < w->n; i++)
        if (w->list[i].own != NULL && ls_parameter_is_whole(w, &w->list[i]))
            bytes += w->list[i].n_elements * ls_dtype_bytes(w->list[i].dtype);
    if (t->state.adapters != NULL)
        bytes += ls_adapters_bytes(t->state.adapters) + p->n_elements * (int64_t)sizeof(float);
    return bytes;
}

int64_t ls_trainer_device_gradients(const ls_trainer *t) { return ls_gradient_device_nodes(t->gradient); }

int64_t ls_trainer_host_bytes(const ls_trainer *t) {
    return ls_gradient_host_bytes(t->gradient) + (t->state.moments_on_host ? 2 * moment_bytes(&t->state) : 0);
}

/* ---- the state of all processes ---- */

/* The hash goes from owner to owner, as the bytes do. */
ls_status ls_train_state_digest(const ls_train_state *s, uint64_t *out, ls_error *err) {
    const ls_parameters *p = s->parameters;
    const void *const arrays[] = {p->masters, s->m, s->v};
    const ls_dtype types[] = {LS_F32, s->moments, s->moments};
    const int32_t rank = s->comm == NULL ? 0 : ls_comm_rank(s->comm);
    const int32_t n_ranks = s->comm == NULL ? 1 : ls_comm_ranks(s->comm);
    const char *const what = "the digest of the optimizer";
    uint64_t hash = LS_FNV_START;
    for (int i = 0; i < 3; i++) {
        const ls_comm_move from = {rank == 0 ? n_ranks - 1 : rank - 1, &hash, (int64_t)sizeof hash};
        const ls_comm_move to = {rank == n_ranks - 1 ? 0 : rank + 1, &hash, (int64_t)sizeof hash};
        const bool begins = i == 0 && rank == 0, ends = i == 2 && rank == n_ranks - 1;
        const ls_comm_moves receive = {NULL, &from, 0, 1}, send = {&to, NULL, 1, 0};
        if (n_ranks > 1 && !begins) LS_TRY(ls_comm_exchange(s->comm, NULL, &receive, what, err));
        LS_TRY(ls_memory_digest(p->device, &hash, arrays[i], (p->end - p->begin) * ls_dtype_bytes(types[i]), err));
        if (n_ranks > 1 && !ends) LS_TRY(ls_comm_exchange(s->comm, NULL, &send, what, err));
    }
    if (n_ranks > 1) LS_TRY(ls_comm_tell(s->comm, n_ranks - 1, &hash, (int64_t)sizeof hash, what, err));
    *out = hash;
    return LS_OK;
}

/* One parameter's value: the part of each owner goes to all others. */
static void move_value(const ls_parameter *p, const int64_t *owned, int32_t rank, int32_t n_ranks, ls_comm_move *sends,
                       ls_comm_move *receives, ls_comm_moves *moves) {
    const int64_t size = ls_dtype_bytes(p->dtype);
    for (int32_t owner = 0; owner < n_ranks; owner++) {
        int64_t begin, end;
        uint8_t *value;
        ls_parameter_part(p, owned[owner], owned[owner + 1], &begin, &end);
        value = (uint8_t *)ls_parameter_value(p) + begin * size;
        if (begin == end) continue;
        if (owner != rank) {
            receives[moves->n_receives++] = (ls_comm_move){owner, value, (end - begin) * size};
            continue;
        }
        for (int32_t r = 0; r < n_ranks; r++)
            if (r != rank) sends[moves->n_sends++] = (ls_comm_move){r, value, (end - begin) * size};
    }
}

static ls_status gather_values(const ls_train_state *s, ls_error *err) {
    const ls_parameters *p = s->parameters;
    const int32_t rank = ls_comm_rank(s->comm), n_ranks = ls_comm_ranks(s->comm);
    ls_comm_move *sends = NULL, *receives = NULL;
    int64_t owned[LS_RANKS_MAX + 1];
    ls_comm_moves moves = {0};
    ls_status status;
    for (int32_t r = 0; r <= n_ranks; r++) owned[r] = ls_parameters_share(p, r, n_ranks);
    LS_TRY_DONE(ls_array_alloc((void **)&sends, p->n, n_ranks * (int64_t)sizeof *sends, "weights", err));
    LS_TRY_DONE(ls_array_alloc((void **)&receives, p->n, n_ranks * (int64_t)sizeof *receives, "weights", err));
    for (int64_t i = 0; i < p->n; i++)
        if (ls_parameter_is_whole(p, &p->list[i]))
            move_value(&p->list[i], owned, rank, n_ranks, sends, receives, &moves);
    moves.sends = sends;
    moves.receives = receives;
    LS_TRY_DONE(ls_comm_exchange(s->comm, p->device, &moves, "the weights", err));
done:
    free(sends);
    free(receives);
    return status;
}

/* Of weights that others read where they are (model/shared_weights.h): all that was to be read or written has been, on
 * all processes. */
static ls_status weights_barrier(const ls_train_state *s, ls_error *err) {
    if (s->parameters->shared == NULL) return LS_OK;
    LS_TRY(ls_device_wait(s->parameters->device, err));
    return ls_comm_barrier(s->comm, "the weights", err);
}

/* The masters that are held here have been rounded into values. */
static ls_status store_values(const ls_train_state *s, ls_error *err) {
    if (s->adapters != NULL) return ls_adapters_merge(s->adapters, err);
    if (s->comm != NULL) LS_TRY(gather_values(s, err));
    LS_TRY(ls_parameters_store(s->parameters, err));
    return weights_barrier(s, err);
}

ls_status ls_trainer_end(const ls_trainer *t, ls_error *err) { return weights_barrier(&t->state, err); }

ls_status ls_train_state_publish(const ls_train_state *s, ls_error *err) {
    LS_TRY(weights_barrier(s, err));
    LS_TRY(ls_parameters_round(s->parameters, err));
    return store_values(s, err);
}

/* Of masters and moments each has its own part: what all must have alike are weights, step and where it came from. */
ls_status ls_trainer_agree(ls_trainer *t, ls_error *err) {
    const int32_t n_ranks = ranks_of(t);
    uint64_t digests[LS_RANKS_MAX], own;
    if (t->opts.comm == NULL) return LS_OK;
    LS_TRY(ls_parameters_digest(t->state.parameters, &own, err));
    for (int32_t r = 0; r <= n_ranks; r++) t->begins[r] = r * (int64_t)sizeof *digests;
    digests[ls_comm_rank(t->opts.comm)] = ls_fnv_mix(own, &t->state.step, (int64_t)sizeof t->state.step);
    LS_TRY(ls_comm_share(t->opts.comm, digests, t->begins, "the digests", err));
    for (int32_t r = 1; r < n_ranks; r++)
        if (digests[r] != digests[0])
            return LS_FAIL(err, LS_ERR_ARG, "rank %d has another step or other weights than rank 0", r);
    return LS_OK;
}

/* ---- gradient ---- */

static own_leaves leaves_here(const ls_trainer *t, const ls_train_batch *b) {
    const int64_t n = ls_trainer_leaves(t, b->n), share = ls_gradient_share(n, ranks_of(t));
    const int64_t rank = t->opts.comm == NULL ? 0 : ls_comm_rank(t->opts.comm);
    return (own_leaves){ls_min_i64(rank * share, n), ls_min_i64((rank + 1) * share, n), n, share};
}

/* The first sequence of a rank's share. */
static int64_t share_begin(const ls_trainer *t, const ls_train_batch *b, const own_leaves *own, int64_t rank) {
    return ls_trainer_leaf_begin(t, b, ls_min_i64(rank * own->share, own->n));
}

/* Rows of a leaf that nothing is learnt from. */
static bool is_flat(const ls_trainer *t, int64_t row, int64_t end) {
    for (; row < end; row++)
        if (t->d_logprob[row] != 0.0f || (t->opts.entropy && t->d_entropy[row] != 0.0f)) return false;
    return true;
}

/* The metrics of all sequences, on every process. */
static ls_status share_metrics(ls_trainer *t, ls_error *err) {
    const step_state *s = &t->now;
    if (t->opts.comm == NULL) return LS_OK;
    for (int64_t r = 0; r <= ranks_of(t); r++)
        t->begins[r] = share_begin(t, &s->batch, &s->own, r) * t->opts.n_metrics * (int64_t)sizeof(double);
    return ls_comm_share(t->opts.comm, t->metrics, t->begins, "the losses", err);
}

/* The gradient of the batch, in this process's range: *out has its elements. Who had no leaf has room for it all the
 * same. */
static ls_status join_gradient(ls_trainer *t, float **out, ls_error *err) {
    const step_state *s = &t->now;
    ls_comm_sum sum = {
        .begins = t->owned, .buffer = t->slices, .buffer_elements = t->n_slices, .sent = t->sent, .out = t->sum};
    if (ls_gradient_leaves(t->gradient) > 0)
        LS_TRY(ls_gradient_root(t->gradient, &sum.root, err));
    else
        LS_TRY(ls_gradient_leaf(t->gradient, false, &sum.root, err));
    *out = t->sum != NULL ? t->sum : sum.root + t->state.parameters->begin;
    if (t->opts.comm == NULL) return LS_OK;
    sum.n_parts = (int32_t)((s->own.n - 1) / s->own.share + 1);
    return ls_comm_add(t->opts.comm, t->device, &sum, err);
}

/* ---- checks ---- */

/* An element of a gradient that is not finite; at -1: there is none. */
typedef struct bad_element {
    int64_t at;
    double value;
} bad_element;

/* The first one of a parameter, in this process's range. */
static ls_status find_bad(bad_element *out, const ls_trainer *t, const ls_parameter *p, const float *grad,
                          ls_error *err) {
    const int64_t n = p->end - p->begin;
    float *values = NULL;
    int64_t i = 0;
    ls_status status = LS_OK;
    *out = (bad_element){-1, 0};
    if (n == 0) return LS_OK;
    LS_TRY_DONE(alloc_floats(&values, n, err));
    LS_TRY_DONE(ls_memory_take(t->device, values, grad + (p->offset + p->begin - t->state.parameters->begin),
                               n * (int64_t)sizeof *values, err));
    while (i < n && isfinite(values[i])) i++;
    if (i < n) *out = (bad_element){p->begin + i, (double)values[i]};
done:
    free(values);
    return status;
}

/* What is wrong with a parameter's gradient: the first bad element of all ranges, which ascend with the ranks. */
static ls_status describe_bad(const ls_trainer *t, const ls_parameter *p, const float *grad, char *text, size_t bytes,
                              ls_error *err) {
    bad_element found[LS_RANKS_MAX];
    int32_t r = 0;
    LS_TRY(find_bad(&found[rank_of(t)], t, p, grad, err));
    if (t->opts.comm != NULL) {
        for (int32_t k = 0; k <= ranks_of(t); k++) t->begins[k] = k * (int64_t)sizeof *found;
        LS_TRY(ls_comm_share(t->opts.comm, found, t->begins, "what is not finite", err));
    }
    while (r < ranks_of(t) - 1 && found[r].at < 0) r++;
    if (found[r].at >= 0)
        snprintf(text, bytes, "the gradient of %s is %g at element %lld", p->slot.name, found[r].value,
                 (long long)(p->slot.tensor.at + found[r].at));
    else
        snprintf(text, bytes, "the squares of the gradient of %s exceed float32", p->slot.name);
    return LS_OK;
}

/* The first block, of all parameters' blocks in a row, behind elements [0, element) of all. Ranges begin with blocks.
 */
static int64_t blocks_before(const ls_trainer *t, int64_t element) {
    const ls_parameters *list = t->state.parameters;
    int64_t n = 0;
    for (int64_t i = 0; i < list->n; i++) {
        int64_t begin, end;
        ls_parameter_part(&list->list[i], 0, element, &begin, &end);
        n += ls_squares_blocks(end);
    }
    return n;
}

/* Sums of the blocks of all parameters on the host, each made by the owner of its elements. */
static ls_status make_blocks(ls_trainer *t, const float *grad, ls_error *err) {
    const ls_parameters *list = t->state.parameters;
    const int64_t first = blocks_before(t, list->begin), n = t->n_ranges;
    const ls_squares_args args = {grad, list->end - list->begin, t->blocks + first, t->ranges, n};
    if (n > 0) LS_TRY(ls_squares(t->device, &args, err));
    if (n > 0)
        LS_TRY(ls_memory_take(t->device, t->host_blocks + first, t->blocks + first, n * (int64_t)sizeof(float), err));
    if (t->opts.comm == NULL) return LS_OK;
    for (int32_t r = 0; r <= ranks_of(t); r++) t->begins[r] = blocks_before(t, t->owned[r]) * (int64_t)sizeof(float);
    return ls_comm_share(t->opts.comm, t->host_blocks, t->begins, "the squares", err);
}

/* Squares over all parameters. The error names the first parameter with a gradient that is not finite, and before it
 * the first sequence of such a loss. */
static ls_status sum_squares(ls_trainer *t, const ls_train_batch *b, const float *grad, double *squares,
                             ls_error *err) {
    const ls_parameters *list = t->state.parameters;
    const ls_parameter *bad = NULL;
    char loss[96] = "", gradient[256] = "";
    int64_t at = 0;
    LS_TRY(make_blocks(t, grad, err));
    *squares = 0.0;
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
    if (bad != NULL) LS_TRY(describe_bad(t, bad, grad, gradient, sizeof gradient, err));
    if (loss[0] != '\0' || bad != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s%s%s", loss, loss[0] != '\0' && bad != NULL ? "; " : "", gradient);
    return LS_OK;
}

/* ---- the forward alone ---- */

/* Rows of all processes, each of which has those of its leaves. */
static ls_status share_rows(ls_trainer *t, const ls_train_batch *b, const own_leaves *own, float *values,
                            const char *what, ls_error *err) {
    if (t->opts.comm == NULL) return LS_OK;
    for (int64_t r = 0; r <= ranks_of(t); r++)
        t->begins[r] = (b->offsets[share_begin(t, b, own, r)] - b->offsets[0]) * (int64_t)sizeof *values;
    return ls_comm_share(t->opts.comm, values + b->offsets[0], t->begins, what, err);
}

static ls_status score_batch(ls_trainer *t, const ls_train_batch *b, float *logprob, ls_error *err) {
    const own_leaves own = leaves_here(t, b);
    const int64_t end = ls_trainer_leaf_begin(t, b, own.end);
    for (int64_t first = ls_trainer_leaf_begin(t, b, own.begin), n; first < end; first += n) {
        n = ls_trainer_take(t, b, first, own.end);
        LS_TRY(ls_trainer_run(t, b, first, n, logprob + b->offsets[first], NULL, err));
    }
    return share_rows(t, b, &own, logprob, "the log-probabilities", err);
}

ls_status ls_trainer_score(ls_trainer *t, const ls_train_batch *b, float *logprob, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    ls_status status = ls_trainer_check_batch(t, b, &reason);
    if (status == LS_OK) status = score_batch(t, b, logprob, &reason);
    if (status != LS_OK && t->opts.comm != NULL) ls_comm_abort(t->opts.comm, &reason);
    if (status != LS_OK && err != NULL) *err = reason;
    return status;
}

/* ---- the step ---- */

/* Where values lie may have changed since the last step. */
static ls_status write_parts(ls_trainer *t, int64_t *n, ls_error *err) {
    const ls_parameters *list = t->state.parameters;
    *n = 0;
    for (int64_t i = 0; i < list->n; i++) {
        const ls_parameter *p = &list->list[i];
        if (p->begin == p->end) continue;
        t->host_parts[(*n)++] = (ls_adamw_part){.begin = p->offset + p->begin - list->begin,
                                                .value = ls_parameter_own(p),
                                                .value_dtype = p->dtype,
                                                .decays = ls_trainer_decays(p->slot.kind)};
    }
    return ls_memory_write(t->device, t->parts, t->host_parts, *n * (int64_t)sizeof *t->parts, err);
}

static ls_status move_masters(ls_trainer *t, const float *grad, float scale, const ls_adamw_factors *factors,
                              ls_error *err) {
    const ls_parameters *list = t->state.parameters;
    ls_adamw_args args = {.w = list->masters,
                          .m = t->state.m,
                          .v = t->state.v,
                          .moments = t->state.moments,
                          .rounding = {t->opts.seed, t->state.step + 1, list->begin},
                          .grad = grad,
                          .scale = scale,
                          .factors = *factors,
                          .n = list->end - list->begin,
                          .parts = t->parts};
    if (args.n == 0) return LS_OK;
    LS_TRY(write_parts(t, &args.n_parts, err));
    return ls_adamw(t->device, &args, err);
}

static void sum_metrics(ls_trainer *t, int64_t n) {
    const int64_t width = t->opts.n_metrics;
    memset(t->totals, 0, (size_t)width * sizeof *t->totals);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++) t->totals[k] += t->metrics[i * width + k];
}

static ls_status begin_step(ls_trainer *t, const ls_train_batch *b, ls_error *err) {
    step_state *s = &t->now;
    const int64_t step = t->state.step + 1;
    ls_adamw_options adamw = t->opts.adamw;
    adamw.lr = ls_rate_at(&t->opts.rate, step);
    *s = (step_state){.batch = *b, .rate = adamw.lr};
    LS_TRY(ls_adamw_factors_make(&s->factors, &adamw, step, err));
    LS_TRY(ls_trainer_check_batch(t, b, err));
    s->own = leaves_here(t, b);
    s->next = ls_trainer_leaf_begin(t, b, s->own.begin);
    memset(t->metrics, 0, (size_t)(b->n * t->opts.n_metrics) * sizeof(double));
    ls_gradient_begin(t->gradient);
    return LS_OK;
}

bool ls_trainer_has_more(const ls_trainer *t) {
    return t->now.next < ls_trainer_leaf_begin(t, &t->now.batch, t->now.own.end);
}

static ls_status forward(ls_trainer *t, ls_train_rows *rows, ls_error *err) {
    const ls_trainer_opts *o = &t->opts;
    step_state *s = &t->now;
    const ls_train_batch *b = &s->batch;
    LS_ASSERT(ls_trainer_has_more(t), "sequence %lld of %lld", (long long)s->next, (long long)b->n);
    s->first = s->next;
    s->n = ls_trainer_take(t, b, s->first, s->own.end);
    s->next += s->n;
    const int64_t row = b->offsets[s->first], n_rows = b->offsets[s->first + s->n] - row;
    for (int64_t i = 0; i <= s->n; i++) t->offsets[i] = b->offsets[s->first + i] - row;
    LS_TRY(ls_trainer_run(t, b, s->first, s->n, t->logprob, t->entropy, err));
    memset(t->d_logprob, 0, (size_t)n_rows * sizeof(float));
    if (o->entropy) memset(t->d_entropy, 0, (size_t)n_rows * sizeof(float));
    *rows = (ls_train_rows){.sequence = s->first,
                            .n_sequences = s->n,
                            .n_rows = n_rows,
                            .offsets = t->offsets,
                            .targets = b->targets + row,
                            .logprob = t->logprob,
                            .entropy = t->entropy,
                            .d_logprob = t->d_logprob,
                            .d_entropy = t->d_entropy,
                            .metrics = t->metrics + s->first * o->n_metrics};
    return LS_OK;
}

/* Sequences [from, to) of the last forward, all of one leaf. Parts that nothing is learnt from are left out only as
 * long as there was no other: the leaf's gradient is +0 everywhere, and so it would be with them. */
static ls_status part_backward(ls_trainer *t, int64_t from, int64_t to, ls_error *err) {
    step_state *s = &t->now;
    const ls_train_batch *b = &s->batch;
    const int64_t leaf = (s->first + from) / t->opts.leaf, *targets = b->targets + b->offsets[s->first];
    const bool is_last = s->first + to == ls_trainer_leaf_begin(t, b, leaf + 1);
    if (s->first + from == ls_trainer_leaf_begin(t, b, leaf)) {
        LS_TRY(ls_gradient_leaf(t->gradient, !by_layer(t), &s->gradient, err));
        s->is_flat = true;
    }
    if (!s->is_flat || !is_flat(t, t->offsets[from], t->offsets[to])) {
        const ls_shared_rows *shared = t->shared;
        ls_leaf_part part = {.begin = from,
                             .end = to,
                             .targets = targets,
                             .d_logprob = t->d_logprob,
                             .d_entropy = t->d_entropy,
                             .is_first = s->is_flat,
                             .is_last = is_last};
        if (shared != NULL) {
            part.begin = shared->begins[from / t->opts.group];
            part.end = shared->begins[(to - 1) / t->opts.group + 1];
            part.targets = shared->targets;
            part.d_logprob = shared->d_logprob;
            part.d_entropy = shared->d_entropy;
        }
        LS_TRY(ls_tape_backward(t->tape, &part, s->gradient, err));
        s->is_flat = false;
    }
    if (!is_last) return LS_OK;
    if (s->is_flat && by_layer(t)) LS_TRY(ls_gradient_zero(t->gradient, err));
    return ls_gradient_fold(t->gradient, err);
}

static ls_status backward(ls_trainer *t, ls_error *err) {
    step_state *s = &t->now;
    LS_ASSERT(s->n > 0, "no forward since the backward before sequence %lld", (long long)s->next);
    if (t->shared != NULL) ls_trainer_gather(t);
    for (int64_t from = 0; from < s->n;) {
        const int64_t leaf_end = ls_trainer_leaf_begin(t, &s->batch, (s->first + from) / t->opts.leaf + 1) - s->first;
        const int64_t to = ls_min_i64(leaf_end, s->n);
        LS_TRY(part_backward(t, from, to, err));
        from = to;
    }
    s->n = 0;
    return LS_OK;
}

static ls_status update_weights(ls_trainer *t, ls_train_stats *stats, ls_error *err) {
    const step_state *s = &t->now;
    const double max_norm = t->opts.max_norm;
    double squares, norm;
    float *grad, scale;
    LS_ASSERT(!ls_trainer_has_more(t) && ls_gradient_leaves(t->gradient) == s->own.end - s->own.begin,
              "%lld of %lld leaves have a gradient", (long long)ls_gradient_leaves(t->gradient),
              (long long)(s->own.end - s->own.begin));
    LS_TRY(share_metrics(t, err));
    LS_TRY(join_gradient(t, &grad, err));
    if (t->state.adapters != NULL) {
        LS_TRY(ls_adapters_gradient(t->state.adapters, grad, t->adapted, err));
        grad = t->adapted;
    }
    LS_TRY(sum_squares(t, &s->batch, grad, &squares, err));
    LS_TRY(ls_gradient_scale(&scale, &norm, squares, s->batch.count, max_norm, err));
    LS_TRY(weights_barrier(&t->state, err));
    LS_TRY(move_masters(t, grad, scale, &s->factors, err));
    LS_TRY(store_values(&t->state, err));
    LS_TRY(ls_device_wait(t->device, err));
    t->state.step++;
    sum_metrics(t, s->batch.n);
    *stats = (ls_train_stats){t->state.step, s->rate, norm, norm > max_norm, t->metrics, t->totals};
    return LS_OK;
}

/* Tells a failure of a step to its caller and to the other processes. */
static ls_status tell_failure(const ls_trainer *t, ls_status status, ls_error *reason, ls_error *err) {
    if (status == LS_OK) return LS_OK;
    ls_error_prefix(reason, "step %lld", (long long)t->state.step + 1);
    if (t->opts.comm != NULL) ls_comm_abort(t->opts.comm, reason);
    if (err != NULL) *err = *reason;
    return status;
}

ls_status ls_trainer_begin(ls_trainer *t, const ls_train_batch *b, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    return tell_failure(t, begin_step(t, b, &reason), &reason, err);
}

ls_status ls_trainer_forward(ls_trainer *t, ls_train_rows *rows, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    return tell_failure(t, forward(t, rows, &reason), &reason, err);
}

ls_status ls_trainer_backward(ls_trainer *t, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    return tell_failure(t, backward(t, &reason), &reason, err);
}

ls_status ls_trainer_update(ls_trainer *t, ls_train_stats *stats, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    return tell_failure(t, update_weights(t, stats, &reason), &reason, err);
}

ls_status ls_trainer_share(ls_trainer *t, float *values, const char *what, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    return tell_failure(t, share_rows(t, &t->now.batch, &t->now.own, values, what, &reason), &reason, err);
}

static ls_status run_whole_step(ls_trainer *t, const ls_train_batch *b, ls_train_stats *stats, ls_error *err) {
    ls_train_rows rows;
    LS_TRY(begin_step(t, b, err));
    while (ls_trainer_has_more(t)) {
        LS_TRY(forward(t, &rows, err));
        LS_TRY(t->opts.loss(t->opts.context, &rows, err));
        LS_TRY(backward(t, err));
    }
    return update_weights(t, stats, err);
}

ls_status ls_trainer_step(ls_trainer *t, const ls_train_batch *b, ls_train_stats *stats, ls_error *err) {
    ls_error reason = {LS_OK, ""};
    return tell_failure(t, run_whole_step(t, b, stats, &reason), &reason, err);
}
