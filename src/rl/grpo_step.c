/* One step of a policy-gradient run. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
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
    LS_TRY(ls_array_alloc((void **)&r->order, n, sizeof *r->order, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->places, n, sizeof *r->places, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->lengths, n, sizeof *r->lengths, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->moved, n, sizeof(float), "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->tokens, rows, sizeof *r->tokens, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->offsets, n + 1, sizeof *r->offsets, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->targets, rows, sizeof *r->targets, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->mask, rows, sizeof *r->mask, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->recorded, rows, sizeof *r->recorded, "rows", err));
    LS_TRY(ls_array_alloc((void **)&r->trainer, rows, sizeof *r->trainer, "rows", err));
    if (g->o->lag > 0) {
        LS_TRY(ls_array_alloc((void **)&r->checked, rows, sizeof *r->checked, "rows", err));
        LS_TRY(ls_array_alloc((void **)&r->is_checked, rows, sizeof *r->is_checked, "rows", err));
    }
    if (g->loss.beta != 0) LS_TRY(ls_array_alloc((void **)&r->reference, rows, sizeof *r->reference, "rows", err));
    if (g->correction.n > 0) LS_TRY(ls_array_alloc((void **)&r->weights, rows, sizeof *r->weights, "rows", err));
    if (ls_grpo_truncates(g)) LS_TRY(ls_supports_create(&r->supports, rows, g->model->config.vocab, err));
    LS_TRY(ls_array_alloc((void **)&r->rewards, n, sizeof *r->rewards, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->advantages, n, sizeof *r->advantages, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->failed, n, sizeof *r->failed, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->keep, n, sizeof *r->keep, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&r->overlong, n, sizeof *r->overlong, "episodes", err));
    return ls_array_alloc((void **)&r->sums, n, sizeof *r->sums, "episodes", err);
}

void ls_grpo_rows_free(grpo_rows *r) {
    free(r->order);
    free(r->places);
    free(r->lengths);
    free(r->moved);
    free(r->tokens);
    free(r->offsets);
    free(r->targets);
    free(r->mask);
    free(r->recorded);
    free(r->trainer);
    free(r->checked);
    free(r->is_checked);
    free(r->reference);
    free(r->weights);
    ls_supports_free(r->supports);
    free(r->rewards);
    free(r->advantages);
    free(r->failed);
    free(r->keep);
    free(r->overlong);
    free(r->sums);
}

/* The episodes of update m: [*begin, *end), by number and by place. */
static void update_share(const grpo *g, int64_t m, int64_t *begin, int64_t *end) {
    const ls_grpo_options *o = g->o;
    *begin = m * o->prompts / o->minibatches * o->samples;
    *end = (m + 1) * o->prompts / o->minibatches * o->samples;
}

/* The order of episodes [begin, end), by number from begin on. Those that share a beginning stay together: their groups
 * are ordered as sequences are. */
static ls_status order_episodes(const grpo *g, int64_t begin, int64_t end, ls_error *err) {
    const int64_t group = g->o->prefix == LS_BEGINNINGS_SHARED ? g->o->samples : 1, n = (end - begin) / group;
    int64_t *order = g->rows.order + begin, *lengths = g->rows.lengths + begin, *sums = g->rows.places + begin;
    ls_train_options options = g->o->train;
    options.leaf /= group;
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t i = 0; i < n * group; i++) sums[i / group] += lengths[i];
    LS_TRY(ls_train_options_order(order, sums, n, &options, err));
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t first = order[i] * group;
        for (int64_t k = 0; k < group; k++) order[i * group + k] = first + k;
    }
    return LS_OK;
}

/* Which episode is where: each update has its own places. */
static ls_status find_places(grpo *g, ls_error *err) {
    grpo_rows *r = &g->rows;
    for (int64_t i = 0; i < r->n; i++) r->lengths[i] = g->episodes->list[i].n - 1;
    for (int64_t m = 0; m < g->o->minibatches; m++) {
        int64_t begin, end;
        update_share(g, m, &begin, &end);
        if (begin == end) continue;
        LS_TRY(order_episodes(g, begin, end, err));
        for (int64_t s = begin; s < end; s++) r->order[s] += begin;
    }
    for (int64_t s = 0; s < r->n; s++) r->places[r->order[s]] = s;
    return LS_OK;
}

