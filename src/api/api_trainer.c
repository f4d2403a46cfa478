/* The trainer of the interface: options, batches, and steps of two kinds. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_state.h"
#include "base/mem.h"
#include "rl/advantage.h"

static const ls_api_struct options_struct = {"lockstep_trainer_options", sizeof(lockstep_trainer_options),
                                             offsetof(lockstep_trainer_options, moments)};
static const ls_api_struct batch_struct = {"lockstep_batch", sizeof(lockstep_batch), sizeof(lockstep_batch)};
static const ls_api_struct stats_struct = {"lockstep_step_stats", sizeof(lockstep_step_stats),
                                           sizeof(lockstep_step_stats)};
static const lockstep_trainer_options option_defaults = {.size = sizeof(lockstep_trainer_options),
                                                         .sequences_max = 64,
                                                         .length_max = 2048,
                                                         .leaf = 1,
                                                         .temperature = 1.0,
                                                         .schedule = LOCKSTEP_CONSTANT,
                                                         .rate = 1e-4,
                                                         .beta1 = 0.9,
                                                         .beta2 = 0.95,
                                                         .eps = 1e-8,
                                                         .decay = 0.1,
                                                         .clip = 1.0,
                                                         .kl = LOCKSTEP_K3,
                                                         .eps_low = 0.2,
                                                         .eps_high = 0.2,
                                                         .microbatch = 4};
static const lockstep_batch batch_defaults = {.size = sizeof(lockstep_batch), .check = 1};

void lockstep_trainer_options_init(lockstep_trainer_options *options, size_t size) {
    ls_api_init(options, size, &option_defaults, &options_struct);
}

void lockstep_batch_init(lockstep_batch *batch, size_t size) {
    ls_api_init(batch, size, &batch_defaults, &batch_struct);
}

/* ---- opening ---- */

static ls_loss_options loss_of(const lockstep_trainer_options *o) {
    return (ls_loss_options){.policy = (ls_policy_kind)o->loss,
                             .norm = (ls_loss_norm)o->norm,
                             .kl = (ls_kl_kind)o->kl,
                             .eps_low = o->eps_low,
                             .eps_high = o->eps_high,
                             .dual_clip = o->dual_clip,
                             .beta = o->kl_weight,
                             .entropy_bonus = o->entropy_weight,
                             .length = o->norm_length,
                             .mask_overlong = o->mask_overlong != 0};
}

static ls_status check_options(const lockstep_trainer_options *o, ls_error *err) {
    const ls_loss_options loss = loss_of(o);
    LS_TRY(ls_api_check_choice("schedule", o->schedule, LS_RATE_COUNT, err));
    LS_TRY(ls_api_check_choice("loss", o->loss, LS_LOSS_POLICY_REINFORCE + 1, err));
    LS_TRY(ls_api_check_choice("norm", o->norm, LS_LOSS_NORM_LENGTH + 1, err));
    LS_TRY(ls_api_check_choice("kl", o->kl, LS_KL_K3 + 1, err));
    LS_TRY(ls_api_check_choice("mask_overlong", o->mask_overlong, 2, err));
    LS_TRY(ls_api_check_choice("recompute", o->recompute, 2, err));
    LS_TRY(ls_api_check_choice("moments", o->moments, LS_BF16 + 1, err));
    if (o->reserved != 0) return LS_FAIL(err, LS_ERR_ARG, "trainer: reserved is %d, not 0", o->reserved);
    if (o->sequences_max < 1 || o->length_max < 2)
        return LS_FAIL(err, LS_ERR_ARG, "trainer: batches of %lld sequences of at most %lld tokens",
                       (long long)o->sequences_max, (long long)o->length_max);
    if (!(o->temperature > 0.0) || !isfinite((float)o->temperature) || !((float)o->temperature > 0.0f))
        return LS_FAIL(err, LS_ERR_ARG, "temperature: %g is not a finite float32 above 0", o->temperature);
    if (!(o->kl_weight >= 0.0) || !isfinite(o->kl_weight))
        return LS_FAIL(err, LS_ERR_ARG, "kl_weight: %g is negative or not finite", o->kl_weight);
    if (!isfinite(o->entropy_weight))
        return LS_FAIL(err, LS_ERR_ARG, "entropy_weight: %g is not finite", o->entropy_weight);
    if (!(o->clip >= 0.0)) return LS_FAIL(err, LS_ERR_ARG, "clip: %g is negative", o->clip);
    return ls_loss_options_check(&loss, err);
}

