/* One step of a policy-gradient run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/score.h"
#include "rl/grpo_state.h"

/* ---- rows ---- */

ls_status ls_grpo_rows_create(grpo *g, ls_error *err) {
    grpo_rows *r = &g->rows;
    const int64_t n = g->episodes->n, rows = n * g->episodes->length;
    r->n = n;
    LS_TRY(ls_array_alloc((void **)&r->tokens, rows, sizeof *r->tokens, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->offsets, n + 1, sizeof *r->offsets, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->targets, rows, sizeof *r->targets, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->mask, rows, sizeof *r->mask, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->recorded, rows, sizeof *r->recorded, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->trainer, rows, sizeof *r->trainer, "rows", err));
    if (g->loss.beta != 0) LS_TRY(ls_array_alloc((void **)&r->reference, rows, sizeof *r->reference, "rows", err));
    if (g->correction.n > 0) LS_TRY(ls_array_alloc((void **)&r->weights, rows, sizeof *r->weights, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->rewards, n, sizeof *r->rewards, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->advantages, n, sizeof *r->advantages, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->failed, n, sizeof *r->failed, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->keep, n, sizeof *r->keep, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->overlong, n, sizeof *r->overlong, "episodes", err));
    return ls_array_alloc((void **)&r->sums, n, sizeof *r->sums, "episodes", err);
}

void ls_grpo_rows_free(grpo_rows *r) {
    free(r->tokens);
    free(r->offsets);
    free(r->targets);
    free(r->mask);
    free(r->recorded);
    free(r->trainer);
    free(r->reference);
    free(r->weights);
    free(r->rewards);
    free(r->advantages);
    free(r->failed);
    free(r->keep);
    free(r->overlong);
    free(r->sums);
}

static void lay_out(grpo *g) {
    grpo_rows *r = &g->rows;
    int64_t row = 0;
    for (int64_t s = 0; s < r->n; s++) {
        const ls_episode *x = &g->episodes->list[s];
        r->offsets[s] = row;
        r->rewards[s] = (float)x->reward;
        r->failed[s] = x->failed;
        r->overlong[s] = x->overlong;
        for (int64_t i = 0; i + 1 < x->n; i++, row++) {
            r->tokens[row] = x->tokens[i];
            r->mask[row] = x->drawn[i + 1];
            r->targets[row] = r->mask[row] != 0 ? x->tokens[i + 1] : -1;
            r->recorded[row] = r->mask[row] != 0 ? x->logprob[i + 1] : 0.0f;
        }
    }
    r->offsets[r->n] = row;
}

/* ---- episodes and what they earn ---- */

/* Rewards from outside are asked for once, whatever the number of processes. */
static ls_status judge(grpo *g, ls_error *err) {
    ls_episodes *e = g->episodes;
    const int64_t bytes = e->n * (int64_t)sizeof(float);
    const bool outside = g->o->reward_command[0] != '\0' || g->o->reward_url[0] != '\0';
    int64_t begins[LS_RANKS_MAX + 1] = {0};
    if (ls_grpo_writes(g) || !outside) LS_TRY(ls_episodes_judge(e, &g->world, err));
    for (int64_t s = 0; s < e->n; s++) g->rows.rewards[s] = (float)e->list[s].reward;
    if (g->comm == NULL || !outside) return LS_OK;
    for (int32_t r = 1; r <= ls_comm_ranks(g->comm); r++) begins[r] = bytes;
    LS_TRY(ls_comm_share(g->comm, g->rows.rewards, begins, "the rewards", err));
    for (int64_t s = 0; s < e->n; s++) {
        e->list[s].reward = (double)g->rows.rewards[s];
        e->list[s].failed = isnan(g->rows.rewards[s]);
    }
    return LS_OK;
}

static ls_status score_reference(grpo *g, ls_error *err) {
    const ls_score_opts opts = {(ls_dtype)g->o->train.dtype, 64, 0, 16};
    const ls_sampling sampling = g->engine_opts.sampling;
    ls_score_item *items = NULL;
    ls_status status = LS_OK;
    if (g->rows.reference == NULL) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&items, g->rows.n, sizeof *items, "reference", err));
    for (int64_t s = 0; s < g->rows.n; s++) {
        const ls_episode *x = &g->episodes->list[s];
        items[s] = (ls_score_item){x->tokens, x->n, g->engine_opts.logprob_of, sampling,
                                   g->rows.reference + g->rows.offsets[s]};
    }
    LS_TRY_DONE(ls_score(g->reference, g->device, &opts, items, g->rows.n, err));