/* What was found by number comes to its places: elements of at most a float. */
static void put_in_places(const grpo_rows *r, void *list, size_t bytes) {
    for (int64_t s = 0; s < r->n; s++)
        memcpy(r->moved + (size_t)s * bytes, (const uint8_t *)list + (size_t)r->order[s] * bytes, bytes);
    memcpy(list, r->moved, (size_t)r->n * bytes);
}

/* What older weights left to draw from. The supports of fresh rows are found where the trainer first computes them. */
static ls_status lay_out_supports(grpo *g, ls_error *err) {
    const grpo_rows *r = &g->rows;
    if (r->supports == NULL) return LS_OK;
    ls_supports_clear(r->supports);
    for (int64_t s = 0; s < r->n && !ls_grpo_is_fresh(g); s++) {
        const int64_t first = r->order[s] * g->o->length;
        for (int64_t row = r->offsets[s]; row < r->offsets[s + 1]; row++) {
            ls_support_row drawn;
            if (r->mask[row] == 0) continue;
            drawn = ls_supports_row(g->draws->supports, first + row - r->offsets[s]);
            LS_TRY(ls_supports_put_row(r->supports, row, &drawn, err));
        }
    }
    return LS_OK;
}

static ls_status lay_out_rows(grpo *g, ls_error *err) {
    grpo_rows *r = &g->rows;
    int64_t row = 0;
    for (int64_t s = 0; s < r->n; s++) {
        const ls_episode *x = ls_grpo_at(g, s);
        r->offsets[s] = row;
        r->overlong[s] = x->overlong;
        for (int64_t i = 0; i + 1 < x->n; i++, row++) {
            r->tokens[row] = x->tokens[i];
            r->mask[row] = x->drawn[i + 1];
            r->targets[row] = r->mask[row] != 0 ? x->tokens[i + 1] : -1;
            r->recorded[row] = r->mask[row] != 0 ? x->logprob[i + 1] : 0.0f;
        }
    }
    r->offsets[r->n] = row;
    return lay_out_supports(g, err);
}

/* ---- what episodes earn ---- */

/* The reference's log-probabilities: of this process's share of the episodes, then of all. */
static ls_status share_reference(grpo *g, ls_error *err) {
    const int64_t n_ranks = g->comm == NULL ? 1 : ls_comm_ranks(g->comm);
    int64_t begins[LS_RANKS_MAX + 1];
    if (g->comm == NULL) return LS_OK;
    for (int64_t r = 0; r <= n_ranks; r++)
        begins[r] = g->rows.offsets[r * g->rows.n / n_ranks] * (int64_t)sizeof *g->rows.reference;
    return ls_comm_share(g->comm, g->rows.reference, begins, "the reference's log-probabilities", err);
}

static ls_status score_reference(grpo *g, ls_error *err) {
    const ls_score_opts opts = ls_grpo_score_opts(g);
    const ls_sampling sampling = g->engine_opts.sampling;
    ls_score_item *items = NULL;
    int64_t begin, end;
    ls_status status = LS_OK;
    if (g->rows.reference == NULL) return LS_OK;
    ls_grpo_share(g, g->rows.n, &begin, &end);
    LS_TRY_DONE(ls_array_alloc((void **)&items, g->rows.n, sizeof *items, "reference", err));
    for (int64_t s = begin; s < end; s++) {
        const ls_episode *x = ls_grpo_at(g, s);
        items[s - begin] = (ls_score_item){.tokens = x->tokens,
                                           .n_tokens = x->n,
                                           .of = g->engine_opts.logprob_of,
                                           .sampling = sampling,
                                           .logprob = g->rows.reference + g->rows.offsets[s]};
    }
    if (end > begin) LS_TRY_DONE(ls_score(g->reference, g->device, &opts, items, end - begin, err));
    LS_TRY_DONE(share_reference(g, err));
done:
    free(items);
    return status;
}