/* One trainer takes steps of both kinds; entropies are there for those of a policy. */
static ls_status trainer_opts(ls_trainer_opts *out, const lockstep_trainer_options *o, ls_error *err) {
    int64_t sequences;
    *out = (ls_trainer_opts){.temperature = (float)o->temperature,
                             .leaf = o->leaf,
                             .adamw = {o->rate, o->beta1, o->beta2, o->eps, o->decay},
                             .moments = (ls_dtype)o->moments,
                             .rate = {(ls_rate_kind)o->schedule, o->rate, o->rate_floor, o->warmup, o->schedule_steps},
                             .max_norm = o->clip > 0.0 ? o->clip : (double)INFINITY,
                             .microbatch = o->microbatch,
                             .sequences_max = o->sequences_max,
                             .recompute = o->recompute != 0 ? LS_RECOMPUTE_ALL : 0,
                             .entropy = true,
                             .n_metrics = 1};
    if (!ls_mul_i64(o->microbatch, o->leaf, &sequences) || sequences > o->sequences_max) sequences = o->sequences_max;
    if (!ls_mul_i64(sequences, o->length_max, &out->rows_max))
        return LS_FAIL(err, LS_ERR_NOMEM, "a forward of %lld sequences of %lld tokens", (long long)sequences,
                       (long long)o->length_max);
    return LS_OK;
}

static ls_status check_model(const lockstep_model *m, ls_error *err) {
    if (m->has_trainer) return LS_FAIL(err, LS_ERR_ARG, "trainer: the model has one, which is not closed");
    if (m->version != 0)
        return LS_FAIL(err, LS_ERR_ARG, "trainer: the weights are of step %llu, no longer those of %s; open it again",
                       (unsigned long long)m->version, m->directory);
    return LS_OK;
}

static ls_status open_trainer(lockstep_trainer **out, lockstep_model *m, const lockstep_trainer_options *theirs,
                              ls_error *err) {
    lockstep_trainer *t = NULL;
    lockstep_trainer_options o = option_defaults;
    ls_trainer_opts opts;
    ls_status status;
    if (out == NULL || m == NULL) return LS_FAIL(err, LS_ERR_ARG, "trainer: out or model is NULL");
    LS_TRY(ls_api_read(&o, theirs, &options_struct, err));
    LS_TRY(check_options(&o, err));
    LS_TRY(trainer_opts(&opts, &o, err));
    LS_TRY(check_model(m, err));
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, sizeof *t, "trainer", err));
    t->model = m;
    m->n_holders++;
    m->has_trainer = true;
    t->options = o;
    t->loss = loss_of(&o);
    opts.dtype = m->dtype;
    LS_TRY_DONE(ls_saves_open(&t->files, m->directory, false, err));
    LS_TRY_DONE(ls_saves_keep_files(t->files, m->directory, err));
    LS_TRY_DONE(ls_api_rows_create(&t->rows, o.sequences_max, o.length_max, err));
    LS_TRY_DONE(ls_trainer_create(&t->trainer, m->model, m->directory, m->device, &opts, err));
    *out = t;
    t = NULL;
done:
    lockstep_trainer_close(t);
    return status;
}

ls_status lockstep_trainer_open(lockstep_trainer **out, lockstep_model *model, const lockstep_trainer_options *options,
                                ls_error *err) {
    LS_API_RETURN(open_trainer(out, model, options, err));
}

void lockstep_trainer_close(lockstep_trainer *t) {
    if (t == NULL) return;
    ls_trainer_free(t->trainer);
    ls_api_rows_free(&t->rows);
    ls_saves_close(t->files);
    t->model->has_trainer = false;
    ls_api_model_release(t->model);
    free(t);
}

int64_t lockstep_trainer_step(const lockstep_trainer *t) { return t == NULL ? -1 : ls_trainer_state(t->trainer)->step; }

ls_status ls_api_check_trainer(const lockstep_trainer *t, ls_error *err) {
    if (t == NULL) return LS_FAIL(err, LS_ERR_ARG, "trainer: NULL");
    if (!t->is_spoiled) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "trainer: it could not resume, and does nothing more");
}

/* ---- batches ---- */