done:
    free(items);
    return status;
}

static ls_status make_episodes(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    double start = ls_grpo_clock(), now;
    LS_TRY(ls_episodes_begin(g->episodes, &g->world, LS_SPLIT_TRAIN, (g->step - 1) * o->prompts, err));
    LS_TRY(ls_episodes_run(g->episodes, &g->world, g->engine, err));
    now = ls_grpo_clock();
    g->times.rollout = now - start;
    LS_TRY(judge(g, err));
    lay_out(g);
    LS_TRY(ls_advantages(g->rows.advantages, g->rows.keep, &g->advantage_metrics, g->rows.rewards, g->rows.failed,
                         g->rows.n, o->samples, &g->advantages, err));
    start = ls_grpo_clock();
    g->times.reward = start - now;
    LS_TRY(score_reference(g, err));
    g->times.reference = ls_grpo_clock() - start;
    return LS_OK;
}

/* ---- the loss of one update ---- */

/* Sums as numbers that the trainer hands from process to process; the first is the loss. */
static void pack(double out[LS_GRPO_METRICS], const ls_loss_sums *s) {
    const double values[LS_GRPO_METRICS] = {s->policy + s->kl + s->entropy,
                                            (double)s->n_tokens,
                                            (double)s->clip_low,
                                            (double)s->clip_high,
                                            (double)s->clip_dual,
                                            s->policy,
                                            s->kl,
                                            s->entropy,
                                            s->ratio,
                                            s->ratio_min,
                                            s->ratio_max,
                                            s->old_k1,
                                            s->old_k2,
                                            s->old_k3,
                                            s->reference_kl,
                                            s->token_entropy,
                                            0};
    memcpy(out, values, sizeof values);
}

static ls_loss_sums unpack(const double v[LS_GRPO_METRICS]) {
    const ls_loss_sums s = {(int64_t)v[1], (int64_t)v[2], (int64_t)v[3], (int64_t)v[4], v[5],  v[6],  v[7], v[8],
                            v[9],          v[10],         v[11],         v[12],         v[13], v[14], v[15]};
    return s;
}

static ls_tokens tokens_of(const grpo *g, int64_t begin, int64_t end) {
    const ls_tokens tokens = {end - begin, g->rows.offsets + begin, g->rows.mask};
    return tokens;
}

/* Episodes [begin, end) have the trainer's log-probabilities of the step's beginning: gate and weights. */
static ls_status take_trainer(grpo *g, int64_t begin, int64_t end, ls_error *err) {
    grpo_rows *r = &g->rows;
    const ls_tokens tokens = tokens_of(g, begin, end);
    for (int64_t s = begin; s < end; s++)
        ls_gate_compare(&g->gate, s, r->offsets[s], r->offsets[s + 1], r->mask, r->recorded, r->trainer);
    if (r->weights != NULL)
        LS_TRY(ls_correction_apply(r->weights, NULL, NULL, &tokens, r->recorded, r->trainer, &g->correction, err));
    return LS_OK;
}

/* Without differing bits record and trainer are the same. */
static const float *old_of(const grpo *g) { return g->correction.n > 0 ? g->rows.trainer : g->rows.recorded; }

ls_status ls_grpo_loss_callback(void *context, const ls_train_rows *rows, ls_error *err) {
    grpo *g = context;
    grpo_rows *r = &g->rows;
    const int64_t s = g->part.begin + rows->sequence, row = r->offsets[s], end = s + rows->n_sequences;
    const ls_loss_input input = {.tokens = {rows->n_sequences, rows->offsets, r->mask + row},
                                 .keep = r->keep + s,
                                 .overlong = r->overlong + s,
                                 .advantages = r->advantages + s,
                                 .logprobs = rows->logprob,
                                 .old = old_of(g) + row,
                                 .reference = r->reference == NULL ? NULL : r->reference + row,
                                 .weights = r->weights == NULL ? NULL : r->weights + row,
                                 .entropy = rows->entropy};
    if (g->part.is_first) {
        memcpy(r->trainer + row, rows->logprob, (size_t)rows->n_rows * sizeof(float));
        LS_TRY(take_trainer(g, s, end, err));
    }
    if (ls_grpo_stops(g)) { /* nothing is learnt; the other sequences are still compared */
        if (end == g->part.end) return LS_FAIL(err, LS_ERR_ARG, "rollout and trainer differ");
    }
    LS_TRY(ls_loss(rows->d_logprob, rows->d_entropy, r->sums + s, &input, &g->part.totals, &g->loss, err));
    for (int64_t i = 0; i < rows->n_sequences; i++) pack(rows->metrics + i * LS_GRPO_METRICS, &r->sums[s + i]);
    return LS_OK;
}