/* Over groups, which are neighbours by number. */
static ls_status find_advantages(grpo *g, ls_error *err) {
    grpo_rows *r = &g->rows;
    for (int64_t i = 0; i < r->n; i++) {
        r->rewards[i] = (float)g->episodes->list[i].reward;
        r->failed[i] = g->episodes->list[i].failed;
    }
    const ls_group_rewards of = {.rewards = r->rewards, .failed = r->failed, .n = r->n, .group_size = g->o->samples};
    LS_TRY(ls_advantages(r->advantages, r->keep, &g->advantage_metrics, &of, &g->advantages, err));
    if (g->advantage_metrics.n_groups_equal + g->advantage_metrics.n_groups_empty < g->advantage_metrics.n_groups)
        g->any_differ = true;
    put_in_places(r, r->advantages, sizeof *r->advantages);
    put_in_places(r, r->keep, sizeof *r->keep);
    return LS_OK;
}

/* Length costs reward in the last overlong_buffer tokens before max_tokens, from nothing to overlong_penalty. */
static void punish_length(grpo *g) {
    const ls_grpo_options *o = g->o;
    ls_episodes *e = g->episodes;
    double sum = 0;
    for (int64_t i = 0; i < e->n && o->overlong_buffer > 0; i++) {
        const int64_t over = e->list[i].n_drawn - (o->max_tokens - o->overlong_buffer);
        const double share =
            (double)(over < o->overlong_buffer ? over : o->overlong_buffer) / (double)o->overlong_buffer;
        if (over <= 0 || e->list[i].failed) continue;
        e->list[i].reward -= o->overlong_penalty * share;
        sum += o->overlong_penalty * share;
    }
    g->overlong_penalty = sum / (double)e->n;
}

static ls_status take_episodes(grpo *g, ls_error *err) {
    const grpo_drawer drawer = {g->engine,
                                {ls_trainer_state(g->trainer)->weights, ls_trainer_state(g->trainer)->step},
                                &g->engine_opts.sampling,
                                true,
                                NULL};
    if (g->ahead != NULL) return ls_grpo_ahead_take(g, err);
    g->draws->step = g->step;
    g->draws->behind = g->draws->newest = g->step - 1;
    LS_TRY(ls_grpo_draws_begin(g, g->draws, err));
    LS_TRY(ls_grpo_draws_make(g, g->draws, &drawer, err));
    return g->o->filter_groups ? LS_OK : ls_grpo_draws_join(g, g->draws, err);
}

static ls_status make_episodes(grpo *g, ls_error *err) {
    double start;
    LS_TRY(take_episodes(g, err));
    g->times.rollout = g->draws->rollout;
    start = ls_clock_seconds();
    punish_length(g);
    LS_TRY(ls_grpo_record_turns(g, g->draws, NULL, err));
    LS_TRY(find_places(g, err));
    LS_TRY(lay_out_rows(g, err));
    LS_TRY(find_advantages(g, err));
    g->times.reward = g->draws->reward + ls_clock_seconds() - start;
    start = ls_clock_seconds();
    LS_TRY(score_reference(g, err));
    g->times.reference = ls_clock_seconds() - start;
    return LS_OK;
}

/* ---- the loss of one update ---- */

/* Sums as the numbers that the trainer hands from process to process: the loss, then these fields. */
#define COUNT(field) \
    { offsetof(ls_loss_sums, field), true }
#define REAL(field) \
    { offsetof(ls_loss_sums, field), false }
static const struct {
    size_t at;
    bool is_count;
} sum_fields[] = {COUNT(n_tokens), COUNT(clip_low), COUNT(clip_high), COUNT(clip_dual),   REAL(policy),
                  REAL(kl),        REAL(entropy),   REAL(ratio),      REAL(ratio_min),    REAL(ratio_max),
                  REAL(old_k1),    REAL(old_k2),    REAL(old_k3),     REAL(reference_kl), REAL(token_entropy)};
enum { N_SUM_FIELDS = sizeof sum_fields / sizeof sum_fields[0] };
_Static_assert(N_SUM_FIELDS + 1 == LS_GRPO_METRICS, "numbers of a sequence");
_Static_assert(N_SUM_FIELDS * 8 == sizeof(ls_loss_sums), "every field is in the table");