static ls_status check_lengths(const lockstep_trainer *t, const lockstep_batch *b, ls_error *err) {
    const lockstep_trainer_options *o = &t->options;
    if (b->n > o->sequences_max)
        return LS_FAIL(err, LS_ERR_CAPACITY, "batch: %lld sequences; sequences_max is %lld", (long long)b->n,
                       (long long)o->sequences_max);
    for (int64_t i = 0; i < b->n; i++)
        if (b->offsets[i + 1] - b->offsets[i] > o->length_max)
            return LS_FAIL(err, LS_ERR_CAPACITY, "batch: sequence %lld has %lld tokens; length_max is %lld",
                           (long long)i, (long long)(b->offsets[i + 1] - b->offsets[i]), (long long)o->length_max);
    return LS_OK;
}

static ls_status take_batch(lockstep_trainer *t, const lockstep_batch *theirs, ls_error *err) {
    LS_TRY(ls_api_check_trainer(t, err));
    if (theirs == NULL) return LS_FAIL(err, LS_ERR_ARG, "batch: NULL");
    t->batch = batch_defaults;
    LS_TRY(ls_api_read(&t->batch, theirs, &batch_struct, err));
    if (t->batch.reserved != 0) return LS_FAIL(err, LS_ERR_ARG, "batch: reserved is %d, not 0", t->batch.reserved);
    LS_TRY(ls_api_check_sequences(t->model, t->batch.tokens, t->batch.offsets, t->batch.n, 2, err));
    LS_TRY(check_lengths(t, &t->batch, err));
    ls_api_rows_fill(&t->rows, &t->batch);
    if (t->rows.n_targets == 0) return LS_FAIL(err, LS_ERR_ARG, "batch: the mask leaves nothing to learn from");
    return LS_OK;
}

static ls_train_batch rows_as_batch(const lockstep_trainer *t, double count) {
    return (ls_train_batch){t->rows.tokens, t->rows.offsets, t->rows.targets, t->rows.n, count, NULL};
}

static ls_status score_batch(lockstep_trainer *t, const lockstep_batch *theirs, float *logprob, ls_error *err) {
    LS_TRY(take_batch(t, theirs, err));
    if (logprob == NULL) return LS_FAIL(err, LS_ERR_ARG, "score: logprob is NULL");
    const ls_train_batch batch = rows_as_batch(t, 1.0);
    LS_TRY(ls_trainer_score(t->trainer, &batch, t->rows.trainer, err));
    for (int64_t s = 0, row = 0; s < t->rows.n; s++) {
        logprob[t->batch.offsets[s]] = 0.0f;
        for (int64_t i = t->batch.offsets[s] + 1; i < t->batch.offsets[s + 1]; i++, row++)
            logprob[i] = t->rows.mask[row] != 0 ? t->rows.trainer[row] : 0.0f;
    }
    return LS_OK;
}

ls_status lockstep_trainer_score(lockstep_trainer *trainer, const lockstep_batch *batch, float *logprob,
                                 ls_error *err) {
    LS_API_RETURN(score_batch(trainer, batch, logprob, err));
}

/* ---- supervised steps ---- */

static void differentiate_sft(const ls_train_rows *rows) {
    for (int64_t i = 0; i < rows->n_sequences; i++)
        for (int64_t r = rows->offsets[i]; r < rows->offsets[i + 1]; r++) {
            if (rows->targets[r] < 0) continue;
            rows->d_logprob[r] = -1.0f;
            rows->metrics[i] -= (double)rows->logprob[r];
        }
}

static int64_t sequences_with_targets(const ls_api_rows *r) {
    int64_t n = 0;
    for (int64_t s = 0; s < r->n; s++) {
        int64_t row = r->offsets[s];
        while (row < r->offsets[s + 1] && r->mask[row] == 0) row++;
        n += row < r->offsets[s + 1];
    }
    return n;
}

static ls_status run_sft(lockstep_trainer *t, ls_train_stats *stats, ls_error *err) {
    const ls_train_batch batch = rows_as_batch(t, (double)t->rows.n_targets);
    ls_train_rows rows;
    LS_TRY(ls_trainer_begin(t->trainer, &batch, err));
    while (ls_trainer_has_more(t->trainer)) {
        LS_TRY(ls_trainer_forward(t->trainer, &rows, err));
        differentiate_sft(&rows);
        LS_TRY(ls_trainer_backward(t->trainer, err));
    }
    LS_TRY(ls_trainer_update(t->trainer, stats, err));
    t->model->version = (uint64_t)stats->step;
    return LS_OK;
}

