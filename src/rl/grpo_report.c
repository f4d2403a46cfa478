/* What is told of a step: a line of metrics, a line for people, the bundle of a mismatch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/mem.h"
#include "rl/grpo_state.h"

static double mean_drawn(const grpo *g) {
    double sum = 0;
    for (int64_t s = 0; s < g->rows.n; s++) sum += (double)g->episodes->list[s].n_drawn;
    return sum / (double)g->rows.n;
}

static double share_overlong(const grpo *g) {
    double sum = 0;
    for (int64_t s = 0; s < g->rows.n; s++) sum += g->rows.overlong[s];
    return sum / (double)g->rows.n;
}

static double mean_turns(const grpo *g) {
    double sum = 0;
    for (int64_t s = 0; s < g->rows.n; s++) sum += (double)g->episodes->list[s].n_replies;
    return sum / (double)g->rows.n;
}

typedef struct number {
    const char *name;
    double value;
} number;

static void write_numbers(ls_json_out *json, const char *key, const number *numbers, size_t n) {
    ls_json_begin_object(json, key);
    for (size_t i = 0; i < n; i++) ls_json_double(json, numbers[i].name, numbers[i].value);
    ls_json_end_object(json);
}

static void write_reward(ls_json_out *json, const grpo *g) {
    const ls_advantage_metrics *a = &g->advantage_metrics;
    const number numbers[] = {{"mean", a->reward_mean},         {"std", a->reward_std},
                              {"min", a->reward_min},           {"max", a->reward_max},
                              {"group_std", a->group_std_mean}, {"failed", (double)a->n_failed},
                              {"groups", (double)a->n_groups},  {"groups_equal", (double)a->n_groups_equal},
                              {"kept", (double)a->n_kept}};
    write_numbers(json, "reward", numbers, sizeof numbers / sizeof numbers[0]);
}

static void write_gate(ls_json_out *json, const grpo *g) {
    ls_json_begin_object(json, "gate");
    ls_json_int(json, "tokens", g->gate.n_tokens);
    ls_json_int(json, "differing", g->gate.n_differing);
    ls_json_int(json, "sequences", g->gate.n_sequences_differing);
    ls_json_end_object(json);
}

static ls_status write_mismatch(ls_json_out *json, const grpo *g, ls_error *err) {
    const ls_tokens tokens = {g->rows.n, g->rows.offsets, g->rows.mask};
    ls_mismatch mismatch;
    const ls_status status = ls_mismatch_of(&mismatch, &tokens, g->rows.recorded, g->rows.trainer, err);
    if (status != LS_OK) return status;
    mismatch.equal_fraction = g->gate.n_tokens == 0
                                  ? (double)NAN
                                  : (double)(g->gate.n_tokens - g->gate.n_differing) / (double)g->gate.n_tokens;
    ls_json_begin_object(json, "mismatch");
    ls_mismatch_write(json, &mismatch);
    ls_json_begin_object(json, "aliases");
    ls_mismatch_write_aliases(json, &mismatch);
    ls_json_end_object(json);
    ls_json_end_object(json);
    return LS_OK;
}

static void write_correction(ls_json_out *json, const grpo *g) {
    if (g->correction.n == 0) return;
    ls_json_begin_object(json, "correction");
    ls_correction_write(json, &g->correction_metrics, &g->correction);
    ls_json_begin_object(json, "aliases");
    ls_correction_write_aliases(json, &g->correction_metrics, &g->correction);
    ls_json_end_object(json);
    ls_json_end_object(json);
}

static void write_update(ls_json_out *json, const grpo *g) {
    ls_json_begin_object(json, "update");
    ls_json_int(json, "updates", ls_trainer_state(g->trainer)->step);
    if (g->n_updates > 0) {
        ls_json_double(json, "norm", g->stats.norm);
        ls_json_bool(json, "clipped", g->stats.clipped);
        ls_json_double(json, "rate", g->stats.rate);
    }
    ls_json_end_object(json);
}

static void write_eval(ls_json_out *json, const grpo *g) {
    const number numbers[] = {{"reward", g->eval_reward}, {"length", g->eval_length}};
    if (!isnan(g->eval_reward)) write_numbers(json, "eval", numbers, 2);
}

static void write_times(ls_json_out *json, const grpo *g, double seconds) {
    const grpo_times *t = &g->times;
    const number numbers[] = {
        {"step", seconds}, {"rollout", t->rollout}, {"reward", t->reward}, {"reference", t->reference},
        {"gate", t->gate}, {"update", t->update},   {"eval", t->eval}};
    write_numbers(json, "seconds", numbers, sizeof numbers / sizeof numbers[0]);
}

/* A step's line; the times come last and carry no bits. */
static ls_status log_step(grpo *g, double seconds, ls_error *err) {
    ls_json_out *json = ls_metrics_log_begin(g->log, g->step);
    char digest[32];
    ls_status status;
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)g->result->digest);
    ls_json_string(json, "digest", digest);
    write_reward(json, g);
    ls_json_double(json, "length", mean_drawn(g));
    ls_json_double(json, "overlong", share_overlong(g));
    ls_json_double(json, "turns", mean_turns(g));
    write_gate(json, g);
    LS_TRY(write_mismatch(json, g, err));
    write_correction(json, g);
    if (g->n_updates > 0) {
        ls_loss_metrics_write(json, "first_update", &g->first_loss);
        ls_loss_metrics_write(json, "loss", &g->last_loss);
    }
    write_update(json, g);
    write_eval(json, g);
    write_times(json, g, seconds);
    LS_TRY(ls_metrics_log_end(g->log, err));
done:
    return status;
}