/* ---- updates ---- */

static grpo_part part_of(const grpo *g, int64_t m) {
    const ls_grpo_options *o = g->o;
    grpo_part part = {m * o->prompts / o->minibatches * o->samples,
                      (m + 1) * o->prompts / o->minibatches * o->samples,
                      false,
                      {0, 0}};
    const ls_loss_input input = {.tokens = tokens_of(g, part.begin, part.end),
                                 .keep = g->rows.keep + part.begin,
                                 .overlong = g->rows.overlong + part.begin};
    ls_loss_count(&part.totals, &input, &g->loss);
    return part;
}

static ls_train_batch batch_of(const grpo *g, int64_t begin, int64_t end) {
    const grpo_rows *r = &g->rows;
    const ls_train_batch batch = {r->tokens, r->offsets + begin, r->targets, end - begin, 1.0};
    return batch;
}

/* Episodes whose trainer's log-probabilities no update will bring in time. */
static ls_status score(grpo *g, int64_t begin, int64_t end, ls_error *err) {
    const double start = ls_grpo_clock();
    const ls_train_batch batch = batch_of(g, begin, end);
    ls_status status = LS_OK;
    if (begin == end) return LS_OK;
    LS_TRY_DONE(ls_trainer_score(g->trainer, &batch, g->rows.trainer, err));
    LS_TRY_DONE(take_trainer(g, begin, end, err));
done:
    g->times.gate += ls_grpo_clock() - start;
    return status;
}