static lockstep_step_stats stats_of(const ls_train_stats *s) {
    return (lockstep_step_stats){.step = s->step,
                                 .rate = s->rate,
                                 .norm = s->norm,
                                 .ratio_mean = (double)NAN,
                                 .ratio_min = (double)NAN,
                                 .ratio_max = (double)NAN,
                                 .clip_fraction = (double)NAN,
                                 .kl = (double)NAN,
                                 .entropy = (double)NAN};
}

/* The size of a caller's stats is looked at before the step, which cannot be taken back. */
static ls_status check_stats(lockstep_step_stats *theirs, ls_error *err) {
    lockstep_step_stats own = {0};
    return ls_api_write(theirs, &own, &stats_struct, err);
}

static ls_status sft(lockstep_trainer *t, const lockstep_batch *theirs, lockstep_step_stats *out, ls_error *err) {
    ls_train_stats stats;
    lockstep_step_stats own;
    LS_TRY(take_batch(t, theirs, err));
    LS_TRY(check_stats(out, err));
    LS_TRY(run_sft(t, &stats, err));
    own = stats_of(&stats);
    own.loss = stats.totals[0] / (double)t->rows.n_targets;
    own.tokens = t->rows.n_targets;
    own.sequences = sequences_with_targets(&t->rows);
    return ls_api_write(out, &own, &stats_struct, err);
}

ls_status lockstep_trainer_sft(lockstep_trainer *trainer, const lockstep_batch *batch, lockstep_step_stats *stats,
                               ls_error *err) {
    LS_API_RETURN(sft(trainer, batch, stats, err));
}

/* ---- policy steps ---- */

static ls_status check_policy(const lockstep_trainer *t, ls_error *err) {
    const lockstep_batch *b = &t->batch;
    if (b->advantages == NULL) return LS_FAIL(err, LS_ERR_ARG, "batch: advantages is NULL");
    if (b->recorded == NULL && (t->loss.policy != LS_LOSS_POLICY_REINFORCE || b->check != 0))
        return LS_FAIL(err, LS_ERR_ARG,
                       "batch: recorded is NULL; only REINFORCE without a check needs no log-probabilities");
    if ((b->reference == NULL) != (t->loss.beta == 0))
        return LS_FAIL(err, LS_ERR_ARG, "batch: reference is %s, and kl_weight is %g",
                       b->reference == NULL ? "NULL" : "given", t->loss.beta);
    return LS_OK;
}

/* Sequences [s, s + n) of the batch; offsets are those of their rows. */
static ls_loss_input loss_input(const lockstep_trainer *t, int64_t s, int64_t n, const int64_t *offsets) {
    const ls_api_rows *r = &t->rows;
    const int64_t row = r->offsets[s];
    return (ls_loss_input){.tokens = {n, offsets, r->mask + row},
                           .overlong = t->batch.overlong == NULL ? NULL : t->batch.overlong + s,
                           .advantages = t->batch.advantages + s,
                           .old = t->batch.recorded == NULL ? NULL : r->recorded + row,
                           .reference = t->batch.reference == NULL ? NULL : r->reference + row};
}

/* What the trainer's forward gave, beside the record. */
static void compare_rows(lockstep_trainer *t, const ls_train_rows *rows) {
    const ls_api_rows *r = &t->rows;
    memcpy(r->trainer + r->offsets[rows->sequence], rows->logprob, (size_t)rows->n_rows * sizeof(float));
    if (t->batch.recorded == NULL) return;
    for (int64_t s = rows->sequence; s < rows->sequence + rows->n_sequences; s++)
        ls_gate_compare(&t->gate, s, r->offsets[s], r->offsets[s + 1], r->mask, r->recorded, r->trainer);
}

static bool is_stopped(const lockstep_trainer *t) { return t->batch.check != 0 && t->gate.n_differing > 0; }

static ls_status learn(lockstep_trainer *t, const ls_train_rows *rows, ls_error *err) {
    ls_loss_sums *sums = t->rows.sums + rows->sequence;
    ls_loss_input input = loss_input(t, rows->sequence, rows->n_sequences, rows->offsets);
    if (is_stopped(t)) return LS_OK;
    input.logprobs = rows->logprob;
    input.entropy = rows->entropy;
    LS_TRY(ls_loss(rows->d_logprob, rows->d_entropy, sums, &input, &t->totals, &t->loss, err));
    for (int64_t i = 0; i < rows->n_sequences; i++) rows->metrics[i] = sums[i].policy + sums[i].kl + sums[i].entropy;
    return ls_trainer_backward(t->trainer, err);
}