static void pack(double out[LS_GRPO_METRICS], const ls_loss_sums *sums) {
    out[0] = sums->policy + sums->kl + sums->entropy;
    for (int i = 0; i < N_SUM_FIELDS; i++) {
        const void *field = (const char *)sums + sum_fields[i].at;
        out[i + 1] = sum_fields[i].is_count ? (double)*(const int64_t *)field : *(const double *)field;
    }
}

static ls_loss_sums unpack(const double numbers[LS_GRPO_METRICS]) {
    ls_loss_sums sums;
    for (int i = 0; i < N_SUM_FIELDS; i++) {
        void *field = (char *)&sums + sum_fields[i].at;
        if (sum_fields[i].is_count)
            *(int64_t *)field = (int64_t)numbers[i + 1];
        else
            *(double *)field = numbers[i + 1];
    }
    return sums;
}

static ls_tokens tokens_of(const grpo *g, int64_t begin, int64_t end) {
    const ls_tokens tokens = {end - begin, g->rows.offsets + begin, g->rows.mask};
    return tokens;
}

/* What the loss says of the rows of a forward: their gradients and numbers. */
static ls_status differentiate(grpo *g, const ls_train_rows *rows, ls_error *err) {
    const grpo_rows *r = &g->rows;
    const int64_t s = g->part.begin + rows->sequence, row = r->offsets[s];
    /* Without differing bits record and trainer are the same. */
    const float *old = g->correction.n > 0 ? r->trainer : r->recorded;
    const ls_loss_input input = {.tokens = {rows->n_sequences, rows->offsets, r->mask + row},
                                 .keep = r->keep + s,
                                 .overlong = r->overlong + s,
                                 .advantages = r->advantages + s,
                                 .logprobs = rows->logprob,
                                 .old = old + row,
                                 .reference = r->reference == NULL ? NULL : r->reference + row,
                                 .weights = r->weights == NULL ? NULL : r->weights + row,
                                 .entropy = rows->entropy};
    LS_TRY(ls_loss(rows->d_logprob, rows->d_entropy, r->sums + s, &input, &g->part.totals, &g->loss, err));
    for (int64_t i = 0; i < rows->n_sequences; i++) pack(rows->metrics + i * LS_GRPO_METRICS, &r->sums[s + i]);
    return LS_OK;
}

/* ---- updates ---- */

static grpo_part update_part(const grpo *g, int64_t m) {
    grpo_part part = {0};
    update_share(g, m, &part.begin, &part.end);
    const ls_loss_input input = {.tokens = tokens_of(g, part.begin, part.end),
                                 .keep = g->rows.keep + part.begin,
                                 .overlong = g->rows.overlong + part.begin};
    ls_loss_count(&part.totals, &input, &g->loss);
    return part;
}

static ls_train_batch batch_of(const grpo *g, int64_t begin, int64_t end) {
    const grpo_rows *r = &g->rows;
    const ls_train_batch batch = {r->tokens, r->offsets + begin, r->targets, end - begin, 1.0, r->supports};
    return batch;
}

/* Compares what the trainer gave episodes [begin, end) with the record: of those that its weights drew. */
static void compare_logprobs(grpo *g, int64_t begin, int64_t end) {
    const grpo_rows *r = &g->rows;
    if (!ls_grpo_is_fresh(g)) return;
    for (int64_t s = begin; s < end; s++)
        ls_gate_compare(&g->gate, r->order[s], r->offsets[s], r->offsets[s + 1], r->mask, r->recorded, r->trainer);
}

/* Compares what the weights that drew gave the episodes that they scored once more. */
static void compare_checks(grpo *g) {
    const grpo_rows *r = &g->rows;
    for (int64_t s = 0; s < r->n; s++) {
        const int64_t i = r->order[s], begin = r->offsets[s], n = r->offsets[s + 1] - begin;
        memset(r->is_checked + begin, 0, (size_t)n);
        if (g->draws->is_checked[i] == 0) continue;
        memcpy(r->is_checked + begin, r->mask + begin, (size_t)n);
        memcpy(r->checked + begin, g->draws->logprob + i * g->o->length, (size_t)n * sizeof(float));
        ls_gate_compare(&g->gate, i, begin, begin + n, r->mask, r->recorded, r->checked);
    }
}