ls_status ls_grpo_log(grpo *g, double seconds, ls_error *err) {
    if (g->progress != NULL) {
        fprintf(g->progress, "step %lld/%lld  reward %.3f  length %.1f  loss %+.4f  norm %.3f  mismatch %lld of %lld",
                (long long)g->step, (long long)g->o->train.steps, g->advantage_metrics.reward_mean, mean_drawn(g),
                g->last_loss.loss, g->n_updates > 0 ? g->stats.norm : 0.0, (long long)g->gate.n_differing,
                (long long)g->gate.n_tokens);
        if (!isnan(g->eval_reward)) fprintf(g->progress, "  held-out %.3f", g->eval_reward);
        fprintf(g->progress, "  %.2f s\n", seconds);
    }
    return ls_grpo_writes(g) ? log_step(g, seconds, err) : LS_OK;
}

/* ---- a mismatch ---- */

static void describe(const grpo *g, ls_bundle *b) {
    ls_engine_plan plan;
    ls_engine_get_plan(g->engine, &plan);
    *b = (ls_bundle){.step = g->step,
                     .dtype = (ls_dtype)g->o->train.dtype,
                     .temperature = (float)g->o->temperature,
                     .seed = g->o->train.seed,
                     .weights = ls_parameters_digest(ls_trainer_state(g->trainer)->parameters),
                     .first_prompt = g->episodes->list[0].prompt_i,
                     .samples = g->o->samples,
                     .length = g->o->length,
                     .slots = plan.slots,
                     .levers = g->engine_opts.levers,
                     .n_tokens = g->gate.n_tokens,
                     .n_differing = g->gate.n_differing,
                     .n_sequences_differing = g->gate.n_sequences_differing,
                     .sequence = g->gate.sequence,
                     .row = g->gate.row,
                     .n = g->rows.n};
}

static ls_status list_sequences(const grpo *g, ls_bundle *b, char (**ids)[LS_EPISODE_ID_MAX], ls_error *err) {
    ls_status status;
    LS_TRY(ls_array_alloc((void **)&b->sequences, b->n, sizeof *b->sequences, "bundle", err));
    LS_TRY(ls_array_alloc((void **)ids, b->n, sizeof **ids, "bundle", err));
    for (int64_t s = 0; s < b->n; s++) {
        const ls_episode *x = &g->episodes->list[s];
        const int64_t row = g->rows.offsets[s];
        ls_episode_id((*ids)[s], x);
        b->sequences[s] = (ls_bundle_sequence){(*ids)[s],
                                               x->tokens,
                                               x->n,
                                               x->n_prompt,
                                               g->rows.mask + row,
                                               g->rows.recorded + row,
                                               g->rows.trainer + row,
                                               x->slot,
                                               x->n_hit,
                                               x->n_preempted};
    }
done:
    return status;
}

/* The bundle is complete when it has its name; what a killed process leaves is removed with its checkpoints. */
static ls_status write_bundle(const grpo *g, const ls_bundle *b, ls_error *err) {
    char fresh[LS_RUN_PATH_MAX + 64];
    const ls_replay_opts replay = {0, g->engine_opts.inject};
    bool is_made = false;
    ls_status status;
    snprintf(fresh, sizeof fresh, "%s/.step-%08lld.mismatch", g->o->train.run, (long long)g->step);
    LS_TRY(ls_directory_make(fresh, err));
    is_made = true;
    LS_TRY(ls_run_save_model(g->run, fresh, ls_trainer_state(g->trainer)->parameters, err));
    LS_TRY(ls_bundle_write(fresh, b, g->config, err));
    LS_TRY(ls_replay(&g->result->finding, fresh, &replay, err));
    LS_TRY(ls_finding_save(fresh, &g->result->finding, err));
    LS_TRY(ls_directory_sync(fresh, err));
    if (ls_file_exists(g->result->bundle)) LS_TRY(ls_directory_remove(g->result->bundle, err));
    LS_TRY(ls_path_rename(fresh, g->result->bundle, err));
    is_made = false;
    LS_TRY(ls_directory_sync(g->o->train.run, err));
done:
    if (is_made) (void)ls_directory_remove(fresh, NULL);
    return status;
}

static void tell(const grpo *g) {
    char id[LS_EPISODE_ID_MAX];
    const ls_gate *gate = &g->gate;
    if (g->progress == NULL) return;
    ls_episode_id(id, &g->episodes->list[gate->sequence]);
    fprintf(g->progress,
            "step %lld: rollout and trainer differ in %lld of %lld tokens, %lld of %lld episodes\n"
            "first difference: %s, token %lld: rollout %.9g (%08x), trainer %.9g (%08x), %lld ulps\n",
            (long long)g->step, (long long)gate->n_differing, (long long)gate->n_tokens,
            (long long)gate->n_sequences_differing, (long long)g->rows.n, id, (long long)gate->row + 1,
            (double)gate->rollout, ls_float_bits(gate->rollout), (double)gate->trainer, ls_float_bits(gate->trainer),
            (long long)ls_float_ulps(gate->rollout, gate->trainer));
    ls_finding_print(g->progress, &g->result->finding);
    fprintf(g->progress, "reproduce: lockstep train replay %s\n", g->result->bundle);
}

ls_status ls_grpo_bundle(grpo *g, ls_error *err) {
    ls_bundle b;
    char(*ids)[LS_EPISODE_ID_MAX] = NULL;
    ls_status status = LS_OK;
    if (!ls_grpo_writes(g) || g->result->bundle[0] != '\0') return LS_OK;
    describe(g, &b);
    LS_TRY(list_sequences(g, &b, &ids, err));
    snprintf(g->result->bundle, sizeof g->result->bundle, "%s/mismatch-%08lld", g->o->train.run, (long long)g->step);
    LS_TRY(write_bundle(g, &b, err));
    tell(g);
done:
    free(ids);
    free(b.sequences);
    return status;
}