static ls_status run_policy(lockstep_trainer *t, ls_train_stats *stats, ls_error *err) {
    const ls_train_batch batch = rows_as_batch(t, 1.0);
    ls_train_rows rows;
    LS_TRY(ls_trainer_begin(t->trainer, &batch, err));
    while (ls_trainer_has_more(t->trainer)) {
        LS_TRY(ls_trainer_forward(t->trainer, &rows, err));
        compare_rows(t, &rows);
        LS_TRY(learn(t, &rows, err));
    }
    if (is_stopped(t)) return LS_OK;
    LS_TRY(ls_trainer_update(t->trainer, stats, err));
    t->model->version = (uint64_t)stats->step;
    return LS_OK;
}

static ls_status refuse_difference(const lockstep_trainer *t, lockstep_step_stats *out, ls_error *err) {
    const ls_gate *g = &t->gate;
    const lockstep_step_stats own = {
        .step = lockstep_trainer_step(t), .compared = g->n_tokens, .differing = g->n_differing};
    LS_TRY(ls_api_write(out, &own, &stats_struct, err));
    return LS_FAIL(
        err, LS_ERR_ARG,
        "%lld of %lld recorded log-probabilities have other bits than the trainer's; nothing was learnt. The "
        "first: sequence %lld, token %lld: recorded %.9g, trainer %.9g",
        (long long)g->n_differing, (long long)g->n_tokens, (long long)g->sequence, (long long)g->row + 1,
        (double)g->rollout, (double)g->trainer);
}

static ls_status policy(lockstep_trainer *t, const lockstep_batch *theirs, lockstep_step_stats *out, ls_error *err) {
    ls_train_stats stats;
    ls_loss_metrics m;
    lockstep_step_stats own;
    LS_TRY(take_batch(t, theirs, err));
    LS_TRY(check_policy(t, err));
    LS_TRY(check_stats(out, err));
    const ls_loss_input all = loss_input(t, 0, t->rows.n, t->rows.offsets);
    t->totals = (ls_loss_totals){0, 0};
    ls_loss_count(&t->totals, &all, &t->loss);
    if (t->totals.n_tokens == 0)
        return LS_FAIL(err, LS_ERR_ARG, "batch: mask and overlong leave nothing to learn from");
    ls_gate_begin(&t->gate);
    LS_TRY(run_policy(t, &stats, err));
    if (is_stopped(t)) return refuse_difference(t, out, err);
    ls_loss_measure(&m, t->rows.sums, t->rows.n);
    own = stats_of(&stats);
    own.loss = m.loss;
    own.tokens = m.n_tokens;
    own.sequences = m.n_sequences;
    own.compared = t->gate.n_tokens;
    own.differing = t->gate.n_differing;
    own.ratio_mean = m.ratio_mean;
    own.ratio_min = m.ratio_min;
    own.ratio_max = m.ratio_max;
    own.clip_fraction = m.clip_fraction;
    own.kl = m.reference_kl;
    own.entropy = m.entropy;
    return ls_api_write(out, &own, &stats_struct, err);
}

ls_status lockstep_trainer_policy(lockstep_trainer *trainer, const lockstep_batch *batch, lockstep_step_stats *stats,
                                  ls_error *err) {
    LS_API_RETURN(policy(trainer, batch, stats, err));
}

/* ---- advantages ---- */

static ls_status advantages(float *out, const float *rewards, int64_t n, int64_t group, int32_t kind, ls_error *err) {
    const ls_advantage_options options = {.kind = (ls_advantage_kind)kind, .eps = 1e-6};
    if (out == NULL || rewards == NULL || n < 0 || group < 1)
        return LS_FAIL(err, LS_ERR_ARG, "advantages: an array is NULL, or %lld rewards in groups of %lld", (long long)n,
                       (long long)group);
    LS_TRY(ls_api_check_choice("kind", kind, LS_ADVANTAGE_RLOO + 1, err));
    const ls_group_rewards of = {.rewards = rewards, .n = n, .group_size = group};
    return ls_advantages(out, NULL, NULL, &of, &options, err);
}

ls_status lockstep_advantages(float *out, const float *rewards, int64_t n, int64_t group, int32_t kind, ls_error *err) {
    LS_API_RETURN(advantages(out, rewards, n, group, kind, err));
}