/* The gate of episodes that older weights drew. One that stops the run looks at all of them: the bundle has both sides
 * of each. */
static ls_status gate_older(grpo *g, ls_error *err) {
    if (ls_grpo_is_fresh(g)) return LS_OK;
    compare_checks(g);
    if (!ls_grpo_stops(g)) return LS_OK;
    LS_TRY(ls_grpo_ahead_check_all(g, err));
    ls_gate_begin(&g->gate);
    compare_checks(g);
    return LS_OK;
}

/* What the correction makes of the same episodes. */
static ls_status correct(grpo *g, int64_t begin, int64_t end, ls_error *err) {
    const grpo_rows *r = &g->rows;
    const ls_tokens tokens = tokens_of(g, begin, end);
    if (r->weights == NULL) return LS_OK;
    return ls_correction_apply(r->weights, NULL, NULL, &tokens, r->recorded, r->trainer, &g->correction, err);
}

/* Scores and gates episodes whose log-probabilities no update will bring in time. */
static ls_status score_episodes(grpo *g, int64_t begin, int64_t end, ls_error *err) {
    const double start = ls_clock_seconds();
    const ls_train_batch batch = batch_of(g, begin, end);
    if (begin == end) return LS_OK;
    LS_TRY(ls_trainer_score(g->trainer, &batch, g->rows.trainer, err));
    compare_logprobs(g, begin, end);
    g->times.gate += ls_clock_seconds() - start;
    return correct(g, begin, end, err);
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
    if (g->gate.n_differing > 0 || m->n_tokens == 0 || !ls_grpo_is_fresh(g)) return;
    LS_ASSERT(m->ratio_min == 1 && m->ratio_max == 1 && m->old_k1 == 0 && m->old_k2 == 0 && m->old_k3 == 0 &&
                  m->clip_fraction == 0,
              "step %lld: equal bits, yet ratios of %.17g to %.17g, k1 %g, k2 %g, k3 %g, clipped %g",
              (long long)g->step, m->ratio_min, m->ratio_max, m->old_k1, m->old_k2, m->old_k3, m->clip_fraction);
}

/* One forward of some of the update's episodes, and the gradients of what the tape then holds. The log-probabilities of
 * the step's first update are those of its beginning: they pass the gate. */
static ls_status run_rows(grpo *g, ls_error *err) {
    ls_train_rows rows;
    LS_TRY(ls_trainer_forward(g->trainer, &rows, err));
    const int64_t s = g->part.begin + rows.sequence, end = s + rows.n_sequences;
    if (g->part.is_first) {
        memcpy(g->rows.trainer + g->rows.offsets[s], rows.logprob, (size_t)rows.n_rows * sizeof(float));
        compare_logprobs(g, s, end);
    }
    if (ls_grpo_stops(g)) return LS_OK;
    if (g->part.is_first) LS_TRY(correct(g, s, end, err));
    LS_TRY(differentiate(g, &rows, err));
    return ls_trainer_backward(g->trainer, err);
}

/* What the other processes' forwards gave, so that each of them comes to the same end. */
static ls_status gate_all(grpo *g, const ls_gate *before, ls_error *err) {
    if (g->comm == NULL || !g->part.is_first) return LS_OK;
    LS_TRY(ls_trainer_share(g->trainer, g->rows.trainer, "the log-probabilities", err));
    g->gate = *before;
    compare_logprobs(g, g->part.begin, g->part.end);
    return LS_OK;
}

/* The trainer has updated: the numbers of all processes, and the engine. */
static ls_status take_update(grpo *g, ls_error *err) {
    for (int64_t s = g->part.begin; s < g->part.end; s++)
        g->rows.sums[s] = unpack(g->stats.metrics + (s - g->part.begin) * LS_GRPO_METRICS);
    if (g->part.is_first) {
        ls_loss_measure(&g->first_loss, g->rows.sums + g->part.begin, g->part.end - g->part.begin);
        check_first(g);
    }
    g->n_updates++;
    if (g->engine == NULL) return LS_OK; /* servers get them when they draw */
    return ls_engine_set_weights(g->engine, g->model, (uint64_t)ls_trainer_state(g->trainer)->step, err);
}