/* The minibatches in the order of an epoch: Fisher-Yates by counters. */
static void order_minibatches(const grpo *g, int64_t epoch, int64_t *order) {
    for (int64_t i = 0; i < g->o->minibatches; i++) order[i] = i;
    for (int64_t i = g->o->minibatches - 1; i > 0; i--) {
        const ls_philox draw = ls_philox_draw(g->o->train.seed, (uint32_t)i, (uint32_t)epoch, (uint32_t)g->step,
                                              (uint32_t)(g->step >> 32) ^ UINT32_C(0x6D696E69));
        const int64_t j = (int64_t)(draw.word[0] % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* With the gate passed these are equalities. */
static void check_first(const grpo *g) {
    const ls_loss_metrics *m = &g->first_loss;
    if (g->gate.n_differing > 0 || m->n_tokens == 0) return;
    LS_ASSERT(m->ratio_min == 1 && m->ratio_max == 1 && m->old_k1 == 0 && m->old_k2 == 0 && m->old_k3 == 0 &&
                  m->clip_fraction == 0,
              "step %lld: equal bits, yet ratios of %.17g to %.17g, k1 %g, k2 %g, k3 %g, clipped %g",
              (long long)g->step, m->ratio_min, m->ratio_max, m->old_k1, m->old_k2, m->old_k3, m->clip_fraction);
}

static ls_status update(grpo *g, bool *stopped, ls_error *err) {
    const ls_train_batch batch = batch_of(g, g->part.begin, g->part.end);
    const double start = ls_grpo_clock();
    ls_status status = ls_trainer_step(g->trainer, &batch, &g->stats, err);
    g->times.update += ls_grpo_clock() - start;
    *stopped = g->part.is_first && ls_grpo_stops(g);
    if (*stopped) return LS_OK;
    if (status != LS_OK) return status;
    for (int64_t s = g->part.begin; s < g->part.end; s++)
        g->rows.sums[s] = unpack(g->stats.metrics + (s - g->part.begin) * LS_GRPO_METRICS);
    if (g->part.is_first) {
        ls_loss_measure(&g->first_loss, g->rows.sums + g->part.begin, g->part.end - g->part.begin);
        check_first(g);
    }
    g->n_updates++;
    return ls_engine_set_weights(g->engine, g->model, (uint64_t)ls_trainer_state(g->trainer)->step, err);
}

/* The step's first update: the minibatch whose forward is the gate's, or -1 where none counts. */
static int64_t first_minibatch(const grpo *g, const int64_t *order) {
    for (int64_t k = 0; k < g->o->minibatches; k++)
        if (part_of(g, order[k]).totals.n_tokens > 0) return order[k];
    return -1;
}

/* Everything that the first update's forward does not bring. With several processes each of them sees a part of that
 * one only, so that all is scored. */
static ls_status score_others(grpo *g, int64_t first, ls_error *err) {
    const grpo_part part = first < 0 ? (grpo_part){0} : part_of(g, first);
    if (first < 0 || g->comm != NULL) return score(g, 0, g->rows.n, err);
    LS_TRY(score(g, 0, part.begin, err));
    LS_TRY(score(g, part.end, g->rows.n, err));
    if (ls_grpo_stops(g)) LS_TRY(score(g, part.begin, part.end, err));
    return LS_OK;
}

static ls_status run_updates(grpo *g, bool *stopped, ls_error *err) {
    int64_t *order = NULL, first;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&order, g->o->minibatches, sizeof *order, "minibatches", err));
    order_minibatches(g, 0, order);
    first = first_minibatch(g, order);
    LS_TRY_DONE(score_others(g, first, err));
    *stopped = ls_grpo_stops(g);
    for (int64_t epoch = 0; epoch < g->o->epochs && !*stopped; epoch++) {
        order_minibatches(g, epoch, order);
        memset(g->rows.sums, 0, (size_t)g->rows.n * sizeof *g->rows.sums);
        for (int64_t k = 0; k < g->o->minibatches && !*stopped; k++) {
            g->part = part_of(g, order[k]);
            g->part.is_first = g->comm == NULL && g->n_updates == 0;
            if (g->part.totals.n_tokens > 0) LS_TRY_DONE(update(g, stopped, err));
        }
    }
done:
    free(order);
    return status;
}

/* ---- the step ---- */

/* What the step did, from what it saw and what it left. */
static ls_status mix_digest(grpo *g, ls_error *err) {
    uint64_t hash = ls_fnv_mix(LS_FNV_START, &g->result->digest, (int64_t)sizeof g->result->digest);
    uint64_t weights;
    for (int64_t s = 0; s < g->rows.n; s++) {
        const ls_episode *x = &g->episodes->list[s];
        hash = ls_fnv_mix(hash, x->tokens, x->n * (int64_t)sizeof *x->tokens);
        hash = ls_fnv_mix(hash, &g->rows.rewards[s], (int64_t)sizeof g->rows.rewards[s]);
    }
    hash = ls_fnv_mix(hash, g->rows.recorded, g->rows.offsets[g->rows.n] * (int64_t)sizeof(float));
    LS_TRY(ls_parameters_digest(ls_trainer_state(g->trainer)->parameters, &weights, err));
    g->result->digest = ls_fnv_mix(hash, &weights, (int64_t)sizeof weights);
    return LS_OK;
}

/* Losses are parts of the loss of their update; over an epoch they are averaged. */
static void measure_last(grpo *g) {
    const double n = (double)g->o->minibatches;
    for (int64_t s = 0; s < g->rows.n; s++) {
        g->rows.sums[s].policy /= n;
        g->rows.sums[s].kl /= n;
        g->rows.sums[s].entropy /= n;
    }
    ls_loss_measure(&g->last_loss, g->rows.sums, g->rows.n);
}

ls_status ls_grpo_step(grpo *g, bool *stopped, ls_error *err) {
    const ls_tokens tokens = {g->rows.n, g->rows.offsets, g->rows.mask};
    *stopped = false;
    g->n_updates = 0;
    g->times = (grpo_times){0};
    ls_gate_begin(&g->gate);
    LS_TRY(make_episodes(g, err));
    LS_TRY(run_updates(g, stopped, err));
    g->result->gate = g->gate;
    if (g->gate.n_differing > 0) g->result->differs = true;
    if (*stopped) return LS_OK;
    if (g->rows.weights != NULL)
        LS_TRY(ls_correction_apply(g->rows.weights, NULL, &g->correction_metrics, &tokens, g->rows.recorded,
                                   g->rows.trainer, &g->correction, err));
    measure_last(g);
    return mix_digest(g, err);
}