/* One update: some episodes at a time are scored, pass the gate and give their gradients; then all of them update. */
static ls_status run_update(grpo *g, ls_error *err) {
    const ls_train_batch batch = batch_of(g, g->part.begin, g->part.end);
    const double start = ls_clock_seconds();
    const ls_gate before = g->gate;
    LS_TRY(ls_trainer_begin(g->trainer, &batch, err));
    while (ls_trainer_has_more(g->trainer)) LS_TRY(run_rows(g, err));
    LS_TRY(gate_all(g, &before, err));
    if (!ls_grpo_stops(g)) LS_TRY(ls_trainer_update(g->trainer, &g->stats, err));
    g->times.update += ls_clock_seconds() - start;
    return ls_grpo_stops(g) ? LS_OK : take_update(g, err);
}

/* The step's first update: the minibatch whose forward is the gate's, or -1 where none counts. */
static int64_t first_minibatch(const grpo *g, const int64_t *order) {
    for (int64_t k = 0; k < g->o->minibatches; k++)
        if (update_part(g, order[k]).totals.n_tokens > 0) return order[k];
    return -1;
}

/* The same by minibatches: each process finds the supports of the leaves that it is going to learn from. */
static ls_status score_minibatches(grpo *g, int64_t first, ls_error *err) {
    for (int64_t m = 0; m < g->o->minibatches; m++) {
        const grpo_part part = update_part(g, m);
        if (m != first) LS_TRY(score_episodes(g, part.begin, part.end, err));
    }
    if (ls_grpo_stops(g) && first >= 0) {
        const grpo_part part = update_part(g, first);
        return score_episodes(g, part.begin, part.end, err);
    }
    return LS_OK;
}

/* Everything that the first update's forward does not bring. */
static ls_status score_others(grpo *g, int64_t first, ls_error *err) {
    const grpo_part part = first < 0 ? (grpo_part){0} : update_part(g, first);
    if (g->rows.supports != NULL) return score_minibatches(g, first, err);
    if (first < 0) return score_episodes(g, 0, g->rows.n, err);
    LS_TRY(score_episodes(g, 0, part.begin, err));
    LS_TRY(score_episodes(g, part.end, g->rows.n, err));
    if (ls_grpo_stops(g)) LS_TRY(score_episodes(g, part.begin, part.end, err));
    return LS_OK;
}

static ls_status run_updates(grpo *g, ls_error *err) {
    int64_t *order = NULL, first;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&order, g->o->minibatches, sizeof *order, "minibatches", err));
    LS_TRY_DONE(ls_grpo_wake(g, GRPO_TRAINER, err));
    order_minibatches(g, 0, order);
    first = first_minibatch(g, order);
    LS_TRY_DONE(score_others(g, first, err));
    for (int64_t epoch = 0; epoch < g->o->epochs && !ls_grpo_stops(g); epoch++) {
        order_minibatches(g, epoch, order);
        memset(g->rows.sums, 0, (size_t)g->rows.n * sizeof *g->rows.sums);
        for (int64_t k = 0; k < g->o->minibatches && !ls_grpo_stops(g); k++) {
            g->part = update_part(g, order[k]);
            g->part.is_first = g->n_updates == 0;
            if (g->part.totals.n_tokens > 0) LS_TRY_DONE(run_update(g, err));
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
    LS_TRY(ls_parameters_digest(ls_trainer_state(g->trainer)->weights, &weights, err));
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
    g->n_updates = 0;
    g->times = (grpo_times){0};
    ls_gate_begin(&g->gate);
    LS_TRY(make_episodes(g, err));
    LS_TRY(gate_older(g, err));
    if (!ls_grpo_stops(g)) LS_TRY(run_updates(g, err));
    *stopped = ls_grpo_stops(g);
    g->result->gate = g->gate;
    if (g->gate.n_differing > 0) g->result->differs = true;
    if (*stopped) return LS_OK;
    if (g->rows.weights != NULL)
        LS_TRY(ls_correction_apply(g->rows.weights, NULL, &g->correction_metrics, &tokens, g->rows.recorded,
                                   g->rows.trainer, &g->correction, err));
    measure_last(g);
    return mix_digest(g, err);
}
